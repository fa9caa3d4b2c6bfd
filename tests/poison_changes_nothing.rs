//! I1 on a real training: two jobs share a GPU too small for both, everything that is not alive is
//! overwritten with 0xFF at each switch, and every loss and weight is as it is alone.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use support::{Jobs, Manager, Status, train_digits};
use tidegate_manager::software_gpu::{NODE_VARIABLE, SoftwareNode};

fn arguments(command: &mut Command, seed: &str, boundaries: &str) {
    command.args(["--hidden", "256", "--batch", "240", "--steps", "240", "--json-lines"]);
    command.args(["--seed", seed, "--boundaries", boundaries]);
}

/// The last line: accuracy, the digest of all weights, the bits of all losses.
fn result(output: &[u8]) -> String {
    String::from_utf8_lossy(output).lines().last().unwrap_or_default().into()
}

fn alone(seed: &str) -> String {
    let node = SoftwareNode::create(&"1x4MiB".parse().unwrap(), 64 << 10).unwrap();
    let mut command = Command::new(train_digits());
    arguments(&mut command, seed, "no");
    command.env(NODE_VARIABLE, node.path()).env("LD_LIBRARY_PATH", node.path().join("lib"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    result(&output.stdout)
}

fn together(boundaries: &str) -> (Vec<String>, Status) {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "5ms", "--poison"];
    let manager = Manager::start("1x3840KiB", &options);
    let program = train_digits();
    let start = |seed: &str| {
        let mut command = manager.run(&["--name", seed], Path::new(&program));
        arguments(&mut command, seed, boundaries);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let jobs = ["1", "2"].map(start);
    let results = jobs.map(|job| result(&job.wait_with_output().unwrap().stdout)).to_vec();
    (results, manager.status_when(|status| status.has_ended("1") && status.has_ended("2")))
}

fn equal_alone(boundaries: &str) {
    let (results, status) = together(boundaries);
    let switches = status.ended_job("1").switches + status.ended_job("2").switches;
    assert!(switches >= 10, "only {switches} switches: no pressure, no test");
    assert_eq!(results, [alone("1"), alone("2")]);
}

#[test]
fn switching_at_boundaries_changes_nothing() {
    equal_alone("yes");
}

#[test]
fn switching_by_deadline_changes_nothing() {
    equal_alone("no");
}
