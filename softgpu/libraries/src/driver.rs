//! The three functions of the driver that launch a kernel of this library.

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
