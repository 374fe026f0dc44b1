//! `ntl-eval calibrate`: makes a calibration file from a finished run and measures its effect on the
//! intervals of held-out items.
//!
//! In: the directory of a run in regress mode. A seed splits the items that have an interval and a true
//! number. The first part determines the offset (split conformal prediction, see [`ntl_core::numbers`]). The
//! second part measures coverage and width of the intervals before and after. Out: the file, and a table or a
//! line of JSON.

mod decisions;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use ntl_api::{
    CalibratedKind, CalibratedModel, CalibratedOffset, CalibratedSettings, CalibratedTask, Calibration,
    CalibrationError, IntervalMethod, NumberInterval, NumberOptions, Quantile, ScaleNumbers,
    WrongScaleLength,
};
use ntl_core::numbers::{
    Interval, NumberValues, Scale, conformal_interval, conformal_offset, conformal_rank, conformity_score,
};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::OutputError;
use crate::format::{count, number};
use crate::metrics::Metric;
use crate::metrics::distribution::IntervalScore;
use crate::report::document::{Table, numbers, row, words};
use crate::report::markdown::plain_table;
use crate::settings::values::at_least_one;
use crate::stats;
use crate::stats::weighted::mean_in_order;
use crate::store::report::Report;
use crate::store::sample::Sample;
use crate::store::saved::{REPORT, Run};

/// Makes a calibration file for `ntl-server --calibration` from the intervals and the true answers of a
/// finished run.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateSettings {
    /// Folder of a run in regress mode or of `decisions`, as `--out` wrote it.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Share of the intervals that may miss the truth, between 0 and 1: their coverage is 1 - ALPHA. The run
    /// must hold the quantiles ALPHA/2 and 1 - ALPHA/2 (every run has those for 0.1 and 0.5), or be made with
    /// `--interval`.
    #[arg(long, value_name = "ALPHA", default_value = "0.1", value_parser = alpha)]
    pub alpha: f64,
    /// The file to write. An existing file is an error without `--overwrite`.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    pub overwrite: bool,
    /// Number of items to calibrate on, drawn by `--seed`. The others are held out: coverage and width are
    /// measured on them. Default: half of the items.
    #[arg(long, value_name = "N", value_parser = at_least_one::<NonZeroUsize>)]
    pub items: Option<NonZeroUsize>,
    /// Type of questions to calibrate, in a run of `decisions`. Default: the only one.
    #[arg(long = "type", value_name = "TYPE", value_parser = kind())]
    pub kind: Option<CalibratedKind>,
    /// Seed of the draw.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Example:
  ntl-eval rjokes --endpoint http://127.0.0.1:8000 --mode regress --out results
  ntl-eval calibrate results --alpha 0.1 --out jokes.json
  ntl-server --model DIR --calibration jokes.json";

fn kind() -> impl TypedValueParser<Value = CalibratedKind> {
    PossibleValuesParser::new(["predicate", "choice", "score"]).map(|name| match name.as_str() {
        "predicate" => CalibratedKind::Predicate,
        "choice" => CalibratedKind::Choice,
        _ => CalibratedKind::Score,
    })
}

fn alpha(text: &str) -> Result<f64, String> {
    let share = text.trim().parse().ok().filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "expected a share between 0 and 1".to_owned())
}

