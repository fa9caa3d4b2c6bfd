//! How far a program runs ahead of its GPU through the open gate.
//!
//! While no other job waits, or where calls are short, they are not counted at the [gate](crate::gate). The program may submit longer
//! ones next, and the driver's queue has room for a thousand of them, which a job that comes then would have to wait for. So one of
//! [`CALLS_BETWEEN_DUE`] calls of each thread comes the slow way, sets a mark in the call's stream, and goes on as long as few
//! marks in that stream are not passed. A thread that is far ahead in its stream waits at the gate, and looks again soon. Where that lasts
//! the [window](crate::window) takes over, by which calls are counted and time is what limits them.
//!
//! A thread that goes far ahead and does something else then, while the GPU works, would have the GPU wait for it. It is seen that
//! a stream had nothing to do after threads were held, and no thread has waited for the GPU. Where that has happened [some times](OFTEN) as many
//! more calls may be under way in that stream as it could have done each time, until the gate closes.
//!
//! A thread that is held may have a lock which others need. Where no other job waits, and another thread's stream of late has nothing to do,
//! twice as many calls may be under way each time, as many as the window would let be under way by their time.
//!
//! Invariant: no thread is held here for long, but by work that takes as long: the window looks at it again and again, and
//! takes over where a thread is held for [some time](crate::window::LOOK_AT_MARKS).

#![forbid(unsafe_code)]

use crate::beside_captures::{Place, takes_nothing};
use crate::contexts::Used;
use crate::driver::{Behind, Relaxed};
use crate::gate::CALLS_BETWEEN_DUE;
use crate::log::debug;
use crate::marks::{Calls, Marks};
use crate::process::Process;
use crate::threads::Uncancelled;
use crate::window::MOST;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::sys::CUstream;

/// A look at the marks takes less.
const LOOK: Duration = Duration::from_millis(10);
/// A thread stays so long to see whether it may go on.
const STAY: Duration = Duration::from_micros(250);
/// A thread that has looked so lately may be kept from its next call by one that is held.
const LATELY: Duration = Duration::from_secs(2);
/// So often the same must happen.
const OFTEN: u32 = 8;
/// It has not happened: of no calls, least, and no times.
const NEVER: (u64, u32) = (u64::MAX, 0);
/// So many streams are known, besides those that have work.
const MOST_STREAMS: usize = 256;
/// So many marks of a stream may be there at first.
const LEAST_MARKS: u64 = 2;
/// While other jobs wait it is one where calls take so long: the calls behind it take longer than to see that it is passed.
const ONE_MARK_FROM: Duration = Duration::from_micros(60);
/// Marks in a stream that are not passed, at most: each takes room in it.
const MOST_MARKS: u64 = 8;

/// See the module.
#[derive(Default)]
pub struct Ahead {
    /// So many calls are between two marks. Zero: calls through the open gate are not looked at.
    spacing: AtomicU64,
    /// No other job waits, and work may be under way that takes so many microseconds. Zero: one does.
    alone_micros: AtomicU64,
    /// So often a thread has waited for the GPU.
    waits: AtomicU64,
    state: Mutex<State>,
}

/// What is known of the work that is under way.
#[derive(Default)]
pub struct State {
    /// In all that was submitted: the gate thread's.
    pub marks: Marks,
    streams: HashMap<Place, Stream>,
}

/// The work of a stream.
#[derive(Default)]
struct Stream {
    /// The marks that are not known to be passed, the first one first.
    marks: VecDeque<StreamMark>,
    depth: Depth,
}

/// A mark in a stream, and its context, which it keeps alive: the mark goes first.
struct StreamMark {
    mark: Behind,
    set: Instant,
    _used: Used<'static>,
}

