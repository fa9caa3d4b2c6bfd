//! The program's functions that its streams call (`cuLaunchHostFunc`, `cuStreamAddCallback`): since when they have been running.
//!
//! Work behind such a function waits for it, and it may wait for a thread that stands at the gate, be it for a lock of that thread's
//! (Python's interpreter lock). Of a kernel that has not ended it cannot be told whether it waits or takes long; of a function on
//! the host it can be seen, at least, that it is this that has not ended.
//!
//! So the driver is given a function of ours, which calls the program's. Where the stream captures it is given the program's
//! own: what is captured is called each time that its graph is launched, and the program may ask for it
//! (`cuGraphHostNodeGetParams`). A graph's host nodes are not known of here.
//!
//! Invariant: what the driver may call again, or has not said that it will not call, is never freed.

use crate::captures::Captures;
use crate::driver;
use crate::gate::drawn;
use crate::process;
use parking_lot::Mutex;
use std::ffi::c_void;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::sys::*;

/// Functions that are launched now may be waited for.
static ARE_WATCHED: AtomicBool = AtomicBool::new(true);

/// Those that are running.
static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

/// Neither has the launch returned nor the function ended.
const LAUNCHED: u8 = 0;
/// The launch has returned, and the function is called once.
const ONCE: u8 = 1;
/// The function has ended first.
const ENDED: u8 = 2;

/// Where one has not ended for so long calls go that would begin at once: nothing comes to be ahead by them.
pub const AT_ONCE: Duration = Duration::from_millis(10);
/// A function is thought to wait that has not ended for so long, at first; at least; and at most.
const FIRST: Duration = Duration::from_millis(100);
/// At first in a job of several processes.
const FIRST_WITH_PEERS: Duration = Duration::from_millis(20);
/// So many calls of each thread go for one function there, before it is one at a time.
const MOST_WITH_PEERS: u32 = 16;
const LEAST: Duration = AT_ONCE;
const MOST: Duration = Duration::from_millis(2500);
/// Calls have ended a function's wait if it ended so soon after them: one that only takes long seldom does.
const SOON: Duration = Duration::from_millis(10);
/// So many calls of a thread go at once, at most.
const MOST_CALLS: u32 = 64;

/// One that is running.
#[derive(Clone)]
struct Running {
    since: Instant,
    ended: Arc<OnceLock<Instant>>,
}

/// Whether the driver is to be given ours.
#[inline(always)]
pub fn are_watched() -> bool {
    ARE_WATCHED.load(Ordering::Relaxed)
}

/// Whether it is from now on: not in a job that has been alone for long, which is never disturbed. Of the functions that are launched
/// then nothing is known if another job comes.
pub fn watch(are_watched: bool) {
    ARE_WATCHED.store(are_watched, Ordering::Relaxed);
}

/// The one that began first.
fn oldest() -> Option<Running> {
    RUNNING.lock().iter().min_by_key(|running| running.since).cloned()
}

/// Whether calls go that would begin at once: no work has ended for `still`, and one is running for as long.
pub fn may_wait(still: Duration) -> bool {
    still >= AT_ONCE && oldest().is_some_and(|oldest| oldest.since.elapsed() >= AT_ONCE)
}

/// How long a function on the host runs before it is thought to wait for calls that come after others: the shorter the more often
/// such calls have ended one, and the longer the more often one has ended by itself. If it goes on they go again when it has
/// been running for about twice as long, as chance says, for it might end just then each time. Where the job has several processes
/// twice as many go each time, [up to some](MOST_WITH_PEERS): a thread that gives back a lock may have it again before the function
/// does, until it waits for its stream, and the time of the others ends.
pub struct Patience {
    time: Duration,
    tried: Option<Tried>,
    tries: u32,
    /// So many calls of each thread go first: twice as many as have ended one.
    calls: u32,
    has_peers: bool,
}

/// Calls went for one.
struct Tried {
    running: Running,
    /// So many of each thread, at last and in all.
    calls: u32,
    given: u32,
    at: Instant,
    /// They go again when it has been running for so long.
    next: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { time: FIRST, tried: None, tries: 0, calls: 1, has_peers: false }
    }
}

impl Patience {
    /// Whether calls have gone for a function that has not ended.
    pub fn is_trying(&self) -> bool {
        self.tried.is_some()
    }

    /// Whether it is time for calls to go: no work has ended for `still`.
    pub fn is_due(&mut self, still: Duration) -> bool {
        self.learn();
        let from = self.tried.as_ref().map_or(self.time, |tried| tried.next);
        still >= self.time && oldest().is_some_and(|oldest| oldest.since.elapsed() >= from)
    }

    /// Calls go now: how many of each thread.
    pub fn begin_try(&mut self) -> u32 {
        oldest().map_or(0, |running| {
            let runs = running.since.elapsed();
            self.begin_try_for(running, runs)
        })
    }

