//! Memory of other processes of the job, mapped here too.
//!
//! Invariant: what is borrowed is held by its owner, so it never moves: it stays mapped through all
//! switches, and is used while the job, and so its owner, may run.

use crate::driver;
use crate::link::Reply;
use crate::log::info;
use crate::mapping::{free, import, reserve};
use crate::process::Process;
use crate::raw::Access;
use crate::status::{Answer, Status};
use parking_lot::Mutex;
use std::ops::Range;
use std::os::fd::OwnedFd;
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::*;
use tidegate_ffi::units::{Class, SlotIndex, TenantId, Units};
use tidegate_ffi::wire::message::{FromShim, Placed};

/// Where shared memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its owner.
    pub tenant: TenantId,
    /// Which of its ranges.
    pub class: Class,
    /// The first byte there.
    pub start: u64,
    /// The length, in bytes.
    pub bytes: u64,
    /// The size of a slot.
    pub unit: u64,
}

/// The 64 bytes of a legacy handle, which programs hand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token([u64; 8]);

/// How handles of ours begin.
const MARK: u64 = u64::from_le_bytes(*b"tidegate");

impl Token {
    /// What says where memory lies.
    pub fn of(shared: Shared) -> Self {
        let Shared { tenant, class, start, bytes, unit } = shared;
        Self([MARK, tenant.0, class.index() as u64, start, bytes, unit, 0, 0])
    }

    /// As the program has it.
    pub fn bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What a program passes.
    pub fn from(bytes: [u8; 64]) -> Self {
        let mut words = [0; 8];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(place.try_into().unwrap_or_default());
        }
        Self(words)
    }

    /// Where the memory lies; `None`: it is no handle of ours.
    pub fn shared(self) -> Option<Shared> {
        let [MARK, tenant, class, start, bytes, unit, 0, 0] = self.0 else { return None };
        let class = *Class::ALL.get(usize::try_from(class).ok()?)?;
        let is_possible = unit > 0 && bytes > 0 && start.checked_add(bytes)?.checked_add(unit).is_some();
        is_possible.then_some(Shared { tenant: TenantId(tenant), class, start, bytes, unit })
    }
}

impl Shared {
    fn first(&self) -> u64 {
        self.start / self.unit
    }

    fn units(&self) -> u64 {
        (self.start + self.bytes).div_ceil(self.unit) - self.first()
    }
}

/// What a process has opened. Its lock is held while the manager and the driver are asked: nobody takes it
/// but who opens and closes.
#[derive(Default)]
pub struct Borrowed(Mutex<Vec<Open>>);

struct Open {
    shared: Shared,
    /// Where the allocation begins here.
    address: CUdeviceptr,
    window: Window,
    times: u32,
}

/// Addresses of ours, with pieces mapped one behind the other.
struct Window {
    start: CUdeviceptr,
    bytes: u64,
    /// The lengths of the pieces.
    pieces: Vec<u64>,
}

impl Borrowed {
    /// Opens memory on `device`, or once more what is open already.
    pub fn open(&self, process: &Process, device: CUdevice, shared: Shared) -> Result<CUdeviceptr, Status> {
        // One at a time: two threads that open the same get the same.
        let mut opened = self.0.lock();
        if let Some(known) = opened.iter_mut().find(|open| open.shared == shared) {
            known.times += 1;
            return Ok(known.address);
        }
        let (pieces, handles) = ask(process, shared)?;
        let first = pieces.first().ok_or(Status::INVALID_VALUE)?.slot.0;
        let window = Window::map(device, shared.unit, &pieces, handles)?;
        let address = window.start + (shared.start - u64::from(first) * shared.unit);
        opened.push(Open { shared, address, window, times: 1 });
        Ok(address)
    }

    /// Whether memory is open at an address.
    pub fn has(&self, address: CUdeviceptr) -> bool {
        self.0.lock().iter().any(|open| open.address == address)
    }

    /// Where the allocation of another process lies here that an address belongs to.
    pub fn allocation_at(&self, address: CUdeviceptr) -> Option<Range<CUdeviceptr>> {
        let opened = self.0.lock();
        let mut extents = opened.iter().map(|open| open.address..open.address + open.shared.bytes);
        extents.find(|extent| extent.contains(&address))
    }

