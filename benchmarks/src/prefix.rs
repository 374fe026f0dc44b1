//! `ntl-bench prefix`: questions after the same worked examples, with and without the prefix cache.
//!
//! Every setting reloads the model. The first request finds an empty cache and is reported separately. The
//! others are sent in groups; each group is sent when the previous one is complete.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ntl_core::contract::{Job, Prompt, Request, TextJob};
use ntl_engine::{Engine, JobEvents};
use ntl_models::{DtypeChoice, LoadOptions};
use ntl_text::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::load::workload::arithmetic_questions;
use crate::setup::{self, engine, events};
use crate::stats::Spread;
use crate::table::write_table;

/// Prompts that share a prefix.
#[derive(Debug, clap::Args)]
pub struct PrefixArgs {
    /// Checkpoint directory of a decoder-only model
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Questions and answers in GSM8K's format (`test.jsonl`). Default: made-up ones
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Number of worked examples before every question
    #[arg(long, default_value_t = 8)]
    shots: usize,
    /// Numbers of concurrent requests, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    concurrent: Vec<usize>,
    /// Number of questions per setting, not counting the first one
    #[arg(long, default_value_t = 16)]
    requests: usize,
    /// Number of tokens in each answer
    #[arg(long, default_value_t = 4)]
    new_tokens: usize,
    /// Element type of the weights in memory
    #[arg(long, default_value = "auto", value_parser = str::parse::<DtypeChoice>)]
    dtype: DtypeChoice,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct Item {
    question: String,
    answer: String,
}

#[derive(Debug, Serialize)]
struct Row {
    cached: bool,
    concurrent: usize,
    /// Time to the first token of the first request.
    first_request_seconds: f64,
    /// Time to the first token of the other requests, from when their group was sent.
    first_seconds: Spread,
    /// Tokens of the other prompts, divided by the time until all requests of each group had their first
    /// token.
    prompt_tokens_per_second: f64,
}

pub fn run(args: &PrefixArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    ensure!(args.concurrent.iter().all(|&level| level > 0), "--concurrent must be at least 1");
    ensure!(args.requests > 0 && args.new_tokens > 0, "--requests and --new-tokens must be at least 1");
    let items = items(args)?;
    let mut rows = Vec::new();
    let mut tokens = 0;
    for &concurrent in &args.concurrent {
        for cached in [false, true] {
            let (engine, prompts) = open(args, &items, cached)?;
            tokens = prompts.iter().map(Prompt::len).sum::<usize>() / prompts.len().max(1);
            rows.push(measure(args, &engine, &prompts, cached, concurrent)?);
        }
    }
    if args.json {
        return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?);
    }
    writeln!(out, "{} examples, prompts of {tokens} tokens on average\n", args.shots)?;
    let header = "cache | concurrent | first request ms | time to first token ms | prompt tokens/s";
    let cells = rows.iter().map(|row| {
        let cache = if row.cached { "on" } else { "off" };
        let first = row.first_request_seconds * 1e3;
        let others = row.first_seconds.times(1e3);
        let rate = row.prompt_tokens_per_second;
        format!("{cache} | {} | {first:.0} | {others:.0} | {rate:.0}", row.concurrent)
    });
    Ok(write_table(out, 1, header, cells)?)
}

/// Returns the worked examples, the question of the first request, and the questions of the others.
fn items(args: &PrefixArgs) -> anyhow::Result<Vec<Item>> {
    let count = args.shots + 1 + args.requests;
    let Some(file) = &args.data else { return Ok(made_up(count)) };
    let place = file.display();
    let text = setup::read(file)?;
    let mut items = Vec::new();
    for line in text.lines().take(count) {
        items.push(serde_json::from_str(line).with_context(|| format!("{place}: {line}"))?);
    }
    ensure!(items.len() == count, "{place} has {} questions, but {count} are needed", items.len());
    Ok(items)
}

/// Returns made-up items of about GSM8K's length.
fn made_up(count: usize) -> Vec<Item> {
    const STORY: &str = "A shop that is open on six days of the week counts what it sold and what was \
                         brought back, and the owner, who wants to know what is left, writes all of it \
                         down in the evening.";
    const ANSWER: &str = "First we look at what the question gives. Then we take each step by itself and \
                          write down what it comes to. At last we put the steps together and read off \
                          the answer.\n#### 42";
    let mut items = Vec::with_capacity(count);
    for sum in arithmetic_questions(count, 0) {
        items.push(Item { question: format!("{STORY} {sum}"), answer: ANSWER.to_owned() });
    }
    items
}

