//! Items of one's own: JSON lines or CSV with a question and an answer, worded by `--template`, with examples from the same
//! file in front.

use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, json};

use super::{Entry, Origin, Suite, Traits, from_file};
use crate::cli::flags::Mode;
use crate::cli::tasks::CustomArgs;
use crate::console::UsageError;
use crate::data::read::Truth;
use crate::data::records::{Record, records};
use crate::data::{DataError, Item};
use crate::template::{Template, UnknownField};

pub const ENTRY: Entry = Entry {
    name: "custom",
    about: "questions and answers of your own (--data FILE: JSON lines or CSV)",
    origin: Origin::Given,
};

pub fn suites(args: &CustomArgs) -> anyhow::Result<Vec<Suite>> {
    let common = &args.common;
    let usage = |message: &str| UsageError(message.to_owned());
    let file = common.data.as_deref().ok_or_else(|| usage("custom needs --data FILE, JSON lines or CSV"))?;
    let template = common.template();
    if template.is_some_and(|template| template.names("answer") || template.names(&args.answer_field)) {
        return Err(usage("--template names the answer, which the model would only have to copy").into());
    }
    let items = records(file)?.into_iter().map(|record| item(args, &record));
    let mut items = items.collect::<Result<Vec<Item>, DataError>>()?;
    let has_numbers = items.iter().any(|item| item.truth.is_some());
    if common.mode == Mode::Regress && !has_numbers {
        let message = format!("no answer in {} is a number: --mode regress has no meaning", file.display());
        return Err(UsageError(message).into());
    }
    let between = if template.is_some_and(Template::ends_in_space) { "" } else { " " };
    add_shots(&mut items, args.shots, common.seed, between)?;
    items.truncate(common.limit.map_or(usize::MAX, usize::from));
    let split = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(vec![Suite {
        task: ENTRY.name,
        split: split.split('.').next().unwrap_or_default().to_owned(),
        items,
        settings: Map::from_iter([
            from_file(file),
            ("question_field".to_owned(), json!(args.question_field)),
            ("answer_field".to_owned(), json!(args.answer_field)),
            ("shots".to_owned(), json!(args.shots)),
        ]),
        traits: Traits {
            // Behind examples, a model goes on with the next one.
            stop: if args.shots > 0 { &["\n\n"] } else { &[] },
            texts: !has_numbers,
            mixed: true,
            ..Traits::default()
        },
    }])
}

fn item(args: &CustomArgs, record: &Record) -> Result<Item, DataError> {
    let (question, answer) =
        (record.require(&args.question_field)?, record.require_answer(&args.answer_field)?);
    let value = |name: &str| if name == "question" { Some(question) } else { record.get(name) };
    let worded = |UnknownField(name)| record.without(&name);
    let prompt = args.common.template().map(|template| template.render(value)).transpose();
    Ok(Item {
        question: question.to_owned(),
        answer: answer.to_owned(),
        truth: Truth::Written.of(answer).flatten(),
        prompt: prompt.map_err(worded)?,
        ..Item::default()
    })
}

/// Puts `count` other items in front of each, as their prompts, `between` and their answers, with a blank line behind each.
fn add_shots(items: &mut [Item], count: usize, seed: u64, between: &str) -> Result<(), UsageError> {
    let others = items.len().saturating_sub(1);
    if count > others {
        return Err(UsageError(format!("--shots {count} asks for more than the {others} other items")));
    }
    let solved: Vec<String> =
        items.iter().map(|item| format!("{}{between}{}\n\n", item.prompt(), item.answer)).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for (own, item) in items.iter_mut().enumerate().filter(|_| count > 0) {
        let drawn = index::sample(&mut rng, others, count).into_iter();
        let drawn = drawn.map(|other| solved[other + usize::from(other >= own)].as_str());
        item.prompt = Some(drawn.chain([item.prompt()]).collect());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_other_items_drawn_by_the_seed() {
        let item = |number: usize| Item {
            question: format!("{number}?"),
            answer: number.to_string(),
            ..Item::default()
        };
        let shots = |seed| {
            let mut items: Vec<Item> = (0..9).map(item).collect();
            add_shots(&mut items, 3, seed, " ").unwrap();
            items.iter().map(|item| item.prompt().to_owned()).collect::<Vec<_>>()
        };
        for (own, prompt) in shots(1).iter().enumerate() {
            let parts: Vec<&str> = prompt.split("\n\n").collect();
            assert_eq!((parts.len(), parts[3]), (4, format!("{own}?").as_str()));
            let solved =
                |part: &&str| part.split_once("? ").is_some_and(|(question, answer)| question == answer);
            assert!(parts[..3].iter().all(solved), "{prompt}");
            assert!(!parts[..3].iter().any(|part| part.starts_with(&format!("{own}?"))), "{prompt}");
        }
        assert_eq!(shots(1), shots(1));
        assert_ne!(shots(1), shots(2));
        let mut one = [item(0)];
        assert!(add_shots(&mut one, 1, 0, " ").is_err());
        add_shots(&mut one, 0, 0, " ").unwrap();
        assert_eq!(one[0].prompt, None);
    }
}
