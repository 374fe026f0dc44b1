//! `ntl-bench`: benchmarks that need more than criterion, and random checkpoints to measure.

use std::io;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use ntl_bench::{decode, load, load_model, numbers, prefix, quality, random, setup};
use ntl_models::{DeviceChoice, DtypeChoice, LoadOptions};

/// As in the server.
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
    /// Table of number methods beside greedy text: passes, rows, time, error
    Numbers {
        /// Checkpoint folder. Default: the demo checkpoint
        #[arg(long, value_name = "DIR")]
        model: Option<PathBuf>,
        /// Device: auto, cpu, cuda or cuda:N
        #[arg(long, default_value = "auto", value_parser = str::parse::<DeviceChoice>)]
        device: DeviceChoice,
        /// Element type of the weights in memory
        #[arg(long, default_value = "auto", value_parser = str::parse::<DtypeChoice>)]
        dtype: DtypeChoice,
        /// Numbers of requests in flight at once
        #[arg(long, value_delimiter = ',', default_value = "1,16", value_parser = clap::value_parser!(u16).range(1..))]
        concurrency: Vec<u16>,
        /// How often each method is measured, in turn with all others; the median is shown
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Greedy decoding in this process: tokens a second, greedy ids, share of the memory bandwidth
    Decode(decode::command::DecodeArgs),
    /// Prompts that begin alike, with and without the prefix cache: time to the first token
    Prefix(prefix::PrefixArgs),
    /// Table of element types: accuracy, error, perplexity and probabilities on questions with numbers as answers
    Quality(quality::QualityArgs),
    /// Load on an OpenAI-compatible server: rates and latencies
    Load(load::command::LoadArgs),
    /// Time and memory that loading a checkpoint takes, beside reading its files
    LoadModel {
        /// Checkpoint folder
        folder: PathBuf,
    },
    /// Write a checkpoint with random weights
    #[command(alias = "random-t5")]
    Random {
        /// One of t5-small, t5-base, t5-large, t5-3b, t5-v1.1-base, llama-160m, tinyllama
        shape: String,
        /// Folder to write
        folder: PathBuf,
        /// The same seed makes the same weights
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
