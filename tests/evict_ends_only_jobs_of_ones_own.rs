//! `tidegate evict` ends a job and answers when it is over; a user's job only for that user and
//! root, by the kernel's word.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use support::patience::{Lines, finish, output};
use support::users::Shared;
use support::{Jobs, Manager, command};

/// Says `up`, and says `asked` when it is asked to end, but goes on.
const STUBBORN: &str = "trap 'echo asked' TERM; echo up; while :; do sleep 1; done";
/// Ends when it is asked to.
const MEEK: &str = "echo up; while :; do sleep 1; done";

/// A program under Tidegate that is up.
struct Job {
    process: Child,
    said: Lines,
}

impl Job {
    /// `run` without the program.
    fn start(mut run: Command, name: &str, script: &str) -> Self {
        run.args(["--name", name, "--", "/bin/sh", "-c", script]);
        let mut process = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = Lines::of(process.stdout.take().unwrap());
        assert_eq!(said.next().as_deref(), Some("up"));
        Self { process, said }
    }

    /// The signal that ended it.
    fn ended_by(self) -> Option<i32> {
        assert!(self.said.ended(), "the program goes on");
        finish(self.process).status.signal()
    }
}

fn evict(manager: &Manager, words: &[&str]) -> Command {
    let mut command = command();
    command.arg("evict").args(words).arg("--socket").arg(manager.socket());
    command
}

fn run(manager: &Manager) -> Command {
    let mut command = command();
    command.arg("run").arg("--socket").arg(manager.socket());
    command
}

fn manager() -> Manager {
    Manager::start("1x4MiB", &["--unit", "64KiB"])
}

#[track_caller]
fn refused(output: &Output, words: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn a_job_that_uses_the_gpu_is_asked_to_end_and_its_memory_is_back() {
    let manager = manager();
    let mut probe = manager.probe(&["--name", "big"]);
    probe.tell("device 0");
    probe.tell("alloc t 1000000");
    let evicted = output(evict(&manager, &["big"]));
    assert!(evicted.status.success(), "{}", String::from_utf8_lossy(&evicted.stderr));
    assert_eq!(String::from_utf8_lossy(&evicted.stdout), "job 1 has ended\n");
    let status = manager.status();
    assert!(status.jobs.is_empty() && status.has_ended("big"));
    manager.status_when(|status| status.gpus[0].temporary.used_bytes == 0);
    assert_eq!(probe.process.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn a_job_that_does_not_want_to_end_goes_on_until_it_is_killed() {
    let manager = manager();
    let job = Job::start(run(&manager), "stubborn", STUBBORN);
    let patient = evict(&manager, &["1"]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(job.said.next().as_deref(), Some("asked"));
    assert_eq!(manager.status().jobs.len(), 1);
    assert!(output(evict(&manager, &["stubborn", "--kill"])).status.success());
    assert_eq!(finish(patient).stdout, b"job 1 has ended\n");
    assert_eq!(job.ended_by(), Some(libc::SIGKILL));
}

#[test]
fn a_job_is_killed_after_the_time_that_is_given() {
    let manager = manager();
    let job = Job::start(run(&manager), "stubborn", STUBBORN);
    assert!(output(evict(&manager, &["stubborn", "--after", "1ms"])).status.success());
    assert_eq!(job.ended_by(), Some(libc::SIGKILL));
}

#[test]
fn a_stopped_job_hears_that_it_is_to_end() {
    let manager = manager();
    let job = Job::start(run(&manager), "meek", MEEK);
    // SAFETY: a signal to our own child, which has not been waited for.
    unsafe { libc::kill(job.process.id() as i32, libc::SIGSTOP) };
    assert!(output(evict(&manager, &["meek"])).status.success());
    assert_eq!(job.ended_by(), Some(libc::SIGTERM));
}

#[test]
fn a_name_that_does_not_say_which_job_ends_none() {
    let manager = manager();
    let jobs = ["twin", "twin"].map(|name| Job::start(run(&manager), name, MEEK));
    refused(&output(evict(&manager, &["nobody"])), &["nobody", "tidegate status"]);
    refused(&output(evict(&manager, &["3"])), &["3", "tidegate status"]);
    refused(&output(evict(&manager, &["twin"])), &["twin", "1 or 2"]);
    assert_eq!(manager.status().jobs.len(), 2);
    jobs.into_iter().for_each(|mut job| job.process.kill().unwrap());
}

#[test]
fn a_user_ends_no_job_of_another_and_root_ends_any() {
    let shared = Shared::start("1x4MiB", &["--unit", "64KiB"]);
    let roots = Job::start(shared.root(&["run"]), "roots", MEEK);
    let theirs = [1, 2].map(|n| Job::start(shared.stranger(&["run"]), &format!("theirs{n}"), MEEK));
    for job in ["roots", "1"] {
        for how in [&[][..], &["--kill"], &["--after", "1ms"]] {
            let words = [&["evict", job], how].concat();
            // As if there were no such job.
            refused(&output(shared.stranger(&words)), &[job, "no job that this user may end"]);
        }
    }
    assert!(output(shared.stranger(&["evict", "theirs1"])).status.success());
    assert!(output(shared.root(&["evict", "theirs2"])).status.success());
    theirs.into_iter().for_each(|job| assert_eq!(job.ended_by(), Some(libc::SIGTERM)));
    assert_eq!(shared.manager.job("roots").figures.job, 1);
    assert!(output(shared.root(&["evict", "roots"])).status.success());
    assert_eq!(roots.ended_by(), Some(libc::SIGTERM));
}
