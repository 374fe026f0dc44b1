//! Loads this package's kernels. An image contains machine code for several generations of GPUs, and PTX. The
//! driver chooses, and compiles the PTX only for GPUs that are not among them. candle loads PTX texts only.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda::WrapErr;
use candle_core::cuda::cudarc::driver::{CudaFunction, CudaModule, DriverError};
use candle_core::cuda::cudarc::nvrtc::Ptx;
use candle_core::{CudaDevice, Result};

/// The kernels of one source file.
pub(crate) struct Image {
    name: &'static str,
    fatbin: &'static [u8],
}

macro_rules! image {
    ($name:literal) => {
        Image { name: $name, fatbin: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")) }
    };
}

pub(crate) const ATTENTION: Image = image!("attention");
pub(crate) const LAYER: Image = image!("layer");
pub(crate) const LOGITS: Image = image!("logits");
pub(crate) const PROMPT: Image = image!("prompt");

/// The generations with machine code in the images, such as `80 90`.
const GENERATIONS: &str = env!("NTL_CUDA_GENERATIONS");

/// Images that a GPU has loaded, and functions that were looked up, by name.
#[derive(Default)]
struct Loaded {
    modules: HashMap<&'static str, Arc<CudaModule>>,
    functions: HashMap<String, CudaFunction>,
}

/// Loaded images and functions by GPU. They stay until the process ends, because all devices that candle
/// opens on a GPU share one context.
static LOADED: Mutex<BTreeMap<usize, Loaded>> = Mutex::new(BTreeMap::new());

impl Image {
    /// Returns a kernel. Loads the image and looks up the kernel on first use.
    pub(crate) fn function(&self, device: &CudaDevice, kernel: &str) -> Result<CudaFunction> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let mut gpus = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let Loaded { modules, functions } = gpus.entry(context.ordinal()).or_default();
        if let Some(function) = functions.get(kernel) {
            return Ok(function.clone());
        }
        let module = match modules.entry(self.name) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(place) => {
                place.insert(context.load_module(Ptx::from_binary(self.fatbin.to_vec())).w()?)
            }
        };
        let function = module.load_function(kernel).w()?;
        functions.insert(kernel.to_owned(), function.clone());
        Ok(function)
    }
}

/// The generation of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeCapability {
    major: i32,
    minor: i32,
}

impl ComputeCapability {
    pub fn of(device: &CudaDevice) -> std::result::Result<Self, DriverError> {
        let (major, minor) = device.cuda_stream().context().compute_capability()?;
        Ok(Self { major, minor })
    }

    /// Returns whether this program has machine code for the GPU, so that its driver need not compile the
    /// kernels. Code for a GPU also runs on later GPUs of the same major version.
    pub fn has_machine_code(self) -> bool {
        self.is_served_by(GENERATIONS)
    }

    fn is_served_by(self, generations: &str) -> bool {
        let mut codes = generations.split(' ').filter_map(|code| code.parse::<i32>().ok());
        codes.any(|code| code / 10 == self.major && code % 10 <= self.minor)
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_runs_on_later_gpus_of_its_major_version() {
        let served = |major, minor| ComputeCapability { major, minor }.is_served_by("80 89 90 100 120");
        assert!(
            [(8, 0), (8, 6), (8, 9), (9, 0), (10, 3), (12, 1)]
                .into_iter()
                .all(|(major, minor)| served(major, minor))
        );
        assert!(!served(7, 5) && !served(11, 0) && !served(13, 0));
        assert!(!ComputeCapability { major: 8, minor: 0 }.is_served_by("89"));
    }
}
