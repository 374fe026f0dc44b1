//! The sample log: one line per item, in the words of lm-eval's, with more columns behind.

use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::metrics::{Estimates, Outcome};
use crate::run::answer_extraction::LmEvalFilter;
use crate::run::request::RequestTemplate;
use crate::run::score::Record;

/// One line of `samples.jsonl`.
#[derive(Debug, Serialize)]
pub struct Sample<'a> {
    doc_id: usize,
    doc: Doc<'a>,
    target: &'a str,
    /// What was sent: the prompt, and how it was to be continued.
    arguments: Value,
    /// One list of texts per request; empty where the request failed.
    resps: Vec<[&'a str; 1]>,
    /// What exactness is judged by.
    filtered_resps: Vec<&'a str>,
    /// The rule that found it.
    filter: &'static str,
    /// Which of the fields below are metrics of this item.
    metrics: Vec<&'static str>,
    doc_hash: String,
    prompt_hash: String,
    target_hash: String,
    truth: Option<f64>,
    accuracy: u8,
    absolute_error: Option<f64>,
    /// Every estimate.
    prediction: Option<Estimates>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flexible: Option<u8>,
    /// What lm-eval's two rules read.
    #[serde(skip_serializing_if = "Option::is_none")]
    readings: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exact: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    f1: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mass_closed: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantiles: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    perplexity: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    losses: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Doc<'a> {
    question: &'a str,
    answer: &'a str,
}

/// The lines of one suite.
pub fn samples<'a>(
    template: &RequestTemplate,
    records: &'a [Record<'a>],
) -> impl Iterator<Item = Sample<'a>> {
    let settings = Value::Object(template.settings());
    records.iter().enumerate().map(move |(doc_id, record)| sample(doc_id, record, &settings))
}

fn sample<'a>(doc_id: usize, record: &'a Record<'_>, settings: &Value) -> Sample<'a> {
    let Record { reply, row, .. } = record;
    let item = reply.item;
    let prediction = match row.outcome {
        Outcome::Read(numbers) if row.truth.is_some() => Some(numbers),
        _ => None,
    };
    let (answer, error) = match &reply.answer {
        Ok(answer) => (Some(answer), None),
        Err(error) => (None, Some(error.as_str())),
    };
    let number = answer.and_then(|answer| answer.number.as_ref());
    let doc = Doc { question: &item.question, answer: &item.answer };
    let share = |which: usize| row.lm_eval_matches.map(|read| u8::from(read[which]));
    let names = LmEvalFilter::ALL.map(LmEvalFilter::name);
    let likelihood = row.likelihood.as_ref().filter(|likelihood| !likelihood.logprobs.is_empty());
    Sample {
        doc_id,
        target: &item.answer,
        arguments: json!({ "gen_args_0": { "arg_0": item.prompt(), "arg_1": settings } }),
        resps: answer.iter().map(|answer| [answer.text.as_str()]).collect(),
        filtered_resps: record.filtered.iter().map(String::as_str).collect(),
        filter: if row.truth.is_some() { "last-number" } else { "none" },
        metrics: metrics(record),
        doc_hash: hash(&serde_json::to_string_pretty(&doc).unwrap_or_default()),
        prompt_hash: hash(item.prompt()),
        target_hash: hash(&item.answer),
        doc,
        truth: row.truth,
        accuracy: u8::from(row.correct),
        absolute_error: prediction.zip(row.truth).map(|(numbers, truth)| (numbers.median - truth).abs()),
        prediction,
        strict: share(0),
        flexible: share(1),
        readings: record.lm_eval_texts.as_ref().map(|texts| {
            names.iter().zip(texts).map(|(name, text)| ((*name).to_owned(), json!(text))).collect()
        }),
        exact: row.text_scores.as_ref().map(|text_scores| u8::from(text_scores.exact)),
        f1: row.text_scores.as_ref().map(|text_scores| text_scores.f1),
        module: item.module.as_deref(),
        mass_closed: number.map(|number| number.mass_closed),
        quantiles: number.map(|number| {
            number.quantiles.iter().map(|(q, value)| json!({ "q": q, "value": value })).collect()
        }),
        crps: row.spread.as_ref().and_then(|spread| spread.crps),
        perplexity: likelihood.map(|likelihood| {
            (-likelihood.logprobs.iter().sum::<f64>() / likelihood.logprobs.len() as f64).exp()
        }),
        losses: likelihood.map(|likelihood| {
            likelihood.losses.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
        }),
        error,
    }
}

