//! The disk tier: what finds no room in memory.

use super::super::orders::Useless;
use super::super::tier::{ARENA, BLOCK_BYTES};
use super::super::turns::{self, SharedTier, Turns};
use super::*;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use tidegate_ffi::os::{self, faults};
use tidegate_ffi::wire::message::Will;

/// Set in a test's own process: where the arena is.
const DIRECTORY_VARIABLE: &str = "TIDEGATE_TEST_DISK";
/// The share of the disk tier.
const DISK: u64 = 12 * BLOCK_BYTES;
/// Of the DRAM tier, in units.
const DRAM: u64 = 1;

/// A mover with little memory and some disk; the system's calls fail as `rules` say.
fn on_a_disk(test: &str, rules: &str, body: impl FnOnce(&mut Bench)) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    let with_a_disk = |gpu| {
        faults::begin("mover");
        let disk = std::env::var_os(DIRECTORY_VARIABLE).map(Into::into);
        MoverConfig { disk, disk_bytes: DISK, ..config(gpu, DRAM * UNIT) }
    };
    let variables = [(DIRECTORY_VARIABLE, at), (faults::VARIABLE, rules)];
    in_its_own_process(&format!("disk::{test}"), &variables, with_a_disk, body);
}

/// The arena, to be tampered with: another opening, through the page cache.
fn arena(bench: &Bench) -> File {
    let fd = std::os::fd::AsRawFd::as_raw_fd(&bench.slabs[&ARENA.0]);
    File::options().read(true).write(true).open(format!("/proc/self/fd/{fd}")).unwrap()
}

/// Moves of the whole piece 1.
fn all(units: u64) -> [Move; 1] {
    [moved(1, 0, units * UNIT, 0)]
}

#[test]
fn what_has_no_room_in_memory_comes_back_from_the_disk() {
    on_a_disk("what_has_no_room_in_memory_comes_back_from_the_disk", "", |bench| {
        let (first, a) = filled(bench, 1, 30);
        let (second, b) = filled(bench, 2, 8);
        // Two lanes and a bit, of ranges that end nowhere in particular.
        let saved =
            [moved(1, 10, 1_900_000, 1_000), moved(2, 77, 500_001, 1_901_000), moved(2, 510_000, 7, 0)];
        assert_eq!(bench.save(&saved), Ok(2_400_008));
        assert!(bench.slabs.contains_key(&ARENA.0) && bench.slabs.len() == 2, "memory is filled first");
        assert_eq!(bench.scrub(&[1, 2]), Ok(38 * UNIT));

        let (third, fourth) = (bench.make(3, 20), bench.make(4, 5));
        let parts = [moved(3, 5, 1_000_000, 1_000), moved(4, 9, 7, 0), moved(4, 100, 200_000, 1_001_000)];
        assert_eq!(bench.restore(&parts, &[3]), Ok(1_200_007));
        assert!(contents(&third)[5..1_000_005] == a[10..1_000_010]);
        assert!(contents(&fourth)[100..200_100] == a[1_000_010..1_200_010]);
        assert!(contents(&fourth)[9..16] == b[510_000..510_007]);
        assert_eq!(
            bench.restore(&[moved(1, 3, 700_000, 1_201_000), moved(2, 0, 500_001, 1_901_000)], &[]),
            Ok(1_200_001)
        );
        assert!(contents(&first)[3..700_003] == a[1_200_010..1_900_010]);
        assert!(contents(&second)[..500_001] == b[77..500_078]);
        assert_eq!(bench.saved_bytes(), 0);
    });
}

#[test]
fn many_switches_through_memory_and_disk_lose_no_byte() {
    on_a_disk("many_switches_through_memory_and_disk_lose_no_byte", "", |bench| {
        let (piece, before) = filled(bench, 1, 32);
        let mut away = BTreeMap::new();
        let mut random = 1u64;
        for round in 0..300 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            switch_a_run(bench, &piece, &mut away, (random >> 40) % 16, 1 + (random >> 46) % 100_000);
            if round % 50 == 49 {
                bench.replace(&[(1, 32, &piece)], &[]);
            }
        }
        for run in away.keys().copied().collect::<Vec<_>>() {
            switch_a_run(bench, &piece, &mut away, run, 0);
        }
        assert!(contents(&piece) == before && bench.saved_bytes() == 0);
    });
}

