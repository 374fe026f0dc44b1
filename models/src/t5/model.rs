//! A T5 that writes tokens, as a [`BatchModel`].

use candle_core::Tensor;
use ntl_core::engine::{
    Backend, BatchModel, CacheCost, ContextId, ContextRequest, Logits, ModelError, ModelInfo, ModelKind,
    NumberEncoding, OpenedContext, Row,
};

use super::T5Config;
use super::head::Head;
use super::layers::Loader;
use super::stacks::{Stacks, compute, load_embeddings};
use super::xval::{NumberScaling, POSITIONS, Xval};
use crate::answers::Answers;
use crate::checkpoint::{CheckpointFiles, LoadError, Weights};
use crate::ops::Placement;

/// How a T5 takes numbers in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum T5Kind {
    /// As tokens like all others.
    Plain,
    /// As tokens with fixed number embeddings beside the learned ones, at the bottom of both stacks only
    /// (Regression Transformer, arXiv 2202.01338).
    Rt,
    /// As values beside one token.
    Xval(NumberScaling),
}

/// A T5 with its open contexts.
pub struct T5 {
    info: ModelInfo,
    stacks: Stacks,
    head: Head,
    xval: Option<Xval>,
    answers: Answers,
}

/// What the tokenizer decides about a model.
#[derive(Debug, Clone, Copy)]
pub struct TokenizerFacts {
    /// Ids that it knows.
    pub tokens: usize,
    /// Longest prompt that it recommends.
    pub prompt_tokens_max: usize,
    /// How it writes numbers.
    pub number_encoding: NumberEncoding,
}

impl TokenizerFacts {
    /// The configuration of a checkpoint, which must have room for all ids.
    pub(super) fn config(self, files: &CheckpointFiles) -> Result<T5Config, LoadError> {
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
    /// Loads the weights of a checkpoint.
    ///
    /// # Errors
    /// When configuration or weights are missing or do not fit each other.
    pub fn load(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        kind: T5Kind,
        place: &Placement,
    ) -> Result<Self, LoadError> {
        let config = facts.config(files)?;
        let weights = Weights::open(files)?;
        let loader = Loader { weights: &weights, config: &config, place, prefix: "" };
        // Logits are f32 products: so are the tables that they are made with, the tied one among them.
        let exact_place = place.exact();
        let exact = Loader { place: &exact_place, ..loader };
        let table = load_embeddings(&exact)?;
        let summed = match kind {
            T5Kind::Rt => Some(with_number_embeddings(&exact, &table)?),
            T5Kind::Plain | T5Kind::Xval(_) => None,
        };
        let table = loader.packed(table)?;
        let head = Head::load(&exact, &table)?;
        let embeddings = summed.map_or(Ok(table), |summed| loader.packed(summed))?;
        let stacks = Stacks::load(&loader, embeddings)?;
        let mut info = facts.info(kind.model_kind(), &config, place, weights.parameters());
        let mut xval = None;
        if let T5Kind::Xval(scaling) = kind {
            xval = Some(Xval::load(&loader, scaling)?);
            info.prompt_tokens_max = info.prompt_tokens_max.min(POSITIONS);
            info.answer_tokens_max = Some(POSITIONS);
        }
        let answers = Answers::new(info.tokens);
        Ok(Self { info, stacks, head, xval, answers })
    }

    /// Encoder output of several prompts of any lengths, each at least one token: one `[T, d_model]` per prompt.
    ///
    /// # Errors
    /// On an id outside the vocabulary, or when the computation fails.
    pub fn encode(&self, requests: &[ContextRequest<'_>]) -> Result<Vec<Tensor>, ModelError> {
        let x = self.embed_prompts(requests)?;
        self.stacks.encode(x, requests)?.split().map_err(compute)
    }

    fn embed_prompts(&self, requests: &[ContextRequest<'_>]) -> Result<Tensor, ModelError> {
        let x = self.stacks.embed_prompts(requests)?;
        self.xval.as_ref().map_or(Ok(x.clone()), |xval| xval.embed_prompts(&x, requests))
    }
}

/// The token table and the fixed number table added up; the head sees the first only.
fn with_number_embeddings(loader: &Loader<'_>, table: &Tensor) -> Result<Tensor, LoadError> {
    let name = "shared.number_embeddings.embedding.weight";
    let numbers = loader.tensor(name, &[loader.config.vocab_size, loader.config.d_model])?;
    (table + numbers).map_err(|error| LoadError::Device(error.to_string()))
}

impl BatchModel for T5 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, requests: &[ContextRequest<'_>]) -> Result<Vec<OpenedContext>, ModelError> {
        let encoded = self.stacks.encode(self.embed_prompts(requests)?, requests)?;
        let contexts = self.stacks.open(&encoded)?;
        if let Some(xval) = &mut self.xval {
            contexts
                .iter()
                .zip(requests)
                .for_each(|(&context, request)| xval.open(context, request.paper_decoding));
        }
        let first_token = self.stacks.config.decoder_start_token_id;
        Ok(contexts
            .into_iter()
            .map(|context| OpenedContext { context, first_token, cached_tokens: 0 })
            .collect())
    }

    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        let groups = self.stacks.grow(rows)?;
        let mut x = self.stacks.embed(rows.iter().map(|row| row.path.token.id))?;
        if let Some(xval) = &self.xval {
            x = xval.embed_rows(&x, rows, &groups)?;
        }
        let hidden = self.head.scaled(&self.stacks.decode(x, &groups)?).map_err(compute)?;
        let logits = self.answers.of(self.head.logits(&hidden).map_err(compute)?, rows)?;
        match &mut self.xval {
            Some(xval) => Ok(logits.with_head_values(xval.predict(&hidden, &groups)?)?),
            None => Ok(logits),
        }
    }

    fn cache_cost(&self) -> CacheCost {
        self.stacks.cache_cost()
    }

    fn close(&mut self, context: ContextId) {
        self.stacks.close(context);
        if let Some(xval) = &mut self.xval {
            xval.close(context);
        }
    }
}
