//! Clients: who they are by the kernel's word, and when they are gone.
//!
//! A process of a job is gone when it is dead, by its pidfd: the end of its socket says less (a
//! forked worker keeps sockets open, a lost socket leaves memory mapped). It is gone, too, when it has
//! become another program (`execve`), which has none of its memory and none of its connections. Until
//! then it may come back: over another connection, whose reader then speaks for the session that it
//! took up. A command is gone when its connection ends.

use super::Input;
use super::conversation::Conversation;
use super::crowd::Crowd;
use super::descriptors::Shares;
use super::legacy::ClientState;
use super::outbox::Outbox;
use crate::process::{Image, ProcessName, dies_within, effective_uid, is_stopped, wait_for_death};
use anyhow::Context;
use crossbeam_channel::{Sender, bounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Duration;
use tidegate_ffi::os;
use tidegate_ffi::units::{Class, JobId, SessionId};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::live::{LiveMapError, LiveRange};
use tidegate_ffi::wire::message::{FromShim, ToManager, ToShim};
use tidegate_ffi::wire::page::{MAX_TENANTS, Page, TenantRow};
use tidegate_ffi::wire::{
    CodecError, Connection, Limits, Mapped, ReceiveError, SharedMemoryError, live, sealed_size,
};
use tracing::{info, warn};

/// A connection of a client. Processes have the same number as sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ClientId(pub(crate) u64);

/// What a client turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// It has not said.
    Unknown,
    /// A process of a job.
    Process(JobId),
    /// A `tidegate run`.
    Announcer(JobId),
}

/// What came with a message of a client.
pub(crate) struct Brought {
    /// Files, but for live maps.
    pub(crate) files: Vec<OwnedFd>,
    /// Live maps, as far as they could be read.
    pub(crate) live_maps: Vec<Result<Vec<LiveRange>, LiveMapError>>,
}

impl Brought {
    /// What lies in the files of a message. Live maps are read here, on the thread that reads from the client: a large one takes
    /// the core some milliseconds.
    pub(crate) fn with(message: &ToManager, files: Vec<OwnedFd>) -> Self {
        match message {
            ToManager::Shim(Numbered { message: FromShim::Drained(_), .. }) => {
                Self { files: Vec::new(), live_maps: files.into_iter().map(live::read).collect() }
            }
            _ => Self { files, live_maps: Vec::new() },
        }
    }
}

/// A connected client.
pub(crate) struct Client {
    /// What outlives its connection.
    pub(crate) conversation: Conversation,
    /// Its connection, by the number that it was accepted with.
    pub(crate) connection: ClientId,
    /// What its process is called; `None` in tests.
    pub(crate) name: Option<ProcessName>,
    /// The program that its process was when it connected, where the kernel says so.
    pub(crate) image: Option<Image>,
    /// Its process, whatever becomes of its number.
    pub(crate) process: Arc<OwnedFd>,
    /// What it is.
    pub(crate) role: Role,
    /// Its way out, over the last connection that it had.
    pub(crate) outbox: Option<Outbox>,
    /// Its control page.
    pub(crate) page: Option<Mapped<Page>>,
    /// It broke the protocol, or was refused: nothing that it says counts any more.
    pub(crate) expelled: bool,
}

impl Client {
    /// A client of a manager that has died, of whom one hears only if it comes back.
    pub(crate) fn inherited(state: ClientState<'static>, process: Arc<OwnedFd>) -> Self {
        Self {
            conversation: state.conversation.into_owned(),
            connection: state.id,
            name: Some(state.name),
            image: state.image,
            process,
            role: state.role,
            outbox: None,
            page: None,
            expelled: state.expelled,
        }
    }

    /// Whether its connection has not ended.
    pub(crate) fn is_connected(&self) -> bool {
        self.outbox.as_ref().is_some_and(Outbox::is_connected)
    }

    /// Whether its process has become another program since.
    pub(crate) fn is_replaced(&self) -> bool {
        self.image.is_some_and(|image| image.is_gone_from(self.conversation.pid))
    }

