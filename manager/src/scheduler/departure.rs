//! The first half of a switch: close, drain, unmap, save, set free (R4.6).
//!
//! Order is everything here: nothing of a job is unmapped before all its processes have drained
//! (I5), nothing is saved before it is unmapped (from then on nothing of the job can write), no
//! unit is set free before its bytes are saved.

use super::gang::{COLLECTIVES_AHEAD, Rank, Stop, are_far_apart, stops, stops_by_collectives};
use super::{
    AwayRange, Closing, DRAINS_BEFORE_UNSLICEABLE, Departure, Effect, Job, MOVES_PER_MESSAGE,
    NAMES_PER_MESSAGE, Pages, Pending, Phase, Scheduler, Session, Tenant, Time,
};
use crate::ledger::Owner;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use tidegate_ffi::units::{Class, GpuUuid, JobId, PieceId, SessionId, Step, TenantId};
use tidegate_ffi::wire::live::{Life, LiveRange};
use tidegate_ffi::wire::message::{Move, Peers, Placed, ToMover, ToShim};

/// What a piece holds, by the live map.
#[derive(Clone, Debug, Default)]
struct Content {
    /// Live ranges cut to the piece: offset in it, length, place in the address range.
    ranges: Vec<(u64, u64, u64)>,
    /// Dead ranges that have to be there again: place in the address range, length.
    dead: Vec<(u64, u64)>,
    live: u64,
    long_lived: u64,
}

/// How long a job without boundaries may take until a thread has waited for its GPU.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// A job whose work did not end again and again is closed again after so many drain limits, and twice as many each time, up
/// to so many times.
const SELDOM: u32 = 3;
const DOUBLINGS: u32 = 3;
/// Its work may take such a part of the drain limit then.
const ENDLESS_PART: u32 = 4;
/// Processes that stop apart from each other have such a part of the drain limit at least, at the first try.
const FIRST_APART: u32 = 4;
/// After such a part of the drain limit what work waits for may come after the common boundary.
const LEAVES: u32 = 8;
/// For such a part of the drain limit those that have drained submit a little at a time for one that has not.
const ROUNDS: u32 = 64;
/// So many times it is as little as before, then a call more of each thread.
const AS_LITTLE: u32 = 2;
/// Where one goes at a time the next one does after such a part of the time since work was first said not to end.
const PACE: u32 = 16;

