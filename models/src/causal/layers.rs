//! The layers that all families consist of, and reading them from a checkpoint.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use candle_core::{Result, Tensor};
use ntl_kernels::Codes;
use ntl_text::checkpoint::LoadResult;

use crate::adapter::AdaptableLayers;
use crate::families::{NormPlaces, QkNorm};
use crate::kv_cache::{Context, KeyGroup, KvPass, Positions, RowGroup, WrittenRows};
use crate::ops::{
    AdaptedRows, AdapterWeights, AttentionQuery, CodedWeights, Heads, Linear, Mlp, MlpInput, Norm, PassRope,
    Phase, Placement, QkNorms, QkvInput, Scratch, StoredLinear, Visible, Weight, device_error,
    is_placeholder,
};
use crate::weights::{Weights, quantised};

use super::block::Block;
use super::config::{CausalConfig, LayerConfig, Naming};
use super::prefill::Prefill;

/// Reads the tensors of one model to one placement.
pub(super) struct Loader<'a> {
    pub(super) weights: &'a Weights<'a>,
    pub(super) adaptable: &'a AdaptableLayers,
    pub(super) config: &'a CausalConfig,
    pub(super) place: &'a Placement,
    /// Number of weights read so far.
    pub(super) parameters: Cell<u64>,
}

