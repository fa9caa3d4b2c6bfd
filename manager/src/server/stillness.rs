//! Whether a mover that has orders stands still: its counters are looked at, some times in each response timeout.
//!
//! Only time counts in which they were looked at: a manager that was stopped together with its mover, or found no
//! processor, has not seen the mover stand still.

use crate::mover::progress::Count;
use std::time::{Duration, Instant};

/// So many looks in a response timeout.
const LOOKS: u32 = 8;

/// What was seen of a mover.
#[derive(Debug)]
pub(super) struct Stillness {
    seen: Option<Count>,
    looked: Instant,
    lasted: Duration,
}

impl Stillness {
    /// Nothing was seen yet.
    pub(super) fn begin(now: Instant) -> Self {
        Self { seen: None, looked: now, lasted: Duration::ZERO }
    }

    /// The next look, for a response timeout of `limit`.
    pub(super) fn next_look(&self, limit: Duration) -> Instant {
        self.looked + pause(limit)
    }

    /// The counters say this now; `None`: there are none yet, which is no progress.
    /// `true`: they have stood still for as long as `limit`.
    pub(super) fn look(&mut self, count: Option<Count>, now: Instant, limit: Duration) -> bool {
        let since = now.saturating_duration_since(self.looked);
        self.lasted =
            if count == self.seen { self.lasted + since.min(pause(limit) * 2) } else { Duration::ZERO };
        (self.seen, self.looked) = (count, now);
        self.lasted >= limit
    }
}

fn pause(limit: Duration) -> Duration {
    (limit / LOOKS).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::progress;
    use std::os::fd::AsFd;

    const LIMIT: Duration = Duration::from_secs(8);
    const PAUSE: Duration = Duration::from_secs(1);

    /// Two that differ.
    fn counts() -> [Option<Count>; 2] {
        let reader = progress::Reader::open(progress::page().unwrap().as_fd()).unwrap();
        let before = reader.count();
        progress::step();
        [Some(before), Some(reader.count())]
    }

    #[test]
    fn who_moves_on_within_the_limit_is_never_still() {
        let [one, other] = counts();
        let mut now = Instant::now();
        let mut stillness = Stillness::begin(now);
        for count in [one, other].into_iter().cycle().take(20) {
            for _ in 0..7 {
                now = stillness.next_look(LIMIT);
                assert!(!stillness.look(count, now, LIMIT));
            }
        }
    }

    #[test]
    fn who_stands_still_for_the_limit_is_still() {
        let [one, other] = counts();
        let mut stillness = Stillness::begin(Instant::now());
        let mut looks = |count| (1..100).find(|_| stillness.look(count, stillness.next_look(LIMIT), LIMIT));
        // The first look at a count shows that it has changed.
        assert_eq!(looks(one), Some(9));
        assert_eq!(looks(other), Some(9));
        let mut stillness = Stillness::begin(Instant::now());
        let mut looks = |count| (1..100).find(|_| stillness.look(count, stillness.next_look(LIMIT), LIMIT));
        assert_eq!(looks(None), Some(8), "a mover without a page does not move on either");
    }

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let [one, _] = counts();
        let mut stillness = Stillness::begin(Instant::now());
        assert!(!stillness.look(one, stillness.next_look(LIMIT), LIMIT));
        let late = stillness.next_look(LIMIT) + Duration::from_secs(3600);
        assert!(!stillness.look(one, late, LIMIT));
        assert_eq!(stillness.lasted, PAUSE * 2);
    }
}
