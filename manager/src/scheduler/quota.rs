//! Quotas (I6).
//!
//! Of memory: the most of a GPU that a process may have, and that all jobs of one user may have together. It counts
//! wherever its bytes lie now, on the GPU or in a tier.
//!
//! Of saved bytes: the most that all jobs of one user may have in the tiers together, of all GPUs. A job that comes to a
//! GPU where others are waits until what may have to be saved of each user there fits that user's quota, as it waits
//! for room in the tiers. An allocation after which the jobs could not take turns within it is refused, as where the tiers
//! are full, and so is host memory in a GPU's place. Of what a switch moves no more is chosen than the quota has room for,
//! beside what is on its way to a tier: so nothing comes there that exceeds it.

use super::lease::Served;
use super::promises::Growth;
use super::{Scheduler, Tenant};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::{GpuUuid, JobId, TenantId};
use tidegate_ffi::wire::message::LeaseRequest;

/// So many bytes for the jobs of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserQuotas {
    /// Of each user who is not named.
    pub others: Option<u64>,
    /// Of those who are, by uid.
    pub named: BTreeMap<u32, u64>,
}

impl UserQuotas {
    /// A user's; `None`: there is none.
    pub fn of(&self, uid: u32) -> Option<u64> {
        self.named.get(&uid).copied().or(self.others)
    }
}

/// A user's quota of saved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQuota {
    /// Whose.
    pub uid: u32,
    /// How many.
    pub bytes: u64,
}

impl Scheduler {
    /// The quota of saved bytes that keeps a job from being let in: its own user's, or that of somebody who has the
    /// GPU alone, and is never saved there, as long as it does not come.
    pub fn quota_in_its_way(&self, job: JobId) -> Option<SavedQuota> {
        let of = |session| self.sessions.get(session).is_some_and(|session| session.job == job);
        let mut waits = self.admissions.iter().filter(|(session, ..)| of(session));
        waits.find_map(|(_, _, gpu)| self.quota_against(job, *gpu))
    }

    /// The quota of saved bytes that is too small for a job to come to a GPU.
    pub(super) fn quota_against(&self, job: JobId, gpu: GpuUuid) -> Option<SavedQuota> {
        if self.config.saved_quotas == UserQuotas::default() {
            return None;
        }
        self.users_on(gpu, Some(job)).into_iter().find_map(|uid| {
            let bytes = self.config.saved_quotas.of(uid)?;
            let promised = self.promised_to_user(uid, Some((job, gpu)));
            let is_in_its_way = promised > bytes && promised > self.promised_to_user(uid, None);
            is_in_its_way.then_some(SavedQuota { uid, bytes })
        })
    }

    /// What may have to be saved of a user's jobs, by what is known of them; as if one more were on a GPU. A job that
    /// is alone on its GPU is not saved.
    fn promised_to_user(&self, uid: u32, newcomer: Option<(JobId, GpuUuid)>) -> u64 {
        let on_gpu = |gpu: &GpuUuid| {
            let newcomer = newcomer.filter(|(_, to)| to == gpu).map(|(job, _)| job);
            let mut jobs = self.jobs_on(*gpu);
            jobs.extend(newcomer);
            if jobs.len() < 2 {
                return 0;
            }
            let theirs = self.tenants_on(*gpu).filter(|(_, tenant)| self.is_of_user(tenant.job, uid));
            let newcomer = newcomer.filter(|job| self.is_of_user(*job, uid));
            let newcomer = newcomer.map_or(0, |job| self.need_bytes(job));
            theirs.map(|(_, tenant)| self.most_saved(tenant)).fold(newcomer, u64::saturating_add)
        };
        self.gpus.keys().map(on_gpu).fold(self.hosted_bytes_of_user(uid), u64::saturating_add)
    }

    /// The users of a GPU's jobs, and of one that may come.
    fn users_on(&self, gpu: GpuUuid, newcomer: Option<JobId>) -> BTreeSet<u32> {
        let there = self.jobs_on(gpu).into_iter().chain(newcomer);
        there.filter_map(|job| Some(self.jobs.get(&job)?.uid)).collect()
    }

    /// Why a lease can never be served within the quotas of saved bytes, as long as the other jobs on its GPU live. `None`: it
    /// can, or was promised before.
    pub(super) fn breaks_saved_quota(&self, id: TenantId, request: LeaseRequest) -> Option<String> {
        if self.config.saved_quotas == UserQuotas::default() {
            return None;
        }
        let growth = self.growth(id, request).filter(|growth| growth.new > 0)?;
        self.users_on(growth.gpu, None).into_iter().find_map(|uid| {
            let quota = self.config.saved_quotas.of(uid)?;
            let before = self.least_saved_of_user(uid, None);
            let after = self.least_saved_of_user(uid, Some(growth));
            (after > before && after > quota).then(|| {
                format!(
                    "no room for it and the other jobs on {}: {after} bytes of user {uid} would have to be saved, of a \
                     quota of {quota}",
                    growth.gpu
                )
            })
        })
    }

