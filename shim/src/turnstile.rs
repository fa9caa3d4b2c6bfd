//! How many threads ask the manager at once, and who asks alone.
//!
//! A thread that was refused memory may have been refused for what others were just asking for, of
//! which they use a part: it asks once more, alone. And of a program's many threads only so many ask
//! at once as the manager hears of one process.
//!
//! Invariant: never more than [`MOST`] inside, and nobody beside who is alone.

use parking_lot::{Condvar, Mutex};

/// The most threads inside. The manager takes four times as many unanswered questions.
const MOST: u32 = 64;

/// See the module.
#[derive(Default)]
pub struct Turnstile {
    state: Mutex<State>,
    /// For those who go in beside others.
    free: Condvar,
    /// For those who want to be alone.
    empty: Condvar,
}

#[derive(Default)]
struct State {
    inside: u32,
    /// How many have gone in so far.
    entries: u64,
    is_alone: bool,
    /// How many wait to be alone: nobody else goes in before them.
    wishes: u32,
}

/// The thread is inside.
pub struct Inside<'a> {
    turnstile: &'a Turnstile,
    /// Nobody was inside when it went in.
    came_first: bool,
    entry: u64,
}

impl Turnstile {
    /// Goes in beside others.
    pub fn enter(&self) -> Inside<'_> {
        let mut state = self.state.lock();
        while state.inside >= MOST || state.is_alone || state.wishes > 0 {
            self.free.wait(&mut state);
        }
        self.go_in(&mut state)
    }

    /// Goes in when everybody is out.
    pub fn enter_alone(&self) -> Inside<'_> {
        let mut state = self.state.lock();
        state.wishes += 1;
        while state.inside > 0 {
            self.empty.wait(&mut state);
        }
        state.wishes -= 1;
        state.is_alone = true;
        self.go_in(&mut state)
    }

    fn go_in(&self, state: &mut State) -> Inside<'_> {
        let came_first = state.inside == 0;
        state.inside += 1;
        state.entries += 1;
        Inside { turnstile: self, came_first, entry: state.entries }
    }
}

impl Inside<'_> {
    /// Whether nobody else has been inside all the while.
    pub fn was_alone(&self) -> bool {
        self.came_first && self.turnstile.state.lock().entries == self.entry
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let turnstile = self.turnstile;
        let mut state = turnstile.state.lock();
        state.inside -= 1;
        let was_alone = std::mem::take(&mut state.is_alone);
        match state.wishes {
            0 if was_alone => _ = turnstile.free.notify_all(),
            0 => _ = turnstile.free.notify_one(),
            _ if state.inside == 0 => _ = turnstile.empty.notify_one(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Many threads go in, every fifth of them alone; each looks who is there.
    #[test]
    fn nobody_is_beside_who_is_alone_and_all_get_in() {
        let (turnstile, there, most) = (Turnstile::default(), AtomicU32::new(0), AtomicU32::new(0));
        let alone = |inside: &Inside<'_>| {
            assert_eq!(there.fetch_add(1, Ordering::SeqCst), 0, "somebody else is there");
            std::thread::yield_now();
            assert_eq!(there.fetch_sub(1, Ordering::SeqCst), 1, "somebody else came");
            assert!(inside.was_alone());
        };
        let beside_others = |_: &Inside<'_>| {
            most.fetch_max(there.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            there.fetch_sub(1, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for number in 0..200 {
                let (turnstile, alone, beside_others) = (&turnstile, &alone, &beside_others);
                scope.spawn(move || {
                    for round in 0..20 {
                        if (number + round) % 5 == 0 {
                            alone(&turnstile.enter_alone());
                        } else {
                            beside_others(&turnstile.enter());
                        }
                    }
                });
            }
        });
        let most = most.into_inner();
        assert!((2..=MOST).contains(&most), "{most} at once");
    }

    #[test]
    fn who_had_company_was_not_alone() {
        let turnstile = Turnstile::default();
        let first = turnstile.enter();
        assert!(first.was_alone());
        let second = turnstile.enter();
        assert_eq!([first.was_alone(), second.was_alone()], [false, false]);
        drop(second);
        assert!(!first.was_alone(), "it was there meanwhile");
    }
}
