//! Numbers of a file to numbers in memory: read in pieces on all cores, converted, and checked to be finite while
//! they are still in the cache.

use std::io;

use bytemuck::Pod;
use candle_core::WithDType;
use half::{bf16, f16};
use rayon::prelude::*;

use super::reader::FileReader;
use super::table::StoredType;

/// Elements that one thread reads at a time: a megabyte or less, which caches hold.
const PIECE: usize = 1 << 18;

/// Why a tensor's numbers cannot be used.
#[derive(Debug)]
pub(super) enum ConvertError {
    Read(io::Error),
    /// An element that is not finite, or no longer is once it is converted.
    NotFinite {
        index: usize,
        value: f32,
    },
}

/// An element type of weights in memory.
pub(super) trait Element: Pod + WithDType {
    /// How the same type is stored.
    const STORED: StoredType;

    fn from_f32(value: f32) -> Self;

    fn is_finite(self) -> bool;

    fn to_f32(self) -> f32;
}

impl Element for f32 {
    const STORED: StoredType = StoredType::F32;

    fn from_f32(value: f32) -> Self {
        value
    }

    fn is_finite(self) -> bool {
        self.is_finite()
    }

    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for f16 {
    const STORED: StoredType = StoredType::F16;

    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn is_finite(self) -> bool {
        self.is_finite()
    }

    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

impl Element for bf16 {
    const STORED: StoredType = StoredType::Bf16;

    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn is_finite(self) -> bool {
        self.is_finite()
    }

    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

/// Reads `count` elements from `offset` on. The caller has checked that the file has them.
///
/// # Errors
/// When the file cannot be read, or an element is not finite.
pub(super) fn read<T: Element>(
    reader: &FileReader<'_>,
    (offset, count): (u64, usize),
    stored: &StoredType,
) -> Result<Vec<T>, ConvertError> {
    // Fresh zeroed memory is not touched before it is written.
    let mut numbers = bytemuck::zeroed_vec::<T>(count);
    let element = stored.size().unwrap_or_default() as u64;
    let fill = |(piece, numbers): (usize, &mut [T])| {
        let from = offset + (piece * PIECE) as u64 * element;
        fill(reader, from, stored, numbers).err().map(|error| error.after(piece * PIECE))
    };
    match numbers.par_chunks_mut(PIECE).enumerate().find_map_first(fill) {
        Some(error) => Err(error),
        None => Ok(numbers),
    }
}

/// Converts `bytes`, whole elements of a tensor.
///
/// # Errors
/// When an element is not finite.
pub(super) fn from_bytes<T: Element>(bytes: &[u8], stored: &StoredType) -> Result<Vec<T>, ConvertError> {
    let count = bytes.len() / stored.size().unwrap_or(1);
    read(&FileReader::memory(bytes), (0, count), stored)
}

/// Fills `numbers` from the file; types in files are little-endian, as are the machines that this runs on.
fn fill<T: Element>(
    reader: &FileReader<'_>,
    from: u64,
    stored: &StoredType,
    numbers: &mut [T],
) -> Result<(), ConvertError> {
    if *stored == T::STORED {
        reader.read_exact_at(bytemuck::cast_slice_mut(numbers), from).map_err(ConvertError::Read)?;
        return check(numbers, |index| numbers[index].to_f32());
    }
    match stored {
        StoredType::F32 => fill_from::<f32, T>(reader, from, numbers),
        StoredType::F16 => fill_from::<f16, T>(reader, from, numbers),
        StoredType::Bf16 => fill_from::<bf16, T>(reader, from, numbers),
        StoredType::Other(_) => Err(ConvertError::Read(io::ErrorKind::Unsupported.into())),
    }
}

fn fill_from<S: Element, T: Element>(
    reader: &FileReader<'_>,
    from: u64,
    numbers: &mut [T],
) -> Result<(), ConvertError> {
    let mut source = bytemuck::zeroed_vec::<S>(numbers.len());
    reader.read_exact_at(bytemuck::cast_slice_mut(&mut source), from).map_err(ConvertError::Read)?;
    for (number, value) in numbers.iter_mut().zip(&source) {
        *number = T::from_f32(value.to_f32());
    }
    check(numbers, |index| source[index].to_f32())
}

fn check<T: Element>(numbers: &[T], value: impl Fn(usize) -> f32) -> Result<(), ConvertError> {
    // Without a way out of the loop it is done many elements at a time.
    if numbers.iter().fold(true, |finite, number| finite & number.is_finite()) {
        return Ok(());
    }
    let index = numbers.iter().position(|number| !number.is_finite()).unwrap_or_default();
    Err(ConvertError::NotFinite { index, value: value(index) })
}

impl ConvertError {
    /// The same error of an element that has `count` others before its piece.
    fn after(self, count: usize) -> Self {
        match self {
            Self::NotFinite { index, value } => Self::NotFinite { index: index + count, value },
            Self::Read(error) => Self::Read(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_becomes_every_other() {
        let values = [0.0, -1.5, 0.25, 1024.0];
        let f32s: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
        let bf16s: Vec<u8> = values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect();
        for (stored, bytes) in [(StoredType::F32, f32s), (StoredType::F16, f16s), (StoredType::Bf16, bf16s)] {
            assert_eq!(from_bytes::<f32>(&bytes, &stored).unwrap(), values);
            assert_eq!(from_bytes::<f16>(&bytes, &stored).unwrap(), values.map(f16::from_f32));
            assert_eq!(from_bytes::<bf16>(&bytes, &stored).unwrap(), values.map(bf16::from_f32));
        }
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_found_across_pieces() {
        let mut values = vec![0.5f32; 3 * PIECE + 7];
        values[2 * PIECE + 3] = f32::INFINITY;
        values[3 * PIECE + 1] = f32::NAN;
        let bytes: &[u8] = bytemuck::cast_slice(&values);
        for error in [
            from_bytes::<f32>(bytes, &StoredType::F32).unwrap_err(),
            from_bytes::<bf16>(bytes, &StoredType::F32).unwrap_err(),
        ] {
            let ConvertError::NotFinite { index, value } = error else { panic!("{error:?}") };
            assert_eq!((index, value), (2 * PIECE + 3, f32::INFINITY));
        }
    }

    #[test]
    fn a_number_too_large_for_its_new_type_is_no_infinity() {
        let error = from_bytes::<f16>(&70_000f32.to_le_bytes(), &StoredType::F32).unwrap_err();
        let ConvertError::NotFinite { index, value } = error else { panic!("{error:?}") };
        assert_eq!((index, value), (0, 70_000.0));
    }
}
