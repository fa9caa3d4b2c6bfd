//! Host memory for saved bytes: a memory file, touched ahead, page-locked for the GPU's copies.
//!
//! ```text
//! anywhere   memory file ─► map ─────────► touch ─► page-lock
//! a node     memory file ─► map ─► bind ─► touch ─► page-lock, one mover at a time ─► verify: did it stay there?
//! a device                  map its part ► touch ─► page-lock
//! ```

use super::gpu::log_release;
use super::{Gpu, OutOfBounds, check_bounds};
use crate::hardware::Machine;
use crate::mover::{progress, zeros};
use crate::numa::{self, Node, STAY_ADVICE};
use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise, munmap};
use std::fs::File;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::os::{self, pages};
use tidegate_ffi::wire::{create_sealed, is_sealed};

/// Host memory that copies may read and write. The fields are dropped in this order: memory is
/// unlocked before it is unmapped.
pub struct HostMemory {
    lock: Option<PageLock>,
    mapping: Mapping,
    /// Where all its pages should lie, if not just anywhere.
    node: Option<u32>,
}

/// Where memory comes from.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// The system.
    Anywhere,
    /// One NUMA node, and no other.
    Node(u32),
    /// A file from this byte on: a device of memory.
    File(&'a OwnedFd, u64),
}

/// Memory cannot be had, or not where it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostMemoryError {
    /// The system gave none.
    #[error("the system gives no {bytes} bytes of memory ({errno})")]
    None {
        /// Asked for.
        bytes: u64,
        /// Its word.
        errno: Errno,
    },
    /// It was not touched: the system would have killed somebody for it.
    #[error("NUMA node {node} has {free} bytes free, and {bytes} are wanted")]
    NodeFull {
        /// Which.
        node: u32,
        /// There.
        free: u64,
        /// Asked for.
        bytes: u64,
    },
    /// The system does not let this process choose.
    #[error("memory cannot be bound to NUMA node {node} ({errno}); {}", may_choose(*errno))]
    Unbound {
        /// Which.
        node: u32,
        /// Its word.
        errno: Errno,
    },
    /// Nor ask.
    #[error("it cannot be told whether memory lies on NUMA node {node} ({errno}); {}", may_choose(*errno))]
    Unverified {
        /// Which.
        node: u32,
        /// Its word.
        errno: Errno,
    },
    /// It went elsewhere when it was page-locked.
    #[error(
        "{strays} of {pages} pages do not lie on NUMA node {node} where they were bound to; the first {}: {STAY_ADVICE}",
        whereabouts(*first)
    )]
    Strayed {
        /// Where they should lie.
        node: u32,
        /// How many do not.
        strays: usize,
        /// How many there are.
        pages: usize,
        /// The node of the first of them; less than 0: on none.
        first: i32,
    },
}

fn may_choose(errno: Errno) -> &'static str {
    match errno {
        Errno::PERM | Errno::NOSYS => {
            "in a container give the manager CAP_SYS_NICE, which lets it choose where memory lies"
        }
        _ => "/sys/devices/system/node/has_memory names the nodes that have memory",
    }
}

fn whereabouts(node: i32) -> String {
    match node {
        0.. => format!("is on node {node}"),
        _ => format!("is nowhere ({})", Errno::from_raw_os_error(-node)),
    }
}

impl HostMemoryError {
    /// Whether the memory may well be had at another time.
    pub fn is_shortage(self) -> bool {
        matches!(self, HostMemoryError::None { .. } | HostMemoryError::NodeFull { .. })
    }
}

impl HostMemory {
    /// `bytes` bytes in whole pages, all of them present: of a node, on that node.
    pub fn new(bytes: u64, place: Place<'_>) -> Result<Self, HostMemoryError> {
        let none = |errno| HostMemoryError::None { bytes, errno };
        let mapping = match place {
            Place::File(file, start) => Mapping::part_of(file, start, bytes as usize),
            _ => Mapping::make(bytes as usize),
        };
        let memory = Self { lock: None, mapping: mapping.map_err(none)?, node: place.node() };
        if let Some(node) = memory.node {
            memory.bind(node)?;
        }
        memory.mapping.touch().map_err(none)?;
        Ok(memory)
    }

