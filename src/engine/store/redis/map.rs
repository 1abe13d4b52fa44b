//! Who has which slot, and the connections to them.

use std::collections::BTreeSet;
use std::fmt;
use std::slice;
use std::sync::Arc;

use super::link::Link;
use super::slots::{Place, Range, SLOTS};

/// One primary and the connection to it.
pub(super) struct Node {
    pub(super) place: Place,
    /// What it is called in metrics.
    pub(super) name: Arc<str>,
    pub(super) link: Link,
}

/// Nobody has this slot.
const NOBODY: u16 = u16::MAX;

#[derive(Default)]
pub(super) struct Map {
    pub(super) nodes: Vec<Arc<Node>>,
    /// For each slot the index of its node; empty before there is a map.
    owners: Vec<u16>,
    pub(super) ranges: Vec<Range>,
}

impl Map {
    /// `nodes` are those that `ranges` name as primaries.
    pub(super) fn new(nodes: Vec<Arc<Node>>, ranges: Vec<Range>) -> Map {
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        for range in &ranges {
            let node = nodes.iter().position(|node| node.place == range.primary);
            let node = node.and_then(|n| u16::try_from(n).ok()).unwrap_or(NOBODY);
            owners[usize::from(range.first)..=usize::from(range.last.max(range.first))].fill(node);
        }
        Map { nodes, owners, ranges }
    }

    pub(super) fn is_known(&self) -> bool {
        !self.owners.is_empty()
    }

    pub(super) fn node(&self, slot: u16) -> Option<&Arc<Node>> {
        let owner = *self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(owner))
    }

    /// All servers, replicas too.
    pub(super) fn places(&self) -> BTreeSet<Place> {
        let all =
            |range: &Range| [slice::from_ref(&range.primary), range.replicas.as_slice()].concat();
        self.ranges.iter().flat_map(all).collect()
    }

    /// Those that took the place of a primary: they had no slots before, and have those of one that
    /// has none any more. A server that is given slots while the other keeps some is no successor.
    pub(super) fn promoted(&self, before: &Map) -> Vec<&Arc<Node>> {
        let is_in = |map: &Map, place: &Place| map.nodes.iter().any(|node| node.place == *place);
        let gone = before.ranges.iter().filter(|range| !is_in(self, &range.primary));
        let successors = gone.filter_map(|range| self.node(range.first));
        let mut new: Vec<_> = successors.filter(|node| !is_in(before, &node.place)).collect();
        new.sort_by(|a, b| a.place.cmp(&b.place));
        new.dedup_by(|a, b| a.place == b.place);
        new
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.nodes.iter().map(|node| &*node.name);
        f.debug_list().entries(names).finish()
    }
}
