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

use crate::contexts::Contexts;
use crate::driver;
use crate::gate::{Fence, GATE};
use crate::link::{Gone, Link, Order, Reply};
use crate::liveness::Moment;
use crate::log::{info, warning};
use crate::orders;
use crate::outgoing::Letter;
use crate::reunion::{HANDSHAKE, Session, Watch};
use crate::settings::{self, Settings};
use crate::status::Status;
use crate::tenant::Tenant;
use crate::threads;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;
use tidegate_ffi::cuda::sys::{CUdevice, CUdeviceptr};
use tidegate_ffi::wire::line::{Line, Numbered};
use tidegate_ffi::wire::message::{FromShim, JobClaim, Ticket, ToManager, ToShim};
use tidegate_ffi::wire::page::{MAX_TENANTS, Page};
use tidegate_ffi::wire::{Connection, Mapped, ReceiveError, SendError, socket_candidates};

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
    boundaries: AtomicU64,
    switches: AtomicU64,
}

/// The process, if it has a manager.
#[inline]
pub fn active() -> Option<&'static Process> {
    // SAFETY: null, or the process that `begin` leaked: never freed, shared by reference only.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
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

/// Why the process runs without Tidegate.
#[derive(Debug, thiserror::Error)]
enum NoManager {
    #[error("no manager answers at {0} (start one with `tidegate manager`, or use `tidegate run`)")]
    Nobody(String),
    #[error("the manager refused this process: {0}")]
    Refused(String),
    #[error("the manager at {0} did not answer: {1}")]
    Silent(String, String),
    #[error("the manager at {0} has ended, and no other has taken its place")]
    Dead(String),
    #[error("this process could not be prepared: {0}")]
    System(String),
}

fn begin() -> Result<&'static Process, NoManager> {
    let settings = Settings::read();
    let (page, page_file) = Page::create().map_err(|error| NoManager::System(error.to_string()))?;
    let (connection, path, Welcome { closed, ticket, line }) = meet(&settings, page_file.as_fd())?;
    // The program may change its directory before the socket is looked for again.
    let socket = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
    let (connection, session) = (Arc::new(connection), Session { socket, ticket, page: page_file });
    let link = Link::new(connection.clone(), line, session);
    let process: &'static Process = Box::leak(Box::new(Process::new(link, page, settings)));
    GATE.start(closed, Fence::cheapest());
    process.publish_gate(if closed { 2 } else { 0 });
    process.start_threads(connection).map_err(|error| {
        GATE.disable();
        process.link.hang_up(&Gone::because("this process could not be prepared"));
        NoManager::System(error.to_string())
    })?;
    info!("connected to the manager at {}", path.display());
    Ok(process)
}

