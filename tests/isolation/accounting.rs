//! Quotas and the memory that processes keep though they should not.

use crate::support::Probe;
use crate::support::users::Shared;
use tidegate_manager::server::status::LeakStatus;

/// Two users in the manager's group.
const GREEDY: u32 = 20_011;
const OTHER: u32 = 20_012;
/// What each of them may have of the GPU, in units of 64 KiB: a quarter of it.
const QUOTA: u32 = 32;
const UNIT: u64 = 64 << 10;

/// A manager with a quota for each user, and clients of it without a driver.
struct Machine {
    shared: Shared,
}

impl Machine {
    fn new() -> Self {
        Self::with(&["--user-memory", "2MiB"])
    }

    fn with(options: &[&str]) -> Self {
        let sizes = ["--unit", "64KiB", "--offset", "64KiB", "--answer-limit", "2s"];
        Self { shared: Shared::start("1x8MiB", &[&sizes, options].concat()) }
    }

    /// A client of a user, with a job of its own.
    fn client(&self, user: u32) -> Probe {
        let mut client = Probe::start(self.shared.client(user));
        client.tell(&format!("hello job {}", self.shared.manager.status().gpus[0].uuid));
        client
    }

    /// Whether a new client of a user gets so many units.
    fn serves(&self, user: u32, units: u32) -> bool {
        self.client(user).try_tell(&format!("lease 0 {units}")).is_ok()
    }
}

#[test]
fn an_expelled_process_does_not_set_its_user_free_of_the_quota() {
    let machine = Machine::new();
    let mut first = machine.client(GREEDY);
    first.tell(&format!("lease 0 {QUOTA}"));
    // The manager expels it; it keeps its descriptors, and lives.
    first.tell("lie");
    assert!(!machine.serves(GREEDY, 1), "its user got more than the quota");
    assert!(machine.serves(OTHER, QUOTA));
    drop(first);
    assert!(machine.serves(GREEDY, QUOTA), "nothing of it is left");
}

#[test]
fn a_child_of_an_ended_process_keeps_the_memory_at_its_users_cost() {
    let machine = Machine::new();
    let _other = machine.client(OTHER);
    let mut first = machine.client(GREEDY);
    first.tell(&format!("lease 0 {QUOTA}"));
    let child: i32 = first.tell("fork").parse().unwrap();
    drop(first);
    let status = machine.shared.manager.status_when(|status| !status.gpus[0].leaks.is_empty());
    assert_eq!(status.gpus[0].leaks, [LeakStatus { uid: GREEDY, bytes: u64::from(QUOTA) * UNIT }]);
    assert!(!machine.serves(GREEDY, 1), "its user got more than the quota");
    assert!(machine.serves(OTHER, QUOTA));
    kill(child);
    assert!(machine.serves(GREEDY, QUOTA), "nothing of it is left");
}

#[test]
fn memory_that_is_given_back_and_kept_counts_towards_the_quota() {
    let machine = Machine::new();
    let _other = machine.client(OTHER);
    let mut greedy = machine.client(GREEDY);
    greedy.tell("lease 0 16");
    greedy.tell("return");
    assert!(!machine.serves(GREEDY, QUOTA - 15), "its user got more than the quota");
    assert!(machine.serves(GREEDY, QUOTA - 16));
    assert!(machine.serves(OTHER, QUOTA));
    drop(greedy);
    assert!(machine.serves(GREEDY, QUOTA), "nothing of it is left");
}

#[test]
fn what_a_user_without_a_quota_keeps_is_bounded_too() {
    let machine = Machine::with(&[]);
    let _other = machine.client(OTHER);
    let mut greedy = machine.client(GREEDY);
    let mut got = 0;
    while got < 4 * QUOTA && greedy.try_tell("lease 0 8").is_ok() {
        greedy.tell("return");
        got += 8;
    }
    // An eighth of 128 units, and the first that make it more.
    assert_eq!(got, 24);
    assert!(machine.serves(OTHER, QUOTA));
}

fn kill(child: i32) {
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
}
