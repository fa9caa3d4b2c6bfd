//! PyTorch on software GPUs: the environment that `tidegate softgpu venv` prepares, below cargo's target
//! directory, kept there for later runs.
#![allow(dead_code, reason = "each test file uses its own part")]

use super::support::patience::finish_within;
use super::support::tidegate;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tidegate_manager::server::status::Status;

/// How long the preparation may take: it loads half a gigabyte.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Its Python; `None` where it cannot be had, which in CI is a failure.
pub fn python() -> Option<PathBuf> {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("packages");
    std::fs::create_dir_all(&cache).unwrap();
    // Others may do the same at this moment.
    let lock = File::create(cache.join("torch.lock")).unwrap();
    lock.lock().unwrap();
    let directory = cache.join("torch");
    let mut command = Command::new(tidegate());
    command.args(["softgpu", "venv"]).arg(&directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish_within(PATIENCE, command.spawn().unwrap());
    if output.status.success() {
        return Some(directory.join("bin/python"));
    }
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(std::env::var_os("CI").is_none(), "PyTorch cannot be had: {why}");
    println!("skipped: PyTorch cannot be had: {why}");
    None
}

/// `tests/programs/NAME`, run by such a Python.
pub fn script(mut python: Command, name: &str) -> Command {
    // One that is aborted shows where its threads were.
    python.env("PYTHONFAULTHANDLER", "1");
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name));
    python
}

/// What a program that ended well has printed.
pub fn printed(output: &Output) -> String {
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", said(&output.stdout), said(&output.stderr));
    said(&output.stdout)
}

/// Whether a job lives that has had so many bytes of temporary memory.
pub fn has_allocated(status: &Status, name: &str, bytes: u64) -> bool {
    let job = status.jobs.iter().find(|job| job.figures.name == name);
    job.is_some_and(|job| job.figures.peak_temporary_bytes >= bytes)
}

/// A program that goes on until nobody wants it any more.
pub struct Endless(pub Child);

impl Drop for Endless {
    fn drop(&mut self) {
        // It may have ended by itself, which the test sees elsewhere.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
