//! The gate under threads. All promises share the process's one gate, so one test runs them in
//! turn.

use crate::gate::{
    Boundary, BoundaryWait, Failed, Fence, GATE, Goal, Queue, Record, Role, is_chosen, submit,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

static SHUT: AtomicBool = AtomicBool::new(false);

fn try_submit<R>(call: impl FnOnce() -> R) -> Result<R, Failed> {
    submit(Role::Works, || Ok(call()), Err, || false, || false)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn the_gate_keeps_its_promises() {
    inert_it_lets_everything_through();
    an_ended_thread_leaves_its_record_and_its_count();
    a_thread_that_has_waited_and_makes_many_more_calls_is_not_expected_to_wait();
    for fence in [Fence::cheapest(), Fence::ByThreads] {
        GATE.start(false, fence);
        nobody_is_inside_a_shut_gate();
        nobody_slips_in_while_it_shuts();
        a_nested_submission_does_not_wait_for_its_own_closer();
        a_boundary_that_was_waited_for_holds_its_thread_until_the_gate_opens();
        it_is_known_who_is_done_with_what_was_freed_until_the_gate_opens();
        who_has_waited_is_held_only_where_that_is_waited_for();
        boundaries_before_the_target_and_deadlines_do_not_hold_anybody();
        a_collective_that_was_waited_for_is_not_launched_before_the_gate_opens();
        what_is_done_while_a_goal_is_waited_for_may_end_the_wait();
        a_boundary_is_waited_for_though_calls_are_not_counted_any_more();
        a_boundary_that_was_passed_is_not_waited_for();
        a_gate_is_not_shut_while_pieces_arrive();
        ajar_only_work_whose_operands_are_there_goes_through();
        whoever_went_through_ajar_is_waited_for();
        a_boundary_holds_nobody_while_the_gate_is_ajar();
        ajar_as_many_calls_go_as_are_granted();
        ajar_no_grants_are_saved_up();
        only_a_closed_gate_can_be_ajar();
        metered_as_many_calls_go_through_as_are_granted();
        metered_calls_with_little_ahead_go_without_a_grant();
        a_thread_that_waits_for_a_grant_says_so_when_the_gate_closes();
        a_thread_that_is_about_to_wait_gets_what_is_granted_just_then();
        a_thread_that_is_about_to_wait_says_that_it_waits_at_the_next_closing();
        flowing_the_gate_holds_only_what_would_wait();
        a_round_lets_each_thread_through_once();
        a_round_of_some_lets_nobody_else_through();
        a_round_lets_only_through_what_would_begin_at_once_where_it_is_meant_to();
        threads_that_come_out_of_a_wait_are_caught();
        chance_lets_threads_go_on_from_a_boundary_only_if_they_are_to();
        a_round_lets_through_what_has_the_role_that_is_meant();
        a_round_lets_threads_go_on_from_a_boundary();
        a_failed_gate_lets_nobody_through_and_nobody_wait();
        GATE.start(true, fence);
        GATE.ajar(u32::MAX);
        a_gate_that_was_ajar_fails_for_all();
    }
    GATE.disable();
    assert_eq!(try_submit(|| 1), Ok(1));
}

fn inert_it_lets_everything_through() {
    assert_eq!(try_submit(|| 7), Ok(7));
    GATE.boundary(1);
}

fn an_ended_thread_leaves_its_record_and_its_count() {
    let submit = || {
        let record = Record::of_thread_or_new();
        record.enter();
        assert!(record.is_inside());
        record.leave();
        ptr::from_ref(record) as usize
    };
    let before = Record::submissions();
    let records: Vec<usize> = (0..8).map(|_| std::thread::spawn(submit).join().unwrap()).collect();
    assert_eq!(Record::submissions(), before + 8);
    assert!(records.iter().all(|record| *record == records[0]), "a thread made a new record");
}

fn a_thread_that_has_waited_and_makes_many_more_calls_is_not_expected_to_wait() {
    let thread = std::thread::spawn(|| {
        let record = Record::of_thread_or_new();
        let may_wait_after = |count| {
            (0..count).for_each(|_| {
                record.enter();
                record.leave();
            });
            record.may_soon_wait()
        };
        assert!(may_wait_after(1000), "it never waited");
        assert!(record.note_wait() && !record.note_wait());
        assert_eq!([127, 1].map(may_wait_after), [true, false]);
        may_wait_after(1000 - 128);
        assert!(record.note_wait());
        assert_eq!([1999, 1].map(may_wait_after), [true, false], "it made as many before");
    });
    thread.join().unwrap();
}

/// Tells threads to stop, and lets those go on that wait, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        GATE.open();
    }
}

