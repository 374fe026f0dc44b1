//! School arithmetic in words: GSM8K (Cobbe et al. 2021), test split.
//!
//! The prompt is the bare question, as for the paper's T5, or with `--shots` lm-eval's: solved questions from
//! the training set, the same that lm-eval draws, and `Question: ...\nAnswer:`. In regress mode the number is
//! expected after `#### `, which ends every solution; in text mode it is read there too.

use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::{Entry, Origin, Suite, Traits, from_file, shots};
use crate::data::fetch::Source;
use crate::data::read::{Truth, questions};
use crate::data::{Item, place};
use crate::error::UsageError;
use crate::settings::RunSettings;
use crate::settings::mode::NumberRule;

pub const ENTRY: Entry = Entry {
    name: "gsm8k",
    about: "school arithmetic in words (GSM8K); by value, and as lm-eval reads it, strict and flexible",
    origin: Origin::Published(&[
        Source::pinned(
            "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/test.jsonl",
            "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        ),
        Source::pinned(
            "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/train.jsonl",
            "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        ),
        Source {
            url: "https://raw.githubusercontent.com/tum-ai/number-token-loss/19940f1db1b52532d8f9f5bdbd3274e9b2f26f98/data/grade-school-math/grade_school_math/data/preprocessed/test_clean.jsonl",
            sha256: None,
            members: &[],
        },
    ]),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// `test.jsonl`.
    Original,
    /// `test_clean.jsonl`.
    Clean,
}

/// Solved questions before each question, as in lm-eval.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Shots {
    /// Word prompts as lm-eval does, after N solved questions. Default: the bare question.
    #[arg(required = false, long = "shots", value_name = "N", env = "NTL_EVAL_SHOTS")]
    pub count: usize,
    /// File of the solved questions. Default: `train.jsonl` in the folder of the data or in the cache.
    #[arg(long, value_name = "FILE", env = "NTL_EVAL_TRAIN", requires = "count")]
    pub train: Option<PathBuf>,
}

pub fn suites(form: Form, shots: Option<&Shots>, settings: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    let name = match form {
        Form::Original => "test.jsonl",
        Form::Clean => "test_clean.jsonl",
    };
    let file = place::find(ENTRY.name, &[name], settings.data.as_deref())?;
    let mut items = questions(&file, Truth::AfterHashes)?;
    items.truncate(settings.limit.map_or(usize::MAX, usize::from));
    let mut settings = Map::from_iter([from_file(&file)]);
    if let Some(Shots { count, train }) = shots {
        let solved = if *count == 0 { Vec::new() } else { solved(train.as_deref(), &file)? };
        add_shots(&mut items, &solved, *count)?;
        settings.insert("shots".to_owned(), json!(count));
        settings.insert("shots_seed".to_owned(), json!(shots::SEED));
    }
    Ok(vec![Suite {
        task: ENTRY.name,
        split: "test".to_owned(),
        items,
        settings,
        traits: Traits {
            stop: &["Question:", "</s>", "<|im_end|>"],
            max_tokens: 256,
            after: Some("#### "),
            number_rule: NumberRule::Marked,
            lm_eval: true,
            ..Traits::default()
        },
        ..Suite::default()
    }])
}

fn solved(train: Option<&Path>, file: &Path) -> anyhow::Result<Vec<Item>> {
    let beside = file.with_file_name("train.jsonl");
    let file = match train {
        Some(train) => train.to_owned(),
        None if beside.exists() => beside,
        None => place::find(ENTRY.name, &["train.jsonl"], None)?,
    };
    Ok(questions(&file, Truth::AfterHashes)?)
}

/// Words prompts as lm-eval does; each item gets its own draw of solved questions.
fn add_shots(items: &mut [Item], solved: &[Item], count: usize) -> anyhow::Result<()> {
    if count > solved.len() {
        let message = format!("--shots {count} asks for more than the {} solved questions", solved.len());
        return Err(UsageError(message).into());
    }
    let mut random = shots::PythonRandom::new(shots::SEED);
    for item in items {
        let mut prompt = String::new();
        for index in random.sample(solved.len(), count) {
            let Item { question, answer, .. } = &solved[index];
            prompt.push_str(&format!("Question: {question}\nAnswer: {answer}\n\n"));
        }
        prompt.push_str(&format!("Question: {}\nAnswer:", item.question));
        item.prompt = Some(prompt);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(question: &str, answer: &str) -> Item {
        Item { question: question.to_owned(), answer: answer.to_owned(), ..Item::default() }
    }

    #[test]
    fn prompts_are_worded_as_lm_eval_words_them() {
        let mut items = [item("How many?", "#### 1")];
        add_shots(&mut items, &[], 0).unwrap();
        assert_eq!(items[0].prompt(), "Question: How many?\nAnswer:");
        add_shots(&mut items, &[item("One?", "so\n#### 2")], 1).unwrap();
        assert_eq!(items[0].prompt(), "Question: One?\nAnswer: so\n#### 2\n\nQuestion: How many?\nAnswer:");
        assert!(add_shots(&mut items, &[], 1).unwrap_err().is::<UsageError>());
    }
}
