//! Quotas, of a job's processes and of a user's jobs.

use super::*;
use tidegate_ffi::wire::message::Need;

#[test]
fn a_quota_refuses_what_is_over_it() {
    let mut desk = Desk::new(|_| {});
    let a = desk.job(JobSpec { memory: Some(20 * UNIT), ..spec("a") });
    desk.lease(a, P, 0, 15);
    desk.lease(a, T, 0, 6);
    assert_eq!(desk.refusals(a), 1);
    desk.lease(a, T, 0, 5);
    assert_eq!(desk.refusals(a), 1);
}

#[test]
fn what_a_job_has_freed_does_not_count_towards_its_quota() {
    let mut desk = Desk::new(|_| {});
    let a = desk.job(JobSpec { memory: Some(20 * UNIT), ..spec("a") });
    // Each time that it asks for too much it is asked what of it is in use.
    for first in [0, 20, 40] {
        let unused = desk.pieces(a, T);
        desk.recalls.insert(a, unused);
        desk.lease(a, T, first, 15);
        assert_eq!((desk.refusals(a), desk.units(a, T)), (0, 15));
    }
    desk.lease(a, T, 60, 6);
    assert_eq!((desk.refusals(a), desk.units(a, T)), (1, 15), "it uses all of it");
}

/// Users 1 and 2 may have so many units each; user 3 may have more.
fn limited(units: u64) -> Desk {
    Desk::new(|config| {
        config.user_quotas = UserQuotas { others: Some(units * UNIT), named: [(3, 90 * UNIT)].into() };
    })
}

#[test]
fn all_jobs_of_a_user_together_get_what_the_user_may_have() {
    let mut desk = limited(40);
    let (a, b) = (job_with(&mut desk, "a", 10, 15), desk.job(spec("b")));
    desk.lease(b, T, 0, 16);
    assert_eq!((desk.refusals(b), desk.units(b, T)), (1, 0), "25 and 16 are more than 40");
    desk.lease(b, T, 0, 15);
    assert_eq!((desk.refusals(b), desk.units(b, T)), (1, 15));
    desk.lease(a, T, 15, 1);
    assert_eq!(desk.refusals(a), 1);
    // What one job gives back another may have.
    desk.end(b);
    desk.lease(a, T, 15, 15);
    assert_eq!((desk.refusals(a), desk.units(a, T)), (1, 30));
}

#[test]
fn what_an_expelled_process_keeps_is_of_its_users_quota() {
    let mut desk = limited(40);
    let a = job_with(&mut desk, "a", 10, 30);
    desk.tell(Event::SessionBroke { session: a, reason: "it spoke nonsense".into() });
    let again = desk.job(spec("again"));
    let lease = desk.lease(again, T, 0, 1);
    assert_eq!((desk.answers(again, lease), desk.refusals(again)), (0, 0), "it may end soon");
    desk.pass(ms(2000));
    assert_eq!(desk.refusals(again), 1, "the user has 40 units still");
    desk.uid = 2;
    let other = desk.job(spec("other"));
    desk.lease(other, T, 0, 40);
    assert_eq!((desk.refusals(other), desk.units(other, T)), (0, 40));
    desk.uid = 1;
    desk.end(a);
    desk.lease(again, T, 0, 40);
    assert_eq!((desk.refusals(again), desk.units(again, T)), (1, 40));
}

#[test]
fn a_users_saved_memory_counts_and_others_do_not() {
    let mut desk = limited(70);
    let a = job_with(&mut desk, "a", 10, 60);
    desk.uid = 2;
    let b = job_with(&mut desk, "b", 10, 60);
    desk.until(|desk| desk.phase(a) == Phase::Waiting && desk.phase(b) == Phase::Open);
    assert_eq!((desk.refusals(a), desk.refusals(b)), (0, 0));
    desk.uid = 1;
    let small = desk.job(spec("small"));
    desk.lease(small, T, 0, 1);
    desk.until(|desk| desk.phase(small) == Phase::Open);
    assert_eq!(desk.refusals(small), 1, "its user's other job has all, most of it in a tier");
}

#[test]
fn who_is_named_has_a_quota_of_their_own() {
    let mut desk = limited(40);
    desk.uid = 3;
    let a = desk.job(spec("a"));
    desk.lease(a, T, 0, 90);
    assert_eq!((desk.refusals(a), desk.units(a, T)), (0, 90));
    desk.lease(a, T, 90, 1);
    assert_eq!(desk.refusals(a), 1);
}

