//! For how many bytes of a GPU the tiers' memory is got ahead of need.
//!
//! For all that may have to be saved, where several jobs do not fit on the GPU together; as long as it is not known what
//! a job will need, it is taken for one that does not fit, for a while after it came.

#![forbid(unsafe_code)]

use super::{Effect, Scheduler, Time};
use std::time::Duration;
use tidegate_ffi::units::{GpuUuid, JobId};
use tidegate_ffi::wire::message::ToMover;

/// So long after it came a job of unknown need is expected to grow beyond what fits.
const GROWS_FOR: Duration = Duration::from_secs(10);

/// What is wanted is told in so many steps up to a GPU's memory: a job that grows does not say so with each allocation.
const STEPS: u64 = 16;

impl Scheduler {
    /// Tells the movers for how many bytes to have memory, where that has changed.
    pub(super) fn warm_tiers(&mut self) {
        let gpus: Vec<GpuUuid> = self.gpus.iter().filter(|(_, gpu)| !gpu.lost).map(|(id, _)| *id).collect();
        for id in gpus {
            let bytes = self.bytes_to_warm(id);
            if let Some(gpu) = self.gpus.get_mut(&id).filter(|gpu| gpu.warm_bytes != bytes) {
                gpu.warm_bytes = bytes;
                self.effects.push(Effect::Mover(id, ToMover::Warm { bytes }));
            }
        }
    }

    fn bytes_to_warm(&self, id: GpuUuid) -> u64 {
        let jobs = self.jobs_on(id);
        if jobs.len() < 2 {
            return 0;
        }
        let (movable, known) = (self.movable_units(id), self.known_units(id));
        if known <= movable && !jobs.iter().any(|job| self.may_still_grow(*job)) {
            return 0;
        }
        let closed = |job: JobId| !self.jobs.get(&job).is_some_and(|job| job.is_never_closed());
        let units = self.known_units_of(id, closed).next_multiple_of((movable / STEPS).max(1));
        units.saturating_mul(self.config.unit_bytes)
    }

    /// Whether nothing is known of what a job will need, and it has not been there for long.
    fn may_still_grow(&self, id: JobId) -> bool {
        let is_new = |arrived: Time| self.now.saturating_sub(arrived) < GROWS_FOR;
        let job = self.jobs.get(&id).filter(|job| job.spec.need.is_none());
        job.and_then(|job| job.stats.arrived).is_some_and(is_new)
    }
}
