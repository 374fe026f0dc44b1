//! The table of native model families: their names and what distinguishes them.

use ntl_text::checkpoint::{CONFIG_FILE, CheckpointFiles, LoadError, architecture, architecture_field};
use ntl_text::labels::read_labels;
use serde::Deserialize;

/// A class of models in `config.json`, or a format in `ntl.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Family {
    /// The name of the class or the format.
    pub(crate) architecture: &'static str,
    /// The name in `/v1/models`, metrics and logs.
    pub(crate) kind: &'static str,
    pub(crate) network: Network,
    pub(crate) output: Output,
}

/// The meaning of a network's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// A distribution over the next token.
    Tokens,
    /// A value for each label.
    Labels,
}

/// The implementation of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// An encoder and a decoder (`t5`).
    T5(T5Variant),
    /// RegressLM's own PyTorch model (`t5::regresslm`), which `ntl.json` describes.
    RegressLmTorch,
    /// A decoder only (`causal`).
    Causal(CausalVariant),
    /// An encoder only (`encoders`).
    Encoder(EncoderVariant),
}

/// The kinds of encoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncoderVariant {
    Bert,
    Roberta,
    ModernBert,
}

/// The kinds of T5: the Number Token Loss paper's, and T5Gemma.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum T5Variant {
    Plain,
    /// Number embeddings (Regression Transformer).
    Rt,
    /// A number head in addition to the output layer (xVal).
    Xval,
    /// A head that predicts labels instead of an output layer.
    Head,
    /// Layers of Gemma.
    Gemma(GemmaVersion),
    /// A T5Gemma 1 that writes numbers in dedicated tokens (RegressLM).
    RegressLm,
    /// The encoder of a T5Gemma 1 with a regression head (RegressLM).
    RegressLmHead,
}

/// The versions of T5Gemma.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GemmaVersion {
    One,
    Two,
}

/// The names in `config.json` and in the weights of a decoder-only model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CausalVariant {
    Llama(LlamaTraits),
    Gpt2,
}

/// The differences of a family from Llama. Its configuration has no fields for these facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LlamaTraits {
    pub(crate) window: Window,
    /// Whether queries, keys and values always have a bias, and the output never has one.
    pub(crate) has_qkv_bias: bool,
    pub(crate) qk_norm: Option<QkNorm>,
    pub(crate) norm_places: NormPlaces,
    /// Whether the scales of normalisations are stored minus 1.
    pub(crate) has_reduced_norms: bool,
    pub(crate) factors: Factors,
    pub(crate) ropes: LayerRopes,
    /// Whether the configuration may restrict the rotation to the first elements of each head.
    pub(crate) has_partial_rope: bool,
    /// Whether queries, keys and values are stored as one layer, and both inputs of the MLP as another.
    pub(crate) is_fused: bool,
    /// Whether the output layer is the embedding table unless the configuration says otherwise.
    pub(crate) is_tied: bool,
}

/// The numbers by which a family scales and limits embeddings, scores and logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Factors {
    Usual,
    /// The multipliers of the configuration.
    Granite,
    /// The root of their width for embeddings, `query_pre_attn_scalar` for scores, and soft caps.
    Gemma,
}

/// The layers with rotary positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerRopes {
    All,
    /// Those that `no_rope_layers` of the configuration does not exclude.
    Some,
    /// All, with separate angles of layers with and without a window.
    ByWindow,
}

/// The parts of queries and keys that are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QkNorm {
    /// Each head by itself.
    Heads,
    /// All heads of a row together.
    Rows,
}

/// Whether attention and the MLP have their inputs, their outputs, or both normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormPlaces {
    Before,
    After,
    Around,
}

/// Whether `sliding_window` of the configuration applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    Never,
    /// In all layers.
    Always,
    /// If `use_sliding_window` is set, in all layers from `max_window_layers` on.
    IfEnabled,
    /// If `use_sliding_window` is set, in the layers without rotary positions.
    WithoutRope,
    /// In all layers except each N-th.
    Except(usize),
}

