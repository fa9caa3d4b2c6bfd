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

use crate::contexts::Used;
use crate::driver::{Context, Current, Mark, relax_captures_of_this_thread, synchronize};
use crate::gate::{Boundary, GATE, Pause, Record, Who, drawn};
use crate::log::info;
use crate::process::Process;
use crate::threads;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::CUresult;
use tidegate_ffi::units::Step;
use tidegate_ffi::wire::message::FromShim;

/// The shortest time after which work that has not ended may be waiting for other work.
const SHORTEST: Duration = Duration::from_millis(1);
/// Such a part of the drain limit it is where no drain was measured yet, and at most such a part of it.
const UNMEASURED: u32 = 64;
const LONGEST: u32 = 4;
/// So many times the pace work may go on to be submitted while no value wait ends.
const BUSY: u32 = 8;
/// In one of so many rounds what would wait goes though other threads can.
const WITH_WAITS: u32 = 4;
/// In so many rounds all threads go through at first, then halves of them. So often the gate flows before that, too, if
/// work does not end afterwards.
const TOGETHER: u32 = 2;
/// Where work is known to wait a thread makes up to so many calls in a round.
const MOST_CALLS: u32 = 16;
const LATE_VALUE: &str = "work on the GPU waits for a value that was not submitted in time";
/// Work that was there so long a part of the drain limit before waits for other work, most likely.
const SURELY_WAITS: u32 = 32;
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
}

impl Drains {
    /// Work has ended so long after the gate was closed for the last time.
    fn note(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let before = self.longest.load(Ordering::Relaxed);
        self.longest.store(micros.max(before - before / 16), Ordering::Relaxed);
    }

    /// After this time work that has not ended may be waiting for other work: twice what a drain takes.
    fn patience(&self, limit: Duration) -> Duration {
        let measured = match self.longest.load(Ordering::Relaxed) {
            0 => limit / UNMEASURED,
            micros => Duration::from_micros(micros.saturating_mul(2)),
        };
        measured.max(SHORTEST).min(limit / LONGEST)
    }
}

/// A closing that has come to its end: the gate is to be shut, and all work to have ended.
pub struct Draining {
    process: &'static Process,
    /// Of the `Close`.
    step: Step,
    started: Instant,
    limit: Duration,
    until: Instant,
    /// How long it waits for the end of work before it takes it to wait for other work.
    patience: Duration,
    /// How long it does when it was once.
    pace: Duration,
    /// What threads at a boundary do when others are let through.
    boundary: Boundary,
    /// They were let go on.
    gone_on: bool,
    /// Other processes of the job have memory.
    has_peers: bool,
    /// So often work did not end.
    stalls: u32,
    /// So many rounds were made.
    rounds: u32,
    /// Work that had not ended at an earlier look, and when that was.
    oldest: Option<(Probe, Instant)>,
    /// The gate has flowed since work did not end.
    has_flowed: bool,
    /// After so many times that it flowed work did not end.
    flows_in_vain: u32,
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

impl Draining {
    /// Of a process, until then. `limit` is how long work itself may take.
    pub fn new(
        process: &'static Process,
        step: Step,
        boundary: Boundary,
        limit: Duration,
        until: Instant,
        has_peers: bool,
    ) -> Self {
        let (started, patience, pace) = (Instant::now(), process.drains.patience(limit), SHORTEST);
        Self {
            process,
            step,
            started,
            limit,
            until,
            patience,
            pace,
            boundary,
            gone_on: false,
            has_peers,
            stalls: 0,
            rounds: 0,
            oldest: None,
            has_flowed: false,
            flows_in_vain: 0,
        }
    }

