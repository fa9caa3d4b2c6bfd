//! Programs that allocate, say so, wait, and then use their memory; and the proof that a manager has
//! seen what they did.
#![allow(dead_code, reason = "each test file uses its own part")]

use super::support::patience::Lines;
use super::support::{Jobs, MIB, Manager};
use std::process::{Child, Command, Stdio};

/// What each program allocates (`BYTES` in driver.h and runtime.h).
pub const ALLOCATED: u64 = 4 * MIB;
/// What `tidegate run` is told of it.
pub const NEED: [&str; 2] = ["--need", "0,4MiB"];
/// How often the other job uses its memory: it is busy until the program has made its call.
const ROUNDS: u64 = 5;

/// A manager whose GPU is too small for two of the programs at once.
pub fn manager() -> Manager {
    Manager::start(
        "1x6MiB",
        &["--unit", "64KiB", "--offset", "64KiB", "--slice", "1ms", "--boundary-deadline", "1ms"],
    )
}

/// The program's memory is the manager's, and goes to somebody else while the program does nothing.
/// A call past the gate would then find nothing at its address, and memory past the ledger would
/// not have been counted.
pub fn is_seen(manager: &Manager, name: &str, mut program: Program) {
    assert_eq!(program.line(), "filled", "{name}");
    let job = manager.job(name);
    assert_eq!(job.figures.peak_temporary_bytes, ALLOCATED, "{name}");
    assert!(job.persistent_bytes + job.temporary_bytes >= ALLOCATED, "{name}: {job:#?}");
    let mut other = manager.probe(&["--name", "other", "--priority", "1", NEED[0], NEED[1]]);
    other.tell("device 0");
    other.tell(&format!("alloc t {ALLOCATED}"));
    program.go_on();
    for round in 0..ROUNDS {
        other.tell(&format!("fill t {round}"));
        other.tell(&format!("check t {round}"));
    }
    other.end();
    assert_eq!(program.line(), "as expected", "{name}");
    program.end();
    let status = manager.status_when(|status| status.has_ended(name));
    let figures = status.ended_job(name);
    assert!(figures.switches >= 1 && figures.restored_bytes >= ALLOCATED, "{name}: {figures:#?}");
}

/// A program of `driver.h` or `runtime.h`, which says a word at each step and waits after the first.
pub struct Program {
    process: Child,
    lines: Lines,
    /// What it says on stderr: a program stands still at a full pipe.
    errors: Lines,
}

impl Program {
    /// Starts it.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let lines = Lines::of(process.stdout.take().unwrap());
        let errors = Lines::of(process.stderr.take().unwrap());
        Self { process, lines, errors }
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    /// The next word.
    pub fn line(&mut self) -> String {
        self.lines.next().unwrap_or_else(|| format!("nothing; {}", self.said()))
    }

    /// Lets it do the rest.
    pub fn go_on(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Its good end, and what it said on stderr.
    pub fn end(mut self) -> String {
        assert!(self.lines.ended(), "it goes on and on");
        let said = self.said();
        assert!(self.process.wait().unwrap().success(), "{said}");
        said
    }

    fn said(&self) -> String {
        self.errors.rest().join("\n")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the program said: {}", self.said());
        }
    }
}