/// Submits again and again, and counts.
fn submit_until(stop: &AtomicBool, submitted: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        try_submit(|| submitted.fetch_add(1, Ordering::SeqCst)).unwrap();
    }
}

fn nobody_is_inside_a_shut_gate() {
    let (stop, submitted) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    try_submit(|| assert!(!SHUT.load(Ordering::SeqCst), "inside a shut gate")).unwrap();
                    submitted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..100 {
            assert!(GATE.shut(soon()));
            SHUT.store(true, Ordering::SeqCst);
            let still = Record::submissions();
            std::thread::yield_now();
            assert_eq!(Record::submissions(), still);
            SHUT.store(false, Ordering::SeqCst);
            let (before, limit) = (submitted.load(Ordering::Relaxed), soon());
            GATE.open();
            while submitted.load(Ordering::Relaxed) == before {
                assert!(Instant::now() < limit, "nobody submits anything");
                std::thread::yield_now();
            }
        }
    });
}

/// The gate shuts and opens very often while a thread goes through it, which is caught inside when
/// it slipped in. That takes the moment in which its nesting waits in the processor's store
/// buffer while it reads the word: writes to distant memory, which the buffer keeps in order, make
/// that moment long. Only where both run at once is there anything to find: closings before which
/// the thread was seen to submit count, and on a busy machine no more than some seconds are spent.
fn nobody_slips_in_while_it_shuts() {
    let [stop, slipped_in] = [const { AtomicBool::new(false) }; 2];
    let submitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_on_processor(0);
            let mut distant = Distant::new();
            while !stop.load(Ordering::Relaxed) {
                distant.write();
                let sees_it_shut = try_submit(|| (0..100).any(|_| SHUT.load(Ordering::SeqCst))).unwrap();
                slipped_in.fetch_or(sees_it_shut, Ordering::Relaxed);
                submitted.fetch_add(1, Ordering::Relaxed);
                while !GATE.is_open() && !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        });
        scope.spawn(|| {
            run_on_processor(1);
            let _stop = Stop(&stop);
            let (end, mut met) = (Instant::now() + Duration::from_secs(5), 0);
            for gap in (0..256).cycle() {
                assert!(GATE.shut(soon()));
                SHUT.store(true, Ordering::SeqCst);
                spin(20);
                SHUT.store(false, Ordering::SeqCst);
                GATE.open();
                let before = submitted.load(Ordering::Relaxed);
                // Whatever the thread does then.
                spin(gap);
                met += u32::from(submitted.load(Ordering::Relaxed) != before);
                if met >= 5_000 || slipped_in.load(Ordering::Relaxed) || Instant::now() > end {
                    break;
                }
            }
        });
    });
    assert!(!slipped_in.into_inner(), "a thread is inside a shut gate");
}

/// Keeps the calling thread on one of the processors that the process may use, if there are so many.
fn run_on_processor(index: usize) {
    let all = sched_getaffinity(None).unwrap();
    let Some(processor) = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor)).nth(index) else {
        return;
    };
    let mut one = CpuSet::new();
    one.set(processor);
    sched_setaffinity(None, &one).unwrap();
}

fn spin(rounds: u32) {
    (0..rounds).for_each(|_| std::hint::spin_loop());
}

/// Memory that no cache holds.
struct Distant {
    bytes: Vec<u8>,
    next: usize,
}

impl Distant {
    /// About as much as fits into a store buffer.
    const AT_ONCE: usize = 4096;

    fn new() -> Self {
        Self { bytes: vec![1; 64 << 20], next: 0 }
    }

    fn write(&mut self) {
        // Far from the last place, and not where the processor would look ahead.
        self.next = (self.next * 5 + 7_777) % (self.bytes.len() / Self::AT_ONCE);
        self.bytes[self.next * Self::AT_ONCE..][..Self::AT_ONCE].copy_from_slice(&[0; Self::AT_ONCE]);
    }
}

fn a_nested_submission_does_not_wait_for_its_own_closer() {
    let (inside, shut) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            try_submit(|| {
                inside.wait();
                shut.wait();
                try_submit(|| ()).unwrap();
            })
            .unwrap();
        });
        inside.wait();
        assert!(!GATE.shut(Instant::now() + Duration::from_millis(5)));
        shut.wait();
        assert!(GATE.shut(soon()));
        GATE.open();
    });
}

