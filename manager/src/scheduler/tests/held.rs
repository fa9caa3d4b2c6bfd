//! Held pieces: no switch and no shortage takes them.

use super::*;
use tidegate_ffi::units::SlotIndex;

/// Whether they are held.
fn hold(desk: &mut Desk, session: SessionId, pieces: &[Placed]) -> bool {
    let (tenant, pieces) = (desk.tenant(session), pieces.iter().map(|placed| placed.piece).collect());
    desk.tell(Event::Hold { session, step: Step(8000), tenant, pieces });
    last_told(desk, session) == Some(ToShim::Held { step: Step(8000) })
}

fn last_told(desk: &Desk, session: SessionId) -> Option<ToShim> {
    let told = |effect: &Effect| match effect {
        Effect::Shim(to, message) if *to == session => Some(message.clone()),
        _ => None,
    };
    desk.log.iter().rev().find_map(told)
}

fn let_go(desk: &mut Desk, session: SessionId, pieces: &[Placed]) {
    let (tenant, pieces) = (desk.tenant(session), pieces.iter().map(|placed| placed.piece).collect());
    desk.tell(Event::LetGo { session, tenant, pieces });
}

/// A job without persistent memory.
fn with_temporary(desk: &mut Desk, name: &str, units: u32) -> SessionId {
    let session = desk.job(spec(name));
    desk.lease(session, T, 0, units);
    desk.live(session, T, 0, u64::from(units) * UNIT, Life::Short);
    session
}

fn region(desk: &Desk, piece: PieceId) -> Class {
    desk.scheduler.gpus()[&GPU].ledger.piece(piece).unwrap().region
}

#[test]
fn what_is_held_stays_where_it_is_over_switches() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let held = desk.pieces(a, T)[..2].to_vec();
    hold(&mut desk, a, &held);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert_eq!(desk.pieces(a, T), held, "the others have gone");
    assert!(held.iter().all(|placed| region(&desk, placed.piece) == P), "it counts as persistent");
    let saved = desk.moves_saved(desk.tenant(a));
    assert_eq!(saved.iter().map(|m| m.bytes).sum::<u64>(), 50 * UNIT);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert!(held.iter().all(|placed| desk.pieces(a, T).contains(placed)));
    assert_eq!(desk.units(a, T), 60);
}

#[test]
fn what_is_let_go_of_goes_again() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let held = desk.pieces(a, T)[..3].to_vec();
    hold(&mut desk, a, &held);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let_go(&mut desk, a, &held[1..]);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert_eq!(desk.pieces(a, T), held[..1]);
}

#[test]
fn what_is_held_is_not_taken_for_others() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 40, 1), job_with(&mut desk, "b", 10, 20));
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let held = desk.pieces(a, P)[..4].to_vec();
    hold(&mut desk, a, &held);
    // More than is left without a's persistent memory.
    desk.lease(b, T, 20, 50);
    desk.live(b, T, 20 * UNIT, 50 * UNIT, Life::Short);
    desk.until(|desk| desk.units(b, T) == 70);
    assert_eq!(desk.pieces(a, P)[..], held[..], "only what is not held was taken");
    let saved = desk.moves_saved(desk.tenant(a));
    assert!(saved.iter().all(|m| m.class == T || m.at >= 20 * UNIT));
}

#[test]
fn jobs_that_are_never_closed_and_wait_for_memory_that_a_closed_one_holds_do_not_wait_for_ever() {
    let mut desk = Desk::new(|_| {});
    let holder = with_temporary(&mut desk, "holder", 50);
    let held = desk.pieces(holder, T)[..4].to_vec();
    hold(&mut desk, holder, &held);
    let stay = ["first", "second"].map(|name| {
        let session = desk.job(spec(name));
        desk.lease(session, T, 0, 30);
        desk.tell(Event::Unsliceable { session, reason: "it uses managed memory".into() });
        session
    });
    desk.until(|desk| stay.iter().all(|session| desk.units(*session, T) == 30));
    assert_eq!(desk.phase(holder), Phase::Waiting);
    let mut asked = Vec::new();
    for slot in [30, 50] {
        asked.extend(stay.map(|session| (session, desk.lease(session, T, slot, 15))));
    }
    desk.until(|desk| asked.iter().any(|(of, step)| desk.was_refused(*of, *step)));
}