fn metrics(record: &Record<'_>) -> Vec<&'static str> {
    let mut names = vec!["accuracy", "absolute_error"];
    if record.row.lm_eval_matches.is_some() {
        names.extend(["strict", "flexible"]);
    }
    if record.row.text_scores.is_some() {
        names.extend(["exact", "f1"]);
    }
    names
}

/// As lm-eval hashes texts; documents in its way of writing JSON.
fn hash(text: &str) -> String {
    format!("{:x}", Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::{Api, Mode};
    use crate::data::Item;
    use crate::run::reply::{Answer, PredictedNumber, Reply};
    use crate::run::score::{mass_closed, score};
    use crate::tasks::Traits;

    fn item(question: &str, truth: f64) -> Item {
        Item {
            question: question.to_owned(),
            answer: truth.to_string(),
            truth: Some(truth),
            ..Item::default()
        }
    }

    fn reply(item: &Item, answer: Result<Answer, String>) -> Reply<'_> {
        Reply { item, answer, label: None, target_score: None }
    }

    fn records<const N: usize>(replies: [Reply<'_>; N], mode: Mode) -> [Record<'_>; N] {
        replies.map(|reply| score(&Traits::default(), mode, reply))
    }

    fn lines(records: &[Record<'_>], mode: Mode) -> Vec<Value> {
        let template = RequestTemplate {
            mode,
            api: Api::Completions,
            model: "tiny".to_owned(),
            max_tokens: 8,
            stop: &[],
            after: None,
            return_token_ids: false,
            beams: 4,
        };
        samples(&template, records).map(|sample| serde_json::to_value(sample).unwrap()).collect()
    }

    #[test]
    fn a_sample_holds_what_was_asked_what_came_back_and_how_good_it_was() {
        let items = [item("1 + 1", 2.0), item("2 + 2", 4.0), item("3 + 3", 6.0)];
        let numbers = PredictedNumber {
            estimates: Some([2.5, 3.0, 2.0]),
            mass_closed: 0.9,
            quantiles: vec![(0.5, Some(3.0))],
            support: vec![(2.0, 0.9)],
        };
        let text = |text: &str| Answer { text: text.to_owned(), ..Answer::default() };
        let replies = [
            reply(&items[0], Ok(Answer { number: Some(numbers), ..text("2.5") })),
            reply(&items[1], Ok(Answer { number: Some(PredictedNumber::default()), ..text("none") })),
            reply(&items[2], Err("endpoint is gone".to_owned())),
        ];
        let records = records(replies, Mode::Regress);
        insta::assert_json_snapshot!("samples", lines(&records, Mode::Regress));
        assert_eq!(mass_closed(&records), Some(0.45));
        assert_eq!(mass_closed(&[]), None);
    }

    /// From Python: `hash_string(json.dumps(doc, indent=2, ensure_ascii=False))` of lm-eval 0.4.13.
    #[test]
    fn hashes_are_those_of_lm_eval() {
        let item = Item {
            question: "Janet\u{2019}s \"q\"\n".to_owned(),
            answer: "#### 18".to_owned(),
            ..Item::default()
        };
        let line = &lines(&records([reply(&item, Err(String::new()))], Mode::Text), Mode::Text)[0];
        assert_eq!(line["target_hash"], "3de129cc9ebd1585c1d06bde04b5a78a0d953e1e7ba81cfc62aa57f2a960d590");
        assert_eq!(line["doc_hash"], "225d8ee121a3ce1936404e720289af44da27eed372fbe58d581cdd61b9319cbb");
    }
}
