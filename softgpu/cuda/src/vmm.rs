//! Virtual memory management: pieces (`cuMemCreate`), handles to them, reserved ranges, mappings.
//!
//! Nothing here needs a current context. A piece lives as long as a handle of it or a mapping,
//! in whichever process: each keeps the file locked.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUresult,
};

use crate::abi::{Answer, Border, Enum, HostMut, In, Mirror, Out, OutAny};
use crate::node::{self, Gpu};
use crate::registry::Registry;
use crate::space::{self, HOST_BIT, Kind, Mapping, Region};
use crate::store::{Held, StoreError, set_size};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const BY_FD: u32 = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

/// Nothing special asked for.
const NO_FLAGS: sys::CUmemAllocationProp_st__bindgen_ty_1 = sys::CUmemAllocationProp_st__bindgen_ty_1 {
    compressionType: 0,
    gpuDirectRDMACapable: 0,
    usage: 0,
    reserved: [0; 4],
};

/// Physical memory: a file.
pub struct Piece {
    /// Bytes.
    pub size: usize,
    /// Where it is.
    pub location: Location,
    handle_types: u32,
    backing: Backing,
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Location {
    /// On the GPU of that ordinal.
    Device(usize),
    /// In host memory, named as the caller named it (type and id).
    Host(u32, i32),
}

enum Backing {
    Device(Held),
    Host(OwnedFd),
}

/// A `CUmemGenericAllocationHandle`.
struct Handle {
    piece: Arc<Piece>,
}

static HANDLES: Registry<Handle> = Registry::new();

/// `CUmemLocation` with a number for its enum.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawLocation {
    kind: u32,
    id: i32,
}

impl Mirror for RawLocation {
    type Of = CUmemLocation;
}

/// `CUmemAllocationProp` with numbers for its enums.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawProperties {
    kind: u32,
    handle_types: u32,
    location: RawLocation,
    windows_metadata: usize,
    flags: [u8; 8],
}

impl Mirror for RawProperties {
    type Of = CUmemAllocationProp;
}

/// `CUmemAccessDesc` with numbers for its enums.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawAccess {
    pub location: RawLocation,
    pub flags: u32,
}

impl Mirror for RawAccess {
    type Of = CUmemAccessDesc;
}

impl Border for RawLocation {
    type C = RawLocation;
    type Declared = CUmemLocation;
    unsafe fn from_c(raw: RawLocation) -> Answer<Self> {
        Ok(raw)
    }
}

impl RawLocation {
    /// The memory of a GPU.
    pub fn of_device(device: usize) -> RawLocation {
        RawLocation { kind: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32, id: device as i32 }
    }

    /// The place it names.
    pub fn resolve(self) -> Answer<Location> {
        const DEVICE: u32 = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32;
        const HOST: u32 = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST as u32;
        const CURRENT: u32 = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT as u32;
        match self.kind {
            DEVICE => node::gpu(self.id).map(|_| Location::Device(self.id as usize)),
            HOST..=CURRENT => Ok(Location::Host(self.kind, self.id)),
            _ => Err(INVALID),
        }
    }

    fn accessor(self) -> Answer<u64> {
        Ok(match self.resolve()? {
            Location::Device(ordinal) => 1 << ordinal,
            Location::Host(..) => HOST_BIT,
        })
    }
}

impl RawProperties {
    fn check(&self) -> Answer<Location> {
        if self.kind != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32 {
            return Err(INVALID);
        }
        match self.handle_types {
            0 | BY_FD => self.location.resolve(),
            _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    }
}

impl Location {
    /// What sizes and addresses of pieces there are multiples of.
    fn granularity(self) -> Answer<usize> {
        match self {
            Location::Device(ordinal) => Ok(granularity(node::gpu(ordinal as i32)?)),
            Location::Host(..) => finest_granularity(),
        }
    }

    fn raw(self) -> CUmemLocation {
        let (kind, id) = match self {
            Location::Device(ordinal) => (1, ordinal as i32),
            Location::Host(kind, id) => (kind, id),
        };
        let type_ = match kind {
            1 => CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            2 => CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST,
            3 => CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA,
            _ => CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
        };
        CUmemLocation { type_, id }
    }
}

impl Piece {
    /// A new piece of zeroes.
    pub fn create(size: usize, location: Location, handle_types: u32) -> Answer<Piece> {
        let backing = match location {
            Location::Device(ordinal) => {
                let gpu = node::gpu(ordinal as i32)?;
                Backing::Device(gpu.store.create(size as u64).map_err(|e| store_error(&e))?)
            }
            Location::Host(..) => Backing::Host(host_file(size)?),
        };
        Ok(Piece { size, location, handle_types, backing })
    }

