//! Modules and libraries, their functions and variables.
//!
//! A library is a module without a context, and a kernel of it is used as a function: both have one
//! kind of handle here.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUfunc_cache, CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUjit_option, CUkernel,
    CUlibrary, CUlibraryOption, CUmodule, CUmoduleLoadingMode, CUresult, CUsharedconfig,
};
use parking_lot::Mutex;

use crate::abi::{Answer, Enum, Host, Ignored, Maybe, Out, Text};
use crate::context::{self, Context};
use crate::image::{self, Image, Kernel};
use crate::registry::Registry;
use crate::space::{self, Kind, Region};
use crate::store::Held;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
const NOT_FOUND: CUresult = CUresult::CUDA_ERROR_NOT_FOUND;

/// The context of modules that have none: libraries.
const NO_CONTEXT: usize = 0;

type JitOptions = Ignored<*mut CUjit_option>;
type LibraryOptions = Ignored<*mut CUlibraryOption>;
type OptionValues = Ignored<*mut *mut c_void>;

/// A module or library.
struct Module {
    handle: usize,
    context: usize,
    image: Arc<Image>,
    functions: Mutex<HashMap<String, usize>>,
    memory: Mutex<Option<Taken>>,
}

/// GPU memory that a module takes.
struct Taken {
    /// The context it ends with, also for a library.
    context: usize,
    _held: Held,
}

/// A kernel of a module.
pub struct Function {
    pub handle: usize,
    pub name: String,
    pub kernel: Kernel,
    /// Where in the parameter buffer each parameter lies.
    pub offsets: Vec<usize>,
    /// Kept as long as a launch may run.
    _image: Arc<Image>,
    c_name: CString,
    module: usize,
    attributes: Mutex<HashMap<u32, i32>>,
}

static MODULES: Registry<Module> = Registry::new();
static FUNCTIONS: Registry<Function> = Registry::new();

impl Module {
    fn function(&self, name: String) -> Answer<usize> {
        let mut functions = self.functions.lock();
        if let Some(handle) = functions.get(&name) {
            return Ok(*handle);
        }
        let kernel = self.image.kernel(&name).ok_or(NOT_FOUND)?;
        let function = FUNCTIONS.add(|handle| Function::new(handle, self, &name, kernel));
        functions.insert(name, function.handle);
        Ok(function.handle)
    }

    fn forget(&self) {
        self.memory.lock().take();
        for handle in self.functions.lock().values() {
            FUNCTIONS.remove(*handle);
        }
        let image = |region: &Region| match &region.kind {
            Kind::Global { image, .. } => Arc::ptr_eq(image, &self.image),
            _ => false,
        };
        space::change().take_where(image);
    }
}

impl Function {
    fn new(handle: usize, module: &Module, name: &str, kernel: Kernel) -> Function {
        Function {
            handle,
            name: name.to_owned(),
            offsets: offsets(&kernel.sizes),
            kernel,
            _image: module.image.clone(),
            c_name: CString::new(name).unwrap_or_default(),
            module: module.handle,
            attributes: Mutex::default(),
        }
    }
}

/// Parameters lie one after the other, each at a multiple of the largest power of two, at most 16,
/// that divides its size.
fn offsets(sizes: &[usize]) -> Vec<usize> {
    let place = |end: &mut usize, size: &usize| {
        let align = 1 << size.trailing_zeros().min(4);
        let at = end.next_multiple_of(align);
        *end = at + size;
        Some(at)
    };
    sizes.iter().scan(0, place).collect()
}

fn add(image: Image, context: &Context) -> Answer<usize> {
    Ok(register(image, context.handle, taken_in(context)?))
}

/// A library needs no context; with one, it is loaded there.
fn add_library(image: Image) -> Answer<usize> {
    let memory = context::current().map_or(Ok(None), |context| taken_in(&context))?;
    Ok(register(image, NO_CONTEXT, memory))
}

fn register(image: Image, context: usize, memory: Option<Taken>) -> usize {
    let (image, functions, memory) = (Arc::new(image), Mutex::default(), Mutex::new(memory));
    MODULES.add(|handle| Module { handle, context, image, functions, memory }).handle
}

fn taken_in(context: &Context) -> Answer<Option<Taken>> {
    let held = context.module_memory()?;
    Ok(held.map(|held| Taken { context: context.handle, _held: held }))
}

fn from_file(path: &str) -> Answer<Image> {
    let bytes = std::fs::read(path).map_err(|_| CUresult::CUDA_ERROR_FILE_NOT_FOUND)?;
    Image::load(&bytes)
}

fn from_memory(at: Host) -> Answer<Image> {
    if at.0 == 0 {
        return Err(INVALID);
    }
    let Some(size) = image::size_in_memory(at.0) else { return Ok(Image::Opaque) };
    // SAFETY: the caller passed an ELF image, and this is its size by its own headers.
    Image::load(unsafe { std::slice::from_raw_parts(at.0 as *const u8, size) })
}

