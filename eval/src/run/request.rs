//! Request bodies for the items of a run.

use ntl_api::{
    CompletionRequest, MethodName, NamedSchema, NumberOptions, NumberRequest, NumberScale, ObjectiveName,
    ObjectiveOption, Prompts, ResponseFormat, Stop,
};
use ntl_paper::Protocol;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::data::Item;
use crate::run::client::Route;
use crate::run::decisions::DecisionApi;
use crate::settings::decisions::DecisionSettings;
use crate::settings::mode::{Api, Mode};
use crate::settings::number::{Draws, NumberSettings};
use crate::tasks::AnswerField;

pub const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// Number of most probable values to request: as many as the server returns, because CRPS needs all of them.
const SUPPORT: u64 = 1000;

const LOSSES: [&str; 6] = ["ce", "ntl-was", "ntl-was-cdf", "ntl-mse", "ntl-mae", "ntl-huber"];

/// The settings that the requests of all items share.
#[derive(Debug)]
pub struct RequestTemplate {
    pub mode: Mode,
    pub api: Api,
    pub model: String,
    pub max_tokens: u64,
    pub stop: &'static [&'static str],
    /// Text before the number, in regress mode.
    pub after: Option<String>,
    /// System message of chat requests.
    pub system: Option<String>,
    /// The beginning of the answer, which chat requests send as the assistant's message. In completions, it
    /// is the end of the prompt.
    pub prefill: Option<String>,
    pub return_token_ids: bool,
    /// Replaces the decoding of the mode.
    pub protocol: Option<Box<dyn Protocol>>,
    /// Options of the number, in regress mode.
    pub number: NumberSettings,
    /// Seed of sampled texts.
    pub seed: u64,
    /// Whether prompt and answer are one text for the model, with a space between them unless one of them has
    /// it.
    pub targets_continue_prompts: bool,
    /// The number of a structured answer that is scored.
    pub field: Option<AnswerField>,
    /// For the APIs of decision models.
    pub decisions: DecisionSettings,
}

/// The values with which one item's request replaces the template's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    pub max_tokens: Option<u64>,
    /// Replaces the prompt's text.
    pub prompt: Option<TruncatedPrompt>,
    /// Replaces the text of the true answer.
    pub target_ids: Option<Vec<u32>>,
}

/// The token ids of a whole prompt, and the ids that are sent.
#[derive(Debug, Clone, PartialEq)]
pub struct TruncatedPrompt {
    pub whole: Vec<u32>,
    pub kept: Vec<u32>,
}

impl RequestTemplate {
    pub fn route(&self) -> Route {
        match self.api {
            Api::Completions => Route::Completions,
            Api::Chat => Route::Chat,
            Api::Decisions => Route::Decisions,
            Api::Systemone => Route::Systemone,
        }
    }

    /// Returns whether the items are questions for a decision model.
    pub fn is_of_questions(&self) -> bool {
        DecisionApi::of(self.api).is_some()
    }