fn a_boundary_that_was_waited_for_holds_its_thread_until_the_gate_opens() {
    let (passed, reached) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (passed, reached) = (&passed, &reached);
        scope.spawn(move || {
            while !passed.load(Ordering::SeqCst) {
                GATE.boundary(1);
                passed.store(reached.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        });
        assert_eq!(GATE.wait_for(Goal::Boundary(0), soon(), None), BoundaryWait::Reached);
        reached.store(true, Ordering::SeqCst);
        assert!(GATE.shut(soon()));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!passed.load(Ordering::SeqCst));
        GATE.open();
    });
    assert!(passed.load(Ordering::SeqCst));
}

fn it_is_known_who_is_done_with_what_was_freed_until_the_gate_opens() {
    type Kind = (bool, fn(), fn() -> BoundaryWait);
    let kinds: [Kind; 2] = [
        (true, || GATE.boundary(1), || GATE.wait_for(Goal::Boundary(0), soon(), None)),
        (false, || GATE.waited(), || GATE.wait_for(Goal::Wait, soon(), None)),
    ];
    for (is_done, come, wait) in kinds {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    come();
                }
            });
            assert_eq!(wait(), BoundaryWait::Reached);
            is_over.store(true, Ordering::SeqCst);
            assert!(GATE.shut(soon()));
            let known = GATE.at_boundary();
            GATE.open();
            assert_eq!((known.is_some(), GATE.at_boundary().is_some()), (is_done, false));
        });
    }
}

fn who_has_waited_is_held_only_where_that_is_waited_for() {
    GATE.waited();
    let closer = std::thread::spawn(|| {
        GATE.wait_for(Goal::Boundary(0), Instant::now() + Duration::from_millis(20), None)
    });
    while !closer.is_finished() {
        GATE.waited();
    }
    assert_eq!(closer.join().unwrap(), BoundaryWait::Deadline);
    assert!(GATE.shut(soon()));
    GATE.waited();
    GATE.open();
}

fn boundaries_before_the_target_and_deadlines_do_not_hold_anybody() {
    std::thread::scope(|scope| {
        let closer = scope
            .spawn(|| GATE.wait_for(Goal::Boundary(9), Instant::now() + Duration::from_millis(20), None));
        while !closer.is_finished() {
            GATE.boundary(8);
        }
        assert_eq!(closer.join().unwrap(), BoundaryWait::Deadline);
    });
    GATE.open();
}

fn a_collective_that_was_waited_for_is_not_launched_before_the_gate_opens() {
    // Their numbers only grow.
    static LAUNCHED: AtomicU64 = AtomicU64::new(0);
    let last = || LAUNCHED.load(Ordering::SeqCst);
    let is_over = AtomicBool::new(false);
    let launch = || {
        while !is_over.load(Ordering::Relaxed) {
            // Boundaries have other numbers.
            GATE.boundary(u64::MAX);
            let number = last() + 1;
            GATE.collective(number);
            LAUNCHED.fetch_max(number, Ordering::SeqCst);
        }
    };
    std::thread::scope(|scope| {
        // Of two threads neither launches it.
        let _threads = [scope.spawn(launch), scope.spawn(launch)];
        let target = loop {
            let target = last() + 1000;
            match GATE.wait_for(Goal::Collective(target), soon(), None) {
                BoundaryWait::Reached => break target,
                BoundaryWait::Passed(number) => assert!(number >= target),
                other => panic!("{other:?}"),
            }
        };
        while GATE.held() < 2 && last() < target {
            std::thread::yield_now();
        }
        let found = (GATE.shut(soon()), last() + 1, GATE.at_boundary().is_some());
        // A thread that stays held would keep the test from ending in words.
        is_over.store(true, Ordering::Relaxed);
        GATE.open();
        assert_eq!(
            found,
            (true, target, false),
            "it is not launched, and may be about to use what it has freed"
        );
    });
}

fn what_is_done_while_a_goal_is_waited_for_may_end_the_wait() {
    let (hour, mut looks) = (Duration::from_secs(3600), 0);
    let mut look = || {
        looks += 1;
        (looks < 3).then(Instant::now)
    };
    let goal = Goal::Collective(u64::MAX);
    assert_eq!(GATE.wait_for(goal, Instant::now() + hour, Some(&mut look)), BoundaryWait::Deadline);
    assert_eq!(looks, 3);
    GATE.open();
}

