//! One run of a task: every suite from its items to reports, files and gates.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::cli::flags::{Api, Common, Mode, NumberFlags};
use crate::console::{Console, ExitStatus, Interrupted, OutputError, UsageError};
use crate::metrics::distribution::{Calibration, Unknown};
use crate::metrics::estimates::compare_estimates;
use crate::metrics::registry::{Estimate, METRICS, MetricInfo, Statistic};
use crate::metrics::{EXACT_TOLERANCE, Metrics, RESAMPLES, constant_baselines};
use crate::report::console;
use crate::run::client::{Client, ClientConfig, ModelEntry, RetryPolicy};
use crate::run::evaluator::Evaluator;
use crate::run::gate::{missed, read_baseline};
use crate::run::paper::{self, Evaluation};
use crate::run::progress::Style;
use crate::run::reply::Reply;
use crate::run::request::RequestTemplate;
use crate::run::runner::Runner;
use crate::run::samples::samples;
use crate::run::score::{self, Record, rows};
use crate::store::journal::{Journal, JournalError, JournalFile, MODEL_FIELDS, key};
use crate::store::report::{Counts, Module, Report};
use crate::store::saved::{self, REPORT, read_report};
use crate::tasks::Suite;
use crate::template::Template;

const UNPARSED_RULE: &str = "an answer without a number is wrong in accuracy, counts in unparsed, and is left out of all \
     errors and correlations; the n beside each figure says over how many items it is";

struct Session<'a> {
    client: Client,
    model: ModelEntry,
    common: &'a Common,
    cache: Option<Journal>,
    deadline: Option<Instant>,
}

/// Failed items and missed gates are no errors but exit statuses.
pub fn run(suites: &[Suite], common: &Common, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    if common.mode == Mode::Paper && common.server.api == Api::Chat {
        let message = "--mode paper asks for beams of plain completions: it has no --api chat";
        return Err(UsageError(message.to_owned()).into());
    }
    if common.score && common.server.api == Api::Chat {
        let message = "--score asks for the likelihood of texts behind plain prompts: it has no --api chat";
        return Err(UsageError(message.to_owned()).into());
    }
    if common.mode != Mode::Regress && common.number != NumberFlags::default() {
        let message = "--range, --scale, --interval, --trim, --digits-max, --tolerance and --rationales are about --mode regress";
        return Err(UsageError(message.to_owned()).into());
    }
    if common.mode != Mode::Regress && common.after.is_some() {
        return Err(UsageError("--after is about --mode regress".to_owned()).into());
    }
    if common.server.api != Api::Chat && common.system.is_some() {
        let message = "--system is a message of chats: use it with --api chat, or write it into --template";
        return Err(UsageError(message.to_owned()).into());
    }
    let writes_first = |suite: &Suite| common.after.is_some() || suite.traits.after.is_some();
    if common.number.rationales.is_some() && !suites.iter().all(writes_first) {
        let message = "--rationales are texts in front of the number: say with --after what ends them";
        return Err(UsageError(message.to_owned()).into());
    }
    let runtime = Runtime::new().context("could not start the runtime")?;
    let client = Client::new(ClientConfig {
        endpoints: common.server.endpoint.clone(),
        api_key: common.server.api_key.clone(),
        timeout: Duration::from_secs(common.server.timeout.get()),
        retry: RetryPolicy::default(),
    })?;
    // Unwritable folders and unusable baselines are found before an hour of requests, not after.
    let plan = suites.iter().map(|suite| Planned::new(suite, suites, common));
    let plan = plan.collect::<anyhow::Result<Vec<_>>>()?;
    let model = runtime.block_on(client.resolve_model(common.server.model.as_deref()))?;
    let deadline = common.server.deadline.map(|seconds| Instant::now() + Duration::from_secs(seconds.get()));
    let cache = common.output.cache.as_deref().map(|folder| cache(folder, &model)).transpose()?;
    let mut session = Session { client, model, common, cache, deadline };
    let mut status = ExitStatus::Success;
    for planned in &plan {
        let report = runtime.block_on(async {
            tokio::select! {
                report = session.suite(planned, console) => report,
                () = ctrl_c() => Err(interrupted(common).into()),
            }
        })?;
        status = status.max(session.show(&report, planned, console).map_err(OutputError)?);
    }
    Ok(status)
}

const JOURNAL: &str = "journal.jsonl";

/// A suite with the folder that it is written to and the report that it is compared with.
struct Planned<'a> {
    suite: &'a Suite,
    output: Option<RunFolder>,
    baseline: Option<Report>,
}

