//! Carries out the manager's orders, in the order in which they came: the gate thread.
//!
//! Invariant: `Drained` is said only when nobody is inside the gate, nothing is being mapped and
//! all work has ended; from then until `Open` or `Ajar` the live bytes of the process do not change.

use crate::drain::Draining;
use crate::driver::{Current, relax_captures_of_this_thread};
use crate::gate::{Boundary, BoundaryWait, GATE, Goal, Record};
use crate::link::{Gone, Order};
use crate::liveness::Stop;
use crate::log::{info, warning};
use crate::marks::{Calls, Marks};
use crate::process::Process;
use crate::tenant::Tenant;
use crate::window::Window;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tidegate_ffi::units::{Step, TenantId, Units};
use tidegate_ffi::wire::message::{Drained, FromShim, Peers, ToShim};

/// Ticks without a submission after which it may count as idle.
const QUIET_TICKS: u32 = 2;
/// A process that has submitted nothing for such a part of the deadline does not come to its collective: what it waits for
/// comes after the collective of another.
const QUIET_PART: u32 = 8;
/// Longer waits than this are as good as for ever, and safe to add to a moment.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The gate thread's whole life.
pub fn carry_out(process: &'static Process, orders: &Receiver<Order>) {
    relax_captures_of_this_thread();
    let (mut watch, mut window) = (Watch::default(), Window::default());
    if GATE.is_open() {
        window.open(process);
    }
    loop {
        match watch.next(process, orders, &window) {
            Some(Order::Over(gone)) => return part(process, &gone),
            Some(Order::Message(message, handles)) => {
                // They use contexts, and the program must be able to destroy its contexts while they are not looked at.
                if keeps_marks_waiting(&message) {
                    process.ahead.lock().let_go();
                }
                let failure = failure_of(&message);
                let order = AssertUnwindSafe(|| obey(process, message, handles, &mut watch, &mut window));
                if catch_unwind(order).is_err() {
                    warning!("an order of the manager failed in a way that was not foreseen");
                    own_up(process, failure, &mut window);
                }
                // Orders may come all the time.
                if GATE.is_metered() {
                    window.look(process, watch.is_set());
                }
            }
            None => {
                let look = AssertUnwindSafe(|| {
                    window.look(process, watch.is_set());
                    if watch.is_due() {
                        watch.tick(process, &mut process.ahead.lock().marks);
                    }
                });
                if catch_unwind(look).is_err() {
                    warning!("a look at the work under way failed in a way that was not foreseen");
                    // No call waits for the next one.
                    window.release(process);
                }
            }
        }
    }
}

/// Whether marks would not be looked at for long: while the order is carried out, or after it, behind a gate that is ajar. A
/// closing looks at them itself.
fn keeps_marks_waiting(order: &ToShim) -> bool {
    matches!(order, ToShim::Unmap { .. } | ToShim::Map { .. } | ToShim::Ajar)
}

/// What the manager is told when an order fails in a way that was not foreseen. `None`: it does not
/// wait for an answer.
fn failure_of(order: &ToShim) -> Option<FromShim> {
    let reason = || "an error in Tidegate itself".to_string();
    match *order {
        ToShim::Close { step, .. } => Some(FromShim::NotDrained { step, reason: reason() }),
        ToShim::Unmap { step, .. } | ToShim::Map { step, .. } => {
            Some(FromShim::Failed { step, reason: reason() })
        }
        ToShim::Recall { tenant } => {
            Some(FromShim::Return { tenant, pieces: Vec::new(), unused: Units(0), recalled: true })
        }
        _ => None,
    }
}

/// Nobody waits for an order that failed: the manager is told, and a closing is over.
fn own_up(process: &'static Process, failure: Option<FromShim>, window: &mut Window) {
    if matches!(failure, Some(FromShim::NotDrained { .. })) {
        reopen(process, window);
    }
    // The reader notices the end of the session.
    failure.into_iter().for_each(|failure| _ = process.link.send(failure));
}

