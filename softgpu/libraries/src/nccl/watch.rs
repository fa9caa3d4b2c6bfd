//! A thread per communicator that learns of the end of the other ranks' processes from the kernel.

use super::segment::{Segment, State};
use super::{Answer, Failure, lock};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// The thread; it ends with this.
pub struct Watch {
    shared: Arc<Shared>,
}

struct Shared {
    segment: Arc<Segment>,
    /// Readable: there are more processes to watch, or it is over.
    kick: OwnedFd,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    over: bool,
    watched: Vec<(usize, OwnedFd)>,
}

impl Watch {
    pub fn start(segment: Arc<Segment>) -> Answer<Self> {
        // SAFETY: no preconditions.
        let kick =
            owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }, "making an eventfd")?;
        let shared = Arc::new(Shared { segment, kick, list: Mutex::default() });
        let of_thread = shared.clone();
        start_thread("softgpu-nccl", move || of_thread.work())
            .map_err(|error| Failure::of_system("starting a thread", &error))?;
        Ok(Self { shared })
    }

    /// From now on the end of this process, started then, is the end of that rank. It may have ended already.
    pub fn add(&self, rank: usize, process: u32, started: u64) -> Answer {
        // SAFETY: no preconditions.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) } as i32;
        if descriptor < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH) {
            return Err(Failure::system("watching another rank's process"));
        }
        let same = self::started(process) == Some(started);
        if descriptor < 0 || !same {
            if descriptor >= 0 {
                // SAFETY: opened above, of no one else.
                drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
            self.shared.segment.change(rank, State::Active, State::Dead);
            return Ok(());
        }
        lock(&self.shared.list).watched.push((rank, owned(descriptor, "watching another rank's process")?));
        self.shared.kick();
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.list).over = true;
        self.shared.kick();
    }
}

impl Shared {
    fn kick(&self) {
        // SAFETY: eight bytes of ours. It fails only where the counter is at its end: then it is readable.
        unsafe { libc::write(self.kick.as_raw_fd(), (&raw const ONE).cast(), 8) };
    }

    fn work(&self) {
        loop {
            let mut polled = vec![polled(&self.kick)];
            {
                let list = lock(&self.list);
                if list.over {
                    return;
                }
                polled.extend(list.watched.iter().map(|(_, descriptor)| self::polled(descriptor)));
            }
            // SAFETY: an array of that length. An interrupted call is made again.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as u64, -1) };
            let mut count = 0u64;
            // SAFETY: eight bytes of ours; it does not block.
            unsafe { libc::read(self.kick.as_raw_fd(), (&raw mut count).cast(), 8) };
            let ended = |descriptor: i32| polled.iter().any(|one| one.fd == descriptor && one.revents != 0);
            lock(&self.list).watched.retain(|(rank, descriptor)| {
                let ended = ended(descriptor.as_raw_fd());
                if ended {
                    self.segment.change(*rank, State::Active, State::Dead);
                }
                !ended
            });
        }
    }
}

static ONE: u64 = 1;

fn polled(descriptor: &OwnedFd) -> libc::pollfd {
    libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

fn owned(descriptor: i32, what: &str) -> Answer<OwnedFd> {
    if descriptor < 0 {
        return Err(Failure::system(what));
    }
    // SAFETY: just opened, of no one else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Starts a thread that takes none of the program's signals.
pub fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: it initialises the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first was initialised, the second is written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    // SAFETY: the mask that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    started.map(drop)
}

/// When a process was started, in clock ticks since the machine was; `None`: there is none.
pub fn started(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may have spaces and parentheses of its own. The 22nd field is the 20th after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
