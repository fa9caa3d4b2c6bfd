//! The progress of a program's threads, in a file that the program and the test both map.
#![allow(dead_code, reason = "the program and the test each use their own part")]

use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Each process has this many slots: its threads, then the thread that serves value waits.
pub const SLOTS_PER_PROCESS: usize = 8;
/// The processes of one program.
pub const PROCESSES: usize = 6;
const WORDS: usize = 8;
const SLOTS: usize = PROCESSES * SLOTS_PER_PROCESS;
const ASKED: u64 = 1;
const BECOMING: u64 = 2;
const BYTES: usize = (SLOTS + 1) * WORDS * 8;

/// What a thread can be doing. A slot holds the index.
pub const ACTIONS: [&str; 22] = [
    "not started",
    "on the CPU",
    "cuInit",
    "cuDevicePrimaryCtxRetain",
    "cuModuleLoad",
    "cuMemAlloc",
    "cuMemAllocAsync",
    "cuMemAllocManaged",
    "cuMemFree",
    "cuMemFreeAsync",
    "copy to the GPU",
    "copy from the GPU",
    "cuLaunchKernel",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuGraphLaunch",
    "cuStreamWaitValue32",
    "cuStreamWriteValue32",
    "tidegate_boundary",
    "barrier between ranks",
    "capture",
    "end",
];

/// The words of a slot.
#[derive(Clone, Copy)]
pub enum Word {
    /// Steps that were made.
    Steps,
    /// The index of an action.
    Action,
    /// Allocations that were refused.
    Refusals,
    /// Bytes that the thread has.
    Live,
    /// Iterations that were begun, for the barrier between ranks.
    Iteration,
    /// 1: the thread makes no more steps.
    Done,
    /// The thread's number in the system.
    Thread,
}

/// A mapped file.
#[derive(Clone, Copy)]
pub struct Board(&'static [AtomicU64]);

impl Board {
    /// Maps a file, which is made where it is missing. The mapping is never ended.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(BYTES as u64)?;
        // SAFETY: the system chooses the place.
        let at = unsafe {
            mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        }?;
        // SAFETY: as many aligned words as were mapped; they stay mapped, and are only used as atomics.
        Ok(Self(unsafe { std::slice::from_raw_parts(at.cast(), BYTES / 8) }))
    }

    /// All programs are asked to end in order.
    pub fn ask_to_end(&self) {
        self.0[0].store(1, Ordering::SeqCst);
    }

    /// Whether [`Board::ask_to_end`] was called.
    pub fn is_asked_to_end(&self) -> bool {
        self.0[0].load(Ordering::SeqCst) == 1
    }

    /// The program is asked to become itself anew, by execve(2).
    pub fn ask_to_become(&self) {
        self.0[1].store(ASKED, Ordering::SeqCst);
    }

    /// Whether it was asked to, and nothing came of it yet.
    pub fn is_to_become(&self) -> bool {
        self.0[1].load(Ordering::SeqCst) != 0
    }

    /// Whether it was asked to. The program begins to: the next one says that it has come.
    pub fn begin_to_become(&self) -> bool {
        self.0[1].compare_exchange(ASKED, BECOMING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// A program has come.
    pub fn come(&self) {
        // It was not asked yet if it is the first one.
        let _ = self.0[1].compare_exchange(BECOMING, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The slot of a thread of a process.
    pub fn slot(self, process: usize, thread: usize) -> Slot {
        Slot { board: self, first: (1 + process * SLOTS_PER_PROCESS + thread) * WORDS }
    }

    /// All slots.
    pub fn slots(self) -> impl Iterator<Item = Slot> {
        (0..SLOTS).map(move |slot| self.slot(0, slot))
    }
}

/// The words of one thread.
#[derive(Clone, Copy)]
pub struct Slot {
    board: Board,
    first: usize,
}

impl Slot {
    /// Reads a word.
    pub fn get(&self, word: Word) -> u64 {
        self.board.0[self.first + word as usize].load(Ordering::SeqCst)
    }

    /// Writes a word.
    pub fn set(&self, word: Word, value: u64) {
        self.board.0[self.first + word as usize].store(value, Ordering::SeqCst);
    }

    /// Counts one.
    pub fn count(&self, word: Word) {
        self.board.0[self.first + word as usize].fetch_add(1, Ordering::SeqCst);
    }

    /// Notes the action that begins.
    pub fn begin(&self, action: &str) {
        let index = ACTIONS.iter().position(|known| *known == action).expect("a known action");
        self.set(Word::Action, index as u64);
    }

    /// The action that was begun last.
    pub fn action(&self) -> &'static str {
        ACTIONS[self.get(Word::Action) as usize]
    }
}
