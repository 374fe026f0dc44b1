//! Candidate answers to the same question, as pairs for the judge: the comparisons of a tournament.
//!
//! In: records with a list of answers. Out: the [`Tournament`] of each question, and a [`Suite`] with an item
//! for each of its comparisons and each criterion, in this order. Equal answers are one answer.

use std::path::Path;

use indexmap::IndexSet;
use serde_json::{Map, Value, json};

use super::{Judge, JudgeTask, MAX_TOKENS, PAIR_METRICS, check};
use crate::data::records::Record;
use crate::data::{DataError, Item};
use crate::error::UsageError;
use crate::format::count;
use crate::settings::RunSettings;
use crate::tasks::own::{self, OwnFile, OwnItems, Skipped};
use crate::tasks::{Entry, Origin, Suite, Traits, from_file};

pub const ENTRY: Entry = Entry {
    name: "verify",
    about: "candidate answers of your own, ranked by judged comparisons (--data FILE --out DIR)",
    origin: Origin::Given,
};

/// The field of the criterion in the records of comparisons, and its name in rubrics.
pub(super) const CRITERION: &str = "criterion";

#[derive(Debug, Clone, PartialEq)]
pub struct VerifyTask {
    /// How pairs are judged.
    pub judge: JudgeTask,
    /// Field with the list of answers.
    pub answers_field: String,
    /// Field with the known quality of each answer, which items may have.
    pub quality_field: String,
    /// The judge compares answers by each of them alone. Without criteria, it judges everything.
    pub criteria: Vec<String>,
    /// Maximum number of comparisons per question.
    pub comparisons_max: usize,
}

/// The comparisons of the answers to one question.
#[derive(Debug, Clone, PartialEq)]
pub struct Tournament {
    pub input: String,
    /// The different answers.
    pub answers: IndexSet<String>,
    /// The place of each candidate's answer among the different ones.
    pub candidates: Vec<usize>,
    /// The known quality of each candidate. Empty if it is not known.
    pub quality: Vec<f64>,
    /// The places of the answers of each comparison.
    pub pairs: Vec<[usize; 2]>,
}

/// Returns the tournaments and their only suite.
pub fn suite(task: &VerifyTask, run: &RunSettings) -> anyhow::Result<(Vec<Tournament>, Suite)> {
    let (Some(file), Some(_), Some(scale)) = (run.data.as_deref(), &run.output.out, run.number.scale) else {
        return Err(UsageError::new("verify needs --data FILE with lists of answers, and --out DIR").into());
    };
    check(run)?;
    let judge = Judge::new(&task.judge, run, scale)?;
    let required = [task.judge.input_field.as_str(), &task.answers_field];
    let reading = OwnFile { skip_missing: task.judge.skip_missing, delimiter: None };
    let OwnItems { mut records, split, skipped } = own::read(file, reading, &required)?;
    records.truncate(run.limit.map_or(records.len(), usize::from));
    let mut tournaments = Vec::with_capacity(records.len());
    let mut items = Vec::new();
    for record in &records {
        let tournament = task.tournament(record)?;
        items.extend(task.items(&judge, record, &tournament)?);
        tournaments.push(tournament);
    }
    let notice = task.notice(&tournaments, items.len());
    let suite = Suite {
        task: ENTRY.name,
        split,
        items,
        settings: task.settings(file, skipped.as_ref(), &judge),
        traits: Traits {
            max_tokens: MAX_TOKENS,
            judges: true,
            first_metrics: &PAIR_METRICS,
            ..Traits::default()
        },
        notices: skipped.iter().map(Skipped::notice).chain([notice]).collect(),
        field: None,
    };
    Ok((tournaments, suite))
}

impl VerifyTask {
    fn tournament(&self, record: &Record) -> Result<Tournament, DataError> {
        let input = record.require(&self.judge.input_field, "input")?.to_owned();
        let field = &self.answers_field;
        let text = record.get(field).ok_or_else(|| record.without(field))?;
        let Ok(texts) = serde_json::from_str::<Vec<String>>(text) else {
            return Err(record.problem(format!("field `{field}`: expected a list of texts")));
        };
        let mut answers = IndexSet::new();
        let mut candidates = Vec::with_capacity(texts.len());
        for text in texts {
            candidates.push(answers.insert_full(text).0);
        }
        let quality = self.quality(record, candidates.len())?;
        let Some(pairs) = pairs(answers.len(), self.comparisons_max) else {
            return Err(record.problem(format!(
                "{} different answers need at least as many comparisons: raise --comparisons",
                answers.len()
            )));
        };
        Ok(Tournament { input, answers, candidates, quality, pairs })
    }

