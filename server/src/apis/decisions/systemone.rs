//! The API of TypeSafe, System One: `POST /v1/systemone`.

use std::fmt::Write;

use ntl_api::{
    InOrder, NamedBounds, NoulBounds, NumberCriteria, OptionValue, SystemOneAnswer, SystemOneQuestion,
    SystemOneRequest, SystemOneResponse, SystemOneUsage,
};
use ntl_text::chat::json_line;
use serde_json::Value;

use super::figures::{best, choice_confidence, ends, expected_index, score_confidence};
use super::number::NumberQuestion;
use super::{
    AnswerOption, Decision, DecisionTokens, Figures, OPTIONS_MAX, Question, QuestionKind, Reading,
    ReadingFields, check_count, check_writes, option_text,
};
use crate::apis::engine_tokens;
use crate::error::{AppError, check, required};
use crate::request::{EngineWork, ModelProfile};

/// The parts of questions that only the response needs.
#[derive(Debug)]
pub(crate) struct SystemOneForms(Vec<SystemOneForm>);

#[derive(Debug)]
struct SystemOneForm {
    id: String,
    values: SystemOneOptions,
}

#[derive(Debug)]
enum SystemOneOptions {
    /// Of a noul or a number.
    None,
    Names(Vec<String>),
    Levels(Vec<Value>),
}

/// Validates a request.
pub(crate) fn decision(
    request: SystemOneRequest,
    profile: &ModelProfile,
) -> Result<(Decision, SystemOneForms), AppError> {
    let has_assets =
        request.assets.is_some_and(|assets| assets.as_object().is_none_or(|all| !all.is_empty()));
    check("assets", !has_assets, "has images: this server reads texts only")?;
    let fields = ReadingFields {
        read: request.x_read,
        orders: request.x_orders,
        coverage: request.x_coverage,
        tolerance: request.x_tolerance,
        samples: request.x_samples,
    };
    let reading = Reading::DEFAULT.with("", fields, profile)?;
    let state = required("state", request.state)?;
    let state = free_text("state", &state)?;
    let InOrder(given) = required("questions", request.questions)?;
    check_count("questions", given.len())?;
    let mut questions = Vec::with_capacity(given.len());
    let mut forms: Vec<SystemOneForm> = Vec::with_capacity(given.len());
    let mut ids = std::collections::HashSet::new();
    for (id, own) in given {
        check("questions", !id.is_empty(), "has a question with an empty id")?;
        let param = step("questions", &id);
        check(&param, ids.insert(id.clone()), "is there twice")?;
        let (question, values) = question(param, own, reading, profile)?;
        questions.push(question);
        forms.push(SystemOneForm { id, values });
    }
    let is_dry_run = request.x_dry_run.unwrap_or(false);
    let decision = Decision::new("questions", state, questions, is_dry_run, profile)?;
    Ok((decision, SystemOneForms(forms)))
}

/// The path of a field in an object: `object.name`, or `object["any name"]`.
fn step(path: &str, name: &str) -> String {
    let is_plain = name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_' || one == '-');
    let mut path = path.to_owned();
    if !name.is_empty() && is_plain {
        path.push('.');
        path.push_str(name);
    } else {
        // Writing to a string cannot fail.
        let _ = write!(path, "[{}]", Value::from(name));
    }
    path
}

/// A text, or the JSON of an object or a list.
fn free_text(param: &str, value: &Value) -> Result<String, AppError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Object(_) | Value::Array(_) => Ok(json_line(value)),
        _ => Err(AppError::field(param, "must be a string, an object or a list")),
    }
}

/// The same, or `None` for null and for nothing.
fn optional_text(param: &str, value: Option<&Value>) -> Result<Option<String>, AppError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(value) => free_text(param, value).map(Some),
    }
}

fn question(
    param: String,
    question: SystemOneQuestion,
    reading: Reading,
    profile: &ModelProfile,
) -> Result<(Question, SystemOneOptions), AppError> {
    let field = |name: &str| format!("{param}.{name}");
    let criteria_param = field("criteria");
    let kind = required(&field("type"), question.kind)?;
    let instructions = optional_text(&field("instructions"), question.instructions.as_ref())?;
    let criteria = question.criteria.unwrap_or(Value::Null);
    let (kind, values) = match kind.as_str() {
        "noul" => {
            let descriptions = noul(&criteria_param, &criteria)?;
            let is_described = descriptions.iter().any(Option::is_some);
            check(&field("instructions"), instructions.is_some() || is_described, "is missing")?;
            (QuestionKind::yes_or_no(descriptions), SystemOneOptions::None)
        }
        "choice" => choice(&criteria_param, criteria)?,
        "score" => score(&criteria_param, criteria)?,
        "number" => {
            check(&field("instructions"), instructions.is_some(), "is missing")?;
            let is_object = criteria.is_null() || criteria.is_object();
            check(&criteria_param, is_object, "must be an object or null")?;
            let criteria: Option<NumberCriteria> = serde_json::from_value(criteria).map_err(|error| {
                AppError::invalid(&criteria_param, format!("`{criteria_param}`: {error}"))
            })?;
            let path = format!("{criteria_param}.");
            let number = NumberQuestion::new(&path, criteria.unwrap_or_default(), reading, profile)?;
            (QuestionKind::Number(Box::new(number)), SystemOneOptions::None)
        }
        "box" => {
            let message = "is `box`, which finds a box in an image: this server reads texts only";
            return Err(AppError::field(&field("type"), message));
        }
        kind => {
            let message = format!("is `{kind}`; it must be one of noul, choice, score, number");
            return Err(AppError::field(&field("type"), message));
        }
    };
    check_writes(&kind, profile)?;
    let instructions = instructions.unwrap_or_default();
    Ok((Question::new(param, criteria_param, instructions, kind, reading), values))
}

