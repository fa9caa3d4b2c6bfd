//! The system calls that can fail for lack of something: descriptors, memory, threads, processes.
//!
//! Each function is one call, made as the product always makes it, and no more: what a failure means
//! is the caller's affair. In a test's hands each can be made to fail ([`faults`]): so what the
//! product does then is tried by the very calls that it makes. They are functions and no trait: there
//! is one system, and a call that is to fail is chosen from outside the process.
//!
//! Invariant: a call that is made to fail has done nothing (a `short` store has done half).

pub mod faults;
pub mod pages;

use faults::due;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, inotify};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with,
};
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit};
use std::ffi::c_void;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::ptr::NonNull;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A multiple of what any disk writes at once, in bytes.
const BLOCK: usize = 4096;

/// A new, empty memory file, which can be sealed.
pub fn memory_file(name: &str) -> Result<OwnedFd, Errno> {
    due("memfd_create")?;
    rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// Gives a file its size.
pub fn set_size(file: impl AsFd, bytes: u64) -> Result<(), Errno> {
    due("ftruncate")?;
    without_sigxfsz(|| rustix::fs::ftruncate(file, bytes))
}

/// Runs `work` with SIGXFSZ suppressed on the calling thread. A file operation beyond `ulimit -f` then fails with `EFBIG`;
/// the signal would end the process.
pub fn without_sigxfsz<T>(work: impl FnOnce() -> T) -> T {
    if getrlimit(Resource::Fsize).current.is_none() {
        return work();
    }
    let signal = sigxfsz();
    let mut before = signal;
    // SAFETY: both sets are our own, and only the calling thread's mask is changed.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signal, &mut before) };
    let was_pending = is_sigxfsz_pending();
    let result = work();
    // A signal that was pending before belongs to the program.
    if !was_pending && is_sigxfsz_pending() {
        // SAFETY: the set is our own, and a null info pointer is allowed. The signal is pending, so this does not block.
        unsafe { libc::sigwaitinfo(&signal, std::ptr::null_mut()) };
    }
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    result
}

/// The signal set with SIGXFSZ alone.
fn sigxfsz() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: the set is our own, and filled by this.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: as above.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ) };
    // SAFETY: as above.
    unsafe { set.assume_init() }
}

fn is_sigxfsz_pending() -> bool {
    let mut pending = sigxfsz();
    // SAFETY: the set is our own.
    unsafe { libc::sigpending(&mut pending) };
    // SAFETY: as above.
    unsafe { libc::sigismember(&pending, libc::SIGXFSZ) == 1 }
}

/// Seals a memory file.
pub fn seal(file: impl AsFd, seals: SealFlags) -> Result<(), Errno> {
    due("fcntl")?;
    rustix::fs::fcntl_add_seals(file, seals)
}

/// Maps the first `bytes` bytes of a file, shared with whoever else maps them.
pub fn map_shared(file: impl AsFd, bytes: usize) -> Result<NonNull<c_void>, Errno> {
    map_shared_at(file, 0, bytes)
}

/// Maps `bytes` bytes of a file from byte `start` on, shared with whoever else maps them.
pub fn map_shared_at(file: impl AsFd, start: u64, bytes: usize) -> Result<NonNull<c_void>, Errno> {
    due("mmap")?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let address =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, start) }?;
    NonNull::new(address).ok_or(Errno::NOMEM)
}

/// Makes all pages of a mapping present, for the sake of who writes them later.
///
/// # Safety
/// The mapping is the caller's own.
pub unsafe fn populate(address: NonNull<c_void>, bytes: usize) -> Result<(), Errno> {
    due("madvise")?;
    // SAFETY: the caller's own mapping; the advice changes no bytes.
    unsafe { rustix::mm::madvise(address.as_ptr(), bytes, rustix::mm::Advice::LinuxPopulateWrite) }
}

/// Writes all of `bytes` at a place in a file.
pub fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    due("pwrite")?;
    file.write_all_at(bytes, at)
}

/// Writes all of `bytes` to a file of saved bytes.
pub fn store(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    due("store")?;
    let written = if due("short").is_ok() { bytes.len() } else { bytes.len() / 2 / BLOCK * BLOCK };
    file.write_all_at(&bytes[..written], at)
}

/// Reads as many bytes as there is room for from a file of saved bytes.
pub fn load(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    due("load")?;
    file.read_exact_at(bytes, at)
}

/// Gets room on the disk for a part of a file, which grows with it.
pub fn preallocate(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    due("fallocate")?;
    Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), at, bytes)?)
}

/// Opens or makes a file, in the way that `open` does.
pub fn open<T>(open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    due("open")?;
    open()
}

/// Writes all of `bytes` to a file.
pub fn write(file: &mut impl io::Write, bytes: &[u8]) -> io::Result<()> {
    due("write")?;
    file.write_all(bytes)
}

/// Another descriptor of the same file, close-on-exec.
pub fn duplicate(file: impl AsFd) -> io::Result<OwnedFd> {
    due("dup")?;
    file.as_fd().try_clone_to_owned()
}

/// How long it may take until a listener has room for a connection.
pub const CONNECTS_WITHIN: Duration = Duration::from_secs(5);

/// Connects to a listening socket.
///
/// # Errors
/// Nothing listens there; or what does has no room for another connection, and has made none within five seconds.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    due("connect")?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(CONNECTS_WITHIN))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?).map_err(|error| match error {
        Errno::AGAIN => io::Error::new(io::ErrorKind::TimedOut, "what listens there takes no connections"),
        error => error.into(),
    })?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

/// Two ends of a new connection.
pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
    due("socketpair")?;
    UnixStream::pair()
}

/// The next who connects.
pub fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    due("accept")?;
    Ok(listener.accept()?.0)
}

/// Sends bytes, and what goes with them.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    control: &mut SendAncillaryBuffer<'_, '_, '_>,
    flags: SendFlags,
) -> Result<usize, Errno> {
    due("sendmsg")?;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], control, flags)
}

/// What has been received.
pub struct Received {
    /// So many bytes.
    pub bytes: usize,
    /// Descriptors were sent with them that are not here: the process had no numbers for them, or
    /// the caller no room.
    pub lost_descriptors: bool,
}

/// Receives bytes, and the descriptors (close-on-exec) that came with them. The kernel closes those
/// for which the process has no number or `control` no room, and goes on.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    control: &mut RecvAncillaryBuffer<'_>,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Received, Errno> {
    due("recvmsg")?;
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], control, RecvFlags::CMSG_CLOEXEC)?;
    let mut lost_descriptors = received.flags.contains(ReturnFlags::CTRUNC);
    for message in control.drain() {
        let RecvAncillaryMessage::ScmRights(rights) = message else { continue };
        match due("SCM_RIGHTS") {
            Ok(()) => descriptors.extend(rights),
            Err(_) => lost_descriptors = true,
        }
    }
    Ok(Received { bytes: received.bytes, lost_descriptors })
}

/// A handle of a process.
pub fn process_handle(process: Pid) -> Result<OwnedFd, Errno> {
    due("pidfd_open")?;
    rustix::process::pidfd_open(process, PidfdFlags::empty())
}

/// Where the system tells what happens to files.
pub fn file_events(flags: inotify::CreateFlags) -> Result<OwnedFd, Errno> {
    due("inotify_init")?;
    inotify::init(flags)
}

/// Starts a thread.
pub fn start_thread<T: Send + 'static>(
    builder: Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    due("thread")?;
    builder.spawn(body)
}

/// Starts a process.
pub fn start_process(command: &mut Command) -> io::Result<Child> {
    due("process")?;
    command.spawn()
}
