//! Processes by name. A number alone is given to another process when its own is dead.

#![forbid(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use std::time::{Duration, Instant};
use tidegate_ffi::os;

/// A process, whatever becomes of its number: as long as the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessName {
    /// Its number.
    pub pid: i32,
    /// When it started, in the kernel's clock ticks since the machine did.
    started: u64,
}

impl ProcessName {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, started: field_of(pid, 22)? })
    }

    /// This process.
    pub fn own() -> Option<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// A handle of the process, if it lives.
    pub fn open(self) -> Option<OwnedFd> {
        let process = os::process_handle(Pid::from_raw(self.pid)?).ok()?;
        // Asked after it was opened: what has the number now is what was opened.
        (Self::of(self.pid) == Some(self) && !is_dead(&process)).then_some(process)
    }
}

/// One of the programs that a process becomes, one after the other, by `execve(2)`. The memory of the one
/// before is gone then, as if the process had died.
///
/// It is known by where its stack begins: the kernel puts that elsewhere for each, and lets no process
/// without privileges change what it says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image(u64);

impl Image {
    /// What a process is now. `None`: the kernel does not say, as of a process of another user.
    pub fn of(pid: i32) -> Option<Self> {
        let start = field_of(pid, 28)?;
        (start != 0).then_some(Self(start))
    }

    /// Whether a process has become something else, for certain.
    pub fn is_gone_from(self, pid: i32) -> bool {
        Self::of(pid).is_some_and(|now| now != self)
    }
}

/// Whether a process is stopped (SIGSTOP, Ctrl-Z, a debugger), by the kernel's word.
pub fn is_stopped(pid: i32) -> bool {
    matches!(field_of(pid, 3), Some('T' | 't'))
}

/// The effective user of a process, as the kernel reports it for a connection.
pub fn effective_uid(pid: i32) -> Option<u32> {
    let status = read_to_string(format!("/proc/{pid}/status")).ok()?;
    // Real, effective, saved and file system uid.
    status_field(&status, "Uid")?.split_whitespace().nth(1)?.parse().ok()
}

/// A field of a process's `/proc/PID/status`.
pub fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let field = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    field.map(str::trim)
}

/// The program that a process runs, as its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executable {
    device: u64,
    inode: u64,
}

impl Executable {
    /// That of a process; `None` where the kernel does not say. A file that was replaced since is still the old one.
    pub fn of(pid: i32) -> Option<Self> {
        let found = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        Some(Self { device: found.dev(), inode: found.ino() })
    }
}

/// A field of `/proc/PID/stat`, by its number in proc(5), from the third on.
fn field_of<T: FromStr>(pid: i32, number: usize) -> Option<T> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in brackets, which may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(number - 3)?.parse().ok()
}

/// Whether a process has ended.
pub fn is_dead(process: &OwnedFd) -> bool {
    dies_within(process, Duration::ZERO)
}

/// Whether a process has ended, or does within `patience`.
pub fn dies_within(process: &OwnedFd, patience: Duration) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Waits until a process has ended.
pub fn wait_for_death(process: &OwnedFd) {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    while let Ok(0) | Err(Errno::INTR) = poll(&mut fds, None) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_becomes_another_program_is_another_image() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo; read line; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = shell.spawn().unwrap();
        let (pid, mut input) = (process.id() as i32, process.stdin.take().unwrap());
        let mut output = process.stdout.take().unwrap();
        // Once it speaks, it is a shell, and no longer on the way to becoming one.
        output.read_exact(&mut [0]).unwrap();
        let image = Image::of(pid).unwrap();
        assert!(!image.is_gone_from(pid) && ProcessName::of(pid).is_some());
        input.write_all(b"go\nhello\n").unwrap();
        let mut said = [0; 6];
        output.read_exact(&mut said).unwrap();
        assert!(image.is_gone_from(pid), "the same image says {said:?}");
        drop(input);
        process.wait().unwrap();
        assert!(!image.is_gone_from(pid), "of a process that is dead nothing is known");
    }

    #[test]
    fn a_process_is_itself_until_it_is_dead() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let name = ProcessName::of(child.id() as i32).unwrap();
        let process = name.open().unwrap();
        assert!(!is_dead(&process));
        // As if the number had been given to another since.
        assert!(ProcessName { started: name.started + 1, ..name }.open().is_none());
        drop(child.stdin.take());
        wait_for_death(&process);
        assert!(name.open().is_none(), "a process that nobody has waited for is dead too");
        child.wait().unwrap();
        assert!(name.open().is_none());
    }
}
