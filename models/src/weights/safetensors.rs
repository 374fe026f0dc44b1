//! Reads the table of a safetensors file (<https://github.com/huggingface/safetensors#format>).
//!
//! In: an open file. Out: its [`Table`]. Invariant: every tensor lies inside the file, and no two overlap.
//! The safetensors crate is not used, because it needs the whole file in memory and does not name a faulty
//! tensor.

use std::collections::BTreeMap;

use ntl_text::checkpoint::FileReader;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::table::{Entry, FloatType, StoredType, Table, TableError};

/// Size of the table's length field, which precedes the table, in bytes.
const LENGTH_BYTES: u64 = 8;

/// Maximum size of a table, in bytes. The reference implementation has the same limit.
const TABLE_BYTES_MAX: u64 = 100_000_000;

#[derive(Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    _metadata: Option<IgnoredAny>,
    #[serde(flatten)]
    tensors: BTreeMap<String, HeaderEntry>,
}

#[derive(Deserialize)]
struct HeaderEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

pub(super) fn read(reader: &FileReader<'_>) -> Result<Table, TableError> {
    let header = header_bytes(reader)?;
    let data_from = LENGTH_BYTES + header.len() as u64;
    let header: Header = serde_json::from_slice(&header).map_err(|error| {
        TableError::file(format!("its table is not JSON that describes tensors: {error}"))
    })?;
    let mut tensors: Vec<(String, HeaderEntry)> = header.tensors.into_iter().collect();
    tensors.sort_by_key(|(_, stored)| stored.data_offsets);
    check_places(&tensors, reader.size() - data_from)?;
    tensors
        .into_iter()
        .map(|(name, stored)| {
            let offset = data_from + stored.data_offsets.0;
            let stored_type = stored_type(stored.dtype);
            Ok((name, Entry { stored: stored_type, shape: stored.shape, strides: None, offset }))
        })
        .collect()
}

fn header_bytes(reader: &FileReader<'_>) -> Result<Vec<u8>, TableError> {
    let mut length = [0; LENGTH_BYTES as usize];
    if reader.size() < LENGTH_BYTES {
        return Err(TableError::file("it is cut off before its table"));
    }
    reader.read_exact_at(&mut length, 0).map_err(|error| TableError::file(error.to_string()))?;
    let length = u64::from_le_bytes(length);
    let left = reader.size() - LENGTH_BYTES;
    if length > TABLE_BYTES_MAX.min(left) {
        let reason = format!("it claims a table of {length} bytes and has {left} bytes");
        return Err(TableError::file(reason));
    }
    reader.part(LENGTH_BYTES, length).map_err(|error| TableError::file(error.to_string()))
}

/// Checks that tensors, sorted by offset, fill the `data_bytes` after the table without gaps or overlaps.
fn check_places(tensors: &[(String, HeaderEntry)], data_bytes: u64) -> Result<(), TableError> {
    for (name, stored) in tensors {
        check_tensor(stored, data_bytes).map_err(|reason| TableError::tensor(name, reason))?;
    }
    let mut end = 0;
    let mut before = "";
    for (name, stored) in tensors {
        let (from, to) = stored.data_offsets;
        if from < end {
            return Err(TableError::tensor(name, format!("it overlaps tensor `{before}`")));
        }
        if from > end {
            return Err(TableError::tensor(name, format!("a gap of {} bytes precedes it", from - end)));
        }
        (end, before) = (to, name);
    }
    if end < data_bytes {
        return Err(TableError::file(format!("it has {} bytes that belong to no tensor", data_bytes - end)));
    }
    Ok(())
}

/// Checks that a tensor lies inside the file and has the number of bytes that its shape and type need.
fn check_tensor(stored: &HeaderEntry, data_bytes: u64) -> Result<(), String> {
    let (from, to) = stored.data_offsets;
    if to < from {
        return Err(format!("its data_offsets [{from}, {to}] run backwards"));
    }
    if to > data_bytes {
        return Err(format!("its data_offsets [{from}, {to}] end {} bytes beyond the file", to - data_bytes));
    }
    match claimed_bytes(stored)? {
        Some(claimed) if claimed != to - from => {
            Err(format!("{} bytes hold no {} of shape {:?}", to - from, stored.dtype, stored.shape))
        }
        _ => Ok(()),
    }
}

/// Returns the number of bytes that type and shape need, or `None` for unknown types.
fn claimed_bytes(stored: &HeaderEntry) -> Result<Option<u64>, String> {
    let elements = stored.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64));
    let elements = elements.ok_or_else(|| format!("its shape {:?} multiplies beyond 2^64", stored.shape))?;
    let size = match stored.dtype.as_str() {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" => 1,
        "F16" | "BF16" | "U16" | "I16" => 2,
        "F32" | "U32" | "I32" => 4,
        "F64" | "U64" | "I64" => 8,
        // Each element has at least half a byte. A shape must not claim more elements than the bytes could
        // hold.
        _ if elements / 2 > stored.data_offsets.1 - stored.data_offsets.0 => {
            return Err(format!("its shape {:?} does not fit its bytes", stored.shape));
        }
        _ => return Ok(None),
    };
    elements
        .checked_mul(size)
        .map(Some)
        .ok_or_else(|| format!("its shape {:?} multiplies beyond 2^64", stored.shape))
}

