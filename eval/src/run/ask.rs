//! What is sent for an item, and what is kept of the answer.
//!
//! In: the settings of a run and an item. Out: JSON bodies, and answers in the small form that the journal keeps.
//! Answers are read leniently: every OpenAI-style server has the fields that are needed here.

use ntl_api::{
    CompletionRequest, Number, NumberOptions, NumberRequest, Objective, ObjectiveName, Prompt, Stop,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::cli::flags::{Api, Mode};
use crate::data::Item;
use crate::metrics::Estimates;
use crate::run::client::{ClientError, Route};

/// Quantiles that are asked for.
pub const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// How many of the most probable values are asked for.
const SUPPORT: u64 = 50;

/// Beams in paper mode, as the paper's code fixes them.
const BEAMS: u64 = 4;

/// How many beams the paper's code searches with: none beside the greedy one where numbers are values (xVal).
pub fn paper_beams(number_encoding: Option<&str>) -> u64 {
    if number_encoding == Some("xval") { 1 } else { BEAMS }
}

/// Losses that `--score` asks for.
const LOSSES: [&str; 6] = ["ce", "ntl-was", "ntl-was-cdf", "ntl-mse", "ntl-mae", "ntl-huber"];

/// How to ask.
#[derive(Debug, Clone, PartialEq)]
pub struct Asking {
    /// For text or for a number.
    pub mode: Mode,
    /// Completions or chat.
    pub api: Api,
    /// Whom.
    pub model: String,
    /// Most tokens of a text.
    pub max_tokens: u64,
    /// What ends a text.
    pub stop: &'static [&'static str],
    /// The text in front of the number, in regress mode.
    pub after: Option<&'static str>,
    /// Whether token ids are wanted.
    pub token_ids: bool,
    /// In paper mode: [`paper_beams`].
    pub beams: u64,
}

/// What an item's request needs beside the item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extra {
    /// Instead of the general limit.
    pub max_tokens: Option<u64>,
    /// Instead of the prompt's text.
    pub prompt_ids: Option<Vec<u32>>,
}

impl Asking {
    /// Where questions go.
    pub fn route(&self) -> Route {
        match self.api {
            Api::Completions => Route::Completions,
            Api::Chat => Route::Chat,
        }
    }

    /// The fields that are the same for every item, as sent; for reports.
    pub fn settings(&self) -> Map<String, Value> {
        match self.body(None, &Extra::default()) {
            Value::Object(fields) => fields.into_iter().filter(|(name, _)| name != "model").collect(),
            _ => Map::new(),
        }
    }

    /// The request for an item.
    pub fn question(&self, item: &Item, extra: &Extra) -> Value {
        self.body(Some(item.prompt()), extra)
    }

    fn body(&self, question: Option<&str>, extra: &Extra) -> Value {
        let prompt = match &extra.prompt_ids {
            Some(ids) => Some(Prompt::Ids(ids.clone())),
            None => question.map(|text| Prompt::Text(text.to_owned())),
        };
        let mut request =
            CompletionRequest { model: Some(self.model.clone()), ..CompletionRequest::default() };
        if !self.stop.is_empty() {
            request.stop = Some(Stop::Many(self.stop.iter().map(|&text| text.to_owned()).collect()));
        }
        match self.mode {
            Mode::Text => {
                request.max_tokens = Some(self.max_tokens);
                request.temperature = Some(0.0);
            }
            Mode::Paper => {
                request.max_tokens = extra.max_tokens;
                if self.beams > 1 {
                    request.others.insert("use_beam_search".to_owned(), json!(true));
                    request.others.insert("beam_width".to_owned(), json!(self.beams));
                } else {
                    request.temperature = Some(0.0);
                    // With the faults of the paper's own loop, which is xVal's alone.
                    request.others.insert("paper_decoding".to_owned(), json!(true));
                }
            }
            Mode::Regress => {
                request.number = Some(number_request(self.after));
                request.stop = None;
                if self.after.is_some() {
                    request.max_tokens = Some(self.max_tokens);
                    request.temperature = Some(0.0);
                }
            }
        }
        if self.token_ids {
            request.others.insert("return_token_ids".to_owned(), json!(true));
        }
        if self.api == Api::Chat {
            let content = question.unwrap_or_default();
            request.others.insert("messages".to_owned(), json!([{ "role": "user", "content": content }]));
        } else {
            request.prompt = prompt;
        }
        serde_json::to_value(request).unwrap_or_default()
    }

