//! A program that uses the driver and does as it is told, line by line.

use crate::stage;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tidegate_ffi::cuda::sys::*;
use tidegate_ffi::cuda::{Driver, DriverError};

/// A running guest, as the test sees it. Each line of talk is a thread of the guest's.
pub struct Guest {
    child: Option<Child>,
    socket: PathBuf,
    /// Its lines on stderr, as they come.
    words: Receiver<String>,
    said: Vec<String>,
}

/// A thread of a guest.
pub struct Line {
    reader: BufReader<UnixStream>,
}

impl Guest {
    /// Starts a guest under the built library.
    pub fn start(directory: &Path, environment: &[(&str, &str)]) -> Self {
        let socket = directory.join("guest");
        let mut command = stage::this_program("guest::act");
        command.env("SHIM_GUEST", &socket).env("LD_PRELOAD", stage::shim());
        command.env("TIDEGATE_SOCKET", directory.join("manager")).envs(environment.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (saying, words) = channel();
        // Until there are no more, or nobody listens.
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).map(|line| saying.send(line)).find(Result::is_err)
        });
        Self { child: Some(child), socket, words, said: Vec::new() }
    }

    /// The next line of the library on stderr.
    pub fn next_words(&mut self) -> String {
        loop {
            let line = self.words.recv_timeout(stage::STEP_PATIENCE).expect("the guest says nothing");
            self.said.push(line.clone());
            if line.starts_with("tidegate:") {
                return line;
            }
        }
    }

    /// Another thread of the guest.
    pub fn line(&self) -> Line {
        loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => return Line { reader: BufReader::new(stream) },
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// How many pieces of the GPU the guest has mapped.
    pub fn mapped_pieces(&self) -> usize {
        let node = std::env::var("TIDEGATE_SOFTGPU").unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.process())).unwrap();
        maps.lines().filter(|line| line.contains(&node)).count()
    }

    /// Whether the thread that carries out the manager's orders sleeps.
    pub fn gate_thread_sleeps(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process())).unwrap();
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
        stats.filter(|stat| stat.contains("(tidegate-gate)")).all(|stat| stat.contains(") S "))
    }

    fn process(&self) -> u32 {
        self.child.as_ref().expect("it has not ended").id()
    }

    /// Ends the guest: what it said on stderr.
    pub fn end(mut self) -> Vec<String> {
        self.line().tell("end");
        let (succeeded, words) = stage::finish(self.child.take().unwrap());
        self.said.extend(&self.words);
        let said = std::mem::take(&mut self.said);
        assert!(succeeded, "{words}\n{}", said.join("\n"));
        said.into_iter().filter(|line| line.starts_with("tidegate:")).collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
            self.said.extend(&self.words);
            eprintln!("the guest said:\n{}", self.said.join("\n"));
        }
    }
}

impl Line {
    /// Gives an order and does not wait.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.reader.get_mut(), "{order}").unwrap();
    }

    /// The answer to an order.
    pub fn hear(&mut self) -> String {
        let mut answer = String::new();
        self.reader.get_mut().set_read_timeout(Some(stage::STEP_PATIENCE)).unwrap();
        self.reader.read_line(&mut answer).expect("the guest does not answer");
        answer.trim_end().into()
    }

    /// Gives an order and waits for its answer.
    pub fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.hear()
    }

    /// Whether there is no answer for a little while.
    pub fn is_silent(&mut self) -> bool {
        !self.answers_within(Duration::from_millis(30))
    }

    /// Whether there is an answer by then.
    pub fn answers_within(&mut self, patience: Duration) -> bool {
        self.reader.get_mut().set_read_timeout(Some(patience)).unwrap();
        self.reader.fill_buf().is_ok()
    }
}

#[test]
#[ignore = "the program that the promises start"]
fn act() {
    let Some(socket) = std::env::var_os("SHIM_GUEST") else { return };
    // SAFETY: no pointers; the guest ends with the test that started it.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let driver = Driver::open(c"libcuda.so.1").unwrap();
    for stream in UnixListener::bind(socket).unwrap().incoming() {
        std::thread::spawn(move || obey(driver, stream.unwrap()));
    }
}

fn obey(driver: Driver, stream: UnixStream) {
    let mut answers = stream.try_clone().unwrap();
    for order in BufReader::new(stream).lines() {
        let order = order.unwrap();
        let words: Vec<&str> = order.split(' ').collect();
        let numbers: Vec<u64> = words[1..].iter().filter_map(|word| word.parse().ok()).collect();
        if words[0] == "end" {
            std::process::exit(0);
        }
        let answer = carry_out(&driver, &words, &numbers);
        let answer = answer.unwrap_or_else(|error| format!("{:?}", error.code));
        writeln!(answers, "{answer}").unwrap();
    }
}

