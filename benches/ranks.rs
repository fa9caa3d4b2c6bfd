//! How jobs of several processes are switched: `cargo bench --bench ranks [-- NAME…]`
//!
//! Each training of two ranks shares a software GPU with a job beside which it does not fit. For each: how many of its
//! switches were at a boundary, and the median time from the manager's message until all its processes had drained,
//! against 1.5 iterations + 50 ms. An iteration is what one takes while the gate is open. What a training prints must be,
//! bit for bit, what it prints on the bare software GPU.

#[path = "../tests/support/node.rs"]
mod node;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../tests/support/torch.rs"]
mod torch;

use node::Node;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::patience::{finish_within, output_within};
use support::{Jobs, MIB, Manager};
use tidegate_manager::server::status::EndedJob;
use torch::{printed, script};

const PATIENCE: Duration = Duration::from_secs(600);
const SLICE: &str = "100ms";
/// After so many switches a training that can be told to end is told so.
const SWITCHES: u64 = 30;

/// How the ranks of a training are started: the commands, by what runs Python, and a file that ends them.
type Start = fn(run: &dyn Fn() -> Command, until: &Path) -> Vec<Command>;

const TRAININGS: [(&str, Start); 6] = [
    ("ddp-gloo-torchrun", torchrun),
    ("ddp-gloo-own-runs", own_runs),
    ("ddp-gloo-spawn", |run, _| spawn(run, "ddp", "gloo", "20000")),
    ("ddp-nccl-spawn", |run, _| spawn(run, "ddp", "nccl", "20000")),
    ("fsdp-nccl-spawn", |run, _| spawn(run, "fsdp", "nccl", "5000")),
    ("pipeline-nccl-spawn", |run, _| spawn(run, "pipeline", "nccl", "20000")),
];

fn torchrun(run: &dyn Fn() -> Command, until: &Path) -> Vec<Command> {
    let mut command = run();
    command.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]);
    let mut command = script(command, "torch_ddp.py");
    command.arg("--until").arg(until);
    vec![command]
}

/// Each rank has a `tidegate run` of its own.
fn own_runs(run: &dyn Fn() -> Command, until: &Path) -> Vec<Command> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let rank = |rank: &str| {
        let mut command = script(run(), "torch_ddp.py");
        command.arg("--until").arg(until).envs([("RANK", rank), ("LOCAL_RANK", rank)]);
        command.envs([("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())]);
        command
    };
    ["0", "1"].map(rank).into()
}

/// So many steps take long enough for as many switches, and more.
fn spawn(run: &dyn Fn() -> Command, what: &str, backend: &str, steps: &str) -> Vec<Command> {
    let mut command = script(run(), "torch_ranks.py");
    command.args([what, steps, backend]).env("TIDEGATE_SOFTGPU_NCCL_SHARED_GPU", "1");
    vec![command]
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with("--")).collect();
    let python = torch::python().expect("PyTorch can be had");
    println!(
        "{:<22} switches  at boundary  closing (median, most)  iteration  1.5 iterations + 50 ms",
        "two ranks"
    );
    for (name, start) in TRAININGS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            report(name, &measure(start, 1, &python));
        }
    }
    let name = "two-of-ddp-gloo-torchrun";
    if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
        report(name, &measure(torchrun, 2, &python));
    }
}

/// The figures of so many such trainings beside each other and a job that takes the whole GPU.
fn measure(start: Start, count: usize, python: &Path) -> Vec<EndedJob> {
    let manager = Manager::start("1x176MiB", &["--slice", SLICE]);
    let directory = tempfile::tempdir().unwrap();
    let until = directory.path().join("enough");
    std::fs::write(&until, "").unwrap();
    let node = Node::of(&manager);
    let bare = start(&|| on_one_processor(node.run(python)), &until);
    let bare: Vec<String> = ends(bare);
    std::fs::remove_file(&until).unwrap();
    let names: Vec<String> = (0..count).map(|nth| format!("ranks{nth}")).collect();
    let run = |name: &str| on_one_processor(manager.run(&["--name", name], python));
    let commands = names.iter().flat_map(|name| start(&|| run(name), &until));
    let shared: Vec<_> = commands.map(started).collect();
    let mut rival = manager.probe(&["--name", "rival"]);
    rival.tell("device 0");
    rival.tell(&format!("alloc t {}", 100 * MIB));
    rival.tell("fill t 1");
    let switches = |job: &str| {
        let status = manager.status();
        let alive = status.jobs.iter().find(|other| other.figures.name == job);
        alive.map_or(u64::MAX, |job| job.figures.switches)
    };
    let mut seen = false;
    loop {
        rival.tell("check t 1");
        let least = names.iter().map(|name| switches(name)).min().unwrap_or(u64::MAX);
        seen |= least < u64::MAX;
        if seen && least >= SWITCHES {
            break;
        }
    }
    std::fs::write(&until, "").unwrap();
    // The rival goes on, so that switches cost what they do until the end.
    let ended = std::thread::scope(|scope| {
        let ended =
            scope.spawn(|| shared.into_iter().map(|one| printed(&finish_within(PATIENCE, one))).collect());
        while !ended.is_finished() {
            rival.tell("check t 1");
        }
        ended.join()
    });
    let shared: Vec<String> = ended.unwrap();
    for (shared, bare) in shared.iter().zip(bare.iter().cycle()) {
        assert_eq!(shared, bare, "the bits are not those of the bare GPU");
    }
    rival.end();
    let status = manager.status_when(|status| names.iter().all(|name| status.has_ended(name)));
    names.iter().map(|name| status.ended_job(name).clone()).collect()
}

fn on_one_processor(mut command: Command) -> Command {
    // Each rank takes all processors otherwise.
    command.env("OMP_NUM_THREADS", "1");
    command
}

fn started(mut command: Command) -> std::process::Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What commands that belong together print.
fn ends(mut commands: Vec<Command>) -> Vec<String> {
    let last = commands.pop().expect("a command");
    let others: Vec<_> = commands.into_iter().map(started).collect();
    let last = printed(&output_within(PATIENCE, last));
    let others = others.into_iter().map(|other| printed(&finish_within(PATIENCE, other)));
    others.chain([last]).collect()
}

fn report(name: &str, jobs: &[EndedJob]) {
    for job in jobs {
        let mut closings: Vec<u64> = job.closing_micros.clone();
        closings.sort_unstable();
        let [median, most] = [closings.get(closings.len() / 2), closings.last()]
            .map(|micros| millis(micros.copied().unwrap_or(0)));
        // The time in the closings that are not kept any more is taken to be like that in the others.
        let mean = closings.iter().sum::<u64>() / (closings.len() as u64).max(1);
        let open: u64 = job.grants.iter().map(|(from, to)| to.unwrap_or(*from) - from).sum();
        let open = open.saturating_sub(mean * job.grants.len() as u64);
        let iteration = millis(open) / job.boundaries.max(1) as f64;
        println!(
            "{name:<24} {:>6}  {:>9.0} %  {median:>8.1}  {most:>8.1} ms  {iteration:>6.1} ms  {:>8.1} ms  {} failed",
            job.switches,
            100.0 * job.at_boundary as f64 / job.switches.max(1) as f64,
            1.5 * iteration + 50.0,
            job.failed_drains,
        );
    }
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1e3
}