impl Ahead {
    /// What is known. No thread is held meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// From now on so many calls of a thread through the open gate are between two marks, a multiple of [`CALLS_BETWEEN_DUE`]; zero:
    /// they are not looked at. `alone`: no other job waits, and work may be under way that takes so long.
    pub fn watch(&self, spacing: u64, alone: Option<Duration>) {
        let micros = alone.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1));
        self.alone_micros.store(micros, Ordering::Relaxed);
        self.spacing.store(spacing, Ordering::Relaxed);
    }

    /// The gate opens: what is submitted now may be unlike what was before.
    pub fn begin_anew(&self) {
        let mut state = self.lock();
        state.forget_passed();
        // Where a closing has failed there is work still, with its marks.
        state.streams.retain(|_, stream| !stream.marks.is_empty());
        state.streams.values_mut().for_each(|stream| stream.depth = Depth::default());
    }

    /// The calling thread has waited for the GPU, which may have nothing to do then.
    pub fn waited(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the calling thread, which has made so many calls, may make one more in that stream now. The thread stays a moment to
    /// see it.
    pub fn may_go_on(&self, process: &'static Process, stream: CUstream, calls: u64) -> bool {
        let spacing = self.spacing.load(Ordering::Relaxed);
        // While the gate is being closed nothing is known: the call waits there, or is wanted.
        spacing == 0 || !calls.is_multiple_of(spacing) || self.stay(process, stream, spacing).unwrap_or(true)
    }

    /// The same beside a capture, where no mark can be set behind all work, and this is all that limits calls: each has a mark.
    pub fn may_go_beside_captures(&self, process: &'static Process, stream: CUstream) -> bool {
        self.stay(process, stream, 1).unwrap_or(false)
    }

    /// Asks for a moment. `None`: it is not known.
    fn stay(&self, process: &'static Process, stream: CUstream, spacing: u64) -> Option<bool> {
        let _uncancelled = Uncancelled::begin();
        let begin = Instant::now();
        loop {
            let may_go_on = self.look(process, stream, spacing);
            if may_go_on == Some(true) || begin.elapsed() >= STAY {
                return may_go_on;
            }
            std::thread::yield_now();
        }
    }

    fn is_alone(&self) -> bool {
        !self.time_alone().is_zero()
    }

    /// How long what is under way may take while no other job waits.
    fn time_alone(&self) -> Duration {
        Duration::from_micros(self.alone_micros.load(Ordering::Relaxed))
    }

    fn look(&self, process: &'static Process, stream: CUstream, spacing: u64) -> Option<bool> {
        // Work that waits for a value may wait for this call. While another job waits the window limits that.
        if process.value_waits.any() {
            return Some(self.is_alone());
        }
        // Another thread is looking just now, or the gate's own closes the gate.
        let mut state = self.state.try_lock()?;
        let _relaxed = Relaxed::begin();
        // What is captured is not submitted.
        if process.captures.any() && takes_nothing(stream).unwrap_or(true) {
            return Some(true);
        }
        let Ok(place) = Place::of(stream) else { return Some(true) };
        let (waits, is_alone) = (self.waits.load(Ordering::Relaxed), self.is_alone());
        let Stream { marks, depth } = state.streams.entry(place).or_default();
        let now = Instant::now();
        let count = forget_passed(marks);
        if count > 0 {
            depth.note_passed(count, !marks.is_empty(), now, spacing);
        }
        let thread = std::thread::current().id();
        depth.thread = Some(thread);
        let since_look = depth.looked.replace(now).map_or(Duration::ZERO, |looked| now - looked);
        depth.has_few = !is_alone && depth.each.is_some_and(|each| each >= ONE_MARK_FROM);
        if !is_alone {
            depth.more = 0;
        } else if marks.is_empty() && !depth.was_held {
            depth.ran_dry(waits, depth.calls_in(since_look), spacing);
        }
        let is_full = depth.is_full(marks.len() as u64, spacing);
        let may_be_waited_for = is_full && is_alone && state.another_has_nothing_to_do(thread, now);
        let Stream { marks, depth } = state.streams.entry(place).or_default();
        if is_full && !(may_be_waited_for && depth.goes_deeper(self.time_alone(), spacing)) {
            depth.hold(waits);
            return Some(false);
        }
        if depth.is_mark_due(spacing) {
            // Without a mark less is known.
            marks.extend(StreamMark::set(process, &place, stream));
        }
        Some(true)
    }

    /// A context is about to be destroyed, for which the marks are let go of; while the gate's thread closes the gate it does so.
    pub fn let_go(&self) {
        if let Some(mut state) = self.state.try_lock_for(LOOK) {
            state.let_go();
        }
    }
}

impl State {
    /// Forgets the marks that are passed.
    pub fn forget_passed(&mut self) {
        for stream in self.streams.values_mut() {
            forget_passed(&mut stream.marks);
            // A thread that was held goes on when it looks again, if it is there still.
            if stream.marks.is_empty() {
                stream.depth.full = None;
            }
        }
        // What is known of streams without work is kept, but for that of a program that makes more and more streams.
        let are_many = self.streams.len() > MOST_STREAMS;
        self.streams.retain(|_, stream| !stream.marks.is_empty() || !are_many);
    }

