//! Runs each promise in a child process whose `libcuda.so` is the library of this package.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString, c_void};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUcontext, CUdeviceptr, CUfunction, CUresult};

/// Names the folder of another driver to ask, in place of the software GPU's.
const OTHER_DRIVER: &str = "TIDEGATE_CONFORMANCE_DRIVER";

/// Names the program that runs each promise under a manager: `LAUNCHER NODE PROGRAM ARGUMENTS…`.
const LAUNCHER: &str = "TIDEGATE_CONFORMANCE_LAUNCHER";

/// The promises that only the software GPU is to keep.
const SOFTWARE_ONLY: &str = include_str!("software_only.txt");

/// The promises that are not asked under a manager.
const NOT_UNDER_A_MANAGER: &str = include_str!("under_a_manager.txt");

/// The promises that another driver is asked one at a time.
const ONE_AT_A_TIME: &str = include_str!("one_at_a_time.txt");

/// No promise takes longer, on the slowest machine, or it hangs.
const PATIENCE: Duration = Duration::from_secs(150);

/// Calls a driver function and gives its code.
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the tests pass what cuda.h asks for, or what the driver has to refuse.
        unsafe { cudarc::driver::sys::$name($($arg),*) }
    };
}

/// Calls a driver function that has to succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(
            cu!($name($($arg),*)),
            cudarc::driver::sys::CUresult::CUDA_SUCCESS,
            stringify!($name)
        )
    };
}

