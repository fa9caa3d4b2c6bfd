use super::super::{Operand, Span};
use super::*;
use crate::random::Random;
use crate::tensor::{self, Axis, Progress};
use std::num::NonZeroU64;

const ROOM: Capacity = Capacity { operations: 64, operands: 256, edges: 1024 };

type Operands = Vec<Operand<Span>>;

fn tracker() -> Tracker<Span> {
    Tracker::new(ROOM)
}

fn span(start: u64, end: u64) -> Span {
    Span::new(start, end)
}

fn read(start: u64, end: u64) -> Operand<Span> {
    Operand::read(span(start, end))
}

fn write(start: u64, end: u64) -> Operand<Span> {
    Operand::write(span(start, end))
}

/// Submits, to be buffered; whether it may run.
fn submit(tracker: &mut Tracker<Span>, operands: &[Operand<Span>]) -> (OperationId, bool) {
    match tracker.submit(operands, Otherwise::Buffer).unwrap() {
        Submitted::Ready(id) => (id, true),
        Submitted::Buffered(id, on) => {
            assert!(!on.is_empty());
            (id, false)
        }
        other => panic!("{other:?}"),
    }
}

fn complete(tracker: &mut Tracker<Span>, operation: OperationId) -> Vec<OperationId> {
    let mut woken = Vec::new();
    tracker.complete(operation, |id| woken.push(id)).unwrap();
    woken
}

#[test]
fn who_writes_what_an_earlier_one_touches_or_reads_what_it_writes_waits() {
    let (read, write, both) = (Access::Read, Access::Write, Access::Both);
    let waits = [
        (read, read, false),
        (write, read, true),
        (read, write, true),
        (write, write, true),
        (both, read, true),
        (read, both, true),
        (both, write, true),
        (write, both, true),
        (both, both, true),
    ];
    let places = [((10, 20), (10, 20)), ((10, 20), (19, 30)), ((10, 20), (0, 11)), ((10, 20), (12, 13))];
    for (earlier, later, waits) in waits {
        for (one, other) in places {
            let operand = |access, (start, end)| Operand { region: span(start, end), access };
            let mut tracker = tracker();
            let (first, _) = submit(&mut tracker, &[operand(earlier, one)]);
            let (second, is_ready) = submit(&mut tracker, &[operand(later, other)]);
            assert_eq!(is_ready, !waits, "{earlier:?} {one:?}, then {later:?} {other:?}");
            assert_eq!(complete(&mut tracker, first), if waits { vec![second] } else { vec![] });
        }
    }
}

#[test]
fn who_touches_other_bytes_goes_ahead() {
    let mut tracker = tracker();
    submit(&mut tracker, &[write(10, 20)]);
    for (start, end) in [(0, 10), (20, 30), (15, 15)] {
        assert!(submit(&mut tracker, &[write(start, end)]).1, "{start}..{end}");
    }
    assert!(submit(&mut tracker, &[]).1, "who touches nothing waits for nobody");
}

#[test]
fn identifiers_alone_decide() {
    let mut tracker = tracker();
    let operand = |identifier| Operand::write(Span::id(identifier));
    submit(&mut tracker, &[operand(3), operand(7)]);
    let is_ready = [2, 3, 4, 6, 7, 8].map(|identifier| submit(&mut tracker, &[operand(identifier)]).1);
    assert_eq!(is_ready, [true, false, true, true, false, true]);
}

/// Columns of a matrix of 8 by 8 numbers of four bytes.
fn columns(first: i64, count: i64) -> tensor::Region {
    let rows = Axis { storage: 8, offset: 0, size: 8 };
    tensor::Region::in_storage(4096, 4, &[rows, Axis { storage: 8, offset: first, size: count }]).unwrap()
}

#[test]
fn columns_between_each_other_are_independent() {
    let mut tracker: Tracker<tensor::Region> = Tracker::new(ROOM);
    let mut submit = |region, access| match tracker.submit(&[Operand { region, access }], Otherwise::Buffer) {
        Ok(Submitted::Ready(_)) => true,
        Ok(Submitted::Buffered(..)) => false,
        other => panic!("{other:?}"),
    };
    // Their hulls overlap, their bytes do not.
    assert!(submit(columns(0, 2), Access::Write));
    assert!(submit(columns(2, 6), Access::Write));
    assert!(!submit(columns(1, 1), Access::Read));
    // The element (7, 7) alone; the last byte of (6, 7) to behind the first of (7, 0).
    assert!(!submit(tensor::Region::range(4096 + 4 * 63, 4).unwrap(), Access::Read));
    assert!(!submit(tensor::Region::range(4096 + 4 * 56 - 1, 2).unwrap(), Access::Write));
}

