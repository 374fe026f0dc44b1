//! The vectors of prompts: `POST /v1/embeddings`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ntl_api::{
    Embedding, EmbeddingRequest, EmbeddingResponse, EmbeddingVector, EncodingFormat, PoolingName, Usage,
};
use ntl_core::Prompt;
use ntl_core::contract::{EmbeddingJob, ModelInfo, Pooling, Stack};
use ntl_text::tokenizer::Tokenizer;

use super::classify::{INPUT, INPUTS_MAX};
use super::completions::prompt_inputs;
use super::fields::truncation;
use crate::error::{AppError, check};
use crate::request::{ModelProfile, PromptInput, Truncation, into_prompts};

/// A validated request for vectors.
#[derive(Debug)]
pub(crate) struct EmbeddingInputs {
    inputs: Vec<PromptInput>,
    add_special_tokens: bool,
    truncation: Option<Truncation>,
    pub(crate) job: EmbeddingJob,
    /// Length of the vectors.
    pub(crate) width: usize,
    pub(crate) form: EmbeddingForm,
}

/// How vectors are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EmbeddingForm {
    format: EncodingFormat,
    normalize: bool,
}

/// Validates a request.
pub(crate) fn embedding_inputs(
    request: EmbeddingRequest,
    model: &ModelInfo,
    profile: &ModelProfile,
) -> Result<EmbeddingInputs, AppError> {
    let hidden = model.hidden_states.ok_or_else(|| {
        let message = format!("runs on {}, which returns no hidden states", model.backend.name());
        AppError::field("model", message)
    })?;
    let inputs = request.input.ok_or_else(|| AppError::field(INPUT, "is missing"))?;
    let inputs = prompt_inputs(inputs);
    let message = format!("must have 1 to {INPUTS_MAX} texts, not {}", inputs.len());
    check(INPUT, (1..=INPUTS_MAX).contains(&inputs.len()), message)?;
    let is_width = request.dimensions.is_none_or(|dimensions| dimensions == hidden.width as u64);
    let message = format!("must be {}, the width of the model, or omitted", hidden.width);
    check("dimensions", is_width, message)?;
    let pooling = match (request.pooling, hidden.stack) {
        (Some(PoolingName::Mean), _) | (None, Stack::Encoder) => Pooling::Mean,
        (Some(PoolingName::Last), _) | (None, Stack::Decoder) => Pooling::Last,
    };
    Ok(EmbeddingInputs {
        inputs,
        add_special_tokens: request.add_special_tokens.unwrap_or(true),
        truncation: truncation(request.truncate_prompt_tokens, request.truncation_side, profile)?,
        job: EmbeddingJob { stack: hidden.stack, pooling },
        width: hidden.width,
        form: EmbeddingForm {
            format: request.encoding_format.unwrap_or(EncodingFormat::Float),
            normalize: request.normalize.unwrap_or(true),
        },
    })
}

/// The response without the vectors.
pub(crate) fn response(model: &str, prompt_tokens: u64) -> EmbeddingResponse {
    EmbeddingResponse {
        id: format!("embd-{}", uuid::Uuid::new_v4().simple()),
        object: "list".to_owned(),
        created: crate::unix_seconds(),
        model: model.to_owned(),
        data: Vec::new(),
        usage: Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() },
    }
}

impl EmbeddingInputs {
    /// Bytes that have to be tokenized.
    pub(crate) fn text_bytes(&self) -> usize {
        self.inputs.iter().map(PromptInput::text_bytes).sum()
    }

    pub(crate) fn into_prompts(
        self,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
    ) -> Result<Vec<Prompt>, AppError> {
        let Self { inputs, add_special_tokens, truncation, .. } = self;
        into_prompts(inputs, INPUT, tokenizer, profile, truncation, add_special_tokens)
    }
}

impl EmbeddingForm {
    /// Returns the vector of one input as the response shows it.
    pub(crate) fn embedding(self, index: usize, vector: &[f32]) -> Embedding {
        let vector = if self.normalize { normalized(vector) } else { vector.to_vec() };
        let embedding = match self.format {
            EncodingFormat::Float => EmbeddingVector::Float(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                EmbeddingVector::Base64(STANDARD.encode(bytes))
            }
        };
        Embedding { index: index as u64, object: "embedding".to_owned(), embedding }
    }
}

/// Returns the vector with the length 1. A vector of zeros remains.
fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    if length <= 0.0 {
        return vector.to_vec();
    }
    vector.iter().map(|&value| (f64::from(value) / length) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(format: EncodingFormat, normalize: bool, vector: &[f32]) -> EmbeddingVector {
        EmbeddingForm { format, normalize }.embedding(0, vector).embedding
    }

    #[test]
    fn vectors_have_the_length_1_unless_the_request_keeps_theirs() {
        assert_eq!(shown(EncodingFormat::Float, true, &[3.0, -4.0]), EmbeddingVector::Float(vec![0.6, -0.8]));
        assert_eq!(
            shown(EncodingFormat::Float, false, &[3.0, -4.0]),
            EmbeddingVector::Float(vec![3.0, -4.0])
        );
        assert_eq!(shown(EncodingFormat::Float, true, &[0.0; 2]), EmbeddingVector::Float(vec![0.0; 2]));
        let large = shown(EncodingFormat::Float, true, &[f32::MAX, f32::MAX]);
        assert_eq!(large, EmbeddingVector::Float(vec![0.5_f32.sqrt(); 2]));
    }

    #[test]
    fn base64_has_little_endian_floats() {
        let want = EmbeddingVector::Base64("AACAPwAAAMA=".to_owned());
        assert_eq!(shown(EncodingFormat::Base64, false, &[1.0, -2.0]), want);
    }
}
