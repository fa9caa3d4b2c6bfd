//! What the tests share: a manager on software GPUs, and programs under it.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod deaths;
pub mod faults;
pub mod patience;
pub mod training;
pub mod users;

use patience::{Lines, PATIENCE};
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;
use tidegate_manager::artifacts;
pub use tidegate_manager::server::status::{EndedJob, JobStatus, Status};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A manager of a test's own, on software GPUs; it ends with the test.
pub struct Manager {
    process: Child,
    said: Lines,
    directory: tempfile::TempDir,
}

impl Manager {
    /// `gpus` as in `--software-gpu`; more options as on the command line.
    pub fn start(gpus: &str, options: &[&str]) -> Self {
        Self::start_with(gpus, options, &[])
    }

    /// The same, with paths in its environment.
    pub fn start_with(gpus: &str, options: &[&str], environment: &[(&str, &Path)]) -> Self {
        let mut command = command();
        command.envs(environment.iter().copied());
        Self::launch(command, gpus, options)
    }

    /// The same, by another copy of the command.
    pub fn start_by(program: &Path, gpus: &str, options: &[&str]) -> Self {
        Self::launch(Command::new(program), gpus, options)
    }

    /// The same, with so many file descriptors for the manager and for each of its movers.
    pub fn start_limited(descriptors: u32, gpus: &str, options: &[&str]) -> Self {
        let tidegate = command();
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("ulimit -n {descriptors} && exec \"$0\" \"$@\""))
            .arg(tidegate.get_program());
        command.env_remove("CARGO");
        Self::launch(command, gpus, options)
    }

    /// The same, where nothing that it or its movers log can be written.
    pub fn start_unlogged(gpus: &str, options: &[&str]) -> Self {
        let mut command = command();
        command.stderr(File::options().write(true).open("/dev/full").unwrap());
        Self::launch(command, gpus, options)
    }

    fn launch(mut command: Command, gpus: &str, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        command.arg("manager").arg("--socket").arg(directory.path().join("socket"));
        command.args(["--software-gpu", gpus]).args(options).stdout(Stdio::piped()).process_group(0);
        let take_hang_ups = || {
            // SAFETY: sets how a signal is taken: the default. Whoever runs the tests may have it ignored.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: between fork and exec, makes one system call and nothing else.
        unsafe { command.pre_exec(take_hang_ups) };
        let mut process = command.spawn().unwrap();
        let said = Lines::of(process.stdout.take().unwrap());
        let manager = Self { process, said, directory };
        assert_eq!(manager.said.next().as_deref(), Some("ready"), "the manager did not start");
        manager
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// `tidegate run OPTIONS -- PROGRAM`, not started yet.
    pub fn run(&self, options: &[&str], program: &Path) -> Command {
        run_at(&self.socket(), options, program)
    }

    /// A probe under this manager.
    pub fn probe(&self, options: &[&str]) -> Probe {
        Probe::start(self.run(options, &probe()))
    }

    pub fn status(&self) -> Status {
        self.try_status().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The status, if there is a manager: else what the command says of that.
    pub fn try_status(&self) -> Result<Status, String> {
        try_status_of(&self.socket())
    }

    /// The status, as soon as `wanted` holds of it.
    pub fn status_when(&self, wanted: impl Fn(&Status) -> bool) -> Status {
        let began = Instant::now();
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it did not come to this: {status:#?}");
        }
    }

    /// Waits until `wanted` holds of the status, of a manager that does not always tell it.
    pub fn comes_to(&self, wanted: impl Fn(&Status) -> bool) {
        comes_to(&self.socket(), wanted);
    }

    /// Has `work` done again and again, until the jobs have been switched so often, all added up.
    /// How much work that takes is the machine's affair; that another switch comes is not.
    pub fn work_until_switched(&self, jobs: &[&str], switches: u64, mut work: impl FnMut()) {
        let count = || self.switches(jobs);
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let counted = count();
            if counted >= switches {
                return;
            }
            if counted > last {
                (last, since) = (counted, Instant::now());
            }
            assert!(since.elapsed() < PATIENCE, "{counted} switches of {switches}, and no more come");
            work();
        }
    }

    /// How often these jobs have been switched, all added up.
    pub fn switches(&self, jobs: &[&str]) -> u64 {
        let status = self.status();
        jobs.iter().map(|name| status.job(name).figures.switches).sum()
    }

    pub fn job(&self, name: &str) -> JobStatus {
        self.status().job(name).clone()
    }

    /// Whether it comes to its end by itself.
    pub fn has_ended(&self) -> bool {
        self.said.ended()
    }

    /// The manager that serves now: the one that was started, or one that has taken over.
    pub fn pid(&self) -> u32 {
        let serving = UnixStream::connect(self.socket()).ok();
        let peer = serving.and_then(|socket| rustix::net::sockopt::socket_peercred(&socket).ok());
        peer.map_or(self.process.id(), |peer| peer.pid.as_raw_nonzero().get() as u32)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // SAFETY: a signal to who serves our own socket, our child or another manager after it.
        unsafe { libc::kill(self.pid() as i32, libc::SIGTERM) };
        let ended = self.said.ended();
        if !ended {
            // SAFETY: a signal to the group that was made for the manager, which has not been waited for.
            unsafe { libc::kill(-(self.process.id() as i32), libc::SIGKILL) };
        }
        let _ = self.process.wait();
        assert!(ended || std::thread::panicking(), "the manager did not end when it was told to");
    }
}

/// Reading a status.
pub trait Jobs {
    fn job(&self, name: &str) -> &JobStatus;
    fn has_ended(&self, name: &str) -> bool;
    fn ended_job(&self, name: &str) -> &EndedJob;
}

impl Jobs for Status {
    fn job(&self, name: &str) -> &JobStatus {
        self.jobs
            .iter()
            .find(|job| job.figures.name == name)
            .unwrap_or_else(|| panic!("no job {name}: {self:#?}"))
    }

    fn has_ended(&self, name: &str) -> bool {
        self.ended.iter().any(|job| job.name == name)
    }

    fn ended_job(&self, name: &str) -> &EndedJob {
        self.ended
            .iter()
            .find(|job| job.name == name)
            .unwrap_or_else(|| panic!("{name} has not ended: {self:#?}"))
    }
}

/// `tidegate run OPTIONS -- PROGRAM` under the manager at a socket, not started yet.
pub fn run_at(socket: &Path, options: &[&str], program: &Path) -> Command {
    let mut command = command();
    command.arg("run").arg("--socket").arg(socket).args(options).arg("--").arg(program);
    command
}

/// The status that the manager at a socket tells, or what the command says where there is none.
fn try_status_of(socket: &Path) -> Result<Status, String> {
    let mut command = command();
    command.args(["status", "--json", "--socket"]).arg(socket);
    let output = patience::output(command);
    let told = output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap());
    told.ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Waits until `wanted` holds of the status that the manager at a socket tells, at times.
pub fn comes_to(socket: &Path, wanted: impl Fn(&Status) -> bool) {
    let began = Instant::now();
    loop {
        match try_status_of(socket) {
            Ok(status) if wanted(&status) => return,
            other => assert!(began.elapsed() < PATIENCE, "it did not come to this: {other:#?}"),
        }
    }
}

/// Nothing of the first GPU, or of its tiers, is in use or lost.
pub fn nothing_is_used(status: &Status) -> bool {
    let gpu = &status.gpus[0];
    let used = gpu.persistent.used_bytes + gpu.temporary.used_bytes + gpu.tiers[0].used_bytes;
    used == 0 && gpu.spans.is_empty() && gpu.free_bytes + gpu.spare_bytes == gpu.gpu_memory_bytes
}

/// What a process has open, by name.
pub fn open_files(pid: u32) -> Vec<PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok()).collect()
}