    /// Whether a stream has nothing to do of another thread that has looked lately.
    fn another_has_nothing_to_do(&mut self, thread: ThreadId, now: Instant) -> bool {
        self.streams.values_mut().any(|Stream { marks, depth }| {
            let is_of_another = depth.thread.is_some_and(|of| of != thread);
            let is_late = depth.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LATELY);
            if !is_of_another || is_late {
                return false;
            }
            forget_passed(marks);
            marks.is_empty()
        })
    }

    /// Whether the GPU has passed a mark that was not looked at yet.
    pub fn is_one_passed(&self) -> bool {
        let mut streams = self.streams.values();
        self.marks.is_first_passed() || streams.any(|stream| is_first_passed(&stream.marks))
    }

    /// How long ago a mark was set that the GPU has passed since this was asked, if it has passed any: so far ahead is work submitted.
    pub fn age_of_passed(&mut self) -> Option<Duration> {
        let passed = self.streams.values_mut().filter_map(|stream| {
            let first = stream.marks.front()?.set;
            (forget_passed(&mut stream.marks) > 0).then(|| first.elapsed())
        });
        passed.max().max(self.marks.age_of_passed())
    }

    /// Lets go of the contexts that marks use.
    pub fn let_go(&mut self) {
        self.marks.let_go();
        self.streams.values_mut().for_each(|stream| stream.marks.clear());
    }

    /// Whether there are no marks.
    pub fn has_no_marks(&self) -> bool {
        self.marks.is_empty() && self.streams.values().all(|stream| stream.marks.is_empty())
    }

    /// For so long a stream has been full, and a thread held.
    pub fn full_for(&self) -> Duration {
        let full = self.streams.values().filter_map(|stream| stream.depth.full).min();
        full.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// No thread is held here any more. The gate thread's marks are told how many calls are under way at most, if that is known here: of
    /// those that were limited.
    pub fn hand_over(&mut self, process: &Process, spacing: u64) {
        self.forget_passed();
        self.streams.values_mut().for_each(|stream| stream.depth.full = None);
        if process.captures.any() || process.value_waits.any() {
            return;
        }
        let under_way = |stream: &Stream| stream.depth.calls(stream.marks.len() as u64 + 1, spacing);
        let under_way = self.streams.values().map(under_way).sum::<u64>().max(CALLS_BETWEEN_DUE);
        self.marks.note_under_way(Calls::now(process), under_way);
    }
}

impl StreamMark {
    /// Sets one, in a stream of the calling thread's call. `None`: it cannot be set.
    fn set(process: &'static Process, place: &Place, stream: CUstream) -> Option<Self> {
        let used = process.contexts.keep(place.context())?;
        let set = || Behind::in_stream(used.context, stream);
        // It would break a capture that began just now.
        let mark = process.captures.while_none_begins(|any| {
            let may_set = !any || !takes_nothing(stream).unwrap_or(true);
            may_set.then(set)
        });
        Some(Self { mark: mark?.ok()?, set: Instant::now(), _used: used })
    }
}

/// Whether the first one is passed, if there is one.
fn is_first_passed(marks: &VecDeque<StreamMark>) -> bool {
    marks.front().is_some_and(|first| first.mark.is_passed().unwrap_or(true))
}

/// How many are passed.
fn forget_passed(marks: &mut VecDeque<StreamMark>) -> u64 {
    let before = marks.len();
    while is_first_passed(marks) {
        marks.pop_front();
    }
    (before - marks.len()) as u64
}

/// How many calls may be under way in a stream.
struct Depth {
    /// So many more than at first.
    more: u64,
    /// So many calls, at least, the stream could have done besides each time that it had nothing to do, and more than may be under
    /// way; and how often that was.
    missed: (u64, u32),
    /// So many came to look since the last mark.
    looks: u64,
    /// When the last one did, and which thread.
    looked: Option<Instant>,
    thread: Option<ThreadId>,
    /// When a mark was seen to be passed, and others were not.
    passed: Option<Instant>,
    /// How long a call takes, at least, as marks say; and as the last ones said.
    each: Option<Duration>,
    took: Option<Duration>,
    /// That is long, and other jobs wait.
    has_few: bool,
    /// Threads were held since the stream had nothing to do, when it was seen last how often any waited for the GPU.
    held: Option<u64>,
    /// Since when a thread is held.
    full: Option<Instant>,
    /// The thread that came last was held: what the stream could have done since then is no loss of a program that did something else,
    /// but of one that was told late, as on a busy machine.
    was_held: bool,
}

