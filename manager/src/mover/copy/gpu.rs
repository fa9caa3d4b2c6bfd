//! A GPU as the mover uses it: found by UUID; its context is made when first needed.

use super::gather::Gather;
use super::{Paces, Way};
use crate::mover::progress;
use std::cell::OnceCell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_ffi::cuda::sys::{
    CUcontext, CUdevice, CUdevice_attribute as Attribute, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUresult, CUstream, CUstream_flags, CUuuid,
};
use tidegate_ffi::cuda::{Driver, DriverError, LoadError};
use tidegate_ffi::units::GpuUuid;
use tidegate_ffi::wire::message::Location;

/// `CU_COMPUTEMODE_DEFAULT`: any number of processes may use the GPU.
const SHARED_COMPUTE_MODE: c_int = 0;

/// A GPU.
pub struct Gpu {
    /// Never unloaded, so its table is never freed either.
    driver: &'static Driver,
    device: CUdevice,
    properties: Properties,
    /// Has memory and a module in the context: dropped before.
    gather: Gather,
    context: OnceCell<Context>,
    paces: Paces,
}

/// What does not change.
#[derive(Clone, Debug)]
pub struct Properties {
    /// The model.
    pub name: String,
    /// All of its memory.
    pub total_bytes: u64,
    /// Pieces are multiples of it.
    pub granularity_bytes: u64,
    /// Whether network cards can reach pieces that are made for it.
    rdma: bool,
    /// The NUMA node of the host that is nearest to it; -1: the driver knows none.
    node: c_int,
}

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No driver.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver answers with an error.
    #[error("the GPU cannot be used: {0}")]
    Driver(#[from] DriverError),
    /// The driver does not know the GPU.
    #[error("the driver shows {count} GPUs, none of them is {gpu}; is CUDA_VISIBLE_DEVICES set?")]
    NotFound {
        /// The GPU that was asked for.
        gpu: GpuUuid,
        /// How many there are.
        count: c_int,
    },
    /// The GPU cannot do what Tidegate is made of.
    #[error("{name} cannot be shared by Tidegate: {lack}")]
    Unsupported {
        /// The model.
        name: String,
        /// What is missing, and what to do.
        lack: &'static str,
    },
}

impl Gpu {
    /// Loads the driver and finds the GPU. Makes no context.
    pub fn open(library: &CStr, uuid: GpuUuid) -> Result<Self, OpenError> {
        let driver: &'static Driver = Box::leak(Box::new(Driver::open(library)?));
        // SAFETY: cuInit has no preconditions.
        unsafe { driver.cuInit(0) }?;
        let device = find(driver, uuid)?;
        let properties = Properties::read(driver, device)?;
        tracing::info!(gpu = %uuid, ?properties, "the GPU is ready");
        Ok(Self {
            driver,
            device,
            properties,
            gather: Gather::default(),
            context: OnceCell::new(),
            paces: Paces::new(),
        })
    }

    /// What does not change.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The context, made current for this thread when it is made.
    pub fn engage(&self) -> Result<&Context, DriverError> {
        if let Some(context) = self.context.get() {
            return Ok(context);
        }
        let context = Context::make(self.driver, self.device)?;
        Ok(self.context.get_or_init(|| context))
    }

