//! Reads the tensors of a T5Gemma and of a RegressLM, which contains one.

use candle_core::Tensor;
use ntl_core::numbers::TokenNotation;
use ntl_text::checkpoint::{CheckpointFiles, LoadResult};

use super::config::{GemmaConfig, StackConfig, Tables};
use crate::adapter::{AdaptableLayers, ModelAdapters};
use crate::families::GemmaVersion;
use crate::ops::{Linear, Mlp, MlpInput, Norm, Placement, QkNorms, Weight, device_error};
use crate::t5::decoder::{Decoder, DecoderLayer};
use crate::t5::embeddings::Embeddings;
use crate::t5::encoder::{Encoder, EncoderLayer};
use crate::t5::head::Head;
use crate::t5::layers::{CrossAttention, FeedForward, Loader, SelfAttention};
use crate::t5::model::{T5, TokenizerFacts};
use crate::t5::prefill::{StackSizes, StageWork};
use crate::t5::stacks::{Parts, Stacks};
use crate::weights::Weights;

const HEAD: &str = "lm_head.out_proj";

impl T5 {
    /// Loads a T5Gemma.
    pub(crate) fn load_gemma(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        version: GemmaVersion,
        place: &Placement,
    ) -> LoadResult<Self> {
        let config = GemmaConfig::read(files, version)?;
        let GemmaConfig { encoder, decoder, .. } = &config;
        let encoder_field = match version {
            GemmaVersion::One => "encoder.vocab_size",
            GemmaVersion::Two => "encoder.text_config.vocab_size",
        };
        facts.check_vocabulary(files, encoder_field, encoder.vocab_size)?;
        facts.check_vocabulary(files, "decoder.vocab_size", decoder.vocab_size)?;
        Self::load_stacks(files, facts, &config, &T5GEMMA, place)
    }

    /// Loads a RegressLM, which writes numbers in the tokens of `notation`. `facts` are about the tokenizer
    /// of prompts.
    pub(crate) fn load_regresslm(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        notation: &TokenNotation,
        place: &Placement,
    ) -> LoadResult<Self> {
        let config = GemmaConfig::read_regresslm(files, notation.tokens())?;
        facts.check_vocabulary(files, "encoder_vocab_size", config.encoder.vocab_size)?;
        let facts = TokenizerFacts { tokens: notation.tokens(), ..facts };
        Self::load_stacks(files, facts, &config, &REGRESSLM, place)
    }

    /// The tokens of `facts` are those that the model writes.
    fn load_stacks(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        config: &GemmaConfig,
        names: &Names,
        place: &Placement,
    ) -> LoadResult<Self> {
        let weights = Weights::open(files)?;
        let mut info = facts.info(config.family, config.eos_ids.clone(), place, weights.parameters());
        info.prompt_tokens_max = info.prompt_tokens_max.min(config.encoder.positions_max);
        info.answer_tokens_max = Some(config.decoder.positions_max);
        let adaptable = AdaptableLayers::default();
        let reader = T5GemmaReader { weights: &weights, config, place, names, adaptable: &adaptable };
        let (stacks, head) = reader.parts()?;
        Ok(Self::new(info, Stacks::new(stacks, ModelAdapters::new(adaptable, place), place), head))
    }
}

/// How the names of tensors begin.
struct Names {
    encoder: &'static str,
    decoder: &'static str,
    /// The output layer.
    whole: &'static str,
}

const T5GEMMA: Names = Names { encoder: "model.encoder.", decoder: "model.decoder.", whole: "" };
const REGRESSLM: Names =
    Names { encoder: "model.model.encoder.", decoder: "model.model.decoder.", whole: "model." };

struct T5GemmaReader<'a> {
    weights: &'a Weights<'a>,
    config: &'a GemmaConfig,
    place: &'a Placement,
    names: &'a Names,
    adaptable: &'a AdaptableLayers,
}

