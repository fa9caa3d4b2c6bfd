//! Deaths of the manager and of movers, and the jobs that must not notice.

use super::patience::PATIENCE;
use super::{MIB, Manager, Probe, Status, nothing_is_used};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{DirEntry, File};
use std::path::PathBuf;
use std::time::Instant;
use tidegate_manager::death;

/// The messages around which somebody can die: what the manager takes in of a switch.
pub const MESSAGES: [&str; 9] =
    ["lease", "drained", "unmap", "save", "restore", "map", "make", "scrub", "destroy"];
/// How far it has come with a message.
const MOMENTS: [&str; 4] = ["heard", "decided", "written", "sent"];

/// How often `tests/long/kills` wants each death: once, if it does not say.
pub fn rounds() -> usize {
    std::env::var("KILLS").map_or(1, |count| count.parse().unwrap())
}

/// Each message at each moment, as often as is wanted.
pub fn points(messages: &[&str]) -> Vec<String> {
    let once = messages.iter().flat_map(|message| MOMENTS.map(|moment| format!("{message}:{moment}")));
    let once: Vec<String> = once.collect();
    std::iter::repeat_n(once, rounds()).flatten().collect()
}

/// A manager that can be told where it dies, or where its movers do.
pub struct Killer {
    pub manager: Manager,
    orders: PathBuf,
    _directory: tempfile::TempDir,
}

impl Killer {
    pub fn start(gpus: &str, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let orders = directory.path().join("die-at");
        let manager = Manager::start_with(gpus, options, &[(death::VARIABLE, orders.as_path())]);
        Self { manager, orders, _directory: directory }
    }

    /// For a `tidegate run`, which may start the next manager.
    pub fn environment(&self) -> (&'static str, PathBuf) {
        (death::VARIABLE, self.orders.clone())
    }

    /// Tells somebody to die at a point: whoever comes there first.
    pub fn order(&self, point: &str) {
        let written = self.orders.with_extension("new");
        std::fs::write(&written, point).unwrap();
        // It is there at once or not at all.
        std::fs::rename(written, &self.orders).unwrap();
    }

    /// Whether somebody has come there.
    pub fn is_obeyed(&self) -> bool {
        !self.orders.exists()
    }

    /// Has `work` done until somebody has died at a point.
    pub fn kill_at(&self, point: &str, mut work: impl FnMut()) {
        let began = Instant::now();
        self.order(point);
        while !self.is_obeyed() {
            assert!(began.elapsed() < PATIENCE, "nobody came to {point}");
            work();
        }
    }
}

/// Jobs that do not fit on a GPU of 6 MiB switch while its mover dies at each of these points, as often as is wanted: all bytes
/// are as they were, and in the end no tier holds any.
pub fn nothing_is_lost_at(points: &[&str], options: &[&str]) {
    let killer = Killer::start("1x6MiB", options);
    let mut jobs = oversubscribed(&killer.manager);
    check(&mut jobs);
    for point in std::iter::repeat_n(points, rounds()).flatten() {
        killer.kill_at(point, || check(&mut jobs));
        check(&mut jobs);
    }
    let replacements = killer.manager.status().gpus[0].mover.replacements;
    println!("{replacements} movers have died");
    assert!(replacements >= (points.len() * rounds()) as u64);
    jobs.into_iter().for_each(Probe::end);
    let is_empty = |status: &Status| status.gpus[0].tiers.iter().all(|tier| tier.used_bytes == 0);
    killer.manager.status_when(|status| is_empty(status) && nothing_is_used(status));
}

/// What a manager leaves to its successor: the file beside its socket.
pub fn will(manager: &Manager) -> serde_json::Value {
    let text = std::fs::read(manager.socket().with_extension("will")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// The movers of a manager, by its will.
pub fn movers(manager: &Manager) -> Vec<u32> {
    let will = will(manager);
    let movers = will["movers"].as_array().unwrap().iter();
    movers.map(|mover| mover[1]["pid"].as_u64().unwrap() as u32).collect()
}

/// As long as this file is open no mover starts another manager than the present one: that takes the lock on the state file.
/// `None`: there is none now.
pub fn without_successor(manager: u32) -> Option<File> {
    let mut files = std::fs::read_dir(format!("/proc/{manager}/fd")).ok()?.filter_map(Result::ok);
    let is_state = |file: &DirEntry| {
        let name = std::fs::read_link(file.path()).unwrap_or_default();
        name.to_string_lossy().starts_with("/memfd:tidegate-state")
    };
    let state = File::open(files.find(is_state)?.path()).ok()?;
    state.lock().unwrap();
    Some(state)
}

/// Kills a process of a manager's, which may be dead already: its number is its own until somebody has
/// waited for it.
pub fn kill(pid: u32) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
}

/// A signal to a process of a manager's, or to one of the test's own.
pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Stops a process, all of its threads: a busy machine takes its time.
pub fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    let is_stopped = |thread: std::io::Result<DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(is_stopped) {}
}

/// The status of the manager that came after `dead`.
pub fn status_after(manager: &Manager, dead: u32) -> Status {
    let began = Instant::now();
    let mut last = None;
    loop {
        let serving = manager.pid();
        if serving != dead {
            match manager.try_status() {
                Ok(status) => return status,
                Err(error) => last = Some((serving, error)),
            }
        }
        assert!(began.elapsed() < PATIENCE, "no manager has taken over from {dead}; the last try: {last:?}");
    }
}

/// Two jobs of which only one has room at a time.
pub fn oversubscribed(manager: &Manager) -> [Probe; 2] {
    oversubscribed_on(manager, 0)
}

/// The same on another GPU than the first; `a0` and `b0` are on the first.
pub fn oversubscribed_on(manager: &Manager, gpu: usize) -> [Probe; 2] {
    ["a", "b"].map(|name| {
        let mut job = manager.probe(&["--name", &format!("{name}{gpu}")]);
        job.tell(&format!("device {gpu}"));
        job.tell(&format!("alloc p {} persistent", 768 << 10));
        job.tell(&format!("alloc t {}", 3 * MIB));
        job.tell("fill p 1");
        job.tell("fill t 2");
        job
    })
}

/// Every byte of such jobs is as it was.
pub fn check(jobs: &mut [Probe]) {
    for job in jobs {
        job.tell("check t 2");
        job.tell("check p 1");
        // Memory that comes and goes: pieces are made, scrubbed and destroyed.
        job.tell("alloc x 200000");
        job.tell("fill x 3");
        job.tell("check x 3");
        job.tell("free x");
    }
}

/// Kills the movers that the manager has started.
pub fn kill_movers(manager: &Manager) {
    children(manager.pid()).into_iter().for_each(kill);
}

/// The processes whose parent is `parent`.
pub fn children(parent: u32) -> Vec<u32> {
    let parent_of = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}