/// Restores a run of the piece; or, when it is there, saves its first `bytes` bytes and overwrites them.
fn switch_a_run(bench: &mut Bench, piece: &File, away: &mut BTreeMap<u64, u64>, run: u64, bytes: u64) {
    let (start, at) = (run * 2 * UNIT, run * 3 * UNIT);
    if let Some(bytes) = away.remove(&run) {
        let cut = bytes / 3;
        for part in [moved(1, start + cut, bytes - cut, at + cut), moved(1, start, cut, at)] {
            assert_eq!(bench.restore(&[part], &[]), Ok(part.bytes));
        }
        return;
    }
    match bench.save(&[moved(1, start, bytes, at)]) {
        Ok(saved) => {
            assert_eq!(saved, bytes);
            away.insert(run, bytes);
            piece.write_all_at(&vec![0; bytes as usize], start).unwrap();
        }
        Err((reason, out_of_memory)) => {
            let blocks = away.values().map(|bytes| bytes.div_ceil(BLOCK_BYTES)).sum::<u64>();
            assert!(out_of_memory && reason.contains("disk") && blocks >= DISK / BLOCK_BYTES - 1, "{reason}");
        }
    }
}

#[test]
fn a_full_disk_keeps_nothing_and_has_room_again() {
    on_a_disk("a_full_disk_keeps_nothing_and_has_room_again", "", |bench| {
        let (_piece, _) = filled(bench, 1, 60);
        let (reason, out_of_memory) = bench.save(&all(60)).unwrap_err();
        assert!(reason.contains("raise --disk") && out_of_memory, "{reason}");
        assert_eq!(bench.saved_bytes(), 0);
        assert_eq!(bench.save(&all(40)), Ok(40 * UNIT));
        assert!(arena(bench).metadata().unwrap().len() <= DISK);
        bench.mover.send(&ToMover::Forget { tenant: TENANT }, &[]);
        assert_eq!(bench.saved_bytes(), 0);
        assert_eq!(arena(bench).metadata().unwrap().len(), 0, "the system has it back");
        assert_eq!(bench.save(&all(40)), Ok(40 * UNIT));
    });
}

/// A piece of 41 units, of which all but the first go to disk in blocks; zeros in those that `is_zero` names.
fn with_blocks_of_zeros(bench: &mut Bench, is_zero: impl Fn(u64) -> bool) -> (File, Vec<u8>) {
    let (piece, mut bytes) = filled(bench, 1, 41);
    for block in (0..10).filter(|block| is_zero(*block)) {
        let start = (DRAM * UNIT + block * BLOCK_BYTES) as usize;
        bytes[start..start + BLOCK_BYTES as usize].fill(0);
    }
    piece.write_all_at(&bytes, 0).unwrap();
    (piece, bytes)
}

#[test]
fn the_disk_is_measured_as_far_as_it_has_room() {
    on_a_disk("the_disk_is_measured_as_far_as_it_has_room", "", |bench| {
        filled(bench, 1, 41);
        assert_eq!(bench.saved_bytes(), 0);
        assert!(!bench.slabs.contains_key(&ARENA.0), "there is no arena for it");
        assert_eq!(bench.save(&all(41)), Ok(41 * UNIT));
        let rest = [moved(1, 41 * UNIT, 1, 41 * UNIT)];
        assert!(bench.save(&rest).is_err());
        bench.replace(&[], &[]);
        bench.measure();
        let disks: Vec<_> = bench.bandwidths.iter().map(|measured| measured.tiers[2]).collect();
        assert!(matches!(disks[..], [Some(TierRates { write: 1.., read: 1.. }), Some(_)]), "{disks:?}");
    });
}