    fn begin_try_for(&mut self, running: Running, runs: Duration) -> u32 {
        self.tries = self.tries.wrapping_add(1);
        let times = 1.5 + f64::from(drawn(self.tries, 0) & 0xff) / 256.0;
        let before = self.tried.as_ref().filter(|tried| Arc::ptr_eq(&tried.running.ended, &running.ended));
        let given = before.map_or(0, |tried| tried.given);
        let calls = match before.filter(|_| self.has_peers).map(|tried| tried.calls * 2) {
            None => self.calls,
            Some(more) if given + more <= MOST_WITH_PEERS => more,
            Some(_) => 1,
        };
        let (at, next, given) = (Instant::now(), runs.mul_f64(times), given + calls);
        self.tried = Some(Tried { running, calls, given, at, next });
        calls
    }

    /// Whether other processes of the job have memory: a thread may have at the gate here what theirs wait for, and theirs what is
    /// waited for here.
    pub fn set_peers(&mut self, has_peers: bool) {
        if has_peers && !self.has_peers {
            self.time = self.time.min(FIRST_WITH_PEERS);
        }
        self.has_peers = has_peers;
    }

    /// Has the function ended for which calls went, and by these?
    fn learn(&mut self) {
        let Some(ended) = self.tried.as_ref().and_then(|tried| tried.running.ended.get().copied()) else {
            return;
        };
        let Some(Tried { at, calls, .. }) = self.tried.take() else { return };
        let has_helped = ended.saturating_duration_since(at) < SOON;
        let time = if has_helped { self.time / 2 } else { self.time * 2 };
        self.time = time.clamp(LEAST, MOST);
        self.calls = if has_helped { (calls * 2).min(MOST_CALLS) } else { 1 };
    }
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
}

impl HostFunction for HostFn {
    fn stand_in() -> Self {
        // SAFETY: the types differ only in what is said of exceptions.
        unsafe { mem::transmute(call_host_function as ThrowingHostFn) }
    }
}

impl HostFunction for Callback {
    fn stand_in() -> Self {
        // SAFETY: as above.
        unsafe { mem::transmute(call_back as ThrowingCallback) }
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

/// The same, by ours unless it is captured now.
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
    let Some(known) = function.filter(|_| !is_captured()) else { return submit(function, data) };
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

/// While it lives the function is running.
struct Guard<F> {
    call: *const Call<F>,
    running: Running,
}

impl<F: Copy> Guard<F> {
    /// # Safety
    /// It is a call that was not freed, and is not until the guard is dropped.
    unsafe fn enter(call: *const Call<F>) -> (Self, F, *mut c_void) {
        let running = Running { since: Instant::now(), ended: Arc::default() };
        RUNNING.lock().push(running.clone());
        // SAFETY: the caller's promise.
        let Call { function, data, .. } = unsafe { &*call };
        (Self { call, running }, *function, *data)
    }
}

impl<F> Drop for Guard<F> {
    fn drop(&mut self) {
        RUNNING.lock().retain(|running| !Arc::ptr_eq(&running.ended, &self.running.ended));
        let _ = self.running.ended.set(Instant::now());
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

    /// One runs for so long, or ends so soon after calls went for it. How often they did.
    fn run(patience: &mut Patience, time: Duration, ends_after: Duration) -> u32 {
        let running = Running { since: Instant::now() - time, ended: Arc::default() };
        let before = patience.tries;
        let mut runs = patience.time;
        while runs < time {
            patience.begin_try_for(running.clone(), runs);
            let tried = patience.tried.as_mut().unwrap();
            tried.at = running.since + runs;
            let ended = (tried.at + ends_after).min(running.since + time);
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
        let mut patience = Patience::default();
        for _ in 0..10 {
            run(&mut patience, MS * 3000, MS);
        }
        assert_eq!(patience.time, LEAST);
        let tries: u32 = (0..1000).map(|_| run(&mut patience, MS * 500, MS * 3000)).sum();
        assert!(tries < 1000, "less than one for each of 1000, {tries}");
    }

    #[test]
    fn beside_other_processes_more_go_each_time_and_as_many_at_once_for_the_next() {
        let function = || Running { since: Instant::now(), ended: Arc::default() };
        let mut patience = Patience::default();
        patience.set_peers(true);
        assert_eq!(patience.time, FIRST_WITH_PEERS);
        let (first, next) = (function(), function());
        let calls = |patience: &mut Patience, of: &Running| patience.begin_try_for(of.clone(), MS);
        assert_eq!([(); 6].map(|()| calls(&mut patience, &first)), [1, 2, 4, 8, 1, 1]);
        patience.tried = None;
        assert_eq!([(); 3].map(|()| calls(&mut patience, &first)), [1, 2, 4]);
        first.ended.set(Instant::now()).unwrap();
        patience.learn();
        assert_eq!((patience.time, patience.is_trying()), (LEAST, false), "by the last");
        assert_eq!([(); 3].map(|()| calls(&mut patience, &next)), [8, 1, 2]);
        patience.set_peers(false);
        assert_eq!([(); 3].map(|()| calls(&mut patience, &next)), [8; 3]);
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
        assert_eq!(launch_counted(&captures, |_, _| ()), (false, 0), "it is captured");
        assert!(oldest().is_none());
    }
}
