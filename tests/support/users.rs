//! Tests with two users: they run as root, and start commands as somebody else.

use super::{Manager, artifacts, client, command, copy_program, hostile, tidegate};
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
        // Where cargo builds may be closed to others.
        let programs = tempfile::tempdir().unwrap();
        open_to_all(programs.path());
        let libraries = [artifacts::shim(), artifacts::software_driver(), artifacts::software_runtime()];
        let libraries = libraries.map(Result::unwrap);
        for file in [Path::new(tidegate())].into_iter().chain(libraries.iter().map(PathBuf::as_path)) {
            copy_program(file, &programs.path().join(file.file_name().unwrap()));
        }
        let group = STRANGER.to_string();
        let options = [options, &["--group", &group]].concat();
        let manager = Manager::start_by(&programs.path().join("tidegate"), gpus, &options);
        open_to_all(manager.socket().parent().unwrap());
        Self { manager, programs }
    }

    /// A copy of a program where all users can run it.
    pub fn copied(&self, program: &Path) -> PathBuf {
        let copy = self.programs.path().join(program.file_name().unwrap());
        // One that runs cannot be written.
        if !copy.exists() {
            copy_program(program, &copy);
        }
        copy
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
        self.member(STRANGER, subcommand)
    }

    /// The same as a user in the manager's group.
    pub fn member(&self, uid: u32, subcommand: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.env_remove("CARGO").current_dir("/").uid(uid).gid(STRANGER);
        self.asking(command, subcommand)
    }

    /// A client without a driver, of a user in the manager's group.
    pub fn client(&self, uid: u32) -> Command {
        self.by_itself(uid, client(&self.manager))
    }

    /// A client that attacks, of such a user.
    pub fn hostile(&self, uid: u32) -> Command {
        self.by_itself(uid, hostile(&self.manager))
    }

    /// A copy of a program of the tests, which speaks to the manager by itself.
    fn by_itself(&self, uid: u32, program: Command) -> Command {
        let mut command = Command::new(self.copied(Path::new(program.get_program())));
        command.args(program.get_args()).env("TIDEGATE_SOCKET", self.manager.socket());
        command.current_dir("/").uid(uid).gid(STRANGER);
        command
    }

    fn asking(&self, mut command: Command, subcommand: &[&str]) -> Command {
        command.args(subcommand).arg("--socket").arg(self.manager.socket());
        command
    }
}

fn open_to_all(directory: &Path) {
    std::fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
}
