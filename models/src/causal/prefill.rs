//! The prompts of open contexts that are not computed completely.

use std::collections::HashSet;
use std::sync::Arc;

use candle_core::Result;
use ntl_core::contract::{ContextId, PathRow, PrefillProgress, Row};

use super::block::{BLOCK, Block, to_block_end};
use super::config::CausalConfig;
use super::prefix::{CachedPrefix, PrefixScope, SharedPrefixCache};
use crate::kv_cache::KvStore;
use crate::ops::{AdapterWeights, Placement};

/// The work for a token by its position, in the unit of `PrefillChunk::work`.
pub(super) struct TokenWork {
    /// Additional work per position that a layer attends to.
    per_position: f64,
    /// The window of each layer.
    windows: Vec<Option<usize>>,
}

impl TokenWork {
    pub(super) fn new(config: &CausalConfig, place: &Placement) -> Self {
        let attention = 2 * config.query_width();
        let projections = config.hidden_size * 2 * (config.query_width() + config.key_width());
        let mlp = config.hidden_size * config.intermediate_size * if config.gated { 3 } else { 2 };
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        let layers = windows.len().max(1);
        let per_position = place.attention_work() * attention as f64 / ((projections + mlp) * layers) as f64;
        Self { per_position, windows }
    }

    /// Returns the work for the next `count` tokens of a prompt.
    pub(super) fn of_next(&self, prompt: &Prefill, count: usize) -> f64 {
        self.between(prompt.computed(), prompt.computed() + count)
    }

    fn between(&self, from: usize, to: usize) -> f64 {
        self.before(to) - self.before(from)
    }

    /// Returns the work for the tokens before position `end`.
    fn before(&self, end: usize) -> f64 {
        let seen = self.windows.iter().map(|window| {
            let window = window.unwrap_or(end).min(end) as f64;
            window * (end as f64 - window / 2.0)
        });
        end as f64 + self.per_position * seen.sum::<f64>()
    }
}

/// The prompt of one context.
pub(super) struct Prefill {
    /// All tokens except the last.
    tokens: Vec<u32>,
    /// The last token, which is the first row.
    first_token: u32,
    scope: PrefixScope,
    pub(super) adapter: Option<Arc<AdapterWeights>>,
    /// Blocks at the beginning that are computed.
    pub(super) blocks: Vec<Arc<Block>>,
    /// Number of tokens that came from the prefix cache.
    cached: usize,
}

/// A prompt, and the work that the current call may do for it.
pub(super) struct Turn {
    pub(super) context: ContextId,
    pub(super) prompt: Prefill,
    pub(super) work: usize,
    pub(super) done: f64,
}

impl Prefill {
    /// `first_token` is the token after `tokens`.
    pub(super) fn new(
        tokens: Vec<u32>,
        first_token: u32,
        scope: PrefixScope,
        adapter: Option<Arc<AdapterWeights>>,
        prefixes: &SharedPrefixCache,
        store: &dyn KvStore,
    ) -> Result<Self> {
        let mut prompt = Self { tokens, first_token, scope, adapter, blocks: Vec::new(), cached: 0 };
        prompt.skip_cached(prefixes, store)?;
        Ok(prompt)
    }

    /// Returns the number of tokens before the first row.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the number of tokens that are computed.
    pub(super) fn computed(&self) -> usize {
        positions_of(&self.blocks)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.ends_after(0)
    }

    /// Returns whether the prompt ends with its next `count` tokens.
    pub(super) fn ends_after(&self, count: usize) -> bool {
        self.computed() + count == self.tokens.len()
    }

    /// Continues after the longest cached prefix if more tokens are cached than computed.
    fn skip_cached(&mut self, prefixes: &SharedPrefixCache, store: &dyn KvStore) -> Result<()> {
        let computed = self.computed();
        let CachedPrefix { mut blocks, rest, rest_len } =
            prefixes.lock().longest_prefix(self.scope, &self.tokens);
        if rest_len > 0 && positions_of(&blocks) + rest_len > computed {
            match Block::first(&rest, rest_len, store)? {
                Some(block) => blocks.push(Arc::new(block)),
                None => blocks.extend(whole_parts(rest, rest_len)),
            }
        }
        let end = positions_of(&blocks);
        if end > computed {
            self.blocks = blocks;
            self.cached += end - computed;
        }
        Ok(())
    }

