//! Who is expelled, and the memory that it keeps (I8).

use super::*;

/// Units that nobody can have because an expelled process may still reach them.
fn retired(desk: &Desk) -> u32 {
    desk.scheduler.gpus()[&GPU].ledger.retired()
}

fn tell_that_it_broke(desk: &mut Desk, session: SessionId) {
    desk.tell(Event::SessionBroke { session, reason: "it spoke nonsense".into() });
}

#[test]
fn what_an_expelled_process_had_is_nobodys_until_it_is_dead() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 10, 30), job_with(&mut desk, "b", 10, 30));
    tell_that_it_broke(&mut desk, a);
    assert!(desk.expelled.contains(&a) && !desk.scheduler.sessions().contains_key(&a));
    assert_eq!(desk.scheduler.jobs().len(), 1, "its job is over");
    assert_eq!(retired(&desk), 40);
    assert_eq!(desk.scheduler.orders_under_way(), 0, "the mover has let go of it");
    assert_eq!(desk.scheduler.gpus()[&GPU].ledger.free(), 20);
    let lease = desk.lease(b, T, 30, 30);
    assert_eq!((desk.answers(b, lease), desk.refusals(b)), (0, 0), "it may end soon");
    desk.pass(ms(2000));
    assert_eq!((desk.answers(b, lease), desk.refusals(b)), (0, 1), "the GPU has no such room");
    desk.end(a);
    assert_eq!(retired(&desk), 0);
    let lease = desk.lease(b, T, 30, 30);
    assert!(desk.answers(b, lease) > 0);
}

#[test]
fn what_an_expelled_process_had_is_waited_for() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 10, 30), job_with(&mut desk, "b", 10, 30));
    tell_that_it_broke(&mut desk, a);
    let lease = desk.lease(b, T, 30, 30);
    desk.pass(ms(500));
    desk.end(a);
    assert!(desk.answers(b, lease) > 0);
    assert_eq!(desk.refusals(b), 0);
}

#[test]
fn what_the_mover_has_not_released_is_not_free_though_its_keeper_is_dead() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 30);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Destroy { .. }));
    tell_that_it_broke(&mut desk, a);
    desk.end(a);
    assert_eq!(retired(&desk), 40);
    desk.finish_held();
    assert_eq!(retired(&desk), 0);
}

#[test]
fn what_is_being_made_for_who_is_expelled_is_let_go_of_when_it_has_come() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 60);
    desk.uid = 2;
    let b = job_with(&mut desk, "b", 10, 60);
    desk.until(|desk| desk.phase(a) == Phase::Waiting && desk.phase(b) == Phase::Open);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Make { .. }));
    desk.until(|desk| desk.phase(a) == Phase::Restoring);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Destroy { .. }));
    let making: Vec<PieceId> = desk.pieces(a, T).iter().map(|placed| placed.piece).collect();
    tell_that_it_broke(&mut desk, a);
    desk.log.clear();
    desk.finish_held();
    let let_go = |piece: &PieceId| {
        desk.log.iter().any(|effect| matches!(effect, Effect::Destroyed(pieces) if pieces.contains(piece)))
    };
    assert!(!making.is_empty() && making.iter().all(let_go));
}

#[test]
fn what_an_expelled_process_was_about_to_get_is_free_at_once() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.until(|desk| desk.phase(a) == Phase::Waiting && desk.phase(b) == Phase::Open);
    desk.fail = |order| matches!(order, ToMover::Restore { tenant: TenantId(1), .. });
    desk.until(|desk| desk.expelled.contains(&a));
    assert_eq!(retired(&desk), 10, "of its persistent memory it may have kept a descriptor");
    desk.until(|desk| desk.phase(b) == Phase::Open);
}

#[test]
fn who_does_not_unmap_in_time_is_expelled_and_others_go_on() {
    let mut desk = Desk::new(|config| config.answer_limit = ms(500));
    let a = job_with(&mut desk, "a", 5, 30);
    let silent = |effect: &Effect| matches!(effect, Effect::Shim(_, ToShim::Unmap { .. }));
    desk.hold = silent;
    let b = job_with(&mut desk, "b", 5, 65);
    desk.until(|desk| desk.phase(a) == Phase::Leaving);
    let asked = desk.now;
    desk.until(|desk| desk.expelled.contains(&a));
    assert!(desk.now >= asked + ms(490) && desk.now <= asked + ms(520), "{:?} after {asked:?}", desk.now);
    assert_eq!((desk.phase(b), retired(&desk)), (Phase::Open, 35));
    // Its word comes too late.
    desk.finish_held();
    assert_eq!(retired(&desk), 35);
}

#[test]
fn a_gang_goes_on_without_who_was_expelled() {
    let mut desk = Desk::new(|_| {});
    let (job, a) = desk.start(spec("gang"));
    let b = desk.join(job);
    for session in [a, b] {
        desk.attach(session, GPU);
        fill(&mut desk, session, 5, 10);
    }
    tell_that_it_broke(&mut desk, a);
    assert_eq!((desk.phase(b), desk.units(b, T)), (Phase::Open, 10));
    assert_eq!(retired(&desk), 15);
    tell_that_it_broke(&mut desk, a);
    desk.tell(Event::Idle { session: a });
    desk.end(b);
    assert!(desk.scheduler.jobs().is_empty());
    assert_eq!(retired(&desk), 15);
    desk.end(a);
    assert_eq!(retired(&desk), 0);
}
