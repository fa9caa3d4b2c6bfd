//! Waiting for something that another thread's atomics will say.
//!
//! Announcing costs one load when nobody waits. The order makes it safe: a waiter counts itself
//! before it looks, an announcer writes before it looks at the count, both sequentially consistent.

use std::sync::atomic::{AtomicUsize, Ordering, fence};

use parking_lot::{Condvar, Mutex};

/// Where the waiters of one context wait.
#[derive(Default)]
pub struct Monitor {
    waiting: AtomicUsize,
    turn: Mutex<()>,
    changed: Condvar,
}

impl Monitor {
    /// Returns when `holds` does; it is looked at again after every announcement.
    pub fn wait_until(&self, holds: impl Fn() -> bool) {
        if holds() {
            return;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut turn = self.turn.lock();
        while !holds() {
            self.changed.wait(&mut turn);
        }
        drop(turn);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Something that a waiter may wait for has been written.
    pub fn announce(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.turn.lock());
            self.changed.notify_all();
        }
    }
}
