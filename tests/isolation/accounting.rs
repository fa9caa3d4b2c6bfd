//! Quotas and the memory that processes keep though they should not.

use crate::support::users::{STRANGER, Shared};
use crate::support::{Probe, client};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two users in the manager's group.
const GREEDY: u32 = 20_011;
const OTHER: u32 = 20_012;
/// What each of them may have of the GPU, in units of 64 KiB: a quarter of it.
const QUOTA: u32 = 32;

/// A manager with a quota for each user, and clients of it without a driver.
struct Machine {
    shared: Shared,
    client: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let shared = Shared::start(
            "1x8MiB",
            &["--unit", "64KiB", "--offset", "64KiB", "--user-memory", "2MiB", "--answer-limit", "2s"],
        );
        let client_program = client(&shared.manager);
        let client = shared.copied(Path::new(client_program.get_program()));
        Self { shared, client }
    }

    /// A client of a user, with a job of its own.
    fn client(&self, user: u32) -> Probe {
        let manager = &self.shared.manager;
        let mut command = Command::new(&self.client);
        command.env("TIDEGATE_SOCKET", manager.socket()).current_dir("/").uid(user).gid(STRANGER);
        let mut client = Probe::start(command);
        client.tell(&format!("hello job {}", manager.status().gpus[0].uuid));
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
