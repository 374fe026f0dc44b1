//! ModernBERT with a head: rotary positions, windows in most layers, gated feed-forward layers, and
//! normalisations before the parts of a layer.

use ntl_text::checkpoint::{
    CONFIG_FILE, CheckpointFiles, FieldError, LayerType, LoadResult, check_not_quantised, check_sizes,
    layer_types,
};
use serde::Deserialize;

use super::reader::{EncoderSizes, activation, at_root, check_norm, described};
use crate::adapter::AdaptableLayers;
use crate::ops::{Activation, Mlp, MlpInput, Norm, Placement, Window, device_error};
use crate::rope::{RopeShape, Rotary, StoredRopes};
use crate::t5::{
    AttentionKind, Embeddings, Encoder, EncoderLayer, FeedForward, HeadActivation, HiddenLayer, InputLayer,
    Loader, PooledEncoder, PooledHead, PooledParts, Pooling, SelfAttention, TokenizerFacts,
};
use crate::weights::Weights;

const GLOBAL_THETA: f64 = 160_000.0;
const LOCAL_THETA: f64 = 10_000.0;

/// The configuration, as stored by transformers 4 or 5. Missing fields get the defaults of its class.
#[derive(Deserialize)]
struct StoredModernBert {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    hidden_activation: Option<String>,
    max_position_embeddings: usize,
    norm_eps: Option<f64>,
    norm_bias: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    layer_types: Option<Vec<String>>,
    global_attn_every_n_layers: Option<usize>,
    local_attention: Option<usize>,
    rope_parameters: Option<StoredRopes>,
    global_rope_theta: Option<f64>,
    local_rope_theta: Option<f64>,
    classifier_pooling: Option<String>,
    classifier_bias: Option<bool>,
    classifier_activation: Option<String>,
    quantization_config: Option<serde_json::Value>,
}

struct ModernBertConfig {
    sizes: EncoderSizes,
    eps: f64,
    norm_bias: bool,
    attention_bias: bool,
    mlp_bias: bool,
    activation: Activation,
    /// For layers without a window, and for those with one.
    kinds: [AttentionKind; 2],
    /// The index of each layer's kind.
    layers: Vec<usize>,
    pooling: Pooling,
    classifier_bias: bool,
    classifier_activation: Activation,
}

impl ModernBertConfig {
    fn read(files: &CheckpointFiles) -> LoadResult<Self> {
        let stored: StoredModernBert = files.require_json(CONFIG_FILE)?;
        stored.resolve().map_err(at_root(files))
    }
}

impl StoredModernBert {
    fn resolve(self) -> Result<ModernBertConfig, FieldError> {
        check_not_quantised(self.quantization_config.as_ref())?;
        let sizes = EncoderSizes {
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            positions: self.max_position_embeddings,
        };
        sizes.check()?;
        let layers = self.layers()?;
        let width = self.local_attention.unwrap_or(128);
        check_sizes(&[("local_attention", width)])?;
        // Half of the width on each side.
        let window = Window { before: width / 2, after: width / 2 };
        let kinds = [
            AttentionKind::rotary(None, self.rotary(false, &sizes)?),
            AttentionKind::rotary(Some(window), self.rotary(true, &sizes)?),
        ];
        Ok(ModernBertConfig {
            eps: check_norm("norm_eps", self.norm_eps, 1e-5)?,
            norm_bias: self.norm_bias.unwrap_or(false),
            attention_bias: self.attention_bias.unwrap_or(false),
            mlp_bias: self.mlp_bias.unwrap_or(false),
            activation: activation("hidden_activation", self.hidden_activation.as_deref())?,
            kinds,
            layers,
            pooling: match self.classifier_pooling.as_deref() {
                None | Some("cls") => Pooling::First,
                Some("mean") => Pooling::Mean,
                Some(other) => {
                    return Err(("classifier_pooling", format!("`{other}` is neither cls nor mean")));
                }
            },
            classifier_bias: self.classifier_bias.unwrap_or(false),
            classifier_activation: activation(
                "classifier_activation",
                self.classifier_activation.as_deref(),
            )?,
            sizes,
        })
    }

    /// Returns the index of each layer's kind.
    fn layers(&self) -> Result<Vec<usize>, FieldError> {
        let Some(names) = &self.layer_types else {
            let period = self.global_attn_every_n_layers.unwrap_or(3);
            check_sizes(&[("global_attn_every_n_layers", period)])?;
            let layers = 0..self.num_hidden_layers;
            return Ok(layers.map(|layer| usize::from(!layer.is_multiple_of(period))).collect());
        };
        let types = layer_types(names, self.num_hidden_layers)?;
        Ok(types.into_iter().map(|layer| usize::from(layer == LayerType::Sliding)).collect())
    }

