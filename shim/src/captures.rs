//! The streams that are capturing: meanwhile the gate does not close.
#![forbid(unsafe_code)]

use parking_lot::Mutex;
use std::collections::HashMap;
use std::thread::ThreadId;

/// The handle of the calling thread's default stream (`CU_STREAM_PER_THREAD`).
pub const PER_THREAD: usize = 2;

/// See the module.
#[derive(Default)]
pub struct Captures {
    /// With the thread that began the capture.
    streams: Mutex<HashMap<Stream, ThreadId>>,
}

/// A stream, by its handle; a default stream by its thread.
#[derive(PartialEq, Eq, Hash)]
enum Stream {
    Made(usize),
    Default(ThreadId),
}

impl Stream {
    /// 0 is a default stream too, and that of a thread: the one of all threads cannot be captured.
    fn of(handle: usize) -> Self {
        match handle {
            0 | PER_THREAD => Self::Default(std::thread::current().id()),
            handle => Self::Made(handle),
        }
    }
}

impl Captures {
    /// A capture has begun, in this thread.
    pub fn begun(&self, stream: usize) {
        self.streams.lock().insert(Stream::of(stream), std::thread::current().id());
    }

    /// A capture has ended, well or not.
    pub fn ended(&self, stream: usize) {
        self.streams.lock().remove(&Stream::of(stream));
    }

    /// Whether any stream captures.
    pub fn any(&self) -> bool {
        !self.streams.lock().is_empty()
    }

    /// Whether the calling thread has begun a capture that has not ended.
    pub fn any_of_this_thread(&self) -> bool {
        let this = std::thread::current().id();
        self.streams.lock().values().any(|thread| *thread == this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_default_stream_of_its_own() {
        let captures = Captures::default();
        captures.begun(PER_THREAD);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                captures.begun(0);
                captures.ended(PER_THREAD);
                assert!(!captures.any_of_this_thread());
            });
        });
        assert!(captures.any() && captures.any_of_this_thread());
        captures.ended(0);
        assert!(!captures.any());
    }

    #[test]
    fn the_end_of_what_did_not_begin_ends_nothing() {
        let captures = Captures::default();
        captures.begun(77);
        captures.ended(78);
        assert!(captures.any());
        captures.ended(77);
        assert!(!captures.any());
    }
}