    /// Reads the known quality of each candidate: numbers, or whether it is correct.
    fn quality(&self, record: &Record, candidates: usize) -> Result<Vec<f64>, DataError> {
        let field = &self.quality_field;
        let Some(text) = record.get(field) else { return Ok(Vec::new()) };
        let values: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let mut quality = Vec::with_capacity(values.len());
        for value in &values {
            quality
                .extend(value.as_f64().or_else(|| value.as_bool().map(|right| f64::from(u8::from(right)))));
        }
        if quality.len() != candidates {
            let message = format!("field `{field}`: expected a list of {candidates} numbers or booleans");
            return Err(record.problem(message));
        }
        Ok(quality)
    }

    fn items(&self, judge: &Judge<'_>, record: &Record, held: &Tournament) -> Result<Vec<Item>, DataError> {
        let mut items = Vec::new();
        let names = [&self.judge.answer_field, &self.judge.answer_b_field];
        for pair in &held.pairs {
            let [first, second] = pair.map(|place| held.answers[place].as_str());
            let compared = record.with([(names[0].as_str(), first), (names[1].as_str(), second)]);
            if self.criteria.is_empty() {
                items.push(judge.item(&compared)?);
            }
            for criterion in &self.criteria {
                let item = judge.item(&compared.with([(CRITERION, criterion.as_str())]))?;
                items.push(Item { module: Some(criterion.clone()), ..item });
            }
        }
        Ok(items)
    }

    fn settings(&self, file: &Path, skipped: Option<&Skipped>, judge: &Judge<'_>) -> Map<String, Value> {
        let mut settings = Map::from_iter([
            from_file(file),
            ("input_field".to_owned(), json!(self.judge.input_field)),
            ("answers_field".to_owned(), json!(self.answers_field)),
            ("criteria".to_owned(), json!(self.criteria)),
            ("comparisons_max".to_owned(), json!(self.comparisons_max)),
            ("rubrics".to_owned(), json!(judge.rubrics.each_ref().map(|rubric| rubric.source()))),
        ]);
        settings.extend(skipped.map(Skipped::setting));
        settings
    }

    fn notice(&self, tournaments: &[Tournament], items: usize) -> String {
        let compared: usize = tournaments.iter().map(|held| held.pairs.len()).sum();
        let most = tournaments.iter().map(|held| held.pairs.len()).max().unwrap_or(0);
        format!(
            "{} comparisons of the answers to {} questions, at most {most} per question; in both orders, for each of {} \
             criteria: {} requests",
            count(compared),
            count(tournaments.len()),
            self.criteria.len().max(1),
            count(2 * items),
        )
    }
}

/// Returns all pairs of `answers` if they are at most `most`. Otherwise each answer meets the answers at some
/// distances in a circle, equally many for all of them. The first distance is 1, so that the pairs connect
/// all answers. `None` if `most` does not suffice for that.
fn pairs(answers: usize, most: usize) -> Option<Vec<[usize; 2]>> {
    let mut pairs = Vec::new();
    if answers * answers.saturating_sub(1) / 2 <= most {
        for a in 0..answers {
            pairs.extend((a + 1..answers).map(|b| [a, b]));
        }
        return Some(pairs);
    }
    let distances = most / answers;
    let farthest = (answers - 1) / 2;
    for index in 0..distances {
        let distance = 1 + index * (farthest - 1) / (distances - 1).max(1);
        pairs.extend((0..answers).map(|a| [a, (a + distance) % answers]));
    }
    (distances > 0).then_some(pairs)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_tournament_keeps_its_limit_and_is_fair_and_without_repetition() {
        assert_eq!(pairs(1, 0), Some(vec![]));
        assert_eq!(pairs(3, 3), Some(vec![[0, 1], [0, 2], [1, 2]]));
        assert_eq!(pairs(5, 4), None);
        for answers in 4..40 {
            for most in answers..80 {
                let pairs = pairs(answers, most).unwrap();
                assert!(pairs.len() <= most, "{answers} {most}");
                let unordered: BTreeSet<[usize; 2]> =
                    pairs.iter().map(|&[a, b]| [a.min(b), a.max(b)]).collect();
                assert_eq!(unordered.len(), pairs.len(), "{answers} {most}");
                let met = |answer| pairs.iter().filter(|pair| pair.contains(&answer)).count();
                assert!((1..answers).all(|answer| met(answer) == met(0)), "{answers} {most}: {pairs:?}");
            }
        }
    }
}
