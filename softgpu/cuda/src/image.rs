//! Module images: ELF shared libraries whose exported functions are the kernels.
//!
//! ```text
//! extern "C" void name(const Launch *launch, const void *const *args);   the kernel
//! struct { uint32_t count; uint32_t sizes[count]; } name_params;         its parameters
//! ```
//! Any other image (PTX, cubin, fatbin) is *opaque*: it has every kernel, and they do nothing unless
//! `TIDEGATE_SOFTGPU_KERNELS` names a library that has them, or the process has loaded the stand-ins for
//! NVIDIA's libraries and those do, or they are among [`kernels`].
//!
//! A library that has a kernel under another name says so: `const char *softgpu_alias(const char *name)`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::CUresult;

use crate::abi::Answer;
use crate::{kernels, node};

/// More parameters than any kernel has: a larger count is no table of sizes.
const MOST_PARAMETERS: usize = 4096;

/// What a kernel is told about its launch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Shape {
    /// Blocks, x y z.
    pub grid: [u32; 3],
    /// Threads of a block, x y z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// A kernel's code.
pub type Code = unsafe extern "C" fn(*const Shape, *const *const c_void);

/// What an image has under a kernel's name.
#[derive(Clone)]
pub struct Kernel {
    /// Nothing happens without.
    pub code: Option<Code>,
    /// Bytes of each parameter; empty if unknown.
    pub sizes: Vec<usize>,
}

/// A loaded image.
pub enum Image {
    /// A shared library.
    Library(Library),
    /// Something only a real GPU can run.
    Opaque,
}

/// A handle of `dlopen`.
pub struct Library(ptr::NonNull<c_void>);

// SAFETY: the handle is only passed to dlsym, dladdr and dlclose, which may be called by any thread.
unsafe impl Send for Library {}
// SAFETY: as above; lookups do not change the library.
unsafe impl Sync for Library {}

impl Image {
    /// Loads the bytes of an image.
    pub fn load(bytes: &[u8]) -> Answer<Image> {
        if !is_for_this_machine(bytes) {
            return Ok(Image::Opaque);
        }
        Library::load(bytes).map(Image::Library).ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<Kernel> {
        let nothing = || Kernel { code: None, sizes: Vec::new() };
        match self {
            Image::Library(library) => library.kernel(name).or_else(|| extra_kernel(name)),
            Image::Opaque => Some(extra_kernel(name).unwrap_or_else(nothing)),
        }
    }

    /// The address and size of a variable.
    pub fn variable(&self, name: &str) -> Option<(usize, usize)> {
        match self {
            Image::Library(library) => library.variable(name),
            Image::Opaque => None,
        }
    }
}

impl Library {
    fn load(bytes: &[u8]) -> Option<Library> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("softgpu-image", flags).ok()?;
        let mut file = std::fs::File::from(file);
        file.write_all(bytes).ok()?;
        let opened = Library::open(&fresh_name(file.as_raw_fd()));
        opened.map_err(|why| node::say(&format!("cannot load a module image: {why}"))).ok()
    }