    /// The request for what the model says of the true answer.
    pub fn score(&self, item: &Item) -> Value {
        json!({
            "model": self.model,
            "items": [{ "prompt": item.prompt(), "target": item.answer }],
            "losses": LOSSES,
        })
    }

    /// The request for the tokens of a text, with what the model expects at its end.
    pub fn tokenize(&self, text: &str) -> Value {
        json!({ "model": self.model, "prompt": text, "add_special_tokens": true })
    }

    /// The request for the text of tokens.
    pub fn detokenize(&self, ids: &[u32]) -> Value {
        json!({ "model": self.model, "tokens": ids })
    }
}

/// All defaults, but named, so that a report shows what was asked.
fn number_request(after: Option<&str>) -> NumberRequest {
    let options = NumberOptions {
        objective: Some(Objective::Named(ObjectiveName::Mean)),
        quantiles: Some(QUANTILES.to_vec()),
        support: Some(SUPPORT),
        after: after.map(str::to_owned),
        ..NumberOptions::default()
    };
    match serde_json::to_value(options) {
        Ok(Value::Object(fields)) => NumberRequest::Options(fields),
        _ => NumberRequest::Switch(true),
    }
}

/// The part of completion and chat answers that is read.
#[derive(Debug, Clone, Deserialize)]
pub struct Answers {
    choices: Vec<Choice>,
}

#[derive(Debug, Clone, Deserialize)]
struct Choice {
    text: Option<String>,
    message: Option<Message>,
    finish_reason: Option<String>,
    number: Option<Number>,
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Message {
    content: Option<String>,
}

/// An answer, as the journal keeps it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Why it ended, in the server's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Its tokens, where asked for and known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Its number, in regress mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<Numbers>,
}

/// What is kept of a number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// The estimates; `None` where the server gives no value.
    pub estimates: Option<[f64; 3]>,
    /// Closed mass.
    pub mass_closed: f64,
    /// Levels and values.
    pub quantiles: Vec<(f64, Option<f64>)>,
    /// Values and probabilities.
    pub support: Vec<(f64, f64)>,
}

impl Numbers {
    /// A checkpoint that has only one estimate gives that for all. Without a value nothing is kept of the rest.
    fn of(number: &Number) -> Self {
        let estimates = number.value.map(|value| {
            [number.trimmed_mean, number.median, number.mode].map(|estimate| estimate.unwrap_or(value))
        });
        let known = estimates.is_some();
        let quantiles =
            number.quantiles.iter().filter(|_| known).map(|quantile| (quantile.q, quantile.value));
        let support = number.support.iter().filter(|_| known).map(|point| (point.value, point.probability));
        Self {
            estimates,
            // Adding 0 turns -0, the sum of nothing, into 0.
            mass_closed: number.mass.closed + 0.0,
            quantiles: quantiles.collect(),
            support: support.collect(),
        }
    }

    /// The estimates by name.
    pub fn estimates(&self) -> Option<Estimates> {
        self.estimates.map(|[mean, median, mode]| Estimates { mean, median, mode })
    }
}

impl Answers {
    /// The first answer, in small form.
    ///
    /// # Errors
    /// There is none, or a number was asked for and did not come.
    pub fn first(self, mode: Mode) -> Result<Answer, ClientError> {
        let choice = self.choices.into_iter().next().ok_or(ClientError::NoChoices)?;
        if mode == Mode::Regress && choice.number.is_none() {
            return Err(ClientError::NoNumber { reason: "its answer carries no `number`".to_owned() });
        }
        let text = choice.text.or_else(|| choice.message?.content).unwrap_or_default();
        Ok(Answer {
            text,
            finish_reason: choice.finish_reason,
            token_ids: choice.token_ids,
            number: choice.number.as_ref().filter(|_| mode == Mode::Regress).map(Numbers::of),
        })
    }
}

