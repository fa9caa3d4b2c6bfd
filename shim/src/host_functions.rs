//! The program's functions that its streams call (`cuLaunchHostFunc`, `cuStreamAddCallback`): since when they have been running.
//!
//! Work behind such a function waits for it, and it may wait for a thread that stands at the gate, be it for a lock of that thread's
//! (Python's interpreter lock). Of a kernel that has not ended it cannot be told whether it waits or takes long; of a function on
//! the host it can be seen that it is this that has not ended, and whether its thread sleeps until another one wakes it.
//!
//! So the driver is given a function of ours, which calls the program's, and where the program asks for what a graph calls
//! (`cuGraphHostNodeGetParams`) it is given its own. What is captured is called each time that the graph is launched; such a call is
//! kept, and is the same for the same function and data. Nodes that the program itself adds to a graph are not known of here.
//!
//! Invariant: what the driver may call again, or has not said that it will not call, is never freed.

use crate::captures::Captures;
use crate::driver;
use crate::gate::{Role, drawn};
use crate::log::debug;
use crate::process;
use libc::pid_t;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::sys::*;

/// Functions that are launched now may be waited for.
static ARE_WATCHED: AtomicBool = AtomicBool::new(true);

/// Those that are running.
static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

/// How many have ended.
static HAVE_ENDED: AtomicU64 = AtomicU64::new(0);

/// The calls that graphs make, by our function, the program's, and its data.
static CAPTURED: Mutex<BTreeMap<[usize; 3], usize>> = Mutex::new(BTreeMap::new());

/// Whether there are any.
static ARE_CAPTURED: AtomicBool = AtomicBool::new(false);

/// A stream captures.
static ARE_CAPTURING: AtomicBool = AtomicBool::new(false);

/// Neither has the launch returned nor the function ended.
const LAUNCHED: u8 = 0;
/// The launch has returned, and the function is called once.
const ONCE: u8 = 1;
/// The function has ended first.
const ENDED: u8 = 2;

/// Where one has not ended for so long calls go that would begin at once: nothing comes to be ahead by them.
pub const AT_ONCE: Duration = Duration::from_millis(10);
/// So long at first where it is not seen that it waits.
const FIRST_AT_ONCE: Duration = Duration::from_millis(40);
/// Then they go for so long, of one that is seen to wait, and of another; and do not for so long; and so on.
const GO_FOR: Duration = Duration::from_millis(100);
const GO_FOR_OTHERS: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(100);
/// They have ended it if it ended so soon after them.
const SOON_AT_ONCE: Duration = Duration::from_millis(20);
/// It is so many times as long until they go after each that did not end by them, and half as long after one that did.
const LATER: u32 = 8;
/// A function is thought to wait that has not ended for so long, at first, if that is not seen; at least; and at most.
const FIRST: Duration = Duration::from_millis(100);
/// At first in a job of several processes.
const FIRST_WITH_PEERS: Duration = Duration::from_millis(20);
/// So many calls of each thread go for one function there, before it is one at a time.
const MOST_WITH_PEERS: u32 = 16;
/// At first, and at most, while no other job waits.
const FIRST_ALONE: Duration = Duration::from_millis(20);
const LEAST: Duration = AT_ONCE;
const MOST: Duration = Duration::from_millis(2500);
/// Of one that is not seen to wait: those that only take long may take as long.
const MOST_OF_OTHERS: Duration = Duration::from_millis(7500);
/// Calls have ended a function's wait if it ended so soon after them: one that only takes long seldom does.
const SOON: Duration = Duration::from_millis(10);
/// So many calls of a thread go at once, at most.
const MOST_CALLS: u32 = 64;
/// Calls that go for one that is not seen to wait take such a part of the time that it has taken.
const PART_OF_LONG: u32 = 8;
/// For one that is seen to wait calls go again after such a part of the time for which they have gone.
const PART_OF_WAIT: u32 = 4;
/// One that has slept for so long, and has not looked for anything meanwhile, only takes long.
const ASLEEP: Duration = Duration::from_millis(50);
/// Calls go again for one that only sleeps when it has been running for so many times as long more.
const TIMES_OF_SLEEP: u32 = 7;
/// A call takes so long where that is not known.
const UNKNOWN: Duration = Duration::from_millis(1);
/// So often calls go anew for one that waits, where others have ended meanwhile.
const MOST_RENEWED: u32 = 32;
/// Of so many that are running, the ones that began first, it is asked whether they wait.
const MOST_ASKED: usize = 16;

/// One that is running.
#[derive(Clone)]
struct Running {
    since: Instant,
    /// By which the system knows the thread that runs it.
    thread: pid_t,
    ended: Arc<OnceLock<Instant>>,
}

/// Whether the driver is to be given ours.
#[inline(always)]
pub fn are_watched() -> bool {
    ARE_WATCHED.load(Ordering::Relaxed)
}

/// The same of those that are captured, too: the hooks' first look, which takes no lock.
#[inline(always)]
pub fn are_seen() -> bool {
    are_watched() || ARE_CAPTURING.load(Ordering::Relaxed)
}

/// Whether a stream captures, from now on.
pub fn see_captured(are_capturing: bool) {
    ARE_CAPTURING.store(are_capturing, Ordering::Relaxed);
}

/// Whether it is from now on: not in a job that has been alone for long, which is never disturbed. Of the functions that are launched
/// then nothing is known if another job comes.
pub fn watch(are_watched: bool) {
    ARE_WATCHED.store(are_watched, Ordering::Relaxed);
}

