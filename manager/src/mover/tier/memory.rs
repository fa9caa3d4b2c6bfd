//! The DRAM and the CXL tier: page-locked host memory in slabs.
//!
//! ```text
//! tier   slabs' numbers   where the memory comes from
//! dram   0 ..             the system, from anywhere
//! cxl    2³¹ ..           one NUMA node: bound, touched, page-locked, and then looked at whether it is still there
//!                         or a device of memory: the n-th slab is the n-th part of this GPU's part
//! ```
//! Slabs are got ahead of need (`warmth`), else as they are needed, up to the share, and kept while tenants come and
//! go: getting and page-locking costs 0.1 to 0.5 s per GiB, ten times what a copy of as many bytes takes. They are given
//! back where the share becomes smaller, or one by one when they have not been needed for long.
//!
//! Memory that does not stay on its node is refused, and no more is got, until a tenant has died: what is saved
//! goes to the next tier.
//!
//! A part of the share may be set apart for memory that others make: pieces in a GPU's place.
//!
//! Invariant (I6): the slabs' sizes add up to `held`, and with what is set apart to `share` at most; each byte
//! of them is in the free list, or handed out.

#![forbid(unsafe_code)]

use super::free_list::FreeList;
use super::shortage::Shortage;
use super::{ARENA, Extent, Room, SlabId, SlabNews, TierError, ZEROS};
use crate::mover::CxlPart;
use crate::mover::copy::{Gpu, HostMemory, HostMemoryError, HostRange, Place, page_bytes};
use crate::mover::progress;
use crate::numa::cxl::CxlPlace;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use tidegate_ffi::os;

/// The first slab of the CXL tier; those of the DRAM tier have lower numbers.
const FIRST_CXL: u32 = 1 << 31;

/// Host memory for saved bytes, up to a share.
pub struct Memory {
    name: &'static str,
    source: Source,
    share: u64,
    slab_bytes: u64,
    held: u64,
    apart: u64,
    slabs: BTreeMap<SlabId, HostMemory>,
    first: u32,
    next: u32,
    free: FreeList,
    shortage: Shortage,
    /// Why no more of its memory can be used.
    refused: Option<String>,
    news: Vec<SlabNews>,
    /// For whom slabs are page-locked; `None` once that has failed.
    locks_for: Option<Rc<Gpu>>,
}

/// Where slabs come from.
enum Source {
    System,
    Node(u32),
    Device { path: PathBuf, start: u64, file: Option<OwnedFd> },
}

impl Memory {
    /// The DRAM tier: at most `share` bytes in slabs of at most `slab_bytes` bytes (both in whole
    /// pages), page-locked for `gpu`.
    pub fn dram(share: u64, slab_bytes: u64, gpu: Option<Rc<Gpu>>) -> Self {
        Self::new("dram", Source::System, 0, share, slab_bytes, gpu)
    }

    /// The CXL tier: a part of a node's or a device's memory; without one, none.
    pub fn cxl(part: Option<&CxlPart>, slab_bytes: u64, gpu: Option<Rc<Gpu>>) -> Self {
        let (source, share) = match part {
            None => (Source::System, 0),
            Some(CxlPart { place: CxlPlace::Node(node), bytes, .. }) => (Source::Node(*node), *bytes),
            Some(CxlPart { place: CxlPlace::Device(path), start, bytes }) => {
                (Source::Device { path: path.clone(), start: *start, file: None }, *bytes)
            }
        };
        let align = part.map_or(1, |part| part.place.align().unwrap_or(1));
        Self::new("cxl", source, FIRST_CXL, share, slab_bytes.next_multiple_of(align), gpu)
    }

    fn new(
        name: &'static str,
        source: Source,
        first: u32,
        share: u64,
        slab_bytes: u64,
        gpu: Option<Rc<Gpu>>,
    ) -> Self {
        Self {
            name,
            source,
            share: pages(share),
            slab_bytes: pages(slab_bytes).max(page_bytes()),
            held: 0,
            apart: 0,
            slabs: BTreeMap::new(),
            first,
            next: first,
            free: FreeList::default(),
            shortage: Shortage::new(name.to_uppercase(), "what finds room nowhere else stays on the GPU"),
            refused: None,
            news: Vec::new(),
            locks_for: gpu,
        }
    }

