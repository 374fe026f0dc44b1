//! Load on a server: what is asked ([`Workload`]), whom ([`Target`]), in which rhythm ([`rhythm`]) and what came of
//! it ([`report`]).

pub mod report;
pub mod rhythm;
mod sse;
mod target;

use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use target::{Target, TargetError};

/// What requests ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Greedy text, streamed.
    Text,
    /// A number with its distribution.
    Number,
    /// Both in turn.
    Mixed,
}

/// Requests that are alike.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Asked in turn, from the first again when they are used up.
    pub prompts: Vec<String>,
    /// What is asked for.
    pub kind: Kind,
    /// Most tokens of a text.
    pub max_tokens: usize,
}

impl Workload {
    /// Sums and differences of numbers below a thousand, the same for the same seed.
    pub fn arithmetic(count: usize, seed: u64) -> Vec<String> {
        const FORMS: [(&str, &str, &str); 4] = [
            ("What is ", " + ", "?"),
            ("Calculate ", " - ", "."),
            ("Work out ", " + ", "."),
            ("Add ", " and ", "."),
        ];
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut question = || {
            let (before, between, behind) = *FORMS.choose(&mut rng).unwrap_or(&FORMS[0]);
            let (a, b) = (rng.random_range(0..1000), rng.random_range(0..1000));
            format!("{before}{a}{between}{b}{behind}")
        };
        (0..count).map(|_| question()).collect()
    }

    fn prompt(&self, request: usize) -> &str {
        &self.prompts[request % self.prompts.len()]
    }

    /// Whether this request asks for a number.
    fn wants_number(&self, request: usize) -> bool {
        match self.kind {
            Kind::Text => false,
            Kind::Number => true,
            Kind::Mixed => request % 2 == 1,
        }
    }
}

/// How one request went; times count from when it was due.
#[derive(Debug, Clone, Default)]
pub struct Timing {
    /// Until the first piece of the answer.
    pub first: Option<Duration>,
    /// Between two pieces.
    pub gaps: Vec<Duration>,
    /// Until the end of the answer.
    pub total: Duration,
    /// Tokens that the server counted.
    pub tokens: u64,
    /// Why there is no answer.
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_repeat_with_their_seed_and_requests_go_round() {
        let prompts = Workload::arithmetic(3, 7);
        assert_eq!(prompts, Workload::arithmetic(3, 7));
        assert_ne!(prompts, Workload::arithmetic(3, 8));
        let workload = Workload { prompts: prompts.clone(), kind: Kind::Mixed, max_tokens: 8 };
        assert_eq!(workload.prompt(4), prompts[1]);
        assert!(!workload.wants_number(0) && workload.wants_number(1));
    }
}
