//! Where the processes of one job stop.
//!
//! ```text
//! rank 0   ──11──────12│                     stops at the common boundary
//! rank 1   ─────11──────12│                  the same
//! launcher ───────────────·│                 closed after them: it never delays them, and they may need it
//! ```
//! - Processes in step (ranks) report boundaries of the same numbers, at most one apart where each waits for the others
//!   in every iteration, or some more where only its work does. They stop together, at the boundary after the last one that
//!   any of them has reported. A rank that has passed that one before the manager's message reached it says so, and all are
//!   asked to stop at the next.
//! - Where no process reports boundaries, those that launch collectives (NCCL) stop before one of the same number: all that
//!   any of them has launched before it end.
//! - A process that reports other numbers, and is busy, is no rank of these: it stops at its own next boundary.
//! - All others (launchers, idle workers, helpers without boundaries) are closed when those have stopped.
//!
//! While no rank stands at the common boundary for lack of another, no gate between them is shut: what is in flight
//! between them, as a collective whose kernel waits for all ranks, can end.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// Ranks that wait for each other in every iteration are at most so many boundaries apart: none begins one before all have
/// begun the one before.
const IN_STEP: u64 = 2;
/// Stages of a pipeline only submit work that waits, and may be as far apart as their streams have room for.
const FAR: u64 = 64;
/// Ranks that only launch collectives may be so many apart: as many as a stream has room for, some times.
const FAR_BY_COLLECTIVES: u64 = 4096;
/// Where a rank has launched the collective before which it was to stop when the message comes, so many more are allowed for
/// the next message's way, and twice as many each time.
pub(super) const COLLECTIVES_AHEAD: u64 = 16;
/// Those that were far apart and did not come to one boundary, twice of late, may have nothing to do with each other: that they
/// did not weighs as much as so many closings in which they were not asked to.
pub(super) const WEIGHT_OF_VAIN: u32 = 8;

/// How a process is asked to stop in its job's closing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// At the common boundary.
    Together,
    /// By itself: at its next boundary, or at once where none is known.
    Alone,
    /// When the others have stopped.
    #[default]
    Later,
    /// It has stopped, and goes on, for another may wait for its work: it stops again when that one has.
    Resumed,
    /// It was asked to when the others had stopped, or was closed from the start.
    Last,
}

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    /// The number of its last boundary, or of the last one that it has no name for yet; 0: it has none.
    pub boundary: u64,
    /// It has said that it submits nothing.
    pub idle: bool,
    /// It has come to a GPU.
    pub works: bool,
}

/// How each of a job's processes stops, and the common boundary (0: there is none). `far_in_vain`: how much it
/// weighs that those far apart did not come to it ([`WEIGHT_OF_VAIN`]).
pub(super) fn stops(ranks: &[Rank], far_in_vain: u32) -> (Vec<Stop>, u64) {
    let reporting = || ranks.iter().filter(|rank| rank.boundary > 0);
    let busy = reporting().filter(|rank| !rank.idle).map(|rank| rank.boundary).max();
    let Some(front) = busy.or_else(|| reporting().map(|rank| rank.boundary).max()) else {
        return (vec![Stop::Alone; ranks.len()], 0);
    };
    // Beside ranks in their first iterations, one that has told none yet may be a little behind.
    let is_one = |rank: &Rank| rank.boundary > 0 || rank.works;
    let is_sure = |rank: &Rank| rank.boundary > 0 && !rank.idle && far_in_vain <= WEIGHT_OF_VAIN;
    let apart = |rank: &Rank| if is_sure(rank) { FAR } else { IN_STEP };
    let is_in_step = |rank: &Rank| is_one(rank) && rank.boundary.abs_diff(front) <= apart(rank);
    let in_step = ranks.iter().filter(|rank| is_in_step(rank));
    let last = in_step.clone().map(|rank| rank.boundary).max().unwrap_or(0);
    let together = if in_step.count() > 1 { Stop::Together } else { Stop::Alone };
    let stop = |rank: &Rank| match rank.boundary {
        _ if is_in_step(rank) => together,
        boundary if boundary > 0 && !rank.idle => Stop::Alone,
        _ => Stop::Later,
    };
    let boundary = if together == Stop::Together { last.saturating_add(1) } else { 0 };
    (ranks.iter().map(stop).collect(), boundary)
}

/// The same of processes of which none reports boundaries: those that launch collectives, of which `ranks` has the numbers,
/// stop together before one of them, the others after them. `None`: not two do, or they are too far apart, or it was in vain
/// of late.
pub(super) fn stops_by_collectives(ranks: &[Rank], far_in_vain: u32) -> Option<(Vec<Stop>, u64)> {
    let launches = |rank: &&Rank| rank.works && rank.boundary > 0;
    let numbers = || ranks.iter().filter(launches).map(|rank| rank.boundary);
    let (first, last) = (numbers().min()?, numbers().max()?);
    let is_sure = far_in_vain <= WEIGHT_OF_VAIN && last - first <= FAR_BY_COLLECTIVES;
    let stop = |rank: &Rank| if launches(&rank) { Stop::Together } else { Stop::Later };
    let stops = || (ranks.iter().map(stop).collect(), last.saturating_add(1));
    (is_sure && numbers().count() > 1).then(stops)
}

