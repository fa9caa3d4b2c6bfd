//! The waiting graph: which job waits for what, and what that is held by.
//!
//! ```text
//! job 3 ── 12 units on GPU 0 ──► job 1 (never closed)      an edge to a job: it must give way, or end
//!      └── its turn ───────────► order under way, timer    an edge to an event: that is certain to come
//! ```
//! Invariant: a job whose waits all lead to jobs that wait themselves, and of which none can be closed, is deadlocked.
//! Such a cycle is broken by refusing memory to the job of it that came last ([`Scheduler::must_yield`]).

use super::{Job, Pending, Phase, Scheduler, Tenant, Time};
use std::collections::BTreeSet;
use std::fmt;
use tidegate_ffi::units::{Class, GpuUuid, JobId};

/// What a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// To be admitted to a GPU.
    Admission(GpuUuid),
    /// Room for its context.
    Context(GpuUuid),
    /// Pieces of so many units.
    Pieces(GpuUuid, u32),
    /// So many units outside of pieces.
    Outside(GpuUuid, u32),
    /// So many units back: when they were to come there was no room for them.
    Back(GpuUuid, u32),
    /// Its turn.
    Turn,
}

impl Wanted {
    /// The GPU whose memory it is.
    fn gpu(self) -> Option<GpuUuid> {
        match self {
            Wanted::Admission(gpu)
            | Wanted::Context(gpu)
            | Wanted::Pieces(gpu, _)
            | Wanted::Outside(gpu, _)
            | Wanted::Back(gpu, _) => Some(gpu),
            Wanted::Turn => None,
        }
    }

    /// Whether it is memory that a running process asked for.
    fn is_memory(&self) -> bool {
        matches!(self, Wanted::Pieces(..) | Wanted::Outside(..))
    }
}

/// A job that waits, and what would end that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The job.
    pub job: JobId,
    /// What for.
    pub wanted: Wanted,
    /// Jobs of which one has to give way, or to end.
    pub jobs: BTreeSet<JobId>,
    /// Processes that have ended had memory there which is not free yet: another process has it still.
    pub dead: bool,
    /// An order is under way, or a time is set, after which this is looked at again.
    pub awaits_event: bool,
}

impl fmt::Display for Wait {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self.wanted {
            Wanted::Admission(gpu) => write!(to, "admission to {gpu}"),
            Wanted::Context(gpu) => write!(to, "room for a context on {gpu}"),
            Wanted::Pieces(gpu, units) => write!(to, "{units} units on {gpu}"),
            Wanted::Outside(gpu, units) => write!(to, "{units} units outside of pieces on {gpu}"),
            Wanted::Back(gpu, units) => {
                write!(to, "{units} units back on {gpu}, for which there was no room")
            }
            Wanted::Turn => write!(to, "its turn"),
        }?;
        let is_held = self.dead || !self.jobs.is_empty();
        let held = if is_held { ", held by " } else { "" };
        let some = self.jobs.iter().take(NAMED).map(JobId::to_string);
        let dead = self.dead.then(|| DEAD.to_owned());
        let some = some.chain(dead).collect::<Vec<_>>().join(", ");
        let more = self.jobs.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        write!(to, "{held}{some}{more}")
    }
}

/// How a text names processes that have what is left of others.
const DEAD: &str = "processes that have what ended jobs left";
/// A text names so many jobs.
const NAMED: usize = 4;

impl Scheduler {
    /// All waits of all jobs.
    pub fn waits(&self) -> Vec<Wait> {
        self.jobs.keys().flat_map(|job| self.waits_of(*job)).collect()
    }

    /// What a job waits for, in the order in which it needs it, and what holds it.
    pub fn waits_of(&self, id: JobId) -> Vec<Wait> {
        let wait = |wanted: Wanted| match wanted.gpu() {
            Some(gpu) => self.wait(id, gpu, wanted),
            None => self.wait_for_turn(id),
        };
        self.wanted_by(id).into_iter().map(wait).collect()
    }

    /// What a job waits for, in the order in which it needs it.
    pub(super) fn wanted_by(&self, id: JobId) -> Vec<Wanted> {
        let of_job = |session| self.sessions.get(session).is_some_and(|session| session.job == id);
        let arriving = self.admissions.iter().filter(|(session, ..)| of_job(session));
        let mut wanted: Vec<Wanted> = arriving.map(|(_, _, gpu)| Wanted::Admission(*gpu)).collect();
        let is_away = self.jobs.get(&id).is_some_and(|job| job.phase == Phase::Waiting);
        for tenant in self.tenants_of(id).iter().map(|tenant| &self.tenants[tenant]) {
            let pieces = tenant.waiting.front().filter(|_| !is_away && tenant.making.is_none());
            wanted.extend(tenant.entering.map(|_| Wanted::Context(tenant.gpu)));
            wanted.extend(pieces.map(|request| Wanted::Pieces(tenant.gpu, request.units.0)));
            wanted.extend(
                (!tenant.rooms.is_empty()).then(|| Wanted::Outside(tenant.gpu, tenant.asked_outside())),
            );
        }
        wanted.extend(self.wants_turn(id).then(|| self.back_without_room(id).unwrap_or(Wanted::Turn)));
        wanted
    }