/// Finds a manager and says hello to it. A program that was announced to one, or whose hello one may
/// have heard, does not go without because that manager has died just now: it greets the next one.
fn meet(settings: &Settings, page: BorrowedFd<'_>) -> Result<(Connection, PathBuf, Welcome), NoManager> {
    let end = Instant::now() + HANDSHAKE;
    let mut expected = matches!(settings.claim, JobClaim::Token(_));
    loop {
        // Before it is tried: what comes after that is seen.
        let watch = socket_candidates().first().and_then(|path| Watch::of(path).ok());
        let met = connect().and_then(|(connection, path)| {
            let welcome = greet(&connection, settings, page);
            welcome
                .map_err(|error| error.at(path.display().to_string()))
                .map(|welcome| (connection, path, welcome))
        });
        match &met {
            Err(NoManager::Dead(_)) => expected = true,
            Err(NoManager::Nobody(_)) if expected => {}
            _ => return met,
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || !watch.is_some_and(|watch| watch.sees_within(left)) {
            return met;
        }
    }
}

fn connect() -> Result<(Connection, PathBuf), NoManager> {
    let candidates = socket_candidates();
    for path in &candidates {
        if let Ok(connection) = Connection::connect(path) {
            return Ok((connection, path.clone()));
        }
    }
    let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
    Err(NoManager::Nobody(tried.join(" or ")))
}

/// How the first exchange failed.
enum Unwelcome {
    Refused(String),
    Silent(String),
    /// The connection has ended.
    Dead,
}

impl Unwelcome {
    fn at(self, path: String) -> NoManager {
        match self {
            Self::Refused(reason) => NoManager::Refused(reason),
            Self::Silent(reason) => NoManager::Silent(path, reason),
            Self::Dead => NoManager::Dead(path),
        }
    }
}

/// What the manager said to the hello.
struct Welcome {
    /// Whether the gate starts closed.
    closed: bool,
    ticket: Ticket,
    line: Line<Letter>,
}

/// Says hello.
fn greet(connection: &Connection, settings: &Settings, page: BorrowedFd<'_>) -> Result<Welcome, Unwelcome> {
    let silent = |error: &dyn std::fmt::Display| Unwelcome::Silent(error.to_string());
    set_socket_timeout(connection, Timeout::Recv, Some(HANDSHAKE)).map_err(|error| silent(&error))?;
    let mut line = Line::new();
    let hello = FromShim::Hello(settings.claim.clone());
    let said = line.say(Letter::new(hello.clone(), Vec::new())).map_err(|error| silent(&error))?;
    connection.send(&ToManager::Shim(said.map(|_| hello)), &[page]).map_err(|error| match error {
        SendError::Socket(Errno::PIPE | Errno::CONNRESET) => Unwelcome::Dead,
        other => silent(&other),
    })?;
    let (answer, _) = connection.receive::<Numbered<ToShim>>().map_err(|error| match error {
        ReceiveError::Closed | ReceiveError::Truncated => Unwelcome::Dead,
        other => silent(&other),
    })?;
    set_socket_timeout(connection, Timeout::Recv, None).map_err(|error| silent(&error))?;
    match line.hear(answer).map_err(|error| silent(&error))? {
        Some(ToShim::Welcome { closed, ticket, .. }) => Ok(Welcome { closed, ticket, line }),
        Some(ToShim::Refused { reason }) => Err(Unwelcome::Refused(reason)),
        other => Err(Unwelcome::Silent(format!("it said {other:?} where a welcome was expected"))),
    }
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
            boundaries: AtomicU64::new(0),
            switches: AtomicU64::new(0),
        }
    }

    fn start_threads(&'static self, connection: Arc<Connection>) -> std::io::Result<()> {
        let (sender, receiver) = channel::<Order>();
        threads::spawn("tidegate-gate", move || orders::carry_out(self, &receiver))?;
        threads::spawn("tidegate-link", move || {
            if catch_unwind(AssertUnwindSafe(|| self.link.read(connection, &sender))).is_err() {
                // A reader that failed is as good as a manager that has refused the process.
                self.link.hang_up(&Gone::because("it cannot be heard any more"));
            }
        })
    }

    /// The counts by which allocations age.
    pub fn now(&self) -> Moment {
        Moment {
            boundaries: self.boundaries.load(Ordering::Relaxed),
            switches: self.switches.load(Ordering::Relaxed),
        }
    }

    /// The program is at a boundary: counts it, and waits while the gate is closed for it.
    pub fn boundary(&self) {
        let count = self.boundaries.fetch_add(1, Ordering::Relaxed) + 1;
        self.page.boundaries.store(count, Ordering::Relaxed);
        GATE.boundary(count);
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
                info!("{} on {gpu}", tenant.id);
                Ok(tenant)
            }
            Reply::Refused(reason) => {
                warning!("{gpu} cannot be used: {reason}");
                Err(Status::OUT_OF_MEMORY)
            }
            Reply::Leased { .. } | Reply::Room => Err(Status::UNKNOWN),
        }
    }

    /// `tidegate run` tells its user itself.
    fn say_waiting(&self) {
        if matches!(self.settings.claim, JobClaim::Own(_)) {
            warning!("waiting until there is room on the GPU");
        }
    }
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
        self.all().into_iter().find(|tenant| tenant.has(address))
    }

    /// The tenant on a device, if it is attached.
    pub fn on(&self, device: CUdevice) -> Option<&'static Tenant> {
        self.all().into_iter().find(|tenant| tenant.device == device)
    }
}

/// The streams that are capturing: meanwhile the gate does not close.
#[derive(Default)]
pub struct Captures {
    streams: Mutex<HashSet<usize>>,
}

impl Captures {
    /// A capture has begun.
    pub fn begun(&self, stream: usize) {
        self.streams.lock().insert(stream);
    }

    /// A capture has ended, well or not.
    pub fn ended(&self, stream: usize) {
        self.streams.lock().remove(&stream);
    }

    /// Whether any stream captures.
    pub fn any(&self) -> bool {
        !self.streams.lock().is_empty()
    }
}
