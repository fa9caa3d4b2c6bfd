//! The gate: the check in front of every call that submits work (DESIGN §5).
//!
//! ```text
//!             Close           boundary | deadline        nobody inside
//!   open ────────────► closing ────────────────► closed ───────────────► drain, report
//!    ▲                    │ gave up         Ajar │    │       │ session lost
//!    │                    │                      ▼    │       ▼
//!    ├────────────────────┴─────── Open ─────── ajar  │     failed, for ever (from ajar, too)
//!    └───────────────────────────── Open ─────────────┘
//! ```
//! Open, it may be **metered**: so many calls go through as are [granted](Gate::grant), and the next ones wait for more.
//!
//! Invariants: after [`Gate::shut`] returned true and until [`Gate::open`], [`Gate::ajar`], [`Gate::flow`],
//! [`Gate::round`] or [`Gate::catch`], no thread of the process is inside a submitting call, and none maps memory. After
//! [`Gate::fail`] none ever is: what they would use may not be mapped.
//!
//! **Ajar**, memory comes back piece by piece. Who submits work whose operands are known and resident goes
//! through, as through the open gate, and the next closer sees it inside; all others wait, as at the closed
//! one, and so does whoever wants a [`Pass`]. The word counts the arrivals: each one changes it and wakes all who
//! wait, so whoever looked before it came does not sleep through it.
//!
//! **Flowing, and rounds.** Work that was submitted may wait on the GPU for work that is not submitted yet. A closing
//! that comes between the two could never drain. So the thread that closes lets work through until all that was
//! submitted can end (`docs/drain.md`), and closes then:
//!
//! ```text
//!   closed ──► flowing ──► closed    all goes through, but what would itself wait
//!   closed ──► round ────► closed    threads that wait go through once: all of them, or some
//!   closed ──► flowing ──► closed    all goes through, and a thread that comes out of a wait for its GPU is held (`catch`)
//! ```
//! A thread that goes through is inside, as at the open gate, and the thread that closes sees it there: it shuts the gate anew
//! after each, and looks anew whether all work has ended.
//!
//! **Why the open path needs no fence.** A thread writes its nesting, then reads the word; the
//! closer writes the word, then reads the nestings. One of the two must see the other's write,
//! which plain loads and stores do not promise. `membarrier(2)` does ([`membarrier`]): it makes every running
//! thread of the process execute a full barrier between the closer's write and its reads, so a
//! thread either had its nesting visible by then, or reads the word afterwards and finds it
//! closed. Where seccomp forbids the system call the word is [`OPEN_FENCED`] instead of
//! [`OPEN`]: threads then take the slow path and fence for themselves.

mod batch;
mod closing;
mod record;
mod slot;

pub use batch::{Nowhere, Queue, keep_small as keep_batches_small};
pub use closing::{Arrival, BoundaryWait, Goal, Look};
pub use record::{CALLS_BETWEEN_DUE, Record, Stamp};

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{Mutex, constructor, futex, global, membarrier, thread};
use closing::Closing;
use std::time::{Duration, Instant};

/// Nothing is gated: before `cuInit`, without a manager, in a forked child.
const INERT: u32 = 0;
/// Open; closers use `membarrier`.
const OPEN: u32 = 1;
/// Open; `membarrier` is forbidden and threads fence for themselves.
const OPEN_FENCED: u32 = 2;
/// Closed.
const CLOSED: u32 = 3;
/// Closed, and never to be opened.
const FAILED: u32 = 4;
/// Open for work whose operands are known and resident. Above these bits the arrivals are counted.
const AJAR: u32 = 5;
/// Closing: open for all but for work that would wait on the GPU for work that is not submitted.
const FLOWING: u32 = 6;
/// While [`FLOWING`]: all work of some threads goes, and nothing of others. Between this bit and the state the rounds are
/// counted.
const CATCHING: u32 = 1 << 31;
/// Closing: open for those that are let go in this round, once. Above these bits the rounds are counted, as in
/// [`CLOSED`].
const ROUND: u32 = 7;
/// Open for as many calls as are granted. Above these bits the grants are counted.
const METERED: u32 = 8;
/// The same bit in a [`ROUND`]: only threads go whose work would begin at once.
const AT_ONCE: u32 = CATCHING;
/// The bits of the word that are no count.
const STATE: u32 = 15;
/// What an arrival adds to the word.
const ARRIVAL: u32 = STATE + 1;
/// What a round adds to the word.
const NEXT_ROUND: u32 = STATE + 1;
/// What a grant adds to the word.
const GRANT: u32 = STATE + 1;

