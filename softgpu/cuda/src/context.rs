//! Contexts: what owns streams, modules and allocations on one GPU, and what a fault ends.
//!
//! A fault is sticky: from then on every call on the context answers `ILLEGAL_ADDRESS`, or `LAUNCH_FAILED`
//! if it was a copy's, and its streams do nothing more. Other contexts do not notice.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread::ThreadId;

use cudarc::driver::sys::{CUcontext, CUfunc_cache, CUlimit, CUresult, CUsharedconfig};
use parking_lot::{Mutex, RwLock};

use crate::abi::{Answer, Enum, Ignored, Maybe, Out};
use crate::event::Record;
use crate::monitor::Monitor;
use crate::node::{self, Gpu, GpuConfig};
use crate::registry::{self, Registry};
use crate::store::Held;
use crate::stream::{self, Role, Stream};
use crate::work::Op;
use crate::{green, ipc, memory, module, pool, space, vmm};

const NO_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;

/// A context.
pub struct Context {
    pub handle: usize,
    /// The ordinal of its GPU.
    pub device: usize,
    /// Where those wait that wait for its streams and records.
    pub monitor: Monitor,
    primary: bool,
    flags: AtomicU32,
    /// Never freed: the signal handler of a parked thread may still refer to it.
    faulted: &'static AtomicBool,
    /// Whether its first fault was that of a copy.
    copy_failed: AtomicBool,
    streams: RwLock<Vec<Arc<Stream>>>,
    legacy: OnceLock<Arc<Stream>>,
    of_threads: Mutex<HashMap<ThreadId, Arc<Stream>>>,
    /// What streams made later have to wait for (`cuCtxWaitEvent`).
    barriers: Mutex<Vec<Arc<Record>>>,
    limits: Mutex<HashMap<u32, usize>>,
    /// The contexts whose memory it asked to reach.
    peers: Mutex<HashSet<usize>>,
    memory: Mutex<Option<Held>>,
}

/// The primary context of a GPU, over all its lives.
struct Primary {
    handle: usize,
    retained: usize,
    flags: u32,
}

static CONTEXTS: Registry<Context> = Registry::new();
/// The device of each context there has been: it is told even of one that is gone.
static DEVICES: LazyLock<Mutex<HashMap<usize, i32>>> = LazyLock::new(Mutex::default);
static PRIMARIES: Mutex<Vec<(i32, Primary)>> = Mutex::new(Vec::new());

/// The contexts in which a thread has a per-thread default stream.
struct OwnStreams(Vec<usize>, ThreadId);

impl Drop for OwnStreams {
    fn drop(&mut self) {
        let contexts = self.0.iter().filter_map(|handle| find(*handle));
        contexts.for_each(|context| context.end_stream_of(self.1));
    }
}

