//! How near decoding comes to what memory allows: the bytes of weights that a step has to read, beside the bandwidth that
//! this process measures.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use candle_core::{DType, Device, Tensor};
use ntl_models::checkpoint::{CheckpointFiles, Weights};
use rayon::prelude::*;
use serde::Serialize;

use crate::stats::Spread;

/// Far beyond every cache.
const BUFFER_BYTES: usize = 512 << 20;

/// Read or copied by one task.
const CHUNK_WORDS: usize = 1 << 17;

const ROUNDS: usize = 7;

/// Copies between two synchronisations with a device.
const DEVICE_COPIES: usize = 20;

/// Bytes a second that all threads of the process move together, or that a device moves within its memory.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Bandwidth {
    /// Of a sum over a buffer; not measured on devices.
    pub read: Option<Spread>,
    /// Of a copy; bytes read and bytes written both count.
    pub copy: Spread,
}

impl Bandwidth {
    /// Takes about a second.
    pub fn measure() -> Self {
        let words = BUFFER_BYTES / size_of::<u64>();
        let (from, mut to) = (vec![1u64; words], vec![2u64; words]);
        let read = || {
            let sum = |chunk: &[u64]| chunk.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
            black_box(black_box(&from).par_chunks(CHUNK_WORDS).map(sum).reduce(|| 0, u64::wrapping_add));
        };
        let read = bytes_per_second(BUFFER_BYTES, read);
        let copy = || {
            let chunks = to.par_chunks_mut(CHUNK_WORDS).zip(black_box(&from).par_chunks(CHUNK_WORDS));
            chunks.for_each(|(to, from)| to.copy_from_slice(from));
        };
        Self { read: Some(read), copy: bytes_per_second(2 * BUFFER_BYTES, copy) }
    }

    /// Copies `bytes` within a device's memory.
    pub fn measure_on(device: &Device, bytes: usize) -> anyhow::Result<Self> {
        let buffer = Tensor::zeros(bytes, DType::U8, device)?;
        let copies = || -> anyhow::Result<f64> {
            device.synchronize()?;
            let started = Instant::now();
            for _ in 0..DEVICE_COPIES {
                black_box(buffer.copy()?);
            }
            device.synchronize()?;
            Ok((2 * bytes * DEVICE_COPIES) as f64 / started.elapsed().as_secs_f64())
        };
        copies()?;
        let rounds = (0..ROUNDS).map(|_| copies()).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { read: None, copy: Spread::of(rounds) })
    }

    /// What decoding is compared with: reading, or copying where only that is measured.
    fn limit(&self) -> Spread {
        self.read.unwrap_or(self.copy)
    }
}

fn bytes_per_second(bytes: usize, mut work: impl FnMut()) -> Spread {
    work();
    let round = |_| {
        let started = Instant::now();
        work();
        bytes as f64 / started.elapsed().as_secs_f64()
    };
    Spread::of((0..ROUNDS).map(round))
}

#[derive(Debug, Clone, Serialize)]
pub struct Roofline {
    pub bandwidth: Bandwidth,
    /// Weights that a step of any number of rows reads at least once.
    pub step_weights: u64,
    pub step_bytes: f64,
    /// Bytes of weights a second that steps of one row read.
    pub decode: Spread,
    /// Share of the median of `bandwidth.read`, on a device of `bandwidth.copy`.
    pub share: Spread,
}

impl Roofline {
    /// `dtype` is that of the weights in memory, `steps` are seconds of decoding steps of one row.
    pub fn of(folder: &Path, dtype: &str, steps: &[f64], device: &Device) -> anyhow::Result<Self> {
        let bandwidth =
            if device.is_cpu() { Bandwidth::measure() } else { Bandwidth::measure_on(device, BUFFER_BYTES)? };
        let step_weights = step_weights(folder)?;
        let step_bytes = element_bytes(dtype)? * step_weights as f64;
        let decode = Spread::of(steps.iter().map(|seconds| step_bytes / seconds));
        let share = decode.times(bandwidth.limit().median.recip());
        Ok(Self { bandwidth, step_weights, step_bytes, decode, share })
    }

