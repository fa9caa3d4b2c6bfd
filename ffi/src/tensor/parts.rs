//! Parts of a region, in row-major order of its elements (R2.5).
//!
//! ```text
//!   elements 5 .. 18 of a box of 4 × 5:      ┌─────────┐
//!                                            │ . . . . . │   at most 2 · dimensions − 1 boxes:
//!                                            │ 1 1 1 1 1 │   the rest of a row, whole rows,
//!                                            │ 1 1 1 1 1 │   the beginning of a row
//!                                            │ 2 2 2 . . │
//!                                            └─────────┘
//! ```

#![forbid(unsafe_code)]

use super::region::{Dimension, Region};
use std::ops::Range;

/// The elements of a range, as regions; ends after at most 2n − 1 of them for n dimensions.
#[derive(Clone, Debug)]
pub struct Parts {
    whole: Region,
    elements: Range<u64>,
}

impl Region {
    /// The elements of a range: counted from 0, in row-major order of their positions. What the region does not
    /// have is left out.
    pub fn parts(&self, elements: Range<u64>) -> Parts {
        let end = elements.end.min(self.elements());
        Parts { whole: *self, elements: elements.start..end }
    }
}

impl Iterator for Parts {
    type Item = Region;

    fn next(&mut self) -> Option<Region> {
        let Range { start, end } = self.elements;
        if start >= end {
            return None;
        }
        let (dimension, inner) = self.widest(start, end - start);
        let sizes = self.whole.dimensions();
        let room = sizes.get(dimension).map_or(1, |of| of.size - start / inner % of.size);
        let count = room.min((end - start) / inner);
        self.elements.start += count * inner;
        Some(self.whole.narrowed(|index, of| {
            let below: u64 = sizes[index + 1..].iter().map(|of| of.size).product();
            let first = start / below % of.size;
            match index.cmp(&dimension) {
                std::cmp::Ordering::Less => Dimension { offset: of.offset + first, size: 1, ..of },
                std::cmp::Ordering::Equal => Dimension { offset: of.offset + first, size: count, ..of },
                std::cmp::Ordering::Greater => of,
            }
        }))
    }
}

impl Parts {
    /// The outermost dimension of which `left` elements, from `start` on, are whole steps, and elements of a step.
    fn widest(&self, start: u64, left: u64) -> (usize, u64) {
        let mut inner = self.whole.elements();
        for (index, dimension) in self.whole.dimensions().iter().enumerate() {
            inner /= dimension.size;
            if start.is_multiple_of(inner) && inner <= left {
                return (index, inner);
            }
        }
        (0, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::form::Axis;
    use super::*;

    #[test]
    fn a_part_is_a_rest_of_a_row_whole_rows_and_a_beginning() {
        let axes = [Axis { storage: 9, offset: 1, size: 4 }, Axis { storage: 9, offset: 2, size: 5 }];
        let region = Region::in_storage(1000, 2, &axes).unwrap();
        let parts = |elements| -> Vec<_> {
            let boxes = region.parts(elements).map(|part| {
                let [rows, columns] = part.dimensions() else { panic!("two dimensions") };
                [(rows.offset, rows.size), (columns.offset, columns.size)]
            });
            boxes.collect()
        };
        assert_eq!(parts(0..20), [[(1, 4), (2, 5)]]);
        assert_eq!(parts(5..18), [[(2, 2), (2, 5)], [(4, 1), (2, 3)]]);
        assert_eq!(parts(3..18), [[(1, 1), (5, 2)], [(2, 2), (2, 5)], [(4, 1), (2, 3)]]);
        assert_eq!(parts(6..8), [[(2, 1), (3, 2)]]);
        assert_eq!(parts(19..100), [[(4, 1), (6, 1)]]);
        assert_eq!(parts(20..100), [[(0, 0); 2]; 0]);
        let scalar = Region::mapping(7, 4, &[], &[]).unwrap();
        assert_eq!(scalar.parts(0..9).collect::<Vec<_>>(), [scalar]);
        assert_eq!(Region::range(7, 0).unwrap().parts(0..9).count(), 0);
    }
}
