//! The process's state: not started, with a manager, or inert.
//!
//! ```text
//!              cuInit finds a manager
//! not started ───────────────────────► active ──── fork ────► inert (in the child)
//!      │       none, refused, OFF
//!      └─────────────────────────────► inert: every call goes straight to the driver
//! ```
//! Invariant: before `cuInit` there is no thread, no socket, no lock taken; a forked child of an
//! active process touches nothing that its parent's threads may hold.

use crate::ahead::Ahead;
use crate::blocks::Mismatch;
use crate::borrowed::Borrowed;
use crate::captures::Captures;
use crate::contexts::Contexts;
use crate::drain::Drains;
use crate::driver::{self, Current};
use crate::gate::{Fence, GATE};
use crate::graphs::Graphs;
use crate::greeting::{Kit, Met, NoManager, Welcome, meet};
use crate::host_functions::Patience;
use crate::link::{Gone, Link, Reply};
use crate::liveness::Moment;
use crate::log::{info, warning};
use crate::loose::Loose;
use crate::managed::ManagedMemory;
use crate::own::Own;
use crate::pools::Pools;
use crate::reunion::{Connection, Session};
use crate::settings::{self, Settings};
use crate::spare::Spares;
use crate::status::Status;
use crate::tenant::Tenant;
use crate::threads::Uncancelled;
use crate::torch::{Candidates, Name, Reports, describe};
use crate::value_waits::ValueWaits;
use crate::waits::Waits;
use parking_lot::{Condvar, Mutex};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use tidegate_ffi::cuda::sys::{CUdevice, CUdeviceptr, CUresult};
use tidegate_ffi::os::faults;
use tidegate_ffi::units::Class;
use tidegate_ffi::wire::Mapped;
use tidegate_ffi::wire::message::{FromShim, JobClaim};
use tidegate_ffi::wire::page::{MAX_TENANTS, Page};

const NOT_STARTED: u8 = 0;
const STARTING: u8 = 1;
const ACTIVE: u8 = 2;
const INERT: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(NOT_STARTED);
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Held by the thread that starts; others wait for its outcome.
static START: Mutex<()> = Mutex::new(());

/// What a process with a manager has. Made once, never freed.
pub struct Process {
    /// The connection.
    pub link: Link,
    /// What it publishes.
    pub page: Mapped<Page>,
    /// What the environment says.
    pub settings: Settings,
    /// The program's contexts.
    pub contexts: Contexts,
    /// Its memory, GPU by GPU.
    pub tenants: Tenants,
    /// The streams that are capturing.
    pub captures: Captures,
    /// The program's memory pools.
    pub pools: Pools,
    /// What its graphs own.
    pub graphs: Graphs,
    /// What it has made by handles of its own.
    pub loose: Loose,
    /// What other processes of its job share with it.
    pub borrowed: Borrowed,
    /// Its managed memory.
    pub managed: ManagedMemory,
    /// What PyTorch says of its memory.
    pub reports: Reports,
    candidates: Mutex<Candidates>,
    /// How its threads wait for the GPU.
    pub waits: Waits,
    /// What its streams wait for.
    pub value_waits: ValueWaits,
    /// How far its work is ahead of the GPU.
    pub ahead: Ahead,
    /// How long its drains take.
    pub drains: Drains,
    /// How long its functions on the host run before calls go for them.
    pub host_functions: Mutex<Patience>,
    /// For its live maps: one for each tenant.
    pub spares: Spares,
    boundaries: AtomicU64,
    switches: AtomicU64,
}

/// The process, if it has a manager.
#[inline]
pub fn active() -> Option<&'static Process> {
    // SAFETY: null, or the process that `begin` leaked: never freed, shared by reference only.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Says that a call of this thread has returned of which that is to be said.
pub fn say_that_a_call_has_returned() {
    if let Some(process) = active() {
        process.captures.note_return();
    }
}

