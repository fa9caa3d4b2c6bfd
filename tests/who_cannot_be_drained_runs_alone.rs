//! A job whose work does not end cannot be stopped. After three tries it is asked seldom: it runs on,
//! who needs its room waits and is told so, and runs as soon as it is gone.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
mod support;

use c::Compiler;
use node::Node;
use std::process::Stdio;
use support::patience::Lines;
use support::{Jobs, MIB, Manager, Probe, Status};

/// `DRAINS_BEFORE_UNSLICEABLE` of manager/src/scheduler/mod.rs.
const TRIES: u64 = 3;
/// Microseconds of waiting after which it would have been closed dozens of times: the pauses before were of some slices of
/// 5 ms. From the third try on they are 3, 6, 12, then 24 drain limits of 20 ms.
const LONG_AFTER: u64 = 1_000_000;
const SELDOM: u64 = 5;

#[test]
fn who_cannot_be_drained_runs_alone() {
    let times = ["--slice", "5ms", "--boundary-deadline", "5ms", "--drain-limit", "20ms"];
    let sizes = ["--unit", "64KiB", "--offset", "64KiB"];
    let manager = Manager::start("1x6MiB", &[&times[..], &sizes[..]].concat());
    let compiler = Compiler::with(Node::of(&manager).libraries());
    let mut command = manager.run(&["--name", "endless"], &compiler.compile("endless"));
    command.arg(compiler.compile_kernels("endless_kernel")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut endless = command.spawn().unwrap();
    let said = Lines::of(endless.stdout.take().unwrap());
    assert_eq!(said.next().as_deref(), Some("launched"));

    let mut command = manager.run(&["--name", "waiter"], &support::probe());
    command.stderr(Stdio::piped());
    let mut waiter = Probe::start(command);
    let told = Lines::of(waiter.process.stderr.take().unwrap());
    waiter.tell("device 0");
    waiter.order(&format!("alloc t {}", 4 * MIB));

    let tried = |status: &Status| status.job("endless").figures.slices > TRIES;
    let begin = manager.status_when(tried).now_micros;
    let status = manager.status_when(|status| status.now_micros > begin + LONG_AFTER);
    let job = status.job("endless");
    let tries = job.figures.failed_drains;
    assert!(tries <= TRIES + SELDOM, "it is closed seldom: {job:#?}");
    assert_eq!((job.figures.switches, job.figures.saved_bytes), (0, 0), "nothing was taken from it");
    assert!(tries >= TRIES && job.figures.slices >= tries);
    assert_eq!((status.job("waiter").queue_place, &status.job("waiter").state[..]), (1, "waiting"));
    assert!(job.unsliceable && !status.job("waiter").unsliceable);
    let line = told.next().unwrap();
    assert!(line.starts_with("tidegate: waiting for GPU memory"), "{line}");
    let line = told.next().unwrap();
    assert!(line.contains("\"endless\"") && line.contains("cannot be preempted"), "{line}");

    endless.kill().unwrap();
    endless.wait().unwrap();
    waiter.answer().expect("the room of the dead is free");
    waiter.tell("fill t 1");
    waiter.tell("check t 1");
}
