//! Where the processes of one job stop, and which of them are not waited for.

use super::desk::{Desk, GPU, OTHER_GPU, ms};
use super::*;
use tidegate_ffi::wire::message::Peers;

/// A gang of two ranks that reported boundaries 7 and 6 and do not answer, a launcher of theirs, and a rival that
/// waits for their memory. The gang is closing.
fn closing_gang(change: impl FnOnce(&mut Config)) -> (Desk, [SessionId; 3], SessionId) {
    let mut desk = Desk::new(change);
    let (job, launcher) = desk.start(spec("gang"));
    let ranks = [GPU, OTHER_GPU].map(|gpu| {
        let rank = desk.join(job);
        desk.attach(rank, gpu);
        fill(&mut desk, rank, 5, 60);
        rank
    });
    desk.pages.boundaries.extend([(ranks[0], 7), (ranks[1], 6)]);
    desk.deaf.extend([launcher, ranks[0], ranks[1]]);
    desk.log.clear();
    let rival = job_with(&mut desk, "rival", 5, 60);
    desk.until(|desk| desk.closings(ranks[0]) > 0);
    (desk, [launcher, ranks[0], ranks[1]], rival)
}

#[test]
fn a_launcher_is_closed_after_the_ranks_and_never_waited_for_at_a_boundary() {
    let (mut desk, [launcher, rank, other], rival) = closing_gang(|_| {});
    let closes = [rank, other].map(|session| desk.closes(session));
    assert_eq!(closes, [[(8, 40)], [(8, 40)]], "the boundary after the last, two iterations away at most");
    assert_eq!(desk.closings(launcher), 0, "the ranks may need it on their way");
    desk.answer_closings(rank);
    assert_eq!(desk.closings(launcher), 0);
    desk.answer_closings(other);
    assert_eq!(desk.closes(launcher), [(0, 0)]);
    assert!(desk.unmapped(desk.tenant(rank)).is_empty(), "not before all have drained");
    desk.answer_closings(launcher);
    assert!(!desk.unmapped(desk.tenant(rank)).is_empty() && !desk.unmapped(desk.tenant(other)).is_empty());
    desk.deaf.clear();
    desk.until(|desk| desk.phase(rival) == Phase::Open);
    assert_eq!(desk.job_of(rank).stats.at_boundary, 1);
}

#[test]
fn a_launcher_goes_on_when_the_job_that_wanted_the_place_is_gone() {
    let (mut desk, [launcher, rank, other], rival) = closing_gang(|_| {});
    desk.end(rival);
    desk.answer_closings(rank);
    desk.answer_closings(other);
    assert_eq!((desk.closings(launcher), desk.phase(rank)), (0, Phase::Open));
}

#[test]
fn ranks_of_which_one_has_passed_the_boundary_stop_together_at_a_later_one() {
    let (mut desk, [launcher, rank, other], _) = closing_gang(|_| {});
    desk.pass_by(rank, 8);
    assert_eq!(desk.closings(rank), 1, "the other is on its way there");
    desk.answer_closings(other);
    let boundaries = |session| desk.closes(session).iter().map(|close| close.0).collect::<Vec<_>>();
    assert_eq!((boundaries(rank), boundaries(other)), (vec![8, 9], vec![8, 9]));
    assert!(desk.opened().contains(&other), "it stood at the boundary that is not the common one");
    assert!(desk.unmapped(desk.tenant(other)).is_empty());
    // Where messages take longer than iterations, the next one may be passed, too.
    for (passed, next) in [(9, 11), (12, 16)] {
        desk.pass_by(other, passed);
        desk.answer_closings(rank);
        assert_eq!(desk.closes(rank).last().map(|close| close.0), Some(next));
    }
    [rank, other, launcher].into_iter().for_each(|session| desk.answer_closings(session));
    assert!(!desk.unmapped(desk.tenant(other)).is_empty());
}

#[test]
fn a_rank_that_has_passed_the_boundary_goes_on_when_the_job_that_wanted_the_place_is_gone() {
    let (mut desk, [_, rank, other], rival) = closing_gang(|_| {});
    desk.end(rival);
    desk.pass_by(rank, 8);
    desk.answer_closings(other);
    assert_eq!((desk.closings(rank), desk.phase(rank)), (1, Phase::Open));
}