    /// The memory that another process made, by its file; `bytes` bytes of it, where the file has more.
    pub fn adopt(file: OwnedFd, bytes: u64, place: Place<'_>) -> Result<Self, HostMemoryError> {
        let mapping = match place {
            // A memory file has seals, a device has none.
            Place::File(_, start) if !is_sealed(file.as_fd()) => Mapping::map(file, start, bytes as usize),
            _ => Mapping::adopt(file),
        };
        let none = |errno| HostMemoryError::None { bytes, errno };
        let memory = Self { lock: None, mapping: mapping.map_err(none)?, node: place.node() };
        if memory.node.is_some() {
            // What another process has touched is not yet in this one's page tables, where it is looked for.
            memory.mapping.touch().map_err(none)?;
        }
        Ok(memory)
    }

    /// Has its pages come from a node, while that has enough: the system kills for the last page of one.
    fn bind(&self, node: u32) -> Result<(), HostMemoryError> {
        let bytes = self.bytes();
        let room = Node::of(&Machine::at("/"), node).map(|node| node.room());
        if let Some(free) = room.filter(|free| *free < bytes) {
            return Err(HostMemoryError::NodeFull { node, free, bytes });
        }
        let bound = pages::bind(self.mapping.address.cast(), self.mapping.bytes, node);
        bound.map_err(|errno| HostMemoryError::Unbound { node, errno })
    }

    /// Whether all its pages lie where they should, which page-locking may have changed.
    pub fn verify(&self) -> Result<(), HostMemoryError> {
        let Some(node) = self.node else { return Ok(()) };
        let (address, bytes) = (self.mapping.address.cast(), self.mapping.bytes);
        let nodes = pages::nodes_of(address, bytes, page_bytes() as usize);
        let nodes = nodes.map_err(|errno| HostMemoryError::Unverified { node, errno })?;
        let mut strays = nodes.iter().filter(|there| i64::from(**there) != i64::from(node)).peekable();
        match strays.peek().copied() {
            None => Ok(()),
            Some(&first) => {
                Err(HostMemoryError::Strayed { node, strays: strays.count(), pages: nodes.len(), first })
            }
        }
    }

    /// Whether they would be there still if they were page-locked, as far as the system lets that be tried
    /// without a GPU.
    pub fn verify_pinned(&self) -> Result<(), HostMemoryError> {
        let pinned = pages::pin(self.mapping.address.cast(), self.mapping.bytes);
        if let Err(errno) = &pinned {
            tracing::debug!(%errno, "memory cannot be pinned by way of trial");
        }
        self.verify()
    }

    /// A descriptor by which another process has the memory too.
    pub fn share(&self) -> std::io::Result<OwnedFd> {
        os::duplicate(&self.mapping.file)
    }

    /// Page-locks it, so that copies run at the link's speed and asynchronously.
    pub fn lock(&mut self, gpu: &Rc<Gpu>) -> Result<(), DriverError> {
        if self.lock.is_none() {
            let _turn = self.node.and_then(Turn::of);
            self.lock = Some(PageLock::make(gpu, &self.mapping)?);
        }
        Ok(())
    }

    /// Whether it is page-locked.
    pub fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    /// Some of its bytes.
    pub fn range(&self, start: u64, bytes: u64) -> Result<HostRange<'_>, OutOfBounds> {
        HostRange::new(self.mapping.address, self.bytes()).slice(start, bytes)
    }

    /// Where it lies in this process.
    pub(super) fn address(&self) -> NonNull<u8> {
        self.mapping.address
    }
}

/// Bytes of host memory.
#[derive(Clone, Copy)]
pub struct HostRange<'a> {
    /// Where the memory begins that it lies in: what is page-locked apart is copied apart.
    memory: NonNull<u8>,
    address: NonNull<u8>,
    bytes: u64,
    within: PhantomData<&'a HostMemory>,
}

