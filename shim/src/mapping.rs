//! Puts pieces behind addresses and takes them away: the only part that touches mappings.
//!
//! Invariants: a piece is one mapping, from a whole number of slots to the end of its last; its
//! handle is released as soon as it is mapped, else before it is unmapped, so after `unmap` nothing
//! of the process can reach the piece. A map that fails leaves nothing of it mapped.

use crate::driver;
use crate::log::info;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::*;
use tidegate_ffi::units::Class;
use tidegate_ffi::wire::message::Placed;

/// The address ranges that a tenant has reserved, one for each class, and what is mapped there.
#[derive(Debug)]
pub struct Ranges {
    device: CUdevice,
    unit: u64,
    bytes: u64,
    /// First addresses, by class.
    starts: [CUdeviceptr; 2],
    /// Handles of mapped pieces that the driver did not release, by address.
    kept: Mutex<BTreeMap<CUdeviceptr, Imported>>,
    shared: Mutex<Shared>,
}

/// What is mapped, and who may use it beside the device itself. Whoever maps a piece enters it before
/// they look for peers, and a new peer is entered before it is looked for pieces: so none misses the other.
#[derive(Debug, Default)]
struct Shared {
    peers: BTreeSet<CUdevice>,
    mapped: BTreeSet<Window>,
}

/// Part of a range, in addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    start: CUdeviceptr,
    bytes: usize,
}

