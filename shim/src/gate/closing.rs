//! The slow side of the gate: who closes it, who waits at a boundary, what is still arriving.
//!
//! Invariant: `openings` counts how often the gate has opened, and `times` how often threads that are held were let go on, so
//! a thread that is held cannot sleep through either of them, though it does not sleep yet.

use super::{Boundary, Record, Stamp, is_chosen};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Condvar, Mutex, constructor};
use std::time::Instant;

/// What a closing waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The boundary with this number (0: the next), or a later one.
    Boundary(u64),
    /// That a collective with this number, or a later one, is about to be launched.
    Collective(u64),
    /// That a thread comes out of a wait for its GPU, or to a boundary.
    Wait,
}

/// What is done while a boundary is waited for, at first and when it says so: when next, at the latest. `None`: it is not waited
/// for any more.
pub type Look<'a> = &'a mut dyn FnMut() -> Option<Instant>;

/// How a wait for a boundary ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryWait {
    /// The program is at the boundary and waits there.
    Reached,
    /// The deadline came first, or it is not waited for any more.
    Deadline,
    /// The program had passed it already, and goes on: the number of its last boundary.
    Passed(u64),
    /// The session is over; nobody wants the gate closed any more.
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Until a boundary with at least this number.
    Closing(u64),
    /// Until a collective with at least this number is about to be launched.
    ClosingAtCollective(u64),
    /// Until a thread comes out of a wait for its GPU, or to a boundary.
    ClosingAtWait,
    AtBoundary,
    /// A thread is about to launch the collective that was waited for, or a later one.
    AtCollective(u64),
    Closed,
}

impl Phase {
    /// What was waited for has come.
    fn is_reached(self) -> bool {
        matches!(self, Phase::AtBoundary | Phase::AtCollective(_))
    }
}

struct State {
    phase: Phase,
    /// The number of the program's last boundary.
    last: u64,
    /// The same of the collectives that it has begun to launch.
    last_collective: u64,
    /// Who has come to the boundary, and is done with what it has freed.
    at_boundary: Option<Stamp>,
    openings: u64,
    /// Threads that wait for an opening.
    held: u32,
    /// Until the next opening each thread that comes out of a wait for its GPU is held.
    catches: bool,
    /// Threads that are held were let go on so often before the next opening.
    times: u64,
    /// By this number chance said last which of them go.
    draw: u32,
    /// Whether those at a boundary may.
    boundary: Boundary,
    given_up: bool,
}

impl State {
    /// A thread is held from now on: all that happens after this moment is for it, too.
    fn hold(&mut self) -> Held {
        self.held += 1;
        Held { openings: self.openings, times: self.times }
    }
}

/// What a thread that is held has seen when that began.
struct Held {
    openings: u64,
    times: u64,
}

/// See the module.
pub struct Closing {
    state: Mutex<State>,
    changed: Condvar,
    arrivals: AtomicU32,
}

/// Pieces that came from the manager and are being mapped by the thread that asked for them.
/// While it lives, the gate does not count as shut.
///
/// **Why the reader makes it.** The manager answers a `Lease` while the job is open, but its
/// `Close` may follow at once. The thread that asked may not even have woken up when the gate
/// thread shuts the gate, and it would map pieces that the live map does not tell of. So the
/// reader, which sees `Leased` and `Close` in the manager's order, counts the arrival before it
/// hands either of them on; the thread uncounts it once the pieces are mapped and known.
pub struct Arrival {
    closing: &'static Closing,
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.closing.arrivals.fetch_sub(1, Ordering::Release);
    }
}

impl Closing {
    constructor! {
        pub fn new() -> Self {
            Self {
                state: Mutex::new(State { phase: Phase::Open, last: 0, last_collective: 0, at_boundary: None, openings: 0, held: 0, catches: false, times: 0, draw: 0, boundary: Boundary::Stays, given_up: false }),
                changed: Condvar::new(),
                arrivals: AtomicU32::new(0),
            }
        }
    }

    pub fn start_closed(&self) {
        self.state.lock().phase = Phase::Closed;
    }

    /// A target that the program has passed is not waited for: a process that waits for others of its job would stop later than
    /// they do.
    fn passed(state: &State, phase: Phase) -> Option<u64> {
        match phase {
            Phase::Closing(target) if target > 0 && state.last >= target => Some(state.last),
            Phase::ClosingAtCollective(target) if state.last_collective >= target => {
                Some(state.last_collective)
            }
            _ => None,
        }
    }

    pub fn wait_for(&self, goal: Goal, deadline: Instant, mut look: Option<Look<'_>>) -> BoundaryWait {
        let phase = match goal {
            Goal::Boundary(target) => Phase::Closing(target),
            Goal::Collective(target) => Phase::ClosingAtCollective(target),
            Goal::Wait => Phase::ClosingAtWait,
        };
        let mut state = self.state.lock();
        if let Some(boundary) = Self::passed(&state, phase) {
            return BoundaryWait::Passed(boundary);
        }
        state.phase = phase;
        state.at_boundary = None;
        loop {
            if state.given_up {
                return BoundaryWait::GivenUp;
            }
            if state.phase.is_reached() {
                return BoundaryWait::Reached;
            }
            let mut next = (Instant::now() < deadline).then_some(deadline);
            if let (Some(_), Some(look)) = (next, &mut look) {
                // Nothing is held meanwhile: it may take a moment.
                drop(state);
                next = look();
                state = self.state.lock();
            }
            let Some(next) = next else {
                let reached = state.phase.is_reached();
                return if reached { BoundaryWait::Reached } else { BoundaryWait::Deadline };
            };
            if !state.given_up && !state.phase.is_reached() {
                self.changed.wait_until(&mut state, next.min(deadline));
            }
        }
    }

