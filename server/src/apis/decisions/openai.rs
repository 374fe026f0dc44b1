//! The API of OpenAI: `POST /v1/decisions`.

use std::collections::HashSet;

use ntl_api::{
    ChoiceBounds, DecisionAnswer, DecisionChoice, DecisionItem, DecisionLevel, DecisionPart,
    DecisionQuestion, DecisionsRequest, DecisionsResponse, DecisionsUsage, LevelBounds, LevelProbability,
    NumberCriteria, NumberMass, OptionValue, PredicateBounds, PromptCacheOptions, ScoreBounds, TextOrList,
    ValueBounds, ValueProbability,
};
use ntl_core::numbers::Interval;
use ntl_text::chat::json_line;
use serde_json::Value;

use super::figures::{best, choice_confidence, ends, expected_index, score_confidence};
use super::number::NumberQuestion;
use super::{
    AnswerOption, Decision, DecisionTokens, Figures, OPTIONS_MAX, OptionFigures, Question, QuestionKind,
    Reading, ReadingFields, check_count, check_writes,
};
use crate::apis::engine_tokens;
use crate::error::{AppError, check, required};
use crate::request::{EngineWork, ModelProfile};

/// Maximum number of levels, as at OpenAI.
const LEVELS_MAX: usize = 10;

const JSON_LEVELS_MAX: usize = 32;
const JSON_VALUES_MAX: usize = 10_000;
const JSON_BYTES_MAX: usize = 256 << 10;

const ROLES: [&str; 4] = ["user", "assistant", "developer", "system"];

/// Joins the parts of a message.
const PART_SEPARATOR: &str = "\n";

/// Joins the messages of a conversation.
const MESSAGE_SEPARATOR: &str = "\n\n";

/// The parts of questions that only the response needs.
#[derive(Debug)]
pub(crate) struct OpenAiForms(Vec<OpenAiForm>);

#[derive(Debug)]
struct OpenAiForm {
    name: Option<String>,
    values: OpenAiOptions,
}

#[derive(Debug)]
enum OpenAiOptions {
    /// Of a predicate or a number.
    None,
    Choice(Vec<OptionValue>),
    Levels(Vec<String>),
}

/// Validates a request.
pub(crate) fn decision(
    request: DecisionsRequest,
    profile: &ModelProfile,
) -> Result<(Decision, OpenAiForms), AppError> {
    check_cache_options(request.prompt_cache_options.as_ref())?;
    let fields = ReadingFields {
        read: request.x_read,
        orders: request.x_orders,
        coverage: request.x_coverage,
        tolerance: request.x_tolerance,
        samples: request.x_samples,
    };
    let reading = Reading::DEFAULT.with("", fields, profile)?;
    let state = match request.input {
        None => return Err(AppError::field("input", "is missing")),
        Some(TextOrList::Text(text)) => text,
        Some(TextOrList::List(items)) => conversation(items)?,
    };
    let given = required("questions", request.questions)?;
    check_count("questions", given.len())?;
    let mut questions = Vec::with_capacity(given.len());
    let mut forms = Vec::with_capacity(given.len());
    for (index, own) in given.into_iter().enumerate() {
        let (question, form) = question(format!("questions[{index}]"), own, reading, profile)?;
        questions.push(question);
        forms.push(form);
    }
    let is_dry_run = request.x_dry_run.unwrap_or(false);
    let decision = Decision::new("questions", state, questions, is_dry_run, profile)?;
    Ok((decision, OpenAiForms(forms)))
}

fn check_cache_options(options: Option<&PromptCacheOptions>) -> Result<(), AppError> {
    let Some(PromptCacheOptions { mode, ttl }) = options else { return Ok(()) };
    let is_mode = mode.as_deref().is_none_or(|mode| ["implicit", "explicit"].contains(&mode));
    check("prompt_cache_options.mode", is_mode, "must be `implicit` or `explicit`")?;
    check("prompt_cache_options.ttl", ttl.as_deref().is_none_or(|ttl| ttl == "30m"), "must be `30m`")
}

/// A conversation as one text. Messages of the user alone are the text itself; otherwise each begins with its
/// speaker.
fn conversation(items: Vec<DecisionItem>) -> Result<String, AppError> {
    check("input", !items.is_empty(), "must not be an empty list")?;
    let calls: HashSet<String> =
        items.iter().filter(|item| is_call(item)).filter_map(|i| i.call_id.clone()).collect();
    let mut entries = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        entries.push(entry(&format!("input[{index}]."), item, &calls)?);
    }
    let is_user_alone = entries.iter().all(|(speaker, _)| speaker == "User");
    let mut texts = Vec::with_capacity(entries.len());
    for (speaker, text) in entries {
        texts.push(if is_user_alone { text } else { format!("{speaker}: {text}") });
    }
    Ok(texts.join(MESSAGE_SEPARATOR))
}

