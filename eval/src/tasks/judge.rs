//! Answers to be graded: a user's file with inputs and one answer each, or two answers that are compared with
//! each other. A rubric words the prompts; its default is here.
//!
//! The scores of people become truths on the judge's scale. A pair has two prompts, with its answers in
//! either order.

mod labels;
pub mod verify;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use ntl_core::numbers::parse::whole_number;
use serde_json::{Map, json};

use super::own::{self, OwnFile, OwnItems, Skipped, delimiter};
use super::{Entry, Origin, Suite, Traits, from_file};
use crate::data::read::decimal_point_hint;
use crate::data::records::Record;
use crate::data::{DataError, Item};
use crate::error::UsageError;
use crate::metrics::judgement::{HumanScore, Preference};
use crate::settings::RunSettings;
use crate::settings::mode::{Api, Mode};
use crate::settings::number::RatingScale;
use crate::settings::values::range;
use crate::stats::Interval;
use crate::stats::difference::ITEMS_MIN;
use crate::template::{Template, UnknownField, unescaped};

pub const ENTRY: Entry = Entry {
    name: "judge",
    about: "answers of your own, graded by a model on a scale or against each other (--data FILE)",
    origin: Origin::Given,
};

/// Default of `--max-tokens`, which limits the reasoning before a score.
const MAX_TOKENS: u64 = 512;

/// The metrics that a run shows first: the grades, then how well they agree with people.
const SCORE_METRICS: [&str; 15] = [
    "score",
    "corrected_score",
    "pass_rate",
    "corrected_pass_rate",
    "drift",
    "drift_distance",
    "mode_score",
    "spread",
    "interval_width",
    "mass_closed",
    "unparsed",
    "kappa",
    "pearson",
    "spearman",
    "kendall",
];

/// The metrics that a run over pairs shows first.
const PAIR_METRICS: [&str; 13] = [
    "wins",
    "consistent",
    "preference",
    "order_difference",
    "order_distance",
    "score",
    "corrected_score",
    "drift",
    "drift_distance",
    "mode_score",
    "spread",
    "mass_closed",
    "unparsed",
];

/// How the items of a file are judged.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct JudgeTask {
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
    /// Whether the judge compares by one criterion at a time.
    #[arg(skip)]
    pub by_criterion: bool,
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
}

/// Reads the beginning of a judge's answer.
pub fn prefill(text: &str) -> Result<String, String> {
    let text = unescaped(text).map_err(|error| error.to_string())?;
    if text.trim().is_empty() { Err("expected a text such as `Score: `".to_owned()) } else { Ok(text) }
}

pub fn suites(task: &JudgeTask, run: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    let Some(file) = run.data.as_deref() else {
        return Err(UsageError::new("judge needs --data FILE, JSON lines, a JSON array, CSV or TSV").into());
    };
    check(run)?;
    let Some(scale) = run.number.scale else {
        return Err(UsageError::new("judge grades on a scale: give --scale").into());
    };
    let judge = Judge::new(task, run, scale)?;
    let second = task.pairs.then_some(task.answer_b_field.as_str());
    let required: Vec<&str> = [&*task.input_field, &task.answer_field].into_iter().chain(second).collect();
    let reading = OwnFile { skip_missing: task.skip_missing, delimiter: task.delimiter };
    let OwnItems { records, split, skipped } = own::read(file, reading, &required)?;
    let items_max = run.limit.map_or(records.len(), |limit| records.len().min(limit.get()));
    let judged = &records[..items_max];
    let mut items =
        judged.iter().map(|record| judge.item(record)).collect::<Result<Vec<Item>, DataError>>()?;
    if let Some(file) = &task.labels {
        labels::add(&judge, file, &records, &mut items)?;
    }
    check_labels(task, run, &items)?;
    let human_scale = task.human_scale.map(|Interval { low, high }| [low, high]);
    let mut settings = Map::from_iter([
        from_file(file),
        ("pairs".to_owned(), json!(task.pairs)),
        ("input_field".to_owned(), json!(task.input_field)),
        ("answer_field".to_owned(), json!(task.answer_field)),
        ("reference_field".to_owned(), json!(task.reference_field)),
        ("human_field".to_owned(), json!(task.human_field)),
        ("human_scale".to_owned(), json!(human_scale)),
    ]);
    if task.pairs {
        settings.insert("answer_b_field".to_owned(), json!(task.answer_b_field));
    }
    if let Some(file) = &task.labels {
        settings.insert("labels".to_owned(), json!(file.display().to_string()));
        settings.insert("id_field".to_owned(), json!(task.id_field));
    }
    settings.extend(skipped.as_ref().map(Skipped::setting));
    if run.template().is_none() {
        let used: BTreeSet<&str> = judged.iter().map(|record| judge.rubric(record).source()).collect();
        settings.insert("default_rubrics".to_owned(), json!(used));
    }
    Ok(vec![Suite {
        task: ENTRY.name,
        split,
        items,
        settings,
        traits: Traits {
            max_tokens: MAX_TOKENS,
            judges: true,
            first_metrics: if task.pairs { &PAIR_METRICS } else { &SCORE_METRICS },
            ..Traits::default()
        },
        notices: skipped.iter().map(Skipped::notice).collect(),
        field: None,
    }])
}

