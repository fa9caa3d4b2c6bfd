//! The manager and its movers may be killed together: what they kept is gone, and nothing waits for it. Jobs that wait
//! end with an error, jobs that run go on with what they have, and the next `tidegate run` finds everything in order.

mod support;

use rustix::process::Signal;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::deaths::{kill, movers, signal, will};
use support::patience::{Lines, output};
use support::{Jobs, MIB, Manager, Probe, comes_to, command, nothing_is_used, probe, run_at};

const OPTIONS: [&str; 8] = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "5ms", "--answer-limit", "2s"];

/// A probe whose words on stderr are kept.
struct Told {
    probe: Probe,
    stderr: std::thread::JoinHandle<String>,
}

impl Told {
    fn start(mut job: Command) -> Self {
        let mut probe = Probe::start({
            job.stderr(Stdio::piped());
            job
        });
        let mut pipe = probe.process.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).unwrap();
            text
        });
        Self { probe, stderr }
    }

    /// With so many bytes of temporary memory.
    fn with_memory(job: Command, bytes: u64) -> Self {
        let mut told = Self::start(job);
        told.probe.tell("device 0");
        told.probe.tell(&format!("alloc t {bytes}"));
        told.probe.tell("fill t 2");
        told
    }

    /// Ends it; the lines of stderr that are about its manager's end.
    fn end(self) -> Vec<String> {
        self.probe.end();
        let text = self.stderr.join().unwrap();
        text.lines().filter(|line| line.contains("the manager is gone:")).map(Into::into).collect()
    }
}

/// The threads of ours that a process has.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim_end().into()).filter(|name: &String| name.starts_with("tidegate")).collect()
}

/// Kills all processes at once: none finds time to start another.
fn kill_all(manager: u32, movers: &[u32]) {
    movers.iter().chain([&manager]).for_each(|process| signal(*process, Signal::STOP));
    movers.iter().chain([&manager]).copied().for_each(kill);
}

/// Where a manager's software GPUs are.
fn node(manager: &Manager) -> PathBuf {
    will(manager)["node"].as_str().unwrap().into()
}

/// A job as `tidegate run` starts it where no manager answers.
fn next_run(socket: &Path) -> Probe {
    let mut job = Probe::start(run_at(socket, &["--name", "next"], &probe()));
    job.tell("device 0");
    job.tell(&format!("alloc t {MIB}"));
    job.tell("fill t 5");
    job.tell("check t 5");
    job
}

#[test]
fn where_manager_and_mover_are_killed_together_every_job_is_told_and_the_next_run_works() {
    let manager = Manager::start("1x5MiB", &OPTIONS);
    let [mut waiting, mut running] =
        ["a", "b"].map(|name| Told::with_memory(manager.run(&["--name", name], &probe()), 3 * MIB));
    running.probe.tell("check t 2");
    manager.status_when(|status| status.job("b").state == "open" && status.job("a").state == "waiting");
    let first = node(&manager);
    kill_all(manager.pid(), &movers(&manager));
    waiting.probe.order("check t 2");
    running.probe.tell("check t 2");
    // More than it has, and no manager can give it.
    running.probe.order(&format!("alloc more {}", 4 * MIB));
    let told = waiting.probe.answer().unwrap_err();
    assert!(told.contains("NOT_READY"), "{told}");
    let told = running.probe.answer().unwrap_err();
    assert!(told.contains("OUT_OF_MEMORY"), "{told}");
    running.probe.tell("check t 2");
    let again = running.probe.try_tell(&format!("alloc more {}", 4 * MIB)).unwrap_err();
    assert!(again.contains("OUT_OF_MEMORY"), "{again}");
    for job in [&waiting, &running] {
        assert_eq!(threads(job.probe.process.id()), [""; 0], "nothing is waited for any more");
    }

    // The next one has the options of the last, and GPUs of its own.
    let mut next = next_run(&manager.socket());
    let status = manager.status();
    assert_eq!((status.gpus[0].gpu_memory_bytes, status.gpus[0].unit_bytes), (5 * MIB, 64 << 10));
    let second = node(&manager);
    assert!(second != first && second.exists());
    assert!(first.exists(), "a job runs there still");
    running.probe.tell("check t 2");
    kill_all(manager.pid(), &movers(&manager));
    next.order(&format!("alloc more {}", 4 * MIB));
    next.answer().unwrap_err();
    drop(next);

    let next = next_run(&manager.socket());
    assert!(!second.exists(), "no process has memory of these");
    assert!(first.exists(), "it is known of still");
    running.probe.tell("check t 2");
    for told in [running.end(), waiting.end()] {
        assert_eq!(told.len(), 1, "{told:#?}");
    }
    next.end();
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
    let third = node(&manager);
    let mut stop = command();
    stop.args(["manager", "stop", "--socket"]).arg(manager.socket());
    assert!(output(stop).status.success());
    assert!(![first, second, third].iter().any(|node| node.exists()), "nothing is left in /dev/shm");
    assert!(!manager.socket().with_extension("will").exists());
}

