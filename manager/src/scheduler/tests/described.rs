//! Memory that comes back in the order in which described work uses it (DESIGN §9).

use super::*;
use tidegate_ffi::units::SlotIndex;
use tidegate_ffi::wire::message::{MAX_USES, SlotRun};

fn slots(first: u32, units: u32) -> SlotRun {
    SlotRun { class: T, first: SlotIndex(first), units: Units(units) }
}

fn uses(desk: &mut Desk, session: SessionId, slots: Vec<SlotRun>) {
    let tenant = desk.tenant(session);
    desk.tell(Event::Used { session, tenant, slots });
}

/// What a job and its mover are told from its way back on: the first slots of what is restored and mapped.
fn way_back(desk: &Desk, session: SessionId) -> Vec<(&'static str, Vec<u32>)> {
    let of = desk.tenant(session);
    let said = desk.log.iter().filter_map(|effect| match effect {
        Effect::Mover(_, ToMover::Restore { tenant, moves, .. }) if *tenant == of => {
            Some(("restore", moves.iter().map(|m| (m.at / UNIT) as u32).collect()))
        }
        Effect::Shim(to, ToShim::Map { pieces, .. }) if *to == session => {
            Some(("map", pieces.iter().map(|placed| placed.slot.0).collect()))
        }
        Effect::Shim(to, ToShim::Ajar) if *to == session => Some(("ajar", Vec::new())),
        Effect::Shim(to, ToShim::Open) if *to == session => Some(("open", Vec::new())),
        _ => None,
    });
    said.collect()
}

/// A job with four temporary pieces, of which work uses the third and then the first, that waits for its turn; and its
/// rival. Nothing is in the log.
fn described(desk: &mut Desk) -> (SessionId, SessionId) {
    let (a, b) = (job_with(desk, "a", 5, 20), job_with(desk, "b", 5, 85));
    uses(desk, a, vec![slots(12, 1), slots(0, 5), slots(11, 2)]);
    desk.until(|desk| desk.phase(a) == Phase::Waiting && desk.phase(b) == Phase::Open);
    desk.log.clear();
    (a, b)
}

#[test]
fn what_is_used_first_comes_first_and_may_be_used_at_once() {
    let mut desk = Desk::new(|_| {});
    let (a, _) = described(&mut desk);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let told = [
        ("restore", vec![10]),
        ("map", vec![10]),
        ("ajar", vec![]),
        ("restore", vec![0]),
        ("restore", vec![5, 15]),
        ("map", vec![0]),
        ("map", vec![5, 15]),
        ("open", vec![]),
    ];
    assert_eq!(way_back(&desk, a), told);
}

#[test]
fn who_describes_nothing_gets_all_at_once() {
    let mut desk = Desk::new(|_| {});
    let (_, b) = described(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Waiting);
    desk.log.clear();
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let names: Vec<&str> = way_back(&desk, b).iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["restore", "map", "open"]);
}

#[test]
fn work_on_what_has_stayed_goes_before_anything_is_back() {
    let mut desk = Desk::new(|_| {});
    let (a, _) = described(&mut desk);
    uses(&mut desk, a, vec![SlotRun { class: P, ..slots(0, 5) }]);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let names: Vec<&str> = way_back(&desk, a).iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["ajar", "restore", "map", "open"]);
}

#[test]
fn the_others_are_ordered_when_the_first_part_is_there() {
    let mut desk = Desk::new(|_| {});
    let (a, _) = described(&mut desk);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Restore { .. }));
    desk.until(|desk| desk.phase(a) == Phase::Restoring);
    assert_eq!(way_back(&desk, a), [("restore", vec![10])]);
    desk.finish_held();
    assert_eq!(desk.phase(a), Phase::Open);
}

#[test]
fn a_job_opens_when_its_last_part_is_mapped() {
    let mut desk = Desk::new(|_| {});
    let (a, _) = described(&mut desk);
    desk.hold = |effect| matches!(effect, Effect::Shim(_, ToShim::Map { .. }));
    desk.until(|desk| desk.phase(a) == Phase::Restoring);
    assert!(way_back(&desk, a).iter().any(|(name, slots)| (*name, &slots[..]) == ("map", &[5, 15])));
    assert_eq!(desk.phase(a), Phase::Restoring, "nothing is said of the maps");
    desk.finish_held();
    assert_eq!(desk.phase(a), Phase::Open);
}

/// The part of `described` that comes second: the first of its slots.
fn is_second_part(order: &ToMover) -> bool {
    matches!(order, ToMover::Restore { moves, .. } if moves.len() == 1 && moves[0].at == 0)
}

