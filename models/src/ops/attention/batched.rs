//! Attention in candle's operations, for devices: rows by context, many contexts in one product.
//!
//! The rows of a context share its keys, and a mask says what each row sees of them: prefixes, chains and trees alike.
//! Contexts of about one size make up a batch, whose shorter ones are padded. So a step takes a fixed number of
//! kernels, and one copy for each piece of the cache; nothing is launched row by row.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use candle_core::{D, DType, Device, Result, Tensor};
use ntl_kernels::Heads;

use super::rows::{AttentionRow, KeyValues, RelativeBias};
use crate::ops::tensors::matmul;

/// Rows of a context that are batched as one: longer prompts are cut, so that scores stay within memory.
const ROWS_MAX: usize = 512;

/// Pairs of row and key in a batch, for each head; a single context may have more.
const PAIRS_MAX: usize = 1 << 22;

/// What one step's attention needs beside queries, keys and values. It is the same in every layer, and so it is made
/// and taken to the device once.
///
/// Serves calls whose rows differ only in the layer that their keys are from, and in how much of them is hidden.
#[derive(Default)]
pub(crate) struct AttentionPlans {
    /// By what is hidden from each row.
    made: RefCell<Vec<(Vec<usize>, Rc<Plan>)>>,
}

/// How rows become batches, and batches rows again.
struct Plan {
    batches: Vec<Batch>,
    /// Where each row's result stands behind the batches `[R]`, unless it is where the row is.
    back: Option<Tensor>,
}

/// `C` contexts with `M` rows and `N` keys each.
struct Batch {
    contexts: usize,
    rows: usize,
    keys: usize,
    /// Which query each of the rows is, `[C * M]`, unless they are all of them in order.
    query_ids: Option<Tensor>,
    /// Which of the lanes `[sum of N * G, D]` the keys are, `[C * G * N]`.
    key_ids: Tensor,
    /// What is added to scores, f32 `[C, H or 1, M, N]`: biases, and minus infinity where a row does not look.
    added: Option<Tensor>,
}

/// Rows of one context.
#[derive(Clone, Copy)]
struct Group<'a> {
    /// Number of the first one.
    first: usize,
    rows: &'a [AttentionRow<'a>],
}

/// Everything that some rows have keys in: each once, in the order of the rows.
#[derive(Default)]
struct Pieces<'a> {
    /// With the number of its first positions that are used at all.
    list: Vec<(&'a KeyValues, usize)>,
    index: HashMap<*const KeyValues, usize>,
}

/// Softmax attention; what [`super::attend`] says of its arguments and result.
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
    plan.back.as_ref().map_or(Ok(all.clone()), |back| all.index_select(back, 0))
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
    /// Own positions that any of the rows sees, or that stand before one of those.
    fn own_len(&self) -> usize {
        self.rows.iter().map(|row| row.query.visible.end()).max().unwrap_or(0)
    }

    /// Positions before the own ones.
    fn before_len(&self) -> Result<usize> {
        self.rows[0].before.iter().map(|kv| kv.keys.dim(0)).sum()
    }

    fn len(&self) -> Result<usize> {
        Ok(self.before_len()? + self.own_len())
    }

    /// For each row and each of `keys` keys what is added to their score, by number: see [`Codes`].
    fn codes(&self, keys: usize, codes: Codes<'_>) -> Result<Vec<u32>> {
        let before = self.before_len()?;
        let mut all = vec![codes.unseen(); self.rows.len() * keys];
        for (row, all) in self.rows.iter().zip(all.chunks_exact_mut(keys.max(1))) {
            let own = (0..row.query.visible.len()).map(|index| before + row.query.visible.at(index));
            for (place, key) in (0..before).chain(own).enumerate().skip(row.query.hidden) {
                all[key] = codes.seen(place, row.query.position);
            }
        }
        Ok(all)
    }
}

/// Numbers for what is added to a score: rows of the table of biases, or of one that has nothing and minus infinity.
#[derive(Clone, Copy)]
struct Codes<'a>(Option<&'a RelativeBias>);

impl Codes<'_> {
    fn seen(self, key: usize, query: usize) -> u32 {
        self.0.map_or(0, |bias| bias.values.index(key, query) as u32)
    }

    fn unseen(self) -> u32 {
        self.0.map_or(1, |bias| bias.distances() as u32)
    }

    /// f32 `[C, H or 1, M, N]`; `None` where there is nothing to add.
    fn added(self, codes: Vec<u32>, shape: [usize; 3], device: &Device) -> Result<Option<Tensor>> {
        let [contexts, rows, keys] = shape;
        if let Some(bias) = self.0 {
            let codes = Tensor::from_vec(codes, contexts * rows * keys, device)?;
            let added = bias.table(device)?.index_select(&codes, 0)?;
            let added = added.reshape((contexts, rows, keys, ()))?.permute((0, 3, 1, 2))?;
            return added.contiguous().map(Some);
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

    /// Where the positions of a group stand in all of them.
    fn positions(&self, group: &Group<'_>) -> Result<Vec<usize>> {
        let mut starts = vec![0];
        for (_, used) in &self.list {
            starts.push(starts[starts.len() - 1] + used);
        }
        let start =
            |kv: &KeyValues| self.index.get(&std::ptr::from_ref(kv)).map_or(0, |&index| starts[index]);
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
        // Those of about one size: padding at most doubles the rows, and the keys.
        let mut sizes: BTreeMap<(usize, usize), Vec<Group<'_>>> = BTreeMap::new();
        for group in groups {
            let size = (group.rows.len().next_power_of_two(), group.len()?.next_power_of_two());
            sizes.entry(size).or_default().push(*group);
        }
        let (mut batches, mut order) = (Vec::new(), Vec::new());
        for ((rows, keys), groups) in &sizes {
            for groups in groups.chunks((PAIRS_MAX / (rows * keys)).max(1)) {
                batches.push(Batch::new(groups, pieces, heads.keys, (Codes(bias), device), &mut order)?);
            }
        }
        let count = groups.iter().map(|group| group.rows.len()).sum();
        let mut back = vec![0; count];
        for (place, row) in order.iter().enumerate().rev() {
            // A row that fills up its group comes again; the first one counts.
            back[*row as usize] = place as u32;
        }
        let in_order = order.len() == count && back.iter().zip(0..).all(|(&place, row)| place == row);
        let back = if in_order { None } else { Some(Tensor::from_vec(back, count, device)?) };
        Ok(Self { batches, back })
    }
}

impl Batch {
    /// Adds the numbers of its rows to `order`.
    fn new(
        groups: &[Group<'_>],
        pieces: &Pieces<'_>,
        key_heads: usize,
        (codes, device): (Codes<'_>, &Device),
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
        let added = codes.added(all_codes, [contexts, rows, keys], device)?;
        Ok(Self { contexts, rows, keys, query_ids, key_ids: ids(key_ids)?, added })
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
        if let Some(added) = &self.added {
            scores = scores.broadcast_add(added)?;
        }
        let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?.to_dtype(q.dtype())?;
        let weights = weights.reshape((shared, sharing * rows, self.keys))?;
        let sums = matmul(&weights, &lanes(values)?)?;
        let sums = sums.reshape((contexts, heads.keys, sharing, rows, dim))?.permute((0, 3, 1, 2, 4))?;
        sums.contiguous()?.reshape((contexts * rows, heads.queries * dim))
    }
}
