//! Memory that graphs own: allocated in a capture, or by a node.
//!
//! On hardware such memory has a fixed address and is there while the graph runs. Here it is there, at a
//! fixed address, for as long as anything that can run it: the graph, its clones, what was instantiated
//! of them. A free inside of the graph, or outside, does nothing until then. Memory that was never freed may be in use when
//! the last of these is gone, if one of them could be launched: it becomes memory as any other, which the program frees.
//!
//! Invariant: memory is given back with the last graph or executable that may use it, or by a free after that.
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
    owned: HashMap<CUdeviceptr, Use>,
    /// What graphs left allocated that are no more.
    left: HashSet<CUdeviceptr>,
    /// By handle: what a node that stands for an allocation, or a free, is about.
    nodes: HashMap<usize, CUdeviceptr>,
}

/// What is known of a graph's memory.
#[derive(Default)]
struct Use {
    /// A graph that allocates it can be launched.
    instantiated: bool,
    /// The program has freed it, or a graph does.
    freed: bool,
}

impl Graphs {
    /// Memory was allocated for `user`.
    pub fn own(&self, user: User, address: CUdeviceptr) {
        let mut books = self.0.lock();
        books.owned.insert(address, Use::default());
        books.of.entry(user).or_default().insert(Arc::new(address));
    }

    /// Whether memory is a graph's.
    #[cfg(test)]
    pub fn owns(&self, address: CUdeviceptr) -> bool {
        self.0.lock().owned.contains_key(&address)
    }

    /// A free of memory, by the program or as part of a graph. `false`: it is no graph's.
    pub fn free(&self, address: CUdeviceptr) -> bool {
        self.0.lock().owned.get_mut(&address).map(|usage| usage.freed = true).is_some()
    }

    /// A free in `user`, or of it, of memory that a graph left allocated. `false`: it is no such memory.
    pub fn free_left(&self, user: User, address: CUdeviceptr) -> bool {
        let mut books = self.0.lock();
        let was_left = books.left.remove(&address);
        if was_left {
            books.owned.insert(address, Use { instantiated: false, freed: true });
            books.of.entry(user).or_default().insert(Arc::new(address));
        }
        was_left
    }

    /// Memory is freed, and is no graph's.
    pub fn forget(&self, address: CUdeviceptr) {
        self.0.lock().left.remove(&address);
    }

    /// What `from` may use, `to` may use too: it was made of it.
    pub fn share(&self, from: User, to: User) {
        let mut books = self.0.lock();
        let Some(memory) = books.of.get(&from).cloned() else { return };
        for address in memory.iter().filter(|_| matches!(to, User::Executable(_))) {
            books.owned.entry(**address).or_default().instantiated = true;
        }
        books.of.entry(to).or_default().extend(memory);
    }

    /// A user is no more. Returned is what nothing can use any more: it is to be freed.
    #[must_use]
    pub fn end(&self, user: User) -> Vec<CUdeviceptr> {
        let mut books = self.0.lock();
        let memory = books.of.remove(&user).unwrap_or_default();
        let unused = memory.into_iter().filter_map(Arc::into_inner);
        let is_dead = |usage: Use| usage.freed || !usage.instantiated;
        let (dead, left): (Vec<_>, Vec<_>) =
            unused.partition(|address| books.owned.remove(address).is_none_or(is_dead));
        books.left.extend(left);
        dead
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
        assert!(graphs.free(0x1000) && !graphs.free(0x2000));
        graphs.own(graph, 0x2000);
        assert_eq!(graphs.end(graph), [0x2000]);
        assert!(graphs.owns(0x1000) && !graphs.owns(0x2000));
        assert_eq!(graphs.end(executable), [0x1000]);
        assert!(!graphs.owns(0x1000) && graphs.is_empty());
    }

    #[test]
    fn memory_that_was_not_freed_outlives_graphs_that_could_be_launched() {
        let graphs = Graphs::default();
        let (graph, executable) = (User::Graph(1), User::Executable(2));
        graphs.own(graph, 0x1000);
        graphs.share(graph, executable);
        assert_eq!(graphs.end(graph), []);
        assert_eq!(graphs.end(executable), []);
        assert!(!graphs.owns(0x1000) && !graphs.free(0x1000), "it is freed as other memory is");
        // Another graph may free it.
        let other = User::Capture(3);
        assert!(graphs.free_left(other, 0x1000) && !graphs.free_left(other, 0x1000));
        assert!(graphs.owns(0x1000));
        graphs.share(other, graph);
        graphs.share(graph, executable);
        assert_eq!((graphs.end(other), graphs.end(graph)), (vec![], vec![]));
        assert_eq!(graphs.end(executable), [0x1000]);
    }
}
