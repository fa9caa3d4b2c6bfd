//! The CXL tier: what finds no room in the host's memory, on a node or on a device. Node 0 stands in for a node of
//! CXL memory, a file for a device.

use super::super::copy::{HostMemory, HostMemoryError, Place};
use super::super::tier::ARENA;
use super::super::{CxlPart, check_node};
use super::*;
use crate::numa::cxl::CxlPlace;
use tidegate_ffi::os::faults;

/// Set in a test's own process: where CXL memory is, where the disk tier.
const PLACE_VARIABLE: &str = "TIDEGATE_TEST_CXL";
const DIRECTORY_VARIABLE: &str = "TIDEGATE_TEST_DISK";
/// The shares of the tiers, in units.
const DRAM: u64 = 2;
const CXL: u64 = 20;
const DISK: u64 = 40;
const FIRST_CXL: u32 = 1 << 31;
/// Where this GPU's part of a device begins, in units.
const START: u64 = 3;

/// Which tiers there are, and where.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Node,
    NodeAndDisk,
    File,
}

/// A mover with little memory and some CXL memory; the system's calls fail as `rules` say.
fn on_cxl_memory(test: &str, stage: Stage, rules: &str, body: impl FnOnce(&mut Bench)) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("memory");
    if stage == Stage::File {
        File::create(&file).unwrap().set_len((START + CXL) * UNIT).unwrap();
    } else if let Err(error) = check_node(0) {
        assert!(std::env::var_os("CI").is_none(), "memory cannot be bound here: {error}");
        return println!("skipped: memory cannot be bound here: {error}");
    }
    let with_cxl = |gpu| {
        faults::begin("mover");
        let variable = |name| std::env::var(name).unwrap();
        let part = CxlPart {
            place: variable(PLACE_VARIABLE).parse().unwrap(),
            start: START * UNIT,
            bytes: CXL * UNIT,
        };
        let disk = Some(variable(DIRECTORY_VARIABLE)).filter(|directory| !directory.is_empty());
        let (disk, disk_bytes) = disk.map_or((None, 0), |directory| (Some(directory.into()), DISK * UNIT));
        MoverConfig { cxl: Some(part), disk, disk_bytes, ..config(gpu, DRAM * UNIT) }
    };
    let place = match stage {
        Stage::File => file.to_str().unwrap(),
        _ => "node:0",
    };
    let disk = if stage == Stage::NodeAndDisk { directory.path().to_str().unwrap() } else { "" };
    let variables = [(PLACE_VARIABLE, place), (DIRECTORY_VARIABLE, disk), (faults::VARIABLE, rules)];
    in_its_own_process(&format!("cxl::{test}"), &variables, with_cxl, body);
}

/// Bytes at the beginning of piece 1.
fn first(units: u64) -> [Move; 1] {
    [moved(1, 0, units * UNIT, 0)]
}

/// How many slabs there are in DRAM, in CXL memory, on disk.
fn slabs(bench: &Bench) -> [usize; 3] {
    let count = |is_one: &dyn Fn(u32) -> bool| bench.slabs.keys().filter(|slab| is_one(**slab)).count();
    let cxl = |slab| slab >= FIRST_CXL && slab != ARENA.0;
    [count(&|slab| slab < FIRST_CXL), count(&cxl), count(&|slab| slab == ARENA.0)]
}

/// Restores what `first` saved, over other bytes.
fn restored(bench: &mut Bench, units: u64, piece: &File, bytes: &[u8]) {
    piece.write_all_at(&vec![0; (units * UNIT) as usize], 0).unwrap();
    assert_eq!(bench.restore(&first(units), &[]), Ok(units * UNIT));
    assert!(contents(piece) == bytes);
}

#[test]
fn zeros_take_no_room_in_cxl_memory() {
    on_cxl_memory("zeros_take_no_room_in_cxl_memory", Stage::File, "", |bench| {
        let (piece, mut bytes) = filled(bench, 1, 16);
        bytes[(8 * UNIT) as usize..].fill(0);
        piece.write_all_at(&bytes, 0).unwrap();
        assert_eq!(bench.save(&first(16)), Ok(16 * UNIT));
        assert_eq!(bench.stored, [DRAM * UNIT, 6 * UNIT, 0]);
        piece.write_all_at(&vec![7; bytes.len()], 0).unwrap();
        bench.replace(&[(1, 16, &piece)], &[]);
        assert_eq!(bench.restore(&first(16), &[]), Ok(16 * UNIT));
        assert!(contents(&piece) == bytes && bench.saved_bytes() == 0);
    });
}

