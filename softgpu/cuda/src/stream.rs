//! Streams: in-order queues, each with a worker thread that starts with its first operation.
//!
//! The legacy default stream of a context waits for what was submitted to the context's blocking
//! streams before, and they for it: such a wait is itself an operation ([`Op::After`]) that names
//! only operations submitted earlier, so waits never form a circle.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use cudarc::driver::sys::{CUcontext, CUhostFn, CUresult, CUstream, CUstreamAttrID, CUstreamCallback};
use parking_lot::{Condvar, Mutex};

use crate::abi::{Answer, Enum, HostMut, In, InMut, Out};
use crate::context::{self, Context};
use crate::crash;
use crate::event::{self, Record};
use crate::graph::node::RawValue;
use crate::graph::{self, Capture};
use crate::model::{self, Timeline};
use crate::registry::Registry;
use crate::work::{Callback, Function, Op};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NON_BLOCKING: u32 = 1;
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// So many operations of a stream may be submitted and not done: a call that submits more waits until one is.
const DEPTH: u64 = 1024;

/// Least and greatest priority.
pub const PRIORITIES: (i32, i32) = (0, -5);

/// A stream.
pub struct Stream {
    pub handle: usize,
    pub context: Arc<Context>,
    role: Role,
    priority: i32,
    queue: Mutex<Queue>,
    wake: Condvar,
    submitted: AtomicU64,
    completed: AtomicU64,
    /// Records that arrive when so many operations are done, the first ones first.
    followers: Mutex<VecDeque<(u64, Arc<Record>)>>,
    capturing: AtomicBool,
    capture: Mutex<Option<Arc<Capture>>>,
    attributes: Mutex<HashMap<u32, RawValue>>,
}

/// How a stream stands to the legacy default stream.
#[derive(Clone, Copy, PartialEq)]
pub enum Role {
    /// It is the legacy default stream.
    Legacy,
    /// It waits for it, and the other way round.
    Blocking,
    /// They ignore each other.
    Free,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// When the first of them came, unless the worker knows.
    fed: Option<Instant>,
    worker: Worker,
    /// The stream is destroyed: its worker ends after the last operation.
    stopping: bool,
}

#[derive(Default, PartialEq)]
enum Worker {
    #[default]
    NotStarted,
    Asleep,
    Awake,
}

static STREAMS: Registry<Stream> = Registry::new();