/// Why a run cannot be calibrated.
#[derive(Debug, thiserror::Error)]
enum CalibrateError {
    #[error(
        "a calibration is for one type of question, and the run has answers of the types {found}: choose one with --type"
    )]
    Types { found: String },
    #[error("--type is for runs of `decisions`")]
    NoDecisions,
    #[error("{} is a run in {mode} mode; intervals need --mode regress", .folder.display())]
    Mode { folder: PathBuf, mode: String },
    #[error("{} is a run of `judge --pairs`, whose intervals cover both orders, but a server's intervals cover one", .folder.display())]
    Pairs { folder: PathBuf },
    #[error("{} does not record the request for numbers: `settings.request.number` is {found}", .file.display())]
    NoRequest { file: PathBuf, found: String },
    #[error(
        "alpha {alpha} needs the quantile {missing}, but the requests of the run only had {asked}; \
         run the task again with --interval {coverage}"
    )]
    NoQuantile { alpha: f64, missing: f64, asked: String, coverage: f64 },
    #[error(
        "the server already calibrated the intervals of the run; run the task again without --calibration"
    )]
    Calibrated,
    #[error("none of the {n} items has both an interval and a true number")]
    NoItems { n: usize },
    #[error(
        "--items {wanted} is more than the {found} items with an interval or probabilities, and a true answer"
    )]
    FewerItems { wanted: usize, found: usize },
    #[error(
        "{n} items are too few for alpha {alpha}: the offset is the ceil((n + 1)(1 - alpha))-th smallest score, \
         here number {rank}"
    )]
    TooFew { n: usize, alpha: f64, rank: usize },
    #[error("`settings.request.number.scale` is not a scale: {0}")]
    Scale(String),
    #[error("a server would reject the calibration")]
    Refused(#[from] CalibrationError),
    #[error("{} exists: replace it with --overwrite, or use another --out", .file.display())]
    Exists { file: PathBuf },
}

/// An item with a known answer, and the interval that the model returned for it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Answered {
    interval: Interval,
    truth: f64,
}

/// The result of a calibration, with the file and the held-out intervals.
#[derive(Debug, Serialize)]
struct CalibrationResult<'a, C> {
    file: &'a Path,
    calibration: &'a C,
    seed: u64,
    /// Number of items without an interval or a true number.
    left_out: usize,
    /// Missing if all items were used for the calibration.
    held_out: Option<HeldOut>,
}

/// Intervals of the items that the offset was not computed from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct HeldOut {
    n: usize,
    /// Intervals as the model returned them.
    quantiles: IntervalFigures,
    /// Intervals moved by the offset.
    conformal: IntervalFigures,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct IntervalFigures {
    coverage: Metric,
    /// Mean width.
    width: Metric,
}

impl IntervalFigures {
    fn of(scores: &[IntervalScore]) -> Self {
        let widths: Vec<f64> = scores.iter().map(|score| score.width).collect();
        let width = mean_in_order(&widths, &vec![1.0; widths.len()]);
        Self {
            coverage: Metric::share(scores.iter().filter(|score| score.covers).count(), scores.len()),
            width: Metric::plain(width, scores.len()),
        }
    }
}

pub fn run(settings: &CalibrateSettings, out: &mut dyn Write) -> anyhow::Result<()> {
    let run = Run::load(&settings.run)?;
    if run.samples.iter().any(Sample::is_decision) {
        return decisions::run(&run, settings, out);
    }
    if settings.kind.is_some() {
        return Err(CalibrateError::NoDecisions.into());
    }
    let options = requested(&run)?;
    let ends = Ends::find(&options, settings.alpha)?;
    let values = admitted(&options)?;
    let mut items = Vec::new();
    for sample in &run.samples {
        let interval = ends.read(sample)?;
        items.extend(interval.zip(sample.truth()).map(|(interval, truth)| Answered { interval, truth }));
    }
    let Drawn { own, rest, left_out } = draw(items, run.samples.len(), settings)?;
    let figures = offset(&conformity_scores(&own), settings.alpha)?;
    let calibrated = CalibratedSettings { number: options, temperature: temperature(&run.report) };
    let calibration = Calibration {
        created: Some(created()),
        ..Calibration::new(model(&run.report), task(&run.report), calibrated, figures)
            .map_err(CalibrateError::Refused)?
    };
    write(&settings.out, &calibration, settings.overwrite)?;
    let held_out = (!rest.is_empty()).then(|| held_out(&rest, figures.offset, values));
    let file = settings.out.as_path();
    let seed = settings.seed;
    let outcome = CalibrationResult { file, calibration: &calibration, seed, left_out, held_out };
    let wording = Wording {
        meaning: meaning(figures.offset, settings.alpha),
        uncalibrated: "quantiles",
        size: "mean width",
        left_out: "have no interval or no true number",
    };
    print(&outcome, figures, &wording, &run, settings.json, out)
}

/// Items that are split by the seed.
struct Drawn<T> {
    /// Those that determine the offset.
    own: Vec<T>,
    rest: Vec<T>,
    /// Number of samples that are not among the items.
    left_out: usize,
}

