//! Inspects a checkpoint without loading its weights: reports its kind, the facts that would be assumed, and
//! whether it can be served.
//!
//! It calls [`load`] but reads only the tables of the weights' files. A new kind of model therefore needs no
//! code here, and a checkpoint that passes has all tensors in the right shapes.

use ntl_text::checkpoint::{
    CheckpointFacts, CheckpointFiles, LoadError, OWN_FILE, architecture, architecture_field,
};
use ntl_text::load_options::LoadOptions;
use ntl_text::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::families::Family;
use crate::load::{LoadedModel, PROMPT_TOKENS_MAX, load, weights};
use crate::options::place_of;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    pub kind: String,
    /// The model class in `config.json`, or the format in `ntl.json`.
    pub architecture: String,
    pub sizes: Sizes,
    /// Number of weights in the files. Shared weights are counted once.
    pub parameters: u64,
    /// Names of the files that contain weights.
    pub files: Vec<String>,
    /// Element types in the files, those with the most weights first.
    pub stored: Vec<String>,
    /// Element type in memory.
    pub dtype: String,
    /// Memory that the loaded weights need, in bytes.
    pub memory_bytes: u64,
    /// Number of ids of the tokenizer.
    pub tokens: usize,
    pub number_encoding: String,
    pub numbers: NumberTokens,
    /// Maximum number of tokens of prompt and answer together, if the model limits their sum.
    pub context_tokens_max: Option<usize>,
    /// The tokens that end an answer.
    pub eos_tokens: Vec<EosToken>,
    pub has_chat_template: bool,
    /// Facts that are not in `config.json`.
    pub assumed: Vec<Assumption>,
}

/// Sizes of a network, from any of the names that they usually have in `config.json` and `ntl.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Layers of the encoder if there are two stacks, otherwise of the only stack.
    #[serde(alias = "num_hidden_layers", alias = "n_layer", alias = "layers")]
    pub num_layers: Option<usize>,
    pub num_decoder_layers: Option<usize>,
    /// Width of the residual stream.
    #[serde(alias = "hidden_size", alias = "n_embd")]
    pub d_model: Option<usize>,
    #[serde(alias = "num_attention_heads", alias = "n_head", alias = "heads")]
    pub num_heads: Option<usize>,
    /// Rows of the embedding table.
    pub vocab_size: Option<usize>,
}

/// The tokens that are numbers by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NumberTokens {
    pub count: usize,
    /// Smallest and largest value.
    pub range: Option<(f64, f64)>,
    /// Whether any of them is not one of the digits 0 to 9.
    pub multi_digit: bool,
}

/// A token that ends an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EosToken {
    pub id: u32,
    /// Its text in the vocabulary.
    pub text: String,
}

/// A fact that is not in `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Assumption {
    pub name: String,
    pub value: String,
    /// Where the value comes from: the command line, a file, or a default.
    pub origin: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only the tables of tensors. Weights that are not finite go unnoticed.
    Tables,
    /// Every weight, as loading does.
    Weights,
}

pub fn inspect(files: CheckpointFiles, options: LoadOptions, depth: Depth) -> Result<Inspection, LoadError> {
    if depth == Depth::Weights {
        load(&files, options)?;
    }
    let files = files.tables_only();
    let LoadedModel { model, tokenizer, vocabulary, .. } = load(&files, options)?;
    let weights = weights(&files, Family::of(&files)?)?;
    let memory_bytes = weights.memory(&place_of(&options, &files)?);
    let weights = weights.summary();
    let info = model.info();
    let values = vocabulary.number_values.iter().map(|&(_, value)| value);
    Ok(Inspection {
        kind: info.kind.clone(),
        architecture: architecture(&files)?,
        sizes: Sizes::read(&files)?,
        parameters: weights.parameters,
        files: weights.files,
        stored: weights.stored,
        memory_bytes,
        dtype: info.dtype.name().to_owned(),
        tokens: tokenizer.len(),
        number_encoding: info.number_encoding.name().to_owned(),
        numbers: NumberTokens::of(values),
        context_tokens_max: info.context_tokens_max,
        eos_tokens: vocabulary.eos_ids.iter().map(|&id| EosToken::of(&tokenizer, id)).collect(),
        has_chat_template: tokenizer.chat_template().is_some(),
        assumed: assumed(&files, options, tokenizer.model_max_length())?,
    })
}

impl Sizes {
    fn read(files: &CheckpointFiles) -> Result<Self, LoadError> {
        /// `ntl.json` describes each stack separately.
        #[derive(Deserialize)]
        struct Described {
            encoder: Sizes,
            decoder: Sizes,
        }
        let (file, _) = architecture_field(files)?;
        if file != OWN_FILE {
            return files.require_json(file);
        }
        let Described { encoder, decoder } = files.require_json(file)?;
        Ok(Self { num_decoder_layers: decoder.num_layers, ..encoder })
    }
}

impl NumberTokens {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().reduce(f64::min);
        let high = values.clone().reduce(f64::max);
        Self {
            count: values.clone().count(),
            range: low.zip(high),
            multi_digit: values.clone().any(|value| !is_digit(value)),
        }
    }
}

fn is_digit(value: f64) -> bool {
    (0.0..=9.0).contains(&value) && value.fract().abs() < f64::EPSILON
}

fn assumed(
    files: &CheckpointFiles,
    options: LoadOptions,
    model_max_length: Option<usize>,
) -> Result<Vec<Assumption>, LoadError> {
    let facts = CheckpointFacts::open(files, options.choices)?.all()?;
    let mut assumed: Vec<Assumption> =
        facts.into_iter().map(|(name, choice)| Assumption::new(name, choice.value, choice.origin)).collect();
    if model_max_length.is_none() && !Family::of(files)?.limits_prompts() {
        assumed.push(Assumption::new("prompt_tokens_max", PROMPT_TOKENS_MAX, "default"));
    }
    Ok(assumed)
}

impl EosToken {
    fn of(tokenizer: &Tokenizer, id: u32) -> Self {
        Self { id, text: tokenizer.token(id).unwrap_or_default().to_owned() }
    }
}

impl Assumption {
    fn new(name: &str, value: impl ToString, origin: impl ToString) -> Self {
        Self { name: name.to_owned(), value: value.to_string(), origin: origin.to_string() }
    }
}
