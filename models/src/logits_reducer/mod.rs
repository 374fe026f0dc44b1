//! Reduces a step's logits to the values that its rows request.
//!
//! On the CPU, full rows are returned, since they are already on the host. On a device, the logits stay
//! there: the argmax, the sums of a softmax and single logits are computed on the device. One transfer copies
//! them to the host, together with the full rows that were requested.

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor};
use ntl_core::contract::{Logits, LogitsRequest, LogitsSummary, Row};

use crate::gpu::waiting;
#[cfg(feature = "cuda")]
use crate::ops::own_kernels::OwnKernel;
use crate::ops::{ModelResult, Product, compute_error, uses_kernels};

/// Maximum number of id lists that are kept on the device.
const LISTS_MAX: usize = 32;

/// Elements of a row's summary: the largest logit, the sum of `exp(logit - max)`, the largest logit of known
/// ids, and the number of known ids starting at its first occurrence.
const SUMMARY: usize = 4;
#[cfg(feature = "cuda")]
const _: () = assert!(SUMMARY == ntl_cuda::SUMMARY);

/// Reduces the logits of one model.
pub(crate) struct LogitsReducer {
    /// Number of ids that the tokenizer knows. The output layer may have more.
    tokens: usize,
    /// Lists, the most recently used one first.
    lists: Vec<IdList>,
}

/// A requested list of ids, with its columns on the device.
struct IdList {
    ids: Arc<[u32]>,
    columns: Tensor,
}

/// Rows grouped by their requests.
#[derive(Default)]
struct RowsByRequest {
    /// Rows that request all logits.
    full: Vec<u32>,
    /// All other rows.
    reduced: Vec<u32>,
    lists: Vec<RowsOfList>,
}

/// Indices, among the reduced rows, of the rows that request the same list of ids.
struct RowsOfList {
    ids: Arc<[u32]>,
    places: Vec<u32>,
}

impl LogitsReducer {
    pub(crate) fn new(tokens: usize) -> Self {
        Self { tokens, lists: Vec::new() }
    }

    /// Reduces the logits `[R, vocab]` of `rows`, of any element type.
    pub(crate) fn reduce(&mut self, logits: Product, rows: &[Row]) -> ModelResult<Logits> {
        match logits {
            Product::Values { values, n } => Ok(Logits::new(values, n)?),
            Product::Tensor(logits) => self.reduce_tensor(&logits, rows),
        }
    }

    fn reduce_tensor(&mut self, logits: &Tensor, rows: &[Row]) -> ModelResult<Logits> {
        let (_, vocab) = logits.dims2().map_err(compute_error)?;
        let requested = RowsByRequest::new(rows);
        if uses_kernels(logits) || requested.reduced.is_empty() {
            return Ok(Logits::new(to_host(logits).map_err(compute_error)?, vocab)?);
        }
        let parts = self.parts(logits, &requested);
        let copied = parts.and_then(|parts| to_host(&Tensor::cat(&parts, 0)?));
        let mut copied = copied.map_err(compute_error)?;
        let mut summaries = requested.read(&mut copied, self.tokens.min(vocab), vocab).into_iter();
        let summaries = rows.iter().map(|row| match row.path.logits {
            LogitsRequest::All => None,
            LogitsRequest::Best | LogitsRequest::Ids(_) | LogitsRequest::Hidden => summaries.next(),
        });
        Ok(Logits::mixed(copied, vocab, summaries)?)
    }

    /// Returns the parts of logits `[R, vocab]` that must be copied to the host, in f32 and flattened, in the
    /// order in which [`RowsByRequest::read`] reads them: full rows, the summary of each reduced row, their
    /// logits list by list.
    fn parts(&mut self, logits: &Tensor, requested: &RowsByRequest) -> Result<Vec<Tensor>> {
        let reduced = select(logits, &requested.reduced)?;
        let mut parts = Vec::new();
        if !requested.full.is_empty() {
            parts.push(select(logits, &requested.full)?.flatten_all()?.to_dtype(DType::F32)?);
        }
        parts.push(self.summary(&reduced)?.flatten_all()?);
        for list in requested.lists.iter().filter(|list| !list.ids.is_empty()) {
            let columns = reduced.index_select(self.columns(&list.ids, logits)?, 1)?;
            parts.push(select(&columns, &list.places)?.flatten_all()?.to_dtype(DType::F32)?);
        }
        Ok(parts)
    }

    /// Returns f32 `[R, SUMMARY]` for `[R, vocab]`. The sum is NaN if a logit is NaN or infinite, or if all
    /// are minus infinity.
    pub(crate) fn summary(&self, logits: &Tensor) -> Result<Tensor> {
        let (rows, vocab) = logits.dims2()?;
        let tokens = self.tokens.min(vocab);
        #[cfg(feature = "cuda")]
        if OwnKernel::LogitsSummary.computes(logits) {
            return ntl_cuda::summarize(logits, tokens);
        }
        let values = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let summaries: Vec<f32> = values.iter().flat_map(|logits| summary(logits, tokens)).collect();
        Tensor::from_vec(summaries, (rows, SUMMARY), logits.device())
    }

