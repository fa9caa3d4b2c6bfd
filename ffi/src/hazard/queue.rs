//! An out-of-order queue for programs (R2.4, R2.8): operations are submitted in order, each with what it reads and
//! writes, and run on lanes as soon as nothing earlier is in their way. Results are those of running in order.
//!
//! ```text
//!  submit ──► tracker ── ready, oldest first ──► lane 0 ──► done: ticket told, those behind it woken
//!    ▲ waits for room  └─ buffered ─► woken ──►  lane 1
//! ```
//!
//! A lane is a thread and what the user brings for it, a CUDA stream for instance: it runs one operation at a time
//! and says when that is finished. (A callback of the driver's could not start the next operation: it may not
//! call the driver.) A free lane takes the oldest operation that may run, at once. In a [scope](Queue::scope) lanes
//! and operations may borrow: [`splice::feed`](crate::splice::feed) is a user.
//!
//! An operation that fails is finished, and those that wait for it at that time fail with its cause, without
//! running, and those that wait for them, in whatever way they conflict. One that is submitted afterwards runs:
//! who submits it can have seen the failure, by its ticket.
//!
//! Invariants: an operation runs once or fails because of an earlier one; it runs after all earlier ones that it
//! conflicts with, and sees what they wrote. Submitters get room in the order in which they asked, so no large
//! operation waits for ever. Nobody polls. Dropping the queue waits for all that was submitted (so not on a lane).
//!
//! ```
//! use tidegate_ffi::hazard::{Span, queue::{Queue, Running}, tracker::Capacity};
//!
//! type Work = Box<dyn FnOnce() + Send>;
//! let lane = |work: Work, _: &Running<'_, Span, Work>| {
//!     work();
//!     Ok(())
//! };
//! let queue = Queue::new(Capacity { operations: 64, operands: 256, edges: 1024 }, [lane, lane])?;
//! let [input, weights, output] = [Span::new(0, 512), Span::new(512, 1024), Span::new(1024, 1536)];
//! queue.submit(Box::new(|| println!("fill")), &[], &[input])?;
//! queue.submit(Box::new(|| println!("load, beside it")), &[], &[weights])?;
//! let product = queue.submit(Box::new(|| println!("multiply, behind both")), &[input, weights], &[output])?;
//! product.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::sync::{Arc, Condvar, JoinHandle, Mutex, MutexGuard, scope, spawn, spawn_scoped};
use super::tracker::{Capacity, OperationId, Otherwise, Submitted, Tracker, TrackerError};
use super::{Operand, Region};
use std::any::Any;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error of the user's own.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Where operations run, one at a time: what the user brings for a thread of the queue's.
pub trait Lane<R, W>: Send {
    /// Runs an operation, and returns when it is finished: when all that it was to write is written. A panic
    /// counts as an error.
    fn run(&mut self, work: W, running: &Running<'_, R, W>) -> Result<(), Cause>;
}

impl<R, W, F: FnMut(W, &Running<'_, R, W>) -> Result<(), Cause> + Send> Lane<R, W> for F {
    fn run(&mut self, work: W, running: &Running<'_, R, W>) -> Result<(), Cause> {
        self(work, running)
    }
}

/// Why an operation is not done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// It ran, and had an error.
    #[error("the operation failed: {0}")]
    Failed(std::sync::Arc<dyn std::error::Error + Send + Sync>),
    /// It did not run, since one that it waited for failed, or did not run either.
    #[error("the operation did not run, since operation {operation} before it failed: {cause}")]
    Skipped {
        /// The one that ran and failed, as [`Ticket::number`] has it.
        operation: u64,
        /// With what.
        cause: std::sync::Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl Failure {
    /// What it is for those behind the operation that has it.
    fn behind(&self, operation: OperationId) -> Self {
        match self {
            Self::Failed(cause) => Self::Skipped { operation: operation.number(), cause: cause.clone() },
            Self::Skipped { .. } => self.clone(),
        }
    }
}

/// How an operation ended.
pub type Outcome = Result<(), Failure>;

/// Why there is no queue.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// Nothing would ever run.
    #[error("a queue needs at least one lane")]
    NoLanes,
    /// The system has no more threads.
    #[error("cannot start a lane's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why an operation was not taken at once.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken<W> {
    /// There is no room for it yet, or others wait for room.
    #[error("the queue is full: try again when an operation is finished, or let submit() wait")]
    Full(W),
    /// It would never be taken.
    #[error(transparent)]
    Never(#[from] TrackerError),
}

/// Runs operations out of order.
pub struct Queue<R, W> {
    shared: Arc<Shared<R, W>>,
    /// None in a [scope](Self::scope), which waits for them itself.
    lanes: Vec<JoinHandle<()>>,
}

impl<R: Region + Send + 'static, W: Send + 'static> Queue<R, W> {
    /// A queue with room for so much, and these lanes.
    ///
    /// # Panics
    /// If a capacity is 2³² − 1 or more.
    pub fn new<L: Lane<R, W> + 'static>(
        capacity: Capacity,
        lanes: impl IntoIterator<Item = L>,
    ) -> Result<Self, QueueError> {
        let mut queue = Self::without_lanes(capacity);
        for mut lane in lanes {
            let shared = queue.shared.clone();
            queue.lanes.push(spawn(move || shared.serve(&mut lane))?);
        }
        if queue.lanes.is_empty() { Err(QueueError::NoLanes) } else { Ok(queue) }
    }
}

impl<R: Region + Send, W: Send> Queue<R, W> {
    /// Calls `submit` with a queue whose lanes and work may borrow; returns what that does, when all that was
    /// submitted is finished. Otherwise as [`new`](Self::new).
    pub fn scope<T, L: Lane<R, W>>(
        capacity: Capacity,
        lanes: impl IntoIterator<Item = L>,
        submit: impl FnOnce(&Self) -> T,
    ) -> Result<T, QueueError> {
        scope(|threads| {
            // Dropped in here: that lets the lanes go.
            let (queue, mut lanes) = (Self::without_lanes(capacity), lanes.into_iter().peekable());
            lanes.peek().ok_or(QueueError::NoLanes)?;
            for mut lane in lanes {
                let shared = queue.shared.clone();
                spawn_scoped(threads, move || shared.serve(&mut lane))?;
            }
            Ok(submit(&queue))
        })
    }
}

impl<R: Region, W> Queue<R, W> {
    fn without_lanes(capacity: Capacity) -> Self {
        Self { shared: Arc::new(Shared::new(capacity)), lanes: Vec::new() }
    }

