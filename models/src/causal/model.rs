//! A whole decoder-only model as a [`BatchModel`].

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use ntl_core::engine::{
    Backend, BatchModel, ContextId, ContextRequest, Logits, ModelError, ModelInfo, NumberEncoding,
    OpenedContext, Row,
};

use super::context::{BLOCK, Block, Context};
use super::layers::{Layer, Loader, Norm, Span};
use super::prefix::PrefixCache;
use super::{CausalConfig, Positions};
use crate::adapter::Adapter;
use crate::answers::Answers;
use crate::checkpoint::{CheckpointFiles, LoadError, Weights};
use crate::nodes::{Group, NodeShape, NodeStore, grow};
use crate::ops::{AttentionPlans, Placement, Product, RopeTables, Visible, Weight};

/// How a model is loaded, beside what its files say.
#[derive(Debug, Clone)]
pub struct CausalOptions {
    /// Ids that the tokenizer knows.
    pub tokens: usize,
    /// Where it runs.
    pub place: Placement,
    /// Most memory for the beginnings of earlier prompts; 0 keeps none.
    pub prefix_bytes_max: usize,
}

/// A decoder-only model with its open contexts.
pub struct Causal {
    info: ModelInfo,
    config: CausalConfig,
    embeddings: Weight,
    /// `[positions_max, hidden]`, where positions are learned.
    learned: Option<Tensor>,
    layers: Vec<Layer>,
    norm: Norm,
    /// `[vocab, hidden]`.
    head: Weight,
    node: NodeShape,
    prefixes: PrefixCache,
    contexts: HashMap<ContextId, Context>,
    opened: u64,
    answers: Answers,
}

impl Causal {
    /// Loads the weights of a checkpoint of this architecture.
    ///
    /// # Errors
    /// When configuration or weights are missing or do not fit each other.
    pub fn load(
        files: &CheckpointFiles,
        architecture: &str,
        options: &CausalOptions,
    ) -> std::result::Result<Self, LoadError> {
        Self::load_adapted(files, architecture, options, None)
    }

    /// The same with an adapter merged into the weights.
    pub(crate) fn load_adapted(
        files: &CheckpointFiles,
        architecture: &str,
        options: &CausalOptions,
        adapter: Option<&Adapter>,
    ) -> std::result::Result<Self, LoadError> {
        let config = CausalConfig::read(files, architecture)?;
        if options.tokens > config.vocab_size {
            let reason =
                format!("{} is less than the {} tokens of the tokenizer", config.vocab_size, options.tokens);
            return Err(LoadError::field(files.name_of("config.json"), "vocab_size", reason));
        }
        let weights = Weights::open(files)?;
        let place = &options.place;
        let parameters = Cell::default();
        let loader = Loader { weights: &weights, adapter, config: &config, place, parameters };
        let [embeddings, norm, learned] = config.naming.ends(&weights);
        let embeddings = loader.packed(loader.tensor(&embeddings, &[config.vocab_size, config.hidden])?)?;
        let learned = match config.positions {
            Positions::Rotary(_) => None,
            Positions::Learned => Some(loader.tensor(&learned, &[config.positions_max, config.hidden])?),
        };
        let head = if config.tied { embeddings.clone() } else { loader.head()? };
        let layers = (0..config.layers.len())
            .map(|index| loader.layer(index))
            .collect::<std::result::Result<_, _>>()?;
        let norm = loader.norm(&norm, config.hidden)?;
        adapter.map_or(Ok(()), Adapter::finish)?;
        let info = info(&config, loader.parameters.get(), options);
        let node = NodeShape {
            layers: config.layers.len(),
            width: config.key_width(),
            dtype: place.dtype,
            device: place.device.clone(),
        };
        let (prefixes, contexts) = (PrefixCache::new(options.prefix_bytes_max), HashMap::new());
        Ok(Self {
            info,
            config,
            embeddings,
            learned,
            layers,
            norm,
            head,
            node,
            prefixes,
            contexts,
            opened: 0,
            answers: Answers::new(options.tokens),
        })
    }