fn obey(
    process: &'static Process,
    message: ToShim,
    handles: Vec<OwnedFd>,
    watch: &mut Watch,
    window: &mut Window,
) {
    let answered = match message {
        ToShim::Close { step, boundary, at_collective, deadline_ms, wait_ms, drain_ms, calls, peers } => {
            let [deadline, wait, drain] = [deadline_ms, wait_ms, drain_ms].map(ms);
            let calls = if GATE.is_open() { 0 } else { calls };
            let closing = Closing { step, boundary, at_collective, deadline, wait, drain, calls, peers };
            close(process, closing, window)
        }
        ToShim::Unmap { step, tenant, pieces } => {
            let is_allowed = !GATE.is_open() && !GATE.is_ajar();
            let outcome = change(process, tenant, is_allowed, |tenant| {
                // Others want memory of the GPU.
                process.managed.evict(process);
                tenant.unmap(process, &pieces).map_err(|error| error.to_string())
            });
            process.link.send(done_or_failed(step, outcome))
        }
        ToShim::Map { step, tenant, pieces } => {
            let ordered = pieces.len();
            let outcome = change(process, tenant, !GATE.is_open(), |tenant| {
                tenant.map(process, pieces, handles).map_err(|error| error.to_string())
            });
            GATE.notice_arrival();
            process.link.send(match outcome {
                Ok(mapped) if mapped < ordered => {
                    FromShim::MappedSome { step, pieces: u32::try_from(mapped).unwrap_or(u32::MAX) }
                }
                outcome => done_or_failed(step, outcome.map(drop)),
            })
        }
        ToShim::Ajar => {
            GATE.ajar(window.begin_ajar());
            Ok(())
        }
        ToShim::Open => {
            open(process, window);
            Ok(())
        }
        ToShim::Recall { tenant } => {
            recall(process, tenant);
            Ok(())
        }
        ToShim::Watch { tick_micros } => {
            watch.set(Duration::from_micros(tick_micros.into()));
            window.set_contended(watch.is_set());
            window.look(process, watch.is_set());
            Ok(())
        }
        // Answers go through the reader to whoever asked.
        ToShim::Welcome { .. }
        | ToShim::Refused { .. }
        | ToShim::Heard
        | ToShim::AttachRefused { .. }
        | ToShim::Attached { .. }
        | ToShim::Room { .. }
        | ToShim::Leased { .. }
        | ToShim::Lent { .. }
        | ToShim::Held { .. }
        | ToShim::LeaseRefused { .. } => Ok(()),
    };
    // The reader notices the end of the session too: it is the next order.
    let _: Result<(), Gone> = answered;
}

/// The session is over. Who is open goes on with what it has. Who is stopped, or ajar, may miss memory that
/// no manager will give back: it is never let go on.
fn part(process: &Process, gone: &Gone) {
    if GATE.is_open() {
        // No other job's turn is kept waiting.
        process.ahead.watch(0, Some(Duration::MAX));
        GATE.open();
        return info!("{gone}");
    }
    gone.explain(format_args!("this process was stopped and cannot go on: its CUDA calls fail from now on"));
    GATE.fail();
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).min(LONGEST)
}

/// A `Close`.
struct Closing {
    step: Step,
    boundary: u64,
    /// It is a collective's number.
    at_collective: bool,
    deadline: Duration,
    wait: Duration,
    drain: Duration,
    /// Not zero: the gate is closed, and `Drained` was said. Work of another process waits for what stands at the gate.
    calls: u32,
    peers: Peers,
}

impl Closing {
    /// Whether other processes of the job have memory.
    fn has_peers(&self) -> bool {
        self.peers != Peers::None
    }

    /// The processes of a job stop at one boundary: a process that has come to it stays there. What others of the job wait for
    /// does not come after it.
    fn at_boundary(&self) -> Boundary {
        if self.boundary > 0 { Boundary::Stays } else { Boundary::GoesOn }
    }
}

/// For how long the process has submitted nothing.
struct Quiet {
    since: Instant,
    submissions: u64,
}

impl Default for Quiet {
    fn default() -> Self {
        Self { since: Instant::now(), submissions: Record::submissions() }
    }
}

impl Quiet {
    fn time(&mut self) -> Duration {
        let now = Self::default();
        if now.submissions != self.submissions {
            *self = now;
        }
        self.since.elapsed()
    }
}

