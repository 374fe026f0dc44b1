//! Queries, keys and values of a pass's rows, between the matmul and the cache.

use candle_core::{Result, Tensor};

use super::{AdaptedRows, Heads, Linear, Norm, PassRope, Scratch, apply_rope};

/// The normalised input of a layer's attention, and how queries, keys and values are computed from it.
pub(crate) struct QkvInput<'a> {
    /// `[R, hidden]`.
    pub(crate) x: &'a Tensor,
    pub(crate) qkv: &'a Linear<3>,
    pub(crate) heads: Heads,
    pub(crate) qk_norms: Option<&'a QkNorms>,
    pub(crate) rope: Option<&'a PassRope>,
    pub(crate) rows: &'a AdaptedRows,
}

/// The input from which only keys and values are computed, without positions.
pub(crate) struct KvInput<'a> {
    /// `[R, hidden]`.
    pub(crate) x: &'a Tensor,
    pub(crate) kv: &'a Linear<2>,
    pub(crate) heads: Heads,
    pub(crate) qk_norms: Option<&'a QkNorms>,
    pub(crate) rows: &'a AdaptedRows,
}

/// Normalisation of queries and keys: of each head (Qwen3), or of all heads of a row together (OLMo 2). The
/// widths of the weights determine which.
pub(crate) struct QkNorms {
    pub(crate) q: Norm,
    pub(crate) k: Norm,
}

impl QkvInput<'_> {
    /// Returns queries `[R, H * D]`, keys and values `[R, G * D]`.
    pub(crate) fn parts(&self) -> Result<[Tensor; 3]> {
        let [q, k, v] = self.qkv.parts(self.x, self.rows)?;
        let q = QkNorms::rotated(self.qk_norms.map(|norms| &norms.q), q, self.rope)?;
        let k = QkNorms::rotated(self.qk_norms.map(|norms| &norms.k), k, self.rope)?;
        Ok([q, k, v])
    }

    /// On a device: writes keys and values to the slots u32 `[R]` of `slab` `[2 * capacity, G * D]`. Returns
    /// the queries f32 `[R, H * D]`.
    pub(crate) fn store_and_query(&self, slab: &Tensor, slots: &Tensor) -> Result<Tensor> {
        let rows = ProjectedRows {
            qkv: &Scratch(self.qkv.together(self.x, self.rows)?),
            queries: self.heads.queries,
            keys: self.heads.keys,
            qk_norms: self.qk_norms,
            rope: self.rope,
        };
        let queries = rows.store(slab, slots)?;
        queries.ok_or_else(|| candle_core::Error::Msg("there are no query heads".to_owned()))
    }
}

impl KvInput<'_> {
    /// Returns keys and values, `[R, G * D]`.
    pub(crate) fn parts(&self) -> Result<[Tensor; 2]> {
        let [k, v] = self.kv.parts(self.x, self.rows)?;
        Ok([QkNorms::rotated(self.qk_norms.map(|norms| &norms.k), k, None)?, v])
    }

    /// On a device: writes keys and values to the slots u32 `[R]` of `slab` `[2 * capacity, G * D]`.
    pub(crate) fn store(&self, slab: &Tensor, slots: &Tensor) -> Result<()> {
        let rows = ProjectedRows {
            qkv: &Scratch(self.kv.together(self.x, self.rows)?),
            queries: 0,
            keys: self.heads.keys,
            qk_norms: self.qk_norms,
            rope: None,
        };
        rows.store(slab, slots).map(drop)
    }
}

/// Projections of rows on a device, and the operations before keys and values are stored in the cache.
pub(crate) struct ProjectedRows<'a> {
    /// f32 `[R, (H + 2 * G) * D]`: queries, keys, values.
    pub(crate) qkv: &'a Tensor,
    /// Number of query heads; 0 if only keys and values are projected.
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) qk_norms: Option<&'a QkNorms>,
    pub(crate) rope: Option<&'a PassRope>,
}

impl ProjectedRows<'_> {
    /// Normalises queries and keys, rotates them, and writes keys and values to the slots u32
    /// `[R]` of `slab` `[2 * capacity, G * D]`: keys of all slots, then their values. Returns the queries f32
    /// `[R, H * D]`, if there are any.
    pub(crate) fn store(&self, slab: &Tensor, slots: &Tensor) -> Result<Option<Tensor>> {
        #[cfg(feature = "cuda")]
        if super::own_kernels::OwnKernel::CacheStore.computes(self.qkv) {
            let rms = |norm: fn(&QkNorms) -> &Norm| self.qk_norms.map(|norms| norm(norms).rms()).transpose();
            let q_norm = rms(|norms| &norms.q)?;
            let k_norm = rms(|norms| &norms.k)?;
            let projections = ntl_cuda::Projections {
                qkv: self.qkv,
                heads: self.queries,
                num_kv_heads: self.keys,
                rope: self.rope.map(|rope| rope.table(self.qkv.device())).transpose()?,
                q_norm: q_norm.map(|(weight, _)| weight),
                k_norm: k_norm.map(|(weight, _)| weight),
                eps: q_norm.map_or(0.0, |(_, eps)| eps),
            };
            return projections.store(slab, slots);
        }
        self.composed(slab, slots)
    }

    /// Computes [`Self::store`] with candle's operations.
    fn composed(&self, slab: &Tensor, slots: &Tensor) -> Result<Option<Tensor>> {
        let (places, width) = slab.dims2()?;
        let queries = self.queries * width / self.keys;
        let keys = self.rotated(self.columns(queries, width)?, |norms| &norms.k)?;
        let values = self.columns(queries + width, width)?;
        for (from, part) in [(0, keys), (places / 2, values)] {
            let part = part.to_dtype(slab.dtype())?;
            for (row, slot) in slots.to_vec1::<u32>()?.into_iter().enumerate() {
                slab.slice_set(&part.narrow(0, row, 1)?, 0, from + slot as usize)?;
            }
        }
        if queries == 0 {
            return Ok(None);
        }
        self.rotated(self.columns(0, queries)?, |norms| &norms.q).map(Some)
    }

    fn columns(&self, first: usize, count: usize) -> Result<Tensor> {
        self.qkv.narrow(1, first, count)?.contiguous()
    }

    fn rotated(&self, x: Tensor, norm: fn(&QkNorms) -> &Norm) -> Result<Tensor> {
        QkNorms::rotated(self.qk_norms.map(norm), x, self.rope)
    }
}

impl QkNorms {
    /// Returns queries or keys, normalised and rotated if the model does so.
    fn rotated(norm: Option<&Norm>, x: Tensor, rope: Option<&PassRope>) -> Result<Tensor> {
        let x = match norm {
            Some(norm) => norm.by_head(&x)?,
            None => x,
        };
        match rope {
            Some(tables) => apply_rope(&x, tables),
            None => Ok(x),
        }
    }
}
