//! One record for each thread that submits work: is it inside a submitting call, and how many
//! has it made.
//!
//! Invariant: only its own thread writes a record, but for the round in which it may go, which the thread that closes
//! the gate says; everybody may read it. Records are never
//! freed: a thread that ends leaves its record to the next one, so the sum of all submission
//! counts never falls.

use super::{Role, slot};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::{global, per_thread};
use std::cell::Cell;
use std::ptr;

/// The low bits of the word: how deeply the thread is nested in submitting calls.
const NESTING: u64 = 0xffff;
/// What one finished submission adds to the word.
const SUBMISSION: u64 = NESTING + 1;
/// One of so many calls of a thread is [due](Record::is_due).
pub const CALLS_BETWEEN_DUE: u64 = 8;
/// The bits of the word that are all zero in such a call.
const DUE: u64 = (CALLS_BETWEEN_DUE - 1) * SUBMISSION;
const _: () = assert!(CALLS_BETWEEN_DUE.is_power_of_two());

/// A thread has never waited for its GPU: no number of calls.
const NEVER: u64 = u64::MAX;
/// So many times as many calls as a thread has made between two waits it may make before the next one, and so many at least.
const MORE_CALLS: u64 = 2;
const FEW_CALLS: u64 = 128;
/// Of the most calls between two waits such a part is forgotten at each wait.
const FORGOTTEN: u64 = 16;

/// What a waiting thread's record says of what it would submit; zero is no such word.
fn waits_as(role: Role) -> u32 {
    role as u32 + 1
}

/// A thread's record, alone on its cache line.
#[repr(align(64))]
pub struct Record {
    /// Nesting in the low 16 bits, submissions above.
    word: AtomicU64,
    /// The thread waits at the gate: [`waits_as`], of what it would submit. Zero: it does not wait.
    waiting: AtomicU32,
    /// The round in which it may go.
    round: AtomicU32,
    /// How many calls there were when the thread last waited for its GPU, or [`NEVER`].
    waited_at: AtomicU64,
    /// How many were between two waits at most, of late.
    between_waits: AtomicU64,
    /// Of all records, in the order of their making.
    number: u32,
    /// A living thread has it.
    taken: AtomicBool,
    /// The record that was registered before.
    next: AtomicPtr<Record>,
}

global! {
    /// How many records were made.
    static NUMBERS: AtomicU32 = AtomicU32::new(0);
}

global! {
    /// The record registered last; each points to the one before it.
    static RECORDS: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
}

per_thread! {
    /// Gives the record back when the thread ends.
    static LEASE: Lease = const { Lease(Cell::new(None)) };
}

/// How much a thread had submitted when something happened.
#[derive(Clone, Copy)]
pub struct Stamp {
    record: &'static Record,
    submissions: u64,
}

impl Stamp {
    /// By the calling thread, so far.
    pub fn now() -> Self {
        let record = Record::of_thread_or_new();
        Self { record, submissions: record.count() }
    }

    /// Whether both are of one thread.
    pub fn is_of_same_thread(&self, other: &Self) -> bool {
        ptr::eq(self.record, other.record)
    }

    /// The same of the same thread, now.
    pub fn as_of_now(&self) -> Self {
        Self { record: self.record, submissions: self.record.count() }
    }

    /// What the thread (or one after it, that has its record) has submitted since.
    pub fn submissions_since(&self) -> u64 {
        self.record.count() - self.submissions
    }
}

impl std::fmt::Debug for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after {} submissions", self.submissions)
    }
}

/// The record that the thread has.
struct Lease(Cell<Option<&'static Record>>);

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(record) = self.0.get() {
            slot::set(None);
            record.taken.store(false, Ordering::Release);
        }
    }
}

impl Record {
    fn new(number: u32) -> Self {
        Self {
            word: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            round: AtomicU32::new(0),
            waited_at: AtomicU64::new(NEVER),
            between_waits: AtomicU64::new(0),
            number,
            taken: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The thread's record, if it has one already.
    #[inline(always)]
    pub fn of_thread() -> Option<&'static Record> {
        slot::get()
    }

    /// The thread's record; its first call gets it one.
    pub fn of_thread_or_new() -> &'static Record {
        Self::of_thread().unwrap_or_else(|| {
            let record = Self::abandoned().unwrap_or_else(Self::register);
            record.waited_at.store(NEVER, Ordering::Relaxed);
            record.between_waits.store(0, Ordering::Relaxed);
            slot::set(Some(record));
            // Arms the destructor. A thread in its last destructors cannot be armed any more:
            // its record is never reused, which costs a cache line and nothing else.
            let _ = LEASE.try_with(|lease| lease.0.set(Some(record)));
            record
        })
    }

