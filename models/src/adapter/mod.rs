//! Merges LoRA adapters in PEFT's format into the weights that they were trained for.
//!
//! In: a directory with `adapter_config.json` and `adapter_model.safetensors`. Out: weights `W + scale * B A`
//! (LoRA, arXiv 2106.09685), so that serving has no extra cost. Anything in an adapter that cannot be merged
//! is an error.

mod config;

use std::cell::RefCell;
use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::{CheckpointFiles, LoadError, Weights};

use config::AdapterConfig;

const FILE: &str = "adapter_model.safetensors";

/// PEFT's prefix of module names.
const ROOT: &str = "base_model.model.";

/// The change of one module: `scale * b * a`.
struct Change {
    /// `[r, in]`.
    a: Option<Tensor>,
    /// `[out, r]`.
    b: Option<Tensor>,
}

pub(crate) struct Adapter {
    file: String,
    config: AdapterConfig,
    /// Changes that are not merged yet, by module name, such as `model.layers.0.self_attn.q_proj`.
    changes: RefCell<BTreeMap<String, Change>>,
}

impl Adapter {
    pub(crate) fn open(files: &CheckpointFiles) -> Result<Self, LoadError> {
        let config = AdapterConfig::read(files)?;
        let file = files.name_of(FILE);
        let weights = Weights::open_file(files, FILE)?;
        let mut changes: BTreeMap<String, Change> = BTreeMap::new();
        for (name, shape) in weights.shapes() {
            let wrong = |reason: String| LoadError::tensor(&file, name, reason);
            let (module, part) = target(name).ok_or_else(|| wrong("is not part of a LoRA".to_owned()))?;
            if shape.len() != 2 || shape.contains(&0) {
                return Err(wrong(format!("shape {shape:?} is not the shape of a matrix")));
            }
            let tensor = weights.tensor(name, shape, DType::F32, &Device::Cpu)?;
            let change = changes.entry(module.to_owned()).or_insert(Change { a: None, b: None });
            match part {
                Part::A => change.a = Some(tensor),
                Part::B => change.b = Some(tensor),
            }
        }
        if changes.is_empty() {
            return Err(LoadError::malformed(file, "it holds no tensors"));
        }
        Ok(Self { file, config, changes: RefCell::new(changes) })
    }

    /// Adds the adapter's change, if it has one, to the weight `[out, in]` of a module.
    pub(crate) fn merge(&self, module: &str, weight: Tensor) -> Result<Tensor, LoadError> {
        let Some(change) = self.changes.borrow_mut().remove(module) else { return Ok(weight) };
        let name = |part: &str| format!("{ROOT}{module}.{part}.weight");
        let missing = |part| LoadError::MissingTensor { file: self.file.clone(), name: name(part) };
        let a = change.a.ok_or_else(|| missing("lora_A"))?;
        let b = change.b.ok_or_else(|| missing("lora_B"))?;
        let wrong =
            |part: &str, reason| Err(LoadError::Tensor { file: self.file.clone(), name: name(part), reason });
        let rank = a.dims()[0];
        let of = weight.dims();
        if a.dims()[1] != of[1] {
            return wrong("lora_A", format!("shape {:?} does not fit the weight {of:?}", a.dims()));
        }
        if b.dims() != [of[0], rank] {
            let reason = format!("shape {:?} does not fit the weight {of:?} at rank {rank}", b.dims());
            return wrong("lora_B", reason);
        }
        if let Some(stated) = self.config.rank.filter(|&stated| stated != rank as u64) {
            return wrong(
                "lora_A",
                format!("its rank is {rank}, but field `r` of the configuration is {stated}"),
            );
        }
        let scale = self.config.scale(rank);
        let add = || {
            let change = (b.matmul(&a)? * scale)?;
            let wide = weight.to_dtype(DType::F32)?;
            let merged = (&wide + change.to_device(weight.device())?)?.to_dtype(weight.dtype())?;
            let values: Vec<f32> = merged.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
            Ok(Some(merged).filter(|_| values.iter().all(|value| value.is_finite())))
        };
        match add().map_err(|error: candle_core::Error| LoadError::Device(error.to_string()))? {
            Some(merged) => Ok(merged),
            None => wrong(
                "lora_B",
                format!(
                    "the merged weight is not finite; `lora_alpha` and the rank give the scale {scale:e}"
                ),
            ),
        }
    }

    /// # Errors
    /// If a change was not merged, because the model has no such module or the module is not a projection.
    pub(crate) fn finish(&self) -> Result<(), LoadError> {
        match self.changes.borrow().keys().next() {
            None => Ok(()),
            Some(module) => Err(LoadError::Tensor {
                file: self.file.clone(),
                name: format!("{ROOT}{module}.lora_A.weight"),
                reason: format!("the model has no projection `{module}`"),
            }),
        }
    }
}

enum Part {
    A,
    B,
}

/// Returns the module that a tensor changes. Older files contain the adapter's name:
/// `q_proj.lora_A.default.weight`.
fn target(name: &str) -> Option<(&str, Part)> {
    let path = name.strip_prefix(ROOT)?.strip_suffix(".weight")?;
    let path = path.strip_suffix(".default").unwrap_or(path);
    let a = path.strip_suffix(".lora_A").map(|module| (module, Part::A));
    a.or_else(|| Some((path.strip_suffix(".lora_B")?, Part::B)))
}

#[cfg(test)]
mod tests;
