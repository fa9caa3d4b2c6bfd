//! R4.1: a program as NVIDIA's compiler makes it, with the shared runtime, runs on a software GPU, bare and
//! as a job. Only what its kernel computes is told apart: no CPU runs a GPU's code.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
#[path = "support/packages.rs"]
mod packages;
#[path = "support/program.rs"]
mod program;
mod support;

use c::Compiler;
use node::Node;
use packages::Packages;
use program::{NEED, Program, is_seen, manager};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::patience::output;

/// Programs of one source whose default streams are one for all threads, or each thread's own.
const DEFAULT_STREAMS: [&str; 2] = ["legacy", "per-thread"];

#[test]
fn a_program_of_nvcc_runs_bare_and_as_a_job() {
    let Some(toolkit) = Packages::of("nvcc") else { return };
    let manager = manager();
    let node = Node::of(&manager);
    let compiler = Compiler::with(node.libraries());
    let kernels = compiler.compile_kernels("nvcc_kernel");
    let directory = tempfile::tempdir().unwrap();
    let programs =
        DEFAULT_STREAMS.map(|streams| (streams, compile(&toolkit, &node, directory.path(), streams)));
    // The manager keeps memory that jobs have had, so who goes past it comes first.
    for (_, program) in &programs {
        let mut bare = node.run(program);
        bare.env("TIDEGATE_SOFTGPU_KERNELS", &kernels);
        runs(Program::start(bare));
    }
    for (streams, program) in &programs {
        let mut job = manager.run(&["--name", streams, NEED[0], NEED[1]], program);
        job.env("TIDEGATE_SOFTGPU_KERNELS", &kernels);
        is_seen(&manager, streams, Program::start(job));
    }
}

fn runs(mut program: Program) {
    assert_eq!(program.line(), "filled");
    program.go_on();
    assert_eq!(program.line(), "as expected");
    assert_eq!(program.end(), "");
}

/// `tests/programs/nvcc_axpy.cu`, linked with the runtime of the node.
fn compile(toolkit: &Packages, node: &Node, directory: &Path, streams: &str) -> PathBuf {
    let program = directory.join(streams);
    let mut nvcc = Command::new(toolkit.nvidia().join("bin/nvcc"));
    nvcc.args(["-cudart", "shared", "-arch=sm_80", "-default-stream", streams, "-o"]).arg(&program);
    nvcc.arg("-L").arg(node.libraries());
    nvcc.arg(c::program("nvcc_axpy.cu"));
    let output = output(nvcc);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