impl<'a> HostRange<'a> {
    /// A memory of so many bytes at an address, which stays there as long as the result is used.
    pub(super) fn new(address: NonNull<u8>, bytes: u64) -> Self {
        Self { memory: address, address, bytes, within: PhantomData }
    }

    /// Some of its bytes.
    pub fn slice(self, start: u64, bytes: u64) -> Result<Self, OutOfBounds> {
        check_bounds(start, bytes, self.bytes)?;
        // SAFETY: the result is inside the range, or one past its end (just checked).
        Ok(Self { address: unsafe { self.address.add(start as usize) }, bytes, ..self })
    }

    /// The first so many bytes (all, if there are fewer), and the rest.
    pub(super) fn split(self, at: u64) -> (Self, Self) {
        let at = at.min(self.bytes);
        // SAFETY: the result is inside the range, or one past its end (just seen to).
        let rest = unsafe { self.address.add(at as usize) };
        (Self { bytes: at, ..self }, Self { address: rest, bytes: self.bytes - at, ..self })
    }

    /// Whether another begins where it ends, in the same memory.
    pub(super) fn is_followed_by(self, next: Self) -> bool {
        self.memory == next.memory && self.end() == next.address.addr().get() as u64
    }

    /// From its first byte to the last of another, which lies behind it in the same memory.
    pub(super) fn to(self, last: Self) -> Self {
        Self { bytes: last.end() - self.address.addr().get() as u64, ..self }
    }

    fn end(self) -> u64 {
        self.address.addr().get() as u64 + self.bytes
    }

    /// Where it has runs of zeros, in order.
    pub fn zeros(self) -> Vec<Range<u64>> {
        // SAFETY: present memory, borrowed and so mapped as long. Nobody writes it meanwhile: a copy is waited for
        // before the call that submits it returns, and whoever else has the file keeps it for the next mover.
        let bytes = unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes as usize) };
        zeros::runs(bytes)
    }

    /// Fills it with as many bytes from elsewhere: the shorter of the two says how many.
    pub fn copy_from(self, from: HostRange<'_>) {
        let bytes = self.bytes.min(from.bytes) as usize;
        // SAFETY: present memory, borrowed and so mapped as long, of at least so many bytes each. Nobody else reads or
        // writes either meanwhile (see `zeros`). `copy` allows that they overlap.
        unsafe { std::ptr::copy(from.address.as_ptr(), self.address.as_ptr(), bytes) };
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// So much memory is made present in one step: some huge pages.
const TOUCHED_AT_ONCE: usize = 8 << 20;
/// By so many threads at most: a processor alone fills some GB/s of new pages with zeros.
const TOUCHED_BY: usize = 8;

/// The memory of a page.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// A mapped memory file: named in /proc, and such that it can be passed to another process.
struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
}

impl Mapping {
    fn make(bytes: usize) -> Result<Self, Errno> {
        Self::map(create_sealed("tidegate-saved", bytes as u64)?, 0, bytes)
    }

    fn part_of(file: &OwnedFd, start: u64, bytes: usize) -> Result<Self, Errno> {
        let file = os::duplicate(file).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Self::map(file, start, bytes)
    }

    fn adopt(file: OwnedFd) -> Result<Self, Errno> {
        if !is_sealed(file.as_fd()) {
            return Err(Errno::PERM);
        }
        let bytes = fstat(&file)?.st_size as usize;
        Self::map(file, 0, bytes)
    }

    fn map(file: OwnedFd, start: u64, bytes: usize) -> Result<Self, Errno> {
        Ok(Self { address: os::map_shared_at(&file, start, bytes)?.cast(), bytes, file })
    }

    /// Makes all pages present, huge ones where the system has them: a page that is missing later
    /// would end the process instead of the order.
    fn touch(&self) -> Result<(), Errno> {
        // SAFETY: the whole mapping is ours; the advice changes no bytes.
        let _huge = unsafe { madvise(self.address.as_ptr().cast(), self.bytes, Advice::LinuxHugepage) };
        let next = AtomicUsize::new(0);
        let touch = || self.touch_parts(&next);
        let helpers =
            self.bytes.div_ceil(TOUCHED_AT_ONCE).min(TOUCHED_BY).min(processors()).saturating_sub(1);
        std::thread::scope(|scope| {
            // What cannot be started does without: this thread touches what others do not.
            let start = |_| Builder::new().name("touch".into()).spawn_scoped(scope, touch).ok();
            let helpers: Vec<_> = (0..helpers).filter_map(start).collect();
            let own = touch();
            let theirs = helpers.into_iter().map(|helper| helper.join().unwrap_or(Err(Errno::CANCELED)));
            theirs.fold(own, Result::and)
        })
    }

