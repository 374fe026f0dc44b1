//! McNemar's test (which side is correct on items that the other gets wrong) and the sign test (which side is
//! closer).
//!
//! Both tests ask whether a fair coin would split the differing pairs as unevenly, and both are exact. Equal
//! pairs favour neither side: the tests are conditional on the number of differing pairs, so they hold their
//! level for any number of ties.

use serde::Serialize;
use statrs::function::beta::beta_reg;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct McNemar {
    /// Number of pairs that only A answered correctly.
    pub only_a: usize,
    pub only_b: usize,
    /// Two-sided, exact.
    pub p: f64,
}

/// McNemar's test (1947) in its exact binomial form.
pub fn mcnemar(only_a: usize, only_b: usize) -> McNemar {
    McNemar { only_a, only_b, p: fair_coin(only_a, only_b) }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SignTest {
    pub a_closer: usize,
    pub b_closer: usize,
    /// Number of pairs with equal errors.
    pub equal: usize,
    /// Two-sided, exact.
    pub p: f64,
}

/// Returns the exact sign test (Dixon and Mood 1946) of absolute errors in pairs of A and B.
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

/// Returns the probability that `heads + tails` tosses split at least as unevenly: twice the binomial tail.
fn fair_coin(heads: usize, tails: usize) -> f64 {
    let less = heads.min(tails) as f64;
    let more = heads.max(tails) as f64;
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
    fn mcnemar_matches_statsmodels() {
        // mcnemar([[0, b], [c, 0]], exact=True).pvalue
        for (only_a, only_b, p) in MCNEMAR {
            close(mcnemar(only_a, only_b).p, p, &format!("{only_a} against {only_b}"));
        }
    }

    #[test]
    fn the_sign_test_matches_scipys_binomial_test_without_ties() {
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
        (40, 61, 0.046044066929342806),
        (5, 60, 4.869560700851427e-13),
        (1000, 1100, 0.030720707864242296),
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
