//! BERT and RoBERTa with a head. They differ in their positions and in the names of the head's tensors.

use ntl_text::checkpoint::{
    CONFIG_FILE, CheckpointFiles, FieldError, LoadResult, check_not_quantised, check_sizes,
};
use serde::Deserialize;

use super::reader::{EncoderSizes, activation, at_root, check_norm, described};
use crate::adapter::AdaptableLayers;
use crate::ops::{Activation, Mlp, MlpInput, Placement, device_error};
use crate::t5::{
    AttentionKind, Embeddings, Encoder, EncoderLayer, FeedForward, HeadActivation, HiddenLayer, InputLayer,
    LearnedPositions, Loader, NormsAfter, PooledEncoder, PooledHead, PooledParts, Pooling, SelfAttention,
    TokenizerFacts,
};
use crate::weights::Weights;

/// The head that reads the output of the first token: a layer, a tanh, and the layer of the labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// The first layer belongs to the encoder (BERT).
    Pooler,
    /// Both layers belong to the classifier (RoBERTa).
    Classifier,
}

/// The configuration, as stored by transformers. Missing fields get the defaults of its classes.
#[derive(Deserialize)]
struct StoredBert {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    hidden_act: Option<String>,
    max_position_embeddings: usize,
    type_vocab_size: Option<usize>,
    layer_norm_eps: Option<f64>,
    pad_token_id: Option<u32>,
    position_embedding_type: Option<String>,
    is_decoder: Option<bool>,
    quantization_config: Option<serde_json::Value>,
}

struct BertConfig {
    sizes: EncoderSizes,
    segments: usize,
    eps: f64,
    activation: Activation,
    /// The padding of RoBERTa, after which its positions begin.
    pad_id: Option<u32>,
}

impl BertConfig {
    fn read(files: &CheckpointFiles, head: Head) -> LoadResult<Self> {
        let stored: StoredBert = files.require_json(CONFIG_FILE)?;
        stored.resolve(head).map_err(at_root(files))
    }

    /// Returns the maximum number of tokens of a prompt.
    fn positions_max(&self) -> usize {
        self.sizes.positions - self.pad_id.map_or(0, |pad| pad as usize + 1)
    }
}

impl StoredBert {
    fn resolve(self, head: Head) -> Result<BertConfig, FieldError> {
        check_not_quantised(self.quantization_config.as_ref())?;
        if let Some(other) = self.position_embedding_type.filter(|kind| kind != "absolute") {
            return Err(("position_embedding_type", format!("`{other}` is not supported; `absolute` is")));
        }
        if self.is_decoder == Some(true) {
            return Err(("is_decoder", "only false is supported".to_owned()));
        }
        let sizes = EncoderSizes {
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            positions: self.max_position_embeddings,
        };
        sizes.check()?;
        let segments = self.type_vocab_size.unwrap_or(2);
        check_sizes(&[("type_vocab_size", segments)])?;
        let pad_id = (head == Head::Classifier).then(|| self.pad_token_id.unwrap_or(1));
        if let Some(pad) = pad_id.filter(|&pad| pad as usize + 1 >= sizes.positions) {
            return Err(("pad_token_id", format!("{pad} leaves no position for a token")));
        }
        Ok(BertConfig {
            segments,
            eps: check_norm("layer_norm_eps", self.layer_norm_eps, 1e-12)?,
            activation: activation("hidden_act", self.hidden_act.as_deref())?,
            sizes,
            pad_id,
        })
    }
}

/// Loads a checkpoint with this head.
pub(super) fn load(
    files: &CheckpointFiles,
    head: Head,
    facts: TokenizerFacts,
    place: &Placement,
) -> LoadResult<PooledEncoder> {
    let config = BertConfig::read(files, head)?;
    facts.check_vocabulary(files, "vocab_size", config.sizes.vocab)?;
    let weights = Weights::open(files)?;
    let (labels, info) = described(files, facts, config.positions_max(), weights.parameters(), place)?;
    let prefix = if head == Head::Pooler { "bert." } else { "roberta." };
    let adaptable = AdaptableLayers::default();
    let loader = Loader { weights: &weights, config: &config, place, prefix, adaptable: &adaptable };
    let exact = place.exact();
    let exact = Loader { place: &exact, ..loader };
    let parts = PooledParts {
        info,
        embeddings: Embeddings::plain(
            loader.weight("embeddings.word_embeddings", [config.sizes.vocab, config.sizes.hidden])?,
            config.sizes.vocab,
        ),
        input: Some(exact.input()?),
        encoder: loader.encoder(&exact)?,
        sizes: config.sizes.stack(false),
        pooling: Pooling::First,
        head: exact.pooled_head(head, labels.names.len())?,
    };
    Ok(PooledEncoder::new(parts, adaptable, place))
}