#[test]
fn a_rank_that_passes_one_boundary_after_the_other_is_stopped_at_the_deadline() {
    let (mut desk, [_, rank, other], _) = closing_gang(|_| {});
    for boundary in 8..12 {
        desk.pass(ms(15));
        desk.pass_by(rank, boundary);
        desk.answer_closings(other);
    }
    assert_eq!(desk.closes(rank).last(), Some(&(0, 0)), "its time is over: {:?}", desk.closes(rank));
    desk.pass_by(rank, 99);
    assert!(desk.expelled.contains(&rank), "it was not asked to stop at a boundary any more");
}

#[test]
fn a_gang_that_cannot_be_drained_apart_is_tried_again() {
    let (mut desk, [launcher, rank, other], rival) = closing_gang(|_| {});
    // One hangs in a collective for which the other, stopped in mid-iteration, has not submitted its part.
    desk.undrainable.insert(rank);
    desk.late.insert(other);
    desk.deaf.clear();
    [rank, other].into_iter().for_each(|session| desk.answer_closings(session));
    desk.until(|desk| desk.closings(rank) >= 2 * DRAINS_BEFORE_UNSLICEABLE as usize);
    assert_eq!((desk.phase(rank), desk.closings(launcher)), (Phase::Open, 0));
    desk.undrainable.clear();
    desk.late.clear();
    desk.until(|desk| desk.phase(rival) == Phase::Open);
}

#[test]
fn a_gang_whose_work_does_not_end_at_its_boundary_is_left_alone_as_others_are() {
    let (mut desk, [_, rank, other], _) = closing_gang(|_| {});
    desk.undrainable.insert(rank);
    desk.deaf.clear();
    [rank, other].into_iter().for_each(|session| desk.answer_closings(session));
    desk.until(|desk| desk.job_of(rank).failed_drains == DRAINS_BEFORE_UNSLICEABLE);
    let closings = desk.closings(rank);
    desk.pass(desk.scheduler.config().drain_limit * 2);
    assert_eq!(desk.closings(rank), closings, "it is closed seldom");
}

/// Two ranks that have told no boundary, with what else is known of them, beside a rival. Whether they come to none in time.
fn gang_without_boundaries(late: bool, tell: impl Fn(&mut Desk, [SessionId; 2])) -> (Desk, [SessionId; 2]) {
    let mut desk = Desk::new(|_| {});
    let (job, rank) = desk.start(spec("gang"));
    let ranks = [rank, desk.join(job)];
    for (rank, gpu) in ranks.into_iter().zip([GPU, OTHER_GPU]) {
        desk.attach(rank, gpu);
        fill(&mut desk, rank, 5, 60);
        if late {
            desk.late.insert(rank);
        }
    }
    tell(&mut desk, ranks);
    job_with(&mut desk, "rival", 5, 60);
    (desk, ranks)
}

fn learning_gang(late: bool) -> (Desk, SessionId) {
    let (desk, [rank, _]) =
        gang_without_boundaries(late, |desk, ranks| desk.pages.learning.extend(ranks.map(|rank| (rank, 4))));
    (desk, rank)
}

#[test]
fn ranks_that_learn_their_boundaries_stop_at_the_first_that_all_know() {
    let (mut desk, rank) = learning_gang(false);
    desk.until(|desk| desk.closings(rank) >= 3);
    assert!(desk.closes(rank).iter().all(|close| *close == (5, 40)), "{:?}", desk.closes(rank));
}

#[test]
fn ranks_that_never_learn_any_are_waited_for_once() {
    let (mut desk, rank) = learning_gang(true);
    desk.until(|desk| desk.closings(rank) >= 3);
    assert_eq!(desk.closes(rank)[..3], [(5, 40), (0, 0), (0, 0)]);
}

fn launching_gang(late: bool) -> (Desk, [SessionId; 2]) {
    gang_without_boundaries(late, |desk, [first, second]| {
        desk.pages.collectives.extend([(first, 300), (second, 7)])
    })
}

