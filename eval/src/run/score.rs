//! Scores replies: extracts the number that an answer states, and decides whether it is correct.

mod decision;

use std::collections::BTreeMap;

use indexmap::IndexMap;
use ntl_api::IntervalMethod;

use crate::metrics::digits::DigitScores;
use crate::metrics::distribution::{DistributionScores, IntervalScore, Predicted};
use crate::metrics::forms::{Form, exact, nearest};
use crate::metrics::judgement::{Judgement, Rating};
use crate::metrics::law::{Law, LawScores};
use crate::metrics::likelihood::Likelihood;
use crate::metrics::texts::TextScores;
use crate::metrics::{Baseline, Estimates, Metrics, Outcome, Row, same};
use crate::run::answer_extraction::{self, INVALID, LmEvalFilter};
use crate::run::reply::{PredictedNumber, Reply};
use crate::settings::mode::Mode;
use crate::settings::number::NumberSettings;
use crate::stats::Interval;
use crate::stats::weighted::mean_in_order;
use crate::store::report::{MissingScores, Unbounded};
use crate::tasks::Traits;

/// An item with its reply and its score. Metrics and `samples.jsonl` are made from these records.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredReply<'a> {
    pub reply: Reply<'a>,
    pub row: Row,
    /// The texts that lm-eval's filters extract, strict and flexible.
    pub lm_eval_texts: Option<[String; 2]>,
    /// The number or text that accuracy compares; `None` without an answer.
    pub filtered: Option<String>,
}

pub fn rows<'r>(records: &'r [ScoredReply<'_>]) -> Vec<&'r Row> {
    records.iter().map(|record| &record.row).collect()
}

/// Scores a reply by the rules of this program.
pub fn score<'a>(traits: &Traits, mode: Mode, options: &NumberSettings, reply: Reply<'a>) -> ScoredReply<'a> {
    let item = reply.item;
    if let Some(question) = &item.decision {
        return decision::score(question, reply);
    }
    let text = reply.text();
    let is_text = mode != Mode::Regress;
    let stated = item.form.and_then(|form| stated(form, is_text, &reply));
    let digits = match (item.form, text) {
        (Some(form), Some(_)) => DigitScores::of(form, stated.as_deref(), &item.answer),
        _ => None,
    };
    let outcome = match text {
        None => Outcome::Failed,
        Some(text) => {
            let estimates = match item.form {
                _ if !is_text => estimates_of_distribution(&reply, traits),
                Some(_) => stated.as_deref().and_then(|text| nearest(&exact(text)?)).map(Estimates::point),
                None => answer_extraction::value(text, traits.number_rule).map(Estimates::point),
            };
            estimates.map_or(Outcome::Unparsed, Outcome::Read)
        }
    };
    let solution = if traits.lm_eval && is_text { text } else { None };
    let text_scores = match text {
        Some(text) if traits.texts || reply.label.is_some() => Some(TextScores::of(text, reply.reference())),
        _ => None,
    };
    let truth = item.true_number();
    let correct = match (truth, outcome) {
        // The form is a part of the task: a conversion keeps the value.
        (Some(_), _) if item.form.is_some() => digits.is_some_and(|digits| digits.exact),
        (Some(truth), Outcome::Read(numbers)) => same(numbers.mode, truth),
        (Some(_), _) => false,
        (None, _) if traits.texts => text_scores.as_ref().is_some_and(|scores| scores.exact),
        (None, _) => text.is_some_and(|text| text.trim() == item.answer),
    };
    let number = reply.number().filter(|number| number.estimates.is_some());
    let predicted = number.map(|number| Predicted {
        quantiles: &number.quantiles,
        support: &number.support,
        mass: number.mass_closed + number.mass_open,
        range: options.bounds(),
    });
    let distribution = number.zip(predicted).zip(truth).map(|((number, predicted), truth)| {
        let interval = number.interval.as_ref();
        let interval = interval.map(|found| Interval { low: found.low, high: found.high });
        let scores = DistributionScores::of(predicted, truth);
        DistributionScores {
            interval: interval.map(|interval| IntervalScore::of(interval, truth)),
            // A number between the values of the scale has no probability, even in a good distribution.
            log_score: if options.is_on_scale(truth) { scores.log_score } else { None },
            ..scores
        }
    });
    let law = item.law.as_ref().and_then(|law| match (predicted, outcome) {
        (Some(predicted), _) => Some(LawScores::of_reply(law, predicted)),
        (None, Outcome::Read(numbers)) => Some(LawScores::of_point(law, numbers.mean)),
        (None, _) => None,
    });
    let asks_number = truth.is_some() || traits.judges;
    let filtered = text.map(|text| match outcome {
        _ if !asks_number => text.trim().to_owned(),
        _ if item.form.is_some() => stated.unwrap_or_else(|| INVALID.to_owned()),
        Outcome::Read(numbers) => numbers.mode.to_string(),
        Outcome::Unparsed | Outcome::Failed => INVALID.to_owned(),
    });
    let judgement = traits
        .judges
        .then(|| Judgement { rating: reply.number().and_then(rating), preferred: item.preference() });
    let row = Row {
        outcome,
        truth,
        correct,
        lm_eval_matches: solution
            .map(|text| LmEvalFilter::ALL.map(|filter| filter.matches(text, &item.answer))),
        text_scores,
        // They would be compared as `f64`, which has too few digits for the accuracy of long numbers.
        estimates: match item.form {
            Some(_) => None,
            None => number.and_then(PredictedNumber::all_estimates),
        },
        distribution,
        digits,
        law,
        likelihood: likelihood(&reply),
        judgement,
        decision: None,
    };
    let lm_eval_texts = solution.map(|text| LmEvalFilter::ALL.map(|filter| filter.extract(text)));
    ScoredReply { row, lm_eval_texts, filtered, reply }
}

