//! C2: the table of driver functions is complete: whatever `cuda.h` declares, the runtime asks for and
//! PyTorch calls has its row, and no row is about a function that does not exist.

use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::cuda::functions;

/// Made by `tests/data/refresh`, but for the last two.
const LISTS: [(&str, &str); 4] = [
    ("cuda.h", include_str!("data/driver-functions-in-cuda.h.txt")),
    ("libcudart", include_str!("data/driver-functions-in-libcudart.txt")),
    ("PyTorch", include_str!("data/driver-functions-called-by-pytorch.txt")),
    ("older drivers", include_str!("data/driver-functions-of-older-drivers.txt")),
];

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| line.starts_with("cu"))
}

#[test]
fn every_function_of_the_driver_has_a_row() {
    for (source, list) in LISTS {
        let missing: Vec<_> = names(list).filter(|name| functions::find(name).is_none()).collect();
        assert!(missing.is_empty(), "in {source}, but not in ffi/src/cuda/functions.rs: {missing:?}");
        println!("{source}: {} names", names(list).count());
    }
    let mut kinds = BTreeMap::new();
    functions::all().for_each(|function| *kinds.entry(format!("{:?}", function.kind)).or_insert(0) += 1);
    println!("rows: {}, of kinds {kinds:?}", functions::all().count());
}

#[test]
fn every_row_is_a_function_of_the_driver() {
    let known: BTreeSet<_> = LISTS.iter().flat_map(|(_, list)| names(list)).collect();
    let unknown: Vec<_> = functions::all().map(|row| row.name).filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "nobody has heard of {unknown:?}");
}
