//! A [`BatchModel`] over an engine that knows sequences, not trees.
//!
//! A path that is alone in its step stays alive in the engine and costs one decoded token a step; it is let go when
//! anything else is asked for. All other rows are given to the engine anew, each with its whole prompt and path, so that
//! those of equal lengths can be one batch. That is right for every search and fast for one text; so the batch engine is
//! asked to decode one sequence at a time.

use std::collections::HashMap;

use ntl_core::engine::{BatchModel, ContextId, Logits, ModelError, ModelInfo, NodeId, Opened, Prompt, Row};

use super::{Host, Sequence, failed};

/// A prompt, and what was decoded under it.
struct Context {
    /// All but its last token.
    prompt: Vec<u32>,
    nodes: Vec<Node>,
}

struct Node {
    parent: Option<NodeId>,
    token: u32,
    /// Its place in the sequence, counted from 0.
    position: usize,
}

/// Rows of a step each of which extends the one before it.
struct Chain {
    context: ContextId,
    /// The node that the first row extends.
    parent: Option<NodeId>,
    first: NodeId,
    last: NodeId,
    tokens: Vec<u32>,
    /// Where its rows stand in the step.
    rows: Vec<usize>,
}

/// The sequence that can be continued without computing it again.
struct Live {
    context: ContextId,
    last: NodeId,
    sequence: Sequence,
}

/// A model with its open contexts.
pub(crate) struct SequenceModel {
    info: ModelInfo,
    /// Width of the output layer.
    vocab: usize,
    /// The token that an empty prompt stands for.
    begin: u32,
    contexts: HashMap<ContextId, Context>,
    opened: u64,
    // Before the host, so that it ends while there is one.
    live: Option<Live>,
    host: Box<dyn Host>,
}

impl Context {
    /// All tokens from the beginning of the prompt to a node.
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
    /// Computes the logits of one token to learn how wide they are, and that it works at all.
    ///
    /// # Errors
    /// When the engine cannot compute.
    pub(crate) fn new(host: Box<dyn Host>, info: ModelInfo, begin: u32) -> Result<Self, ModelError> {
        let vocab = Sequence::scripted(&*host, vec![begin], &[])?.logits()?.len();
        if vocab < info.tokens {
            return Err(failed(format!("it has {vocab} logits for {} tokens", info.tokens)));
        }
        Ok(Self { info, vocab, begin, contexts: HashMap::new(), opened: 0, live: None, host })
    }

    /// Turns a row into the next node of its context.
    fn grow(&mut self, row: &Row) -> Result<NodeId, ModelError> {
        let (path, vocab, max) = (&row.path, self.vocab, self.info.prompt_tokens_max);
        let context = self.contexts.get_mut(&row.context).ok_or(ModelError::UnknownContext(row.context))?;
        let position = match path.parent {
            None => context.prompt.len(),
            Some(node) => {
                let unknown = ModelError::UnknownNode { context: row.context, node };
                context.nodes.get(node.index()).ok_or(unknown)?.position + 1
            }
        };
        if path.token as usize >= vocab {
            return Err(ModelError::TokenOutOfRange { id: path.token, vocab });
        }
        if position >= max {
            return Err(ModelError::PositionOutOfRange { position, max });
        }
        context.nodes.push(Node { parent: path.parent, token: path.token, position });
        Ok(NodeId(context.nodes.len() as u32 - 1))
    }

    /// The rows of a step as chains, which hold each of them once.
    fn chains(&mut self, rows: &[Row]) -> Result<Vec<Chain>, ModelError> {
        let mut chains: Vec<Chain> = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let node = self.grow(row)?;
            let precedes =
                |chain: &&mut Chain| (chain.context, Some(chain.last)) == (row.context, row.path.parent);
            match chains.iter_mut().find(precedes) {
                Some(chain) => {
                    chain.last = node;
                    chain.tokens.push(row.path.token);
                    chain.rows.push(index);
                }
                None => chains.push(Chain {
                    context: row.context,
                    parent: row.path.parent,
                    first: node,
                    last: node,
                    tokens: vec![row.path.token],
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

    /// Logits of the rows of a chain that is alone in its step; it stays alive.
    fn follow(&mut self, chain: &Chain) -> Result<Vec<Vec<f32>>, ModelError> {
        let continues = |live: &Live| (live.context, Some(live.last)) == (chain.context, chain.parent);
        let live = self.live.take().filter(continues);
        let mut logits = Vec::with_capacity(chain.tokens.len());
        let (mut sequence, ahead) = match live {
            Some(live) => (live.sequence, &chain.tokens[..]),
            None => {
                let ids = self.tokens_to(chain.context, chain.first)?;
                let mut sequence = Sequence::open(&*self.host, ids)?;
                logits.push(sequence.logits()?);
                (sequence, &chain.tokens[1..])
            }
        };
        for &token in ahead {
            sequence.append(token)?;
            logits.push(sequence.logits()?);
        }
        self.live = Some(Live { context: chain.context, last: chain.last, sequence });
        Ok(logits)
    }

    /// Logits of the rows of several chains, computed from their beginnings.
    fn recompute(&mut self, chains: &[Chain]) -> Result<Vec<Vec<Vec<f32>>>, ModelError> {
        self.live = None;
        let start = |chain: &Chain| {
            let ids = self.tokens_to(chain.context, chain.first)?;
            Sequence::scripted(&*self.host, ids, &chain.tokens[1..])
        };
        let mut all = Vec::with_capacity(chains.len());
        for group in chains.chunks(self.host.at_once().max(1)) {
            let mut sequences: Vec<Sequence> = group.iter().map(start).collect::<Result<_, _>>()?;
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

    /// Computes nothing: the engine is given prompt and path together. An empty prompt stands for the token that texts
    /// begin with.
    fn open(&mut self, prompts: &[&Prompt]) -> Result<Vec<Opened>, ModelError> {
        let open = |prompt: &&Prompt| {
            let (first_token, rest) =
                prompt.ids.split_last().map_or((self.begin, &[][..]), |(&id, rest)| (id, rest));
            self.opened += 1;
            let context = ContextId(self.opened);
            self.contexts.insert(context, Context { prompt: rest.to_vec(), nodes: Vec::new() });
            Opened { context, first_token, reused_tokens: 0 }
        };
        Ok(prompts.iter().map(open).collect())
    }

    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        let chains = self.chains(rows)?;
        let computed = match &chains[..] {
            [only] => vec![self.follow(only)?],
            several => self.recompute(several)?,
        };
        let mut values = vec![0.0; rows.len() * self.vocab];
        for (chain, logits) in chains.iter().zip(computed) {
            for (&row, logits) in chain.rows.iter().zip(logits) {
                if logits.len() != self.vocab {
                    return Err(ModelError::LogitsShape { values: logits.len(), vocab: self.vocab });
                }
                values[row * self.vocab..(row + 1) * self.vocab].copy_from_slice(&logits);
            }
        }
        Logits::new(values, self.vocab)
    }

    fn sequences_max(&self) -> Option<usize> {
        Some(1)
    }

    fn close(&mut self, context: ContextId) {
        self.live.take_if(|live| live.context == context);
        self.contexts.remove(&context);
    }
}
