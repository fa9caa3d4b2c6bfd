//! Calls that go through the metered gate without a grant: a few of each thread, in one stream, from when that was seen to
//! have no work on.
//!
//! So a thread that waits for its GPU after every few calls does not wait for grants as well, which others of its process use up that
//! never wait. And its calls end at other times than theirs, so they are not counted together.
//!
//! Invariant: a batch begins in a stream that has no work, and where its last one has ended, or it was begun long ago.
//! It becomes larger if all of it has ended soon: at most [`MOST`] calls go, that took less than [`SHORT`] when half as many did.

use crate::sync::per_thread;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The most calls of a batch.
const MOST: u32 = 64;
/// A batch that ended so soon may be twice as large.
const SHORT: Duration = Duration::from_millis(50);
/// One that did not end in this time may be half as large; and then the thread may begin one in another stream.
const LONG: Duration = Duration::from_millis(100);
/// After it was asked in vain whether a stream has work a thread does not ask for so long.
const AGAIN: Duration = Duration::from_millis(1);

/// Where a call queues what it submits.
pub trait Queue {
    /// Its stream, if the call may be part of a batch.
    fn stream(&self) -> Option<usize>;
    /// Whether that has work which has not ended.
    fn is_busy(&self) -> bool;
}

/// No stream is known, but whether there is work before it.
impl Queue for bool {
    fn stream(&self) -> Option<usize> {
        None
    }

    fn is_busy(&self) -> bool {
        *self
    }
}

per_thread! {
    static BATCH: Cell<Batch> = const { Cell::new(Batch::NONE) };
}

/// Whether a call of this thread goes as part of a batch.
pub fn takes(queue: &impl Queue) -> bool {
    let Some(stream) = queue.stream() else { return false };
    let mut batch = BATCH.with(Cell::get);
    let takes = batch.takes(stream, || queue.is_busy(), Instant::now());
    BATCH.with(|of_thread| of_thread.set(batch));
    takes
}

/// A thread's batch.
#[derive(Clone, Copy)]
struct Batch {
    /// Its stream, and when it began.
    begun: Option<(usize, Instant)>,
    calls: u32,
    most: u32,
    /// When the stream was seen to have work.
    busy: Option<Instant>,
}

impl Batch {
    const NONE: Self = Self { begun: None, calls: 0, most: 1, busy: None };

    fn takes(&mut self, stream: usize, is_busy: impl FnOnce() -> bool, now: Instant) -> bool {
        let time = |since: Instant| now.saturating_duration_since(since);
        let took = self.begun.map(|(_, since)| time(since));
        let is_same = self.begun.is_some_and(|(begun, _)| begun == stream);
        if is_same && self.calls < self.most {
            self.calls += 1;
            return true;
        }
        let is_long = took.is_some_and(|took| took >= LONG);
        let may_begin = is_same || took.is_none() || is_long;
        if !may_begin || self.busy.is_some_and(|seen| time(seen) < AGAIN) {
            return false;
        }
        let most = match took {
            Some(took) if is_same && took < SHORT => (self.most * 2).min(MOST),
            Some(_) if is_same && !is_long => self.most,
            Some(_) if is_same => (self.most / 2).max(1),
            _ => 1,
        };
        if is_busy() {
            self.busy = Some(now);
            if is_same && is_long {
                *self = Self { begun: Some((stream, now)), calls: most, most, ..*self };
            }
            return false;
        }
        *self = Self { begun: Some((stream, now)), calls: 1, most, busy: None };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A thread that makes `calls` calls and waits for them, each of which takes so long: how many of the last such went.
    fn steps(batch: &mut Batch, now: &mut Instant, calls: u32, each: Duration) -> u32 {
        let mut went = 0;
        for _ in 0..20 {
            went = 0;
            let begin = *now;
            for call in 0..calls {
                let busy_until = begin + each * call;
                went += u32::from(batch.takes(1, || *now < busy_until, *now));
                *now += MS / 1000;
            }
            *now = (*now).max(begin + each * calls) + MS;
        }
        went
    }

    #[test]
    fn short_calls_that_are_waited_for_all_go_and_few_long_ones_do() {
        let (mut batch, mut now) = (Batch::NONE, Instant::now());
        let mut went = |calls, each| steps(&mut batch, &mut now, calls, each);
        assert_eq!([went(20, MS / 10), went(20, MS * 20), went(100, MS / 10)], [20, 1, MOST]);
    }

    #[test]
    fn a_thread_of_many_streams_has_one_batch_at_a_time() {
        let (mut batch, now) = (Batch::NONE, Instant::now());
        let mut goes = |stream, after| batch.takes(stream, || false, now + after);
        assert!(goes(1, MS));
        assert!((2..64).all(|stream| !goes(stream, MS * 50)));
        assert_eq!([goes(2, LONG * 2), goes(3, LONG * 2), goes(1, LONG * 2)], [true, false, false]);
    }
}