    fn open(path: &Path) -> Result<Library, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: a valid string; the image's constructors run, which is what loading it means.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        ptr::NonNull::new(handle).map(Library).ok_or_else(last_error)
    }

    fn symbol(&self, name: &str) -> Option<ptr::NonNull<c_void>> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is open as long as `self` lives, the name is a string.
        ptr::NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }

    /// A function counts as a kernel only with its table, since `dlsym` also finds what the image's
    /// dependencies export.
    fn kernel(&self, name: &str) -> Option<Kernel> {
        self.exported(name).or_else(|| self.exported(&self.alias(name)?))
    }

    fn alias(&self, name: &str) -> Option<String> {
        type Alias = unsafe extern "C" fn(*const c_char) -> *const c_char;
        let alias = self.symbol("softgpu_alias")?;
        // SAFETY: the kernel ABI: a function of this name has this type.
        let alias: Alias = unsafe { std::mem::transmute(alias) };
        let name = CString::new(name).ok()?;
        // SAFETY: a string.
        let found = unsafe { alias(name.as_ptr()) };
        // SAFETY: the kernel ABI: not null, it is a string that stays.
        (!found.is_null()).then(|| unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned())
    }

    fn exported(&self, name: &str) -> Option<Kernel> {
        let sizes = self.sizes(name)?;
        let code = self.symbol(name)?;
        // SAFETY: the kernel ABI: what has a table of parameters is a function of this type.
        let code: Code = unsafe { std::mem::transmute(code) };
        Some(Kernel { code: Some(code), sizes })
    }

    fn sizes(&self, kernel: &str) -> Option<Vec<usize>> {
        let table = self.symbol(&format!("{kernel}_params"))?.cast::<u32>();
        // SAFETY: the kernel ABI: the table begins with its count.
        let count = unsafe { table.as_ptr().read() } as usize;
        if count > MOST_PARAMETERS {
            return None;
        }
        // SAFETY: the kernel ABI: `count` sizes follow the count, in the same object.
        let table = unsafe { std::slice::from_raw_parts(table.as_ptr(), count + 1) };
        Some(table[1..].iter().map(|size| *size as usize).collect())
    }

    fn variable(&self, name: &str) -> Option<(usize, usize)> {
        let address = self.symbol(name)?.as_ptr();
        let mut info = libc::Dl_info {
            dli_fname: ptr::null(),
            dli_fbase: ptr::null_mut(),
            dli_sname: ptr::null(),
            dli_saddr: ptr::null_mut(),
        };
        let mut symbol: *mut c_void = ptr::null_mut();
        // SAFETY: both outputs are writable; RTLD_DL_SYMENT asks for the symbol table's entry.
        let found = unsafe { libc::dladdr1(address, &mut info, &mut symbol, RTLD_DL_SYMENT) };
        let entry = ptr::NonNull::new(symbol.cast::<libc::Elf64_Sym>()).filter(|_| found != 0)?;
        // SAFETY: dladdr1 set it to an entry of the loaded image's symbol table.
        let size = unsafe { entry.as_ref() }.st_size as usize;
        Some((address as usize, size))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once; launches in flight keep their image alive.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// A path to a descriptor, spelt as none before: `dlopen` takes a name it knows for the library it
/// knows, and descriptors' numbers come again. The bits of a counter are written as `./` or `.//`.
fn fresh_name(fd: i32) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let bit = |at: u32| if number >> at & 1 == 0 { "./" } else { ".//" };
    format!("/proc/self/fd/{}{fd}", (0..32).map(bit).collect::<String>()).into()
}

const RTLD_DL_SYMENT: c_int = 1;

/// The size of the ELF image at an address, from its own headers; `None` if it is none of ours.
pub fn size_in_memory(address: usize) -> Option<usize> {
    if address == 0 {
        return None;
    }
    // SAFETY: `cuModuleLoadData` is given an image, and every kind of image has four bytes.
    let magic = unsafe { std::slice::from_raw_parts(address as *const u8, 4) };
    if magic != b"\x7fELF" {
        return None;
    }
    // SAFETY: what begins with the magic is an ELF image and has its header of 64 bytes.
    let header = unsafe { std::slice::from_raw_parts(address as *const u8, 64) };
    let (table, entry, count) = (number(header, 40, 8), number(header, 58, 2), number(header, 60, 2));
    is_for_this_machine(header).then(|| table + entry * count)
}

fn is_for_this_machine(bytes: &[u8]) -> bool {
    const MACHINE: usize = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    bytes.len() >= 64 && bytes.starts_with(b"\x7fELF") && number(bytes, 18, 2) == MACHINE
}

/// The little-endian number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> usize {
    bytes[at..at + size].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

/// Looks in the libraries of `TIDEGATE_SOFTGPU_KERNELS`, in the stand-ins, and among our own.
fn extra_kernel(name: &str) -> Option<Kernel> {
    static LIBRARIES: OnceLock<Vec<Library>> = OnceLock::new();
    let libraries = LIBRARIES.get_or_init(|| {
        let list = std::env::var("TIDEGATE_SOFTGPU_KERNELS").unwrap_or_default();
        list.split(':').filter(|path| !path.is_empty()).filter_map(open_extra).collect()
    });
    let of_libraries = || libraries.iter().find_map(|library| library.kernel(name));
    of_libraries().or_else(|| stand_ins()?.kernel(name)).or_else(|| kernels::kernel(name))
}

/// What stands in for NVIDIA's libraries (`softgpu/libraries`), if the process has loaded it by now.
fn stand_ins() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Some(library);
    }
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
    // SAFETY: a valid string; nothing is loaded, so nothing runs.
    let handle = unsafe { libc::dlopen(c"libsoftgpu_libraries.so".as_ptr(), flags) };
    let library = Library(ptr::NonNull::new(handle)?);
    Some(LIBRARY.get_or_init(|| library))
}

fn open_extra(path: &str) -> Option<Library> {
    let opened = Library::open(Path::new(path));
    opened.map_err(|why| node::say(&format!("TIDEGATE_SOFTGPU_KERNELS: {why}"))).ok()
}

fn last_error() -> String {
    // SAFETY: dlerror has no preconditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: not null, so a string that stays until this thread's next dl call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
