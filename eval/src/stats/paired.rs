//! McNemar's test (which side is right where the other is wrong) and the sign test (which side is closer).
//!
//! Both look at discordant pairs only and ask whether a fair coin would split them as unevenly.

use serde::Serialize;
use statrs::function::beta::beta_reg;
use statrs::function::erf::erfc;

/// From how many discordant pairs on the chi-squared form of McNemar's test is used.
const EXACT_BELOW: usize = 25;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct McNemar {
    /// Pairs where A alone is right.
    pub only_a: usize,
    pub only_b: usize,
    /// Whether `p` is the exact binomial one.
    pub exact: bool,
    /// Two-sided.
    pub p: f64,
}

/// McNemar (1947): exact binomial below 25 discordant pairs, else chi-squared with one degree of freedom and
/// Edwards' (1948) continuity correction, `(|b - c| - 1)^2 / (b + c)`.
pub fn mcnemar(only_a: usize, only_b: usize) -> McNemar {
    let discordant = only_a + only_b;
    let exact = discordant < EXACT_BELOW;
    let p = if exact {
        fair_coin(only_a, only_b)
    } else {
        let excess = (only_a.abs_diff(only_b) as f64 - 1.0).max(0.0);
        // A chi-squared variable with one degree of freedom is a squared normal one.
        erfc((excess * excess / discordant as f64 / 2.0).sqrt())
    };
    McNemar { only_a, only_b, exact, p }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SignTest {
    pub a_closer: usize,
    pub b_closer: usize,
    /// Left out of the test.
    pub equal: usize,
    /// Two-sided, exact.
    pub p: f64,
}

/// The sign test (Dixon and Mood 1946), exact, on absolute errors in pairs of A and B.
pub fn sign_test(errors: impl Iterator<Item = (f64, f64)>) -> SignTest {
    let (mut a_closer, mut b_closer, mut equal) = (0, 0, 0);
    for (a, b) in errors {
        match a.total_cmp(&b) {
            std::cmp::Ordering::Less => a_closer += 1,
            std::cmp::Ordering::Greater => b_closer += 1,
            std::cmp::Ordering::Equal => equal += 1,
        }
    }
    SignTest { a_closer, b_closer, equal, p: fair_coin(a_closer, b_closer) }
}

/// How probable a split of `heads + tails` tosses is that is at least as uneven: twice the binomial tail.
fn fair_coin(heads: usize, tails: usize) -> f64 {
    let (less, more) = (heads.min(tails) as f64, heads.max(tails) as f64);
    if heads == tails {
        return 1.0;
    }
    // P(X <= k) = I_{1/2}(n - k, k + 1), the regularised incomplete beta function.
    (2.0 * beta_reg(more, less + 1.0, 0.5)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64, what: &str) {
        assert!((got - want).abs() <= 1e-9 * want.max(1e-30), "{what}: {got:e}, not {want:e}");
    }

    #[test]
    fn mcnemar_is_that_of_statsmodels() {
        // mcnemar([[0, b], [c, 0]], exact=b + c < 25, correction=True).pvalue
        for (only_a, only_b, p) in MCNEMAR {
            let got = mcnemar(only_a, only_b);
            close(got.p, p, &format!("{only_a} against {only_b}"));
            assert_eq!(got.exact, only_a + only_b < 25);
        }
    }

    #[test]
    fn the_sign_test_is_scipys_binomial_test_without_ties() {
        // binomtest(b, a + b).pvalue
        for (a, b, p) in SIGN {
            let pairs = vec![(0.0, 1.0); a].into_iter().chain(vec![(1.0, 0.0); b]).chain([(2.0, 2.0)]);
            let got = sign_test(pairs);
            assert_eq!((got.a_closer, got.b_closer, got.equal), (a, b, 1));
            close(got.p, p, &format!("{a} against {b}"));
        }
        close(sign_test([(1.0, 1.0)].into_iter()).p, 1.0, "ties alone");
    }

    const MCNEMAR: [(usize, usize, f64); 8] = [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (3, 10, 0.09228515625),
        (12, 12, 1.0),
        (12, 13, 1.0),
        (40, 61, 0.04658274252301569),
        (5, 60, 2.1147106413818607e-11),
        (1000, 1100, 0.030745034758993192),
    ];

    const SIGN: [(usize, usize, f64); 6] = [
        (1, 0, 1.0),
        (3, 10, 0.09228515625),
        (40, 61, 0.046044066929342785),
        (500, 600, 0.0028195449914364284),
        (0, 30, 1.862645149230957e-09),
        (20000, 20400, 0.04713209701042834),
    ];
}
