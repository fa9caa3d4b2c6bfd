//! Memory outside of pieces: contexts, modules, other programs.

use super::*;

/// The answers to who wanted room: whether there could be more.
fn rooms(desk: &Desk, session: SessionId) -> Vec<bool> {
    let told = |effect: &Effect| match effect {
        Effect::Shim(to, ToShim::Room { more, .. }) if *to == session => Some(*more),
        _ => None,
    };
    desk.log.iter().filter_map(told).collect()
}

fn ask_for_room(desk: &mut Desk, session: SessionId, units: u32) {
    desk.tell(Event::MakeRoom { session, step: Step(7), gpu: GPU, units });
}

fn is_let_in(desk: &Desk, session: SessionId) -> bool {
    let told =
        |effect: &Effect| matches!(effect, Effect::Shim(to, ToShim::Attached { .. }) if *to == session);
    desk.log.iter().any(told)
}

fn headroom(desk: &Desk) -> u32 {
    desk.scheduler.gpus()[&GPU].ledger.headroom()
}

#[test]
fn a_newcomer_is_let_in_only_if_everybody_still_fits_beside_its_context() {
    for (outside, fits) in [(5, true), (6, false)] {
        let mut desk = Desk::new(|config| config.headroom_units = 5);
        let a = job_with(&mut desk, "a", 10, 80);
        desk.outside = outside;
        let b = desk.job(spec("b"));
        assert_eq!(is_let_in(&desk, b), fits, "{outside} units are outside");
        desk.outside = 0;
        desk.end(a);
        assert!(is_let_in(&desk, b));
    }
}

#[test]
fn a_newcomer_is_not_let_in_where_who_is_away_could_not_come_back() {
    let mut desk = Desk::new(|config| config.headroom_units = 5);
    let a = job_with(&mut desk, "a", 10, 75);
    let c = job_with(&mut desk, "c", 1, 20);
    desk.until(|desk| desk.phase(c) == Phase::Open && desk.units(a, T) == 0);
    desk.outside = 11;
    let b = desk.job(spec("b"));
    desk.pass(ms(1));
    assert!(!is_let_in(&desk, b), "there is room, but a needs it");
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.end(a);
    assert!(is_let_in(&desk, b));
}

#[test]
fn a_newcomer_that_has_no_room_is_looked_at_again() {
    let mut desk = Desk::new(|config| config.headroom_units = 5);
    let a = job_with(&mut desk, "a", 10, 80);
    desk.outside = 6;
    let b = desk.job(spec("b"));
    assert!(!is_let_in(&desk, b));
    desk.recalls.insert(a, desk.pieces(a, T));
    desk.until(|desk| is_let_in(desk, b));
}

#[test]
fn a_context_gets_the_room_of_who_goes_for_its_turn() {
    let mut desk = Desk::new(|config| config.headroom_units = 10);
    let a = job_with(&mut desk, "a", 10, 60);
    let b = job_with(&mut desk, "b", 10, 10);
    desk.outside = 10;
    desk.deaf.extend([a, b]);
    let c = desk.job(spec("c"));
    assert!(!is_let_in(&desk, c), "110 units are wanted");
    desk.until(|desk| desk.closings(a) + desk.closings(b) > 0);
    assert!(!is_let_in(&desk, c), "nobody has gone yet");
    desk.deaf.clear();
    [a, b].into_iter().for_each(|session| desk.answer_closings(session));
    assert!(is_let_in(&desk, c));
}

#[test]
fn the_headroom_is_what_a_context_took() {
    let mut desk = Desk::new(|config| config.headroom_units = 1);
    job_with(&mut desk, "a", 10, 10);
    desk.outside = 1;
    let b = desk.job(spec("b"));
    assert_eq!(headroom(&desk), 1);
    desk.outside = 9;
    fill(&mut desk, b, 1, 1);
    assert_eq!(headroom(&desk), 8);
    desk.outside = 2;
    desk.tell(Event::Survey);
    assert_eq!((headroom(&desk), desk.scheduler.gpus()[&GPU].outside.units), (8, Some(2)));
}

#[test]
fn the_headroom_falls_again_when_contexts_are_smaller() {
    let mut desk = Desk::new(|config| config.headroom_units = 1);
    job_with(&mut desk, "a", 10, 10);
    desk.outside = 1;
    for (nth, context) in [20, 2, 2, 2, 2, 2, 2, 2, 2].into_iter().enumerate() {
        let newcomer = desk.job(spec("newcomer"));
        desk.outside += context;
        fill(&mut desk, newcomer, 1, 1);
        desk.end(newcomer);
        desk.outside -= context;
        desk.tell(Event::Survey);
        assert_eq!(headroom(&desk), if nth < 8 { 20 } else { 2 }, "after {nth} more");
    }
}

