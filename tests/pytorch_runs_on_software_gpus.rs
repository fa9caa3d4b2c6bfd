//! R4.1: PyTorch, the wheel as its users install it, trains on software GPUs, bare and as jobs that share one
//! that is too small for them.

#[path = "support/node.rs"]
mod node;
#[path = "support/program.rs"]
mod program;
mod support;
#[path = "support/torch.rs"]
mod torch;

use node::Node;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::patience::{finish_within, output_within};
use support::{Jobs, MIB, Manager};
use torch::{Endless, has_allocated, printed, script};

const PATIENCE: Duration = Duration::from_secs(300);

/// What a job prints that runs the script beside another that never ends, on a GPU on which one fits: each has the
/// workspace of cuBLAS in PyTorch's cache, and more.
fn shared(manager: &Manager, python: &Path, name: &str) -> String {
    let mut rival = script(manager.run(&["--name", "rival"], python), "torch_mlp.py");
    let mut rival = Endless(rival.arg("--endless").stdout(Stdio::null()).spawn().unwrap());
    manager.status_when(|status| has_allocated(status, "rival", 64 * MIB));
    let printed = printed(&output_within(PATIENCE, script(manager.run(&["--name", "guest"], python), name)));
    assert_eq!(rival.0.try_wait().unwrap(), None, "it has not ended by itself");
    drop(rival);
    let status = manager.status_when(|status| status.has_ended("rival") && status.has_ended("guest"));
    for job in ["rival", "guest"] {
        let figures = status.ended_job(job);
        assert!(figures.peak_temporary_bytes >= 64 * MIB, "{job}: {figures:#?}");
        assert!(figures.switches > 0, "{job}: {figures:#?}");
    }
    printed
}

#[test]
fn the_wheel_from_the_index_trains_bare_and_as_jobs() {
    let Some(python) = torch::python() else { return };
    let manager = Manager::start("1x112MiB", &["--slice", "20ms"]);
    let name = "torch_products.py";
    let bare = printed(&output_within(PATIENCE, script(Node::of(&manager).run(&python), name)));
    assert_eq!(bare, "products are right\ntrained\n");
    assert_eq!(shared(&manager, &python, name), bare);
}

#[test]
fn what_needs_pytorch_brings_no_library_of_nvidias() {
    let Some(python) = torch::python() else { return };
    let pip = |arguments: &[&str]| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "--disable-pip-version-check"]).args(arguments).stdin(Stdio::null());
        output_within(PATIENCE, pip)
    };
    let said = printed(&pip(&["check"]));
    assert_eq!(said, "No broken requirements found.\n");
    let said = printed(&pip(&["install", "--dry-run", "accelerate"]));
    let wanted = said.lines().find_map(|line| line.strip_prefix("Would install ")).unwrap_or_default();
    assert!(wanted.contains("accelerate"), "{said}");
    assert!(!["nvidia", "triton", "cuda"].iter().any(|name| wanted.contains(name)), "{wanted}");
}

#[test]
fn pytorch_without_a_software_gpu_says_how_it_is_started() {
    let Some(python) = torch::python() else { return };
    let run = |program: &str| {
        let mut command = Command::new(&python);
        command.args(["-c", program]).stdin(Stdio::null());
        output_within(PATIENCE, command)
    };
    let output = run("import torch");
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    assert!(!output.status.success() && last.contains("start it as `tidegate run -- "), "{said}");
    let found = run("import importlib.util; print(importlib.util.find_spec('torch') is not None)");
    assert_eq!(printed(&found), "True\n", "who looks for it finds it");
}

#[test]
fn a_perceptron_is_as_on_the_cpu_and_shared_and_poisoned_has_the_same_bits() {
    let Some(python) = torch::python() else { return };
    let manager = Manager::start("1x112MiB", &["--slice", "10ms", "--boundary-deadline", "1ms", "--poison"]);
    let name = "torch_mlp.py";
    let mut checked = script(Node::of(&manager).run(&python), name);
    checked.arg("--check");
    let alone = printed(&output_within(PATIENCE, checked));
    assert_eq!(shared(&manager, &python, name), alone);
}

/// How PyTorch may be told to allocate.
const ALLOCATORS: [(&str, &str, &str); 4] = [
    ("cached", "PYTORCH_CUDA_ALLOC_CONF", ""),
    ("expandable", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
    ("stream-ordered", "PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),
    ("uncached", "PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
];

#[test]
fn models_of_all_sorts_train_with_every_allocator() {
    let Some(python) = torch::python() else { return };
    // Each stream and each capture has its own workspace for cuBLAS, of 32 MiB.
    let manager = Manager::start("1x240MiB", &["--slice", "20ms"]);
    let name = "torch_models.py";
    let mut bare = script(Node::of(&manager).run(&python), name);
    bare.arg("graphs");
    let expected = printed(&output_within(PATIENCE, bare));
    assert_eq!(expected.lines().last(), Some("graph"), "{expected}");
    let models = expected.trim_end_matches("graph\n");
    let jobs = ALLOCATORS.map(|(job, variable, value)| {
        let mut command = script(manager.run(&["--name", job], &python), name);
        command.env(variable, value).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        (job, command.spawn().unwrap())
    });
    for (name, job) in jobs {
        assert_eq!(printed(&finish_within(PATIENCE, job)), models, "{name}");
    }
    let mut captures = script(manager.run(&["--name", "captures"], &python), name);
    captures.arg("graphs");
    assert_eq!(printed(&output_within(PATIENCE, captures)), expected);
}

#[test]
fn tensors_pass_between_the_processes_of_a_job_that_is_switched() {
    let Some(python) = torch::python() else { return };
    let manager = Manager::start("1x112MiB", &["--slice", "5ms", "--boundary-deadline", "1ms", "--poison"]);
    let name = "torch_ipc.py";
    assert_eq!(printed(&output_within(PATIENCE, script(Node::of(&manager).run(&python), name))), "shared\n");
    let mut rival = script(manager.run(&["--name", "rival"], &python), "torch_mlp.py");
    let rival = Endless(rival.arg("--endless").stdout(Stdio::null()).spawn().unwrap());
    manager.status_when(|status| has_allocated(status, "rival", 64 * MIB));
    assert_eq!(
        printed(&output_within(PATIENCE, script(manager.run(&["--name", "sharer"], &python), name))),
        "shared\n"
    );
    drop(rival);
    let status = manager.status_when(|status| status.has_ended("rival") && status.has_ended("sharer"));
    assert!(status.ended_job("sharer").switches > 0, "{:#?}", status.ended_job("sharer"));
}