/// Runs a driver call of the guest.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),*)) => {
        // SAFETY: the results go to the guest's own variables; addresses are what a test wants
        // the driver to see.
        unsafe { $driver.$name($($argument),*) }
    };
}

type LaunchHostFunc = extern "C" fn(*mut c_void, extern "C" fn(*mut c_void), *mut c_void) -> c_int;

type StreamWaitEvent = extern "C" fn(CUstream, CUevent, c_uint) -> c_int;

static UNBLOCKED: OnceLock<()> = OnceLock::new();
/// A stream of the guest's.
static LANE: OnceLock<u64> = OnceLock::new();

/// Keeps the stream's work from ending.
extern "C" fn wait_until_unblocked(_: *mut c_void) {
    while UNBLOCKED.get().is_none() {
        std::thread::yield_now();
    }
}

fn carry_out(driver: &Driver, words: &[&str], numbers: &[u64]) -> Result<String, DriverError> {
    let (mut first, mut second) = (0u64, 0usize);
    match (words[0], numbers) {
        ("init", []) => call!(driver, cuInit(0))?,
        ("context", []) => {
            let mut context = std::ptr::null_mut();
            call!(driver, cuDevicePrimaryCtxRetain(&mut context, 0))?;
            call!(driver, cuCtxSetCurrent(context))?;
        }
        ("capture", []) => {
            call!(driver, cuStreamCreate((&raw mut first).cast(), 1))?;
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
            call!(driver, cuStreamBeginCapture_v2(stream(first), mode))?;
            return Ok(first.to_string());
        }
        ("block-own", []) => {
            let launch: LaunchHostFunc = crate::others::function(c"cuLaunchHostFunc");
            let own = std::ptr::without_provenance_mut(2);
            assert_eq!(launch(own, wait_until_unblocked, std::ptr::null_mut()), 0);
        }
        ("capture-blocking", []) => {
            call!(driver, cuStreamCreate((&raw mut first).cast(), 0))?;
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
            call!(driver, cuStreamBeginCapture_v2(stream(first), mode))?;
            return Ok(first.to_string());
        }
        ("lane", []) => {
            call!(driver, cuStreamCreate((&raw mut first).cast(), 1))?;
            call!(driver, cuMemsetD8Async(0, 1, 0, stream(first)))?;
            LANE.set(first).unwrap();
        }
        ("join", [capturing]) => follow(driver, *LANE.get().unwrap(), *capturing)?,
        ("join-back", [capturing]) => follow(driver, *capturing, *LANE.get().unwrap())?,
        ("relax", []) => {
            let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            call!(driver, cuThreadExchangeStreamCaptureMode(&mut mode))?;
        }
        ("end-capture", [capturing]) => {
            call!(driver, cuStreamEndCapture(stream(*capturing), (&raw mut first).cast()))?;
        }
        ("capture-fill", [lane, address, bytes, value]) => {
            call!(driver, cuMemsetD8Async(*address, *value as u8, *bytes as usize, stream(*lane)))?;
        }
        ("launch-captured", [lane]) => launch_captured(driver, stream(*lane))?,
        ("destroy", [lane]) => call!(driver, cuStreamDestroy_v2(stream(*lane)))?,
        ("steps", [address, rounds]) => steps(driver, *address, *rounds)?,
        ("captures", [address, rounds]) => captures(driver, *address, *rounds)?,
        ("work", [seed, rounds]) => work(driver, *seed, *rounds)?,
        ("churn", [bytes, rounds]) => {
            for _ in 0..*rounds {
                call!(driver, cuMemAlloc_v2(&mut first, *bytes as usize))?;
                call!(driver, cuMemFree_v2(first))?;
            }
        }
        ("reuse", []) => {
            for _ in 0..3 {
                call!(driver, cuMemAllocAsync(&mut first, 4096, stream(*LANE.get().unwrap())))?;
                call!(driver, cuMemFreeAsync(first, stream(*LANE.get().unwrap())))?;
            }
        }
        ("await", [address]) => {
            call!(driver, cuStreamWaitValue32_v2(stream(*LANE.get().unwrap()), *address, 1, 0))?;
        }
        ("allow", [address]) => {
            call!(driver, cuStreamWriteValue32_v2(std::ptr::without_provenance_mut(2), *address, 1, 0))?;
        }
        ("come-and-go", []) => {
            let mut context = std::ptr::null_mut();
            call!(driver, cuCtxCreate_v2(&mut context, 0, 0))?;
            call!(driver, cuStreamCreate((&raw mut first).cast(), 1))?;
            call!(driver, cuMemsetD8Async(0, 1, 0, stream(first)))?;
            call!(driver, cuCtxDestroy_v2(context))?;
        }
        ("reset", []) => call!(driver, cuDevicePrimaryCtxReset_v2(0))?,
        ("release", []) => call!(driver, cuDevicePrimaryCtxRelease_v2(0))?,
        ("allocate", [bytes]) => {
            call!(driver, cuMemAlloc_v2(&mut first, *bytes as usize))?;
            return Ok(first.to_string());
        }
        ("free", [address]) => call!(driver, cuMemFree_v2(*address))?,
        ("fill", [address, bytes, value]) => {
            call!(driver, cuMemsetD8_v2(*address, *value as u8, *bytes as usize))?;
            call!(driver, cuStreamSynchronize(std::ptr::null_mut()))?;
        }
        ("set", [address, bytes, value]) => {
            call!(driver, cuMemsetD8_v2(*address, *value as u8, *bytes as usize))?;
        }
        ("block", []) => {
            let launch: LaunchHostFunc = crate::others::function(c"cuLaunchHostFunc");
            assert_eq!(launch(std::ptr::null_mut(), wait_until_unblocked, std::ptr::null_mut()), 0);
        }
        ("block-dying", []) => {
            let launch: LaunchHostFunc = crate::others::function(c"cuLaunchHostFunc");
            call!(driver, cuStreamCreate((&raw mut first).cast(), 1))?;
            assert_eq!(launch(stream(first).cast(), wait_until_unblocked, std::ptr::null_mut()), 0);
            call!(driver, cuStreamDestroy_v2(stream(first)))?;
        }
        ("unblock", []) => UNBLOCKED.set(()).unwrap(),
        ("read", [address, bytes]) => return read(driver, *address, *bytes as usize),
        ("range", [address]) => {
            call!(driver, cuMemGetAddressRange_v2(&mut first, &mut second, *address))?;
            return Ok(format!("{first} {second}"));
        }
        ("attribute", [attribute, address]) => {
            let attribute = PointerAttribute(*attribute as u32);
            call!(driver, cuPointerGetAttribute((&raw mut first).cast(), attribute, *address))?;
            return Ok(first.to_string());
        }
        ("info", []) => {
            let mut free = 0;
            call!(driver, cuMemGetInfo_v2(&mut free, &mut second))?;
            return Ok(format!("{free} {second}"));
        }
        ("managed", []) => {
            call!(driver, cuMemAllocManaged(&mut first, 4096, 1))?;
            return Ok(first.to_string());
        }
        ("boundary", []) => own("tidegate_boundary", |f: extern "C" fn() -> c_int| assert_eq!(f(), 0)),
        ("push", [class]) => own("tidegate_scope_push", |f: extern "C" fn(c_int)| f(*class as c_int)),
        ("pop", []) => own("tidegate_scope_pop", |f: extern "C" fn()| f()),
        ("tag", [address, class]) => {
            own("tidegate_tag", |f: extern "C" fn(u64, c_int)| f(*address, *class as c_int));
        }
        ("hold", [address]) => {
            let mut error = 0;
            own("tidegate_hold", |f: extern "C" fn(u64) -> c_int| error = f(*address));
            return Ok(error.to_string());
        }
        ("done", []) => own("tidegate_job_done", |f: extern "C" fn()| f()),
        ("fork", []) => {
            return Ok(fork(|| {
                let mut address = 0;
                call!(driver, cuMemAlloc_v2(&mut address, 64))
            }));
        }
        ("fork-and-init", []) => return Ok(fork(|| call!(driver, cuInit(0)))),
        ("create", [device]) => crate::room::create(driver, words[1], *device as c_int)?,
        ("load", []) => crate::room::load(driver)?,
        ("call", []) => crate::calls::with_zeroes(driver, words[1])?,
        ("threads", []) => return Ok(threads()),
        ("route", []) => return Ok(crate::routes::of(words[1])),
        _ => return crate::others::carry_out(driver, words, numbers),
    }
    Ok("ok".into())
}