/// Whether a thread that has made so many calls may make one more in that stream through the open gate now: little is under way.
pub fn may_go_ahead(stream: usize, calls: u64) -> bool {
    let Some(process) = active() else { return true };
    let stream = ptr::with_exposed_provenance_mut(stream);
    // The caller, a function that C has called, must not unwind.
    catch_unwind(AssertUnwindSafe(|| process.ahead.may_go_on(process, stream, calls))).unwrap_or(true)
}

/// Tells the manager that a thread waits at the closed gate.
pub fn say_that_a_thread_waits() {
    if let Some(process) = active() {
        // When the session is over there is nobody to tell; and the caller, a function that C has
        // called, must not unwind.
        let _ = catch_unwind(AssertUnwindSafe(|| process.link.send(FromShim::Waiting)));
    }
}

/// Panics of ours are one line, and no backtrace in the program's output.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|panic| warning!("an error in Tidegate itself: {panic}")));
}

/// Whether the process has looked for a manager and goes on without one.
pub fn is_without_manager() -> bool {
    STATE.load(Ordering::Acquire) == INERT
}

/// Whether the environment insists on a manager.
pub fn is_required() -> bool {
    !settings::is_off() && STATE.load(Ordering::Acquire) != ACTIVE && settings::is_required()
}

/// Finds the manager and starts, once for each process. `Err`: there is none and the
/// environment insists on one.
pub fn start() -> Result<(), Status> {
    if settings::is_off() || STATE.load(Ordering::Acquire) >= ACTIVE {
        return outcome();
    }
    let _uncancelled = Uncancelled::begin();
    let _only_one = START.lock();
    if STATE.load(Ordering::Acquire) < ACTIVE {
        STATE.store(STARTING, Ordering::Release);
        at_fork();
        quiet_panics();
        let state = match begin() {
            Ok(process) => {
                PROCESS.store(ptr::from_ref(process).cast_mut(), Ordering::Release);
                ACTIVE
            }
            Err(error @ (NoManager::Unprepared(_) | NoManager::AtConnectionLimit(_))) => {
                // Not without Tidegate: a manager is there, and others share the GPU.
                warning!("{error}; it cannot use CUDA now");
                STATE.store(NOT_STARTED, Ordering::Release);
                return Err(Status::NOT_READY);
            }
            Err(reason) => {
                warning!("{reason}; running without Tidegate");
                INERT
            }
        };
        STATE.store(state, Ordering::Release);
    }
    outcome()
}

fn outcome() -> Result<(), Status> {
    let insists = STATE.load(Ordering::Acquire) == INERT && settings::is_required() && !is_forked();
    if insists { Err(Status::NOT_READY) } else { Ok(()) }
}

fn begin() -> Result<&'static Process, NoManager> {
    faults::begin("job");
    let settings = Settings::read();
    let Met { connection, path, kit, welcome } = meet(&settings)?;
    let (Kit { page, page_file, crew }, Welcome { closed, ticket, answer_limit, line }) = (kit, welcome);
    // The program may change its directory before the socket is looked for again.
    let socket = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
    let session = Session { socket, ticket, page: Own::new(page_file), answer_limit };
    let connection = Arc::new(Connection::from(connection));
    let link = Link::new(connection.clone(), line, session);
    let process: &'static Process = Box::leak(Box::new(Process::new(link, page, settings)));
    process.settings.kernels.begin();
    GATE.start(closed, Fence::cheapest());
    process.publish_gate(if closed { 2 } else { 0 });
    crew.serve(process, connection);
    info!("connected to the manager at {}", path.display());
    Ok(process)
}

/// Makes forked children inert. Registered at the first `cuInit`, once.
fn at_fork() {
    static REGISTERED: AtomicU8 = AtomicU8::new(0);
    if REGISTERED.swap(1, Ordering::Relaxed) == 0 {
        // SAFETY: the handler has the right type and stores to atomics only; this library is
        // never unloaded (it is preloaded).
        unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
    }
}

static FORKED: AtomicU8 = AtomicU8::new(0);

