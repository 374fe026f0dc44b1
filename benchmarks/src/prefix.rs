//! `ntl-bench prefix`: questions behind the same worked examples, with and without the cache of prompts' beginnings.
//!
//! Every setting loads the model anew. The first request finds nothing in the cache and is told apart; the others then
//! come so many at a time, each group when the one before is answered.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ntl_core::engine::{Event, Job, Prompt, Request, TextJob};
use ntl_engine::Engine;
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::tokenizer::Tokenizer;
use ntl_models::{DtypeChoice, LoadOptions, load};
use serde::{Deserialize, Serialize};

use crate::engine;
use crate::load::Workload;
use crate::spread::Spread;

/// Prompts that begin alike.
#[derive(Debug, clap::Args)]
pub struct PrefixArgs {
    /// Checkpoint folder of a decoder-only model
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Questions and answers in the form of GSM8K (`test.jsonl`). Default: made-up ones
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Worked examples in front of every question
    #[arg(long, default_value_t = 8)]
    shots: usize,
    /// Requests at once, several separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    concurrent: Vec<usize>,
    /// Questions of each setting, beside the first one
    #[arg(long, default_value_t = 16)]
    requests: usize,
    /// Tokens of each answer
    #[arg(long, default_value_t = 4)]
    new_tokens: usize,
    /// Element type of the weights in memory
    #[arg(long, default_value = "auto", value_parser = str::parse::<DtypeChoice>)]
    dtype: DtypeChoice,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// A question with its answer.
#[derive(Debug, Clone, Deserialize)]
struct Item {
    question: String,
    answer: String,
}

/// What one setting showed.
#[derive(Debug, Serialize)]
struct Row {
    cached: bool,
    concurrent: usize,
    /// Until the first token of the first request.
    first_request_seconds: f64,
    /// Until the first token of each other one, from when its group was sent.
    first_seconds: Spread,
    /// Tokens of the other prompts by the time until the last of each group had its first token.
    prompt_tokens_per_second: f64,
}

/// Measures as the arguments say.
///
/// # Errors
/// When the model does not load or is none that shares beginnings, a request fails, or the output cannot be written.
pub fn run(args: &PrefixArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    ensure!(args.concurrent.iter().all(|&level| level > 0), "--concurrent must be at least 1");
    ensure!(args.requests > 0 && args.new_tokens > 0, "there has to be a request, and a token");
    let items = items(args)?;
    let (mut rows, mut tokens) = (Vec::new(), 0);
    for &concurrent in &args.concurrent {
        for cached in [false, true] {
            let (engine, prompts) = open(args, &items, cached)?;
            tokens = prompts.iter().map(Prompt::len).sum::<usize>() / prompts.len().max(1);
            rows.push(measure(args, &engine, &prompts, (cached, concurrent))?);
        }
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(());
    }
    writeln!(out, "{} examples, prompts of {tokens} tokens on average\n", args.shots)?;
    writeln!(out, "| cache | at once | first request ms | time to first token ms | prompt tokens/s |")?;
    writeln!(out, "|---|---:|---:|---:|---:|")?;
    for row in rows {
        let (cache, first) = (if row.cached { "on" } else { "off" }, row.first_request_seconds * 1e3);
        let (others, rate) = (row.first_seconds.times(1e3), row.prompt_tokens_per_second);
        writeln!(out, "| {cache} | {} | {first:.0} | {others:.0} | {rate:.0} |", row.concurrent)?;
    }
    Ok(())
}

/// The examples, the first question, and the others.
fn items(args: &PrefixArgs) -> anyhow::Result<Vec<Item>> {
    let wanted = args.shots + 1 + args.requests;
    let items = match &args.data {
        Some(file) => read(file, wanted)?,
        None => made_up(wanted),
    };
    ensure!(items.len() == wanted, "{} questions are too few for {wanted}", items.len());
    Ok(items)
}

fn read(file: &Path, count: usize) -> anyhow::Result<Vec<Item>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let item = |line| serde_json::from_str(line).with_context(|| format!("{}: {line}", file.display()));
    text.lines().take(count).map(item).collect()
}

