//! Reads the tensors of RegressLM's PyTorch model.

use candle_core::Tensor;
use ntl_text::checkpoint::{CheckpointFiles, LoadError, LoadResult, OWN_FILE};

use super::config::{EncoderShape, LayersShape, TorchConfig};
use crate::adapter::{AdaptableLayers, ModelAdapters};
use crate::families::{Family, GemmaVersion};
use crate::ops::{
    Activation, Linear, Mlp, MlpInput, Norm, Placement, StoredLinear, device_error, is_placeholder,
};
use crate::rope::Rotary;
use crate::t5::attention::AttentionKind;
use crate::t5::decoder::{Decoder, DecoderLayer};
use crate::t5::embeddings::Embeddings;
use crate::t5::encoder::{Encoder, EncoderLayer};
use crate::t5::head::Head;
use crate::t5::layers::{CrossAttention, FeedForward, Loader, SelfAttention};
use crate::t5::model::{T5, TokenizerFacts};
use crate::t5::prefill::{StackSizes, StageWork};
use crate::t5::stacks::{Parts, Stacks};
use crate::weights::Weights;

impl TorchConfig {
    /// Opens the weights.
    pub(crate) fn weights<'a>(&self, files: &'a CheckpointFiles) -> LoadResult<Weights<'a>> {
        Weights::open_torch(files, &self.weights.name, &self.weights.key)
    }
}

impl T5 {
    /// Loads RegressLM's PyTorch model. `facts` are about the tokenizer of prompts.
    pub(crate) fn load_torch(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        config: &TorchConfig,
        place: &Placement,
    ) -> LoadResult<Self> {
        let known = config.encoder.vocab_size();
        if facts.tokens > known {
            let reason = format!("{known} is less than the {} tokens of the tokenizer", facts.tokens);
            return Err(LoadError::field(files.name_of(OWN_FILE), "encoder.vocab_size", reason));
        }
        let weights = config.weights(files)?;
        let mut info = facts.info(Family::of(files)?, Vec::new(), place, weights.parameters());
        info.tokens = config.notation.tokens();
        info.answer_tokens_max = Some(config.positions);
        let adaptable = AdaptableLayers::default();
        let (parts, head) =
            RegressLmReader { weights: &weights, config, place, adaptable: &adaptable }.parts()?;
        Ok(Self::new(info, Stacks::new(parts, ModelAdapters::new(adaptable, place), place), head))
    }
}

struct RegressLmReader<'a> {
    weights: &'a Weights<'a>,
    config: &'a TorchConfig,
    place: &'a Placement,
    adaptable: &'a AdaptableLayers,
}

impl RegressLmReader<'_> {
    fn parts(&self) -> LoadResult<(Parts, Head)> {
        let Self { weights, config, place, adaptable } = *self;
        let decoder = &config.decoder;
        let root = &config.weights.prefix;
        let (prompt_embeddings, encoder, encoder_sizes) = match &config.encoder {
            EncoderShape::Vanilla { layers: shape, rotary } => {
                let prefix = &format!("{root}encoder.");
                let loader = Loader { weights, config: shape, place, prefix, adaptable };
                let table = loader.weight("embedding", [shape.vocab_size, shape.d_model])?;
                let embeddings = Embeddings::plain(table, shape.vocab_size);
                (embeddings, loader.rotary_encoder(rotary.clone())?, shape.sizes())
            }
            EncoderShape::Gemma { version, stack, image_end_id } => {
                let part = match version {
                    GemmaVersion::One => "",
                    GemmaVersion::Two => "text_model.",
                };
                let prefix = &format!("{root}encoder.encoder.{part}");
                let loader = Loader { weights, config: stack, place, prefix, adaptable };
                let image_end = image_end_id.map(|id| loader.image_end(id)).transpose()?;
                (stack.embeddings(loader.table()?, image_end), loader.encoder()?, stack.sizes())
            }
        };
        let prefix = &format!("{root}decoder.");
        let loader = Loader { weights, config: decoder, place, prefix, adaptable };
        let whole = Loader { prefix: root, ..loader };
        // Logits are computed in f32.
        let exact = place.exact();
        let exact = Loader { place: &exact, ..whole };
        let shape = [decoder.vocab_size, decoder.d_model];
        let generator = Linear::plain(exact.weight("generator", shape)?, [decoder.vocab_size]);
        let head = Head::biased(generator, exact.tensor("generator.bias", &shape[..1])?);
        let positions =
            exact.tensor("decoder_positional_encoding.pe", &[1, config.positions, decoder.d_model])?;
        let table = whole.weight("tgt_tok_emb", shape)?;
        let parts = Parts {
            prompt_embeddings,
            row_embeddings: Embeddings::plain(table, decoder.vocab_size),
            encoder,
            decoder: Decoder {
                positions: Some(positions.squeeze(0).map_err(device_error)?),
                ..loader.decoder()?
            },
            work: StageWork::new(&encoder_sizes, &decoder.sizes(), place),
            start_id: config.start_id,
        };
        Ok((parts, head))
    }
}

impl LayersShape {
    fn sizes(&self) -> StackSizes {
        StackSizes {
            hidden: self.d_model,
            queries: self.d_model,
            keys: self.d_model,
            mlp: 2 * self.d_model * self.d_ff,
            windows: vec![None; self.layers],
        }
    }
}

