//! Finds the hulls that overlap a given one: a B+ tree by first address, in which each node knows the last address
//! below it.
//!
//! ```text
//!   inner   │ from 0, to 900 │ from 512, to 700 │        children in order of their first address
//!                 │                  │
//!   leaf    │ 0..8 │ 64..900 │  │ 512..520 │ 640..700 │  entries in any order
//! ```
//!
//! Insertion and removal take time in the logarithm of the number of entries, a search as much and more for each
//! entry found. All nodes are made at the beginning. A node is one run of memory whose entries are compared
//! without branches: at these sizes that is faster than a binary tree with fewer comparisons.
//!
//! Invariants: below child `i` no entry begins before `starts[i]` or after `starts[i + 1]`, and none ends behind
//! `ends[i]`; each node but the root has [`LEAST`] entries or more.

use super::tracker::Pool;
use std::ops::Range;

/// Entries of a node.
const WIDTH: usize = 12;
/// A node with fewer than these is filled up from a neighbour, or merged with it.
const LEAST: usize = 3;
/// Two neighbours with no more than these are merged.
const MERGED: usize = 9;

/// One entry: an item of the caller's with its hull, or a child with the hull of all below it.
#[derive(Clone, Copy)]
struct Entry {
    start: u64,
    end: u64,
    item: u32,
}

impl Entry {
    /// Overlaps nothing.
    const NONE: Self = Self { start: u64::MAX, end: 0, item: u32::MAX };
}

#[derive(Clone, Copy)]
struct Node {
    /// Behind `len` stands what overlaps nothing, so that a search need not know `len`.
    starts: [u64; WIDTH],
    ends: [u64; WIDTH],
    items: [u32; WIDTH],
    len: usize,
    is_leaf: bool,
    parent: u32,
}

impl Node {
    fn new(is_leaf: bool) -> Self {
        let Entry { start, end, item } = Entry::NONE;
        Self {
            starts: [start; WIDTH],
            ends: [end; WIDTH],
            items: [item; WIDTH],
            len: 0,
            is_leaf,
            parent: u32::MAX,
        }
    }

    fn is_full(&self) -> bool {
        self.len == WIDTH
    }

    fn get(&self, at: usize) -> Entry {
        Entry { start: self.starts[at], end: self.ends[at], item: self.items[at] }
    }

    fn set(&mut self, at: usize, entry: Entry) {
        (self.starts[at], self.ends[at], self.items[at]) = (entry.start, entry.end, entry.item);
    }

    fn push(&mut self, entry: Entry) {
        self.set(self.len, entry);
        self.len += 1;
    }

    fn insert(&mut self, at: usize, entry: Entry) {
        for to in (at..self.len).rev() {
            self.set(to + 1, self.get(to));
        }
        self.set(at, entry);
        self.len += 1;
    }

    /// Takes an entry out; the others keep their order.
    fn remove(&mut self, at: usize) -> Entry {
        let removed = self.get(at);
        for to in at..self.len - 1 {
            self.set(to, self.get(to + 1));
        }
        self.len -= 1;
        self.set(self.len, Entry::NONE);
        removed
    }

    /// Takes an entry out; the last one takes its place.
    fn swap_remove(&mut self, at: usize) {
        self.len -= 1;
        self.set(at, self.get(self.len));
        self.set(self.len, Entry::NONE);
    }

    fn position(&self, item: u32) -> usize {
        let is_here = |at: usize| u32::from(self.items[at] == item);
        (0..WIDTH).fold(0, |here, at| here | is_here(at) << at).trailing_zeros() as usize
    }

    /// Which entries overlap a hull, a bit for each.
    #[inline]
    fn overlapping(&self, hull: &Range<u64>) -> u32 {
        let hit = |at: usize| u32::from(self.starts[at] < hull.end) & u32::from(self.ends[at] > hull.start);
        (0..WIDTH).fold(0, |hits, at| hits | hit(at) << at)
    }

    /// The child that an entry belongs below: the last one that does not begin behind it.
    fn child_for(&self, start: u64) -> usize {
        let before: usize = self.starts.iter().map(|other| usize::from(*other <= start)).sum();
        before.saturating_sub(1)
    }

    fn start(&self) -> u64 {
        self.starts.iter().copied().min().unwrap_or(u64::MAX)
    }

    fn end(&self) -> u64 {
        self.ends.iter().copied().max().unwrap_or(0)
    }

    /// By first address. Children are so always.
    fn sort(&mut self) {
        let mut entries: [Entry; WIDTH] = std::array::from_fn(|at| self.get(at));
        entries[..self.len].sort_unstable_by_key(|entry| entry.start);
        (0..self.len).for_each(|at| self.set(at, entries[at]));
    }
}

/// The tree. Items are numbers from 0 of the caller's.
pub(super) struct Index {
    nodes: Pool<Node>,
    root: u32,
    /// The leaf of each item.
    homes: Vec<u32>,
}

impl Index {
    /// For items less than `items`.
    pub(super) fn new(items: usize) -> Self {
        let leaves = items / LEAST + 1;
        let mut nodes = Pool::new(leaves + leaves / (LEAST - 1) + 2);
        let root = nodes.take(Node::new(true));
        Self { nodes, root, homes: vec![u32::MAX; items] }
    }

    /// Calls with each item whose hull overlaps this one.
    pub(super) fn overlapping(&self, hull: &Range<u64>, found: &mut impl FnMut(u32)) {
        self.search(self.root, hull, found);
    }

