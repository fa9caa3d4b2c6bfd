//! `tidegate run` is its program: status, signals, input and output are the program's own.

mod support;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use support::patience::{Lines, finish, output};
use support::{Jobs, Manager};

fn manager() -> Manager {
    Manager::start("1x4MiB", &["--unit", "64KiB"])
}

fn shell(manager: &Manager, script: &str) -> Command {
    let mut command = manager.run(&["--name", "sh"], Path::new("/bin/sh"));
    command.args(["-c", script]);
    command
}

#[test]
fn the_exit_status_is_the_programs() {
    let manager = manager();
    assert_eq!(output(shell(&manager, "exit 0")).status.code(), Some(0));
    assert_eq!(output(shell(&manager, "exit 37")).status.code(), Some(37));
    assert_eq!(output(shell(&manager, "kill -TERM $$")).status.signal(), Some(libc::SIGTERM));
    let missing = output(manager.run(&[], Path::new("/no/such/program")));
    assert_eq!(missing.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such/program"));
}

#[test]
fn a_program_finds_its_manager_from_another_directory() {
    let manager = manager();
    let socket = manager.socket();
    let here = Path::new(socket.file_name().unwrap());
    let mut program = support::run_at(here, &["--name", "sh"], Path::new("/bin/sh"));
    program.current_dir(socket.parent().unwrap()).args(["-c", "cd / && echo $TIDEGATE_SOCKET"]);
    assert_eq!(output(program).stdout, format!("{}\n", socket.display()).into_bytes());
}

#[test]
fn input_and_output_are_the_programs() {
    let manager = manager();
    let mut program = shell(&manager, "read line; echo \"got $line\"; echo oops >&2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    program.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let output = finish(program);
    assert_eq!(output.stdout, b"got hello\n");
    assert_eq!(output.stderr, b"oops\n");
}

#[test]
fn a_signal_reaches_the_program_itself() {
    let manager = manager();
    let mut program = shell(&manager, "trap 'exit 9' USR1; echo up; while :; do sleep 0.01; done")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = Lines::of(program.stdout.take().unwrap());
    assert_eq!(said.next().as_deref(), Some("up"));
    // SAFETY: a signal to our own child, which has not been waited for.
    unsafe { libc::kill(program.id() as i32, libc::SIGUSR1) };
    assert_eq!(finish(program).status.code(), Some(9));
}

#[test]
fn the_program_has_no_child_that_it_did_not_start() {
    let manager = manager();
    let output = output(shell(&manager, "cat /proc/$$/task/$$/children"));
    let children = String::from_utf8(output.stdout).unwrap();
    // Only cat itself.
    assert_eq!(children.split_whitespace().count(), 1, "{children:?}");
}

#[test]
fn a_job_ends_for_the_manager_when_its_program_ends() {
    let manager = manager();
    assert!(output(shell(&manager, "true")).status.success());
    manager.status_when(|status| status.has_ended("sh"));
}
