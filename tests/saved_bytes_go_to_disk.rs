//! R0.3, R0.4: what finds room neither on the GPU nor in the host's memory lies on disk, and comes back as it was.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use support::deaths::{Killer, children, kill_movers, nothing_is_lost_at};
use support::training::{Training, alone_on};
use support::{Jobs, KIB, MIB, Manager, Probe, Status, command, nothing_is_used, train_digits};

/// What a job has, and says that it needs: on a GPU of 5 MiB one of them fits.
const BYTES: u64 = 2900 * KIB;
const OPTIONS: [&str; 6] = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms"];

/// What `start` makes of the options for a manager with some memory and disk for saved bytes.
fn with_tiers<T>(dram: &str, disk: &str, start: impl FnOnce(&[&str]) -> T) -> (T, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let disk = format!("{}={disk}", directory.path().display());
    (start(&[&OPTIONS[..], &["--dram", dram, "--disk", &disk]].concat()), directory)
}

fn manager(gpus: &str, dram: &str, disk: &str) -> (Manager, tempfile::TempDir) {
    with_tiers(dram, disk, |options| Manager::start(gpus, options))
}

fn job(manager: &Manager, name: &str) -> Probe {
    manager.probe(&["--name", name, "--need", &format!("0,{BYTES}")])
}

/// Has its bytes, which tell whose they are.
fn fill(job: &mut Probe, value: usize) {
    job.tell(&format!("alloc x {BYTES}"));
    job.tell(&format!("fill x {value}"));
}

/// Jobs on the first GPU; the first one's bytes are 0, the next one's 1.
fn filled<const N: usize>(manager: &Manager, names: [&str; N]) -> [Probe; N] {
    let mut jobs = names.map(|name| job(manager, name));
    for (value, job) in jobs.iter_mut().enumerate() {
        job.tell("device 0");
        fill(job, value);
    }
    jobs
}

fn used(status: &Status) -> Vec<u64> {
    status.gpus[0].tiers.iter().map(|tier| tier.used_bytes).collect()
}

#[test]
fn what_has_no_room_in_memory_lies_on_disk_and_survives_movers() {
    let (manager, directory) = manager("1x5MiB", "2MiB", "16MiB");
    let shown: Vec<(String, u64)> =
        manager.status().gpus[0].tiers.iter().map(|tier| (tier.tier.clone(), tier.share_bytes)).collect();
    assert_eq!(shown, [("dram".into(), 2 * MIB), ("disk".into(), 16 * MIB)]);
    let mut jobs = filled(&manager, ["a", "b", "c"]);
    // Two are away: memory first, then disk.
    let status = manager.status_when(|status| used(status)[1] > 0);
    assert!(used(&status)[0] > MIB && used(&status)[0] <= 2 * MIB, "{:?}", used(&status));
    for _ in 0..4 {
        for (value, job) in jobs.iter_mut().enumerate() {
            job.tell(&format!("check x {value}"));
        }
        kill_movers(&manager);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the arena has no name");
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| used(status) == [0, 0] && nothing_is_used(status));
}

#[test]
fn a_mover_that_dies_at_any_point_on_the_way_to_disk_loses_nothing() {
    const POINTS: [&str; 7] = [
        "save:batch",
        "save:bytes",
        "index:torn",
        "save:index",
        "restore:batch",
        "restore:bytes",
        "restore:index",
    ];
    with_tiers("1MiB", "8MiB", |options| nothing_is_lost_at(&POINTS, options));
}

#[test]
fn who_owns_damaged_bytes_is_told_and_nobody_else_notices() {
    let (manager, _directory) = manager("1x5MiB", "64KiB", "16MiB");
    let mut jobs = filled(&manager, ["a", "b"]);
    let status = manager.status_when(|status| used(status)[1] > 2 * MIB);
    let [a, b] = &mut jobs;
    assert_eq!(status.job("a").state, "waiting");
    // A bit of what lies on disk.
    let (file, at) = (arena(&manager), 300 * KIB);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let lost = a.try_tell("check x 0").unwrap_err();
    assert!(lost.contains("CUDA_ERROR_SYSTEM_NOT_READY"), "{lost}");
    b.tell("check x 1");
    manager.status_when(|status| used(status)[1] == 0);
    let mut late = job(&manager, "late");
    late.tell("device 0");
    a.process.kill().unwrap();
    fill(&mut late, 2);
    b.tell("check x 1");
    late.tell("check x 2");
}

