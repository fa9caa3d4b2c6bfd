//! Who runs, and who has what: a pure state machine over the ledgers of all GPUs (DESIGN §7).
//!
//! [`Scheduler::handle`] takes the time and what happened, and returns what is to be done. It
//! has no clock, does no I/O and starts no threads: the server feeds it messages, the simulator
//! feeds it virtual time, random jobs and faults.
//!
//! ```text
//!            restore            map                boundary | deadline
//! waiting ───────────► restoring ───────► open ───────────────────────► closing
//!    ▲                                     ▲   not drained: opens again    │ drained
//!    └───────────── leaving ◄──────────────┼───────────────────────────────┘
//!        saved      (save failed: mapped back, opens again)
//! ```
//! - `order`: which jobs should run together now;
//! - `lease`: how an allocation gets its pieces, and what gives way to it;
//! - `debts`: what jobs owed that have ended;
//! - `slice`: what a job's switches cost, and how long its slices are for that;
//! - `idle`: what becomes of the turn of a job that is idle;
//! - `departure`, `arrival`: the two halves of a switch;
//! - `gang`: where the processes of one job stop;
//! - `prefetch`: what comes back before its turn;
//! - `outside`: memory in use that lies in no piece, and room for more of it;
//! - `waits`: which job waits for what;
//! - `progress`: what is done if jobs stand still all the same;
//! - `promises`: which allocations are refused, so that memory can always move;
//! - `quota`: how much a process, and a user, may have;
//! - `held`: pieces that no switch takes;
//! - `expulsion`: who breaks the protocol, and the memory that it keeps (I8);
//! - `silence`: who does not answer;
//! - `event`, `job`: the words.
//!
//! Invariants: I2 (a piece is one tenant's), I4 (the ledger's), I5 (a job's processes have one
//! grant), I11 (no job stands still): [`Scheduler::check`].

mod arrival;
mod check;
mod debts;
mod departure;
mod event;
mod expulsion;
mod gang;
mod held;
mod hosted;
mod idle;
mod job;
mod leaks;
mod lease;
mod needs;
mod order;
mod outside;
mod parts;
mod placements;
mod prefetch;
mod progress;
mod promises;
mod quota;
mod remap;
mod shares;
mod silence;
mod slice;
mod spares;
#[cfg(test)]
mod tests;
mod waits;
mod warmth;

pub use event::{Config, Effect, Event, Pages, Time};
pub use expulsion::Retired;
pub use gang::Stop;
pub use idle::Pauses;
pub use job::{
    Arrival, AwayRange, Closing, Departure, Job, Part, Pending, Phase, QueuePlace, Recall, Session, Stats,
    Tenant,
};
pub use leaks::Leaks;
pub use outside::Outside;
pub use placements::Placements;
pub use quota::{SavedQuota, UserQuotas};
pub use shares::{Share, whole_grains};
pub use slice::Costs;
pub use spares::{Spare, Spares};
pub use waits::{Wait, Wanted};

use crate::kept::{Keep, Store, StoreError};
use crate::ledger::Ledger;
use crate::planner::shares::{PerTier, TIERS};
use debts::Debt;
use needs::Needs;
use remap::Remap;
use serde::{Deserialize, Serialize};
use silence::Due;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidegate_ffi::units::{GpuUuid, JobId, PieceId, SessionId, Step, TenantId, Tier, Units};
use tidegate_ffi::wire::message::{JobSpec, Layout, LinkRates, Need, Shortage, ToMover, ToShim};

/// After so many drains that did not end, a job is closed seldom: its work may end after all.
pub const DRAINS_BEFORE_UNSLICEABLE: u32 = 3;
/// Pieces in one message that brings a file descriptor for each.
const PIECES_PER_MESSAGE: usize = 200;
/// What a job was forgiven is forgotten in turns of the usual length that take so many times that time.
const FORGOTTEN: u32 = 10;
/// Moves in one message: at most some 330 KiB.
pub const MOVES_PER_MESSAGE: usize = 8192;
/// Names of pieces in one message: at most some 160 KiB.
const NAMES_PER_MESSAGE: usize = 16384;