fn a_boundary_is_waited_for_though_calls_are_not_counted_any_more() {
    let is_over = AtomicBool::new(false);
    GATE.meter();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                GATE.boundary(1);
            }
        });
        let mut look = || {
            GATE.unmeter();
            Some(soon())
        };
        let waited = GATE.wait_for(Goal::Boundary(0), soon(), Some(&mut look));
        is_over.store(true, Ordering::Relaxed);
        GATE.open();
        assert_eq!(waited, BoundaryWait::Reached);
    });
}

fn a_boundary_that_was_passed_is_not_waited_for() {
    GATE.boundary(5);
    assert_eq!(GATE.wait_for(Goal::Boundary(5), soon(), None), BoundaryWait::Passed(5));
    assert_eq!(GATE.wait_for(Goal::Boundary(4), soon(), None), BoundaryWait::Passed(5));
    // It holds no thread.
    GATE.boundary(6);
    let long_ago = Instant::now();
    assert_eq!(GATE.wait_for(Goal::Boundary(7), long_ago, None), BoundaryWait::Deadline);
    assert_eq!(GATE.wait_for(Goal::Boundary(0), long_ago, None), BoundaryWait::Deadline, "0 is the next one");
    GATE.open();
}

fn a_gate_is_not_shut_while_pieces_arrive() {
    let arrival = GATE.arrival();
    assert!(!GATE.shut(Instant::now() + Duration::from_millis(5)));
    drop(arrival);
    assert!(GATE.shut(soon()));
    GATE.open();
}

/// Waits for something that other threads do, not for ever.
#[track_caller]
fn until(is_so: impl Fn() -> bool) {
    let limit = soon();
    while !is_so() {
        assert!(Instant::now() < limit, "it does not come");
        std::thread::yield_now();
    }
}

/// A closing that is not followed by anything else.
fn shut_and_open_ajar() {
    assert!(GATE.shut(soon()));
    GATE.ajar(u32::MAX);
    assert!(GATE.is_ajar() && !GATE.is_open());
}

fn ajar_only_work_whose_operands_are_there_goes_through() {
    let (is_there, is_open) = (AtomicBool::new(false), AtomicBool::new(false));
    let looks = [const { AtomicU64::new(0) }; 2];
    let seen = |index: usize, least| until(|| looks[index].load(Ordering::SeqCst) >= least);
    let look = |index: usize, answer: bool| {
        looks[index].fetch_add(1, Ordering::SeqCst);
        answer
    };
    let when_open = || {
        assert!(is_open.load(Ordering::SeqCst), "it is ajar");
        Ok(())
    };
    shut_and_open_ajar();
    std::thread::scope(|scope| {
        let _stop = Stop(&is_open);
        let needs_memory = scope.spawn(|| {
            let work = || {
                assert!(is_there.load(Ordering::SeqCst));
                // Who is inside does not wait.
                try_submit(|| ())
            };
            submit(Role::Works, work, Err, || look(0, is_there.load(Ordering::SeqCst)), || false)
        });
        let undescribed = scope.spawn(|| submit(Role::Works, when_open, Err, || look(1, false), || false));
        let allocates = scope.spawn(|| GATE.pass().and_then(|_pass| when_open()));
        seen(0, 1);
        seen(1, 1);
        assert_eq!(submit(Role::Works, || Ok(1), Err, || true, || false), Ok(1), "nothing of it is missing");
        until(|| GATE.has_waiters());
        GATE.notice_arrival();
        seen(0, 2);
        seen(1, 2);
        is_there.store(true, Ordering::SeqCst);
        GATE.notice_arrival();
        assert_eq!(needs_memory.join().unwrap(), Ok(()));
        seen(1, 3);
        is_open.store(true, Ordering::SeqCst);
        GATE.open();
        assert_eq!((undescribed.join().unwrap(), allocates.join().unwrap()), (Ok(()), Ok(())));
    });
    GATE.notice_arrival();
    assert!(GATE.is_open() && !GATE.is_ajar());
}

