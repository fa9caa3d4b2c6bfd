//! Kernels: their attributes and how many blocks of them fit.

use std::ffi::c_char;

use cudarc::driver::sys::CUfunction_attribute as Attribute;
use cudarc::runtime::sys::{cudaFuncAttribute, cudaFuncAttributes, cudaFuncCache};

use crate::abi::{Enum, Function, Host, Kernel, Maybe, Out};
use crate::current;
use crate::driver::Driver;
use crate::error::Answer;
use crate::register;

/// `cudaFuncAttribute`
pub type Name = Enum<Attribute, cudaFuncAttribute>;

/// `cudaFuncGetAttributes`
pub fn attributes(driver: &Driver, mut out: Out<cudaFuncAttributes>, function: Host) -> Answer {
    let (kernel, device) = (register::find(driver, function)?, current::device(driver)?);
    let attribute = |name: Attribute| -> Answer<i32> {
        let mut value = 0;
        driver.cuKernelGetAttribute(Out::to(&mut value), Enum::new(name as u32), kernel, device)?;
        Ok(value)
    };
    out.set(cudaFuncAttributes {
        sharedSizeBytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)? as usize,
        constSizeBytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)? as usize,
        localSizeBytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)? as usize,
        maxThreadsPerBlock: attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        numRegs: attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
        ptxVersion: attribute(Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
        binaryVersion: attribute(Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        cacheModeCA: attribute(Attribute::CU_FUNC_ATTRIBUTE_CACHE_MODE_CA)?,
        maxDynamicSharedSizeBytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
        preferredShmemCarveout: attribute(Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)?,
        clusterDimMustBeSet: attribute(Attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET)?,
        requiredClusterWidth: attribute(Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)?,
        requiredClusterHeight: attribute(Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT)?,
        requiredClusterDepth: attribute(Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH)?,
        clusterSchedulingPolicyPreference: attribute(
            Attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        )?,
        nonPortableClusterSizeAllowed: attribute(
            Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        )?,
        reserved: [0; 16],
    });
    Ok(())
}

/// `cudaFuncSetAttribute`
pub fn set_attribute(driver: &Driver, function: Host, name: Name, value: i32) -> Answer {
    let (kernel, device) = (register::find(driver, function)?, current::device(driver)?);
    driver.cuKernelSetAttribute(name, value, kernel, device)
}

/// `cudaKernelSetAttributeForDevice`
pub fn set_attribute_on(driver: &Driver, kernel: Kernel, name: Name, value: i32, device: i32) -> Answer {
    driver.cuKernelSetAttribute(name, value, kernel, device)
}

/// `cudaFuncSetCacheConfig`
pub fn set_cache(
    driver: &Driver,
    function: Host,
    config: Enum<cudarc::driver::sys::CUfunc_cache, cudaFuncCache>,
) -> Answer {
    let (kernel, device) = (register::find(driver, function)?, current::device(driver)?);
    driver.cuKernelSetCacheConfig(kernel, config, device)
}

/// `cudaFuncGetName`
pub fn name(driver: &Driver, out: Out<*const c_char>, function: Host) -> Answer {
    driver.cuKernelGetName(out, register::find(driver, function)?)
}

/// `cudaFuncGetParamInfo`
pub fn parameter(
    driver: &Driver,
    function: Host,
    index: usize,
    offset: Out<usize>,
    size: Maybe<usize>,
) -> Answer {
    driver.cuKernelGetParamInfo(register::find(driver, function)?, index, offset, size)
}

/// `cudaGetFuncBySymbol`
pub fn by_symbol(driver: &Driver, out: Out<Function>, function: Host) -> Answer {
    driver.cuKernelGetFunction(out, register::find(driver, function)?)
}

/// `cudaOccupancyMaxActiveBlocksPerMultiprocessor`
pub fn active_blocks(driver: &Driver, out: Out<i32>, function: Host, block: i32, shared: usize) -> Answer {
    active_blocks_with(driver, out, function, block, shared, 0)
}

/// `cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`
pub fn active_blocks_with(
    driver: &Driver,
    out: Out<i32>,
    function: Host,
    block: i32,
    shared: usize,
    flags: u32,
) -> Answer {
    let function = register::find_function(driver, function)?;
    driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, function, block, shared, flags)
}

/// `cudaOccupancyAvailableDynamicSMemPerBlock`
pub fn available_shared(driver: &Driver, out: Out<usize>, function: Host, blocks: i32, block: i32) -> Answer {
    let function = register::find_function(driver, function)?;
    driver.cuOccupancyAvailableDynamicSMemPerBlock(out, function, blocks, block)
}
