//! Compares this program's kernels with the same operations on the CPU, on small inputs, before a model uses
//! them.
//!
//! Kernels cannot be tested on all GPUs before a release. A kernel that gives another result, or that fails,
//! is turned off with a warning. The model then works, only slower. A comparison with candle's operations on
//! the GPU would make the driver compile most of candle's kernels, which models do not use.

use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, DeviceLocation, Result, Tensor};
use ntl_kernels::{AttentionQuery, Heads, Visible};

use crate::gpu::check_computes;
use crate::logits_reducer::LogitsReducer;
use crate::ops::own_kernels::OwnKernel;
use crate::ops::{
    Activation, Norm, PassKeys, PassRope, Plan, ProjectedRows, QkNorms, QkvSource, RelativeBias, SlotGroup,
    SlotView, add,
};

/// Element types that were checked, by device: of models, and of keys and values.
static CHECKED: Mutex<Vec<(DeviceLocation, [DType; 2])>> = Mutex::new(Vec::new());

/// Checks the kernels for elements of type `dtype` with keys and values of type `kv`, and for f32, once per
/// process, and turns off those that are wrong.
///
/// # Errors
/// If a kernel breaks the GPU, so that nothing can be computed any more. The message names the kernel.
pub(crate) fn check(device: &Device, dtype: DType, kv: DType) -> std::result::Result<(), String> {
    let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    for [dtype, kv] in [[DType::F32; 2], [dtype; 2], [dtype, kv]] {
        let key = (device.location(), [dtype, kv]);
        if checked.contains(&key) {
            continue;
        }
        for kernel in OwnKernel::ALL.into_iter().filter(|kernel| !kernel.is_off()) {
            let Err(reason) = Inputs { device, dtype, kv }.compare(kernel) else { continue };
            check_computes(device).map_err(|error| {
                format!(
                    "the kernel {} breaks it ({reason}: {error}); start with --kernels composed",
                    kernel.name()
                )
            })?;
            tracing::warn!(
                kernel = kernel.name(),
                dtype = dtype.as_str(),
                kv_cache_dtype = kv.as_str(),
                reason,
                "a kernel is wrong on this GPU and is not used; please report this"
            );
            kernel.turn_off();
        }
        checked.push(key);
    }
    Ok(())
}

/// Maximum difference relative to numbers above one: a few roundings of the type.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 4e-2,
        DType::F16 => 5e-3,
        // One rounding to three bits.
        DType::F8E4M3 => 0.13,
        _ => 1e-4,
    }
}

struct Inputs<'a> {
    device: &'a Device,
    dtype: DType,
    /// Element type of keys and values.
    kv: DType,
}

