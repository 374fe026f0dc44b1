//! LoRA adapters in PEFT's format for the layers of a loaded model.
//!
//! In: a directory with `adapter_config.json` and `adapter_model.safetensors`. Out: an
//! [`Adapter`](ntl_core::contract::Adapter), with which the model computes `W x + scale * B A x` (LoRA, arXiv
//! 2106.09685) in place of `W x`. Anything in a directory that the model cannot apply is an error.

mod config;
mod layers;

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use ntl_core::contract::{Adapter, ModelError};

use crate::checkpoint::{CheckpointFiles, LoadError, LoadResult, Weights};
use crate::ops::{AdapterWeights, Change, ModelResult, Placement};

use config::AdapterConfig;
pub(crate) use layers::AdaptableLayers;
use layers::Layer;

const FILE: &str = "adapter_model.safetensors";

/// PEFT's prefix of module names.
const ROOT: &str = "base_model.model.";

/// Prefix of the modules of a vision tower.
const VISION: &str = "model.encoder.vision_tower.";

/// Reads the adapters of one model. Clones read for the same model.
#[derive(Clone)]
pub struct AdapterReader {
    layers: Arc<[Layer]>,
    place: Placement,
}

/// An adapter whose tables fit the model, and whose weights are not read yet.
pub struct OpenAdapter<'a> {
    reader: &'a AdapterReader,
    file: String,
    weights: Weights<'a>,
    config: AdapterConfig,
    modules: BTreeMap<String, Module>,
}

/// The names of a module's tensors, and their rank.
struct Module {
    a: String,
    b: String,
    rank: usize,
}

/// The weights, and the layers that they fit.
struct Read {
    weights: Arc<AdapterWeights>,
    layers: Arc<[Layer]>,
}

/// The names and shapes of a module's tensors.
#[derive(Default)]
struct Pair<'a> {
    a: Option<(&'a str, &'a [usize])>,
    b: Option<(&'a str, &'a [usize])>,
}

/// Returns the name or the directory of the model that an adapter was trained on, if its configuration states it.
pub fn adapter_base(files: &CheckpointFiles) -> LoadResult<Option<String>> {
    AdapterConfig::read(files).map(|config| config.base)
}

impl AdapterReader {
    /// Creates a reader for a model with these layers at `place`.
    pub(crate) fn new(layers: AdaptableLayers, place: &Placement) -> Self {
        Self { layers: layers.into_layers().into(), place: place.clone() }
    }

    /// Reads the configuration and the table of tensors.
    ///
    /// # Errors
    /// If the model has no such layers, or the directory contains anything that cannot be applied.
    pub fn open<'a>(&'a self, files: &'a CheckpointFiles) -> LoadResult<OpenAdapter<'a>> {
        let config = AdapterConfig::read(files)?;
        let file = files.name_of(FILE);
        let weights = Weights::open_file(files, FILE)?;
        let mut pairs: BTreeMap<String, Pair<'_>> = BTreeMap::new();
        for (name, shape) in weights.shapes() {
            let wrong = |reason: String| LoadError::tensor(&file, name, reason);
            let (module, part) = target(name).ok_or_else(|| wrong("is not part of a LoRA".to_owned()))?;
            if shape.len() != 2 || shape.contains(&0) {
                return Err(wrong(format!("shape {shape:?} is not the shape of a matrix")));
            }
            // A T5Gemma 2 is served without its vision tower, which does not affect texts.
            if module.starts_with(VISION) {
                continue;
            }
            let pair = pairs.entry(module).or_default();
            match part {
                Part::A => pair.a = Some((name, shape)),
                Part::B => pair.b = Some((name, shape)),
            }
        }
        if pairs.is_empty() {
            return Err(LoadError::malformed(file, "it holds no tensors"));
        }
        let mut modules = BTreeMap::new();
        for (module, pair) in pairs {
            let checked = self.checked(&module, &pair, &file, &config)?;
            modules.insert(module, checked);
        }
        Ok(OpenAdapter { reader: self, file, weights, config, modules })
    }

    /// Returns the modules that an adapter can change, with their numbers of outputs and inputs. A module in several
    /// layers appears several times.
    pub fn modules(&self) -> impl Iterator<Item = (&str, [usize; 2])> {
        self.layers.iter().flat_map(|layer| {
            layer.modules.iter().map(|module| (module.name.as_str(), [module.outputs, layer.inputs]))
        })
    }

