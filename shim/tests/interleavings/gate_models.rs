//! Threads that submit against one that shuts the gate.

use crate::gate::{
    Boundary, BoundaryWait, Failed, Fence, GATE, Goal, Queue, Record, Role, is_chosen, submit,
};
use crate::sync::thread::{JoinHandle, spawn, yield_now};
use crate::sync::{Mutex, long_ago, model, never};
use loom::cell::UnsafeCell;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// What work uses, and a closer takes away. `loom` itself knows who has it when; the rest is for
/// the words.
struct Memory {
    mapped: UnsafeCell<bool>,
    users: AtomicUsize,
}

// SAFETY: that no two threads use `mapped` at once is what the models show: `loom` watches.
unsafe impl Sync for Memory {}
// SAFETY: it is owned.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self { mapped: UnsafeCell::new(true), users: AtomicUsize::new(0) })
    }

    /// Work that uses it.
    fn work(&self) {
        self.users.fetch_add(1, SeqCst);
        yield_now();
        // SAFETY: read only; see above.
        self.mapped.with(|mapped| assert!(unsafe { *mapped }, "work was submitted while the gate was shut"));
        self.users.fetch_sub(1, SeqCst);
    }

    /// Takes it away, and gives it back.
    fn switch(&self) {
        self.set_mapped(false);
        yield_now();
        self.set_mapped(true);
    }

    fn set_mapped(&self, now: bool) {
        assert_eq!(self.users.load(SeqCst), 0, "a thread is inside the shut gate");
        // SAFETY: nobody else uses it; see above.
        self.mapped.with_mut(|mapped| unsafe { *mapped = now });
    }
}

/// Shuts the gate, does something, and opens it.
fn while_shut(doing: impl FnOnce()) {
    assert!(GATE.shut(never()));
    doing();
    GATE.open();
}

fn works(memory: &Memory) -> Result<(), Failed> {
    let work = || {
        memory.work();
        Ok(())
    };
    submit(Role::Works, work, Err, || false, || false)
}

/// Two threads that submit.
fn two_submitters(memory: &Arc<Memory>) -> [JoinHandle<Result<(), Failed>>; 2] {
    [(); 2].map(|()| {
        let memory = memory.clone();
        spawn(move || works(&memory))
    })
}

/// Two threads submit while another one shuts the gate and opens it.
fn nobody_is_inside(fence: Fence, is_first: bool) {
    GATE.start(false, fence);
    let memory = Memory::new();
    let submitters = [(); 2].map(|()| {
        let memory = memory.clone();
        spawn(move || {
            if !is_first {
                Record::of_thread_or_new();
            }
            works(&memory)
        })
    });
    while_shut(|| memory.switch());
    submitters.into_iter().for_each(|submitter| submitter.join().unwrap().unwrap());
}

#[test]
fn nobody_is_inside_a_gate_that_was_shut_by_membarrier() {
    model(2, || nobody_is_inside(Fence::ByCloser, false));
}

#[test]
fn nobody_is_inside_a_gate_whose_threads_fence() {
    model(2, || nobody_is_inside(Fence::ByThreads, false));
}

#[test]
fn nobody_submits_for_the_first_time_inside_a_shut_gate() {
    model(2, || nobody_is_inside(Fence::ByCloser, true));
}

/// Two threads begin while the record of one that has ended lies there.
#[test]
fn nobody_is_inside_a_shut_gate_with_the_record_of_another() {
    model(2, || {
        spawn(|| _ = Record::of_thread_or_new()).join().unwrap();
        nobody_is_inside(Fence::ByCloser, true);
    });
}

/// All who wait are woken, whoever comes meanwhile.
#[test]
fn all_who_wait_at_the_closed_gate_are_let_in_when_it_opens() {
    model(2, || {
        GATE.start(true, Fence::ByCloser);
        let memory = Memory::new();
        let submitters = two_submitters(&memory);
        memory.switch();
        GATE.open();
        assert!(submitters.into_iter().all(|submitter| submitter.join().unwrap() == Ok(())));
    });
}

