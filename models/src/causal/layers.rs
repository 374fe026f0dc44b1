//! The layers that every family is made of, and reading them from a checkpoint.

use std::borrow::Cow;
use std::cell::Cell;

use candle_core::{Result, Tensor};

use crate::adapter::Adapter;
use crate::checkpoint::{LoadError, Weights};
use crate::nodes::NodeStore;
use crate::ops::{
    Activation, AttentionPlans, AttentionRow, Heads, KeyValues, Placement, RopeTables, Visible, Weight,
    apply_rope, attend, layer_norm, rms_norm,
};

use super::context::Block;
use super::projection::{Projection, Stored};
use super::{CausalConfig, LayerConfig, Naming};

type Loaded<T> = std::result::Result<T, LoadError>;

/// Reads tensors of one model to one place.
pub(super) struct Loader<'a> {
    pub(super) weights: &'a Weights<'a>,
    pub(super) adapter: Option<&'a Adapter>,
    pub(super) config: &'a CausalConfig,
    pub(super) place: &'a Placement,
    /// Weights read so far.
    pub(super) parameters: Cell<u64>,
}

impl Loader<'_> {
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> Loaded<Tensor> {
        let read = self.weights.tensor(name, shape, self.place.dtype, &self.place.device)?;
        self.parameters.set(self.parameters.get() + read.elem_count() as u64);
        Ok(read)
    }

    pub(super) fn norm(&self, name: &str, width: usize) -> Loaded<Norm> {
        let norm = self.config.norm;
        let bias = if norm.centred { Some(self.tensor(&format!("{name}.bias"), &[width])?) } else { None };
        Ok(Norm { weight: self.tensor(&format!("{name}.weight"), &[width])?, bias, eps: norm.eps })
    }

    pub(super) fn packed(&self, tensor: Tensor) -> Loaded<Weight> {
        Weight::new(tensor, self.place).map_err(device)
    }

    /// A projection from `input` to `output` numbers.
    fn projection(&self, name: &str, [output, input]: [usize; 2], bias: bool) -> Loaded<Stored> {
        let weight = format!("{name}.weight");
        let weight = match self.config.naming {
            Naming::Llama => self.tensor(&weight, &[output, input])?,
            Naming::Gpt2 => {
                let stored = self.tensor(&weight, &[input, output])?;
                let turned = stored.t().map_err(device)?;
                // A stand-in is to stay small.
                if self.weights.stands_in() { turned } else { turned.contiguous().map_err(device)? }
            }
        };
        let weight = self.merged(name, weight)?;
        let bias = if bias { Some(self.tensor(&format!("{name}.bias"), &[output])?) } else { None };
        Ok(Stored { weight, bias })
    }

    /// A weight with the change of the adapter.
    fn merged(&self, name: &str, weight: Tensor) -> Loaded<Tensor> {
        match self.adapter {
            Some(adapter) => adapter.merge(&self.config.naming.module(name), weight),
            None => Ok(weight),
        }
    }

    /// An output layer of its own, `[vocab, hidden]`.
    pub(super) fn head(&self) -> Loaded<Weight> {
        let weight = self.tensor("lm_head.weight", &[self.config.vocab_size, self.config.hidden])?;
        self.packed(self.merged("lm_head", weight)?)
    }

    /// A projection, with what it gives multiplied by `factor`.
    fn scaled(&self, name: &str, shape: [usize; 2], bias: bool, factor: f64) -> Loaded<Projection<1>> {
        let mut stored = self.projection(name, shape, bias)?;
        if (factor - 1.0).abs() > f64::EPSILON && !self.weights.stands_in() {
            let scaled = |tensor: &Tensor| (tensor * factor).map_err(device);
            stored.bias = stored.bias.as_ref().map(scaled).transpose()?;
            stored.weight = scaled(&stored.weight)?;
        }
        self.joined([stored])
    }

    /// Several projections of the same numbers as one.
    fn joined<const P: usize>(&self, stored: [Stored; P]) -> Loaded<Projection<P>> {
        let widths = stored.each_ref().map(|stored| stored.weight.dims()[0]);
        let biases: Option<Vec<&Tensor>> = stored.iter().map(|stored| stored.bias.as_ref()).collect();
        let bias = biases.map(|biases| Tensor::cat(&biases, 0)).transpose().map_err(device)?;
        let weights = stored.each_ref().map(|stored| &stored.weight);
        let weight = if self.weights.stands_in() {
            // One zero, seen everywhere.
            let shape = (widths.iter().sum::<usize>(), weights[0].dims()[1]);
            weights[0].narrow(0, 0, 1).and_then(|row| row.broadcast_as(shape))
        } else {
            Tensor::cat(&weights, 0)
        };
        Ok(Projection { weight: self.packed(weight.map_err(device)?)?, bias, widths })
    }

    pub(super) fn layer(&self, index: usize) -> Loaded<Layer> {
        let (config, LayerConfig { window, scale }) = (self.config, self.config.layers[index]);
        let (name, names) = (config.naming.layer(self.weights, index), config.naming.parts());
        let part = |part: &str| format!("{name}.{part}");
        let (hidden, width) = (config.hidden, config.query_width());
        let residual = config.multipliers.residual;
        let head_norm = |of: &str| self.norm(&part(of), config.head_dim);
        Ok(Layer {
            norm: self.norm(&part(names.norm), hidden)?,
            inputs: self.inputs(&name)?,
            head_norms: if config.head_norms {
                Some((head_norm("self_attn.q_norm")?, head_norm("self_attn.k_norm")?))
            } else {
                None
            },
            output: self.scaled(&part(names.output), [hidden, width], config.output_bias, residual)?,
            heads: Heads { queries: config.heads, keys: config.key_heads, scale: scale as f32 },
            window,
            wide_norm: self.norm(&part(names.wide_norm), hidden)?,
            up: {
                let wide = |name| self.projection(&part(name), [config.wide, hidden], config.wide_bias);
                if config.gated {
                    Up::Gated(self.joined([wide("mlp.gate_proj")?, wide(names.up)?])?)
                } else {
                    Up::Plain(self.joined([wide(names.up)?])?)
                }
            },
            down: self.scaled(&part(names.down), [hidden, config.wide], config.wide_bias, residual)?,
            activation: config.activation,
        })
    }

    /// Projections to queries, keys and values.
    fn inputs(&self, layer: &str) -> Loaded<Projection<3>> {
        let config = self.config;
        let (hidden, queries, keys) = (config.hidden, config.query_width(), config.key_width());
        let bias = config.input_bias;
        match config.naming {
            Naming::Llama => {
                let one = |name, width| {
                    self.projection(&format!("{layer}.self_attn.{name}"), [width, hidden], bias)
                };
                self.joined([one("q_proj", queries)?, one("k_proj", keys)?, one("v_proj", keys)?])
            }
            Naming::Gpt2 => {
                let all = self.projection(&format!("{layer}.attn.c_attn"), [3 * hidden, hidden], bias)?;
                let Projection { weight, bias, .. } = self.joined([all])?;
                Ok(Projection { weight, bias, widths: [hidden; 3] })
            }
        }
    }
}

