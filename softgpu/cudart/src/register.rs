//! What a compiler writes into programs: their images, and which host address stands for which kernel
//! or variable of an image.
//!
//! ```text
//! program starts                    first use of `axpy`
//! __cudaRegisterFatBinary(image)    cuLibraryLoadData(image)
//! __cudaRegisterFunction(axpy) …    cuLibraryGetKernel("_Z4axpy…")
//! __cudaRegisterFatBinaryEnd        cuLaunchKernel …
//! ```
//! Nothing but notes is taken at the start: an image is loaded with its first use, so that a program
//! that uses no GPU needs no driver.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

use cudarc::runtime::sys::cudaError;
use parking_lot::{Mutex, RwLock};

use crate::abi::{Address, Function, Host, Kernel, Library, Maybe, Out, Parameters, Text, Written};
use crate::driver::{Driver, Streams};
use crate::error::{Answer, Error};

/// What a compiler's record of an image begins with.
const MAGIC: u32 = 0x4662_43b1;

/// A compiler's record of an image.
#[repr(C)]
#[derive(Clone, Copy)]
struct Record {
    magic: u32,
    version: u32,
    image: usize,
    more: usize,
}

/// An image of the program, and its library once it is loaded.
struct Image {
    at: usize,
    library: Mutex<Option<usize>>,
}

/// Something of an image, by its name there.
struct Named {
    image: Arc<Image>,
    name: CString,
    /// Of a kernel, once somebody asked.
    kernel: Mutex<Option<usize>>,
    /// Of a variable.
    bytes: usize,
}

/// All that is registered, by the handles and host addresses of the program.
#[derive(Default)]
struct Registered {
    images: HashMap<usize, Arc<Image>>,
    kernels: HashMap<usize, Arc<Named>>,
    variables: HashMap<usize, Arc<Named>>,
}

static REGISTERED: RwLock<Option<Registered>> = RwLock::new(None);

impl Image {
    fn library(&self, driver: &Driver) -> Answer<Library> {
        let mut loaded = self.library.lock();
        if let Some(library) = *loaded {
            return Ok(Library::new(library));
        }
        let library = load(driver, Host(self.at))?;
        *loaded = Some(library.0);
        Ok(library)
    }
}

fn load(driver: &Driver, image: Host) -> Answer<Library> {
    let none = Parameters(0);
    let mut library = Library::NULL;
    driver.cuLibraryLoadData(Out::to(&mut library), image, Written::NULL, none, 0, Written::NULL, none, 0)?;
    Ok(library)
}

impl Named {
    fn kernel(&self, driver: &Driver) -> Answer<Kernel> {
        let mut known = self.kernel.lock();
        if let Some(kernel) = *known {
            return Ok(Kernel::new(kernel));
        }
        let library = self.image.library(driver)?;
        let mut kernel = Kernel::NULL;
        let found = driver.cuLibraryGetKernel(Out::to(&mut kernel), library, Text::to(&self.name));
        found.map_err(|error| if error == Error::NOT_FOUND { Error::INVALID_FUNCTION } else { error })?;
        *known = Some(kernel.0);
        Ok(kernel)
    }
}

/// `__cudaRegisterFatBinary`: the handle of an image of the program.
pub fn image(record: Host) -> usize {
    // SAFETY: a compiler gives the address of its record, which stays as long as the image.
    let record = unsafe { (record.0 as *const Record).read_unaligned() };
    if record.magic != MAGIC {
        return 0;
    }
    let image = Arc::new(Image { at: record.image, library: Mutex::new(None) });
    let handle = Arc::as_ptr(&image) as usize;
    REGISTERED.write().get_or_insert_default().images.insert(handle, image);
    handle
}

/// `__cudaRegisterFatBinaryEnd`: the image's kernels and variables are all there.
pub fn image_is_complete(_handle: usize) {}

/// `__cudaUnregisterFatBinary`: what is of the image goes with it.
pub fn forget_image(handle: usize) {
    let mut registered = REGISTERED.write();
    let Some(all) = registered.as_mut() else { return };
    let Some(image) = all.images.remove(&handle) else { return };
    all.kernels.retain(|_, named| !Arc::ptr_eq(&named.image, &image));
    all.variables.retain(|_, named| !Arc::ptr_eq(&named.image, &image));
    drop(registered);
    let library = image.library.lock().take();
    if let (Some(library), Ok(driver)) = (library, Driver::of(Streams::Legacy)) {
        // A program that ends has nobody to tell.
        let _ = driver.cuLibraryUnload(Library::new(library));
    }
}

