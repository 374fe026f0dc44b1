//! The layers that every family is made of, and reading them from a checkpoint.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::adapter::Adapter;
use crate::checkpoint::{LoadResult, Weights};
use crate::kv_cache::{Context, NodeStore, RowGroup, Slab};
use crate::ops::{
    AttentionQuery, AttentionRow, HeadNorms, Heads, KeyGroup, KeyValues, KeyView, Linear, Mlp, MlpInput,
    Norm, PassKeys, Placement, Projections, RopeTables, StoredLinear, Visible, Weight, attend,
    is_placeholder,
};

use super::block::Block;
use super::config::{CausalConfig, LayerConfig, Naming};

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
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> LoadResult<Tensor> {
        let read = self.weights.tensor(name, shape, self.place.dtype, &self.place.device)?;
        self.parameters.set(self.parameters.get() + read.elem_count() as u64);
        Ok(read)
    }

    pub(super) fn norm(&self, name: &str, width: usize) -> LoadResult<Norm> {
        let norm = self.config.norm;
        let bias = if norm.centred { Some(self.tensor(&format!("{name}.bias"), &[width])?) } else { None };
        Ok(Norm::new(&self.tensor(&format!("{name}.weight"), &[width])?, bias.as_ref(), norm.eps)?)
    }

    pub(super) fn packed(&self, tensor: Tensor) -> LoadResult<Weight> {
        Ok(Weight::new(tensor, self.place)?)
    }

    /// Reads a layer from `input` to `output` elements, with the adapter's change.
    fn stored(&self, name: &str, [output, input]: [usize; 2], bias: bool) -> LoadResult<StoredLinear> {
        let weight = format!("{name}.weight");
        let weight = match self.config.naming {
            Naming::Llama => self.tensor(&weight, &[output, input])?,
            Naming::Gpt2 => {
                let transposed = self.tensor(&weight, &[input, output])?.t()?;
                // A placeholder has to stay small.
                if is_placeholder(&transposed) { transposed } else { transposed.contiguous()? }
            }
        };
        let weight = self.merged(name, weight)?;
        let bias = if bias { Some(self.tensor(&format!("{name}.bias"), &[output])?) } else { None };
        Ok(StoredLinear { weight, bias })
    }

    fn merged(&self, name: &str, weight: Tensor) -> LoadResult<Tensor> {
        match self.adapter {
            Some(adapter) => adapter.merge(&self.config.naming.module(name), weight),
            None => Ok(weight),
        }
    }

    /// An output layer of its own, `[vocab, hidden]`.
    pub(super) fn head(&self) -> LoadResult<Weight> {
        let weight = self.tensor("lm_head.weight", &[self.config.vocab_size, self.config.hidden])?;
        self.packed(self.merged("lm_head", weight)?)
    }

    /// A layer whose outputs are multiplied by `factor` before they are added.
    fn scaled(&self, name: &str, shape: [usize; 2], bias: bool, factor: f64) -> LoadResult<Linear> {
        let stored = self.stored(name, shape, bias)?;
        Ok(Linear::new(&[stored], [shape[0]], self.place)?.scaled(factor))
    }

    pub(super) fn layer(&self, index: usize) -> LoadResult<Layer> {
        let (config, LayerConfig { window, scale }) = (self.config, self.config.layers[index]);
        let (name, names) = (config.naming.layer(self.weights, index), config.naming.parts());
        let part = |part: &str| format!("{name}.{part}");
        let (hidden, wide, residual) = (config.hidden, config.wide, config.multipliers.residual);
        let head_norm = |name: &str| self.norm(&part(name), config.head_dim);
        let up = |name: &str| self.stored(&part(name), [wide, hidden], config.wide_bias);
        Ok(Layer {
            norm: self.norm(&part(names.norm), hidden)?,
            qkv: self.qkv(&name)?,
            head_norms: if config.head_norms {
                Some(HeadNorms { q: head_norm("self_attn.q_norm")?, k: head_norm("self_attn.k_norm")? })
            } else {
                None
            },
            output: self.scaled(
                &part(names.output),
                [hidden, config.query_width()],
                config.output_bias,
                residual,
            )?,
            heads: Heads { queries: config.heads, keys: config.key_heads, scale: scale as f32 },
            window,
            mlp_norm: self.norm(&part(names.mlp_norm), hidden)?,
            mlp: Mlp {
                up: if config.gated {
                    let stored = [up("mlp.gate_proj")?, up(names.up)?];
                    MlpInput::Gated(Linear::new(&stored, [wide; 2], self.place)?)
                } else {
                    MlpInput::Plain(Linear::new(&[up(names.up)?], [wide], self.place)?)
                },
                down: self.scaled(&part(names.down), [hidden, wide], config.wide_bias, residual)?,
                activation: config.activation,
            },
        })
    }

    fn qkv(&self, layer: &str) -> LoadResult<Linear<3>> {
        let (config, bias) = (self.config, self.config.input_bias);
        let (hidden, queries, keys) = (config.hidden, config.query_width(), config.key_width());
        let stored = match config.naming {
            Naming::Llama => {
                let stored = |name: &str, width| {
                    self.stored(&format!("{layer}.self_attn.{name}"), [width, hidden], bias)
                };
                vec![stored("q_proj", queries)?, stored("k_proj", keys)?, stored("v_proj", keys)?]
            }
            Naming::Gpt2 => vec![self.stored(&format!("{layer}.attn.c_attn"), [3 * hidden, hidden], bias)?],
        };
        Ok(Linear::new(&stored, [queries, keys, keys], self.place)?)
    }
}