    /// Closes memory; it is unmapped when it was closed as often as it was opened.
    pub fn close(&self, address: CUdeviceptr) -> Answer {
        let mut opened = self.0.lock();
        let index = opened.iter().position(|open| open.address == address);
        let index = index.ok_or(Status::INVALID_VALUE)?;
        opened[index].times -= 1;
        if opened[index].times == 0 {
            drop(opened.swap_remove(index).window);
        }
        Ok(())
    }
}

/// A descriptor for memory that is held and was leased whole, as the piece's maker exported it.
pub fn descriptor_of(process: &Process, shared: Shared) -> Result<OwnedFd, Status> {
    let (pieces, mut handles) = ask(process, shared)?;
    let is_whole = matches!(pieces[..], [piece]
        if u64::from(piece.slot.0) == shared.first() && u64::from(piece.units.0) == shared.units());
    handles.pop().filter(|_| is_whole).ok_or(Status(CUresult::CUDA_ERROR_NOT_SUPPORTED))
}

/// Asks the manager for the pieces behind memory that is held by a process of the job.
fn ask(process: &Process, shared: Shared) -> Result<(Vec<Placed>, Vec<OwnedFd>), Status> {
    let narrow = |number: u64| u32::try_from(number).map_err(|_| Status::INVALID_VALUE);
    let (first, units) = (SlotIndex(narrow(shared.first())?), Units(narrow(shared.units())?));
    let Shared { tenant, class, .. } = shared;
    let question = |step| FromShim::Borrow { step, tenant, class, first, units };
    let replies = process.link.request(question).map_err(|_| Status::NOT_READY)?;
    match replies.next().map_err(|_| Status::NOT_READY)? {
        Reply::Lent { pieces, handles } if pieces.len() == handles.len() => Ok((pieces, handles)),
        Reply::Lent { .. } => Err(Status::OUT_OF_MEMORY),
        Reply::Refused(reason) => {
            info!("memory of a process of the job cannot be had: {reason}");
            Err(Status::INVALID_VALUE)
        }
        Reply::Attached { .. } | Reply::Leased { .. } | Reply::Held | Reply::Room { .. } => {
            Err(Status::UNKNOWN)
        }
    }
}

impl Window {
    fn map(
        device: CUdevice,
        unit: u64,
        pieces: &[Placed],
        handles: Vec<OwnedFd>,
    ) -> Result<Self, DriverError> {
        let bytes = pieces.iter().map(|piece| u64::from(piece.units.0) * unit).sum();
        let mut window = Self { start: reserve(bytes)?, bytes, pieces: Vec::new() };
        for (piece, handle) in pieces.iter().zip(handles) {
            let imported = import(handle)?;
            let (at, length) = (window.end(), u64::from(piece.units.0) * unit);
            // SAFETY: addresses that we have reserved, where nothing is mapped yet.
            unsafe { driver::get().cuMemMap(at, length as usize, 0, imported.number(), 0) }?;
            window.pieces.push(length);
        }
        crate::loose::allow(window.start, bytes, &[Access::of_device(device)])?;
        Ok(window)
    }

    fn end(&self) -> CUdeviceptr {
        self.start + self.pieces.iter().sum::<u64>()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut at = self.start;
        for length in &self.pieces {
            // SAFETY: exactly what `map` has mapped there; who closes has waited for the work before.
            if let Err(error) = unsafe { driver::get().cuMemUnmap(at, *length as usize) } {
                info!("memory of another process stays mapped: {error}");
            }
            at += length;
        }
        free(self.start, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_where_memory_lies_and_others_are_none_of_ours() {
        let shared =
            Shared { tenant: TenantId(7), class: Class::Temporary, start: 5000, bytes: 4096, unit: 4096 };
        let token = Token::of(shared);
        assert_eq!(Token::from(token.bytes()).shared(), Some(shared));
        assert_eq!((shared.first(), shared.units()), (1, 2));
        assert_eq!(Token::from([0; 64]).shared(), None);
        let mut strange = token.bytes();
        strange[16] = 9;
        assert_eq!(Token::from(strange).shared(), None);
        strange = token.bytes();
        strange[24..40].fill(0xff);
        assert_eq!(Token::from(strange).shared(), None);
    }
}
