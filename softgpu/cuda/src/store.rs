//! The memory of one GPU as files in a directory, with a capacity that holds over all processes.
//!
//! A piece of memory is a file `piece-…`, which each holder has locked (`flock`) on an open description of
//! its own: a process that made or imported it, and a descriptor that was exported. *Used* is the sum of the
//! sizes of the locked files, and unlocked files are leftovers that whoever sees them deletes.
//!
//! A process that gives a piece back unlocks it. One that dies does not: its lock goes when the last
//! descriptor of its description closes, and a forked child that outlives it has those too.
//!
//! To look at every file for every piece would be slow, so the file `lock` holds a bound: what was
//! created and not given back in order. Deaths only make it too high, so a piece that fits under it
//! fits; for one that does not, and for who asks, all files are looked at and the bound is right again.
//!
//! Several users may share a GPU. A file of one is closed to the others: it counts for them with its size as long as it is there,
//! and they reach its memory only through a descriptor that they are given, which holds its lock too. The lock of the directory is
//! waited for no longer than [`PATIENCE`]: a process that keeps it stops no other.
//!
//! ```text
//! <node>/<uuid>/lock            taken for every scan, creation and deletion; holds the bound
//!               piece-812-1     locked: 2 MiB used, by process 812 or who imported it
//!               piece-807-4     not locked: its holders died
//! ```

