//! `ntl-bench decode`: measures batches in alternation and writes a table or JSON. With `--batch -` it reads
//! one command per line from standard input, so that another program can alternate between this one and
//! others.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use ntl_core::contract::Dtype;
use ntl_models::{DeviceChoice, DtypeChoice, KernelChoice, KvCacheDtype, LoadOptions, open_device};
use serde::Serialize;
use serde_json::{Value, json};

use super::adapters::AdapterArgs;
use super::roofline::Roofline;
use super::{Decoder, PromptTokens, Run, parse_prompts, random_prompts};
use crate::setup;
use crate::stats::Spread;
use crate::table::write_table;

/// Number of timed one-row runs for the roofline, if no measured batch has one row.
const ROOFLINE_RUNS: usize = 5;

/// The batch of the roofline.
const ONE_ROW: Load = Load { batch: 1, adapted: false };

/// Greedy decoding in this process, without a server.
#[derive(Debug, clap::Args)]
pub struct DecodeArgs {
    /// Checkpoint directory
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Prompts: one per line, token ids separated by spaces. Default: random ids
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Number of tokens in each random prompt; `260-440` draws a length in this range for each prompt
    #[arg(long, default_value = "64", value_parser = str::parse::<PromptTokens>)]
    prompt_tokens: PromptTokens,
    /// Number of tokens in each answer, which does not end at the end-of-sequence token
    #[arg(long, default_value_t = 32)]
    new_tokens: usize,
    /// Numbers of concurrent prompts, separated by commas. `-` reads commands from standard input and writes
    /// one line of JSON for each: `8` measures a batch of 8, `prefill 8` measures one token of each prompt,
    /// `ids 8` returns the ids it decodes, `roofline` compares with the memory bandwidth
    #[arg(long, default_value = "1,8,32")]
    batch: String,
    /// Number of compute threads. Default: all CPUs
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_parser = str::parse::<DeviceChoice>)]
    device: DeviceChoice,
    /// Element type of the weights in memory
    #[arg(long, default_value = "auto", value_parser = str::parse::<DtypeChoice>)]
    dtype: DtypeChoice,
    /// Element type of keys and values: auto, bf16 or fp8
    #[arg(long, default_value = "auto", value_parser = str::parse::<KvCacheDtype>)]
    kv_cache_dtype: KvCacheDtype,
    /// Kernels on a GPU: auto, own or composed
    #[arg(long, default_value = "auto", value_parser = str::parse::<KernelChoice>)]
    kernels: KernelChoice,
    /// Launch each step's layers on a GPU one by one, instead of together as a CUDA graph
    #[arg(long)]
    no_cuda_graphs: bool,
    /// Number of measurements of each batch size, in alternation with the others, after one warm-up run
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print JSON, including greedy ids, instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    adapters: AdapterArgs,
}

/// A batch to measure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Load {
    batch: usize,
    /// Whether its prompts use adapters.
    adapted: bool,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    load: Load,
    tokens_per_second: Spread,
    first_seconds: Spread,
    step_seconds: Spread,
    wait_seconds: Spread,
    replayed: Spread,
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
    let has_adapters = !decoder.adapters.is_empty();
    let loads = loads(&args.batch, has_adapters)?;
    let measured =
        measure(
            &loads,
            args.rounds,
            |Load { batch, adapted }| {
                if adapted { decoder.run_adapted(batch) } else { decoder.run(batch) }
            },
        )?;
    let roofline = roofline(args, &decoder, &one_row_steps(&measured, |batch| decoder.run(batch))?)?;
    let rows = measured.into_iter().map(|measured| row(args, &decoder, measured));
    let rows: Vec<Row> = rows.collect::<anyhow::Result<_>>()?;
    if args.json {
        let all = json!({ "about": about(args, &decoder), "batches": rows, "roofline": roofline });
        return Ok(writeln!(out, "{all:#}")?);
    }
    write_rows(&rows, decoder.adapters.len(), !open_device(args.device)?.is_cpu(), out)?;
    if has_adapters {
        for [plain, adapted] in rows.as_chunks().0 {
            write_ratios(plain, adapted, out)?;
        }
    }
    Ok(writeln!(out, "\n{}", roofline.line())?)
}

