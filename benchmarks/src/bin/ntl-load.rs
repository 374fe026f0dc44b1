//! `ntl-load`: load on a server, in closed and open loops, and what HTTP costs beside the engine in this process.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use ntl_bench::demo;
use ntl_bench::load::report::{Summary, write_table};
use ntl_bench::load::rhythm::{Arrivals, closed, open};
use ntl_bench::load::{Kind, Target, Workload};
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::{LoadOptions, load};

/// Puts load on an OpenAI-compatible server and prints rates and latencies. Several levels of load are measured in turn,
/// and with --in-process the same requests go to an engine in this process as well, in alternation.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Server, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Model to ask for; may be left out where only one is served
    #[arg(long)]
    model: Option<String>,
    /// Checkpoint folder, or `demo`, to run in this process as well
    #[arg(long, value_name = "DIR")]
    in_process: Option<PathBuf>,
    /// Closed loop: so many requests unanswered at any time; several levels separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    concurrency: Vec<usize>,
    /// Closed loop: requests of each level and round
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Open loop instead: requests a second at random times; several rates separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PER_SECOND")]
    rate: Vec<f64>,
    /// Open loop: seconds of each rate and round
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Open loop: more unanswered requests than this are dropped and counted
    #[arg(long, default_value_t = 1024)]
    in_flight_max: usize,
    /// What is asked for
    #[arg(long, value_enum, default_value_t = Kind::Text)]
    kind: Kind,
    /// Most tokens of a text
    #[arg(long, default_value_t = 32)]
    max_tokens: usize,
    /// File of prompts, one a line. Default: sums and differences
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Of default prompts and random times
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How often everything is measured
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let (targets, workload) = (targets(&cli)?, workload(&cli)?);
    let mut summaries = Vec::new();
    for _ in 0..cli.rounds {
        for level in levels(&cli) {
            for target in &targets {
                eprint_progress(target, &level)?;
                summaries.push(measure(target, &workload, &level, &cli).await);
            }
        }
    }
    let mut out = io::stdout().lock();
    if cli.json {
        serde_json::to_writer_pretty(&mut out, &summaries)?;
        writeln!(out)?;
    } else {
        write_table(&summaries, &mut out)?;
    }
    Ok(())
}

/// One level of load.
enum Level {
    Closed(usize),
    Open(f64),
}

fn levels(cli: &Cli) -> Vec<Level> {
    if cli.rate.is_empty() {
        cli.concurrency.iter().copied().map(Level::Closed).collect()
    } else {
        cli.rate.iter().copied().map(Level::Open).collect()
    }
}

fn name(level: &Level) -> String {
    match level {
        Level::Closed(concurrency) => format!("{concurrency} at once"),
        Level::Open(rate) => format!("{rate}/s"),
    }
}

fn eprint_progress(target: &Target, level: &Level) -> io::Result<()> {
    writeln!(io::stderr(), "{}, {} ...", target.name(), name(level))
}

async fn measure(target: &Target, workload: &Workload, level: &Level, cli: &Cli) -> Summary {
    let run = match *level {
        Level::Closed(concurrency) => closed(target, workload, concurrency, cli.requests).await,
        Level::Open(rate) => {
            let time = Duration::from_secs(cli.seconds);
            let arrivals = Arrivals { rate, time, in_flight_max: cli.in_flight_max, seed: cli.seed };
            open(target, workload, arrivals).await
        }
    };
    Summary::of(&run, target.name(), name(level))
}

fn targets(cli: &Cli) -> anyhow::Result<Vec<Target>> {
    let mut targets = Vec::new();
    if let Some(endpoint) = &cli.endpoint {
        targets.push(Target::http(endpoint, cli.model.clone())?);
    }
    if let Some(folder) = &cli.in_process {
        let loaded = if folder.as_os_str() == "demo" {
            demo()?
        } else {
            load(&CheckpointFiles::folder(folder)?, LoadOptions::default())?
        };
        targets.push(Target::in_process(loaded)?);
    }
    ensure!(!targets.is_empty(), "say --endpoint URL, --in-process DIR or both");
    Ok(targets)
}

fn workload(cli: &Cli) -> anyhow::Result<Workload> {
    ensure!(cli.concurrency.iter().all(|&level| level > 0), "--concurrency must be at least 1");
    ensure!(cli.rate.iter().all(|&rate| rate > 0.0), "--rate must be above 0");
    let prompts = match &cli.prompts {
        None => Workload::arithmetic(256, cli.seed),
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("{} cannot be read", file.display()))?;
            text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
        }
    };
    ensure!(!prompts.is_empty(), "there are no prompts");
    Ok(Workload { prompts, kind: cli.kind, max_tokens: cli.max_tokens })
}
