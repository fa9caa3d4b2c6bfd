//! A program of this package that loads kernels, and software GPUs on which it runs as on the bare driver.

use super::c::Compiler;
use std::path::PathBuf;
use std::process::Command;
use tidegate_manager::artifacts;
use tidegate_manager::software_gpu::{NODE_VARIABLE, SoftwareNode};

/// See the module.
pub struct Stage {
    /// The program.
    pub program: PathBuf,
    /// The file of its kernels.
    pub kernels: PathBuf,
    node: SoftwareNode,
    _compiler: Compiler,
}

impl Stage {
    /// The example `program` with the kernels of `tests/programs/KERNELS.c`, beside software GPUs.
    pub fn with(gpus: &str, program: &str, kernels: &str) -> Self {
        let node = SoftwareNode::create(&gpus.parse().unwrap(), 64 << 10).unwrap();
        let compiler = Compiler::with(node.path().join("lib"));
        let kernels = compiler.compile_kernels(kernels);
        Self { program: artifacts::example(program).unwrap(), kernels, node, _compiler: compiler }
    }

    /// The program on these GPUs, with nothing in front of their driver.
    pub fn bare(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env(NODE_VARIABLE, self.node.path());
        command.env("LD_LIBRARY_PATH", self.node.path().join("lib"));
        command
    }
}
