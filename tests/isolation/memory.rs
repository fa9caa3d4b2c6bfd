//! Programs of several users on one GPU of a manager of root: each uses its memory through the real library and driver.

use crate::support::users::{STRANGER, Shared};
use crate::support::{MIB, Probe, probe};

/// A second user in the manager's group.
const OTHER: u32 = 20_012;
/// More than half of the GPU for each.
const BYTES: u64 = 5 * MIB;
const SWITCHES: u64 = 200;

/// A program of a user, and the byte with which it marks its memory.
struct Marker {
    program: Probe,
    mark: u8,
}

impl Marker {
    fn start(shared: &Shared, user: u32, name: &str, mark: u8) -> Self {
        let mut run = shared.member(user, &["run", "--name", name]);
        run.arg("--").arg(shared.copied(&probe()));
        let mut program = Probe::start(run);
        program.tell("device 0");
        program.tell(&format!("alloc all {BYTES}"));
        program.tell(&format!("set all 0 {BYTES} {mark}"));
        Self { program, mark }
    }

    /// Its memory has its own mark throughout, and new memory has none of another's.
    fn look(&mut self, other: u8) {
        assert_eq!(self.program.tell(&format!("count all {}", self.mark)), (BYTES / 16).to_string());
        self.program.tell(&format!("alloc new {}", MIB / 2));
        assert_eq!(self.program.tell(&format!("count new {other}")), "0", "bytes of the other user");
        self.program.tell("free new");
    }
}

fn take_turns(options: &[&str]) {
    let times = ["--unit", "64KiB", "--slice", "5ms", "--boundary-deadline", "5ms"];
    let shared = Shared::start("1x8MiB", &[&times, options].concat());
    let mut one = Marker::start(&shared, STRANGER, "one", 0xa1);
    let mut other = Marker::start(&shared, OTHER, "other", 0xb2);
    shared.manager.work_until_switched(&["one", "other"], SWITCHES, || {
        one.look(other.mark);
        other.look(one.mark);
    });
}

#[test]
fn programs_of_two_users_share_a_gpu_of_a_manager_of_root() {
    take_turns(&["--poison"]);
}

#[test]
fn saved_bytes_of_two_users_share_a_disk_tier() {
    let directory = tempfile::tempdir().unwrap();
    take_turns(&["--dram", "2MiB", "--disk", &format!("{}=16MiB", directory.path().display())]);
}
