//! A GPU whose program has asked for it reaches the memory of another GPU, as without Tidegate: what is there
//! when it asks, what comes later, and what has been away; and only as long as it wants to.

mod support;

use support::{MIB, Manager};

#[test]
fn peers_reach_each_others_memory() {
    let manager = Manager::start("2x6MiB", &["--unit", "64KiB", "--offset", "0", "--slice", "5ms"]);
    let mut job = manager.probe(&["--name", "job"]);
    let mut other = manager.probe(&["--name", "other"]);
    job.tell("device 1");
    job.tell(&format!("alloc early {MIB}"));
    job.tell("fill early 1");
    job.tell("device 0");
    job.tell("peer 1");
    job.tell("check early 1");
    job.tell("device 1");
    job.tell(&format!("alloc late {}", 3 * MIB));
    job.tell("device 0");
    job.tell("fill late 2");
    job.tell("check late 2");

    other.tell("device 1");
    other.tell(&format!("alloc t {}", 4 * MIB));
    other.tell("fill t 3");
    manager.work_until_switched(&["job", "other"], 20, || {
        other.tell("check t 3");
        job.tell("check early 1");
        job.tell("check late 2");
        job.tell("fill late 2");
    });
    other.end();

    job.tell("no-peer 1");
    job.tell("device 1");
    job.tell("check late 2");
    job.tell("device 0");
    assert!(job.try_tell("check late 2").is_err(), "it reaches what it does not want to reach any more");
}

#[test]
fn who_does_not_ask_reaches_nothing() {
    let manager = Manager::start("2x6MiB", &["--unit", "64KiB"]);
    let mut job = manager.probe(&["--name", "job"]);
    job.tell("device 1");
    job.tell(&format!("alloc m {MIB}"));
    job.tell("fill m 1");
    job.tell("device 0");
    assert!(job.try_tell("check m 1").is_err());
}
