//! The live map: which bytes of a tenant must survive a switch, and where else it needs memory
//! when it runs again.
//!
//! A shim writes the rows into a memory file and seals it against writing; the manager copies
//! the rows, then checks the copy. Rows are sorted by class and start, and do not overlap.

use super::shared_memory::{self, SharedMemoryError};
use crate::os;
use crate::units::Class;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The most rows in one map (3 MiB of rows): so many are taken in within some milliseconds. A shim that has more live ranges joins
/// those that lie close together.
pub const MAX_RANGES: usize = 1 << 17;
/// The largest map, in bytes.
pub const MAX_BYTES: u64 = (MAX_RANGES * size_of::<Row>()) as u64;

/// What is known of a range's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// Alive.
    Short,
    /// Alive, and known to outlive iterations: by a hint, or by having survived boundaries (or switches).
    Long,
    /// None of them is alive, but the program may write there without a word: memory must be there when
    /// it runs again, whatever it holds.
    Dead,
}

impl Life {
    const ALL: [Self; 3] = [Self::Short, Self::Long, Self::Dead];
}

/// A range of one of the tenant's two address ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRange {
    /// Which address range: the birth class.
    pub class: Class,
    /// The first byte, counted from the start of that range.
    pub start: u64,
    /// Length in bytes, at least 1.
    pub bytes: u64,
    /// What is known of its bytes.
    pub life: Life,
}

/// Why a live map cannot be believed.
#[derive(Debug, thiserror::Error)]
pub enum LiveMapError {
    /// The memory file is not as agreed.
    #[error(transparent)]
    Memory(#[from] SharedMemoryError),
    /// Reading or writing it failed.
    #[error("live map: {0}")]
    Io(#[from] std::io::Error),
    /// Its rows are not as agreed.
    #[error("live map, row {row}: {fault}")]
    Row {
        /// Counted from 0.
        row: usize,
        /// What is wrong.
        fault: &'static str,
    },
    /// It has too many rows, or a part of one.
    #[error("a live map of {0} bytes is no whole number of rows, or more than {MAX_RANGES}")]
    Size(u64),
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
struct Row {
    start: u64,
    bytes: u64,
    class: u32,
    life: u32,
}

/// A sealed memory file that holds `ranges`.
pub fn write(ranges: &[LiveRange]) -> Result<OwnedFd, LiveMapError> {
    let rows: Vec<Row> = ranges.iter().map(Row::from).collect();
    let bytes = rows.as_bytes();
    let file = shared_memory::create_sealed("tidegate-live", bytes.len() as u64);
    let file = File::from(file.map_err(SharedMemoryError::from)?);
    os::write_at(&file, bytes, 0)?;
    Ok(file.into())
}

/// Copies a live map out of its memory file and checks it.
pub fn read(file: OwnedFd) -> Result<Vec<LiveRange>, LiveMapError> {
    let size = shared_memory::sealed_size(file.as_fd())?;
    if !size.is_multiple_of(size_of::<Row>() as u64) || size > MAX_BYTES {
        return Err(LiveMapError::Size(size));
    }
    let mut bytes = vec![0; size as usize];
    // At places of our own: who made the file shares its offset.
    File::from(file).read_exact_at(&mut bytes, 0)?;
    let rows =
        bytes.chunks_exact(size_of::<Row>()).map(|row| Row::read_from_bytes(row).expect("a row's size"));
    check(rows)
}

fn check(rows: impl Iterator<Item = Row>) -> Result<Vec<LiveRange>, LiveMapError> {
    let mut ranges: Vec<LiveRange> = Vec::new();
    for (row, raw) in rows.enumerate() {
        let range = raw.range().map_err(|fault| LiveMapError::Row { row, fault })?;
        if ranges
            .last()
            .is_some_and(|last| (last.class, last.start + last.bytes) > (range.class, range.start))
        {
            return Err(LiveMapError::Row { row, fault: "out of order or overlapping" });
        }
        ranges.push(range);
    }
    Ok(ranges)
}

impl Row {
    fn range(self) -> Result<LiveRange, &'static str> {
        let class = match self.class {
            0 => Class::Persistent,
            1 => Class::Temporary,
            _ => return Err("unknown class"),
        };
        if self.bytes == 0 || self.start.checked_add(self.bytes).is_none() {
            return Err("empty or past the end of all addresses");
        }
        let life = *Life::ALL.get(self.life as usize).ok_or("neither alive nor dead")?;
        Ok(LiveRange { class, start: self.start, bytes: self.bytes, life })
    }
}

impl From<&LiveRange> for Row {
    fn from(range: &LiveRange) -> Self {
        Self {
            start: range.start,
            bytes: range.bytes,
            class: range.class.index() as u32,
            life: range.life as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(class: Class, start: u64, bytes: u64) -> LiveRange {
        LiveRange { class, start, bytes, life: Life::ALL[(start % 3) as usize] }
    }

    #[test]
    fn a_live_map_reads_back_what_was_written() {
        let ranges =
            [range(Class::Persistent, 10, 5), range(Class::Persistent, 15, 1), range(Class::Temporary, 0, 7)];
        assert_eq!(read(write(&ranges).unwrap()).unwrap(), ranges);
        assert_eq!(read(write(&[]).unwrap()).unwrap(), []);
    }

    #[test]
    fn lying_maps_are_refused() {
        let overlapping = [range(Class::Temporary, 0, 7), range(Class::Temporary, 6, 7)];
        let unsorted = [range(Class::Temporary, 0, 7), range(Class::Persistent, 60, 7)];
        let empty = [range(Class::Temporary, 0, 0)];
        let endless = [range(Class::Temporary, 8, u64::MAX)];
        for lie in [&overlapping[..], &unsorted, &empty, &endless] {
            assert!(matches!(read(write(lie).unwrap()), Err(LiveMapError::Row { .. })));
        }
        assert!(read(tempfile::tempfile().unwrap().into()).is_err());
        let neither = Row { life: 3, ..Row::from(&range(Class::Temporary, 0, 7)) };
        assert!(check([neither].into_iter()).is_err());
    }
}
