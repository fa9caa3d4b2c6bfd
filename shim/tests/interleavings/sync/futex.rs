//! `futex(2)`: the kernel looks at the word and puts the thread to sleep under one lock, and whoever
//! wakes others takes that lock too.

use super::atomic::{AtomicU32, Ordering};
use super::{Condvar, Mutex};
use std::time::Duration;

loom::lazy_static! {
    static ref KERNEL: Kernel = Kernel { bucket: Mutex::new(()), woken: Condvar::new() };
}

struct Kernel {
    bucket: Mutex<()>,
    woken: Condvar,
}

pub fn wait(word: &AtomicU32, value: u32) {
    let mut bucket = KERNEL.bucket.lock();
    if word.load(Ordering::Relaxed) == value {
        KERNEL.woken.wait(&mut bucket);
    }
}

/// No model comes to a moment.
pub fn wait_at_most(word: &AtomicU32, value: u32, _time: Duration) {
    wait(word, value);
}

pub fn wake_all(_word: &AtomicU32) {
    let _bucket = KERNEL.bucket.lock();
    KERNEL.woken.notify_all();
}
