//! `tidegate manager stop` ends a manager, in order, for its own user and root alone. With `--drain` its jobs run
//! to their ends first, and no new job is admitted; with `--now` it does not wait for them.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use support::patience::{Lines, output};
use support::users::Shared;
use support::{MIB, Manager, command};

fn stop(manager: &Manager, options: &[&str]) -> Command {
    let mut command = command();
    command.args(["manager", "stop"]).args(options).arg("--socket").arg(manager.socket());
    command
}

#[test]
fn a_draining_manager_ends_with_its_last_job() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let mut job = manager.probe(&["--name", "last"]);
    job.tell("device 0");
    job.tell(&format!("alloc t {MIB}"));
    job.tell("fill t 5");
    let mut drain = stop(&manager, &["--drain"]).stdout(Stdio::piped()).spawn().unwrap();
    let drained = Lines::of(drain.stdout.take().unwrap());
    assert!(manager.status_when(|status| status.draining).jobs.len() == 1);

    let newcomer = output(manager.run(&[], Path::new("/bin/true")));
    let words = String::from_utf8_lossy(&newcomer.stderr);
    assert!(!newcomer.status.success() && words.contains("drains") && words.lines().count() == 1, "{words}");

    job.tell("check t 5");
    job.tell(&format!("alloc more {MIB}"));
    job.end();
    assert_eq!(drained.next().as_deref(), Some("the manager has ended"));
    assert!(drain.wait().unwrap().success());
    assert!(manager.has_ended());
}

#[test]
fn a_manager_without_jobs_is_drained_at_once() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    assert_eq!(output(stop(&manager, &["--drain"])).stdout, b"the manager has ended\n");
    assert!(manager.has_ended());
}

#[test]
fn a_manager_with_jobs_ends_only_when_it_is_told_how() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let mut program = manager.run(&[], Path::new("/bin/cat")).stdin(Stdio::piped()).spawn().unwrap();
    manager.status_when(|status| status.jobs.len() == 1);
    let refused = output(stop(&manager, &[]));
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && words.contains("--drain") && words.lines().count() == 1, "{words}");
    assert_eq!(manager.status().jobs.len(), 1);
    assert_eq!(output(stop(&manager, &["--now"])).stdout, b"the manager has ended\n");
    assert!(manager.has_ended());
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_stranger_stops_no_manager() {
    let shared = Shared::start("1x4MiB", &["--unit", "64KiB"]);
    for options in [&["manager", "stop"][..], &["manager", "stop", "--drain"]] {
        let refused = output(shared.stranger(options));
        let words = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && words.contains("only root and the user"), "{words}");
    }
    assert!(!shared.manager.status().draining);
}