    /// Free and total memory, by the driver's word.
    pub fn measure(&self) -> Result<(u64, u64), DriverError> {
        self.engage()?;
        let mut total = 0;
        // SAFETY: both are valid places for a size, and a context is current.
        let free = read(|free| unsafe { self.driver.cuMemGetInfo_v2(free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Copies tiny ranges in batches from now on: what else there is may have ended the mover before this one.
    pub fn gather_nothing(&self) {
        self.gather.give_up("a mover before this one has left orders undone");
    }

    pub(super) fn gather(&self) -> &Gather {
        &self.gather
    }

    pub(super) fn paces(&self) -> &Paces {
        &self.paces
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// How pieces are made: memory that other processes can import by descriptor.
    pub(super) fn piece_properties(&self, location: Location) -> CUmemAllocationProp {
        match location {
            Location::Device => device_memory(self.device, self.properties.rdma),
            Location::Host => host_memory(self.properties.node),
        }
    }
}

impl Properties {
    fn read(driver: &Driver, device: CUdevice) -> Result<Self, OpenError> {
        let name = name(driver, device)?;
        if let Some(lack) = lack(driver, device, &name)? {
            return Err(OpenError::Unsupported { name, lack });
        }
        // SAFETY: `out` is a valid place for a size.
        let total_bytes = read(|out| unsafe { driver.cuDeviceTotalMem_v2(out, device) })? as u64;
        let rdma = attribute(
            driver,
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        )? != 0;
        // Drivers before CUDA 12.2 do not know the question.
        let node = attribute(driver, device, Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID).unwrap_or(-1);
        let granularity_bytes = granularity(driver, &device_memory(device, rdma))?;
        Ok(Self { name, total_bytes, granularity_bytes, rdma, node })
    }
}

/// A GPU's primary context, retained, with the mover's streams.
pub struct Context {
    saves: Stream,
    restores: Stream,
    /// Released after the streams are gone.
    _retained: Retained,
}

impl Context {
    fn make(driver: &'static Driver, device: CUdevice) -> Result<Self, DriverError> {
        let retained = Retained::make(driver, device)?;
        Ok(Self { saves: Stream::make(driver)?, restores: Stream::make(driver)?, _retained: retained })
    }

    /// The stream of all copies to the host, or of all copies and fills to the GPU.
    pub(super) fn stream(&self, way: Way) -> &Stream {
        match way {
            Way::Out => &self.saves,
            Way::In => &self.restores,
        }
    }
}

struct Retained {
    driver: &'static Driver,
    device: CUdevice,
}

impl Retained {
    fn make(driver: &'static Driver, device: CUdevice) -> Result<Self, DriverError> {
        // SAFETY: `out` is a valid place for a context.
        let context: CUcontext = read(|out| unsafe { driver.cuDevicePrimaryCtxRetain(out, device) })?;
        let retained = Self { driver, device };
        // SAFETY: the context was retained above, and is released only by `retained`'s end.
        unsafe { driver.cuCtxSetCurrent(context) }?;
        Ok(retained)
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: null is allowed: no context is current any more.
        let unset = unsafe { self.driver.cuCtxSetCurrent(std::ptr::null_mut()) };
        // SAFETY: retained once by `make`, released once here; nothing of the context is used any
        // more: Context drops its streams first, and PageLock keeps the Gpu alive.
        let released = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) };
        log_release("the context", unset.and(released));
    }
}

/// A stream of its own, which waits for no other.
pub struct Stream {
    driver: &'static Driver,
    stream: CUstream,
}

impl Stream {
    fn make(driver: &'static Driver) -> Result<Self, DriverError> {
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `out` is a valid place for a stream; a context is current (Context::make).
        let stream = read(|out| unsafe { driver.cuStreamCreate(out, flags) })?;
        Ok(Self { driver, stream })
    }

    /// Submits work and waits until all that was submitted has ended, also when submitting failed
    /// in the middle. An error of the wait means that the context is broken: the driver has ended
    /// its work and takes no more.
    pub(super) fn run(
        &self,
        submit: impl FnOnce(&Driver, CUstream) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let submitted = submit(self.driver, self.stream);
        // SAFETY: the stream is this one's, not destroyed before its end.
        let ended = unsafe { self.driver.cuStreamSynchronize(self.stream) };
        progress::step();
        submitted.and(ended)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `make` in the context that is still retained, and destroyed once, here.
        log_release("a stream", unsafe { self.driver.cuStreamDestroy_v2(self.stream) });
    }
}

/// What the driver puts into the place that `call` gets.
pub(super) fn read<T: Default>(
    call: impl FnOnce(*mut T) -> Result<(), DriverError>,
) -> Result<T, DriverError> {
    let mut value = T::default();
    call(&mut value)?;
    Ok(value)
}

/// Memory of the GPU could not be given back: it is lost until this process ends.
static LEAKED: AtomicBool = AtomicBool::new(false);

/// Whether the driver has kept memory of the GPU that it should have taken back.
pub fn has_leaked() -> bool {
    LEAKED.load(Ordering::Relaxed)
}

/// The same, of what keeps memory of the GPU.
pub(super) fn log_memory_release(what: &str, outcome: Result<(), DriverError>) {
    LEAKED.fetch_or(outcome.is_err(), Ordering::Relaxed);
    log_release(what, outcome);
}

/// Notes a resource that the driver would not take back; there is nobody to tell.
pub(super) fn log_release(what: &str, outcome: Result<(), DriverError>) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "the driver did not take {what} back");
    }
}

