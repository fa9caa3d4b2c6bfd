//! `tidegate demo` ends with status 0 when all results are equal, and its JSON has the names that
//! scripts rely on.

mod support;

use serde_json::Value;
use std::process::Stdio;
use support::patience::{PATIENCE, finish, output_within};
use support::{Jobs, Manager, Status};

/// The switches of a leg that make it a test.
const SWITCHES: f64 = 3.0;

fn demo(directory: &std::path::Path, steps: u32) -> Value {
    let json = directory.join("demo.json");
    let picture = directory.join("demo.svg");
    let mut command = support::command();
    command.args(["demo", "--software", "--steps", &steps.to_string(), "--hidden", "256", "--batch", "240"]);
    command.args(["--slice", "20ms", "--gpu-memory", "5504KiB", "--unit", "64KiB", "--offset", "64KiB"]);
    command.arg("--json").arg(&json).arg("--picture").arg(&picture);
    let output = output_within(10 * PATIENCE, command);
    let told = String::from_utf8_lossy(&output.stdout);
    let warned = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{warned}");
    assert!(!warned.contains("WARN"), "jobs that end as they should are nothing to warn of: {warned}");
    let ended = format!("{steps} steps, loss");
    for line in ["digits-1", "at a boundary", "losses and weights", &ended] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(told.lines().all(|line| line.chars().count() <= 100), "too wide to read: {told}");
    assert!(told.contains("software GPU"), "it must say what it ran on: {told}");
    assert!(std::fs::read_to_string(&picture).unwrap().contains("digits-3"));
    serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap()
}

#[test]
fn the_demo_shows_equal_results() {
    let directory = tempfile::tempdir().unwrap();
    let mut fewest = 0.0;
    // How many switches there are in so many steps is the machine's affair.
    for steps in [40, 80, 160, 320, 640] {
        let figures = demo(directory.path(), steps);
        fewest = check(&figures);
        if fewest >= SWITCHES {
            return;
        }
    }
    panic!("a leg had only {fewest} switches: no pressure, no test");
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The switches of the leg that had fewest.
fn check(figures: &Value) -> f64 {
    assert_eq!(figures["software_gpu"], true);
    assert!(number(&figures["footprint_sum_bytes"]) > number(&figures["gpu_memory_bytes"]));
    let legs = figures["legs"].as_array().unwrap();
    assert_eq!(
        legs.iter().map(|leg| leg["at_boundary"].as_bool().unwrap()).collect::<Vec<_>>(),
        [true, false]
    );
    for leg in legs {
        assert_eq!(leg["jobs"].as_array().unwrap().len(), 3);
        for job in leg["jobs"].as_array().unwrap() {
            assert!(
                job["weights_equal_solo"].as_bool().unwrap() && job["losses_equal_solo"].as_bool().unwrap()
            );
            for name in ["steps", "accuracy", "slices", "footprint_bytes", "peak_temporary_bytes"] {
                assert!(number(&job[name]) > 0.0, "{name}: {job}");
            }
            let saved = number(&job["saved_bytes"]);
            let most = 1.1 * number(&job["live_temporary_bytes"]) + 4096.0 * number(&job["saved_pieces"]);
            assert!(saved <= most, "{job}");
            assert!(number(&job["restored_bytes"]) >= saved);
        }
    }
    legs.iter().map(|leg| number(&leg["switches"])).fold(f64::INFINITY, f64::min)
}

#[test]
fn who_waits_for_the_idle_manager_sees_every_job_ended() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let (mut here, mut there) = (manager.probe(&["--name", "here"]), manager.probe(&["--name", "there"]));
    for job in [&mut here, &mut there] {
        job.tell("device 0");
        job.tell("alloc a 65536");
    }
    let mut status = support::command();
    status.args(["status", "--wait-idle", "--json", "--socket"]).arg(manager.socket());
    let waiting = status.stdout(Stdio::piped()).spawn().unwrap();
    here.end();
    there.end();
    let output = finish(waiting);
    let status: Status = serde_json::from_slice(&output.stdout).unwrap();
    assert!(status.jobs.is_empty() && status.has_ended("here") && status.has_ended("there"), "{status:#?}");
    for job in &status.ended {
        assert!(job.grants.iter().all(|(from, to)| to.is_some_and(|to| *from <= to)), "{job:#?}");
    }
}
