//! Stream-ordered memory: pools, and allocations that come and go in the order of a stream's work.
//!
//! An allocation is there as soon as the call returns. A free is an operation: until its stream comes
//! to it the block is *leaving*, still there for the work before. The next allocation of its size on
//! the same stream may take it over even then, since that work comes first; all others may when the
//! stream has come to the free. Then the pool keeps the block, or gives it back if it holds more than
//! its release threshold.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAllocationHandleType, CUmemAllocationType, CUmemPool_attribute as Attribute,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};
use parking_lot::Mutex;

use crate::abi::{Answer, Enum, HostMut, In, InMut, Mirror, Out, OutAny, OutEnum};
use crate::graph;
use crate::memory::{self, Block};
use crate::node;
use crate::registry::Registry;
use crate::stream::{self, Stream};
use crate::vmm::{Location, RawAccess, RawLocation};
use crate::work::Op;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A memory pool of one GPU.
pub struct Pool {
    pub handle: usize,
    pub device: usize,
    state: Mutex<State>,
}

struct State {
    /// Bytes it may hold for later.
    threshold: u64,
    /// The reuse policies, by attribute: kept for who asks.
    policies: [i32; 3],
    idle: Vec<Arc<Block>>,
    used: Level,
    reserved: Level,
    /// What other GPUs were granted, by ordinal.
    access: HashMap<usize, u32>,
}

/// An amount of bytes and the most it has been.
#[derive(Default)]
pub struct Level {
    now: u64,
    high: u64,
}

/// A block whose free has been called and has not come yet.
struct Leaving {
    number: u64,
    block: Arc<Block>,
    /// Where it goes; memory of `cuMemAlloc` has no pool.
    pool: Option<Arc<Pool>>,
    stream: Arc<Stream>,
}

/// The pools of a device.
struct OfDevice {
    default: Arc<Pool>,
    current: Arc<Pool>,
}

static POOLS: Registry<Pool> = Registry::new();
static DEVICES: Mutex<Vec<(usize, OfDevice)>> = Mutex::new(Vec::new());
static LEAVING: Mutex<Vec<Leaving>> = Mutex::new(Vec::new());

impl Level {
    /// Now.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The most it has been.
    pub fn high(&self) -> u64 {
        self.high
    }

    /// Forgets what it has been.
    pub fn begin_anew(&mut self) {
        self.high = self.now;
    }

    /// So many bytes more.
    pub fn rise(&mut self, bytes: usize) {
        self.now += bytes as u64;
        self.high = self.high.max(self.now);
    }

    /// So many bytes less.
    pub fn fall(&mut self, bytes: usize) {
        self.now = self.now.saturating_sub(bytes as u64);
    }
}

impl Pool {
    fn create(device: usize) -> Arc<Pool> {
        let state = State {
            threshold: 0,
            policies: [1; 3],
            idle: Vec::new(),
            used: Level::default(),
            reserved: Level::default(),
            access: HashMap::new(),
        };
        POOLS.add(|handle| Pool { handle, device, state: Mutex::new(state) })
    }

    /// A block of at least so many bytes for the work of `stream` from now on.
    fn block(self: &Arc<Self>, bytes: usize, stream: &Arc<Stream>) -> Answer<Arc<Block>> {
        let size = memory::whole_pages(bytes)?;
        let block = match take_over(self, size, stream).or_else(|| self.idle_block(size)) {
            Some(block) => block,
            None => self.new_block(size)?,
        };
        self.state.lock().used.rise(block.size);
        Ok(block)
    }

    /// One it holds that is large enough, and not more than twice that.
    fn idle_block(&self, size: usize) -> Option<Arc<Block>> {
        let mut state = self.state.lock();
        let fits = |block: &Arc<Block>| (size..=2 * size).contains(&block.size);
        let at = state.idle.iter().position(fits)?;
        Some(state.idle.swap_remove(at))
    }

    /// What is held for later, and what is leaving, gives way to it.
    fn new_block(&self, size: usize) -> Answer<Arc<Block>> {
        let gpu = node::gpu(self.device as i32)?;
        let block = Block::map(gpu, size).or_else(|_| {
            await_leaving(self.device)?;
            trim_all(self.device);
            Block::map(gpu, size)
        })?;
        self.state.lock().reserved.rise(size);
        Ok(block)
    }

