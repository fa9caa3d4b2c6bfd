//! Starting the next manager, where nobody else does: one mover does it for all.
//!
//! Who has the lock on the state file starts it. The lock is released by death, and when the new
//! manager is ready: the next mover that gets it then has met that manager already.

#![forbid(unsafe_code)]

use crate::software_gpu::NODE_VARIABLE;
use anyhow::Context;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;
use tidegate_ffi::os;

/// So many attempts.
const ATTEMPTS: u32 = 5;
/// The pause after the first one; twice as long after each that follows.
const PAUSE: Duration = Duration::from_millis(50);

/// An attempt to have a manager started. It ends when dropped: there is one.
pub struct Heir {
    over: Arc<AtomicBool>,
    despair: Arc<OwnedFd>,
}

impl Heir {
    /// Starts a manager with these words on its command line, when it is this mover's turn and the
    /// pause is over.
    pub fn start(words: &[Vec<u8>], state: &OwnedFd, pause: Duration) -> anyhow::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let despair = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let heir = Self { over: over.clone(), despair: despair.clone() };
        let (words, state) = (words.to_vec(), os::duplicate(state)?);
        os::start_thread(Builder::new().name("heir".into()), move || {
            std::thread::sleep(pause);
            if let Err(error) = start_in_turn(&words, &state, &over) {
                tracing::error!("no manager can be started: {error:#}");
                // A counter of one cannot overflow.
                let _ = rustix::io::write(&*despair, &1u64.to_ne_bytes());
            }
        })?;
        Ok(heir)
    }

    /// Readable when all attempts have failed.
    pub fn despair(&self) -> BorrowedFd<'_> {
        self.despair.as_fd()
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

fn start_in_turn(words: &[Vec<u8>], state: &OwnedFd, over: &AtomicBool) -> anyhow::Result<()> {
    // Opened anew: a lock belongs to an opening of the file, and this one is nobody else's.
    let path = format!("/proc/self/fd/{}", state.as_raw_fd());
    let turn = File::open(&path).with_context(|| format!("opening {path}"))?;
    flock(&turn, FlockOperation::LockExclusive).context("waiting for another mover to start a manager")?;
    let mut pause = PAUSE;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        if over.load(Ordering::Acquire) {
            return Ok(());
        }
        match start(words) {
            Ok(mut manager) => {
                drop(turn);
                // Its parent waits for its end, so that it does not stay a zombie.
                let _ = manager.wait();
                return Ok(());
            }
            Err(error) => last = Some(error),
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    last.map_or(Ok(()), Err)
}

/// Starts a manager, the same program as this one; returns it when it is ready.
fn start(words: &[Vec<u8>]) -> anyhow::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tidegate").args(words.iter().map(|word| OsStr::from_bytes(word))).env_remove(NODE_VARIABLE);
    let mut manager = os::start_process(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let output = manager.stdout.take().context("the manager has no standard output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.trim_end() != crate::command::READY {
        let status = manager.wait()?;
        anyhow::bail!("the manager that was started ended at once ({status})");
    }
    Ok(manager)
}
