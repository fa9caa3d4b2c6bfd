//! Memory promises: whatever a job comes to hold has a place to go when its slice ends (I11).
//!
//! Jobs that share a GPU hold some of their memory on it and the rest in its share of the tiers. As long as all of it
//! together leaves a little room somewhere, any of them can get its turn: what is in the way goes to the room that
//! there is, what is missing comes back into the room that this leaves, and so on. Were both full, nothing could move,
//! and every job would wait for all others. So an allocation that would come to that is refused.
//!
//! ```text
//! Σ units of the jobs on a GPU, in whichever place  +  slack  ≤  GPU − reserved + share of the tiers      (R0.3, R0.4)
//! ```
//! Unless all of it fits on the GPU: then nothing has to move. What a job had once, or is known to
//! need, it may come to have.
//!
//! A job of which it is known what it needs is admitted by the same rule, for that and what the jobs on the GPU have, had or
//! need.
//!
//! Held memory (IPC, `tidegate_hold`) stays on the GPU, as does all memory of a resident job. A lease that does not fit
//! beside the unmovable memory of the other jobs is refused: else two jobs could each wait for memory that the other holds.
//! A job that has run must fit again later: a request to hold memory, or a resident job's lease, is refused if another job
//! would not fit any more with what it had.
//!
//! ```text
//! for each job:  units that it has or had  +  Σ unmovable units of the other jobs  ≤  GPU − reserved
//! unmovable:     what a resident job has or had; what other jobs hold
//! ```
//!
//! The units are those of pieces, not of live bytes: an upper bound of what a switch may have to save. The room that
//! a tier really has may be less than its size, for a mover stores whole blocks. It is learnt: after a save that found
//! no room, the tiers are taken to be smaller by half of its bytes, and a little larger with each save that finds room,
//! until their shares change or a job ends.

use super::lease::Served;
use super::{Gpu, Scheduler, Tenant};
use std::collections::BTreeMap;
use tidegate_ffi::units::{GpuUuid, JobId, PieceId, TenantId};
use tidegate_ffi::wire::message::{LeaseRequest, Shortage};

/// A limit that was learnt grows by one part in so many with each save that finds room.
const LEARNING_STEPS: u64 = 64;
/// After so many saves that found no room in the shares it is believed that there is none.
const FAILURES_BELIEVED: u32 = 3;

impl Gpu {
    /// Have so many saves in a row found no room in its shares that its limit is believed.
    fn is_limit_certain(&self) -> bool {
        self.failed_saves >= FAILURES_BELIEVED
    }
}

/// What a lease makes of a job on a GPU, in units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pub(super) gpu: GpuUuid,
    pub(super) job: JobId,
    /// All that the job has then, in whichever place.
    pub(super) own: u64,
    /// What of it goes beyond what it had before, which was promised to it then, and what it is known to need, for which it
    /// was admitted.
    pub(super) new: u64,
    /// The piece that has to be in one; 0: none has.
    pub(super) whole: u32,
}

impl Scheduler {
    /// What a lease would make of its job.
    pub(super) fn growth(&self, id: TenantId, request: LeaseRequest) -> Option<Growth> {
        let tenant = self.tenants.get(&id)?;
        let (gpu, job) = (tenant.gpu, tenant.job);
        let own = u64::from(self.units_of_job(gpu, job)) + u64::from(request.units.0);
        let new = own.saturating_sub(self.reserved_units(gpu, job));
        Some(Growth { gpu, job, own, new, whole: if request.whole { request.units.0 } else { 0 } })
    }

    /// Why a lease can never be served beside the other jobs on its GPU, as long as these live; `None`: it can.
    pub(super) fn breaks_promise(&self, id: TenantId, request: LeaseRequest) -> Option<String> {
        let Growth { gpu, job, own, new, whole } = self.growth(id, request)?;
        let (on_gpu, tiers) = (self.movable_units(gpu), self.tier_units(gpu));
        let others = self.jobs_on(gpu).into_iter().filter(|other| *other != job);
        let of_others: u64 = others.map(|other| self.reserved_units(gpu, other)).sum();
        let all = own + of_others;
        (new > 0 && of_others > 0 && self.least_in_tiers(gpu, all, whole) > tiers).then(|| {
            format!(
                "no room for it and the other jobs on {gpu}: they would have {all} units together, of {on_gpu} on the \
                 GPU and {tiers} in its share of the tiers"
            )
        })
    }

