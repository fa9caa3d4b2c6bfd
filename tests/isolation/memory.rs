//! Programs of several users on one GPU of a manager of root: each uses its memory through the real library and driver.

use crate::support::training::{Training, alone, without_boundaries};
use crate::support::users::{STRANGER, Shared};
use crate::support::{Jobs, MIB, Probe, probe, train_digits};

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

/// Trainings of two users take turns, poisoned, with a tier of host memory that does not take all of both, and the disk behind
/// it, one pair after the other until there were so many switches.
fn train_in_turns(least: u64) {
    let directory = tempfile::tempdir().unwrap();
    let disk = format!("{}=16MiB", directory.path().display());
    let shared = Shared::start(
        "1x4MiB",
        &[
            &["--unit", "64KiB", "--slice", "5ms", "--boundary-deadline", "5ms", "--poison"][..],
            &["--dram", "1MiB", "--disk", &disk],
        ]
        .concat(),
    );
    let program = shared.copied(&train_digits());
    // Its kernels lie in the folder above.
    shared.copied(&train_digits().ancestors().nth(2).unwrap().join("libtrain_digits_kernels.so"));
    let users = [(STRANGER, "1"), (OTHER, "2")];
    let solo = users.map(|(_, seed)| alone(&without_boundaries(seed)));
    let (mut switches, mut rounds) = (0, 0);
    while switches < least {
        rounds += 1;
        let trainings = users.map(|(user, seed)| {
            let mut run = shared.member(user, &["run", "--name", &format!("{seed}-{rounds}")]);
            run.arg("--").arg(&program);
            Training::start(run, &without_boundaries(seed))
        });
        assert_eq!(trainings.map(Training::result), solo);
        let names = users.map(|(_, seed)| format!("{seed}-{rounds}"));
        let status = shared.manager.status_when(|status| names.iter().all(|name| status.has_ended(name)));
        switches += names.iter().map(|name| status.ended_job(name).switches).sum::<u64>();
    }
    println!("{switches} switches in {rounds} rounds");
}

#[test]
fn trainings_of_two_users_end_as_alone() {
    train_in_turns(SWITCHES / 10);
}

#[test]
#[ignore = "takes a minute: the other one does less of the same"]
fn trainings_of_two_users_end_as_alone_after_many_switches() {
    train_in_turns(SWITCHES);
}
