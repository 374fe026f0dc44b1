//! What one token id contributes to a number.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NumberPiece {
    Text(Box<str>),
    /// A digit times a power of ten, as Regression Transformers write numbers: `_3_1_` is 30. The powers of one
    /// number fall; one that is left out is a zero, as the original decodes it.
    Place {
        /// 0 to 9.
        digit: u8,
        /// The power of ten.
        place: i8,
    },
    /// A whole number, whose value the number head predicts (xVal's `[NUM]`).
    Head,
}

impl From<String> for NumberPiece {
    fn from(text: String) -> Self {
        Self::Text(text.into_boxed_str())
    }
}