    /// Submits an operation behind all that were submitted before; waits for room. A region that is read and
    /// written stands in both lists. Only more regions than there can ever be room for are an error.
    ///
    /// A lane that calls this may wait for itself: use [`try_submit`](Self::try_submit) there.
    pub fn submit(&self, work: W, reads: &[R], writes: &[R]) -> Result<Ticket, TrackerError> {
        let (mut state, operands) = (self.shared.lock(), operands(reads, writes));
        let turn = state.turns;
        state.turns += 1;
        let id = loop {
            if state.served == turn
                && let Some(id) = state.submit(&operands).transpose()
            {
                break id;
            }
            state = self.shared.room.wait(state).expect(POISONED);
        };
        state.served += 1;
        let ticket = id.map(|id| state.keep(id, work, reads.len()));
        self.shared.tell(&state);
        ticket
    }

    /// Submits an operation if there is room for it now.
    pub fn try_submit(&self, work: W, reads: &[R], writes: &[R]) -> Result<Ticket, NotTaken<W>> {
        let (mut state, operands) = (self.shared.lock(), operands(reads, writes));
        if state.turns != state.served {
            return Err(NotTaken::Full(work));
        }
        let Some(id) = state.submit(&operands)? else { return Err(NotTaken::Full(work)) };
        let ticket = state.keep(id, work, reads.len());
        self.shared.tell(&state);
        Ok(ticket)
    }

    /// How many submitters wait for room.
    pub fn waiting(&self) -> u64 {
        let state = self.shared.lock();
        state.turns - state.served
    }
}

impl<R, W> Drop for Queue<R, W> {
    fn drop(&mut self) {
        self.shared.close();
        for lane in self.lanes.drain(..) {
            // A lane's panics are caught: they are the failures of operations.
            lane.join().expect("a lane does not panic");
        }
    }
}

fn operands<R: Region>(reads: &[R], writes: &[R]) -> Vec<Operand<R>> {
    let reads = reads.iter().copied().map(Operand::read);
    reads.chain(writes.iter().copied().map(Operand::write)).collect()
}

/// An operation that a lane runs.
pub struct Running<'a, R, W> {
    shared: &'a Shared<R, W>,
    id: OperationId,
    reads: usize,
}

