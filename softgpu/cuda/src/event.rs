//! Events: a mark in a stream that others query, wait for and measure between.
//!
//! Recording makes a new [`Record`], so a wait refers to the recording it saw, whatever is recorded
//! into the event later.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cudarc::driver::sys::{CUcontext, CUevent, CUresult, CUstream};
use parking_lot::Mutex;

use crate::abi::{Answer, Out};
use crate::context::{self, Context};
use crate::graph::node::Work;
use crate::graph::{self, Capture};
use crate::mark::Mark;
use crate::registry::Registry;
use crate::stream::{self, Stream};
use crate::work::Op;

const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// A wait or a record that is a node where the stream is being captured.
const EXTERNAL: u32 = 1;

/// An event.
struct Event {
    handle: usize,
    context: Arc<Context>,
    flags: u32,
    last: Mutex<Last>,
    /// What other processes see of it.
    mark: Option<Arc<Mark>>,
}

/// What was last recorded into an event.
#[derive(Clone)]
enum Last {
    Never,
    Recorded(Arc<Record>),
    /// On a capturing stream: after those nodes of its graph.
    Captured(Arc<Capture>, Vec<usize>),
}

/// One recording: complete when all its streams have come to it.
pub struct Record {
    context: Arc<Context>,
    missing: AtomicUsize,
    at: OnceLock<Instant>,
    /// What other processes are to see of it.
    shown: Option<(Arc<Mark>, u64)>,
}

static EVENTS: Registry<Event> = Registry::new();

impl Record {
    /// A recording that `streams` streams have to come to.
    fn new(event: &Event, context: Arc<Context>, streams: usize) -> Arc<Record> {
        let shown = event.mark.as_ref().map(|mark| (mark.clone(), mark.begin()));
        Arc::new(Record { context, missing: AtomicUsize::new(streams), at: OnceLock::new(), shown })
    }

    /// A stream came here.
    pub fn arrive(&self) {
        if self.missing.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = self.at.set(Instant::now());
            if let Some((mark, number)) = &self.shown {
                mark.finish(*number);
            }
            self.context.monitor.announce();
        }
    }

    /// Whether all have come.
    pub fn is_complete(&self) -> bool {
        self.at.get().is_some()
    }

    /// Returns when it is complete, or never will be, or `waiter` has a fault.
    pub fn wait(&self, waiter: &Context) {
        self.context
            .monitor
            .wait_until(|| self.is_complete() || self.context.is_faulted() || waiter.is_faulted());
    }
}

