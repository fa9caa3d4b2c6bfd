//! Communicators: their state, and how their operations come into streams.

use super::element::{Element, Reduction};
use super::engine::{self, Collective, Message};
use super::join::{self, Id, Joined};
use super::segment::{Segment, State};
use super::{Answer, Code, Failure, lock, note};
use crate::driver::{self, Stream};
use crate::kernel::kernels;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// Which GPU of which machine: a hash, and the UUID.
pub type Gpu = [u64; 3];

/// The number that stands for no part in a split.
pub const NO_COLOR: i32 = -1;

/// A communicator: what one rank has of it.
pub struct Comm {
    pub rank: usize,
    pub ranks: usize,
    pub place: Place,
    id: Id,
    /// Empty until all ranks have joined.
    joined: OnceLock<Joined>,
    aborted: AtomicBool,
    failure: Mutex<Option<Failure>>,
    finalized: AtomicBool,
    /// Held while an operation is launched: launches have the order of their tickets.
    launching: Mutex<()>,
    /// Held while an operation runs.
    running: Mutex<()>,
    order: Mutex<Order>,
    turned: Condvar,
    reductions: Mutex<BTreeMap<i32, (Element, Reduction)>>,
    /// How many parts have been made of it by `ncclCommSplit`, and by `ncclCommShrink`.
    splits: AtomicU32,
    shrinks: AtomicU32,
}

/// Where a rank computes.
#[derive(Clone, Copy)]
pub struct Place {
    pub device: i32,
    pub context: usize,
    pub gpu: Gpu,
}

/// The order of a communicator's operations, whatever streams they are in.
#[derive(Default)]
struct Order {
    next: u64,
    done: u64,
    /// It was destroyed: the rank leaves when all is done.
    is_ending: bool,
}

/// The operations of one group on one communicator.
#[derive(Default)]
pub struct Plan {
    pub collectives: Vec<Collective>,
    pub messages: Vec<Message>,
}

/// A plan in a stream, or in a graph.
struct Launch {
    comm: Arc<Comm>,
    plan: Plan,
    /// `None`: it is in a graph, and runs each time when its stream comes to it.
    ticket: Option<u64>,
}

static COMMS: Mutex<BTreeMap<usize, Arc<Comm>>> = Mutex::new(BTreeMap::new());
static LAUNCHES: Mutex<Option<HashMap<u64, Arc<Launch>>>> = Mutex::new(None);

impl Comm {
    /// A communicator that is to join by `id`.
    pub fn new(id: Id, ranks: usize, rank: usize, place: Place) -> Arc<Self> {
        Arc::new(Self {
            rank,
            ranks,
            place,
            id,
            joined: OnceLock::new(),
            aborted: AtomicBool::new(false),
            failure: Mutex::new(None),
            finalized: AtomicBool::new(false),
            launching: Mutex::new(()),
            running: Mutex::new(()),
            order: Mutex::default(),
            turned: Condvar::new(),
            reductions: Mutex::default(),
            splits: AtomicU32::new(0),
            shrinks: AtomicU32::new(0),
        })
    }

    /// Joins the other ranks, and waits for them.
    pub fn join(&self) -> Answer {
        let joined = join::join(&self.id, self.ranks, self.rank, self.place.gpu);
        let joined = joined.inspect_err(|failure| self.fail(failure))?;
        // It is set nowhere else, and a communicator joins once.
        let segment = joined.segment.clone();
        drop(self.joined.set(joined));
        if self.is_aborted() {
            segment.change(self.rank, State::Active, State::Left);
        }
        Ok(())
    }

    fn segment(&self) -> Option<&Segment> {
        self.joined.get().map(|joined| &*joined.segment)
    }