    /// Says a message of the conversation, with its file descriptors. Without a connection it is
    /// said when there is one.
    pub(crate) fn say(&mut self, message: ToShim, fds: Vec<Arc<OwnedFd>>) {
        match self.conversation.say(message) {
            Ok(letter) => self.send(&letter, fds),
            Err(error) => self.part(&error.to_string()),
        }
    }

    /// Ends the connection for good: the conversation cannot go on over another one.
    pub(crate) fn part(&mut self, reason: &str) {
        warn!(client = self.connection.0, reason, "a client loses its connection");
        self.conversation.give_up();
        self.disconnect();
    }

    /// Sends what is no new message of the conversation.
    pub(crate) fn send<M: Serialize>(&mut self, message: &M, fds: Vec<Arc<OwnedFd>>) {
        let sent = self.outbox.as_ref().is_none_or(|outbox| outbox.send(message, fds));
        if !sent {
            // It could not be sent over any other connection either.
            self.conversation.give_up();
        }
    }

    /// Ends the connection once everything is sent. Nothing that the client says counts any more.
    pub(crate) fn expel(&mut self) {
        self.expelled = true;
        if let Some(outbox) = &self.outbox {
            outbox.close();
        }
    }

    /// Ends the connection at once: the process comes back over another one.
    pub(crate) fn disconnect(&self) {
        if let Some(outbox) = &self.outbox {
            outbox.lose();
        }
    }

    /// Maps the control page that came with its hello.
    pub(crate) fn open_page(&mut self, file: &OwnedFd) -> Result<(), NoPage> {
        self.page = Some(Page::open(file.as_fd())?);
        Ok(())
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        dies_within(&self.process, Duration::ZERO)
    }

    /// Whether the process is stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        is_stopped(self.conversation.pid)
    }

    /// Whether the process still belongs to the user that connected. A process that died before its connection was welcomed
    /// may have left its number to another user's process.
    pub(crate) fn is_of_its_user(&self) -> bool {
        effective_uid(self.conversation.pid) == Some(self.conversation.uid)
    }

    /// Kills the process, unless it is another program by now, or another user's.
    pub(crate) fn kill(&self) {
        let pid = self.conversation.pid;
        if self.is_replaced() || !self.is_of_its_user() {
            info!(pid, "an expelled process is another program by now, and is not killed");
            return;
        }
        if let Err(error) = pidfd_send_signal(&self.process, Signal::KILL) {
            warn!(pid, %error, "an expelled process cannot be killed");
        }
    }

    /// Adds what this process of a job has published on its page to what is known of the job.
    pub(crate) fn add_published(&self, known: &mut Published) {
        let Some(page) = &self.page else { return };
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let sum = |number: fn(&TenantRow) -> &AtomicU64| {
            page.tenants.iter().fold(0, |sum: u64, row| sum.saturating_add(read(number(row))))
        };
        let Published { peak_bytes: [persistent, temporary], labelled_bytes, boundaries } = known;
        *persistent = (*persistent).max(sum(|row| &row.peak_bytes[Class::Persistent.index()]));
        *temporary = (*temporary).max(sum(|row| &row.peak_bytes[Class::Temporary.index()]));
        *labelled_bytes = (*labelled_bytes).max(sum(|row| &row.labelled_bytes));
        *boundaries = (*boundaries).max(read(&page.boundaries));
    }
}

/// What the processes of a job have published: of each the highest, of the one that has most.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Published {
    /// Bytes in allocations at once, by class.
    pub(crate) peak_bytes: [u64; 2],
    /// Live bytes at once that are called persistent.
    pub(crate) labelled_bytes: u64,
    /// Boundaries.
    pub(crate) boundaries: u64,
}

/// Why a control page is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPage {
    /// It is none.
    #[error("its control page is none: {0}")]
    Wrong(SharedMemoryError),
    /// The manager cannot have it now: no fault of the process's, which may come again.
    #[error("its control page cannot be mapped: {0}")]
    NotNow(Errno),
}

impl From<SharedMemoryError> for NoPage {
    fn from(error: SharedMemoryError) -> Self {
        match error {
            SharedMemoryError::System(errno) => Self::NotNow(errno),
            wrong => Self::Wrong(wrong),
        }
    }
}

