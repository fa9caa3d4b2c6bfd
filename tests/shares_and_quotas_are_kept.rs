//! I6: a GPU's saved bytes never exceed its share of the tier, no job and no user their quota: who would need more
//! waits, or is told that there is no more.

mod support;

use std::process::Stdio;
use support::patience::Lines;
use support::{Jobs, KIB, MIB, Manager, Probe, Status, probe};

#[test]
fn a_job_that_could_neither_stay_nor_be_saved_waits_for_admission() {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--dram", "5MiB"];
    let manager = Manager::start("1x6MiB", &options);
    // 11 MiB and room for a step between them are more than the GPU and the tier have.
    let mut first = manager.probe(&["--name", "first", "--need", "0,5632KiB"]);
    first.tell("device 0");
    let mut second = manager.probe(&["--name", "second", "--need", "0,5632KiB"]);
    second.order("device 0");
    let queued =
        |status: &Status| status.jobs.iter().any(|job| job.figures.name == "second" && job.queue_place > 0);
    let status = manager.status_when(queued);
    assert_eq!(status.job("second").state, "queued");
    first.tell("alloc all 5767168");
    assert_eq!(manager.job("second").state, "queued");
    first.end();
    second.answer().unwrap();
    assert_eq!(manager.job("second").queue_place, 0);
}

