//! The queue's `sync` in a model: the same names, made of `loom`'s types.

pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use loom::thread::JoinHandle;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

pub fn spawn(run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    Ok(loom::thread::spawn(run))
}

/// The threads of a scope.
#[derive(Default)]
pub struct Scope(RefCell<Vec<JoinHandle<()>>>);

pub fn scope<T>(run: impl FnOnce(&Scope) -> T) -> T {
    let threads = Scope::default();
    let done = run(&threads);
    threads.0.take().into_iter().for_each(|thread| thread.join().unwrap());
    done
}

pub fn spawn_scoped<'a>(threads: &Scope, run: impl FnOnce() + Send + 'a) -> std::io::Result<()> {
    let run: Box<dyn FnOnce() + Send + 'a> = Box::new(run);
    // SAFETY: `scope` waits for the thread before it returns, and so before what this borrows is gone; a panic
    // ends the process of the model.
    let run: Box<dyn FnOnce() + Send> = unsafe { std::mem::transmute(run) };
    threads.0.borrow_mut().push(loom::thread::spawn(run));
    Ok(())
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
