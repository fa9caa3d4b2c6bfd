//! GPU memory: made, exported, and mapped into this process when its bytes are to be moved.

use super::gpu::{log_memory_release, log_release, read};
use super::{Gpu, OutOfBounds, check_bounds};
use std::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use tidegate_ffi::cuda::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocationType, CUresult,
};
use tidegate_ffi::cuda::{Driver, DriverError};
use tidegate_ffi::os;
use tidegate_ffi::wire::message::Location;

/// A piece cannot be given to other processes.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The process has no number for a descriptor.
    #[error("a piece's descriptor cannot be duplicated: {0}")]
    Descriptor(#[from] io::Error),
}

/// A piece of GPU memory. Its end unmaps and releases it; the memory returns to the GPU when no
/// other process holds it either. The fields are dropped in this order.
pub struct Piece {
    window: Option<Window>,
    handle: Handle,
    bytes: u64,
    location: Location,
    /// By which it was imported: the driver exports no imported handle.
    imported_from: Option<OwnedFd>,
}

impl Piece {
    /// Makes a piece of `bytes` bytes, a multiple of the GPU's granularity.
    pub fn make(gpu: &Gpu, bytes: u64, location: Location) -> Result<Self, DriverError> {
        let handle = Handle::make(gpu, bytes, location)?;
        Ok(Self { window: None, handle, bytes, location, imported_from: None })
    }

    /// The piece of `bytes` bytes that another process made, by its descriptor.
    pub fn adopt(gpu: &Gpu, fd: OwnedFd, bytes: u64) -> Result<Self, DriverError> {
        let handle = Handle::import(gpu, &fd)?;
        let location = handle.location()?;
        Ok(Self { window: None, handle, bytes, location, imported_from: Some(fd) })
    }

    /// Where its memory is.
    pub fn location(&self) -> Location {
        self.location
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A descriptor by which other processes import the piece.
    pub fn export(&self) -> Result<OwnedFd, ExportError> {
        match &self.imported_from {
            Some(fd) => Ok(os::duplicate(fd)?),
            None => Ok(self.export_made()?),
        }
    }

    fn export_made(&self) -> Result<OwnedFd, DriverError> {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut fd: c_int = -1;
        let (driver, handle) = (self.handle.driver, self.handle.raw);
        // SAFETY: for this kind of handle the driver writes one descriptor, and this is a place
        // for one; the handle is alive and was made exportable (Gpu::piece_properties).
        unsafe { driver.cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0) }?;
        if fd < 0 {
            let code = CUresult::CUDA_ERROR_INVALID_HANDLE;
            return Err(DriverError { call: "cuMemExportToShareableHandle", code });
        }
        // SAFETY: the driver made this descriptor for the caller, to whom it belongs alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Maps the piece, unless it is mapped.
    pub fn map(&mut self, gpu: &Gpu) -> Result<(), DriverError> {
        if self.window.is_none() {
            self.window = Some(Window::open(gpu, &self.handle, self.bytes)?);
        }
        Ok(())
    }

    /// Where the piece is mapped, if it is.
    pub fn window(&self) -> Option<&Window> {
        self.window.as_ref()
    }
}

/// A piece's place in this process's addresses: all of it, readable and writable by its GPU.
pub struct Window {
    driver: &'static Driver,
    /// Freed after the piece is unmapped (fields are dropped after `drop`).
    addresses: Addresses,
}

impl Window {
    fn open(gpu: &Gpu, handle: &Handle, bytes: u64) -> Result<Self, DriverError> {
        let addresses = Addresses::reserve(gpu.driver(), bytes)?;
        let (start, size) = (addresses.start, addresses.bytes as usize);
        // SAFETY: the range is reserved, of the handle's size, and nothing is mapped in it.
        unsafe { gpu.driver().cuMemMap(start, size, 0, handle.raw, 0) }?;
        let window = Self { driver: gpu.driver(), addresses };
        window.allow(gpu)?;
        Ok(window)
    }

    /// Lets the GPU read and write here.
    fn allow(&self, gpu: &Gpu) -> Result<(), DriverError> {
        let access = CUmemAccessDesc {
            location: gpu.piece_properties(Location::Device).location,
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is one whole mapping; one description is borrowed for the call.
        unsafe { self.driver.cuMemSetAccess(self.address(), self.bytes() as usize, &access, 1) }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.addresses.bytes
    }

    /// All of its bytes.
    pub fn whole(&self) -> DeviceRange<'_> {
        DeviceRange::new(self.address(), self.bytes())
    }

