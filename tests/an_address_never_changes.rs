//! I3: an allocation's address never changes, over 100 switches.

mod support;

use support::{MIB, Manager};

#[test]
fn an_address_never_changes() {
    let manager = Manager::start("1x6MiB", &["--unit", "64KiB", "--offset", "64KiB", "--slice", "5ms"]);
    let mut jobs = ["a", "b"].map(|name| manager.probe(&["--name", name]));
    for (seed, job) in jobs.iter_mut().enumerate() {
        job.tell("device 0");
        job.tell(&format!("alloc t {}", 4 * MIB));
        job.tell(&format!("fill t {seed}"));
    }
    let before: Vec<String> = jobs.iter_mut().map(|job| job.tell("address t")).collect();
    manager.work_until_switched(&["a", "b"], 100, || {
        for (seed, job) in jobs.iter_mut().enumerate() {
            job.tell(&format!("check t {seed}"));
        }
    });
    let after: Vec<String> = jobs.iter_mut().map(|job| job.tell("address t")).collect();
    assert_eq!(before, after);
}