/// The arena of the manager's mover, through the page cache.
fn arena(manager: &Manager) -> File {
    let [mover] = children(manager.pid())[..] else { panic!("one mover is wanted") };
    let files = std::fs::read_dir(format!("/proc/{mover}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let is_arena = |path: &PathBuf| {
        let place = std::fs::read_link(path).unwrap_or_default();
        place.to_string_lossy().contains("(deleted)")
            && !place.starts_with("/memfd:tidegate-saved")
            && std::fs::metadata(path).is_ok_and(|file| file.len() >= 16 * MIB)
    };
    let mut files: Vec<PathBuf> = files.filter(is_arena).collect();
    File::options().read(true).write(true).open(files.pop().expect("no arena")).unwrap()
}

#[test]
fn who_finds_no_room_on_disk_either_waits_and_then_runs() {
    let (manager, _directory) = manager("1x5MiB", "2MiB", "5MiB");
    let mut jobs = filled(&manager, ["a", "b"]);
    let mut late = job(&manager, "late");
    late.order("device 0");
    let waits =
        |status: &Status| status.jobs.iter().any(|job| job.figures.name == "late" && job.queue_place == 1);
    manager.status_when(waits);
    for (value, job) in jobs.iter_mut().enumerate() {
        job.tell(&format!("check x {value}"));
    }
    let [first, mut second] = jobs;
    first.end();
    late.answer().unwrap();
    fill(&mut late, 7);
    second.tell("check x 1");
    late.tell("check x 7");
}

#[test]
fn host_memory_is_had_where_the_saved_bytes_of_others_lie() {
    // Idle jobs' bytes fill the DRAM tier, and none of them ever comes back for its turn.
    let place = tempfile::tempdir().unwrap();
    let disk = format!("{}=64MiB", place.path().display());
    for lower in [["--cxl", "node:0=64MiB"], ["--disk", &disk]] {
        for dies_at in [None, Some("move:bytes"), Some("move:index")] {
            let killer = Killer::start("1x5MiB", &[&OPTIONS[..], &["--dram", "6MiB"], &lower].concat());
            let manager = &killer.manager;
            let mut idle = filled(manager, ["a", "b"]);
            let mut large = manager.probe(&["--name", "large", "--oversubscribe"]);
            large.tell("device 0");
            fill(&mut large, 2);
            // What the GPU lacks is saved, and leaves too little of the DRAM tier.
            manager.status_when(|status| used(status)[0] + BYTES > 6 * MIB);
            dies_at.inspect(|point| killer.order(point));
            // Told once that its GPU is too small, it asks again, as a framework does.
            let told = large.try_tell(&format!("alloc y {BYTES}")).unwrap_err();
            assert!(told.contains("OUT_OF_MEMORY"), "{told}");
            large.tell(&format!("alloc y {BYTES}"));
            assert!(dies_at.is_none() || killer.is_obeyed());
            large.tell("fill y 3");
            // What the next mover has taken over it may not have told yet.
            manager.status_when(|status| {
                used(status)[0] <= 6 * MIB && used(status)[1..].iter().sum::<u64>() > 0
            });
            // What has moved is where the next mover looks for it.
            kill_movers(manager);
            for (value, job) in idle.iter_mut().enumerate() {
                job.tell(&format!("check x {value}"));
            }
            large.tell("check x 2");
            large.tell("check y 3");
            idle.into_iter().chain([large]).for_each(Probe::end);
            manager
                .status_when(|status| used(status).iter().all(|used| *used == 0) && nothing_is_used(status));
        }
    }
}

#[test]
fn trainings_of_five_times_the_gpus_memory_end_as_alone() {
    const GPU: u64 = 3136 * KIB;
    const NAMES: [&str; 4] = ["large", "b", "c", "d"];
    // The first needs more than the GPU has; what it lacks is host memory.
    let arguments = |name| {
        let hidden = if name == "large" { "512" } else { "256" };
        ["--hidden", hidden, "--batch", "240", "--steps", "120"]
    };
    let solo = NAMES.map(|name| alone_on("1x16MiB", &arguments(name)));
    let directory = tempfile::tempdir().unwrap();
    let disk = format!("{}=64MiB", directory.path().display());
    // Node 0 stands in for one of CXL memory.
    let tiers: [&[&str]; 3] = [
        &["--dram", "64MiB"],
        &["--dram", "6MiB", "--cxl", "node:0=64MiB"],
        &["--dram", "6MiB", "--cxl", "node:0=2MiB", "--disk", &disk],
    ];
    for tiers in tiers {
        let manager = Manager::start(&format!("1x{GPU}B"), &[&OPTIONS, tiers].concat());
        let start = |name| {
            let command = manager.run(&["--name", name, "--oversubscribe"], Path::new(&train_digits()));
            Training::start(command, &arguments(name))
        };
        let large = start("large");
        manager.status_when(|status| {
            status.jobs.iter().any(|job| job.hosted_bytes > 0 && job.figures.boundaries > 1)
        });
        let [b, c, d] = ["b", "c", "d"].map(start);
        manager.status_when(|status| used(status).iter().all(|used| *used > 0));
        assert_eq!([large, b, c, d].map(Training::result), solo);
        let status = manager.status_when(|status| NAMES.iter().all(|name| status.has_ended(name)));
        assert!(NAMES.iter().any(|name| status.ended_job(name).saved_bytes > 0));
        let footprint: u64 = NAMES.iter().map(|name| status.ended_job(name).footprint_bytes).sum();
        assert!(footprint >= 5 * GPU, "{footprint} bytes on {GPU}");
    }
}

#[test]
fn a_disk_that_cannot_be_had_is_told_in_words() {
    let refused = |disk: &str| {
        let directory = tempfile::tempdir().unwrap();
        let mut manager = command();
        manager.arg("manager").arg("--socket").arg(directory.path().join("socket"));
        manager.args(["--software-gpu", "1x1MiB", "--disk", disk]);
        let output = manager.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused("/tmp").contains("DIR=SIZE is wanted"));
    assert!(
        refused("/no/such/place=1GiB")
            .contains("--disk /no/such/place: no file for saved bytes can be made there")
    );
    let said = refused("/tmp=4096PiB");
    assert!(said.contains("are wanted") && said.contains("are free there"), "{said}");
}
