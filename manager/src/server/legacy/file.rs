//! The state file: what a manager writes down before it lets anybody know of it.
//!
//! ```text
//! ├─ state ────────────────┼─ history ──────────────┼─ store ────────────────┤   two records, and what they name
//! ├─ slot 0 ─┼─ slot 1 ────┼─ slot 0 ─┼─ slot 1 ────┼─ half 0 ─┼─ half 1 ────┤   each written to its slots in turn
//!  header │ postcard                                  parts, one behind the other
//! ```
//! Long [parts](crate::kept) of the state lie in one half of the store. When it has much that the state does not name any more the
//! parts go to the other half; the first is emptied when a state is written that names none of it.
//!
//! A memory file, sparse and sealed in its size, which every mover holds too: it outlives the
//! manager. A write goes to the slot with the older text, so a manager that dies while it writes
//! leaves the text before whole. A text that cannot be written makes the whole file void: an heir
//! that knows less than the truth would do harm, one that knows nothing starts afresh.
//!
//! Invariant: what is read is one whole text that was written, the last whole one.

#![forbid(unsafe_code)]

use crate::kept::{Place, Store, StoreError};
use crate::mover::turns;
use rustix::fs::{FallocateFlags, fallocate, fstat};
use serde::{Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use tidegate_ffi::os;
use tidegate_ffi::wire::create_sealed;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The first bytes of every slot.
const MARK: u64 = u64::from_le_bytes(*b"tidestat");
/// What the texts look like. Any change of what is written changes it.
const FORMAT: u32 = 27;
/// The longest text, with its header. The file is sparse: what is not written takes no memory.
const SLOT: u64 = 1 << 28;
/// The store's first half, which is as long as a slot.
const STORE: u64 = SLOT * 2 * Record::ALL.len() as u64;
/// Behind the store lies the page by which movers share tiers.
const SIZE: u64 = STORE + 2 * SLOT + turns::BYTES;
/// Parts go to the other half when so many bytes lie in this one,
const MUCH: u64 = 4 << 20;
/// and so many times as many as were named when it was begun.
const TIMES_NAMED: u64 = 4;

/// A part of the state that is written by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// What changes with every message.
    State,
    /// What ended: long, and changed rarely.
    History,
}

impl Record {
    const ALL: [Self; 2] = [Self::State, Self::History];

