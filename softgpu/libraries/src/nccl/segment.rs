//! The shared memory of a communicator.
//!
//! ```text
//! Header │ Rank × N │ Channel × N² │ ring × N²        a channel and a ring for each pair (from, to)
//! ```
//! Freshly made, it is all zeros, which is its valid first state. Everything but the rings is atomic.

use super::{Answer, Failure};
use std::fs::File;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The most ranks of a communicator.
pub const MOST_RANKS: usize = 256;
/// What all rings together take, if that leaves each at least [`LEAST_RING`].
const RINGS: u64 = 16 << 20;
const LEAST_RING: u64 = 4 << 10;
const MOST_RING: u64 = 1 << 20;

/// Where messages begin in a ring: elements of any type are aligned there, and lie within one lap.
pub const ALIGNMENT: u64 = 16;

/// What a rank is. [`State::of`] reads it, [`State::number`] writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not joined.
    Absent,
    /// It takes part.
    Active,
    /// Its communicator was destroyed or aborted.
    Left,
    /// Its process has ended.
    Dead,
    /// Its communicator has an error, of this code.
    Failed(i32),
}

impl State {
    const FAILED: u32 = 16;

    fn of(number: u32) -> Self {
        match number {
            0 => Self::Absent,
            1 => Self::Active,
            2 => Self::Left,
            3 => Self::Dead,
            number => Self::Failed(number.wrapping_sub(Self::FAILED) as i32),
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Absent => 0,
            Self::Active => 1,
            Self::Left => 2,
            Self::Dead => 3,
            Self::Failed(code) => Self::FAILED + code as u32,
        }
    }
}

#[repr(C, align(64))]
pub struct Header {
    /// How many ranks the communicator has; 0: no rank has joined.
    pub ranks: AtomicU32,
    pub joined: AtomicU32,
}

/// What the ranks know of each other.
#[repr(C, align(64))]
pub struct Rank {
    state: AtomicU32,
    /// Raised for each event that concerns this rank, which waits for that.
    bell: AtomicU32,
    pub process: AtomicU32,
    /// When the process was started, in the kernel's unit.
    pub started: AtomicU64,
    /// Which GPU it uses: machine, and UUID.
    pub gpu: [AtomicU64; 3],
    /// For `ncclCommSplit`, alternating.
    pub splits: [Split; 2],
}

#[repr(C)]
pub struct Split {
    /// How many splits there have been with this one, when it is written.
    pub number: AtomicU32,
    pub color: AtomicI32,
    pub key: AtomicI32,
}

/// From one rank to another.
#[repr(C, align(64))]
pub struct Channel {
    /// The sender's next operation.
    pub offer: Slot,
    /// The receiver's next message, as it expects it.
    pub accept: Slot,
    /// Bytes written to and read from the ring so far.
    pub written: AtomicU64,
    pub read: AtomicU64,
}

/// Room for one description of an operation.
#[repr(C)]
pub struct Slot {
    posted: AtomicU32,
    taken: AtomicU32,
    words: [AtomicU64; 5],
}

/// A description of an operation: kind, count, element, reduction, root.
pub type Words = [u64; 5];

impl Slot {
    /// Puts a description there, if the one before it has been taken.
    pub fn post(&self, words: &Words) -> bool {
        let posted = self.posted.load(Ordering::Acquire);
        if posted != self.taken.load(Ordering::Acquire) {
            return false;
        }
        self.words.iter().zip(words).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
        self.posted.store(posted.wrapping_add(1), Ordering::Release);
        true
    }

    /// Takes the description that is there.
    pub fn take(&self) -> Option<Words> {
        let taken = self.taken.load(Ordering::Acquire);
        if self.posted.load(Ordering::Acquire) == taken {
            return None;
        }
        let words = std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
        Some(words)
    }
}

/// A mapping of such memory.
pub struct Segment {
    base: usize,
    ranks: usize,
}

/// Where the parts of a segment lie.
struct Layout {
    channels: usize,
    rings: usize,
    ring: u64,
    bytes: usize,
}

impl Layout {
    fn of(ranks: usize) -> Self {
        let pairs = ranks * ranks;
        let ring = (RINGS / pairs.max(1) as u64).clamp(LEAST_RING, MOST_RING);
        let ring = if ring.is_power_of_two() { ring } else { ring.next_power_of_two() / 2 };
        let channels = size_of::<Header>() + ranks * size_of::<Rank>();
        let rings = (channels + pairs * size_of::<Channel>()).next_multiple_of(4096);
        Self { channels, rings, ring, bytes: rings + pairs * ring as usize }
    }
}

