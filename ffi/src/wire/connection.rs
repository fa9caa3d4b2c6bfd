//! One end of a Unix stream socket that carries frames and file descriptors.

use super::codec::{self, CodecError, Header, MAX_FDS};
use super::trust;
use crate::os;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Serialize, de::DeserializeOwned};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// One end of a connection. Reading and writing go through `&self`: one thread may read while
/// another writes; two threads that write must take turns (their frames would mix).
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
}

/// What a stranger may ask of who reads from it, and of who writes to it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most file descriptors that one message may bring.
    pub fds: usize,
    /// How long one message may take, from its first byte to its last.
    pub patience: Duration,
}

/// A message that has come, with what the process could take of its file descriptors.
#[derive(Debug)]
pub struct Parcel<M> {
    /// The message.
    pub message: M,
    /// Its descriptors (close-on-exec), in order, without the last `lost` of them.
    pub fds: Vec<OwnedFd>,
    /// So many more were sent, for which this process had no numbers: they are closed.
    pub lost: usize,
}

/// A message as it travels, made before it is its turn.
#[derive(Debug)]
pub struct Frame(Vec<u8>);

impl Frame {
    /// A message that will travel with `fds` file descriptors.
    pub fn of(message: &impl Serialize, fds: usize) -> Result<Self, CodecError> {
        codec::encode(message, fds).map(Self)
    }

    /// Its length, with its header.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// Why nothing could be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The message breaks the protocol's bounds.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The socket failed; the other side is gone or too slow.
    #[error("the connection failed while sending: {0}")]
    Socket(#[from] Errno),
    /// The other side does not read.
    #[error("the other side did not read a message in time")]
    TooSlow,
}

/// Why nothing could be received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The other side closed the connection between two frames.
    #[error("the other side closed the connection")]
    Closed,
    /// The other side broke the protocol.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A frame brought another number of file descriptors than its header says.
    #[error("a frame announced {announced} file descriptors and brought {brought}")]
    WrongFds {
        /// By the header.
        announced: usize,
        /// In fact.
        brought: usize,
    },
    /// This process has no numbers for the file descriptors that came.
    #[error("no file descriptors are left (ulimit -n): of {announced} that came, {brought} could be taken")]
    NoDescriptors {
        /// By the header.
        announced: usize,
        /// That could be taken.
        brought: usize,
    },
    /// The other side closed the connection inside a frame.
    #[error("the connection ended inside a message")]
    Truncated,
    /// The socket failed.
    #[error("the connection failed while receiving: {0}")]
    Socket(#[from] Errno),
    /// A frame was begun and not finished.
    #[error("the other side did not finish a message in time")]
    TooSlow,
}

impl Connection {
    /// Connects to a manager's socket, whatever signals come meanwhile.
    ///
    /// # Errors
    /// No process listens there, or one of a user that is not trusted: see [`UntrustedManager`](super::UntrustedManager).
    pub fn connect(path: &Path) -> std::io::Result<Self> {
        let began = Instant::now();
        loop {
            match os::connect(path) {
                // Each try may wait anew.
                Err(error)
                    if error.kind() == std::io::ErrorKind::Interrupted
                        && began.elapsed() < os::CONNECTS_WITHIN => {}
                connected => {
                    let socket = connected?;
                    trust::check_listener(&socket)?;
                    return Ok(Self::from(socket));
                }
            }
        }
    }

    /// Two ends of a new connection.
    pub fn pair() -> std::io::Result<(Self, Self)> {
        os::pair().map(|(a, b)| (a.into(), b.into()))
    }

    /// Sends one message with its file descriptors; returns when the kernel has all of it.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        self.send_frame(&Frame::of(message, fds.len())?, fds, None)
    }