fn close(process: &'static Process, closing: Closing, window: &mut Window) -> Result<(), Gone> {
    let told = Instant::now();
    process.publish_gate(1);
    let is_for_wait = closing.deadline.is_zero() && process.waits.are_frequent(closing.wait);
    if closing.has_peers() && !closing.deadline.is_zero() {
        // What is held here may be what another process needs on its way there.
        window.release(process);
    }
    let waited = if closing.calls > 0 {
        // It takes none of the descriptors that the program has left.
        process.spares.keep(process.tenants.all().len());
        if GATE.at_boundary().is_some() { BoundaryWait::Reached } else { BoundaryWait::Deadline }
    } else {
        let (goal, time) = match closing.boundary {
            _ if is_for_wait => (Goal::Wait, closing.wait),
            collective if closing.at_collective => (Goal::Collective(collective), closing.deadline),
            boundary => (Goal::Boundary(boundary), closing.deadline),
        };
        let mut quiet = Quiet::default();
        let patience = time / QUIET_PART;
        let mut look = || {
            let is_waited_for = !closing.at_collective || quiet.time() < patience;
            let next = window.look_before_closing(process, is_for_wait).min(patience);
            is_waited_for.then(|| Instant::now() + next)
        };
        GATE.wait_for(goal, Instant::now() + time, Some(&mut look))
    };
    if waited == BoundaryWait::GivenUp {
        stay(process, window);
        return Ok(());
    }
    if let BoundaryWait::Passed(boundary) = waited {
        stay(process, window);
        return process.link.send(FromShim::Passed { step: closing.step, boundary });
    }
    let started = Instant::now();
    // At a common boundary: what is in flight may wait for work of others that are on their way there.
    let others = if closing.boundary > 0 { told + closing.deadline } else { started };
    let until = started.max(others) + closing.drain;
    match drain_and_report(process, &closing, waited, started, until, window) {
        Ok((drained, maps)) => {
            if closing.calls == 0 {
                process.count_switch();
            }
            process.publish_gate(2);
            let with = |outstanding| FromShim::Drained(Drained { outstanding, ..drained });
            // Nobody was told, and nobody will take anything away.
            tell_uses(process)
                .and_then(|()| process.link.send_drained(with, maps))
                .inspect_err(|_| stay(process, window))
        }
        Err(reason) => {
            info!("not drained: {reason}");
            reopen(process, window);
            process.link.send(FromShim::NotDrained { step: closing.step, reason })
        }
    }
}

/// Says in which order described work has used the tenants' memory, where it was not said before.
fn tell_uses(process: &Process) -> Result<(), Gone> {
    let tenants = process.tenants.all().into_iter();
    tenants
        .filter_map(|tenant| Some(FromShim::Used { tenant: tenant.id, slots: tenant.end_slice()? }))
        .try_for_each(|uses| process.link.send(uses))
}

fn drain_and_report(
    process: &'static Process,
    closing: &Closing,
    waited: BoundaryWait,
    started: Instant,
    until: Instant,
    window: &mut Window,
) -> Result<(Drained, Vec<OwnedFd>), String> {
    // Who has not come to the boundary is not held there.
    process.host_functions.lock().prepare(closing.has_peers(), window.time_of_call());
    let at = if waited == BoundaryWait::Reached { closing.at_boundary() } else { Boundary::GoesOn };
    let under_way = window.under_way(process);
    let (is_little, pace) = (window.is_little(under_way), window.pace());
    // Alone, calls are not counted at first: where many are under way it is seen, too, whether they only take long.
    // Beside a capture it is not known how many are.
    let captures = process.captures.any();
    let is_limited = GATE.is_metered() || window.are_calls_short();
    let is_metered = (is_limited || !is_little || captures) && window.counts_calls();
    let (time, is_late) = (window.span().max(window.time_of_least()), window.take_late());
    let mut ahead = process.ahead.lock();
    let passed = ahead.marks.passed();
    let still_for = ahead.marks.still_for();
    let rest = window.rest_of(under_way, still_for);
    let most_under_way = Calls::now(process).all.saturating_sub(passed.all);
    let mut draining =
        Draining::new(process, closing.step, at, closing.drain, until, closing.peers, &mut ahead);
    draining = match closing.peers {
        Peers::None if is_metered => {
            let expected = window.expect(under_way, still_for);
            draining.of_metered(most_under_way, pace, rest, is_late).expecting(expected)
        }
        Peers::None => draining,
        Peers::Apart | Peers::Entangled => {
            draining.beside_others(is_little, time, window.had(under_way, still_for))
        }
    };
    if closing.calls > 0 {
        draining.let_some_through(closing.calls);
    }
    let before = GATE.count_let_through();
    let outcome = draining.run();
    let let_through = GATE.count_let_through().wrapping_sub(before);
    let (has_helped, has_helped_host) = (draining.has_helped(), draining.has_helped_host());
    let (goes_on_alone, goes_on_late) = (draining.goes_on_alone(), draining.goes_on_late());
    let (has_gone_on, until) = (draining.has_gone_on(), draining.until());
    let marks = &mut draining.leave().marks;
    if outcome.is_ok() {
        marks.end(Calls::now(process));
    }
    let ended = if outcome.is_ok() { under_way } else { marks.passed().counted_since(passed) };
    drop(ahead);
    if outcome.is_err() && goes_on_late && is_metered && !captures {
        window.note_late(under_way, started.elapsed());
    } else if has_helped && !goes_on_alone && is_metered && !closing.has_peers() {
        window.note_helped(let_through);
    } else if !has_helped && !has_helped_host && !captures {
        window.note_ended(ended, started.elapsed());
    }
    outcome?;
    let waited = if has_gone_on { BoundaryWait::Deadline } else { waited };
    let took = started.elapsed();
    process.link.hold();
    // What had been handed on before is mapped, and known, when the last arrival is gone.
    if !GATE.wait_until_empty(until) {
        return Err("pieces that came were not mapped in time".into());
    }
    report(process, closing, waited, took)
}

