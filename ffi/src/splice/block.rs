//! The preprocessor: makes a data set a block in a launching buffer (R3.2).
//!
//! It reads the index, then each datum, and has the user's [`Parse`] convert it into the format that the GPU
//! computes on. A block is copied into a working buffer in two runs, its index and its data:
//!
//! ```text
//! launching buffer   │ place │ place │ … │ gap │ datum 0 │ gap │ datum 1 │ …
//!                      start, bytes: two little-endian 32-bit numbers, as GPUs read them
//! ```
//!
//! Every datum begins at a multiple of [`ALIGNMENT`]. A start counts from the block's first datum until the
//! splicer knows where the block goes and moves it.

#![forbid(unsafe_code)]

use super::Cause;
use super::cursor::{ALIGNMENT, ELEMENT, Extent, TooLarge, number};
use super::data_set::DataSet;
use std::ops::Range;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where a datum lies: an element of the look-up index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Place {
    start: U32,
    bytes: U32,
}

const _: () = assert!(size_of::<Place>() == ELEMENT);

impl Place {
    /// Its bytes, counted from the head of the working buffer.
    pub fn range(self) -> Range<usize> {
        let start = self.start.get() as usize;
        start..start + self.bytes.get() as usize
    }
}

/// Converts data into the format of the GPU. A function `|datum, sink| …` is one.
pub trait Parse {
    /// A data set of so many data comes.
    fn begin(&mut self, data: usize) {
        let _ = data;
    }

    /// Writes what the GPU shall have of a datum. An error fails the split.
    fn parse(&mut self, datum: &[u8], sink: &mut Sink<'_>) -> Result<(), Cause>;

    /// The block of the data set is complete.
    fn end(&mut self, block: Extent) {
        let _ = block;
    }
}

impl<F: FnMut(&[u8], &mut Sink<'_>) -> Result<(), Cause>> Parse for F {
    fn parse(&mut self, datum: &[u8], sink: &mut Sink<'_>) -> Result<(), Cause> {
        self(datum, sink)
    }
}

/// Takes what a parse function writes of one datum.
pub struct Sink<'a> {
    room: &'a mut [u8],
    /// Bytes written, or that would have been.
    bytes: usize,
}

impl Sink<'_> {
    /// Appends bytes. What finds no room fails the split when the parse function is done.
    pub fn put(&mut self, bytes: &[u8]) {
        let end = self.bytes.saturating_add(bytes.len());
        if let Some(room) = self.room.get_mut(self.bytes..end) {
            room.copy_from_slice(bytes);
        }
        self.bytes = end;
    }
}

/// Why a data set is no block.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The user's function refused a datum.
    #[error("datum {datum} cannot be parsed: {cause}")]
    Parse {
        /// Counted from 0 in its data set.
        datum: usize,
        /// What the function said.
        cause: Cause,
    },
    /// What the data became is more than the launching buffer takes, counted up to the first that is not in.
    #[error("{0}: make the launching buffer larger, or the direct buffer smaller")]
    TooLarge(TooLarge),
}

/// Parses a data set into a launching buffer of at most 4 GiB.
pub fn write(set: &DataSet<'_>, launching: &mut [u8], parse: &mut impl Parse) -> Result<Extent, BlockError> {
    parse.begin(set.len());
    let capacity = launching.len();
    let too_large = |data, bytes| {
        let needed = data_start(data) + bytes;
        BlockError::TooLarge(TooLarge { data, bytes, needed, capacity })
    };
    let (index, room) =
        launching.split_at_mut_checked(data_start(set.len())).ok_or_else(|| too_large(set.len(), 0))?;
    let places = <[Place]>::mut_from_prefix_with_elems(index, set.len()).expect("an index' size").0;
    let mut end = 0;
    for (datum, value) in set.data().enumerate() {
        let start = usize::next_multiple_of(end, ALIGNMENT);
        let mut sink = Sink { room: room.get_mut(start..).unwrap_or_default(), bytes: 0 };
        parse.parse(value, &mut sink).map_err(|cause| BlockError::Parse { datum, cause })?;
        let bytes = sink.bytes;
        end = start + bytes;
        if end > room.len() {
            return Err(too_large(set.len(), end));
        }
        places[datum] = Place { start: number(start), bytes: number(bytes) };
    }
    let extent = Extent { data: set.len(), bytes: end };
    parse.end(extent);
    Ok(extent)
}

/// A block in its launching buffer.
pub struct Block<L> {
    /// The buffer.
    pub launching: L,
    /// What it holds.
    pub extent: Extent,
}

impl<L> Block<L> {
    /// The bytes of the launching buffer that are its part of the look-up index.
    pub fn index(&self) -> Range<usize> {
        0..self.extent.data * ELEMENT
    }

    /// The bytes of the launching buffer that are its data.
    pub fn data(&self) -> Range<usize> {
        let start = data_start(self.extent.data);
        start..start + self.extent.bytes
    }
}

/// Counts a block's places, in its launching buffer, from the head of a working buffer where the data go to
/// `start`.
pub fn place_at(launching: &mut [u8], block: Extent, start: usize) {
    let index = &mut launching[0..block.data * ELEMENT];
    for place in <[Place]>::mut_from_bytes(index).expect("whole elements") {
        place.start = number(place.start.get() as usize + start);
    }
}

/// Where the data begin, behind the places of so many.
fn data_start(data: usize) -> usize {
    (data * ELEMENT).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::super::data_set::Writer;
    use super::*;

    #[test]
    fn a_block_is_laid_out_as_gpus_read_it() {
        let mut direct = [0; 64];
        let mut writer = Writer::new(&mut direct).unwrap();
        for value in [[0x01, 0x02, 0x03, 0x04], [0x05, 0x06, 0x07, 0x08]] {
            assert!(writer.push(&value).unwrap());
        }
        let mut launching = vec![0xee; 64];
        let mut swap = |datum: &[u8], sink: &mut Sink<'_>| {
            sink.put(&u32::from_be_bytes(datum.try_into()?).to_le_bytes());
            Ok(())
        };
        let extent = write(&DataSet::read(&direct).unwrap(), &mut launching, &mut swap).unwrap();
        assert_eq!(extent, Extent { data: 2, bytes: 20 });
        place_at(&mut launching, extent, 0x1230);
        let block = Block { launching, extent };
        assert_eq!((block.index(), block.data()), (0..16, 16..36));
        let places = [0x30, 0x12, 0, 0, 4, 0, 0, 0, 0x40, 0x12, 0, 0, 4, 0, 0, 0];
        assert_eq!(block.launching[block.index()], places);
        let data = &block.launching[block.data()];
        assert_eq!((&data[..4], &data[16..]), (&[4, 3, 2, 1][..], &[8, 7, 6, 5][..]));
    }
}
