//! Scores a target. Its tokens are a chain of rows, and each step computes as many rows as fit.

use super::{Decoding, Progress, RowResult, StepResult, not_a_distribution, unreported};
use crate::contract::{
    EngineError, Event, LogitsRequest, LogitsRow, NodeId, PathRow, ScoreJob, ScoreOutcome, TokenLogprob,
    TokenNumber, TokenScore,
};
use crate::losses::{NumberTokens, Position};
use crate::numbers::sorted_unique;

pub(super) struct ScoreDecoding {
    job: ScoreJob,
    first_token: u32,
    /// Rows requested so far: the number of the context's next node.
    asked: u32,
    scores: Vec<TokenScore>,
    /// Whether another engine reports the log-probabilities of requested ids.
    is_reported: bool,
}

impl ScoreDecoding {
    pub(super) fn new(job: &ScoreJob, first_token: u32) -> Self {
        let scores = Vec::with_capacity(job.target.len());
        Self { job: job.clone(), first_token, asked: 0, scores, is_reported: false }
    }

    /// Returns the same decoding over reports of another engine.
    pub(super) fn over_reports(self) -> Self {
        Self { is_reported: true, ..self }
    }

    /// Returns the row that predicts the target's token at `place`. It holds the token before.
    fn row(&self, place: u32) -> PathRow {
        let row = match place.checked_sub(1) {
            None => PathRow::new(None, self.first_token),
            Some(before) => PathRow::new(Some(NodeId(before)), self.job.target[before as usize]),
        };
        row.with_logits(self.logits_request(place))
    }

    /// Requests the ids that [`Self::score`] reads from a report.
    fn logits_request(&self, place: u32) -> LogitsRequest {
        if !self.is_reported {
            return LogitsRequest::All;
        }
        let label = self.job.target.get(place as usize).map(|token| token.id);
        let numbers = self.job.number_tokens.values().map(|(id, _)| id);
        LogitsRequest::Ids(sorted_unique(numbers.chain(label).collect::<Vec<_>>().iter()))
    }

    fn score(&self, row: RowResult<'_>, label: u32) -> Result<TokenScore, EngineError> {
        let no_numbers = NumberTokens::default();
        let numbers = &*self.job.number_tokens;
        let position = match row.logits {
            LogitsRow::Report(report) => {
                report.logprob(label).ok_or_else(|| unreported(label))?;
                match Position::of_report(report, numbers) {
                    None if numbers.value(label).is_some() && self.needs_numbers() => {
                        return Err(unreported_numbers());
                    }
                    None => Position::of_report(report, &no_numbers),
                    position => position,
                }
            }
            _ => Position::new(row.full()?, numbers),
        };
        let position = position.ok_or_else(not_a_distribution)?;
        let mass = position.number_mass();
        Ok(TokenScore {
            token: TokenLogprob { id: label, logprob: position.log_probability(label) },
            number: position.expectation().map(|value| TokenNumber { value, mass }),
            losses: self.job.losses.iter().map(|loss| loss.at(&position, label)).collect(),
            digit: if self.job.digits { position.digit(label) } else { None },
        })
    }

    /// Returns whether a loss needs the probabilities of all number tokens.
    fn needs_numbers(&self) -> bool {
        self.job.digits || !self.job.losses.is_empty()
    }
}

fn unreported_numbers() -> EngineError {
    EngineError::Unsupported(
        "a loss needs the probabilities of all number tokens, and the engine reports only the most probable tokens"
            .to_owned(),
    )
}

