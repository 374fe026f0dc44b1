//! `ntl-bench`: benchmarks for which criterion is not enough, and random checkpoints to run them on.

use std::io;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use ntl_bench::{decode, load, load_model, numbers, prefix, quality, random, setup};
use ntl_models::{DeviceChoice, DtypeChoice, LoadOptions};

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures decoding, numbers, loading and serving, and writes random checkpoints to measure.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare number methods with greedy text: passes, rows, time, error
    Numbers {
        /// Checkpoint directory. Default: the demo checkpoint
        #[arg(long, value_name = "DIR")]
        model: Option<PathBuf>,
        /// Device: auto, cpu, cuda or cuda:N
        #[arg(long, default_value = "auto", value_parser = str::parse::<DeviceChoice>)]
        device: DeviceChoice,
        /// Element type of the weights in memory
        #[arg(long, default_value = "auto", value_parser = str::parse::<DtypeChoice>)]
        dtype: DtypeChoice,
        /// Numbers of concurrent requests
        #[arg(long, value_delimiter = ',', default_value = "1,16", value_parser = clap::value_parser!(u16).range(1..))]
        concurrency: Vec<u16>,
        /// Number of measurements of each method, in alternation with the others; the table shows the median
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Greedy decoding in this process: tokens per second, greedy ids, share of the memory bandwidth
    Decode(decode::command::DecodeArgs),
    /// Prompts that share a prefix, with and without the prefix cache: time to the first token
    Prefix(prefix::PrefixArgs),
    /// Compare element types: accuracy, error, perplexity and probabilities on questions with numeric answers
    Quality(quality::QualityArgs),
    /// Load on an OpenAI-compatible server: rates and latencies
    Load(load::command::LoadArgs),
    /// Time and memory of loading a checkpoint, compared with only reading its files
    LoadModel {
        /// Checkpoint directory
        folder: PathBuf,
    },
    /// Write a checkpoint with random weights
    #[command(alias = "random-t5")]
    Random {
        /// One of t5-small, t5-base, t5-large, t5-3b, t5-v1.1-base, flan-t5-xl, t5gemma-s,
        /// t5gemma-b, t5gemma2-270m, regresslm-s, llama-160m, tinyllama
        shape: String,
        /// Directory to write
        folder: PathBuf,
        /// Seed of the weights; the same seed gives the same weights
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
}

fn main() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match Cli::parse().command {
        Command::Numbers { model, device, dtype, concurrency, rounds } => {
            let options = LoadOptions { device, dtype, ..LoadOptions::default() };
            let concurrency: Vec<usize> = concurrency.into_iter().map(usize::from).collect();
            numbers::run(setup::open(model.as_deref(), options)?, &concurrency, rounds.max(1), &mut out)
        }
        Command::Decode(args) => decode::command::run(&args, &mut out),
        Command::Prefix(args) => prefix::run(&args, &mut out),
        Command::Quality(args) => quality::run(&args, &mut out),
        Command::Load(args) => load::command::run(&args, &mut out),
        Command::LoadModel { folder } => load_model::run(&folder, &mut out),
        Command::Random { shape, folder, seed } => random::write(&folder, &random::plan(&shape)?, seed),
    }
}