    /// f32 `[n, hidden]` of tokens at their positions.
    fn embed(
        &self,
        tokens: &[u32],
        positions: impl Iterator<Item = usize>,
    ) -> std::result::Result<Tensor, ModelError> {
        let (vocab, max) = (self.config.vocab_size, self.config.positions_max);
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(ModelError::TokenOutOfRange { id, vocab });
        }
        let positions: Vec<u32> = positions.map(|position| position as u32).collect();
        if let Some(&position) = positions.iter().find(|&&position| position as usize >= max) {
            return Err(ModelError::PositionOutOfRange { position: position as usize, max });
        }
        let look_up = |table: &Tensor, indices: &[u32]| -> Result<Tensor> {
            table.index_select(&Tensor::from_slice(indices, indices.len(), table.device())?, 0)
        };
        let embedded = || {
            let mut x = self.embeddings.rows(tokens)?.to_dtype(DType::F32)?;
            let factor = self.config.multipliers.embedding;
            if (factor - 1.0).abs() > f64::EPSILON {
                x = (x * factor)?;
            }
            match &self.learned {
                Some(learned) => x + look_up(learned, &positions)?.to_dtype(DType::F32)?,
                None => Ok(x),
            }
        };
        embedded().map_err(compute)
    }

    fn turns(&self, spans: &[Span<'_>]) -> Option<RopeTables> {
        match &self.config.positions {
            Positions::Rotary(rotary) => {
                let positions = spans.iter().flat_map(Span::positions);
                Some(RopeTables::new(positions, &rotary.frequencies, rotary.magnitude))
            }
            Positions::Learned => None,
        }
    }

    /// Logits `[R, vocab]` of rows whose embeddings are `x` `[R, hidden]`.
    fn logits(&self, mut x: Tensor, spans: &[Span<'_>]) -> Result<Product> {
        let (turns, plans) = (self.turns(spans), AttentionPlans::default());
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, index, spans, (turns.as_ref(), &plans))?;
        }
        let hidden = self.norm.forward(&x)?;
        let scale = self.config.multipliers.logits;
        let hidden = if (scale - 1.0).abs() > f64::EPSILON { (hidden / scale)? } else { hidden };
        self.head.product(&hidden)
    }

    /// Stores keys and values of rows in every layer; nothing else of them is wanted.
    fn remember(&self, mut x: Tensor, spans: &[Span<'_>]) -> Result<()> {
        let (turns, plans) = (self.turns(spans), AttentionPlans::default());
        for (index, layer) in self.layers.iter().enumerate() {
            if index + 1 == self.layers.len() {
                return layer.remember(&x, index, spans, turns.as_ref()).map(drop);
            }
            x = layer.forward(&x, index, spans, (turns.as_ref(), &plans))?;
        }
        Ok(())
    }

    /// Computes what no earlier prompt has left behind of these prompts, whose last tokens are taken off already.
    fn compute(&mut self, begun: &mut [&mut Begun<'_>]) -> std::result::Result<(), ModelError> {
        let missing: Vec<&[u32]> = begun.iter().map(|prompt| prompt.missing()).collect();
        let chains = missing.iter().map(|tokens| NodeStore::chain(tokens.len(), &self.node));
        let chains: Vec<NodeStore> = chains.collect::<Result<_>>().map_err(compute)?;
        let mut first_row = 0;
        let spans = begun.iter().zip(&chains).zip(&missing).map(|((prompt, nodes), tokens)| {
            let blocks = prompt.blocks.iter().map(Arc::as_ref).collect();
            let (start, sight) = (prompt.start(), (1..=tokens.len()).map(Visible::First).collect());
            let span = Span { blocks, nodes, first_row, first_node: 0, sight, start };
            first_row += tokens.len();
            span
        });
        let spans: Vec<_> = spans.filter(|span| !span.sight.is_empty()).collect();
        if first_row > 0 {
            let x = self.embed(&missing.concat(), spans.iter().flat_map(Span::positions))?;
            self.remember(x, &spans).map_err(compute)?;
        }
        let lengths: Vec<usize> = missing.iter().map(|tokens| tokens.len()).collect();
        drop(spans);
        for ((prompt, chain), length) in begun.iter_mut().zip(&chains).zip(lengths) {
            for first in (0..length).step_by(BLOCK) {
                let len = BLOCK.min(length - first);
                let block = Block::of(chain, self.layers.len(), first, len).map_err(compute)?;
                prompt.blocks.push(Arc::new(block));
            }
            self.prefixes.keep(prompt.tokens, &prompt.blocks);
        }
        Ok(())
    }

    /// Computes all prompts. Those that would compute the same block at the same time wait for the first of them.
    fn compute_all(&mut self, begun: &mut [Begun<'_>]) -> std::result::Result<(), ModelError> {
        let mut waiting: Vec<&mut Begun<'_>> = begun.iter_mut().collect();
        while !waiting.is_empty() {
            let mut claimed = HashSet::new();
            let (mut now, mut later) = (Vec::new(), Vec::new());
            for prompt in waiting {
                prompt.blocks = self.prefixes.longest(prompt.tokens);
                prompt.reused = prompt.start();
                let next = prompt.tokens.get(..prompt.reused + BLOCK).filter(|_| self.prefixes.is_on());
                if next.is_none_or(|next| claimed.insert(next)) {
                    now.push(prompt)
                } else {
                    later.push(prompt)
                }
            }
            self.compute(&mut now)?;
            waiting = later;
        }
        Ok(())
    }
}

/// A prompt that is being opened.
struct Begun<'a> {
    /// All but its last token.
    tokens: &'a [u32],
    /// What there is of it, from its beginning.
    blocks: Vec<Arc<Block>>,
    /// Tokens that were there before.
    reused: usize,
}

impl<'a> Begun<'a> {
    fn start(&self) -> usize {
        self.blocks.iter().map(|block| block.len()).sum()
    }

    fn missing(&self) -> &'a [u32] {
        &self.tokens[self.start()..]
    }
}