    /// Sends a frame with the file descriptors it was made for; who does not read it within
    /// `patience` is too slow.
    pub fn send_frame(
        &self,
        frame: &Frame,
        fds: &[BorrowedFd<'_>],
        patience: Option<Duration>,
    ) -> Result<(), SendError> {
        let mut clock = Clock::new(patience);
        let mut sent = self.send_some(&frame.0, fds, &mut clock)?;
        while sent < frame.0.len() {
            sent += self.send_some(&frame.0[sent..], &[], &mut clock)?;
        }
        Ok(())
    }

    fn send_some(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], clock: &mut Clock) -> Result<usize, SendError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(CodecError::TooManyFds(fds.len()).into());
        }
        loop {
            let flags =
                SendFlags::NOSIGNAL | if clock.runs() { SendFlags::DONTWAIT } else { SendFlags::empty() };
            match os::send(self.socket.as_fd(), bytes, &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if clock.runs() => {
                    if !clock.wait_for(&self.socket, PollFlags::OUT)? {
                        return Err(SendError::TooSlow);
                    }
                }
                sent => return Ok(sent?),
            }
        }
    }

    /// Whether something has come: the beginning of a message, or the connection's end.
    pub fn has_come(&self) -> bool {
        self.comes_within(Duration::ZERO)
    }

    /// Waits until something comes, at most so long; whether it has. A signal may end the wait early.
    pub fn comes_within(&self, patience: Duration) -> bool {
        let patience = Timespec::try_from(patience).ok();
        let ready = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], patience.as_ref());
        ready.is_ok_and(|ready| ready > 0)
    }

    /// Waits for one message and its file descriptors (close-on-exec).
    pub fn receive<M: DeserializeOwned>(&self) -> Result<(M, Vec<OwnedFd>), ReceiveError> {
        self.receive_parcel()?.whole()
    }

    /// The same, where a message counts even if this process has no numbers for its descriptors.
    pub fn receive_parcel<M: DeserializeOwned>(&self) -> Result<Parcel<M>, ReceiveError> {
        self.receive_frame(MAX_FDS, Clock::new(None))
    }

    /// The same, from a stranger: waits for the first byte as long as it takes, for the rest only
    /// so long.
    pub fn receive_within<M: DeserializeOwned>(
        &self,
        limits: Limits,
    ) -> Result<(M, Vec<OwnedFd>), ReceiveError> {
        self.receive_parcel_within(limits)?.whole()
    }

    /// The same, where descriptors may be missing.
    pub fn receive_parcel_within<M: DeserializeOwned>(
        &self,
        limits: Limits,
    ) -> Result<Parcel<M>, ReceiveError> {
        self.receive_frame(limits.fds, Clock::new(Some(limits.patience)))
    }

    fn receive_frame<M: DeserializeOwned>(
        &self,
        most_fds: usize,
        clock: Clock,
    ) -> Result<Parcel<M>, ReceiveError> {
        let mut incoming =
            Incoming { socket: &self.socket, fds: Vec::new(), has_lost: false, most_fds, clock };
        let mut header = [0; Header::BYTES];
        incoming.fill(&mut header, true)?;
        let header = Header::decode(header)?;
        if usize::from(header.fds) > most_fds {
            return Err(CodecError::TooManyFds(header.fds.into()).into());
        }
        let mut body = vec![0; header.length as usize];
        incoming.fill(&mut body, false)?;
        let (announced, brought) = (usize::from(header.fds), incoming.fds.len());
        match announced.checked_sub(brought) {
            Some(lost) if lost == 0 || incoming.has_lost => {
                Ok(Parcel { message: codec::decode(&body)?, fds: incoming.fds, lost })
            }
            _ => Err(ReceiveError::WrongFds { announced, brought }),
        }
    }

    /// Ends the connection in both directions; a thread that is reading returns.
    pub fn shut_down(&self) {
        // An error here means that the connection has ended already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl<M> Parcel<M> {
    /// The message with all of its descriptors.
    fn whole(self) -> Result<(M, Vec<OwnedFd>), ReceiveError> {
        let brought = self.fds.len();
        match self.lost {
            0 => Ok((self.message, self.fds)),
            lost => Err(ReceiveError::NoDescriptors { announced: brought + lost, brought }),
        }
    }
}

/// A frame on its way in.
struct Incoming<'a> {
    socket: &'a OwnedFd,
    fds: Vec<OwnedFd>,
    /// Descriptors came that could not be taken.
    has_lost: bool,
    most_fds: usize,
    clock: Clock,
}