#[test]
fn no_more_is_held_than_leaves_every_job_room_for_what_it_had() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.until(|desk| desk.units(b, T) == 60);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let pieces = desk.pieces(a, T);
    // Beside b's 70 units and a's 10 there are 20; pieces have 5.
    assert!(hold(&mut desk, a, &pieces[..6]), "a's persistent memory can give way");
    assert!(!hold(&mut desk, a, &pieces[..7]));
    assert!(hold(&mut desk, a, &pieces[2..6]), "they are held already");
    let_go(&mut desk, a, &pieces[..1]);
    assert!(hold(&mut desk, a, &pieces[6..7]));
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let pieces = desk.pieces(a, T);
    assert!(!hold(&mut desk, a, &pieces));
    desk.end(b);
    assert!(hold(&mut desk, a, &pieces));
}

#[test]
fn a_job_beside_a_resident_one_that_had_more_runs_or_is_refused() {
    let mut desk = Desk::new(|_| {});
    let serving = desk.job(JobSpec { resident: true, ..spec("serving") });
    fill(&mut desk, serving, 1, 29);
    let freed = desk.pieces(serving, T)[..3].to_vec();
    desk.dead(serving, T);
    desk.give_back(serving, &freed, 0);
    // By class 60 and 60 units, of which it never had more than 70 at once.
    let a = job_with(&mut desk, "a", 10, 60);
    desk.until(|desk| desk.units(a, T) == 60);
    let more = desk.lease(a, T, 60, 1);
    desk.until(|desk| desk.was_refused(a, more));
    desk.dead(a, T);
    desk.give_back(a, &desk.pieces(a, T), 0);
    let step = desk.lease(a, P, 10, 50);
    desk.until(|desk| desk.answers(a, step) == 1);
    desk.live(a, P, 10 * UNIT, 50 * UNIT, Life::Long);
    let other = job_with(&mut desk, "other", 10, 40);
    // A job is open before it has its memory, too.
    for _ in 0..3 {
        desk.until(|desk| desk.phase(other) == Phase::Open && desk.units(other, T) == 40);
        desk.until(|desk| desk.phase(a) == Phase::Open && desk.phase(other) == Phase::Waiting);
    }
    // And the resident job has again what it had.
    let again = desk.lease(serving, T, 0, 15);
    desk.until(|desk| desk.answers(serving, again) == 1);
    desk.until(|desk| desk.phase(a) == Phase::Open);
}

#[test]
fn a_closed_job_that_asks_for_more_than_fits_beside_a_resident_one_comes_back_and_is_refused() {
    let mut desk = Desk::new(|_| {});
    let serving = desk.job(JobSpec { resident: true, ..spec("serving") });
    fill(&mut desk, serving, 1, 29);
    let [a, b] = ["a", "b"].map(|name| job_with(&mut desk, name, 10, 50));
    desk.until(|desk| desk.units(b, T) == 50);
    desk.until(|desk| desk.phase(a) == Phase::Open && desk.units(a, T) == 50);
    desk.until(|desk| desk.phase(a) == Phase::Waiting);
    let more = desk.lease(a, P, 10, 20);
    desk.until(|desk| desk.was_refused(a, more));
    for job in [b, a, b] {
        desk.until(|desk| desk.phase(job) == Phase::Open);
    }
}

