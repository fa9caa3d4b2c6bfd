//! How long a program may go without a step.
//!
//! ```text
//! action   4 kernels + 2 pauses + 4 copies of an allocation at RATE     the longest step of a program that is alone
//! switch   save + restore + map + unmap, as measured by the manager, + the drain, but no more than action
//! slice    max(--slice, 19 switches)                                    longer than any that the manager deals
//! turn     slice + --boundary-deadline + action + switch
//! bound    LOADED × Σ turn of all jobs of at least its priority × max(1, weight / own weight)
//!          + FLOOR + what was done to the mix: the time for which a job is stopped, DEATH for each kill, and GONE where
//!          manager and mover are killed: there may be no next one, and that is told after `--answer-limit`
//! ```
//! Time does not count while
//! - a program of higher priority is there and has been admitted (priority is strict: docs/switch.md);
//! - the program itself is stopped;
//! - it has not been admitted, and others are there (`queued` in the status: its need, or a quota, is too large for
//!   the rest).
//!
//! A program is there from its start to its end. Of the programs that are there and admitted, none of the highest
//! priority is exempt: so a mix in which nothing moves always fails.

use crate::mix::{Event, Job, Mix};
use crate::support::Status;
use std::time::Duration;

/// A loaded machine takes so many times as long.
const LOADED: f64 = 2.0;
/// What starting a process, or a pause of the whole machine, may take.
const FLOOR: Duration = Duration::from_secs(10);
/// What the death of a manager or mover may take: the next one is started and given everything.
const DEATH: Duration = Duration::from_secs(5);
/// The manager's `--answer-limit`, which no mix sets.
const GONE: Duration = Duration::from_secs(30);
/// Bytes per millisecond.
const RATE: u64 = 64 << 10;

/// The longest step of a program that is alone.
fn action(job: &Job) -> Duration {
    let plan = &job.plan;
    Duration::from_millis(4 * plan.kernel + 2 * plan.gap + 4 * plan.grain / RATE)
}

/// The bound of one job. `present` says which jobs are there, `status` is the last that was seen.
pub fn bound(mix: &Mix, job: usize, present: impl Fn(usize) -> bool, status: Option<&Status>) -> Duration {
    let own = &mix.jobs[job];
    let rivals = mix
        .jobs
        .iter()
        .enumerate()
        .filter(|(index, rival)| *index == job || present(*index) && rival.priority >= own.priority);
    let turns = rivals.map(|(index, rival)| {
        let share = f64::from(rival.weight) / f64::from(own.weight);
        turn(mix, index, status).mul_f64(share.max(1.0))
    });
    let harm = mix.events.iter().map(|(_, event)| match event {
        Event::StopJob(_, time) => Duration::from_millis(*time),
        Event::KillJob(_) => Duration::ZERO,
        Event::KillMover | Event::KillManager | Event::Become(_) => DEATH,
        Event::KillBoth => GONE + DEATH,
    });
    turns.sum::<Duration>().mul_f64(LOADED) + FLOOR + harm.sum::<Duration>()
}

fn turn(mix: &Mix, job: usize, status: Option<&Status>) -> Duration {
    let action = action(&mix.jobs[job]);
    let name = format!("job{job}");
    let known = status.and_then(|status| status.jobs.iter().find(|job| job.figures.name == name));
    let switch = known.map_or(Duration::ZERO, |job| {
        let micros = &job.figures.switch_micros;
        let moved = Duration::from_micros(micros.unmap + micros.save + micros.restore + micros.map);
        moved + Duration::from_micros(micros.drain).min(action)
    });
    let slice = Duration::from_millis(mix.slice).max(19 * switch);
    slice + Duration::from_millis(mix.boundary_deadline) + action + switch
}