impl Loader<'_, LayersShape> {
    fn rotary_encoder(&self, rotary: Rotary) -> LoadResult<Encoder> {
        let config = self.config;
        let mut layers = Vec::new();
        for index in 0..config.layers {
            let name = format!("layers.{index}");
            layers.push(EncoderLayer {
                attention: self.rotary_attention(&name)?,
                feed_forward: self.feed_forward(&name, "norm2")?,
                norms_after: None,
            });
        }
        Ok(Encoder {
            layers,
            norm: Some(self.norm("norm")?),
            kinds: vec![AttentionKind { rotary: Some(rotary), ..AttentionKind::default() }],
            heads: config.attention_heads(),
        })
    }

    /// Reads the decoder without its positions.
    fn decoder(&self) -> LoadResult<Decoder> {
        let mut layers = Vec::new();
        for index in 0..self.config.layers {
            layers.push(self.decoder_layer(&format!("layers.{index}"))?);
        }
        Ok(Decoder {
            layers,
            norm: None,
            kinds: vec![AttentionKind::default()],
            heads: self.config.attention_heads(),
            positions: None,
        })
    }

    fn decoder_layer(&self, layer: &str) -> LoadResult<DecoderLayer> {
        let width = self.config.d_model;
        let joint = self.joint(&format!("{layer}.multihead_attn.in_proj"), 3 * width)?;
        Ok(DecoderLayer {
            self_attention: SelfAttention {
                kind: 0,
                norm: Some(self.norm(&format!("{layer}.norm1"))?),
                qkv: self
                    .layers([self.joint(&format!("{layer}.self_attn.in_proj"), 3 * width)?], [width; 3])?,
                qk_norms: None,
                output: self.biased(&format!("{layer}.self_attn.out_proj"), [width, width])?,
            },
            prompt_kv: self.layers([joint.rows(width, 2 * width)?], [width; 2])?,
            cross_attention: Some(CrossAttention {
                norm: self.norm(&format!("{layer}.norm2"))?,
                query: self.layers([joint.rows(0, width)?], [width])?,
                output: self.biased(&format!("{layer}.multihead_attn.out_proj"), [width, width])?,
            }),
            feed_forward: self.feed_forward(layer, "norm3")?,
        })
    }

    fn norm(&self, name: &str) -> LoadResult<Norm> {
        let width = self.config.d_model;
        let weight = self.tensor(&format!("{name}.weight"), &[width])?;
        let bias = self.tensor(&format!("{name}.bias"), &[width])?;
        Norm::new(&weight, Some(&bias), self.config.eps).map_err(device_error)
    }

    /// Reads self-attention whose rotary positions rotate neighbouring elements of a head.
    fn rotary_attention(&self, layer: &str) -> LoadResult<SelfAttention> {
        let width = self.config.d_model;
        let shape = [width, width];
        let head_dim = self.config.head_dim();
        let norm = self.norm(&format!("{layer}.norm1"))?;
        let query = self.stored(&format!("{layer}.q_proj"), shape, true)?.pairs_as_halves(head_dim)?;
        let key = self.stored(&format!("{layer}.k_proj"), shape, true)?.pairs_as_halves(head_dim)?;
        let value = self.stored(&format!("{layer}.v_proj"), shape, true)?;
        Ok(SelfAttention {
            kind: 0,
            norm: Some(norm),
            qkv: self.layers([query, key, value], [width; 3])?,
            qk_norms: None,
            output: self.biased(&format!("{layer}.out_proj"), shape)?,
        })
    }

    fn feed_forward(&self, layer: &str, norm: &str) -> LoadResult<FeedForward> {
        let LayersShape { d_model, d_ff, .. } = *self.config;
        let up = MlpInput::Plain(self.biased(&format!("{layer}.linear1"), [d_ff, d_model])?);
        let down = self.biased(&format!("{layer}.linear2"), [d_model, d_ff])?;
        let mlp = Mlp { up, down, activation: Activation::Relu };
        Ok(FeedForward { norm: Some(self.norm(&format!("{layer}.{norm}"))?), mlp })
    }

    fn layers<const N: usize, const P: usize>(
        &self,
        layers: [StoredLinear; N],
        widths: [usize; P],
    ) -> LoadResult<Linear<P>> {
        Linear::new(&layers, widths, self.place).map_err(device_error)
    }

    /// Reads the layers that PyTorch's attention stores as one, with underscores in their names.
    fn joint(&self, name: &str, output: usize) -> LoadResult<StoredLinear> {
        let weight = self.tensor(&format!("{name}_weight"), &[output, self.config.d_model])?;
        let bias = Some(self.tensor(&format!("{name}_bias"), &[output])?);
        Ok(StoredLinear { module: self.module(name), weight, bias })
    }
}

impl StoredLinear {
    /// Returns `count` of its outputs, from `first` on.
    fn rows(&self, first: usize, count: usize) -> LoadResult<Self> {
        let bias = match &self.bias {
            Some(bias) => Some(bias.narrow(0, first, count).map_err(device_error)?),
            None => None,
        };
        let weight = self.weight.narrow(0, first, count).map_err(device_error)?;
        Ok(Self { module: self.module.clone(), weight, bias })
    }

    /// Reorders the outputs of each head so that the first elements of all pairs come before the second ones.
    /// Scores of rotated queries and keys stay the same.
    fn pairs_as_halves(self, head_dim: usize) -> LoadResult<Self> {
        if is_placeholder(&self.weight) {
            return Ok(self);
        }
        let width = self.weight.dim(0).map_err(device_error)?;
        let mut order = Vec::with_capacity(width);
        for first in (0..width).step_by(head_dim) {
            for half in [0, 1] {
                order.extend((first + half..first + head_dim).step_by(2).map(|element| element as u32));
            }
        }
        let order = Tensor::from_vec(order, width, self.weight.device()).map_err(device_error)?;
        let bias = match &self.bias {
            Some(bias) => Some(bias.index_select(&order, 0).map_err(device_error)?),
            None => None,
        };
        let weight = self.weight.index_select(&order, 0).map_err(device_error)?;
        Ok(Self { weight, bias, ..self })
    }
}
