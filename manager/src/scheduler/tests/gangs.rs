//! Where the processes of one job stop, and which of them are not waited for.

use super::desk::{Desk, GPU, OTHER_GPU, ms};
use super::*;

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
    desk.boundaries.extend([(ranks[0], 7), (ranks[1], 6)]);
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
    desk.pass(ms(60_000));
    assert_eq!(desk.closings(rank), closings);
}

/// Two ranks that have told no boundary, of which both are learning, beside a rival.
fn learning_gang(late: bool) -> (Desk, SessionId) {
    let mut desk = Desk::new(|_| {});
    let (job, rank) = desk.start(spec("gang"));
    let other = desk.join(job);
    for (rank, gpu) in [(rank, GPU), (other, OTHER_GPU)] {
        desk.attach(rank, gpu);
        fill(&mut desk, rank, 5, 60);
        desk.learning.insert(rank, 4);
        if late {
            desk.late.insert(rank);
        }
    }
    job_with(&mut desk, "rival", 5, 60);
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
