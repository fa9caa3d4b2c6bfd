//! R4.7, I7: when a job ends, well or by a kill, temporary and persistent memory are both free.

mod support;

use support::{Jobs, MIB, Manager, nothing_is_used};

#[test]
fn everything_is_given_back() {
    let manager = Manager::start("1x6MiB", &["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms"]);
    let mut jobs = ["a", "b"].map(|name| manager.probe(&["--name", name]));
    for job in &mut jobs {
        job.tell("device 0");
        job.tell(&format!("alloc p {MIB} persistent"));
        job.tell(&format!("alloc t {}", 3 * MIB));
        job.tell("fill t 1");
    }
    // The driver agrees with the ledger: nobody else uses anything.
    manager.status_when(|status| status.gpus[0].outsider_bytes == Some(0));
    let [a, mut b] = jobs;
    a.end();
    manager.status_when(|status| status.has_ended("a"));
    b.tell("check t 1");
    b.process.kill().unwrap();
    manager.status_when(|status| status.has_ended("b") && nothing_is_used(status));
}
