//! One run of a task: takes every suite from its items to reports, files and gates.

mod folder;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio::time::Instant;

pub use self::folder::suite_folder;
use self::folder::{RunFolder, writing};
use crate::console::{Console, ExitStatus};
use crate::error::OutputError;
use crate::metrics::corrected::Corrections;
use crate::metrics::cost;
use crate::metrics::distribution::{DistributionCalibration, Unknown};
use crate::metrics::drift::Drift;
use crate::metrics::estimates::compare_estimates;
use crate::metrics::registry::{Estimate, METRICS, Statistic};
use crate::metrics::{EXACT_TOLERANCE, Metrics, RESAMPLES, Row, constant_baselines};
use crate::report::console;
use crate::report::junit::{self, JunitSuite};
use crate::report::notes::warnings;
use crate::run::answer_extraction::rule_name;
use crate::run::client::{Client, ClientConfig, ModelEntry, RetryPolicy};
use crate::run::drift::EarlierScores;
use crate::run::evaluator::{Evaluator, Truncation};
use crate::run::gate::{Gate, check, read_baseline};
use crate::run::progress::Style;
use crate::run::protocol::{self, Evaluation};
use crate::run::reply::Reply;
use crate::run::request::RequestTemplate;
use crate::run::runner::Runner;
use crate::run::samples::samples;
use crate::run::score::{self, ScoredReply, rows};
use crate::settings::mode::Mode;
use crate::settings::{OnExisting, RunSettings};
use crate::store::journal::{Journal, MODEL_FIELDS, key};
use crate::store::report::{Counts, Module, Report};
use crate::store::saved;
use crate::tasks::Suite;
use crate::template::Template;

const UNPARSED_RULE: &str = "an answer without a number is incorrect in accuracy, counts in unparsed, and is left out of \
     all errors and correlations; the n of each metric is the number of items that it covers";

const REFUSED_RULE: &str = "a refused question is incorrect in accuracy, counts in refused, and is left out of all other metrics; \
     the n of each metric is the number of questions that it covers";

/// The user pressed Ctrl-C; the exit code is 130.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    #[error("interrupted; the answers so far are in {}: continue with the same command and --resume", .folder.display())]
    Kept { folder: PathBuf },
    #[error("interrupted; without --out no answers are kept")]
    Lost,
}

struct Session<'a> {
    client: Client,
    model: ModelEntry,
    settings: &'a RunSettings,
    cache: Option<Journal>,
    deadline: Option<Instant>,
}

/// Runs the suites, and writes the file of `--junit`. Failed items and missed gates are exit statuses, not
/// errors.
pub fn run(
    suites: &[Suite],
    settings: &RunSettings,
    console: &mut Console<'_>,
) -> anyhow::Result<ExitStatus> {
    let mut finished = Vec::new();
    let Some(file) = &settings.output.junit else {
        return run_suites(suites, settings, console, &mut finished);
    };
    // Otherwise, a run that is killed would leave the result of an earlier one.
    saved::write_page(file.clone(), &junit::document(&[]))?;
    let result = run_suites(suites, settings, console, &mut finished);
    if let (Err(error), Some(suite)) = (&result, suites.get(finished.len())) {
        finished.push(JunitSuite::of_error(suite.task, &suite.split, format!("{error:#}")));
    }
    let written = saved::write_page(file.clone(), &junit::document(&finished));
    let status = result?;
    written?;
    Ok(status)
}