unsafe extern "C" fn in_forked_child() {
    FORKED.store(1, Ordering::Relaxed);
    STATE.store(INERT, Ordering::Release);
    PROCESS.store(ptr::null_mut(), Ordering::Release);
    GATE.disable();
}

fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed) == 1
}

impl Process {
    fn new(link: Link, page: Mapped<Page>, settings: Settings) -> Self {
        Self {
            link,
            page,
            settings,
            contexts: Contexts::default(),
            tenants: Tenants::default(),
            captures: Captures::default(),
            pools: Pools::default(),
            graphs: Graphs::default(),
            loose: Loose::default(),
            borrowed: Borrowed::default(),
            managed: ManagedMemory::default(),
            reports: Reports::default(),
            candidates: Mutex::default(),
            waits: Waits::default(),
            value_waits: ValueWaits::default(),
            ahead: Ahead::default(),
            drains: Drains::default(),
            host_functions: Mutex::default(),
            spares: Spares::default(),
            boundaries: AtomicU64::new(0),
            switches: AtomicU64::new(0),
        }
    }

    /// The counts by which allocations age.
    pub fn now(&self) -> Moment {
        Moment {
            boundaries: self.boundaries.load(Ordering::Relaxed),
            switches: self.switches.load(Ordering::Relaxed),
        }
    }

    /// The program says itself where its boundaries are: from now on nothing else does. Waits while the gate is
    /// closed for it.
    pub fn told_boundary(&self) {
        let number = self.publish(self.candidates.lock().tell());
        GATE.boundary(number);
    }

    /// A moment of the program's loop has come that may be its boundary. If it is, waits while the gate is
    /// closed for it. Returns whether it is.
    pub fn moment(&self, name: Name) -> bool {
        let number = self.boundary_number(name);
        number.into_iter().for_each(|number| GATE.boundary(number));
        number.is_some()
    }

