//! What lies where in this process: reserved ranges, and in them or beside them regions of memory.
//!
//! A device pointer *is* an address of the process. Invariant: regions never overlap, and what this
//! map calls accessible is mapped so in the page table, because both change under its lock.
//!
//! ```text
//! reserved  |-----------------------------------|
//! regions     [piece A, rw][piece B, no access]    [cuMemAlloc]   [pinned host memory]
//! pages     ---AAAAAAAAAAAA---------------------    CCCCCCCCCC     hhhhhhhhhhhhhhhhhh
//! ```

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Bound;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::image::Image;
use crate::memory::Block;
use crate::pool::Pool;
use crate::vmm::{Location, Piece};

/// The map of this process.
#[derive(Default)]
pub struct Space {
    reserved: BTreeMap<usize, usize>,
    regions: BTreeMap<usize, Region>,
}

/// A run of addresses with one meaning.
#[derive(Clone)]
pub struct Region {
    /// First address.
    pub start: usize,
    /// Bytes.
    pub size: usize,
    /// What it is.
    pub kind: Kind,
}

/// What a region is.
#[derive(Clone)]
pub enum Kind {
    /// A piece in a reserved range.
    Mapped(Mapping),
    /// `cuMemAlloc` in the context of that handle, or `cuMemAllocAsync` from a pool.
    Allocated { block: Arc<Block>, device: usize, context: usize, pool: Option<Arc<Pool>> },
    /// A variable of a module on that device.
    Global { device: usize, context: usize, image: Arc<Image> },
    /// Managed memory, which lies on the host.
    Managed { device: usize, context: usize },
    /// An allocation of another process.
    Opened { device: usize, context: usize },
    /// Pinned host memory, ours to unmap unless `registered`.
    Pinned { context: usize, flags: u32, registered: bool },
}

/// A piece mapped into a reserved range.
#[derive(Clone)]
pub struct Mapping {
    /// What is mapped.
    pub piece: Arc<Piece>,
    /// Who may read, a bit per accessor.
    pub read: u64,
    /// Who may write, a bit per accessor.
    pub write: u64,
    /// Whether its pages are in the page table (else nobody has had access yet).
    present: bool,
}

/// The accessor bit of the host; devices have the bit of their ordinal.
pub const HOST_BIT: u64 = 1 << 63;

/// Which memory one side of an operation may touch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    /// What a device sees: device memory and pinned host memory.
    Device,
    /// That, and any host memory.
    Anywhere,
}

/// A run of addresses that an operation is about to touch.
#[derive(Clone, Copy)]
pub struct Touch {
    pub start: usize,
    pub bytes: usize,
    pub side: Side,
    pub write: bool,
}

static SPACE: RwLock<Space> = RwLock::new(Space { reserved: BTreeMap::new(), regions: BTreeMap::new() });

/// The map, to look at.
pub fn look() -> RwLockReadGuard<'static, Space> {
    SPACE.read()
}

/// The map, to change.
pub fn change() -> RwLockWriteGuard<'static, Space> {
    SPACE.write()
}

