//! A process with memory that no switch can take away (managed memory): its job is not stopped.

use super::*;

const WHY: &str = "it uses managed memory";

fn root(desk: &mut Desk, session: SessionId) {
    desk.tell(Event::Unsliceable { session, reason: WHY.into() });
}

fn pass_long(desk: &mut Desk) {
    for _ in 0..50 {
        desk.pass(ms(100));
    }
}

#[test]
fn it_is_never_asked_to_close_and_who_waits_is_told_behind_whom() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let urgent = desk.job(JobSpec { priority: 5, ..spec("urgent") });
    root(&mut desk, a);
    fill(&mut desk, urgent, 10, 60);
    pass_long(&mut desk);
    assert_eq!((desk.phase(a), desk.closings(a)), (Phase::Open, 0));
    for waiter in [b, urgent] {
        assert_ne!(desk.phase(waiter), Phase::Open);
        assert_eq!(told_behind(&desk, waiter), Some(desk.scheduler.sessions()[&a].job));
    }
    assert_eq!(desk.job_of(a).why_unsliceable(), Some(WHY));
    desk.end(a);
    desk.until(|desk| desk.phase(urgent) == Phase::Open);
}

#[test]
fn who_fits_beside_it_runs() {
    let mut desk = Desk::new(|_| {});
    let (a, _b) = rivals(&mut desk);
    root(&mut desk, a);
    let small = job_with(&mut desk, "small", 5, 5);
    desk.until(|desk| desk.phase(small) == Phase::Open && desk.phase(a) == Phase::Open);
    assert_eq!(desk.closings(a), 0);
}

/// What it has was there before it could be told: its closing ends, and it goes on.
#[test]
fn who_says_so_while_it_closes_is_opened_again_and_nothing_is_taken_from_it() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.deaf.insert(a);
    desk.until(|desk| desk.phase(a) == Phase::Closing);
    root(&mut desk, a);
    desk.answer_closings(a);
    assert_eq!((desk.phase(a), desk.job_of(a).stats.switches), (Phase::Open, 0));
    pass_long(&mut desk);
    assert_eq!((desk.phase(a), desk.phase(b), desk.closings(a)), (Phase::Open, Phase::Waiting, 1));
}

#[test]
fn who_says_so_while_it_waits_gets_its_turn_and_keeps_it() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    root(&mut desk, b);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    pass_long(&mut desk);
    assert_eq!((desk.phase(a), desk.phase(b), desk.closings(b)), (Phase::Waiting, Phase::Open, 0));
}

#[test]
fn a_job_is_sliced_again_when_its_process_that_could_not_be_is_gone() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let helper = desk.join(desk.scheduler.sessions()[&a].job);
    root(&mut desk, helper);
    pass_long(&mut desk);
    assert_eq!((desk.phase(a), desk.closings(a)), (Phase::Open, 0));
    desk.end(helper);
    assert!(!desk.job_of(a).unsliceable());
    desk.until(|desk| desk.phase(b) == Phase::Open);
}