    pub fn at_boundary(&self) -> Option<Stamp> {
        self.state.lock().at_boundary
    }

    pub fn set_closed(&self) {
        self.state.lock().phase = Phase::Closed;
    }

    /// From now on, until the next opening, each thread that comes out of a wait for its GPU, or to a boundary, is held. Of
    /// those that are held already some go on first, as chance says by the draw, if there is one.
    pub fn catch(&self, draw: Option<u32>, boundary: Boundary) {
        let mut state = self.state.lock();
        state.phase = Phase::Closed;
        state.catches = true;
        if let Some(draw) = draw {
            (state.draw, state.boundary) = (draw, boundary);
            state.times += 1;
            self.changed.notify_all();
        }
    }

    /// No thread is caught any more, and those that were go on, but for those at a boundary.
    pub fn release(&self) {
        let mut state = self.state.lock();
        (state.catches, state.draw, state.boundary) = (false, 0, Boundary::Stays);
        state.times += 1;
        self.changed.notify_all();
    }

    pub fn set_open(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Open;
        state.catches = false;
        state.at_boundary = None;
        state.openings += 1;
        self.changed.notify_all();
    }

    pub fn give_up(&self) {
        self.state.lock().given_up = true;
        self.changed.notify_all();
    }

    /// Waits for the next opening if the gate is closed or was waiting for boundary `count`.
    pub fn boundary(&self, count: u64, announce: impl FnOnce()) {
        let mut state = self.state.lock();
        state.last = count;
        match state.phase {
            Phase::Open => return,
            Phase::Closing(target) if count < target => return,
            Phase::ClosingAtCollective(_) | Phase::AtCollective(_) => return,
            Phase::Closing(_) | Phase::ClosingAtWait => {
                state.phase = Phase::AtBoundary;
                state.at_boundary = Some(Stamp::now());
                self.changed.notify_all();
            }
            Phase::AtBoundary | Phase::Closed => {}
        }
        let held = state.hold();
        drop(state);
        self.wait_for_opening_after(held, true, announce);
    }

    /// Waits for the next opening if the gate was waiting for collective `number`, or for one before it: it is not launched
    /// yet. What the thread has freed it may be about to use.
    pub fn collective(&self, number: u64, announce: impl FnOnce()) {
        let mut state = self.state.lock();
        state.last_collective = state.last_collective.max(number);
        match state.phase {
            Phase::ClosingAtCollective(target) if number >= target => {
                state.phase = Phase::AtCollective(target);
                self.changed.notify_all();
            }
            // Another thread's, for another GPU.
            Phase::AtCollective(target) if number >= target => {}
            _ => return,
        }
        let held = state.hold();
        drop(state);
        self.wait_for_opening_after(held, true, announce);
    }

    /// Waits for the next opening if the gate was waiting for a wait, or catches threads there. What the thread has freed it
    /// may be about to use.
    pub fn waited(&self, announce: impl FnOnce()) {
        let mut state = self.state.lock();
        match state.phase {
            Phase::ClosingAtWait => {
                state.phase = Phase::AtBoundary;
                self.changed.notify_all();
            }
            _ if state.catches => {}
            _ => return,
        }
        let held = state.hold();
        drop(state);
        self.wait_for_opening_after(held, false, announce);
    }

    /// The same where only threads are caught.
    pub fn asked(&self, announce: impl FnOnce()) {
        let mut state = self.state.lock();
        if state.catches {
            let held = state.hold();
            drop(state);
            self.wait_for_opening_after(held, false, announce);
        }
    }

    /// Or until chance lets the thread go on, which may be at a boundary.
    fn wait_for_opening_after(&self, held: Held, is_at_boundary: bool, announce: impl FnOnce()) {
        announce();
        let number = Record::of_thread_or_new().number();
        let mut state = self.state.lock();
        let mut times = held.times;
        while state.openings == held.openings {
            let may_go = !is_at_boundary || state.boundary == Boundary::GoesOn;
            let is_new = std::mem::replace(&mut times, state.times) != state.times;
            if is_new && may_go && is_chosen(state.draw, number) {
                break;
            }
            self.changed.wait(&mut state);
        }
        state.held -= 1;
    }

    /// Whether a thread waits for an opening.
    pub fn holds_threads(&self) -> bool {
        self.state.lock().held > 0
    }

    /// How many threads wait for an opening.
    #[cfg(test)]
    pub fn held(&self) -> u32 {
        self.state.lock().held
    }

    pub fn arrival(&'static self) -> Arrival {
        self.arrivals.fetch_add(1, Ordering::AcqRel);
        Arrival { closing: self }
    }

    pub fn has_arrivals(&self) -> bool {
        self.arrivals.load(Ordering::Acquire) > 0
    }
}