#[test]
fn ranks_without_boundaries_stop_before_one_collective() {
    let (mut desk, ranks) = launching_gang(false);
    desk.until(|desk| desk.closings(ranks[0]) >= 3);
    for rank in ranks {
        assert!(desk.closes(rank).iter().all(|close| *close == (301, 40)), "{:?}", desk.closes(rank));
    }
    let is_said = |effect: &Effect| match effect {
        Effect::Shim(_, ToShim::Close { boundary, at_collective, .. }) => *at_collective == (*boundary > 0),
        _ => true,
    };
    assert!(desk.log.iter().all(is_said));
}

#[test]
fn ranks_that_come_to_no_collective_in_common_are_not_waited_for_each_time() {
    let (mut desk, [rank, _]) = launching_gang(true);
    desk.until(|desk| desk.closings(rank) >= 12);
    let closes = desk.closes(rank);
    let waited: Vec<bool> = closes.iter().map(|(boundary, _)| *boundary > 0).collect();
    assert!(waited[..2].iter().all(|waited| *waited) && waited.iter().filter(|waited| **waited).count() < 5);
}

#[test]
fn a_rank_that_has_launched_more_collectives_meanwhile_is_given_more_time() {
    let (mut desk, ranks) = launching_gang(false);
    desk.deaf.extend(ranks);
    desk.until(|desk| desk.closings(ranks[0]) == 1);
    desk.pass_by(ranks[0], 330);
    desk.answer_closings(ranks[1]);
    desk.until(|desk| desk.closings(ranks[0]) == 2);
    assert_eq!(desk.closes(ranks[0])[1].0, 346);
}

/// A job of two processes without boundaries that closes: the second has drained, the first does not answer. And a
/// rival that waits for their memory.
fn stalled_gang() -> (Desk, [SessionId; 2], SessionId) {
    stalled_gang_with(|_| {})
}

fn stalled_gang_with(configure: impl FnOnce(&mut Config)) -> (Desk, [SessionId; 2], SessionId) {
    let mut desk = Desk::new(configure);
    let first = job_with(&mut desk, "gang", 5, 60);
    let rival = job_with(&mut desk, "rival", 5, 60);
    let second = desk.join(desk.scheduler.sessions()[&first].job);
    desk.attach(second, GPU);
    desk.deaf.insert(first);
    desk.until(|desk| desk.closings(second) == 1);
    desk.log.clear();
    (desk, [first, second], rival)
}

/// The process's work does not end.
fn stall(desk: &mut Desk, session: SessionId) -> Event {
    let step = desk.scheduler.sessions()[&session].closing.expect("it has not answered");
    let stalled = Event::Stalled { session, step, is_overdue: false };
    desk.tell(stalled.clone());
    stalled
}

/// The same again and again: what others submit a little of is not enough.
fn go_on_for(desk: &mut Desk, session: SessionId) {
    stall(desk, session);
    desk.pass(ms(1));
    stall(desk, session);
}

#[test]
fn a_process_that_has_drained_submits_a_little_for_another_of_its_job_and_then_goes_on() {
    let (mut desk, [first, second], rival) = stalled_gang();
    desk.tell(Event::Stalled { session: first, step: Step(u64::MAX), is_overdue: true });
    assert_eq!(desk.closings(second), 0, "it was not asked to close in that step");
    let stalled = stall(&mut desk, first);
    stall(&mut desk, first);
    assert_eq!((desk.closings(second), desk.opened().len()), (2, 0), "a little, each time");
    desk.pass(ms(1));
    stall(&mut desk, first);
    stall(&mut desk, first);
    assert_eq!((desk.closings(second), desk.opened()), (2, vec![second]), "it goes on");
    assert_eq!(
        (desk.phase(first), desk.units(first, T)),
        (Phase::Closing, 60),
        "nothing is taken before all have drained"
    );
    desk.deaf.clear();
    desk.answer_closings(first);
    assert_eq!(desk.closings(second), 3, "it is stopped again when the other has drained");
    desk.until(|desk| desk.phase(rival) == Phase::Open);
    desk.tell(stalled);
    assert_eq!((desk.closings(second), desk.expelled.len()), (3, 0), "it comes late");
}

