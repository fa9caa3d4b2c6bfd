//! Lies that a process could tell about its own memory. The liar is expelled; nothing of
//! anybody else's changes.

use super::*;
use tidegate_ffi::wire::live::{Life, LiveRange};
use tidegate_ffi::wire::message::LeaseRequest;

fn request(desk: &Desk, session: SessionId, step: u64, first: u32, units: u32) -> Event {
    match desk::lease_event(session, desk.tenant(session), T, first, units) {
        Event::Lease { session, request } => {
            Event::Lease { session, request: LeaseRequest { step: Step(step), ..request } }
        }
        other => other,
    }
}

/// Nobody will be given these pieces: they are neither spare nor anybody's.
fn are_retired(desk: &Desk, pieces: &[PieceId]) -> bool {
    let gpu = &desk.scheduler.gpus()[&GPU];
    !pieces.is_empty() && pieces.iter().all(|piece| gpu.retired.contains_key(piece))
}

fn is_make(effect: &Effect) -> bool {
    matches!(effect, Effect::Mover(_, ToMover::Make { .. }))
}

#[test]
fn nobody_attaches_twice_to_one_gpu() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 5, 5);
    desk.attach(a, GPU);
    assert!(desk.expelled.contains(&a));
    assert!(desk.scheduler.tenants().is_empty(), "neither the first nor a second is left");
}

#[test]
fn nobody_waits_twice_for_one_gpu() {
    let mut desk = Desk::new(|config| config.tier_bytes[0] = 0);
    let need = Some(Need { persistent: 60 * UNIT, temporary: 0 });
    let a = desk.job(JobSpec { need, ..spec("a") });
    let b = desk.job(JobSpec { need, ..spec("b") });
    assert!(desk.scheduler.sessions()[&b].tenants.is_empty(), "it waits");
    desk.attach(b, GPU);
    assert!(desk.expelled.contains(&b));
    desk.end(a);
    assert!(desk.scheduler.tenants().is_empty(), "it waits no more");
}

#[test]
fn no_memory_is_asked_for_before_the_attach_is_answered() {
    let mut desk = Desk::new(|_| {});
    let b = desk.job(spec("b"));
    let tenant = desk.tenant(b);
    desk.scheduler.tenants.get_mut(&tenant).unwrap().entering = Some(Step(1));
    desk.lease(b, T, 0, 1);
    assert!(desk.expelled.contains(&b));
}

#[test]
fn slots_whose_pieces_are_being_made_are_not_leased_again() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 0, 0);
    desk.hold = is_make;
    desk.lease(a, T, 0, 5);
    desk.lease(a, T, 3, 5);
    assert!(desk.expelled.contains(&a));
    desk.finish_held();
    assert!(desk.scheduler.tenants().is_empty());
}

#[test]
fn two_questions_never_have_one_name() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 0, 0);
    desk.hold = is_make;
    desk.tell(request(&desk, a, 9, 0, 5));
    desk.tell(request(&desk, a, 9, 40, 5));
    assert!(desk.expelled.contains(&a), "the answer to the first would be taken for one to both");
}

#[test]
fn leases_of_one_process_that_wait_are_bounded() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let mut slots = [T, P].into_iter().flat_map(|class| (100..400).map(move |slot| (class, slot)));
    let mut waiting = 0;
    while desk.expelled.is_empty() {
        waiting = desk.scheduler.tenants()[&desk.tenant(b)].waiting.len();
        let (class, slot) = slots.next().expect("600 leases wait");
        desk.lease(b, class, slot, 1);
    }
    assert!((1..=256).contains(&waiting), "{waiting} leases wait");
    assert_eq!(desk.expelled, BTreeSet::from([b]));
    assert_eq!(desk.phase(a), Phase::Open);
}

/// Pieces that are on their way back to a process are not the process's to give: they would be
/// somebody else's before its bytes are restored into them.
#[test]
fn pieces_on_their_way_back_are_not_given_back() {
    let mut desk = Desk::new(|_| {});
    let (b, a) = rivals(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Waiting);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Restore { .. }));
    desk.until(|desk| desk.phase(b) == Phase::Restoring);
    let placed = desk.pieces(b, T);
    let pieces: Vec<PieceId> = placed.iter().map(|placed| placed.piece).collect();
    desk.give_back(b, &placed, 0);
    assert_eq!(desk.expelled, BTreeSet::from([b]));
    assert!(are_retired(&desk, &pieces));
    desk.finish_held();
    desk.end(b);
    desk.until(|desk| desk.phase(a) == Phase::Open);
}

/// Nor are those that it has unmapped already, while they are saved.
#[test]
fn pieces_that_were_taken_are_not_given_back() {
    let mut desk = Desk::new(|_| {});
    let (a, _b) = rivals(&mut desk);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Save { .. }));
    desk.until(|desk| desk.phase(a) == Phase::Leaving);
    let placed = desk.pieces(a, T);
    let pieces: Vec<PieceId> = placed.iter().map(|placed| placed.piece).collect();
    desk.log.clear();
    desk.give_back(a, &placed, 0);
    assert!(desk.expelled.contains(&a));
    assert!(are_retired(&desk, &pieces));
    let scrubbed = |e: &Effect| matches!(e, Effect::Mover(_, ToMover::Scrub { .. }));
    assert!(!desk.log.iter().any(scrubbed), "nobody is to have them next");
}

/// A lease's answer is void when the process says that it has not seen it; but what it gave back
/// of it, it has seen: it still holds its bytes.
#[test]
fn what_was_given_back_is_not_void_as_well() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 10, 40), job_with(&mut desk, "b", 10, 15));
    desk.deaf.insert(a);
    desk.lease(b, T, 15, 40);
    desk.until(|desk| desk.phase(a) == Phase::Closing);
    let step = desk.lease(a, T, 100, 5);
    let given = *desk.pieces(a, T).last().unwrap();
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Scrub { .. }));
    desk.give_back(a, &[given], 0);
    desk.outstanding.push(step);
    desk.answer_closings(a);
    assert!(!desk.scheduler.gpus()[&GPU].spares.contains_key(&given.piece), "it is not scrubbed yet");
}

#[test]
fn a_live_map_beyond_all_addresses_is_no_map() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.live(a, T, u64::MAX - 3, 9, Life::Short);
    desk.until(|desk| desk.expelled.contains(&a));
    desk.end(a);
    desk.until(|desk| desk.phase(b) == Phase::Open);
}

#[test]
fn a_live_map_out_of_order_is_no_map() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let tenant = desk.tenant(a);
    desk.deaf.insert(a);
    desk.until(|desk| desk.phase(a) == Phase::Closing);
    let range = |start| LiveRange { class: T, start, bytes: 10, life: Life::Short };
    for ranges in [vec![range(5), range(0)], vec![range(0), range(5)]] {
        let mut desk = desk.scheduler.clone();
        let step = desk.sessions()[&a].closing.unwrap();
        let maps = vec![(tenant, ranges)];
        let drained = Event::Drained {
            session: a,
            step,
            at_boundary: true,
            drain: Time::ZERO,
            maps,
            outstanding: Vec::new(),
        };
        let effects = desk.handle(ms(100_000), drained, &desk::Counts::default());
        assert!(effects.iter().any(|e| matches!(e, Effect::Expel(session, _) if *session == a)));
    }
    assert!(!desk.expelled.contains(&b));
}
