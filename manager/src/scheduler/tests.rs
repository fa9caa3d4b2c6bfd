//! The scheduler's promises, one test each, on the events and effects alone. What holds for
//! every schedule is tested in `manager/tests/simulation`.

mod blank;
mod described;
mod desk;
mod expulsion;
mod gangs;
mod held;
mod hosted;
mod hostile;
mod leaks;
mod outside;
mod preemption;
mod progress;
mod quota;
mod remap;
mod shares;
mod silence;
mod turns;
mod unmovable;
mod unscrubbed;
mod warmth;
mod whole;
mod written;

use super::*;
use desk::{Desk, GPU, OTHER_GPU, UNIT, ms};
use std::collections::BTreeSet;
use tidegate_ffi::units::Class;
use tidegate_ffi::wire::live::Life;
use tidegate_ffi::wire::message::{Move, Placed};

const P: Class = Class::Persistent;
const T: Class = Class::Temporary;

/// A job with persistent and temporary memory, all of it alive.
fn job_with(desk: &mut Desk, name: &str, persistent: u32, temporary: u32) -> SessionId {
    let session = desk.job(JobSpec { name: name.into(), ..JobSpec::default() });
    fill(desk, session, persistent, temporary);
    session
}

fn fill(desk: &mut Desk, session: SessionId, persistent: u32, temporary: u32) {
    desk.lease(session, P, 0, persistent);
    desk.live(session, P, 0, u64::from(persistent) * UNIT, Life::Long);
    desk.lease(session, T, 0, temporary);
    desk.live(session, T, 0, u64::from(temporary) * UNIT, Life::Short);
}

/// Two jobs of which only one fits at a time; the first is open.
fn rivals(desk: &mut Desk) -> (SessionId, SessionId) {
    let (a, b) = (job_with(desk, "a", 10, 60), job_with(desk, "b", 10, 60));
    desk.until(|desk| desk.phase(a) == Phase::Open && desk.phase(b) == Phase::Waiting);
    desk.log.clear();
    (a, b)
}

/// The job in whose way the job of a process was last told that it waits.
fn told_behind(desk: &Desk, session: SessionId) -> Option<JobId> {
    let id = desk.scheduler.sessions()[&session].job;
    let told = desk.log.iter().rev().find_map(|effect| match effect {
        Effect::Queue { job, place } if *job == id => Some(place.behind),
        _ => None,
    });
    told.flatten()
}

fn spec(name: &str) -> JobSpec {
    JobSpec { name: name.into(), ..JobSpec::default() }
}

#[test]
fn a_declared_need_counts_before_anything_is_allocated() {
    let mut desk = Desk::new(|_| {});
    let need = Some(Need { persistent: 0, temporary: 60 * UNIT });
    let a = desk.job(JobSpec { need, ..spec("a") });
    let b = desk.job(JobSpec { need, ..spec("b") });
    assert_eq!((desk.phase(a), desk.phase(b)), (Phase::Open, Phase::Waiting));
}

#[test]
fn a_need_of_more_than_a_gpu_has_is_one_of_all_of_it() {
    let mut desk = Desk::new(|config| config.oversubscribe = false);
    let need =
        |persistent, temporary| Some(Need { persistent: persistent * UNIT, temporary: temporary * UNIT });
    let clamped = |desk: &mut Desk, need| {
        let session = desk.job(JobSpec { need, ..spec("large") });
        let need = desk.job_of(session).spec.need;
        desk.end(session);
        need
    };
    assert_eq!(clamped(&mut desk, need(1 << 20, 5)), need(100, 0));
    assert_eq!(clamped(&mut desk, need(30, 1 << 20)), need(30, 70));
    assert_eq!(clamped(&mut desk, need(30, 20)), need(30, 20));
}

#[test]
fn a_need_is_remembered_under_the_users_name_for_the_job() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 60);
    desk.end(a);
    let again = desk.job(spec("a"));
    let need = desk.job_of(again).spec.need;
    assert_eq!(need, Some(Need { persistent: 10 * UNIT, temporary: 60 * UNIT }));
    let other = desk.job(spec("another"));
    assert_eq!(desk.job_of(other).spec.need, None);
}

#[test]
fn persistent_memory_goes_behind_the_last_span_and_its_offset_or_into_a_hole() {
    for offset in [0, 7] {
        let mut desk = Desk::new(|config| config.offset_units = offset);
        let [a, b, c] = ["a", "b", "c"].map(|name| job_with(&mut desk, name, 10, 1));
        let start = |desk: &Desk, session| desk.spans(session)[0].start;
        let starts = [a, b, c].map(|session| start(&desk, session));
        assert_eq!(starts, [0, 10 + offset, 20 + 2 * offset]);
        desk.end(b);
        let d = job_with(&mut desk, "d", 11, 1);
        assert_eq!(start(&desk, d), 30 + 3 * offset, "no hole that lacks room for the need and an offset");
        let e = job_with(&mut desk, "e", 10, 1);
        assert_eq!(start(&desk, e), 10 + offset, "the lowest hole that has it");
        desk.lease(a, P, 10, offset);
        assert_eq!(desk.spans(a).len(), 1, "growth uses the offset");
        desk.lease(a, P, 10 + offset, 1);
        assert_eq!(desk.spans(a)[1].start, 41 + 4 * offset, "then a new extent");
    }
}

