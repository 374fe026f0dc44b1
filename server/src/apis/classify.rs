//! The values of a head's labels: `POST /classify`, `POST /pooling` and `POST /predict`.

use std::sync::Arc;

use ntl_api::{
    ChatRequest, Classification, ClassificationRequest, Pooled, PredictInputs, PredictRequest,
    PredictResponse, PredictText, Prediction, TruncationSide,
};
use ntl_core::Prompt;
use ntl_core::contract::ModelInfo;
use ntl_core::labels::Labels;
use ntl_text::chat::Conversation;
use ntl_text::tokenizer::Tokenizer;

use super::chat::{conversation, prompt_ids};
use super::completions::prompt_inputs;
use super::fields::truncation;
use crate::blocking::check_wanted;
use crate::error::{AppError, check, required};
use crate::request::{ModelProfile, PromptInput, Truncation, into_prompts};

pub(super) const INPUTS_MAX: usize = 1024;

pub(crate) const INPUT: &str = "input";
const INPUTS: &str = "inputs";
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
    Prompts(Vec<PromptInput>),
    /// The texts of the list `field`.
    Texts {
        field: &'static str,
        texts: Vec<HeadText>,
    },
    Chat(Box<Conversation>),
}

/// One text, or two texts that a head reads as a pair.
#[derive(Debug)]
pub(crate) struct HeadText {
    /// A query may be the first text of many pairs.
    pub(crate) first: Arc<str>,
    pub(crate) second: Option<String>,
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
            HeadInputs::Prompts(inputs)
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

/// Validates a request for predictions. Also returns whether it has one text or pair instead of a list.
pub(crate) fn predict_request(
    request: PredictRequest,
    profile: &ModelProfile,
) -> Result<(HeadRequest, bool), AppError> {
    let truncates = request.truncate.unwrap_or(false);
    let side = request.truncation_direction;
    check("truncation_direction", truncates || side.is_none(), "is only allowed with `truncate`")?;
    let side = Some(side.unwrap_or(TruncationSide::Right));
    let inputs = required(INPUTS, request.inputs)?;
    let (lists, is_one) = match inputs {
        PredictInputs::One(PredictText::Text(text)) => (vec![vec![text]], true),
        PredictInputs::One(PredictText::Texts(texts)) => (vec![texts], true),
        PredictInputs::Each(lists) => (lists, false),
    };
    let message = format!("must have 1 to {INPUTS_MAX} texts or pairs, not {}", lists.len());
    check(INPUTS, (1..=INPUTS_MAX).contains(&lists.len()), message)?;
    let mut texts = Vec::with_capacity(lists.len());
    for (index, list) in lists.into_iter().enumerate() {
        let param = if is_one { INPUTS.to_owned() } else { format!("{INPUTS}[{index}]") };
        check(&param, list.iter().all(|text| !text.is_empty()), "must not have an empty text")?;
        let count = list.len();
        let mut list = list.into_iter();
        match (list.next(), list.next(), list.next()) {
            (Some(first), second, None) => texts.push(HeadText { first: first.into(), second }),
            _ => return Err(AppError::field(&param, format!("must be one or two texts, not {count}"))),
        }
    }
    let request = HeadRequest {
        truncation: truncation(truncates.then_some(-1), side, profile)?,
        use_activation: !request.raw_scores.unwrap_or(false),
        ..HeadRequest::texts(INPUTS, texts)
    };
    Ok((request, is_one))
}

impl HeadRequest {
    /// A request for the probabilities of texts and pairs, which the list `field` has.
    pub(crate) fn texts(field: &'static str, texts: Vec<HeadText>) -> Self {
        let inputs = HeadInputs::Texts { field, texts };
        Self { inputs, add_special_tokens: true, truncation: None, use_activation: true }
    }

