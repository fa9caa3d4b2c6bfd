//! Handles: numbers that C callers keep, and what they stand for.
//!
//! Invariant: a number is given out once, so a stale handle is an error and never somebody else's
//! object.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

/// The objects of one kind by handle.
pub struct Registry<T>(LazyLock<RwLock<HashMap<usize, Arc<T>>>>);

impl<T> Registry<T> {
    /// An empty registry.
    pub const fn new() -> Registry<T> {
        Registry(LazyLock::new(RwLock::default))
    }

    /// Registers what `make` builds for its new handle.
    pub fn add(&self, make: impl FnOnce(usize) -> T) -> Arc<T> {
        let handle = fresh();
        let object = Arc::new(make(handle));
        self.0.write().insert(handle, object.clone());
        object
    }

    /// Registers an object under a handle of [`fresh`] that it keeps over several lives.
    pub fn put(&self, handle: usize, object: Arc<T>) {
        self.0.write().insert(handle, object);
    }

    /// The object of a handle.
    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.0.read().get(&handle).cloned()
    }

    /// Forgets a handle; its object lives on as long as somebody uses it.
    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.0.write().remove(&handle)
    }

    /// All objects, for the rare walks over them.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.read().values().cloned().collect()
    }
}

/// A handle never given out before; small numbers are special to CUDA (default streams).
pub fn fresh() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5000);
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}
