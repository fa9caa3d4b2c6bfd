//! Runs each promise in a child process whose `libcudart.so` is the library of this package, on a
//! software GPU.

use std::ffi::{CStr, CString, OsString, c_void};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cudarc::runtime::sys::{cudaMemcpyKind, cudaStream_t, dim3};

/// No promise takes longer, on the slowest machine, or it hangs.
const PATIENCE: Duration = Duration::from_secs(150);
/// Names the promise that a child is to keep.
const PROMISE: &str = "CUDART_PROMISE";
/// Names the image with the tests' kernels to a child.
const IMAGE: &str = "CUDART_KERNELS_IMAGE";

/// Memory of a GPU.
pub const MEMORY: usize = 16 << 20;

/// Calls a runtime function and gives its code.
macro_rules! rt {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the tests pass what the header asks for, or what the runtime has to refuse.
        unsafe { cudarc::runtime::sys::$name($($arg),*) }
    };
}

/// Calls a runtime function that has to succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(
            rt!($name($($arg),*)),
            cudarc::runtime::sys::cudaError::cudaSuccess,
            stringify!($name)
        )
    };
}

/// Declares a promise: a test whose body runs in a child process on a node of so many GPUs.
macro_rules! promise {
    (fn $name:ident() on $gpus:literal; $body:block) => {
        #[test]
        fn $name() {
            fn body() $body
            $crate::support::keep(concat!(module_path!(), "::", stringify!($name)), $gpus, body);
        }
    };
}

/// The body of a promise if this is its process, else the process.
pub fn keep(path: &str, gpus: usize, body: fn()) {
    let name = path.split_once("::").expect("a test lies in a module").1;
    if std::env::var(PROMISE).is_ok_and(|promise| promise == name) {
        return body();
    }
    let node = tempfile::tempdir().unwrap();
    write_node(node.path(), gpus);
    finish(this_test(name, node.path()).spawn().unwrap(), name);
}

fn this_test(name: &str, node: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(PROMISE, name).env(IMAGE, kernels_image());
    command.env("TIDEGATE_SOFTGPU", node).env("LD_LIBRARY_PATH", libraries());
    command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("TIDEGATE_SOFTGPU_KERNELS");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for a process, not for ever; fails with its output.
fn finish(mut child: Child, name: &str) {
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > end {
            child.kill().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut out));
    child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut err));
    let Some(status) = status else { panic!("{name}: it did not end within {PATIENCE:?}\n{out}\n{err}") };
    assert!(status.success(), "{name}: {status:?}\n{out}\n{err}");
}

fn write_node(directory: &Path, gpus: usize) {
    let gpu = |number: usize| {
        let uuid = format!("GPU-00000000-0000-0000-0000-00000000000{number}");
        format!("[[gpu]]\nuuid = \"{uuid}\"\nmemory = {MEMORY}\ngranularity = 262144\n")
    };
    std::fs::write(directory.join("gpus.toml"), (0..gpus).map(gpu).collect::<String>()).unwrap();
}

/// A directory in which driver and runtime have the names that programs look for.
fn libraries() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        build_libraries();
        let directory = scratch();
        for (name, library) in [
            ("libcuda.so.1", "libsoftgpu_cuda.so"),
            ("libcudart.so.13", "libsoftgpu_cudart.so"),
            ("libcudart.so", "libsoftgpu_cudart.so"),
        ] {
            link(&profile().join(library), &directory.join(name));
        }
        directory
    };
    DIRECTORY.get_or_init(make).clone()
}

/// Links in one step, since tests of other processes may do the same.
fn link(target: &Path, name: &Path) {
    let fresh = name.with_extension(format!("{}", std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(target, &fresh).unwrap();
    std::fs::rename(&fresh, name).unwrap();
}

/// Builds what cargo does not build for a test by itself, if cargo is at hand.
fn build_libraries() {
    let Some(cargo) = std::env::var_os("CARGO") else { return };
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", "tidegate-softgpu-cuda", "-p", "tidegate-softgpu-cudart", "--lib"]);
    build.env("CARGO_TARGET_DIR", profile().parent().unwrap());
    if profile().ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success(), "the libraries do not build");
}

/// `target/<profile>`, from `target/<profile>/deps/<this test>`.
fn profile() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    executable.parent().and_then(Path::parent).unwrap().to_owned()
}

fn scratch() -> PathBuf {
    let directory = profile().join("softgpu-cudart-names");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// The image of the driver's test kernels.
fn kernels_image() -> PathBuf {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(build_kernels).clone()
}

fn build_kernels() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/tests/kernels/lib.rs");
    let image = scratch().join("libkernels.so");
    let fresh = image.with_extension(format!("{}.so", std::process::id()));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let mut build = Command::new(rustc);
    build.args(["--edition=2024", "--crate-type=cdylib", "-Copt-level=2", "--crate-name=kernels"]);
    assert!(build.arg(source).arg("-o").arg(&fresh).status().unwrap().success());
    std::fs::rename(&fresh, &image).unwrap();
    image
}

