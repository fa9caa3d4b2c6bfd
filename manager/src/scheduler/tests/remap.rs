//! Processes that lack file descriptors for their map orders.

use super::*;

fn maps(desk: &Desk, session: SessionId) -> Vec<usize> {
    let map = |effect: &Effect| match effect {
        Effect::Shim(to, ToShim::Map { pieces, .. }) if *to == session => Some(pieces.len()),
        _ => None,
    };
    desk.log.iter().filter_map(map).collect()
}

#[test]
fn a_process_with_few_descriptors_gets_its_memory_back_in_parts() {
    let mut desk = Desk::new(|config| config.piece_units = 1);
    let (a, b) = rivals(&mut desk);
    desk.descriptors.insert(a, 25);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.log.clear();
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(maps(&desk, a), [60, 25, 10], "at once, as long as it helps");
    assert!(desk.expelled.is_empty());
}

#[test]
fn a_process_without_descriptors_for_a_moment_gets_its_memory_back() {
    let mut desk = Desk::new(|config| config.piece_units = 1);
    let (a, b) = rivals(&mut desk);
    desk.descriptors.insert(a, 0);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.log.clear();
    desk.until(|desk| maps(desk, a).len() == 3);
    assert_eq!(maps(&desk, a), [60, 30, 15], "fewer each time");
    let (slowest, closed) = (desk.scheduler.config().answer_limit, desk.now);
    desk.descriptors.remove(&a);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert!(desk.now - closed <= slowest / 4, "{:?}", desk.now - closed);
    assert_eq!(desk.units(a, T), 60);
    assert!(desk.expelled.is_empty() && !desk.job_of(a).silent);
}

#[test]
fn a_process_without_descriptors_for_the_answer_limit_is_expelled() {
    let mut desk = Desk::new(|config| config.piece_units = 1);
    let (a, b) = rivals(&mut desk);
    desk.descriptors.insert(a, 0);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| !desk.expelled.is_empty());
    assert_eq!(desk.expelled, BTreeSet::from([a]));
    desk.end(a);
    desk.until(|desk| desk.phase(b) == Phase::Open);
}

#[test]
fn a_wrong_answer_to_a_map_order_expels_the_process() {
    let mut desk = Desk::new(|config| config.piece_units = 1);
    let (a, b) = rivals(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.hold = |effect| matches!(effect, Effect::Shim(_, ToShim::Map { .. }));
    desk.until(|desk| !maps(desk, a).is_empty());
    let told = |effect: &Effect| match effect {
        Effect::Shim(_, ToShim::Map { step, .. }) => Some(*step),
        _ => None,
    };
    let step = desk.log.iter().rev().find_map(told).unwrap();
    desk.tell(Event::MappedSome { session: b, step, pieces: 1 });
    assert_eq!(desk.expelled, BTreeSet::from([b]));
    desk.tell(Event::MappedSome { session: a, step, pieces: 60 });
    assert_eq!(desk.expelled, BTreeSet::from([a, b]));
}