fn whoever_went_through_ajar_is_waited_for() {
    let (inside, shut) = (Barrier::new(2), Barrier::new(2));
    let work = || {
        inside.wait();
        shut.wait();
        Ok(())
    };
    shut_and_open_ajar();
    std::thread::scope(|scope| {
        let inside_ajar = scope.spawn(|| submit(Role::Works, work, Err, || true, || false));
        inside.wait();
        assert!(!GATE.shut(Instant::now() + Duration::from_millis(5)));
        assert!(GATE.reopen_ajar() && GATE.is_ajar(), "there was no closing after all");
        shut.wait();
        assert_eq!(inside_ajar.join().unwrap(), Ok(()));
    });
    assert!(GATE.shut(soon()));
    GATE.open();
    assert!(!GATE.reopen_ajar() && GATE.is_open());
}

fn a_boundary_holds_nobody_while_the_gate_is_ajar() {
    assert!(GATE.shut(soon()));
    std::thread::scope(|scope| {
        let at_boundary = scope.spawn(|| GATE.boundary(1));
        GATE.ajar(u32::MAX);
        at_boundary.join().unwrap();
        GATE.boundary(2);
        GATE.waited();
    });
    GATE.open();
}

/// Opens the gate in the end, whatever becomes of the test: threads that wait there go on.
struct Opens;

impl Drop for Opens {
    fn drop(&mut self) {
        GATE.open();
    }
}

fn ajar_as_many_calls_go_as_are_granted() {
    let went = AtomicU64::new(0);
    let submit_one = || {
        submit(Role::Works, || Ok(went.fetch_add(1, Ordering::SeqCst)), Err, || true, || false).unwrap();
    };
    assert!(GATE.shut(soon()));
    GATE.ajar(2);
    std::thread::scope(|scope| {
        let _opens = Opens;
        scope.spawn(|| (0..5).for_each(|_| submit_one()));
        for granted in [2, 3] {
            until(|| went.load(Ordering::SeqCst) >= granted && GATE.count_waiting(Role::Waits) == 1);
            assert_eq!(went.load(Ordering::SeqCst), granted);
            GATE.grant_ajar(u32::from(granted == 2), 2);
        }
    });
    assert_eq!(went.load(Ordering::SeqCst), 5);
}

fn ajar_no_grants_are_saved_up() {
    let went = AtomicU64::new(0);
    let submit_one = || {
        submit(Role::Works, || Ok(went.fetch_add(1, Ordering::SeqCst)), Err, || true, || false).unwrap();
    };
    assert!(GATE.shut(soon()));
    GATE.ajar(2);
    (0..10).for_each(|_| GATE.grant_ajar(2, 3));
    std::thread::scope(|scope| {
        let _opens = Opens;
        scope.spawn(|| (0..5).for_each(|_| submit_one()));
        until(|| went.load(Ordering::SeqCst) >= 3 && GATE.count_waiting(Role::Waits) == 1);
        assert_eq!(went.load(Ordering::SeqCst), 3);
    });
}

fn only_a_closed_gate_can_be_ajar() {
    GATE.ajar(u32::MAX);
    assert!(GATE.is_open() && !GATE.is_ajar());
}

fn a_gate_that_was_ajar_fails_for_all() {
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| try_submit(|| ()));
        until(|| GATE.has_waiters());
        GATE.fail();
        assert_eq!(waits.join().unwrap(), Err(Failed));
    });
    GATE.ajar(u32::MAX);
    GATE.notice_arrival();
    assert_eq!(submit(Role::Works, || Ok(()), Err, || true, || false), Err(Failed));
}

fn pass_as(role: Role) {
    GATE.pass_as(|| role, || false, || false).unwrap().note_submission();
}

fn metered_as_many_calls_go_through_as_are_granted() {
    let (stop, submitted) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        GATE.meter();
        assert!(GATE.is_open() && GATE.credit() == Some(0));
        (0..3).for_each(|_| _ = scope.spawn(|| submit_until(&stop, &submitted)));
        for granted in [5, 6, 16] {
            let before = submitted.load(Ordering::SeqCst);
            GATE.grant(u32::try_from(granted - before).unwrap());
            let limit = soon();
            while submitted.load(Ordering::SeqCst) < granted || GATE.count_waiting(Role::Waits) < 3 {
                assert!(Instant::now() < limit, "a grant is slept through");
                std::thread::yield_now();
            }
            assert_eq!(submitted.load(Ordering::SeqCst), granted);
            assert!(!GATE.has_waiters(), "other jobs have nothing to do with it");
        }
    });
    assert_eq!(GATE.credit(), None);
    GATE.grant(1);
    assert!(GATE.credit().is_none() && try_submit(|| 1) == Ok(1));
}

