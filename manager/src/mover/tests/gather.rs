//! Many tiny ranges are gathered on the GPU, where that is right and faster; else they go in batches.
//!
//! Which way they go shows in calls that fail: from some call of a function on, or at none.

use super::*;

/// A GPU on which batches are slow: its staging memory is 128 KiB, its slabs are of 2 MiB.
const SLOW_BATCHES: &str = "1x16MiB,copy=200us";
/// One on which they are so slow that the trial chooses to gather, however busy the machine is: it times some 28 ranges, and
/// is right as long as one of three rounds of a launch, two copies and a wait takes less than 140 ms. With 2 ms for a copy
/// these were 28 ms, and too few with 14 runnable processes on each core. Its slabs are of 2.5 MiB: steps of a MiB end just before a
/// multiple of one, and if a slab ended there a few ranges between the two would go in a batch.
const SLOWEST_BATCHES: &str = "1x20MiB,copy=10ms";
/// One on which a launch and a copy are slower than a batch.
const SLOW_CALLS: &str = "1x16MiB,call=2ms";
const LOG_VARIABLE: &str = "TIDEGATE_SOFTGPU_FAULTS_LOG";
const KERNELS_VARIABLE: &str = "TIDEGATE_SOFTGPU_KERNELS";
/// The saved bytes' share: two slabs.
const DRAM: u64 = 4 << 20;
/// What the trial submits.
const TRIAL_BATCHES: u32 = 6;
const TRIAL_LAUNCHES: u32 = 8;

/// Runs `test` of this module in its own process; returns which functions a fault struck there.
fn run_on(
    spec: &str,
    test: &str,
    faults: &str,
    variables: &[(&str, &str)],
    body: impl FnOnce(&mut Bench),
) -> String {
    let directory = tempfile::tempdir().unwrap();
    // The test's own process has it from the one that started it.
    let log = std::env::var_os(LOG_VARIABLE).map_or_else(|| directory.path().join("faults"), Into::into);
    let mut all = vec![(FAULTS_VARIABLE, faults), (LOG_VARIABLE, log.to_str().unwrap())];
    all.extend(variables);
    on_a_node(spec, &format!("gather::{test}"), &all, |gpu| config(gpu, DRAM), body);
    match std::fs::read_to_string(&log) {
        Ok(struck) => struck,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            String::new()
        }
    }
}

/// What is alive in two pieces of 32 units: ranges as long as `bytes` says, which are no neighbours there and all
/// neighbours where they are saved.
fn scattered(count: u64, bytes: impl Fn(u64) -> u64) -> Vec<Move> {
    let (mut ends, mut at) = ([3, 64], 0);
    let scatter = |index| {
        let (piece, bytes) = (index % 2, bytes(index));
        let offset = ends[piece as usize] + index % 5 + 1;
        ends[piece as usize] = offset + bytes;
        at += bytes;
        moved(piece + 1, offset, bytes, at - bytes)
    };
    (0..count).map(scatter).collect()
}

/// Tiny ranges of odd sizes, more than one slab of them.
fn odd() -> Vec<Move> {
    scattered(1500, |index| 1 + index * 677 % 4099)
}

/// Saves, overwrites the pieces, and restores: the ranges' bytes come back, and no other.
fn go_and_come_back(bench: &mut Bench, moves: &[Move]) {
    let pieces = [filled(bench, 1, 32), filled(bench, 2, 32)];
    let bytes = moves.iter().map(|m| m.bytes).sum();
    assert_eq!(bench.save(moves), Ok(bytes));
    assert!(pieces.iter().all(|(piece, before)| contents(piece) == *before), "a save changes nothing");
    pieces.iter().for_each(|(piece, _)| piece.write_all_at(&vec![7; 32 * UNIT as usize], 0).unwrap());
    assert_eq!(bench.restore(moves, &[]), Ok(bytes));
    for (index, (piece, before)) in pieces.iter().enumerate() {
        let mut wanted = vec![7; before.len()];
        for m in moves.iter().filter(|m| m.piece.0 == index as u64 + 1) {
            let range = m.offset as usize..(m.offset + m.bytes) as usize;
            wanted[range.clone()].copy_from_slice(&before[range]);
        }
        assert!(contents(piece) == wanted, "piece {}", index + 1);
    }
    assert_eq!(bench.saved_bytes(), 0);
}

