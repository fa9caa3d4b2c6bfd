//! I6: a GPU's saved bytes never exceed its share of the tier, no job its quota: who would need more waits, or is
//! told that there is no more.

mod support;

use support::{Jobs, KIB, MIB, Manager, Status};

#[test]
fn who_could_not_be_saved_waits_for_admission() {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--dram", "5MiB"];
    let manager = Manager::start("1x6MiB", &options);
    let mut first = manager.probe(&["--name", "first", "--need", "0,3MiB"]);
    first.tell("device 0");
    let mut second = manager.probe(&["--name", "second", "--need", "0,3MiB"]);
    second.order("device 0");
    let queued =
        |status: &Status| status.jobs.iter().any(|job| job.figures.name == "second" && job.queue_place > 0);
    let status = manager.status_when(queued);
    assert_eq!(status.job("second").state, "queued");
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
    // The first takes what is left; the second must wait, since the first cannot be saved.
    let [a, b] = &mut jobs;
    a.tell(&format!("alloc big {}", 4 * MIB));
    a.tell("fill big 4");
    b.order(&format!("alloc big {}", 4 * MIB));
    for _ in 0..50 {
        a.tell("check big 4");
        a.tell("check small 3");
    }
    a.tell("free big");
    let status = manager.status();
    assert!(status.gpus[0].tiers[0].used_bytes <= status.gpus[0].tiers[0].share_bytes);
    a.tell("check small 3");
    jobs[0].process.kill().unwrap();
    jobs[1].answer().unwrap();
    jobs[1].tell("check small 3");
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
