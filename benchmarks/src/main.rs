//! `ntl-bench`: measurements that need more than criterion, and what they need.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use ntl_bench::{demo, loading, numbers, random};
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::{LoadOptions, load};

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
        /// How often each row is measured, in turn with all others; the median is shown.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Time and memory that loading a checkpoint takes, beside reading its files.
    Load {
        /// Checkpoint folder.
        folder: PathBuf,
    },
    /// Write a T5 with random weights.
    RandomT5 {
        /// t5-small, t5-base or t5-large.
        shape: String,
        /// Folder to write.
        folder: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Numbers { model, rounds } => {
            let loaded = match model {
                None => demo()?,
                Some(folder) => load(&CheckpointFiles::folder(&folder)?, LoadOptions::default())?,
            };
            numbers::table(loaded, rounds.max(1), &mut io::stdout().lock())
        }
        Command::Load { folder } => loading::measure(&folder, &mut io::stdout().lock()),
        Command::RandomT5 { shape, folder } => {
            let known = random::shape(&shape)
                .with_context(|| format!("{shape} is none of t5-small, t5-base and t5-large"))?;
            Ok(random::write(&folder, known)?)
        }
    }
}
