//! Whose manager is believed.

use crate::support::patience::{Lines, finish, output};
use crate::support::users::STRANGER;
use crate::support::{self, command, copy_program, probe};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::fs::{DirBuilder, Permissions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use tidegate_manager::artifacts;
use tidegate_manager::software_gpu::{NODE_VARIABLE, SoftwareNode};

/// A manager's stand-in, of the stranger, in a runtime directory of theirs.
struct FakeManager {
    process: Child,
    said: Lines,
    runtime: PathBuf,
    directory: tempfile::TempDir,
}

/// What it calls the directory of its software GPUs.
const LIBRARIES: &str = "/of-the-stranger";

impl FakeManager {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let program = directory.path().join("fake_manager");
        copy_program(&artifacts::example("fake_manager").unwrap(), &program);
        let runtime = directory.path().join("runtime");
        for path in [&runtime, &runtime.join("tidegate")] {
            DirBuilder::new().mode(0o700).create(path).unwrap();
            chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
        }
        let mut command = Command::new(program);
        command.arg(runtime.join("tidegate/socket")).arg(LIBRARIES).uid(STRANGER).gid(STRANGER);
        let mut process = command.current_dir("/").stdout(Stdio::piped()).spawn().unwrap();
        let said = Lines::of(process.stdout.take().unwrap());
        assert_eq!(said.next().as_deref(), Some("ready"));
        Self { process, said, runtime, directory }
    }

    fn socket(&self) -> PathBuf {
        self.runtime.join("tidegate/socket")
    }

    /// What it was sent until now, when it ends.
    fn heard(&mut self) -> Vec<String> {
        self.end();
        self.said.rest()
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for FakeManager {
    fn drop(&mut self) {
        self.end();
    }
}

/// A command of root, where no manager is named.
fn tidegate(words: &[&str]) -> Command {
    let mut command = command();
    command.args(words).env_remove("TIDEGATE_SOCKET").env_remove("XDG_RUNTIME_DIR");
    command
}

fn text(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{error}")
}

#[test]
fn a_runtime_directory_of_another_user_names_no_manager() {
    let mut fake = FakeManager::start();
    // As after `su`, which keeps the variable.
    let mut run = tidegate(&["run", "--", "/usr/bin/env"]);
    run.env("XDG_RUNTIME_DIR", &fake.runtime).env("TMPDIR", fake.directory.path());
    let said = text(&output(run));
    assert!(!said.contains(LIBRARIES), "{said}");
    assert_eq!(fake.heard(), [""; 0]);
}

#[test]
fn a_manager_of_another_user_is_believed_only_if_that_user_is_named() {
    let mut fake = FakeManager::start();
    let socket = fake.socket();
    let at_it = |words: &[&str]| {
        let mut command = tidegate(&[words, &["--socket", socket.to_str().unwrap()]].concat());
        command.env("TMPDIR", fake.directory.path());
        command
    };
    let trusting = format!("--trust-uid={STRANGER}");
    for command in [&["status"][..], &["evict", "1"], &["manager", "stop"]] {
        let said = text(&output(at_it(command)));
        assert!(
            said.contains(&format!("belongs to uid {STRANGER}"))
                && said.contains(&trusting.replace('=', " ")),
            "{said}"
        );
    }
    let mut run = at_it(&["run"]);
    run.args(["--", "/usr/bin/env"]);
    let said = text(&output(run));
    assert!(!said.contains(LIBRARIES) && said.contains(&format!("uid {STRANGER}")), "{said}");
    let mut trusts = at_it(&["run", &trusting]);
    trusts.args(["--", "/usr/bin/env"]);
    let said = text(&output(trusts));
    assert!(said.contains(&format!("LD_LIBRARY_PATH={LIBRARIES}/lib")), "{said}");
    assert!(said.contains(&format!("TIDEGATE_TRUST_UID={STRANGER}")), "{said}");
    assert_eq!(fake.heard(), ["registration"], "only where its user was named");
}

#[test]
fn a_program_says_nothing_to_a_manager_of_another_user() {
    let mut fake = FakeManager::start();
    let node = SoftwareNode::create(&"1x8MiB".parse().unwrap(), 64 << 10).unwrap();
    let mut program = Command::new(probe());
    program.env("LD_PRELOAD", artifacts::shim().unwrap()).env("TIDEGATE_SOCKET", fake.socket());
    program.env(NODE_VARIABLE, node.path()).env("LD_LIBRARY_PATH", node.path().join("lib"));
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = program.spawn().unwrap();
    process.stdin.take().unwrap().write_all(b"device 0\n").unwrap();
    let said = text(&finish(process));
    assert!(said.contains("is not used") && said.contains(&format!("uid {STRANGER}")), "{said}");
    assert_eq!(fake.heard(), [""; 0]);
}

/// `su` keeps the variable. The libraries lie beside the command, which cargo has not built there.
#[test]
fn an_installed_command_runs_no_cargo() {
    let installed = tempfile::tempdir().unwrap();
    let driver = [artifacts::shim(), artifacts::software_driver(), artifacts::software_runtime()];
    for file in [PathBuf::from(support::tidegate())].into_iter().chain(driver.map(Result::unwrap)) {
        copy_program(&file, &installed.path().join(file.file_name().unwrap()));
    }
    let (cargo, ran) = (installed.path().join("cargo"), installed.path().join("ran"));
    std::fs::write(&cargo, format!("#!/bin/sh\ntouch {}\nexit 1\n", ran.display())).unwrap();
    std::fs::set_permissions(&cargo, PermissionsExt::from_mode(0o755)).unwrap();
    let mut doctor = Command::new(installed.path().join("tidegate"));
    doctor.args(["doctor", "--software-gpu", "1x8MiB"]).env("CARGO", &cargo);
    let said = text(&output(doctor));
    assert!(!ran.exists(), "{said}");
}

#[test]
fn a_socket_without_room_for_a_connection_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let new = || socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    let (listener, address) = (new(), SocketAddrUnix::new(&path).unwrap());
    bind(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    let full: Vec<OwnedFd> =
        std::iter::repeat_with(new).take_while(|socket| connect(socket, &address).is_ok()).collect();
    let said = text(&output(tidegate(&["status", "--socket", path.to_str().unwrap()])));
    assert!(said.contains("takes no connections"), "{} connections wait; {said}", full.len());
}
