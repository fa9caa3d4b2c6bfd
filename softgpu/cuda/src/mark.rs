//! What processes share of an event: how often it has been recorded, and which of these records are
//! complete. Two numbers in a page that both have mapped.
//!
//! Invariant: `complete` is at most `recorded`, and neither ever falls.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::store::set_size;
use rustix::mm::{MapFlags, ProtFlags};

/// Nobody announces what another process does: it is looked at again so soon.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
const NAME: &str = "softgpu-event";
const PAGE: usize = 4096;

/// A mapped page with the two numbers.
pub struct Mark {
    page: NonNull<Page>,
    fd: OwnedFd,
}

#[repr(C)]
struct Page {
    recorded: AtomicU64,
    complete: AtomicU64,
}

// SAFETY: the page is only used through its atomics, and unmapped by nobody but the last owner.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    /// A new one; the page begins with zeroes.
    pub fn create() -> Option<Mark> {
        let fd = rustix::fs::memfd_create(NAME, rustix::fs::MemfdFlags::CLOEXEC).ok()?;
        set_size(&fd, PAGE as u64).ok()?;
        Mark::map(fd)
    }

    /// The one that another process has behind a descriptor of its own.
    pub fn of_another(pid: u32, fd: u32) -> Option<Mark> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let ours = std::fs::read_link(&path).ok()?.to_string_lossy().contains(NAME);
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).ok()?;
        if ours && pid != std::process::id() { Mark::map(file.into()) } else { None }
    }

    fn map(fd: OwnedFd) -> Option<Mark> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: the system picks addresses that nobody uses; the file has that many bytes.
        let page = unsafe { rustix::mm::mmap(null, PAGE, rights, MapFlags::SHARED, fd.as_fd(), 0) };
        Some(Mark { page: NonNull::new(page.ok()?.cast())?, fd })
    }

    /// Where other processes find it: a process and a descriptor of it.
    pub fn address(&self) -> (u32, u32) {
        (std::process::id(), self.fd.as_raw_fd().unsigned_abs())
    }

    /// One record more; its number.
    pub fn begin(&self) -> u64 {
        self.page().recorded.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The record of that number is complete, and those before it.
    pub fn finish(&self, number: u64) {
        self.page().complete.fetch_max(number, Ordering::SeqCst);
    }

    /// The number of the last record.
    pub fn last(&self) -> u64 {
        self.page().recorded.load(Ordering::SeqCst)
    }

    /// Whether the record of that number is complete.
    pub fn is_complete(&self, number: u64) -> bool {
        self.page().complete.load(Ordering::SeqCst) >= number
    }

    /// Returns when the record of that number is complete, or nobody waits any more.
    pub fn wait(&self, number: u64, given_up: impl Fn() -> bool) {
        while !self.is_complete(number) && !given_up() {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped by `map`, aligned as pages are, and unmapped only when this is dropped.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: `map` mapped this page, and nobody refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}