#[test]
fn temporary_memory_comes_from_the_other_end() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 20);
    let ledger = &desk.scheduler.gpus()[&GPU].ledger;
    let records = || ledger.pieces().map(|(_, record)| record);
    assert_eq!(records().filter(|r| r.region == T).map(|r| r.start + r.units).max(), Some(100));
    assert_eq!(records().filter(|r| r.region == P).map(|r| r.start).min(), Some(0));
    assert_eq!(desk.phase(a), Phase::Open);
}

#[test]
fn only_temporary_memory_is_switched() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let before = desk.pieces(a, P);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let tenant = desk.tenant(a);
    assert!(desk.moves_saved(tenant).iter().all(|m| m.class == T));
    assert_eq!(desk.moves_saved(tenant).iter().map(|m| m.bytes).sum::<u64>(), 60 * UNIT);
    assert_eq!(desk.pieces(a, P), before, "persistent pieces stay as they are");
    assert!(desk.pieces(a, T).is_empty());
    assert!(desk.unmapped(tenant).iter().all(|piece| !before.iter().any(|p| p.piece == *piece)));
}

#[test]
fn what_is_dead_is_not_saved_and_its_pieces_go_for_good() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.dead(a, T);
    desk.live(a, T, 5 * UNIT + 100, 200, Life::Short);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let moves = desk.moves_saved(desk.tenant(a));
    let named = |m: &Move| (m.class, m.at, m.bytes);
    assert_eq!(moves.iter().map(named).collect::<Vec<_>>(), [(T, 5 * UNIT + 100, 200)]);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let back: Vec<u32> = desk.pieces(a, T).iter().map(|placed| placed.slot.0).collect();
    assert_eq!(back, [5], "the live byte is behind its slot again, and nothing else");
}

#[test]
fn a_job_that_runs_again_gets_every_saved_byte_where_it_was() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let tenant = desk.tenant(a);
    let bytes = |moves: Vec<Move>| moves.iter().map(|m| (m.class, m.at, m.bytes)).collect::<BTreeSet<_>>();
    assert_eq!(bytes(desk.moves_saved(tenant)), bytes(desk.moves_restored(tenant)));
}

#[test]
fn everything_is_released_at_the_end() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.end(a);
    desk.end(b);
    let gpu = &desk.scheduler.gpus()[&GPU];
    assert!(gpu.ledger.pieces().all(|(piece, _)| gpu.spares.contains_key(&piece)));
    assert!(desk.scheduler.jobs().is_empty() && desk.scheduler.tenants().is_empty());
    assert_eq!(desk.scheduler.orders_under_way(), 0);
    assert_eq!(desk.forgotten, 2, "the tiers forget what was saved");
}

#[test]
fn a_failed_save_reopens_its_job_untouched() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let before = (desk.pieces(a, P), desk.pieces(a, T));
    desk.fail = |order| matches!(order, ToMover::Save { .. });
    desk.until(|desk| desk.job_of(a).stats.slices == 2);
    assert_eq!((desk.phase(a), desk.job_of(a).stats.switches), (Phase::Open, 0));
    assert_eq!((desk.pieces(a, P), desk.pieces(a, T)), before);
    assert_eq!(desk.mapped_again(desk.tenant(a)), before.1, "what was unmapped is mapped back");
    desk.fail = |_| false;
    desk.until(|desk| desk.phase(b) == Phase::Open);
}

#[test]
fn a_save_that_fails_again_and_again_is_tried_less_and_less_often() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.fail = |order| matches!(order, ToMover::Save { .. });
    desk.until(|desk| desk.closings(a) > 0);
    let before = desk.closings(a);
    desk.pass(ms(10_000));
    let tries = desk.closings(a) - before;
    assert!((4..=7).contains(&tries), "{tries} in 100 slices");
    desk.fail = |_| false;
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert_eq!(desk.job_of(a).failed_saves, 0);
}

#[test]
fn a_save_in_parts_goes_only_when_all_parts_are_saved() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.dead(a, T);
    let many = 2 * MOVES_PER_MESSAGE as u64 + 10;
    (0..many).for_each(|index| desk.live(a, T, index * 8, 4, Life::Short));
    let kept = desk.pieces(a, T).len();
    let first = many - many % MOVES_PER_MESSAGE as u64;
    desk.fail_moves_from = Some(first * 8);
    desk.until(|desk| desk.job_of(a).stats.slices == 2);
    assert_eq!(desk.pieces(a, T).len(), kept, "nothing is let go");
    let restored = desk.moves_restored(desk.tenant(a)).len();
    assert_eq!(restored as u64, first, "the mover forgets the parts that it saved");
    assert!(desk.longest_order <= MOVES_PER_MESSAGE);
    desk.fail_moves_from = None;
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(desk.job_of(a).stats.restored_bytes, many * 4);
}

#[test]
fn memory_that_cannot_be_made_is_out_of_memory_for_who_asked_alone() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 5, 5);
    let b = job_with(&mut desk, "b", 5, 5);
    desk.log.clear();
    desk.fail = |order| matches!(order, ToMover::Make { .. });
    desk.lease(b, T, 5, 5);
    assert_eq!(desk.refusals(b), 1);
    assert_eq!((desk.refusals(a), desk.phase(a), desk.phase(b)), (0, Phase::Open, Phase::Open));
    assert_eq!(desk.scheduler.gpus()[&GPU].ledger.free(), 80, "what was not made is free");
    desk.fail = |_| false;
    desk.lease(b, T, 5, 5);
    assert_eq!((desk.refusals(b), desk.pieces(b, T).len()), (1, 2));
}

