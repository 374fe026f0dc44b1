//! The encoder. It runs on concatenated prompts, without padding, or on parts of one long prompt.

use candle_core::{Result, Tensor};

use super::attention::AttentionKind;
use super::layers::{FeedForward, SelfAttention};
use crate::ops::{
    AdaptedRows, Heads, KeyValues, Norm, PassRope, Phase, PromptAttention, TensorGroup, attend, prompt_query,
};

/// A stack that encodes prompts. It has at least one layer.
pub(crate) struct Encoder {
    pub(crate) layers: Vec<EncoderLayer>,
    /// After the last layer.
    pub(crate) norm: Option<Norm>,
    /// The kinds of attention in its layers.
    pub(crate) kinds: Vec<AttentionKind>,
    pub(crate) heads: Heads,
}

pub(crate) struct EncoderLayer {
    pub(crate) attention: SelfAttention,
    pub(crate) feed_forward: FeedForward,
    pub(crate) norms_after: Option<NormsAfter>,
}

/// Normalisations of the hidden states after each part of a layer (BERT).
pub(crate) struct NormsAfter {
    pub(crate) attention: Norm,
    pub(crate) feed_forward: Norm,
}

impl Encoder {
    /// Computes the hidden states of all tokens.
    ///
    /// * `x` `[T, d_model]`: concatenated embeddings of all prompts, which nothing else reads afterwards
    /// * `lengths`: number of tokens of each prompt, at least one; their sum is `T`
    /// * `rows`: the rows that have adapters
    ///
    /// Returns `[T, d_model]` in the same order.
    pub(super) fn forward(&self, mut x: Tensor, lengths: &[usize], rows: &AdaptedRows) -> Result<Tensor> {
        let mut attentions = Vec::with_capacity(self.kinds.len());
        for kind in &self.kinds {
            attentions.push(Self::prompts(kind, &x, lengths)?);
        }
        for layer in &self.layers {
            let (attention, rope) = &attentions[layer.attention.kind];
            let normed = layer.attention.normed(&x)?;
            let input =
                layer.attention.input(normed.as_deref().unwrap_or(&x), self.heads, rope.as_ref(), rows);
            let attended = attention.attend(&input)?;
            drop(normed);
            x = layer.rest(&attended, x, rows)?;
        }
        self.output(x)
    }

    /// Returns the output for hidden states after the last layer.
    fn output(&self, x: Tensor) -> Result<Tensor> {
        match &self.norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }

    /// Returns the attention of one kind of layers to prompts, and the rotation of their positions.
    fn prompts<'a>(
        kind: &'a AttentionKind,
        x: &Tensor,
        lengths: &[usize],
    ) -> Result<(PromptAttention<'a>, Option<PassRope>)> {
        let attention = PromptAttention::new(x, lengths, kind.window, kind.bias.as_ref())?;
        Ok((attention, kind.rope(lengths.iter().flat_map(|&length| 0..length))))
    }
}

/// A long prompt on the CPU, between two parts of its computation.
///
/// A layer's attention needs the keys and values of all tokens; the rest of a layer needs only one token.
/// Stage `s` therefore computes, for some rows at a time, the rest of layer `s - 1` after its keys and
/// values, and the queries, keys and values of layer `s`.
pub(super) struct Encoding {
    /// `[T, d_model]`: hidden states before layer `stage`, for the first `row` rows, and before the layer
    /// before it for the others.
    x: Tensor,
    /// `[T, H * D]`: queries in the layer of the same row's hidden states.
    q: Tensor,
    /// Keys and values of layer `stage - 1`.
    seen: KeyValues,
    /// Keys and values of layer `stage`, of the first `row` rows.
    next: KeyValues,
    stage: usize,
    row: usize,
}

impl Encoding {
    /// Begins with the embeddings `[T, d_model]` of a prompt, whose storage no other tensor may share.
    /// `queries` and `keys` are the widths of all query heads and of all key heads.
    pub(super) fn new(x: Tensor, [queries, keys]: [usize; 2]) -> Result<Self> {
        let q = zeros(&x, queries)?;
        let seen = KeyValues { keys: zeros(&x, keys)?, values: zeros(&x, keys)? };
        let next = KeyValues { keys: zeros(&x, keys)?, values: zeros(&x, keys)? };
        Ok(Self { x, q, seen, next, stage: 0, row: 0 })
    }

    /// Returns its memory per token of the prompt, in bytes: hidden states, queries, and the keys and values
    /// of two layers.
    fn token_bytes(d_model: usize, [queries, keys]: [usize; 2]) -> usize {
        (d_model + queries + 4 * keys) * size_of::<f32>()
    }