impl Loader<'_, BertConfig> {
    /// Reads the positions, the first two segments and the normalisation that follow the embeddings, in f32.
    fn input(&self) -> LoadResult<InputLayer> {
        let BertConfig {
            sizes: EncoderSizes { hidden, positions, .. }, segments: count, eps, pad_id, ..
        } = *self.config;
        let segments = self.tensor("embeddings.token_type_embeddings.weight", &[count, hidden])?;
        let positions = LearnedPositions {
            table: self.tensor("embeddings.position_embeddings.weight", &[positions, hidden])?,
            segments: segments.narrow(0, 0, count.min(2)).map_err(device_error)?,
            pad_id,
        };
        let norm = self.layer_norm("embeddings.LayerNorm", hidden, true, eps)?;
        Ok(InputLayer { positions: Some(positions), norm })
    }

    /// Reads the layers. The normalisations after their parts, which `exact` reads, write the residual
    /// stream.
    fn encoder(&self, exact: &Self) -> LoadResult<Encoder> {
        let mut layers = Vec::new();
        for index in 0..self.config.sizes.layers {
            layers.push(self.layer(&format!("encoder.layer.{index}"), exact)?);
        }
        Ok(Encoder {
            layers,
            norm: None,
            kinds: vec![AttentionKind::default()],
            heads: self.config.sizes.heads(),
        })
    }

    fn layer(&self, name: &str, exact: &Self) -> LoadResult<EncoderLayer> {
        let BertConfig { sizes: EncoderSizes { hidden, intermediate, .. }, eps, activation, .. } =
            *self.config;
        let mut qkv = Vec::new();
        for projection in ["query", "key", "value"] {
            qkv.push(self.stored(&format!("{name}.attention.self.{projection}"), [hidden; 2], true)?);
        }
        let qkv = self.adaptable.combine(&qkv, [hidden; 3], self.place).map_err(device_error)?;
        let output = self.dense(&format!("{name}.attention.output.dense"), [hidden; 2], true)?;
        let up = self.dense(&format!("{name}.intermediate.dense"), [intermediate, hidden], true)?;
        let down = self.dense(&format!("{name}.output.dense"), [hidden, intermediate], true)?;
        let attention_norm = format!("{name}.attention.output.LayerNorm");
        let feed_forward_norm = format!("{name}.output.LayerNorm");
        Ok(EncoderLayer {
            attention: SelfAttention { kind: 0, norm: None, qkv, qk_norms: None, output },
            feed_forward: FeedForward { norm: None, mlp: Mlp { up: MlpInput::Plain(up), down, activation } },
            norms_after: Some(NormsAfter {
                attention: exact.layer_norm(&attention_norm, hidden, true, eps)?,
                feed_forward: exact.layer_norm(&feed_forward_norm, hidden, true, eps)?,
            }),
        })
    }

    /// Reads a head, in f32.
    fn pooled_head(&self, head: Head, labels: usize) -> LoadResult<PooledHead> {
        let hidden = self.config.sizes.hidden;
        let whole = Self { prefix: "", ..*self };
        let (dense, out) = match head {
            Head::Pooler => (self.of_labels("pooler.dense", [hidden; 2], true)?, "classifier"),
            Head::Classifier => {
                (whole.of_labels("classifier.dense", [hidden; 2], true)?, "classifier.out_proj")
            }
        };
        Ok(PooledHead {
            hidden: Some(HiddenLayer { dense, activation: HeadActivation::Tanh, norm: None }),
            out: whole.of_labels(out, [labels, hidden], true)?,
        })
    }
}
