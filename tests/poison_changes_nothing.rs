//! I1 on a real training: two jobs share a GPU too small for both, everything that is not alive is
//! overwritten with 0xFF at each switch, and every loss and weight is as it is alone.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use support::patience::Lines;
use support::{Jobs, Manager, Status, train_digits};
use tidegate_manager::software_gpu::{NODE_VARIABLE, SoftwareNode};

/// The switches that must have happened for the promise to mean anything.
const SWITCHES: u64 = 10;
const SEEDS: [&str; 2] = ["1", "2"];

/// A training to run: how long, and whether it tells its boundaries.
#[derive(Clone, Copy)]
struct Training {
    steps: u32,
    boundaries: &'static str,
}

impl Training {
    /// Runs trainings at once: the last line of each, which tells accuracy, the digest of all
    /// weights and the bits of all losses.
    fn run<const N: usize>(self, commands: [(Command, &str); N]) -> [String; N] {
        let started = commands.map(|(mut command, seed)| {
            command.args(["--hidden", "256", "--batch", "240", "--steps", &self.steps.to_string()]);
            command.args(["--seed", seed, "--boundaries", self.boundaries, "--json-lines"]);
            let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
            (Lines::of(process.stdout.take().unwrap()), process)
        });
        started.map(|(lines, mut process)| {
            let last = lines.last().unwrap_or_default();
            assert!(process.wait().unwrap().success(), "{last}");
            last
        })
    }

    fn alone(self, seed: &str) -> String {
        let node = SoftwareNode::create(&"1x4MiB".parse().unwrap(), 64 << 10).unwrap();
        let mut command = Command::new(train_digits());
        command.env(NODE_VARIABLE, node.path()).env("LD_LIBRARY_PATH", node.path().join("lib"));
        let [result] = self.run([(command, seed)]);
        result
    }

    fn together(self) -> ([String; 2], Status) {
        let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "5ms", "--poison"];
        let manager = Manager::start("1x3840KiB", &options);
        let program = train_digits();
        let results = self.run(SEEDS.map(|seed| (manager.run(&["--name", seed], Path::new(&program)), seed)));
        (results, manager.status_when(|status| SEEDS.iter().all(|seed| status.has_ended(seed))))
    }
}

/// How many switches a training meets is the machine's affair: it is made longer until they are
/// enough.
fn equal_alone(boundaries: &'static str) {
    let mut switches = 0;
    for steps in [240, 480, 960, 1920, 3840] {
        let training = Training { steps, boundaries };
        let (results, status) = training.together();
        assert_eq!(results, SEEDS.map(|seed| training.alone(seed)));
        switches = SEEDS.iter().map(|seed| status.ended_job(seed).switches).sum();
        if switches >= SWITCHES {
            return;
        }
    }
    panic!("only {switches} switches in the longest training: no pressure, no test");
}

#[test]
fn switching_at_boundaries_changes_nothing() {
    equal_alone("yes");
}

#[test]
fn switching_by_deadline_changes_nothing() {
    equal_alone("no");
}
