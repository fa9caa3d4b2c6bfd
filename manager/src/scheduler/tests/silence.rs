//! Who does not answer: a process that is stopped, or that lies.

use super::*;

/// Beyond this, an answer is late: deadline, drain limit and answer limit.
const LATE: Time = Time::from_millis(20 + 2 * 20 + 1000 + 50);

#[test]
fn a_stopped_jobs_closing_waits_for_it_while_others_go_on_beside_it() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = (job_with(&mut desk, "a", 5, 30), job_with(&mut desk, "b", 5, 30));
    let c = job_with(&mut desk, "c", 5, 30);
    desk.until(|desk| desk.phase(a) == Phase::Open && desk.units(c, T) == 30);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.pages.stopped.insert(a);
    desk.until(|desk| desk.phase(a) == Phase::Closing);
    desk.pass(LATE);
    assert!(desk.job_of(a).unsliceable() && desk.expelled.is_empty());
    let slices = |desk: &Desk| [b, c].map(|session| desk.job_of(session).stats.slices);
    let before = slices(&desk);
    desk.pass(ms(3000));
    let after = slices(&desk);
    assert!(after[0] > before[0] + 2 && after[1] > before[1] + 2, "{before:?} {after:?}");
    assert!(desk.units(a, T) == 30, "what it may still write to is its own");
    desk.go_on(a);
    assert!(!desk.job_of(a).unsliceable());
    desk.until(|desk| desk.phase(a) == Phase::Waiting);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!(desk.units(a, T), 30);
}

#[test]
fn a_stopped_job_of_higher_priority_gives_way_at_the_end_of_its_slice() {
    let mut desk = Desk::new(|config| config.expel_silent = true);
    let low = job_with(&mut desk, "low", 10, 60);
    let high = desk.job(JobSpec { priority: 1, ..spec("high") });
    fill(&mut desk, high, 10, 60);
    desk.until(|desk| desk.phase(low) == Phase::Waiting && desk.units(high, T) == 60);
    desk.pass(ms(3000));
    assert_eq!((desk.phase(high), desk.closings(high)), (Phase::Open, 0), "it goes first as long as it runs");
    desk.pages.stopped.insert(high);
    desk.until(|desk| desk.phase(high) == Phase::Closing);
    desk.go_on(high);
    desk.until(|desk| desk.phase(high) == Phase::Open);
    let closings = desk.closings(high);
    desk.pass(ms(3000));
    assert_eq!((desk.phase(high), desk.closings(high)), (Phase::Open, closings), "it goes first again");
    desk.pages.stopped.insert(high);
    desk.until(|desk| desk.phase(high) == Phase::Closing);
    desk.pass(LATE);
    assert!(desk.expelled.contains(&high));
    desk.end(high);
    desk.until(|desk| desk.phase(low) == Phase::Open);
}

#[test]
fn who_waits_is_told_behind_whom_that_does_not_answer() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.pages.stopped.insert(a);
    desk.until(|desk| desk.phase(a) == Phase::Closing);
    let (of_a, of_b) = [a, b].map(|session| desk.scheduler.sessions()[&session].job).into();
    let told = |desk: &Desk| {
        let is = |effect: &Effect| matches!(effect, Effect::Queue { job, place } if (*job, place.behind) == (of_b, Some(of_a)));
        desk.log.iter().any(is)
    };
    assert!(!told(&desk), "it may still answer in time");
    desk.pass(LATE);
    assert!(told(&desk));
    desk.go_on(a);
    desk.until(|desk| desk.phase(b) == Phase::Open);
}

