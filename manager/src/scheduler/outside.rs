//! Memory in use that lies in no piece: contexts and modules of the jobs and of the mover, and
//! what programs outside Tidegate take.
//!
//! Nobody asks for it unit by unit, so it is measured: what the driver calls used, less what is
//! in pieces. It is measured where several tenants share a GPU (a job alone pays for no context
//! of the mover's), and as long as something is known to be outside: before a newcomer is let in,
//! at its first lease, when the GPU has less room than the ledger thought, and when somebody wants
//! to know. What a newcomer's context took is the headroom that is kept for the next one.
//!
//! ```text
//! Attach ─► measure ─► does every job still fit, alone, beside one more context? ─ no ─► queue
//!                       └ yes ─► a tenant, entering: it takes its turn ─► Attached, when the
//!                                                                        headroom is free
//! MakeRoom ─► spare and unused pieces are set free; in the job's turn, closed jobs' too; then,
//!             alone on the GPU, all that others hold ─► Room
//! ```
//!
//! How much a call will take is the driver's secret: it fails, asks for one unit, then for twice as
//! much each time, until it does not fail or there is no more to be had.

use super::{Effect, Pending, Phase, Scheduler, Tenant, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidegate_ffi::units::{Class, GpuUuid, JobId, SessionId, Step, TenantId, Units};
use tidegate_ffi::wire::message::{ToMover, ToShim};

/// Who has no room because of what lies outside is looked at again after so many slices.
pub(super) const SLICES_BETWEEN_LOOKS: u32 = 10;
/// How often it is seen whether what the dead left is gone, until it is not waited for any more.
const LOOKS_AT_THE_DEAD: u32 = 100;
/// The most calls of one tenant that wait for room: each is a thread.
const ROOMS_PER_TENANT: usize = 256;
/// The headroom is the largest of so many contexts: it falls again when that many newcomers took less.
const CONTEXTS_REMEMBERED: usize = 8;

/// A call that waits for memory outside of pieces.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Room {
    step: Step,
    /// Units that are to be free for it.
    pub(super) units: u32,
    /// What others use has to go for it.
    at_others_cost: bool,
}

/// What is known of a GPU's memory outside of pieces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outside {
    /// Units that are to be kept free for a newcomer's context at least.
    least_headroom: u32,
    /// What the contexts of the last newcomers took, in units.
    contexts: VecDeque<u32>,
    /// Units that the GPU has beyond the ledger's: they are used up first.
    apart: u32,
    /// Units in use outside of pieces, as last measured.
    pub units: Option<u32>,
    /// What it was before newcomers made their contexts, and how many came since.
    before: Option<(u32, u32)>,
    /// What happened since it was ordered to be measured last.
    since: Since,
    /// When who waits for room is looked at again.
    next_look: Time,
    /// What the dead may have left to others: until when it is waited for, and the units that were
    /// outside without it.
    left: Option<(Time, u32)>,
}

/// What happened between two measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Since {
    /// Units that expelled processes kept, which are dead now, by user: their children may keep them still.
    pub(super) given_back: BTreeMap<u32, u32>,
    /// Units of the contexts of processes that are dead.
    pub(super) contexts_gone: u32,
}

impl Since {
    /// Adds what happened before.
    fn add(&mut self, before: Self) {
        for (uid, units) in before.given_back {
            *self.given_back.entry(uid).or_default() += units;
        }
        self.contexts_gone = self.contexts_gone.saturating_add(before.contexts_gone);
    }
}

impl Outside {
    pub(super) fn new(headroom: u32, apart: u32) -> Self {
        let (least_headroom, contexts) = (headroom, VecDeque::new());
        let (units, before, next_look, left) = (None, None, Time::ZERO, None);
        Self { least_headroom, contexts, apart, units, before, since: Since::default(), next_look, left }
    }

    /// Units that are to be kept free for a newcomer's context: as many as one of the last few took.
    fn headroom(&self) -> u32 {
        self.contexts.iter().copied().fold(self.least_headroom, u32::max)
    }

    /// An expelled process is dead that kept so many units.
    pub(super) fn note_given_back(&mut self, uid: u32, units: u32) {
        *self.since.given_back.entry(uid).or_default() += units;
    }

    pub(super) fn has_given_back(&self) -> bool {
        !self.since.given_back.is_empty()
    }