/// A stream that has no work, or all that was submitted to it.
struct Stream(bool);

impl Queue for Stream {
    fn stream(&self) -> Option<usize> {
        Some(7)
    }

    fn is_busy(&self) -> bool {
        self.0
    }
}

fn metered_calls_with_little_ahead_go_without_a_grant() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        GATE.meter();
        let go = |is_busy| {
            GATE.pass_as(|| Role::Works, || false, move || Stream(is_busy)).unwrap().note_submission()
        };
        let before = GATE.in_batches();
        scope.spawn(move || {
            (0..5).for_each(|_| go(false));
            go(true);
            go(true);
        });
        until(|| GATE.count_waiting(Role::Waits) == 1);
        assert_eq!(GATE.in_batches() - before, 6, "the fifth batch is of two");
        drop(GATE.pass().unwrap());
        GATE.grant(1);
    });
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        GATE.meter();
        GATE.grant(1);
        let before = GATE.in_batches();
        let first = scope
            .spawn(|| GATE.pass_as(|| Role::Works, || false, || Stream(false)).unwrap().note_submission());
        first.join().unwrap();
        assert_eq!(
            (GATE.credit(), GATE.in_batches()),
            (Some(0), before),
            "the first of a stream is counted if it can be"
        );
    });
}

fn a_thread_that_waits_for_a_grant_says_so_when_the_gate_closes() {
    let (stop, submitted) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        GATE.meter();
        scope.spawn(|| submit_until(&stop, &submitted));
        let limit = soon();
        while GATE.count_waiting(Role::Waits) < 1 {
            assert!(Instant::now() < limit);
            std::thread::yield_now();
        }
        assert_eq!(GATE.wait_for(Goal::Boundary(0), Instant::now(), None), BoundaryWait::Deadline);
        assert!(GATE.shut(soon()) && !GATE.is_open());
        while !GATE.has_waiters() {
            assert!(Instant::now() < limit, "it sleeps");
            std::thread::yield_now();
        }
        GATE.meter();
        assert!(GATE.credit().is_none(), "a closed gate is not metered");
        assert_eq!(submitted.load(Ordering::SeqCst), 0);
    });
}

/// A stream that has work. When that is asked first a call is granted.
struct Granted<'a>(&'a AtomicBool);

impl Queue for Granted<'_> {
    fn stream(&self) -> Option<usize> {
        None
    }

    fn is_busy(&self) -> bool {
        if !self.0.swap(true, Ordering::SeqCst) {
            GATE.look_again(1);
        }
        true
    }
}

fn a_thread_that_is_about_to_wait_gets_what_is_granted_just_then() {
    let (stop, asked) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        GATE.meter();
        GATE.go_by_streams(true);
        let thread = scope
            .spawn(|| GATE.pass_as(|| Role::Works, || false, || Granted(&asked)).unwrap().note_submission());
        until(|| thread.is_finished());
    });
    assert!(asked.into_inner());
}

fn a_thread_that_is_about_to_wait_says_that_it_waits_at_the_next_closing() {
    let stop = AtomicBool::new(false);
    let close = || {
        assert_eq!(GATE.wait_for(Goal::Boundary(0), Instant::now(), None), BoundaryWait::Deadline);
        assert!(GATE.shut(soon()));
    };
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        close();
        let is_first = AtomicBool::new(true);
        // It is asked what it would submit when it has said that it waits, and does not yet.
        let role = move || {
            if is_first.swap(false, Ordering::SeqCst) {
                GATE.open();
                close();
            }
            Role::Works
        };
        scope.spawn(move || GATE.pass_as(role, || false, || false).unwrap().note_submission());
        until(|| GATE.count_waiting(Role::Waits) == 1 && GATE.has_waiters());
    });
}

fn flowing_the_gate_holds_only_what_would_wait() {
    let has_waited = AtomicBool::new(false);
    let before = Record::submissions();
    std::thread::scope(|scope| {
        let _stop = Stop(&has_waited);
        GATE.flow(Boundary::GoesOn);
        let waits = scope.spawn(|| {
            pass_as(Role::Waits);
            assert!(has_waited.load(Ordering::SeqCst), "it was not held");
        });
        until(|| GATE.count_waiting(Role::Waits) == 1);
        assert_eq!(GATE.count_waiting(Role::Calls), 0);
        let works = scope.spawn(|| {
            pass_as(Role::Works);
            try_submit(|| ())
        });
        until(|| works.is_finished());
        assert_eq!(works.join().unwrap(), Ok(()));
        assert!(!GATE.is_open() && GATE.holds_threads(Boundary::GoesOn));
        assert!(GATE.shut(soon()));
        has_waited.store(true, Ordering::SeqCst);
        GATE.open();
        waits.join().unwrap();
    });
    assert_eq!((Record::submissions() - before, GATE.count_waiting(Role::Waits)), (3, 0));
}

