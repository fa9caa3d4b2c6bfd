//! R4.1: a Python program ends under Tidegate as it would alone, however it was started and however it ends; and is
//! watched all the same.

#[path = "support/node.rs"]
mod node;
#[path = "support/program.rs"]
mod program;
mod support;
#[path = "support/torch.rs"]
mod torch;

use node::Node;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::patience::finish_within;
use support::{Jobs, Manager};
use torch::script;

const PATIENCE: Duration = Duration::from_secs(300);

fn site_packages(python: &Path) -> PathBuf {
    let lib = python.parent().unwrap().with_file_name("lib");
    let version = std::fs::read_dir(lib).unwrap().next().unwrap().unwrap();
    version.path().join("site-packages")
}

/// The program with its Python's options.
fn program(mut command: Command, options: &[&str], site: &Path, mode: &str) -> Command {
    command.args(options);
    let mut command = script(command, "torch_ends.py");
    command.arg(site).arg(mode).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What an output has, but for our own lines.
fn as_alone(output: &Output) -> (Option<i32>, String, Vec<String>) {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = said.lines().filter(|line| !line.starts_with("tidegate: ")).map(Into::into);
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), lines.collect())
}

/// How it is started, in which mode, and whether it lives long enough for its boundaries to be learnt.
const STARTS: [(&str, &[&str], &str); 5] = [
    ("plain", &[], ""),
    ("isolated", &["-I", "-S"], ""),
    ("workers", &[], "workers"),
    ("raise", &[], "raise"),
    ("interrupt", &[], "interrupt"),
];

#[test]
fn however_it_starts_and_ends_it_is_as_alone_and_watched() {
    let Some(python) = torch::python() else { return };
    let (manager, site) = (Manager::start("1x1GiB", &[]), site_packages(&python));
    let node = Node::of(&manager);
    let started = STARTS.map(|(name, options, mode)| {
        let alone = program(node.run(&python), options, &site, mode).spawn().unwrap();
        let mut job = program(manager.run(&["--name", name], &python), options, &site, mode);
        (name, alone, job.env("TIDEGATE_LOG", "info").spawn().unwrap())
    });
    for (name, alone, job) in started {
        let [alone, job] = [alone, job].map(|program| finish_within(PATIENCE, program));
        assert_eq!(as_alone(&job), as_alone(&alone), "{name}");
        let figures = manager.status_when(|status| status.has_ended(name)).ended_job(name).clone();
        assert!(figures.boundaries >= 6, "{name}: {figures:#?}");
    }
}

#[test]
fn a_sitecustomize_of_its_own_is_run_and_one_that_is_killed_leaves_nothing() {
    let Some(python) = torch::python() else { return };
    let (manager, site) = (Manager::start("1x1GiB", &[]), site_packages(&python));
    let own = tempfile::tempdir().unwrap();
    std::fs::write(own.path().join("sitecustomize.py"), "print('customized', flush=True)\n").unwrap();
    let mut job = program(manager.run(&["--name", "killed"], &python), &[], &site, "wait");
    let mut job = job.env("PYTHONPATH", own.path()).spawn().unwrap();
    let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "customized");
    assert_eq!(lines.next().unwrap().unwrap(), "waiting");
    job.kill().unwrap();
    assert!(!finish_within(PATIENCE, job).status.success());
    let status = manager.status_when(|status| status.has_ended("killed"));
    assert!(status.ended_job("killed").boundaries >= 6, "{:#?}", status.ended_job("killed"));
    manager.status_when(|status| {
        let gpu = &status.gpus[0];
        gpu.persistent.used_bytes == 0 && gpu.temporary.used_bytes == 0
    });
}