#[test]
fn what_a_users_job_has_freed_another_gets() {
    let mut desk = limited(40);
    let (a, b) = (job_with(&mut desk, "a", 0, 30), job_with(&mut desk, "b", 0, 5));
    desk.lease(b, T, 5, 10);
    assert_eq!((desk.refusals(b), desk.units(b, T)), (1, 5), "a uses all that it has");
    // It has what it frees until it is asked, again.
    let unused = desk.pieces(a, T)[4..].to_vec();
    desk.recalls.insert(a, unused);
    desk.lease(b, T, 5, 10);
    assert_eq!((desk.refusals(b), desk.units(b, T)), (1, 15));
}

/// Users may have so many units saved; user 3 may have more.
fn saving(units: u64) -> Desk {
    Desk::new(|config| {
        config.saved_quotas = UserQuotas { others: Some(units * UNIT), named: [(3, 90 * UNIT)].into() };
    })
}

/// A user's job that needs so many units wants to come to a GPU.
fn come(desk: &mut Desk, uid: u32, gpu: GpuUuid, units: u64) -> (JobId, SessionId) {
    desk.uid = uid;
    let need = Some(Need { persistent: UNIT, temporary: (units - 1) * UNIT });
    let (job, session) = desk.start(JobSpec { need, ..spec("a") });
    desk.attach(session, gpu);
    (job, session)
}

/// What was said last of where a job stands: its place, and for whose quota it waits.
fn told(desk: &Desk, of: JobId) -> (u32, Option<SavedQuota>) {
    let told = desk.log.iter().rev().find_map(|effect| match effect {
        Effect::Queue { job, place } if *job == of => Some((place.place, place.quota)),
        _ => None,
    });
    told.expect("it was told nothing")
}

#[test]
fn who_is_over_its_users_quota_waits_and_is_told_why() {
    let mut desk = saving(50);
    let (_, first) = come(&mut desk, 1, GPU, 30);
    let (job, late) = come(&mut desk, 1, GPU, 21);
    let (_, small) = come(&mut desk, 1, GPU, 20);
    assert_eq!([first, late, small].map(|job| is_in(&desk, job)), [true, false, true]);
    assert_eq!(told(&desk, job), (1, Some(SavedQuota { uid: 1, bytes: 50 * UNIT })));
    let (_, others) = come(&mut desk, 3, GPU, 60);
    assert!(is_in(&desk, others), "that is another user's affair");
    desk.end(small);
    assert!(!is_in(&desk, late));
    desk.end(first);
    assert_eq!((is_in(&desk, late), told(&desk, job)), (true, (0, None)));
}

#[test]
fn a_quota_of_saved_bytes_is_for_all_gpus_and_not_for_who_is_alone() {
    let mut desk = saving(50);
    let alone = [GPU, OTHER_GPU].map(|gpu| come(&mut desk, 1, gpu, 60).1);
    assert!(alone.iter().all(|job| is_in(&desk, *job)), "nothing of them is ever saved");
    alone.into_iter().for_each(|job| desk.end(job));
    let [a, b] = [10, 15].map(|units| come(&mut desk, 1, GPU, units).1);
    let [c, d] = [15, 15].map(|units| come(&mut desk, 1, OTHER_GPU, units).1);
    assert_eq!(
        [a, b, c, d].map(|job| is_in(&desk, job)),
        [true, true, true, false],
        "25 and 30 are more than 50"
    );
    desk.end(a);
    assert!(is_in(&desk, d), "one is alone on its GPU now");
}

#[test]
fn who_could_not_be_saved_for_its_quota_is_not_joined() {
    let mut desk = saving(50);
    let (_, large) = come(&mut desk, 1, GPU, 60);
    let (job, late) = come(&mut desk, 3, GPU, 10);
    assert_eq!(told(&desk, job), (1, Some(SavedQuota { uid: 1, bytes: 50 * UNIT })));
    desk.end(large);
    assert!(is_in(&desk, late));
}

/// Each of these jobs gets its turn so many times more.
fn take_turns(desk: &mut Desk, jobs: [SessionId; 2]) {
    for _ in 0..3 {
        let before = jobs.map(|job| desk.job_of(job).stats.slices);
        desk.until(|desk| {
            jobs.iter().zip(before).all(|(job, slices)| desk.job_of(*job).stats.slices > slices)
        });
    }
}

#[test]
fn jobs_take_turns_that_can_be_saved_within_the_quota_only_in_part() {
    let mut desk = saving(70);
    let (a, b) = rivals(&mut desk);
    // Each has 60 to be saved.
    take_turns(&mut desk, [a, b]);
    assert_eq!([a, b].map(|job| (desk.refusals(job), desk.job_of(job).failed_saves)), [(0, 0); 2]);
}

