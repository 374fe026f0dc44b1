//! `ntl-bench decode`: measures batches in turn and writes a table or JSON. With `--batch -` it answers one command a line
//! of standard input, so that another program can alternate between this one and others.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use ntl_core::engine::Dtype;
use ntl_models::{DeviceChoice, DtypeChoice, KvCacheDtype, LoadOptions};
use serde::Serialize;
use serde_json::{Value, json};

use super::roofline::Roofline;
use super::{Decoder, PromptTokens, Run, parse_prompts, random_prompts};
use crate::setup;
use crate::stats::Spread;
use crate::table::write_table;

/// Timed runs of one row behind the roofline.
const ROOFLINE_RUNS: usize = 5;

/// Greedy decoding in this process, without a server.
#[derive(Debug, clap::Args)]
pub struct DecodeArgs {
    /// Checkpoint folder
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Prompts: one a line, token ids separated by spaces. Default: random ids
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Tokens of each random prompt; `260-440` gives each another length between these
    #[arg(long, default_value = "64", value_parser = str::parse::<PromptTokens>)]
    prompt_tokens: PromptTokens,
    /// Tokens of each answer; the end of sequence is never chosen
    #[arg(long, default_value_t = 32)]
    new_tokens: usize,
    /// Prompts at once, several separated by commas. `-` reads lines from standard input and answers each with a line of
    /// JSON: `8` measures a batch of 8, `ids 8` returns the ids it decodes, `roofline` compares with memory
    #[arg(long, default_value = "1,8,32")]
    batch: String,
    /// Threads to compute with. Default: all processors
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_parser = str::parse::<DeviceChoice>)]
    device: DeviceChoice,
    /// Element type of the weights in memory
    #[arg(long, default_value = "auto", value_parser = str::parse::<DtypeChoice>)]
    dtype: DtypeChoice,
    /// Element type of keys and values: auto or bf16
    #[arg(long, default_value = "auto", value_parser = str::parse::<KvCacheDtype>)]
    kv_cache_dtype: KvCacheDtype,
    /// How often each batch is measured, in turn with the others, after one run that does not count
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print JSON instead of a table; greedy ids included
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    batch: usize,
    tokens_per_second: Spread,
    first_seconds: Spread,
    step_seconds: Spread,
    runs: Vec<Run>,
    ids: Vec<Vec<u32>>,
}

pub fn run(args: &DecodeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    ensure!(args.new_tokens > 0, "--new-tokens must be at least 1");
    let threads = args.threads.unwrap_or(0);
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    let decoder = open(args)?;
    if args.batch == "-" {
        return serve(args, &decoder, out);
    }
    let batches: Vec<usize> = args
        .batch
        .split(',')
        .map(|batch| batch.parse().context(format!("--batch {batch}")))
        .collect::<Result<_, _>>()?;
    let rows = measure(args, &decoder, &batches)?;
    let roofline = roofline(args, &decoder)?;
    if args.json {
        let all = json!({ "about": about(args, &decoder), "batches": rows, "roofline": roofline });
        return Ok(writeln!(out, "{all:#}")?);
    }
    let cells = rows.iter().map(|row| {
        let [first, step] = [row.first_seconds, row.step_seconds].map(|seconds| seconds.times(1e3));
        let rate = row.tokens_per_second;
        format!("{} | {rate:.1} | {first:.1} | {step:.2}", row.batch)
    });
    write_table(out, 0, "batch | tokens/s | first token ms | step ms", cells)?;
    Ok(writeln!(out, "\n{}", roofline.line())?)
}

fn open(args: &DecodeArgs) -> anyhow::Result<Decoder> {
    let options = LoadOptions {
        device: args.device,
        dtype: args.dtype,
        kv_cache_dtype: args.kv_cache_dtype,
        prefix_bytes_max: 0,
        ..LoadOptions::default()
    };
    let loaded = setup::open(Some(&args.model), options)?;
    let prompts = match &args.ids {
        None => random_prompts(loaded.model.info(), 64, args.prompt_tokens),
        Some(file) => parse_prompts(&setup::read(file)?).with_context(|| file.display().to_string())?,
    };
    Ok(Decoder { engine: setup::engine(loaded)?, prompts, new_tokens: args.new_tokens })
}

fn about(args: &DecodeArgs, decoder: &Decoder) -> Value {
    let info = decoder.engine.info();
    json!({
        "name": "ntl", "version": env!("CARGO_PKG_VERSION"), "model": args.model, "kind": info.kind.name(),
        "dtype": info.dtype.name(), "kv_cache_dtype": info.kv_cache_dtype.as_ref().map(Dtype::name), "parameters": info.parameters,
        "threads": rayon::current_num_threads(),
        "prompt_tokens": decoder.prompts.first().map(Vec::len), "new_tokens": args.new_tokens,
    })
}

fn measure(args: &DecodeArgs, decoder: &Decoder, batches: &[usize]) -> anyhow::Result<Vec<Row>> {
    let mut runs = vec![Vec::new(); batches.len()];
    for round in 0..=args.rounds.max(1) {
        for (&batch, runs) in batches.iter().zip(&mut runs) {
            let run = decoder.run(batch)?;
            if round > 0 {
                runs.push(run);
            }
        }
    }
    let row = |(&batch, runs): (&usize, Vec<Run>)| {
        let spread = |of: fn(&Run) -> f64| Spread::of(runs.iter().map(of));
        Ok(Row {
            batch,
            tokens_per_second: spread(|run| run.tokens_per_second),
            first_seconds: spread(|run| run.first_seconds),
            step_seconds: spread(|run| run.step_seconds),
            ids: decoder.ids(batch)?,
            runs,
        })
    };
    batches.iter().zip(runs).map(row).collect()
}

fn roofline(args: &DecodeArgs, decoder: &Decoder) -> anyhow::Result<Roofline> {
    decoder.run(1)?;
    let steps: Vec<f64> =
        (0..ROOFLINE_RUNS).map(|_| Ok(decoder.run(1)?.step_seconds)).collect::<anyhow::Result<_>>()?;
    Roofline::of(&args.model, decoder.engine.info().dtype.name(), &steps, &args.device.open()?)
}

/// Answers each line of standard input until it ends.
fn serve(args: &DecodeArgs, decoder: &Decoder, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut answer = |answer: Value| -> anyhow::Result<()> {
        writeln!(out, "{answer}")?;
        Ok(out.flush()?)
    };
    answer(about(args, decoder))?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let batch =
            |text: &str| text.trim().parse::<usize>().with_context(|| format!("`{line}` is not a command"));
        answer(match line.strip_prefix("ids ") {
            _ if line == "roofline" => serde_json::to_value(roofline(args, decoder)?)?,
            Some(rest) => json!({ "ids": decoder.ids(batch(rest)?)? }),
            None => serde_json::to_value(decoder.run(batch(&line)?)?)?,
        })?;
    }
    Ok(())
}
