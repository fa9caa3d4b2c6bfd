//! R0.4 on a machine with CXL memory, which tests/qemu boots: a device behind a CXL root port gives a NUMA node.
//!
//! A machine that cannot have such a guest skips these tests and says so; with `CI` in the environment that is a
//! failure, unless `TIDEGATE_NO_QEMU=1` says that it is meant.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use support::patience::output_within;
use support::{command, probe};

/// How long the guest may take, which emulates each instruction.
const PATIENCE: Duration = Duration::from_secs(240);
/// What tests/qemu/run.sh ends with where something is missing.
const MISSING: i32 = 77;

/// What the guest said; `None` where there can be none. All tests look at one boot.
fn guest() -> Option<&'static str> {
    static CONSOLE: OnceLock<Result<String, String>> = OnceLock::new();
    match CONSOLE.get_or_init(boot) {
        Ok(console) => Some(console),
        Err(why) => {
            assert!(is_optional(), "there is no guest with CXL memory: {why}");
            println!("skipped: there is no guest with CXL memory: {why}");
            None
        }
    }
}

fn is_optional() -> bool {
    std::env::var_os("CI").is_none() || is_unwanted()
}

fn is_unwanted() -> bool {
    std::env::var_os("TIDEGATE_NO_QEMU").is_some_and(|value| value == "1")
}

fn boot() -> Result<String, String> {
    if is_unwanted() {
        return Err("TIDEGATE_NO_QEMU=1".into());
    }
    // All that goes into the guest is built, and lies there.
    let probe = probe();
    let built = probe.parent().and_then(Path::parent).expect("examples lie below what is built");
    assert_eq!(Some(built), Path::new(command().get_program()).parent());
    let mut run = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/qemu/run.sh"));
    run.arg(built).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = output_within(PATIENCE, run);
    let console = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    match output.status.code() {
        Some(MISSING) => Err(console.trim().to_owned()),
        code => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(code == Some(0) && !console.contains("failed: "), "{code:?}: {console}\n{said}");
            Ok(console)
        }
    }
}

/// What stands behind a word in the lines that begin with it.
fn lines<'a>(console: &'a str, word: &str) -> Vec<&'a str> {
    let behind = |line: &'a str| line.strip_prefix(word)?.strip_prefix(": ");
    console.lines().filter_map(behind).collect()
}

#[test]
fn a_cxl_node_is_found_by_its_device_and_its_zone_is_told() {
    let Some(console) = guest() else { return };
    let [found, advice] = lines(console, "doctor-movable")[..] else { panic!("{console}") };
    assert!(
        found.starts_with("warn  CXL ") && found.contains("NUMA node 1 (a CXL device gave it): 256.0 MiB")
    );
    assert!(found.contains("in the movable zone") && advice.contains("--no-movable"), "{found}\n{advice}");
    let [found] = lines(console, "doctor-kernel")[..] else { panic!("{console}") };
    assert!(found.starts_with("ok    CXL ") && found.contains("--cxl node:1=SIZE"), "{found}");
}

#[test]
fn memory_that_pinning_moves_to_dram_is_refused_with_advice() {
    let Some(console) = guest() else { return };
    let said = lines(console, "manager-movable").join("\n");
    assert!(!said.contains("ready"), "{said}");
    assert!(said.contains("16 of 16 pages do not lie on NUMA node 1 where they were bound to"), "{said}");
    assert!(said.contains("the first is on node 0") && said.contains("--no-movable"), "{said}");
}

#[test]
fn what_finds_no_room_in_dram_lies_on_the_cxl_node_and_comes_back() {
    let Some(console) = guest() else { return };
    bytes_lie_in_cxl_memory_and_come_back(console, "kernel");
    // Slabs of as much as the GPU has each, bound to the node, where all of their pages are: one, or two if one job's
    // bytes came before the other's had gone.
    let slabs = lines(console, "pages-kernel");
    let whole = ((384 << 10) / 4096).to_string();
    assert!((1..=2).contains(&slabs.len()) && slabs.iter().all(|pages| *pages == whole), "{console}");
}

#[test]
fn what_finds_no_room_in_dram_lies_on_a_dax_device_and_comes_back() {
    let Some(console) = guest() else { return };
    let [found] = lines(console, "doctor-device")[..] else { panic!("{console}") };
    assert!(found.starts_with("ok    CXL ") && found.contains("--cxl /dev/dax0.0=SIZE"), "{found}");
    bytes_lie_in_cxl_memory_and_come_back(console, "device");
}

/// In this turn two jobs had their bytes and looked at them three times: six orders each, none in vain.
fn bytes_lie_in_cxl_memory_and_come_back(console: &str, turn: &str) {
    assert_eq!(lines(console, &format!("manager-{turn}")), ["ready"]);
    let used = lines(console, &format!("used-{turn}"))[0].parse::<u64>().unwrap();
    assert!(used >= 128 << 10, "{console}");
    for job in 1..=2 {
        let said = lines(console, &format!("job-{turn}-{job}"));
        let answers = said.iter().filter(|line| line.starts_with("ok")).count();
        assert!(answers == 6 && !said.iter().any(|line| line.starts_with("error")), "{job}: {console}");
    }
}
