//! A data set: values of a split in a direct buffer, behind an index that says where each lies (R3.1).
//!
//! ```text
//! │ magic │ count │ element 0 │ element 1 │ →      free      ← │ value 1 │ value 0 │
//!    4       4      start, bytes (4 each)
//! ```
//!
//! Numbers are big-endian 32-bit; a start counts bytes from the head. Values may lie anywhere behind the
//! index. The writer keeps the header true after each value, so there is nothing to finish.
//! Invariant: a [`DataSet`] that was read has every value inside of the buffer, whoever wrote it.

#![forbid(unsafe_code)]

use super::cursor::{Cursor, ELEMENT, Extent, TooLarge, number};
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"TGDS";
const HEAD: usize = size_of::<Header>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    data: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Element {
    start: U32,
    bytes: U32,
}

const _: () = assert!(size_of::<Element>() == ELEMENT);

/// Why a direct buffer holds no data set.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataSetError {
    /// The buffer is shorter than a header, or longer than 32 bits can tell.
    #[error("a direct buffer has {HEAD} bytes to 4 GiB, not {0}")]
    Size(usize),
    /// The header is something else's.
    #[error("it does not begin as a data set does")]
    Magic,
    /// The index does not end inside of the buffer.
    #[error("an index of {data} elements is longer than the {bytes} bytes of the buffer")]
    Index {
        /// Elements, as the header has it.
        data: usize,
        /// Bytes of the buffer.
        bytes: usize,
    },
    /// An element points elsewhere than behind the index.
    #[error(
        "datum {datum} is said to have {length} bytes from byte {start} on: outside of bytes {from} to {to}"
    )]
    Element {
        /// Counted from 0.
        datum: usize,
        /// Its first byte, as its element has it.
        start: usize,
        /// Its length.
        length: usize,
        /// The end of the index.
        from: usize,
        /// The end of the buffer.
        to: usize,
    },
}

/// Writes a data set into a direct buffer.
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    cursor: Cursor,
}

impl<'a> Writer<'a> {
    /// Makes an empty data set of the buffer, of 8 bytes to 4 GiB.
    pub fn new(buffer: &'a mut [u8]) -> Result<Self, DataSetError> {
        check_size(buffer)?;
        let cursor = Cursor::behind(HEAD, 1, buffer.len());
        let mut writer = Self { buffer, cursor };
        writer.write_header();
        Ok(writer)
    }

    /// Adds a value; `false`: the buffer has no room left for it, the next data set takes it. A value that
    /// not even an empty buffer takes is an error.
    pub fn push(&mut self, value: &[u8]) -> Result<bool, TooLarge> {
        let Some(spot) = self.cursor.append(Extent { data: 1, bytes: value.len() })? else {
            return Ok(false);
        };
        self.buffer[spot.data..spot.data + value.len()].copy_from_slice(value);
        let element = Element { start: number(spot.data), bytes: number(value.len()) };
        self.buffer[spot.index..spot.index + ELEMENT].copy_from_slice(element.as_bytes());
        self.write_header();
        Ok(true)
    }

    /// How many values it holds.
    pub fn len(&self) -> usize {
        self.cursor.held().data
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn write_header(&mut self) {
        let header = Header { magic: MAGIC, data: number(self.len()) };
        self.buffer[..HEAD].copy_from_slice(header.as_bytes());
    }
}

/// A data set that was read and found sound.
pub struct DataSet<'a> {
    buffer: &'a [u8],
    index: &'a [Element],
}

impl<'a> DataSet<'a> {
    /// Reads a direct buffer and checks every element.
    pub fn read(buffer: &'a [u8]) -> Result<Self, DataSetError> {
        check_size(buffer)?;
        let (header, behind) = Header::ref_from_prefix(buffer).expect("a header's size");
        if header.magic != MAGIC {
            return Err(DataSetError::Magic);
        }
        let data = header.data.get() as usize;
        let (index, _) = <[Element]>::ref_from_prefix_with_elems(behind, data)
            .map_err(|_| DataSetError::Index { data, bytes: buffer.len() })?;
        let set = Self { buffer, index };
        (0..data).try_for_each(|datum| set.check(datum))?;
        Ok(set)
    }

    /// The values, in the order of the index.
    pub fn data(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let buffer = self.buffer;
        self.index.iter().map(move |element| &buffer[element.start()..][..element.length()])
    }

