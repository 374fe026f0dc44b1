//! Killed runs, and answers that are never requested twice.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use common::{HANG, Mock, Scripted, additions, command, err, ntl_eval, number, text};
use serde_json::{Value, json};
use tempfile::TempDir;

const ITEMS: usize = 40;

/// Correct for two of three items, off by one for the third.
fn answer(prompt: &str) -> f64 {
    let a: f64 = prompt.split(' ').next().unwrap().parse().unwrap();
    if a % 3.0 < 1.0 { a } else { a + 1.0 }
}

/// A server that answers like this.
fn calculator(model: &'static str) -> Mock {
    Mock::start(&[model], |prompt, _| text(&answer(prompt).to_string()))
}

/// A directory with the file of items, and the path of a run in it.
fn items() -> (TempDir, String, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let out = folder.path().join("out");
    (folder, data, out)
}

fn args<'a>(mock: &'a Mock, data: &'a str, out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["arithmetic", "--split", "interpolate", "--endpoint", &mock.url, "--data", data];
    args.extend(["--quiet", "--concurrency", "3", "--out", out.to_str().unwrap()]);
    args.extend(more);
    args
}

/// A report without its times.
fn report(out: &Path) -> String {
    let text = fs::read_to_string(out.join("report.json")).unwrap();
    let kept = text.lines().filter(|line| !line.contains("\"started\"") && !line.contains("\"seconds\""));
    kept.collect::<Vec<_>>().join("\n")
}

/// A server that stops answering after 20 requests and sends a message for each later one, until the flag is
/// set.
fn stalling() -> (Mock, mpsc::Receiver<()>, Arc<AtomicBool>) {
    let (sender, stalled) = mpsc::channel();
    let well = Arc::new(AtomicBool::new(false));
    let state = Mutex::new((0, sender));
    let mended = Arc::clone(&well);
    let mock = Mock::start(&["tiny"], move |prompt, _| {
        let mut state = state.lock().unwrap();
        state.0 += 1;
        if state.0 > 20 && !mended.load(Ordering::SeqCst) {
            state.1.send(()).unwrap();
            return Scripted(HANG, vec![], String::new());
        }
        let value = answer(prompt);
        number(value + 0.1, value, value)
    });
    (mock, stalled, well)
}

#[test]
fn a_killed_run_continues_and_ends_with_a_byte_identical_report() {
    let (folder, data, out) = items();
    let (mock, stalled, well) = stalling();
    let regress = ["--mode", "regress"];
    let mut child = command(&args(&mock, &data, &out, &regress)).spawn().unwrap();
    // Waits for all requests in flight, so that none arrives later and is counted for the next run.
    (0..3).for_each(|_| stalled.recv().unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!out.join("report.json").exists());
    // Simulates a power failure in the middle of a line.
    let journal = out.join("journal.jsonl");
    let mut bytes = fs::read(&journal).unwrap();
    let kept = bytes.iter().filter(|byte| **byte == b'\n').count() - 1;
    bytes.extend(b"{\"id\":\"answer 7\",\"ke");
    fs::write(&journal, bytes).unwrap();
    well.store(true, Ordering::SeqCst);
    let before = mock.bodies().len();
    let resumed = ntl_eval(&args(&mock, &data, &out, &[&regress[..], &["--resume"]].concat()));
    assert_eq!(resumed.status.code(), Some(0), "{}", err(&resumed));
    assert_eq!(mock.bodies().len() - before, ITEMS - kept);
    let whole = folder.path().join("whole");
    let run = ntl_eval(&args(&mock, &data, &whole, &regress));
    assert_eq!(run.status.code(), Some(0), "{}", err(&run));
    assert_eq!(report(&out), report(&whole));
    let samples = |out: &Path| fs::read(out.join("samples.jsonl")).unwrap();
    assert_eq!(samples(&out), samples(&whole));
    // A complete run sends no requests.
    let before = mock.bodies().len();
    let again = ntl_eval(&args(&mock, &data, &out, &[&regress[..], &["--resume"]].concat()));
    assert_eq!((again.status.code(), mock.bodies().len() - before), (Some(0), 0));
    assert_eq!(report(&out), report(&whole));
}

