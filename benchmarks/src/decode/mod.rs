//! Greedy decoding in this process, as other libraries' `generate` does it: encoder or prompt, then so many tokens.
//!
//! In: token ids. Out: seconds, and the greedy ids by a run that is not timed. The end of sequence is never chosen
//! ([`TextJob::min_tokens`]), so that every run has the same length. Not here: what is printed ([`command`]).

pub mod command;
pub mod roofline;

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ntl_core::engine::{Event, Job, ModelInfo, Request, TextJob};
use ntl_engine::{Engine, JobEvents};
use ntl_models::LoadedModel;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::engine;

/// A model and what to ask it.
pub struct Decoder {
    engine: Engine,
    /// Asked in turn, from the first again when they are used up.
    prompts: Vec<Vec<u32>>,
    new_tokens: usize,
}

/// One timed run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Run {
    /// Prompts at once.
    pub batch: usize,
    /// From the ids of the prompts to the last token of the last answer.
    pub seconds: f64,
    /// Until the first token.
    pub first_seconds: f64,
    /// From one token of an answer to the next, on average.
    pub step_seconds: f64,
    /// New tokens a second, of all answers together.
    pub tokens_per_second: f64,
}

impl Decoder {
    /// # Errors
    /// When the operating system gives no thread.
    pub fn new(loaded: LoadedModel, prompts: Vec<Vec<u32>>, new_tokens: usize) -> anyhow::Result<Self> {
        Ok(Self { engine: engine(loaded)?, prompts, new_tokens })
    }

    /// What is loaded.
    pub fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    /// Decodes so many prompts at once.
    ///
    /// # Errors
    /// When the engine refuses or fails.
    pub fn run(&self, batch: usize) -> anyhow::Result<Run> {
        let started = Instant::now();
        let mut answers = self.engine.submit_all(self.jobs(batch, None))?;
        let mut first = None;
        for answer in &mut answers {
            while let Some(event) = next(answer)? {
                if let Event::Text { .. } = event {
                    first.get_or_insert_with(|| started.elapsed());
                }
            }
        }
        let (all, first) = (started.elapsed(), first.unwrap_or(Duration::ZERO));
        let steps = self.new_tokens.saturating_sub(1).max(1);
        Ok(Run {
            batch,
            seconds: all.as_secs_f64(),
            first_seconds: first.as_secs_f64(),
            step_seconds: (all - first).as_secs_f64() / steps as f64,
            tokens_per_second: (batch * self.new_tokens) as f64 / all.as_secs_f64(),
        })
    }

    /// The ids that [`Decoder::run`] decodes.
    ///
    /// # Errors
    /// When the engine refuses or fails.
    pub fn ids(&self, batch: usize) -> anyhow::Result<Vec<Vec<u32>>> {
        let answers = self.engine.submit_all(self.jobs(batch, Some(0)))?;
        let ids = |mut answer: JobEvents| {
            let mut ids = Vec::new();
            while let Some(event) = next(&mut answer)? {
                if let Event::Text { token: Some(decoded), .. } = event {
                    ids.push(decoded.token.id);
                }
            }
            Ok(ids)
        };
        answers.into_iter().map(ids).collect()
    }

    fn jobs(&self, batch: usize, logprobs: Option<usize>) -> Vec<Job> {
        let (max_tokens, min_tokens) = (self.new_tokens, self.new_tokens);
        let text = TextJob { max_tokens, min_tokens, logprobs, ..TextJob::default() };
        let prompts = self.prompts.iter().cycle().take(batch);
        prompts.map(|prompt| Job::new(prompt.clone(), Request::Text(text.clone()))).collect()
    }
}

fn next(answer: &mut JobEvents) -> anyhow::Result<Option<Event>> {
    match answer.next_blocking() {
        Some(Event::Failed(error)) => bail!(error),
        event => Ok(event),
    }
}

/// Prompts of random ids, the same for the same seed; those of encoders end as their texts do.
pub fn random_prompts(info: &ModelInfo, count: usize, tokens: usize) -> Vec<Vec<u32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let end = info.eos_ids.first().filter(|_| info.encoder_decoder).copied();
    let mut prompt = || {
        let mut ids: Vec<u32> = (0..tokens).map(|_| rng.random_range(3..info.tokens as u32)).collect();
        if let (Some(last), Some(end)) = (ids.last_mut(), end) {
            *last = end;
        }
        ids
    };
    (0..count).map(|_| prompt()).collect()
}

/// Reads prompts: one a line, ids separated by spaces.
///
/// # Errors
/// When a line is empty or holds anything else.
pub fn parse_prompts(text: &str) -> anyhow::Result<Vec<Vec<u32>>> {
    let prompt = |(line, text): (usize, &str)| -> anyhow::Result<Vec<u32>> {
        let id =
            |word: &str| word.parse().with_context(|| format!("line {}: `{word}` is no token id", line + 1));
        let ids: Vec<u32> = text.split_whitespace().map(id).collect::<Result<_, _>>()?;
        if ids.is_empty() {
            bail!("line {} holds no token ids", line + 1)
        }
        Ok(ids)
    };
    let prompts: Vec<_> = text.lines().enumerate().map(prompt).collect::<Result<_, _>>()?;
    if prompts.is_empty() { bail!("there are no prompts") } else { Ok(prompts) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo;

    #[test]
    fn every_answer_has_as_many_tokens_as_were_asked_for_alone_and_in_a_batch() {
        let loaded = demo().unwrap();
        let prompts = random_prompts(loaded.model.info(), 3, 8);
        let decoder = Decoder::new(loaded, prompts, 20).unwrap();
        let (one, four) = (decoder.ids(1).unwrap(), decoder.ids(4).unwrap());
        assert!(four.iter().all(|ids| ids.len() == 20), "{four:?}");
        assert_eq!((&one[0], &four[0]), (&four[0], &four[3]));
        let run = decoder.run(4).unwrap();
        assert!(run.seconds >= run.first_seconds && run.tokens_per_second > 0.0, "{run:?}");
    }

    #[test]
    fn prompts_are_lines_of_ids() {
        assert_eq!(parse_prompts("3 4\n5\n").unwrap(), [vec![3, 4], vec![5]]);
        for (text, want) in [
            ("", "there are no prompts"),
            ("1\n\n2", "line 2 holds no token ids"),
            ("1 x", "line 1: `x` is no token id"),
        ] {
            assert_eq!(parse_prompts(text).unwrap_err().to_string(), want);
        }
    }
}
