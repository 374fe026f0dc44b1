//! Flags that every task takes.

use std::fs;
use std::num::{IntErrorKind, NonZeroU64, NonZeroUsize, ParseIntError};
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::BoolishValueParser;
use ntl_api::NumberScale;
use ntl_core::numbers::Scale;

use super::base_url::BaseUrl;
use super::bound::Bound;
use crate::metrics::registry::{self, METRICS};
use crate::stats::Interval;
use crate::template::{Template, unescaped};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Greedy text; the last number in it is the prediction.
    Text,
    /// The server's number: trimmed mean for squared errors, median for absolute ones, mode for accuracy.
    Regress,
    /// As in the NTL paper's evaluation code: 4 beams (1 for xVal), its length rule, its metrics with all their peculiarities.
    Paper,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Regress => "regress",
            Self::Paper => "paper",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`, the prompt as the user's message.
    Chat,
}

/// Flags that every task takes.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// File or folder of the data. Default: the cache that `ntl-eval data` fills, `$NTL_EVAL_DATA_CACHE` or
    /// `~/.cache/ntl-eval`; `arithmetic` and `multiplication` generate their items.
    #[arg(long, value_name = "PATH", env = "NTL_EVAL_DATA")]
    pub data: Option<PathBuf>,
    /// How the model answers.
    #[arg(long, value_enum, env = "NTL_EVAL_MODE", default_value = "text")]
    pub mode: Mode,
    /// Words the prompts, such as `Q: {question}\nA:`. `{{` and `}}` are braces; `\n`, `\t` and `\\` are a line feed, a tab
    /// and a backslash, also in `--system` and `--after`. Default: the bare question.
    #[arg(long, visible_alias = "prompt", value_name = "TEMPLATE", env = "NTL_EVAL_TEMPLATE")]
    pub template: Option<Template>,
    /// File of a template: as `--template`, with line feeds, tabs and backslashes as they are.
    #[arg(long, value_name = "FILE", env = "NTL_EVAL_TEMPLATE_FILE", conflicts_with = "template", value_parser = template_file)]
    pub template_file: Option<Template>,
    /// Message of the system in front of each question, with `--api chat`.
    #[arg(long, value_name = "TEXT", env = "NTL_EVAL_SYSTEM", value_parser = unescaped)]
    pub system: Option<String>,
    /// Regress mode: let the model write until this text, and read the number right behind it. Default: `#### ` for gsm8k, else
    /// the number comes at once.
    #[arg(long, value_name = "MARKER", env = "NTL_EVAL_AFTER", value_parser = unescaped)]
    pub after: Option<String>,
    /// Also request the likelihood of the true answers from `/v1/score`: token accuracy, perplexity, losses. For decoder-only models
    /// a space stands between prompt and answer where neither has one.
    #[arg(long, env = "NTL_EVAL_SCORE", value_parser = BoolishValueParser::new())]
    pub score: bool,
    /// Evaluate N items only: the first ones; of `multiplication` a random sample by `--seed`, with all pairs of lengths in
    /// proportion; of `mathematics` a random sample of N items of each module.
    #[arg(long, value_name = "N", env = "NTL_EVAL_LIMIT", value_parser = at_least_one::<NonZeroUsize>)]
    pub limit: Option<NonZeroUsize>,
    /// Seed of generated items and of the bootstrap.
    #[arg(long, value_name = "N", env = "NTL_EVAL_SEED", default_value = "0")]
    pub seed: u64,
    /// Most tokens of a generated text. Paper mode ignores it. Default: 256 for gsm8k, 64 for multirc, 8 for rjokes, 512 for judge,
    /// else 32.
    #[arg(long, value_name = "N", env = "NTL_EVAL_MAX_TOKENS", value_parser = at_least_one::<NonZeroU64>)]
    pub max_tokens: Option<NonZeroU64>,
    /// Truncate longer prompts to N tokens, the end of sequence included. The beginning of the prompt is left out, since the
    /// question is at its end. The server's `/tokenize` counts the tokens. Default: no limit; paper mode always truncates to
    /// 512, and leaves out the end as the paper does.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PROMPT_TOKENS", value_parser = at_least_one::<NonZeroUsize>)]
    pub prompt_tokens: Option<NonZeroUsize>,
    #[command(flatten)]
    pub number: NumberFlags,
    #[command(flatten)]
    pub server: ServerFlags,
    #[command(flatten)]
    pub output: OutputFlags,
    #[command(flatten)]
    pub gates: GateFlags,
}