    /// Caches the blocks for later prompts.
    pub(super) fn cache(&self, prefixes: &SharedPrefixCache) {
        prefixes.lock().insert(self.scope, &self.tokens, &self.blocks);
    }

    /// Returns the tokens up to the end of the block that is computed next.
    fn next_block(&self) -> &[u32] {
        let start = self.computed();
        &self.tokens[..self.tokens.len().min(start + to_block_end(start))]
    }

    pub(super) fn progress(&self, work: &TokenWork, done: f64) -> PrefillProgress {
        let left = work.between(self.computed(), self.tokens.len());
        let work_left = if self.is_complete() { 0 } else { (left.ceil() as usize).max(1) };
        PrefillProgress { work_left, work_done: done.ceil() as usize, cached_tokens: self.cached }
    }
}

impl Turn {
    pub(super) fn new(context: ContextId, prompt: Prefill, work: usize) -> Self {
        Self { context, prompt, work, done: 0.0 }
    }

    /// Returns the first row after the prompt.
    pub(super) fn first_row(&self) -> Row {
        Row { context: self.context, path: PathRow::new(None, self.prompt.first_token) }
    }

    /// Returns the tokens that the call computes next: as many complete blocks as there is work for, at least
    /// one, or the rest of the prompt.
    pub(super) fn next_tokens(&self, work: &TokenWork) -> &[u32] {
        let start = self.prompt.computed();
        let left = self.prompt.tokens.len() - start;
        let mut count = left.min(to_block_end(start));
        while count < left {
            let longer = left.min(count + BLOCK);
            if work.of_next(&self.prompt, longer) > self.work as f64 {
                break;
            }
            count = longer;
        }
        &self.prompt.tokens[start..start + count]
    }
}

/// The blocks that prompts of one call are computing. Other prompts with the same prefix wait for them.
#[derive(Default)]
pub(super) struct Claims(HashSet<(PrefixScope, Vec<u32>)>);

impl Claims {
    /// Divides prompts into those that can be computed now and those that wait for one of them.
    pub(super) fn divide<'a>(
        &mut self,
        turns: Vec<&'a mut Turn>,
        prefixes: &SharedPrefixCache,
        store: &dyn KvStore,
    ) -> Result<[Vec<&'a mut Turn>; 2]> {
        let mut now = Vec::new();
        let mut later = Vec::new();
        for turn in turns {
            turn.prompt.skip_cached(prefixes, store)?;
            if turn.prompt.is_complete() {
                continue;
            }
            let next = turn.prompt.next_block();
            if !prefixes.is_on() || self.0.insert((turn.prompt.scope, next.to_vec())) {
                now.push(turn)
            } else {
                later.push(turn)
            }
        }
        Ok([now, later])
    }
}

/// Returns the parts of a block that are within its first `len` positions.
fn whole_parts(parts: Vec<Arc<Block>>, len: usize) -> Vec<Arc<Block>> {
    let mut whole = Vec::with_capacity(parts.len());
    let mut left = len;
    for part in parts {
        if part.len() > left {
            break;
        }
        left -= part.len();
        whole.push(part);
    }
    whole
}

/// Returns the number of positions in blocks.
fn positions_of(blocks: &[Arc<Block>]) -> usize {
    blocks.iter().map(|block| block.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_a_token_grows_with_the_positions_that_it_attends_to() {
        let work = TokenWork { per_position: 0.01, windows: vec![None, Some(100)] };
        let at = |position: usize| {
            let seen = work.windows.iter().map(|window| window.unwrap_or(position).min(position));
            1.0 + work.per_position * seen.sum::<usize>() as f64
        };
        for (position, want) in [(0, 1.0), (50, 2.0), (100, 3.0), (1_000, 12.0)] {
            assert!((at(position) - want).abs() < 1e-9, "position {position}: {}", at(position));
        }
        for (from, to) in [(0, 50), (50, 300), (299, 300)] {
            let sum: f64 = (from..to).map(at).sum();
            let between = work.between(from, to);
            assert!((between / sum - 1.0).abs() < 0.02, "{from} to {to}: {between}, one by one {sum}");
        }
    }
}
