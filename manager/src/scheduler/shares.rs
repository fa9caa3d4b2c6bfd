//! Each GPU's share of the DRAM tier, as its jobs' needs change (R0.5, I6).
//!
//! ```text
//! a GPU's share is too small ─► divide ─┬─► to who has more than it gets: Share, less ─► Done
//!                                       └─► when that is there: Share, more ─► Done ─► who waits is let in
//! ```
//! A share is made smaller before another grows by it, and is as large as its mover says: one that holds saved
//! bytes keeps them. As long as all shares are large enough none is changed.
//!
//! Invariant: the shares, each as large as its mover may take it to be, are together no more than the tier.

use super::{Effect, Pending, Scheduler};
use crate::planner::shares::{Need, divide};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tidegate_ffi::units::{GpuUuid, JobId, TenantId};
use tidegate_ffi::wire::message::ToMover;

/// A GPU's share of the DRAM tier, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Share {
    /// As its mover has last said.
    bytes: u64,
    /// What the mover was told, and has not answered.
    asked: Option<u64>,
    /// A save found no room: what it would have had to be.
    refused: u64,
    /// The mover could not make it smaller than this.
    kept: u64,
}

impl Share {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, asked: None, refused: 0, kept: 0 }
    }

    /// What the GPU may use for sure.
    pub fn bytes(&self) -> u64 {
        self.asked.map_or(self.bytes, |asked| asked.min(self.bytes))
    }

    /// The most that its mover may take it to be.
    pub(super) fn most(&self) -> u64 {
        self.asked.map_or(self.bytes, |asked| asked.max(self.bytes))
    }
}

impl Scheduler {
    /// Changes the shares, if one of them is too small and others can do with less.
    pub(super) fn balance_shares(&mut self) {
        if !std::mem::take(&mut self.are_needs_new) {
            return;
        }
        let mut wanted: Vec<(u64, GpuUuid)> =
            self.gpus.keys().map(|gpu| (self.wanted_share(*gpu), *gpu)).collect();
        if wanted.iter().all(|(bytes, gpu)| *bytes <= self.gpus[gpu].share.most()) {
            return;
        }
        // Who needs least is decided first: nobody goes short for whom an equal part is enough.
        wanted.sort_unstable();
        let need = |(extra, gpu): &(u64, GpuUuid)| {
            let Share { bytes, kept, .. } = self.gpus[gpu].share;
            Need { extra: *extra, used: [self.promised_to_many(*gpu).max(kept).min(bytes), 0, 0] }
        };
        let needs: Vec<Need> = wanted.iter().map(need).collect();
        let total = self.config.dram_bytes;
        let parts = divide([total, 0, 0], &needs);
        let occupied = parts.iter().map(|part| part.occupied[0]);
        let spare = total.saturating_sub(occupied.clone().sum()) / parts.len().max(1) as u64;
        let targets: Vec<(GpuUuid, u64)> =
            wanted.iter().zip(occupied).map(|((_, gpu), bytes)| (*gpu, bytes + spare)).collect();
        self.order_shares(&targets);
    }

    fn order_shares(&mut self, targets: &[(GpuUuid, u64)]) {
        for &(gpu, target) in targets {
            if target < self.gpus[&gpu].share.bytes {
                self.order_share(gpu, target);
            }
        }
        for &(gpu, target) in targets {
            let shares = self.gpus.values().map(|gpu| gpu.share.most());
            let free = self.config.dram_bytes.saturating_sub(shares.fold(0, u64::saturating_add));
            let bytes = self.gpus[&gpu].share.bytes;
            if target > bytes && free > 0 {
                self.order_share(gpu, target.min(bytes + free));
            }
        }
    }

    fn order_share(&mut self, gpu_id: GpuUuid, bytes: u64) {
        let Some(gpu) = self.gpus.get_mut(&gpu_id) else { return };
        if gpu.lost || gpu.share.asked.is_some() {
            return;
        }
        gpu.share.asked = Some(bytes);
        let step = self.step(Pending::Share(gpu_id));
        self.effects.push(Effect::Mover(gpu_id, ToMover::Share { step, bytes }));
    }

    /// A mover has taken its share to be so large.
    pub(super) fn share_is(&mut self, gpu: GpuUuid, bytes: u64) {
        let Some(share) = self.gpus.get_mut(&gpu).map(|gpu| &mut gpu.share) else { return };
        let asked = share.asked.take();
        share.kept = if asked < Some(bytes) { bytes } else { 0 };
        share.bytes = bytes;
        self.are_needs_new = true;
    }

    /// There is no mover any more that could change its share.
    pub(super) fn share_stays(&mut self, gpu: GpuUuid) {
        self.gpus.entry(gpu).and_modify(|gpu| gpu.share.asked = None);
    }

    /// Saved bytes of a GPU's tenants are gone: its mover may keep less.
    pub(super) fn share_may_shrink(&mut self, gpu: GpuUuid) {
        let kept = self.gpus.get_mut(&gpu).map(|gpu| std::mem::take(&mut gpu.share.kept));
        self.are_needs_new |= kept > Some(0);
    }

    /// Who is on a GPU has changed, and with that what its share has to be.
    pub(super) fn forget_refusals(&mut self, gpu: GpuUuid) {
        self.gpus.entry(gpu).and_modify(|gpu| (gpu.share.kept, gpu.share.refused) = (0, 0));
        self.are_needs_new = true;
    }

    /// The tier had no room for what a tenant was to save.
    pub(super) fn share_was_too_small(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get(&id) else { return };
        let gpu = tenant.gpu;
        let saved = self.tenants_on(gpu).flat_map(|(_, tenant)| &tenant.saved).map(|range| range.bytes);
        let departing = tenant.departure.iter().flat_map(|departure| &departure.moves).map(|m| m.bytes);
        let wanted = saved.chain(departing).fold(0, u64::saturating_add);
        self.gpus.entry(gpu).and_modify(|gpu| gpu.share.refused = gpu.share.refused.max(wanted));
        self.are_needs_new = true;
    }

    /// What the share of a GPU is to be, for who is there and who waits to be; alone there nobody needs any.
    fn wanted_share(&self, id: GpuUuid) -> u64 {
        let waiting = self.admissions.iter().filter(|(_, _, gpu)| *gpu == id);
        let waiting = waiting.filter_map(|(session, ..)| Some(self.sessions.get(session)?.job));
        let waiting: BTreeSet<JobId> = waiting.collect();
        let newcomers = waiting.iter().map(|job| self.need_bytes(*job)).fold(0, u64::saturating_add);
        let promised = if waiting.is_empty() { self.promised_to_many(id) } else { self.promised_bytes(id) };
        promised.saturating_add(newcomers).max(self.gpus[&id].share.refused)
    }

    /// What the tier may have to take of a GPU that several jobs share.
    fn promised_to_many(&self, id: GpuUuid) -> u64 {
        let jobs: BTreeSet<JobId> = self.tenants_on(id).map(|(_, tenant)| tenant.job).collect();
        if jobs.len() > 1 { self.promised_bytes(id) } else { 0 }
    }
}