/// Declares a promise: a test whose body runs in a child process on a node of its own.
macro_rules! promise {
    ($(#[$meta:meta])* fn $name:ident() on $node:expr; $body:block) => {
        $(#[$meta])*
        #[test]
        fn $name() {
            fn body() $body
            $crate::support::keep(concat!(module_path!(), "::", stringify!($name)), $node, body);
        }
    };
}

/// The node of a test: the rest of its `gpus.toml` tables, and environment.
#[derive(Clone, Default)]
pub struct Node {
    pub gpus: usize,
    pub settings: &'static str,
    pub env: &'static [(&'static str, &'static str)],
}

/// One GPU of 16 MiB in pieces of 256 KiB.
pub const PLAIN: Node = Node { gpus: 1, settings: "", env: &[] };

/// Memory of a GPU.
pub const MEMORY: usize = 16 << 20;
/// Granularity of a software GPU.
const UNIT: usize = 256 << 10;

/// Whether the software GPU's own driver is asked, on a node made for the test.
pub fn on_software() -> bool {
    std::env::var_os(OTHER_DRIVER).is_none()
}

/// Whether a manager deals out the GPU's memory.
pub fn under_a_manager() -> bool {
    std::env::var_os(LAUNCHER).is_some()
}

/// Writes into the run's error output what another driver answers where that is left open.
pub fn note(what: std::fmt::Arguments<'_>) {
    if !on_software() {
        let _ = writeln!(std::io::stderr(), "{NOTED}{what}");
    }
}

const NOTED: &str = "noted: ";

/// Granularity of the GPU; on hardware it has always been 2 MiB.
pub fn unit() -> usize {
    if on_software() { UNIT } else { 2 << 20 }
}

/// Why this promise is not asked here, if so.
fn why_not(name: &str) -> Option<&'static str> {
    let software = (!on_software()).then(|| reason(SOFTWARE_ONLY, name));
    let managed = under_a_manager().then(|| reason(NOT_UNDER_A_MANAGER, name));
    software.flatten().or(managed.flatten())
}

fn reason(list: &'static str, name: &str) -> Option<&'static str> {
    promises(list).find_map(|(promise, reason)| (promise == name).then_some(reason))
}

fn promises(list: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    list.lines().filter_map(|line| line.split_once(" | "))
}

/// Nobody is spared what nobody promises.
#[test]
fn every_promise_of_the_lists_exists() {
    let listing = Command::new(std::env::current_exe().unwrap()).arg("--list").output().unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    let lists = [SOFTWARE_ONLY, NOT_UNDER_A_MANAGER, ONE_AT_A_TIME];
    for (promise, _) in lists.into_iter().flat_map(promises) {
        assert!(listing.lines().any(|line| line == format!("{promise}: test")), "there is no {promise}");
    }
}

/// The body of a promise if this is its process, else the process.
pub fn keep(path: &str, node: Node, body: fn()) {
    let name = path.split_once("::").expect("a test lies in a module").1;
    if std::env::var("SOFTGPU_PROMISE").is_ok_and(|promise| promise == name) {
        return body();
    }
    if let Some(reason) = why_not(name) {
        return println!("not asked here: {reason}");
    }
    let dir = tempfile::tempdir().unwrap();
    write_node(dir.path(), &node);
    let mut command = this_test(name, dir.path(), start_of(dir.path()));
    command.envs(node.env.iter().copied());
    finish(command.spawn().unwrap(), name);
}

/// The same promise once more, as another process on the same node, told its `part`.
pub fn partner(part: &str) -> Command {
    let name = std::env::var("SOFTGPU_PROMISE").unwrap();
    let node = std::env::var_os("TIDEGATE_SOFTGPU").unwrap_or_default();
    let mut command = this_test(&name, Path::new(&node), this_program());
    command.env("SOFTGPU_PART", part);
    command
}

/// Which part of a promise this process plays; empty for the first.
pub fn part() -> String {
    std::env::var("SOFTGPU_PART").unwrap_or_default()
}

/// Waits for a process, not for ever; fails with its output.
pub fn finish(mut child: Child, name: &str) {
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
    for line in err.lines().filter(|line| line.starts_with(NOTED)) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// Waits until a process has written a line that ends so; it can write as long as the result lives.
#[must_use]
pub fn wait_for_line(child: &mut Child, end: &str) -> BufReader<ChildStdout> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.by_ref().lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with(end)), "it ended without `{end}`");
    output
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// This program, under a manager of its own on that node if there is a launcher.
fn start_of(node: &Path) -> Command {
    let Some(launcher) = std::env::var_os(LAUNCHER) else { return this_program() };
    let mut command = Command::new(launcher);
    command.arg(node).arg(std::env::current_exe().unwrap());
    command
}

/// One promise, by the program that `command` starts.
fn this_test(name: &str, node: &Path, mut command: Command) -> Command {
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env("SOFTGPU_PROMISE", name);
    if on_software() {
        command.env("TIDEGATE_SOFTGPU", node);
    }
    // A kernel that is loaded when it is first launched would wait for those that are held.
    command.env("CUDA_MODULE_LOADING", "EAGER");
    command.env("SOFTGPU_KERNELS_IMAGE", kernels()).env("LD_LIBRARY_PATH", library_path());
    command.env_remove("CUDA_VISIBLE_DEVICES");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn write_node(dir: &Path, node: &Node) {
    let gpu = |number: usize| {
        format!(
            "[[gpu]]\nuuid = \"{}\"\nmemory = {MEMORY}\ngranularity = {UNIT}\n{}\n",
            uuid(number),
            node.settings
        )
    };
    std::fs::write(dir.join("gpus.toml"), (0..node.gpus).map(gpu).collect::<String>()).unwrap();
}

/// The UUID of a test's GPU.
pub fn uuid(number: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-00000000000{number}")
}

/// Another driver may itself need what the system's path leads to.
fn library_path() -> OsString {
    let mut path = OsString::from(library_dir());
    if let Some(others) = std::env::var_os("LD_LIBRARY_PATH").filter(|_| !on_software()) {
        path.push(":");
        path.push(others);
    }
    path
}

/// A directory in which the built library has the driver's names.
fn library_dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        if let Some(dir) = std::env::var_os(OTHER_DRIVER) {
            return PathBuf::from(dir);
        }
        if let Some(dir) = std::env::var_os("LD_LIBRARY_PATH").filter(|_| is_child()) {
            return PathBuf::from(dir);
        }
        let dir = scratch("softgpu-names");
        for name in ["libcuda.so", "libcuda.so.1"] {
            link(&built_library(), &dir.join(name));
        }
        dir
    })
    .clone()
}

fn is_child() -> bool {
    std::env::var_os("SOFTGPU_PROMISE").is_some()
}

/// Links in one step, since tests of other processes may do the same.
fn link(target: &Path, name: &Path) {
    let fresh = name.with_extension(format!("{}", std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(target, &fresh).unwrap();
    std::fs::rename(&fresh, name).unwrap();
}

/// `target/<profile>/libsoftgpu_cuda.so`, built if cargo is at hand (it does not do so by itself).
fn built_library() -> PathBuf {
    let profile = profile_dir();
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "-p", "tidegate-softgpu-cuda", "--lib"]);
        build.env("CARGO_TARGET_DIR", profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the library does not build");
    }
    profile.join("libsoftgpu_cuda.so")
}