/// Whoever is woken may find the gate shut again.
#[test]
fn who_waits_at_the_closed_gate_is_let_in_at_some_opening() {
    model(4, || {
        GATE.start(true, Fence::ByCloser);
        let memory = Memory::new();
        let submitter = {
            let memory = memory.clone();
            spawn(move || works(&memory))
        };
        memory.switch();
        GATE.open();
        while_shut(|| memory.switch());
        assert_eq!(submitter.join().unwrap(), Ok(()));
    });
}

#[test]
fn who_waits_at_a_gate_that_fails_is_told_so_and_nobody_is_let_in() {
    model(2, || {
        GATE.start(true, Fence::ByCloser);
        let memory = Memory::new();
        memory.set_mapped(false);
        let submitters = two_submitters(&memory);
        let at_boundary = spawn(|| GATE.boundary(1));
        GATE.fail();
        assert!(submitters.into_iter().all(|submitter| submitter.join().unwrap() == Err(Failed)));
        at_boundary.join().unwrap();
    });
}

/// What a thread that describes its operands looks at.
struct Arrivals {
    memory: Arc<Memory>,
    are_here: Mutex<bool>,
}

impl Arrivals {
    /// With nothing there, at a gate that is ajar.
    fn begin() -> Arc<Self> {
        GATE.start(true, Fence::ByCloser);
        let memory = Memory::new();
        memory.set_mapped(false);
        GATE.ajar(u32::MAX);
        Arc::new(Self { memory, are_here: Mutex::new(false) })
    }

    /// The manager maps it.
    fn come(&self) {
        self.memory.set_mapped(true);
        *self.are_here.lock() = true;
        GATE.notice_arrival();
    }

    /// Described work that uses it.
    fn described(&self) -> Result<(), Failed> {
        let work = || {
            self.memory.work();
            Ok(())
        };
        submit(Role::Works, work, Err, || *self.are_here.lock(), || false)
    }
}

/// It needs no more than the memory; who does not say what it needs waits for all.
#[test]
fn who_waits_for_its_memory_is_let_in_when_that_comes_and_others_when_the_gate_opens() {
    model(3, || {
        let arrivals = Arrivals::begin();
        let is_open = Arc::new(AtomicBool::new(false));
        let described = {
            let arrivals = arrivals.clone();
            spawn(move || arrivals.described())
        };
        let undescribed = {
            let is_open = is_open.clone();
            let work = move || {
                assert!(is_open.load(SeqCst), "work that is not described was submitted to a gate ajar");
                Ok(())
            };
            spawn(move || submit(Role::Works, work, Err, || false, || false))
        };
        // What somebody else waits for.
        GATE.notice_arrival();
        arrivals.come();
        assert_eq!(described.join().unwrap(), Ok(()));
        is_open.store(true, SeqCst);
        GATE.open();
        assert_eq!(undescribed.join().unwrap(), Ok(()));
    });
}

#[test]
fn nobody_is_inside_a_shut_gate_that_was_ajar() {
    model(3, || {
        let arrivals = Arrivals::begin();
        let described = {
            let arrivals = arrivals.clone();
            spawn(move || arrivals.described())
        };
        arrivals.come();
        while_shut(|| arrivals.memory.switch());
        assert_eq!(described.join().unwrap(), Ok(()));
    });
}

#[test]
fn nobody_is_inside_a_shut_gate_that_was_ajar_and_open() {
    model(2, || {
        let arrivals = Arrivals::begin();
        let submitters = [
            spawn({
                let arrivals = arrivals.clone();
                move || arrivals.described()
            }),
            spawn({
                let memory = arrivals.memory.clone();
                move || works(&memory)
            }),
        ];
        arrivals.come();
        GATE.open();
        while_shut(|| arrivals.memory.switch());
        assert!(submitters.into_iter().all(|submitter| submitter.join().unwrap() == Ok(())));
    });
}