#[test]
fn who_is_ahead_of_another_gpu_waits_for_it() {
    on_a_disk("who_is_ahead_of_another_gpu_waits_for_it", "", |bench| {
        let (piece, bytes) = filled(bench, 1, 41);
        let state = turns::tests::file();
        let will = Will { socket: Vec::new(), start: None };
        bench.mover.send(&ToMover::Will(will), &[state.as_fd()]);
        let other = Turns::of(GpuUuid([9; 16]), state.as_fd()).unwrap();
        other.claim_for_long(SharedTier::Disk);
        let (has_waited, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !other.somebody_waits() && !is_over.load(SeqCst) {
                    std::thread::yield_now();
                }
                has_waited.store(other.somebody_waits(), SeqCst);
                other.take_at_once(SharedTier::Disk, 1 << 40);
            });
            // Together more than it may be ahead.
            for _ in 0..5 {
                assert_eq!(bench.save(&all(41)), Ok(41 * UNIT));
                assert_eq!(bench.restore(&all(41), &[]), Ok(41 * UNIT));
            }
            is_over.store(true, SeqCst);
        });
        assert!(has_waited.load(SeqCst) && contents(&piece) == bytes);
        // Else it would look for the next manager.
        bench.mover.send(&ToMover::End, &[]);
    });
}

#[test]
fn blocks_of_zeros_take_no_room_on_disk() {
    on_a_disk("blocks_of_zeros_take_no_room_on_disk", "", |bench| {
        let (piece, bytes) = with_blocks_of_zeros(bench, |block| block % 2 == 0);
        assert_eq!(bench.save(&all(41)), Ok(41 * UNIT));
        assert_eq!(bench.stored, [UNIT, 0, 5 * BLOCK_BYTES]);
        piece.write_all_at(&vec![7; bytes.len()], 0).unwrap();
        bench.replace(&[(1, 41, &piece)], &[]);
        let cut = 13 * UNIT + 5;
        assert_eq!(bench.restore(&[moved(1, cut, 41 * UNIT - cut, cut)], &[]), Ok(41 * UNIT - cut));
        assert_eq!(bench.restore(&[moved(1, 0, cut, 0)], &[]), Ok(cut));
        assert!(contents(&piece) == bytes && bench.saved_bytes() == 0);
    });
}

#[test]
fn zeros_are_not_written_to_disk() {
    on_a_disk("zeros_are_not_written_to_disk", "mover:store@1+=EIO", |bench| {
        let (piece, bytes) = with_blocks_of_zeros(bench, |_| true);
        assert_eq!(bench.save(&all(41)), Ok(41 * UNIT));
        assert_eq!(bench.saved_bytes(), UNIT);
        piece.write_all_at(&vec![7; bytes.len()], 0).unwrap();
        assert_eq!(bench.restore(&all(41), &[]), Ok(41 * UNIT));
        assert!(contents(&piece) == bytes);
    });
}

#[test]
fn switches_with_zeros_anywhere_lose_no_byte() {
    on_a_disk("switches_with_zeros_anywhere_lose_no_byte", "", |bench| {
        let (piece, before) = filled(bench, 1, 20);
        let mut random = 1u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % bound
        };
        for round in 0..100 {
            let mut bytes = before.clone();
            for _ in 0..below(4) {
                let start = below(20 * UNIT) as usize;
                let end = (start + below(8 * UNIT) as usize).min(bytes.len());
                bytes[start..end].fill(0);
            }
            piece.write_all_at(&bytes, 0).unwrap();
            let (start, cut) = (below(4 * UNIT), below(10 * UNIT));
            let rest = 20 * UNIT - start;
            assert_eq!(bench.save(&[moved(1, start, rest, 3)]), Ok(rest));
            piece.write_all_at(&vec![7; rest as usize], start).unwrap();
            if round % 25 == 24 {
                bench.replace(&[(1, 20, &piece)], &[]);
            }
            let parts = [moved(1, start + cut, rest - cut, 3 + cut), moved(1, start, cut, 3)];
            assert_eq!(parts.map(|part| bench.restore(&[part], &[]).unwrap()).iter().sum::<u64>(), rest);
            assert!(contents(&piece) == bytes && bench.saved_bytes() == 0, "round {round}");
        }
    });
}

