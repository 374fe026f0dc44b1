//! Tasks and their flags, and the suites that they select.

use std::num::{NonZeroU8, NonZeroUsize};
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Subcommand};
use ntl_api::ReadName;

use super::flags::{Common, at_least_one, one_of, range};
use crate::json_path::JsonPath;
use crate::settings::RunSettings;
use crate::settings::decisions::{DecisionSettings, Reordering};
use crate::settings::judge::JudgeSettings;
use crate::settings::mode::{Api, Mode, NumberRule};
use crate::settings::number::{Draws, finite};
use crate::stats::Interval;
use crate::tasks::code_regression::CodeRegressionTask;
use crate::tasks::custom::{CustomTask, Structured};
use crate::tasks::gsm8k::{Form, Shots};
use crate::tasks::judge::JudgeTask;
use crate::tasks::judge::verify::{self, VerifyTask};
use crate::tasks::nupa::{Length, NupaTask};
use crate::tasks::own::OwnFile;
use crate::tasks::regression_in_context::{Function, RegressionTask};
use crate::tasks::rjokes::RjokesSplit;
use crate::tasks::splits::SplitChoice;
use crate::tasks::{
    Suite, arithmetic, code_regression, custom, decisions, densities, gsm8k, judge, mathematics,
    multiplication, multirc, nupa, regression_in_context, rjokes, word,
};
use crate::template::unescaped;

#[derive(Debug, Subcommand)]
pub enum Task {
    /// Sums and differences of integers (DeepMind mathematics, add_sub_multiple).
    #[command(after_help = EXIT_CODES)]
    Arithmetic(Box<ArithmeticArgs>),
    /// Measurements of programs and networks, from their text (the format of RegressLM's data sets).
    #[command(
        after_help = EXIT_CODES,
        mut_arg("mode", |mode| mode.default_value("regress").env(None::<&str>).hide(true)),
    )]
    CodeRegression(Box<CodeRegressionArgs>),
    /// School arithmetic in words (GSM8K).
    #[command(after_help = EXIT_CODES)]
    Gsm8k(Box<Gsm8kArgs>),
    /// DeepMind's mathematics dataset, per module and together.
    #[command(after_help = EXIT_CODES)]
    Mathematics(Box<MathematicsArgs>),
    /// Products of integers of 1 to 6 digits.
    #[command(after_help = EXIT_CODES)]
    Multiplication(Box<MultiplicationArgs>),
    /// Questions about texts, answered in words (SuperGLUE MultiRC).
    #[command(after_help = EXIT_CODES)]
    Multirc(Box<MultircArgs>),
    /// Arithmetic, comparisons, digits and conversions of integers, floats, fractions and scientific
    /// notation, in four lengths (NUPA).
    #[command(after_help = EXIT_CODES)]
    Nupa(Box<NupaArgs>),
    /// Values of unknown functions, after noisy examples in the prompt (Friedman 1 to 3, linear).
    #[command(after_help = EXIT_CODES)]
    RegressionInContext(Box<RegressionArgs>),
    /// Results of random experiments whose distributions are known.
    #[command(after_help = EXIT_CODES)]
    Densities(Box<DensitiesArgs>),
    /// Upvotes of jokes (rJokes).
    #[command(after_help = EXIT_CODES)]
    Rjokes(Box<RjokesArgs>),
    /// Questions and answers of your own.
    #[command(after_help = EXIT_CODES)]
    Custom(Box<CustomArgs>),
    /// Grades answers by a model, on a scale or two against each other, and compares the grades with those of
    /// people.
    #[command(
        after_help = EXIT_CODES,
        mut_arg("mode", |mode| mode.default_value("regress").env(None::<&str>).hide(true)),
        mut_arg("scale", |scale| scale.default_value("1,10").default_value_if("pairs", "true", "1,7")),
        mut_arg("interval", |interval| interval.default_value("0.9")),
    )]
    Judge(Box<JudgeArgs>),
    /// Candidate answers to your own questions, ranked by comparisons that a model judges in both orders:
    /// `--out` gets `rankings.jsonl`.
    #[command(
        after_help = EXIT_CODES,
        mut_arg("mode", |mode| mode.default_value("regress").env(None::<&str>).hide(true)),
        mut_arg("scale", |scale| scale.default_value("1,7")),
    )]
    Verify(Box<VerifyArgs>),
    /// Labelled questions with a fixed set of answers, for a server of decision models.
    #[command(after_help = EXIT_CODES, mut_args(for_questions))]
    Decisions(Box<DecisionsArgs>),
}