/// What the thread does that runs a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It sleeps until another thread or process does something: for a lock, a semaphore, a condition, the end of a thread, or bytes. That
    /// one may be at the gate, or compute for long.
    Waits,
    /// It computes, or sleeps for a time, and may look again and again whether something has come; or the system does not say.
    Else,
}

impl Doing {
    /// By what the system says of a thread: "NUMBER ARGUMENTS…" where it sleeps in a system call, else "running".
    fn of(call: &str) -> Self {
        if Self::is_wait(call) == Some(true) { Self::Waits } else { Self::Else }
    }

    fn is_wait(call: &str) -> Option<bool> {
        let mut words = call.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut argument = |at| u64::from_str_radix(words.nth(at)?.strip_prefix("0x")?, 16).ok();
        Some(match number {
            libc::SYS_futex | libc::SYS_futex_waitv => true,
            libc::SYS_semop | libc::SYS_semtimedop | libc::SYS_flock | libc::SYS_fcntl => true,
            libc::SYS_read | libc::SYS_readv | libc::SYS_recvfrom | libc::SYS_recvmsg => true,
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => true,
            libc::SYS_wait4 | libc::SYS_waitid | libc::SYS_rt_sigtimedwait => true,
            // Of no files they only take time.
            libc::SYS_ppoll => argument(1)? > 0,
            libc::SYS_pselect6 => argument(0)? > 0,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => argument(1)? > 0,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => argument(0)? > 0,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => true,
            _ => false,
        })
    }
}

impl Running {
    fn begin() -> Self {
        // SAFETY: it has no conditions.
        let thread = unsafe { libc::gettid() };
        Self { since: Instant::now(), thread, ended: Arc::default() }
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ended, &other.ended)
    }

    /// How often its thread has slept so far, if it does now.
    fn times_slept(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/self/task/{}/status", self.thread)).ok()?;
        let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let sleeps = of("State:")?.starts_with('S');
        of("voluntary_ctxt_switches:")?.parse().ok().filter(|_| sleeps)
    }

    fn doing(&self) -> Doing {
        let call = std::fs::read_to_string(format!("/proc/self/task/{}/syscall", self.thread));
        call.map_or(Doing::Else, |call| Doing::of(&call))
    }
}

/// The one that began first.
fn oldest() -> Option<Running> {
    RUNNING.lock().first().cloned()
}

/// The one that calls go for: that began first of those that wait, or, where none does, of all.
fn first() -> Option<(Running, Doing)> {
    let all: Vec<Running> = RUNNING.lock().iter().take(MOST_ASKED).cloned().collect();
    let waits = all.iter().find(|running| running.doing() == Doing::Waits).cloned();
    let found = waits.map(|running| (running, Doing::Waits));
    found.or_else(|| all.into_iter().next().map(|running| (running, Doing::Else)))
}

/// Whether calls go that would begin at once: no work has ended for `still`, and one is running for as long.
pub fn may_wait(still: Duration) -> bool {
    still >= AT_ONCE && oldest().is_some_and(|oldest| oldest.since.elapsed() >= AT_ONCE)
}

/// How long functions on the host run before they are thought to wait for calls that stand at the gate.
///
/// Whether one waits for a thread the system says, but not for which: it may compute. So both is learned from what ended them,
/// for those that are seen to wait and for others: the more often calls have ended one the sooner they go for the next,
/// and the more often one has ended by itself the later. There are two kinds of calls.
/// - Those that would begin at once go half of the time from then on: nothing comes to be ahead by them. But if they went all the time
///   each function would end just after some.
/// - Of the others one of each thread goes. If the function goes on they go again when it has been running for about twice as
///   long, as chance says, for it might end just then each time. Where it is seen to wait, or the job has several processes,
///   twice as many go each time, up to some: a thread that gives back a lock may have it again before the function does, until it
///   waits for its stream, and the time of other processes ends. And where it is seen to wait they go again after a quarter of the
///   time from the first of them on: that may have come late, where the thread that is waited for had to wait for memory. It takes
///   tens of tries where many threads have the lock by turns. Where others have ended meanwhile they go as at first, so often at
///   most: it may wait behind these for the same lock.
pub struct Patience {
    waiting: Learned,
    others: Learned,
    /// The one that calls go for, as it was last looked for.
    found: Option<(Running, Doing)>,
    tried: Option<Tried>,
    at_once: Option<Attempt>,
    tries: u32,
    has_peers: bool,
    /// No other job waits: what is ahead is in nobody's way.
    is_alone: bool,
    /// How long a call takes, if that is known.
    each: Option<Duration>,
    /// So many had ended when the closing began.
    had_ended: u64,
    seen: Seen,
}

/// What was seen in a closing of functions that did not end.
#[derive(Default)]
struct Seen {
    /// The last one that slept: since when it is looked at, and how often its thread had slept then.
    asleep: Option<(Running, Instant, u64)>,
    /// One slept for so long as one that only takes long ([`ASLEEP`]).
    has_slept: bool,
    /// One waited.
    has_waited: bool,
    /// One slept again and again, as one does that looks whether something has come.
    has_looked: bool,
}

impl Seen {
    fn note(&mut self, running: &Running, doing: Doing) {
        if doing == Doing::Waits {
            self.has_waited = true;
        }
        if self.has_waited || self.has_looked {
            return;
        }
        let Some(slept) = running.times_slept() else { return };
        match self.asleep.as_ref().filter(|(asleep, ..)| asleep.is(running)) {
            Some((.., before)) if slept > *before => self.has_looked = true,
            Some((_, since, _)) => self.has_slept |= since.elapsed() >= ASLEEP,
            None => self.asleep = Some((running.clone(), Instant::now(), slept)),
        }
    }

