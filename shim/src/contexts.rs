//! The contexts that the program has made, so that our own threads can use them.
//!
//! Invariant: a context that is [`Used`] is alive: the hook that destroys it takes it out of the
//! list first and waits until nobody uses it. Nothing is in the list twice.

use crate::driver::{self, Context};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use tidegate_ffi::cuda::sys::CUdevice;

struct Entry {
    context: Context,
    device: CUdevice,
    /// How often the program retained it, if it is the device's primary context.
    retained: Option<u32>,
    /// How often the program attached to it and did not detach.
    attached: u32,
    /// The contexts of other devices whose memory it may use.
    peers: Vec<Context>,
    users: u32,
    leaving: bool,
}

/// A part of a device's primary context with streams of its own. Its memory is the primary context's,
/// and who waits for that waits for its work too.
struct Green {
    /// The driver's handle.
    handle: usize,
    device: CUdevice,
    /// As what it is made current, if the program has asked.
    context: Option<Context>,
}

/// The process's contexts.
#[derive(Default)]
pub struct Contexts {
    entries: Mutex<Vec<Entry>>,
    greens: Mutex<Vec<Green>>,
    /// Contexts that have ended, until one is made under the same handle. The driver tells their device all the same.
    ended: Mutex<BTreeSet<Context>>,
    unused: Condvar,
    /// So many threads are ending one, or all that is in it.
    endings: AtomicU32,
}

/// A thread ends a context, or all that is in it: the driver waits for its work, of which nothing else is known any more.
pub struct Ending<'a>(&'a AtomicU32);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
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
    /// The calling thread begins to end one.
    pub fn begin_to_end(&self) -> Ending<'_> {
        self.endings.fetch_add(1, Ordering::SeqCst);
        Ending(&self.endings)
    }

    /// Whether a thread is ending one: its work may not have ended.
    pub fn is_one_ending(&self) -> bool {
        self.endings.load(Ordering::SeqCst) > 0
    }

    /// The program has created a context.
    pub fn created(&self, context: Context, device: CUdevice) {
        self.ended.lock().remove(&context);
        self.entries.lock().push(Entry::new(context, device, None));
    }

    /// The program has retained a device's primary context.
    pub fn retained(&self, context: Context, device: CUdevice) {
        self.ended.lock().remove(&context);
        let mut entries = self.entries.lock();
        let known = entries.iter_mut().find(|entry| entry.context == context);
        match known.and_then(|entry| entry.retained.as_mut()) {
            Some(count) => *count += 1,
            None => entries.push(Entry::new(context, device, Some(1))),
        }
    }

    /// The program is about to release a device's primary context. When that is its end, it is
    /// forgotten as by [`Contexts::forget`], and returned.
    pub fn release_primary(&self, device: CUdevice, let_go: impl FnOnce()) -> Option<Context> {
        let context = {
            let mut entries = self.entries.lock();
            let entry = entries.iter_mut().find(|e| e.device == device && e.retained.is_some())?;
            let count = entry.retained.as_mut()?;
            *count = count.saturating_sub(1);
            (*count == 0).then_some(entry.context)?
        };
        self.forget(context, let_go);
        Some(context)
    }

    /// The driver has ended a context.
    pub fn has_ended(&self, context: Context) {
        self.ended.lock().insert(context);
    }

    /// Whether the calling thread's current context has ended.
    pub fn is_current_ended(&self) -> bool {
        let ended = self.ended.lock();
        !ended.is_empty() && driver::current_context().is_some_and(|context| ended.contains(&context))
    }

    /// The program has attached to a context.
    pub fn attached(&self, context: Context) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.context == context) {
            entry.attached += 1;
        }
    }

    /// The program is about to detach from a context that it has made. When that is its end, it is
    /// forgotten as by [`Contexts::forget`], and its device returned.
    pub fn detach(&self, context: Context, let_go: impl FnOnce()) -> Option<CUdevice> {
        let device = {
            let mut entries = self.entries.lock();
            let made = |entry: &&mut Entry| entry.context == context && entry.retained.is_none();
            let entry = entries.iter_mut().find(made)?;
            match entry.attached.checked_sub(1) {
                Some(attached) => {
                    entry.attached = attached;
                    return None;
                }
                None => entry.device,
            }
        };
        self.forget(context, let_go);
        Some(device)
    }

    /// A green context was made, for which the primary context of its device is retained.
    pub fn green_made(&self, handle: usize, device: CUdevice) {
        self.greens.lock().push(Green { handle, device, context: None });
    }

    /// As what a green context is made current.
    pub fn green_is(&self, handle: usize, context: Context) {
        if let Some(green) = self.greens.lock().iter_mut().find(|green| green.handle == handle) {
            green.context = Some(context);
        }
    }

    /// A green context is no more: its device, the primary context of which it does not need any more.
    pub fn green_gone(&self, handle: usize) -> Option<CUdevice> {
        let mut greens = self.greens.lock();
        let index = greens.iter().position(|green| green.handle == handle)?;
        Some(greens.swap_remove(index).device)
    }

    /// The context that this one is a part of, or it itself.
    pub fn home_of(&self, context: Context) -> Context {
        let device = {
            let greens = self.greens.lock();
            greens.iter().find(|green| green.context == Some(context)).map(|green| green.device)
        };
        device.and_then(|device| self.primary(device)).unwrap_or(context)
    }

    /// A context may use the memory of another one from now on.
    pub fn befriend(&self, context: Context, peer: Context) {
        self.change_peers(context, |peers| peers.push(peer));
    }

    /// It may no longer.
    pub fn part(&self, context: Context, peer: Context) {
        self.change_peers(context, |peers| peers.retain(|known| *known != peer));
    }

    fn change_peers(&self, context: Context, change: impl FnOnce(&mut Vec<Context>)) {
        let home = self.home_of(context);
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.context == home) {
            change(&mut entry.peers);
        }
    }

    /// A context was emptied: it may use nobody's memory, and nobody may use its.
    pub fn part_from_all(&self, context: Context) {
        let mut entries = self.entries.lock();
        for entry in entries.iter_mut() {
            entry.peers.retain(|peer| *peer != context && entry.context != context);
        }
    }

    /// The devices of which a context may use a device's memory.
    pub fn peers_of(&self, device: CUdevice) -> BTreeSet<CUdevice> {
        let entries = self.entries.lock();
        let is_there =
            |context: &Context| entries.iter().any(|e| e.context == *context && e.device == device);
        let may = |entry: &&Entry| entry.device != device && entry.peers.iter().any(is_there);
        entries.iter().filter(may).map(|entry| entry.device).collect()
    }

    /// The primary context of a device, if the program retains it.
    pub fn primary(&self, device: CUdevice) -> Option<Context> {
        let entries = self.entries.lock();
        entries.iter().find(|e| e.device == device && e.retained.is_some()).map(|e| e.context)
    }

    /// The program is about to destroy a context: waits until none of our threads uses it. `let_go`: nothing does that can be done
    /// without.
    pub fn forget(&self, context: Context, let_go: impl FnOnce()) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.context == context) {
            entry.leaving = true;
        }
        MutexGuard::unlocked(&mut entries, let_go);
        while entries.iter().any(|entry| entry.context == context && entry.users > 0) {
            self.unused.wait(&mut entries);
        }
        entries.retain(|entry| entry.context != context);
    }

    /// Whether the program waits for our threads to leave a context that it destroys.
    pub fn is_one_leaving(&self) -> bool {
        self.entries.lock().iter().any(|entry| entry.leaving)
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
}

