//! Joins the parts: from parsed flags to reports, files and an exit code.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value, json};

use crate::args::{Cli, Command};
use crate::client::{Client, ClientConfig, RetryPolicy};
use crate::error::Error;
use crate::flags::{Common, Mode};
use crate::gate::{Side, missed};
use crate::metrics::{Baselines, EXACT_TOLERANCE, Metrics, Name};
use crate::progress::{Progress, Style};
use crate::report::{Counts, Report, utc};
use crate::runner::{self, Asking, Reply};
use crate::score;
use crate::tasks::{Suite, TASKS, arithmetic};

/// Where to write. Results go to `out`, everything else to `err`.
pub struct Console<'a> {
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub err: &'a mut dyn Write,
    /// Whether `err` is a terminal.
    pub terminal: bool,
}

/// How a finished run went; in rising order of what the exit code shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// Everything was answered and every gate held.
    Done,
    /// Some items failed.
    ItemsFailed,
    /// A gate was missed.
    GateMissed,
}

impl Ending {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::GateMissed => 3,
            Self::ItemsFailed => 4,
        }
    }
}

/// Does what the command line says.
///
/// # Errors
/// Flags, data, server or files cannot be used. Failed items and missed gates are no errors.
pub fn run(cli: &Cli, console: &mut Console<'_>) -> Result<Ending, Error> {
    match &cli.command {
        Command::List => list(console.out).map_err(Error::Console),
        Command::Arithmetic(args) => run_suites(&arithmetic::suites(args)?, &args.common, console),
    }
}

fn list(out: &mut dyn Write) -> io::Result<Ending> {
    for task in TASKS {
        writeln!(out, "{:12} {}", task.name, task.about)?;
    }
    Ok(Ending::Done)
}

fn run_suites(suites: &[Suite], common: &Common, console: &mut Console<'_>) -> Result<Ending, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::Runtime)?;
    let client = Client::new(ClientConfig {
        endpoints: common.endpoint.clone(),
        api_key: common.api_key.clone(),
        timeout: Duration::from_secs(common.timeout.get()),
        retry: RetryPolicy::default(),
    })?;
    // Unwritable folders are found before an hour of questions, not after.
    let folders = suites.iter().map(|suite| folder(suite, suites, common)).collect::<Result<Vec<_>, _>>()?;
    let model = runtime.block_on(client.resolve_model(common.model.as_deref()))?;
    let asking = Asking::new(common, &model);
    let mut ending = Ending::Done;
    for (suite, folder) in suites.iter().zip(folders) {
        let (report, replies) = runtime.block_on(score(&client, &asking, suite, common, console))?;
        if let Some(folder) = folder {
            write_files(&folder, &report, suite, &replies)?;
        }
        ending = ending.max(show(&report, &replies, common, console).map_err(Error::Console)?);
    }
    Ok(ending)
}

async fn score(
    client: &Client,
    asking: &Asking,
    suite: &Suite,
    common: &Common,
    console: &mut Console<'_>,
) -> Result<(Report, Vec<Reply>), Error> {
    let style = match (common.quiet, console.terminal) {
        (true, _) => Style::Silent,
        (false, true) => Style::Bar,
        (false, false) => Style::Lines,
    };
    let mut progress = Progress::new(style, &format!("{} {}", suite.task, suite.split), suite.items.len());
    let (started, clock) = (utc(SystemTime::now()), Instant::now());
    let result = runner::run(client, asking, &suite.items, &mut progress, console.err).await;
    progress.finish();
    let replies = result?;
    let rows = score::rows(&suite.items, &replies);
    let Counts { n, n_valid, failed } = Counts::of(&rows);
    let endpoints: Vec<String> = common.endpoint.iter().map(ToString::to_string).collect();
    let report = Report {
        task: suite.task,
        split: suite.split,
        model: asking.model.clone(),
        endpoint: endpoints.join(","),
        mode: common.mode,
        n,
        n_valid,
        failed,
        seed: common.seed,
        settings: settings(suite, asking, common),
        metrics: Metrics::of(&rows),
        baselines: Baselines::of(&rows),
        mass_closed: score::mass_closed(&replies),
        versions: BTreeMap::from([("ntl-eval", env!("CARGO_PKG_VERSION"))]),
        started,
        seconds: clock.elapsed().as_secs_f64(),
    };
    Ok((report, replies))
}

/// What was asked and how, and which estimate stands behind which metric.
fn settings(suite: &Suite, asking: &Asking, common: &Common) -> Map<String, Value> {
    let estimate = |name: Name| match common.mode {
        Mode::Text => name.estimate().map(|_| "last_number"),
        Mode::Regress => {
            name.estimate().map(|estimate| if estimate == "mean" { "trimmed_mean" } else { estimate })
        }
    };
    let estimates: Map<String, Value> = Name::ALL
        .iter()
        .filter_map(|&name| Some((name.as_str().to_owned(), json!(estimate(name)?))))
        .collect();
    let mut settings = suite.settings.clone();
    settings.extend([
        ("limit".to_owned(), json!(common.limit)),
        ("concurrency".to_owned(), json!(common.concurrency)),
        ("request".to_owned(), Value::Object(asking.request_settings())),
        ("estimates".to_owned(), Value::Object(estimates)),
        ("exact_tolerance".to_owned(), json!(EXACT_TOLERANCE)),
    ]);
    settings
}

fn show(
    report: &Report,
    replies: &[Reply],
    common: &Common,
    console: &mut Console<'_>,
) -> io::Result<Ending> {
    if common.json {
        serde_json::to_writer(&mut *console.out, report)?;
        writeln!(console.out)?;
    } else {
        report.write_table(console.out)?;
    }
    let mut ending = Ending::Done;
    if let Some(Reply::Failed(first)) = replies.iter().find(|reply| matches!(reply, Reply::Failed(_))) {
        ending = Ending::ItemsFailed;
        writeln!(console.err, "{} of {} items failed, the first with: {first}", report.failed, report.n)?;
    }
    let under = missed(&report.metrics, &common.fail_under, Side::Under);
    for miss in under.chain(missed(&report.metrics, &common.fail_over, Side::Over)) {
        ending = Ending::GateMissed;
        writeln!(console.err, "gate missed on {} {}: {miss}", report.task, report.split)?;
    }
    Ok(ending)
}

/// Makes the folder of one suite: `--out` itself for a single one.
fn folder(suite: &Suite, suites: &[Suite], common: &Common) -> Result<Option<PathBuf>, Error> {
    let Some(out) = &common.out else { return Ok(None) };
    let folder = if suites.len() > 1 { out.join(suite.split) } else { out.clone() };
    match fs::create_dir_all(&folder) {
        Ok(()) => Ok(Some(folder)),
        Err(source) => Err(Error::Write { file: folder, source }),
    }
}

fn write_files(folder: &Path, report: &Report, suite: &Suite, replies: &[Reply]) -> Result<(), Error> {
    write_file(folder.join("samples.jsonl"), |out| {
        for sample in score::samples(&suite.items, replies) {
            serde_json::to_writer(&mut *out, &sample)?;
            writeln!(out)?;
        }
        Ok(())
    })?;
    write_file(folder.join("report.json"), |out| {
        serde_json::to_writer_pretty(&mut *out, report)?;
        writeln!(out)
    })
}

fn write_file(file: PathBuf, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Error> {
    let write = || {
        let mut out = BufWriter::new(File::create(&file)?);
        fill(&mut out)?;
        out.flush()
    };
    write().map_err(|source| Error::Write { file: file.clone(), source })
}