thread_local! {
    static OWN_STREAMS: RefCell<OwnStreams> =
        RefCell::new(OwnStreams(Vec::new(), std::thread::current().id()));

    /// The stack of contexts current to this thread, the current one last; 0 is none. Never dropped:
    /// what runs at the end of a thread or of the process may use CUDA too.
    static STACK: ManuallyDrop<RefCell<Vec<usize>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

impl Context {
    fn new(handle: usize, device: i32, flags: u32, primary: bool) -> Answer<Context> {
        let memory = Mutex::new(take(node::gpu(device)?, |config| config.context_bytes)?);
        DEVICES.lock().insert(handle, device);
        Ok(Context {
            handle,
            device: device as usize,
            monitor: Monitor::default(),
            primary,
            flags: AtomicU32::new(flags),
            faulted: Box::leak(Box::new(AtomicBool::new(false))),
            copy_failed: AtomicBool::new(false),
            streams: RwLock::default(),
            legacy: OnceLock::new(),
            of_threads: Mutex::default(),
            barriers: Mutex::default(),
            limits: Mutex::default(),
            peers: Mutex::default(),
            memory,
        })
    }

    /// Its GPU.
    pub fn gpu(&self) -> Answer<&'static Gpu> {
        node::gpu(self.device as i32)
    }

    /// The memory that a module takes which is loaded while this context is current.
    pub fn module_memory(&self) -> Answer<Option<Held>> {
        take(self.gpu()?, |config| config.module_bytes)
    }

    /// The sticky error, if there is one.
    pub fn check(&self) -> Answer {
        match (self.is_faulted(), self.copy_failed.load(Ordering::SeqCst)) {
            (false, _) => Ok(()),
            (true, false) => Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
            (true, true) => Err(CUresult::CUDA_ERROR_LAUNCH_FAILED),
        }
    }

    /// Whether it had a fault.
    pub fn is_faulted(&self) -> bool {
        self.faulted.load(Ordering::SeqCst)
    }

    /// What the signal handler sets.
    pub fn fault_flag(&self) -> &'static AtomicBool {
        self.faulted
    }

    /// A copy touched what it may not: the code is that of hardware's copy engines.
    pub fn fault_of_copy(&self) {
        if !self.is_faulted() {
            self.copy_failed.store(true, Ordering::SeqCst);
        }
        self.fault();
    }

    /// Something touched what it may not.
    pub fn fault(&self) {
        self.faulted.store(true, Ordering::SeqCst);
        announce_all();
    }

    /// The legacy default stream.
    pub fn legacy(self: &Arc<Self>) -> Arc<Stream> {
        let make = || Arc::new(Stream::new(1, self.clone(), Role::Legacy, 0));
        self.legacy.get_or_init(make).clone()
    }

    /// The legacy default stream, if it has something to do.
    pub fn legacy_if_pending(&self) -> Option<Arc<Stream>> {
        self.legacy.get().filter(|stream| stream.pending()).cloned()
    }

    /// The per-thread default stream.
    pub fn stream_of_this_thread(self: &Arc<Self>) -> Arc<Stream> {
        let mut streams = self.of_threads.lock();
        let made = streams.entry(std::thread::current().id()).or_insert_with(|| {
            let stream = Arc::new(Stream::new(2, self.clone(), Role::Blocking, 0));
            self.streams.write().push(stream.clone());
            let _ = OWN_STREAMS.try_with(|own| own.borrow_mut().0.push(self.handle));
            stream
        });
        made.clone()
    }

    /// A thread has ended, and its default stream ends with it.
    fn end_stream_of(&self, thread: ThreadId) {
        let stream = self.of_threads.lock().remove(&thread);
        stream.iter().for_each(Stream::stop);
    }

    /// Takes a new stream in.
    pub fn remember_stream(&self, stream: &Arc<Stream>) -> Answer {
        self.streams.write().push(stream.clone());
        let mut barriers = self.barriers.lock();
        barriers.retain(|record| !record.is_complete());
        barriers.iter().try_for_each(|record| stream.push_alone(Op::Await(record.clone())))
    }

    /// A stream has ended.
    pub fn forget_stream(&self, stream: &Arc<Stream>) {
        self.streams.write().retain(|other| !Arc::ptr_eq(other, stream));
    }

    /// The streams that the legacy default stream waits for.
    pub fn blocking_streams(&self) -> Vec<Arc<Stream>> {
        self.streams.read().iter().filter(|stream| stream.is_blocking()).cloned().collect()
    }

    /// The streams that have something to do, default streams included.
    pub fn pending_streams(&self) -> Vec<Arc<Stream>> {
        self.streams_of_all_parts().into_iter().filter(|stream| stream.pending()).collect()
    }

    /// Work of all streams together is not described by a capture of one, which breaks.
    pub fn check_not_capturing(&self) -> Answer {
        self.streams_of_all_parts()
            .iter()
            .map(|stream| stream.check_not_capturing())
            .fold(Ok(()), Answer::and)
    }

    /// Waits for all that was submitted until now.
    pub fn synchronize(&self) -> Answer {
        self.streams_of_all_parts().iter().try_for_each(Stream::synchronize_unless_capturing)?;
        self.check()
    }

    /// Lets all streams, also later ones, wait for a record.
    pub fn await_everywhere(self: &Arc<Self>, record: Arc<Record>) -> Answer {
        self.barriers.lock().push(record.clone());
        self.legacy();
        self.all_streams().iter().try_for_each(|s| s.push_alone(Op::Await(record.clone())))
    }

    /// Its streams, and of a primary context those of its GPU's green contexts.
    fn streams_of_all_parts(&self) -> Vec<Arc<Stream>> {
        let parts = if self.primary { green::contexts_on(self.device) } else { Vec::new() };
        let theirs = parts.iter().flat_map(|part| part.all_streams());
        self.all_streams().into_iter().chain(theirs).collect()
    }

    fn all_streams(&self) -> Vec<Arc<Stream>> {
        self.legacy.get().into_iter().cloned().chain(self.streams.read().clone()).collect()
    }

    /// Waits for its work, then gives back all that belongs to it.
    fn end(&self) {
        let _ = self.synchronize(); // a fault does not keep a context alive
        for stream in self.all_streams() {
            stream::forget_handle(stream.handle);
            stream.stop();
        }
        module::forget_all_of(self.handle);
        pool::forget_all_of(self.handle);
        let regions = space::change().take_all_of(self.handle);
        ipc::forget(&regions);
        regions.into_iter().for_each(memory::give_back);
        self.of_threads.lock().clear();
        self.memory.lock().take();
    }
}

