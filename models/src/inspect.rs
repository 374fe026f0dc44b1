//! Looking at a checkpoint without loading it: what it is, what would be assumed, and whether it can be served.
//!
//! It goes the way of [`load`], with weights that are checked by the tables of their files only. So a new kind of model
//! needs nothing here, and what this accepts lacks no tensor and has no wrong shape.

use serde::{Deserialize, Serialize};

use crate::checkpoint::{CheckpointFacts, CheckpointFiles, LoadError, Weights, architecture};
use crate::load::{LoadOptions, LoadedModel, PROMPT_TOKENS_MAX, load};

/// What a checkpoint is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// Kind of model, as the server calls it.
    pub kind: String,
    /// The class that `config.json` names.
    pub architecture: String,
    /// Sizes of the network; those that it has.
    pub sizes: Sizes,
    /// Number of weights in the files, counted once where they are shared.
    pub parameters: u64,
    /// Files of weights.
    pub files: Vec<String>,
    /// Element types in the files, most weights first.
    pub stored: Vec<String>,
    /// Element type in memory.
    pub dtype: String,
    /// Bytes that the weights need in memory.
    pub memory_bytes: u64,
    /// Ids that the tokenizer knows.
    pub tokens: usize,
    /// How the tokenizer writes numbers.
    pub number_encoding: String,
    /// The tokens that are numbers.
    pub numbers: NumberTokens,
    /// What `config.json` does not say, and who says it.
    pub assumed: Vec<Assumption>,
}

/// Sizes of a network, from whichever of the usual names `config.json` uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Layers; of the encoder where there are two stacks.
    #[serde(alias = "num_hidden_layers", alias = "n_layer")]
    pub num_layers: Option<usize>,
    /// Layers of the decoder, where that is said.
    pub num_decoder_layers: Option<usize>,
    /// Width of the residual stream.
    #[serde(alias = "hidden_size", alias = "n_embd")]
    pub d_model: Option<usize>,
    /// Heads of an attention.
    #[serde(alias = "num_attention_heads", alias = "n_head")]
    pub num_heads: Option<usize>,
    /// Rows of the embedding table.
    pub vocab_size: Option<usize>,
}

/// The tokens that are numbers by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NumberTokens {
    /// How many.
    pub count: usize,
    /// Smallest and largest value, where there are any.
    pub range: Option<(f64, f64)>,
    /// Whether there are others than the digits 0 to 9.
    pub multi_digit: bool,
}

/// Something that had to be known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// What.
    pub name: String,
    /// What holds.
    pub value: String,
    /// Who said so: the command line, a file, or a default.
    pub origin: String,
}

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// At the tables of tensors. Numbers that are not finite go unseen.
    Tables,
    /// At every weight, as loading does.
    Weights,
}

/// Looks at a checkpoint.
///
/// # Errors
/// When it could not be served; the message names the file, and the tensor or field where there is one.
pub fn inspect(files: CheckpointFiles, options: LoadOptions, depth: Depth) -> Result<Inspection, LoadError> {
    if depth == Depth::Weights {
        load(&files, options)?;
    }
    let files = files.tables_only();
    let LoadedModel { model, tokenizer, vocabulary } = load(&files, options)?;
    let weights = Weights::open(&files)?.summary();
    let info = model.info();
    let values = vocabulary.number_values.iter().map(|&(_, value)| value);
    Ok(Inspection {
        kind: info.kind.name().to_owned(),
        architecture: architecture(&files)?,
        sizes: sizes(&files)?,
        parameters: weights.parameters,
        files: weights.files,
        stored: weights.stored,
        memory_bytes: options.place()?.bytes(weights.parameters),
        dtype: info.dtype.name().to_owned(),
        tokens: tokenizer.len(),
        number_encoding: info.number_encoding.name().to_owned(),
        numbers: NumberTokens::of(values),
        assumed: assumed(&files, options, tokenizer.model_max_length().or(info.context_tokens_max))?,
    })
}

impl NumberTokens {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let is_digit = |value: f64| (0.0..=9.0).contains(&value) && value.fract().abs() < f64::EPSILON;
        let low = values.clone().reduce(f64::min);
        Self {
            count: values.clone().count(),
            range: low.zip(values.clone().reduce(f64::max)),
            multi_digit: values.clone().any(|value| !is_digit(value)),
        }
    }
}

fn sizes(files: &CheckpointFiles) -> Result<Sizes, LoadError> {
    const FILE: &str = "config.json";
    serde_json::from_slice(&files.require(FILE)?)
        .map_err(|error| LoadError::malformed(files.name_of(FILE), error))
}

fn assumed(
    files: &CheckpointFiles,
    options: LoadOptions,
    prompt_tokens_max: Option<usize>,
) -> Result<Vec<Assumption>, LoadError> {
    let said = CheckpointFacts::open(files, options.choices)?.all()?;
    let mut assumed: Vec<Assumption> =
        said.into_iter().map(|(name, choice)| Assumption::new(name, choice.value, choice.origin)).collect();
    if prompt_tokens_max.is_none() {
        assumed.push(Assumption::new("prompt_tokens_max", PROMPT_TOKENS_MAX, "default"));
    }
    Ok(assumed)
}

impl Assumption {
    fn new(name: &str, value: impl ToString, origin: impl ToString) -> Self {
        Self { name: name.to_owned(), value: value.to_string(), origin: origin.to_string() }
    }
}
