//! The cursor: where the next block goes in a working buffer (R3.3, R3.4).
//!
//! The look-up index begins at the head and grows up, the data begin at the end and grow down, so that
//! neither needs room set apart for it:
//!
//! ```text
//! 0                                                                     capacity
//! │ place │ place │ place │ →            free            ← │ datum │ datum 0 1 │
//!  └ of datum 0             index end ┘                     └ cursor
//! ```
//!
//! One block's data lie in their order and without gaps but for alignment; a later block lies below.
//! Invariant: index end ≤ cursor, always; what was appended is never moved.

#![forbid(unsafe_code)]

/// Bytes of one element of an index: a place's start and length, 32 bits each.
pub const ELEMENT: usize = 8;
/// A datum begins at a multiple of this in a working buffer: enough for a GPU's widest load.
pub const ALIGNMENT: usize = 16;

/// What a block, or a buffer, holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// How many data.
    pub data: usize,
    /// Bytes of the data, with the gaps that align them.
    pub bytes: usize,
}

/// Where a block goes. Both are counted in bytes from the buffer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The elements of its data's places.
    pub index: usize,
    /// Its data.
    pub data: usize,
}

/// A block that finds no room even in an empty buffer. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{data} data of {bytes} bytes need {needed} bytes with their index, and there are {capacity}")]
pub struct TooLarge {
    /// How many data.
    pub data: usize,
    /// Bytes of the data.
    pub bytes: usize,
    /// Bytes that it takes with its part of the index.
    pub needed: usize,
    /// Bytes of the whole buffer.
    pub capacity: usize,
}

/// How far a buffer is filled.
#[derive(Clone, Debug)]
pub struct Cursor {
    head: usize,
    alignment: usize,
    capacity: usize,
    data: usize,
    /// The lowest byte of data.
    low: usize,
}

impl Cursor {
    /// An empty working buffer of so many bytes.
    pub fn new(capacity: usize) -> Self {
        Self::behind(0, ALIGNMENT, capacity)
    }

    /// An empty buffer whose index begins behind a head, with data aligned so.
    pub(super) fn behind(head: usize, alignment: usize, capacity: usize) -> Self {
        Self { head, alignment, capacity, data: 0, low: capacity }
    }

    /// Moves the cursor past a block: where the block goes, or `None` if the rest of the buffer cannot take
    /// all of it (then nothing changes). A block that not even the empty buffer takes is an error.
    pub fn append(&mut self, block: Extent) -> Result<Option<Spot>, TooLarge> {
        let index = self.index_end(0);
        if let Some(low) = self.after(block) {
            self.low = low;
            self.data += block.data;
            return Ok(Some(Spot { index, data: low }));
        }
        match self.emptied().after(block) {
            Some(_) => Ok(None),
            None => Err(self.too_large(block)),
        }
    }

    /// What the buffer holds.
    pub fn held(&self) -> Extent {
        Extent { data: self.data, bytes: self.capacity - self.low }
    }

    /// Forgets what the buffer holds.
    pub fn clear(&mut self) {
        *self = self.emptied();
    }

    fn emptied(&self) -> Self {
        Self::behind(self.head, self.alignment, self.capacity)
    }

    /// The end of the index with so many data more. It saturates: no capacity is as large.
    fn index_end(&self, more: usize) -> usize {
        self.data.saturating_add(more).saturating_mul(ELEMENT).saturating_add(self.head)
    }

    /// The lowest byte of data with this block, if it fits.
    fn after(&self, block: Extent) -> Option<usize> {
        let low = self.low.checked_sub(block.bytes)? / self.alignment * self.alignment;
        (self.index_end(block.data) <= low).then_some(low)
    }

    fn too_large(&self, Extent { data, bytes }: Extent) -> TooLarge {
        let needed = self.emptied().index_end(data).saturating_add(bytes);
        let needed = needed.checked_next_multiple_of(self.alignment).unwrap_or(usize::MAX);
        TooLarge { data, bytes, needed, capacity: self.capacity }
    }
}

/// A number below the size of a buffer, as an index has it.
pub(super) fn number<N: From<u32>>(value: usize) -> N {
    u32::try_from(value).expect("no buffer has more than 4 GiB").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_that_fits_exactly_fits() {
        let mut cursor = Cursor::new(64);
        assert_eq!(cursor.append(Extent { data: 2, bytes: 48 }), Ok(Some(Spot { index: 0, data: 16 })));
        assert_eq!(cursor.held(), Extent { data: 2, bytes: 48 });
        assert_eq!(cursor.append(Extent { data: 1, bytes: 1 }), Ok(None));
        cursor.clear();
        assert_eq!(cursor.append(Extent { data: 1, bytes: 1 }), Ok(Some(Spot { index: 0, data: 48 })));
    }

    #[test]
    fn a_block_larger_than_the_buffer_is_told_with_its_sizes() {
        let mut cursor = Cursor::new(64);
        let told = cursor.append(Extent { data: 3, bytes: 48 }).unwrap_err();
        assert_eq!(told, TooLarge { data: 3, bytes: 48, needed: 80, capacity: 64 });
        assert_eq!(told.to_string(), "3 data of 48 bytes need 80 bytes with their index, and there are 64");
        assert!(cursor.append(Extent { data: usize::MAX, bytes: usize::MAX }).is_err());
        assert!(cursor.append(Extent { data: 0, bytes: 64 }).unwrap().is_some(), "nothing has changed");
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_a_refused_one_would_not_have_fitted(
            capacity in 0usize..300,
            head in 0usize..20,
            alignment in prop::sample::select(vec![1, 4, 16]),
            blocks in prop::collection::vec((0usize..6, 0usize..80), 0..40),
        ) {
            let mut cursor = Cursor::behind(head, alignment, capacity);
            let mut taken = vec![false; capacity];
            taken[..head.min(capacity)].fill(true);
            let (mut index_end, mut low) = (head, capacity);
            for (data, bytes) in blocks {
                let last_chance = low.checked_sub(bytes).map(|low| low / alignment * alignment);
                let fits = last_chance.is_some_and(|low| index_end + data * ELEMENT <= low);
                let got = cursor.append(Extent { data, bytes });
                prop_assert_eq!(matches!(got, Ok(Some(_))), fits);
                let Ok(Some(spot)) = got else { continue };
                prop_assert_eq!(spot.data % alignment, 0);
                for range in [spot.index..spot.index + data * ELEMENT, spot.data..spot.data + bytes] {
                    prop_assert!(taken[range.clone()].iter().all(|taken| !taken));
                    taken[range].fill(true);
                }
                (index_end, low) = (spot.index + data * ELEMENT, spot.data);
            }
        }
    }
}
