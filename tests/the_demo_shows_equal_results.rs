//! `tidegate demo` ends with status 0 when all results are equal, and its JSON has the names that
//! scripts rely on.

mod support;

use serde_json::Value;
use std::process::{Command, Stdio};
use support::{Jobs, Manager, Status};

fn demo(directory: &std::path::Path) -> Value {
    let json = directory.join("demo.json");
    let picture = directory.join("demo.svg");
    let output = Command::new(support::tidegate())
        .args(["demo", "--software", "--steps", "40", "--hidden", "256", "--batch", "240", "--slice", "20ms"])
        .args(["--gpu-memory", "5504KiB", "--unit", "64KiB", "--offset", "64KiB", "--json"])
        .arg(&json)
        .arg("--picture")
        .arg(&picture)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let warned = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{warned}");
    assert!(!warned.contains("WARN"), "jobs that end as they should are nothing to warn of: {warned}");
    for line in ["digits-1", "at a boundary", "losses and weights", "40 steps, loss"] {
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
    let figures = demo(directory.path());
    assert_eq!(figures["software_gpu"], true);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} is no number"));
    assert!(number(&figures["footprint_sum_bytes"]) > number(&figures["gpu_memory_bytes"]));
    let legs = figures["legs"].as_array().unwrap();
    assert_eq!(
        legs.iter().map(|leg| leg["at_boundary"].as_bool().unwrap()).collect::<Vec<_>>(),
        [true, false]
    );
    for leg in legs {
        assert!(number(&leg["switches"]) >= 3.0, "no pressure, no test: {leg}");
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
}

#[test]
fn who_waits_for_the_idle_manager_sees_every_job_ended() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let (mut here, mut there) = (manager.probe(&["--name", "here"]), manager.probe(&["--name", "there"]));
    for job in [&mut here, &mut there] {
        job.tell("device 0");
        job.tell("alloc a 65536");
    }
    let socket = manager.socket();
    let waiting = Command::new(support::tidegate())
        .args(["status", "--wait-idle", "--json", "--socket"])
        .arg(&socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    here.end();
    there.end();
    let output = waiting.wait_with_output().unwrap();
    let status: Status = serde_json::from_slice(&output.stdout).unwrap();
    assert!(status.jobs.is_empty() && status.has_ended("here") && status.has_ended("there"), "{status:#?}");
    for job in &status.ended {
        assert!(job.grants.iter().all(|(from, to)| to.is_some_and(|to| *from <= to)), "{job:#?}");
    }
}