#[test]
fn a_job_that_grows_until_it_could_not_be_saved_within_the_quota_is_refused_the_rest() {
    let mut desk = saving(70);
    let (a, b) = (job_with(&mut desk, "a", 10, 50), desk.job(spec("b")));
    let mut refused = 0;
    for nth in 0..20 {
        let lease = desk.lease(b, T, 5 * nth, 5);
        desk.live(b, T, u64::from(5 * nth) * UNIT, 5 * UNIT, Life::Short);
        desk.until(|desk| desk.units(b, T) == 5 * (nth + 1) || desk.was_refused(b, lease));
        refused += usize::from(desk.was_refused(b, lease));
    }
    // 60 and 100 are together less than the GPU and the quota, and one piece less has to be free.
    assert_eq!((refused, desk.units(b, T)), (0, 100));
    take_turns(&mut desk, [a, b]);
    let lease = desk.lease(a, T, 50, 10);
    desk.until(|desk| desk.was_refused(a, lease));
    take_turns(&mut desk, [a, b]);
}

#[test]
fn what_exceeds_the_quota_beside_another_job_is_had_when_that_has_ended() {
    let mut desk = saving(4);
    let (a, b) = (desk.job(spec("a")), desk.job(spec("b")));
    fill(&mut desk, a, 10, 60);
    desk.lease(b, P, 0, 10);
    desk.lease(b, T, 0, 60);
    assert_eq!((desk.refusals(b), desk.units(b, P), desk.units(b, T)), (1, 10, 0));
    desk.lease(a, T, 60, 20);
    assert_eq!((desk.refusals(a), desk.units(a, T)), (0, 80), "so much is free");
    desk.lease(a, T, 80, 5);
    assert_eq!((desk.refusals(a), desk.units(a, T)), (1, 80));
    assert_eq!(desk.units(b, P), 10, "no bytes are dropped");
    desk.end(b);
    desk.lease(a, T, 80, 5);
    assert_eq!((desk.refusals(a), desk.units(a, T)), (1, 85));
}

#[test]
fn jobs_take_turns_though_what_has_to_leave_has_room_only_when_a_part_of_the_other_is_back() {
    let mut desk = saving(54);
    let (a, b) = (desk.job(spec("a")), desk.job(spec("b")));
    fill(&mut desk, a, 1, 30);
    fill(&mut desk, b, 70, 22);
    take_turns(&mut desk, [a, b]);
    assert_eq!([a, b].map(|job| desk.refusals(job)), [0, 0]);
}

/// A job of user 1 that has 80 units of the other GPU, alone, and was told that 40 more are too much.
fn too_large(desk: &mut Desk) -> SessionId {
    let (_, session) = come(desk, 1, OTHER_GPU, 80);
    desk.lease(session, T, 0, 80);
    desk.lease(session, T, 80, 40);
    assert_eq!((desk.refusals(session), desk.units(session, T)), (1, 80));
    session
}

#[test]
fn what_is_on_its_way_to_a_tier_is_no_room_for_host_memory() {
    let mut desk = saving(130);
    let large = too_large(&mut desk);
    let a = job_with(&mut desk, "a", 10, 60);
    desk.hold = |effect| matches!(effect, Effect::Shim(_, ToShim::Unmap { .. }));
    let b = job_with(&mut desk, "b", 10, 60);
    desk.until(|desk| desk.scheduler.quota_room(desk.scheduler.sessions()[&a].job) < 80 * UNIT);
    assert_eq!(desk.scheduler.saved_of_user(1), 0, "nothing of it is there yet");
    desk.lease(large, T, 80, 80);
    assert_eq!((desk.refusals(large), desk.units(large, T)), (2, 80));
    desk.finish_held();
    desk.hold = |_| false;
    desk.until(|desk| desk.scheduler.saved_of_user(1) > 0);
    assert_eq!(desk.job_of(a).failed_saves, 0);
    take_turns(&mut desk, [a, b]);
}

#[test]
fn host_memory_leaves_of_the_quota_what_jobs_need_to_take_turns() {
    let mut desk = saving(90);
    let large = too_large(&mut desk);
    let (a, b) = rivals(&mut desk);
    desk.until(|desk| desk.phase(b) == Phase::Open && desk.units(b, T) == 60);
    let of_b = desk.pieces(b, T);
    desk.dead(b, T);
    desk.give_back(b, &of_b, 0);
    desk.until(|desk| desk.scheduler.saved_of_user(1) == 0);
    // One of them can be there while 45 of the other's units are away.
    desk.lease(large, T, 80, 50);
    assert_eq!((desk.refusals(large), desk.units(large, T)), (1, 80));
    desk.lease(large, T, 80, 40);
    assert_eq!((desk.refusals(large), desk.units(large, T)), (1, 120));
    desk.lease(b, T, 60, 60);
    desk.live(b, T, 60 * UNIT, 60 * UNIT, Life::Short);
    take_turns(&mut desk, [a, b]);
    assert_eq!([a, b].map(|job| (desk.refusals(job), desk.job_of(job).failed_saves)), [(0, 0); 2]);
}
