//! What is written by hand in PTX assembles for every GPU that NVIDIA's assembler knows: the mover's kernel, which a
//! driver compiles when it is needed, and those of the GPU kit.

#[path = "support/packages.rs"]
mod packages;
mod support;

use packages::Packages;
use std::path::Path;
use std::process::Command;
use support::patience::output;

const SOURCES: [&str; 2] = ["manager/src/mover/copy/gather.ptx", "tests/gpu/kernels.ptx"];
const GPUS: [&str; 8] = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"];

#[test]
fn the_kernels_in_ptx_assemble_for_the_gpus_of_today() {
    let Some(toolkit) = Packages::of("nvcc") else { return };
    for source in SOURCES {
        for gpu in GPUS {
            let mut ptxas = Command::new(toolkit.nvidia().join("bin/ptxas"));
            ptxas.args(["--warning-as-error", "-arch", gpu, "-o", "/dev/null"]);
            ptxas.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source));
            let output = output(ptxas);
            assert!(output.status.success(), "{source}, {gpu}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
