//! A manager that starts gathers what the one before it left: it waits for the movers, and takes
//! what they kept.
//!
//! ```text
//! mover (named in the will) ─ Orphan + state file ─► read, once
//!                          ◄─ Resumed ─────────────
//!                          ── Holds … Holds ───────► pieces, slabs, index
//!                          ── Numbered … ──────────► what the dead manager had not heard
//! ```
//! Whoever else connects meanwhile waits until the manager serves. A mover counts only if it is the
//! very process that the will and the state name, of this user, and has every piece that the state
//! says it has; else it is as if it were dead, and its GPU is lost. Without a whole state nobody's
//! memory can be known: the movers are refused, and the manager starts afresh. A mover that dies before it has said
//! everything is as if it had not come: which of its orders were carried out nobody could tell the next one.

#![forbid(unsafe_code)]

use super::super::descriptors::Shares;
use super::super::gpus::{HeldPiece, Orphaned};
use super::super::status::EndedJob;
use super::{Record, State, StateFile, WillFile};
use crate::mover::progress::Reader;
use crate::process::ProcessName;
use crate::scheduler::Config;
use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_ffi::os;
use tidegate_ffi::units::{GpuUuid, PieceId};
use tidegate_ffi::wire::line::{MOST_UNHEARD, Numbered};
use tidegate_ffi::wire::message::{FromMover, Orphan, Reunion, ToManager};
use tidegate_ffi::wire::{Connection, Limits, MAX_FDS, ReceiveError, SendError};
use tracing::{info, warn};

/// How long one message of a mover may take.
const PATIENCE: Duration = Duration::from_secs(10);

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

    /// How its manager was told to share.
    pub fn config(&self) -> &Config {
        self.state.scheduler.config()
    }
}

/// What came to a socket before its manager served.
pub struct Gathered {
    /// What is inherited; `None`: there is nothing, or nobody who could say what.
    pub heritage: Option<Heritage>,
    /// Clients that wait.
    pub early: Vec<UnixStream>,
    /// The directories of software GPUs that no manager shares any more, though jobs may use them still.
    pub abandoned: Vec<PathBuf>,
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
    let Some(will) = WillFile::load(socket) else {
        return Ok(Gathered { heritage: None, early: Vec::new(), abandoned: Vec::new() });
    };
    let mut abandoned = will.abandoned.clone();
    let (node, places) = (will.node.clone(), Shares::take().clients);
    info!(movers = will.movers.len(), "a manager has died: waiting for its movers");
    let awaited = will.living_movers().into_iter().map(|(gpu, name, process)| (gpu, (name, process)));
    let mut gathering =
        Gathering { awaited: awaited.collect(), heritage: None, early: Vec::new(), places, node: will.node };
    if !gathering.wait(listener, stop, Instant::now() + patience)? {
        gathering.end_all();
        WillFile::remove(socket);
        bail!("it was asked to end before it was ready");
    }
    let (heritage, early) = (gathering.heritage, gathering.early);
    abandoned.extend(node.filter(|_| heritage.is_none()));
    Ok(Gathered { heritage, early, abandoned })
}

