//! Questions about memory: answered for the logical allocation and the job's quota.

use super::abi::{In, Out, Real, slice};
use crate::driver;
use crate::gate::GATE;
use crate::process::Process;
use crate::raw::Location;
use crate::status::{Answer, Status};
use crate::tenant::{Found, Tenant};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ops::Range;
use tidegate_ffi::cuda::sys::*;

/// What a job is told that its GPU cannot do, because Tidegate refuses it: programs then take
/// their other way.
const NOT_OFFERED: &[CUdevice_attribute] = &[CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED];

/// `cuDeviceGetAttribute`.
pub fn device_attribute(
    _process: &'static Process,
    real: Real<'_>,
    value: Out<'_, c_int>,
    attribute: DeviceAttribute,
    _device: CUdevice,
) -> Answer {
    let value = value.preset(0);
    real()?;
    if NOT_OFFERED.iter().any(|known| attribute == *known) {
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
    match process.tenants.on(device).map(|tenant| tenant.layout.total_bytes) {
        // It may be more than the GPU has: the job asked for host memory in its place.
        Some(total) => bytes.set(total as usize),
        None => {
            bytes.set(bytes.get().min(process.settings.memory.map_or(usize::MAX, |quota| quota as usize)))
        }
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
    free.set(quota.saturating_sub(tenant.allocated_bytes()) as usize);
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
    let found = match process.tenants.with_address(address) {
        Some(tenant) => {
            let found = tenant.find(address).ok_or(Status(CUresult::CUDA_ERROR_NOT_FOUND))?;
            found.start..found.start + found.bytes
        }
        None => match own_mapping(process, address).or_else(|| process.borrowed.allocation_at(address)) {
            Some(mapping) => mapping,
            None => return real(),
        },
    };
    if let Some(base) = base {
        base.set(found.start);
    }
    if let Some(bytes) = bytes {
        bytes.set((found.end - found.start) as usize);
    }
    Ok(())
}

/// The addresses of the mapping, made by the program itself, that an address lies in: the driver knows
/// only of the pieces behind it, if they are there.
fn own_mapping(process: &Process, address: CUdeviceptr) -> Option<Range<CUdeviceptr>> {
    Some(process.loose.handles.lock().mapped_at(address)?.addresses)
}

/// Asks the driver; about memory that the program has mapped itself when it is there.
fn ask_where_it_is(process: &Process, address: CUdeviceptr, real: Real<'_>) -> Answer {
    let _pass = own_mapping(process, address).map(|_| GATE.pass()).transpose()?;
    real()
}

/// `cuPointerGetAttribute`.
pub fn pointer_attribute(
    process: &'static Process,
    real: Real<'_>,
    data: Out<'_, c_void>,
    attribute: PointerAttribute,
    address: CUdeviceptr,
) -> Answer {
    let Some(it) = Ours::at(process, address) else {
        of_others(process, real, address)?;
        if attribute == EXPORTS
            && let Some(exports) = exports_at(process, address)
        {
            exports.write(data);
        }
        return Ok(());
    };
    match it.answer(attribute) {
        Some(value) => {
            value.write(data);
            Ok(())
        }
        None if attribute == SYNC_MEMOPS => {
            // Nobody has set it for memory that the driver does not know now: it would be held.
            let value = data.of_type::<c_uint>().preset(0);
            real().or_else(|_| {
                value.set(0);
                Ok(())
            })
        }
        None => real(),
    }
}

/// The driver's answer, but for memory of ours that nobody has allocated: the driver would know a piece.
fn of_others(process: &Process, real: Real<'_>, address: CUdeviceptr) -> Answer {
    if process.tenants.with_address(address).is_some() {
        return Err(Status::INVALID_VALUE);
    }
    ask_where_it_is(process, address, real)
}

/// `cuPointerGetAttributes`: the driver's answers, ours written over them.
pub fn pointer_attributes(
    process: &'static Process,
    real: Real<'_>,
    count: c_uint,
    attributes: *mut PointerAttribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> Answer {
    ask_where_it_is(process, address, real)?;
    let it = Ours::at(process, address);

    // SAFETY: the program passes `count` attributes, by the driver's manual.
    let attributes = unsafe { slice(attributes, count as usize) }?;
    // SAFETY: and as many places for the answers.
    let data = unsafe { slice(data, count as usize) }?;
    for (&attribute, &place) in attributes.iter().zip(data) {
        let value = match &it {
            Some(it) => it.answer(attribute),
            None if attribute == EXPORTS => exports_at(process, address),
            None => None,
        };
        if let Some(value) = value {
            // SAFETY: the place has room for an answer of the attribute's type.
            value.write(unsafe { super::abi::Argument::from_c(place) }?);
        }
    }
    Ok(())
}

/// `cuPointerSetAttribute`: memory whose copies are to be synchronous is about to be used past the
/// driver (RDMA), so it stays where it is from now on.
pub fn set_pointer_attribute(
    process: &'static Process,
    real: Real<'_>,
    _value: *const c_void,
    attribute: PointerAttribute,
    address: CUdeviceptr,
) -> Answer {
    if attribute == SYNC_MEMOPS
        && let Some(tenant) = process.tenants.with_address(address)
    {
        tenant.hold(process, address)?;
    }
    real()
}

/// `cuMemGetAccess`.
pub fn access(
    process: &'static Process,
    real: Real<'_>,
    flags: Out<'_, c_ulonglong>,
    location: In<'_, CUmemLocation>,
    address: CUdeviceptr,
) -> Answer {
    let Some(it) = Ours::at(process, address) else { return ask_where_it_is(process, address, real) };
    let Some(device) = location.read::<Location>().device() else { return real() };
    flags.set(rights(it.tenant, device).into());
    Ok(())
}

const SYNC_MEMOPS: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;

const EXPORTS: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;

/// How memory that the program has mapped itself can be exported, as it asked when it made the handle. The driver knows
/// an imported piece, which it exports in no way.
fn exports_at(process: &Process, address: CUdeviceptr) -> Option<Value> {
    let handles = process.loose.handles.lock();
    let number = handles.mapped_at(address)?.number;
    Some(Value::Pointer(u64::from(handles.properties(number)?.exports.cast_unsigned())))
}

/// What a device may do with a tenant's memory: read (1) and write (2).
fn rights(tenant: &Tenant, device: CUdevice) -> u32 {
    if tenant.is_for(device) { 3 } else { 0 }
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

/// Live memory of ours that is asked about.
struct Ours {
    process: &'static Process,
    tenant: &'static Tenant,
    found: Found,
    address: CUdeviceptr,
}

impl Ours {
    fn at(process: &'static Process, address: CUdeviceptr) -> Option<Self> {
        let tenant = process.tenants.with_address(address)?;
        Some(Self { process, tenant, found: tenant.find(address)?, address })
    }

    /// What the driver says of memory that it has allocated itself. Of ours it would speak of a piece, or
    /// of the whole range; and it knows nothing of memory that is away.
    fn answer(&self, attribute: PointerAttribute) -> Option<Value> {
        let (_, answer) = ANSWERS.iter().find(|(known, _)| attribute == *known)?;
        Some(answer(self))
    }

    fn number(&self) -> u64 {
        self.tenant.number_of(self.found.start).unwrap_or(0)
    }

    fn pool(&self) -> u64 {
        self.process.pools.of(self.found.start).map_or(0, |pool| pool.0 as u64)
    }

    /// Pieces are made so where the device can, as the mover does.
    fn is_for_rdma(&self) -> u32 {
        let supported = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        driver::device_attribute(self.tenant.device, supported).is_some_and(|value| value != 0).into()
    }

    fn rights_here(&self) -> u32 {
        driver::current_device().map_or(0, |device| rights(self.tenant, device))
    }
}

type AnswerOf = fn(&Ours) -> Value;

/// What we answer. Of the rest the driver's own word is right: that there is no host pointer, and what
/// is set for memory that is held.
const ANSWERS: &[(CUpointer_attribute, AnswerOf)] = {
    use CUpointer_attribute::*;
    use Value::{Number, Pointer};
    &[
        (CU_POINTER_ATTRIBUTE_CONTEXT, |it| Pointer(it.found.owner.0.addr() as u64)),
        (CU_POINTER_ATTRIBUTE_MEMORY_TYPE, |_| Number(CUmemorytype::CU_MEMORYTYPE_DEVICE as u32)),
        (CU_POINTER_ATTRIBUTE_DEVICE_POINTER, |it| Pointer(it.address)),
        (CU_POINTER_ATTRIBUTE_BUFFER_ID, |it| Pointer(it.number())),
        (CU_POINTER_ATTRIBUTE_IS_MANAGED, |_| Number(0)),
        (CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, |it| Number(it.tenant.device as u32)),
        // As with the driver, memory of pools has no such handle.
        (CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, |it| Number((it.pool() == 0).into())),
        (CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, |it| Pointer(it.found.start)),
        (CU_POINTER_ATTRIBUTE_RANGE_SIZE, |it| Pointer(it.found.bytes)),
        (CU_POINTER_ATTRIBUTE_MAPPED, |_| Number(1)),
        (CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, |_| Pointer(0)),
        (CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, |it| Number(it.is_for_rdma())),
        (CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, |it| Number(it.rights_here())),
        (CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, |it| Pointer(it.pool())),
        (CU_POINTER_ATTRIBUTE_MAPPING_SIZE, |it| Pointer(it.found.bytes)),
        (CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, |it| Pointer(it.found.start)),
        (CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, |it| Pointer(it.number())),
        (CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, |_| Number(0)),
    ]
};
