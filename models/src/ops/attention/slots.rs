//! Attention on a device. Few queries over the same keys use one launch, which reads keys and values in their
//! slots. Many queries use a [`Plan`].

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use ntl_kernels::{AttentionGroup, AttentionQuery, Heads, KvSlices, Phase, Visible};

use super::batched::{Batches, Plan};
use super::bias::RelativeBias;
use super::heads::QkvSource;
use super::slot_groups::SlotGroup;
use crate::ops::StepInputs;

/// Minimum average number of queries per key for a plan. The slot kernel reads keys and values again for each
/// query, from the GPU's cache: 64 queries over 350 keys of T5-3B read 180 MB per layer, which takes an H200
/// about 40 µs. A plan gathers them once and multiplies with cuBLAS, in five launches per batch, which takes
/// the host about as long. (Calculated, not measured.)
const QUERIES_PLANNED: usize = 64;

/// Maximum number of rows of a pass that CUDA graphs repeat. With more rows, the GPU decides how long a step
/// takes, not the host (`docs/decisions/014-gpu-step-costs.md`).
const REPEATED_ROWS_MAX: usize = 32;

/// Minimum number of slots in a table of such a pass.
const SLOTS_MIN: usize = 64;

/// Number of keys after which a launch may split the keys of rows into more parts.
const KEYS_OF_A_PART: usize = 256;
#[cfg(feature = "cuda")]
const _: () = assert!(KEYS_OF_A_PART == ntl_cuda::KEYS_OF_A_PART);

/// Must equal the number of entries per row in [`ntl_cuda::SlotAttention`].
const ROW_NUMBERS: usize = 6;
#[cfg(feature = "cuda")]
const _: () = assert!(ROW_NUMBERS == ntl_cuda::ROW_NUMBERS);

/// All queries of a pass, in order, and the keys that they attend to.
pub(crate) struct SlotView<'a> {
    pub(crate) groups: Vec<SlotGroup<'a>>,
    pub(crate) bias: Option<&'a RelativeBias>,
}

/// The slots of a pass's rows and the keys that its queries attend to, the same in every layer. Created with
/// one upload.
pub(crate) struct PassKeys<'a> {
    /// All numbers of the pass: the slots of its rows, then the tables of its views.
    numbers: Tensor,
    /// The slot of each row, u32 `[R]`.
    pub(crate) written: Tensor,
    /// One attention per view, in the order of the views.
    pub(crate) attentions: Vec<ViewAttention<'a>>,
}

pub(crate) enum ViewAttention<'a> {
    Rows(SlotRows<'a>),
    Planned(Plan<'a>),
}

/// The keys that rows attend to, in the format of the kernel.
pub(crate) struct SlotRows<'a> {
    /// u32: the entries of each row, then slots; see [`SlotRows::table`].
    table: Tensor,
    rows: usize,
    /// Maximum number of keys that a row sees.
    keys_max: usize,
    bias: Option<&'a RelativeBias>,
}

impl<'a> PassKeys<'a> {
    pub(crate) fn new(written: &[u32], views: Vec<SlotView<'a>>, device: &Device) -> Result<Self> {
        let mut numbers = written.to_vec();
        let placed: Vec<_> = views.into_iter().map(|view| PlacedView::new(view, &mut numbers)).collect();
        let count = numbers.len();
        let numbers = Tensor::from_vec(numbers, count, device)?;
        let attentions = placed.into_iter().map(|view| view.attention(&numbers)).collect::<Result<_>>()?;
        Ok(Self { written: numbers.narrow(0, 0, written.len())?, numbers, attentions })
    }

    /// Returns the data of the pass for CUDA graphs, or `None` if it has many rows or is not computed by the
    /// kernel for rows.
    pub(crate) fn inputs(&self) -> Option<StepInputs> {
        let rows = self.written.elem_count();
        let mut shape = vec![rows];
        for attention in &self.attentions {
            let ViewAttention::Rows(SlotRows { table, keys_max, .. }) = attention else { return None };
            shape.extend([table.elem_count(), keys_max / KEYS_OF_A_PART]);
        }
        (rows <= REPEATED_ROWS_MAX).then(|| StepInputs { shape, tables: vec![self.numbers.clone()] })
    }
}

/// A view whose entries are in the table of a pass, which is not on the device yet.
enum PlacedView<'a> {
    Rows { view: SlotView<'a>, table: Range<usize> },
    Planned { batches: Batches, bias: Option<&'a RelativeBias> },
}

impl<'a> PlacedView<'a> {
    fn new(view: SlotView<'a>, numbers: &mut Vec<u32>) -> Self {
        if is_planned(&view.groups) {
            return Self::Planned { batches: Batches::new(view.groups, numbers), bias: view.bias };
        }
        let from = numbers.len();
        numbers.extend(SlotRows::table(&view.groups));
        Self::Rows { view, table: from..numbers.len() }
    }

    fn attention(self, numbers: &Tensor) -> Result<ViewAttention<'a>> {
        match self {
            Self::Planned { batches, bias } => {
                Ok(ViewAttention::Planned(batches.plan(numbers.clone(), bias)))
            }
            Self::Rows { view: SlotView { groups, bias }, table } => {
                let table = numbers.narrow(0, table.start, table.len())?;
                Ok(ViewAttention::Rows(SlotRows::new(&groups, table, bias)))
            }
        }
    }
}