fn is_call(item: &DecisionItem) -> bool {
    matches!(item.kind.as_deref(), Some("function_call" | "custom_tool_call"))
}

/// Returns the speaker and the text of an item.
fn entry(path: &str, item: DecisionItem, calls: &HashSet<String>) -> Result<(String, String), AppError> {
    let param = |name: &str| format!("{path}{name}");
    match item.kind.as_deref().unwrap_or("message") {
        "message" => {
            let role = required(&param("role"), item.role)?;
            let roles = format!("must be one of {}", ROLES.join(", "));
            check(&param("role"), ROLES.contains(&role.as_str()), roles)?;
            let content = required(&param("content"), item.content)?;
            let speaker = match role.as_str() {
                "user" => "User",
                "assistant" => "Assistant",
                "developer" => "Developer",
                _ => "System",
            };
            Ok((speaker.to_owned(), text(&param("content"), content)?))
        }
        "function_call" | "custom_tool_call" => {
            required(&param("call_id"), item.call_id)?;
            let name = required(&param("name"), item.name)?;
            let is_function = item.kind.as_deref() == Some("function_call");
            let input = if is_function {
                required(&param("arguments"), item.arguments)?
            } else {
                required(&param("input"), item.input)?
            };
            Ok((format!("Call of {name}"), input))
        }
        "function_call_output" | "custom_tool_call_output" => {
            let id = required(&param("call_id"), item.call_id)?;
            check(&param("call_id"), calls.contains(&id), "is not the `call_id` of a call in `input`")?;
            let output = required(&param("output"), item.output)?;
            Ok(("Output".to_owned(), text(&param("output"), output)?))
        }
        kind => {
            let message = format!(
                "is `{kind}`; it must be `message`, `function_call`, `function_call_output`, `custom_tool_call` or \
                 `custom_tool_call_output`"
            );
            Err(AppError::field(&param("type"), message))
        }
    }
}

fn text(path: &str, content: TextOrList<DecisionPart>) -> Result<String, AppError> {
    let parts = match content {
        TextOrList::Text(text) => return Ok(text),
        TextOrList::List(parts) => parts,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        texts.push(part_text(&format!("{path}[{index}]"), part)?);
    }
    Ok(texts.join(PART_SEPARATOR))
}

fn part_text(path: &str, part: DecisionPart) -> Result<String, AppError> {
    match required(&format!("{path}.type"), part.kind)?.as_str() {
        "input_text" | "output_text" => required(&format!("{path}.text"), part.text),
        "refusal" => required(&format!("{path}.refusal"), part.refusal),
        "input_json" => {
            let data_path = format!("{path}.data");
            json_text(&data_path, &required(&data_path, part.data)?)
        }
        kind => {
            let message = format!(
                "is `{kind}`: this server reads `input_text`, `output_text`, `refusal` and `input_json`"
            );
            Err(AppError::field(&format!("{path}.type"), message))
        }
    }
}

