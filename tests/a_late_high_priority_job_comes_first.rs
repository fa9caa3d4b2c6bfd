//! Strict priority: a late arrival of a higher class never waits behind a lower one beyond one
//! boundary or deadline.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use support::patience::PATIENCE;
use support::{Jobs, MIB, Manager, Probe};

fn iterate(low: &mut Probe, seed: u64) {
    low.tell(&format!("fill t {seed}"));
    low.tell(&format!("check t {seed}"));
    low.tell("boundary");
}

#[test]
fn a_late_high_priority_job_comes_first() {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "100s", "--boundary-deadline", "100s"];
    let manager = Manager::start("1x6MiB", &options);
    let mut low = manager.probe(&["--name", "low", "--need", "0,4MiB"]);
    low.tell("device 0");
    low.tell(&format!("alloc t {}", 4 * MIB));
    // A job that has told no boundary yet is not expected to reach one.
    iterate(&mut low, 0);
    let arrived = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Never idle until the other has had its turn; bounded, so that a broken order ends too.
            let (began, mut seeds) = (Instant::now(), 1..);
            while !arrived.load(Ordering::Relaxed) && began.elapsed() < 3 * PATIENCE {
                iterate(&mut low, seeds.next().unwrap());
            }
        });
        manager.status_when(|status| status.job("low").figures.runtime_micros > 100_000);
        let mut high = manager.probe(&["--name", "high", "--priority", "1", "--need", "0,4MiB"]);
        high.tell("device 0");
        high.tell(&format!("alloc t {}", 4 * MIB));
        high.tell("fill t 9");
        high.tell("check t 9");
        let status = manager.status();
        high.end();
        arrived.store(true, Ordering::Relaxed);
        let low = &status.job("low").figures;
        assert!(low.switches >= 1, "it never gave way");
        assert_eq!(low.at_boundary, low.switches, "it gave way elsewhere than at its boundary");
        let wait = status.job("high").figures.first_wait_micros.unwrap();
        println!("from the arrival to the grant: {wait} µs");
    });
    low.end();
}
