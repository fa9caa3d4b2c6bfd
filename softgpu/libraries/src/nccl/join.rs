//! How the ranks of a communicator come together: over a file that the unique id names.
//!
//! The file lies in a directory of the user's own (mode 0700) and has mode 0600. The first rank makes it, the last
//! one to join removes it. Its bytes are locked: the first while a rank joins, byte `1 + rank` by each rank that
//! has joined, until all have. A file on which no rank holds a lock was left by processes that have ended:
//! [`new_id`] removes it.

use super::comm::Gpu;
use super::segment::{MOST_RANKS, Segment, State};
use super::watch::{self, Watch};
use super::{Answer, Code, Failure, lock};
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of `ncclUniqueId`.
pub const ID_BYTES: usize = 128;
const MAGIC: &[u8] = b"softgpu-nccl:";

/// In which directory the files are made. Default: `/dev/shm/softgpu-nccl-UID`, else one in `XDG_RUNTIME_DIR`.
const DIRECTORY: &str = "TIDEGATE_SOFTGPU_NCCL_DIR";
/// How long a rank waits for the others to join, in seconds.
const TIMEOUT: &str = "TIDEGATE_SOFTGPU_NCCL_TIMEOUT";
const DEFAULT_TIMEOUT: u64 = 600;
/// `1`: several ranks may use one GPU, which NCCL refuses.
const SHARED_GPU: &str = "TIDEGATE_SOFTGPU_NCCL_SHARED_GPU";

/// A unique id: where the ranks meet.
#[derive(Clone, Debug)]
pub struct Id(PathBuf);

impl Id {
    pub fn bytes(&self) -> Answer<[u8; ID_BYTES]> {
        let text = [MAGIC, self.0.as_os_str().as_bytes()].concat();
        if text.len() >= ID_BYTES {
            return Err(Failure::new(
                Code::SystemError,
                format!(
                    "{} is too long a name for a unique id: set {DIRECTORY} to a shorter directory",
                    self.0.display()
                ),
            ));
        }
        let mut bytes = [0; ID_BYTES];
        bytes[..text.len()].copy_from_slice(&text);
        Ok(bytes)
    }

    pub fn of(bytes: &[u8; ID_BYTES]) -> Answer<Self> {
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(ID_BYTES);
        let text = bytes[..length].strip_prefix(MAGIC);
        let text = text.ok_or_else(|| Failure::argument("this is no unique id of ncclGetUniqueId"))?;
        Ok(Self(PathBuf::from(std::ffi::OsStr::from_bytes(text))))
    }

    /// The id of a part of this communicator, the same at all ranks that name it alike.
    pub fn part(&self, name: &str) -> Self {
        let half = |seed: u8| {
            let mut hasher = DefaultHasher::new();
            (seed, self.0.as_os_str().as_bytes(), name).hash(&mut hasher);
            hasher.finish()
        };
        Self(self.0.with_file_name(format!("{:016x}{:016x}", half(0), half(1))))
    }
}

/// A new unique id. What processes that have ended have left in the directory is removed.
pub fn new_id() -> Answer<Id> {
    let directory = directory()?;
    sweep(&directory)?;
    let mut random = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
    read.map_err(|error| Failure::of_system("reading /dev/urandom", &error))?;
    Ok(Id(directory.join(format!("{:032x}", u128::from_ne_bytes(random)))))
}

fn directory() -> Answer<PathBuf> {
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let name = format!("softgpu-nccl-{user}");
    let asked = std::env::var_os(DIRECTORY).map(PathBuf::from);
    let shared = || Path::new("/dev/shm").is_dir().then(|| Path::new("/dev/shm").join(&name));
    let run = || std::env::var_os("XDG_RUNTIME_DIR").map(|run| Path::new(&run).join(&name));
    let directory = asked.or_else(shared).or_else(run);
    let directory = directory.ok_or_else(|| {
        Failure::new(Code::SystemError, format!("no directory for shared memory: set {DIRECTORY} to one"))
    })?;
    let failed = |error| Failure::of_system(&format!("making {}", directory.display()), &error);
    DirBuilder::new().mode(0o700).recursive(true).create(&directory).map_err(failed)?;
    let found = std::fs::symlink_metadata(&directory).map_err(failed)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let why = format!("{} must be a directory of the user's own with mode 0700", directory.display());
        return Err(Failure::new(Code::SystemError, why));
    }
    Ok(directory)
}