    /// A block has come back: it is kept, or released if that is more than the threshold.
    fn take_back(&self, block: Arc<Block>) {
        let mut state = self.state.lock();
        if state.reserved.now > state.threshold {
            state.reserved.fall(block.size);
        } else {
            state.idle.push(block);
        }
    }

    /// Releases what is held until so many bytes are left, or nothing more can be.
    fn trim(&self, keep: u64) {
        let mut released = Vec::new(); // dropped after the lock: unmapping takes time
        let mut state = self.state.lock();
        while state.reserved.now > keep
            && let Some(block) = state.idle.pop()
        {
            state.reserved.fall(block.size);
            released.push(block);
        }
    }
}

/// A block of that size that is leaving on the same stream: the work before its free comes first.
fn take_over(pool: &Arc<Pool>, size: usize, stream: &Arc<Stream>) -> Option<Arc<Block>> {
    let suits = |one: &Leaving| {
        let same_pool = one.pool.as_ref().is_some_and(|of| Arc::ptr_eq(of, pool));
        same_pool && one.block.size == size && Arc::ptr_eq(&one.stream, stream)
    };
    let mut leaving = LEAVING.lock();
    let at = leaving.iter().position(suits)?;
    let block = leaving.remove(at).block;
    drop(leaving);
    memory::forget(&block);
    Some(block)
}

/// Waits for the streams on which memory of that GPU is leaving.
fn await_leaving(device: usize) -> Answer {
    let of_device = |one: &&Leaving| one.stream.context.device == device;
    let streams: Vec<_> = LEAVING.lock().iter().filter(of_device).map(|one| one.stream.clone()).collect();
    streams.iter().try_for_each(Stream::synchronize_unless_capturing)
}

/// Releases what the pools of a GPU hold for later.
pub fn trim_all(device: usize) {
    let pools = POOLS.all().into_iter().filter(|pool| pool.device == device);
    pools.for_each(|pool| pool.trim(0));
}

/// Forgets what was leaving on the streams of a context that ends.
pub fn forget_all_of(context: usize) {
    let gone: Vec<_> = LEAVING.lock().extract_if(.., |one| one.stream.context.handle == context).collect();
    gone.into_iter().for_each(|one| settle(one.block, one.pool));
}

/// Whether the free of a block has been called and has not come.
pub fn is_leaving(block: &Arc<Block>) -> bool {
    LEAVING.lock().iter().any(|one| Arc::ptr_eq(&one.block, block))
}

/// A stream has come to a free.
pub fn arrive(number: u64) {
    let mut leaving = LEAVING.lock();
    let Some(at) = leaving.iter().position(|one| one.number == number) else { return };
    let one = leaving.remove(at);
    drop(leaving);
    settle(one.block, one.pool);
}

/// Takes a freed block off the map and gives it back to where it came from.
fn settle(block: Arc<Block>, pool: Option<Arc<Pool>>) {
    memory::forget(&block);
    if let Some(pool) = pool {
        pool.take_back(block);
    }
}

/// Frees a block that no work uses any more.
pub fn free_now(block: Arc<Block>, pool: Option<Arc<Pool>>) {
    pool.iter().for_each(|pool| pool.state.lock().used.fall(block.size));
    settle(block, pool);
}

fn find(pool: CUmemoryPool) -> Answer<Arc<Pool>> {
    POOLS.get(pool as usize).ok_or(INVALID)
}

fn with_device<T>(device: i32, act: impl FnOnce(&mut OfDevice) -> T) -> Answer<T> {
    node::gpu(device)?;
    let device = device as usize;
    let mut devices = DEVICES.lock();
    let at = devices.iter().position(|(of, _)| *of == device).unwrap_or_else(|| {
        let default = Pool::create(device);
        devices.push((device, OfDevice { current: default.clone(), default }));
        devices.len() - 1
    });
    Ok(act(&mut devices[at].1))
}