#[test]
fn who_asks_for_more_than_the_gpu_has_is_refused_and_nobody_is_moved_for_it() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.lease(a, T, 60, 200);
    assert_eq!(desk.refusals(a), 1);
    assert!(desk.moves_saved(desk.tenant(b)).is_empty());
    assert_eq!(desk.phase(a), Phase::Open);
}

#[test]
fn spares_are_kept_for_who_waits_for_what_is_being_scrubbed() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 5, 80), job_with(&mut desk, "b", 5, 20));
    desk.until(|desk| desk.phase(a) == Phase::Waiting && desk.phase(b) == Phase::Open);
    desk.log.clear();
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Scrub { .. }));
    desk.end(b);
    desk.pass(ms(1));
    desk.finish_held();
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let destroyed =
        desk.log.iter().filter(|effect| matches!(effect, Effect::Mover(_, ToMover::Destroy { .. })));
    assert_eq!((destroyed.count(), desk.made_bytes()), (0, 0), "the spares, and what came, were enough");
}

#[test]
fn spares_are_kept_where_what_is_missing_is_being_set_free() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 90);
    let pieces = desk.pieces(a, T);
    desk.give_back(a, &pieces[..1], 0);
    // Another user comes: what is given back now is destroyed.
    desk.uid = 2;
    desk.job(spec("b"));
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Destroy { .. }));
    desk.give_back(a, &pieces[1..2], 0);
    let spares = |desk: &Desk| desk.scheduler.gpus()[&GPU].spares.len();
    assert_eq!((spares(&desk), pieces[1].units), (1, Units(5)));
    // A spare of five is of no use for three.
    desk.lease(a, T, pieces[0].slot.0, 3);
    desk.finish_held();
    assert_eq!((spares(&desk), desk.units(a, T)), (1, 83));
}

#[test]
fn what_was_given_back_is_waited_for_until_it_is_scrubbed() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 70);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Scrub { .. }));
    desk.give_back(a, &desk.pieces(a, T), 0);
    desk.lease(a, T, 70, 64);
    assert_eq!((desk.refusals(a), desk.units(a, T)), (0, 0), "the GPU would be large enough");
    desk.finish_held();
    assert_eq!((desk.refusals(a), desk.units(a, T)), (0, 64));
}

#[test]
fn a_piece_whose_bytes_live_long_is_promoted_and_one_whose_do_not_is_demoted() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    let region =
        |desk: &Desk, placed: &Placed| desk.scheduler.gpus()[&GPU].ledger.piece(placed.piece).unwrap().region;
    let (old, young) = (desk.pieces(a, T)[0], desk.pieces(a, P)[0]);
    desk.dead(a, T);
    desk.dead(a, P);
    desk.live(a, P, 0, UNIT, Life::Short);
    desk.live(a, T, 0, UNIT, Life::Long);
    desk.live(a, T, UNIT, UNIT / 2, Life::Short);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert_eq!(region(&desk, &old), P, "renumbered, not copied");
    assert!(desk.pieces(a, T).contains(&old) && !desk.pieces(a, P).contains(&young));
    let saved = desk.moves_saved(desk.tenant(a));
    assert_eq!(saved.iter().map(|m| (m.class, m.bytes)).collect::<Vec<_>>(), [(P, UNIT)]);
}

#[test]
fn memory_leased_ahead_is_recalled_when_a_second_job_comes() {
    let mut desk = Desk::new(|_| {});
    let a = desk.job(spec("a"));
    desk.lease_ahead(a, T, 0, 5, 20);
    assert_eq!(desk.units(a, T), 25);
    desk.recalls.insert(a, desk.pieces(a, T)[1..].to_vec());
    let b = desk.job(spec("b"));
    assert_eq!(desk.units(a, T), 5);
    desk.lease_ahead(b, T, 0, 5, 20);
    assert_eq!(desk.units(b, T), 5, "not alone: nothing ahead");
}

#[test]
fn an_unknown_gpu_is_refused() {
    let mut desk = Desk::new(|_| {});
    let (_, session) = desk.start(spec("a"));
    desk.tell(Event::Attach { session, step: Step(1), gpu: GpuUuid([9; 16]) });
    assert!(
        desk.log.iter().any(|e| matches!(e, Effect::Shim(s, ToShim::AttachRefused { .. }) if *s == session))
    );
    assert!(desk.scheduler.tenants().is_empty());
}

#[test]
fn a_wrong_answer_expels_only_the_liar() {
    let lies: [fn(SessionId, TenantId, TenantId) -> Event; 8] = [
        |session, _, _| Event::ShimDone { session, step: Step(77) },
        |session, _, _| Event::NotDrained { session, step: Step(77) },
        |session, _, _| Event::Passed { session, step: Step(77), boundary: 1 },
        |session, _, other| Event::Returned {
            session,
            tenant: other,
            pieces: Vec::new(),
            unused: Units(0),
            recalled: true,
        },
        |session, own, _| Event::Returned {
            session,
            tenant: own,
            pieces: vec![PieceId(1_000_000)],
            unused: Units(0),
            recalled: true,
        },
        |session, _, other| desk::lease_event(session, other, T, 0, 1),
        |session, own, _| desk::lease_event(session, own, T, 399, 2),
        |session, own, _| desk::lease_event(session, own, T, 2, 1),
    ];
    for (index, lie) in lies.iter().enumerate() {
        let mut desk = Desk::new(|_| {});
        let (a, b) = (job_with(&mut desk, "a", 5, 5), job_with(&mut desk, "b", 5, 5));
        let (own, other) = (desk.tenant(a), desk.tenant(b));
        let before = desk.pieces(b, T);
        desk.tell(lie(a, own, other));
        assert_eq!(desk.expelled, BTreeSet::from([a]), "lie {index}");
        assert_eq!((desk.phase(b), desk.pieces(b, T)), (Phase::Open, before));
        desk.end(a);
        assert_eq!(desk.scheduler.jobs().len(), 1);
    }
}

