//! LoRA adapters in PEFT's format for the layers of a loaded model.
//!
//! In: a directory with `adapter_config.json` and `adapter_model.safetensors`. Out: an
//! [`Adapter`](ntl_core::contract::Adapter), with which the model computes `W x + scale * B A x` (LoRA, arXiv
//! 2106.09685) in place of `W x`. Layers of heads that the directory stores completely (`modules_to_save`)
//! replace the model's. Anything in a directory that the model cannot apply is an error.

mod config;
mod layers;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use candle_core::{DType, Device, Tensor};
use ntl_core::contract::{Adapter, ModelError};
use ntl_text::checkpoint::{CheckpointFiles, LoadError, LoadResult};

use crate::ops::{AdapterWeights, Change, ModelResult, Placement, SiteChange, compute_error, device_error};
use crate::weights::Weights;

use config::LoraConfig;
pub(crate) use layers::AdaptableLayers;
use layers::Layer;

const FILE: &str = "adapter_model.safetensors";

/// PEFT's prefix of module names.
const ROOT: &str = "base_model.model.";

/// Prefix of the modules of a vision tower.
const VISION: &str = "model.encoder.vision_tower.";

/// Reads the adapters of one model. Clones read for the same model, on any thread: a reader has no GPU.
#[derive(Clone)]
pub struct AdapterReader {
    layers: Arc<[Layer]>,
    /// Where a model on the CPU computes. On a GPU, the thread of the model copies the weights to it.
    cpu: Option<Placement>,
}

/// The adapters that one model computes with, and their weights on its device. Only the thread of the model
/// uses its GPU: another thread could add work to a CUDA graph that is being recorded, or free memory without
/// a CUDA context.
pub(crate) struct ModelAdapters {
    reader: AdapterReader,
    place: Placement,
    /// Weights on the GPU, by the ids of their adapters.
    copied: HashMap<u64, CopiedWeights>,
}

struct CopiedWeights {
    /// Dropped with the last handle to the adapter.
    read: Weak<Read>,
    weights: Arc<AdapterWeights>,
}

/// An adapter whose tables fit the model, and whose weights are not read yet.
pub struct OpenAdapter<'a> {
    reader: &'a AdapterReader,
    file: String,
    weights: Weights<'a>,
    config: LoraConfig,
    modules: BTreeMap<String, ModuleTensors>,
}

/// The names of a module's tensors.
enum ModuleTensors {
    LowRank {
        a: String,
        b: String,
        rank: usize,
    },
    /// Replaces the module of the model.
    Saved {
        weight: String,
        bias: Option<String>,
    },
}

/// The weights, and the layers that they fit.
struct Read {
    weights: ReadWeights,
    layers: Arc<[Layer]>,
}

enum ReadWeights {
    /// Packed for the kernels of the CPU.
    Packed(Arc<AdapterWeights>),
    /// The change of each layer, to be copied to a GPU.
    Stored(Vec<SiteChange>),
}

/// The name and shape of a tensor in the file.
type StoredTensor<'a> = (&'a str, &'a [usize]);

/// The tensors of a module in the file.
#[derive(Default)]
struct StoredModule<'a> {
    a: Option<StoredTensor<'a>>,
    b: Option<StoredTensor<'a>>,
    weight: Option<StoredTensor<'a>>,
    bias: Option<StoredTensor<'a>>,
}

/// Returns the name or the directory of the model that an adapter was trained on, if its configuration states
/// it.
pub fn adapter_base(files: &CheckpointFiles) -> LoadResult<Option<String>> {
    LoraConfig::read(files).map(|config| config.base)
}

impl ModelAdapters {
    /// Creates the adapters of a model with these layers at `place`.
    pub(crate) fn new(layers: AdaptableLayers, place: &Placement) -> Self {
        let cpu = place.device.is_cpu().then(|| place.clone());
        let reader = AdapterReader { layers: layers.into_layers().into(), cpu };
        Self { reader, place: place.clone(), copied: HashMap::new() }
    }