impl Scheduler {
    /// Asks a job to close: first those of its processes that reach boundaries ([`super::gang`]).
    pub(super) fn close(&mut self, id: JobId, pages: &dyn Pages) {
        if !self.may_close(id) {
            return;
        }
        self.give_way(id);
        let (is_gang, lends) = (self.works_in_several(id), self.lends(id));
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.lent = lends;
        job.phase = Phase::Closing;
        let learns = is_gang && !job.closing.in_vain;
        let boundary = |session: SessionId| match pages.boundaries(session) {
            0 if learns => pages.learning(session),
            boundary => boundary,
        };
        let of_session = |id: &SessionId| self.sessions.get(id).map(|s| (s.idle, !s.tenants.is_empty()));
        let rank = |id: &SessionId| {
            let (idle, works) = of_session(id).unwrap_or_default();
            Rank { boundary: boundary(*id), idle, works }
        };
        let sessions: Vec<SessionId> = job.sessions.iter().copied().collect();
        let ranks: Vec<Rank> = sessions.iter().map(rank).collect();
        let is_known = ranks.iter().any(|rank| rank.boundary > 0);
        // Until they are seen to reach one.
        let in_vain = is_known && sessions.iter().all(|session| pages.boundaries(*session) == 0);
        let far_in_vain = job.closing.far_in_vain;
        let by_collectives = || {
            let launching =
                |(id, rank): (&SessionId, &Rank)| Rank { boundary: pages.collectives(*id), ..*rank };
            let launching: Vec<Rank> = sessions.iter().zip(&ranks).map(launching).collect();
            stops_by_collectives(&launching, far_in_vain)
        };
        let by_collectives = (is_gang && !is_known).then(by_collectives).flatten();
        let at_collective = by_collectives.is_some();
        let is_known = is_known || at_collective;
        let (stops, boundary) = by_collectives.unwrap_or_else(|| stops(&ranks, far_in_vain));
        // Of two ranks one may be a whole iteration behind the other.
        let patience = self.config.boundary_deadline * if boundary > 0 { 2 } else { 1 };
        // A job that tells boundaries no more would keep others waiting for the next one each time.
        let boundaries =
            sessions.iter().map(|session| pages.boundaries(*session)).fold(0, u64::saturating_add);
        let has_passed_none = boundaries > 0 && boundaries == job.closing.boundaries;
        let turns_without = if has_passed_none { job.closing.turns_without + 1 } else { 0 };
        let patience = patience / 2_u32.saturating_pow(turns_without);
        let patience = if is_known { patience } else { Duration::ZERO };
        job.closing = Closing {
            boundaries,
            turns_without,
            since: self.now,
            until: self.now + patience,
            passed: None,
            repeats: 0,
            in_vain: in_vain || job.closing.in_vain,
            at_collective,
            is_far: at_collective || are_far_apart(&ranks, &stops),
            stalled_at: None,
            overdue_at: None,
            entangled: job.closing.entangled.saturating_sub(1),
            ..job.closing
        };
        job.stats.last_at_boundary = is_known || !is_gang;
        for (id, stop) in sessions.into_iter().zip(stops) {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.stop = stop;
            }
        }
        self.close_ranks(id, boundary);
        self.finish_closing(id);
    }

    /// Do several processes of the job have memory.
    fn works_in_several(&self, id: JobId) -> bool {
        let sessions = self.jobs.get(&id).into_iter().flat_map(|job| &job.sessions);
        let works = |session: &&SessionId| self.sessions.get(session).is_some_and(|s| !s.tenants.is_empty());
        sessions.filter(works).count() > 1
    }

    /// What each process is told of the others.
    fn peers(&self, id: JobId) -> Peers {
        let is_entangled = self.jobs.get(&id).is_some_and(|job| job.closing.is_entangled());
        match self.works_in_several(id) {
            false => Peers::None,
            true if is_entangled => Peers::Entangled,
            true => Peers::Apart,
        }
    }

    /// Do several processes of the job have memory, of which one does not stop at the common boundary, or perhaps not soon.
    fn stop_apart(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let mut sessions = job.sessions.iter().filter_map(|session| self.sessions.get(session));
        let is_apart = |session: &Session| {
            !session.tenants.is_empty() && (session.stop != Stop::Together || job.closing.is_far)
        };
        sessions.any(is_apart) && self.works_in_several(id)
    }

    /// Asks those to close that are to stop first.
    fn close_ranks(&mut self, id: JobId, boundary: u64) {
        let Some(job) = self.jobs.get(&id) else { return };
        let left = job.closing.until.saturating_sub(self.now);
        // What is launched before one collective ends, however much it is; of far boundaries that is not so sure.
        let is_unsure = job.closing.is_far && !job.closing.at_collective;
        let sessions = job.sessions.clone();
        // While one rank waits for its GPU the next may already need it.
        let several = self.works_in_several(id);
        let wait = if several { Duration::ZERO } else { self.config.boundary_deadline.min(LONGEST_WAIT) };
        // A job that is idle comes to no boundary, and to no wait, before its pause is over.
        let is_idle = !several && self.is_idle(id);
        let [left, wait] = if is_idle { [Duration::ZERO; 2] } else { [left, wait] };
        let apart = self.drain_limit_apart(id);
        for session in sessions {
            let Some(stop) = self.sessions.get_mut(&session).map(|session| &mut session.stop) else {
                continue;
            };
            match *stop {
                Stop::Together if !left.is_zero() => {
                    let drain = if is_unsure { apart } else { self.drain_limit(id) };
                    self.close_session(session, boundary, left, Duration::ZERO, drain, 0);
                }
                Stop::Together | Stop::Alone => {
                    *stop = Stop::Alone;
                    self.close_session(session, 0, left, wait, apart, 0);
                }
                Stop::Later | Stop::Resumed | Stop::Last => {}
            }
        }
    }

    /// How long the work of a job may take to end: less where it did not again and again, so that the job is not stopped
    /// for long in vain.
    fn drain_limit(&self, id: JobId) -> Duration {
        let is_endless = self.jobs.get(&id).is_some_and(Job::is_endless);
        self.config.drain_limit / if is_endless { ENDLESS_PART } else { 1 }
    }

    /// How long the work of a process may take to end where the processes of its job stop apart from each other: one may
    /// wait for another's work. Longer after each closing in which it did not end.
    fn drain_limit_apart(&self, id: JobId) -> Duration {
        if !self.works_in_several(id) {
            return self.drain_limit(id);
        }
        let failed = self.jobs.get(&id).map_or(0, |job| job.closing.failed_apart);
        let first = self.config.boundary_deadline.max(self.config.drain_limit / FIRST_APART);
        first.saturating_mul(2u32.saturating_pow(failed.min(16))).min(self.config.drain_limit)
    }

    /// A process had passed the boundary before it was asked to stop there: all are to stop at a later one.
    fn close_again(&mut self, id: JobId, passed: u64) {
        for id in self.jobs.get(&id).map(|job| job.sessions.clone()).unwrap_or_default() {
            if let Some(session) = self.sessions.get_mut(&id) {
                match session.stop {
                    Stop::Last => session.stop = Stop::Later,
                    Stop::Resumed => session.stop = Stop::Alone,
                    Stop::Together | Stop::Alone | Stop::Later => {}
                }
            }
            self.tell(id, ToShim::Open);
        }
        // Where messages take longer than iterations the next one may be passed, too.
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let least = if job.closing.at_collective { COLLECTIVES_AHEAD } else { 1 };
        let margin = 2u64.saturating_pow(job.closing.repeats).saturating_mul(least);
        job.closing.repeats = job.closing.repeats.saturating_add(1);
        self.close_ranks(id, passed.saturating_add(margin));
    }

    /// Those that were asked first have stopped: the others follow. False: there are none.
    fn close_the_others(&mut self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let (left, sessions) = (job.closing.until.saturating_sub(self.now), job.sessions.clone());
        let drain = self.drain_limit_apart(id);
        let mut any = false;
        for id in sessions {
            let Some(stop) = self.sessions.get_mut(&id).map(|session| &mut session.stop) else { continue };
            let deadline = match *stop {
                Stop::Later => Duration::ZERO,
                Stop::Resumed => left,
                Stop::Together | Stop::Alone | Stop::Last => continue,
            };
            *stop = if *stop == Stop::Later { Stop::Last } else { Stop::Alone };
            any = true;
            self.close_session(id, 0, deadline, Duration::ZERO, drain, 0);
        }
        any
    }

    /// What was answered in full before `Close` is there before it.
    fn forget_certain_answers(&mut self, id: SessionId) {
        for tenant in self.sessions.get(&id).into_iter().flat_map(|session| &session.tenants) {
            let Some(tenant) = self.tenants.get_mut(tenant) else { continue };
            let open =
                [tenant.making, tenant.waiting.front().copied()].map(|open| open.map(|request| request.step));
            tenant.answered.retain(|(request, _)| open.contains(&Some(request.step)));
        }
    }

    fn close_session(
        &mut self,
        id: SessionId,
        boundary: u64,
        deadline: Duration,
        wait: Duration,
        drain: Duration,
        calls: u32,
    ) {
        self.forget_certain_answers(id);
        self.next_step += 1;
        let step = Step(self.next_step);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.closing = Some(step);
        (session.closing_since, session.stalls) = (self.now, 0);
        let job = session.job;
        let peers = self.peers(job);
        let [deadline_ms, wait_ms, drain_ms] =
            [deadline, wait, drain].map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self.expect_closing(id, step, deadline + wait);
        let at_collective = boundary > 0 && self.jobs.get(&job).is_some_and(|job| job.closing.at_collective);
        let close =
            ToShim::Close { step, boundary, at_collective, deadline_ms, wait_ms, drain_ms, calls, peers };
        self.tell(id, close);
    }

    pub(super) fn drained(
        &mut self,
        id: SessionId,
        step: Step,
        at_boundary: bool,
        drain: Duration,
        maps: Vec<(TenantId, Vec<LiveRange>)>,
        outstanding: &[Step],
    ) {
        let Some((job, stop)) = self.answered_closing(id, step) else {
            return self.expel(id, "it reported a closing that it was not asked for");
        };
        let told: Vec<TenantId> = maps.iter().map(|(tenant, _)| *tenant).collect();
        for tenant in self.sessions.get(&id).map_or_else(Vec::new, |session| session.tenants.clone()) {
            if !told.contains(&tenant) && !self.tenants[&tenant].pieces.is_empty() {
                return self.expel(id, "it did not say what is alive in its memory");
            }
            self.void_making(tenant);
            self.void_answers(tenant, outstanding);
        }
        for (tenant, live) in maps {
            if !self.accept_map(id, tenant, live) {
                return self.expel(id, "its live map does not fit its memory");
            }
        }
        let is_late = stop == Stop::Together && !at_boundary;
        if let Some(session) = self.sessions.get_mut(&id).filter(|_| is_late) {
            session.stop = Stop::Alone;
        }
        if let Some(job) = self.jobs.get_mut(&job) {
            if is_late {
                job.closing.note_late();
            }
            job.stats.last_at_boundary &= at_boundary || stop == Stop::Last;
            job.stats.drain += drain;
            if job.lent {
                // It said that it was idle, and had work: of several processes each its part.
                job.charge(drain / u32::try_from(job.sessions.len()).unwrap_or(u32::MAX).max(1));
            }
        }
        self.finish_closing(job);
    }

    fn answered_closing(&mut self, id: SessionId, step: Step) -> Option<(JobId, Stop)> {
        let session = self.sessions.get_mut(&id)?;
        (session.closing == Some(step)).then(|| {
            session.closing = None;
            (session.job, session.stop)
        })
    }

    fn accept_map(&mut self, session: SessionId, id: TenantId, live: Vec<LiveRange>) -> bool {
        let limit = self.tenants.get(&id).map_or(0, |tenant| {
            u64::from(self.gpus[&tenant.gpu].ledger.total()) * 4 * self.config.unit_bytes
        });
        let end = |range: &LiveRange| range.start.saturating_add(range.bytes);
        let inside = live.iter().all(|range| range.bytes > 0 && end(range) <= limit);
        let in_order = |pair: &[LiveRange]| (pair[0].class, end(&pair[0])) <= (pair[1].class, pair[1].start);
        let inside = inside && live.windows(2).all(in_order);
        match self.tenants.get_mut(&id) {
            Some(tenant) if tenant.session == session && inside => {
                tenant.live = live.into();
                true
            }
            _ => false,
        }
    }

    pub(super) fn not_drained(&mut self, id: SessionId, step: Step) {
        let Some((job_id, _)) = self.answered_closing(id, step) else {
            return self.expel(id, "it reported a closing that it was not asked for");
        };
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        if !std::mem::replace(&mut job.reopen, true) {
            self.open_who_has_drained(job_id);
        }
        self.finish_closing(job_id);
    }

    /// There is no closing after all, and what others of the job wait for may be theirs.
    fn open_who_has_drained(&mut self, id: JobId) {
        for id in self.jobs.get(&id).map(|job| job.sessions.clone()).unwrap_or_default() {
            if self.sessions.get(&id).is_some_and(|session| session.closing.is_none()) {
                self.tell(id, ToShim::Open);
            }
        }
    }

    /// The process goes on: its job is closed again as soon as its other processes have answered.
    pub(super) fn passed(&mut self, id: SessionId, step: Step, boundary: u64) {
        let Some((job_id, Stop::Together)) = self.answered_closing(id, step) else {
            return self.expel(id, "it passed a boundary at which it was not asked to close");
        };
        if let Some(job) = self.jobs.get_mut(&job_id) {
            job.closing.passed = job.closing.passed.max(Some(boundary));
        }
        self.finish_closing(job_id);
    }

    /// The work of a process does not end though it was waited for: it waits for work of the others of its job, most likely.
    pub(super) fn note_overdue(&mut self, id: SessionId, step: Step, is_overdue: bool) {
        let session = self.sessions.get(&id).filter(|session| is_overdue && session.closing == Some(step));
        let job = session.map(|session| session.job).filter(|job| self.works_in_several(*job));
        if let Some(job) = job.and_then(|job| self.jobs.get_mut(&job)) {
            job.closing.note_overdue(self.now);
        }
    }

    /// The work of a process does not end. It may wait for work of the other processes of its job that have drained:
    /// these submit a little, and drain anew. If that is not enough they go on until it has drained, and are closed then;
    /// but those at the common boundary stay there. Who went on is then a little ahead, and the others submit a little for
    /// it in turn. All of it takes no longer than work may take to end. Said late, it changes nothing.
    pub(super) fn help_drain(&mut self, id: SessionId, step: Step) {
        let stalled = self.sessions.get(&id).filter(|session| session.closing == Some(step));
        let Some(session) = stalled else { return };
        let (job_id, asked, stalls) = (session.job, session.closing_since, session.stalls);
        let calls = 1 + stalls / AS_LITTLE;
        let apart = self.drain_limit_apart(job_id);
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        let stalled_at = *job.closing.stalled_at.get_or_insert(self.now);
        let Some(helpers) = self.helpers(job_id, self.now - stalled_at, drawn(step, stalls)) else { return };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.stalls = stalls.saturating_add(1);
        let Some(job) = self.jobs.get(&job_id) else { return };
        // A process that has passed the common boundary is open, and all are opened when they have answered.
        if job.phase != Phase::Closing || job.reopen || job.closing.passed.is_some() {
            return;
        }
        // Until then it was seen whether the work only takes long: where one that stops apart is known to take as long, too.
        let since = job.closing.until.max(job.closing.overdue_at.unwrap_or_default());
        let apart_since = since.max(stalled_at);
        let limit = self.config.drain_limit;
        let is_over = |since: Time, limit: Duration| self.now >= since.saturating_add(limit);
        let resumes = is_over(apart_since.max(asked), limit / ROUNDS);
        let [leaves, together_ends] = [limit / LEAVES, limit].map(|limit| is_over(since, limit));
        // After that nothing helps it any more.
        let left_apart = apart_since.saturating_add(apart).saturating_sub(self.now);
        let apart_ends = left_apart.is_zero();
        for id in helpers {
            let Some(session) = self.sessions.get(&id) else { continue };
            match session.stop {
                Stop::Together if !leaves => self.close_once_more(id, true, limit, calls),
                // What is waited for may come after the boundary.
                Stop::Together if !together_ends => self.resume_in_closing(id),
                Stop::Alone | Stop::Last if resumes && !apart_ends => self.resume_in_closing(id),
                Stop::Alone | Stop::Last if !apart_ends => self.close_once_more(id, false, left_apart, calls),
                // It is open, or it is too late.
                _ => {}
            }
        }
    }

    /// The processes that have drained, which may end a wait of others for which work has not ended for `time`. Of those that wait for
    /// each other in a ring each that goes without need comes to wait for the next one. So half of the time one goes, as chance says by the
    /// draw, and what the one before it has submitted gets time to end: `None` until then. All go the other half, for where one has
    /// submitted much that waits, all others have to submit much.
    fn helpers(&self, job: JobId, time: Duration, draw: u32) -> Option<Vec<SessionId>> {
        let sessions = self.jobs.get(&job).into_iter().flat_map(|job| &job.sessions);
        let of_job = || sessions.clone().filter_map(|id| Some((*id, self.sessions.get(id)?)));
        let (mut helpers, mut are_apart) = (Vec::new(), true);
        for (id, session) in of_job().filter(|(_, session)| session.closing.is_none()) {
            are_apart &= session.stop != Stop::Together;
            if matches!(session.stop, Stop::Together | Stop::Alone | Stop::Last) {
                helpers.push(id);
            }
        }
        if are_apart && helpers.len() > 1 && is_in_first_half(time) {
            let told = of_job().map(|(_, session)| session.closing_since).max().unwrap_or_default();
            if self.now < told.saturating_add(time / PACE) {
                return None;
            }
            helpers = vec![helpers[draw as usize % helpers.len()]];
        }
        Some(helpers)
    }

    /// A process that has drained submits a little, and drains anew. `stays`: it is at the common boundary.
    fn close_once_more(&mut self, id: SessionId, stays: bool, drain: Duration, calls: u32) {
        let at_once = Duration::ZERO;
        self.close_session(id, stays.into(), at_once, at_once, drain, calls);
    }

    /// A process that has drained goes on until the others of its job have.
    fn resume_in_closing(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.stop = if session.stop == Stop::Last { Stop::Later } else { Stop::Resumed };
        self.tell(id, ToShim::Open);
    }

    /// The process has memory that no switch can take away: while it lives, its job is not closed any
    /// more. One that waits gets its turn as others do, and keeps it.
    pub(super) fn note_unmovable(&mut self, id: SessionId, reason: String) {
        let Some(session) = self.sessions.get(&id) else { return };
        if let Some(job) = self.jobs.get_mut(&session.job) {
            job.unmovable.insert(id, reason);
        }
    }

    /// Goes on when the last process has answered: to save, or back to open.
    pub(super) fn finish_closing(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let sessions = &self.sessions;
        let answered =
            |session: &SessionId| sessions.get(session).is_none_or(|session| session.closing.is_none());
        if job.phase != Phase::Closing || !job.sessions.iter().all(answered) {
            return;
        }
        job.silent = false;
        let (passed, reopens) = (job.closing.passed.take(), job.reopen);
        // The job that wanted its place may be gone: then nothing is taken from it (I9).
        let stays = reopens || job.has_unmovable_memory() || self.selection().contains(&id);
        if let Some(passed) = passed.filter(|_| !stays) {
            return self.close_again(id, passed);
        }
        if !stays && self.close_the_others(id) {
            return;
        }
        let apart = self.stop_apart(id);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.reopen {
            job.closing.note_late();
        }
        job.stats.closed(self.now);
        job.stats.count_closing(self.now - job.closing.since);
        if std::mem::take(&mut job.reopen) {
            job.stats.failed_drains += 1;
            let failed = job.count_failed_drain(apart);
            let pause = match failed.checked_sub(DRAINS_BEFORE_UNSLICEABLE).filter(|_| !apart) {
                Some(more) => self.config.drain_limit * SELDOM * 2u32.pow(more.min(DOUBLINGS)),
                None => self.config.slice.saturating_mul(2u32.saturating_pow(failed.min(16))),
            };
            // Where processes wait for each other, that they did so often says nothing of the next time.
            let longest = if apart { self.config.drain_limit.saturating_mul(2) } else { Duration::MAX };
            job.not_closed_before = self.now.saturating_add(pause.min(longest));
            return self.open(id);
        }
        job.failed_drains = 0;
        job.closing.note_end();
        job.closing.in_vain &= !job.stats.last_at_boundary;
        if stays { self.open(id) } else { self.leave(id) }
    }

    /// All processes of the job are drained: its memory goes.
    fn leave(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.phase = Phase::Leaving;
        }
        self.level_down(id);
        for tenant in self.tenants_of(id) {
            self.depart(tenant);
        }
        self.finish_moving(id);
    }

    /// Decides what of a tenant's memory goes: pieces without a live byte for good, temporary
    /// ones to a tier; persistent ones stay (R4.6), and whatever is held.
    fn depart(&mut self, id: TenantId) {
        let contents = self.contents(id);
        self.reclassify(id, &contents);
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        tenant.answered.clear();
        // What was in use outside when a lease failed says nothing of its next turn.
        tenant.deceived = None;
        // It did not say how much of this it used: perhaps all.
        tenant.ahead = 0;
        self.note_promise(id);
        let Some(tenant) = self.tenants.get(&id) else { return };
        let ledger = &self.gpus[&tenant.gpu].ledger;
        let goes = |piece: &PieceId| {
            contents.get(piece).is_none_or(|content| content.live == 0)
                || ledger.piece(*piece).is_some_and(|record| record.region == Class::Temporary)
        };
        let pieces: Vec<PieceId> = tenant.takeable().filter(goes).collect();
        let (gpu, job) = (tenant.gpu, tenant.job);
        let savable = self.savable(id, gpu, &pieces, &live_bytes(&contents));
        // A larger share may have room for the rest.
        self.are_needs_new |= savable.len() < pieces.len();
        let departure = self.departure(id, savable, &contents, false);
        if let Some(job) = self.jobs.get_mut(&job) {
            job.stats.live_temporary_bytes += departure.moves.iter().map(|m| m.bytes).sum::<u64>();
            let mut with_bytes: Vec<_> = departure.moves.iter().map(|m| m.piece).collect();
            with_bytes.dedup();
            job.stats.saved_pieces += with_bytes.len() as u64;
        }
        self.unmap(id, departure);
    }

    /// What each piece of a tenant holds. Both lists are in address order: one pass over both.
    fn contents(&self, id: TenantId) -> BTreeMap<PieceId, Content> {
        let Some(tenant) = self.tenants.get(&id) else { return BTreeMap::new() };
        let unit = self.config.unit_bytes;
        let mut pieces: Vec<&Placed> = tenant.pieces.values().collect();
        pieces.sort_unstable_by_key(|placed| (placed.class, placed.slot));
        let mut contents = BTreeMap::new();
        let mut ranges = tenant.live.as_slice();
        for placed in pieces {
            let start = u64::from(placed.slot.0) * unit;
            let end = start + u64::from(placed.units.0) * unit;
            let before =
                |range: &&LiveRange| (range.class, range.start + range.bytes) <= (placed.class, start);
            let skipped = ranges.iter().take_while(before).count();
            ranges = &ranges[skipped..];
            let mut content = Content::default();
            let inside = |range: &&LiveRange| range.class == placed.class && range.start < end;
            for range in ranges.iter().take_while(inside) {
                content.add(range, start, end);
            }
            contents.insert(placed.piece, content);
        }
        contents
    }

    /// Promotion and demotion, per piece and without a copy (§4.6): a piece most of whose live
    /// bytes are long-lived belongs to the persistent region.
    fn reclassify(&mut self, id: TenantId, contents: &BTreeMap<PieceId, Content>) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(gpu) = self.gpus.get_mut(&tenant.gpu) else { return };
        for (piece, content) in contents.iter().filter(|(_, content)| content.live > 0) {
            let Some(record) = gpu.ledger.piece(*piece) else { continue };
            let region = if tenant.held.contains(piece) { Class::Persistent } else { content.region() };
            // Where the persistent region has no room, the piece's bytes are saved each time.
            if record.region == region || gpu.ledger.renumber(*piece, Owner::Tenant(id), region).is_err() {
                continue;
            }
            if region == Class::Persistent {
                tenant.peak_temporary = tenant.peak_temporary.saturating_sub(record.units);
                tenant.peak_persistent = tenant.peak_persistent.max(gpu.ledger.held(id, region));
            }
        }
    }

    fn departure(
        &self,
        id: TenantId,
        pieces: Vec<PieceId>,
        contents: &BTreeMap<PieceId, Content>,
        preempted: bool,
    ) -> Departure {
        let mut departure = Departure {
            pieces,
            moves: Vec::new(),
            saved: Vec::new(),
            blank: Vec::new(),
            since: self.now,
            preempted,
            saving_bytes: 0,
            waiting: 0,
            kept: Vec::new(),
            failed: false,
        };
        let Some(tenant) = self.tenants.get(&id) else { return departure };
        let ledger = &self.gpus[&tenant.gpu].ledger;
        for piece in &departure.pieces {
            let (Some(placed), Some(record)) = (tenant.pieces.get(piece), ledger.piece(*piece)) else {
                continue;
            };
            let Some(content) = contents.get(piece) else { continue };
            let (class, region) = (placed.class, record.region);
            for &(offset, bytes, at) in &content.ranges {
                departure.moves.push(Move { piece: *piece, offset, bytes, class, at });
                departure.saved.push(AwayRange { class, at, bytes, region });
            }
            for &(at, bytes) in &content.dead {
                departure.blank.push((*piece, AwayRange { class, at, bytes, region }));
            }
        }
        departure
    }

    fn unmap(&mut self, id: TenantId, mut departure: Departure) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        if departure.pieces.is_empty() {
            return;
        }
        let (session, pieces) = (tenant.session, departure.pieces.clone());
        departure.waiting = pieces.len().div_ceil(NAMES_PER_MESSAGE);
        tenant.departure = Some(departure);
        for pieces in pieces.chunks(NAMES_PER_MESSAGE) {
            let step = self.step(Pending::Unmap(id));
            self.expect_answer(session, step);
            self.tell(session, ToShim::Unmap { step, tenant: id, pieces: pieces.to_vec() });
        }
    }

    pub(super) fn unmapped(&mut self, id: TenantId) {
        let now = self.now;
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(departure) = tenant.departure.as_mut() else { return };
        departure.waiting -= 1;
        if departure.waiting > 0 {
            return;
        }
        // What the process gave back in the meantime is gone already.
        let kept = |piece: &PieceId| tenant.pieces.contains_key(piece);
        let alive: Vec<bool> = departure.moves.iter().map(|m| kept(&m.piece)).collect();
        let (mut moved, mut saved) = (alive.iter(), alive.iter());
        departure.moves.retain(|_| moved.next() == Some(&true));
        departure.saved.retain(|_| saved.next() == Some(&true));
        departure.blank.retain(|(piece, _)| kept(piece));
        let began = std::mem::replace(&mut departure.since, now);
        let nothing = departure.moves.is_empty();
        if let Some(job) = self.jobs.get_mut(&tenant.job) {
            job.stats.unmap += since(now, began);
        }
        if nothing { self.let_go(id) } else { self.save(id) }
    }

    fn save(&mut self, id: TenantId) {
        let spared = self.spared_for_others(id);
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(departure) = tenant.departure.as_mut() else { return };
        departure.saving_bytes = departure.moves.iter().map(|m| m.bytes).sum();
        let gpu = tenant.gpu;
        let all = departure.moves.len();
        let parts = (0..all).step_by(MOVES_PER_MESSAGE).map(|from| from..all.min(from + MOVES_PER_MESSAGE));
        let parts: Vec<_> = parts.map(|part| (part.clone(), departure.moves[part].to_vec())).collect();
        departure.waiting = parts.len();
        for (part, moves) in parts {
            let step = self.step(Pending::Save(id, part));
            self.effects.push(Effect::Mover(gpu, ToMover::Save { step, tenant: id, moves, spared }));
        }
    }

    /// What a tenant leaves of the first tier: what may have to be saved of those with a higher priority on its GPU,
    /// and is not yet (R0.4); and what who is larger than the GPU may need there.
    fn spared_for_others(&self, id: TenantId) -> u64 {
        let Some(tenant) = self.tenants.get(&id) else { return 0 };
        let priority = |tenant: &Tenant| self.jobs.get(&tenant.job).map(|job| job.spec.priority);
        let is_higher = |other: &Tenant| priority(other) > priority(tenant);
        let of_higher = |other: &Tenant| match is_higher(other) {
            true => self.most_saved(other).saturating_sub(other.saved_bytes()),
            false => 0,
        };
        let spared = |other: &Tenant| of_higher(other).saturating_add(self.spared_for_hosting(other));
        self.tenants_on(tenant.gpu).map(|(_, other)| spared(other)).fold(0, u64::saturating_add)
    }

    /// A part of the bytes is safe; when all are, the pieces may go.
    pub(super) fn saved(&mut self, id: TenantId, part: Range<usize>) {
        let Some(departure) = self.tenants.get_mut(&id).and_then(|tenant| tenant.departure.as_mut()) else {
            return;
        };
        departure.kept.push(part);
        self.finish_saving(id);
    }

    pub(super) fn save_failed(&mut self, id: TenantId) {
        let Some(departure) = self.tenants.get_mut(&id).and_then(|tenant| tenant.departure.as_mut()) else {
            return;
        };
        departure.failed = true;
        self.finish_saving(id);
    }

    fn finish_saving(&mut self, id: TenantId) {
        let now = self.now;
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(departure) = tenant.departure.as_mut() else { return };
        departure.waiting -= 1;
        match (departure.waiting, departure.failed) {
            (0, true) => self.unsave(id),
            (0, false) => {
                let bytes = departure.moves.iter().map(|m| m.bytes).sum();
                if let Some(job) = self.jobs.get_mut(&tenant.job) {
                    job.failed_saves = 0;
                    job.stats.count_save(bytes, since(now, departure.since), departure.preempted);
                }
                let gpu = tenant.gpu;
                self.note_room_in_tiers(gpu);
                self.let_go(id);
            }
            _ => {}
        }
    }

    fn let_go(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(departure) = tenant.departure.take() else { return };
        let (gpu, job) = (tenant.gpu, tenant.job);
        let blank = departure.blank.iter().map(|(_, range)| *range);
        tenant.add_away(&departure.saved, blank, self.config.unit_bytes);
        let gone = departure.pieces.into_iter().filter(|piece| tenant.lose(piece).is_some()).collect();
        self.dispose(gpu, job, gone);
        self.finish_moving(job);
    }

    /// Not all could be saved, so nothing goes (I10). Parts that were saved are restored into the
    /// pieces they came from, which hold the same bytes still: thereby the mover forgets them.
    fn unsave(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(departure) = tenant.departure.as_mut() else { return };
        let gpu = tenant.gpu;
        let kept = std::mem::take(&mut departure.kept);
        let parts: Vec<Vec<Move>> = kept.into_iter().map(|part| departure.moves[part].to_vec()).collect();
        departure.waiting = parts.len();
        if parts.is_empty() {
            return self.map_back(id);
        }
        for moves in parts {
            let step = self.step(Pending::Unsave(id));
            let order = ToMover::Restore { step, tenant: id, moves, poison: Vec::new() };
            self.effects.push(Effect::Mover(gpu, order));
        }
    }

    pub(super) fn unsaved(&mut self, id: TenantId) {
        let Some(departure) = self.tenants.get_mut(&id).and_then(|tenant| tenant.departure.as_mut()) else {
            return;
        };
        departure.waiting -= 1;
        if departure.waiting == 0 {
            self.map_back(id);
        }
    }

    /// Nothing was lost: the job gets its pieces back as they are, and goes on.
    fn map_back(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(departure) = tenant.departure.take() else { return };
        let job_id = tenant.job;
        let is_full = self.gpus[&tenant.gpu].saves_at_most.is_some();
        let pieces: Vec<Placed> =
            departure.pieces.iter().filter_map(|piece| tenant.pieces.get(piece).copied()).collect();
        if let Some(job) = self.jobs.get_mut(&job_id) {
            job.failed_saves += 1;
            // Where the tiers were full, the next attempt is a smaller one.
            let doublings = if is_full { 0 } else { job.failed_saves.min(8) };
            let later = self.now + self.config.slice * 2u32.saturating_pow(doublings);
            job.not_preempted_before = later;
            if !departure.preempted {
                job.not_closed_before = later;
                job.reopen = true;
            }
        }
        self.order_map(id, &pieces, Pending::MapBack);
        self.finish_moving(job_id);
    }

    pub(super) fn mapped_back(&mut self, id: TenantId) {
        if let Some(job) = self.tenants.get(&id).map(|tenant| tenant.job) {
            self.finish_moving(job);
        }
    }

    /// Saves persistent pieces of a closed job that should not run now, lowest priority first,
    /// among equals who is needed last (§4, R0.4). `false`: there is none.
    pub(super) fn preempt(&mut self, gpu: GpuUuid, short: u32, asker: JobId) -> bool {
        self.victims(gpu, asker).into_iter().any(|victim| self.preempt_one(victim, gpu, short))
    }

    /// Could a piece of a closed job be taken, by the room that there is for its live bytes.
    pub(super) fn can_save_any(&self, id: TenantId) -> bool {
        let Some(tenant) = self.tenants.get(&id) else { return false };
        let (contents, room) = (self.contents(id), self.room_for_saves(id));
        tenant.takeable().any(|piece| contents.get(&piece).map_or(0, |content| content.live) <= room)
    }

    fn preempt_one(&mut self, victim: TenantId, gpu: GpuUuid, short: u32) -> bool {
        let contents = self.contents(victim);
        let Some(tenant) = self.tenants.get(&victim) else { return false };
        let (mut units, mut room) = (0, self.room_for_saves(victim));
        // The highest units first: they end the region, or their span.
        let ledger = &self.gpus[&gpu].ledger;
        let with_record = |piece| Some((ledger.piece(piece)?, piece));
        let mut pieces: Vec<_> = tenant.takeable().filter_map(with_record).collect();
        pieces.sort_unstable_by_key(|(record, _)| std::cmp::Reverse(record.start));
        let mut chosen = Vec::new();
        for (record, piece) in pieces {
            let bytes = contents.get(&piece).map_or(0, |content| content.live);
            if units >= short {
                break;
            }
            if bytes > room {
                continue;
            }
            (units, room) = (units + record.units, room - bytes);
            chosen.push(piece);
        }
        if chosen.is_empty() {
            return false;
        }
        let departure = self.departure(victim, chosen, &contents, true);
        let job = tenant.job;
        self.unmap(victim, departure);
        if let Some(job) = self.jobs.get_mut(&job) {
            job.not_prefetched_before = self.now + self.config.slice;
        }
        true
    }

    /// Tenants whose memory may be taken, first that which is to be taken first.
    fn victims(&self, gpu: GpuUuid, asker: JobId) -> Vec<TenantId> {
        let order = self.selection();
        let queue = self.queue();
        let last_needed = |job: JobId| queue.iter().position(|waiting| *waiting == job).unwrap_or(usize::MAX);
        let mut victims: Vec<_> = self
            .tenants_on(gpu)
            .filter(|(_, tenant)| tenant.job != asker && !order.contains(&tenant.job))
            .filter(|(_, tenant)| tenant.takeable().next().is_some() && !tenant.is_on_its_way())
            .filter(|(_, tenant)| self.phase_of(tenant) == Phase::Waiting)
            .filter(|(_, tenant)| self.jobs[&tenant.job].not_preempted_before <= self.now)
            .collect();
        victims.sort_by_key(|(_, tenant)| {
            (self.jobs[&tenant.job].spec.priority, std::cmp::Reverse(last_needed(tenant.job)))
        });
        victims.into_iter().map(|(id, _)| id).collect()
    }

    /// Is there memory that would be taken for a job, if the tiers had room for it.
    pub(super) fn waits_for_tiers(&self, gpu: GpuUuid, asker: JobId) -> bool {
        !self.victims(gpu, asker).is_empty()
    }

    /// Goes on when nothing of the job is under way any more.
    pub(super) fn finish_moving(&mut self, id: JobId) {
        if self.is_moving(id) {
            return;
        }
        let (untouched, kept_bytes) = (self.untouched(id), self.resident_bytes(id, Class::Persistent));
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match job.phase {
            Phase::Leaving if std::mem::take(&mut job.reopen) && untouched => self.open(id),
            Phase::Leaving => {
                job.stats.switches += 1;
                job.stats.kept_bytes = job.stats.kept_bytes.max(kept_bytes);
                job.stats.at_boundary += u64::from(job.stats.last_at_boundary);
                job.phase = Phase::Waiting;
            }
            Phase::Restoring if untouched => self.open(id),
            Phase::Restoring => {
                // A part could not be brought back: what came stays, the rest is tried again.
                job.phase = Phase::Waiting;
                job.put_off_restoring(self.now);
            }
            _ => {}
        }
    }

    /// Is anything of the job's memory under way. What a process failed to carry out stays under
    /// way until the process is dead.
    pub(super) fn is_moving(&self, id: JobId) -> bool {
        let moves = Tenant::is_on_its_way;
        let ordered = |tenant: TenantId| self.tenants.get(&tenant).is_some_and(|tenant| tenant.job == id);
        self.tenants_of(id).iter().any(|tenant| moves(&self.tenants[tenant]))
            || self.pending.values().filter_map(Pending::moves).any(ordered)
    }

    /// Bytes of a job's units in one region, all GPUs added.
    pub fn resident_bytes(&self, id: JobId, region: Class) -> u64 {
        let held = |id: &TenantId| self.gpus[&self.tenants[id].gpu].ledger.held(*id, region);
        self.tenants_of(id).iter().map(|id| u64::from(held(id))).sum::<u64>() * self.config.unit_bytes
    }

    /// Is everything of the job's memory resident.
    fn untouched(&self, id: JobId) -> bool {
        self.tenants_of(id).iter().all(|tenant| !self.tenants[tenant].is_away())
    }

    pub(super) fn open(&mut self, id: JobId) {
        self.note_cost(id);
        self.begin_turn(id);
        let slice = self.longest_borrowed(id).unwrap_or_else(|| self.slice_of(id));
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.lent = false;
        job.phase = Phase::Open;
        // Not to be brought back for nothing, a cap leaves a quarter of the slice.
        let cap = job.slice_cap.take().map_or(self.now + slice, |cap| cap.max(self.now + slice / 4));
        job.slice_end = cap.min(self.now + slice);
        job.cramped = false;
        job.failed_arrivals = 0;
        job.stats.opened(self.now);
        for session in job.sessions.clone() {
            self.forget_unwatched_idleness(session);
            self.tell(session, ToShim::Open);
        }
    }
}