/// How long a client may take to say the first thing, to finish a message, or to read one.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who cannot be accepted is tried again so much later, or when another client is gone.
const BREATH: Duration = Duration::from_millis(20);
/// So often a process without a connection is looked at: no event tells that it has become another program.
const TICK: Duration = Duration::from_secs(1);
/// The most file descriptors that a message of a client brings: one live map for each tenant.
const MOST_FDS: usize = MAX_TENANTS;
/// The largest file that a message of a client brings, in bytes.
const LARGEST_FILE: u64 = live::MAX_BYTES;

/// What the core makes of a client when it has taken in all that it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Whom its connection speaks for.
    pub(crate) id: ClientId,
    /// It is a process of a job.
    pub(crate) process: bool,
    /// It broke the protocol, or was refused: its connection ends.
    pub(crate) expelled: bool,
}

/// Accepts clients for as long as the process lives: first those who came early. They are numbered
/// from `first`.
pub(super) fn accept(
    listener: UnixListener,
    early: Vec<UnixStream>,
    first: u64,
    shares: Shares,
    inputs: Sender<Input>,
) -> anyhow::Result<()> {
    let next = AtomicU64::new(first);
    let crowd = Arc::new(Crowd::of(shares));
    os::start_thread(Builder::new().name("accept".into()), move || {
        let come = std::iter::repeat_with(|| os::accept(&listener));
        let mut was_welcomed = true;
        for stream in early.into_iter().map(Ok).chain(come) {
            let id = ClientId(next.fetch_add(1, Ordering::Relaxed));
            let refused = stream.is_err();
            let welcomed =
                stream.map_err(anyhow::Error::from).and_then(|stream| welcome(id, stream, &crowd, &inputs));
            match welcomed {
                Ok(()) => was_welcomed = true,
                // Of many in a row the first is enough.
                Err(error) if std::mem::take(&mut was_welcomed) => {
                    warn!(error = format!("{error:#}"), "a client could not be welcomed");
                }
                Err(error) => info!(error = format!("{error:#}"), "a client could not be welcomed"),
            }
            if refused {
                // Out of file descriptors, say: a client that goes has some.
                crowd.wait_for_a_departure(BREATH);
            }
        }
    })?;
    Ok(())
}

/// Tells when a process that has no connection is dead, or another program than it was.
pub(super) fn watch(
    id: ClientId,
    process: Arc<OwnedFd>,
    pid: i32,
    image: Option<Image>,
    inputs: Sender<Input>,
) -> std::io::Result<()> {
    os::start_thread(Builder::new().name("watcher".into()), move || {
        wait_until_gone(&process, pid, image);
        // The core has ended already if nobody listens.
        let _ = inputs.send(Input::Gone(id));
    })?;
    Ok(())
}

fn welcome(
    id: ClientId,
    stream: UnixStream,
    crowd: &Arc<Crowd>,
    inputs: &Sender<Input>,
) -> anyhow::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&stream).context("asking who connected")?;
    let (uid, pid) = (peer.uid.as_raw(), peer.pid.as_raw_nonzero().get());
    let place = crowd.admit(uid, pid).context("it has too many connections")?;
    let pidfd = os::process_handle(peer.pid).context("opening its process")?;
    let pidfd = Arc::new(pidfd);
    let connection = Arc::new(Connection::from(stream));
    let outbox = Outbox::for_client(connection.clone(), PATIENCE)?;
    let conversation = Conversation::begin(SessionId(id.0), uid, pid).context("no random numbers")?;
    let image = Image::of(pid);
    let client = Client {
        conversation,
        connection: id,
        name: Some(ProcessName::of(pid).context("asking its process's name")?),
        image,
        process: pidfd.clone(),
        role: Role::Unknown,
        outbox: Some(outbox),
        page: None,
        expelled: false,
    };
    let inputs = inputs.clone();
    os::start_thread(Builder::new().name("reader".into()), move || {
        // The core has ended already if nobody listens.
        let _ = inputs.send(Input::Connected(id, Box::new(client)));
        if read_all(id, &connection, &pidfd, &inputs) {
            wait_until_gone(&pidfd, pid, image);
        }
        let _ = inputs.send(Input::Gone(id));
        drop(place);
    })?;
    Ok(())
}