/// Flags that a server of decision models has no use for.
const OF_PROMPTS: [&str; 19] = [
    "mode",
    "template",
    "template_file",
    "system",
    "after",
    "score",
    "max_tokens",
    "prompt_tokens",
    "range",
    "scale",
    "interval",
    "trim",
    "digits_max",
    "decimals_max",
    "tolerance",
    "nodes_max",
    "precision",
    "time_max",
    "rationales",
];

/// Adapts a flag that all tasks have to questions for decision models.
fn for_questions(flag: Arg) -> Arg {
    match flag.get_id().as_str() {
        "api" => flag
            .value_parser(one_of(Api::OF_QUESTIONS))
            .default_value("decisions")
            .help("API of the decision model, OpenAI's or TypeSafe's"),
        name if OF_PROMPTS.contains(&name) => flag.hide(true).env(None::<&str>),
        _ => flag,
    }
}

/// The most digits before and after the point that servers read in a number.
const NUPA_DIGITS_MAX: u8 = 20;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: no report
  2  bad usage
  3  done, but a gate was missed
  4  done, but some items failed; or stopped because no endpoint was available or the
     weights changed: no report, continue with --resume
130  interrupted by Ctrl-C
141  the output was closed";

impl Task {
    /// Returns the settings of a run of the task.
    pub fn settings(&self) -> RunSettings {
        let common = match self {
            Self::Arithmetic(args) => &args.common,
            Self::CodeRegression(args) => &args.common,
            Self::Gsm8k(args) => &args.common,
            Self::Mathematics(args) => &args.common,
            Self::Multiplication(args) => &args.common,
            Self::Multirc(args) => &args.common,
            Self::Nupa(args) => &args.common,
            Self::RegressionInContext(args) => &args.common,
            Self::Densities(args) => &args.common,
            Self::Rjokes(args) => &args.common,
            Self::Custom(args) => &args.common,
            Self::Judge(args) => &args.common,
            Self::Verify(args) => &args.common,
            Self::Decisions(args) => &args.common,
        };
        let mut settings = common.settings();
        if let Self::CodeRegression(args) = self {
            settings.number.draws = args.draws();
        }
        if matches!(self, Self::Nupa(_)) && settings.mode == Mode::Regress {
            // Its numbers are longer than the server's defaults allow.
            settings.number.digits_max.get_or_insert(NUPA_DIGITS_MAX);
            settings.number.decimals_max.get_or_insert(NUPA_DIGITS_MAX);
        }
        if let Self::Judge(args) = self {
            settings.prefill.clone_from(&args.prefill);
            settings.judge = args.settings();
        }
        if let Self::Verify(args) = self {
            settings.prefill.clone_from(&args.prefill);
        }
        if let Self::Decisions(args) = self {
            settings.decisions = args.settings();
        }
        settings
    }

    /// Reads or generates the items of the task.
    ///
    /// # Errors
    /// Flags contradict each other ([`UsageError`](crate::error::UsageError)), or data cannot be used.
    pub fn suites(&self, settings: &RunSettings) -> anyhow::Result<Vec<Suite>> {
        let mut suites = match self {
            // The fields of its records go into the template as well.
            Self::Custom(args) => return custom::suites(&args.task(), settings),
            Self::Judge(args) => return judge::suites(&args.task(), settings),
            Self::Verify(args) => return Ok(vec![verify::suite(&args.task(), settings)?.1]),
            Self::Decisions(_) => return decisions::suites(settings),
            Self::Arithmetic(args) => arithmetic::suites(args.split, settings),
            Self::CodeRegression(args) => code_regression::suites(&args.task(), settings),
            Self::Gsm8k(args) => gsm8k::suites(args.form, args.shots().as_ref(), settings),
            Self::Mathematics(args) => mathematics::suites(args.split, &args.module, settings),
            Self::Multiplication(args) => multiplication::suites(args.split, args.per_cell, settings),
            Self::Multirc(_) => multirc::suites(settings),
            Self::Nupa(args) => nupa::suites(&args.task(), settings),
            Self::RegressionInContext(args) => regression_in_context::suites(&args.task(), settings),
            Self::Densities(args) => densities::suites(args.per_module, settings),
            Self::Rjokes(args) => rjokes::suites(args.split, settings),
        }?;
        if let Some(template) = &settings.template {
            word(&mut suites, template, settings)?;
        }
        Ok(suites)
    }
}