/// `finished` gets the gates of each suite that has a report.
fn run_suites(
    suites: &[Suite],
    settings: &RunSettings,
    console: &mut Console<'_>,
    finished: &mut Vec<JunitSuite>,
) -> anyhow::Result<ExitStatus> {
    settings.check(suites.iter().all(|suite| settings.after.is_some() || suite.traits.after.is_some()))?;
    let runtime = Runtime::new().context("could not start the runtime")?;
    let client = Client::new(ClientConfig {
        endpoints: settings.server.endpoints.clone(),
        api_key: settings.server.api_key.clone(),
        timeout: settings.server.timeout,
        retry: RetryPolicy::new(settings.server.unreachable_max),
        ca_file: settings.server.ca_file.clone(),
    })?;
    // Unwritable directories and unusable baselines are reported before the requests are sent.
    let plan = suites.iter().map(|suite| Planned::new(suite, suites, settings));
    let plan = plan.collect::<anyhow::Result<Vec<_>>>()?;
    let model = runtime.block_on(client.resolve_model(settings.server.model.as_deref(), console.err))?;
    runtime.block_on(client.remember_model(&model, settings.server.api));
    let deadline = settings.server.deadline.map(|time| Instant::now() + time);
    let cache = settings.output.cache.as_deref().map(|folder| cache(folder, &model)).transpose()?;
    let mut session = Session { client, model, settings, cache, deadline };
    let mut status = ExitStatus::Success;
    for planned in &plan {
        let report = runtime.block_on(async {
            tokio::select! {
                report = session.suite(planned, console) => report,
                () = ctrl_c() => Err(interrupted(settings).into()),
            }
        })?;
        let gates = check(&settings.gates, planned.baseline.as_ref(), &report.metrics);
        status = status.max(session.show(&report, &gates, console).map_err(OutputError)?);
        finished.push(JunitSuite::of_report(&report, &gates));
    }
    Ok(status)
}

/// A suite with its output directory and the report that it is compared with.
struct Planned<'a> {
    suite: &'a Suite,
    output: Option<RunFolder>,
    baseline: Option<Report>,
    /// The scores of the run of `--drift`.
    earlier: Option<EarlierScores>,
}

impl<'a> Planned<'a> {
    fn new(suite: &'a Suite, suites: &[Suite], settings: &RunSettings) -> anyhow::Result<Self> {
        let folder = settings.output.out.as_deref().map(|out| suite_folder(out, suite, suites));
        let output =
            folder.map(|folder| RunFolder::open(folder, settings.output.on_existing())).transpose()?;
        let data = data_settings(suite, settings);
        let baseline = match &settings.gates.baseline {
            Some(folder) => Some(read_baseline(folder, suite.task, &suite.split, &data)?),
            None => None,
        };
        let earlier = match &settings.judge.drift {
            Some(folder) => Some(EarlierScores::load(folder, &suite.items)?),
            None => None,
        };
        Ok(Self { suite, output, baseline, earlier })
    }
}

fn interrupted(settings: &RunSettings) -> Interrupted {
    match &settings.output.out {
        Some(folder) => Interrupted::Kept { folder: folder.clone() },
        None => Interrupted::Lost,
    }
}

/// Waits until the user presses Ctrl-C. Never returns if the system does not support it.
async fn ctrl_c() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns the names of the metrics that tables show first: the metrics that the user requests, and the
/// task's first metrics that have a value.
fn first_metrics(requested: &[String], suite: &Suite, metrics: &Metrics) -> Vec<String> {
    let of_task = suite.traits.first_metrics.iter().filter(|name| metrics.get(name).value.is_some());
    requested.iter().cloned().chain(of_task.map(|name| (*name).to_owned())).collect()
}

/// Returns the error message for a judge that returned no score for any item.
fn no_score(report: &Report) -> String {
    let Report { n, task, split, failed, .. } = report;
    let failures = if *failed > 0 { format!("; {failed} requests failed") } else { String::new() };
    let (reasons, _) = report.main_reasons();
    let reason = reasons
        .first()
        .map_or_else(String::new, |(reason, items)| format!("; for {items} of them: {reason}"));
    format!("none of the {n} items of {task} {split} got a score{reason}{failures}")
}

