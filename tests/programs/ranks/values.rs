//! Collectives of all kinds, sizes and types of elements, against a computation of their own.

use super::Rank;
use super::nccl::{Buffer, done};
use half::{bf16, f16};
use std::ffi::c_void;
use std::fmt::Debug;

/// A type of elements, and how the stand-in says that it computes with them.
trait Element: Copy + Default + PartialEq + Debug {
    const TYPE: i32;
    /// The element of a rank at an index: of both signs where the type has such, with fractions where it can.
    fn given(rank: i32, index: usize) -> Self;
    /// The result, from the elements of all ranks in their order. Operations are those of `ncclRedOp_t`; 5 is the
    /// sum with the factor 3.
    fn reduced(operation: i32, elements: &[Self]) -> Self;
    fn factor() -> Self;
}

/// Some number, other for each pair.
fn mix(rank: i32, index: usize) -> u64 {
    let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (rank as u64 + 1).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    mixed ^ (mixed >> 29)
}

macro_rules! integers {
    ($($type:ident $number:literal)*) => { $(
        impl Element for $type {
            const TYPE: i32 = $number;
            fn given(rank: i32, index: usize) -> Self {
                mix(rank, index) as $type
            }
            fn reduced(operation: i32, elements: &[Self]) -> Self {
                let all = elements.iter().copied();
                match operation {
                    0 => all.fold(0, $type::wrapping_add),
                    1 => all.fold(1, $type::wrapping_mul),
                    2 => all.max().unwrap(),
                    3 => all.min().unwrap(),
                    4 => all.fold(0, $type::wrapping_add) / elements.len() as $type,
                    _ => all.fold(0, |sum, element| sum.wrapping_add(element.wrapping_mul(3))),
                }
            }
            fn factor() -> Self {
                3
            }
        }
    )* };
}

macro_rules! floats {
    ($($type:ident $number:literal $wide:ident $widen:expr, $narrow:expr;)*) => { $(
        impl Element for $type {
            const TYPE: i32 = $number;
            fn given(rank: i32, index: usize) -> Self {
                let narrow: fn($wide) -> $type = $narrow;
                narrow((mix(rank, index) % 20_001) as $wide / 777.0 - 12.0)
            }
            fn reduced(operation: i32, elements: &[Self]) -> Self {
                let (widen, narrow): (fn($type) -> $wide, fn($wide) -> $type) = ($widen, $narrow);
                let mut all = elements.iter().map(|element| widen(*element));
                let first = all.next().unwrap();
                narrow(match operation {
                    0 => all.fold(first, |sum, x| sum + x),
                    1 => all.fold(first, |product, x| product * x),
                    2 => all.fold(first, $wide::max),
                    3 => all.fold(first, $wide::min),
                    4 => all.fold(first, |sum, x| sum + x) / elements.len() as $wide,
                    _ => all.fold(first * 3.0, |sum, x| sum + x * 3.0),
                })
            }
            fn factor() -> Self {
                let narrow: fn($wide) -> $type = $narrow;
                narrow(3.0)
            }
        }
    )* };
}

integers! { i8 0 u8 1 i32 2 u32 3 i64 4 u64 5 }
floats! {
    f16 6 f32 f16::to_f32, f16::from_f32;
    f32 7 f32 |x| x, |x| x;
    f64 8 f64 |x| x, |x| x;
    bf16 9 f32 bf16::to_f32, bf16::from_f32;
}

fn given<T: Element>(rank: i32, from: usize, count: usize) -> Vec<T> {
    (from..from + count).map(|index| T::given(rank, index)).collect()
}

fn reduced<T: Element>(rank: &Rank, operation: i32, from: usize, count: usize) -> Vec<T> {
    let at = |index| (0..rank.count).map(|of| T::given(of, index)).collect::<Vec<T>>();
    (from..from + count).map(|index| T::reduced(operation, &at(index))).collect()
}

/// Compares without printing thousands of elements.
fn same<T: Element>(found: &Buffer, expected: &[T], what: &str) {
    let found = found.read::<T>();
    assert_eq!(found.len(), expected.len(), "{what}");
    let other = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert!(other.is_none_or(|at| panic!("{what}: element {at} is {:?}, not {:?}", found[at], expected[at])));
}