impl T5GemmaReader<'_> {
    fn parts(&self) -> LoadResult<(Parts, Head)> {
        let GemmaConfig { encoder, decoder, .. } = self.config;
        let names = self.names;
        let from_prompts = self.loader(names.encoder, encoder, self.place);
        let from_rows = self.loader(names.decoder, decoder, self.place);
        // Logits are computed in f32, so their tables are f32, too, including a tied one.
        let exact = self.place.exact();
        let (prompt_table, row_table) = match self.config.tables {
            Tables::One => {
                let table = self.loader(names.encoder, encoder, &exact).table()?;
                (table.clone(), table)
            }
            Tables::TiedHead => (from_prompts.table()?, self.loader(names.decoder, decoder, &exact).table()?),
            Tables::Separate => (from_prompts.table()?, from_rows.table()?),
        };
        let whole = self.loader(names.whole, decoder, &exact);
        let is_tied = match self.config.tables {
            Tables::One => true,
            Tables::TiedHead => !whole.has(&format!("{HEAD}.weight")),
            Tables::Separate => false,
        };
        let head = if is_tied {
            row_table.clone()
        } else {
            whole.weight(HEAD, [decoder.vocab_size, decoder.hidden_size])?
        };
        let head = whole.head(HEAD, head, [decoder.vocab_size, decoder.hidden_size]);
        let image_end = match self.config.image_end_id {
            Some(id) => Some(from_prompts.image_end(id)?),
            None => None,
        };
        let parts = Parts {
            prompt_embeddings: encoder.embeddings(prompt_table, image_end.clone()),
            row_embeddings: decoder.embeddings(row_table, image_end),
            encoder: from_prompts.encoder()?,
            decoder: from_rows.decoder(encoder.hidden_size, self.config.has_merged_attention)?,
            work: StageWork::new(&encoder.sizes(), &decoder.sizes(), self.place),
            start_id: self.config.start_id,
        };
        Ok((parts, Head::capped(head, self.config.logits_cap)))
    }

    fn loader<'a>(
        &'a self,
        prefix: &'a str,
        config: &'a StackConfig,
        place: &'a Placement,
    ) -> Loader<'a, StackConfig> {
        Loader { weights: self.weights, config, place, prefix, adaptable: self.adaptable }
    }
}

impl StackConfig {
    /// Returns the embeddings of a table; `replaced` is a token with a separate vector.
    pub(in crate::t5) fn embeddings(&self, table: Weight, replaced: Option<(u32, Tensor)>) -> Embeddings {
        Embeddings { table, vocab: self.vocab_size, factor: (self.hidden_size as f64).sqrt(), replaced }
    }

    pub(in crate::t5) fn sizes(&self) -> StackSizes {
        StackSizes {
            hidden: self.hidden_size,
            queries: self.query_width(),
            keys: self.key_width(),
            mlp: 3 * self.hidden_size * self.intermediate_size,
            windows: self.layers.iter().map(|&kind| self.kinds[kind].window).collect(),
        }
    }
}