#[test]
fn a_process_that_hides_its_live_bytes_is_expelled() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.silent.insert(a);
    desk.until(|desk| desk.expelled.contains(&a));
    desk.end(a);
    desk.until(|desk| desk.phase(b) == Phase::Open);
}

#[test]
fn alone_on_a_gpu_nothing_is_closed_saved_or_waited_for() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 30, 70);
    let (_, elsewhere) = desk.start(spec("b"));
    desk.attach(elsewhere, OTHER_GPU);
    for _ in 0..50 {
        desk.pass(ms(100));
    }
    assert_eq!((desk.closings(a), desk.moves_saved(desk.tenant(a)).len()), (0, 0));
    assert_eq!(desk.scheduler.next_wakeup(), None);
}

#[test]
fn who_is_alone_again_before_it_has_left_is_not_saved() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.deaf.insert(a);
    desk.until(|desk| desk.phase(a) == Phase::Closing);
    desk.end(b);
    desk.answer_closings(a);
    assert_eq!((desk.phase(a), desk.moves_saved(desk.tenant(a)).len()), (Phase::Open, 0));
}

#[test]
fn jobs_that_fit_together_run_together_unsliced() {
    let mut desk = Desk::new(|_| {});
    let [a, b, c] = ["a", "b", "c"].map(|name| job_with(&mut desk, name, 10, 20));
    for _ in 0..50 {
        desk.pass(ms(100));
    }
    for session in [a, b, c] {
        assert_eq!((desk.phase(session), desk.closings(session)), (Phase::Open, 0));
    }
    let d = job_with(&mut desk, "d", 10, 20);
    desk.until(|desk| desk.phase(d) == Phase::Open);
    assert_eq!([a, b, c].iter().filter(|s| desk.phase(**s) == Phase::Open).count(), 2);
}

#[test]
fn a_gang_gets_its_grants_together_and_stops_at_one_boundary() {
    let mut desk = Desk::new(|_| {});
    let (job, rank) = desk.start(spec("gang"));
    let other = desk.join(job);
    desk.attach(rank, GPU);
    desk.attach(other, OTHER_GPU);
    fill(&mut desk, rank, 5, 60);
    fill(&mut desk, other, 5, 60);
    desk.pages.boundaries.insert(rank, 7);
    desk.pages.boundaries.insert(other, 6);
    desk.deaf.extend([rank, other]);
    desk.log.clear();
    let rival = job_with(&mut desk, "rival", 5, 60);
    desk.until(|desk| desk.closings(rank) > 0);
    let stops = [rank, other].map(|session| desk.closes(session));
    assert_eq!(stops[0].iter().map(|c| c.0).collect::<Vec<_>>(), [8], "the one after the highest seen");
    assert_eq!(stops[0][0].0, stops[1][0].0);
    desk.answer_closings(rank);
    assert!(desk.unmapped(desk.tenant(rank)).is_empty(), "not before all have drained");
    desk.answer_closings(other);
    assert!(!desk.unmapped(desk.tenant(rank)).is_empty() && !desk.unmapped(desk.tenant(other)).is_empty());
    desk.deaf.clear();
    desk.until(|desk| desk.phase(rival) == Phase::Open);
    desk.log.clear();
    desk.until(|desk| desk.phase(rank) == Phase::Open);
    let opened: Vec<SessionId> = desk.opened();
    assert!(opened.windows(2).any(|pair| pair == [rank, other]), "{opened:?}");
}

#[test]
fn a_resident_job_is_never_closed() {
    let mut desk = Desk::new(|_| {});
    let a = desk.job(JobSpec { resident: true, ..spec("serving") });
    fill(&mut desk, a, 10, 60);
    let b = desk.job(JobSpec { priority: 5, ..spec("b") });
    fill(&mut desk, b, 5, 25);
    let more = desk.lease(b, T, 25, 35);
    for _ in 0..50 {
        desk.pass(ms(100));
    }
    assert_eq!((desk.phase(a), desk.closings(a)), (Phase::Open, 0));
    assert!(
        desk.was_refused(b, more) && desk.phase(b) == Phase::Open,
        "it is told that there is no place for it"
    );
    desk.end(a);
    let again = desk.lease(b, T, 25, 35);
    desk.until(|desk| desk.answers(b, again) == 1);
}

