//! Progress (I11): a job that can run, runs, or is told why it cannot.
//!
//! After each event the state is looked at as a whole. A *standstill* is one in which jobs wait and nothing that is under
//! way can change that; a job *starves* that has waited longer than the turns of all others take. Neither should ever
//! come about: the rules by which jobs give way are made so. If one does, that is an error of the manager's; it is
//! counted, told with the whole waiting graph, and the jobs go on all the same:
//!
//! ```text
//! a job in it waits for memory ─► the one that came last is told that it is out of memory
//! else                         ─► the one that has waited longest comes first
//! ```

use super::waits::Wait;
use super::{Effect, Scheduler};
use std::collections::BTreeSet;
use tidegate_ffi::units::{JobId, TenantId};

/// A report names so many waits.
const WAITS_TOLD: usize = 16;

impl Scheduler {
    /// Looks whether the jobs make progress, and changes what keeps them from it. `true`: the turns are to be looked at
    /// again.
    pub(super) fn ensure_progress(&mut self) -> bool {
        self.note_waits();
        let (stuck, starving) = (self.stuck(), self.starving());
        if stuck.is_empty() && starving.is_empty() {
            return false;
        }
        let name = if stuck.is_empty() { "starvation" } else { "standstill" };
        let jobs: BTreeSet<JobId> = stuck.iter().map(|wait| wait.job).chain(starving).collect();
        self.standstills += 1;
        let report = self.report(name, &jobs);
        self.effects.push(Effect::Standstill(report));
        self.resolve(&jobs);
        true
    }

    /// Since when each job waits, but for what is known to end with another job.
    fn note_waits(&mut self) {
        let waits = |job: &JobId| !self.wanted_by(*job).is_empty() && !self.is_excused(*job);
        let waiting: BTreeSet<JobId> = self.jobs.keys().copied().filter(waits).collect();
        for (id, job) in &mut self.jobs {
            match waiting.contains(id) {
                true => _ = job.waits_since.get_or_insert(self.now),
                false => job.waits_since = None,
            }
        }
    }

    fn report(&self, name: &str, jobs: &BTreeSet<JobId>) -> String {
        let waits = self.waits();
        let wait = |wait: &Wait| {
            let phase = self.jobs.get(&wait.job).map(|job| job.phase);
            format!("{} ({phase:?}) waits for {wait}", wait.job)
        };
        let told: Vec<String> = waits.iter().take(WAITS_TOLD).map(wait).collect();
        let left_out = waits.len().saturating_sub(WAITS_TOLD);
        let names: Vec<String> = jobs.iter().map(JobId::to_string).collect();
        format!("{name} of {}: {}; {left_out} more waits", names.join(", "), told.join("; "))
    }

    /// Lets the jobs go on.
    pub(super) fn resolve(&mut self, jobs: &BTreeSet<JobId>) {
        let longest = jobs.iter().copied().min_by_key(|id| self.jobs.get(id).and_then(|job| job.waits_since));
        for id in jobs {
            if let Some(job) = self.jobs.get_mut(id) {
                job.waits_since = Some(self.now);
            }
        }
        let asks = |job: &JobId| {
            let asking = |tenant: &TenantId| !self.tenants[tenant].waiting.is_empty();
            self.tenants_of(*job).into_iter().find(asking)
        };
        if let Some(tenant) = jobs.iter().rev().find_map(asks) {
            let Some(request) = self.tenants.get(&tenant).and_then(|tenant| tenant.waiting.front().copied())
            else {
                return;
            };
            return self.refuse(tenant, request, "no room could be made for it in time".into());
        }
        let least = self.jobs.values().map(|job| job.virtual_runtime).min().unwrap_or(0);
        for (id, job) in self.jobs.iter_mut().filter(|(id, _)| jobs.contains(id)) {
            let is_first = Some(*id) == longest;
            job.virtual_runtime =
                if is_first { least } else { job.virtual_runtime.max(least.saturating_add(1)) };
        }
    }
}
