//! The shim is inert in a process that never calls CUDA: no thread, no descriptor, nothing printed.
//! What it costs in time is measured by `cargo bench --bench alone`.

mod support;

use std::path::Path;
use std::process::{Command, Output};
use support::Manager;
use support::patience::output;

/// Of a process that the shell starts: its threads, its descriptors, whether the shim is there; of
/// the shell itself: the first two.
const SCRIPT: &str = "ls /proc/self/task | wc -l; ls /proc/self/fd | wc -l; \
    ls -l /proc/self/fd | grep -c -e socket -e memfd; grep -c libtidegate /proc/self/maps; \
    set -- /proc/$$/task/*; echo $#; set -- /proc/$$/fd/*; echo $#";

fn numbers(output: &Output) -> [u32; 6] {
    let lines = String::from_utf8(output.stdout.clone()).unwrap();
    let numbers: Vec<u32> = lines.lines().map(|line| line.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn a_program_without_cuda_has_no_thread_and_no_descriptor_of_ours() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let mut command = manager.run(&[], Path::new("/bin/sh"));
    command.args(["-c", SCRIPT]);
    let output_with = output(command);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", SCRIPT]);
    let [threads, descriptors, special, maps, shell_threads, shell_descriptors] = numbers(&output_with);
    let without = numbers(&output(command));
    assert_eq!((threads, shell_threads), (1, 1), "threads");
    assert_eq!(special, 0, "sockets and shared memory");
    assert_eq!([descriptors, shell_descriptors], [without[1], without[5]], "descriptors");
    assert!(maps > 0 && without[3] == 0, "the shim was not there at all");
    assert!(output_with.stderr.is_empty(), "{}", String::from_utf8_lossy(&output_with.stderr));
    assert!(manager.status().gpus[0].spans.is_empty());
}
