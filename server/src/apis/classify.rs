//! The values of a head's labels: `POST /classify` and `POST /pooling`.

use ntl_api::{ChatRequest, Classification, ClassificationRequest, Pooled};
use ntl_core::Prompt;
use ntl_core::contract::ModelInfo;
use ntl_core::labels::Labels;
use ntl_text::chat::Conversation;
use ntl_text::tokenizer::Tokenizer;

use super::chat::{conversation, prompt_ids};
use super::completions::prompt_inputs;
use super::fields::truncation;
use crate::error::{AppError, check};
use crate::request::{ModelProfile, PromptInput, Truncation, into_prompts};

const INPUTS_MAX: usize = 1024;

pub(crate) const INPUT: &str = "input";
const MESSAGES: &str = "messages";

/// A validated request for the values of a head's labels.
#[derive(Debug)]
pub(crate) struct HeadRequest {
    inputs: HeadInputs,
    add_special_tokens: bool,
    truncation: Option<Truncation>,
    pub(crate) use_activation: bool,
}

#[derive(Debug)]
enum HeadInputs {
    Texts(Vec<PromptInput>),
    Chat(Box<Conversation>),
}

/// Returns the labels that a model predicts.
pub(crate) fn labels(model: &ModelInfo) -> Result<&Labels, AppError> {
    model.labels.as_ref().ok_or_else(|| {
        let message = format!("is of kind {}, which has no head that predicts labels", model.kind);
        AppError::field("model", message)
    })
}

/// Validates a request.
pub(crate) fn head_request(
    request: ClassificationRequest,
    profile: &ModelProfile,
) -> Result<HeadRequest, AppError> {
    let truncation = truncation(request.truncate_prompt_tokens, request.truncation_side, profile)?;
    let is_chat = request.messages.is_some();
    for (param, is_set) in [
        ("add_generation_prompt", request.add_generation_prompt.is_some()),
        ("continue_final_message", request.continue_final_message.is_some()),
        ("chat_template_kwargs", request.chat_template_kwargs.is_some()),
    ] {
        check(param, is_chat || !is_set, "is only allowed with `messages`")?;
    }
    let inputs = match (request.input, request.messages) {
        (Some(_), Some(_)) => return Err(AppError::field(MESSAGES, "is not allowed with `input`")),
        (None, None) => {
            return Err(AppError::field(INPUT, "is missing; a request has `input` or `messages`"));
        }
        (Some(input), None) => {
            let inputs = prompt_inputs(input);
            let message = format!("must have 1 to {INPUTS_MAX} texts, not {}", inputs.len());
            check(INPUT, (1..=INPUTS_MAX).contains(&inputs.len()), message)?;
            HeadInputs::Texts(inputs)
        }
        (None, messages) => {
            let mut chat = ChatRequest {
                messages,
                add_generation_prompt: request.add_generation_prompt,
                continue_final_message: request.continue_final_message,
                chat_template_kwargs: request.chat_template_kwargs,
                ..ChatRequest::default()
            };
            HeadInputs::Chat(Box::new(conversation(&mut chat, None, profile)?))
        }
    };
    Ok(HeadRequest {
        inputs,
        add_special_tokens: request.add_special_tokens.unwrap_or(!is_chat),
        truncation,
        use_activation: request.use_activation.unwrap_or(true),
    })
}

impl HeadRequest {
    /// Bytes that have to be tokenized. A chat template may write any number of bytes.
    pub(crate) fn text_bytes(&self) -> usize {
        match &self.inputs {
            HeadInputs::Texts(texts) => texts.iter().map(PromptInput::text_bytes).sum(),
            HeadInputs::Chat(_) => usize::MAX,
        }
    }

    pub(crate) fn into_prompts(
        self,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
    ) -> Result<Vec<Prompt>, AppError> {
        let Self { inputs, add_special_tokens, truncation, .. } = self;
        let (param, inputs) = match inputs {
            HeadInputs::Texts(texts) => (INPUT, texts),
            HeadInputs::Chat(chat) => {
                let ids = prompt_ids(MESSAGES, &chat, add_special_tokens, tokenizer, profile)?;
                (MESSAGES, vec![PromptInput::Ids(ids)])
            }
        };
        into_prompts(inputs, param, tokenizer, profile, truncation, add_special_tokens)
    }
}

/// Returns the values of one input as the response shows them.
pub(crate) fn shown(labels: &Labels, values: &[f32], use_activation: bool) -> Vec<f64> {
    if use_activation {
        labels.activation.apply(values)
    } else {
        values.iter().map(|&value| f64::from(value)).collect()
    }
}

pub(crate) fn classification(labels: &Labels, index: usize, probs: Vec<f64>) -> Classification {
    // Ties go to the first label.
    let best = (0..probs.len()).rev().max_by(|&a, &b| probs[a].total_cmp(&probs[b]));
    let label = best.and_then(|best| labels.names.get(best)).cloned().unwrap_or_default();
    Classification { index: index as u64, label, num_classes: probs.len() as u64, probs }
}

pub(crate) fn pooled(index: usize, data: Vec<f64>) -> Pooled {
    Pooled { index: index as u64, object: "pooling".to_owned(), data }
}

#[cfg(test)]
mod tests {
    use ntl_core::labels::LabelActivation;

    use super::*;

    #[test]
    fn the_label_is_the_first_of_those_with_the_largest_value() {
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let labels = Labels { names, activation: LabelActivation::Softmax };
        for (values, want) in [([0.5, 2.0, 2.0], "b"), ([1.0, 1.0, 1.0], "a"), ([-3.0, -2.0, -1.0], "c")] {
            let shown = shown(&labels, &values, false);
            let found = classification(&labels, 7, shown);
            assert_eq!((found.label.as_str(), found.index, found.num_classes), (want, 7, 3));
        }
    }
}
