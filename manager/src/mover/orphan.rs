//! A mover without a manager: it keeps everything, and finds the next one (I7).
//!
//! ```text
//! the connection ends, without End ─► a manager at the socket? ─ no ─► wait for it to appear
//!                                      │ yes                           (one mover starts it: `heir`)
//!  Orphan + state file ─────────────►  │
//!                      ◄───────────── Resumed | Refused: the mover ends
//!  Holds: pieces, slabs, index ─────►  │
//!  what it had not heard ───────────►  ◄───────── what the mover had not heard
//! ```

#![forbid(unsafe_code)]

use super::heir::Heir;
use super::link::{Link, LinkError};
use super::orders::{Answer, Mover};
use crate::process::dies_within;
use anyhow::{Context, bail};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::units::GpuUuid;
use tidegate_ffi::wire::message::{Orphan, Reunion, ToManager, Will};
use tidegate_ffi::wire::{Connection, Seen, Watch};

/// A connection ends a moment before the process at its other end does. One that lives on kills
/// the mover, and starts another.
const DYING: Duration = Duration::from_secs(10);
/// So many managers in a row that were of no use are enough.
const USELESS_MANAGERS: u32 = 20;
/// A manager that lived for so long was of use, though it ordered nothing.
const LONG_LIFE: Duration = Duration::from_secs(10);
/// The pause before the fourth manager in a row; twice as long before each that follows, up to
/// the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a mover does when its manager dies.
pub struct Orphanage {
    gpu: GpuUuid,
    socket: PathBuf,
    start: Option<Vec<Vec<u8>>>,
    state: OwnedFd,
    /// The present one.
    manager: Option<OwnedFd>,
    /// Managers in a row that died at once, and had ordered nothing.
    useless: u32,
    found: Instant,
    /// What the last manager had been heard to say when it was found.
    heard: u64,
}

impl Orphanage {
    /// By the will of the manager that `link` speaks to, with its state file.
    pub fn of(gpu: GpuUuid, will: Will, state: OwnedFd, link: &Link) -> Self {
        let socket = PathBuf::from(OsStr::from_bytes(&will.socket));
        let (start, manager, found) = (will.start, link.manager(), Instant::now());
        Self { gpu, socket, start, state, manager, useless: 0, found, heard: 0 }
    }

    /// Finds the next manager, hands it what `mover` has, and goes on with it.
    ///
    /// # Errors
    /// There is none, or it does not want this mover.
    pub fn reunite(&mut self, link: &mut Link, mover: &Mover) -> anyhow::Result<()> {
        let was_useful = link.heard() > self.heard || self.found.elapsed() >= LONG_LIFE;
        self.useless = if was_useful { 0 } else { self.useless + 1 };
        if self.useless > USELESS_MANAGERS {
            bail!("{USELESS_MANAGERS} managers in a row died at once");
        }
        if self.manager.as_ref().is_some_and(|manager| !dies_within(manager, DYING)) {
            bail!("the manager has parted from this mover");
        }
        tracing::warn!(gpu = %self.gpu, "the manager is gone; waiting for the next one");
        let began = Instant::now();
        let mut pause = PAUSE;
        while let Err(error) = self.find_next(link, mover) {
            // With it, all that it keeps would be gone.
            if !is_lack(&error) || pause > LONGEST_PAUSE {
                return Err(error);
            }
            tracing::warn!(gpu = %self.gpu, "trying again to find the next manager: {error:#}");
            std::thread::sleep(pause);
            pause *= 2;
        }
        (self.found, self.heard, self.manager) = (Instant::now(), link.heard(), link.manager());
        let micros = began.elapsed().as_micros() as u64;
        tracing::info!(gpu = %self.gpu, micros, "another manager has taken over");
        Ok(())
    }

    fn find_next(&self, link: &mut Link, mover: &Mover) -> anyhow::Result<()> {
        let pause = self.pause();
        let heir = self.start.as_ref().map(|words| Heir::start(words, &self.state, pause)).transpose()?;
        while !self.meet(link, mover, heir.as_ref())? {}
        Ok(())
    }

    fn pause(&self) -> Duration {
        let doublings = self.useless.checked_sub(3);
        doublings.map_or(Duration::ZERO, |times| (PAUSE * (1 << times.min(10))).min(LONGEST_PAUSE))
    }

    /// `false`: the manager that was met is gone again.
    fn meet(&self, link: &mut Link, mover: &Mover, heir: Option<&Heir>) -> anyhow::Result<bool> {
        let connection = next_manager(&self.socket, heir)?;
        let orphan = ToManager::Orphan(Orphan { gpu: self.gpu, heard: link.heard() });
        if connection.send(&orphan, &[self.state.as_fd()]).is_err() {
            return Ok(false);
        }
        let heard = match connection.receive::<Reunion>() {
            Ok((Reunion::Resumed { heard }, _)) => heard,
            Ok((Reunion::Refused { reason }, _)) => bail!("the manager does not take this mover: {reason}"),
            Err(error) => match LinkError::from(error) {
                LinkError::Ended => return Ok(false),
                other => return Err(other.into()),
            },
        };
        let holdings = mover.holdings(link.said()).context("what the mover has cannot be handed over")?;
        if !holdings.iter().all(|part| hand_over(&connection, part)) {
            return Ok(false);
        }
        link.resume(connection, heard).context("the manager speaks of another conversation")?;
        Ok(true)
    }
}

/// Whether the system, or the driver, has too little of something: be it for a moment.
fn is_lack(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.is::<std::io::Error>() || cause.is::<Errno>() || cause.is::<DriverError>())
}

fn hand_over(connection: &Connection, part: &Answer) -> bool {
    let fds: Vec<_> = part.fds.iter().map(AsFd::as_fd).collect();
    connection.send(&part.message, &fds).is_ok()
}

/// Connects to the manager that listens on `socket`, as soon as there is one.
fn next_manager(socket: &Path, heir: Option<&Heir>) -> anyhow::Result<Connection> {
    // The watch comes before the attempt: no appearance is missed.
    let watch = Watch::of(socket).with_context(|| format!("watching for {}", socket.display()))?;
    let despair: Vec<_> = heir.map(Heir::despair).into_iter().collect();
    loop {
        if let Ok(connection) = Connection::connect(socket) {
            return Ok(connection);
        }
        if watch.wait(&despair, None)? == Seen::Another {
            bail!("no manager can be started");
        }
    }
}
