//! Structures of the driver's as plain numbers: a program may be newer than our header, and pass values
//! that its enums do not have.
#![forbid(unsafe_code)]

use tidegate_ffi::cuda::sys::*;

/// A `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// `CUmemLocationType`.
    pub kind: i32,
    /// Which one.
    pub id: i32,
}

/// A `CUmemAccessDesc`: who may do what.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who.
    pub location: Location,
    /// `CUmemAccess_flags`.
    pub flags: i32,
}

/// A `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// `CUmemAllocationType`.
    pub kind: i32,
    /// How it can be exported: `CUmemAllocationHandleType`s.
    pub exports: i32,
    /// Where it lies.
    pub location: Location,
    /// Of another system.
    pub security: usize,
    /// Compression, RDMA, usage.
    pub flags: [u8; 8],
}

/// To read and to write.
pub const READ_WRITE: i32 = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as i32;

const DEVICE: i32 = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as i32;

const _: () = assert!(size_of::<Location>() == size_of::<CUmemLocation>());
const _: () = assert!(size_of::<Access>() == size_of::<CUmemAccessDesc>());
const _: () = assert!(size_of::<Properties>() == size_of::<CUmemAllocationProp>());

impl Location {
    /// The device, if it is one.
    pub fn device(self) -> Option<CUdevice> {
        (self.kind == DEVICE).then_some(self.id)
    }
}

impl Access {
    /// A device may do everything.
    pub fn of_device(device: CUdevice) -> Self {
        Self { location: Location { kind: DEVICE, id: device }, flags: READ_WRITE }
    }
}