    /// Whether this one sleeps, and has not been looked at for long enough to tell whether it looks for something.
    fn may_only_sleep(&self, running: &Running) -> bool {
        let is_known = self.has_slept || self.has_waited || self.has_looked;
        let asleep = self.asleep.as_ref().filter(|(asleep, ..)| !is_known && asleep.is(running));
        asleep.is_some_and(|(_, since, _)| since.elapsed() < ASLEEP)
    }
}

/// Of functions that wait, or of others.
struct Learned {
    /// They have not ended for so long when calls of the second kind go, of each thread so many at first: twice as many as
    /// have ended one.
    time: Duration,
    calls: u32,
    /// And for so long when those go that would begin at once.
    at_once: Duration,
    /// Either is no longer.
    most: Duration,
}

/// Calls went for one.
struct Attempt {
    running: Running,
    doing: Doing,
    at: Instant,
}

impl Attempt {
    /// Whether it has ended so soon after them.
    fn has_ended_soon(&self, soon: Duration) -> bool {
        self.running.ended.get().is_some_and(|ended| ended.saturating_duration_since(self.at) < soon)
    }
}

/// Calls of the second kind.
struct Tried {
    of: Attempt,
    /// So many of each thread, at last and in all.
    calls: u32,
    given: u32,
    /// It had been running for so long when the first ones went, and the last, and has for so long when they go again.
    first: Duration,
    last: Duration,
    next: Duration,
    /// So many functions had ended then.
    have_ended: u64,
    /// So often calls went anew, as for the first time, for others had ended by them.
    renewed: u32,
}

/// What it is time for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Calls that would begin at once.
    pub at_once: bool,
    /// Others.
    pub others: bool,
    /// The function is seen to wait for a thread.
    pub waits: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            waiting: Learned { time: LEAST, calls: 1, at_once: AT_ONCE, most: MOST },
            others: Learned { time: FIRST, calls: 1, at_once: FIRST_AT_ONCE, most: MOST_OF_OTHERS },
            found: None,
            tried: None,
            at_once: None,
            tries: 0,
            has_peers: false,
            is_alone: false,
            each: None,
            had_ended: 0,
            seen: Seen::default(),
        }
    }
}

impl Patience {
    /// How many functions have ended since the closing began.
    pub fn ended(&self) -> u64 {
        HAVE_ENDED.load(Ordering::Relaxed).saturating_sub(self.had_ended)
    }

    /// Whether calls have gone for a function that has not ended.
    pub fn is_trying(&self) -> bool {
        self.tried.is_some()
    }

    /// Looks which one calls go for, and what it does.
    pub fn look(&mut self) {
        self.found = first();
        if let Some((running, doing)) = &self.found {
            self.seen.note(running, *doing);
        }
    }

    /// Whether those that were seen in this closing only take long: they sleep for a time.
    pub fn only_sleep(&self) -> bool {
        self.seen.has_slept && !self.seen.has_waited && !self.seen.has_looked
    }

    /// Whether one was seen in this closing that waits.
    pub fn has_waited(&self) -> bool {
        self.seen.has_waited
    }

    /// Which calls it is time for: no work has ended for `still`.
    pub fn due(&mut self, still: Duration) -> Due {
        self.learn();
        if still < AT_ONCE {
            return Due::default();
        }
        self.look();
        let found = self.found.clone();
        found.map_or(Due::default(), |(running, doing)| self.due_for(&running, doing, still))
    }

    fn due_for(&mut self, running: &Running, doing: Doing, still: Duration) -> Due {
        let Learned { mut time, at_once, .. } = *self.learned(doing);
        if self.is_alone && !self.only_sleep() {
            if self.seen.may_only_sleep(running) {
                return Due::default();
            }
            time = time.min(FIRST_ALONE);
        }
        let runs = running.since.elapsed();
        let before = self.tried.as_ref().filter(|tried| tried.of.running.is(running));
        let from = before.map_or(time, |tried| match tried.is_anew() {
            true => tried.last + LEAST,
            false => tried.next,
        });
        let others = still >= time && runs >= from;
        let waits = doing == Doing::Waits;
        let go_for = if waits { GO_FOR } else { GO_FOR_OTHERS };
        let since = still.min(runs).checked_sub(at_once);
        let goes = |since: Duration| since.as_micros() % (go_for + REST).as_micros() < go_for.as_micros();
        Due { at_once: since.is_some_and(goes), others, waits }
    }

    /// Others go now, for the one that they are [due](Self::due) for: how many of each thread.
    pub fn begin_try(&mut self) -> u32 {
        self.found.clone().map_or(0, |(running, doing)| {
            let runs = running.since.elapsed();
            self.begin_try_for(running, doing, runs)
        })
    }

    /// Some that would begin at once went for the one that they are due for, which may have ended by them.
    pub fn note_at_once(&mut self) {
        if let Some((running, doing)) = self.found.clone() {
            self.at_once = Some(Attempt { running, doing, at: Instant::now() });
        }
    }

