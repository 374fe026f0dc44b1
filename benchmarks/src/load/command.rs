//! `ntl-bench load`: measures every target at every level of load, in turn.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use ntl_models::LoadOptions;

use super::arrivals::{Arrivals, Run, closed_loop, open_loop};
use super::processor::Process;
use super::summary::{Summary, write_summaries};
use super::target::Target;
use super::workload::{Kind, Workload, arithmetic_questions};
use crate::setup;

/// Sends requests to an OpenAI-compatible server and prints rates and latencies
///
/// Several levels of load are measured in turn. With --in-process the same requests also go to an engine in this process, in
/// alternation with the server.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Server, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Model to ask for; may be left out where only one is served
    #[arg(long)]
    model: Option<String>,
    /// Process number of the server on this machine, to report its processor time for each token beside that of --in-process
    #[arg(long, value_name = "PID", requires = "endpoint")]
    server_pid: Option<u32>,
    /// Checkpoint folder, or `demo`, to measure in this process as well
    #[arg(long, value_name = "DIR")]
    in_process: Option<PathBuf>,
    /// Closed loop: requests in flight at any time; several levels separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    concurrency: Vec<usize>,
    /// Closed loop: requests of each level and round
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Open loop instead: requests a second, as Poisson arrivals; several rates separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PER_SECOND")]
    rate: Vec<f64>,
    /// Open loop: seconds of each rate and round
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Open loop: requests that are due while this many are in flight are dropped and counted
    #[arg(long, default_value_t = 1024)]
    in_flight_max: usize,
    /// What requests ask for
    #[arg(long, value_enum, default_value_t = Kind::Text)]
    kind: Kind,
    /// Most tokens of a text
    #[arg(long, default_value_t = 32)]
    max_tokens: usize,
    /// Ask the server for whole texts instead of streams
    #[arg(long)]
    no_stream: bool,
    /// File of prompts, one a line. Default: sums and differences
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Seed of default prompts and arrival times
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How often everything is measured
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(args: &LoadArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (targets, workload) = (targets(args)?, workload(args)?);
    let runtime = tokio::runtime::Runtime::new()?;
    let mut summaries = Vec::new();
    for _ in 0..args.rounds {
        for level in levels(args) {
            for target in &targets {
                writeln!(io::stderr(), "{}, {} ...", target.name(), level.name())?;
                summaries.push(runtime.block_on(measure(target, &workload, level, args)));
            }
        }
    }
    if let Some(reason) = failed_completely(&summaries) {
        bail!("no request was answered: {reason}");
    }
    if args.json {
        Ok(writeln!(out, "{}", serde_json::to_string_pretty(&summaries)?)?)
    } else {
        Ok(write_summaries(&summaries, out)?)
    }
}

/// The most frequent failure where there was no answer at all, so that there is nothing to measure.
fn failed_completely(summaries: &[Summary]) -> Option<String> {
    if summaries.iter().any(|summary| summary.answered > 0) {
        return None;
    }
    let failures = summaries.iter().flat_map(|summary| &summary.failed);
    let (reason, count) = failures.max_by_key(|(_, count)| **count)?;
    Some(format!("{count} times {reason}"))
}

#[derive(Clone, Copy)]
enum Level {
    Closed { concurrency: usize },
    Open { rate: f64 },
}

impl Level {
    fn name(self) -> String {
        match self {
            Self::Closed { concurrency } => format!("{concurrency} at once"),
            Self::Open { rate } => format!("{rate}/s"),
        }
    }
}

fn levels(args: &LoadArgs) -> Vec<Level> {
    if args.rate.is_empty() {
        args.concurrency.iter().map(|&concurrency| Level::Closed { concurrency }).collect()
    } else {
        args.rate.iter().map(|&rate| Level::Open { rate }).collect()
    }
}

async fn measure(target: &Target, workload: &Workload, level: Level, args: &LoadArgs) -> Summary {
    let process = match target {
        Target::Http { .. } => args.server_pid.map(Process::Other),
        Target::InProcess { .. } => Some(Process::Own),
    };
    let time = || process.and_then(Process::processor_time);
    let before = time();
    let run = match level {
        Level::Closed { concurrency } => closed_loop(target, workload, concurrency, args.requests).await,
        Level::Open { rate } => {
            let duration = Duration::from_secs(args.seconds);
            let arrivals = Arrivals { rate, duration, in_flight_max: args.in_flight_max, seed: args.seed };
            open_loop(target, workload, arrivals).await
        }
    };
    let processor = time().zip(before).map(|(after, before)| after.saturating_sub(before));
    Summary::of(&Run { processor, ..run }, target.name(), level.name())
}

fn targets(args: &LoadArgs) -> anyhow::Result<Vec<Target>> {
    let mut targets = Vec::new();
    if let Some(endpoint) = &args.endpoint {
        targets.push(Target::http(endpoint, args.model.clone())?);
    }
    if let Some(folder) = &args.in_process {
        let folder = (folder != Path::new("demo")).then_some(folder.as_path());
        targets.push(Target::in_process(setup::open(folder, LoadOptions::default())?)?);
    }
    ensure!(!targets.is_empty(), "say --endpoint URL, --in-process DIR or both");
    Ok(targets)
}

fn workload(args: &LoadArgs) -> anyhow::Result<Workload> {
    ensure!(args.concurrency.iter().all(|&level| level > 0), "--concurrency must be at least 1");
    ensure!(args.rate.iter().all(|&rate| rate > 0.0), "--rate must be above 0");
    let prompts = match &args.prompts {
        None => arithmetic_questions(256, args.seed),
        Some(file) => {
            let text = setup::read(file)?;
            text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
        }
    };
    ensure!(!prompts.is_empty(), "there are no prompts");
    Ok(Workload { prompts, kind: args.kind, max_tokens: args.max_tokens, stream: !args.no_stream })
}
