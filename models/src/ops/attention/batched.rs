//! Attention in candle's operations, for devices: many contexts in one product.
//!
//! The rows of a context share its keys, and a mask says which of them each row sees: prefixes, chains and trees alike.
//! Contexts of similar sizes form a batch, in which the shorter ones are padded. A step launches a fixed number of kernels
//! for each batch and one copy for each piece of the cache, and nothing row by row.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use candle_core::{D, DType, Device, Result, Tensor};
use ntl_kernels::Heads;

use super::rows::{AttentionRow, KeyValues, RelativeBias};
use crate::ops::tensors::matmul;

/// Rows of a context in one batch; longer prompts are split, which bounds the memory of scores.
const ROWS_MAX: usize = 512;

/// Pairs of row and key in a batch, for each head; a batch of one context may have more.
const PAIRS_MAX: usize = 1 << 22;

/// Indices and masks of one step's attention, which are the same in every layer and therefore made once.
///
/// Serves calls whose rows differ only in the layer that their keys are from, and in how many positions are hidden.
#[derive(Default)]
pub(crate) struct AttentionPlans {
    /// By the number of positions that are hidden from each row.
    made: RefCell<Vec<(Vec<usize>, Rc<Plan>)>>,
}

struct Plan {
    batches: Vec<Batch>,
    /// For each row the place of its result in the output of all batches, `[R]`; none if rows are in that order.
    row_places: Option<Tensor>,
}

/// `C` contexts with `M` rows and `N` keys each.
struct Batch {
    contexts: usize,
    rows: usize,
    keys: usize,
    /// The query of each row, `[C * M]`; none if they are all queries in order.
    query_ids: Option<Tensor>,
    /// The places of the keys in all pieces as lanes `[sum of N * G, D]`: `[C * G * N]`.
    key_ids: Tensor,
    /// Added to scores, f32 `[C, H or 1, M, N]`: biases, and minus infinity for keys that a row does not see.
    mask: Option<Tensor>,
}

/// Rows of one context.
#[derive(Clone, Copy)]
struct Group<'a> {
    first: usize,
    rows: &'a [AttentionRow<'a>],
}

/// The distinct tensors that hold the keys of some rows, in the order of the rows.
#[derive(Default)]
struct Pieces<'a> {
    /// Each with the number of its first positions that are used.
    list: Vec<(&'a KeyValues, usize)>,
    index: HashMap<*const KeyValues, usize>,
}

/// See [`super::attend`].
pub(super) fn attend(
    q: &Tensor,
    rows: &[AttentionRow<'_>],
    heads: Heads,
    bias: Option<&RelativeBias>,
    plans: &AttentionPlans,
) -> Result<Tensor> {
    let groups = groups(rows);
    let pieces = Pieces::of(&groups)?;
    let plan = plans.get(rows, || Plan::new(&groups, &pieces, heads, bias, q.device()))?;
    let (keys, values) = (pieces.joined(|kv| &kv.keys)?, pieces.joined(|kv| &kv.values)?);
    let batch = |batch: &Batch| batch.attend(q, &keys, &values, heads);
    let parts = plan.batches.iter().map(batch).collect::<Result<Vec<_>>>()?;
    let all = if let [only] = &parts[..] { only.clone() } else { Tensor::cat(&parts, 0)? };
    plan.row_places.as_ref().map_or(Ok(all.clone()), |places| all.index_select(places, 0))
}

fn groups<'a>(rows: &'a [AttentionRow<'a>]) -> Vec<Group<'a>> {
    let mut first = 0;
    let pieces = rows.chunk_by(AttentionRow::shares_keys).flat_map(|rows| rows.chunks(ROWS_MAX));
    let group = |rows: &'a [AttentionRow<'a>]| {
        first += rows.len();
        Group { first: first - rows.len(), rows }
    };
    pieces.map(group).collect()
}

impl AttentionPlans {
    fn get(&self, rows: &[AttentionRow<'_>], make: impl FnOnce() -> Result<Plan>) -> Result<Rc<Plan>> {
        let hidden: Vec<usize> = rows.iter().map(|row| row.query.hidden).collect();
        if let Some((_, plan)) = self.made.borrow().iter().find(|(made_for, _)| *made_for == hidden) {
            return Ok(Rc::clone(plan));
        }
        let plan = Rc::new(make()?);
        self.made.borrow_mut().push((hidden, Rc::clone(&plan)));
        Ok(plan)
    }
}

impl Group<'_> {
    /// Own positions up to the last one that any of the rows sees.
    fn own_len(&self) -> usize {
        self.rows.iter().map(|row| row.query.visible.end()).max().unwrap_or(0)
    }

    fn before_len(&self) -> Result<usize> {
        self.rows[0].before.iter().map(|kv| kv.keys.dim(0)).sum()
    }

    fn len(&self) -> Result<usize> {
        Ok(self.before_len()? + self.own_len())
    }

    /// `[rows, keys]`, see [`MaskCodes`].
    fn codes(&self, keys: usize, codes: MaskCodes<'_>) -> Result<Vec<u32>> {
        let before = self.before_len()?;
        let mut all = vec![codes.unseen(); self.rows.len() * keys];
        for (row, all) in self.rows.iter().zip(all.chunks_exact_mut(keys.max(1))) {
            let own = (0..row.query.visible.count()).map(|index| before + row.query.visible.at(index));
            for (place, key) in (0..before).chain(own).enumerate().skip(row.query.hidden) {
                all[key] = codes.seen(place, row.query.position);
            }
        }
        Ok(all)
    }
}

/// Numbers for what the mask adds to a score: rows of the table of biases or, without biases, 0 for nothing and 1 for minus
/// infinity.
#[derive(Clone, Copy)]
struct MaskCodes<'a>(Option<&'a RelativeBias>);