    /// Until when it may take.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Whether threads were let go on from a boundary: none is there any more.
    pub fn has_gone_on(&self) -> bool {
        self.gone_on
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
            if !GATE.close() {
                return Err("barriers are forbidden".into());
            }
            let closed = Instant::now();
            match self.look()? {
                Found::End => {
                    self.process.drains.note(closed.elapsed());
                    return Ok(());
                }
                Found::Capture => {
                    // Shut, a capture could not end.
                    let _ = GATE.reopen_ajar();
                    self.gone_on = true;
                    self.wait_for_captures()?;
                }
                Found::ValueWait => {}
                Found::Stall => {
                    self.flows_in_vain += u32::from(std::mem::take(&mut self.has_flowed));
                    if self.stalled() {
                        self.let_some_through(1);
                    }
                    self.slow_down();
                    self.patience = self.pace;
                }
            }
        }
    }

    /// Waits until no stream captures. Meanwhile the gate flows, so that no further capture begins; but one may have to
    /// for another to end: after a time what is held goes through once.
    fn wait_for_captures(&mut self) -> Result<(), String> {
        let mut patience = self.limit / UNMEASURED;
        while self.process.captures.any() {
            // Ajar, work waits for memory too.
            if !GATE.is_partial() {
                self.gone_on |= self.boundary == Boundary::GoesOn;
                GATE.flow(self.boundary);
            }
            let (mut pause, end) = (Pause::default(), self.until.min(Instant::now() + patience));
            while self.process.captures.any() && pause.before(end) {}
            if Instant::now() >= self.until {
                return Err("a stream is capturing".into());
            }
            // A thread at its boundary may be the one that captures.
            if self.process.captures.any() && !GATE.is_partial() {
                self.gone_on = true;
                self.make_calls(Who::All, 1, true, Boundary::GoesOn, SHORTEST);
            }
            patience += patience / 4;
        }
        Ok(())
    }

