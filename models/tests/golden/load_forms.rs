//! The same weights in all supported formats give the same results.

use std::fs;
use std::path::Path;

use half::{bf16, f16};
use ntl_core::Prompt;
use ntl_models::inspect::{Depth, inspect};
use ntl_models::{LoadOptions, load};
use ntl_text::checkpoint::{CheckpointFiles, Choices, TokenizerType};
use serde_json::{Value, json};

use crate::corrupted::{Unpacked, WEIGHTS, joined, place, split};
use crate::support::{chain, reference};

/// Returns the logits of a few decoder positions, for all ids.
fn logits(folder: &Path) -> Vec<f32> {
    let mut model = load(&CheckpointFiles::folder(folder).unwrap(), LoadOptions::default()).unwrap().model;
    let opened = model.open(&[(&Prompt::from(vec![100, 200, 300, 1])).into()]).unwrap();
    let rows = chain(opened[0].context, &[0, 5, 17, 250], 0);
    let logits = model.step(&rows).unwrap();
    (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect()
}

/// Copies the files of a fixture to a temporary directory, but only the weights in `files`.
fn copied(from: &Path, files: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let holds_weights = name.contains("safetensors") || name.ends_with(".bin");
        if path.is_file() && (!holds_weights || files.contains(&&*name)) {
            fs::copy(&path, folder.path().join(&name)).unwrap();
        }
    }
    folder
}

#[test]
#[cfg_attr(not(shared_fixtures), ignore = "needs ../shared")]
fn pytorch_model_bin_gives_the_logits_of_model_safetensors() {
    let fixture = Path::new(env!("NTL_SHARED")).join("fixtures/t5-ce");
    let safe = copied(&fixture, &["model.safetensors"]);
    let want = logits(safe.path());
    let pickled = copied(&fixture, &["pytorch_model.bin"]);
    assert_eq!(logits(pickled.path()), want);
    assert!(want.iter().any(|&logit| logit > 1.0));
    let index = fs::read(pickled.path().join("pytorch_model.bin")).unwrap();
    fs::write(pickled.path().join("pytorch_model-00001-of-00001.bin"), index).unwrap();
    fs::remove_file(pickled.path().join("pytorch_model.bin")).unwrap();
    let (table, _) = split(&fs::read(fixture.join(WEIGHTS)).unwrap());
    let names = table.keys().filter(|name| *name != "__metadata__");
    let map: Value = names.map(|name| (name.clone(), json!("pytorch_model-00001-of-00001.bin"))).collect();
    let index = json!({"metadata": {}, "weight_map": map});
    fs::write(pickled.path().join("pytorch_model.bin.index.json"), index.to_string()).unwrap();
    assert_eq!(logits(pickled.path()), want);
}

#[test]
fn shards_give_the_logits_of_one_file() {
    assert_eq!(logits(&reference("t5-v11-saved-by-v5")), logits(&reference("t5-v11")));
}

#[test]
fn half_precision_files_are_widened_exactly() {
    let halved = |dtype: &str, halve: fn(f32) -> [u8; 2], widen: fn([u8; 2]) -> f32| {
        let narrow = Unpacked::new();
        let wide = Unpacked::new();
        let (table, data) = split(&fs::read(narrow.file(WEIGHTS)).unwrap());
        let numbers = data.chunks_exact(4).map(|bytes| halve(f32::from_le_bytes(bytes.try_into().unwrap())));
        let (narrow_data, wide_data): (Vec<_>, Vec<_>) =
            numbers.map(|half| (half, widen(half).to_le_bytes())).unzip();
        let mut narrow_table = table.clone();
        for (_, entry) in narrow_table.iter_mut().filter(|(name, _)| *name != "__metadata__") {
            let (from, to) = place(entry);
            entry["data_offsets"] = json!([from / 2, to / 2]);
            entry["dtype"] = json!(dtype);
        }
        narrow.write(WEIGHTS, joined(&narrow_table, narrow_data.as_flattened()));
        wide.write(WEIGHTS, joined(&table, wide_data.as_flattened()));
        assert_eq!(logits(&narrow.folder), logits(&wide.folder), "{dtype}");
    };
    halved("F16", |value| f16::from_f32(value).to_le_bytes(), |bytes| f16::from_le_bytes(bytes).to_f32());
    halved("BF16", |value| bf16::from_f32(value).to_le_bytes(), |bytes| bf16::from_le_bytes(bytes).to_f32());
}