/// Returns the estimates of the server's number. Tasks with medians use the median for squared errors, too.
fn estimates_of_distribution(reply: &Reply<'_>, traits: &Traits) -> Option<Estimates> {
    let estimates = reply.number()?.estimates()?;
    Some(if traits.medians { Estimates { mean: estimates.median, ..estimates } } else { estimates })
}

/// Returns the number that the answer states, as written. The server's most probable number is written in the
/// form.
fn stated(form: Form, is_text: bool, reply: &Reply<'_>) -> Option<String> {
    if is_text {
        return answer_extraction::stated(reply.text()?, form).map(str::to_owned);
    }
    form.write(&exact(reply.number()?.mode_text.as_deref()?)?)
}

/// Returns `None` without a score.
fn rating(number: &PredictedNumber) -> Option<Rating> {
    let [score, _, mode] = number.estimates?;
    let total: f64 = number.support.iter().map(|(_, probability)| probability).sum();
    let shares = number.support.iter().filter(|(_, probability)| *probability > 0.0);
    let mut distribution: Vec<(f64, f64)> =
        shares.map(|(value, probability)| (*value, probability / total)).collect();
    distribution.sort_by(|a, b| a.0.total_cmp(&b.0));
    let squares = distribution.iter().map(|(value, share)| share * (value - score).powi(2));
    Some(Rating {
        score,
        mode,
        spread: squares.sum::<f64>().sqrt(),
        interval: number.interval.as_ref().map(|found| Interval { low: found.low, high: found.high }),
        mass: number.mass_closed,
        distribution,
        orders: number.orders,
    })
}

/// Returns the likelihood of the true answer, and how many of its tokens the answer has.
fn likelihood(reply: &Reply<'_>) -> Option<Likelihood> {
    let target_score = reply.target_score.as_ref().and_then(|score| score.as_ref().ok());
    let label = reply.label.as_ref().map(|label| &label.ids);
    let target = label.or(target_score.map(|score| &score.token_ids)).filter(|ids| !ids.is_empty());
    let generated = reply.answer.as_ref().ok().and_then(|answer| answer.token_ids.as_ref());
    let tokens = target.zip(generated).map(|(target, generated)| {
        (target.iter().zip(generated).filter(|(a, b)| a == b).count(), target.len())
    });
    if target_score.is_none() && tokens.is_none() {
        return None;
    }
    let logprobs = target_score.iter().flat_map(|score| &score.token_logprobs);
    let losses = target_score.iter().flat_map(|score| &score.losses);
    Some(Likelihood {
        tokens,
        logprobs: logprobs.filter_map(|logprob| *logprob).collect(),
        losses: losses.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect(),
    })
}

/// The name of the method that draws numbers and takes their median.
const DRAWN: &str = "median_of_samples";

