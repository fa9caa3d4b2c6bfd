//! What the benches share: trainings that are timed from outside, and statistics.
#![allow(dead_code, reason = "each bench uses its own part")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A training that is running, and when each of its lines came.
pub struct Training {
    process: Child,
    began: Instant,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Training {
    /// Starts `train_digits` by a command that has no arguments of it yet.
    pub fn start(mut command: Command, arguments: &[&str]) -> Self {
        let began = Instant::now();
        let mut process = command.args(arguments).arg("--json-lines").stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, began, lines }
    }

    /// The time from its start to its next step's end; `None` when there is none any more.
    pub fn step(&mut self) -> Option<Duration> {
        let line = self.lines.next()?.unwrap();
        line.starts_with("{\"step\"").then(|| self.began.elapsed())
    }

    /// Waits for its good end.
    pub fn end(mut self) {
        self.lines.by_ref().for_each(drop);
        assert!(self.process.wait().unwrap().success());
    }

    /// Runs to the end: what a step takes, without the first, which holds the start-up.
    pub fn step_cost(mut self) -> StepCost {
        let first = self.step().expect("a first step");
        let used_first = Used::by(self.process.id());
        let (mut last, mut used, mut steps) = (first, used_first, 0);
        while let Some(time) = self.step() {
            (last, used, steps) = (time, Used::by(self.process.id()), steps + 1);
        }
        self.end();
        let each = |amount: u64| amount as f64 / f64::from(steps);
        StepCost {
            millis: (last - first).as_secs_f64() * 1e3 / f64::from(steps),
            user_millis: each(used.user_ticks - used_first.user_ticks) * MILLIS_OF_A_TICK,
            page_faults: each(used.page_faults - used_first.page_faults),
        }
    }
}

/// What a step of a training takes.
pub struct StepCost {
    /// By the clock on the wall.
    pub millis: f64,
    /// By the processor, outside the kernel.
    pub user_millis: f64,
    /// Pages that the kernel had to make.
    pub page_faults: f64,
}

/// Of `/proc/PID/stat`, on every Linux for programs.
const MILLIS_OF_A_TICK: f64 = 10.0;

/// What a process has used so far.
#[derive(Clone, Copy)]
struct Used {
    page_faults: u64,
    user_ticks: u64,
}

impl Used {
    fn by(pid: u32) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The name, in brackets, is the second field and may hold anything.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<&str> = fields.split(' ').collect();
        let number = |field: usize| fields[field - 3].parse().unwrap();
        Self { page_faults: number(10), user_ticks: number(14) }
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Middle, least and greatest of some numbers.
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
}

impl Spread {
    /// Of at least one number.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Self { median, least: sorted[0], greatest: sorted[sorted.len() - 1] }
    }

    /// In one line, with three digits.
    pub fn line(&self, unit: &str) -> String {
        format!("median {:.3}{unit}, from {:.3} to {:.3}{unit}", self.median, self.least, self.greatest)
    }
}
