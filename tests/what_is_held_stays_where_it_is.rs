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

#[test]
fn what_another_job_needs_to_come_back_is_not_held() {
    let manager = Manager::start("1x64MiB", &["--slice", "20ms", "--dram", "64MiB"]);
    let mut jobs = ["a", "b"].map(|name| manager.probe(&["--name", name]));
    for job in &mut jobs {
        job.tell("device 0");
        for piece in 0..5 {
            job.tell(&format!("alloc piece{piece} {}", 8 * MIB));
            job.tell(&format!("fill piece{piece} {piece}"));
        }
    }
    let [a, b] = &mut jobs;
    let held = (0..5).take_while(|piece| a.try_tell(&format!("hold piece{piece}")).is_ok()).count();
    assert!((1..=3).contains(&held), "{held} times 8 MiB beside another's 40 MiB, of 64 MiB");
    let refused = a.try_tell("hold piece4").unwrap_err();
    assert!(refused.contains("error 2"), "{refused}");
    manager.work_until_switched(&["a", "b"], 6, || {
        a.tell("check piece4 4");
        b.tell("check piece4 4");
    });
    b.tell("free piece4");
}

#[test]
fn a_resident_job_and_those_beside_it_are_told_what_has_no_place() {
    let manager = Manager::start("1x64MiB", &["--slice", "20ms", "--dram", "128MiB"]);
    let mut train = manager.probe(&["--name", "train"]);
    let mut serve = manager.probe(&["--name", "serve", "--resident"]);
    for job in [&mut train, &mut serve] {
        job.tell("device 0");
    }
    let grow = |job: &mut Probe, pieces: usize| {
        let mut got = (0..pieces).map(|piece| job.try_tell(&format!("alloc piece{piece} {}", 4 * MIB)));
        let refused = got.find_map(Result::err).unwrap();
        assert!(refused.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
    };
    (0..8).for_each(|piece| drop(train.tell(&format!("alloc had{piece} {}", 4 * MIB))));
    grow(&mut serve, 16);
    for piece in 0..8 {
        train.tell(&format!("fill had{piece} {piece}"));
    }
    grow(&mut train, 16);
}
