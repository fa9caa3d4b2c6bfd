//! Persistent memory that gave way comes back ahead of its job's turn, while another computes (DESIGN §7).
//!
//! ```text
//! open     A ███████████████ C ██████████████ B ███
//! B's room   gives way         comes back      only its temporary memory is missing
//! ```
//! Who is next in the queue gets what has room beside all that those who run may need; the rest comes with the turn.
//! Nobody gives way to that, and it comes in small parts: it is a guess, and what is guessed wrong costs a copy, not a
//! turn.

use super::arrival::cut_to;
use super::lease::{Clean, Unplaced};
use super::{Arrival, Pages, Phase, Scheduler, Tenant};
use crate::ledger::Slack;
use std::collections::BTreeSet;
use tidegate_ffi::units::{Class, GpuUuid, JobId, TenantId};

/// So many pieces come at a time: whoever wants the mover, or the room, waits for no more.
const PIECES_AT_ONCE: u32 = 8;

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
        self.now >= job.not_prefetched_before
            && self.now >= job.not_restored_before
            && !self.is_moving(id)
            && !self.is_stranded(id)
            && !job.has_stopped(pages)
    }

    fn prefetch_tenant(&mut self, id: TenantId, selected: &[JobId]) {
        let Some(tenant) = self.tenants.get(&id) else { return };
        let region = Class::Persistent;
        let most = PIECES_AT_ONCE * self.config.piece_units;
        let runs = cut_to(&tenant.runs[region.index()], self.room_beside(tenant.gpu, selected), most);
        // What is only to be there again costs nothing to bring. Looked at last: there may be a million ranges.
        if runs.is_empty() || !tenant.saved.iter().any(|range| range.region == region) {
            return;
        }
        let gpu = tenant.gpu;
        match self.acquire(id, region, &runs, Slack::Kept, Clean::Later) {
            Ok(acquired) => self.start_arrival(id, acquired, Some(region)),
            // What nobody has is in the way: when it is gone, this is tried again.
            Err(Unplaced { no_room, usable }) => drop(self.destroy_spares(gpu, no_room.short, &usable)),
        }
    }

    /// Units of a GPU that nobody needs: beside all resident persistent memory, the most that these jobs, and those
    /// that run still, are known to use; none where somebody waits for memory.
    fn room_beside(&self, gpu: GpuUuid, jobs: &[JobId]) -> u32 {
        let ledger = &self.gpus[&gpu].ledger;
        let is_needed = self.tenants_on(gpu).any(|(_, tenant)| self.waits_for_room(tenant));
        if is_needed || self.is_measuring(gpu) || self.units_are_coming(gpu, &BTreeSet::new()) {
            return 0;
        }
        let runs = |tenant: &Tenant| matches!(self.phase_of(tenant), Phase::Open | Phase::Closing);
        let members = self.tenants_on(gpu).filter(|(_, tenant)| jobs.contains(&tenant.job) || runs(tenant));
        let needed: u64 = members.map(|(id, tenant)| u64::from(self.units_to_come(id, tenant))).sum();
        let taken = needed
            + u64::from(ledger.packed_top())
            + u64::from(ledger.reserved())
            + u64::from(self.expected_outside(gpu, true))
            + u64::from(self.config.offset_units);
        u64::from(ledger.total()).saturating_sub(taken) as u32
    }

    /// Does a tenant wait for memory that it would get now if there were any, or will get back when there is.
    pub(super) fn waits_for_room(&self, tenant: &Tenant) -> bool {
        let is_away = self.phase_of(tenant) == Phase::Waiting;
        let job = self.jobs.get(&tenant.job);
        tenant.entering.is_some()
            || !tenant.rooms.is_empty()
            || tenant.arrival.iter().any(|arrival| arrival.put_off().next().is_some())
            || !is_away && tenant.asks()
            || is_away && job.is_some_and(|job| job.failed_arrivals > 0)
    }

    /// Does memory come back to a GPU that nobody waits for yet: it may be asked for again when it is there.
    pub(super) fn is_prefetching(&self, gpu: GpuUuid) -> bool {
        let prefetched = |arrival: &Arrival| arrival.early;
        self.tenants_on(gpu)
            .any(|(_, tenant)| tenant.arrival.as_ref().is_some_and(prefetched) && !self.is_silent(tenant.job))
    }
}