#[test]
fn a_checkpoint_can_be_inspected_without_its_weights() {
    let checkpoint = Unpacked::new();
    let look = |depth| {
        let files = CheckpointFiles::folder(&checkpoint.folder).unwrap();
        inspect(files, LoadOptions::default(), depth).map_err(|error| error.to_string())
    };
    let found = look(Depth::Tables).unwrap();
    assert_eq!((found.kind.as_str(), found.parameters, found.memory_bytes), ("t5", 620_896, 4 * 620_896));
    assert_eq!(
        (found.sizes.num_layers, found.sizes.d_model, found.sizes.vocab_size),
        (Some(2), Some(96), Some(2101))
    );
    assert_eq!((found.files, found.stored), (vec![WEIGHTS.to_owned()], vec!["f32".to_owned()]));
    let numbers = found.numbers;
    assert_eq!((numbers.count, numbers.range, numbers.multi_digit), (10, Some((0.0, 9.0)), false));
    checkpoint.overwrite("shared.weight", f32::NAN);
    assert!(look(Depth::Tables).is_ok(), "the tables do not show numbers that are not finite");
    assert!(look(Depth::Weights).unwrap_err().contains("tensor `shared.weight`: element 1 is NaN"));
    checkpoint.change_config("d_ff", json!(255));
    assert!(look(Depth::Tables).unwrap_err().contains("[255, 96]"));
}

#[test]
fn a_chosen_tokenizer_type_overrides_the_class_in_the_files() {
    let checkpoint = Unpacked::new();
    let look = |chosen| {
        let options = LoadOptions {
            choices: Choices { tokenizer_type: chosen, ..Choices::default() },
            ..LoadOptions::default()
        };
        let files = CheckpointFiles::folder(&checkpoint.folder).unwrap();
        let found = inspect(files, options, Depth::Tables).unwrap();
        (found.number_encoding, found.numbers.multi_digit)
    };
    assert_eq!(look(None), ("digits".to_owned(), false));
    assert_eq!(look(Some(TokenizerType::Auto)), ("text".to_owned(), true));
    checkpoint.write("ntl.json", r#"{"tokenizer_type": "auto"}"#);
    assert_eq!(look(None), ("text".to_owned(), true));
    assert_eq!(look(Some(TokenizerType::Custom)), ("digits".to_owned(), false));
    fs::write(checkpoint.folder.join("../config.yaml"), "tokenizer_type: auto").unwrap();
    checkpoint.remove("ntl.json");
    assert_eq!(
        look(None),
        ("digits".to_owned(), false),
        "the class is the one that the trainer actually used"
    );
}

#[test]
#[cfg_attr(not(shared_fixtures), ignore = "needs ../shared")]
fn an_inspection_counts_tied_tables_once_and_lists_the_settings() {
    let fixture = Path::new(env!("NTL_SHARED")).join("fixtures/t5-ce");
    let pickled = copied(&fixture, &["pytorch_model.bin"]);
    fs::write(pickled.path().join("ntl.json"), r#"{"tokenizer_type": "auto"}"#).unwrap();
    let files = CheckpointFiles::folder(pickled.path()).unwrap();
    let found = inspect(files, LoadOptions::default(), Depth::Tables).unwrap();
    assert_eq!(found.parameters, 628_096);
    assert!(found.numbers.multi_digit && found.numbers.count > 10);
    let said = &found.assumed[0];
    assert_eq!((said.name.as_str(), said.value.as_str()), ("tokenizer_type", "auto"));
    assert!(said.origin.ends_with("/ntl.json"), "{}", said.origin);
}
