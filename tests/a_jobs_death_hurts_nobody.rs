//! I7: a job may be killed at any moment, whatever is being done for it and whoever it leaves behind.
//! Everything it had comes back, and the others go on: nobody's bytes are wrong.

mod support;

use std::time::Instant;
use support::deaths::{Killer, check, points};
use support::patience::PATIENCE;
use support::training::Bystander;
use support::{MIB, Manager, Probe, nothing_is_used};

const OPTIONS: [&str; 7] = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "5ms", "--poison"];

/// What the manager takes in from a process, or does for it.
const MESSAGES: [&str; 8] = ["attach", "lease", "drained", "unmap", "save", "restore", "map", "make"];

/// A job that has started as far as it came before its end.
fn start(manager: &Manager, name: &str) -> Probe {
    let mut job = manager.probe(&["--name", name]);
    let orders = ["device 0", "fork"].map(String::from).into_iter();
    let memory = [format!("alloc p {} persistent", 768 << 10), format!("alloc t {}", 3 * MIB)];
    let orders = orders.chain(memory).chain(["fill p 1", "fill t 2"].map(String::from));
    // An error is the job's end: which answer it was that did not come does not matter.
    let _ = orders.map(|order| job.try_tell(&order)).find(Result::is_err);
    job
}

#[test]
fn a_job_that_dies_at_any_point_gives_everything_back() {
    let killer = Killer::start("1x6MiB", &OPTIONS);
    let manager = &killer.manager;
    let bystander = Bystander::start(manager, killer.environment());
    let mut honest = [start(manager, "honest")];
    check(&mut honest);
    let mut times = Vec::new();
    for point in points(&MESSAGES) {
        killer.order(&format!("{point} process of victim"));
        let began = Instant::now();
        let mut victim = start(manager, "victim");
        while !killer.is_obeyed() {
            assert!(began.elapsed() < PATIENCE, "the victim did not come to {point}");
            check(&mut honest);
            if victim.try_tell("check t 2").is_err() && !killer.is_obeyed() {
                victim = start(manager, "victim");
            }
            let comes_and_goes = ["alloc x 200000", "fill x 3", "check x 3", "free x"];
            let _ = comes_and_goes.iter().map(|order| victim.try_tell(order)).find(Result::is_err);
        }
        // Its child lives a little longer, with all that it had open.
        let death = Instant::now();
        manager.status_when(|status| {
            let gpu = &status.gpus[0];
            status.jobs.iter().all(|job| job.figures.name != "victim") && gpu.retired_bytes == 0
        });
        times.push(death.elapsed());
        check(&mut honest);
    }
    times.sort_unstable();
    let middle = times.len() / 2;
    println!("{} deaths, {} trainings beside them", times.len(), bystander.end());
    println!("from a death to its memory's return: {:?} (median), {:?} at most", times[middle], times.last());
    let [honest] = honest;
    honest.end();
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
    manager.status_when(|status| status.gpus[0].outsider_bytes == Some(0));
}