    /// Takes over the slabs of a mover that died, with the saved bytes in them. They are
    /// page-locked when memory is got ahead of need.
    pub fn adopt(&mut self, slabs: Vec<(SlabId, OwnedFd)>, mut saved: Vec<Extent>) -> Result<(), TierError> {
        saved.sort_unstable();
        let mut saved = saved.into_iter().peekable();
        for (slab, file) in slabs {
            let memory = self.adopt_one(slab, file)?;
            progress::step();
            let mut next = 0;
            while let Some(extent) = saved.next_if(|extent| extent.slab <= slab) {
                let inside = extent.end() <= memory.bytes();
                if extent.slab != slab || extent.start < next || !inside {
                    return Err(TierError::Contradiction(extent));
                }
                self.give_hole(slab, next, extent.start);
                next = extent.end();
            }
            self.give_hole(slab, next, memory.bytes());
            self.held += memory.bytes();
            self.next = self.next.max(slab.0 + 1);
            self.slabs.insert(slab, memory);
        }
        self.share = self.share.max(self.held + self.apart);
        saved.next().map_or(Ok(()), |extent| Err(TierError::Contradiction(extent)))
    }

    fn adopt_one(&mut self, slab: SlabId, file: OwnedFd) -> Result<HostMemory, TierError> {
        if let Source::Device { file: device @ None, .. } = &mut self.source {
            *device = Some(os::duplicate(&file)?);
        }
        let memory = HostMemory::adopt(file, self.size_of(slab), self.place_of(slab));
        memory.map_err(|error| self.none(error))
    }