/// `--data`: a file with a question and its answer on alternating lines, or a folder that holds
/// `arithmetic_test_interpolate.txt` and `arithmetic_test_extrapolate.txt`. Default: 10,000 generated items.
#[derive(Debug, Args)]
pub struct ArithmeticArgs {
    /// Test set: 4 to 7 operands as in training, 10 to 12 operands, or both.
    #[arg(long, value_enum, env = "NTL_EVAL_SPLIT", default_value = "both")]
    pub split: SplitChoice,
    #[command(flatten)]
    pub common: Common,
}

/// `--data`: a file with one JSON object per line (or a JSON array, CSV or TSV) with the fields `input`,
/// `target` and `space`, compressed by gzip or not. `--limit` counts per space. Every metric uses the median.
#[derive(Debug, Args)]
pub struct CodeRegressionArgs {
    /// Spaces to evaluate, such as `KBSS,APPS`. Default: all.
    #[arg(long, value_name = "SPACE,...", env = "NTL_EVAL_SPACE", value_delimiter = ',')]
    pub space: Vec<String>,
    /// Also draw N numbers for each item, 1 to 4096, and compare their median with the exact one.
    #[arg(long, value_name = "N", env = "NTL_EVAL_SAMPLES", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub samples: Option<u16>,
    /// Draw only from the most probable tokens with this total probability, as the published evaluation does
    /// with 0.95.
    #[arg(long, value_name = "P", env = "NTL_EVAL_TOP_P", default_value = "1", value_parser = share)]
    pub top_p: f64,
    #[command(flatten)]
    pub common: Common,
}

impl CodeRegressionArgs {
    fn task(&self) -> CodeRegressionTask {
        CodeRegressionTask { spaces: self.space.clone() }
    }

    fn draws(&self) -> Option<Draws> {
        self.samples.map(|samples| Draws { samples, top_p: self.top_p })
    }
}

fn width(text: &str) -> Result<f64, String> {
    let value = finite(text)?;
    if value > 0.0 { Ok(value) } else { Err("must be above 0".to_owned()) }
}

fn share(text: &str) -> Result<f64, String> {
    let value = finite(text)?;
    if value > 0.0 && value <= 1.0 { Ok(value) } else { Err("must be above 0 and at most 1".to_owned()) }
}

/// `--data`: a file, or a folder that holds `test.jsonl` or `test_clean.jsonl`.
#[derive(Debug, Args)]
pub struct Gsm8kArgs {
    /// The published form, or the paper's: without calculator marks and thousands separators.
    #[arg(long, value_enum, env = "NTL_EVAL_FORM", default_value = "original")]
    pub form: Form,
    /// Word prompts as lm-eval does, after N solved questions. Default: the bare question.
    #[arg(long, value_name = "N", env = "NTL_EVAL_SHOTS")]
    pub shots: Option<usize>,
    /// File of the solved questions. Default: `train.jsonl` in the folder of the data or in the cache.
    #[arg(long, value_name = "FILE", env = "NTL_EVAL_TRAIN", requires = "shots")]
    pub train: Option<PathBuf>,
    #[command(flatten)]
    pub common: Common,
}

impl Gsm8kArgs {
    fn shots(&self) -> Option<Shots> {
        self.shots.map(|count| Shots { count, train: self.train.clone() })
    }
}

/// `--data`: a module's file, a folder of module files, or a folder that holds the folders
/// `interpolate` and `extrapolate`. `--limit` counts per module.
#[derive(Debug, Args)]
pub struct MathematicsArgs {
    /// Test sets, of a folder that holds both.
    #[arg(long, value_enum, env = "NTL_EVAL_SPLIT", default_value = "both")]
    pub split: SplitChoice,
    /// Module, such as `arithmetic__mul`, or `all`.
    #[arg(long, value_name = "NAME", env = "NTL_EVAL_MODULE", default_value = "all")]
    pub module: String,
    #[command(flatten)]
    pub common: Common,
}