#[test]
fn dram_is_filled_first_then_cxl_memory_then_the_disk() {
    let test = "dram_is_filled_first_then_cxl_memory_then_the_disk";
    on_cxl_memory(test, Stage::NodeAndDisk, "", |bench| {
        let (piece, bytes) = filled(bench, 1, 50);
        for (units, used) in [(2, [2, 0, 0]), (15, [2, 13, 0]), (40, [2, 20, 20])] {
            assert_eq!(bench.save(&first(units)), Ok(units * UNIT));
            assert_eq!(bench.stored.map(|bytes| bytes / UNIT), used);
            assert_eq!(slabs(bench), [1, 1, usize::from(used[2] > 0)]);
            restored(bench, units, &piece, &bytes);
            assert_eq!(bench.saved_bytes(), 0);
        }
        assert!(bench.save(&first(50)).is_ok() && bench.saved_bytes() == 50 * UNIT);
    });
}

#[test]
fn dram_is_left_to_who_comes_first_if_there_is_room_elsewhere() {
    let test = "dram_is_left_to_who_comes_first_if_there_is_room_elsewhere";
    on_cxl_memory(test, Stage::NodeAndDisk, "", |bench| {
        let (_low, _) = filled(bench, 1, 62);
        let stored = |bench: &Bench| bench.stored.map(|bytes| bytes / UNIT);
        assert_eq!(bench.save_sparing(TENANT, &first(10), DRAM * UNIT), Ok(10 * UNIT));
        assert_eq!(stored(bench), [0, 10, 0]);
        let high = TenantId(TENANT.0 + 1);
        assert_eq!(bench.save_sparing(high, &first(2), 0), Ok(2 * UNIT));
        assert_eq!(stored(bench), [2, 10, 0], "it had been left to it");
        bench.mover.send(&ToMover::Forget { tenant: high }, &[]);
        // 10 are left of CXL memory, 40 on disk: without DRAM it would be too much.
        let rest = [moved(1, 10 * UNIT, 52 * UNIT, 10 * UNIT)];
        assert_eq!(bench.save_sparing(TENANT, &rest, DRAM * UNIT), Ok(52 * UNIT));
        assert_eq!(stored(bench), [2, 20, 40]);
    });
}

#[test]
fn a_share_of_a_node_goes_when_nothing_lies_there() {
    on_cxl_memory("a_share_of_a_node_goes_when_nothing_lies_there", Stage::NodeAndDisk, "", |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        assert_eq!(bench.save(&first(15)), Ok(15 * UNIT));
        assert_eq!(bench.share(Tier::Cxl, 0), CXL * UNIT, "saved bytes lie there");
        restored(bench, 15, &piece, &bytes);
        assert_eq!((bench.share(Tier::Cxl, 0), slabs(bench)), (0, [1, 0, 0]));
        assert_eq!(bench.save(&first(15)), Ok(15 * UNIT));
        assert_eq!((bench.stored[1], slabs(bench)), (0, [1, 0, 1]));
        restored(bench, 15, &piece, &bytes);
        assert_eq!(bench.share(Tier::Cxl, 30 * UNIT), 30 * UNIT);
        assert_eq!((bench.save(&first(20)), bench.stored[1]), (Ok(20 * UNIT), 18 * UNIT));
    });
}

#[test]
fn the_next_mover_finds_what_lies_in_cxl_memory() {
    on_cxl_memory("the_next_mover_finds_what_lies_in_cxl_memory", Stage::Node, "", many_movers);
}

#[test]
fn the_next_mover_finds_what_lies_on_a_device() {
    on_cxl_memory("the_next_mover_finds_what_lies_on_a_device", Stage::File, "", |bench| {
        many_movers(bench);
        let file = File::open(std::env::var(PLACE_VARIABLE).unwrap()).unwrap();
        let mut others = vec![1; (START * UNIT) as usize];
        file.read_exact_at(&mut others, 0).unwrap();
        assert!(others.iter().all(|byte| *byte == 0), "another GPU's part was written");
    });
}