#[test]
fn who_waits_at_a_boundary_goes_on_when_the_gate_is_ajar() {
    model(4, || {
        GATE.start(true, Fence::ByCloser);
        let program = spawn(|| GATE.boundary(1));
        GATE.ajar(u32::MAX);
        program.join().unwrap();
    });
}

/// A driver's function may call another one that is gated.
#[test]
fn who_is_inside_is_not_stopped_again() {
    model(3, || {
        GATE.start(false, Fence::ByCloser);
        let memory = Memory::new();
        let nested = {
            let memory = memory.clone();
            spawn(move || submit(Role::Works, || works(&memory), Err, || false, || false))
        };
        while_shut(|| memory.switch());
        assert_eq!(nested.join().unwrap(), Ok(()));
    });
}

/// A program with boundaries, and a closer that waits for the second one until the program is
/// over.
#[test]
fn who_was_waited_for_at_a_boundary_stays_there_until_the_gate_opens() {
    model(4, || {
        stays_where_it_was_waited_for(
            || GATE.wait_for(Goal::Boundary(2), never(), None),
            |count| GATE.boundary(count),
        );
    });
}

/// The same of a program that waits for its GPU, and a closer that waits for the first time.
#[test]
fn who_was_waited_for_in_a_wait_stays_there_until_the_gate_opens() {
    model(4, || {
        stays_where_it_was_waited_for(|| GATE.wait_for(Goal::Wait, never(), None), |_| GATE.waited())
    });
}

fn stays_where_it_was_waited_for(wait: fn() -> BoundaryWait, come: fn(u64)) {
    GATE.start(false, Fence::ByCloser);
    let memory = Memory::new();
    let closer = {
        let memory = memory.clone();
        spawn(move || {
            let waited = wait();
            if waited == BoundaryWait::Reached {
                memory.set_mapped(false);
                assert!(GATE.shut(never()));
                memory.set_mapped(true);
            }
            GATE.open();
            waited
        })
    };
    for count in 1..=2 {
        works(&memory).unwrap();
        come(count);
    }
    works(&memory).unwrap();
    GATE.give_up_closing();
    assert_ne!(closer.join().unwrap(), BoundaryWait::Deadline);
}

/// The deadline comes at any moment of the program's.
#[test]
fn nobody_passes_a_boundary_while_the_gate_is_shut() {
    model(4, || {
        GATE.start(false, Fence::ByCloser);
        let is_shut = Arc::new(AtomicBool::new(false));
        let program = {
            let is_shut = is_shut.clone();
            spawn(move || {
                for count in 1..=2 {
                    let was_shut = is_shut.load(SeqCst);
                    GATE.boundary(count);
                    assert!(
                        !(was_shut && is_shut.load(SeqCst)),
                        "a boundary was passed while the gate was shut"
                    );
                }
            })
        };
        assert_ne!(GATE.wait_for(Goal::Boundary(9), long_ago(), None), BoundaryWait::GivenUp);
        while_shut(|| {
            is_shut.store(true, SeqCst);
            yield_now();
            is_shut.store(false, SeqCst);
        });
        program.join().unwrap();
    });
}

#[test]
fn who_waits_for_a_boundary_is_told_when_the_session_is_over() {
    model(4, || {
        let closer = spawn(|| GATE.wait_for(Goal::Boundary(0), never(), None));
        GATE.give_up_closing();
        assert_eq!(closer.join().unwrap(), BoundaryWait::GivenUp);
    });
}

/// A round lets waiting threads through, and each is seen inside when it is over: also a thread that
/// is slow to wake.
fn nobody_is_inside_after_a_round(threads: usize, role: Role) {
    GATE.start(true, Fence::ByCloser);
    let memory = Memory::new();
    let submitters: Vec<_> = (0..threads)
        .map(|_| {
            let memory = memory.clone();
            spawn(move || {
                let pass = GATE.pass_as(|| role, || false, || false).unwrap();
                memory.work();
                pass.note_submission();
            })
        })
        .collect();
    GATE.round(&GATE.choose(role, 0), false, Boundary::GoesOn, never());
    assert!(GATE.wait_until_empty(never()));
    memory.switch();
    GATE.open();
    submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
}