/// As long as those of GSM8K are.
fn made_up(count: usize) -> Vec<Item> {
    let item = |sum: String| {
        Item {
        question: format!(
            "A shop that is open on six days of the week counts what it sold and what was brought back, and the \
             owner, who wants to know what is left, writes all of it down in the evening. {sum}"
        ),
        answer: "First we look at what the question gives. Then we take each step by itself and write down what it \
                 comes to. At last we put the steps together and read off the answer.\n#### 42"
            .to_owned(),
    }
    };
    Workload::arithmetic(count, 0).into_iter().map(item).collect()
}

fn open(args: &PrefixArgs, items: &[Item], cached: bool) -> anyhow::Result<(Engine, Vec<Prompt>)> {
    let mut options = LoadOptions { dtype: args.dtype, ..LoadOptions::default() };
    if !cached {
        options.prefix_bytes_max = 0;
    }
    let loaded = load(&CheckpointFiles::folder(&args.model)?, options)?;
    let info = loaded.model.info();
    ensure!(
        !info.encoder_decoder,
        "a {} shares no beginnings: every token of a prompt sees all others",
        info.kind
    );
    let prompts = prompts(&loaded.tokenizer, items, args.shots)?;
    Ok((engine(loaded)?, prompts))
}

fn prompts(tokenizer: &Tokenizer, items: &[Item], shots: usize) -> anyhow::Result<Vec<Prompt>> {
    let (examples, asked) = items.split_at(shots);
    let example = |item: &Item| format!("Question: {}\nAnswer: {}\n\n", item.question, item.answer);
    let examples: String = examples.iter().map(example).collect();
    let prompt = |item: &Item| {
        let text = format!("{examples}Question: {}\nAnswer:", item.question);
        Ok(tokenizer.encode_prompt(&text, false)?)
    };
    asked.iter().map(prompt).collect()
}

fn measure(
    args: &PrefixArgs,
    engine: &Engine,
    prompts: &[Prompt],
    (cached, concurrent): (bool, usize),
) -> anyhow::Result<Row> {
    let (first, others) = prompts.split_first().context("there is no prompt")?;
    let ask = |prompts: &[Prompt]| group(engine, prompts, args.new_tokens);
    let first = ask(std::slice::from_ref(first))?;
    let (mut times, mut waited) = (Vec::new(), Duration::ZERO);
    for group in others.chunks(concurrent) {
        let group = ask(group)?;
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

/// Asks all prompts at once and says how long each waited for its first token.
fn group(engine: &Engine, prompts: &[Prompt], new_tokens: usize) -> anyhow::Result<Vec<Duration>> {
    let text = TextJob { max_tokens: new_tokens, min_tokens: new_tokens, ..TextJob::default() };
    let job = |prompt: &Prompt| Job::new(prompt.clone(), Request::Text(text.clone()));
    let started = Instant::now();
    let answers = engine.submit_all(prompts.iter().map(job).collect())?;
    // Each answer has a reader of its own, since they begin in any order.
    std::thread::scope(|scope| {
        let readers: Vec<_> = answers
            .into_iter()
            .map(|mut answer| {
                scope.spawn(move || {
                    let mut first = None;
                    while let Some(event) = answer.next_blocking() {
                        match event {
                            Event::Failed(error) => bail!(error),
                            _ => first.get_or_insert_with(|| started.elapsed()),
                        };
                    }
                    first.context("an answer had no tokens")
                })
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().ok().context("a reader failed")?).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_their_examples_and_differ_in_their_questions() {
        let tokenizer = crate::demo().unwrap().tokenizer;
        let prompts = prompts(&tokenizer, &made_up(5), 3).unwrap();
        let [one, two] = &prompts[..] else { panic!("{} prompts", prompts.len()) };
        let shared = one.tokens.iter().zip(&two.tokens).take_while(|(a, b)| a == b).count();
        assert!(one != two && shared * 4 > one.len() * 3, "{shared} of {} tokens", one.len());
    }
}
