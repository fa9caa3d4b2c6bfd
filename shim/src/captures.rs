//! The streams that are capturing: meanwhile nothing is asked of the driver that would break their captures, and the gate closes
//! only where it is known of [all that is submitted besides](crate::beside_captures) when it has ended. What is captured is not
//! submitted yet: those calls are counted apart.
#![forbid(unsafe_code)]

use crate::beside_captures::{Beside, look_at_calls};
use crate::driver::{Context, PER_THREAD};
use crate::gate::{GATE, Record, Stamp};
use crate::host_functions;
use crate::process::Process;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;
use tidegate_ffi::cuda::sys::CUstream;

/// See the module.
#[derive(Default)]
pub struct Captures {
    open: Mutex<Open>,
    /// Held while a first capture is prepared for.
    preparing: Mutex<()>,
    /// Whether it is noted what is submitted besides.
    are_noted: AtomicBool,
    /// So many calls were made while their thread captured.
    calls: AtomicU64,
    /// So often a capture has begun or ended.
    changes: AtomicU64,
}

/// The captures that have not ended.
#[derive(Default)]
struct Open {
    streams: HashMap<Stream, Capture>,
    /// What is submitted besides.
    beside: Option<Beside>,
    /// So many threads are about to begin one.
    beginning: u32,
}

impl Open {
    /// So many calls are captured so far. Where a thread has several captures its calls count once.
    fn captured(&self) -> u64 {
        let mut longest: Vec<&Stamp> = Vec::new();
        for Capture { since, .. } in self.streams.values() {
            match longest.iter_mut().find(|known| known.is_of_same_thread(since)) {
                Some(known) if known.submissions_since() < since.submissions_since() => *known = since,
                Some(_) => {}
                None => longest.push(since),
            }
        }
        longest.into_iter().map(Stamp::submissions_since).sum()
    }
}

/// One that has not ended.
struct Capture {
    /// That began it.
    thread: ThreadId,
    /// The thread's context, with which the capture ends at the latest.
    context: Option<Context>,
    /// What the thread makes after this is captured, most likely.
    since: Stamp,
}

/// A stream, by its handle; a default stream by its thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Stream {
    Made(usize),
    Default(ThreadId),
}

impl Stream {
    /// 0 is a default stream too, and that of a thread: the one of all threads cannot be captured.
    fn of(handle: usize) -> Self {
        match handle {
            0 | PER_THREAD => Self::Default(std::thread::current().id()),
            handle => Self::Made(handle),
        }
    }
}

/// A thread is about to begin a capture.
pub struct Beginning<'a>(&'a Captures);

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        let mut open = self.0.open.lock();
        open.beginning -= 1;
        self.0.forget_what_is_beside_none(&mut open);
    }
}