    /// Checks the tensors of a module.
    fn checked(
        &self,
        module: &str,
        pair: &Pair<'_>,
        file: &str,
        config: &AdapterConfig,
    ) -> LoadResult<Module> {
        let missing = |part: &str| {
            let name = format!("{ROOT}{module}.{part}.weight");
            LoadError::MissingTensor { file: file.to_owned(), name }
        };
        let (a_name, a) = pair.a.ok_or_else(|| missing("lora_A"))?;
        let (b_name, b) = pair.b.ok_or_else(|| missing("lora_B"))?;
        let wrong = |name: &str, reason: String| Err(LoadError::tensor(file, name, reason));
        let Some([outputs, inputs]) = self.layers.iter().find_map(|layer| layer.shape(module)) else {
            return wrong(a_name, format!("the model has no projection `{module}`"));
        };
        let rank = a[0];
        let weight = [outputs, inputs];
        if a[1] != inputs {
            return wrong(a_name, format!("shape {a:?} does not fit the weight {weight:?}"));
        }
        if b != [outputs, rank] {
            return wrong(b_name, format!("shape {b:?} does not fit the weight {weight:?} at rank {rank}"));
        }
        if let Some(stated) = config.rank.filter(|&stated| stated != rank as u64) {
            let reason = format!("its rank is {rank}, but field `r` of the configuration is {stated}");
            return wrong(a_name, reason);
        }
        Ok(Module { a: a_name.to_owned(), b: b_name.to_owned(), rank })
    }

    /// Returns the weights of an adapter that this reader has read.
    pub(crate) fn weights(&self, adapter: Option<&Adapter>) -> ModelResult<Option<Arc<AdapterWeights>>> {
        let Some(adapter) = adapter else { return Ok(None) };
        let read = adapter.weights::<Read>().filter(|read| Arc::ptr_eq(&read.layers, &self.layers));
        read.map(|read| Some(Arc::clone(&read.weights))).ok_or(ModelError::ForeignAdapter)
    }
}

impl OpenAdapter<'_> {
    /// Returns the memory of its weights, in bytes.
    pub fn bytes(&self) -> u64 {
        let elements = self.reader.modules().filter_map(|(module, [outputs, inputs])| {
            let rank = self.modules.get(module)?.rank;
            Some((rank * (inputs + outputs)) as u64)
        });
        elements.sum::<u64>() * size_of::<f32>() as u64
    }

    /// Reads the weights.
    pub fn read(&self) -> LoadResult<Adapter> {
        let layers = &self.reader.layers;
        let changes = layers.iter().map(|layer| self.changes(layer)).collect::<LoadResult<Vec<_>>>()?;
        let widths = layers.iter().map(|layer| layer.widths.as_slice());
        let weights = AdapterWeights::new(changes.into_iter().zip(widths), &self.reader.place)?;
        Ok(Adapter::new(Read { weights: Arc::new(weights), layers: Arc::clone(layers) }))
    }

    fn changes(&self, layer: &Layer) -> LoadResult<Vec<Change>> {
        let mut first = 0;
        let mut changes = Vec::new();
        for module in &layer.modules {
            if let Some(Module { a, b: b_name, rank }) = self.modules.get(&module.name) {
                let rank = *rank;
                let a = self.weights.tensor(a, &[rank, layer.inputs], DType::F32, &Device::Cpu)?;
                let b = self.weights.tensor(b_name, &[module.outputs, rank], DType::F32, &Device::Cpu)?;
                let scale = self.config.scale(&module.name, rank);
                let b = (b * scale)?;
                if !(largest(&a)? * largest(&b)? * rank as f32).is_finite() {
                    let reason = format!(
                        "its product with lora_A may not be finite; `lora_alpha` and the rank give the scale {scale:e}"
                    );
                    return Err(LoadError::tensor(&self.file, b_name, reason));
                }
                changes.push(Change { first, a, b });
            }
            first += module.outputs;
        }
        Ok(changes)
    }
}

fn largest(tensor: &Tensor) -> LoadResult<f32> {
    Ok(tensor.abs()?.max_all()?.to_scalar()?)
}

#[derive(Debug, Clone, Copy)]
enum Part {
    A,
    B,
}

/// Returns the module that a tensor changes. Older files contain the adapter's name (`q_proj.lora_A.default.weight`),
/// and newer classes of T5Gemma 2 have the encoder of texts within another module.
fn target(name: &str) -> Option<(String, Part)> {
    let path = name.strip_prefix(ROOT)?.strip_suffix(".weight")?;
    let path = path.strip_suffix(".default").unwrap_or(path);
    let a = path.strip_suffix(".lora_A").map(|module| (module, Part::A));
    let (module, part) = a.or_else(|| Some((path.strip_suffix(".lora_B")?, Part::B)))?;
    Some((module.replacen(".encoder.text_model.", ".encoder.", 1), part))
}

#[cfg(test)]
mod tests;
