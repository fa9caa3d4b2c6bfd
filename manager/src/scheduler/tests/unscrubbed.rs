//! What becomes of pieces that a job has left, with its bytes, when another comes back.

use super::*;

/// The orders to the mover.
fn orders(desk: &Desk) -> Vec<&ToMover> {
    let mover = desk.log.iter().filter_map(|effect| match effect {
        Effect::Mover(_, order) => Some(order),
        _ => None,
    });
    mover.collect()
}

fn scrubbed(desk: &Desk) -> Vec<PieceId> {
    let pieces = orders(desk).into_iter().filter_map(|order| match order {
        ToMover::Scrub { pieces, .. } => Some(pieces.clone()),
        _ => None,
    });
    pieces.flatten().collect()
}

/// A job with so many units of memory that stays on the GPU while there is room.
fn job_that_keeps(desk: &mut Desk, name: &str, units: u32) -> SessionId {
    let session = desk.job(spec(name));
    desk.lease(session, P, 0, units);
    desk.live(session, P, 0, u64::from(units) * UNIT, Life::Long);
    session
}

/// Two jobs that have been switched, and fill their memory with bytes.
fn switched(desk: &mut Desk) -> [SessionId; 2] {
    let (a, b) = rivals(desk);
    desk.until(|desk| [a, b].iter().all(|job| desk.job_of(*job).stats.switches >= 2));
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.log.clear();
    [a, b]
}

#[test]
fn memory_that_comes_back_overwrites_what_another_job_has_left() {
    let mut desk = Desk::new(|_| {});
    let [a, b] = switched(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(scrubbed(&desk), [], "each byte is overwritten");
    let is_other = |order: &&ToMover| matches!(order, ToMover::Make { .. } | ToMover::Destroy { .. });
    assert_eq!(orders(&desk).into_iter().filter(is_other).count(), 0, "and the pieces are the same");
    assert!(!desk.moves_restored(desk.tenant(a)).is_empty());
}

#[test]
fn pieces_that_are_not_filled_are_scrubbed_before_a_job_gets_them() {
    let mut desk = Desk::new(|_| {});
    let [a, b] = switched(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    // One slot of each tenth piece has no bytes that count.
    let placed = desk.pieces(b, T);
    desk.dead(b, T);
    for (nth, placed) in placed.iter().enumerate() {
        let (start, units) = (u64::from(placed.slot.0), u64::from(placed.units.0));
        let dead = u64::from(nth % 10 == 0);
        if dead > 0 {
            desk.live(b, T, start * UNIT, dead * UNIT, Life::Dead);
        }
        desk.live(b, T, (start + dead) * UNIT, (units - dead) * UNIT, Life::Short);
    }
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.log.clear();
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let restored = desk.moves_restored(desk.tenant(b));
    let filled = |placed: &Placed| {
        let of_piece = restored.iter().filter(|m| m.piece == placed.piece);
        of_piece.map(|m| m.bytes).sum::<u64>() == u64::from(placed.units.0) * UNIT
    };
    let pieces = desk.pieces(b, T);
    let not_filled: BTreeSet<PieceId> =
        pieces.iter().filter(|placed| !filled(placed)).map(|placed| placed.piece).collect();
    assert!(!not_filled.is_empty() && not_filled.len() < pieces.len());
    assert_eq!(scrubbed(&desk).into_iter().collect::<BTreeSet<_>>(), not_filled);
    let place = |is: fn(&ToMover) -> bool| orders(&desk).into_iter().position(is);
    let [scrub, restore] = [
        place(|order| matches!(order, ToMover::Scrub { .. })),
        place(|order| matches!(order, ToMover::Restore { .. })),
    ];
    assert!(scrub < restore, "the mover takes its orders in order");
}

#[test]
fn what_is_left_when_nothing_comes_back_is_scrubbed() {
    let mut desk = Desk::new(|_| {});
    let [a, b] = switched(&mut desk);
    let left: BTreeSet<PieceId> = desk.pieces(a, T).iter().map(|placed| placed.piece).collect();
    desk.end(b);
    desk.log.clear();
    desk.end(a);
    desk.pass(ms(1));
    assert!(left.is_subset(&scrubbed(&desk).into_iter().collect()));
    assert_eq!(desk.scheduler.gpus()[&GPU].spares.len(), desk.scheduler.gpus()[&GPU].ledger.pieces().count());
}

#[test]
fn a_job_is_given_what_another_has_left_where_only_the_last_units_are_free() {
    // 30 and 98 units that are kept, and 30 of the other: nothing is free, and pieces change their region.
    let mut desk = Desk::new(|config| config.offset_units = 2);
    let [a, b] = ["a", "b"].map(|name| job_that_keeps(&mut desk, name, 80));
    desk.until(|desk| [a, b].iter().all(|job| desk.job_of(*job).stats.switches >= 3));
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.log.clear();
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(desk.made_bytes(), 0, "they are not destroyed, to be made anew");
    assert!(!desk.moves_restored(desk.tenant(a)).is_empty());
}

#[test]
fn what_switches_take_of_memory_that_was_to_stay_is_a_part_of_their_cost() {
    let mut desk = Desk::new(|_| {});
    desk.order_time = ms(10);
    let [a, b] = ["a", "b"].map(|name| job_that_keeps(&mut desk, name, 80));
    desk.until(|desk| [a, b].iter().all(|job| desk.job_of(*job).stats.switches >= 4));
    let stats = &desk.job_of(a).stats;
    assert!(stats.preempted_bytes > 0);
    assert!(stats.save >= ms(10) * (stats.switches as u32 - 1), "{stats:?}");
}

#[test]
fn new_memory_is_never_what_was_not_scrubbed() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 70);
    desk.hold = |effect| {
        matches!(effect, Effect::Shim(_, ToShim::Recall { .. }) | Effect::Mover(_, ToMover::Scrub { .. }))
    };
    let lease = desk.lease(a, T, 70, 64);
    let unused = desk.pieces(a, T);
    desk.answer_recall(a, &unused);
    assert_eq!(
        (desk.units(a, T), desk.answers(a, lease)),
        (0, 0),
        "what it gave back is on its way to be spare"
    );
    desk.finish_held();
    assert_eq!((desk.units(a, T), desk.refusals(a)), (64, 0));
    assert_eq!(scrubbed(&desk).len(), unused.len());
}