/// `--data`: a preprocessed file, or a folder that holds `multiplication_test_interpolate.jsonl` and
/// `multiplication_test_extrapolate.jsonl`. Default: generated items.
#[derive(Debug, Args)]
pub struct MultiplicationArgs {
    /// Test set: both factors of 1 to 5 digits as in training, at least one of 6, or both sets.
    #[arg(long, value_enum, env = "NTL_EVAL_SPLIT", default_value = "both")]
    pub split: SplitChoice,
    /// Generated items for each pair of lengths, or all if there are fewer.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PER_CELL", default_value = "100", value_parser = at_least_one::<NonZeroUsize>)]
    pub per_cell: NonZeroUsize,
    #[command(flatten)]
    pub common: Common,
}

/// `--data`: SuperGLUE's `val.jsonl`, the paper's `val_clean.jsonl`, or a folder that holds one of them.
#[derive(Debug, Args)]
pub struct MultircArgs {
    #[command(flatten)]
    pub common: Common,
}

/// The items are generated from `--seed`. `--mode regress` covers the 25 tasks whose answers are integers or
/// floats. Numbers with more than 20 digits before or after the point are not read in that mode.
#[derive(Debug, Args)]
pub struct NupaArgs {
    /// Ranges of length, each of which gets a report. Default: all four.
    #[arg(long, value_enum, value_name = "LENGTH,...", env = "NTL_EVAL_SPLIT", value_delimiter = ',')]
    #[arg(default_values_t = [Length::Short, Length::Medium, Length::Long, Length::VeryLong], hide_default_value = true)]
    pub split: Vec<Length>,
    /// Tasks, such as `integer_add`; `integer`, `float`, `fraction` or `scientific`; `all`: the 41 tasks; or
    /// `variants`: the 12 easier and harder ones, such as `float_multiply_easy`.
    #[arg(
        long,
        value_name = "NAME,...",
        env = "NTL_EVAL_MODULE",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub module: Vec<String>,
    /// Items of each task and length, or all if there are fewer.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PER_MODULE", default_value = "100", value_parser = at_least_one::<NonZeroUsize>)]
    pub per_module: NonZeroUsize,
    #[command(flatten)]
    pub common: Common,
}

impl NupaArgs {
    fn task(&self) -> NupaTask {
        NupaTask { lengths: self.split.clone(), modules: self.module.clone(), per_module: self.per_module }
    }
}

/// The items are generated from `--seed`: each has new examples and a question, which all have normal noise.
/// The report compares the model with the mean of the examples, with least squares, and with the function
/// itself.
#[derive(Debug, Args)]
pub struct RegressionArgs {
    /// Functions, each of which gets a report. Default: all four.
    #[arg(long, value_enum, value_name = "FUNCTION,...", env = "NTL_EVAL_SPLIT", value_delimiter = ',')]
    #[arg(default_values_t = [Function::Friedman1, Function::Friedman2, Function::Friedman3, Function::Linear], hide_default_value = true)]
    pub split: Vec<Function>,
    /// Examples before each question.
    #[arg(long, value_name = "N", env = "NTL_EVAL_EXAMPLES", default_value = "20", value_parser = at_least_one::<NonZeroU8>)]
    pub examples: NonZeroU8,
    /// Factor of the noise, at least 0.
    #[arg(long, value_name = "FACTOR", env = "NTL_EVAL_NOISE", default_value = "1", value_parser = noise)]
    pub noise: f64,
    /// Items of each function.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PER_FUNCTION", default_value = "100", value_parser = at_least_one::<NonZeroUsize>)]
    pub per_function: NonZeroUsize,
    #[command(flatten)]
    pub common: Common,
}

impl RegressionArgs {
    fn task(&self) -> RegressionTask {
        RegressionTask {
            functions: self.split.clone(),
            examples: self.examples,
            noise: self.noise,
            per_function: self.per_function,
        }
    }
}

fn noise(text: &str) -> Result<f64, String> {
    let value = finite(text)?;
    if value >= 0.0 { Ok(value) } else { Err("must be at least 0".to_owned()) }
}

