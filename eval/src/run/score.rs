//! From replies to rows: what an answer says, and whether it is right.
//!
//! In: an item and its reply. Out: a [`Judged`] item, which metrics and the sample log are made of.

use crate::cli::flags::Mode;
use crate::data::Item;
use crate::metrics::likelihood::Likelihood;
use crate::metrics::spread::{Distribution, Spread};
use crate::metrics::text::TextScores;
use crate::metrics::{Estimates, Outcome, Row, same};
use crate::run::answer_extraction::{self, INVALID, LmEvalFilter};
use crate::run::ask::{Numbers, Scored};
use crate::run::evaluator::Reply;
use crate::run::paper::figures::{self as paper, number_pair};
use crate::tasks::Traits;

/// An item with what is thought of its reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// As metrics see it.
    pub row: Row,
    /// lm-eval's readings of the text, strict and flexible.
    pub lm_eval_texts: Option<[String; 2]>,
    /// The number, or the text, that rightness is judged by; `None` without an answer.
    pub filtered: Option<String>,
}

/// Judges items by the rules of this program.
pub fn judge(traits: &Traits, mode: Mode, items: &[Item], replies: &[Reply]) -> Vec<Judged> {
    items.iter().zip(replies).map(|(item, reply)| judge_one(traits, mode, item, reply)).collect()
}

fn judge_one(traits: &Traits, mode: Mode, item: &Item, reply: &Reply) -> Judged {
    let number = number(reply);
    let outcome = match (&reply.answer, number) {
        (Err(_), _) => Outcome::Failed,
        (Ok(answer), None) if mode != Mode::Regress => answer_extraction::value(&answer.text)
            .map_or(Outcome::Unparsed, |value| Outcome::Read(Estimates::point(value))),
        (Ok(_), number) => number.and_then(Numbers::estimates).map_or(Outcome::Unparsed, Outcome::Read),
    };
    let text = reply.answer.as_ref().ok().map(|answer| answer.text.as_str());
    let read = text.filter(|_| traits.lm_eval && mode != Mode::Regress);
    let lm_eval_texts = read.map(|text| LmEvalFilter::ALL.map(|reading| reading.of(text)));
    let matched = read.map(|text| LmEvalFilter::ALL.map(|reading| reading.matches(text, &item.answer)));
    let reference = reply.label.as_ref().map_or(item.answer.as_str(), |label| label.text.as_str());
    let text_scores =
        text.filter(|_| traits.texts || mode == Mode::Paper).map(|text| TextScores::of(text, reference));
    let correct = match (item.truth, outcome) {
        (Some(truth), Outcome::Read(numbers)) => same(numbers.mode, truth),
        (Some(_), _) => false,
        (None, _) if traits.texts => text_scores.as_ref().is_some_and(|text_scores| text_scores.exact),
        (None, _) => text.is_some_and(|text| text.trim() == item.answer),
    };
    let spread = number.zip(item.truth).filter(|(number, _)| number.estimates.is_some());
    let spread = spread.map(|(Numbers { quantiles, support, .. }, truth)| {
        Spread::of(Distribution { quantiles, support }, truth)
    });
    let row = Row {
        outcome,
        truth: item.truth,
        correct,
        lm_eval_matches: matched,
        text_scores,
        spread,
        likelihood: likelihood(reply),
    };
    let filtered = text.map(|text| filtered(item, &row, text));
    Judged { row, lm_eval_texts, filtered }
}

fn number(reply: &Reply) -> Option<&Numbers> {
    reply.answer.as_ref().ok()?.number.as_ref()
}

fn filtered(item: &Item, row: &Row, text: &str) -> String {
    match (item.truth, row.outcome) {
        (None, _) => text.trim().to_owned(),
        (Some(_), Outcome::Read(numbers)) => numbers.mode.to_string(),
        (Some(_), _) => INVALID.to_owned(),
    }
}

/// What the model says of the true answer, and how many of its tokens the answer has.
fn likelihood(reply: &Reply) -> Option<Likelihood> {
    let scored = reply.scored.as_ref().and_then(|scored| scored.as_ref().ok());
    let target = target_ids(reply, scored);
    let generated = reply.answer.as_ref().ok().and_then(|answer| answer.token_ids.as_deref());
    let tokens = target.zip(generated).map(|(target, generated)| {
        (target.iter().zip(generated).filter(|(a, b)| a == b).count(), target.len())
    });
    if scored.is_none() && tokens.is_none() {
        return None;
    }
    let losses = scored.iter().flat_map(|scored| &scored.losses);
    let losses = losses.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
    let logprobs = scored.map(|scored| scored.token_logprobs.iter().filter_map(|value| *value).collect());
    Some(Likelihood { tokens, logprobs: logprobs.unwrap_or_default(), losses: losses.collect() })
}