/// Between two looks of a thread that is far ahead of the GPU at the open gate.
const LOOK_AHEAD: Duration = Duration::from_micros(250);

/// The longest pause between two looks at whether everybody has left.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The gate has failed: nobody is let through any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process's memory on the GPU is lost")]
pub struct Failed;

global! {
    /// The process's gate.
    pub static GATE: Gate = Gate::new();
}

/// What a call does to the end of work that was submitted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Other work may wait for it.
    Works,
    /// The same, but it is a function on the host, which may come to wait for a thread.
    Calls,
    /// It would wait on the GPU for work that is not submitted, as far as is known.
    Waits,
}

/// What threads do that wait at a boundary, or where they came out of a wait, when the gate lets others through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// They wait there still.
    Stays,
    /// They go on: none is done with what it has freed.
    GoesOn,
}

/// A number by chance, the same for the same two.
pub fn drawn(draw: u32, number: u32) -> u32 {
    // The finalizer of splitmix64, which has every bit of the one depend on every bit of the other.
    let mut mixed = (u64::from(draw) << 32 | u64::from(number)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> 32) as u32
}

/// Whether chance says that this one goes: all such draws together let any of them go with and without any others. Zero: all
/// go.
pub fn is_chosen(draw: u32, number: u32) -> bool {
    draw == 0 || drawn(draw, number) % 2 == 1
}

/// Who fences when the gate shuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The closer, for all threads.
    ByCloser,
    /// Each thread for itself, at every submission.
    ByThreads,
}

impl Fence {
    /// The cheapest that there is in this process.
    pub fn cheapest() -> Self {
        if membarrier::register() { Self::ByCloser } else { Self::ByThreads }
    }
}

/// A gate; there is one for each process. One thread opens and closes it.
pub struct Gate {
    word: Word,
    /// The value of the word when open: [`OPEN`] or [`OPEN_FENCED`].
    open_word: AtomicU32,
    /// The same while calls are not [watched](Gate::watch_calls).
    usual_word: AtomicU32,
    /// Held while the word becomes either, so that it is the right one.
    opening: Mutex<()>,
    /// It was opened ajar, and has not been opened since.
    is_partial: AtomicBool,
    /// What the word counts while ajar. It never starts anew: no two words are alike between which memory came.
    arrivals: AtomicU32,
    /// What the word counts while closed, and in rounds. It never starts anew.
    rounds: AtomicU32,
    /// What the word counts while metered. It never starts anew.
    grants: AtomicU32,
    /// So many calls may still go through while metered.
    credit: AtomicU32,
    /// While metered, calls go through without a grant whose work would begin at once; while flowing, no others do without one.
    goes_by_streams: AtomicBool,
    /// Calls that have gone through while metered as parts of [batches](batch), or behind value waits.
    in_batches: AtomicU64,
    /// Threads that a round, or the flowing gate, has let through.
    let_through: AtomicU32,
    /// Threads that a round would have let through, but their work would not have begun at once.
    declined: AtomicU32,
    /// By this number chance says which threads go on while others are held. Zero: all do.
    draw: AtomicU32,
    /// Somebody was told that threads wait at this closing.
    announced: AtomicBool,
    closing: Closing,
}

/// The word has a cache line of its own, which is written only at a switch.
#[repr(align(64))]
struct Word(AtomicU32);

/// Leave to submit (or to change what is mapped). While it lives, the gate cannot shut.
pub struct Pass {
    admission: Admission,
}

impl Pass {
    /// The call has submitted work: it counts, and the thread leaves.
    pub fn note_submission(mut self) {
        std::mem::replace(&mut self.admission, Admission::NOT_GATED).leave(());
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(record) = self.admission.record() {
            record.step_back();
        }
    }
}

/// How a call was let through: its thread's record, entered. An odd address says that more has to be done when the call returns
/// than to leave, which costs a call through the open gate nothing.
#[derive(Clone, Copy)]
struct Admission(*const Record);

const _: () = assert!(align_of::<Record>() > 1, "no record has an odd address");