const LLAMA: LlamaTraits = LlamaTraits {
    window: Window::Never,
    has_qkv_bias: false,
    qk_norm: None,
    norm_places: NormPlaces::Before,
    has_reduced_norms: false,
    factors: Factors::Usual,
    ropes: LayerRopes::All,
    has_partial_rope: false,
    is_fused: false,
    is_tied: false,
};
const MISTRAL: LlamaTraits = LlamaTraits { window: Window::Always, ..LLAMA };
const QWEN2: LlamaTraits = LlamaTraits { window: Window::IfEnabled, has_qkv_bias: true, ..LLAMA };
const QWEN3: LlamaTraits = LlamaTraits { window: Window::IfEnabled, qk_norm: Some(QkNorm::Heads), ..LLAMA };
const GRANITE: LlamaTraits = LlamaTraits { factors: Factors::Granite, ..LLAMA };
const SMOLLM3: LlamaTraits =
    LlamaTraits { window: Window::WithoutRope, ropes: LayerRopes::Some, is_tied: true, ..LLAMA };
const PHI3: LlamaTraits =
    LlamaTraits { window: Window::Always, has_partial_rope: true, is_fused: true, ..LLAMA };
const OLMO2: LlamaTraits =
    LlamaTraits { qk_norm: Some(QkNorm::Rows), norm_places: NormPlaces::After, ..LLAMA };
const GEMMA2: LlamaTraits = LlamaTraits {
    window: Window::Except(2),
    norm_places: NormPlaces::Around,
    has_reduced_norms: true,
    factors: Factors::Gemma,
    is_tied: true,
    ..LLAMA
};
const GEMMA3: LlamaTraits = LlamaTraits {
    window: Window::Except(6),
    qk_norm: Some(QkNorm::Heads),
    ropes: LayerRopes::ByWindow,
    ..GEMMA2
};
const OLMO3: LlamaTraits = LlamaTraits { window: Window::Except(4), ropes: LayerRopes::ByWindow, ..OLMO2 };

const REGRESSLM: Family = t5("RegressLMForConditionalGeneration", "regresslm", T5Variant::RegressLm);

/// RegressLM with a head. The class is the same, and a field of the configuration distinguishes the two.
const REGRESSLM_HEAD: Family =
    with_head(t5("RegressLMForConditionalGeneration", "regresslm-head", T5Variant::RegressLmHead));

/// A T5 with a head for several labels. With one label, the same class is the paper's regression head.
const T5_HEAD: Family = Family { kind: "t5-head", ..T5_REGRESSION_HEAD };
const T5_REGRESSION_HEAD: Family =
    with_head(t5("T5ForSequenceClassification", "t5-regression-head", T5Variant::Head));

const REGRESSLM_TORCH: Family = Family {
    architecture: "regresslm-pt",
    kind: "regresslm-pt",
    network: Network::RegressLmTorch,
    output: Output::Tokens,
};

