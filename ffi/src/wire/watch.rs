//! Seeing a socket appear: whoever waits for a manager is told when one can be connected to.

use crate::os;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sees a file come into its directory. What is done is: watch, try to connect, wait; so no
/// appearance is missed.
pub struct Watch {
    events: OwnedFd,
    name: OsString,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The file has come.
    It,
    /// One of the others is readable.
    Another,
    /// Nothing, in time.
    Nothing,
}

impl Watch {
    /// From now on.
    pub fn of(path: &Path) -> Result<Self, Errno> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL);
        };
        let events = os::file_events(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&events, directory, WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
        Ok(Self { events, name: name.into() })
    }

    /// Waits until the file comes, no longer than `patience`; whether it came.
    pub fn sees_within(&self, patience: Duration) -> bool {
        self.wait(&[], Some(patience)) == Ok(Seen::It)
    }

    /// Waits until the file comes or one of `others` is readable, no longer than `patience`, if there
    /// is an end to it.
    pub fn wait(&self, others: &[BorrowedFd<'_>], patience: Option<Duration>) -> Result<Seen, Errno> {
        let end = patience.map(|patience| Instant::now() + patience);
        let mut fds = vec![PollFd::new(&self.events, PollFlags::IN)];
        fds.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left
                .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            match poll(&mut fds, left.as_ref()) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
                Ok(0) => return Ok(Seen::Nothing),
                Ok(_) if self.has_come() => return Ok(Seen::It),
                Ok(_) if fds[1..].iter().any(|other| !other.revents().is_empty()) => {
                    return Ok(Seen::Another);
                }
                Ok(_) => {}
            }
        }
    }

    /// Whether it is among those that have come.
    fn has_come(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.events, &mut buffer);
        let mut came = false;
        while let Ok(event) = reader.next() {
            came |= event.file_name().is_some_and(|name| name.to_bytes() == self.name.as_bytes());
        }
        came
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_socket_that_is_bound_or_renamed_is_seen_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let watch = Watch::of(&path).unwrap();
        let _other = UnixListener::bind(directory.path().join("other")).unwrap();
        assert!(!watch.sees_within(Duration::from_millis(20)));
        std::fs::rename(directory.path().join("other"), &path).unwrap();
        assert!(watch.sees_within(LONG));
        std::fs::remove_file(&path).unwrap();
        let _same = UnixListener::bind(&path).unwrap();
        assert!(watch.sees_within(LONG));
    }

    #[test]
    fn what_happens_elsewhere_ends_a_wait_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let watch = Watch::of(&path).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(watch.wait(&[ours.as_fd()], Some(Duration::from_millis(20))), Ok(Seen::Nothing));
        drop(theirs);
        assert_eq!(watch.wait(&[ours.as_fd()], None), Ok(Seen::Another));
        let _socket = UnixListener::bind(&path).unwrap();
        assert_eq!(watch.wait(&[ours.as_fd()], None), Ok(Seen::It), "it is what is waited for");
    }

    #[test]
    fn a_directory_that_is_not_there_cannot_be_watched() {
        assert!(Watch::of(Path::new("/nowhere/socket")).is_err());
    }
}
