//! What users may ask a manager for.

use crate::support::patience::output;
use crate::support::users::{STRANGER, Shared};
use std::process::Command;

fn said_by(mut command: Command, program: &[&str]) -> (bool, String) {
    command.arg("--").args(program);
    let output = output(command);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn only_users_who_may_have_a_priority_or_stay_on_the_gpu() {
    let shared = Shared::start(
        "1x8MiB",
        &["--unit", "64KiB", "--max-priority", "2", "--max-weight", "3", "--allow-resident", "20012"],
    );
    let run = |user: u32, options: &[&str]| {
        said_by(shared.member(user, &[&["run"], options].concat()), &["/bin/true"])
    };
    for (user, options) in [
        (STRANGER, &["--priority", "2", "--weight", "3"][..]),
        (20_012, &["--resident"]),
        (0, &["--priority", "99"]),
    ] {
        let (ran, said) = run(user, options);
        assert!(ran, "{user} {options:?}: {said}");
    }
    for (options, option) in [
        (&["--priority", "3"][..], "--max-priority"),
        (&["--weight", "4"], "--max-weight"),
        (&["--resident"], "--allow-resident"),
    ] {
        let (ran, said) = run(STRANGER, options);
        assert!(!ran && said.contains(option), "{options:?}: {said}");
    }
}

#[test]
fn a_name_is_shown_with_a_visible_character_for_each_of_its_characters() {
    let shared = Shared::start("1x8MiB", &["--unit", "64KiB"]);
    let (ran, said) =
        said_by(shared.stranger(&["run", "--name", "a\u{202e}b\u{200b}c\u{1b}[31m"]), &["/bin/true"]);
    assert!(ran, "{said}");
    let status = shared.manager.status_when(|status| status.ended.len() == 1);
    assert_eq!(status.ended[0].name, "a\u{fffd}b\u{fffd}c\u{fffd}[31m");
}
