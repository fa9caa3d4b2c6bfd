//! Quotas: the most memory of a GPU that a process may have, and that all jobs of one user may have
//! together (I6). Memory counts wherever its bytes lie now, on the GPU or in a tier.

use super::lease::Served;
use super::{Scheduler, Tenant};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::{Class, GpuUuid, JobId, TenantId};
use tidegate_ffi::wire::message::LeaseRequest;

/// Bytes of each GPU for the jobs of one user.
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

impl Scheduler {
    /// The most bytes of a GPU that a process of the tenant's job can ever get, if that is limited.
    pub(super) fn quota(&self, id: TenantId) -> Option<u64> {
        let job = self.jobs.get(&self.tenants.get(&id)?.job)?;
        [job.spec.memory, self.config.user_quotas.of(job.uid)].into_iter().flatten().min()
    }

    /// What becomes of a lease that is too much for its process, or its user; `None`: it is not.
    pub(super) fn over_quota(&mut self, id: TenantId, request: LeaseRequest) -> Option<Served> {
        let tenant = self.tenants.get(&id)?;
        let (gpu, uid) = (tenant.gpu, self.jobs.get(&tenant.job)?.uid);
        let own = self.jobs.get(&tenant.job)?.spec.memory;
        let ledger = &self.gpus[&gpu].ledger;
        let held: u32 = Class::ALL.iter().map(|region| ledger.held(id, *region)).sum();
        if let Some(reason) = self.too_much("the job's", own, held.saturating_sub(tenant.ahead), request) {
            return Some(Served::Refused(reason));
        }
        let users = Some(self.config.user_quotas.of(uid)?);
        let reason = self.too_much("the user's", users, self.units_of_user(gpu, uid), request)?;
        // What a process has freed is still its own, until it is asked for it: one job after another.
        let jobs: Vec<JobId> =
            self.jobs.iter().filter(|(_, job)| job.uid == uid).map(|(id, _)| *id).collect();
        if jobs.iter().any(|job| self.recall_unused(gpu, Some(*job))) {
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

    /// What a user's jobs have on a GPU, wherever it lies now.
    pub(super) fn units_of_user(&self, gpu: GpuUuid, uid: u32) -> u32 {
        let is_theirs = |job: &JobId| self.jobs.get(job).is_some_and(|job| job.uid == uid);
        let theirs = self.tenants_on(gpu).filter(|(_, tenant)| is_theirs(&tenant.job));
        theirs.map(|(_, tenant)| tenant.slots_with_memory()).sum()
    }

    /// No user has more than their quota.
    pub(super) fn check_quotas(&self) -> Result<(), String> {
        let users: BTreeSet<u32> = self.jobs.values().map(|job| job.uid).collect();
        let limited = users.into_iter().filter_map(|uid| Some((uid, self.config.user_quotas.of(uid)?)));
        for ((uid, quota), gpu) in limited.flat_map(|user| self.gpus.keys().map(move |gpu| (user, gpu))) {
            let bytes = u64::from(self.units_of_user(*gpu, uid)) * self.config.unit_bytes;
            if bytes > quota {
                return Err(format!("user {uid} has {bytes} bytes of {gpu}, of {quota} (I6)"));
            }
        }
        Ok(())
    }
}

impl Tenant {
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