    /// The piece behind a descriptor that some process exported. As on hardware it cannot be exported again.
    fn import(fd: BorrowedFd<'_>) -> Answer<Piece> {
        for (ordinal, gpu) in node::node()?.gpus.iter().enumerate() {
            if let Some(held) = gpu.store.adopt(fd).map_err(|e| store_error(&e))? {
                let (size, location) = (held.size() as usize, Location::Device(ordinal));
                let backing = Backing::Device(held);
                return Ok(Piece { size, location, handle_types: 0, backing });
            }
        }
        Piece::import_host(fd)
    }

    /// In which ways it may be exported, as the driver's bits.
    pub fn handle_types(&self) -> u32 {
        self.handle_types
    }

    /// A descriptor of it for another process.
    fn export(&self) -> Answer<OwnedFd> {
        match &self.backing {
            Backing::Device(held) => held.export().map_err(|e| store_error(&e)),
            Backing::Host(fd) => {
                let copy = rustix::io::fcntl_dupfd_cloexec(fd, 0);
                copy.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
            }
        }
    }

    fn import_host(fd: BorrowedFd<'_>) -> Answer<Piece> {
        let link = std::fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()));
        if !link.is_ok_and(|path| path.to_string_lossy().starts_with("/memfd:softgpu-host")) {
            return Err(INVALID);
        }
        let size = rustix::fs::fstat(fd).map_err(|_| INVALID)?.st_size as usize;
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|_| INVALID)?;
        let location = Location::Host(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA as u32, 0);
        Ok(Piece { size, location, handle_types: 0, backing: Backing::Host(fd) })
    }
}

impl AsFd for Piece {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.backing {
            Backing::Device(held) => held.as_fd(),
            Backing::Host(fd) => fd.as_fd(),
        }
    }
}

/// The driver's code for what the store says.
pub fn store_error(error: &StoreError) -> CUresult {
    match error {
        StoreError::Full { .. } => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        StoreError::System(_) => {
            node::say(&error.to_string());
            CUresult::CUDA_ERROR_OPERATING_SYSTEM
        }
    }
}

/// `cuMemCreate`
pub fn create(out: Out<u64>, size: usize, properties: In<RawProperties>, flags: u64) -> Answer {
    let properties = properties.get();
    let location = properties.check()?;
    if flags != 0 || size == 0 || !size.is_multiple_of(location.granularity()?) {
        return Err(INVALID);
    }
    let piece = Piece::create(size, location, properties.handle_types)?;
    out.set(new_handle(Arc::new(piece)));
    Ok(())
}

/// `cuMemRelease`
pub fn release(handle: u64) -> Answer {
    HANDLES.remove(handle as usize).map(drop).ok_or(INVALID)
}

/// `cuMemRetainAllocationHandle`
pub fn retain(out: Out<u64>, address: HostMut) -> Answer {
    out.set(new_handle(mapping_at(address.0)?.piece));
    Ok(())
}

/// `cuMemExportToShareableHandle`
pub fn export(out: OutAny, handle: u64, kind: Enum<CUmemAllocationHandleType>, flags: u64) -> Answer {
    let piece = piece_of(handle)?;
    let fd = by_fd(kind.0)?;
    if flags != 0 || piece.handle_types & fd == 0 {
        return Err(INVALID);
    }
    out.set::<i32>(piece.export()?.into_raw_fd());
    Ok(())
}

/// `cuMemImportFromShareableHandle`; the descriptor stays the caller's.
pub fn import(out: Out<u64>, os_handle: HostMut, kind: Enum<CUmemAllocationHandleType>) -> Answer {
    by_fd(kind.0)?;
    let raw = i32::try_from(os_handle.0).map_err(|_| INVALID)?;
    let own = duplicate(raw)?;
    out.set(new_handle(Arc::new(Piece::import(own.as_fd())?)));
    Ok(())
}

/// `cuMemGetAllocationGranularity`
pub fn allocation_granularity(
    out: Out<usize>,
    properties: In<RawProperties>,
    _option: Enum<CUmemAllocationGranularity_flags>,
) -> Answer {
    out.set(properties.get().check()?.granularity()?);
    Ok(())
}

/// `cuMemGetAllocationPropertiesFromHandle`
pub fn properties(out: Out<CUmemAllocationProp>, handle: u64) -> Answer {
    let piece = piece_of(handle)?;
    let requested = match piece.handle_types {
        BY_FD => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        _ => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
    };
    out.set(CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: requested,
        location: piece.location.raw(),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: NO_FLAGS,
    });
    Ok(())
}

/// `cuMemAddressReserve`
pub fn reserve(out: Out<u64>, size: usize, alignment: usize, hint: u64, flags: u64) -> Answer {
    let granularity = finest_granularity()?;
    let align = alignment.max(granularity);
    if flags != 0 || size == 0 || !size.is_multiple_of(granularity) || !align.is_power_of_two() {
        return Err(INVALID);
    }
    let hint = if (hint as usize).is_multiple_of(align) { hint as usize } else { 0 };
    let start = space::change().reserve(size, align, hint);
    out.set(start.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)? as u64);
    Ok(())
}

