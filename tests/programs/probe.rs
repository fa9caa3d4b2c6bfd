//! A small CUDA program that does what it is told, line by line, for the tests.
//!
//! It is an ordinary client of the driver through `cudarc`; each line of standard input is
//! answered by one line of standard output: `ok …` or `error …`.
//!
//! ```text
//! init                         begin to use CUDA, no GPU of it
//! device N                     use GPU N from now on
//! alloc NAME BYTES [class]     class: persistent, temporary (told through tidegate.h)
//! free NAME                    address NAME
//! handle BYTES                 memory with a handle, mapped nowhere, on GPU 0
//! fill NAME SEED               check NAME SEED          (a pattern over all its bytes)
//! poke NAME OFFSET BYTE        peek NAME OFFSET
//! count NAME BYTE              how often 16 bytes that lie at a multiple of 16 are all BYTE
//! set NAME OFFSET BYTES BYTE   described NAME OFFSET BYTES ORDER (an order that uses these bytes only, as it says)
//! boundary                     info                     (free and total memory)
//! hold NAME                    where NAME               (the files behind its addresses)
//! peer N                       no-peer N                (whether the GPU in use reaches GPU N's memory)
//! fork                         a child that does nothing and outlives its parent a little; its process id
//! cut                          ends the library's connection to the manager; how many there were
//! become                       this program anew, by execve(2), which answers
//! starve                       from now on no file descriptor can be had
//! feed                         they can be had again
//! ```

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUcontext, CUdevice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{Shutdown, SocketAddrUnix, getpeername, shutdown};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::process::{getpid, getppid};
use std::collections::HashMap;
use std::error::Error;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::io::{BufRead, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

type Answer = Result<String, Box<dyn Error>>;

#[derive(Default)]
struct Probe {
    contexts: HashMap<usize, CUcontext>,
    memory: HashMap<String, (u64, usize)>,
}

/// The program is what another one has become.
const AGAIN: &str = "again";

fn main() -> Result<(), Box<dyn Error>> {
    let mut probe = Probe::default();
    let mut output = std::io::stdout();
    if std::env::args().nth(1).is_some_and(|word| word == AGAIN) {
        writeln!(output, "ok")?;
        output.flush()?;
    }
    for line in std::io::stdin().lock().lines() {
        match probe.obey(&line?) {
            Ok(answer) => writeln!(output, "ok {answer}")?,
            Err(error) => writeln!(output, "error {error}")?,
        }
        output.flush()?;
    }
    Ok(())
}

impl Probe {
    fn obey(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["init"] => result::init().map(|()| String::new()).map_err(Into::into),
            ["device", ordinal] => self.device(ordinal.parse()?),
            ["alloc", name, bytes] => self.alloc(name, bytes.parse()?),
            ["alloc", name, bytes, class] => scoped(class, || self.alloc(name, bytes.parse()?)),
            ["free", name] => self.free(name),
            ["handle", bytes] => self.handle(bytes.parse()?),
            ["address", name] => Ok(format!("{:#x}", self.find(name)?.0)),
            ["fill", name, seed] => self.fill(name, seed.parse()?),
            ["check", name, seed] => self.check(name, seed.parse()?),
            ["count", name, byte] => self.count(name, byte.parse()?),
            ["poke", name, offset, byte] => self.poke(name, offset.parse()?, byte.parse()?),
            ["peek", name, offset] => self.peek(name, offset.parse()?),
            ["set", name, offset, bytes, byte] => {
                self.set(name, offset.parse()?, bytes.parse()?, byte.parse()?)
            }
            ["described", name, offset, bytes, order @ ..] => {
                let (address, bytes) = (self.find(name)?.0 + offset.parse::<u64>()?, bytes.parse()?);
                described(address, bytes, || self.obey(&order.join(" ")))
            }
            ["hold", name] => hold(self.find(name)?.0),
            ["where", name] => self.whereabouts(name),
            ["peer", ordinal] => self.peer(ordinal.parse()?, true),
            ["no-peer", ordinal] => self.peer(ordinal.parse()?, false),
            ["boundary"] => boundary(),
            ["info"] => info(),
            ["fork"] => fork(),
            ["cut"] => cut(),
            ["become"] => Err(Command::new("/proc/self/exe").arg(AGAIN).exec().into()),
            ["starve"] => limit_descriptors(lowest_free()?),
            ["feed"] => limit_descriptors(None),
            _ => Err(format!("unknown order {line:?}").into()),
        }
    }

    fn device(&mut self, ordinal: usize) -> Answer {
        let context = match self.contexts.get(&ordinal) {
            Some(context) => *context,
            None => self.new_context(ordinal)?,
        };
        // SAFETY: the context was retained below and is never released.
        unsafe { result::ctx::set_current(context) }?;
        Ok(String::new())
    }

    fn new_context(&mut self, ordinal: usize) -> Result<CUcontext, Box<dyn Error>> {
        result::init()?;
        let device: CUdevice = result::device::get(ordinal as c_int)?;
        // SAFETY: the device comes from the driver.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        self.contexts.insert(ordinal, context);
        Ok(context)
    }

    /// The GPU in use may reach another one's memory from now on, or not any more.
    fn peer(&mut self, ordinal: usize, may: bool) -> Answer {
        let context = *self.contexts.get(&ordinal).ok_or("that GPU was never used")?;
        if may {
            // SAFETY: the context was retained and is never released.
            unsafe { sys::cuCtxEnablePeerAccess(context, 0) }.result()?;
        } else {
            // SAFETY: as above.
            unsafe { sys::cuCtxDisablePeerAccess(context) }.result()?;
        }
        Ok(String::new())
    }

    fn alloc(&mut self, name: &str, bytes: usize) -> Answer {
        // SAFETY: a context is current (else the driver says so).
        let address = unsafe { result::malloc_sync(bytes) }?;
        self.memory.insert(name.into(), (address, bytes));
        Ok(format!("{address:#x}"))
    }

    fn free(&mut self, name: &str) -> Answer {
        let (address, _) = self.memory.remove(name).ok_or("no such memory")?;
        // SAFETY: the address came from malloc_sync and is freed once.
        unsafe { result::free_sync(address) }?;
        Ok(String::new())
    }

    fn handle(&mut self, bytes: usize) -> Answer {
        // SAFETY: plain C data; zero is a value of each of its enums, and as an ordinal the first GPU.
        let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let mut handle = 0;
        // SAFETY: both are valid for the call.
        unsafe { sys::cuMemCreate(&mut handle, bytes, &properties, 0) }.result()?;
        Ok(format!("{handle:#x}"))
    }

    fn find(&self, name: &str) -> Result<(u64, usize), Box<dyn Error>> {
        self.memory.get(name).copied().ok_or_else(|| format!("no memory {name:?}").into())
    }

    /// The inodes of the files that a software GPU's memory consists of.
    fn whereabouts(&self, name: &str) -> Answer {
        let (address, bytes) = self.find(name)?;
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let inode = |line: &str| {
            let mut words = line.split_whitespace();
            let (from, to) = words.next()?.split_once('-')?;
            let hex = |text| u64::from_str_radix(text, 16).ok();
            let inside = hex(from)? < address + bytes as u64 && address < hex(to)?;
            words.nth(3).filter(|inode| inside && *inode != "0").map(String::from)
        };
        Ok(maps.lines().filter_map(inode).collect::<Vec<_>>().join(" "))
    }

    fn fill(&self, name: &str, seed: u64) -> Answer {
        let (address, bytes) = self.find(name)?;
        // SAFETY: the allocation has this many bytes.
        unsafe { result::memcpy_htod_sync(address, &pattern(seed, bytes)) }?;
        Ok(String::new())
    }

    fn check(&self, name: &str, seed: u64) -> Answer {
        let (address, bytes) = self.find(name)?;
        let mut found = vec![0u8; bytes];
        // SAFETY: the allocation has this many bytes.
        unsafe { result::memcpy_dtoh_sync(&mut found, address) }?;
        match found.iter().zip(pattern(seed, bytes)).position(|(found, wanted)| *found != wanted) {
            None => Ok(String::new()),
            Some(at) => Err(format!("{name} differs at byte {at} of {bytes}").into()),
        }
    }

    fn count(&self, name: &str, byte: u8) -> Answer {
        let (address, bytes) = self.find(name)?;
        let mut found = vec![0u8; bytes];
        // SAFETY: the allocation has this many bytes.
        unsafe { result::memcpy_dtoh_sync(&mut found, address) }?;
        Ok(found
            .chunks_exact(16)
            .filter(|chunk| chunk.iter().all(|found| *found == byte))
            .count()
            .to_string())
    }

    fn poke(&self, name: &str, offset: u64, byte: u8) -> Answer {
        let (address, _) = self.find(name)?;
        // SAFETY: the driver checks that the byte is mapped; the tests stay inside.
        unsafe { result::memcpy_htod_sync(address + offset, &[byte]) }?;
        Ok(String::new())
    }

    fn set(&self, name: &str, offset: u64, bytes: usize, byte: u8) -> Answer {
        let (address, _) = self.find(name)?;
        // SAFETY: as in poke.
        unsafe { result::memset_d8_sync(address + offset, byte, bytes) }?;
        result::ctx::synchronize()?;
        Ok(String::new())
    }

    fn peek(&self, name: &str, offset: u64) -> Answer {
        let (address, _) = self.find(name)?;
        let mut byte = [0u8];
        // SAFETY: as in poke.
        unsafe { result::memcpy_dtoh_sync(&mut byte, address + offset) }?;
        Ok(byte[0].to_string())
    }
}