/// Those that go without need would come to wait for the others; but where much is awaited all have to go.
#[test]
fn half_of_the_time_one_process_goes_at_a_time_for_another_of_its_job_and_half_of_it_all() {
    let mut desk = Desk::new(|config| config.drain_limit = ms(6400));
    let first = job_with(&mut desk, "gang", 5, 60);
    job_with(&mut desk, "rival", 5, 60);
    let others = [(); 2].map(|()| desk.join(desk.scheduler.sessions()[&first].job));
    others.iter().for_each(|other| desk.attach(*other, GPU));
    desk.deaf.insert(first);
    desk.until(|desk| others.iter().all(|other| desk.closings(*other) == 1));
    desk.log.clear();
    let mut went_after = |pause| {
        desk.pass(pause);
        stall(&mut desk, first);
        let went = others.map(|other| desk.closings(other)).iter().sum::<usize>();
        desk.log.clear();
        went
    };
    let none = Duration::ZERO;
    assert_eq!([none, ms(20), none, ms(2)].map(&mut went_after), [1, 1, 0, 1], "each has time to end");
    assert_eq!([ms(4), none].map(&mut went_after), [2, 2]);
    assert_eq!([ms(8), ms(1), ms(2)].map(&mut went_after), [1, 0, 1]);
}

/// Else each closing would wait in vain for work that the others hold back.
#[test]
fn that_processes_wait_for_each_other_is_known_in_the_next_closings() {
    let (mut desk, [first, second], rival) = stalled_gang();
    stall(&mut desk, first);
    assert_eq!(desk.peers(second), Some(Peers::Apart), "it may only take long");
    let step = desk.scheduler.sessions()[&first].closing.expect("it has not answered");
    desk.tell(Event::Stalled { session: first, step, is_overdue: true });
    desk.tell(Event::Stalled { session: first, step, is_overdue: true });
    assert_eq!(desk.peers(second), Some(Peers::Entangled), "in the same closing");
    desk.deaf.clear();
    desk.answer_closings(first);
    for known in [true, true, true, true, true, true, true, false] {
        desk.until(|desk| desk.phase(rival) == Phase::Open);
        desk.until(|desk| desk.phase(first) == Phase::Open);
        desk.log.clear();
        desk.until(|desk| desk.closings(first) == 1);
        let expected = if known { Peers::Entangled } else { Peers::Apart };
        assert_eq!(desk.peers(first), Some(expected));
    }
}

#[test]
fn work_that_is_overdue_gets_as_long_as_other_work_from_then_on() {
    let (mut desk, [first, second], _) = stalled_gang_with(|config| config.drain_limit = ms(800));
    desk.pass(ms(190));
    let step = desk.scheduler.sessions()[&first].closing.expect("it has not answered");
    desk.tell(Event::Stalled { session: first, step, is_overdue: true });
    desk.pass(ms(190));
    desk.log.clear();
    stall(&mut desk, first);
    assert_eq!(desk.closings(second) + desk.opened().len(), 1, "it is helped still");
}

/// It was known to take as long: else what is no longer than usual gets no time to be helped at all.
#[test]
fn work_that_is_said_late_not_to_end_gets_as_long_from_then_on() {
    let (mut desk, [first, second], _) = stalled_gang_with(|config| config.drain_limit = ms(800));
    desk.pass(ms(190));
    stall(&mut desk, first);
    assert_eq!((desk.closings(second), desk.opened().len()), (1, 0), "a little, at first");
    desk.pass(ms(190));
    desk.log.clear();
    stall(&mut desk, first);
    assert_eq!(desk.opened(), [second], "it is helped still");
}

/// Else the job stands still until a whole drain limit is over, and nothing helps it any more.
#[test]
fn a_process_that_submits_a_little_for_another_has_no_longer_than_that_one() {
    let (mut desk, [first, second], _) = stalled_gang_with(|config| config.drain_limit = ms(800));
    desk.pass(ms(10));
    stall(&mut desk, first);
    let limit = desk.drain_ms(second).unwrap();
    assert!((1..=200).contains(&limit), "a quarter of the drain limit, less what is over: {limit}");
}

#[test]
fn a_process_that_goes_on_for_another_gets_memory() {
    let (mut desk, [first, second], _) = stalled_gang();
    go_on_for(&mut desk, first);
    assert_eq!(desk.opened(), [second]);
    let lease = desk.lease(second, T, 0, 5);
    assert_eq!(desk.answers(second, lease), 1, "the other may wait for what it does with it");
}