/// `cuMemAddressFree`
pub fn unreserve(start: u64, size: usize) -> Answer {
    space::change().unreserve(start as usize, size).then_some(()).ok_or(INVALID)
}

/// `cuMemMap`; as on hardware a piece is mapped as a whole.
pub fn map(start: u64, size: usize, offset: usize, handle: u64, flags: u64) -> Answer {
    let piece = piece_of(handle)?;
    let start = start as usize;
    let granularity = piece.location.granularity()?;
    let even = start.is_multiple_of(granularity) && size.is_multiple_of(granularity);
    if flags != 0 || size == 0 || !even {
        return Err(INVALID);
    }
    if offset != 0 || size != piece.size {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let mut space = space::change();
    space.reservation(start, size).ok_or(INVALID)?;
    let region = Region { start, size, kind: Kind::Mapped(Mapping::hidden(piece)) };
    space.add(region).then_some(()).ok_or(INVALID)
}

/// `cuMemUnmap`: all mappings in a part of a reserved range, each as a whole, be there none.
pub fn unmap(start: u64, size: usize) -> Answer {
    let mut space = space::change();
    let starts = space.mappings_inside(start as usize, size).ok_or(INVALID)?;
    let gone: Vec<_> = starts.into_iter().map(|at| space.unmap(at)).collect();
    drop(space);
    drop(gone); // closes files: not under the lock
    Ok(())
}

/// `cuMemSetAccess`
pub fn set_access(start: u64, size: usize, rights: In<RawAccess>, count: usize) -> Answer {
    let rights = rights.many(count);
    let rights = rights.iter().map(checked_access).collect::<Answer<Vec<_>>>()?;
    let mut space = space::change();
    let starts = space.mappings_filling(start as usize, size).filter(|starts| !starts.is_empty());
    for at in starts.ok_or(INVALID)? {
        for (who, read, write) in &rights {
            let granted = space.grant(at, *who, *read, *write);
            granted.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        }
    }
    Ok(())
}

/// `cuMemGetAccess`
pub fn get_access(out: Out<u64>, location: In<RawLocation>, address: u64) -> Answer {
    let who = location.get().accessor()?;
    let mapping = mapping_at(address as usize)?;
    out.set(u64::from(mapping.read & who != 0) | u64::from(mapping.write & who != 0) << 1);
    Ok(())
}

fn new_handle(piece: Arc<Piece>) -> u64 {
    let mut number = 0;
    HANDLES.add(|handle| {
        number = handle as u64;
        Handle { piece }
    });
    number
}

fn piece_of(handle: u64) -> Answer<Arc<Piece>> {
    HANDLES.get(handle as usize).map(|handle| handle.piece.clone()).ok_or(INVALID)
}

fn mapping_at(address: usize) -> Answer<Mapping> {
    match space::look().find(address).map(|region| &region.kind) {
        Some(Kind::Mapped(mapping)) => Ok(mapping.clone()),
        _ => Err(INVALID),
    }
}

fn checked_access(access: &RawAccess) -> Answer<(u64, bool, bool)> {
    const NONE: u32 = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE as u32;
    const READ: u32 = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ as u32;
    const WRITE: u32 = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32;
    let who = access.location.accessor()?;
    match access.flags {
        NONE => Ok((who, false, false)),
        READ => Ok((who, true, false)),
        WRITE => Ok((who, true, true)),
        _ => Err(INVALID),
    }
}

fn by_fd(kind: u32) -> Answer<u32> {
    if kind == BY_FD { Ok(kind) } else { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) }
}

fn granularity(gpu: &Gpu) -> usize {
    gpu.config.granularity as usize
}

fn finest_granularity() -> Answer<usize> {
    node::node()?.gpus.iter().map(granularity).min().ok_or(CUresult::CUDA_ERROR_NO_DEVICE)
}

fn host_file(size: usize) -> Answer<OwnedFd> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let fd = rustix::fs::memfd_create("softgpu-host", flags);
    let fd = fd.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    let sized = set_size(&fd, size as u64);
    sized.map(|()| fd).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// Our own descriptor for the file behind a number the caller passed, if it is open.
fn duplicate(raw: i32) -> Answer<OwnedFd> {
    // SAFETY: duplicating a number that is no open descriptor fails with EBADF and does nothing.
    let copy = unsafe { libc::fcntl(raw, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        // It is the caller's error, or there is no descriptor left.
        let is_open = std::io::Error::last_os_error().raw_os_error() != Some(libc::EBADF);
        return Err(if is_open { CUresult::CUDA_ERROR_OPERATING_SYSTEM } else { INVALID });
    }
    // SAFETY: the call above made this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