#[test]
fn what_was_outside_counts_no_longer_than_it_is_there() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 10, 10), job_with(&mut desk, "b", 10, 10));
    desk.outside = 2;
    desk.tell(Event::Survey);
    desk.end(a);
    desk.end(b);
    desk.outside = 0;
    desk.tell(Event::Survey);
    let outside = &desk.scheduler.gpus()[&GPU].outside;
    assert_eq!(outside.units, Some(0), "nobody shares the GPU, but others did");
}

#[test]
fn what_others_use_is_not_leased() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 10);
    job_with(&mut desk, "b", 10, 10);
    desk.outside = 40;
    desk.tell(Event::Survey);
    desk.lease(a, T, 10, 20);
    assert_eq!((desk.refusals(a), desk.units(a, T)), (0, 30));
    desk.lease(a, T, 30, 21);
    assert_eq!(desk.refusals(a), 1, "61 units and 40 outside are more than there is");
}

#[test]
fn memory_that_others_took_is_measured_and_the_lease_tried_again() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 10);
    let b = job_with(&mut desk, "b", 10, 10);
    desk.dead(b, T);
    desk.recalls.insert(b, desk.pieces(b, T));
    desk.outside = 50;
    desk.short_of_memory = true;
    desk.lease(a, T, 10, 20);
    assert_eq!((desk.refusals(a), desk.units(a, T)), (0, 30), "there is room when b's spares are gone");
}

/// Somebody whose neighbour died, and left 60 units to its child.
fn bereaved() -> (Desk, SessionId) {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 10);
    desk.uid = 2;
    let b = job_with(&mut desk, "b", 10, 50);
    desk.end(b);
    desk.outside = 60;
    desk.short_of_memory = true;
    (desk, a)
}

#[test]
fn what_the_dead_left_to_their_children_is_waited_for() {
    let (mut desk, a) = bereaved();
    desk.lease(a, T, 10, 40);
    ask_for_room(&mut desk, a, 39);
    desk.pass(ms(500));
    assert_eq!((desk.refusals(a), desk.units(a, T), rooms(&desk, a)), (0, 10, vec![]));
    desk.outside = 0;
    desk.pass(ms(20));
    assert_eq!((desk.refusals(a), desk.units(a, T), rooms(&desk, a)), (0, 50, vec![true]));
}

#[test]
fn the_dead_are_not_waited_for_for_ever() {
    let (mut desk, a) = bereaved();
    desk.lease(a, T, 10, 40);
    ask_for_room(&mut desk, a, 39);
    desk.pass(ms(2000));
    assert_eq!((desk.refusals(a), rooms(&desk, a)), (1, vec![false]));
}

#[test]
fn what_is_larger_than_the_gpu_is_refused_at_once() {
    let (mut desk, a) = bereaved();
    desk.tell(Event::Survey);
    desk.lease(a, T, 10, 81);
    assert_eq!(desk.refusals(a), 1, "it has 20 of 100");
}

#[test]
fn a_newcomers_context_is_not_taken_for_what_the_dead_left() {
    let mut desk = Desk::new(|_| {});
    let (_, b) = (job_with(&mut desk, "a", 10, 10), job_with(&mut desk, "b", 10, 10));
    desk.outside = 10;
    desk.tell(Event::Survey);
    desk.end(b);
    let c = desk.job(spec("c"));
    desk.outside = 15;
    desk.lease(c, T, 0, 5);
    desk.lease(c, T, 5, 85);
    assert_eq!((desk.refusals(c), desk.units(c, T)), (1, 5));
}

#[test]
fn what_lay_outside_before_a_death_is_not_waited_for() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 10, 10), job_with(&mut desk, "b", 10, 10));
    desk.outside = 60;
    desk.tell(Event::Survey);
    desk.end(b);
    desk.lease(a, T, 10, 40);
    assert_eq!(desk.refusals(a), 1);
}

#[test]
fn room_is_made_of_what_nobody_uses() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 10);
    let b = job_with(&mut desk, "b", 10, 10);
    desk.end(b);
    let c = desk.job(spec("c"));
    assert_eq!(desk.scheduler.gpus()[&GPU].spares.len(), 4, "b's pieces");
    desk.recalls.insert(a, desk.pieces(a, T));
    ask_for_room(&mut desk, c, 85);
    assert_eq!(rooms(&desk, c), [true]);
    let gpu = &desk.scheduler.gpus()[&GPU];
    assert_eq!((gpu.spares.len(), gpu.ledger.free()), (0, 90), "a's persistent memory is all there is");
    assert!(desk.expelled.is_empty());
}

#[test]
fn nothing_is_taken_from_anybody_for_room_that_is_there() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 10);
    let b = desk.job(spec("b"));
    desk.recalls.insert(a, desk.pieces(a, T));
    ask_for_room(&mut desk, b, 79);
    assert_eq!((rooms(&desk, b), desk.units(a, T)), (vec![true], 10));
}

