//! Flags that every task takes, and the settings that they mean.

use std::num::{IntErrorKind, NonZeroU64, NonZeroUsize, ParseIntError};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser};
use jiff::SignedDuration;
use ntl_common::regular_file::{self, SMALL_BYTES_MAX};

use crate::metrics::registry;
use crate::settings::base_url::BaseUrl;
use crate::settings::decisions::DecisionSettings;
use crate::settings::gates::{Bound, Gates};
use crate::settings::judge::JudgeSettings;
use crate::settings::mode::{Api, Mode};
use crate::settings::number::{NumberSettings, RatingScale, finite};
use crate::settings::{OnExisting, OutputSettings, RunSettings, ServerSettings};
use crate::stats::Interval;
use crate::template::{Template, unescaped};

/// Flags that every task takes.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// File or folder of the data. Default: the cache that `ntl-eval data` fills, `$NTL_EVAL_DATA_CACHE` or
    /// `~/.cache/ntl-eval`; `arithmetic` and `multiplication` generate their items, as `nupa`,
    /// `regression-in-context` and `densities` always do.
    #[arg(long, value_name = "PATH", env = "NTL_EVAL_DATA")]
    pub data: Option<PathBuf>,
    /// How the model answers.
    #[arg(long, value_enum, env = "NTL_EVAL_MODE", default_value = "text")]
    pub mode: Mode,
    /// Words the prompts, such as `Q: {question}\nA:`. `{{` and `}}` are braces; `\n`, `\t` and `\\` are a
    /// line feed, a tab and a backslash, also in `--system` and `--after`. Default: the bare question.
    #[arg(long, visible_alias = "prompt", value_name = "TEMPLATE", env = "NTL_EVAL_TEMPLATE")]
    pub template: Option<Template>,
    /// File of a template: as `--template`, with line feeds, tabs and backslashes as they are.
    #[arg(long, visible_alias = "rubric", value_name = "FILE", env = "NTL_EVAL_TEMPLATE_FILE", conflicts_with = "template", value_parser = template_file)]
    pub template_file: Option<Template>,
    /// System message before each question, with `--api chat`.
    #[arg(long, value_name = "TEXT", env = "NTL_EVAL_SYSTEM", value_parser = unescaped)]
    pub system: Option<String>,
    /// Regress mode: let the model write until this text, and read the number right after it. Default: `####
    /// ` for gsm8k; the other tasks read the number right after the prompt.
    #[arg(long, value_name = "MARKER", env = "NTL_EVAL_AFTER", value_parser = unescaped)]
    pub after: Option<String>,
    /// Also request the likelihood of the true answers from `/v1/score`: token accuracy, perplexity, losses.
    /// For decoder-only models a space separates prompt and answer if neither has one.
    #[arg(long, env = "NTL_EVAL_SCORE", value_parser = BoolishValueParser::new())]
    pub score: bool,
    /// Evaluate N items only, as a rule the first ones. `multiplication`, `nupa` and `densities` draw a
    /// random sample by `--seed`, with all modules in proportion, and `mathematics` N items of each module.
    /// `code-regression` keeps N items of each space, and `regression-in-context` N of each function.
    #[arg(long, value_name = "N", env = "NTL_EVAL_LIMIT", value_parser = at_least_one::<NonZeroUsize>)]
    pub limit: Option<NonZeroUsize>,
    /// Seed of generated items and of the bootstrap.
    #[arg(long, value_name = "N", env = "NTL_EVAL_SEED", default_value = "0")]
    pub seed: u64,
    /// Maximum number of tokens of a generated text. Paper mode ignores it. Default: 256 for gsm8k, 64 for
    /// multirc, 8 for rjokes, 512 for judge, the longest answer and 16 for nupa, 32 for the others.
    #[arg(long, value_name = "N", env = "NTL_EVAL_MAX_TOKENS", value_parser = at_least_one::<NonZeroU64>)]
    pub max_tokens: Option<NonZeroU64>,
    /// Truncate longer prompts to N tokens, the end of sequence included. The model's `truncation_side` in
    /// `/v1/models` decides which end is dropped; if the server does not report it, the first tokens are
    /// dropped. The server's `/tokenize` counts the tokens. Not with `--api chat`. Default: no limit; paper
    /// mode always keeps the first 512 tokens, as the paper does.
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
    pub fn settings(&self) -> RunSettings {
        RunSettings {
            data: self.data.clone(),
            mode: self.mode,
            template: self.template.clone().or_else(|| self.template_file.clone()),
            system: self.system.clone(),
            after: self.after.clone(),
            prefill: None,
            score: self.score,
            limit: self.limit,
            seed: self.seed,
            max_tokens: self.max_tokens,
            prompt_tokens: self.prompt_tokens,
            number: self.number.settings(),
            decisions: DecisionSettings::default(),
            judge: JudgeSettings::default(),
            server: self.server.settings(),
            output: self.output.settings(),
            gates: self.gates.settings(),
        }
    }
}