    /// Counts, and publishes, a collective that is about to be launched; returns its number.
    pub fn count_collective(&self) -> u64 {
        self.page.collectives.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Publishes a boundary, and returns its number. The candidates are locked: what is published last has
    /// come last.
    fn publish(&self, number: u64) -> u64 {
        self.waits.begin_anew();
        let count = self.boundaries.fetch_add(1, Ordering::Relaxed) + 1;
        self.page.boundaries.store(count, Ordering::Relaxed);
        self.page.last_boundary.store(number, Ordering::Relaxed);
        number
    }

    /// Forgets the captures of contexts that were destroyed, or have come to their end by an error: they never end otherwise.
    pub fn forget_dead_captures(&self) {
        for context in self.captures.contexts() {
            let has_ended = self.contexts.keep(context).is_none_or(|used| {
                let asked = Current::make(used.context).and_then(|_current| driver::check_context());
                asked.is_err_and(|error| error.ends_context())
            });
            if has_ended {
                self.captures.ended_with(context);
            }
        }
    }

    /// The boundary's number, if this moment is one; it is published then.
    fn boundary_number(&self, name: Name) -> Option<u64> {
        if self.captures.any() {
            return None;
        }
        let live = self.tenants.all().into_iter().map(Tenant::live_bytes).sum();
        let mut candidates = self.candidates.lock();
        let before = candidates.chosen().map(|(name, _)| name);
        let number = candidates.meet(name, live);
        match candidates.chosen() {
            Some((name, live)) if before != Some(name) => {
                info!("boundaries: {} ({live} bytes are alive there)", describe(name));
            }
            _ => {}
        }
        if number.is_none() {
            self.page.learning.store(candidates.learning().unwrap_or(0), Ordering::Relaxed);
        }
        number.map(|number| self.publish(number))
    }

    /// The parts of some memory, in order, each in one allocation: one, in what the driver allocated; in the
    /// program's own mappings as many as there are handles behind. None, where the memory is none of ours.
    pub fn for_each_part(
        &self,
        address: CUdeviceptr,
        bytes: u64,
        mut visit: impl FnMut(Part) -> Result<(), Mismatch>,
    ) -> Result<(), Mismatch> {
        if let Some((tenant, class, start)) = self.tenants.place_of(address) {
            return visit(Part { tenant, class, bytes: start..start + bytes });
        }
        let parts = self.loose.handles.lock().behind(address..address + bytes);
        let found: u64 = parts.iter().map(|(_, bytes)| bytes.end - bytes.start).sum();
        if !parts.is_empty() && found != bytes {
            return Err(Mismatch::Outside);
        }
        parts.into_iter().try_for_each(|(extent, bytes)| {
            let tenant = self.tenants.on(extent.device).ok_or(Mismatch::Outside)?;
            visit(Part { tenant, class: extent.class, bytes })
        })
    }

    /// The parts of some addresses behind which slots of ours are: in the tenants' ranges, and where the
    /// program has mapped handles.
    pub fn stretches(&self, addresses: Range<CUdeviceptr>) -> Vec<Stretch> {
        let mut stretches = Vec::new();
        if addresses.is_empty() {
            return stretches;
        }
        let tenants = self.tenants.all();
        for &tenant in &tenants {
            stretches.extend(tenant.stretches(addresses.clone()));
        }
        for (start, extent, bytes) in self.loose.handles.lock().parts(addresses) {
            let tenant = tenants.iter().copied().find(|tenant| tenant.device == extent.device);
            let stretch = |tenant| Stretch { tenant, class: extent.class, start, bytes };
            stretches.extend(tenant.map(stretch));
        }
        stretches
    }

    /// Re-classes the blocks, or else the allocations, that some memory belongs to.
    pub fn tag(&self, address: CUdeviceptr, bytes: u64, class: Class) {
        let tag = |part: Part| {
            part.tenant.tag(self, part.class, part.bytes.start, class);
            Ok(())
        };
        // Memory that is not known has no class.
        let _ = self.for_each_part(address, bytes, tag);
    }

    /// What is known of the process, as JSON: the names are those of tidegate.h.
    pub fn status(&self) -> String {
        let Moment { boundaries, switches } = self.now();
        let gpus: Vec<String> = self.tenants.all().into_iter().map(Tenant::status).collect();
        format!(r#"{{"boundaries":{boundaries},"switches":{switches},"gpus":[{}]}}"#, gpus.join(","))
    }

    /// The process was stopped once more.
    pub fn count_switch(&self) {
        self.switches.fetch_add(1, Ordering::Relaxed);
    }

    /// Publishes the gate's state: 0 open, 1 closing, 2 closed.
    pub fn publish_gate(&self, state: u32) {
        self.page.gate.store(state, Ordering::Relaxed);
    }

    /// The tenant of the calling thread's current context.
    pub fn current_tenant(&self) -> Result<&'static Tenant, Status> {
        if self.contexts.is_current_ended() {
            return Err(Status(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED));
        }
        self.attach(driver::current_device()?)
    }

    /// The tenant on a GPU; the first call waits until the manager has room for it.
    pub fn attach(&self, device: CUdevice) -> Result<&'static Tenant, Status> {
        match self.tenants.find_or_reserve(device)? {
            Slot::Known(tenant) => Ok(tenant),
            Slot::Reserved(row) => {
                let tenant = self.ask_for(device, row);
                self.tenants.settle(device, tenant.as_ref().ok().copied());
                tenant
            }
        }
    }