/// The items are generated from `--seed`. In regress mode the predicted distribution is compared with the
/// true one; in text mode the number counts as a certain prediction.
#[derive(Debug, Args)]
pub struct DensitiesArgs {
    /// Items of each kind of experiment, or all if there are fewer.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PER_MODULE", default_value = "50", value_parser = at_least_one::<NonZeroUsize>)]
    pub per_module: NonZeroUsize,
    #[command(flatten)]
    pub common: Common,
}

/// `--data`: a `.tsv`, `.tsv.gz` or preprocessed `.jsonl` file, or a folder that holds them under the
/// name of the split.
#[derive(Debug, Args)]
pub struct RjokesArgs {
    /// Part of the data.
    #[arg(long, value_enum, env = "NTL_EVAL_SPLIT", default_value = "test")]
    pub split: RjokesSplit,
    #[command(flatten)]
    pub common: Common,
}

/// `--data`: a file with one JSON object per line, a JSON array of objects, or CSV or TSV with a header
/// (`.csv`, `.tsv`), compressed by gzip or not. `--template` may name all fields of the file but the answer.
/// An answer is a number, a fraction, or a text.
#[derive(Debug, Args)]
pub struct CustomArgs {
    /// Field of the question.
    #[arg(long, value_name = "NAME", default_value = "question")]
    pub question_field: String,
    /// Field of the answer.
    #[arg(long, value_name = "NAME", default_value = "answer")]
    pub answer_field: String,
    /// Put N other items of the file, drawn by `--seed`, with their answers before each question.
    #[arg(long, value_name = "N", env = "NTL_EVAL_SHOTS", default_value = "0")]
    pub shots: usize,
    /// Leave out items whose question or answer is missing, null or empty, and report how many. Without this
    /// flag they are an error.
    #[arg(long, env = "NTL_EVAL_SKIP_MISSING", value_parser = BoolishValueParser::new())]
    pub skip_missing: bool,
    /// Character between the fields of a CSV file: one such as `;`, or `tab`. With it, a file of any name is
    /// CSV. Default: the one that separates the names in the header, a comma, a semicolon or a tab.
    #[arg(long, value_name = "CHAR", env = "NTL_EVAL_DELIMITER", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Text mode: the number of an answer that counts. Default: the first one, or the last one if a chain of
    /// thought may precede it, with `--api chat` and with more than 32 `--max-tokens`.
    #[arg(long, value_enum, value_name = "NUMBER", env = "NTL_EVAL_READ")]
    pub read: Option<NumberRule>,
    /// File with a JSON schema: the answers are structured, and the numbers of `--fields` are scored.
    #[arg(long, value_name = "FILE", env = "NTL_EVAL_SCHEMA", requires = "fields")]
    pub schema: Option<PathBuf>,
    /// JSONPaths of the numbers to score, separated by commas, such as `$.price,$.rooms`. The true value of
    /// `$.price` is the field `price` of the file. Each number has its own report.
    #[arg(long, value_name = "PATHS", env = "NTL_EVAL_FIELDS", requires = "schema", value_delimiter = ',')]
    pub fields: Vec<JsonPath>,
    #[command(flatten)]
    pub common: Common,
}

impl CustomArgs {
    fn task(&self) -> CustomTask {
        CustomTask {
            question_field: self.question_field.clone(),
            answer_field: self.answer_field.clone(),
            shots: self.shots,
            reading: OwnFile { skip_missing: self.skip_missing, delimiter: self.delimiter },
            number_rule: self.read,
            structured: self.schema.clone().map(|schema| Structured { schema, fields: self.fields.clone() }),
        }
    }
}

