//! How a model answers, and the route of its requests.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ntl_paper::{Paper, Protocol};
use serde::Serialize;
use strum::IntoStaticStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// Greedy text; a number in it is the prediction.
    Text,
    /// The server's number: trimmed mean for squared errors, median for absolute ones, mode for accuracy.
    Regress,
    /// The NTL paper's evaluation code: 4 beams (1 for xVal), its length rule, its metrics with all their
    /// peculiarities.
    Paper,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns whether an answer that is a text with a number in it counts as a number: the paper's code
    /// compares the last numbers of any two texts.
    pub fn reads_numbers_in_texts(self) -> bool {
        self == Self::Paper
    }

    /// Returns the protocol that replaces this program's decoding and figures, if the mode has one, for a
    /// model with this `number_encoding`.
    pub fn protocol(self, number_encoding: Option<&str>) -> Option<Box<dyn Protocol>> {
        match self {
            Self::Text | Self::Regress => None,
            Self::Paper => Some(Box::new(Paper::new(number_encoding))),
        }
    }
}

/// Which number of a text is the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NumberRule {
    /// The first one: a model that continues its prompt writes more questions after the answer.
    First,
    /// The last one: an answer ends a chain of thought.
    Last,
    /// The one after `####`, with which solutions of GSM8K end; the last one if there is no such mark.
    Marked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`, the prompt as the user's message.
    Chat,
    /// `/v1/decisions`, in OpenAI's form.
    Decisions,
    /// `/v1/systemone`, in TypeSafe's form.
    Systemone,
}

impl Api {
    /// The routes of prompts.
    pub const OF_PROMPTS: [Self; 2] = [Self::Completions, Self::Chat];
    /// The routes of typed questions, whose prompts the server words.
    pub const OF_QUESTIONS: [Self; 2] = [Self::Decisions, Self::Systemone];

    /// Returns the parser of a flag that accepts some of the APIs.
    pub fn one_of(apis: [Self; 2]) -> impl TypedValueParser<Value = Self> {
        let names = PossibleValuesParser::new(apis.iter().filter_map(ValueEnum::to_possible_value));
        names.try_map(|name| Self::from_str(&name, false))
    }
}
