//! Between the making of a hazard tracker and its end nothing is allocated or freed, whatever operations do.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tidegate_ffi::hazard::tracker::{Capacity, OperationId, Otherwise, Submitted, Tracker};
use tidegate_ffi::hazard::{Operand, Span};

thread_local! {
    /// Calls of the allocator by this thread.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
struct Counting;

fn count() {
    CALLS.set(CALLS.get() + 1);
}

// SAFETY: each method passes its arguments on to `System`, which keeps the trait's promises, and
// counting neither allocates nor unwinds: the thread's number is there from the beginning.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps what `alloc` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps what `dealloc` asks for, and `System` made the pointer.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps what `realloc` asks for, and `System` made the pointer.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const OPERATIONS: u64 = 300;

/// Many that overlap, in an order that is none.
fn operands(number: u64) -> [Operand<Span>; 3] {
    let span = |salt: u64| {
        let start = number.wrapping_mul(2_654_435_761).wrapping_add(salt * 977) % 2000;
        Span::new(start, start + 1 + number * salt % 40)
    };
    [Operand::read(span(1)), Operand::write(span(2)), Operand::read_write(span(3))]
}

/// Fills the tracker until it is full, lets regions shrink and all operations finish: how many have run, and how
/// often it was full.
fn play(tracker: &mut Tracker<Span>, ready: &mut Vec<OperationId>, from: u64) -> [u64; 2] {
    let [mut ran, mut full] = [0; 2];
    for number in from..from + OPERATIONS {
        match tracker.submit(&operands(number), Otherwise::Buffer).expect("three operands find room") {
            Submitted::Ready(id) => ready.push(id),
            Submitted::Full(_) => full += 1,
            Submitted::Buffered(..) | Submitted::Blocked(_) => (),
        }
    }
    while let Some(id) = ready.pop() {
        tracker.shrink(id, 2, Span::default(), |woken| ready.push(woken)).expect("it runs");
        tracker.complete(id, |woken| ready.push(woken)).expect("it runs");
        ran += 1;
    }
    [ran, full]
}

#[test]
fn submit_and_complete_allocate_nothing() {
    let mut tracker = Tracker::new(Capacity { operations: 256, operands: 768, edges: 4096 });
    let mut ready = Vec::with_capacity(OPERATIONS as usize);
    let before = CALLS.get();
    assert!(before > 0, "the allocator counts");
    for round in 0..100 {
        let [ran, full] = play(&mut tracker, &mut ready, round * 31);
        assert!(ran > 100 && full > 0 && tracker.is_empty(), "{ran} ran, it was full {full} times");
    }
    assert_eq!(CALLS.get() - before, 0, "calls of the allocator");
}
