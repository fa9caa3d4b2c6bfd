//! I1 for all that a program may do: programs that use the driver at random (tests/programs/random), two at a
//! time on a GPU too small for both, with short slices and everything overwritten that is not alive, read
//! what they read on the bare driver, and get the same codes. The sequence depends on the seed only:
//! `SEED=n` before the test replays one.

#[path = "support/c.rs"]
mod c;
#[path = "support/stage.rs"]
mod stage;
mod support;

use stage::Stage;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::patience::{finish, output};
use support::{Jobs, Manager};

/// How many pairs of seeds the suite plays at least.
const PAIRS: u64 = 52;
/// On a busy machine two programs may hardly meet: then it plays more, but no more than so many.
const MOST_PAIRS: u64 = 4 * PAIRS;
const STEPS: &str = "400";
/// The switches that must have happened for the promise to mean anything.
const SWITCHES: u64 = 100;
/// One program needs 5 MiB.
const GPU: &str = "1x6400KiB";
const OPTIONS: [&str; 9] =
    ["--unit", "64KiB", "--offset", "64KiB", "--slice", "2ms", "--boundary-deadline", "1ms", "--poison"];

impl Stage {
    fn new() -> Self {
        Self::with("1x16MiB", "random", "count_up_kernel")
    }

    fn told(&self, mut command: Command, seed: u64, mode: &[&str]) -> Command {
        command.arg(&self.kernels).args([&seed.to_string(), STEPS]).args(mode);
        command.env("RUST_BACKTRACE", "0").stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn alone(&self, seed: u64, mode: &[&str]) -> Vec<u8> {
        let output = output(self.told(self.bare(), seed, mode));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "SEED={seed}, on the bare driver: {said}");
        output.stdout
    }

    fn start(&self, manager: &Manager, seed: u64, mode: &[&str]) -> Child {
        let command = manager.run(&["--name", &seed.to_string()], &self.program);
        self.told(command, seed, mode).spawn().unwrap()
    }

    /// Two programs, at the same time, the first perhaps in another mode: how often they were switched.
    fn pair(&self, manager: &Manager, seeds: [u64; 2], mode_of_first: &[&str]) -> u64 {
        let modes = [mode_of_first, &[]];
        let start = |(&seed, mode)| (seed, mode, self.start(manager, seed, mode));
        let started: Vec<_> = seeds.iter().zip(modes).map(start).collect();
        for (seed, mode, process) in started {
            let output = finish(process);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "SEED={seed}: {}, {said}", output.status);
            let (found, wanted) = (output.stdout, self.alone(seed, mode));
            assert!(found == wanted, "SEED={seed}: {}", first_difference(&found, &wanted));
        }
        let name = |seed: u64| seed.to_string();
        let status = manager.status_when(|status| seeds.iter().all(|seed| status.has_ended(&name(*seed))));
        seeds.iter().map(|seed| status.ended_job(&name(*seed)).switches).sum()
    }
}

fn first_difference(found: &[u8], wanted: &[u8]) -> String {
    let (found, wanted) = (String::from_utf8_lossy(found), String::from_utf8_lossy(wanted));
    let lines = found.lines().zip(wanted.lines());
    let unlike = lines.into_iter().find(|(found, wanted)| found != wanted);
    unlike.map_or("one said more".into(), |(found, wanted)| format!("{found:?} was {wanted:?}"))
}

#[test]
fn random_programs_end_as_on_the_bare_driver() {
    let stage = Stage::new();
    let manager = Manager::start(GPU, &OPTIONS);
    if let Ok(seed) = std::env::var("SEED") {
        stage.pair(&manager, [seed.parse().unwrap(), 1 << 32], &[]);
        return;
    }
    let (mut pairs, mut switches) = (0, 0);
    while pairs < PAIRS || switches < SWITCHES && pairs < MOST_PAIRS {
        switches += stage.pair(&manager, [2 * pairs, 2 * pairs + 1], &[]);
        pairs += 1;
    }
    println!("{} seeds, {switches} switches", 2 * pairs);
    assert!(switches >= SWITCHES, "{switches} switches: no pressure, no test");
}

#[test]
fn so_do_those_beside_one_with_managed_memory() {
    let stage = Stage::new();
    for gpu in [GPU.to_owned(), format!("{GPU},managed=exclusive")] {
        let manager = Manager::start(&gpu, &OPTIONS);
        for seeds in [[1, 2], [3, 4]] {
            stage.pair(&manager, seeds, &["managed"]);
        }
    }
}

#[test]
#[ignore = "takes the MINUTES it is told"]
fn so_do_programs_with_fresh_seeds() {
    let minutes: u64 = std::env::var("MINUTES").map_or(1, |minutes| minutes.parse().unwrap());
    let (began, stage) = (Instant::now(), Stage::new());
    let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() << 20;
    let manager = Manager::start(GPU, &OPTIONS);
    let mut pairs = 0;
    while began.elapsed() < Duration::from_secs(60 * minutes) {
        stage.pair(&manager, [first + 2 * pairs, first + 2 * pairs + 1], &[]);
        pairs += 1;
    }
    println!("{} seeds from {first}", 2 * pairs);
}