#[test]
fn after_three_failed_drains_a_job_is_closed_seldom_and_goes_when_its_work_ends() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.undrainable.insert(a);
    desk.until(|desk| desk.job_of(a).failed_drains == 3);
    let limit = desk.scheduler.config().drain_limit;
    assert_eq!(desk.drain_ms(a), Some(limit.as_millis() as u64));
    desk.pass(limit * 2);
    assert_eq!((desk.closings(a), desk.phase(a), desk.phase(b)), (3, Phase::Open, Phase::Waiting));
    desk.pass(limit * 40);
    assert!((5..9).contains(&desk.closings(a)), "{}", desk.closings(a));
    assert!(desk.job_of(a).unsliceable());
    assert_eq!(desk.drain_ms(a), Some(limit.as_millis() as u64 / 4), "it is not stopped for long in vain");
    desk.undrainable.clear();
    desk.pass(limit * 60);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert!(!desk.job_of(a).unsliceable());
}

#[test]
fn who_is_idle_gives_its_slice_away_and_gets_it_back_when_it_wants_to() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    assert!(desk.scheduler.sessions()[&a].tick_micros > 0, "it is asked to say when it is idle");
    desk.tell(Event::Idle { session: a });
    assert_eq!(desk.phase(b), Phase::Open, "without waiting for the slice's end");
    for _ in 0..20 {
        desk.pass(ms(100));
    }
    assert_eq!(desk.closings(b), 0, "who is idle does not come back for nothing");
    desk.tell(Event::Waiting { session: a });
    desk.until(|desk| desk.phase(a) == Phase::Open);
}

#[test]
fn who_waits_for_memory_is_not_idle() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Make { .. }));
    desk.lease(a, T, 60, 25);
    desk.tell(Event::Idle { session: a });
    assert_eq!((desk.phase(a), desk.phase(b)), (Phase::Open, Phase::Waiting));
    desk.finish_held();
    assert_eq!((desk.units(a, T), desk.phase(a)), (85, Phase::Open), "nor when it has got it");
}

#[test]
fn a_higher_class_closes_a_lower_one_at_once() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.pages.boundaries.insert(a, 3);
    let now = desk.now;
    let need = Some(Need { persistent: 5 * UNIT, temporary: 70 * UNIT });
    let c = desk.job(JobSpec { priority: 1, need, ..spec("c") });
    let deadline = desk.scheduler.config().boundary_deadline.as_millis() as u64;
    assert_eq!(desk.closes(a), [(0, deadline)], "the next boundary or the deadline");
    assert_eq!((desk.now, desk.phase(c)), (now, Phase::Open), "and not the end of the slice");
    for _ in 0..50 {
        desk.pass(ms(100));
    }
    assert_eq!([a, b, c].map(|s| desk.phase(s)), [Phase::Waiting, Phase::Waiting, Phase::Open]);
}

#[test]
fn a_job_that_passes_no_boundaries_any_more_is_waited_for_half_as_long_each_time() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.pages.boundaries.insert(a, 3);
    let mut turns = |count: usize| {
        for _ in 0..count {
            desk.until(|desk| desk.phase(b) == Phase::Open);
            desk.until(|desk| desk.phase(a) == Phase::Open);
        }
        let closes = desk.closes(a).into_iter().map(|(_, deadline)| deadline).collect::<Vec<_>>();
        desk.pages.boundaries.insert(a, 4);
        closes
    };
    assert_eq!(turns(4), [20, 10, 5, 2], "milliseconds");
    assert_eq!(turns(2)[4..], [20, 10], "it has passed one");
}

#[test]
fn nobody_runs_beside_whom_he_does_not_fit() {
    let mut desk = Desk::new(|_| {});
    let (a, _) = rivals(&mut desk);
    desk.deaf.insert(a);
    let need = Some(Need { persistent: 0, temporary: 70 * UNIT });
    let c = desk.job(JobSpec { priority: 1, need, ..spec("c") });
    assert_eq!((desk.phase(a), desk.phase(c)), (Phase::Closing, Phase::Waiting));
    desk.answer_closings(a);
    assert_eq!(desk.phase(c), Phase::Open);
}

#[test]
fn a_slice_lasts_at_least_nineteen_switches() {
    let mut desk = Desk::new(|config| config.slice = ms(10));
    desk.order_time = ms(3);
    let (a, b) = rivals(&mut desk);
    desk.until(|desk| desk.job_of(a).stats.switches >= 2 && desk.job_of(b).stats.switches >= 2);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let switch = desk.job_of(a).stats.mean_switch();
    let opened = desk.now;
    assert!(switch * 19 > ms(100), "{switch:?}");
    desk.until(|desk| desk.phase(a) == Phase::Waiting);
    assert!(desk.now - opened >= switch * 19);
}

#[test]
fn the_lowest_class_is_spilled_first_and_among_equals_who_is_needed_last() {
    let mut desk = Desk::new(|_| {});
    let specs = [("low", 0), ("soon", 1), ("late", 1)];
    let [low, soon, late] = specs.map(|(name, priority)| {
        let session = desk.job(JobSpec { priority, ..spec(name) });
        fill(&mut desk, session, 10, 55);
        desk.until(|desk| desk.units(session, T) == 55);
        session
    });
    let top = desk.job(JobSpec { priority: 2, ..spec("top") });
    fill(&mut desk, top, 10, 50);
    desk.until(|desk| desk.phase(top) == Phase::Open);
    desk.until(|desk| [low, soon, late].iter().all(|s| desk.phase(*s) == Phase::Waiting));
    // Who is idle is needed last, but belongs to a higher class than who waits.
    desk.tell(Event::Idle { session: late });
    assert!([low, soon, late].iter().all(|s| desk.units(*s, P) == 10), "nobody is spilled yet");
    let mut spilled = Vec::new();
    for step in 0..4 {
        desk.lease(top, T, 50 + step * 10, 10);
        for session in [low, soon, late] {
            if desk.units(session, P) == 0 && !spilled.contains(&session) {
                spilled.push(session);
            }
        }
    }
    assert_eq!(spilled, [low, late, soon]);
}