#[test]
fn nobody_is_inside_a_gate_that_was_shut_after_a_round() {
    model(2, || nobody_is_inside_after_a_round(1, Role::Works));
}

#[test]
fn nobody_is_inside_a_gate_that_was_shut_after_a_round_for_two() {
    model(2, || nobody_is_inside_after_a_round(2, Role::Works));
}

#[test]
fn nobody_is_inside_a_gate_that_was_shut_after_a_round_of_every_role() {
    model(2, || nobody_is_inside_after_a_round(1, Role::Waits));
}

/// The gate is closed, and a thread waits at it that will use the memory.
fn held_submitter() -> (Arc<Memory>, JoinHandle<Result<(), Failed>>) {
    GATE.start(true, Fence::ByCloser);
    let memory = Memory::new();
    let submitter = {
        let memory = memory.clone();
        spawn(move || works(&memory))
    };
    while GATE.count_waiting(Role::Calls) == 0 {
        yield_now();
    }
    (memory, submitter)
}

/// It is closed again before the thread has woken.
#[test]
fn nobody_is_inside_a_gate_that_was_shut_after_a_round_that_was_over_at_once() {
    model(3, || {
        let (memory, submitter) = held_submitter();
        GATE.round(&GATE.choose(Role::Calls, 0), false, Boundary::GoesOn, long_ago());
        assert!(GATE.wait_until_empty(never()));
        memory.switch();
        GATE.open();
        assert_eq!(submitter.join().unwrap(), Ok(()));
    });
}

/// A round ends only when the threads that waited have gone: it does not sleep through it.
#[test]
fn who_waits_goes_through_in_the_next_round() {
    model(3, || {
        let (memory, submitter) = held_submitter();
        GATE.round(&GATE.choose(Role::Calls, 0), false, Boundary::GoesOn, never());
        assert_eq!(submitter.join().unwrap(), Ok(()));
        memory.switch();
    });
}

/// In whatever order they come: each call goes that is granted, and no grant is lost.
#[test]
fn who_waits_for_a_grant_goes_through_when_it_comes() {
    model(2, || {
        GATE.start(false, Fence::ByCloser);
        GATE.meter();
        let memory = Memory::new();
        let submitters = two_submitters(&memory);
        GATE.grant(1);
        GATE.grant(1);
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap().unwrap());
        assert_eq!(GATE.credit(), Some(0));
    });
}

#[test]
fn nobody_is_inside_a_gate_that_was_shut_while_it_was_metered() {
    model(2, || {
        GATE.start(false, Fence::ByCloser);
        let memory = Memory::new();
        let submitters = two_submitters(&memory);
        GATE.meter();
        GATE.grant(1);
        while_shut(|| memory.switch());
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap().unwrap());
    });
}

/// Flowing, all but waits go; a thread that went is seen inside when the gate closes again.
#[test]
fn nobody_is_inside_a_gate_that_was_shut_after_it_flowed() {
    model(2, || {
        GATE.start(false, Fence::ByCloser);
        let memory = Memory::new();
        let submitters = [Role::Works, Role::Waits].map(|role| {
            let memory = memory.clone();
            spawn(move || {
                let pass = GATE.pass_as(|| role, || false, || false).unwrap();
                memory.work();
                pass.note_submission();
            })
        });
        GATE.flow(Boundary::GoesOn);
        while_shut(|| memory.switch());
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
    });
}

/// A thread goes on, may be caught where it has waited, and goes on from there: by chance, or when the gate opens. Where it
/// is inside it is seen, whenever it wakes.
fn nobody_is_inside_after_catches(draws: &[u32]) {
    GATE.start(true, Fence::ByCloser);
    let memory = Memory::new();
    let submitter = {
        let memory = memory.clone();
        spawn(move || {
            works(&memory)?;
            GATE.waited();
            works(&memory)
        })
    };
    for draw in draws {
        GATE.catch(*draw, *draw > 0, Boundary::GoesOn, 1, long_ago());
        assert!(GATE.wait_until_empty(never()));
        memory.switch();
    }
    GATE.open();
    assert_eq!(submitter.join().unwrap(), Ok(()));
}