#[test]
fn a_resident_job_that_gives_back_and_takes_again_gets_no_more_either() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 50);
    desk.until(|desk| desk.units(a, T) == 50);
    let serving = desk.job(JobSpec { resident: true, ..spec("serving") });
    let fits = desk.lease(serving, T, 0, 40);
    desk.until(|desk| desk.answers(serving, fits) == 1);
    let freed = desk.pieces(serving, T)[..5].to_vec();
    desk.give_back(serving, &freed, 0);
    let step = desk.lease(serving, T, 40, 30);
    desk.until(|desk| desk.was_refused(serving, step));
    let step = desk.lease(serving, T, 40, 25);
    desk.until(|desk| desk.answers(serving, step) == 1);
    desk.until(|desk| desk.phase(a) == Phase::Open);
}

#[test]
fn a_resident_job_gets_no_more_than_leaves_every_job_room_for_what_it_had() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 60);
    desk.until(|desk| desk.units(a, T) == 60);
    let serving = desk.job(JobSpec { resident: true, ..spec("serving") });
    let fits = desk.lease(serving, P, 0, 30);
    desk.until(|desk| desk.answers(serving, fits) == 1);
    let shuts_out = desk.lease(serving, P, 30, 1);
    desk.until(|desk| desk.was_refused(serving, shuts_out));
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.end(a);
    let again = desk.lease(serving, P, 30, 70);
    desk.until(|desk| desk.answers(serving, again) == 1);
}

#[test]
fn a_held_piece_that_the_persistent_region_cannot_take_stays_all_the_same() {
    let mut desk = Desk::new(|_| {});
    let b = job_with(&mut desk, "b", 20, 30);
    let a = with_temporary(&mut desk, "a", 55);
    desk.until(|desk| desk.phase(a) == Phase::Open && desk.phase(b) == Phase::Waiting);
    desk.outside = 35;
    desk.tell(Event::Survey);
    let held = desk.pieces(a, T)[..2].to_vec();
    hold(&mut desk, a, &held);
    desk.until(|desk| desk.phase(b) == Phase::Open && desk.phase(a) == Phase::Waiting);
    assert_eq!(desk.pieces(a, T), held);
    assert!(held.iter().all(|placed| region(&desk, placed.piece) == T), "more is outside than was left");
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert!(held.iter().all(|placed| desk.pieces(a, T).contains(placed)));
}

#[test]
fn nobody_holds_anothers_memory() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 10, 10), job_with(&mut desk, "b", 10, 10));
    desk.until(|desk| [a, b].map(|session| desk.phase(session)) == [Phase::Open; 2]);
    let of_a = desk.pieces(a, T);
    hold(&mut desk, b, &of_a);
    assert!(desk.expelled.contains(&b));
    let tenant = desk.tenant(a);
    let c = job_with(&mut desk, "c", 10, 10);
    desk.until(|desk| desk.phase(c) == Phase::Open);
    let pieces = of_a.iter().map(|placed| placed.piece).collect();
    desk.tell(Event::Hold { session: c, step: Step(8000), tenant, pieces });
    assert!(desk.expelled.contains(&c) && !desk.expelled.contains(&a));
}

#[test]
fn nothing_is_held_any_more_once_it_was_told_what_is_alive() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let persistent = desk.pieces(a, P);
    hold(&mut desk, a, &persistent);
    assert!(desk.expelled.contains(&a));
}

#[test]
fn what_a_dead_process_held_is_free() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 30);
    let held = desk.pieces(a, T);
    hold(&mut desk, a, &held);
    desk.end(a);
    assert!(desk.scheduler.tenants().is_empty());
    let b = job_with(&mut desk, "b", 10, 90);
    assert_eq!(desk.units(b, T), 90);
}

fn borrow(desk: &mut Desk, session: SessionId, of: SessionId, units: u32) -> ToShim {
    let (step, tenant) = (Step(7000), desk.tenant(of));
    desk.tell(Event::Borrow { session, step, tenant, class: T, first: SlotIndex(0), units: Units(units) });
    last_told(desk, session).unwrap()
}

