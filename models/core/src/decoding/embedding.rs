//! The vector of a prompt: hidden states of a decoder, or the pooled output of an encoder.
//!
//! An encoder's output is one row. A decoder's last hidden state is the row of the prompt's last token, and
//! the mean is over a chain of rows with all tokens, of which each step computes as many as fit. The sum is
//! in the order of tokens, so that it does not depend on the steps.

use super::{Decoding, Progress, StepResult};
use crate::contract::{EmbeddingJob, EngineError, Event, LogitsRequest, NodeId, PathRow};

pub(super) struct EmbeddingDecoding {
    /// The tokens of all rows.
    tokens: Vec<u32>,
    /// Number of rows that were requested.
    requested: usize,
    /// Number of rows that are summed.
    summed: usize,
    sum: Vec<f64>,
}

impl EmbeddingDecoding {
    /// `prompt` are the tokens of a decoder-only model's prompt.
    pub(super) fn new(job: EmbeddingJob, prompt: &[u32], first_token: u32) -> Self {
        let mut tokens = vec![first_token];
        if job == EmbeddingJob::DECODER_MEAN {
            tokens.extend(prompt.iter().skip(1));
        }
        Self { tokens, requested: 0, summed: 0, sum: Vec::new() }
    }
}

impl Decoding for EmbeddingDecoding {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        let mut rows = Vec::new();
        for &token in self.tokens.iter().skip(self.requested).take(rows_max) {
            let parent = (self.requested + rows.len()).checked_sub(1).map(|parent| NodeId(parent as u32));
            rows.push(PathRow::new(parent, token).with_logits(LogitsRequest::Hidden));
        }
        self.requested += rows.len();
        rows
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        for row in 0..self.requested - self.summed {
            let hidden = result.row(row).full()?;
            if !hidden.iter().all(|value| value.is_finite()) {
                return Err(EngineError::Step("the model's hidden states are not finite".to_owned()));
            }
            self.sum.resize(hidden.len(), 0.0);
            for (sum, &value) in self.sum.iter_mut().zip(hidden) {
                *sum += f64::from(value);
            }
        }
        self.summed = self.requested;
        if self.summed < self.tokens.len() {
            return Ok(Progress::Running);
        }
        let count = self.summed as f64;
        events.push(Event::Values(self.sum.iter().map(|sum| (sum / count) as f32).collect()));
        Ok(Progress::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Logits, Pooling, Stack};

    /// The vector of a model whose hidden state is the token and its square, in steps of `rows_max` rows.
    fn embedded(job: EmbeddingJob, prompt: &[u32], first_token: u32, rows_max: usize) -> Vec<f32> {
        let mut decoding = EmbeddingDecoding::new(job, prompt, first_token);
        let mut nodes = 0;
        loop {
            let rows = decoding.next_rows(rows_max);
            assert!((1..=rows_max).contains(&rows.len()));
            let mut hidden = Vec::new();
            for (index, row) in rows.iter().enumerate() {
                let parent = (nodes + index).checked_sub(1).map(|parent| NodeId(parent as u32));
                assert_eq!((&row.logits, row.parent), (&LogitsRequest::Hidden, parent));
                let token = row.token.id as f32;
                hidden.extend([token, token * token]);
            }
            let logits = Logits::new(hidden, 2).unwrap();
            let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(nodes as u32) };
            nodes += rows.len();
            let mut events = Vec::new();
            match (decoding.advance(result, &mut events).unwrap(), events.pop()) {
                (Progress::Running, None) => {}
                (Progress::Done, Some(Event::Values(vector))) => return vector,
                (_, event) => panic!("{event:?}"),
            }
        }
    }

    #[test]
    fn the_mean_of_a_decoder_is_over_all_tokens_of_the_prompt() {
        let mean = EmbeddingJob { stack: Stack::Decoder, pooling: Pooling::Mean };
        for rows_max in [1, 2, 3, 100] {
            assert_eq!(embedded(mean, &[3, 5, 7, 1], 3, rows_max), [4.0, 21.0], "{rows_max} rows per step");
        }
        assert_eq!(embedded(mean, &[], 2, 4), [2.0, 4.0], "the token that begins a text");
    }

    #[test]
    fn other_vectors_are_one_row() {
        for (stack, pooling) in [
            (Stack::Decoder, Pooling::Last),
            (Stack::Encoder, Pooling::Mean),
            (Stack::Encoder, Pooling::Last),
        ] {
            assert_eq!(embedded(EmbeddingJob { stack, pooling }, &[3, 5, 7], 7, 4), [7.0, 49.0]);
        }
    }

    #[test]
    fn hidden_states_that_are_not_finite_are_an_error() {
        let job = EmbeddingJob { stack: Stack::Decoder, pooling: Pooling::Last };
        let mut decoding = EmbeddingDecoding::new(job, &[3], 3);
        decoding.next_rows(1);
        let logits = Logits::new(vec![f32::NAN], 1).unwrap();
        let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(0) };
        assert!(matches!(decoding.advance(result, &mut Vec::new()), Err(EngineError::Step(_))));
    }
}
