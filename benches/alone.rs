//! What Tidegate costs a job that is alone on its GPU, and a program that never uses CUDA.
//! `cargo bench --bench alone`, or one part of it: `-- trainings`, `-- starts`, `-- allocations`, `-- pytorch`
//!
//! Times are compared within one run only, in pairs that alternate who goes first; pairs of the
//! same against itself tell how much of a difference is noise.

#[path = "support/mod.rs"]
mod bench;
#[path = "../tests/support/node.rs"]
mod node;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../tests/support/torch.rs"]
mod torch;

use bench::{Spread, StepCost, Training};
use node::Node;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use support::{Jobs, Manager};
use tidegate_manager::artifacts;

const PAIRS: usize = 9;
const TRAINING: [&str; 6] = ["--hidden", "512", "--batch", "480", "--steps", "40"];
const STARTS: usize = 100;

/// Allocations that are timed, and how often in one program.
const ALLOCATIONS: [(&str, u64, usize); 3] =
    [("512 B", 512, 2000), ("2 MiB", 2 << 20, 1000), ("64 MiB", 64 << 20, 300)];

/// What is timed of PyTorch: a step of four layers of so many features, so many times; and its start.
const PYTORCH: [(&str, &[&str]); 3] =
    [("small", &["16", "2000"]), ("large", &["1024", "60"]), ("start", &["start"])];

fn main() {
    let parts: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|word| word == part);
    if wanted("trainings") {
        println!("a training alone on a software GPU: {}", TRAINING.join(" "));
        trainings();
    }
    if wanted("starts") {
        println!("\n/bin/true, {STARTS} pairs of starts");
        starts();
    }
    if wanted("allocations") {
        println!("\ncuMemAlloc and cuMemFree, medians of {PAIRS} pairs of programs");
        allocations();
    }
    if wanted("pytorch") {
        println!("\nPyTorch, medians of {PAIRS} pairs of programs: a step, and the first memory on the GPU");
        pytorch();
    }
}

