//! What jobs owed when they ended: the next job of their user begins where they stood.
//!
//! Else a program that is started anew for each of its long kernels would never give their time back. A debt is taken over
//! once, by a job of the same class, and is nothing any more when the others have had as much.

use super::Scheduler;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use tidegate_ffi::units::{GpuUuid, JobId, SessionId};

/// So many are kept at most for a GPU: the largest.
const KEPT: usize = 64;

/// A job had a GPU, and may be gone.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Debt {
    job: JobId,
    uid: u32,
    priority: i32,
    /// Where it stood.
    virtual_runtime: u64,
}

impl Scheduler {
    /// A process is about to go, perhaps the last of its job that has memory.
    pub(super) fn note_debt(&mut self, process: SessionId) {
        let Some(session) = self.sessions.get(&process).filter(|session| !session.tenants.is_empty()) else {
            return;
        };
        let id = session.job;
        if self.tenants_of(id).len() > session.tenants.len() {
            return;
        }
        let Some(level) = self.level_near(id) else { return };
        let longest = self.longest_debt(id);
        let Some(job) = self.jobs.get(&id).filter(|job| job.virtual_runtime > level) else { return };
        let most = level.saturating_add(job.virtual_time(longest));
        let virtual_runtime = job.virtual_runtime.min(most);
        let debt = Debt { job: id, uid: job.uid, priority: job.spec.priority, virtual_runtime };
        for gpu in self.gpus_of(id) {
            let Some(gpu) = self.gpus.get_mut(&gpu) else { continue };
            gpu.debts.retain(|debt| debt.job != id);
            gpu.debts.push(debt);
            gpu.debts.sort_by_key(|debt| Reverse(debt.virtual_runtime));
            gpu.debts.truncate(KEPT);
        }
    }

    /// A job comes to a GPU: it takes over the largest debt of its user there. What it owed itself it still does.
    pub(super) fn take_debt(&mut self, id: JobId, gpu: GpuUuid) {
        let Self { gpus, jobs, .. } = self;
        let (Some(gpu), Some(job)) = (gpus.get_mut(&gpu), jobs.get(&id)) else { return };
        let is_its = |debt: &Debt| {
            (debt.uid, debt.priority) == (job.uid, job.spec.priority) && !jobs.contains_key(&debt.job)
        };
        let Some(place) = gpu.debts.iter().position(is_its) else { return };
        let owed = gpu.debts.remove(place).virtual_runtime;
        if let Some(job) = jobs.get_mut(&id) {
            job.virtual_runtime = job.virtual_runtime.max(owed);
        }
    }
}
