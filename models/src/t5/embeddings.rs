//! The embeddings of a stack's tokens.

use candle_core::{DType, Result, Tensor};
use ntl_core::contract::ModelError;

use crate::ops::{ModelResult, Weight, compute_error};

/// A token table. Clones share it.
#[derive(Clone)]
pub(crate) struct Embeddings {
    /// `[vocab, d_model]`.
    pub(super) table: Weight,
    pub(super) vocab: usize,
    /// Factor of the table's rows.
    pub(super) factor: f64,
    /// A token that has this vector `[1, d_model]`, f32, instead of a row of the table.
    pub(super) replaced: Option<(u32, Tensor)>,
}

impl Embeddings {
    /// Creates embeddings that are the rows of a table.
    pub(crate) fn plain(table: Weight, vocab: usize) -> Self {
        Self { table, vocab, factor: 1.0, replaced: None }
    }

    /// Checks that all tokens have embeddings.
    pub(super) fn check(&self, mut tokens: impl Iterator<Item = u32>) -> ModelResult<()> {
        let vocab = self.vocab;
        let outside = tokens.find(|&id| id as usize >= vocab);
        outside.map_or(Ok(()), |id| Err(ModelError::TokenOutOfRange { id, vocab }))
    }

    /// Returns f32 `[n, d_model]`.
    pub(super) fn embed(&self, tokens: impl Iterator<Item = u32>) -> ModelResult<Tensor> {
        let tokens: Vec<u32> = tokens.collect();
        self.check(tokens.iter().copied())?;
        self.rows(&tokens).map_err(compute_error)
    }

    fn rows(&self, tokens: &[u32]) -> Result<Tensor> {
        let mut x = self.table.rows(tokens)?.to_dtype(DType::F32)?;
        if (self.factor - 1.0).abs() > f64::EPSILON {
            x = (x * self.factor)?;
        }
        if let Some((replaced, vector)) = &self.replaced {
            for (row, _) in tokens.iter().enumerate().filter(|(_, id)| *id == replaced) {
                x.slice_set(vector, 0, row)?;
            }
        }
        Ok(x)
    }
}
