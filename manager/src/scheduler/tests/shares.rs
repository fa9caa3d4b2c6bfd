//! Shares of the DRAM tier.

use super::*;
use tidegate_ffi::wire::message::Need;

/// Two GPUs with half of so many units each.
fn two_gpus(units: u64) -> Desk {
    Desk::new(|config| config.dram_bytes = units * UNIT)
}

/// A job that needs so many units wants to come to a GPU.
fn come(desk: &mut Desk, gpu: GpuUuid, units: u64) -> SessionId {
    let need = Some(Need { persistent: 0, temporary: units * UNIT });
    let (_, session) = desk.start(JobSpec { need, ..spec("a") });
    desk.attach(session, gpu);
    session
}

fn is_in(desk: &Desk, session: SessionId) -> bool {
    !desk.scheduler.sessions()[&session].tenants.is_empty()
}

fn shares(desk: &Desk) -> [u64; 2] {
    [GPU, OTHER_GPU].map(|gpu| desk.scheduler.gpus()[&gpu].share.bytes() / UNIT)
}

#[test]
fn one_gpu_gets_what_the_other_does_not_need() {
    let mut desk = two_gpus(100);
    assert!([30, 30].map(|units| come(&mut desk, GPU, units)).iter().all(|job| is_in(&desk, *job)));
    // 40 are needed by nobody: both have half of that.
    assert_eq!(shares(&desk), [80, 20]);
    assert!([5, 5].map(|units| come(&mut desk, OTHER_GPU, units)).iter().all(|job| is_in(&desk, *job)));
    assert_eq!(shares(&desk), [80, 20], "both are large enough");
    let last = come(&mut desk, OTHER_GPU, 25);
    assert!(is_in(&desk, last));
    assert_eq!(shares(&desk), [62, 37]);
}

#[test]
fn what_one_gpus_jobs_were_promised_the_other_does_not_get() {
    let mut desk = two_gpus(100);
    let [first, second] = [40, 40].map(|units| come(&mut desk, GPU, units));
    come(&mut desk, OTHER_GPU, 15);
    let third = come(&mut desk, OTHER_GPU, 15);
    assert_eq!([first, second, third].map(|job| is_in(&desk, job)), [true, true, false]);
    assert_eq!(shares(&desk), [90, 10], "it would not be enough");
    desk.end(first);
    assert!(is_in(&desk, third), "one alone needs nothing");
}

#[test]
fn what_has_room_on_disk_keeps_no_memory_from_another_gpu() {
    let mut desk = Desk::new(|config| (config.dram_bytes, config.disk_share_bytes) = (100 * UNIT, 50 * UNIT));
    let jobs = [60, 60].map(|units| come(&mut desk, GPU, units));
    assert_eq!(shares(&desk), [100, 0]);
    // The first GPU's jobs need 70 in memory.
    let others = [40, 40].map(|units| come(&mut desk, OTHER_GPU, units));
    assert!(jobs.iter().chain(&others).all(|job| is_in(&desk, *job)));
    let last = come(&mut desk, OTHER_GPU, 1);
    assert!(!is_in(&desk, last), "{:?}", shares(&desk));
}

#[test]
fn cxl_memory_counts_as_disk_does() {
    let lower =
        |config: &mut Config| (config.cxl_share_bytes, config.disk_share_bytes) = (20 * UNIT, 30 * UNIT);
    let mut desk = Desk::new(|config| {
        config.dram_bytes = 100 * UNIT;
        lower(config);
    });
    let jobs = [70, 80, 1].map(|units| come(&mut desk, GPU, units));
    assert_eq!(jobs.map(|job| is_in(&desk, job)), [true, true, false], "150 are all that there is");
}