    /// Bytes of a user's jobs that may have to be in the tiers at once at least, while the jobs of each GPU take turns; as if one
    /// of them had grown.
    fn least_saved_of_user(&self, uid: u32, growth: Option<Growth>) -> u64 {
        let on_gpu = |gpu: GpuUuid| {
            let growth = growth.filter(|growth| growth.gpu == gpu);
            let jobs = self.jobs_on(gpu);
            if jobs.len() < 2 {
                return 0;
            }
            let new = |job: JobId| growth.filter(|growth| growth.job == job).map_or(0, |growth| growth.new);
            let units = |job: &JobId| self.reserved_units(gpu, *job) + new(*job);
            let all = jobs.iter().map(units).fold(0, u64::saturating_add);
            let theirs = jobs.iter().filter(|job| self.is_of_user(**job, uid));
            let theirs = theirs.map(units).fold(0, u64::saturating_add);
            let whole = growth.map_or(0, |growth| growth.whole);
            // Where jobs of several users are, it may be all of theirs that has to go.
            self.least_in_tiers(gpu, all, whole).min(theirs).saturating_mul(self.config.unit_bytes)
        };
        self.gpus.keys().map(|gpu| on_gpu(*gpu)).fold(self.hosted_bytes_of_user(uid), u64::saturating_add)
    }

    /// What lies in the tiers of a user's jobs, or is on the way there, in bytes; what is host memory in a GPU's
    /// place does too.
    pub fn saved_of_user(&self, uid: u32) -> u64 {
        self.tenants_of_user(uid).map(Tenant::saved_bytes).sum::<u64>() + self.hosted_bytes_of_user(uid)
    }

    /// Host memory in a GPU's place that a user's jobs have, in bytes.
    fn hosted_bytes_of_user(&self, uid: u32) -> u64 {
        self.tenants_of_user(uid).map(|tenant| self.hosted_bytes_of(tenant)).sum()
    }

    /// Bytes that a job's user may still have in the tiers, beside what is on the way there.
    pub(super) fn quota_room(&self, job: JobId) -> u64 {
        let Some(uid) = self.jobs.get(&job).map(|job| job.uid) else { return 0 };
        let Some(quota) = self.config.saved_quotas.of(uid) else { return u64::MAX };
        let planned: u64 = self.tenants_of_user(uid).map(Tenant::planned_bytes).sum();
        quota.saturating_sub(self.saved_of_user(uid)).saturating_sub(planned)
    }

    /// May so many bytes of host memory take a GPU's place for a job: now, and while its user's jobs take turns.
    pub(super) fn quota_allows_hosting(&self, job: JobId, bytes: u64) -> bool {
        let Some(uid) = self.jobs.get(&job).map(|job| job.uid) else { return false };
        let Some(quota) = self.config.saved_quotas.of(uid) else { return true };
        bytes <= self.quota_room(job) && self.least_saved_of_user(uid, None).saturating_add(bytes) <= quota
    }

    /// The most bytes of a GPU that a process of the tenant's job can ever get, if that is limited.
    pub(super) fn quota(&self, id: TenantId) -> Option<u64> {
        let job = self.jobs.get(&self.tenants.get(&id)?.job)?;
        [job.spec.memory, self.config.user_quotas.of(job.uid)].into_iter().flatten().min()
    }

    /// What becomes of a lease that is too much for its process, or its user; `None`: it is not.
    pub(super) fn over_quota(&mut self, id: TenantId, request: LeaseRequest) -> Option<Served> {
        let tenant = self.tenants.get(&id)?;
        let (gpu, job) = (tenant.gpu, tenant.job);
        let uid = self.jobs.get(&job)?.uid;
        let own = self.jobs.get(&job)?.spec.memory;
        let has = (tenant.units() + tenant.hosted_units()).saturating_sub(tenant.ahead);
        let (reason, jobs) = match self.too_much("the job's", own, has, request) {
            Some(reason) => (reason, vec![job]),
            None => {
                let quota = self.config.user_quotas.of(uid);
                let has = self.units_of_user(gpu, uid);
                let beyond = |leaving| {
                    let quota = self.too_much("the user's", quota, has + leaving, request);
                    quota.or_else(|| self.leaks_too_much(gpu, uid, leaving))
                };
                let Some(reason) = beyond(0) else {
                    // What is being destroyed may turn out to be leaked.
                    let leaving = self.units_being_destroyed(gpu, uid);
                    return (leaving > 0 && beyond(leaving).is_some()).then_some(Served::Waits);
                };
                // What was left behind may be gone by now.
                if self.units_left_by_user(gpu, uid) > 0 && self.doubts(id) {
                    return Some(Served::Waits);
                }
                let theirs = self.jobs.iter().filter(|(_, job)| job.uid == uid);
                (reason, theirs.map(|(id, _)| *id).collect())
            }
        };
        // What a process has freed is still its own, until it is asked for it: one job after another.
        if jobs.iter().any(|job| self.recall_unused(gpu, Some(*job))) || self.is_asked_later(gpu, job) {
            return Some(Served::Waits);
        }
        // They may have freed something when the next lease is too much.
        jobs.into_iter().for_each(|job| self.ask_anew(self.tenants_of(job)));
        Some(Served::Refused(reason))
    }