use std::collections::HashMap;
use std::fs::{DirEntry, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The memory of one GPU.
pub struct Store {
    dir: PathBuf,
    capacity: u64,
    next: AtomicU64,
    /// What this process holds, with how often: known to be locked without a look.
    held: Mutex<HashMap<String, (u64, usize)>>,
}

/// A piece of memory this process keeps alive by a descriptor.
pub struct Held {
    lock: Lock, // ends before `kept` looks whether anybody else has it
    kept: Kept,
}

/// How long a process waits for its turn at the directory. Without it a piece may be made though there is no room.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it tries: `flock` has no time limit.
const TICK: Duration = Duration::from_millis(1);

/// A piece's file, locked on a description of our own, or on that of another user's process.
struct Lock {
    fd: OwnedFd,
    /// Something else keeps the description, and so the lock.
    is_kept: bool,
}

/// A piece of memory this process keeps alive, by whatever: a mapping does it too.
pub struct Kept {
    store: &'static Store,
    name: String,
    size: u64,
}

/// What a look at a piece's file finds.
#[derive(Debug, PartialEq)]
enum Found {
    Nothing,
    /// Held by nobody, and deleted now.
    Leftover,
    /// Held, with so many bytes.
    Held(u64),
}

/// A turn at the directory.
struct Turn(OwnedFd);

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Other pieces take what is left.
    #[error("{wanted} bytes wanted, {free} of {capacity} are free")]
    Full { wanted: u64, free: u64, capacity: u64 },
    /// The system refused.
    #[error("cannot keep pieces here: {0}")]
    System(#[from] io::Error),
}

impl StoreError {
    /// Another user's file.
    fn is_denied(&self) -> bool {
        matches!(self, Self::System(error) if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl From<Errno> for StoreError {
    fn from(errno: Errno) -> StoreError {
        StoreError::System(errno.into())
    }
}

/// Gives a file its size. For more than the process may have (`ulimit -f`) the system would end it.
pub fn set_size(file: impl AsFd, bytes: u64) -> Result<(), Errno> {
    check_size(bytes)?;
    rustix::fs::ftruncate(file, bytes)
}

fn check_size(bytes: u64) -> Result<(), Errno> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if most < bytes => Err(Errno::FBIG),
        _ => Ok(()),
    }
}

impl Store {
    /// The store in `dir`, which is made if missing.
    pub fn open(dir: &Path, capacity: u64) -> Result<Store, StoreError> {
        std::fs::create_dir_all(dir)?;
        let dir = dir.canonicalize()?;
        Ok(Store { dir, capacity, next: AtomicU64::new(1), held: Mutex::default() })
    }

    /// All of it, bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What no process holds, bytes.
    pub fn free(&self) -> Result<u64, StoreError> {
        let turn = self.turn()?;
        Ok(self.capacity.saturating_sub(self.used(&turn)?))
    }

    /// A new piece of zeroes.
    pub fn create(&'static self, size: u64) -> Result<Held, StoreError> {
        check_size(size)?;
        let turn = self.turn()?;
        let used = self.used_with_room_for(size, &turn)?;
        let (name, fd) = self.create_file()?;
        let lock = Lock::on(fd)?;
        rustix::fs::ftruncate(&lock.fd, size)?;
        turn.set_bound(used + size)?;
        Ok(self.hold(name, size, lock))
    }

    /// The piece behind a descriptor that another process exported, if it is one of this store.
    pub fn adopt(&'static self, fd: BorrowedFd<'_>) -> Result<Option<Held>, StoreError> {
        let link = format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let path = std::fs::read_link(link)?;
        let name = path.file_name().and_then(|name| name.to_str()).filter(|n| is_piece(n));
        let (Some(name), true) = (name, path.parent() == Some(&self.dir)) else {
            return Ok(None);
        };
        let size = rustix::fs::fstat(fd)?.st_size.unsigned_abs();
        let lock = match self.open_again(name) {
            Ok(own) => Lock::on(own)?,
            Err(error) if error.is_denied() => Lock::of_another(fd)?,
            Err(error) => return Err(error),
        };
        Ok(Some(self.hold(name.to_owned(), size, lock)))
    }

    fn open_again(&self, name: &str) -> Result<OwnedFd, StoreError> {
        Ok(rustix::fs::open(self.dir.join(name), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// A piece that another process holds: the caller does not.
    pub fn open_of_another(&self, name: &str) -> Option<OwnedFd> {
        let plain = is_piece(name) && !name.contains('/');
        plain.then(|| self.open_again(name).ok()).flatten()
    }

    /// Whether this process holds the piece of that name.
    pub fn holds(&self, name: &str) -> bool {
        self.held.lock().contains_key(name)
    }

    fn hold(&'static self, name: String, size: u64, lock: Lock) -> Held {
        self.held.lock().entry(name.clone()).or_insert((size, 0)).1 += 1;
        Held { lock, kept: Kept { store: self, name, size } }
    }

    fn create_file(&self) -> Result<(String, OwnedFd), StoreError> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let name = format!("piece-{}-{number}", std::process::id());
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::open(self.dir.join(&name), flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => return Ok((name, fd)),
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// This process's turn at the directory; ends when dropped.
    fn turn(&self) -> Result<Turn, StoreError> {
        let end = Instant::now() + PATIENCE;
        let fd = self.open_lock()?;
        while !try_lock(&fd)? && Instant::now() < end {
            std::thread::sleep(TICK);
        }
        Ok(Turn(fd))
    }

    /// The same, if no other process has it.
    fn turn_now(&self) -> Result<Turn, StoreError> {
        let fd = self.open_lock()?;
        match try_lock(&fd)? {
            true => Ok(Turn(fd)),
            false => Err(Errno::WOULDBLOCK.into()),
        }
    }

    fn open_lock(&self) -> Result<OwnedFd, StoreError> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.dir.join("lock"), flags, Mode::RUSR | Mode::WUSR)?)
    }

    /// A bound of what is used that leaves room for `size` more, if there is room.
    fn used_with_room_for(&self, size: u64, turn: &Turn) -> Result<u64, StoreError> {
        let fits = |used: &u64| used.checked_add(size).is_some_and(|sum| sum <= self.capacity);
        if let Some(bound) = turn.bound()?.filter(fits) {
            return Ok(bound);
        }
        let used = self.used(turn)?;
        let free = self.capacity.saturating_sub(used);
        let full = StoreError::Full { wanted: size, free, capacity: self.capacity };
        Some(used).filter(fits).ok_or(full)
    }

    /// What is locked, deleting what is not.
    fn used(&self, turn: &Turn) -> Result<u64, StoreError> {
        let mut used = 0;
        for entry in std::fs::read_dir(&self.dir)? {
            used += self.used_by(&entry?)?;
        }
        turn.set_bound(used)?;
        Ok(used)
    }

    fn used_by(&self, entry: &DirEntry) -> Result<u64, StoreError> {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_piece(name)) else { return Ok(0) };
        if let Some((size, _)) = self.held.lock().get(name) {
            return Ok(*size);
        }
        match self.probe(&entry.path())? {
            Found::Held(size) => Ok(size),
            Found::Nothing | Found::Leftover => Ok(0),
        }
    }

    /// Looks whether somebody holds a file, and deletes one that nobody holds.
    fn probe(&self, path: &Path) -> Result<Found, StoreError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return self.probe_of_another(path);
            }
            Err(_) => return Ok(Found::Nothing),
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => std::fs::remove_file(path).map(|()| Found::Leftover).map_err(Into::into),
            Err(Errno::WOULDBLOCK) => Ok(Found::Held(file.metadata()?.len())),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Another user's file counts as long as it is there.
    fn probe_of_another(&self, path: &Path) -> Result<Found, StoreError> {
        let found = std::fs::symlink_metadata(path);
        Ok(found.map_or(Found::Nothing, |found| Found::Held(found.len())))
    }

    /// One holding less; the last one of this process looks whether any other holds the file. The
    /// bound falls only if the file was still there: else a scan has left it out already. If it is the turn of another process, which
    /// may be stopped, the next scan sees to it: what gives memory back waits for none.
    fn release(&self, name: &str, size: u64) -> Result<(), StoreError> {
        let turn = self.turn_now();
        if !self.count_down(name) {
            return Ok(());
        }
        let turn = turn?;
        match (self.probe(&self.dir.join(name))?, turn.bound()?) {
            (Found::Leftover, Some(bound)) => turn.set_bound(bound.saturating_sub(size)),
            _ => Ok(()),
        }
    }

    fn count_down(&self, name: &str) -> bool {
        let mut held = self.held.lock();
        let Some((_, count)) = held.get_mut(name) else { return true };
        *count -= 1;
        let last = *count == 0;
        if last {
            held.remove(name);
        }
        last
    }
}

impl Turn {
    /// At least what is used; `None` if nobody has counted yet.
    fn bound(&self) -> Result<Option<u64>, StoreError> {
        let mut bytes = [0; 8];
        let read = rustix::io::pread(&self.0, &mut bytes, 0)?;
        Ok((read == bytes.len()).then(|| u64::from_le_bytes(bytes)))
    }

    fn set_bound(&self, bound: u64) -> Result<(), StoreError> {
        rustix::io::pwrite(&self.0, &bound.to_le_bytes(), 0)?;
        Ok(())
    }
}

impl Held {
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.kept.size
    }

    /// A descriptor that holds the piece by itself, to be passed on.
    pub fn export(&self) -> Result<OwnedFd, StoreError> {
        let fd = match self.kept.store.open_again(&self.kept.name) {
            Err(error) if error.is_denied() => return Ok(rustix::io::fcntl_dupfd_cloexec(&self.lock.fd, 0)?),
            opened => opened?,
        };
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared)?;
        Ok(fd)
    }

    /// Closes the descriptor: from now on a mapping keeps the piece, and has to be gone before the
    /// result is dropped.
    pub fn by_mapping(self) -> Kept {
        let Self { mut lock, kept } = self;
        lock.is_kept = true;
        kept
    }
}

