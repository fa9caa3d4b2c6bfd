//! Threads that wait for a stream: where a program without boundaries may be stopped.
//!
//! An inference, or a program that is no framework's, has no iterations that we know of. When it waits for what it has
//! submitted, little is under way, and of what is alive not much is about to die or to be born. So it is stopped where a
//! thread comes out of such a wait, if threads do that again and again; else at once.
//!
//! A thread that asks for a stream or an event again and again until that has ended has waited, too. But one may ask now and then
//! for work of which it does not need the end, as PyTorch's allocator does. So no closing waits for that, and threads are held there only
//! where they are [caught](crate::gate::Gate::catch) at their waits; nor is it a wait of a thread that has submitted nothing since its last one.
//!
//! Invariant: a wait is no boundary. Nothing is older after it, no rank counts it, and what the thread has freed counts
//! as alive.

use crate::gate::{GATE, Record};
use crate::sync::per_thread;
use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// So many without a boundary between them are a loop of their own.
const MANY: u64 = 64;

/// The clock's beginning.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

per_thread! {
    /// The stream or event, by its address, of which this thread found that its work was under way when it asked last.
    static UNDER_WAY: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The calling thread has waited now. Whether it has made calls since it last did.
fn take_calls() -> bool {
    Record::of_thread().is_some_and(Record::note_wait)
}

/// What is known of a process's waits.
#[derive(Debug, Default)]
pub struct Waits {
    /// Since the last boundary.
    count: AtomicU64,
    /// When the last one was over, in microseconds since the clock's beginning.
    last: AtomicU64,
    /// How many calls had been made then.
    submissions: AtomicU64,
}

impl Waits {
    /// The calling thread has waited for a stream. Stays while the gate is closed, if a closing has waited for
    /// this.
    pub fn come(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.last.store(now(), Ordering::Relaxed);
        self.note_submissions();
        take_calls();
        GATE.waited();
    }

    /// The calling thread has asked for this stream or event, and its work is under way.
    pub fn found_under_way(of: usize) {
        UNDER_WAY.set(Some(of));
    }

    /// It has ended. Stays while threads are caught, if it had not when the thread asked last, and what ended may be the thread's own.
    pub fn found_ended(&self, of: usize) {
        if UNDER_WAY.get() == Some(of) {
            UNDER_WAY.set(None);
            if take_calls() {
                self.note_submissions();
                GATE.asked();
            }
        }
    }

    fn note_submissions(&self) {
        self.submissions.store(Record::submissions(), Ordering::Relaxed);
    }

    /// A boundary has come.
    pub fn begin_anew(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// Whether there was one while so many calls were made, of late, or not so many were.
    pub fn any_within(&self, calls: u64) -> bool {
        let last = self.submissions.load(Ordering::Relaxed);
        Record::submissions().saturating_sub(last) < calls
    }

    /// Whether there are so many that another may well come within `time`.
    pub fn are_frequent(&self, time: Duration) -> bool {
        let last = Duration::from_micros(self.last.load(Ordering::Relaxed));
        let since = Duration::from_micros(now()).saturating_sub(last);
        self.count.load(Ordering::Relaxed) >= MANY && since < time
    }
}

fn now() -> u64 {
    u64::try_from(BEGINNING.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_waits_without_a_boundary_are_frequent_while_they_come() {
        let (waits, soon) = (Waits::default(), Duration::from_secs(1000));
        for _ in 1..MANY {
            waits.come();
            assert!(!waits.are_frequent(soon));
        }
        waits.come();
        assert!(waits.are_frequent(soon));
        assert!(!waits.are_frequent(Duration::ZERO));
        waits.begin_anew();
        assert!(!waits.are_frequent(soon));
    }
}