impl Ranges {
    /// Reserves both ranges, each of `bytes` in slots of `unit`.
    pub fn reserve(device: CUdevice, unit: u64, bytes: u64) -> Result<Self, DriverError> {
        let persistent = reserve(bytes)?;
        let temporary = reserve(bytes).inspect_err(|_| free(persistent, bytes))?;
        Ok(Self {
            device,
            unit,
            bytes,
            starts: [persistent, temporary],
            kept: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    /// The address of an offset in a class's range.
    pub fn address(&self, class: Class, offset: u64) -> CUdeviceptr {
        self.starts[class.index()] + offset
    }

    /// Which class's range an address is in, and its offset there.
    pub fn find(&self, address: CUdeviceptr) -> Option<(Class, u64)> {
        Class::ALL.into_iter().find_map(|class| {
            let offset = address.checked_sub(self.starts[class.index()])?;
            (offset < self.bytes).then_some((class, offset))
        })
    }

    /// The parts of some addresses that are in a range: its class, and the offsets there.
    pub fn over(&self, addresses: Range<CUdeviceptr>) -> impl Iterator<Item = (Class, Range<u64>)> {
        Class::ALL.into_iter().filter_map(move |class| {
            let start = self.starts[class.index()];
            let from = addresses.start.max(start);
            let to = addresses.end.min(start + self.bytes);
            (from < to).then(|| (class, from - start..to - start))
        })
    }

    /// Whether a device may use what is mapped here.
    pub fn is_for(&self, device: CUdevice) -> bool {
        device == self.device || self.shared.lock().peers.contains(&device)
    }

    /// From now on these devices and no others may use what is mapped, and what will be.
    pub fn share_with(&self, peers: BTreeSet<CUdevice>) -> Result<(), DriverError> {
        let before = std::mem::replace(&mut self.shared.lock().peers, peers.clone());
        let gone = before.difference(&peers).map(|peer| access(*peer, NO_ACCESS));
        let new = peers.difference(&before).map(|peer| access(*peer, FULL_ACCESS));
        self.change(&gone.chain(new).collect::<Vec<_>>()).inspect_err(|_| {
            self.shared.lock().peers = before.clone();
        })
    }

    /// Changes who may use what is mapped.
    fn change(&self, rights: &[CUmemAccessDesc]) -> Result<(), DriverError> {
        if rights.is_empty() {
            return Ok(());
        }
        loop {
            let mapped = self.shared.lock().mapped.clone();
            match set_access(mapped.iter().copied().collect(), rights) {
                // Some went meanwhile.
                Err(_) if self.shared.lock().mapped != mapped => {}
                outcome => return outcome,
            }
        }
    }

    /// Maps pieces, whose slots are free, and makes them accessible to the device.
    pub fn map(&self, pieces: &[Placed], handles: Vec<OwnedFd>) -> Result<(), DriverError> {
        for (count, (piece, handle)) in pieces.iter().zip(handles).enumerate() {
            import(handle)
                .and_then(|imported| self.map_one(self.window(piece), imported))
                .inspect_err(|_| self.unmap_all(&pieces[..count]))?;
        }
        self.allow(pieces).inspect_err(|_| self.unmap_all(pieces))
    }

    /// Maps a piece; the mapping keeps it alive, its handle is released.
    fn map_one(&self, window: Window, imported: Imported) -> Result<(), DriverError> {
        // SAFETY: the window lies in a range that we reserved, and nothing is mapped there.
        unsafe { driver::get().cuMemMap(window.start, window.bytes, 0, imported.0, 0) }?;
        self.release(window.start, imported).or(Ok(()))
    }

    /// Releases a handle; one that the driver does not release is kept to be tried again.
    fn release(&self, start: CUdeviceptr, imported: Imported) -> Result<(), DriverError> {
        let (released, failed) = imported.release();
        self.kept.lock().extend(failed.map(|kept| (start, kept)));
        released
    }

    /// Takes a piece away. Nothing of the process can reach it afterwards.
    pub fn unmap(&self, piece: &Placed) -> Result<(), DriverError> {
        let window = self.window(piece);
        let kept = self.kept.lock().remove(&window.start);
        kept.map_or(Ok(()), |kept| self.release(window.start, kept))?;
        self.shared.lock().mapped.remove(&window);
        // SAFETY: exactly one mapping of ours; no work that could use it is under way (the job
        // is drained, or nothing in the piece is allocated and every free waited for the work
        // before it).
        unsafe { driver::get().cuMemUnmap(window.start, window.bytes) }
    }

    fn unmap_all(&self, pieces: &[Placed]) {
        for piece in pieces {
            // Part of undoing a failed map: the failure that is reported is the first.
            let _ = self.unmap(piece);
        }
    }

    fn window(&self, piece: &Placed) -> Window {
        let start = self.address(piece.class, u64::from(piece.slot.0) * self.unit);
        Window { start, bytes: (u64::from(piece.units.0) * self.unit) as usize }
    }

    /// Makes pieces accessible to the device and to its peers.
    fn allow(&self, pieces: &[Placed]) -> Result<(), DriverError> {
        let windows: Vec<Window> = pieces.iter().map(|piece| self.window(piece)).collect();
        let peers = {
            let mut shared = self.shared.lock();
            shared.mapped.extend(&windows);
            shared.peers.clone()
        };
        let devices = std::iter::once(self.device).chain(peers);
        set_access(windows, &devices.map(|device| access(device, FULL_ACCESS)).collect::<Vec<_>>())
    }
}

const FULL_ACCESS: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
const NO_ACCESS: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;

/// What a device may do.
fn access(device: CUdevice, flags: CUmemAccess_flags) -> CUmemAccessDesc {
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
    CUmemAccessDesc { location, flags }
}

/// Changes who may use mapped memory, with one call for each run of neighbours.
fn set_access(windows: Vec<Window>, rights: &[CUmemAccessDesc]) -> Result<(), DriverError> {
    for run in joined(windows) {
        // SAFETY: our own range; the descriptions are read during the call. Where a part of the run is
        // not mapped any more, the driver refuses.
        unsafe { driver::get().cuMemSetAccess(run.start, run.bytes, rights.as_ptr(), rights.len()) }?;
    }
    Ok(())
}

impl Drop for Ranges {
    fn drop(&mut self) {
        self.starts.iter().for_each(|&start| free(start, self.bytes));
    }
}

/// Windows in address order, neighbours made one.
fn joined(mut windows: Vec<Window>) -> Vec<Window> {
    windows.sort_by_key(|window| window.start);
    let mut joined: Vec<Window> = Vec::new();
    for window in windows {
        match joined.last_mut() {
            Some(last) if last.start + last.bytes as u64 == window.start => last.bytes += window.bytes,
            _ => joined.push(window),
        }
    }
    joined
}

/// Reserves addresses.
pub fn reserve(bytes: u64) -> Result<CUdeviceptr, DriverError> {
    let mut start = 0;
    // SAFETY: the result goes to our own variable.
    unsafe { driver::get().cuMemAddressReserve(&mut start, bytes as usize, 0, 0, 0) }?;
    Ok(start)
}

/// Gives back what [`reserve`] has reserved, with nothing mapped in it.
pub fn free(start: CUdeviceptr, bytes: u64) {
    // SAFETY: a range that we reserved, of that size, with nothing mapped in it. A failure
    // leaves addresses reserved, which harms nobody.
    let _ = unsafe { driver::get().cuMemAddressFree(start, bytes as usize) };
}

/// An imported handle; released when dropped.
#[derive(Debug)]
pub struct Imported(CUmemGenericAllocationHandle);

/// Imports a piece; its file descriptor is closed.
pub fn import(handle: OwnedFd) -> Result<Imported, DriverError> {
    let mut imported = 0;
    let descriptor = std::ptr::without_provenance_mut(handle.as_raw_fd() as usize);
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: the result goes to our own variable; for this kind the driver takes the
    // descriptor's number, which stays open through the call.
    unsafe { driver::get().cuMemImportFromShareableHandle(&mut imported, descriptor, kind) }?;
    Ok(Imported(imported))
}

impl Imported {
    /// The driver's number for it.
    pub fn number(&self) -> CUmemGenericAllocationHandle {
        self.0
    }

    /// Releases it now; or gives it back, with the reason why not.
    fn release(self) -> (Result<(), DriverError>, Option<Self>) {
        let this = ManuallyDrop::new(self);
        // SAFETY: our own handle; where this fails it is still ours, else used no more.
        let released = unsafe { driver::get().cuMemRelease(this.0) };
        (released, released.is_err().then(|| ManuallyDrop::into_inner(this)))
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: our own handle, used no more.
        if let Err(error) = unsafe { driver::get().cuMemRelease(self.0) } {
            info!("the driver keeps memory that was released: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_made_accessible_in_one_call() {
        let window = |start, bytes| Window { start, bytes };
        let runs = joined(vec![window(40, 10), window(10, 20), window(30, 10), window(60, 1)]);
        assert_eq!(runs, [window(10, 40), window(60, 1)]);
    }
}