    fn abandoned() -> Option<&'static Record> {
        Self::all().find(|record| {
            record.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    fn register() -> &'static Record {
        let record: &'static Record =
            Box::leak(Box::new(Record::new(NUMBERS.fetch_add(1, Ordering::Relaxed))));
        let mut last = RECORDS.load(Ordering::Relaxed);
        loop {
            record.next.store(last, Ordering::Relaxed);
            let new = ptr::from_ref(record).cast_mut();
            match RECORDS.compare_exchange_weak(last, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return record,
                Err(newer) => last = newer,
            }
        }
    }

    fn all() -> impl Iterator<Item = &'static Record> {
        std::iter::successors(Self::at(&RECORDS), |record| Self::at(&record.next))
    }

    fn at(place: &AtomicPtr<Record>) -> Option<&'static Record> {
        // SAFETY: null, or a record that `register` leaked (never freed, never moved) and
        // published with Release; all its fields are atomics.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    }

    /// The thread goes into a submitting call. A plain load and store: only this thread writes,
    /// and a signal handler that interrupts it leaves the nesting as it found it.
    #[inline(always)]
    pub fn enter(&self) {
        self.word.store(self.word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Whether it is seen at this call how far ahead the thread's work is. It costs the way through the open gate two instructions.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.word.load(Ordering::Relaxed) & DUE == 0
    }

    /// The call has returned: it counts as one submission.
    #[inline(always)]
    pub fn leave(&self) {
        self.word.store(self.word.load(Ordering::Relaxed) + (SUBMISSION - 1), Ordering::Release);
    }

    /// The thread steps out without having submitted anything.
    pub fn step_back(&self) {
        self.word.store(self.word.load(Ordering::Relaxed) - 1, Ordering::Release);
    }

    /// Whether the thread is inside a submitting call.
    pub fn is_inside(&self) -> bool {
        self.word.load(Ordering::Acquire) & NESTING != 0
    }

    /// How deeply the thread is nested.
    pub fn nesting(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & NESTING
    }

    /// The thread waits at the gate from now on. What its record said before, for [`Record::end_waiting`]: a signal
    /// handler may come to the gate while the thread waits there.
    pub fn begin_waiting(&self, role: Role) -> u32 {
        let before = self.waiting.load(Ordering::Relaxed);
        self.waiting.store(waits_as(role), Ordering::Release);
        before
    }

    /// The thread does not wait any more, or as it did before.
    pub fn end_waiting(&self, before: u32) {
        self.waiting.store(before, Ordering::Release);
    }

    /// The record's number: small, and another one for each living thread.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The threads that wait at the gate, up to those whose work has this role.
    pub fn all_waiting(up_to: Role) -> impl Iterator<Item = &'static Record> {
        let is_meant = move |word: u32| (1..=waits_as(up_to)).contains(&word);
        Self::all().filter(move |record| is_meant(record.waiting.load(Ordering::Acquire)))
    }

    /// So many threads that have come to the gate were there at once.
    pub fn count_all() -> u64 {
        Self::all().fold(0, |count, _| count + 1)
    }

    /// Whether the thread waits at the gate.
    pub fn waits_at_gate(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    /// The thread may go in this round, if it waits.
    pub fn let_go_in(&self, round: u32) {
        self.round.store(round, Ordering::Release);
    }

    /// Whether the thread may go in this round; once.
    pub fn goes_in(&self, round: u32) -> bool {
        self.round.compare_exchange(round, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether any thread is inside a submitting call.
    pub fn is_anybody_inside() -> bool {
        Self::all().any(Record::is_inside)
    }

    /// The threads that are inside submitting calls, and in which.
    pub fn calls_inside() -> Vec<(u32, u64)> {
        Self::all()
            .filter(|record| record.is_inside())
            .map(|record| (record.number, record.count()))
            .collect()
    }

    /// All submissions of the process so far.
    pub fn submissions() -> u64 {
        Self::all().map(Self::count).sum()
    }

    /// The thread has waited for its GPU. Whether it has made calls since it last did.
    pub fn note_wait(&self) -> bool {
        let (made, before) = (self.count(), self.waited_at.load(Ordering::Relaxed));
        self.waited_at.store(made, Ordering::Relaxed);
        if before != NEVER {
            let most = self.between_waits.load(Ordering::Relaxed);
            self.between_waits.store((made - before).max(most - most / FORGOTTEN), Ordering::Relaxed);
        }
        made != before
    }

    /// Whether the thread may soon wait for its GPU: it has not made many more calls since its last wait than between others, or it never has
    /// waited. One that waits for nothing would go on until its stream is full.
    pub fn may_soon_wait(&self) -> bool {
        let before = self.waited_at.load(Ordering::Relaxed);
        let most = FEW_CALLS.max(self.between_waits.load(Ordering::Relaxed) * MORE_CALLS);
        before == NEVER || self.count() - before < most
    }

    /// How many calls the thread has made.
    pub fn count(&self) -> u64 {
        self.word.load(Ordering::Acquire) / SUBMISSION
    }
}