    pub(super) fn stage(&self) -> usize {
        self.stage
    }

    pub(super) fn row(&self) -> usize {
        self.row
    }
}

impl Encoder {
    /// Returns the widths of all query heads and of all key heads.
    pub(super) fn head_widths(&self) -> [usize; 2] {
        let [queries, keys, _] = self.layers.first().map_or([0; 3], |layer| layer.attention.qkv.widths());
        [queries, keys]
    }

    /// Returns the memory of an [`Encoding`] per token of its prompt, in bytes.
    pub(super) fn encoding_token_bytes(&self) -> usize {
        let hidden = self.layers.first().map_or(0, |layer| layer.attention.output.widths()[0]);
        Encoding::token_bytes(hidden, self.head_widths())
    }

    fn kind(&self, layer: &EncoderLayer) -> &AttentionKind {
        &self.kinds[layer.attention.kind]
    }

    /// Returns the number of stages of an [`Encoding`].
    pub(super) fn stages(&self) -> usize {
        self.layers.len() + 1
    }

    /// Computes the next `count` rows of a stage. Returns their outputs `[count, d_model]` in the last stage.
    pub(super) fn advance(
        &self,
        state: &mut Encoding,
        count: usize,
        adapted: &AdaptedRows,
    ) -> Result<Option<Tensor>> {
        let Encoding { x: all, q: queries, seen, next, stage, row } = state;
        let first = *row;
        let mut x = all.narrow(0, first, count)?;
        if let Some(layer) = stage.checked_sub(1).map(|before| &self.layers[before]) {
            let length = all.dim(0)?;
            let kind = self.kind(layer);
            let positions = first..first + count;
            let rows: Vec<_> =
                positions.map(|position| prompt_query(position, length, kind.window)).collect();
            let group = TensorGroup { before: Vec::new(), own: seen, queries: &rows, phase: Phase::Prefill };
            let q = queries.narrow(0, first, count)?;
            x = layer.rest(&attend(&q, &[group], self.heads, kind.bias.as_ref())?, x, adapted)?;
            put(all, x.clone(), first)?;
        }
        let output = match self.layers.get(*stage) {
            Some(layer) => {
                let rope = self.kind(layer).rope(first..first + count);
                let normed = layer.attention.normed(&x)?;
                let normed = normed.as_deref().unwrap_or(&x);
                let input = layer.attention.input(normed, self.heads, rope.as_ref(), adapted);
                let projections = input.parts()?;
                for (all, some) in [queries, &mut next.keys, &mut next.values].into_iter().zip(projections) {
                    put(all, some, first)?;
                }
                None
            }
            None => Some(self.output(x)?),
        };
        *row += count;
        if *row == all.dim(0)? {
            std::mem::swap(seen, next);
            *row = 0;
            *stage += 1;
        }
        Ok(output)
    }
}

/// Returns zeros `[T, width]` for `x` `[T, d_model]`, in its type and on its device.
fn zeros(x: &Tensor, width: usize) -> Result<Tensor> {
    Tensor::zeros((x.dim(0)?, width), x.dtype(), x.device())
}

/// Writes rows, which begin at row `first` of all rows. Copies nothing if they are all rows.
fn put(all: &mut Tensor, rows: Tensor, first: usize) -> Result<()> {
    if rows.dim(0)? < all.dim(0)? {
        return all.slice_set(&rows, 0, first);
    }
    *all = rows;
    Ok(())
}

impl EncoderLayer {
    /// Computes the layer after its attention. `x` are the hidden states before the layer, whose storage no
    /// other tensor may share on a device.
    fn rest(&self, attended: &Tensor, x: Tensor, rows: &AdaptedRows) -> Result<Tensor> {
        let x = self.attention.output.added(attended, x, rows)?;
        match &self.norms_after {
            Some(norms) => {
                let x = norms.attention.forward(&x)?;
                norms.feed_forward.forward(&self.feed_forward.forward(x, rows)?)
            }
            None => self.feed_forward.forward(x, rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn a_partly_encoded_prompt_holds_the_memory_that_is_reserved_for_its_tokens() {
        let (tokens, d_model, head_widths) = (7, 12, [8, 4]);
        let x = Tensor::zeros((tokens, d_model), DType::F32, &Device::Cpu).unwrap();
        let Encoding { x, q, seen, next, .. } = Encoding::new(x, head_widths).unwrap();
        let all = [x, q, seen.keys, seen.values, next.keys, next.values];
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        let held: usize = all.iter().map(bytes).sum();
        assert_eq!(held, tokens * Encoding::token_bytes(d_model, head_widths));
    }
}