    /// What a job lacks that could not be brought back.
    fn back_without_room(&self, id: JobId) -> Option<Wanted> {
        self.jobs.get(&id).filter(|job| job.failed_arrivals > 0)?;
        let away = |tenant: &Tenant| Class::ALL.map(|region| tenant.units_away(region)).iter().sum::<u32>();
        let tenants = self.tenants_of(id);
        let mut away = tenants.iter().map(|id| &self.tenants[id]).map(|tenant| (tenant.gpu, away(tenant)));
        away.find(|(_, units)| *units > 0).map(|(gpu, units)| Wanted::Back(gpu, units))
    }

    /// A wait for memory of a GPU.
    fn wait(&self, job: JobId, gpu: GpuUuid, wanted: Wanted) -> Wait {
        // A newcomer waits for what the other jobs may come to have.
        let comes = matches!(wanted, Wanted::Admission(_) | Wanted::Context(_));
        let others = self.tenants_on(gpu).filter(|(_, tenant)| comes || tenant.holds_any());
        let is_admission = matches!(wanted, Wanted::Admission(_));
        let next = is_admission.then(|| self.next_in_line(gpu)).flatten();
        let next = next.filter(|next| self.place_in_line(*next) < self.place_in_line(job));
        let jobs = others.map(|(_, tenant)| tenant.job).chain(next).filter(|other| *other != job).collect();
        let dead = self.waits_for_the_dead(gpu);
        Wait { job, wanted, jobs, dead, awaits_event: self.is_under_way(gpu) }
    }

    fn wait_for_turn(&self, id: JobId) -> Wait {
        let gpus = self.gpus_of(id);
        let is_there = |tenant: &&Tenant| tenant.job != id && gpus.contains(&tenant.gpu);
        let is_in_the_way = |tenant: &&Tenant| self.phase_of(tenant) != Phase::Waiting;
        let jobs = self.tenants.values().filter(is_there).filter(is_in_the_way).map(|tenant| tenant.job);
        let awaits_event = gpus.iter().any(|gpu| self.is_under_way(*gpu));
        Wait { job: id, wanted: Wanted::Turn, jobs: jobs.collect(), dead: false, awaits_event }
    }

    /// Is an order about a GPU's memory, or a question to a process there, not answered yet.
    fn is_under_way(&self, gpu: GpuUuid) -> bool {
        let is_there = |pending: &Pending| match pending.gpu() {
            Some(on) => on == gpu,
            None => pending.tenant().and_then(|id| self.tenants.get(&id)).is_some_and(|t| t.gpu == gpu),
        };
        let is_closing = |tenant: &Tenant| {
            self.sessions.get(&tenant.session).is_some_and(|session| session.closing.is_some())
        };
        self.pending.values().any(is_there)
            || self.is_recalling(gpu)
            || self.tenants_on(gpu).any(|(_, tenant)| is_closing(tenant))
    }

    /// The jobs that wait for memory which only jobs like them have: none of them can be closed, and none will go on. One that
    /// could not be drained in all the time that work may take is such a job while it waits for memory: its work waits for
    /// that, most likely.
    pub fn deadlocked(&self) -> BTreeSet<JobId> {
        let stays = |job: &Job| job.phase == Phase::Open && (job.unsliceable() || job.failed_drains > 0);
        let keeps = |id: &JobId| self.jobs.get(id).is_some_and(stays);
        let mut waits: Vec<Wait> =
            self.jobs.keys().filter(|id| keeps(id)).flat_map(|id| self.waits_of(*id)).collect();
        waits.retain(|wait| wait.wanted.is_memory());
        // One that is closed holds memory that cannot be moved, and gives none of it back before its turn comes.
        let closed =
            self.jobs.keys().filter(|id| self.holds_while_closed(**id) || self.keeps_for_lack_of_room(**id));
        waits.extend(closed.flat_map(|id| self.waits_of(*id)));
        loop {
            let among: BTreeSet<JobId> = waits.iter().map(|wait| wait.job).collect();
            let before = waits.len();
            waits.retain(|wait| !wait.awaits_event && !wait.jobs.is_empty() && wait.jobs.is_subset(&among));
            if waits.len() == before {
                return among.into_iter().filter(keeps).collect();
            }
        }
    }

    /// Is a job closed that holds memory of a GPU which no switch takes away.
    fn holds_while_closed(&self, id: JobId) -> bool {
        let mut own = self.tenants.values().filter(|tenant| tenant.job == id);
        self.jobs.get(&id).is_some_and(|job| job.phase == Phase::Waiting)
            && own.any(|own| own.held_units() > 0)
    }

    /// Is a job closed that has memory on a GPU of which no piece can be saved, as the tiers or its user's quota have no room.
    fn keeps_for_lack_of_room(&self, id: JobId) -> bool {
        let is_closed = |job: &Job| job.phase == Phase::Waiting && job.not_preempted_before <= self.now;
        let own = self.tenants_of(id);
        self.jobs.get(&id).is_some_and(is_closed)
            && own.iter().any(|tenant| self.tenants[tenant].holds_any())
            && !own.iter().any(|tenant| self.can_save_any(*tenant))
    }

