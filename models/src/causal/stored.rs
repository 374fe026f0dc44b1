//! Reads the `config.json` of a family into a [`CausalConfig`]. Defaults come from the Hugging Face classes.

use ntl_text::checkpoint::{
    CONFIG_FILE, CheckpointFiles, FieldError, LayerType, LoadError, TokenIds, check_cap, check_count,
    check_not_quantised, layer_types,
};
use ntl_text::labels::read_labels;
use serde::Deserialize;

use crate::families::{
    CausalVariant, Factors, Family, LayerRopes, LlamaTraits, Network, NormPlaces, Output, Window,
};
use crate::ops::Activation;
use crate::rope::{RopeShape, StoredRope, StoredRopes};

use super::config::{
    Caps, CausalConfig, LayerConfig, Multipliers, Naming, NormConfig, PositionEncoding, ScoreHead,
};

/// The configuration of the Llama families, as stored by transformers 4 or 5.
#[derive(Deserialize)]
struct StoredLlama {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    /// The base of layers with a window (Gemma 3 of transformers 4).
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<StoredRope>,
    rope_parameters: Option<StoredRopes>,
    partial_rotary_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    /// 1 for each layer with rotary positions, and 0 for the others.
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
    embedding_multiplier: Option<f64>,
    attention_multiplier: Option<f64>,
    residual_multiplier: Option<f64>,
    logits_scaling: Option<f64>,
    query_pre_attn_scalar: Option<f64>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    use_bidirectional_attention: Option<bool>,
    #[serde(flatten)]
    common: StoredCommon,
}

#[derive(Deserialize)]
struct StoredGpt2 {
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_inner: Option<usize>,
    activation_function: Option<String>,
    layer_norm_epsilon: Option<f64>,
    scale_attn_weights: Option<bool>,
    scale_attn_by_inverse_layer_idx: Option<bool>,
    #[serde(flatten)]
    common: StoredCommon,
}

#[derive(Deserialize)]
struct StoredCommon {
    tie_word_embeddings: Option<bool>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<TokenIds>,
    quantization_config: Option<serde_json::Value>,
}

impl CausalConfig {
    pub fn read(files: &CheckpointFiles) -> Result<Self, LoadError> {
        let family = Family::of(files)?;
        let config = match family.network {
            Network::Causal(CausalVariant::Llama(traits)) => {
                llama(family, traits, files.require_json(CONFIG_FILE)?)
            }
            Network::Causal(CausalVariant::Gpt2) => gpt2(family, files.require_json(CONFIG_FILE)?),
            Network::T5(_) | Network::RegressLmTorch | Network::Encoder(_) => {
                Err(("architectures", format!("`{}` is not a decoder-only model", family.architecture)))
            }
        };
        let config = config.and_then(Self::check);
        let mut config = config
            .map_err(|(field, reason)| LoadError::field(files.name_of(CONFIG_FILE), field, reason))?
            .with_generation(files)?;
        if family.output == Output::Labels {
            config.score = Some(ScoreHead::read(files)?);
        }
        Ok(config)
    }
}

impl ScoreHead {
    fn read(files: &CheckpointFiles) -> Result<Self, LoadError> {
        #[derive(Deserialize)]
        struct StoredPad {
            /// May be -1, which no token has.
            pad_token_id: Option<i64>,
        }
        let StoredPad { pad_token_id } = files.require_json(CONFIG_FILE)?;
        let pad_id = pad_token_id.and_then(|id| u32::try_from(id).ok());
        Ok(Self { labels: read_labels(files)?, pad_id })
    }
}

impl StoredCommon {
    fn check(&self) -> Result<(), FieldError> {
        check_not_quantised(self.quantization_config.as_ref())
    }

    fn eos_ids(&self) -> Vec<u32> {
        self.eos_token_id.clone().map_or_else(Vec::new, TokenIds::into_vec)
    }
}

fn activation(field: &'static str, name: Option<&str>, usual: Activation) -> Result<Activation, FieldError> {
    match name {
        None => Ok(usual),
        Some(name) => Activation::named(name).ok_or((field, format!("`{name}` is not supported"))),
    }
}

