//! Generated items: their answers are correct, and their distribution is like that of the original data.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ntl_eval::data::Item;
use ntl_eval::data::read::{Truth, pairs};
use ntl_eval::tasks::generate;
use ntl_eval::tasks::generate::Split;

const SPLITS: [Split; 2] = [Split::Interpolate, Split::Extrapolate];

/// Returns the expression in a question, and the question with `X` instead of the expression.
fn parts(question: &str) -> (&str, String) {
    let start = question.find(|c: char| c.is_ascii_digit() || c == '(' || c == '-').unwrap();
    let end = question.rfind(|c: char| c.is_ascii_digit() || c == ')').unwrap() + 1;
    (&question[start..end], format!("{}X{}", &question[..start], &question[end..]))
}

/// Parses an expression into its value, operands and brackets.
struct Reader<'a> {
    rest: &'a str,
    operands: Vec<i64>,
    brackets: usize,
}

impl<'a> Reader<'a> {
    fn read(expression: &'a str) -> (i64, Self) {
        let mut reader = Self { rest: expression, operands: Vec::new(), brackets: 0 };
        let value = reader.sum();
        assert_eq!(reader.rest, "", "left over of {expression}");
        (value, reader)
    }

    fn sum(&mut self) -> i64 {
        let mut value = self.term();
        loop {
            if let Some(rest) = self.rest.strip_prefix(" + ") {
                self.rest = rest;
                value += self.term();
            } else if let Some(rest) = self.rest.strip_prefix(" - ") {
                self.rest = rest;
                value -= self.term();
            } else {
                return value;
            }
        }
    }

    fn term(&mut self) -> i64 {
        if let Some(rest) = self.rest.strip_prefix('(') {
            self.rest = rest;
            self.brackets += 1;
            let value = self.sum();
            self.rest = self.rest.strip_prefix(')').unwrap();
            return value;
        }
        let end = self.rest[1..].find(|c: char| !c.is_ascii_digit()).map_or(self.rest.len(), |at| at + 1);
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        let value = digits.parse().unwrap();
        self.operands.push(value);
        value
    }
}

#[test]
fn every_generated_answer_is_the_value_of_its_expression() {
    for split in SPLITS {
        for item in generate::items(split, 3, 3_000) {
            let (value, _) = Reader::read(parts(&item.question).0);
            assert_eq!(value.to_string(), item.answer, "{}", item.question);
            assert!((item.truth.unwrap() - value as f64).abs() < f64::EPSILON);
        }
    }
}

#[test]
fn no_question_is_generated_twice() {
    let mut questions: Vec<String> =
        generate::items(Split::Interpolate, 0, 10_000).into_iter().map(|item| item.question).collect();
    questions.sort_unstable();
    questions.dedup();
    assert_eq!(questions.len(), 10_000);
}

/// The compared properties of questions.
#[derive(Debug)]
struct Statistics {
    /// The share of each wording.
    wordings: BTreeMap<String, f64>,
    /// The share of each number of operands.
    sizes: BTreeMap<usize, f64>,
    answers: Vec<f64>,
    operands: Vec<f64>,
    zero_operands: f64,
    brackets_per_item: f64,
}

fn statistics(items: &[Item]) -> Statistics {
    let share = 1.0 / items.len() as f64;
    let mut wordings = BTreeMap::new();
    let mut sizes = BTreeMap::new();
    let mut answers = Vec::new();
    let mut operands = Vec::new();
    let mut brackets = 0;
    for item in items {
        let (expression, wording) = parts(&item.question);
        let (value, read) = Reader::read(expression);
        assert_eq!(value.to_string(), item.answer);
        *wordings.entry(wording).or_insert(0.0) += share;
        *sizes.entry(read.operands.len()).or_insert(0.0) += share;
        answers.push(item.truth.unwrap().abs());
        operands.extend(read.operands.iter().map(|value| value.abs() as f64));
        brackets += read.brackets;
    }
    answers.sort_by(f64::total_cmp);
    operands.sort_by(f64::total_cmp);
    let zeros = operands.iter().filter(|value| **value < 0.5).count();
    Statistics {
        wordings,
        sizes,
        answers,
        zero_operands: zeros as f64 / operands.len() as f64,
        operands,
        brackets_per_item: brackets as f64 * share,
    }
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted[(q * (sorted.len() - 1) as f64) as usize]
}

/// Checks that the keys are equal and the shares differ by at most `tolerance`.
fn assert_shares<K: Ord + std::fmt::Debug>(got: &BTreeMap<K, f64>, want: &BTreeMap<K, f64>, tolerance: f64) {
    assert!(got.keys().eq(want.keys()), "{got:?} against {want:?}");
    for (key, want) in want {
        assert!((got[key] - want).abs() <= tolerance, "{key:?}: {} against {want}", got[key]);
    }
}

/// The files of the original data.
fn original(split: Split) -> PathBuf {
    let folder = Path::new(env!("NTL_SHARED")).join("data/mathematics_dataset-v1.0");
    folder.join(format!("arithmetic_test_{}.txt", split.name()))
}

#[test]
#[cfg_attr(not(shared_fixtures), ignore = "needs ../shared")]
fn generated_items_are_distributed_like_the_original() {
    for split in SPLITS {
        let file = original(split);
        let want = statistics(&pairs(&file, Truth::Number).unwrap());
        let got = statistics(&generate::items(split, 0, 10_000));
        assert_shares(&got.wordings, &want.wordings, 0.015);
        assert_shares(&got.sizes, &want.sizes, 0.02);
        assert!((got.zero_operands - want.zero_operands).abs() < 0.005, "zeros in {split:?}");
        let brackets = got.brackets_per_item / want.brackets_per_item;
        assert!((brackets - 1.0).abs() < 0.02, "brackets in {split:?}: {brackets}");
        for (name, got, want) in
            [("answer", &got.answers, &want.answers), ("operand", &got.operands, &want.operands)]
        {
            for q in [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99] {
                let got = quantile(got, q);
                let want = quantile(want, q);
                let close = (got - want).abs() <= 1.0 || (got / want).ln().abs() < 0.1;
                assert!(close, "{split:?} |{name}| at {q}: {got} against {want}");
            }
        }
    }
}
