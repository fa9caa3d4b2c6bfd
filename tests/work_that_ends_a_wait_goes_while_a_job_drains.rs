//! Work on the GPU may wait for work that is not submitted yet. A closing that comes between the two lets the second
//! go: the job drains, is switched as others are, and ends as it does alone.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
#[path = "support/program.rs"]
mod program;
mod support;

use c::Compiler;
use node::Node;
use program::Program;
use support::{Manager, Probe};

/// What each of the two jobs has: they do not fit together.
const BYTES: u64 = 4 << 20;
/// How often the job is switched.
const SWITCHES: u64 = 12;

fn manager(options: &[&str]) -> Manager {
    let sizes = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "5ms", "--boundary-deadline", "5ms"];
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

/// Two threads whose work waits for each other's so.
fn is_switched(how: &str) {
    drains("pairs", &[how], "pairs_kernel");
}

/// Beside another job a program is switched, and no closing of it fails.
fn drains(program: &str, arguments: &[&str], kernels: &str) {
    let manager = manager(&[]);
    let compiler = Compiler::with(Node::of(&manager).libraries());
    let mut command = manager.run(&["--name", program], &compiler.compile(program));
    command.args(arguments).arg(compiler.compile_kernels(kernels));
    let mut run = Program::start(command);
    assert_eq!(run.line(), "begun");
    let mut other = other(&manager);
    manager.work_until_switched(&[program], SWITCHES, || _ = other.tell("check t 3"));
    let job = manager.job(program);
    println!("{program} {arguments:?}: a drain takes {} us", job.figures.switch_micros.drain);
    assert_eq!((job.figures.failed_drains, job.unsliceable), (0, false), "{job:#?}");
    other.end();
    run.go_on();
    assert_eq!(run.line(), "as expected");
    run.end();
}

#[test]
fn a_value_that_a_stream_waits_for_is_written() {
    is_switched("value");
}

#[test]
fn a_batch_of_memory_operations_ends_the_waits_of_another() {
    is_switched("batch");
}

#[test]
fn a_graph_that_waits_for_a_value_is_let_go() {
    is_switched("graph");
}

#[test]
fn memory_that_a_stream_waits_for_is_set() {
    is_switched("copy");
}

#[test]
fn a_host_function_that_waits_for_a_launch_of_another_thread_returns() {
    is_switched("host");
}

/// The thread that lets the other go is one iteration behind it, and stays so while both go on alike.
#[test]
fn a_host_function_that_waits_for_a_thread_in_step_with_its_own_returns() {
    is_switched("step");
}

#[test]
fn a_kernel_that_spins_until_memory_is_set_ends() {
    is_switched("kernel");
}

/// It would wait, as would the stream that it lets go: what others submit meanwhile does not keep it at the gate.
#[test]
fn a_wait_that_comes_before_a_value_is_submitted_beside_a_thread_that_submits_without_end() {
    is_switched("busy");
}

#[test]
fn a_wait_that_comes_before_a_host_functions_end_is_submitted_beside_a_thread_that_submits_without_end() {
    is_switched("busy_host");
}

/// While some stream captures nothing can be drained: the next captures wait until these have ended.
#[test]
fn threads_that_capture_graphs_all_the_time_are_switched() {
    drains("captures", &[], "count_up_kernel");
}

/// I5: they are closed and opened together.
#[test]
fn a_value_that_another_process_of_the_job_waits_for_is_written() {
    is_switched("process");
}