    /// The segment of a communicator that can be used.
    fn usable(&self) -> Answer<&Segment> {
        self.check_not_aborted()?;
        if let Some(failure) = &*lock(&self.failure) {
            return Err(failure.clone());
        }
        if self.finalized.load(Ordering::SeqCst) {
            return Err(Failure::usage("the communicator is finalized"));
        }
        self.segment().ok_or_else(|| Failure::argument("the communicator is not initialized yet"))
    }

    pub fn check_usable(&self) -> Answer {
        self.usable().map(drop)
    }

    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    pub fn check_not_aborted(&self) -> Answer {
        if self.is_aborted() { Err(Failure::usage("the communicator was aborted")) } else { Ok(()) }
    }

    /// Notes the first failure, and lets the other ranks know.
    pub fn fail(&self, failure: &Failure) {
        lock(&self.failure).get_or_insert_with(|| failure.clone());
        note(failure);
        if let Some(segment) = self.segment() {
            segment.change(self.rank, State::Active, State::Failed(failure.code as i32));
        }
    }

    /// `ncclCommGetAsyncError`.
    pub fn status(&self) -> Code {
        if let Some(failure) = &*lock(&self.failure) {
            return failure.code;
        }
        let is_busy = {
            let order = lock(&self.order);
            order.next != order.done
        };
        let is_ending = self.finalized.load(Ordering::SeqCst) && is_busy;
        if self.joined.get().is_none() || is_ending { Code::InProgress } else { Code::Success }
    }

    /// Takes no new operations.
    pub fn finalize(&self) -> Answer {
        self.check_usable()?;
        self.finalized.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The rank leaves when what was launched is done.
    pub fn destroy(&self) {
        self.finalized.store(true, Ordering::SeqCst);
        let is_idle = {
            let mut order = lock(&self.order);
            order.is_ending = true;
            order.next == order.done
        };
        if is_idle {
            self.leave();
        }
    }

    /// Ends operations that wait; the rank leaves at once.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.leave();
        if let Some(segment) = self.segment() {
            segment.call(self.rank);
        }
    }

    fn leave(&self) {
        if let Some(segment) = self.segment() {
            segment.change(self.rank, State::Active, State::Left);
        }
        let is_own = |launch: &Arc<Launch>| std::ptr::eq(&*launch.comm, self) && launch.ticket.is_none();
        let mut launches = lock(&LAUNCHES);
        let graphs: Vec<u64> =
            launches.iter().flatten().filter(|(_, launch)| is_own(launch)).map(|(id, _)| *id).collect();
        let removed: Vec<_> =
            launches.iter_mut().flat_map(|known| graphs.iter().filter_map(|id| known.remove(id))).collect();
        // What is dropped last may take the lock.
        drop(launches);
        drop(removed);
    }

    /// Puts a plan into a stream.
    pub fn submit(self: &Arc<Self>, stream: Stream, plan: Plan) -> Answer {
        self.check_usable()?;
        let refused =
            || Failure::new(Code::UnhandledCudaError, "the driver refused the launch of an operation");
        let _launching = lock(&self.launching);
        // The order is not held during the launch, which may wait for operations that take it.
        let launched = driver::in_context(self.place.context, || {
            let is_captured = driver::is_capturing(stream)?;
            let ticket = (!is_captured).then(|| {
                let mut order = lock(&self.order);
                order.next += 1;
                order.next - 1
            });
            let id = remember(Launch { comm: self.clone(), plan, ticket });
            if driver::launch_with_configuration(
                c"nccl_softgpu_kernel",
                stream,
                &Call { function: execute, id },
            ) {
                return Some(());
            }
            drop(forget(id));
            if ticket.is_some() {
                lock(&self.order).next -= 1;
            }
            None
        });
        launched.flatten().ok_or_else(refused)
    }

