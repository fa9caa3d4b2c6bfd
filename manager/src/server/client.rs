//! Clients: who they are by the kernel's word, and when they are gone.
//!
//! A process of a job is gone when it is dead, by its pidfd: the end of its socket says less (a
//! forked worker keeps sockets open, a lost socket leaves memory mapped). A command is gone when
//! its connection ends.

use super::Input;
use super::outbox::Outbox;
use anyhow::Context;
use crossbeam_channel::Sender;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_ffi::units::JobId;
use tidegate_ffi::wire::message::ToManager;
use tidegate_ffi::wire::page::Page;
use tidegate_ffi::wire::{Connection, Mapped, ReceiveError};
use tracing::{info, warn};

/// A connection of a client. Processes have the same number as sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientId(pub(crate) u64);

/// What a client turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It has not said.
    Unknown,
    /// A process of a job.
    Process(JobId),
    /// A `tidegate run`.
    Announcer(JobId),
}

/// A connected client.
pub(crate) struct Client {
    /// Its user, by the kernel's word.
    pub(crate) uid: u32,
    /// Its process id, by the kernel's word.
    pub(crate) pid: i32,
    /// That process, whatever becomes of its number.
    pub(crate) process: Arc<OwnedFd>,
    /// What it is.
    pub(crate) role: Role,
    /// Its way out.
    pub(crate) outbox: Outbox,
    /// Its control page.
    pub(crate) page: Option<Mapped<Page>>,
}

impl Client {
    /// Maps the control page that came with its hello.
    pub(crate) fn open_page(&mut self, file: &OwnedFd) -> Result<(), String> {
        if self.page.is_some() {
            return Err("it said hello twice".into());
        }
        self.page = Some(Page::open(file.as_fd()).map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Ends the process.
    pub(crate) fn kill(&self) {
        if let Err(error) = pidfd_send_signal(&self.process, Signal::KILL) {
            warn!(pid = self.pid, %error, "an expelled process cannot be killed");
        }
    }

    /// Raises a job's peaks, by class, to the most live bytes that this process of it published,
    /// over all its GPUs.
    pub(crate) fn raise_peaks(&self, peaks: &mut [u64; 2]) {
        let rows = self.page.iter().flat_map(|page| &page.tenants);
        let published = rows.fold([0, 0], |sum: [u64; 2], row| {
            [0, 1].map(|class| sum[class].saturating_add(row.peak_bytes[class].load(Ordering::Relaxed)))
        });
        for (peak, published) in peaks.iter_mut().zip(published) {
            *peak = (*peak).max(published);
        }
    }
}

/// Accepts clients for as long as the process lives.
pub(super) fn accept(listener: UnixListener, inputs: Sender<Input>) -> anyhow::Result<()> {
    let next = AtomicU64::new(1);
    std::thread::Builder::new().name("accept".into()).spawn(move || {
        for stream in listener.incoming() {
            let id = ClientId(next.fetch_add(1, Ordering::Relaxed));
            let welcomed =
                stream.map_err(anyhow::Error::from).and_then(|stream| welcome(id, stream, &inputs));
            if let Err(error) = welcomed {
                warn!(error = format!("{error:#}"), "a client could not be welcomed");
            }
        }
    })?;
    Ok(())
}

fn welcome(id: ClientId, stream: UnixStream, inputs: &Sender<Input>) -> anyhow::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&stream).context("asking who connected")?;
    let pidfd = pidfd_open(peer.pid, PidfdFlags::empty()).context("the client is gone already")?;
    let pidfd = Arc::new(pidfd);
    let connection = Arc::new(Connection::from(stream));
    let outbox = Outbox::start(connection.clone())?;
    let client = Client {
        uid: peer.uid.as_raw(),
        pid: peer.pid.as_raw_nonzero().get(),
        process: pidfd.clone(),
        role: Role::Unknown,
        outbox,
        page: None,
    };
    let inputs = inputs.clone();
    inputs.send(Input::Connected(id, client)).context("the manager ends")?;
    std::thread::Builder::new().name("reader".into()).spawn(move || {
        read_all(id, &connection, &pidfd, &inputs);
        // The core has ended already if nobody listens.
        let _ = inputs.send(Input::Gone(id));
    })?;
    Ok(())
}

/// Reads until the client is gone.
fn read_all(id: ClientId, connection: &Connection, pidfd: &OwnedFd, inputs: &Sender<Input>) {
    let mut is_process = false;
    while wait_for_word(connection, pidfd) {
        match connection.receive::<ToManager>() {
            Ok((message, fds)) => {
                is_process |= matches!(message, ToManager::Shim(_));
                if inputs.send(Input::Said(id, message, fds)).is_err() {
                    return;
                }
            }
            Err(error) => {
                if !matches!(error, ReceiveError::Closed) {
                    info!(client = id.0, %error, "a client's connection ends");
                }
                break;
            }
        }
    }
    connection.shut_down();
    if is_process {
        wait_for_death(pidfd);
    }
}

/// Waits until there is something to read; `false`: the process is dead and has said all.
fn wait_for_word(connection: &Connection, pidfd: &OwnedFd) -> bool {
    loop {
        let mut fds = [PollFd::new(connection, PollFlags::IN), PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[0].revents().is_empty() => return true,
            Ok(_) if !fds[1].revents().is_empty() => return false,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn wait_for_death(pidfd: &OwnedFd) {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    while let Ok(0) | Err(rustix::io::Errno::INTR) = poll(&mut fds, None) {}
}
