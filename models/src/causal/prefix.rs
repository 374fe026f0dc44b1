//! The prefix cache: blocks of earlier prompts, indexed by the tokens that lead to them. A prompt that
//! departs from an earlier one within a block uses the block's first positions.
//!
//! A block's keys and values depend only on the adapter and the tokens up to its end, so any prompt with the
//! same adapter and prefix may use it. The time of a response shows whether its prefix was cached, so prompts
//! share blocks only if their salts are equal, too. Invariants: the cached blocks use at most `bytes_max`
//! bytes, a block is cached only while its predecessor is, and no block is the beginning of another one.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ntl_core::contract::{Adapter, ContextRequest, EvictableCache};

use super::block::{BLOCK, Block};

/// Minimum number of positions for which a part of a block is used, unless they complete the prompt.
const PART_MIN: usize = 4;

/// Prompts share blocks only if their scopes are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PrefixScope {
    /// See `ContextRequest::cache_salt`.
    salt: u64,
    /// The id of the adapter, or 0.
    adapter: u64,
}

impl PrefixScope {
    pub(super) fn of(request: ContextRequest<'_>) -> Self {
        Self { salt: request.cache_salt, adapter: request.adapter.map_or(0, Adapter::id) }
    }
}

/// The scope, the id of the previous block (0 for none) and a block's own tokens, which are fewer than
/// [`BLOCK`] only at the end of a prompt.
type Key = (PrefixScope, u64, Box<[u32]>);

struct CachedBlock {
    /// Id of the block in the keys of its successors; never 0.
    id: u64,
    /// The block, in several parts if the first positions were computed for another prompt.
    parts: Vec<Arc<Block>>,
    /// Clock of the last use.
    used: u64,
}

impl CachedBlock {
    fn bytes(&self) -> usize {
        bytes_of(&self.parts)
    }
}

fn bytes_of(blocks: &[Arc<Block>]) -> usize {
    blocks.iter().map(|block| block.bytes()).sum()
}

/// The positions at the beginning of a prompt that are cached.
#[derive(Default)]
pub(super) struct CachedPrefix {
    pub(super) blocks: Vec<Arc<Block>>,
    /// The parts of another block, whose first `rest_len` positions follow.
    pub(super) rest: Vec<Arc<Block>>,
    pub(super) rest_len: usize,
}

/// A prefix cache from which other engines can also evict when memory is scarce. Clones refer to the same
/// cache.
#[derive(Clone)]
pub(super) struct SharedPrefixCache {
    is_on: bool,
    cache: Arc<Mutex<PrefixCache>>,
}

impl SharedPrefixCache {
    /// Creates a cache; 0 bytes disable it.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { is_on: bytes_max > 0, cache: Arc::new(Mutex::new(PrefixCache::new(bytes_max))) }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PrefixCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EvictableCache for SharedPrefixCache {
    fn bytes(&self) -> u64 {
        self.lock().bytes as u64
    }

    fn evict(&self, bytes: u64) {
        let mut cache = self.lock();
        let left = cache.bytes.saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
        cache.evict_to(left, &[]);
    }
}

/// A prefix cache that evicts the least recently used block first.
pub(super) struct PrefixCache {
    /// Ordered, so that the block that begins with most of given tokens is next to them.
    blocks: BTreeMap<Key, CachedBlock>,
    by_use: BTreeMap<u64, Key>,
    bytes: usize,
    bytes_max: usize,
    /// Counter of uses and ids.
    clock: u64,
}

