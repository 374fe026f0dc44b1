//! Greedy decoding in this process, like `generate` in other libraries: the encoder or the prompt, then a
//! fixed number of tokens.
//!
//! In: token ids. Out: seconds. The greedy ids come from a separate run that is not timed. Timed answers
//! continue after the end-of-sequence token ([`TextJob::ignore_eos`]), so that every run has the same length.
//! [`command`] prints the results.

pub mod adapters;
pub mod command;
pub mod roofline;

use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ntl_core::contract::{Adapter, Event, Job, ModelInfo, Request, TextJob};
use ntl_engine::Engine;
use ntl_models::{gpu_wait, replayed_steps};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::setup::events;

pub struct Decoder {
    pub engine: Engine,
    /// A batch uses the prompts in order. If the batch is larger, it starts again with the first prompt.
    pub prompts: Vec<Vec<u32>>,
    pub new_tokens: usize,
    /// The adapters that the prompts of a batch may use in turn.
    pub adapters: Vec<Adapter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Run {
    pub batch: usize,
    /// Time from the ids of the prompts to the last token of the last answer.
    pub seconds: f64,
    /// Time to the first token of any answer.
    pub first_seconds: f64,
    /// Mean time between two tokens of an answer.
    pub step_seconds: f64,
    /// The part of `step_seconds` in which the host waits for the GPU. In the rest it enqueues the GPU's
    /// work.
    pub wait_seconds: f64,
    /// The share of the steps whose layers a GPU replayed as a CUDA graph.
    pub replayed: f64,
    /// Throughput of all answers together.
    pub tokens_per_second: f64,
}

impl Decoder {
    /// Decodes a batch without adapters.
    pub fn run(&self, batch: usize) -> anyhow::Result<Run> {
        self.run_jobs(self.jobs(batch, self.timed()), self.new_tokens)
    }

    /// Decodes one token of each prompt of a batch.
    pub fn prefill(&self, batch: usize) -> anyhow::Result<Run> {
        let jobs = self.jobs(batch, TextJob { max_tokens: 1, ..self.timed() });
        self.run_jobs(jobs, 1)
    }

    /// Decodes a batch with adapters.
    pub fn run_adapted(&self, batch: usize) -> anyhow::Result<Run> {
        let adapters = self.adapters.iter().cycle();
        let jobs = self.jobs(batch, self.timed()).into_iter().zip(adapters);
        let jobs = jobs.map(|(job, adapter)| Job { adapter: Some(adapter.clone()), ..job }).collect();
        self.run_jobs(jobs, self.new_tokens)
    }

    /// Texts that do not end at the end-of-sequence token. To ban it would need all logits of each row on the
    /// host.
    fn timed(&self) -> TextJob {
        TextJob { max_tokens: self.new_tokens, ignore_eos: true, ..TextJob::default() }
    }

    /// Runs jobs of `new_tokens` tokens each.
    fn run_jobs(&self, jobs: Vec<Job>, new_tokens: usize) -> anyhow::Result<Run> {
        let batch = jobs.len();
        let started = Instant::now();
        let mut first = None;
        let mut waited = Duration::ZERO;
        let mut replayed = 0;
        for answer in self.engine.submit_all(jobs)? {
            for event in events(answer) {
                if let Event::Text { .. } = event?
                    && first.is_none()
                {
                    first = Some(started.elapsed());
                    waited = gpu_wait();
                    replayed = replayed_steps();
                }
            }
        }
        let all = started.elapsed();
        let waited = gpu_wait().saturating_sub(waited);
        let replayed = replayed_steps() - replayed;
        let first = first.unwrap_or(Duration::ZERO);
        let steps = new_tokens.saturating_sub(1).max(1);
        Ok(Run {
            batch,
            seconds: all.as_secs_f64(),
            first_seconds: first.as_secs_f64(),
            step_seconds: (all - first).as_secs_f64() / steps as f64,
            wait_seconds: waited.as_secs_f64() / steps as f64,
            replayed: replayed as f64 / steps as f64,
            tokens_per_second: (batch * new_tokens) as f64 / all.as_secs_f64(),
        })
    }

    /// Returns greedy ids to compare with other programs, which also never choose the end-of-sequence token.
    pub fn ids(&self, batch: usize) -> anyhow::Result<Vec<Vec<u32>>> {
        let tokens = self.new_tokens;
        let text =
            TextJob { min_tokens: tokens, max_tokens: tokens, logprobs: Some(0), ..TextJob::default() };
        let mut rows = Vec::new();
        for answer in self.engine.submit_all(self.jobs(batch, text))? {
            let mut ids = Vec::new();
            for event in events(answer) {
                if let Event::Text { token: Some(decoded), .. } = event? {
                    ids.push(decoded.token.id);
                }
            }
            rows.push(ids);
        }
        Ok(rows)
    }

