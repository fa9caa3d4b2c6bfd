//! R0.4: what finds no room in the host's memory lies in CXL memory before any goes to disk, and comes back as it was.
//! Node 0 stands in for a node of CXL memory, a file for a device (tests/cxl_memory_in_a_guest.rs has a real node).

mod support;

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use support::deaths::{kill, kill_movers, nothing_is_lost_at, status_after};
use support::{KIB, MIB, Manager, Probe, Status, command, nothing_is_used};

/// What a job has, and says that it needs: on a GPU of 5 MiB one of them fits.
const BYTES: u64 = 2900 * KIB;

/// The options of a manager with little memory, some CXL memory at `place`, and perhaps some disk.
fn options<'a>(cxl: &'a str, disk: &'a [&'a str]) -> Vec<&'a str> {
    let always = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--dram", "1MiB", "--cxl", cxl];
    [&always[..], disk].concat()
}

/// A file of zeros that stands in for a device.
fn device(directory: &Path, bytes: u64) -> String {
    let path = directory.join("memory");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A job with its bytes, which tell whose they are.
fn filled(manager: &Manager, device: usize, value: usize) -> Probe {
    let name = value.to_string();
    let mut job = manager.probe(&["--name", &name, "--need", &format!("0,{BYTES}")]);
    job.tell(&format!("device {device}"));
    job.tell(&format!("alloc x {BYTES}"));
    job.tell(&format!("fill x {value}"));
    job
}

/// Each of these jobs finds its bytes as they were.
fn look(jobs: &mut [Probe]) {
    for (value, job) in jobs.iter_mut().enumerate() {
        job.tell(&format!("check x {value}"));
    }
}

fn used(status: &Status) -> Vec<u64> {
    status.gpus[0].tiers.iter().map(|tier| tier.used_bytes).collect()
}

#[test]
fn dram_then_cxl_memory_then_disk_and_every_byte_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let disk = format!("{}=16MiB", directory.path().display());
    for cxl in ["node:0=2MiB".to_owned(), format!("{}=2MiB", device(directory.path(), 2 * MIB))] {
        let manager = Manager::start("1x5MiB", &options(&cxl, &["--disk", &disk]));
        let tiers = &manager.status().gpus[0].tiers;
        let shown: Vec<(&str, u64)> =
            tiers.iter().map(|tier| (tier.tier.as_str(), tier.share_bytes)).collect();
        assert_eq!(shown, [("dram", MIB), ("cxl", 2 * MIB), ("disk", 16 * MIB)]);
        let mut jobs = [0, 1, 2].map(|value| filled(&manager, 0, value));
        // Two are away.
        let status = manager.status_when(|status| used(status)[2] > 0);
        let [dram, cxl, _] = used(&status)[..] else { panic!("three tiers are wanted") };
        assert!(dram > 900 * KIB && cxl > 1900 * KIB, "{:?}", used(&status));
        (0..4).for_each(|_| look(&mut jobs));
        jobs.into_iter().for_each(Probe::end);
        manager.status_when(|status| used(status) == [0, 0, 0] && nothing_is_used(status));
    }
}

#[test]
fn a_mover_that_dies_at_any_point_on_the_way_to_cxl_memory_loses_nothing() {
    const POINTS: [&str; 5] = ["save:bytes", "index:torn", "save:index", "restore:bytes", "restore:index"];
    let directory = tempfile::tempdir().unwrap();
    for cxl in ["node:0=8MiB".to_owned(), format!("{}=8MiB", device(directory.path(), 8 * MIB))] {
        nothing_is_lost_at(&POINTS, &options(&cxl, &[]));
    }
}

#[test]
fn the_managers_death_loses_nothing_of_what_lies_in_cxl_memory() {
    let directory = tempfile::tempdir().unwrap();
    for cxl in ["node:0=12MiB".to_owned(), format!("{}=12MiB", device(directory.path(), 12 * MIB))] {
        let manager = Manager::start("2x5MiB", &options(&cxl, &[]));
        let mut jobs: Vec<Probe> = (0..4).map(|value| filled(&manager, value % 2, value)).collect();
        for _ in 0..3 {
            manager.status_when(|status| used(status)[1] > 0);
            let dead = manager.pid();
            kill(dead);
            status_after(&manager, dead);
            look(&mut jobs);
            // The next manager knows what belongs to the next mover.
            kill_movers(&manager);
            look(&mut jobs);
        }
    }
}

#[test]
fn the_gpus_have_parts_of_one_device_that_do_not_overlap() {
    let directory = tempfile::tempdir().unwrap();
    let cxl = format!("{}=12MiB", device(directory.path(), 12 * MIB));
    let manager = Manager::start("2x5MiB", &options(&cxl, &[]));
    let mut jobs: Vec<Probe> = (0..4).map(|value| filled(&manager, value % 2, value)).collect();
    (0..4).for_each(|_| look(&mut jobs));
    let status = manager.status();
    assert!(status.gpus.iter().all(|gpu| gpu.tiers[1].share_bytes == 6 * MIB && gpu.tiers[1].used_bytes > 0));
}

#[test]
fn cxl_memory_that_cannot_be_had_is_told_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |cxl: &str| {
        let mut manager = command();
        manager.arg("manager").arg("--socket").arg(directory.path().join("socket"));
        manager.args(["--software-gpu", "1x1MiB", "--cxl", cxl]);
        let output = manager.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused("node:0").contains("node:N=SIZE or PATH=SIZE is wanted"));
    assert!(refused("1GiB=1GiB").contains("as in node:1 or /dev/dax0.0"));
    assert!(refused("node:777=1MiB").contains("there is no such node with memory"));
    let said = refused("node:0=4096PiB");
    assert!(said.contains("are wanted, it has"), "{said}");
    assert!(
        refused("/no/such/device=1MiB").contains("--cxl /no/such/device: no memory for saved bytes there")
    );
    assert!(refused("/dev/null=1MiB").contains("neither a dax device nor a file"));
    let file = device(directory.path(), MIB);
    assert!(refused(&format!("{file}=2MiB")).contains("2.0 MiB are wanted, it has 1.0 MiB"));
    assert!(refused(&format!("{file}=4KiB")).contains("are less than"));
    let _manager = Manager::start("1x1MiB", &["--cxl", &format!("{file}=1MiB")]);
    assert!(refused(&format!("{file}=1MiB")).contains("another manager uses it"));
}

#[test]
fn a_node_with_processors_is_used_and_named_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let _manager = Manager::start("1x1MiB", &["--cxl", "node:0=1MiB", "--log", log.to_str().unwrap()]);
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("this node has processors: it is no CXL memory"), "{said}");
}