fn hold(address: u64) -> Answer {
    let hold = tidegate(c"tidegate_hold").ok_or("the shim is not there")?;
    // SAFETY: tidegate.h: int tidegate_hold(uint64_t).
    let hold: unsafe extern "C" fn(u64) -> i32 = unsafe { std::mem::transmute(hold) };
    // SAFETY: it may be called at any time, with any address.
    match unsafe { hold(address) } {
        0 => Ok(String::new()),
        error => Err(format!("error {error}").into()),
    }
}

fn info() -> Answer {
    let (free, total) = result::mem_get_info()?;
    Ok(format!("{free} {total}"))
}

/// Makes a child as data loaders do: it has all memory and descriptors of its parent, and no CUDA. It
/// outlives its parent by a moment, in which nobody can have what it holds.
fn fork() -> Answer {
    let parent = getpid();
    // SAFETY: the child makes system calls only, and touches nothing of its parent's.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            // SAFETY: the child's own answers, of which there are none.
            unsafe { libc::close(1) };
            // At once, where nobody can order anything any more.
            let wait = |millis: i64| {
                let orders = PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::empty());
                poll(&mut [orders], Some(&Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 }))
            };
            while wait(20) == Ok(0) && getppid() == Some(parent) {}
            let _ = wait(100);
            // SAFETY: ends the child and nothing else.
            unsafe { libc::_exit(0) }
        }
        child => Ok(child.to_string()),
    }
}