#[test]
fn an_unfinished_run_is_neither_overwritten_nor_mixed_with_another() {
    let (_folder, data, out) = items();
    let mock = calculator("tiny");
    ntl_eval(&args(&mock, &data, &out, &["--limit", "4"]));
    let other = ntl_eval(&args(&mock, &data, &out, &["--limit", "9", "--resume"]));
    assert_eq!(other.status.code(), Some(1));
    let message = err(&other);
    assert!(message.contains("other settings: ") && message.contains("limit was 4, is 9"), "{message}");
    fs::remove_file(out.join("report.json")).unwrap();
    let fresh = ntl_eval(&args(&mock, &data, &out, &["--limit", "4"]));
    assert_eq!(fresh.status.code(), Some(1));
    assert!(err(&fresh).contains("did not end: continue with --resume"), "{}", err(&fresh));
}

#[test]
fn a_run_is_not_continued_with_another_checkpoint_of_the_same_name() {
    let (_folder, data, out) = items();
    let run =
        |mock: &Mock, more: &[&str]| ntl_eval(&args(mock, &data, &out, &[&["--limit", "4"], more].concat()));
    let first = calculator("tiny#0a");
    let other = calculator("tiny#0b");
    let foreign = calculator("tiny#");
    assert_eq!(run(&first, &[]).status.code(), Some(0));
    let before = files(&out);
    let refused = run(&other, &["--resume"]);
    assert_eq!(refused.status.code(), Some(1));
    let message = err(&refused);
    assert!(
        message.contains(
            "answers of another checkpoint: the server's `tiny` had the fingerprint 0a, now it has 0b"
        ),
        "{message}"
    );
    assert_eq!((files(&out), other.bodies().len()), (before, 0));
    // Servers that report no fingerprint are not checked.
    for same in [&first, &foreign] {
        assert_eq!(run(same, &["--resume"]).status.code(), Some(0));
    }
    assert_eq!(run(&foreign, &["--overwrite"]).status.code(), Some(0));
    assert_eq!(run(&other, &["--resume"]).status.code(), Some(0));
}

#[test]
fn a_run_is_not_continued_with_weights_of_another_type() {
    let (_folder, data, out) = items();
    let run =
        |mock: &Mock, more: &[&str]| ntl_eval(&args(mock, &data, &out, &[&["--limit", "4"], more].concat()));
    let first = calculator("tiny@f32");
    let other = calculator("tiny@int8");
    let unknown = calculator("tiny");
    assert_eq!(run(&first, &[]).status.code(), Some(0));
    assert!(report(&out).contains("\"model_dtype\": \"f32\""));
    let refused = run(&other, &["--resume"]);
    assert_eq!((refused.status.code(), other.bodies().len()), (Some(1), 0));
    let message = err(&refused);
    assert!(message.contains("other settings: model_dtype was \"f32\", is \"int8\""), "{message}");
    // Servers that do not report the type are not checked.
    assert_eq!(run(&unknown, &["--resume"]).status.code(), Some(0));
}