/// How many files a manager has open, without pieces and memory for saved bytes: how many of these there are is the
/// ledger's affair, and the tiers'.
pub fn files_but_memory(manager: u32) -> usize {
    let is_memory = |name: &PathBuf| {
        let name = name.to_string_lossy();
        // Memory for saved bytes is kept for the next save for a minute.
        name.contains("/piece-") || name.contains("memfd:tidegate-saved")
    };
    open_files(manager).iter().filter(|name| !is_memory(name)).count()
}

/// Copies a program that is then run. Another process does it: what this one has open to write, a child
/// that is started elsewhere at that moment has too, and the program would be busy.
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "copying {} failed", from.display());
}

/// A program that does what it is told (tests/programs/probe.rs).
pub struct Probe {
    pub process: Child,
    orders: Option<ChildStdin>,
    answers: Lines,
}

impl Probe {
    pub fn start(mut command: Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = process.stdin.take();
        let answers = Lines::of(process.stdout.take().unwrap());
        Self { process, orders, answers }
    }

    /// Sends an order without waiting for its answer.
    pub fn order(&mut self, line: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next answer: `Ok` or `Err` with its words.
    #[track_caller]
    pub fn answer(&mut self) -> Result<String, String> {
        let Some(line) = self.answers.next() else { return Err("the program ended".into()) };
        match line.trim_end().split_once(' ') {
            Some(("ok", words)) => Ok(words.into()),
            Some(("error", words)) => Err(words.into()),
            _ if line.trim_end() == "ok" => Ok(String::new()),
            _ => Err(format!("the program said {line:?}")),
        }
    }

    /// Orders, and waits for a good answer.
    #[track_caller]
    pub fn tell(&mut self, line: &str) -> String {
        self.order(line);
        self.answer().unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Orders, and waits for the answer, of a program that may have ended.
    #[track_caller]
    pub fn try_tell(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.orders.as_mut().unwrap(), "{line}").map_err(|_| "the program ended")?;
        self.answer()
    }

    /// Ends the program and waits for its end.
    pub fn end(mut self) {
        self.orders = None;
        assert!(self.answers.ended(), "the program did not end when it was told to");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `tidegate`, once all that it needs is built. Under cargo it would build that itself, while the
/// test waits for something else; so the test does, however long it takes.
pub fn command() -> Command {
    artifacts::shim().expect("the libraries build");
    let mut command = Command::new(tidegate());
    command.env_remove("CARGO");
    command
}

/// Where the command lies.
pub fn tidegate() -> &'static str {
    env!("CARGO_BIN_EXE_tidegate")
}

pub fn probe() -> PathBuf {
    artifacts::example("probe").unwrap()
}

/// A client without a driver (tests/programs/client.rs).
pub fn client(manager: &Manager) -> Command {
    let mut command = Command::new(artifacts::example("client").unwrap());
    command.env("TIDEGATE_SOCKET", manager.socket());
    command
}

/// Processes that go on until they are dropped.
pub struct Crowd(Vec<Child>);

impl Crowd {
    pub fn of(count: usize, mut start: impl FnMut() -> Child) -> Self {
        Self((0..count).map(|_| start()).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A client that attacks.
pub fn hostile(manager: &Manager) -> Command {
    let mut command = Command::new(artifacts::example("hostile").unwrap());
    command.arg(&manager.status().gpus[0].uuid).env("TIDEGATE_SOCKET", manager.socket());
    command
}

pub fn train_digits() -> PathBuf {
    artifacts::example("train_digits").unwrap()
}

pub fn feeder() -> PathBuf {
    artifacts::example("feeder").unwrap()
}