fn stored_type(dtype: String) -> StoredType {
    match dtype.as_str() {
        "F32" => StoredType::Float(FloatType::F32),
        "F16" => StoredType::Float(FloatType::F16),
        "BF16" => StoredType::Float(FloatType::Bf16),
        _ => StoredType::Other(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend(std::iter::repeat_n(0, data_bytes));
        bytes
    }

    fn reason(bytes: &[u8]) -> (Option<String>, String) {
        let error = read(&FileReader::memory(bytes)).unwrap_err();
        (error.tensor, error.reason)
    }

    #[test]
    fn a_table_has_the_offset_of_each_tensor() {
        let header = r#"{"__metadata__": {"format": "pt"}, "b": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]},
            "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}}"#;
        let table = read(&FileReader::memory(&file(header, 16))).unwrap();
        let from = 8 + header.len() as u64;
        let a = Entry {
            stored: StoredType::Float(FloatType::F32),
            shape: vec![2, 1],
            strides: None,
            offset: from,
        };
        assert_eq!(table["a"], a);
        assert_eq!((&table["b"].stored, table["b"].offset), (&StoredType::Other("I64".to_owned()), from + 8));
    }

    #[test]
    fn an_invalid_table_is_rejected_with_the_reason() {
        for (bytes, want) in [
            (Vec::new(), "cut off before its table"),
            (
                (1u64 << 60).to_le_bytes().to_vec(),
                "claims a table of 1152921504606846976 bytes and has 0 bytes",
            ),
            (u64::MAX.to_le_bytes().to_vec(), "claims a table of"),
            (file("{", 0), "not JSON that describes tensors"),
            (file("[]", 0), "not JSON that describes tensors"),
            (file(&"[".repeat(100_000), 0), "not JSON that describes tensors"),
            (file(&format!(r#"{{"a":{}"#, r#"{"a":"#.repeat(100_000)), 0), "not JSON that describes tensors"),
            (file("{}", 4), "4 bytes that belong to no tensor"),
        ] {
            let (tensor, reason) = reason(&bytes);
            assert_eq!(tensor, None, "{reason}");
            assert!(reason.contains(want), "{reason}");
        }
    }

    #[test]
    fn a_tensor_with_impossible_offsets_or_an_impossible_shape_is_named() {
        let one = |entry: &str| format!(r#"{{"a": {entry}}}"#);
        for (entry, want) in [
            (r#"{"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}"#, "run backwards"),
            (r#"{"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}"#, "end 8 bytes beyond the file"),
            (r#"{"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}"#, "a gap of 4 bytes precedes it"),
            (r#"{"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}"#, "8 bytes hold no F32 of shape [1]"),
            (
                r#"{"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8]}"#,
                "multiplies beyond 2^64",
            ),
            (
                r#"{"dtype": "F32", "shape": [4611686018427387905], "data_offsets": [0, 8]}"#,
                "multiplies beyond",
            ),
            (r#"{"dtype": "F4", "shape": [1000], "data_offsets": [0, 8]}"#, "does not fit its bytes"),
        ] {
            let (tensor, reason) = reason(&file(&one(entry), 8));
            assert_eq!(tensor.as_deref(), Some("a"), "{reason}");
            assert!(reason.contains(want), "{reason}");
        }
    }

    #[test]
    fn no_truncated_or_changed_file_panics() {
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[1,2],"data_offsets":[8,12]}}"#;
        let whole = file(header, 12);
        assert_eq!(read(&FileReader::memory(&whole)).unwrap().len(), 2);
        for len in 0..whole.len() {
            assert!(read(&FileReader::memory(&whole[..len])).is_err(), "cut to {len} of {}", whole.len());
        }
        for at in 0..whole.len() {
            for change in [b'0', b'9', b'"', b'-', b'e', 0, 0xff] {
                let mut changed = whole.clone();
                changed[at] = change;
                // Tensors that are still accepted lie inside the file.
                for entry in read(&FileReader::memory(&changed)).unwrap_or_default().values() {
                    let bytes = entry.elements() * entry.stored.bytes_or(0);
                    assert!(entry.offset + bytes as u64 <= changed.len() as u64, "byte {at} as {change}");
                }
            }
        }
    }

    #[test]
    fn tensors_that_overlap_are_both_named() {
        let header = r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}"#;
        let (tensor, reason) = reason(&file(header, 12));
        assert_eq!((tensor.as_deref(), reason.as_str()), (Some("b"), "it overlaps tensor `a`"));
    }
}
