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
use support::patience::{finish_within, output};
use support::{Jobs, MIB, Manager};

const PATIENCE: Duration = Duration::from_secs(300);

fn script(mut python: Command) -> Command {
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/torch_products.py"));
    python
}

/// It ends well, and has said so.
fn trains(output: &std::process::Output) {
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", said(&output.stdout), said(&output.stderr));
    assert_eq!(said(&output.stdout), "products are right\ntrained\n", "{}", said(&output.stderr));
}

#[test]
fn the_wheel_from_the_index_trains_bare_and_as_jobs() {
    let Some(python) = torch::python() else { return };
    let manager = Manager::start("1x112MiB", &["--slice", "20ms"]);
    trains(&output(script(Node::of(&manager).run(&python))));
    // Each has cuBLAS's workspace in PyTorch's cache, and more: they take turns.
    let jobs = ["first", "second"].map(|name| {
        let mut job = script(manager.run(&["--name", name], &python));
        job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for job in jobs {
        trains(&finish_within(PATIENCE, job));
    }
    let status = manager.status_when(|status| ["first", "second"].iter().all(|name| status.has_ended(name)));
    for name in ["first", "second"] {
        let figures = status.ended_job(name);
        assert!(figures.peak_temporary_bytes >= 64 * MIB, "{name}: {figures:#?}");
        assert!(figures.switches > 0, "{name}: {figures:#?}");
    }
}
