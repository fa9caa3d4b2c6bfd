//! The save index where it outlives the mover: a log in a memory file that the manager holds too.
//!
//! ```text
//! ├─ header │ rows ──────┼─ header │ rows ─┼─ …
//!   step, what happened, how many rows, checksum of all of it
//! ```
//! Each entry is one change of the index by one order, whole or not at all: a torn one fails its
//! checksum, and the log ends before it. Entries are numbered, so that what an older log has left
//! behind the end is none. A mover writes its order's entry when the bytes have been copied, and
//! answers then (bytes → index → answer, DESIGN §8). So at most the last entry is of an order that
//! was not answered, or the last two, of orders that were carried out at once. Such an order is given again to the next
//! mover, for whom the entry is void: what was to be saved lies in its pieces still, what was to be restored in the
//! tier.
//!
//! Invariant: replayed, less the orders that are given again, the log gives the index.

#![forbid(unsafe_code)]

use super::index::Index;
use super::plan::Part;
use super::tier::{ARENA, Extent, Seal, SlabId};
use crate::death;
use rustix::fs::SealFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use tidegate_ffi::os;
use tidegate_ffi::units::{Class, Step, TenantId};
use tidegate_ffi::wire::message::Move;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The first bytes of every entry.
const MARK: u64 = u64::from_le_bytes(*b"tidelog1");
/// The step of entries that no order can undo.
const NO_STEP: Step = Step(0);
/// A log that is shorter is not written anew, however little of it still counts.
const WORTH_IT: u64 = 1 << 20;
/// Rows in one entry of a log that is written anew.
const ROWS: usize = 8192;
/// In the place of a class: the row is the seal of a block on disk, its checksum where others have a place.
const SEAL: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Rows were saved.
    Saved = 1,
    /// Rows were restored.
    Restored = 2,
    /// The rows' tenants are gone.
    Gone = 3,
    /// Rows that were saved lie elsewhere now.
    Moved = 4,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
struct Header {
    mark: u64,
    number: u64,
    step: u64,
    kind: u32,
    rows: u32,
    /// Of the header with 0 here, and of the rows.
    checksum: u64,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
struct Row {
    tenant: u64,
    at: u64,
    bytes: u64,
    start: u64,
    slab: u32,
    class: u32,
}

/// The log of one mover.
pub struct Journal {
    file: File,
    end: u64,
    entries: u64,
}

impl Journal {
    /// An empty log.
    pub fn new() -> io::Result<Self> {
        let file = os::memory_file("tidegate-index")?;
        os::seal(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self { file: file.into(), end: 0, entries: 0 })
    }

    /// A log from which this index comes, and these seals.
    pub fn of(index: &Index, seals: impl Iterator<Item = Seal>) -> io::Result<Self> {
        let mut journal = Self::new()?;
        let entries = index.entries().map(|(tenant, class, at, e)| row(tenant, class, at, e));
        let rows: Vec<Row> = entries.chain(seals.map(sealed)).collect();
        for rows in rows.chunks(ROWS) {
            journal.append(NO_STEP, Kind::Saved, rows)?;
        }
        Ok(journal)
    }

    /// A descriptor of the log, for the manager.
    pub fn share(&self) -> io::Result<OwnedFd> {
        os::duplicate(&self.file)
    }

    /// Whether most of the log does not count any more.
    pub fn is_stale(&self, index: &Index, seals: impl Iterator<Item = Seal>) -> bool {
        let count = || index.entries().count() + seals.count();
        self.end > WORTH_IT && self.end / 4 > (count() * size_of::<Row>()) as u64
    }

    /// `step` has saved these bytes, those on disk in blocks with these seals.
    pub fn saved(&mut self, step: Step, tenant: TenantId, parts: &[Part], seals: &[Seal]) -> io::Result<()> {
        self.append(step, Kind::Saved, &rows_of(tenant, parts, seals))
    }

    /// Bytes that were saved lie here now, whatever becomes of the order for which they were moved.
    pub fn moved(&mut self, tenant: TenantId, parts: &[Part], seals: &[Seal]) -> io::Result<()> {
        self.append(NO_STEP, Kind::Moved, &rows_of(tenant, parts, seals))
    }