    /// Makes those parts present that no other thread has begun.
    fn touch_parts(&self, next: &AtomicUsize) -> Result<(), Errno> {
        loop {
            let start = next.fetch_add(TOUCHED_AT_ONCE, Ordering::Relaxed);
            if start >= self.bytes {
                return Ok(());
            }
            let bytes = TOUCHED_AT_ONCE.min(self.bytes - start);
            // SAFETY: the part begins inside the mapping, and ends with it at most.
            let part = unsafe { self.address.add(start) };
            // SAFETY: the whole mapping is ours.
            match unsafe { os::populate(part.cast(), bytes) } {
                // Kernels before 5.14 cannot; page-locking or the first copy touches the pages then.
                Err(Errno::INVAL) => return Ok(()),
                outcome => outcome?,
            }
            progress::step();
        }
    }
}

// SAFETY: a mapping is an address, a length and a descriptor, none of which changes; through a shared reference pages are
// made present, which the kernel lets any thread do, and changes no byte.
unsafe impl Sync for Mapping {}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `make` got. Nobody uses it any more: ranges borrow the
        // HostMemory, copies end before their ranges do, and its page lock is dropped before.
        if let Err(errno) = unsafe { munmap(self.address.as_ptr().cast(), self.bytes) } {
            tracing::warn!(%errno, "saved bytes' memory cannot be unmapped");
        }
    }
}

impl Place<'_> {
    fn node(self) -> Option<u32> {
        match self {
            Place::Node(node) => Some(node),
            Place::Anywhere | Place::File(..) => None,
        }
    }
}

/// How long the movers of other GPUs may take to page-lock their memory of the same node.
const TURN: Duration = Duration::from_secs(5);

/// Whose turn it is to page-lock memory of a node: one mover's at a time. Released by death.
struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits for it, not for ever: any user can keep it.
    fn of(node: u32) -> Option<Self> {
        let directory = File::open(numa::directory(node)).ok()?;
        let began = Instant::now();
        while flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
            if began.elapsed() > TURN {
                tracing::warn!(
                    node,
                    "somebody else keeps the lock on this NUMA node: memory is page-locked without it"
                );
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
            progress::step();
        }
        Some(Self { _lock: directory })
    }
}

/// The driver's lock on memory. Keeps the GPU, and so its context, until it is undone.
struct PageLock {
    gpu: Rc<Gpu>,
    address: NonNull<u8>,
}

impl PageLock {
    fn make(gpu: &Rc<Gpu>, mapping: &Mapping) -> Result<Self, DriverError> {
        gpu.engage()?;
        // SAFETY: the whole mapping, which stays until this lock is undone (HostMemory's order).
        unsafe { gpu.driver().cuMemHostRegister_v2(mapping.address.as_ptr().cast(), mapping.bytes, 0) }?;
        Ok(Self { gpu: gpu.clone(), address: mapping.address })
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        // SAFETY: registered by `make`, undone once, here; no copy uses the memory any more.
        let undone = unsafe { self.gpu.driver().cuMemHostUnregister(self.address.as_ptr().cast()) };
        log_release("a page lock", undone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn memory_of_a_node_is_page_locked_by_one_at_a_time() {
        let Some(turn) = Turn::of(0) else { return };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| {
                let _turn = Turn::of(0);
                is_over.load(Ordering::SeqCst)
            });
            std::thread::sleep(Duration::from_millis(100));
            is_over.store(true, Ordering::SeqCst);
            drop(turn);
            assert!(next.join().unwrap(), "it was the other's turn still");
        });
    }
}