/// `samples`: number of samples of the run.
fn draw<T>(
    mut items: Vec<T>,
    samples: usize,
    settings: &CalibrateSettings,
) -> Result<Drawn<T>, CalibrateError> {
    let left_out = samples - items.len();
    if items.is_empty() {
        return Err(CalibrateError::NoItems { n: left_out });
    }
    let wanted = settings.items.map_or(items.len().div_ceil(2), usize::from);
    if wanted > items.len() {
        return Err(CalibrateError::FewerItems { wanted, found: items.len() });
    }
    items.shuffle(&mut ChaCha8Rng::seed_from_u64(settings.seed));
    let rest = items.split_off(wanted);
    Ok(Drawn { own: items, rest, left_out })
}

#[expect(clippy::disallowed_methods, reason = "the date of the file")]
fn created() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The `number` object of the run's requests.
fn requested(run: &Run) -> Result<NumberOptions, CalibrateError> {
    let Report { mode, settings, .. } = &run.report;
    if mode != "regress" {
        return Err(CalibrateError::Mode { folder: run.folder.clone(), mode: mode.clone() });
    }
    if settings.get("pairs") == Some(&Value::Bool(true)) {
        return Err(CalibrateError::Pairs { folder: run.folder.clone() });
    }
    let found = settings.get("request").and_then(|request| request.get("number")).unwrap_or(&Value::Null);
    match serde_json::from_value::<Option<NumberOptions>>(found.clone()) {
        Ok(Some(options)) => Ok(options),
        _ => Err(CalibrateError::NoRequest { file: run.folder.join(REPORT), found: found.to_string() }),
    }
}

/// The source of an item's interval.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    /// The item's quantiles of these levels.
    Quantiles([f64; 2]),
    /// The server's result for `number.interval`.
    Interval,
}