/// `--data`: a file with one JSON object per line, a JSON array of objects, or CSV or TSV with a header
/// (`.csv`, `.tsv`), compressed by gzip or not. `--template` may name `{low}`, `{high}` and `{step}` of the
/// scale, and all fields of the file but the score of people.
#[derive(Debug, Args)]
pub struct JudgeArgs {
    /// Compare two answers: the field of `--answer-b-field` is the second one. Each pair is judged in both
    /// orders. Low scores favour the answer that is shown first.
    #[arg(long, env = "NTL_EVAL_PAIRS", value_parser = BoolishValueParser::new())]
    pub pairs: bool,
    /// Field of the question or task that the answer replies to.
    #[arg(long, value_name = "NAME", default_value = "input")]
    pub input_field: String,
    /// Field of the answer to grade.
    #[arg(long, value_name = "NAME", default_value = "answer")]
    pub answer_field: String,
    /// Field of the second answer, with `--pairs`.
    #[arg(long, value_name = "NAME", default_value = "answer_b")]
    pub answer_b_field: String,
    /// Field of an answer that is right, which items may have.
    #[arg(long, value_name = "NAME", default_value = "reference")]
    pub reference_field: String,
    /// Field of the score of people, which items may have: a number, or with `--pairs` also `a`, `b` or
    /// `tie`.
    #[arg(long, value_name = "NAME", default_value = "human_score")]
    pub human_field: String,
    /// Ends of the scale of these scores, which are mapped onto `--scale`. Default: the ends of `--scale`.
    #[arg(long, value_name = "LOW,HIGH", env = "NTL_EVAL_HUMAN_SCALE", allow_hyphen_values = true, value_parser = range)]
    pub human_scale: Option<Interval>,
    /// Leave out items whose input or answer is missing, null or empty, and report how many. Without this
    /// flag an empty text is judged, and a missing one is an error.
    #[arg(long, env = "NTL_EVAL_SKIP_MISSING", value_parser = BoolishValueParser::new())]
    pub skip_missing: bool,
    /// Character between the fields of a CSV file: one such as `;`, or `tab`. With it, a file of any name is
    /// CSV. Default: the one that separates the names in the header, a comma, a semicolon or a tab.
    #[arg(long, value_name = "CHAR", env = "NTL_EVAL_DELIMITER", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// The beginning of the judge's answer, such as `Score: `: the score, or the reasoning before `--after`,
    /// continues it. It is a message of the assistant with `--api chat`, and the end of the prompt without.
    #[arg(long, value_name = "TEXT", env = "NTL_EVAL_PREFILL", value_parser = prefill)]
    pub prefill: Option<String>,
    /// People's scores of some items, for the corrected mean and pass rate: a file with the fields `id` and
    /// `score` (JSON lines, a JSON array, CSV or TSV). The items have to be a random part of the data.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// Field of the data with the ids of `--labels`. Default: the id of an item is its number, from 0.
    #[arg(long, value_name = "NAME", requires = "labels")]
    pub id_field: Option<String>,
    /// Also report the share of the items whose score is at least V, as the judge and as people see it.
    #[arg(long, value_name = "V", allow_hyphen_values = true, value_parser = finite, conflicts_with = "pairs")]
    pub pass_from: Option<f64>,
    /// Also report how many labels give the corrected mean score a 95% interval of this width.
    #[arg(long, value_name = "W", value_parser = width)]
    pub width: Option<f64>,
    /// Directory of an earlier run of this judge: test whether it scores the same prompts differently now.
    #[arg(long, value_name = "DIR")]
    pub drift: Option<PathBuf>,
    #[command(flatten)]
    pub common: Common,
}

/// `--data`: a file with one JSON object per line, or a JSON array of objects, with a question and a list of
/// answers each.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Compare by this criterion alone; given several times, by each. The ratings average over them.
    #[arg(long = "criterion", value_name = "TEXT")]
    pub criteria: Vec<String>,
    /// Maximum number of comparisons per question. All answers are compared with each other if there are at
    /// most as many pairs, and otherwise each one with equally many others.
    #[arg(long, value_name = "N", default_value = "32", value_parser = at_least_one::<NonZeroUsize>)]
    pub comparisons: NonZeroUsize,
    /// Field of the question.
    #[arg(long, value_name = "NAME", default_value = "input")]
    pub input_field: String,
    /// Field of the list of answers.
    #[arg(long, value_name = "NAME", default_value = "answers")]
    pub answers_field: String,
    /// Field of an answer that is right, which items may have.
    #[arg(long, value_name = "NAME", default_value = "reference")]
    pub reference_field: String,
    /// Field of the known quality of each answer, which items may have: a list of numbers or booleans. The
    /// judge does not see it.
    #[arg(long, value_name = "NAME", default_value = "quality")]
    pub quality_field: String,
    /// Leave out items whose input or answers are missing, null or empty.
    #[arg(long, env = "NTL_EVAL_SKIP_MISSING", value_parser = BoolishValueParser::new())]
    pub skip_missing: bool,
    /// The beginning of the judge's answer, as for `judge`.
    #[arg(long, value_name = "TEXT", env = "NTL_EVAL_PREFILL", value_parser = prefill)]
    pub prefill: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