    /// Where a slab comes from.
    fn place_of(&self, slab: SlabId) -> Place<'_> {
        match &self.source {
            Source::Node(node) => Place::Node(*node),
            Source::Device { start, file: Some(file), .. } => Place::File(file, start + self.offset_of(slab)),
            Source::System | Source::Device { .. } => Place::Anywhere,
        }
    }

    /// Where a slab begins in this GPU's part of a device.
    fn offset_of(&self, slab: SlabId) -> u64 {
        u64::from(slab.0 - self.first).saturating_mul(self.slab_bytes)
    }

    /// How large a new slab is: of a device, as much as there is at its place.
    fn size_of(&self, slab: SlabId) -> u64 {
        let taken = match self.source {
            Source::Device { .. } => self.offset_of(slab),
            _ => self.held + self.apart,
        };
        self.slab_bytes.min(self.share.saturating_sub(taken))
    }

    /// Gives free slabs back until there are no more than so many bytes in slabs, as far as there are any.
    fn shrink_to(&mut self, bytes: u64) {
        for slab in self.free_slabs() {
            if self.held > bytes {
                self.give_back(slab);
            }
        }
    }

    /// Sees that so many bytes more of the share can be [set apart](Self::set_apart).
    pub fn make_room_apart(&mut self, bytes: u64) -> Result<(), TierError> {
        self.shrink_to(self.share.saturating_sub(self.apart.saturating_add(bytes)));
        let left = self.share.saturating_sub(self.held + self.apart);
        if bytes > left { Err(self.full(bytes)) } else { Ok(()) }
    }

    /// So many bytes of the share are memory that lies in no slab.
    pub fn set_apart(&mut self, bytes: u64) {
        self.apart = bytes;
        // What another mover has made is there, whatever the share.
        self.share = self.share.max(self.held + bytes);
        self.shortage.note_room(self.room());
    }

    /// Of the slabs in which something is saved, the one with the fewest such bytes.
    pub fn emptiest(&self) -> Option<SlabId> {
        let used =
            |(&slab, memory): (&SlabId, &HostMemory)| (memory.bytes() - self.free.bytes_in(slab), slab);
        self.slabs.iter().map(used).filter(|(used, _)| *used > 0).min().map(|(_, slab)| slab)
    }

    /// Takes all holes of a slab.
    pub fn take_holes(&mut self, slab: SlabId) -> Vec<Extent> {
        self.free.take_all_in(slab)
    }

    /// Hands out at most so many bytes of the slabs that there are.
    pub fn take_held(&mut self, bytes: u64) -> Vec<Extent> {
        self.free.take(bytes.min(self.free.bytes())).unwrap_or_default()
    }

    /// The slabs of which nothing is handed out.
    fn free_slabs(&self) -> Vec<Extent> {
        let whole =
            |(&slab, memory): (&SlabId, &HostMemory)| Extent { slab, start: 0, bytes: memory.bytes() };
        self.slabs.iter().map(whole).filter(|slab| self.free.is_hole(*slab)).collect()
    }

    /// Gives a slab back of which nothing is handed out.
    fn give_back(&mut self, slab: Extent) {
        self.free.take_hole(slab);
        self.slabs.remove(&slab.slab);
        progress::step();
        self.news.push(SlabNews::GivenBack(slab.slab));
        self.held -= slab.bytes;
    }

    /// Bytes in slabs: got from the system, handed out or not.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether the share reaches further than the slabs.
    pub fn can_grow(&self) -> bool {
        self.refused.is_none() && self.size_of(self.new_slab()) > 0
    }

    /// Gives one slab back of which nothing is handed out, but not the last of all; `false`: there is none.
    pub fn give_one_back(&mut self) -> bool {
        self.last_free_slab().map(|slab| self.give_back(slab)).is_some()
    }

    /// How many bytes are in the slab that would be given back next, if there is one.
    pub fn next_to_give(&self) -> Option<u64> {
        self.last_free_slab().map(|slab| slab.bytes)
    }

    fn last_free_slab(&self) -> Option<Extent> {
        self.free_slabs().pop().filter(|_| self.slabs.len() > 1)
    }

    fn give_hole(&mut self, slab: SlabId, start: u64, end: u64) {
        if end > start {
            self.free.give(Extent { slab, start, bytes: end - start });
        }
    }

    /// Gets one slab more.
    pub fn grow(&mut self) -> Result<(), TierError> {
        if let Some(why) = &self.refused {
            return Err(TierError::Refused { tier: self.name, why: why.clone() });
        }
        self.open()?;
        let slab = self.new_slab();
        let bytes = self.size_of(slab);
        let memory = HostMemory::new(bytes, self.place_of(slab)).and_then(|mut memory| {
            self.lock(&mut memory);
            memory.verify()?;
            Ok(memory)
        });
        progress::step();
        let memory = memory.map_err(|error| self.none(error))?;
        self.news.push(SlabNews::Made(slab, memory.share()?));
        self.next = self.next.max(slab.0 + 1);
        self.slabs.insert(slab, memory);
        self.held += bytes;
        self.free.give(Extent { slab, start: 0, bytes });
        Ok(())
    }

    /// Opens the device, if it is one.
    fn open(&mut self) -> Result<(), TierError> {
        let Source::Device { path, file: file @ None, .. } = &mut self.source else { return Ok(()) };
        let device = os::open(|| File::options().read(true).write(true).open(&path));
        match device {
            Ok(device) => *file = Some(device.into()),
            Err(error) => {
                let why = format!("{}: {error}", path.display());
                return Err(self.refuse(why));
            }
        }
        Ok(())
    }

    /// The number of the next slab: of a device, of its first part that is not in use.
    fn new_slab(&self) -> SlabId {
        let unused = |slab: &SlabId| !self.slabs.contains_key(slab);
        match self.source {
            Source::Device { .. } => {
                (self.first..ZEROS.0).map(SlabId).find(unused).unwrap_or(SlabId(self.next))
            }
            _ => SlabId(self.next),
        }
    }

    /// There is no memory, or none that could be used.
    fn none(&mut self, error: HostMemoryError) -> TierError {
        match error.is_shortage() {
            true => TierError::Host { tier: self.name, error },
            false => self.refuse(error.to_string()),
        }
    }

    /// No more memory is got: it is not what it should be.
    fn refuse(&mut self, why: String) -> TierError {
        let title = self.shortage.title();
        tracing::warn!(%why, "the {title} tier takes no more bytes: what is saved goes to the next tier");
        self.refused = Some(why.clone());
        TierError::Refused { tier: self.name, why }
    }

    /// Page-locks a slab. What cannot be locked works too, only more slowly.
    fn lock(&mut self, memory: &mut HostMemory) {
        let Some(gpu) = &self.locks_for else { return };
        if let Err(error) = memory.lock(gpu) {
            tracing::warn!(%error, "host memory cannot be page-locked (ulimit -l?): saving is slower from now on");
            self.locks_for = None;
        }
    }

    pub(super) fn full(&self, wanted: u64) -> TierError {
        TierError::Full { tier: self.name, wanted, free: self.room(), share: self.share }
    }

    /// Gets some memory ahead of need, if there is none yet.
    pub fn prepare(&mut self) -> Result<(), TierError> {
        if self.slabs.is_empty() && self.share > 0 {
            return self.grow();
        }
        let mut slabs = std::mem::take(&mut self.slabs);
        for memory in slabs.values_mut().filter(|memory| !memory.is_locked()) {
            self.lock(memory);
            progress::step();
            if let Err(error) = memory.verify() {
                // What is saved there is as safe elsewhere.
                self.none(error);
            }
        }
        self.slabs = slabs;
        Ok(())
    }

    /// The memory of an extent.
    pub fn memory(&self, extent: Extent) -> Result<HostRange<'_>, TierError> {
        let memory = self.slabs.get(&extent.slab).ok_or(TierError::Unknown(extent))?;
        memory.range(extent.start, extent.bytes).map_err(|_| TierError::Unknown(extent))
    }

    /// Bytes that the tier has got from the system and that are not handed out.
    fn held_free(&self) -> u64 {
        self.free.bytes()
    }
}

