//! The log goes to `--log FILE`, that of the movers too, also when a file of options says so; else to standard error, and
//! there without times of its own when that is systemd's journal. What a command cannot print, it says.

mod support;

use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::patience::{Lines, output};
use support::{Manager, Probe, command, run_at};

/// A manager that says what it does, and ends as soon as it is told to.
fn manager(directory: &Path) -> Command {
    let mut command = command();
    command.args(["manager", "--software-gpu", "1x4MiB", "--unit", "64KiB"]);
    command.arg("--socket").arg(directory.join("socket")).env("TIDEGATE_LOG", "debug");
    command
}

/// Runs a manager from its start to its end; what it wrote to standard error.
fn run(mut manager: Command, directory: &Path, journal: bool) -> String {
    let stderr = directory.join("stderr");
    let file = File::create(&stderr).unwrap();
    let found = file.metadata().unwrap();
    if journal {
        manager.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    } else {
        manager.env_remove("JOURNAL_STREAM");
    }
    let mut process = manager.stdout(Stdio::piped()).stderr(file).spawn().unwrap();
    let said = Lines::of(process.stdout.take().unwrap());
    assert_eq!(said.next().as_deref(), Some("ready"));
    stop(&mut process, &directory.join("socket"));
    std::fs::read_to_string(stderr).unwrap()
}

/// The manager ends in order.
fn stop(manager: &mut Child, socket: &Path) {
    let mut stop = command();
    stop.args(["manager", "stop", "--socket"]).arg(socket);
    let stopped = output(stop);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(manager.wait().unwrap().success());
}

fn begins_with_a_time(line: &str) -> bool {
    line.starts_with("20") && line.contains('T')
}

#[test]
fn without_a_file_it_goes_to_standard_error() {
    let directory = tempfile::tempdir().unwrap();
    let log = run(manager(directory.path()), directory.path(), false);
    assert!(log.contains("the manager ends") && log.lines().all(begins_with_a_time), "{log}");
}

#[test]
fn a_log_that_nothing_reads_holds_no_job() {
    let directory = tempfile::tempdir().unwrap();
    let (unread, full) = rustix::pipe::pipe().unwrap();
    rustix::fs::fcntl_setfl(&full, OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&full, b"x").is_ok() {}
    rustix::fs::fcntl_setfl(&full, OFlags::empty()).unwrap();
    let mut process = manager(directory.path()).stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    let said = Lines::of(process.stdout.take().unwrap());
    assert_eq!(said.next().as_deref(), Some("ready"));
    let socket = directory.path().join("socket");
    let mut job = Probe::start(run_at(&socket, &[], &support::probe()));
    job.tell("device 0");
    job.tell("alloc t 100000");
    job.end();
    stop(&mut process, &socket);
    drop(unread);
}

#[test]
fn in_the_journal_it_has_no_times_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let log = run(manager(directory.path()), directory.path(), true);
    assert!(log.contains("the manager ends") && !log.lines().any(begins_with_a_time), "{log}");
    assert!(!log.contains('\x1b'), "{log}");
}

#[test]
fn a_file_of_options_sends_it_to_a_file_behind_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let (log, options) = (directory.path().join("log"), directory.path().join("manager.toml"));
    std::fs::write(&log, "before\n").unwrap();
    std::fs::write(&options, format!("log = {:?}\nunit = '1MiB'\n", log.display().to_string())).unwrap();
    let mut manager = manager(directory.path());
    manager.arg("--config").arg(&options);
    assert_eq!(run(manager, directory.path(), false), "");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.starts_with("before\n") && log.contains("the manager ends"), "{log}");
    assert!(log.contains("tidegate_manager::mover"), "the mover's words are missing: {log}");
}

#[test]
fn a_mistake_in_the_file_of_options_is_one_sentence_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let options = directory.path().join("manager.toml");
    std::fs::write(&options, "\nslize = '1s'\n").unwrap();
    let mut manager = manager(directory.path());
    let refused = output({
        manager.arg("--config").arg(&options);
        manager
    });
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && words.lines().count() == 1, "{words}");
    assert!(words.contains(&format!("{}:2: ", options.display())) && words.contains("slize"), "{words}");
}

/// What is printed for people and for programs.
const PRINTED: [&[&str]; 4] = [&["status"], &["status", "--json"], &["doctor"], &["doctor", "--json"]];

#[test]
fn what_cannot_be_printed_is_an_error_in_one_line_and_a_closed_pipe_is_none() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    for words in PRINTED {
        let printing = |to: Stdio| {
            let mut command = command();
            command.args(words).arg("--socket").arg(manager.socket()).stdout(to).stderr(Stdio::piped());
            let ended = command.spawn().unwrap().wait_with_output().unwrap();
            (ended.status, String::from_utf8(ended.stderr).unwrap())
        };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (status, errors) = printing(full.into());
        assert_eq!((status.code(), errors.lines().count()), (Some(1), 1), "{words:?}: {errors}");
        assert!(errors.contains("No space left on device"), "{words:?}: {errors}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (status, errors) = printing(writer.into());
        assert_eq!((status.signal(), errors.as_str()), (Some(13), ""), "{words:?}: {status}");
    }
}
