//! The queue's `sync` in a model: the same names, made of `loom`'s types.

pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use loom::thread::JoinHandle;

use std::sync::atomic::{AtomicUsize, Ordering};

pub fn spawn(run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    Ok(loom::thread::spawn(run))
}

/// Runs a model in all schedules with no more than so many preemptions. The test that calls it does nothing else.
pub fn model<F: Fn() + Send + Sync + 'static>(preemptions: usize, run: F) {
    // A test is known by the closure that is its model.
    let test = std::any::type_name::<F>().split("::").skip(1).take(1).collect::<String>();
    crate::alone::in_own_process(&test, || {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
        let schedules = std::sync::Arc::new(AtomicUsize::new(0));
        let counted = schedules.clone();
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            run();
        });
        println!("{} schedules", schedules.load(Ordering::Relaxed));
    });
}