/// Returns `true` if two levels are equal apart from rounding.
fn is_same_level(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

impl Ends {
    fn find(options: &NumberOptions, alpha: f64) -> Result<Self, CalibrateError> {
        let levels = [alpha / 2.0, 1.0 - alpha / 2.0];
        let asked = options.quantiles.as_deref().unwrap_or_default();
        let missing = levels.into_iter().find(|level| !asked.iter().any(|&own| is_same_level(own, *level)));
        let Some(missing) = missing else { return Ok(Self::Quantiles(levels)) };
        if options.interval.is_some_and(|coverage| is_same_level(coverage, 1.0 - alpha)) {
            return Ok(Self::Interval);
        }
        let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
        let [missing, coverage] = [missing, 1.0 - alpha].map(|level| (level * 1e9).round() / 1e9);
        Err(CalibrateError::NoQuantile { alpha, missing, asked: asked.join(", "), coverage })
    }

    /// Returns the interval of an item, or `None` if it has none or if the open mass makes an end unbounded.
    /// A server returns no interval for such an item either.
    fn read(self, sample: &Sample) -> Result<Option<Interval>, CalibrateError> {
        match self {
            Self::Quantiles(levels) => {
                let unbounded: Vec<f64> = column(sample, "unbounded_quantiles").unwrap_or_default();
                let quantiles: Vec<Quantile> = column(sample, "quantiles").unwrap_or_default();
                let [low, high] = levels.map(|level| {
                    if unbounded.iter().any(|&own| is_same_level(own, level)) {
                        return None;
                    }
                    quantiles.iter().find(|quantile| is_same_level(quantile.q, level))?.value
                });
                Ok(low.zip(high).map(|(low, high)| Interval { low, high }))
            }
            Self::Interval => {
                let found: Option<NumberInterval> = column(sample, "interval");
                match found {
                    Some(NumberInterval { method: IntervalMethod::Conformal, .. }) => {
                        Err(CalibrateError::Calibrated)
                    }
                    Some(NumberInterval { low, high, .. }) => Ok(Some(Interval { low, high })),
                    None => Ok(predicted(sample).map(|value| Interval { low: value, high: value })),
                }
            }
        }
    }
}

/// Returns the number of a model that predicts one value without a distribution, and so has no interval
/// before its calibration. All its quantiles are this value, and no mass is open.
fn predicted(sample: &Sample) -> Option<f64> {
    let quantiles: Vec<Quantile> = column(sample, "quantiles")?;
    let value = quantiles.first()?.value?;
    let is_alone =
        quantiles.iter().all(|quantile| quantile.value.is_some_and(|other| other.total_cmp(&value).is_eq()));
    let is_closed = column::<f64>(sample, "mass_open").is_some_and(|open| open <= 0.0);
    (is_alone && is_closed).then_some(value)
}

fn column<T: DeserializeOwned>(sample: &Sample, name: &str) -> Option<T> {
    serde_json::from_value(sample.more.get(name)?.clone()).ok()
}

/// Returns the values that the requests admit.
fn admitted(options: &NumberOptions) -> Result<NumberValues, CalibrateError> {
    let ScaleNumbers { low, high, step } = match (&options.scale, options.range) {
        (None, None) => return Ok(NumberValues::All),
        (None, Some([low, high])) => return Ok(NumberValues::Range(Interval { low, high })),
        (Some(scale), _) => scale
            .numbers()
            .map_err(|WrongScaleLength(count)| CalibrateError::Scale(format!("it has {count} parts")))?,
    };
    let scale = Scale::new(low, high, step).map_err(|error| CalibrateError::Scale(error.to_string()))?;
    Ok(NumberValues::Scale(scale))
}

fn conformity_scores(items: &[Answered]) -> Vec<f64> {
    items.iter().map(|item| conformity_score(item.interval, item.truth)).collect()
}

fn offset(scores: &[f64], alpha: f64) -> Result<CalibratedOffset, CalibrateError> {
    let n = scores.len();
    match conformal_offset(scores, alpha) {
        Some(offset) => Ok(CalibratedOffset { alpha, n: n as u64, offset }),
        None => Err(CalibrateError::TooFew { n, alpha, rank: conformal_rank(n, alpha) }),
    }
}

fn interval_score(Interval { low, high }: Interval, truth: f64) -> IntervalScore {
    IntervalScore::of(stats::Interval { low, high }, truth)
}

fn held_out(items: &[Answered], offset: f64, values: NumberValues) -> HeldOut {
    let mut before = Vec::with_capacity(items.len());
    let mut after = Vec::with_capacity(items.len());
    for Answered { interval, truth } in items {
        before.push(interval_score(*interval, *truth));
        after.push(interval_score(conformal_interval(*interval, offset, values), *truth));
    }
    HeldOut {
        n: items.len(),
        quantiles: IntervalFigures::of(&before),
        conformal: IntervalFigures::of(&after),
    }
}

fn model(report: &Report) -> CalibratedModel {
    let fingerprint = report.settings.get("model_fingerprint").and_then(Value::as_str);
    CalibratedModel { name: report.model.clone(), fingerprint: fingerprint.map(str::to_owned) }
}

fn task(report: &Report) -> CalibratedTask {
    let messages = report.settings.get("request").and_then(|request| request.get("messages")?.as_array());
    let route = if messages.is_some() { "/v1/chat/completions" } else { "/v1/completions" };
    let system = messages.and_then(|messages| messages.iter().find(|message| message["role"] == "system"));
    let system = system.and_then(|message| message["content"].as_str());
    let template = report.settings.get("template").and_then(Value::as_str);
    CalibratedTask {
        name: report.task.clone(),
        route: route.to_owned(),
        template: template.map(str::to_owned),
        system: system.map(str::to_owned),
        shots: report.settings.get("shots").and_then(Value::as_u64).unwrap_or(0),
    }
}

/// Returns the temperature of the run's requests.
fn temperature(report: &Report) -> Option<f64> {
    report.settings.get("request")?.get("temperature")?.as_f64()
}

/// Writes the file. Without `overwrite`, an existing file is an error.
fn write(file: &Path, calibration: &impl Serialize, overwrite: bool) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(calibration)?;
    text.push('\n');
    let mut options = OpenOptions::new();
    let options = if overwrite { options.create(true).truncate(true) } else { options.create_new(true) };
    match options.write(true).open(file).and_then(|mut file| file.write_all(text.as_bytes())) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Err(CalibrateError::Exists { file: file.to_owned() }.into())
        }
        written => written.with_context(|| format!("could not write {}", file.display())),
    }
}