    /// Returns how answers are requested, for reports: the mode, or the API of a decision model.
    pub fn mode_name(&self) -> &'static str {
        match self.api {
            Api::Decisions => "decisions",
            Api::Systemone => "systemone",
            Api::Completions | Api::Chat => self.mode.as_str(),
        }
    }

    /// Returns the fields that are the same for every item, for reports and journals. A chat request shows an
    /// empty message.
    pub fn settings(&self) -> Map<String, Value> {
        if self.is_of_questions() {
            return DecisionApi::settings(&self.decisions);
        }
        let mut fields = self.body(None, &Overrides::default());
        fields.shift_remove("model");
        fields
    }

    pub fn completion(&self, item: &Item, overrides: &Overrides) -> Value {
        Value::Object(self.body(Some(item.prompt()), overrides))
    }

    /// Returns the body for a pair with its answers in the other order.
    pub fn swapped(&self, item: &Item) -> Option<Value> {
        let prompt = item.swapped_prompt.as_deref()?;
        Some(Value::Object(self.body(Some(prompt), &Overrides::default())))
    }

    fn body(&self, prompt: Option<&str>, overrides: &Overrides) -> Map<String, Value> {
        let mut request =
            CompletionRequest { model: Some(self.model.clone()), ..CompletionRequest::default() };
        if !self.stop.is_empty() {
            request.stop = Some(Stop::Many(self.stop.iter().map(|&text| text.to_owned()).collect()));
        }
        if let Some(protocol) = &self.protocol {
            request.max_tokens = overrides.max_tokens;
            protocol.set_decoding(&mut request);
        } else if self.mode == Mode::Regress {
            request.number = Some(number_request(self.after.clone(), &self.number));
            request.stop = None;
            if self.after.is_some() {
                request.max_tokens = Some(self.max_tokens);
                request.temperature = Some(0.0);
            }
            if self.number.rationales.is_some() {
                request.temperature = Some(1.0);
                request.seed = Some(self.seed.cast_signed());
            }
        } else {
            request.max_tokens = Some(self.max_tokens);
            request.temperature = Some(0.0);
        }
        if let Some(AnswerField { schema, .. }) = &self.field {
            let named = NamedSchema {
                name: Some("answer".to_owned()),
                description: None,
                strict: None,
                schema: schema.clone(),
            };
            request.response_format = Some(ResponseFormat::JsonSchema { json_schema: named });
            request.max_tokens = Some(self.max_tokens);
            request.temperature = Some(0.0);
        }
        if self.return_token_ids {
            request.others.insert("return_token_ids".to_owned(), json!(true));
        }
        if self.api == Api::Chat {
            let content = prompt.unwrap_or_default();
            let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
            let begun = self.prefill.iter().map(|text| json!({ "role": "assistant", "content": text }));
            let messages: Vec<Value> =
                system.chain([json!({ "role": "user", "content": content })]).chain(begun).collect();
            request.others.insert("messages".to_owned(), json!(messages));
            if self.prefill.is_some() {
                request.others.insert("continue_final_message".to_owned(), json!(true));
                request.others.insert("add_generation_prompt".to_owned(), json!(false));
            }
        } else {
            request.prompt = match &overrides.prompt {
                Some(prompt) => Some(Prompts::Ids(prompt.kept.clone())),
                None => prompt.map(|text| Prompts::Text(text.to_owned())),
            };
        }
        to_object(&request)
    }

    /// Returns the body that requests numbers drawn from the model after the same prompt.
    pub fn drawn(&self, item: &Item, overrides: &Overrides, draws: Draws) -> Value {
        let mut body = self.body(Some(item.prompt()), overrides);
        let number = NumberOptions {
            objective: Some(ObjectiveOption::Named(ObjectiveName::Median)),
            method: Some(MethodName::Sample),
            samples: Some(draws.samples.into()),
            range: self.number.range.map(|range| [range.low, range.high]),
            ..NumberOptions::default()
        };
        for (name, value) in [
            ("number", json!(number)),
            ("temperature", json!(1.0)),
            ("top_p", json!(draws.top_p)),
            ("seed", json!(self.seed.cast_signed())),
        ] {
            body.insert(name.to_owned(), value);
        }
        Value::Object(body)
    }

    /// Returns the body that requests the likelihood of the true answer after the same prompt.
    pub fn score(&self, item: &Item, overrides: &Overrides) -> Value {
        let prompt = match &overrides.prompt {
            Some(prompt) => json!(prompt.kept),
            None => json!(item.prompt()),
        };
        let target = match &overrides.target_ids {
            Some(ids) => json!(ids),
            None => json!(self.target(item)),
        };
        json!({ "model": self.model, "items": [{ "prompt": prompt, "target": target }], "losses": LOSSES })
    }

    /// Returns the true answer as a continuation of the prompt.
    pub fn target(&self, item: &Item) -> String {
        let is_apart =
            item.prompt().ends_with(char::is_whitespace) || item.answer.starts_with(char::is_whitespace);
        let lead_in = if self.targets_continue_prompts && !is_apart { " " } else { "" };
        format!("{lead_in}{}", item.answer)
    }

    pub fn tokenize(&self, text: &str, add_special_tokens: bool) -> Value {
        json!({ "model": self.model, "prompt": text, "add_special_tokens": add_special_tokens })
    }

    pub fn detokenize(&self, ids: &[u32]) -> Value {
        json!({ "model": self.model, "tokens": ids })
    }
}

