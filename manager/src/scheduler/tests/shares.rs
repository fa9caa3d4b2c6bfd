//! Shares of the tiers.

use super::*;
use tidegate_ffi::units::Tier;
use tidegate_ffi::wire::message::Need;

/// Two GPUs with half of so many units of host memory each.
fn two_gpus(units: u64) -> Desk {
    Desk::new(|config| config.tier_bytes[0] = units * UNIT)
}

/// GPUs of one piece: as much as stays there has to be free so that memory can move, and the tiers must have room for
/// all that two jobs need.
fn tiny_gpus(change: impl FnOnce(&mut Config)) -> Desk {
    Desk::with_gpus(5, change)
}

/// A job that needs so many units wants to come to a GPU.
fn come(desk: &mut Desk, gpu: GpuUuid, units: u64) -> SessionId {
    let need = Some(Need { persistent: 0, temporary: units * UNIT });
    let (_, session) = desk.start(JobSpec { need, ..spec("a") });
    desk.attach(session, gpu);
    session
}

fn shares_of(desk: &Desk, tier: Tier) -> [u64; 2] {
    [GPU, OTHER_GPU].map(|gpu| desk.scheduler.gpus()[&gpu].share_bytes()[tier.index()] / UNIT)
}

fn shares(desk: &Desk) -> [u64; 2] {
    shares_of(desk, Tier::Dram)
}

#[test]
fn one_gpu_gets_what_the_other_does_not_need() {
    let mut desk = tiny_gpus(|config| config.tier_bytes[0] = 100 * UNIT);
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
    let mut desk = tiny_gpus(|config| config.tier_bytes[0] = 100 * UNIT);
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
    let mut desk =
        tiny_gpus(|config| (config.tier_bytes[0], config.tier_bytes[2]) = (100 * UNIT, 100 * UNIT));
    let jobs = [60, 60].map(|units| come(&mut desk, GPU, units));
    assert_eq!(shares(&desk), [100, 0]);
    // The first GPU's jobs need 70 in memory.
    let others = [40, 40].map(|units| come(&mut desk, OTHER_GPU, units));
    assert!(jobs.iter().chain(&others).all(|job| is_in(&desk, *job)));
    let last = come(&mut desk, OTHER_GPU, 1);
    assert!(!is_in(&desk, last), "{:?}", shares(&desk));
}

/// Two GPUs with half of each tier.
fn with_tiers(units: [u64; 3]) -> Desk {
    tiny_gpus(|config| config.tier_bytes = units.map(|units| units * UNIT))
}

#[test]
fn one_gpu_gets_nearly_all_of_every_tier() {
    for tier in Tier::ALL {
        let mut units = [0; 3];
        units[tier.index()] = 100;
        let mut desk = with_tiers(units);
        let jobs = [50, 45].map(|units| come(&mut desk, GPU, units));
        assert!(jobs.iter().all(|job| is_in(&desk, *job)), "{tier}");
        assert_eq!(shares_of(&desk, tier), [97, 2]);
    }
}

#[test]
fn all_tiers_together_are_what_there_is() {
    let mut desk = with_tiers([100, 20, 30]);
    let jobs = [70, 80, 1].map(|units| come(&mut desk, GPU, units));
    assert_eq!(jobs.map(|job| is_in(&desk, job)), [true, true, false], "150 are all that there is");
    assert_eq!(Tier::ALL.map(|tier| shares_of(&desk, tier)), [[100, 0], [20, 0], [30, 0]]);
}

#[test]
fn a_tier_goes_to_who_needs_it_before_the_next_one_does() {
    let mut desk = with_tiers([40, 40, 200]);
    let first = [15, 15].map(|units| come(&mut desk, GPU, units));
    let second = [5, 5].map(|units| come(&mut desk, OTHER_GPU, units));
    assert!(first.iter().chain(&second).all(|job| is_in(&desk, *job)));
    assert_eq!(shares(&desk), [30, 10], "there is room on disk, but slower");
    let third = come(&mut desk, OTHER_GPU, 100);
    assert!(is_in(&desk, third));
    assert_eq!(Tier::ALL.map(|tier| shares_of(&desk, tier)), [[20, 20], [10, 30], [100, 100]]);
}