impl Loader<'_> {
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> LoadResult<Tensor> {
        self.tensor_as(name, shape, self.place)
    }

    fn tensor_as(&self, name: &str, shape: &[usize], place: &Placement) -> LoadResult<Tensor> {
        let read = self.weights.tensor(name, shape, place.dtype, &place.device)?;
        self.parameters.set(self.parameters.get() + read.elem_count() as u64);
        Ok(read)
    }

    pub(super) fn norm(&self, name: &str, width: usize) -> LoadResult<Norm> {
        let norm = self.config.norm;
        let bias = if norm.centred { Some(self.tensor(&format!("{name}.bias"), &[width])?) } else { None };
        let name = format!("{name}.weight");
        let weight = if self.config.has_reduced_norms {
            // 16-bit types would round the sum.
            (self.tensor_as(&name, &[width], &self.place.exact())? + 1.0).map_err(device_error)?
        } else {
            self.tensor(&name, &[width])?
        };
        let norm = Norm::new(&weight, bias.as_ref(), norm.eps).map_err(device_error)?;
        Ok(norm.rounded_to(self.place.dtype))
    }

    /// Reads a table `[rows, width]`.
    pub(super) fn table(&self, name: &str, shape: [usize; 2]) -> LoadResult<Weight> {
        if let Some(codes) = self.codes(&[(name, shape)])? {
            return Ok(Weight::of_codes(&codes, shape));
        }
        let table = self.tensor(name, &shape)?;
        match self.quantised(std::slice::from_ref(&table), true)? {
            Some(codes) => Ok(Weight::of_codes(&codes, shape)),
            None => Weight::new(table, self.place).map_err(device_error),
        }
    }

    /// Reads weights `[output, input]` side by side as the codes that the file stores, if it does so for all
    /// of them and the placement has codes.
    fn codes(&self, weights: &[(&str, [usize; 2])]) -> LoadResult<Option<Codes>> {
        if self.place.coded() == CodedWeights::None {
            return Ok(None);
        }
        let codes = self.weights.codes(weights)?;
        let read = codes.as_ref().map_or(0, |codes| codes.codes.len());
        self.parameters.set(self.parameters.get() + read as u64);
        Ok(codes)
    }

    /// Quantises weights `[output, input]` side by side, if all weights of the placement are codes.
    fn quantised(&self, weights: &[Tensor], is_table: bool) -> LoadResult<Option<Codes>> {
        if self.place.coded() != CodedWeights::All || weights.iter().any(is_placeholder) {
            return Ok(None);
        }
        Tensor::cat(weights, 0).and_then(|all| quantised(&all, is_table)).map_err(device_error)
    }

    /// Reads the weight of a layer.
    fn weight(&self, name: &str, [output, input]: [usize; 2]) -> LoadResult<Tensor> {
        match self.config.naming {
            Naming::Llama => self.tensor(name, &[output, input]),
            Naming::Gpt2 => {
                let transposed = self.tensor(name, &[input, output])?.t().map_err(device_error)?;
                // A placeholder must stay small.
                if is_placeholder(&transposed) {
                    Ok(transposed)
                } else {
                    transposed.contiguous().map_err(device_error)
                }
            }
        }
    }

    /// Reads layers from the same input as one.
    fn combined<const P: usize>(&self, layers: &[LayerName], widths: [usize; P]) -> LoadResult<Linear<P>> {
        let names: Vec<String> = layers.iter().map(|layer| format!("{}.weight", layer.name)).collect();
        let weights: Vec<_> =
            names.iter().map(String::as_str).zip(layers.iter().map(|layer| layer.shape)).collect();
        let mut codes = self.codes(&weights)?;
        let mut tensors = Vec::with_capacity(layers.len());
        if codes.is_none() {
            for (weight, shape) in weights {
                tensors.push(self.weight(weight, shape)?);
            }
            codes = self.quantised(&tensors, false)?;
        }
        if codes.is_some() {
            let placeholders = layers.iter().map(|layer| self.place.placeholder(&layer.shape));
            tensors = placeholders.collect::<Result<_>>().map_err(device_error)?;
        }
        let mut stored = Vec::with_capacity(layers.len());
        for (weight, LayerName { name, shape, bias }) in tensors.into_iter().zip(layers) {
            let bias = if *bias { Some(self.tensor(&format!("{name}.bias"), &shape[..1])?) } else { None };
            stored.push(StoredLinear { module: self.config.naming.module(name).into_owned(), weight, bias });
        }
        let linear = self.adaptable.combine(&stored, widths, self.place).map_err(device_error)?;
        Ok(match codes {
            Some(codes) => linear.with_codes(&codes),
            None => linear,
        })
    }

    /// Returns the output layer, `[vocab, hidden]`, which may be the table of embeddings.
    pub(super) fn head(&self, embeddings: &Weight) -> LoadResult<Linear> {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        let weight = if self.config.tied { embeddings.clone() } else { self.table("lm_head.weight", shape)? };
        Ok(self.adaptable.head("lm_head", weight, shape))
    }

    /// Reads the layer that predicts labels, `[labels, hidden]`, in f32.
    pub(super) fn score(&self, labels: usize) -> LoadResult<Linear> {
        let exact = self.place.exact();
        let weight = self.tensor_as("score.weight", &[labels, self.config.hidden_size], &exact)?;
        let stored = StoredLinear { module: "score".to_owned(), weight, bias: None };
        self.adaptable.of_labels(stored, &exact).map_err(device_error)
    }

    /// Reads a layer of `layer` whose outputs are added to the residual stream, with the normalisation before
    /// that.
    fn added(
        &self,
        layer: &str,
        name: &str,
        shape: [usize; 2],
        bias: bool,
        norm: Option<&str>,
    ) -> LoadResult<Linear> {
        let stored = LayerName { name: format!("{layer}.{name}"), shape, bias };
        let linear = self.combined(&[stored], [shape[0]])?.scaled(self.config.multipliers.residual);
        Ok(match self.optional_norm(layer, norm)? {
            Some(norm) => linear.normed(norm),
            None => linear,
        })
    }

    fn optional_norm(&self, layer: &str, name: Option<&str>) -> LoadResult<Option<Norm>> {
        match name {
            Some(name) => self.norm(&format!("{layer}.{name}"), self.config.hidden_size).map(Some),
            None => Ok(None),
        }
    }

    fn qk_norms(&self, layer: &str) -> LoadResult<Option<QkNorms>> {
        let config = self.config;
        let [q, k] = match config.qk_norm {
            None => return Ok(None),
            Some(QkNorm::Heads) => [config.head_dim; 2],
            Some(QkNorm::Rows) => [config.query_width(), config.key_width()],
        };
        Ok(Some(QkNorms {
            q: self.norm(&format!("{layer}.self_attn.q_norm"), q)?,
            k: self.norm(&format!("{layer}.self_attn.k_norm"), k)?,
        }))
    }

    pub(super) fn layer(&self, index: usize) -> LoadResult<Layer> {
        let (config, LayerConfig { window, rotary, scale }) = (self.config, self.config.layers[index]);
        let name = config.naming.layer(self.weights, index);
        let names = config.naming.parts(config.norm_places);
        Ok(Layer {
            norm: self.optional_norm(&name, names.attention_norms.before)?,
            qkv: self.qkv(&name)?,
            qk_norms: self.qk_norms(&name)?,
            output: self.added(
                &name,
                names.output,
                [config.hidden_size, config.query_width()],
                config.output_bias,
                names.attention_norms.after,
            )?,
            heads: Heads {
                queries: config.num_heads,
                keys: config.num_kv_heads,
                scale: scale as f32,
                cap: config.caps.scores,
            },
            rotary,
            view: config.windows().iter().position(|other| *other == window).unwrap_or(0),
            mlp_norm: self.optional_norm(&name, names.mlp_norms.before)?,
            mlp: self.mlp(&name)?,
        })
    }

    fn mlp(&self, layer: &str) -> LoadResult<Mlp> {
        let config = self.config;
        let names = config.naming.parts(config.norm_places);
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let (shape, bias) = ([intermediate, hidden], config.mlp_bias);
        let up = LayerName { name: format!("{layer}.{}", names.up), shape, bias };
        let up = if config.fused {
            let name = format!("{layer}.mlp.gate_up_proj");
            let both = LayerName { name, shape: [2 * intermediate, hidden], bias };
            MlpInput::Gated(self.combined(&[both], [intermediate; 2])?)
        } else if config.gated {
            let gate = LayerName { name: format!("{layer}.mlp.gate_proj"), shape, bias };
            MlpInput::Gated(self.combined(&[gate, up], [intermediate; 2])?)
        } else {
            MlpInput::Plain(self.combined(&[up], [intermediate])?)
        };
        let down = self.added(layer, names.down, [hidden, intermediate], bias, names.mlp_norms.after)?;
        Ok(Mlp { up, down, activation: config.activation })
    }

    fn qkv(&self, layer: &str) -> LoadResult<Linear<3>> {
        let config = self.config;
        let bias = self.config.input_bias;
        let hidden = config.hidden_size;
        let queries = config.query_width();
        let keys = config.key_width();
        let parts: &[_] = match config.naming {
            Naming::Llama if config.fused => &[("self_attn.qkv_proj", queries + 2 * keys)],
            Naming::Llama => {
                &[("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)]
            }
            Naming::Gpt2 => &[("attn.c_attn", 3 * hidden)],
        };
        let layers = parts.iter().map(|&(name, width)| LayerName {
            name: format!("{layer}.{name}"),
            shape: [width, hidden],
            bias,
        });
        self.combined(&layers.collect::<Vec<_>>(), [queries, keys, keys])
    }
}

/// The name of a layer without `.weight`, and what it has.
struct LayerName {
    name: String,
    /// Numbers of outputs and inputs.
    shape: [usize; 2],
    bias: bool,
}

/// Names of the parts of a layer.
struct Parts {
    attention_norms: NormNames,
    output: &'static str,
    mlp_norms: NormNames,
    up: &'static str,
    down: &'static str,
}

/// Names of the normalisations of inputs and of outputs.
struct NormNames {
    before: Option<&'static str>,
    after: Option<&'static str>,
}

impl NormNames {
    fn before(name: &'static str) -> Self {
        Self { before: Some(name), after: None }
    }

    fn after(name: &'static str) -> Self {
        Self { before: None, after: Some(name) }
    }
}

impl Naming {
    fn parts(self, places: NormPlaces) -> Parts {
        match self {
            Self::Llama => {
                let [attention_norms, mlp_norms] = match places {
                    NormPlaces::Before => {
                        ["input_layernorm", "post_attention_layernorm"].map(NormNames::before)
                    }
                    NormPlaces::After => {
                        ["post_attention_layernorm", "post_feedforward_layernorm"].map(NormNames::after)
                    }
                    NormPlaces::Around => [
                        NormNames {
                            before: Some("input_layernorm"),
                            after: Some("post_attention_layernorm"),
                        },
                        NormNames {
                            before: Some("pre_feedforward_layernorm"),
                            after: Some("post_feedforward_layernorm"),
                        },
                    ],
                };
                Parts {
                    attention_norms,
                    output: "self_attn.o_proj",
                    mlp_norms,
                    up: "mlp.up_proj",
                    down: "mlp.down_proj",
                }
            }
            Self::Gpt2 => Parts {
                attention_norms: NormNames::before("ln_1"),
                output: "attn.c_proj",
                mlp_norms: NormNames::before("ln_2"),
                up: "mlp.c_fc",
                down: "mlp.c_proj",
            },
        }
    }

    /// Returns the prefix of tensor names. The first GPT-2 files contain only the base model, whose names
    /// have no prefix.
    fn root(self, weights: &Weights<'_>) -> &'static str {
        match self {
            Self::Llama => "model.",
            Self::Gpt2 if weights.has("wte.weight") => "",
            Self::Gpt2 => "transformer.",
        }
    }

    /// Returns the name of a projection within the complete model, including the prefix that the file may
    /// omit.
    fn module(self, name: &str) -> Cow<'_, str> {
        match self {
            Self::Gpt2 if name.starts_with("h.") => format!("transformer.{name}").into(),
            _ => name.into(),
        }
    }

    fn layer(self, weights: &Weights<'_>, index: usize) -> String {
        let root = self.root(weights);
        match self {
            Self::Llama => format!("{root}layers.{index}"),
            Self::Gpt2 => format!("{root}h.{index}"),
        }
    }

    /// Returns the names of the embedding table, the last normalisation, and the table of positions if there
    /// is one.
    pub(super) fn ends(self, weights: &Weights<'_>) -> [String; 3] {
        let names = match self {
            Self::Llama => ["embed_tokens.weight", "norm", ""],
            Self::Gpt2 => ["wte.weight", "ln_f", "wpe.weight"],
        };
        names.map(|name| format!("{}{name}", self.root(weights)))
    }
}

/// Consecutive rows of one context within a pass.
pub(super) struct ContextRows<'a> {
    /// Positions of the prompt before the rows.
    before: Vec<&'a Positions>,
    /// Where the rows' keys and values are written.
    pub(super) written: WrittenRows<'a>,
    /// Nodes that each row sees; the last is the row itself.
    pub(super) visible: Vec<Visible<'a>>,
    /// Position of the root of the paths.
    pub(super) start: usize,
    pub(super) adapter: Option<&'a Arc<AdapterWeights>>,
    phase: Phase,
}

