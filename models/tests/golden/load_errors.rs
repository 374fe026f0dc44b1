//! Checkpoints that cannot be loaded, by mistake or malice: the error is one line that names the file and, if
//! there is one, the tensor or field.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::corrupted::{Unpacked, WEIGHTS, split};

/// Maximum time of a rejection, even on the slowest machine: no work is done for a file's claims.
const QUICK: Duration = Duration::from_secs(20);

type Case<'a> = (&'a dyn Fn(&Unpacked), &'a [&'a str]);

/// Corrupts a checkpoint in each of these ways, and checks that the one-line error contains all parts.
#[track_caller]
fn refused(cases: &[Case<'_>]) {
    for (index, (spoil, wanted)) in cases.iter().enumerate() {
        let checkpoint = Unpacked::new();
        spoil(&checkpoint);
        let started = Instant::now();
        let reason = checkpoint.reason();
        println!("{reason}");
        assert!(started.elapsed() < QUICK, "case {index}: {:?}", started.elapsed());
        for part in *wanted {
            assert!(reason.contains(part), "case {index}: {reason:?} does not contain {part:?}");
        }
        assert!(!reason.contains('\n') && reason.len() < 1100, "case {index}: {reason:?}");
    }
}

const EMBEDDINGS: &str = "shared.weight";
const NORM: &str = "decoder.final_layer_norm.weight";

#[test]
fn a_damaged_directory_is_rejected() {
    refused(&[
        (&|dir| dir.remove("config.json"), &["DIR has no config.json"]),
        (&|dir| dir.write("config.json", "{"), &["DIR/config.json", "not usable"]),
        (&|dir| dir.change_config("architectures", json!([])), &["config.json", "`architectures`"]),
        (
            &|dir| dir.change_config("architectures", json!(["BertModel"])),
            &["config.json", "`BertModel` is not served", "T5ForConditionalGeneration", "GPT2LMHeadModel"],
        ),
        (
            &|dir| dir.change_config("vocab_size", json!(2000)),
            &["config.json", "`vocab_size`", "2100 tokens"],
        ),
        (&|dir| dir.change_config("d_ff", json!(255)), &[WEIGHTS, "DenseReluDense", "[255, 96]"]),
        (&|dir| dir.remove("spiece.model"), &["DIR has no ", "tokenizer.json", "spiece.model"]),
        (&|dir| dir.cut("spiece.model", 9000), &["DIR/spiece.model"]),
        (&|dir| dir.remove(WEIGHTS), &["DIR has no model.safetensors", "pytorch_model.bin"]),
        (&|dir| dir.cut(WEIGHTS, 100_000), &["DIR/model.safetensors", "beyond the file"]),
        (&|dir| dir.cut(WEIGHTS, 1000), &["DIR/model.safetensors is not usable", "claims a table of"]),
        (&|dir| dir.cut(WEIGHTS, 0), &["DIR/model.safetensors is not usable", "cut off"]),
    ]);
}

#[test]
fn oversized_or_deeply_nested_metadata_files_are_rejected_or_harmless() {
    let gigabyte = |dir: &Unpacked, name: &str| {
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(dir.file(name))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
    };
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let nested = |field: &str| format!(r#"{{"{field}": {}}}"#, deep(100_000));
    refused(&[
        (&|dir| gigabyte(dir, "config.json"), &["DIR/config.json has 1073741824 bytes", "the limit is"]),
        (&|dir| gigabyte(dir, "tokenizer_config.json"), &["DIR/tokenizer_config.json has 1073741824 bytes"]),
        (&|dir| gigabyte(dir, "spiece.model"), &["DIR/spiece.model has 1073741824 bytes"]),
        (&|dir| dir.write("config.json", nested("architectures")), &["DIR/config.json is not usable"]),
        (&|dir| dir.write("config.json", deep(100_000)), &["DIR/config.json is not usable"]),
        (
            &|dir| dir.write("tokenizer_config.json", nested("a")),
            &["DIR/tokenizer_config.json is not usable"],
        ),
        (
            &|dir| dir.change_config("relative_attention_max_distance", json!(1 << 24)),
            &["`relative_attention_max"],
        ),
    ]);
    let checkpoint = Unpacked::new();
    let config = fs::read_to_string(checkpoint.file("config.json")).unwrap();
    let config = config.replacen('{', &format!(r#"{{"unread": {},"#, deep(100_000)), 1);
    checkpoint.write("config.json", config);
    assert!(checkpoint.load().is_ok(), "that field is never read");
}

#[test]
fn incorrect_headers_of_weights_are_rejected_with_the_tensor_s_name() {
    let header = |length: u64, rest: &'static str| {
        move |dir: &Unpacked| dir.write(WEIGHTS, [&length.to_le_bytes(), rest.as_bytes()].concat())
    };
    let field = |tensor: &'static str, field: &'static str, value: Value| {
        move |dir: &Unpacked| dir.change_weights(|table, _| table[tensor][field] = value.clone())
    };
    let offset = |by: i64| {
        move |dir: &Unpacked| {
            dir.change_weights(|table, _| {
                let entry = table.get_mut(NORM).unwrap();
                let [from, to] = [0, 1].map(|index| entry["data_offsets"][index].as_i64().unwrap());
                entry["data_offsets"] = json!([from + by, to + by]);
            });
        }
    };
    refused(&[
        (&header(1 << 60, ""), &["DIR/model.safetensors is not usable", "1152921504606846976"]),
        (
            &header(9, "not JSON!"),
            &["DIR/model.safetensors is not usable", "not JSON that describes tensors"],
        ),
        (&header(2, "{}and more"), &["DIR/model.safetensors is not usable", "belong to no tensor"]),
        (&offset(-4), &[WEIGHTS, "tensor `", "overlaps tensor `"]),
        (&offset(1 << 40), &[WEIGHTS, "tensor `decoder.final_layer_norm.weight`", "beyond the file"]),
        (
            &field(EMBEDDINGS, "shape", json!([1u64 << 40, 1u64 << 40])),
            &[WEIGHTS, "tensor `shared.weight`", "multiplies beyond"],
        ),
        (&field(NORM, "dtype", json!("I32")), &[WEIGHTS, "tensor `decoder.final_layer_norm.weight`", "I32"]),
        (
            &field(NORM, "dtype", json!("F16")),
            &[WEIGHTS, "tensor `decoder.final_layer_norm.weight`", "hold no F16"],
        ),
        (&field(NORM, "shape", json!([8, 12])), &[WEIGHTS, "[8, 12] instead of [96]"]),
        (
            &|dir| {
                dir.change_weights(|table, _| {
                    let entry = table.remove(NORM).unwrap();
                    table.insert("another\nname".to_owned(), entry);
                });
            },
            &["model.safetensors: tensor `decoder.final_layer_norm.weight` is missing"],
        ),
    ]);
}

#[test]
fn nonfinite_weights_are_rejected_with_the_tensor_s_name() {
    refused(&[
        (
            &|dir| dir.overwrite(EMBEDDINGS, f32::NAN),
            &[WEIGHTS, "tensor `shared.weight`", "element 1 is NaN"],
        ),
        (
            &|dir| dir.overwrite(NORM, f32::NEG_INFINITY),
            &[WEIGHTS, "tensor `decoder.final_layer_norm.weight`", "element 1 is -inf"],
        ),
    ]);
}

#[test]
fn links_may_not_leave_the_directory() {
    let out = |dir: &Unpacked, name: &str| {
        let elsewhere = dir.folder.parent().unwrap().join("elsewhere");
        fs::rename(dir.file(name), &elsewhere).unwrap();
        symlink(&elsewhere, dir.file(name)).unwrap();
    };
    refused(&[
        (
            &|dir| out(dir, WEIGHTS),
            &[
                "DIR/model.safetensors is a link to OUT/elsewhere",
                "outside of the checkpoint; give the folder with",
                "cp -rL",
            ],
        ),
        (&|dir| out(dir, "config.json"), &["DIR/config.json is a link to OUT/elsewhere"]),
        (&|dir| out(dir, "spiece.model"), &["DIR/spiece.model is a link to OUT/elsewhere"]),
        (
            &|dir| {
                dir.remove(WEIGHTS);
                symlink("/dev/zero", dir.file(WEIGHTS)).unwrap();
            },
            &["DIR has no model.safetensors"],
        ),
    ]);
    let inside = Unpacked::new();
    fs::rename(inside.file(WEIGHTS), inside.file("weights")).unwrap();
    symlink("weights", inside.file(WEIGHTS)).unwrap();
    assert!(inside.load().is_ok());
}

#[test]
fn the_hub_s_cache_can_be_loaded_although_its_files_are_links() {
    let mut checkpoint = Unpacked::new();
    let model = checkpoint.folder.parent().unwrap().join("models--ntl--demo");
    let snapshot = model.join("snapshots/0123abcd");
    let blobs = model.join("blobs");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    for (number, file) in fs::read_dir(&checkpoint.folder).unwrap().enumerate() {
        let file = file.unwrap();
        fs::rename(file.path(), blobs.join(number.to_string())).unwrap();
        symlink(format!("../../blobs/{number}"), snapshot.join(file.file_name())).unwrap();
    }
    checkpoint.folder = snapshot;
    assert!(checkpoint.load().is_ok());
}

#[test]
fn an_incorrect_index_is_rejected_with_the_names_of_file_and_tensor() {
    /// Writes two files with half of the tensors each, and an index of them that `change` corrupts.
    fn sharded(dir: &Unpacked, change: impl Fn(&mut Value)) {
        let weights = fs::read(dir.file(WEIGHTS)).unwrap();
        let names: Vec<String> = split(&weights).0.into_iter().map(|(name, _)| name).collect();
        fs::rename(dir.file(WEIGHTS), dir.file("model-1.safetensors")).unwrap();
        let mut index = json!({"metadata": {}, "weight_map": {}});
        for name in names.iter().filter(|name| *name != "__metadata__") {
            index["weight_map"][name] = json!("model-1.safetensors");
        }
        change(&mut index);
        dir.write("model.safetensors.index.json", index.to_string());
    }
    let tensor_in = |tensor: &'static str, file: &'static str| {
        move |dir: &Unpacked| sharded(dir, |index| index["weight_map"][tensor] = json!(file))
    };
    refused(&[
        (
            &tensor_in(NORM, "model-2.safetensors"),
            &[
                "DIR/model.safetensors.index.json: tensor `decoder.final_layer_norm.weight`",
                "`model-2.safetensors` is missing",
            ],
        ),
        (
            &tensor_in("absent.weight", "model-1.safetensors"),
            &["DIR/model-1.safetensors: tensor `absent.weight`", "missing, but the index says"],
        ),
        (
            &tensor_in(NORM, "../model-1.safetensors"),
            &["index.json: tensor `decoder.final", "not a file name"],
        ),
        (&tensor_in(NORM, "/etc/passwd"), &["index.json: tensor `decoder.final", "not a file name"]),
        (&tensor_in(NORM, ".."), &["index.json: tensor `decoder.final", "not a file name"]),
        (&tensor_in(NORM, "config.json"), &["DIR/config.json is not usable"]),
        (
            &|dir| sharded(dir, |index| *index = json!({})),
            &["DIR/model.safetensors.index.json", "weight_map"],
        ),
        (
            &|dir| sharded(dir, |index| index["weight_map"] = json!({})),
            &["DIR/model.safetensors.index.json: tensor `shared.weight` is missing"],
        ),
    ]);
    let honest = Unpacked::new();
    sharded(&honest, |_| {});
    assert!(honest.load().is_ok());
}

#[test]
fn a_pickle_with_a_payload_is_rejected_with_the_name_of_its_function() {
    /// Returns a stored zip archive with one entry.
    fn archive(name: &str, bytes: &[u8]) -> Vec<u8> {
        let size = (bytes.len() as u32).to_le_bytes();
        let common =
            [&[0; 10][..], &[0; 4], &size, &size, &(name.len() as u16).to_le_bytes(), &[0; 2]].concat();
        let file = [&b"PK\x03\x04"[..], &common, name.as_bytes(), bytes].concat();
        let list = [&b"PK\x01\x02\0\0"[..], &common, &[0; 14], name.as_bytes()].concat();
        let at = (file.len() as u32).to_le_bytes();
        let len = (list.len() as u32).to_le_bytes();
        [&file, &list, &b"PK\x05\x06\0\0\0\0\x01\0\x01\0"[..], &len, &at, &[0, 0]].concat()
    }
    let pickled = |pickle: &'static [u8]| {
        move |dir: &Unpacked| {
            dir.remove(WEIGHTS);
            dir.write("pytorch_model.bin", archive("pytorch_model/data.pkl", pickle));
        }
    };
    refused(&[
        (
            &pickled(b"\x80\x02cos\nsystem\nX\x0b\0\0\0touch owned\x85R."),
            &["DIR/pytorch_model.bin is not usable", "it refers to `os.system`, which no tensor needs"],
        ),
        (
            &pickled(b"\x80\x02}X\x01\0\0\0wcbuiltins\nexec\nX\0\0\0\0\x85Rs."),
            &["DIR/pytorch_model.bin", "`builtins.exec`"],
        ),
        (
            &pickled(b"\x80\x02}X\x01\0\0\0wK\x03s."),
            &["DIR/pytorch_model.bin: tensor `w`: it is not a tensor"],
        ),
        (&pickled(b"\x80\x02}."), &["DIR/pytorch_model.bin: tensor `shared.weight` is missing"]),
        (
            &|dir| {
                dir.remove(WEIGHTS);
                dir.write("pytorch_model.bin", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.");
            },
            &["DIR/pytorch_model.bin is not usable", "before version 1.6"],
        ),
        (
            &|dir| {
                dir.remove(WEIGHTS);
                dir.write("pytorch_model.bin", &archive("pytorch_model/data.pkl", b"\x80\x02}.")[..60]);
            },
            &["DIR/pytorch_model.bin is not usable", "cut off"],
        ),
    ]);
    let beside = Unpacked::new();
    beside.write("pytorch_model.bin", archive("m/data.pkl", b"\x80\x02cos\nsystem\n."));
    assert!(beside.load().is_ok(), "it is not read if there is a model.safetensors");
}
