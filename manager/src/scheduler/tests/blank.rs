//! Memory without a live byte in it that has to be there all the same: a program may write there without
//! a word to anybody.

use super::*;

/// The slots of temporary memory that are backed.
fn backed(desk: &Desk, session: SessionId) -> BTreeSet<u32> {
    let slots = |placed: &Placed| placed.slot.0..placed.slot.0 + placed.units.0;
    desk.pieces(session, T).iter().flat_map(slots).collect()
}

fn saved(desk: &Desk, session: SessionId, class: Class) -> Vec<(u64, u64)> {
    let moves = desk.moves_saved(desk.tenant(session));
    moves.iter().filter(|m| m.class == class).map(|m| (m.at, m.bytes)).collect()
}

#[test]
fn dead_bytes_are_not_saved_and_their_slots_are_backed_again() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let before = backed(&desk, a);
    let units = before.len() as u64;
    desk.dead(a, T);
    desk.live(a, T, 0, 5 * UNIT, Life::Dead);
    desk.live(a, T, 5 * UNIT + 100, 200, Life::Short);
    desk.live(a, T, 6 * UNIT, (units - 6) * UNIT, Life::Dead);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert!(backed(&desk, a).is_empty());
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(saved(&desk, a, T), [(5 * UNIT + 100, 200)]);
    assert_eq!(backed(&desk, a), before);
}

#[test]
fn where_nothing_is_alive_nothing_is_saved_and_everything_comes_back() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let before = backed(&desk, a);
    desk.dead(a, T);
    desk.live(a, T, UNIT, 2 * UNIT, Life::Dead);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(saved(&desk, a, T), []);
    assert_eq!(backed(&desk, a), BTreeSet::from([1, 2]));
    assert!(before.len() > 2, "what nobody needs is gone");
}

#[test]
fn dead_pieces_of_the_persistent_region_go_and_come_back_too() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 40, 10);
    desk.dead(a, P);
    desk.live(a, P, 0, UNIT, Life::Long);
    desk.live(a, P, UNIT, 39 * UNIT, Life::Dead);
    let b = job_with(&mut desk, "b", 20, 60);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert_eq!(desk.pieces(a, P).len(), 1);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let units: u32 = desk.pieces(a, P).iter().map(|placed| placed.units.0).sum();
    assert_eq!(units, 40);
    assert_eq!(saved(&desk, a, P), [], "the piece with the live unit stayed");
}
