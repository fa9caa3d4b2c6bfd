//! Tests with two users: they run as root, and start commands as somebody else.

use super::{Manager, artifacts, command, copy_program, tidegate};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user, and a group, that are nobody.
pub const STRANGER: u32 = 65534;

/// A manager whose socket root and [`STRANGER`] may use, and the command where both can run it.
pub struct Shared {
    pub manager: Manager,
    programs: tempfile::TempDir,
}

impl Shared {
    pub fn start(gpus: &str, options: &[&str]) -> Self {
        assert!(rustix::process::geteuid().is_root(), "a test with two users must run as root");
        let group = STRANGER.to_string();
        let manager = Manager::start(gpus, &[options, &["--group", &group]].concat());
        open_to_all(manager.socket().parent().unwrap());
        // Where cargo builds may be closed to others.
        let programs = tempfile::tempdir().unwrap();
        open_to_all(programs.path());
        for file in [Path::new(tidegate()), &artifacts::shim().unwrap()] {
            copy_program(file, &programs.path().join(file.file_name().unwrap()));
        }
        Self { manager, programs }
    }

    fn program(&self) -> PathBuf {
        self.programs.path().join("tidegate")
    }

    /// `tidegate SUBCOMMAND --socket …` as root.
    pub fn root(&self, subcommand: &[&str]) -> Command {
        self.asking(command(), subcommand)
    }

    /// `tidegate SUBCOMMAND --socket …` as the stranger.
    pub fn stranger(&self, subcommand: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.env_remove("CARGO").current_dir("/").uid(STRANGER).gid(STRANGER);
        self.asking(command, subcommand)
    }

    fn asking(&self, mut command: Command, subcommand: &[&str]) -> Command {
        command.args(subcommand).arg("--socket").arg(self.manager.socket());
        command
    }
}

fn open_to_all(directory: &Path) {
    std::fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
}
