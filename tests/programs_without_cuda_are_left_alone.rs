//! The shim is inert in a process that never calls CUDA: no thread, no socket, nothing printed.

mod support;

use std::path::Path;
use support::Manager;
use support::patience::output;

#[test]
fn a_program_without_cuda_has_no_thread_and_no_socket_of_ours() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let script = "ls /proc/self/task | wc -l; ls -l /proc/self/fd | grep -c socket; grep -c libtidegate /proc/self/maps";
    let mut command = manager.run(&[], Path::new("/bin/sh"));
    command.args(["-c", script]);
    let output = output(command);
    let lines = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<u32> = lines.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers[..2], [1, 0], "threads and sockets");
    assert!(numbers[2] > 0, "the shim was not there at all");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(manager.status().gpus[0].spans.is_empty());
}
