//! Runs the command that the command line names.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use ntl_common::manual::ManualArgs;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::calibrate;
use crate::cli::args::{Cli, Command, DataArgs, ReportArgs};
use crate::cli::compare::CompareArgs;
use crate::cli::tasks::Task;
use crate::compare::{self, leaderboard};
use crate::console::{Console, ExitStatus};
use crate::data::{DataError, Item, fetch, place};
use crate::error::{OutputError, UsageError};
use crate::report;
use crate::session;
use crate::tasks::{self, Origin, TASKS};
use crate::verify;

/// Failed items and missed gates are exit statuses, not errors.
pub fn run(cli: &Cli, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    match &cli.command {
        Command::List => Ok(list(console.out).map_err(OutputError)?),
        Command::Data(args) => data(args, console),
        Command::Task(task) => run_task(task, console),
        Command::Compare(args) => compare_runs(args, console),
        Command::Calibrate(settings) => {
            calibrate::run(settings, console.out)?;
            Ok(ExitStatus::Success)
        }
        Command::Report(args) => write_reports(args, console),
        Command::Manual(args) => manual(args),
    }
}

fn run_task(task: &Task, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    let settings = task.settings();
    let Task::Verify(args) = task else { return session::run(&task.suites(&settings)?, &settings, console) };
    let task = args.task();
    let (tournaments, suite) = tasks::judge::verify::suite(&task, &settings)?;
    let status = session::run(&[suite], &settings, console)?;
    if let (Some(folder), Some(scale)) = (&settings.output.out, settings.number.scale) {
        let out: Option<&mut dyn Write> = if settings.output.json { None } else { Some(&mut *console.out) };
        verify::write(&tournaments, task.criteria.len().max(1), scale, folder, out)?;
    }
    Ok(status)
}

/// Ranks runs, compares two runs, or runs a task on two models and compares the results split by split.
fn compare_runs(args: &CompareArgs, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    if args.leaderboard.is_some() && args.task.is_some() {
        return Err(UsageError("--leaderboard ranks finished runs: leave out the task".to_owned()).into());
    }
    if args.metric.is_some() && args.leaderboard.is_none() {
        return Err(
            UsageError("--metric ranks the runs of --leaderboard, which is missing".to_owned()).into()
        );
    }
    if args.models.is_some() && args.task.is_none() {
        let message = "--models runs a task on two models, and cannot be used with the directories of runs: name the task";
        return Err(UsageError(message.to_owned()).into());
    }
    if let Some(folder) = &args.leaderboard {
        leaderboard::write(folder, &args.leaderboard_settings(), console.out)?;
        return Ok(ExitStatus::Success);
    }
    let task = args.task.as_ref().map(|task| (task, task.settings()));
    let (runs, status) = match (&task, &args.a, &args.b) {
        (Some((task, settings)), ..) => {
            if settings.output.junit.is_some() {
                let message = "--junit has the gates of one run: leave it out of compare";
                return Err(UsageError(message.to_owned()).into());
            }
            let sides = args.sides(settings)?;
            compare::models::run(&task.suites(settings)?, &sides, console)?
        }
        (None, Some(a), Some(b)) => (compare::pairs_of_runs(a, b)?, ExitStatus::Success),
        (None, ..) => {
            let message = "name the task to run on two models, or the directories of two runs";
            return Err(UsageError(message.to_owned()).into());
        }
    };
    let run = task.as_ref().map(|(_, settings)| settings);
    compare::write(&runs, args.settings(run), console.out)?;
    Ok(status)
}

fn list(out: &mut dyn Write) -> io::Result<ExitStatus> {
    for task in TASKS {
        writeln!(out, "{:21} {}", task.name, task.about)?;
    }
    Ok(ExitStatus::Success)
}

fn manual(args: &ManualArgs) -> anyhow::Result<ExitStatus> {
    args.write(Cli::command()).with_context(|| format!("could not write below {}", args.folder.display()))?;
    Ok(ExitStatus::Success)
}

fn write_reports(args: &ReportArgs, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    for folder in &args.folders {
        for file in report::write(folder)? {
            writeln!(console.out, "{}", file.display()).map_err(OutputError)?;
        }
    }
    Ok(ExitStatus::Success)
}

fn data(args: &DataArgs, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    let Some(task) = TASKS.iter().find(|task| task.name == args.task) else {
        let names = TASKS.map(|task| task.name).join(", ");
        return Err(UsageError(format!("no task `{}`; there are {names}", args.task)).into());
    };
    let folder = args.dir.clone().unwrap_or_else(|| place::folder(task.name));
    match task.origin {
        Origin::Given => {
            return Err(
                UsageError(format!("the data of {} are your own: name them with --data", task.name)).into()
            );
        }
        Origin::Seed => {
            let message =
                format!("{} generates its items in each run, from --seed: it has no files", task.name);
            return Err(UsageError(message).into());
        }
        Origin::Published(sources) => {
            let runtime = Runtime::new().context("could not start the runtime")?;
            let mirror = args.mirror.as_deref();
            let ca_file = args.ca_file.as_deref();
            runtime.block_on(fetch::fetch(sources, &folder, mirror, ca_file, console.out))?;
        }
        Origin::Generated(generate) => {
            for (name, items) in generate(args.seed) {
                let file = folder.join(name);
                write(&file, &items).map_err(|source| DataError::Write { file: file.clone(), source })?;
                let sha256 = fetch::sha256(&file)?;
                let count = items.len();
                let file = file.display();
                writeln!(console.out, "{file} sha256 {sha256} ({count} items from seed {})", args.seed)
                    .map_err(OutputError)?;
            }
            writeln!(console.out, "use them with --data {}", folder.display()).map_err(OutputError)?;
        }
    }
    Ok(ExitStatus::Success)
}

/// Two lines an item, or JSON lines, as the name says.
fn write(file: &Path, items: &[Item]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let objects = file.extension().is_some_and(|extension| extension == "jsonl");
    let mut text = String::new();
    for Item { question, answer, .. } in items {
        if objects {
            text += &format!("{}\n", json!({ "question": question, "answer": answer }));
        } else {
            text += &format!("{question}\n{answer}\n");
        }
    }
    fs::write(file, text)
}