#[test]
fn memory_passes_to_another_user_only_when_it_is_made_anew() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 10);
    desk.end(a);
    assert!(!desk.scheduler.gpus()[&GPU].spares.is_empty(), "kept for the same user");
    assert!(desk.log.iter().any(|e| matches!(e, Effect::Mover(_, ToMover::Scrub { .. }))));
    desk.uid = 2;
    desk.log.clear();
    let b = job_with(&mut desk, "b", 10, 10);
    let made: u64 = desk.made_bytes();
    assert_eq!(made, 20 * UNIT);
    desk.uid = 1;
    let c = job_with(&mut desk, "c", 10, 10);
    assert_eq!(desk.made_bytes(), made, "the first user's next job takes its spare pieces");
    desk.log.clear();
    desk.end(c);
    assert!(!desk.log.iter().any(|e| matches!(e, Effect::Mover(_, ToMover::Scrub { .. }))));
    assert_eq!(desk.phase(b), Phase::Open);
}

#[test]
fn a_lease_that_crosses_drained_is_void_and_answered_again() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.deaf.insert(a);
    desk.until(|desk| desk.phase(a) == Phase::Closing);
    let step = desk.lease(a, T, 60, 5);
    assert_eq!(desk.answers(a, step), 1, "on its way to the boundary");
    desk.outstanding.push(step);
    desk.answer_closings(a);
    desk.deaf.clear();
    assert!(!desk.pieces(a, T).iter().any(|placed| placed.slot.0 >= 60));
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(desk.answers(a, step), 2);
    assert_eq!(desk.units(a, T), 65);
}

#[test]
fn pieces_that_are_being_made_when_their_process_drains_are_not_touched_by_the_switch() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.deaf.insert(a);
    desk.until(|desk| desk.phase(a) == Phase::Closing);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Make { .. }));
    let step = desk.lease(a, T, 60, 5);
    desk.outstanding.push(step);
    desk.answer_closings(a);
    let unmapped = desk.unmapped(desk.tenant(a)).len();
    assert_eq!(unmapped, 12, "the twelve pieces that it has");
    desk.finish_held();
    assert_eq!(desk.answers(a, step), 0, "not while it is closed");
    desk.deaf.clear();
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!((desk.answers(a, step), desk.units(a, T)), (1, 65));
}

#[test]
fn pieces_given_back_during_a_switch_are_neither_saved_nor_given_back_twice() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.hold = |effect| matches!(effect, Effect::Shim(_, ToShim::Unmap { .. }));
    desk.until(|desk| desk.phase(a) == Phase::Leaving);
    let (tenant, gone) = (desk.tenant(a), desk.pieces(a, T)[0]);
    desk.give_back(a, &[gone], 0);
    desk.finish_held();
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert!(desk.moves_saved(tenant).iter().all(|m| m.piece != gone.piece));
    let scrubbed = desk.log.iter().filter(
        |effect| matches!(effect, Effect::Mover(_, ToMover::Scrub { pieces, .. }) if pieces.contains(&gone.piece)),
    );
    assert_eq!(scrubbed.count(), 1);
}

#[test]
fn nobody_is_spilled_while_somebody_is_on_its_way_out() {
    let mut desk = Desk::new(|_| {});
    let specs = [("x", 2, 5, 20), ("y", 1, 5, 50), ("z", 0, 10, 40)];
    let [x, y, z] = specs.map(|(name, priority, persistent, temporary)| {
        let session = desk.job(JobSpec { priority, ..spec(name) });
        fill(&mut desk, session, persistent, temporary);
        session
    });
    desk.until(|desk| [x, y, z].map(|s| desk.phase(s)) == [Phase::Open, Phase::Open, Phase::Waiting]);
    desk.deaf.insert(y);
    desk.lease(x, T, 20, 25);
    assert_eq!((desk.phase(y), desk.units(x, T), desk.units(z, P)), (Phase::Closing, 20, 10));
    desk.answer_closings(y);
    assert_eq!((desk.units(x, T), desk.units(z, P)), (45, 10));
}

#[test]
fn two_half_admitted_gangs_do_not_wait_for_each_other() {
    let mut desk = Desk::new(|config| config.tier_bytes[0] = 100 * UNIT);
    let need = Some(Need { persistent: 0, temporary: 60 * UNIT });
    let gangs = [GPU, OTHER_GPU].map(|gpu| {
        let (job, first) = desk.start(JobSpec { need, ..JobSpec::default() });
        let second = desk.join(job);
        desk.attach(first, gpu);
        (second, gpu)
    });
    for (second, gpu) in gangs {
        desk.attach(second, if gpu == GPU { OTHER_GPU } else { GPU });
        assert_eq!(desk.scheduler.sessions()[&second].tenants.len(), 1);
    }
}

