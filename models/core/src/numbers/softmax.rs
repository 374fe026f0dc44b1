//! Probabilities of one row of logits, added up in `f64`, without copying the vocabulary.
//!
//! All probabilities of a row come from the same [`exp`], so that 1 minus the counted probabilities is
//! exactly the rest. A report of another engine has log-probabilities of some ids; the softmax knows how much
//! the others can have.

use crate::logits::{LogitsRow, LogitsSummary};
use crate::maximum::largest;
use crate::report::NextTokenReport;

/// The softmax over a full row, or over a summary of it.
#[derive(Debug, Clone, Copy)]
pub struct Softmax<'a> {
    row: LogitsRow<'a>,
    max: f32,
    total: f64,
}

impl<'a> Softmax<'a> {
    /// Returns `None` if the row has no softmax, because it is empty, contains a NaN or `+inf`, or consists
    /// only of `-inf`.
    pub fn new(logits: &'a [f32]) -> Option<Self> {
        let max = largest(logits);
        let total = sum_of_exps(logits, max);
        let row = LogitsRow::Full(logits);
        (max.is_finite() && total.is_finite()).then_some(Self { row, max, total })
    }

    /// Returns `None` in the same cases as [`Softmax::new`].
    pub fn of(row: LogitsRow<'a>) -> Option<Self> {
        match row {
            LogitsRow::Full(logits) => Self::new(logits),
            LogitsRow::Summary(summary) => Self::of_summary(summary),
            LogitsRow::Report(report) => Some(Self::of_report(report)),
        }
    }

    /// Rounding must not make the reported part more than the whole.
    fn of_report(report: &'a NextTokenReport) -> Self {
        Self { row: LogitsRow::Report(report), max: 0.0, total: report.sum().max(1.0) }
    }

    fn of_summary(summary: &'a LogitsSummary) -> Option<Self> {
        let max = summary.max;
        let asked: f64 = summary.logits.iter().map(|&logit| f64::from(exp(logit - max))).sum();
        // The device added up `total`: its rounding must not make a part more than the whole.
        let total = summary.total.max(asked);
        summary.is_distribution().then_some(Self { row: LogitsRow::Summary(summary), max, total })
    }

    /// Probability of one token; 0 for ids beyond the row, and for unreported ones. In a summary only the
    /// requested ids and the best have one.
    #[inline]
    pub fn probability(&self, id: u32) -> f64 {
        self.reported(id).unwrap_or(0.0)
    }

    /// Probability of one token like [`Self::probability`], or `None` if another engine does not report it.
    #[inline]
    pub fn reported(&self, id: u32) -> Option<f64> {
        match self.row {
            LogitsRow::Report(report) => report.logprob(id).map(|logprob| logprob.exp() / self.total),
            _ => Some(self.logit(id).map_or(0.0, |logit| f64::from(exp(logit - self.max)) / self.total)),
        }
    }

    /// Returns whether another engine reports only some ids.
    pub fn is_partial(&self) -> bool {
        matches!(self.row, LogitsRow::Report(_))
    }

    /// The maximum probability of this many ids together that another engine does not report, and of what its
    /// passes leave uncertain.
    pub fn unreported_max(&self, ids: usize) -> f64 {
        let LogitsRow::Report(report) = self.row else { return 0.0 };
        let all = (1.0 - report.sum() / self.total).max(0.0);
        let each = report.cut().map_or(all, |cut| cut.exp() / self.total);
        all.min(each * ids as f64 + report.uncertain())
    }

    /// Natural logarithm of one token's probability; `-inf` for ids beyond the row, and for unreported ones.
    pub fn log_probability(&self, id: u32) -> f64 {
        if let LogitsRow::Report(report) = self.row {
            return report.logprob(id).unwrap_or(f64::NEG_INFINITY) - self.total.ln();
        }
        let logit = self.logit(id).unwrap_or(f32::NEG_INFINITY);
        f64::from(logit - self.max) - self.total.ln()
    }

    #[inline]
    fn logit(&self, id: u32) -> Option<f32> {
        match self.row {
            LogitsRow::Full(logits) => logits.get(id as usize).copied(),
            LogitsRow::Summary(summary) => {
                let logit = summary.logit(id);
                debug_assert!(logit.is_some(), "the row did not request the logit of {id}");
                logit
            }
            LogitsRow::Report(_) => None,
        }
    }
}

/// `sum(exp(logit - max))`: short sums side by side in single precision, which the compiler turns into vector
/// instructions, and those added up in double precision.
fn sum_of_exps(logits: &[f32], max: f32) -> f64 {
    const LANES: usize = 16;
    let mut total = 0.0;
    for block in logits.chunks(16 * LANES) {
        let (chunks, rest) = block.as_chunks::<LANES>();
        let mut sums = [0.0_f32; LANES];
        for chunk in chunks {
            for (sum, &logit) in sums.iter_mut().zip(chunk) {
                *sum += exp(logit - max);
            }
        }
        let rest = rest.iter().map(|&logit| f64::from(exp(logit - max))).sum::<f64>();
        total += sums.into_iter().map(f64::from).sum::<f64>() + rest;
    }
    total
}

