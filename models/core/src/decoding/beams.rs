//! Beam search for text with the semantics of Hugging Face's `BeamSearchScorer` (transformers 4.42), which
//! the paper uses for its evaluation. A step keeps the best candidates of all beams. Finished texts are
//! ranked by their length-normalised score.

use std::sync::Arc;

use super::{Decoding, Progress, StepResult, Vocabulary, check_row, not_a_distribution};
use crate::Token;
use crate::contract::{
    BeamJob, EarlyStopping, EngineError, Event, FinishReason, NodeId, PathRow, TokenLogprob, TokenText,
};
use crate::numbers::Softmax;
use crate::text::TextStream;

pub struct BeamDecoding {
    job: BeamJob,
    vocabulary: Vocabulary,
    /// Ids before the texts in the same sequence.
    before: Vec<u32>,
    /// Unfinished texts, most probable first; the first `computed` of them have their candidates.
    running: Vec<Beam>,
    computed: usize,
    in_step: usize,
    candidates: Vec<Candidate>,
    finished: Vec<Hypothesis>,
    /// Number of tokens of every running text.
    length: usize,
}

struct Beam {
    row: PathRow,
    tokens: Vec<ScoredToken>,
    logprob: f64,
}

/// A token of a text. Its value is the prediction of the model's number head, if it has one.
#[derive(Clone, Copy)]
struct ScoredToken {
    token: Token,
    logprob: f64,
}

/// A running text and one more token.
#[derive(Clone, Copy)]
struct Candidate {
    beam: usize,
    node: NodeId,
    token: ScoredToken,
    /// Log-probability of the whole text.
    logprob: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    /// Longer texts may be better.
    Running,
    /// No longer text can be better.
    Done,
    /// No longer text is allowed or possible.
    Cut,
}

/// A text that is complete, or cut.
struct Hypothesis {
    tokens: Vec<ScoredToken>,
    logprob: f64,
    score: f64,
    reason: FinishReason,
}

impl BeamDecoding {
    /// `before`: the ids before the texts in the same sequence.
    pub(super) fn new(job: &BeamJob, vocabulary: &Vocabulary, before: &[u32], first_token: u32) -> Self {
        let root = Beam { row: PathRow::new(None, first_token), tokens: Vec::new(), logprob: 0.0 };
        Self {
            job: job.clone(),
            vocabulary: vocabulary.clone(),
            before: before.to_vec(),
            running: vec![root],
            computed: 0,
            in_step: 0,
            candidates: Vec::new(),
            finished: Vec::new(),
            length: 0,
        }
    }

    /// Candidates of a step: enough to fill all beams when every end of sequence is among them.
    fn candidates_max(&self) -> usize {
        self.job.beams * (1 + self.vocabulary.eos_ids.len()).max(2)
    }

    /// Adds the best continuations of one running text.
    fn extend(&mut self, beam: usize, result: StepResult<'_>, row: usize) -> Result<(), EngineError> {
        let row = result.row(row);
        let logits = row.full()?;
        let node = row.node;
        check_row(logits)?;
        let softmax = Softmax::new(logits).ok_or_else(not_a_distribution)?;
        let known = self.vocabulary.known(logits);
        let before = self.running[beam].logprob;
        for id in best_ids(known, self.candidates_max()) {
            if known[id as usize] > f32::NEG_INFINITY {
                let token = Token { id, value: row.head_value };
                let token = ScoredToken { token, logprob: softmax.log_probability(id) };
                self.candidates.push(Candidate { beam, node, token, logprob: before + token.logprob });
            }
        }
        Ok(())
    }

    fn next_length(&mut self) -> Search {
        let mut candidates = std::mem::take(&mut self.candidates);
        // The sort is stable: ties go to the better beam, then to the lower id.
        candidates.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        candidates.truncate(self.candidates_max());
        self.length += 1;
        let best = candidates.first().map_or(f64::NEG_INFINITY, |candidate| candidate.logprob);
        let mut longer: Vec<Beam> = Vec::with_capacity(self.job.beams);
        for (rank, candidate) in candidates.into_iter().enumerate() {
            let id = candidate.token.token.id;
            let tokens = [self.running[candidate.beam].tokens.as_slice(), &[candidate.token]].concat();
            if !self.vocabulary.eos_ids.contains(&id) {
                let row = PathRow::new(Some(candidate.node), id);
                longer.push(Beam { row, tokens, logprob: candidate.logprob });
            } else if rank < self.job.beams {
                // The search keeps a finished text only if it ranks among the beams.
                self.finish(tokens, candidate.logprob, FinishReason::Stop);
            }
            if longer.len() == self.job.beams {
                break;
            }
        }
        self.running = longer;
        self.computed = 0;
        if self.is_settled(best) {
            Search::Done
        } else if self.running.is_empty() || self.length >= self.job.max_tokens {
            Search::Cut
        } else {
            Search::Running
        }
    }

