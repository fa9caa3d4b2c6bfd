//! Value waits: stream operations that wait for a word of memory (`cuStreamWaitValue32` and its kind).
//!
//! A wait is *unreleased* while it is submitted, has not ended, and no value that ends it has been submitted. A
//! closing lets work through while there is such a wait (`docs/drain.md`).
//!
//! What is known of a word is what stream operations wrote to it. Words are written by kernels, copies and the host,
//! too. So there are events behind unreleased waits, which say when these have ended however they were released, and all before them
//! in their stream. An event takes room in the stream, which the program may need: the more waits there are in a stream, the
//! fewer of them have one. And a
//! wait may count as released that is not: then the closing finds out that work does not end, as where a kernel waits.
//!
//! Invariant: no driver call is made with the state locked, but for events of live contexts: an event is asked and
//! destroyed before its context is ([`ValueWaits::forget`]).

use crate::driver::{Context, Mark, PER_THREAD, Relaxed};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Of so many words the last value is known. What is forgotten costs an event.
const MOST_WORDS: usize = 4096;

/// A word of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    /// Its address.
    pub address: u64,
    /// It has 64 bits, else 32.
    pub is_wide: bool,
}

/// How a wait compares a word with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `CU_STREAM_WAIT_VALUE_GEQ`: not before it, as numbers on a circle.
    Geq,
    /// `CU_STREAM_WAIT_VALUE_EQ`
    Eq,
    /// `CU_STREAM_WAIT_VALUE_AND`
    And,
    /// `CU_STREAM_WAIT_VALUE_NOR`
    Nor,
}

/// What a value wait waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Of which word.
    pub word: Word,
    /// What it is compared with.
    pub value: u64,
    /// How.
    pub comparison: Comparison,
}

impl Condition {
    /// Whether the wait ends when its word has this value.
    fn is_met_by(&self, now: u64) -> bool {
        let (now, value) = if self.word.is_wide {
            (now, self.value)
        } else {
            (now & u64::from(u32::MAX), self.value & u64::from(u32::MAX))
        };
        let all = if self.word.is_wide { u64::MAX } else { u32::MAX.into() };
        match self.comparison {
            Comparison::Geq if self.word.is_wide => now.wrapping_sub(value).cast_signed() >= 0,
            Comparison::Geq => (now as u32).wrapping_sub(value as u32).cast_signed() >= 0,
            Comparison::Eq => now == value,
            Comparison::And => now & value != 0,
            Comparison::Nor => (now | value) != all,
        }
    }
}

/// Of the waits in a stream such a part may come after the last one that is marked.
const UNMARKED: usize = 4;
/// For so long waits count that come after the last one that is marked, once that has ended.
const KEPT: Duration = Duration::from_millis(100);

/// The stream of a wait; what is made later may have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The stream is of this one.
    pub context: Context,
    /// Its handle.
    pub stream: usize,
    /// The thread, if it is that thread's own default stream.
    thread: Option<ThreadId>,
}

impl Place {
    /// What a stream of that context, or of the calling thread, is called.
    pub fn new(context: Context, stream: usize) -> Self {
        Self { context, stream, thread: owner_of(stream) }
    }
}

/// The calling thread, if the handle means its own default stream.
fn owner_of(stream: usize) -> Option<ThreadId> {
    (stream == PER_THREAD).then(|| std::thread::current().id())
}

/// An unreleased wait.
struct Wait {
    condition: Condition,
    place: Place,
    since: Instant,
    /// Behind it in its stream.
    end: Option<Mark>,
}

impl Wait {
    /// A wait with an event that cannot be asked is not known to wait. `None`: it has no event.
    fn has_ended(&self) -> Option<bool> {
        self.end.as_ref().map(|end| !matches!(end.is_passed(), Ok(false)))
    }
}

#[derive(Default)]
struct State {
    unreleased: Vec<Wait>,
    /// The value that was last submitted for a word.
    submitted: HashMap<Word, u64>,
}

impl State {
    /// Whether a value that meets the condition was submitted already. A value that others than greater ones may follow
    /// is good for one wait: it may be set back in ways that are not seen.
    fn is_released(&mut self, condition: &Condition) -> bool {
        let is_met = self.submitted.get(&condition.word).is_some_and(|value| condition.is_met_by(*value));
        if is_met && condition.comparison != Comparison::Geq {
            self.submitted.remove(&condition.word);
        }
        is_met
    }
}

