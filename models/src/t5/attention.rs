//! The kinds of self-attention in a stack.

use crate::ops::{PassRope, RelativeBias, Window};
use crate::rope::Rotary;

/// The window and the positions of self-attention in some of a stack's layers.
#[derive(Clone, Default)]
pub(crate) struct AttentionKind {
    /// The nearest positions, which a row sees; `None` for all positions of its prompt, or of its path.
    pub(crate) window: Option<Window>,
    pub(crate) rotary: Option<Rotary>,
    pub(crate) bias: Option<RelativeBias>,
}

impl AttentionKind {
    pub(crate) fn rotary(window: Option<Window>, rotary: Rotary) -> Self {
        Self { window, rotary: Some(rotary), bias: None }
    }

    /// Returns the rotation of rows at these positions, if there is any.
    pub(super) fn rope(&self, positions: impl Iterator<Item = usize>) -> Option<PassRope> {
        self.rotary.as_ref().map(|rotary| rotary.pass(positions))
    }

    /// Returns the part of a path, from the root down to a row, that the row sees.
    pub(super) fn seen<'a>(&self, path: &'a [u32]) -> &'a [u32] {
        let hidden = self.window.map_or(0, |window| path.len().saturating_sub(window.before + 1));
        &path[hidden..]
    }
}
