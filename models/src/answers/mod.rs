//! From a step's logits to what its rows want to know of them.
//!
//! On the CPU rows are whole: they are there already. On a device the logits stay: the best id, the sums of a softmax and
//! single logits are worked out there, and one transfer brings them, with the whole rows of those that want them, to the host.

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use ntl_core::engine::{Logits, LogitsRequest, LogitsSummary, ModelError, Row};

use crate::ops::{Product, uses_kernels};

/// Columns that are added up in f32 before their sum goes to that of the others, which is f64: behind a large number, small ones
/// would be lost from a long f32 sum.
const BLOCK: usize = 32;

/// Lists of ids that are kept on the device.
const LISTS_MAX: usize = 32;

/// What is worked out of every reduced row: the largest logit, sums of `exp(logit - max)` of all ids and of padding, the
/// largest logit of known ids, and how many ids there are from its first place on.
const SUMMARY: usize = 5;

/// Answers the rows of one model.
pub(crate) struct Answers {
    /// Ids that the tokenizer knows; the columns behind them are padding.
    tokens: usize,
    /// Lists of ids that rows asked for, on the device, the last used first.
    lists: Vec<(Arc<[u32]>, Tensor)>,
    /// For each known id how many there are from it on, f32 `[1, tokens]`.
    ranks: Option<Tensor>,
}

/// Which rows want what.
struct Asked {
    /// Rows that want everything.
    whole: Vec<u32>,
    /// All others.
    reduced: Vec<u32>,
    /// Each list of ids with the places of its rows among the reduced ones.
    lists: Vec<(Arc<[u32]>, Vec<u32>)>,
}

impl Answers {
    pub(crate) fn new(tokens: usize) -> Self {
        Self { tokens, lists: Vec::new(), ranks: None }
    }

    /// The answers to `rows`, whose logits are `[R, vocab]` in any type.
    pub(crate) fn of(&mut self, logits: Product, rows: &[Row]) -> std::result::Result<Logits, ModelError> {
        match logits {
            Product::Values { values, n } => Ok(Logits::new(values, n)?),
            Product::Tensor(logits) => self.of_tensor(&logits, rows),
        }
    }

    fn of_tensor(&mut self, logits: &Tensor, rows: &[Row]) -> std::result::Result<Logits, ModelError> {
        let computed = |error| ModelError::Compute(Box::new(error));
        let (_, vocab) = logits.dims2().map_err(computed)?;
        let asked = Asked::by(rows);
        if uses_kernels(logits) || asked.reduced.is_empty() {
            return Ok(Logits::new(bring(logits).map_err(computed)?, vocab)?);
        }
        let parts = self.parts(&logits.to_dtype(DType::F32).map_err(computed)?, &asked);
        let mut brought = parts.and_then(|parts| bring(&Tensor::cat(&parts, 0)?)).map_err(computed)?;
        let mut reduced = asked.read(&mut brought, (self.tokens.min(vocab), vocab)).into_iter();
        let answer = |row: &Row| if row.path.logits == LogitsRequest::All { None } else { reduced.next() };
        Ok(Logits::mixed(brought, vocab, rows.iter().map(answer).collect::<Vec<_>>())?)
    }

    /// What has to be brought of logits f32 `[R, vocab]`, flattened, in the order in which [`Asked::read`] takes it: the
    /// summary of each reduced row, their logits list by list, whole rows.
    fn parts(&mut self, logits: &Tensor, asked: &Asked) -> Result<Vec<Tensor>> {
        let reduced = select(logits, &asked.reduced)?;
        let mut parts = vec![self.summary(&reduced)?.flatten_all()?];
        for (ids, places) in asked.lists.iter().filter(|(ids, _)| !ids.is_empty()) {
            let columns = reduced.index_select(self.list(ids, logits)?, 1)?;
            parts.push(select(&columns, places)?.flatten_all()?);
        }
        if !asked.whole.is_empty() {
            parts.push(select(logits, &asked.whole)?.flatten_all()?);
        }
        Ok(parts)
    }

    /// `[R, SUMMARY]` of `[R, vocab]`. A logit that is NaN or infinitely large makes the sums NaN, whatever a device takes for
    /// the largest then; so do rows of minus infinity.
    fn summary(&mut self, logits: &Tensor) -> Result<Tensor> {
        let (_, vocab) = logits.dims2()?;
        let tokens = self.tokens.min(vocab);
        let max = logits.max_keepdim(1)?;
        let [total, padding] = totals(logits, &max, tokens)?;
        let known = logits.narrow(1, 0, tokens)?;
        let best = if tokens == vocab { max.clone() } else { known.max_keepdim(1)? };
        // The first of equals, as on the host: candle's own argmax on a device may give any of them.
        let is_best = known.broadcast_eq(&best)?.to_dtype(DType::F32)?;
        let rank = is_best.broadcast_mul(self.ranks(tokens, logits.device())?)?.max_keepdim(1)?;
        Tensor::cat(&[max, total, padding, best, rank], 1)
    }