/// Names and contents of all files of a run.
fn files(out: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(out)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn a_finished_run_survives_a_rejected_resume_and_a_second_run() {
    let (folder, data, out) = items();
    let mock = calculator("tiny");
    let first = ntl_eval(&args(&mock, &data, &out, &["--limit", "4"]));
    assert_eq!(first.status.code(), Some(0), "{}", err(&first));
    assert_eq!(ntl_eval(&["report", out.to_str().unwrap()]).status.code(), Some(0));
    let before = files(&out);
    let names: Vec<&str> = before.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["journal.jsonl", "report.html", "report.json", "report.md", "samples.jsonl"]);
    let asked = mock.bodies().len();
    // A crash left half a line.
    let journal = out.join("journal.jsonl");
    let whole = fs::read(&journal).unwrap();
    fs::write(&journal, [&whole[..], b"{\"id\":\"answer 3\",\"ke"].concat()).unwrap();
    let torn = files(&out);
    let other = ntl_eval(&args(&mock, &data, &out, &["--limit", "9", "--resume"]));
    assert_eq!(other.status.code(), Some(1));
    assert!(err(&other).contains("limit was 4, is 9"), "{}", err(&other));
    assert!(files(&out) == torn, "a rejected --resume changed files");
    fs::write(&journal, whole).unwrap();
    let second = ntl_eval(&args(&mock, &data, &out, &["--limit", "9"]));
    assert_eq!(second.status.code(), Some(1));
    let message = format!("{} holds a finished run: replace it with --overwrite", out.display());
    assert!(err(&second).contains(&message), "{}", err(&second));
    assert!(files(&out) == before, "a second run changed files");
    assert_eq!(mock.bodies().len(), asked);
    // A report whose journal is lost can neither be continued nor replaced.
    fs::rename(out.join("journal.jsonl"), folder.path().join("journal")).unwrap();
    let resumed = ntl_eval(&args(&mock, &data, &out, &["--limit", "4", "--resume"]));
    assert!(err(&resumed).contains("holds a finished run without its journal.jsonl"), "{}", err(&resumed));
    fs::rename(folder.path().join("journal"), out.join("journal.jsonl")).unwrap();
    assert!(files(&out) == before, "a --resume without a journal changed files");
}

#[test]
fn overwriting_replaces_the_run_and_removes_the_pages_of_the_old_one() {
    let (_folder, data, out) = items();
    let mock = calculator("tiny");
    ntl_eval(&args(&mock, &data, &out, &["--limit", "4"]));
    assert_eq!(ntl_eval(&["report", out.to_str().unwrap()]).status.code(), Some(0));
    let output = ntl_eval(&args(&mock, &data, &out, &["--limit", "9", "--overwrite"]));
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let names: Vec<String> = files(&out).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["journal.jsonl", "report.json", "samples.jsonl"]);
    assert!(report(&out).contains("\"n\": 9"), "{}", report(&out));
    let both = ntl_eval(&args(&mock, &data, &out, &["--overwrite", "--resume"]));
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn failed_items_are_requested_again_when_a_run_continues() {
    let (_folder, data, out) = items();
    let mock = Mock::start(&["tiny"], |prompt, before| match (prompt, before) {
        ("3 + 1", 0) => Scripted(400, vec![], "{}".to_owned()),
        _ => text(&answer(prompt).to_string()),
    });
    assert_eq!(ntl_eval(&args(&mock, &data, &out, &[])).status.code(), Some(4));
    let before = mock.bodies().len();
    let resumed = ntl_eval(&args(&mock, &data, &out, &["--resume"]));
    assert_eq!((resumed.status.code(), mock.bodies().len() - before), (Some(0), 1), "{}", err(&resumed));
}

#[test]
fn a_cache_serves_equal_requests_of_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pairs.txt");
    fs::write(&file, "0 + 1\n1\n1 + 1\n2\n0 + 1\n1\nbad\n1\nbad\n1\n").unwrap();
    let out = folder.path().join("out");
    let cache = folder.path().join("cache");
    let mock = Mock::start(&["tiny"], |prompt, _| match prompt {
        "bad" => Scripted(400, vec![], "{}".to_owned()),
        _ => text(&answer(prompt).to_string()),
    });
    let flags = ["--cache", cache.to_str().unwrap(), "--overwrite"];
    for (asked, known) in [(3, 0), (1, 2)] {
        let before = mock.bodies().len();
        let output = ntl_eval(&args(&mock, file.to_str().unwrap(), &out, &flags));
        assert_eq!(output.status.code(), Some(4), "{}", err(&output));
        assert_eq!(mock.bodies().len() - before, asked, "{known} known answers");
        let report: Value =
            serde_json::from_str(&fs::read_to_string(out.join("report.json")).unwrap()).unwrap();
        assert_eq!((&report["n"], &report["failed"], &report["n_valid"]), (&json!(5), &json!(2), &json!(3)));
    }
    // The journal has an answer for each item, so that a run without the cache can continue.
    assert_eq!(fs::read_to_string(out.join("journal.jsonl")).unwrap().lines().count(), 1 + 3);
    let cached = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(cached).unwrap().lines().count(), 1 + 2);
}

