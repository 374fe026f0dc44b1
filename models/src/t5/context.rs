//! What one request has in the model: its prompt's cross-attention keys and values, and its tree of nodes.

use crate::nodes::{HasNodes, NodeStore};
use crate::ops::KeyValues;

pub(super) struct Context {
    /// Keys and values of the prompt for each decoder layer, `[S, H * D]`.
    pub(super) cross: Vec<KeyValues>,
    /// Number of prompt tokens, `S`.
    pub(super) prompt_len: usize,
    pub(super) nodes: NodeStore,
}

impl HasNodes for Context {
    fn nodes_mut(&mut self) -> &mut NodeStore {
        &mut self.nodes
    }
}
