//! The Python package says to Tidegate what a program knows, and is silent where there is none.

#[path = "support/node.rs"]
mod node;
#[path = "support/program.rs"]
mod program;
mod support;
#[path = "support/torch.rs"]
mod torch;

use node::Node;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::patience::output_within;
use support::{Jobs, Manager};
use torch::{printed, script};

const PATIENCE: Duration = Duration::from_secs(300);

fn with_package(python: Command, mode: &str) -> Command {
    let mut command = script(python, "torch_package.py");
    command.env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("python")).arg(mode);
    command
}

#[test]
fn what_the_package_is_told_is_known_and_alone_it_does_nothing() {
    let Some(python) = torch::python() else { return };
    let manager = Manager::start("1x256MiB", &[]);
    let expected = "str has neither data_ptr() nor __cuda_array_interface__\ntold\n";
    let alone = with_package(Node::of(&manager).run(&python), "alone");
    assert_eq!(printed(&output_within(PATIENCE, alone)), expected);
    let job = with_package(manager.run(&["--name", "teller"], &python), "job");
    assert_eq!(printed(&output_within(PATIENCE, job)), expected);
    let status = manager.status_when(|status| status.has_ended("teller"));
    assert_eq!(status.ended_job("teller").boundaries, 5);
}
