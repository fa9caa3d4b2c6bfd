//! The shim's `sync` in a model: the same names, made of `loom`'s types.

pub mod futex;
pub mod membarrier;
pub mod thread_word;

pub use loom::sync::{atomic, mpsc};

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Runs a model in all schedules with no more than so many preemptions (or
/// `LOOM_MAX_PREEMPTIONS`). The test that calls it does nothing else.
pub fn model<F: Fn() + Send + Sync + 'static>(preemptions: usize, run: F) {
    // A test is known by the closure that is its model.
    let test = std::any::type_name::<F>().split("::").skip(1).take(2).collect::<Vec<_>>().join("::");
    crate::alone::in_own_process(&test, || {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
        let schedules = Arc::new(AtomicUsize::new(0));
        let counted = schedules.clone();
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            membarrier::begin();
            run();
        });
        println!("{} schedules", schedules.load(Ordering::Relaxed));
    });
}

/// Threads of a model.
pub mod thread {
    pub use loom::thread::{JoinHandle, spawn, yield_now};

    /// Others go on meanwhile, however long it is.
    pub fn sleep(_: std::time::Duration) {
        yield_now();
    }
}

macro_rules! global {
    ($(#[$attribute:meta])* pub static $name:ident: $type:ty = $value:expr;) => {
        loom::lazy_static! { $(#[$attribute])* pub static ref $name: $type = $value; }
    };
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
        loom::lazy_static! { $(#[$attribute])* static ref $name: $type = $value; }
    };
}

macro_rules! constructor {
    ($function:item) => {
        $function
    };
}

macro_rules! per_thread {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
        loom::thread_local! { $(#[$attribute])* static $name: $type = $value; }
    };
}

pub(crate) use {constructor, global, per_thread};

/// `parking_lot`'s, as far as it is used.
#[derive(Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// See [`Mutex`].
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    guard: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, guard: Some(self.0.lock().unwrap()) }
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(MutexGuard { mutex: self, guard: Some(self.0.try_lock().ok()?) })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().unwrap()
    }
}

/// `parking_lot`'s, as far as it is used.
pub struct Condvar(loom::sync::Condvar);

/// Whether the deadline came first.
pub struct TimedOut(bool);

impl TimedOut {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.guard = guard.guard.take().map(|held| self.0.wait(held).unwrap());
    }

    /// A deadline is over already or never comes: see [`never`] and [`long_ago`].
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> TimedOut {
        let is_over = deadline <= Instant::now();
        if is_over {
            guard.guard = None;
            guard.guard = Some(guard.mutex.0.lock().unwrap());
        } else {
            self.wait(guard);
        }
        TimedOut(is_over)
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A deadline that never comes.
pub fn never() -> Instant {
    Instant::now() + Duration::from_secs(100_000)
}

/// A deadline that is over.
pub fn long_ago() -> Instant {
    Instant::now()
}