/// One GPU as the scheduler knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gpu {
    /// Its units.
    pub ledger: Ledger,
    /// Scrubbed pieces that nobody uses.
    pub spares: Spares,
    /// Pieces that no tenant uses any more, with the last tenant's bytes: for memory that comes back and overwrites them. They
    /// are scrubbed as soon as none is about to.
    unscrubbed: Spares,
    /// Pieces that somebody keeps who should have given them back (I8).
    pub retired: BTreeMap<PieceId, Retired>,
    /// What users keep of pieces that were destroyed.
    pub leaks: Leaks,
    /// Pieces that were held once: a descriptor or a mapping outside of their process may still lead to them.
    exposed: BTreeSet<PieceId>,
    /// Who is on it.
    pub tenants: BTreeSet<TenantId>,
    /// What is known of memory outside of pieces.
    pub outside: Outside,
    /// Its shares of the tiers.
    pub shares: [Share; TIERS],
    /// A save found no room though its shares should have it: they take no more bytes than this.
    saves_at_most: Option<u64>,
    /// So many saves have found no room in its shares since one of as many bytes did.
    failed_saves: u32,
    /// The last of them would have made so many bytes of what is saved.
    no_room_for: u64,
    /// Since when no save has found memory.
    no_memory_since: Option<Time>,
    /// For so many bytes its mover was told to have memory in the tiers.
    warm_bytes: u64,
    /// What jobs owed that have left it, the largest first.
    #[serde(default)]
    debts: Vec<Debt>,
    /// How fast its link is, once that is known.
    link: Option<LinkRates>,
    /// Nobody can make or move its memory any more.
    pub lost: bool,
}

/// Why a process is no part of its job any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is dead: nothing of it can reach any memory.
    Dead,
    /// It was expelled: it may still reach whatever it was given.
    Expelled,
}

/// The state of all GPUs and jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scheduler {
    config: Config,
    now: Time,
    gpus: BTreeMap<GpuUuid, Gpu>,
    jobs: BTreeMap<JobId, Job>,
    sessions: BTreeMap<SessionId, Session>,
    tenants: BTreeMap<TenantId, Tenant>,
    pending: BTreeMap<Step, Pending>,
    /// Processes that broke the protocol and are not dead yet.
    expelled: BTreeSet<SessionId>,
    /// What processes were asked and have not answered.
    due: Vec<Due>,
    /// Map orders that were carried out in part.
    remaps: BTreeMap<Step, Remap>,
    /// Attaches that wait for admission, in the order of arrival.
    admissions: Vec<(SessionId, Step, GpuUuid)>,
    /// Somebody may need another share of a tier than before.
    are_needs_new: bool,
    /// What a user's job of a name last needed (R4.1).
    remembered: Needs,
    /// How often jobs stood still, or starved, and were made to go on.
    standstills: u64,
    next_step: u64,
    next_tenant: u64,
    next_piece: u64,
    /// Empty between events.
    #[serde(skip)]
    effects: Vec<Effect>,
}

/// Its long parts are those of its tenants.
impl Keep for Scheduler {
    fn keep(&mut self, store: &mut dyn Store) -> Result<(), StoreError> {
        self.tenants.values_mut().flat_map(Tenant::long_parts).try_for_each(|part| part.keep(store))
    }

    fn load(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.tenants.values_mut().flat_map(Tenant::long_parts).try_for_each(|part| part.load(store))
    }
}

