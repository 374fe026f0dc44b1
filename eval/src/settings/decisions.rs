//! Options of the requests to decision models.

use ntl_api::ReadName;
use serde::Serialize;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DecisionSettings {
    /// The field `x_read` of `ntl-server`. Servers that do not know it may reject it.
    pub read: Option<ReadName>,
    /// The field `x_orders` of `ntl-server`, 1 to 255.
    pub orders: Option<u8>,
    /// Orders in which each choice is requested again.
    pub reorder: Vec<Reordering>,
    /// Whether to repeat each request.
    pub repeat: bool,
    /// Whether to request questions about the same state together as well.
    pub batch: bool,
}

/// Another order of the options of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reordering {
    /// From the last option to the first one.
    Reversed,
    /// The second half of the options before the first half.
    Rotated,
}

impl Reordering {
    pub fn name(self) -> &'static str {
        match self {
            Self::Reversed => "reversed",
            Self::Rotated => "rotated",
        }
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
