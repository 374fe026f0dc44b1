//! A T5 that generates tokens, as a [`BatchModel`].

use candle_core::Tensor;
use ntl_core::contract::{
    Backend, BatchModel, CacheCost, ContextId, ContextRequest, Interruption, Logits, ModelInfo,
    NumberEncoding, OpenedContext, PrefillChunk, PrefillProgress, Row, Uninterrupted,
};
use ntl_text::checkpoint::{CONFIG_FILE, CheckpointFiles, LoadError, LoadResult};

use super::T5Config;
use super::head::Head;
use super::layers::Loader;
use super::prompts::{PromptEncoder, PromptRows};
use super::stacks::{Stacks, decode};
use super::stored::{load_embeddings, load_stacks};
use super::xval::{NumberScaling, POSITIONS, Xval};
use crate::adapter::{AdaptableLayers, AdapterReader, ModelAdapters};
use crate::families::Family;
use crate::logits_reducer::LogitsReducer;
use crate::ops::{ModelResult, Placement, Weight, compute_error, device_error};
use crate::weights::Weights;

/// How numbers are represented in the input of a T5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum T5Kind {
    /// As ordinary tokens.
    Plain,
    /// As tokens with fixed number embeddings, which are added to the learned embeddings at the bottom of
    /// both stacks (Regression Transformer, arXiv 2202.01338).
    Rt,
    /// As the values of one number token.
    Xval(NumberScaling),
}

/// A T5 with its open contexts.
pub struct T5 {
    info: ModelInfo,
    stacks: Stacks,
    head: Head,
    xval: Option<Xval>,
    reducer: LogitsReducer,
}

/// The facts that a model needs about its tokenizer.
#[derive(Debug, Clone, Copy)]
pub struct TokenizerFacts {
    /// Number of ids.
    pub tokens: usize,
    /// Maximum recommended length of a prompt, in tokens.
    pub prompt_tokens_max: usize,
    pub number_encoding: NumberEncoding,
}

impl TokenizerFacts {
    /// Reads a checkpoint's configuration. Fails if its vocabulary is smaller than the tokenizer's.
    pub(super) fn config(self, files: &CheckpointFiles) -> LoadResult<T5Config> {
        let config = T5Config::read(files)?;
        self.check_vocabulary(files, "vocab_size", config.vocab_size)?;
        Ok(config)
    }

    /// Returns an error that names a field of `config.json` if this vocabulary is smaller than the
    /// tokenizer's.
    pub(crate) fn check_vocabulary(
        self,
        files: &CheckpointFiles,
        field: &str,
        vocab_size: usize,
    ) -> LoadResult<()> {
        if self.tokens <= vocab_size {
            return Ok(());
        }
        let reason = format!("{vocab_size} is less than the {} tokens of the tokenizer", self.tokens);
        Err(LoadError::field(files.name_of(CONFIG_FILE), field, reason))
    }

    pub(crate) fn info(
        self,
        family: Family,
        eos_ids: Vec<u32>,
        place: &Placement,
        parameters: u64,
    ) -> ModelInfo {
        ModelInfo {
            kind: family.kind.to_owned(),
            backend: Backend::Native,
            dtype: place.name().into(),
            kv_cache_dtype: Some(place.kv_name().into()),
            number_encoding: self.number_encoding,
            parameters,
            prompt_tokens_max: self.prompt_tokens_max,
            context_tokens_max: None,
            answer_tokens_max: None,
            tokens: self.tokens,
            eos_ids,
            encoder_decoder: family.is_encoder_decoder(),
            labels: None,
            hidden_states: None,
        }
    }
}

impl T5 {
    pub fn load(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        kind: T5Kind,
        place: &Placement,
    ) -> LoadResult<Self> {
        let config = facts.config(files)?;
        let weights = Weights::open(files)?;
        let adaptable = AdaptableLayers::default();
        let loader = Loader { weights: &weights, config: &config, place, prefix: "", adaptable: &adaptable };
        // Logits are computed in f32, so their tables are f32, too, including a tied one.
        let exact_place = place.exact();
        let exact = Loader { place: &exact_place, ..loader };
        let table = load_embeddings(&exact)?;
        let summed = match kind {
            T5Kind::Rt => Some(with_number_embeddings(&exact, &table)?),
            T5Kind::Plain | T5Kind::Xval(_) => None,
        };
        let table = Weight::new(table, place).map_err(device_error)?;
        let head = Head::load(&exact, &table)?;
        let embeddings =
            summed.map_or(Ok(table), |summed| Weight::new(summed, place)).map_err(device_error)?;
        let parts = load_stacks(&loader, embeddings)?;
        let mut info = facts.info(config.family, config.eos_token_ids.clone(), place, weights.parameters());
        let mut xval = None;
        if let T5Kind::Xval(scaling) = kind {
            xval = Some(Xval::load(&loader, scaling)?);
            info.prompt_tokens_max = info.prompt_tokens_max.min(POSITIONS);
            info.answer_tokens_max = Some(POSITIONS);
        }
        let stacks = Stacks::new(parts, ModelAdapters::new(adaptable, place), place);
        Ok(Self { xval, ..Self::new(info, stacks, head) })
    }

