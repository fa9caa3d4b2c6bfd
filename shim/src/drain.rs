//! Has all submitted work ended? And what is done where it does not.
//!
//! A [`Draining`] shuts the gate and waits for the end of all work. Where work waits for work that is not submitted it
//! lets through what may end that wait, as `docs/drain.md` says.
//!
//! A [`Probe`] marks the end of all work of all contexts at one moment, and is asked until the
//! GPU has passed the marks. Where the driver has no context-wide event, a helper thread waits
//! in `cuCtxSynchronize` instead.
//!
//! Invariant: a probe never blocks its asker and never takes a lock of the program.

use crate::ahead::State;
use crate::contexts::Used;
use crate::driver::{Behind, Context, Current, relax_captures_of_this_thread, synchronize};
use crate::gate::{Boundary, GATE, Pause, Record, Role, drawn};
use crate::host_functions;
use crate::log::info;
use crate::marks::Calls;
use crate::process::Process;
use crate::threads;
use crate::window::{Expected, Pace, SOON};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::CUresult;
use tidegate_ffi::units::Step;
use tidegate_ffi::wire::message::{FromShim, Peers};

/// The shortest time after which work that has not ended may be waiting for other work.
const SHORTEST: Duration = Duration::from_millis(1);
/// For so long it is seen whether work ends alone where others of the job might wait for it, and none was measured yet. Where they
/// are known to it is no longer.
const UNKNOWN_ALONE: Duration = Duration::from_millis(2500);
/// As long at most, however long drains took.
const MOST_ALONE: Duration = Duration::from_millis(7500);
/// Such a part of the drain limit it is where no drain was measured yet, and at most such a part of it.
const UNMEASURED: u32 = 64;
const LONGEST: u32 = 4;
/// Where processes of a job may wait for each other, the drain limit is time for so many tries: what waits may come to its end by
/// chance, and a try that begins anew after the job went on is no better than one that goes on.
const TRIES_BESIDE_OTHERS: u32 = 2;
/// So many times the pace work may go on to be submitted while no value wait ends.
const BUSY: u32 = 8;
/// While value waits are released calls go at twice the pace after each second, so often at most.
const MOST_DOUBLED: u64 = 8;
/// In one of so many rounds what would wait goes though other threads can.
const WITH_WAITS: u32 = 4;
/// In so many rounds all threads go through at first, then some of them, as chance says. So often the gate flows before
/// that, too, if work does not end afterwards.
const TOGETHER: u32 = 2;
/// Where work is known to wait a thread makes up to so many calls in a round, as chance says: a power of two.
const MOST_CALLS: u32 = 16;
const LATE_VALUE: &str = "work on the GPU waits for a value that was not submitted in time";
/// Work that was there so long a part of the drain limit before waits for other work, most likely.
const SURELY_WAITS: u32 = 32;
/// So often the same is done about work that waits, before something else is tried.
const TIMES_ALIKE: u32 = 3;
/// Where calls were counted they are let through as seldom as once in such a part of the drain limit at first: what only takes long
/// gets little added.
const SELDOM: u32 = 128;
/// What goes on after such a part of the drain limit, with nothing let through, takes long.
const LATE: u32 = 16;
/// Short calls that take so many times as long as they were to wait, most likely: a call goes then that would begin at once, after each
/// such part of the time.
const MUCH_LONGER: u32 = 16;
const EARLY: u32 = 32;
/// In one of so many turns others than those behind go though these can.
const NOT_BEHIND: u32 = 8;
/// For such a part of the drain limit those that went are awaited.
const BACK_SOON: u32 = 256;
/// In one of so many turns others go than those that are caught.
const NOT_CAUGHT: u32 = 4;
/// After so many functions on the host have ended in a closing threads are caught, if there are more that wait.
const ENDED: u64 = 8;
/// After so many turns threads that are behind make up to twice as many calls in one, at most so many.
const ALIKE_BEHIND: u32 = 16;
const MOST_CALLS_BEHIND: u32 = 256;
/// For such a part of the drain limit threads are caught before nothing is submitted for as long; so many times as long where
/// that has helped before.
const SPELL: u32 = 64;
const LONGER: u32 = 4;
/// Threads that make more calls without a wait are not thought to wait for their GPU: more than a few streams take.
const CALLS_BETWEEN_WAITS: u64 = 4096;
/// The least calls that are made while threads are caught; twice as many each time.
const CALLS_WHILE_CATCHING: u32 = 16;
/// The longest pause between two looks at the value waits.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Where other processes of the job may have to submit what ends a wait, the process itself does every so many times only:
/// what it submits may wait for them, too, and be ahead of them for ever.
const PEERS_FIRST: u32 = 4;

/// How long a process's drains take.
#[derive(Default)]
pub struct Drains {
    /// In microseconds: the longest, of those long ago a part only. Zero: none was measured.
    longest: AtomicU64,
    /// One of them was of work that took some time, or that waited.
    has_measured: AtomicBool,
    /// The last one ended when threads were caught at their waits.
    has_caught: AtomicBool,
    /// The same of the last one in which calls went for functions on the host.
    has_caught_for_host: AtomicBool,
}