impl Loader<'_, StackConfig> {
    pub(in crate::t5) fn table(&self) -> LoadResult<Weight> {
        self.weight("embed_tokens", [self.config.vocab_size, self.config.hidden_size])
    }

    /// Reads the embedding f32 `[1, hidden]` that a token has instead of the table's.
    pub(in crate::t5) fn image_end(&self, id: u32) -> LoadResult<(u32, Tensor)> {
        let exact = self.place.exact();
        let width = self.config.hidden_size;
        let vector = Loader { place: &exact, ..*self }.tensor("embed_tokens.eoi_embedding", &[width])?;
        Ok((id, vector.reshape((1, width)).map_err(device_error)?))
    }

    pub(in crate::t5) fn encoder(&self) -> LoadResult<Encoder> {
        let mut layers = Vec::new();
        for index in 0..self.config.layers.len() {
            let name = format!("layers.{index}");
            layers.push(EncoderLayer {
                attention: self.self_attention(&name, index)?,
                feed_forward: self.feed_forward(&name)?,
                norms_after: None,
            });
        }
        Ok(Encoder {
            layers,
            norm: Some(self.norm("norm", self.config.hidden_size)?),
            kinds: self.config.kinds.clone(),
            heads: self.config.heads,
        })
    }

    /// Reads the decoder of prompts that the encoder represents by `prompt_width` numbers for each token.
    fn decoder(&self, prompt_width: usize, is_merged: bool) -> LoadResult<Decoder> {
        let prompt_attention = if is_merged { "self_attn" } else { "cross_attn" };
        let mut layers = Vec::new();
        for index in 0..self.config.layers.len() {
            let name = format!("layers.{index}");
            layers.push(DecoderLayer {
                self_attention: self.self_attention(&name, index)?,
                prompt_kv: self.keys_and_values(&format!("{name}.{prompt_attention}"), prompt_width)?,
                cross_attention: if is_merged { None } else { Some(self.cross_attention(&name)?) },
                feed_forward: self.feed_forward(&name)?,
            });
        }
        Ok(Decoder {
            layers,
            norm: Some(self.norm("norm", self.config.hidden_size)?.exact()),
            kinds: self.config.kinds.clone(),
            heads: self.config.heads,
            positions: None,
        })
    }

    /// Reads a normalisation, whose weights are stored less 1.
    fn norm(&self, name: &str, width: usize) -> LoadResult<Norm> {
        let exact = self.place.exact();
        let stored = Loader { place: &exact, ..*self }.tensor(&format!("{name}.weight"), &[width])?;
        Ok(Norm::new(&(stored + 1.0).map_err(device_error)?, None, self.config.eps)
            .map_err(device_error)?
            .rounded_to(self.place.dtype))
    }

    fn self_attention(&self, layer: &str, index: usize) -> LoadResult<SelfAttention> {
        let StackConfig { hidden_size, head_dim, .. } = *self.config;
        let [queries, keys] = [self.config.query_width(), self.config.key_width()];
        let name = format!("{layer}.self_attn");
        let qkv_names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{name}.{part}"));
        Ok(SelfAttention {
            kind: self.config.layers[index],
            norm: Some(self.norm(&format!("{layer}.pre_self_attn_layernorm"), hidden_size)?),
            qkv: self.linear(qkv_names, [queries, keys, keys], hidden_size)?,
            qk_norms: if self.config.has_head_norms {
                Some(QkNorms {
                    q: self.norm(&format!("{name}.q_norm"), head_dim)?,
                    k: self.norm(&format!("{name}.k_norm"), head_dim)?,
                })
            } else {
                None
            },
            output: self
                .linear([format!("{name}.o_proj")], [hidden_size], queries)?
                .normed(self.norm(&format!("{layer}.post_self_attn_layernorm"), hidden_size)?),
        })
    }

    fn keys_and_values(&self, attention: &str, prompt_width: usize) -> LoadResult<Linear<2>> {
        let names = ["k_proj", "v_proj"].map(|part| format!("{attention}.{part}"));
        self.linear(names, [self.config.key_width(); 2], prompt_width)
    }

    fn cross_attention(&self, layer: &str) -> LoadResult<CrossAttention> {
        let hidden = self.config.hidden_size;
        let queries = self.config.query_width();
        Ok(CrossAttention {
            norm: self.norm(&format!("{layer}.pre_cross_attn_layernorm"), hidden)?,
            query: self.linear([format!("{layer}.cross_attn.q_proj")], [queries], hidden)?,
            output: self
                .linear([format!("{layer}.cross_attn.o_proj")], [hidden], queries)?
                .normed(self.norm(&format!("{layer}.post_cross_attn_layernorm"), hidden)?),
        })
    }

    fn feed_forward(&self, layer: &str) -> LoadResult<FeedForward> {
        let StackConfig { hidden_size, intermediate_size, activation, .. } = *self.config;
        let up_names = ["gate_proj", "up_proj"].map(|part| format!("{layer}.mlp.{part}"));
        let up = self.linear(up_names, [intermediate_size; 2], hidden_size)?;
        let down = self
            .down(format!("{layer}.mlp.down_proj"), [hidden_size, intermediate_size])?
            .normed(self.norm(&format!("{layer}.post_feedforward_layernorm"), hidden_size)?);
        Ok(FeedForward {
            norm: Some(self.norm(&format!("{layer}.pre_feedforward_layernorm"), hidden_size)?),
            mlp: Mlp { up: MlpInput::Gated(up), down, activation },
        })
    }
}
