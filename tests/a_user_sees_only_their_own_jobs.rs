//! `tidegate status` names a user's jobs to that user, to root and to the manager's own user;
//! others learn how many there are and how much memory they have, no more.

mod support;

use std::process::Command;
use support::patience::output;
use support::users::{STRANGER, Shared};
use support::{MIB, Probe, Status, probe};

fn status(command: Command) -> (Status, String) {
    let output = output(command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    (serde_json::from_str(&text).unwrap(), text)
}

#[test]
fn a_user_sees_only_their_own_jobs() {
    let shared = Shared::start("1x8MiB", &["--unit", "64KiB"]);
    let mut secret = Probe::start(shared.manager.run(&["--name", "secret"], &probe()));
    secret.tell("device 0");
    secret.tell(&format!("alloc p {MIB} persistent"));
    secret.tell(&format!("alloc t {MIB} temporary"));
    let mut theirs = shared.stranger(&["run", "--name", "theirs"]);
    // It says nothing and ends with its input.
    theirs.args(["--", "/bin/cat"]);
    let theirs = Probe::start(theirs);
    shared.manager.status_when(|status| status.jobs.len() == 2);

    let (root, _) = status(shared.root(&["status", "--json"]));
    assert_eq!(root.jobs.len(), 2);
    assert_eq!(root.others, Default::default());
    let owner = &root.jobs[0];
    let (seen, text) = status(shared.stranger(&["status", "--json"]));
    assert_eq!(
        seen.jobs.iter().map(|job| (&job.figures.name[..], job.figures.uid)).collect::<Vec<_>>(),
        [("theirs", STRANGER)]
    );
    assert_eq!(seen.others.jobs, 1);
    assert_eq!(seen.others.persistent_bytes, owner.persistent_bytes);
    assert_eq!(seen.others.temporary_bytes, owner.temporary_bytes);
    assert!(owner.persistent_bytes >= MIB && owner.temporary_bytes >= MIB);
    assert!(!root.gpus[0].spans.is_empty() && seen.gpus[0].spans.is_empty());
    assert_eq!(seen.gpus[0].persistent.used_bytes, root.gpus[0].persistent.used_bytes);
    assert!(!text.contains("secret"), "{text}");
    let table = output(shared.stranger(&["status"]));
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("theirs") && table.contains("jobs of other users: 1") && !table.contains("secret"),
        "{table}"
    );

    secret.end();
    let root = shared.manager.status_when(|status| status.ended.len() == 1);
    assert_eq!(root.ended[0].name, "secret");
    let (seen, _) = status(shared.stranger(&["status", "--json"]));
    assert!(seen.ended.is_empty() && seen.others.jobs == 0);
    theirs.end();
    shared.manager.status_when(|status| status.ended.len() == 2);
    let (seen, _) = status(shared.stranger(&["status", "--json"]));
    assert_eq!(seen.ended[0].name, "theirs");
}