    pub(crate) fn reader(&self) -> &AdapterReader {
        &self.reader
    }

    /// Returns the weights of an adapter that the reader has read, on the device of the model. Frees the
    /// weights of adapters that nothing uses any more.
    pub(crate) fn weights(&mut self, adapter: Option<&Adapter>) -> ModelResult<Option<Arc<AdapterWeights>>> {
        self.copied.retain(|_, copied| copied.read.strong_count() > 0);
        let Some(adapter) = adapter else { return Ok(None) };
        let layers = &self.reader.layers;
        let read = adapter.weights::<Read>().filter(|read| Arc::ptr_eq(&read.layers, layers));
        let read = read.ok_or(ModelError::ForeignAdapter)?;
        let changes = match &read.weights {
            ReadWeights::Packed(weights) => return Ok(Some(Arc::clone(weights))),
            ReadWeights::Stored(changes) => changes,
        };
        if let Some(copied) = self.copied.get(&adapter.id()) {
            return Ok(Some(Arc::clone(&copied.weights)));
        }
        let weights = Arc::new(placed(changes, layers, &self.place).map_err(compute_error)?);
        let copied = CopiedWeights { read: Arc::downgrade(&read), weights: Arc::clone(&weights) };
        self.copied.insert(adapter.id(), copied);
        Ok(Some(weights))
    }
}

/// Returns the weights at `place` from the change of each layer.
fn placed(
    changes: &[SiteChange],
    layers: &[Layer],
    place: &Placement,
) -> candle_core::Result<AdapterWeights> {
    let widths = layers.iter().map(|layer| layer.widths.as_slice());
    AdapterWeights::new(changes.iter().zip(widths), place)
}

impl AdapterReader {
    /// Reads the configuration and the table of tensors.
    ///
    /// # Errors
    /// If the model has no such layers, or the directory contains anything that cannot be applied.
    pub fn open<'a>(&'a self, files: &'a CheckpointFiles) -> LoadResult<OpenAdapter<'a>> {
        let config = LoraConfig::read(files)?;
        let file = files.name_of(FILE);
        let weights = Weights::open_file(files, FILE)?;
        let mut stored: BTreeMap<String, StoredModule<'_>> = BTreeMap::new();
        for (name, shape) in weights.shapes() {
            let wrong = |reason: String| LoadError::tensor(&file, name, reason);
            let (module, part) = target(name).ok_or_else(|| wrong("is not part of a LoRA".to_owned()))?;
            if part.is_saved() && !config.saves(&module) {
                return Err(wrong("is not part of a LoRA, and not in `modules_to_save`".to_owned()));
            }
            let (dimensions, form) = part.form();
            if shape.len() != dimensions || shape.contains(&0) {
                return Err(wrong(format!("shape {shape:?} is not the shape of a {form}")));
            }
            // A T5Gemma 2 is served without its vision tower, which does not affect texts.
            if module.starts_with(VISION) {
                continue;
            }
            *stored.entry(module).or_default().part(part) = Some((name, shape));
        }
        if stored.is_empty() {
            return Err(LoadError::malformed(file, "it holds no tensors"));
        }
        let mut modules = BTreeMap::new();
        for (module, stored) in stored {
            let checked = if stored.is_saved() {
                self.checked_saved(&module, &stored, &file)?
            } else {
                self.checked_low_rank(&module, &stored, &file, &config)?
            };
            modules.insert(module, checked);
        }
        for (module, _) in self.modules() {
            if config.saves(module) && !modules.contains_key(module) {
                return Err(missing(&file, module, "weight"));
            }
        }
        Ok(OpenAdapter { reader: self, file, weights, config, modules })
    }

