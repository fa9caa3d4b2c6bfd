//! The functions of the driver that launch a kernel of this library, and those that ask about contexts and GPUs.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A `CUstream`, as an address.
pub type Stream = usize;

type LoadFile = unsafe extern "C" fn(*mut usize, *const c_char, usize, usize, u32, usize, usize, u32) -> u32;
type GetKernel = unsafe extern "C" fn(*mut usize, usize, *const c_char) -> u32;
type Launch = unsafe extern "C" fn(
    usize,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    Stream,
    *const *const c_void,
    *const *const c_void,
) -> u32;

struct Driver {
    get_kernel: GetKernel,
    launch: Launch,
    /// This library, as a module image.
    library: usize,
}

/// Launches a kernel of this library with one parameter. `false`: the driver refused, or there is none.
pub fn launch<T>(kernel: &CStr, stream: Stream, parameter: &T) -> bool {
    let Some(driver) = driver() else { return false };
    let Some(kernel) = driver.kernel(kernel) else { return false };
    let each = [(&raw const *parameter).cast::<c_void>()];
    let buffer = std::ptr::null();
    // SAFETY: the driver's function; a kernel with one parameter, which it copies before it returns.
    unsafe { (driver.launch)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, each.as_ptr(), buffer) == 0 }
}

/// `CUlaunchConfig`.
#[repr(C)]
struct Configuration {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Stream,
    attributes: *const c_void,
    attribute_count: u32,
}

/// The same by `cuLaunchKernelEx`, which NCCL uses.
pub fn launch_with_configuration<T>(kernel: &CStr, stream: Stream, parameter: &T) -> bool {
    let (Some(driver), Some(more)) = (driver(), more()) else { return false };
    let Some(kernel) = driver.kernel(kernel) else { return false };
    let each = [(&raw const *parameter).cast::<c_void>()];
    let attributes = std::ptr::null();
    let configuration = Configuration {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        stream,
        attributes,
        attribute_count: 0,
    };
    // SAFETY: the driver's function; a kernel with one parameter, which it copies before it returns.
    unsafe { (more.launch)(&raw const configuration, kernel, each.as_ptr(), std::ptr::null()) == 0 }
}

/// Functions of the driver that only NCCL's stand-in needs.
macro_rules! functions {
    ($($field:ident: $name:literal fn($($argument:ty),*);)*) => {
        struct More {
            $($field: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl More {
            fn load() -> Option<Self> {
                // SAFETY: a name. It is loaded already, by the CUDA runtime.
                let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if handle.is_null() {
                    return None;
                }
                $(
                    // SAFETY: an open library and a name.
                    let $field = unsafe { libc::dlsym(handle, $name.as_ptr()) };
                    if $field.is_null() {
                        return None;
                    }
                )*
                Some(Self { $(
                    // SAFETY: the driver's function of this name has this type.
                    $field: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> u32>($field)
                    },
                )* })
            }
        }
    };
}

functions! {
    launch: c"cuLaunchKernelEx" fn(*const Configuration, usize, *const *const c_void, *const *const c_void);
    current: c"cuCtxGetCurrent" fn(*mut usize);
    push: c"cuCtxPushCurrent_v2" fn(usize);
    pop: c"cuCtxPopCurrent_v2" fn(*mut usize);
    device: c"cuCtxGetDevice" fn(*mut i32);
    retain: c"cuDevicePrimaryCtxRetain" fn(*mut usize, i32);
    uuid: c"cuDeviceGetUuid_v2" fn(*mut [u8; 16], i32);
    is_capturing: c"cuStreamIsCapturing" fn(Stream, *mut u32);
    allocate: c"cuMemAlloc_v2" fn(*mut u64, usize);
    free: c"cuMemFree_v2" fn(u64);
}

fn more() -> Option<&'static More> {
    static MORE: OnceLock<Option<More>> = OnceLock::new();
    MORE.get_or_init(More::load).as_ref()
}

/// What a function of the driver tells; `None`: it failed.
fn told<T: Default>(call: impl FnOnce(&More, *mut T) -> u32) -> Option<T> {
    let mut value = T::default();
    (call(more()?, &raw mut value) == 0).then_some(value)
}