    /// Whether a job that could not be drained would most likely fail to be again: it waits for memory, and how the closing of
    /// another ends, or what a deadlock costs one of its jobs, is to be seen first. Both are certain to come.
    pub(super) fn would_fail_again(&self, id: JobId) -> bool {
        let closes = |peer: &JobId| self.jobs.get(peer).is_some_and(|peer| peer.phase == Phase::Closing);
        self.wanted_by(id).iter().any(Wanted::is_memory)
            && (self.jobs_near(id).iter().any(closes) || self.deadlocked().contains(&id))
    }

    /// Is the job the last that came of those in a deadlock: what it asks for is refused, so that the others can go on
    /// when it ends or gives something back.
    pub(super) fn must_yield(&self, job: JobId) -> bool {
        self.deadlocked().last() == Some(&job)
    }

    /// The waits of which nothing can come: no order is under way, no time is set, and no job that could give way runs.
    pub fn stuck(&self) -> Vec<Wait> {
        let is_moving = !self.pending.is_empty()
            || self.next_event().is_some()
            || self.sessions.values().any(|session| session.closing.is_some())
            || self.gpus.keys().any(|gpu| self.is_recalling(*gpu));
        if is_moving {
            return Vec::new();
        }
        let mut waits = self.waits();
        let waiting: BTreeSet<JobId> = waits.iter().map(|wait| wait.job).collect();
        let runs = |id: &JobId| {
            self.jobs
                .get(id)
                .is_some_and(|job| job.phase == Phase::Open && !waiting.contains(id) || job.is_stuck())
        };
        waits.retain(|wait| !wait.jobs.iter().any(runs));
        waits
    }

    /// The jobs that have waited longer than the turns of all that are before them can take, each once.
    pub fn starving(&self) -> Vec<JobId> {
        let is_late = |id: &JobId| self.starves_at(*id).is_some_and(|at| at <= self.now);
        self.jobs.keys().copied().filter(is_late).collect()
    }

    /// When a job will have waited too long; `None`: it does not wait, or the reason is known and told.
    pub(super) fn starves_at(&self, id: JobId) -> Option<Time> {
        let job = self.jobs.get(&id)?;
        let since = job.waits_since?;
        let near = self.jobs_near(id);
        let weights = near
            .iter()
            .filter_map(|peer| self.jobs.get(peer))
            .map(|peer| peer.spec.weight)
            .fold(0, u32::saturating_add);
        let turns = (near.len() as u32 + 2).saturating_add(weights.max(job.spec.weight));
        // It pays back at most what it was forgiven.
        let turn = self.longest_turn(near.iter().chain([&id])).saturating_add(job.forgiven * 2);
        Some(since.saturating_add(turn.saturating_mul(turns)))
    }

    /// Does a job wait for a reason that is told and ends with another job (one that is never closed, cannot be saved,
    /// or has a higher priority), or that is the user's own doing (a stopped process).
    pub(super) fn is_excused(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return true };
        let stays = |peer: &super::Job| {
            peer.unsliceable()
                || peer.silent
                || peer.failed_drains + peer.closing.failed_apart + peer.failed_saves > 0
        };
        let goes_first =
            |other: JobId, peer: &super::Job| peer.spec.priority > job.spec.priority && !self.is_idle(other);
        let near = self.jobs_near(id);
        let mut peers = near.iter().filter_map(|other| Some((*other, self.jobs.get(other)?)));
        let is_put_off =
            job.failed_arrivals > 0 || job.silent || self.is_stranded(id) || self.is_shut_out(id);
        !self.is_attached(id)
            || is_put_off
            || peers.any(|(other, peer)| stays(peer) || goes_first(other, peer))
    }

    /// The other jobs on a job's GPUs.
    pub(super) fn jobs_near(&self, id: JobId) -> BTreeSet<JobId> {
        let near = self.gpus_of(id).into_iter().flat_map(|gpu| self.jobs_on(gpu));
        near.filter(|other| *other != id).collect()
    }

    /// The longest that one of these jobs keeps others waiting: a slice, its end, and a switch.
    fn longest_turn<'a>(&self, jobs: impl Iterator<Item = &'a JobId>) -> Time {
        let turn = |id: &JobId| {
            let job = self.jobs.get(id)?;
            Some(self.longest_slice_of(job) + job.stats.mean_switch() * 2)
        };
        let longest = jobs.filter_map(turn).max().unwrap_or_default();
        longest + self.config.boundary_deadline * 3 + self.config.drain_limit * 2 + self.config.answer_limit
    }
}

impl Pending {
    /// The GPU that it is about, where it names no tenant.
    fn gpu(&self) -> Option<GpuUuid> {
        match self {
            Pending::MakeForNobody(gpu, ..)
            | Pending::Scrub(gpu, ..)
            | Pending::Destroy(gpu, ..)
            | Pending::Retire(gpu, _)
            | Pending::Measure(gpu, ..)
            | Pending::Share(gpu, _) => Some(*gpu),
            _ => None,
        }
    }
}