fn llama(family: Family, traits: LlamaTraits, stored: StoredLlama) -> Result<CausalConfig, FieldError> {
    stored.common.check()?;
    let (positions, positions_max) = rotary(traits, &stored)?;
    let layers = layers(traits, &stored)?;
    if traits.factors == Factors::Gemma && stored.use_bidirectional_attention == Some(true) {
        return Err(("use_bidirectional_attention", "only false is supported".to_owned()));
    }
    let (activation_field, name, usual_activation) = match traits.factors {
        Factors::Gemma => ("hidden_activation", &stored.hidden_activation, Activation::GeluNew),
        Factors::Usual | Factors::Granite => ("hidden_act", &stored.hidden_act, Activation::Silu),
    };
    let attention_bias = stored.attention_bias.unwrap_or(false);
    Ok(CausalConfig {
        family,
        naming: Naming::Llama,
        vocab_size: stored.vocab_size,
        hidden_size: stored.hidden_size,
        intermediate_size: stored.intermediate_size,
        num_heads: stored.num_attention_heads,
        num_kv_heads: stored.num_key_value_heads.unwrap_or(stored.num_attention_heads),
        head_dim: head_dim(&stored)?,
        layers,
        norm: NormConfig { centred: false, eps: stored.rms_norm_eps.unwrap_or(1e-6) },
        norm_places: traits.norm_places,
        has_reduced_norms: traits.has_reduced_norms,
        qk_norm: traits.qk_norm,
        activation: activation(activation_field, name.as_deref(), usual_activation)?,
        gated: true,
        fused: traits.is_fused,
        input_bias: attention_bias || traits.has_qkv_bias,
        output_bias: attention_bias && !traits.has_qkv_bias,
        mlp_bias: stored.mlp_bias.unwrap_or(false),
        positions,
        positions_max,
        tied: stored.common.tie_word_embeddings.unwrap_or(traits.is_tied),
        score: None,
        multipliers: stored.multipliers(traits.factors),
        caps: stored.caps(traits.factors)?,
        bos_id: stored.common.bos_token_id,
        eos_ids: stored.common.eos_ids(),
    })
}

impl StoredLlama {
    fn multipliers(&self, factors: Factors) -> Multipliers {
        match factors {
            Factors::Usual => Multipliers::ONE,
            Factors::Granite => Multipliers {
                embedding: self.embedding_multiplier.unwrap_or(1.0),
                residual: self.residual_multiplier.unwrap_or(1.0),
                logits: self.logits_scaling.unwrap_or(1.0),
            },
            Factors::Gemma => Multipliers { embedding: (self.hidden_size as f64).sqrt(), ..Multipliers::ONE },
        }
    }

    fn caps(&self, factors: Factors) -> Result<Caps, FieldError> {
        match factors {
            Factors::Usual | Factors::Granite => Ok(Caps::default()),
            Factors::Gemma => Ok(Caps {
                scores: check_cap("attn_logit_softcapping", self.attn_logit_softcapping)?,
                logits: check_cap("final_logit_softcapping", self.final_logit_softcapping)?,
            }),
        }
    }

    /// Returns the factor of the scores of attention.
    fn score_scale(&self, factors: Factors) -> Result<f64, FieldError> {
        let usual = (head_dim(self)? as f64).powf(-0.5);
        match (factors, self.attention_multiplier, self.query_pre_attn_scalar) {
            (Factors::Granite, Some(multiplier), _) => Ok(multiplier),
            (Factors::Gemma, _, Some(scalar)) if scalar.is_finite() && scalar > 0.0 => Ok(scalar.powf(-0.5)),
            (Factors::Gemma, _, Some(scalar)) => {
                Err(("query_pre_attn_scalar", format!("{scalar} is out of range")))
            }
            _ => Ok(usual),
        }
    }
}

fn head_dim(stored: &StoredLlama) -> Result<usize, FieldError> {
    let hidden = stored.hidden_size;
    let heads = stored.num_attention_heads;
    match stored.head_dim {
        Some(dim) => check_count("head_dim", dim),
        None if heads > 0 && hidden.is_multiple_of(heads) => check_count("hidden_size", hidden / heads),
        None => Err(("num_attention_heads", format!("{heads} does not divide hidden_size {hidden}"))),
    }
}

/// Reads the rotary positions. transformers 5 stores everything in `rope_parameters`, transformers 4 in
/// `rope_theta` and, for layers without a window, `rope_scaling`.
fn rotary(traits: LlamaTraits, stored: &StoredLlama) -> Result<(PositionEncoding, usize), FieldError> {
    let plain = StoredRope::default();
    let [full, sliding] = match &stored.rope_parameters {
        Some(ropes) => [ropes.of(false), ropes.of(true)],
        None => [stored.rope_scaling.as_ref().unwrap_or(&plain), &plain],
    };
    let local_theta = stored.rope_local_base_freq.or(stored.rope_theta);
    let mut ropes = vec![(full, stored.rope_theta)];
    if traits.ropes == LayerRopes::ByWindow {
        ropes.push((sliding, local_theta));
    }
    let mut rotaries = Vec::new();
    let mut positions_max = usize::MAX;
    for (rope, theta) in ropes {
        let shape = RopeShape {
            head_dim: head_dim(stored)?,
            theta: rope.rope_theta.or(theta).unwrap_or(10_000.0),
            positions: stored.max_position_embeddings,
        };
        let (rotary, positions) = if traits.has_partial_rope {
            let trained = stored.original_max_position_embeddings;
            rope.clone().or(stored.partial_rotary_factor, trained).resolve_partial(shape)?
        } else {
            rope.resolve(shape)?
        };
        rotaries.push(rotary);
        positions_max = positions_max.min(positions);
    }
    Ok((PositionEncoding::Rotary(rotaries), positions_max))
}

