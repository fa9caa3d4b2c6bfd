//! `membarrier(2)`: each thread executes a full barrier at some moment of the closer's call, and
//! nothing else happens.
//!
//! So for each thread there is one place where it and the closer pass each other. A light
//! side passes its own thread's place, a heavy side that of every thread, in any order and not at
//! once. Of two that pass one place the second sees all that the first had written: that is what the barrier
//! in the other thread does to it. Two light sides share no place and order nothing, nor does any where
//! no heavy side is.

use super::atomic::{AtomicUsize, Ordering};
use std::cell::Cell;

loom::lazy_static! {
    static ref PLACES: [AtomicUsize; loom::MAX_THREADS] = Default::default();
}

std::thread_local! {
    /// How many threads of the model's present run have passed a light side.
    static THREADS: Cell<usize> = const { Cell::new(0) };
}

loom::thread_local! {
    static THREAD: usize = THREADS.replace(THREADS.get() + 1);
}

/// A run of a model begins.
pub fn begin() {
    THREADS.set(0);
    pass(0);
}

pub fn register() -> bool {
    true
}

pub fn light() {
    THREAD.with(|thread| pass(*thread));
}

pub fn heavy() {
    (0..PLACES.len()).for_each(pass);
}

fn pass(place: usize) {
    PLACES[place].fetch_add(1, Ordering::AcqRel);
}