impl Common {
    /// Of the text or of the file.
    pub fn template(&self) -> Option<&Template> {
        self.template.as_ref().or(self.template_file.as_ref())
    }
}

/// Fields of the request's `number` object; missing ones are the server's defaults.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Number (regress mode)")]
pub struct NumberFlags {
    /// Smallest and largest number that counts as an answer. With it every estimate is bounded.
    #[arg(long, value_name = "LOW,HIGH", env = "NTL_EVAL_RANGE", allow_hyphen_values = true, value_parser = range)]
    pub range: Option<Interval>,
    /// The answers are ratings: only LOW, LOW + STEP and so on to HIGH count. The step is 1 unless given.
    #[arg(long, value_name = "LOW,HIGH[,STEP]", env = "NTL_EVAL_SCALE", allow_hyphen_values = true, value_parser = scale)]
    #[arg(conflicts_with = "range")]
    pub scale: Option<RatingScale>,
    /// Also request intervals that contain the truth with this probability, between 0 and 1, and report how often they do.
    #[arg(long, value_name = "COVERAGE", env = "NTL_EVAL_INTERVAL", value_parser = coverage)]
    pub interval: Option<f64>,
    /// Share of the mass that the mean leaves out in each tail, 0 to 0.49. The server's default: 0.005.
    #[arg(long, value_name = "SHARE", env = "NTL_EVAL_TRIM", value_parser = trim)]
    pub trim: Option<f64>,
    /// Most digits before the point, 1 to 20. The server's default: 12.
    #[arg(long, value_name = "N", env = "NTL_EVAL_DIGITS_MAX", value_parser = clap::value_parser!(u8).range(1..=20))]
    pub digits_max: Option<u8>,
    /// Stop the search when the open mass is at most this, between 0 and 1. The server's default: 0.001.
    #[arg(long, value_name = "MASS", env = "NTL_EVAL_TOLERANCE", value_parser = tolerance)]
    pub tolerance: Option<f64>,
    /// With `--after`: sample N texts at temperature 1, and average the distributions of the numbers behind them. Default: one
    /// text at temperature 0.
    #[arg(long, value_name = "N", env = "NTL_EVAL_RATIONALES", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub rationales: Option<u8>,
}

impl NumberFlags {
    /// That all admitted numbers lie in.
    pub fn bounds(&self) -> Option<Interval> {
        self.range.or_else(|| self.scale.map(RatingScale::ends))
    }
}

/// A scale that [`Scale::new`] accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatingScale {
    scale: Scale,
    low: f64,
    high: f64,
    /// As given.
    step: Option<f64>,
}

impl RatingScale {
    pub fn ends(self) -> Interval {
        Interval { low: self.low, high: self.high }
    }

    pub fn step(self) -> f64 {
        self.step.unwrap_or(1.0)
    }

    /// Ascending.
    pub fn values(self) -> Vec<f64> {
        self.scale.values().collect()
    }
}

impl From<RatingScale> for NumberScale {
    fn from(RatingScale { low, high, step, .. }: RatingScale) -> Self {
        Self::List([low, high].into_iter().chain(step).collect())
    }
}

fn number(text: &str) -> Result<f64, String> {
    let value = text.trim().parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| format!("`{text}` is not a number"))
}

/// Reads a number that is not zero.
pub fn at_least_one<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::Zero => "must be at least 1".to_owned(),
        _ => error.to_string(),
    })
}

fn template_file(file: &str) -> Result<Template, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("could not read {file}: {error}"))?;
    Template::from_text(&text).map_err(|error| error.to_string())
}

pub(super) fn range(text: &str) -> Result<Interval, String> {
    let (low, high) = text.split_once(',').ok_or("expected two numbers, LOW,HIGH")?;
    let (low, high) = (number(low)?, number(high)?);
    if low <= high { Ok(Interval { low, high }) } else { Err(format!("{low} is above {high}")) }
}

