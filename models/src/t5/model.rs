//! A T5 that writes tokens, as a [`BatchModel`].

use candle_core::Tensor;
use ntl_core::engine::{
    Backend, BatchModel, CacheCost, ContextId, ContextRequest, Logits, ModelInfo, ModelKind, NumberEncoding,
    OpenedContext, Row,
};

use super::T5Config;
use super::head::Head;
use super::layers::Loader;
use super::stacks::{Stacks, load_embeddings};
use super::xval::{NumberScaling, POSITIONS, Xval};
use crate::checkpoint::{CheckpointFiles, LoadError, LoadResult, Weights};
use crate::logits_reducer::LogitsReducer;
use crate::ops::{ModelResult, Placement, Weight, compute_error};

/// How numbers enter a T5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum T5Kind {
    /// As ordinary tokens.
    Plain,
    /// As tokens with fixed number embeddings beside the learned ones, at the bottom of both stacks only
    /// (Regression Transformer, arXiv 2202.01338).
    Rt,
    /// As values of one number token.
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

/// What a model takes from its tokenizer.
#[derive(Debug, Clone, Copy)]
pub struct TokenizerFacts {
    /// Number of ids.
    pub tokens: usize,
    /// Longest recommended prompt.
    pub prompt_tokens_max: usize,
    pub number_encoding: NumberEncoding,
}

impl TokenizerFacts {
    /// The configuration of a checkpoint, which must have room for all ids.
    pub(super) fn config(self, files: &CheckpointFiles) -> LoadResult<T5Config> {
        let config = T5Config::read(files)?;
        if self.tokens > config.vocab_size {
            let reason =
                format!("{} is less than the {} tokens of the tokenizer", config.vocab_size, self.tokens);
            return Err(LoadError::field(files.name_of("config.json"), "vocab_size", reason));
        }
        Ok(config)
    }

    pub(super) fn info(
        self,
        kind: ModelKind,
        config: &T5Config,
        place: &Placement,
        parameters: u64,
    ) -> ModelInfo {
        ModelInfo {
            kind,
            backend: Backend::Native,
            dtype: place.name().into(),
            kv_cache_dtype: Some(place.kv_name().into()),
            number_encoding: self.number_encoding,
            parameters,
            prompt_tokens_max: self.prompt_tokens_max,
            context_tokens_max: None,
            answer_tokens_max: None,
            tokens: self.tokens,
            eos_ids: config.eos_token_ids.clone(),
            encoder_decoder: true,
        }
    }
}

impl T5Kind {
    fn model_kind(self) -> ModelKind {
        match self {
            Self::Plain => ModelKind::T5,
            Self::Rt => ModelKind::T5Rt,
            Self::Xval(_) => ModelKind::T5Xval,
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
        let loader = Loader { weights: &weights, config: &config, place, prefix: "" };
        // Logits are f32 products, so their tables are f32, too, the tied one included.
        let exact_place = place.exact();
        let exact = Loader { place: &exact_place, ..loader };
        let table = load_embeddings(&exact)?;
        let summed = match kind {
            T5Kind::Rt => Some(with_number_embeddings(&exact, &table)?),
            T5Kind::Plain | T5Kind::Xval(_) => None,
        };
        let table = Weight::new(table, place)?;
        let head = Head::load(&exact, &table)?;
        let embeddings = summed.map_or(Ok(table), |summed| Weight::new(summed, place))?;
        let stacks = Stacks::load(&loader, embeddings)?;
        let mut info = facts.info(kind.model_kind(), &config, place, weights.parameters());
        let mut xval = None;
        if let T5Kind::Xval(scaling) = kind {
            xval = Some(Xval::load(&loader, scaling)?);
            info.prompt_tokens_max = info.prompt_tokens_max.min(POSITIONS);
            info.answer_tokens_max = Some(POSITIONS);
        }
        let reducer = LogitsReducer::new(info.tokens);
        Ok(Self { info, stacks, head, xval, reducer })
    }

    /// Encoder output of several prompts of any lengths, each at least one token: one `[T, d_model]` per prompt.
    pub fn encode(&self, requests: &[ContextRequest<'_>]) -> ModelResult<Vec<Tensor>> {
        let x = self.embed_prompts(requests)?;
        self.stacks.encode(x, requests)?.split().map_err(compute_error)
    }

    fn embed_prompts(&self, requests: &[ContextRequest<'_>]) -> ModelResult<Tensor> {
        let x = self.stacks.embed_prompts(requests)?;
        self.xval.as_ref().map_or(Ok(x.clone()), |xval| xval.embed_prompts(&x, requests))
    }
}

/// The sum of the token table and the fixed number table; the head uses the token table alone.
fn with_number_embeddings(loader: &Loader<'_>, table: &Tensor) -> LoadResult<Tensor> {
    let name = "shared.number_embeddings.embedding.weight";
    let numbers = loader.tensor(name, &[loader.config.vocab_size, loader.config.d_model])?;
    Ok((table + numbers)?)
}

impl BatchModel for T5 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, requests: &[ContextRequest<'_>]) -> ModelResult<Vec<OpenedContext>> {
        let encoded = self.stacks.encode(self.embed_prompts(requests)?, requests)?;
        let opened = self.stacks.open(&encoded)?;
        if let Some(xval) = &mut self.xval {
            for (opened, request) in opened.iter().zip(requests) {
                xval.open(opened.context, request.paper_decoding);
            }
        }
        Ok(opened)
    }

    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        let groups = self.stacks.kv_cache.append_rows(rows)?;
        let mut x = self.stacks.embed(rows.iter().map(|row| row.path.token.id))?;
        if let Some(xval) = &self.xval {
            x = xval.embed_rows(&x, rows, &groups)?;
        }
        let hidden = self.head.scaled(&self.stacks.decode(x, &groups)?).map_err(compute_error)?;
        let logits = self.reducer.reduce(self.head.logits(&hidden).map_err(compute_error)?, rows)?;
        match &mut self.xval {
            Some(xval) => Ok(logits.with_head_values(xval.predict(&hidden, &groups)?)?),
            None => Ok(logits),
        }
    }

    fn cache_cost(&self) -> CacheCost {
        self.stacks.cache_cost()
    }

    fn open_tokens_max(&self) -> usize {
        self.stacks.kv_cache.open_tokens_max()
    }

    fn close(&mut self, context: ContextId) {
        self.stacks.close(context);
        if let Some(xval) = &mut self.xval {
            xval.close(context);
        }
    }
}