    fn note_context(&mut self, units: u32) {
        self.contexts.push_back(units);
        if self.contexts.len() > CONTEXTS_REMEMBERED {
            self.contexts.pop_front();
        }
    }
}

impl super::Gpu {
    /// Do several share it, or did they: then the mover has its context, and what lay outside of
    /// pieces may be gone with those who went.
    fn is_worth_a_look(&self, now: Time) -> bool {
        let has_left = self.outside.left.is_some_and(|(until, _)| now < until);
        self.tenants.len() > 1 || has_left || self.outside.units.is_some_and(|units| units > 0)
    }

    /// Tells the ledger what it may not use.
    pub(super) fn reserve(&mut self) {
        let (headroom, apart) = (self.outside.headroom(), self.outside.apart);
        let outside = self.outside.units.unwrap_or(0);
        self.ledger.set_outside(Units(outside.saturating_sub(apart)));
        self.ledger.set_headroom(Units(headroom.saturating_sub(apart.saturating_sub(outside))));
    }
}

impl Scheduler {
    /// A process wants its first context on a GPU.
    pub(super) fn ask_attach(&mut self, session: SessionId, step: Step, gpu: GpuUuid) {
        let waits = self.admissions.iter().any(|(of, _, on)| (*of, *on) == (session, gpu));
        let is_there = self.tenants_on(gpu).any(|(_, tenant)| tenant.session == session);
        if waits || is_there {
            return self.expel(session, "it attached twice to one GPU");
        }
        self.admissions.push((session, step, gpu));
        self.are_needs_new = true;
        self.look_again(gpu);
    }

    /// Asks who is on a GPU for what they do not use, and measures the rest.
    fn look_again(&mut self, gpu: GpuUuid) {
        let pause = match self.waits_for_the_dead(gpu) {
            true => self.config.answer_limit / LOOKS_AT_THE_DEAD,
            false => self.config.slice * SLICES_BETWEEN_LOOKS,
        };
        let next_look = self.now + pause;
        if let Some(gpu) = self.gpus.get_mut(&gpu).filter(|gpu| !gpu.tenants.is_empty()) {
            gpu.outside.next_look = next_look;
        } else {
            return;
        }
        self.recall_cached(gpu);
        self.measure(gpu);
    }

    /// Looks again where somebody waits for room outside of pieces.
    pub(super) fn look_at_who_waits(&mut self) {
        for gpu in self.awaited_gpus() {
            if self.gpus[&gpu].outside.next_look <= self.now {
                self.forget_recalls_on(gpu);
                self.look_again(gpu);
            }
        }
    }

    /// When a GPU will be looked at again.
    pub(super) fn next_look(&self) -> Option<Time> {
        self.awaited_gpus().into_iter().map(|gpu| self.gpus[&gpu].outside.next_look).min()
    }

    /// The GPUs on which newcomers wait for somebody to make room, or anybody for what the dead
    /// left.
    fn awaited_gpus(&self) -> BTreeSet<GpuUuid> {
        let newcomers = self.admissions.iter().map(|(_, _, gpu)| *gpu);
        let newcomers = newcomers.filter(|id| self.gpus.get(id).is_some_and(|gpu| !gpu.tenants.is_empty()));
        let wants = |tenant: &&Tenant| !tenant.waiting.is_empty() || !tenant.rooms.is_empty();
        let others = self.tenants.values().filter(wants).map(|tenant| tenant.gpu);
        newcomers.chain(others.filter(|gpu| self.waits_for_the_dead(*gpu))).collect()
    }

    /// Somebody on a GPU is gone, or is no part of its job any more. Its children may live a
    /// little longer, and what it had with them. Its context took so many units.
    pub(super) fn note_death(&mut self, gpu: GpuUuid, context: u32) {
        let (now, patience) = (self.now, self.config.answer_limit);
        let Some(outside) = self.gpus.get_mut(&gpu).map(|gpu| &mut gpu.outside) else { return };
        let known = outside.left.filter(|(until, _)| now < *until).map(|(_, without)| without);
        let without = known.unwrap_or(u32::MAX).min(outside.units.unwrap_or(0));
        outside.left = Some((now + patience, without));
        outside.since.contexts_gone = outside.since.contexts_gone.saturating_add(context);
        outside.next_look = now;
    }

