//! Held memory stays where it is (DESIGN §1): the same physical memory behind the same addresses,
//! mapped by its program alone, over switches; until it is freed.

mod support;

use support::{MIB, Manager, Probe};

/// The files behind an allocation, as the program itself and as anybody sees them.
fn files(job: &mut Probe, name: &str) -> Vec<String> {
    job.tell(&format!("where {name}")).split(' ').map(String::from).filter(|name| !name.is_empty()).collect()
}

fn has_mapped(job: &Probe, inode: &str) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", job.process.id())).unwrap();
    maps.lines().any(|line| line.split_whitespace().nth(4) == Some(inode))
}

#[test]
fn what_is_held_stays_where_it_is() {
    let manager = Manager::start("1x8MiB", &["--unit", "64KiB", "--offset", "0", "--slice", "5ms"]);
    let mut jobs = ["a", "b"].map(|name| manager.probe(&["--name", name]));
    let [a, b] = &mut jobs;
    a.tell("device 0");
    for (name, seed) in [("moving", 1), ("held", 2)] {
        a.tell(&format!("alloc {name} {}", 2 * MIB));
        a.tell(&format!("fill {name} {seed}"));
    }
    a.tell("hold held");
    let (held, moving) = (files(a, "held"), files(a, "moving"));
    assert!(!held.is_empty() && moving.iter().any(|file| !held.contains(file)));
    b.tell("device 0");
    b.tell(&format!("alloc t {}", 5 * MIB));
    b.tell("fill t 3");
    manager.work_until_switched(&["a", "b"], 20, || {
        b.tell("check t 3");
        // It is another's turn now, or was just before: a has only what it holds, and b nothing of it.
        assert!(held.iter().all(|file| has_mapped(a, file) && !has_mapped(b, file)));
        a.tell("check moving 1");
        a.tell("check held 2");
    });
    assert_eq!(files(a, "held"), held);
    assert_ne!(files(a, "moving"), moving, "what is not held has been somewhere else");
    let job = manager.job("a");
    let saved = job.figures.saved_bytes / job.figures.switches.max(1);
    assert!(saved > 0 && saved <= 2 * MIB + 128 * 1024, "{saved} bytes of 4 MiB are saved at a switch");
    assert!((2 * MIB..=2 * MIB + 256 * 1024).contains(&job.held_bytes), "{} are held", job.held_bytes);
    a.tell("free held");
    b.tell("check t 3");
    assert_eq!(manager.job("a").held_bytes, 0);
}