impl<'a> Planned<'a> {
    fn new(suite: &'a Suite, suites: &[Suite], common: &Common) -> anyhow::Result<Self> {
        let folder = common.output.out.as_deref().map(|out| folder(out, suite, suites));
        let output = folder.map(|folder| RunFolder::open(folder, common)).transpose()?;
        let settings = data_settings(suite, common);
        let read = |folder: &PathBuf| read_baseline(folder, suite.task, &suite.split, &settings);
        Ok(Self { suite, output, baseline: common.gates.baseline.as_ref().map(read).transpose()? })
    }
}

fn interrupted(common: &Common) -> Interrupted {
    match &common.output.out {
        Some(folder) => Interrupted::Kept { folder: folder.clone() },
        None => Interrupted::Lost,
    }
}

/// Returns when a person presses Ctrl-C; never where the system has no such thing.
async fn ctrl_c() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Session<'_> {
    async fn suite(
        &mut self,
        Planned { suite, output, .. }: &Planned<'_>,
        console: &mut Console<'_>,
    ) -> anyhow::Result<Report> {
        if let Some(notice) = suite.notice() {
            writeln!(console.err, "{notice}").map_err(OutputError)?;
        }
        let template = self.template(suite);
        let journal = output.as_ref().map(|output| self.journal(output, suite, &template)).transpose()?;
        let (started, clock) = (Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ"), std::time::Instant::now());
        let evaluator = Evaluator {
            runner: Runner {
                client: &self.client,
                concurrency: self.common.server.concurrency,
                deadline: self.deadline,
                journal,
                cache: self.cache.as_mut(),
            },
            template: &template,
            items: &suite.items,
            score: self.common.score,
            prompt_tokens_max: self.common.prompt_tokens.map(usize::from),
            progress_style: progress_style(self.common, console),
            name: format!("{} {}", suite.task, suite.split),
            err: console.err,
        };
        let replies = evaluator.run().await?;
        if self.common.server.endpoint.len() > 1 {
            for failure in self.client.endpoint_failures() {
                writeln!(console.err, "{failure}; its items went to the other endpoints")
                    .map_err(OutputError)?;
            }
        }
        let failures = replies.iter().map(|reply| reply.answer.as_ref().err());
        if let Some(failures) = failures.collect::<Option<Vec<_>>>()
            && let Some(first) = failures.first()
        {
            bail!(
                "all {} items of {} {} failed, the first with: {first}",
                failures.len(),
                suite.task,
                suite.split
            );
        }
        let seconds = clock.elapsed().as_secs_f64();
        let (report, records) = self.report(suite, &template, replies);
        let report = Report { started: started.to_string(), seconds, ..report };
        if let Some(RunFolder { folder, .. }) = output {
            saved::write(folder, &report, samples(&template, &records))?;
        }
        if let Some(error) = records.iter().find_map(|record| record.reply.answer.as_ref().err()) {
            let Report { failed, n, .. } = report;
            writeln!(console.err, "{failed} of {n} items failed, the first with: {error}")
                .map_err(OutputError)?;
        }
        Ok(report)
    }

    fn template(&self, suite: &Suite) -> RequestTemplate {
        let traits = &suite.traits;
        RequestTemplate {
            mode: self.common.mode,
            api: self.common.server.api,
            model: self.model.id.clone(),
            max_tokens: self.common.max_tokens.map_or(traits.max_tokens, u64::from),
            // The paper's generation ends at the end of sequence and nowhere else.
            stop: if self.common.mode == Mode::Paper { &[] } else { traits.stop },
            after: self.common.after.clone().or_else(|| traits.after.map(str::to_owned)),
            system: self.common.system.clone(),
            // A number has no tokens.
            return_token_ids: match self.common.mode {
                Mode::Text => self.common.score,
                Mode::Regress => false,
                Mode::Paper => true,
            },
            number: self.common.number.clone(),
            seed: self.common.seed,
            targets_continue_prompts: self.is_decoder_only(),
            beams: paper::beams(self.model.others.get("number_encoding").and_then(Value::as_str)),
        }
    }

    /// The journal of a suite: a new one, or with `--resume` the one that is there. Only `--overwrite` removes anything
    /// before the new result is complete.
    fn journal(
        &self,
        RunFolder { folder, journal }: &RunFolder,
        suite: &Suite,
        template: &RequestTemplate,
    ) -> anyhow::Result<Journal> {
        if self.common.output.overwrite {
            saved::remove_result(folder)?;
            journal.clear()?;
        }
        let mut header = json!({
            "ntl-eval": env!("CARGO_PKG_VERSION"),
            "task": suite.task,
            "split": suite.split,
            "model": self.model.id,
            "mode": self.common.mode,
            "score": self.common.score,
            "seed": self.common.seed,
            "limit": self.common.limit,
            "prompt_tokens": self.common.prompt_tokens,
            "items": key(&suite.items),
            "request": template.settings(),
        });
        for (name, value) in self.model_fields() {
            header[name] = value;
        }
        Ok(Journal::read(journal, &header)?)
    }

    /// Scores the replies. Times are left for later.
    fn report<'i>(
        &self,
        suite: &Suite,
        template: &RequestTemplate,
        replies: Vec<Reply<'i>>,
    ) -> (Report, Vec<Record<'i>>) {
        let (seed, mode) = (self.common.seed, self.common.mode);
        let score = |reply| score::score(&suite.traits, mode, self.common.number.bounds(), reply);
        let mut records: Vec<Record<'_>> = replies.into_iter().map(score).collect();
        let mut metrics = Metrics::of(&rows(&records), seed);
        let mut quirks = Vec::new();
        if mode == Mode::Paper {
            Evaluation { records, metrics, quirks } =
                paper::evaluate(&records, &metrics, template.beams, seed);
        }
        let rows = rows(&records);
        let Counts { n, n_valid, failed } = Counts::of(&rows);
        let endpoints: Vec<String> = self.common.server.endpoint.iter().map(ToString::to_string).collect();
        let report = Report {
            task: suite.task.to_owned(),
            split: suite.split.clone(),
            model: self.model.id.clone(),
            endpoint: endpoints.join(","),
            mode: mode.as_str().to_owned(),
            n,
            n_valid,
            failed,
            seed: Some(seed),
            settings: self.settings(suite, template),
            metrics,
            first_metrics: self.common.output.metric.clone(),
            baselines: constant_baselines(&rows),
            unparsed_rule: Some(UNPARSED_RULE.to_owned()),
            quirks,
            modules: Module::all(
                records.iter().map(|record| (record.reply.item.module.as_deref(), &record.row)),
                seed,
            ),
            calibration: Calibration::of(rows.iter().filter_map(|row| row.distribution.as_ref()), seed),
            estimates: compare_estimates(&rows, seed),
            mass_closed: score::mass_closed(&records),
            unknown_mass: Unknown::of(rows.iter().filter_map(|row| row.distribution.as_ref())),
            unbounded: score::unbounded(&records),
            intervals: score::intervals(&records),
            missing_numbers: score::missing_numbers(&records),
            missing_scores: score::missing_scores(&records),
            versions: Map::from_iter([("ntl-eval".to_owned(), json!(env!("CARGO_PKG_VERSION")))]),
            ..Report::default()
        };
        (report, records)
    }

    /// Everything that may change the figures, and which estimate each metric uses.
    fn settings(&self, suite: &Suite, template: &RequestTemplate) -> Map<String, Value> {
        let estimate = |estimate| match (self.common.mode, estimate) {
            (Mode::Text, _) => "last_number",
            (Mode::Paper, _) => "paper_last_number",
            (Mode::Regress, Estimate::Mean) => "trimmed_mean",
            (Mode::Regress, Estimate::Median) => "median",
            (Mode::Regress, Estimate::Mode) => "mode",
        };
        let is_measured =
            |metric: &&MetricInfo| suite.traits.judges || !matches!(metric.statistic, Statistic::Rating(_));
        let estimates = METRICS
            .iter()
            .filter(is_measured)
            .filter_map(|metric| Some((metric.name, estimate(metric.estimate?))));
        let estimates: IndexMap<&str, &str> = estimates.collect();
        let mut settings = data_settings(suite, self.common);
        for (name, value) in [
            ("template", json!(self.common.template().map(Template::source))),
            ("prompt_tokens", json!(self.common.prompt_tokens)),
            ("concurrency", json!(self.common.server.concurrency)),
            ("request", json!(template.settings())),
            ("estimates", json!(estimates)),
            ("exact_tolerance", json!(EXACT_TOLERANCE)),
            ("bootstrap_resamples", json!(RESAMPLES)),
        ] {
            settings.insert(name.to_owned(), value);
        }
        settings.extend(self.model_fields().map(|(name, value)| (name.to_owned(), value)));
        settings
    }

    /// As the kind of the model says; not where the server does not say it.
    fn is_decoder_only(&self) -> bool {
        let kind = self.model.others.get("kind").and_then(Value::as_str);
        kind.is_some_and(|kind| !kind.starts_with("t5"))
    }

    /// What the server says of the model beyond its name.
    fn model_fields(&self) -> impl Iterator<Item = (&'static str, Value)> {
        MODEL_FIELDS.into_iter().map(|(name, listed)| (name, json!(self.model.others.get(listed))))
    }

    /// Prints a report and the gates that it misses.
    fn show(
        &self,
        report: &Report,
        planned: &Planned<'_>,
        console: &mut Console<'_>,
    ) -> io::Result<ExitStatus> {
        if self.common.output.json {
            serde_json::to_writer(&mut *console.out, report)?;
            writeln!(console.out)?;
        } else {
            console::write(report, console.out)?;
        }
        let is_incomplete = report.failed > 0 || report.missing_scores.is_some();
        let mut status = if is_incomplete { ExitStatus::ItemsFailed } else { ExitStatus::Success };
        for miss in missed(&self.common.gates, planned.baseline.as_ref(), &report.metrics) {
            status = ExitStatus::GateMissed;
            writeln!(console.err, "gate missed on {} {}: {miss}", report.task, report.split)?;
        }
        Ok(status)
    }
}