#[test]
fn a_full_tier_ends_nobody() {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--dram", "1MiB"];
    let manager = Manager::start("1x6MiB", &options);
    let mut jobs = ["a", "b"].map(|name| manager.probe(&["--name", name]));
    for job in &mut jobs {
        job.tell("device 0");
        job.tell(&format!("alloc small {}", 500 * KIB));
        job.tell("fill small 3");
    }
    // The first takes what is left; the second is refused, since what both would have has no place.
    let [a, b] = &mut jobs;
    a.tell(&format!("alloc big {}", 4 * MIB));
    a.tell("fill big 4");
    let refused = b.try_tell(&format!("alloc big {}", 4 * MIB)).unwrap_err();
    assert!(refused.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
    for _ in 0..50 {
        a.tell("check big 4");
        a.tell("check small 3");
    }
    a.tell("free big");
    let status = manager.status();
    assert!(status.gpus[0].tiers[0].used_bytes <= status.gpus[0].tiers[0].share_bytes);
    a.tell("check small 3");
    jobs[1].tell("check small 3");
    jobs[0].process.kill().unwrap();
    manager.status_when(|status| status.jobs.len() == 1);
    jobs[1].tell(&format!("alloc big {}", 4 * MIB));
    jobs[1].tell("check small 3");
}

#[test]
fn what_a_job_had_while_it_was_alone_it_has_again() {
    const PIECES: usize = 15;
    let manager = Manager::start("1x64MiB", &["--slice", "20ms", "--dram", "8MiB"]);
    let mut first = manager.probe(&["--name", "first"]);
    first.tell("device 0");
    let fill = |job: &mut Probe, piece: usize| {
        job.tell(&format!("alloc piece{piece} {}", 2 * MIB));
        job.tell(&format!("fill piece{piece} 1"));
    };
    (0..PIECES).for_each(|piece| fill(&mut first, piece));
    (3..PIECES).for_each(|piece| drop(first.tell(&format!("free piece{piece}"))));
    let mut second = manager.probe(&["--name", "second"]);
    second.tell("device 0");
    let refused =
        (0..).find_map(|piece| second.try_tell(&format!("alloc more{piece} {}", 2 * MIB)).err()).unwrap();
    assert!(refused.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
    for piece in 3..PIECES {
        fill(&mut first, piece);
    }
}

/// A job that fills and frees so many pieces of 2 MiB.
fn had(manager: &Manager, arguments: &[&str], pieces: usize) -> Probe {
    let mut job = manager.probe(&[&["--name", "first"], arguments].concat());
    job.tell("device 0");
    for piece in 0..pieces {
        job.tell(&format!("alloc piece{piece} {}", 2 * MIB));
        job.tell(&format!("fill piece{piece} 1"));
    }
    (0..pieces).for_each(|piece| drop(job.tell(&format!("free piece{piece}"))));
    job
}

#[test]
fn what_a_job_has_freed_does_not_count_towards_its_quota() {
    let manager = Manager::start("1x64MiB", &[]);
    let mut job = had(&manager, &["--memory", "35MiB"], 17);
    job.tell(&format!("handle {}", 4 * MIB));
}

#[test]
fn memory_for_a_handle_does_not_count_beside_what_was_freed_for_it() {
    let manager = Manager::start("1x64MiB", &["--slice", "20ms", "--dram", "8MiB"]);
    let mut first = had(&manager, &[], 10);
    first.tell(&format!("handle {}", 20 * MIB));
    let mut second = manager.probe(&["--name", "second"]);
    second.tell("device 0");
    // Of 64 MiB and 8 MiB more, the first job has had 20 MiB at once, and some room stays free.
    for piece in 0..20 {
        second.tell(&format!("alloc more{piece} {}", 2 * MIB));
    }
}

/// The size of the tier, and what two jobs get that use 100 MiB each and ask for 60 MiB more in steps.
#[test]
fn what_is_freed_between_pieces_of_memory_can_be_had_in_larger_ones() {
    let manager = Manager::start("1x64MiB", &[]);
    let mut job = manager.probe(&["--name", "a"]);
    job.tell("device 0");
    // The first, of a few bytes, does not shift all others.
    job.tell("alloc small 8");
    let is_had = |job: &mut Probe, name: String, mib: u64| {
        job.try_tell(&format!("alloc {name} {}", mib * MIB))
            .is_ok_and(|_| job.tell(&format!("fill {name} 1")).is_empty())
    };
    let pieces = (0..).take_while(|piece| is_had(&mut job, format!("piece{piece}"), 2)).count();
    assert!(pieces >= 28, "{pieces}");
    (0..pieces).step_by(2).for_each(|piece| drop(job.tell(&format!("free piece{piece}"))));
    let larger = (0..).take_while(|piece| is_had(&mut job, format!("larger{piece}"), 4)).count();
    assert!(larger >= pieces / 4, "{larger} times 4 MiB, where {} times 2 MiB are free", pieces.div_ceil(2));
}

fn jobs_that_grow_beyond(tier: u64) {
    const STEPS: usize = 15;
    let dram = format!("{tier}MiB");
    let manager = Manager::start("1x256MiB", &["--slice", "100ms", "--dram", &dram]);
    let mut jobs = ["a", "b"].map(|name| manager.probe(&["--name", name]));
    for job in &mut jobs {
        job.tell("device 0");
        job.tell(&format!("alloc base {}", 100 * MIB));
        job.tell("fill base 1");
    }
    let mut grown = [0; 2];
    for step in 0..STEPS {
        // Both wait at once.
        jobs.iter_mut().for_each(|job| job.order(&format!("alloc more{step} {}", 4 * MIB)));
        for (job, grown) in jobs.iter_mut().zip(&mut grown) {
            match job.answer() {
                Ok(_) => {
                    job.tell(&format!("fill more{step} 2"));
                    *grown += 1;
                }
                Err(error) => assert!(error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}"),
            }
        }
    }
    let (all, most) = (200 + 4 * (grown[0] + grown[1]), (256 + tier).min(320));
    println!("tier of {tier} MiB: {all} MiB of {most} MiB were given");
    // Three pieces' worth (the room in which memory moves, and a lease that was just too large) may be left.
    assert!(all <= most.max(256) && all + 24 >= most, "{all} MiB of {most} MiB");
    for _ in 0..3 {
        jobs.iter_mut().for_each(|job| drop(job.tell("check base 1")));
    }
    let status = manager.status();
    assert_eq!(status.standstills, 0);
    jobs.into_iter().for_each(Probe::end);
}

#[test]
fn jobs_that_grow_beyond_a_gpu_and_its_tiers_are_refused_the_rest_and_go_on() {
    [64, 16, 0].into_iter().for_each(jobs_that_grow_beyond);
}

#[test]
fn a_quota_is_what_the_job_sees_and_gets() {
    let manager = Manager::start("1x8MiB", &["--unit", "64KiB"]);
    let mut job = manager.probe(&["--name", "a", "--memory", "2MiB"]);
    job.tell("device 0");
    assert_eq!(job.tell("info"), format!("{} {}", 2 * MIB, 2 * MIB));
    job.tell(&format!("alloc t {MIB}"));
    job.order(&format!("alloc u {}", 2 * MIB));
    let refused = job.answer().unwrap_err();
    assert!(refused.contains("OUT_OF_MEMORY"), "{refused}");
    assert_eq!(job.tell("info"), format!("{} {}", MIB, 2 * MIB));
}

#[test]
fn a_users_jobs_share_what_the_user_may_have() {
    let user = rustix::process::geteuid().as_raw();
    let (mine, all) = (format!("{user}=3MiB"), "1MiB");
    let quotas = ["--user-memory", all, "--user-memory", &mine];
    let manager = Manager::start("1x8MiB", &[&["--unit", "64KiB"], &quotas[..]].concat());
    let mut jobs = ["a", "b"].map(|name| manager.probe(&["--name", name]));
    for job in &mut jobs {
        job.tell("device 0");
        assert_eq!(job.tell("info"), format!("{} {}", 3 * MIB, 3 * MIB));
    }
    let [a, b] = &mut jobs;
    a.tell(&format!("alloc t {}", 2 * MIB));
    b.order(&format!("alloc t {}", 2 * MIB));
    let refused = b.answer().unwrap_err();
    assert!(refused.contains("OUT_OF_MEMORY"), "{refused}");
    b.tell(&format!("alloc t {}", MIB / 2));
    a.tell("free t");
    b.tell(&format!("alloc u {}", 2 * MIB));
}

#[test]
fn who_is_over_the_quota_of_saved_bytes_waits_is_told_why_and_runs_then() {
    let user = rustix::process::geteuid().as_raw();
    let quota = format!("{user}=5MiB");
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--dram", "64MiB"];
    let manager = Manager::start("2x6MiB", &[&options[..], &["--quota", "1MiB", "--quota", &quota]].concat());
    let need = |name, need| ["--name", name, "--need", need];
    let [mut first, mut second] = ["first", "second"].map(|name| manager.probe(&need(name, "0,2400KiB")));
    for job in [&mut first, &mut second] {
        job.tell("device 0");
        job.tell(&format!("alloc x {}", 2400 * KIB));
        job.tell("fill x 1");
    }
    let mut beside = manager.probe(&need("beside", "0,512KiB"));
    beside.tell("device 1");
    // With the second GPU's it would be more than 5 MiB, though there is room in the tiers.
    let mut command = manager.run(&need("late", "0,512KiB"), &probe());
    command.stderr(Stdio::piped());
    let mut late = Probe::start(command);
    let said = Lines::of(late.process.stderr.take().unwrap());
    late.order("device 1");
    let words = std::iter::from_fn(|| said.next()).find(|line| line.contains("--quota"));
    assert!(words.expect("it was told nothing").contains("tidegate: waiting: what its user may have"));
    let status = manager.status();
    let told = status.job("late");
    assert_eq!((told.state.as_str(), told.queue_place), ("queued", 1));
    assert!(told.waits_for_quota.as_deref().is_some_and(|why| why.contains("5.0 MiB")), "{told:#?}");
    let [shown] = &status.users[..] else { panic!("one user is wanted: {status:#?}") };
    assert_eq!((shown.uid, shown.quota_bytes), (user, 5 * MIB));
    assert!(shown.saved_bytes <= 5 * MIB);
    first.end();
    late.answer().unwrap();
    let ran = manager.job("late");
    assert_eq!((ran.queue_place, ran.waits_for_quota), (0, None));
    second.tell("check x 1");
}
