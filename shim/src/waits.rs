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
/// So many times as many calls as a thread has made between two waits it may make before the next one, and so many at least.
const MORE: u64 = 2;
const FEW: u64 = 128;
/// Of the most calls between two waits such a part is forgotten at each wait.
const FORGOTTEN: u64 = 16;

/// The clock's beginning.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

per_thread! {
    /// The stream or event, by its address, of which this thread found that its work was under way when it asked last.
    static UNDER_WAY: Cell<Option<usize>> = const { Cell::new(None) };
    /// How many calls were made by this thread, and those that had its record before, when it last waited.
    static MADE: Cell<Option<u64>> = const { Cell::new(None) };
    /// How many it has made between two waits at most, of late.
    static MOST: Cell<u64> = const { Cell::new(0) };
}

/// How many calls were made by the calling thread, and those that had its record before.
fn made() -> u64 {
    Record::of_thread().map_or(0, Record::count)
}

/// Whether the calling thread has made calls since it last waited, which is now.
fn take_calls() -> bool {
    let made = made();
    let Some(before) = MADE.replace(Some(made)) else { return true };
    let most = MOST.get();
    MOST.set((made - before).max(most - most / FORGOTTEN));
    made > before
}

/// Whether the calling thread may soon wait: it has not made many more calls since its last wait than between others, or it never has
/// waited. One that waits for nothing would go on until its stream is full.
pub fn comes_soon() -> bool {
    MADE.get().is_none_or(|before| made() - before < FEW.max(MOST.get() * MORE))
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
    #[test]
    fn a_thread_that_has_waited_and_makes_many_more_calls_is_not_expected_to_wait() {
        let record = Record::of_thread_or_new();
        let calls = |count| {
            (0..count).for_each(|_| {
                record.enter();
                record.leave();
            })
        };
        calls(FEW * 4);
        assert!(comes_soon(), "it never waited");
        take_calls();
        calls(FEW - 1);
        assert!(comes_soon());
        calls(1);
        assert!(!comes_soon());
        calls(FEW * 3);
        take_calls();
        calls(FEW * 4 * MORE - 1);
        assert!(comes_soon(), "it made as many before");
        calls(1);
        assert!(!comes_soon());
    }
}
