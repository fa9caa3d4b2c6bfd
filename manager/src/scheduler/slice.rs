//! What a job's switches cost, and how long its slices are for that.
//!
//! ```text
//! a switch   unmap + save + restore + map, from one grant to the next; not the drain: that is the job's own work
//! its cost   the median of the last ones; of the first, which may have been the first to touch a tier's memory, the
//!            least, and no more than the bytes take at the link's rate; of the part that its processes take for themselves no
//!            more than the rest and half a second: else they could have slices as long as they like
//! its slice  as long as switches may take --switch-overhead of it, but --slice at least, and
//!            --slice-max at most, or less where many wait: no more than three such slices for all of them together
//!            (but for a slice that switches would take a tenth of: then it is longer)
//! ```

use super::{Job, Scheduler, Stats};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_ffi::units::{GpuUuid, JobId};
use tidegate_ffi::wire::message::LinkRates;

/// Switches that the cost is the median of.
const KEPT: usize = 7;
/// From so many on the median is believed, whatever the link's rate.
const ENOUGH: usize = 3;
/// What a job's processes take for their part of a switch, to unmap and to map, beside what the moves take: at most so much counts.
const MOST_FIXED: Duration = Duration::from_millis(500);
/// All jobs that wait get their turn in so many of the longest slices.
const LONGEST_SLICES: u32 = 3;
/// However many wait, switches take no larger part of a slice than one in so many.
const LEAST_SLICE: u32 = 9;

/// What a job's last switches have cost.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Costs {
    recent: VecDeque<Duration>,
    /// The sums when the last one was counted.
    counted: Sums,
}

/// Sums over a job's life.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Sums {
    switches: u64,
    fixed: Duration,
    moves: Duration,
    saved_bytes: u64,
    restored_bytes: u64,
}

impl Sums {
    fn of(stats: &Stats) -> Self {
        Self {
            switches: stats.switches,
            fixed: stats.unmap + stats.map,
            moves: stats.save + stats.restore,
            saved_bytes: stats.saved_bytes + stats.preempted_bytes,
            restored_bytes: stats.restored_bytes,
        }
    }
}

impl Costs {
    /// Takes note of a switch that is over, if there was one.
    pub(super) fn note(&mut self, stats: &Stats, link: Option<LinkRates>) {
        let sums = Sums::of(stats);
        let before = std::mem::replace(&mut self.counted, sums);
        let switches = sums.switches.saturating_sub(before.switches);
        let Ok(switches @ 1..) = u32::try_from(switches) else { return };
        let moves = sums.moves.saturating_sub(before.moves);
        let at_rate = link.map(|link| {
            time_of(sums.saved_bytes.saturating_sub(before.saved_bytes), link.to_host)
                + time_of(sums.restored_bytes.saturating_sub(before.restored_bytes), link.to_gpu)
        });
        let believed =
            at_rate.filter(|_| self.recent.len() + 1 < ENOUGH).map_or(moves, |rate| rate.min(moves));
        let fixed = sums.fixed.saturating_sub(before.fixed).min(believed + MOST_FIXED * switches);
        self.recent.push_back((fixed + believed) / switches);
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }

    /// The most that one of them cost.
    fn most(&self) -> Duration {
        self.recent.iter().copied().max().unwrap_or_default()
    }

    /// What the next switch is likely to cost; zero before the first.
    pub fn next(&self) -> Duration {
        let mut costs: Vec<Duration> = self.recent.iter().copied().collect();
        costs.sort_unstable();
        let middle = if costs.len() < ENOUGH { 0 } else { costs.len() / 2 };
        costs.get(middle).copied().unwrap_or_default()
    }
}

/// How long so many bytes take at a rate, in bytes per second.
fn time_of(bytes: u64, rate: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)
}