impl Drains {
    /// Work has ended so long after something was let through for the last time.
    fn note(&self, time: Duration, has_caught: bool) {
        self.has_caught.store(has_caught, Ordering::Relaxed);
        self.has_measured.fetch_or(time >= SHORTEST, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let before = self.longest.load(Ordering::Relaxed);
        self.longest.store(micros.max(before - before / 16), Ordering::Relaxed);
    }

    /// Work did not end in the time that was measured before: to wait so long did not help.
    fn note_stall(&self) {
        self.has_measured.store(true, Ordering::Relaxed);
        self.longest.store(self.longest.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
    }

    /// The longest, if one was measured.
    fn longest(&self) -> Option<Duration> {
        let micros = self.longest.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// For so long it is seen whether work ends alone that takes `time`, beside other processes of the job: twice as long as it takes, and no
    /// less than drains did; where they are known to wait for each other only that, for it is little then.
    fn time_beside(&self, peers: Peers, is_little: bool, time: Duration) -> Duration {
        match (peers, self.longest().filter(|_| self.has_measured.load(Ordering::Relaxed))) {
            (Peers::Entangled, longest) => (longest.unwrap_or_default() * 2).min(UNKNOWN_ALONE),
            (_, Some(longest)) if is_little => (longest.max(time) * 2).min(MOST_ALONE),
            (_, longest) => (longest.unwrap_or_default().max(time) * 2).clamp(UNKNOWN_ALONE, MOST_ALONE),
        }
    }

    /// After this time work that has not ended may be waiting for other work: twice what a drain takes.
    fn patience(&self, limit: Duration) -> Duration {
        self.longest().map_or(limit / UNMEASURED, |longest| longest * 2).max(SHORTEST).min(limit / LONGEST)
    }
}

/// A closing that has come to its end: the gate is to be shut, and all work to have ended.
pub struct Draining<'a> {
    process: &'static Process,
    /// Of the `Close`.
    step: Step,
    started: Instant,
    /// How long work may take at one try. The steps of a closing are parts of it.
    limit: Duration,
    until: Instant,
    /// The latest end of a closing in which work is seen to go on.
    latest: Instant,
    /// How long it waits for the end of work before it takes it to wait for other work.
    patience: Duration,
    /// How long it does when it was once.
    pace: Duration,
    /// What threads at a boundary do when others are let through.
    boundary: Boundary,
    /// They were let go on.
    gone_on: bool,
    /// Calls were let through, in case they end a wait.
    has_helped: bool,
    /// Other processes of the job that have memory.
    peers: Peers,
    /// For so long nothing is let through, and no other process is asked to.
    alone: Duration,
    /// For so long the GPU had been at what is under way when the closing began.
    had: Duration,
    /// Since when the GPU has passed no mark.
    still_since: Instant,
    /// What is under way, where calls are known to be short.
    expected: Option<Expected>,
    /// So many calls were let through early, for it took much longer; and when the next ones go.
    early: u32,
    early_at: Instant,
    /// So many calls are under way at most, if that is known.
    under_way: Option<u32>,
    /// When the next calls are let through that are not behind.
    adds_at: Instant,
    /// Calls were let through for a function on the host.
    has_helped_host: bool,
    /// When the GPU was first seen to have passed a mark, of those that were not looked at yet.
    passed_at: Option<Instant>,
    /// Since calls were let through it has passed one that did not wait for these.
    goes_on_alone: bool,
    /// It has, or it passed one late, though none were let through: calls take long.
    goes_on_late: bool,
    /// The pace at which calls were let through before, if it was. No more are while the gate flows, but for those whose work
    /// would begin at once.
    flows_at: Option<Pace>,
    /// So often work did not end.
    stalls: u32,
    /// So many rounds were made.
    rounds: u32,
    /// Work that had not ended at an earlier look, and when that was.
    oldest: Option<(Probe, Instant)>,
    /// What is known of the work that was submitted before.
    ahead: &'a mut State,
    /// The GPU was seen to go on with what was submitted before: that takes until then, perhaps.
    goes_on_until: Instant,
    /// Since when a thread has been in a call that submits work.
    inside_since: Option<Instant>,
    /// The gate has flowed since work did not end.
    has_flowed: bool,
    /// After so many times that it flowed work did not end.
    flows_in_vain: u32,
    /// So often it was time to catch threads at their waits.
    catches: u32,
    /// While threads are caught, and not.
    spell: Option<Spell>,
    /// So often it was time to let something through.
    turns: u32,
    /// When a thread that is behind last went.
    behind_at: Instant,
    /// When others than those behind may go.
    others_at: Instant,
    /// Since when nothing was let through.
    quiet_since: Instant,
    /// When functions on the host may begin at once.
    functions_at: Instant,
}

/// Threads that are let go on may keep work under way for ever that would only take long. So after each spell of catching
/// nothing is submitted for a time, twice as long after each.
#[derive(Clone, Copy)]
struct Spell {
    ends: Instant,
    next: Instant,
}

impl Spell {
    /// How long nothing is submitted after it.
    fn rest(&self) -> Duration {
        self.next - self.ends
    }
}

/// What is done about work that waits.
#[derive(PartialEq, Eq)]
enum Attempt {
    /// All threads at the gate go on until they come out of a wait.
    CatchAll,
    /// Some do, and some of those that came out of one.
    CatchSome,
    /// Some threads at the gate make a few calls.
    Round,
}

/// Which threads go through in a round.
#[derive(Clone, Copy)]
struct ThreadFilter {
    chosen: Chosen,
    /// Only those whose work would begin at once.
    at_once: bool,
    /// Only those whose work has this role, or one before it.
    up_to: Role,
    /// The same of the calls that a thread makes after its first one.
    then_up_to: Role,
}

impl ThreadFilter {
    fn up_to(role: Role, chosen: Chosen, at_once: bool) -> Self {
        Self { chosen, at_once, up_to: role, then_up_to: Role::Waits }
    }
}

#[derive(Clone, Copy)]
enum Chosen {
    All,
    /// Each or not, as chance says by this.
    Some(u32),
    /// The first that can go, in an order that chance says by this.
    One(u32),
}

impl Chosen {
    /// By [`is_chosen`](crate::gate::is_chosen).
    fn draw(self) -> u32 {
        match self {
            Self::All => 0,
            Self::Some(draw) | Self::One(draw) => draw,
        }
    }
}

/// What is found at the closed gate.
enum Found {
    /// All work has ended.
    End,
    /// A capture that began before the gate was closed.
    Capture,
    /// A value wait for which no value was submitted.
    ValueWait,
    /// Work does not end, or a thread does not come out of its call.
    Stall,
}

impl<'a> Draining<'a> {
    /// Of a process, until then. `drain` is how long work itself may take; `ahead`: what is known of what it has submitted.
    pub fn new(
        process: &'static Process,
        step: Step,
        boundary: Boundary,
        drain: Duration,
        until: Instant,
        peers: Peers,
        ahead: &'a mut State,
    ) -> Self {
        let limit = if peers == Peers::None { drain } else { drain / TRIES_BESIDE_OTHERS };
        let (started, patience, pace) = (Instant::now(), process.drains.patience(limit), SHORTEST);
        Self {
            process,
            step,
            started,
            limit,
            until,
            latest: until + limit,
            patience,
            pace,
            boundary,
            gone_on: false,
            has_helped: false,
            peers,
            alone: Duration::ZERO,
            had: Duration::ZERO,
            still_since: started,
            expected: None,
            early: 0,
            early_at: started,
            under_way: None,
            adds_at: started,
            has_helped_host: false,
            passed_at: None,
            goes_on_alone: false,
            goes_on_late: false,
            flows_at: None,
            stalls: 0,
            rounds: 0,
            oldest: None,
            ahead,
            goes_on_until: started,
            inside_since: None,
            has_flowed: false,
            flows_in_vain: 0,
            catches: 0,
            spell: None,
            turns: 0,
            behind_at: started,
            others_at: started,
            quiet_since: started,
            functions_at: started + host_functions::AT_ONCE,
        }
    }

    /// The gate was metered, and let calls through at this pace. It is seen first whether what is under way ends alone, which takes
    /// `rest` as far as is known: of calls that take seconds each that is added to it takes as long again. So what is added then is no
    /// more than as many calls, of `under_way`, as have most likely ended. If it did not end in time before, and `is_late`, nothing is.
    pub fn of_metered(self, under_way: u64, pace: Pace, rest: Duration, is_late: bool) -> Self {
        GATE.go_by_streams(true);
        let most = self.longest_quiet();
        let alone = if is_late { self.limit * 4 } else { most.max(rest) };
        let under_way = Some(u32::try_from(under_way).unwrap_or(u32::MAX));
        Self { flows_at: Some(pace), alone, under_way, ..self.alone_for(most) }
    }

    /// What is known of what is under way.
    pub fn expecting(self, expected: Option<Expected>) -> Self {
        Self { expected, ..self }
    }

    /// Other processes of the job might wait for what is held here. It is seen for twice as long as its work takes whether that ends
    /// alone, first: `time` where they are not known to wait, and for no less than drains took. In the next ones that time is known
    /// better: the GPU `had` been at this for so long. Where it is not known at all, or much is under way, it is seen for [`UNKNOWN_ALONE`].
    pub fn beside_others(self, is_little: bool, time: Duration, had: Duration) -> Self {
        // Where they wait for each other there is no more time for that than a part of the limit.
        let most = if self.peers == Peers::Entangled { self.limit / LONGEST } else { MOST_ALONE };
        let alone = self.process.drains.time_beside(self.peers, is_little, time).min(most);
        Self { had, ..self.alone_for(alone) }
    }

    /// Where work waits, what ends that gets as much time as it would have had.
    fn alone_for(self, alone: Duration) -> Self {
        Self { alone, until: self.until + alone, latest: self.latest + alone, ..self }
    }

    /// For so long nothing is let through, at most, in case work only takes long.
    fn longest_quiet(&self) -> Duration {
        self.limit / 4 * 3
    }

    fn has_peers(&self) -> bool {
        self.peers != Peers::None
    }

    /// Until when it may take.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Whether threads were let go on from a boundary: none is there any more.
    pub fn has_gone_on(&self) -> bool {
        self.gone_on
    }

    /// Leaves the marks for what comes later.
    pub fn leave(self) -> &'a mut State {
        if let Some((oldest, since)) = self.oldest {
            self.ahead.marks.add_of(since, oldest);
        }
        self.ahead
    }

    /// Whether calls were let through that may have ended a wait of the work on the GPU.
    pub fn has_helped(&self) -> bool {
        self.has_helped || self.early > 0
    }

    /// Whether work was seen since then to go on without them: then it only takes long.
    pub fn goes_on_alone(&self) -> bool {
        self.goes_on_alone
    }

    /// Whether work takes long, as was seen: it may not have ended in time.
    pub fn goes_on_late(&self) -> bool {
        self.goes_on_late
    }

    /// Whether calls were let through for a function on the host.
    pub fn has_helped_host(&self) -> bool {
        self.has_helped_host
    }

    /// Shuts the gate and waits until all work has ended. On an error the gate is closed or open, and the caller
    /// reopens it.
    pub fn run(&mut self) -> Result<(), String> {
        // At the closed gate they could not end.
        if GATE.is_open() || GATE.is_ajar() {
            self.wait_for_captures()?;
        }
        loop {
            self.let_values_come()?;
            if GATE.is_open() || GATE.is_flowing() {
                self.quiet_since = Instant::now();
            }
            if !GATE.close() {
                return Err("barriers are forbidden".into());
            }
            let closed = Instant::now();
            match self.look()? {
                Found::End => {
                    let drains = &self.process.drains;
                    drains.note(self.quiet_for(closed), self.has_helped_to_catch(closed));
                    if self.has_helped_host {
                        drains.has_caught_for_host.store(self.catches > 0, Ordering::Relaxed);
                    }
                    return Ok(());
                }
                Found::Capture => {
                    // Shut, a capture could not end.
                    let _ = GATE.reopen_ajar();
                    self.gone_on = true;
                    self.wait_for_captures()?;
                }
                Found::ValueWait => {}
                // What was submitted long ago goes on to end: nothing has to be let through for it.
                Found::Stall if self.takes_long() => {}
                // It may be only long: first it is seen whether it ends alone.
                Found::Stall if self.still_since.elapsed() < self.alone => {
                    self.help_early();
                    self.help_host();
                }
                Found::Stall => {
                    if self.stalls == 0 {
                        self.process.drains.note_stall();
                    }
                    if self.flows_at.is_some() && !self.has_helped {
                        self.pace = self.pace.max(self.limit / SELDOM);
                    }
                    self.flows_in_vain += u32::from(std::mem::take(&mut self.has_flowed));
                    let goes_on = self.stalled() && self.help();
                    if !goes_on {
                        self.slow_down();
                    }
                    self.patience = if goes_on { SHORTEST } else { self.pace };
                }
            }
        }
    }

    /// So long work has taken to end with nothing let through. Others of the job may have ended what was waited for here, where they
    /// were told, or go on to a common boundary.
    fn quiet_for(&self, closed: Instant) -> Duration {
        match self.peers {
            Peers::None => self.quiet_since.elapsed(),
            Peers::Entangled => closed.elapsed(),
            _ if self.stalls > 0 || self.has_flowed || self.boundary == Boundary::Stays => closed.elapsed(),
            _ if self.rounds > 0 || self.catches > 0 => self.quiet_since.elapsed(),
            _ => self.had + self.started.elapsed(),
        }
    }

    /// Waits until no stream captures, or for a time if it is known when all else has ended. Meanwhile the gate flows, so that no
    /// further capture begins; but one may have to for another to end: after a time what is held goes through once.
    fn wait_for_captures(&mut self) -> Result<(), String> {
        let mut patience = self.limit / UNMEASURED;
        loop {
            self.process.forget_dead_captures();
            if !self.process.captures.any() {
                return Ok(());
            }
            // Ajar, work waits for memory too.
            if !GATE.is_partial() {
                self.gone_on |= self.boundary == Boundary::GoesOn;
                GATE.flow(self.boundary);
            }
            let (mut pause, end) = (Pause::default(), self.until.min(Instant::now() + patience));
            let is_known = self.process.captures.is_known_what_is_beside();
            while self.process.captures.any() && pause.before(end) {
                // What ends a capture may come after work of other threads. Where it need not end what begins at once goes.
                if let Some(pace) = &mut self.flows_at {
                    GATE.look_again(if is_known { 0 } else { pace.calls() });
                }
            }
            if self.process.captures.is_known_what_is_beside() {
                return Ok(());
            }
            if Instant::now() >= self.until {
                return Err("a stream is capturing".into());
            }
            // It may wait for memory, or for work of other processes, which the manager lets come.
            self.say_that_it_stalls();
            // A thread at its boundary may be the one that captures.
            if self.process.captures.any() && !GATE.is_partial() {
                self.gone_on = true;
                let all = ThreadFilter::up_to(Role::Waits, Chosen::All, false);
                self.make_calls(all, 1, Boundary::GoesOn, SHORTEST);
            }
            patience += patience / 4;
        }
    }

    /// While work waits for values that are not submitted, the gate lets through all but what would itself wait.
    fn let_values_come(&mut self) -> Result<(), String> {
        if !self.waits_for_values() {
            return Ok(());
        }
        self.gone_on |= self.boundary == Boundary::GoesOn;
        self.has_flowed = true;
        GATE.flow(self.boundary);
        let mut busy = 0;
        loop {
            // Where a long chain of calls has to come before the value it comes, if slowly at first.
            let times = 1u32 << self.started.elapsed().as_secs().min(MOST_DOUBLED);
            let calls = self.flows_at.as_mut().map_or(0, |pace| pace.calls().max(1));
            GATE.look_again(calls.saturating_mul(times));
            let (submissions, waits) = (Record::submissions(), self.process.value_waits.count());
            let end = self.until.min(Instant::now() + self.pace);
            if self.values_came(end) {
                return Ok(());
            }
            if Instant::now() >= self.until {
                return Err(LATE_VALUE.into());
            }
            if self.process.value_waits.count() < waits {
                (self.pace, busy) = (SHORTEST, 0);
                continue;
            }
            // Who submits on may never submit what ends the wait.
            busy += 1;
            if Record::submissions() == submissions || busy >= BUSY {
                busy = 0;
                let is_own_turn = self.stalled();
                self.slow_down();
                // It may be that the value comes after what is held back.
                if is_own_turn {
                    self.let_next_through();
                    GATE.flow(self.boundary);
                }
            }
        }
    }

    /// Has all work ended that is not captured?
    fn look_beside_captures(&mut self, until: Instant) -> Result<Found, String> {
        let mut pause = Pause::default();
        while !self.process.captures.has_ended_what_is_beside() {
            if !self.process.captures.is_known_what_is_beside() {
                return Ok(Found::Capture);
            }
            if !pause.before(until) {
                return self.stalls(&DrainError::Late.to_string());
            }
        }
        Ok(Found::End)
    }

    /// A round while values are awaited, of calls that would wait, too.
    fn let_next_through(&mut self) {
        let (chosen, calls) = self.next_draw(false);
        self.make_calls(ThreadFilter::up_to(Role::Waits, chosen, false), calls, self.boundary, self.pace);
    }

    /// Ajar, work waits for memory too, and nothing else may go. Where threads are caught at their waits no other way is gone.
    fn waits_for_values(&self) -> bool {
        !GATE.is_partial() && self.catches == 0 && self.process.value_waits.any()
    }

    /// Whether all value waits are released by then.
    fn values_came(&self, until: Instant) -> bool {
        while self.process.value_waits.any() {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            self.process.value_waits.wait_for_change(until.min(now + LOOK_AGAIN));
        }
        true
    }

    fn look(&mut self) -> Result<Found, String> {
        let until = self.until.min(Instant::now() + self.patience);
        match self.look_at_work(until)? {
            Found::End if !self.wait_for_contexts_to_end(until) => {
                self.stalls("a context did not come to its end in time")
            }
            found => Ok(found),
        }
    }

    /// Whether no context is being ended: nothing tells of its work any more. The thread that ends it waits until nothing here uses it.
    fn wait_for_contexts_to_end(&mut self, until: Instant) -> bool {
        let mut pause = Pause::default();
        while self.process.contexts.is_one_ending() {
            self.oldest = None;
            self.ahead.let_go();
            if !pause.before(until) {
                return false;
            }
        }
        true
    }

    fn look_at_work(&mut self, until: Instant) -> Result<Found, String> {
        if !GATE.wait_until_empty(until) {
            self.inside_since.get_or_insert_with(Instant::now);
            return self.stalls("a thread did not come out of a driver call in time");
        }
        self.inside_since = None;
        let captures = self.process.captures.any();
        if captures && !self.process.captures.is_known_what_is_beside() {
            return Ok(Found::Capture);
        }
        if self.waits_for_values() {
            return Ok(Found::ValueWait);
        }
        if captures {
            return self.look_beside_captures(until);
        }
        if !self.ahead.marks.has_room() {
            // A further one would be passed after these.
            let mut pause = Pause::default();
            while !self.has_oldest_ended() && !self.ahead.marks.is_first_passed() && pause.before(until) {}
            self.forget_what_has_ended();
            if self.oldest.is_some() || !self.ahead.marks.is_empty() {
                return self.stalls(&DrainError::Late.to_string());
            }
        }
        let probe = match Probe::start(self.process) {
            Err(DrainError::Capture) => return Ok(Found::Capture),
            started => started.map_err(|error| error.to_string())?,
        };
        match self.wait_for(&probe, until) {
            Ok(()) => Ok(Found::End),
            Err(late @ DrainError::Late) => {
                self.forget_what_has_ended();
                match self.oldest {
                    None => self.oldest = Some((probe, Instant::now())),
                    Some(_) => self.ahead.marks.add(probe, Calls::now(self.process)),
                }
                self.stalls(&late.to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Waits for the end of all work, and sees when the GPU goes on with it.
    fn wait_for(&mut self, probe: &Probe, until: Instant) -> Result<(), DrainError> {
        let mut pause = Pause::default();
        while !probe.is_passed()? {
            if self.passed_at.is_none() && self.ahead.is_one_passed() {
                self.passed_at = Some(Instant::now());
            }
            if !pause.before(until) {
                return Err(DrainError::Late);
            }
        }
        Ok(())
    }

    /// Whether work that has not ended only takes long: the GPU has passed a mark in it since it was asked last. As much as was
    /// submitted after the mark is before it still, and for that time nothing is let through: the closing gets at most twice
    /// as long by that. Where it may wait for work of other processes of the job these are told at once that it does not end.
    fn takes_long(&mut self) -> bool {
        let passed = self.ahead.age_of_passed();
        let now = Instant::now();
        // Where calls were let through just before one may have ended a wait: a mark is as old as that then.
        let passed_at = self.passed_at.take().unwrap_or(now);
        let quiet_for = passed_at.saturating_duration_since(self.quiet_since);
        let has_helped = self.has_helped();
        let goes_alone = !self.has_helped_host && (!has_helped || quiet_for >= SOON);
        if let Some(rest) = passed.filter(|_| self.peers != Peers::Entangled && goes_alone) {
            self.goes_on_alone |= has_helped;
            self.goes_on_late |= has_helped || quiet_for >= self.limit / LATE;
            if !self.alone.is_zero() {
                // The next mark may take as long.
                self.alone = self.alone.max((now - self.still_since) * 2);
            }
            self.still_since = now;
            self.goes_on_until = now + rest.min(self.longest_quiet());
            let until = now + self.alone + self.limit;
            self.until = self.until.max(until.min(self.latest));
        }
        let goes_on = Instant::now() < self.goes_on_until;
        if goes_on {
            self.patience = self.patience.max(self.limit / UNMEASURED);
        }
        passed.is_some() || goes_on
    }

    fn stalls(&self, reason: &str) -> Result<Found, String> {
        if Instant::now() >= self.until { Err(reason.into()) } else { Ok(Found::Stall) }
    }

    /// Something is let through that may end a wait. True: threads that are behind went on, and may again.
    fn help(&mut self) -> bool {
        self.process.host_functions.lock().look();
        self.turns = self.turns.wrapping_add(1);
        if self.rests() {
            // Work may wait for threads that were caught: theirs has ended. They go on to the gate.
            GATE.release();
        }
        if self.is_time_to_catch() && !self.turns.is_multiple_of(NOT_CAUGHT) {
            self.catch_at_waits();
            return false;
        }
        let goes_on = self.let_through(1, true) > 0;
        if goes_on {
            self.behind_at = Instant::now();
        }
        // Where those behind go on without end, others than they go, too, at times.
        let is_others_turn = self.turns.is_multiple_of(NOT_BEHIND) && Instant::now() >= self.others_at;
        // One that is behind comes back to the gate soon. What is ahead would not come to its end by what others add to it.
        let is_back_soon = self.behind_at.elapsed() < self.limit / BACK_SOON;
        let holds_others = self.rests() || is_back_soon && !self.would_come_out();
        if (is_others_turn || !goes_on) && !holds_others && Instant::now() >= self.adds_at {
            let added = self.let_through(1, false);
            self.note_added(added);
            self.others_at = Instant::now() + self.pace;
            if goes_on {
                self.slow_down();
            }
        }
        goes_on || is_back_soon && holds_others
    }

    /// So many calls were let through behind work that has not ended. If all only takes long they take as long each as what is under
    /// way has, and the next go after that time.
    fn note_added(&mut self, added: u32) {
        self.under_way = self.under_way.map(|calls| calls.saturating_add(added));
        if let Some(calls) = self.under_way_for_long() {
            self.adds_at = Instant::now() + self.still_since.elapsed() / calls.max(1) * added;
        }
    }

    /// So many calls are under way, if they may only take long: a function on the host that does not end waits for something most
    /// likely, but where it only sleeps.
    fn under_way_for_long(&self) -> Option<u32> {
        let may_wait = || host_functions::may_wait(self.still_since.elapsed());
        self.under_way.filter(|_| !may_wait() || self.process.host_functions.lock().only_sleep())
    }

    /// Work of another process may wait for what a thread would submit that waits at the gate: each makes so many calls.
    pub fn let_some_through(&mut self, calls: u32) {
        // A few calls are not enough. A thread may have at the gate what others of the job need.
        if calls > TIMES_ALIKE || self.process.drains.has_caught.load(Ordering::Relaxed) {
            self.catches = 1;
            return self.catch_at_waits();
        }
        if self.let_through(calls, true) == 0 {
            self.let_through(calls, false);
        }
    }

    /// Threads that wait at the gate make so many calls, or more; `at_once`: those whose work would begin at once. They are
    /// *behind* the others, whose work has not ended: that waits for theirs. How many calls were made.
    ///
    /// Work that would itself wait for a value goes when there is no other, in every fourth round, and when chance says which
    /// threads go.
    fn let_through(&mut self, calls: u32, at_once: bool) -> u32 {
        self.let_through_up_to(Role::Waits, calls, at_once)
    }

    /// The same, and the calls of a thread after its first one have this role, or one before it.
    fn let_through_up_to(&mut self, then_up_to: Role, calls: u32, at_once: bool) -> u32 {
        // A thread that was caught at a wait stays.
        let boundary = if self.catches > 0 || at_once { Boundary::Stays } else { self.boundary_in_round() };
        if GATE.is_partial() || !GATE.holds_threads(boundary) {
            return 0;
        }
        self.gone_on |= boundary == Boundary::GoesOn;
        // Where others can go all the time, what would wait goes now and then all the same.
        let is_turn_of_waits = self.rounds % WITH_WAITS == WITH_WAITS - 1 || self.is_known_to_wait();
        let up_to = match () {
            () if at_once && self.holds_functions() => Role::Works,
            () if is_turn_of_waits || GATE.count_waiting(Role::Calls) == 0 => Role::Waits,
            () => Role::Calls,
        };
        if at_once && GATE.count_waiting(up_to) == 0 {
            return 0;
        }
        let (chosen, calls_of_draw) = self.next_draw(at_once);
        let filter = ThreadFilter { then_up_to, ..ThreadFilter::up_to(up_to, chosen, at_once) };
        let made = self.make_calls(filter, calls.max(calls_of_draw), boundary, self.patience);
        if made > 0 {
            info!("work does not end: {made} calls of those that wait at the gate went through");
            self.has_helped = true;
            self.quiet_since = Instant::now();
            if at_once {
                self.functions_at = Instant::now() + host_functions::AT_ONCE;
            }
        }
        made
    }

    /// Whether functions on the host are held though they would begin at once: where one waits for a lock, others that take it
    /// would keep it waiting. They go where nothing else has gone for a time.
    fn holds_functions(&self) -> bool {
        Instant::now() < self.functions_at && !self.process.value_waits.any()
    }

    /// Whether threads are caught where they come out of waits for their GPU: where work surely waits. At the gate a thread
    /// may have what others need, as a lock, or be in the middle of a long chain of calls.
    fn is_time_to_catch(&mut self) -> bool {
        let has_helped = self.process.drains.has_caught.load(Ordering::Relaxed);
        let is_needed = has_helped || self.is_known_to_wait() || self.surely_waits();
        // Threads that are caught make more calls than one. Where few are under way, and take long, that would be as much again.
        let are_few = self.under_way_for_long().is_some_and(|calls| calls < CALLS_WHILE_CATCHING);
        if !is_needed || are_few || GATE.is_partial() || self.rests() || !self.would_come_out() {
            return false;
        }
        let now = Instant::now();
        if self.spell.is_none_or(|spell| now >= spell.next && !self.has_peers()) {
            let first = self.limit / SPELL;
            // A function that waits for a lock does not end by that. Then a rest is for those behind.
            let times = if self.process.host_functions.lock().has_waited() { 1 } else { 2 };
            let rest = self.spell.map_or(first, |spell| spell.rest() * times);
            let ends = now + if has_helped { first * LONGER } else { first };
            self.spell = Some(Spell { ends, next: ends + rest });
            // What was waited for until now was the end of work that takes long.
            self.pace = SHORTEST;
        }
        self.catches = self.catches.saturating_add(1);
        self.attempt() != Attempt::Round
    }

    /// Whether threads that are let go on would come out of a wait: those that never wait are caught nowhere.
    fn would_come_out(&self) -> bool {
        self.process.waits.any_within(CALLS_BETWEEN_WAITS)
    }

    /// Whether nothing is submitted for a time, in case work only takes long. Other processes of the
    /// job may wait for what is held here, and have their spells at other times: with peers a process never rests.
    fn rests(&self) -> bool {
        let now = Instant::now();
        !self.has_peers() && self.spell.is_some_and(|spell| (spell.ends..spell.next).contains(&now))
    }

    /// Whether work ended in a spell, and not because nothing was submitted for a time.
    fn has_helped_to_catch(&self, closed: Instant) -> bool {
        let has_ended_soon = |spell: Spell| closed < spell.ends || closed.elapsed() < spell.rest() / 2;
        self.spell.is_some_and(|spell| self.has_peers() || has_ended_soon(spell))
    }

    /// What is tried now. Each alone is what some program never comes to an end by.
    fn attempt(&self) -> Attempt {
        match self.catches / TIMES_ALIKE % 4 {
            0 => Attempt::CatchAll,
            3 => Attempt::Round,
            _ => Attempt::CatchSome,
        }
    }

    /// Threads go on until they come out of a wait. Those that were caught there before stay while others can go, for what
    /// they submitted has ended; or chance says which of all go, and which stay.
    fn catch_at_waits(&mut self) {
        let boundary = self.boundary_in_round();
        self.has_helped = true;
        let lets_go = self.attempt() == Attempt::CatchSome || GATE.count_waiting(Role::Waits) == 0;
        self.gone_on |= lets_go && boundary == Boundary::GoesOn;
        let draw = if lets_go { drawn(self.step.0 as u32, self.catches / TIMES_ALIKE) } else { 0 };
        let calls = CALLS_WHILE_CATCHING.saturating_mul(2u32.saturating_pow(self.catches));
        GATE.catch(draw, lets_go, boundary, calls, self.until.min(Instant::now() + self.limit / UNMEASURED));
        self.quiet_since = Instant::now();
    }

    /// Each of those that wait at the gate goes through so often; all of it takes no longer than so many times that time. How
    /// many calls were made.
    fn make_calls(&self, filter: ThreadFilter, calls: u32, boundary: Boundary, each: Duration) -> u32 {
        let round = |threads: &[_]| {
            GATE.round(threads, filter.at_once, boundary, self.until.min(Instant::now() + each))
        };
        let draw = filter.chosen.draw();
        let (mut threads, mut made);
        if let Chosen::One(_) = filter.chosen {
            threads = GATE.choose(filter.up_to, 0);
            threads.sort_by_key(|thread| drawn(draw, thread.number()));
            threads = threads.into_iter().find(|thread| round(&[*thread]) > 0).into_iter().collect();
            made = u32::from(!threads.is_empty());
        } else {
            threads = GATE.choose(filter.up_to, draw);
            made = round(&threads);
        }
        for _ in 1..calls {
            // They are on their way to their next calls, or wait on the host.
            let is_back = |thread: &&'static Record| thread.waits_at_gate();
            let (mut pause, soon) = (Pause::default(), self.until.min(Instant::now() + SHORTEST));
            while !threads.iter().all(is_back) && pause.before(soon) {}
            let may = |up_to: Role| GATE.choose(up_to.min(filter.then_up_to), 0);
            match filter.chosen {
                Chosen::All => threads = may(filter.up_to.min(Role::Calls)),
                _ if filter.then_up_to == Role::Waits => {}
                _ => {
                    let others = may(Role::Waits);
                    threads.retain(|thread| others.iter().any(|other| std::ptr::eq(*thread, *other)));
                }
            }
            // The call that ended a wait may be followed by the next wait.
            if !threads.iter().any(is_back) || filter.at_once && self.has_oldest_ended() {
                break;
            }
            match round(&threads) {
                0 if filter.at_once => break,
                more => made += more,
            }
        }
        made
    }

    /// Which threads go through in the next round, by which draw, and how far. Threads that go together stay as far apart as
    /// they are: where one lets go what another waits for, and that one waits for the next such thing, nothing is gained. And
    /// any order of theirs is one that some program keeps in step with.
    fn next_draw(&mut self, at_once: bool) -> (Chosen, u32) {
        let round = self.rounds;
        self.rounds = round.saturating_add(1);
        let draw = drawn(self.step.0 as u32, round);
        let up_to = |most: u32| 1 << (draw % (most.ilog2() + 1));
        match draw >> 16 & 3 {
            _ if round < TOGETHER => (Chosen::All, 1),
            // Those behind come up with the others call by call; where they are far behind, in longer and longer steps.
            way if at_once => {
                let chosen = match way {
                    0 => Chosen::All,
                    1 => Chosen::Some(draw),
                    _ => Chosen::One(draw),
                };
                (chosen, up_to(1 << (self.turns / ALIKE_BEHIND).min(MOST_CALLS_BEHIND.ilog2())))
            }
            _ if self.is_known_to_wait() => (Chosen::Some(draw), up_to(MOST_CALLS)),
            _ => (Chosen::Some(draw), 1),
        }
    }

    /// A boundary is where least must be saved: it is not left because work takes a little longer.
    fn boundary_in_round(&self) -> Boundary {
        let is_long = self.started.elapsed() >= self.limit / UNMEASURED;
        if is_long || GATE.at_boundary().is_none() { self.boundary } else { Boundary::Stays }
    }

    fn say_that_it_stalls(&self) {
        // Without a manager no other job waits.
        let is_overdue = self.peers == Peers::Apart && self.still_since.elapsed() >= self.alone;
        let _ = self.process.link.send(FromShim::Stalled { step: self.step, is_overdue });
    }

    /// Work does not end. It may wait for work of other processes of the job: the manager lets them go on. True: it is
    /// time to let something through here.
    fn stalled(&mut self) -> bool {
        self.say_that_it_stalls();
        self.stalls = self.stalls.wrapping_add(1);
        !self.has_peers() || self.stalls.is_multiple_of(PEERS_FIRST)
    }

    /// Short calls that have not ended in many times their time wait, most likely. What would begin at once goes, which takes no longer
    /// than they were to; and no more than a few calls, for one of them may take long, and so may others. While a function on the host is
    /// running it may be this that has not ended: for these there is [`help_host`](Self::help_host).
    fn help_early(&mut self) {
        let still = self.still_since.elapsed();
        let is_past =
            |expected: &Expected| still >= (expected.rest * MUCH_LONGER).max(self.limit / UNMEASURED);
        let Some(expected) = self.expected.filter(is_past) else { return };
        if self.early >= expected.more || Instant::now() < self.early_at {
            return;
        }
        if host_functions::may_wait(still) {
            return;
        }
        if self.catches == 0 {
            // What is waited for may be up to a thread that is held where it came out of a wait.
            GATE.release();
        }
        // How often calls go when it is over is not for these to say.
        let has_helped = self.has_helped;
        self.early += self.let_through(1, true);
        self.has_helped = has_helped;
        self.early_at = Instant::now() + still / EARLY;
    }

    /// Of a kernel it cannot be seen that it does not only take long. Where it is a function on the host that does not end,
    /// what would begin at once goes, and at times something else, and it is seen whether that has ended it.
    fn help_host(&mut self) {
        let still = self.still_since.elapsed();
        let due = self.process.host_functions.lock().due(still);
        self.patience = self.patience.min(host_functions::AT_ONCE).max(SHORTEST);
        if (due.at_once || due.others) && self.catches == 0 {
            // A thread that is held where it came out of a wait may have what is waited for, as a lock.
            GATE.release();
        }
        let has_helped = self.has_helped;
        let at_once = due.at_once && !self.has_peers();
        let goes_on = at_once && self.let_through(1, true) > 0;
        if goes_on {
            self.process.host_functions.lock().note_at_once();
            self.has_helped_host = true;
        }
        // Where it is not this process's turn nothing is tried.
        if due.others && (goes_on || self.stalled()) {
            let (calls, only_sleep) = {
                let mut functions = self.process.host_functions.lock();
                (functions.begin_try(), functions.only_sleep())
            };
            if !goes_on {
                if due.waits && self.catches_for_host() {
                    self.catch_at_waits();
                    self.has_helped_host = true;
                } else {
                    // Further ones would take as long as the one that only takes long.
                    let then_up_to = if only_sleep { Role::Works } else { Role::Waits };
                    self.has_helped_host |= self.let_through_up_to(then_up_to, calls, false) > 0 && due.waits;
                }
                self.process.host_functions.lock().end_try();
            }
        }
        if at_once {
            self.patience = SHORTEST;
        }
        self.has_helped = has_helped;
    }

    /// Whether threads are caught at their waits for functions on the host that wait: some have ended by what went, and threads have
    /// submitted more of them. So those go on until they wait for their GPU, with all that they do under a lock.
    fn catches_for_host(&mut self) -> bool {
        let least = if self.process.drains.has_caught_for_host.load(Ordering::Relaxed) { 1 } else { ENDED };
        let is_time = !self.has_peers() && !GATE.is_partial() && self.would_come_out();
        if !is_time || self.process.host_functions.lock().ended() < least {
            return false;
        }
        self.catches = self.catches.saturating_add(1);
        self.attempt() != Attempt::Round
    }

    /// Whether work that was there long ago has not ended, or a call is as old: else all of it only takes long. A stream
    /// takes no more calls than it has room for. Where there are as many marks as may be it is they that tell.
    fn surely_waits(&mut self) -> bool {
        self.forget_what_has_ended();
        let marked = (!self.ahead.marks.is_empty()).then_some(self.still_since);
        let work = self.oldest.as_ref().map(|(_, since)| *since).or(marked);
        let is_old = |since: Instant| since.elapsed() >= self.limit / SURELY_WAITS;
        work.is_some_and(is_old) || self.inside_since.is_some_and(is_old)
    }

    fn has_oldest_ended(&self) -> bool {
        self.oldest.as_ref().is_some_and(|(oldest, _)| oldest.is_passed().unwrap_or(true))
    }

    fn forget_what_has_ended(&mut self) {
        if self.has_oldest_ended() {
            self.oldest = None;
        }
    }

    /// Whether work does not only take long: it did not end after it was waited for until values came, or threads are caught.
    fn is_known_to_wait(&self) -> bool {
        self.flows_in_vain >= TOGETHER || self.catches > 0
    }

    /// Each time less is let through: work may simply take long.
    fn slow_down(&mut self) {
        let turns = if self.has_peers() { PEERS_FIRST } else { 1 };
        let (part, longest) =
            if self.catches > 0 { (16, self.limit / UNMEASURED / turns) } else { (4, Duration::MAX) };
        self.pace = (self.pace + self.pace / part).min(longest.max(SHORTEST));
    }
}

/// Marks behind the work of all contexts.
pub struct Probe {
    parts: Vec<Part>,
}

/// The mark of one context, which it keeps alive: the mark goes first.
struct Part {
    kind: Kind,
    _used: Used<'static>,
}

enum Kind {
    Event(Behind),
    Helper(Arc<AtomicU32>),
}

/// A helper's answer while it waits.
const RUNNING: u32 = u32::MAX;

/// Why it is not known that all work has ended.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// It had not at the deadline.
    #[error("the work on the GPU did not end in time")]
    Late,
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// No thread could be started.
    #[error("no helper thread: {0}")]
    Helper(#[from] std::io::Error),
    /// A mark behind all work would break the capture.
    #[error("a stream is capturing")]
    Capture,
}

impl Probe {
    /// Marks the work submitted so far, while no stream captures.
    pub fn start(process: &'static Process) -> Result<Self, DrainError> {
        let mark = |used| Part::start(process, used);
        let mark_all = || process.contexts.keep_all().into_iter().map(mark).collect::<Result<_, _>>();
        let parts = process.captures.unless_any(mark_all).ok_or(DrainError::Capture)??;
        Ok(Self { parts })
    }

    /// Of no work, for tests.
    #[cfg(test)]
    pub fn of_nothing() -> Self {
        Self { parts: Vec::new() }
    }

    /// Whether it has ended.
    pub fn is_passed(&self) -> Result<bool, DrainError> {
        for part in &self.parts {
            if !part.is_passed()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Part {
    fn start(process: &'static Process, used: Used<'static>) -> Result<Self, DrainError> {
        let kind = match Behind::all_of(used.context) {
            Ok(mark) => Kind::Event(mark),
            Err(error) if is_missing(error) => Kind::Helper(help(process, used.context)?),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { kind, _used: used })
    }

    fn is_passed(&self) -> Result<bool, DriverError> {
        match &self.kind {
            Kind::Event(mark) => mark.is_passed(),
            Kind::Helper(answer) => match answer.load(Ordering::Acquire) {
                RUNNING => Ok(false),
                0 => Ok(true),
                _ => Err(DriverError { call: "cuCtxSynchronize", code: CUresult::CUDA_ERROR_UNKNOWN }),
            },
        }
    }
}

fn is_missing(error: DriverError) -> bool {
    matches!(error.code, CUresult::CUDA_ERROR_NOT_FOUND | CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

fn help(process: &'static Process, context: Context) -> std::io::Result<Arc<AtomicU32>> {
    let answer = Arc::new(AtomicU32::new(RUNNING));
    let told = answer.clone();
    threads::spawn("tidegate-drain", move || {
        relax_captures_of_this_thread();
        told.store(wait_for(process, context).is_err().into(), Ordering::Release);
    })?;
    Ok(answer)
}

fn wait_for(process: &Process, context: Context) -> Result<(), DriverError> {
    // Destroyed meanwhile: its work has ended with it.
    let Some(used) = process.contexts.keep(context) else { return Ok(()) };
    let _current = Current::make(used.context)?;
    synchronize().or_else(ends_work)
}

/// What has ended its context has ended the context's work.
fn ends_work(error: DriverError) -> Result<(), DriverError> {
    if error.ends_context() { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_others_work_gets_twice_as_long_as_it_has_taken_before_it_is_thought_to_wait_for_theirs() {
        const MS: Duration = Duration::from_millis(1);
        let drains = Drains::default();
        let time = |peers, ms| drains.time_beside(peers, true, MS * ms);
        assert_eq!(time(Peers::Apart, 100), UNKNOWN_ALONE, "it is not known how long it takes");
        assert_eq!([time(Peers::Apart, 1_500), time(Peers::Apart, 60_000)], [MS * 3_000, MOST_ALONE]);
        assert_eq!(time(Peers::Entangled, 100), Duration::ZERO);
        drains.note(MS / 50, false);
        assert_eq!(time(Peers::Apart, 100), UNKNOWN_ALONE, "there was nothing to drain");
        drains.note(MS * 400, false);
        assert_eq!(time(Peers::Apart, 100), MS * 800);
        assert_eq!(drains.time_beside(Peers::Apart, false, MS * 100), UNKNOWN_ALONE, "much is under way");
        assert_eq!(time(Peers::Entangled, 100), MS * 800, "it may be that they do not wait, after all");
        drains.note(MS * 4_000, false);
        assert_eq!(
            [Peers::Apart, Peers::Entangled].map(|peers| time(peers, 100)),
            [MOST_ALONE, UNKNOWN_ALONE]
        );
        // What waits for others ends right after these were told, and the time before is forgotten.
        (0..20).for_each(|_| drains.note_stall());
        drains.note(MS, false);
        assert_eq!(time(Peers::Entangled, 100), MS * 2);
    }
}