/// Else a thread that waits for memory, and the work of others that waits for it, would last as long as closings may.
#[test]
fn a_process_gets_memory_for_the_work_of_others_of_its_job_while_it_closes() {
    let mut desk = Desk::new(|_| {});
    let first = job_with(&mut desk, "gang", 5, 40);
    let second = desk.join(desk.scheduler.sessions()[&first].job);
    desk.attach(second, GPU);
    let rival = job_with(&mut desk, "rival", 5, 40);
    let grown = desk.lease(first, T, 40, 30);
    desk.until(|desk| desk.answers(first, grown) == 1);
    desk.deaf.insert(first);
    desk.until(|desk| desk.closings(second) == 1);
    let lease = desk.lease(first, T, 70, 25);
    desk.pass(ms(1));
    assert_eq!(desk.answers(first, lease), 0, "it is on its way out");
    stall(&mut desk, first);
    desk.until(|desk| desk.answers(first, lease) == 1);
    assert_eq!((desk.phase(first), desk.refusals(first)), (Phase::Closing, 0));
    desk.deaf.clear();
    desk.answer_closings(first);
    desk.until(|desk| desk.phase(rival) == Phase::Open);
}

#[test]
fn a_process_that_goes_on_for_another_holds_memory() {
    let hold = |desk: &mut Desk, session: SessionId| {
        let (tenant, held) = (desk.tenant(session), desk.pieces(session, T)[..1].to_vec());
        desk.tell(Event::Hold { session, step: Step(8000), tenant, pieces: vec![held[0].piece] });
        held[0].piece
    };
    let (mut desk, [first, second], rival) = stalled_gang();
    go_on_for(&mut desk, first);
    assert_eq!(desk.opened(), [second]);
    desk.lease(second, T, 0, 5);
    let held = hold(&mut desk, second);
    assert!(desk.expelled.is_empty());
    desk.deaf.clear();
    desk.answer_closings(first);
    desk.until(|desk| desk.phase(rival) == Phase::Open);
    assert!(desk.pieces(second, T).iter().any(|placed| placed.piece == held), "it stays where it is");
    // A rank that has passed the common boundary goes on, too.
    let (mut desk, [_, passed, _], _) = closing_gang(|_| {});
    desk.pass_by(passed, 8);
    hold(&mut desk, passed);
    assert!(desk.expelled.is_empty());
}

#[test]
fn where_one_does_not_drain_the_others_are_opened_at_once() {
    let (mut desk, [first, second], _) = stalled_gang();
    desk.deaf.insert(second);
    stall(&mut desk, first);
    // The second has a round, and does not answer; a third has drained.
    let third = desk.join(desk.scheduler.sessions()[&first].job);
    desk.undrainable.insert(first);
    desk.answer_closings(first);
    assert_eq!(desk.phase(first), Phase::Closing, "the second has not answered");
    assert!(desk.opened().contains(&third));
    for _ in 0..20 {
        desk.deaf.clear();
        desk.answer_closings(second);
    }
    assert_eq!(desk.phase(first), Phase::Open);
}

#[test]
fn a_process_that_went_on_may_wait_for_the_other_in_turn() {
    let (mut desk, [first, second], rival) = stalled_gang();
    desk.deaf.insert(second);
    for (waits, waited_for) in [(first, second), (second, first), (first, second)] {
        // Who went on is a little ahead, and needs a little: it is not overtaken at once.
        for calls in [1, 1, 2, 2, 3] {
            stall(&mut desk, waits);
            assert_eq!(desk.calls(waited_for), Some(calls));
            desk.answer_closings(waited_for);
        }
        desk.pass(ms(1));
        stall(&mut desk, waits);
        assert_eq!(desk.opened().last(), Some(&waited_for));
        desk.answer_closings(waits);
    }
    assert!(desk.unmapped(desk.tenant(first)).is_empty());
    desk.answer_closings(second);
    assert!(!desk.unmapped(desk.tenant(first)).is_empty());
    desk.deaf.clear();
    desk.until(|desk| desk.phase(rival) == Phase::Open);
}