fn open(args: &PrefixArgs, items: &[Item], cached: bool) -> anyhow::Result<(Engine, Vec<Prompt>)> {
    let mut options = LoadOptions { dtype: args.dtype, ..LoadOptions::default() };
    if !cached {
        options.prefix_bytes_max = 0;
    }
    let loaded = setup::open(Some(&args.model), options)?;
    let info = loaded.model.info();
    ensure!(
        !info.encoder_decoder,
        "{} cannot share prefixes: each token of an encoder's prompt attends to all others",
        info.kind
    );
    let prompts = prompts(&loaded.tokenizer, items, args.shots)?;
    Ok((engine(loaded)?, prompts))
}

fn prompts(tokenizer: &Tokenizer, items: &[Item], shots: usize) -> anyhow::Result<Vec<Prompt>> {
    let (examples, questions) = items.split_at(shots);
    let examples: String = examples
        .iter()
        .map(|item| format!("Question: {}\nAnswer: {}\n\n", item.question, item.answer))
        .collect();
    let mut prompts = Vec::with_capacity(questions.len());
    for item in questions {
        let text = format!("{examples}Question: {}\nAnswer:", item.question);
        prompts.push(tokenizer.encode_prompt(&text, false)?);
    }
    Ok(prompts)
}

fn measure(
    args: &PrefixArgs,
    engine: &Engine,
    prompts: &[Prompt],
    cached: bool,
    concurrent: usize,
) -> anyhow::Result<Row> {
    let (first, others) = prompts.split_at(1);
    let first = first_tokens(engine, first, args.new_tokens)?;
    let mut times = Vec::new();
    let mut waited = Duration::ZERO;
    for group in others.chunks(concurrent) {
        let group = first_tokens(engine, group, args.new_tokens)?;
        waited += group.iter().max().copied().unwrap_or_default();
        times.extend(group);
    }
    let tokens: usize = others.iter().map(Prompt::len).sum();
    Ok(Row {
        cached,
        concurrent,
        first_request_seconds: first.iter().map(Duration::as_secs_f64).sum(),
        first_seconds: Spread::of(times.iter().map(Duration::as_secs_f64)),
        prompt_tokens_per_second: tokens as f64 / waited.as_secs_f64(),
    })
}

/// Sends all prompts concurrently and returns the time to the first token of each.
fn first_tokens(engine: &Engine, prompts: &[Prompt], new_tokens: usize) -> anyhow::Result<Vec<Duration>> {
    let text = TextJob { max_tokens: new_tokens, min_tokens: new_tokens, ..TextJob::default() };
    let started = Instant::now();
    let jobs = prompts.iter().map(|prompt| Job::new(prompt.clone(), Request::Text(text.clone())));
    let answers = engine.submit_all(jobs.collect())?;
    // Each answer has a separate reader, since the answers may start in any order.
    std::thread::scope(|scope| {
        let mut readers = Vec::with_capacity(answers.len());
        for answer in answers {
            readers.push(scope.spawn(move || first_token(answer, started)));
        }
        readers.into_iter().map(|reader| reader.join().ok().context("a reader panicked")?).collect()
    })
}

/// Reads a whole answer. Returns the time from `started` to its first token.
fn first_token(answer: JobEvents, started: Instant) -> anyhow::Result<Duration> {
    let mut first = None;
    for event in events(answer) {
        event?;
        first.get_or_insert_with(|| started.elapsed());
    }
    first.context("an answer has no tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_their_examples_and_differ_in_their_questions() {
        let tokenizer = setup::demo().unwrap().tokenizer;
        let prompts = prompts(&tokenizer, &made_up(5), 3).unwrap();
        let [one, two] = &prompts[..] else { panic!("{} prompts", prompts.len()) };
        let shared = one.tokens.iter().zip(&two.tokens).take_while(|(a, b)| a == b).count();
        assert!(one != two && shared * 4 > one.len() * 3, "{shared} of {} tokens", one.len());
    }
}