/// All collectives, with elements of all types.
pub fn collectives(rank: &Rank) {
    macro_rules! with {
        ($($type:ident)*) => { $(
            for count in [0, 1, 7, 1000, 4099] {
                check::<$type>(rank, count);
            }
        )* };
    }
    with! { i8 u8 i32 u32 i64 u64 f16 f32 f64 bf16 }
}

/// More bytes than the segment has.
pub fn large(rank: &Rank) {
    check::<f16>(rank, 1_500_001);
    check::<f32>(rank, 400_007);
    check::<u8>(rank, 2_500_011);
}

fn check<T: Element>(rank: &Rank, count: usize) {
    let &Rank { rank: own, count: ranks, comm, stream } = rank;
    let all = ranks as usize;
    let what = |name: &str| format!("{name} of {count} elements of type {}", T::TYPE);
    let finished = |name: &str| rank.is_fine(&what(name));
    let empty = |count: usize| Buffer::of(&vec![T::default(); count]);
    let (send, one, each) = (Buffer::of(&given::<T>(own, 0, count)), empty(count), empty(count * all));
    let gathered: Vec<T> = (0..ranks).flat_map(|from| given(from, 0, count)).collect();

    let mut scaled = -1;
    let factor = T::factor();
    done!(scaled(&raw mut scaled, (&raw const factor).cast::<c_void>(), T::TYPE, 1, comm));
    for (operation, number) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (scaled, 5)] {
        let expected = reduced::<T>(rank, number, 0, count);
        done!(all_reduce(send.address, one.address, count, T::TYPE, operation, comm, stream));
        finished("all-reduce");
        same(&one, &expected, &what(&format!("all-reduce {number}")));
        let in_place = Buffer::of(&given::<T>(own, 0, count));
        done!(all_reduce(in_place.address, in_place.address, count, T::TYPE, operation, comm, stream));
        finished("all-reduce in place");
        same(&in_place, &expected, &what(&format!("all-reduce {number} in place")));
    }
    done!(forget(scaled, comm));

    let root = ranks - 1;
    let reduce = empty(count);
    done!(reduce(send.address, reduce.address, count, T::TYPE, 0, root, comm, stream));
    finished("reduce");
    let expected = if own == root { reduced::<T>(rank, 0, 0, count) } else { vec![T::default(); count] };
    same(&reduce, &expected, &what("reduce"));

    done!(broadcast(send.address, one.address, count, T::TYPE, root, comm, stream));
    finished("broadcast");
    same(&one, &given::<T>(root, 0, count), &what("broadcast"));

    done!(all_gather(send.address, each.address, count, T::TYPE, comm, stream));
    finished("all-gather");
    same(&each, &gathered, &what("all-gather"));
    let mut before = vec![T::default(); count * all];
    before[own as usize * count..][..count].copy_from_slice(&given::<T>(own, 0, count));
    let in_place = Buffer::of(&before);
    let block = in_place.address + (own as usize * count * size_of::<T>()) as u64;
    done!(all_gather(block, in_place.address, count, T::TYPE, comm, stream));
    finished("all-gather in place");
    same(&in_place, &gathered, &what("all-gather in place"));

    let blocks = Buffer::of(&given::<T>(own, 0, count * all));
    done!(reduce_scatter(blocks.address, one.address, count, T::TYPE, 0, comm, stream));
    finished("reduce-scatter");
    same(&one, &reduced::<T>(rank, 0, own as usize * count, count), &what("reduce-scatter"));
    done!(all_to_all(blocks.address, each.address, count, T::TYPE, comm, stream));
    finished("all-to-all");
    let expected: Vec<T> = (0..ranks).flat_map(|from| given(from, own as usize * count, count)).collect();
    same(&each, &expected, &what("all-to-all"));
    let block = blocks.address + (own as usize * count * size_of::<T>()) as u64;
    done!(reduce_scatter(blocks.address, block, count, T::TYPE, 3, comm, stream));
    finished("reduce-scatter in place");
    let mut expected = given::<T>(own, 0, count * all);
    expected[own as usize * count..][..count].copy_from_slice(&reduced::<T>(
        rank,
        3,
        own as usize * count,
        count,
    ));
    same(&blocks, &expected, &what("reduce-scatter in place"));
}
