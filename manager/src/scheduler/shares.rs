//! Each GPU's shares of the tiers, as its jobs' needs change (R0.4, R0.5, I6).
//!
//! ```text
//! a GPU's share of a tier is too small ─► divide ─┬─► to who has more than it gets: Share, less ─► Done
//!                                                 └─► when that is there: Share, more ─► Done ─► who waits is let in
//! ```
//! A share is made smaller before another grows by it, and is as large as its mover says: one that holds saved
//! bytes keeps them. What a GPU's jobs were promised it keeps as well, in whichever tiers: its shares together are
//! never made smaller than that. As long as each GPU has of each tier what it needs there none is changed.
//!
//! A device of CXL memory is in parts that stay as they are: they count as used.
//!
//! Invariant: the shares of a tier, each as large as its mover may take it to be, are together no more than the tier.

use super::{Config, Effect, Gpu, Pending, Scheduler, Tenant};
use crate::planner::shares::{Need, PerTier, TIERS, divide};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::{GpuUuid, JobId, TenantId, Tier};
use tidegate_ffi::wire::message::ToMover;

/// Shares are multiples of so many bytes, and so of any page: no mover has to make them smaller.
const GRAIN: u64 = 64 << 10;

/// As much of some bytes as can be a share.
pub fn whole_grains(bytes: u64) -> u64 {
    bytes - bytes % GRAIN
}

/// How many grains are enough for some bytes.
fn grains_for(bytes: u64) -> u64 {
    bytes.div_ceil(GRAIN)
}

/// The sum of all tiers.
fn sum(of: PerTier) -> u64 {
    of.into_iter().fold(0, u64::saturating_add)
}