#[test]
fn what_a_tensors_operation_is_done_with_is_free() {
    let mut tracker: Tracker<tensor::Region> = Tracker::new(ROOM);
    let rate = NonZeroU64::new(8).unwrap();
    let all = Progress::new(columns(0, 8), rate);
    let Ok(Submitted::Ready(earlier)) = tracker.submit(&[Operand::write(columns(0, 8))], Otherwise::Buffer)
    else {
        panic!()
    };
    let second_row = tensor::Region::range(4096 + 32, 32).unwrap();
    let Ok(Submitted::Buffered(later, _)) = tracker.submit(&[Operand::read(second_row)], Otherwise::Buffer)
    else {
        panic!()
    };
    // A row a tick: after the first the second is yet to come, after the second it is done.
    let mut woken = Vec::new();
    for ticks in [1, 2] {
        assert_eq!(woken, []);
        let left: Vec<tensor::Region> = all.after(ticks).left().collect();
        let [rest] = left[..] else { panic!("{left:?}") };
        tracker.shrink(earlier, 0, rest, |id| woken.push(id)).unwrap();
    }
    assert_eq!(woken, [later]);
}

#[test]
fn conflicting_operations_keep_their_order() {
    let mut tracker = tracker();
    let (first, _) = submit(&mut tracker, &[write(0, 10)]);
    let rest: Vec<_> = (0..20).map(|_| submit(&mut tracker, &[write(0, 10)]).0).collect();
    let mut running = first;
    for next in rest {
        assert_eq!(complete(&mut tracker, running), [next]);
        running = next;
    }
    assert_eq!(complete(&mut tracker, running), []);
    assert!(tracker.is_empty());
}

#[test]
fn those_that_wake_at_once_do_so_in_the_order_of_submission() {
    let mut tracker = tracker();
    let (writer, _) = submit(&mut tracker, &[write(0, 100)]);
    let readers: Vec<_> = (0..20).rev().map(|at| submit(&mut tracker, &[read(at, at + 1)]).0).collect();
    assert_eq!(tracker.dependents(writer).unwrap().collect::<Vec<_>>(), readers);
    assert_eq!(complete(&mut tracker, writer), readers);
}

#[test]
fn readers_that_come_later_do_not_keep_a_writer_waiting() {
    let mut tracker = tracker();
    let (mut reader, _) = submit(&mut tracker, &[read(0, 10)]);
    let (writer, is_ready) = submit(&mut tracker, &[write(0, 10)]);
    assert!(!is_ready);
    for _ in 0..10 {
        // There is always a reader that waits, and it is behind the writer.
        let (next, is_ready) = submit(&mut tracker, &[read(0, 10)]);
        assert!(!is_ready, "a reader overtook a writer");
        reader = reader.min(next);
    }
    assert_eq!(complete(&mut tracker, reader), [writer]);
    assert_eq!(complete(&mut tracker, writer).len(), 10);
}

#[test]
fn an_operation_found_by_two_operands_is_waited_for_once() {
    let mut tracker = tracker();
    let (first, _) = submit(&mut tracker, &[write(0, 10), read(20, 30), write(40, 50)]);
    let (second, _) = submit(&mut tracker, &[write(0, 50), read(45, 46)]);
    assert_eq!(tracker.waits_for(second).unwrap(), 1);
    assert_eq!(tracker.room().edges, ROOM.edges - 1);
    assert_eq!(complete(&mut tracker, first), [second]);
}

#[test]
fn an_operations_own_operands_may_overlap() {
    let mut tracker = tracker();
    assert!(submit(&mut tracker, &[read(0, 10), write(0, 10), Operand::read_write(span(5, 15))]).1);
}