    /// Returns ids as column indices into `logits`. Ids beyond the last column are clamped to it; `read`
    /// ignores them.
    fn columns(&mut self, ids: &Arc<[u32]>, logits: &Tensor) -> Result<&Tensor> {
        let list = match self.lists.iter().position(|list| same(&list.ids, ids)) {
            Some(place) => self.lists.remove(place),
            None => {
                let last = logits.dim(1)?.saturating_sub(1) as u32;
                let columns: Vec<u32> = ids.iter().map(|&id| id.min(last)).collect();
                let columns = Tensor::from_vec(columns, ids.len(), logits.device())?;
                IdList { ids: Arc::clone(ids), columns }
            }
        };
        self.lists.truncate(LISTS_MAX - 1);
        self.lists.insert(0, list);
        Ok(&self.lists[0].columns)
    }
}

impl RowsByRequest {
    fn new(rows: &[Row]) -> Self {
        let mut requested = Self::default();
        let none: Arc<[u32]> = Arc::new([]);
        for (index, row) in (0u32..).zip(rows) {
            let ids = match &row.path.logits {
                LogitsRequest::All => {
                    requested.full.push(index);
                    continue;
                }
                // The model replaces the summary by hidden states.
                LogitsRequest::Best | LogitsRequest::Hidden => &none,
                LogitsRequest::Ids(ids) => ids,
            };
            let place = requested.reduced.len() as u32;
            requested.reduced.push(index);
            match requested.lists.iter_mut().find(|list| same(&list.ids, ids)) {
                Some(list) => list.places.push(place),
                None => requested.lists.push(RowsOfList { ids: Arc::clone(ids), places: vec![place] }),
            }
        }
        requested
    }

    /// Removes the reduced rows from the end of the copied values and returns them. The full rows remain.
    fn read(&self, copied: &mut Vec<f32>, tokens: usize, vocab: usize) -> Vec<LogitsSummary> {
        let full = self.full.len() * vocab;
        let mut from = full + self.reduced.len() * SUMMARY;
        let (summaries, _) = copied[full..from].as_chunks::<SUMMARY>();
        let mut reduced: Vec<LogitsSummary> =
            summaries.iter().map(|summary| read_summary(summary, tokens)).collect();
        for RowsOfList { ids, places } in &self.lists {
            for &place in places {
                let row = &mut reduced[place as usize];
                row.ids = Arc::clone(ids);
                row.logits = copied[from..from + ids.len()].to_vec();
                from += ids.len();
                let beyond = ids.partition_point(|&id| (id as usize) < vocab);
                row.logits[beyond..].fill(f32::NEG_INFINITY);
            }
        }
        copied.truncate(full);
        reduced
    }
}

/// Reads a row of [`LogitsReducer::summary`], without ids.
fn read_summary(&[max, total, best, rank]: &[f32; SUMMARY], tokens: usize) -> LogitsSummary {
    // NaN equals nothing: no id has a rank then, and `total` is also NaN, so that the row is rejected.
    let id = if rank >= 1.0 { tokens - rank as usize } else { 0 };
    LogitsSummary {
        best_id: id as u32,
        best_logit: best,
        max,
        total: f64::from(total),
        ids: Arc::new([]),
        logits: Vec::new(),
    }
}

fn same(a: &Arc<[u32]>, b: &Arc<[u32]>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// Returns the rows of `x` with these numbers, or `x` itself if there are as many numbers as rows.
fn select(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    if rows.len() == x.dim(0)? {
        return Ok(x.clone());
    }
    x.index_select(&Tensor::from_slice(rows, rows.len(), x.device())?, 0)
}

/// Returns the summary of a row, computed as on a GPU.
fn summary(logits: &[f32], tokens: usize) -> [f32; SUMMARY] {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
    let known = &logits[..tokens];
    let best = known.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Ties go to the first id.
    let rank = known.iter().position(|&logit| logit >= best).map_or(0, |first| tokens - first);
    [max, total as f32, best, rank as f32]
}

/// Copies a tensor to the host. All logits pass through this function, so that tests can count them.
fn to_host(x: &Tensor) -> Result<Vec<f32>> {
    let x = x.flatten_all()?.to_dtype(DType::F32)?;
    let values = match &*x.storage_and_layout().0 {
        Storage::Cuda(storage) => whole(waiting(|| storage.to_cpu_storage())?, x.layout())?,
        _ => x.to_vec1()?,
    };
    #[cfg(test)]
    tests::COPIED.set(tests::COPIED.get() + values.len());
    Ok(values)
}

/// Returns the elements of a tensor whose storage was copied to the host, without a second copy if they are
/// the complete storage.
fn whole(storage: CpuStorage, layout: &Layout) -> Result<Vec<f32>> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((0, end))) if end == values.len() => Ok(values),
        (CpuStorage::F32(values), Some((from, to))) => Ok(values[from..to].to_vec()),
        _ => candle_core::bail!("expected contiguous logits in f32"),
    }
}