    /// Why a lease is too much for who has so many units already.
    fn too_much(&self, whose: &str, quota: Option<u64>, has: u32, request: LeaseRequest) -> Option<String> {
        let wanted = u64::from(has.saturating_add(request.units.0)) * self.config.unit_bytes;
        let quota = quota.filter(|quota| wanted > *quota)?;
        Some(format!("{whose} quota is {quota} bytes of a GPU, this would make {wanted}"))
    }

    /// What a user's jobs have on a GPU, wherever it lies now, what expelled processes of theirs still hold, and what they leak.
    pub(super) fn units_of_user(&self, gpu: GpuUuid, uid: u32) -> u32 {
        let theirs = self.tenants_on(gpu).filter(|(_, tenant)| self.is_of_user(tenant.job, uid));
        let in_jobs: u32 = theirs.map(|(_, tenant)| tenant.slots_with_memory()).sum();
        in_jobs.saturating_add(self.units_left_by_user(gpu, uid))
    }

    /// What expelled processes of a user hold on a GPU, and what the user leaks there.
    pub(super) fn units_left_by_user(&self, gpu: GpuUuid, uid: u32) -> u32 {
        let Some(gpu) = self.gpus.get(&gpu) else { return 0 };
        let retired = gpu.retired.values().filter(|retired| retired.uid == Some(uid));
        retired.map(|retired| retired.units).sum::<u32>().saturating_add(gpu.leaks.of(uid))
    }

    fn tenants_of_user(&self, uid: u32) -> impl Iterator<Item = &Tenant> {
        self.tenants.values().filter(move |tenant| self.is_of_user(tenant.job, uid))
    }

    fn is_of_user(&self, job: JobId, uid: u32) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.uid == uid)
    }

    /// No user has more than their quota.
    pub(super) fn check_quotas(&self) -> Result<(), String> {
        let users: BTreeSet<u32> = self.jobs.values().map(|job| job.uid).collect();
        let limited = users.iter().filter_map(|uid| Some((uid, self.config.user_quotas.of(*uid)?)));
        for ((uid, quota), gpu) in limited.flat_map(|user| self.gpus.keys().map(move |gpu| (user, gpu))) {
            let units = self.units_of_user(*gpu, *uid).saturating_sub(self.gpus[gpu].leaks.of(*uid));
            let bytes = u64::from(units) * self.config.unit_bytes;
            if bytes > quota {
                return Err(format!("user {uid} has {bytes} bytes of {gpu}, of {quota} (I6)"));
            }
        }
        for uid in users {
            let Some(quota) = self.config.saved_quotas.of(uid) else { continue };
            let bytes = self.saved_of_user(uid);
            if bytes > quota {
                return Err(format!("user {uid} has {bytes} saved bytes, of {quota} (I6)"));
            }
        }
        Ok(())
    }
}

impl Tenant {
    /// Its bytes in a tier, or on the way there.
    pub(super) fn saved_bytes(&self) -> u64 {
        let leaving = self.departure.as_ref().map_or(0, |departure| departure.saving_bytes);
        self.saved.iter().map(|range| range.bytes).sum::<u64>() + leaving
    }

    /// Its bytes that are being unmapped, and will be saved next.
    pub(super) fn planned_bytes(&self) -> u64 {
        let planned = self.departure.iter().filter(|departure| departure.saving_bytes == 0);
        planned.flat_map(|departure| &departure.moves).map(|m| m.bytes).sum()
    }

    /// How many of its slots have memory behind them. On its way in or out a slot has both a piece and
    /// saved bytes, and counts once.
    fn slots_with_memory(&self) -> u32 {
        let mut counted = 0;
        let mut last = None;
        let mut taken: Vec<_> = self.taken_slots().collect();
        taken.sort_unstable();
        for (class, first, units) in taken {
            let end = first + units;
            let from = last.filter(|(of, _)| *of == class).map_or(first, |(_, counted)| first.max(counted));
            counted += end.saturating_sub(from);
            last = Some((class, end.max(from)));
        }
        counted
    }
}
