//! Reads named tensors of a checkpoint and checks them against the expected shapes.

mod blocks;
mod convert;
mod gguf;
mod safetensors;
mod shards;
mod table;
mod torch;

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use ntl_kernels::Codes;
use ntl_text::checkpoint::{CheckpointFiles, FileReader, LoadError};

use crate::ops::{CodedWeights, Placement};
use blocks::StoredCodes;
use convert::{ConvertError, Element};
use gguf::{Conversion, Place};
use shards::{Found, Shards};
use table::{Entry, StoredType};

pub(crate) use blocks::quantised;
pub(crate) use shards::is_plain_name;

/// The last part of the names of decoder-only models' tables of tokens, in safetensors and in GGUF files.
const TABLES: [&str; 5] = ["embed_tokens", "lm_head", "wte", "token_embd", "output"];

/// The weights of a checkpoint, still in their files.
pub struct Weights<'a> {
    shards: Shards<'a>,
    checkpoint: &'a CheckpointFiles,
}

/// The contents of all tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSummary {
    /// Names of the files, without the directory.
    pub files: Vec<String>,
    /// Element types in the files, such as `f32`, those with the most weights first.
    pub stored: Vec<String>,
    /// Number of weights. Shared weights are counted once.
    pub parameters: u64,
}

impl<'a> Weights<'a> {
    /// Opens the weights of a checkpoint and reads only their tables.
    pub fn open(files: &'a CheckpointFiles) -> Result<Self, LoadError> {
        Ok(Self { shards: Shards::open(files)?, checkpoint: files })
    }

    /// Opens one safetensors file, such as an adapter's.
    pub fn open_file(files: &'a CheckpointFiles, file: &str) -> Result<Self, LoadError> {
        Ok(Self { shards: Shards::open_file(files, file)?, checkpoint: files })
    }

    /// Opens one file of PyTorch whose tensors are in the dictionary `key`.
    pub fn open_torch(files: &'a CheckpointFiles, file: &str, key: &str) -> Result<Self, LoadError> {
        Ok(Self { shards: Shards::open_torch(files, file, key)?, checkpoint: files })
    }

    pub fn has(&self, name: &str) -> bool {
        self.shards.find(&self.shards.place(name)).is_some()
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shards.find(&self.shards.place(name)).map(|found| found.entry.shape.as_slice())
    }

