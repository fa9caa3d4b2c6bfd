//! Memory of destroyed pieces that stays in use (I6).

use super::*;

fn leaked(desk: &Desk, uid: u32) -> u32 {
    desk.scheduler.gpus()[&GPU].leaks.of(uid)
}

/// A job of user 1 that stays, and users 2 with quotas of 40 units.
fn shared() -> Desk {
    let mut desk = Desk::new(|config| config.user_quotas.others = Some(40 * UNIT));
    desk.uid = 1;
    job_with(&mut desk, "other", 5, 5);
    desk.uid = 2;
    desk
}

/// Whether a new job of the desk's user gets so many units.
fn is_served(desk: &mut Desk, units: u32) -> bool {
    let session = desk.job(spec("more"));
    let lease = desk.lease(session, T, 0, units);
    desk.pass(ms(3000));
    let served = desk.answers(session, lease) > 0;
    desk.end(session);
    served
}

#[test]
fn what_stays_in_use_after_a_jobs_end_counts_towards_its_users_quota() {
    let mut desk = shared();
    let job = job_with(&mut desk, "leaks", 5, 5);
    desk.leaking = true;
    desk.end(job);
    desk.leaking = false;
    assert_eq!(leaked(&desk, 2), 10);
    assert!(!is_served(&mut desk, 31), "10 of 40 units are in use still");
    assert!(is_served(&mut desk, 30));
    assert_eq!((leaked(&desk, 2), leaked(&desk, 1)), (10, 0));
    desk.outside -= 10;
    assert!(is_served(&mut desk, 40), "it has come free");
    assert_eq!(leaked(&desk, 2), 0);
}

#[test]
fn a_user_without_a_quota_gets_no_more_of_a_gpu_once_an_eighth_of_it_leaks() {
    let mut desk = Desk::new(|_| {});
    desk.uid = 1;
    job_with(&mut desk, "other", 5, 5);
    desk.uid = 2;
    let leak = |desk: &mut Desk, temporary| {
        let job = job_with(desk, "leaks", 1, temporary);
        desk.leaking = true;
        desk.end(job);
        desk.leaking = false;
    };
    leak(&mut desk, 11);
    assert_eq!((leaked(&desk, 2), is_served(&mut desk, 20)), (12, true));
    leak(&mut desk, 1);
    assert_eq!((leaked(&desk, 2), is_served(&mut desk, 20)), (14, false));
    desk.uid = 1;
    assert!(is_served(&mut desk, 20), "the others are served");
}

#[test]
fn what_roots_jobs_leave_is_not_looked_for() {
    let mut desk = shared();
    desk.uid = 0;
    let job = job_with(&mut desk, "leaks", 10, 20);
    desk.leaking = true;
    desk.end(job);
    assert_eq!(leaked(&desk, 0), 0);
}

#[test]
fn a_child_of_an_expelled_process_that_has_ended_leaks_what_it_keeps() {
    let mut desk = shared();
    let job = job_with(&mut desk, "leaks", 10, 20);
    desk.tell(Event::SessionBroke { session: job, reason: "it spoke nonsense".into() });
    assert_eq!(desk.scheduler.gpus()[&GPU].ledger.retired(), 30);
    // Its child has mapped all of it.
    desk.outside += 30;
    desk.end(job);
    assert_eq!((desk.scheduler.gpus()[&GPU].ledger.retired(), leaked(&desk, 2)), (0, 30));
}

#[test]
fn a_context_that_goes_is_no_leak_that_ends() {
    let mut desk = shared();
    desk.outside = 2;
    let (first, second) = (job_with(&mut desk, "leaks", 5, 5), desk.job(spec("comes")));
    desk.outside += 6;
    fill(&mut desk, second, 1, 1);
    desk.leaking = true;
    desk.end(first);
    desk.leaking = false;
    assert_eq!(leaked(&desk, 2), 10);
    desk.end(second);
    desk.outside -= 6;
    desk.tell(Event::Survey);
    assert_eq!(leaked(&desk, 2), 10, "it was the context of the second one that came free");
    desk.outside -= 4;
    desk.tell(Event::Survey);
    assert_eq!(leaked(&desk, 2), 6);
}
