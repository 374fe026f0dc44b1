//! A [`BatchModel`] over an engine that generates sequences, not trees.
//!
//! If a step has a single path, its sequence stays in the engine and costs one decoded token per step, until
//! a step requests anything else. The engine recomputes all other rows, each from its complete prompt and
//! path; it can batch rows of equal lengths. This is correct for every search, but fast only for a single
//! text, so `sequences_max` is 1.

use std::collections::HashMap;

use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, Logits, LogitsShape, ModelError, ModelInfo,
    NodeCapacity, NodeId, OpenedContext, PrefillChunk, PrefillProgress, Row,
};

use super::{Sequence, SequenceEngine, failed};

struct Context {
    /// The prompt without its last token, which is the first row.
    prompt: Vec<u32>,
    nodes: Vec<Node>,
}

struct Node {
    parent: Option<NodeId>,
    token: u32,
    position: usize,
}

/// Rows of a step, each of which extends the previous one.
struct Chain {
    context: ContextId,
    /// The node that the first row extends.
    parent: Option<NodeId>,
    first: NodeId,
    last: NodeId,
    tokens: Vec<u32>,
    /// Indices of these rows in the step.
    rows: Vec<usize>,
}

/// The sequence that stays in the engine and can be continued.
struct Live {
    context: ContextId,
    last: NodeId,
    sequence: Sequence,
}

/// A model over a [`SequenceEngine`], with its open contexts.
pub(crate) struct SequenceModel {
    info: ModelInfo,
    /// Width of the output layer.
    vocab: usize,
    /// The token that replaces an empty prompt.
    begin: u32,
    contexts: HashMap<ContextId, Context>,
    opened: u64,
    // Declared before the engine, so that it is dropped first.
    live: Option<Live>,
    engine: Box<dyn SequenceEngine>,
}

impl Context {
    /// Returns all tokens from the beginning of the prompt to a node.
    fn tokens_to(&self, node: NodeId) -> Vec<u32> {
        let nodes = std::iter::successors(self.nodes.get(node.index()), |node| {
            node.parent.and_then(|parent| self.nodes.get(parent.index()))
        });
        let mut path: Vec<u32> = nodes.map(|node| node.token).collect();
        path.extend(self.prompt.iter().rev());
        path.reverse();
        path
    }
}

impl SequenceModel {
    /// Computes the logits of `begin`, which determines their width and checks that the engine works. `begin`
    /// also replaces an empty prompt.
    ///
    /// # Errors
    /// If the engine cannot compute, or has fewer logits than the tokenizer has tokens.
    pub(crate) fn new(
        engine: Box<dyn SequenceEngine>,
        info: ModelInfo,
        begin: u32,
    ) -> Result<Self, ModelError> {
        let vocab = Sequence::forced(&*engine, vec![begin], &[])?.logits()?.len();
        if vocab < info.tokens {
            return Err(failed(format!("the engine has {vocab} logits for {} tokens", info.tokens)));
        }
        Ok(Self { info, vocab, begin, contexts: HashMap::new(), opened: 0, live: None, engine })
    }

    /// Adds a row as the next node of its context.
    fn add_node(&mut self, row: &Row) -> Result<NodeId, ModelError> {
        let path = &row.path;
        let vocab = self.vocab;
        let max = self.info.prompt_tokens_max;
        let context = self.contexts.get_mut(&row.context).ok_or(ModelError::UnknownContext(row.context))?;
        let position = match path.parent {
            None => context.prompt.len(),
            Some(node) => {
                let unknown = ModelError::UnknownNode { context: row.context, node };
                context.nodes.get(node.index()).ok_or(unknown)?.position + 1
            }
        };
        if path.token.id as usize >= vocab {
            return Err(ModelError::TokenOutOfRange { id: path.token.id, vocab });
        }
        if position >= max {
            return Err(ModelError::PositionOutOfRange { position, max });
        }
        context.nodes.push(Node { parent: path.parent, token: path.token.id, position });
        Ok(NodeId(context.nodes.len() as u32 - 1))
    }