    /// Returns the modules that an adapter can change, with their numbers of outputs and inputs. A module in
    /// several layers appears several times.
    pub fn modules(&self) -> impl Iterator<Item = (&str, [usize; 2])> {
        self.layers.iter().flat_map(|layer| {
            layer.modules.iter().map(|module| (module.name.as_str(), [module.outputs, layer.inputs]))
        })
    }

    /// Checks the tensors of a module that is changed.
    fn checked_low_rank(
        &self,
        module: &str,
        stored: &StoredModule<'_>,
        file: &str,
        config: &LoraConfig,
    ) -> LoadResult<ModuleTensors> {
        let (a_name, a) = stored.a.ok_or_else(|| missing(file, module, "lora_A.weight"))?;
        let (b_name, b) = stored.b.ok_or_else(|| missing(file, module, "lora_B.weight"))?;
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
        Ok(ModuleTensors::LowRank { a: a_name.to_owned(), b: b_name.to_owned(), rank })
    }

    /// Checks the tensors of a module that is replaced.
    fn checked_saved(
        &self,
        module: &str,
        stored: &StoredModule<'_>,
        file: &str,
    ) -> LoadResult<ModuleTensors> {
        let wrong = |name: &str, reason: String| Err(LoadError::tensor(file, name, reason));
        let (name, shape) = stored.weight.ok_or_else(|| missing(file, module, "weight"))?;
        if let Some((name, _)) = stored.a.or(stored.b) {
            return wrong(name, "`modules_to_save` replaces its module".to_owned());
        }
        let layer = self.layers.iter().find(|layer| layer.is_replaceable && layer.shape(module).is_some());
        let Some((layer, wanted)) = layer.and_then(|layer| Some((layer, layer.shape(module)?))) else {
            return wrong(name, format!("`{module}` is not a layer that predicts the labels of the model"));
        };
        if shape != wanted {
            return wrong(name, format!("shape {shape:?} does not fit the weight {wanted:?} of the model"));
        }
        let bias = match (stored.bias, layer.has_bias) {
            (None, false) => None,
            (None, true) => return Err(missing(file, module, "bias")),
            (Some((name, _)), false) => return wrong(name, "the module of the model has no bias".to_owned()),
            (Some((name, shape)), true) if shape != &wanted[..1] => {
                return wrong(name, format!("shape {shape:?} does not fit the weight {wanted:?}"));
            }
            (Some((name, _)), true) => Some(name.to_owned()),
        };
        Ok(ModuleTensors::Saved { weight: name.to_owned(), bias })
    }
}