/// `__cudaInitModule`: loads an image now; whether that went well.
pub fn load_image(handle: usize) -> c_char {
    let image = REGISTERED.read().as_ref().and_then(|all| all.images.get(&handle).cloned());
    let Some(image) = image else { return 0 };
    let loaded = crate::abi::enter(crate::abi::Need::Context, Streams::Legacy, |driver| {
        image.library(driver).map(drop)
    });
    c_char::from(loaded == cudaError::cudaSuccess as u32)
}

/// `__cudaRegisterFunction`: a host function's address stands for a kernel of the image.
#[expect(clippy::too_many_arguments, reason = "what compilers call")]
pub fn kernel(
    handle: usize,
    stands_for: usize,
    _device_function: usize,
    name: usize,
    _thread_limit: i32,
    _thread: usize,
    _block: usize,
    _block_size: usize,
    _grid_size: usize,
    _warp_size: usize,
) {
    note(handle, name, 0, |all, named| all.kernels.insert(stands_for, named));
}

/// `__cudaRegisterVar`: a host variable's address stands for a variable of the image.
#[expect(clippy::too_many_arguments, reason = "what compilers call")]
pub fn variable(
    handle: usize,
    stands_for: usize,
    _device_address: usize,
    name: usize,
    _external: i32,
    bytes: usize,
    _constant: i32,
    _global: i32,
) {
    note(handle, name, bytes, |all, named| all.variables.insert(stands_for, named));
}

fn note(
    handle: usize,
    name: usize,
    bytes: usize,
    keep: impl FnOnce(&mut Registered, Arc<Named>) -> Option<Arc<Named>>,
) {
    let mut registered = REGISTERED.write();
    let Some(all) = registered.as_mut() else { return };
    let Some(image) = all.images.get(&handle).cloned() else { return };
    // SAFETY: a compiler gives the address of the name as the image has it, a C string.
    let name = unsafe { CStr::from_ptr(name as *const c_char) }.to_owned();
    keep(all, Arc::new(Named { image, name, kernel: Mutex::new(None), bytes }));
}

/// The kernel that a host address stands for; a kernel's own handle stands for itself.
pub fn find(driver: &Driver, stands_for: Host) -> Answer<Kernel> {
    let named = REGISTERED.read().as_ref().and_then(|all| all.kernels.get(&stands_for.0).cloned());
    match named {
        Some(named) => named.kernel(driver),
        None if is_handle(stands_for) => Ok(Kernel::new(stands_for.0)),
        None => Err(Error::INVALID_FUNCTION),
    }
}

/// As [`find`], for a driver function that takes kernels as functions.
pub fn find_function(driver: &Driver, stands_for: Host) -> Answer<Function> {
    find(driver, stands_for).map(|kernel| Function::new(kernel.0))
}

/// Handles of kernels that programs were given, and may use as host addresses.
static HANDLES: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn is_handle(kernel: Host) -> bool {
    HANDLES.lock().contains(&kernel.0)
}

fn give(kernel: Kernel, mut out: Out<Kernel>) {
    HANDLES.lock().insert(kernel.0);
    out.set(kernel);
}

/// `cudaGetKernel`
pub fn get_kernel(driver: &Driver, out: Out<Kernel>, stands_for: Host) -> Answer {
    give(find(driver, stands_for)?, out);
    Ok(())
}

/// `cudaLibraryGetKernel`
pub fn library_kernel(driver: &Driver, out: Out<Kernel>, library: Library, name: Text) -> Answer {
    let mut kernel = Kernel::NULL;
    driver.cuLibraryGetKernel(Out::to(&mut kernel), library, name)?;
    give(kernel, out);
    Ok(())
}

/// The device address and the size of the variable that a host address stands for.
pub fn find_variable(driver: &Driver, stands_for: Host) -> Answer<(Address, usize)> {
    let named = REGISTERED.read().as_ref().and_then(|all| all.variables.get(&stands_for.0).cloned());
    let named = named.ok_or(Error::INVALID_SYMBOL)?;
    let library = named.image.library(driver)?;
    let mut address = Address::default();
    let found = driver.cuLibraryGetGlobal(Out::to(&mut address), Maybe::NONE, library, Text::to(&named.name));
    found.map_err(|error| if error == Error::NOT_FOUND { Error::INVALID_SYMBOL } else { error })?;
    Ok((address, named.bytes))
}
