//! What a switch costs users: `cargo bench --bench switches [-- MIB…]`
//!
//! ```text
//! two programs of so many MiB on a GPU of 5/4 of that, the second a second after the first; a link of 10 GB/s
//!
//!   MiB   save and restore ÷ what the link needs for their bytes, and how many ms longer    first ÷ tenth
//!         └ each from the second switch on, together
//!         whole switch ÷ what the link needs, and how many ms longer
//! ```
//! The figures are the manager's own (`switch_micros`, means over a job's switches), of manager, mover and programs as users run
//! them. A switch is one that leaves and one that comes.

#[path = "../tests/support/c.rs"]
mod c;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../tests/support/stage.rs"]
mod stage;
#[path = "../tests/support/mod.rs"]
mod support;

use stage::Stage;
use std::process::{Child, Stdio};
use std::time::Duration;
use support::patience::finish_within;
use support::{Jobs as _, Manager};
use tidegate_manager::server::status::{EndedJob, Status};

const PATIENCE: Duration = Duration::from_secs(300);
const RATE: f64 = 10e9;
/// Switches of both programs that are looked at.
const LAST: u64 = 24;
const NAMES: [&str; 2] = ["first", "second"];

fn main() {
    let wanted: Vec<u64> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if wanted.is_empty() { vec![64, 128, 256, 512, 1024] } else { wanted };
    let stage = Stage::with("1x64MiB", "rhythm", "stir_kernel");
    println!(
        "{:>6}  {:>8}  {:>18}  {:>18}  {:>18}  {:>13}",
        "MiB", "switches", "save", "restore", "whole", "first ÷ tenth"
    );
    sizes.into_iter().for_each(|mib| measure(mib, &stage));
}

/// What was moved and how long it took, summed over all switches so far, of both programs.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    switches: u64,
    /// Bytes.
    saved: f64,
    restored: f64,
    /// Seconds.
    save: f64,
    restore: f64,
    maps: f64,
}

impl Sums {
    fn of(status: &Status) -> Self {
        let living = status.jobs.iter().map(|job| &job.figures);
        let figures = living.chain(&status.ended).filter(|job| NAMES.contains(&job.name.as_str()));
        figures.fold(Self::default(), |sums, job| sums.with(job))
    }

    fn with(self, job: &EndedJob) -> Self {
        let seconds = |mean: u64| mean as f64 * job.switches as f64 / 1e6;
        Self {
            switches: self.switches + job.switches,
            saved: self.saved + (job.saved_bytes + job.preempted_bytes) as f64,
            restored: self.restored + job.restored_bytes as f64,
            save: self.save + seconds(job.switch_micros.save),
            restore: self.restore + seconds(job.switch_micros.restore),
            maps: self.maps + seconds(job.switch_micros.unmap + job.switch_micros.map),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            switches: self.switches - before.switches,
            saved: self.saved - before.saved,
            restored: self.restored - before.restored,
            save: self.save - before.save,
            restore: self.restore - before.restore,
            maps: self.maps - before.maps,
        }
    }

    fn all(self) -> f64 {
        self.save + self.restore + self.maps
    }
}

fn measure(mib: u64, stage: &Stage) {
    let gpu = format!("1x{}MiB,link=10GB/s", mib * 5 / 4);
    let manager = Manager::start(&gpu, &["--slice", "100ms", "--slice-max", "300ms"]);
    let start = |name: &str| {
        let mut command = manager.run(&["--name", name], &stage.program);
        command.arg(&stage.kernels).args([format!("mib={mib}"), "kernel=5000".into(), "steps=3000".into()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let first = start(NAMES[0]);
    std::thread::sleep(Duration::from_secs(1));
    let programs: [Child; 2] = [first, start(NAMES[1])];
    let mut seen = vec![Sums::default()];
    loop {
        let status = manager.status();
        let sums = Sums::of(&status);
        if seen.last().is_some_and(|last| last.switches < sums.switches) {
            seen.push(sums);
        }
        if sums.switches >= LAST {
            break;
        }
        assert!(!status.has_ended(NAMES[0]), "it was over after {} switches", sums.switches);
        // Each look starts a process.
        std::thread::sleep(Duration::from_millis(40));
    }
    let [early, late] = [2, LAST].map(|count| *seen.iter().find(|sums| sums.switches >= count).unwrap());
    let steady = late.since(early);
    let ratio = |took: f64, bytes: f64, switches: u64| {
        let ideal = bytes / RATE;
        format!("{:>6.2} {:>+7.1} ms", took / ideal, (took - ideal) * 1e3 / switches as f64)
    };
    let tenth = late.since(*seen.iter().rev().find(|sums| sums.switches + 6 <= LAST).unwrap());
    let each = |sums: Sums| sums.all() / sums.switches as f64;
    println!(
        "{mib:>6}  {:>8}  {:>18}  {:>18}  {:>18}  {:>13.2}",
        steady.switches,
        ratio(steady.save, steady.saved, steady.switches),
        ratio(steady.restore, steady.restored, steady.switches),
        ratio(steady.all(), steady.saved + steady.restored, steady.switches),
        each(early) / each(tenth),
    );
    for program in programs {
        let output = finish_within(PATIENCE, program);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