#[test]
fn a_large_lease_is_answered_in_parts_in_the_order_of_its_slots() {
    let mut desk = Desk::new(|config| config.piece_units = 1);
    desk.add_gpu(GpuUuid([7; 16]), 1000);
    let (_, a) = desk.start(spec("a"));
    desk.attach(a, GpuUuid([7; 16]));
    let step = desk.lease(a, T, 0, 500);
    let parts = desk.parts(a, step);
    assert_eq!(parts, [(0, 200, true), (200, 200, true), (400, 100, false)]);
}

/// A job that says to need so many units.
/// Whether a process was let in.
fn is_in(desk: &Desk, session: SessionId) -> bool {
    !desk.scheduler.sessions()[&session].tenants.is_empty()
}

fn job_that_needs(units: u64) -> JobSpec {
    JobSpec { need: Some(Need { persistent: 0, temporary: units * UNIT }), ..spec("a") }
}

#[test]
fn who_fits_on_the_gpu_together_is_let_in_whatever_the_tiers_are() {
    let mut desk = Desk::new(|config| config.tier_bytes[0] = 0);
    let jobs = [40, 40, 20, 1].map(|units| desk.job(job_that_needs(units)));
    assert_eq!(jobs.map(|job| is_in(&desk, job)), [true, true, true, false]);
    desk.end(jobs[2]);
    assert!(is_in(&desk, jobs[3]));
}

#[test]
fn a_job_that_said_its_need_is_admitted_if_it_fits_the_gpu_and_the_tiers_beside_what_jobs_have() {
    let mut desk = Desk::new(|config| config.tier_bytes[0] = 30 * UNIT);
    let a = job_with(&mut desk, "a", 10, 50);
    let slack = u64::from(desk.scheduler.config().piece_units);
    let [fits, with_tiers, too_large] = [40, 30 - slack, 1].map(|units| desk.job(job_that_needs(units)));
    assert_eq!([fits, with_tiers, too_large].map(|job| is_in(&desk, job)), [true, true, false]);
    desk.end(a);
    assert!(is_in(&desk, too_large));
}

#[test]
fn nobody_is_admitted_whose_bytes_the_tier_could_not_take() {
    let mut desk = Desk::new(|config| config.tier_bytes[0] = 100 * UNIT);
    let a = desk.job(job_that_needs(100));
    let (_, b) = desk.start(job_that_needs(100));
    desk.attach(b, GPU);
    assert!(desk.scheduler.sessions()[&b].tenants.is_empty());
    assert!(desk.scheduler.queue().contains(&desk.scheduler.sessions()[&b].job), "it is told its place");
    desk.end(a);
    assert_eq!(desk.phase(b), Phase::Open);
}

/// The resident job may stay for ever.
#[test]
fn a_job_of_higher_priority_that_a_resident_job_keeps_out_holds_no_other_job_back() {
    let mut desk = Desk::new(|config| config.tier_bytes[0] = 0);
    let resident = desk.job(JobSpec { resident: true, ..spec("serves") });
    fill(&mut desk, resident, 1, 20);
    let large = desk.job(JobSpec { priority: 9, ..job_that_needs(120) });
    let small = desk.job(job_that_needs(10));
    assert_eq!([large, small].map(|job| is_in(&desk, job)), [false, true]);
}

/// Jobs that come later may pass one that has no place as long as earlier ones keep it out, and no longer.
#[test]
fn a_large_job_is_let_in_though_small_ones_come_without_end() {
    let mut desk = Desk::new(|config| config.tier_bytes[0] = 0);
    let first = desk.job(job_that_needs(60));
    let large = desk.job(job_that_needs(90));
    let mut small = std::collections::VecDeque::from([30, 10].map(|units| desk.job(job_that_needs(units))));
    assert!(!is_in(&desk, large) && small.iter().all(|session| is_in(&desk, *session)));
    desk.end(first);
    let late = desk.job(job_that_needs(1));
    let [late, next] = [late, large].map(|session| desk.scheduler.sessions()[&session].job);
    assert!(desk.scheduler.waits_of(late)[0].jobs.contains(&next), "it waits for the one before it");
    for _ in 0..10 {
        if is_in(&desk, large) {
            break;
        }
        small.push_back(desk.job(job_that_needs(10)));
        desk.end(small.pop_front().unwrap());
    }
    let last = *small.back().unwrap();
    assert!(is_in(&desk, large) && !is_in(&desk, last));
}

#[test]
fn a_job_of_higher_priority_is_let_in_first() {
    let mut desk = Desk::new(|config| config.tier_bytes[0] = 0);
    let running = desk.job(job_that_needs(60));
    let [low, high] = [0, 1].map(|priority| desk.job(JobSpec { priority, ..job_that_needs(70) }));
    let later = desk.job(job_that_needs(20));
    assert_eq!([low, high, later].map(|session| is_in(&desk, session)), [false; 3], "the high one is next");
    desk.end(running);
    assert_eq!([low, high, later].map(|session| is_in(&desk, session)), [false, true, true]);
}

#[test]
fn a_newcomer_has_no_credit_for_the_time_before_it() {
    let mut desk = Desk::new(|_| {});
    let (_, early) = desk.start(spec("announced long ago"));
    let (a, b) = rivals(&mut desk);
    for _ in 0..200 {
        desk.pass(ms(100));
    }
    desk.attach(early, GPU);
    fill(&mut desk, early, 5, 60);
    let before = [a, b].map(|s| desk.job_of(s).runtime);
    for _ in 0..60 {
        desk.pass(ms(50));
    }
    let got = |desk: &Desk, index: usize, s| desk.job_of(s).runtime - [before[0], before[1]][index];
    assert!(got(&desk, 0, a) > ms(500) && got(&desk, 1, b) > ms(500), "the others go on");
}