fn device(error: candle_core::Error) -> LoadError {
    LoadError::Device(error.to_string())
}

/// What the parts of a layer are called.
struct Parts {
    norm: &'static str,
    output: &'static str,
    wide_norm: &'static str,
    up: &'static str,
    down: &'static str,
}

impl Naming {
    fn parts(self) -> Parts {
        match self {
            Self::Llama => Parts {
                norm: "input_layernorm",
                output: "self_attn.o_proj",
                wide_norm: "post_attention_layernorm",
                up: "mlp.up_proj",
                down: "mlp.down_proj",
            },
            Self::Gpt2 => Parts {
                norm: "ln_1",
                output: "attn.c_proj",
                wide_norm: "ln_2",
                up: "mlp.c_fc",
                down: "mlp.c_proj",
            },
        }
    }

    /// The first GPT-2 files were those of the bare model, whose names have nothing in front.
    fn root(self, weights: &Weights<'_>) -> &'static str {
        match self {
            Self::Llama => "model.",
            Self::Gpt2 if weights.has("wte.weight") => "",
            Self::Gpt2 => "transformer.",
        }
    }

    /// The name of a projection within the whole model, whatever the file leaves out of it.
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

    /// Names of the embedding table, of the last normalisation, and of the table of positions where there is one.
    pub(super) fn ends(self, weights: &Weights<'_>) -> [String; 3] {
        let names = match self {
            Self::Llama => ["embed_tokens.weight", "norm", ""],
            Self::Gpt2 => ["wte.weight", "ln_f", "wpe.weight"],
        };
        names.map(|name| format!("{}{name}", self.root(weights)))
    }
}

/// What widens hidden states for the activation.
enum Up {
    /// The gate, then what it is multiplied with.
    Gated(Projection<2>),
    Plain(Projection<1>),
}

/// Normalisation with a learned scale, and a bias where the mean is taken off as well.
pub(super) struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f64,
}

