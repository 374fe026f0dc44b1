//! The prefix cache: blocks of earlier prompts, indexed by the tokens that lead to them.
//!
//! A block's keys and values depend only on the adapter and the tokens up to its end, so any prompt with the
//! same adapter and prefix may use it. The time of a response shows whether its prefix was cached, so prompts
//! share blocks only if their salts are equal, too. Invariants: the cached blocks use at most `bytes_max`
//! bytes, and a block is cached only while its predecessor is.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ntl_core::contract::{Adapter, ContextRequest, EvictableCache};

use super::block::{BLOCK, Block};

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

/// The scope, the id of the previous block (0 for none) and a block's own tokens.
type Key = (PrefixScope, u64, Box<[u32]>);

struct CachedBlock {
    /// Id of the block in the keys of its successors; never 0.
    id: u64,
    block: Arc<Block>,
    /// Clock of the last use.
    used: u64,
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
    blocks: HashMap<Key, CachedBlock>,
    by_use: BTreeMap<u64, Key>,
    bytes: usize,
    bytes_max: usize,
    /// Counter of uses and ids.
    clock: u64,
}

impl PrefixCache {
    /// Creates a cache; 0 bytes disable it.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { blocks: HashMap::new(), by_use: BTreeMap::new(), bytes: 0, bytes_max, clock: 0 }
    }

    /// Returns the longest cached prefix of `tokens` in this scope.
    pub(super) fn longest_prefix(&mut self, scope: PrefixScope, tokens: &[u32]) -> Vec<Arc<Block>> {
        let keys = self.lookup(scope, tokens);
        let blocks = keys.iter().filter_map(|key| Some(Arc::clone(&self.blocks.get(key)?.block))).collect();
        self.touch(keys);
        blocks
    }

    /// Caches as many full blocks of a prompt as fit.
    pub(super) fn insert(&mut self, scope: PrefixScope, tokens: &[u32], blocks: &[Arc<Block>]) {
        let mut keys = self.lookup(scope, tokens);
        let full = tokens.chunks_exact(BLOCK).zip(blocks);
        for (tokens, block) in full.skip(keys.len()) {
            let Some(room) = self.bytes_max.checked_sub(block.bytes()) else { break };
            if !self.evict_to(room, &keys) {
                break;
            }
            let before = keys.last().and_then(|key| self.blocks.get(key)).map_or(0, |cached| cached.id);
            let key: Key = (scope, before, tokens.into());
            let id = self.tick();
            let used = self.tick();
            self.bytes += block.bytes();
            self.by_use.insert(used, key.clone());
            self.blocks.insert(key.clone(), CachedBlock { id, block: Arc::clone(block), used });
            keys.push(key);
        }
        self.touch(keys);
    }

    /// Returns the keys of the cached blocks that form a prefix of `tokens` in this scope.
    fn lookup(&self, scope: PrefixScope, tokens: &[u32]) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut before = 0;
        for tokens in tokens.chunks_exact(BLOCK) {
            let key: Key = (scope, before, tokens.into());
            let Some(cached) = self.blocks.get(&key) else { break };
            before = cached.id;
            keys.push(key);
        }
        keys
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
                self.bytes -= evicted.block.bytes();
            }
        }
        true
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}
