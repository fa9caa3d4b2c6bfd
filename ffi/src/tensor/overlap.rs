//! Whether two regions share a byte (R2.6).
//!
//! | the two regions | are compared by |
//! |---|---|
//! | boxes at the same reference point, of the same pitches | offsets and sizes, dimension by dimension; no address |
//! | any | their hulls: apart if these are |
//! | without gaps: ranges, contiguous tensors | their hulls: meet if these do |
//! | else | exact arithmetic on their strides (`sums`) |
//!
//! The last one stops after [`STEPS`] tries, and only then says [`Overlap::MayMeet`]. Boxes of the same pitches, at
//! whatever reference points, need fewer: at most two for each one before, in all dimensions but the innermost two,
//! 2 + 4 + … + 2^6 in all.

#![forbid(unsafe_code)]

use super::region::Region;
use super::sums;

/// So many tries of a stride's factor are made before two regions count as overlapping.
pub const STEPS: u32 = 4096;

/// Whether two regions share a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Overlap {
    /// They do not.
    Apart,
    /// It is not known: treat it as [`Overlap::Meets`].
    MayMeet,
    /// They do.
    Meets,
}

impl Overlap {
    /// Whether an order must be kept.
    pub fn is_possible(self) -> bool {
        self != Overlap::Apart
    }

    /// Whether any of several regions share a byte: ends with the first that do.
    pub fn any(all: impl IntoIterator<Item = Overlap>) -> Self {
        let mut worst = Overlap::Apart;
        for one in all {
            worst = worst.max(one);
            if worst == Overlap::Meets {
                break;
            }
        }
        worst
    }
}

impl Region {
    /// Whether the two share a byte. Exact but for [`Overlap::MayMeet`]; a region without elements is apart from
    /// every one.
    pub fn overlap(&self, other: &Region) -> Overlap {
        self.overlap_within(other, STEPS)
    }

    pub(super) fn overlap_within(&self, other: &Region, steps: u32) -> Overlap {
        if self.is_empty() || other.is_empty() {
            return Overlap::Apart;
        }
        if self.is_in_storage_of(other) {
            return told(self.meets_box(other));
        }
        if !meet(self.hull(), other.hull()) {
            return Overlap::Apart;
        }
        if self.is_solid() && other.is_solid() {
            return Overlap::Meets;
        }
        sums::meet(self, other, steps).map_or(Overlap::MayMeet, told)
    }

    /// Whether both are boxes whose positions are equal if and only if their addresses are. Equal strides are equal
    /// sizes of elements, too: a box's innermost stride is one element.
    fn is_in_storage_of(&self, other: &Region) -> bool {
        let (ours, theirs) = (self.dimensions(), other.dimensions());
        self.is_box()
            && other.is_box()
            && self.base() == other.base()
            && ours.len() == theirs.len()
            && ours.iter().zip(theirs).all(|(ours, theirs)| ours.stride == theirs.stride)
    }

    fn meets_box(&self, other: &Region) -> bool {
        self.dimensions().iter().zip(other.dimensions()).all(|(ours, theirs)| {
            meet(ours.offset..ours.offset + ours.size, theirs.offset..theirs.offset + theirs.size)
        })
    }
}