#[test]
fn what_is_held_is_lent_within_its_job_and_to_nobody_else() {
    let mut desk = Desk::new(|_| {});
    let (job, owner) = desk.start(spec("shared"));
    desk.attach(owner, GPU);
    desk.lease(owner, T, 0, 8);
    let sibling = desk.join(job);
    let stranger = with_temporary(&mut desk, "stranger", 4);
    let pieces = desk.pieces(owner, T);
    let is_refused = |answer| matches!(answer, ToShim::LeaseRefused { .. });
    assert!(is_refused(borrow(&mut desk, sibling, owner, 8)), "it is not held yet");
    hold(&mut desk, owner, &pieces);
    let lent = borrow(&mut desk, sibling, owner, 8);
    assert_eq!(lent, ToShim::Lent { step: Step(7000), pieces: pieces.clone() });
    assert!(is_refused(borrow(&mut desk, sibling, owner, 9)), "there is no ninth");
    assert!(is_refused(borrow(&mut desk, stranger, owner, 8)), "of another job");
}

#[test]
fn what_was_held_is_nobodys_when_its_owner_is_dead() {
    let mut desk = Desk::new(|_| {});
    let owner = with_temporary(&mut desk, "owner", 40);
    let other = with_temporary(&mut desk, "other", 4);
    let pieces = desk.pieces(owner, T);
    hold(&mut desk, owner, &pieces[..1]);
    desk.end(owner);
    let spares = &desk.scheduler.gpus()[&GPU].spares;
    assert!(!spares.contains_key(&pieces[0].piece), "a borrower may still have it");
    assert!(pieces[1..].iter().all(|placed| spares.contains_key(&placed.piece)));
    desk.end(other);
}

#[test]
fn a_lease_that_has_no_place_beside_what_other_jobs_hold_is_out_of_memory() {
    // Two that hold memory and grow would wait for each other, one of a higher class for one that never runs.
    for priority in [0, 1] {
        let mut desk = Desk::new(|_| {});
        let a = with_temporary(&mut desk, "a", 60);
        let held = desk.pieces(a, T)[..9].to_vec();
        hold(&mut desk, a, &held);
        let b = desk.job(JobSpec { priority, ..spec("b") });
        let first = desk.lease(b, T, 0, 30);
        desk.until(|desk| desk.answers(b, first) > 0);
        desk.live(b, T, 0, 30 * UNIT, Life::Short);
        let more = desk.lease(b, T, 30, 26);
        desk.until(|desk| desk.was_refused(b, more));
        let less = desk.lease(b, T, 30, 20);
        desk.until(|desk| desk.answers(b, less) > 0);
        desk.live(b, T, 30 * UNIT, 20 * UNIT, Life::Short);
        let_go(&mut desk, a, &held);
        let again = desk.lease(b, T, 50, 26);
        desk.until(|desk| desk.answers(b, again) > 0);
        desk.end(b);
        desk.until(|desk| desk.phase(a) == Phase::Open);
    }
}

/// The driver keeps its memory for as long as a descriptor leads to it, whatever its process has released.
#[test]
fn a_piece_that_was_held_once_is_destroyed_and_not_reused_when_it_is_given_back() {
    let mut desk = Desk::new(|_| {});
    let a = with_temporary(&mut desk, "a", 10);
    let pieces = desk.pieces(a, T);
    let (held, other) = (pieces[0], pieces[1]);
    hold(&mut desk, a, &[held]);
    let_go(&mut desk, a, &[held]);
    desk.dead(a, T);
    desk.give_back(a, &[held, other], 0);
    let scrubs = |piece: PieceId| {
        desk.log.iter().any(|effect| {
            matches!(effect, Effect::Mover(GPU, ToMover::Scrub { pieces, .. }) if pieces.contains(&piece))
        })
    };
    assert_eq!([held, other].map(|placed| scrubs(placed.piece)), [false, true]);
    assert!(desk.scheduler.gpus()[&GPU].ledger.piece(held.piece).is_none());
}
