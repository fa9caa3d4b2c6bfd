//! Persistent memory that gave way comes back ahead of its job's turn, while another computes (DESIGN §7).
//!
//! ```text
//! open     A ███████████████ C ██████████████ B ███
//! B's room   gives way         comes back      only its temporary memory is missing
//! ```
//! Who is next in the queue gets what has room beside all that those who run may need; the rest comes with the turn.
//! Nobody gives way to that: it is a guess, and what is guessed wrong costs a copy, not a turn.

use super::arrival::cut_to;
use super::lease::Run;
use super::{Arrival, Pages, Phase, Scheduler};
use crate::ledger::Slack;
use std::collections::BTreeSet;
use tidegate_ffi::units::{Class, GpuUuid, JobId, TenantId};

impl Scheduler {
    /// Brings back persistent memory of who is next on each GPU, where there is room.
    pub(super) fn prefetch(&mut self, selected: &[JobId], pages: &dyn Pages) {
        let mut seen: BTreeSet<GpuUuid> = BTreeSet::new();
        for id in self.queue() {
            let gpus = self.gpus_of(id);
            let is_next = gpus.is_disjoint(&seen);
            seen.extend(gpus);
            if is_next && !selected.contains(&id) && self.may_prefetch(id, pages) {
                for tenant in self.tenants_of(id) {
                    self.prefetch_tenant(tenant, selected);
                }
            }
        }
    }

    fn may_prefetch(&self, id: JobId, pages: &dyn Pages) -> bool {
        let Some(job) = self.jobs.get(&id).filter(|job| job.phase == Phase::Waiting && !job.silent) else {
            return false;
        };
        let is_stopped = || job.sessions.iter().any(|session| pages.is_stopped(*session));
        self.now >= job.not_prefetched_before
            && self.now >= job.not_restored_before
            && !self.is_moving(id)
            && !self.is_stranded(id)
            && !is_stopped()
    }

    fn prefetch_tenant(&mut self, id: TenantId, selected: &[JobId]) {
        let Some(tenant) = self.tenants.get(&id) else { return };
        let region = Class::Persistent;
        // What is only to be there again costs nothing to bring.
        if !tenant.saved.iter().any(|range| range.region == region) {
            return;
        }
        let runs: Vec<Run> = cut_to(&tenant.runs[region.index()], self.room_beside(tenant.gpu, selected));
        if runs.is_empty() {
            return;
        }
        if let Ok(acquired) = self.acquire(id, region, &runs, Slack::Kept) {
            self.start_arrival(id, acquired, true);
        }
    }

    /// Units of a GPU that nobody needs: beside all resident persistent memory, the most that these jobs are known
    /// to use, and what anybody waits for.
    fn room_beside(&self, gpu: GpuUuid, jobs: &[JobId]) -> u32 {
        let ledger = &self.gpus[&gpu].ledger;
        let somebody_asks =
            self.tenants_on(gpu).any(|(_, tenant)| tenant.asks() || tenant.entering.is_some());
        if somebody_asks || self.is_measuring(gpu) || self.units_are_coming(gpu) {
            return 0;
        }
        let members = self.tenants_on(gpu).filter(|(_, tenant)| jobs.contains(&tenant.job));
        let needed: u64 = members.map(|(id, tenant)| u64::from(self.units_to_come(id, tenant))).sum();
        let taken = needed
            + u64::from(ledger.packed_top())
            + u64::from(ledger.reserved())
            + u64::from(self.config.offset_units);
        u64::from(ledger.total()).saturating_sub(taken) as u32
    }

    /// Does memory come back to a GPU that nobody waits for yet: it may be asked for again when it is there.
    pub(super) fn is_prefetching(&self, gpu: GpuUuid) -> bool {
        let prefetched = |arrival: &Arrival| arrival.early;
        self.tenants_on(gpu)
            .any(|(_, tenant)| tenant.arrival.as_ref().is_some_and(prefetched) && !self.is_silent(tenant.job))
    }
}
