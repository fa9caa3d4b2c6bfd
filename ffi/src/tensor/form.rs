//! The four ways to say where a tensor lies (R2.1, R2.2).
//!
//! | form | says |
//! |---|---|
//! | [`Region::in_storage`] | a storage and, in each dimension, its size, an offset and a size |
//! | [`Region::between_corners`] | a storage and two diagonal corners of a box in it |
//! | [`Region::mapping`] | sizes, and strides in bytes, of a mapping position → address |
//! | [`Region::range`] | an address and a number of bytes |
//!
//! The source counts in elements, and rows from 1: start = base + (offset_y − 1) · pitch + offset_x. Here all
//! counts begin with 0 and addresses are of bytes: start = base + (offset_y · pitch + offset_x) · element.
//! A row pitch is the product of the inner sizes of the storage.

#![forbid(unsafe_code)]

use super::region::{Dimension, MOST_DIMENSIONS, Region};

/// One dimension of a box in a storage, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Axis<T = i64> {
    /// Size of the storage.
    pub storage: T,
    /// From the storage's first element to the region's.
    pub offset: T,
    /// Size of the region.
    pub size: T,
}

/// Why a description is of no region. Dimensions count from 0, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// Too many dimensions.
    #[error("{0} dimensions: there can be 8, so merge some that lie next to each other")]
    Dimensions(usize),
    /// Lists that should be equally long.
    #[error("lists of {0} and {1} dimensions: give one number for each dimension in each list")]
    Lists(usize, usize),
    /// An element without bytes.
    #[error("an element of 0 bytes: give the size of an element in bytes, at least 1")]
    Element,
    /// A size below 0.
    #[error("a size of {size} in dimension {dimension}: sizes are 0 or more")]
    Negative {
        /// Where.
        dimension: usize,
        /// In elements.
        size: i64,
    },
    /// A box that is not in its storage.
    #[error(
        "{size} elements from {offset} on leave the storage of {storage} in dimension {dimension}: offsets \
         count from 0"
    )]
    Outside {
        /// Where.
        dimension: usize,
        /// The box's first element.
        offset: i64,
        /// The box's elements.
        size: i64,
        /// The storage's elements.
        storage: i64,
    },
    /// A storage that no address space has room for.
    #[error("the storage has 2^63 bytes or more: check its sizes, in elements, and the element's bytes")]
    Storage,
    /// Addresses below 0, or of 2^64 - 1 and more.
    #[error(
        "some addresses of the region at {base:#x} are not in 64 bits: check sizes and strides, in bytes"
    )]
    Address {
        /// The reference point.
        base: u64,
    },
    /// Elements too far from each other.
    #[error(
        "the region has gaps and is spread over {bytes} bytes, more than 2^60: check sizes and strides, in bytes"
    )]
    Spread {
        /// From its first byte to its last.
        bytes: u64,
    },
    /// Elements without number.
    #[error("the region has 2^64 elements or more: leave out dimensions of stride 0")]
    Elements,
}

impl Region {
    /// A box in a storage (R2.1, R2.2): address of its position p = base + Σ (offset + p) · stride, with the
    /// strides of the storage's own row-major order.
    ///
    /// `base` is the address of the storage's first element, `element` is in bytes, `axes` are slowest first.
    /// A box without elements is legal anywhere in its storage, its end included.
    pub fn in_storage(base: u64, element: u64, axes: &[Axis]) -> Result<Self, FormError> {
        let mut dimensions = [Dimension::default(); MOST_DIMENSIONS];
        let dimensions = dimensions.get_mut(..axes.len()).ok_or(FormError::Dimensions(axes.len()))?;
        let mut stride = i64::try_from(element).map_err(|_| FormError::Storage)?;
        for (index, axis) in axes.iter().enumerate().rev() {
            let (offset, size) = axis.checked(index)?;
            dimensions[index] = Dimension { offset, size, stride };
            stride = stride.checked_mul(axis.storage).ok_or(FormError::Storage)?;
        }
        Self::new(base, element, dimensions, true)
    }