impl<'a> ContextRows<'a> {
    /// Creates the rows of a group of nodes.
    pub(super) fn new(context: &'a Context<Vec<Arc<Block>>>, group: &'a RowGroup) -> Self {
        let prompt = context.prompt.iter();
        Self::of_nodes(
            prompt.map(|block| block.positions()).collect(),
            context.prompt.iter().map(|block| block.len()).sum(),
            context,
            group,
        )
    }

    /// Creates the first row after a prompt whose last tokens, at `positions`, are computed in the same pass.
    pub(super) fn after_prompt(
        prompt: &'a Prefill,
        positions: &'a Positions,
        context: &'a Context<Vec<Arc<Block>>>,
        group: &'a RowGroup,
    ) -> Self {
        let before = prompt.blocks.iter().map(|block| block.positions()).chain([positions]).collect();
        Self::of_nodes(before, prompt.len(), context, group)
    }

    fn of_nodes(
        before: Vec<&'a Positions>,
        start: usize,
        context: &'a Context<Vec<Arc<Block>>>,
        group: &'a RowGroup,
    ) -> Self {
        Self {
            before,
            written: group.written(context),
            visible: group.paths.iter().map(|path| Visible::Nodes(path)).collect(),
            start,
            adapter: context.adapter.as_ref(),
            phase: Phase::Decode,
        }
    }

