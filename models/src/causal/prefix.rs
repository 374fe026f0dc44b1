//! The prefix cache: blocks of earlier prompts, indexed by the tokens that lead to them. A prompt that
//! departs from an earlier one within a block uses the block's first positions.
//!
//! A block's keys and values depend only on the adapter and the tokens up to its end, so any prompt with the
//! same adapter and prefix may use it. The time of a response shows whether its prefix was cached, so prompts
//! share blocks only if their salts are equal, too. Invariants: the cached blocks use at most `bytes_max`
//! bytes, and a block is cached only while its predecessor is.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ntl_core::contract::{Adapter, ContextRequest, EvictableCache};

use super::block::{BLOCK, Block};

/// Minimum number of positions for which a part of a block is used.
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
    /// The block, in several parts if the first ones were computed for other prompts.
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
    /// A block whose first positions, this many, follow.
    pub(super) rest: Option<(Arc<Block>, usize)>,
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
        if let Some((key, mut left)) = self.most_similar(&(scope, self.last_id(&keys), next.into())) {
            for part in self.blocks.get(&key).iter().flat_map(|cached| &cached.parts) {
                if part.len() > left {
                    prefix.rest = (left > 0).then(|| (Arc::clone(part), left));
                    break;
                }
                prefix.blocks.push(Arc::clone(part));
                left -= part.len();
            }
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
            let is_part = self.most_similar(&key).is_some_and(|(_, common)| common == tokens.len());
            let Some(room) = self.bytes_max.checked_sub(bytes_of(parts)) else { break };
            if is_part || !self.evict_to(room, &keys) {
                break;
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

    /// Returns the cached block that begins with most of a key's tokens, and their number, if there are
    /// enough.
    fn most_similar(&self, key: &Key) -> Option<(Key, usize)> {
        let (scope, before, tokens) = key;
        let smaller = self.blocks.range((Bound::Unbounded, Bound::Excluded(key))).next_back();
        let others = self.blocks.range((Bound::Included(key), Bound::Unbounded)).next();
        let mut best = None;
        for (found, _) in [smaller, others].into_iter().flatten() {
            let common = tokens.iter().zip(&found.2).take_while(|(a, b)| a == b).count();
            let least = best.as_ref().map_or(PART_MIN, |(_, common)| common + 1);
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
            let Some(key) = oldest.and_then(|used| self.by_use.remove(&used)) else { return false };
            if let Some(evicted) = self.blocks.remove(&key) {
                self.bytes -= evicted.bytes();
            }
        }
        true
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

            let CachedPrefix { mut blocks, rest } = prefixes.longest_prefix(scope, &tokens);
            if let Some((block, len)) = rest {
                blocks.extend(block.first(len, kv_cache.store()).unwrap().map(Arc::new));
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
            cached.push(tokens);
        }
    }
}