impl Scheduler {
    /// How fast a GPU's link is, as its mover has measured it.
    pub(super) fn note_link(&mut self, gpu: GpuUuid, link: LinkRates) {
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            gpu.link = Some(link);
        }
    }

    /// A job's memory is there again: takes note of what the switch has cost.
    pub(super) fn note_cost(&mut self, id: JobId) {
        let slowest = |links: (LinkRates, LinkRates)| LinkRates {
            to_host: links.0.to_host.min(links.1.to_host),
            to_gpu: links.0.to_gpu.min(links.1.to_gpu),
            both: links.0.both.min(links.1.both),
        };
        let gpus = self.gpus_of(id);
        let links: Option<Vec<LinkRates>> = gpus.iter().map(|gpu| self.gpus[gpu].link).collect();
        let link = links.and_then(|links| links.into_iter().reduce(|one, other| slowest((one, other))));
        if let Some(Job { stats, costs, .. }) = self.jobs.get_mut(&id) {
            costs.note(stats, link);
        }
    }

    /// How long a job's slices are.
    pub(super) fn slice_of(&self, id: JobId) -> Duration {
        let Some(job) = self.jobs.get(&id) else { return self.config.slice };
        let cost = job.costs.next();
        let percent = self.config.switch_percent.clamp(1, 99);
        let wanted = cost * (100 - percent) / percent;
        let longest = self.longest_slice(id).max(cost * LEAST_SLICE);
        self.config.slice.max(wanted.min(longest))
    }

    /// The longest slice that a job may have had lately.
    pub(super) fn longest_slice_of(&self, job: &Job) -> Duration {
        let longest = self.config.slice_max.max(job.costs.most() * LEAST_SLICE);
        self.config.slice.max(longest)
    }

    fn longest_slice(&self, id: JobId) -> Duration {
        let waiting = self.jobs_near(id).into_iter().filter(|other| !self.is_idle(*other)).count();
        let all = self.config.slice_max.saturating_mul(LONGEST_SLICES);
        self.config.slice_max.min(all / (waiting as u32).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// A byte takes a microsecond.
    const LINK: LinkRates = LinkRates { to_host: 1_000_000, to_gpu: 1_000_000, both: 1_000_000 };

    /// A switch of 1000 bytes each way, which took so many milliseconds each.
    fn switched(stats: &mut Stats, save: u32, restore: u32) {
        stats.switches += 1;
        stats.unmap += MS;
        stats.map += MS;
        stats.drain += MS * 5000;
        stats.save += MS * save;
        stats.restore += MS * restore;
        stats.saved_bytes += 1000;
        stats.restored_bytes += 1000;
    }

    #[test]
    fn a_first_switch_that_was_cold_costs_what_its_bytes_take() {
        let (mut stats, mut costs) = (Stats::default(), Costs::default());
        costs.note(&stats, Some(LINK));
        assert_eq!(costs.next(), Duration::ZERO, "there was none");
        switched(&mut stats, 900, 3);
        costs.note(&stats, Some(LINK));
        assert_eq!(costs.next(), MS * 4, "1 + 1 + 1 + 1");
        let mut costs = Costs::default();
        costs.note(&stats, None);
        assert_eq!(costs.next(), MS * 905, "nothing is known of the link");
        switched(&mut stats, 2, 3);
        costs.note(&stats, None);
        assert_eq!(costs.next(), MS * 7, "and the next one says more");
    }

    #[test]
    fn what_its_processes_take_for_themselves_makes_slices_no_longer_than_the_moves_do() {
        let (mut stats, mut costs) = (Stats::default(), Costs::default());
        for _ in 0..KEPT {
            switched(&mut stats, 20, 30);
            stats.unmap += MS * 28_000;
            costs.note(&stats, Some(LINK));
        }
        assert_eq!(costs.next(), (MS * 50) * 2 + MOST_FIXED);
    }

    #[test]
    fn the_median_of_the_last_switches_is_believed() {
        let (mut stats, mut costs) = (Stats::default(), Costs::default());
        for save in [900, 2, 3, 700, 4, 5, 6, 7, 800] {
            switched(&mut stats, save, 3);
            costs.note(&stats, Some(LINK));
        }
        assert_eq!(costs.next(), MS * (2 + 6 + 3), "of 3, 700, 4, 5, 6, 7, 800");
    }
}
