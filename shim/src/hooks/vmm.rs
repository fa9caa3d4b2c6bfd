//! The program's own virtual memory calls: handles are ours, and lie in pieces; addresses are its own.
//!
//! What is not ours (memory of the host, handles of other processes) goes to the driver as it is.

use super::abi::{In, Out, Real, slice};
use crate::borrowed::{self, Shared};
use crate::driver;
use crate::gate::GATE;
use crate::handles::{Extent, HandleNumber, Mapping};
use crate::process::Process;
use crate::raw::{Access, Properties};
use crate::status::{Answer, Status};
use std::ffi::{c_int, c_ulonglong, c_void};
use std::ops::Range;
use std::os::fd::IntoRawFd;
use tidegate_ffi::cuda::sys::*;

const PINNED: i32 = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as i32;
const FD: i32 = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 as i32;
const NOT_SUPPORTED: Status = Status(CUresult::CUDA_ERROR_NOT_SUPPORTED);

/// `cuMemCreate`.
pub fn create(
    process: &'static Process,
    real: Real<'_>,
    handle: Out<'_, CUmemGenericAllocationHandle>,
    bytes: usize,
    properties: In<'_, CUmemAllocationProp>,
    flags: c_ulonglong,
) -> Answer {
    let properties: Properties = properties.read();
    let Some(device) = properties.location.device() else { return real() };
    if properties.kind != PINNED || flags != 0 || bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    if properties.exports & !FD != 0 {
        // Fabric handles: others would reach memory that moves.
        return Err(NOT_SUPPORTED);
    }
    let tenant = process.attach(device)?;
    if !(bytes as u64).is_multiple_of(tenant.layout.unit_bytes) {
        return Err(Status::INVALID_VALUE);
    }
    let number = tenant.allocate_apart(process, bytes as u64, properties)?;
    handle.set(number.0);
    Ok(())
}

/// `cuMemGetAllocationGranularity`: at least a unit.
pub fn granularity(
    process: &'static Process,
    real: Real<'_>,
    bytes: Out<'_, usize>,
    properties: In<'_, CUmemAllocationProp>,
    _option: CUmemAllocationGranularity_flags,
) -> Answer {
    let bytes = bytes.preset(0);
    real()?;
    let properties: Properties = properties.read();
    let device = properties.location.device();
    if let Some(tenant) = device.and_then(|device| process.tenants.on(device)) {
        bytes.set(bytes.get().max(tenant.layout.unit_bytes as usize));
    }
    Ok(())
}

fn ours(process: &Process, handle: CUmemGenericAllocationHandle) -> Option<(HandleNumber, Extent)> {
    let number = HandleNumber(handle);
    let handles = process.loose.handles.lock();
    handles.get(number)?;
    Some((number, handles.extent(number)?))
}

/// A handle that is not ours, or not any more: the driver would crash on a number of ours.
fn of_the_drivers(process: &Process, handle: CUmemGenericAllocationHandle, real: Real<'_>) -> Answer {
    let was_ours = process.loose.handles.lock().was_given(HandleNumber(handle));
    if was_ours { Err(Status::INVALID_VALUE) } else { real() }
}

/// `cuMemRelease`.
pub fn release(process: &'static Process, real: Real<'_>, handle: CUmemGenericAllocationHandle) -> Answer {
    let Some((number, _)) = ours(process, handle) else { return of_the_drivers(process, handle, real) };
    let is_over = process.loose.handles.lock().release(number);
    if is_over == Some(true) {
        end(process, number);
    }
    Ok(())
}

/// A handle that the program cannot reach any more: its memory goes back to the manager.
fn end(process: &Process, number: HandleNumber) {
    let extent = process.loose.handles.lock().extent(number);
    let Some(extent) = extent else { return };
    // Not while pieces come or go. When the gate has failed, nothing moves any more.
    let _pass = GATE.pass();
    let gone = process.loose.forget(extent);
    process.loose.handles.lock().remove(number);
    if let Some(tenant) = process.tenants.on(extent.device) {
        tenant.free_apart(process, extent, &gone);
    }
}

/// `cuMemRetainAllocationHandle`. Memory that was not mapped by the program has no handle for it.
pub fn retain(
    process: &'static Process,
    real: Real<'_>,
    handle: Out<'_, CUmemGenericAllocationHandle>,
    address: *mut c_void,
) -> Answer {
    let address = address.addr() as CUdeviceptr;
    if let Some(number) = process.loose.handles.lock().retain(address) {
        handle.set(number.0);
        return Ok(());
    }
    if process.tenants.with_address(address).is_some() {
        return Err(Status::INVALID_VALUE);
    }
    real()
}