#[test]
fn who_no_longer_conflicts_wakes_as_a_region_shrinks() {
    let mut tracker = tracker();
    let (first, _) = submit(&mut tracker, &[read(200, 300), write(0, 100)]);
    let parts: Vec<_> =
        (0..4).map(|part| submit(&mut tracker, &[write(part * 25, part * 25 + 25)]).0).collect();
    let (other, _) = submit(&mut tracker, &[write(200, 210)]);
    let (both, _) = submit(&mut tracker, &[read(0, 25), write(290, 300)]);
    let mut shrink = |operand, rest| {
        let mut woken = Vec::new();
        tracker.shrink(first, operand, rest, |id| woken.push(id)).unwrap();
        woken
    };
    assert_eq!(shrink(1, span(24, 100)), []);
    assert_eq!(shrink(1, span(50, 100)), [parts[0], parts[1]]);
    assert_eq!(shrink(0, span(290, 300)), [other]);
    assert_eq!(shrink(1, span(50, 75)), [parts[3]]);
    assert_eq!(shrink(1, span(0, 0)), [parts[2]]);
    assert_eq!(complete(&mut tracker, parts[0]), []);
    assert_eq!(complete(&mut tracker, first), [both]);
}

#[test]
fn who_comes_after_a_region_shrank_sees_what_is_left() {
    let mut tracker = tracker();
    let (first, _) = submit(&mut tracker, &[write(0, 100)]);
    tracker.shrink(first, 0, span(60, 80), |_| panic!("nobody waits")).unwrap();
    let is_ready = [(0, 60), (80, 100), (79, 80), (0, 100)]
        .map(|(start, end)| submit(&mut tracker, &[read(start, end)]).1);
    assert_eq!(is_ready, [true, true, false, false]);
}

#[test]
fn a_region_does_not_grow() {
    let mut tracker = tracker();
    let (id, _) = submit(&mut tracker, &[read(0, 1), write(10, 20)]);
    for (start, end) in [(9, 20), (10, 21), (0, 1), (0, 100)] {
        let shrunk = tracker.shrink(id, 1, span(start, end), |_| ());
        assert_eq!(shrunk, Err(TrackerError::Grows { operation: id, operand: 1 }));
    }
    assert!(!submit(&mut tracker, &[write(19, 20)]).1, "what was refused changed something");
    let shrunk = tracker.shrink(id, 2, span(0, 0), |_| ());
    assert_eq!(shrunk, Err(TrackerError::NoOperand { operation: id, operand: 2 }));
}

#[test]
fn who_waits_can_be_neither_done_nor_partly_done() {
    let mut tracker = tracker();
    let (first, _) = submit(&mut tracker, &[write(0, 10)]);
    let (second, _) = submit(&mut tracker, &[write(0, 10)]);
    let waits = Err(TrackerError::Waits { operation: second, waits_for: 1 });
    assert_eq!(tracker.complete(second, |_| ()), waits);
    assert_eq!(tracker.shrink(second, 0, span(0, 5), |_| ()), waits);
    assert_eq!(complete(&mut tracker, first), [second]);
}

#[test]
fn a_finished_operations_name_means_no_other_one() {
    let mut tracker = tracker();
    let (old, _) = submit(&mut tracker, &[write(0, 10)]);
    complete(&mut tracker, old);
    let (new, _) = submit(&mut tracker, &[write(0, 10)]);
    assert_eq!(old.slot(), new.slot(), "the place is taken again, else this shows nothing");
    let stale = TrackerError::Stale(old);
    assert_eq!(tracker.complete(old, |_| ()), Err(stale));
    assert_eq!(tracker.shrink(old, 0, span(0, 5), |_| ()), Err(stale));
    assert_eq!(tracker.waits_for(old), Err(stale));
    assert_eq!(tracker.dependents(old).err(), Some(stale));
    assert!(!submit(&mut tracker, &[read(0, 10)]).1);
    complete(&mut tracker, new);
    assert_eq!(tracker.complete(new, |_| ()), Err(TrackerError::Stale(new)), "done twice");
}

#[test]
fn who_is_blocked_is_not_kept() {
    let mut tracker = tracker();
    let (first, _) = submit(&mut tracker, &[write(0, 10)]);
    let before = tracker.room();
    assert_eq!(tracker.submit(&[read(0, 5)], Otherwise::Block).unwrap(), Submitted::Blocked(&[first]));
    assert_eq!(tracker.room(), before);
    assert_eq!(complete(&mut tracker, first), []);
    assert!(matches!(tracker.submit(&[read(0, 5)], Otherwise::Block).unwrap(), Submitted::Ready(_)));
}