/// Fields of the request's `number` object; missing ones are the server's defaults.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Number (regress mode)")]
pub struct NumberFlags {
    /// Smallest and largest number that counts as an answer. With it every estimate is bounded.
    #[arg(long, value_name = "LOW,HIGH", env = "NTL_EVAL_RANGE", allow_hyphen_values = true, value_parser = range)]
    pub range: Option<Interval>,
    /// The answers are ratings: only LOW, LOW + STEP and so on to HIGH count. The step is 1 unless given.
    #[arg(long, value_name = "LOW,HIGH[,STEP]", env = "NTL_EVAL_SCALE", allow_hyphen_values = true)]
    #[arg(conflicts_with = "range")]
    pub scale: Option<RatingScale>,
    /// Also request intervals that contain the truth with this probability, between 0 and 1, and report how
    /// often they do.
    #[arg(long, value_name = "COVERAGE", env = "NTL_EVAL_INTERVAL", value_parser = coverage)]
    pub interval: Option<f64>,
    /// Share of the mass that the mean leaves out in each tail, 0 to 0.49. The server's default: 0.005.
    #[arg(long, value_name = "SHARE", env = "NTL_EVAL_TRIM", value_parser = trim)]
    pub trim: Option<f64>,
    /// Maximum number of digits before the point, 1 to 20. The server's default: 12.
    #[arg(long, value_name = "N", env = "NTL_EVAL_DIGITS_MAX", value_parser = clap::value_parser!(u8).range(1..=20))]
    pub digits_max: Option<u8>,
    /// Maximum number of digits after the point, 0 to 20. The server's default: 6.
    #[arg(long, value_name = "N", env = "NTL_EVAL_DECIMALS_MAX", value_parser = clap::value_parser!(u8).range(0..=20))]
    pub decimals_max: Option<u8>,
    /// Stop the search when the open mass is at most this, between 0 and 1. The server's default: 0.001.
    #[arg(long, value_name = "MASS", env = "NTL_EVAL_TOLERANCE", value_parser = tolerance)]
    pub tolerance: Option<f64>,
    /// Maximum number of decoder positions, 1 to 65536. The server's default: 320, and 4096 in structured
    /// answers.
    #[arg(long, value_name = "N", env = "NTL_EVAL_NODES_MAX", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub nodes_max: Option<u32>,
    /// Stop the search as soon as the bounds of the value are no wider than this; 0 stops when it is certain.
    /// The server's default: no such stop.
    #[arg(long, value_name = "WIDTH", env = "NTL_EVAL_PRECISION", value_parser = precision)]
    pub precision: Option<f64>,
    /// Stop the search of a number after this time. The server's default: no limit.
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_TIME_MAX", value_parser = seconds)]
    pub time_max: Option<f64>,
    /// With `--after`: sample N texts at temperature 1, and average the distributions of the numbers after
    /// them. Default: one text at temperature 0.
    #[arg(long, value_name = "N", env = "NTL_EVAL_RATIONALES", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub rationales: Option<u8>,
}

