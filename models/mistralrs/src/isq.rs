//! The types that mistral.rs quantises to at load, by name.

use std::fmt;
use std::str::FromStr;

/// What mistral.rs 0.8.1 quantises to on every device.
const NAMES: [&str; 14] = [
    "q2k", "q3k", "q4_0", "q4_1", "q4k", "q5_0", "q5_1", "q5k", "q6k", "q8_0", "q8_1", "q8k", "hqq4", "hqq8",
];

/// An element type that weights are quantised to while they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isq(&'static str);

impl Isq {
    /// The name, as mistral.rs has it in lower case.
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Isq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl FromStr for Isq {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_lowercase();
        let known = NAMES.into_iter().find(|known| *known == name);
        known.map(Self).ok_or_else(|| format!("`{text}` is none of {}", NAMES.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_in_any_case_and_others_are_refused_with_all_names() {
        assert_eq!("Q4K".parse::<Isq>().unwrap().name(), "q4k");
        assert_eq!("q8_0".parse::<Isq>().unwrap().to_string(), "q8_0");
        assert!("q9".parse::<Isq>().unwrap_err().contains("`q9` is none of q2k, q3k"));
    }
}