/// e to the power of `x` <= 0 to about 2e-7 relative; 0 below -87; NaN stays NaN.
///
/// Unlike the library's function, this one has no branches and no calls. It splits `x = n ln 2 + f` with
/// `|f| <= ln 2 / 2`, computes `e^f` by its Taylor polynomial, and writes `2^n` into the exponent bits.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding this to a small number leaves its nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let bounded = if x < -87.0 { -87.0 } else { x };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let f = (bounded - n * LN_2_HIGH) - n * LN_2_LOW;
    let sixths = 1.0 / 6.0 + f * (1.0 / 24.0 + f * (1.0 / 120.0 + f * (1.0 / 720.0)));
    let series = 1.0 + f * (1.0 + f * (0.5 + f * sixths));
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { series * power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenLogprob;

    #[test]
    fn probabilities_add_up_to_one_and_logs_agree() {
        let logits = [1000.0, 999.0, -5.0, f32::NEG_INFINITY];
        let softmax = Softmax::new(&logits).unwrap();
        let sum: f64 = (0..4).map(|id| softmax.probability(id)).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert!((softmax.probability(1) - 1.0 / (1.0 + 1.0_f64.exp())).abs() < 1e-7);
        assert!((softmax.log_probability(0).exp() - softmax.probability(0)).abs() < 1e-7);
        assert!(softmax.probability(9).abs() < f64::EPSILON);
    }

    #[test]
    fn a_row_that_is_not_a_distribution_is_rejected() {
        for logits in [&[][..], &[0.0, f32::NAN], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY]] {
            assert!(Softmax::new(logits).is_none(), "{logits:?}");
        }
    }

    /// Ids 1, 2 and 4 of a row of six ids, and its sum times `share`.
    fn reduced(logits: [f32; 6], share: f64) -> LogitsSummary {
        let exp = |id: usize| f64::from(logits[id] - logits[3]).exp();
        let ids = [1, 2, 4].into();
        let some = vec![logits[1], logits[2], logits[4]];
        let total = share * (0..6).map(exp).sum::<f64>();
        LogitsSummary { best_id: 3, best_logit: logits[3], max: logits[3], total, ids, logits: some }
    }

    #[test]
    fn a_summary_has_the_probabilities_of_the_full_row() {
        let logits = [1.0, -2.0, 0.5, 3.0, f32::NEG_INFINITY, 2.0];
        let whole = Softmax::new(&logits).unwrap();
        let reduced = reduced(logits, 1.0);
        let part = Softmax::of(LogitsRow::Summary(&reduced)).unwrap();
        for id in [1, 2, 3, 4] {
            assert!((part.probability(id) - whole.probability(id)).abs() < 1e-7, "{id}");
        }
        assert!((part.log_probability(2) - whole.log_probability(2)).abs() < 1e-6);
    }

    #[test]
    fn parts_of_a_summary_are_never_more_than_the_whole() {
        // The requested ids have the whole mass of this row, and rounding made its sum too small.
        let low = f32::NEG_INFINITY;
        let reduced = reduced([low, 1.0, 2.0, 3.0, 2.5, low], 1.0 - 1e-6);
        let reduced = LogitsSummary { ids: [1, 2, 3, 4].into(), logits: vec![1.0, 2.0, 3.0, 2.5], ..reduced };
        let softmax = Softmax::of(LogitsRow::Summary(&reduced)).unwrap();
        let sum: f64 = (1..5).map(|id| softmax.probability(id)).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    }

    #[test]
    fn a_summary_that_is_not_a_distribution_is_rejected() {
        let broken = reduced([0.0, 1.0, 2.0, 3.0, 2.5, 0.0], f64::NAN);
        assert!(Softmax::of(LogitsRow::Summary(&broken)).is_none());
        let infinite = LogitsSummary { max: f32::INFINITY, ..reduced([0.0; 6], 1.0) };
        assert!(Softmax::of(LogitsRow::Summary(&infinite)).is_none());
    }

    #[test]
    fn a_report_bounds_the_probability_of_unreported_ids() {
        let report = |tokens: &[(u32, f64)], cut: Option<f64>| {
            let tokens = tokens.iter().map(|&(id, p)| TokenLogprob { id, logprob: f64::ln(p) });
            NextTokenReport::new(tokens, cut.map(f64::ln)).unwrap()
        };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        let cut = report(&[(3, 0.5), (8, 0.2), (9, 0.1)], Some(0.1));
        let softmax = Softmax::of(LogitsRow::Report(&cut)).unwrap();
        assert_eq!((softmax.reported(4), softmax.is_partial()), (None, true));
        near(softmax.probability(8), 0.2);
        near(softmax.log_probability(3), 0.5_f64.ln());
        for (ids, want) in [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.2)] {
            near(softmax.unreported_max(ids), want);
        }
        let requested = report(&[(3, 0.5)], None);
        near(Softmax::of(LogitsRow::Report(&requested)).unwrap().unreported_max(1), 0.5);
        let merged =
            NextTokenReport::merged([TokenLogprob { id: 1, logprob: 0.5_f64.ln() }], None, 0.02).unwrap();
        near(Softmax::of(LogitsRow::Report(&merged)).unwrap().unreported_max(0), 0.02);
        let rounded = report(&[(3, 0.5), (4, 0.5005)], None);
        let softmax = Softmax::of(LogitsRow::Report(&rounded)).unwrap();
        near(softmax.probability(3) + softmax.probability(4), 1.0);
        near(softmax.unreported_max(9), 0.0);
    }

    #[test]
    fn the_exponential_is_accurate_to_single_precision() {
        for step in 0..=87_000 {
            let x = -(step as f32) / 1000.0;
            let got = f64::from(exp(x));
            let want = f64::from(x).exp();
            assert!((got - want).abs() <= 3e-7 * want, "e^{x}: {got} instead of {want}");
        }
        assert!(exp(-1e30).abs() < f32::MIN_POSITIVE && exp(f32::NEG_INFINITY).abs() < f32::MIN_POSITIVE);
        assert!(exp(f32::NAN).is_nan());
        assert!((exp(0.0) - 1.0).abs() < f32::EPSILON);
    }
}