/// Names of the parts of a layer.
struct Parts {
    norm: &'static str,
    output: &'static str,
    mlp_norm: &'static str,
    up: &'static str,
    down: &'static str,
}

impl Naming {
    fn parts(self) -> Parts {
        match self {
            Self::Llama => Parts {
                norm: "input_layernorm",
                output: "self_attn.o_proj",
                mlp_norm: "post_attention_layernorm",
                up: "mlp.up_proj",
                down: "mlp.down_proj",
            },
            Self::Gpt2 => Parts {
                norm: "ln_1",
                output: "attn.c_proj",
                mlp_norm: "ln_2",
                up: "mlp.c_fc",
                down: "mlp.c_proj",
            },
        }
    }

    /// The first GPT-2 files are those of the bare model, whose names have no prefix.
    fn root(self, weights: &Weights<'_>) -> &'static str {
        match self {
            Self::Llama => "model.",
            Self::Gpt2 if weights.has("wte.weight") => "",
            Self::Gpt2 => "transformer.",
        }
    }

    /// The name of a projection within the whole model, with the prefix that the file may leave out.
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

    /// Names of the embedding table, of the last normalisation, and of the table of positions if there is one.
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
    /// The prompt's positions that were computed before.
    pub(super) blocks: Vec<&'a Block>,
    /// Where the rows' keys and values are written.
    pub(super) nodes: &'a NodeStore,
    pub(super) first_row: usize,
    pub(super) first_node: usize,
    /// Which nodes each row sees, itself as the last.
    pub(super) visible: Vec<Visible<'a>>,
    /// Position of the root of the paths.
    pub(super) start: usize,
}

impl<'a> ContextRows<'a> {
    /// Rows that are nodes of the context.
    pub(super) fn new(context: &'a Context<Vec<Arc<Block>>>, group: &'a RowGroup) -> Self {
        Self {
            blocks: context.prompt.iter().map(Arc::as_ref).collect(),
            nodes: &context.nodes,
            first_row: group.first_row,
            first_node: group.first_node,
            visible: group.paths.iter().map(|path| Visible::Nodes(path)).collect(),
            start: context.prompt.iter().map(|block| block.len()).sum(),
        }
    }

    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        self.visible.iter().map(|visible| self.start + visible.count() - 1)
    }

    /// The slots of the rows on a device.
    fn slots(&self) -> &'a [u32] {
        self.nodes.slots(self.first_node, self.visible.len())
    }

    /// What the rows attend to on a device, within a window.
    fn key_group(&self, window: Option<usize>) -> KeyGroup<'a> {
        let before = self.blocks.iter().flat_map(|block| block.kv().slots()).copied().collect();
        let queries = self.visible.iter().zip(self.positions()).map(|(&visible, position)| AttentionQuery {
            visible,
            hidden: hidden(window, position),
            position,
        });
        KeyGroup::new(before, self.nodes.kv.slots(), queries.collect())
    }
}

/// How many of the positions before one are outside its window.
fn hidden(window: Option<usize>, position: usize) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// What all layers of one pass share.
pub(super) struct Pass<'a> {
    pub(super) contexts: &'a [ContextRows<'a>],
    pub(super) rope: Option<RopeTables>,
    /// On a device.
    pub(super) slots: Option<PassSlots<'a>>,
}

/// How a pass reads and writes the slots of its contexts.
pub(super) struct PassSlots<'a> {
    slab: &'a Slab,
    /// The windows that layers have.
    windows: Vec<Option<usize>>,
    /// For each window.
    keys: PassKeys<'a>,
}

