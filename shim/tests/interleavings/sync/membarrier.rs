//! `membarrier(2)`: every other thread executes a full barrier at some moment of the closer's call.
//!
//! Each thread has a place at which it and the closer pass each other. A light side passes the
//! place of its own thread, a heavy side that of every thread, one after the other. Of two that
//! pass a place, the second sees all that the first had written before: just what a barrier
//! in the midst of that thread does to both. Two light sides have no place in common, and order nothing; nor
//! does any light side without a heavy one.

use super::atomic::{AtomicUsize, Ordering};
use std::cell::Cell;

loom::lazy_static! {
    static ref PLACES: [AtomicUsize; loom::MAX_THREADS] = Default::default();
}

std::thread_local! {
    /// How many threads of the present run have a place.
    static THREADS: Cell<usize> = const { Cell::new(0) };
}

loom::thread_local! {
    /// The thread's place.
    static PLACE: usize = THREADS.replace(THREADS.get() + 1);
}

/// A run of a model begins: the places are there before any thread is.
pub fn begin() {
    THREADS.set(0);
    assert_eq!(PLACES.len(), loom::MAX_THREADS);
}

pub fn register() -> bool {
    true
}

pub fn light() {
    PLACE.with(|place| pass(*place));
}

pub fn heavy() -> bool {
    (0..PLACES.len()).for_each(pass);
    true
}

fn pass(place: usize) {
    PLACES[place].fetch_add(1, Ordering::AcqRel);
}
