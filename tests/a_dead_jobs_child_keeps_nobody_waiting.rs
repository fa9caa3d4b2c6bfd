//! I7: a process is dead when it is dead, whoever it left behind. A forked child may hold all its
//! sockets and descriptors open: its job is over all the same, and the others get its memory.

mod support;

use support::{Jobs, MIB, Manager, Probe};

#[test]
fn a_dead_jobs_child_keeps_nobody_waiting() {
    let sizes = ["--unit", "64KiB", "--piece", "512KiB", "--offset", "64KiB", "--slice", "10ms"];
    let manager = Manager::start("1x6MiB", &sizes);
    let mut parent = Probe::start(support::client(&manager));
    parent.tell(&format!("hello parent {}", manager.status().gpus[0].uuid));
    parent.tell("lease 0 64");
    parent.tell("mark PARENTS-WORD-");
    let child: i32 = parent.tell("fork").parse().unwrap();
    parent.process.kill().unwrap();
    parent.process.wait().unwrap();
    manager.status_when(|status| status.has_ended("parent"));
    // SAFETY: signal 0 only asks whether it is there.
    assert_eq!(unsafe { libc::kill(child, 0) }, 0, "the child holds the socket still");
    let mut other = manager.probe(&["--name", "other"]);
    other.tell("device 0");
    other.tell(&format!("alloc t {}", 5 * MIB));
    other.tell("fill t 3");
    other.tell("check t 3");
    // SAFETY: a child of our own child, which nobody has waited for yet: its number is its own.
    unsafe { libc::kill(child, libc::SIGKILL) };
    other.end();
}
