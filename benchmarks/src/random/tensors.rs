//! Random tensors: planned first, and generated while their safetensors file is written.

use std::io::{self, Write};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(super) struct Planned {
    name: String,
    shape: Vec<usize>,
    fill: Fill,
}

enum Fill {
    Constant(f32),
    /// Uniform between minus and plus this value.
    Uniform(f32),
}

/// Plans a tensor of uniform numbers around zero with this standard deviation.
pub(super) fn random(name: impl Into<String>, deviation: f64, shape: &[usize]) -> Planned {
    let fill = Fill::Uniform((deviation * 3f64.sqrt()) as f32);
    Planned { name: name.into(), shape: shape.to_vec(), fill }
}

pub(super) fn filled(name: impl Into<String>, value: f64, len: usize) -> Planned {
    Planned { name: name.into(), shape: vec![len], fill: Fill::Constant(value as f32) }
}

/// Returns the standard deviation of weights that preserves variance in sums of `inputs` products.
pub(super) fn scale_for(inputs: usize) -> f64 {
    (inputs as f64).powf(-0.5)
}

/// Writes a safetensors file with at most one tensor in memory.
pub(super) fn write(tensors: &[Planned], seed: u64, mut out: impl Write) -> io::Result<()> {
    let mut end = 0;
    let entries = tensors.iter().map(|Planned { name, shape, .. }| {
        let from = end;
        end += 4 * shape.iter().product::<usize>();
        format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{from},{end}]}}"#)
    });
    // Hugging Face rejects files without this field.
    let about = r#""__metadata__":{"format":"pt"}"#.to_owned();
    let table = format!("{{{}}}", [about].into_iter().chain(entries).collect::<Vec<_>>().join(","));
    out.write_all(&(table.len() as u64).to_le_bytes())?;
    out.write_all(table.as_bytes())?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut bytes = Vec::new();
    for Planned { shape, fill, .. } in tensors {
        bytes.clear();
        for _ in 0..shape.iter().product::<usize>() {
            let number = match *fill {
                Fill::Constant(value) => value,
                Fill::Uniform(end) => end * (2.0 * rng.random::<f32>() - 1.0),
            };
            bytes.extend(number.to_le_bytes());
        }
        out.write_all(&bytes)?;
    }
    out.flush()
}