impl Space {
    /// The region that contains an address.
    pub fn find(&self, address: usize) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.end()).then_some(region)
    }

    /// Whether the GPU with that ordinal may do that.
    pub fn allows(&self, device: usize, touch: Touch) -> bool {
        if touch.bytes == 0 {
            return true;
        }
        let Some(end) = touch.start.checked_add(touch.bytes) else { return false };
        let ours = touch.side == Side::Device || self.touches_device(touch.start, end);
        !ours || self.accessible(device, touch, end)
    }

    /// Whether the range is wholly pinned host memory.
    pub fn is_pinned(&self, start: usize, bytes: usize) -> bool {
        let region = self.find(start).filter(|region| region.kind.is_on_host());
        region.is_some_and(|region| start + bytes <= region.end())
    }

    /// Whether an address is in host memory that GPUs reach.
    pub fn is_on_host(&self, address: usize) -> bool {
        self.hosted_bytes(address) > 0 || self.find(address).is_some_and(|region| region.kind.is_on_host())
    }

    /// Whether any of the range is device memory or reserved for it.
    pub fn touches_device(&self, start: usize, end: usize) -> bool {
        let device = |region: &Region| !region.kind.is_on_host();
        self.overlapping(start, end).any(device) || self.overlaps_reservation(start, end)
    }

    fn accessible(&self, device: usize, touch: Touch, end: usize) -> bool {
        let mut at = touch.start;
        while at < end {
            match self.find(at) {
                Some(region) if region.allows(device, touch.write) => at = region.end(),
                _ => return false,
            }
        }
        true
    }

    /// Bytes from an address to the end of the piece of host memory that is mapped there; 0 if none is.
    pub fn hosted_bytes(&self, address: usize) -> usize {
        let is_hosted = |region: &&Region| match &region.kind {
            Kind::Mapped(mapping) => matches!(mapping.piece.location, Location::Host(..)),
            _ => false,
        };
        self.find(address).filter(is_hosted).map_or(0, |region| region.end() - address)
    }

    /// The regions that share an address with `start..end`.
    pub fn overlapping(&self, start: usize, end: usize) -> impl Iterator<Item = &Region> {
        let before = self.find(start).filter(|region| region.start < start);
        let inside = self.regions.range(start..end.max(start)).map(|(_, region)| region);
        before.into_iter().chain(inside)
    }

    /// Adds a region, unless something lies there.
    pub fn add(&mut self, region: Region) -> bool {
        let free = self.overlapping(region.start, region.end()).next().is_none();
        if free {
            self.regions.insert(region.start, region);
        }
        free
    }

    /// Takes out the region that starts at `start`, if `wanted`.
    pub fn take(&mut self, start: usize, wanted: impl Fn(&Region) -> bool) -> Option<Region> {
        self.regions.get(&start).filter(|region| wanted(region))?;
        self.regions.remove(&start)
    }

    /// Takes out what belongs to a context that ends.
    pub fn take_all_of(&mut self, context: usize) -> Vec<Region> {
        self.take_where(|region| region.context() == Some(context))
    }

    /// Takes out all that are `wanted`.
    pub fn take_where(&mut self, wanted: impl Fn(&Region) -> bool) -> Vec<Region> {
        let starts = self.regions.values().filter(|region| wanted(region));
        let starts: Vec<usize> = starts.map(|region| region.start).collect();
        starts.iter().filter_map(|start| self.regions.remove(start)).collect()
    }

    /// Reserves `size` addresses, at `hint` if that is free.
    pub fn reserve(&mut self, size: usize, align: usize, hint: usize) -> Result<usize, Errno> {
        let start = reserve_at(hint, size).or_else(|_| reserve_aligned(size, align))?;
        self.reserved.insert(start, size);
        Ok(start)
    }

    /// Gives a reserved range back, if it is one and nothing is mapped in it.
    pub fn unreserve(&mut self, start: usize, size: usize) -> bool {
        let known = self.reserved.get(&start) == Some(&size);
        if !known || self.overlapping(start, start + size).next().is_some() {
            return false;
        }
        self.reserved.remove(&start);
        release(start, size);
        true
    }

    /// The reserved range that contains `start..start + size`.
    pub fn reservation(&self, start: usize, size: usize) -> Option<(usize, usize)> {
        let (base, length) = self.reserved.range(..=start).next_back()?;
        (start + size <= base + length).then_some((*base, *length))
    }

    fn overlaps_reservation(&self, start: usize, end: usize) -> bool {
        let below = (Bound::Unbounded, Bound::Excluded(end));
        self.reserved.range(below).next_back().is_some_and(|(base, size)| base + size > start)
    }

    /// The mappings that exactly fill a range, by start.
    pub fn mappings_filling(&self, start: usize, size: usize) -> Option<Vec<usize>> {
        let mut starts = Vec::new();
        let mut at = start;
        while at < start.checked_add(size)? {
            let region = self.regions.get(&at)?;
            matches!(region.kind, Kind::Mapped(_)).then_some(())?;
            starts.push(at);
            at = region.end();
        }
        (at == start + size).then_some(starts)
    }

    /// The mappings in a part of a reserved range, by start; `None` where one lies in it only partly.
    pub fn mappings_inside(&self, start: usize, size: usize) -> Option<Vec<usize>> {
        self.reservation(start, size)?;
        let end = start + size;
        let below = self.regions.range(..end).rev().map(|(_, region)| region);
        let mut touched = below
            .take_while(|region| region.end() > start)
            .filter(|region| matches!(region.kind, Kind::Mapped(_)));
        touched.try_fold(Vec::new(), |mut starts, region| {
            (region.start >= start && region.end() <= end).then(|| starts.push(region.start))?;
            Some(starts)
        })
    }

    /// Grants accessors (`who`, a bit each) access to the mapping at `start`.
    pub fn grant(&mut self, start: usize, who: u64, read: bool, write: bool) -> Result<(), Errno> {
        let Some(region) = self.regions.get_mut(&start) else { return Ok(()) };
        let size = region.size;
        let Kind::Mapped(mapping) = &mut region.kind else { return Ok(()) };
        mapping.read = if read { mapping.read | who } else { mapping.read & !who };
        mapping.write = if write { mapping.write | who } else { mapping.write & !who };
        mapping.show(start, size)
    }

    /// Takes a mapping out of the map and of the page table; its range stays reserved.
    pub fn unmap(&mut self, start: usize) -> Option<Region> {
        let region = self.take(start, |region| matches!(region.kind, Kind::Mapped(_)))?;
        blank(region.start, region.size);
        Some(region)
    }
}