/// Says what a server does with an offset.
fn meaning(offset: f64, alpha: f64) -> String {
    let distance = number(offset.abs());
    let share = number(1.0 - alpha);
    if offset > 0.0 {
        format!("the server moves both ends of each interval outwards by {distance}")
    } else if offset < 0.0 {
        format!(
            "the server moves both ends of each interval inwards by {distance}: the quantiles contain the truth of more items than {share}"
        )
    } else {
        format!(
            "an offset of 0 changes no interval: the quantiles contain the truth of at least {share} of the items as they are"
        )
    }
}

/// The words of a printed result.
struct Wording {
    /// Describes the effect of the offset on a server's answers.
    meaning: String,
    /// Names of a row and of a column in the table of held-out items.
    uncalibrated: &'static str,
    size: &'static str,
    /// Why items are left out.
    left_out: &'static str,
}

/// Writes the result as JSON or as a table.
fn print<C: Serialize>(
    outcome: &CalibrationResult<'_, C>,
    figures: CalibratedOffset,
    wording: &Wording,
    run: &Run,
    as_json: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let text =
        if as_json { json!(outcome).to_string() } else { text(outcome, figures, wording, &run.report) };
    Ok(writeln!(out, "{text}").map_err(OutputError)?)
}

fn text<C>(
    outcome: &CalibrationResult<'_, C>,
    CalibratedOffset { alpha, n, offset }: CalibratedOffset,
    wording: &Wording,
    report: &Report,
) -> String {
    let CalibrationResult { file, left_out, held_out, .. } = outcome;
    let mut text = format!(
        "{}: alpha {alpha}, offset {} from {} items of {} {}, model {}",
        file.display(),
        number(offset),
        count(n as usize),
        report.task,
        report.split,
        report.model,
    );
    text += &format!("\n{}", wording.meaning);
    if *left_out > 0 {
        text += &format!("\n{} items {} and are left out", count(*left_out), wording.left_out);
    }
    match held_out {
        Some(held_out) => text += &format!("\n{}", plain_table(&table(held_out, wording))),
        None => {
            text += "\nno items are held out, so the coverage is not measured; --items N holds out the rest"
        }
    }
    text
}

