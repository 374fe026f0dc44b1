//! Scores the answer of a decision model.

use super::ScoredReply;
use crate::data::decisions::{Question, QuestionKind};
use crate::metrics::decision::{DecisionScores, OptionScores};
use crate::metrics::{Estimates, Outcome, Row};
use crate::run::decisions::Decision;
use crate::run::reply::Reply;

/// The text of samples that stands for a refusal.
const REFUSAL: &str = "[refusal]";

/// The number of a score is its expected level.
pub(super) fn score<'a>(question: &Question, reply: Reply<'a>) -> ScoredReply<'a> {
    let decision = reply.answer.as_ref().ok().and_then(|answer| answer.decision.as_ref());
    let expected = question.expected_index();
    let options = match (decision, expected) {
        (Some(Decision::Options(probabilities)), Some(expected)) => OptionScores::of(probabilities, expected),
        _ => None,
    };
    let outcome = match (decision, &question.kind) {
        (None, _) => Outcome::Failed,
        (Some(Decision::Number(estimates)), _) => Outcome::Read(*estimates),
        (Some(Decision::Options(probabilities)), QuestionKind::Score { .. }) => {
            Outcome::Read(Estimates::point(expected_level(probabilities)))
        }
        (Some(Decision::Options(_) | Decision::Refusal), _) => Outcome::Unparsed,
    };
    let is_refused = decision == Some(&Decision::Refusal);
    let row = Row {
        outcome,
        truth: reply.item.truth,
        correct: options.is_some_and(|options| options.is_correct),
        lm_eval_matches: None,
        text_scores: None,
        estimates: None,
        distribution: None,
        digits: None,
        law: None,
        likelihood: None,
        judgement: None,
        decision: Some(DecisionScores {
            has_options: expected.is_some(),
            is_refused,
            options,
            changes: reply.changes,
        }),
    };
    let filtered = if is_refused { Some(REFUSAL.to_owned()) } else { reply.text().map(str::to_owned) };
    ScoredReply { row, lm_eval_texts: None, filtered, reply }
}

fn expected_level(probabilities: &[f64]) -> f64 {
    let mut level = 0.0;
    for (index, probability) in probabilities.iter().enumerate() {
        level += index as f64 * probability;
    }
    level
}
