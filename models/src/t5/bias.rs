//! Relative position buckets of T5. Each nearby distance has its own bucket, buckets of larger distances grow
//! logarithmically, and all distances beyond share the last one.

use candle_core::DType;
use ntl_text::checkpoint::LoadResult;

use super::layers::Loader;
use crate::ops::{RelativeBias, device_error};

/// The keys that a stack's self-attention sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Keys on both sides (encoder), with half of the buckets for each side.
    Bidirectional,
    /// Keys before the query only (decoder), with all buckets.
    Causal,
}

/// Returns the bucket of `distance` = key position - query position.
///
/// Computes the same as `_relative_position_bucket` of the Hugging Face class: the first half of a side's
/// buckets hold one distance each, and the others grow logarithmically up to `max_distance`.
fn bucket(distance: i64, direction: Direction, num_buckets: usize, max_distance: usize) -> usize {
    let (offset, side, far) = match direction {
        Direction::Bidirectional => {
            let side = num_buckets / 2;
            (if distance > 0 { side } else { 0 }, side, distance.unsigned_abs() as usize)
        }
        Direction::Causal => (0, num_buckets, distance.min(0).unsigned_abs() as usize),
    };
    let exact = side / 2;
    if far < exact {
        return offset + far;
    }
    // In f32, because the rounding of the Hugging Face class decides where buckets end.
    let growth = (far as f32 / exact as f32).ln() / (max_distance as f32 / exact as f32).ln();
    let steps = (growth * (side - exact) as f32) as usize;
    offset + (exact + steps).min(side - 1)
}

/// Loads the bias of a stack. Its name in the file begins with `stack`.
pub(super) fn load_bias(loader: &Loader<'_>, stack: &str, direction: Direction) -> LoadResult<RelativeBias> {
    let config = loader.config;
    let name = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    let table = loader.tensor(&name, &[config.num_buckets, config.num_heads])?;
    let table = table.to_dtype(DType::F32).map_err(device_error)?.to_vec2::<f32>().map_err(device_error)?;
    Ok(RelativeBias::new(config.num_heads, config.max_distance, |head, distance| {
        table[bucket(distance, direction, config.num_buckets, config.max_distance)][head]
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_distances_have_separate_buckets_and_far_ones_share() {
        // Calculated by hand for 32 buckets and distance 128. The golden tests cover the rest.
        let bidirectional = [
            (0, 0),
            (-1, 1),
            (-7, 7),
            (-8, 8),
            (-12, 9),
            (-127, 15),
            (-9999, 15),
            (1, 17),
            (8, 24),
            (40, 28),
        ];
        for (distance, want) in bidirectional {
            assert_eq!(bucket(distance, Direction::Bidirectional, 32, 128), want, "bidirectional {distance}");
        }
        let causal = [
            (0, 0),
            (3, 0),
            (-1, 1),
            (-15, 15),
            (-16, 16),
            (-19, 17),
            (-32, 21),
            (-64, 26),
            (-127, 31),
            (-500, 31),
        ];
        for (distance, want) in causal {
            assert_eq!(bucket(distance, Direction::Causal, 32, 128), want, "causal {distance}");
        }
    }
}