impl Admission {
    /// Nothing is gated.
    const NOT_GATED: Self = Self(std::ptr::without_provenance(1));

    #[inline(always)]
    fn of(record: &'static Record) -> Self {
        Self(record)
    }

    /// The same, and that the call has returned is to be said.
    fn to_be_told(record: &'static Record) -> Self {
        Self(std::ptr::from_ref(record).map_addr(|address| address | 1))
    }

    fn record(self) -> Option<&'static Record> {
        let record = self.0.map_addr(|address| address & !1);
        // SAFETY: null for `NOT_GATED`, else of a record, which lives for ever: without the bit it is where that is.
        unsafe { record.as_ref() }
    }

    /// The call has returned this: it counts as a submission. What was returned goes through here, for else it would have to be kept in
    /// the one way beside the other.
    #[inline(always)]
    fn leave<R>(self, result: R) -> R {
        if self.0.addr() & 1 != 0 {
            return self.leave_slowly(result);
        }
        // SAFETY: not `NOT_GATED`, whose address is odd: a record's, which lives for ever.
        unsafe { &*self.0 }.leave();
        result
    }

    #[cold]
    #[inline(never)]
    fn leave_slowly<R>(self, result: R) -> R {
        if let Some(record) = self.record() {
            crate::process::say_that_a_call_has_returned();
            record.leave();
        }
        result
    }
}

/// Lets a submitting call through: waits while the gate is closed, or ajar and the work is not `resident`
/// (its operands are known, and all are there), then calls; or refuses, if it will never open. `queue`: where what it
/// submits is queued, which is work of that role.
///
/// All answers are the caller's, and the way through the open gate is written out here: no result
/// is wrapped and unwrapped on it.
#[inline(always)]
pub fn submit<R, Q: Queue>(
    role: Role,
    call: impl FnOnce() -> R,
    refuse: impl FnOnce(Failed) -> R,
    resident: impl Fn() -> bool,
    queue: impl Fn() -> Q,
) -> R {
    let admission = match GATE.admit_at_once() {
        Some(record) => Admission::of(record),
        None => match GATE.admit_slowly(|| role, resident, queue) {
            Ok(admission) => admission,
            Err(failed) => return refuse(failed),
        },
    };
    admission.leave(call())
}

impl Gate {
    constructor! {
        fn new() -> Self {
            Self {
                word: Word(AtomicU32::new(INERT)),
                open_word: AtomicU32::new(OPEN),
                usual_word: AtomicU32::new(OPEN),
                opening: Mutex::new(()),
                is_partial: AtomicBool::new(false),
                arrivals: AtomicU32::new(AJAR),
                rounds: AtomicU32::new(0),
                grants: AtomicU32::new(METERED),
                credit: AtomicU32::new(0),
                goes_by_streams: AtomicBool::new(false),
                in_batches: AtomicU64::new(0),
                let_through: AtomicU32::new(0),
                declined: AtomicU32::new(0),
                draw: AtomicU32::new(0),
                announced: AtomicBool::new(false),
                closing: Closing::new(),
            }
        }
    }

    /// Starts gating. The process has a manager from now on.
    pub fn start(&self, closed: bool, fence: Fence) {
        let open_word = match fence {
            Fence::ByCloser => OPEN,
            Fence::ByThreads => OPEN_FENCED,
        };
        self.open_word.store(open_word, Ordering::Relaxed);
        self.usual_word.store(open_word, Ordering::Relaxed);
        if closed {
            self.closing.start_closed();
            self.word.0.store(CLOSED | self.rounds.load(Ordering::Relaxed), Ordering::SeqCst);
        } else {
            self.open();
        }
    }

    /// Nothing is gated any more: in a forked child, where no lock may be touched.
    pub fn disable(&self) {
        self.word.0.store(INERT, Ordering::SeqCst);
    }

    /// Waits while the gate is closed or ajar. While the pass lives it cannot shut.
    pub fn pass(&self) -> Result<Pass, Failed> {
        self.pass_as(|| Role::Works, || false, || Nowhere)
    }

