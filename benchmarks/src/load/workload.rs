//! The content of requests: prompts in rotation, and whether they request text or numbers.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Greedy text, streamed
    Text,
    /// A number with its distribution
    Number,
    /// Text and numbers alternately
    Mixed,
}

#[derive(Debug, Clone)]
pub struct Workload {
    /// Prompts, not empty. Requests use them in order, then start again with the first.
    pub prompts: Vec<String>,
    pub kind: Kind,
    pub max_tokens: usize,
    /// Whether the server streams texts.
    pub stream: bool,
}

impl Workload {
    pub fn prompt(&self, request: usize) -> &str {
        &self.prompts[request % self.prompts.len()]
    }

    pub fn wants_number(&self, request: usize) -> bool {
        match self.kind {
            Kind::Text => false,
            Kind::Number => true,
            Kind::Mixed => request % 2 == 1,
        }
    }
}

/// Returns sums and differences of numbers below a thousand, identical for the same seed.
pub fn arithmetic_questions(count: usize, seed: u64) -> Vec<String> {
    const FORMS: [(&str, &str, &str); 4] = [
        ("What is ", " + ", "?"),
        ("Calculate ", " - ", "."),
        ("Work out ", " + ", "."),
        ("Add ", " and ", "."),
    ];
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut questions = Vec::with_capacity(count);
    for _ in 0..count {
        let (before, between, behind) = *FORMS.choose(&mut rng).unwrap_or(&FORMS[0]);
        let a = rng.random_range(0..1000);
        let b = rng.random_range(0..1000);
        questions.push(format!("{before}{a}{between}{b}{behind}"));
    }
    questions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_questions_and_requests_repeat_them() {
        let prompts = arithmetic_questions(3, 7);
        assert_eq!(prompts, arithmetic_questions(3, 7));
        assert_ne!(prompts, arithmetic_questions(3, 8));
        let workload = Workload { prompts: prompts.clone(), kind: Kind::Mixed, max_tokens: 8, stream: true };
        assert_eq!(workload.prompt(4), prompts[1]);
        assert!(!workload.wants_number(0) && workload.wants_number(1));
    }
}