    fn execute(&self, launch: &Launch) {
        if let Some(ticket) = launch.ticket {
            let order = lock(&self.order);
            let turn = self.turned.wait_while(order, |order| order.done != ticket);
            drop(turn.unwrap_or_else(PoisonError::into_inner));
        }
        {
            let _running = lock(&self.running);
            let has_failed = lock(&self.failure).is_some();
            let segment = self.segment().filter(|_| !has_failed && !self.is_aborted());
            let ended = segment.map_or(Ok(()), |segment| engine::run(self, segment, &launch.plan));
            if let Err(failure) = ended
                && !self.is_aborted()
            {
                self.fail(&failure);
            }
        }
        if launch.ticket.is_some() {
            let is_over = {
                let mut order = lock(&self.order);
                order.done += 1;
                order.is_ending && order.done == order.next
            };
            self.turned.notify_all();
            if is_over {
                self.leave();
            }
        }
    }

    /// A reduction with a number: one of the five, or one made for this communicator and these elements.
    pub fn reduction(&self, number: i32, element: Element) -> Answer<Reduction> {
        if !element.can_be_reduced() {
            return Err(Failure::argument("elements of eight bits of floating point are not reduced here"));
        }
        if let Some(reduction) = Reduction::of(number) {
            return Ok(reduction);
        }
        let (of, reduction) = lock(&self.reductions)
            .get(&number)
            .copied()
            .ok_or_else(|| Failure::argument(format!("{number} is no reduction of this communicator")))?;
        if of != element {
            return Err(Failure::argument("the reduction was made for elements of another type"));
        }
        Ok(reduction)
    }

    pub fn add_reduction(&self, element: Element, reduction: Reduction) -> i32 {
        let mut reductions = lock(&self.reductions);
        let number = (5..).find(|number| !reductions.contains_key(number)).unwrap_or(i32::MAX);
        reductions.insert(number, (element, reduction));
        number
    }

    pub fn remove_reduction(&self, number: i32) -> Answer {
        let known = lock(&self.reductions).remove(&number);
        known
            .map(drop)
            .ok_or_else(|| Failure::argument(format!("{number} is no reduction of this communicator")))
    }

    /// All ranks call this together; this rank's part is those of its color, by key and then by rank. It has not
    /// joined yet. `None`: it takes no part.
    pub fn split(&self, color: i32, key: i32) -> Answer<Option<Arc<Self>>> {
        let segment = self.usable()?;
        let number = self.splits.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        let turn = number as usize % 2;
        let own = &segment.rank(self.rank).splits[turn];
        own.color.store(color, Ordering::SeqCst);
        own.key.store(key, Ordering::SeqCst);
        own.number.store(number, Ordering::SeqCst);
        segment.call_all();
        let mut part = Vec::new();
        for rank in 0..self.ranks {
            let of = &segment.rank(rank).splits[turn];
            loop {
                let calls = segment.calls(self.rank);
                let state = segment.state(rank);
                if of.number.load(Ordering::SeqCst) == number {
                    break;
                }
                self.check_not_aborted()?;
                if state != State::Active {
                    let why = format!("rank {rank} is gone or has failed, and takes no part in a split");
                    return Err(Failure::new(Code::RemoteError, why));
                }
                segment.wait(self.rank, calls, None);
            }
            if of.color.load(Ordering::SeqCst) == color {
                part.push((of.key.load(Ordering::SeqCst), rank));
            }
        }
        part.sort_unstable();
        let rank = part.iter().position(|(_, rank)| *rank == self.rank).unwrap_or_default();
        let id = self.id.part(&format!("split {number} {color}"));
        Ok((color != NO_COLOR).then(|| Self::new(id, part.len(), rank, self.place)))
    }

    /// A communicator of all ranks but some, which those call together. It has not joined yet.
    pub fn shrink(&self, without: &[usize], abort: bool) -> Answer<Arc<Self>> {
        if abort {
            let failure = Failure::usage("the communicator was shrunk, and its operations ended");
            self.fail(&failure);
            if let Some(segment) = self.segment() {
                segment.call(self.rank);
            }
        } else {
            self.check_usable()?;
        }
        let left: Vec<usize> = (0..self.ranks).filter(|rank| !without.contains(rank)).collect();
        let rank = left.iter().position(|rank| *rank == self.rank);
        let rank = rank.ok_or_else(|| Failure::argument("this rank is among those that are left out"))?;
        let number = self.shrinks.fetch_add(1, Ordering::SeqCst);
        let id = self.id.part(&format!("shrink {number} {left:?}"));
        Ok(Self::new(id, left.len(), rank, self.place))
    }
}