fn check(run: &RunSettings) -> Result<(), UsageError> {
    let refused = [
        (run.mode != Mode::Regress, "judge reads the distribution of the scores: it has only --mode regress"),
        (run.number.range.is_some(), "judge grades on --scale: leave out --range"),
        (run.number.trim.is_some(), "judge takes the whole scale into account: leave out --trim"),
        (run.score, "judge has no texts that would be right: leave out --score"),
        (
            run.prompt_tokens.is_some(),
            "--prompt-tokens would cut the rubric: leave it out, or shorten the answers",
        ),
    ];
    refused.iter().find(|(refused, _)| *refused).map_or(Ok(()), |(_, why)| Err(UsageError((*why).to_owned())))
}

/// Rejects `--labels` and `--width` with too few scores of people.
fn check_labels(task: &JudgeTask, run: &RunSettings, items: &[Item]) -> Result<(), UsageError> {
    let scored = items.iter().filter(|item| item.true_number().is_some()).count();
    let flag = match (&task.labels, run.judge.width) {
        _ if scored >= ITEMS_MIN => return Ok(()),
        (_, Some(_)) => "--width",
        (Some(_), None) if !task.pairs => "--labels",
        _ => return Ok(()),
    };
    Err(UsageError(format!(
        "{flag} needs at least {ITEMS_MIN} items with a score of people: {scored} of {} have one",
        items.len()
    )))
}

