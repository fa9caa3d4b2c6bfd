//! What is submitted while streams capture, and when it has ended.
//!
//! Meanwhile no mark can be set behind all work: that breaks captures. So one is set before the first capture begins, and from
//! [before that](look_at_calls) on it is noted to which streams calls submit. A mark is set in each of these when that is asked, and not
//! behind each call: the streams may have no room for so many. In its own default stream only a thread itself can set one: it does
//! so behind its calls, a few at a time, and when it waits.
//!
//! Invariant: what is [known](Beside::is_known) is all. A call that was made and of which nothing can be noted ends that, until no
//! stream captures.
#![forbid(unsafe_code)]

use crate::contexts::Used;
use crate::driver::{self, Behind, Context, Current, PER_THREAD, Relaxed};
use crate::gate::{GATE, Pause, Record};
use crate::process::Process;
use std::collections::{HashMap, VecDeque};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::{CUresult, CUstream};

/// So many marks of a thread are in its own default stream at most that are not passed: they take room there. Twice as many if it
/// waits then.
const MARKS: usize = 8;
/// For so long those are waited for that are inside calls when calls begin to be looked at.
const INSIDE: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Default)]
pub struct Beside {
    /// Behind what was submitted before.
    before: Vec<Behind>,
    /// The streams to which work was submitted since.
    streams: HashMap<Place, Submitted>,
    /// Behind what other streams had, which were destroyed or capture.
    left: Vec<Behind>,
    /// The first mark has been set.
    has_begun: bool,
    /// A call of which nothing could be noted may be made after that.
    has_missed: bool,
}

/// A stream. A default stream's handle is that of others, too: of each context, or of each thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    handle: usize,
    context: Context,
    /// The thread, if it is that thread's own default stream.
    thread: Option<ThreadId>,
}

impl Place {
    /// The stream that the calling thread means.
    pub fn of(stream: CUstream) -> Result<Self, DriverError> {
        let thread = (stream.addr() == PER_THREAD).then(|| std::thread::current().id());
        Ok(Self { handle: stream.addr(), context: driver::context_of(stream)?, thread })
    }

    /// Its context.
    pub fn context(&self) -> Context {
        self.context
    }

    fn stream(&self) -> CUstream {
        std::ptr::with_exposed_provenance_mut(self.handle)
    }

    /// Whether it is the default stream of all threads.
    fn is_legacy(&self) -> bool {
        self.handle < PER_THREAD
    }
}

/// Work that was submitted to a stream.
#[derive(Default)]
struct Submitted {
    /// The marks that are not known to be passed, the first one first.
    marks: VecDeque<Behind>,
    /// Whether more was submitted since, or is just now.
    more: More,
}

/// Whether work was submitted to a stream.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum More {
    #[default]
    None,
    /// When it was noted the stream took nothing.
    Perhaps,
    Some,
}

impl Submitted {
    /// Whether all marks are passed.
    fn is_passed(&mut self) -> Result<bool, DriverError> {
        while let Some(first) = self.marks.front() {
            if !first.is_passed()? {
                return Ok(false);
            }
            self.marks.pop_front();
        }
        Ok(true)
    }

    /// Sets a mark in that stream behind what has none, if there are fewer than that which are not passed.
    fn set_mark(&mut self, place: &Place, most: usize) -> Result<(), DriverError> {
        if self.more == More::Perhaps {
            // It captures still, most likely, and did all the time.
            let _current = Current::make(place.context)?;
            self.more = if takes_nothing(place.stream())? { More::None } else { More::Some };
        }
        if self.more == More::Some && (self.is_passed()? || self.marks.len() < most) {
            self.marks.push_back(mark_in(place.stream(), place.context)?);
            self.more = More::None;
        }
        Ok(())
    }

    /// Whether it has ended.
    fn has_ended(&mut self) -> Result<bool, DriverError> {
        Ok(self.is_passed()? && self.more != More::Some)
    }
}

/// Looks at all calls from now on. False: some may be missed.
pub fn look_at_calls() -> bool {
    if !GATE.watch_calls() {
        return false;
    }
    let inside = Record::calls_inside();
    let (mut pause, until) = (Pause::default(), Instant::now() + INSIDE);
    while Record::calls_inside().iter().any(|call| inside.contains(call)) {
        if !pause.before(until) {
            return false;
        }
    }
    true
}

/// Whether nothing can be submitted to a stream: it captures, or it is the legacy default stream and would wait for one that does.
pub fn takes_nothing(stream: CUstream) -> Result<bool, DriverError> {
    match driver::is_capturing(stream) {
        Err(error) if error.code == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
        asked => asked,
    }
}

/// A mark behind what a stream has, if it does not capture: nothing can be known of it then.
fn mark_in(stream: CUstream, context: Context) -> Result<Behind, DriverError> {
    let _current = Current::make(context)?;
    // Of a default stream this cannot be said where a mark would break a capture of another.
    if driver::is_capturing(stream)? {
        let code = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        return Err(DriverError { call: "cuEventRecord", code });
    }
    Behind::in_stream(context, stream)
}