#[test]
fn what_was_promised_fits_the_shares_while_they_change() {
    let mut desk = with_tiers([60, 0, 40]);
    let first = [30, 30].map(|units| come(&mut desk, GPU, units));
    assert!(first.iter().all(|job| is_in(&desk, *job)));
    let all = |desk: &Desk, gpu| desk.scheduler.gpus()[&gpu].share_bytes().iter().sum::<u64>() / UNIT;
    assert_eq!((shares(&desk), shares_of(&desk, Tier::Disk)), ([60, 0], [20, 20]));
    // Half of the memory would be the other GPU's, if that could give its disk for it.
    desk.least_shares[2] = 20 * UNIT;
    desk.hold = |effect| matches!(effect, Effect::Mover(GPU, ToMover::Share { .. }));
    let [_, second] = [15, 20].map(|units| come(&mut desk, OTHER_GPU, units));
    assert_eq!((all(&desk, GPU), is_in(&desk, second)), (60, false));
    desk.finish_held();
    assert!(all(&desk, GPU) >= 60 && is_in(&desk, second));
}

#[test]
fn parts_of_a_device_stay_and_count() {
    let mut desk = tiny_gpus(|config| {
        config.tier_bytes = [100, 40, 0].map(|units| units * UNIT);
        config.cxl_is_in_parts = true;
    });
    let jobs = [60, 60, 1].map(|units| come(&mut desk, GPU, units));
    assert_eq!(jobs.map(|job| is_in(&desk, job)), [true, true, false], "20 are the other GPU's");
    assert_eq!((shares(&desk), shares_of(&desk, Tier::Cxl)), ([100, 0], [20, 20]));
}

#[test]
fn a_mover_that_keeps_its_disk_keeps_it() {
    let mut desk = with_tiers([0, 0, 100]);
    desk.least_shares[2] = 45 * UNIT;
    let [_, second] = [30, 30].map(|units| come(&mut desk, GPU, units));
    assert_eq!((shares_of(&desk, Tier::Disk), is_in(&desk, second)), ([50, 45], false));
    desk.least_shares[2] = 0;
    let gone = come(&mut desk, OTHER_GPU, 0);
    desk.end(gone);
    assert_eq!((shares_of(&desk, Tier::Disk), is_in(&desk, second)), ([80, 20], true), "it has less now");
}

#[test]
fn a_share_grows_only_when_the_other_has_become_smaller() {
    let mut desk = tiny_gpus(|config| config.tier_bytes[0] = 100 * UNIT);
    desk.hold =
        |effect| matches!(effect, Effect::Mover(_, ToMover::Share { bytes, .. }) if *bytes < 50 * UNIT);
    let [_, second] = [30, 30].map(|units| come(&mut desk, GPU, units));
    assert_eq!((shares(&desk), is_in(&desk, second)), ([50, 20], false));
    desk.finish_held();
    assert_eq!((shares(&desk), is_in(&desk, second)), ([80, 20], true));
}

#[test]
fn what_another_mover_keeps_it_keeps() {
    let mut desk = tiny_gpus(|config| config.tier_bytes[0] = 100 * UNIT);
    desk.least_shares[0] = 45 * UNIT;
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
    let mut desk = two_gpus(200);
    let jobs = ["a", "b"].map(|name| job_with(&mut desk, name, 5, 45));
    for session in jobs {
        desk.lease(session, T, 45, 10);
        desk.live(session, T, 45 * UNIT, 10 * UNIT, Life::Short);
    }
    desk.until(|desk| jobs.iter().all(|session| desk.job_of(*session).most_units[&GPU] == 60));
    // Their 120 units do not fit on the GPU together.
    come(&mut desk, OTHER_GPU, 100);
    let second = come(&mut desk, OTHER_GPU, 90);
    assert_eq!((shares(&desk), is_in(&desk, second)), ([160, 40], false));
}

#[test]
fn the_share_of_a_lost_gpu_is_for_others() {
    let mut desk = tiny_gpus(|config| config.tier_bytes[0] = 100 * UNIT);
    desk.tell(Event::GpuLost { gpu: OTHER_GPU });
    assert!([40, 40].map(|units| come(&mut desk, GPU, units)).iter().all(|job| is_in(&desk, *job)));
    assert_eq!(shares(&desk), [100, 0]);
}

#[test]
fn what_is_no_multiple_of_a_page_is_asked_for_once() {
    let mut desk = tiny_gpus(|config| config.tier_bytes[0] = 100 * UNIT + 12_345);
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
    let mut desk = tiny_gpus(|config| config.tier_bytes[0] = 100 * UNIT);
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
