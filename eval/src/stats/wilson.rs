//! The confidence interval of a share.

use super::{Interval, Z_95};

/// Returns the 95% score interval of `hits` among `n` (Wilson 1927, without continuity correction), or `None`
/// if `n` is 0.
pub fn wilson(hits: usize, n: usize) -> Option<Interval> {
    if n == 0 {
        return None;
    }
    let share = hits as f64 / n as f64;
    let n = n as f64;
    let z2 = Z_95 * Z_95;
    let centre = share + z2 / (2.0 * n);
    let spread = Z_95 * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    let shrink = 1.0 + z2 / n;
    let low = ((centre - spread) / shrink).clamp(0.0, 1.0);
    let high = ((centre + spread) / shrink).clamp(0.0, 1.0);
    // Rounding must not put a share of 0 or 1 outside its own interval.
    Some(Interval { low, high }.including(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_matches_statsmodels() {
        // [proportion_confint(h, n, 0.05, "wilson") for h, n in [(0, 10), (5, 10), (10, 10), (438, 1000)]]
        for (hits, n, low, high) in WILSON {
            let got = wilson(hits, n).unwrap();
            assert!((got.low - low).abs() < 1e-12 && (got.high - high).abs() < 1e-12, "{hits}/{n}: {got:?}");
        }
        assert_eq!(wilson(0, 0), None);
    }

    const WILSON: [(usize, usize, f64, f64); 4] = [
        (0, 10, 0.0, 0.27753279986288926),
        (5, 10, 0.23659309051256394, 0.7634069094874361),
        (10, 10, 0.7224672001371106, 1.0),
        (438, 1000, 0.40754465643825316, 0.4689298616139557),
    ];
}
