//! Attention on a device: of few queries over the same keys by one launch that reads keys and values in their slots, of many by a
//! [`Plan`].

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use ntl_kernels::{AttentionGroup, AttentionQuery, Heads, KvSlices, Visible};

use super::batched::{Batches, Plan};
use super::groups::KeyGroup;
use super::heads::HeadSource;
use super::rows::RelativeBias;

/// How many queries keys have on average from which on a plan computes them. The kernel reads keys and values again for each query, from the
/// GPU's cache: 64 queries over 350 keys of T5-3B read 180 MB a layer, for which an H200 takes about 40 µs. A plan gathers them
/// once and multiplies by cuBLAS, in five launches a batch, for which the host takes about as long. (Reckoned, not measured.)
const QUERIES_PLANNED: usize = 64;

/// As [`ntl_cuda::SlotAttention`] takes a row.
const ROW_NUMBERS: usize = 6;
#[cfg(feature = "cuda")]
const _: () = assert!(ROW_NUMBERS == ntl_cuda::ROW_NUMBERS);

/// All queries of a pass, in order, with what they attend to.
pub(crate) struct KeyView<'a> {
    pub(crate) groups: Vec<KeyGroup<'a>>,
    pub(crate) bias: Option<&'a RelativeBias>,
}

/// Where the keys and values of a pass's rows go and what its queries attend to, the same in every layer. Made by one upload.
pub(crate) struct PassKeys<'a> {
    /// The slot of each row, u32 `[R]`.
    pub(crate) written: Tensor,
    /// In the order of the views.
    pub(crate) attentions: Vec<SlotAttention<'a>>,
}

pub(crate) enum SlotAttention<'a> {
    Rows(SlotRows<'a>),
    Planned(Plan<'a>),
}

/// What rows attend to, as the kernel reads it.
pub(crate) struct SlotRows<'a> {
    /// u32: the numbers of each row, then slots; see [`SlotRows::table`].
    table: Tensor,
    rows: usize,
    /// The most keys that a row sees.
    keys_max: usize,
    bias: Option<&'a RelativeBias>,
}

impl<'a> PassKeys<'a> {
    pub(crate) fn new(written: &[u32], views: Vec<KeyView<'a>>, device: &Device) -> Result<Self> {
        let mut numbers = written.to_vec();
        let placed: Vec<_> = views.into_iter().map(|view| PlacedView::new(view, &mut numbers)).collect();
        let count = numbers.len();
        let numbers = Tensor::from_vec(numbers, count, device)?;
        let attentions = placed.into_iter().map(|view| view.attention(&numbers)).collect::<Result<_>>()?;
        Ok(Self { written: numbers.narrow(0, 0, written.len())?, attentions })
    }
}

/// A view whose numbers are in the table of a pass, which is not on the device yet.
enum PlacedView<'a> {
    Rows { view: KeyView<'a>, table: Range<usize> },
    Planned { batches: Batches, bias: Option<&'a RelativeBias> },
}

impl<'a> PlacedView<'a> {
    fn new(view: KeyView<'a>, numbers: &mut Vec<u32>) -> Self {
        if is_planned(&view.groups) {
            return Self::Planned { batches: Batches::new(view.groups, numbers), bias: view.bias };
        }
        let from = numbers.len();
        numbers.extend(SlotRows::table(&view.groups));
        Self::Rows { view, table: from..numbers.len() }
    }

    fn attention(self, numbers: &Tensor) -> Result<SlotAttention<'a>> {
        match self {
            Self::Planned { batches, bias } => {
                Ok(SlotAttention::Planned(batches.plan(numbers.clone(), bias)))
            }
            Self::Rows { view: KeyView { groups, bias }, table } => {
                let table = numbers.narrow(0, table.start, table.len())?;
                Ok(SlotAttention::Rows(SlotRows::new(&groups, table, bias)))
            }
        }
    }
}

