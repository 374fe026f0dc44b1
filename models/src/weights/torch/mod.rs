//! Reads the table of a `pytorch_model.bin`: a zip archive with a pickle that describes the tensors, and
//! their storages.
//!
//! In: an open file. Out: its [`Table`]. Invariant: every tensor lies inside the file. `pickle` interprets
//! the few classes and functions that tensors need. It rejects all others with an error that names them, and
//! executes nothing. candle's reader is not used, because it clones values without limit and skips objects
//! that it does not know.

mod archive;
mod cursor;
mod pickle;

use ntl_text::checkpoint::FileReader;

use super::table::{Entry, FloatType, StoredType, Table, TableError};

use archive::{Archive, EntryBytes};
use pickle::{View, tensors};

/// Maximum size of a pickle, in bytes. Real pickles have a few hundred bytes per tensor.
const PICKLE_BYTES_MAX: u64 = 16 << 20;

/// Maximum total size of the tensors, as a multiple of the file's size. It can be more than 1, because tied
/// tables, of which a T5 has four, are listed under all their names but stored once.
const SHARED_MAX: u64 = 8;

/// `key`: the dictionary of tensors, if the file contains several values.
pub(super) fn read(reader: &FileReader<'_>, key: Option<&str>) -> Result<Table, TableError> {
    let mut start = [0; 2];
    let begins = reader.read_exact_at(&mut start, 0).map(|()| start);
    if begins.is_ok_and(|start| start[0] == 0x80) {
        let reason = "it is in PyTorch's format from before version 1.6; load it there and save it again";
        return Err(TableError::file(reason));
    }
    let archive = Archive::open(reader).map_err(TableError::file)?;
    let pickle = archive.named_once("/data.pkl").map_err(TableError::file)?;
    let prefix = pickle.trim_end_matches("data.pkl");
    if let Ok(order) = archive.bytes(&format!("{prefix}byteorder"), 16)
        && order != b"little"
    {
        return Err(TableError::file("its numbers are not stored little-endian"));
    }
    let bytes = archive.bytes(pickle, PICKLE_BYTES_MAX).map_err(TableError::file)?;
    let mut table = Table::new();
    let mut claimed = 0u64;
    for (name, view) in tensors(&bytes, key)? {
        let entry = entry(&archive, prefix, view).map_err(|reason| TableError::tensor(&name, reason))?;
        let size = entry.stored.bytes_or(8);
        claimed = claimed.saturating_add(entry.elements() as u64 * size as u64);
        table.insert(name, entry);
    }
    if claimed > reader.size().saturating_mul(SHARED_MAX) {
        let reason = format!("its tensors claim {claimed} bytes of a file of {}", reader.size());
        return Err(TableError::file(reason));
    }
    Ok(table)
}

/// Locates a view of a storage in the file, and checks that it lies inside that storage.
fn entry(archive: &Archive<'_, '_>, prefix: &str, view: View) -> Result<Entry, String> {
    let EntryBytes { offset, size: bytes } = archive.place(&format!("{prefix}data/{}", view.storage.key))?;
    let stored = stored_type(view.storage.class);
    let size = stored.bytes_or(1);
    let held = bytes / size as u64;
    let shape = dimensions(&view.shape)?;
    let strides = dimensions(&view.strides)?;
    if shape.len() != strides.len() {
        return Err(format!("it has {} sizes and {} strides", shape.len(), strides.len()));
    }
    let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64));
    let last = shape.iter().zip(&strides).try_fold(view.offset, |last, (&size, &stride)| {
        last.checked_add((size.max(1) as u64 - 1).checked_mul(stride as u64)?)
    });
    let inside = elements.is_some_and(|elements| elements <= held)
        && last.is_some_and(|last| elements == Some(0) || last < held);
    if !inside {
        return Err(format!(
            "shape {shape:?} with strides {strides:?} is more than the {held} elements stored"
        ));
    }
    let offset = offset + view.offset.min(held) * size as u64;
    let strides = (elements != Some(0) && !is_contiguous(&shape, &strides)).then_some(strides);
    Ok(Entry { stored, shape, strides, offset })
}

fn dimensions(numbers: &[i64]) -> Result<Vec<usize>, String> {
    let read = numbers.iter().map(|&number| usize::try_from(number)).collect::<Result<_, _>>();
    read.map_err(|_| format!("its sizes or strides are negative: {numbers:?}"))
}

fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size <= 1 || stride == expected;
        expected *= size.max(1);
        fits
    })
}

/// Returns the element type of one of PyTorch's storage classes, such as `FloatStorage`.
fn stored_type(class: &str) -> StoredType {
    match class {
        "FloatStorage" => StoredType::Float(FloatType::F32),
        "HalfStorage" => StoredType::Float(FloatType::F16),
        "BFloat16Storage" => StoredType::Float(FloatType::Bf16),
        other => StoredType::Other(other.to_owned()),
    }
}

#[cfg(test)]
mod tests;