    fn slot(self, number: u64) -> u64 {
        (self as u64 * 2 + number % 2) * SLOT
    }
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
struct Header {
    mark: u64,
    format: u32,
    release: u32,
    number: u64,
    bytes: u64,
    /// Its parts lie in this epoch's half of the store.
    epoch: u64,
    /// Of the header with 0 here, and of the text.
    checksum: u64,
}

/// Why a state cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// A system call failed.
    #[error("the state file: {0}")]
    System(#[from] io::Error),
    /// The state cannot be put into bytes, or not be read from them.
    #[error("the state cannot be written or read: {0}")]
    Codec(#[from] postcard::Error),
    /// It is longer than a slot.
    #[error("a state of {0} bytes is too long to be written down")]
    TooLong(usize),
    /// There is none that is whole and of this release.
    #[error("there is no whole state of this release of Tidegate")]
    None,
    /// A part of it cannot be kept.
    #[error(transparent)]
    Part(#[from] StoreError),
}

/// The state file of a manager.
#[derive(Debug)]
pub(crate) struct StateFile {
    file: File,
    /// Of each record's last text.
    numbers: [u64; Record::ALL.len()],
    text: Vec<u8>,
    half: Half,
    /// The other half has parts that the last state does not name.
    is_other_full: bool,
}

/// The half of the store in which parts lie. Each time that they go to the other one an epoch begins: a place is an epoch, in slots,
/// and a byte in its half.
#[derive(Debug, Default)]
struct Half {
    epoch: u64,
    /// Bytes that are there.
    bytes: u64,
    /// Of these, those that were there when the first state was written that names it.
    named: Option<u64>,
    /// What is to be written behind them.
    new: Vec<u8>,
}

impl Half {
    fn end(&self) -> u64 {
        self.bytes + self.new.len() as u64
    }

    fn is_to_be_left(&self) -> bool {
        self.named.is_some_and(|named| self.bytes >= MUCH.max(named.saturating_mul(TIMES_NAMED)))
    }

    /// It is not known what lies there.
    fn lose(&mut self) {
        (self.bytes, self.named) = (SLOT, Some(0));
        self.new.clear();
    }
}

/// Where an epoch's half begins.
fn half_of(epoch: u64) -> u64 {
    STORE + epoch % 2 * SLOT
}

impl StateFile {
    /// A file in which nothing is written yet.
    pub(crate) fn create() -> Result<Self, FileError> {
        let file = create_sealed("tidegate-state", SIZE).map_err(io::Error::from)?;
        Ok(Self::of(file.into()))
    }

    fn of(file: File) -> Self {
        let numbers = [0; Record::ALL.len()];
        Self { file, numbers, text: Vec::new(), half: Half::default(), is_other_full: false }
    }

    /// A file that another manager has written, to go on with.
    pub(crate) fn open(file: OwnedFd) -> Result<Self, FileError> {
        if fstat(&file).map_err(io::Error::from)?.st_size as u64 != SIZE {
            return Err(FileError::None);
        }
        let mut opened = Self::of(file.into());
        let newest = Record::ALL.map(|record| opened.newest(record).map(|(head, _)| head));
        opened.numbers = newest.map(|head| head.map_or(0, |head| head.number));
        opened.half.epoch = newest[Record::State as usize].map_or(0, |head| head.epoch);
        opened.half.lose();
        Ok(opened)
    }

    /// A descriptor of the file, for a mover.
    pub(crate) fn share(&self) -> Result<OwnedFd, FileError> {
        Ok(os::duplicate(&self.file)?)
    }

    /// Keeps all parts of a state that is to be written. When that fails, the file is void.
    pub(crate) fn keep(
        &mut self,
        parts: impl FnOnce(&mut dyn Store) -> Result<(), StoreError>,
    ) -> Result<(), FileError> {
        if self.half.is_to_be_left() {
            self.is_other_full = true;
            self.half = Half { epoch: self.half.epoch + 1, ..Half::default() };
        }
        let kept = parts(self).and_then(|()| self.write_parts());
        if kept.is_err() {
            self.make_void()?;
        }
        Ok(kept?)
    }

    fn write_parts(&mut self) -> Result<(), StoreError> {
        os::write_at(&self.file, &self.half.new, half_of(self.half.epoch) + self.half.bytes)?;
        self.half.bytes = self.half.end();
        self.half.new.clear();
        Ok(())
    }

    /// A state was written that names this half alone.
    fn leave_the_other_half(&mut self) {
        self.half.named.get_or_insert(self.half.bytes);
        if std::mem::take(&mut self.is_other_full) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // It is written over next time in any case; until then it takes memory.
            if let Err(error) = fallocate(&self.file, flags, half_of(self.half.epoch + 1), SLOT) {
                tracing::debug!(%error, "what the state does not name any more is kept");
            }
        }
    }

    /// Writes a record's next text; returns its length. When that fails, the file is void.
    pub(crate) fn write(&mut self, record: Record, state: &impl Serialize) -> Result<usize, FileError> {
        let written = self.try_write(record, state);
        match written {
            Ok(_) if record == Record::State => self.leave_the_other_half(),
            Ok(_) => {}
            Err(_) => self.make_void()?,
        }
        written
    }

    fn try_write(&mut self, record: Record, state: &impl Serialize) -> Result<usize, FileError> {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        text.resize(size_of::<Header>(), 0);
        self.text = postcard::to_extend(state, text)?;
        if self.text.len() as u64 > SLOT {
            return Err(FileError::TooLong(self.text.len()));
        }
        let number = self.numbers[record as usize] + 1;
        let (head, body) = self.text.split_at_mut(size_of::<Header>());
        head.copy_from_slice(header(number, self.half.epoch, body).as_bytes());
        os::write_at(&self.file, &self.text, record.slot(number))?;
        self.numbers[record as usize] = number;
        Ok(self.text.len())
    }

    /// Each slot by itself, whatever becomes of the others.
    fn make_void(&mut self) -> Result<(), FileError> {
        self.half.lose();
        let slots = Record::ALL.into_iter().flat_map(|record| [0, 1].map(|number| record.slot(number)));
        let made = slots.map(|slot| self.make_slot_void(slot)).fold(Ok(()), Result::and);
        Ok(made?)
    }

    /// What is there needs no new memory: where that cannot be written, it is tried again.
    fn make_slot_void(&self, slot: u64) -> io::Result<()> {
        let write = || os::write_at(&self.file, &[0; size_of::<Header>()], slot);
        write().or_else(|_| write())
    }

    /// A record's last whole text.
    pub(crate) fn read<T: DeserializeOwned>(&self, record: Record) -> Result<T, FileError> {
        let (_, text) = self.newest(record).ok_or(FileError::None)?;
        Ok(postcard::from_bytes(&text)?)
    }

    fn newest(&self, record: Record) -> Option<(Header, Vec<u8>)> {
        let slots = [0, 1].into_iter().filter_map(|number| self.read_slot(record.slot(number)));
        slots.max_by_key(|(head, _)| head.number)
    }

    /// The text of a slot, if it is whole.
    fn read_slot(&self, at: u64) -> Option<(Header, Vec<u8>)> {
        let mut head = [0; size_of::<Header>()];
        self.file.read_exact_at(&mut head, at).ok()?;
        let head = Header::read_from_bytes(&head).ok()?;
        if head.mark != MARK || head.bytes > SLOT - size_of::<Header>() as u64 {
            return None;
        }
        let mut text = vec![0; head.bytes as usize];
        self.file.read_exact_at(&mut text, at + size_of::<Header>() as u64).ok()?;
        (header(head.number, head.epoch, &text).as_bytes() == head.as_bytes()).then_some((head, text))
    }
}

impl Store for StateFile {
    fn has(&self, place: Place) -> bool {
        place.at / SLOT == self.half.epoch && place.at % SLOT + u64::from(place.bytes) <= self.half.end()
    }

    fn put(
        &mut self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<Vec<u8>, postcard::Error>,
    ) -> Result<Place, StoreError> {
        let at = self.half.end();
        self.half.new = write(std::mem::take(&mut self.half.new))?;
        let end = self.half.end();
        let bytes = u32::try_from(end - at).ok().filter(|_| end <= SLOT).ok_or(StoreError::TooLong(end))?;
        Ok(Place { at: self.half.epoch * SLOT + at, bytes })
    }

    fn get(&self, place: Place) -> Result<Vec<u8>, StoreError> {
        let (epoch, at) = (place.at / SLOT, place.at % SLOT);
        if epoch != self.half.epoch || at + u64::from(place.bytes) > SLOT {
            return Err(StoreError::Nowhere);
        }
        let mut text = vec![0; place.bytes as usize];
        self.file.read_exact_at(&mut text, half_of(epoch) + at)?;
        Ok(text)
    }
}

fn header(number: u64, epoch: u64, text: &[u8]) -> Header {
    let release = checksum(0xcbf2_9ce4_8422_2325, env!("CARGO_PKG_VERSION").as_bytes()) as u32;
    let bytes = text.len() as u64;
    let head = Header { mark: MARK, format: FORMAT, release, number, bytes, epoch, checksum: 0 };
    Header { checksum: checksum(checksum(0xcbf2_9ce4_8422_2325, head.as_bytes()), text), ..head }
}

/// FNV-1a over words: to tell a torn text from a whole one, not to keep anybody out.
fn checksum(sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().chain([&last]).fold(sum, |sum, word| {
        (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::{Keep as _, Kept};
    use Record::{History, State};

    /// A file with texts 1 and 2, and the length of the second.
    fn example() -> (StateFile, usize) {
        let mut file = StateFile::create().unwrap();
        file.write(State, &vec![1u64; 12]).unwrap();
        let length = file.write(State, &vec![2u64; 13]).unwrap();
        (file, length)
    }

    fn read(file: &StateFile) -> u64 {
        // As another manager sees it.
        StateFile::open(file.share().unwrap()).unwrap().read::<Vec<u64>>(State).unwrap()[0]
    }

    #[test]
    fn the_newest_text_is_read_and_the_next_one_goes_on_from_it() {
        let (file, _) = example();
        assert_eq!(read(&file), 2);
        let mut heir = StateFile::open(file.share().unwrap()).unwrap();
        for text in 3..8 {
            heir.write(State, &vec![text; 3]).unwrap();
            assert_eq!(read(&heir), text);
        }
    }

    fn write_part(file: &mut StateFile, part: &mut Kept<Vec<u64>>) {
        file.keep(|store| part.keep(store)).unwrap();
        file.write(State, part).unwrap();
    }

    /// As another manager sees it.
    fn read_part(file: &StateFile) -> (StateFile, Kept<Vec<u64>>) {
        let other = StateFile::open(file.share().unwrap()).unwrap();
        let mut part: Kept<Vec<u64>> = other.read(State).unwrap();
        part.load(&other).unwrap();
        (other, part)
    }

    #[test]
    fn a_part_that_does_not_change_is_written_once_and_the_next_manager_has_it() {
        let (mut file, mut part) = (StateFile::create().unwrap(), Kept::new(vec![5; 1000]));
        write_part(&mut file, &mut part);
        let bytes = file.half.bytes;
        write_part(&mut file, &mut part);
        assert_eq!(file.half.bytes, bytes);
        let (mut heir, mut part) = read_part(&file);
        for last in 6..9 {
            write_part(&mut heir, &mut part);
            assert_eq!(read_part(&heir).1, part);
            part.push(last);
        }
    }

    #[test]
    fn what_the_state_does_not_name_any_more_takes_no_room() {
        let (mut file, mut part) = (StateFile::create().unwrap(), Kept::new(vec![0; 100_000]));
        let mut other = Kept::new(vec![8u64; 100]);
        for round in 0..200 {
            part.push(round);
            file.keep(|store| part.keep(store).and_then(|()| other.keep(store))).unwrap();
            file.write(State, &(&part, &other)).unwrap();
        }
        let (other_file, state) = (StateFile::open(file.share().unwrap()).unwrap(), file.read(State));
        let (mut part, mut other): (Kept<Vec<u64>>, Kept<Vec<u64>>) = state.unwrap();
        part.load(&other_file).and_then(|()| other.load(&other_file)).unwrap();
        assert_eq!((part.len(), other.as_slice()), (100_200, &[8; 100][..]));
        let taken = fstat(&file.file).unwrap().st_blocks as u64 * 512;
        assert!(taken < 4 * MUCH, "{taken} bytes");
    }

    #[test]
    fn where_parts_lie_is_not_believed_after_a_failure() {
        let (mut file, mut part) = (StateFile::create().unwrap(), Kept::new(vec![5; 1000]));
        write_part(&mut file, &mut part);
        part.push(6);
        let cannot = postcard::Error::SerializeBufferFull;
        let failed = file.keep(|store| {
            part.keep(store)?;
            store.put(&mut |_| Err(cannot.clone())).map(drop)
        });
        assert!(failed.is_err());
        assert!(matches!(file.read::<Kept<Vec<u64>>>(State), Err(FileError::None)), "it is void");
        let mut other = Kept::new(vec![9u64; 4000]);
        for _ in 0..2 {
            file.keep(|store| other.keep(store).and_then(|()| part.keep(store))).unwrap();
            file.write(State, &part).unwrap();
            assert_eq!(read_part(&file).1, part);
        }
    }

    #[test]
    fn records_do_not_touch_each_other() {
        let (mut file, _) = example();
        assert!(matches!(file.read::<Vec<u64>>(History), Err(FileError::None)));
        file.write(History, &"ended".to_string()).unwrap();
        assert_eq!((read(&file), file.read::<String>(History).unwrap()), (2, "ended".into()));
    }

    #[test]
    fn a_text_torn_at_any_byte_leaves_the_one_before() {
        let (mut file, length) = example();
        let mut before = vec![0; length];
        file.write(State, &vec![3u64; 13]).unwrap();
        file.file.read_exact_at(&mut before, State.slot(3)).unwrap();
        file.write(State, &vec![4u64; 13]).unwrap();
        // The fifth goes where the third was.
        let mut text = vec![0; length];
        file.write(State, &vec![5u64; 13]).unwrap();
        file.file.read_exact_at(&mut text, State.slot(5)).unwrap();
        for torn in 0..length {
            let bytes = [&text[..torn], &before[torn..]].concat();
            file.file.write_all_at(&bytes, State.slot(5)).unwrap();
            assert_eq!(read(&file), 4, "torn at {torn} of {length}");
        }
        file.file.write_all_at(&text, State.slot(5)).unwrap();
        assert_eq!(read(&file), 5);
    }

    #[test]
    fn a_changed_byte_leaves_the_text_before() {
        let (file, length) = example();
        let mut text = vec![0; length];
        file.file.read_exact_at(&mut text, State.slot(2)).unwrap();
        for at in 0..length {
            text[at] ^= 0x40;
            file.file.write_all_at(&text, State.slot(2)).unwrap();
            assert_eq!(read(&file), 1, "byte {at}");
            text[at] ^= 0x40;
        }
    }

    #[test]
    fn a_text_that_cannot_be_written_leaves_none() {
        let (mut file, _) = example();
        struct Unwritable;
        impl Serialize for Unwritable {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("no"))
            }
        }
        file.write(State, &Unwritable).unwrap_err();
        assert!(matches!(file.read::<Vec<u64>>(State), Err(FileError::None)));
        file.write(State, &vec![9u64]).unwrap();
        assert_eq!(read(&file), 9);
    }

    #[test]
    fn the_files_size_cannot_be_changed() {
        let (file, _) = example();
        assert!(file.file.set_len(1).is_err() && file.file.set_len(SIZE + 1).is_err());
        assert!(tidegate_ffi::wire::is_sealed(std::os::fd::AsFd::as_fd(&file.file)));
        let other = os::memory_file("other").unwrap();
        assert!(matches!(StateFile::open(other), Err(FileError::None)));
    }
}