    /// Keeps a finished text if it is among the best.
    fn finish(&mut self, tokens: Vec<ScoredToken>, logprob: f64, reason: FinishReason) {
        let score = self.score(logprob, self.length);
        let full = self.finished.len() >= self.job.beams;
        if full && score <= self.worst_score() {
            return;
        }
        if full {
            let finished = self.finished.iter().enumerate();
            if let Some((worst, _)) = finished.min_by(|(_, a), (_, b)| a.score.total_cmp(&b.score)) {
                self.finished.remove(worst);
            }
        }
        self.finished.push(Hypothesis { tokens, logprob, score, reason });
    }

    /// `logprob / tokens^length_penalty`.
    fn score(&self, logprob: f64, tokens: usize) -> f64 {
        logprob / (tokens as f64).powf(self.job.length_penalty)
    }

    fn worst_score(&self) -> f64 {
        self.finished.iter().map(|hypothesis| hypothesis.score).fold(f64::INFINITY, f64::min)
    }

    /// Returns whether the search may stop, according to `early_stopping`.
    fn is_settled(&self, best: f64) -> bool {
        if self.finished.len() < self.job.beams {
            return false;
        }
        match self.job.early_stopping {
            EarlyStopping::Yes => true,
            EarlyStopping::Never if self.job.length_penalty > 0.0 => {
                self.worst_score() >= self.score(best, self.job.max_tokens)
            }
            EarlyStopping::No | EarlyStopping::Never => self.worst_score() >= self.score(best, self.length),
        }
    }

    /// Texts that are cut at `max_tokens` compete with the finished ones.
    fn cut_running(&mut self) {
        for beam in std::mem::take(&mut self.running) {
            self.finish(beam.tokens, beam.logprob, FinishReason::Length);
        }
    }

    fn send_text(&self, choice: u32, tokens: &[ScoredToken], events: &mut Vec<Event>) {
        let decoder = Arc::clone(&self.vocabulary.decoder);
        let mut stream = TextStream::new(decoder, Arc::from([])).after_prompt(&self.before);
        for &ScoredToken { token, logprob } in tokens {
            let ends = self.vocabulary.eos_ids.contains(&token.id);
            let text = if ends { String::new() } else { stream.push(token) };
            let offset = if ends { stream.end_offset() } else { stream.token_offset() };
            let token = TokenText {
                token: TokenLogprob { id: token.id, logprob },
                top: Vec::new(),
                rank: None,
                number: None,
            };
            events.push(Event::Text { choice, text, tokens: 0, token: Some(token), offset });
        }
        let offset = stream.end_offset();
        events.push(Event::Text { choice, text: stream.finish(), tokens: 0, token: None, offset });
    }

    /// Sends the best texts. If there are fewer than `n`, the others are empty.
    fn send_best(&mut self, events: &mut Vec<Event>) {
        // Sorted ascending and read from the back: ties go to the text found last, as in Hugging Face's code.
        self.finished.sort_by(|a, b| a.score.total_cmp(&b.score));
        for choice in 0..self.job.n {
            let Some(best) = self.finished.pop() else {
                let reason = FinishReason::Length;
                events.push(Event::Finished {
                    choice,
                    reason,
                    stop_reason: None,
                    tokens: 0,
                    cumulative_logprob: None,
                });
                continue;
            };
            self.send_text(choice, &best.tokens, events);
            let reason = best.reason;
            let tokens = best.tokens.len();
            let cumulative_logprob = Some(best.logprob);
            events.push(Event::Finished { choice, reason, stop_reason: None, tokens, cumulative_logprob });
        }
    }
}

impl Decoding for BeamDecoding {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        self.in_step = (self.running.len() - self.computed).min(rows_max);
        self.running[self.computed..][..self.in_step].iter().map(|beam| beam.row.clone()).collect()
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        if self.job.max_tokens == 0 {
            self.send_best(events);
            return Ok(Progress::Done);
        }
        for row in 0..self.in_step {
            self.extend(self.computed + row, result, row)?;
        }
        self.computed += self.in_step;
        if self.computed < self.running.len() {
            return Ok(Progress::Running);
        }
        match self.next_length() {
            Search::Running => return Ok(Progress::Running),
            Search::Done => {}
            Search::Cut => self.cut_running(),
        }
        self.send_best(events);
        Ok(Progress::Done)
    }
}

/// Returns the ids of the `count` largest logits, the largest first. Ties go to the lower id.
pub(super) fn best_ids(logits: &[f32], count: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let best_first = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let count = count.min(ids.len());
    if count > 0 && count < ids.len() {
        ids.select_nth_unstable_by(count - 1, best_first);
    }
    ids.truncate(count);
    ids.sort_by(best_first);
    ids
}