#[test]
fn a_cache_only_answers_for_the_same_model_and_request() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let cache = folder.path().join("cache");
    let mock = Mock::start(&["tiny", "large"], |prompt, _| text(&answer(prompt).to_string()));
    let asked = |more: &[&str]| {
        let before = mock.bodies().len();
        let out = folder.path().join("out");
        let cache = ["--cache", cache.to_str().unwrap(), "--limit", "6", "--json", "--overwrite"];
        let output = ntl_eval(&args(&mock, &data, &out, &[&cache, more].concat()));
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["started"] = json!(null);
        report["seconds"] = json!(null);
        (mock.bodies().len() - before, report)
    };
    let (first, report) = asked(&["--model", "tiny"]);
    assert_eq!((first, asked(&["--model", "tiny"])), (6, (0, report)));
    assert_eq!(asked(&["--model", "large"]).0, 6);
    assert_eq!(asked(&["--model", "tiny", "--max-tokens", "5"]).0, 6);
}

#[test]
fn two_concurrent_runs_in_one_directory_are_rejected() {
    let (_folder, data, out) = items();
    let (mock, stalled, _) = stalling();
    let mut child = command(&args(&mock, &data, &out, &[])).spawn().unwrap();
    (0..3).for_each(|_| stalled.recv().unwrap());
    let before = files(&out);
    for more in [&[][..], &["--resume"], &["--overwrite"]] {
        let second = ntl_eval(&args(&mock, &data, &out, more));
        assert_eq!(second.status.code(), Some(1));
        assert!(err(&second).contains("another run is writing "), "{more:?}: {}", err(&second));
    }
    assert!(files(&out) == before, "a rejected run changed files");
    child.kill().unwrap();
    child.wait().unwrap();
    // A killed run holds no lock.
    let resumed = ntl_eval(&args(&mock, &data, &out, &["--limit", "2", "--resume"]));
    assert!(err(&resumed).contains("limit was null, is 2"), "{}", err(&resumed));
}

#[cfg(unix)]
#[test]
fn ctrl_c_explains_how_to_continue() {
    let (_folder, data, out) = items();
    let (mock, stalled, _) = stalling();
    let mut command = command(&args(&mock, &data, &out, &[]));
    let child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    (0..3).for_each(|_| stalled.recv().unwrap());
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", err(&output));
    let message = format!(
        "error: interrupted; the answers so far are in {}: continue with the same command and --resume\n",
        out.display()
    );
    assert_eq!(err(&output), message);
}

/// Limits files to `blocks` of 512 bytes, as if the disk were full then.
#[cfg(unix)]
fn with_little_room(blocks: usize, args: &[&str]) -> Output {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
    let program = ["-c", &script, "sh", env!("CARGO_BIN_EXE_ntl-eval")];
    Command::new("sh").args(program).args(args).output().unwrap()
}