    /// How many values it has.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    fn check(&self, datum: usize) -> Result<(), DataSetError> {
        let (from, to) = (HEAD + self.len() * ELEMENT, self.buffer.len());
        let (start, length) = (self.index[datum].start(), self.index[datum].length());
        let is_inside = start >= from && start <= to && length <= to - start;
        is_inside.then_some(()).ok_or(DataSetError::Element { datum, start, length, from, to })
    }
}

impl Element {
    fn start(&self) -> usize {
        self.start.get() as usize
    }

    fn length(&self) -> usize {
        self.bytes.get() as usize
    }
}

fn check_size(buffer: &[u8]) -> Result<(), DataSetError> {
    let is_possible = buffer.len() >= HEAD && u32::try_from(buffer.len()).is_ok();
    is_possible.then_some(()).ok_or(DataSetError::Size(buffer.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Elements as `(start, bytes)`, in a buffer of so many bytes.
    fn forged(data: u32, elements: &[(u32, u32)], bytes: usize) -> Vec<u8> {
        let mut buffer = [&MAGIC[..], &data.to_be_bytes()].concat();
        for (start, length) in elements {
            buffer.extend([start.to_be_bytes(), length.to_be_bytes()].concat());
        }
        buffer.resize(bytes, 0);
        buffer
    }

    #[test]
    fn lying_data_sets_are_refused() {
        let read = |buffer: &[u8]| DataSet::read(buffer).map(|set| set.len());
        assert_eq!(read(&forged(2, &[(24, 8), (24, 0)], 32)), Ok(2));
        assert_eq!(read(&[]), Err(DataSetError::Size(0)));
        assert_eq!(read(&[0; 32]), Err(DataSetError::Magic));
        assert_eq!(read(&forged(4, &[], 32)), Err(DataSetError::Index { data: 4, bytes: 32 }));
        assert!(matches!(read(&forged(u32::MAX, &[], 32)), Err(DataSetError::Index { .. })));
        for lie in [(23, 1), (24, 9), (33, 0), (u32::MAX, u32::MAX), (32, u32::MAX), (0, 4)] {
            let told = read(&forged(2, &[(24, 8), lie], 32));
            assert!(matches!(told, Err(DataSetError::Element { datum: 1, .. })), "{lie:?}: {told:?}");
        }
    }

    #[test]
    fn a_full_buffer_leaves_the_value_to_the_next_data_set() {
        let mut buffer = [0xee; 24];
        let mut writer = Writer::new(&mut buffer).unwrap();
        assert_eq!(writer.push(b"12345678"), Ok(true), "it fits exactly");
        assert_eq!(writer.push(b""), Ok(false));
        let needed = TooLarge { data: 1, bytes: 9, needed: 25, capacity: 24 };
        assert_eq!(writer.push(b"123456789"), Err(needed));
        assert_eq!(writer.len(), 1);
        assert_eq!(DataSet::read(&buffer).unwrap().data().collect::<Vec<_>>(), [b"12345678"]);
    }

    proptest! {
        #[test]
        fn a_data_set_reads_back_what_was_written(
            values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..20),
            bytes in HEAD..400,
        ) {
            let mut buffer = vec![0xee; bytes];
            let mut writer = Writer::new(&mut buffer).unwrap();
            let taken = values.iter().take_while(|value| writer.push(value) == Ok(true)).count();
            prop_assert_eq!(writer.len(), taken);
            let read: Vec<_> = DataSet::read(&buffer).unwrap().data().collect();
            prop_assert_eq!(read, &values[..taken]);
        }

        #[test]
        fn no_buffer_makes_the_reader_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80),
            data in 0u32..12,
            is_begun in any::<bool>(),
        ) {
            if is_begun && bytes.len() >= HEAD {
                bytes[..HEAD].copy_from_slice(&forged(data, &[], HEAD));
            }
            if let Ok(set) = DataSet::read(&bytes) {
                prop_assert_eq!(set.data().count(), set.len());
            }
        }

        #[test]
        fn a_sound_index_with_one_number_changed_is_read_or_refused(
            at in 0usize..40,
            byte in any::<u8>(),
        ) {
            let mut buffer = forged(3, &[(32, 4), (36, 4), (32, 8)], 40);
            buffer[at] = byte;
            if let Ok(set) = DataSet::read(&buffer) {
                prop_assert!(set.data().all(|value| value.len() <= 32));
            }
        }
    }
}