impl<'a> PassSlots<'a> {
    pub(super) fn new(slab: &'a Slab, contexts: &[ContextRows<'a>], layers: &[Layer]) -> Result<Self> {
        let slots: Vec<u32> = contexts.iter().flat_map(ContextRows::slots).copied().collect();
        let mut windows = Vec::new();
        for layer in layers {
            if !windows.contains(&layer.window) {
                windows.push(layer.window);
            }
        }
        let view = |window: &Option<usize>| KeyView {
            groups: contexts.iter().map(|rows| rows.key_group(*window)).collect(),
            bias: None,
        };
        let views = windows.iter().map(view).collect();
        let keys = PassKeys::new(&slots, views, slab.device())?;
        Ok(Self { slab, windows, keys })
    }
}

/// One layer: attention, then the MLP, each behind a normalisation.
pub(super) struct Layer {
    norm: Norm,
    qkv: Linear<3>,
    head_norms: Option<HeadNorms>,
    output: Linear,
    heads: Heads,
    window: Option<usize>,
    mlp_norm: Norm,
    mlp: Mlp,
}

impl Layer {
    /// Hidden states `[R, hidden]` behind the layer. Writes the rows' keys and values.
    pub(super) fn forward(&self, x: Tensor, index: usize, pass: &Pass<'_>) -> Result<Tensor> {
        let attended = match &pass.slots {
            Some(slots) => {
                let q = self.write_slots(&x, index, slots, pass)?;
                self.attend_to_slots(&q, index, slots)?
            }
            None => {
                let q = self.write_tensors(&x, index, pass)?;
                let q_norm = self.head_norms.as_ref().map(|norms| &norms.q);
                self.attend(&HeadNorms::rotated(q_norm, q, pass.rope.as_ref())?, index, pass.contexts)?
            }
        };
        let x = self.output.added(&attended, x)?;
        self.mlp.added(&self.mlp_norm.forward(&x)?, x)
    }

    /// Writes the keys and values of rows whose hidden states in front of the layer are `[R, hidden]`, and nothing else.
    pub(super) fn write_kv(&self, x: &Tensor, index: usize, pass: &Pass<'_>) -> Result<()> {
        match &pass.slots {
            Some(slots) => self.write_slots(x, index, slots, pass).map(drop),
            None => self.write_tensors(x, index, pass).map(drop),
        }
    }

    /// Writes keys and values on a device; returns the queries, f32 `[R, H * D]`.
    fn write_slots(
        &self,
        x: &Tensor,
        index: usize,
        slots: &PassSlots<'_>,
        pass: &Pass<'_>,
    ) -> Result<Tensor> {
        let qkv = self.qkv.together(&self.norm.forward(x)?)?;
        let projections = Projections {
            head_norms: self.head_norms.as_ref(),
            rope: pass.rope.as_ref(),
            ..Projections::plain(&qkv, self.heads)
        };
        projections.store_and_query(slots.slab.layer(index), &slots.keys.written)
    }

    fn attend_to_slots(&self, q: &Tensor, index: usize, pass: &PassSlots<'_>) -> Result<Tensor> {
        let view = pass.windows.iter().position(|window| *window == self.window);
        let view = view.ok_or_else(|| candle_core::Error::Msg("a layer has no view".to_owned()))?;
        pass.keys.attentions[view].attend(q, pass.slab.layer(index), self.heads)
    }

    fn attend(&self, q: &Tensor, index: usize, contexts: &[ContextRows<'_>]) -> Result<Tensor> {
        let before = contexts.iter().map(|rows| rows.blocks.iter().map(|block| &block.kv().tensors()[index]));
        let before: Vec<Vec<&KeyValues>> = before.map(Iterator::collect).collect();
        let rows = contexts.iter().zip(&before).flat_map(|(rows, before)| {
            let kv = &rows.nodes.kv.tensors()[index];
            rows.visible.iter().zip(rows.positions()).map(move |(&visible, position)| {
                AttentionRow::new(kv, visible, position).with_prefix(before, hidden(self.window, position))
            })
        });
        attend(q, &rows.collect::<Vec<_>>(), self.heads, None)
    }

    /// Writes keys and values on the CPU; returns the queries `[R, H * D]`, not yet rotated.
    fn write_tensors(&self, x: &Tensor, index: usize, pass: &Pass<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv.parts(&self.norm.forward(x)?)?;
        let k_norm = self.head_norms.as_ref().map(|norms| &norms.k);
        let k = HeadNorms::rotated(k_norm, k, pass.rope.as_ref())?;
        for rows in pass.contexts {
            let (from, count) = (rows.first_row, rows.visible.len());
            let (keys, values) = (k.narrow(0, from, count)?, v.narrow(0, from, count)?);
            rows.nodes.write_kv(index, rows.first_node, &keys, &values)?;
        }
        Ok(q)
    }
}
