//! What becomes of the turn of a job that is idle.
//!
//! ```text
//! open ─► idle ─┬─ for less than switching to another and back takes, as its pauses last were ─► keeps its turn
//!               └─ for longer, or so long already, and longer than its last pauses ─► lends it: another runs
//! wakes ─► the borrower's slice ends when it has lasted twice what the switches since its last one take, at least the two;
//!          the job comes back with the time it did not have
//! ```
//! How often a process looks whether it is idle follows from the switches, too: seeing a pause takes it some such ticks.
//!
//! A job that keeps its turn in its pauses, and is owed time, does not get that in the same turn.
//!
//! Where the others fit beside it nobody has to be closed, and nothing is lent. Who is idle without a turn does not want
//! one.
//!
//! Invariant: what a job is owed is, with a slice of its own, no more than the longest slice: so who wants a part of the
//! time gets it, and who was away for long does not keep others out for longer than any turn may.

use super::{Job, Pages, Phase, Scheduler, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_ffi::units::{JobId, SessionId};

/// Pauses that the next one is predicted from.
const KEPT: usize = 5;
/// What two switches take is so many ticks: a pause is seen after three.
const TICKS: u32 = 8;
const SEEN_AFTER: u32 = 3;
/// A turn in which a job was idle for such a part of the time does not last longer than a slice, whatever it is owed.
const IDLE_PART: u32 = 4;
/// A tick, at least: each costs the process some microseconds.
const LEAST_TICK_MICROS: u32 = 1_000;
/// A tick, at most, and where it is not known what switches cost.
const MOST_TICK_MICROS: u32 = 16_000;
/// A borrowed turn lasts so many times what the switches since the last one take, its own included, at least.
const LEAST_BORROWED: u32 = 2;

/// The pauses that a job makes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pauses {
    /// How long the last ones were, beyond what it takes to see that there is one.
    recent: VecDeque<Duration>,
    /// Since when it is idle.
    since: Option<Time>,
    /// When its turn began, and for how long it has been idle in it, in pauses that are over.
    turn: (Time, Duration),
    /// It has idled its last slice away: another job has the next turn.
    gives_way: bool,
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

    /// The turn begins.
    fn begin_turn(&mut self, now: Time) {
        (self.turn, self.gives_way) = ((now, Duration::ZERO), false);
    }

    /// `unseen`: how long it had been idle when that was seen.
    fn end(&mut self, now: Time, unseen: Duration) {
        let Some(since) = self.since.take() else { return };
        let (began, idle) = &mut self.turn;
        *idle += now.saturating_sub(since.max(*began)) + unseen;
        self.recent.push_back(now.saturating_sub(since));
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }

    /// It is not known whether the job is idle any more.
    fn forget(&mut self) {
        self.since = None;
    }

    /// How long the longest of the last pauses was.
    fn longest(&self) -> Duration {
        self.recent.iter().copied().max().unwrap_or_default()
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
        let unseen = Duration::from_micros(self.tick_micros(id).into()) * SEEN_AFTER;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let was_idle = job.pauses.since.is_some();
        match is_idle {
            true => job.pauses.begin(now),
            false => job.pauses.end(now, unseen),
        }
        if was_idle && !is_idle {
            self.level_up(id, self.claim_of(id));
            self.call_in(id);
        }
    }

    /// A process that is open and not watched may do anything: whether it is idle it says when it is watched again.
    pub(super) fn forget_unwatched_idleness(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id).filter(|session| session.tick_micros == 0) else {
            return;
        };
        let open = self.jobs.get_mut(&session.job).filter(|job| job.phase == Phase::Open);
        if let Some(job) = open {
            session.idle = false;
            job.pauses.forget();
        }
    }

    /// Of the time since then, in which a job had its turn, what it is charged for: not what it lent, taken or not.
    pub(super) fn used_of_turn(&self, id: JobId, before: Time) -> Duration {
        let lent = self.lends_from(id).map(|from| self.now.saturating_sub(from.max(before)));
        self.now.saturating_sub(before).saturating_sub(lent.unwrap_or_default())
    }

    /// Has the job its turn and does not use it, so that others may.
    pub(super) fn lends(&self, id: JobId) -> bool {
        self.lends_from(id).is_some_and(|from| from <= self.now)
    }

    /// Whether a job has had its slice and was idle in a good part of it: what it is owed it has after the next turn of another one. At once
    /// it would spend it on its pauses, which others could use.
    pub(super) fn has_idled_its_slice_away(&self, id: JobId) -> bool {
        let idled = |job: &Job| {
            let (began, idle) = job.pauses.turn;
            let is_over = job.phase == Phase::Open && self.now >= job.slice_end;
            is_over && idle * IDLE_PART >= self.now.saturating_sub(began)
        };
        self.jobs.get(&id).is_some_and(|job| job.pauses.gives_way || idled(job))
    }

    /// The job's turn ends: where it has idled its slice away it is not the one that has the next turn.
    pub(super) fn give_way(&mut self, id: JobId) {
        let gives_way = self.has_idled_its_slice_away(id);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.pauses.gives_way = gives_way;
        }
    }

    /// The turn of a job begins: others have waited for it.
    pub(super) fn begin_turn(&mut self, id: JobId) {
        for other in self.jobs_near(id) {
            if let Some(other) = self.jobs.get_mut(&other) {
                other.pauses.gives_way = false;
            }
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.pauses.begin_turn(self.now);
        }
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

    /// Whether a job is closed that has been idle for less than `--slice-max`: it may be back at any moment, and one that had got far ahead
    /// by then would keep it waiting.
    pub(super) fn may_wake(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let is_closed = !matches!(job.phase, Phase::Open | Phase::Restoring);
        let since = job.pauses.since.filter(|_| is_closed && self.is_attached(id));
        since.is_some_and(|since| self.now.saturating_sub(since) < self.config.slice_max)
    }

    /// From when on a job that is idle lends its turn; `None`: it is not idle.
    pub(super) fn lends_from(&self, id: JobId) -> Option<Time> {
        let job = self.jobs.get(&id)?;
        let since = job.pauses.since.filter(|_| self.is_idle(id))?;
        let there_and_back = job.costs.next() + self.dearest_near(id);
        if job.pauses.likely() >= there_and_back {
            return Some(since);
        }
        // A pause as long as the last ones is about to end. One that is longer may last.
        let usual = job.pauses.longest() * 5 / 4;
        Some(since + there_and_back.max(usual.min(there_and_back * 2)))
    }

    /// What a switch of a job costs that wants a turn on the same GPUs, the dearest of them: with the time that its work takes to end,
    /// for one that lends its turn gets it back no sooner.
    fn dearest_near(&self, id: JobId) -> Duration {
        let near = self.jobs_near(id).into_iter().filter(|other| self.wants_turn(*other));
        let cost = |job: &Job| job.costs.next() + job.stats.usual_closing();
        near.filter_map(|other| Some(cost(self.jobs.get(&other)?))).max().unwrap_or_default()
    }

    /// Of the time that a job did not want, how much it may have later: the jobs near it together what one of them may have, or
    /// where all wake one that always computed would stand as many times as long.
    pub(super) fn claim_of(&self, id: JobId) -> Duration {
        let slice = self.slice_of(id);
        let others = u32::try_from(self.jobs_near(id).len()).unwrap_or(u32::MAX).max(1);
        (self.config.slice_max / others).saturating_sub(slice).max(slice)
    }

    /// How often the processes of a job look whether they are idle: it takes a small part of what two switches take. Where the
    /// job's pauses are long, as the last ones were, as little as can be: until one is seen nothing computes.
    pub(super) fn tick_micros(&self, id: JobId) -> u32 {
        let Some(job) = self.jobs.get(&id) else { return MOST_TICK_MICROS };
        let cost = job.costs.next() + self.dearest_near(id);
        if cost.is_zero() {
            return MOST_TICK_MICROS;
        }
        if job.pauses.likely() >= cost {
            return LEAST_TICK_MICROS;
        }
        let wanted = u32::try_from((cost / TICKS).as_micros()).unwrap_or(u32::MAX);
        // Steps, so that processes are not told of each change.
        wanted.clamp(LEAST_TICK_MICROS, MOST_TICK_MICROS).div_ceil(LEAST_TICK_MICROS).next_power_of_two()
            * LEAST_TICK_MICROS
    }

    /// A job that lent its turn wants it back: the jobs that run meanwhile have a short slice for it.
    fn call_in(&mut self, id: JobId) {
        for other in self.jobs_near(id) {
            let Some(end) = self.end_of_borrowed(other) else { continue };
            if let Some(job) = self.jobs.get_mut(&other) {
                job.slice_end = job.slice_end.min(end).max(self.now);
            }
        }
    }

    /// When the turn of a job ends that is open, and that another one has lent and wants back.
    fn end_of_borrowed(&self, id: JobId) -> Option<Time> {
        let job = self.jobs.get(&id).filter(|job| job.phase == Phase::Open)?;
        let (began, None) = job.stats.grants.back().copied()? else { return None };
        Some(began + self.longest_borrowed(id)?)
    }

    /// How long a job may run in place of one that has lent its turn and wants it back; `None`: there is none.
    pub(super) fn longest_borrowed(&self, id: JobId) -> Option<Duration> {
        let borrower = self.jobs.get(&id)?;
        let wants_back = |other: &JobId| {
            let is_owed = |lender: &Job| {
                lender.lent
                    && lender.phase != Phase::Open
                    && lender.spec.priority == borrower.spec.priority
                    && lender.virtual_runtime < borrower.virtual_runtime
            };
            self.jobs.get(other).is_some_and(is_owed) && !self.is_idle(*other)
        };
        let near = self.jobs_near(id);
        let lenders = near.iter().filter(|other| wants_back(other));
        let dearest = lenders.filter_map(|lender| Some(self.jobs.get(lender)?.costs.next())).max()?;
        // Where several pause each of them has had a turn in between.
        let since = borrower.stats.grants.iter().rev().find_map(|(_, end)| *end).unwrap_or_default();
        let switches = near.iter().filter_map(|other| {
            let job = self.jobs.get(other)?;
            let turns = job.stats.grants.iter().rev().take_while(|(began, _)| *began >= since).count();
            Some(job.costs.next() * turns as u32)
        });
        let others = switches.sum::<Duration>().max(dearest);
        Some(((others + borrower.costs.next()) * LEAST_BORROWED).min(self.slice_of(id)))
    }
}
