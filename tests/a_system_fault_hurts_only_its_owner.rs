//! I10: whatever system call fails for lack of something, in a job, a mover or the manager, its owner
//! gets an error in words or goes on untouched; nobody else notices, no byte is ever wrong, and nothing
//! is lost for good.
//!
//! `tests/long/faults` injects a hundred of each.

mod support;

use support::deaths::kill_movers;
use support::faults::{Faults, Worker, hurt_jobs, manager, nothing_is_held, until_struck};

/// What a job's process asks of the system: the call, every how many-th fails, and how.
const OF_JOBS: [(&str, u32, &str); 11] = [
    // To begin with.
    ("connect", 1, "EMFILE"),
    ("thread", 2, "EAGAIN"),
    ("inotify_init", 1, "EMFILE"),
    ("mmap", 1, "ENOMEM"),
    // And at each switch. Who cannot be drained three times in a row is never closed again.
    ("memfd_create", 3, "EMFILE"),
    ("ftruncate", 3, "ENOSPC"),
    ("fcntl", 3, "ENOMEM"),
    ("pwrite", 2, "ENOSPC"),
    ("sendmsg", 5, "ENOBUFS"),
    ("recvmsg", 9, "ENOMEM"),
    ("SCM_RIGHTS", 3, "EMFILE"),
];

/// What a mover asks of it.
const OF_MOVERS: [(&str, u32, &str); 9] = [
    ("memfd_create", 3, "EMFILE"),
    ("ftruncate", 3, "ENOSPC"),
    ("fcntl", 3, "ENOMEM"),
    ("mmap", 3, "ENOMEM"),
    ("madvise", 2, "ENOMEM"),
    ("dup", 3, "EMFILE"),
    ("pwrite", 3, "ENOSPC"),
    ("sendmsg", 50, "ENOBUFS"),
    ("recvmsg", 90, "ENOMEM"),
];

/// What the manager asks of it, with clients that come and go and movers that die.
const OF_MANAGERS: [(&str, u32, &str); 12] = [
    ("accept", 3, "EMFILE"),
    ("pidfd_open", 3, "EMFILE"),
    ("thread", 7, "EAGAIN"),
    ("mmap", 2, "ENOMEM"),
    ("SCM_RIGHTS", 5, "EMFILE"),
    ("sendmsg", 60, "ENOBUFS"),
    ("recvmsg", 60, "ENOMEM"),
    ("pwrite", 3, "ENOSPC"),
    ("socketpair", 3, "EMFILE"),
    ("process", 2, "EAGAIN"),
    ("open", 2, "ENOSPC"),
    ("write", 2, "ENOSPC"),
];

#[test]
fn a_fault_in_a_job_hurts_it_alone() {
    hurt_jobs(&OF_JOBS.map(|(call, nth, error)| Faults::of_system("job", call, nth, error)));
}

#[test]
fn who_cannot_be_prepared_does_not_run_beside_the_others() {
    let manager = manager(None);
    for (call, nth, error) in &OF_JOBS[..2] {
        let faults = Faults::of_system("job", call, *nth, error);
        let refused = Worker::start(&manager, "refused", 1, Some(&faults)).err().unwrap();
        assert!(refused.contains("CUDA_ERROR_SYSTEM_NOT_READY"), "{call}: {refused}");
    }
}

#[test]
fn what_cannot_be_noted_misleads_no_other_mover() {
    let faults = Faults::of_system("mover", "pwrite", 3, "ENOSPC");
    let manager = manager(Some(&faults));
    until_struck(&faults, || {
        let come = |name: &str| Worker::start(&manager, name, 1, None).unwrap();
        // Two of them are saved, and forgotten when they end.
        let mut jobs = ["a", "b", "c"].map(come);
        jobs.iter_mut().for_each(|job| job.check().unwrap());
        drop(jobs);
        let mut jobs = ["d", "e"].map(come);
        kill_movers(&manager);
        jobs.iter_mut().for_each(|job| job.check().unwrap());
    });
    manager.status_when(nothing_is_held);
}

#[test]
fn a_fault_in_a_mover_is_noticed_by_nobody() {
    let mut total = 0;
    for (call, nth, error) in OF_MOVERS {
        let faults = Faults::of_system("mover", call, nth, error);
        let manager = manager(Some(&faults));
        until_struck(&faults, || {
            // Memory for saved bytes is got for those that come, and given back when they go.
            let come = |name: &str| Worker::start(&manager, name, 1, None).unwrap();
            let mut jobs = ["a", "b", "c"].map(come);
            jobs.iter_mut().for_each(|job| job.check().unwrap());
        });
        total += faults.count();
        manager.status_when(nothing_is_held);
    }
    eprintln!("{total} faults in movers");
}

#[test]
fn a_fault_in_the_manager_is_noticed_by_nobody() {
    let mut total = 0;
    for (call, nth, error) in OF_MANAGERS {
        let faults = Faults::of_system("manager", call, nth, error);
        let manager = manager(Some(&faults));
        let pid = manager.pid();
        let come = |name: &str| Worker::start(&manager, name, 1, None);
        let mut old = std::iter::repeat_with(|| come("old")).find_map(Result::ok).unwrap();
        until_struck(&faults, || {
            // Who comes may hear that the manager has no place now; who is there hears of nothing.
            let mut new = come("new").ok();
            old.check().unwrap();
            new = new.and_then(|mut new| new.check().is_ok().then_some(new));
            // It starts another, and hands it everything.
            kill_movers(&manager);
            old.check().unwrap();
            new.map(|mut new| new.check());
        });
        total += faults.count();
        assert_eq!(manager.pid(), pid, "the manager has died of {call}");
        drop(old);
        manager.comes_to(nothing_is_held);
    }
    eprintln!("{total} faults in managers");
}