impl<R: Region, W> Running<'_, R, W> {
    /// Of the region that is the n-th to be read, counted from 0, only this is still to be read (R2.5): others
    /// may write the rest. It lies inside what it was.
    pub fn reads_only(&self, nth: usize, rest: R) -> Result<(), TrackerError> {
        match nth < self.reads {
            true => self.shrink(nth, rest),
            false => Err(TrackerError::NoOperand { operation: self.id, operand: nth }),
        }
    }

    /// Of the region that is the n-th to be written, counted from 0, only this is still to be written (R2.5): the
    /// rest is as it is to be. It lies inside what it was.
    pub fn writes_only(&self, nth: usize, rest: R) -> Result<(), TrackerError> {
        self.shrink(self.reads + nth, rest)
    }

    fn shrink(&self, operand: usize, rest: R) -> Result<(), TrackerError> {
        let mut state = self.shared.lock();
        let State { tracker, ready, .. } = &mut *state;
        tracker.shrink(self.id, operand, rest, |woken| ready.push(Reverse(woken)))?;
        self.shared.tell(&state);
        Ok(())
    }
}

/// One operation's outcome, to come.
pub struct Ticket {
    number: u64,
    outcome: Arc<Told>,
}

impl Ticket {
    /// How many operations the queue took before this one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until the operation has run or failed.
    pub fn wait(&self) -> Outcome {
        let mut word = self.outcome.word.lock().expect(POISONED);
        loop {
            match &*word {
                Word::Said(outcome) => return outcome.clone(),
                Word::ToCome(_) => word = self.outcome.said.wait(word).expect(POISONED),
            }
        }
    }

    /// Whether the operation has run or failed.
    pub fn is_done(&self) -> bool {
        matches!(*self.outcome.word.lock().expect(POISONED), Word::Said(_))
    }

    /// Has `call` called when the operation has run or failed, on the lane's thread; or now, if it has. A lane
    /// waits for what it calls, and goes on when that panics.
    pub fn then(self, call: impl FnOnce(Outcome) + Send + 'static) {
        let mut word = self.outcome.word.lock().expect(POISONED);
        let outcome = match &mut *word {
            Word::ToCome(then) => return *then = Some(Box::new(call)),
            Word::Said(outcome) => outcome.clone(),
        };
        drop(word);
        call(outcome);
    }
}

/// What a ticket waits for.
struct Told {
    word: Mutex<Word>,
    said: Condvar,
}

enum Word {
    ToCome(Option<Box<dyn FnOnce(Outcome) + Send>>),
    Said(Outcome),
}

impl Told {
    fn say(&self, outcome: Outcome) {
        let mut word = self.word.lock().expect(POISONED);
        let before = std::mem::replace(&mut *word, Word::Said(outcome.clone()));
        self.said.notify_all();
        drop(word);
        if let Word::ToCome(Some(then)) = before {
            // The thread has said what it panicked with, and nobody else could be told.
            drop(catch_unwind(AssertUnwindSafe(|| then(outcome))));
        }
    }
}

/// No lock is held where the user's code runs, and the queue's own does not panic.
const POISONED: &str = "nobody panics under a lock of the queue's";

/// What submitters and lanes share.
struct Shared<R, W> {
    state: Mutex<State<R, W>>,
    /// An operation is ready, or all are finished and the queue is closed: lanes wait for it.
    work: Condvar,
    /// An operation is finished, or it is another submitter's turn: submitters wait for it.
    room: Condvar,
}

struct State<R, W> {
    tracker: Tracker<R>,
    /// What is to be run, by the operation's slot.
    kept: Vec<Option<Kept<W>>>,
    /// The oldest comes first.
    ready: BinaryHeap<Reverse<OperationId>>,
    /// Submitters that asked for room, and those of them that got it.
    turns: u64,
    served: u64,
    is_closed: bool,
}