impl OpenAdapter<'_> {
    /// Returns the memory of its weights, in bytes.
    pub fn bytes(&self) -> u64 {
        let elements = self.reader.modules().filter_map(|(module, [outputs, inputs])| {
            Some(match self.modules.get(module)? {
                ModuleTensors::LowRank { rank, .. } => rank * (inputs + outputs),
                ModuleTensors::Saved { bias, .. } => outputs * (inputs + usize::from(bias.is_some())),
            } as u64)
        });
        elements.sum::<u64>() * size_of::<f32>() as u64
    }

    /// Reads the weights.
    pub fn read(&self) -> LoadResult<Adapter> {
        let layers = &self.reader.layers;
        let changes = layers.iter().map(|layer| self.change(layer)).collect::<LoadResult<Vec<_>>>()?;
        let weights = match &self.reader.cpu {
            Some(place) => {
                ReadWeights::Packed(Arc::new(placed(&changes, layers, place).map_err(device_error)?))
            }
            None => ReadWeights::Stored(changes),
        };
        Ok(Adapter::new(Read { weights, layers: Arc::clone(layers) }))
    }

    fn change(&self, layer: &Layer) -> LoadResult<SiteChange> {
        let mut first = 0;
        let mut changes = Vec::new();
        for module in &layer.modules {
            let (outputs, inputs) = (module.outputs, layer.inputs);
            match self.modules.get(&module.name) {
                Some(ModuleTensors::LowRank { a, b, rank }) => {
                    let [a, b] = self.low_rank(module, [a, b], [outputs, *rank, inputs])?;
                    changes.push(Change { first, a, b });
                }
                Some(ModuleTensors::Saved { weight, bias }) => {
                    let weight = self.tensor(weight, &[outputs, inputs])?;
                    let bias = bias.as_ref().map(|bias| self.tensor(bias, &[outputs])).transpose()?;
                    return Ok(SiteChange::Replacement { weight, bias });
                }
                None => {}
            }
            first += outputs;
        }
        Ok(SiteChange::LowRank(changes))
    }

    /// Returns `A` `[rank, inputs]` and `B` `[outputs, rank]`, which has the scale.
    fn low_rank(
        &self,
        module: &layers::Module,
        [a, b_name]: [&String; 2],
        [outputs, rank, inputs]: [usize; 3],
    ) -> LoadResult<[Tensor; 2]> {
        let a = self.tensor(a, &[rank, inputs])?;
        let scale = self.config.scale(&module.name, rank);
        let b = (self.tensor(b_name, &[outputs, rank])? * scale).map_err(device_error)?;
        let largest = largest(&a).and_then(|a| Ok(a * largest(&b)?)).map_err(device_error)?;
        if !(largest * rank as f32).is_finite() {
            let reason = format!(
                "its product with lora_A may not be finite; `lora_alpha` and the rank give the scale {scale:e}"
            );
            return Err(LoadError::tensor(&self.file, b_name, reason));
        }
        Ok([a, b])
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> LoadResult<Tensor> {
        self.weights.tensor(name, shape, DType::F32, &Device::Cpu)
    }
}

impl<'a> StoredModule<'a> {
    fn part(&mut self, part: Part) -> &mut Option<StoredTensor<'a>> {
        match part {
            Part::A => &mut self.a,
            Part::B => &mut self.b,
            Part::Weight => &mut self.weight,
            Part::Bias => &mut self.bias,
        }
    }

    /// Returns whether it has tensors in place of the model's.
    fn is_saved(&self) -> bool {
        self.weight.is_some() || self.bias.is_some()
    }
}

fn largest(tensor: &Tensor) -> candle_core::Result<f32> {
    tensor.abs()?.max_all()?.to_scalar()
}

/// Returns the error about a tensor of a module that the file lacks.
fn missing(file: &str, module: &str, part: &str) -> LoadError {
    LoadError::MissingTensor { file: file.to_owned(), name: format!("{ROOT}{module}.{part}") }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    A,
    B,
    Weight,
    Bias,
}

impl Part {
    /// Returns whether the tensor takes the place of the model's.
    fn is_saved(self) -> bool {
        matches!(self, Self::Weight | Self::Bias)
    }

    /// Returns the number of dimensions, and their name.
    fn form(self) -> (usize, &'static str) {
        match self {
            Self::A | Self::B | Self::Weight => (2, "matrix"),
            Self::Bias => (1, "vector"),
        }
    }
}

/// Returns the module that a tensor changes or replaces. Older files contain the adapter's name
/// (`q_proj.lora_A.default.weight`), and newer classes of T5Gemma 2 have the encoder of texts within another
/// module.
fn target(name: &str) -> Option<(String, Part)> {
    let path = name.strip_prefix(ROOT)?;
    let (module, part) = match path.strip_suffix(".weight") {
        Some(path) => {
            let path = path.strip_suffix(".default").unwrap_or(path);
            if let Some(module) = path.strip_suffix(".lora_A") {
                (module, Part::A)
            } else if let Some(module) = path.strip_suffix(".lora_B") {
                (module, Part::B)
            } else {
                (path, Part::Weight)
            }
        }
        None => (path.strip_suffix(".bias")?, Part::Bias),
    };
    Some((module.replacen(".encoder.text_model.", ".encoder.", 1), part))
}

#[cfg(test)]
mod tests;
