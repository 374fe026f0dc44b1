//! Reads the stacks of a T5 checkpoint.

use ntl_text::checkpoint::LoadResult;

use super::attention::AttentionKind;
use super::bias::{Direction, load_bias};
use super::config::T5Config;
use super::decoder::{Decoder, DecoderLayer};
use super::embeddings::Embeddings;
use super::encoder::{Encoder, EncoderLayer};
use super::layers::{CrossAttention, FeedForward, Loader, SelfAttention};
use super::prefill::{StackSizes, StageWork};
use super::stacks::Parts;
use crate::ops::{Heads, Linear, Mlp, MlpInput, Norm, Weight, device_error};

/// Reads both stacks, which share `embeddings`.
pub(super) fn load_stacks(loader: &Loader<'_>, embeddings: Weight) -> LoadResult<Parts> {
    let config = loader.config;
    let embeddings = Embeddings::plain(embeddings, config.vocab_size);
    Ok(Parts {
        prompt_embeddings: embeddings.clone(),
        row_embeddings: embeddings,
        encoder: loader.encoder()?,
        decoder: loader.decoder()?,
        work: StageWork::new(
            &config.sizes(config.num_layers),
            &config.sizes(config.num_decoder_layers),
            loader.place,
        ),
        start_id: config.decoder_start_token_id,
    })
}

/// Reads the token table, which has different names in different checkpoints.
pub(super) fn load_embeddings(loader: &Loader<'_>) -> LoadResult<candle_core::Tensor> {
    let names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
    let name = names.into_iter().find(|name| loader.has(name)).unwrap_or(names[0]);
    loader.tensor(name, &[loader.config.vocab_size, loader.config.d_model])
}

impl T5Config {
    /// Returns the sizes of a stack with this many layers.
    fn sizes(&self, layers: usize) -> StackSizes {
        StackSizes {
            hidden: self.d_model,
            queries: self.inner(),
            keys: self.inner(),
            mlp: self.d_model * self.d_ff * if self.gated { 3 } else { 2 },
            windows: vec![None; layers],
        }
    }
}

impl Loader<'_> {
    fn encoder(&self) -> LoadResult<Encoder> {
        let mut layers = Vec::new();
        for index in 0..self.config.num_layers {
            let block = format!("encoder.block.{index}.layer");
            layers.push(EncoderLayer {
                attention: self.self_attention(&format!("{block}.0"))?,
                feed_forward: self.feed_forward(&format!("{block}.1"))?,
                norms_after: None,
            });
        }
        Ok(Encoder {
            layers,
            norm: Some(self.norm("encoder.final_layer_norm")?),
            kinds: vec![self.attention_kind("encoder", Direction::Bidirectional)?],
            heads: Heads::unscaled(self.config.num_heads),
        })
    }

    fn decoder(&self) -> LoadResult<Decoder> {
        let mut layers = Vec::new();
        for index in 0..self.config.num_decoder_layers {
            let block = format!("decoder.block.{index}.layer");
            let (cross_attention, prompt_kv) = self.cross_attention(&format!("{block}.1"))?;
            layers.push(DecoderLayer {
                self_attention: self.self_attention(&format!("{block}.0"))?,
                prompt_kv,
                cross_attention: Some(cross_attention),
                feed_forward: self.feed_forward(&format!("{block}.2"))?,
            });
        }
        Ok(Decoder {
            layers,
            norm: Some(self.norm("decoder.final_layer_norm")?.exact()),
            kinds: vec![self.attention_kind("decoder", Direction::Causal)?],
            heads: Heads::unscaled(self.config.num_heads),
            positions: None,
        })
    }

    fn attention_kind(&self, stack: &str, direction: Direction) -> LoadResult<AttentionKind> {
        let bias = Some(load_bias(self, stack, direction)?);
        Ok(AttentionKind { bias, ..AttentionKind::default() })
    }

    fn norm(&self, name: &str) -> LoadResult<Norm> {
        let weight = self.tensor(&format!("{name}.weight"), &[self.config.d_model])?;
        Norm::new(&weight, None, self.config.layer_norm_epsilon).map_err(device_error)
    }

    fn self_attention(&self, name: &str) -> LoadResult<SelfAttention> {
        let inner = self.config.inner();
        let model = self.config.d_model;
        let qkv_names = ["q", "k", "v"].map(|part| format!("{name}.SelfAttention.{part}"));
        Ok(SelfAttention {
            kind: 0,
            norm: Some(self.norm(&format!("{name}.layer_norm"))?),
            qkv: self.linear(qkv_names, [inner; 3], model)?,
            qk_norms: None,
            output: self.linear([format!("{name}.SelfAttention.o")], [model], inner)?,
        })
    }

    /// Returns the attention to the prompt, and the projections of the prompt to keys and values.
    fn cross_attention(&self, name: &str) -> LoadResult<(CrossAttention, Linear<2>)> {
        let inner = self.config.inner();
        let model = self.config.d_model;
        let attention = CrossAttention {
            norm: self.norm(&format!("{name}.layer_norm"))?,
            query: self.linear([format!("{name}.EncDecAttention.q")], [inner], model)?,
            output: self.linear([format!("{name}.EncDecAttention.o")], [model], inner)?,
        };
        let kv_names = ["k", "v"].map(|part| format!("{name}.EncDecAttention.{part}"));
        Ok((attention, self.linear(kv_names, [inner; 2], model)?))
    }

    fn feed_forward(&self, name: &str) -> LoadResult<FeedForward> {
        let wide = self.config.d_ff;
        let model = self.config.d_model;
        let up = if self.config.gated {
            let names = ["wi_0", "wi_1"].map(|part| format!("{name}.DenseReluDense.{part}"));
            MlpInput::Gated(self.linear(names, [wide; 2], model)?)
        } else {
            MlpInput::Plain(self.linear([format!("{name}.DenseReluDense.wi")], [wide], model)?)
        };
        let down = self.down(format!("{name}.DenseReluDense.wo"), [model, wide])?;
        let mlp = Mlp { up, down, activation: self.config.activation };
        Ok(FeedForward { norm: Some(self.norm(&format!("{name}.layer_norm"))?), mlp })
    }
}
