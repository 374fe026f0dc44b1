//! Compares decoding with the memory roofline: the bytes of weights that a step must read, and the bandwidth
//! that this process measures.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use candle_core::{DType, Device, Tensor};
use ntl_models::Weights;
use ntl_text::checkpoint::CheckpointFiles;
use rayon::prelude::*;
use serde::Serialize;

use crate::stats::Spread;

/// Much larger than every cache.
const BUFFER_BYTES: usize = 512 << 20;

/// Number of words that one task reads or copies.
const CHUNK_WORDS: usize = 1 << 17;

const ROUNDS: usize = 7;

/// Number of copies between two synchronisations with a device.
const DEVICE_COPIES: usize = 20;

/// Bytes per second that all threads of the process move together, or that a device moves within its memory.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Bandwidth {
    /// Bandwidth of summing a buffer; not measured on devices.
    pub read: Option<Spread>,
    /// Bandwidth of a copy; counts both the bytes read and the bytes written.
    pub copy: Spread,
}

impl Bandwidth {
    /// Measures the CPU's memory bandwidth, which takes about a second.
    pub fn measure() -> Self {
        let words = BUFFER_BYTES / size_of::<u64>();
        let from = vec![1u64; words];
        let mut to = vec![2u64; words];
        let read = bytes_per_second(BUFFER_BYTES, || {
            let chunks = black_box(&from).par_chunks(CHUNK_WORDS);
            let sums = chunks.map(|chunk| chunk.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
            black_box(sums.reduce(|| 0, u64::wrapping_add));
        });
        let copy = bytes_per_second(2 * BUFFER_BYTES, || {
            let chunks = to.par_chunks_mut(CHUNK_WORDS).zip(black_box(&from).par_chunks(CHUNK_WORDS));
            chunks.for_each(|(to, from)| to.copy_from_slice(from));
        });
        Self { read: Some(read), copy }
    }

    /// Measures the bandwidth of a device by copying `bytes` within its memory.
    pub fn measure_on(device: &Device, bytes: usize) -> anyhow::Result<Self> {
        let buffer = Tensor::zeros(bytes, DType::U8, device)?;
        copied_bytes_per_second(device, &buffer, bytes)?;
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            rounds.push(copied_bytes_per_second(device, &buffer, bytes)?);
        }
        Ok(Self { read: None, copy: Spread::of(rounds) })
    }

    /// Returns the bandwidth that decoding is compared with: reading or, if that was not measured, copying.
    fn limit(&self) -> Spread {
        self.read.unwrap_or(self.copy)
    }
}

fn bytes_per_second(bytes: usize, mut work: impl FnMut()) -> Spread {
    work();
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        work();
        rounds.push(bytes as f64 / started.elapsed().as_secs_f64());
    }
    Spread::of(rounds)
}

/// Times copies of a buffer of `bytes` on a device.
fn copied_bytes_per_second(device: &Device, buffer: &Tensor, bytes: usize) -> anyhow::Result<f64> {
    device.synchronize()?;
    let started = Instant::now();
    for _ in 0..DEVICE_COPIES {
        black_box(buffer.copy()?);
    }
    device.synchronize()?;
    Ok((2 * bytes * DEVICE_COPIES) as f64 / started.elapsed().as_secs_f64())
}

#[derive(Debug, Clone, Serialize)]
pub struct Roofline {
    pub bandwidth: Bandwidth,
    /// Number of weights that a step reads at least once, regardless of its number of rows.
    pub step_weights: u64,
    pub step_bytes: f64,
    /// Bytes of weights per second that one-row steps read.
    pub decode: Spread,
    /// `decode` as a share of the median of `bandwidth.read`, or of `bandwidth.copy` on a device.
    pub share: Spread,
}

impl Roofline {
    /// `dtype` is the type of the weights in memory; `steps` are the durations of one-row decoding steps, in
    /// seconds.
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

fn gigabytes(bytes: Spread) -> String {
    format!("{:.1}", bytes.times(1e-9))
}

/// Returns the average number of bytes per weight, including the scales of quantised weights.
fn element_bytes(dtype: &str) -> anyhow::Result<f64> {
    match dtype {
        "f32" => Ok(4.0),
        "f16" | "bf16" => Ok(2.0),
        // The scale of each output is not counted.
        "int8" => Ok(1.0),
        // Each block of 32 weights has a two-byte scale.
        "q8_0" => Ok(34.0 / 32.0),
        _ => bail!("the size of {dtype} weights is unknown"),
    }
}

/// Returns the number of weights that a step multiplies by: the weights of the decoder and of the output
/// layer. The encoder, the keys and values of cross-attention (computed once per prompt) and the embedding
/// table (a step reads only single rows of it) do not count.
fn step_weights(folder: &Path) -> anyhow::Result<u64> {
    let files = CheckpointFiles::folder(folder)?.tables_only();
    let weights = Weights::open(&files)?;
    let mut sizes = BTreeMap::new();
    for (name, shape) in weights.shapes() {
        sizes.insert(name.to_owned(), shape.iter().product::<usize>() as u64);
    }
    Ok(count(&sizes))
}

fn count(sizes: &BTreeMap<String, u64>) -> u64 {
    let layers: u64 = sizes.iter().filter(|(name, _)| is_in_layer(name)).map(|(_, size)| size).sum();
    let heads = ["lm_head.weight", "shared.weight", "model.embed_tokens.weight", "transformer.wte.weight"];
    layers + heads.iter().find_map(|name| sizes.get(*name)).copied().unwrap_or(0)
}

/// Returns whether a step reads the tensor `name` in one of its layers.
fn is_in_layer(name: &str) -> bool {
    const LAYERS: [&str; 3] = ["decoder.block.", "model.layers.", "transformer.h."];
    const ONCE: [&str; 3] = ["EncDecAttention.k.", "EncDecAttention.v.", "relative_attention_bias"];
    LAYERS.iter().any(|part| name.starts_with(part)) && !ONCE.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_reads_the_decoder_and_head_but_no_weights_that_are_used_once_per_prompt() {
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
        let limit = measured.limit();
        let copy = measured.copy;
        assert_eq!([limit.min, limit.median].map(f64::to_bits), [copy.min, copy.median].map(f64::to_bits));
        // Between one byte per microsecond and one petabyte per second.
        assert!(1e6 < copy.min && copy.min <= copy.median && copy.max < 1e15, "{measured:?}");
    }
}
