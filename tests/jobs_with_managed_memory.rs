//! Managed memory lies where it is used: the driver moves its pages. A job that uses it is switched like others, and the driver
//! is asked to move them to the host. Where host and GPU cannot use them at the same time the job is not stopped; a job that
//! does not fit beside it waits, is told behind which one, and runs after it. The manager's death changes nothing about that.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
mod support;

use c::Compiler;
use node::Node;
use std::process::{Child, Command, Stdio};
use support::deaths::kill;
use support::patience::{Lines, output};
use support::{Jobs, MIB, Manager, Probe, Status};

/// Microseconds after which it would have been closed if it were to be: many slices.
const LONG_AFTER: u64 = 500_000;

const OPTIONS: [&str; 8] =
    ["--slice", "5ms", "--boundary-deadline", "5ms", "--unit", "64KiB", "--offset", "64KiB"];

/// A job with managed memory, which has filled it, and goes on when its input ends.
struct Managed {
    process: Child,
    said: Lines,
    warned: Lines,
    /// Its program's and its kernels' files.
    _compiler: Compiler,
}

impl Managed {
    fn start(manager: &Manager) -> Self {
        let compiler = Compiler::with(Node::of(manager).libraries());
        let (program, kernels) = (compiler.compile("managed"), compiler.compile_kernels("count_up_kernel"));
        let with_kernels = |mut command: Command| {
            command.arg(&kernels);
            command
        };
        let alone = output(with_kernels(Node::of(manager).run(&program)));
        let nowhere = "filled\nprefetched to -2\nas expected\n";
        assert_eq!(String::from_utf8_lossy(&alone.stdout), nowhere);
        let mut command = with_kernels(manager.run(&["--name", "managed"], &program));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let said = Lines::of(process.stdout.take().unwrap());
        let warned = Lines::of(process.stderr.take().unwrap());
        assert_eq!(said.next().as_deref(), Some("filled"));
        Self { process, said, warned, _compiler: compiler }
    }

    /// It ends as it does alone. Its managed memory was prefetched to that device, the last time.
    fn end(mut self, prefetched_to: &str) {
        drop(self.process.stdin.take());
        let prefetched = format!("prefetched to {prefetched_to}");
        assert_eq!(self.said.next().as_deref(), Some(&prefetched[..]));
        assert_eq!(self.said.next().as_deref(), Some("as expected"));
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
fn a_job_with_managed_memory_is_switched() {
    let manager = Manager::start("1x6MiB", &OPTIONS);
    let managed = Managed::start(&manager);
    let mut other = Probe::start(manager.run(&["--name", "other"], &support::probe()));
    other.tell("device 0");
    other.tell(&format!("alloc t {}", 4 * MIB));
    other.tell("fill t 1");
    let status = manager.status();
    let job = status.job("managed");
    assert!(job.figures.switches > 0 && !job.unsliceable, "{status:#?}");
    managed.end("-1");
    other.tell("check t 1");
}

#[test]
fn where_the_driver_cannot_move_it_a_job_with_managed_memory_runs_whole() {
    let manager = Manager::start("1x6MiB,managed=exclusive", &OPTIONS);
    let managed = Managed::start(&manager);
    assert!(managed.warned.next().unwrap().contains("managed memory"));

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

    managed.end("-2");
    waiter.answer().expect("the room of a job that has ended is free");
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
