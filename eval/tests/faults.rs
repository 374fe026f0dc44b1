//! A disk that fails at any operation of a run: answers in the journal are never requested again, and the
//! directory holds the result of exactly one run.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use common::{Mock, Scripted, text};
use fail::FailScenario;
use ntl_eval::app;
use ntl_eval::cli::args::Cli;
use ntl_eval::console::{Console, ExitStatus};
use ntl_eval::store::saved::Run;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The failpoint of every operation on a file of a run.
const POINT: &str = "disk";

const ITEMS: usize = 3;

/// Faults of the disk: it fails once, or is full from some operation on.
const FAULTS: [(&str, &str); 2] = [
    ("1*return(5)", "Input/output error (os error 5)"),
    ("return(28)", "No space left on device (os error 28)"),
];

/// An endpoint and a data set. One item fails while `fails` is set.
struct Bench {
    folder: TempDir,
    mock: Mock,
    fails: Arc<AtomicBool>,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lines: String = (0..ITEMS).map(|a| format!("{a} + 1\n{}\n", a + 1)).collect();
        fs::write(folder.path().join("pairs.txt"), lines).unwrap();
        let fails = Arc::new(AtomicBool::new(false));
        let failing = Arc::clone(&fails);
        let mock = Mock::start(&["tiny"], move |prompt, _| match prompt {
            "2 + 1" if failing.load(Ordering::SeqCst) => Scripted(500, vec![], "{}".to_owned()),
            _ => text(prompt),
        });
        Self { folder, mock, fails }
    }

    fn out(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the task, and returns its exit status or error message.
    fn run(&self, out: &Path, more: &[&str]) -> Result<ExitStatus, String> {
        let data = self.out("pairs.txt");
        let mut args = vec!["ntl-eval", "arithmetic", "--split", "interpolate", "--endpoint", &self.mock.url];
        args.extend(["--quiet", "--concurrency", "1", "--data", data.to_str().unwrap()]);
        args.extend(["--out", out.to_str().unwrap()]);
        args.extend(more);
        let mut said = Vec::new();
        let mut complaints = Vec::new();
        let console = &mut Console { out: &mut said, err: &mut complaints, err_is_terminal: false };
        app::run(&Cli::try_parse_from(args).unwrap(), console).map_err(|error| format!("{error:#}"))
    }

    fn asked(&self) -> usize {
        self.mock.bodies().len()
    }
}

/// Report and samples of a finished run, without its times.
fn result(out: &Path) -> (Value, String) {
    let mut report: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    (report["started"], report["seconds"]) = (json!(null), json!(null));
    (report, fs::read_to_string(out.join("samples.jsonl")).unwrap())
}

/// The number of complete answers in the journal. Its first line describes the run.
fn answers(out: &Path) -> usize {
    let journal = fs::read(out.join("journal.jsonl")).unwrap();
    journal.iter().filter(|byte| **byte == b'\n').count().saturating_sub(1)
}

fn assert_names_a_file(error: &str, out: &Path, cause: &str) {
    assert!(error.contains(&out.display().to_string()) && error.ends_with(cause), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_run_continues_after_a_fault_of_any_operation_and_repeats_no_kept_request() {
    let scenario = FailScenario::setup();
    let bench = Bench::new();
    let whole = bench.out("whole");
    assert_eq!(bench.run(&whole, &[]), Ok(ExitStatus::Success));
    for (fault, cause) in FAULTS {
        for operation in 0.. {
            let out = tempfile::tempdir_in(bench.folder.path()).unwrap();
            let before = bench.asked();
            fail::cfg(POINT, &format!("{operation}*off->{fault}")).unwrap();
            let ended = bench.run(out.path(), &[]);
            fail::remove(POINT);
            let asked = bench.asked() - before;
            let kept = answers(out.path());
            match ended {
                Err(error) => assert_names_a_file(&error, out.path(), cause),
                Ok(status) => {
                    assert_eq!(status, ExitStatus::Success);
                    assert_eq!(result(out.path()), result(&whole));
                    assert!(operation > 2 * ITEMS, "a run has {operation} operations");
                    break;
                }
            }
            // Only the answer whose line did not fit is lost.
            assert!(kept == asked || kept + 1 == asked, "{operation}: {kept} of {asked} answers");
            assert_eq!(bench.run(out.path(), &["--resume"]), Ok(ExitStatus::Success), "{operation} {fault}");
            assert_eq!(bench.asked() - before - asked, ITEMS - kept, "{operation} {fault}");
            assert_eq!(result(out.path()), result(&whole), "{operation} {fault}");
        }
    }
    scenario.teardown();
}

#[test]
fn a_fault_while_a_result_is_replaced_leaves_the_old_result_or_none_but_never_parts_of_two() {
    let scenario = FailScenario::setup();
    let bench = Bench::new();
    let whole = bench.out("whole");
    let partial = bench.out("partial");
    assert_eq!(bench.run(&whole, &[]), Ok(ExitStatus::Success));
    bench.fails.store(true, Ordering::SeqCst);
    assert_eq!(bench.run(&partial, &[]), Ok(ExitStatus::ItemsFailed));
    bench.fails.store(false, Ordering::SeqCst);
    let old = result(&partial);
    for (fault, cause) in FAULTS {
        for operation in 0.. {
            let out = tempfile::tempdir_in(bench.folder.path()).unwrap();
            for file in ["journal.jsonl", "report.json", "samples.jsonl"] {
                fs::copy(partial.join(file), out.path().join(file)).unwrap();
            }
            fail::cfg(POINT, &format!("{operation}*off->{fault}")).unwrap();
            let ended = bench.run(out.path(), &["--resume"]);
            fail::remove(POINT);
            let Err(error) = ended else {
                assert_eq!(ended, Ok(ExitStatus::Success));
                assert!(operation > 5, "it has {operation} operations");
                break;
            };
            assert_names_a_file(&error, out.path(), cause);
            if Run::load(out.path()).is_ok() {
                let found = result(out.path());
                assert!(found == old || found == result(&whole), "{operation} {fault}: parts of two results");
            }
            assert_eq!(bench.run(out.path(), &["--resume"]), Ok(ExitStatus::Success));
            assert_eq!(result(out.path()), result(&whole), "{operation} {fault}");
        }
    }
    scenario.teardown();
}
