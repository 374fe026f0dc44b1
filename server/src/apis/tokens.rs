//! Log-probabilities of tokens as JSON can carry them.

use ntl_core::contract::{TokenNumber, TokenText};

/// OpenAI's substitute for minus infinity, which JSON cannot carry.
const LOGPROB_MIN: f64 = -9999.0;

/// A log-probability that JSON can carry.
pub(super) fn finite_logprob(logprob: f64) -> f64 {
    if logprob.is_nan() { LOGPROB_MIN } else { logprob.clamp(LOGPROB_MIN, 0.0) }
}

/// Returns the expected value and the mass of the number tokens at the position of a token, with a mass from
/// 0 to 1.
pub(super) fn number_of(token: &TokenText) -> Option<TokenNumber> {
    let number = token.number.filter(|number| number.value.is_finite())?;
    Some(TokenNumber { mass: number.mass.clamp(0.0, 1.0), ..number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_fit_into_json() {
        for (logprob, want) in
            [(f64::NEG_INFINITY, LOGPROB_MIN), (f64::NAN, LOGPROB_MIN), (-1.5, -1.5), (1e-12, 0.0)]
        {
            assert!((finite_logprob(logprob) - want).abs() < 1e-12, "{logprob}");
        }
    }
}
