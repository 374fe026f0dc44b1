//! A complete decoder-only model as a [`BatchModel`].

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use ntl_core::contract::{
    Backend, BatchModel, CacheCost, ContextId, ContextRequest, EvictableCache, HiddenStates, Interruption,
    Logits, LogitsRequest, ModelError, ModelInfo, NumberEncoding, OpenedContext, PrefillChunk,
    PrefillProgress, Row, Stack, Uninterrupted,
};
use ntl_text::checkpoint::{CheckpointFiles, LoadError, LoadResult};

use super::block::Block;
use super::config::{CausalConfig, PositionEncoding};
use super::first_rows::FirstRows;
use super::layers::{ContextRows, Layer, Loader, Pass};
use super::prefill::{Claims, Prefill, TokenWork, Turn};
use super::prefix::{PrefixScope, SharedPrefixCache};
use crate::adapter::{AdaptableLayers, AdapterReader, ModelAdapters};
use crate::gpu::ContextOnDrop;
use crate::kv_cache::{KeyView, KvCache, step_inputs};
use crate::logits_reducer::LogitsReducer;
use crate::ops::{AdaptedRows, Linear, ModelResult, Norm, Placement, Product, Weight, compute_error};
use crate::step_graphs::StepGraphs;
use crate::weights::Weights;

/// Number of complete steps before first rows are computed with the ends of their prompts. The engine divides
/// prompts by the time of steps that it has measured.
const COMPLETE_STEPS: usize = 4;

#[derive(Debug, Clone)]
pub struct CausalOptions {
    /// Number of ids that the tokenizer knows.
    pub tokens: usize,
    pub place: Placement,
    /// Maximum memory of the prefix cache, in bytes; 0 disables it.
    pub prefix_bytes_max: usize,
}

/// A decoder-only model with its open contexts.
pub struct Causal {
    _context: ContextOnDrop,
    info: ModelInfo,
    config: CausalConfig,
    embeddings: Weight,
    /// `[positions_max, hidden]`, if positions are learned.
    learned: Option<Tensor>,
    layers: Vec<Layer>,
    norm: Norm,
    /// `[vocab, hidden]`, or `[labels, hidden]`.
    head: Linear,
    adapters: ModelAdapters,
    prefixes: SharedPrefixCache,
    work: TokenWork,
    /// Contexts whose prompts are not computed completely.
    prefills: HashMap<ContextId, Prefill>,
    /// The prompt of a context consists of all tokens except the last.
    kv_cache: KvCache<Vec<Arc<Block>>>,
    first_rows: FirstRows,
    is_on_cpu: bool,
    /// Number of steps that computed some of their rows completely.
    complete_steps: usize,
    step_was_partial: bool,
    graphs: StepGraphs,
    reducer: LogitsReducer,
}

impl Causal {
    pub fn load(files: &CheckpointFiles, options: &CausalOptions) -> LoadResult<Self> {
        let config = CausalConfig::read(files)?;
        if options.tokens > config.vocab_size {
            let reason =
                format!("{} is less than the {} tokens of the tokenizer", config.vocab_size, options.tokens);
            return Err(LoadError::field(files.name_of("config.json"), "vocab_size", reason));
        }
        let weights = Weights::open(files)?;
        let place = &options.place;
        let parameters = Cell::default();
        let adaptable = AdaptableLayers::default();
        let loader = Loader { weights: &weights, adaptable: &adaptable, config: &config, place, parameters };
        let [embeddings, norm, learned] = config.naming.ends(&weights);
        let embeddings = loader.table(&embeddings, [config.vocab_size, config.hidden_size])?;
        let learned = match config.positions {
            PositionEncoding::Rotary(_) => None,
            PositionEncoding::Learned => {
                Some(loader.tensor(&learned, &[config.positions_max, config.hidden_size])?)
            }
        };
        let head = match &config.score {
            Some(score) => loader.score(score.labels.names.len())?,
            None => loader.head(&embeddings)?,
        };
        let layers = (0..config.layers.len()).map(|index| loader.layer(index)).collect::<LoadResult<_>>()?;
        let norm = loader.norm(&norm, config.hidden_size)?.exact();
        let info = info(&config, loader.parameters.get(), options);
        let kv_cache = KvCache::new(config.layers.len(), config.key_width(), place);
        let outputs = config.score.as_ref().map_or(options.tokens, |score| score.labels.names.len());
        Ok(Self {
            _context: ContextOnDrop::new(&place.device),
            info,
            work: TokenWork::new(&config, place),
            config,
            embeddings,
            learned,
            layers,
            norm,
            head,
            adapters: ModelAdapters::new(adaptable, place),
            prefixes: SharedPrefixCache::new(options.prefix_bytes_max),
            prefills: HashMap::new(),
            kv_cache,
            first_rows: FirstRows::default(),
            is_on_cpu: place.uses_kernels(),
            complete_steps: 0,
            step_was_partial: false,
            graphs: StepGraphs::new(place),
            reducer: LogitsReducer::new(outputs),
        })
    }

