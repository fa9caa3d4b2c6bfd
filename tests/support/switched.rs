//! A program of `tests/programs` beside another job with which it does not fit: it is switched, and no closing of it fails.

use super::c::Compiler;
use super::node::Node;
use super::program::Program;
use super::support::{JobStatus, Manager, Probe};

/// What each of the two jobs has: they do not fit together.
const BYTES: u64 = 4 << 20;
/// How often the job is switched.
const SWITCHES: u64 = 12;
/// How long its slices are, where nothing else is said: it is stopped as soon as that can be.
pub const SLICE: &str = "5ms";

/// A manager on whose GPU they do not fit.
fn manager(options: &[&str]) -> Manager {
    let sizes = ["--unit", "64KiB", "--offset", "64KiB", "--boundary-deadline", "5ms"];
    Manager::start("1x6MiB", &[&sizes[..], options].concat())
}

/// A job that uses its memory again and again.
fn other(manager: &Manager) -> Probe {
    let mut other = manager.probe(&["--name", "other"]);
    other.tell("device 0");
    other.tell(&format!("alloc t {BYTES}"));
    other.tell("fill t 3");
    other
}

/// Beside another job a program is switched, and no closing of it fails.
pub fn drains(program: &str, arguments: &[&str], kernels: &str) {
    is_switched(SWITCHES, SLICE, program, arguments, kernels);
}

/// The same, so often, with slices of that length.
pub fn is_switched(times: u64, slice: &str, program: &str, arguments: &[&str], kernels: &str) {
    is_switched_with(times, &["--slice", slice], program, arguments, kernels);
}

/// The same under a manager with these options.
pub fn is_switched_with(times: u64, options: &[&str], program: &str, arguments: &[&str], kernels: &str) {
    let job = switch(times, options, program, arguments, kernels);
    assert_eq!((job.figures.failed_drains, job.unsliceable), (0, false), "{job:#?}");
}

/// Under a manager with these options a program is switched so often beside another job, and ends as it does alone. What became of
/// it until then.
pub fn switch(times: u64, options: &[&str], program: &str, arguments: &[&str], kernels: &str) -> JobStatus {
    let manager = manager(options);
    let compiler = Compiler::with(Node::of(&manager).libraries());
    let mut command = manager.run(&["--name", program], &compiler.compile(program));
    command.args(arguments).arg(compiler.compile_kernels(kernels));
    let mut run = Program::start(command);
    assert_eq!(run.line(), "begun");
    let mut other = other(&manager);
    manager.work_until_switched(&[program], times, || _ = other.tell("check t 3"));
    let job = manager.job(program);
    let (drain, closings) = (job.figures.switch_micros.drain, &job.figures.closing_micros);
    println!("{program} {arguments:?}: a drain takes {drain} us, closings {closings:?} us");
    other.end();
    run.go_on();
    assert_eq!(run.line(), "as expected");
    run.end();
    job
}