    /// Is there less room than there will be when all that the dead had is free.
    pub(super) fn waits_for_the_dead(&self, gpu: GpuUuid) -> bool {
        let Some(gpu) = self.gpus.get(&gpu) else { return false };
        let is_more = |without| gpu.outside.units > Some(without) || gpu.ledger.retired() > 0;
        gpu.outside.left.is_some_and(|(until, without)| self.now < until && is_more(without))
    }

    /// Would every job on a GPU still fit there, alone, beside one more context. Who does not
    /// could never run again: it does not shrink because others want it to.
    pub(super) fn has_room_for_one_more(&self, gpu_id: GpuUuid) -> bool {
        let ledger = &self.gpus[&gpu_id].ledger;
        let room = ledger.total().saturating_sub(ledger.reserved() + self.expected_outside(gpu_id, true));
        let known = !self.is_measuring(gpu_id) && !self.is_recalling(gpu_id);
        known && self.jobs_on(gpu_id).into_iter().all(|job| self.units_in_use(gpu_id, job) <= room)
    }

    /// Units that newcomers' contexts will take which may not be there yet; `all`: of those too
    /// who are not let in yet.
    pub(super) fn expected_outside(&self, gpu: GpuUuid, all: bool) -> u32 {
        let newcomers = self.tenants_on(gpu).filter(|(_, t)| !t.measured && (all || t.entering.is_none()));
        self.gpus[&gpu].ledger.headroom().saturating_mul(newcomers.count() as u32)
    }

    /// Could a job not run on its GPUs even if it had them alone: others' contexts, or what they
    /// hold, took its room.
    pub(super) fn is_shut_out(&self, id: JobId) -> bool {
        self.gpus_of(id).into_iter().any(|gpu| {
            let ledger = &self.gpus[&gpu].ledger;
            let taken =
                u64::from(ledger.outside() + ledger.retired()) + self.unmovable_units_of_other_jobs(gpu, id);
            u64::from(self.units_in_use(gpu, id)) + taken > u64::from(ledger.total())
        })
    }

    /// What a job has on a GPU, wherever it lies now.
    fn units_in_use(&self, gpu: GpuUuid, job: JobId) -> u32 {
        let ledger = &self.gpus[&gpu].ledger;
        let of_tenant = |(id, tenant): (TenantId, &Tenant)| {
            Class::ALL.map(|region| ledger.held(id, region) + tenant.units_away(region)).iter().sum::<u32>()
        };
        self.tenants_on(gpu).filter(|(_, tenant)| tenant.job == job).map(of_tenant).sum()
    }

    /// Answers the newcomers for whose contexts there is room.
    pub(super) fn let_in(&mut self) {
        let entering = self.tenants.iter().filter(|(_, tenant)| tenant.entering.is_some());
        let entering: Vec<TenantId> = entering.map(|(id, _)| *id).collect();
        for id in entering {
            if !self.must_wait_outside(id) {
                self.enter(id);
            }
        }
    }

    fn must_wait_outside(&mut self, id: TenantId) -> bool {
        let (gpu, job) = (self.tenants[&id].gpu, self.tenants[&id].job);
        if self.is_measuring(gpu) {
            // Others' contexts may have come since it was measured last.
            return true;
        }
        let short = self.gpus[&gpu].ledger.short_of(self.expected_outside(gpu, false));
        if short == 0 {
            return false;
        }
        if self.make_room(gpu, short, &BTreeSet::new(), job) {
            return true;
        }
        // Its turn comes, and others go for it. If they cannot, its context may fit all the same.
        let will_go = |tenant: &Tenant| self.jobs.get(&tenant.job).is_some_and(|job| !job.unsliceable());
        let others = self.tenants_on(gpu).filter(|(_, tenant)| tenant.job != job && tenant.holds_any());
        let open = self.jobs.get(&job).is_none_or(|job| job.phase == Phase::Open);
        !open && others.map(|(_, tenant)| tenant).any(will_go)
    }

    fn enter(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(step) = tenant.entering.take() else { return };
        let (gpu, session) = (tenant.gpu, tenant.session);
        let layout = self.layout(id);
        if let Some((outside, leaked)) =
            self.gpus.get_mut(&gpu).map(|gpu| (&mut gpu.outside, gpu.leaks.total()))
            && let Some(units) = outside.units
        {
            outside.before.get_or_insert((units.saturating_sub(leaked), 0)).1 += 1;
        }
        self.tell(session, ToShim::Attached { step, tenant: id, layout });
    }

