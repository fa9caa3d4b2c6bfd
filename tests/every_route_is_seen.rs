//! R4.1: however a program gets the driver's functions, and however it is started, the manager
//! sees its memory and its work; and what makes a program go without Tidegate does just that.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
#[path = "support/program.rs"]
mod program;
mod support;

use c::Compiler;
use node::Node;
use program::{ALLOCATED, NEED, Program, is_seen, manager};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use support::patience::output;
use support::{Jobs, Manager};
use tidegate_manager::artifacts;

/// How programs get the driver's functions.
fn routes(compiler: &Compiler, libraries: &Path) -> Vec<(String, Vec<OsString>)> {
    let by = |name: &str| compiler.compile(name).into_os_string();
    let absolute = libraries.join("libcuda.so.1").into_os_string();
    let plugin = compiler.compile_plugin("linked").into_os_string();
    let mut routes = vec![("linked".to_owned(), vec![by("linked")])];
    let mut add = |name: &str, words: Vec<OsString>| routes.push((name.to_owned(), words));
    let opened = by("opened");
    for (name, library) in
        [("soname", "libcuda.so.1".into()), ("name", "libcuda.so".into()), ("path", absolute.clone())]
    {
        for how in ["local", "global"] {
            add(&format!("{name}-{how}"), vec![opened.clone(), library.clone(), how.into()]);
        }
    }
    let plugged = by("plugged");
    for scope in ["local", "global"] {
        add(&format!("plugin-{scope}"), vec![plugged.clone(), plugin.clone(), scope.into()]);
    }
    let asked = by("asked");
    for how in ["v1", "v2", "nested", "per-thread"] {
        add(&format!("asked-{how}"), vec![asked.clone(), how.into()]);
    }
    let script = c::program("by_ctypes.py").into_os_string();
    add("ctypes", vec!["python3".into(), script.clone(), "libcuda.so.1".into()]);
    add("ctypes-path", vec!["python3".into(), script, absolute]);
    routes
}

#[test]
fn every_route_leads_through_the_ledger_and_the_gate() {
    let manager = manager();
    let libraries = Node::of(&manager).libraries();
    let compiler = Compiler::with(libraries.clone());
    let kernels = compiler.compile_kernels("count_up_kernel");
    for (route, words) in routes(&compiler, &libraries) {
        for call in ["memset", "copy", "launch"] {
            let name = format!("{route}-{call}");
            let mut command = manager.run(&["--name", &name, NEED[0], NEED[1]], Path::new(&words[0]));
            command.args(&words[1..]).arg(call).arg(&kernels);
            is_seen(&manager, &name, Program::start(command));
        }
    }
}

#[test]
fn the_preload_alone_is_enough() {
    let manager = manager();
    let linked = Linked::on(&manager);
    let mut program = Program::start(linked.preloaded(&manager.socket()));
    assert_eq!(program.line(), "filled");
    let job = manager.job("linked");
    assert_eq!((job.figures.peak_temporary_bytes, &job.pids[..]), (ALLOCATED, &[program.pid()][..]));
    program.go_on();
    assert_eq!(program.line(), "as expected");
    assert_eq!(program.end(), "");
}

#[test]
fn a_program_that_wants_nothing_of_it_is_not_touched() {
    let manager = manager();
    let linked = Linked::on(&manager);
    let mut command = linked.preloaded(&manager.socket());
    command.env("TIDEGATE_OFF", "1");
    let mut program = Program::start(command);
    assert_eq!(program.line(), "filled");
    let status = manager.status();
    assert!(status.jobs.is_empty(), "{status:#?}");
    let regions = (status.gpus[0].persistent.used_bytes, status.gpus[0].temporary.used_bytes);
    assert_eq!(regions, (0, 0));
    program.go_on();
    assert_eq!(program.line(), "as expected");
    assert_eq!(program.end(), "");
    assert!(!manager.status().has_ended("linked"));
}

#[test]
fn without_a_manager_a_program_runs_and_one_line_says_so() {
    let manager = manager();
    let linked = Linked::on(&manager);
    let mut program = Program::start(linked.preloaded(Path::new("/nowhere/socket")));
    assert_eq!(program.line(), "filled");
    program.go_on();
    assert_eq!(program.line(), "as expected");
    let said = program.end();
    assert!(said.lines().count() == 1 && said.contains("/nowhere/socket"), "{said}");
}

#[test]
fn a_required_manager_that_is_missing_means_no_cuda() {
    let manager = manager();
    let linked = Linked::on(&manager);
    let mut command = linked.preloaded(Path::new("/nowhere/socket"));
    command.env("TIDEGATE_REQUIRED", "1");
    let output = output(command);
    // CUDA_ERROR_SYSTEM_NOT_READY
    assert_eq!(String::from_utf8_lossy(&output.stdout), "driver->cuInit(0) is 802\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.lines().count() == 1 && said.contains("/nowhere/socket"), "{said}");
}

#[test]
fn what_the_ledger_would_not_see_is_refused_by_name_and_once() {
    let manager = manager();
    let compiler = Compiler::with(Node::of(&manager).libraries());
    let mut command = manager.run(&["--name", "refused"], &compiler.compile("refused"));
    command.env("TIDEGATE_LOG", "info");
    let output = output(command);
    // CUDA_ERROR_NOT_SUPPORTED
    assert_eq!(String::from_utf8_lossy(&output.stdout), "cuMulticastCreate is 801\n".repeat(2));
    let said = String::from_utf8_lossy(&output.stderr);
    let named: Vec<&str> = said.lines().filter(|line| line.contains("cuMulticastCreate")).collect();
    assert!(matches!(named[..], [line] if line.starts_with("tidegate: ")), "{said}");
}

/// The program `linked`, to be started without `tidegate run`.
struct Linked {
    node: Node,
    compiler: Compiler,
}

impl Linked {
    fn on(manager: &Manager) -> Self {
        let node = Node::of(manager);
        Self { compiler: Compiler::with(node.libraries()), node }
    }

    /// With nothing but the shim in front, and a manager at `socket` perhaps.
    fn preloaded(&self, socket: &Path) -> Command {
        let mut command = self.node.run(&self.compiler.compile("linked"));
        command.arg("memset").env("LD_PRELOAD", artifacts::shim().unwrap()).env("TIDEGATE_SOCKET", socket);
        command
    }
}
