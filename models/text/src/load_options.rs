//! How to load a checkpoint: the device, the element types and the kernels.

use std::str::FromStr;

use crate::checkpoint::Choices;

/// Default size of the prefix cache, in bytes. It has room for about 6,000 tokens of a 1B Llama.
const PREFIX_BYTES_MAX: usize = 256 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU if this build supports CUDA and the machine has a GPU, otherwise the CPU.
    #[default]
    Auto,
    Cpu,
    /// The GPU with this number.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.split_once(':') {
            None if name == "auto" => Ok(Self::Auto),
            None if name == "cpu" => Ok(Self::Cpu),
            None if name == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", number)) => {
                number.parse().map(Self::Cuda).map_err(|_| format!("`{number}` is not a GPU number"))
            }
            _ => Err("expected auto, cpu, cuda or cuda:N".to_owned()),
        }
    }
}

/// Element type of the weights in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DtypeChoice {
    /// On the CPU f32; for a GGUF file with quantised weights its codes of 4 to 6 bits, and otherwise `q8_0`.
    /// On a GPU bf16.
    #[default]
    Auto,
    F32,
    /// On a CPU without bf16 tiles (AMX) only weights are bf16, and computations are f32.
    Bf16,
    /// On the CPU only weights are f16, and computations are f32.
    F16,
    /// 8-bit integers with one scale per output of a layer. CPU only.
    Int8,
    /// 8-bit integers with one scale per 32 weights. CPU only.
    Q8_0,
    /// Codes of 4 to 6 bits, as in GGUF files. CPU and decoder-only models only.
    Q4K,
}

impl DtypeChoice {
    pub const ALL: [Self; 7] =
        [Self::Auto, Self::F32, Self::Bf16, Self::F16, Self::Int8, Self::Q8_0, Self::Q4K];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_k",
        }
    }
}

impl FromStr for DtypeChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let choice = Self::ALL.into_iter().find(|choice| choice.name() == name);
        choice.ok_or_else(|| format!("`{name}` is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Element type of the keys and values of running requests and of the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvCacheDtype {
    /// The type that matmuls compute in: f32 on the CPU, the weights' type on a GPU.
    #[default]
    Auto,
    /// Needs half the memory of f32. Computations on the CPU are still f32.
    Bf16,
    /// 8-bit floats (E4M3) without scales. Larger numbers than 448 become 448. Computations do not change.
    Fp8,
}

impl KvCacheDtype {
    pub const ALL: [Self; 3] = [Self::Auto, Self::Bf16, Self::Fp8];
    /// Another name of fp8, as in vLLM.
    pub const FP8_ALIAS: &'static str = "fp8_e4m3";

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }
}

impl FromStr for KvCacheDtype {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == Self::FP8_ALIAS {
            return Ok(Self::Fp8);
        }
        let choice = Self::ALL.into_iter().find(|choice| choice.name() == name);
        choice.ok_or_else(|| format!("`{name}` is none of auto, bf16, fp8"))
    }
}

/// Which kernels compute on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelChoice {
    /// This program's kernels, except those that give wrong results in a check before models are loaded.
    #[default]
    Auto,
    /// This program's kernels, without a check.
    Own,
    /// Only candle's operations, which are slower.
    Composed,
}

impl KernelChoice {
    pub const ALL: [Self; 3] = [Self::Auto, Self::Own, Self::Composed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Own => "own",
            Self::Composed => "composed",
        }
    }
}

impl FromStr for KernelChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let choice = Self::ALL.into_iter().find(|choice| choice.name() == name);
        choice.ok_or_else(|| format!("`{name}` is none of auto, own, composed"))
    }
}

/// How to load a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    pub device: DeviceChoice,
    pub dtype: DtypeChoice,
    pub kv_cache_dtype: KvCacheDtype,
    pub kernels: KernelChoice,
    /// Whether steps on a GPU may be replayed as CUDA graphs.
    pub cuda_graphs: bool,
    /// Facts that override the checkpoint's files.
    pub choices: Choices,
    /// Maximum size of the prefix cache, in bytes. 0 turns it off.
    pub prefix_bytes_max: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            dtype: DtypeChoice::default(),
            kv_cache_dtype: KvCacheDtype::default(),
            kernels: KernelChoice::default(),
            cuda_graphs: true,
            choices: Choices::default(),
            prefix_bytes_max: PREFIX_BYTES_MAX,
        }
    }
}
