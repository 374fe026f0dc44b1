//! Requests to a model that writes no tokens: one row, whose logits are the values of its labels.
//!
//! The value of a single label is a number. Text requests get it with twelve decimals, as the paper's code
//! prints it.

use std::collections::HashMap;

use super::{Decoding, Progress, StepResult};
use crate::contract::{
    EngineError, Event, FinishReason, NumberJob, NumberOutcome, PathRow, Request, StopReason,
};
use crate::numbers::{Decimal, Distribution};

/// Decimals of the answers of the paper's code.
const DECIMALS: usize = 12;

pub(super) struct LabelDecoding {
    request: Request,
    first_token: u32,
}

impl LabelDecoding {
    pub(super) fn new(request: Request, first_token: u32) -> Self {
        Self { request, first_token }
    }
}

impl Decoding for LabelDecoding {
    fn next_rows(&mut self, _rows_max: usize) -> Vec<PathRow> {
        vec![PathRow::new(None, self.first_token)]
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        let values = result.row(0).full()?;
        if !values.iter().all(|value| value.is_finite()) {
            return Err(EngineError::Step(
                "a predicted value is not finite; check --log-scale-embeddings".to_owned(),
            ));
        }
        match &self.request {
            Request::Labels => events.push(Event::Values(values.to_vec())),
            Request::Text(job) => {
                let value = only(values)?;
                (0..job.n).for_each(|choice| write(choice, value, job.max_tokens, &job.stop, events));
            }
            Request::Beams(job) => {
                let value = only(values)?;
                (0..job.n).for_each(|choice| write(choice, value, job.max_tokens, &[], events));
            }
            Request::Number(job) => events.push(Event::Number(outcome(only(values)?, job))),
            Request::Score(_) | Request::Candidates(_) | Request::Options(_) | Request::Embedding(_) => {
                return Err(EngineError::Unsupported("the model has no tokens to score".to_owned()));
            }
        }
        Ok(Progress::Done)
    }
}

/// Returns the value of the only label.
fn only(values: &[f32]) -> Result<f64, EngineError> {
    match *values {
        [value] => Ok(f64::from(value)),
        _ => {
            Err(EngineError::Unsupported(format!("the model predicts {} labels, not a number", values.len())))
        }
    }
}

/// One text, up to the first of `stop`. Empty if `max_tokens` is 0.
fn write(choice: u32, value: f64, max_tokens: usize, stop: &[String], events: &mut Vec<Event>) {
    let whole = format!("{value:.DECIMALS$}");
    let first = stop.iter().filter_map(|stop| Some((whole.find(stop.as_str())?, stop))).min();
    let (end, reason, stop_reason) = match (max_tokens, first) {
        (0, _) => (0, FinishReason::Length, None),
        (_, None) => (whole.len(), FinishReason::Stop, None),
        (_, Some((at, stop))) => (at, FinishReason::Stop, Some(StopReason::Text(stop.clone()))),
    };
    events.push(Event::Text { choice, text: whole[..end].to_owned(), tokens: 0, token: None, offset: 0 });
    events.push(Event::Finished { choice, reason, stop_reason, tokens: 0, cumulative_logprob: None });
}

/// All mass on one value; invalid if it is out of range, open if it has too many digits.
fn outcome(value: f64, job: &NumberJob) -> NumberOutcome {
    let read = Decimal::shortest_f64(value).map(Decimal::canonical);
    let range = job.values.interval();
    let admitted = range.is_none_or(|range| (range.low..=range.high).contains(&value));
    let mut closed = HashMap::new();
    let (invalid, open) = match (admitted, read) {
        (false, _) => (1.0, 0.0),
        (true, None) => (0.0, 1.0),
        (true, Some(value)) => {
            closed.insert(value, 1.0);
            (0.0, 0.0)
        }
    };
    NumberOutcome::new(Distribution::new(&closed, invalid, open), 1, 1)
}
