//! Tasks and their flags, and the suites that they select.

use std::num::NonZeroUsize;

use clap::builder::BoolishValueParser;
use clap::{Arg, Args, Subcommand};

use crate::settings::RunSettings;
use crate::settings::decisions::DecisionSettings;
use crate::settings::judge::JudgeSettings;
use crate::settings::mode::{Api, Mode};
use crate::settings::number::Draws;
use crate::settings::values::{at_least_one, number_that};
use crate::tasks::custom::CustomTask;
use crate::tasks::gsm8k::{Form, Shots};
use crate::tasks::judge::verify::{self, VerifyTask};
use crate::tasks::judge::{JudgeTask, prefill};
use crate::tasks::nupa::NupaTask;
use crate::tasks::regression_in_context::RegressionTask;
use crate::tasks::rjokes::RjokesSplit;
use crate::tasks::splits::SplitChoice;
use crate::tasks::{
    Suite, arithmetic, code_regression, custom, decisions, densities, gsm8k, judge, mathematics,
    multiplication, multirc, nupa, regression_in_context, rjokes, word,
};

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
            .value_parser(Api::one_of(Api::OF_QUESTIONS))
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
        let mut settings = common.clone();
        if let Self::CodeRegression(args) = self {
            settings.number.draws = args.draws();
        }
        if matches!(self, Self::Nupa(_)) && settings.mode == Mode::Regress {
            // Its numbers are longer than the server's defaults allow.
            settings.number.digits_max.get_or_insert(NUPA_DIGITS_MAX);
            settings.number.decimals_max.get_or_insert(NUPA_DIGITS_MAX);
        }
        if let Self::Judge(args) = self {
            settings.prefill.clone_from(&args.task.prefill);
            settings.judge = args.settings.clone();
        }
        if let Self::Verify(args) = self {
            settings.prefill.clone_from(&args.prefill);
        }
        if let Self::Decisions(args) = self {
            settings.decisions = args.settings.clone();
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
            Self::Custom(args) => return custom::suites(&args.task, settings),
            Self::Judge(args) => return judge::suites(&args.task, settings),
            Self::Verify(args) => return Ok(vec![verify::suite(&args.task(), settings)?.1]),
            Self::Decisions(_) => return decisions::suites(settings),
            Self::Arithmetic(args) => arithmetic::suites(args.split, settings),
            Self::CodeRegression(args) => code_regression::suites(&args.space, settings),
            Self::Gsm8k(args) => gsm8k::suites(args.form, args.shots.as_ref(), settings),
            Self::Mathematics(args) => mathematics::suites(args.split, &args.module, settings),
            Self::Multiplication(args) => multiplication::suites(args.split, args.per_cell, settings),
            Self::Multirc(_) => multirc::suites(settings),
            Self::Nupa(args) => nupa::suites(&args.task, settings),
            Self::RegressionInContext(args) => regression_in_context::suites(&args.task, settings),
            Self::Densities(args) => densities::suites(args.per_module, settings),
            Self::Rjokes(args) => rjokes::suites(args.split, settings),
        }?;
        if let Some(template) = settings.template() {
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
    pub common: RunSettings,
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
    #[arg(long, value_name = "P", env = "NTL_EVAL_TOP_P", default_value = "1")]
    #[arg(value_parser = number_that(|p| p > 0.0 && p <= 1.0, "must be above 0 and at most 1"))]
    pub top_p: f64,
    #[command(flatten)]
    pub common: RunSettings,
}

impl CodeRegressionArgs {
    fn draws(&self) -> Option<Draws> {
        self.samples.map(|samples| Draws { samples, top_p: self.top_p })
    }
}

/// `--data`: a file, or a folder that holds `test.jsonl` or `test_clean.jsonl`.
#[derive(Debug, Args)]
pub struct Gsm8kArgs {
    /// The published form, or the paper's: without calculator marks and thousands separators.
    #[arg(long, value_enum, env = "NTL_EVAL_FORM", default_value = "original")]
    pub form: Form,
    #[command(flatten)]
    pub shots: Option<Shots>,
    #[command(flatten)]
    pub common: RunSettings,
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
    pub common: RunSettings,
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
    pub common: RunSettings,
}

/// `--data`: SuperGLUE's `val.jsonl`, the paper's `val_clean.jsonl`, or a folder that holds one of them.
#[derive(Debug, Args)]
pub struct MultircArgs {
    #[command(flatten)]
    pub common: RunSettings,
}

/// The items are generated from `--seed`. `--mode regress` covers the 25 tasks whose answers are integers or
/// floats. Numbers with more than 20 digits before or after the point are not read in that mode.
#[derive(Debug, Args)]
pub struct NupaArgs {
    #[command(flatten)]
    pub task: NupaTask,
    #[command(flatten)]
    pub common: RunSettings,
}

/// The items are generated from `--seed`: each has new examples and a question, which all have normal noise.
/// The report compares the model with the mean of the examples, with least squares, and with the function
/// itself.
#[derive(Debug, Args)]
pub struct RegressionArgs {
    #[command(flatten)]
    pub task: RegressionTask,
    #[command(flatten)]
    pub common: RunSettings,
}

/// The items are generated from `--seed`. In regress mode the predicted distribution is compared with the
/// true one; in text mode the number counts as a certain prediction.
#[derive(Debug, Args)]
pub struct DensitiesArgs {
    /// Items of each kind of experiment, or all if there are fewer.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PER_MODULE", default_value = "50", value_parser = at_least_one::<NonZeroUsize>)]
    pub per_module: NonZeroUsize,
    #[command(flatten)]
    pub common: RunSettings,
}

/// `--data`: a `.tsv`, `.tsv.gz` or preprocessed `.jsonl` file, or a folder that holds them under the
/// name of the split.
#[derive(Debug, Args)]
pub struct RjokesArgs {
    /// Part of the data.
    #[arg(long, value_enum, env = "NTL_EVAL_SPLIT", default_value = "test")]
    pub split: RjokesSplit,
    #[command(flatten)]
    pub common: RunSettings,
}

/// `--data`: a file with one JSON object per line, a JSON array of objects, or CSV or TSV with a header
/// (`.csv`, `.tsv`), compressed by gzip or not. `--template` may name all fields of the file but the answer.
/// An answer is a number, a fraction, or a text.
#[derive(Debug, Args)]
pub struct CustomArgs {
    #[command(flatten)]
    pub task: CustomTask,
    #[command(flatten)]
    pub common: RunSettings,
}

/// `--data`: a file with one JSON object per line, a JSON array of objects, or CSV or TSV with a header
/// (`.csv`, `.tsv`), compressed by gzip or not. `--template` may name `{low}`, `{high}` and `{step}` of the
/// scale, and all fields of the file but the score of people.
#[derive(Debug, Args)]
pub struct JudgeArgs {
    #[command(flatten)]
    pub task: JudgeTask,
    #[command(flatten)]
    pub settings: JudgeSettings,
    #[command(flatten)]
    pub common: RunSettings,
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
    pub common: RunSettings,
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
                skip_missing: self.skip_missing,
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
    #[command(flatten)]
    pub settings: DecisionSettings,
    #[command(flatten)]
    pub common: RunSettings,
}
