//! The gate under threads. All promises share the process's one gate, so one test runs them in
//! turn.

use super::*;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;

static SHUT: AtomicBool = AtomicBool::new(false);

fn try_submit<R>(call: impl FnOnce() -> R) -> Result<R, Failed> {
    submit(|| Ok(call()), Err)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn the_gate_keeps_its_promises() {
    inert_it_lets_everything_through();
    for open_word in [OPEN, OPEN_FENCED] {
        GATE.start(false);
        GATE.open_word.store(open_word, Ordering::Relaxed);
        GATE.open();
        nobody_is_inside_a_shut_gate();
        a_nested_submission_does_not_wait_for_its_own_closer();
        a_boundary_that_was_waited_for_holds_its_thread_until_the_gate_opens();
        boundaries_before_the_target_and_deadlines_do_not_hold_anybody();
        a_gate_is_not_shut_while_pieces_arrive();
        a_failed_gate_lets_nobody_through_and_nobody_wait();
    }
    GATE.disable();
    assert_eq!(try_submit(|| 1), Ok(1));
}

fn inert_it_lets_everything_through() {
    assert_eq!(try_submit(|| 7), Ok(7));
    GATE.boundary(1);
}

/// Tells threads to stop, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
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
        assert_eq!(GATE.wait_for_boundary(0, soon()), BoundaryWait::Reached);
        reached.store(true, Ordering::SeqCst);
        assert!(GATE.shut(soon()));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!passed.load(Ordering::SeqCst));
        GATE.open();
    });
    assert!(passed.load(Ordering::SeqCst));
}

fn boundaries_before_the_target_and_deadlines_do_not_hold_anybody() {
    std::thread::scope(|scope| {
        let closer = scope.spawn(|| GATE.wait_for_boundary(9, Instant::now() + Duration::from_millis(20)));
        while !closer.is_finished() {
            GATE.boundary(8);
        }
        assert_eq!(closer.join().unwrap(), BoundaryWait::Deadline);
    });
    GATE.open();
}

fn a_gate_is_not_shut_while_pieces_arrive() {
    let arrival = GATE.arrival();
    assert!(!GATE.shut(Instant::now() + Duration::from_millis(5)));
    drop(arrival);
    assert!(GATE.shut(soon()));
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
