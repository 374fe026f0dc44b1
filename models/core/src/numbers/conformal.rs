//! Split conformal prediction of intervals: conformalized quantile regression (Romano, Patterson and Candès,
//! 2019).
//!
//! On held-out items, each interval between two quantiles has a score: the distance of the truth from the
//! interval, which is negative inside. The interval of a new item, widened by a high quantile of these scores
//! on both sides, contains the truth with at least the given probability if the items are exchangeable.

use super::distribution::Interval;
use super::values::NumberValues;

/// Returns the distance of `truth` from the interval, which is negative inside the interval. The distance is
/// rounded up to the next number if the interval, widened by it, would miss the truth: `3.4 - 3.3` is above
/// `0.1` in floating point. So the interval contains every truth whose score is at most the offset.
pub fn conformity_score(interval: Interval, truth: f64) -> f64 {
    let Interval { low, high } = interval;
    let mut score = (low - truth).max(truth - high);
    // Both differences are rounded once, so that a few steps are enough. NaN and infinity end the loop.
    while low - score > truth || high + score < truth {
        score = score.next_up();
    }
    score
}

/// Returns the distance to widen both sides by for a coverage of `1 - alpha`: the
/// `ceil((n + 1) (1 - alpha))`-th smallest of `n` scores. Returns `None` if that rank is more than `n`,
/// because no interval is wide enough then, or if a score is NaN.
pub fn conformal_offset(scores: &[f64], alpha: f64) -> Option<f64> {
    if scores.iter().any(|score| score.is_nan()) {
        return None;
    }
    let rank = conformal_rank(scores.len(), alpha);
    let mut sorted = scores.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// `ceil((n + 1) (1 - alpha))`.
pub fn conformal_rank(n: usize, alpha: f64) -> usize {
    // A product that is an integer except for rounding counts as that integer.
    ((n as f64 + 1.0) * (1.0 - alpha) - 1e-9).ceil().max(0.0) as usize
}

/// Returns the interval, widened by `offset` (narrowed if `offset` is negative) and cut to the possible
/// values. On a scale, the ends move inwards to values of the scale, which keeps the same truths inside. An
/// empty interval becomes its middle, or on a scale the value nearest to its middle.
pub fn conformal_interval(interval: Interval, offset: f64, values: NumberValues) -> Interval {
    let mut low = interval.low - offset;
    let mut high = interval.high + offset;
    let middle = f64::midpoint(low, high);
    if low > high {
        (low, high) = (middle, middle);
    }
    if let Some(range) = values.interval() {
        (low, high) = (low.clamp(range.low, range.high), high.clamp(range.low, range.high));
    }
    let NumberValues::Scale(scale) = values else { return Interval { low, high } };
    match (scale.at_least(low), scale.at_most(high)) {
        (Some(low), Some(high)) if low <= high => Interval { low, high },
        (above, below) => {
            let nearest = match (below, above) {
                (Some(below), Some(above)) if (above - middle).abs() < (below - middle).abs() => above,
                (Some(below), _) => below,
                (None, Some(above)) => above,
                (None, None) => middle,
            };
            Interval { low: nearest, high: nearest }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::values::Scale;
    use super::*;

    fn interval(low: f64, high: f64) -> Interval {
        Interval { low, high }
    }

    fn numbers(case: &Value, name: &str) -> Vec<f64> {
        case[name].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    }

    /// Made by `tests/data/conformal/make.py` with numpy.
    #[test]
    fn offsets_and_coverage_equal_those_of_numpy() {
        let golden: Value =
            serde_json::from_str(include_str!("../../tests/data/conformal/golden.json")).unwrap();
        let cases = golden.as_array().unwrap();
        for case in cases {
            let lower = numbers(case, "lower");
            let upper = numbers(case, "upper");
            let intervals: Vec<Interval> =
                lower.iter().zip(&upper).map(|(&low, &high)| interval(low, high)).collect();
            let truth = numbers(case, "truth");
            let scores: Vec<f64> =
                intervals.iter().zip(&truth).map(|(&own, &truth)| conformity_score(own, truth)).collect();
            let offset = conformal_offset(&scores, case["alpha"].as_f64().unwrap()).unwrap();
            let want = case["offset"].as_f64().unwrap();
            assert!((offset - want).abs() < 1e-12, "{offset} {want}");
            let covered = intervals.iter().zip(&truth).filter(|&(&own, &truth)| {
                let own = conformal_interval(own, offset, NumberValues::All);
                (own.low - 1e-12..=own.high + 1e-12).contains(&truth)
            });
            assert_eq!(covered.count() as u64, case["covered"].as_u64().unwrap());
        }
        assert!(cases.len() >= 6);
    }

    /// Every value of a scale with step 0.1 or 0.01, from every interval of it. Compared in floating point,
    /// 3.4 widened by 3.3 does not contain 0.1.
    #[test]
    fn the_interval_contains_every_truth_whose_score_is_at_most_the_offset() {
        for (high, step) in [(10.0, 0.1), (1.0, 0.01)] {
            let scale = Scale::new(0.0, high, step).unwrap();
            let values: Vec<f64> = scale.values().collect();
            for (&low, &truth) in values.iter().flat_map(|low| values.iter().map(move |truth| (low, truth))) {
                let own = interval(low, low);
                let offset = conformity_score(own, truth);
                assert!((offset - (low - truth).abs()).abs() < 1e-12, "{low} {truth}: {offset}");
                for values in [NumberValues::All, NumberValues::Scale(scale)] {
                    let Interval { low, high } = conformal_interval(own, offset, values);
                    assert!(low <= truth && truth <= high, "{own:?} {truth} {offset}: {low} to {high}");
                }
            }
        }
        // The ends and the truth differ by many orders of magnitude.
        for truth in [-1e9, -0.1, 1e-17, 0.3, 7e12] {
            let own = interval(3.4, 3.7);
            let Interval { low, high } =
                conformal_interval(own, conformity_score(own, truth), NumberValues::All);
            assert!(low <= truth && truth <= high, "{truth}: {low} to {high}");
        }
        assert!(conformity_score(interval(0.0, 1.0), f64::NAN).is_nan());
    }

    #[test]
    fn too_few_items_have_no_offset() {
        for (n, alpha, rank) in
            [(9, 0.1, 9), (8, 0.1, 9), (19, 0.05, 19), (18, 0.05, 19), (99, 0.01, 99), (0, 0.5, 1)]
        {
            assert_eq!(conformal_rank(n, alpha), rank, "{n} {alpha}");
            let scores: Vec<f64> = (0..n).map(|score| score as f64).collect();
            assert_eq!(conformal_offset(&scores, alpha).is_some(), rank <= n, "{n} {alpha}");
        }
        assert_eq!(conformal_offset(&[1.0, f64::NAN, 0.0], 0.5), None);
    }

    #[test]
    fn an_interval_keeps_to_the_possible_values_and_is_never_empty() {
        let range = NumberValues::Range(interval(0.0, 10.0));
        let scale = NumberValues::Scale(Scale::new(1.0, 5.0, 1.0).unwrap());
        for (own, offset, values, want) in [
            (interval(2.0, 3.0), 1.5, NumberValues::All, interval(0.5, 4.5)),
            (interval(2.0, 3.0), -0.25, NumberValues::All, interval(2.25, 2.75)),
            (interval(2.0, 3.0), -2.0, NumberValues::All, interval(2.5, 2.5)),
            (interval(2.0, 9.0), 4.0, range, interval(0.0, 10.0)),
            (interval(2.0, 3.0), 1.0, scale, interval(1.0, 4.0)),
            (interval(2.0, 3.0), 0.6, scale, interval(2.0, 3.0)),
            (interval(2.0, 4.0), -0.6, scale, interval(3.0, 3.0)),
            (interval(2.0, 3.0), -0.4, scale, interval(2.0, 2.0)),
            (interval(4.0, 5.0), 9.0, scale, interval(1.0, 5.0)),
        ] {
            assert_eq!(conformal_interval(own, offset, values), want, "{own:?} {offset} {values:?}");
        }
    }
}
