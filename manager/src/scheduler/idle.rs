//! What becomes of the turn of a job that is idle.
//!
//! ```text
//! open ─► idle ─┬─ for less than switching to another and back takes, as its pauses last were ─► keeps its turn
//!               └─ for longer, or so long already ─► lends it: another runs
//! wakes ─► the borrower's slice ends when it has had half of one; the job comes back with the time it did not have
//! ```
//! Where the others fit beside it nobody has to be closed, and nothing is lent. Who is idle without a turn does not want
//! one.
//!
//! Invariant: what a job is owed is, with a slice of its own, no more than the longest slice: so who wants a part of the
//! time gets it, and who was away for long does not keep others out for longer than any turn may.

use super::{Pages, Phase, Scheduler, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_ffi::units::{JobId, SessionId};

/// Pauses that the next one is predicted from.
const KEPT: usize = 5;

/// The pauses that a job makes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pauses {
    /// How long the last ones were, beyond what it takes to see that there is one.
    recent: VecDeque<Duration>,
    /// Since when it is idle.
    since: Option<Time>,
}

impl Pauses {
    /// Since when it is idle, if it is.
    #[cfg(test)]
    pub fn since(&self) -> Option<Time> {
        self.since
    }

    fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Time) {
        let Some(since) = self.since.take() else { return };
        self.recent.push_back(now.saturating_sub(since));
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }

    /// It is not known whether the job is idle any more.
    fn forget(&mut self) {
        self.since = None;
    }

    /// How long it is likely to be idle when it becomes so: the median of the last pauses.
    fn likely(&self) -> Duration {
        let mut recent: Vec<Duration> = self.recent.iter().copied().collect();
        recent.sort_unstable();
        recent.get(recent.len() / 2).copied().unwrap_or_default()
    }
}

impl Scheduler {
    /// A process of the job has become idle, or is so no more.
    pub(super) fn note_pause(&mut self, id: JobId) {
        let (is_idle, now) = (self.is_idle(id), self.now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let was_idle = job.pauses.since.is_some();
        match is_idle {
            true => job.pauses.begin(now),
            false => job.pauses.end(now),
        }
        if was_idle && !is_idle {
            self.level_up(id, self.claim_of(id));
            self.call_in(id);
        }
    }

    /// A process that is open and not watched may do anything: whether it is idle it says when it is watched again.
    pub(super) fn forget_unwatched_idleness(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id).filter(|session| !session.watched) else { return };
        let open = self.jobs.get_mut(&session.job).filter(|job| job.phase == Phase::Open);
        if let Some(job) = open {
            session.idle = false;
            job.pauses.forget();
        }
    }

    /// Has the job its turn and does not use it, so that others may.
    pub(super) fn lends(&self, id: JobId) -> bool {
        self.lends_from(id).is_some_and(|from| from <= self.now)
    }

    /// Looks which jobs with a turn are stopped, at the end of their slices where other jobs wait, and whether they still are.
    pub(super) fn look_for_stopped(&mut self, pages: &dyn Pages) {
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in ids {
            let is_waited_for = || self.jobs_near(id).into_iter().any(|other| self.wants_turn(other));
            let job = &self.jobs[&id];
            let is_over = || job.phase == Phase::Open && self.now >= job.slice_end && is_waited_for();
            let is_stopped = (job.stopped || is_over()) && job.has_stopped(pages);
            if let Some(job) = self.jobs.get_mut(&id) {
                job.stopped = is_stopped;
            }
        }
    }

    /// From when on a job that is idle lends its turn; `None`: it is not idle.
    pub(super) fn lends_from(&self, id: JobId) -> Option<Time> {
        let job = self.jobs.get(&id)?;
        let since = job.pauses.since.filter(|_| self.is_idle(id))?;
        let there_and_back = job.costs.next() + self.dearest_near(id);
        Some(if job.pauses.likely() >= there_and_back { since } else { since + there_and_back })
    }

    /// What a switch of a job costs that wants a turn on the same GPUs, the dearest of them.
    fn dearest_near(&self, id: JobId) -> Duration {
        let near = self.jobs_near(id).into_iter().filter(|other| self.wants_turn(*other));
        near.filter_map(|other| Some(self.jobs.get(&other)?.costs.next())).max().unwrap_or_default()
    }

    /// Of the time that a job did not want, how much it may have later.
    fn claim_of(&self, id: JobId) -> Duration {
        let slice = self.slice_of(id);
        self.config.slice_max.saturating_sub(slice).max(slice)
    }

    /// A job that lent its turn wants it back: those who run meanwhile have half a slice for it.
    fn call_in(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.phase != Phase::Open) else { return };
        let (owed, priority) = (job.virtual_runtime, job.spec.priority);
        for other in self.jobs_near(id) {
            let half = self.slice_of(other) / 2;
            let Some(job) = self.jobs.get_mut(&other).filter(|job| job.running()) else { continue };
            let Some((began, None)) = job.stats.grants.back().copied() else { continue };
            if job.spec.priority == priority && job.virtual_runtime > owed {
                job.slice_end = job.slice_end.min(began + half).max(self.now);
            }
        }
    }
}