    /// While work waits for values that are not submitted, the gate lets through all but what would itself wait.
    fn let_values_come(&mut self) -> Result<(), String> {
        if !self.waits_for_values() {
            return Ok(());
        }
        self.gone_on |= self.boundary == Boundary::GoesOn;
        if self.is_by_chance() {
            return self.let_some_go_until_values_come();
        }
        self.has_flowed = true;
        GATE.flow(self.boundary);
        let mut busy = 0;
        loop {
            GATE.look_again();
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

    /// While the gate flows, threads stay as far apart as they are: after each time the work of one may wait for what
    /// another submits behind its next wait. So some go alone.
    fn let_some_go_until_values_come(&mut self) -> Result<(), String> {
        loop {
            if self.stalled() {
                self.let_next_through();
            }
            let waits = self.process.value_waits.count();
            if self.values_came(self.until.min(Instant::now() + self.pace)) {
                return Ok(());
            }
            if Instant::now() >= self.until {
                return Err(LATE_VALUE.into());
            }
            if self.process.value_waits.count() < waits {
                self.pace = SHORTEST;
            }
            self.slow_down();
        }
    }

    /// A round while values are awaited, of calls that would wait, too.
    fn let_next_through(&mut self) {
        let (who, calls) = self.next_ones();
        self.make_calls(who, calls, true, self.boundary, self.pace);
    }

    /// Ajar, work waits for memory too, and nothing else may go.
    fn waits_for_values(&self) -> bool {
        !GATE.is_partial() && self.process.value_waits.any()
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
        if !GATE.wait_until_empty(until) {
            return self.stalls("a thread did not come out of a driver call in time");
        }
        if self.process.captures.any() {
            return Ok(Found::Capture);
        }
        if self.waits_for_values() {
            return Ok(Found::ValueWait);
        }
        let probe = Probe::start(self.process).map_err(|error| error.to_string())?;
        match probe.wait(until) {
            Ok(()) => Ok(Found::End),
            Err(late @ DrainError::Late) => {
                self.oldest.get_or_insert((probe, Instant::now()));
                self.stalls(&late.to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn stalls(&self, reason: &str) -> Result<Found, String> {
        if Instant::now() >= self.until { Err(reason.into()) } else { Ok(Found::Stall) }
    }

    /// Work may wait for what a thread would submit that waits at the gate: each makes so many calls. Work that would
    /// itself wait goes when there is no other, in every fourth round, and when chance says which threads go.
    pub fn let_some_through(&mut self, calls: u32) {
        let boundary = self.boundary_in_round();
        if GATE.is_partial() || !GATE.holds_threads(boundary) {
            return;
        }
        info!("work does not end: what waits at the gate goes through");
        self.gone_on |= boundary == Boundary::GoesOn;
        // Where others can go all the time, what would wait goes now and then all the same.
        let is_turn_of_waits = self.rounds % WITH_WAITS == WITH_WAITS - 1 || self.is_by_chance();
        let every_role = is_turn_of_waits || GATE.count_waiting(false) == 0;
        let (who, calls_of_half) = self.next_ones();
        self.make_calls(who, calls.max(calls_of_half), every_role, boundary, self.patience);
    }

    /// Each of those that wait at the gate goes through so often; all of it takes no longer than so many times that time.
    fn make_calls(&self, who: Who, calls: u32, every_role: bool, boundary: Boundary, each: Duration) {
        let mut threads = GATE.choose(every_role, who);
        let end = || self.until.min(Instant::now() + each);
        GATE.round(&threads, boundary, end());
        for _ in 1..calls {
            // They are on their way to their next calls, or wait on the host.
            let is_back = |thread: &&'static Record| thread.waits_at_gate();
            let (mut pause, soon) = (Pause::default(), self.until.min(Instant::now() + SHORTEST));
            while !threads.iter().all(is_back) && pause.before(soon) {}
            if who == Who::All {
                threads = GATE.choose(false, who);
            }
            if !threads.iter().any(is_back) {
                return;
            }
            GATE.round(&threads, boundary, end());
        }
    }

    /// Who goes through in the next round. Threads that go together stay as far apart as they are: where one lets go what
    /// another waits for, and that one waits for the next such thing, nothing is gained. So each half goes alone in turn.
    ///
    /// Where flowing was in vain, what ends one wait may stand behind another, which ends by a third thread's work: then
    /// chance says which threads go, and how far. Any order of the halves is one that some program keeps in step with.
    fn next_ones(&mut self) -> (Who, u32) {
        let round = self.rounds;
        self.rounds = round.saturating_add(1);
        let Some(beyond) = round.checked_sub(TOGETHER) else { return (Who::All, 1) };
        if self.is_by_chance() {
            let draw = drawn(self.step.0 as u32, round);
            return (Who::Drawn(draw), 1 << (draw % (MOST_CALLS.ilog2() + 1)));
        }
        let calls = if self.surely_waits() { MOST_CALLS } else { 1 };
        (half(beyond, GATE.halves()).map_or(Who::All, Who::Half), calls)
    }

    /// A boundary is where least must be saved: it is not left because work takes a little longer.
    fn boundary_in_round(&self) -> Boundary {
        let is_long = self.started.elapsed() >= self.limit / UNMEASURED;
        if is_long || GATE.at_boundary().is_none() { self.boundary } else { Boundary::Stays }
    }

    /// Work does not end. It may wait for work of other processes of the job: the manager lets them go on. True: it is
    /// time to let something through here.
    fn stalled(&mut self) -> bool {
        // Without a manager no other job waits.
        let _ = self.process.link.send(FromShim::Stalled { step: self.step });
        self.stalls = self.stalls.wrapping_add(1);
        !self.has_peers || self.stalls.is_multiple_of(PEERS_FIRST)
    }

    /// Whether work that was there long ago has not ended: else all of it only takes long.
    fn surely_waits(&mut self) -> bool {
        let Some((oldest, since)) = &self.oldest else { return false };
        if oldest.is_passed().unwrap_or(true) {
            self.oldest = None;
            return false;
        }
        since.elapsed() >= self.limit / SURELY_WAITS
    }

    /// Whether flowing was in vain often enough.
    fn is_by_chance(&self) -> bool {
        self.flows_in_vain >= TOGETHER
    }

    /// Each time less is let through: work may simply take long. Where flowing was in vain it is known to wait.
    fn slow_down(&mut self) {
        let longest = if self.is_by_chance() { self.limit / UNMEASURED } else { Duration::MAX };
        self.pace = (self.pace + self.pace / 4).min(longest.max(SHORTEST));
    }
}

/// Which of so many halves goes alone in a round; `None`: there are none. All do, one after the other, for one round each;
/// then in the other direction for two, and so on: so each comes to be ahead of all others.
fn half(round: u32, halves: u32) -> Option<u32> {
    let (mut left, mut times) = (round, 1u32);
    loop {
        let all = halves.checked_mul(times).filter(|all| *all > 0)?;
        if left < all {
            let nth = left / times;
            return Some(if times.ilog2() % 2 == 0 { nth } else { halves - 1 - nth });
        }
        (left, times) = (left - all, times.checked_mul(2)?);
    }
}

/// Marks behind the work of all contexts.
pub struct Probe {
    parts: Vec<Part>,
}

/// The mark of one context.
struct Part {
    kind: Kind,
    used: Used<'static>,
}

enum Kind {
    Event(Option<Mark>),
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
}

impl Probe {
    /// Marks the work submitted so far.
    pub fn start(process: &'static Process) -> Result<Self, DrainError> {
        let contexts = process.contexts.keep_all();
        let parts = contexts.into_iter().map(|used| Part::start(process, used)).collect::<Result<_, _>>()?;
        Ok(Self { parts })
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

    /// Waits until it has ended.
    pub fn wait(&self, until: Instant) -> Result<(), DrainError> {
        let mut pause = Pause::default();
        while !self.is_passed()? {
            if !pause.before(until) {
                return Err(DrainError::Late);
            }
        }
        Ok(())
    }
}

impl Part {
    fn start(process: &'static Process, used: Used<'static>) -> Result<Self, DrainError> {
        let current = Current::make(used.context)?;
        let mark = Mark::after_all_of(used.context);
        drop(current);
        let kind = match mark {
            Ok(mark) => Kind::Event(Some(mark)),
            Err(error) if is_missing(error) => Kind::Helper(help(process, used.context)?),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { kind, used })
    }

    fn is_passed(&self) -> Result<bool, DriverError> {
        match &self.kind {
            Kind::Event(mark) => mark.as_ref().map_or(Ok(true), Mark::is_passed),
            Kind::Helper(answer) => match answer.load(Ordering::Acquire) {
                RUNNING => Ok(false),
                0 => Ok(true),
                _ => Err(DriverError { call: "cuCtxSynchronize", code: CUresult::CUDA_ERROR_UNKNOWN }),
            },
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // An event is destroyed with its context current, and before the context is let go.
        if let Kind::Event(mark) = &mut self.kind {
            let _current = Current::make(self.used.context);
            drop(mark.take());
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
    synchronize()
}

#[cfg(test)]
mod tests {
    use super::half;

    #[test]
    fn each_half_goes_alone_again_and_again_in_both_directions() {
        let order =
            |halves, rounds| (0..rounds).map(|round| half(round, halves).unwrap()).collect::<Vec<_>>();
        assert_eq!(order(2, 10), [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(order(4, 12), [0, 1, 2, 3, 3, 3, 2, 2, 1, 1, 0, 0]);
        assert_eq!(half(7, 0), None);
    }

    #[test]
    fn whoever_is_behind_comes_to_be_ahead() {
        // Of two threads that each make a step in a round, whichever it is.
        for behind in [0, 1] {
            let mut lead = -1;
            let is_ahead = (0..12).any(|round| {
                lead += if half(round, 2) == Some(behind) { 1 } else { -1 };
                lead > 0
            });
            assert!(is_ahead, "{behind}");
        }
    }
}
