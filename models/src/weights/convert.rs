//! Reads the elements of a tensor in chunks on all cores, converts them, and checks that they are finite
//! while they are in the CPU's cache.

use std::io;

use bytemuck::Pod;
use candle_core::WithDType;
use half::{bf16, f16};
use ntl_text::checkpoint::FileReader;
use ntl_text::gguf::GgmlType;
use rayon::prelude::*;

use super::gguf::dequantised;
use super::table::FloatType;

/// Number of elements that one thread reads at a time. They have at most a megabyte, which fits into the
/// cache. It is a multiple of all sizes of blocks.
pub(super) const PIECE: usize = 1 << 18;

#[derive(Debug)]
pub(super) enum ConvertError {
    Read(io::Error),
    /// An element is not finite, or is no longer finite after its conversion.
    NotFinite {
        index: usize,
        value: f32,
    },
}

/// An element type of weights in memory.
pub(super) trait Element: Pod + WithDType {
    const STORED: FloatType;

    fn from_f32(value: f32) -> Self;

    fn is_finite(self) -> bool;

    fn to_f32(self) -> f32;
}

impl Element for f32 {
    const STORED: FloatType = FloatType::F32;

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

macro_rules! half_element {
    ($type:ty, $stored:expr) => {
        impl Element for $type {
            const STORED: FloatType = $stored;

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
    };
}

half_element!(f16, FloatType::F16);
half_element!(bf16, FloatType::Bf16);

/// Reads `count` elements, starting at byte `offset`. The caller must have checked that the file contains
/// them.
pub(super) fn read<T: Element>(
    reader: &FileReader<'_>,
    offset: u64,
    count: usize,
    stored: FloatType,
) -> Result<Vec<T>, ConvertError> {
    // Zeroing costs nothing: the operating system provides zeroed pages at the first write.
    let mut numbers = bytemuck::zeroed_vec::<T>(count);
    let element = stored.size() as u64;
    fill_pieces(&mut numbers, |first, numbers| {
        fill(reader, offset + first as u64 * element, stored, numbers)
    })?;
    Ok(numbers)
}

/// Like [`read`], for blocks of a quantised type. `count` is a number of whole blocks.
pub(super) fn read_blocks<T: Element>(
    reader: &FileReader<'_>,
    offset: u64,
    count: usize,
    stored: GgmlType,
) -> Result<Vec<T>, ConvertError> {
    let mut numbers = bytemuck::zeroed_vec::<T>(count);
    fill_pieces(&mut numbers, |first, numbers| {
        let from = offset + (first / stored.block_elements() * stored.block_bytes()) as u64;
        let bytes = numbers.len() / stored.block_elements() * stored.block_bytes();
        // Blocks begin with 16-bit scales, so that they are aligned like these.
        let mut halves = vec![0_u16; bytes / 2];
        reader.read_exact_at(bytemuck::cast_slice_mut(&mut halves), from).map_err(ConvertError::Read)?;
        let source = dequantised(&halves, stored).map_err(ConvertError::Read)?;
        for (number, &value) in numbers.iter_mut().zip(&source) {
            *number = T::from_f32(value);
        }
        check(numbers, |index| source[index])
    })?;
    Ok(numbers)
}

/// Fills chunks of `numbers` on all cores. `fill` gets the index of a chunk's first element, and the chunk.
/// Returns the first error.
fn fill_pieces<T: Element>(
    numbers: &mut [T],
    fill: impl Fn(usize, &mut [T]) -> Result<(), ConvertError> + Sync,
) -> Result<(), ConvertError> {
    let error = numbers.par_chunks_mut(PIECE).enumerate().find_map_first(|(piece, numbers)| {
        fill(piece * PIECE, numbers).err().map(|error| error.after(piece * PIECE))
    });
    match error {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Converts `bytes`, which must be whole elements.
pub(super) fn from_bytes<T: Element>(bytes: &[u8], stored: FloatType) -> Result<Vec<T>, ConvertError> {
    read(&FileReader::memory(bytes), 0, bytes.len() / stored.size(), stored)
}

/// Fills `numbers` from the file. Files and supported machines are little-endian.
fn fill<T: Element>(
    reader: &FileReader<'_>,
    from: u64,
    stored: FloatType,
    numbers: &mut [T],
) -> Result<(), ConvertError> {
    if stored == T::STORED {
        reader.read_exact_at(bytemuck::cast_slice_mut(numbers), from).map_err(ConvertError::Read)?;
        return check(numbers, |index| numbers[index].to_f32());
    }
    match stored {
        FloatType::F32 => fill_from::<f32, T>(reader, from, numbers),
        FloatType::F16 => fill_from::<f16, T>(reader, from, numbers),
        FloatType::Bf16 => fill_from::<bf16, T>(reader, from, numbers),
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
    // A loop without an early exit is vectorised.
    if numbers.iter().fold(true, |finite, number| finite & number.is_finite()) {
        return Ok(());
    }
    match numbers.iter().position(|number| !number.is_finite()) {
        Some(index) => Err(ConvertError::NotFinite { index, value: value(index) }),
        None => Ok(()),
    }
}

impl ConvertError {
    /// Returns the error in words. `dtype` is the name of the type of the converted elements.
    pub(super) fn reason(self, dtype: &str) -> String {
        match self {
            Self::Read(error) => format!("cannot be read: {error}"),
            Self::NotFinite { index, value } if value.is_finite() => {
                format!("element {index} is {value}, more than {dtype} holds")
            }
            Self::NotFinite { index, value } => format!("element {index} is {value}"),
        }
    }

    /// Returns the same error for a chunk that `count` elements precede.
    pub(super) fn after(self, count: usize) -> Self {
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
        for (stored, bytes) in [(FloatType::F32, f32s), (FloatType::F16, f16s), (FloatType::Bf16, bf16s)] {
            assert_eq!(from_bytes::<f32>(&bytes, stored).unwrap(), values);
            assert_eq!(from_bytes::<f16>(&bytes, stored).unwrap(), values.map(f16::from_f32));
            assert_eq!(from_bytes::<bf16>(&bytes, stored).unwrap(), values.map(bf16::from_f32));
        }
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_found_across_chunks() {
        let mut values = vec![0.5f32; 3 * PIECE + 7];
        values[2 * PIECE + 3] = f32::INFINITY;
        values[3 * PIECE + 1] = f32::NAN;
        let bytes: &[u8] = bytemuck::cast_slice(&values);
        for error in [
            from_bytes::<f32>(bytes, FloatType::F32).unwrap_err(),
            from_bytes::<bf16>(bytes, FloatType::F32).unwrap_err(),
        ] {
            let ConvertError::NotFinite { index, value } = error else { panic!("{error:?}") };
            assert_eq!((index, value), (2 * PIECE + 3, f32::INFINITY));
        }
    }

    #[test]
    fn a_number_too_large_for_its_new_type_is_an_error_and_not_infinity() {
        let error = from_bytes::<f16>(&70_000f32.to_le_bytes(), FloatType::F32).unwrap_err();
        let ConvertError::NotFinite { index, value } = error else { panic!("{error:?}") };
        assert_eq!((index, value), (0, 70_000.0));
    }
}