#[test]
fn many_tiny_ranges_of_odd_sizes_are_gathered_and_come_back() {
    let test = "many_tiny_ranges_of_odd_sizes_are_gathered_and_come_back";
    // No batch but the trial's is taken.
    let faults = format!("cuMemcpyBatchAsync_v2@{}+=UNKNOWN", TRIAL_BATCHES + 1);
    run_on(SLOWEST_BATCHES, test, &faults, &[], |bench| {
        go_and_come_back(bench, &odd());
        assert!(bench.slabs.len() > 1, "they lie in one slab");
        bench.destroy(&[1, 2]).unwrap();
        go_and_come_back(bench, &odd());
    });
}

#[test]
fn ranges_of_all_sizes_come_back_some_gathered() {
    let test = "ranges_of_all_sizes_come_back_some_gathered";
    let launched = format!("cuLaunchKernel@{}=LAUNCH_OUT_OF_RESOURCES", TRIAL_LAUNCHES + 1);
    let struck = run_on(SLOWEST_BATCHES, test, &launched, &[], |bench| {
        // Runs of tiny ones of many lengths, between some that are not.
        let bytes = |index: u64| match index % 151 {
            0 => 40_000,
            31 | 36 | 40 => 32 << 10,
            149 => 70_000,
            _ => 1 + index * 7919 % 1999,
        };
        go_and_come_back(bench, &scattered(1200, bytes));
    });
    assert_eq!(struck, "cuLaunchKernel\n");
}

/// Nothing is gathered where these calls fail, and no order does.
fn goes_in_batches_where(test: &str, faults: &str) {
    let struck = run_on(SLOW_BATCHES, test, faults, &[], |bench| go_and_come_back(bench, &odd()));
    assert!(struck.contains(faults.split('@').next().unwrap()), "no call failed");
}

#[test]
fn a_kernel_that_cannot_be_loaded_leaves_batches() {
    goes_in_batches_where(
        "a_kernel_that_cannot_be_loaded_leaves_batches",
        "cuModuleLoadData@1=UNSUPPORTED_PTX_VERSION",
    );
}

#[test]
fn a_kernel_that_is_not_there_leaves_batches() {
    goes_in_batches_where("a_kernel_that_is_not_there_leaves_batches", "cuModuleGetFunction@1=NOT_FOUND");
}

#[test]
fn a_launch_that_fails_in_the_trial_leaves_batches() {
    goes_in_batches_where(
        "a_launch_that_fails_in_the_trial_leaves_batches",
        "cuLaunchKernel@2=LAUNCH_OUT_OF_RESOURCES",
    );
}

#[test]
fn a_launch_that_fails_later_leaves_batches_for_the_rest() {
    goes_in_batches_where(
        "a_launch_that_fails_later_leaves_batches_for_the_rest",
        &format!("cuLaunchKernel@{}=LAUNCH_OUT_OF_RESOURCES", TRIAL_LAUNCHES + 5),
    );
}

#[test]
fn no_memory_for_the_staging_leaves_batches() {
    goes_in_batches_where("no_memory_for_the_staging_leaves_batches", "cuMemAlloc_v2@1+=OUT_OF_MEMORY");
}

#[test]
fn no_memory_for_the_list_leaves_batches() {
    goes_in_batches_where("no_memory_for_the_list_leaves_batches", "cuMemHostAlloc@1+=OUT_OF_MEMORY");
}

#[test]
fn memory_that_is_found_later_is_used() {
    // The save finds none. The restore does, and its first launch fails: it came to one.
    let launched = TRIAL_LAUNCHES + 1;
    let faults = format!("cuMemAlloc_v2@2=OUT_OF_MEMORY,cuLaunchKernel@{launched}=LAUNCH_OUT_OF_RESOURCES");
    let struck = run_on(SLOWEST_BATCHES, "memory_that_is_found_later_is_used", &faults, &[], |bench| {
        go_and_come_back(bench, &odd());
    });
    assert_eq!(struck, "cuMemAlloc_v2\ncuLaunchKernel\n");
}

#[test]
fn where_it_is_not_faster_nothing_is_gathered() {
    let faults = format!("cuLaunchKernel@{}+=UNKNOWN", TRIAL_LAUNCHES + 1);
    let test = "where_it_is_not_faster_nothing_is_gathered";
    let struck = run_on(SLOW_CALLS, test, &faults, &[], |bench| {
        let free = bench.measure().0;
        go_and_come_back(bench, &odd());
        bench.destroy(&[1, 2]).unwrap();
        assert_eq!(bench.measure().0, free, "the trial's memory is given back");
    });
    assert_eq!(struck, "");
}

