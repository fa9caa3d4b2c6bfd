//! Programs of others, from the Python package index, as their users have them: installed into a virtual
//! environment below cargo's target directory, once, and kept there for later runs.
//!
//! A machine that cannot have them (no Python, no index) skips the tests that need them and says so;
//! with `CI` in the environment that is a failure.
#![allow(dead_code, reason = "each test file uses its own part")]

use super::support::patience::finish_within;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long an installation may take: it loads hundreds of megabytes.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A virtual environment with packages.
pub struct Packages(PathBuf);

impl Packages {
    /// Those that `tests/programs/NAME.txt` lists; `None` where they cannot be had.
    pub fn of(name: &str) -> Option<Self> {
        let list =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("txt");
        match installed(name, &list) {
            Ok(directory) => Some(Self(directory)),
            Err(why) if std::env::var_os("CI").is_some() => panic!("{name} cannot be had: {why}"),
            Err(why) => {
                println!("skipped: {name} cannot be had: {why}");
                None
            }
        }
    }

    /// Its Python.
    pub fn python(&self) -> PathBuf {
        self.0.join("bin/python")
    }

    /// The folder of NVIDIA's packages.
    pub fn nvidia(&self) -> PathBuf {
        let lib = std::fs::read_dir(self.0.join("lib")).unwrap().next().unwrap().unwrap();
        lib.path().join("site-packages/nvidia/cu13")
    }
}

/// The environment with the packages of a list, made if it is not there yet. Others may do the same at
/// this moment: the lock is theirs until they are done, or dead.
fn installed(name: &str, list: &Path) -> Result<PathBuf, String> {
    let text = std::fs::read_to_string(list).map_err(|error| error.to_string())?;
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    std::fs::create_dir_all(&cache).map_err(|error| error.to_string())?;
    let lock = File::create(cache.join(format!("{name}.lock"))).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    let directory = cache.join(format!("{name}-{:016x}", digest(&(text, python_version()?))));
    let complete = directory.join("complete");
    if !complete.exists() {
        install(&directory, list)?;
        File::create(complete).map_err(|error| error.to_string())?;
    }
    Ok(directory)
}

fn install(directory: &Path, list: &Path) -> Result<(), String> {
    // What is there is what somebody has left half-done.
    let _ = std::fs::remove_dir_all(directory);
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(directory);
    succeed(venv)?;
    let mut pip = Command::new(directory.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(list);
    succeed(pip)
}

/// Another Python needs other packages.
fn python_version() -> Result<String, String> {
    let mut python = Command::new("python3");
    python.arg("--version");
    succeed_with(python)
}

fn succeed(command: Command) -> Result<(), String> {
    succeed_with(command).map(drop)
}

fn succeed_with(mut command: Command) -> Result<String, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.spawn().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let output = finish_within(PATIENCE, program);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(said.lines().last().unwrap_or("it failed without a word").to_owned())
}

fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
