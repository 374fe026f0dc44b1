//! Named tensors of a safetensors file, checked against the shapes that the configuration promises.

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Metadata, SafeTensors};

use super::{CheckpointFiles, FileBytes, LoadError};

/// The file that is read.
const FILE: &str = "model.safetensors";

/// The weights of a checkpoint, still in their file.
pub struct Weights<'a> {
    file: String,
    bytes: FileBytes<'a>,
    table: Metadata,
    /// Where in the file the numbers begin.
    data_from: usize,
}

impl<'a> Weights<'a> {
    /// Opens the weights of a checkpoint. Nothing is read but the table of tensors.
    ///
    /// # Errors
    /// When the file is missing, cut off or no safetensors file.
    pub fn open(files: &'a CheckpointFiles) -> Result<Self, LoadError> {
        /// Bytes of the length that stands in front of the table.
        const LENGTH_BYTES: usize = 8;
        let (file, bytes) = (files.name_of(FILE), files.require(FILE)?);
        let read = SafeTensors::read_metadata(&bytes);
        let (table_bytes, table) = read.map_err(|error| LoadError::malformed(&file, error))?;
        Ok(Self { file, bytes, table, data_from: LENGTH_BYTES + table_bytes })
    }

    /// Whether there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.table.info(name).is_some()
    }

    /// Number of weights in the file.
    pub fn parameters(&self) -> u64 {
        self.table.tensors().values().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum()
    }

    /// One tensor, converted to `dtype` on `device`.
    ///
    /// # Errors
    /// When it is missing, has another shape, or an element type that holds no real numbers.
    pub fn tensor(
        &self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, LoadError> {
        let missing = || LoadError::MissingTensor { file: self.file.clone(), name: name.to_owned() };
        let info = self.table.info(name).ok_or_else(missing)?;
        let wrong = |reason| LoadError::Tensor { file: self.file.clone(), name: name.to_owned(), reason };
        if info.shape != shape {
            return Err(wrong(format!("shape {:?} instead of {shape:?}", info.shape)));
        }
        let stored = stored_dtype(info.dtype).map_err(wrong)?;
        let (from, to) = info.data_offsets;
        // The table was checked against the length of the file when it was opened.
        let data = &self.bytes[self.data_from + from..self.data_from + to];
        let read = Tensor::from_raw_buffer(data, stored, shape, device).and_then(|t| t.to_dtype(dtype));
        read.map_err(|error| wrong(error.to_string()))
    }
}

fn stored_dtype(stored: safetensors::Dtype) -> Result<DType, String> {
    match stored {
        safetensors::Dtype::F32 => Ok(DType::F32),
        safetensors::Dtype::F64 => Ok(DType::F64),
        safetensors::Dtype::F16 => Ok(DType::F16),
        safetensors::Dtype::BF16 => Ok(DType::BF16),
        other => Err(format!("element type {other:?} holds no weights")),
    }
}