#[test]
fn a_smaller_share_of_the_disk_gives_back_the_arenas_free_end() {
    on_a_disk("a_smaller_share_of_the_disk_gives_back_the_arenas_free_end", "", |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        let blocks = |bench: &Bench| arena(bench).metadata().unwrap().len() / BLOCK_BYTES;
        assert_eq!((bench.save(&all(20)), blocks(bench)), (Ok(20 * UNIT), DISK / BLOCK_BYTES));
        // 19 units lie there, in five blocks.
        assert_eq!((bench.share(Tier::Disk, BLOCK_BYTES), blocks(bench)), (5 * BLOCK_BYTES, 5));
        bench.replace(&[(1, 20, &piece)], &[]);
        piece.write_all_at(&vec![0; bytes.len()], 0).unwrap();
        assert_eq!(bench.restore(&all(20), &[]), Ok(20 * UNIT));
        assert!(contents(&piece) == bytes);
        let share = 2 * BLOCK_BYTES + 7;
        assert_eq!(
            (bench.share(Tier::Disk, share), blocks(bench)),
            (share, 2),
            "a part of a block is not used"
        );
        let (reason, out_of_memory) = bench.save(&all(20)).unwrap_err();
        assert!(reason.contains("raise --disk") && out_of_memory, "{reason}");
        assert_eq!(bench.save(&all(9)), Ok(9 * UNIT));
        assert_eq!(bench.restore(&all(9), &[]), Ok(9 * UNIT));
        assert_eq!(bench.share(Tier::Disk, 2 * DISK), 2 * DISK);
        assert_eq!(bench.save(&all(20)), Ok(20 * UNIT));
    });
}

#[test]
fn a_changed_bit_on_disk_is_read_by_nobody() {
    on_a_disk("a_changed_bit_on_disk_is_read_by_nobody", "", |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        assert_eq!(bench.save(&all(20)), Ok(20 * UNIT));
        let (file, at) = (arena(bench), 2 * BLOCK_BYTES + 4711);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        piece.write_all_at(&vec![0; bytes.len()], 0).unwrap();
        let (reason, out_of_memory) = bench.restore(&all(20), &[]).unwrap_err();
        assert!(reason.contains("damaged") && !out_of_memory, "{reason}");
        // Neither what changed nor what lies beside it in its block, but all else.
        let in_memory = DRAM * UNIT;
        let bad = in_memory + 2 * BLOCK_BYTES;
        assert!(bench.restore(&[moved(1, bad, 1, bad)], &[]).unwrap_err().0.contains("damaged"));
        assert_eq!(bench.restore(&[moved(1, 0, bad, 0)], &[]), Ok(bad));
        assert!(contents(&piece)[..bad as usize] == bytes[..bad as usize]);
        file.write_all_at(&byte, at).unwrap();
        let rest = 20 * UNIT - bad;
        assert_eq!(bench.restore(&[moved(1, bad, rest, bad)], &[]), Ok(rest));
        assert!(contents(&piece) == bytes);
    });
}

#[test]
fn an_older_block_in_place_of_a_newer_is_read_by_nobody() {
    on_a_disk("an_older_block_in_place_of_a_newer_is_read_by_nobody", "", |bench| {
        let (piece, bytes) = filled(bench, 1, 9);
        let mut older = vec![0; BLOCK_BYTES as usize];
        for round in 0..2 {
            assert_eq!(bench.save(&all(9)), Ok(9 * UNIT));
            let file = arena(bench);
            let (first, second) = (0, BLOCK_BYTES);
            if round == 0 {
                file.read_exact_at(&mut older, first).unwrap();
                assert_eq!(bench.restore(&all(9), &[]), Ok(9 * UNIT));
                piece.write_all_at(&pattern(9 * UNIT, 5), 0).unwrap();
                continue;
            }
            let mut newer = vec![0; BLOCK_BYTES as usize];
            file.read_exact_at(&mut newer, first).unwrap();
            assert_ne!(older, newer);
            file.write_all_at(&older, first).unwrap();
            assert!(bench.restore(&all(9), &[]).unwrap_err().0.contains("damaged"), "an older one");
            file.write_all_at(&newer, first).unwrap();
            file.write_all_at(&newer, second).unwrap();
            assert!(bench.restore(&all(9), &[]).unwrap_err().0.contains("damaged"), "another one");
        }
        assert_ne!(contents(&piece), bytes);
    });
}

