//! `cudaGetDeviceProperties`: the driver's attributes, in one structure.

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUuuid};
use cudarc::runtime::sys::{CUuuid_st, cudaDeviceProp};

use crate::abi::{Enum, Out};
use crate::driver::Driver;
use crate::error::Answer;

/// Fields and the attributes they are.
macro_rules! fill {
    ($properties:ident, $attribute:ident; $($($field:ident)? $(($($place:tt)*))? = $name:ident;)*) => {
        $(fill!(@ $properties, $($field)? $($($place)*)?) = $attribute(Attribute::$name)? as _;)*
    };
    (@ $properties:ident, $($place:tt)*) => { $properties.$($place)* };
}

/// `cudaGetDeviceProperties`
pub fn get(driver: &Driver, mut out: Out<cudaDeviceProp>, device: i32) -> Answer {
    let mut properties = nothing();
    driver.cuDeviceTotalMem(Out::to(&mut properties.totalGlobalMem), device)?;
    let length = properties.name.len() as i32;
    driver.cuDeviceGetName(Out::to(&mut properties.name).first(), length, device)?;
    let mut uuid = CUuuid { bytes: [0; 16] };
    driver.cuDeviceGetUuid(Out::to(&mut uuid), device)?;
    properties.uuid = CUuuid_st { bytes: uuid.bytes };
    attributes(driver, &mut properties, device)?;
    out.set(properties);
    Ok(())
}

fn attributes(driver: &Driver, properties: &mut cudaDeviceProp, device: i32) -> Answer {
    let attribute = |attribute: Attribute| {
        let mut value = 0;
        driver.cuDeviceGetAttribute(Out::to(&mut value), Enum::new(attribute as u32), device)?;
        Ok(value)
    };
    fill! { properties, attribute;
        sharedMemPerBlock = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK;
        regsPerBlock = CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK;
        warpSize = CU_DEVICE_ATTRIBUTE_WARP_SIZE;
        memPitch = CU_DEVICE_ATTRIBUTE_MAX_PITCH;
        maxThreadsPerBlock = CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        (maxThreadsDim[0]) = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X;
        (maxThreadsDim[1]) = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y;
        (maxThreadsDim[2]) = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z;
        (maxGridSize[0]) = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X;
        (maxGridSize[1]) = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y;
        (maxGridSize[2]) = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z;
        totalConstMem = CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY;
        major = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        minor = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        textureAlignment = CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT;
        texturePitchAlignment = CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT;
        surfaceAlignment = CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT;
        multiProcessorCount = CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        integrated = CU_DEVICE_ATTRIBUTE_INTEGRATED;
        canMapHostMemory = CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY;
        concurrentKernels = CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS;
        ECCEnabled = CU_DEVICE_ATTRIBUTE_ECC_ENABLED;
        pciBusID = CU_DEVICE_ATTRIBUTE_PCI_BUS_ID;
        pciDeviceID = CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID;
        pciDomainID = CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID;
        tccDriver = CU_DEVICE_ATTRIBUTE_TCC_DRIVER;
        asyncEngineCount = CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT;
        unifiedAddressing = CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
        memoryBusWidth = CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH;
        l2CacheSize = CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        persistingL2CacheMaxSize = CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE;
        maxThreadsPerMultiProcessor = CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR;
        streamPrioritiesSupported = CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED;
        globalL1CacheSupported = CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED;
        localL1CacheSupported = CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED;
        sharedMemPerMultiprocessor = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        regsPerMultiprocessor = CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR;
        managedMemory = CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
        isMultiGpuBoard = CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD;
        multiGpuBoardGroupID = CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID;
        hostNativeAtomicSupported = CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED;
        pageableMemoryAccess = CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
        concurrentManagedAccess = CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        computePreemptionSupported = CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED;
        canUseHostPointerForRegisteredMem = CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        cooperativeLaunch = CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH;
        sharedMemPerBlockOptin = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        directManagedMemAccessFromHost = CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST;
        maxBlocksPerMultiProcessor = CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR;
        accessPolicyMaxWindowSize = CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE;
        reservedSharedMemPerBlock = CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK;
        hostRegisterSupported = CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
        sparseCudaArraySupported = CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED;
        timelineSemaphoreInteropSupported = CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED;
        memoryPoolsSupported = CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        gpuDirectRDMASupported = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED;
        memoryPoolSupportedHandleTypes = CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES;
        clusterLaunch = CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH;
        unifiedFunctionPointers = CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS;
    }
    Ok(())
}

/// No name and nothing of everything.
fn nothing() -> cudaDeviceProp {
    // SAFETY: a structure of numbers and characters, all of which may be 0.
    unsafe { std::mem::zeroed() }
}
