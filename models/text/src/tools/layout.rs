//! The fixed parts of a format around names and arguments, for the grammar of guided decoding.

/// The parts of a text that consists of calls, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallLayout {
    /// Before the first call.
    pub open: Vec<CallSymbol>,
    pub before_name: Vec<CallSymbol>,
    pub before_arguments: Vec<CallSymbol>,
    pub after_arguments: Vec<CallSymbol>,
    /// Between two calls.
    pub separator: Vec<CallSymbol>,
    /// After the last call.
    pub close: Vec<CallSymbol>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallSymbol {
    Text(&'static str),
    OptionalSpace,
    /// A text that would be a special token in other vocabularies.
    Marker(&'static str),
    /// A special token.
    Token(u32),
}

impl CallLayout {
    /// Replaces the markers that are special tokens.
    pub(super) fn with_tokens(mut self, special: impl Fn(&str) -> Option<u32>) -> Self {
        let parts = [
            &mut self.open,
            &mut self.before_name,
            &mut self.before_arguments,
            &mut self.after_arguments,
            &mut self.separator,
            &mut self.close,
        ];
        for symbol in parts.into_iter().flatten() {
            if let CallSymbol::Marker(name) = *symbol {
                *symbol = special(name).map_or(*symbol, CallSymbol::Token);
            }
        }
        self
    }
}