impl Inputs<'_> {
    /// Fails if the kernel fails or gives other results than the CPU.
    fn compare(&self, kernel: OwnKernel) -> std::result::Result<(), String> {
        let got = self.results_on(self.device, kernel).map_err(|error| error.to_string())?;
        let want = self.results_on(&Device::Cpu, kernel).map_err(|error| error.to_string())?;
        for ((tolerance, got), (_, want)) in got.iter().zip(&want) {
            if got.len() != want.len() {
                return Err(format!("{} numbers instead of {}", got.len(), want.len()));
            }
            for (got, want) in got.iter().zip(want) {
                // Also false if the result is NaN.
                let is_close = (got - want).abs() <= tolerance * want.abs().max(1.0);
                if !is_close {
                    return Err(format!("{got} instead of {want}"));
                }
            }
        }
        Ok(())
    }

    /// Returns the results of all variants of a kernel on a device, each with its tolerance.
    fn results_on(&self, device: &Device, kernel: OwnKernel) -> Result<Vec<(f32, Vec<f32>)>> {
        let results = Inputs { device, ..*self }.run(kernel)?;
        results.iter().map(|result| Ok((self.tolerance(result), to_host(result)?))).collect()
    }

    fn tolerance(&self, result: &Tensor) -> f32 {
        tolerance(if result.dtype() == self.kv { self.kv } else { self.dtype })
    }

    /// Returns the results of all variants of a kernel.
    fn run(&self, kernel: OwnKernel) -> Result<Vec<Tensor>> {
        match kernel {
            OwnKernel::Norm => self.norms(),
            OwnKernel::Activation => self.activations(),
            OwnKernel::Addition => self.sums(),
            OwnKernel::CacheStore => self.stores(),
            OwnKernel::SlotAttention => self.slot_attentions(),
            OwnKernel::PromptAttention => self.prompt_attentions(),
            OwnKernel::LogitsSummary => self.summaries(),
        }
    }

    /// Returns numbers between -1 and 1, the same for the same arguments.
    fn numbers(&self, shape: &[usize], seed: usize, dtype: DType) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let mut numbers = Vec::new();
        for index in 0..count {
            numbers.push(((index * 37 + index / 101 * 11 + seed * 53) % 101) as f32 / 50.0 - 1.0);
        }
        Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(self.device)
    }

    /// The row has more elements than a block has threads.
    fn norms(&self) -> Result<Vec<Tensor>> {
        const WIDTH: usize = 1100;
        let x = self.numbers(&[3, WIDTH], 1, DType::F32)?;
        let weight = self.numbers(&[WIDTH], 2, self.dtype)?;
        let bias = self.numbers(&[WIDTH], 3, self.dtype)?;
        [None, Some(&bias)].into_iter().map(|bias| Norm::new(&weight, bias, 1e-6)?.forward(&x)).collect()
    }

    fn activations(&self) -> Result<Vec<Tensor>> {
        let x = (self.numbers(&[3, 140], 1, DType::F32)? * 4.0)?;
        let mut results = Vec::new();
        for activation in [Activation::Relu, Activation::Gelu, Activation::GeluNew, Activation::Silu] {
            results.push(activation.rounded(&x, self.dtype)?);
            results.push(activation.gated(&x, self.dtype)?);
        }
        Ok(results)
    }

    fn sums(&self) -> Result<Vec<Tensor>> {
        let mut sums = Vec::new();
        for shape in [&[3, 1100][..], &[1100]] {
            let x = self.numbers(&[3, 1100], 1, DType::F32)?;
            sums.push(add(x, &self.numbers(shape, 2, DType::F32)?)?);
        }
        Ok(sums)
    }

    fn stores(&self) -> Result<Vec<Tensor>> {
        const QUERIES: usize = 6;
        const KEYS: usize = 2;
        const DIM: usize = 16;
        let qkv = self.numbers(&[3, (QUERIES + 2 * KEYS) * DIM], 1, DType::F32)?;
        let heads = QkNorms { q: self.head_norm(DIM, 2)?, k: self.head_norm(DIM, 3)? };
        let all = QkNorms { q: self.head_norm(QUERIES * DIM, 4)?, k: self.head_norm(KEYS * DIM, 5)? };
        let frequencies = [1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01];
        let whole = PassRope::new([0, 5, 9].into_iter(), &frequencies, 1.0, DIM);
        let half = PassRope::new([0, 5, 9].into_iter(), &frequencies[..4], 1.2, DIM);
        let slots = Tensor::new(&[4u32, 0, 2], self.device)?;
        let mut results = Vec::new();
        for (qk_norms, rope) in
            [(None, None), (Some(&heads), Some(&whole)), (Some(&all), Some(&whole)), (None, Some(&half))]
        {
            let slab = Tensor::zeros((10, KEYS * DIM), self.kv, self.device)?;
            let rows = ProjectedRows { qkv: &qkv, queries: QUERIES, keys: KEYS, qk_norms, rope };
            results.extend(rows.store(&slab, &slots)?);
            results.push(slab);
        }
        Ok(results)
    }

    fn head_norm(&self, dim: usize, seed: usize) -> Result<Norm> {
        Norm::new(&self.numbers(&[dim], seed, self.dtype)?, None, 1e-6).map(Norm::exact)
    }

    /// Rows of a tree and of a long text, whose keys are split among blocks, for every number of heads that
    /// the kernel computes together, and for heads that it cannot load in one piece.
    fn slot_attentions(&self) -> Result<Vec<Tensor>> {
        const CAPACITY: u32 = 600;
        let tree: [&[u32]; 3] = [&[0, 1], &[0, 2], &[0, 2, 5]];
        let mut results = Vec::new();
        for (sharing, dim, keys) in [(1, 16, 520), (2, 16, 40), (4, 16, 40), (8, 64, 40), (2, 12, 40)] {
            let heads =
                Heads { queries: 2 * sharing, keys: 2, scale: 0.4, cap: (sharing == 2).then_some(3.0) };
            let queries =
                tree.map(|path| AttentionQuery { visible: Visible::Nodes(path), hidden: 2, position: 41 });
            let end = AttentionQuery { visible: Visible::First(keys), hidden: 0, position: keys - 1 };
            let own = scattered_slots(6, CAPACITY);
            let groups = vec![
                SlotGroup::new(scattered_slots(39, CAPACITY), &own, queries.to_vec()),
                SlotGroup::packed(scattered_slots(keys as u32, CAPACITY), vec![end]),
            ];
            let bias = bias(heads);
            let view = SlotView { groups, bias: (sharing != 4).then_some(&bias) };
            let pass = PassKeys::new(&[0], vec![view], self.device)?;
            let slab = self.numbers(&[2 * CAPACITY as usize, heads.keys * dim], 1, self.kv)?;
            let q = self.numbers(&[4, heads.queries * dim], 2, DType::F32)?;
            for attention in &pass.attentions {
                results.push(attention.attend(&q, &slab, heads, self.dtype)?);
            }
        }
        Ok(results)
    }

    /// Two prompts of different lengths, from projections and from the cache.
    fn prompt_attentions(&self) -> Result<Vec<Tensor>> {
        const DIM: usize = 16;
        let heads = Heads { queries: 4, keys: 2, scale: 0.4, cap: Some(3.0) };
        let lengths = [70usize, 33];
        let mut groups = Vec::new();
        let mut rows = 0;
        for length in lengths {
            let slots = (rows as u32..(rows + length) as u32).collect();
            let mut queries = Vec::new();
            for position in 0..length {
                queries.push(AttentionQuery { visible: Visible::First(position + 1), hidden: 0, position });
            }
            groups.push(SlotGroup::packed(slots, queries));
            rows += length;
        }
        let bias = bias(heads);
        let plan = Plan::new(groups, Some(&bias), self.device)?;
        let qkv = self.numbers(&[rows, (heads.queries + 2 * heads.keys) * DIM], 1, DType::F32)?;
        let q = self.numbers(&[rows, heads.queries * DIM], 2, DType::F32)?;
        let slab = self.numbers(&[2 * rows, heads.keys * DIM], 3, self.kv)?;
        [QkvSource::rows(&qkv, heads, self.dtype)?, QkvSource::cached(&q, &slab, heads, self.dtype)?]
            .into_iter()
            .map(|source| plan.attend(source, heads))
            .collect()
    }

    fn summaries(&self) -> Result<Vec<Tensor>> {
        let logits = (self.numbers(&[3, 1300], 1, self.dtype)? * 5.0)?;
        Ok(vec![LogitsReducer::new(1250).summary(&logits)?])
    }
}

/// Returns `count` different slots, not in order.
fn scattered_slots(count: u32, capacity: u32) -> Vec<u32> {
    (0..count).map(|index| (index * 7 + 3) % capacity).collect()
}

fn bias(heads: Heads) -> RelativeBias {
    RelativeBias::new(heads.queries, 8, |head, distance| {
        head as f32 * 0.1 - distance.clamp(-8, 8) as f32 * 0.05
    })
}

fn to_host(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}
