//! Files of `ntl-eval`: the journal of a run, its report, and data sets.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use ntl_eval::compare::compare;
use ntl_eval::data::read::{Truth, pairs, passages, questions, scores};
use ntl_eval::report;
use ntl_eval::stats::bootstrap::Bootstrap;
use ntl_eval::store::journal::Journal;
use ntl_eval::store::saved::Run;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::outcome;
use crate::corpus::{file, named, split_named};
use crate::{Outcome, Target};

pub(super) const JOURNAL: Target = Target {
    name: "journal",
    corpus: || {
        let file = in_folder(|folder| {
            let file = folder.join("journal.jsonl");
            let mut journal = Journal::open(&file, &header()).unwrap();
            journal.add("answer 0", "k", &json!({ "text": "142", "finish_reason": "stop" })).unwrap();
            journal.add("answer 1", "k", &json!({ "text": "-7", "number": { "mass_closed": 0.5 } })).unwrap();
            fs::read(&file).unwrap()
        });
        let old = b"{\"task\":\"t\",\"limit\":1}\n{\"id\":\"answer 0\",\"key\":\"k\",\"value\":5}\n".to_vec();
        vec![file, old]
    },
    words: &[
        "{\"id\":\"answer 0\",\"key\":\"k\",\"value\":5}\n",
        ",\"sum\":\"",
        "\"}\n",
        "\n",
        "\"task\"",
        "\"limit\"",
        "null",
        "\\u0000",
        "1e999",
    ],
    read: journal,
};

pub(super) const REPORT: Target = Target {
    name: "report",
    corpus: || {
        ["report.json", "samples.jsonl"].map(|name| named(name, &file(&format!("{RUN}/{name}")))).to_vec()
    },
    words: &[
        "n",
        "n_valid",
        "failed",
        "seconds",
        "metrics",
        "mae",
        "value",
        "interval",
        "low",
        "high",
        "calibration",
        "levels",
        "modules",
        "baselines",
        "unknown_mass",
        "settings",
        "quirks",
        "unbounded",
        "missing_numbers",
        "doc_id",
        "truth",
        "prediction",
        "mean",
        "median",
        "mode",
        "absolute_error",
        "accuracy",
        "quantiles",
        "crps",
        "resps",
        "strict",
        "module",
        "error",
        "regress",
        "paper",
        "text",
        "\n",
    ],
    read: report_of,
};

pub(super) const DATA: Target = Target {
    name: "data",
    corpus: || {
        vec![
            named("questions.jsonl", b"{\"question\": \"a\", \"answer\": \"so #### 1,200\"}\n{\"question\": \"b\", \"answer\": \"#### 7\"}\n"),
            named("pairs.txt", b"What is 1 + 1?\n2\nWhat is 7/3?\n7/3\n"),
            named("scores.tsv", b"3\ta joke\n0\tanother\n"),
            named("passages.jsonl", br#"{"passage":{"text":"t","questions":[{"question":"q","answers":[{"text":"a","label":1}]}]}}"#),
            named("questions.jsonl.gz", b"{\"question\": \"a\", \"answer\": \"#### 7\"}\n"),
            named("raw.jsonl.gz", &gzipped(b"{\"question\": \"a\", \"answer\": \"#### 7\"}\n")),
        ]
    },
    words: &[
        "question",
        "answer",
        "#### ",
        "passage",
        "questions",
        "answers",
        "label",
        "text",
        "\t",
        "\n",
        "1e999",
        "-7/3",
        "1/0",
        "1,234",
        "version https://git-lfs.github.com/spec/",
        "\u{1f}\u{8b}",
    ],
    read: data,
};

/// The report of a run of 12 items, written by `ntl-eval`.
const RUN: &str = "lab/fuzz/corpus/run";

/// Runs `work` in an empty directory that exists as long as the thread.
fn in_folder<T>(work: impl FnOnce(&Path) -> T) -> T {
    thread_local! {
        static FOLDER: RefCell<TempDir> = RefCell::new(tempfile::tempdir().unwrap());
    }
    FOLDER.with_borrow(|folder| {
        for entry in fs::read_dir(folder.path()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        work(folder.path())
    })
}

fn header() -> Value {
    json!({ "task": "t", "limit": 1 })
}

/// Checks that accepted entries are still there after the journal is opened again.
fn journal(input: &[u8]) -> Outcome {
    in_folder(|folder| {
        let file = folder.join("journal.jsonl");
        fs::write(&file, input).unwrap();
        let mut opened = Journal::open(&file, &header());
        if let Ok(journal) = &mut opened {
            let answer: Option<Value> = journal.get("answer 0", "k");
            journal.add("answer 9", "k", &9).unwrap();
            let again = Journal::open(&file, &header()).unwrap();
            assert_eq!((again.get("answer 0", "k"), again.get("answer 9", "k")), (answer, Some(9)));
        }
        outcome(opened, "journal.jsonl")
    })
}

/// Compares a run with itself and writes its pages.
fn report_of(input: &[u8]) -> Outcome {
    let Some((name, content)) = split_named(input) else { return Outcome::Refused };
    in_folder(|folder| {
        for kept in ["report.json", "samples.jsonl"] {
            let content = if kept == name { content.to_vec() } else { file(&format!("{RUN}/{kept}")) };
            fs::write(folder.join(kept), content).unwrap();
        }
        let run = Run::load(folder);
        if let Ok(run) = &run {
            // The comparison fails for runs without common items.
            let _ = compare(run, run, Bootstrap { resamples: 20, seed: 1 }, 5);
            report::write(folder).unwrap();
        }
        outcome(
            run.map_err(|error| format!("{error:#}")),
            if name == "report.json" { name } else { "samples.jsonl" },
        )
    })
}

fn data(input: &[u8]) -> Outcome {
    let Some((name, content)) = split_named(input) else { return Outcome::Refused };
    in_folder(|folder| {
        let kind = name.split('.').next().unwrap_or_default();
        let packed = name.ends_with(".gz");
        let file_name = if packed { "data.gz" } else { "data" };
        let content = if packed && kind != "raw" { gzipped(content) } else { content.to_vec() };
        let file = folder.join(file_name);
        fs::write(&file, content).unwrap();
        let items = match kind {
            "pairs" => pairs(&file, Truth::NumberOrText),
            "scores" => scores(&file),
            "passages" => passages(&file),
            _ => questions(&file, Truth::AfterHashes),
        };
        for item in items.iter().flatten() {
            assert!(item.truth.is_none_or(f64::is_finite), "{item:?}");
        }
        outcome(items, file_name)
    })
}

fn gzipped(content: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}