    /// Returns the reader of its adapters.
    pub fn adapters(&self) -> &AdapterReader {
        self.adapters.reader()
    }

    /// Checks that the tokens and their positions have embeddings.
    fn check(&self, tokens: &[u32], mut positions: impl Iterator<Item = usize>) -> ModelResult<()> {
        let vocab = self.config.vocab_size;
        let max = self.config.positions_max;
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(ModelError::TokenOutOfRange { id, vocab });
        }
        let beyond = positions.find(|&position| position >= max);
        beyond.map_or(Ok(()), |position| Err(ModelError::PositionOutOfRange { position, max }))
    }

    /// Returns f32 `[n, hidden]`: the embeddings of tokens at their positions.
    fn embed(&self, tokens: &[u32], positions: impl Iterator<Item = usize>) -> ModelResult<Tensor> {
        let positions: Vec<u32> = positions.map(|position| position as u32).collect();
        self.check(tokens, positions.iter().map(|&position| position as usize))?;
        self.embeddings_at(tokens, &positions).map_err(compute_error)
    }

    /// Like [`Self::embed`], for tokens and positions that were checked.
    fn embeddings_at(&self, tokens: &[u32], positions: &[u32]) -> Result<Tensor> {
        let mut x = self.embeddings.rows(tokens)?.to_dtype(DType::F32)?;
        let factor = self.config.multipliers.embedding;
        if (factor - 1.0).abs() > f64::EPSILON {
            x = (x * factor)?;
        }
        match &self.learned {
            Some(learned) => {
                let positions = Tensor::from_slice(positions, positions.len(), learned.device())?;
                x + learned.index_select(&positions, 0)?.to_dtype(DType::F32)?
            }
            None => Ok(x),
        }
    }

    fn pass<'a>(&'a self, contexts: &'a [ContextRows<'a>]) -> Result<Pass<'a>> {
        let mut ropes = Vec::new();
        if let PositionEncoding::Rotary(rotaries) = &self.config.positions {
            for rotary in rotaries {
                ropes.push(rotary.pass(contexts.iter().flat_map(ContextRows::positions)));
            }
        }
        let written: Vec<_> = contexts.iter().map(|rows| rows.written).collect();
        let mut views = Vec::new();
        for window in self.config.windows() {
            let groups = contexts.iter().map(|rows| rows.key_group(window)).collect();
            views.push(KeyView { groups, bias: None });
        }
        let rows = AdaptedRows::new(contexts.iter().map(|rows| (rows.adapter, rows.visible.len())));
        Ok(Pass { kv: self.kv_cache.store().pass(&written, views)?, ropes, rows })
    }

    /// Returns the hidden states `[R, hidden]` after all layers of rows whose embeddings are `x`
    /// `[R, hidden]`.
    fn decode(&self, x: Tensor, contexts: &[ContextRows<'_>]) -> Result<Tensor> {
        let pass = self.pass(contexts)?;
        self.graphs.compute(
            x,
            || step_inputs(pass.kv.as_ref(), pass.ropes.iter(), &pass.rows),
            |mut x| {
                for (index, layer) in self.layers.iter().enumerate() {
                    x = layer.forward(x, index, &pass)?;
                }
                Ok(x)
            },
        )
    }

    /// Returns the logits `[R, vocab]`, or the values of labels `[R, labels]`, for hidden states
    /// `[R, hidden]` after all layers.
    fn logits(&self, x: &Tensor, rows: &AdaptedRows) -> Result<Product> {
        let hidden = self.norm.forward(x)?;
        let scale = self.config.multipliers.logits;
        let hidden = if (scale - 1.0).abs() > f64::EPSILON { (hidden / scale)? } else { hidden };
        match &self.config.score {
            Some(_) => self.head.replaceable(&hidden, rows).map(Product::Tensor),
            None => {
                let logits = self.head.product(&hidden, rows)?;
                match self.config.caps.logits {
                    Some(cap) => logits.capped(cap),
                    None => Ok(logits),
                }
            }
        }
    }

    /// Computes the next layers of a pass, given the hidden states before them. Returns the hidden states
    /// before layer `end`. If `interruption` is due after a layer, keeps the hidden states in `partial` and
    /// returns `None`.
    fn some_layers(
        &self,
        mut x: Tensor,
        partial: &mut PartialPass,
        end: usize,
        pass: &Pass<'_>,
        interruption: &mut dyn Interruption,
    ) -> Result<Option<Tensor>> {
        while partial.layers < end {
            x = self.layers[partial.layers].forward(x, partial.layers, pass)?;
            partial.layers += 1;
            if self.is_on_cpu && interruption.is_due() {
                partial.x = Some(x);
                return Ok(None);
            }
        }
        Ok(Some(x))
    }

    /// Writes the keys and values of rows in the last layer, given the hidden states before it. Returns the
    /// hidden states after it of the rows after the first `prompts` contexts, `[R, hidden]`, if there are
    /// any.
    fn last_layer(
        &self,
        x: Tensor,
        contexts: &[ContextRows<'_>],
        prompts: usize,
        pass: &Pass<'_>,
    ) -> Result<Option<Tensor>> {
        let last = self.layers.len() - 1;
        let q = self.layers[last].write_kv(&x, last, pass)?;
        let (prompts, others) = contexts.split_at(prompts);
        if others.is_empty() {
            return Ok(None);
        }
        let first = prompts.iter().map(|rows| rows.visible.len()).sum();
        let (x, q) = (rows_from(x, first)?, rows_from(q, first)?);
        Ok(Some(self.layers[last].read_kv(x, q, last, &self.pass(others)?)?))
    }

    /// Computes the next tokens of prompts, and the first rows of contexts whose prompts end with them.
    fn compute(&mut self, turns: &mut [&mut Turn], interruption: &mut dyn Interruption) -> ModelResult<()> {
        let next: Vec<&[u32]> = turns.iter().map(|turn| turn.next_tokens(&self.work)).collect();
        let lengths: Vec<usize> = next.iter().map(|tokens| tokens.len()).collect();
        let positions = self.kv_cache.allocate(&lengths).map_err(compute_error)?;
        let joins_first_rows = self.is_on_cpu && self.complete_steps >= COMPLETE_STEPS;
        let ending: Vec<usize> = (0..turns.len())
            .filter(|&turn| joins_first_rows && turns[turn].prompt.ends_after(lengths[turn]))
            .collect();
        let first_rows: Vec<Row> = ending.iter().map(|&turn| turns[turn].first_row()).collect();
        let groups = self.kv_cache.append_rows(&first_rows)?;
        let first_tokens = first_rows.iter().map(|row| row.path.token.id);
        let tokens: Vec<u32> = next.concat().into_iter().chain(first_tokens).collect();
        let mut partial = PartialPass::default();
        let hidden = loop {
            let of_prompts = (0..turns.len())
                .map(|turn| ContextRows::of_prompt(&turns[turn].prompt, &positions[turn], lengths[turn]));
            let after_prompts = ending.iter().zip(&groups).map(|(&turn, group)| {
                let context = self.kv_cache.context(group);
                ContextRows::after_prompt(&turns[turn].prompt, &positions[turn], context, group)
            });
            let rows: Vec<_> = of_prompts.chain(after_prompts).collect();
            let x = match partial.x.take() {
                Some(x) => x,
                None => self.embed(&tokens, rows.iter().flat_map(ContextRows::positions))?,
            };
            let pass = self.pass(&rows).map_err(compute_error)?;
            let last = self.layers.len() - 1;
            let computed = self.some_layers(x, &mut partial, last, &pass, interruption);
            if let Some(x) = computed.map_err(compute_error)? {
                break self.last_layer(x, &rows, turns.len(), &pass).map_err(compute_error)?;
            }
            drop(pass);
            drop(rows);
            interruption.serve(self);
        };
        if let Some(hidden) = hidden {
            self.first_rows.insert(&first_rows, &hidden).map_err(compute_error)?;
        }
        for ((turn, positions), length) in turns.iter_mut().zip(positions).zip(lengths) {
            turn.done += self.work.of_next(&turn.prompt, length);
            let start = turn.prompt.computed();
            let blocks = Block::cut(positions, start, length, self.kv_cache.store());
            let blocks = blocks.map_err(compute_error)?;
            turn.prompt.blocks.extend(blocks.into_iter().map(Arc::new));
            turn.prompt.cache(&self.prefixes);
        }
        Ok(())
    }

    /// Computes parts of prompts. If several prompts lack the same block, one computes it and the others
    /// wait, if necessary until a later call.
    fn compute_all(&mut self, turns: &mut [Turn], interruption: &mut dyn Interruption) -> ModelResult<()> {
        let mut claims = Claims::default();
        let mut waiting: Vec<&mut Turn> = turns.iter_mut().collect();
        loop {
            let divided = claims.divide(waiting, &self.prefixes, self.kv_cache.store());
            let [mut now, later] = divided.map_err(compute_error)?;
            if now.is_empty() {
                return Ok(());
            }
            self.compute(&mut now, interruption)?;
            waiting = later;
        }
    }

    /// Appends rows to their contexts. Returns their hidden states after all layers, `[R, hidden]`.
    fn decode_rows(&mut self, rows: &[Row], interruption: &mut dyn Interruption) -> ModelResult<Tensor> {
        let groups = self.kv_cache.append_rows(rows)?;
        let tokens: Vec<u32> = rows.iter().map(|row| row.path.token.id).collect();
        let mut partial = PartialPass::default();
        loop {
            let contexts = groups.iter().map(|group| ContextRows::new(self.kv_cache.context(group), group));
            let contexts: Vec<_> = contexts.collect();
            let x = match partial.x.take() {
                Some(x) => x,
                None => self.embed(&tokens, contexts.iter().flat_map(ContextRows::positions))?,
            };
            if !self.is_on_cpu {
                return self.decode(x, &contexts).map_err(compute_error);
            }
            let pass = self.pass(&contexts).map_err(compute_error)?;
            let computed = self.some_layers(x, &mut partial, self.layers.len(), &pass, interruption);
            if let Some(hidden) = computed.map_err(compute_error)? {
                return Ok(hidden);
            }
            drop(pass);
            drop(contexts);
            interruption.serve(self);
        }
    }

    /// Returns the hidden states after the last normalisation of each row that requests them, `[hidden]`, for
    /// hidden states `[R, hidden]` after all layers.
    fn requested_hidden(&self, x: &Tensor, rows: &[Row]) -> Result<Vec<Option<Vec<f32>>>> {
        let mut hidden = vec![None; rows.len()];
        if rows.iter().any(|row| row.path.logits == LogitsRequest::Hidden) {
            let normed = self.norm.forward(x)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
            for ((hidden, row), normed) in hidden.iter_mut().zip(rows).zip(normed) {
                if row.path.logits == LogitsRequest::Hidden {
                    *hidden = Some(normed);
                }
            }
        }
        Ok(hidden)
    }

    /// Moves the blocks of a complete prompt to its context. Returns the progress.
    fn put_back(&mut self, turn: Turn) -> PrefillProgress {
        let progress = turn.prompt.progress(&self.work, turn.done);
        if !turn.prompt.is_complete() {
            self.prefills.insert(turn.context, turn.prompt);
        } else if let Some(prompt) = self.kv_cache.prompt_mut(turn.context) {
            *prompt = turn.prompt.blocks;
        }
        progress
    }
}

/// Returns the rows of `all` `[R, width]` from row `first` on, in their own memory.
fn rows_from(all: Tensor, first: usize) -> Result<Tensor> {
    all.narrow(0, first, all.dim(0)? - first)?.force_contiguous()
}

/// A pass between two of its layers.
#[derive(Default)]
struct PartialPass {
    /// The hidden states `[R, hidden]`, unless they are being computed.
    x: Option<Tensor>,
    /// Number of computed layers.
    layers: usize,
}

impl BatchModel for Causal {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn uses_pool(&self) -> bool {
        self.is_on_cpu
    }

    /// Opens a context. An empty prompt is replaced by the token that begins a text.
    fn begin(&mut self, request: ContextRequest<'_>) -> ModelResult<OpenedContext> {
        let begin = self.config.bos_id.or(self.config.eos_ids.first().copied()).unwrap_or(0);
        let mut tokens: Vec<u32> = request.prompt.ids().collect();
        if let Some(score) = &self.config.score {
            tokens.truncate(score.read_tokens(&tokens).len());
        }
        self.check(&tokens, 0..tokens.len())?;
        let first_token = tokens.pop().unwrap_or(begin);
        let adapter = self.adapters.weights(request.adapter)?;
        let scope = PrefixScope::of(request);
        let (prefixes, store) = (&self.prefixes, self.kv_cache.store());
        let prompt = Prefill::new(tokens, first_token, scope, adapter.clone(), prefixes, store);
        let prompt = prompt.map_err(compute_error)?;
        let context = self.kv_cache.open(Vec::new(), adapter);
        let prefill = self.put_back(Turn::new(context, prompt, 0));
        Ok(OpenedContext { context, first_token, prefill })
    }

    fn prefill(&mut self, chunks: &[PrefillChunk]) -> ModelResult<Vec<PrefillProgress>> {
        self.prefill_interruptibly(chunks, &mut Uninterrupted)
    }

    fn prefill_interruptibly(
        &mut self,
        chunks: &[PrefillChunk],
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Vec<PrefillProgress>> {
        let mut turns = Vec::new();
        for chunk in chunks {
            let prompt = self.prefills.remove(&chunk.context);
            let prompt = prompt.ok_or(ModelError::UnknownContext(chunk.context))?;
            turns.push(Turn::new(chunk.context, prompt, chunk.work));
        }
        if let Err(error) = self.compute_all(&mut turns, interruption) {
            chunks.iter().for_each(|chunk| self.close(chunk.context));
            return Err(error);
        }
        Ok(turns.into_iter().map(|turn| self.put_back(turn)).collect())
    }

    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        self.step_interruptibly(rows, &mut Uninterrupted)
    }

    fn step_interruptibly(
        &mut self,
        rows: &[Row],
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Logits> {
        if let Some(row) = rows.iter().find(|row| self.prefills.contains_key(&row.context)) {
            return Err(ModelError::NotPrefilled(row.context));
        }
        #[cfg(feature = "cuda")]
        let _step = ntl_cuda::Step::begin();
        let known = self.first_rows.take(rows);
        known.discarded.iter().for_each(|&context| self.kv_cache.discard_nodes(context));
        let others = known.others(rows);
        let is_partial = others.is_empty();
        let others = if is_partial { None } else { Some(self.decode_rows(&others, interruption)?) };
        self.step_was_partial = is_partial;
        self.complete_steps += usize::from(!is_partial);
        let adapters = rows
            .chunk_by(|a, b| a.context == b.context)
            .map(|rows| (self.kv_cache.adapter(rows[0].context), rows.len()));
        let adapted = AdaptedRows::new(adapters);
        let x = known.with(others).map_err(compute_error)?;
        let hidden = self.requested_hidden(&x, rows).map_err(compute_error)?;
        if hidden.iter().all(Option::is_some) {
            let hidden = hidden.into_iter().flatten().flatten().collect();
            return Ok(Logits::new(hidden, self.config.hidden_size)?);
        }
        let logits = self.logits(&x, &adapted).map_err(compute_error)?;
        Ok(self.reducer.reduce(logits, rows)?.with_hidden(hidden))
    }

    fn step_was_partial(&self) -> bool {
        self.step_was_partial
    }

    fn cache_cost(&self) -> CacheCost {
        self.kv_cache.cache_cost()
    }

    fn evictable_cache(&self) -> Option<Arc<dyn EvictableCache>> {
        self.prefixes.is_on().then(|| Arc::new(self.prefixes.clone()) as _)
    }

    fn prefill_tokens_max(&self) -> usize {
        self.kv_cache.prefill_tokens_max()
    }

    fn close(&mut self, context: ContextId) {
        self.prefills.remove(&context);
        self.first_rows.remove(context);
        self.kv_cache.close(context);
    }
}

fn info(config: &CausalConfig, parameters: u64, options: &CausalOptions) -> ModelInfo {
    ModelInfo {
        kind: config.family.kind.to_owned(),
        backend: Backend::Native,
        dtype: options.place.name().into(),
        kv_cache_dtype: Some(options.place.kv_name().into()),
        number_encoding: NumberEncoding::Text,
        parameters,
        prompt_tokens_max: config.positions_max,
        // No tokens follow a prompt whose labels are predicted.
        context_tokens_max: config.score.is_none().then_some(config.positions_max),
        answer_tokens_max: None,
        tokens: options.tokens,
        eos_ids: config.eos_ids.clone(),
        encoder_decoder: config.family.is_encoder_decoder(),
        labels: config.score.as_ref().map(|score| score.labels.clone()),
        hidden_states: Some(HiddenStates { stack: Stack::Decoder, width: config.hidden_size }),
    }
}