    /// `step` has restored these bytes.
    pub fn restored(&mut self, step: Step, tenant: TenantId, moves: &[Move]) -> io::Result<()> {
        let nowhere = |bytes| Extent { slab: SlabId(0), start: 0, bytes };
        let rows: Vec<Row> = moves.iter().map(|m| row(tenant, m.class, m.at, nowhere(m.bytes))).collect();
        self.append(step, Kind::Restored, &rows)
    }

    /// A tenant is gone.
    pub fn gone(&mut self, tenant: TenantId) -> io::Result<()> {
        let nothing = Extent { slab: SlabId(0), start: 0, bytes: 0 };
        self.append(NO_STEP, Kind::Gone, &[row(tenant, Class::Persistent, 0, nothing)])
    }

    fn append(&mut self, step: Step, kind: Kind, rows: &[Row]) -> io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let (mark, number, count) = (MARK, self.entries, rows.len() as u32);
        let mut header = Header { mark, number, step: step.0, kind: kind as u32, rows: count, checksum: 0 };
        header.checksum = checksum(&header, rows);
        let entry = [header.as_bytes(), rows.as_bytes()].concat();
        if death::is_due("index:torn") {
            self.file.write_all_at(&entry[..entry.len() - size_of::<Row>() / 2], self.end)?;
            death::die();
        }
        os::write_at(&self.file, &entry, self.end)?;
        self.end += entry.len() as u64;
        self.entries += 1;
        Ok(())
    }
}

/// The index that a log holds, without what was done by the orders in `again`; and the seals of blocks, also of
/// those in which nothing is any more.
pub fn replay(file: &File, again: &[Step]) -> io::Result<(Index, Vec<Seal>)> {
    let mut log = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut log, 0)?;
    let (mut index, mut seals) = (Index::default(), BTreeMap::new());
    let (mut rest, mut number) = (log.as_slice(), 0);
    while let Some((header, rows, behind)) = first_entry(rest, number) {
        if !again.contains(&Step(header.step)) {
            for row in rows {
                match row.class {
                    SEAL => drop(seals.insert(row.start, seal(&row))),
                    _ => apply(&mut index, header.kind, &row),
                }
            }
        }
        rest = behind;
        number += 1;
    }
    Ok((index, seals.into_values().collect()))
}

/// The first entry of a log and what follows it; `None`: it ends here.
fn first_entry(log: &[u8], number: u64) -> Option<(Header, Vec<Row>, &[u8])> {
    let (header, rest) = Header::read_from_prefix(log).ok()?;
    let bytes = (header.rows as usize).checked_mul(size_of::<Row>())?;
    let (rows, rest) = rest.split_at_checked(bytes)?;
    let rows = rows.chunks_exact(size_of::<Row>()).map(Row::read_from_bytes);
    let rows: Vec<Row> = rows.collect::<Result<_, _>>().ok()?;
    let whole = header.mark == MARK && header.number == number;
    (whole && header.checksum == checksum(&Header { checksum: 0, ..header }, &rows))
        .then_some((header, rows, rest))
}

fn apply(index: &mut Index, kind: u32, row: &Row) {
    let tenant = TenantId(row.tenant);
    let class =
        if row.class == Class::Persistent.index() as u32 { Class::Persistent } else { Class::Temporary };
    let extent = Extent { slab: SlabId(row.slab), start: row.start, bytes: row.bytes };
    if kind == Kind::Saved as u32 {
        index.insert(tenant, class, row.at, extent);
    } else if kind == Kind::Moved as u32 {
        index.remove(tenant, class, row.at, row.bytes);
        index.insert(tenant, class, row.at, extent);
    } else if kind == Kind::Restored as u32 {
        index.remove(tenant, class, row.at, row.bytes);
    } else if kind == Kind::Gone as u32 {
        index.forget(tenant);
    }
}

fn rows_of(tenant: TenantId, parts: &[Part], seals: &[Seal]) -> Vec<Row> {
    let of_parts = parts.iter().map(|part| row(tenant, part.class, part.at, part.extent));
    of_parts.chain(seals.iter().copied().map(sealed)).collect()
}