    /// A tenant asks for its first memory: its context is there now.
    pub(super) fn note_context(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        if !std::mem::replace(&mut tenant.measured, true) {
            let gpu = tenant.gpu;
            self.survey_one(gpu);
        }
    }

    /// Measures the GPUs that several share.
    pub(super) fn survey(&mut self) {
        let gpus: Vec<GpuUuid> = self.gpus.keys().copied().collect();
        gpus.into_iter().for_each(|gpu| self.survey_one(gpu));
    }

    /// Before a lease is refused for what lies outside: that may be less by now. `true`: it is
    /// being measured, or will be less soon.
    pub(super) fn doubts(&mut self, id: TenantId) -> bool {
        let Some(tenant) = self.tenants.get_mut(&id) else { return false };
        let gpu = tenant.gpu;
        let is_old = self.gpus[&gpu].ledger.outside() > 0 && !std::mem::replace(&mut tenant.doubted, true);
        if is_old {
            self.measure(gpu);
        }
        is_old || self.waits_for_the_dead(gpu)
    }

    pub(super) fn survey_one(&mut self, gpu: GpuUuid) {
        if self.gpus.get(&gpu).is_some_and(|gpu| gpu.is_worth_a_look(self.now)) {
            self.measure(gpu);
        }
    }

    /// Lets the mover measure. It carries its orders out in order: what it was told to make
    /// before is in pieces then, what it was told to destroy is not.
    pub(super) fn measure(&mut self, gpu: GpuUuid) {
        if self.is_measuring(gpu) {
            return;
        }
        let ledger = &self.gpus[&gpu].ledger;
        let leaving: BTreeSet<_> = self
            .pending
            .values()
            .filter_map(|pending| match pending {
                Pending::Destroy(on, pieces, _) if *on == gpu => Some(pieces),
                _ => None,
            })
            .flatten()
            .collect();
        let staying = ledger.pieces().filter(|(piece, _)| !leaving.contains(piece));
        // Who keeps a retired piece uses it still.
        let in_pieces = staying.map(|(_, record)| record.units).sum::<u32>() + ledger.retired();
        let since = self.gpus.get_mut(&gpu).map(|gpu| std::mem::take(&mut gpu.outside.since));
        let step = self.step(Pending::Measure(gpu, in_pieces, since.unwrap_or_default()));
        self.effects.push(Effect::Mover(gpu, ToMover::Measure { step }));
    }

    pub(super) fn is_measuring(&self, gpu: GpuUuid) -> bool {
        self.pending.values().any(|pending| matches!(pending, Pending::Measure(on, ..) if *on == gpu))
    }

