//! Copies. The runtime names the direction in an argument, the driver in the function's name.

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUmemorytype};
use cudarc::runtime::sys::{cudaExtent, cudaMemcpy3DParms, cudaMemcpyKind, cudaPitchedPtr, cudaPos};

use crate::abi::{Address, ConstAddress, Enum, Host, HostMut, In, Stream, Value};
use crate::current;
use crate::driver::Driver;
use crate::error::{Answer, Error};

/// `cudaMemcpyKind`
pub type Kind = Enum<(), cudaMemcpyKind>;

/// Where a copy goes.
#[derive(Clone, Copy, PartialEq)]
pub enum Way {
    ToDevice,
    ToHost,
    Within,
    /// The driver finds out what lies at the addresses.
    Any,
}

impl Way {
    /// What a kind says.
    pub fn of(kind: Kind) -> Answer<Way> {
        const NAMED: [Way; 5] = [Way::Any, Way::ToDevice, Way::ToHost, Way::Within, Way::Any];
        NAMED.get(kind.0 as usize).copied().ok_or(Error::INVALID_DIRECTION)
    }

    /// The memory it reads and the memory it writes.
    fn ends(self) -> (CUmemorytype, CUmemorytype) {
        use CUmemorytype::{CU_MEMORYTYPE_DEVICE as DEVICE, CU_MEMORYTYPE_HOST as HOST};
        match self {
            Way::ToDevice => (HOST, DEVICE),
            Way::ToHost => (DEVICE, HOST),
            Way::Within => (DEVICE, DEVICE),
            Way::Any => (CUmemorytype::CU_MEMORYTYPE_UNIFIED, CUmemorytype::CU_MEMORYTYPE_UNIFIED),
        }
    }
}

/// `cudaMemcpy`
pub fn linear(driver: &Driver, to: Address, from: ConstAddress, bytes: usize, kind: Kind) -> Answer {
    copy(driver, to, from, bytes, Way::of(kind)?)
}

/// `cudaMemcpyAsync`
pub fn linear_async(
    driver: &Driver,
    to: Address,
    from: ConstAddress,
    bytes: usize,
    kind: Kind,
    stream: Stream,
) -> Answer {
    copy_async(driver, to, from, bytes, Way::of(kind)?, stream)
}

/// Nothing lies at the null address, on either side.
fn check(to: Address, from: ConstAddress) -> Answer {
    if to.0 == 0 || from.0 == 0 { Err(Error::INVALID_VALUE) } else { Ok(()) }
}

/// Copies bytes.
pub fn copy(driver: &Driver, to: Address, from: ConstAddress, bytes: usize, way: Way) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    check(to, from)?;
    match way {
        Way::ToDevice => driver.cuMemcpyHtoD(to, Host(from.0 as usize), bytes),
        Way::ToHost => driver.cuMemcpyDtoH(HostMut(to.0 as usize), from, bytes),
        Way::Within => driver.cuMemcpyDtoD(to, from, bytes),
        Way::Any => driver.cuMemcpy(to, from, bytes),
    }
}

/// Copies bytes in the order of a stream.
pub fn copy_async(
    driver: &Driver,
    to: Address,
    from: ConstAddress,
    bytes: usize,
    way: Way,
    stream: Stream,
) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    check(to, from)?;
    match way {
        Way::ToDevice => driver.cuMemcpyHtoDAsync(to, Host(from.0 as usize), bytes, stream),
        Way::ToHost => driver.cuMemcpyDtoHAsync(HostMut(to.0 as usize), from, bytes, stream),
        Way::Within => driver.cuMemcpyDtoDAsync(to, from, bytes, stream),
        Way::Any => driver.cuMemcpyAsync(to, from, bytes, stream),
    }
}

/// `cudaMemcpyPeer`
pub fn peer(
    driver: &Driver,
    to: Address,
    to_device: i32,
    from: ConstAddress,
    from_device: i32,
    bytes: usize,
) -> Answer {
    let (to_in, from_in) = (current::primary(driver, to_device)?, current::primary(driver, from_device)?);
    driver.cuMemcpyPeer(to, to_in, from, from_in, bytes)
}

/// `cudaMemcpyPeerAsync`
pub fn peer_async(
    driver: &Driver,
    to: Address,
    to_device: i32,
    from: ConstAddress,
    from_device: i32,
    bytes: usize,
    stream: Stream,
) -> Answer {
    let (to_in, from_in) = (current::primary(driver, to_device)?, current::primary(driver, from_device)?);
    driver.cuMemcpyPeerAsync(to, to_in, from, from_in, bytes, stream)
}

