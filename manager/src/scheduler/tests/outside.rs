//! Memory outside of pieces: contexts, modules, other programs.

use super::*;

fn rooms(desk: &Desk, session: SessionId) -> usize {
    let told = |effect: &&Effect| matches!(effect, Effect::Shim(to, ToShim::Room { .. }) if *to == session);
    desk.log.iter().filter(told).count()
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

#[test]
fn room_is_made_of_what_nobody_uses() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 10);
    let b = job_with(&mut desk, "b", 10, 10);
    desk.end(b);
    let c = desk.job(spec("c"));
    assert_eq!(desk.scheduler.gpus()[&GPU].spares.len(), 4, "b's pieces");
    desk.recalls.insert(a, desk.pieces(a, T));
    desk.tell(Event::MakeRoom { session: c, step: Step(7), gpu: GPU });
    assert_eq!(rooms(&desk, c), 1);
    let gpu = &desk.scheduler.gpus()[&GPU];
    assert_eq!((gpu.spares.len(), gpu.ledger.free()), (0, 90), "a's persistent memory is all there is");
    assert!(desk.expelled.is_empty());
}

#[test]
fn room_is_asked_only_where_one_is() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 10);
    desk.tell(Event::MakeRoom { session: a, step: Step(7), gpu: OTHER_GPU });
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
    desk.tell(Event::GpuAdded { gpu, units: 50, apart: 20 });
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