    /// Whether a job has a place on a GPU beside those that are there, by what is known that each of them needs: alone it
    /// always has.
    pub(super) fn has_place(&self, gpu: GpuUuid, newcomer: JobId) -> bool {
        self.has_place_beside(gpu, newcomer, |_| true)
    }

    /// The same beside some of them.
    pub(super) fn has_place_beside(
        &self,
        gpu: GpuUuid,
        newcomer: JobId,
        counts: impl Fn(JobId) -> bool,
    ) -> bool {
        let all = self.known_units_of(gpu, &counts).saturating_add(self.need_units(newcomer));
        !self.jobs_on(gpu).into_iter().any(counts) || self.least_in_tiers(gpu, all, 0) <= self.tier_units(gpu)
    }

    /// Units of which the tiers have room at least if several jobs are to have `all` units together, of which one piece has
    /// `whole` units: the rule at the head of this file.
    pub(super) fn least_in_tiers(&self, gpu: GpuUuid, all: u64, whole: u32) -> u64 {
        let on_gpu = self.movable_units(gpu);
        if all <= on_gpu { 0 } else { all.saturating_add(self.slack_units(gpu, whole)) - on_gpu }
    }

    /// Units of a GPU that its jobs' memory may be in.
    pub(super) fn movable_units(&self, gpu: GpuUuid) -> u64 {
        let ledger = &self.gpus[&gpu].ledger;
        ledger.total().saturating_sub(ledger.reserved()).into()
    }

    /// Units of a GPU that its jobs may come to have there together, in whichever place, by what is known of them: what
    /// they had, and what they said, or are remembered, to need.
    pub(super) fn known_units(&self, gpu: GpuUuid) -> u64 {
        self.known_units_of(gpu, |_| true)
    }

    /// The same of some of its jobs.
    pub(super) fn known_units_of(&self, gpu: GpuUuid, counts: impl Fn(JobId) -> bool) -> u64 {
        let known = |job: JobId| self.promised_units(gpu, job).max(self.needed_units(gpu, job));
        self.jobs_on(gpu).into_iter().filter(|job| counts(*job)).map(known).fold(0, u64::saturating_add)
    }

    /// Units that a job's processes on a GPU are known to need there.
    fn needed_units(&self, gpu: GpuUuid, job: JobId) -> u64 {
        let processes = self.tenants_on(gpu).filter(|(_, tenant)| tenant.job == job).count();
        self.need_units(job).saturating_mul(processes as u64)
    }

    /// Units that a process of a job is known to need on a GPU.
    pub(super) fn need_units(&self, job: JobId) -> u64 {
        self.units_for(self.need_bytes(job)).into()
    }

    /// Why a lease does not fit beside the unmovable memory of other jobs, which may stay as long as they live. `None`: it
    /// fits, or would not fit alone either.
    fn lacks_place_beside_unmovable(&self, id: TenantId, request: LeaseRequest) -> Option<String> {
        let tenant = self.tenants.get(&id)?;
        let (gpu, job) = (tenant.gpu, tenant.job);
        let on_gpu = self.movable_units(gpu);
        let own = u64::from(self.units_of_job(gpu, job)) + u64::from(request.units.0);
        let stays = self.unmovable_units_of_other_jobs(gpu, job);
        (stays > 0 && own <= on_gpu && own + stays > on_gpu).then(|| {
            format!(
                "no room for it on {gpu}: other jobs have or had {stays} of {on_gpu} units there that cannot be moved"
            )
        })
    }

