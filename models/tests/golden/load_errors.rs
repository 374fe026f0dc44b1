//! Checkpoints that cannot be served: one line that names the file, and the tensor or field where there is one.

use std::fs;
use std::path::Path;

use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::{LoadOptions, load};
use serde_json::{Value, json};

/// Unpacks the demo checkpoint, spoils it, and returns why it does not load.
fn reason(spoil: impl Fn(&Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/demo/t5-ntl-was.tar.gz");
    let archive = flate2::read::GzDecoder::new(fs::File::open(archive).unwrap());
    tar::Archive::new(archive).unpack(folder.path()).unwrap();
    spoil(folder.path());
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    let Err(error) = load(&files, LoadOptions::default()) else { panic!("the spoilt checkpoint loads") };
    error.to_string().replace(&folder.path().display().to_string(), "DIR")
}

fn change_config(folder: &Path, field: &str, value: Value) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    fs::write(path, config.to_string()).unwrap();
}

/// Gives a tensor another name of the same length.
fn rename_tensor(folder: &Path, from: &[u8], to: &[u8]) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + from.len()].copy_from_slice(to);
    fs::write(path, bytes).unwrap();
}

fn cut(folder: &Path, file: &str, keep: usize) {
    let path = folder.join(file);
    let bytes = fs::read(&path).unwrap();
    fs::write(path, &bytes[..keep.min(bytes.len())]).unwrap();
}

#[test]
fn a_spoilt_checkpoint_is_refused_with_one_line_that_says_where() {
    type Spoil = fn(&Path);
    let spoilt: [(Spoil, &[&str]); 12] = [
        (|dir| fs::remove_file(dir.join("config.json")).unwrap(), &["DIR has no config.json"]),
        (|dir| fs::write(dir.join("config.json"), "{").unwrap(), &["DIR/config.json", "not usable"]),
        (|dir| change_config(dir, "architectures", json!([])), &["config.json", "`architectures`"]),
        (
            |dir| change_config(dir, "architectures", json!(["BertModel"])),
            &["config.json", "`BertModel` is not served", "T5ForConditionalGeneration"],
        ),
        (
            |dir| change_config(dir, "vocab_size", json!(2000)),
            &["config.json", "`vocab_size`", "2100 tokens"],
        ),
        (|dir| change_config(dir, "d_ff", json!(255)), &["model.safetensors", "DenseReluDense", "[255, 96]"]),
        (|dir| fs::remove_file(dir.join("model.safetensors")).unwrap(), &["DIR has no model.safetensors"]),
        (|dir| cut(dir, "model.safetensors", 100_000), &["DIR/model.safetensors", "not usable"]),
        (|dir| cut(dir, "model.safetensors", 0), &["DIR/model.safetensors", "not usable"]),
        (
            |dir| fs::write(dir.join("model.safetensors"), (1u64 << 60).to_le_bytes()).unwrap(),
            &["DIR/model.safetensors", "not usable"],
        ),
        (
            |dir| rename_tensor(dir, b"decoder.final_layer_norm.weight", b"decoder.final_layer_norm.height"),
            &["model.safetensors", "tensor `decoder.final_layer_norm.weight` is missing"],
        ),
        (
            |dir| fs::remove_file(dir.join("spiece.model")).unwrap(),
            &["DIR has no ", "tokenizer.json", "spiece.model"],
        ),
    ];
    for (index, (spoil, wanted)) in spoilt.into_iter().enumerate() {
        let reason = reason(spoil);
        println!("{reason}");
        for part in wanted {
            assert!(reason.contains(part), "case {index}: {reason:?} does not say {part:?}");
        }
        assert!(!reason.contains('\n'), "case {index}: {reason:?}");
    }
}