/// All families, one for each class or format.
const FAMILIES: &[Family] = &[
    t5("T5ForConditionalGeneration", "t5", T5Variant::Plain),
    t5("MT5ForConditionalGeneration", "t5", T5Variant::Plain),
    t5("T5VanillaForNumberTokenLoss", "t5", T5Variant::Plain),
    t5("T5RegressionModelRT", "t5-rt", T5Variant::Rt),
    t5("T5RegressionModelXval", "t5-xval", T5Variant::Xval),
    T5_REGRESSION_HEAD,
    t5("T5GemmaForConditionalGeneration", "t5gemma", T5Variant::Gemma(GemmaVersion::One)),
    t5("T5Gemma2ForConditionalGeneration", "t5gemma2", T5Variant::Gemma(GemmaVersion::Two)),
    REGRESSLM,
    REGRESSLM_TORCH,
    causal("LlamaForCausalLM", "llama", CausalVariant::Llama(LLAMA)),
    causal("MistralForCausalLM", "mistral", CausalVariant::Llama(MISTRAL)),
    causal("Qwen2ForCausalLM", "qwen2", CausalVariant::Llama(QWEN2)),
    causal("Qwen3ForCausalLM", "qwen3", CausalVariant::Llama(QWEN3)),
    causal("GraniteForCausalLM", "granite", CausalVariant::Llama(GRANITE)),
    causal("SmolLM3ForCausalLM", "smollm3", CausalVariant::Llama(SMOLLM3)),
    causal("Olmo2ForCausalLM", "olmo2", CausalVariant::Llama(OLMO2)),
    causal("Olmo3ForCausalLM", "olmo3", CausalVariant::Llama(OLMO3)),
    causal("Gemma2ForCausalLM", "gemma2", CausalVariant::Llama(GEMMA2)),
    causal("Gemma3ForCausalLM", "gemma3", CausalVariant::Llama(GEMMA3)),
    causal("Phi3ForCausalLM", "phi3", CausalVariant::Llama(PHI3)),
    causal("GPT2LMHeadModel", "gpt2", CausalVariant::Gpt2),
    with_head(causal("LlamaForSequenceClassification", "llama-head", CausalVariant::Llama(LLAMA))),
    with_head(causal("MistralForSequenceClassification", "mistral-head", CausalVariant::Llama(MISTRAL))),
    with_head(causal("Qwen2ForSequenceClassification", "qwen2-head", CausalVariant::Llama(QWEN2))),
    with_head(causal("Qwen3ForSequenceClassification", "qwen3-head", CausalVariant::Llama(QWEN3))),
    with_head(causal("SmolLM3ForSequenceClassification", "smollm3-head", CausalVariant::Llama(SMOLLM3))),
    with_head(causal("Olmo2ForSequenceClassification", "olmo2-head", CausalVariant::Llama(OLMO2))),
    with_head(causal("Olmo3ForSequenceClassification", "olmo3-head", CausalVariant::Llama(OLMO3))),
    with_head(causal("Phi3ForSequenceClassification", "phi3-head", CausalVariant::Llama(PHI3))),
    with_head(causal("GPT2ForSequenceClassification", "gpt2-head", CausalVariant::Gpt2)),
    encoder("BertForSequenceClassification", "bert-head", EncoderVariant::Bert),
    encoder("RobertaForSequenceClassification", "roberta-head", EncoderVariant::Roberta),
    encoder("ModernBertForSequenceClassification", "modernbert-head", EncoderVariant::ModernBert),
];

const fn t5(architecture: &'static str, kind: &'static str, variant: T5Variant) -> Family {
    Family { architecture, kind, network: Network::T5(variant), output: Output::Tokens }
}

const fn causal(architecture: &'static str, kind: &'static str, variant: CausalVariant) -> Family {
    Family { architecture, kind, network: Network::Causal(variant), output: Output::Tokens }
}

const fn encoder(architecture: &'static str, kind: &'static str, variant: EncoderVariant) -> Family {
    Family { architecture, kind, network: Network::Encoder(variant), output: Output::Labels }
}

const fn with_head(family: Family) -> Family {
    Family { output: Output::Labels, ..family }
}

/// Returns the names of all supported classes in `config.json`, and of formats in `ntl.json`.
pub fn architectures() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.architecture).collect()
}

impl Family {
    /// Returns the family of a checkpoint.
    pub(crate) fn of(files: &CheckpointFiles) -> Result<Self, LoadError> {
        #[derive(Deserialize)]
        struct StoredHead {
            #[serde(default)]
            use_regression_head: bool,
        }
        let name = architecture(files)?;
        let Some(family) = FAMILIES.iter().copied().find(|family| family.architecture == name) else {
            let known = architectures().join(", ");
            let reason = format!("`{name}` is not served natively; known are {known}");
            let (file, field) = architecture_field(files)?;
            return Err(LoadError::field(files.name_of(file), field, reason));
        };
        if family == REGRESSLM && files.require_json::<StoredHead>(CONFIG_FILE)?.use_regression_head {
            return Ok(REGRESSLM_HEAD);
        }
        if family == T5_REGRESSION_HEAD && read_labels(files)?.names.len() > 1 {
            return Ok(T5_HEAD);
        }
        Ok(family)
    }

    /// Returns whether prompt and answer are processed by different stacks.
    pub(crate) fn is_encoder_decoder(self) -> bool {
        matches!(self.network, Network::T5(_) | Network::RegressLmTorch)
    }

    /// Returns whether the configuration limits the positions of a prompt. T5's relative positions have no
    /// limit.
    pub(crate) fn limits_prompts(self) -> bool {
        use T5Variant::{Gemma, RegressLm, RegressLmHead};
        match self.network {
            Network::Causal(_) | Network::RegressLmTorch | Network::Encoder(_) => true,
            Network::T5(variant) => matches!(variant, Gemma(_) | RegressLm | RegressLmHead),
        }
    }
}