impl Default for Depth {
    fn default() -> Self {
        // The first one sets a mark.
        Self {
            more: 0,
            missed: NEVER,
            looks: MOST,
            looked: None,
            thread: None,
            passed: None,
            each: None,
            took: None,
            has_few: false,
            held: None,
            full: None,
            was_held: false,
        }
    }
}

impl Depth {
    /// So many calls are between two marks, of which there are few.
    fn spacing(&self, spacing: u64) -> u64 {
        spacing.max(self.most(spacing).div_ceil(MOST_MARKS))
    }

    /// So many calls, at most, are before the last of so many marks.
    fn calls(&self, marks: u64, spacing: u64) -> u64 {
        marks * self.spacing(spacing)
    }

    fn most(&self, spacing: u64) -> u64 {
        let marks = if self.has_few { 1 } else { LEAST_MARKS };
        (self.more + marks * spacing).min(MOST)
    }

    fn is_full(&self, marks: u64, spacing: u64) -> bool {
        self.calls(marks, spacing) >= self.most(spacing)
    }

    /// A thread is held, all having waited for the GPU so often.
    fn hold(&mut self, waits: u64) {
        self.held.get_or_insert(waits);
        self.full.get_or_insert_with(Instant::now);
        self.was_held = true;
    }

    /// A call goes on. Whether a mark is set before it.
    fn is_mark_due(&mut self, spacing: u64) -> bool {
        (self.full, self.was_held) = (None, false);
        self.looks += 1;
        let is_due = self.looks * spacing >= self.spacing(spacing);
        if is_due {
            self.looks = 0;
        }
        is_due
    }

    /// So many marks were seen to be passed; `is_busy`: there are others.
    fn note_passed(&mut self, count: u64, is_busy: bool, now: Instant, spacing: u64) {
        let calls = u32::try_from(self.calls(count, spacing)).unwrap_or(u32::MAX).max(1);
        let each =
            self.passed.filter(|_| is_busy).map(|before| now.saturating_duration_since(before) / calls);
        self.took = each.or(self.took);
        self.each = self.each.into_iter().chain(each).min();
        self.passed = is_busy.then_some(now);
    }

    /// It is full, and twice as many calls may be under way, if these take no longer than `time`, and if it was seen how long the last
    /// ones took since that was so before.
    fn goes_deeper(&mut self, time: Duration, spacing: u64) -> bool {
        let most = self.most(spacing);
        let Some(took) = self.took.take().filter(|took| *took * (most as u32) < time) else { return false };
        let fits = u64::try_from(time.as_nanos() / took.as_nanos().max(1)).unwrap_or(u64::MAX);
        self.more = fits.min(most * 2).saturating_sub(LEAST_MARKS * spacing);
        self.most(spacing) > most
    }

    /// How many calls the stream could have done in that time.
    fn calls_in(&self, time: Duration) -> u64 {
        let each = self.each.map_or(u128::MAX, |each| each.as_nanos().max(1));
        u64::try_from(time.as_nanos() / each).unwrap_or(u64::MAX)
    }