    /// It could not be measured: what happened before is looked at the next time.
    pub(super) fn not_measured(&mut self, gpu: GpuUuid, since: Since) {
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            gpu.outside.since.add(since);
        }
    }

    pub(super) fn measured(&mut self, step: Step, used_bytes: u64) {
        let Some(Pending::Measure(id, in_pieces, since)) = self.pending.remove(&step) else { return };
        let outside = self.units_for(used_bytes).saturating_sub(in_pieces);
        self.compare(id, outside, since);
        let Some(gpu) = self.gpus.get_mut(&id) else { return };
        gpu.outside.units = Some(outside);
        gpu.reserve();
        if gpu.outside.has_given_back() {
            self.measure(id);
        }
        let arrived = self.tenants_on(id).all(|(_, tenant)| tenant.measured || tenant.entering.is_some());
        let Some(gpu) = self.gpus.get_mut(&id).filter(|_| arrived) else { return };
        if let Some((before, newcomers)) = gpu.outside.before.take() {
            let came = outside.saturating_sub(gpu.leaks.total()).saturating_sub(before);
            // It is the newcomers', and nothing that the dead have left.
            if let Some((_, without)) = &mut gpu.outside.left {
                *without = without.saturating_add(came);
            }
            let context = came.div_ceil(newcomers.max(1));
            gpu.outside.note_context(context);
            gpu.reserve();
            let new = |tenant: &&mut Tenant| tenant.gpu == id && tenant.measured;
            self.tenants
                .values_mut()
                .filter(new)
                .for_each(|tenant| _ = tenant.context.get_or_insert(context));
        }
    }

    /// A process has no room for a context, a module, a graph or an array.
    pub(super) fn ask_room(&mut self, session: SessionId, step: Step, gpu: GpuUuid, units: u32) {
        let asker = self.tenants.iter_mut().find(|(_, t)| (t.session, t.gpu) == (session, gpu));
        let Some((_, tenant)) = asker.filter(|(_, tenant)| tenant.rooms.len() < ROOMS_PER_TENANT) else {
            return self.expel(session, "it asked for room where it may not");
        };
        let units = units.min(self.gpus[&gpu].ledger.total());
        tenant.rooms.push_back(Room { step, units, at_others_cost: false });
        self.forget_recalls_on(gpu);
        self.survey_one(gpu);
        self.set_idle(session, false);
    }

    /// Answers who wants room outside of pieces and can have it, or never could.
    pub(super) fn give_room(&mut self) {
        let askers = self.tenants.iter().filter(|(_, tenant)| !tenant.rooms.is_empty());
        let askers: Vec<TenantId> = askers.map(|(id, _)| *id).collect();
        for id in askers {
            while self.give_first_room(id) {}
        }
    }

    fn give_first_room(&mut self, id: TenantId) -> bool {
        let Some(&Room { units, .. }) = self.tenants.get(&id).and_then(|t| t.rooms.front()) else {
            return false;
        };
        let Some(more) = self.make_room_outside(id, units) else { return false };
        let Some(tenant) = self.tenants.get_mut(&id) else { return false };
        let Some(Room { step, at_others_cost, .. }) = tenant.rooms.pop_front() else { return false };
        let (session, job) = (tenant.session, tenant.job);
        if at_others_cost {
            // They do not come back before it has taken what it wants.
            self.cramp(job);
        }
        self.tell(session, ToShim::Room { step, more });
        true
    }

    /// Sees that so many units are free outside of pieces. `Some`: they are, or as many as can
    /// be, and whether there could be more.
    ///
    /// What nobody uses is set free at once, what others use in the job's turn. The headroom is there
    /// to be used. Who is away is not answered: what it took would be missing when it comes back.
    fn make_room_outside(&mut self, id: TenantId, units: u32) -> Option<bool> {
        let tenant = self.tenants.get(&id)?;
        let (gpu, job) = (tenant.gpu, tenant.job);
        let is_open = self.phase_of(tenant) == Phase::Open;
        let is_there = match self.phase_of(tenant) {
            Phase::Open => true,
            Phase::Waiting => !self.tenants_of(job).iter().any(|tenant| self.tenants[tenant].is_away()),
            Phase::Restoring | Phase::Closing | Phase::Leaving => false,
        };
        if self.is_measuring(gpu) || !is_there {
            return None;
        }
        let ledger = &self.gpus[&gpu].ledger;
        let stays = u32::try_from(self.unmovable_units_of_other_jobs(gpu, job)).unwrap_or(u32::MAX);
        let in_use = ledger.taken_outside() + self.units_of_job(gpu, job);
        let most = ledger.total().saturating_sub(in_use.saturating_add(stays));
        let short = ledger.short_outside(units.min(most));
        if short == 0 && units < most {
            return Some(true);
        }
        // Its own unused memory may be missing yet.
        let none = BTreeSet::new();
        let coming = self.destroy_spares(gpu, u32::MAX, &none)
            || self.units_are_coming(gpu, &none)
            || self.recall_unused(gpu, None);
        if coming {
            return None;
        }
        if short == 0 || !self.others_hold_any(gpu, job) || self.must_yield(job) {
            return (!self.waits_for_the_dead(gpu)).then_some(false);
        }
        // Who does not fit beside its wish leaves by itself; then, what they left behind goes.
        let comes = !is_open || self.make_room(gpu, short, &none, job);
        let is_kept = !comes && self.is_all_kept_by_closed(gpu, job, short) == Some(true);
        if let Some(room) = self.tenants.get_mut(&id).and_then(|tenant| tenant.rooms.front_mut()) {
            room.at_others_cost = !is_kept;
        }
        if comes || is_kept {
            return is_kept.then_some(false);
        }
        self.cramp(job);
        None
    }
}
