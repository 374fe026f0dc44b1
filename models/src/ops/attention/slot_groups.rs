//! Queries on a device and the slots that they attend to.

use ntl_kernels::{AttentionQuery, Visible};

/// Maximum number of queries in a part of a group. Longer prompts are split, which bounds the memory of
/// scores.
const ROWS_MAX: usize = 512;

/// Consecutive queries that attend to the same positions.
pub(crate) struct SlotGroup<'a> {
    /// Slots of positions. Each query sees a range of them, or the first `before`.
    pub(super) slots: Vec<u32>,
    pub(super) before: usize,
    /// Slots that queries with their own path see after the first `before` slots.
    own: &'a [u32],
    pub(super) queries: Vec<AttentionQuery<'a>>,
}

impl<'a> SlotGroup<'a> {
    /// Creates a group of queries that see the first of these positions.
    pub(crate) fn packed(slots: Vec<u32>, queries: Vec<AttentionQuery<'a>>) -> Self {
        Self { slots, before: 0, own: &[], queries }
    }

    /// Creates a group of queries that see all positions `before`, and the positions of `own` that are
    /// visible to them.
    pub(crate) fn new(before: Vec<u32>, own: &'a [u32], mut queries: Vec<AttentionQuery<'a>>) -> Self {
        let mut slots = before;
        let mut before = slots.len();
        let Some(paths) = paths(&queries) else {
            let end = queries.iter().map(|query| query.visible.end()).max().unwrap_or(0);
            slots.extend_from_slice(&own[..end]);
            return Self { slots, before, own, queries };
        };
        // The common prefix of all paths is listed once.
        let common = common_prefix(&paths);
        let longest = paths.iter().copied().max_by_key(|path| path.len()).unwrap_or(&[]);
        if paths.iter().all(|path| longest.starts_with(path)) {
            slots.extend(longest.iter().map(|&node| own[node as usize]));
            for (query, path) in queries.iter_mut().zip(paths) {
                query.visible = Visible::First(path.len());
            }
        } else {
            slots.extend(longest[..common].iter().map(|&node| own[node as usize]));
            before += common;
            for (query, path) in queries.iter_mut().zip(paths) {
                query.visible = Visible::Nodes(&path[common..]);
            }
        }
        Self { slots, before, own, queries }
    }

    /// Returns whether every query sees a range of the slots.
    pub(super) fn has_ranges(&self) -> bool {
        self.queries.iter().all(|query| matches!(query.visible, Visible::First(_)))
    }

    /// Returns the range of indices that a query sees, as start and end.
    pub(super) fn range(&self, query: &AttentionQuery<'_>) -> [usize; 2] {
        [query.hidden, self.before + query.visible.count()]
    }

    /// Returns the number of slots before the slots that only this query sees: all of them if it sees a
    /// range.
    pub(super) fn shared(&self, query: &AttentionQuery<'_>) -> usize {
        match query.visible {
            Visible::Nodes(_) => self.before,
            Visible::First(_) => self.slots.len(),
        }
    }

    /// Returns the slots that only this query sees, after the shared ones; none if it sees a range.
    pub(super) fn own_slots(&self, query: &AttentionQuery<'_>) -> impl Iterator<Item = u32> {
        let nodes = match query.visible {
            Visible::Nodes(nodes) => nodes,
            Visible::First(_) => &[],
        };
        nodes.iter().map(|&node| self.own[node as usize])
    }

    /// Splits into parts of at most [`ROWS_MAX`] queries, each with only the positions that its queries see.
    pub(super) fn split(self) -> Vec<Self> {
        if self.queries.len() <= ROWS_MAX {
            return vec![self];
        }
        let mut parts = Vec::new();
        for queries in self.queries.chunks(ROWS_MAX) {
            let end = queries.iter().map(|query| self.range(query)[1]).max().unwrap_or(0);
            parts.push(Self { slots: self.slots[..end].to_vec(), queries: queries.to_vec(), ..self });
        }
        parts
    }

    /// Returns the slots, padded to `count` with the first one.
    pub(super) fn padded_slots(&self, count: usize) -> impl Iterator<Item = u32> {
        let padding = std::iter::repeat_n(self.slots[0], count - self.slots.len());
        self.slots.iter().copied().chain(padding)
    }

    pub(super) fn keys(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn pairs(&self) -> usize {
        self.queries.len() * self.slots.len()
    }
}

/// Returns the paths of the queries, if all have one.
fn paths<'a>(queries: &[AttentionQuery<'a>]) -> Option<Vec<&'a [u32]>> {
    let mut paths = Vec::with_capacity(queries.len());
    for query in queries {
        match query.visible {
            Visible::Nodes(path) => paths.push(path),
            Visible::First(_) => return None,
        }
    }
    Some(paths)
}

fn common_prefix(paths: &[&[u32]]) -> usize {
    let Some((first, others)) = paths.split_first() else { return 0 };
    let mut common = first.len();
    for path in others {
        common = first[..common].iter().zip(*path).take_while(|(a, b)| a == b).count();
    }
    common
}
