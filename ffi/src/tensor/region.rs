//! A region: the bytes that a tensor, or a part of one, lies in (R2.1, R2.2).
//!
//! Every form becomes this one: a base and, for each dimension, an offset, a size and a stride. Invariant: all
//! addresses of a region lie in `0 .. 2^64 - 1`, and the number of its elements fits 64 bits.

#![forbid(unsafe_code)]

use super::form::FormError;
use std::ops::Range;

/// A region has at most so many dimensions.
pub const MOST_DIMENSIONS: usize = 8;
/// A region with gaps is spread over at most so many bytes; one without may have any number.
pub const MOST_SPREAD: u64 = 1 << 60;

/// One dimension of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dimension {
    /// Elements between the reference point and the first element.
    pub offset: u64,
    /// Elements.
    pub size: u64,
    /// Bytes from one element to the next; 0 where all are the same, negative where they run backwards.
    pub stride: i64,
}

impl Dimension {
    /// Bytes from the first element of the dimension to the last, signed.
    fn span(&self) -> i128 {
        i128::from(self.size.saturating_sub(1)) * i128::from(self.stride)
    }
}

/// Where a tensor lies. Two regions are equal if they were described alike, not if their bytes are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    base: u64,
    element: u64,
    low: u64,
    end: u64,
    is_box: bool,
    rank: u8,
    dimensions: [Dimension; MOST_DIMENSIONS],
}

impl Region {
    /// A region of these dimensions, slowest first. It is a box if no two positions of its storage share a byte.
    pub(super) fn new(
        base: u64,
        element: u64,
        dimensions: &[Dimension],
        is_box: bool,
    ) -> Result<Self, FormError> {
        let rank = dimensions.len();
        let mut all = [Dimension::default(); MOST_DIMENSIONS];
        all.get_mut(..rank).ok_or(FormError::Dimensions(rank))?.copy_from_slice(dimensions);
        if element == 0 {
            return Err(FormError::Element);
        }
        elements(dimensions).ok_or(FormError::Elements)?;
        let hull = hull(base, element, dimensions).ok_or(FormError::Address { base })?;
        let (low, end) = (hull.start, hull.end);
        let region = Self { base, element, low, end, is_box, rank: rank as u8, dimensions: all };
        let is_near = end - low <= MOST_SPREAD || region.is_solid();
        is_near.then_some(region).ok_or(FormError::Spread { bytes: end - low })
    }

    /// Address of the reference point: of the storage's first element, or of position 0 of a mapping.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of an element, at least 1.
    pub fn element(&self) -> u64 {
        self.element
    }

    /// Its dimensions, slowest first; none for a scalar.
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions[..usize::from(self.rank)]
    }

    /// How many elements it has: 1 for a scalar.
    pub fn elements(&self) -> u64 {
        elements(self.dimensions()).expect("counted when it was made")
    }

    /// Whether it has no elements: it overlaps nothing, itself included.
    pub fn is_empty(&self) -> bool {
        self.low == self.end
    }

    /// The addresses from its first byte to behind its last one; at the base, and empty, if it has no elements.
    pub fn hull(&self) -> Range<u64> {
        self.low..self.end
    }

    /// Address of the element at a position, counted from 0 in the region (R2.2):
    /// base + Σ (offset + position) · stride. `None` for a position that is not in the region.
    pub fn address(&self, position: &[u64]) -> Option<u64> {
        let dimensions = self.dimensions();
        let is_inside = position.len() == dimensions.len()
            && position.iter().zip(dimensions).all(|(at, dimension)| *at < dimension.size);
        let steps = dimensions.iter().zip(position);
        let address = i128::from(self.base)
            + steps.map(|(of, at)| i128::from(of.offset + at) * i128::from(of.stride)).sum::<i128>();
        if is_inside { u64::try_from(address).ok() } else { None }
    }

    /// Whether it lies in a storage: no two positions of the storage have a byte in common.
    pub(super) fn is_box(&self) -> bool {
        self.is_box
    }

    /// Whether it is known to fill its hull: looks at the dimensions in their order only.
    pub(super) fn is_solid(&self) -> bool {
        let mut run = i128::from(self.element);
        self.dimensions().iter().rev().filter(|dimension| dimension.size > 1).all(|dimension| {
            let is_next = i128::from(dimension.stride.unsigned_abs()) <= run;
            run += dimension.span().abs();
            is_next
        })
    }

    /// The part of it whose dimensions are these, inside its own.
    pub(super) fn narrowed(&self, narrow: impl Fn(usize, Dimension) -> Dimension) -> Self {
        let mut part = *self;
        for (index, dimension) in part.dimensions[..usize::from(self.rank)].iter_mut().enumerate() {
            *dimension = narrow(index, *dimension);
        }
        let hull = hull(part.base, part.element, part.dimensions()).expect("a part lies inside the whole");
        (part.low, part.end) = (hull.start, hull.end);
        part
    }
}

fn elements(dimensions: &[Dimension]) -> Option<u64> {
    if dimensions.iter().any(|dimension| dimension.size == 0) {
        return Some(0);
    }
    dimensions.iter().try_fold(1_u64, |product, dimension| product.checked_mul(dimension.size))
}

/// From the first byte to behind the last one; `None` where that leaves the address space.
fn hull(base: u64, element: u64, dimensions: &[Dimension]) -> Option<Range<u64>> {
    if dimensions.iter().any(|dimension| dimension.size == 0) {
        return Some(base..base);
    }
    let (mut low, mut end) = (i128::from(base), i128::from(base) + i128::from(element));
    for dimension in dimensions {
        let start = i128::from(dimension.offset) * i128::from(dimension.stride);
        low = low.checked_add(start)?.checked_add(dimension.span().min(0))?;
        end = end.checked_add(start)?.checked_add(dimension.span().max(0))?;
    }
    Some(u64::try_from(low).ok()?..u64::try_from(end).ok()?)
}