/// The process's value waits.
#[derive(Default)]
pub struct ValueWaits {
    state: Mutex<State>,
    changed: Condvar,
    /// What is submitted behind an unreleased wait goes without a grant.
    lets_go: AtomicBool,
}

impl ValueWaits {
    /// Whether what is submitted behind an unreleased wait goes through the metered gate without a grant, from now on. It takes no time
    /// while it waits, and what releases the wait may come after any number of calls.
    pub fn let_what_is_behind_go(&self, does_it: bool) {
        self.lets_go.store(does_it, Ordering::Relaxed);
    }

    /// Whether what is submitted to this stream goes so.
    pub fn lets_go(&self, stream: usize) -> bool {
        let is_there = |wait: &Wait| (wait.place.stream, wait.place.thread) == (stream, owner_of(stream));
        self.lets_go.load(Ordering::Relaxed) && self.state.lock().unreleased.iter().any(is_there)
    }

    /// Whether a value that ends such a wait was not submitted yet, as far as is known.
    pub fn would_wait(&self, condition: &Condition) -> bool {
        let state = self.state.lock();
        !state.submitted.get(&condition.word).is_some_and(|value| condition.is_met_by(*value))
    }

    /// Whether the value ends an unreleased wait.
    pub fn would_release(&self, word: Word, value: u64) -> bool {
        let state = self.state.lock();
        state.unreleased.iter().any(|wait| wait.condition.word == word && wait.condition.is_met_by(value))
    }

    /// Whether a value that ends the wait, which is about to be noted, was submitted already.
    pub fn is_released(&self, condition: &Condition) -> bool {
        self.state.lock().is_released(condition)
    }

    /// Whether a wait is to be marked that has been submitted there.
    pub fn wants_mark(&self, place: Place) -> bool {
        let state = self.state.lock();
        let there = || state.unreleased.iter().rev().filter(|wait| wait.place == place);
        there().take_while(|wait| wait.end.is_none()).count() >= there().count() / UNMARKED
    }

    /// A wait was submitted that is not released; `end` is behind it.
    pub fn note_wait(&self, condition: Condition, place: Place, end: Option<Mark>) {
        let mut state = self.state.lock();
        // It may have been released meanwhile.
        if !state.is_released(&condition) {
            state.unreleased.push(Wait { condition, place, since: Instant::now(), end });
        }
    }

    /// A value was submitted.
    pub fn note_write(&self, word: Word, value: u64) {
        let mut state = self.state.lock();
        if state.submitted.len() >= MOST_WORDS && !state.submitted.contains_key(&word) {
            state.submitted.clear();
        }
        state.submitted.insert(word, value);
        let before = state.unreleased.len();
        state.unreleased.retain(|wait| wait.condition.word != word || !wait.condition.is_met_by(value));
        if state.unreleased.len() != before {
            self.changed.notify_all();
        }
    }

    /// A context is about to end, with its work and its events.
    pub fn forget(&self, context: Context) {
        self.state.lock().unreleased.retain(|wait| wait.place.context != context);
        self.changed.notify_all();
    }

    /// Whether there are unreleased waits.
    pub fn any(&self) -> bool {
        self.count() > 0
    }

    /// How many unreleased waits there are.
    pub fn count(&self) -> usize {
        let mut state = self.state.lock();
        // The calling thread may be the program's.
        let _relaxed = (!state.unreleased.is_empty()).then(Relaxed::begin);
        // From the last one on: what has ended has ended with all before it in its stream, and what is marked keeps those before.
        let mut ended: HashMap<Place, bool> = HashMap::new();
        let is_kept = |wait: &Wait| {
            let later = ended.get(&wait.place).copied();
            let has_ended = if later == Some(true) { later } else { wait.has_ended() };
            if let Some(has_ended) = has_ended {
                ended.insert(wait.place, has_ended);
            }
            has_ended.or(later).map_or_else(|| wait.since.elapsed() < KEPT, |has_ended| !has_ended)
        };
        let mut keeps: Vec<bool> = state.unreleased.iter().rev().map(is_kept).collect();
        state.unreleased.retain(|_| keeps.pop().unwrap_or(false));
        state.unreleased.len()
    }