/// The address of a function of the runtime.
pub fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a string; the library is what a program would open, and stays open.
    let library = unsafe { libc::dlopen(c"libcudart.so.13".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "the runtime is there");
    // SAFETY: an open library and a string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// A function of the runtime that no binding declares.
macro_rules! undeclared {
    ($name:literal, fn($($arg:ty),* $(,)?) $(-> $answer:ty)?) => {{
        let at = $crate::support::symbol($name);
        assert!(!at.is_null(), "{:?}", $name);
        // SAFETY: the function of that name takes and gives just this.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($arg),*) $(-> $answer)?>(at) }
    }};
}

/// An image as a compiler registers it: a program's own, with one kernel and one variable.
pub struct Program {
    handle: *mut *mut c_void,
    /// The host addresses that stand for what is registered: of these bytes.
    places: &'static [u8; 2],
    _record: &'static Record,
}

#[repr(C)]
struct Record {
    magic: u32,
    version: u32,
    image: *const c_void,
    more: *const c_void,
}

impl Program {
    /// Registers kernel and variable of the tests' image.
    pub fn with(kernel: &CStr, variable: &CStr, bytes: usize) -> Program {
        let path = std::env::var_os(IMAGE).unwrap();
        let image: &'static [u8] = Box::leak(std::fs::read(path).unwrap().into_boxed_slice());
        let (image, more) = (image.as_ptr().cast(), std::ptr::null());
        let record: &Record = Box::leak(Box::new(Record { magic: 0x466243b1, version: 1, image, more }));
        let places: &[u8; 2] = Box::leak(Box::new([0; 2]));
        let register = undeclared!(c"__cudaRegisterFatBinary", fn(*const Record) -> *mut *mut c_void);
        // SAFETY: a record as compilers write it, which stays.
        let handle = unsafe { register(record) };
        let program = Program { handle, places, _record: record };
        program.register(kernel, variable, bytes);
        program
    }

    fn register(&self, kernel: &CStr, variable: &CStr, bytes: usize) {
        type Name = *const std::ffi::c_char;
        let (kernel, variable) = (CString::from(kernel).into_raw(), CString::from(variable).into_raw());
        let none = std::ptr::null::<c_void>();
        let function = undeclared!(
            c"__cudaRegisterFunction",
            fn(
                *mut *mut c_void,
                *const c_void,
                Name,
                Name,
                i32,
                *const c_void,
                *const c_void,
                *const c_void,
                *const c_void,
                *const c_void,
            )
        );
        // SAFETY: a handle of the runtime's and names that stay.
        unsafe { function(self.handle, self.kernel(), kernel, kernel, -1, none, none, none, none, none) };
        let register = undeclared!(
            c"__cudaRegisterVar",
            fn(*mut *mut c_void, *const c_void, Name, Name, i32, usize, i32, i32)
        );
        // SAFETY: as above.
        unsafe { register(self.handle, self.variable(), variable, variable, 0, bytes, 0, 0) };
        let end = undeclared!(c"__cudaRegisterFatBinaryEnd", fn(*mut *mut c_void));
        // SAFETY: as above.
        unsafe { end(self.handle) };
    }

    /// The host address that stands for the kernel.
    pub fn kernel(&self) -> *const c_void {
        (&raw const self.places[0]).cast()
    }

    /// The host address that stands for the variable.
    pub fn variable(&self) -> *const c_void {
        (&raw const self.places[1]).cast()
    }

    /// Launches one thread of the kernel, with the values behind `arguments`.
    pub fn launch(&self, stream: cudaStream_t, arguments: &[*const c_void]) -> u32 {
        let mut arguments: Vec<*mut c_void> = arguments.iter().map(|at| at.cast_mut()).collect();
        rt!(cudaLaunchKernel(self.kernel(), ONE, ONE, arguments.as_mut_ptr(), 0, stream)) as u32
    }

    /// Takes the image back.
    pub fn unregister(self) -> *const c_void {
        let unregister = undeclared!(c"__cudaUnregisterFatBinary", fn(*mut *mut c_void));
        // SAFETY: the handle of a registered image.
        unsafe { unregister(self.handle) };
        self.kernel()
    }
}

/// One block, or one thread.
pub const ONE: dim3 = dim3 { x: 1, y: 1, z: 1 };

/// The address of an argument.
pub fn arg<T>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

/// Device memory.
pub fn alloc(bytes: usize) -> *mut c_void {
    let mut at = std::ptr::null_mut();
    ok!(cudaMalloc(&mut at, bytes));
    at
}

/// Reads device memory.
pub fn read<T: Copy + Default>(at: *const c_void, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let bytes = size_of_val(&values[..]);
    ok!(cudaMemcpy(values.as_mut_ptr().cast(), at, bytes, cudaMemcpyKind::cudaMemcpyDeviceToHost));
    values
}

/// Writes device memory.
pub fn write<T: Copy>(at: *mut c_void, values: &[T]) {
    let (from, bytes) = (values.as_ptr().cast(), size_of_val(values));
    ok!(cudaMemcpy(at, from, bytes, cudaMemcpyKind::cudaMemcpyHostToDevice));
}

/// A stream of the current device.
pub fn stream() -> cudaStream_t {
    let mut stream = std::ptr::null_mut();
    ok!(cudaStreamCreate(&mut stream));
    stream
}