/// What is said at the end of a closing, with the live maps; the open questions are filled in
/// when it is sent.
fn report(
    process: &Process,
    closing: &Closing,
    waited: BoundaryWait,
    took: Duration,
) -> Result<(Drained, Vec<OwnedFd>), String> {
    let stop = Stop { now: process.now(), at_boundary: GATE.at_boundary() };
    let tenants = process.tenants.all();
    if tenants.iter().all(|tenant| tenant.has_no_pieces()) {
        // There will be no order to take memory away.
        process.managed.evict(process);
    }
    let maps = tenants.iter().map(|tenant| process.spares.write(&tenant.live_map(stop)));
    let maps = maps.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    for tenant in &tenants {
        let unmapped = with_context_of(process, tenant, |tenant| tenant.unmap_arriving(process));
        unmapped.map_err(|error| error.to_string())?;
    }
    let drained = Drained {
        step: closing.step,
        at_boundary: waited == BoundaryWait::Reached,
        drain_micros: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        tenants: tenants.iter().map(|tenant| tenant.id).collect(),
        outstanding: Vec::new(),
        boundaries: stop.now.boundaries,
    };
    Ok((drained, maps))
}

/// There was no closing after all.
fn reopen(process: &'static Process, window: &mut Window) {
    stay(process, window);
    process.link.hand_on();
}

/// The gate is open again, or ajar if it was before: what is missing has not come meanwhile.
fn stay(process: &'static Process, window: &mut Window) {
    if GATE.reopen_ajar() {
        process.publish_gate(2);
    } else {
        open(process, window);
    }
}

fn open(process: &'static Process, window: &mut Window) {
    let tenants = process.tenants.all();
    process.spares.keep(tenants.len());
    tenants.into_iter().for_each(Tenant::reopen);
    process.publish_gate(0);
    window.open(process);
}

/// Changes a tenant's mappings, with a context of its GPU current, if the gate allows it.
fn change<T>(
    process: &Process,
    tenant: TenantId,
    is_allowed: bool,
    change: impl FnOnce(&Tenant) -> Result<T, String>,
) -> Result<T, String> {
    if !is_allowed {
        return Err(if GATE.is_ajar() { "the gate is ajar" } else { "the gate is open" }.into());
    }
    let tenant = find(process, tenant).ok_or_else(|| format!("{tenant} is not of this process"))?;
    with_context_of(process, tenant, change)
}

fn with_context_of<T>(process: &Process, tenant: &Tenant, work: impl FnOnce(&Tenant) -> T) -> T {
    let used = process.contexts.keep_one_of(tenant.device);
    let current = used.as_ref().and_then(|used| Current::make(used.context).ok());
    let result = work(tenant);
    drop(current);
    result
}

fn find(process: &Process, id: TenantId) -> Option<&'static Tenant> {
    process.tenants.all().into_iter().find(|tenant| tenant.id == id)
}

fn done_or_failed(step: Step, outcome: Result<(), String>) -> FromShim {
    match outcome {
        Ok(()) => FromShim::Done { step },
        Err(reason) => FromShim::Failed { step, reason },
    }
}