    /// The same for a call that submits work in a hook: it goes through as [`submit`] lets it. What it has submitted
    /// it [notes](Pass::note_submission).
    pub fn pass_as<Q: Queue>(
        &self,
        role: impl Fn() -> Role,
        is_resident: impl Fn() -> bool,
        queue: impl Fn() -> Q,
    ) -> Result<Pass, Failed> {
        let admission = match self.admit_at_once() {
            Some(record) => Admission::of(record),
            None => self.admit_slowly(role, is_resident, queue)?,
        };
        Ok(Pass { admission })
    }

    /// The thread's record, entered, if the gate is open and the thread has one.
    #[inline(always)]
    fn admit_at_once(&self) -> Option<&'static Record> {
        let record = Record::of_thread()?;
        record.enter();
        membarrier::light();
        if self.word.0.load(Ordering::Acquire) == OPEN && !record.is_due() {
            return Some(record);
        }
        record.step_back();
        None
    }

    /// The thread is entered, if anything is gated.
    #[cold]
    #[inline(never)]
    fn admit_slowly<Q: Queue>(
        &self,
        role: impl Fn() -> Role,
        is_resident: impl Fn() -> bool,
        queue: impl Fn() -> Q,
    ) -> Result<Admission, Failed> {
        if self.word.0.load(Ordering::Relaxed) == INERT {
            return Ok(Admission::NOT_GATED);
        }
        let record = Record::of_thread_or_new();
        let mut waits = WaitsHere { record, before: None };
        let mut is_due = record.is_due() && record.nesting() == 0;
        loop {
            record.enter();
            fence(Ordering::SeqCst);
            let word = self.word.0.load(Ordering::SeqCst);
            if is_due && matches!(word & STATE, OPEN | OPEN_FENCED) {
                record.step_back();
                let may_go_ahead = |stream| crate::process::may_go_ahead(stream, record.count());
                is_due = queue().handle().is_some_and(|stream| !may_go_ahead(stream));
                if is_due {
                    waits.begin(role());
                    futex::wait_at_most(&self.word.0, word, LOOK_AHEAD);
                }
                continue;
            }
            // A thread that is inside already must not wait: the closer waits for it. Ajar, it looks while it
            // is inside: nothing that it finds there goes away again.
            let goes = record.nesting() > 1
                || match word & STATE {
                    CLOSED | FAILED => false,
                    AJAR => is_resident() && self.take_credit(),
                    METERED => self.goes_metered(&queue()),
                    FLOWING if word & CATCHING != 0 => {
                        is_chosen(self.draw.load(Ordering::Relaxed), record.number())
                            && record.may_soon_wait()
                    }
                    FLOWING if role() == Role::Waits => false,
                    FLOWING => !self.goes_by_streams() || self.take_credit() || !queue().is_busy(),
                    ROUND if !waits.is_let_through_by(word) => false,
                    ROUND if word & AT_ONCE != 0 && queue().is_busy() => {
                        self.declined.fetch_add(1, Ordering::Relaxed);
                        false
                    }
                    _ => true,
                };
            if goes {
                if matches!(word & STATE, FLOWING | ROUND) {
                    self.let_through.fetch_add(1, Ordering::Relaxed);
                }
                let is_told = queue().note_submission();
                return Ok(if is_told { Admission::to_be_told(record) } else { Admission::of(record) });
            }
            record.step_back();
            if word == FAILED {
                return Err(Failed);
            }
            // Metered, it is the process's own work that is waited for.
            let is_for_others = word & STATE != METERED;
            let comes_again = is_for_others && queue().note_waiting();
            if is_for_others {
                self.announce();
            }
            waits.begin(role());
            if comes_again {
                futex::wait_at_most(&self.word.0, word, LONGEST_PAUSE);
            } else {
                futex::wait(&self.word.0, word);
            }
        }
    }

    /// Says once for each closing that somebody waits.
    fn announce(&self) {
        if !self.announced.swap(true, Ordering::Relaxed) {
            crate::process::say_that_a_thread_waits();
        }
    }

    fn goes_by_streams(&self) -> bool {
        self.goes_by_streams.load(Ordering::Relaxed)
    }

    /// Metered: whether a call goes.
    fn goes_metered(&self, queue: &impl Queue) -> bool {
        if !queue.gets_work() {
            return true;
        }
        if let Some(goes) = queue.goes_beside_captures() {
            return goes || self.take_credit();
        }
        if !queue.goes_behind_a_wait() {
            match batch::takes(queue) {
                None => return self.take_credit() || self.goes_by_streams() && !queue.is_busy(),
                // It may take long: the next one of its stream is to come after a mark.
                Some(1) if self.take_credit() => return true,
                Some(_) => {}
            }
        }
        self.in_batches.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// So many calls have gone through the metered gate without a grant, of threads that had little work ahead.
    pub fn in_batches(&self) -> u64 {
        self.in_batches.load(Ordering::Relaxed)
    }

    fn take_credit(&self) -> bool {
        let less = |credit: u32| credit.checked_sub(1);
        self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn state(&self) -> u32 {
        self.word.0.load(Ordering::Relaxed) & STATE
    }

    /// Whether a thread waits at the gate, closed or ajar.
    pub fn has_waiters(&self) -> bool {
        matches!(self.state(), CLOSED | AJAR) && self.announced.load(Ordering::Relaxed)
    }

    /// Whether all work can be submitted, now or as soon as it is granted, as far as it can be known outside.
    pub fn is_open(&self) -> bool {
        matches!(self.state(), OPEN | OPEN_FENCED | METERED)
    }

    /// Whether calls are counted.
    pub fn is_metered(&self) -> bool {
        self.state() == METERED
    }

    /// So many calls go through before more are granted. `None`: the gate is not metered.
    pub fn credit(&self) -> Option<u32> {
        self.is_metered().then(|| self.credit.load(Ordering::Relaxed))
    }

    /// From now on, until the gate opens or closes, so many calls go through as are granted. Does nothing at a gate that
    /// is not open, or metered already.
    pub fn meter(&self) {
        if self.is_open() && !self.is_metered() {
            self.credit.store(0, Ordering::Relaxed);
            self.word.0.store(self.grants.load(Ordering::Relaxed), Ordering::SeqCst);
        }
    }

    /// Calls are not counted any more. What a closing waits for stays as it is.
    pub fn unmeter(&self) {
        if self.is_metered() {
            self.go_by_streams(false);
            let opening = self.opening.lock();
            self.word.0.store(self.open_word.load(Ordering::Relaxed), Ordering::SeqCst);
            drop(opening);
            futex::wake_all(&self.word.0);
        }
    }

    /// From now on each call comes the slow way, and it is said where it [submits work](Queue::note_submission). False where threads
    /// cannot be seen. Those that are inside now may not have come that way.
    pub fn watch_calls(&self) -> bool {
        let opening = self.opening.lock();
        if self.open_word.swap(OPEN_FENCED, Ordering::Relaxed) == OPEN {
            let _ = self.word.0.compare_exchange(OPEN, OPEN_FENCED, Ordering::SeqCst, Ordering::Relaxed);
        }
        drop(opening);
        !self.is_fenced_by_closer() || membarrier::heavy()
    }

    /// Not any more.
    pub fn stop_watching_calls(&self) {
        let _opening = self.opening.lock();
        let usual = self.usual_word.load(Ordering::Relaxed);
        self.open_word.store(usual, Ordering::Relaxed);
        let _ = self.word.0.compare_exchange(OPEN_FENCED, usual, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Whether threads that come the fast way are only seen behind a barrier.
    fn is_fenced_by_closer(&self) -> bool {
        self.usual_word.load(Ordering::Relaxed) == OPEN
    }

    /// From now on calls whose work would begin at once go through the metered gate without a grant, and others through the
    /// flowing gate only with one; or not any more. Threads that wait look again when they are [told](Gate::look_again) to.
    pub fn go_by_streams(&self, by_streams: bool) {
        self.goes_by_streams.store(by_streams, Ordering::Relaxed);
    }

    /// So many calls more go through at the metered gate.
    pub fn grant(&self, calls: u32) {
        if calls == 0 || !self.is_metered() {
            return;
        }
        self.credit.fetch_add(calls, Ordering::Relaxed);
        self.word.0.store(self.next_grant(), Ordering::SeqCst);
        futex::wake_all(&self.word.0);
    }

    /// The word while metered, another one each time.
    fn next_grant(&self) -> u32 {
        let word = self.grants.load(Ordering::Relaxed).wrapping_add(GRANT);
        self.grants.store(word, Ordering::Relaxed);
        word
    }

    /// Whether all can be submitted but what would itself wait.
    pub fn is_flowing(&self) -> bool {
        self.state() == FLOWING
    }

    /// Whether only such work can be submitted whose operands are known and resident.
    pub fn is_ajar(&self) -> bool {
        self.state() == AJAR
    }

    /// Closing: waits for the goal or until `deadline`.
    pub fn wait_for(&self, goal: Goal, deadline: Instant, look: Option<Look<'_>>) -> BoundaryWait {
        self.announced.store(false, Ordering::Relaxed);
        self.closing.wait_for(goal, deadline, look)
    }

    /// The thread that has come to the boundary at which the gate closes, or has closed, and is done with what
    /// it has freed. `None`: the gate did not wait for one, none came, or the thread may be in mid-iteration.
    pub fn at_boundary(&self) -> Option<Stamp> {
        self.closing.at_boundary()
    }

    /// How many threads wait at a boundary, before a collective, or where they came out of a wait.
    #[cfg(test)]
    pub fn held(&self) -> u32 {
        self.closing.held()
    }

    /// Shuts the gate and waits until nobody is inside. False when that took longer than `until`, or
    /// cannot be known: the gate is still shut and the caller reopens it.
    #[cfg(test)]
    #[must_use]
    pub fn shut(&self, until: Instant) -> bool {
        self.close() && self.wait_until_empty(until)
    }

    /// Shuts the gate: threads inside may stay there for as long as their calls take. False where they cannot be seen.
    #[must_use]
    pub fn close(&self) -> bool {
        // No two closings have the same word: a thread that was about to wait at the one before announces that it waits at this one.
        let before = self.word.0.swap(CLOSED | self.next_round(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if before & STATE == METERED {
            // Threads that wait for a grant wait for other jobs now, and are to say so.
            futex::wake_all(&self.word.0);
        }
        let is_seen = !self.is_fenced_by_closer() || membarrier::heavy();
        self.closing.set_closed();
        is_seen
    }

    /// Lets everything through, but for work that would itself wait: what was submitted waits for what is not. It
    /// is as though the gate were not closed yet.
    pub fn flow(&self, boundary: Boundary) {
        self.credit.store(0, Ordering::Relaxed);
        self.let_through(FLOWING, boundary);
    }

    /// Threads that wait at the closed (or flowing) gate now, up to those whose work has this role; each of
    /// them or not, as chance says by the draw ([`is_chosen`]), but all if it says none.
    pub fn choose(&self, up_to: Role, draw: u32) -> Vec<&'static Record> {
        let waiting = || Record::all_waiting(up_to);
        let chosen: Vec<_> = waiting().filter(|record| is_chosen(draw, record.number())).collect();
        if chosen.is_empty() { waiting().collect() } else { chosen }
    }

    /// Lets each of these threads through once that waits at the gate now; `at_once`: those whose work would begin at once.
    /// Ends when so many have gone through, at the latest at `until`: how many did. The gate is closed then: whether it is shut
    /// must be looked at anew.
    pub fn round(
        &self,
        threads: &[&'static Record],
        at_once: bool,
        boundary: Boundary,
        until: Instant,
    ) -> u32 {
        let count = self.next_round();
        let mut chosen = 0u32;
        for thread in threads.iter().filter(|thread| thread.waits_at_gate()) {
            thread.let_go_in(count);
            chosen += 1;
        }
        let [went, declined] = [&self.let_through, &self.declined].map(|count| {
            let before = count.load(Ordering::Relaxed);
            move || count.load(Ordering::Relaxed).wrapping_sub(before)
        });
        self.let_through(if at_once { ROUND | AT_ONCE } else { ROUND } | count, boundary);
        let mut pause = Pause::default();
        while went() + declined() < chosen && pause.before(until) {}
        self.close_after_round(count);
        went()
    }

    /// Lets all work through of threads that chance chooses by the draw ([`is_chosen`]), and holds each that comes out of a
    /// wait for its GPU, or to a boundary: there it most likely has nothing that work under way needs. Those that are held so
    /// already go on first if they are chosen and `lets_go`, those at a boundary only if they are to. Ends when so many calls
    /// were made, or none for a moment, at the latest at `until`. The gate is closed then, as after a round, and who is held
    /// stays so until it opens, or until others are let go on from a boundary.
    pub fn catch(&self, draw: u32, lets_go: bool, boundary: Boundary, calls: u32, until: Instant) {
        let count = self.next_round();
        self.closing.catch(lets_go.then_some(draw), boundary);
        self.draw.store(draw, Ordering::Relaxed);
        let begin = self.let_through.load(Ordering::Relaxed);
        self.word.0.store(FLOWING | CATCHING | count, Ordering::SeqCst);
        futex::wake_all(&self.word.0);
        let (mut made, mut quiet_at) = (0, Instant::now() + LONGEST_PAUSE);
        let mut pause = Pause::default();
        while made < calls && pause.before(until.min(quiet_at)) {
            let now = self.let_through.load(Ordering::Relaxed).wrapping_sub(begin);
            if now != made {
                (made, quiet_at) = (now, Instant::now() + LONGEST_PAUSE);
            }
        }
        self.close_after_round(count);
    }

    /// Threads that were caught go on to the closed gate, but for those at a boundary, and no more are.
    pub fn release(&self) {
        self.closing.release();
    }

    /// How many calls have gone through while the gate flowed or in rounds; after the largest number comes zero again.
    pub fn count_let_through(&self) -> u32 {
        self.let_through.load(Ordering::Relaxed)
    }

    /// The number of a new round. Zero is none.
    fn next_round(&self) -> u32 {
        let count = self.rounds.load(Ordering::Relaxed).wrapping_add(NEXT_ROUND).max(NEXT_ROUND) & !CATCHING;
        self.rounds.store(count, Ordering::Relaxed);
        count
    }

    fn close_after_round(&self, count: u32) {
        self.word.0.store(CLOSED | count, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.closing.set_closed();
    }

    /// Metered or flowing: threads that wait look again whether they would wait still. So many calls go through that would.
    pub fn look_again(&self, calls: u32) {
        let more = calls.saturating_sub(self.credit.load(Ordering::Relaxed));
        match self.state() {
            // A thread that has looked before, and is about to wait, must not miss it: nothing may come after it.
            METERED if more > 0 => self.grant(more),
            METERED | FLOWING => {
                self.credit.fetch_add(more, Ordering::Relaxed);
                futex::wake_all(&self.word.0);
            }
            _ => {}
        }
    }

    /// How many threads wait at the gate, up to those whose work has this role.
    pub fn count_waiting(&self, up_to: Role) -> u32 {
        Record::all_waiting(up_to).fold(0, |count, _| count + 1)
    }

    /// Whether there are threads that such a round would let go on.
    pub fn holds_threads(&self, boundary: Boundary) -> bool {
        self.count_waiting(Role::Waits) > 0 || boundary == Boundary::GoesOn && self.closing.holds_threads()
    }

    fn let_through(&self, word: u32, boundary: Boundary) {
        match boundary {
            Boundary::GoesOn => self.let_go(word),
            Boundary::Stays => {
                self.word.0.store(word, Ordering::SeqCst);
                futex::wake_all(&self.word.0);
            }
        }
    }

    /// Waits until nobody is inside and nothing is being mapped; false when that took too long.
    #[must_use]
    pub fn wait_until_empty(&self, until: Instant) -> bool {
        let mut pause = Pause::default();
        while Record::is_anybody_inside() || self.closing.has_arrivals() {
            if !pause.before(until) {
                return false;
            }
        }
        true
    }

    /// Opens the gate and wakes all who wait.
    pub fn open(&self) {
        self.is_partial.store(false, Ordering::Relaxed);
        self.go_by_streams(false);
        let _opening = self.opening.lock();
        self.let_go(self.open_word.load(Ordering::Relaxed));
    }

    /// Opens the gate for as many calls as are granted.
    pub fn open_metered(&self) {
        self.is_partial.store(false, Ordering::Relaxed);
        self.go_by_streams(false);
        self.credit.store(0, Ordering::Relaxed);
        self.let_go(self.next_grant());
    }

    /// Opens the closed gate for so many calls whose operands are known and resident. Threads that wait at a boundary go
    /// on. Does nothing at a gate that is not closed.
    pub fn ajar(&self, calls: u32) {
        if self.state() == CLOSED {
            self.is_partial.store(true, Ordering::Relaxed);
            self.credit.store(calls, Ordering::Relaxed);
            self.let_go(self.ajar_word());
        }
    }

    /// Memory has come back. Ajar, all who wait look again.
    pub fn notice_arrival(&self) {
        if self.state() == AJAR {
            self.word.0.store(self.ajar_word(), Ordering::SeqCst);
            futex::wake_all(&self.word.0);
        }
    }

    /// Ajar, so many more calls go, at most so many at once: none are saved up.
    pub fn grant_ajar(&self, calls: u32, most: u32) {
        if calls > 0 {
            let more = |credit: u32| Some(credit.saturating_add(calls).min(most));
            let _ = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
            self.notice_arrival();
        }
    }

    /// The word while ajar, another one each time.
    fn ajar_word(&self) -> u32 {
        let word = self.arrivals.load(Ordering::Relaxed).wrapping_add(ARRIVAL);
        self.arrivals.store(word, Ordering::Relaxed);
        word
    }

    /// Whether the gate was ajar before it closed, or is: memory is missing.
    pub fn is_partial(&self) -> bool {
        self.is_partial.load(Ordering::Relaxed)
    }

    /// There was no closing after all. True: the gate was ajar before it, and is again.
    pub fn reopen_ajar(&self) -> bool {
        let was_ajar = self.is_partial.load(Ordering::Relaxed);
        if was_ajar {
            self.let_go(self.ajar_word());
        }
        was_ajar
    }

    /// The closed gate stays closed for ever: all who wait, and all who come, are told.
    pub fn fail(&self) {
        self.let_go(FAILED);
    }

    fn let_go(&self, word: u32) {
        self.word.0.store(word, Ordering::SeqCst);
        self.closing.set_open();
        futex::wake_all(&self.word.0);
    }

    /// The program is at its boundary number `count`. Waits here while the gate is closed, and
    /// when a closing is waiting for this boundary.
    pub fn boundary(&self, count: u64) {
        if self.word.0.load(Ordering::Relaxed) != INERT {
            self.closing.boundary(count, || self.announce());
        }
    }

    /// The program is about to launch its collective `number`. Waits here when a closing is waiting for that.
    pub fn collective(&self, number: u64) {
        if self.word.0.load(Ordering::Relaxed) != INERT {
            self.closing.collective(number, || self.announce());
        }
    }

    /// The calling thread has waited for its GPU. Waits here when a closing is waiting for that; at a closed
    /// gate it is the next submission that waits.
    pub fn waited(&self) {
        if self.word.0.load(Ordering::Relaxed) != INERT {
            batch::waited();
            self.closing.waited(|| self.announce());
        }
    }

    /// The calling thread has asked whether work has ended until it had. Waits here while threads are caught.
    pub fn asked(&self) {
        if self.word.0.load(Ordering::Relaxed) != INERT {
            batch::waited();
            self.closing.asked(|| self.announce());
        }
    }

    /// Ends a wait for a boundary: the session is over.
    pub fn give_up_closing(&self) {
        self.closing.give_up();
    }

    /// Notes that pieces have arrived which a thread is going to map.
    pub fn arrival(&'static self) -> Arrival {
        self.closing.arrival()
    }
}

/// A thread at the gate, from its first look at it on.
struct WaitsHere {
    record: &'static Record,
    /// What its record said before it began to wait.
    before: Option<u32>,
}

impl WaitsHere {
    /// It waits, with what it would submit now.
    fn begin(&mut self, role: Role) {
        let before = self.record.begin_waiting(role);
        self.before.get_or_insert(before);
    }

    fn is_let_through_by(&self, word: u32) -> bool {
        self.before.is_some() && self.record.goes_in(word & !(STATE | AT_ONCE))
    }
}

impl Drop for WaitsHere {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            self.record.end_waiting(before);
        }
    }
}

/// Waits in growing steps: first by yielding, then up to [`LONGEST_PAUSE`].
#[derive(Default)]
pub struct Pause {
    rounds: u32,
}

impl Pause {
    /// Waits a little; false when `until` has passed.
    pub fn before(&mut self, until: Instant) -> bool {
        if Instant::now() >= until {
            return false;
        }
        self.rounds += 1;
        if self.rounds <= 32 {
            thread::yield_now();
        } else {
            let grown = Duration::from_micros(50 * u64::from(self.rounds - 32));
            thread::sleep(grown.min(LONGEST_PAUSE));
        }
        true
    }
}