#[test]
fn a_few_tiny_ranges_are_worth_no_trial() {
    let test = "a_few_tiny_ranges_are_worth_no_trial";
    let struck = run_on(SLOW_BATCHES, test, "cuMemAlloc_v2@1+=UNKNOWN", &[], |bench| {
        go_and_come_back(bench, &scattered(255, |_| 4096));
        // So many of other sizes are none.
        bench.destroy(&[1, 2]).unwrap();
        go_and_come_back(bench, &scattered(100, |_| 32 << 10));
    });
    assert_eq!(struck, "");
}

#[test]
fn a_mover_that_is_given_orders_again_gathers_nothing() {
    let test = "a_mover_that_is_given_orders_again_gathers_nothing";
    let struck = run_on(SLOW_BATCHES, test, "cuMemAlloc_v2@1+=UNKNOWN", &[], |bench| {
        bench.replace(&[], &[Step(1)]);
        go_and_come_back(bench, &odd());
    });
    assert_eq!(struck, "");
}

/// A library with this kernel instead of the one that copies.
fn library(directory: &Path, body: &str) -> std::path::PathBuf {
    let (source, library) = (directory.join("kernel.c"), directory.join("kernel.so"));
    let head = "struct range { char *to, *from; unsigned long bytes; };\n\
                const struct { unsigned count, sizes[2]; } tidegate_copy_ranges_params = {2, {8, 4}};\n\
                void tidegate_copy_ranges(const void *shape, const void *const *arguments) {\n\
                const struct range *list = *(const struct range *const *)arguments[0];\n\
                unsigned count = *(const unsigned *)arguments[1]; (void)shape;\n";
    std::fs::write(&source, format!("{head}{body}}}\n")).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    assert!(cc.status().expect("cc, which Rust links with, is missing").success());
    library
}

/// Runs a test on a GPU whose kernel is another; returns which functions a fault struck.
fn run_with_kernel(test: &str, kernel: &str, faults: &str, body: impl FnOnce(&mut Bench)) -> String {
    let directory = tempfile::tempdir().unwrap();
    let library = library(directory.path(), kernel);
    run_on(SLOW_BATCHES, test, faults, &[(KERNELS_VARIABLE, library.to_str().unwrap())], body)
}

/// A kernel that copies wrongly is tried, and never launched again.
fn is_not_used(test: &str, kernel: &str) {
    let faults = format!("cuLaunchKernel@{}+=UNKNOWN", TRIAL_LAUNCHES + 1);
    let struck = run_with_kernel(test, kernel, &faults, |bench| go_and_come_back(bench, &odd()));
    assert_eq!(struck, "");
}

#[test]
fn a_kernel_that_copies_nothing_is_not_used() {
    is_not_used("a_kernel_that_copies_nothing_is_not_used", "(void)list; (void)count;\n");
}

#[test]
fn a_kernel_that_leaves_bytes_out_is_not_used() {
    is_not_used(
        "a_kernel_that_leaves_bytes_out_is_not_used",
        "for (unsigned i = 0; i < count; i++)\n\
         for (unsigned long at = 0; at < list[i].bytes / 16 * 16; at++) list[i].to[at] = list[i].from[at];\n",
    );
}

#[test]
fn a_kernel_that_writes_into_gaps_is_not_used() {
    is_not_used(
        "a_kernel_that_writes_into_gaps_is_not_used",
        "for (unsigned i = 0; i < count; i++)\n\
         for (unsigned long at = 0; at < list[i].bytes + (i + 1 == count); at++) list[i].to[at] = list[i].from[at];\n",
    );
}

/// The next mover, which is given the order again, gathers nothing (above). It needs another process than this one,
/// in which the driver has not taken everything back.
#[test]
fn a_kernel_that_breaks_the_context_ends_the_mover_and_fails_no_order() {
    let test = "a_kernel_that_breaks_the_context_ends_the_mover_and_fails_no_order";
    run_with_kernel(test, "*(volatile char *)8 = (char)count; (void)list;\n", "", |bench| {
        let mut other = Bench::start(bench.config.clone());
        let _pieces = [filled(&mut other, 1, 32), filled(&mut other, 2, 32)];
        let step = other.step();
        other.mover.send(&ToMover::Save { step, tenant: TENANT, moves: odd(), spared: 0 }, &[]);
        let ended = other.thread.join().unwrap().unwrap_err();
        assert!(
            ended.to_string().contains("ILLEGAL_ADDRESS: the next mover is given the order again"),
            "{ended}"
        );
        while let Ok((answer, _)) = other.mover.connection.receive::<Numbered<FromMover>>() {
            let heard = other.mover.line.borrow_mut().hear(answer).unwrap();
            assert!(!matches!(heard, Some(FromMover::Failed { .. } | FromMover::Done { .. })), "{heard:?}");
        }
    });
}