/// The calling thread's context; 0: none.
pub fn current_context() -> Option<usize> {
    // SAFETY: the driver's function, with a place of ours. So for those below.
    told(|more, place| unsafe { (more.current)(place) })
}

/// The GPU of the calling thread's context.
pub fn current_device() -> Option<i32> {
    // SAFETY: as above.
    told(|more, place| unsafe { (more.device)(place) })
}

/// The primary context of a GPU, retained for good.
pub fn primary_context(device: i32) -> Option<usize> {
    // SAFETY: as above.
    told(|more, place| unsafe { (more.retain)(place, device) })
}

/// The UUID of a GPU.
pub fn uuid(device: i32) -> Option<[u8; 16]> {
    // SAFETY: as above.
    told(|more, place| unsafe { (more.uuid)(place, device) })
}

/// Whether what is put into a stream is captured.
pub fn is_capturing(stream: Stream) -> Option<bool> {
    // SAFETY: as above; the stream is the program's.
    told(|more, place| unsafe { (more.is_capturing)(stream, place) }).map(|status: u32| status != 0)
}

/// Device memory.
pub fn allocate(bytes: usize) -> Option<u64> {
    // SAFETY: as above.
    told(|more, place| unsafe { (more.allocate)(place, bytes) })
}

/// Gives it back.
pub fn free(address: u64) -> Option<()> {
    // SAFETY: the driver's function; the memory is the program's to free.
    told(|more, _: *mut ()| unsafe { (more.free)(address) })
}

/// Does something with a context current. `None`: it cannot be made so.
pub fn in_context<T>(context: usize, body: impl FnOnce() -> T) -> Option<T> {
    // SAFETY: the driver's function; the context is one that it named.
    told(|more, _: *mut ()| unsafe { (more.push)(context) })?;
    let done = body();
    // SAFETY: as above.
    told(|more, place: *mut usize| unsafe { (more.pop)(place) })?;
    Some(done)
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref()
}

impl Driver {
    fn load() -> Option<Self> {
        // SAFETY: a name. It is loaded already, by the CUDA runtime.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        let find = |name: &CStr| {
            // SAFETY: an open library and a name.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!handle.is_null() && !found.is_null()).then_some(found)
        };
        let (load, kernel, launch) =
            (find(c"cuLibraryLoadFromFile")?, find(c"cuLibraryGetKernel")?, find(c"cuLaunchKernel")?);
        // SAFETY: the driver's function of this name has this type.
        let load = unsafe { std::mem::transmute::<*mut c_void, LoadFile>(load) };
        let mut library = 0;
        let path = own_path()?;
        // SAFETY: a place for a handle, a path, and no options.
        if unsafe { load(&raw mut library, path.as_ptr(), 0, 0, 0, 0, 0, 0) } != 0 {
            return None;
        }
        // SAFETY: as above.
        let get_kernel = unsafe { std::mem::transmute::<*mut c_void, GetKernel>(kernel) };
        // SAFETY: as above.
        let launch = unsafe { std::mem::transmute::<*mut c_void, Launch>(launch) };
        Some(Self { get_kernel, launch, library })
    }

    fn kernel(&self, name: &CStr) -> Option<usize> {
        static KNOWN: Mutex<BTreeMap<CString, usize>> = Mutex::new(BTreeMap::new());
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = known().get(name) {
            return Some(*kernel);
        }
        let mut kernel = 0;
        // SAFETY: a place for a handle, a loaded library, a name.
        let status = unsafe { (self.get_kernel)(&raw mut kernel, self.library, name.as_ptr()) };
        (status == 0).then(|| {
            known().insert(name.into(), kernel);
            kernel
        })
    }
}

/// Where this library was loaded from.
fn own_path() -> Option<CString> {
    // SAFETY: a struct of C without invariants.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address in this library, and a place for what is known of it.
    let found = unsafe { libc::dladdr(own_path as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of the library, which stays.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_owned())
}