impl Segment {
    /// Maps the segment in `file`, made for so many ranks; memory is reserved for it if it is empty.
    ///
    /// # Errors
    /// A system call failed, or the rank that made the segment was given another number of ranks.
    pub fn map(file: &File, ranks: usize) -> Answer<Self> {
        let layout = Layout::of(ranks);
        let length =
            file.metadata().map_err(|error| Failure::of_system("looking at the segment", &error))?.len();
        if length == 0 {
            // SAFETY: a descriptor of ours.
            let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, layout.bytes as i64) };
            if error != 0 {
                let error = std::io::Error::from_raw_os_error(error);
                return Err(Failure::of_system("reserving shared memory for a communicator", &error));
            }
        } else if length != layout.bytes as u64 {
            return Err(Failure::argument("the ranks disagree on how many they are"));
        }
        let (protection, null) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
        // SAFETY: a new mapping, wherever the system puts it.
        let base =
            unsafe { libc::mmap(null, layout.bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(Failure::system("mapping the shared memory of a communicator"));
        }
        Ok(Self { base: base as usize, ranks })
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with it and lasts as long as `self`; it consists of atomics.
        unsafe { &*(self.base as *const Header) }
    }

    /// A rank, which there must be: else it is the last one.
    pub fn rank(&self, rank: usize) -> &Rank {
        let rank = rank.min(self.ranks - 1);
        // SAFETY: there are `ranks` of them behind the header, within the mapping; they consist of atomics.
        unsafe { &*((self.base + size_of::<Header>()) as *const Rank).wrapping_add(rank) }
    }

    fn pair(&self, from: usize, to: usize) -> usize {
        from.min(self.ranks - 1) * self.ranks + to.min(self.ranks - 1)
    }

    pub fn channel(&self, from: usize, to: usize) -> &Channel {
        let at = self.base + Layout::of(self.ranks).channels;
        // SAFETY: there is one for each pair, within the mapping; they consist of atomics.
        unsafe { &*(at as *const Channel).wrapping_add(self.pair(from, to)) }
    }

    /// The ring of a pair: `ring_bytes` of them.
    pub fn ring(&self, from: usize, to: usize) -> *mut u8 {
        let layout = Layout::of(self.ranks);
        (self.base + layout.rings + self.pair(from, to) * layout.ring as usize) as *mut u8
    }

    /// Bytes of each ring: a power of two.
    pub fn ring_bytes(&self) -> u64 {
        Layout::of(self.ranks).ring
    }

    pub fn state(&self, rank: usize) -> State {
        State::of(self.rank(rank).state.load(Ordering::SeqCst))
    }

    /// Another state for a rank that is `before`; every rank learns of it. `false`: it was something else.
    pub fn change(&self, rank: usize, before: State, state: State) -> bool {
        let place = &self.rank(rank).state;
        let changed = place
            .compare_exchange(before.number(), state.number(), Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        if changed {
            self.call_all();
        }
        changed
    }

    /// Wakes a rank: something that it may wait for has happened.
    pub fn call(&self, rank: usize) {
        let bell = &self.rank(rank).bell;
        bell.fetch_add(1, Ordering::SeqCst);
        // SAFETY: a word of the mapping; no time, nothing else is read.
        unsafe {
            libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0usize, 0usize, 0)
        };
    }

    pub fn call_all(&self) {
        (0..self.ranks).for_each(|rank| self.call(rank));
    }

    /// How often a rank has been called. What is looked at after this is not missed by [`Segment::wait`].
    pub fn calls(&self, rank: usize) -> u32 {
        self.rank(rank).bell.load(Ordering::SeqCst)
    }

    /// Waits until a rank has been called more often than `calls`, no longer than `patience`.
    pub fn wait(&self, rank: usize, calls: u32, patience: Option<Duration>) {
        let time = patience.map(|patience| libc::timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let bell = self.rank(rank).bell.as_ptr();
        // SAFETY: a word of the mapping, and null or a time that lives through the call. An early return is
        // allowed: callers look again.
        unsafe { libc::syscall(libc::SYS_futex, bell, libc::FUTEX_WAIT, calls, time, 0usize, 0) };
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size; no reference outlives `self`.
        unsafe { libc::munmap(self.base as *mut libc::c_void, Layout::of(self.ranks).bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_bounded_and_its_parts_are_aligned() {
        for ranks in 1..=MOST_RANKS {
            let Layout { channels, rings, ring, bytes } = Layout::of(ranks);
            assert!(ring.is_power_of_two() && (LEAST_RING..=MOST_RING).contains(&ring), "{ranks}: {ring}");
            assert_eq!(channels % align_of::<Channel>(), 0, "{ranks}");
            let most = RINGS.max(LEAST_RING * (ranks * ranks) as u64);
            assert!((bytes - rings) as u64 <= most, "{ranks}: {bytes}");
        }
    }

    #[test]
    fn a_slot_holds_one_description_until_it_is_taken() {
        // SAFETY: atomics, for which zeros are valid.
        let slot: Slot = unsafe { std::mem::zeroed() };
        assert_eq!(slot.take(), None);
        assert!(slot.post(&[1, 2, 3, 4, 5]));
        assert!(!slot.post(&[6; 5]));
        assert_eq!(slot.take(), Some([1, 2, 3, 4, 5]));
        assert_eq!(slot.take(), None);
        assert!(slot.post(&[6; 5]));
    }

    #[test]
    fn states_pass_through_their_numbers() {
        for state in [State::Absent, State::Active, State::Left, State::Dead, State::Failed(5)] {
            assert_eq!(State::of(state.number()), state);
        }
    }
}