    /// Splits the rows of a step into chains; each row is in one of them.
    fn chains(&mut self, rows: &[Row]) -> Result<Vec<Chain>, ModelError> {
        let mut chains: Vec<Chain> = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let node = self.add_node(row)?;
            let previous = chains
                .iter_mut()
                .find(|chain| chain.context == row.context && Some(chain.last) == row.path.parent);
            match previous {
                Some(chain) => {
                    chain.last = node;
                    chain.tokens.push(row.path.token.id);
                    chain.rows.push(index);
                }
                None => chains.push(Chain {
                    context: row.context,
                    parent: row.path.parent,
                    first: node,
                    last: node,
                    tokens: vec![row.path.token.id],
                    rows: vec![index],
                }),
            }
        }
        Ok(chains)
    }

    fn tokens_to(&self, context: ContextId, node: NodeId) -> Result<Vec<u32>, ModelError> {
        let context = self.contexts.get(&context).ok_or(ModelError::UnknownContext(context))?;
        Ok(context.tokens_to(node))
    }

    /// Returns the logits of the rows of a step's only chain, whose sequence stays in the engine.
    fn continue_live(&mut self, chain: &Chain) -> Result<Vec<Vec<f32>>, ModelError> {
        let live = self.live.take_if(|live| live.context == chain.context && Some(live.last) == chain.parent);
        // Ends a sequence that this chain does not continue.
        self.live = None;
        let mut logits = Vec::with_capacity(chain.tokens.len());
        let (mut sequence, appended) = match live {
            Some(live) => (live.sequence, &chain.tokens[..]),
            None => {
                let ids = self.tokens_to(chain.context, chain.first)?;
                let mut sequence = Sequence::interactive(&*self.engine, ids)?;
                logits.push(sequence.logits()?);
                (sequence, &chain.tokens[1..])
            }
        };
        for &token in appended {
            sequence.append(token)?;
            logits.push(sequence.logits()?);
        }
        self.live = Some(Live { context: chain.context, last: chain.last, sequence });
        Ok(logits)
    }

    /// Returns the logits of the rows of several chains, each computed from the beginning of its prompt.
    fn recompute(&mut self, chains: &[Chain]) -> Result<Vec<Vec<Vec<f32>>>, ModelError> {
        self.live = None;
        let mut all = Vec::with_capacity(chains.len());
        for group in chains.chunks(self.engine.batch_max().max(1)) {
            let mut sequences = Vec::with_capacity(group.len());
            for chain in group {
                let ids = self.tokens_to(chain.context, chain.first)?;
                sequences.push(Sequence::forced(&*self.engine, ids, &chain.tokens[1..])?);
            }
            for (chain, sequence) in group.iter().zip(&mut sequences) {
                all.push(chain.tokens.iter().map(|_| sequence.logits()).collect::<Result<_, _>>()?);
            }
        }
        Ok(all)
    }
}

impl BatchModel for SequenceModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Leaves no work for a prefill: the engine gets prompt and path together.
    fn begin(&mut self, request: ContextRequest<'_>) -> Result<OpenedContext, ModelError> {
        let mut prompt: Vec<u32> = request.prompt.ids().collect();
        let first_token = prompt.pop().unwrap_or(self.begin);
        self.opened += 1;
        let context = ContextId(self.opened);
        self.contexts.insert(context, Context { prompt, nodes: Vec::new() });
        Ok(OpenedContext { context, first_token, prefill: PrefillProgress::default() })
    }

    fn prefill(&mut self, chunks: &[PrefillChunk]) -> Result<Vec<PrefillProgress>, ModelError> {
        Ok(vec![PrefillProgress::default(); chunks.len()])
    }

    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        let chains = self.chains(rows)?;
        let computed = match &chains[..] {
            [only] => vec![self.continue_live(only)?],
            several => self.recompute(several)?,
        };
        let mut values = vec![0.0; rows.len() * self.vocab];
        for (chain, logits) in chains.iter().zip(computed) {
            for (&row, logits) in chain.rows.iter().zip(logits) {
                if logits.len() != self.vocab {
                    return Err(LogitsShape { values: logits.len(), vocab: self.vocab }.into());
                }
                values[row * self.vocab..(row + 1) * self.vocab].copy_from_slice(&logits);
            }
        }
        Ok(Logits::new(values, self.vocab)?)
    }

    /// Every row of a step is a sequence from the beginning of its prompt. As many run concurrently as the
    /// engine batches.
    fn cache_cost(&self) -> CacheCost {
        let token = self.engine.token_bytes().saturating_add(size_of::<u32>() as u64);
        let prompt_token = token.saturating_mul(self.engine.batch_max() as u64);
        CacheCost { prompt_token, node: token + size_of::<Node>() as u64, capacity: NodeCapacity::Exact }
    }

    fn sequences_max(&self) -> Option<usize> {
        Some(1)
    }

    fn close(&mut self, context: ContextId) {
        self.live.take_if(|live| live.context == context);
        self.contexts.remove(&context);
    }
}