pub fn scale(text: &str) -> Result<RatingScale, String> {
    let parts = text.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
    let (low, high, step) = match *parts.as_slice() {
        [low, high] => (low, high, None),
        [low, high, step] => (low, high, Some(step)),
        _ => return Err("expected two or three numbers, LOW,HIGH or LOW,HIGH,STEP".to_owned()),
    };
    let scale = Scale::new(low, high, step.unwrap_or(1.0)).map_err(|error| error.to_string())?;
    Ok(RatingScale { scale, low, high, step })
}

fn coverage(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if value > 0.0 && value < 1.0 {
        Ok(value)
    } else {
        Err("expected a probability between 0 and 1".to_owned())
    }
}

fn trim(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if (0.0..=0.49).contains(&value) { Ok(value) } else { Err("expected a share from 0 to 0.49".to_owned()) }
}

fn metric(name: &str) -> Result<String, String> {
    let name = name.trim();
    if registry::find(name).is_some() {
        return Ok(name.to_owned());
    }
    let names = METRICS.iter().map(|metric| metric.name).collect::<Vec<_>>().join(", ");
    Err(format!("there is no metric `{name}`; there are {names}"))
}

fn tolerance(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if value > 0.0 && value < 1.0 { Ok(value) } else { Err("expected a mass between 0 and 1".to_owned()) }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// Base URL of the server, with or without `/v1`. Repeat it to spread requests over several servers of
    /// one model; where one of them dies, its items go to the others.
    #[arg(long, value_name = "URL", env = "NTL_EVAL_ENDPOINT", value_delimiter = ',', required = true)]
    pub endpoint: Vec<BaseUrl>,
    /// Name of the model. Default: the only one that the server lists.
    #[arg(long, value_name = "NAME", env = "NTL_EVAL_MODEL")]
    pub model: Option<String>,
    /// Route of the requests; `chat` for servers and models that support nothing else.
    #[arg(long, value_enum, env = "NTL_EVAL_API", default_value = "completions")]
    pub api: Api,
    /// Bearer token for the server.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Requests in flight at once.
    #[arg(long, value_name = "N", env = "NTL_EVAL_CONCURRENCY", default_value = "16", value_parser = at_least_one::<NonZeroUsize>)]
    pub concurrency: NonZeroUsize,
    /// Seconds to wait for one response before a retry (at most 4).
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_TIMEOUT", default_value = "120", value_parser = at_least_one::<NonZeroU64>)]
    pub timeout: NonZeroU64,
    /// Seconds for the whole run. Items without an answer by then have failed; `--resume` continues with them.
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_DEADLINE", value_parser = at_least_one::<NonZeroU64>)]
    pub deadline: Option<NonZeroU64>,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Folder for `report.json`, `samples.jsonl` and `journal.jsonl`. Several splits get a folder each, named after the
    /// split.
    #[arg(long, value_name = "DIR", env = "NTL_EVAL_OUT")]
    pub out: Option<PathBuf>,
    /// Continue the run whose journal is in `--out`. Answers in the journal are not requested again.
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// Replace the run in `--out`, finished or not. Without this flag such a folder is refused.
    #[arg(long, requires = "out", conflicts_with = "resume")]
    pub overwrite: bool,
    /// Folder of answers that all runs share: the same request goes to the same model only once. (Downloaded data are
    /// elsewhere: see `--data`.)
    #[arg(long, value_name = "DIR", env = "NTL_EVAL_ANSWERS")]
    pub cache: Option<PathBuf>,
    /// Show these metrics first, in this order. They are computed in any case, where there are data for them.
    #[arg(long, value_name = "NAME,...", env = "NTL_EVAL_METRIC", value_delimiter = ',', value_parser = metric)]
    pub metric: Vec<String>,
    /// Print each split's report as one line of JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Show no progress on standard error.
    #[arg(long)]
    pub quiet: bool,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Gates")]
pub struct GateFlags {
    /// Exit with 3 when a metric of any split is below V or has no value; repeatable.
    #[arg(long, value_name = "METRIC=V")]
    pub fail_under: Vec<Bound>,
    /// Exit with 3 when a metric of any split is above V or has no value; repeatable.
    #[arg(long, value_name = "METRIC=V")]
    pub fail_over: Vec<Bound>,
    /// Exit with 3 when a metric is worse than in the report in this folder, with its whole 95% interval.
    #[arg(long, value_name = "DIR")]
    pub baseline: Option<PathBuf>,
}
