//! A program that uses a GPU in a rhythm: `rhythm KERNELS NAME=VALUE…`
//!
//! It allocates and fills its memory, then makes steps: a kernel, a wait for its end, a pause on the host. At its end it
//! prints when it began, had its memory, and ended each step, in microseconds of the system's monotonic clock, a line
//! each; before that it has compared what the kernels have computed.

#[allow(dead_code, reason = "shared with a program that uses more of it")]
#[path = "random/calls.rs"]
mod calls;

use calls::{alloc, arg, boundary, ok, primary};
use std::ffi::CString;
use std::io::Write;
use std::ptr::null_mut;
use std::time::Duration;

/// Words that a kernel adds to, at most.
const WORDS: u64 = 1024;

/// What the program does; times in microseconds.
#[derive(Debug, Default)]
struct Rhythm {
    /// Memory, MiB, in so many allocations.
    mib: u64,
    allocations: u64,
    /// How many steps it makes.
    steps: u64,
    /// How long a step's kernel takes.
    kernel: u64,
    /// How long the host pauses after it.
    gap: u64,
    /// How long it pauses after each allocation.
    pause: u64,
    /// 1: it reports boundaries.
    boundaries: u64,
    /// So many kernels are submitted before the end of one is waited for.
    ahead: u64,
    /// 1: the end of none is, before the last: the driver's queue is full all the time.
    never: u64,
}

impl Rhythm {
    fn parse(words: &[String]) -> Self {
        let mut rhythm = Self { mib: 1, allocations: 1, steps: 1, ..Self::default() };
        for word in words {
            let (name, value) = word.split_once('=').expect("NAME=VALUE");
            let field = match name {
                "mib" => &mut rhythm.mib,
                "allocations" => &mut rhythm.allocations,
                "steps" => &mut rhythm.steps,
                "kernel" => &mut rhythm.kernel,
                "gap" => &mut rhythm.gap,
                "pause" => &mut rhythm.pause,
                "boundaries" => &mut rhythm.boundaries,
                "ahead" => &mut rhythm.ahead,
                "never" => &mut rhythm.never,
                other => panic!("no {other:?} is known"),
            };
            *field = value.parse().unwrap();
        }
        rhythm
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kernels, words @ ..] = &words[..] else { panic!("KERNELS NAME=VALUE…") };
    let rhythm = Rhythm::parse(words);
    let mut times = vec![now()];
    ok!(cuInit(0));
    primary();
    let (mut module, mut stir, path) = (null_mut(), null_mut(), CString::new(kernels.as_str()).unwrap());
    ok!(cuModuleLoad(&mut module, path.as_ptr()));
    ok!(cuModuleGetFunction(&mut stir, module, c"stir".as_ptr()));
    let bytes = (rhythm.mib << 20) / rhythm.allocations;
    let memory: Vec<u64> = (0..rhythm.allocations)
        .map(|_| {
            let at = alloc(bytes as usize);
            ok!(cuMemsetD8_v2(at, 1, bytes as usize));
            wait(rhythm.pause);
            at
        })
        .collect();
    times.push(now());
    let ends: Vec<_> = (0..rhythm.ahead)
        .map(|_| {
            let mut end = null_mut();
            ok!(cuEventCreate(&mut end, 0));
            end
        })
        .collect();
    for step in 0..rhythm.steps {
        let at = memory[(step % rhythm.allocations) as usize];
        let (add, micros) = (1u32, rhythm.kernel as u32);
        let words = added_words(bytes);
        let mut arguments = [arg(&at), arg(&words), arg(&add), arg(&micros)];
        ok!(cuLaunchKernel(stir, 1, 1, 1, 1, 1, 1, 0, null_mut(), arguments.as_mut_ptr(), null_mut()));
        match ends.get(step as usize % ends.len().max(1)) {
            Some(end) => {
                ok!(cuEventRecord(*end, null_mut()));
                let oldest = ends[(step as usize + 1) % ends.len()];
                ok!(cuEventSynchronize(oldest));
            }
            None if rhythm.never == 1 => {}
            None => ok!(cuCtxSynchronize()),
        }
        times.push(now());
        wait(rhythm.gap);
        if rhythm.boundaries == 1 {
            boundary();
        }
    }
    for (nth, at) in memory.iter().enumerate() {
        check(
            *at,
            bytes,
            (0..rhythm.steps).filter(|step| step % rhythm.allocations == nth as u64).count() as u32,
        );
    }
    let lines: String = times.iter().map(|time| format!("{time}\n")).collect();
    std::io::stdout().write_all(lines.as_bytes()).unwrap();
}

/// Every byte is what it was filled with, but for the words to which so much was added.
fn check(at: u64, bytes: u64, added: u32) {
    let mut words = vec![0u32; bytes as usize / 4];
    ok!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), at, bytes as usize));
    let wanted = |nth: usize| 0x0101_0101 + if (nth as u64) < added_words(bytes) { added } else { 0 };
    let wrong = (0..words.len()).find(|nth| words[*nth] != wanted(*nth));
    assert_eq!(wrong, None, "a word is wrong");
}

/// How many words of so many bytes a kernel adds to.
fn added_words(bytes: u64) -> u64 {
    WORDS.min(bytes / 4)
}

fn wait(micros: u64) {
    if micros > 0 {
        std::thread::sleep(Duration::from_micros(micros));
    }
}

/// Microseconds of the system's monotonic clock.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