fn table(held_out: &HeldOut, wording: &Wording) -> Table {
    let columns = [words(&["intervals"]), numbers(&["coverage", "95% interval", wording.size, "n held out"])];
    let rows = [(wording.uncalibrated, held_out.quantiles), ("conformal", held_out.conformal)];
    let rows = rows.map(|(name, IntervalFigures { coverage, width })| {
        let [value, low, high] = [coverage.value, coverage.low, coverage.high]
            .map(|share| share.map_or_else(String::new, |share| format!("{share:.4}")));
        row![
            name,
            value,
            format!("{low} to {high}"),
            width.value.map_or_else(String::new, number),
            count(coverage.n)
        ]
    });
    Table::new(columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(case: &Value, name: &str) -> Vec<f64> {
        case[name].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    }

    /// `tests/data/calibrate/make.py` computed the expected values with numpy and scipy.
    #[test]
    fn offset_coverage_and_width_match_numpy() {
        let cases: Value = serde_json::from_str(include_str!("../tests/data/calibrate/golden.json")).unwrap();
        let cases = cases.as_array().unwrap();
        for case in cases {
            let [lower, upper, truth] = ["lower", "upper", "truth"].map(|name| column(case, name));
            let item = |index: usize| Answered {
                interval: Interval { low: lower[index], high: upper[index] },
                truth: truth[index],
            };
            let items: Vec<Answered> = (0..truth.len()).map(item).collect();
            let options: NumberOptions = serde_json::from_value(case["number"].clone()).unwrap();
            let (own, rest) = items.split_at(case["n"].as_u64().unwrap() as usize);
            let found = offset(&conformity_scores(own), case["alpha"].as_f64().unwrap()).unwrap();
            let close = |got: f64, want: &Value| {
                assert!((got - want.as_f64().unwrap()).abs() < 1e-12, "{got} {want}");
            };
            close(found.offset, &case["offset"]);
            let held_out = held_out(rest, found.offset, admitted(&options).unwrap());
            for (got, want) in [(held_out.quantiles, &case["before"]), (held_out.conformal, &case["after"])] {
                close(got.coverage.value.unwrap(), &want["coverage"]);
                close(got.coverage.low.unwrap(), &want["low"]);
                close(got.coverage.high.unwrap(), &want["high"]);
                close(got.width.value.unwrap(), &want["width"]);
            }
        }
        assert_eq!(cases.len(), 4);
    }

    #[test]
    fn the_meaning_of_an_offset_is_explained() {
        for (offset, want) in [
            (
                0.0,
                "an offset of 0 changes no interval: the quantiles contain the truth of at least 0.9000 of",
            ),
            (-0.0, "an offset of 0 changes no interval"),
            (2.5, "the server moves both ends of each interval outwards by 2.500"),
            (-2.5, "the server moves both ends of each interval inwards by 2.500: "),
        ] {
            assert!(meaning(offset, 0.1).starts_with(want), "{offset}: {}", meaning(offset, 0.1));
        }
    }

    #[test]
    fn ends_are_the_requested_quantiles_or_the_interval() {
        let options = |value: Value| serde_json::from_value::<NumberOptions>(value).unwrap();
        let quantiles = json!([0.05, 0.25, 0.5, 0.75, 0.95]);
        let plain = options(json!({ "quantiles": quantiles }));
        for (alpha, levels) in [(0.1, [0.05, 0.95]), (0.5, [0.25, 0.75])] {
            assert_eq!(Ends::find(&plain, alpha).unwrap(), Ends::Quantiles(levels));
        }
        let error = Ends::find(&plain, 0.2).unwrap_err().to_string();
        assert!(
            error.contains("the quantile 0.1,") && error.contains("only had 0.05, 0.25, 0.5, 0.75, 0.95;"),
            "{error}"
        );
        assert!(error.ends_with("again with --interval 0.8"), "{error}");
        let with_interval = options(json!({ "quantiles": quantiles, "interval": 0.8 }));
        assert_eq!(Ends::find(&with_interval, 0.2).unwrap(), Ends::Interval);
        assert_eq!(Ends::find(&with_interval, 0.1).unwrap(), Ends::Quantiles([0.05, 0.95]));
    }

    #[test]
    fn items_without_an_interval_of_the_server_are_left_out() {
        let sample = |more: Value| Sample { more: more.as_object().cloned().unwrap(), ..Sample::default() };
        let quantiles = json!([{ "q": 0.05, "value": 1.0 }, { "q": 0.95, "value": 4.0 }]);
        let ends = Ends::Quantiles([0.05, 0.95]);
        let read = |more: Value| ends.read(&sample(more)).unwrap();
        assert_eq!(read(json!({ "quantiles": quantiles })), Some(Interval { low: 1.0, high: 4.0 }));
        assert_eq!(read(json!({ "quantiles": quantiles, "unbounded_quantiles": [0.95] })), None);
        assert_eq!(read(json!({ "quantiles": [{ "q": 0.05, "value": null }] })), None);
        assert_eq!(read(json!({})), None);
        let interval = |method: &str| {
            let given = json!({ "low": 1.0, "high": 4.0, "coverage": 0.8, "method": method });
            Ends::Interval.read(&sample(json!({ "interval": given })))
        };
        assert_eq!(interval("quantiles").unwrap(), Some(Interval { low: 1.0, high: 4.0 }));
        assert!(matches!(interval("conformal"), Err(CalibrateError::Calibrated)));
    }

    #[test]
    fn a_predicted_value_is_the_interval_of_its_item() {
        let read = |quantiles: [f64; 2], open: f64| {
            let quantiles = quantiles.map(|value| json!({ "q": 0.5, "value": value }));
            let more = json!({ "quantiles": quantiles, "mass_open": open });
            let sample = Sample { more: more.as_object().cloned().unwrap(), ..Sample::default() };
            Ends::Interval.read(&sample).unwrap()
        };
        assert_eq!(read([2.5, 2.5], 0.0), Some(Interval { low: 2.5, high: 2.5 }));
        assert_eq!(read([2.5, 2.5], 0.1), None, "the server left out an unbounded interval");
        assert_eq!(read([2.5, 3.0], 0.0), None);
    }
}
