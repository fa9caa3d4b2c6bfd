//! The will: a file beside the socket that tells the next manager whom to wait for.
//!
//! It is there as long as a manager has movers, and removed when that ends in order. Nothing in it
//! is a secret or a right: whom it names is asked, and answers as itself.

#![forbid(unsafe_code)]

use crate::ownership;
use crate::process::{Executable, ProcessName, dies_within, effective_uid, is_dead};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_ffi::os;
use tidegate_ffi::units::GpuUuid;
use tracing::warn;

/// A manager's command line: what its successor is started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLine {
    /// The arguments, without the program.
    pub words: Vec<Vec<u8>>,
    /// The working directory, to which paths among them may be relative.
    pub directory: PathBuf,
}

/// A file of options, as a manager read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFile {
    /// Where it was: an absolute path.
    pub path: PathBuf,
    /// What it said.
    pub text: String,
}

impl ConfigFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or is no text.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let reading = || format!("reading {}", path.display());
        let text = std::fs::read_to_string(path).with_context(reading)?;
        Ok(Self { path: std::path::absolute(path).with_context(reading)?, text })
    }
}

/// Who has what a manager leaves behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WillFile {
    /// The manager itself.
    pub(crate) manager: Option<ProcessName>,
    /// Its movers.
    pub(crate) movers: Vec<(GpuUuid, ProcessName)>,
    /// The programs that its movers run, in the order of `movers`.
    #[serde(default)]
    executables: Vec<Option<Executable>>,
    /// The directory of its software GPUs.
    pub(crate) node: Option<PathBuf>,
    /// Directories of software GPUs of managers before it, which processes may still use.
    #[serde(default)]
    pub(crate) abandoned: Vec<PathBuf>,
    /// How it was started; `None`: a supervisor starts the next one.
    #[serde(default)]
    pub(crate) command: Option<CommandLine>,
    /// The file of options that it read, if any.
    #[serde(default)]
    pub(crate) config: Option<ConfigFile>,
    /// In which life of the machine: processes of another are dead.
    boot: String,
}

impl WillFile {
    pub(crate) fn new(movers: Vec<(GpuUuid, ProcessName)>, node: Option<PathBuf>) -> Self {
        let executables = movers.iter().map(|(_, mover)| Executable::of(mover.pid)).collect();
        let (manager, abandoned, command, config) = (ProcessName::own(), Vec::new(), None, None);
        Self { manager, movers, executables, node, abandoned, command, config, boot: boot() }
    }

    /// Where the will of the manager on `socket` lies.
    pub(crate) fn path(socket: &Path) -> PathBuf {
        socket.with_added_extension("will")
    }

