//! Scores candidates after one prompt. The tree of their prefixes is a list of rows, and each step computes
//! as many rows as fit.

use super::{Decoding, Progress, StepResult, not_a_distribution, unreported};
use crate::contract::{
    CandidatesJob, EngineError, Event, LogitsRequest, LogitsRow, NodeId, PathRow, ScoreOutcome, TokenLogprob,
    TokenScore,
};
use crate::losses::{NumberTokens, Position};
use crate::numbers::sorted_unique;

pub(super) struct CandidatesDecoding {
    job: CandidatesJob,
    first_token: u32,
    /// Rows requested so far: the number of the context's next node.
    asked: usize,
    /// Number of rows whose logits were read.
    read: usize,
    /// Log-probabilities of all tokens, sorted by place.
    logprobs: Vec<TokenLogprob>,
    /// Whether another engine reports the log-probabilities of requested ids.
    is_reported: bool,
}

impl CandidatesDecoding {
    pub(super) fn new(job: &CandidatesJob, first_token: u32) -> Self {
        let logprobs = vec![TokenLogprob { id: 0, logprob: f64::NEG_INFINITY }; job.tokens()];
        Self { job: job.clone(), first_token, asked: 0, read: 0, logprobs, is_reported: false }
    }

    /// Returns the same decoding over reports of another engine.
    pub(super) fn over_reports(self) -> Self {
        Self { is_reported: true, ..self }
    }
}

impl Decoding for CandidatesDecoding {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        let end = self.job.rows().len().min(self.asked + rows_max);
        let mut rows = Vec::with_capacity(end - self.asked);
        for row in &self.job.rows()[self.asked..end] {
            let logits = if self.is_reported {
                LogitsRequest::Ids(sorted_unique(row.next.iter().map(|next| &next.id)))
            } else {
                LogitsRequest::All
            };
            let token = row.token.unwrap_or(self.first_token.into());
            rows.push(PathRow::new(row.parent.map(NodeId), token).with_logits(logits));
        }
        self.asked = end;
        rows
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        let no_numbers = NumberTokens::default();
        for (index, row) in self.job.rows()[self.read..self.asked].iter().enumerate() {
            let result = result.row(index);
            let position = match result.logits {
                LogitsRow::Report(report) => {
                    let missing = row.next.iter().find(|next| report.logprob(next.id).is_none());
                    missing.map_or(Ok(()), |next| Err(unreported(next.id)))?;
                    Position::of_report(report, &no_numbers)
                }
                _ => Position::new(result.full()?, &no_numbers),
            };
            let position = position.ok_or_else(not_a_distribution)?;
            for next in &row.next {
                let logprob = position.log_probability(next.id);
                self.logprobs[next.place] = TokenLogprob { id: next.id, logprob };
            }
        }
        self.read = self.asked;
        if self.read < self.job.rows().len() {
            return Ok(Progress::Running);
        }
        let mut tokens = Vec::with_capacity(self.logprobs.len());
        for &token in &self.logprobs {
            tokens.push(TokenScore { token, number: None, losses: Vec::new(), digit: None });
        }
        events.push(Event::Scored(ScoreOutcome { tokens }));
        Ok(Progress::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{drive, vocabulary};
    use super::*;
    use crate::contract::{BatchModel, Request};
    use crate::scripted::ScriptedModel;
    use crate::{Prompt, Token};

    /// Logits that depend on the whole path.
    fn model() -> ScriptedModel {
        let script = |_: &[u32], path: &[u32]| {
            let mix = path.iter().fold(17_u32, |mix, &id| mix.wrapping_mul(31).wrapping_add(id));
            Ok((0..17).map(|id| ((mix.wrapping_mul(id + 7) % 97) as f32) / 20.0).collect())
        };
        ScriptedModel::new(17, Box::new(script))
    }

    fn logprobs(candidates: &[Vec<u32>], rows_max: usize) -> Vec<f64> {
        let mut model = model();
        let opened = model.open(&[(&Prompt::from(vec![2, 1])).into()]).unwrap()[0];
        let tokens = |ids: &Vec<u32>| ids.iter().copied().map(Token::from).collect();
        let job = CandidatesJob::new(&candidates.iter().map(tokens).collect::<Vec<_>>());
        let request = Request::Candidates(job);
        let start = || vocabulary().decoding(&request, &[], opened.first_token);
        match drive(&mut model, opened.context, start, rows_max).unwrap().pop() {
            Some(Event::Scored(outcome)) => outcome.tokens.iter().map(|score| score.token.logprob).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_candidate_has_the_log_probabilities_that_it_has_alone() {
        let candidates = vec![vec![3, 4, 5], vec![3, 4, 6, 7], vec![3], vec![8, 4], vec![3, 4, 5]];
        let alone: Vec<f64> =
            candidates.iter().flat_map(|one| logprobs(std::slice::from_ref(one), 16)).collect();
        for rows_max in [1, 2, 3, 16] {
            assert_eq!(logprobs(&candidates, rows_max), alone, "{rows_max} rows a step");
        }
    }
}