fn row(tenant: TenantId, class: Class, at: u64, extent: Extent) -> Row {
    let class = class.index() as u32;
    Row { tenant: tenant.0, at, bytes: extent.bytes, start: extent.start, slab: extent.slab.0, class }
}

fn sealed(seal: Seal) -> Row {
    let Seal { start, bytes, checksum } = seal;
    Row { tenant: 0, at: checksum, bytes, start, slab: ARENA.0, class: SEAL }
}

fn seal(row: &Row) -> Seal {
    Seal { start: row.start, bytes: row.bytes, checksum: row.at }
}

/// FNV-1a over words: to tell a torn entry from a whole one, not to keep anybody out.
fn checksum(header: &Header, rows: &[Row]) -> u64 {
    let words = |bytes: &[u8], sum: u64| {
        let (words, _) = bytes.as_chunks::<8>();
        words.iter().fold(sum, |sum, word| (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x0100_0000_01b3))
    };
    words(rows.as_bytes(), words(header.as_bytes(), 0xcbf2_9ce4_8422_2325))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_ffi::units::PieceId;

    const TENANT: TenantId = TenantId(1);

    fn part(at: u64, start: u64, bytes: u64) -> Part {
        let extent = Extent { slab: SlabId(3), start, bytes };
        Part { piece: PieceId(1), offset: 0, class: Class::Temporary, at, extent }
    }

    fn moved(at: u64, bytes: u64) -> Move {
        Move { piece: PieceId(1), offset: 0, bytes, class: Class::Temporary, at }
    }

    fn entries(index: &Index) -> Vec<(TenantId, u64, u64)> {
        index.entries().map(|(tenant, _, at, extent)| (tenant, at, extent.start)).collect()
    }

    fn replayed(journal: &Journal, again: &[Step]) -> Vec<(TenantId, u64, u64)> {
        entries(&replay(&journal.file, again).unwrap().0)
    }

    /// Saves 10, 20 and 30 (the third for another tenant), restores 10.
    fn example() -> Journal {
        let mut journal = Journal::new().unwrap();
        journal.saved(Step(1), TENANT, &[part(10, 100, 5), part(20, 200, 5)], &[]).unwrap();
        journal.saved(Step(2), TenantId(2), &[part(30, 300, 5)], &[]).unwrap();
        journal.restored(Step(3), TENANT, &[moved(10, 5)]).unwrap();
        journal
    }

    #[test]
    fn a_replayed_log_gives_the_index() {
        let mut journal = example();
        assert_eq!(replayed(&journal, &[]), [(TENANT, 20, 200), (TenantId(2), 30, 300)]);
        journal.gone(TENANT).unwrap();
        assert_eq!(replayed(&journal, &[]), [(TenantId(2), 30, 300)]);
    }

    #[test]
    fn bytes_that_moved_lie_where_they_are_now_whatever_is_done_again() {
        let mut journal = example();
        journal.moved(TENANT, &[part(20, 700, 2), part(22, 900, 3)], &[]).unwrap();
        let wanted = [(TENANT, 20, 700), (TENANT, 22, 900), (TenantId(2), 30, 300)];
        assert_eq!(replayed(&journal, &[]), wanted);
        journal.restored(Step(4), TENANT, &[moved(20, 5)]).unwrap();
        assert_eq!(replayed(&journal, &[Step(4)]), wanted);
        assert_eq!(replayed(&journal, &[]), [(TenantId(2), 30, 300)]);
    }

    #[test]
    fn a_replayed_log_gives_the_seals_of_blocks() {
        let seal = |start, checksum| Seal { start, bytes: 7, checksum };
        let mut journal = example();
        journal.saved(Step(4), TENANT, &[part(40, 400, 5)], &[seal(0, 1), seal(4096, 2)]).unwrap();
        journal.saved(Step(5), TENANT, &[part(50, 500, 5)], &[seal(0, 3)]).unwrap();
        let seals = |journal: &Journal, again: &[Step]| replay(&journal.file, again).unwrap().1;
        assert_eq!(seals(&journal, &[]), [seal(0, 3), seal(4096, 2)]);
        assert_eq!(seals(&journal, &[Step(5)]), [seal(0, 1), seal(4096, 2)]);
        let (index, kept) = replay(&journal.file, &[]).unwrap();
        let anew = Journal::of(&index, kept.into_iter()).unwrap();
        assert_eq!(seals(&anew, &[]), [seal(0, 3), seal(4096, 2)]);
    }

    #[test]
    fn an_order_that_is_given_again_has_changed_nothing() {
        let journal = example();
        assert_eq!(
            replayed(&journal, &[Step(3)]),
            [(TENANT, 10, 100), (TENANT, 20, 200), (TenantId(2), 30, 300)]
        );
        let mut journal = example();
        journal.saved(Step(4), TENANT, &[part(40, 400, 5)], &[]).unwrap();
        assert_eq!(replayed(&journal, &[Step(4), Step(5)]), replayed(&example(), &[]));
    }

    #[test]
    fn an_entry_torn_at_any_byte_is_none() {
        let before = {
            let mut journal = Journal::new().unwrap();
            journal.saved(Step(1), TENANT, &[part(10, 100, 5), part(20, 200, 5)], &[]).unwrap();
            journal.saved(Step(2), TenantId(2), &[part(30, 300, 5)], &[]).unwrap();
            journal.end as usize
        };
        let whole = example();
        let mut log = vec![0; whole.end as usize];
        whole.file.read_exact_at(&mut log, 0).unwrap();
        let wanted = [(TENANT, 10, 100), (TENANT, 20, 200), (TenantId(2), 30, 300)];
        for torn in before..log.len() {
            // The rest is missing, or zero as a file's hole is.
            for length in [torn, log.len()] {
                let mut bytes = log[..torn].to_vec();
                bytes.resize(length, 0);
                let file = Journal::new().unwrap().file;
                file.write_all_at(&bytes, 0).unwrap();
                let changed = bytes != log;
                let index = entries(&replay(&file, &[]).unwrap().0);
                assert_eq!(index == wanted, changed, "torn at {torn} of {}", log.len());
            }
        }
    }

    #[test]
    fn a_changed_byte_ends_the_log() {
        let whole = example();
        let mut log = vec![0; whole.end as usize];
        whole.file.read_exact_at(&mut log, 0).unwrap();
        for at in 0..log.len() {
            log[at] ^= 0x40;
            let file = Journal::new().unwrap().file;
            file.write_all_at(&log, 0).unwrap();
            assert_ne!(entries(&replay(&file, &[]).unwrap().0), replayed(&whole, &[]), "byte {at}");
            log[at] ^= 0x40;
        }
    }

    #[test]
    fn what_an_older_log_left_behind_the_end_does_not_count() {
        let mut journal = Journal::new().unwrap();
        journal.saved(Step(1), TENANT, &[part(10, 100, 5)], &[]).unwrap();
        let end = journal.end;
        journal.saved(Step(2), TENANT, &[part(20, 200, 5)], &[]).unwrap();
        journal.restored(Step(3), TENANT, &[moved(10, 5)]).unwrap();
        // As if the first entry had been written over the one before: the next has a number too high.
        (journal.end, journal.entries) = (end, 2);
        journal.saved(Step(4), TENANT, &[part(40, 400, 5)], &[]).unwrap();
        assert_eq!(replayed(&journal, &[]), [(TENANT, 10, 100)]);
    }

    #[test]
    fn a_log_written_anew_holds_the_same() {
        let (index, _) = replay(&example().file, &[]).unwrap();
        assert_eq!(replayed(&Journal::of(&index, std::iter::empty()).unwrap(), &[]), entries(&index));
        let mut journal = Journal::new().unwrap();
        assert!(!journal.is_stale(&Index::default(), std::iter::empty()));
        for step in 0..(WORTH_IT / 80 + 1) {
            journal.saved(Step(step + 1), TENANT, &[part(10, 100, 5)], &[]).unwrap();
        }
        assert!(journal.is_stale(&Index::default(), std::iter::empty()));
    }

    #[test]
    fn a_log_cannot_shrink_under_its_reader() {
        assert!(example().file.set_len(1).is_err());
    }
}
