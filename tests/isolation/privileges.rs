//! What a manager of root, its movers and its successors may do.

use crate::support::Manager;
use crate::support::deaths::{kill, movers, status_after};
use std::fs;
use tidegate_manager::process::status_field;

/// `CAP_SYS_BOOT` and `CAP_NET_ADMIN`, and one that a manager uses: `CAP_KILL`.
const GIVEN_UP: u64 = 1 << 22 | 1 << 12;
const KEPT: u64 = 1 << 5;

fn field(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status_field(&status, name).unwrap().to_owned()
}

fn check(pid: u32) {
    let capabilities = u64::from_str_radix(&field(pid, "CapEff"), 16).unwrap();
    assert_eq!((capabilities & GIVEN_UP, capabilities & KEPT), (0, KEPT));
    assert_eq!(field(pid, "NoNewPrivs"), "1");
    assert_eq!(field(pid, "Seccomp"), "2", "it has a filter of system calls");
    // One that the tests run under, in a container, is kept instead.
    let own = field(std::process::id(), "Seccomp_filters").parse::<u32>().unwrap();
    assert_eq!(field(pid, "Seccomp_filters"), own.max(1).to_string());
}

#[test]
fn a_manager_its_mover_and_their_successors_have_given_up_what_they_do_not_use() {
    assert!(rustix::process::geteuid().is_root(), "only root has anything to give up");
    let manager = Manager::start("1x8MiB", &["--unit", "64KiB"]);
    let mut job = manager.probe(&["--name", "job"]);
    job.tell("device 0");
    for round in 1..=3 {
        check(manager.pid());
        movers(&manager).into_iter().for_each(check);
        let dead = manager.pid();
        kill(dead);
        status_after(&manager, dead);
        check(manager.pid());
        movers(&manager).into_iter().for_each(kill);
        manager.status_when(|status| status.gpus[0].mover.replacements == round);
    }
    check(manager.pid());
    movers(&manager).into_iter().for_each(check);
}
