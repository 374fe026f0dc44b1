//! Blocks of prompts that were computed before, by the tokens that lead to them.
//!
//! A block's keys and values depend on all tokens up to its end and on nothing else, so any prompt that begins
//! with the same tokens may use it. Invariants: the kept blocks take no more than `bytes_max`; a block is kept
//! only while the one before it is.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::context::{BLOCK, Block};

/// The block before (0 for none) and a block's own tokens.
type Key = (u64, Box<[u32]>);

struct Kept {
    /// What its successors call it; never 0.
    name: u64,
    block: Arc<Block>,
    /// When it was used last.
    used: u64,
}

/// Blocks by their tokens, the least recently used forgotten first.
pub(super) struct PrefixCache {
    kept: HashMap<Key, Kept>,
    by_use: BTreeMap<u64, Key>,
    bytes: usize,
    bytes_max: usize,
    /// Counts uses and names.
    clock: u64,
}

impl PrefixCache {
    /// An empty one. 0 bytes keep nothing.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { kept: HashMap::new(), by_use: BTreeMap::new(), bytes: 0, bytes_max, clock: 0 }
    }

    /// Whether it keeps anything at all.
    pub(super) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// The longest kept beginning of `tokens`.
    pub(super) fn longest(&mut self, tokens: &[u32]) -> Vec<Arc<Block>> {
        let keys = self.walk(tokens);
        let blocks = keys.iter().filter_map(|key| Some(Arc::clone(&self.kept.get(key)?.block))).collect();
        self.touch(keys);
        blocks
    }

    /// Keeps the full blocks of a prompt, which begin at its beginning.
    pub(super) fn keep(&mut self, tokens: &[u32], blocks: &[Arc<Block>]) {
        let mut keys = self.walk(tokens);
        let full = tokens.chunks_exact(BLOCK).zip(blocks);
        for (tokens, block) in full.skip(keys.len()) {
            if self.bytes + block.bytes() > self.bytes_max && !self.make_room(block.bytes(), &keys) {
                break;
            }
            let before = keys.last().and_then(|key| self.kept.get(key)).map_or(0, |kept| kept.name);
            let key: Key = (before, tokens.into());
            let (name, used) = (self.tick(), self.tick());
            self.bytes += block.bytes();
            self.by_use.insert(used, key.clone());
            self.kept.insert(key.clone(), Kept { name, block: Arc::clone(block), used });
            keys.push(key);
        }
        self.touch(keys);
    }

    /// The keys of the kept blocks that `tokens` begin with.
    fn walk(&self, tokens: &[u32]) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut before = 0;
        for tokens in tokens.chunks_exact(BLOCK) {
            let key: Key = (before, tokens.into());
            let Some(kept) = self.kept.get(&key) else { break };
            before = kept.name;
            keys.push(key);
        }
        keys
    }

    /// Marks a chain of blocks as just used, the last one first: so whatever is forgotten first has no successor.
    fn touch(&mut self, keys: Vec<Key>) {
        for key in keys.into_iter().rev() {
            let now = self.tick();
            if let Some(kept) = self.kept.get_mut(&key) {
                self.by_use.remove(&kept.used);
                kept.used = now;
                self.by_use.insert(now, key);
            }
        }
    }

    /// Forgets what was not used for longest until `bytes` more fit. False when only `spared` would be left to
    /// forget.
    fn make_room(&mut self, bytes: usize, spared: &[Key]) -> bool {
        while self.bytes + bytes > self.bytes_max {
            let oldest = self.by_use.iter().find(|(_, key)| !spared.contains(key)).map(|(&used, _)| used);
            let Some(key) = oldest.and_then(|used| self.by_use.remove(&used)) else { return false };
            if let Some(forgotten) = self.kept.remove(&key) {
                self.bytes -= forgotten.block.bytes();
            }
        }
        true
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}
