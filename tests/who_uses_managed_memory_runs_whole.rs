//! Managed memory lies where it is touched, so no switch can take it away. A job that uses it is not stopped
//! and computes as it does alone; who does not fit beside it waits, is told behind whom, and runs after it.
//! Its manager's death changes nothing about that.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
mod support;

use c::Compiler;
use node::Node;
use std::process::{Command, Stdio};
use support::deaths::kill;
use support::patience::{Lines, output};
use support::{Jobs, MIB, Manager, Probe, Status};

/// Microseconds after which it would have been closed if it were to be: many slices.
const LONG_AFTER: u64 = 500_000;

#[test]
fn who_uses_managed_memory_runs_whole() {
    let times = ["--slice", "5ms", "--boundary-deadline", "5ms"];
    let manager = Manager::start("1x6MiB", &[&times[..], &["--unit", "64KiB", "--offset", "64KiB"]].concat());
    let compiler = Compiler::with(Node::of(&manager).libraries());
    let (program, kernels) = (compiler.compile("managed"), compiler.compile_kernels("count_up_kernel"));
    let with_kernels = |mut command: Command| {
        command.arg(&kernels);
        command
    };
    let alone = output(with_kernels(Node::of(&manager).run(&program)));
    assert_eq!(String::from_utf8_lossy(&alone.stdout), "filled\nas expected\n");

    let mut command = with_kernels(manager.run(&["--name", "managed"], &program));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let said = Lines::of(process.stdout.take().unwrap());
    let warned = Lines::of(process.stderr.take().unwrap());
    assert_eq!(said.next().as_deref(), Some("filled"));
    assert!(warned.next().unwrap().contains("managed memory"));

    let mut command = manager.run(&["--name", "waiter", "--priority", "5"], &support::probe());
    command.stderr(Stdio::piped());
    let mut waiter = Probe::start(command);
    let told = Lines::of(waiter.process.stderr.take().unwrap());
    waiter.tell("device 0");
    waiter.order(&format!("alloc t {}", 4 * MIB));
    let begin = manager.status_when(|status| status.job("waiter").state == "waiting").now_micros;
    let status = manager.status_when(|status| status.now_micros > begin + LONG_AFTER);
    assert!(is_whole(&status), "{status:#?}");
    assert_eq!(status.job("managed").figures.slices, 1);
    assert!(told.next().unwrap().starts_with("tidegate: waiting for GPU memory"));
    let line = told.next().unwrap();
    assert!(line.contains("\"managed\"") && line.contains("cannot be preempted"), "{line}");

    kill(manager.pid());
    manager.comes_to(|status| status.now_micros > begin + 2 * LONG_AFTER && is_whole(status));

    drop(process.stdin.take());
    assert_eq!(said.next().as_deref(), Some("as expected"));
    assert!(process.wait().unwrap().success());
    waiter.answer().expect("the room of who has ended is free");
    waiter.tell("fill t 1");
    waiter.tell("check t 1");
}

/// The job runs, has never been closed, and will not be, while the other waits.
fn is_whole(status: &Status) -> bool {
    let job = status.job("managed");
    let runs = (&job.state[..], job.figures.switches, job.unsliceable) == ("open", 0, true);
    let why = job.unsliceable_because.as_deref() == Some("it uses managed memory");
    runs && why && status.job("waiter").state == "waiting"
}