/// Runs a program that prints a number.
fn number(mut command: Command) -> f64 {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Compares what a program prints with and without Tidegate, and twice without.
fn compare(name: &str, bare: impl Fn() -> f64, shared: impl Fn() -> f64) {
    let pairs: Vec<_> = (1..=PAIRS)
        .map(|pair| (alternating(pair, &shared, &bare), alternating(pair, &bare, &bare)))
        .collect();
    let with = Spread::of(pairs.iter().map(|((with, _), _)| *with)).median;
    let without = Spread::of(pairs.iter().map(|((_, without), _)| *without)).median;
    let ratio = Spread::of(pairs.iter().map(|((with, without), _)| with / without)).line("");
    let noise = Spread::of(pairs.iter().map(|(_, (one, other))| one / other)).line("");
    println!("{name:>6}  {without:>10.0}  {with:>10.0}  {ratio}  {noise}");
}

fn pytorch() {
    let Some(python) = torch::python() else { return };
    let manager = Manager::start("1x1GiB", &[]);
    let node = Node::of(&manager);
    println!("what    without us     with us  with/without                          without/without");
    for (name, arguments) in PYTORCH {
        let program = |python: Command| {
            let mut command = torch::script(python, "torch_times.py");
            command.args(arguments);
            number(command)
        };
        compare(name, || program(node.run(&python)), || program(manager.run(&["--name", name], &python)));
    }
}

/// What an allocation and its free take.
fn allocations() {
    let manager = Manager::start("1x256MiB", &[]);
    let (node, program) = (Node::of(&manager), artifacts::example("allocs").unwrap());
    println!("bytes   without ns     with ns  with/without                          without/without");
    for (name, bytes, times) in ALLOCATIONS {
        let measure = |mut command: Command| {
            command.args([bytes.to_string(), times.to_string()]);
            number(command)
        };
        compare(name, || measure(node.run(&program)), || measure(manager.run(&["--name", name], &program)));
    }
}

fn trainings() {
    let manager = Manager::start("1x64MiB", &["--unit", "256KiB"]);
    let node = Node::of(&manager);
    let bare = || Training::start(node.run(&support::train_digits()), &TRAINING).step_cost();
    let mut jobs = 0;
    let mut shared = || {
        jobs += 1;
        under_tidegate(&manager, &format!("alone-{jobs}"))
    };
    println!("pair  without ms/step  with ms/step  with/without  without/without  user time with/without");
    let mut pairs = Vec::new();
    for number in 1..=PAIRS {
        let (with, without) = alternating(number, &mut shared, bare);
        let (one, other) = alternating(number, bare, bare);
        let pair = Pair { with, without, one, other };
        let (without, with) = (pair.without.millis, pair.with.millis);
        let (ratio, itself, user) = (pair.ratio(), pair.noise(), pair.user_ratio());
        println!("{number:>4}  {without:>15.3}  {with:>12.3}  {ratio:>12.4}  {itself:>15.4}  {user:>22.4}");
        pairs.push(pair);
    }
    let line = |value: fn(&Pair) -> f64| Spread::of(pairs.iter().map(value)).line("");
    println!("with / without:                {}", line(Pair::ratio));
    println!("without / without:             {}", line(Pair::noise));
    println!("user time with / without:      {}", line(Pair::user_ratio));
    println!("user time without / without:   {}", line(Pair::user_noise));
    println!("page faults of a step with:    {}", line(|pair| pair.with.page_faults));
    println!("page faults of a step without: {}", line(|pair| pair.without.page_faults));
    println!(
        "(the software driver makes new pages at each cuMemAlloc, Tidegate keeps them: that alone favours it)"
    );
    println!("in each run with Tidegate: 1 slice, 0 switches, 0 bytes saved, 0 waits after the first grant");
}

/// One with and one without Tidegate, and two without.
struct Pair {
    with: StepCost,
    without: StepCost,
    one: StepCost,
    other: StepCost,
}

impl Pair {
    fn ratio(&self) -> f64 {
        self.with.millis / self.without.millis
    }

    fn noise(&self) -> f64 {
        self.one.millis / self.other.millis
    }

    fn user_ratio(&self) -> f64 {
        self.with.user_millis / self.without.user_millis
    }

    fn user_noise(&self) -> f64 {
        self.one.user_millis / self.other.user_millis
    }
}

/// A step's cost under Tidegate, where the job must not have been disturbed once.
fn under_tidegate(manager: &Manager, name: &str) -> StepCost {
    let command = manager.run(&["--name", name], &support::train_digits());
    let cost = Training::start(command, &TRAINING).step_cost();
    let status = manager.status_when(|status| status.has_ended(name));
    let figures = status.ended_job(name);
    assert_eq!((figures.slices, figures.switches, figures.saved_bytes), (1, 0, 0), "it was not alone");
    assert_eq!(figures.grants.len(), 1, "its gate was closed in between");
    cost
}

/// Both, the first one first in every other pair.
fn alternating<T>(pair: usize, mut first: impl FnMut() -> T, mut second: impl FnMut() -> T) -> (T, T) {
    if pair % 2 == 1 {
        let first = first();
        (first, second())
    } else {
        let second = second();
        (first(), second)
    }
}

/// What the preload costs a program that never calls CUDA.
fn starts() {
    let shim = artifacts::shim().unwrap();
    let start = |preload: Option<&Path>| {
        let mut command = Command::new("/bin/true");
        command.envs(preload.map(|shim| ("LD_PRELOAD", shim)));
        let began = Instant::now();
        assert!(command.status().unwrap().success());
        began.elapsed().as_secs_f64() * 1e6
    };
    let pairs = (1..=STARTS).map(|pair| alternating(pair, || start(Some(&shim)), || start(None)));
    let (with, without): (Vec<f64>, Vec<f64>) = pairs.unzip();
    let added = with.iter().zip(&without).map(|(with, without)| with - without);
    println!("added by the preload: {}", Spread::of(added).line(" µs"));
    println!("without it:           {}", Spread::of(without).line(" µs"));
}
