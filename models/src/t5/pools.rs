//! The output of an encoder, pooled over each prompt.
//!
//! In: the output of each prompt's tokens, in order. Out: one vector per prompt. Sums are in f64 and in the
//! order of tokens, so that a vector does not depend on how a prefill is divided.

use std::collections::HashMap;

use candle_core::{DType, Result, Tensor};
use ntl_core::contract::{self, ContextId, LogitsRequest, ModelError, Row};

use super::prompts::{EncodedRows, EncodedSink};
use crate::ops::ModelResult;

/// The part of the encoder's output that a vector is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The output of the first token.
    First,
    /// The output of the last token.
    Last,
}

impl From<contract::Pooling> for Pooling {
    fn from(pooling: contract::Pooling) -> Self {
        match pooling {
            contract::Pooling::Mean => Self::Mean,
            contract::Pooling::Last => Self::Last,
        }
    }
}

/// The pooled output of contexts.
#[derive(Default)]
pub(super) struct Pools(HashMap<ContextId, Pool>);

struct Pool {
    pooling: Pooling,
    sum: Vec<f64>,
    /// Number of tokens in the sum.
    tokens: usize,
}

impl Pools {
    pub(super) fn begin(&mut self, context: ContextId, pooling: Pooling) {
        self.0.insert(context, Pool { pooling, sum: Vec::new(), tokens: 0 });
    }

    /// Returns the vector of a prompt of which all output was written, `[hidden]`.
    pub(super) fn vector(&self, context: ContextId) -> Option<Vec<f32>> {
        let Pool { sum, tokens, .. } = self.0.get(&context)?;
        Some(sum.iter().map(|sum| (sum / *tokens as f64) as f32).collect())
    }

    /// Returns the vector of each row that requests one.
    pub(super) fn requested(&self, rows: &[Row]) -> ModelResult<Vec<Option<Vec<f32>>>> {
        let mut vectors = vec![None; rows.len()];
        for (vector, Row { context, path }) in vectors.iter_mut().zip(rows) {
            if path.logits == LogitsRequest::Hidden {
                *vector = Some(self.vector(*context).ok_or(ModelError::UnknownContext(*context))?);
            }
        }
        Ok(vectors)
    }

    pub(super) fn close(&mut self, context: ContextId) {
        self.0.remove(&context);
    }
}

impl EncodedSink for Pools {
    fn open(&mut self, _: &[(ContextId, usize)]) -> Result<()> {
        Ok(())
    }

    /// Ignores contexts that are not pooled.
    fn write(&mut self, rows: &[EncodedRows], encoded: &Tensor) -> Result<()> {
        let mut from = 0;
        for EncodedRows { context, first, count } in rows {
            if let Some(pool) = self.0.get_mut(context) {
                let outputs = encoded.narrow(0, from, *count)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
                for (index, output) in outputs.iter().enumerate() {
                    pool.add(first + index, output);
                }
            }
            from += count;
        }
        Ok(())
    }
}

impl Pool {
    /// Adds the output of the token at `position`.
    fn add(&mut self, position: usize, output: &[f32]) {
        match self.pooling {
            Pooling::Mean => self.tokens += 1,
            Pooling::First if position > 0 => return,
            Pooling::First | Pooling::Last => {
                self.sum.clear();
                self.tokens = 1;
            }
        }
        self.sum.resize(output.len(), 0.0);
        self.sum.iter_mut().zip(output).for_each(|(sum, output)| *sum += f64::from(*output));
    }
}