impl PrefixCache {
    /// Creates a cache; 0 bytes disable it.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { blocks: BTreeMap::new(), by_use: BTreeMap::new(), bytes: 0, bytes_max, clock: 0 }
    }

    /// Returns the longest cached prefix of `tokens` in this scope.
    pub(super) fn longest_prefix(&mut self, scope: PrefixScope, tokens: &[u32]) -> CachedPrefix {
        let mut keys = self.lookup(scope, tokens);
        let mut prefix = CachedPrefix::default();
        for cached in keys.iter().filter_map(|key| self.blocks.get(key)) {
            prefix.blocks.extend(cached.parts.iter().cloned());
        }
        let next = tokens.chunks(BLOCK).nth(keys.len()).unwrap_or_default();
        if let Some((key, common)) = self.most_similar(&(scope, self.last_id(&keys), next.into()))
            && (common >= PART_MIN || common == next.len())
            && let Some(cached) = self.blocks.get(&key)
        {
            let count = parts_of(&cached.parts, common).unwrap_or(cached.parts.len());
            prefix.rest.extend(cached.parts.iter().take(count).cloned());
            prefix.rest_len = common;
            keys.push(key);
        }
        self.touch(keys);
        prefix
    }

    /// Caches as many blocks of a prompt as fit, up to the first one that is not computed completely.
    pub(super) fn insert(&mut self, scope: PrefixScope, tokens: &[u32], blocks: &[Arc<Block>]) {
        let mut keys = self.lookup(scope, tokens);
        let mut blocks = blocks;
        for (index, tokens) in tokens.chunks(BLOCK).enumerate() {
            let Some(count) = parts_of(blocks, tokens.len()) else { break };
            let (parts, others) = blocks.split_at(count);
            blocks = others;
            if index < keys.len() {
                continue;
            }
            let key: Key = (scope, self.last_id(&keys), tokens.into());
            let similar = self.most_similar(&key);
            let Some(room) = self.bytes_max.checked_sub(bytes_of(parts)) else { break };
            let is_part = similar.as_ref().is_some_and(|(_, common)| *common == tokens.len());
            if is_part || !self.evict_to(room, &keys) {
                break;
            }
            if let Some((shorter, common)) = similar
                && common == shorter.2.len()
            {
                self.remove(&shorter);
            }
            let id = self.tick();
            let used = self.tick();
            self.bytes += bytes_of(parts);
            self.by_use.insert(used, key.clone());
            self.blocks.insert(key.clone(), CachedBlock { id, parts: parts.to_vec(), used });
            keys.push(key);
        }
        self.touch(keys);
    }

    /// Returns the keys of the cached blocks that form a prefix of `tokens` in this scope.
    fn lookup(&self, scope: PrefixScope, tokens: &[u32]) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut before = 0;
        for tokens in tokens.chunks(BLOCK) {
            let key: Key = (scope, before, tokens.into());
            let Some(cached) = self.blocks.get(&key) else { break };
            before = cached.id;
            keys.push(key);
        }
        keys
    }

    /// Returns the id of the last of these blocks, or 0.
    fn last_id(&self, keys: &[Key]) -> u64 {
        keys.last().and_then(|key| self.blocks.get(key)).map_or(0, |cached| cached.id)
    }

    /// Returns the cached block that begins with most of a key's tokens, and their number, if there are any.
    fn most_similar(&self, key: &Key) -> Option<(Key, usize)> {
        let (scope, before, tokens) = key;
        let smaller = self.blocks.range((Bound::Unbounded, Bound::Excluded(key))).next_back();
        let others = self.blocks.range((Bound::Included(key), Bound::Unbounded)).next();
        let mut best = None;
        for (found, _) in [smaller, others].into_iter().flatten() {
            let common = tokens.iter().zip(&found.2).take_while(|(a, b)| a == b).count();
            let least = best.as_ref().map_or(1, |(_, common)| common + 1);
            if (found.0, found.1) == (*scope, *before) && common >= least {
                best = Some((found.clone(), common));
            }
        }
        best
    }

    /// Marks a chain of blocks as just used, the last one first, so that the first block to be evicted has no
    /// successor.
    fn touch(&mut self, keys: Vec<Key>) {
        for key in keys.into_iter().rev() {
            let now = self.tick();
            if let Some(cached) = self.blocks.get_mut(&key) {
                self.by_use.remove(&cached.used);
                cached.used = now;
                self.by_use.insert(now, key);
            }
        }
    }

    /// Evicts the least recently used blocks until the rest use at most `bytes` bytes. Returns `false` if
    /// only `spared` blocks are left.
    fn evict_to(&mut self, bytes: usize, spared: &[Key]) -> bool {
        while self.bytes > bytes {
            let oldest = self.by_use.iter().find(|(_, key)| !spared.contains(key)).map(|(&used, _)| used);
            let Some(key) = oldest.and_then(|used| self.by_use.get(&used).cloned()) else { return false };
            self.remove(&key);
        }
        true
    }

    fn remove(&mut self, key: &Key) {
        if let Some(removed) = self.blocks.remove(key) {
            self.by_use.remove(&removed.used);
            self.bytes -= removed.bytes();
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// Returns how many of the first blocks have `len` positions together; `None` if they have fewer.
fn parts_of(blocks: &[Arc<Block>], len: usize) -> Option<usize> {
    let mut sum = 0;
    for (index, block) in blocks.iter().enumerate() {
        sum += block.len();
        if sum >= len {
            return Some(index + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::KvCache;
    use crate::ops::Placement;

    fn common(a: &[u32], b: &[u32]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_prompt_uses_the_longest_prefix_that_it_shares_with_any_cached_prompt() {
        let scope = PrefixScope { salt: 0, adapter: 0 };
        let mut kv_cache = KvCache::<()>::new(1, 2, &Placement::default());
        let mut prefixes = PrefixCache::new(usize::MAX);
        let mut state: u64 = 7;
        let mut random = |max: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % max
        };
        let mut cached: Vec<Vec<u32>> = vec![Vec::new()];
        for _ in 0..500 {
            let earlier = &cached[random(cached.len())];
            let mut tokens = earlier[..random(earlier.len() + 1)].to_vec();
            tokens.extend((0..random(3 * BLOCK)).map(|_| random(2) as u32));

            let CachedPrefix { mut blocks, rest, rest_len } = prefixes.longest_prefix(scope, &tokens);
            if rest_len > 0 {
                let copied = Block::first(&rest, rest_len, kv_cache.store()).unwrap().unwrap();
                assert_eq!(copied.len(), rest_len);
                blocks.push(Arc::new(copied));
            }
            let found: usize = blocks.iter().map(|block| block.len()).sum();
            let longest = cached.iter().map(|other| common(other, &tokens)).max().unwrap();
            assert!(found <= longest && longest < found + PART_MIN, "{found} of {longest} tokens");

            let left = tokens.len() - found;
            let positions = kv_cache.allocate(&[left]).unwrap().remove(0);
            let computed = Block::cut(positions, found, left, kv_cache.store()).unwrap();
            blocks.extend(computed.into_iter().map(Arc::new));
            prefixes.insert(scope, &tokens, &blocks);
            let bytes: usize = prefixes.blocks.values().map(CachedBlock::bytes).sum();
            assert_eq!(prefixes.bytes, bytes);
            assert_eq!(prefixes.by_use.len(), prefixes.blocks.len());
            cached.push(tokens);
        }
    }

    #[test]
    fn a_prompt_that_grows_token_by_token_is_cached_once_in_few_parts() {
        let scope = PrefixScope { salt: 0, adapter: 0 };
        let mut kv_cache = KvCache::<()>::new(1, 2, &Placement::default());
        let mut prefixes = PrefixCache::new(usize::MAX);
        for end in 1..=3 * BLOCK {
            let tokens: Vec<u32> = (0..end as u32).collect();
            let CachedPrefix { mut blocks, rest, rest_len } = prefixes.longest_prefix(scope, &tokens);
            if rest_len > 0 {
                blocks.push(Arc::new(Block::first(&rest, rest_len, kv_cache.store()).unwrap().unwrap()));
            }
            let found: usize = blocks.iter().map(|block| block.len()).sum();
            let positions = kv_cache.allocate(&[end - found]).unwrap().remove(0);
            let computed = Block::cut(positions, found, end - found, kv_cache.store()).unwrap();
            blocks.extend(computed.into_iter().map(Arc::new));
            prefixes.insert(scope, &tokens, &blocks);
            assert_eq!(prefixes.blocks.len(), end.div_ceil(BLOCK));
            assert!(prefixes.blocks.values().all(|cached| cached.parts.len() <= 2));
        }
    }
}
