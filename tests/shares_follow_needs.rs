//! R0.5: what one GPU's jobs do not need of a tier another's get; and no more is used than there is.

mod support;

use support::deaths::{kill, kill_movers, status_after};
use support::{Jobs, KIB, MIB, Manager, Probe, Status};

/// What a job has, and says that it needs: on a GPU of 5 MiB one of them fits.
const BYTES: u64 = 2900 * KIB;
/// Those of one GPU: at rest too, more than half of a tier of some 10 MiB is used.
const JOBS: [&str; 4] = ["a", "b", "c", "f"];
const TIER: u64 = 9 * MIB;

/// The shares of the lowest tier: first that of the GPU where `job` is, then the other's. (A status is in the order of
/// the UUIDs.)
fn shares(status: &Status, job: &str) -> [u64; 2] {
    let own = &status.job(job).gpus[0];
    let share = |is_own: bool| {
        let gpu = status.gpus.iter().find(|gpu| (gpu.uuid == *own) == is_own);
        let tiers = &gpu.unwrap_or_else(|| panic!("two GPUs, {job} on one: {status:#?}")).tiers;
        tiers.last().unwrap_or_else(|| panic!("a GPU without tiers: {status:#?}")).share_bytes
    };
    [share(true), share(false)]
}

#[test]
fn what_one_gpu_does_not_need_another_gets_and_keeps_when_its_mover_dies() {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--dram", "9MiB"];
    let manager = Manager::start("2x5MiB", &options);
    assert!(manager.status().gpus.iter().all(|gpu| gpu.tiers[0].share_bytes == TIER / 2));
    let need = format!("0,{BYTES}");
    let mut jobs = JOBS.map(|name| manager.probe(&["--name", name, "--need", &need]));
    for (value, job) in jobs.iter_mut().enumerate() {
        job.tell("device 0");
        job.tell(&format!("alloc x {BYTES}"));
        job.tell(&format!("fill x {value}"));
    }
    let first = [TIER, 0];
    manager.status_when(|status| most_used(status) > TIER / 2 && shares(status, "a") == first);
    for _ in 0..3 {
        kill_movers(&manager);
        for (value, job) in jobs.iter_mut().enumerate() {
            job.tell(&format!("check x {value}"));
        }
    }
    assert_eq!(shares(&manager.status(), "a"), first);

    // The other GPU needs more than is left: its second job waits until others go.
    let mut others = ["d", "e"].map(|name| manager.probe(&["--name", name, "--need", &need]));
    others[0].tell("device 1");
    others[1].order("device 1");
    manager
        .status_when(|status| status.jobs.iter().any(|job| job.figures.name == "e" && job.queue_place > 0));
    let [a, b, mut c, f] = jobs;
    [a, b, f].into_iter().for_each(Probe::end);
    others[1].answer().unwrap();
    c.tell("check x 2");
    let last = shares(&manager.status_when(|status| shares(status, "c")[1] >= 2 * BYTES), "c");
    assert!(last.iter().sum::<u64>() <= TIER, "{last:?}");
}

/// What lies in the lowest tier of the GPU that has most there.
fn most_used(status: &Status) -> u64 {
    status.gpus.iter().filter_map(|gpu| Some(gpu.tiers.last()?.used_bytes)).max().unwrap_or(0)
}

/// With a tier of 10 MiB below a little memory: the jobs of one GPU need nearly all of it, and have it.
fn one_gpu_needs_nearly_all(tier: &[&str]) {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--dram", "128KiB"];
    let manager = Manager::start("2x5MiB", &[&options, tier].concat());
    let need = format!("0,{BYTES}");
    let mut jobs = JOBS.map(|name| manager.probe(&["--name", name, "--need", &need]));
    let check = |jobs: &mut [Probe]| {
        for (value, job) in jobs.iter_mut().enumerate() {
            job.tell(&format!("check x {value}"));
        }
    };
    for (value, job) in jobs.iter_mut().enumerate() {
        job.tell("device 0");
        job.tell(&format!("alloc x {BYTES}"));
        job.tell(&format!("fill x {value}"));
    }
    let all = [10 * MIB, 0];
    manager.status_when(|status| most_used(status) > 5 * MIB && shares(status, "a") == all);
    kill_movers(&manager);
    check(&mut jobs);
    let dead = manager.pid();
    kill(dead);
    assert_eq!(shares(&status_after(&manager, dead), "a"), all, "the next manager knows");
    kill_movers(&manager);
    check(&mut jobs);
}

#[test]
fn one_gpu_gets_nearly_all_of_the_disk_and_keeps_it_when_its_mover_and_manager_die() {
    let directory = tempfile::tempdir().unwrap();
    one_gpu_needs_nearly_all(&["--disk", &format!("{}=10MiB", directory.path().display())]);
}

/// Node 0 stands in for a node of CXL memory.
#[test]
fn one_gpu_gets_nearly_all_of_a_node_and_keeps_it_when_its_mover_and_manager_die() {
    one_gpu_needs_nearly_all(&["--cxl", "node:0=10MiB"]);
}
