//! How many of a program's threads ask the manager for room at once: no more than it hears of one process.
//!
//! Invariant: never more than [`MOST`] inside.

use parking_lot::{Condvar, Mutex};

/// The most threads inside. The manager takes four times as many unanswered questions.
const MOST: u32 = 64;

/// See the module.
#[derive(Default)]
pub struct Turnstile {
    inside: Mutex<u32>,
    free: Condvar,
}

/// The thread is inside.
pub struct Inside<'a>(&'a Turnstile);

impl Turnstile {
    /// Goes in when there is room.
    pub fn enter(&self) -> Inside<'_> {
        let mut inside = self.inside.lock();
        while *inside >= MOST {
            self.free.wait(&mut inside);
        }
        *inside += 1;
        Inside(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        *self.0.inside.lock() -= 1;
        self.0.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn all_get_in_and_never_too_many_at_once() {
        let (turnstile, there, most) = (Turnstile::default(), AtomicU32::new(0), AtomicU32::new(0));
        let go_in = || {
            for _ in 0..20 {
                let _inside = turnstile.enter();
                most.fetch_max(there.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                there.fetch_sub(1, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| (0..200).for_each(|_| _ = scope.spawn(go_in)));
        let most = most.into_inner();
        assert!((2..=MOST).contains(&most), "{most} at once");
    }
}
