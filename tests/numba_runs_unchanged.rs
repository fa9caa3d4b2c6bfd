//! R4.1: numba, as its users install it, runs on a software GPU, bare and as a job: it finds the driver by
//! itself, compiles its kernels with NVIDIA's compilers, and nothing in it knows of either.

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
use std::process::Command;

#[test]
fn numba_runs_bare_and_as_a_job() {
    let Some(numba) = Packages::of("numba") else { return };
    let manager = manager();
    let node = Node::of(&manager);
    let compiler = Compiler::with(node.libraries());
    let kernels = compiler.compile_kernels("numba_kernel");
    let python = |mut command: Command| {
        command.arg(c::program("numba_axpy.py"));
        command.env("TIDEGATE_SOFTGPU_KERNELS", &kernels);
        Program::start(command)
    };
    let mut bare = python(node.run(&numba.python()));
    assert_eq!(bare.line(), "filled");
    bare.go_on();
    assert_eq!(bare.line(), "as expected");
    bare.end();
    let job = manager.run(&["--name", "numba", NEED[0], NEED[1]], &numba.python());
    is_seen(&manager, "numba", python(job));
}
