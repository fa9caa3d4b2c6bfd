//! R4.1: a program that knows only the CUDA runtime gets its memory and does its work as one that calls
//! the driver itself: however it has got the runtime, the manager sees both.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
#[path = "support/program.rs"]
mod program;
mod support;

use c::Compiler;
use node::Node;
use program::{NEED, Program, is_seen, manager};

/// A program of `tests/programs`, and the arguments that tell it the route.
const ROUTES: &[&[&str]] = &[
    &["runtime_linked"],
    &["runtime_opened", "libcudart.so.13", "local"],
    &["runtime_opened", "libcudart.so.13", "global"],
    &["runtime_opened", "libcudart.so", "local"],
];
/// What it does first once its memory is gone and back.
const CALLS: [&str; 4] = ["memset", "copy", "async", "launch"];

#[test]
fn the_runtime_leads_through_the_ledger_and_the_gate() {
    let manager = manager();
    let compiler = Compiler::with(Node::of(&manager).libraries());
    let kernels = compiler.compile_kernels("twice_kernel");
    for route in ROUTES {
        let program = compiler.compile_for_runtime(route[0]);
        for call in CALLS {
            let name = format!("{} {call}", route.join(" "));
            let mut command = manager.run(&["--name", &name, NEED[0], NEED[1]], &program);
            command.args(&route[1..]).arg(call).env("TIDEGATE_SOFTGPU_KERNELS", &kernels);
            is_seen(&manager, &name, Program::start(command));
        }
    }
}

#[test]
fn a_program_of_the_runtime_runs_bare_on_a_software_gpu() {
    let manager = manager();
    let node = Node::of(&manager);
    let compiler = Compiler::with(node.libraries());
    let mut command = node.run(&compiler.compile_for_runtime("runtime_linked"));
    command.arg("launch").env("TIDEGATE_SOFTGPU_KERNELS", compiler.compile_kernels("twice_kernel"));
    let mut program = Program::start(command);
    assert_eq!(program.line(), "filled");
    program.go_on();
    assert_eq!(program.line(), "as expected");
    assert_eq!(program.end(), "");
}
