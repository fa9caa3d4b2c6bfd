//! What it costs to write the state down, which is done with every event.

use super::desk::*;
use super::*;
use std::time::{Duration, Instant};
use tidegate_ffi::units::Class;

/// `jobs` jobs that take turns, each with `ranges` live ranges and `grants` grants behind it.
fn desk(jobs: u64, ranges: u64, grants: u64) -> Desk {
    let mut desk = Desk::new(|_| {});
    let sessions: Vec<SessionId> = (0..jobs).map(|_| desk.job(JobSpec::default())).collect();
    for session in sessions {
        desk.lease(session, Class::Temporary, 0, 40);
        for range in 0..ranges {
            desk.live(session, Class::Temporary, range * 4096, 2048, Life::Short);
        }
    }
    (0..jobs).for_each(|_| desk.pass(ms(500)));
    for job in desk.scheduler.jobs.values_mut() {
        job.stats.grants =
            (0..grants).map(|n| (ms(n * 400) + ms(3), Some(ms(n * 400 + 200) + ms(5)))).collect();
    }
    desk
}

/// The median time of an encoding, and its length, when its long parts have not changed.
fn cost(scheduler: &mut Scheduler) -> (Duration, usize) {
    let (mut text, mut store) = (Vec::new(), Vec::new());
    let mut once = || {
        let began = Instant::now();
        text.clear();
        scheduler.keep(&mut store).unwrap();
        text = postcard::to_extend(scheduler, std::mem::take(&mut text)).unwrap();
        began.elapsed()
    };
    let mut times: Vec<Duration> = (0..101).map(|_| once()).collect();
    times.sort_unstable();
    (times[50], text.len())
}

#[test]
fn what_is_written_down_comes_back_as_it_was() {
    let (mut desk, mut store) = (desk(3, 50, 100), Vec::new());
    desk.scheduler.keep(&mut store).unwrap();
    let text = postcard::to_stdvec(&desk.scheduler).unwrap();
    let mut back: Scheduler = postcard::from_bytes(&text).unwrap();
    back.load(&store).unwrap();
    assert_eq!(format!("{back:?}"), format!("{:?}", desk.scheduler));
    assert_eq!(back.check(), Ok(()));
}

#[test]
fn a_long_history_makes_no_event_dear() {
    for (name, jobs, ranges, grants) in [("typical", 3, 100, 4096), ("large", 8, 1000, 4096)] {
        let (time, bytes) = cost(&mut desk(jobs, ranges, grants).scheduler);
        println!(
            "{name}: {jobs} jobs, {ranges} live ranges and {grants} grants each: {bytes} bytes in {time:?}"
        );
        // Bytes, not time: how fast this machine is is no promise.
        assert!(bytes < (jobs * 8192) as usize, "{name}: {bytes} bytes");
    }
}