#[test]
fn a_share_grows_only_when_the_other_has_become_smaller() {
    let mut desk = two_gpus(100);
    desk.hold =
        |effect| matches!(effect, Effect::Mover(_, ToMover::Share { bytes, .. }) if *bytes < 50 * UNIT);
    let [_, second] = [30, 30].map(|units| come(&mut desk, GPU, units));
    assert_eq!((shares(&desk), is_in(&desk, second)), ([50, 20], false));
    desk.finish_held();
    assert_eq!((shares(&desk), is_in(&desk, second)), ([80, 20], true));
}

#[test]
fn what_another_mover_keeps_it_keeps() {
    let mut desk = two_gpus(100);
    desk.least_share = 45 * UNIT;
    let [_, second] = [30, 30].map(|units| come(&mut desk, GPU, units));
    assert_eq!((shares(&desk), is_in(&desk, second)), ([50, 45], false));
    let orders = |desk: &Desk| {
        desk.log.iter().filter(|effect| matches!(effect, Effect::Mover(_, ToMover::Share { .. }))).count()
    };
    let before = orders(&desk);
    desk.pass(ms(1000));
    assert_eq!(orders(&desk), before, "it has said so");
}

#[test]
fn what_jobs_have_that_said_nothing_is_not_taken_from_them() {
    let mut desk = two_gpus(100);
    for name in ["a", "b"] {
        let session = desk.job(spec(name));
        desk.lease(session, T, 0, 25);
    }
    come(&mut desk, OTHER_GPU, 30);
    let second = come(&mut desk, OTHER_GPU, 30);
    assert_eq!((shares(&desk), is_in(&desk, second)), ([50, 50], false));
}

#[test]
fn the_share_of_a_lost_gpu_is_for_others() {
    let mut desk = two_gpus(100);
    desk.tell(Event::GpuLost { gpu: OTHER_GPU });
    assert!([40, 40].map(|units| come(&mut desk, GPU, units)).iter().all(|job| is_in(&desk, *job)));
    assert_eq!(shares(&desk), [100, 0]);
}

#[test]
fn what_is_no_multiple_of_a_page_is_asked_for_once() {
    let mut desk = Desk::new(|config| config.dram_bytes = 100 * UNIT + 12_345);
    let odd = |bytes| Some(Need { persistent: bytes, temporary: 1 });
    for gpu in [GPU, GPU, OTHER_GPU, OTHER_GPU] {
        let (_, session) = desk.start(JobSpec { need: odd(25 * UNIT + 77), ..spec("a") });
        desk.attach(session, gpu);
    }
    let orders = desk.log.iter().filter(|effect| matches!(effect, Effect::Mover(_, ToMover::Share { .. })));
    assert!(orders.count() <= 4, "there is no end of it");
}

#[test]
fn who_says_to_need_more_than_there_can_be_stops_nobody() {
    let mut desk = two_gpus(100);
    let need = Some(Need { persistent: u64::MAX, temporary: u64::MAX });
    // A gang that has begun is let in whole.
    let gangs = [GPU, OTHER_GPU].map(|gpu| {
        let (job, first) = desk.start(JobSpec { need, ..spec("gang") });
        let second = desk.join(job);
        desk.attach(first, gpu);
        second
    });
    desk.attach(gangs[0], OTHER_GPU);
    desk.attach(gangs[1], GPU);
    // Who came first was promised the whole tier.
    assert_eq!((shares(&desk), is_in(&desk, gangs[1])), ([0, 100], true));
}

#[test]
fn a_save_that_finds_no_room_makes_the_share_grow() {
    let mut desk = two_gpus(100);
    let [a, b] = ["a", "b"].map(|name| job_with(&mut desk, name, 5, 1));
    desk.tier_bytes = 50 * UNIT;
    for job in [a, b] {
        desk.lease(job, T, 1, 59);
        desk.live(job, T, UNIT, 59 * UNIT, Life::Short);
    }
    assert_eq!(shares(&desk), [50, 50], "nobody has said anything");
    desk.until(|desk| shares(desk)[0] >= 60);
    desk.tier_bytes = u64::MAX;
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.until(|desk| desk.phase(b) == Phase::Open);
}