fn target_ids<'a>(reply: &'a Reply, scored: Option<&'a Scored>) -> Option<&'a [u32]> {
    let label = reply.label.as_ref().map(|label| label.ids.as_slice());
    label.or(scored.map(|scored| scored.token_ids.as_slice())).filter(|ids| !ids.is_empty())
}

/// Judges items once more by the rules of the paper's code; texts stay what they were. Labels that its code could not have
/// read have no truth.
pub fn judge_as_paper(judged: &[Judged], items: &[Item], replies: &[Reply]) -> Vec<Judged> {
    let all = judged.iter().zip(items).zip(replies);
    all.map(|((judged, item), reply)| {
        let label = paper_label(item, reply);
        let truth = item.truth.and_then(|_| paper::last_number(label).ok().flatten());
        let pair = reply.answer.as_ref().ok().zip(truth);
        let value = pair.and_then(|(answer, _)| number_pair(&answer.text, label).ok());
        let value = value.map(|(value, _)| value).filter(|value| value.is_finite());
        let outcome = match (&reply.answer, value) {
            (Err(_), _) => Outcome::Failed,
            (Ok(_), Some(value)) => Outcome::Read(Estimates::point(value)),
            (Ok(_), None) => Outcome::Unparsed,
        };
        let close = |value: f64, truth: f64| (value - truth).abs() <= 1e-8 + 1e-5 * truth.abs();
        let correct = match (truth, value) {
            (Some(truth), Some(value)) => close(value, truth),
            (Some(_), None) => false,
            (None, _) => judged.row.correct,
        };
        let row = Row { outcome, truth, correct, ..judged.row.clone() };
        let filtered = judged.filtered.as_ref();
        let filtered = filtered.map(|text| value.map_or_else(|| text.clone(), |value| value.to_string()));
        Judged { row, filtered, ..judged.clone() }
    })
    .collect()
}

/// A label as the paper's code sees it: through the tokenizer and back.
pub fn paper_label<'a>(item: &'a Item, reply: &'a Reply) -> &'a str {
    reply.label.as_ref().map_or(item.answer.as_str(), |label| label.text.as_str())
}

/// Closed mass, averaged over the answers that carry one.
pub fn mass_closed(replies: &[Reply]) -> Option<f64> {
    let masses: Vec<f64> = replies.iter().filter_map(|reply| Some(number(reply)?.mass_closed)).collect();
    crate::metrics::number::mean(&masses, &vec![1; masses.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ask::Answer;

    fn reply(text: &str) -> Reply {
        let answer = Answer { text: text.to_owned(), ..Answer::default() };
        Reply { answer: Ok(answer), label: None, scored: None }
    }

    fn item(answer: &str, truth: Option<f64>) -> Item {
        Item { question: "q".to_owned(), answer: answer.to_owned(), truth, ..Item::default() }
    }

    #[test]
    fn an_answer_that_is_no_number_is_right_when_it_is_the_same_text() {
        for (text, answer, truth, correct) in [
            (" k ", "k", None, true),
            ("so k", "k", None, false),
            ("-7/2", "-7/2", Some(-3.5), true),
            ("It is -3.50", "-7/2", Some(-3.5), true),
            ("7", "-7/2", Some(-3.5), false),
        ] {
            let judged = judge_one(&Traits::default(), Mode::Text, &item(answer, truth), &reply(text));
            assert_eq!(judged.row.correct, correct, "{text:?}");
        }
    }

    #[test]
    fn the_paper_reads_the_same_text_differently() {
        let items = [item("1234", Some(1234.0)), item("1000000", Some(1e6)), item("-7/2", Some(-3.5))];
        let replies = [reply("1,234"), reply("1000009"), reply("3/2")];
        let ours = judge(&Traits::default(), Mode::Paper, &items, &replies);
        let paper = judge_as_paper(&ours, &items, &replies);
        let correct = |judged: &[Judged]| judged.iter().map(|judged| judged.row.correct).collect::<Vec<_>>();
        assert_eq!(correct(&ours), [true, false, false]);
        assert_eq!(correct(&paper), [false, true, true]);
        assert_eq!(paper[2].row.truth, Some(2.0));
        assert_eq!(paper[0].filtered.as_deref(), Some("234"));
    }

    #[test]
    fn tokens_are_compared_place_by_place_with_those_of_the_target() {
        let mut reply = reply("12");
        if let Ok(answer) = &mut reply.answer {
            answer.token_ids = Some(vec![5, 6, 1]);
        }
        let scored = Scored {
            token_ids: vec![5, 7, 8, 1],
            token_logprobs: vec![None, Some(-0.5)],
            losses: serde_json::Map::from_iter([
                ("ce".to_owned(), 0.5.into()),
                ("ntl-was".to_owned(), ().into()),
            ]),
        };
        reply.scored = Some(Ok(scored));
        let found = likelihood(&reply).unwrap();
        assert_eq!((found.tokens, found.logprobs), (Some((1, 4)), vec![-0.5]));
        assert_eq!(found.losses, [("ce".to_owned(), 0.5)]);
    }
}