struct Kept<W> {
    work: W,
    reads: usize,
    outcome: Arc<Told>,
    /// Of one that it waits for, or waited for.
    failure: Option<Failure>,
}

impl<R: Region, W> State<R, W> {
    /// Takes an operation; `None`: there is no room.
    fn submit(&mut self, operands: &[Operand<R>]) -> Result<Option<OperationId>, TrackerError> {
        Ok(match self.tracker.submit(operands, Otherwise::Buffer)? {
            Submitted::Ready(id) => {
                self.ready.push(Reverse(id));
                Some(id)
            }
            Submitted::Buffered(id, _) => Some(id),
            Submitted::Full(_) | Submitted::Blocked(_) => None,
        })
    }

    fn keep(&mut self, id: OperationId, work: W, reads: usize) -> Ticket {
        let outcome = Arc::new(Told { word: Mutex::new(Word::ToCome(None)), said: Condvar::new() });
        self.kept[id.slot()] = Some(Kept { work, reads, outcome: outcome.clone(), failure: None });
        Ticket { number: id.number(), outcome }
    }

    /// The oldest operation that may run.
    fn take(&mut self) -> Option<(OperationId, Kept<W>)> {
        let Reverse(id) = self.ready.pop()?;
        Some((id, self.kept[id.slot()].take().expect("what is ready is kept")))
    }

    fn finish(&mut self, id: OperationId, outcome: &Outcome) {
        let Self { tracker, kept, ready, .. } = self;
        if let Err(failure) = outcome {
            for dependent in tracker.dependents(id).expect("it is outstanding") {
                let kept = kept[dependent.slot()].as_mut().expect("who waits is kept");
                kept.failure.get_or_insert_with(|| failure.behind(id));
            }
        }
        tracker.complete(id, |woken| ready.push(Reverse(woken))).expect("it ran, or was ready to");
    }
}

impl<R: Region, W> Shared<R, W> {
    fn new(capacity: Capacity) -> Self {
        let state = State {
            tracker: Tracker::new(capacity),
            kept: (0..capacity.operations).map(|_| None).collect(),
            ready: BinaryHeap::with_capacity(capacity.operations),
            turns: 0,
            served: 0,
            is_closed: false,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), room: Condvar::new() }
    }

    /// What a lane's thread does, until the queue is closed and empty.
    fn serve(&self, lane: &mut impl Lane<R, W>) {
        while let Some((id, Kept { work, reads, outcome, failure })) = self.next() {
            let running = Running { shared: self, id, reads };
            let ended = match failure {
                Some(failure) => Err(failure),
                None => run(lane, work, &running),
            };
            self.finish(id, &ended);
            outcome.say(ended);
        }
    }

    /// Waits for an operation to run.
    fn next(&self) -> Option<(OperationId, Kept<W>)> {
        let mut state = self.lock();
        loop {
            let next = state.take();
            if next.is_some() || (state.is_closed && state.tracker.is_empty()) {
                return next;
            }
            state = self.work.wait(state).expect(POISONED);
        }
    }

    fn finish(&self, id: OperationId, outcome: &Outcome) {
        let mut state = self.lock();
        state.finish(id, outcome);
        self.tell(&state);
    }

    /// Wakes whom a change of the state concerns.
    fn tell(&self, state: &State<R, W>) {
        for _ in 0..state.ready.len() {
            self.work.notify_one();
        }
        if state.is_closed && state.tracker.is_empty() {
            self.work.notify_all();
        }
        if state.turns != state.served {
            self.room.notify_all();
        }
    }
}

impl<R, W> Shared<R, W> {
    fn lock(&self) -> MutexGuard<'_, State<R, W>> {
        self.state.lock().expect(POISONED)
    }

    /// Nothing more will be submitted.
    fn close(&self) {
        self.lock().is_closed = true;
        self.work.notify_all();
    }
}

fn run<R, W>(lane: &mut impl Lane<R, W>, work: W, running: &Running<'_, R, W>) -> Outcome {
    let ended = catch_unwind(AssertUnwindSafe(|| lane.run(work, running)));
    let cause = match ended {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(cause)) => cause,
        Err(panic) => format!("it panicked: {}", words(&*panic)).into(),
    };
    Err(Failure::Failed(cause.into()))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words")
}