#[test]
fn who_finds_no_room_changes_nothing() {
    let lacking = [
        (Capacity { operations: 3, ..ROOM }, Lack::Operations),
        (Capacity { operands: 5, ..ROOM }, Lack::Operands),
        (Capacity { edges: 3, ..ROOM }, Lack::Edges),
    ];
    for (capacity, lack) in lacking {
        let mut tracker = Tracker::new(capacity);
        let (first, _) = submit(&mut tracker, &[write(0, 10)]);
        let (second, _) = submit(&mut tracker, &[write(5, 15)]);
        let (third, _) = submit(&mut tracker, &[write(20, 30)]);
        let room = tracker.room();
        let operands = [write(0, 30), read(40, 41), read(50, 51)];
        for _ in 0..100 {
            assert_eq!(tracker.submit(&operands, Otherwise::Buffer).unwrap(), Submitted::Full(lack));
        }
        assert_eq!(tracker.room(), room);
        assert_eq!(complete(&mut tracker, first), [second]);
        assert_eq!(complete(&mut tracker, third), []);
        let (last, is_ready) = submit(&mut tracker, &operands);
        assert!(!is_ready);
        assert_eq!(complete(&mut tracker, second), [last]);
        complete(&mut tracker, last);
        assert_eq!(tracker.room(), capacity, "something was lost");
    }
}

#[test]
fn what_there_is_never_room_for_is_an_error() {
    let mut tracker = Tracker::new(Capacity { operands: 2, ..ROOM });
    let refused = tracker.submit(&[read(0, 1); 3], Otherwise::Buffer);
    assert_eq!(refused, Err(TrackerError::TooManyOperands { operands: 3, capacity: 2 }));
}

/// The hull is not the whole truth: every other byte.
#[derive(Clone, Copy, Debug)]
struct Comb(u64, u64);

impl Region for Comb {
    fn hull(&self) -> Range<u64> {
        self.0..self.1
    }

    fn meets(&self, other: &Self) -> bool {
        self.0 % 2 == other.0 % 2
    }
}

#[test]
fn regions_whose_hulls_overlap_are_asked_whether_they_meet() {
    let mut tracker = Tracker::new(ROOM);
    let mut is_ready = |start| {
        let operand = Operand::write(Comb(start, start + 50));
        matches!(tracker.submit(&[operand], Otherwise::Buffer).unwrap(), Submitted::Ready(_))
    };
    assert_eq!([0, 1, 2, 50, 53].map(&mut is_ready), [true, true, false, false, true]);
}

/// All pairs, nothing clever: what the tracker must do.
#[derive(Default)]
struct Model {
    /// In order of submission: operands, and who is waited for.
    outstanding: Vec<(OperationId, Operands, Vec<OperationId>)>,
}

impl Model {
    fn conflicts(&self, operands: &[Operand<Span>]) -> Vec<OperationId> {
        let has = |others: &Operands| {
            others.iter().any(|other| operands.iter().any(|operand| operand.conflicts_with(other)))
        };
        self.outstanding.iter().filter(|(_, others, _)| has(others)).map(|(id, _, _)| *id).collect()
    }

    fn edges(&self) -> usize {
        self.outstanding.iter().map(|(_, _, on)| on.len()).sum()
    }

    fn lack(&self, operands: usize, conflicts: usize, room: Capacity) -> Option<Lack> {
        let kept: usize = self.outstanding.iter().map(|(_, operands, _)| operands.len()).sum();
        if self.outstanding.len() == room.operations {
            return Some(Lack::Operations);
        }
        if kept + operands > room.operands {
            return Some(Lack::Operands);
        }
        (self.edges() + conflicts > room.edges).then_some(Lack::Edges)
    }

    /// Those that no longer wait when nobody waits for `earlier` that `keeps` does not say so of.
    fn wake(&mut self, earlier: OperationId, keeps: impl Fn(&Operands) -> bool) -> Vec<OperationId> {
        let mut woken = Vec::new();
        for (id, operands, on) in &mut self.outstanding {
            let was = on.len();
            on.retain(|other| *other != earlier || keeps(operands));
            if was > 0 && on.is_empty() {
                woken.push(*id);
            }
        }
        woken
    }

    fn complete(&mut self, at: usize) -> Vec<OperationId> {
        let (id, _, _) = self.outstanding.remove(at);
        self.wake(id, |_| false)
    }