impl Session<'_> {
    async fn suite(
        &mut self,
        Planned { suite, output, earlier, .. }: &Planned<'_>,
        console: &mut Console<'_>,
    ) -> anyhow::Result<Report> {
        for notice in &suite.notices {
            writeln!(console.err, "{notice}").map_err(OutputError)?;
        }
        let template = self.template(suite);
        if let Some(earlier) = earlier {
            earlier.check(&template.settings())?;
        }
        let journal = output.as_ref().map(|output| self.journal(output, suite, &template)).transpose()?;
        #[expect(clippy::disallowed_methods, reason = "the date of the report")]
        let started = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
        let clock = std::time::Instant::now();
        let truncation = self.truncation();
        let evaluator = Evaluator {
            runner: Runner {
                client: &self.client,
                concurrency: self.settings.server.concurrency,
                deadline: self.deadline,
                journal,
                cache: self.cache.as_mut(),
            },
            template: &template,
            items: &suite.items,
            score: self.settings.score,
            truncation,
            progress_style: progress_style(self.settings, console),
            name: format!("{} {}", suite.task, suite.split),
            err: console.err,
        };
        let replies = evaluator.run().await?;
        if self.settings.server.endpoints.len() > 1 {
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
        if suite.traits.judges && report.n_valid == 0 {
            bail!("{}", no_score(&report));
        }
        let mut report = Report { started: started.to_string(), seconds, ..report };
        if let Some(earlier) = earlier {
            report.drift = earlier.drift(&records, self.settings.seed);
            for (name, metric) in report.drift.iter().flat_map(Drift::metrics) {
                report.metrics.set(name, metric);
            }
            report.first_metrics = first_metrics(&self.settings.output.first_metrics, suite, &report.metrics);
        }
        if let Some(RunFolder { folder, .. }) = output {
            saved::write(folder, &report, samples(&template, suite.traits.number_rule, &records))?;
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
        let mode = self.settings.mode;
        let encoding = self.model.others.get("number_encoding").and_then(Value::as_str);
        let protocol = mode.protocol(encoding);
        RequestTemplate {
            mode,
            api: self.settings.server.api,
            model: self.model.id.clone(),
            max_tokens: self.settings.max_tokens.map_or(traits.max_tokens, u64::from),
            // The paper's generation only stops at the end of sequence.
            stop: if protocol.is_some() { &[] } else { traits.stop },
            after: self.settings.after.clone().or_else(|| traits.after.map(str::to_owned)),
            system: self.settings.system.clone(),
            prefill: self.settings.prefill.clone(),
            // A number has no tokens.
            return_token_ids: protocol.is_some() || self.settings.score && mode != Mode::Regress,
            protocol,
            number: self.settings.number.clone(),
            seed: self.settings.seed,
            targets_continue_prompts: self.model.is_decoder_only(),
            field: suite.field.clone(),
            decisions: self.settings.decisions.clone(),
        }
    }

    /// Returns the journal of a suite: a new one, or the existing one with `--resume`. Only `--overwrite`
    /// removes anything before the new result is complete.
    fn journal(
        &self,
        RunFolder { folder, journal }: &RunFolder,
        suite: &Suite,
        template: &RequestTemplate,
    ) -> anyhow::Result<Journal> {
        if self.settings.output.on_existing() == OnExisting::Overwrite {
            saved::remove_result(folder)?;
            journal.clear()?;
        }
        let mut header = json!({
            "ntl-eval": env!("CARGO_PKG_VERSION"),
            "task": suite.task,
            "split": suite.split,
            "model": self.model.id,
            "mode": template.mode_name(),
            "score": self.settings.score,
            "seed": self.settings.seed,
            "limit": self.settings.limit,
            "prompt_tokens": self.settings.prompt_tokens,
            "items": key(&suite.items),
            "request": template.settings(),
        });
        if let Some(Truncation { side, .. }) = self.truncation() {
            header["truncation_side"] = json!(side);
        }
        if let Some(draws) = self.settings.number.draws {
            header["draws"] = json!(draws);
        }
        for (name, value) in self.model_fields() {
            header[name] = value;
        }
        Ok(Journal::read(journal, &header)?)
    }

    /// Scores the replies. The caller adds the times.
    fn report<'i>(
        &self,
        suite: &Suite,
        template: &RequestTemplate,
        replies: Vec<Reply<'i>>,
    ) -> (Report, Vec<ScoredReply<'i>>) {
        let seed = self.settings.seed;
        let mode = self.settings.mode;
        let mut records = Vec::with_capacity(replies.len());
        for reply in replies {
            records.push(score::score(&suite.traits, mode, &self.settings.number, reply));
        }
        let mut metrics = Metrics::of(&rows(&records), seed);
        let mut quirks = Vec::new();
        if let Some(protocol) = template.protocol.as_deref() {
            Evaluation { records, metrics, quirks } = protocol::evaluate(protocol, &records, &metrics, seed);
        }
        let rows = rows(&records);
        let corrected = Corrections::of(&rows, self.settings.judge.pass_from, self.settings.judge.width);
        for (name, metric) in corrected.metrics() {
            metrics.set(name, metric);
        }
        let Counts { n, n_valid, failed } = Counts::of(&rows);
        let answered: Vec<&Row> = rows.iter().copied().filter(|row| row.is_answered()).collect();
        let endpoints: Vec<String> = self.settings.server.endpoints.iter().map(ToString::to_string).collect();
        let decides = template.is_of_questions();
        let mut baselines = if decides { IndexMap::new() } else { constant_baselines(&answered) };
        baselines.extend(score::method_baselines(&records, seed));
        let report = Report {
            task: suite.task.to_owned(),
            split: suite.split.clone(),
            model: self.model.id.clone(),
            endpoint: endpoints.join(","),
            mode: template.mode_name().to_owned(),
            n,
            n_valid,
            failed,
            seed: Some(seed),
            settings: self.settings(suite, template),
            first_metrics: first_metrics(&self.settings.output.first_metrics, suite, &metrics),
            metrics,
            baselines,
            unparsed_rule: Some(if decides { REFUSED_RULE } else { UNPARSED_RULE }.to_owned()),
            quirks,
            modules: Module::all(
                records.iter().map(|record| (record.reply.item.module.as_deref(), &record.row)),
                seed,
            ),
            calibration: DistributionCalibration::of(
                rows.iter().filter_map(|row| row.distribution.as_ref()),
                seed,
            ),
            estimates: compare_estimates(&rows, seed),
            mass_closed: score::mass_closed(&records),
            unknown_mass: Unknown::of(rows.iter().filter_map(|row| row.distribution.as_ref())),
            unbounded: score::unbounded(&records),
            intervals: score::intervals(&records),
            missing_numbers: score::missing_numbers(&records),
            missing_scores: score::missing_scores(&records),
            corrected,
            cost: cost::total(
                records.iter().filter_map(|record| Some(record.reply.answer.as_ref().ok()?.cost)),
            ),
            versions: Map::from_iter([("ntl-eval".to_owned(), json!(env!("CARGO_PKG_VERSION")))]),
            ..Report::default()
        };
        (report, records)
    }

    /// Returns everything that may change the figures, and which estimate each metric uses.
    fn settings(&self, suite: &Suite, template: &RequestTemplate) -> Map<String, Value> {
        let form = suite.items.first().and_then(|item| item.form);
        let number_rule = match &template.protocol {
            Some(protocol) => protocol.number_rule().to_owned(),
            None => rule_name(suite.traits.number_rule, form).replace('-', "_"),
        };
        let mut estimates: IndexMap<&str, &str> = IndexMap::new();
        for metric in &METRICS {
            let is_of_others = !suite.traits.judges && matches!(metric.statistic, Statistic::Rating(_));
            let Some(estimate) = metric.estimate else { continue };
            if template.is_of_questions() || is_of_others {
                continue;
            }
            let name = match estimate {
                _ if self.settings.mode != Mode::Regress => number_rule.as_str(),
                Estimate::Mean if !suite.traits.medians => "trimmed_mean",
                Estimate::Mean | Estimate::Median => "median",
                Estimate::Mode => "mode",
            };
            estimates.insert(metric.name, name);
        }
        let mut all = data_settings(suite, self.settings);
        for (name, value) in [
            ("template", json!(self.settings.template().map(Template::source))),
            ("prompt_tokens", json!(self.settings.prompt_tokens)),
            ("concurrency", json!(self.settings.server.concurrency)),
            ("request", json!(template.settings())),
            ("estimates", json!(estimates)),
            ("exact_tolerance", json!(EXACT_TOLERANCE)),
            ("bootstrap_resamples", json!(RESAMPLES)),
        ] {
            all.insert(name.to_owned(), value);
        }
        if let Some(prefill) = &self.settings.prefill {
            all.insert("prefill".to_owned(), json!(prefill));
        }
        if let Some(Truncation { side, .. }) = self.truncation() {
            all.insert("truncation_side".to_owned(), json!(side));
        }
        all.extend(self.model_fields().map(|(name, value)| (name.to_owned(), value)));
        all
    }

    /// Returns how `--prompt-tokens` cuts prompts: on the side that the server reports.
    fn truncation(&self) -> Option<Truncation> {
        let tokens_max = self.settings.prompt_tokens?.get();
        Some(Truncation { tokens_max, side: self.model.truncation_side() })
    }

    /// Returns the model's fields in `/v1/models` that a journal records.
    fn model_fields(&self) -> impl Iterator<Item = (&'static str, Value)> {
        MODEL_FIELDS.into_iter().map(|(name, listed)| (name, json!(self.model.others.get(listed))))
    }

    /// Prints a report and the gates that it misses.
    fn show(&self, report: &Report, gates: &[Gate], console: &mut Console<'_>) -> io::Result<ExitStatus> {
        if self.settings.output.json {
            serde_json::to_writer(&mut *console.out, report)?;
            writeln!(console.out)?;
            for warning in warnings(report) {
                writeln!(console.err, "warning: {warning}")?;
            }
        } else {
            console::write(report, console.out)?;
        }
        let is_incomplete = report.failed > 0 || report.missing_scores.is_some();
        let mut status = if is_incomplete { ExitStatus::ItemsFailed } else { ExitStatus::Success };
        for miss in gates.iter().filter_map(|gate| gate.miss.as_ref()) {
            status = ExitStatus::GateMissed;
            writeln!(console.err, "gate missed on {} {}: {miss}", report.task, report.split)?;
        }
        Ok(status)
    }
}

/// Identifies the items of a run: the task's own settings, the limit, and a hash of the questions and
/// answers.
fn data_settings(suite: &Suite, settings: &RunSettings) -> Map<String, Value> {
    let items: Vec<(&str, &str)> =
        suite.items.iter().map(|item| (item.question.as_str(), item.answer.as_str())).collect();
    let mut data = suite.settings.clone();
    data.insert("limit".to_owned(), json!(settings.limit));
    data.insert("items".to_owned(), json!(key(&items)));
    data
}

fn progress_style(settings: &RunSettings, console: &Console<'_>) -> Style {
    match (settings.output.quiet, console.err_is_terminal) {
        (true, _) => Style::Silent,
        (false, true) => Style::Bar,
        (false, false) => Style::Lines,
    }
}

/// Opens the file of answers that all runs share. Each model has its own file. Two models differ if any field
/// of the server's list differs.
fn cache(folder: &Path, model: &ModelEntry) -> anyhow::Result<Journal> {
    fs::create_dir_all(folder).with_context(|| writing(folder))?;
    let model = model.clone().identity();
    let file = folder.join(format!("{}.jsonl", key(&model)));
    Ok(Journal::open(&file, &json!(model))?)
}
