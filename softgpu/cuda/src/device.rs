//! Devices: what programs ask before they use one. The figures are those of no real card.

use cudarc::driver::sys::{CUdevice_P2PAttribute, CUdevice_attribute as Attribute, CUresult, CUuuid};

use crate::abi::{Answer, Enum, Out, OutText, Text};
use crate::node::{self, Gpu};

/// Threads of a block.
pub const MOST_THREADS: i32 = 1024;
/// Multiprocessors of a GPU.
pub const MULTIPROCESSORS: i32 = 16;
/// Threads a multiprocessor holds.
pub const THREADS_PER_SM: i32 = 2048;
/// Bytes of shared memory of a multiprocessor.
pub const SHARED_PER_SM: i32 = 228 << 10;
/// Bytes of shared memory that a block may ask for.
pub const SHARED_OPT_IN: i32 = 227 << 10;

/// The driver API's version.
const VERSION: i32 = 13000;

/// All attributes that are not 0.
const ATTRIBUTES: &[(Attribute, i32)] = &[
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, MOST_THREADS),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, i32::MAX),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH, i32::MAX),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536),
    (Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1_500_000),
    (Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512),
    (Attribute::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, MULTIPROCESSORS),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2_000_000),
    (Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 512),
    (Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 32 << 20),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, THREADS_PER_SM),
    (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2),
    (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
    (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
    (Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, SHARED_PER_SM),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SHARED_OPT_IN),
    (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
];

/// `cuDriverGetVersion`
pub fn version(out: Out<i32>) -> Answer {
    out.set(VERSION);
    Ok(())
}

/// `cuDeviceGetCount`
pub fn count(out: Out<i32>) -> Answer {
    out.set(node::node()?.gpus.len() as i32);
    Ok(())
}

/// `cuDeviceGet`
pub fn get(out: Out<i32>, ordinal: i32) -> Answer {
    node::gpu(ordinal)?;
    out.set(ordinal);
    Ok(())
}

/// `cuDeviceGetName`
pub fn name(out: OutText, length: i32, device: i32) -> Answer {
    out.set(&node::gpu(device)?.config.name, length);
    Ok(())
}

/// `cuDeviceGetUuid_v2`
pub fn uuid(out: Out<CUuuid>, device: i32) -> Answer {
    let bytes = node::gpu(device)?.uuid.map(|byte| byte as std::ffi::c_char);
    out.set(CUuuid { bytes });
    Ok(())
}

/// `cuDeviceTotalMem_v2`
pub fn total_memory(out: Out<usize>, device: i32) -> Answer {
    out.set(node::gpu(device)?.store.capacity() as usize);
    Ok(())
}

/// `cuDeviceComputeCapability`
pub fn capability(major: Out<i32>, minor: Out<i32>, device: i32) -> Answer {
    node::gpu(device)?;
    major.set(9);
    minor.set(0);
    Ok(())
}

/// `cuDeviceGetAttribute`
pub fn attribute(out: Out<i32>, attribute: Enum<Attribute>, device: i32) -> Answer {
    let gpu = node::gpu(device)?;
    if attribute.0 == 0 || attribute.0 > 200 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if attribute.0 == Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as u32 {
        out.set(bus(device));
        return Ok(());
    }
    if attribute.0 == Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as u32 {
        out.set(gpu.config.concurrent_managed_access.into());
        return Ok(());
    }
    let known = ATTRIBUTES.iter().find(|(known, _)| *known as u32 == attribute.0);
    out.set(known.map_or(0, |(_, value)| *value));
    Ok(())
}

/// `cuDeviceGetPCIBusId`
pub fn pci_bus_id(out: OutText, length: i32, device: i32) -> Answer {
    node::gpu(device)?;
    out.set(&pci(device), length);
    Ok(())
}

/// `cuDeviceGetByPCIBusId`
pub fn by_pci_bus_id(out: Out<i32>, id: Text) -> Answer {
    let count = node::node()?.gpus.len() as i32;
    let wanted = id.0.to_ascii_lowercase();
    let same = |device: &i32| pci(*device) == wanted || pci(*device)[5..] == wanted;
    out.set((0..count).find(same).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?);
    Ok(())
}

/// `cuDeviceCanAccessPeer`
pub fn can_access_peer(out: Out<i32>, device: i32, peer: i32) -> Answer {
    check_both(device, peer)?;
    out.set(i32::from(device != peer));
    Ok(())
}

/// `cuDeviceGetP2PAttribute`
pub fn peer_attribute(out: Out<i32>, attribute: Enum<CUdevice_P2PAttribute>, from: i32, to: i32) -> Answer {
    const RANK: u32 = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK as u32;
    const ACCESS: u32 = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED as u32;
    check_both(from, to)?;
    match attribute.0 {
        ACCESS => out.set(i32::from(from != to)),
        RANK | 3..=6 => out.set(0),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

fn check_both(one: i32, other: i32) -> Answer<(&'static Gpu, &'static Gpu)> {
    Ok((node::gpu(one)?, node::gpu(other)?))
}

fn bus(device: i32) -> i32 {
    device + 1
}

fn pci(device: i32) -> String {
    format!("0000:{:02x}:00.0", bus(device))
}