    /// Waits until something of it changes, at the latest until then.
    pub fn wait_for_change(&self, until: Instant) {
        let mut state = self.state.lock();
        if !state.unreleased.is_empty() {
            self.changed.wait_until(&mut state, until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(is_wide: bool, value: u64, comparison: Comparison) -> Condition {
        Condition { word: Word { address: 64, is_wide }, value, comparison }
    }

    #[test]
    fn a_value_ends_the_waits_that_the_manual_says() {
        let is_met = |is_wide, value, comparison, now| condition(is_wide, value, comparison).is_met_by(now);
        for is_wide in [false, true] {
            let most = if is_wide { u64::MAX } else { u32::MAX.into() };
            assert!(is_met(is_wide, 5, Comparison::Geq, 5) && is_met(is_wide, 5, Comparison::Geq, 6));
            assert!(!is_met(is_wide, 5, Comparison::Geq, 4));
            // On a circle, the greatest number is just before zero.
            assert!(is_met(is_wide, most, Comparison::Geq, 3) && !is_met(is_wide, 3, Comparison::Geq, most));
            assert!(is_met(is_wide, 5, Comparison::Eq, 5) && !is_met(is_wide, 5, Comparison::Eq, 6));
            assert!(is_met(is_wide, 6, Comparison::And, 4) && !is_met(is_wide, 6, Comparison::And, 9));
            assert!(is_met(is_wide, 6, Comparison::Nor, 6));
            assert!(!is_met(is_wide, 6, Comparison::Nor, most - 4));
        }
        assert!(is_met(false, 5, Comparison::Eq, (1 << 32) + 5), "a word has 32 bits");
    }

    #[test]
    fn what_is_behind_a_wait_goes_until_the_wait_is_released_or_another_job_waits() {
        let waits = ValueWaits::default();
        let (wait, context) = (condition(false, 5, Comparison::Geq), Context(std::ptr::null_mut()));
        waits.note_wait(wait, Place::new(context, 7), None);
        assert!(!waits.lets_go(7), "nothing was said");
        waits.let_what_is_behind_go(true);
        assert!(waits.lets_go(7) && !waits.lets_go(8));
        waits.let_what_is_behind_go(false);
        assert!(!waits.lets_go(7));
        waits.let_what_is_behind_go(true);
        waits.note_write(wait.word, 5);
        assert!(!waits.lets_go(7));
    }

    #[test]
    fn a_wait_is_released_by_a_value_that_was_submitted_before() {
        let waits = ValueWaits::default();
        let wait = condition(false, 5, Comparison::Geq);
        assert!(waits.would_wait(&wait));
        waits.note_write(wait.word, 4);
        assert!(waits.would_wait(&wait) && !waits.is_released(&wait));
        waits.note_write(wait.word, 6);
        assert!(!waits.would_wait(&wait) && waits.is_released(&wait) && waits.is_released(&wait));
        let wide = Condition { word: Word { is_wide: true, ..wait.word }, ..wait };
        assert!(waits.would_wait(&wide), "it is another word");
    }

    #[test]
    fn a_value_that_may_be_set_back_releases_one_wait() {
        let waits = ValueWaits::default();
        let wait = condition(false, 1, Comparison::Eq);
        waits.note_write(wait.word, 1);
        assert!(waits.is_released(&wait) && !waits.is_released(&wait));
    }

    #[test]
    fn a_wait_that_cannot_be_seen_to_end_does_not_count_for_long() {
        let waits = ValueWaits::default();
        let place = Place::new(Context(std::ptr::null_mut()), 7);
        assert!(waits.wants_mark(place));
        waits.note_wait(condition(false, 5, Comparison::Geq), place, None);
        assert!(waits.any());
        let limit = Instant::now() + Duration::from_secs(20);
        while waits.any() {
            assert!(Instant::now() < limit, "it counts for ever");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_threads_own_default_stream_is_not_that_of_another_thread() {
        let waits = ValueWaits::default();
        waits.let_what_is_behind_go(true);
        let place = || Place::new(Context(std::ptr::null_mut()), PER_THREAD);
        waits.note_wait(condition(false, 5, Comparison::Geq), place(), None);
        assert!(waits.lets_go(PER_THREAD));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!waits.lets_go(PER_THREAD) && waits.wants_mark(place())));
        });
    }

    #[test]
    fn words_without_number_are_forgotten() {
        let waits = ValueWaits::default();
        let word = |address| Word { address, is_wide: false };
        (0..3 * MOST_WORDS as u64).for_each(|address| waits.note_write(word(address), 1));
        assert!(waits.state.lock().submitted.len() <= MOST_WORDS);
    }
}
