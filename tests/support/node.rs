//! The manager's software GPUs as a place: for programs that are not started by `tidegate run`.
#![allow(dead_code, reason = "each test file uses its own part")]

use super::support::Manager;
use super::support::patience::output;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of the software GPUs (`manager/src/software_gpu.rs`).
pub struct Node(PathBuf);

impl Node {
    /// What `tidegate run` tells its program.
    pub fn of(manager: &Manager) -> Self {
        let mut command = manager.run(&["--name", "node"], Path::new("printenv"));
        command.arg("TIDEGATE_SOFTGPU");
        let output = output(command);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(String::from_utf8(output.stdout).unwrap().trim_end().into())
    }

    /// `program` on these GPUs, with nothing in front of their driver.
    pub fn run(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("TIDEGATE_SOFTGPU", &self.0).env("LD_LIBRARY_PATH", self.libraries());
        command
    }

    /// Where the driver lies.
    pub fn libraries(&self) -> PathBuf {
        self.0.join("lib")
    }
}
