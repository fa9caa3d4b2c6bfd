//! Calls that go through the metered gate without a grant: a few of each thread, in a stream that had no work at the first of them.
//!
//! A thread that waits for its GPU after every few calls is not far ahead by itself. It does not wait for grants as well, which
//! threads of its process that never wait would use up. And its calls end at other times than theirs, so they are not counted
//! together.
//!
//! Invariant: a batch begins in a stream that has no work, and a thread has batches in at most [`STREAMS`] streams, but for those
//! that began long ago, or before the thread waited for its GPU. A batch has at most [`MOST`] calls, and more than one only if half
//! as many ended within [`SHORT`], [some](PROOFS) times in a row where that was one.

use crate::sync::per_thread;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// In so many streams a thread may have a batch; and in so many in which it is not known that batches end soon.
const STREAMS: usize = 16;
const UNPROVEN: usize = 4;
/// The most calls of a batch.
const MOST: u32 = 64;
/// A batch that ended so soon may be twice as large.
const SHORT: Duration = Duration::from_millis(50);
/// One of a single call has to end so soon so many times before: a program fills its memory, say, and what follows takes much longer.
const PROOFS: u32 = 4;
/// One that did not end in this time may be half as large; and then another stream may take its place.
const LONG: Duration = Duration::from_millis(100);
/// After it was asked in vain whether a stream has work a thread does not ask for so long.
const AGAIN: Duration = Duration::from_millis(1);
/// Where batches are of one call it asks again and again for so long: short calls follow each other then.
const STAY: Duration = Duration::from_micros(250);

/// The most calls of a batch now.
static LIMIT: AtomicU32 = AtomicU32::new(MOST);

/// Whether batches stay at one call from now on: the next calls may take much longer than those before.
pub fn keep_small(are_small: bool) {
    LIMIT.store(if are_small { 1 } else { MOST }, Ordering::Relaxed);
}

/// Where a call queues what it submits.
pub trait Queue {
    /// Its stream, if the call may be part of a batch.
    fn stream(&self) -> Option<usize>;
    /// Its stream, if that is known.
    fn handle(&self) -> Option<usize> {
        None
    }
    /// Whether the call goes without a grant beside a capture. `None`: no stream captures, or that does not say it.
    fn goes_beside_captures(&self) -> Option<bool> {
        None
    }
    /// Whether that has work which has not ended.
    fn is_busy(&self) -> bool;
    /// Whether the call goes without a grant, for it is behind a value wait.
    fn goes_behind_a_wait(&self) -> bool {
        false
    }
    /// Whether the call submits work at all.
    fn gets_work(&self) -> bool {
        true
    }
    /// The call has come the slow way and is made next. The gate cannot shut before it has returned. Whether that is to be said.
    fn note_submission(&self) -> bool {
        false
    }
    /// The calling thread is about to wait at the gate, and not for work of its own process. Whether that is to be said again, soon.
    fn note_waiting(&self) -> bool {
        false
    }
}

/// Of a call that submits nothing, and so is never too much.
pub struct Nowhere;

impl Queue for Nowhere {
    fn stream(&self) -> Option<usize> {
        None
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn gets_work(&self) -> bool {
        false
    }
}

/// No stream is known, but whether there is work before it.
#[cfg(test)]
impl Queue for bool {
    fn stream(&self) -> Option<usize> {
        None
    }

    fn is_busy(&self) -> bool {
        *self
    }
}

per_thread! {
    static BATCHES: RefCell<Batches> = const { RefCell::new(Batches([None; STREAMS])) };
}

/// How many calls the batch may have of which a call of this thread is part, if it is part of one. One: it is not known that such
/// calls end soon.
pub fn takes(queue: &impl Queue) -> Option<u32> {
    let stream = queue.stream()?;
    let limit = LIMIT.load(Ordering::Relaxed);
    let is_busy = || if limit == 1 { stays_busy(queue) } else { queue.is_busy() };
    // A signal's handler may come here while the thread is here.
    BATCHES.with(|batches| {
        let mut batches = batches.try_borrow_mut().ok()?;
        batches.takes(stream, limit, is_busy, Instant::now())
    })
}

/// Whether it has work for as long as the thread stays to see that.
fn stays_busy(queue: &impl Queue) -> bool {
    let begin = Instant::now();
    while queue.is_busy() {
        if begin.elapsed() >= STAY {
            // It may just have been interrupted.
            return queue.is_busy();
        }
        std::thread::yield_now();
    }
    false
}

/// This thread has waited for its GPU: what it submitted has ended, most likely.
pub fn waited() {
    BATCHES.with(|batches| {
        if let Ok(mut batches) = batches.try_borrow_mut() {
            batches.0.iter_mut().flatten().for_each(|batch| batch.is_over = true);
        }
    });
}

/// A thread's batches.
struct Batches([Option<Batch>; STREAMS]);

/// One, of a stream.
#[derive(Clone, Copy)]
struct Batch {
    stream: usize,
    begun: Instant,
    calls: u32,
    most: u32,
    /// So many of single calls have ended soon.
    proofs: u32,
    /// When the stream was seen to have work.
    busy: Option<Instant>,
    /// The thread has waited for its GPU since.
    is_over: bool,
}

impl Batches {
    fn takes(
        &mut self,
        stream: usize,
        limit: u32,
        is_busy: impl FnOnce() -> bool,
        now: Instant,
    ) -> Option<u32> {
        if let Some(batch) = self.0.iter_mut().flatten().find(|batch| batch.stream == stream) {
            return batch.takes(limit, is_busy, now).then_some(batch.most);
        }
        let is_unproven = |batch: &&Batch| batch.most == 1 && batch.unused_for(now) < LONG;
        let has_room = self.0.iter().flatten().filter(is_unproven).count() < UNPROVEN;
        let unused = |place: &Option<Batch>| place.map_or(Duration::MAX, |batch| batch.unused_for(now));
        let place = self.0.iter_mut().max_by_key(|place| unused(place)).filter(|place| unused(place) >= LONG);
        let place = place.filter(|_| has_room && !is_busy())?;
        *place = Some(Batch { stream, begun: now, calls: 1, most: 1, proofs: 0, busy: None, is_over: false });
        Some(1)
    }
}

impl Batch {
    fn has_lasted(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begun)
    }

