//! Named tensors of a safetensors file, checked against the shapes that the configuration promises.

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{SafeTensors, TensorView};

use super::{CheckpointFiles, FileBytes, LoadError};

/// The file that is read.
const FILE: &str = "model.safetensors";

/// The weights of a checkpoint, still in their file.
pub struct Weights<'a> {
    file: String,
    bytes: FileBytes<'a>,
}

impl<'a> Weights<'a> {
    /// Opens the weights of a checkpoint. Nothing is read but the table of tensors.
    ///
    /// # Errors
    /// When the file is missing, cut off or no safetensors file.
    pub fn open(files: &'a CheckpointFiles) -> Result<Self, LoadError> {
        let weights = Self { file: files.name_of(FILE), bytes: files.require(FILE)? };
        weights.table()?;
        Ok(weights)
    }

    /// The table of tensors. Parsing it costs microseconds; keeping it would borrow from this very value.
    fn table(&self) -> Result<SafeTensors<'_>, LoadError> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| LoadError::malformed(&self.file, error))
    }

    /// Whether there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.table().is_ok_and(|table| table.tensor(name).is_ok())
    }

    /// Number of weights in the file.
    pub fn parameters(&self) -> u64 {
        let count = |tensor: TensorView<'_>| tensor.shape().iter().product::<usize>() as u64;
        self.table().map_or(0, |table| table.tensors().into_iter().map(|(_, tensor)| count(tensor)).sum())
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
        let table = self.table()?;
        let view = table
            .tensor(name)
            .map_err(|_| LoadError::MissingTensor { file: self.file.clone(), name: name.to_owned() })?;
        let wrong = |reason| LoadError::Tensor { file: self.file.clone(), name: name.to_owned(), reason };
        if view.shape() != shape {
            return Err(wrong(format!("shape {:?} instead of {shape:?}", view.shape())));
        }
        let stored = stored_dtype(&view).map_err(wrong)?;
        let read =
            Tensor::from_raw_buffer(view.data(), stored, shape, device).and_then(|t| t.to_dtype(dtype));
        read.map_err(|error| wrong(error.to_string()))
    }
}

fn stored_dtype(view: &TensorView<'_>) -> Result<DType, String> {
    match view.dtype() {
        safetensors::Dtype::F32 => Ok(DType::F32),
        safetensors::Dtype::F64 => Ok(DType::F64),
        safetensors::Dtype::F16 => Ok(DType::F16),
        safetensors::Dtype::BF16 => Ok(DType::BF16),
        other => Err(format!("element type {other:?} holds no weights")),
    }
}