/// `cuModuleLoad`
pub fn load(out: Out<CUmodule>, path: Text) -> Answer {
    let context = context::current()?;
    out.set(add(from_file(&path.0)?, &context)? as CUmodule);
    Ok(())
}

/// `cuModuleLoadData` and `cuModuleLoadFatBinary`
pub fn load_data(out: Out<CUmodule>, image: Host) -> Answer {
    let context = context::current()?;
    out.set(add(from_memory(image)?, &context)? as CUmodule);
    Ok(())
}

/// `cuModuleLoadDataEx`
pub fn load_data_with(
    out: Out<CUmodule>,
    image: Host,
    _count: u32,
    _options: JitOptions,
    _values: OptionValues,
) -> Answer {
    load_data(out, image)
}

/// `cuModuleUnload`: after the work that may use it.
pub fn unload(module: CUmodule) -> Answer {
    let context = context::current()?;
    find_module(module as usize)?;
    context.synchronize()?;
    forget_module(module as usize)
}

/// `cuModuleGetFunction`
pub fn function(out: Out<CUfunction>, module: CUmodule, name: Text) -> Answer {
    context::current()?;
    out.set(find_module(module as usize)?.function(name.0)? as CUfunction);
    Ok(())
}

/// `cuModuleGetGlobal_v2`
pub fn global(address: Maybe<u64>, bytes: Maybe<usize>, module: CUmodule, name: Text) -> Answer {
    let context = context::current()?;
    let module = find_module(module as usize)?;
    let (start, size) = module.image.variable(&name.0).ok_or(NOT_FOUND)?;
    let kind = Kind::Global { device: context.device, context: context.handle, image: module.image.clone() };
    space::change().add(Region { start, size, kind });
    address.set(start as u64);
    bytes.set(size);
    Ok(())
}

/// `cuModuleGetLoadingMode`
pub fn loading_mode(out: Out<CUmoduleLoadingMode>) -> Answer {
    out.set(CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING);
    Ok(())
}

/// `cuLibraryLoadData`
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub fn load_library(
    out: Out<CUlibrary>,
    image: Host,
    _options: JitOptions,
    _values: OptionValues,
    _count: u32,
    _library_options: LibraryOptions,
    _library_values: OptionValues,
    _library_count: u32,
) -> Answer {
    out.set(add_library(from_memory(image)?)? as CUlibrary);
    Ok(())
}

/// `cuLibraryLoadFromFile`
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub fn load_library_file(
    out: Out<CUlibrary>,
    path: Text,
    _options: JitOptions,
    _values: OptionValues,
    _count: u32,
    _library_options: LibraryOptions,
    _library_values: OptionValues,
    _library_count: u32,
) -> Answer {
    out.set(add_library(from_file(&path.0)?)? as CUlibrary);
    Ok(())
}

/// `cuLibraryUnload`
pub fn unload_library(library: CUlibrary) -> Answer {
    find_module(library as usize)?;
    if let Ok(context) = context::current() {
        context.synchronize()?;
    }
    forget_module(library as usize)
}

/// `cuLibraryGetKernel`
pub fn library_kernel(out: Out<CUkernel>, library: CUlibrary, name: Text) -> Answer {
    out.set(find_module(library as usize)?.function(name.0)? as CUkernel);
    Ok(())
}

/// `cuLibraryGetModule`
pub fn library_module(out: Out<CUmodule>, library: CUlibrary) -> Answer {
    out.set(find_module(library as usize)?.handle as CUmodule);
    Ok(())
}

/// `cuLibraryGetGlobal`
pub fn library_global(at: Maybe<u64>, bytes: Maybe<usize>, library: CUlibrary, name: Text) -> Answer {
    global(at, bytes, library as CUmodule, name)
}

/// `cuKernelGetFunction`
pub fn kernel_function(out: Out<CUfunction>, kernel: CUkernel) -> Answer {
    out.set(find(kernel as CUfunction)?.handle as CUfunction);
    Ok(())
}

/// `cuKernelGetLibrary`
pub fn kernel_library(out: Out<CUlibrary>, kernel: CUkernel) -> Answer {
    out.set(find(kernel as CUfunction)?.module as CUlibrary);
    Ok(())
}

/// `cuKernelGetName`
pub fn kernel_name(out: Out<*const c_char>, kernel: CUkernel) -> Answer {
    function_name(out, kernel as CUfunction)
}

/// `cuKernelGetAttribute`
pub fn kernel_attribute(
    out: Out<i32>,
    attribute: Enum<CUfunction_attribute>,
    kernel: CUkernel,
    _device: i32,
) -> Answer {
    function_attribute(out, attribute, kernel as CUfunction)
}

