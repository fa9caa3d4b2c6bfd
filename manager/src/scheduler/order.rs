//! Which jobs should run together now (DESIGN §7).
//!
//! Jobs are ordered: who cannot be closed, then strict priority, then whose slice is not over,
//! then who has had least GPU time for its weight. In that order each joins the group that runs,
//! if the group still fits on all its GPUs:
//! Σ persistent of all resident jobs + Σ peak temporary of the members + headroom ≤ GPU.
//! The first that can be closed always runs, beside those who cannot if it fits beside them alone:
//! for it, closed jobs' persistent memory is saved if it must be. So it is for one more, the first of the others
//! that would fit beside all before it: where one job has a claim to all of the time, the others would else take
//! turns that grow with all the time before. And who runs stays, if the group fits once others' memory is away.
//!
//! So nobody starves: who waits has least time at last, and is then the first. One thing is
//! missing for that: slices that end one after the other would keep out for ever who needs the
//! room of two, be it on one GPU or on several. Therefore who is passed over sets a *horizon*: the
//! end of the slices that are in its way. Whoever comes after it in the order and is on its GPUs
//! gets no slice that goes further.
//!
//! ```text
//! A ███████|███|      A's slice is renewed only to the horizon of G, which is C's end
//! C    ████████|
//! G            |█████████
//! ```