impl NumberFlags {
    fn settings(&self) -> NumberSettings {
        NumberSettings {
            range: self.range,
            scale: self.scale,
            interval: self.interval,
            trim: self.trim,
            digits_max: self.digits_max,
            decimals_max: self.decimals_max,
            tolerance: self.tolerance,
            nodes_max: self.nodes_max,
            precision: self.precision,
            time_max: self.time_max,
            rationales: self.rationales,
            draws: None,
        }
    }
}

/// Reads a number that is not zero.
pub fn at_least_one<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::Zero => "must be at least 1".to_owned(),
        _ => error.to_string(),
    })
}

/// Returns the parser of a flag that accepts some of the APIs.
pub(super) fn one_of(apis: [Api; 2]) -> impl TypedValueParser<Value = Api> {
    let names = PossibleValuesParser::new(apis.iter().filter_map(ValueEnum::to_possible_value));
    names.try_map(|name| Api::from_str(&name, false))
}

/// Reads seconds, or a number with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    time.ok_or_else(|| "expected a time such as 120, 90s or 2m".to_owned())
}

fn template_file(file: &str) -> Result<Template, String> {
    let text = regular_file::read_text(Path::new(file), SMALL_BYTES_MAX)
        .map_err(|error| format!("could not read {file}: {error}"))?;
    Template::from_text(&text).map_err(|error| error.to_string())
}

pub(super) fn range(text: &str) -> Result<Interval, String> {
    let (low, high) = text.split_once(',').ok_or("expected two numbers, LOW,HIGH")?;
    let low = finite(low)?;
    let high = finite(high)?;
    if low <= high { Ok(Interval { low, high }) } else { Err(format!("{low} is above {high}")) }
}

fn coverage(text: &str) -> Result<f64, String> {
    let value = finite(text)?;
    if value > 0.0 && value < 1.0 {
        Ok(value)
    } else {
        Err("expected a probability between 0 and 1".to_owned())
    }
}

fn trim(text: &str) -> Result<f64, String> {
    let value = finite(text)?;
    if (0.0..=0.49).contains(&value) { Ok(value) } else { Err("expected a share from 0 to 0.49".to_owned()) }
}

pub(super) fn metric(name: &str) -> Result<String, String> {
    let name = name.trim();
    registry::find(name).map(|metric| metric.name.to_owned()).ok_or_else(|| registry::unknown(name))
}

fn tolerance(text: &str) -> Result<f64, String> {
    let value = finite(text)?;
    if value > 0.0 && value < 1.0 { Ok(value) } else { Err("expected a mass between 0 and 1".to_owned()) }
}

