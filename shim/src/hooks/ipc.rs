//! Memory shared between the processes of a job by legacy handles.
//!
//! Memory of pieces has none of the driver's: ours says where it lies, and the manager hands the pieces
//! out, to processes of the same job. What is not ours is the driver's.

use super::abi::{Out, Real};
use crate::borrowed::{Shared, Token};
use crate::driver::{current_device, synchronize};
use crate::process::Process;
use crate::status::{Answer, Status};
use std::ffi::c_uint;
use tidegate_ffi::cuda::sys::*;

/// `cuIpcGetMemHandle`: from now on the memory stays where it is. As with the driver, memory from pools
/// and the program's own physical memory have no such handle.
pub fn share(
    process: &'static Process,
    real: Real<'_>,
    handle: Out<'_, CUipcMemHandle>,
    address: CUdeviceptr,
) -> Answer {
    let Some(tenant) = process.tenants.with_address(address) else { return real() };
    let found = tenant.find(address).ok_or(Status::INVALID_VALUE)?;
    if process.pools.of(found.start).is_some() {
        return Err(Status::INVALID_VALUE);
    }
    let shared = tenant.share(process, address)?;
    handle.set(CUipcMemHandle { reserved: Token::of(shared).bytes().map(|byte| byte as _) });
    Ok(())
}

/// `cuIpcOpenMemHandle_v2`.
pub fn open(
    process: &'static Process,
    real: Real<'_>,
    address: Out<'_, CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> Answer {
    let Some(shared) = Token::from(handle.reserved.map(|byte| byte as u8)).shared() else { return real() };
    if flags != CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint {
        return Err(Status::INVALID_VALUE);
    }
    if is_our_own(process, &shared) {
        return Err(Status(CUresult::CUDA_ERROR_INVALID_CONTEXT));
    }
    address.set(process.borrowed.open(process, current_device()?, shared)?);
    Ok(())
}

fn is_our_own(process: &Process, shared: &Shared) -> bool {
    process.tenants.all().iter().any(|tenant| tenant.id == shared.tenant)
}

/// `cuIpcCloseMemHandle`: after the work that may use it.
pub fn close(process: &'static Process, real: Real<'_>, address: CUdeviceptr) -> Answer {
    if !process.borrowed.has(address) {
        return real();
    }
    synchronize()?;
    process.borrowed.close(address)
}