impl Norm {
    /// `[M, width]` to the same.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => layer_norm(x, &self.weight, bias, self.eps),
            None => rms_norm(x, &self.weight, self.eps),
        }
    }

    /// Each head of `[M, H * D]` on its own.
    fn by_head(&self, x: &Tensor) -> Result<Tensor> {
        let dim = self.weight.dim(0)?;
        self.forward(&x.reshape((x.elem_count() / dim, dim))?)?.reshape(x.shape())
    }
}

/// Rows of one context within a pass.
pub(super) struct Span<'a> {
    /// What was computed before: the positions in front of the paths.
    pub(super) blocks: Vec<&'a Block>,
    /// Where the rows' keys and values go.
    pub(super) nodes: &'a NodeStore,
    pub(super) first_row: usize,
    pub(super) first_node: usize,
    /// Which nodes each row sees, itself as the last.
    pub(super) sight: Vec<Visible<'a>>,
    /// Position of the root of the paths.
    pub(super) start: usize,
}

impl Span<'_> {
    /// The rows' positions.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        self.sight.iter().map(|visible| self.start + visible.len() - 1)
    }
}

/// One layer: attention, then feed-forward, each behind a normalisation.
pub(super) struct Layer {
    norm: Norm,
    inputs: Projection<3>,
    head_norms: Option<(Norm, Norm)>,
    output: Projection<1>,
    heads: Heads,
    window: Option<usize>,
    wide_norm: Norm,
    up: Up,
    down: Projection<1>,
    activation: Activation,
}

impl Layer {
    /// Hidden states `[R, hidden]` behind the layer. Stores the rows' keys and values.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        index: usize,
        spans: &[Span<'_>],
        (turns, plans): (Option<&RopeTables>, &AttentionPlans),
    ) -> Result<Tensor> {
        let q = self.remember(x, index, spans, turns)?;
        let q = turned(self.head_norms.as_ref().map(|norms| &norms.0), q, turns)?;
        let before: Vec<Vec<&KeyValues>> =
            spans.iter().map(|span| span.blocks.iter().map(|block| block.layer(index)).collect()).collect();
        let rows = spans.iter().zip(&before).flat_map(|(span, before)| {
            let kv = span.nodes.layer(index);
            span.sight.iter().zip(span.positions()).map(move |(&visible, position)| {
                let hidden = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
                AttentionRow::new(kv, visible, position).with_prefix(before, hidden)
            })
        });
        let rows: Vec<_> = rows.collect();
        let attended = attend(&q, &rows, self.heads, None, plans)?;
        let x = self.output.added(&attended, x)?;
        self.down.added(&self.widened(&self.wide_norm.forward(&x)?)?, &x)
    }

    /// Stores the keys and values of rows whose hidden states in front of the layer are `[R, hidden]`; returns their
    /// queries.
    pub(super) fn remember(
        &self,
        x: &Tensor,
        index: usize,
        spans: &[Span<'_>],
        turns: Option<&RopeTables>,
    ) -> Result<Tensor> {
        let [q, k, v] = self.inputs.parts(&self.norm.forward(x)?)?;
        let k = turned(self.head_norms.as_ref().map(|norms| &norms.1), k, turns)?;
        for span in spans {
            let (from, count) = (span.first_row, span.sight.len());
            let (keys, values) = (k.narrow(0, from, count)?, v.narrow(0, from, count)?);
            span.nodes.store(index, span.first_node, &keys, &values)?;
        }
        Ok(q)
    }

    /// Normalised hidden states `[R, hidden]` to what the last product takes, `[R, wide]`.
    fn widened(&self, x: &Tensor) -> Result<Tensor> {
        match &self.up {
            Up::Plain(up) => up.activated(x, self.activation),
            Up::Gated(both) => both.gated(x, self.activation),
        }
    }
}

/// Queries or keys, normalised head by head and turned, where the model does either.
fn turned(norm: Option<&Norm>, x: Tensor, turns: Option<&RopeTables>) -> Result<Tensor> {
    let x = match norm {
        Some(norm) => norm.by_head(&x)?,
        None => x,
    };
    match turns {
        Some(tables) => apply_rope(&x, tables),
        None => Ok(x),
    }
}