fn is_planned(groups: &[SlotGroup<'_>]) -> bool {
    let pairs: usize = groups.iter().map(SlotGroup::pairs).sum();
    let keys: usize = groups.iter().map(SlotGroup::keys).sum();
    pairs >= QUERIES_PLANNED * keys && groups.iter().all(SlotGroup::has_ranges)
}

impl ViewAttention<'_> {
    /// Computes softmax attention of `q` f32 `[R, H * D]` over one layer of the cache, in `dtype` or fp8.
    /// Returns `[R, H * D]` in `dtype`.
    pub(crate) fn attend(&self, q: &Tensor, slab: &Tensor, heads: Heads, dtype: DType) -> Result<Tensor> {
        match self {
            Self::Rows(rows) => rows.attend(q, slab, heads, dtype),
            Self::Planned(plan) => plan.attend(QkvSource::cached(q, slab, heads, dtype)?, heads),
        }
    }
}

impl<'a> SlotRows<'a> {
    fn new(groups: &[SlotGroup<'_>], table: Tensor, bias: Option<&'a RelativeBias>) -> Self {
        let seen = groups.iter().flat_map(|group| {
            group.queries.iter().map(|query| {
                let [from, to] = group.range(query);
                to - from
            })
        });
        Self { table, rows: seen.clone().count(), keys_max: seen.max().unwrap_or(0), bias }
    }

    /// Returns the table. The entries of each row are:
    ///
    /// 1. the start of the slots that it shares with its group;
    /// 2. the number of these slots;
    /// 3. the start of its own slots;
    /// 4. the index, in both lists together, of the first slot that it sees;
    /// 5. the end of the slots that it sees;
    /// 6. its own index.
    ///
    /// The slots follow the entries of all rows. If CUDA graphs can repeat the pass, their number is rounded
    /// up to a power of two, so that tables of many steps have the same size.
    fn table(groups: &[SlotGroup<'_>]) -> Vec<u32> {
        let mut rows = Vec::new();
        let mut slots = Vec::new();
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
        if rows.len() <= REPEATED_ROWS_MAX * ROW_NUMBERS {
            slots.resize(slots.len().next_power_of_two().max(SLOTS_MIN), 0);
        }
        rows.append(&mut slots);
        rows
    }

    fn attend(&self, q: &Tensor, slab: &Tensor, heads: Heads, dtype: DType) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if crate::ops::own_kernels::OwnKernel::SlotAttention.computes(q) {
            let bias = self.bias.map(|bias| bias.table(q.device())).transpose()?;
            let attention = ntl_cuda::SlotAttention {
                table: &self.table,
                rows: self.rows,
                keys_max: self.keys_max,
                heads: heads.queries,
                num_kv_heads: heads.keys,
                scale: heads.scale,
                cap: heads.cap,
                bias: bias.as_ref(),
            };
            return attention.attend(q, slab, dtype);
        }
        self.composed(q, slab, heads, dtype)
    }

    /// Computes the same row by row, if there is no kernel for it.
    fn composed(&self, q: &Tensor, slab: &Tensor, heads: Heads, dtype: DType) -> Result<Tensor> {
        let numbers: Vec<u32> = self.table.to_vec1()?;
        let (rows, slots) = numbers.split_at(self.rows * ROW_NUMBERS);
        let capacity = slab.dim(0)? as u32 / 2;
        let q_rows = q.to_vec2::<f32>()?;
        let mut out = Vec::new();
        for (row, q) in rows.as_chunks::<ROW_NUMBERS>().0.iter().zip(&q_rows) {
            let [shared, count, own, hidden, end, position] = row.map(|number| number as usize);
            debug_assert!(end - hidden <= self.keys_max);
            let mut seen = Vec::with_capacity(end);
            for index in 0..end {
                seen.push(if index < count { slots[shared + index] } else { slots[own + index - count] });
            }
            let keys = read_slab(slab, seen.iter().copied())?;
            let values = read_slab(slab, seen.iter().map(|slot| slot + capacity))?;
            let own = KvSlices { keys: &keys, values: &values };
            let queries = vec![AttentionQuery { visible: Visible::First(end), hidden, position }];
            let group = AttentionGroup { before: Vec::new(), own, queries, phase: Phase::Decode };
            out.extend(ntl_kernels::attend(q, &[group], heads, self.bias.map(|bias| &bias.values)));
        }
        Tensor::from_vec(out, q.dims2()?, q.device())?.to_dtype(dtype)
    }
}

/// Returns rows of `slab`, one after the other.
fn read_slab(slab: &Tensor, rows: impl Iterator<Item = u32>) -> Result<Vec<f32>> {
    let rows = Tensor::from_iter(rows, slab.device())?;
    slab.index_select(&rows, 0)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}
