//! A whole decoder-only model as a [`BatchModel`].

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use ntl_core::engine::{
    Backend, BatchModel, CacheCost, ContextId, ContextRequest, EvictableCache, Logits, ModelError, ModelInfo,
    NumberEncoding, OpenedContext, Row,
};

use super::block::{BLOCK, Block};
use super::config::{CausalConfig, Positions};
use super::layers::{ContextRows, Layer, Loader, Pass, PassSlots};
use super::prefix::SharedPrefixCache;
use crate::adapter::Adapter;
use crate::checkpoint::{CheckpointFiles, LoadError, LoadResult, Weights};
use crate::gpu::ContextOnDrop;
use crate::kv_cache::{KvCache, NodeShape};
use crate::logits_reducer::LogitsReducer;
use crate::ops::{ModelResult, Norm, Placement, Product, RopeTables, Visible, Weight, compute_error};

#[derive(Debug, Clone)]
pub struct CausalOptions {
    /// Ids that the tokenizer knows.
    pub tokens: usize,
    pub place: Placement,
    /// Most memory for the prefix cache; 0 turns it off.
    pub prefix_bytes_max: usize,
}

/// A decoder-only model with its open contexts.
pub struct Causal {
    _context: ContextOnDrop,
    info: ModelInfo,
    config: CausalConfig,
    embeddings: Weight,
    /// `[positions_max, hidden]`, where positions are learned.
    learned: Option<Tensor>,
    layers: Vec<Layer>,
    norm: Norm,
    /// `[vocab, hidden]`.
    head: Weight,
    prefixes: SharedPrefixCache,
    /// A context's prompt is all of it but the last token.
    kv_cache: KvCache<Vec<Arc<Block>>>,
    reducer: LogitsReducer,
}

impl Causal {
    pub fn load(files: &CheckpointFiles, architecture: &str, options: &CausalOptions) -> LoadResult<Self> {
        Self::load_adapted(files, architecture, options, None)
    }

    /// Loads a checkpoint with an adapter merged into its weights.
    pub(crate) fn load_adapted(
        files: &CheckpointFiles,
        architecture: &str,
        options: &CausalOptions,
        adapter: Option<&Adapter>,
    ) -> LoadResult<Self> {
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
        let layers = (0..config.layers.len()).map(|index| loader.layer(index)).collect::<LoadResult<_>>()?;
        let norm = loader.norm(&norm, config.hidden)?.exact();
        adapter.map_or(Ok(()), Adapter::finish)?;
        let info = info(&config, loader.parameters.get(), options);
        let node = NodeShape {
            layers: config.layers.len(),
            width: config.key_width(),
            dtype: place.kv_dtype(),
            device: place.device.clone(),
        };
        Ok(Self {
            _context: ContextOnDrop::new(&place.device),
            info,
            config,
            embeddings,
            learned,
            layers,
            norm,
            head,
            prefixes: SharedPrefixCache::new(options.prefix_bytes_max),
            kv_cache: KvCache::new(node, !place.uses_kernels()),
            reducer: LogitsReducer::new(options.tokens),
        })
    }