fn recall(process: &Process, tenant: TenantId) {
    let Some(known) = find(process, tenant) else {
        return process.link.answer_recall(tenant, Vec::new(), Units(0));
    };
    let outcome = with_context_of(process, known, |tenant| tenant.answer_recall(process));
    if let Err(error) = outcome {
        info!("memory that nobody uses could not be given back: {error}");
    }
}

/// The reader has failed: there will be no orders any more.
fn silenced() -> Order {
    Order::Over(Gone::because("it cannot be heard any more"))
}

/// Notices that a process submits nothing while other jobs wait.
#[derive(Default)]
struct Watch {
    /// How often it looks; zero: it does not.
    tick: Duration,
    /// When it looked last.
    looked: Option<Instant>,
    submissions: u64,
    quiet_ticks: u32,
    said: bool,
}

impl Watch {
    fn set(&mut self, tick: Duration) {
        let looked = Some(Instant::now());
        *self = Self { tick, looked, submissions: Record::submissions(), ..Self::default() };
    }

    /// Whether it looks.
    fn is_set(&self) -> bool {
        !self.tick.is_zero()
    }

    /// Whether it is time to look.
    fn is_due(&mut self) -> bool {
        let is_due = self.is_set() && self.looked.is_none_or(|looked| looked.elapsed() >= self.tick);
        if is_due {
            self.looked = Some(Instant::now());
        }
        is_due
    }

    /// The next order; `None` at a tick, or when the window is to be looked at.
    fn next(&self, process: &Process, orders: &Receiver<Order>, window: &Window) -> Option<Order> {
        let tick = window.pause(process, self.is_set().then_some(self.tick));
        if tick == Duration::MAX {
            return Some(orders.recv().unwrap_or_else(|_| silenced()));
        }
        match orders.recv_timeout(tick) {
            Ok(order) => Some(order),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(silenced()),
        }
    }

    fn tick(&mut self, process: &'static Process, marks: &mut Marks) {
        let submissions = Record::submissions();
        if GATE.is_open() {
            marks.set(process);
        }
        if submissions != self.submissions || Record::is_anybody_inside() || !GATE.is_open() {
            // At a closed gate it is said by the thread that comes to it.
            if self.said && GATE.is_open() && process.link.has_manager() {
                let _ = process.link.send(FromShim::Waiting);
            }
            *self = Self { tick: self.tick, looked: self.looked, submissions, ..Self::default() };
            return;
        }
        self.quiet_ticks = self.quiet_ticks.saturating_add(1);
        // A word for the moment: for a manager that comes later it would be none.
        let is_quiet = !self.said && self.quiet_ticks >= QUIET_TICKS && process.link.has_manager();
        if is_quiet && Self::has_drained(process, marks) {
            self.said = process.link.send(FromShim::Idle).is_ok();
        }
    }

    /// Whether the work submitted so far has ended; sets a mark behind it, if there is none.
    fn has_drained(process: &'static Process, marks: &mut Marks) -> bool {
        // No mark tells of the work of a context that a thread is ending.
        if process.contexts.is_one_ending() {
            return false;
        }
        process.forget_dead_captures();
        if process.captures.any() {
            return process.captures.has_ended_what_is_beside();
        }
        let submissions = process.captures.submissions();
        if marks.marked().all < submissions && !marks.set_now(process, false) {
            return false;
        }
        marks.passed().all >= submissions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_for_an_answer_is_told_of_a_failure() {
        let (step, tenant) = (Step(7), TenantId(1));
        let (boundary, deadline_ms, wait_ms, drain_ms) = (0, 1, 0, 1);
        let close = ToShim::Close {
            step,
            boundary,
            at_collective: false,
            deadline_ms,
            wait_ms,
            drain_ms,
            calls: 0,
            peers: Peers::None,
        };
        assert!(matches!(failure_of(&close), Some(FromShim::NotDrained { step: Step(7), .. })));
        let map = ToShim::Map { step, tenant, pieces: Vec::new() };
        assert!(matches!(failure_of(&map), Some(FromShim::Failed { step: Step(7), .. })));
        let unmap = ToShim::Unmap { step, tenant, pieces: Vec::new() };
        assert!(matches!(failure_of(&unmap), Some(FromShim::Failed { step: Step(7), .. })));
        assert!(matches!(failure_of(&ToShim::Recall { tenant }), Some(FromShim::Return { .. })));
        assert_eq!(failure_of(&ToShim::Open), None);
    }
}