/// Reads until the client is gone. The next message is read when the core has taken in the last
/// one: so a client has one message in the core's queue, whatever it sends, and all clients take
/// turns (I10). Whether the process's end is to be waited for: who connected for a session does that,
/// who took it up does not.
fn read_all(id: ClientId, connection: &Connection, pidfd: &OwnedFd, inputs: &Sender<Input>) -> bool {
    let (heard, standing) = bounded(1);
    let mut stands = Standing { id, process: false, expelled: false };
    let mut patience = Some(PATIENCE);
    while !stands.expelled && wait_for_word(connection, pidfd, patience.take()) {
        match listen(connection) {
            Ok((message, fds)) => {
                let said = inputs.send(Input::said(stands.id, message, fds)).is_ok();
                if !said || inputs.send(Input::Heard(stands.id, heard.clone())).is_err() {
                    return false;
                }
                let Ok(now) = standing.recv() else { return false };
                stands = now;
            }
            Err(error) => {
                if !matches!(error, ReceiveError::Closed) {
                    info!(client = id.0, %error, "a client's connection ends");
                }
                break;
            }
        }
    }
    if stands.expelled {
        // Its outbox tells it why, and ends the connection.
        wait_for_end(connection, pidfd);
    }
    connection.shut_down();
    stands.process && stands.id == id
}

/// Waits until a process is dead, or another program.
fn wait_until_gone(process: &OwnedFd, pid: i32, image: Option<Image>) {
    let Some(image) = image else { return wait_for_death(process) };
    while !image.is_gone_from(pid) && !dies_within(process, TICK) {}
}

/// The next message. Only files reach the core that its message takes, and that are closed at once: other files may take for ever,
/// and large ones take long.
fn listen(connection: &Connection) -> Result<(ToManager, Vec<OwnedFd>), ReceiveError> {
    let (message, fds) = connection.receive_within(Limits { fds: MOST_FDS, patience: PATIENCE })?;
    let fault = |fault: &str| ReceiveError::Codec(CodecError::Malformed(fault.into()));
    if fds.len() > most_files(&message) {
        return Err(fault("it brought files that its message does not take"));
    }
    let is_small = |fd: &OwnedFd| sealed_size(fd.as_fd()).is_ok_and(|size| size <= LARGEST_FILE);
    match fds.iter().all(is_small) {
        true => Ok((message, fds)),
        false => Err(fault("it brought a file without seals, or a large one")),
    }
}

/// How many files a message may bring.
fn most_files(message: &ToManager) -> usize {
    match message {
        // A live map for each tenant.
        ToManager::Shim(Numbered { message: FromShim::Drained(drained), .. }) => {
            drained.tenants.len().min(MOST_FDS)
        }
        // The control page.
        ToManager::Shim(Numbered { message: FromShim::Hello(_), .. }) | ToManager::Resume(_) => 1,
        // The state file.
        ToManager::Orphan(_) => 1,
        ToManager::Shim(_) | ToManager::Command(_) => 0,
    }
}

/// Waits until there is something to read; `false`: the process is dead and has said all, or its
/// time is over.
fn wait_for_word(connection: &Connection, pidfd: &OwnedFd, patience: Option<Duration>) -> bool {
    let patience = patience.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: 0 });
    loop {
        let mut fds = [PollFd::new(connection, PollFlags::IN), PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut fds, patience.as_ref()) {
            Ok(_) if !fds[0].revents().is_empty() => return true,
            Err(Errno::INTR) => {}
            _ => return false,
        }
    }
}

fn wait_for_end(connection: &Connection, pidfd: &OwnedFd) {
    let mut fds = [PollFd::new(connection, PollFlags::empty()), PollFd::new(pidfd, PollFlags::IN)];
    while let Ok(0) | Err(Errno::INTR) = poll(&mut fds, None) {}
}