fn a_round_lets_each_thread_through_once() {
    const THREADS: u32 = 3;
    let (submitted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    assert!(GATE.shut(soon()));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..THREADS {
            scope.spawn(|| submit_until(&stop, &submitted));
        }
        for rounds in 1..=20 {
            until(|| GATE.count_waiting(Role::Calls) == THREADS);
            GATE.round(&GATE.choose(Role::Calls, 0), false, Boundary::GoesOn, soon());
            assert!(GATE.wait_until_empty(soon()));
            assert_eq!(submitted.load(Ordering::SeqCst), rounds * u64::from(THREADS));
        }
        until(|| GATE.count_waiting(Role::Calls) == THREADS);
        assert_eq!(submitted.load(Ordering::SeqCst), 20 * u64::from(THREADS), "a thread went after a round");
    });
}

fn a_round_of_some_lets_nobody_else_through() {
    const THREADS: usize = 3;
    let (submitted, stop) = ([const { AtomicU64::new(0) }; THREADS], AtomicBool::new(false));
    assert!(GATE.shut(soon()));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for count in &submitted {
            scope.spawn(|| submit_until(&stop, count));
        }
        let mut went_alone = [[false; THREADS]; THREADS];
        for draw in 1..33 {
            until(|| GATE.count_waiting(Role::Calls) == THREADS as u32);
            let before = submitted.each_ref().map(|count| count.load(Ordering::SeqCst));
            GATE.round(&GATE.choose(Role::Calls, draw), false, Boundary::GoesOn, soon());
            assert!(GATE.wait_until_empty(soon()));
            let went: [bool; THREADS] =
                std::array::from_fn(|i| submitted[i].load(Ordering::SeqCst) == before[i] + 1);
            for (one, other) in (0..THREADS).flat_map(|one| (0..THREADS).map(move |other| (one, other))) {
                went_alone[one][other] |= went[one] && !went[other];
            }
        }
        let is_apart = |one: usize, other: usize| one == other || went_alone[one][other];
        assert!((0..THREADS).all(|one| (0..THREADS).all(|other| is_apart(one, other))), "{went_alone:?}");
    });
}

fn a_round_lets_only_through_what_would_begin_at_once_where_it_is_meant_to() {
    assert!(GATE.shut(soon()));
    let would_queue = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let ahead = scope
            .spawn(|| submit(Role::Works, || Ok(()), Err, || false, || would_queue.load(Ordering::SeqCst)));
        let behind = scope.spawn(|| try_submit(|| ()));
        until(|| GATE.count_waiting(Role::Waits) == 2);
        let round = || GATE.round(&GATE.choose(Role::Calls, 0), true, Boundary::Stays, soon());
        assert_eq!(round(), 1);
        until(|| behind.is_finished());
        assert_eq!((round(), ahead.is_finished()), (0, false));
        would_queue.store(false, Ordering::SeqCst);
        assert_eq!(round(), 1);
        until(|| ahead.is_finished());
    });
    GATE.open();
}

/// Each of some threads submits work, waits for it, and so on.
fn threads_that_come_out_of_a_wait_are_caught() {
    const THREADS: u64 = 3;
    let (submitted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    assert!(GATE.shut(soon()));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..10 {
                        try_submit(|| submitted.fetch_add(1, Ordering::SeqCst)).unwrap();
                    }
                    GATE.waited();
                }
            });
        }
        until(|| GATE.count_waiting(Role::Waits) == THREADS as u32);
        // At the gate they are in the middle of something.
        while submitted.load(Ordering::SeqCst) < 10 * THREADS {
            GATE.catch(0, false, Boundary::GoesOn, u32::MAX, soon());
        }
        assert!(GATE.wait_until_empty(soon()) && GATE.count_waiting(Role::Waits) == 0 && !GATE.is_open());
        GATE.catch(0, false, Boundary::GoesOn, u32::MAX, soon());
        assert_eq!(submitted.load(Ordering::SeqCst), 10 * THREADS, "they stay");
        let mut draws = 1..;
        while submitted.load(Ordering::SeqCst) < 20 * THREADS {
            GATE.catch(draws.next().unwrap(), true, Boundary::Stays, 1, soon());
        }
        GATE.release();
        until(|| GATE.count_waiting(Role::Waits) == THREADS as u32);
        GATE.open();
        until(|| submitted.load(Ordering::SeqCst) >= 100 * THREADS);
    });
    assert!(GATE.is_open());
}

