//! A manager that starts gathers what the one before it left: it waits for the movers, and takes
//! what they kept.
//!
//! ```text
//! mover (named in the will) ─ Orphan + state file ─► read, once
//!                          ◄─ Resumed ─────────────
//!                          ── Holds … Holds ───────► pieces, slabs, index
//! ```
//! Whoever else connects meanwhile waits until the manager serves. A mover counts only if it is the
//! very process that the will and the state name, of this user, and has every piece that the state
//! says it has; else it is as if it were dead, and its GPU is lost. Without a whole state nobody's
//! memory can be known: the movers are refused, and the manager starts afresh.

#![forbid(unsafe_code)]

use super::super::gpus::{HeldPiece, Orphaned};
use super::super::status::EndedJob;
use super::{Record, State, StateFile, WillFile};
use crate::process::ProcessName;
use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{GpuUuid, PieceId};
use tidegate_ffi::wire::message::{FromMover, Orphan, Reunion, ToManager};
use tidegate_ffi::wire::{Connection, Limits, MAX_FDS};
use tracing::{info, warn};

/// How long one message of a mover may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many clients may connect before the manager serves.
const EARLY: usize = 1024;

/// All that a manager left behind.
pub struct Heritage {
    pub(in super::super) file: StateFile,
    pub(in super::super) state: State<'static>,
    pub(in super::super) history: VecDeque<EndedJob>,
    pub(in super::super) movers: BTreeMap<GpuUuid, Orphaned>,
    node: Option<PathBuf>,
}

impl Heritage {
    /// The GPUs.
    pub fn gpus(&self) -> Vec<GpuUuid> {
        self.state.movers.keys().copied().collect()
    }

    /// The directory of the software GPUs, if it is those.
    pub fn node(&self) -> Option<&Path> {
        self.node.as_deref()
    }

    /// One GPU's share of the host memory for saved bytes.
    pub fn dram_bytes(&self) -> u64 {
        self.state.scheduler.config().dram_bytes
    }
}

/// What came to a socket before its manager served.
pub struct Gathered {
    /// What is inherited; `None`: there is nothing, or nobody who could say what.
    pub heritage: Option<Heritage>,
    /// Clients that wait.
    pub early: Vec<UnixStream>,
}

/// Waits for the movers of the manager that served `socket` before, if there are any: for each
/// until it comes, is dead, or `patience` is over.
///
/// # Errors
/// The process was asked to end (`stop` is readable): the movers have ended with it.
pub fn gather(
    socket: &Path,
    listener: &UnixListener,
    stop: &UnixStream,
    patience: Duration,
) -> anyhow::Result<Gathered> {
    let will = WillFile::load(socket).filter(WillFile::is_of_use);
    let Some(will) = will else { return Ok(Gathered { heritage: None, early: Vec::new() }) };
    info!(movers = will.movers.len(), "a manager has died: waiting for its movers");
    let awaited = will.movers.into_iter().filter_map(|(gpu, name)| Some((gpu, (name, name.open()?))));
    let mut gathering =
        Gathering { awaited: awaited.collect(), heritage: None, early: Vec::new(), node: will.node };
    if !gathering.wait(listener, stop, Instant::now() + patience)? {
        gathering.end_all();
        WillFile::remove(socket);
        bail!("it was asked to end before it was ready");
    }
    Ok(Gathered { heritage: gathering.heritage, early: gathering.early })
}

struct Gathering {
    awaited: BTreeMap<GpuUuid, (ProcessName, OwnedFd)>,
    heritage: Option<Heritage>,
    early: Vec<UnixStream>,
    node: Option<PathBuf>,
}

enum Happening {
    Came(UnixStream),
    Died(GpuUuid),
    TimeIsOver,
    Stop,
}