    fn begin_try_for(&mut self, running: Running, doing: Doing, runs: Duration) -> u32 {
        self.tries = self.tries.wrapping_add(1);
        let longer = 0.5 + f64::from(drawn(self.tries, 0) & 0xff) / 256.0;
        let most = self.most_calls(doing, runs);
        let before = self.tried.take().filter(|tried| tried.of.running.is(&running));
        let (first, given, renewed) = before.map_or((runs, 0, 0), |tried| match tried.is_anew() {
            true => (runs, 0, tried.renewed + 1),
            false => (tried.first, tried.given, tried.renewed),
        });
        let calls = match given {
            0 => self.learned(doing).calls.min(most),
            _ => (given + 1).min(most.saturating_sub(given)).max(1),
        };
        let from = match doing {
            Doing::Waits => (runs.saturating_sub(first) + LEAST) / PART_OF_WAIT,
            Doing::Else if self.only_sleep() => runs * TIMES_OF_SLEEP,
            Doing::Else => runs,
        };
        let of = Attempt { running, doing, at: Instant::now() };
        self.tried = Some(Tried {
            of,
            calls,
            given: given + calls,
            first,
            last: runs,
            next: runs + from.mul_f64(longer),
            have_ended: HAVE_ENDED.load(Ordering::Relaxed),
            renewed,
        });
        calls
    }

    /// So many go for one function that has been running for `runs`, where twice as many go each time.
    fn most_calls(&self, doing: Doing, runs: Duration) -> u32 {
        match doing {
            _ if self.has_peers => MOST_WITH_PEERS,
            // Each may be another one that takes as long.
            Doing::Else if self.only_sleep() => 1,
            // They do not take longer than it has taken.
            Doing::Waits => self.calls_in(runs),
            // It may look again and again for what it waits for, or only take long.
            Doing::Else if self.is_alone => self.calls_in(runs),
            Doing::Else => self.calls_in(runs / PART_OF_LONG),
        }
    }

    /// So many calls take so long, as far as is known: one at least.
    fn calls_in(&self, time: Duration) -> u32 {
        let each = self.each.unwrap_or(UNKNOWN).as_nanos().max(1);
        u32::try_from(time.as_nanos() / each).unwrap_or(u32::MAX).max(1)
    }

    /// Those that went have been made.
    pub fn end_try(&mut self) {
        if let Some(tried) = &mut self.tried {
            tried.of.at = Instant::now();
        }
    }

    /// Whether no other job waits.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// Before a closing. Whether other processes of the job have memory: a thread may have at the gate here what theirs wait for,
    /// and theirs what is waited for here. And how long a call takes.
    pub fn prepare(&mut self, has_peers: bool, each: Option<Duration>) {
        if has_peers && !self.has_peers {
            self.others.time = self.others.time.min(FIRST_WITH_PEERS);
        }
        (self.has_peers, self.each, self.is_alone) = (has_peers, each, false);
        (self.had_ended, self.seen) = (HAVE_ENDED.load(Ordering::Relaxed), Seen::default());
    }

    fn learned(&mut self, doing: Doing) -> &mut Learned {
        match doing {
            Doing::Waits => &mut self.waiting,
            Doing::Else => &mut self.others,
        }
    }

    /// Have functions ended for which calls went, and by these?
    fn learn(&mut self) {
        let at_once = self.at_once.take_if(|of| of.running.ended.get().is_some());
        let tried = self.tried.take_if(|tried| tried.of.running.ended.get().is_some());
        let ended_at_once = at_once.as_ref().filter(|of| of.has_ended_soon(SOON_AT_ONCE));
        if let Some(Tried { of, calls, .. }) = tried {
            let has_helped = of.has_ended_soon(SOON);
            // Those that begin at once may have ended it where these were needed before.
            if has_helped || ended_at_once.is_none_or(|other| !other.running.is(&of.running)) {
                self.learned(of.doing).note_tried(has_helped, calls);
            }
        }
        if let Some(of) = at_once {
            self.learned(of.doing).note_at_once(of.has_ended_soon(SOON_AT_ONCE));
        }
    }
}

impl Tried {
    /// Whether others have ended since the last calls went: one that waits for its turn behind them is nearer to it.
    fn is_anew(&self) -> bool {
        let is_nearer = HAVE_ENDED.load(Ordering::Relaxed) != self.have_ended;
        is_nearer && self.of.doing == Doing::Waits && self.renewed < MOST_RENEWED
    }
}

impl Learned {
    fn note_tried(&mut self, has_helped: bool, calls: u32) {
        let time = if has_helped { self.time / 2 } else { self.time * 2 };
        self.time = time.clamp(LEAST, self.most);
        self.calls = if has_helped { (calls * 2).min(MOST_CALLS) } else { 1 };
        let by = by(has_helped);
        debug!("a function on the host has ended, {by}: {} calls next after {:?}", self.calls, self.time);
    }

    fn note_at_once(&mut self, has_helped: bool) {
        let time = if has_helped { self.at_once / 2 } else { self.at_once * LATER };
        self.at_once = time.clamp(AT_ONCE, self.most);
        let by = by(has_helped);
        debug!("a function on the host has ended, {by}: calls at once next after {:?}", self.at_once);
    }
}

fn by(has_helped: bool) -> &'static str {
    if has_helped { "by calls that went" } else { "by itself" }
}

/// The type of `cuLaunchHostFunc`'s functions.
type HostFn = unsafe extern "C" fn(*mut c_void);
/// That of `cuStreamAddCallback`'s.
type Callback = unsafe extern "C" fn(CUstream, CUresult, *mut c_void);
/// The same, as they are if an exception leaves them: that is the driver's to meet, as without us.
type ThrowingHostFn = unsafe extern "C-unwind" fn(*mut c_void);
type ThrowingCallback = unsafe extern "C-unwind" fn(CUstream, CUresult, *mut c_void);