fn is_planned(groups: &[KeyGroup<'_>]) -> bool {
    let pairs: usize = groups.iter().map(KeyGroup::pairs).sum();
    let keys: usize = groups.iter().map(KeyGroup::keys).sum();
    pairs >= QUERIES_PLANNED * keys && groups.iter().all(KeyGroup::has_ranges)
}

impl SlotAttention<'_> {
    /// Softmax attention of `q` f32 `[R, H * D]` over one layer of the cache; returns `[R, H * D]`.
    pub(crate) fn attend(&self, q: &Tensor, slab: &Tensor, heads: Heads) -> Result<Tensor> {
        match self {
            Self::Rows(rows) => rows.attend(q, slab, heads),
            Self::Planned(plan) => plan.attend(HeadSource::cached(q, slab, heads)?, heads),
        }
    }
}

impl<'a> SlotRows<'a> {
    fn new(groups: &[KeyGroup<'_>], table: Tensor, bias: Option<&'a RelativeBias>) -> Self {
        let seen = groups.iter().flat_map(|group| {
            group.queries.iter().map(|query| {
                let [from, to] = group.range(query);
                to - from
            })
        });
        Self { table, rows: seen.clone().count(), keys_max: seen.max().unwrap_or(0), bias }
    }

    /// For each row where the slots begin that it shares with its group, how many these are, where its own begin, the first place of
    /// both that it sees, the end of those, and its own place. Then the slots.
    fn table(groups: &[KeyGroup<'_>]) -> Vec<u32> {
        let (mut rows, mut slots) = (Vec::new(), Vec::new());
        for group in groups {
            let shared = slots.len();
            slots.extend_from_slice(&group.slots);
            for query in &group.queries {
                let (own, [from, to]) = (slots.len(), group.range(query));
                slots.extend(group.own_slots(query));
                let numbers = [shared, group.shared(query), own, from, to, query.position];
                rows.extend(numbers.map(|number| number as u32));
            }
        }
        rows.append(&mut slots);
        rows
    }

    fn attend(&self, q: &Tensor, slab: &Tensor, heads: Heads) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if q.device().is_cuda() {
            let bias = self.bias.map(|bias| bias.table(q.device())).transpose()?;
            let attention = ntl_cuda::SlotAttention {
                table: &self.table,
                rows: self.rows,
                keys_max: self.keys_max,
                heads: heads.queries,
                key_heads: heads.keys,
                scale: heads.scale,
                bias: bias.as_ref(),
            };
            return attention.attend(q, slab);
        }
        self.composed(q, slab, heads)
    }

    /// The same row by row, where there is no kernel for it.
    fn composed(&self, q: &Tensor, slab: &Tensor, heads: Heads) -> Result<Tensor> {
        let numbers: Vec<u32> = self.table.to_vec1()?;
        let (rows, slots) = numbers.split_at(self.rows * ROW_NUMBERS);
        let capacity = slab.dim(0)? as u32 / 2;
        let (q_rows, mut out) = (q.to_vec2::<f32>()?, Vec::new());
        for (row, q) in rows.as_chunks::<ROW_NUMBERS>().0.iter().zip(&q_rows) {
            let [shared, count, own, hidden, end, position] = row.map(|number| number as usize);
            debug_assert!(end - hidden <= self.keys_max);
            let slot = |at: usize| if at < count { slots[shared + at] } else { slots[own + at - count] };
            let read = |offset: u32| {
                let places = Tensor::from_iter((0..end).map(|at| slot(at) + offset), slab.device())?;
                slab.index_select(&places, 0)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()
            };
            let (keys, values) = (read(0)?, read(capacity)?);
            let own = KvSlices { keys: &keys, values: &values };
            let queries = vec![AttentionQuery { visible: Visible::First(end), hidden, position }];
            let group = AttentionGroup { before: Vec::new(), own, queries };
            out.extend(ntl_kernels::attend(q, &[group], heads, self.bias.map(|bias| &bias.values)));
        }
        Tensor::from_vec(out, q.dims2()?, q.device())?.to_dtype(slab.dtype())
    }
}