/// Ends every connection of this process to a manager's socket that a program which it starts would
/// not inherit: those are the library's.
fn cut() -> Answer {
    let socket = std::env::var("TIDEGATE_SOCKET")?;
    let directory = Path::new(&socket).parent().ok_or("no manager's socket")?;
    let mut ended = 0;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number: c_int = entry?.file_name().to_string_lossy().parse()?;
        // SAFETY: if it is closed meanwhile (it is the directory's own), the calls below say so.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let is_own = fcntl_getfd(fd).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC));
        if is_own && peer_of(fd).is_some_and(|peer| peer.starts_with(directory)) {
            ended += usize::from(shutdown(fd, Shutdown::Both).is_ok());
        }
    }
    Ok(ended.to_string())
}

/// The number that the next descriptor would have.
fn lowest_free() -> Result<Option<u64>, Box<dyn Error>> {
    let next = std::fs::File::open("/dev/null")?;
    Ok(Some(next.as_raw_fd() as u64))
}

/// From now on descriptors have lower numbers than `limit`; `None`: as low as the system wants.
fn limit_descriptors(limit: Option<u64>) -> Answer {
    let old = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.or(old.maximum), ..old })?;
    Ok(String::new())
}

/// The path that a socket is connected to.
fn peer_of(socket: BorrowedFd<'_>) -> Option<PathBuf> {
    let peer = SocketAddrUnix::try_from(getpeername(socket).ok()??).ok()?;
    Some(OsStr::from_bytes(peer.path_bytes()?).into())
}