/// Whether some that stop together are far apart.
pub(super) fn are_far_apart(ranks: &[Rank], stops: &[Stop]) -> bool {
    let of = ranks.iter().zip(stops).filter(|(_, stop)| **stop == Stop::Together);
    let boundaries: Vec<u64> = of.map(|(rank, _)| rank.boundary).collect();
    let (first, last) = (boundaries.iter().min(), boundaries.iter().max());
    first.zip(last).is_some_and(|(first, last)| last - first > IN_STEP)
}

#[cfg(test)]
mod tests {
    use super::Stop::{Alone, Later, Together};
    use super::*;

    fn ranks<const N: usize>(boundaries: [u64; N], idle: [usize; 2]) -> Vec<Rank> {
        let rank = |(nth, boundary)| Rank { boundary, idle: idle.contains(&nth), works: nth > 0 };
        boundaries.into_iter().enumerate().map(rank).collect()
    }

    const NONE: [usize; 2] = [9, 9];

    #[test]
    fn ranks_stop_at_the_boundary_after_the_last_that_one_of_them_has_reported() {
        assert_eq!(stops(&ranks([7, 6], NONE), 0), (vec![Together, Together], 8));
        // Idle, for it waits for the other.
        assert_eq!(stops(&ranks([7, 6], [0, 9]), 0), (vec![Together, Together], 8));
        assert_eq!(stops(&ranks([7, 6], [0, 1]), 0), (vec![Together, Together], 8));
    }

    #[test]
    fn who_reports_no_boundaries_is_not_waited_for() {
        assert_eq!(stops(&ranks([0, 7, 6], NONE), 0), (vec![Later, Together, Together], 8));
        assert_eq!(stops(&ranks([0, 7], NONE), 0), (vec![Later, Alone], 0));
        assert_eq!(stops(&ranks([0, 1], NONE), 0), (vec![Later, Alone], 0), "it has not come to a GPU");
        assert_eq!(stops(&ranks([0, 0], NONE), 0), (vec![Alone, Alone], 0));
    }

    #[test]
    fn a_rank_a_little_behind_in_the_first_iterations_is_one() {
        assert_eq!(stops(&ranks([0, 1, 0], NONE), 0), (vec![Later, Together, Together], 2));
    }

    #[test]
    fn trainings_that_are_not_in_step_stop_each_at_its_own_boundary() {
        assert_eq!(stops(&ranks([1000, 10], NONE), 0), (vec![Alone, Alone], 0));
        assert_eq!(stops(&ranks([1000, 10, 11], NONE), 0), (vec![Alone; 3], 0));
    }

    #[test]
    fn a_training_that_is_over_is_not_waited_for() {
        assert_eq!(stops(&ranks([1000, 10, 11], [0, 9]), 0), (vec![Later, Together, Together], 12));
    }

    #[test]
    fn a_number_beyond_all_others_is_no_reason_to_fail() {
        assert_eq!(stops(&ranks([u64::MAX, u64::MAX], NONE), 0), (vec![Together, Together], u64::MAX));
    }

    #[test]
    fn ranks_without_boundaries_stop_before_one_collective() {
        let by_collectives = |numbers, idle| stops_by_collectives(&ranks(numbers, idle), 0);
        // The first has not come to a GPU. One that waits for the others may call itself idle.
        let together = Some((vec![Later, Together, Together, Later], 301));
        assert_eq!(by_collectives([7, 300, 20, 0], [2, 9]), together);
        assert_eq!(by_collectives([300, 300, 0, 0], NONE), None, "only one launches collectives");
        assert_eq!(by_collectives([0, 9000, 10, 10], NONE), None);
        let numbers = ranks([0, 300, 20], NONE);
        assert!(stops_by_collectives(&numbers, WEIGHT_OF_VAIN).is_some());
        assert_eq!(stops_by_collectives(&numbers, WEIGHT_OF_VAIN + 1), None);
    }

    #[test]
    fn stages_of_a_pipeline_that_are_far_apart_stop_together_unless_that_was_in_vain() {
        let stages = ranks([40, 21, 22], NONE);
        assert_eq!(stops(&stages, WEIGHT_OF_VAIN), (vec![Together; 3], 41));
        assert!(
            are_far_apart(&stages, &[Together; 3]) && !are_far_apart(&stages, &[Alone, Together, Together])
        );
        assert_eq!(stops(&stages, WEIGHT_OF_VAIN + 1), (vec![Alone; 3], 0));
        // One that has ended, or only helps, is not waited for.
        assert_eq!(stops(&ranks([40, 11, 12], [0, 9]), 0), (vec![Later, Together, Together], 13));
        assert_eq!(stops(&ranks([40, 41, 0], NONE), 0), (vec![Together, Together, Later], 42));
    }
}
