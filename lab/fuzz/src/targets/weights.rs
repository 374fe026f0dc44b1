//! Weight files: safetensors, and PyTorch's zip archives with a pickle.

use std::io::{Cursor, Write};

use candle_core::{DType, Device};
use ntl_models::Weights;
use ntl_text::checkpoint::{CheckpointFiles, LoadError};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::corpus::tiny;
use crate::{Outcome, Target};

pub(super) const SAFETENSORS: Target = Target {
    name: "safetensors",
    corpus: || {
        let mut corpus = tiny(&["llama-ntl", "t5-ntl-was"], "model.safetensors");
        corpus.push(br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"c":{"dtype":"I64","shape":[],"data_offsets":[22,30]}}"#.to_vec());
        corpus
    },
    words: &[
        "__metadata__",
        "dtype",
        "shape",
        "data_offsets",
        "F64",
        "F32",
        "F16",
        "BF16",
        "F8_E4M3",
        "I64",
        "U8",
        "BOOL",
        "F4",
        "[0,0]",
        "lm_head.weight",
    ],
    read: |input| read("model.safetensors", safetensors(input)),
};

pub(super) const TORCH: Target = Target {
    name: "torch",
    corpus: || {
        let pickle = PICKLE.to_vec();
        // The same dictionary in another one, without its header and its end.
        let inner = &PICKLE[2..PICKLE.len() - 1];
        let nested = [&b"\x80\x02}X\x0b\0\0\0"[..], STATE_KEY.as_bytes(), inner, b"s."].concat();
        vec![archive(&pickle), pickle, nested, b"\x80\x02}q\x00.".to_vec()]
    },
    words: &[
        "torch._utils\n_rebuild_tensor_v2\n",
        "torch._utils\n_rebuild_parameter\n",
        "collections\nOrderedDict\n",
        "torch\nFloatStorage\n",
        "torch\nHalfStorage\n",
        "torch\nBFloat16Storage\n",
        "os\nsystem\n",
        "storage",
        "cpu",
        "}",
        "(",
        "t",
        "R",
        "Q",
        "s",
        "u",
        "b",
        ".",
        "K\x01",
        "J\x7f\x7f\x7f\x7f",
        "\u{8}",
        "PK\u{1}\u{2}",
        "PK\u{3}\u{4}",
        "PK\u{5}\u{6}",
        "PK\u{6}\u{6}",
        "PK\u{6}\u{7}",
        "m/data/0",
        "m/byteorder",
    ],
    read: |input| {
        let bytes = torch(input);
        match read("pytorch_model.bin", bytes.clone()) {
            Outcome::Refused => {
                read_with("checkpoint.pt", bytes, |files, file| Weights::open_torch(files, file, STATE_KEY))
            }
            accepted => accepted,
        }
    },
};

/// The dictionary of tensors in files of RegressLM's training.
const STATE_KEY: &str = "model_state";

/// A dictionary of two tensors that share a storage, in protocol 2.
const PICKLE: &[u8] = b"\x80\x02}q\x00(X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n\
    X\x01\0\0\x000X\x03\0\0\0cpuK\x08tQK\x00K\x02K\x02\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)RtR\
    X\x01\0\0\0vctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n\
    X\x01\0\0\x000X\x03\0\0\0cpuK\x08tQK\x04K\x02K\x02\x86K\x01K\x02\x86\x89ccollections\nOrderedDict\n)RtRu.";

/// Reads all tensors that the file lists.
fn read(file: &str, bytes: Vec<u8>) -> Outcome {
    read_with(file, bytes, |files, _| Weights::open(files))
}

fn read_with(
    file: &str,
    bytes: Vec<u8>,
    open: impl for<'a> Fn(&'a CheckpointFiles, &str) -> Result<Weights<'a>, LoadError>,
) -> Outcome {
    let files = CheckpointFiles::memory("fuzzed", [(file.to_owned(), bytes)]);
    super::outcome(open(&files, file).and_then(|weights| read_tensors(&weights)), file)
}

fn read_tensors(weights: &Weights<'_>) -> Result<(), LoadError> {
    weights.summary();
    let tensors: Vec<(String, Vec<usize>)> =
        weights.shapes().map(|(name, shape)| (name.to_owned(), shape.to_vec())).collect();
    for (name, shape) in tensors {
        weights.tensor(&name, &shape, DType::F32, &Device::Cpu)?;
    }
    Ok(())
}

/// Returns the input itself, or a file with the input as its header.
fn safetensors(input: &[u8]) -> Vec<u8> {
    if !input.starts_with(b"{") {
        return input.to_vec();
    }
    [&(input.len() as u64).to_le_bytes(), input, &[0; 30]].concat()
}

/// Returns the input itself, or an archive with the input as its pickle.
fn torch(input: &[u8]) -> Vec<u8> {
    if input.starts_with(b"PK") { input.to_vec() } else { archive(input) }
}

fn archive(pickle: &[u8]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in [("m/data.pkl", pickle), ("m/byteorder", b"little"), ("m/data/0", &[0; 32])] {
        zip.start_file(name, stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