impl Captures {
    /// Is called before a capture begins: from now on it is noted what is submitted besides.
    pub fn prepare(&self, process: &Process) -> Beginning<'_> {
        let _one = self.preparing.lock();
        let mut open = self.open.lock();
        open.beginning += 1;
        let beginning = Beginning(self);
        if open.beside.is_some() {
            return beginning;
        }
        open.beside = Some(Beside::default());
        self.are_noted.store(true, Ordering::SeqCst);
        drop(open);
        if look_at_calls() {
            let mut open = self.open.lock();
            let is_first = open.streams.is_empty();
            if let Some(beside) = open.beside.as_mut().filter(|_| is_first) {
                beside.begin(process);
            }
        }
        beginning
    }

    /// Begins a capture by a call of the driver in this thread; `context` is the current one.
    pub fn begin<E>(
        &self,
        stream: usize,
        context: Option<Context>,
        call: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut open = self.open.lock();
        if let Some(beside) = &mut open.beside {
            beside.capture_stream(stream);
        }
        call()?;
        let capture = Capture { thread: std::thread::current().id(), context, since: Stamp::now() };
        open.streams.insert(Stream::of(stream), capture);
        host_functions::see_captured(true);
        self.changes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A capture has ended, well or not.
    pub fn ended(&self, stream: usize) {
        self.note_end(&mut self.open.lock(), Stream::of(stream));
    }

    /// Destroys a stream by a call of the driver, which ends its capture, and after which another stream may have the handle.
    pub fn destroy<E>(&self, stream: usize, call: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut open = self.open.lock();
        if let Some(beside) = &mut open.beside {
            beside.leave_stream(stream);
        }
        call()?;
        self.note_end(&mut open, Stream::of(stream));
        Ok(())
    }

    /// Whether a capture has begun in this stream that has not ended.
    pub fn has_begun_in(&self, stream: usize) -> bool {
        self.open.lock().streams.contains_key(&Stream::of(stream))
    }

    /// A context is about to come to its end, or all that is in it.
    pub fn leave_context(&self, context: Context) {
        self.with_what_is_beside(|beside| beside.leave_context(context));
    }

    /// It has, and its captures with it.
    pub fn ended_with(&self, context: Context) {
        let mut open = self.open.lock();
        let is_of = |capture: &Capture| capture.context == Some(context);
        let ended = open.streams.iter().filter(|(_, capture)| is_of(capture)).map(|(stream, _)| *stream);
        for stream in ended.collect::<Vec<_>>() {
            self.note_end(&mut open, stream);
        }
    }

    fn note_end(&self, open: &mut Open, stream: Stream) {
        let Some(ended) = open.streams.remove(&stream) else { return };
        host_functions::see_captured(!open.streams.is_empty());
        self.calls.fetch_add(ended.since.submissions_since(), Ordering::Relaxed);
        // Where the thread has more captures its calls count once.
        for capture in
            open.streams.values_mut().filter(|capture| capture.since.is_of_same_thread(&ended.since))
        {
            capture.since = ended.since.as_of_now();
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.forget_what_is_beside_none(open);
    }

    /// Where no stream captures a mark can be set behind all work.
    fn forget_what_is_beside_none(&self, open: &mut Open) {
        if open.streams.is_empty() && open.beginning == 0 && open.beside.take().is_some() {
            self.are_noted.store(false, Ordering::SeqCst);
            GATE.stop_watching_calls();
        }
    }

    /// The calling thread is about to submit something to that stream; `None`: to some stream. Whether it is to be
    /// [said](Self::note_return) when the call has returned.
    pub fn note_submission(&self, stream: Option<CUstream>) -> bool {
        let is_noted = self.with_what_is_beside(|beside| beside.note(stream)).is_some();
        is_noted && stream.is_some_and(|stream| stream.addr() == PER_THREAD)
    }

    /// A call of the calling thread has returned.
    pub fn note_return(&self) {
        self.with_what_is_beside(|beside| _ = beside.mark_own_stream(false));
    }

    /// The calling thread is about to wait at the gate, or has waited for its GPU. Whether it has to say so again, soon.
    pub fn note_waiting(&self) -> bool {
        self.with_what_is_beside(|beside| beside.mark_own_stream(true)).unwrap_or(false)
    }

    /// What is submitted besides, if it is noted. Where it is not that is seen without a lock.
    fn with_what_is_beside<T>(&self, act: impl FnOnce(&mut Beside) -> T) -> Option<T> {
        if !self.are_noted() {
            return None;
        }
        self.open.lock().beside.as_mut().map(act)
    }

    /// Whether it is noted what is submitted.
    pub fn are_noted(&self) -> bool {
        self.are_noted.load(Ordering::SeqCst)
    }

    /// Whether it is known of all that was submitted, but not captured, when it has ended. While no stream captures it is not.
    pub fn is_known_what_is_beside(&self) -> bool {
        self.with_what_is_beside(|beside| beside.is_known()).unwrap_or(false)
    }

    /// Whether all has ended that was submitted, and not captured, while this is known.
    pub fn has_ended_what_is_beside(&self) -> bool {
        self.with_what_is_beside(Beside::has_ended).unwrap_or(false)
    }

    /// The contexts in which there are captures that have not ended.
    pub fn contexts(&self) -> BTreeSet<Context> {
        self.open.lock().streams.values().filter_map(|capture| capture.context).collect()
    }

    /// How many calls have submitted work, so far: those that were captured have not.
    pub fn submissions(&self) -> u64 {
        let open = self.open.lock();
        let all = Record::submissions();
        all.saturating_sub(self.calls.load(Ordering::Relaxed) + open.captured())
    }

    /// Whether any stream captures.
    pub fn any(&self) -> bool {
        !self.open.lock().streams.is_empty()
    }

    /// How often a capture has begun or ended.
    pub fn changes(&self) -> u64 {
        let _none_changes = self.open.lock();
        self.changes.load(Ordering::Relaxed)
    }

    /// Makes a call that would break captures, which none begins meanwhile; `None`: a stream captures.
    pub fn unless_any<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        self.while_none_begins(|any| (!any).then(call))
    }

    /// Makes a call while no capture begins, that is told whether any stream captures.
    pub fn while_none_begins<T>(&self, call: impl FnOnce(bool) -> T) -> T {
        let open = self.open.lock();
        call(!open.streams.is_empty())
    }

    /// Whether the calling thread has begun a capture that has not ended.
    pub fn any_of_this_thread(&self) -> bool {
        let this = std::thread::current().id();
        self.open.lock().streams.values().any(|capture| capture.thread == this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn begins() -> Result<(), ()> {
        Ok(())
    }

    #[test]
    fn each_thread_has_a_default_stream_of_its_own() {
        let captures = Captures::default();
        captures.begin(PER_THREAD, None, begins).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                captures.begin(0, None, begins).unwrap();
                captures.ended(PER_THREAD);
                assert!(!captures.any_of_this_thread());
            });
        });
        assert!(captures.any() && captures.any_of_this_thread());
        captures.ended(0);
        assert!(!captures.any());
    }

    fn call() {
        let record = Record::of_thread_or_new();
        record.enter();
        record.leave();
    }

    #[test]
    fn what_is_captured_is_not_submitted() {
        let captures = Captures::default();
        captures.begin(77, None, begins).unwrap();
        call();
        captures.begin(78, None, begins).unwrap();
        call();
        captures.ended(77);
        call();
        captures.ended(78);
        call();
        assert_eq!(captures.calls.into_inner(), 3);
    }

    #[test]
    fn a_call_that_is_captured_does_not_count_before_the_capture_has_ended_either() {
        let captures = Captures::default();
        for (stream, captured) in [(77, 1), (78, 2)] {
            captures.begin(stream, None, begins).unwrap();
            call();
            assert_eq!(captures.open.lock().captured(), captured);
        }
        captures.ended(77);
        assert_eq!((captures.calls.load(Ordering::Relaxed), captures.open.lock().captured()), (2, 0));
    }

    #[test]
    fn a_capture_that_another_thread_ends_counts_once() {
        let captures = Captures::default();
        captures.begin(77, None, begins).unwrap();
        call();
        // As of a thread that has got the record of one that has ended.
        captures.open.lock().streams.get_mut(&Stream::of(77)).unwrap().thread = other_thread();
        captures.begin(78, None, begins).unwrap();
        call();
        captures.ended(77);
        captures.ended(78);
        assert_eq!(captures.calls.into_inner(), 2);
    }

    fn other_thread() -> ThreadId {
        std::thread::spawn(|| std::thread::current().id()).join().unwrap()
    }

    #[test]
    fn the_end_of_what_did_not_begin_ends_nothing() {
        let captures = Captures::default();
        captures.begin(77, None, begins).unwrap();
        captures.ended(78);
        assert!(captures.any());
        captures.ended(77);
        assert!(!captures.any());
    }

    #[test]
    fn a_capture_ends_with_its_stream_if_the_driver_destroys_it() {
        let captures = Captures::default();
        captures.begin(77, None, begins).unwrap();
        captures.destroy(77, || Err("refused")).unwrap_err();
        assert!(captures.has_begun_in(77) && !captures.has_begun_in(78));
        captures.destroy(77, begins).unwrap();
        assert!(!captures.any());
    }

    #[test]
    fn a_contexts_captures_end_with_it() {
        let contexts = [1, 2].map(|handle| Context(std::ptr::without_provenance_mut(handle)));
        let captures = Captures::default();
        captures.begin(77, Some(contexts[0]), begins).unwrap();
        captures.begin(78, Some(contexts[1]), begins).unwrap();
        captures.ended_with(contexts[0]);
        assert_eq!(captures.contexts(), BTreeSet::from([contexts[1]]));
        captures.ended_with(contexts[1]);
        assert!(!captures.any());
    }

    #[test]
    fn a_capture_that_is_refused_has_not_begun() {
        let captures = Captures::default();
        captures.begin(77, None, || Err("refused")).unwrap_err();
        assert!(!captures.any());
    }

    #[test]
    fn what_would_break_captures_is_called_while_there_is_none_and_none_begins_meanwhile() {
        let (captures, is_called) = (Captures::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let called = captures.unless_any(|| {
                scope.spawn(|| {
                    captures
                        .begin(77, None, || if is_called.load(Ordering::SeqCst) { Ok(()) } else { Err(()) })
                        .unwrap()
                });
                // A capture that did not wait would have begun by then.
                std::thread::sleep(std::time::Duration::from_millis(20));
                is_called.store(true, Ordering::SeqCst);
            });
            assert!(called.is_some());
        });
        assert!(captures.unless_any(|| ()).is_none());
    }
}
