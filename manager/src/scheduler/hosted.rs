//! Host memory in a GPU's place: what a tenant has that needs more than its GPU (R0.3).
//!
//! Only a job that was started so (`--oversubscribe`) gets it; any other is refused, as it would be alone.
//!
//! ```text
//! lease ─► no room on an empty GPU ─► refused, once: a framework gives back what it has cached, and asks again
//!                                       └─► still none ─► pieces in host memory, of the DRAM share ─► Leased
//! ```
//! The GPU reaches them over its link wherever they are mapped, so nothing moves them: they are no units of the
//! ledger, a switch leaves them where they are, and when they are given back they are destroyed. The newest
//! allocations lie there, for these can be placed without stopping anybody.
//!
//! Invariant (I6): they are a part of their GPU's share of the DRAM tier, which grows for them where others can
//! do with less, and leave of it what was promised to jobs that share the GPU; they count to their user's quota.

use super::lease::{Acquired, Served};
use super::{Scheduler, Tenant};
use std::collections::BTreeSet;
use tidegate_ffi::units::{GpuUuid, JobId, PieceId, SlotIndex, TenantId, Tier, Units};
use tidegate_ffi::wire::message::{LeaseRequest, Location, Placed};

impl Scheduler {
    /// Serves a lease of a tenant whose GPU is so many units too small for it.
    pub(super) fn host(&mut self, id: TenantId, request: LeaseRequest, missing: u32) -> Served {
        let Some(tenant) = self.tenants.get_mut(&id) else { return Served::Waits };
        let (gpu, job) = (tenant.gpu, tenant.job);
        let too_small = format!("{gpu} is {missing} units too small for it");
        if !std::mem::replace(&mut tenant.warned, true) {
            return Served::Refused(too_small);
        }
        let wanted = u64::from(request.units.0) * self.config.unit_bytes;
        if !self.quota_allows_hosting(job, wanted) {
            return Served::Refused(format!("{too_small}, and its user may have no more host memory"));
        }
        let left = self.hostable_bytes(id);
        if wanted > left {
            // Its share grows; or what was given back, or made for a lease that is void, is host memory.
            if self.claim(id, wanted) || self.units_are_coming(gpu, &BTreeSet::new()) {
                return Served::Waits;
            }
            let tier = "of its share of the dram tier";
            return Served::Refused(format!("{too_small}, and {left} bytes {tier} are free for {wanted}"));
        }
        let placed = self.host_pieces(request);
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.hosted.extend(placed.iter().map(|placed| (placed.piece, placed.units.0)));
        }
        let new: Vec<PieceId> = placed.iter().map(|placed| placed.piece).collect();
        let got: u32 = placed.iter().map(|placed| placed.units.0).sum();
        let rest = u64::from(request.units.0 - got) * self.config.unit_bytes;
        self.answer(id, request, Acquired { placed, new, ..Acquired::default() }, Location::Host);
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.claim = rest;
        }
        Served::Yes
    }

    /// May a job have host memory for what it needs beyond its GPUs'.
    pub(super) fn may_oversubscribe(&self, job: JobId) -> bool {
        self.config.oversubscribe || self.jobs.get(&job).is_some_and(|job| job.spec.oversubscribe)
    }

    /// New pieces for a lease, or for as much of it as one message can carry.
    fn host_pieces(&mut self, request: LeaseRequest) -> Vec<Placed> {
        let run = self.config.run_at_once(request, 0);
        let (largest, end) = (self.config.largest_piece(run), run.first + run.units);
        let place = |slot: u32| {
            let (piece, class) = (self.new_piece(), run.class);
            Placed { piece, class, slot: SlotIndex(slot), units: Units(largest.min(end - slot)) }
        };
        (run.first..end).step_by(largest as usize).map(place).collect()
    }

    /// What of a GPU's share may become host memory of a tenant's in its place.
    fn hostable_bytes(&self, id: TenantId) -> u64 {
        let Some(tenant) = self.tenants.get(&id) else { return 0 };
        let [dram, cxl, disk] = self.gpus[&tenant.gpu].share_bytes();
        let saved = self.promised_to_many(tenant.gpu).saturating_sub(cxl.saturating_add(disk));
        let others = self.hosted_bytes(tenant.gpu) - self.spared_for_hosting(tenant);
        dram.saturating_sub(saved.saturating_add(others))
    }

    /// Wants a larger share for a lease. `false`: it is as large as it can be.
    fn claim(&mut self, id: TenantId, bytes: u64) -> bool {
        let Some(tenant) = self.tenants.get_mut(&id) else { return false };
        if std::mem::replace(&mut tenant.claim, bytes) != bytes {
            self.are_needs_new = true;
            self.balance_shares();
        }
        self.gpus.values().any(|gpu| gpu.share(Tier::Dram).is_changing())
    }

    /// Host memory that leases on a GPU wait for, bytes.
    pub(super) fn claimed_bytes(&self, gpu: GpuUuid) -> u64 {
        self.tenants_on(gpu).map(|(_, tenant)| tenant.claim).fold(0, u64::saturating_add)
    }

    /// Host memory in a GPU's place, bytes: what its tenants have, or had and may need again.
    pub(super) fn hosted_bytes(&self, gpu: GpuUuid) -> u64 {
        let kept = |tenant: &Tenant| self.hosted_bytes_of(tenant) + self.spared_for_hosting(tenant);
        self.tenants_on(gpu).map(|(_, tenant)| kept(tenant)).sum()
    }

    /// Bytes that a tenant may need besides those it has, in the middle of an iteration: as many as it had, and an
    /// eighth more, for no iteration lies quite as the one before.
    pub(super) fn spared_for_hosting(&self, tenant: &Tenant) -> u64 {
        let peak = u64::from(tenant.peak_hosted);
        let most = peak + peak.div_ceil(8);
        most.saturating_sub(tenant.hosted_units().into()) * self.config.unit_bytes
    }

    pub(super) fn hosted_bytes_of(&self, tenant: &Tenant) -> u64 {
        u64::from(tenant.hosted_units()) * self.config.unit_bytes
    }

    /// What is host memory is in no ledger, and fits into the share.
    pub(super) fn check_hosted(&self) -> Result<(), String> {
        for (id, tenant) in &self.tenants {
            let ledger = &self.gpus[&tenant.gpu].ledger;
            let is_lost = |piece: &&PieceId| !tenant.pieces.contains_key(piece) && tenant.making.is_none();
            if let Some(piece) = tenant.hosted.keys().find(|piece| ledger.piece(**piece).is_some()) {
                return Err(format!("{piece} of {id} is host memory, and in the ledger"));
            }
            if let Some(piece) = tenant.hosted.keys().find(is_lost) {
                return Err(format!("{piece} is host memory of {id}, who does not have it"));
            }
        }
        for (id, gpu) in self.gpus.iter().filter(|(_, gpu)| !gpu.lost) {
            let hosted: u64 = self.tenants_on(*id).map(|(_, tenant)| self.hosted_bytes_of(tenant)).sum();
            let share = gpu.share(Tier::Dram).bytes();
            if hosted > share {
                return Err(format!(
                    "{hosted} bytes are host memory in place of {id}, of a share of {share} (I6)"
                ));
            }
        }
        Ok(())
    }
}

impl Tenant {
    /// Units of its pieces that are host memory, those being made included.
    pub fn hosted_units(&self) -> u32 {
        self.hosted.values().sum()
    }
}