/// `target/<profile>`, from `target/<profile>/deps/<this test>`.
fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().and_then(Path::parent).unwrap().to_owned()
}

fn scratch(name: &str) -> PathBuf {
    let dir = profile_dir().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// The image of `kernels/lib.rs`.
pub fn kernels() -> PathBuf {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE
        .get_or_init(|| match std::env::var_os("SOFTGPU_KERNELS_IMAGE") {
            Some(image) => PathBuf::from(image),
            None => build_kernels(),
        })
        .clone()
}

fn build_kernels() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/lib.rs");
    let image = scratch("softgpu-names").join("libkernels.so");
    let fresh = image.with_extension(format!("{}.so", std::process::id()));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let mut build = Command::new(rustc);
    build.args(["--edition=2024", "--crate-type=cdylib", "-Copt-level=2", "--crate-name=kernels"]);
    assert!(build.arg(source).arg("-o").arg(&fresh).status().unwrap().success());
    std::fs::rename(&fresh, &image).unwrap();
    image
}

/// Initialises and makes the primary context of a device current.
pub fn start_on(device: i32) -> CUcontext {
    let mut context = std::ptr::null_mut();
    ok!(cuInit(0));
    ok!(cuDevicePrimaryCtxRetain(&mut context, device));
    ok!(cuCtxSetCurrent(context));
    memory_at_start();
    context
}

/// [`start_on`] the first device.
pub fn start() -> CUcontext {
    start_on(0)
}

/// Checks that a call was refused; with which code is known of the software GPU alone.
pub fn expect_refused(call: &str, answer: CUresult, by_software: CUresult) {
    note(format_args!("{call}: {answer:?}"));
    if on_software() {
        assert_eq!(answer, by_software, "{call}");
    }
    assert_ne!(answer, CUresult::CUDA_SUCCESS, "{call}");
}

/// Device memory.
pub fn alloc(bytes: usize) -> CUdeviceptr {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, bytes));
    at
}

/// Free memory of the current device; of another driver's or a manager's, as if it had been [`MEMORY`]
/// at the start.
pub fn free_memory() -> usize {
    let name = std::env::var("SOFTGPU_PROMISE").unwrap();
    let listed = [ONE_AT_A_TIME, SOFTWARE_ONLY].iter().any(|list| reason(list, &name).is_some());
    assert!(listed, "{name} looks at free memory: name it in one_at_a_time.txt");
    let free = free_by_driver();
    let whole = on_software() && !under_a_manager();
    if whole { free } else { (MEMORY + free).saturating_sub(memory_at_start()) }
}

/// Checks how much memory is free. Another driver gives back what an ended process had in its own time, and
/// takes some pages for itself.
pub fn expect_free(bytes: usize) {
    const OWN_PAGES: usize = 512 << 10;
    let end = Instant::now() + Duration::from_secs(2);
    let nearly = || free_memory().abs_diff(bytes) <= OWN_PAGES;
    while !on_software() && !nearly() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    if on_software() || !nearly() {
        assert_eq!(free_memory(), bytes);
    }
}

fn free_by_driver() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free
}

/// What was free when the process had its first context.
fn memory_at_start() -> usize {
    static FREE: OnceLock<usize> = OnceLock::new();
    *FREE.get_or_init(free_by_driver)
}

/// A kernel of the test image.
pub fn kernel(name: &'static CStr) -> CUfunction {
    let mut function = std::ptr::null_mut();
    ok!(cuModuleGetFunction(&mut function, module(), name.as_ptr()));
    function
}

/// The test image, loaded once per context: a load waits for the kernels that run, and may be no part of a
/// capture. So whatever launches a kernel while another one runs or a stream is captured loads it before.
pub fn module() -> sys::CUmodule {
    static LOADED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
    let mut context = std::ptr::null_mut();
    ok!(cuCtxGetCurrent(&mut context));
    let mut loaded = LOADED.lock().unwrap();
    *loaded.entry(context as usize).or_insert_with(|| load() as usize) as sys::CUmodule
}

fn load() -> sys::CUmodule {
    let path = std::ffi::CString::new(kernels().as_os_str().as_encoded_bytes()).unwrap();
    let mut module = std::ptr::null_mut();
    ok!(cuModuleLoad(&mut module, path.as_ptr()));
    module
}

