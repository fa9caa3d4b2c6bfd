//! Quotas, of a job's processes and of a user's jobs.

use super::*;

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