/// `cuKernelSetAttribute`
pub fn set_kernel_attribute(
    attribute: Enum<CUfunction_attribute>,
    value: i32,
    kernel: CUkernel,
    _device: i32,
) -> Answer {
    set_function_attribute(kernel as CUfunction, attribute, value)
}

/// `cuKernelGetParamInfo`
pub fn kernel_parameter(kernel: CUkernel, index: usize, offset: Out<usize>, size: Maybe<usize>) -> Answer {
    function_parameter(kernel as CUfunction, index, offset, size)
}

/// `cuFuncGetName`; the name is valid as long as the function.
pub fn function_name(out: Out<*const c_char>, function: CUfunction) -> Answer {
    out.set(find(function)?.c_name.as_ptr());
    Ok(())
}

/// `cuFuncGetModule`
pub fn function_module(out: Out<CUmodule>, function: CUfunction) -> Answer {
    out.set(find(function)?.module as CUmodule);
    Ok(())
}

/// `cuFuncGetParamInfo`
pub fn function_parameter(
    function: CUfunction,
    index: usize,
    offset: Out<usize>,
    size: Maybe<usize>,
) -> Answer {
    let function = find(function)?;
    offset.set(*function.offsets.get(index).ok_or(INVALID)?);
    size.set(function.kernel.sizes[index]);
    Ok(())
}

/// `cuFuncGetParamCount`
pub fn parameter_count(function: CUfunction, out: Out<usize>) -> Answer {
    out.set(find(function)?.kernel.sizes.len());
    Ok(())
}

/// `cuKernelGetParamCount`
pub fn kernel_parameter_count(kernel: CUkernel, out: Out<usize>) -> Answer {
    parameter_count(kernel as CUfunction, out)
}

/// `cuFuncGetAttribute`
pub fn function_attribute(
    out: Out<i32>,
    attribute: Enum<CUfunction_attribute>,
    function: CUfunction,
) -> Answer {
    let default = default_attribute(attribute.0)?;
    let function = find(function)?;
    out.set(function.attributes.lock().get(&attribute.0).copied().unwrap_or(default));
    Ok(())
}

/// `cuFuncSetAttribute`
pub fn set_function_attribute(
    function: CUfunction,
    attribute: Enum<CUfunction_attribute>,
    value: i32,
) -> Answer {
    const DYNAMIC_SHARED: u32 = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
    default_attribute(attribute.0)?;
    let too_much = attribute.0 == DYNAMIC_SHARED && value > crate::device::SHARED_OPT_IN;
    if attribute.0 < DYNAMIC_SHARED || too_much {
        return Err(INVALID);
    }
    find(function)?.attributes.lock().insert(attribute.0, value);
    Ok(())
}

/// `cuFuncSetCacheConfig`
pub fn set_function_cache(function: CUfunction, _config: Enum<CUfunc_cache>) -> Answer {
    find(function).map(drop)
}

/// `cuKernelSetCacheConfig`
pub fn set_kernel_cache(kernel: CUkernel, _config: Enum<CUfunc_cache>, _device: i32) -> Answer {
    find(kernel as CUfunction).map(drop)
}

/// `cuFuncSetSharedMemConfig`
pub fn set_function_banks(function: CUfunction, _config: Enum<CUsharedconfig>) -> Answer {
    find(function).map(drop)
}

/// `cuFuncIsLoaded`
pub fn function_is_loaded(out: Out<CUfunctionLoadingState>, function: CUfunction) -> Answer {
    find(function)?;
    out.set(CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED);
    Ok(())
}

/// `cuFuncLoad`
pub fn load_function(function: CUfunction) -> Answer {
    find(function).map(drop)
}

/// The function of a handle.
pub fn find(function: CUfunction) -> Answer<Arc<Function>> {
    FUNCTIONS.get(function as usize).ok_or(INVALID_HANDLE)
}

/// Forgets the modules of a context that ends, and gives back what libraries took in it.
pub fn forget_all_of(context: usize) {
    for module in MODULES.all() {
        if module.context == context {
            let _ = forget_module(module.handle);
        }
        module.memory.lock().take_if(|taken| taken.context == context);
    }
}

fn find_module(handle: usize) -> Answer<Arc<Module>> {
    MODULES.get(handle).ok_or(INVALID_HANDLE)
}

fn forget_module(handle: usize) -> Answer {
    MODULES.remove(handle).map(|module| module.forget()).ok_or(INVALID_HANDLE)
}

/// Threads per block, static shared, constant, local bytes, registers, PTX and binary version, cache
/// mode, dynamic shared bytes, carve-out, cluster settings.
fn default_attribute(attribute: u32) -> Answer<i32> {
    const DEFAULTS: [i32; 16] = [1024, 0, 0, 0, 32, 90, 90, 0, 49152, -1, 0, 0, 0, 0, 0, 0];
    DEFAULTS.get(attribute as usize).copied().ok_or(INVALID)
}
