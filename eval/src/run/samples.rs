//! Converts records to the lines of `samples.jsonl`.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::data::decisions::Question;
use crate::metrics::Outcome;
use crate::metrics::decision::{Changes, DecisionScores};
use crate::metrics::judgement::Judgement;
use crate::metrics::law::LawScores;
use crate::run::answer_extraction::{LmEvalFilter, rule_name};
use crate::run::decisions::Decision;
use crate::run::reply::{Answer, Reply};
use crate::run::request::RequestTemplate;
use crate::run::score::ScoredReply;
use crate::settings::mode::NumberRule;
use crate::store::sample::{Doc, Sample};

/// The columns of [`LawScores`], by the names of their metrics.
const LAW_COLUMNS: [&str; 5] = ["crps_excess", "kl", "total_variation", "true_coverage", "sharpness"];

/// Returns the lines of one suite. `rule`: which number of a text was read.
pub fn samples(
    template: &RequestTemplate,
    rule: NumberRule,
    records: &[ScoredReply<'_>],
) -> impl Iterator<Item = Sample> {
    let settings = Value::Object(template.settings());
    records.iter().zip(0..).map(move |(record, doc_id)| sample(doc_id, record, rule, &settings))
}

fn sample(doc_id: u64, record: &ScoredReply<'_>, rule: NumberRule, settings: &Value) -> Sample {
    let ScoredReply { reply, row, .. } = record;
    let item = reply.item;
    let prediction = match row.outcome {
        Outcome::Read(estimates) if row.asks_number() => Some(estimates),
        _ => None,
    };
    let doc = Doc { question: item.question.clone(), input: item.input.clone(), answer: json!(item.answer) };
    let mut metrics = vec!["accuracy", "absolute_error"];
    if row.lm_eval_matches.is_some() {
        metrics.extend(["strict", "flexible"]);
    }
    if row.text_scores.is_some() {
        metrics.extend(["exact", "f1"]);
    }
    if row.digits.is_some() {
        metrics.extend(["exact_digits", "digit_match", "length_difference"]);
    }
    if row.law.is_some() {
        metrics.extend(LAW_COLUMNS);
    }
    if let Some(judgement) = &row.judgement {
        metrics.extend(["score", "mode_score", "spread", "mass_closed"]);
        if judgement.orders().is_some() {
            metrics.extend(["consistent", "order_difference", "order_distance", "wins"]);
        }
    }
    let decided = match (&item.decision, &row.decision) {
        (Some(question), Some(scores)) => decision_columns(question, scores, reply),
        _ => Map::new(),
    };
    metrics.extend(DECISION_SCORES.into_iter().filter(|name| decided.contains_key(*name)));
    Sample {
        doc_id,
        target: json!(item.answer),
        arguments: json!({ "gen_args_0": { "arg_0": item.prompt(), "arg_1": settings } }),
        resps: reply.text().iter().map(|text| vec![(*text).to_owned()]).collect(),
        filtered_resps: record.filtered.iter().map(|text| json!(text)).collect(),
        filter: match item.form {
            None if !row.asks_number() || row.decision.is_some() => "none",
            form => rule_name(rule, form),
        }
        .to_owned(),
        metrics: metrics.into_iter().map(str::to_owned).collect(),
        doc_hash: hash(&pretty(&doc)),
        prompt_hash: hash(item.prompt()),
        target_hash: hash(&item.answer),
        doc,
        truth: row.truth,
        accuracy: row.has_right_answer().then(|| u8::from(row.correct).into()),
        absolute_error: prediction.zip(row.truth).map(|(read, truth)| (read.median - truth).abs()),
        prediction,
        more: more(record).into_iter().chain(decided).collect(),
        error: reply.answer.as_ref().err().cloned(),
    }
}

#[expect(clippy::expect_used, reason = "a struct with fields of JSON types serialises")]
fn pretty(doc: &Doc) -> String {
    serde_json::to_string_pretty(doc).expect("its fields are JSON types")
}

/// Returns the columns that only some items have.
fn more(record: &ScoredReply<'_>) -> Map<String, Value> {
    let ScoredReply { reply, row, .. } = record;
    let mut columns = Map::new();
    if let Some([strict, flexible]) = row.lm_eval_matches {
        add(&mut columns, "strict", json!(u8::from(strict)));
        add(&mut columns, "flexible", json!(u8::from(flexible)));
    }
    if let Some(texts) = &record.lm_eval_texts {
        let names = LmEvalFilter::ALL.map(LmEvalFilter::name);
        add(
            &mut columns,
            "readings",
            names.iter().zip(texts).map(|(name, text)| ((*name).to_owned(), json!(text))).collect(),
        );
    }
    if let Some(scores) = &row.text_scores {
        add(&mut columns, "exact", json!(u8::from(scores.exact)));
        add(&mut columns, "f1", json!(scores.f1));
    }
    if let Some(digits) = &row.digits {
        add(&mut columns, "exact_digits", json!(u8::from(digits.exact)));
        add(&mut columns, "digit_match", json!(digits.matched));
        add(&mut columns, "length_difference", json!(digits.length_difference));
    }
    if let Some(LawScores { crps_excess, kl, total_variation, coverage, width }) = row.law {
        let values = [crps_excess, kl, total_variation, coverage, width];
        for (name, value) in LAW_COLUMNS.into_iter().zip(values) {
            if let Some(value) = value {
                add(&mut columns, name, json!(value));
            }
        }
    }
    if let Some(judgement) = &row.judgement {
        columns.extend(judged(judgement));
    }
    if let Some(module) = &reply.item.module {
        add(&mut columns, "module", json!(module));
    }
    if let Some(number) = reply.number() {
        add(&mut columns, "mass_closed", json!(number.mass_closed));
        add(&mut columns, "mass_open", json!(number.mass_open));
        if let Some(mean) = number.plain_mean {
            add(&mut columns, "plain_mean", json!(mean));
        }
        if number.is_unbounded {
            add(&mut columns, "unbounded", json!(true));
        }
        if let Some(reason) = &number.reason {
            add(&mut columns, "number_reason", json!(reason));
        }
        add(
            &mut columns,
            "quantiles",
            number.quantiles.iter().map(|(q, value)| json!({ "q": q, "value": value })).collect(),
        );
        if !number.unbounded_quantiles.is_empty() {
            add(&mut columns, "unbounded_quantiles", json!(number.unbounded_quantiles));
        }
        if let Some(interval) = &number.interval {
            add(&mut columns, "interval", json!(interval));
        }
    }
    if let Some(scores) = &row.distribution {
        if let Some(crps) = scores.crps {
            add(&mut columns, "crps", json!(crps.value));
            add(&mut columns, "crps_bounds", json!([crps.low, crps.high]));
        }
        let log_score = scores.log_score.map(|score| score.value).filter(|value| value.is_finite());
        for (name, value) in [("log_score", log_score), ("winkler", scores.winkler)] {
            if let Some(value) = value {
                add(&mut columns, name, json!(value));
            }
        }
    }
    if let Some(likelihood) = &row.likelihood
        && !likelihood.logprobs.is_empty()
    {
        let mean = likelihood.logprobs.iter().sum::<f64>() / likelihood.logprobs.len() as f64;
        add(&mut columns, "perplexity", json!((-mean).exp()));
        let losses = likelihood.losses.iter().map(|(name, value)| (name.clone(), json!(value)));
        add(&mut columns, "losses", Value::Object(losses.collect()));
    }
    if let Some(reason) = reply.score_error() {
        add(&mut columns, "score_error", json!(reason));
    }
    columns
}

/// Returns the columns of a judgement. `score` is null if the judge gives none.
fn judged(judgement: &Judgement) -> Map<String, Value> {
    let mut columns = Map::from_iter([("score".to_owned(), Value::Null)]);
    if let Some(rating) = &judgement.rating {
        add(&mut columns, "score", json!(rating.score));
        add(&mut columns, "mode_score", json!(rating.mode));
        add(&mut columns, "spread", json!(rating.spread));
        add(&mut columns, "distribution", json!(rating.distribution));
    }
    if let Some(orders) = judgement.orders() {
        add(&mut columns, "orders", json!([orders.first, orders.swapped]));
        add(&mut columns, "consistent", json!(u8::from(orders.agree())));
        add(&mut columns, "order_difference", json!(orders.difference()));
        add(&mut columns, "order_distance", json!(orders.difference().abs()));
        add(&mut columns, "wins", json!(orders.win()));
        add(&mut columns, "verdict", json!(orders.preference()));
    }
    if let Some(preferred) = judgement.preferred {
        add(&mut columns, "preferred", json!(preferred));
    }
    columns
}

/// The columns of decisions that are scores, by the names of their metrics.
const DECISION_SCORES: [&str; 5] = ["brier", "log_loss", "order_change", "repeat_change", "batch_change"];

/// Returns the columns of a question for a decision model. `probabilities` and `expected_index` follow the
/// order of the options in the file; `false` is the first option of a predicate.
fn decision_columns(question: &Question, scores: &DecisionScores, reply: &Reply<'_>) -> Map<String, Value> {
    let mut columns = Map::from_iter([("question_type".to_owned(), json!(question.type_name()))]);
    if let Some(index) = question.expected_index() {
        add(&mut columns, "expected_index", json!(index));
    }
    if let Ok(Answer { decision: Some(Decision::Options(probabilities)), .. }) = &reply.answer {
        add(&mut columns, "probabilities", json!(probabilities));
    }
    if let Some(options) = scores.options {
        add(&mut columns, "brier", json!(options.brier));
        add(&mut columns, "log_loss", json!(options.log_loss));
        add(&mut columns, "confidence", json!(options.confidence));
    }
    let Changes { order, repeat, batch } = scores.changes;
    for (name, change) in [("order_change", order), ("repeat_change", repeat), ("batch_change", batch)] {
        if let Some(change) = change {
            add(&mut columns, name, json!(change));
        }
    }
    columns
}

fn add(columns: &mut Map<String, Value>, name: &str, value: Value) {
    columns.insert(name.to_owned(), value);
}

/// Hashes a text like lm-eval. Documents are hashed in lm-eval's JSON format.
pub fn hash(text: &str) -> String {
    format!("{:x}", Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Item;
    use crate::run::reply::PredictedNumber;
    use crate::run::score::{mass_closed, score};
    use crate::settings::decisions::DecisionSettings;
    use crate::settings::mode::{Api, Mode};
    use crate::settings::number::NumberSettings;
    use crate::tasks::Traits;

    fn item(question: &str, truth: f64) -> Item {
        Item {
            question: question.to_owned(),
            answer: truth.to_string(),
            truth: Some(truth),
            ..Item::default()
        }
    }

    fn records<const N: usize>(replies: [Reply<'_>; N], mode: Mode) -> [ScoredReply<'_>; N] {
        replies.map(|reply| score(&Traits::default(), mode, &NumberSettings::default(), reply))
    }

    fn lines(records: &[ScoredReply<'_>], mode: Mode) -> Vec<Value> {
        let template = RequestTemplate {
            mode,
            api: Api::Completions,
            model: "tiny".to_owned(),
            max_tokens: 8,
            stop: &[],
            after: None,
            system: None,
            prefill: None,
            return_token_ids: false,
            protocol: None,
            number: NumberSettings::default(),
            seed: 0,
            targets_continue_prompts: false,
            field: None,
            decisions: DecisionSettings::default(),
        };
        samples(&template, NumberRule::Last, records)
            .map(|sample| serde_json::to_value(sample).unwrap())
            .collect()
    }

    #[test]
    fn a_sample_holds_the_request_the_answer_and_the_scores() {
        let items = [item("1 + 1", 2.0), item("2 + 2", 4.0), item("3 + 3", 6.0)];
        let numbers = PredictedNumber {
            estimates: Some([2.5, 3.0, 2.0]),
            plain_mean: Some(2.75),
            mass_closed: 0.9,
            mass_open: 0.005,
            is_unbounded: false,
            quantiles: vec![(0.5, Some(3.0))],
            support: vec![(2.0, 0.9)],
            ..PredictedNumber::default()
        };
        let text = |text: &str| Answer { text: text.to_owned(), ..Answer::default() };
        let replies = [
            Reply::new(&items[0], Ok(Answer { number: Some(numbers), ..text("2.5") })),
            Reply::new(&items[1], Ok(Answer { number: Some(PredictedNumber::default()), ..text("none") })),
            Reply::new(&items[2], Err("endpoint is gone".to_owned())),
        ];
        let records = records(replies, Mode::Regress);
        insta::assert_json_snapshot!("samples", lines(&records, Mode::Regress));
        assert_eq!(mass_closed(&records), Some(0.45));
        assert_eq!(mass_closed(&[]), None);
    }

    /// From Python: `hash_string(json.dumps(doc, indent=2, ensure_ascii=False))` of lm-eval 0.4.13.
    #[test]
    fn hashes_match_lm_eval() {
        let item = Item {
            question: "Janet\u{2019}s \"q\"\n".to_owned(),
            answer: "#### 18".to_owned(),
            ..Item::default()
        };
        let line = &lines(&records([Reply::new(&item, Err("gone".to_owned()))], Mode::Text), Mode::Text)[0];
        assert_eq!(line["target_hash"], "3de129cc9ebd1585c1d06bde04b5a78a0d953e1e7ba81cfc62aa57f2a960d590");
        assert_eq!(line["doc_hash"], "225d8ee121a3ce1936404e720289af44da27eed372fbe58d581cdd61b9319cbb");
    }
}
