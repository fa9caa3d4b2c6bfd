//! Trainings (`examples/train_digits`) whose results are compared with those that they have alone.

use super::patience::Lines;
use super::{Manager, train_digits};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tidegate_manager::software_gpu::{NODE_VARIABLE, SoftwareNode};

/// A training that runs.
pub struct Training {
    process: Child,
    lines: Lines,
}

impl Training {
    /// `command` starts `train_digits`, under a manager or not.
    pub fn start(mut command: Command, arguments: &[&str]) -> Self {
        let mut process = command.args(arguments).arg("--json-lines").stdout(Stdio::piped()).spawn().unwrap();
        let lines = Lines::of(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// Waits for the end: its last line.
    pub fn result(mut self) -> String {
        let last = self.lines.last().unwrap_or_default();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}: {last}");
        last
    }
}

/// One that tells no boundaries, and takes a second or so.
pub fn without_boundaries(seed: &str) -> [&str; 10] {
    ["--hidden", "256", "--batch", "240", "--steps", "240", "--boundaries", "no", "--seed", seed]
}

/// The result of a training that has a software GPU for itself, without Tidegate.
pub fn alone(arguments: &[&str]) -> String {
    alone_on("1x4MiB", arguments)
}

/// The same, on a GPU of some size.
pub fn alone_on(gpu: &str, arguments: &[&str]) -> String {
    let node = SoftwareNode::create(&gpu.parse().unwrap(), 64 << 10).unwrap();
    let mut command = Command::new(train_digits());
    command.env(NODE_VARIABLE, node.path()).env("LD_LIBRARY_PATH", node.path().join("lib"));
    Training::start(command, arguments).result()
}

/// Trainings under a manager, one after another, beside whatever a test does.
pub struct Bystander {
    over: Arc<AtomicBool>,
    trainings: Option<JoinHandle<u32>>,
}

impl Bystander {
    /// The trainings are a job called `bystander`.
    pub fn start(manager: &Manager, environment: (&'static str, PathBuf)) -> Self {
        let arguments = without_boundaries("1");
        let over = Arc::new(AtomicBool::new(false));
        let (told, socket) = (over.clone(), manager.socket());
        let trainings = std::thread::spawn(move || {
            let solo = alone(&arguments);
            let mut count = 0;
            while count == 0 || !told.load(Ordering::Relaxed) {
                let mut command = super::run_at(&socket, &["--name", "bystander"], &train_digits());
                command.env(environment.0, &environment.1);
                assert_eq!(Training::start(command, &arguments).result(), solo, "training {count}");
                count += 1;
            }
            count
        });
        Self { over, trainings: Some(trainings) }
    }

    /// Waits for the last one: how many there were, each of which ended as it does alone.
    pub fn end(mut self) -> u32 {
        self.over.store(true, Ordering::Relaxed);
        let trainings = self.trainings.take().unwrap();
        trainings.join().unwrap_or_else(|failure| std::panic::resume_unwind(failure))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
