//! The largest value of a row of logits.

/// Returns the index of the largest value. Ties go to the lowest index. Returns 0 if no value exceeds `-inf`.
pub fn argmax(values: &[f32]) -> usize {
    /// Number of values whose maximum is computed before its index is searched.
    const BLOCK: usize = 256;
    let mut best = (0, f32::NEG_INFINITY);
    for (block, values) in values.chunks(BLOCK).enumerate() {
        let largest = largest(values);
        if largest > best.1 {
            best = (block, largest);
        }
    }
    let first = best.0 * BLOCK;
    if best.1 == f32::NEG_INFINITY {
        return 0;
    }
    values.iter().skip(first).position(|&value| value >= best.1).map_or(0, |index| first + index)
}

/// The largest value that is not NaN; without branches, so that the loop is vectorised.
pub(crate) fn largest(values: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for values in values.chunks(LANES) {
        for (lane, &value) in lanes.iter_mut().zip(values) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}