    fn search(&self, node: u32, hull: &Range<u64>, found: &mut impl FnMut(u32)) {
        let node = &self.nodes[node];
        let mut hits = node.overlapping(hull);
        while hits != 0 {
            let item = node.items[hits.trailing_zeros() as usize];
            match node.is_leaf {
                true => found(item),
                false => self.search(item, hull, found),
            }
            hits &= hits - 1;
        }
    }

    /// Takes an item in that is not there, and whose hull is not empty. Full nodes are split on the way down, so
    /// that there is room for what the next level sends up.
    pub(super) fn insert(&mut self, item: u32, hull: &Range<u64>) {
        if self.nodes[self.root].is_full() {
            self.grow();
        }
        let mut at = self.root;
        while !self.nodes[at].is_leaf {
            let mut child = self.nodes[at].child_for(hull.start);
            if self.nodes[self.nodes[at].items[child]].is_full() {
                self.split(at, child);
                child = self.nodes[at].child_for(hull.start);
            }
            let node = &mut self.nodes[at];
            node.starts[child] = node.starts[child].min(hull.start);
            node.ends[child] = node.ends[child].max(hull.end);
            at = node.items[child];
        }
        self.nodes[at].push(Entry { start: hull.start, end: hull.end, item });
        self.homes[item as usize] = at;
    }

    /// Takes an item out that is there.
    pub(super) fn remove(&mut self, item: u32) {
        let leaf = self.homes[item as usize];
        let position = self.nodes[leaf].position(item);
        let end = self.nodes[leaf].ends[position];
        self.nodes[leaf].swap_remove(position);
        if self.nodes[leaf].len < LEAST || self.is_last(leaf, end) {
            self.mend(leaf);
        }
    }

    /// Whether nothing below a node ended behind this.
    fn is_last(&self, at: u32, end: u64) -> bool {
        if at == self.root {
            return false;
        }
        let parent = &self.nodes[self.nodes[at].parent];
        parent.ends[parent.position(at)] == end
    }

    /// Sets right what nodes know of a node that has lost an entry, and how much is in them.
    fn mend(&mut self, mut at: u32) {
        while at != self.root {
            let parent = self.nodes[at].parent;
            let position = self.nodes[parent].position(at);
            let end = self.nodes[at].end();
            if self.nodes[at].len < LEAST {
                self.refill(parent, position);
            } else if self.nodes[parent].ends[position] == end {
                return;
            } else {
                self.nodes[parent].ends[position] = end;
            }
            at = parent;
        }
        let root = &self.nodes[self.root];
        if !root.is_leaf && root.len == 1 {
            let only = root.items[0];
            self.nodes.give(self.root);
            self.root = only;
        }
    }

    /// Puts a root above the root.
    fn grow(&mut self) {
        let mut root = Node::new(false);
        let child = &self.nodes[self.root];
        root.push(Entry { start: child.start(), end: child.end(), item: self.root });
        let below = std::mem::replace(&mut self.root, self.nodes.take(root));
        self.nodes[below].parent = self.root;
        self.split(self.root, 0);
    }

    /// Moves the upper half of a full child to a new one beside it.
    fn split(&mut self, parent: u32, child: usize) {
        let left = self.nodes[parent].items[child];
        let right = self.nodes.take(Node::new(self.nodes[left].is_leaf));
        self.nodes[right].parent = parent;
        self.nodes[left].sort();
        self.shift_up(left, right, WIDTH / 2);
        let entry = Entry { start: self.nodes[right].start(), end: 0, item: right };
        self.nodes[parent].insert(child + 1, entry);
        self.update_ends(parent, child);
    }

    /// Fills a child up from its neighbour; or merges the two.
    fn refill(&mut self, parent: u32, child: usize) {
        let first = child.saturating_sub(1);
        let [left, right] = [first, first + 1].map(|at| self.nodes[parent].items[at]);
        let [left_len, right_len] = [left, right].map(|node| self.nodes[node].len);
        let both = left_len + right_len;
        if both <= MERGED {
            self.shift_down(left, right, right_len);
            self.nodes[parent].remove(first + 1);
            self.nodes.give(right);
            self.nodes[parent].ends[first] = self.nodes[left].end();
            return;
        }
        [left, right].into_iter().for_each(|node| self.nodes[node].sort());
        match left_len > right_len {
            true => self.shift_up(left, right, left_len - both / 2),
            false => self.shift_down(left, right, right_len - both / 2),
        }
        self.nodes[parent].starts[first + 1] = self.nodes[right].start();
        self.update_ends(parent, first);
    }

    /// Tells a node where two neighbours end.
    fn update_ends(&mut self, parent: u32, first: usize) {
        for at in [first, first + 1] {
            let child = self.nodes[parent].items[at];
            self.nodes[parent].ends[at] = self.nodes[child].end();
        }
    }

    /// Moves the last entries of a node to the begin of the next.
    fn shift_up(&mut self, left: u32, right: u32, count: usize) {
        for _ in 0..count {
            let last = self.nodes[left].len - 1;
            let entry = self.nodes[left].remove(last);
            self.nodes[right].insert(0, entry);
            self.rehome(entry.item, right);
        }
    }

    /// Moves the first entries of a node to the end of the one before.
    fn shift_down(&mut self, left: u32, right: u32, count: usize) {
        for _ in 0..count {
            let entry = self.nodes[right].remove(0);
            self.nodes[left].push(entry);
            self.rehome(entry.item, left);
        }
    }

    fn rehome(&mut self, item: u32, node: u32) {
        match self.nodes[node].is_leaf {
            true => self.homes[item as usize] = node,
            false => self.nodes[item].parent = node,
        }
    }
}

#[cfg(test)]
mod tests;