impl VerifyArgs {
    pub fn task(&self) -> VerifyTask {
        VerifyTask {
            judge: JudgeTask {
                pairs: true,
                by_criterion: !self.criteria.is_empty(),
                input_field: self.input_field.clone(),
                answer_field: "answer".to_owned(),
                answer_b_field: "answer_b".to_owned(),
                reference_field: self.reference_field.clone(),
                reading: OwnFile { skip_missing: self.skip_missing, delimiter: None },
                ..JudgeTask::default()
            },
            answers_field: self.answers_field.clone(),
            quality_field: self.quality_field.clone(),
            criteria: self.criteria.clone(),
            comparisons_max: self.comparisons.get(),
        }
    }
}

/// `--data`: a file with one JSON object per line, or a JSON array of objects, compressed by gzip or not.
/// Each is a question with its correct answer: `type` (predicate, choice, score, number), `input`,
/// `instructions`, `expected`, and `criteria`, `choices`, `levels`, or `minimum`, `maximum`, `step` and
/// `unit`. Each question is sent in a separate request.
#[derive(Debug, Args)]
pub struct DecisionsArgs {
    /// Also send each choice with its options in these orders, and measure how far a probability changes.
    /// Costs one more request per choice and order.
    #[arg(long, value_enum, value_name = "ORDER,...", env = "NTL_EVAL_REORDER", value_delimiter = ',')]
    pub reorder: Vec<Reordering>,
    /// Also repeat each request, and measure how far a probability changes. Costs one more request per
    /// question with options.
    #[arg(long, env = "NTL_EVAL_REPEAT", value_parser = BoolishValueParser::new())]
    pub repeat: bool,
    /// Also send the questions about the same input in one request, and measure how far a probability
    /// changes. Costs one more request for each input with several questions, or for each 64 of them.
    #[arg(long, env = "NTL_EVAL_BATCH", value_parser = BoolishValueParser::new())]
    pub batch: bool,
    /// ntl-server only: read short labels or the texts of the options (`x_read`).
    #[arg(long, value_name = "WHAT", env = "NTL_EVAL_READ_OPTIONS", value_parser = read_name())]
    pub read: Option<ReadName>,
    /// ntl-server only: average over N rotations of the options, 1 to 255 (`x_orders`). Each costs a prompt.
    #[arg(long, value_name = "N", env = "NTL_EVAL_ORDERS", value_parser = clap::value_parser!(u8).range(1..))]
    pub orders: Option<u8>,
    #[command(flatten)]
    pub common: Common,
}

impl DecisionsArgs {
    fn settings(&self) -> DecisionSettings {
        DecisionSettings {
            read: self.read,
            orders: self.orders,
            reorder: self.reorder.clone(),
            repeat: self.repeat,
            batch: self.batch,
        }
    }
}

fn read_name() -> impl TypedValueParser<Value = ReadName> {
    PossibleValuesParser::new(["labels", "texts"]).map(|name| match name.as_str() {
        "texts" => ReadName::Texts,
        _ => ReadName::Labels,
    })
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\r' | b'\n') => Ok(*byte),
        _ => Err("expected one character, such as `;`, or `tab`".to_owned()),
    }
}

fn prefill(text: &str) -> Result<String, String> {
    let text = unescaped(text).map_err(|error| error.to_string())?;
    if text.trim().is_empty() { Err("expected a text such as `Score: `".to_owned()) } else { Ok(text) }
}

impl JudgeArgs {
    fn task(&self) -> JudgeTask {
        JudgeTask {
            pairs: self.pairs,
            input_field: self.input_field.clone(),
            answer_field: self.answer_field.clone(),
            answer_b_field: self.answer_b_field.clone(),
            reference_field: self.reference_field.clone(),
            human_field: self.human_field.clone(),
            human_scale: self.human_scale,
            by_criterion: false,
            labels: self.labels.clone(),
            id_field: self.id_field.clone(),
            reading: OwnFile { skip_missing: self.skip_missing, delimiter: self.delimiter },
        }
    }

    fn settings(&self) -> JudgeSettings {
        JudgeSettings { pass_from: self.pass_from, width: self.width, drift: self.drift.clone() }
    }
}