    /// Number of inputs.
    pub(crate) fn len(&self) -> usize {
        match &self.inputs {
            HeadInputs::Prompts(prompts) => prompts.len(),
            HeadInputs::Texts { texts, .. } => texts.len(),
            HeadInputs::Chat(_) => 1,
        }
    }

    /// The field with the inputs.
    pub(crate) fn field(&self) -> &'static str {
        match &self.inputs {
            HeadInputs::Prompts(_) => INPUT,
            HeadInputs::Texts { field, .. } => field,
            HeadInputs::Chat(_) => MESSAGES,
        }
    }

    /// Bytes that have to be tokenized. A chat template may write any number of bytes.
    pub(crate) fn text_bytes(&self) -> usize {
        match &self.inputs {
            HeadInputs::Prompts(prompts) => prompts.iter().map(PromptInput::text_bytes).sum(),
            HeadInputs::Texts { texts, .. } => texts.iter().map(HeadText::bytes).sum(),
            HeadInputs::Chat(_) => usize::MAX,
        }
    }

    pub(crate) fn into_prompts(
        self,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
    ) -> Result<Vec<Prompt>, AppError> {
        let field = self.field();
        let Self { inputs, add_special_tokens, truncation, .. } = self;
        let inputs = match inputs {
            HeadInputs::Prompts(prompts) => prompts,
            HeadInputs::Texts { texts, .. } => {
                let count = texts.len();
                let mut prompts = Vec::with_capacity(count);
                for (index, text) in texts.iter().enumerate() {
                    check_wanted()?;
                    let param = if count == 1 { field.to_owned() } else { format!("{field}[{index}]") };
                    let prompt = text.prompt(&param, tokenizer, profile, truncation);
                    prompts.push(prompt.map_err(|error| error.of_prompt(field, index, count))?);
                }
                return Ok(prompts);
            }
            HeadInputs::Chat(chat) => {
                let ids = prompt_ids(MESSAGES, &chat, add_special_tokens, tokenizer, profile)?;
                vec![PromptInput::Ids(ids)]
            }
        };
        into_prompts(inputs, field, tokenizer, profile, truncation, add_special_tokens)
    }
}

impl HeadText {
    fn bytes(&self) -> usize {
        self.first.len() + self.second.as_ref().map_or(0, String::len)
    }

    /// Returns the prompt as the model reads it. `param` names the field.
    fn prompt(
        &self,
        param: &str,
        tokenizer: &Tokenizer,
        profile: &ModelProfile,
        truncation: Option<Truncation>,
    ) -> Result<Prompt, AppError> {
        profile.check_bytes(&self.first)?;
        let prompt = match &self.second {
            Some(second) => {
                profile.check_bytes(second)?;
                tokenizer.encode_pair(&self.first, second)
            }
            None => tokenizer.encode_prompt(&self.first, true),
        };
        let prompt = prompt.map_err(|error| AppError::invalid(param, format!("`{param}`: {error}")))?;
        profile.fitting(match truncation {
            Some(Truncation { tokens_max, side }) => tokenizer.truncate(prompt, tokens_max, side),
            None => prompt,
        })
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

/// The response to the scores of each input, or of the only one.
pub(crate) fn predict_response(labels: &Labels, scores: Vec<Vec<f64>>, is_one: bool) -> PredictResponse {
    let mut each = Vec::with_capacity(scores.len());
    for scores in scores {
        each.push(predictions(labels, scores));
    }
    if is_one {
        PredictResponse::One(each.into_iter().flatten().collect())
    } else {
        PredictResponse::Each(each)
    }
}

/// The labels with their scores, the highest score first. Ties keep the order of the model.
fn predictions(labels: &Labels, scores: Vec<f64>) -> Vec<Prediction> {
    let mut predictions = Vec::with_capacity(scores.len());
    for (label, score) in labels.names.iter().zip(scores) {
        predictions.push(Prediction { score, label: label.clone() });
    }
    predictions.sort_by(|a, b| b.score.total_cmp(&a.score));
    predictions
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