impl Entry {
    fn new(context: Context, device: CUdevice, retained: Option<u32>) -> Self {
        Self { context, device, retained, attached: 0, peers: Vec::new(), users: 0, leaving: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn context(number: usize) -> Context {
        Context(std::ptr::without_provenance_mut(number))
    }

    #[test]
    fn a_primary_context_ends_with_its_last_release() {
        let contexts = Contexts::default();
        contexts.retained(context(1), 0);
        contexts.retained(context(1), 0);
        assert_eq!(contexts.release_primary(0, || ()), None);
        assert_eq!(contexts.release_primary(0, || ()), Some(context(1)));
        assert_eq!(contexts.release_primary(0, || ()), None);
        assert!(contexts.keep_one_of(0).is_none());
    }

    #[test]
    fn a_primary_context_that_threads_retain_at_once_is_one_context() {
        let rounds: Vec<Contexts> = std::iter::repeat_with(Contexts::default).take(20_000).collect();
        let reached = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let retain = |own: usize| {
            for (round, contexts) in rounds.iter().enumerate() {
                reached[own].store(round + 1, Ordering::SeqCst);
                while reached[1 - own].load(Ordering::SeqCst) <= round {
                    std::thread::yield_now();
                }
                contexts.retained(context(1), 0);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| retain(0));
            retain(1);
        });
        assert_eq!(rounds.iter().map(|contexts| contexts.keep_all().len()).max(), Some(1));
    }

    #[test]
    fn a_context_ends_when_it_is_detached_from_as_often_as_it_was_made_and_attached_to() {
        let contexts = Contexts::default();
        contexts.created(context(1), 0);
        contexts.retained(context(2), 0);
        contexts.attached(context(1));
        assert_eq!(contexts.detach(context(1), || ()), None);
        assert_eq!(contexts.detach(context(1), || ()), Some(0));
        assert_eq!(
            contexts.detach(context(2), || ()),
            None,
            "a primary context is released, not detached from"
        );
        assert_eq!(contexts.keep_all().len(), 1);
    }

    #[test]
    fn a_green_context_is_a_part_of_its_devices_primary_context() {
        let contexts = Contexts::default();
        contexts.retained(context(1), 3);
        contexts.green_made(7, 3);
        contexts.green_is(7, context(2));
        assert_eq!(contexts.home_of(context(2)), context(1));
        assert_eq!((contexts.green_gone(7), contexts.green_gone(7)), (Some(3), None));
        assert_eq!(contexts.home_of(context(2)), context(2));
    }

    #[test]
    fn a_device_is_a_peer_while_a_context_of_it_may_use_the_memory_and_both_are_there() {
        let contexts = Contexts::default();
        for (number, device) in [(1, 0), (2, 1), (3, 1)] {
            contexts.created(context(number), device);
        }
        let peers = || [0, 1].map(|device| contexts.peers_of(device).into_iter().collect::<Vec<_>>());
        contexts.befriend(context(2), context(1));
        contexts.befriend(context(3), context(1));
        assert_eq!(peers(), [vec![1], vec![]]);
        contexts.part(context(2), context(1));
        assert_eq!(peers(), [vec![1], vec![]]);
        contexts.forget(context(3), || ());
        assert_eq!(peers(), [vec![], vec![]]);
        contexts.befriend(context(2), context(1));
        contexts.part_from_all(context(1));
        assert_eq!(peers(), [vec![], vec![]]);
    }

    #[test]
    fn a_context_in_use_is_not_forgotten() {
        let contexts = Contexts::default();
        contexts.created(context(1), 0);
        std::thread::scope(|scope| {
            let used = contexts.keep(context(1)).unwrap();
            let destroyer = scope.spawn(|| contexts.forget(context(1), || ()));
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
