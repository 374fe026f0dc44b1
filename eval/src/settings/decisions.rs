//! Options of the requests to decision models.

use clap::builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser};
use ntl_api::ReadName;
use serde::Serialize;
use strum::IntoStaticStr;

#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct DecisionSettings {
    /// Also send each choice with its options in these orders, and measure how far a probability changes.
    /// Costs one more request per choice and order.
    #[arg(long, value_enum, value_name = "ORDER,...", env = "NTL_EVAL_REORDER", value_delimiter = ',')]
    pub reorder: Vec<Reordering>,
    /// Also repeat each request, and measure how far a probability changes. Costs one more request per
    /// question with options.
    #[arg(long, env = "NTL_EVAL_REPEAT", value_parser = BoolishValueParser::new())]
    pub repeat: bool,
    /// Also send the questions about the same input in one request, and measure how far a probability
    /// changes. Costs one more request for each input with several questions, or for each 64 of them.
    #[arg(long, env = "NTL_EVAL_BATCH", value_parser = BoolishValueParser::new())]
    pub batch: bool,
    /// ntl-server only: read short labels or the texts of the options (`x_read`).
    #[arg(long, value_name = "WHAT", env = "NTL_EVAL_READ_OPTIONS", value_parser = read_name())]
    pub read: Option<ReadName>,
    /// ntl-server only: average over N rotations of the options, 1 to 255 (`x_orders`). Each costs a prompt.
    #[arg(long, value_name = "N", env = "NTL_EVAL_ORDERS", value_parser = clap::value_parser!(u8).range(1..))]
    pub orders: Option<u8>,
}

fn read_name() -> impl TypedValueParser<Value = ReadName> {
    PossibleValuesParser::new(["labels", "texts"]).map(|name| match name.as_str() {
        "texts" => ReadName::Texts,
        _ => ReadName::Labels,
    })
}

/// Another order of the options of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Reordering {
    /// From the last option to the first one.
    Reversed,
    /// The second half of the options before the first half.
    Rotated,
}

impl Reordering {
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the options in this order.
    pub fn apply<T>(self, mut options: Vec<T>) -> Vec<T> {
        match self {
            Self::Reversed => options.reverse(),
            Self::Rotated => {
                let half = options.len() / 2;
                options.rotate_left(half);
            }
        }
        options
    }
}