/// A GPU's share of a tier, in bytes.
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

    /// Was its mover told to change it, and has not answered.
    pub(super) fn is_changing(&self) -> bool {
        self.asked.is_some()
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

/// What a GPU gets when the shares are decided anew, in bytes.
struct Target {
    gpu: GpuUuid,
    /// What it needs of each tier, as far as there is so much.
    occupied: PerTier,
    /// Its part of what nobody needs.
    spare: PerTier,
}

impl Target {
    fn all(&self, tier: Tier) -> u64 {
        self.occupied[tier.index()] + self.spare[tier.index()]
    }
}

impl Gpu {
    /// What it may use of each tier for sure, in bytes.
    pub fn share_bytes(&self) -> PerTier {
        self.shares.map(|share| share.bytes())
    }

    pub(super) fn share(&self, tier: Tier) -> Share {
        self.shares[tier.index()]
    }
}

impl Config {
    /// Do the GPUs' shares of a tier stay as they are.
    fn is_in_parts(&self, tier: Tier) -> bool {
        tier == Tier::Cxl && self.cxl_is_in_parts
    }
}

impl Scheduler {
    /// Changes the shares, if one of them is too small and others can do with less.
    pub(super) fn balance_shares(&mut self) {
        if !std::mem::take(&mut self.are_needs_new) {
            return;
        }
        let targets = self.targets();
        let scarce: Vec<Tier> =
            Tier::ALL.into_iter().filter(|tier| self.is_scarce(*tier, &targets)).collect();
        scarce.iter().for_each(|tier| self.shrink_shares(*tier, &targets));
        scarce.iter().for_each(|tier| self.grow_shares(*tier, &targets));
    }

    /// Has a GPU less of a tier than it needs.
    fn is_scarce(&self, tier: Tier, targets: &[Target]) -> bool {
        let most = |target: &Target| self.gpus[&target.gpu].share(tier).most();
        targets.iter().any(|target| target.occupied[tier.index()] > most(target))
    }

    /// Divides the tiers, in whole grains. Who goes short because its equal part of a tier is in use elsewhere
    /// gets it of what nobody needs.
    fn targets(&self) -> Vec<Target> {
        let (gpus, needs): (Vec<GpuUuid>, Vec<Need>) = self.needs().into_iter().unzip();
        let totals = self.grains();
        let mut occupied: Vec<PerTier> = divide(totals, &needs).iter().map(|part| part.occupied).collect();
        let of_tier = |tier: usize, parts: &[PerTier]| parts.iter().map(|part| part[tier]).sum::<u64>();
        let mut left: PerTier =
            std::array::from_fn(|tier| totals[tier].saturating_sub(of_tier(tier, &occupied)));
        for (part, need) in occupied.iter_mut().zip(&needs) {
            let mut short = need.extra.saturating_sub(sum(*part));
            for (part, left) in part.iter_mut().zip(&mut left) {
                let more = short.min(*left);
                (*part, *left, short) = (*part + more, *left - more, short - more);
            }
        }
        let spare = left.map(|left| left / gpus.len().max(1) as u64 * GRAIN);
        let targets = gpus.into_iter().zip(occupied);
        targets
            .map(|(gpu, part)| Target { gpu, occupied: part.map(|grains| grains * GRAIN), spare })
            .collect()
    }

    /// Makes shares of a tier smaller, as far as their GPUs keep what was promised there.
    fn shrink_shares(&mut self, tier: Tier, targets: &[Target]) {
        for target in targets {
            let (gpu, bytes) = (&self.gpus[&target.gpu], self.gpus[&target.gpu].share(tier).bytes);
            let spare = sum(gpu.share_bytes()).saturating_sub(self.promised(target.gpu));
            let least = grains_for(bytes.saturating_sub(spare)).saturating_mul(GRAIN);
            let less = target.all(tier).max(least);
            if less < bytes {
                self.order_share(target.gpu, tier, less);
            }
        }
    }

    fn grow_shares(&mut self, tier: Tier, targets: &[Target]) {
        // What becomes free is for who needs it; the rest is dealt when it is known how much that is.
        let is_settled = self.gpus.values().all(|gpu| gpu.share(tier).asked.is_none());
        for target in targets {
            let free = whole_grains(self.tier_bytes(tier).saturating_sub(self.all_shares(tier)));
            let bytes = self.gpus[&target.gpu].share(tier).bytes;
            let wanted = if is_settled { target.all(tier) } else { target.occupied[tier.index()] };
            let more = wanted.min(bytes + free);
            if more > bytes {
                self.order_share(target.gpu, tier, more);
            }
        }
    }

    fn order_share(&mut self, gpu_id: GpuUuid, tier: Tier, bytes: u64) {
        let Some(gpu) = self.gpus.get_mut(&gpu_id) else { return };
        let share = &mut gpu.shares[tier.index()];
        if share.asked.is_some() {
            return;
        }
        share.asked = Some(bytes);
        let step = self.step(Pending::Share(gpu_id, tier));
        self.effects.push(Effect::Mover(gpu_id, ToMover::Share { step, tier, bytes }));
    }

    /// A mover has taken its share of a tier to be so large.
    pub(super) fn share_is(&mut self, gpu: GpuUuid, tier: Tier, bytes: u64) {
        self.change_shares(gpu, |shares| shares[tier.index()].answered(bytes));
    }

    /// There is no mover any more that could change its share.
    pub(super) fn share_stays(&mut self, gpu: GpuUuid, tier: Tier) {
        self.change_shares(gpu, |shares| shares[tier.index()].asked = None);
    }

    /// Some of what a tenant had saved is not any more: its mover may keep less.
    pub(super) fn note_less_saved(&mut self, id: TenantId) {
        let Some(gpu) = self.tenants.get(&id).map(|tenant| tenant.gpu) else { return };
        let is_kept = |share: &Share| share.kept > 0 || share.asked.is_some();
        if self.jobs_on(gpu).len() < 2 || self.gpus[&gpu].shares.iter().any(is_kept) {
            self.note_other_tenants(gpu);
        }
    }

    /// Who is on a GPU has changed, and with that what its shares have to be.
    pub(super) fn note_other_tenants(&mut self, gpu: GpuUuid) {
        self.change_shares(gpu, |shares| shares.iter_mut().for_each(Share::may_shrink));
    }

    /// Nothing can be saved on a GPU any more: others get its shares.
    pub(super) fn lose_shares(&mut self, gpu: GpuUuid) {
        self.change_shares(gpu, |shares| *shares = Default::default());
    }

    fn change_shares(&mut self, gpu: GpuUuid, change: impl FnOnce(&mut [Share; TIERS])) {
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            change(&mut gpu.shares);
            (gpu.saves_at_most, gpu.failed_saves, gpu.no_room_for, gpu.no_memory_since) = (None, 0, 0, None);
            self.are_needs_new = true;
        }
    }

    /// What all shares of a tier together may be.
    fn tier_bytes(&self, tier: Tier) -> u64 {
        whole_grains(self.config.tier_bytes[tier.index()])
    }

    /// What all shares of a tier together are, each as large as its mover may take it to be.
    pub(super) fn all_shares(&self, tier: Tier) -> u64 {
        self.gpus.values().map(|gpu| gpu.share(tier).most()).fold(0, u64::saturating_add)
    }

    /// The tiers to be divided, in grains.
    fn grains(&self) -> PerTier {
        Tier::ALL.map(|tier| match self.config.is_in_parts(tier) {
            true => self.gpus.values().map(|gpu| gpu.share(tier).bytes() / GRAIN).sum(),
            false => self.tier_bytes(tier) / GRAIN,
        })
    }

    /// What each GPU needs, in grains: what it has promised; and what is asked for besides, as far as there is room
    /// for it in all tiers together, first by who is there and then by who waits, in order. Who needs least is
    /// decided first: nobody goes short for whom an equal part is enough.
    fn needs(&self) -> Vec<(GpuUuid, Need)> {
        let alive = || self.gpus.iter().filter(|(_, gpu)| !gpu.lost).map(|(id, _)| *id);
        let mut wanted: BTreeMap<GpuUuid, u64> = alive().map(|gpu| (gpu, self.kept_grains(gpu))).collect();
        let mut room = sum(self.grains()).saturating_sub(wanted.values().sum());
        let mut want = |gpu: GpuUuid, bytes: u64, partly: bool| {
            let Some(wanted) = wanted.get_mut(&gpu) else { return false };
            let more = grains_for(bytes).saturating_sub(*wanted);
            let fits = more <= room;
            if fits || partly {
                *wanted += more.min(room);
                room -= more.min(room);
            }
            fits
        };
        for gpu in alive() {
            let asked = self.claimed_bytes(gpu).saturating_add(self.growth_bytes(gpu));
            want(gpu, self.promised(gpu).saturating_add(asked), true);
        }
        let mut known: BTreeMap<GpuUuid, u64> = alive().map(|gpu| (gpu, self.known_units(gpu))).collect();
        for (job, gpu) in self.jobs_that_wait() {
            let Some(known) = known.get_mut(&gpu) else { continue };
            let with_it = known.saturating_add(self.need_units(job));
            let least = self.least_in_tiers(gpu, with_it, 0).saturating_mul(self.config.unit_bytes);
            let mut has_room = |bytes: u64| want(gpu, bytes.saturating_add(self.hosted_bytes(gpu)), false);
            if has_room(self.bytes_to_save(gpu, with_it)) || has_room(least) {
                *known = with_it;
            }
        }
        let need = |(gpu, extra): (GpuUuid, u64)| (gpu, Need { extra, used: self.used_grains(gpu) });
        let mut needs: Vec<(GpuUuid, Need)> = wanted.into_iter().map(need).collect();
        needs.sort_by_key(|(_, need)| need.extra);
        needs
    }

    /// The jobs that wait for admission to a GPU, each once, in order.
    fn jobs_that_wait(&self) -> Vec<(JobId, GpuUuid)> {
        let mut seen = BTreeSet::new();
        let of = |session| self.sessions.get(session).map(|session| session.job);
        let waiting = self.admissions.iter().filter_map(|(session, _, gpu)| Some((of(session)?, *gpu)));
        waiting.filter(|waiting| seen.insert(*waiting)).collect()
    }

    /// What of its shares together a GPU keeps in any case, in grains: what lies there, and what was promised.
    fn kept_grains(&self, id: GpuUuid) -> u64 {
        let has = sum(self.gpus[&id].share_bytes().map(|bytes| bytes / GRAIN));
        sum(self.used_grains(id)).max(grains_for(self.promised(id)).min(has))
    }

    /// What of each of its shares a GPU keeps where it is, in grains.
    fn used_grains(&self, id: GpuUuid) -> PerTier {
        Tier::ALL.map(|tier| match (tier, self.gpus[&id].share(tier)) {
            (tier, share) if self.config.is_in_parts(tier) => share.bytes() / GRAIN,
            // What is host memory in the GPU's place, or is to be, is nowhere else.
            (Tier::Dram, share) => grains_for(share.kept.max(self.hosted_bytes(id) + self.claimed_bytes(id))),
            (_, share) => grains_for(share.kept),
        })
    }

    /// What the tiers have, or may have to take, of a GPU.
    fn promised(&self, id: GpuUuid) -> u64 {
        // Who has become alone while it left saves what was chosen then.
        self.promised_to_many(id).max(self.saved_on(id)).saturating_add(self.hosted_bytes(id))
    }

    /// What the tiers may have to take of a GPU that several jobs share: what they may come to have, unless all of that
    /// stays on the GPU; a job alone there needs nothing of them.
    pub(super) fn promised_to_many(&self, id: GpuUuid) -> u64 {
        if self.jobs_on(id).len() < 2 { 0 } else { self.bytes_to_save(id, self.known_units(id)) }
    }

    /// Bytes that a GPU wants of the tiers for so many units of several jobs: none where these fit on it.
    fn bytes_to_save(&self, gpu: GpuUuid, units: u64) -> u64 {
        let units = if units <= self.movable_units(gpu) { 0 } else { units };
        units.saturating_mul(self.config.unit_bytes)
    }

    /// The most bytes that the tiers may have to take of a tenant, by what is known of it.
    pub(super) fn most_saved(&self, tenant: &Tenant) -> u64 {
        let had = u64::from(tenant.peak_persistent) + u64::from(tenant.peak_temporary);
        self.need_bytes(tenant.job).max(had.saturating_mul(self.config.unit_bytes))
    }
}