    /// Some of its bytes.
    pub fn range(&self, offset: u64, bytes: u64) -> Result<DeviceRange<'_>, OutOfBounds> {
        check_bounds(offset, bytes, self.bytes())?;
        Ok(DeviceRange::new(self.address() + offset, bytes))
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        self.addresses.start
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `open` made. No copy is under way in it: each borrows
        // the window until it has ended.
        let unmapped = unsafe { self.driver.cuMemUnmap(self.address(), self.bytes() as usize) };
        log_memory_release("a mapping", unmapped);
    }
}

/// Bytes of a window.
#[derive(Clone, Copy)]
pub struct DeviceRange<'a> {
    address: CUdeviceptr,
    bytes: u64,
    within: PhantomData<&'a Window>,
}

impl DeviceRange<'_> {
    /// Bytes at an address that the GPU may read and write, as long as the result is used.
    pub(super) fn new(address: CUdeviceptr, bytes: u64) -> Self {
        Self { address, bytes, within: PhantomData }
    }

    /// The first so many bytes (all, if there are fewer), and the rest.
    pub(super) fn split(self, at: u64) -> (Self, Self) {
        let at = at.min(self.bytes);
        (Self { bytes: at, ..self }, Self { address: self.address + at, bytes: self.bytes - at, ..self })
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A `cuMemCreate` handle.
struct Handle {
    driver: &'static Driver,
    raw: CUmemGenericAllocationHandle,
}

impl Handle {
    /// ◇ The manual does not say whether making memory needs a context (FACTS §8.2); if the driver
    /// asks for one, it gets one.
    fn make(gpu: &Gpu, bytes: u64, location: Location) -> Result<Self, DriverError> {
        let raw = match create(gpu, bytes, location) {
            Err(error) if error.code == CUresult::CUDA_ERROR_INVALID_CONTEXT => {
                gpu.engage()?;
                create(gpu, bytes, location)?
            }
            made => made?,
        };
        Ok(Self { driver: gpu.driver(), raw })
    }

    fn import(gpu: &Gpu, fd: &OwnedFd) -> Result<Self, DriverError> {
        let raw = match import(gpu, fd) {
            Err(error) if error.code == CUresult::CUDA_ERROR_INVALID_CONTEXT => {
                gpu.engage()?;
                import(gpu, fd)?
            }
            imported => imported?,
        };
        Ok(Self { driver: gpu.driver(), raw })
    }

    /// By the driver's word.
    fn location(&self) -> Result<Location, DriverError> {
        let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
        let out = properties.as_mut_ptr();
        // SAFETY: `out` is a valid place for properties, the handle is alive.
        unsafe { self.driver.cuMemGetAllocationPropertiesFromHandle(out, self.raw) }?;
        let location = out.wrapping_byte_add(offset_of!(CUmemAllocationProp, location.type_));
        // SAFETY: a number within the properties, initialised; the driver may know ones that the enum does not.
        let location = unsafe { location.cast::<u32>().read() };
        let is_device = location == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32;
        Ok(if is_device { Location::Device } else { Location::Host })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `make`, released once, here.
        log_memory_release("a piece", unsafe { self.driver.cuMemRelease(self.raw) });
    }
}

fn create(gpu: &Gpu, bytes: u64, location: Location) -> Result<CUmemGenericAllocationHandle, DriverError> {
    let properties = gpu.piece_properties(location);
    // SAFETY: `out` is a valid place for a handle, the properties are borrowed for the call.
    read(|out| unsafe { gpu.driver().cuMemCreate(out, bytes as usize, &properties, 0) })
}

fn import(gpu: &Gpu, fd: &OwnedFd) -> Result<CUmemGenericAllocationHandle, DriverError> {
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // For this kind of handle the driver takes the descriptor's number in a pointer's place.
    let descriptor = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
    // SAFETY: `out` is a valid place for a handle; the descriptor is open during the call, which
    // does not keep it.
    read(|out| unsafe { gpu.driver().cuMemImportFromShareableHandle(out, descriptor, kind) })
}

/// A reserved range of addresses.
struct Addresses {
    driver: &'static Driver,
    start: CUdeviceptr,
    bytes: u64,
}

impl Addresses {
    fn reserve(driver: &'static Driver, bytes: u64) -> Result<Self, DriverError> {
        // SAFETY: `out` is a valid place for an address; the driver chooses it.
        let start = read(|out| unsafe { driver.cuMemAddressReserve(out, bytes as usize, 0, 0, 0) })?;
        Ok(Self { driver, start, bytes })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `reserve` got; nothing is mapped in it any more, for a
        // Window unmaps before its addresses are dropped.
        let freed = unsafe { self.driver.cuMemAddressFree(self.start, self.bytes as usize) };
        log_release("addresses", freed);
    }
}
