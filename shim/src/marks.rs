//! How far a GPU has come with the work that a process submits ahead of it.
//!
//! While other jobs wait the gate's thread sets a mark behind all work, now and then. The marks that are passed while the
//! process drains show that its work goes on: then it only takes long, and waits for nothing that was not submitted.
//!
//! Invariant: setting a mark and looking at it never block. A mark keeps its contexts from being destroyed, so as long as there are
//! marks the gate's thread looks at them again soon: at each tick, or while it drains.

#![forbid(unsafe_code)]

use crate::drain::Probe;
use crate::process::Process;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Between two marks, at least.
const APART: Duration = Duration::from_millis(50);
/// Marks that are not passed, at most: each is an event of each context.
const MOST: usize = 256;

/// The marks that are not known to be passed, the first one first.
#[derive(Default)]
pub struct Marks {
    marks: VecDeque<(Probe, Instant)>,
    /// When the last one was set, and how much was submitted then.
    last: Option<(Instant, u64)>,
}

impl Marks {
    /// Sets a mark, if work was submitted since the last one and that is long enough ago.
    pub fn set(&mut self, process: &'static Process, submissions: u64) {
        let is_due = |(when, before): (Instant, u64)| when.elapsed() >= APART && before != submissions;
        if !self.last.is_none_or(is_due) || process.captures.any() {
            return;
        }
        // Without a mark less is known.
        if let Ok(mark) = Probe::start(process) {
            self.add(mark);
        }
        self.last = Some((Instant::now(), submissions));
    }

    /// Keeps a mark behind all work so far, if there is room.
    pub fn add(&mut self, mark: Probe) {
        if self.marks.len() < MOST {
            self.marks.push_back((mark, Instant::now()));
        }
    }

    /// How long ago the last mark was set that the GPU has passed since it was asked last, if it has passed any: so far ahead
    /// is work submitted.
    pub fn age_of_passed(&mut self) -> Option<Duration> {
        std::iter::from_fn(|| self.take_passed()).last().map(|set| set.elapsed())
    }

    /// Lets go of what has been passed.
    pub fn forget_passed(&mut self) {
        while self.take_passed().is_some() {}
    }

    /// When the first mark was set, if it has been passed.
    fn take_passed(&mut self) -> Option<Instant> {
        let is_passed = |(mark, _): &(Probe, Instant)| mark.is_passed().unwrap_or(true);
        self.marks.front().is_some_and(is_passed).then(|| self.marks.pop_front())?.map(|(_, set)| set)
    }
}
