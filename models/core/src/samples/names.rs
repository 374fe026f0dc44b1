//! Reads which option a whole answer names.
//!
//! Models rarely write an option and nothing else: `**B**`, `B.` and `B: Paris` are B. An answer is invalid
//! if it names no option, or if it could be about more than one.

use super::options::OptionReading;

/// An option as the prompt shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionName {
    /// The text that the model is to write; `None` if that is `text`.
    pub label: Option<String>,
    pub text: String,
}

/// The options of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionNames(Vec<OptionName>);

impl OptionNames {
    pub fn new(options: Vec<OptionName>) -> Self {
        Self(options)
    }

    /// Number of options.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads an answer. `is_cut`: whether the model would have continued it.
    pub fn read(&self, answer: &str, is_cut: bool) -> OptionReading {
        if is_cut {
            return OptionReading::Open;
        }
        let answer = answer.trim();
        let bare = answer.trim_matches(['*', '_', '`', '"', '\'']).trim_end_matches(['.', '!']);
        let bare = bare.trim_matches(['*', '_', '`', '"', '\'', ' ']);
        let found = self
            .only(|option| option.is(answer))
            .or_else(|| self.only(|option| option.is(bare)))
            .or_else(|| self.only(|option| option.begins(bare)))
            .or_else(|| self.only(|option| option.is_ignoring_case(bare)));
        found.map_or(OptionReading::Invalid, OptionReading::Option)
    }

    /// The only option that fits.
    fn only(&self, fits: impl Fn(&OptionName) -> bool) -> Option<usize> {
        let mut fitting =
            self.0.iter().enumerate().filter(|(_, option)| fits(option)).map(|(index, _)| index);
        let first = fitting.next()?;
        fitting.next().is_none().then_some(first)
    }
}

impl OptionName {
    fn is(&self, answer: &str) -> bool {
        self.label.as_deref().unwrap_or(&self.text) == answer
    }

    /// Returns whether an answer begins with the label and a mark after it: `B: Paris`, `2) fair`.
    fn begins(&self, answer: &str) -> bool {
        let Some(rest) = self.label.as_deref().and_then(|label| answer.strip_prefix(label)) else {
            return false;
        };
        let rest = rest.trim_start_matches('*');
        rest.strip_prefix([':', '.', ')']).is_some_and(|rest| rest.starts_with(['*', ' ', '\n']))
    }

    /// Also accepts the text instead of the label.
    fn is_ignoring_case(&self, answer: &str) -> bool {
        let names = [self.label.as_deref(), Some(&*self.text)];
        names.into_iter().flatten().any(|name| name.to_lowercase() == answer.to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(options: &[(Option<&str>, &str)]) -> OptionNames {
        let option = |&(label, text): &(Option<&str>, &str)| OptionName {
            label: label.map(str::to_owned),
            text: text.to_owned(),
        };
        OptionNames::new(options.iter().map(option).collect())
    }

    fn read(names: &OptionNames, answer: &str) -> Option<usize> {
        match names.read(answer, false) {
            OptionReading::Option(index) => Some(index),
            _ => None,
        }
    }

    #[test]
    fn an_answer_names_an_option_by_its_label_or_its_text() {
        let choice = names(&[(Some("A"), "Paris"), (Some("B"), "Rome"), (Some("C"), "a")]);
        for (answer, want) in [
            ("B", Some(1)),
            (" **B**\n", Some(1)),
            ("B.", Some(1)),
            ("B: Rome", Some(1)),
            ("**B**: Rome", Some(1)),
            ("rome", Some(1)),
            ("A", Some(0)),
            // The label of the first option and the text of the third.
            ("a", None),
            ("A dog", None),
            ("D", None),
            ("", None),
        ] {
            assert_eq!(read(&choice, answer), want, "{answer:?}");
        }
        let score = names(&[(Some("0"), "bad"), (Some("1"), "fair"), (Some("2"), "good")]);
        assert_eq!(
            ["1", "1.", "1.5", "2) good", "10"].map(|answer| read(&score, answer)),
            [Some(1), Some(1), None, Some(2), None]
        );
        let predicate = names(&[(None, "Yes"), (None, "No")]);
        assert_eq!(
            ["yes.", "No!", "Yes, because", "Maybe"].map(|answer| read(&predicate, answer)),
            [Some(0), Some(1), None, None]
        );
        let quoted = names(&[(None, "\"true\""), (None, "true")]);
        assert_eq!(["\"true\"", "true"].map(|answer| read(&quoted, answer)), [Some(0), Some(1)]);
        assert_eq!(choice.read("B", true), OptionReading::Open);
    }
}
