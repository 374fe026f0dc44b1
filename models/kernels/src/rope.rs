//! Rotary position embeddings (RoPE, arXiv 2104.09864): elements `p` and `p + P` of a head rotate as a pair,
//! by an angle that grows with the position.

/// Cosines and sines of the angles of `R` rows with `P` pairs.
#[derive(Debug, Clone)]
pub struct RopeTables {
    /// `[R, P]`.
    pub cos: Vec<f32>,
    /// `[R, P]`.
    pub sin: Vec<f32>,
    pub pairs: usize,
    /// Number of elements of a head, at least `2P`. Those after the pairs are not rotated.
    pub head_dim: usize,
}

impl RopeTables {
    /// Computes the tables. Pair `p` rotates by `frequencies[p]` radians per position. `magnitude` scales
    /// every rotated pair (YaRN, LongRoPE).
    ///
    /// Angles are f32, as in the reference implementation, so that large angles are rounded in the same way.
    pub fn new(
        positions: impl Iterator<Item = usize>,
        frequencies: &[f32],
        magnitude: f32,
        head_dim: usize,
    ) -> Self {
        let angles = positions.flat_map(|position| frequencies.iter().map(move |f| f * position as f32));
        let (mut sin, mut cos): (Vec<f32>, Vec<f32>) = angles.map(f32::sin_cos).unzip();
        for value in sin.iter_mut().chain(&mut cos) {
            *value *= magnitude;
        }
        Self { cos, sin, pairs: frequencies.len(), head_dim }
    }
}

/// Rotates every head of `x` `[R, H * D]`, whose rows are `width = H * D` wide.
pub fn apply_rope(x: &mut [f32], width: usize, tables: &RopeTables) {
    let pairs = tables.pairs;
    let angles = tables.cos.chunks_exact(pairs).zip(tables.sin.chunks_exact(pairs));
    for (row, (cos, sin)) in x.chunks_exact_mut(width).zip(angles) {
        for head in row.chunks_exact_mut(tables.head_dim) {
            let (left, right) = head[..2 * pairs].split_at_mut(pairs);
            for ((a, b), (cos, sin)) in left.iter_mut().zip(right).zip(cos.iter().zip(sin)) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_rotate_by_their_angles() {
        let tables = RopeTables::new([0, 3].into_iter(), &[std::f32::consts::FRAC_PI_6, 0.0], 1.0, 4);
        let mut x = [1.0, 2.0, 0.0, 5.0, 1.0, 2.0, 0.0, 5.0];
        apply_rope(&mut x, 4, &tables);
        assert_eq!(x[..4], [1.0, 2.0, 0.0, 5.0]);
        for (got, want) in x[4..].iter().zip([0.0, 2.0, 1.0, 5.0]) {
            assert!((got - want).abs() < 1e-6, "a quarter turn: got {got}, expected {want}");
        }
    }
}