/// What a model says of the true answer, as the journal keeps it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// Tokens of the true answer.
    #[serde(default)]
    pub token_ids: Vec<u32>,
    /// Natural logarithms of their probabilities.
    pub token_logprobs: Vec<Option<f64>>,
    /// Losses by name.
    pub losses: Map<String, Value>,
}

/// The part of `/v1/score` answers that is read.
#[derive(Debug, Clone, Deserialize)]
pub struct ScoreAnswer {
    data: Vec<Scored>,
}

impl ScoreAnswer {
    /// The only item.
    ///
    /// # Errors
    /// There is none.
    pub fn only(self) -> Result<Scored, ClientError> {
        self.data.into_iter().next().ok_or(ClientError::NoChoices)
    }
}

/// The part of `/tokenize` answers that is read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    /// Token ids.
    pub tokens: Vec<u32>,
}

/// The part of `/detokenize` answers that is read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// The text.
    pub prompt: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(mode: Mode) -> Asking {
        Asking {
            mode,
            api: Api::Completions,
            model: "tiny".to_owned(),
            max_tokens: 32,
            stop: &["Question:"],
            after: Some("#### "),
            token_ids: false,
            beams: BEAMS,
        }
    }

    #[test]
    fn numbers_that_are_values_are_decoded_greedily_in_paper_mode() {
        let xval = Asking { stop: &[], beams: paper_beams(Some("xval")), ..asking(Mode::Paper) };
        let want = json!({ "temperature": 0.0, "paper_decoding": true });
        assert_eq!(Value::Object(xval.settings()), want);
        assert_eq!((paper_beams(Some("digits")), paper_beams(None)), (4, 4));
    }

    #[test]
    fn settings_show_what_is_sent_without_the_question() {
        for (mode, want) in [
            (Mode::Text, json!({ "max_tokens": 32, "temperature": 0.0, "stop": ["Question:"] })),
            (
                Mode::Regress,
                json!({
                    "max_tokens": 32, "temperature": 0.0,
                    "number": { "objective": "mean", "after": "#### ", "quantiles": QUANTILES, "support": 50 }
                }),
            ),
            (
                Mode::Paper,
                json!({
                    "use_beam_search": true, "beam_width": 4, "stop": ["Question:"]
                }),
            ),
        ] {
            assert_eq!(Value::Object(asking(mode).settings()), want);
        }
    }

    #[test]
    fn a_chat_server_gets_the_question_as_a_message() {
        let item = Item { question: "1 + 1".to_owned(), ..Item::default() };
        let asking = Asking { api: Api::Chat, stop: &[], ..asking(Mode::Text) };
        let want = json!({
            "model": "tiny", "max_tokens": 32, "temperature": 0.0,
            "messages": [{ "role": "user", "content": "1 + 1" }]
        });
        assert_eq!(asking.question(&item, &Extra::default()), want);
    }

    #[test]
    fn a_text_is_read_from_either_kind_of_answer() {
        for body in [
            json!({ "choices": [{ "text": " 2", "finish_reason": "stop" }] }),
            json!({ "choices": [{ "message": { "role": "assistant", "content": " 2" }, "finish_reason": "stop" }] }),
        ] {
            let answer = serde_json::from_value::<Answers>(body).unwrap().first(Mode::Text).unwrap();
            assert_eq!((&*answer.text, answer.finish_reason.as_deref()), (" 2", Some("stop")));
        }
        let none = serde_json::from_value::<Answers>(json!({ "choices": [] })).unwrap();
        assert!(matches!(none.first(Mode::Text), Err(ClientError::NoChoices)));
    }

    #[test]
    fn an_answer_survives_the_journal_to_the_bit() {
        let numbers = Numbers {
            estimates: Some([0.1 + 0.2, 1e-300, 5e-324]),
            mass_closed: 0.999_999_999_999_999_9,
            quantiles: vec![(0.05, None), (0.5, Some(1.0 / 3.0))],
            support: vec![(-1_456.0, 0.123_456_789_012_345_67)],
        };
        let answer = Answer { text: "é\u{1}".to_owned(), number: Some(numbers), ..Answer::default() };
        let line = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answer>(&line).unwrap(), answer);
    }
}