/// How records become items.
struct Judge<'a> {
    task: &'a JudgeTask,
    scale: Interval,
    human_scale: Interval,
    /// `low`, `high`, `step` and `middle` of the scale, as text.
    scale_fields: [(&'static str, String); 4],
    /// Without and with a reference.
    rubrics: [Template; 2],
    /// Text after the rubric, which begins the judge's answer in a completion.
    lead_in: String,
}

impl<'a> Judge<'a> {
    fn new(task: &'a JudgeTask, run: &RunSettings, scale: RatingScale) -> Result<Self, UsageError> {
        let ends = scale.ends();
        let human_scale = task.human_scale.unwrap_or(ends);
        for (flag, Interval { low, high }) in [("--scale", ends), ("--human-scale", human_scale)] {
            if low >= high {
                return Err(UsageError(format!(
                    "{flag} {low},{high} has a single value: nothing can be graded on it"
                )));
            }
        }
        let rubrics = match run.template() {
            Some(template) => {
                check_template(task, template)?;
                [template.clone(), template.clone()]
            }
            None => [false, true].map(|reference| {
                default_rubric(task, reference, run.after.as_deref(), run.prefill.is_some())
            }),
        };
        let lead_in = match (&run.prefill, run.server.api, run.template()) {
            (Some(prefill), Api::Completions, Some(_)) => prefill.clone(),
            (Some(prefill), Api::Completions, None) => format!("\n{prefill}"),
            _ => String::new(),
        };
        let scale_fields = [
            ("low", ends.low.to_string()),
            ("high", ends.high.to_string()),
            ("step", scale.step().to_string()),
            ("middle", f64::midpoint(ends.low, ends.high).to_string()),
        ];
        Ok(Self { task, scale: ends, human_scale, scale_fields, rubrics, lead_in })
    }

    fn rubric(&self, record: &Record) -> &Template {
        let [without, with] = &self.rubrics;
        if record.get(&self.task.reference_field).is_some() { with } else { without }
    }

    fn item(&self, record: &Record) -> Result<Item, DataError> {
        let task = self.task;
        let pairs = self.task.pairs;
        let input = record.require(&task.input_field, "input")?;
        let answer = record.require(&task.answer_field, "answer")?;
        let second = pairs.then(|| record.require(&task.answer_b_field, "second answer")).transpose()?;
        let first_order = Words { judge: self, record, input, answers: [answer, second.unwrap_or_default()] };
        let swapped_prompt = match second {
            Some(second) => Some(Words { answers: [second, answer], ..first_order }.prompt()?),
            None => None,
        };
        let human = record.get(&task.human_field).map(str::trim).filter(|human| !human.is_empty());
        let HumanScore { truth, preferred } =
            human.map_or(Ok(HumanScore::default()), |human| self.human(record, &task.human_field, human))?;
        let shown: Vec<&str> = [input, answer].into_iter().chain(second).collect();
        Ok(Item {
            question: shown.join("\n\n"),
            answer: human.unwrap_or_default().to_owned(),
            truth,
            prompt: Some(first_order.prompt()?),
            swapped_prompt,
            preferred,
            input: (!pairs).then(|| input.to_owned()),
            ..Item::default()
        })
    }

    /// Reads people's score in the field `name`, which becomes one on the judge's scale.
    fn human(&self, record: &Record, name: &str, text: &str) -> Result<HumanScore, DataError> {
        if self.task.pairs {
            let words = [("a", Preference::A), ("b", Preference::B), ("tie", Preference::Tie)];
            if let Some((_, preferred)) = words.iter().find(|(word, _)| text.eq_ignore_ascii_case(word)) {
                return Ok(HumanScore { truth: None, preferred: Some(*preferred) });
            }
        }
        let (Interval { low, high }, own) = (self.scale, self.human_scale);
        let Some(value) = whole_number(text) else {
            let expected = if self.task.pairs { "a number, `a`, `b` or `tie`" } else { "a number" };
            let hint = decimal_point_hint(text);
            return Err(record.problem(format!("field `{name}`: expected {expected}, found {text:?}{hint}")));
        };
        if value < own.low || value > own.high {
            let hint = if self.task.human_scale.is_none() {
                "; --human-scale LOW,HIGH names another scale"
            } else {
                ""
            };
            let low = own.low;
            let high = own.high;
            return Err(record
                .problem(format!("field `{name}`: {value} is not on the scale from {low} to {high}{hint}")));
        }
        let truth = match self.task.human_scale {
            Some(_) => low + (value - own.low) / (own.high - own.low) * (high - low),
            None => value,
        };
        let preferred = self.task.pairs.then(|| Preference::of(truth, f64::midpoint(low, high)));
        Ok(HumanScore { truth: Some(truth), preferred })
    }
}

/// The fields of a rubric for one prompt.
#[derive(Clone, Copy)]
struct Words<'a> {
    judge: &'a Judge<'a>,
    record: &'a Record,
    input: &'a str,
    /// In the order in which they are shown; the second one is empty without `--pairs`.
    answers: [&'a str; 2],
}

impl<'a> Words<'a> {
    fn prompt(self) -> Result<String, DataError> {
        let worded = self.judge.rubric(self.record).render(|name| self.get(name));
        let text = worded.map_err(|UnknownField(name)| self.record.without(&name))?;
        Ok(text + &self.judge.lead_in)
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let judge = self.judge;
        let task = self.judge.task;
        let [first, second] = self.answers;
        let of_scale = judge.scale_fields.iter().find(|(own, _)| *own == name);
        match name {
            "input" => Some(self.input),
            "answer" => Some(first),
            "answer_b" => task.pairs.then_some(second),
            "reference" => self.record.get(&task.reference_field),
            _ if of_scale.is_some() => of_scale.map(|(_, text)| text.as_str()),
            // The fields under their own names follow the order, too.
            _ if name == task.answer_field => Some(first),
            _ if task.pairs && name == task.answer_b_field => Some(second),
            _ => self.record.get(name),
        }
    }
}

fn check_template(task: &JudgeTask, template: &Template) -> Result<(), UsageError> {
    // `{answer}` is the text to judge, even if the score of people is in a field of that name.
    let is_own = OWN_NAMES.contains(&task.human_field.as_str());
    if template.names(&task.human_field) && !is_own {
        let message = format!(
            "--template names {{{}}}, the score of people, which the judge must not see",
            task.human_field
        );
        return Err(UsageError(message));
    }
    if !template.names("answer") && !template.names(&task.answer_field) {
        return Err(UsageError::new(
            "--template does not name {answer}: the judge would not see what it grades",
        ));
    }
    if task.pairs && !template.names("answer_b") && !template.names(&task.answer_b_field) {
        return Err(UsageError::new("--template does not name {answer_b}, the second answer of --pairs"));
    }
    if task.by_criterion && !template.names(verify::CRITERION) {
        return Err(UsageError::new("--template does not name {criterion}, which --criterion gives"));
    }
    Ok(())
}

/// Names of a rubric that do not stand for the file's fields of the same name.
const OWN_NAMES: [&str; 8] = ["input", "answer", "answer_b", "reference", "low", "high", "step", "middle"];

/// `after`: the text that ends the reasoning before the score, if the judge reasons. `is_begun`: whether a
/// prefill follows, which replaces the rubric's last line.
fn default_rubric(task: &JudgeTask, reference: bool, after: Option<&str>, is_begun: bool) -> Template {
    let pairs = task.pairs;
    let criterion = if task.by_criterion { BY_CRITERION } else { "" };
    let task = if pairs { COMPARE } else { GRADE };
    let reference = if reference { REFERENCE } else { "" };
    let answers = if pairs { TWO_ANSWERS } else { ONE_ANSWER };
    let end = match after {
        Some(after) => {
            let marker = after.trim().replace('{', "{{").replace('}', "}}");
            format!("Explain your judgement in a few sentences. Then write \"{marker}\" and the score.")
        }
        None if is_begun => ONLY_SCORE.to_owned(),
        None => format!("{ONLY_SCORE}\nScore:"),
    };
    let text = format!("{task}{criterion}{QUESTION}{reference}{answers}{end}");
    #[expect(clippy::expect_used, reason = "its parts are constants, and braces of the marker are doubled")]
    Template::from_text(&text).expect("the default rubric is a template")
}

const GRADE: &str = "Grade an answer with a score from {low} to {high}. {low} means that the answer is wrong or useless, {high} that \
                     it is correct, complete and clear.\n\n";
const COMPARE: &str = "Compare two answers with a score from {low} to {high}. {low} means that the first answer is far better, {high} \
                       that the second answer is far better, and {middle} that both are equally good.\n\n";
const BY_CRITERION: &str = "Compare them only by this criterion: {criterion}\n\n";
const QUESTION: &str = "[Question]\n{input}\n\n";
const REFERENCE: &str = "[Right answer]\n{reference}\n\n";
const ONE_ANSWER: &str = "[Answer]\n{answer}\n\n";
const TWO_ANSWERS: &str = "[First answer]\n{answer}\n\n[Second answer]\n{answer_b}\n\n";
const ONLY_SCORE: &str = "Write only the score.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_rubrics_are_those_of_the_manual() {
        let manual = include_str!("../../../docs/JUDGE.md");
        for (pairs, reference, after) in [(false, true, None), (true, false, None)] {
            let task = JudgeTask { pairs, ..JudgeTask::default() };
            let rubric = default_rubric(&task, reference, after, false);
            assert!(manual.contains(&format!("```\n{}\n```", rubric.source())), "{}", rubric.source());
        }
        let explained = default_rubric(&JudgeTask::default(), false, Some("\n{Score}: "), false);
        assert!(
            explained.source().ends_with("Then write \"{{Score}}:\" and the score."),
            "{}",
            explained.source()
        );
        assert!(
            !explained.source().contains("Right answer") && !explained.source().contains("only the score")
        );
    }
}