/// Tells all waiters to look again (a context may have had a fault).
pub fn announce_all() {
    CONTEXTS.all().iter().for_each(|context| context.monitor.announce());
}

/// Waits for the work of all contexts of a GPU.
pub fn synchronize_all_of(device: usize) -> Answer {
    let of_device = CONTEXTS.all().into_iter().filter(|context| context.device == device);
    of_device.into_iter().try_for_each(|context| context.synchronize())
}

/// The context of a handle.
pub fn find(handle: usize) -> Option<Arc<Context>> {
    CONTEXTS.get(handle)
}

/// The calling thread's context, without a fault.
pub fn current() -> Answer<Arc<Context>> {
    let context = current_any()?;
    context.check()?;
    Ok(context)
}

/// The context a call names, or the current one for null; without a fault.
pub fn named(context: CUcontext) -> Answer<Arc<Context>> {
    if context.is_null() {
        return current();
    }
    let context = find(context as usize).ok_or(NO_CONTEXT)?;
    context.check()?;
    Ok(context)
}

fn current_any() -> Answer<Arc<Context>> {
    match top() {
        0 => Err(NO_CONTEXT),
        handle => find(handle).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
    }
}

/// The current context's handle, 0 if none.
fn top() -> usize {
    STACK.with(|stack| stack.borrow().last().copied().unwrap_or(0))
}

fn push(handle: usize) {
    STACK.with(|stack| stack.borrow_mut().push(handle));
}

fn pop() -> Option<usize> {
    STACK.with(|stack| stack.borrow_mut().pop())
}

/// Memory that the driver itself takes of a GPU for something, if it takes any.
fn take(gpu: &'static Gpu, amount: impl FnOnce(&GpuConfig) -> u64) -> Answer<Option<Held>> {
    match amount(&gpu.config) {
        0 => Ok(None),
        bytes => gpu.store.create(bytes).map(Some).map_err(|e| vmm::store_error(&e)),
    }
}

/// `cuCtxCreate_v2`
pub fn create(out: Out<CUcontext>, flags: u32, device: i32) -> Answer {
    let handle = registry::fresh();
    CONTEXTS.put(handle, Arc::new(Context::new(handle, device, flags, false)?));
    push(handle);
    out.set(handle as CUcontext);
    Ok(())
}

/// A context that is current to nobody.
pub fn add(device: i32) -> Answer<Arc<Context>> {
    let handle = registry::fresh();
    let context = Arc::new(Context::new(handle, device, 0, false)?);
    CONTEXTS.put(handle, context.clone());
    Ok(context)
}