/// Another number each time that work is said not to end.
fn drawn(step: Step, time: u32) -> u32 {
    // The beginning of splitmix64's finalizer.
    let number = (step.0 << 32 | u64::from(time)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32) as u32
}

/// Whether it is half as long again, at most, as the time before it that is twice as long as one before: one, two, four microseconds.
fn is_in_first_half(time: Duration) -> bool {
    let micros = time.as_micros().max(2);
    micros >> (micros.ilog2() - 1) & 1 == 0
}

/// Live bytes of each piece.
fn live_bytes(contents: &BTreeMap<PieceId, Content>) -> BTreeMap<PieceId, u64> {
    contents.iter().map(|(piece, content)| (*piece, content.live)).collect()
}

impl Content {
    fn add(&mut self, range: &LiveRange, start: u64, end: u64) {
        let from = range.start.max(start);
        let bytes = (range.start + range.bytes).min(end) - from;
        if range.life == Life::Dead {
            return self.dead.push((from, bytes));
        }
        self.ranges.push((from - start, bytes, from));
        self.live += bytes;
        if range.life == Life::Long {
            self.long_lived += bytes;
        }
    }

    fn region(&self) -> Class {
        if 2 * self.long_lived > self.live { Class::Persistent } else { Class::Temporary }
    }
}

impl Job {
    /// A drain has failed; how often in a row that has happened. It says nothing of the work of processes that were
    /// stopped apart: one may have waited for what another had not submitted yet. Then it is tried again.
    fn count_failed_drain(&mut self, apart: bool) -> u32 {
        let count = match apart {
            true => &mut self.closing.failed_apart,
            false => &mut self.failed_drains,
        };
        *count = count.saturating_add(1);
        *count
    }
}

impl super::Stats {
    fn count_save(&mut self, bytes: u64, time: Duration, preempted: bool) {
        *if preempted { &mut self.preempted_bytes } else { &mut self.saved_bytes } += bytes;
        self.save += time;
    }
}

/// Since when, for a part of a switch.
pub(super) fn since(now: Time, then: Time) -> Duration {
    now.saturating_sub(then)
}

impl Tenant {
    /// Is any of its memory on its way in or out.
    fn is_on_its_way(&self) -> bool {
        self.arrival.is_some() || self.departure.is_some()
    }

    /// Does it need memory that it has not.
    pub(super) fn is_away(&self) -> bool {
        self.runs.iter().any(|runs| !runs.is_empty())
    }
}
