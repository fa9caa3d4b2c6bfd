//! One training of the demo: how it is started, and what it tells.

use crate::software_gpu::{NODE_VARIABLE, SoftwareNode};
use anyhow::{Context, bail};
use bytesize::ByteSize;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the demo will do.
pub(super) struct Plan {
    pub(super) software: bool,
    /// The GPU, in the introduction's words.
    pub(super) gpu: &'static str,
    pub(super) jobs: u64,
    pub(super) steps: u32,
    pub(super) hidden: u32,
    pub(super) batch: u32,
    pub(super) gpu_memory: u64,
    pub(super) unit: u64,
    pub(super) offset: u64,
    pub(super) slice: Duration,
    pub(super) poison: bool,
    pub(super) program: PathBuf,
}

/// The result of a training, as `train_digits --json-lines` prints it last.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Summary {
    pub(super) steps: u32,
    pub(super) accuracy: f64,
    pub(super) weights_digest: String,
    pub(super) losses_bits: Vec<u32>,
}

/// A training that ended well.
#[derive(Debug, Clone)]
pub(super) struct Training {
    pub(super) summary: Summary,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Summary(Summary),
    Step { step: u64, loss: f32 },
}

impl Plan {
    pub(super) fn introduction(&self) -> String {
        format!(
            "{} jobs train on {} of {}:\n{} steps each, two hidden layers of {}, batches of {}.",
            self.jobs,
            ByteSize(self.gpu_memory).display().iec(),
            self.gpu,
            self.steps,
            self.hidden,
            self.batch,
        )
    }

    /// The name of the job that starts from `seed`.
    pub(super) fn name(seed: u64) -> String {
        format!("digits-{seed}")
    }

    /// A job without Tidegate.
    pub(super) fn solo(&self, seed: u64, node: Option<&SoftwareNode>) -> anyhow::Result<Command> {
        let mut command = Command::new(&self.program);
        self.arguments(&mut command, seed, true);
        command.env_remove("LD_PRELOAD");
        if let Some(node) = node {
            command.env(NODE_VARIABLE, node.path());
            command.env("LD_LIBRARY_PATH", node.path().join("lib"));
        }
        Ok(command)
    }

    /// A job under the manager at `socket`.
    pub(super) fn shared(&self, seed: u64, socket: &Path, at_boundary: bool) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("run").arg("--socket").arg(socket).args(["--name", &Self::name(seed), "--"]);
        command.arg(&self.program);
        self.arguments(&mut command, seed, at_boundary);
        Ok(command)
    }

    fn arguments(&self, command: &mut Command, seed: u64, boundaries: bool) {
        let steps = ["--steps".into(), self.steps.to_string(), "--seed".into(), seed.to_string()];
        let sizes = ["--hidden".into(), self.hidden.to_string(), "--batch".into(), self.batch.to_string()];
        let boundaries = if boundaries { "yes" } else { "no" };
        command.args(steps).args(sizes).args(["--boundaries", boundaries, "--json-lines"]);
    }
}

/// A live line per job.
pub(super) struct Lines {
    bars: MultiProgress,
    steps: u32,
}

/// A job that runs.
pub(super) struct Running {
    process: Child,
    reader: JoinHandle<anyhow::Result<Option<Summary>>>,
    words: JoinHandle<std::io::Result<()>>,
    name: String,
}

impl Lines {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { bars: MultiProgress::new(), steps: plan.steps }
    }

    /// Starts a job and shows how it goes.
    pub(super) fn follow(&self, seed: u64, mut command: Command) -> anyhow::Result<Running> {
        let name = Plan::name(seed);
        let bar = self.bars.add(ProgressBar::new(self.steps.into()));
        bar.set_style(ProgressStyle::with_template(
            "  {prefix:<10} [{bar:32}] step {pos:>4} of {len}  {msg}",
        )?);
        bar.set_prefix(name.clone());
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let output = process.stdout.take().context("a job has no standard output")?;
        let reader = std::thread::spawn(move || read(BufReader::new(output), &bar));
        let (errors, bars, prefix) = (process.stderr.take(), self.bars.clone(), name.clone());
        let errors = errors.context("a job has no standard error")?;
        let words = std::thread::spawn(move || pass_on(BufReader::new(errors), &prefix, &bars));
        Ok(Running { process, reader, words, name })
    }
}

fn read(output: impl BufRead, bar: &ProgressBar) -> anyhow::Result<Option<Summary>> {
    let mut summary = None;
    for line in output.lines() {
        match serde_json::from_str(&line?).context("a job printed something else than JSON")? {
            Line::Step { step, loss } => {
                bar.set_position(step);
                bar.set_message(format!("loss {loss:.4}"));
            }
            Line::Summary(found) => summary = Some(found),
        }
    }
    if bar.is_hidden() && summary.is_some() {
        println!("  {:<10} {} steps, {}", bar.prefix(), bar.position(), bar.message());
    }
    bar.abandon();
    Ok(summary)
}

/// Passes a job's words to the user on, above the live lines.
fn pass_on(errors: impl BufRead, name: &str, bars: &MultiProgress) -> std::io::Result<()> {
    for line in errors.split(b'\n') {
        let line = line?;
        bars.suspend(|| eprintln!("  {name}: {}", String::from_utf8_lossy(&line)));
    }
    Ok(())
}

impl Running {
    /// Waits for its end; an error if it did not end well.
    pub(super) fn end(mut self) -> anyhow::Result<Training> {
        let summary = self.reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
        self.words.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
        let status = self.process.wait()?;
        if !status.success() {
            bail!("{} failed ({status}); its own words stand above", self.name);
        }
        let summary = summary.with_context(|| format!("{} ended without its result", self.name))?;
        Ok(Training { summary })
    }
}