    /// Creates the rows of the next tokens of a prompt, after its first blocks.
    pub(super) fn of_prompt(prompt: &'a Prefill, positions: &'a Positions, count: usize) -> Self {
        Self {
            before: prompt.blocks.iter().map(|block| block.positions()).collect(),
            written: WrittenRows { positions, first: 0, count },
            visible: (1..=count).map(Visible::First).collect(),
            start: prompt.computed(),
            adapter: prompt.adapter.as_ref(),
            phase: Phase::Prefill,
        }
    }

    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        self.visible.iter().map(|visible| self.start + visible.count() - 1)
    }

    /// Returns the positions that the rows attend to within a window.
    pub(super) fn key_group(&self, window: Option<usize>) -> KeyGroup<'a> {
        let queries = self.visible.iter().zip(self.positions()).map(|(&visible, position)| AttentionQuery {
            visible,
            hidden: window.map_or(0, |window| (position + 1).saturating_sub(window)),
            position,
        });
        KeyGroup {
            before: self.before.clone(),
            own: self.written.positions,
            queries: queries.collect(),
            phase: self.phase,
        }
    }
}

/// Data shared by all layers of one pass.
pub(super) struct Pass<'a> {
    /// Has a view for each window.
    pub(super) kv: Box<dyn KvPass + 'a>,
    /// The angles of [`PositionEncoding::Rotary`](super::PositionEncoding::Rotary), in its order.
    pub(super) ropes: Vec<PassRope>,
    pub(super) rows: AdaptedRows,
}