/// Returns the request with every default written out, so that a report shows what was requested.
fn number_request(after: Option<String>, settings: &NumberSettings) -> NumberRequest {
    NumberRequest::Options(Box::new(NumberOptions {
        objective: Some(ObjectiveOption::Named(ObjectiveName::Mean)),
        quantiles: Some(QUANTILES.to_vec()),
        support: Some(SUPPORT),
        after,
        rationales: settings.rationales.map(u64::from),
        range: settings.range.map(|range| [range.low, range.high]),
        scale: settings.scale.map(NumberScale::from),
        interval: settings.interval,
        trim: settings.trim,
        digits_max: settings.digits_max.map(u64::from),
        decimals_max: settings.decimals_max.map(u64::from),
        tolerance: settings.tolerance,
        nodes_max: settings.nodes_max.map(u64::from),
        precision: settings.precision,
        time_max: settings.time_max,
        ..NumberOptions::default()
    }))
}

#[expect(clippy::expect_used, reason = "a struct with fields of JSON types serialises to an object")]
fn to_object(body: &impl Serialize) -> Map<String, Value> {
    let value = serde_json::to_value(body).expect("its fields are JSON types");
    value.as_object().cloned().expect("it is a struct")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(mode: Mode) -> RequestTemplate {
        RequestTemplate {
            mode,
            api: Api::Completions,
            model: "tiny".to_owned(),
            max_tokens: 32,
            stop: &["Question:"],
            after: Some("#### ".to_owned()),
            system: None,
            prefill: None,
            return_token_ids: false,
            number: NumberSettings::default(),
            protocol: mode.protocol(None),
            seed: 7,
            targets_continue_prompts: false,
            field: None,
            decisions: DecisionSettings::default(),
        }
    }

    #[test]
    fn numbers_that_are_values_are_decoded_greedily_in_paper_mode() {
        let protocol = Mode::Paper.protocol(Some("xval"));
        let xval = RequestTemplate { stop: &[], protocol, ..template(Mode::Paper) };
        let want = json!({ "temperature": 0.0, "paper_decoding": true });
        assert_eq!(Value::Object(xval.settings()), want);
    }

    #[test]
    fn settings_show_what_is_sent_without_the_question() {
        for (mode, want) in [
            (Mode::Text, json!({ "max_tokens": 32, "temperature": 0.0, "stop": ["Question:"] })),
            (
                Mode::Regress,
                json!({
                    "max_tokens": 32, "temperature": 0.0,
                    "number": { "objective": "mean", "after": "#### ", "quantiles": QUANTILES, "support": 1000 }
                }),
            ),
            (
                Mode::Paper,
                json!({
                    "use_beam_search": true, "beam_width": 4, "stop": ["Question:"]
                }),
            ),
        ] {
            assert_eq!(Value::Object(template(mode).settings()), want);
        }
    }

    #[test]
    fn a_target_that_continues_its_prompt_begins_with_one_space() {
        let target = |question: &str, answer: &str| {
            let item = Item { question: question.to_owned(), answer: answer.to_owned(), ..Item::default() };
            let template = RequestTemplate { targets_continue_prompts: true, ..template(Mode::Text) };
            template.score(&item, &Overrides::default())["items"][0]["target"].clone()
        };
        assert_eq!(
            (target("A:", "5"), target("A: ", "5"), target("A:", " 5")),
            (json!(" 5"), json!("5"), json!(" 5"))
        );
    }

    #[test]
    fn a_chat_server_gets_the_question_as_a_message() {
        let item = Item { question: "1 + 1".to_owned(), ..Item::default() };
        let mut template = RequestTemplate { api: Api::Chat, stop: &[], ..template(Mode::Text) };
        let want = json!({
            "model": "tiny", "max_tokens": 32, "temperature": 0.0,
            "messages": [{ "role": "user", "content": "1 + 1" }]
        });
        assert_eq!(template.completion(&item, &Overrides::default()), want);
        template.system = Some("Be brief.".to_owned());
        let messages = &template.completion(&item, &Overrides::default())["messages"];
        let want =
            json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "1 + 1" }]);
        assert_eq!(*messages, want);
    }
}