fn precision(text: &str) -> Result<f64, String> {
    let value = finite(text)?;
    if value >= 0.0 { Ok(value) } else { Err("must be at least 0".to_owned()) }
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = finite(text)?;
    if value > 0.0 { Ok(value) } else { Err("must be above 0".to_owned()) }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// Base URL of the server, with or without `/v1`. Repeat it to spread requests over several servers of
    /// one model; if one of them dies, its items go to the others.
    #[arg(long, value_name = "URL", env = "NTL_EVAL_ENDPOINT", value_delimiter = ',', required = true)]
    pub endpoint: Vec<BaseUrl>,
    /// Name of the model. Default: the only one that the server lists.
    #[arg(long, value_name = "NAME", env = "NTL_EVAL_MODEL")]
    pub model: Option<String>,
    /// Route of the requests; `chat` for servers and models that support nothing else.
    #[arg(long, env = "NTL_EVAL_API", default_value = "completions", value_parser = one_of(Api::OF_PROMPTS))]
    pub api: Api,
    /// Bearer token for the server.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Maximum number of concurrent requests.
    #[arg(long, value_name = "N", env = "NTL_EVAL_CONCURRENCY", default_value = "16", value_parser = at_least_one::<NonZeroUsize>)]
    pub concurrency: NonZeroUsize,
    /// Seconds without a byte of a response after which its item fails.
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_TIMEOUT", default_value = "120", value_parser = at_least_one::<NonZeroU64>)]
    pub timeout: NonZeroU64,
    /// Stop the run, with exit code 4 and no report, when no endpoint has been available for this long:
    /// seconds, or a time such as `90s` or `5m`. Until then, requests are retried. `--resume` continues the
    /// run.
    #[arg(long, value_name = "TIME", env = "NTL_EVAL_UNREACHABLE_MAX", default_value = "2m", value_parser = duration)]
    pub unreachable_max: Duration,
    /// PEM file of certificates to trust, in addition to the system's (or `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR`).
    #[arg(long, value_name = "FILE", env = "NTL_EVAL_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Seconds for the whole run. Items without an answer by then have failed; `--resume` continues with
    /// them.
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_DEADLINE", value_parser = at_least_one::<NonZeroU64>)]
    pub deadline: Option<NonZeroU64>,
}

impl ServerFlags {
    fn settings(&self) -> ServerSettings {
        ServerSettings {
            endpoints: self.endpoint.clone(),
            model: self.model.clone(),
            api: self.api,
            api_key: self.api_key.clone(),
            concurrency: self.concurrency,
            timeout: Duration::from_secs(self.timeout.get()),
            unreachable_max: self.unreachable_max,
            ca_file: self.ca_file.clone(),
            deadline: self.deadline.map(|seconds| Duration::from_secs(seconds.get())),
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Folder for `report.json`, `samples.jsonl` and `journal.jsonl`. Several splits get a folder each, named
    /// after the split.
    #[arg(long, value_name = "DIR", env = "NTL_EVAL_OUT")]
    pub out: Option<PathBuf>,
    /// Continue the run whose journal is in `--out`. Answers in the journal are not requested again.
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// Replace the run in `--out`, finished or not. Without this flag such a folder is refused.
    #[arg(long, requires = "out", conflicts_with = "resume")]
    pub overwrite: bool,
    /// Folder of answers that all runs share: the same request goes to the same model only once. (Downloaded
    /// data are elsewhere: see `--data`.)
    #[arg(long, value_name = "DIR", env = "NTL_EVAL_ANSWERS")]
    pub cache: Option<PathBuf>,
    /// File for the results of the gates in JUnit's XML, one suite per split. It is also written if the run
    /// stops with an error.
    #[arg(long, value_name = "FILE", env = "NTL_EVAL_JUNIT")]
    pub junit: Option<PathBuf>,
    /// Show these metrics first, in this order. Every metric that has data is computed in any case.
    #[arg(long, value_name = "NAME,...", env = "NTL_EVAL_METRIC", value_delimiter = ',', value_parser = metric)]
    pub metric: Vec<String>,
    /// Print each split's report as one line of JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Show no progress on standard error.
    #[arg(long)]
    pub quiet: bool,
}

impl OutputFlags {
    fn settings(&self) -> OutputSettings {
        let on_existing = match (self.resume, self.overwrite) {
            (_, true) => OnExisting::Overwrite,
            (true, false) => OnExisting::Resume,
            (false, false) => OnExisting::Refuse,
        };
        OutputSettings {
            out: self.out.clone(),
            on_existing,
            cache: self.cache.clone(),
            junit: self.junit.clone(),
            first_metrics: self.metric.clone(),
            json: self.json,
            quiet: self.quiet,
        }
    }
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

impl GateFlags {
    fn settings(&self) -> Gates {
        Gates {
            fail_under: self.fail_under.clone(),
            fail_over: self.fail_over.clone(),
            baseline: self.baseline.clone(),
        }
    }
}