/// One layer: attention and the MLP, with normalisations of the inputs or of the outputs.
pub(super) struct Layer {
    norm: Option<Norm>,
    qkv: Linear<3>,
    qk_norms: Option<QkNorms>,
    output: Linear,
    heads: Heads,
    /// Index of its angles in [`Pass::ropes`].
    rotary: Option<usize>,
    /// Index of its window in [`CausalConfig::windows`].
    view: usize,
    mlp_norm: Option<Norm>,
    mlp: Mlp,
}

impl Layer {
    /// Returns the hidden states `[R, hidden]` after the layer. Writes the rows' keys and values.
    pub(super) fn forward(&self, x: Tensor, index: usize, pass: &Pass<'_>) -> Result<Tensor> {
        let q = self.write_kv(&x, index, pass)?;
        self.read_kv(x, q, index, pass)
    }

    /// Returns the hidden states `[R, hidden]` after the layer, given those before it and the queries
    /// `[R, H * D]`, after the keys and values are written.
    pub(super) fn read_kv(&self, x: Tensor, q: Tensor, index: usize, pass: &Pass<'_>) -> Result<Tensor> {
        let q = Scratch(q);
        let attended = Scratch(pass.kv.attend(index, self.view, &q, self.heads)?);
        let x = self.output.added(&attended, x, &pass.rows)?;
        match &self.mlp_norm {
            Some(norm) => self.mlp.added(&Scratch(norm.forward(&x)?), x, &pass.rows),
            // The MLP reads its input before it adds to the same memory.
            None => self.mlp.added(&x.clone(), x, &pass.rows),
        }
    }

    /// Writes the keys and values of rows, given their hidden states `[R, hidden]` before the layer. Returns
    /// the queries `[R, H * D]`.
    pub(super) fn write_kv(&self, x: &Tensor, index: usize, pass: &Pass<'_>) -> Result<Tensor> {
        let normed = match &self.norm {
            Some(norm) => Some(Scratch(norm.forward(x)?)),
            None => None,
        };
        let input = QkvInput {
            x: normed.as_deref().unwrap_or(x),
            qkv: &self.qkv,
            heads: self.heads,
            qk_norms: self.qk_norms.as_ref(),
            rope: self.rotary.map(|index| &pass.ropes[index]),
            rows: &pass.rows,
        };
        pass.kv.write(index, &input)
    }
}