impl Lock {
    fn on(fd: OwnedFd) -> Result<Self, StoreError> {
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { fd, is_kept: false })
    }

    /// The lock that a descriptor holds which another user's process has exported. It is not unlocked here: others have the
    /// description too.
    fn of_another(fd: BorrowedFd<'_>) -> Result<Self, StoreError> {
        Ok(Self { fd: rustix::io::fcntl_dupfd_cloexec(fd, 0)?, is_kept: true })
    }
}

/// Whether a file could be locked: no other process has it.
fn try_lock(fd: &OwnedFd) -> Result<bool, StoreError> {
    match rustix::io::retry_on_intr(|| rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        locked => Ok(locked.map(|()| true)?),
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.is_kept {
            // A forked child has the description too, and would keep the lock. What fails here comes back
            // when the last descriptor is closed.
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

impl Kept {
    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.fd.as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // What cannot be given back in order comes back at the next scan.
        let _ = self.store.release(&self.name, self.size);
    }
}

fn is_piece(name: &str) -> bool {
    name.starts_with("piece-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(capacity: u64) -> (tempfile::TempDir, &'static Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), capacity).unwrap();
        (dir, Box::leak(Box::new(store)))
    }

    #[test]
    fn what_is_held_is_used_and_comes_back_with_the_last_holder() {
        let (_dir, store) = store(100);
        let piece = store.create(60).unwrap();
        assert!(matches!(store.create(41), Err(StoreError::Full { free: 40, .. })));
        let twin = store.adopt(piece.as_fd()).unwrap().unwrap();
        drop(piece);
        assert_eq!(store.free().unwrap(), 40);
        drop(twin);
        assert_eq!(store.free().unwrap(), 100);
    }

    #[test]
    fn what_is_exported_holds_by_itself_and_what_is_given_back_is_not_held_by_copies() {
        let (_dir, store) = store(100);
        let piece = store.create(60).unwrap();
        let (exported, as_by_fork) = (piece.export().unwrap(), piece.lock.fd.try_clone().unwrap());
        drop(piece);
        assert_eq!(store.free().unwrap(), 40);
        let imported = store.adopt(exported.as_fd()).unwrap().unwrap();
        drop(exported);
        assert_eq!(store.free().unwrap(), 40);
        drop(imported);
        assert_eq!(store.free().unwrap(), 100);
        drop(as_by_fork);
    }

    #[test]
    fn leftovers_of_the_dead_are_not_used_memory() {
        let (dir, store) = store(100);
        std::fs::write(dir.path().join("piece-1-1"), [0; 80]).unwrap();
        assert_eq!(store.free().unwrap(), 100);
        assert!(!dir.path().join("piece-1-1").exists());
    }

    #[test]
    fn what_a_scan_has_left_out_is_not_given_back_again() {
        let (dir, store) = store(100);
        let (one, _other) = (store.create(30).unwrap(), store.create(60).unwrap());
        let Held { lock, kept } = one;
        drop(lock);
        let elsewhere = Store::open(dir.path(), 100).unwrap();
        assert_eq!(elsewhere.probe(&dir.path().join(&kept.name)).unwrap(), Found::Leftover);
        elsewhere.turn().unwrap().set_bound(60).unwrap();
        drop(kept);
        assert_eq!(store.turn().unwrap().bound().unwrap(), Some(60));
    }

    #[test]
    fn what_gives_memory_back_waits_for_no_other_process() {
        let (dir, store) = store(100);
        let piece = store.create(60).unwrap();
        let stopped = Store::open(dir.path(), 100).unwrap().turn().unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        let giving = std::thread::spawn(move || {
            drop(piece);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        let files = || std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files(), 2, "whoever has the turn next deletes it");
        drop(stopped);
        giving.join().unwrap();
        assert_eq!(store.free().unwrap(), 100);
        assert_eq!(files(), 1, "but for the lock no file is there");
    }

    #[test]
    fn a_descriptor_from_elsewhere_is_not_adopted() {
        let (dir, store) = store(100);
        let file = File::create(dir.path().join("other")).unwrap();
        assert!(store.adopt(file.as_fd()).unwrap().is_none());
    }
}