#[test]
fn a_stopped_process_is_not_expelled_for_what_it_did_not_unmap_but_one_that_runs_is() {
    for stops in [true, false] {
        let mut desk = Desk::new(|_| {});
        let (a, b) = (job_with(&mut desk, "a", 5, 30), job_with(&mut desk, "b", 5, 65));
        desk.until(|desk| desk.phase(a) == Phase::Open);
        desk.deaf.insert(a);
        desk.until(|desk| desk.phase(a) == Phase::Closing);
        desk.hold = |effect| matches!(effect, Effect::Shim(_, ToShim::Unmap { .. }));
        desk.deaf.clear();
        desk.answer_closings(a);
        desk.pages.stopped.extend(stops.then_some(a));
        desk.pass(LATE);
        assert_eq!(desk.expelled.contains(&a), !stops);
        if stops {
            assert!(desk.job_of(a).unsliceable());
            desk.pages.stopped.clear();
            desk.finish_held();
            desk.until(|desk| desk.phase(b) == Phase::Open);
            desk.until(|desk| desk.phase(a) == Phase::Open);
        }
    }
}

#[test]
fn who_is_stopped_is_not_brought_back_until_it_goes_on() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.pages.stopped.insert(a);
    let (closings, slices) = (desk.closings(b), desk.job_of(a).stats.slices);
    desk.pass(ms(3000));
    assert_eq!((desk.phase(a), desk.phase(b)), (Phase::Waiting, Phase::Open));
    assert_eq!((desk.closings(b), desk.job_of(a).stats.slices), (closings, slices), "nobody is disturbed");
    desk.go_on(a);
    desk.until(|desk| desk.phase(a) == Phase::Open);
}

#[test]
fn nobody_waits_for_ever_for_what_a_stopped_process_does_not_give_back() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 5, 30);
    desk.pages.stopped.insert(a);
    let b = desk.job(spec("b"));
    // That it is stopped is seen before its answer is late.
    desk.pass(desk.scheduler.config().slice);
    fill(&mut desk, b, 5, 30);
    assert_eq!((desk.units(b, T), desk.phase(b)), (30, Phase::Open));
    assert!(!desk.job_of(a).unsliceable(), "it keeps nothing that anybody wants");
    desk.dead(a, T);
    desk.recalls.insert(a, desk.pieces(a, T));
    desk.go_on(a);
    assert_eq!(desk.units(a, T), 0, "a late answer counts too");
    assert_eq!(desk.scheduler.tenants()[&desk.tenant(a)].recall, Recall::Answered);
}

#[test]
fn a_job_that_does_not_map_is_silent_and_runs_when_it_has() {
    let mut desk = Desk::new(|_| {});
    let (a, b) = rivals(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.hold = |effect| matches!(effect, Effect::Shim(_, ToShim::Map { .. }));
    desk.until(|desk| desk.phase(a) == Phase::Restoring);
    desk.pass(LATE);
    assert!(desk.job_of(a).unsliceable() && desk.expelled.is_empty());
    desk.finish_held();
    assert_eq!((desk.phase(a), desk.job_of(a).unsliceable()), (Phase::Open, false));
}

#[test]
fn who_does_not_answer_is_expelled_where_that_is_the_policy() {
    let mut desk = Desk::new(|config| config.expel_silent = true);
    let (a, b) = rivals(&mut desk);
    desk.pages.stopped.insert(a);
    desk.until(|desk| desk.phase(a) == Phase::Closing);
    desk.pass(LATE);
    assert!(desk.expelled.contains(&a));
    desk.end(a);
    desk.until(|desk| desk.phase(b) == Phase::Open);
}

#[test]
fn beside_who_cannot_be_closed_others_give_way_to_each_other() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 5, 30);
    let (b, c) = (job_with(&mut desk, "b", 40, 5), job_with(&mut desk, "c", 40, 5));
    desk.until(|desk| desk.units(c, P) == 40);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.pages.stopped.insert(a);
    desk.pass(LATE);
    let slices = |desk: &Desk| [b, c].map(|session| desk.job_of(session).stats.slices);
    let before = slices(&desk);
    // 35 units stay, and 45 of one of them fit beside them.
    desk.pass(ms(5000));
    let after = slices(&desk);
    assert!(after[0] > before[0] + 2 && after[1] > before[1] + 2, "{before:?} {after:?}");
}
