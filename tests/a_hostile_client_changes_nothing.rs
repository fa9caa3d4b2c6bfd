//! I10: beside a client that attacks from many connections, two honest trainings give the results
//! they give alone, and the manager keeps its size.

mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::patience::output;
use support::training::{Training, alone};
use support::{Crowd, Jobs, Manager, files_but_memory, hostile, train_digits};

const SEEDS: [&str; 2] = ["1", "2"];
/// What a manager may grow by: its allocator's and its threads' share.
const GROWTH_KIB: u64 = 64 << 10;

fn arguments(seed: &str) -> [&str; 8] {
    ["--hidden", "128", "--batch", "120", "--steps", "120", "--seed", seed]
}

/// Resident KiB and open file descriptors of the manager, without pieces: in how many of these the free
/// memory lies is the ledger's affair.
fn size(manager: &Manager) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", manager.pid())).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    (rss.trim().trim_end_matches(" kB").parse().unwrap(), files_but_memory(manager.pid()))
}

fn trainings_beside_attackers(until: Duration) {
    let solo = SEEDS.map(|seed| alone(&arguments(seed)));
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB", "--slice", "20ms"]);
    let run = || {
        let command = |seed| manager.run(&["--name", seed], &train_digits());
        SEEDS.map(|seed| Training::start(command(seed), &arguments(seed))).map(Training::result)
    };
    assert_eq!(run(), solo);
    manager.status_when(|status| status.jobs.is_empty());
    let before = size(&manager);
    let began = Instant::now();
    let attackers =
        Crowd::of(2, || hostile(&manager).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    loop {
        assert_eq!(run(), solo);
        let (rss, _) = size(&manager);
        assert!(rss < before.0 + GROWTH_KIB, "the manager grows from {} to {rss} KiB", before.0);
        if began.elapsed() >= until {
            break;
        }
    }
    drop(attackers);
    let mut wait = Command::new(support::tidegate());
    wait.args(["status", "--wait-idle", "--socket"]).arg(manager.socket());
    assert!(output(wait).status.success());
    let end = Instant::now() + support::patience::PATIENCE;
    while size(&manager).1 != before.1 {
        assert!(Instant::now() < end, "descriptors: {} before, {} after", before.1, size(&manager).1);
        let _ = manager.status().has_ended("hostile");
    }
    println!("KiB and descriptors: {before:?} before, {:?} after", size(&manager));
}

#[test]
fn a_hostile_client_changes_nothing() {
    trainings_beside_attackers(Duration::ZERO);
}

/// Minutes in `MINUTES` (5).
#[test]
#[ignore = "takes as long as it is told to: tests/long/hostile"]
fn nor_does_it_in_the_long_run() {
    let minutes: f64 = std::env::var("MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(5.0);
    trainings_beside_attackers(Duration::from_secs_f64(60.0 * minutes));
}
