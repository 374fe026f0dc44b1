//! Checkpoint files that cannot be read to the end: loading fails and names the file, whichever read fails.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device};
use fail::FailScenario;
use ntl_models::Weights;
use ntl_models::{LoadOptions, load};
use ntl_text::checkpoint::{CheckpointFiles, LoadError};

/// The failpoint in every read of a checkpoint file.
const READING: &str = "checkpoint-read";

/// `EIO`, the error of a broken disk or of a network file system that has gone away.
const IO_ERROR: &str = "Input/output error (os error 5)";

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name)
}

/// Loads a checkpoint and computes its fingerprint, as a server does.
fn load_all(folder: &Path) -> Result<(), LoadError> {
    let files = CheckpointFiles::folder(folder)?;
    files.fingerprint()?;
    load(&files, LoadOptions::default()).map(|_| ())
}

fn reads(folder: &Path) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    fail::cfg_callback(READING, move || {
        counting.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    load_all(folder).unwrap();
    fail::remove(READING);
    count.load(Ordering::SeqCst)
}

#[test]
fn a_failed_read_is_never_treated_as_a_missing_file() {
    let scenario = FailScenario::setup();
    for name in ["gpt2", "llama-ntl", "qwen3", "t5-ce", "t5-ntl-was", "t5-rt", "t5-v11"] {
        let folder = tiny(name);
        let reads = reads(&folder);
        assert!(reads > 10, "{name} was loaded with {reads} reads");
        for read in 0..reads {
            fail::cfg(READING, &format!("{read}*off->1*return(5)")).unwrap();
            let Err(error) = load_all(&folder) else {
                panic!("{name} loads although read {read} of {reads} fails")
            };
            let error = format!("{:#}", anyhow::Error::from(error));
            assert!(error.contains(&folder.display().to_string()), "{error}");
            assert!(error.ends_with(IO_ERROR), "{error}");
        }
        fail::remove(READING);
        load_all(&folder).unwrap();
    }
    scenario.teardown();
}

#[test]
fn weights_that_become_shorter_while_they_are_read_are_an_error_of_their_tensors() {
    let scenario = FailScenario::setup();
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(tiny("llama-ntl").join(file), folder.path().join(file)).unwrap();
    }
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    let weights = Weights::open(&files).unwrap();
    let read = |name: &str| {
        let shape = weights.shape(name).unwrap();
        let tensor = weights.tensor(name, shape, DType::F32, &Device::Cpu)?;
        Ok::<_, LoadError>(tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap())
    };
    let names: Vec<&str> = weights.shapes().map(|(name, _)| name).collect();
    let before: Vec<_> = names.iter().map(|name| read(name).unwrap()).collect();
    let file = OpenOptions::new().write(true).open(folder.path().join("model.safetensors")).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    let (mut same, mut refused) = (0, 0);
    for (name, before) in names.iter().zip(&before) {
        match read(name) {
            Ok(after) => {
                assert_eq!(&after, before, "{name}");
                same += 1;
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("model.safetensors") && error.contains(name), "{error}");
                assert!(error.ends_with("cannot be read: failed to fill whole buffer"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(same > 0 && refused > 0, "{same} tensors are the same, {refused} are refused");
    scenario.teardown();
}