#[test]
fn a_manager_that_run_starts_is_no_child_of_the_program_and_does_not_keep_its_output_open() {
    let manager = Manager::start("1x5MiB", &OPTIONS);
    kill_all(manager.pid(), &movers(&manager));
    let mut run = run_at(&manager.socket(), &[], Path::new("sh"));
    run.args(["-c", "cat /proc/$$/task/$$/children"]);
    // Read to its end.
    let told = output(run);
    assert!(told.status.success(), "{told:?}");
    // The program that lists them is the only one.
    assert_eq!(String::from_utf8_lossy(&told.stdout).split_whitespace().count(), 1, "{told:?}");
    // It hears of the program's end by itself.
    manager.status_when(|status| status.jobs.is_empty());
    assert!(manager.socket().with_added_extension("log").exists());
}

#[test]
fn a_manager_whose_log_cannot_be_written_outlives_its_movers_and_has_a_successor() {
    let manager = Manager::start_unlogged("1x5MiB", &OPTIONS);
    let mut job = Told::with_memory(manager.run(&["--name", "a"], &probe()), 3 * MIB);
    movers(&manager).into_iter().for_each(kill);
    manager.status_when(|status| status.gpus[0].mover.replacements == 1);
    kill(manager.pid());
    job.probe.tell(&format!("alloc more {MIB}"));
    job.probe.tell("check t 2");
    assert_eq!(job.end(), [""; 0]);
}

/// A manager that a supervisor would start again.
fn as_service(socket: &Path) -> (Lines, Child) {
    let program = command().get_program().to_owned();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(r#"SYSTEMD_EXEC_PID=$$ exec "$0" "$@""#).arg(program).env_remove("CARGO");
    shell.args(["manager", "--software-gpu", "1x9MiB"]).args(OPTIONS).arg("--socket").arg(socket);
    let mut manager = shell.stdout(Stdio::piped()).spawn().unwrap();
    let said = Lines::of(manager.stdout.take().unwrap());
    assert_eq!(said.next().as_deref(), Some("ready"));
    (said, manager)
}

#[test]
fn managers_whose_sockets_differ_after_a_dot_are_apart() {
    let directory = tempfile::tempdir().unwrap();
    let managers = ["gpu.1", "gpu.2"].map(|name| as_service(&directory.path().join(name)));
    for (_said, mut manager) in managers {
        assert!(manager.try_wait().unwrap().is_none());
        signal(manager.id(), Signal::TERM);
        assert!(manager.wait().unwrap().success());
    }
}

#[test]
fn who_was_stopped_comes_back_to_a_late_manager_and_whose_session_is_over_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let (_, mut first) = as_service(&socket);
    let start = |name| {
        let mut job = Probe::start(run_at(&socket, &["--name", name], &probe()));
        job.tell("device 0");
        job.tell(&format!("alloc t {MIB}"));
        job.tell("fill t 2");
        job
    };
    let [mut stopped, mut over] = ["stopped", "over"].map(start);
    signal(stopped.process.id(), Signal::STOP);
    first.kill().unwrap();
    first.wait().unwrap();
    // The time of this one is over; that of the other has not begun.
    over.order(&format!("alloc more {MIB}"));
    assert!(over.answer().unwrap_err().contains("OUT_OF_MEMORY"));
    let (said, mut second) = as_service(&socket);
    signal(stopped.process.id(), Signal::CONT);
    stopped.tell(&format!("alloc more {MIB}"));
    stopped.tell("fill more 3");
    stopped.tell("check t 2");
    // It has what it had, and gets nothing from a manager that it has parted from.
    assert!(over.try_tell(&format!("alloc more {MIB}")).unwrap_err().contains("OUT_OF_MEMORY"));
    over.tell("check t 2");
    let mut new = start("new");
    new.tell("check t 2");
    over.tell("check t 2");
    [stopped, over, new].into_iter().for_each(Probe::end);
    comes_to(&socket, |status| status.jobs.is_empty() && nothing_is_used(status));
    signal(second.id(), Signal::TERM);
    assert!(said.ended() && second.wait().unwrap().success());
}