    /// How long ago it began; longest if the thread has waited since, for it most likely is over.
    fn unused_for(&self, now: Instant) -> Duration {
        if self.is_over { Duration::MAX } else { self.has_lasted(now) }
    }

    fn takes(&mut self, limit: u32, is_busy: impl FnOnce() -> bool, now: Instant) -> bool {
        if self.calls < self.most.min(limit) {
            self.calls += 1;
            return true;
        }
        if self.busy.is_some_and(|seen| now.saturating_duration_since(seen) < AGAIN) {
            return false;
        }
        let lasted = self.has_lasted(now);
        let proofs = if lasted < SHORT { self.proofs + u32::from(self.most == 1) } else { 0 };
        let most = match lasted {
            _ if lasted < SHORT && proofs < PROOFS => self.most,
            _ if lasted < SHORT => (self.most * 2).min(limit),
            _ if lasted < LONG => self.most,
            _ => (self.most / 2).max(1),
        };
        if is_busy() {
            self.busy = Some(now);
            if lasted >= LONG {
                (self.begun, self.calls, self.most, self.proofs) = (now, most, most, 0);
            }
            return false;
        }
        *self = Self { begun: now, calls: 1, most, proofs, busy: None, is_over: false, ..*self };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A thread that makes `calls` calls and waits for them, each of which takes so long: how many of the last such went.
    fn steps(batches: &mut Batches, now: &mut Instant, calls: u32, each: Duration) -> u32 {
        let mut went = 0;
        for _ in 0..20 {
            went = 0;
            let begin = *now;
            for call in 0..calls {
                let busy_until = begin + each * call;
                went += u32::from(batches.takes(1, MOST, || *now < busy_until, *now).is_some());
                *now += MS / 1000;
            }
            *now = (*now).max(begin + each * calls) + MS;
        }
        went
    }

    #[test]
    fn short_calls_that_are_waited_for_all_go_and_few_long_ones_do() {
        let (mut batches, mut now) = (Batches([None; STREAMS]), Instant::now());
        let mut went = |calls, each| steps(&mut batches, &mut now, calls, each);
        assert_eq!([went(20, MS / 10), went(20, MS * 20), went(100, MS / 10)], [20, 1, MOST]);
    }

    #[test]
    fn a_call_that_ended_soon_does_not_have_two_go_next() {
        let (mut batches, mut now) = (Batches([None; STREAMS]), Instant::now());
        let mut most = || {
            now += MS;
            batches.takes(1, MOST, || false, now)
        };
        let (unproven, proven) = ([(); 4].map(|()| most()), [most(), most(), most()]);
        assert_eq!((unproven, proven), ([Some(1); 4], [Some(2), Some(2), Some(4)]));
    }

    #[test]
    fn a_thread_stays_for_a_stream_that_has_no_more_work_soon() {
        struct Stream(Instant);
        impl Queue for Stream {
            fn stream(&self) -> Option<usize> {
                Some(1)
            }
            fn is_busy(&self) -> bool {
                Instant::now() < self.0
            }
        }
        let [soon, late] = [MS / 20, MS * 1000].map(|time| stays_busy(&Stream(Instant::now() + time)));
        assert!(!soon && late);
    }

    #[test]
    fn a_batch_is_no_larger_than_the_limit() {
        let (mut batches, now) = (Batches([None; STREAMS]), Instant::now());
        let mut went = |limit, is_busy, after| {
            (0..3).filter(|_| batches.takes(1, limit, || is_busy, now + after).is_some()).count()
        };
        let went = [went(MOST, false, MS), went(1, true, MS), went(1, false, MS * 3)];
        assert_eq!(went, [3, 0, 3], "one at a time, if none is before it");
    }

    #[test]
    fn a_thread_of_many_streams_has_few_batches_at_a_time() {
        let (mut batches, now) = (Batches([None; STREAMS]), Instant::now());
        let mut went = |streams: std::ops::Range<usize>, after| {
            streams.filter(|stream| batches.takes(*stream, MOST, || false, now + after).is_some()).count()
        };
        assert_eq!([went(0..64, MS), went(4..64, MS * 50), went(4..64, LONG * 2)], [UNPROVEN, 0, UNPROVEN]);
        let times = (0..10).map(|nth| LONG * 2 + MS * nth);
        assert_eq!(times.map(|time| went(0..64, time)).last(), Some(STREAMS), "they have all ended soon");
    }
}