    fn shrink(&mut self, at: usize, operand: usize, rest: Span) -> Vec<OperationId> {
        self.outstanding[at].1[operand].region = rest;
        let (id, left, _) = self.outstanding[at].clone();
        self.wake(id, |others| {
            others.iter().any(|other| left.iter().any(|operand| operand.conflicts_with(other)))
        })
    }
}

fn some_operands(random: &mut Random, reach: u64) -> Operands {
    let operand = |random: &mut Random| {
        let start = random.below(reach);
        let access = [Access::Read, Access::Read, Access::Write, Access::Both][random.below(4) as usize];
        Operand { region: span(start, start + random.of_any_size(6)), access }
    };
    (0..random.below(4)).map(|_| operand(random)).collect()
}

fn some_part(random: &mut Random, whole: Span) -> Span {
    let start = whole.start + random.below((whole.end - whole.start).max(1));
    span(start, start + random.below((whole.end - start).max(1)))
}

/// One random step of both.
fn step(tracker: &mut Tracker<Span>, model: &mut Model, random: &mut Random, room: Capacity, reach: u64) {
    let running: Vec<usize> =
        (0..model.outstanding.len()).filter(|at| model.outstanding[*at].2.is_empty()).collect();
    let mut woken = Vec::new();
    if running.is_empty() || random.below(9) < 5 {
        return submit_to_both(tracker, model, random, room, reach);
    }
    let at = running[random.below(running.len() as u64) as usize];
    let (id, operands, _) = model.outstanding[at].clone();
    if operands.is_empty() || !random.is_one_in(4) {
        tracker.complete(id, |id| woken.push(id)).unwrap();
        assert_eq!(woken, model.complete(at));
        return;
    }
    let operand = random.below(operands.len() as u64) as usize;
    let rest = some_part(random, operands[operand].region);
    tracker.shrink(id, operand, rest, |id| woken.push(id)).unwrap();
    assert_eq!(woken, model.shrink(at, operand, rest));
}

fn submit_to_both(
    tracker: &mut Tracker<Span>,
    model: &mut Model,
    random: &mut Random,
    room: Capacity,
    reach: u64,
) {
    let operands = some_operands(random, reach);
    let conflicts = model.conflicts(&operands);
    let otherwise = if random.is_one_in(5) { Otherwise::Block } else { Otherwise::Buffer };
    let sorted = |on: &[OperationId]| {
        let mut on = on.to_vec();
        on.sort_unstable();
        on
    };
    let (id, on) = match tracker.submit(&operands, otherwise).unwrap() {
        Submitted::Ready(id) => (id, Vec::new()),
        Submitted::Buffered(id, on) => (id, sorted(on)),
        Submitted::Blocked(on) => {
            assert_eq!((sorted(on), otherwise), (conflicts.clone(), Otherwise::Block));
            return assert!(!conflicts.is_empty());
        }
        Submitted::Full(lack) => {
            return assert_eq!(Some(lack), model.lack(operands.len(), conflicts.len(), room));
        }
    };
    assert_eq!(model.lack(operands.len(), conflicts.len(), room), None);
    assert_eq!(on, conflicts);
    assert!(on.is_empty() || otherwise == Otherwise::Buffer);
    model.outstanding.push((id, operands, on));
}

#[test]
fn random_operations_wait_and_wake_as_all_pairs_say() {
    let rooms = [
        (Capacity { operations: 40, operands: 70, edges: 90 }, 300),
        (Capacity { operations: 200, operands: 600, edges: 2000 }, 3000),
        (Capacity { operations: 10, operands: 100, edges: 100 }, 10),
    ];
    for (seed, (room, reach)) in (0..).zip(rooms) {
        let (mut tracker, mut model, mut random) = (Tracker::new(room), Model::default(), Random::new(seed));
        for _ in 0..100_000 {
            step(&mut tracker, &mut model, &mut random, room, reach);
            let left = tracker.room();
            assert_eq!(tracker.len(), model.outstanding.len());
            assert_eq!(room.edges - left.edges, model.edges());
        }
        while let Some(at) = model.outstanding.iter().position(|(_, _, on)| on.is_empty()) {
            complete(&mut tracker, model.outstanding[at].0);
            model.complete(at);
        }
        assert_eq!(tracker.room(), room, "something was lost");
    }
}
