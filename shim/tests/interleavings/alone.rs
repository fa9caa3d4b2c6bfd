//! A test in a process of its own, for one whose failure ends the process: `loom` cannot unwind the
//! threads of a run that failed.

use rustix::process::{Signal, set_parent_process_death_signal};
use std::process::Command;

/// Set in that process.
const ALONE: &str = "TIDEGATE_TEST_ALONE";

/// Calls `check` in another process, in which nothing runs but the named test: the one that calls
/// this. Fails in the words in which that process failed first.
pub fn in_own_process(test: &str, check: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        return check();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(ALONE, "1").env("RUST_BACKTRACE", "0");
    let output = command.output().unwrap();
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", first_panic(&failed));
    assert!(said.contains(&format!("test {test} ... ")), "there is no test {test}");
    println!("{}", said.lines().find(|line| line.contains("schedules")).unwrap_or(&said));
}

fn first_panic(words: &str) -> &str {
    words.split("\nnote: ").next().unwrap_or(words).trim()
}