/// Returns the metrics of the simple methods whose predictions the answered items have, by name.
pub fn method_baselines(records: &[ScoredReply<'_>], seed: u64) -> IndexMap<String, Baseline> {
    let mut methods: IndexMap<&str, Vec<Row>> = IndexMap::new();
    for record in records.iter().filter(|record| record.row.is_answered()) {
        let item = record.reply.item;
        let Some(truth) = item.truth else { continue };
        for (name, predicted) in &item.baselines {
            let row = Row::of_law(predicted, truth, item.law.as_ref());
            methods.entry(name).or_default().push(row);
        }
        if let Some(median) = record.reply.drawn_median {
            let row = Row::of_law(&Law::Normal { mean: median, sd: 0.0 }, truth, None);
            methods.entry(DRAWN).or_default().push(row);
        }
    }
    let mut baselines = IndexMap::new();
    for (name, rows) in methods {
        let metrics = Metrics::of(&rows.iter().collect::<Vec<_>>(), seed);
        baselines.insert(name.to_owned(), Baseline { value: None, metrics });
    }
    baselines
}

/// Returns the mean closed mass of the answers that have a number.
pub fn mass_closed(records: &[ScoredReply<'_>]) -> Option<f64> {
    let masses: Vec<f64> =
        records.iter().filter_map(|record| Some(record.reply.number()?.mass_closed)).collect();
    mean_in_order(&masses, &vec![1.0; masses.len()])
}

/// Counts the server's reasons for numbers without a value. Unbounded numbers are counted separately.
pub fn missing_numbers(records: &[ScoredReply<'_>]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let missing = records.iter().filter_map(|record| record.reply.number());
    let missing = missing.filter(|number| number.estimates.is_none() && !number.is_unbounded);
    for reason in missing.filter_map(|number| number.reason.clone()) {
        *counts.entry(reason).or_default() += 1;
    }
    counts
}

/// With `--score`: counts the true answers without a likelihood. `None` if all have one.
pub fn missing_scores(records: &[ScoredReply<'_>]) -> Option<MissingScores> {
    let mut reasons = records.iter().filter_map(|record| record.reply.score_error());
    let first = reasons.next()?.to_owned();
    Some(MissingScores { n: 1 + reasons.count(), first })
}

/// Counts the items by the source of their intervals.
pub fn intervals(records: &[ScoredReply<'_>]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let numbers = records.iter().filter_map(|record| record.reply.number());
    for interval in numbers.filter_map(|number| number.interval.as_ref()) {
        let method = match interval.method {
            IntervalMethod::Quantiles => "the quantiles of the distribution",
            IntervalMethod::Conformal => "a calibration",
        };
        let reason = interval.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        *counts.entry(format!("{method}{reason}")).or_default() += 1;
    }
    counts
}

/// Counts the unbounded numbers. `None` if every number is bounded.
pub fn unbounded(records: &[ScoredReply<'_>]) -> Option<Unbounded> {
    let numbers = records.iter().filter_map(|record| record.reply.number());
    let found: Vec<&PredictedNumber> = numbers.filter(|number| number.is_unbounded).collect();
    let without_value = found.iter().filter(|number| number.estimates.is_none()).count();
    (!found.is_empty()).then_some(Unbounded { n: found.len(), without_value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Item;
    use crate::run::reply::{Answer, TargetScore};

    fn reply<'a>(item: &'a Item, text: &str) -> Reply<'a> {
        let answer = Answer { text: text.to_owned(), ..Answer::default() };
        Reply::new(item, Ok(answer))
    }

    fn item(answer: &str, truth: Option<f64>) -> Item {
        Item { question: "q".to_owned(), answer: answer.to_owned(), truth, ..Item::default() }
    }

    #[test]
    fn an_answer_without_a_number_is_correct_if_the_text_is_equal() {
        for (text, answer, truth, correct) in [
            (" k ", "k", None, true),
            ("so k", "k", None, false),
            ("-7/2", "-7/2", Some(-3.5), true),
            ("It is -3.50", "-7/2", Some(-3.5), true),
            ("7", "-7/2", Some(-3.5), false),
        ] {
            let item = item(answer, truth);
            let record =
                score(&Traits::default(), Mode::Text, &NumberSettings::default(), reply(&item, text));
            assert_eq!(record.row.correct, correct, "{text:?}");
        }
    }

    #[test]
    fn tokens_are_compared_with_the_target_by_position() {
        let item = item("12", None);
        let mut reply = reply(&item, "12");
        if let Ok(answer) = &mut reply.answer {
            answer.token_ids = Some(vec![5, 6, 1]);
        }
        let target_score = TargetScore {
            token_ids: vec![5, 7, 8, 1],
            token_logprobs: vec![None, Some(-0.5)],
            losses: serde_json::Map::from_iter([
                ("ce".to_owned(), 0.5.into()),
                ("ntl-was".to_owned(), ().into()),
            ]),
        };
        reply.target_score = Some(Ok(target_score));
        let found = likelihood(&reply).unwrap();
        assert_eq!((found.tokens, found.logprobs), (Some((1, 4)), vec![-0.5]));
        assert_eq!(found.losses, [("ce".to_owned(), 0.5)]);
    }
}
