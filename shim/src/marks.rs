//! How far a GPU has come with the work that a process submits ahead of it.
//!
//! The gate's thread sets a mark behind all work, now and then. The marks that are passed while the
//! process drains show that its work goes on: then it only takes long, and waits for nothing that was not submitted. Those
//! that are passed before show how much it has under way ([`crate::window`]).
//!
//! Invariant: there are never more than [`MOST`] marks that are not passed, and never twice as many with those that were let go of.
//! None is set while a thread has been in one call for long, most likely for lack of room in the driver's queue: that would
//! block. A mark keeps its contexts from being destroyed, so as long as there are
//! marks the gate's thread looks at them again soon: at each tick, or while it drains.

#![forbid(unsafe_code)]

use crate::drain::Probe;
use crate::gate::{GATE, Record};
use crate::process::Process;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Between two marks, at least.
const APART: Duration = Duration::from_millis(50);
/// Marks that are not passed, at most: each is an event of each context, and takes room in a queue that the program may fill.
const MOST: usize = 8;

/// Behind all that was submitted at one moment.
struct Mark {
    probe: Probe,
    set: Instant,
    calls: Calls,
    /// More calls would have been made.
    is_full: bool,
}

/// The calls that were made until a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calls {
    /// All of them.
    pub all: u64,
    /// Those in batches, which are not counted.
    in_batches: u64,
}

impl Calls {
    /// Until now.
    pub fn now(process: &Process) -> Self {
        Self { all: process.captures.submissions(), in_batches: GATE.in_batches() }
    }

    /// How many of those after that moment are counted.
    pub fn counted_since(&self, before: Self) -> u64 {
        let since = self.all.saturating_sub(before.all);
        since.saturating_sub(self.in_batches.saturating_sub(before.in_batches))
    }
}

/// The GPU was seen to have passed a mark.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    /// How long ago the mark was set: so far ahead is work submitted.
    pub age: Duration,
    /// The calls that are counted, before it and after the mark that was passed before.
    pub calls: u64,
    /// How long the GPU took for them, at most: since it passed that one, or as long after that one as this one was set, or since
    /// this one was set.
    pub took: Duration,
    /// More calls would have been made before the mark, had they been let through.
    pub is_full: bool,
}

impl Passage {
    /// This one and the next.
    pub fn and(self, next: Self) -> Self {
        Self {
            age: next.age,
            calls: self.calls + next.calls,
            took: self.took + next.took,
            is_full: self.is_full || next.is_full,
        }
    }
}

/// The marks that are not known to be passed, the first one first.
#[derive(Default)]
pub struct Marks {
    marks: VecDeque<Mark>,
    /// When the last one was set, and how many calls had been made.
    last: Option<(Instant, u64)>,
    /// When the last one was set, and seen to be passed, and the calls before it.
    passed: Option<(Instant, Instant, Calls)>,
    /// How old it was then.
    age: Duration,
    /// So many were let go of that may not have been passed.
    let_go: usize,
    /// The calls in which threads were when it was looked last.
    inside: Vec<(u32, u64)>,
}

impl Marks {
    /// Sets a mark, if work was submitted since the last one and that is long enough ago.
    pub fn set(&mut self, process: &'static Process) {
        let submissions = process.captures.submissions();
        // They are set apart as far as they can be in what is under way.
        let apart = APART.max(self.age / MOST as u32);
        let is_due = |(when, before): (Instant, u64)| when.elapsed() >= apart && before != submissions;
        if self.last.is_none_or(is_due) {
            self.set_now(process, false);
        }
    }

    /// Sets a mark, more calls being held if it `is_full`. False if there is none now: a stream captures, or the driver refuses.
    pub fn set_now(&mut self, process: &'static Process, is_full: bool) -> bool {
        if process.captures.any() {
            return false;
        }
        if self.is_a_thread_stuck() || !self.has_room() {
            return true;
        }
        let calls = Calls::now(process);
        self.last = Some((Instant::now(), calls.all));
        // Without a mark less is known.
        let Ok(probe) = Probe::start(process) else { return false };
        self.keep(probe, calls, is_full);
        true
    }

    /// It is known otherwise that all but so many of these calls have ended.
    pub fn note_under_way(&mut self, calls: Calls, under_way: u64) {
        let ended = Calls { all: calls.all.saturating_sub(under_way), ..calls };
        if ended.all > self.passed().all {
            self.let_go();
            let now = Instant::now();
            self.passed = Some((now, now, ended));
        }
    }

