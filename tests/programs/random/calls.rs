//! Calls of the driver, and what is needed again and again for them.

use cudarc::driver::sys::{self, CUcontext, CUevent, CUfunction, CUmodule, CUresult, CUstream};
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;

/// Calls a driver function and gives its code.
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the program passes what cuda.h asks for, or what the driver has to refuse.
        unsafe { cudarc::driver::sys::$name($($arg),*) }
    };
}

/// Calls a driver function that has to succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(
            $crate::calls::cu!($name($($arg),*)),
            cudarc::driver::sys::CUresult::CUDA_SUCCESS,
            stringify!($name)
        )
    };
}
pub(crate) use {cu, ok};

/// The address of an argument.
pub fn arg<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// The primary context of the first GPU, current.
pub fn primary() -> CUcontext {
    let mut context = null_mut();
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(cuCtxSetCurrent(context));
    context
}

/// A new context, current on top of those that are.
pub fn new_context() -> CUcontext {
    let mut context = null_mut();
    ok!(cuCtxCreate_v4(&mut context, null_mut(), 0, 0));
    context
}

/// Does `work` with a context current.
pub fn within<T>(context: CUcontext, work: impl FnOnce() -> T) -> T {
    let mut popped = null_mut();
    ok!(cuCtxPushCurrent_v2(context));
    let done = work();
    ok!(cuCtxPopCurrent_v2(&mut popped));
    assert_eq!(popped, context);
    done
}

/// A stream of the current context.
pub fn stream(flags: u32) -> CUstream {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, flags));
    stream
}

/// An event of the current context.
pub fn event() -> CUevent {
    const NO_TIMES: u32 = 2;
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, NO_TIMES));
    event
}

/// Device memory.
pub fn alloc(bytes: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, bytes));
    at
}

/// The GPU, as a place.
pub fn device() -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 }
}

/// A pool of one's own.
pub fn new_pool() -> sys::CUmemoryPool {
    // SAFETY: plain C data; zero is a value of each of its enums.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = device();
    let mut pool = null_mut();
    ok!(cuMemPoolCreate(&mut pool, &properties));
    pool
}

/// Properties of memory that is mapped by hand.
pub fn properties() -> sys::CUmemAllocationProp {
    // SAFETY: plain C data; zero is a value of each of its enums.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = device();
    properties
}

/// Reserves a range and maps a handle in it, for reading and writing.
pub fn map(handle: u64, bytes: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, bytes, 0, 0, 0));
    ok!(cuMemMap(at, bytes, 0, handle, 0));
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ok!(cuMemSetAccess(at, bytes, &sys::CUmemAccessDesc { location: device(), flags }, 1));
    at
}

/// The opposite of [`map`].
pub fn unmap(at: u64, bytes: usize) {
    ok!(cuMemUnmap(at, bytes));
    ok!(cuMemAddressFree(at, bytes));
}

/// A kernel that makes every byte one more, and the module that it is in.
#[derive(Clone, Copy)]
pub struct Kernel {
    pub module: CUmodule,
    pub function: CUfunction,
}

impl Kernel {
    /// Loads it into the current context: from its file, or from memory.
    pub fn load(path: &str, from_memory: bool) -> Self {
        let (mut module, mut function) = (null_mut(), null_mut());
        if from_memory {
            let mut image = std::fs::read(path).unwrap();
            image.push(0);
            ok!(cuModuleLoadData(&mut module, image.as_ptr().cast()));
        } else {
            let path = CString::new(path).unwrap();
            ok!(cuModuleLoad(&mut module, path.as_ptr()));
        }
        ok!(cuModuleGetFunction(&mut function, module, c"count_up".as_ptr()));
        Self { module, function }
    }
}

/// The ways to launch a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Plain,
    Ex,
    Cooperative,
}

/// Launches `count_up`.
pub fn launch(form: Form, function: CUfunction, stream: CUstream, at: u64, bytes: usize) -> CUresult {
    let mut arguments = [arg(&at), arg(&bytes)];
    let arguments = arguments.as_mut_ptr();
    match form {
        Form::Plain => cu!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, null_mut())),
        Form::Cooperative => {
            cu!(cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments))
        }
        Form::Ex => {
            // SAFETY: plain C data; zero is a value of each field.
            let mut config: sys::CUlaunchConfig = unsafe { std::mem::zeroed() };
            (config.gridDimX, config.gridDimY, config.gridDimZ) = (1, 1, 1);
            (config.blockDimX, config.blockDimY, config.blockDimZ) = (1, 1, 1);
            config.hStream = stream;
            cu!(cuLaunchKernelEx(&config, function, arguments, null_mut()))
        }
    }
}

/// A function of `tidegate.h`, when the shim is there.
fn tidegate(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: RTLD_DEFAULT and a C string are always allowed.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// Tells that an iteration ends.
pub fn boundary() {
    let Some(boundary) = tidegate(c"tidegate_boundary") else { return };
    // SAFETY: tidegate.h: int tidegate_boundary(void).
    let boundary: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(boundary) };
    // SAFETY: it may be called at any time.
    unsafe { boundary() };
}

/// Tells the class of an allocation.
pub fn tag(at: u64, class: c_int) {
    let Some(tag) = tidegate(c"tidegate_tag") else { return };
    // SAFETY: tidegate.h: void tidegate_tag(uint64_t, int).
    let tag: unsafe extern "C" fn(u64, c_int) = unsafe { std::mem::transmute(tag) };
    // SAFETY: it may be called at any time, with any address.
    unsafe { tag(at, class) };
}

/// Allocates as of a class; zero: of none in particular.
pub fn scoped<T>(class: c_int, work: impl FnOnce() -> T) -> T {
    let push = tidegate(c"tidegate_scope_push").filter(|_| class != 0);
    if let Some(push) = push {
        // SAFETY: tidegate.h: void tidegate_scope_push(int).
        let push: unsafe extern "C" fn(c_int) = unsafe { std::mem::transmute(push) };
        // SAFETY: it may be called at any time.
        unsafe { push(class) };
    }
    let done = work();
    if let Some(pop) = push.and_then(|_| tidegate(c"tidegate_scope_pop")) {
        // SAFETY: tidegate.h: void tidegate_scope_pop(void).
        let pop: unsafe extern "C" fn() = unsafe { std::mem::transmute(pop) };
        // SAFETY: it follows its push.
        unsafe { pop() };
    }
    done
}
