//! Memory that graphs own: allocated in a capture, or by a node.
//!
//! On hardware such memory has a fixed address and is there while the graph runs. Here it is there, at a
//! fixed address, for as long as anything that can run it: the graph, its clones, what was instantiated
//! of them. A free inside of the graph, or outside, does nothing.
//!
//! Invariant: memory is given back with the last graph or executable that may use it.
#![forbid(unsafe_code)]

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tidegate_ffi::cuda::sys::CUdeviceptr;

/// What may use memory: a graph or an executable one, by its handle, or a capture by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum User {
    /// A capture that is under way.
    Capture(u64),
    /// A graph.
    Graph(usize),
    /// An executable graph.
    Executable(usize),
}

/// What all graphs of a process own.
#[derive(Default)]
pub struct Graphs(Mutex<Books>);

#[derive(Default)]
struct Books {
    of: HashMap<User, HashSet<Arc<CUdeviceptr>>>,
    owned: HashSet<CUdeviceptr>,
    /// By handle: what a node that stands for an allocation, or a free, is about.
    nodes: HashMap<usize, CUdeviceptr>,
}

impl Graphs {
    /// Memory was allocated for `user`.
    pub fn own(&self, user: User, address: CUdeviceptr) {
        let mut books = self.0.lock();
        books.owned.insert(address);
        books.of.entry(user).or_default().insert(Arc::new(address));
    }

    /// Whether memory is a graph's.
    pub fn owns(&self, address: CUdeviceptr) -> bool {
        self.0.lock().owned.contains(&address)
    }

    /// What `from` may use, `to` may use too: it was made of it.
    pub fn share(&self, from: User, to: User) {
        let mut books = self.0.lock();
        let Some(memory) = books.of.get(&from).cloned() else { return };
        books.of.entry(to).or_default().extend(memory);
    }

    /// A user is no more. Returned is what nobody can use any more: it is to be freed.
    #[must_use]
    pub fn end(&self, user: User) -> Vec<CUdeviceptr> {
        let mut books = self.0.lock();
        let memory = books.of.remove(&user).unwrap_or_default();
        let unused: Vec<CUdeviceptr> = memory.into_iter().filter_map(Arc::into_inner).collect();
        for address in &unused {
            books.owned.remove(address);
        }
        unused
    }

    /// Whether graphs own anything, or a node stands for something.
    pub fn is_empty(&self) -> bool {
        let books = self.0.lock();
        books.of.is_empty() && books.nodes.is_empty()
    }

    /// A node stands for the allocation, or the free, of `address`.
    pub fn stands_for(&self, node: usize, address: CUdeviceptr) {
        self.0.lock().nodes.insert(node, address);
    }

    /// What a node stands for.
    pub fn behind(&self, node: usize) -> Option<CUdeviceptr> {
        self.0.lock().nodes.get(&node).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_lives_as_long_as_anything_that_can_use_it() {
        let graphs = Graphs::default();
        let (capture, graph, executable) = (User::Capture(7), User::Graph(1), User::Executable(2));
        graphs.own(capture, 0x1000);
        graphs.share(capture, graph);
        assert_eq!(graphs.end(capture), []);
        graphs.share(graph, executable);
        graphs.own(graph, 0x2000);
        assert_eq!(graphs.end(graph), [0x2000]);
        assert!(graphs.owns(0x1000) && !graphs.owns(0x2000));
        assert_eq!(graphs.end(executable), [0x1000]);
        assert!(!graphs.owns(0x1000) && graphs.is_empty());
    }
}