/// Parses the numbers of prompts. Each is measured without adapters and, if there are some, with them.
fn loads(batches: &str, has_adapters: bool) -> anyhow::Result<Vec<Load>> {
    let mut loads = Vec::new();
    for text in batches.split(',') {
        let batch = text.parse().with_context(|| format!("--batch {text}"))?;
        loads.push(Load { batch, adapted: false });
        if has_adapters {
            loads.push(Load { batch, adapted: true });
        }
    }
    Ok(loads)
}

fn write_rows(rows: &[Row], adapters: usize, on_gpu: bool, out: &mut dyn Write) -> io::Result<()> {
    let cells = rows.iter().map(|row| {
        let milliseconds = [row.first_seconds, row.step_seconds, row.wait_seconds];
        let [first, step, wait] = milliseconds.map(|seconds| seconds.times(1e3));
        let rate = row.tokens_per_second;
        let adapters = if row.load.adapted { adapters } else { 0 };
        let all = format!("{} | {adapters} | {rate:.1} | {first:.1} | {step:.2}", row.load.batch);
        if on_gpu { format!("{all} | {wait:.2} | {:.0}", row.replayed.times(100.0)) } else { all }
    });
    let header = "batch | adapters | tokens/s | first token ms | step ms";
    let header = if on_gpu { format!("{header} | of it waiting ms | % replayed") } else { header.to_owned() };
    write_table(out, 0, &header, cells)
}

/// Writes the speed of a batch with adapters in relation to its speed without them.
fn write_ratios(plain: &Row, adapted: &Row, out: &mut dyn Write) -> io::Result<()> {
    let mut tokens = Vec::new();
    let mut steps = Vec::new();
    for (plain, adapted) in plain.runs.iter().zip(&adapted.runs) {
        tokens.push(adapted.tokens_per_second / plain.tokens_per_second);
        steps.push(adapted.step_seconds.recip() / plain.step_seconds.recip());
    }
    let (all, steps) = (Spread::of(tokens), Spread::of(steps));
    let batch = plain.load.batch;
    writeln!(out, "\nbatch {batch} with adapters: {all:.2} times the tokens/s, {steps:.2} times the steps/s")
}

fn open(args: &DecodeArgs) -> anyhow::Result<Decoder> {
    let options = LoadOptions {
        device: args.device,
        dtype: args.dtype,
        kv_cache_dtype: args.kv_cache_dtype,
        kernels: args.kernels,
        cuda_graphs: !args.no_cuda_graphs,
        prefix_bytes_max: 0,
        ..LoadOptions::default()
    };
    let loaded = setup::open(Some(&args.model), options)?;
    let prompts = match &args.ids {
        None => random_prompts(loaded.model.info(), 64, args.prompt_tokens),
        Some(file) => parse_prompts(&setup::read(file)?).with_context(|| file.display().to_string())?,
    };
    let adapters = args.adapters.create(loaded.adapters.as_ref())?;
    Ok(Decoder { engine: setup::engine(loaded)?, prompts, new_tokens: args.new_tokens, adapters })
}

fn about(args: &DecodeArgs, decoder: &Decoder) -> Value {
    let info = decoder.engine.info();
    json!({
        "name": "ntl", "version": env!("CARGO_PKG_VERSION"), "model": args.model, "kind": info.kind,
        "dtype": info.dtype.name(), "kv_cache_dtype": info.kv_cache_dtype.as_ref().map(Dtype::name), "parameters": info.parameters,
        "threads": rayon::current_num_threads(),
        "prompt_tokens": decoder.prompts.first().map(Vec::len), "new_tokens": args.new_tokens,
    })
}

/// The timed runs of one batch.
struct Measured {
    load: Load,
    runs: Vec<Run>,
}

/// Runs each batch once to warm up, then once in each round.
fn measure(
    loads: &[Load],
    rounds: usize,
    mut run: impl FnMut(Load) -> anyhow::Result<Run>,
) -> anyhow::Result<Vec<Measured>> {
    let mut measured: Vec<_> = loads.iter().map(|&load| Measured { load, runs: Vec::new() }).collect();
    for round in 0..=rounds.max(1) {
        for Measured { load, runs } in &mut measured {
            let run = run(*load)?;
            if round > 0 {
                runs.push(run);
            }
        }
    }
    Ok(measured)
}

