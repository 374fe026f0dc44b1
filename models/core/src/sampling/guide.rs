//! The contract of guided decoding. Grammars are in `ntl-models`.

/// Why guided decoding failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GuideError(pub String);

/// A compiled constraint.
pub trait Guide: std::fmt::Debug + Send + Sync {
    /// The state before the first token.
    fn start(&self) -> Box<dyn GuideState>;
}

/// The state of a constraint after the tokens of one path.
pub trait GuideState: Send {
    /// Sets the logits of all forbidden tokens to minus infinity. An error when the constraint exceeds its
    /// cost limits.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), GuideError>;

    /// Advances by a token; an error when it was forbidden.
    fn accept(&mut self, id: u32) -> Result<(), GuideError>;

    /// Returns `true` if no token can follow.
    fn is_complete(&mut self) -> bool;
}
