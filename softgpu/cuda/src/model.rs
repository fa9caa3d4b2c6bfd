//! Time as modelled: what a call, a kernel or a transfer takes at least.
//!
//! A stream's timeline carries on from where the last operation was *due* to end, so that waking a
//! little late does not add up over many operations.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Below this a wait spins, since a sleep would be later than that by itself.
const SPIN: Duration = Duration::from_micros(50);

/// Where the operations of one stream lie in time.
pub struct Timeline {
    /// When what was submitted until now is due to end.
    due: Instant,
    /// When the work of the current operation really began.
    began: Instant,
}

impl Timeline {
    /// A stream that has been idle until now.
    pub fn starting_now() -> Timeline {
        let now = Instant::now();
        Timeline { due: now, began: now }
    }

    /// The stream had nothing to do before `then`.
    pub fn idle_until(&mut self, then: Instant) {
        self.due = self.due.max(then);
    }

    /// Begins an operation whose call costs `cost`.
    pub fn begin(&mut self, cost: Duration) {
        self.due += cost;
        self.began = wait_until(self.due);
    }

    /// Ends it: no sooner than `least` after it was due to begin, nor before `arrival`.
    pub fn finish(&mut self, least: Duration, arrival: Option<Instant>) {
        let end = self.due + self.began.elapsed().max(least);
        self.due = arrival.map_or(end, |arrival| arrival.max(end));
        wait_until(self.due);
    }
}

/// One direction of the link between host and a GPU: one transfer at a time.
pub struct Link {
    rate: Option<f64>,
    free_at: Mutex<Option<Instant>>,
}

impl Link {
    /// A link of `rate` bytes per second, or one that is not modelled.
    pub fn new(rate: Option<f64>) -> Link {
        Link { rate, free_at: Mutex::new(None) }
    }

    /// Whether it is modelled: else nothing is booked.
    pub fn is_modelled(&self) -> bool {
        self.rate.is_some()
    }

    /// Books a transfer of `bytes`: when it ends.
    pub fn book(&self, bytes: usize) -> Option<Instant> {
        let duration = Duration::from_secs_f64(bytes as f64 / self.rate?);
        let mut free_at = self.free_at.lock();
        let now = Instant::now();
        let end = free_at.map_or(now, |at| at.max(now)) + duration;
        *free_at = Some(end);
        Some(end)
    }
}

/// Lets sleeps of this thread end on time, not up to 50 µs late.
pub fn sleep_precisely() {
    // SAFETY: PR_SET_TIMERSLACK takes one number and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
}

/// Returns at `end` or soon after, with the time it is then.
fn wait_until(end: Instant) -> Instant {
    loop {
        let now = Instant::now();
        let left = end.saturating_duration_since(now);
        match left.checked_sub(SPIN) {
            _ if left.is_zero() => return now,
            Some(nap) if !nap.is_zero() => std::thread::sleep(nap),
            _ => std::hint::spin_loop(),
        }
    }
}