/// `cuMemGetAllocationPropertiesFromHandle`.
pub fn properties(
    process: &'static Process,
    real: Real<'_>,
    properties: Out<'_, CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> Answer {
    let known = process.loose.handles.lock().get(HandleNumber(handle)).map(|handle| handle.properties);
    let Some(known) = known else { return of_the_drivers(process, handle, real) };
    properties.of_layout::<Properties>().set(known);
    Ok(())
}

/// `cuMemMap`.
pub fn map(
    process: &'static Process,
    real: Real<'_>,
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> Answer {
    let Some((number, extent)) = ours(process, handle) else { return of_the_drivers(process, handle, real) };
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if bytes as u64 != extent.bytes || offset != 0 {
        return Err(NOT_SUPPORTED);
    }
    let _pass = GATE.pass()?;
    process.loose.map(extent, address)?;
    process.loose.handles.lock().map(number, address);
    Ok(())
}

/// `cuMemUnmap`: whole mappings, ours and the driver's.
pub fn unmap(process: &'static Process, real: Real<'_>, address: CUdeviceptr, bytes: usize) -> Answer {
    let range = address..address.checked_add(bytes as u64).ok_or(Status::INVALID_VALUE)?;
    let mappings = process.loose.handles.lock().mappings_in(range.clone());
    if mappings.is_empty() {
        return real();
    }
    let is_whole = |its: &Range<CUdeviceptr>| range.start <= its.start && its.end <= range.end;
    if !mappings.iter().all(|mapping| is_whole(&mapping.addresses)) {
        return Err(Status::INVALID_VALUE);
    }
    let _pass = GATE.pass()?;
    // First what may be refused: then nothing has changed.
    let mut from = range.start;
    for mapping in &mappings {
        unmap_theirs(from..mapping.addresses.start)?;
        from = mapping.addresses.end;
    }
    unmap_theirs(from..range.end)?;
    mappings.iter().try_for_each(|mapping| unmap_one(process, mapping))
}

/// Unmaps what the driver has mapped beside ours.
fn unmap_theirs(range: Range<CUdeviceptr>) -> Answer {
    if !range.is_empty() {
        // SAFETY: addresses that the program has asked to unmap.
        unsafe { driver::get().cuMemUnmap(range.start, (range.end - range.start) as usize) }?;
    }
    Ok(())
}

fn unmap_one(process: &Process, mapping: &Mapping) -> Answer {
    let extent = process.loose.handles.lock().extent(mapping.number);
    process.loose.unmap(extent.ok_or(Status::INVALID_VALUE)?, mapping.addresses.start)?;
    let is_over = process.loose.handles.lock().unmap(mapping);
    if is_over {
        end(process, mapping.number);
    }
    Ok(())
}

/// `cuMemSetAccess`: the driver's, and remembered for what may go and come back.
pub fn set_access(
    process: &'static Process,
    real: Real<'_>,
    address: CUdeviceptr,
    bytes: usize,
    list: *const CUmemAccessDesc,
    count: usize,
) -> Answer {
    let _pass = GATE.pass()?;
    real()?;
    // SAFETY: the program passes `count` descriptions, which the driver has read; ours has the same
    // layout, of plain numbers.
    let access = unsafe { slice(list.cast::<Access>(), count) }?;
    process.loose.handles.lock().grant(address..address.saturating_add(bytes as u64), access);
    Ok(())
}

/// `cuMemExportToShareableHandle`: from now on the memory stays where it is. The driver exports no handle that was
/// imported, as ours are, so the manager gives the descriptor.
pub fn export(
    process: &'static Process,
    real: Real<'_>,
    shared: Out<'_, c_void>,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> Answer {
    let Some((number, extent)) = ours(process, handle) else { return of_the_drivers(process, handle, real) };
    let exports = process.loose.handles.lock().get(number).map_or(0, |handle| handle.properties.exports);
    if kind.0 as i32 != FD || exports & FD == 0 || flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let _pass = GATE.pass()?;
    let tenant = process.tenants.on(extent.device).ok_or(Status::INVALID_VALUE)?;
    tenant.hold_at(process, extent.class, extent.start)?;
    let descriptor = borrowed::descriptor_of(
        process,
        Shared {
            tenant: tenant.id,
            class: extent.class,
            start: extent.start,
            bytes: extent.bytes,
            unit: tenant.layout.unit_bytes,
        },
    )?;
    shared.of_type::<c_int>().set(descriptor.into_raw_fd());
    Ok(())
}
