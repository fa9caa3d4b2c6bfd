//! One end of a Unix stream socket that carries frames and file descriptors.

use super::codec::{self, CodecError, Header, MAX_FDS};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// One end of a connection. Reading and writing go through `&self`: one thread may read while
/// another writes; two threads that write must take turns (their frames would mix).
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
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
    /// The other side closed the connection inside a frame.
    #[error("the connection ended inside a message")]
    Truncated,
    /// The socket failed.
    #[error("the connection failed while receiving: {0}")]
    Socket(#[from] Errno),
}

impl Connection {
    /// Connects to a listening socket.
    pub fn connect(path: &Path) -> std::io::Result<Self> {
        UnixStream::connect(path).map(Self::from)
    }

    /// Two ends of a new connection.
    pub fn pair() -> std::io::Result<(Self, Self)> {
        UnixStream::pair().map(|(a, b)| (a.into(), b.into()))
    }

    /// Sends one message with its file descriptors; returns when the kernel has all of it.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        let frame = codec::encode(message, fds.len())?;
        let sent = self.send_first(&frame, fds)?;
        self.send_rest(&frame[sent..])
    }

    fn send_first(&self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, SendError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(CodecError::TooManyFds(fds.len()).into());
        }
        Ok(rustix::io::retry_on_intr(|| {
            sendmsg(&self.socket, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL)
        })?)
    }

    fn send_rest(&self, mut rest: &[u8]) -> Result<(), SendError> {
        while !rest.is_empty() {
            let sent =
                rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL))?;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Waits for one message and its file descriptors (close-on-exec).
    pub fn receive<M: DeserializeOwned>(&self) -> Result<(M, Vec<OwnedFd>), ReceiveError> {
        let mut fds = Vec::new();
        let mut header = [0; Header::BYTES];
        self.fill(&mut header, &mut fds, true)?;
        let header = Header::decode(header)?;
        let mut body = vec![0; header.length as usize];
        self.fill(&mut body, &mut fds, false)?;
        if fds.len() != header.fds as usize {
            return Err(ReceiveError::WrongFds { announced: header.fds as usize, brought: fds.len() });
        }
        Ok((codec::decode(&body)?, fds))
    }

    fn fill(
        &self,
        buffer: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        between_frames: bool,
    ) -> Result<(), ReceiveError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.receive_some(&mut buffer[filled..], fds)? {
                0 if between_frames && filled == 0 => return Err(ReceiveError::Closed),
                0 => return Err(ReceiveError::Truncated),
                count => filled += count,
            }
        }
        Ok(())
    }

    fn receive_some(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, ReceiveError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
        });
        // A peer that died with data of ours unread resets the connection: to us it is closed.
        let received = match received {
            Err(Errno::CONNRESET) => return Err(ReceiveError::Closed),
            other => other?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if fds.len() > MAX_FDS {
            return Err(CodecError::TooManyFds(fds.len()).into());
        }
        Ok(received.bytes)
    }

    /// Ends the connection in both directions; a thread that is reading returns.
    pub fn shut_down(&self) {
        // An error here means that the connection has ended already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
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
}
