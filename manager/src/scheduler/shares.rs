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

use super::{Effect, Pending, Scheduler, Tenant};
use crate::planner::shares::{Need, divide};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tidegate_ffi::units::{GpuUuid, JobId, TenantId};
use tidegate_ffi::wire::message::ToMover;

/// Shares are multiples of so many bytes, and so of any page: no mover has to make them smaller.
const GRAIN: u64 = 64 << 10;

/// As much of some bytes as can be a share.
pub fn whole_grains(bytes: u64) -> u64 {
    bytes - bytes % GRAIN
}

/// The smallest share that is large enough for some bytes.
fn enough_grains(bytes: u64) -> u64 {
    whole_grains(bytes.saturating_add(GRAIN - 1))
}

/// A GPU's share of the DRAM tier, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Share {
    /// As its mover has last said.
    bytes: u64,
    /// What the mover was told, and has not answered.
    asked: Option<u64>,
    /// Something has changed there since it was asked.
    has_changed: bool,
    /// The mover could not make it smaller than this.
    kept: u64,
}

impl Share {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// What the GPU may use for sure.
    pub fn bytes(&self) -> u64 {
        self.asked.map_or(self.bytes, |asked| asked.min(self.bytes))
    }

    /// The most that its mover may take it to be.
    fn most(&self) -> u64 {
        self.asked.map_or(self.bytes, |asked| asked.max(self.bytes))
    }

    fn answered(&mut self, bytes: u64) {
        let asked = self.asked.take();
        self.kept = self.kept.max(if asked < Some(bytes) { bytes } else { 0 });
        self.bytes = bytes;
        if std::mem::take(&mut self.has_changed) {
            self.may_shrink();
        }
    }

    /// Its mover may keep less than it said.
    fn may_shrink(&mut self) {
        (self.kept, self.has_changed) = (0, self.asked.is_some());
    }
}

/// What a GPU gets when the shares are decided anew.
struct Target {
    gpu: GpuUuid,
    /// What it needs, as far as there is so much.
    occupied: u64,
    /// Its part of what nobody needs.
    spare: u64,
}

impl Scheduler {
    /// Changes the shares, if one of them is too small and others can do with less.
    pub(super) fn balance_shares(&mut self) {
        if !std::mem::take(&mut self.are_needs_new) {
            return;
        }
        let alive = self.gpus.iter().filter(|(_, gpu)| !gpu.lost).map(|(id, _)| *id);
        let mut wanted: Vec<(u64, GpuUuid)> = alive.map(|gpu| (self.wanted_share(gpu), gpu)).collect();
        if wanted.iter().all(|(bytes, gpu)| *bytes <= self.gpus[gpu].share.most()) {
            return;
        }
        // Who needs least is decided first: nobody goes short for whom an equal part is enough.
        wanted.sort_unstable();
        let need =
            |(extra, gpu): &(u64, GpuUuid)| Need { extra: *extra, used: [self.used_share(*gpu), 0, 0] };
        let needs: Vec<Need> = wanted.iter().map(need).collect();
        let parts = divide([self.tier_bytes(), 0, 0], &needs);
        let occupied = parts.iter().map(|part| whole_grains(part.occupied[0]));
        let left = self.tier_bytes().saturating_sub(occupied.clone().sum());
        let spare = whole_grains(left / parts.len().max(1) as u64);
        let targets = wanted.iter().zip(occupied);
        let targets: Vec<Target> =
            targets.map(|((_, gpu), occupied)| Target { gpu: *gpu, occupied, spare }).collect();
        self.order_shares(&targets);
    }

    fn order_shares(&mut self, targets: &[Target]) {
        for Target { gpu, occupied, spare } in targets {
            if occupied + spare < self.gpus[gpu].share.bytes {
                self.order_share(*gpu, occupied + spare);
            }
        }
        // What becomes free is for who needs it; the rest is dealt when it is known how much that is.
        let is_settled = self.gpus.values().all(|gpu| gpu.share.asked.is_none());
        for Target { gpu, occupied, spare } in targets {
            let free = whole_grains(self.tier_bytes().saturating_sub(self.all_shares()));
            let bytes = self.gpus[gpu].share.bytes;
            let target = if is_settled { occupied + spare } else { *occupied }.min(bytes + free);
            if target > bytes {
                self.order_share(*gpu, target);
            }
        }
    }