#[test]
fn the_next_mover_knows_what_was_written() {
    on_a_disk("the_next_mover_knows_what_was_written", "", |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        assert_eq!(bench.save(&all(20)), Ok(20 * UNIT));
        // The second learns it from the log that the first has written anew.
        (0..2).for_each(|_| bench.replace(&[(1, 20, &piece)], &[]));
        piece.write_all_at(&vec![0; bytes.len()], 0).unwrap();
        let file = arena(bench);
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).unwrap();
        file.write_all_at(&[!byte[0]], 0).unwrap();
        assert!(bench.restore(&all(20), &[]).unwrap_err().0.contains("damaged"));
        file.write_all_at(&byte, 0).unwrap();
        assert_eq!(bench.restore(&all(20), &[]), Ok(20 * UNIT));
        assert!(contents(&piece) == bytes);
        // Its save was carried out; nobody heard of it: the blocks are free, and written anew.
        assert_eq!(bench.save(&all(20)), Ok(20 * UNIT));
        let save = Step(bench.next);
        bench.replace(&[(1, 20, &piece)], &[save]);
        assert_eq!(bench.saved_bytes(), 0);
        assert_eq!(bench.save(&all(20)), Ok(20 * UNIT));
        assert_eq!(bench.restore(&all(20), &[]), Ok(20 * UNIT));
        assert!(contents(&piece) == bytes);
    });
}

/// A mover that dies then would have moved them to where the next one does not find them.
#[test]
fn no_bytes_are_moved_to_an_arena_of_which_the_manager_was_not_told() {
    on_a_disk("no_bytes_are_moved_to_an_arena_of_which_the_manager_was_not_told", "", |bench| {
        let (mut mover, mut next) = (direct(&bench.config), direct(&bench.config));
        let adopt = |pieces, slabs| ToMover::Adopt { pieces, slabs, again: Some(vec![Step(3)]) };
        let index = kept(mover.handle(adopt(Vec::new(), Vec::new()), Vec::new(), &mut hears));

        let pieces = vec![(PieceId(1), DRAM * UNIT)];
        let make = ToMover::Make { step: Step(1), pieces: pieces.clone(), location: Location::Device };
        let piece = kept(mover.handle(make, Vec::new(), &mut hears)).remove(0);
        let (file, bytes) = (File::from(os::duplicate(&piece).unwrap()), pattern(DRAM * UNIT, 1));
        file.write_all_at(&bytes, 0).unwrap();
        let (tenant, moves) = (TENANT, all(DRAM).to_vec());
        let save = ToMover::Save { step: Step(2), tenant, moves: moves.clone(), spared: 0 };
        let slabs = kept(mover.handle(save, Vec::new(), &mut hears));
        assert_eq!(slabs.len(), 1);

        let place = vec![(PieceId(2), DRAM * UNIT)];
        let make = ToMover::Make { step: Step(3), pieces: place, location: Location::Host };
        let mut told = Vec::new();
        let ended = mover.handle(make, Vec::new(), &mut |news| {
            told.push(news.message);
            Err(LinkError::Ended)
        });
        assert!(matches!(ended, Err(Useless::Unheard(LinkError::Ended))));
        assert!(matches!(told[..], [FromMover::Slab { slab }] if slab == ARENA.0), "{told:?}");

        file.write_all_at(&vec![0; bytes.len()], 0).unwrap();
        let fds = [piece].into_iter().chain(slabs).chain(index).collect();
        kept(next.handle(adopt(pieces, vec![0]), fds, &mut hears));
        let restore = ToMover::Restore { step: Step(4), tenant, moves, poison: Vec::new() };
        kept(next.handle(restore, Vec::new(), &mut hears));
        assert!(contents(&file) == bytes);
    });
}

/// The descriptors that come with what the manager is told.
fn kept(answers: Result<Vec<Answer>, Useless>) -> Vec<OwnedFd> {
    let answers = answers.unwrap_or_else(|error| panic!("{error}"));
    assert!(!answers.iter().any(|answer| matches!(answer.message, FromMover::Failed { .. })));
    answers.into_iter().flat_map(|answer| answer.fds).collect()
}