    /// f32 `[n, hidden]` of tokens at their positions.
    fn embed(&self, tokens: &[u32], positions: impl Iterator<Item = usize>) -> ModelResult<Tensor> {
        let (vocab, max) = (self.config.vocab_size, self.config.positions_max);
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(ModelError::TokenOutOfRange { id, vocab });
        }
        let positions: Vec<u32> = positions.map(|position| position as u32).collect();
        if let Some(&position) = positions.iter().find(|&&position| position as usize >= max) {
            return Err(ModelError::PositionOutOfRange { position: position as usize, max });
        }
        let embedded = || {
            let mut x = self.embeddings.rows(tokens)?.to_dtype(DType::F32)?;
            let factor = self.config.multipliers.embedding;
            if (factor - 1.0).abs() > f64::EPSILON {
                x = (x * factor)?;
            }
            match &self.learned {
                Some(learned) => {
                    let positions = Tensor::from_slice(&positions, positions.len(), learned.device())?;
                    x + learned.index_select(&positions, 0)?.to_dtype(DType::F32)?
                }
                None => Ok(x),
            }
        };
        embedded().map_err(compute_error)
    }

    fn pass<'a>(&'a self, contexts: &'a [ContextRows<'a>]) -> Result<Pass<'a>> {
        let rope = match &self.config.positions {
            Positions::Rotary(rotary) => {
                let positions = contexts.iter().flat_map(ContextRows::positions);
                Some(RopeTables::new(positions, &rotary.frequencies, rotary.magnitude))
            }
            Positions::Learned => None,
        };
        let slots =
            self.kv_cache.slab().map(|slab| PassSlots::new(slab, contexts, &self.layers)).transpose()?;
        Ok(Pass { contexts, rope, slots })
    }

    /// Logits `[R, vocab]` of rows whose embeddings are `x` `[R, hidden]`.
    fn logits(&self, mut x: Tensor, contexts: &[ContextRows<'_>]) -> Result<Product> {
        let pass = self.pass(contexts)?;
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x, index, &pass)?;
        }
        let hidden = self.norm.forward(&x)?;
        let scale = self.config.multipliers.logits;
        let hidden = if (scale - 1.0).abs() > f64::EPSILON { (hidden / scale)? } else { hidden };
        self.head.product(&hidden)
    }

    /// Writes keys and values of rows in every layer and computes nothing else of them.
    fn write_kv(&self, mut x: Tensor, contexts: &[ContextRows<'_>]) -> Result<()> {
        let pass = self.pass(contexts)?;
        for (index, layer) in self.layers.iter().enumerate() {
            if index + 1 == self.layers.len() {
                return layer.write_kv(&x, index, &pass);
            }
            x = layer.forward(x, index, &pass)?;
        }
        Ok(())
    }

    /// Computes the blocks of these prompts that the prefix cache does not have.
    fn prefill(&mut self, prompts: &mut [&mut PrefillPrompt<'_>]) -> ModelResult<()> {
        let missing: Vec<&[u32]> = prompts.iter().map(|prompt| prompt.missing()).collect();
        let lengths: Vec<usize> = missing.iter().map(|tokens| tokens.len()).collect();
        let chains = self.kv_cache.chains(&lengths).map_err(compute_error)?;
        let mut first_row = 0;
        let rows = prompts.iter().zip(&chains).zip(&missing).map(|((prompt, nodes), tokens)| {
            let blocks = prompt.blocks.iter().map(Arc::as_ref).collect();
            let (start, visible) = (prompt.start(), (1..=tokens.len()).map(Visible::First).collect());
            let rows = ContextRows { blocks, nodes, first_row, first_node: 0, visible, start };
            first_row += tokens.len();
            rows
        });
        let rows: Vec<_> = rows.filter(|rows| !rows.visible.is_empty()).collect();
        if first_row > 0 {
            let x = self.embed(&missing.concat(), rows.iter().flat_map(ContextRows::positions))?;
            self.write_kv(x, &rows).map_err(compute_error)?;
        }
        drop(rows);
        let slot_bytes = self.kv_cache.shape().bytes() as usize;
        for ((prompt, chain), length) in prompts.iter_mut().zip(chains).zip(lengths) {
            let blocks = Block::cut(chain, length, slot_bytes).map_err(compute_error)?;
            prompt.blocks.extend(blocks.into_iter().map(Arc::new));
            self.prefixes.lock().insert(prompt.tokens, &prompt.blocks);
        }
        Ok(())
    }

    /// Computes all prompts. Of prompts that lack the same block, the first computes it and the others wait.
    fn prefill_all(&mut self, prompts: &mut [PrefillPrompt<'_>]) -> ModelResult<()> {
        let mut waiting: Vec<&mut PrefillPrompt<'_>> = prompts.iter_mut().collect();
        while !waiting.is_empty() {
            let mut claimed = HashSet::new();
            let (mut now, mut later) = (Vec::new(), Vec::new());
            for prompt in waiting {
                prompt.blocks = self.prefixes.lock().longest_prefix(prompt.tokens);
                prompt.cached = prompt.start();
                let next = prompt.tokens.get(..prompt.cached + BLOCK).filter(|_| self.prefixes.is_on());
                if next.is_none_or(|next| claimed.insert(next)) {
                    now.push(prompt)
                } else {
                    later.push(prompt)
                }
            }
            self.prefill(&mut now)?;
            waiting = later;
        }
        Ok(())
    }
}

/// A prompt that is being opened.
struct PrefillPrompt<'a> {
    /// All but the last token, which is the first row.
    tokens: &'a [u32],
    last: u32,
    /// The beginning that is computed.
    blocks: Vec<Arc<Block>>,
    /// Tokens that came from the prefix cache.
    cached: usize,
}

impl<'a> PrefillPrompt<'a> {
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
    fn open(&mut self, requests: &[ContextRequest<'_>]) -> ModelResult<Vec<OpenedContext>> {
        let begin = self.config.bos_id.or(self.config.eos_ids.first().copied()).unwrap_or(0);
        let prompts: Vec<Vec<u32>> = requests.iter().map(|request| request.prompt.ids().collect()).collect();
        let prefill = prompts.iter().map(|prompt| {
            let (&last, tokens) = prompt.split_last().unwrap_or((&begin, &[]));
            PrefillPrompt { tokens, last, blocks: Vec::new(), cached: 0 }
        });
        let mut prefill: Vec<_> = prefill.collect();
        self.prefill_all(&mut prefill)?;
        let open = |PrefillPrompt { last, blocks, cached, .. }: PrefillPrompt<'_>| OpenedContext {
            context: self.kv_cache.open(blocks),
            first_token: last,
            cached_tokens: cached,
        };
        Ok(prefill.into_iter().map(open).collect())
    }

    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        let groups = self.kv_cache.append_rows(rows)?;
        let contexts = groups.iter().map(|group| ContextRows::new(self.kv_cache.context(group), group));
        let contexts: Vec<_> = contexts.collect();
        let tokens: Vec<u32> = rows.iter().map(|row| row.path.token.id).collect();
        let x = self.embed(&tokens, contexts.iter().flat_map(ContextRows::positions))?;
        let logits = self.logits(x, &contexts).map_err(compute_error)?;
        self.reducer.reduce(logits, rows)
    }

    fn cache_cost(&self) -> CacheCost {
        self.kv_cache.cache_cost()
    }

    fn evictable_cache(&self) -> Option<Arc<dyn EvictableCache>> {
        self.prefixes.is_on().then(|| Arc::new(self.prefixes.clone()) as _)
    }

    fn open_tokens_max(&self) -> usize {
        self.kv_cache.open_tokens_max()
    }

    fn close(&mut self, context: ContextId) {
        self.kv_cache.close(context);
    }
}

fn info(config: &CausalConfig, parameters: u64, options: &CausalOptions) -> ModelInfo {
    ModelInfo {
        kind: config.family.kind(),
        backend: Backend::Native,
        dtype: options.place.name().into(),
        kv_cache_dtype: Some(options.place.kv_name().into()),
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
