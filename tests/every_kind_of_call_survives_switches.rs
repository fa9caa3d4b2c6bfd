//! I1 for each kind of call: two programs that make it again and again (tests/programs/random/families.rs),
//! on a GPU too small for both, with short slices and everything overwritten that is not alive, find what they
//! find on the bare driver.

#[path = "support/c.rs"]
mod c;
mod support;

use c::Compiler;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::patience::{finish, output};
use support::{Jobs, Manager};
use tidegate_manager::artifacts;
use tidegate_manager::software_gpu::{NODE_VARIABLE, SoftwareNode};

/// The kinds, and whether who makes such calls is switched.
const FAMILIES: [(&str, bool); 17] = [
    ("launches", true),
    ("per-thread", true),
    ("captured", true),
    ("built", true),
    ("graph-memory", true),
    ("pools", true),
    ("pitch", true),
    ("arrays", true),
    ("handles", true),
    ("exported", true),
    ("copies", true),
    ("words", true),
    ("green", true),
    ("contexts", true),
    ("reset", true),
    ("modules", true),
    ("managed", true),
];
/// The switches that must have happened for the promise to mean anything.
const SWITCHES: u64 = 4;
/// One program needs about 5 MiB.
const GPU: &str = "1x6400KiB";
const OPTIONS: [&str; 9] =
    ["--unit", "64KiB", "--offset", "64KiB", "--slice", "2ms", "--boundary-deadline", "1ms", "--poison"];

fn told(mut command: Command, kernels: &Path, family: &str, rounds: u32) -> Command {
    command.arg(kernels).args(["family", family, &rounds.to_string()]);
    command.env("RUST_BACKTRACE", "0").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Two at once: what each says, and how often they were switched.
fn together(program: &Path, kernels: &Path, family: &str, rounds: u32) -> ([String; 2], u64) {
    let manager = Manager::start(GPU, &OPTIONS);
    let names = ["one", "other"];
    let start =
        |name| told(manager.run(&["--name", name], program), kernels, family, rounds).spawn().unwrap();
    let said = names.map(start).map(|process| {
        let output = finish(process);
        assert!(output.status.success(), "{family}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    });
    let status = manager.status_when(|status| names.iter().all(|name| status.has_ended(name)));
    (said, names.iter().map(|name| status.ended_job(name).switches).sum())
}

#[test]
fn every_kind_of_call_survives_switches() {
    let node = SoftwareNode::create(&"1x16MiB".parse().unwrap(), 64 << 10).unwrap();
    let compiler = Compiler::with(node.path().join("lib"));
    let kernels = compiler.compile_kernels("count_up_kernel");
    let program: PathBuf = artifacts::example("random").unwrap();
    let alone = |family, rounds| {
        let mut command = Command::new(&program);
        command.env(NODE_VARIABLE, node.path()).env("LD_LIBRARY_PATH", node.path().join("lib"));
        let output = output(told(command, &kernels, family, rounds));
        assert!(output.status.success(), "{family}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for (family, is_switched) in FAMILIES {
        // How many switches so many rounds meet is the machine's affair: it goes on until it is enough.
        let mut all = 0;
        let enough = [120, 480, 960, 1920, 1920, 3840, 3840, 3840].into_iter().any(|rounds| {
            let (said, switches) = together(&program, &kernels, family, rounds);
            let wanted = alone(family, rounds);
            assert_eq!(said, [wanted.clone(), wanted]);
            all += switches;
            println!("{family}: {rounds} rounds, {switches} switches");
            all >= SWITCHES || !is_switched
        });
        assert!(enough, "{family}: no pressure, no test");
    }
}