/// `cudaMemcpy2D`
#[expect(clippy::too_many_arguments, reason = "the runtime's signature, and the driver")]
pub fn plane(
    driver: &Driver,
    to: Address,
    to_pitch: usize,
    from: ConstAddress,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: Kind,
) -> Answer {
    let copy = plane_of((to, to_pitch), (from, from_pitch), width, height, Way::of(kind)?);
    driver.cuMemcpy2DUnaligned(In::to(&copy))
}

/// `cudaMemcpy2DAsync`
#[expect(clippy::too_many_arguments, reason = "the runtime's signature, and the driver")]
pub fn plane_async(
    driver: &Driver,
    to: Address,
    to_pitch: usize,
    from: ConstAddress,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: Kind,
    stream: Stream,
) -> Answer {
    let copy = plane_of((to, to_pitch), (from, from_pitch), width, height, Way::of(kind)?);
    driver.cuMemcpy2DAsync(In::to(&copy), stream)
}

fn plane_of(
    to: (Address, usize),
    from: (ConstAddress, usize),
    width: usize,
    height: usize,
    way: Way,
) -> CUDA_MEMCPY2D {
    let (source, target) = way.ends();
    CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: source,
        srcHost: from.0.0 as *const _,
        srcDevice: from.0.0,
        srcArray: std::ptr::null_mut(),
        srcPitch: from.1,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: target,
        dstHost: to.0.0 as *mut _,
        dstDevice: to.0.0,
        dstArray: std::ptr::null_mut(),
        dstPitch: to.1,
        WidthInBytes: width,
        Height: height,
    }
}

/// `cudaMemcpy3DParms`, its enum a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawVolume {
    from_array: usize,
    from_at: cudaPos,
    from: cudaPitchedPtr,
    to_array: usize,
    to_at: cudaPos,
    to: cudaPitchedPtr,
    extent: cudaExtent,
    kind: Kind,
}

impl Value for RawVolume {
    type Driver = ();
    type Runtime = cudaMemcpy3DParms;
}

const _: () = assert!(size_of::<RawVolume>() == size_of::<cudaMemcpy3DParms>());

/// `cudaMemcpy3D`
pub fn volume(driver: &Driver, copy: In<RawVolume>) -> Answer {
    driver.cuMemcpy3D(In::to(&copy.get().for_driver()?))
}

/// `cudaMemcpy3DAsync`
pub fn volume_async(driver: &Driver, copy: In<RawVolume>, stream: Stream) -> Answer {
    driver.cuMemcpy3DAsync(In::to(&copy.get().for_driver()?), stream)
}

impl RawVolume {
    /// The same copy in the driver's words; between arrays there is none.
    fn for_driver(&self) -> Answer<CUDA_MEMCPY3D> {
        if self.from_array != 0 || self.to_array != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        let (source, target) = Way::of(self.kind)?.ends();
        Ok(CUDA_MEMCPY3D {
            srcXInBytes: self.from_at.x,
            srcY: self.from_at.y,
            srcZ: self.from_at.z,
            srcMemoryType: source,
            srcHost: self.from.ptr,
            srcDevice: self.from.ptr as u64,
            srcPitch: self.from.pitch,
            srcHeight: self.from.ysize,
            dstXInBytes: self.to_at.x,
            dstY: self.to_at.y,
            dstZ: self.to_at.z,
            dstMemoryType: target,
            dstHost: self.to.ptr,
            dstDevice: self.to.ptr as u64,
            dstPitch: self.to.pitch,
            dstHeight: self.to.ysize,
            WidthInBytes: self.extent.width,
            Height: self.extent.height,
            Depth: self.extent.depth,
            ..flat(source, target)
        })
    }
}

/// A copy of nothing between such memories.
fn flat(source: CUmemorytype, target: CUmemorytype) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: source,
        srcHost: std::ptr::null(),
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        reserved0: std::ptr::null_mut(),
        srcPitch: 0,
        srcHeight: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: target,
        dstHost: std::ptr::null_mut(),
        dstDevice: 0,
        dstArray: std::ptr::null_mut(),
        reserved1: std::ptr::null_mut(),
        dstPitch: 0,
        dstHeight: 0,
        WidthInBytes: 0,
        Height: 0,
        Depth: 0,
    }
}

/// The copy of so many bytes as a node of a graph describes it: a volume of one row.
pub fn row(to: Address, from: ConstAddress, bytes: usize, way: Way) -> CUDA_MEMCPY3D {
    let (source, target) = way.ends();
    CUDA_MEMCPY3D {
        srcHost: from.0 as *const _,
        srcDevice: from.0,
        srcPitch: bytes,
        srcHeight: 1,
        dstHost: to.0 as *mut _,
        dstDevice: to.0,
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
        ..flat(source, target)
    }
}