#[test]
fn where_nothing_has_come_its_turn_is_put_off() {
    let mut desk = Desk::new(|_| {});
    let (a, _) = described(&mut desk);
    desk.starve = |order| matches!(order, ToMover::Restore { .. });
    desk.until(|desk| desk.job_of(a).failed_arrivals > 0);
    assert!(!way_back(&desk, a).iter().any(|(name, _)| *name == "ajar") && desk.expelled.is_empty());
    desk.starve = |_| false;
    desk.until(|desk| desk.phase(a) == Phase::Open);
}

#[test]
fn a_part_for_which_memory_is_missing_is_put_off_while_work_goes_on() {
    let mut desk = Desk::new(|_| {});
    let (a, _) = described(&mut desk);
    desk.starve = is_second_part;
    desk.until(|desk| desk.job_of(a).failed_arrivals > 2);
    assert_eq!((desk.phase(a), desk.expelled.len()), (Phase::Restoring, 0));
    desk.starve = |_| false;
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(way_back(&desk, a).last().unwrap().0, "open");
    assert_eq!(way_back(&desk, a).iter().filter(|(name, _)| *name == "ajar").count(), 1);

    desk.until(|desk| desk.phase(a) == Phase::Waiting);
    desk.starve = is_second_part;
    desk.until(|desk| desk.expelled.contains(&a));
}

#[test]
fn a_shortage_that_many_parts_meet_at_once_is_one() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 5, 60), job_with(&mut desk, "b", 5, 85));
    uses(&mut desk, a, (0..12).rev().map(|piece| slots(5 * piece, 1)).collect());
    desk.until(|desk| desk.phase(a) == Phase::Waiting && desk.phase(b) == Phase::Open);
    desk.starve = |order| matches!(order, ToMover::Restore { moves, .. } if moves[0].at < 55 * UNIT);
    desk.until(|desk| desk.phase(a) == Phase::Restoring && desk.job_of(a).failed_arrivals == 1);
    assert_eq!((desk.job_of(a).failed_arrivals, desk.expelled.len()), (1, 0), "eleven parts wait for memory");
    desk.starve = |_| false;
    desk.until(|desk| desk.phase(a) == Phase::Open);
}

#[test]
fn a_part_that_cannot_be_restored_ends_its_process() {
    let mut desk = Desk::new(|_| {});
    let (a, _) = described(&mut desk);
    desk.fail = is_second_part;
    desk.until(|desk| desk.expelled.contains(&a));
    let kept = desk.scheduler.gpus()[&GPU].ledger.retired();
    assert_eq!(kept, 10, "what it was told to map, and no more, it may have still");
}

#[test]
fn a_gang_goes_on_together() {
    let mut desk = Desk::new(|_| {});
    desk.add_gpu(OTHER_GPU, 100);
    let a = job_with(&mut desk, "a", 5, 20);
    desk.attach(a, OTHER_GPU);
    job_with(&mut desk, "b", 5, 85);
    uses(&mut desk, a, vec![slots(12, 1)]);
    desk.until(|desk| desk.phase(a) == Phase::Waiting);
    desk.log.clear();
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert!(!way_back(&desk, a).iter().any(|(name, _)| *name == "ajar"));
}

#[test]
fn who_becomes_a_gang_on_the_way_goes_on_together_too() {
    let mut desk = Desk::new(|_| {});
    let (a, _) = described(&mut desk);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Restore { .. }));
    desk.until(|desk| desk.phase(a) == Phase::Restoring);
    let job = desk.scheduler.sessions()[&a].job;
    desk.join(job);
    desk.finish_held();
    assert_eq!(desk.phase(a), Phase::Open);
    assert!(!way_back(&desk, a).iter().any(|(name, _)| *name == "ajar"));
}

#[test]
fn who_lies_about_its_uses_is_expelled() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 5, 20), job_with(&mut desk, "b", 5, 85));
    let of_a = desk.tenant(a);
    desk.tell(Event::Used { session: b, tenant: of_a, slots: vec![slots(0, 1)] });
    assert!(desk.expelled.contains(&b));
    uses(&mut desk, a, vec![slots(u32::MAX, u32::MAX); MAX_USES]);
    assert!(!desk.expelled.contains(&a), "what is not there is of no use, and no harm");
    uses(&mut desk, a, vec![slots(0, 1); MAX_USES + 1]);
    assert!(desk.expelled.contains(&a));
}