    /// Names and shapes of all tensors, as the files have them.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.shards.tensors.iter().map(|(name, (_, entry))| (name.as_str(), entry.shape.as_slice()))
    }

    /// Returns the number of weights in the files. Shared weights are counted once.
    pub fn parameters(&self) -> u64 {
        self.distinct().map(|(_, entry)| entry.elements() as u64).sum()
    }

    /// Returns the memory of the loaded weights, in bytes.
    pub(crate) fn memory(&self, place: &Placement) -> u64 {
        let mut memory = 0;
        for (name, entry) in self.distinct() {
            let elements = entry.elements() as u64;
            let kind = match (place.coded(), &entry.stored, &entry.shape[..]) {
                (CodedWeights::None, _, _) => None,
                (_, StoredType::Blocks(stored), _) => Some(*stored),
                (CodedWeights::All, _, &[_, inputs]) => {
                    let module = name.strip_suffix(".weight").unwrap_or(name);
                    let last = module.rsplit('.').next().unwrap_or(module);
                    blocks::quantised_type(inputs, TABLES.contains(&last))
                }
                (_, _, _) => None,
            };
            let bits = kind.and_then(blocks::bits);
            memory += bits.map_or_else(|| place.bytes(elements), |bits| bits.bytes(elements));
        }
        memory
    }

    pub fn summary(&self) -> WeightSummary {
        let mut counts = Vec::<(&str, usize)>::new();
        for (_, entry) in self.distinct() {
            let stored = entry.stored.name();
            match counts.iter_mut().find(|(name, _)| *name == stored) {
                Some((_, count)) => *count += entry.elements(),
                None => counts.push((stored, entry.elements())),
            }
        }
        counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        WeightSummary {
            files: self.shards.readers.iter().map(|(name, _)| name.clone()).collect(),
            stored: counts.into_iter().map(|(name, _)| name.to_owned()).collect(),
            parameters: self.parameters(),
        }
    }

    /// Reads one tensor, converts it to `dtype` (f32, f16 or bf16) and puts it on `device`.
    ///
    /// # Errors
    /// If the tensor is missing, has another shape, is stored in a type other than these three, or contains a
    /// number that is not finite.
    pub fn tensor(
        &self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, LoadError> {
        let place = self.shards.place(name);
        let Some(Found { file, entry, conversion }) = self.shards.find(&place) else {
            return Err(LoadError::MissingTensor { file: self.shards.file.clone(), name: place.name });
        };
        let (file_name, reader) = &self.shards.readers[file];
        let wrong =
            |reason: String| LoadError::tensor(self.checkpoint.name_of(file_name), &place.name, reason);
        let mut stored_shape = shape.to_vec();
        if conversion == Conversion::Transposed {
            stored_shape.reverse();
        }
        if entry.shape != stored_shape {
            return Err(wrong(format!("shape {:?} instead of {stored_shape:?}", entry.shape)));
        }
        if let StoredType::Other(other) = &entry.stored {
            return Err(wrong(self.unknown_type(other)));
        }
        if self.checkpoint.reads_tables_only() {
            // One zero, broadcast.
            let zero = Tensor::zeros((), dtype, device).and_then(|zero| zero.broadcast_as(shape));
            return zero.map_err(|error| wrong(error.to_string()));
        }
        match dtype {
            DType::F32 => read::<f32>(reader, entry, device),
            DType::F16 => read::<f16>(reader, entry, device),
            DType::BF16 => read::<bf16>(reader, entry, device),
            other => Err(format!("weights are never {}", other.as_str())),
        }
        .and_then(|tensor| gguf::restored(tensor, conversion).map_err(|error| error.to_string()))
        .map_err(wrong)
    }

    /// Reads weights `[out, in]` as codes, side by side. Returns `None` if the file stores one of them in
    /// another way or with another number of bits than the first, or if only tables are read.
    ///
    /// # Errors
    /// If a weight cannot be read, or a scale is not finite.
    pub(crate) fn codes(&self, weights: &[(&str, [usize; 2])]) -> Result<Option<Codes>, LoadError> {
        let mut stored = Vec::with_capacity(weights.len());
        for (name, shape) in weights {
            let place = self.shards.place(name);
            match self.stored_codes(&place, shape) {
                Some(codes) => stored.push((place.name, codes)),
                None => return Ok(None),
            }
        }
        if stored.windows(2).any(|pair| pair[0].1.bits != pair[1].1.bits) {
            return Ok(None);
        }
        let mut together: Option<Codes> = None;
        for (name, codes) in stored {
            let (file, reader) = &self.shards.readers[codes.file];
            let read = codes.read(reader).map_err(|error| {
                LoadError::tensor(self.checkpoint.name_of(file), &name, error.reason("f16"))
            })?;
            match &mut together {
                None => together = Some(read),
                Some(together) => {
                    together.codes.extend(read.codes);
                    together.params.extend(read.params);
                }
            }
        }
        Ok(together)
    }

    fn stored_codes(&self, place: &Place, shape: &[usize; 2]) -> Option<StoredCodes> {
        let Found { file, entry, conversion } = self.shards.find(place)?;
        let StoredType::Blocks(stored) = entry.stored else { return None };
        let heads = match conversion {
            Conversion::Paired { heads } if heads > 0 && shape[0].is_multiple_of(2 * heads) => Some(heads),
            Conversion::Paired { .. } | Conversion::Increased => return None,
            // Layers that safetensors files transpose are not transposed here.
            Conversion::Unchanged | Conversion::Transposed => None,
        };
        let has_whole_blocks = shape[1].is_multiple_of(stored.block_elements());
        let is_read = entry.shape == shape && has_whole_blocks && !self.checkpoint.reads_tables_only();
        is_read.then_some(StoredCodes {
            file,
            offset: entry.offset,
            shape: *shape,
            stored,
            bits: blocks::bits(stored)?,
            paired_heads: heads,
        })
    }

    fn unknown_type(&self, name: &str) -> String {
        if self.checkpoint.one_file().is_some() {
            let read = "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 and q2_k to q6_k";
            return format!("element type {name} is not supported; {read} are");
        }
        format!("element type {name} is none of F32, F16 and BF16")
    }

    /// Returns all tensors with their names, but only one of those that share an offset in a file.
    fn distinct(&self) -> impl Iterator<Item = (&str, &Entry)> {
        let mut places = std::collections::HashSet::new();
        let tensors = self.shards.tensors.iter();
        tensors
            .filter(move |(_, (file, entry))| places.insert((*file, entry.offset)))
            .map(|(name, (_, entry))| (name.as_str(), entry))
    }
}

