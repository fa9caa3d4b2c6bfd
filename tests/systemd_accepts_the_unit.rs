//! `packaging/systemd/tidegate.service` is what systemd understands, and its command line is what we do. (That
//! it is, is asked where the manager reads its options: `the_unit_starts_a_manager`.)

mod support;

use std::io::ErrorKind;
use std::process::Command;
use support::patience::output;
use support::tidegate;

const UNIT: &str = include_str!("../packaging/systemd/tidegate.service");

#[test]
fn systemd_accepts_the_unit() {
    match Command::new("systemd-analyze").arg("--version").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return println!("systemd-analyze is missing: the unit was not verified");
        }
        version => assert!(version.unwrap().status.success()),
    }
    let directory = tempfile::tempdir().unwrap();
    let unit = directory.path().join("tidegate.service");
    // The command must exist where the unit says.
    std::fs::write(&unit, UNIT.replace("/usr/bin/tidegate", tidegate())).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(&unit);
    let verified = output(verify);
    let words = String::from_utf8_lossy(&verified.stderr);
    // Other units of the machine may have their own faults.
    let ours: Vec<&str> = words.lines().filter(|line| line.contains("tidegate")).collect();
    assert!(verified.status.success() && ours.is_empty(), "{words}");
}
