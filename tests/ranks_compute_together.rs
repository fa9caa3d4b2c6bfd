//! Ranks on software GPUs pass data between each other through the stand-in for NCCL, bare.

#[path = "support/node.rs"]
mod node;
mod support;

use node::Node;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::Manager;
use support::patience::finish_within;
use tidegate_manager::artifacts;

const PATIENCE: Duration = Duration::from_secs(120);

/// GPUs, and a directory of the ranks' own.
struct Machine {
    _manager: Manager,
    node: Node,
    directory: tempfile::TempDir,
}

impl Machine {
    fn with(gpus: u32) -> Self {
        let manager = Manager::start(&format!("{gpus}x128MiB"), &[]);
        let node = Node::of(&manager);
        let directory = tempfile::Builder::new().prefix("ranks-").tempdir_in("/dev/shm").unwrap();
        Self { _manager: manager, node, directory }
    }

    /// `ranks CHECK COUNT`, not started yet.
    fn ranks(&self, check: &str, count: u32) -> Command {
        let mut command = self.node.run(&artifacts::example("ranks").unwrap());
        command.args([check, &count.to_string()]);
        command.env("STAND_IN", artifacts::software_libraries().unwrap());
        command.env("TIDEGATE_SOFTGPU_NCCL_DIR", self.directory.path().join("segments"));
        command.env_remove("TIDEGATE_SOFTGPU_NCCL_SHARED_GPU");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The files that ranks have left.
    fn left(&self) -> usize {
        let files = |directory: &Path| std::fs::read_dir(directory).unwrap().count();
        files(&self.directory.path().join("segments"))
    }

    /// The check succeeds, and leaves nothing behind.
    #[track_caller]
    fn is_right(&self, check: &str, count: u32) {
        ends_well(check, &finish_within(PATIENCE, self.ranks(check, count).spawn().unwrap()));
        assert_eq!(self.left(), 0, "{check} left files");
    }
}

#[track_caller]
fn ends_well(check: &str, output: &Output) {
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{check}: {}\n{}", said(&output.stdout), said(&output.stderr));
    assert_eq!(said(&output.stdout), format!("{check} is right\n"));
}

#[test]
fn collectives_of_all_types_and_sizes_are_as_computed_by_hand() {
    Machine::with(2).is_right("collectives", 2);
    let three = Machine::with(3);
    three.is_right("collectives", 3);
    three.is_right("large", 3);
}

#[test]
fn messages_go_around_and_pass_each_other() {
    let machine = Machine::with(3);
    machine.is_right("ring", 2);
    machine.is_right("ring", 3);
}

#[test]
fn an_operation_occupies_its_stream_until_all_ranks_have_come() {
    Machine::with(2).is_right("occupied", 1);
}

#[test]
fn ranks_may_be_of_one_process_in_parts_in_graphs_and_in_several_streams() {
    let machine = Machine::with(4);
    machine.is_right("threads", 1);
    machine.is_right("split", 4);
    machine.is_right("graph", 2);
    machine.is_right("streams", 3);
}

#[test]
fn what_cannot_end_well_ends_with_an_error_at_every_rank() {
    let machine = Machine::with(3);
    for check in ["death", "mismatch"] {
        machine.is_right(check, 2);
        machine.is_right(check, 3);
    }
    machine.is_right("abort", 2);
    machine.is_right("unmapped", 3);
    machine.is_right("refused", 1);
}

#[test]
fn two_ranks_on_one_gpu_are_refused_unless_that_is_allowed() {
    let machine = Machine::with(1);
    machine.is_right("one_gpu", 2);
    let mut allowed = machine.ranks("ring", 2);
    allowed.env("TIDEGATE_SOFTGPU_NCCL_SHARED_GPU", "1");
    ends_well("ring", &finish_within(PATIENCE, allowed.spawn().unwrap()));
}

#[test]
fn a_rank_that_ends_while_others_join_ends_their_joining_and_its_file_is_removed_later() {
    let machine = Machine::with(3);
    let output = finish_within(PATIENCE, machine.ranks("joins_and_ends", 3).spawn().unwrap());
    ends_well("joins_and_ends", &output);
    assert_eq!(machine.left(), 1, "the third rank might still have come");
    machine.is_right("ring", 2);
}