    fn rotary(&self, has_window: bool, sizes: &EncoderSizes) -> Result<Rotary, FieldError> {
        let plain = StoredRopes::default();
        let rope = self.rope_parameters.as_ref().unwrap_or(&plain).of(has_window);
        let (old, usual) = if has_window {
            (self.local_rope_theta, LOCAL_THETA)
        } else {
            (self.global_rope_theta, GLOBAL_THETA)
        };
        let shape = RopeShape {
            head_dim: sizes.hidden / sizes.heads,
            theta: rope.rope_theta.or(old).unwrap_or(usual),
            positions: sizes.positions,
        };
        rope.resolve(shape).map(|(rotary, _)| rotary)
    }
}

pub(super) fn load(
    files: &CheckpointFiles,
    facts: TokenizerFacts,
    place: &Placement,
) -> LoadResult<PooledEncoder> {
    let config = ModernBertConfig::read(files)?;
    let EncoderSizes { vocab, hidden, positions, .. } = config.sizes;
    facts.check_vocabulary(files, "vocab_size", vocab)?;
    let weights = Weights::open(files)?;
    let (labels, info) = described(files, facts, positions, weights.parameters(), place)?;
    let adaptable = AdaptableLayers::default();
    let loader =
        Loader { weights: &weights, config: &config, place, prefix: "model.", adaptable: &adaptable };
    let exact = place.exact();
    let exact = Loader { place: &exact, ..loader };
    let mut sizes = config.sizes.stack(true);
    sizes.windows = config.layers.iter().map(|&kind| config.kinds[kind].window).collect();
    let parts = PooledParts {
        info,
        embeddings: Embeddings::plain(loader.weight("embeddings.tok_embeddings", [vocab, hidden])?, vocab),
        input: Some(InputLayer { positions: None, norm: exact.norm("embeddings.norm")? }),
        encoder: loader.encoder()?,
        sizes,
        pooling: config.pooling,
        head: Loader { prefix: "", ..exact }.pooled_head(labels.names.len())?,
    };
    Ok(PooledEncoder::new(parts, adaptable, place))
}

impl Loader<'_, ModernBertConfig> {
    fn norm(&self, name: &str) -> LoadResult<Norm> {
        self.layer_norm(name, self.config.sizes.hidden, self.config.norm_bias, self.config.eps)
    }

    fn encoder(&self) -> LoadResult<Encoder> {
        let layers =
            (0..self.config.layers.len()).map(|index| self.layer(index)).collect::<LoadResult<_>>()?;
        Ok(Encoder {
            layers,
            norm: Some(self.norm("final_norm")?.exact()),
            kinds: self.config.kinds.to_vec(),
            heads: self.config.sizes.heads(),
        })
    }

    fn layer(&self, index: usize) -> LoadResult<EncoderLayer> {
        let ModernBertConfig {
            sizes: EncoderSizes { hidden, intermediate, .. },
            attention_bias,
            mlp_bias,
            activation,
            ..
        } = *self.config;
        let name = format!("layers.{index}");
        let qkv = self.stored(&format!("{name}.attn.Wqkv"), [3 * hidden, hidden], attention_bias)?;
        let up = self.stored(&format!("{name}.mlp.Wi"), [2 * intermediate, hidden], mlp_bias)?;
        let attention = SelfAttention {
            kind: self.config.layers[index],
            // The embeddings are already normalised.
            norm: if index == 0 { None } else { Some(self.norm(&format!("{name}.attn_norm"))?) },
            qkv: self.adaptable.combine(&[qkv], [hidden; 3], self.place).map_err(device_error)?,
            qk_norms: None,
            output: self.dense(&format!("{name}.attn.Wo"), [hidden; 2], attention_bias)?,
        };
        let norm = Some(self.norm(&format!("{name}.mlp_norm"))?);
        let up = self.adaptable.combine(&[up], [intermediate; 2], self.place).map_err(device_error)?;
        let down = self.dense(&format!("{name}.mlp.Wo"), [hidden, intermediate], mlp_bias)?;
        let mlp = Mlp { up: MlpInput::Gated(up), down, activation };
        Ok(EncoderLayer { attention, feed_forward: FeedForward { norm, mlp }, norms_after: None })
    }

    /// Reads the head, in f32.
    fn pooled_head(&self, labels: usize) -> LoadResult<PooledHead> {
        let ModernBertConfig {
            sizes: EncoderSizes { hidden, .. },
            classifier_bias,
            classifier_activation,
            ..
        } = *self.config;
        Ok(PooledHead {
            hidden: Some(HiddenLayer {
                dense: self.of_labels("head.dense", [hidden; 2], classifier_bias)?,
                activation: HeadActivation::Of(classifier_activation),
                norm: Some(self.norm("head.norm")?),
            }),
            out: self.of_labels("classifier", [labels, hidden], true)?,
        })
    }
}