    /// Creates a model whose tokens are plain.
    pub(super) fn new(mut info: ModelInfo, stacks: Stacks, head: Head) -> Self {
        info.hidden_states = Some(stacks.prompts.hidden_states());
        let reducer = LogitsReducer::new(info.tokens);
        Self { info, stacks, head, xval: None, reducer }
    }

    /// Returns the reader of its adapters.
    pub fn adapters(&self) -> &AdapterReader {
        self.stacks.adapters()
    }

    /// Encodes several prompts of any lengths, each at least one token, without adapters. Returns one
    /// `[T, d_model]` per prompt.
    pub fn encode(&self, requests: &[ContextRequest<'_>]) -> ModelResult<Vec<Tensor>> {
        let x = embed_prompts(&self.stacks.prompts, self.xval.as_ref(), requests)?;
        let prompts: Vec<_> = requests.iter().map(|request| PromptRows::plain(request.prompt)).collect();
        self.stacks.prompts.encode(x, &prompts)?.split().map_err(compute_error)
    }
}

fn embed_prompts(
    prompts: &PromptEncoder,
    xval: Option<&Xval>,
    requests: &[ContextRequest<'_>],
) -> ModelResult<Tensor> {
    let x = prompts.embed(requests)?;
    xval.map_or(Ok(x.clone()), |xval| xval.embed_prompts(&x, requests))
}

/// Returns the sum of the token table and the fixed number table. The head uses only the token table.
fn with_number_embeddings(loader: &Loader<'_>, table: &Tensor) -> LoadResult<Tensor> {
    let name = "shared.number_embeddings.embedding.weight";
    let numbers = loader.tensor(name, &[loader.config.vocab_size, loader.config.d_model])?;
    (table + numbers).map_err(device_error)
}

impl BatchModel for T5 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn uses_pool(&self) -> bool {
        self.stacks.prompts.is_on_cpu()
    }

    fn begin(&mut self, request: ContextRequest<'_>) -> ModelResult<OpenedContext> {
        if let Some(xval) = &self.xval {
            xval.check(request.prompt)?;
        }
        let opened = self.stacks.begin(request)?;
        if let Some(xval) = &mut self.xval {
            xval.open(opened.context, request.paper_decoding);
        }
        Ok(opened)
    }

    fn prefill(&mut self, chunks: &[PrefillChunk]) -> ModelResult<Vec<PrefillProgress>> {
        self.prefill_interruptibly(chunks, &mut Uninterrupted)
    }

    fn prefill_interruptibly(
        &mut self,
        chunks: &[PrefillChunk],
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Vec<PrefillProgress>> {
        let xval = self.xval.as_ref();
        let progress = self.stacks.prefill(
            chunks,
            |prompts, requests| embed_prompts(prompts, xval, requests),
            interruption,
        );
        if progress.is_err() {
            chunks.iter().for_each(|chunk| self.close(chunk.context));
        }
        progress
    }

    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        self.step_interruptibly(rows, &mut Uninterrupted)
    }

    fn step_interruptibly(
        &mut self,
        rows: &[Row],
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Logits> {
        self.stacks.check_prefilled(rows)?;
        #[cfg(feature = "cuda")]
        let _step = ntl_cuda::Step::begin();
        let groups = self.stacks.kv_cache.append_rows(rows)?;
        let mut x = self.stacks.embed_rows(rows.iter().map(|row| row.path.token.id))?;
        if let Some(xval) = &self.xval {
            x = xval.embed_rows(&x, rows, &groups)?;
        }
        let hidden = decode(self, |model| &model.stacks, x, &groups, interruption)?;
        let hidden = self.head.scaled(&hidden).map_err(compute_error)?;
        let logits = self.head.logits(&hidden, &self.stacks.adapted(&groups)).map_err(compute_error)?;
        let logits = self.reducer.reduce(logits, rows)?.with_hidden(self.stacks.pools.requested(rows)?);
        match &mut self.xval {
            Some(xval) => Ok(logits.with_head_values(xval.predict(&hidden, &groups)?)?),
            None => Ok(logits),
        }
    }

    fn cache_cost(&self) -> CacheCost {
        self.stacks.cache_cost()
    }

    fn prefill_tokens_max(&self) -> usize {
        self.stacks.kv_cache.prefill_tokens_max()
    }

    fn close(&mut self, context: ContextId) {
        self.stacks.close(context);
        if let Some(xval) = &mut self.xval {
            xval.close(context);
        }
    }
}