/// `cuEventCreate`
pub fn create(out: Out<CUevent>, flags: u32) -> Answer {
    let context = context::current()?;
    if flags > 7 || flags & (INTERPROCESS | DISABLE_TIMING) == INTERPROCESS {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let shared = flags & INTERPROCESS != 0;
    let mark = shared.then(|| Mark::create().map(Arc::new).ok_or(CUresult::CUDA_ERROR_OPERATING_SYSTEM));
    out.set(add(context, flags, mark.transpose()?));
    Ok(())
}

fn add(context: Arc<Context>, flags: u32, mark: Option<Arc<Mark>>) -> CUevent {
    let last = Mutex::new(Last::Never);
    EVENTS.add(|handle| Event { handle, context, flags, last, mark }).handle as CUevent
}

/// What other processes see of an event that was made for that.
pub fn mark_of(event: CUevent) -> Answer<Arc<Mark>> {
    find(event)?.mark.clone().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// An event of another process.
pub fn open(mark: Arc<Mark>) -> Answer<CUevent> {
    Ok(add(context::current()?, INTERPROCESS | DISABLE_TIMING, Some(mark)))
}

/// `cuEventDestroy_v2`
pub fn destroy(event: CUevent) -> Answer {
    EVENTS.remove(event as usize).map(drop).ok_or(INVALID_HANDLE)
}

/// `cuEventRecord`
pub fn record(event: CUevent, stream: CUstream) -> Answer {
    let (event, stream) = (find(event)?, stream::resolve(stream)?);
    if event.context.handle != stream.context.handle {
        return Err(INVALID_HANDLE);
    }
    if let Some(capture) = stream.capture() {
        *event.last.lock() = Last::Captured(capture.clone(), capture.reached_by(&stream)?);
        return Ok(());
    }
    let record = Record::new(&event, stream.context.clone(), 1);
    stream.submit(Op::Record(record.clone()))?;
    *event.last.lock() = Last::Recorded(record);
    Ok(())
}

/// `cuEventRecordWithFlags`: an external record is a node of a graph that is being captured.
pub fn record_with_flags(event: CUevent, stream: CUstream, flags: u32) -> Answer {
    let capture = stream::resolve(stream)?.capture();
    match (flags, capture) {
        (EXTERNAL, Some(capture)) => capture.add(&stream::resolve(stream)?, Work::Record(check(event)?)),
        (0 | EXTERNAL, _) => record(event, stream),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// The handle of an event, if it is one.
pub fn check(event: CUevent) -> Answer<usize> {
    Ok(find(event)?.handle)
}

/// A launch of a graph records an event: the operation for its stream.
pub fn record_of_graph(event: usize, stream: &Stream) -> Answer<Op> {
    let event = find(event as CUevent)?;
    let record = Record::new(&event, stream.context.clone(), 1);
    *event.last.lock() = Last::Recorded(record.clone());
    Ok(Op::Record(record))
}

/// A launch of a graph waits for an event: the operation for its stream, if there is something to
/// wait for.
pub fn await_of_graph(event: usize) -> Answer<Option<Op>> {
    match find(event as CUevent)?.last() {
        Last::Recorded(record) => Ok(Some(Op::Await(record))),
        Last::Never | Last::Captured(..) => Ok(None),
    }
}

/// `cuCtxRecordEvent`: all the work of a context submitted until now.
pub fn record_context(context: CUcontext, event: CUevent) -> Answer {
    let (context, event) = (context::named(context)?, find(event)?);
    context.check_not_capturing()?;
    let busy = context.pending_streams();
    let record = Record::new(&event, context.clone(), busy.len() + 1);
    busy.iter().for_each(|stream| stream.follow(&record));
    record.arrive();
    *event.last.lock() = Last::Recorded(record);
    Ok(())
}

/// `cuCtxWaitEvent`: all the work of a context submitted from now on.
pub fn await_in_context(context: CUcontext, event: CUevent) -> Answer {
    let (context, event) = (context::named(context)?, find(event)?);
    context.check_not_capturing()?;
    match event.last() {
        Last::Never => Ok(()),
        Last::Recorded(record) if record.is_complete() => Ok(()),
        Last::Recorded(record) => context.await_everywhere(record),
        Last::Captured(..) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    }
}

/// Makes what is submitted to a stream from now on wait for an event.
pub fn await_on(stream: &Arc<Stream>, event: CUevent, flags: u32) -> Answer {
    let event = find(event)?;
    match (event.last(), stream.capture()) {
        (_, Some(capture)) if flags == EXTERNAL => capture.add(stream, Work::Await(event.handle)),
        (Last::Never | Last::Recorded(_), None) if event.mark.is_some() => event.await_mark(stream),
        (Last::Never, _) => Ok(()),
        (Last::Captured(capture, nodes), _) => capture.join(stream, &nodes),
        (Last::Recorded(_), Some(capture)) => {
            capture.invalidate();
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
        }
        (Last::Recorded(record), None) if record.is_complete() => Ok(()),
        (Last::Recorded(record), None) => stream.submit(Op::Await(record)),
    }
}

/// `cuEventQuery`
pub fn query(event: CUevent) -> Answer {
    let event = find(event)?;
    event.context.check()?;
    graph::check_unsafe_call()?;
    match event.last() {
        Last::Never | Last::Recorded(_) if event.mark.is_some() => event.query_mark(),
        Last::Never => Ok(()),
        Last::Recorded(record) if record.is_complete() => Ok(()),
        Last::Recorded(record) => {
            record.context.check()?;
            Err(CUresult::CUDA_ERROR_NOT_READY)
        }
        Last::Captured(..) => Err(CUresult::CUDA_ERROR_CAPTURED_EVENT),
    }
}

/// `cuEventSynchronize`; of a captured event hardware answers otherwise than [`query`].
pub fn synchronize(event: CUevent) -> Answer {
    let event = find(event)?;
    match event.last() {
        Last::Never | Last::Recorded(_) if event.mark.is_some() => event.synchronize_mark(),
        Last::Never => event.context.check(),
        Last::Captured(..) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        Last::Recorded(record) => {
            record.wait(&event.context);
            record.context.check()
        }
    }
}

/// `cuEventElapsedTime`: milliseconds.
pub fn elapsed(out: Out<f32>, start: CUevent, end: CUevent) -> Answer {
    let (start, end) = (find(start)?.time()?, find(end)?.time()?);
    let later = end.saturating_duration_since(start).as_secs_f64();
    let earlier = start.saturating_duration_since(end).as_secs_f64();
    out.set(((later - earlier) * 1e3) as f32);
    Ok(())
}

impl Event {
    /// A stream waits for what some process recorded last.
    fn await_mark(&self, stream: &Arc<Stream>) -> Answer {
        let Some(mark) = self.mark.clone() else { return Ok(()) };
        let number = mark.last();
        if mark.is_complete(number) { Ok(()) } else { stream.submit(Op::AwaitMark(mark, number)) }
    }

    fn query_mark(&self) -> Answer {
        let complete = self.mark.as_ref().is_none_or(|mark| mark.is_complete(mark.last()));
        if complete { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    fn synchronize_mark(&self) -> Answer {
        if let Some(mark) = &self.mark {
            mark.wait(mark.last(), || self.context.is_faulted());
        }
        self.context.check()
    }

    fn last(&self) -> Last {
        self.last.lock().clone()
    }

    fn time(&self) -> Answer<Instant> {
        match self.last() {
            _ if self.flags & DISABLE_TIMING != 0 => Err(INVALID_HANDLE),
            Last::Recorded(record) => record.at.get().copied().ok_or(CUresult::CUDA_ERROR_NOT_READY),
            Last::Captured(..) => Err(CUresult::CUDA_ERROR_CAPTURED_EVENT),
            Last::Never => Err(INVALID_HANDLE),
        }
    }
}

fn find(event: CUevent) -> Answer<Arc<Event>> {
    EVENTS.get(event as usize).ok_or(INVALID_HANDLE)
}
