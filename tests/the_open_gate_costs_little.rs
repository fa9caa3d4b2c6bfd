//! An open gate is nearly free: a launch executes at most 60 instructions of ours (counted), but for one of eight, in which it is seen how
//! far ahead the program's work is. No submitting function has a lock, a system call or a write to a shared line on its way (read
//! from the machine code). A block that PyTorch deals out or takes back costs little, too (counted).
//! All of the release build, which is what users have.

#[path = "support/c.rs"]
mod c;
#[cfg(target_arch = "x86_64")]
#[path = "support/machine_code.rs"]
mod machine_code;
#[path = "support/node.rs"]
mod node;
mod support;

use c::Compiler;
use node::Node;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::Manager;
use support::patience::{PATIENCE, output_within};

/// Instructions that a launch may execute in the shim.
const MOST_ADDED: u64 = 60;
/// The program's launches that count come after one of eight, up to the next.
const LAUNCHES: u64 = 6;

/// Instructions that the report of a block may execute in the shim: between 200 others in its segment.
const MOST_ADDED_TO_REPORT: u64 = 1200;
/// Blocks that are taken back and dealt out again.
const BLOCKS: u64 = 1000;

#[test]
fn a_launch_through_the_open_gate_adds_few_instructions() {
    if !is_there("valgrind") {
        return;
    }
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let compiler = Compiler::with(Node::of(&manager).libraries());
    let launcher = Counted { function: "cuLaunchKernel", from: "launch_counted", says: "launched" };
    let counted = launcher.count(&manager, &compiler.compile("launcher"), LAUNCHES);
    println!("{counted} instructions added by {LAUNCHES} launches: {} each", counted / LAUNCHES);
    assert!(counted >= LAUNCHES, "the shim was not there");
    assert!(counted <= MOST_ADDED * LAUNCHES, "{counted} instructions in {LAUNCHES} launches");
}

#[test]
fn the_report_of_a_block_adds_few_instructions() {
    if !is_there("valgrind") {
        return;
    }
    let manager = Manager::start("1x8MiB", &[]);
    let compiler = Compiler::with(Node::of(&manager).libraries());
    let program =
        compiler.compile_linked_with("reported", &compiler.compile_library("reported", "libc10.so"));
    let function = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
    let reporter = Counted { function, from: "blocks_counted", says: "reported" };
    let (counted, reports) = (reporter.count(&manager, &program, BLOCKS), 2 * BLOCKS);
    println!("{counted} instructions added by {reports} reports: {} each", counted / reports);
    assert!(counted >= 100 * reports, "the shim was not there");
    assert!(counted <= MOST_ADDED_TO_REPORT * reports, "{counted} instructions in {reports} reports");
}

/// What is counted: calls of a function, since the program last came to another; and what it says in the end.
struct Counted {
    function: &'static str,
    from: &'static str,
    says: &'static str,
}

impl Counted {
    /// The instructions that the shim adds. Callgrind counts between the entry into the shim's function and
    /// into the one behind it, which has the same name and so toggles the counting off, and again from that
    /// one's return to the shim's. Nothing else is counted, whatever thread runs meanwhile: the result is exact.
    fn count(&self, manager: &Manager, program: &Path, times: u64) -> u64 {
        let profile = tempfile::NamedTempFile::new().unwrap();
        let mut command = manager.run(&["--name", "counted"], Path::new("env"));
        command.arg(format!("LD_PRELOAD={}", release_shim().display()));
        command.args(["valgrind", "-q", "--tool=callgrind", "--demangle=no", "--collect-atstart=no"]);
        command.arg(format!("--toggle-collect={}", self.function));
        command.arg(format!("--zero-before={}", self.from));
        command.arg(format!("--callgrind-out-file={}", profile.path().display()));
        command.arg(program).arg(times.to_string()).stdin(Stdio::null());
        // Valgrind takes fifty times as long.
        let output = output_within(5 * PATIENCE, command);
        assert!(output.stdout == format!("{}\n", self.says).as_bytes(), "{output:?}");
        total(&std::fs::read_to_string(profile.path()).unwrap())
    }
}

/// The instructions of a callgrind profile.
fn total(profile: &str) -> u64 {
    let line = profile.lines().find_map(|line| line.strip_prefix("totals: "));
    line.expect("a profile has its totals").trim().parse().unwrap()
}

/// The rules, for every function of the kind *gated* and every path through it on which the gate
/// is found open (a direct call leaves that path: to the closed gate, or to the first loading of
/// the driver):
/// 1. one call, through a pointer: the driver's function;
/// 2. no `lock`, no `xchg` with memory (it locks), no fence, no system call;
/// 3. every write goes to the stack or, through the pointer that was read from the thread's own
///    storage, to the thread's own record.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_open_path_has_no_lock_no_system_call_and_writes_no_shared_line() {
    use tidegate_ffi::cuda::functions::{Kind, all};
    if !is_there("objdump") {
        return;
    }
    let shim = machine_code::disassemble(&release_shim());
    let gated = all().filter(|function| function.kind == Kind::Gated);
    for name in gated.map(|function| function.name) {
        let open_path = machine_code::Routine::parse(&shim, name).open_path();
        let calls = open_path.iter().filter(|instruction| instruction.is_call()).count();
        assert_eq!(calls, 1, "{name} calls more than the driver: {open_path:#?}");
        let costly: Vec<_> = open_path.iter().filter(|instruction| instruction.is_costly()).collect();
        assert!(costly.is_empty(), "{name} waits for other cores or the kernel: {costly:?}");
        let shared = machine_code::shared_writes(&open_path);
        assert!(shared.is_empty(), "{name} writes what other threads write: {shared:?}");
    }
}

/// Whether a tool of the test is installed. In CI it must be: there a skip would be a failure.
fn is_there(tool: &str) -> bool {
    let answer = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
    let found = answer.is_ok_and(|status| status.success());
    assert!(found || std::env::var_os("CI").is_none(), "{tool} is missing: install it");
    if !found {
        // Past the test harness, which shows nothing of a test that passes.
        let line = format!("SKIPPED: {tool} is not installed, the gate's cost was not checked\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    found
}

/// The shim as users have it.
fn release_shim() -> PathBuf {
    let target = Path::new(support::tidegate()).ancestors().nth(2).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--release", "--package", "tidegate-shim", "--target-dir"]).arg(target);
    let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
    assert!(status.success(), "{build:?}");
    target.join("release/libtidegate.so")
}