impl Room for Memory {
    fn is_there(&self) -> bool {
        self.share > 0
    }

    fn has(&self, slab: SlabId) -> bool {
        (slab.0 >= FIRST_CXL) == (self.first == FIRST_CXL) && slab != ARENA && slab != ZEROS
    }

    fn room(&self) -> u64 {
        match self.refused {
            Some(_) => self.held_free(),
            None => self.share - self.used(),
        }
    }

    fn used(&self) -> u64 {
        self.held - self.free.bytes() + self.apart
    }

    fn set_share(&mut self, bytes: u64) -> u64 {
        let bytes = pages(bytes);
        self.shrink_to(bytes.saturating_sub(self.apart));
        self.share = bytes.max(self.held + self.apart);
        self.shortage.note_room(self.room());
        self.share
    }

    fn take(&mut self, bytes: u64) -> Result<Vec<Extent>, TierError> {
        if bytes > self.room() && self.refused.is_none() {
            return Err(self.full(bytes));
        }
        while self.free.bytes() < bytes {
            self.grow()?;
        }
        self.free.take(bytes).ok_or_else(|| self.full(bytes))
    }

    fn shortage(&mut self) -> &mut Shortage {
        &mut self.shortage
    }

    fn allocate_most(&mut self, bytes: u64) -> Vec<Extent> {
        match bytes.min(self.room()) {
            0 => Vec::new(),
            // Where the system has no memory for a larger share, what there is of it has to do.
            some => {
                let in_full = self.allocate(some);
                in_full.or_else(|_| self.allocate(self.held_free())).unwrap_or_default()
            }
        }
    }

    fn free(&mut self, extent: Extent) {
        self.free.give(extent);
        // What the tier holds can be handed out for sure; the rest of its share perhaps.
        self.shortage.note_room(self.free.bytes());
    }

    fn trim(&mut self) {
        self.refused = None;
    }

    fn share(&self) -> std::io::Result<Vec<(SlabId, OwnedFd)>> {
        self.slabs.iter().map(|(slab, memory)| Ok((*slab, memory.share()?))).collect()
    }

    fn news(&mut self) -> Vec<SlabNews> {
        std::mem::take(&mut self.news)
    }
}