#[test]
fn nobody_is_inside_a_gate_that_was_shut_after_threads_were_caught() {
    model(3, || nobody_is_inside_after_catches(&[0]));
}

#[test]
fn nobody_is_inside_a_gate_that_was_shut_after_the_caught_went_on() {
    // The only thread is chosen.
    let draw = (1..).find(|draw| is_chosen(*draw, 0)).unwrap();
    model(2, move || nobody_is_inside_after_catches(&[0, draw]));
}

/// A thread that is held where it came out of a wait goes on when no thread is held there any more, even if it does not sleep yet.
#[test]
fn a_caught_thread_goes_on_when_threads_are_caught_no_more() {
    model(3, || {
        GATE.start(true, Fence::ByCloser);
        GATE.catch(0, false, Boundary::Stays, 1, long_ago());
        let caught = spawn(|| GATE.waited());
        GATE.release();
        caught.join().unwrap();
        GATE.open();
    });
}

/// A call, if it is noted.
struct Noted<'a>(&'a Cell<bool>);

impl Queue for Noted<'_> {
    fn stream(&self) -> Option<usize> {
        None
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn note_submission(&self) -> bool {
        self.0.set(true);
        false
    }
}

/// A call that is made when the mark has been set is noted.
fn call(is_marked: &AtomicBool) {
    let (is_late, is_noted) = (Cell::new(false), Cell::new(false));
    let call = || {
        yield_now();
        is_late.set(is_marked.load(SeqCst));
        Ok(())
    };
    assert_eq!(submit(Role::Works, call, Err, || false, || Noted(&is_noted)), Ok(()));
    assert!(!is_late.get() || is_noted.get(), "a call was missed");
}

/// Sets a mark when no call is missed any more.
fn watch(is_marked: &AtomicBool) {
    assert!(GATE.watch_calls());
    let inside = Record::calls_inside();
    while Record::calls_inside().iter().any(|call| inside.contains(call)) {
        yield_now();
    }
    is_marked.store(true, SeqCst);
}

/// A thread makes two calls while another one begins to watch them, and the gate opens meanwhile.
fn no_call_is_missed(open: fn()) {
    let is_marked = Arc::new(AtomicBool::new(false));
    let (for_calls, for_watcher) = (is_marked.clone(), is_marked.clone());
    let submitter = spawn(move || (0..2).for_each(|_| call(&for_calls)));
    let watcher = spawn(move || watch(&for_watcher));
    open();
    watcher.join().unwrap();
    submitter.join().unwrap();
}

#[test]
fn no_call_is_missed_at_the_open_gate() {
    model(2, || {
        GATE.start(false, Fence::ByCloser);
        no_call_is_missed(|| ());
    });
}

#[test]
fn no_call_is_missed_at_a_gate_that_opens() {
    model(2, || {
        GATE.start(true, Fence::ByCloser);
        no_call_is_missed(|| GATE.open());
    });
}

#[test]
fn no_call_is_missed_at_a_gate_that_is_not_metered_any_more() {
    model(2, || {
        GATE.start(false, Fence::ByCloser);
        GATE.meter();
        no_call_is_missed(|| GATE.unmeter());
    });
}

/// Nor is a thread inside that came the fast way before.
#[test]
fn nobody_is_inside_a_gate_that_was_shut_while_calls_began_to_be_watched() {
    model(2, || {
        GATE.start(false, Fence::ByCloser);
        let memory = Memory::new();
        let submitter = {
            let memory = memory.clone();
            spawn(move || {
                Record::of_thread_or_new();
                works(&memory)
            })
        };
        let watcher = spawn(|| {
            assert!(GATE.watch_calls());
            GATE.stop_watching_calls();
        });
        while_shut(|| memory.switch());
        watcher.join().unwrap();
        submitter.join().unwrap().unwrap();
    });
}