    /// The box between two of its corners (R2.1): opposite ones, in any order, both inside the box. They are
    /// relative to the reference point, whose address is `base`: the first element of the storage.
    ///
    /// `element` is in bytes; `storage` and corners have one number for each dimension, slowest first. A box
    /// between corners has at least one element.
    pub fn between_corners(
        base: u64,
        element: u64,
        storage: &[i64],
        corners: [&[i64]; 2],
    ) -> Result<Self, FormError> {
        let mut axes = [Axis::default(); MOST_DIMENSIONS];
        let axes = axes.get_mut(..storage.len()).ok_or(FormError::Dimensions(storage.len()))?;
        for (axis, (storage, (offset, size))) in axes.iter_mut().zip(storage.iter().zip(sides(corners)?)) {
            *axis = Axis { storage: *storage, offset, size };
        }
        same_length(storage, corners[0])?;
        Self::in_storage(base, element, axes)
    }

    /// A mapping position → address (R2.1): address of position p = base + Σ p · stride. PyTorch's views are
    /// mappings; its strides are in elements, these in bytes.
    ///
    /// `element` is in bytes; `sizes` and `strides` have one number for each dimension, slowest first. Strides may
    /// be 0 or negative, and elements may overlap each other.
    pub fn mapping(base: u64, element: u64, sizes: &[i64], strides: &[i64]) -> Result<Self, FormError> {
        same_length(sizes, strides)?;
        let mut dimensions = [Dimension::default(); MOST_DIMENSIONS];
        let dimensions = dimensions.get_mut(..sizes.len()).ok_or(FormError::Dimensions(sizes.len()))?;
        for (index, dimension) in dimensions.iter_mut().enumerate() {
            let size = not_negative(index, sizes[index])?;
            *dimension = Dimension { offset: 0, size, stride: strides[index] };
        }
        Self::new(base, element, dimensions, false)
    }

    /// So many bytes from an address on (R2.6): one dimension, of elements of 1 byte.
    pub fn range(start: u64, bytes: u64) -> Result<Self, FormError> {
        Self::new(start, 1, &[Dimension { offset: 0, size: bytes, stride: 1 }], false)
    }
}

impl Axis {
    /// Its offset and size, inside the storage.
    fn checked(&self, dimension: usize) -> Result<(u64, u64), FormError> {
        let Self { storage, offset, size } = *self;
        let bytes = not_negative(dimension, size)?;
        not_negative(dimension, storage)?;
        let end = offset.checked_add(size).filter(|end| *end <= storage);
        let place = u64::try_from(offset).ok().filter(|_| end.is_some());
        Ok((place.ok_or(FormError::Outside { dimension, offset, size, storage })?, bytes))
    }
}

/// Offset and size in each dimension of the box between two corners.
pub(super) fn sides(corners: [&[i64]; 2]) -> Result<impl Iterator<Item = (i64, i64)>, FormError> {
    let [one, other] = corners;
    same_length(one, other)?;
    Ok(one.iter().zip(other).map(|(one, other)| {
        let (first, last) = (one.min(other), one.max(other));
        (*first, last.saturating_sub(*first).saturating_add(1))
    }))
}

fn same_length(one: &[i64], other: &[i64]) -> Result<(), FormError> {
    (one.len() == other.len()).then_some(()).ok_or(FormError::Lists(one.len(), other.len()))
}