#[cfg(unix)]
#[test]
fn a_full_disk_loses_no_answer() {
    let (folder, data, out) = items();
    let mock = calculator("tiny");
    // There is room for the journal of four answers, but not for the report.
    let four = ["--limit", "4"];
    let full = with_little_room(4, &args(&mock, &data, &out, &four));
    assert_eq!(full.status.code(), Some(1), "{}", err(&full));
    assert!(err(&full).contains("could not write ") && err(&full).contains(".tmp: "), "{}", err(&full));
    let names: Vec<String> = files(&out).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["journal.jsonl"]);
    let before = mock.bodies().len();
    let resumed = ntl_eval(&args(&mock, &data, &out, &[&four[..], &["--resume"]].concat()));
    assert_eq!((resumed.status.code(), mock.bodies().len() - before), (Some(0), 0), "{}", err(&resumed));
    // There is no room for the journal either. The run ends, and the lines that fitted are kept.
    let other = folder.path().join("other");
    let full = with_little_room(4, &args(&mock, &data, &other, &[]));
    assert_eq!(full.status.code(), Some(1), "{}", err(&full));
    assert!(
        err(&full).contains("could not use ") && err(&full).contains("journal.jsonl: "),
        "{}",
        err(&full)
    );
    let before = mock.bodies().len();
    let resumed = ntl_eval(&args(&mock, &data, &other, &["--resume"]));
    assert_eq!(resumed.status.code(), Some(0), "{}", err(&resumed));
    assert!((1..ITEMS).contains(&(mock.bodies().len() - before)));
}

#[cfg(unix)]
#[test]
fn an_unwritable_directory_is_named_before_any_request() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let mock = calculator("tiny");
    // The system's own directory is read-only for everyone.
    let run = ntl_eval(&args(&mock, &data, Path::new("/proc/1/results"), &[]));
    assert_eq!(run.status.code(), Some(1));
    let message = err(&run);
    assert!(message.contains("could not ") && message.contains("/proc/1/results"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert_eq!(mock.bodies().len(), 0);
}

#[test]
fn a_run_with_an_unreadable_report_is_not_finished() {
    let (_folder, data, out) = items();
    let mock = calculator("tiny");
    let run = |more: &[&str]| ntl_eval(&args(&mock, &data, &out, &[&["--limit", "4"], more].concat()));
    assert_eq!(run(&[]).status.code(), Some(0));
    fs::write(out.join("report.json"), "").unwrap();
    let again = run(&[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(err(&again).contains("did not end: continue with --resume"), "{}", err(&again));
    let before = mock.bodies().len();
    assert_eq!((run(&["--resume"]).status.code(), mock.bodies().len() - before), (Some(0), 0));
    fs::write(out.join("report.json"), "{").unwrap();
    fs::remove_file(out.join("journal.jsonl")).unwrap();
    let again = run(&["--resume"]);
    assert!(err(&again).contains("holds a report.json that cannot be read"), "{}", err(&again));
    assert!(!out.join("journal.jsonl").exists());
}

#[test]
fn a_changed_byte_in_the_journal_is_detected() {
    let (_folder, data, out) = items();
    let mock = calculator("tiny");
    let run = |more: &[&str]| ntl_eval(&args(&mock, &data, &out, &[&["--limit", "4"], more].concat()));
    assert_eq!(run(&[]).status.code(), Some(0));
    let journal = out.join("journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    let at = text.lines().position(|line| line.contains("\"text\":\"2\"")).unwrap();
    fs::write(&journal, text.replace("\"text\":\"2\"", "\"text\":\"3\"")).unwrap();
    let resumed = run(&["--resume"]);
    assert_eq!(resumed.status.code(), Some(1));
    let message = format!("{} line {} is damaged: remove this line", journal.display(), at + 1);
    assert!(err(&resumed).contains(&message), "{}", err(&resumed));
    let kept = text.lines().enumerate().filter(|(index, _)| *index != at).map(|(_, line)| line);
    fs::write(&journal, kept.collect::<Vec<_>>().join("\n") + "\n").unwrap();
    let before = mock.bodies().len();
    assert_eq!((run(&["--resume"]).status.code(), mock.bodies().len() - before), (Some(0), 1));
}
