//! `ntl-bench quality`: measures the cost of smaller weights by running the same questions with every element
//! type.
//!
//! The input is questions with numeric answers. The output, for each type, is the accuracy of the greedy
//! answers, their mean absolute error, and the perplexity of the correct answers. It also has the largest
//! difference of a probability, at any token of the correct answers, from the first type's.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use ntl_core::contract::{
    BatchModel, ContextRequest, Event, Job, NodeId, PathRow, Prompt, Request, Row, TextJob,
};
use ntl_core::numbers::Softmax;
use ntl_models::{DeviceChoice, DtypeChoice, KvCacheDtype, LoadOptions};
use ntl_text::tokenizer::Tokenizer;
use serde::Deserialize;

use crate::setup::{self, engine, events};
use crate::table::write_table;

/// Number of concurrent questions.
const BATCH: usize = 32;

/// Maximum number of tokens in a greedy answer.
const ANSWER_TOKENS_MAX: usize = 32;

/// Accuracy, error, perplexity and probabilities by element type.
#[derive(Debug, clap::Args)]
pub struct QualityArgs {
    /// Checkpoint directory. Default: the demo checkpoint
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Questions with numeric answers: JSON lines with `question` and `answer`, or alternating lines of
    /// questions and answers. Default: the held-out arithmetic problems of the demo checkpoint
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Prompt, with `{}` in place of the question
    #[arg(long, default_value = "{}")]
    prompt: String,
    /// Maximum number of questions, from the start of the file
    #[arg(long, default_value_t = 1000)]
    limit: usize,
    /// Element types; the others are compared with the first
    #[arg(long, value_delimiter = ',', default_value = "f32,f16,bf16,q8_0,int8", value_parser = str::parse::<DtypeChoice>)]
    dtypes: Vec<DtypeChoice>,
    /// Element types of keys and values: auto, bf16, fp8; each is combined with every element type of the
    /// weights
    #[arg(long, value_delimiter = ',', default_value = "auto", value_parser = str::parse::<KvCacheDtype>)]
    kv_cache_dtypes: Vec<KvCacheDtype>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Item {
    question: String,
    answer: String,
}

/// Results for one element type.
struct Quality {
    dtype: String,
    right: usize,
    /// Absolute errors of the greedy answers that are numbers.
    errors: Vec<f64>,
    perplexity: f64,
    /// Probabilities of all ids at every token of every answer.
    probabilities: Vec<f32>,
}

pub fn run(args: &QualityArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    ensure!(args.limit > 0, "--limit must be at least 1");
    let file = args.data.clone().unwrap_or_else(|| setup::demo_folder().join("sums.jsonl"));
    let items = items(&file, &setup::read(&file)?, args.limit)?;
    let mut first = None;
    let mut rows = Vec::new();
    let kinds = args.dtypes.iter().flat_map(|&dtype| args.kv_cache_dtypes.iter().map(move |&kv| (dtype, kv)));
    for (dtype, kv) in kinds {
        let quality = measure(args, &items, dtype, kv)?;
        let first = first.get_or_insert_with(|| quality.probabilities.clone());
        rows.push(row(&quality, first, items.len()));
    }
    writeln!(out, "{} questions from {}\n", items.len(), file.display())?;
    let header =
        "dtype | accuracy | mean absolute error | numbers | perplexity | largest change of a probability";
    Ok(write_table(out, 1, header, rows)?)
}

fn row(quality: &Quality, first: &[f32], count: usize) -> String {
    let Quality { dtype, right, errors, perplexity, probabilities } = quality;
    let share = *right as f64 * 100.0 / count as f64;
    let error = errors.iter().sum::<f64>() / errors.len() as f64;
    let changes = probabilities.iter().zip(first).map(|(now, first)| (now - first).abs());
    let change = changes.fold(0.0, f32::max);
    format!("`{dtype}` | {share:.1} % | {error:.2} | {} | {perplexity:.4} | {change:.4}", errors.len())
}

fn items(file: &Path, text: &str, limit: usize) -> anyhow::Result<Vec<Item>> {
    let place = file.display();
    let lines: Vec<&str> = text.lines().collect();
    let mut items: Vec<Item> = Vec::new();
    if lines.first().is_some_and(|line| line.starts_with('{')) {
        for line in lines.iter().take(limit) {
            items.push(serde_json::from_str(line).with_context(|| format!("{place}: {line}"))?);
        }
    } else {
        let (pairs, rest) = lines.as_chunks::<2>();
        ensure!(rest.is_empty(), "{place}: the last question has no answer");
        for &[question, answer] in pairs.iter().take(limit) {
            items.push(Item { question: question.to_owned(), answer: answer.to_owned() });
        }
    }
    ensure!(!items.is_empty(), "{place} has no questions");
    if let Some(item) = items.iter().find(|item| number(&item.answer).is_none()) {
        bail!("{place}: the answer of `{}` is not a number", item.question);
    }
    Ok(items)
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

fn measure(
    args: &QualityArgs,
    items: &[Item],
    dtype: DtypeChoice,
    kv_cache_dtype: KvCacheDtype,
) -> anyhow::Result<Quality> {
    let device = DeviceChoice::Cpu;
    let options =
        LoadOptions { device, dtype, kv_cache_dtype, prefix_bytes_max: 0, ..LoadOptions::default() };
    let mut loaded = setup::open(args.model.as_deref(), options)?;
    let info = loaded.model.info().clone();
    ensure!(info.has_token_distribution(), "a regression head has no token probabilities");
    let questions: Vec<Question> = items
        .iter()
        .map(|item| Question::new(&loaded.tokenizer, item, &args.prompt, info.encoder_decoder))
        .collect::<anyhow::Result<_>>()?;
    let mut logs = Vec::new();
    let mut probabilities = Vec::new();
    for questions in questions.chunks(BATCH) {
        score(loaded.model.as_mut(), questions, info.tokens, &mut logs, &mut probabilities)?;
    }
    let perplexity = (-logs.iter().sum::<f64>() / logs.len() as f64).exp();
    let engine = engine(loaded)?;
    let mut right = 0;
    let mut errors = Vec::new();
    for (questions, items) in questions.chunks(BATCH).zip(items.chunks(BATCH)) {
        let text = TextJob { max_tokens: ANSWER_TOKENS_MAX, ..TextJob::default() };
        let jobs = questions
            .iter()
            .map(|question| Job::new(question.prompt.clone(), Request::Text(text.clone())))
            .collect();
        for (answer, item) in engine.submit_all(jobs)?.into_iter().zip(items) {
            let mut text = String::new();
            for event in events(answer) {
                if let Event::Text { text: piece, .. } = event? {
                    text.push_str(&piece);
                }
            }
            let answer = text.trim().lines().next().unwrap_or_default().trim();
            right += usize::from(answer == item.answer.trim());
            errors.extend(number(answer).zip(number(&item.answer)).map(|(got, want)| (got - want).abs()));
        }
    }
    let dtype = match kv_cache_dtype {
        KvCacheDtype::Auto => info.dtype.name().to_owned(),
        KvCacheDtype::Bf16 | KvCacheDtype::Fp8 => {
            format!("{}, keys and values {}", info.dtype.name(), kv_cache_dtype.name())
        }
    };
    Ok(Quality { dtype, right, errors, perplexity, probabilities })
}

/// A question as ids, and the correct answer that follows it.
struct Question {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl Question {
    fn new(tokenizer: &Tokenizer, item: &Item, prompt: &str, encoder_decoder: bool) -> anyhow::Result<Self> {
        let text = prompt.replace("{}", &item.question);
        let prompt = tokenizer.encode(&text, true)?;
        if encoder_decoder {
            return Ok(Self { prompt, answer: tokenizer.encode(&item.answer, true)? });
        }
        let whole = tokenizer.encode(&format!("{text} {}", item.answer), true)?;
        let answer = whole.strip_prefix(prompt.as_slice()).filter(|answer| !answer.is_empty());
        let answer =
            answer.with_context(|| format!("the tokens of `{text}` change when the answer follows"))?;
        Ok(Self { answer: answer.to_vec(), prompt })
    }
}

/// Appends the log-probabilities of the answers' tokens, and the probabilities of all ids at each of them.
fn score(
    model: &mut dyn BatchModel,
    questions: &[Question],
    tokens: usize,
    logs: &mut Vec<f64>,
    probabilities: &mut Vec<f32>,
) -> anyhow::Result<()> {
    let prompts: Vec<Prompt> = questions.iter().map(|question| question.prompt.clone().into()).collect();
    let opened = model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>())?;
    let mut rows = Vec::new();
    for (opened, question) in opened.iter().zip(questions) {
        let fed = std::iter::once(&opened.first_token).chain(&question.answer[..question.answer.len() - 1]);
        rows.extend((0_u32..).zip(fed).map(|(index, &token)| {
            let parent = index.checked_sub(1).map(NodeId);
            Row { context: opened.context, path: PathRow::new(parent, token) }
        }));
    }
    let logits = model.step(&rows)?;
    for (index, &id) in questions.iter().flat_map(|question| &question.answer).enumerate() {
        let softmax = Softmax::new(&logits.row(index)[..tokens]).context("logits are NaN")?;
        logs.push(softmax.log_probability(id));
        probabilities.extend((0..tokens as u32).map(|id| softmax.probability(id) as f32));
    }
    opened.iter().for_each(|opened| model.close(opened.context));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_in_both_formats_and_errors_name_the_bad_ones() {
        let item = |question: &str, answer: &str| Item { question: question.into(), answer: answer.into() };
        let file = Path::new("sums");
        let lines =
            "{\"question\": \"1 + 1\", \"answer\": \"2\"}\n{\"question\": \"2 + 2\", \"answer\": \"4\"}\n";
        assert_eq!(items(file, lines, 1).unwrap(), [item("1 + 1", "2")]);
        assert_eq!(items(file, "1 + 1\n2\n2 + 2\n4\n", 9).unwrap(), [item("1 + 1", "2"), item("2 + 2", "4")]);
        for (text, want) in [
            ("", "sums has no questions"),
            ("1 + 1\n", "sums: the last question has no answer"),
            ("1 + 1\ntwo\n", "sums: the answer of `1 + 1` is not a number"),
        ] {
            assert_eq!(items(file, text, 9).unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn every_type_answers_the_demo_questions_and_the_first_equals_itself() {
        let args = QualityArgs {
            model: None,
            data: None,
            prompt: "{}".to_owned(),
            limit: 40,
            dtypes: vec![DtypeChoice::F32, DtypeChoice::Int8],
            kv_cache_dtypes: vec![KvCacheDtype::Auto],
        };
        let mut out = Vec::new();
        run(&args, &mut out).unwrap();
        let table = String::from_utf8(out).unwrap();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(" | ").collect()).collect();
        let [f32, int8] = &rows[rows.len() - 2..] else { panic!("{table}") };
        let number = |cell: &str| cell.trim_matches([' ', '|', '%']).trim().parse::<f64>().unwrap();
        assert!(number(f32[1]) > 90.0 && number(int8[1]) > 90.0, "{table}");
        assert!(number(f32[5]) == 0.0 && number(int8[5]) > 0.0 && number(int8[5]) < 0.5, "{table}");
    }
}