/// `cuMemAllocAsync`: from the current pool of the stream's GPU.
pub fn alloc_async(out: Out<u64>, bytes: usize, stream: CUstream) -> Answer {
    let stream = stream::resolve(stream)?;
    let pool = with_device(stream.context.device as i32, |of| of.current.clone())?;
    alloc(out, bytes, &pool, &stream)
}

/// `cuMemAllocFromPoolAsync`
pub fn alloc_from(out: Out<u64>, bytes: usize, pool: CUmemoryPool, stream: CUstream) -> Answer {
    alloc(out, bytes, &find(pool)?, &stream::resolve(stream)?)
}

fn alloc(out: Out<u64>, bytes: usize, pool: &Arc<Pool>, stream: &Arc<Stream>) -> Answer {
    if bytes == 0 {
        return Err(INVALID);
    }
    if stream.capture().is_some() {
        out.set(graph::capture_allocation(stream, bytes, pool.device)?);
        return Ok(());
    }
    let block = pool.block(bytes, stream)?;
    let start = block.start;
    memory::remember(block, bytes, &stream.context, Some(pool.clone()));
    out.set(start as u64);
    Ok(())
}

/// `cuMemFreeAsync`: also of memory from `cuMemAlloc`.
pub fn free_async(at: u64, stream: CUstream) -> Answer {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let stream = stream::resolve(stream)?;
    if stream.capture().is_some() {
        return graph::capture_free(&stream, at);
    }
    if graph::free_memory_of_a_graph(at)? {
        return Ok(());
    }
    let (block, pool) = memory::allocation_at(at as usize)?;
    if is_leaving(&block) {
        return Err(INVALID);
    }
    pool.iter().for_each(|pool| pool.state.lock().used.fall(block.size));
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    LEAVING.lock().push(Leaving { number, block, pool, stream: stream.clone() });
    stream.submit(Op::Free(number))
}

/// `CUmemPoolProps` with numbers for its enums.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawProperties {
    kind: u32,
    handle_types: u32,
    location: RawLocation,
    security_attributes: usize,
    largest: usize,
    reserved: [u8; 56],
}

impl Mirror for RawProperties {
    type Of = CUmemPoolProps;
}

impl RawProperties {
    /// Plain memory of a GPU.
    pub fn of_device(device: usize) -> RawProperties {
        RawProperties {
            kind: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32,
            handle_types: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE.0,
            location: RawLocation::of_device(device),
            security_attributes: 0,
            largest: 0,
            reserved: [0; 56],
        }
    }

    /// The GPU whose memory it asks for.
    pub fn device(&self) -> Answer<usize> {
        if self.kind != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32 {
            return Err(INVALID);
        }
        if self.handle_types != CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE.0 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        device_of(self.location)
    }
}

fn device_of(location: RawLocation) -> Answer<usize> {
    match location.resolve()? {
        Location::Device(device) => Ok(device),
        Location::Host(..) => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    }
}

/// `cuMemPoolCreate`
pub fn create(out: Out<CUmemoryPool>, properties: In<RawProperties>) -> Answer {
    let device = properties.get().device()?;
    out.set(Pool::create(device).handle as CUmemoryPool);
    Ok(())
}

/// `cuMemPoolDestroy`: what was allocated stays; the device's default pool cannot be destroyed.
pub fn destroy(pool: CUmemoryPool) -> Answer {
    let pool = find(pool)?;
    with_device(pool.device as i32, |of| {
        if Arc::ptr_eq(&of.default, &pool) {
            return Err(INVALID);
        }
        if Arc::ptr_eq(&of.current, &pool) {
            of.current = of.default.clone();
        }
        Ok(())
    })??;
    pool.state.lock().threshold = 0;
    pool.trim(0);
    POOLS.remove(pool.handle);
    Ok(())
}

/// `cuMemPoolTrimTo`
pub fn trim_to(pool: CUmemoryPool, keep: usize) -> Answer {
    find(pool)?.trim(keep as u64);
    Ok(())
}