#[test]
fn a_disk_that_fails_costs_one_order() {
    let rules = "mover:fallocate@1=ENOSPC,mover:fallocate@2=ENOSPC,mover:store@1=EIO,mover:load@1=EIO";
    on_a_disk("a_disk_that_fails_costs_one_order", rules, |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        let mut refused = |out_of_memory: bool| {
            let (reason, memory) = bench.save(&all(20)).unwrap_err();
            assert!(reason.contains("the disk tier: ") && memory == out_of_memory, "{reason}");
            assert_eq!(bench.saved_bytes(), 0);
        };
        refused(true);
        refused(false);
        assert_eq!(bench.save(&all(20)), Ok(20 * UNIT));
        // What is read a second time is no loss.
        piece.write_all_at(&vec![0; bytes.len()], 0).unwrap();
        assert_eq!(bench.restore(&all(20), &[]), Ok(20 * UNIT));
        assert!(contents(&piece) == bytes);
    });
}

#[test]
fn a_memory_file_that_is_full_costs_one_order() {
    // The first is the page that shows its progress. Then none for saved bytes and none for the lanes, then none for the index.
    let rules =
        "mover:ftruncate@2=ENOSPC,mover:ftruncate@3=ENOSPC,mover:ftruncate@4=ENOSPC,mover:pwrite@1=ENOSPC";
    on_a_disk("a_memory_file_that_is_full_costs_one_order", rules, |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        let mut refused = 0;
        while let Err((reason, _)) = bench.save(&all(20)) {
            println!("refused: {reason}");
            assert_eq!(bench.saved_bytes(), 0);
            assert!(contents(&piece) == bytes);
            refused += 1;
        }
        assert!((2..=4).contains(&refused), "{refused} orders");
        piece.write_all_at(&vec![0; bytes.len()], 0).unwrap();
        assert_eq!(bench.restore(&all(20), &[]), Ok(20 * UNIT));
        assert!(contents(&piece) == bytes);
    });
}

#[test]
fn what_a_disk_has_written_by_half_is_read_by_nobody() {
    on_a_disk("what_a_disk_has_written_by_half_is_read_by_nobody", "mover:short@1=EIO", |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        assert_eq!(bench.save(&all(20)), Ok(20 * UNIT), "the disk says that all is well");
        piece.write_all_at(&vec![0; bytes.len()], 0).unwrap();
        let (reason, out_of_memory) = bench.restore(&all(20), &[]).unwrap_err();
        assert!(reason.contains("damaged") && !out_of_memory, "{reason}");
        let in_memory = DRAM * UNIT;
        assert_eq!(bench.restore(&[moved(1, 0, in_memory, 0)], &[]), Ok(in_memory));
        assert!(contents(&piece)[..in_memory as usize] == bytes[..in_memory as usize]);
    });
}

#[test]
fn a_disk_that_cannot_be_read_keeps_what_it_has() {
    on_a_disk("a_disk_that_cannot_be_read_keeps_what_it_has", "mover:load@1+=EIO", |bench| {
        let (piece, bytes) = filled(bench, 1, 20);
        assert_eq!(bench.save(&all(20)), Ok(20 * UNIT));
        let saved = bench.saved_bytes();
        let (reason, out_of_memory) = bench.restore(&all(20), &[]).unwrap_err();
        assert!(reason.contains("the disk tier: ") && !out_of_memory, "{reason}");
        assert_eq!(bench.saved_bytes(), saved);
        assert!(contents(&piece) == bytes);
    });
}

#[test]
fn a_directory_that_is_gone_is_told_in_words() {
    on_a_disk("a_directory_that_is_gone_is_told_in_words", "", |bench| {
        filled(bench, 1, 20);
        std::fs::remove_dir(std::env::var_os(DIRECTORY_VARIABLE).unwrap()).unwrap();
        let (reason, out_of_memory) = bench.save(&all(20)).unwrap_err();
        assert!(reason.contains("the disk tier: No such file") && !out_of_memory, "{reason}");
        assert_eq!(bench.save(&all(1)), Ok(UNIT), "there is memory still");
    });
}
