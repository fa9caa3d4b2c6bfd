//! What the users of a machine can do to each other's jobs, managers and files.
//!
//! The tests run as root, and start processes of two other users: a *stranger*, who is in the manager's group, and an
//! *outsider*, who is not.

#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../../manager/tests/simulation/random.rs"]
mod random;

mod accounting;
mod files;
mod lies;
mod memory;
mod privileges;
mod requests;
mod trust;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// A user, and a group, outside of the manager's group.
const OUTSIDER: u32 = 65533;

/// A program of the outsider.
fn outsider(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").uid(OUTSIDER).gid(OUTSIDER);
    command
}
