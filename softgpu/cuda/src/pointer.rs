//! What the driver tells about an address.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::{CUcontext, CUmemorytype, CUpointer_attribute as Attribute, CUresult};

use crate::abi::{Answer, Enum, Host, InMut, Mirror, OutAny, OutAnys};
use crate::space::{self, HOST_BIT, Kind, Region};
use crate::vmm::Location;

/// An attribute's number: C may ask for any.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct RawAttribute(u32);

impl Mirror for RawAttribute {
    type Of = Attribute;
}

/// An attribute's value, of the type its manual page names.
enum Value {
    Int(i32),
    Wide(u64),
    Pointer(usize),
}

impl Value {
    fn write(&self, out: &OutAny) {
        match self {
            Value::Int(value) => out.set(*value),
            Value::Wide(value) => out.set(*value),
            Value::Pointer(value) => out.set(*value as *mut c_void),
        }
    }
}

/// `cuPointerGetAttribute`
pub fn attribute(out: OutAny, attribute: Enum<Attribute>, at: u64) -> Answer {
    let address = at as usize;
    let region = space::look().find(address).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    value(attribute.0, address, &region)?.write(&out);
    Ok(())
}

/// `cuPointerGetAttributes`: an address that is unknown gives zeroes, not an error.
pub fn attributes(count: u32, list: InMut<RawAttribute>, out: OutAnys, at: u64) -> Answer {
    let (count, address) = (count as usize, at as usize);
    let region = space::look().find(address).cloned();
    for (attribute, out) in list.many(count).into_iter().zip(out.many(count)) {
        let known = region.as_ref().and_then(|region| value(attribute.0, address, region).ok());
        if let Some(out) = out {
            known.unwrap_or_else(|| nothing(attribute.0)).write(&out);
        }
    }
    Ok(())
}

/// Whether calls that name no stream wait for what they do to that memory, since it was asked for.
pub fn is_synchronous(address: usize) -> bool {
    space::look().find(address).is_some_and(synchronous)
}

fn synchronous(region: &Region) -> bool {
    match &region.kind {
        Kind::Allocated { block, .. } => block.synchronous.load(Ordering::Relaxed),
        _ => false,
    }
}

/// `cuPointerSetAttribute`: that copies and memsets of an allocation are to be synchronous.
pub fn set_attribute(value: Host, attribute: Enum<Attribute>, at: u64) -> Answer {
    const SYNC_MEMOPS: u32 = Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as u32;
    if value.0 == 0 || attribute.0 != SYNC_MEMOPS {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the manual page says that this attribute is set from an int.
    let on = unsafe { (value.0 as *const i32).read_unaligned() } != 0;
    match space::look().find(at as usize).map(|region| &region.kind) {
        Some(Kind::Allocated { block, .. }) => block.synchronous.store(on, Ordering::Relaxed),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

fn nothing(attribute: u32) -> Value {
    match attribute {
        1 | 3 | 4 | 11 | 12 | 17 => Value::Pointer(0),
        7 | 14 => Value::Wide(0),
        9 => Value::Int(-2), // CU_DEVICE_INVALID
        _ => Value::Int(0),
    }
}

fn value(attribute: u32, address: usize, region: &Region) -> Answer<Value> {
    const DEVICE: i32 = CUmemorytype::CU_MEMORYTYPE_DEVICE as i32;
    const HOST: i32 = CUmemorytype::CU_MEMORYTYPE_HOST as i32;
    let on_host = is_host(region);
    Ok(match attribute {
        x if x == Attribute::CU_POINTER_ATTRIBUTE_CONTEXT as u32 => {
            Value::Pointer(region.context().unwrap_or(0) as CUcontext as usize)
        }
        x if x == Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as u32 => {
            Value::Int(if on_host { HOST } else { DEVICE })
        }
        x if x == Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER as u32 => Value::Pointer(address),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER as u32 => {
            host_pointer(address, on_host || matches!(region.kind, Kind::Managed { .. }))?
        }
        x if x == Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as u32 => {
            Value::Int(synchronous(region).into())
        }
        x if x == Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as u32 => Value::Wide(region.start as u64),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as u32 => {
            Value::Int(matches!(region.kind, Kind::Managed { .. }).into())
        }
        x if x == Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as u32 => Value::Int(ordinal(region)),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as u32 => {
            Value::Int(matches!(region.kind, Kind::Allocated { pool: None, .. }).into())
        }
        x if x == Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as u32 => Value::Pointer(range(region).0),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE as u32 => Value::Pointer(range(region).1),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_MAPPED as u32 => Value::Int(1),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES as u32 => {
            Value::Wide(handle_types(region))
        }
        x if x == Attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE as u32 => Value::Int(0),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS as u32 => Value::Int(access(region)),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as u32 => Value::Pointer(pool(region)),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE as u32 => Value::Pointer(region.size),
        x if x == Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR as u32 => Value::Pointer(region.start),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}

fn host_pointer(address: usize, on_host: bool) -> Answer<Value> {
    on_host.then_some(Value::Pointer(address)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn is_host(region: &Region) -> bool {
    match &region.kind {
        Kind::Pinned { .. } => true,
        Kind::Mapped(mapping) => matches!(mapping.piece.location, Location::Host(..)),
        Kind::Allocated { .. } | Kind::Global { .. } | Kind::Managed { .. } | Kind::Opened { .. } => false,
    }
}

fn ordinal(region: &Region) -> i32 {
    match &region.kind {
        Kind::Allocated { device, .. }
        | Kind::Global { device, .. }
        | Kind::Managed { device, .. }
        | Kind::Opened { device, .. } => *device as i32,
        Kind::Pinned { context, .. } => {
            crate::context::find(*context).map_or(0, |context| context.device as i32)
        }
        Kind::Mapped(mapping) => match mapping.piece.location {
            Location::Device(ordinal) => ordinal as i32,
            Location::Host(..) => -1, // CU_DEVICE_CPU
        },
    }
}

/// As on hardware, of a piece that is mapped this is the whole of the reserved range.
fn range(region: &Region) -> (usize, usize) {
    let reserved = match &region.kind {
        Kind::Mapped(_) => space::look().reservation(region.start, region.size),
        _ => None,
    };
    reserved.unwrap_or((region.start, region.size))
}

fn handle_types(region: &Region) -> u64 {
    match &region.kind {
        Kind::Mapped(mapping) => mapping.piece.handle_types().into(),
        _ => 0,
    }
}

fn pool(region: &Region) -> usize {
    match &region.kind {
        Kind::Allocated { pool, .. } => pool.as_ref().map_or(0, |pool| pool.handle),
        _ => 0,
    }
}

fn access(region: &Region) -> i32 {
    match &region.kind {
        Kind::Mapped(mapping) => {
            let (read, write) = (mapping.read & !HOST_BIT != 0, mapping.write & !HOST_BIT != 0);
            i32::from(read) | i32::from(write) << 1
        }
        _ => 3,
    }
}