    /// The stream has nothing to do, all having waited for the GPU so often, and could have done so many calls since the last look.
    fn ran_dry(&mut self, waits: u64, missed: u64, spacing: u64) {
        // Had as many been under way as may be it would have been held up by no more than a look.
        if self.held.take() != Some(waits) || missed <= self.most(spacing) {
            return;
        }
        self.missed = (self.missed.0.min(missed), self.missed.1 + 1);
        if self.missed.1 == OFTEN {
            self.more = self.missed.0.min(MOST);
            self.missed = NEVER;
            debug!("a stream had nothing to do after calls were held: {} more may be under way", self.more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACING: u64 = CALLS_BETWEEN_DUE;
    const LEAST: u64 = LEAST_MARKS * SPACING;

    /// Threads were held that often, and each time the stream could have done so many calls besides, then.
    fn after(missed: impl IntoIterator<Item = u64>) -> Depth {
        let mut depth = Depth::default();
        for missed in missed {
            depth.hold(0);
            depth.ran_dry(0, missed, SPACING);
        }
        depth
    }

    #[test]
    fn as_many_more_may_be_under_way_as_a_stream_could_have_done_often() {
        let most = |missed: &[u64]| after(missed.iter().copied()).most(SPACING);
        assert_eq!(most(&[500; OFTEN as usize - 1]), LEAST, "not often");
        assert_eq!(most(&[500; OFTEN as usize]), LEAST + 500);
        let mut once_less = [500; OFTEN as usize];
        once_less[3] = 100;
        assert_eq!(most(&once_less), LEAST + 100);
        let often_short = [[LEAST; 8], [500; 8], [LEAST; 8]].concat();
        assert_eq!(most(&often_short), LEAST + 500, "a look takes as long");
        assert_eq!(most(&[100_000; OFTEN as usize]), MOST, "the driver's queue has no room for more");
    }

    #[test]
    fn no_more_may_be_under_way_where_none_was_held_or_a_thread_has_waited_for_the_gpu() {
        let mut depth = Depth::default();
        (0..OFTEN).for_each(|_| depth.ran_dry(0, 500, SPACING));
        assert_eq!(depth.most(SPACING), LEAST);
        for waits in 0..u64::from(OFTEN) {
            depth.hold(waits);
            depth.ran_dry(waits + 1, 500, SPACING);
        }
        assert_eq!(depth.most(SPACING), LEAST);
    }

    #[test]
    fn while_others_may_be_held_up_twice_as_many_go_each_time_that_it_is_seen_how_long_they_take() {
        let (mut depth, begin, ms) = (Depth::default(), Instant::now(), Duration::from_millis(1));
        let mut at = 0;
        let mut most_after = |took: u32| {
            for _ in 0..2 {
                depth.note_passed(1, true, begin + ms * at, SPACING);
                at += took * SPACING as u32;
            }
            depth.goes_deeper(ms * 200, SPACING).then(|| depth.most(SPACING))
        };
        assert_eq!([most_after(1), most_after(1)], [Some(2 * LEAST), Some(4 * LEAST)]);
        assert_eq!([most_after(3), most_after(4)], [Some(66), None], "they have become longer");
        let mut depth = Depth::default();
        assert!(!depth.goes_deeper(ms * 200, SPACING), "it is not known how long they take");
    }

    #[test]
    fn how_long_calls_take_is_seen_from_marks_that_follow_each_other() {
        let (mut depth, begin, us) = (Depth::default(), Instant::now(), Duration::from_micros(1));
        for (at, count, is_busy) in
            [(0, 1, true), (80, 1, true), (320, 1, true), (330, 1, false), (340, 1, true)]
        {
            depth.note_passed(count, is_busy, begin + us * at, SPACING);
        }
        assert_eq!(depth.each, Some(us * 80 / SPACING as u32), "others followed a pause");
        assert_eq!((depth.calls_in(us * 5000), Depth::default().calls_in(us)), (500, 0));
    }

    #[test]
    fn a_stream_is_full_with_two_marks_at_first_and_never_has_more_than_eight() {
        for (more, spacing, marks) in [(0, SPACING, 2), (0, 128, 2), (MOST, SPACING, MOST_MARKS)] {
            let depth = Depth { more, ..Depth::default() };
            assert_eq!((1..).find(|marks| depth.is_full(*marks, spacing)), Some(marks), "{more} {spacing}");
        }
        assert!(Depth { has_few: true, ..Depth::default() }.is_full(1, SPACING), "other jobs wait");
    }

    #[test]
    fn the_more_may_be_under_way_the_more_calls_are_between_two_marks() {
        let mut depth = Depth { more: 4 * MOST_MARKS * SPACING - LEAST, ..Depth::default() };
        let due = [(); 9].map(|()| depth.is_mark_due(SPACING));
        assert_eq!(due, [true, false, false, false, true, false, false, false, true]);
    }

    #[test]
    fn a_stream_is_full_from_when_the_first_thread_is_held_until_one_goes_on() {
        let mut depth = Depth::default();
        depth.hold(0);
        let since = depth.full;
        depth.hold(0);
        assert!(since.is_some() && depth.full == since);
        depth.is_mark_due(SPACING);
        assert_eq!(depth.full, None);
    }
}
