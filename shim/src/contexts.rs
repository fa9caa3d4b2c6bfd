//! The contexts that the program has made, so that our own threads can use them.
//!
//! Invariant: a context that is [`Used`] is alive: the hook that destroys it takes it out of the
//! list first and waits until nobody uses it.

use crate::driver::Context;
use parking_lot::{Condvar, Mutex};
use tidegate_ffi::cuda::sys::CUdevice;

struct Entry {
    context: Context,
    device: CUdevice,
    /// How often the program retained it, if it is the device's primary context.
    retained: Option<u32>,
    users: u32,
    leaving: bool,
}

/// The process's contexts.
#[derive(Default)]
pub struct Contexts {
    entries: Mutex<Vec<Entry>>,
    unused: Condvar,
}

/// A context that stays alive while this lives.
pub struct Used<'a> {
    contexts: &'a Contexts,
    /// Its handle.
    pub context: Context,
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        let mut entries = self.contexts.entries.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.context == self.context) {
            entry.users -= 1;
        }
        self.contexts.unused.notify_all();
    }
}

impl Contexts {
    /// The program has created a context.
    pub fn created(&self, context: Context, device: CUdevice) {
        self.add(context, device, None);
    }

    /// The program has retained a device's primary context.
    pub fn retained(&self, context: Context, device: CUdevice) {
        let mut entries = self.entries.lock();
        let known = entries.iter_mut().find(|entry| entry.context == context);
        match known.and_then(|entry| entry.retained.as_mut()) {
            Some(count) => *count += 1,
            None => {
                drop(entries);
                self.add(context, device, Some(1));
            }
        }
    }

    /// The program is about to release a device's primary context. When that is its end, it is
    /// forgotten as by [`Contexts::forget`], and returned.
    pub fn release_primary(&self, device: CUdevice) -> Option<Context> {
        let context = {
            let mut entries = self.entries.lock();
            let entry = entries.iter_mut().find(|e| e.device == device && e.retained.is_some())?;
            let count = entry.retained.as_mut()?;
            *count = count.saturating_sub(1);
            (*count == 0).then_some(entry.context)?
        };
        self.forget(context);
        Some(context)
    }

    /// The primary context of a device, if the program retains it.
    pub fn primary(&self, device: CUdevice) -> Option<Context> {
        let entries = self.entries.lock();
        entries.iter().find(|e| e.device == device && e.retained.is_some()).map(|e| e.context)
    }

    /// The program is about to destroy a context: waits until none of our threads uses it.
    pub fn forget(&self, context: Context) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.context == context) {
            entry.leaving = true;
        }
        while entries.iter().any(|entry| entry.context == context && entry.users > 0) {
            self.unused.wait(&mut entries);
        }
        entries.retain(|entry| entry.context != context);
    }

    /// Keeps a context alive; `None` when the program has destroyed it.
    pub fn keep(&self, context: Context) -> Option<Used<'_>> {
        let mut entries = self.entries.lock();
        let entry = entries.iter_mut().find(|entry| entry.context == context && !entry.leaving)?;
        entry.users += 1;
        Some(Used { contexts: self, context })
    }

    /// Keeps some context of a device alive.
    pub fn keep_one_of(&self, device: CUdevice) -> Option<Used<'_>> {
        let mut entries = self.entries.lock();
        let entry = entries.iter_mut().find(|entry| entry.device == device && !entry.leaving)?;
        entry.users += 1;
        Some(Used { contexts: self, context: entry.context })
    }

    /// Keeps every context alive.
    pub fn keep_all(&self) -> Vec<Used<'_>> {
        let mut entries = self.entries.lock();
        let alive = entries.iter_mut().filter(|entry| !entry.leaving);
        alive
            .map(|entry| {
                entry.users += 1;
                Used { contexts: self, context: entry.context }
            })
            .collect()
    }

    fn add(&self, context: Context, device: CUdevice, retained: Option<u32>) {
        self.entries.lock().push(Entry { context, device, retained, users: 0, leaving: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(number: usize) -> Context {
        Context(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn a_primary_context_ends_with_its_last_release() {
        let contexts = Contexts::default();
        contexts.retained(context(1), 0);
        contexts.retained(context(1), 0);
        assert_eq!(contexts.release_primary(0), None);
        assert_eq!(contexts.release_primary(0), Some(context(1)));
        assert_eq!(contexts.release_primary(0), None);
        assert!(contexts.keep_one_of(0).is_none());
    }

    #[test]
    fn a_context_in_use_is_not_forgotten() {
        let contexts = Contexts::default();
        contexts.created(context(1), 0);
        std::thread::scope(|scope| {
            let used = contexts.keep(context(1)).unwrap();
            let destroyer = scope.spawn(|| contexts.forget(context(1)));
            while contexts.keep(context(1)).is_some() {
                std::thread::yield_now();
            }
            assert!(!destroyer.is_finished());
            drop(used);
            destroyer.join().unwrap();
        });
        assert!(contexts.keep_all().is_empty());
    }
}