impl Gathering {
    /// `false`: the process was asked to end.
    fn wait(&mut self, listener: &UnixListener, stop: &UnixStream, end: Instant) -> anyhow::Result<bool> {
        while !self.awaited.is_empty() {
            match self.next(listener, stop, end)? {
                Happening::Stop => return Ok(false),
                Happening::Came(stream) => self.take(stream),
                Happening::Died(gpu) => {
                    warn!(%gpu, "its mover has died too");
                    self.awaited.remove(&gpu);
                }
                Happening::TimeIsOver => self.give_up(),
            }
        }
        Ok(true)
    }

    fn next(&self, listener: &UnixListener, stop: &UnixStream, end: Instant) -> anyhow::Result<Happening> {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        fds.extend(self.awaited.values().map(|(_, process)| PollFd::new(process, PollFlags::IN)));
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        loop {
            match poll(&mut fds, Some(&left)) {
                Err(Errno::INTR) => {}
                Ok(0) => return Ok(Happening::TimeIsOver),
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        let dead = self.awaited.keys().zip(&fds[2..]).find(|(_, fd)| !fd.revents().is_empty());
        match dead {
            _ if !fds[0].revents().is_empty() => Ok(Happening::Stop),
            Some((gpu, _)) => Ok(Happening::Died(*gpu)),
            None => Ok(Happening::Came(listener.accept()?.0)),
        }
    }

    /// Who does not come is no mover any more.
    fn give_up(&mut self) {
        for (gpu, (name, process)) in std::mem::take(&mut self.awaited) {
            warn!(%gpu, pid = name.pid, "its mover does not come, and is killed");
            // It may be dead by now.
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }

    /// Ends the movers that came, and those that did not.
    fn end_all(&mut self) {
        let came = self.heritage.iter().flat_map(|heritage| heritage.movers.values());
        let processes = came.map(|orphan| &orphan.process);
        for process in processes.chain(self.awaited.values().map(|(_, process)| process)) {
            // It may be dead by now.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    fn take(&mut self, stream: UnixStream) {
        let Some(gpu) = self.mover_behind(&stream) else {
            if self.early.len() < EARLY {
                self.early.push(stream);
            }
            return;
        };
        let connection = Connection::from(stream);
        if let Err(error) =
            self.reunite(gpu, &connection).and_then(|orphan| self.enter(gpu, connection, orphan))
        {
            warn!(%gpu, "its mover is of no use: {error:#}");
            self.kill(gpu);
        }
    }

    /// A mover that has said something else than it should, or lacks something.
    fn kill(&mut self, gpu: GpuUuid) {
        if let Some((_, process)) = self.awaited.get(&gpu) {
            // Its death is awaited like any other.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// Whose mover has connected, by the kernel's word.
    fn mover_behind(&self, stream: &UnixStream) -> Option<GpuUuid> {
        let peer = rustix::net::sockopt::socket_peercred(stream).ok()?;
        let own = peer.uid == rustix::process::geteuid();
        let pid = peer.pid.as_raw_nonzero().get();
        let mut movers = self.awaited.iter();
        movers.find(|(_, (name, _))| own && name.pid == pid).map(|(gpu, _)| *gpu)
    }

    /// What a mover has.
    fn reunite(&mut self, gpu: GpuUuid, connection: &Connection) -> anyhow::Result<Holdings> {
        let limits = |fds| Limits { fds, patience: PATIENCE };
        let (first, mut fds) = connection.receive_within::<ToManager>(limits(1))?;
        let ToManager::Orphan(Orphan { gpu: own, heard }) = first else { bail!("it says something else") };
        ensure!(own == gpu, "it is another GPU's mover");
        let answer = self.heard_of(gpu, fds.pop()).map(|state| state.heard(heard));
        match answer {
            Ok(Ok(heard)) => connection.send(&Reunion::Resumed { heard }, &[])?,
            Ok(Err(reason)) => return refuse(connection, reason),
            Err(error) => return refuse(connection, format!("{error:#}")),
        }
        let mut holdings = Holdings { heard, pieces: BTreeMap::new(), slabs: BTreeMap::new(), index: None };
        loop {
            let (message, fds) = connection.receive_within::<FromMover>(limits(MAX_FDS))?;
            if !holdings.take(gpu, message, fds)? {
                return Ok(holdings);
            }
        }
    }

    /// What the state says of the mover; the first mover brings the state.
    fn heard_of(
        &mut self,
        gpu: GpuUuid,
        file: Option<OwnedFd>,
    ) -> anyhow::Result<&super::super::gpus::MoverState> {
        if self.heritage.is_none() {
            let file = StateFile::open(file.context("it brings no state file")?)?;
            let state: State<'static> = file.read(Record::State)?;
            let history = file.read(Record::History).unwrap_or_default();
            let node = self.node.clone();
            self.heritage = Some(Heritage { file, state, history, movers: BTreeMap::new(), node });
        }
        let heritage = self.heritage.as_ref().context("there is no state")?;
        let mover = heritage.state.movers.get(&gpu).context("its GPU is unknown")?;
        let name = self.awaited.get(&gpu).map(|(name, _)| *name);
        ensure!(mover.process() == name, "it is not this GPU's mover any more");
        Ok(mover)
    }

    fn enter(&mut self, gpu: GpuUuid, connection: Connection, holdings: Holdings) -> anyhow::Result<()> {
        let heritage = self.heritage.as_mut().context("there is no state")?;
        if let Some(missing) = missing(&heritage.state, gpu, &holdings.pieces) {
            bail!("it does not have {missing}");
        }
        let Holdings { heard, pieces, slabs, index } = holdings;
        let index = index.context("it has no index")?;
        let (name, process) = self.awaited.remove(&gpu).context("nobody waits for it")?;
        let orphan = Orphaned { connection, name, process, heard, pieces, slabs, index };
        heritage.movers.insert(gpu, orphan);
        Ok(())
    }
}

fn refuse<T>(connection: &Connection, reason: String) -> anyhow::Result<T> {
    // It ends with the connection too.
    let _ = connection.send(&Reunion::Refused { reason: reason.clone() }, &[]);
    bail!(reason)
}

/// A piece that the manager had a descriptor of, that nobody was told to destroy, and that the
/// mover does not have.
fn missing(state: &State<'_>, gpu: GpuUuid, found: &BTreeMap<PieceId, HeldPiece>) -> Option<PieceId> {
    let destroyed: Vec<PieceId> =
        state.movers.get(&gpu).map_or(Vec::new(), |mover| mover.destroys().collect());
    let wanted = state.pieces.iter().filter(|(piece, of, _)| *of == gpu && !destroyed.contains(piece));
    let lacks = |bytes: u64, piece| found.get(piece).is_none_or(|held| held.bytes != bytes);
    wanted.into_iter().find(|(piece, _, bytes)| lacks(*bytes, piece)).map(|(piece, ..)| *piece)
}

/// What a mover hands over.
struct Holdings {
    heard: u64,
    pieces: BTreeMap<PieceId, HeldPiece>,
    slabs: BTreeMap<u32, Arc<OwnedFd>>,
    index: Option<Arc<OwnedFd>>,
}

impl Holdings {
    /// Takes a part; `false`: it was the last.
    fn take(&mut self, gpu: GpuUuid, message: FromMover, fds: Vec<OwnedFd>) -> anyhow::Result<bool> {
        let FromMover::Holds { pieces, slabs, more } = message else { bail!("it says something else") };
        ensure!(fds.len() == pieces.len() + slabs.len() + usize::from(!more), "descriptors are missing");
        let mut fds = fds.into_iter().map(Arc::new);
        let pieces = pieces.into_iter().zip(&mut fds);
        self.pieces.extend(pieces.map(|((piece, bytes), fd)| (piece, HeldPiece { gpu, bytes, fd })));
        self.slabs.extend(slabs.into_iter().zip(&mut fds));
        self.index = fds.next().or(self.index.take());
        Ok(more)
    }
}