fn many_movers(bench: &mut Bench) {
    let (piece, bytes) = filled(bench, 1, 30);
    for _ in 0..3 {
        assert_eq!(bench.save(&first(22)), Ok(22 * UNIT));
        assert_eq!(slabs(bench), [1, 1, 0]);
        (0..2).for_each(|_| bench.replace(&[(1, 30, &piece)], &[]));
        restored(bench, 22, &piece, &bytes);
    }
    let (reason, out_of_memory) = bench.save(&first(23)).unwrap_err();
    assert!(reason.contains("raise --cxl") && out_of_memory, "{reason}");
    assert_eq!(bench.saved_bytes(), 0);
}

#[test]
fn memory_that_strays_when_it_is_page_locked_is_refused_with_advice() {
    let test = "memory_that_strays_when_it_is_page_locked_is_refused_with_advice";
    on_cxl_memory(test, Stage::Node, "mover:page@1+=ENOENT", |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        let (reason, out_of_memory) = bench.save(&first(20)).unwrap_err();
        assert!(reason.contains("1 of ") && reason.contains("do not lie on NUMA node 0"), "{reason}");
        assert!(reason.contains("--no-movable") && out_of_memory, "{reason}");
        assert_eq!((bench.saved_bytes(), slabs(bench)), (0, [1, 0, 0]));
        assert!(contents(&piece) == bytes);
        assert_eq!(bench.save(&first(2)), Ok(2 * UNIT), "there is DRAM still");
    });
}

#[test]
fn what_finds_no_memory_that_stays_goes_to_the_disk() {
    let test = "what_finds_no_memory_that_stays_goes_to_the_disk";
    on_cxl_memory(test, Stage::NodeAndDisk, "mover:page@1=ENOENT", |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        assert_eq!(bench.save(&first(20)), Ok(20 * UNIT));
        assert_eq!(slabs(bench), [1, 0, 1]);
        restored(bench, 20, &piece, &bytes);
        // When a tenant has died it is tried again.
        bench.mover.send(&ToMover::Forget { tenant: TENANT }, &[]);
        assert_eq!(bench.save(&first(20)), Ok(20 * UNIT));
        assert_eq!(bench.stored.map(|bytes| bytes / UNIT), [2, 18, 0]);
    });
}

#[test]
fn who_may_not_choose_a_node_is_told_what_is_missing() {
    is_told_what_is_missing("who_may_not_choose_a_node_is_told_what_is_missing", "mover:mbind@1+=EPERM");
}

#[test]
fn who_may_not_ask_for_pages_is_told_what_is_missing() {
    is_told_what_is_missing("who_may_not_ask_for_pages_is_told_what_is_missing", "mover:move_pages@1+=EPERM");
}

fn is_told_what_is_missing(test: &str, rules: &str) {
    on_cxl_memory(test, Stage::Node, rules, |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        let (reason, _) = bench.save(&first(20)).unwrap_err();
        assert!(reason.contains("NUMA node 0") && reason.contains("CAP_SYS_NICE"), "{reason}");
        assert!(contents(&piece) == bytes && bench.saved_bytes() == 0);
    });
}

#[test]
fn a_node_without_room_is_not_touched() {
    // What would be touched all the same fails before it takes all memory.
    on_cxl_memory("a_node_without_room_is_not_touched", Stage::Node, "mover:madvise@1+=ENOMEM", |_| {
        let error = HostMemory::new(1 << 42, Place::Node(0)).err();
        assert!(matches!(error, Some(HostMemoryError::NodeFull { node: 0, .. })), "{error:?}");
    });
}

#[test]
fn a_device_that_is_gone_is_told_in_words() {
    on_cxl_memory("a_device_that_is_gone_is_told_in_words", Stage::File, "", |bench| {
        filled(bench, 1, 20);
        std::fs::remove_file(std::env::var(PLACE_VARIABLE).unwrap()).unwrap();
        let (reason, out_of_memory) = bench.save(&first(20)).unwrap_err();
        assert!(
            reason.contains("the cxl tier") && reason.contains("No such file") && out_of_memory,
            "{reason}"
        );
    });
}

#[test]
fn a_place_is_a_node_or_a_path() {
    assert_eq!("node:12".parse(), Ok(CxlPlace::Node(12)));
    assert_eq!("/dev/dax0.0".parse(), Ok(CxlPlace::Device("/dev/dax0.0".into())));
    for (wrong, words) in [("node:x", "no number"), ("dax0.0", "/dev/dax0.0"), ("", "node:1")] {
        assert!(wrong.parse::<CxlPlace>().unwrap_err().contains(words), "{wrong}");
    }
}
