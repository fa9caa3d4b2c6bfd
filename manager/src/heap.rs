//! How much of the heap something takes, for tests: this crate's unit tests allocate through a counter.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that the thread has allocated, less those that it has freed.
    static NET: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    NET.set(NET.get() + change);
}

// SAFETY: the system's allocator, whose results are passed on as they are; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

/// What is made, and how many bytes of the heap it holds then.
pub fn held_by<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = NET.get();
    let made = make();
    (made, usize::try_from(NET.get() - before).unwrap_or(0))
}
