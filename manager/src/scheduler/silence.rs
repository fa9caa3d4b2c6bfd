//! Who does not answer. A process may be stopped (SIGSTOP, Ctrl-Z), stuck in a driver call, or
//! hostile; nobody waits for it longer than `answer_limit` beyond what its work takes.
//!
//! ```text
//! Recall not answered   it is not waited for any more, nor while the process is stopped
//! Close, Map            the job is silent: as good as unsliceable, until it answers
//! Unmap                 the same while the process is stopped; else it is expelled (I8)
//! ```
//! Where the manager kills whom it expels, who is silent is expelled too (`--evict=kill`).
//!
//! Invariant: what was asked of a process stays asked: a late answer counts like one in time.

use super::{Pages, Pending, Phase, Recall, Scheduler, Time};
use serde::{Deserialize, Serialize};
use tidegate_ffi::units::{JobId, SessionId, Step, TenantId};

/// What a process was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Question {
    /// `Close`.
    Close(Step),
    /// `Unmap` or `Map`.
    Order(Step),
    /// `Recall`.
    Recall(TenantId),
}

/// A question that is not answered yet.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Due {
    session: SessionId,
    question: Question,
    /// Until when an answer is in time.
    until: Time,
    /// When it is looked whether it was answered.
    at: Time,
    /// It is not any more.
    late: bool,
}

impl Scheduler {
    /// A process was told to close: it may take its time to a boundary, and to drain, twice as long where its work goes on.
    pub(super) fn expect_closing(&mut self, session: SessionId, step: Step, deadline: Time) {
        let limit = deadline + self.config.drain_limit * 2 + self.config.answer_limit;
        self.expect(session, Question::Close(step), limit, limit);
    }

    /// An order that a process alone carries out is answered soon, or never.
    pub(super) fn expect_answer(&mut self, session: SessionId, step: Step) {
        self.expect(session, Question::Order(step), self.config.answer_limit, self.config.answer_limit);
    }

    /// The order was answered in part: its timeout begins anew with its next message.
    pub(super) fn cancel_timeout(&mut self, step: Step) {
        self.due.retain(|due| due.question != Question::Order(step));
    }

    /// What a process has and does not use it says at once, unless it is stopped: that is seen before its time is over.
    pub(super) fn expect_return(&mut self, session: SessionId, tenant: TenantId) {
        self.expect(session, Question::Recall(tenant), self.config.answer_limit, self.config.slice);
    }

    /// An answer is in time within `limit`; whether it came is looked at after so long, at the latest then.
    fn expect(&mut self, session: SessionId, question: Question, limit: Time, look_after: Time) {
        let [until, soon] = [limit, look_after].map(|time| self.now + time);
        self.due.push(Due { session, question, until, at: until.min(soon), late: false });
    }

    /// Nobody could answer for so long.
    pub(super) fn allow_more_time(&mut self, absence: Time) {
        self.due.iter_mut().for_each(|due| {
            due.at += absence;
            due.until += absence;
        });
    }

    /// When the next answer becomes late.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.iter().map(|due| due.at).min()
    }

    /// Takes note of who has not answered in time.
    pub(super) fn note_the_silent(&mut self, pages: &dyn Pages) {
        let (mut due, now) = (std::mem::take(&mut self.due), self.now);
        due.retain(|due| self.is_open(due));
        for due in due.iter_mut().filter(|due| due.at <= now) {
            if now < due.until && !pages.is_stopped(due.session) {
                due.at = due.until;
                continue;
            }
            due.at = now + self.config.answer_limit;
            due.late = true;
            self.is_late(due, pages);
        }
        let late = due.iter().filter(|due| due.late && !matches!(due.question, Question::Recall(_)));
        let silent: Vec<JobId> = late.filter_map(|due| Some(self.sessions.get(&due.session)?.job)).collect();
        for (id, job) in &mut self.jobs {
            job.silent = silent.contains(id);
        }
        self.due = due;
    }

    /// Has a process of the job not answered in time.
    pub(super) fn is_silent(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.silent)
    }

    fn is_open(&self, due: &Due) -> bool {
        let Some(session) = self.sessions.get(&due.session) else { return false };
        match due.question {
            Question::Close(step) => session.closing == Some(step),
            Question::Order(step) => self.pending.contains_key(&step),
            Question::Recall(id) => self.tenants.get(&id).is_some_and(|t| t.recall.is_asked()),
        }
    }

    fn is_late(&mut self, due: &Due, pages: &dyn Pages) {
        let gives_back = |step: &Step| matches!(self.pending.get(step), Some(Pending::Unmap(_)));
        match due.question {
            Question::Recall(id) => {
                if let Some(tenant) = self.tenants.get_mut(&id) {
                    tenant.recall = Recall::Overdue;
                }
            }
            Question::Order(step) if gives_back(&step) && !pages.is_stopped(due.session) => {
                self.expel(due.session, "it did not give its memory back in time");
            }
            _ if self.config.expel_silent => self.expel(due.session, "it did not answer in time"),
            _ => {}
        }
    }

    /// Lets the stopped among these pause: brought back, they would keep what they got from those who
    /// could use it. `true`: there was one.
    pub(super) fn pass_over_the_stopped(&mut self, jobs: &[JobId], pages: &dyn Pages) -> bool {
        let until = self.now + self.config.slice;
        let mut any = false;
        for id in jobs {
            let Some(job) = self.jobs.get_mut(id).filter(|job| job.phase == Phase::Waiting) else { continue };
            if job.has_stopped(pages) {
                job.not_restored_before = until;
                any = true;
            }
        }
        any
    }
}

impl super::Job {
    /// Whether a process of it is stopped.
    pub(super) fn has_stopped(&self, pages: &dyn Pages) -> bool {
        self.sessions.iter().any(|session| pages.is_stopped(*session))
    }

    /// Does a process of it not answer, and keep memory that others wait for.
    pub(super) fn is_stuck(&self) -> bool {
        self.silent && matches!(self.phase, Phase::Closing | Phase::Leaving | Phase::Restoring)
    }
}
