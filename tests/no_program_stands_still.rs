//! I6, I7: whatever programs share a GPU, and however it is configured, each of them makes a step within a bound
//! (tests/standstill/bound.rs), and ends as it should. A mix depends on its seed only: `tests/long/standstill 0 SEED`
//! plays it again.

#[path = "programs/standstill/board.rs"]
mod board;
#[path = "standstill/bound.rs"]
mod bound;
#[path = "support/c.rs"]
mod c;
#[allow(dead_code, reason = "shared with a program that uses more of it")]
#[path = "programs/random/dice.rs"]
mod dice;
#[path = "standstill/mix.rs"]
mod mix;
#[path = "programs/standstill/plan.rs"]
mod plan;
#[path = "support/stage.rs"]
mod stage;
mod support;
#[path = "standstill/watch.rs"]
mod watch;

use mix::Mix;
use stage::Stage;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::patience::output;
use watch::{Game, Outcome};

/// The mixes that the suite plays. Those of 5, 2006, 2016 stood still when a job waited for room that a full tier could
/// not give, that of 1838605135004 when it waited for room that a full quota could not; that of 3769 when a job had grown
/// until it could not be saved within the quota, that of 3149 when a process became another program without a manager.
const SEEDS: [u64; 10] = [1, 3, 5, 2006, 2009, 2014, 2016, 3149, 3769, 1_838_605_135_004];

impl Stage {
    fn new() -> Self {
        Self::with("1x1GiB", "standstill", "stir_kernel")
    }

    /// Plays a mix. The files of one that fails are kept.
    fn play(&self, seed: u64) -> Outcome {
        let mix = Mix::of(seed);
        let directory = tempfile::Builder::new().prefix(&format!("standstill-{seed}-")).tempdir().unwrap();
        let play = || Game::begin(&mix, &self.program, &self.kernels, directory.path()).play();
        let mut outcome = catch_unwind(AssertUnwindSafe(play)).unwrap_or_else(|panic| {
            let told = panic.downcast_ref::<String>().cloned();
            let told = told.or_else(|| panic.downcast_ref::<&str>().map(|told| told.to_string()));
            let told = told.unwrap_or_else(|| "a panic".into());
            Outcome { failure: Some(format!("seed {seed}: {told}\n{mix}")), summary: "FAILED".into() }
        });
        println!("seed {seed}: {}", outcome.summary);
        if let Some(failure) = &mut outcome.failure {
            failure.push_str(&format!("files: {}\n", directory.keep().display()));
            println!("{failure}");
        }
        outcome
    }
}

#[test]
fn no_program_stands_still() {
    let stage = Stage::new();
    let failed: Vec<u64> = SEEDS.into_iter().filter(|seed| stage.play(*seed).failure.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}: tests/long/standstill 0 SEED plays one again");
}

/// The programs themselves are right: nothing stands still on the bare driver.
#[test]
fn nor_does_one_on_the_bare_driver() {
    let stage = Stage::new();
    for job in [1, 2].into_iter().flat_map(|seed| Mix::of(seed).jobs) {
        let board = tempfile::NamedTempFile::new().unwrap();
        let plan = plan::Plan { steps: job.plan.steps.min(10), kernel: job.plan.kernel.min(5), ..job.plan };
        let mut command = stage.bare();
        command.arg(&stage.kernels).arg(board.path()).args(plan.to_string().split(' '));
        let output = output(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{plan}: {}, {said}", output.status);
    }
}

/// Minutes in `MINUTES`, the first seed in `SEED`; at least one mix.
#[test]
#[ignore = "takes the MINUTES it is told: tests/long/standstill"]
fn nor_do_programs_of_fresh_mixes() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<f64>().unwrap());
    let end = Instant::now() + Duration::from_secs_f64(60.0 * number("MINUTES").unwrap_or(10.0));
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() << 10;
    let first = std::env::var("SEED").map_or(fresh, |seed| seed.parse().unwrap());
    let (stage, mut failed, mut played) = (Stage::new(), Vec::new(), 0);
    while played == 0 || Instant::now() < end {
        let seed = first + played;
        played += 1;
        if stage.play(seed).failure.is_some() {
            failed.push(seed);
        }
    }
    println!("{played} mixes from seed {first}, {} failed", failed.len());
    assert!(failed.is_empty(), "{failed:?}: tests/long/standstill 0 SEED plays one again");
}
