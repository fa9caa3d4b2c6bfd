//! A program that asks NVML for the memory of a GPU that it is on is told its quota and its own use, as by the
//! driver; of other GPUs, and without Tidegate, what NVML itself says. And where there is no NVML, there is none.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
mod support;

use c::Compiler;
use node::Node;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::Manager;
use support::patience::output;
use tidegate_manager::artifacts;

/// In MiB: total, free and used, by both functions.
const NVML_SAYS: &str = "100 50 50 and 100 40 50";

struct Place {
    manager: Manager,
    compiler: Compiler,
    library: PathBuf,
    uuid: String,
}

impl Place {
    fn new() -> Self {
        let manager = Manager::start("1x8MiB", &["--unit", "64KiB"]);
        let compiler = Compiler::with(Node::of(&manager).libraries());
        let library = compiler.compile_library("nvml", "libnvidia-ml.so.1");
        let uuid = manager.status().gpus[0].uuid.clone();
        Self { manager, compiler, library, uuid }
    }

    fn node(&self) -> Node {
        Node::of(&self.manager)
    }

    /// Programs that ask, with their arguments: linked with the library, and opening it.
    fn programs(&self) -> [(PathBuf, Vec<&Path>); 2] {
        let linked = self.compiler.compile_linked_with("asks_nvml", &self.library);
        [(linked, vec![]), (self.compiler.compile("asks_nvml"), vec![&self.library])]
    }

    /// What a program says of the first GPU and of the second.
    fn said(&self, mut command: Command, arguments: &[&Path]) -> Vec<String> {
        command.args(arguments).env("NVML_FIRST_GPU", &self.uuid);
        let output = output(command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        said.lines().map(String::from).collect()
    }
}

/// What a program says that is told this of the first GPU, before it has allocated and after.
fn lines(before: &str, after: &str) -> Vec<String> {
    let of = |when: &str, first: &str| [format!("{when} 1: {first}"), format!("{when} 2: {NVML_SAYS}")];
    [of("before", before), of("after", after)].concat()
}

#[test]
fn a_job_is_told_its_quota_and_its_own_use() {
    let place = Place::new();
    for (program, arguments) in place.programs() {
        let command = place.manager.run(&["--name", "asker", "--memory", "6MiB"], &program);
        let told = lines(NVML_SAYS, "6 2 4 and 6 2 4");
        assert_eq!(place.said(command, &arguments), told, "{program:?}");
    }
}

#[test]
fn a_quota_in_the_environment_counts_before_the_gpu_is_used() {
    let place = Place::new();
    for (program, arguments) in place.programs() {
        let mut command = place.node().run(&program);
        command.env("LD_PRELOAD", artifacts::shim().unwrap()).env("TIDEGATE_SOCKET", place.manager.socket());
        command.env("TIDEGATE_MEMORY", "5MiB");
        let said = place.said(command, &arguments);
        assert_eq!(said[0], "before 1: 5 5 0 and 5 5 0", "{program:?}");
        assert_eq!(said[2], "after 1: 5 1 4 and 5 1 4", "{program:?}");
    }
}

#[test]
fn without_tidegate_nvml_itself_is_heard() {
    let place = Place::new();
    for (program, arguments) in place.programs() {
        let mut without_manager = place.node().run(&program);
        without_manager
            .env("LD_PRELOAD", artifacts::shim().unwrap())
            .env("TIDEGATE_SOCKET", "/nowhere/socket");
        let mut off = place.node().run(&program);
        off.env("LD_PRELOAD", artifacts::shim().unwrap())
            .env("TIDEGATE_OFF", "1")
            .env("TIDEGATE_MEMORY", "5MiB");
        for command in [place.node().run(&program), without_manager, off] {
            assert_eq!(place.said(command, &arguments), lines(NVML_SAYS, NVML_SAYS), "{program:?}");
        }
    }
}

#[test]
fn where_there_is_no_nvml_there_is_none() {
    let place = Place::new();
    let program = place.compiler.compile("asks_nvml");
    let command = place.manager.run(&["--name", "asker"], &program);
    assert_eq!(place.said(command, &[]), ["there is none"]);
}