    fn ranks(&mut self, tokens: usize, device: &Device) -> Result<&Tensor> {
        let ranks = match self.ranks.take() {
            Some(ranks) => ranks,
            // Exact below 2^24.
            None => {
                let falling: Vec<f32> = (1..=tokens).rev().map(|rank| rank as f32).collect();
                Tensor::from_vec(falling, (1, tokens), device)?
            }
        };
        Ok(self.ranks.insert(ranks))
    }

    /// Ids as an index of the columns of `logits`. Those beyond are the last column, which is not read for them.
    fn list(&mut self, ids: &Arc<[u32]>, logits: &Tensor) -> Result<&Tensor> {
        let place = self.lists.iter().position(|(kept, _)| same(kept, ids));
        let entry = match place {
            Some(place) => self.lists.remove(place),
            None => {
                let last = logits.dim(1)?.saturating_sub(1) as u32;
                let columns: Vec<u32> = ids.iter().map(|&id| id.min(last)).collect();
                (Arc::clone(ids), Tensor::from_vec(columns, ids.len(), logits.device())?)
            }
        };
        self.lists.truncate(LISTS_MAX - 1);
        self.lists.insert(0, entry);
        Ok(&self.lists[0].1)
    }
}

impl Asked {
    fn by(rows: &[Row]) -> Self {
        let mut asked = Self { whole: Vec::new(), reduced: Vec::new(), lists: Vec::new() };
        let none: Arc<[u32]> = Arc::new([]);
        for (index, row) in (0u32..).zip(rows) {
            let ids = match &row.path.logits {
                LogitsRequest::All => {
                    asked.whole.push(index);
                    continue;
                }
                LogitsRequest::Best => &none,
                LogitsRequest::Ids(ids) => ids,
            };
            let place = asked.reduced.len() as u32;
            asked.reduced.push(index);
            match asked.lists.iter_mut().find(|(list, _)| same(list, ids)) {
                Some((_, places)) => places.push(place),
                None => asked.lists.push((Arc::clone(ids), vec![place])),
            }
        }
        asked
    }

    /// Takes the reduced rows off the front of what was brought; whole rows are left.
    fn read(&self, brought: &mut Vec<f32>, (tokens, vocab): (usize, usize)) -> Vec<LogitsSummary> {
        let mut from = self.reduced.len() * SUMMARY;
        let (summaries, _) = brought[..from].as_chunks::<SUMMARY>();
        let mut reduced: Vec<LogitsSummary> =
            summaries.iter().map(|summary| read_summary(summary, tokens)).collect();
        for (ids, places) in &self.lists {
            for &place in places {
                let row = &mut reduced[place as usize];
                row.ids = Arc::clone(ids);
                row.logits = brought[from..from + ids.len()].to_vec();
                from += ids.len();
                let beyond = ids.partition_point(|&id| (id as usize) < vocab);
                row.logits[beyond..].fill(f32::NEG_INFINITY);
            }
        }
        brought.drain(..from);
        reduced
    }
}

/// A row of [`Answers::summary`], without ids.
fn read_summary(&[max, total, padding, best, rank]: &[f32; SUMMARY], tokens: usize) -> LogitsSummary {
    // Nothing is equal to NaN: then no id is the best, and the first stands for none.
    let id = if rank >= 1.0 { tokens - rank as usize } else { 0 };
    LogitsSummary {
        tokens,
        best_id: id as u32,
        best_logit: best,
        max,
        total: f64::from(total),
        padding: f64::from(padding),
        ids: Arc::new([]),
        logits: Vec::new(),
    }
}

fn same(a: &Arc<[u32]>, b: &Arc<[u32]>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// Rows of `x` by number; all of them where there are as many numbers.
fn select(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    if rows.len() == x.dim(0)? {
        return Ok(x.clone());
    }
    x.index_select(&Tensor::from_slice(rows, rows.len(), x.device())?, 0)
}

/// `sum(exp(logit - max))` of whole rows and of their padding, which begins at `tokens`: `[R, 1]` each.
fn totals(logits: &Tensor, max: &Tensor, tokens: usize) -> Result<[Tensor; 2]> {
    let weights = logits.broadcast_sub(max)?.exp()?;
    let padding = match weights.dim(1)? - tokens {
        0 => max.zeros_like()?,
        padding => sums(&weights.narrow(1, tokens, padding)?)?,
    };
    Ok([sums(&weights)?, padding])
}

/// Sums f32 `[R, 1]` of the rows of `[R, N]`.
fn sums(x: &Tensor) -> Result<Tensor> {
    let (rows, columns) = x.dims2()?;
    let (blocks, rest) = (columns / BLOCK, columns % BLOCK);
    let mut parts = Vec::new();
    if blocks > 0 {
        parts.push(x.narrow(1, 0, columns - rest)?.reshape((rows, blocks, BLOCK))?.sum(2)?);
    }
    if rest > 0 {
        parts.push(x.narrow(1, columns - rest, rest)?.sum_keepdim(1)?);
    }
    Tensor::cat(&parts, 1)?.to_dtype(DType::F64)?.sum_keepdim(1)?.to_dtype(DType::F32)
}

/// All numbers of a tensor on the host. Logits come there in no other way.
fn bring(x: &Tensor) -> Result<Vec<f32>> {
    let values = x.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
    #[cfg(test)]
    tests::BROUGHT.set(tests::BROUGHT.get() + values.len());
    Ok(values)
}