impl Region {
    /// The address after the last.
    pub fn end(&self) -> usize {
        self.start + self.size
    }

    /// The context it goes with.
    pub fn context(&self) -> Option<usize> {
        match &self.kind {
            Kind::Mapped(_) => None,
            Kind::Allocated { context, .. }
            | Kind::Global { context, .. }
            | Kind::Managed { context, .. }
            | Kind::Opened { context, .. }
            | Kind::Pinned { context, .. } => Some(*context),
        }
    }

    fn allows(&self, device: usize, write: bool) -> bool {
        match &self.kind {
            Kind::Mapped(mapping) if write => mapping.write & (1 << device) != 0,
            Kind::Mapped(mapping) => mapping.read & (1 << device) != 0,
            Kind::Allocated { .. }
            | Kind::Global { .. }
            | Kind::Managed { .. }
            | Kind::Opened { .. }
            | Kind::Pinned { .. } => true,
        }
    }
}

impl Kind {
    /// Whether it is host memory that GPUs reach.
    fn is_on_host(&self) -> bool {
        matches!(self, Kind::Pinned { .. } | Kind::Managed { .. })
    }
}

impl Mapping {
    /// A mapping nobody may access yet.
    pub fn hidden(piece: Arc<Piece>) -> Mapping {
        Mapping { piece, read: 0, write: 0, present: false }
    }

    /// Makes the page table agree with the rights.
    fn show(&mut self, start: usize, size: usize) -> Result<(), Errno> {
        let mut rights = ProtFlags::empty();
        rights.set(ProtFlags::READ, (self.read | self.write) != 0);
        rights.set(ProtFlags::WRITE, self.write != 0);
        if self.present {
            return protect(start, size, rights);
        }
        self.present = !rights.is_empty();
        if self.present { place(start, size, rights, &self.piece) } else { Ok(()) }
    }
}

/// Maps a piece anywhere, readable and writable.
pub fn map_anywhere(size: usize, piece: &impl AsFd) -> Result<usize, Errno> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    // SAFETY: the system picks addresses that nobody uses.
    let at = unsafe { rustix::mm::mmap(null, size, rights, MapFlags::SHARED, piece.as_fd(), 0) };
    at.map(|at| at as usize)
}

/// Zeroed private host memory.
pub fn map_host(size: usize) -> Result<usize, Errno> {
    anonymous(0, size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::empty())
}

/// Gives addresses back to the system.
pub fn release(start: usize, size: usize) {
    // SAFETY: callers pass a range that this library mapped and has just taken off the map; a
    // program that still uses it breaks the driver's rules, and faults as it would there.
    let _ = unsafe { rustix::mm::munmap(start as *mut c_void, size) };
}

fn reserve_at(hint: usize, size: usize) -> Result<usize, Errno> {
    if hint == 0 {
        return Err(Errno::INVAL);
    }
    anonymous(hint, size, ProtFlags::empty(), MapFlags::FIXED_NOREPLACE)
}

fn reserve_aligned(size: usize, align: usize) -> Result<usize, Errno> {
    let more = size.checked_add(align).ok_or(Errno::NOMEM)?;
    let base = anonymous(0, more, ProtFlags::empty(), MapFlags::NORESERVE)?;
    let start = base.next_multiple_of(align);
    let tail = base + more - (start + size);
    if start > base {
        release(base, start - base);
    }
    if tail > 0 {
        release(start + size, tail);
    }
    Ok(start)
}

fn anonymous(at: usize, size: usize, rights: ProtFlags, how: MapFlags) -> Result<usize, Errno> {
    let how = how | MapFlags::PRIVATE;
    // SAFETY: without FIXED the system picks unused addresses or, with FIXED_NOREPLACE, refuses
    // used ones; FIXED is passed only by `blank`, for a range that a reservation owns.
    let start = unsafe { rustix::mm::mmap_anonymous(at as *mut c_void, size, rights, how) };
    start.map(|start| start as usize)
}

/// Makes a part of a reservation inaccessible again.
fn blank(start: usize, size: usize) {
    let _ = anonymous(start, size, ProtFlags::empty(), MapFlags::FIXED | MapFlags::NORESERVE);
}

fn place(start: usize, size: usize, rights: ProtFlags, piece: &Piece) -> Result<(), Errno> {
    let how = MapFlags::SHARED | MapFlags::FIXED;
    let at = start as *mut c_void;
    // SAFETY: the range is a region of the map, so it lies in a reservation of ours.
    unsafe { rustix::mm::mmap(at, size, rights, how, piece.as_fd(), 0) }.map(drop)
}

fn protect(start: usize, size: usize, rights: ProtFlags) -> Result<(), Errno> {
    let rights = MprotectFlags::from_bits_retain(rights.bits());
    // SAFETY: the range is a region of the map; rights only change what faults.
    unsafe { rustix::mm::mprotect(start as *mut c_void, size, rights) }
}