impl Incoming<'_> {
    fn fill(&mut self, buffer: &mut [u8], between_frames: bool) -> Result<(), ReceiveError> {
        let mut filled = 0;
        while filled < buffer.len() {
            let first = between_frames && filled == 0;
            match self.receive_some(&mut buffer[filled..], first)? {
                0 if first => return Err(ReceiveError::Closed),
                0 => return Err(ReceiveError::Truncated),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Descriptors beyond those that there is room for are closed by the kernel.
    fn receive_some(&mut self, buffer: &mut [u8], first: bool) -> Result<usize, ReceiveError> {
        // The clock runs from the first byte.
        if first {
            self.clock.wait_for_ever(self.socket)?;
        } else if !self.clock.wait_for(self.socket, PollFlags::IN)? {
            return Err(ReceiveError::TooSlow);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let room =
            rustix::cmsg_space!(ScmRights(1)) + (self.most_fds.clamp(1, MAX_FDS) - 1) * size_of::<i32>();
        let mut control = RecvAncillaryBuffer::new(&mut space[..room.next_multiple_of(8)]);
        let socket = self.socket.as_fd();
        let received = rustix::io::retry_on_intr(|| os::receive(socket, buffer, &mut control, &mut self.fds));
        // A peer that died with data of ours unread resets the connection: to us it is closed.
        let received = match received {
            Err(Errno::CONNRESET) => return Err(ReceiveError::Closed),
            other => other?,
        };
        self.has_lost |= received.lost_descriptors;
        if self.fds.len() > self.most_fds {
            return Err(CodecError::TooManyFds(self.fds.len()).into());
        }
        Ok(received.bytes)
    }
}

/// How long one message may still take.
struct Clock {
    patience: Option<Duration>,
    end: Option<Instant>,
}

impl Clock {
    fn new(patience: Option<Duration>) -> Self {
        Self { patience, end: None }
    }

    fn runs(&self) -> bool {
        self.patience.is_some()
    }

    fn wait_for_ever(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        if self.runs() {
            rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(socket, PollFlags::IN)], None))?;
            self.end = None;
        }
        Ok(())
    }

    /// Waits until the socket is ready; `false`: the time is over. Without patience the socket's
    /// own calls wait.
    fn wait_for(&mut self, socket: &OwnedFd, what: PollFlags) -> Result<bool, Errno> {
        let Some(patience) = self.patience else { return Ok(true) };
        let end = *self.end.get_or_insert_with(|| Instant::now() + patience);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(socket, what)], Some(&left)) {
                Err(Errno::INTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<UnixStream> for Connection {
    fn from(stream: UnixStream) -> Self {
        Self { socket: stream.into() }
    }
}

impl From<OwnedFd> for Connection {
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> Self {
        connection.socket
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (here, there) = Connection::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        here.send(&("hello".to_string(), 7u32), &[file.as_fd(), file.as_fd()]).unwrap();
        let (message, fds) = there.receive::<(String, u32)>().unwrap();
        assert_eq!(message, ("hello".into(), 7));
        assert_eq!(fds.len(), 2);
    }

    #[test]
    fn a_message_larger_than_the_socket_buffer_arrives_whole() {
        let (here, there) = Connection::pair().unwrap();
        let sent: Vec<u8> = (0..900_000).map(|i| i as u8).collect();
        let reader = std::thread::spawn(move || there.receive::<Vec<u8>>().unwrap().0);
        here.send(&sent, &[]).unwrap();
        assert_eq!(reader.join().unwrap(), sent);
    }

    #[test]
    fn an_end_between_frames_is_closed_and_inside_one_truncated() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        assert!(matches!(Connection::from(there).receive::<u8>(), Err(ReceiveError::Closed)));
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&Header { length: 100, fds: 0 }.encode()).unwrap();
        drop(here);
        assert!(matches!(Connection::from(there).receive::<u8>(), Err(ReceiveError::Truncated)));
    }

    #[test]
    fn missing_descriptors_are_noticed() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&Header { length: 1, fds: 3 }.encode()).unwrap();
        here.write_all(&[1]).unwrap();
        let error = Connection::from(there).receive::<u8>().unwrap_err();
        assert!(matches!(error, ReceiveError::WrongFds { announced: 3, brought: 0 }), "{error}");
    }

    const SHORT: Limits = Limits { fds: 2, patience: Duration::from_millis(20) };

    #[test]
    fn who_does_not_finish_a_message_is_not_waited_for() {
        for half in [&Header { length: 100, fds: 0 }.encode()[..], &[7], &[b'x'; 4]] {
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(half).unwrap();
            let error = Connection::from(there).receive_within::<u8>(SHORT).unwrap_err();
            let late = matches!(error, ReceiveError::TooSlow | ReceiveError::Codec(_));
            assert!(late, "{error}");
        }
    }

    #[test]
    fn who_does_not_read_is_not_waited_for() {
        let (here, _there) = Connection::pair().unwrap();
        let frame = Frame::of(&vec![1u8; 900_000], 0).unwrap();
        let error = here.send_frame(&frame, &[], Some(SHORT.patience)).unwrap_err();
        assert!(matches!(error, SendError::TooSlow), "{error}");
    }

    #[test]
    fn a_stranger_brings_only_so_many_descriptors() {
        let (here, there) = Connection::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        for many in [3, MAX_FDS] {
            let (here, there) = Connection::pair().unwrap();
            here.send(&7u8, &vec![file.as_fd(); many]).unwrap();
            let error = there.receive_within::<u8>(SHORT).unwrap_err();
            assert!(matches!(error, ReceiveError::Codec(CodecError::TooManyFds(_))), "{error}");
        }
        here.send(&7u8, &[file.as_fd(), file.as_fd()]).unwrap();
        assert_eq!(there.receive_within::<u8>(SHORT).unwrap().1.len(), 2);
    }
}