    pub fn line(&self) -> String {
        let gigabytes = |spread: Spread| format!("{:.1}", spread.times(1e-9));
        let Bandwidth { read, copy } = self.bandwidth;
        let (memory, limit) = match read {
            Some(read) => {
                (format!("memory: read {} GB/s, copy {} GB/s", gigabytes(read), gigabytes(copy)), "reading")
            }
            None => (format!("device memory: copy {} GB/s", gigabytes(copy)), "copying"),
        };
        format!(
            "{memory}; a step reads {:.0} MB of weights, batch 1 at {} GB/s: {:.0} % of {limit}",
            self.step_bytes / 1e6,
            gigabytes(self.decode),
            self.share.times(100.0)
        )
    }
}

/// Bytes of a weight, scales of quantised ones included.
fn element_bytes(dtype: &str) -> anyhow::Result<f64> {
    match dtype {
        "f32" => Ok(4.0),
        "f16" | "bf16" => Ok(2.0),
        // Scales of whole outputs are left out.
        "int8" => Ok(1.0),
        // A scale of two bytes for each 32 weights.
        "q8_0" => Ok(34.0 / 32.0),
        _ => bail!("the size of {dtype} weights is unknown"),
    }
}

/// Weights that a step multiplies with: those of the decoder and of the output layer. Not the encoder, not the keys and
/// values of cross-attention (computed once for each prompt), not the embedding table, of which a step reads a row.
fn step_weights(folder: &Path) -> anyhow::Result<u64> {
    let files = CheckpointFiles::folder(folder)?.tables_only();
    let weights = Weights::open(&files)?;
    let size = |(name, shape): (&str, &[usize])| (name.to_owned(), shape.iter().product::<usize>() as u64);
    Ok(count(&weights.shapes().map(size).collect()))
}

fn count(sizes: &BTreeMap<String, u64>) -> u64 {
    const ONCE: [&str; 3] = ["EncDecAttention.k.", "EncDecAttention.v.", "relative_attention_bias"];
    let stepped = |name: &str| {
        let layer =
            ["decoder.block.", "model.layers.", "transformer.h."].iter().any(|part| name.starts_with(part));
        layer && !ONCE.iter().any(|part| name.contains(part))
    };
    let layers: u64 = sizes.iter().filter(|(name, _)| stepped(name)).map(|(_, size)| size).sum();
    let heads = ["lm_head.weight", "shared.weight", "model.embed_tokens.weight", "transformer.wte.weight"];
    layers + heads.iter().find_map(|name| sizes.get(*name)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_reads_decoder_and_head_and_what_is_computed_once_is_left_out() {
        let sizes = [
            ("shared.weight", 1000),
            ("encoder.block.0.layer.0.SelfAttention.q.weight", 500),
            ("decoder.block.0.layer.0.SelfAttention.q.weight", 7),
            ("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", 300),
            ("decoder.block.0.layer.1.EncDecAttention.k.weight", 200),
            ("decoder.block.0.layer.1.EncDecAttention.q.weight", 11),
        ];
        let sizes: BTreeMap<String, u64> = sizes.map(|(name, size)| (name.to_owned(), size)).into();
        assert_eq!(count(&sizes), 1018);
        let untied = sizes.into_iter().chain([("lm_head.weight".to_owned(), 100)]).collect();
        assert_eq!(count(&untied), 118);
    }

    #[test]
    fn a_device_is_measured_by_copies() {
        let measured = Bandwidth::measure_on(&Device::Cpu, 1 << 16).unwrap();
        assert!(measured.read.is_none(), "{measured:?}");
        let (limit, copy) = (measured.limit(), measured.copy);
        assert_eq!([limit.min, limit.median].map(f64::to_bits), [copy.min, copy.median].map(f64::to_bits));
        // A byte a microsecond to a petabyte a second.
        assert!(1e6 < copy.min && copy.min <= copy.median && copy.max < 1e15, "{measured:?}");
    }
}