fn meet(one: std::ops::Range<u64>, other: std::ops::Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn told(meets: bool) -> Overlap {
    if meets { Overlap::Meets } else { Overlap::Apart }
}

#[cfg(test)]
mod tests {
    use super::super::form::Axis;
    use super::*;

    fn rows_and_columns(base: u64, rows: (i64, i64), columns: (i64, i64)) -> Region {
        let axis = |storage, (offset, size)| Axis { storage, offset, size };
        Region::in_storage(base, 4, &[axis(16, rows), axis(32, columns)]).unwrap()
    }

    #[test]
    fn boxes_of_one_storage_are_compared_dimension_by_dimension() {
        use Overlap::{Apart, Meets};
        // (rows, columns) of one box and another, each (offset, size).
        let table = [
            ((0, 4), (0, 4), (0, 4), (0, 4), Meets),
            ((0, 4), (0, 4), (3, 4), (3, 4), Meets),
            ((0, 4), (0, 4), (4, 4), (0, 4), Apart),
            ((0, 4), (0, 4), (0, 4), (4, 4), Apart),
            ((0, 16), (0, 8), (0, 16), (8, 8), Apart), // the hulls overlap
            ((0, 16), (0, 9), (0, 16), (8, 8), Meets),
            ((2, 1), (0, 32), (3, 1), (0, 32), Apart),
            ((5, 1), (31, 1), (6, 1), (0, 1), Apart), // next to each other in memory
            ((0, 16), (0, 32), (7, 1), (9, 1), Meets),
            ((0, 16), (0, 32), (7, 0), (9, 1), Apart), // no elements
        ];
        for (rows, columns, other_rows, other_columns, expected) in table {
            let one = rows_and_columns(4096, rows, columns);
            let other = rows_and_columns(4096, other_rows, other_columns);
            assert_eq!(one.overlap(&other), expected, "{one:?} {other:?}");
            assert_eq!(other.overlap(&one), expected);
        }
    }

    #[test]
    fn boxes_of_one_pitch_need_few_steps_at_any_reference_point() {
        let eight = |base, offset, size| {
            let axes = [Axis { storage: 7, offset, size }; 8];
            Region::in_storage(base, 3, &axes).unwrap()
        };
        let one = eight(1 << 40, 2, 3);
        let mut meet = 0;
        for shift in 0..100_000 {
            let [near, far] = [eight((1 << 40) + shift, 2, 2), eight((1 << 40) + 331 * shift, 1, 2)];
            let told = [&near, &far].map(|other| one.overlap_within(other, 126));
            assert!(!told.contains(&Overlap::MayMeet), "{shift}");
            meet += usize::from(told.contains(&Overlap::Meets));
        }
        assert!((1000..99_000).contains(&meet), "{meet}");
    }

    #[test]
    fn columns_of_one_pitch_interleave() {
        let column = |start, pitch| Region::mapping(start, 4, &[1000, 4], &[pitch, 4]).unwrap();
        assert_eq!(column(4096, 64).overlap(&column(4096 + 16, 64)), Overlap::Apart);
        assert_eq!(column(4096, 64).overlap(&column(4096 + 15, 64)), Overlap::Meets);
        assert_eq!(column(4096, 64).overlap(&column(4096 + 64 * 999 + 48, 64)), Overlap::Apart);
        assert_eq!(
            column(4096, 64).overlap(&column(4096 + 16, 96)),
            Overlap::Apart,
            "multiples of 32, 16 apart"
        );
        assert_eq!(column(4096, 64).overlap(&column(4096 + 16, 80)), Overlap::Meets, "they drift");
        let backwards = Region::mapping(4096 + 64 * 999 + 16, 4, &[1000, 4], &[-64, 4]).unwrap();
        assert_eq!(column(4096, 64).overlap(&backwards), Overlap::Apart);
        let repeated = Region::mapping(4096 + 16, 4, &[1 << 40, 4], &[0, 4]).unwrap();
        assert_eq!(column(4096, 64).overlap(&repeated), Overlap::Apart);
    }

    #[test]
    fn a_range_meets_a_column_but_not_its_gaps() {
        let column = Region::mapping(4096, 4, &[1000, 4], &[64, 4]).unwrap();
        let range = |start, bytes| column.overlap(&Region::range(start, bytes).unwrap());
        let gap = 4096 + 5 * 64 + 16;
        assert_eq!(range(gap, 48), Overlap::Apart);
        assert_eq!(range(gap, 49), Overlap::Meets);
        assert_eq!(range(gap - 1, 48), Overlap::Meets);
        assert_eq!(
            range(gap, u64::MAX - gap),
            Overlap::Meets,
            "a range may be longer than a region with gaps"
        );
        assert_eq!(range(0, u64::MAX), Overlap::Meets);
        assert_eq!(range(4096 + 64 * 999 + 16, 1 << 63), Overlap::Apart);
    }

    #[test]
    fn who_needs_too_many_steps_may_meet() {
        let primes = |terms: [i64; 3], times| terms.map(|term| (1_000_000_000_000 + term) * times);
        let scattered = |start, strides: [i64; 3]| Region::mapping(start, 1, &[4000; 3], &strides).unwrap();
        let (one, other) = ([39, 61, 63], [91, 121, 163]);
        let [here, there] = [scattered(1 << 30, primes(one, 1)), scattered((1 << 30) + 15, primes(other, 1))];
        assert_eq!(here.overlap(&there), Overlap::MayMeet);
        assert_eq!(here.overlap(&here), Overlap::Meets);
        let [here, there] =
            [scattered(1 << 30, primes(one, 30)), scattered((1 << 30) + 15, primes(other, 30))];
        assert_eq!(here.overlap(&there), Overlap::Apart, "a common divisor");
    }
}