struct Gathering {
    awaited: BTreeMap<GpuUuid, (ProcessName, OwnedFd)>,
    heritage: Option<Heritage>,
    early: Vec<UnixStream>,
    /// So many clients may wait.
    places: usize,
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
            None => Ok(Happening::Came(os::accept(listener)?)),
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
            if self.early.len() < self.places {
                self.early.push(stream);
            }
            return;
        };
        let connection = Connection::from(stream);
        let entered = self.reunite(gpu, &connection).and_then(|orphan| self.enter(gpu, connection, orphan));
        match entered {
            Ok(()) => {}
            // The mover has everything still, and comes again.
            Err(error) if is_lack(&error) => warn!(%gpu, "its mover could not be heard: {error:#}"),
            Err(error) => {
                warn!(%gpu, "its mover is of no use: {error:#}");
                self.kill(gpu);
            }
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
        let of_mover = match answer {
            Ok(Ok(heard)) => heard,
            Ok(Err(reason)) => return refuse(connection, reason),
            Err(error) => return refuse(connection, format!("{error:#}")),
        };
        connection.send(&Reunion::Resumed { heard: of_mover }, &[])?;
        let mut holdings = Holdings { heard, ..Holdings::default() };
        let said = loop {
            let (message, fds) = connection.receive_within::<FromMover>(limits(MAX_FDS))?;
            if let Some(said) = holdings.take(gpu, message, fds)? {
                break said;
            }
        };
        ensure!(said.saturating_sub(of_mover) <= MOST_UNHEARD as u64, "it has said more than can be unheard");
        for _ in of_mover..said {
            let parcel = connection.receive_parcel_within::<Numbered<FromMover>>(limits(MAX_FDS))?;
            // What was made is among what it holds.
            let is_held = matches!(parcel.message.message, FromMover::Made { .. });
            ensure!(
                parcel.lost == 0 || is_held,
                "the manager has no file descriptors left for what it holds"
            );
            holdings.unheard.push((parcel.message, parcel.fds));
        }
        Ok(holdings)
    }

    /// What the state says of the mover; the first mover brings the state.
    fn heard_of(
        &mut self,
        gpu: GpuUuid,
        file: Option<OwnedFd>,
    ) -> anyhow::Result<&super::super::gpus::MoverState> {
        if self.heritage.is_none() {
            let file = StateFile::open(file.context("it brings no state file")?)?;
            let mut state: State<'static> = file.read(Record::State)?;
            state.load_long_parts(&file)?;
            state.scheduler.check().map_err(|wrong| anyhow::anyhow!("the state is wrong: {wrong}"))?;
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
        let Holdings { heard, unheard, pieces, slabs, index, progress } = holdings;
        let index = index.context("it has no index")?;
        let progress = progress.context("it does not show how far it has come")?;
        let (name, process) = self.awaited.remove(&gpu).context("nobody waits for it")?;
        let orphan = Orphaned { connection, name, process, heard, unheard, pieces, slabs, index, progress };
        heritage.movers.insert(gpu, orphan);
        Ok(())
    }
}