impl Beside {
    /// Sets marks behind all that was submitted before now, while no stream captures and all calls are [looked at](look_at_calls).
    pub fn begin(&mut self, process: &Process) {
        let mark = |used: Used<'_>| Behind::all_of(used.context);
        let before = process.contexts.keep_all().into_iter().map(mark).collect::<Result<_, DriverError>>();
        self.has_begun = before.is_ok();
        self.before = before.unwrap_or_default();
    }

    /// The calling thread is about to submit work to that stream; `None`: to some stream.
    pub fn note(&mut self, stream: Option<CUstream>) {
        let _relaxed = Relaxed::begin();
        self.has_missed |= stream.is_none_or(|stream| self.note_in(stream).is_err());
    }

    fn note_in(&mut self, stream: CUstream) -> Result<(), DriverError> {
        let more = if takes_nothing(stream)? { More::Perhaps } else { More::Some };
        let submitted = self.streams.entry(Place::of(stream)?).or_default();
        submitted.more = submitted.more.max(more);
        Ok(())
    }

    /// The calling thread has submitted work, or waits: it may set no mark in its own default stream any more. Whether it has to come
    /// again, for there is no room now.
    pub fn mark_own_stream(&mut self, is_waiting: bool) -> bool {
        let _relaxed = Relaxed::begin();
        let this = Some(std::thread::current().id());
        let own = self.streams.iter_mut().filter(|(place, _)| place.thread == this);
        let most = if is_waiting { 2 * MARKS } else { MARKS };
        let mut is_left = false;
        for (place, submitted) in own {
            self.has_missed |= submitted.set_mark(place, most).is_err();
            is_left |= submitted.more == More::Some;
        }
        is_left
    }

    /// A stream is about to be destroyed, after which another one may have its handle.
    pub fn leave_stream(&mut self, handle: usize) {
        self.leave(|place| place.thread.is_none() && place.handle == handle);
    }

    /// The calling thread, which is inside a call, is about to capture a stream. After that the legacy default stream may take nothing,
    /// and no mark. Where other threads are inside one of them may be about to submit to that: its work stays noted.
    pub fn capture_stream(&mut self, handle: usize) {
        self.leave_stream(handle);
        if Record::calls_inside().len() <= 1 {
            self.leave(Place::is_legacy);
        }
    }

    fn leave(&mut self, is_left: impl Fn(&Place) -> bool) {
        let _relaxed = Relaxed::begin();
        self.forget_what_has_left();
        let places: Vec<_> = self.streams.keys().copied().filter(|place| is_left(place)).collect();
        for place in places {
            let submitted = self.streams.remove(&place).unwrap_or_default();
            self.has_missed |= self.keep(&place, submitted).is_err();
        }
    }

    /// Keeps a mark behind what the stream has. Where there is nothing none is set: it might find no room.
    fn keep(&mut self, place: &Place, mut submitted: Submitted) -> Result<(), DriverError> {
        let current = Current::make(place.context)?;
        let is_idle =
            !driver::is_capturing(place.stream()).unwrap_or(true) && !driver::is_busy(place.stream());
        drop(current);
        if !is_idle {
            submitted.set_mark(place, usize::MAX)?;
            self.left.extend(submitted.marks);
        }
        Ok(())
    }

    /// A context is about to be destroyed, or emptied: a closing waits for that ([`Contexts::is_one_ending`]), and by then all
    /// its work has ended.
    ///
    /// [`Contexts::is_one_ending`]: crate::contexts::Contexts::is_one_ending
    pub fn leave_context(&mut self, context: Context) {
        let is_of_another = |behind: &Behind| behind.context() != context;
        self.before.retain(is_of_another);
        self.left.retain(is_of_another);
        self.streams.retain(|place, _| place.context != context);
    }

    fn forget_what_has_left(&mut self) {
        // Of what cannot be asked nothing is known.
        let has_missed = &mut self.has_missed;
        let mut is_under_way = |behind: &Behind| {
            let is_passed = behind.is_passed();
            *has_missed |= is_passed.is_err();
            is_passed.is_ok_and(|is_passed| !is_passed)
        };
        self.before.retain(&mut is_under_way);
        self.left.retain(&mut is_under_way);
    }

    /// Whether it is known of all work when it has ended.
    pub fn is_known(&self) -> bool {
        self.has_begun && !self.has_missed
    }

    /// Whether all work has ended. Sets a mark in each stream whose last work has none, if the marks before it are passed.
    pub fn has_ended(&mut self) -> bool {
        self.forget_what_has_left();
        self.streams.retain(|place, submitted| {
            let marked = if place.thread.is_none() { submitted.set_mark(place, 1) } else { Ok(()) };
            let has_ended = marked.and_then(|()| submitted.has_ended());
            self.has_missed |= has_ended.is_err();
            !has_ended.unwrap_or(true)
        });
        self.is_known() && self.before.is_empty() && self.left.is_empty() && self.streams.is_empty()
    }
}