fn find(driver: &Driver, gpu: GpuUuid) -> Result<CUdevice, OpenError> {
    // SAFETY: `out` is a valid place for a number.
    let count = read(|out| unsafe { driver.cuDeviceGetCount(out) })?;
    for ordinal in 0..count {
        // SAFETY: `out` is a valid place for a device.
        let device = read(|out| unsafe { driver.cuDeviceGet(out, ordinal) })?;
        if uuid(driver, device)? == gpu {
            return Ok(device);
        }
    }
    Err(OpenError::NotFound { gpu, count })
}

fn uuid(driver: &Driver, device: CUdevice) -> Result<GpuUuid, DriverError> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: a valid place for a UUID.
    unsafe { driver.cuDeviceGetUuid_v2(&mut uuid, device) }?;
    Ok(GpuUuid(uuid.bytes.map(|byte| byte as u8)))
}

fn name(driver: &Driver, device: CUdevice) -> Result<String, DriverError> {
    let mut name = [0u8; 256];
    // SAFETY: the driver writes at most as many bytes as it is told; the last one is left out, so
    // that a zero follows whatever it writes.
    unsafe { driver.cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int - 1, device) }?;
    let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn attribute(driver: &Driver, device: CUdevice, attribute: Attribute) -> Result<c_int, DriverError> {
    // SAFETY: `out` is a valid place for a number.
    read(|out| unsafe { driver.cuDeviceGetAttribute(out, attribute.into(), device) })
}

/// What the GPU lacks for Tidegate, if anything (DESIGN §2).
fn lack(driver: &Driver, device: CUdevice, name: &str) -> Result<Option<&'static str>, DriverError> {
    if attribute(driver, device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? != SHARED_COMPUTE_MODE {
        return Ok(Some(
            "it is in exclusive-process or prohibited mode; set the default mode: nvidia-smi -c 0",
        ));
    }
    if name.contains(" MIG ") {
        return Ok(Some("it is a MIG instance, which is not supported yet"));
    }
    if attribute(driver, device, Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? == 0 {
        return Ok(Some("it has no virtual memory management"));
    }
    if attribute(driver, device, Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?
        == 0
    {
        return Ok(Some("its memory cannot be passed between processes"));
    }
    Ok(None)
}

fn device_memory(device: CUdevice, rdma: bool) -> CUmemAllocationProp {
    exportable(CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }, rdma)
}

/// ◇ Drivers refuse nodes without processors (FACTS §11), and some all (FACTS §8.0).
fn host_memory(node: c_int) -> CUmemAllocationProp {
    exportable(CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, id: node }, false)
}

fn exportable(location: CUmemLocation, rdma: bool) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: rdma.into(),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn granularity(driver: &Driver, properties: &CUmemAllocationProp) -> Result<u64, DriverError> {
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: `out` is a valid place for a size, the properties are borrowed for the call.
    let bytes = read(|out| unsafe { driver.cuMemGetAllocationGranularity(out, properties, minimum) })?;
    match bytes {
        0 => Err(DriverError {
            call: "cuMemGetAllocationGranularity",
            code: CUresult::CUDA_ERROR_INVALID_VALUE,
        }),
        bytes => Ok(bytes as u64),
    }
}