impl Place {
    /// That of the calling thread: its current context, or the primary one of the first GPU.
    pub fn current() -> Answer<Self> {
        match driver::current_context() {
            Some(context) if context != 0 => Self::of_context(context),
            _ => Self::of_device(0),
        }
    }

    /// The primary context of a GPU.
    pub fn of_device(device: i32) -> Answer<Self> {
        let context = driver::primary_context(device);
        let context =
            context.ok_or_else(|| Self::failure(&format!("GPU {device} has no primary context")))?;
        Self::of_context(context)
    }

    fn of_context(context: usize) -> Answer<Self> {
        let device = driver::in_context(context, driver::current_device).flatten();
        let device = device.ok_or_else(|| Self::failure("the context has no GPU"))?;
        let uuid = driver::uuid(device).ok_or_else(|| Self::failure("the GPU has no UUID"))?;
        let (low, high) = uuid.split_at(8);
        let word = |bytes: &[u8]| bytes.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        Ok(Self { device, context, gpu: [machine(), word(low), word(high)] })
    }

    fn failure(why: &str) -> Failure {
        Failure::new(Code::UnhandledCudaError, why)
    }
}

/// Software GPUs of different nodes are those of different machines.
fn machine() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    std::env::var_os("TIDEGATE_SOFTGPU").hash(&mut hasher);
    hasher.finish()
}

/// Gives a communicator its handle.
pub fn register(comm: Arc<Comm>) -> usize {
    static NEXT: AtomicU64 = AtomicU64::new(0x4e43_0001);
    let handle = NEXT.fetch_add(1, Ordering::Relaxed) as usize;
    lock(&COMMS).insert(handle, comm);
    handle
}

pub fn find(handle: usize) -> Answer<Arc<Comm>> {
    let found = lock(&COMMS).get(&handle).cloned();
    found.ok_or_else(|| Failure::argument("this is no communicator, or one that was destroyed"))
}

/// The communicator of a handle that is valid no more.
pub fn unregister(handle: usize) -> Answer<Arc<Comm>> {
    let found = lock(&COMMS).remove(&handle);
    found.ok_or_else(|| Failure::argument("this is no communicator, or one that was destroyed"))
}

fn remember(launch: Launch) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    lock(&LAUNCHES).get_or_insert_with(HashMap::new).insert(id, Arc::new(launch));
    id
}

fn forget(id: u64) -> Option<Arc<Launch>> {
    lock(&LAUNCHES).as_mut()?.remove(&id)
}

/// The launch with that number; what is in a graph is kept for the next time.
fn recall(id: u64) -> Option<Arc<Launch>> {
    let mut launches = lock(&LAUNCHES);
    let launches = launches.as_mut()?;
    let launch = launches.get(&id)?.clone();
    if launch.ticket.is_some() {
        launches.remove(&id);
    }
    Some(launch)
}

/// The parameter of the kernel. The driver loads a copy of this library for its kernels: what they are to do is done
/// by the copy that launched them, which has the communicators.
#[repr(C)]
#[derive(Clone, Copy)]
struct Call {
    function: extern "C" fn(u64),
    id: u64,
}

/// The operations of a group, by the number of their launch. Of a communicator that was destroyed since, none.
extern "C" fn execute(id: u64) {
    if let Some(launch) = recall(id) {
        launch.comm.execute(&launch);
    }
}

kernels! {
    fn nccl_softgpu_kernel, nccl_softgpu_kernel_params(call: Call) {
        (call.function)(call.id);
    }
}