/// A function that the driver calls for a stream.
pub trait HostFunction: Copy {
    /// The function of ours that calls one of this type.
    fn stand_in() -> Self;
    /// Where it lies.
    fn address(self) -> usize;
}

impl HostFunction for HostFn {
    fn stand_in() -> Self {
        // SAFETY: the types differ only in what is said of exceptions.
        unsafe { mem::transmute(call_host_function as ThrowingHostFn) }
    }

    fn address(self) -> usize {
        self as usize
    }
}

impl HostFunction for Callback {
    fn stand_in() -> Self {
        // SAFETY: as above.
        unsafe { mem::transmute(call_back as ThrowingCallback) }
    }

    fn address(self) -> usize {
        self as usize
    }
}

/// What our function is given to call the program's.
struct Call<F> {
    function: F,
    data: *mut c_void,
    state: AtomicU8,
}

/// Submits the program's `function` with its `data` to a stream, by `submit`.
///
/// # Safety
/// What `submit` is given is submitted as the driver's manual says, and called for that alone.
#[cold]
#[inline(never)]
pub unsafe fn launch<F: HostFunction>(
    stream: CUstream,
    function: Option<F>,
    data: *mut c_void,
    submit: impl FnOnce(Option<F>, *mut c_void) -> Code,
) -> Code {
    let Some(process) = process::active() else { return submit(function, data) };
    let is_captured = || process.captures.any() && driver::is_capturing(stream).unwrap_or(true);
    // SAFETY: the caller's promise.
    unsafe { launch_unless(is_captured, &process.captures, function, data, submit) }
}

/// The same; what is captured now is kept.
///
/// # Safety
/// As above.
unsafe fn launch_unless<F: HostFunction>(
    is_captured: impl Fn() -> bool,
    captures: &Captures,
    function: Option<F>,
    data: *mut c_void,
    submit: impl FnOnce(Option<F>, *mut c_void) -> Code,
) -> Code {
    let changes = captures.changes();
    let Some(known) = function else { return submit(None, data) };
    if is_captured() {
        return submit(Some(F::stand_in()), captured_call(known, data).cast());
    }
    let call = Box::into_raw(Box::new(Call { function: known, data, state: AtomicU8::new(LAUNCHED) }));
    let answer = submit(Some(F::stand_in()), call.cast());
    // A stream that has become part of a capture is that until the capture ends.
    if answer == CUresult::CUDA_SUCCESS && !is_captured() && captures.changes() == changes {
        // SAFETY: it is freed below or by its end, whichever comes last.
        let state = unsafe { &(*call).state };
        if state.swap(ONCE, Ordering::AcqRel) == ENDED {
            // SAFETY: made of a box above. The function has ended, and is not called again: it was not captured.
            drop(unsafe { Box::from_raw(call) });
        }
    }
    answer
}

/// What the launch of a graph is: it may call functions on the host that a stream has captured.
#[inline(always)]
pub fn role_of_graphs() -> Role {
    if do_graphs_call() { Role::Calls } else { Role::Works }
}

/// Whether any functions were captured.
#[inline(always)]
pub fn do_graphs_call() -> bool {
    ARE_CAPTURED.load(Ordering::Relaxed)
}

/// What a graph calls, which may be at any time.
fn captured_call<F: HostFunction>(function: F, data: *mut c_void) -> *mut Call<F> {
    let key = [F::stand_in().address(), function.address(), data.addr()];
    ARE_CAPTURED.store(true, Ordering::Relaxed);
    let mut all = CAPTURED.lock();
    let make = || {
        let call = Call { function, data, state: AtomicU8::new(LAUNCHED) };
        Box::into_raw(Box::new(call)).expose_provenance()
    };
    ptr::with_exposed_provenance_mut(*all.entry(key).or_insert_with(make))
}

/// Makes of the parameters of a graph's node, as the driver has said them, what the program has submitted.
pub fn tell_programs_own(parameters: &mut CUDA_HOST_NODE_PARAMS) {
    let ours = <HostFn as HostFunction>::stand_in().address();
    if parameters.fn_.is_some_and(|function| function.address() == ours) {
        // SAFETY: it is given to the driver with a call, which is not freed where a graph may call it.
        let Call { function, data, .. } = unsafe { &*parameters.userData.cast::<Call<HostFn>>() };
        (parameters.fn_, parameters.userData) = (Some(*function), *data);
    }
}

/// While it lives the function is running.
struct Guard<F> {
    call: *const Call<F>,
    running: Running,
}

impl<F: Copy> Guard<F> {
    /// # Safety
    /// It is a call that was not freed, and is not until the guard is dropped.
    unsafe fn enter(call: *const Call<F>) -> (Self, F, *mut c_void) {
        let running = Running::begin();
        RUNNING.lock().push(running.clone());
        // SAFETY: the caller's promise.
        let Call { function, data, .. } = unsafe { &*call };
        (Self { call, running }, *function, *data)
    }
}

impl<F> Drop for Guard<F> {
    fn drop(&mut self) {
        RUNNING.lock().retain(|running| !running.is(&self.running));
        let _ = self.running.ended.set(Instant::now());
        HAVE_ENDED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: not freed until now, by what `enter` was promised.
        let state = unsafe { &(*self.call).state };
        if state.swap(ENDED, Ordering::AcqRel) == ONCE {
            // SAFETY: made of a box by `launch_unless`, which has returned and does not free it; and this was its only call.
            drop(unsafe { Box::from_raw(self.call.cast_mut()) });
        }
    }
}