    fn order_share(&mut self, gpu_id: GpuUuid, bytes: u64) {
        let Some(gpu) = self.gpus.get_mut(&gpu_id) else { return };
        if gpu.share.asked.is_some() {
            return;
        }
        gpu.share.asked = Some(bytes);
        let step = self.step(Pending::Share(gpu_id));
        self.effects.push(Effect::Mover(gpu_id, ToMover::Share { step, bytes }));
    }

    /// A mover has taken its share to be so large.
    pub(super) fn share_is(&mut self, gpu: GpuUuid, bytes: u64) {
        self.change_share(gpu, |share| share.answered(bytes));
    }

    /// There is no mover any more that could change its share.
    pub(super) fn share_stays(&mut self, gpu: GpuUuid) {
        self.change_share(gpu, |share| share.asked = None);
    }

    /// Some of what a tenant had saved is not any more: its mover may keep less.
    pub(super) fn note_less_saved(&mut self, id: TenantId) {
        let Some(gpu) = self.tenants.get(&id).map(|tenant| tenant.gpu) else { return };
        let share = self.gpus[&gpu].share;
        if share.kept > 0 || share.asked.is_some() {
            self.change_share(gpu, Share::may_shrink);
        }
    }

    /// Who is on a GPU has changed, and with that what its share has to be.
    pub(super) fn note_other_tenants(&mut self, gpu: GpuUuid) {
        self.change_share(gpu, Share::may_shrink);
    }

    /// Nothing can be saved on a GPU any more: others get its share.
    pub(super) fn lose_share(&mut self, gpu: GpuUuid) {
        self.change_share(gpu, |share| *share = Share::default());
    }

    fn change_share(&mut self, gpu: GpuUuid, change: impl FnOnce(&mut Share)) {
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            change(&mut gpu.share);
            self.are_needs_new = true;
        }
    }

    /// What all shares together may be.
    fn tier_bytes(&self) -> u64 {
        whole_grains(self.config.dram_bytes)
    }

    /// What all shares together are, each as large as its mover may take it to be.
    pub(super) fn all_shares(&self) -> u64 {
        self.gpus.values().map(|gpu| gpu.share.most()).fold(0, u64::saturating_add)
    }

    /// What the share of a GPU is to be, for who is there and who waits and could be let in; alone there nobody
    /// needs any.
    fn wanted_share(&self, id: GpuUuid) -> u64 {
        let others = self.gpus.keys().filter(|gpu| **gpu != id).map(|gpu| self.used_share(*gpu));
        let room = self.tier_bytes().saturating_sub(others.fold(0, u64::saturating_add));
        let room = room.saturating_add(self.config.lower_share_bytes());
        let waiting = self.admissions.iter().filter(|(_, _, gpu)| *gpu == id);
        let waiting = waiting.filter_map(|(session, ..)| Some(self.sessions.get(session)?.job));
        let waiting: BTreeSet<JobId> = waiting.collect();
        let hosted = self.hosted_bytes(id);
        let mut promised = self.promised_bytes(id).saturating_add(hosted);
        let mut wanted = self.promised_to_many(id).saturating_add(hosted);
        for job in waiting {
            let with_it = promised.saturating_add(self.need_bytes(job));
            if with_it <= room {
                promised = with_it;
                wanted = wanted.max(with_it);
            }
        }
        enough_grains(wanted)
    }

    /// What of its share a GPU keeps in any case: what lies there, and what was promised and has no room in a lower tier.
    fn used_share(&self, id: GpuUuid) -> u64 {
        let Share { bytes, kept, .. } = self.gpus[&id].share;
        let promised = self.promised_to_many(id).saturating_sub(self.config.lower_share_bytes());
        let promised = promised.saturating_add(self.hosted_bytes(id));
        enough_grains(promised.max(kept)).min(bytes)
    }

    /// What the tier may have to take of a GPU that several jobs share: what they said that they need, or what they
    /// had if that is more.
    pub(super) fn promised_to_many(&self, id: GpuUuid) -> u64 {
        let jobs: BTreeSet<JobId> = self.tenants_on(id).map(|(_, tenant)| tenant.job).collect();
        if jobs.len() < 2 {
            return 0;
        }
        let most = |(_, tenant): (TenantId, &Tenant)| {
            let had = u64::from(tenant.peak_persistent) + u64::from(tenant.peak_temporary);
            self.need_bytes(tenant.job).max(had.saturating_mul(self.config.unit_bytes))
        };
        self.tenants_on(id).map(most).fold(0, u64::saturating_add)
    }
}