fn pages(bytes: u64) -> u64 {
    bytes - bytes % page_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << 16; // a multiple of any page size in use

    fn tier(share: u64, slab: u64) -> Memory {
        Memory::dram(share * PAGE, slab * PAGE, None)
    }

    fn bytes_of(extents: &[Extent]) -> u64 {
        extents.iter().map(|extent| extent.bytes).sum()
    }

    #[test]
    fn the_share_is_never_exceeded() {
        let mut tier = tier(5, 2);
        let extents = tier.allocate(5 * PAGE - 1).unwrap();
        assert_eq!((bytes_of(&extents), tier.held), (5 * PAGE - 1, 5 * PAGE));
        let error = tier.allocate(2).unwrap_err();
        assert!(matches!(error, TierError::Full { wanted: 2, free: 1, .. }) && error.is_out_of_memory());
        extents.into_iter().for_each(|extent| tier.free(extent));
        assert_eq!(bytes_of(&tier.allocate(5 * PAGE).unwrap()), 5 * PAGE);
        assert!(matches!(Memory::dram(PAGE / 100, PAGE, None).allocate(1), Err(TierError::Full { .. })));
    }

    #[test]
    fn a_full_tier_says_so_once_and_so_does_one_that_is_well_again() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let subscriber =
            tracing_subscriber::fmt().with_writer(std::sync::Mutex::new(log.reopen().unwrap())).finish();
        let said = || {
            let text = std::fs::read_to_string(log.path()).unwrap();
            (text.matches("is full").count(), text.matches("room again").count())
        };
        tracing::subscriber::with_default(subscriber, || {
            // While there is only one subscriber, a line of the code that a thread without one comes to first is never told.
            let _second =
                tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
            let mut tier = tier(4, 2);
            let [one, two] = [1, 3].map(|pages| tier.allocate(pages * PAGE).unwrap());
            assert_eq!(said(), (0, 0));
            (0..3).for_each(|_| assert!(tier.allocate(2 * PAGE).is_err()));
            assert_eq!(said(), (1, 0));
            one.into_iter().for_each(|extent| tier.free(extent));
            assert!(tier.allocate(2 * PAGE).is_err());
            assert_eq!(said(), (1, 0), "one page is not the room that was refused");
            two.into_iter().for_each(|extent| tier.free(extent));
            assert_eq!(said(), (1, 1));
            tier.allocate(2 * PAGE).unwrap();
            assert_eq!(said(), (1, 1));
            assert!(tier.allocate(3 * PAGE).is_err());
            assert_eq!(said(), (2, 1));
        });
    }

    #[test]
    fn memory_is_got_ahead_once_and_kept_between_switches() {
        let mut tier = tier(8, 2);
        tier.prepare().unwrap();
        tier.prepare().unwrap();
        assert_eq!((tier.held, tier.used()), (2 * PAGE, 0));
        let extents = tier.allocate(6 * PAGE).unwrap();
        extents.into_iter().for_each(|extent| tier.free(extent));
        assert_eq!((tier.held, tier.used()), (6 * PAGE, 0));
    }

    #[test]
    fn wholly_free_slabs_but_one_are_given_back_one_by_one() {
        let mut tier = tier(8, 2);
        let kept = tier.allocate(PAGE).unwrap();
        let freed = tier.allocate(7 * PAGE).unwrap();
        freed.into_iter().for_each(|extent| tier.free(extent));
        assert_eq!((tier.give_one_back(), tier.held), (true, 6 * PAGE));
        assert_eq!((tier.give_one_back(), tier.held, tier.used()), (true, 4 * PAGE, PAGE));
        while tier.give_one_back() {}
        assert_eq!((tier.held, tier.used()), (2 * PAGE, PAGE));
        assert!(kept.iter().all(|extent| tier.memory(*extent).is_ok()));
        assert_eq!(bytes_of(&tier.allocate(7 * PAGE).unwrap()), 7 * PAGE);
        let mut idle = self::tier(8, 2);
        idle.grow().unwrap();
        assert!(!idle.give_one_back(), "the last one stays");
        (0..3).for_each(|_| idle.grow().unwrap());
        assert!(!idle.can_grow());
    }

    #[test]
    fn a_share_grows_and_shrinks_as_far_as_nothing_is_in_it() {
        let mut tier = tier(4, 2);
        let kept = tier.allocate(PAGE).unwrap();
        let freed = tier.allocate(3 * PAGE).unwrap();
        assert_eq!((tier.set_share(2 * PAGE), tier.held), (4 * PAGE, 4 * PAGE), "all of it is in use");
        freed.into_iter().for_each(|extent| tier.free(extent));
        tier.news();
        assert_eq!((tier.set_share(PAGE), tier.held), (2 * PAGE, 2 * PAGE));
        assert!(matches!(tier.news()[..], [SlabNews::GivenBack(_)]));
        assert!(kept.iter().all(|extent| tier.memory(*extent).is_ok()));
        assert!(tier.allocate(2 * PAGE).is_err());
        assert_eq!(tier.set_share(8 * PAGE + 1), 8 * PAGE);
        assert_eq!(bytes_of(&tier.allocate(7 * PAGE).unwrap()), 7 * PAGE);
    }

    #[test]
    fn extents_of_nobody_have_no_memory() {
        let mut tier = tier(2, 2);
        tier.prepare().unwrap();
        for (slab, start, bytes) in [(7, 0, 1), (0, 2 * PAGE, 1), (0, 1, 2 * PAGE), (0, u64::MAX, 2)] {
            let extent = Extent { slab: SlabId(slab), start, bytes };
            assert!(matches!(tier.memory(extent), Err(TierError::Unknown(_))));
        }
    }
}
