//! R4.2, R4.5: persistent memory grows up from the first unit, each newcomer behind the last and
//! its offset; temporary memory comes from the other end; who leaves gives its place to others.

mod support;

use support::{Jobs, KIB, MIB, Manager, Probe, Status};

const UNIT: u64 = 64 * KIB;

fn weights(manager: &Manager, name: &str, units: u64) -> Probe {
    let mut job = manager.probe(&["--name", name]);
    job.tell("device 0");
    job.tell(&format!("alloc weights {} persistent", units * UNIT));
    job.tell("fill weights 1");
    job
}

/// Each span of a job: first unit and one past the last.
fn spans(status: &Status, name: &str) -> Vec<(u32, u32)> {
    let job = status.job(name).figures.job;
    let gpu = &status.gpus[0];
    gpu.spans.iter().filter(|span| span.job == job).map(|span| (span.start_unit, span.end_unit)).collect()
}

#[test]
fn spans_lie_the_set_offset_apart() {
    let manager = Manager::start("1x16MiB", &["--unit", "64KiB", "--offset", "320KiB"]);
    let _a = weights(&manager, "a", 10);
    let b = weights(&manager, "b", 20);
    let _c = weights(&manager, "c", 7);
    let status = manager.status();
    assert_eq!(spans(&status, "a"), [(0, 10)]);
    assert_eq!(spans(&status, "b"), [(15, 35)]);
    assert_eq!(spans(&status, "c"), [(40, 47)]);
    b.end();
    manager.status_when(|status| status.has_ended("b"));
    let _d = weights(&manager, "d", 21);
    assert_eq!(spans(&manager.status(), "d"), [(52, 73)], "the hole lacks room for 21 and an offset");
    let _e = weights(&manager, "e", 15);
    assert_eq!(spans(&manager.status(), "e"), [(15, 30)], "the hole takes 15 and an offset");
}

#[test]
fn the_default_offset_is_a_part_of_the_gpu() {
    let manager = Manager::start("1x16MiB", &["--unit", "64KiB"]);
    let offset = manager.status().gpus[0].offset_bytes;
    assert_eq!(offset, 256 * KIB, "the smaller of 100 MiB and a 64th of the GPU");
    let _a = weights(&manager, "a", 10);
    let _b = weights(&manager, "b", 10);
    assert_eq!(spans(&manager.status(), "b"), [(14, 24)]);
}

#[test]
fn a_span_grows_into_its_offset_and_then_anew() {
    let manager = Manager::start("1x16MiB", &["--unit", "64KiB", "--piece", "64KiB", "--offset", "256KiB"]);
    let mut a = weights(&manager, "a", 10);
    let _b = weights(&manager, "b", 10);
    a.tell(&format!("alloc more {} persistent", 4 * UNIT));
    assert_eq!(spans(&manager.status(), "a"), [(0, 14)]);
    a.tell(&format!("alloc yet-more {} persistent", 2 * UNIT));
    assert_eq!(spans(&manager.status(), "a"), [(0, 14), (28, 30)]);
}

#[test]
fn temporary_memory_comes_from_the_other_end() {
    let manager = Manager::start("1x16MiB", &["--unit", "64KiB"]);
    let mut a = weights(&manager, "a", 10);
    a.tell(&format!("alloc t {MIB}"));
    let gpu = manager.status().gpus.remove(0);
    assert_eq!(gpu.persistent.extent_bytes, 10 * UNIT);
    assert!(gpu.temporary.extent_bytes >= MIB);
    let between = gpu.gpu_memory_bytes - gpu.persistent.extent_bytes - gpu.temporary.extent_bytes;
    assert_eq!(gpu.free_bytes + gpu.headroom_bytes, between, "what is free lies between the regions");
}