fn not_negative(dimension: usize, size: i64) -> Result<u64, FormError> {
    u64::try_from(size).map_err(|_| FormError::Negative { dimension, size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(storage: i64, offset: i64, size: i64) -> Axis {
        Axis { storage, offset, size }
    }

    #[test]
    fn addresses_follow_the_sources_formulas_counted_from_0_and_in_bytes() {
        // (base, element, [storage, offset, size] of rows and columns), position, address.
        // The source's start = base + (offset_y − 1) · pitch + offset_x, its offset_y being ours + 1.
        let table = [
            (0, 1, [axis(8, 0, 8), axis(16, 0, 16)], [0, 0], 0),
            (1000, 1, [axis(8, 2, 3), axis(16, 5, 4)], [0, 0], 1000 + 2 * 16 + 5),
            (1000, 1, [axis(8, 2, 3), axis(16, 5, 4)], [2, 3], 1000 + (2 + 2) * 16 + 5 + 3),
            (1000, 4, [axis(8, 2, 3), axis(16, 5, 4)], [0, 0], 1000 + (2 * 16 + 5) * 4),
            (1000, 4, [axis(8, 2, 3), axis(16, 5, 4)], [1, 2], 1000 + ((2 + 1) * 16 + 5 + 2) * 4),
        ];
        for (base, element, axes, position, address) in table {
            let region = Region::in_storage(base, element, &axes).unwrap();
            assert_eq!(region.address(&position), Some(address), "{axes:?} at {position:?}");
        }
        let volume = Region::in_storage(64, 2, &[axis(5, 1, 2), axis(6, 2, 3), axis(7, 3, 4)]).unwrap();
        assert_eq!(volume.address(&[1, 2, 3]), Some(64 + 2 * ((1 + 1) * 42 + (2 + 2) * 7 + 3 + 3)));
        assert_eq!(volume.address(&[2, 0, 0]), None, "a position that it does not have");
        assert_eq!(volume.address(&[0, 0]), None);
        assert_eq!(volume.elements(), 24);
    }

    #[test]
    fn all_forms_of_one_tensor_have_the_same_addresses() {
        let stored = Region::in_storage(4096, 4, &[axis(10, 2, 3), axis(20, 5, 6)]).unwrap();
        for corners in [[[2, 5], [4, 10]], [[4, 10], [2, 5]], [[2, 10], [4, 5]]] {
            let cornered = Region::between_corners(4096, 4, &[10, 20], [&corners[0], &corners[1]]);
            assert_eq!(cornered, Ok(stored), "{corners:?}");
        }
        let first = 4096 + (2 * 20 + 5) * 4;
        let mapped = Region::mapping(first, 4, &[3, 6], &[80, 4]).unwrap();
        let backwards = Region::mapping(first + 2 * 80 + 5 * 4, 4, &[3, 6], &[-80, -4]).unwrap();
        for (row, column) in [(0, 0), (0, 5), (1, 3), (2, 5)] {
            let address = stored.address(&[row, column]);
            assert_eq!(mapped.address(&[row, column]), address);
            assert_eq!(backwards.address(&[2 - row, 5 - column]), address);
        }
        assert_eq!(stored.hull(), first..first + 2 * 80 + 6 * 4);
        assert_eq!((mapped.hull(), backwards.hull()), (stored.hull(), stored.hull()));
        let row = Region::in_storage(4096, 4, &[axis(10, 2, 1), axis(20, 0, 20)]).unwrap();
        assert_eq!(row.hull(), Region::range(4096 + 160, 80).unwrap().hull());
    }

    #[test]
    fn hulls_are_from_the_first_byte_to_the_last() {
        let scalar = Region::mapping(100, 8, &[], &[]).unwrap();
        assert_eq!((scalar.hull(), scalar.elements()), (100..108, 1));
        assert_eq!(Region::mapping(100, 8, &[3, 4], &[0, -10]).unwrap().hull(), 70..108);
        assert_eq!(Region::range(7, 5).unwrap().hull(), 7..12);
        assert_eq!(Region::range(u64::MAX - 5, 5).unwrap().hull(), u64::MAX - 5..u64::MAX);
    }

    #[test]
    fn tensors_without_elements_are_legal() {
        let empty = [
            Region::range(u64::MAX, 0),
            Region::mapping(8, 4, &[3, 0], &[i64::MAX, i64::MIN]),
            Region::in_storage(8, 4, &[axis(3, 3, 0), axis(4, 0, 4)]),
            Region::in_storage(8, 4, &[axis(3, 0, 3), axis(0, 0, 0)]),
            Region::mapping(8, 4, &[i64::MAX, i64::MAX, 0], &[1, 1, 1]),
        ];
        for region in empty {
            let region = region.unwrap();
            assert!(region.is_empty() && region.elements() == 0 && region.hull().is_empty(), "{region:?}");
        }
    }

    #[test]
    fn impossible_descriptions_are_refused_in_words() {
        let full = axis(4, 0, 4);
        let outside =
            |dimension, offset, size, storage| FormError::Outside { dimension, offset, size, storage };
        let large = axis(1 << 31, 0, 1);
        let table = [
            (Region::in_storage(0, 4, &[axis(4, 1, 4), full]), outside(0, 1, 4, 4)),
            (Region::in_storage(0, 4, &[full, axis(4, -1, 2)]), outside(1, -1, 2, 4)),
            (Region::in_storage(0, 4, &[full, axis(4, i64::MAX, 2)]), outside(1, i64::MAX, 2, 4)),
            (Region::in_storage(0, 4, &[axis(4, 0, -1)]), FormError::Negative { dimension: 0, size: -1 }),
            (Region::in_storage(0, 4, &[axis(-4, 0, 0)]), FormError::Negative { dimension: 0, size: -4 }),
            (Region::in_storage(0, 0, &[full]), FormError::Element),
            (Region::in_storage(0, 1 << 63, &[full]), FormError::Storage),
            (Region::in_storage(0, 2, &[large, large, large]), FormError::Storage),
            (Region::in_storage(u64::MAX - 16, 4, &[full, full]), FormError::Address { base: u64::MAX - 16 }),
            (Region::in_storage(0, 4, &[full; 9]), FormError::Dimensions(9)),
            (Region::between_corners(0, 4, &[4], [&[0], &[4]]), outside(0, 0, 5, 4)),
            (
                Region::between_corners(0, 4, &[4], [&[i64::MIN], &[i64::MAX]]),
                outside(0, i64::MIN, i64::MAX, 4),
            ),
            (Region::between_corners(0, 4, &[4], [&[0], &[0, 1]]), FormError::Lists(1, 2)),
            (Region::between_corners(0, 4, &[4, 4], [&[0], &[1]]), FormError::Lists(2, 1)),
            (Region::between_corners(0, 4, &[4; 9], [&[0; 9], &[1; 9]]), FormError::Dimensions(9)),
            (Region::mapping(0, 4, &[2], &[]), FormError::Lists(1, 0)),
            (Region::mapping(0, 4, &[2; 9], &[4; 9]), FormError::Dimensions(9)),
            (Region::mapping(0, 4, &[-2], &[4]), FormError::Negative { dimension: 0, size: -2 }),
            (Region::mapping(0, 0, &[2], &[4]), FormError::Element),
            (Region::mapping(3, 4, &[2], &[-4]), FormError::Address { base: 3 }),
            (Region::mapping(3, 4, &[i64::MAX; 1], &[i64::MAX]), FormError::Address { base: 3 }),
            (Region::mapping(3, u64::MAX, &[], &[]), FormError::Address { base: 3 }),
            (Region::mapping(3, 4, &[i64::MAX; 3], &[0; 3]), FormError::Elements),
            (Region::mapping(3, 4, &[2], &[1 << 60]), FormError::Spread { bytes: (1 << 60) + 4 }),
            (Region::range(u64::MAX - 4, 5), FormError::Address { base: u64::MAX - 4 }),
        ];
        for (told, expected) in table {
            assert_eq!(told, Err(expected), "{expected}");
        }
        assert_eq!(
            outside(1, -1, 2, 4).to_string(),
            "2 elements from -1 on leave the storage of 4 in dimension 1: offsets count from 0"
        );
    }
}