fn sweep(directory: &Path) -> Answer {
    let failed = |error| Failure::of_system(&format!("looking into {}", directory.display()), &error);
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // Another process may remove it at the same time.
        let Ok(file) = open(&path, false) else { continue };
        if take(&file, 0, libc::F_OFD_SETLK).is_ok() && !is_locked(&file) {
            remove(&path)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Answer {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::of_system(&format!("removing {}", path.display()), &error))
        }
        _ => Ok(()),
    }
}

fn open(path: &Path, create: bool) -> std::io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    OpenOptions::new().read(true).write(true).create(create).mode(0o600).custom_flags(flags).open(path)
}

/// The lock of one byte.
fn byte(at: usize) -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: at as i64, l_len: 1, l_pid: 0 }
}

fn take(file: &File, at: usize, how: i32) -> std::io::Result<()> {
    loop {
        // SAFETY: a descriptor of ours, and a description of a lock.
        if unsafe { libc::fcntl(file.as_raw_fd(), how, &byte(at)) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether some rank holds its byte.
fn is_locked(file: &File) -> bool {
    let mut ranks = libc::flock { l_len: 0, ..byte(1) };
    // SAFETY: a descriptor of ours, and a description of a lock, which is written to.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut ranks) };
    asked != 0 || ranks.l_type != libc::F_UNLCK as i16
}

fn give_back(file: &File) {
    let lock = libc::flock { l_type: libc::F_UNLCK as i16, ..byte(0) };
    // SAFETY: a descriptor of ours, and a description of a lock.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
}

/// A rank that has joined, and sees all others.
pub struct Joined {
    pub segment: Arc<Segment>,
    /// Learns of the end of other processes, as long as it lives; `None`: all ranks are of this one.
    _watch: Option<Watch>,
}

/// Files of ranks that failed before all had joined: those that come later must find them.
static FAILED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Joins, and waits until all ranks have.
///
/// # Errors
/// `InvalidArgument`, `InvalidUsage`: the ranks do not fit together. `RemoteError`: one has failed or ended.
/// `SystemError`: a system call failed, or the ranks did not come in time.
pub fn join(id: &Id, ranks: usize, rank: usize, gpu: Gpu) -> Answer<Joined> {
    if ranks == 0 || rank >= ranks || ranks > MOST_RANKS {
        return Err(Failure::argument(format!(
            "rank {rank} of {ranks}: there may be 1 to {MOST_RANKS} ranks"
        )));
    }
    let (file, segment) = enter(id, ranks, rank, gpu)?;
    let segment = Arc::new(segment);
    let joined = wait_for_all(&segment, rank).and_then(|watch| {
        check_gpus(&segment)?;
        Ok(Joined { segment: segment.clone(), _watch: watch })
    });
    if let Err(failure) = &joined {
        segment.change(rank, State::Active, State::Failed(failure.code as i32));
        if !has_all(&segment) {
            lock(&FAILED).push(file);
        }
    }
    joined
}

fn enter(id: &Id, ranks: usize, rank: usize, gpu: Gpu) -> Answer<(File, Segment)> {
    let failed = |error| Failure::of_system(&format!("joining by {}", id.0.display()), &error);
    loop {
        let file = open(&id.0, true).map_err(failed)?;
        take(&file, 0, libc::F_OFD_SETLKW).map_err(failed)?;
        if file.metadata().map_err(failed)?.nlink() == 0 {
            continue; // It was removed in between.
        }
        let segment = Segment::map(&file, ranks)?;
        if take(&file, 1 + rank, libc::F_OFD_SETLK).is_err() || segment.state(rank) != State::Absent {
            return Err(Failure::usage(format!("rank {rank} has joined already")));
        }
        let own = segment.rank(rank);
        let process = std::process::id();
        let started = watch::started(process);
        let started =
            started.ok_or_else(|| Failure::new(Code::SystemError, "/proc/self/stat cannot be read"))?;
        own.process.store(process, Ordering::SeqCst);
        own.started.store(started, Ordering::SeqCst);
        own.gpu.iter().zip(gpu).for_each(|(place, word)| place.store(word, Ordering::SeqCst));
        segment.header().ranks.store(ranks as u32, Ordering::SeqCst);
        segment.change(rank, State::Absent, State::Active);
        let before = segment.header().joined.fetch_add(1, Ordering::SeqCst) as usize;
        if before + 1 == ranks {
            remove(&id.0)?;
        }
        give_back(&file);
        return Ok((file, segment));
    }
}

fn wait_for_all(segment: &Arc<Segment>, rank: usize) -> Answer<Option<Watch>> {
    let patience = Duration::from_secs(number(TIMEOUT).unwrap_or(DEFAULT_TIMEOUT));
    let until = Instant::now() + patience;
    let mut watch = None;
    let mut seen = vec![false; segment.ranks()];
    loop {
        let calls = segment.calls(rank);
        for (peer, seen) in seen.iter_mut().enumerate() {
            match segment.state(peer) {
                State::Absent => continue,
                State::Active if *seen => continue,
                State::Active => watch_peer(segment, peer, &mut watch)?,
                State::Left => {}
                // All have joined, and it is gone again already: this rank's operations find that out.
                State::Dead | State::Failed(_) if has_all(segment) => {}
                State::Dead => {
                    return Err(Failure::new(
                        Code::RemoteError,
                        format!("rank {peer}'s process ended while the ranks joined"),
                    ));
                }
                State::Failed(code) => {
                    let code = if Code::of(code) == Code::InvalidUsage {
                        Code::InvalidUsage
                    } else {
                        Code::RemoteError
                    };
                    return Err(Failure::new(code, format!("rank {peer} failed while the ranks joined")));
                }
            }
            *seen = true;
        }
        if seen.iter().all(|seen| *seen) {
            return Ok(watch);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let missing = seen.iter().position(|seen| !seen).unwrap_or_default();
            let why = format!("rank {missing} has not joined within {} s ({TIMEOUT})", patience.as_secs());
            return Err(Failure::new(Code::SystemError, why));
        }
        segment.wait(rank, calls, Some(left));
    }
}

fn has_all(segment: &Segment) -> bool {
    segment.header().joined.load(Ordering::SeqCst) as usize == segment.ranks()
}

/// A rank of this process ends with it.
fn watch_peer(segment: &Arc<Segment>, peer: usize, watch: &mut Option<Watch>) -> Answer {
    let (process, started) = (&segment.rank(peer).process, &segment.rank(peer).started);
    let (process, started) = (process.load(Ordering::SeqCst), started.load(Ordering::SeqCst));
    if process == std::process::id() {
        return Ok(());
    }
    let started_watch = match watch.take() {
        Some(watch) => watch,
        None => Watch::start(segment.clone())?,
    };
    let added = started_watch.add(peer, process, started);
    *watch = Some(started_watch);
    added
}

fn check_gpus(segment: &Segment) -> Answer {
    if number(SHARED_GPU) == Some(1) {
        return Ok(());
    }
    let gpu = |rank: usize| segment.rank(rank).gpu.each_ref().map(|word| word.load(Ordering::SeqCst));
    for rank in 0..segment.ranks() {
        if let Some(other) = (0..rank).find(|other| gpu(*other) == gpu(rank)) {
            let why = format!(
                "ranks {other} and {rank} use the same GPU, which NCCL refuses; {SHARED_GPU}=1 allows it here"
            );
            return Err(Failure::usage(why));
        }
    }
    Ok(())
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