fn read<T: Element>(reader: &FileReader<'_>, entry: &Entry, device: &Device) -> Result<Tensor, String> {
    let numbers = match (&entry.stored, &entry.strides) {
        (StoredType::Float(stored), None) => {
            convert::read::<T>(reader, entry.offset, entry.elements(), *stored)
        }
        (StoredType::Float(stored), Some(strides)) => gather(reader, entry, strides, stored.size())
            .map_err(ConvertError::Read)
            .and_then(|bytes| convert::from_bytes(&bytes, *stored)),
        (StoredType::Blocks(stored), _) => {
            convert::read_blocks(reader, entry.offset, entry.elements(), *stored)
        }
        (StoredType::Other(other), _) => return Err(format!("element type {other} is not supported")),
    };
    let numbers = numbers.map_err(|error| error.reason(T::DTYPE.as_str()))?;
    Tensor::from_vec(numbers, entry.shape.as_slice(), device).map_err(|error| error.to_string())
}

/// Returns the bytes of a tensor that is not contiguous, in order. `size` is the size of an element in bytes.
fn gather(
    reader: &FileReader<'_>,
    entry: &Entry,
    strides: &[usize],
    size: usize,
) -> std::io::Result<Vec<u8>> {
    let span =
        entry.shape.iter().zip(strides).map(|(&count, &stride)| (count.max(1) - 1) * stride).sum::<usize>();
    let source = reader.part(entry.offset, ((span + 1) * size) as u64)?;
    let mut bytes = Vec::with_capacity(entry.elements() * size);
    let mut index = vec![0; entry.shape.len()];
    for _ in 0..entry.elements() {
        let at = index.iter().zip(strides).map(|(&index, &stride)| index * stride).sum::<usize>() * size;
        bytes.extend_from_slice(&source[at..at + size]);
        for (position, &count) in index.iter_mut().zip(&entry.shape).rev() {
            *position += 1;
            if *position < count {
                break;
            }
            *position = 0;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::table::FloatType;
    use super::*;

    #[test]
    fn transposed_and_sliced_tensors_are_put_in_order() {
        let bytes: Vec<u8> = (0u8..12).flat_map(|number| f32::from(number).to_le_bytes()).collect();
        let reader = FileReader::memory(&bytes);
        for (shape, strides, offset, want) in [
            (&[3, 2][..], &[1, 3][..], 0, &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0][..]),
            (&[2, 2], &[4, 1], 5, &[5.0, 6.0, 9.0, 10.0]),
            (&[2, 1, 3], &[6, 99, 2], 1, &[1.0, 3.0, 5.0, 7.0, 9.0, 11.0]),
            (&[3], &[0], 2, &[2.0, 2.0, 2.0]),
        ] {
            let shape = shape.to_vec();
            let strides = Some(strides.to_vec());
            let entry =
                Entry { stored: StoredType::Float(FloatType::F32), shape, strides, offset: 4 * offset };
            let tensor = read::<f32>(&reader, &entry, &Device::Cpu).unwrap();
            assert_eq!(tensor.dims(), entry.shape);
            assert_eq!(tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap(), want, "{entry:?}");
        }
    }
}
