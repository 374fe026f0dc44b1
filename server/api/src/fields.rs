//! The fields of a structured text: its numbers, and the values that its schema lists.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::number::{LocatedNumber, NumberMass};

/// A field of a structured text with its distribution, which is conditional on the text before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LocatedField {
    /// A number, as in `numbers`.
    Number(Box<LocatedNumber>),
    /// One of the strings, booleans and null that the schema lists.
    Choice(LocatedChoice),
}

/// A value that a schema lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LocatedChoice {
    /// Its JSONPath, such as `$.rooms[0].kind`.
    pub path: String,
    /// The index of its first token among the tokens of the text, and of the first token after it.
    #[schema(value_type = Vec<u64>, min_items = 2, max_items = 2)]
    pub token_range: [u64; 2],
    /// The listed values in the order of the schema. The text has the most probable one, unless the model
    /// writes almost none of them. Probabilities are conditional on the closed mass, and equal without any.
    pub probabilities: Vec<FieldProbability>,
    /// The probability that the model writes one of the values (`closed`), something else (`invalid`), or a
    /// beginning that was not expanded or not reported (`open`).
    pub mass: NumberMass,
    /// Number of decoder positions that it is computed from.
    pub nodes: u64,
    /// Whether `nodes_max` or `time_max` ended the expansion before `tolerance` was reached.
    pub truncated: bool,
}

/// The probability of a listed value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FieldProbability {
    /// A string, a boolean or null.
    pub value: Value,
    pub probability: f64,
}

impl LocatedField {
    /// The same field in a larger JSON, in which `root` replaces the `$` of its path.
    pub fn below(self, root: &str) -> Self {
        match self {
            Self::Number(number) => Self::Number(Box::new(number.below(root))),
            Self::Choice(choice) => {
                Self::Choice(LocatedChoice { path: choice.path.replacen('$', root, 1), ..choice })
            }
        }
    }
}