impl Scheduler {
    /// No GPUs, no jobs.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            now: Time::ZERO,
            gpus: BTreeMap::new(),
            jobs: BTreeMap::new(),
            sessions: BTreeMap::new(),
            tenants: BTreeMap::new(),
            pending: BTreeMap::new(),
            expelled: BTreeSet::new(),
            due: Vec::new(),
            remaps: BTreeMap::new(),
            admissions: Vec::new(),
            are_needs_new: false,
            remembered: Needs::default(),
            standstills: 0,
            next_step: 0,
            next_tenant: 0,
            next_piece: 0,
            effects: Vec::new(),
        }
    }

    /// Takes in what happened at `now` and says what is to be done, in this order.
    pub fn handle(&mut self, now: Time, event: Event, pages: &dyn Pages) -> Vec<Effect> {
        self.pass_time(now);
        if !event.speaker().is_some_and(|session| self.expelled.contains(&session)) {
            self.take_in(event);
        }
        self.note_the_silent(pages);
        self.part_from_expelled();
        self.look_at_who_waits();
        self.admit();
        self.balance_shares();
        self.warm_tiers();
        self.serve_leases();
        self.give_room();
        self.settle(pages);
        self.serve_leases();
        self.let_in();
        self.give_room();
        self.scrub_the_unscrubbed();
        if self.ensure_progress() {
            self.settle(pages);
            self.serve_leases();
            self.scrub_the_unscrubbed();
        }
        self.tell_places();
        std::mem::take(&mut self.effects)
    }

    /// The processes of jobs that are not known to be dead.
    pub fn processes(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.keys().chain(&self.expelled).copied()
    }

    /// What is done by an order that is not answered yet.
    pub fn name_of(&self, order: Step) -> Option<&'static str> {
        self.pending.get(&order).map(Pending::name)
    }

    /// The orders that are not answered yet, as they were given.
    #[cfg(test)]
    pub fn orders(&self) -> impl Iterator<Item = Step> + '_ {
        self.pending.keys().copied()
    }

    /// The process for whose sake, or by whom, an order that is not answered yet is carried out.
    pub fn whose(&self, order: Step) -> Option<SessionId> {
        let tenant = self.pending.get(&order)?.tenant()?;
        Some(self.tenants.get(&tenant)?.session)
    }

    /// For so long there was no manager that could have heard answers: nobody is late for that.
    pub fn forgive(&mut self, absence: Duration) {
        self.allow_more_time(absence);
    }

    fn take_in(&mut self, event: Event) {
        match event {
            Event::GpuAdded { gpu, units, apart, shares } => self.add_gpu(gpu, units, apart, shares),
            Event::GpuLost { gpu } => self.lose_gpu(gpu),
            Event::JobArrived { job, uid, spec } => self.add_job(job, uid, spec),
            Event::JobReleased { job } => self.release_job(job),
            Event::SessionJoined { session, job } => self.join(session, job),
            Event::SessionEnded { session } => self.end_session(session),
            Event::SessionBroke { session, reason } => self.expel(session, &reason),
            Event::Attach { session, step, gpu } => self.ask_attach(session, step, gpu),
            Event::MakeRoom { session, step, gpu, units } => self.ask_room(session, step, gpu, units),
            Event::Lease { session, request } => self.ask_lease(session, request),
            Event::Returned { session, tenant, pieces, unused, recalled } => {
                self.take_back(session, tenant, &pieces, unused, recalled);
            }
            Event::Hold { session, step, tenant, pieces } => self.hold(session, step, tenant, &pieces),
            Event::Borrow { session, step, tenant, class, first, units } => {
                self.lend(session, step, tenant, held::Slots { class, first, units });
            }
            Event::LetGo { session, tenant, pieces } => self.let_go_of_held(session, tenant, &pieces),
            Event::Used { session, tenant, slots } => self.note_uses(session, tenant, slots),
            Event::Drained { session, step, at_boundary, drain, maps, outstanding } => {
                self.drained(session, step, at_boundary, drain, maps, &outstanding);
            }
            Event::NotDrained { session, step } => self.not_drained(session, step),
            Event::Passed { session, step, boundary } => self.passed(session, step, boundary),
            Event::Stalled { session, step, is_overdue } => {
                self.note_overdue(session, step, is_overdue);
                self.help_drain(session, step);
            }
            Event::ShimDone { session, step } => self.shim_done(session, step),
            Event::MappedSome { session, step, pieces } => self.mapped_some(session, step, pieces),
            Event::ShimFailed { session, step, reason } => self.shim_failed(session, step, &reason),
            Event::Unsliceable { session, reason } => self.note_unmovable(session, reason),
            Event::Idle { session } => self.set_idle(session, true),
            Event::Waiting { session } => self.set_idle(session, false),
            Event::MoverDone { step, bytes, .. } => self.mover_done(step, bytes),
            Event::MoverFailed { step, reason, shortage, .. } => {
                self.mover_failed(step, &reason, shortage);
            }
            Event::Measured { step, used_bytes, .. } => self.measured(step, used_bytes),
            Event::Link { gpu, rates } => self.note_link(gpu, rates),
            Event::Survey => self.survey(),
            Event::Tick => {}
        }
    }

    fn pass_time(&mut self, now: Time) {
        let before = self.now;
        self.now = before.max(now);
        let has_turn = |(_, job): &(&JobId, &Job)| matches!(job.phase, Phase::Open | Phase::Closing);
        let with_turn: Vec<JobId> = self.jobs.iter().filter(has_turn).map(|(id, _)| *id).collect();
        for id in with_turn {
            let used = self.used_of_turn(id, before);
            if let Some(job) = self.jobs.get_mut(&id) {
                job.runtime += self.now - before;
                job.charge(used);
            }
        }
    }

    fn add_gpu(&mut self, id: GpuUuid, units: u32, apart: u32, shares: PerTier) {
        let ledger = Ledger::new(Units(units), Units(self.config.offset_units));
        let (spares, retired, tenants) = (Spares::default(), BTreeMap::new(), BTreeSet::new());
        let outside = Outside::new(self.config.headroom_units, apart);
        let shares = shares.map(Share::new);
        let mut gpu = Gpu {
            ledger,
            spares,
            unscrubbed: Spares::default(),
            retired,
            leaks: Leaks::default(),
            tenants,
            outside,
            shares,
            saves_at_most: None,
            failed_saves: 0,
            no_room_for: 0,
            no_memory_since: None,
            debts: Vec::new(),
            warm_bytes: 0,
            link: None,
            exposed: BTreeSet::new(),
            lost: false,
        };
        gpu.reserve();
        self.gpus.insert(id, gpu);
    }

    /// A GPU's memory cannot be moved any more. Who has a grant there keeps it, and is never closed
    /// again; who waits could wait for ever, and ends.
    fn lose_gpu(&mut self, id: GpuUuid) {
        let Some(gpu) = self.gpus.get_mut(&id) else { return };
        gpu.lost = true;
        self.lose_shares(id);
        let waits = |tenant: &Tenant| matches!(self.phase_of(tenant), Phase::Waiting | Phase::Restoring);
        let waiting: BTreeSet<SessionId> =
            self.tenants_on(id).filter(|(_, t)| waits(t)).map(|(_, tenant)| tenant.session).collect();
        for session in waiting {
            self.expel(session, &format!("{id} cannot be shared any more: its mover is gone for good"));
        }
    }

    /// Is the job on a GPU whose memory cannot be moved any more.
    fn is_stranded(&self, id: JobId) -> bool {
        self.gpus_of(id).iter().any(|gpu| self.gpus[gpu].lost)
    }

    fn add_job(&mut self, id: JobId, uid: u32, mut spec: JobSpec) {
        spec.need = spec.need.or_else(|| self.remembered.of(uid, &spec.name));
        self.jobs.insert(id, Job::new(uid, spec));
        let most = self.most_memory(id);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.spec.need = job.spec.need.map(|need| need.at_most(most));
        }
    }

    /// The most bytes that a process of a job can ever have of a GPU: what it says beyond that keeps no other job out.
    fn most_memory(&self, id: JobId) -> u64 {
        // It is not known yet.
        let Some(units) = self.gpus.values().map(|gpu| gpu.ledger.total()).max() else { return u64::MAX };
        let on_gpu = u64::from(units) * self.config.unit_bytes;
        match self.may_oversubscribe(id) {
            true => self.config.tier_bytes.into_iter().fold(on_gpu, u64::saturating_add),
            false => on_gpu,
        }
    }

    fn release_job(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.announced = false;
            self.end_job_if_over(id);
        }
    }

    fn join(&mut self, id: SessionId, job_id: JobId) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return self.expel(id, "its job is over");
        };
        job.sessions.insert(id);
        job.stats.arrived.get_or_insert(self.now);
        // A process that comes while the job closes is closed already.
        let session = Session {
            job: job_id,
            closing: None,
            closing_since: self.now,
            stalls: 0,
            stop: Stop::Last,
            idle: false,
            tick_micros: 0,
            tenants: Vec::new(),
        };
        let closed = job.phase != Phase::Open;
        self.sessions.insert(id, session);
        self.note_pause(job_id);
        self.effects.push(Effect::Welcome { session: id, job: job_id, closed });
    }

    /// Admits waiting tenants, by the priority of their jobs and then in the order in which these came. A tenant is admitted
    /// when what it is known to need has room beside the other jobs (see [`promises`]), so that a switch can always make
    /// progress (I6); alone on a GPU, always. Later jobs pass one that has no place only as long as jobs before it keep it out.
    fn admit(&mut self) {
        let mut waiting = std::mem::take(&mut self.admissions);
        waiting.sort_by_key(|(session, ..)| {
            self.sessions.get(session).map(|session| self.place_in_line(session.job))
        });
        let before = waiting.len();
        let mut is_next = BTreeMap::new();
        waiting.retain(|&(session, step, gpu)| {
            let job = self.sessions.get(&session).map(|session| session.job);
            let is_held_back = is_next.get(&gpu).is_some_and(|next| Some(*next) != job);
            let begins = job.is_some_and(|job| !self.is_attached(job));
            if is_held_back && begins || !self.try_admit(session, step, gpu) {
                let next = job.filter(|job| !is_held_back && self.is_kept_out_by_later(gpu, *job));
                is_next.extend(next.map(|job| (gpu, job)));
                return true;
            }
            false
        });
        self.are_needs_new |= waiting.len() < before;
        self.admissions.append(&mut waiting);
    }

    /// The order of admission: the highest priority first, then the job that came first.
    fn place_in_line(&self, job: JobId) -> (Reverse<i32>, JobId) {
        (Reverse(self.jobs.get(&job).map_or(0, |job| job.spec.priority)), job)
    }

    /// The waiting job that no later job passes on a GPU.
    fn next_in_line(&self, gpu: GpuUuid) -> Option<JobId> {
        let waiting = self.admissions.iter().filter(|(.., on)| *on == gpu);
        let mut jobs = waiting.filter_map(|(session, ..)| Some(self.sessions.get(session)?.job));
        jobs.find(|job| self.is_kept_out_by_later(gpu, *job))
    }

    /// Whether a job that has no place on a GPU would have one beside those of its jobs that are before it in line, or are never
    /// closed: then it is the next, and no later job passes it.
    fn is_kept_out_by_later(&self, gpu: GpuUuid, id: JobId) -> bool {
        let stays = |peer: JobId| self.jobs.get(&peer).is_some_and(Job::is_never_closed);
        let is_before = |peer: JobId| stays(peer) || self.place_in_line(peer) < self.place_in_line(id);
        !self.has_place(gpu, id) && self.has_place_beside(gpu, id, is_before)
    }

    fn try_admit(&mut self, session_id: SessionId, step: Step, gpu_id: GpuUuid) -> bool {
        let Some(session) = self.sessions.get(&session_id) else { return true };
        let job_id = session.job;
        let Some(gpu) = self.gpus.get(&gpu_id).filter(|gpu| !gpu.lost) else {
            let known = if self.gpus.contains_key(&gpu_id) { " any more: its mover died" } else { "" };
            let reason = format!("this manager does not share {gpu_id}{known}");
            self.tell(session_id, ToShim::AttachRefused { step, reason });
            return true;
        };
        // A job that has begun is let in whole: half a gang would wait with what others need.
        let begun = self.is_attached(job_id) || gpu.tenants.is_empty();
        let has_room = self.has_place(gpu_id, job_id) && self.has_room_for_one_more(gpu_id);
        let may_come = begun || has_room && self.quota_against(job_id, gpu_id).is_none();
        if !may_come {
            return false;
        }
        self.attach(session_id, step, gpu_id, job_id);
        true
    }

    fn need_bytes(&self, job: JobId) -> u64 {
        let need = self.jobs.get(&job).and_then(|job| job.spec.need).unwrap_or_default();
        need.persistent.saturating_add(need.temporary)
    }

    fn attach(&mut self, session_id: SessionId, step: Step, gpu_id: GpuUuid, job: JobId) {
        self.next_tenant += 1;
        let id = TenantId(self.next_tenant);
        let begins = !self.is_attached(job);
        let (Some(gpu), Some(session)) = (self.gpus.get_mut(&gpu_id), self.sessions.get_mut(&session_id))
        else {
            return;
        };
        gpu.tenants.insert(id);
        session.tenants.push(id);
        let tenant = Tenant { entering: Some(step), ..Tenant::new(session_id, job, gpu_id) };
        self.tenants.insert(id, tenant);
        if begins {
            self.level_with_others(job);
            self.take_debt(job, gpu_id);
        }
    }

    /// How a tenant's memory is laid out.
    fn layout(&self, id: TenantId) -> Layout {
        let tenant = &self.tenants[&id];
        let gpu = &self.gpus[&tenant.gpu];
        let on_gpu = u64::from(gpu.ledger.total()) * self.config.unit_bytes;
        let in_host = gpu.share(Tier::Dram).bytes();
        let in_host =
            if self.may_oversubscribe(tenant.job) { in_host - in_host % self.config.unit_bytes } else { 0 };
        let total_bytes = on_gpu.saturating_add(in_host);
        Layout {
            unit_bytes: self.config.unit_bytes,
            piece_bytes: u64::from(self.config.piece_units) * self.config.unit_bytes,
            total_bytes: total_bytes.min(self.quota(id).unwrap_or(u64::MAX)),
            range_bytes: (on_gpu * 4).next_multiple_of(self.config.unit_bytes),
        }
    }

    fn set_idle(&mut self, id: SessionId, idle: bool) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.idle = idle;
        let job = session.job;
        self.note_pause(job);
    }

    fn set_active(&mut self, id: SessionId) {
        self.set_idle(id, false);
    }

    /// A job that comes has no claim at all: it begins where the one stands that has had most. Where another one is owed time a new job is
    /// owed none of it.
    fn level_with_others(&mut self, id: JobId) {
        if let (Some(level), Some(job)) = (self.levels_near(id).last().copied(), self.jobs.get_mut(&id)) {
            job.virtual_runtime = job.virtual_runtime.max(level);
        }
    }

    /// A job that was idle has no claim on more than so much of the time it did not want. Time counts where the
    /// job is: rather among those that are on no other GPUs (a gang that waits elsewhere lags).
    fn level_up(&mut self, id: JobId, claim: Duration) {
        if let (Some(level), Some(job)) = (self.level_near(id), self.jobs.get_mut(&id)) {
            job.virtual_runtime = job.virtual_runtime.max(level.saturating_sub(job.virtual_time(claim)));
        }
    }

    /// A job that has had more time than the others owes no more of it than the longest slice, and what it was forgiven before.
    fn level_down(&mut self, id: JobId) {
        let (debt, turn) = (self.longest_debt(id), self.length_of_turn(id));
        if let (Some(level), Some(job)) = (self.level_near(id), self.jobs.get_mut(&id)) {
            let lead = job.virtual_runtime.saturating_sub(level);
            if lead <= job.virtual_time(debt) {
                job.forgiven = job.forgiven.saturating_sub(turn / FORGOTTEN);
                return;
            }
            let forgiven = lead.saturating_sub(job.virtual_time(debt + job.forgiven));
            job.virtual_runtime -= forgiven;
            job.forgiven += Duration::from_nanos(forgiven.saturating_mul(job.spec.weight.max(1).into()));
        }
    }

    /// How long a job has had its turn.
    fn length_of_turn(&self, id: JobId) -> Duration {
        let began = self.jobs.get(&id).and_then(|job| Some(job.stats.grants.back()?.0));
        began.map(|began| self.now.saturating_sub(began)).unwrap_or_default()
    }

    /// So much time a job owes at most, but for what it was forgiven before.
    fn longest_debt(&self, id: JobId) -> Duration {
        self.config.slice_max.max(self.slice_of(id))
    }

    /// The least virtual time of the other jobs on a job's GPUs.
    fn level_near(&self, id: JobId) -> Option<u64> {
        self.levels_near(id).first().copied()
    }

    /// The virtual times of the other jobs on a job's GPUs that count, the least first.
    fn levels_near(&self, id: JobId) -> Vec<u64> {
        let Some(priority) = self.jobs.get(&id).map(|job| job.spec.priority) else { return Vec::new() };
        let gpus = self.gpus_of(id);
        // Those that are idle count where all are; so do those that have had no turn yet, or hardly one. Else new jobs that come
        // all the time, each where the one before it stood, would keep out one that stays.
        let near = |peer: JobId, job: &Job| {
            let there = self.gpus_of(peer);
            let same = peer != id && job.spec.priority == priority;
            let is_new = job.runtime < self.config.slice / 2;
            let kind = || (self.is_idle(peer), !there.is_subset(&gpus), is_new);
            (same && !there.is_disjoint(&gpus)).then(|| (kind(), job.virtual_runtime))
        };
        let mut all: Vec<_> = self.jobs.iter().filter_map(|(peer, job)| near(*peer, job)).collect();
        all.sort_unstable();
        let first = all.first().map(|(kind, _)| *kind);
        all.into_iter().take_while(|(kind, _)| Some(*kind) == first).map(|(_, level)| level).collect()
    }

    fn end_session(&mut self, id: SessionId) {
        self.expelled.remove(&id);
        self.give_back_retired(id);
        self.part_from(id, Fate::Dead);
    }

    fn part_from(&mut self, id: SessionId, fate: Fate) {
        self.note_debt(id);
        let Some(session) = self.sessions.remove(&id) else { return };
        if let Some(job) = self.jobs.get_mut(&session.job) {
            job.sessions.remove(&id);
            job.unmovable.remove(&id);
        }
        for tenant in session.tenants {
            self.end_tenant(tenant, fate);
        }
        self.note_pause(session.job);
        self.finish_closing(session.job);
        self.finish_moving(session.job);
        self.end_job_if_over(session.job);
    }

    /// A tenant's death gives everything back (I7). Orders that are under way end in the mover's
    /// order before the pieces are scrubbed or destroyed; the process answers none any more.
    fn end_tenant(&mut self, id: TenantId, fate: Fate) {
        self.void_making(id);
        let Some(tenant) = self.tenants.remove(&id) else { return };
        self.pending.retain(|_, pending| pending.of_process() != Some(id));
        self.remember(&tenant);
        if let Some(gpu) = self.gpus.get_mut(&tenant.gpu) {
            gpu.tenants.remove(&id);
        }
        self.note_death(tenant.gpu, tenant.context.unwrap_or(0));
        self.note_other_tenants(tenant.gpu);
        let pieces = tenant.pieces.keys().copied().collect();
        match fate {
            Fate::Dead => self.dispose(tenant.gpu, tenant.job, pieces),
            Fate::Expelled => self.retire(tenant.gpu, tenant.session, tenant.job, pieces),
        }
        self.effects.push(Effect::Mover(tenant.gpu, ToMover::Forget { tenant: id }));
    }

    /// What a job needs is what its neediest process needed.
    fn remember(&mut self, tenant: &Tenant) {
        let Some(job) = self.jobs.get_mut(&tenant.job) else { return };
        let bytes = |units: u32| u64::from(units) * self.config.unit_bytes;
        job.used.persistent = job.used.persistent.max(bytes(tenant.peak_persistent));
        job.used.temporary = job.used.temporary.max(bytes(tenant.peak_temporary));
        if job.used != Need::default() {
            self.remembered.note(job.uid, &job.spec.name, job.used);
        }
    }

    fn end_job_if_over(&mut self, id: JobId) {
        let over = |job: &Job| !job.announced && job.sessions.is_empty();
        if self.jobs.get(&id).is_some_and(over)
            && let Some(job) = self.jobs.remove(&id)
        {
            self.effects.push(Effect::JobEnded(id, Box::new(job)));
        }
    }

    fn tell(&mut self, session: SessionId, message: ToShim) {
        self.effects.push(Effect::Shim(session, message));
    }

    fn step(&mut self, pending: Pending) -> Step {
        self.next_step += 1;
        self.pending.insert(Step(self.next_step), pending);
        Step(self.next_step)
    }

    fn new_piece(&mut self) -> PieceId {
        self.next_piece += 1;
        PieceId(self.next_piece)
    }

    fn tenants_on(&self, gpu: GpuUuid) -> impl Iterator<Item = (TenantId, &Tenant)> {
        let ids = self.gpus.get(&gpu).into_iter().flat_map(|gpu| &gpu.tenants);
        ids.filter_map(|id| Some((*id, self.tenants.get(id)?)))
    }

    fn jobs_on(&self, gpu: GpuUuid) -> BTreeSet<JobId> {
        self.tenants_on(gpu).map(|(_, tenant)| tenant.job).collect()
    }

    fn tenants_of(&self, job: JobId) -> Vec<TenantId> {
        let sessions = self.jobs.get(&job).into_iter().flat_map(|job| &job.sessions);
        sessions
            .filter_map(|id| self.sessions.get(id))
            .flat_map(|session| &session.tenants)
            .copied()
            .collect()
    }

    fn phase_of(&self, tenant: &Tenant) -> Phase {
        self.jobs.get(&tenant.job).map_or(Phase::Waiting, |job| job.phase)
    }

    fn shim_done(&mut self, session: SessionId, step: Step) {
        if self.has_more_to_map(session, step) {
            return;
        }
        match self.take_pending(session, step) {
            Some(Pending::Unmap(tenant)) => self.unmapped(tenant),
            Some(Pending::MapBack(tenant, _)) => self.mapped_back(tenant),
            Some(Pending::Map(tenant, _)) => self.mapped(tenant),
            _ => self.expel(session, "it answered an order that it was not given"),
        }
    }

    /// A driver call failed in the process itself: it cannot go on, its neighbours can (I10).
    fn shim_failed(&mut self, session: SessionId, step: Step, reason: &str) {
        self.take_pending(session, step);
        self.expel(session, reason);
    }

    /// The order `step`, if it was given to this process.
    fn take_pending(&mut self, session: SessionId, step: Step) -> Option<Pending> {
        let tenant = self.pending.get(&step)?.of_process()?;
        (self.tenants.get(&tenant)?.session == session).then(|| self.pending.remove(&step))?
    }

    fn mover_done(&mut self, step: Step, bytes: u64) {
        match self.pending.remove(&step) {
            Some(Pending::Save(tenant, part)) => self.saved(tenant, part),
            Some(Pending::Unsave(tenant)) => {
                self.note_less_saved(tenant);
                self.unsaved(tenant);
            }
            Some(Pending::MakeForLease(tenant, request, placed, _)) => {
                self.made_lease(tenant, request, placed)
            }
            Some(Pending::MakeForNobody(gpu, uid, pieces, _)) => self.all_back_to_spares(gpu, &pieces, uid),
            Some(Pending::MakeForArrival(tenant, _)) => self.made_arrival(tenant),
            Some(Pending::Restore(tenant, part)) => {
                self.note_less_saved(tenant);
                self.restored(tenant, part, bytes);
            }
            Some(Pending::ScrubForArrival(tenant, part)) => self.restored(tenant, part, 0),
            Some(Pending::Scrub(gpu, pieces, uid)) => self.all_back_to_spares(gpu, &pieces, uid),
            Some(Pending::Destroy(gpu, pieces, watched)) => {
                self.destroyed(pieces);
                if let Some(uid) = watched {
                    self.note_leak(gpu, uid, bytes);
                }
            }
            Some(Pending::Retire(gpu, pieces)) => self.retired_by_mover(gpu, &pieces),
            Some(Pending::Share(gpu, tier)) => self.share_is(gpu, tier, bytes),
            _ => {}
        }
    }

    fn mover_failed(&mut self, step: Step, reason: &str, shortage: Option<Shortage>) {
        let out_of_memory = shortage.is_some();
        match self.pending.remove(&step) {
            Some(Pending::Save(tenant, _)) => {
                // There may be more to be saved by now than its share was made for, or less.
                self.are_needs_new = true;
                if let Some(shortage) = shortage {
                    self.note_no_room(tenant, shortage);
                }
                self.save_failed(tenant);
            }
            // A copy more than is needed stays in the tier until the tenant's end.
            Some(Pending::Unsave(tenant)) => self.unsaved(tenant),
            Some(Pending::MakeForLease(tenant, request, placed, new)) => {
                self.make_failed_for_lease(tenant, request, &placed, new, reason, out_of_memory);
            }
            Some(Pending::MakeForNobody(gpu, uid, pieces, new)) => {
                let adopted: Vec<PieceId> = pieces.into_iter().filter(|piece| !new.contains(piece)).collect();
                self.destroyed(new);
                self.all_back_to_spares(gpu, &adopted, uid);
            }
            Some(Pending::MakeForArrival(tenant, pieces)) => self.make_failed_for_arrival(tenant, pieces),
            Some(Pending::Restore(tenant, part) | Pending::ScrubForArrival(tenant, part)) => {
                self.restore_failed(tenant, part, reason, out_of_memory);
            }
            Some(Pending::Scrub(gpu, pieces, uid)) => self.destroy_one_by_one(gpu, pieces, Some(uid)),
            // The mover knows no such piece any more: nothing of it is left to free.
            Some(Pending::Destroy(_, pieces, _)) if pieces.len() == 1 => self.destroyed(pieces),
            // It knows one of them no more, and has left the others alone.
            Some(Pending::Destroy(gpu, pieces, uid)) => self.destroy_one_by_one(gpu, pieces, uid),
            Some(Pending::Retire(gpu, pieces)) if pieces.len() == 1 => self.retired_by_mover(gpu, &pieces),
            Some(Pending::Retire(gpu, pieces)) => self.retire_one_by_one(gpu, pieces),
            Some(Pending::Share(gpu, tier)) => self.share_stays(gpu, tier),
            Some(Pending::Measure(gpu, _, since)) => self.not_measured(gpu, since),
            _ => {}
        }
    }

    /// When something is due though nothing happens; `None`: never.
    pub fn next_wakeup(&self) -> Option<Time> {
        let starving = self.jobs.keys().filter_map(|id| self.starves_at(*id));
        starving.chain(self.next_event()).filter(|due| *due > self.now).min()
    }

    /// The same, but for the times at which jobs would have waited too long.
    fn next_event(&self) -> Option<Time> {
        // A job whose allocation finds no room waits for the others' slices as one does that is closed.
        let contended = self.jobs.iter().any(|(id, job)| job.cramped || self.wants_turn(*id));
        let slices = self.jobs.values().filter(|job| job.phase == Phase::Open && contended);
        let slices = slices.map(|job| job.slice_end.max(job.not_closed_before));
        let waiting = self.jobs.values().filter(|job| matches!(job.phase, Phase::Waiting | Phase::Restoring));
        let retries = waiting.flat_map(|job| [job.not_restored_before, job.not_preempted_before]);
        let idle = self.jobs.iter().filter(|(_, job)| job.phase == Phase::Open && contended);
        let lends = idle.filter_map(|(id, _)| self.lends_from(*id));
        slices
            .chain(retries)
            .chain(lends)
            .chain(self.next_look())
            .chain(self.next_due())
            .chain(self.next_remap())
            .filter(|due| *due > self.now)
            .min()
    }

    /// The GPUs, for status.
    pub fn gpus(&self) -> &BTreeMap<GpuUuid, Gpu> {
        &self.gpus
    }

    /// The jobs, for status.
    pub fn jobs(&self) -> &BTreeMap<JobId, Job> {
        &self.jobs
    }

    /// The processes, for status.
    pub fn sessions(&self) -> &BTreeMap<SessionId, Session> {
        &self.sessions
    }

    /// The tenants, for status.
    pub fn tenants(&self) -> &BTreeMap<TenantId, Tenant> {
        &self.tenants
    }

    /// How often jobs stood still, or waited too long, and were made to go on: an error of the manager's, each time.
    pub fn standstills(&self) -> u64 {
        self.standstills
    }

    /// How many orders to processes and movers are not answered yet.
    pub fn orders_under_way(&self) -> usize {
        self.pending.len()
    }

    /// How the manager was told to share.
    pub fn config(&self) -> &Config {
        &self.config
    }
}