/// # Safety
/// `data` is a call that `launch_unless` has made.
unsafe extern "C-unwind" fn call_host_function(data: *mut c_void) {
    // SAFETY: the caller's promise.
    let (_running, function, data) = unsafe { Guard::<HostFn>::enter(data.cast()) };
    // SAFETY: the types differ only in what is said of exceptions.
    let function: ThrowingHostFn = unsafe { mem::transmute(function) };
    // SAFETY: the program's function, with what it is to be given.
    unsafe { function(data) }
}

/// # Safety
/// As above.
unsafe extern "C-unwind" fn call_back(stream: CUstream, status: CUresult, data: *mut c_void) {
    // SAFETY: the caller's promise.
    let (_running, function, data) = unsafe { Guard::<Callback>::enter(data.cast()) };
    // SAFETY: the types differ only in what is said of exceptions.
    let function: ThrowingCallback = unsafe { mem::transmute(function) };
    // SAFETY: the program's function, with what the driver says to it.
    unsafe { function(stream, status, data) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static FREED: AtomicU32 = AtomicU32::new(0);

    impl<F> Drop for Call<F> {
        fn drop(&mut self) {
            FREED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts up, and looks that it is known to be running.
    unsafe extern "C" fn count(data: *mut c_void) {
        assert!(oldest().is_some());
        // SAFETY: the test gives it one.
        unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
    }

    /// Launches `count` as the driver is told to by `submit`. Whether it was given a function of ours, and what was freed.
    fn launch_counted(captures: &Captures, submit: impl FnOnce(HostFn, *mut c_void)) -> (bool, u32) {
        static COUNTED: AtomicU32 = AtomicU32::new(0);
        let before = FREED.load(Ordering::Relaxed);
        let (data, mut is_ours) = (std::ptr::from_ref(&COUNTED).cast_mut().cast(), false);
        let submit = |function: Option<HostFn>, given: *mut c_void| {
            is_ours = given != data;
            submit(function.unwrap(), given);
            CUresult::CUDA_SUCCESS.into()
        };
        // SAFETY: what is given to `submit` below is called as a driver would.
        let answer =
            unsafe { launch_unless(|| captures.any(), captures, Some(count as HostFn), data, submit) };
        assert_eq!(answer, CUresult::CUDA_SUCCESS);
        (is_ours, FREED.load(Ordering::Relaxed) - before)
    }

    const MS: Duration = Duration::from_millis(1);

    fn began(before: Duration) -> Running {
        Running { since: Instant::now() - before, ..Running::begin() }
    }

    /// One runs for so long, or ends so soon after calls went for it. How often they did.
    fn run(patience: &mut Patience, doing: Doing, time: Duration, ends_after: Duration) -> u32 {
        let running = began(time);
        let before = patience.tries;
        let mut runs = patience.learned(doing).time;
        while runs < time {
            patience.begin_try_for(running.clone(), doing, runs);
            let tried = patience.tried.as_mut().unwrap();
            tried.of.at = running.since + runs;
            let ended = (tried.of.at + ends_after).min(running.since + time);
            runs = tried.next;
            if runs >= time || ends_after < MS * 10 {
                running.ended.set(ended).unwrap();
                break;
            }
        }
        patience.learn();
        patience.tries - before
    }

    #[test]
    fn what_takes_long_by_itself_is_waited_for_and_what_waits_is_not() {
        for doing in [Doing::Waits, Doing::Else] {
            let mut patience = Patience::default();
            for _ in 0..10 {
                run(&mut patience, doing, MS * 3000, MS);
            }
            assert_eq!(patience.learned(doing).time, LEAST);
            let tries: u32 = (0..1000).map(|_| run(&mut patience, doing, MS * 500, MS * 3000)).sum();
            assert!(tries < 1000, "less than one for each of 1000, {tries}");
        }
    }

    #[test]
    fn beside_other_processes_more_go_each_time_and_as_many_at_once_for_the_next() {
        let mut patience = Patience::default();
        patience.prepare(true, None);
        assert_eq!(patience.others.time, FIRST_WITH_PEERS);
        let (first, next) = (Running::begin(), Running::begin());
        let calls =
            |patience: &mut Patience, of: &Running| patience.begin_try_for(of.clone(), Doing::Else, MS);
        assert_eq!([(); 6].map(|()| calls(&mut patience, &first)), [1, 2, 4, 8, 1, 1]);
        patience.tried = None;
        assert_eq!([(); 3].map(|()| calls(&mut patience, &first)), [1, 2, 4]);
        first.ended.set(Instant::now()).unwrap();
        patience.learn();
        assert_eq!((patience.others.time, patience.is_trying()), (LEAST, false), "by the last");
        assert_eq!([(); 4].map(|()| calls(&mut patience, &next)), [8, 8, 1, 1]);
        patience.prepare(false, None);
        assert_eq!(
            [(); 3].map(|()| calls(&mut patience, &next)),
            [1; 3],
            "alone the next have not run for long"
        );
    }

    #[test]
    fn for_what_is_seen_to_wait_more_go_each_time_which_take_no_longer_than_it_has() {
        let mut patience = Patience::default();
        patience.prepare(false, Some(MS));
        let running = Running::begin();
        let mut calls = |runs| patience.begin_try_for(running.clone(), Doing::Waits, runs);
        assert_eq!([10, 20, 40, 80, 90].map(|ms| calls(MS * ms)), [1, 2, 4, 8, 16]);
        assert_eq!([10, 20, 45].map(|ms| calls(MS * ms)), [1, 1, 12], "31 have gone");
        let mut calls = |runs| patience.begin_try_for(Running::begin(), Doing::Else, runs);
        assert_eq!([100, 800].map(|ms| calls(MS * ms)), [1, 1]);
        (patience.waiting.calls, patience.others.calls) = (64, 64);
        let mut calls = |runs| patience.begin_try_for(Running::begin(), Doing::Else, runs);
        assert_eq!(
            [10, 100, 800].map(|ms| calls(MS * ms)),
            [1, 12, 64],
            "an eighth of the time where it may take long"
        );
        assert_eq!(patience.begin_try_for(Running::begin(), Doing::Waits, MS * 10), 10, "at first, too");
    }

    #[test]
    fn for_what_is_seen_to_wait_calls_go_again_and_again_in_the_time_of_a_closing() {
        for (doing, tries) in [(Doing::Waits, 24..48), (Doing::Else, 8..16)] {
            let (mut patience, running) = (Patience::default(), Running::begin());
            let (mut runs, mut count) = (LEAST, 0);
            while runs < MS * 17_500 {
                patience.begin_try_for(running.clone(), doing, runs);
                (runs, count) = (patience.tried.as_ref().unwrap().next, count + 1);
            }
            assert!(tries.contains(&count), "{doing:?}: {count}");
        }
    }

    #[test]
    fn one_that_looks_again_and_again_is_told_from_one_that_sleeps() {
        for (nap, looks) in [(MS * 60_000, false), (MS * 5, true)] {
            let (told, running) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                told.send(Running::begin()).unwrap();
                loop {
                    std::thread::sleep(nap);
                }
            });
            let running = running.recv().unwrap();
            let (mut patience, limit) = (Patience::default(), Instant::now() + MS * 20_000);
            while !patience.seen.has_slept && !patience.seen.has_looked {
                assert!(Instant::now() < limit, "it is seen what it does");
                patience.seen.note(&running, running.doing());
            }
            assert_eq!((patience.only_sleep(), patience.seen.has_looked), (!looks, looks));
        }
    }

    #[test]
    fn whether_a_function_waits_for_a_thread_is_seen() {
        let (told, woken) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        let waits = std::thread::spawn(move || {
            told.0.send(Running::begin()).unwrap();
            woken.1.recv().unwrap();
        });
        let running = told.1.recv().unwrap();
        let limit = Instant::now() + MS * 20_000;
        while running.doing() == Doing::Else {
            assert!(Instant::now() < limit, "it has not come to its wait");
            std::thread::yield_now();
        }
        woken.0.send(()).unwrap();
        waits.join().unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let told = std::sync::mpsc::channel();
            let (tell, is_over) = (told.0, &is_over);
            scope.spawn(move || {
                tell.send(Running::begin()).unwrap();
                while !is_over.load(Ordering::Relaxed) {}
            });
            let doing = told.1.recv().unwrap().doing();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(doing, Doing::Else, "it computes");
        });
    }

    #[test]
    fn what_ended_by_calls_at_once_says_nothing_of_others_that_went_before() {
        let mut patience = Patience::default();
        let running = began(MS * 500);
        patience.begin_try_for(running.clone(), Doing::Else, MS * 300);
        patience.tried.as_mut().unwrap().of.at -= MS * 200;
        patience.at_once = Some(Attempt { running: running.clone(), doing: Doing::Else, at: Instant::now() });
        running.ended.set(Instant::now()).unwrap();
        patience.learn();
        assert_eq!((patience.others.time, patience.others.at_once), (FIRST, FIRST_AT_ONCE / 2));
        assert!(!patience.is_trying());
    }

    #[test]
    fn for_what_waits_behind_others_calls_go_anew_when_these_have_ended() {
        let mut patience = Patience::default();
        let running = Running::begin();
        let mut calls = |runs, have_ended: bool| {
            if let (Some(tried), true) = (&mut patience.tried, have_ended) {
                tried.have_ended = u64::MAX;
            }
            (
                patience.begin_try_for(running.clone(), Doing::Waits, MS * runs),
                patience.tried.as_ref().unwrap().renewed,
            )
        };
        // Other tests' functions end, too.
        assert_eq!(calls(1000, false), (1, 0));
        assert_eq!([(); 40].map(|()| calls(1000, true))[39], (256, 32), "and so often at most");
    }

    #[test]
    fn a_function_that_calls_have_ended_is_the_one_that_they_went_for() {
        let mut patience = Patience::default();
        let running = began(MS * 500);
        patience.found = Some((running.clone(), Doing::Else));
        running.ended.set(Instant::now()).unwrap();
        patience.note_at_once();
        patience.learn();
        assert_eq!(patience.others.at_once, FIRST_AT_ONCE / 2);
    }

    #[test]
    fn calls_that_would_begin_at_once_rest_in_between() {
        let mut patience = Patience::default();
        let mut goes = |doing, ms| patience.due_for(&began(MS * ms), doing, MS * ms).at_once;
        assert_eq!(
            [5, 15, 105, 115, 205, 215].map(|ms| goes(Doing::Waits, ms)),
            [false, true, true, false, false, true]
        );
        assert_eq!(
            [35, 45, 85, 95, 185, 195].map(|ms| goes(Doing::Else, ms)),
            [false, true, true, false, false, true]
        );
    }

    #[test]
    fn while_no_other_job_waits_calls_go_soon_and_many() {
        let mut patience = Patience::default();
        patience.set_alone(true);
        let running = began(MS * 25);
        assert!(patience.due_for(&running, Doing::Else, MS * 25).others);
        let mut calls = |runs| patience.begin_try_for(running.clone(), Doing::Else, runs);
        assert_eq!([20, 40, 80, 160].map(|ms| calls(MS * ms)), [1, 2, 4, 8]);
    }

    #[test]
    fn while_no_other_job_waits_few_calls_go_for_one_that_only_sleeps() {
        let (told, asleep) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            told.send(Running::begin()).unwrap();
            std::thread::sleep(MS * 60_000);
        });
        let (mut patience, asleep) = (Patience::default(), asleep.recv().unwrap());
        patience.set_alone(true);
        patience.each = Some(MS);
        let limit = Instant::now() + MS * 20_000;
        while !patience.seen.may_only_sleep(&asleep) {
            assert!(Instant::now() < limit, "it does not sleep");
            patience.seen.note(&asleep, asleep.doing());
        }
        assert!(!patience.due_for(&asleep, Doing::Else, MS * 25).others, "it may look for something");
        while !patience.only_sleep() {
            assert!(Instant::now() < limit, "it is seen what it does");
            patience.seen.note(&asleep, asleep.doing());
        }
        let sleeps = Running { since: Instant::now() - MS * 400, ..asleep };
        assert!(!patience.due_for(&sleeps, Doing::Else, MS * 90).others, "no sooner than beside other jobs");
        assert!(patience.due_for(&sleeps, Doing::Else, MS * 110).others);
        assert_eq!(patience.begin_try_for(sleeps.clone(), Doing::Else, MS * 110), 1);
        assert!(!patience.due_for(&sleeps, Doing::Else, MS * 400).others, "one of them may be as long");
    }

    #[test]
    fn a_sleep_for_a_time_is_no_wait() {
        let said = |number: libc::c_long, rest: &str| Doing::of(&format!("{number} {rest} 0x7ffc 0x7f16\n"));
        assert_eq!(said(libc::SYS_semop, "0x1 0x7ffd 0x1 0x0 0x0 0x0"), Doing::Waits);
        assert_eq!(said(libc::SYS_read, "0x5 0x7ffd 0x1 0x0 0x0 0x0"), Doing::Waits);
        assert_eq!(said(libc::SYS_ppoll, "0x7ffd 0x1 0x0 0x0 0x0 0x0"), Doing::Waits);
        assert_eq!(said(libc::SYS_ppoll, "0x0 0x0 0x7ffd 0x0 0x0 0x0"), Doing::Else);
        assert_eq!(said(libc::SYS_pselect6, "0x0 0x0 0x0 0x0 0x7ffd 0x0"), Doing::Else);
        assert_eq!(said(libc::SYS_clock_nanosleep, "0x0 0x0 0x7ffd 0x0 0x0 0x0"), Doing::Else);
        assert_eq!(Doing::of("running\n"), Doing::Else);
    }

    #[test]
    fn where_functions_end_by_themselves_calls_go_at_once_later_and_later() {
        let mut patience = Patience::default();
        let mut at_once_after = |ended: Duration| {
            let running = began(MS * 5000);
            running.ended.set(Instant::now() + ended).unwrap();
            patience.at_once = Some(Attempt { running, doing: Doing::Else, at: Instant::now() });
            patience.learn();
            patience.others.at_once
        };
        assert_eq!([500; 4].map(|ms| at_once_after(MS * ms)), [320, 2560, 7500, 7500].map(|ms| MS * ms));
        assert_eq!([1; 10].map(|ms| at_once_after(MS * ms))[9], AT_ONCE);
    }

    #[test]
    fn what_is_called_once_is_freed_then_and_what_may_have_been_captured_never() {
        let captures = Captures::default();
        // SAFETY: as the driver calls what it was given, here and below.
        let call = |(function, data): (HostFn, *mut c_void)| unsafe { function(data) };
        assert_eq!(launch_counted(&captures, |function, data| call((function, data))), (true, 1), "at once");
        let mut given = None;
        assert_eq!(launch_counted(&captures, |function, data| given = Some((function, data))), (true, 0));
        call(given.unwrap());
        assert_eq!(FREED.load(Ordering::Relaxed), 2, "later");
        let begin = || captures.begin(7, None, || Ok::<(), ()>(())).unwrap();
        let during = |function, data| {
            begin();
            captures.ended(7);
            given = Some((function, data));
        };
        assert_eq!(launch_counted(&captures, during), (true, 0));
        call(given.unwrap());
        call(given.unwrap());
        assert_eq!(FREED.load(Ordering::Relaxed), 2, "it may have been captured");
        begin();
        let capture = || {
            let mut parameters = CUDA_HOST_NODE_PARAMS { fn_: None, userData: std::ptr::null_mut() };
            let submit = |function, data| (parameters.fn_, parameters.userData) = (Some(function), data);
            assert_eq!(launch_counted(&captures, submit), (true, 0));
            parameters
        };
        let (node, other) = (capture(), capture());
        assert_eq!(node.userData, other.userData, "the same for the same");
        call((node.fn_.unwrap(), node.userData));
        call((node.fn_.unwrap(), node.userData));
        assert_eq!(FREED.load(Ordering::Relaxed), 2, "it is captured");
        let mut told = node;
        tell_programs_own(&mut told);
        assert!(told.fn_.unwrap() as usize == count as HostFn as usize && told.userData != node.userData);
        tell_programs_own(&mut told);
        assert_eq!(told.fn_.unwrap() as usize, count as HostFn as usize);
        assert!(oldest().is_none());
    }
}