    fn jobs(&self, batch: usize, text: TextJob) -> Vec<Job> {
        let prompts = self.prompts.iter().cycle().take(batch);
        prompts.map(|prompt| Job::new(prompt.clone(), Request::Text(text.clone()))).collect()
    }
}

/// Length of random prompts, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptTokens {
    pub min: usize,
    pub max: usize,
}

impl FromStr for PromptTokens {
    type Err = String;

    /// Parses `64` or `260-440`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min), Ok(max)) if 1 <= min && min <= max => Ok(Self { min, max }),
            _ => Err("expected a number of at least 1, or a range such as 260-440".to_owned()),
        }
    }
}

/// Returns prompts of random ids, identical in every run. Prompts for encoders end with the end-of-sequence
/// id, as tokenized texts do.
pub fn random_prompts(info: &ModelInfo, count: usize, tokens: PromptTokens) -> Vec<Vec<u32>> {
    let PromptTokens { min, max } = tokens;
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut prompts = Vec::with_capacity(count);
    for _ in 0..count {
        // Prompts of a single length must stay identical to those in earlier measurements.
        let tokens = if min == max { min } else { rng.random_range(min..=max) };
        let mut ids: Vec<u32> = (0..tokens).map(|_| rng.random_range(3..info.tokens as u32)).collect();
        if info.encoder_decoder
            && let (Some(last), Some(end)) = (ids.last_mut(), info.eos_ids.first())
        {
            *last = *end;
        }
        prompts.push(ids);
    }
    prompts
}

/// Reads prompts: one per line, ids separated by spaces.
pub fn parse_prompts(text: &str) -> anyhow::Result<Vec<Vec<u32>>> {
    let mut prompts = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let mut ids = Vec::new();
        for word in text.split_whitespace() {
            ids.push(word.parse().with_context(|| format!("line {line}: `{word}` is not a token id"))?);
        }
        ensure!(!ids.is_empty(), "line {line} has no token ids");
        prompts.push(ids);
    }
    ensure!(!prompts.is_empty(), "there are no prompts");
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::setup::{demo, engine};

    #[test]
    fn every_answer_has_the_requested_number_of_tokens_alone_and_in_a_batch() {
        let loaded = demo().unwrap();
        let prompts = random_prompts(loaded.model.info(), 3, PromptTokens { min: 8, max: 8 });
        let adapters = Vec::new();
        let decoder = Decoder { engine: engine(loaded).unwrap(), prompts, new_tokens: 20, adapters };
        let one = decoder.ids(1).unwrap();
        let four = decoder.ids(4).unwrap();
        assert!(four.iter().all(|ids| ids.len() == 20), "{four:?}");
        assert_eq!((&one[0], &four[0]), (&four[0], &four[3]));
        let run = decoder.run(4).unwrap();
        assert!(run.first_seconds > 0.0 && run.seconds > run.first_seconds, "{run:?}");
        assert!((run.tokens_per_second * run.seconds - 80.0).abs() < 1e-6, "{run:?}");
        assert!((run.first_seconds + 19.0 * run.step_seconds - run.seconds).abs() < 1e-6, "{run:?}");
    }

    #[test]
    fn random_prompts_have_the_requested_lengths() {
        let tokens: PromptTokens = "5-9".parse().unwrap();
        let prompts = random_prompts(demo().unwrap().model.info(), 100, tokens);
        let lengths: BTreeSet<usize> = prompts.iter().map(Vec::len).collect();
        assert_eq!(lengths, (5..=9).collect());
        assert_eq!("64".parse(), Ok(PromptTokens { min: 64, max: 64 }));
        for wrong in ["", "0", "9-5", "x", "0-3", "3-"] {
            assert!(wrong.parse::<PromptTokens>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn prompts_are_lines_of_ids() {
        assert_eq!(parse_prompts("3 4\n5\n").unwrap(), [vec![3, 4], vec![5]]);
        for (text, want) in [
            ("", "there are no prompts"),
            ("1\n\n2", "line 2 has no token ids"),
            ("1 x", "line 1: `x` is not a token id"),
        ] {
            assert_eq!(parse_prompts(text).unwrap_err().to_string(), want);
        }
    }
}
