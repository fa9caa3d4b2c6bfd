//! Memory that was freed in stream order (`cuMemFreeAsync`) and may still be in use.
//!
//! ```text
//! freed in stream s ─► waits, with a mark behind the work of s ─ passed ─► free for everybody
//!                        └ asked for in stream s, of that size ─────────► allocated again at once
//! ```
//! Invariant: a place is handed out to another stream only when the work that was submitted before
//! it was freed has ended. Its bytes are dead from the moment of the call: they are not saved.
#![forbid(unsafe_code)]

use tidegate_ffi::units::Class;

/// A place that may still be in use.
pub struct Waiting<Mark> {
    /// The range that it lies in.
    pub class: Class,
    /// Its first byte there.
    pub start: u64,
    /// Its length in that range.
    pub length: u64,
    /// The stream it was freed in, by the driver's number for it: handles are used again. `None`: not
    /// known.
    pub stream: Option<u64>,
    /// Is passed when it is not in use any more.
    pub mark: Mark,
}

/// All such places of a tenant.
pub struct Ordered<Mark> {
    waiting: Vec<Waiting<Mark>>,
}

impl<Mark> Default for Ordered<Mark> {
    fn default() -> Self {
        Self { waiting: Vec::new() }
    }
}

impl<Mark> Ordered<Mark> {
    /// A place was freed.
    pub fn add(&mut self, waiting: Waiting<Mark>) {
        self.waiting.push(waiting);
    }

    /// The places that satisfy a condition, which are then nobody's any more.
    pub fn take(&mut self, mut is_over: impl FnMut(&Waiting<Mark>) -> bool) -> Vec<Waiting<Mark>> {
        self.waiting.extract_if(.., |waiting| is_over(waiting)).collect()
    }

    /// The smallest place freed in `stream` with room for `length`, and at most a quarter more.
    pub fn take_fitting(&mut self, stream: u64, class: Class, length: u64) -> Option<Waiting<Mark>> {
        let fits = |w: &Waiting<Mark>| {
            let wanted = length..=length.saturating_add(length / 4);
            w.stream == Some(stream) && w.class == class && wanted.contains(&w.length)
        };
        let (index, _) =
            self.waiting.iter().enumerate().filter(|(_, w)| fits(w)).min_by_key(|(_, w)| w.length)?;
        Some(self.waiting.swap_remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed(stream: Option<u64>, start: u64, length: u64) -> Waiting<bool> {
        Waiting { class: Class::Temporary, start, length, stream, mark: false }
    }

    fn places() -> Ordered<bool> {
        let mut ordered = Ordered::default();
        for (stream, start, length) in
            [(Some(1), 0, 1024), (Some(2), 1024, 512), (Some(1), 2048, 512), (None, 4096, 512)]
        {
            ordered.add(freed(stream, start, length));
        }
        ordered
    }

    #[test]
    fn a_stream_gets_back_at_once_only_what_was_freed_in_it() {
        let mut ordered = places();
        let mut starts = |stream, length| {
            ordered.take_fitting(stream, Class::Temporary, length).map(|waiting| waiting.start)
        };
        assert_eq!(starts(3, 512), None);
        assert_eq!(starts(1, 512), Some(2048));
        assert_eq!(starts(1, 512), None, "half of a place would be wasted");
        assert_eq!(starts(1, 900), Some(0));
        assert_eq!(starts(2, 512), Some(1024));
    }

    #[test]
    fn what_is_over_is_taken_and_nothing_else() {
        let mut ordered = places();
        let over = ordered.take(|waiting| waiting.stream == Some(1));
        assert_eq!(over.len(), 2);
        assert_eq!(ordered.take(|_| true).len(), 2);
        assert_eq!(ordered.take(|_| true).len(), 0);
    }
}