impl MaskCodes<'_> {
    fn seen(self, key: usize, query: usize) -> u32 {
        self.0.map_or(0, |bias| bias.values.index(key, query) as u32)
    }

    fn unseen(self) -> u32 {
        self.0.map_or(1, |bias| bias.distances() as u32)
    }

    /// f32 `[C, H or 1, M, N]`; `None` where there is nothing to add.
    fn mask(self, codes: Vec<u32>, shape: [usize; 3], device: &Device) -> Result<Option<Tensor>> {
        let [contexts, rows, keys] = shape;
        if let Some(bias) = self.0 {
            let codes = Tensor::from_vec(codes, contexts * rows * keys, device)?;
            let mask = bias.table(device)?.index_select(&codes, 0)?;
            let mask = mask.reshape((contexts, rows, keys, ()))?.permute((0, 3, 1, 2))?;
            return mask.contiguous().map(Some);
        }
        if codes.iter().all(|&code| code == 0) {
            return Ok(None);
        }
        let value = |code| if code == 0 { 0.0 } else { f32::NEG_INFINITY };
        let values: Vec<f32> = codes.into_iter().map(value).collect();
        Tensor::from_vec(values, (contexts, 1, rows, keys), device).map(Some)
    }
}

impl<'a> Pieces<'a> {
    fn of(groups: &[Group<'a>]) -> Result<Self> {
        let mut pieces = Self::default();
        for group in groups {
            for kv in group.rows[0].before {
                pieces.add(kv, kv.keys.dim(0)?);
            }
            pieces.add(group.rows[0].kv, group.own_len());
        }
        Ok(pieces)
    }

    fn add(&mut self, kv: &'a KeyValues, used: usize) {
        let index = *self.index.entry(std::ptr::from_ref(kv)).or_insert(self.list.len());
        match self.list.get_mut(index) {
            Some((_, most)) => *most = used.max(*most),
            None => self.list.push((kv, used)),
        }
    }

    /// Keys, or values, of all pieces one behind the other, `[sum of N, G * D]`.
    fn joined(&self, part: impl Fn(&KeyValues) -> &Tensor) -> Result<Tensor> {
        let used = self.list.iter().map(|(kv, used)| part(kv).narrow(0, 0, *used));
        let used = used.collect::<Result<Vec<_>>>()?;
        if let [only] = &used[..] { Ok(only.clone()) } else { Tensor::cat(&used, 0) }
    }

    /// The places of a group's positions in all pieces.
    fn positions(&self, group: &Group<'_>) -> Result<Vec<usize>> {
        let mut starts = vec![0];
        for (_, used) in &self.list {
            starts.push(starts[starts.len() - 1] + used);
        }
        let start = |kv: &KeyValues| starts[self.index[&std::ptr::from_ref(kv)]];
        let mut positions = Vec::new();
        for kv in group.rows[0].before {
            positions.extend(start(kv)..start(kv) + kv.keys.dim(0)?);
        }
        positions.extend(start(group.rows[0].kv)..start(group.rows[0].kv) + group.own_len());
        Ok(positions)
    }
}

impl Plan {
    fn new(
        groups: &[Group<'_>],
        pieces: &Pieces<'_>,
        heads: Heads,
        bias: Option<&RelativeBias>,
        device: &Device,
    ) -> Result<Self> {
        // Padding at most doubles the rows, and the keys.
        let mut sizes: BTreeMap<(usize, usize), Vec<Group<'_>>> = BTreeMap::new();
        for group in groups {
            let size = (group.rows.len().next_power_of_two(), group.len()?.next_power_of_two());
            sizes.entry(size).or_default().push(*group);
        }
        let (mut batches, mut order) = (Vec::new(), Vec::new());
        for ((rows, keys), groups) in &sizes {
            for groups in groups.chunks((PAIRS_MAX / (rows * keys)).max(1)) {
                batches.push(Batch::new(groups, pieces, heads.keys, MaskCodes(bias), device, &mut order)?);
            }
        }
        let count = groups.iter().map(|group| group.rows.len()).sum();
        let mut places = vec![0; count];
        for (place, row) in order.iter().enumerate().rev() {
            // A row that pads its group occurs again; its first place counts.
            places[*row as usize] = place as u32;
        }
        let in_order = order.len() == count && places.iter().zip(0..).all(|(&place, row)| place == row);
        let row_places = if in_order { None } else { Some(Tensor::from_vec(places, count, device)?) };
        Ok(Self { batches, row_places })
    }
}

impl Batch {
    /// Appends the numbers of its rows to `order`.
    fn new(
        groups: &[Group<'_>],
        pieces: &Pieces<'_>,
        key_heads: usize,
        codes: MaskCodes<'_>,
        device: &Device,
        order: &mut Vec<u32>,
    ) -> Result<Self> {
        let contexts = groups.len();
        let rows = groups.iter().map(|group| group.rows.len()).max().unwrap_or(0);
        let lengths = groups.iter().map(Group::len).collect::<Result<Vec<_>>>()?;
        let keys = lengths.into_iter().max().unwrap_or(0);
        let (mut query_ids, mut key_ids, mut all_codes) = (Vec::new(), Vec::new(), Vec::new());
        for group in groups {
            let filled = |row| group.first + if row < group.rows.len() { row } else { 0 };
            query_ids.extend((0..rows).map(|row| filled(row) as u32));
            let positions = pieces.positions(group)?;
            let position = |key: usize| positions.get(key).unwrap_or(&positions[0]);
            for head in 0..key_heads {
                key_ids.extend((0..keys).map(|key| (position(key) * key_heads + head) as u32));
            }
            let codes = group.codes(keys, codes)?;
            all_codes.extend_from_slice(&codes);
            for _ in group.rows.len()..rows {
                all_codes.extend_from_slice(&codes[..keys]);
            }
        }
        let all_in_order = groups[0].first == 0 && query_ids.iter().zip(0..).all(|(&id, row)| id == row);
        order.extend_from_slice(&query_ids);
        let ids = |ids: Vec<u32>| -> Result<Tensor> {
            let count = ids.len();
            Tensor::from_vec(ids, count, device)
        };
        let query_ids = if all_in_order { None } else { Some(ids(query_ids)?) };
        let mask = codes.mask(all_codes, [contexts, rows, keys], device)?;
        Ok(Self { contexts, rows, keys, query_ids, key_ids: ids(key_ids)?, mask })
    }

    /// `q` `[R, H * D]`, keys and values of all pieces `[sum of N, G * D]`, to `[C * M, H * D]`.
    fn attend(&self, q: &Tensor, keys: &Tensor, values: &Tensor, heads: Heads) -> Result<Tensor> {
        let (contexts, rows, dim) = (self.contexts, self.rows, q.dim(1)? / heads.queries);
        let (shared, sharing) = (contexts * heads.keys, heads.queries / heads.keys);
        let lanes = |all: &Tensor| {
            let lanes = all.reshape(((), dim))?.index_select(&self.key_ids, 0)?;
            lanes.reshape((shared, self.keys, dim))
        };
        let q = match &self.query_ids {
            Some(ids) => q.index_select(ids, 0)?,
            None => q.narrow(0, 0, contexts * rows)?,
        };
        let q = q.reshape((contexts, rows, heads.keys, sharing, dim))?.permute((0, 2, 3, 1, 4))?;
        let q = q.contiguous()?.reshape((shared, sharing * rows, dim))?;
        let scores = matmul(&q, &lanes(keys)?.t()?)?.to_dtype(DType::F32)?;
        let scores = (scores * f64::from(heads.scale))?;
        let mut scores = scores.reshape((contexts, heads.queries, rows, self.keys))?;
        if let Some(mask) = &self.mask {
            scores = scores.broadcast_add(mask)?;
        }
        let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?.to_dtype(q.dtype())?;
        let weights = weights.reshape((shared, sharing * rows, self.keys))?;
        let sums = matmul(&weights, &lanes(values)?)?;
        let sums = sums.reshape((contexts, heads.keys, sharing, rows, dim))?.permute((0, 3, 1, 2, 4))?;
        sums.contiguous()?.reshape((contexts * rows, heads.queries * dim))
    }
}
