//! Pieces behind handles of the program's: mapped where the program wants them.
//!
//! Invariants: while a piece is resident we keep its handle; it is mapped in every mapping of the
//! program's handle that it belongs to, with the access that the program gave; when it leaves, it is
//! nowhere. Mappings change inside the gate (the program) or while it is shut or ajar (the manager), when the
//! program's changes wait; so never at the same time.

use crate::driver;
use crate::handles::{Extent, Handles, Mapping};
use crate::mapping::{Imported, import};
use crate::raw::Access;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::*;
use tidegate_ffi::units::PieceId;
use tidegate_ffi::wire::message::Placed;

/// The program's handles, and the pieces behind them that are resident.
#[derive(Default)]
pub struct Loose {
    /// The handles.
    pub handles: Mutex<Handles>,
    resident: Mutex<BTreeMap<PieceId, Resident>>,
}

struct Resident {
    imported: Imported,
    device: CUdevice,
    placed: Placed,
    /// Its bytes in the tenant's range.
    bytes: Range<u64>,
}

/// A part of a mapping that one piece is behind.
#[derive(Clone, Copy)]
struct Part {
    handle: CUmemGenericAllocationHandle,
    /// Where in the mapping.
    offset: u64,
    bytes: u64,
}

impl Loose {
    /// Whether a piece of a tenant belongs to a handle of the program's.
    pub fn is_behind_handle(&self, device: CUdevice, placed: &Placed, unit: u64) -> bool {
        self.handles.lock().at(device, placed.class, u64::from(placed.slot.0) * unit).is_some()
    }

    /// A piece comes: it is mapped wherever its handle is.
    pub fn enter(&self, device: CUdevice, placed: Placed, unit: u64, fd: OwnedFd) -> Result<(), DriverError> {
        let imported = import(fd)?;
        let start = u64::from(placed.slot.0) * unit;
        let bytes = start..start + u64::from(placed.units.0) * unit;
        // Released meanwhile: nobody wants it.
        let known = self.handles.lock().at(device, placed.class, start);
        let Some((extent, mappings)) = known else { return Ok(()) };
        let resident = Resident { imported, device, placed, bytes };
        let part = resident.part(extent);
        for (count, mapping) in mappings.iter().enumerate() {
            part.map(mapping).inspect_err(|_| part.unmap_all(&mappings[..count]))?;
        }
        self.resident.lock().insert(placed.piece, resident);
        Ok(())
    }

    /// A piece leaves: nothing of the process can reach it afterwards. `false`: it is none of these.
    pub fn leave(&self, piece: PieceId) -> Result<bool, DriverError> {
        let Some(resident) = self.resident.lock().remove(&piece) else { return Ok(false) };
        let (device, class, start) = (resident.device, resident.placed.class, resident.bytes.start);
        let known = self.handles.lock().at(device, class, start);
        let Some((extent, mappings)) = known else { return Ok(true) };
        let part = resident.part(extent);
        for (count, mapping) in mappings.iter().enumerate() {
            if let Err(error) = part.unmap(mapping.addresses.start) {
                // Where it was, if that can be had again: the manager may ask once more.
                part.map_all(&mappings[..count]);
                self.resident.lock().insert(piece, resident);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Maps a handle at an address of the program's: all of its pieces are resident.
    pub fn map(&self, extent: Extent, address: CUdeviceptr) -> Result<(), DriverError> {
        let parts = self.parts(extent);
        for (count, part) in parts.iter().enumerate() {
            part.map_plainly(address).inspect_err(|_| unmap_all(&parts[..count], address))?;
        }
        Ok(())
    }

    /// Unmaps a handle at an address of the program's.
    pub fn unmap(&self, extent: Extent, address: CUdeviceptr) -> Result<(), DriverError> {
        self.parts(extent).iter().try_for_each(|part| part.unmap(address))
    }

    /// The pieces behind a handle that is no more: they are nowhere mapped, and released.
    pub fn forget(&self, extent: Extent) -> Vec<Placed> {
        let gone: Vec<Resident> = {
            let mut resident = self.resident.lock();
            resident.extract_if(.., |_, piece| piece.is_of(extent)).map(|(_, piece)| piece).collect()
        };
        gone.into_iter().map(|piece| piece.placed).collect()
    }

    fn parts(&self, extent: Extent) -> Vec<Part> {
        let resident = self.resident.lock();
        resident.values().filter(|piece| piece.is_of(extent)).map(|piece| piece.part(extent)).collect()
    }
}

impl Resident {
    fn is_of(&self, extent: Extent) -> bool {
        extent.has(self.device, self.placed.class, self.bytes.start)
    }

    fn part(&self, extent: Extent) -> Part {
        Part {
            handle: self.imported.number(),
            offset: self.bytes.start - extent.start,
            bytes: self.bytes.end - self.bytes.start,
        }
    }
}

impl Part {
    /// Puts it into a mapping, with the access that the program gave.
    fn map(&self, mapping: &Mapping) -> Result<(), DriverError> {
        let address = mapping.addresses.start;
        self.map_plainly(address)?;
        let here = address + self.offset..address + self.offset + self.bytes;
        for granted in &mapping.granted {
            let start = here.start.max(granted.addresses.start);
            let end = here.end.min(granted.addresses.end);
            if start < end {
                allow(start, end - start, &granted.access).inspect_err(|_| {
                    // The failure that is reported is the first.
                    let _ = self.unmap(mapping.addresses.start);
                })?;
            }
        }
        Ok(())
    }

    fn map_plainly(&self, address: CUdeviceptr) -> Result<(), DriverError> {
        // SAFETY: the program's own addresses, where it has asked for this mapping, or where it was
        // before; the driver refuses what is not reserved or has something mapped.
        unsafe { driver::get().cuMemMap(address + self.offset, self.bytes as usize, 0, self.handle, 0) }
    }

    fn unmap(&self, address: CUdeviceptr) -> Result<(), DriverError> {
        // SAFETY: exactly what `map_plainly` has mapped there. Work that uses it: none when the job is
        // drained, else as the program's own call would have it.
        unsafe { driver::get().cuMemUnmap(address + self.offset, self.bytes as usize) }
    }

    fn map_all(&self, mappings: &[Mapping]) {
        for mapping in mappings {
            // Part of undoing, as below.
            let _ = self.map(mapping);
        }
    }

    fn unmap_all(&self, mappings: &[Mapping]) {
        for mapping in mappings {
            // Part of undoing: the failure that is reported is the first.
            let _ = self.unmap(mapping.addresses.start);
        }
    }
}

fn unmap_all(parts: &[Part], address: CUdeviceptr) {
    for part in parts {
        // As above.
        let _ = part.unmap(address);
    }
}

/// Gives access to addresses that are mapped.
pub fn allow(start: CUdeviceptr, bytes: u64, access: &[Access]) -> Result<(), DriverError> {
    let list = access.as_ptr().cast::<CUmemAccessDesc>();
    // SAFETY: as many descriptions as are said, in the driver's layout.
    unsafe { driver::get().cuMemSetAccess(start, bytes as usize, list, access.len()) }
}