thread_local! {
    /// Whether the call under way is one whose default stream is the thread's own.
    static OWN_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// Makes the thread's own default stream the default, until it is dropped.
struct OwnDefault;

impl Drop for OwnDefault {
    fn drop(&mut self) {
        OWN_DEFAULT.set(false);
    }
}

/// Runs a call of the `_ptsz` and `_ptds` kind: what names no stream means the thread's own.
pub fn with_own_default<T>(call: impl FnOnce() -> T) -> T {
    OWN_DEFAULT.set(true);
    let _until_then = OwnDefault;
    call()
}

impl Stream {
    /// A stream of a context, not registered.
    pub fn new(handle: usize, context: Arc<Context>, role: Role, priority: i32) -> Stream {
        Stream {
            handle,
            context,
            role,
            priority,
            queue: Mutex::default(),
            wake: Condvar::new(),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            followers: Mutex::default(),
            capturing: AtomicBool::new(false),
            capture: Mutex::new(None),
            attributes: Mutex::default(),
        }
    }

    /// Queues an operation, or adds it to the graph being captured.
    pub fn submit(self: &Arc<Self>, op: Op) -> Answer {
        self.submit_all(vec![op])
    }

    /// Queues operations that follow each other.
    pub fn submit_all(self: &Arc<Self>, ops: Vec<Op>) -> Answer {
        self.context.check()?;
        if let Some(capture) = self.capture() {
            return ops.into_iter().try_for_each(|op| capture.add(self, op.into()));
        }
        self.check_implicit()?;
        self.wait_for_room()?;
        let before = self.predecessors();
        self.push(before.into_iter().chain(ops))
    }

    /// Waits while so much is under way that no more can be submitted.
    fn wait_for_room(&self) -> Answer {
        self.context.monitor.wait_until(|| self.under_way() < DEPTH || self.context.is_faulted());
        self.context.check()
    }

    /// Carries an operation out and returns when it is done: here, if nothing is before it.
    pub fn run_to_end(self: &Arc<Self>, op: Op) -> Answer {
        self.context.check()?;
        self.check_not_capturing()?;
        self.check_implicit()?;
        if !self.pending() && self.predecessors().is_empty() {
            return op.run(&self.context, &mut Timeline::starting_now());
        }
        self.submit(op)?;
        self.synchronize()
    }

    /// Queues the operation of a call that returns at once though its name says nothing of it.
    pub fn start(self: &Arc<Self>, op: Op) -> Answer {
        self.check_not_capturing()?;
        self.submit(op)
    }

    /// Queues an operation whatever the default stream does.
    pub fn push_alone(self: &Arc<Self>, op: Op) -> Answer {
        self.push(std::iter::once(op))
    }

    fn push(self: &Arc<Self>, ops: impl Iterator<Item = Op>) -> Answer {
        let mut queue = self.queue.lock();
        if queue.worker == Worker::NotStarted {
            self.start_worker()?;
            queue.worker = Worker::Awake;
        }
        if queue.ops.is_empty() {
            queue.fed = Some(Instant::now());
        }
        let before = queue.ops.len();
        queue.ops.extend(ops);
        // A destroyed stream, too, may be told to wait for an event.
        if queue.stopping {
            queue.ops.push_back(Op::Stop);
        }
        let added = (queue.ops.len() - before) as u64;
        self.submitted.fetch_add(added, Ordering::SeqCst);
        if queue.worker == Worker::Asleep {
            queue.worker = Worker::Awake;
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Arrives at a record when all is done that has been submitted until now. That is no operation of the stream: once
    /// its work is done there is nothing to wait for.
    pub fn follow(&self, record: &Arc<Record>) {
        let mut followers = self.followers.lock();
        followers.push_back((self.submitted.load(Ordering::SeqCst), record.clone()));
        drop(followers);
        self.tell_followers();
    }

    fn tell_followers(&self) {
        let mut followers = self.followers.lock();
        let completed = self.completed.load(Ordering::SeqCst);
        while followers.front().is_some_and(|(ticket, _)| *ticket <= completed) {
            followers.pop_front().into_iter().for_each(|(_, record)| record.arrive());
        }
    }

    /// Waits for what has been submitted until now.
    pub fn synchronize(self: &Arc<Self>) -> Answer {
        self.check_not_capturing()?;
        self.wait_for(self.submitted.load(Ordering::SeqCst), &self.context);
        for other in self.siblings() {
            other.wait_for(other.submitted.load(Ordering::SeqCst), &self.context);
        }
        self.context.check()
    }

    /// As [`Stream::synchronize`]; what is being captured is nothing to wait for.
    pub fn synchronize_unless_capturing(self: &Arc<Self>) -> Answer {
        if self.capture().is_some() { Ok(()) } else { self.synchronize() }
    }

    /// Whether all that was submitted until now is done.
    pub fn query(&self) -> Answer {
        self.context.check()?;
        self.check_not_capturing()?;
        let busy = self.pending() || self.siblings().iter().any(|other| other.pending());
        if busy { Err(CUresult::CUDA_ERROR_NOT_READY) } else { Ok(()) }
    }

    /// Waits for the operation with that number; not after a fault, here or for `waiter`.
    pub fn wait_for(&self, ticket: u64, waiter: &Context) {
        self.context.monitor.wait_until(|| {
            self.completed.load(Ordering::SeqCst) >= ticket
                || self.context.is_faulted()
                || waiter.is_faulted()
        });
    }

    /// Whether something submitted is not done.
    pub fn pending(&self) -> bool {
        self.under_way() > 0
    }

    /// How many operations are submitted and not done.
    fn under_way(&self) -> u64 {
        // Never more than will have been submitted when that is read.
        let completed = self.completed.load(Ordering::SeqCst);
        self.submitted.load(Ordering::SeqCst) - completed
    }

    /// Ends the worker when all is done; a stream that has none is gone at once.
    pub fn stop(self: &Arc<Self>) {
        graph::abandon(self);
        let started = {
            let mut queue = self.queue.lock();
            queue.stopping = true;
            queue.worker != Worker::NotStarted
        };
        if !started || self.push(std::iter::empty()).is_err() {
            self.context.forget_stream(self);
        }
    }

    /// Whether the worker ends: nothing was submitted after the stream was destroyed.
    fn may_end(&self) -> bool {
        let mut queue = self.queue.lock();
        let may_end = queue.ops.is_empty();
        if may_end {
            queue.worker = Worker::NotStarted;
        }
        may_end
    }

    /// The graph this stream's operations go to.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        if !self.capturing.load(Ordering::Acquire) {
            return None;
        }
        self.capture.lock().clone()
    }

    /// From now on operations go to `capture`, or to the queue again.
    pub fn set_capture(&self, capture: Option<Arc<Capture>>) {
        let capturing = capture.is_some();
        *self.capture.lock() = capture;
        self.capturing.store(capturing, Ordering::Release);
    }

    /// What asks for the end of work that is only being described breaks the capture.
    pub fn check_not_capturing(&self) -> Answer {
        match self.capture() {
            None => Ok(()),
            Some(capture) => {
                capture.invalidate();
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// The legacy default stream cannot wait for a stream that is being captured.
    fn check_implicit(&self) -> Answer {
        if !graph::is_any_capturing() {
            return Ok(());
        }
        match self.siblings().iter().find_map(|other| other.capture()) {
            None => Ok(()),
            Some(capture) => {
                capture.invalidate();
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
            }
        }
    }

    /// Whether it would wait for a stream that captures.
    pub fn would_wait_for_a_capture(&self) -> bool {
        graph::is_any_capturing() && self.siblings().iter().any(|other| other.capture().is_some())
    }

    /// Whether it is a default stream, whose operations cannot be captured.
    pub fn is_legacy(&self) -> bool {
        self.role == Role::Legacy
    }

    /// Whether it and the legacy default stream wait for each other.
    pub fn is_blocking(&self) -> bool {
        self.role == Role::Blocking
    }

    /// Waits that have to come before the next operation.
    fn predecessors(&self) -> Vec<Op> {
        let after = |other: Arc<Stream>| {
            let ticket = other.submitted.load(Ordering::SeqCst);
            Op::After(other, ticket)
        };
        match self.role {
            Role::Free => Vec::new(),
            Role::Blocking => self.context.legacy_if_pending().map(after).into_iter().collect(),
            Role::Legacy => self.siblings().into_iter().filter(|other| other.pending()).map(after).collect(),
        }
    }

    /// The streams that synchronising with this one includes.
    fn siblings(&self) -> Vec<Arc<Stream>> {
        match self.role {
            Role::Legacy => self.context.blocking_streams(),
            Role::Blocking | Role::Free => Vec::new(),
        }
    }

    fn start_worker(self: &Arc<Self>) -> Answer {
        crash::prepare()?;
        let stream = self.clone();
        let started = crash::start_thread("softgpu-stream", move || stream.work());
        started.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }

    /// The worker's life.
    fn work(self: Arc<Self>) {
        crash::adopt_thread(self.context.fault_flag());
        model::sleep_precisely();
        let mut clock = Timeline::starting_now();
        loop {
            let op = self.next(&mut clock);
            if self.context.check().is_ok() {
                let _ = op.run(&self.context, &mut clock); // the fault is noted in the context
            }
            let last = matches!(op, Op::Stop) && self.may_end();
            drop(op);
            self.completed.fetch_add(1, Ordering::SeqCst);
            self.tell_followers();
            self.context.monitor.announce();
            if last {
                return self.context.forget_stream(&self);
            }
        }
    }

    fn next(&self, clock: &mut Timeline) -> Op {
        let mut queue = self.queue.lock();
        loop {
            if let Some(op) = queue.ops.pop_front() {
                queue.fed.take().into_iter().for_each(|fed| clock.idle_until(fed));
                return op;
            }
            queue.worker = Worker::Asleep;
            while queue.worker == Worker::Asleep {
                self.wake.wait(&mut queue);
            }
        }
    }

    fn flags(&self) -> u32 {
        if self.role == Role::Free { NON_BLOCKING } else { 0 }
    }
}

/// The stream of calls that name none: the legacy one, or the thread's own where the call says so.
pub fn default() -> Answer<Arc<Stream>> {
    let context = context::current()?;
    Ok(if OWN_DEFAULT.get() { context.stream_of_this_thread() } else { context.legacy() })
}

/// The stream a call names, of a context without a fault.
pub fn resolve(stream: CUstream) -> Answer<Arc<Stream>> {
    let found = match stream as usize {
        0 => return default(),
        LEGACY => context::current()?.legacy(),
        PER_THREAD => context::current()?.stream_of_this_thread(),
        handle => STREAMS.get(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?,
    };
    found.context.check()?;
    Ok(found)
}

/// `cuStreamCreate`
pub fn create(out: Out<CUstream>, flags: u32) -> Answer {
    create_with_priority(out, flags, 0)
}

/// `cuStreamCreateWithPriority`
pub fn create_with_priority(out: Out<CUstream>, flags: u32, priority: i32) -> Answer {
    create_in(&out, &context::current()?, flags, priority)
}

/// A stream of some context.
pub fn create_in(out: &Out<CUstream>, context: &Arc<Context>, flags: u32, priority: i32) -> Answer {
    let role = match flags {
        0 => Role::Blocking,
        NON_BLOCKING => Role::Free,
        _ => return Err(INVALID),
    };
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    let stream = STREAMS.add(|handle| Stream::new(handle, context.clone(), role, priority));
    context.remember_stream(&stream)?;
    out.set(stream.handle as CUstream);
    Ok(())
}

/// `cuStreamDestroy_v2`: returns at once, what was submitted is still done.
pub fn destroy(stream: CUstream) -> Answer {
    let gone = STREAMS.remove(stream as usize).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    gone.stop();
    Ok(())
}

/// Forgets the handles of a context's streams.
pub fn forget_handle(handle: usize) {
    STREAMS.remove(handle);
}

/// `cuStreamSynchronize`
pub fn synchronize(stream: CUstream) -> Answer {
    resolve(stream)?.synchronize()
}

/// `cuStreamQuery`
pub fn query(stream: CUstream) -> Answer {
    resolve(stream)?.query()
}

/// `cuStreamWaitEvent`
pub fn wait_event(stream: CUstream, event: cudarc::driver::sys::CUevent, flags: u32) -> Answer {
    event::await_on(&resolve(stream)?, event, flags)
}

/// `cuStreamGetPriority`
pub fn priority(stream: CUstream, out: Out<i32>) -> Answer {
    out.set(resolve(stream)?.priority);
    Ok(())
}

/// `cuStreamGetFlags`
pub fn flags(stream: CUstream, out: Out<u32>) -> Answer {
    out.set(resolve(stream)?.flags());
    Ok(())
}

/// `cuStreamGetId`
pub fn id(stream: CUstream, out: Out<u64>) -> Answer {
    out.set(resolve(stream)?.handle as u64);
    Ok(())
}

/// `cuStreamGetCtx`
pub fn context(stream: CUstream, out: Out<CUcontext>) -> Answer {
    out.set(resolve(stream)?.context.handle as CUcontext);
    Ok(())
}

/// `cuStreamGetDevice`
pub fn device(stream: CUstream, out: Out<i32>) -> Answer {
    out.set(resolve(stream)?.context.device as i32);
    Ok(())
}

/// `cuStreamGetAttribute`
pub fn attribute(stream: CUstream, attribute: Enum<CUstreamAttrID>, out: InMut<RawValue>) -> Answer {
    const PRIORITY: u32 = CUstreamAttrID::CU_LAUNCH_ATTRIBUTE_PRIORITY as u32;
    let stream = resolve(stream)?;
    let default = if attribute.0 == PRIORITY { RawValue::of(stream.priority) } else { RawValue::ZERO };
    out.set(stream.attributes.lock().get(&attribute.0).copied().unwrap_or(default));
    Ok(())
}

/// `cuStreamSetAttribute`: kept for who asks.
pub fn set_attribute(stream: CUstream, attribute: Enum<CUstreamAttrID>, value: In<RawValue>) -> Answer {
    resolve(stream)?.attributes.lock().insert(attribute.0, value.get());
    Ok(())
}

/// `cuStreamCopyAttributes`
pub fn copy_attributes(to: CUstream, from: CUstream) -> Answer {
    let attributes = resolve(from)?.attributes.lock().clone();
    *resolve(to)?.attributes.lock() = attributes;
    Ok(())
}

/// `cuLaunchHostFunc`
pub fn call(stream: CUstream, function: CUhostFn, data: HostMut) -> Answer {
    let function = Function::Plain(function.ok_or(INVALID)?);
    resolve(stream)?.submit(Op::Call(Callback { function, data: data.0 }))
}

/// `cuLaunchHostFunc_v2`; how the worker waits is its own matter.
pub fn call_with_mode(stream: CUstream, function: CUhostFn, data: HostMut, _mode: u32) -> Answer {
    call(stream, function, data)
}

/// `cuStreamAddCallback`
pub fn add_callback(stream: CUstream, function: CUstreamCallback, data: HostMut, _flags: u32) -> Answer {
    let function = Function::OfStream(function.ok_or(INVALID)?, stream as usize);
    resolve(stream)?.submit(Op::Call(Callback { function, data: data.0 }))
}