use super::{Effect, Job, Pages, Phase, QueuePlace, Scheduler, Tenant, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidegate_ffi::units::{Class, GpuUuid, JobId, TenantId};
use tidegate_ffi::wire::message::ToShim;

/// A job that should run now.
struct Turn {
    job: JobId,
    gpus: BTreeSet<GpuUuid>,
    /// Until when it goes before others of its class.
    end: Time,
    /// Until when it may, at most.
    horizon: Option<Time>,
}

/// A job that should run and cannot.
struct PassedOver {
    gpus: BTreeSet<GpuUuid>,
    /// When all that are in its way will have had their slices.
    end: Option<Time>,
    priority: i32,
}

impl Scheduler {
    /// Closes who should not run, brings back who should. Where one of them cannot be brought back now, others run.
    pub(super) fn settle(&mut self, pages: &dyn Pages) {
        self.look_for_stopped(pages);
        let selected = loop {
            let selected = self.select_and_bring_back(pages);
            // Who was selected did not pause before.
            if !selected.iter().any(|id| self.jobs.get(id).is_some_and(|job| self.pauses(job))) {
                break selected;
            }
        };
        self.go_on_restoring();
        self.repeat_maps();
        self.prefetch(&selected, pages);
        self.watch(&selected);
    }

    fn select_and_bring_back(&mut self, pages: &dyn Pages) -> Vec<JobId> {
        let mut turns = self.turns();
        while self.pass_over_the_stopped(&jobs_of(&turns), pages) {
            turns = self.turns();
        }
        self.deal_slices(&turns);
        let selected = jobs_of(&turns);
        for id in self.running_jobs() {
            if !selected.contains(&id) {
                self.close(id, pages);
            }
        }
        for id in &selected {
            if !self.must_wait_for_closing(*id, &selected) {
                self.bring_back(*id);
            }
        }
        selected
    }

    /// Is somebody who makes room for this job still running. Nobody may run beside whom he does
    /// not fit, not even a newcomer that has no memory to bring back yet.
    fn must_wait_for_closing(&self, id: JobId, selected: &[JobId]) -> bool {
        let gpus = self.gpus_of(id);
        let closing = |job: &JobId| self.jobs.get(job).is_some_and(|job| job.phase == Phase::Closing);
        self.tenants.values().any(|tenant| {
            gpus.contains(&tenant.gpu) && !selected.contains(&tenant.job) && closing(&tenant.job)
        })
    }

    fn running_jobs(&self) -> Vec<JobId> {
        let open = self.jobs.iter().filter(|(id, job)| job.phase == Phase::Open && self.is_attached(**id));
        open.map(|(id, _)| *id).collect()
    }

    /// The jobs that should run now, in order.
    pub(super) fn selection(&self) -> Vec<JobId> {
        jobs_of(&self.turns())
    }

    fn turns(&self) -> Vec<Turn> {
        let mut turns: Vec<Turn> = Vec::new();
        let mut taken: BTreeSet<GpuUuid> = BTreeSet::new();
        // Where those run already who can be closed, and one for whom others' persistent memory gives way.
        let (mut contended, mut displaced) = (BTreeSet::new(), BTreeSet::new());
        let mut passed_over: Vec<PassedOver> = Vec::new();
        for id in self.ordered() {
            let (job, gpus) = (&self.jobs[&id], self.gpus_of(id));
            let near: Vec<&PassedOver> =
                passed_over.iter().filter(|other| !other.gpus.is_disjoint(&gpus)).collect();
            let horizon = near.iter().filter_map(|other| other.end).min();
            let beside = turns.iter().filter(|turn| !turn.gpus.is_disjoint(&gpus));
            let group: Vec<JobId> = beside.map(|turn| turn.job).collect();
            let (is_alone, fits) = (gpus.is_disjoint(&taken), self.fits(&group, id));
            let (is_open, is_kept) = (job.phase == Phase::Open, self.is_kept(id));
            // What cannot be closed is there, whether it fits beside the others or not.
            let joins = is_kept || fits || is_alone || {
                let is_first = gpus.is_disjoint(&contended);
                let is_outranked = near.iter().any(|other| other.priority > job.spec.priority);
                let has_a_turn = is_open || gpus.is_disjoint(&displaced);
                let may_displace = has_a_turn && !is_outranked && self.can_share(&group, id);
                (is_first || may_displace) && self.fits_without_others(&group, id)
            };
            if joins && (is_kept || self.is_worth_it(id, horizon)) {
                taken.extend(&gpus);
                contended.extend(gpus.iter().filter(|_| !is_kept));
                displaced.extend(gpus.iter().filter(|_| !is_kept && !fits && !is_open));
                turns.push(Turn { job: id, gpus, end: self.end_of_slice(id, horizon), horizon });
            } else if !self.is_idle(id) {
                let end = self.last_end(&turns, &gpus).or(horizon);
                passed_over.push(PassedOver { gpus, end, priority: job.spec.priority });
            }
        }
        turns
    }

    /// May others' persistent memory give way so that the job runs beside the group: it has something to do, and
    /// nobody needs the room alone.
    fn can_share(&self, group: &[JobId], id: JobId) -> bool {
        !self.is_idle(id) && !group.iter().chain([&id]).any(|job| self.jobs[job].cramped)
    }

    /// Who does not run yet is not brought back for a small part of a slice.
    fn is_worth_it(&self, id: JobId, horizon: Option<Time>) -> bool {
        let job = &self.jobs[&id];
        let least = self.slice_of(id) / 2;
        matches!(job.phase, Phase::Open | Phase::Restoring)
            || horizon.is_none_or(|end| end >= self.now + least)
    }

    fn end_of_slice(&self, id: JobId, horizon: Option<Time>) -> Time {
        let job = &self.jobs[&id];
        if job.running() && self.now < job.slice_end {
            return job.slice_end;
        }
        let slice = self.slice_of(id);
        let length = if job.phase == Phase::Open { slice.min(self.owed(id)) } else { slice };
        let end = self.now + length;
        horizon.map_or(end, |horizon| horizon.min(end))
    }

    /// How much longer a job may run whose slice is over and that has had less time than every job that waits: until it has had as
    /// much as one of them, but for the shortest slice at least. For a whole slice more those jobs would wait for two.
    fn owed(&self, id: JobId) -> Duration {
        let job = &self.jobs[&id];
        let waiting = self.jobs_near(id).into_iter().filter(|other| self.wants_turn(*other));
        let peers =
            waiting.map(|other| &self.jobs[&other]).filter(|other| other.spec.priority == job.spec.priority);
        let lead = peers.map(|other| other.virtual_runtime.saturating_sub(job.virtual_runtime)).min();
        lead.map_or(Duration::MAX, |lead| self.config.slice.max(job.time_of(lead)))
    }

    /// When all who are in the way on these GPUs will have had their slices; `None`: never, for
    /// one of them cannot be closed, or nobody is.
    fn last_end(&self, turns: &[Turn], gpus: &BTreeSet<GpuUuid>) -> Option<Time> {
        let in_the_way = || turns.iter().filter(|turn| !turn.gpus.is_disjoint(gpus));
        let endless = in_the_way().any(|turn| self.jobs[&turn.job].unsliceable());
        in_the_way().map(|turn| turn.end).max().filter(|_| !endless)
    }

    fn ordered(&self) -> Vec<JobId> {
        let present = self.jobs.iter().filter(|(id, job)| self.is_attached(**id) && !self.pauses(job));
        let mut ids: Vec<JobId> = present.map(|(id, _)| *id).collect();
        ids.sort_by_cached_key(|id| {
            let job = &self.jobs[id];
            let kept = self.is_kept(*id);
            let is_unused = if job.phase == Phase::Open { self.lends(*id) } else { self.is_idle(*id) };
            let idle = is_unused || job.stopped;
            // Of two who are idle none displaces the other.
            let in_slice =
                job.phase == Phase::Restoring || job.running() && (idle || self.now < job.slice_end);
            let rank = std::cmp::Reverse(job.spec.priority);
            (!kept, idle, rank, !in_slice, self.has_idled_its_slice_away(*id), job.virtual_runtime, *id)
        });
        ids
    }

    /// Does the job keep its memory whatever others want: it cannot be closed, or not now, or not before it gets more.
    fn is_kept(&self, id: JobId) -> bool {
        let job = &self.jobs[&id];
        job.phase == Phase::Open && !self.may_close(id)
            || job.is_stuck()
            || self.closes_for_want_of_memory(id)
    }

    /// Whether a closing cannot come to its end because a process waits for memory: work of another does not end, and may wait
    /// for that one.
    fn closes_for_want_of_memory(&self, id: JobId) -> bool {
        let wants = |tenant: &TenantId| !self.tenants[tenant].waiting.is_empty();
        self.has_stalled(id) && self.tenants_of(id).iter().any(wants)
    }

    /// Does the group with one more member fit on all the member's GPUs, beside those who keep what
    /// they have, once everybody else's memory is away. Offsets between spans do not count: leases are served without them
    /// where nothing else fits.
    fn fits_without_others(&self, group: &[JobId], newcomer: JobId) -> bool {
        self.gpus_of(newcomer).into_iter().all(|gpu_id| {
            let ledger = &self.gpus[&gpu_id].ledger;
            let stays = |job: JobId| job == newcomer || group.contains(&job) || self.is_kept(job);
            let members = self.tenants_on(gpu_id).filter(|(_, tenant)| stays(tenant.job));
            let needed = members.map(|(id, tenant)| {
                match tenant.job != newcomer && self.jobs[&tenant.job].is_never_closed() {
                    true => u64::from(self.units_now(id, tenant)),
                    false => u64::from(self.units_missing(id, tenant) + ledger.held(id, Class::Persistent)),
                }
            });
            let others = self.tenants_on(gpu_id).filter(|(_, tenant)| !stays(tenant.job));
            let held: u64 = others.map(|(_, tenant)| u64::from(tenant.held_units())).sum();
            let needed = needed.sum::<u64>() + held + u64::from(ledger.reserved());
            // It comes back to be told that there is no place for what it asks for.
            let refused =
                if self.asks_in_vain(gpu_id, newcomer) { self.asked_units(gpu_id, newcomer) } else { 0 };
            needed.saturating_sub(refused) <= u64::from(ledger.total())
        })
    }

    /// Units of a GPU that a job asks for.
    pub(super) fn asked_units(&self, gpu: GpuUuid, job: JobId) -> u64 {
        let own = self.tenants_on(gpu).filter(|(_, tenant)| tenant.job == job);
        own.map(|(_, tenant)| u64::from(tenant.asked_units())).sum()
    }

    /// Does the job let others run, because it could not be brought back just now.
    fn pauses(&self, job: &Job) -> bool {
        job.phase == Phase::Waiting && (self.now < job.not_restored_before || job.silent)
    }

    /// May the job be closed at all, and already.
    pub(super) fn may_close(&self, id: JobId) -> bool {
        let may = |job: &Job| {
            !job.is_never_closed()
                && self.now >= job.not_closed_before
                && (job.failed_drains == 0 || !self.would_fail_again(id))
        };
        self.jobs.get(&id).is_some_and(may) && !self.is_stranded(id)
    }

    pub(super) fn gpus_of(&self, id: JobId) -> BTreeSet<GpuUuid> {
        self.tenants_of(id).iter().map(|tenant| self.tenants[tenant].gpu).collect()
    }

    /// Does the group with one more member fit on all the member's GPUs.
    fn fits(&self, group: &[JobId], newcomer: JobId) -> bool {
        self.gpus_of(newcomer).into_iter().all(|gpu_id| {
            let ledger = &self.gpus[&gpu_id].ledger;
            let members =
                || self.tenants_on(gpu_id).filter(|(_, t)| t.job == newcomer || group.contains(&t.job));
            if members().any(|(_, tenant)| self.jobs[&tenant.job].cramped) {
                return members().all(|(_, tenant)| tenant.job == newcomer);
            }
            let needed: u64 = members().map(|(id, tenant)| u64::from(self.units_to_come(id, tenant))).sum();
            let taken = u64::from(ledger.packed_top()) + u64::from(ledger.reserved());
            needed + taken <= u64::from(ledger.total())
        })
    }

    /// Units that a tenant needs to run beyond its resident persistent ones, with the offset of a new span.
    pub(super) fn units_to_come(&self, id: TenantId, tenant: &Tenant) -> u32 {
        let begins_span = self.persistent_missing(id, tenant) > 0
            && self.gpus[&tenant.gpu].ledger.held(id, Class::Persistent) == 0;
        let offset = if begins_span { self.config.offset_units } else { 0 };
        self.units_missing(id, tenant).saturating_add(offset)
    }

    /// Units that a tenant has on its GPU, and asks for: what a job that is never closed needs now.
    fn units_now(&self, id: TenantId, tenant: &Tenant) -> u32 {
        let ledger = &self.gpus[&tenant.gpu].ledger;
        Class::ALL
            .map(|class| ledger.held(id, class))
            .into_iter()
            .fold(tenant.asked_units(), u32::saturating_add)
    }

    /// Units that a tenant needs to run, beyond its resident persistent ones. It has had them at once, or said that it needs
    /// them: its peaks of each class may have come at different times.
    fn units_missing(&self, id: TenantId, tenant: &Tenant) -> u32 {
        let ledger = &self.gpus[&tenant.gpu].ledger;
        let need = self.jobs.get(&tenant.job).and_then(|job| job.spec.need).unwrap_or_default();
        let in_use = ledger.held(id, Class::Temporary).saturating_sub(tenant.ahead);
        let temporary = in_use.saturating_add(tenant.asked(Class::Temporary));
        let temporary = temporary.max(tenant.peak_temporary).max(self.units_for(need.temporary));
        let temporary = temporary.saturating_add(tenant.asked_outside());
        let by_class = temporary.saturating_add(self.persistent_missing(id, tenant));
        let needed = self.units_for(need.temporary).saturating_add(self.units_for(need.persistent));
        let at_once = tenant.most_units.max(needed).saturating_add(tenant.asked_units());
        by_class.min(at_once.saturating_sub(ledger.held(id, Class::Persistent)))
    }

    /// Persistent units that a tenant needs to run, beyond its resident ones.
    fn persistent_missing(&self, id: TenantId, tenant: &Tenant) -> u32 {
        let need = self.jobs.get(&tenant.job).and_then(|job| job.spec.need).unwrap_or_default();
        let resident = self.gpus[&tenant.gpu].ledger.held(id, Class::Persistent);
        // What is on its way back is resident by the ledger.
        let away = tenant.units_away(Class::Persistent);
        let whole = (resident + away).saturating_add(tenant.asked(Class::Persistent));
        whole.max(self.units_for(need.persistent)) - resident
    }

    pub(super) fn units_for(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(self.config.unit_bytes)).unwrap_or(u32::MAX / 4)
    }

    /// Has the job reached a GPU at all.
    pub(super) fn is_attached(&self, id: JobId) -> bool {
        let sessions = self.jobs.get(&id).into_iter().flat_map(|job| &job.sessions);
        sessions.filter_map(|id| self.sessions.get(id)).any(|session| !session.tenants.is_empty())
    }

    /// Does no process of the job submit anything, nor wait for memory.
    pub(super) fn is_idle(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return true };
        let asks = |tenant: &TenantId| self.tenants.get(tenant).is_some_and(Tenant::asks);
        let idle = |session: &super::Session| session.idle && !session.tenants.iter().any(asks);
        !job.sessions.is_empty() && job.sessions.iter().all(|id| self.sessions.get(id).is_none_or(idle))
    }

    /// Is the job kept waiting though it wants to run.
    pub(super) fn wants_turn(&self, id: JobId) -> bool {
        let waits =
            self.jobs.get(&id).is_some_and(|job| !matches!(job.phase, Phase::Open | Phase::Restoring));
        waits && self.is_attached(id) && !self.is_idle(id)
    }

    /// Gives a new slice to who goes on because nobody has a better claim, and tells who comes
    /// back how long it may stay.
    fn deal_slices(&mut self, turns: &[Turn]) {
        for turn in turns {
            let Some(job) = self.jobs.get_mut(&turn.job) else { continue };
            if job.phase == Phase::Open {
                job.slice_end = turn.end;
            } else {
                job.slice_cap = turn.horizon;
            }
        }
    }

    /// Asks the running processes to say when they are idle, while others wait.
    fn watch(&mut self, selected: &[JobId]) {
        let is_awaited = |id: &JobId| self.wants_turn(*id) || self.may_wake(*id);
        let contended = self.jobs.keys().any(|id| !selected.contains(id) && is_awaited(id));
        let open = self.jobs.iter().filter(|(_, job)| contended && job.phase == Phase::Open);
        let ticks: BTreeMap<JobId, u32> = open.map(|(id, _)| (*id, self.tick_micros(*id))).collect();
        let wanted = |session: &super::Session| ticks.get(&session.job).copied().unwrap_or(0);
        let changed: Vec<_> = self
            .sessions
            .iter_mut()
            .filter(|(_, session)| session.tick_micros != wanted(session))
            .map(|(id, session)| {
                session.tick_micros = wanted(session);
                (*id, session.tick_micros)
            })
            .collect();
        for (session, tick_micros) in changed {
            self.forget_unwatched_idleness(session);
            self.tell(session, ToShim::Watch { tick_micros });
        }
    }

    /// Tells whoever announced a job where it stands, when that has changed.
    pub(super) fn tell_places(&mut self) {
        let queue: Vec<JobId> = self.queue();
        let of = queue.len() as u32;
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in ids {
            let place = queue.iter().position(|waiting| *waiting == id).map(|index| index as u32 + 1);
            let (behind, quota) = (self.behind(id), self.quota_in_its_way(id));
            let told = place.map(|place| QueuePlace { place, of, behind, quota });
            if let Some(job) = self.jobs.get_mut(&id).filter(|job| job.told_place != Some(told)) {
                job.told_place = Some(told);
                self.effects.push(Effect::Queue { job: id, place: told.unwrap_or_default() });
            }
        }
    }

    /// A job that cannot be stopped, on a GPU that this one waits for.
    fn behind(&self, id: JobId) -> Option<JobId> {
        let gpus = self.gpus_of(id);
        let in_the_way = self.tenants.values().filter(|tenant| gpus.contains(&tenant.gpu)).map(|t| t.job);
        in_the_way.filter(|job| *job != id).find(|job| self.jobs.get(job).is_some_and(Job::cannot_be_stopped))
    }

    /// The jobs that wait: first those that wait for their turn, in order, then those that wait
    /// for admission.
    pub fn queue(&self) -> Vec<JobId> {
        let mut queue: Vec<JobId> = self.ordered().into_iter().filter(|id| self.wants_turn(*id)).collect();
        let paused = self.jobs.iter().filter(|(id, job)| self.pauses(job) && self.wants_turn(**id));
        queue.extend(paused.map(|(id, _)| *id));
        let arriving = self.admissions.iter().filter_map(|(session, _, _)| self.sessions.get(session));
        for session in arriving {
            if !queue.contains(&session.job) && !self.is_attached(session.job) {
                queue.push(session.job);
            }
        }
        queue
    }
}

fn jobs_of(turns: &[Turn]) -> Vec<JobId> {
    turns.iter().map(|turn| turn.job).collect()
}
