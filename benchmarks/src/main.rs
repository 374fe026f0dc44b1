//! `ntl-bench`: measurements that need more than criterion, and what they need.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use ntl_bench::decode::command::DecodeArgs;
use ntl_bench::prefix::PrefixArgs;
use ntl_bench::{decode, demo_files, loading, numbers, prefix, random};
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::{DeviceChoice, LoadOptions, load};

/// As in the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures number decoding, and makes checkpoints to measure with.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Table of number methods beside greedy text: passes, rows, time, error.
    Numbers {
        /// Checkpoint folder. Default: the demo checkpoint.
        #[arg(long, value_name = "DIR")]
        model: Option<PathBuf>,
        /// Where it runs: auto, cpu, cuda or cuda:N.
        #[arg(long, default_value = "auto", value_parser = str::parse::<DeviceChoice>)]
        device: DeviceChoice,
        /// How often each row is measured, in turn with all others; the median is shown.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Time and memory that loading a checkpoint takes, beside reading its files.
    Load {
        /// Checkpoint folder.
        folder: PathBuf,
    },
    /// Greedy decoding in this process: tokens a second, greedy ids, share of the memory's bandwidth.
    Decode(DecodeArgs),
    /// Prompts that begin alike, with and without the cache of beginnings: time to the first token.
    Prefix(PrefixArgs),
    /// Write a checkpoint with random weights.
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
    match Cli::parse().command {
        Command::Numbers { model, device, rounds } => {
            let files = model.map_or_else(demo_files, |folder| CheckpointFiles::folder(&folder))?;
            let loaded = load(&files, LoadOptions { device, ..LoadOptions::default() })?;
            numbers::table(loaded, rounds.max(1), &mut io::stdout().lock())
        }
        Command::Load { folder } => loading::measure(&folder, &mut io::stdout().lock()),
        Command::Decode(args) => decode::command::run(&args, &mut io::stdout().lock()),
        Command::Prefix(args) => prefix::run(&args, &mut io::stdout().lock()),
        Command::Random { shape, folder, seed } => {
            let names = random::SHAPES.map(|(name, _)| name).join(", ");
            let known = random::shape(&shape).with_context(|| format!("{shape} is none of {names}"))?;
            Ok(random::write(&folder, known, seed)?)
        }
    }
}