    /// Writes it, whole or not at all, for this user alone.
    pub(crate) fn write(&self, socket: &Path) -> anyhow::Result<()> {
        let path = Self::path(socket);
        // One name, which the next manager writes anew: none is left over by one that is killed here. There is one
        // manager at a time (it has the lock on the socket).
        let new = path.with_added_extension("new");
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing the old {}", new.display()));
            }
            _ => {}
        }
        let create = || File::options().write(true).create_new(true).mode(0o600).open(&new);
        let mut file = os::open(create).with_context(|| format!("making {}", new.display()))?;
        os::write(&mut file, &serde_json::to_vec(self)?)?;
        std::fs::rename(&new, &path).with_context(|| format!("writing {}", path.display()))?;
        Ok(())
    }

    /// The file beside `socket`, if there is one and a manager of this user wrote it.
    pub(crate) fn load(socket: &Path) -> Option<Self> {
        let mut text = Vec::new();
        File::from(ownership::open_own_file(&Self::path(socket))?).read_to_end(&mut text).ok()?;
        let will: Self =
            serde_json::from_slice(&text).inspect_err(|error| warn!(%error, "a will cannot be read")).ok()?;
        (will.boot == boot()).then_some(will)
    }

    /// How the manager on `socket` was started that has died there.
    pub(crate) fn last_command(socket: &Path) -> Option<CommandLine> {
        Self::load(socket)?
            .command
            .filter(|command| command.words.first().is_some_and(|word| word == b"manager"))
    }

    /// The file of options of the manager that has died on `socket`, if movers of it live: the next manager takes
    /// over the memory that this one shared by them.
    pub(crate) fn config_to_take_over(socket: &Path) -> Option<ConfigFile> {
        let will = Self::load(socket)?;
        let is_left = !will.living_movers().is_empty();
        will.config.filter(|_| is_left)
    }

    /// Waits for the death of the manager on `socket`, so long: whether it is dead.
    pub(crate) fn has_died(socket: &Path, patience: Duration) -> bool {
        let manager = Self::load(socket).and_then(|will| will.manager?.open());
        manager.is_none_or(|manager| dies_within(&manager, patience))
    }

    /// The movers that live of the manager that was on `socket`: one of them starts the next, or they
    /// wait for who does.
    pub(crate) fn heirs(socket: &Path) -> Vec<OwnedFd> {
        let movers = Self::load(socket).map_or_else(Vec::new, |will| will.living_movers());
        movers.into_iter().map(|(.., process)| process).collect()
    }

    /// The movers that live, with a handle of each. Only a process of this user, with the start time and the program that were
    /// written down, is one.
    pub(crate) fn living_movers(&self) -> Vec<(GpuUuid, ProcessName, OwnedFd)> {
        let own = rustix::process::geteuid().as_raw();
        let executables = self.executables.iter().copied().chain(std::iter::repeat(None));
        let living = self.movers.iter().zip(executables).filter_map(|((gpu, name), executable)| {
            let process = name.open()?;
            // Asked of the number while the handle shows that it is not free.
            let has_user = effective_uid(name.pid) == Some(own);
            let has_program = executable.is_none_or(|known| Executable::of(name.pid) == Some(known));
            (has_user && has_program && !is_dead(&process)).then_some((*gpu, *name, process))
        });
        living.collect()
    }

    /// There is nothing to inherit any more.
    pub(crate) fn remove(socket: &Path) {
        if let Err(error) = std::fs::remove_file(Self::path(socket))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!(%error, "a will cannot be removed");
        }
    }
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim_end().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    const GPU: GpuUuid = GpuUuid([3; 16]);

    #[test]
    fn a_will_is_read_as_it_was_written_in_this_life_of_the_machine() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        assert_eq!(WillFile::load(&socket), None);
        let own = ProcessName::own().unwrap();
        let will = WillFile::new(vec![(GPU, own)], Some("/node".into()));
        will.write(&socket).unwrap();
        assert_eq!(WillFile::load(&socket), Some(will.clone()));
        let mode = std::fs::metadata(WillFile::path(&socket)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(WillFile::last_command(&socket), None);
        let command = |words: &[&str]| {
            let words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            Some(CommandLine { words, directory: "/".into() })
        };
        let started = WillFile { command: command(&["manager", "--unit", "64KiB"]), ..will.clone() };
        started.write(&socket).unwrap();
        assert_eq!(WillFile::last_command(&socket), started.command);
        std::fs::set_permissions(WillFile::path(&socket), std::fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(WillFile::last_command(&socket), None, "others may have written it");
        WillFile { command: command(&["run", "--", "true"]), ..will.clone() }.write(&socket).unwrap();
        assert_eq!(WillFile::last_command(&socket), None, "it starts no manager");
        let names = std::fs::read_dir(directory.path()).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["socket.will"], "nothing is left over");
        WillFile { boot: "another".into(), ..will }.write(&socket).unwrap();
        assert_eq!(WillFile::load(&socket), None);
        WillFile::remove(&socket);
        assert!(!WillFile::path(&socket).exists());
        WillFile::remove(&socket);
    }

    #[test]
    fn a_mover_is_a_process_with_the_program_that_was_written_down() {
        let own = ProcessName::own().unwrap();
        let mut will = WillFile::new(vec![(GPU, own)], None);
        assert_eq!(will.living_movers().len(), 1);
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        will.executables = vec![Executable::of(other.id() as i32)];
        drop(other.stdin.take());
        other.wait().unwrap();
        assert!(will.executables[0].is_some() && will.living_movers().is_empty(), "it runs another program");
        will.executables.clear();
        assert_eq!(will.living_movers().len(), 1, "an earlier release did not write it down");
    }
}
