//! The contribution of one token id to a number.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NumberPiece {
    Text(Box<str>),
    /// A digit times a power of ten, as in Regression Transformers: `_3_1_` is 30. The powers of a number
    /// descend. An omitted power counts as a zero, as in the reference implementation.
    Place {
        /// 0 to 9.
        digit: u8,
        /// The power of ten.
        place: i8,
    },
    /// A complete number, whose value the number head predicts (xVal's `[NUM]`).
    Head,
}

impl From<String> for NumberPiece {
    fn from(text: String) -> Self {
        Self::Text(text.into_boxed_str())
    }
}