/// Which items a run is over: the task's own settings, the limit, and a hash of the questions and answers.
fn data_settings(suite: &Suite, common: &Common) -> Map<String, Value> {
    let items: Vec<(&str, &str)> =
        suite.items.iter().map(|item| (item.question.as_str(), item.answer.as_str())).collect();
    let mut settings = suite.settings.clone();
    settings.insert("limit".to_owned(), json!(common.limit));
    settings.insert("items".to_owned(), json!(key(&items)));
    settings
}

fn progress_style(common: &Common, console: &Console<'_>) -> Style {
    match (common.output.quiet, console.err_is_terminal) {
        (true, _) => Style::Silent,
        (false, true) => Style::Bar,
        (false, false) => Style::Lines,
    }
}

/// The answers that all runs share, in one file for each model. Models are told apart by all fields of the server's list.
fn cache(folder: &Path, model: &ModelEntry) -> anyhow::Result<Journal> {
    fs::create_dir_all(folder).with_context(|| writing(folder))?;
    let model = model.clone().identity();
    let file = folder.join(format!("{}.jsonl", key(&model)));
    Ok(Journal::open(&file, &json!(model))?)
}

/// The folder of one suite: `--out` itself for a single one.
pub fn folder(out: &Path, suite: &Suite, suites: &[Suite]) -> PathBuf {
    if suites.len() > 1 { out.join(&suite.split) } else { out.to_owned() }
}

