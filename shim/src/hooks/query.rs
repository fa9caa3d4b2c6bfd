//! Questions about memory: answered for the logical allocation and the job's quota.

use super::abi::{Out, Real, slice};
use crate::process::Process;
use crate::status::{Answer, Status};
use crate::tenant::{Found, Tenant};
use std::ffi::{c_int, c_uint, c_void};
use tidegate_ffi::cuda::sys::*;

/// What a job is told that its GPU cannot do, because Tidegate refuses it: programs then take
/// their other way.
const NOT_OFFERED: &[CUdevice_attribute] = &[
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
];

/// `cuDeviceGetAttribute`.
pub fn device_attribute(
    _process: &'static Process,
    real: Real<'_>,
    value: Out<'_, c_int>,
    attribute: CUdevice_attribute,
    _device: CUdevice,
) -> Answer {
    let value = value.preset(0);
    real()?;
    if NOT_OFFERED.contains(&attribute) {
        value.set(0);
    }
    Ok(())
}

/// `cuDeviceTotalMem_v2`: the job's quota.
pub fn total_memory(
    process: &'static Process,
    real: Real<'_>,
    bytes: Out<'_, usize>,
    device: CUdevice,
) -> Answer {
    let bytes = bytes.preset(0);
    real()?;
    let attached = process.tenants.on(device).map(|tenant| tenant.layout.total_bytes);
    if let Some(quota) = attached.or(process.settings.memory) {
        bytes.set(bytes.get().min(quota as usize));
    }
    Ok(())
}

/// `cuMemGetInfo_v2`: the quota, and what of it the job itself has not allocated, whoever runs.
pub fn memory_info(
    process: &'static Process,
    _real: Real<'_>,
    free: Out<'_, usize>,
    total: Out<'_, usize>,
) -> Answer {
    let tenant = process.current_tenant()?;
    let quota = tenant.layout.total_bytes;
    free.set(quota.saturating_sub(tenant.live_bytes()) as usize);
    total.set(quota as usize);
    Ok(())
}

/// `cuMemGetAddressRange_v2`.
pub fn address_range(
    process: &'static Process,
    real: Real<'_>,
    base: Option<Out<'_, CUdeviceptr>>,
    bytes: Option<Out<'_, usize>>,
    address: CUdeviceptr,
) -> Answer {
    let Some(tenant) = process.tenants.with_address(address) else { return real() };
    let found = tenant.find(address).ok_or(Status(CUresult::CUDA_ERROR_NOT_FOUND))?;
    if let Some(base) = base {
        base.set(found.start);
    }
    if let Some(bytes) = bytes {
        bytes.set(found.bytes as usize);
    }
    Ok(())
}

/// `cuPointerGetAttribute`.
pub fn pointer_attribute(
    process: &'static Process,
    real: Real<'_>,
    data: Out<'_, c_void>,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Answer {
    match find(process, address).and_then(|(tenant, found)| ours(tenant, found, attribute, address)) {
        Some(value) => {
            value.write(data);
            Ok(())
        }
        None => real(),
    }
}

/// `cuPointerGetAttributes`: the driver's answers, ours written over them.
pub fn pointer_attributes(
    process: &'static Process,
    real: Real<'_>,
    count: c_uint,
    attributes: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> Answer {
    real()?;
    let Some((tenant, found)) = find(process, address) else { return Ok(()) };
    // SAFETY: the program passes `count` attributes, by the driver's manual.
    let attributes = unsafe { slice(attributes, count as usize) }?;
    // SAFETY: and as many places for the answers.
    let data = unsafe { slice(data, count as usize) }?;
    for (&attribute, &place) in attributes.iter().zip(data) {
        if let Some(value) = ours(tenant, found, attribute, address) {
            // SAFETY: the place has room for an answer of the attribute's type.
            value.write(unsafe { super::abi::Argument::from_c(place) }?);
        }
    }
    Ok(())
}

fn find(process: &Process, address: CUdeviceptr) -> Option<(&'static Tenant, Found)> {
    let tenant = process.tenants.with_address(address)?;
    Some((tenant, tenant.find(address)?))
}

/// An attribute of our memory, in the size in which the driver writes it.
enum Value {
    Pointer(u64),
    Number(u32),
}

impl Value {
    fn write(self, place: Out<'_, c_void>) {
        match self {
            Self::Pointer(value) => place.of_type::<u64>().set(value),
            Self::Number(value) => place.of_type::<u32>().set(value),
        }
    }
}

/// What we answer for our memory. The driver would speak of a piece, or of the whole range; and
/// it knows nothing of memory that is away.
fn ours(
    tenant: &Tenant,
    found: Found,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Option<Value> {
    use CUpointer_attribute::*;
    Some(match attribute {
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Value::Pointer(found.start),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => Value::Pointer(found.bytes),
        CU_POINTER_ATTRIBUTE_CONTEXT => Value::Pointer(found.owner.0.addr() as u64),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Value::Pointer(address),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Value::Number(CUmemorytype::CU_MEMORYTYPE_DEVICE as u32),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Number(tenant.device as u32),
        _ => return None,
    })
}