    /// Does a job ask for more than fits beside the unmovable memory of the other jobs.
    pub(super) fn asks_in_vain(&self, gpu: GpuUuid, job: JobId) -> bool {
        let wanted = u64::from(self.units_of_job(gpu, job)) + self.asked_units(gpu, job);
        wanted + self.unmovable_units_of_other_jobs(gpu, job) > self.movable_units(gpu)
    }

    /// Why a lease of a resident job is refused: another job would not fit beside it any more with what it had.
    fn shuts_out_another(&self, id: TenantId, request: LeaseRequest) -> Option<String> {
        let tenant = self.tenants.get(&id)?;
        let (gpu, job) = (tenant.gpu, tenant.job);
        let own = u64::from(self.units_of_job(gpu, job)) + u64::from(request.units.0);
        let more = own.saturating_sub(self.promised_units(gpu, job));
        if self.is_resident(job) { self.shut_out_by(gpu, job, more) } else { None }
    }

    pub(super) fn is_resident(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.spec.resident)
    }

    /// Which other job would not fit any more if `more` further units of `job` were unmovable, as a sentence. `None`: all
    /// still fit.
    pub(super) fn shut_out_by(&self, gpu: GpuUuid, job: JobId, more: u64) -> Option<String> {
        let on_gpu = self.movable_units(gpu);
        let mut others = self.jobs_on(gpu).into_iter().filter(|other| *other != job && more > 0);
        let is_shut_out = |other: &JobId| {
            self.promised_units(gpu, *other) + self.unmovable_units_of_other_jobs(gpu, *other) + more > on_gpu
        };
        let other = others.find(is_shut_out)?;
        Some(format!(
            "no room for it on {gpu}: it could not be moved, and job {other} would not fit beside it any more"
        ))
    }

    /// Units of a GPU that switches cannot take from the other jobs: all that resident jobs have or had, and held pieces.
    /// Jobs with managed memory do not count: they end, and jobs beside them wait for that.
    pub(super) fn unmovable_units_of_other_jobs(&self, gpu: GpuUuid, job: JobId) -> u64 {
        let others = self.jobs_on(gpu).into_iter().filter(|other| *other != job);
        let units = |other: JobId| match self.is_resident(other) {
            true => self.promised_units(gpu, other),
            false => self.held_units(gpu, other).into(),
        };
        others.map(units).sum()
    }

    /// Units of a GPU that a job has or had at once, in whichever place: it may come to have them again.
    fn promised_units(&self, gpu: GpuUuid, job: JobId) -> u64 {
        let own = self.tenants_on(gpu).filter(|(_, tenant)| tenant.job == job);
        let of_processes: u32 = own.map(|(_, tenant)| tenant.most_units).sum();
        let at_once = self.jobs.get(&job).and_then(|job| job.most_units.get(&gpu).copied()).unwrap_or(0);
        // Of processes that have ended it needs nothing any more.
        of_processes.min(at_once).max(self.units_of_job(gpu, job)).into()
    }

    /// The same, or what it is known to need: it was admitted for that. A job whose need is larger than the GPU never gets
    /// all of it there.
    pub(super) fn reserved_units(&self, gpu: GpuUuid, job: JobId) -> u64 {
        self.promised_units(gpu, job).max(self.needed_units(gpu, job).min(self.movable_units(gpu)))
    }

    /// Takes note of the most that a tenant, and its job, were promised: what they have at once, but for what they
    /// have only because nobody else needed it.
    pub(super) fn note_promise(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let (gpu, job) = (tenant.gpu, tenant.job);
        tenant.most_units = tenant.most_units.max(tenant.units().saturating_sub(tenant.ahead));
        let own = self.tenants_on(gpu).filter(|(_, tenant)| tenant.job == job);
        let ahead: u32 = own.map(|(_, tenant)| tenant.ahead).sum();
        let at_once = self.units_of_job(gpu, job).saturating_sub(ahead);
        if let Some(job) = self.jobs.get_mut(&job) {
            let most = job.most_units.entry(gpu).or_default();
            *most = at_once.max(*most);
        }
    }

    /// Units that a GPU's share of the tiers can take, beside the host memory that lies there in the GPU's place.
    fn tier_units(&self, gpu: GpuUuid) -> u64 {
        let limit = self.gpus[&gpu].saves_at_most.filter(|_| self.gpus[&gpu].is_limit_certain());
        let shares = self.most_saved_on(gpu, self.hosted_bytes(gpu), limit);
        shares / self.config.unit_bytes
    }

    /// What becomes of a lease that has no place beside other jobs' memory; `None`: it has. First processes are asked
    /// for what they do not use, and a larger share of the tiers is asked for.
    pub(super) fn without_place(&mut self, id: TenantId, request: LeaseRequest) -> Option<Served> {
        let reason = self
            .breaks_promise(id, request)
            .or_else(|| self.breaks_saved_quota(id, request))
            .or_else(|| self.lacks_place_beside_unmovable(id, request))
            .or_else(|| self.shuts_out_another(id, request))?;
        let tenant = self.tenants.get(&id)?;
        let (gpu, job) = (tenant.gpu, tenant.job);
        let wanted = u64::from(request.units.0) * self.config.unit_bytes;
        let asks = self.doubts(id) || self.recall_unused(gpu, None) || self.is_asked_later(gpu, job);
        if asks || self.claim_growth(id, wanted) {
            return Some(Served::Waits);
        }
        // They may have stopped using something when the next lease is asked for.
        self.forget_recalls_on(gpu);
        Some(Served::Refused(reason))
    }

    /// Wants larger shares of the tiers for a lease. `false`: they are as large as they can be.
    fn claim_growth(&mut self, id: TenantId, bytes: u64) -> bool {
        let Some(tenant) = self.tenants.get_mut(&id) else { return false };
        if std::mem::replace(&mut tenant.growth, bytes) != bytes {
            self.are_needs_new = true;
            self.balance_shares();
        }
        self.gpus.values().any(|gpu| gpu.shares.iter().any(|share| share.is_changing()))
    }

    /// Bytes that leases on a GPU want of the tiers beyond what is promised.
    pub(super) fn growth_bytes(&self, gpu: GpuUuid) -> u64 {
        self.tenants_on(gpu).map(|(_, tenant)| tenant.growth).fold(0, u64::saturating_add)
    }

    /// Units that stay free so that memory can move at all: what one step of it needs at most.
    fn slack_units(&self, gpu: GpuUuid, whole: u32) -> u64 {
        let others = self.tenants_on(gpu).flat_map(|(_, tenant)| tenant.whole.values().copied());
        others.chain([whole, self.config.piece_units]).max().map_or(0, u64::from)
    }

    /// Bytes that can be saved of a GPU's tenants now, as far as is known.
    pub(super) fn tier_room(&self, gpu: GpuUuid) -> u64 {
        let hosted = self.tenants_on(gpu).map(|(_, tenant)| self.hosted_bytes_of(tenant)).sum();
        let limit = self.gpus.get(&gpu).and_then(|gpu| gpu.saves_at_most);
        self.most_saved_on(gpu, hosted, limit).saturating_sub(self.saved_on(gpu))
    }

    /// The most bytes that a GPU's share of the tiers can take at once, beside so many bytes of host memory.
    fn most_saved_on(&self, gpu: GpuUuid, hosted: u64, limit: Option<u64>) -> u64 {
        let Some(gpu) = self.gpus.get(&gpu) else { return 0 };
        let shares = gpu.share_bytes().into_iter().fold(0, u64::saturating_add).saturating_sub(hosted);
        shares.min(limit.unwrap_or(u64::MAX))
    }

    /// Bytes that can be saved of a tenant now: its user's quota may leave less room than the tiers.
    pub(super) fn room_for_saves(&self, id: TenantId) -> u64 {
        let Some(tenant) = self.tenants.get(&id) else { return 0 };
        self.tier_room(tenant.gpu).min(self.quota_room(tenant.job))
    }

    /// Bytes of a GPU's tenants in the tiers, or on the way there.
    pub(super) fn saved_on(&self, gpu: GpuUuid) -> u64 {
        let saved = |tenant: &Tenant| tenant.saved_bytes() + tenant.planned_bytes();
        self.tenants_on(gpu).map(|(_, tenant)| saved(tenant)).fold(0, u64::saturating_add)
    }

    /// A save of a tenant's found no room: the tiers are smaller than was thought. Where the machine has no memory for
    /// them it may have some in a moment, as it may be a moment until work ends that a drain waits for.
    pub(super) fn note_no_room(&mut self, id: TenantId, shortage: Shortage) {
        let Some(tenant) = self.tenants.get(&id) else { return };
        let tried = tenant.departure.as_ref().map_or(0, |departure| departure.saving_bytes);
        let gpu = tenant.gpu;
        let all = self.saved_on(gpu);
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            let since = *gpu.no_memory_since.get_or_insert(self.now);
            if shortage == Shortage::Tiers || since + self.config.drain_limit <= self.now {
                gpu.failed_saves = gpu.failed_saves.saturating_add(1);
            }
            gpu.saves_at_most = Some(all.saturating_sub(tried.div_ceil(2)));
            gpu.no_room_for = all;
        }
    }

    /// A save found room: if the tiers were once smaller than was thought, they may be a little larger; or there was no
    /// memory for them for a moment.
    pub(super) fn note_room_in_tiers(&mut self, gpu: GpuUuid) {
        let saved = self.saved_on(gpu);
        let Some(gpu) = self.gpus.get_mut(&gpu) else { return };
        gpu.no_memory_since = None;
        if !gpu.is_limit_certain() {
            // That there is room for less says nothing of what found none.
            if saved >= gpu.no_room_for {
                (gpu.saves_at_most, gpu.failed_saves, gpu.no_room_for) = (None, 0, 0);
            }
        } else if let Some(limit) = &mut gpu.saves_at_most {
            *limit += limit.div_ceil(LEARNING_STEPS);
        }
    }

    /// A job waits for room in the tiers: if they were once smaller than was thought, the next save tries a little more.
    pub(super) fn try_more_of_tiers(&mut self, gpu: GpuUuid) {
        let piece = u64::from(self.config.piece_units) * self.config.unit_bytes;
        if let Some(limit) = self.gpus.get_mut(&gpu).and_then(|gpu| gpu.saves_at_most.as_mut()) {
            *limit = limit.saturating_add(piece);
        }
    }

    /// Doubts a limit that was learnt from few saves. `true`: there was one, and the next save tries without it.
    pub(super) fn doubts_limit(&mut self, gpu: GpuUuid) -> bool {
        let Some(gpu) = self.gpus.get_mut(&gpu) else { return false };
        !gpu.is_limit_certain() && gpu.saves_at_most.take().is_some()
    }

    /// Of pieces of a tenant that should go, those for whose live bytes the tiers, and its user's quota, have room: all that
    /// hold none, then those that set most units free for a byte.
    pub(super) fn savable(
        &self,
        id: TenantId,
        gpu: GpuUuid,
        pieces: &[PieceId],
        live: &BTreeMap<PieceId, u64>,
    ) -> Vec<PieceId> {
        let mut pieces = pieces.to_vec();
        let bytes = |piece: &PieceId| live.get(piece).copied().unwrap_or(0);
        let mut room = self.room_for_saves(id);
        if pieces.iter().map(bytes).sum::<u64>() <= room {
            return pieces;
        }
        let ledger = &self.gpus[&gpu].ledger;
        let units = |piece: &PieceId| u64::from(ledger.piece(*piece).map_or(1, |record| record.units));
        pieces.sort_by_key(|piece| (bytes(piece) / units(piece), *piece));
        pieces.retain(|piece| {
            let fits = bytes(piece) <= room;
            room -= if fits { bytes(piece) } else { 0 };
            fits
        });
        pieces
    }
}