fn chance_lets_threads_go_on_from_a_boundary_only_if_they_are_to() {
    assert!(GATE.shut(soon()));
    std::thread::scope(|scope| {
        let at_boundary = scope.spawn(|| GATE.boundary(1));
        until(|| GATE.holds_threads(Boundary::GoesOn));
        (0..64).for_each(|draw| GATE.catch(draw, true, Boundary::Stays, 1, soon()));
        assert!(!at_boundary.is_finished());
        let mut draws = 64..;
        while !at_boundary.is_finished() {
            GATE.catch(draws.next().unwrap(), true, Boundary::GoesOn, 1, soon());
        }
    });
    GATE.open();
}

#[test]
fn draws_let_anybody_go_with_and_without_any_other() {
    let goes =
        |draw: u32| (0..4u32).filter(|number| is_chosen(draw, *number)).map(|number| 1 << number).sum();
    let sets: std::collections::BTreeSet<u32> = (1..128).map(goes).collect();
    assert_eq!(sets.len(), 16, "{sets:?}");
}

fn a_round_lets_through_what_has_the_role_that_is_meant() {
    for (role, one_before) in [(Role::Waits, Role::Calls), (Role::Calls, Role::Works)] {
        assert!(GATE.shut(soon()));
        std::thread::scope(|scope| {
            let _opens = Opens;
            let thread = scope.spawn(|| pass_as(role));
            until(|| GATE.count_waiting(role) == 1);
            assert_eq!(GATE.count_waiting(one_before), 0);
            GATE.round(&GATE.choose(one_before, 0), false, Boundary::GoesOn, soon());
            assert_eq!(GATE.count_waiting(role), 1);
            GATE.round(&GATE.choose(role, 0), false, Boundary::GoesOn, soon());
            thread.join().unwrap();
            assert!(!GATE.holds_threads(Boundary::GoesOn));
        });
        GATE.open();
    }
}

fn a_round_lets_threads_go_on_from_a_boundary() {
    let reached = std::sync::Arc::new(AtomicBool::new(false));
    let at_boundary = std::thread::spawn({
        let reached = reached.clone();
        move || {
            while !reached.load(Ordering::SeqCst) {
                GATE.boundary(1);
            }
        }
    });
    assert_eq!(GATE.wait_for(Goal::Boundary(0), soon(), None), BoundaryWait::Reached);
    reached.store(true, Ordering::SeqCst);
    assert!(GATE.shut(soon()) && GATE.at_boundary().is_some());
    until(|| GATE.holds_threads(Boundary::GoesOn));
    assert!(!GATE.holds_threads(Boundary::Stays));
    GATE.flow(Boundary::Stays);
    GATE.round(&GATE.choose(Role::Waits, 0), false, Boundary::Stays, soon());
    assert!(!at_boundary.is_finished() && GATE.at_boundary().is_some(), "it was to stay");
    GATE.round(&GATE.choose(Role::Calls, 0), false, Boundary::GoesOn, soon());
    at_boundary.join().unwrap();
    assert!(GATE.at_boundary().is_none() && !GATE.is_open(), "it may submit work now");
    GATE.open();
}

fn a_failed_gate_lets_nobody_through_and_nobody_wait() {
    assert!(GATE.shut(soon()));
    std::thread::scope(|scope| {
        let submitters: Vec<_> = (0..4).map(|_| scope.spawn(|| try_submit(|| ()))).collect();
        let at_boundary = scope.spawn(|| GATE.boundary(1));
        while !GATE.has_waiters() {
            std::thread::yield_now();
        }
        GATE.fail();
        assert!(submitters.into_iter().all(|submitter| submitter.join().unwrap() == Err(Failed)));
        at_boundary.join().unwrap();
    });
    assert_eq!(try_submit(|| ()), Err(Failed));
    assert!(GATE.pass().is_err() && !GATE.is_open() && !GATE.has_waiters());
    GATE.boundary(2);
}