/// Whether the manager, not the mover, is the one that lacks something: be it for a moment.
fn is_lack(error: &anyhow::Error) -> bool {
    let of_receiving =
        |error: &ReceiveError| matches!(error, ReceiveError::NoDescriptors { .. } | ReceiveError::Socket(_));
    error.downcast_ref().is_some_and(of_receiving)
        || error.downcast_ref().is_some_and(|error| matches!(error, SendError::Socket(_)))
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
#[derive(Default)]
struct Holdings {
    heard: u64,
    unheard: Vec<(Numbered<FromMover>, Vec<OwnedFd>)>,
    pieces: BTreeMap<PieceId, HeldPiece>,
    slabs: BTreeMap<u32, Arc<OwnedFd>>,
    index: Option<Arc<OwnedFd>>,
    progress: Option<Reader>,
}

impl Holdings {
    /// Takes a part; after the last, the number of the last message that the mover has said.
    fn take(&mut self, gpu: GpuUuid, message: FromMover, fds: Vec<OwnedFd>) -> anyhow::Result<Option<u64>> {
        let FromMover::Holds { pieces, slabs, more, said } = message else { bail!("it says something else") };
        ensure!(fds.len() == pieces.len() + slabs.len() + 2 * usize::from(!more), "descriptors are missing");
        let mut fds = fds.into_iter().map(Arc::new);
        let pieces = pieces.into_iter().zip(&mut fds);
        self.pieces.extend(pieces.map(|((piece, bytes), fd)| (piece, HeldPiece { gpu, bytes, fd })));
        self.slabs.extend(slabs.into_iter().zip(&mut fds));
        self.index = fds.next().or(self.index.take());
        self.progress = fds.next().map(|page| Reader::open(page.as_fd())).transpose()?;
        Ok((!more).then_some(said))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::gpus::MoverState;
    use super::super::super::stage;
    use super::*;
    use crate::mover::progress;
    use std::borrow::Cow;
    use std::thread::JoinHandle;
    use tempfile::TempDir;
    use tidegate_ffi::units::Step;
    use tidegate_ffi::wire::message::ToMover;

    const GPU: GpuUuid = stage::GPU;

    /// A place where a manager has died, whose mover this process is.
    struct Place {
        directory: TempDir,
        listener: UnixListener,
        file: StateFile,
        stop: (UnixStream, UnixStream),
    }

    impl Place {
        fn new(pieces: &[u64], orders: Vec<ToMover>) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let socket = directory.path().join("socket");
            let own = ProcessName::own().unwrap();
            WillFile::new(vec![(GPU, own)], Some("/node".into())).write(&socket).unwrap();
            let mut file = StateFile::create().unwrap();
            let server = stage::server();
            let mut state = State::of(&server);
            state.movers.insert(GPU, Cow::Owned(MoverState::of(own, orders)));
            state.pieces = pieces.iter().map(|piece| (PieceId(*piece), GPU, 4096)).collect();
            file.write(Record::State, &state).unwrap();
            let listener = UnixListener::bind(&socket).unwrap();
            Self { directory, listener, file, stop: UnixStream::pair().unwrap() }
        }

        fn socket(&self) -> PathBuf {
            self.directory.path().join("socket")
        }

        fn gather(&self, patience: Duration) -> anyhow::Result<Gathered> {
            gather(&self.socket(), &self.listener, &self.stop.0, patience)
        }

        /// A mover that comes and hands over these pieces; what it is answered.
        fn mover(&self, heard: u64, pieces: &[u64]) -> JoinHandle<Reunion> {
            self.mover_with_news(heard, pieces, 0, 0)
        }

        /// One that has `unheard` things to say besides, and says the first `again` of them before it dies.
        fn mover_with_news(
            &self,
            heard: u64,
            pieces: &[u64],
            unheard: u64,
            again: u64,
        ) -> JoinHandle<Reunion> {
            let connection = Connection::connect(&self.socket()).unwrap();
            let state = self.file.share().unwrap();
            let names: Vec<_> = pieces.iter().map(|piece| (PieceId(*piece), 4096)).collect();
            std::thread::spawn(move || {
                let orphan = ToManager::Orphan(Orphan { gpu: GPU, heard });
                connection.send(&orphan, &[state.as_fd()]).unwrap();
                let (answer, _) = connection.receive::<Reunion>().unwrap();
                if let Reunion::Resumed { .. } = answer {
                    let fds = vec![state.as_fd(); names.len()];
                    let holds =
                        FromMover::Holds { pieces: names, slabs: Vec::new(), more: true, said: unheard };
                    connection.send(&holds, &fds).unwrap();
                    let (pieces, slabs) = (Vec::new(), vec![3]);
                    let last = FromMover::Holds { pieces, slabs, more: false, said: unheard };
                    let page = progress::page().unwrap();
                    connection.send(&last, &[state.as_fd(), state.as_fd(), page.as_fd()]).unwrap();
                    for number in 1..=again {
                        let message = FromMover::Heard;
                        connection.send(&Numbered { number, heard, message }, &[]).unwrap();
                    }
                }
                answer
            })
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_mover_that_comes_hands_over_what_it_has() {
        let place = Place::new(&[5, 6], Vec::new());
        let mover = place.mover(0, &[5, 6, 7]);
        let heritage = place.gather(LONG).unwrap().heritage.unwrap();
        assert_eq!(mover.join().unwrap(), Reunion::Resumed { heard: 0 });
        let orphan = &heritage.movers[&GPU];
        assert_eq!((orphan.pieces.len(), orphan.slabs.len(), orphan.heard), (3, 1, 0));
        assert_eq!((heritage.gpus(), heritage.node()), (vec![GPU], Some(Path::new("/node"))));
    }

    #[test]
    fn a_mover_counts_when_it_has_said_all_that_was_not_heard() {
        let place = Place::new(&[5], Vec::new());
        let mover = place.mover_with_news(0, &[5], 3, 3);
        let heritage = place.gather(LONG).unwrap().heritage.unwrap();
        mover.join().unwrap();
        let told: Vec<u64> = heritage.movers[&GPU].unheard.iter().map(|(letter, _)| letter.number).collect();
        assert_eq!(told, [1, 2, 3]);
    }

    #[test]
    fn who_dies_before_it_has_said_everything_does_not_count() {
        let place = Place::new(&[5], Vec::new());
        let mover = place.mover_with_news(0, &[5], 3, 2);
        let own = ProcessName::own().unwrap();
        let awaited = BTreeMap::from([(GPU, (own, own.open().unwrap()))]);
        let mut gathering = Gathering { awaited, heritage: None, early: Vec::new(), places: 8, node: None };
        let connection = Connection::from(place.listener.accept().unwrap().0);
        assert!(gathering.reunite(GPU, &connection).is_err());
        assert_eq!(mover.join().unwrap(), Reunion::Resumed { heard: 0 });
    }

    #[test]
    fn a_mover_that_knows_another_conversation_is_refused() {
        let place = Place::new(&[], Vec::new());
        let mover = place.mover(9, &[]);
        let reason = refusal(&place, mover);
        assert!(reason.contains("message 9"), "{reason}");
    }

    #[test]
    fn a_mover_that_was_not_handed_everything_is_refused() {
        let adopt = ToMover::Adopt { pieces: Vec::new(), slabs: Vec::new(), again: None };
        let place = Place::new(&[], vec![adopt]);
        let mover = place.mover(0, &[]);
        let reason = refusal(&place, mover);
        assert!(reason.contains("has not got all"), "{reason}");
    }

    /// Lets a mover come without killing it; why it is refused.
    fn refusal(place: &Place, mover: JoinHandle<Reunion>) -> String {
        let own = ProcessName::own().unwrap();
        let awaited = BTreeMap::from([(GPU, (own, own.open().unwrap()))]);
        let mut gathering = Gathering { awaited, heritage: None, early: Vec::new(), places: 8, node: None };
        let connection = Connection::from(place.listener.accept().unwrap().0);
        gathering.reunite(GPU, &connection).err().expect("it is refused");
        match mover.join().unwrap() {
            Reunion::Refused { reason } => reason,
            resumed => panic!("{resumed:?}"),
        }
    }

    #[test]
    fn who_lacks_a_piece_that_nobody_destroys_lacks_it() {
        let place = Place::new(
            &[5, 6],
            vec![ToMover::Destroy { step: Step(1), pieces: vec![PieceId(6)], watched_for_leaks: false }],
        );
        let state: State<'static> = place.file.read(Record::State).unwrap();
        let piece = |bytes| HeldPiece { gpu: GPU, bytes, fd: Arc::new(place.file.share().unwrap()) };
        let found = |bytes| BTreeMap::from([(PieceId(5), piece(bytes))]);
        assert_eq!(missing(&state, GPU, &found(4096)), None);
        assert_eq!(missing(&state, GPU, &found(8192)), Some(PieceId(5)));
        assert_eq!(missing(&state, GPU, &BTreeMap::new()), Some(PieceId(5)));
        assert_eq!(missing(&state, GpuUuid([9; 16]), &BTreeMap::new()), None);
    }

    #[test]
    fn without_a_will_there_is_nothing_to_wait_for() {
        let place = Place::new(&[], Vec::new());
        WillFile::remove(&place.socket());
        assert!(place.gather(LONG).unwrap().heritage.is_none());
    }

    #[test]
    fn who_is_asked_to_end_while_it_waits_ends() {
        let place = Place::new(&[], Vec::new());
        let own = ProcessName::own().unwrap();
        let awaited = BTreeMap::from([(GPU, (own, own.open().unwrap()))]);
        let mut gathering = Gathering { awaited, heritage: None, early: Vec::new(), places: 8, node: None };
        std::io::Write::write_all(&mut &place.stop.1, &[1]).unwrap();
        assert!(!gathering.wait(&place.listener, &place.stop.0, Instant::now() + LONG).unwrap());
    }

    #[test]
    fn others_wait_until_the_manager_serves_and_the_dead_are_not_waited_for() {
        let place = Place::new(&[], Vec::new());
        let mut mover =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let name = ProcessName::of(mover.id() as i32).unwrap();
        let awaited = BTreeMap::from([(GPU, (name, name.open().unwrap()))]);
        let mut gathering = Gathering { awaited, heritage: None, early: Vec::new(), places: 8, node: None };
        let _client = UnixStream::connect(place.socket()).unwrap();
        gathering.take(place.listener.accept().unwrap().0);
        assert_eq!(gathering.early.len(), 1);
        mover.kill().unwrap();
        assert!(gathering.wait(&place.listener, &place.stop.0, Instant::now() + LONG).unwrap());
        assert!(gathering.heritage.is_none());
        mover.wait().unwrap();
    }

    #[test]
    fn who_does_not_come_is_killed() {
        let place = Place::new(&[], Vec::new());
        let mut mover =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let name = ProcessName::of(mover.id() as i32).unwrap();
        WillFile::new(vec![(GPU, name)], Some("/node".into())).write(&place.socket()).unwrap();
        let gathered = place.gather(Duration::from_millis(10)).unwrap();
        assert!(gathered.heritage.is_none() && gathered.abandoned == [Path::new("/node")]);
        assert!(!mover.wait().unwrap().success());
    }
}
