//! The loops of `tests/programs/torch_loops.py`, run as jobs, and what their runs show.
#![allow(dead_code, reason = "each test file uses its own part")]

use super::support::patience::finish_within;
use super::support::{Jobs, Manager};
use super::torch::{Endless, has_allocated, printed, script};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;
use tidegate_manager::server::status::EndedJob;

const PATIENCE: Duration = Duration::from_secs(300);

/// So often no loop is stopped.
const ENDLESS: u64 = u64::MAX;

/// A loop, as a job.
#[derive(Clone, Copy, Debug)]
pub struct Loop<'a> {
    /// The job's name.
    pub name: &'a str,
    /// Which of `torch_loops.py`.
    pub of: &'a str,
    /// What PyTorch's allocator is told.
    pub allocator: &'a str,
    /// It goes on until it was stopped so often.
    pub switches: u64,
}

impl<'a> Loop<'a> {
    /// That of a name, perhaps with what PyTorch's allocator is told behind it.
    pub fn named(name: &'a str) -> Self {
        let (of, allocator) = name.split_once(' ').unwrap_or((name, ""));
        Self { name, of, allocator, switches: 0 }
    }

    pub fn start(self, manager: &'a Manager, python: &Path) -> Running<'a> {
        let mut job = script(manager.run(&["--name", self.name], python), "torch_loops.py");
        job.args([self.of, &self.switches.to_string()]).env("PYTORCH_CUDA_ALLOC_CONF", self.allocator);
        job.stdin(Stdio::null());
        if self.switches == ENDLESS {
            // Nobody reads what it says.
            job.stdout(Stdio::null()).stderr(Stdio::null());
        } else {
            job.env("TIDEGATE_LOG", "info").env("TIDEGATE_AUDIT", if self.has_blocks() { "1" } else { "0" });
            job.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        Running { name: self.name, manager, process: job.spawn().unwrap() }
    }

    /// Another of its kind that never ends; it has had so many bytes of temporary memory.
    pub fn rival(self, manager: &Manager, python: &Path, bytes: u64) -> Endless {
        let rival = Loop { name: "rival", switches: ENDLESS, ..self }.start(manager, python);
        let rival = Endless(rival.process);
        manager.status_when(|status| has_allocated(status, "rival", bytes));
        rival
    }

    /// Whether PyTorch deals out blocks that can be compared.
    pub fn has_blocks(&self) -> bool {
        !self.allocator.starts_with("backend")
    }
}

/// A loop that runs.
pub struct Running<'a> {
    name: &'a str,
    manager: &'a Manager,
    pub process: Child,
}

/// What a run of a loop has shown.
pub struct Run {
    /// Bytes of parameters and of the state of optimizers.
    pub persistent: u64,
    /// The most bytes of all tensors at once.
    pub peak: u64,
    /// What was said of its boundaries, in order.
    pub chosen: Vec<String>,
    /// How often all blocks were found to be as PyTorch has them.
    pub audits: u64,
    pub figures: EndedJob,
}

impl Running<'_> {
    pub fn end(self) -> Run {
        let Self { name, manager, process } = self;
        let output: Output = finish_within(PATIENCE, process);
        let words = printed(&output);
        let (persistent, peak) = words.trim().split_once(' ').unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("not understood") && !said.contains("add up"), "{name}: {said}");
        let chosen = said.lines().filter_map(|line| line.strip_prefix("tidegate: boundaries: "));
        Run {
            persistent: persistent.parse().unwrap(),
            peak: peak.parse().unwrap(),
            chosen: chosen.map(Into::into).collect(),
            audits: said.matches("blocks are as PyTorch has them").count() as u64,
            figures: manager.status_when(|status| status.has_ended(name)).ended_job(name).clone(),
        }
    }
}

impl Run {
    /// The boundary that was chosen last, and how many bytes are alive there.
    pub fn boundary(&self) -> (&str, u64) {
        let last = self.chosen.last().expect("a boundary was chosen");
        let (moment, rest) = last.split_once(" (").unwrap();
        let (_, bytes) = rest.rsplit_once('(').unwrap();
        (moment, bytes.split(' ').next().unwrap().parse().unwrap())
    }
}