    /// Keeps a mark behind all calls that were made.
    pub fn add(&mut self, probe: Probe, calls: Calls) {
        self.keep(probe, calls, false);
    }

    /// Keeps one that was set then. How many calls were made before it, and after the mark before it, is not known.
    pub fn add_of(&mut self, set: Instant, probe: Probe) {
        let before = self.marks.partition_point(|mark| mark.set <= set);
        let calls = before.checked_sub(1).map_or(self.passed(), |last| self.marks[last].calls);
        self.marks.insert(before, Mark { probe, set, calls, is_full: false });
    }

    fn keep(&mut self, probe: Probe, calls: Calls, is_full: bool) {
        self.marks.push_back(Mark { probe, set: Instant::now(), calls, is_full });
    }

    /// Whether one more may be set. One that is not passed says that all after it are not, either.
    pub fn has_room(&self) -> bool {
        let there = self.marks.len();
        // One at a time where many were let go of: else nothing would be known from then on.
        there + self.let_go < MOST || there == 0 && self.let_go < 2 * MOST
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Whether a thread is in the call in which it was when this was asked before.
    fn is_a_thread_stuck(&mut self) -> bool {
        let inside = Record::calls_inside();
        let is_stuck = inside.iter().any(|call| self.inside.contains(call));
        self.inside = inside;
        is_stuck
    }

    /// Whether the first mark has been passed, if there is one.
    pub fn is_first_passed(&self) -> bool {
        self.marks.front().is_some_and(|mark| mark.probe.is_passed().unwrap_or(true))
    }

    /// The calls before the last mark that is there.
    pub fn marked(&self) -> Calls {
        self.marks.back().map_or(self.passed(), |mark| mark.calls)
    }

    /// Those that are known to have ended, with their work.
    pub fn passed(&self) -> Calls {
        self.passed.map_or(Calls::default(), |(.., calls)| calls)
    }

    /// For how long none was seen to be passed.
    pub fn still_for(&self) -> Duration {
        self.passed.map_or(Duration::ZERO, |(_, seen, _)| seen.elapsed())
    }

    /// How long ago the last mark was set that the GPU has passed since it was asked last, if it has passed any: so far ahead
    /// is work submitted.
    pub fn age_of_passed(&mut self) -> Option<Duration> {
        std::iter::from_fn(|| self.next_passed()).last().map(|passage| passage.age)
    }

    /// All that have been passed: they may have waited for one thing, and one of them says little of what the GPU does.
    pub fn take_passage(&mut self) -> Option<Passage> {
        std::iter::from_fn(|| self.next_passed()).reduce(Passage::and)
    }

    /// The first mark, if it has been passed.
    fn next_passed(&mut self) -> Option<Passage> {
        let mark = self.is_first_passed().then(|| self.marks.pop_front())??;
        // Those that were let go of were set before.
        self.let_go = 0;
        self.age = mark.set.elapsed();
        let before = self.passed.replace((mark.set, Instant::now(), mark.calls));
        // It may have been looked late at the one before.
        let (since, calls) = before.map_or((self.age, 0), |(set, seen, before)| {
            (seen.elapsed().max(mark.set - set), mark.calls.counted_since(before))
        });
        Some(Passage { age: self.age, calls, took: self.age.min(since), is_full: mark.is_full })
    }

    /// All work has ended, of these calls.
    pub fn end(&mut self, calls: Calls) {
        self.marks.clear();
        self.let_go = 0;
        let now = Instant::now();
        self.passed = Some((now, now, calls));
    }

    /// Lets go of the contexts that the marks use.
    pub fn let_go(&mut self) {
        self.let_go += self.marks.drain(..).filter(|mark| !mark.probe.is_passed().unwrap_or(true)).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_is_kept_later_comes_in_the_order_in_which_all_were_set() {
        let before = Instant::now() - Duration::from_millis(1);
        let mut marks = Marks::default();
        for calls in [10, 20] {
            marks.add(Probe::of_nothing(), Calls { all: calls, in_batches: 0 });
        }
        let between = marks.marks[0].set;
        marks.add_of(between, Probe::of_nothing());
        marks.add_of(before, Probe::of_nothing());
        let calls: Vec<u64> = marks.marks.iter().map(|mark| mark.calls.all).collect();
        assert_eq!(calls, [0, 10, 10, 20], "as many as before the mark before it");
        assert!(marks.marks.iter().is_sorted_by_key(|mark| mark.set));
    }
}