#[test]
fn who_runs_gets_room_of_those_who_wait() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    assert_eq!(desk.scheduler.gpus()[&GPU].ledger.free(), 20, "b's temporary memory is away");
    ask_for_room(&mut desk, a, 25);
    assert_eq!(rooms(&desk, a), [true]);
    assert!(desk.units(b, P) <= 5, "{} units", desk.units(b, P));
}

#[test]
fn who_waits_gets_room_of_those_who_run_when_its_turn_comes() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    ask_for_room(&mut desk, b, 25);
    assert!(rooms(&desk, b).is_empty());
    desk.until(|desk| !rooms(desk, b).is_empty());
    assert_eq!((rooms(&desk, b), desk.phase(b)), (vec![true], Phase::Open));
    assert!(desk.units(a, P) <= 5, "{} units", desk.units(a, P));
}

#[test]
fn whose_memory_is_away_takes_no_room_that_it_will_need() {
    let mut desk = Desk::new(|_| {});
    let (_, b) = rivals(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Open && desk.units(b, T) == 60);
    desk.until(|desk| desk.phase(b) == Phase::Waiting && desk.units(b, T) == 0);
    ask_for_room(&mut desk, b, 1);
    assert!(rooms(&desk, b).is_empty());
    desk.until(|desk| !rooms(desk, b).is_empty());
    assert_eq!((rooms(&desk, b), desk.phase(b)), (vec![true], Phase::Open));
}

#[test]
fn who_runs_beside_others_gets_room_alone() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 10, 30), job_with(&mut desk, "b", 10, 30));
    ask_for_room(&mut desk, a, 59);
    desk.until(|desk| !rooms(desk, a).is_empty());
    assert_eq!((rooms(&desk, a), desk.phase(b)), (vec![true], Phase::Waiting));
    assert_eq!(desk.scheduler.gpus()[&GPU].ledger.free(), 60);
    desk.until(|desk| desk.phase(b) == Phase::Open);
}

#[test]
fn who_could_never_have_the_room_is_told_so() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 30);
    ask_for_room(&mut desk, a, 61);
    assert_eq!(rooms(&desk, a), [false]);
}

#[test]
fn room_is_asked_only_where_one_is() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 10);
    desk.tell(Event::MakeRoom { session: a, step: Step(7), gpu: OTHER_GPU, units: 1 });
    assert!(desk.expelled.contains(&a));
}

#[test]
fn who_is_shut_out_by_others_contexts_lets_others_run() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let c = desk.job(spec("c"));
    fill(&mut desk, c, 1, 50);
    let slices = |desk: &Desk| desk.job_of(a).stats.slices + desk.job_of(b).stats.slices;
    desk.until(|desk| desk.phase(c) == Phase::Open);
    desk.outside = 35;
    desk.tell(Event::Survey);
    let before = slices(&desk);
    desk.pass(ms(5000));
    assert_eq!((slices(&desk), desk.phase(c)), (before, Phase::Open), "70 + 35 > 100");
    desk.outside = 0;
    desk.until(|desk| slices(desk) > before + 3);
}

#[test]
fn memory_beyond_the_ledgers_is_used_up_first() {
    let gpu = GpuUuid([3; 16]);
    let mut desk = Desk::new(|config| config.headroom_units = 5);
    desk.tell(Event::GpuAdded { gpu, units: 50, apart: 20, shares: [0; 3] });
    let reserved = |desk: &Desk| {
        let ledger = &desk.scheduler.gpus()[&gpu].ledger;
        (ledger.outside(), ledger.headroom())
    };
    let (_, a) = desk.start(spec("a"));
    desk.attach(a, gpu);
    for (outside, kept) in [(10, (0, 0)), (18, (0, 3)), (25, (5, 5))] {
        desk.outside = outside;
        let (_, b) = desk.start(spec("b"));
        desk.attach(b, gpu);
        assert_eq!(reserved(&desk), kept, "{outside} units are outside");
        desk.end(b);
    }
}

/// The tiers are full, and what another job has lies on the GPU: room outside of pieces is refused as a lease is.
#[test]
fn room_is_refused_where_the_tiers_have_none_for_what_others_have() {
    let mut desk = Desk::new(|config| config.tier_bytes = [10 * UNIT, 0, 0]);
    desk.tier_capacity = 10 * UNIT;
    let a = job_with(&mut desk, "a", 1, 60);
    let b = job_with(&mut desk, "b", 1, 20);
    ask_for_room(&mut desk, b, 50);
    desk.until(|desk| !rooms(desk, b).is_empty());
    assert_eq!(rooms(&desk, b), [false]);
    let slices = [a, b].map(|job| desk.job_of(job).stats.slices);
    desk.pass(ms(1_000));
    assert!(desk.scheduler.stuck().is_empty() && slices[0] > 0, "{slices:?}");
}