/// Launches one block with the values behind `arguments`.
pub fn launch(function: CUfunction, stream: sys::CUstream, arguments: &[*const c_void]) -> CUresult {
    let mut arguments: Vec<*mut c_void> = arguments.iter().map(|at| at.cast_mut()).collect();
    let null = std::ptr::null_mut();
    cu!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), null))
}

/// The address of an argument.
pub fn arg<T>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

/// Keeps its stream busy for some milliseconds, at least.
pub fn nap(stream: sys::CUstream, milliseconds: u64) {
    let function = kernel(c"nap");
    assert_eq!(launch(function, stream, &[arg(&milliseconds)]), CUresult::CUDA_SUCCESS);
}

/// A kernel that runs until it is let go; at the latest when this is dropped.
pub struct Held(&'static AtomicU32);

impl Held {
    pub fn let_go(self) {}
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.store(1, Ordering::SeqCst);
    }
}

/// Keeps its stream busy until it is let go.
pub fn hold(stream: sys::CUstream) -> Held {
    let word = word();
    word.store(0, Ordering::SeqCst);
    let address = word.as_ptr();
    assert_eq!(launch(kernel(c"hold"), stream, &[arg(&address)]), CUresult::CUDA_SUCCESS);
    Held(word)
}

/// A word of host memory that a GPU reads too, which nothing else uses. They are allocated at the first call of
/// a context, for an allocation may wait for the kernels that run.
fn word() -> &'static AtomicU32 {
    const WORDS: usize = 64;
    static LEFT: Mutex<BTreeMap<usize, Vec<&AtomicU32>>> = Mutex::new(BTreeMap::new());
    let mut context = std::ptr::null_mut();
    ok!(cuCtxGetCurrent(&mut context));
    // SAFETY: pinned memory of that size, aligned for a page, zero, and never given back.
    let all = || unsafe { std::slice::from_raw_parts(pinned(4 * WORDS).cast::<AtomicU32>(), WORDS) };
    let mut left = LEFT.lock().unwrap();
    left.entry(context as usize).or_insert_with(|| all().iter().collect()).pop().unwrap()
}

/// Reads device memory.
pub fn read<T: Copy + Default>(at: CUdeviceptr, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let bytes = std::mem::size_of_val(&values[..]);
    ok!(cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), at, bytes));
    values
}

/// Writes device memory, and waits until it is written: of some bytes of pageable memory the call itself
/// waits only until they are taken.
pub fn write<T: Copy>(at: CUdeviceptr, values: &[T]) {
    ok!(cuMemcpyHtoD_v2(at, values.as_ptr().cast(), std::mem::size_of_val(values)));
    ok!(cuStreamSynchronize(std::ptr::null_mut()));
}

/// Device memory of so many zeroes, and waits until they are there: memsets of it return at once.
pub fn zeroes(bytes: usize) -> CUdeviceptr {
    let at = alloc(bytes);
    ok!(cuMemsetD8_v2(at, 0, bytes));
    ok!(cuStreamSynchronize(std::ptr::null_mut()));
    at
}

/// A copy of so many bytes, rows and slices between densely packed places that are yet to be named.
pub fn volume([width, height, depth]: [usize; 3]) -> sys::CUDA_MEMCPY3D {
    sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        reserved0: std::ptr::null_mut(),
        srcPitch: width,
        srcHeight: height,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: 0,
        dstArray: std::ptr::null_mut(),
        reserved1: std::ptr::null_mut(),
        dstPitch: width,
        dstHeight: height,
        WidthInBytes: width,
        Height: height,
        Depth: depth,
    }
}

/// A stream of the current context.
pub fn stream(flags: u32) -> sys::CUstream {
    let mut stream = std::ptr::null_mut();
    ok!(cuStreamCreate(&mut stream, flags));
    stream
}

/// An event of the current context.
pub fn event() -> sys::CUevent {
    let mut event = std::ptr::null_mut();
    ok!(cuEventCreate(&mut event, 0));
    event
}

/// Pinned host memory of so many bytes.
pub fn pinned(bytes: usize) -> *mut c_void {
    let mut at = std::ptr::null_mut();
    ok!(cuMemHostAlloc(&mut at, bytes, 0));
    at
}
