//! C2: what a CUDA driver promises, it promises under Tidegate too: the conformance suite of the software
//! GPU, asked under the shim with a manager. (Bare, it is asked by the software GPU's own tests.)

mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::command;
use support::patience::output_within;

/// The suite has much to do.
const PATIENCE: Duration = Duration::from_secs(300);

/// The suite's program, which cargo builds for another package's tests.
fn suite() -> String {
    let cargo = std::env::var_os("CARGO").expect("cargo test");
    let mut build = Command::new(cargo);
    build.args([
        "test",
        "--no-run",
        "--message-format=json",
        "-p",
        "tidegate-softgpu-cuda",
        "--test",
        "conformance",
    ]);
    let output = build.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made = String::from_utf8(output.stdout).unwrap();
    let messages = made.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut executables = messages.filter(|message| message["target"]["name"] == "conformance");
    let executable = executables.find_map(|message| message["executable"].as_str().map(str::to_owned));
    executable.expect("cargo names what it has made")
}

#[test]
fn every_promise_of_a_driver_is_kept_under_a_manager() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    tidegate_manager::artifacts::shim().unwrap();
    let mut suite = Command::new(suite());
    suite.current_dir(root.join("softgpu/cuda"));
    // What it needs is built: each of its managers would ask cargo for that once more.
    suite.env("TIDEGATE", command().get_program()).env_remove("CARGO");
    suite.env("TIDEGATE_CONFORMANCE_LAUNCHER", root.join("tests/programs/under_a_manager.sh"));
    let output = output_within(PATIENCE, suite);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let result = said.lines().find(|line| line.starts_with("test result: ok")).unwrap();
    println!("{result}");
}