#[test]
fn processes_that_wait_for_each_other_without_end_are_all_opened_and_tried_again() {
    let (mut desk, [first, second], rival) = stalled_gang();
    desk.deaf.insert(second);
    // Each drains for a moment, and then it is the other that waits.
    let turns = [[first, second], [second, first]].into_iter().cycle();
    for [waits, answers] in turns.take(20) {
        desk.answer_closings(answers);
        stall(&mut desk, waits);
        desk.pass(ms(1));
    }
    let waits = |session: &SessionId| desk.scheduler.sessions()[session].closing.is_some();
    let waits = [first, second].into_iter().find(waits).expect("one of them has not drained");
    desk.log.clear();
    stall(&mut desk, waits);
    assert!(desk.opened().is_empty(), "it has taken as long as work may take");
    desk.undrainable.insert(waits);
    desk.answer_closings(waits);
    assert_eq!((desk.phase(first), desk.job_of(first).unsliceable()), (Phase::Open, false));
    desk.undrainable.clear();
    desk.deaf.clear();
    desk.until(|desk| desk.phase(rival) == Phase::Open);
}

#[test]
fn at_the_common_boundary_a_rank_submits_a_little_for_one_whose_work_does_not_end() {
    let (mut desk, [_, rank, other], _) = closing_gang(|_| {});
    desk.answer_closings(rank);
    desk.log.clear();
    stall(&mut desk, other);
    assert_eq!((desk.opened().len(), desk.closings(rank)), (0, 1), "it stays at its boundary");
}

/// What its work waits for may come after the boundary, as a receive that was posted ahead.
#[test]
fn a_rank_leaves_the_common_boundary_when_work_has_not_ended_for_an_eighth_of_the_limit() {
    let (mut desk, [_, rank, other], rival) = closing_gang(|_| {});
    desk.answer_closings(rank);
    let since = desk.job_of(rank).closing.until;
    let leaves = since.saturating_add(desk.scheduler.config.drain_limit / 8);
    desk.pass(leaves - desk.now - ms(1));
    desk.log.clear();
    stall(&mut desk, other);
    assert_eq!((desk.opened().len(), desk.closings(rank)), (0, 1), "not yet");
    desk.answer_closings(rank);
    desk.pass(ms(1));
    stall(&mut desk, other);
    assert_eq!(desk.opened(), [rank]);
    desk.deaf.clear();
    desk.answer_closings(other);
    assert_eq!(desk.closings(rank), 2, "it is stopped again when the other has drained");
    desk.until(|desk| desk.phase(rival) == Phase::Open);
}

/// The gang, of which one rank has come to such a boundary, and the other does not drain.
fn gang_ahead(boundary: u64) -> (Desk, [SessionId; 2], SessionId) {
    let (mut desk, [launcher, rank, other], rival) = closing_gang(|_| {});
    desk.deaf.clear();
    desk.pages.boundaries.insert(rank, boundary);
    desk.undrainable.insert(other);
    [rank, other, launcher].into_iter().for_each(|session| desk.answer_closings(session));
    (desk, [rank, other], rival)
}

#[test]
fn ranks_that_are_not_in_step_and_cannot_be_drained_are_tried_again_too() {
    // One has worked alone for some iterations, the other waits in a collective meanwhile.
    let (mut desk, [rank, _], rival) = gang_ahead(700);
    let failed = |desk: &Desk| desk.job_of(rank).stats.failed_drains;
    desk.until(|desk| failed(desk) > 2 * u64::from(DRAINS_BEFORE_UNSLICEABLE));
    assert!(!desk.job_of(rank).unsliceable());
    assert_eq!(told_behind(&desk, rival), Some(desk.scheduler.sessions()[&rank].job));
    desk.undrainable.clear();
    desk.until(|desk| desk.phase(rival) == Phase::Open);
}

#[test]
fn stages_far_apart_of_which_one_does_not_come_to_the_common_boundary_are_tried_again_and_then_apart() {
    let (mut desk, [rank, other], rival) = gang_ahead(40);
    let boundaries =
        |desk: &Desk| desk.closes(other).iter().map(|(boundary, _)| *boundary).collect::<BTreeSet<u64>>();
    desk.log.clear();
    desk.until(|desk| boundaries(desk).contains(&41));
    desk.until(|desk| boundaries(desk).contains(&0));
    assert!(!desk.job_of(rank).unsliceable());
    desk.undrainable.clear();
    desk.until(|desk| desk.phase(rival) == Phase::Open);
}