/// The descriptions of true and false.
fn noul(param: &str, criteria: &Value) -> Result<[Option<String>; 2], AppError> {
    let fields = match criteria {
        Value::Null => return Ok([None, None]),
        Value::Object(fields) => fields,
        _ => return Err(AppError::field(param, "must be an object with `true` and `false`, or null")),
    };
    for name in fields.keys() {
        check(&step(param, name), ["true", "false"].contains(&name.as_str()), "must be `true` or `false`")?;
    }
    let yes = optional_text(&step(param, "true"), fields.get("true"))?;
    let no = optional_text(&step(param, "false"), fields.get("false"))?;
    Ok([yes, no])
}

fn choice(param: &str, criteria: Value) -> Result<(QuestionKind, SystemOneOptions), AppError> {
    let Value::Object(fields) = criteria else {
        return Err(AppError::field(param, "must be an object of options with their descriptions"));
    };
    check_options(param, fields.len())?;
    let mut options = Vec::with_capacity(fields.len());
    let mut names = Vec::with_capacity(fields.len());
    for (name, description) in fields {
        let description = optional_text(&step(param, &name), Some(&description))?;
        options.push(AnswerOption { text: option_text(&name), description });
        names.push(name);
    }
    Ok((QuestionKind::Choice(options), SystemOneOptions::Names(names)))
}

fn score(param: &str, criteria: Value) -> Result<(QuestionKind, SystemOneOptions), AppError> {
    let Value::Array(levels) = criteria else {
        return Err(AppError::field(param, "must be a list of levels, the lowest one first"));
    };
    check_options(param, levels.len())?;
    let mut options = Vec::with_capacity(levels.len());
    for (index, level) in levels.iter().enumerate() {
        let text = free_text(&format!("{param}[{index}]"), level)?;
        options.push(AnswerOption { text: option_text(&text), description: None });
    }
    Ok((QuestionKind::Score(options), SystemOneOptions::Levels(levels)))
}

fn check_options(param: &str, count: usize) -> Result<(), AppError> {
    check(
        param,
        (1..=OPTIONS_MAX).contains(&count),
        format!("must have 1 to {OPTIONS_MAX} options, not {count}"),
    )
}

impl SystemOneForms {
    /// The response with these answers.
    pub(crate) fn response(
        self,
        model: String,
        decision: &Decision,
        figures: &[Figures],
        tokens: DecisionTokens,
    ) -> SystemOneResponse {
        let mut answers = Vec::with_capacity(self.0.len());
        for ((form, question), figures) in self.0.into_iter().zip(&decision.questions).zip(figures) {
            answers.push((form.id, answer(form.values, question, figures)));
        }
        let answers = InOrder(answers);
        let DecisionTokens { input: input_tokens, engine } = tokens;
        let usage = SystemOneUsage {
            input_tokens,
            output_tokens: engine.and_then(EngineWork::of_samples).map_or(0, |usage| usage.completion_tokens),
            x_engine: engine.map(engine_tokens),
        };
        SystemOneResponse { model, answers, usage }
    }
}

/// An answer. A question that the model does not answer has equal probabilities and no closed mass.
fn answer(values: SystemOneOptions, question: &Question, figures: &Figures) -> SystemOneAnswer {
    let x_mass = figures.shown_mass();
    let figures = match figures {
        Figures::Number(shown) => {
            return SystemOneAnswer::Number {
                number: shown.number.value,
                unit: shown.unit.clone(),
                x_interval: shown.number.interval.clone(),
                distribution: Box::new(shown.number.clone()),
                x_mass,
            };
        }
        Figures::Options(figures) => figures,
    };
    let probabilities = figures.or_uniform();
    match values {
        SystemOneOptions::None => SystemOneAnswer::Noul {
            noul: probabilities[0],
            x_mass,
            x_bounds: NoulBounds { noul: ends(figures.bounds[0]) },
            x_set: question.set(figures, &[OptionValue::Flag(true), OptionValue::Flag(false)]),
        },
        SystemOneOptions::Names(names) => {
            let values: Vec<OptionValue> = names.iter().cloned().map(OptionValue::Text).collect();
            SystemOneAnswer::Choice {
                choice: names[best(&probabilities)].clone(),
                confidence: choice_confidence(&probabilities),
                x_mass,
                x_bounds: NamedBounds {
                    score: None,
                    probabilities: names
                        .iter()
                        .cloned()
                        .zip(figures.bounds.iter().copied().map(ends))
                        .collect(),
                },
                x_set: question.set(figures, &values),
                x_note: figures.note(),
                probabilities: names.into_iter().zip(probabilities).collect(),
            }
        }
        SystemOneOptions::Levels(levels) => {
            let index = || (0..levels.len()).map(|index| index.to_string());
            SystemOneAnswer::Score {
                score: expected_index(&probabilities),
                confidence: score_confidence(&probabilities),
                x_mass,
                x_bounds: NamedBounds {
                    score: Some(ends(figures.score)),
                    probabilities: index().zip(figures.bounds.iter().copied().map(ends)).collect(),
                },
                x_interval: question.interval(figures),
                x_note: figures.note(),
                probabilities: index().zip(probabilities).collect(),
                legend: index().zip(levels.iter().cloned()).collect(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_any_field() {
        assert_eq!(step("questions", "q-1"), "questions.q-1");
        assert_eq!(step("questions", "a b.\u{7}"), r#"questions["a b.\u0007"]"#);
    }
}
