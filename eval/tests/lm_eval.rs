//! GSM8K as in lm-eval 0.4.13 (task `gsm8k`, version 3): the same prompts, extracted numbers and scores on
//! the whole test set.
//!
//! lm-eval's own classes computed the digests on the same files: its few-shot prompts as it sent them, and
//! `RegexFilter` and `exact_match_hf_evaluate` on solutions that are modified in eleven ways.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail a test like the tests themselves"
)]

use std::path::Path;

use clap::Parser;
use ntl_eval::cli::args::{Cli, Command};
use ntl_eval::data::Item;
use ntl_eval::run::answer_extraction::LmEvalFilter;
use sha2::{Digest, Sha256};

/// Returns the items that a command line selects.
fn items(more: &[&str]) -> Vec<Item> {
    let folder = Path::new(env!("NTL_SHARED")).join("data/gsm8k");
    let args = ["ntl-eval", "gsm8k", "--endpoint", "http://h", "--data", folder.to_str().unwrap()];
    let cli = Cli::try_parse_from([&args[..], more].concat()).unwrap();
    let Command::Task(task) = cli.command else { panic!("{args:?} is a task") };
    task.suites(&task.settings()).unwrap().remove(0).items
}

fn digest(lines: &[String], between: &str) -> String {
    format!("{:x}", Sha256::digest(lines.join(between)))
}

/// Returns a solution, modified in one of eleven ways.
fn bent(index: usize, answer: &str) -> String {
    let (before, number) = answer.rsplit_once("#### ").unwrap();
    match index % 11 {
        0 => answer.to_owned(),
        1 => answer.replace("#### ", "The answer is "),
        2 => format!("It costs ${number}.00."),
        3 => format!("{answer}."),
        4 => format!("{answer} apples and 3 pears"),
        5 => format!("#### {number}."),
        6 => "I do not know".to_owned(),
        7 => before.to_owned(),
        8 => format!("#### -{number}"),
        9 => format!("so ${number} in total"),
        _ => format!("#### {number}\n\nand then 5"),
    }
}

#[test]
#[cfg_attr(not(shared_fixtures), ignore = "needs ../shared")]
fn five_shot_prompts_match_lm_eval() {
    let items = items(&["--shots", "5"]);
    let prompts: Vec<String> = items.iter().map(|item| item.prompt().to_owned()).collect();
    assert_eq!(prompts.len(), 1_319);
    assert_eq!(digest(&prompts, "\n"), "b9b1776c154e29f3b1dfd2adbb4846365d4e3642a2130c59c283d1fb98e821a6");
}

#[test]
#[cfg_attr(not(shared_fixtures), ignore = "needs ../shared")]
fn extracted_numbers_and_scores_match_lm_eval() {
    let items = items(&[]);
    let texts: Vec<String> =
        items.iter().enumerate().map(|(index, item)| bent(index, &item.answer)).collect();
    for (filter, count, extracted, hits) in [
        (
            LmEvalFilter::Strict,
            599,
            "d8f7f9954052e1c762459d57582dede2dcbee059061c55af3425d3dde696b8d6",
            "924ffc0138a4a04f5d0169e0285a71591f7910d06f130c07b3114c923e37dd27",
        ),
        (
            LmEvalFilter::Flexible,
            717,
            "aacaf3c1ea027b615410366e5707e7bd40c643899f19d9ddf34082fa8ef1809f",
            "19b3611a59bf8c080f82150059f28c7574f4c8ca55c9346131a739af49bd45ae",
        ),
    ] {
        let found: Vec<String> = texts.iter().map(|text| filter.extract(text)).collect();
        assert_eq!(digest(&found, "\n"), extracted, "{filter:?}");
        let pairs = texts.iter().zip(&items);
        let matched: Vec<String> =
            pairs.map(|(text, item)| u8::from(filter.matches(text, &item.answer)).to_string()).collect();
        assert_eq!(matched.iter().filter(|hit| *hit == "1").count(), count, "{filter:?}");
        assert_eq!(digest(&matched, ""), hits, "{filter:?}");
    }
}