/// Bytes that depend on the seed and the place (splitmix64).
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |index: u64| {
        let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (0..bytes.div_ceil(8) as u64).flat_map(|index| word(index).to_le_bytes()).take(bytes).collect()
}

/// A function of `tidegate.h`, when the shim is there.
fn tidegate(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: RTLD_DEFAULT and a C string are always allowed.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn scoped(class: &str, work: impl FnOnce() -> Answer) -> Answer {
    let class = match class {
        "persistent" => 1,
        "temporary" => 2,
        _ => return Err(format!("no class {class:?}").into()),
    };
    if let Some(push) = tidegate(c"tidegate_scope_push") {
        // SAFETY: tidegate.h: void tidegate_scope_push(int).
        let push: unsafe extern "C" fn(c_int) = unsafe { std::mem::transmute(push) };
        // SAFETY: it may be called at any time.
        unsafe { push(class) };
    }
    let answer = work();
    if let Some(pop) = tidegate(c"tidegate_scope_pop") {
        // SAFETY: tidegate.h: void tidegate_scope_pop(void).
        let pop: unsafe extern "C" fn() = unsafe { std::mem::transmute(pop) };
        // SAFETY: it follows its push.
        unsafe { pop() };
    }
    answer
}

/// tidegate.h: tidegate_tensor.
#[repr(C)]
struct Tensor {
    address: u64,
    element: u64,
    rank: u64,
    sizes: [i64; 8],
    strides: [i64; 8],
}

/// What the work uses: so many bytes from an address on.
fn described(address: u64, bytes: i64, work: impl FnOnce() -> Answer) -> Answer {
    let push = tidegate(c"tidegate_operands_push").ok_or("the shim is not there")?;
    let pop = tidegate(c"tidegate_operands_pop").ok_or("the shim is not there")?;
    // SAFETY: tidegate.h: int tidegate_operands_push(const tidegate_tensor *, size_t).
    let push: unsafe extern "C" fn(*const Tensor, usize) -> c_int = unsafe { std::mem::transmute(push) };
    // SAFETY: tidegate.h: void tidegate_operands_pop(void).
    let pop: unsafe extern "C" fn() = unsafe { std::mem::transmute(pop) };
    let (mut sizes, mut strides) = ([0; 8], [0; 8]);
    (sizes[0], strides[0]) = (bytes, 1);
    let operand = Tensor { address, element: 1, rank: 1, sizes, strides };
    // SAFETY: one tensor.
    let is_described = unsafe { push(&raw const operand, 1) } == 0;
    let answer = work();
    // SAFETY: it follows its push.
    unsafe { pop() };
    if is_described { answer } else { Err("it cannot be described so".into()) }
}

fn boundary() -> Answer {
    if let Some(boundary) = tidegate(c"tidegate_boundary") {
        // SAFETY: tidegate.h: int tidegate_boundary(void).
        let boundary: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(boundary) };
        // SAFETY: it may be called at any time.
        unsafe { boundary() };
    }
    Ok(String::new())
}