impl Decoding for ScoreDecoding {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        let left = (self.job.target.len() - self.scores.len()).clamp(1, rows_max) as u32;
        let rows = (self.asked..self.asked + left).map(|place| self.row(place)).collect();
        self.asked += left;
        rows
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        let first = self.scores.len();
        let wanted = self.job.target.len().min(self.asked as usize);
        for place in first..wanted {
            let score = self.score(result.row(place - first), self.job.target[place].id)?;
            self.scores.push(score);
        }
        if self.scores.len() < self.job.target.len() {
            return Ok(Progress::Running);
        }
        events.push(Event::Scored(ScoreOutcome { tokens: std::mem::take(&mut self.scores) }));
        Ok(Progress::Done)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Prompt;
    use crate::contract::{BatchModel, Row};
    use crate::losses::{NumberLoss, NumberLossKind, NumberTokens};
    use crate::scripted::ScriptedModel;

    /// Each token is the number of its id; after a path the next id is the most probable.
    fn counting() -> ScriptedModel {
        let script = |_: &[u32], path: &[u32]| {
            let mut logits = vec![0.0, f32::NEG_INFINITY, 0.0, 0.0, 0.0, 0.0];
            logits[(path.last().copied().unwrap_or(1) as usize + 1) % 6] = 3.0;
            Ok(logits)
        };
        ScriptedModel::new(6, Box::new(script))
    }

    fn run(target: &[u32], rows_max: usize) -> (Vec<TokenScore>, usize) {
        let mut model = counting();
        let opened = model.open(&[(&Prompt::from(vec![5])).into()]).unwrap()[0];
        let number_tokens = Arc::new(NumberTokens::new((2..6).map(|id| (id, f64::from(id)))));
        let losses = vec![NumberLoss::of(NumberLossKind::Mae)];
        let target = target.iter().copied().map(Into::into).collect();
        let job = ScoreJob { target, number_tokens, losses, digits: false };
        let mut decoding = ScoreDecoding::new(&job, opened.first_token);
        let mut nodes = 0;
        let mut steps = 0;
        let mut events = Vec::new();
        loop {
            let paths = decoding.next_rows(rows_max);
            assert!((1..=rows_max).contains(&paths.len()));
            let rows: Vec<Row> =
                paths.into_iter().map(|path| Row { context: opened.context, path }).collect();
            let logits = model.step(&rows).unwrap();
            let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(nodes) };
            nodes += rows.len() as u32;
            steps += 1;
            if decoding.advance(result, &mut events).unwrap() == Progress::Done {
                break;
            }
        }
        match events.as_slice() {
            [Event::Scored(outcome)] => (outcome.tokens.clone(), steps),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_target_is_scored_in_as_few_steps_as_its_rows_fit_in() {
        let target = [2, 3, 4, 4, 0];
        let (scores, steps) = run(&target, 100);
        assert_eq!(steps, 1);
        assert_eq!(scores.iter().map(|score| score.token.id).collect::<Vec<_>>(), target);
        // The first three tokens are their predecessors plus one. Among five possible tokens, such a token
        // has weight e^3.
        let total = 3.0_f64.exp() + 4.0;
        for (at, score) in scores.iter().enumerate() {
            let weight = if at < 3 { 3.0_f64.exp() } else { 1.0 };
            assert!((score.token.logprob - (weight / total).ln()).abs() < 1e-9, "{at}: {score:?}");
        }
        for (rows_max, want) in [(1, 5), (2, 3), (5, 1)] {
            assert_eq!(run(&target, rows_max), (scores.clone(), want), "{rows_max} rows a step");
        }
    }

    #[test]
    fn tokens_that_are_not_numbers_have_no_number_loss() {
        let (scores, _) = run(&[2, 1, 0], 8);
        let has_loss: Vec<bool> = scores.iter().map(|score| score.losses[0].is_some()).collect();
        assert_eq!(has_loss, [true, false, false]);
        assert!(scores[1].token.logprob.is_infinite(), "a token of no probability");
        assert!(scores.iter().all(|score| score.number.is_some_and(|number| number.mass > 0.5)));
    }

    #[test]
    fn an_empty_target_costs_a_step_and_has_no_scores() {
        assert_eq!(run(&[], 8), (Vec::new(), 1));
    }
}