fn writing(file: &Path) -> String {
    format!("could not write {}", file.display())
}

/// The folder of a run, which no other run can use at the same time.
struct RunFolder {
    folder: PathBuf,
    /// Locked until the report is written.
    journal: JournalFile,
}

impl RunFolder {
    /// Creates the folder, or refuses one whose result or journal this run would lose.
    fn open(folder: PathBuf, common: &Common) -> anyhow::Result<Self> {
        ensure!(!folder.is_file(), "--out: {} is a file, not a folder", folder.display());
        fs::create_dir_all(&folder).with_context(|| writing(&folder))?;
        let file = folder.join(JOURNAL);
        let lock = || JournalFile::open(&file)?.lock();
        // A folder that is refused for its other files gets no journal.
        let existing = file.exists().then(lock).transpose()?;
        Self::check(&folder, common)?;
        let journal = existing.map_or_else(lock, Ok)?;
        Ok(Self { folder, journal })
    }

    /// A run counts as finished if its report can be read.
    fn check(folder: &Path, common: &Common) -> Result<(), JournalError> {
        let (report, journal) = (folder.join(REPORT), folder.join(JOURNAL));
        let is_finished = report.exists().then(|| read_report(&report).is_ok());
        let has_journal = fs::metadata(&journal).is_ok_and(|found| found.len() > 0);
        let own = || folder.to_owned();
        match (is_finished, has_journal) {
            _ if common.output.overwrite => Ok(()),
            (_, true) if common.output.resume => Ok(()),
            (Some(true), true) => Err(JournalError::Finished { folder: own() }),
            (Some(true), false) => Err(JournalError::FinishedWithoutJournal { folder: own() }),
            (Some(false), false) => Err(JournalError::DamagedReport { folder: own() }),
            (Some(false) | None, true) => Err(JournalError::Unfinished { file: journal }),
            (None, false) => Ok(()),
        }
    }
}
