//! Constrains texts to answers of dedicated number tokens.

use std::sync::Arc;

use crate::guide::{Guide, GuideError, GuideState};
use crate::numbers::{TokenNotation, TokenState};

/// The constraint.
#[derive(Debug)]
pub(crate) struct TokenGuide(pub(crate) Arc<TokenNotation>);

struct Written {
    notation: Arc<TokenNotation>,
    state: TokenState,
}

impl Guide for TokenGuide {
    fn start(&self) -> Box<dyn GuideState> {
        Box::new(Written { notation: Arc::clone(&self.0), state: TokenState::default() })
    }
}

impl GuideState for Written {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), GuideError> {
        let allowed = self.notation.allowed(self.state);
        for (id, logit) in (0u32..).zip(logits) {
            if allowed.binary_search_by_key(&id, |(id, _)| *id).is_err() {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), GuideError> {
        let allowed = self.notation.allowed(self.state);
        let part = allowed.iter().find(|(allowed, _)| *allowed == id).map(|(_, part)| *part);
        let part = part.ok_or_else(|| GuideError(format!("token {id} is not part of a number here")))?;
        self.state = self.notation.advance(self.state, part).0;
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.notation.allowed(self.state).is_empty()
    }
}