#[test]
fn new_jobs_that_come_all_the_time_do_not_keep_out_one_that_stays() {
    let mut desk = Desk::new(|_| {});
    let stays = job_with(&mut desk, "stays", 5, 60);
    let mut new: Vec<_> = (0..3).map(|_| job_with(&mut desk, "new", 5, 60)).collect();
    let began = desk.now;
    for _ in 0..400 {
        desk.pass(ms(10));
        for job in &mut new {
            if desk.job_of(*job).runtime >= ms(50) {
                desk.end(*job);
                // What the last one owed is not the next one's.
                desk.uid += 1;
                *job = job_with(&mut desk, "new", 5, 60);
            }
        }
    }
    let (got, all) = (desk.job_of(stays).runtime, desk.now - began);
    assert!(got >= all / 5, "{got:?} of {all:?}, of which a quarter is its share");
}

/// How far a job stands.
fn stands(desk: &Desk, session: SessionId) -> Duration {
    Duration::from_nanos(desk.job_of(session).virtual_runtime)
}

/// It has had as much time as if its work had not ended for long.
fn stand(desk: &mut Desk, session: SessionId, at: Duration) {
    let id = desk.scheduler.sessions()[&session].job;
    desk.scheduler.jobs.get_mut(&id).unwrap().virtual_runtime = at.as_nanos() as u64;
}

#[test]
fn what_a_job_owed_when_it_ended_the_next_of_its_user_owes_once() {
    let mut desk = Desk::new(|_| {});
    let stays = job_with(&mut desk, "stays", 5, 60);
    desk.pass(ms(500));
    let long = job_with(&mut desk, "long", 5, 60);
    let level = stands(&desk, stays);
    stand(&mut desk, long, level + ms(3_000));
    desk.end(long);
    desk.uid = 2;
    let of_another_user = job_with(&mut desk, "of another user", 5, 10);
    assert_eq!(stands(&desk, of_another_user), stands(&desk, stays));
    desk.uid = 1;
    let next = job_with(&mut desk, "next", 5, 60);
    assert_eq!(stands(&desk, next), level + ms(3_000));
    let other = job_with(&mut desk, "other", 5, 60);
    assert!(stands(&desk, other) <= stands(&desk, stays), "the debt is taken over");
    // When the others have had as much it is nothing.
    desk.end(next);
    for job in [stays, other] {
        stand(&mut desk, job, level + ms(3_001));
    }
    let last = job_with(&mut desk, "last", 5, 60);
    assert_eq!(stands(&desk, last), level + ms(3_001));
}

#[test]
fn staggered_slices_do_not_keep_out_who_needs_the_room_of_two() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 5, 30);
    desk.pass(ms(70));
    let b = job_with(&mut desk, "b", 5, 30);
    let big = job_with(&mut desk, "big", 5, 60);
    let began = desk.now;
    desk.until(|desk| desk.phase(big) == Phase::Open);
    assert!(desk.now - began <= ms(100) * 3, "{:?}", desk.now - began);
    desk.until(|desk| desk.phase(a) == Phase::Open && desk.phase(b) == Phase::Open);
}

#[test]
fn a_gang_over_two_gpus_is_not_kept_out_by_staggered_jobs_on_each() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 5, 60);
    desk.pass(ms(70));
    let (_, b) = desk.start(spec("b"));
    desk.attach(b, OTHER_GPU);
    fill(&mut desk, b, 5, 60);
    let (job, rank) = desk.start(spec("gang"));
    let other = desk.join(job);
    desk.attach(rank, GPU);
    desk.attach(other, OTHER_GPU);
    desk.until(|desk| desk.phase(rank) == Phase::Open);
    desk.lease(rank, T, 0, 60);
    desk.lease(other, T, 0, 60);
    for _ in 0..3 {
        let began = desk.now;
        desk.until(|desk| desk.phase(a) == Phase::Open && desk.phase(b) == Phase::Open);
        desk.until(|desk| desk.phase(rank) == Phase::Open);
        assert!(desk.now - began <= ms(100) * 6, "{:?}", desk.now - began);
    }
}

#[test]
fn offsets_do_not_keep_out_who_has_room_without_them() {
    let mut desk = Desk::new(|config| config.offset_units = 20);
    let (job, rank) = desk.start(spec("gang"));
    let other = desk.join(job);
    desk.attach(rank, GPU);
    desk.attach(other, GPU);
    desk.lease(rank, P, 0, 50);
    desk.lease(other, P, 0, 50);
    assert_eq!((desk.refusals(other), desk.units(other, P)), (0, 50));
}

#[test]
fn who_waits_for_a_lost_gpu_ends_and_who_runs_there_keeps_it() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.tell(Event::GpuLost { gpu: GPU });
    assert_eq!(desk.expelled, BTreeSet::from([b]));
    desk.pass(ms(5000));
    assert_eq!((desk.phase(a), desk.closings(a)), (Phase::Open, 0));
    let late = desk.job(spec("late"));
    let refused =
        |effect: &Effect| matches!(effect, Effect::Shim(to, ToShim::AttachRefused { .. }) if *to == late);
    assert!(desk.log.iter().any(refused));
    assert_eq!(desk.expelled, BTreeSet::from([b]));
}