/// Returns seconds per step with one row. Runs a batch of one only if none was measured: each run repeats the
/// prefill, which takes most of the time if prompts are long.
fn one_row_steps(
    measured: &[Measured],
    mut run: impl FnMut(usize) -> anyhow::Result<Run>,
) -> anyhow::Result<Vec<f64>> {
    if let Some(Measured { runs, .. }) = measured.iter().find(|measured| measured.load == ONE_ROW) {
        return Ok(runs.iter().map(|run| run.step_seconds).collect());
    }
    run(1)?;
    (0..ROOFLINE_RUNS).map(|_| Ok(run(1)?.step_seconds)).collect()
}

/// Summarises a batch. Only JSON shows the greedy ids, which need a separate run without adapters.
fn row(args: &DecodeArgs, decoder: &Decoder, Measured { load, runs }: Measured) -> anyhow::Result<Row> {
    let spread = |of: fn(&Run) -> f64| Spread::of(runs.iter().map(of));
    Ok(Row {
        load,
        tokens_per_second: spread(|run| run.tokens_per_second),
        first_seconds: spread(|run| run.first_seconds),
        step_seconds: spread(|run| run.step_seconds),
        wait_seconds: spread(|run| run.wait_seconds),
        replayed: spread(|run| run.replayed),
        ids: if args.json && !load.adapted { decoder.ids(load.batch)? } else { Vec::new() },
        runs,
    })
}

fn roofline(args: &DecodeArgs, decoder: &Decoder, steps: &[f64]) -> anyhow::Result<Roofline> {
    Roofline::of(&args.model, decoder.engine.info().dtype.name(), steps, &open_device(args.device)?)
}

/// Runs each command from standard input until it ends.
fn serve(args: &DecodeArgs, decoder: &Decoder, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", about(args, decoder))?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        let answer = answer(args, decoder, &line?)?;
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// Runs one command.
fn answer(args: &DecodeArgs, decoder: &Decoder, line: &str) -> anyhow::Result<Value> {
    if line == "roofline" {
        let steps = one_row_steps(&[], |batch| decoder.run(batch))?;
        return Ok(serde_json::to_value(roofline(args, decoder, &steps)?)?);
    }
    let (command, batch) = match line.split_once(' ') {
        Some((command @ ("ids" | "prefill"), batch)) => (command, batch),
        _ => ("run", line),
    };
    let batch: usize = batch.trim().parse().with_context(|| format!("`{line}` is not a command"))?;
    Ok(match command {
        "ids" => json!({ "ids": decoder.ids(batch)? }),
        "prefill" => serde_json::to_value(decoder.prefill(batch)?)?,
        _ => serde_json::to_value(decoder.run(batch)?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_batch_runs_once_to_warm_up_and_once_per_round_and_one_row_is_not_measured_again() {
        for (batches, want) in
            [(vec![1, 8], vec![1, 8, 1, 8]), (vec![8], [vec![8, 8], vec![1; 1 + ROOFLINE_RUNS]].concat())]
        {
            let mut ran = Vec::new();
            let mut run = |batch| {
                ran.push(batch);
                let seconds = 3.0;
                let step_seconds = ran.len() as f64;
                Ok(Run {
                    batch,
                    seconds,
                    first_seconds: 1.0,
                    step_seconds,
                    wait_seconds: 0.0,
                    replayed: 0.0,
                    tokens_per_second: 1.0,
                })
            };
            let plain = |&batch: &usize| Load { batch, adapted: false };
            let loads: Vec<_> = batches.iter().map(plain).collect();
            let measured = measure(&loads, 1, |load| run(load.batch)).unwrap();
            // The first run of each batch is the warm-up.
            let steps = one_row_steps(&measured, &mut run).unwrap();
            let timed = if batches[0] == 1 { vec![3.0] } else { vec![4.0, 5.0, 6.0, 7.0, 8.0] };
            assert_eq!((ran, steps), (want, timed), "{batches:?}");
        }
    }
}
