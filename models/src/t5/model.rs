//! The whole T5 as a [`BatchModel`].

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use ntl_core::engine::{BatchModel, ContextId, Logits, ModelError, ModelInfo, NumberEncoding, Opened, Row};

use super::T5Config;
use super::context::Context;
use super::decoder::{Decoder, Group};
use super::encoder::Encoder;
use super::layers::Loader;
use crate::checkpoint::{CheckpointFiles, LoadError, Weights};
use crate::ops::linear;

/// A T5 with its open contexts.
pub struct T5 {
    info: ModelInfo,
    config: T5Config,
    embeddings: Tensor,
    encoder: Encoder,
    decoder: Decoder,
    head: Head,
    contexts: HashMap<ContextId, Context>,
    opened: u64,
}

/// The output layer `[vocab, d_model]`, and what hidden states are multiplied with before it.
struct Head {
    weight: Tensor,
    scale: Option<f64>,
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

impl T5 {
    /// Loads the weights of a checkpoint as `dtype` onto a device.
    ///
    /// # Errors
    /// When configuration or weights are missing or do not fit each other.
    pub fn load(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        (dtype, device): (DType, &Device),
    ) -> std::result::Result<Self, LoadError> {
        let config = T5Config::read(files)?;
        if facts.tokens > config.vocab_size {
            let reason =
                format!("{} is less than the {} tokens of the tokenizer", config.vocab_size, facts.tokens);
            return Err(LoadError::field(files.name_of("config.json"), "vocab_size", reason));
        }
        let weights = Weights::open(files)?;
        let loader = Loader { weights: &weights, config: &config, dtype, device };
        let embeddings = load_embeddings(&loader)?;
        let (encoder, decoder) = (Encoder::load(&loader)?, Decoder::load(&loader)?);
        let head = Head::load(&loader, &embeddings)?;
        let info = ModelInfo {
            kind: "t5".to_owned(),
            backend: "native".to_owned(),
            dtype: dtype.as_str().to_owned(),
            number_encoding: facts.number_encoding,
            parameters: weights.parameters(),
            prompt_tokens_max: facts.prompt_tokens_max,
            tokens: facts.tokens,
            eos_ids: config.eos_token_ids.clone(),
            encoder_decoder: true,
        };
        Ok(Self { info, config, embeddings, encoder, decoder, head, contexts: HashMap::new(), opened: 0 })
    }

    /// Encoder output of several prompts of any lengths, each at least one token: one `[T, d_model]` per prompt.
    ///
    /// # Errors
    /// On an id outside the vocabulary, or when the computation fails.
    pub fn encode(&self, prompts: &[&[u32]]) -> std::result::Result<Vec<Tensor>, ModelError> {
        let (encoded, lengths) = self.encode_packed(prompts)?;
        let mut from = 0;
        let cut = |length: usize| {
            let one = encoded.narrow(0, from, length);
            from += length;
            one
        };
        lengths.into_iter().map(cut).collect::<Result<_>>().map_err(compute)
    }

    fn encode_packed(&self, prompts: &[&[u32]]) -> std::result::Result<(Tensor, Vec<usize>), ModelError> {
        let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.len()).collect();
        let x = self.embed(prompts.iter().copied().flatten().copied())?;
        Ok((self.encoder.forward(x, &lengths).map_err(compute)?, lengths))
    }

    /// `[n, d_model]`.
    fn embed(&self, tokens: impl Iterator<Item = u32>) -> std::result::Result<Tensor, ModelError> {
        let (tokens, vocab): (Vec<u32>, _) = (tokens.collect(), self.config.vocab_size);
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(ModelError::TokenOutOfRange { id, vocab });
        }
        let ids = Tensor::new(tokens, self.embeddings.device()).map_err(compute)?;
        self.embeddings.index_select(&ids, 0).map_err(compute)
    }

    /// Turns rows into nodes of their contexts, in order.
    fn grow(&mut self, rows: &[Row]) -> std::result::Result<Vec<Group>, ModelError> {
        let mut groups: Vec<Group> = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let unknown = ModelError::UnknownContext(row.context);
            let context = self.contexts.get_mut(&row.context).ok_or(unknown)?;
            let node = context.len();
            if let Some(parent) = row.path.parent.filter(|parent| parent.index() >= node) {
                return Err(ModelError::UnknownNode { context: row.context, node: parent });
            }
            context.push(row.path.parent);
            let path = context.path_to(node);
            match groups.last_mut().filter(|group| group.context == row.context) {
                Some(group) => group.paths.push(path),
                None => groups.push(Group {
                    context: row.context,
                    first_row: index,
                    first_node: node,
                    paths: vec![path],
                }),
            }
        }
        let (layers, width) = (self.config.num_decoder_layers, self.config.inner());
        for group in &groups {
            if let Some(context) = self.contexts.get_mut(&group.context) {
                let (dtype, device) = (self.embeddings.dtype(), self.embeddings.device());
                context.reserve(layers, width, dtype, device).map_err(compute)?;
            }
        }
        Ok(groups)
    }
}

impl BatchModel for T5 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, prompts: &[&[u32]]) -> std::result::Result<Vec<Opened>, ModelError> {
        let (encoded, lengths) = self.encode_packed(prompts)?;
        let contexts = self.decoder.contexts(&encoded, &lengths).map_err(compute)?;
        let first_token = self.config.decoder_start_token_id;
        let open = |(cross, prompt_len)| {
            self.opened += 1;
            let context = ContextId(self.opened);
            self.contexts.insert(context, Context::new(cross, prompt_len));
            Opened { context, first_token }
        };
        Ok(contexts.into_iter().zip(lengths).map(open).collect())
    }

    fn step(&mut self, rows: &[Row]) -> std::result::Result<Logits, ModelError> {
        let groups = self.grow(rows)?;
        let x = self.embed(rows.iter().map(|row| row.path.token))?;
        let hidden = self.decoder.forward(x, &groups, &self.contexts);
        let logits = hidden.and_then(|hidden| self.head.forward(&hidden)?.flatten_all()?.to_vec1());
        Logits::new(logits.map_err(compute)?, self.config.vocab_size)
    }

    fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }
}

impl Head {
    /// The stored head, or the embedding table where none is stored. Hidden states are divided by
    /// `sqrt(d_model)` before a tied head; a stored one says in the configuration whether it is tied.
    fn load(loader: &Loader<'_>, embeddings: &Tensor) -> std::result::Result<Self, LoadError> {
        const NAME: &str = "lm_head.weight";
        let config = loader.config;
        let scale = (config.d_model as f64).powf(-0.5);
        if !loader.weights.has(NAME) {
            return Ok(Self { weight: embeddings.clone(), scale: Some(scale) });
        }
        let weight = loader.tensor(NAME, &[config.vocab_size, config.d_model])?;
        Ok(Self { weight, scale: config.scale_stored_head.then_some(scale) })
    }

    /// `[R, d_model]` to `[R, vocab]`.
    fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        match self.scale {
            Some(scale) => linear(&(hidden * scale)?, &self.weight),
            None => linear(hidden, &self.weight),
        }
    }
}

/// The token table under whichever of its names the file kept.
fn load_embeddings(loader: &Loader<'_>) -> std::result::Result<Tensor, LoadError> {
    let names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
    let name = names.into_iter().find(|name| loader.weights.has(name)).unwrap_or(names[0]);
    loader.tensor(name, &[loader.config.vocab_size, loader.config.d_model])
}

fn compute(error: candle_core::Error) -> ModelError {
    ModelError::Compute(Box::new(error))
}
