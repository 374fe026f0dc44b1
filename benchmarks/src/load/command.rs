//! `ntl-bench load`: measures every target at every load level, in alternation.

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
/// Load levels are measured in alternation. With --in-process the same requests also go to an engine in this
/// process, in alternation with the server.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Server URL, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Model to request; optional if the server has only one
    #[arg(long)]
    model: Option<String>,
    /// Process id of the server on this machine, to report its CPU time per token, for comparison with
    /// --in-process
    #[arg(long, value_name = "PID", requires = "endpoint")]
    server_pid: Option<u32>,
    /// Checkpoint directory, or `demo`, to measure in this process as well
    #[arg(long, value_name = "DIR")]
    in_process: Option<PathBuf>,
    /// Closed loop: number of requests in flight; several levels separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    concurrency: Vec<usize>,
    /// Closed loop: number of requests per level and round
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Open loop instead: requests per second, as Poisson arrivals; several rates separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PER_SECOND")]
    rate: Vec<f64>,
    /// Open loop: seconds per rate and round
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Open loop: requests that are due while this many are in flight are dropped and counted
    #[arg(long, default_value_t = 1024)]
    in_flight_max: usize,
    /// Kind of answer to request
    #[arg(long, value_enum, default_value_t = Kind::Text)]
    kind: Kind,
    /// Maximum number of tokens in a text
    #[arg(long, default_value_t = 32)]
    max_tokens: usize,
    /// Request complete texts from the server instead of streams
    #[arg(long)]
    no_stream: bool,
    /// File of prompts, one per line. Default: sums and differences
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Seed of default prompts and arrival times
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of measurements of each target and level
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(args: &LoadArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let targets = targets(args)?;
    let workload = workload(args)?;
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
        bail!("all requests failed: {reason}");
    }
    if args.json {
        Ok(writeln!(out, "{}", serde_json::to_string_pretty(&summaries)?)?)
    } else {
        Ok(write_summaries(&summaries, out)?)
    }
}

/// Returns the most frequent failure if no request was answered, so that there is nothing to measure.
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
            Self::Closed { concurrency } => format!("{concurrency} concurrent"),
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
    let before = process.and_then(Process::processor_time);
    let run = match level {
        Level::Closed { concurrency } => closed_loop(target, workload, concurrency, args.requests).await,
        Level::Open { rate } => {
            let duration = Duration::from_secs(args.seconds);
            let arrivals = Arrivals { rate, duration, in_flight_max: args.in_flight_max, seed: args.seed };
            open_loop(target, workload, arrivals).await
        }
    };
    let after = process.and_then(Process::processor_time);
    let processor = after.zip(before).map(|(after, before)| after.saturating_sub(before));
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
    ensure!(!targets.is_empty(), "--endpoint URL, --in-process DIR or both are required");
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