/// `cuMemPoolGetAttribute`
pub fn attribute(pool: CUmemoryPool, attribute: Enum<Attribute>, out: OutAny) -> Answer {
    let pool = find(pool)?;
    let state = pool.state.lock();
    match attribute.0 {
        1..=3 => out.set(state.policies[attribute.0 as usize - 1]),
        4 => out.set(state.threshold),
        5 => out.set(state.reserved.now),
        6 => out.set(state.reserved.high),
        7 => out.set(state.used.now),
        8 => out.set(state.used.high),
        _ => return Err(INVALID),
    }
    Ok(())
}

/// `cuMemPoolSetAttribute`: the highest levels can only be set to 0, to begin anew.
pub fn set_attribute(pool: CUmemoryPool, attribute: Enum<Attribute>, value: HostMut) -> Answer {
    let pool = find(pool)?;
    if value.0 == 0 {
        return Err(INVALID);
    }
    // SAFETY: the manual page says that these attributes are set from an int.
    let number = || unsafe { (value.0 as *const c_void).cast::<i32>().read_unaligned() };
    // SAFETY: the manual page says that these attributes are set from a cuuint64_t.
    let wide = || unsafe { (value.0 as *const c_void).cast::<u64>().read_unaligned() };
    let mut state = pool.state.lock();
    match attribute.0 {
        1..=3 => state.policies[attribute.0 as usize - 1] = number(),
        4 => state.threshold = wide(),
        6 if wide() == 0 => state.reserved.begin_anew(),
        8 if wide() == 0 => state.used.begin_anew(),
        _ => return Err(INVALID),
    }
    Ok(())
}

/// `cuMemPoolSetAccess`: kept for who asks; software GPUs all reach each other.
pub fn set_access(pool: CUmemoryPool, rights: In<RawAccess>, count: usize) -> Answer {
    let pool = find(pool)?;
    for right in rights.many(count) {
        let (device, flags) = (device_of(right.location)?, right.flags);
        if !matches!(flags, NONE | READ_WRITE) {
            return Err(INVALID);
        }
        if device == pool.device && flags == NONE {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        pool.state.lock().access.insert(device, flags);
    }
    Ok(())
}

const NONE: u32 = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE as u32;
const READ_WRITE: u32 = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32;

/// `cuMemPoolGetAccess`
pub fn access(out: OutEnum<CUmemAccess_flags>, pool: CUmemoryPool, location: InMut<RawLocation>) -> Answer {
    let pool = find(pool)?;
    let device = device_of(location.get())?;
    let default = if device == pool.device { READ_WRITE } else { NONE };
    out.set(pool.state.lock().access.get(&device).copied().unwrap_or(default));
    Ok(())
}

/// `cuDeviceGetDefaultMemPool`
pub fn default_of(out: Out<CUmemoryPool>, device: i32) -> Answer {
    out.set(with_device(device, |of| of.default.handle)? as CUmemoryPool);
    Ok(())
}

/// `cuDeviceGetMemPool`
pub fn current_of(out: Out<CUmemoryPool>, device: i32) -> Answer {
    out.set(with_device(device, |of| of.current.handle)? as CUmemoryPool);
    Ok(())
}

/// `cuDeviceSetMemPool`
pub fn set_current(device: i32, pool: CUmemoryPool) -> Answer {
    let pool = find(pool)?;
    if pool.device as i32 != device {
        return Err(INVALID);
    }
    with_device(device, |of| of.current = pool)
}

/// `cuMemGetDefaultMemPool`
pub fn default_at(out: Out<CUmemoryPool>, at: InMut<RawLocation>, kind: Enum<CUmemAllocationType>) -> Answer {
    default_of(out, checked(&at, &kind)?)
}

/// `cuMemGetMemPool`
pub fn current_at(out: Out<CUmemoryPool>, at: InMut<RawLocation>, kind: Enum<CUmemAllocationType>) -> Answer {
    current_of(out, checked(&at, &kind)?)
}

/// `cuMemSetMemPool`
pub fn set_current_at(at: InMut<RawLocation>, kind: Enum<CUmemAllocationType>, pool: CUmemoryPool) -> Answer {
    set_current(checked(&at, &kind)?, pool)
}

fn checked(at: &InMut<RawLocation>, kind: &Enum<CUmemAllocationType>) -> Answer<i32> {
    if kind.0 != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(device_of(at.get())? as i32)
}