fn json_text(param: &str, data: &Value) -> Result<String, AppError> {
    let fits = match data {
        Value::Object(_) => true,
        Value::Array(list) => list.iter().all(Value::is_object),
        _ => false,
    };
    check(param, fits, "must be an object or a list of objects")?;
    let mut levels = 0;
    let mut values = 0;
    let mut level = vec![data];
    while !level.is_empty() {
        levels += 1;
        values += level.len();
        check(param, levels <= JSON_LEVELS_MAX, format!("has more than {JSON_LEVELS_MAX} levels"))?;
        check(param, values <= JSON_VALUES_MAX, format!("has more than {JSON_VALUES_MAX} values"))?;
        level = level.into_iter().flat_map(children).collect();
    }
    let text = json_line(data);
    check(param, text.len() <= JSON_BYTES_MAX, format!("has more than {JSON_BYTES_MAX} bytes"))?;
    Ok(text)
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

fn question(
    param: String,
    question: DecisionQuestion,
    reading: Reading,
    profile: &ModelProfile,
) -> Result<(Question, OpenAiForm), AppError> {
    let path = format!("{param}.");
    let field = |name: &str| format!("{path}{name}");
    let kind = required(&field("type"), question.kind.clone())?;
    check_fields(&path, &kind, &question)?;
    let fields = ReadingFields {
        read: question.x_read,
        orders: question.x_orders,
        coverage: question.x_coverage,
        tolerance: question.x_tolerance,
        samples: question.x_samples,
    };
    let reading = reading.with(&path, fields, profile)?;
    let instructions = required(&field("instructions"), question.instructions)?;
    let instructions = text(&field("instructions"), instructions)?;
    let mut options_param = param.clone();
    let (kind, values) = match kind.as_str() {
        "predicate" => (QuestionKind::yes_or_no([None, None]), OpenAiOptions::None),
        "choice" => {
            options_param = field("choices");
            let choices = question.choices.unwrap_or_default();
            check_options(&options_param, choices.len(), OPTIONS_MAX)?;
            choice(&options_param, choices)?
        }
        "score" => {
            options_param = field("levels");
            let levels = question.levels.unwrap_or_default();
            check_options(&options_param, levels.len(), LEVELS_MAX)?;
            score(levels)
        }
        _ => {
            let criteria = NumberCriteria {
                minimum: question.minimum,
                maximum: question.maximum,
                step: question.step,
                unit: question.unit,
                objective: question.objective,
            };
            let number = NumberQuestion::new(&path, criteria, reading, profile)?;
            (QuestionKind::Number(Box::new(number)), OpenAiOptions::None)
        }
    };
    check_writes(&kind, profile)?;
    let form = OpenAiForm { name: question.name, values };
    Ok((Question::new(param, options_param, instructions, kind, reading), form))
}

/// Rejects an unknown type, and fields of other types.
fn check_fields(path: &str, kind: &str, question: &DecisionQuestion) -> Result<(), AppError> {
    let kinds = ["predicate", "choice", "score", "number"];
    let message = format!("is `{kind}`; it must be one of {}", kinds.join(", "));
    check(&format!("{path}type"), kinds.contains(&kind), message)?;
    for (name, of, is_set) in [
        ("choices", "choice", question.choices.is_some()),
        ("levels", "score", question.levels.is_some()),
        ("minimum", "number", question.minimum.is_some()),
        ("maximum", "number", question.maximum.is_some()),
        ("step", "number", question.step.is_some()),
        ("unit", "number", question.unit.is_some()),
        ("objective", "number", question.objective.is_some()),
    ] {
        check(&format!("{path}{name}"), !is_set || kind == of, format!("is for the type `{of}` only"))?;
    }
    Ok(())
}

fn check_options(param: &str, count: usize, max: usize) -> Result<(), AppError> {
    check(param, (2..=max).contains(&count), format!("must be a list of 2 to {max} options, not {count}"))
}

/// The options of a choice. A value is written as JSON if it could be confused with another one: booleans
/// next to their texts, and texts that begin or end with spaces or have control characters.
fn choice(param: &str, choices: Vec<DecisionChoice>) -> Result<(QuestionKind, OpenAiOptions), AppError> {
    let mut values = HashSet::new();
    for (index, choice) in choices.iter().enumerate() {
        let is_new = values.insert(&choice.value);
        check(&format!("{param}[{index}].value"), is_new, "is the value of an earlier option, too")?;
    }
    let all_as_json = [true, false].into_iter().any(|flag| {
        values.contains(&OptionValue::Flag(flag)) && values.contains(&OptionValue::Text(flag.to_string()))
    });
    let mut options = Vec::with_capacity(choices.len());
    let mut values = Vec::with_capacity(choices.len());
    for DecisionChoice { value, description } in choices {
        let text = match &value {
            OptionValue::Flag(flag) => flag.to_string(),
            OptionValue::Text(text) if all_as_json => Value::from(text.as_str()).to_string(),
            OptionValue::Text(text) => super::option_text(text),
        };
        options.push(AnswerOption { text, description });
        values.push(value);
    }
    Ok((QuestionKind::Choice(options), OpenAiOptions::Choice(values)))
}

fn score(levels: Vec<DecisionLevel>) -> (QuestionKind, OpenAiOptions) {
    let mut options = Vec::with_capacity(levels.len());
    let mut labels = Vec::with_capacity(levels.len());
    for DecisionLevel { label, description } in levels {
        options.push(AnswerOption { text: super::option_text(&label), description });
        labels.push(label);
    }
    (QuestionKind::Score(options), OpenAiOptions::Levels(labels))
}

impl OpenAiForms {
    /// The response with these answers.
    pub(crate) fn response(
        self,
        model: String,
        decision: &Decision,
        figures: &[Figures],
        tokens: DecisionTokens,
    ) -> DecisionsResponse {
        let mut answers = Vec::with_capacity(self.0.len());
        for ((form, question), figures) in self.0.into_iter().zip(&decision.questions).zip(figures) {
            answers.push(form.answer(question, figures));
        }
        DecisionsResponse { model, answers, usage: usage(tokens) }
    }
}

impl OpenAiForm {
    fn answer(self, question: &Question, figures: &Figures) -> DecisionAnswer {
        let x_mass = figures.shown_mass();
        let name = self.name;
        let figures = match figures {
            Figures::Number(shown) => {
                return DecisionAnswer::Number {
                    name,
                    number: shown.number.value,
                    unit: shown.unit.clone(),
                    x_interval: shown.number.interval.clone(),
                    distribution: Box::new(shown.number.clone()),
                    x_mass,
                };
            }
            Figures::Options(figures) => figures,
        };
        let Some(probabilities) = &figures.probabilities else {
            return DecisionAnswer::Refusal { name, x_mass };
        };
        match self.values {
            OpenAiOptions::None => DecisionAnswer::Predicate {
                name,
                probability: probabilities[0],
                x_mass,
                x_bounds: PredicateBounds { probability: ends(figures.bounds[0]) },
                x_set: question.set(figures, &[OptionValue::Flag(true), OptionValue::Flag(false)]),
            },
            OpenAiOptions::Choice(values) => DecisionAnswer::Choice {
                name,
                choice: values[best(probabilities)].clone(),
                probabilities: probabilities_of_values(&values, probabilities),
                confidence: choice_confidence(probabilities),
                x_mass,
                x_bounds: ChoiceBounds { probabilities: bounds_of_values(&values, &figures.bounds) },
                x_set: question.set(figures, &values),
                x_note: figures.note(),
            },
            OpenAiOptions::Levels(labels) => {
                score_answer(name, &labels, probabilities, question, figures, x_mass)
            }
        }
    }
}

fn usage(tokens: DecisionTokens) -> DecisionsUsage {
    let mut usage = DecisionsUsage::of_input(tokens.input);
    if let Some(engine) = tokens.engine.and_then(EngineWork::of_samples) {
        usage.input_tokens_details.cached_tokens = engine.cached_tokens;
        usage.output_tokens = engine.completion_tokens;
        usage.output_tokens_details.reasoning_tokens = engine.reasoning_tokens;
        usage.total_tokens = tokens.input.saturating_add(engine.completion_tokens);
    }
    usage.x_engine = tokens.engine.map(engine_tokens);
    usage
}

fn score_answer(
    name: Option<String>,
    labels: &[String],
    probabilities: &[f64],
    question: &Question,
    figures: &OptionFigures,
    x_mass: NumberMass,
) -> DecisionAnswer {
    DecisionAnswer::Score {
        name,
        score: expected_index(probabilities),
        probabilities: probabilities_of_levels(labels, probabilities),
        confidence: score_confidence(probabilities),
        x_mass,
        x_bounds: ScoreBounds {
            score: ends(figures.score),
            probabilities: bounds_of_levels(labels, &figures.bounds),
        },
        x_interval: question.interval(figures),
        x_note: figures.note(),
    }
}

fn probabilities_of_values(values: &[OptionValue], probabilities: &[f64]) -> Vec<ValueProbability> {
    let pairs = values.iter().cloned().zip(probabilities);
    pairs.map(|(value, &probability)| ValueProbability { value, probability }).collect()
}

fn bounds_of_values(values: &[OptionValue], bounds: &[Interval]) -> Vec<ValueBounds> {
    let pairs = values.iter().cloned().zip(bounds);
    pairs.map(|(value, &bounds)| ValueBounds { value, probability: ends(bounds) }).collect()
}

fn probabilities_of_levels(labels: &[String], probabilities: &[f64]) -> Vec<LevelProbability> {
    let mut levels = Vec::with_capacity(labels.len());
    for ((value, label), &probability) in (0..).zip(labels).zip(probabilities) {
        levels.push(LevelProbability { value, label: label.clone(), probability });
    }
    levels
}

fn bounds_of_levels(labels: &[String], bounds: &[Interval]) -> Vec<LevelBounds> {
    let mut levels = Vec::with_capacity(labels.len());
    for ((value, label), &bounds) in (0..).zip(labels).zip(bounds) {
        levels.push(LevelBounds { value, label: label.clone(), probability: ends(bounds) });
    }
    levels
}