/// Allocates, fills, checks and frees; every byte must be what was written last.
fn work(driver: &Driver, seed: u64, rounds: u64) -> Result<(), DriverError> {
    let mut random = seed;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    let mut kept: Vec<(u64, usize, u8)> = Vec::new();
    for round in 0..rounds {
        let (mut address, bytes, value) = (0, 1 + next(400_000) as usize, (round % 251) as u8);
        call!(driver, cuMemAlloc_v2(&mut address, bytes))?;
        call!(driver, cuMemsetD8_v2(address, value, bytes))?;
        kept.push((address, bytes, value));
        if kept.len() > 3 {
            let (address, bytes, value) = kept.swap_remove(next(4) as usize);
            assert_eq!(read(driver, address, bytes)?, format!("{value} {value}"), "round {round}");
            call!(driver, cuMemFree_v2(address))?;
        }
    }
    kept.iter().try_for_each(|(address, _, _)| call!(driver, cuMemFree_v2(*address)))
}

/// Work that is waited for each time, in a stream of its own.
fn steps(driver: &Driver, address: u64, rounds: u64) -> Result<(), DriverError> {
    let mut lane = 0;
    call!(driver, cuStreamCreate((&raw mut lane).cast(), 1))?;
    (0..rounds).try_for_each(|_| {
        call!(driver, cuMemsetD8Async(address, 1, 1000, stream(lane)))?;
        call!(driver, cuStreamSynchronize(stream(lane)))
    })
}