/// `cuCtxCreate_v3`
pub fn create_v3(
    out: Out<CUcontext>,
    _affinity: Ignored<*mut cudarc::driver::sys::CUexecAffinityParam>,
    count: i32,
    flags: u32,
    device: i32,
) -> Answer {
    if count != 0 {
        return Err(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    create(out, flags, device)
}

/// `cuCtxCreate_v4`
pub fn create_v4(
    out: Out<CUcontext>,
    parameters: Maybe<cudarc::driver::sys::CUctxCreateParams>,
    flags: u32,
    device: i32,
) -> Answer {
    if parameters.wanted() {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    create(out, flags, device)
}

/// `cuCtxDestroy_v2`
pub fn destroy(context: CUcontext) -> Answer {
    let context = find(context as usize).filter(|context| !context.primary).ok_or(NO_CONTEXT)?;
    if top() == context.handle {
        pop();
    }
    context.end();
    CONTEXTS.remove(context.handle);
    Ok(())
}

/// `cuCtxPushCurrent_v2`
pub fn push_current(context: CUcontext) -> Answer {
    push(find(context as usize).ok_or(NO_CONTEXT)?.handle);
    Ok(())
}

/// `cuCtxPopCurrent_v2`
pub fn pop_current(out: Maybe<CUcontext>) -> Answer {
    let handle = pop().filter(|handle| *handle != 0).ok_or(NO_CONTEXT)?;
    out.set(handle as CUcontext);
    Ok(())
}

/// `cuCtxSetCurrent`
pub fn set_current(context: CUcontext) -> Answer {
    if context.is_null() {
        pop();
        return Ok(());
    }
    let handle = find(context as usize).ok_or(NO_CONTEXT)?.handle;
    pop();
    push(handle);
    Ok(())
}

/// `cuCtxGetCurrent`
pub fn get_current(out: Out<CUcontext>) -> Answer {
    out.set(top() as CUcontext);
    Ok(())
}

/// `cuCtxGetDevice`; as on hardware of a context that is gone, too.
pub fn get_device(out: Out<i32>) -> Answer {
    out.set(DEVICES.lock().get(&top()).copied().ok_or(NO_CONTEXT)?);
    Ok(())
}

/// `cuCtxGetDevice_v2`
pub fn get_device_of(out: Out<i32>, context: CUcontext) -> Answer {
    let context = if context.is_null() { current_any()? } else { named(context)? };
    out.set(context.device as i32);
    Ok(())
}

/// `cuCtxGetFlags`
pub fn get_flags(out: Out<u32>) -> Answer {
    out.set(current_any()?.flags.load(Ordering::Relaxed));
    Ok(())
}

/// `cuCtxSetFlags`
pub fn set_flags(flags: u32) -> Answer {
    current()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

/// `cuCtxGetApiVersion`
pub fn api_version(context: CUcontext, out: Out<u32>) -> Answer {
    named(context)?;
    out.set(3020);
    Ok(())
}

/// `cuCtxGetId`
pub fn get_id(context: CUcontext, out: Out<u64>) -> Answer {
    out.set(named(context)?.handle as u64);
    Ok(())
}

/// `cuCtxSynchronize`
pub fn synchronize_current() -> Answer {
    current()?.synchronize()
}

/// `cuCtxSynchronize_v2`
pub fn synchronize_named(context: CUcontext) -> Answer {
    named(context)?.synchronize()
}

/// `cuCtxGetLimit`
pub fn get_limit(out: Out<usize>, limit: Enum<CUlimit>) -> Answer {
    let default = default_limit(limit.0)?;
    out.set(current()?.limits.lock().get(&limit.0).copied().unwrap_or(default));
    Ok(())
}

/// `cuCtxSetLimit`
pub fn set_limit(limit: Enum<CUlimit>, value: usize) -> Answer {
    default_limit(limit.0)?;
    current()?.limits.lock().insert(limit.0, value);
    Ok(())
}

fn default_limit(limit: u32) -> Answer<usize> {
    const DEFAULTS: [usize; 7] = [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0];
    DEFAULTS.get(limit as usize).copied().ok_or(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT)
}

/// `cuCtxGetStreamPriorityRange`
pub fn stream_priorities(least: Maybe<i32>, greatest: Maybe<i32>) -> Answer {
    current()?;
    least.set(stream::PRIORITIES.0);
    greatest.set(stream::PRIORITIES.1);
    Ok(())
}

/// `cuCtxGetCacheConfig`
pub fn get_cache_config(out: Out<CUfunc_cache>) -> Answer {
    current()?;
    out.set(CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE);
    Ok(())
}

/// `cuCtxSetCacheConfig`
pub fn set_cache_config(_config: Enum<CUfunc_cache>) -> Answer {
    current().map(drop)
}

/// `cuCtxEnablePeerAccess`: software GPUs all reach each other.
pub fn enable_peer(peer: CUcontext, flags: u32) -> Answer {
    let own = current()?;
    let peer = find(peer as usize).ok_or(NO_CONTEXT)?;
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if peer.device == own.device {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    let new = own.peers.lock().insert(peer.handle);
    new.then_some(()).ok_or(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
}

/// `cuCtxDisablePeerAccess`
pub fn disable_peer(peer: CUcontext) -> Answer {
    let own = current()?;
    let peer = find(peer as usize).ok_or(NO_CONTEXT)?;
    let was = own.peers.lock().remove(&peer.handle);
    was.then_some(()).ok_or(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
}

/// `cuCtxGetSharedMemConfig`: banks of four bytes, as on every GPU that is still supported.
pub fn get_shared_config(out: Out<CUsharedconfig>) -> Answer {
    current()?;
    out.set(CUsharedconfig::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);
    Ok(())
}

/// `cuCtxSetSharedMemConfig`: of no effect, as there.
pub fn set_shared_config(_config: Enum<CUsharedconfig>) -> Answer {
    current().map(drop)
}

/// `cuCtxResetPersistingL2Cache`: nothing persists.
pub fn reset_cache() -> Answer {
    current().map(drop)
}

/// `cuProfilerStart` and `cuProfilerStop`: there is no profiler to tell.
pub fn no_profiler() -> Answer {
    Ok(())
}

/// `cuDevicePrimaryCtxRetain`
pub fn primary_retain(out: Out<CUcontext>, device: i32) -> Answer {
    with_primary(device, |primary| {
        if primary.retained == 0 {
            let context = Context::new(primary.handle, device, primary.flags, true)?;
            CONTEXTS.put(primary.handle, Arc::new(context));
        }
        primary.retained += 1;
        out.set(primary.handle as CUcontext);
        Ok(())
    })
}

/// `cuDevicePrimaryCtxRelease_v2`
pub fn primary_release(device: i32) -> Answer {
    let last = with_primary(device, |primary| {
        primary.retained = primary.retained.checked_sub(1).ok_or(NO_CONTEXT)?;
        Ok((primary.retained == 0).then_some(primary.handle))
    })?;
    last.into_iter().for_each(end_primary);
    Ok(())
}

/// `cuDevicePrimaryCtxReset_v2`
pub fn primary_reset(device: i32) -> Answer {
    let handle = with_primary(device, |primary| {
        primary.retained = 0;
        Ok(primary.handle)
    })?;
    end_primary(handle);
    Ok(())
}

/// `cuDevicePrimaryCtxGetState`
pub fn primary_state(device: i32, flags: Out<u32>, active: Out<i32>) -> Answer {
    with_primary(device, |primary| {
        flags.set(primary.flags);
        active.set(i32::from(primary.retained > 0));
        Ok(())
    })
}

/// `cuDevicePrimaryCtxSetFlags_v2`
pub fn primary_set_flags(device: i32, flags: u32) -> Answer {
    with_primary(device, |primary| {
        primary.flags = flags;
        Ok(())
    })
}

fn end_primary(handle: usize) {
    // Faults of its last work are announced to all contexts that are known: it stays known until that has ended.
    if let Some(context) = CONTEXTS.get(handle) {
        context.end();
        CONTEXTS.remove(handle);
    }
}

fn with_primary<T>(device: i32, act: impl FnOnce(&mut Primary) -> Answer<T>) -> Answer<T> {
    node::gpu(device)?;
    let mut primaries = PRIMARIES.lock();
    let at = primaries.iter().position(|(of, _)| *of == device).unwrap_or_else(|| {
        let handle = registry::fresh();
        primaries.push((device, Primary { handle, retained: 0, flags: 0 }));
        primaries.len() - 1
    });
    act(&mut primaries[at].1)
}
