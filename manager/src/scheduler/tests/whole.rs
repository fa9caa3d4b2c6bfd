//! Memory that is to be one piece, and stay one.

use super::*;

/// The pieces behind slots from `first` on: first slot and units.
fn behind(desk: &Desk, session: SessionId, first: u32) -> Vec<(u32, u32)> {
    let pieces = desk.pieces(session, T).into_iter().filter(|placed| placed.slot.0 >= first);
    pieces.map(|placed| (placed.slot.0, placed.units.0)).collect()
}

/// A job with ten units of temporary memory, and eleven more behind that are to be one piece.
fn sharer(desk: &mut Desk) -> SessionId {
    let a = job_with(desk, "a", 10, 10);
    desk.lease_whole(a, T, 10, 11);
    desk.live(a, T, 10 * UNIT, 11 * UNIT, Life::Short);
    a
}

#[test]
fn what_is_leased_whole_is_one_piece_and_comes_back_as_one() {
    let mut desk = Desk::new(|_| {});
    let a = sharer(&mut desk);
    assert_eq!(behind(&desk, a, 10), [(10, 11)]);
    job_with(&mut desk, "b", 10, 60);
    desk.until(|desk| desk.phase(a) == Phase::Waiting && behind(desk, a, 0).is_empty());
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(behind(&desk, a, 10), [(10, 11)]);
    assert!(behind(&desk, a, 0).len() > 2, "the rest comes as it fits");
}

#[test]
fn spare_pieces_of_other_sizes_are_of_no_use_for_it() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (sharer(&mut desk), job_with(&mut desk, "b", 10, 12));
    desk.end(b);
    desk.lease_whole(a, T, 21, 12);
    assert_eq!(behind(&desk, a, 21), [(21, 12)]);
}

#[test]
fn what_was_given_back_is_whole_no_more() {
    let mut desk = Desk::new(|_| {});
    let a = sharer(&mut desk);
    let whole = desk.pieces(a, T).into_iter().find(|placed| placed.slot.0 == 10).unwrap();
    let tenant = desk.tenant(a);
    desk.give_back(a, &[whole], 0);
    desk.lease(a, T, 10, 5);
    desk.lease(a, T, 15, 10);
    assert!(desk.scheduler.tenants()[&tenant].whole.is_empty());
    assert_eq!(desk.units(a, T), 25);
}

#[test]
fn a_piece_may_be_larger_than_what_is_said_at_once() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 1, 1);
    desk.lease_whole(a, T, 1, 98);
    assert_eq!(behind(&desk, a, 1), [(1, 98)]);
    desk.lease_whole(a, T, 99, 1);
    assert_eq!(desk.refusals(a), 1);
}

#[test]
fn what_was_refused_leaves_nothing_whole() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 1, 1);
    desk.lease_whole(a, T, 1, 99);
    assert_eq!(desk.refusals(a), 1);
    desk.lease(a, T, 1, 20);
    assert_eq!((desk.units(a, T), behind(&desk, a, 1).len() > 1), (21, true));
    assert!(desk.scheduler.tenants()[&desk.tenant(a)].whole.is_empty());
}