/// Work, and a capture, in turn.
fn captures(driver: &Driver, address: u64, rounds: u64) -> Result<(), DriverError> {
    let (mut lane, mut graph) = (0, std::ptr::null_mut());
    call!(driver, cuStreamCreate((&raw mut lane).cast(), 1))?;
    for _ in 0..rounds {
        call!(driver, cuMemsetD8Async(address, 1, 1000, stream(lane)))?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        call!(driver, cuStreamBeginCapture_v2(stream(lane), mode))?;
        call!(driver, cuStreamEndCapture(stream(lane), &mut graph))?;
        call!(driver, cuGraphDestroy(graph))?;
    }
    Ok(())
}

/// What comes in the one stream comes after what is in the other.
fn follow(driver: &Driver, behind: u64, before: u64) -> Result<(), DriverError> {
    let mut event = std::ptr::null_mut();
    call!(driver, cuEventCreate(&mut event, 0))?;
    call!(driver, cuEventRecord(event, stream(before)))?;
    let wait: StreamWaitEvent = crate::others::function(c"cuStreamWaitEvent");
    assert_eq!(wait(stream(behind), event, 0), 0);
    Ok(())
}

/// Ends a capture, and launches the graph in its stream.
fn launch_captured(driver: &Driver, stream: CUstream) -> Result<(), DriverError> {
    let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
    call!(driver, cuStreamEndCapture(stream, &mut graph))?;
    call!(driver, cuGraphInstantiateWithFlags(&mut executable, graph, 0))?;
    call!(driver, cuGraphLaunch(executable, stream))?;
    call!(driver, cuStreamSynchronize(stream))
}

fn stream(number: u64) -> CUstream {
    std::ptr::with_exposed_provenance_mut(number as usize)
}

/// The least and the greatest byte.
fn read(driver: &Driver, address: u64, bytes: usize) -> Result<String, DriverError> {
    let mut copy = vec![0u8; bytes];
    call!(driver, cuMemcpyDtoH_v2(copy.as_mut_ptr().cast(), address, bytes))?;
    Ok(format!("{} {}", copy.iter().min().unwrap(), copy.iter().max().unwrap()))
}

/// Calls a function of tidegate.h.
pub fn own<F: Copy>(name: &str, call: impl FnOnce(F)) {
    let name = std::ffi::CString::new(name).unwrap();
    let found = look_up(libc::RTLD_DEFAULT, &name);
    assert!(!found.is_null(), "{name:?}");
    // SAFETY: the callers name the function's type as the header declares it.
    call(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) });
}

/// `dlsym`.
pub fn look_up(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a library that is open for good, or a pseudo-handle, and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// What a driver call answers in a forked child.
fn fork(call: impl FnOnce() -> Result<(), DriverError>) -> String {
    // SAFETY: the child makes driver calls only, which is what is tested, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = call().map_or_else(|error| error.code as i32 & 0x7f, |()| 0);
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: our own child; the result goes to our own variable.
    unsafe { libc::waitpid(child, &mut status, 0) };
    format!("{} {}", libc::WIFEXITED(status), libc::WEXITSTATUS(status))
}

/// The names of the process's threads that are the library's.
fn threads() -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let mut ours: Vec<String> =
        names.map(|name| name.trim().to_string()).filter(|name| name.starts_with("tidegate")).collect();
    ours.sort();
    ours.join(" ")
}