fn layers(traits: LlamaTraits, stored: &StoredLlama) -> Result<Vec<LayerConfig>, FieldError> {
    let scale = stored.score_scale(traits.factors)?;
    let has_window = match traits.window {
        Window::Never => false,
        Window::Always | Window::Except(_) => true,
        Window::IfEnabled | Window::WithoutRope => stored.use_sliding_window.unwrap_or(false),
    };
    let window = if has_window { stored.sliding_window } else { None };
    if window.is_none() && matches!(traits.window, Window::Except(_)) {
        return Err(("sliding_window", "missing".to_owned()));
    }
    let types = match &stored.layer_types {
        Some(types) if window.is_some() => Some(layer_types(types, stored.num_hidden_layers)?),
        _ => None,
    };
    let mut layers = Vec::new();
    for (index, has_rope) in layers_with_rope(traits, stored)?.into_iter().enumerate() {
        let is_sliding = match (&types, traits.window) {
            (Some(types), _) => types[index] == LayerType::Sliding,
            // The default of Qwen's classes.
            (None, Window::IfEnabled) => index >= stored.max_window_layers.unwrap_or(28),
            (None, Window::WithoutRope) => !has_rope,
            (None, Window::Except(nth)) => !(index + 1).is_multiple_of(nth),
            (None, Window::Always | Window::Never) => true,
        };
        let window = if is_sliding { window } else { None };
        let rotary = match traits.ropes {
            LayerRopes::All => Some(0),
            LayerRopes::Some => has_rope.then_some(0),
            LayerRopes::ByWindow => Some(usize::from(is_sliding)),
        };
        layers.push(LayerConfig { window, rotary, scale });
    }
    Ok(layers)
}

/// Returns for each layer whether it has rotary positions.
fn layers_with_rope(traits: LlamaTraits, stored: &StoredLlama) -> Result<Vec<bool>, FieldError> {
    let count = check_count("num_hidden_layers", stored.num_hidden_layers)?;
    if traits.ropes != LayerRopes::Some {
        return Ok(vec![true; count]);
    }
    let Some(flags) = &stored.no_rope_layers else {
        // The default of SmolLM3's class.
        let interval = check_count("no_rope_layer_interval", stored.no_rope_layer_interval.unwrap_or(4))?;
        return Ok((1..=count).map(|number| !number.is_multiple_of(interval)).collect());
    };
    match flags.get(..count) {
        Some(flags) => Ok(flags.iter().map(|&flag| flag != 0).collect()),
        None => Err(("no_rope_layers", format!("{} for {count} layers", flags.len()))),
    }
}

fn gpt2(family: Family, stored: StoredGpt2) -> Result<CausalConfig, FieldError> {
    stored.common.check()?;
    let hidden = stored.n_embd;
    let heads = stored.n_head;
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(("n_head", format!("{heads} does not divide n_embd {hidden}")));
    }
    let eps = stored.layer_norm_epsilon.unwrap_or(1e-5);
    let name = stored.activation_function.as_deref();
    Ok(CausalConfig {
        family,
        naming: Naming::Gpt2,
        vocab_size: stored.vocab_size,
        hidden_size: hidden,
        intermediate_size: stored.n_inner.unwrap_or(4 * hidden),
        num_heads: heads,
        num_kv_heads: heads,
        head_dim: hidden / heads,
        layers: gpt2_layers(&stored, hidden / heads)?,
        norm: NormConfig { centred: true, eps },
        norm_places: NormPlaces::Before,
        has_reduced_norms: false,
        qk_norm: None,
        activation: activation("activation_function", name, Activation::GeluNew)?,
        gated: false,
        fused: false,
        input_bias: true,
        output_bias: true,
        mlp_bias: true,
        positions: PositionEncoding::Learned,
        positions_max: stored.n_positions,
        tied: stored.common.tie_word_embeddings.unwrap_or(true),
        score: None,
        multipliers: Multipliers::ONE,
        caps: Caps::default(),
        bos_id: stored.common.bos_token_id,
        eos_ids: stored.common.eos_ids(),
    })
}

fn gpt2_layers(stored: &StoredGpt2, head_dim: usize) -> Result<Vec<LayerConfig>, FieldError> {
    let usual = if stored.scale_attn_weights.unwrap_or(true) { (head_dim as f64).powf(-0.5) } else { 1.0 };
    let by_depth = stored.scale_attn_by_inverse_layer_idx.unwrap_or(false);
    let mut layers = Vec::new();
    for index in 0..check_count("n_layer", stored.n_layer)? {
        let scale = if by_depth { usual / (index + 1) as f64 } else { usual };
        layers.push(LayerConfig { window: None, rotary: None, scale });
    }
    Ok(layers)
}
