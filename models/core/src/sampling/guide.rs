//! What a text must keep to, token by token: the contract behind guided decoding.
//!
//! Not here: any grammar. Invariant: a state is asked and told in turn along one path.

/// Why a text cannot be guided on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GuideError(pub String);

/// A compiled constraint; every text starts from its beginning.
pub trait Guide: std::fmt::Debug + Send + Sync {
    /// The constraint before the first token.
    fn start(&self) -> Box<dyn GuideState>;
}

/// A constraint after the tokens of one path.
pub trait GuideState: Send {
    /// Sets the logits of all tokens that may not come next to minus infinity.
    ///
    /// # Errors
    /// When the constraint is too costly to follow.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), GuideError>;

    /// Goes on behind a token that was allowed.
    ///
    /// # Errors
    /// When it was not.
    fn accept(&mut self, id: u32) -> Result<(), GuideError>;

    /// Whether the text is complete and nothing can follow.
    fn is_complete(&mut self) -> bool;
}