impl BatchModel for Causal {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// An empty prompt stands for the token that texts begin with.
    fn open(
        &mut self,
        requests: &[ContextRequest<'_>],
    ) -> std::result::Result<Vec<OpenedContext>, ModelError> {
        let begin = self.config.bos_id.or(self.config.eos_ids.first().copied()).unwrap_or(0);
        let prompts: Vec<Vec<u32>> = requests.iter().map(|request| request.prompt.ids().collect()).collect();
        let cut = |ids: &Vec<u32>| ids.split_last().map_or((begin, 0), |(&last, rest)| (last, rest.len()));
        let (firsts, lengths): (Vec<u32>, Vec<usize>) = prompts.iter().map(cut).unzip();
        let begun = prompts.iter().zip(lengths);
        let mut begun: Vec<_> = begun
            .map(|(prompt, length)| Begun { tokens: &prompt[..length], blocks: Vec::new(), reused: 0 })
            .collect();
        self.compute_all(&mut begun)?;
        let open = |(prompt, first_token): (Begun<'_>, u32)| {
            self.opened += 1;
            let context = ContextId(self.opened);
            let nodes = NodeStore::default();
            self.contexts.insert(context, Context { blocks: prompt.blocks, nodes });
            OpenedContext { context, first_token, cached_tokens: prompt.reused }
        };
        Ok(begun.into_iter().zip(firsts).map(open).collect())
    }

    fn step(&mut self, rows: &[Row]) -> std::result::Result<Logits, ModelError> {
        let groups = grow(&mut self.contexts, rows, &self.node)?;
        let spans: Vec<_> = groups.iter().filter_map(|group| span(group, &self.contexts)).collect();
        let tokens: Vec<u32> = rows.iter().map(|row| row.path.token.id).collect();
        let x = self.embed(&tokens, spans.iter().flat_map(Span::positions))?;
        let logits = self.logits(x, &spans).map_err(compute)?;
        self.answers.of(logits, rows)
    }

    fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }
}

/// The rows of a group, which see their context and their ancestors.
fn span<'a>(group: &'a Group, contexts: &'a HashMap<ContextId, Context>) -> Option<Span<'a>> {
    let context = contexts.get(&group.context)?;
    Some(Span {
        blocks: context.blocks.iter().map(Arc::as_ref).collect(),
        nodes: &context.nodes,
        first_row: group.first_row,
        first_node: group.first_node,
        sight: group.paths.iter().map(|path| Visible::Nodes(path)).collect(),
        start: context.start(),
    })
}

fn info(config: &CausalConfig, parameters: u64, options: &CausalOptions) -> ModelInfo {
    ModelInfo {
        kind: config.family.kind(),
        backend: Backend::Native,
        dtype: options.place.name().into(),
        number_encoding: NumberEncoding::Text,
        parameters,
        prompt_tokens_max: config.positions_max,
        context_tokens_max: Some(config.positions_max),
        answer_tokens_max: None,
        tokens: options.tokens,
        eos_ids: config.eos_ids.clone(),
        encoder_decoder: false,
    }
}

fn compute(error: candle_core::Error) -> ModelError {
    ModelError::Compute(Box::new(error))
}
