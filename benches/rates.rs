//! How far off the link's rate may be that a manager believes: `cargo bench --bench rates [-- MANAGERS]`
//!
//! One manager after the other measures its link when a second program comes to its GPU: some on a machine that has nothing
//! else to do, then 200, or so many, while twice as many threads as there are cores compute. Printed: the median of the quiet
//! ones, the least and the greatest of the loaded ones, and how many of these are off by more than two and four times.

#[path = "../tests/support/c.rs"]
mod c;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../tests/support/stage.rs"]
mod stage;
#[path = "../tests/support/mod.rs"]
mod support;

use stage::Stage;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::Manager;
use support::patience::finish_within;

const PATIENCE: Duration = Duration::from_secs(120);
const QUIET: usize = 15;
const LOADED: usize = 200;

fn main() {
    let loaded = std::env::args().skip(1).find_map(|count| count.parse().ok()).unwrap_or(LOADED);
    let stage = Stage::with("1x64MiB", "rhythm", "stir_kernel");
    let quiet: Vec<[f64; 2]> = (0..QUIET).map(|_| measured(&stage)).collect();
    let done = AtomicBool::new(false);
    let found: Vec<[f64; 2]> = std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..2 * cores {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let found = (0..loaded).map(|_| measured(&stage)).collect();
        done.store(true, Ordering::Relaxed);
        found
    });
    for (way, name) in ["to the host", "to the GPU"].into_iter().enumerate() {
        let of = |all: &[[f64; 2]]| all.iter().map(|rates| rates[way]).collect::<Vec<_>>();
        let (mut quiet, mut found) = (of(&quiet), of(&found));
        quiet.sort_by(f64::total_cmp);
        found.sort_by(f64::total_cmp);
        let median = quiet[quiet.len() / 2];
        let beyond =
            |bound: f64| found.iter().filter(|rate| (*rate / median).max(median / *rate) > bound).count();
        println!(
            "{name}: {median:.2} GB/s quiet; {:.2} to {:.2} GB/s of {} under load, {} off by more than 2, {} by more than 4",
            found[0],
            found[found.len() - 1],
            found.len(),
            beyond(2.0),
            beyond(4.0),
        );
    }
}

/// The rates that a new manager measures, GB/s: to the host, and to the GPU.
fn measured(stage: &Stage) -> [f64; 2] {
    let manager = Manager::start("1x256MiB,link=10GB/s", &[]);
    let start = |name: &str| -> Child {
        let mut command = manager.run(&["--name", name], &stage.program);
        command.arg(&stage.kernels).args(["mib=1", "kernel=1000", "steps=20000"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let programs = ["first", "second"].map(start);
    let status = manager.status_when(|status| status.gpus.iter().all(|gpu| gpu.link.is_some()));
    for mut program in programs {
        // It has done what it was for.
        program.kill().unwrap();
        finish_within(PATIENCE, program);
    }
    let link = status.gpus[0].link.as_ref().expect("it was waited for");
    [link.to_host_gb_per_s, link.to_gpu_gb_per_s]
}
