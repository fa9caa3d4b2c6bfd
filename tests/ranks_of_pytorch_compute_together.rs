//! PyTorch's ranks on software GPUs, with the backend `nccl`: data parallel, fully sharded, a pipeline, and what
//! `torch.distributed` has, each compared with a computation on the CPU.

#[path = "support/node.rs"]
mod node;
mod support;
#[path = "support/torch.rs"]
mod torch;

use node::Node;
use std::time::Duration;
use support::Manager;
use support::patience::output_within;
use torch::{printed, script};

const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn trainings_of_two_ranks_are_as_on_the_cpu_and_have_the_same_bits_on_one_gpu() {
    let Some(python) = torch::python() else { return };
    let ranks = |gpus: &str, what: &str| {
        let manager = Manager::start(gpus, &[]);
        let mut command = script(Node::of(&manager).run(&python), "torch_ranks.py");
        command.arg(what).env("TIDEGATE_SOFTGPU_NCCL_SHARED_GPU", "1");
        printed(&output_within(PATIENCE, command))
    };
    let apart = ranks("2x256MiB", "all");
    let lines: Vec<&str> = apart.lines().collect();
    assert_eq!(lines.len(), 8, "{apart}");
    // Both ranks end with the same weights, sharded or not.
    let digest = |line: &str| line.rsplit(' ').next().unwrap_or_default().to_owned();
    let of = |what: &str| {
        lines.iter().filter(|line| line.starts_with(what)).map(|line| digest(line)).collect::<Vec<_>>()
    };
    let weights = [of("ddp"), of("fsdp")].concat();
    assert!(weights.len() == 4 && weights.iter().all(|one| *one == weights[0]), "{apart}");
    let together = ranks("1x256MiB", "ddp");
    assert_eq!(together.lines().collect::<Vec<_>>(), lines[2..4], "on one GPU");
}