    fn ask_for(&self, device: CUdevice, row: usize) -> Result<&'static Tenant, Status> {
        let gpu = driver::uuid(device)?;
        let cannot_ask = |gone: Gone| {
            gone.explain(format_args!("{gpu} cannot be used"));
            Status::NOT_READY
        };
        let replies = self.link.request(|step| FromShim::Attach { step, gpu }).map_err(cannot_ask)?;
        let reply = replies.next_or_say(|| self.say_waiting()).map_err(cannot_ask)?;
        match reply {
            Reply::Attached { tenant, layout } => {
                let tenant: &'static Tenant = Box::leak(Box::new(Tenant::new(tenant, device, layout, row)));
                tenant.publish_name(self);
                self.spares.keep(row + 1);
                info!("{} on {gpu}", tenant.id);
                Ok(tenant)
            }
            Reply::Refused(reason) => {
                warning!("{gpu} cannot be used: {reason}");
                Err(Status::OUT_OF_MEMORY)
            }
            Reply::Leased { .. } | Reply::Lent { .. } | Reply::Held | Reply::Room { .. } => {
                Err(Status::UNKNOWN)
            }
        }
    }

    /// `tidegate run` tells its user itself.
    fn say_waiting(&self) {
        if matches!(self.settings.claim, JobClaim::Own(_)) {
            warning!("waiting until there is room on the GPU");
        }
    }
}

/// What lies in one allocation of some memory.
pub struct Part {
    /// Whose it is.
    pub tenant: &'static Tenant,
    /// In which of its ranges.
    pub class: Class,
    /// The bytes there.
    pub bytes: Range<u64>,
}

/// Addresses behind which slots of a tenant are.
pub struct Stretch {
    /// Whose they are.
    pub tenant: &'static Tenant,
    /// In which of its ranges.
    pub class: Class,
    /// The first address.
    pub start: CUdeviceptr,
    /// The bytes there.
    pub bytes: Range<u64>,
}

/// The process's tenants.
#[derive(Default)]
pub struct Tenants {
    entries: Mutex<Vec<Entry>>,
    settled: Condvar,
}

struct Entry {
    device: CUdevice,
    /// Its row on the page.
    row: usize,
    /// `None` while the manager is being asked.
    tenant: Option<&'static Tenant>,
}

enum Slot {
    Known(&'static Tenant),
    Reserved(usize),
}

impl Tenants {
    /// The tenant of a device, or the leave to ask for it: one thread asks, others wait for it.
    fn find_or_reserve(&self, device: CUdevice) -> Result<Slot, Status> {
        let mut entries = self.entries.lock();
        loop {
            match entries.iter().find(|entry| entry.device == device) {
                Some(Entry { tenant: Some(tenant), .. }) => return Ok(Slot::Known(tenant)),
                Some(_) => self.settled.wait(&mut entries),
                None => break,
            }
        }
        let is_unused = |row: &usize| entries.iter().all(|entry| entry.row != *row);
        let row = (0..MAX_TENANTS).find(is_unused).ok_or(Status::NOT_READY)?;
        entries.push(Entry { device, row, tenant: None });
        Ok(Slot::Reserved(row))
    }

    fn settle(&self, device: CUdevice, tenant: Option<&'static Tenant>) {
        let mut entries = self.entries.lock();
        match entries.iter_mut().find(|entry| entry.device == device) {
            Some(entry) if tenant.is_some() => entry.tenant = tenant,
            _ => entries.retain(|entry| entry.device != device),
        }
        self.settled.notify_all();
    }

    /// All tenants, in the order of attaching.
    pub fn all(&self) -> Vec<&'static Tenant> {
        self.entries.lock().iter().filter_map(|entry| entry.tenant).collect()
    }

    /// The tenant with memory at an address.
    pub fn with_address(&self, address: CUdeviceptr) -> Option<&'static Tenant> {
        self.place_of(address).map(|(tenant, ..)| tenant)
    }

    /// The tenant with memory at an address, and the byte of its range.
    pub fn place_of(&self, address: CUdeviceptr) -> Option<(&'static Tenant, Class, u64)> {
        self.entries.lock().iter().filter_map(|entry| entry.tenant).find_map(|tenant| {
            let (class, start) = tenant.place_of(address)?;
            Some((tenant, class, start))
        })
    }

    /// The tenant on a device, if it is attached.
    pub fn on(&self, device: CUdevice) -> Option<&'static Tenant> {
        self.all().into_iter().find(|tenant| tenant.device == device)
    }
}
