//! A program that always has a next step: it allocates, computes, waits and frees as its plan says.
//!
//! ```text
//! standstill KERNELS BOARD NAME=VALUE…
//! ```
//! Each step is counted on the board (board.rs), so that a test sees where the program stands still. An
//! allocation that is refused is a step too: the program frees something and goes on. It ends with an error if any byte
//! is not what it must be, or a call of the driver fails in another way than with out-of-memory.

mod board;
#[allow(dead_code, reason = "shared with a program that uses more of it")]
#[path = "../random/calls.rs"]
mod calls;
#[allow(dead_code, reason = "shared with a program that uses more of it")]
#[path = "../random/dice.rs"]
mod dice;
mod plan;
mod worker;

use board::{Board, PROCESSES, Slot, Word};
use calls::{ok, primary};
use plan::Plan;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;
use worker::{Bell, Worker};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kernels, path, plan @ ..] = &words[..] else { panic!("KERNELS BOARD NAME=VALUE…") };
    let mut plan = Plan::parse(plan.iter().map(String::as_str)).unwrap();
    let board = Board::open(Path::new(path)).unwrap();
    board.come();
    let child = if plan.rank == 0 && plan.fork & 1 != 0 { fork_before(&mut plan) } else { None };
    end_at_a_panic(board.slot(plan.rank as usize, 0));
    if plan.may_become() {
        std::thread::spawn(move || become_anew(board));
    }
    let ranks = if plan.rank == 0 { start_ranks(&words, &plan) } else { Vec::new() };
    work(kernels, board, &plan);
    if let Some(child) = child {
        let mut status = 0;
        // SAFETY: the process's own child, and a place for its status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(waited == child && status == 0, "the forked child ended with {status:#x}");
    }
    for mut rank in ranks {
        let status = rank.wait().unwrap();
        assert!(status.success(), "another rank ended with {status}");
    }
}

/// A thread that finds something wrong ends its process, for which no other rank waits from then on.
fn end_at_a_panic(first: Slot) {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        first.set(Word::Iteration, u64::MAX);
        // SAFETY: ends the process and nothing else.
        unsafe { libc::_exit(101) };
    }));
}

/// Becomes the same program anew, by execve(2), when the board asks for it.
fn become_anew(board: Board) {
    while !board.begin_to_become() {
        pause(1);
    }
    let error = Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).exec();
    panic!("execve: {error}");
}

fn start_ranks(words: &[String], plan: &Plan) -> Vec<Child> {
    let start = |rank: u64| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(words).arg(format!("rank={rank}")).spawn().unwrap()
    };
    (1..plan.ranks).map(start).collect()
}

/// A child that uses CUDA by itself, as the last process of the program. The child gets a plan of its own.
fn fork_before(plan: &mut Plan) -> Option<i32> {
    // SAFETY: the process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            *plan = Plan { rank: PROCESSES as u64 - 1, ranks: 1, fork: 0, seed: !plan.seed, ..plan.clone() };
            None
        }
        child => Some(child),
    }
}

/// A child without CUDA, which holds what its parent has for a moment, as a data loader does.
fn fork_after() -> i32 {
    // SAFETY: the child makes system calls only.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: sleeps, and ends the child.
            unsafe { libc::usleep(300_000) };
            // SAFETY: as above.
            unsafe { libc::_exit(0) }
        }
        child => child,
    }
}

fn work(kernels: &str, board: Board, plan: &Plan) {
    let process = plan.rank as usize;
    let first = board.slot(process, 0);
    first.begin("cuInit");
    ok!(cuInit(0));
    first.begin("cuDevicePrimaryCtxRetain");
    primary();
    first.begin("on the CPU");
    let loader = (plan.fork & 2 != 0).then(fork_after);
    let bell = Arc::new(Bell::default());
    let start = |thread: u64| {
        let (kernels, plan, bell) = (kernels.to_owned(), plan.clone(), bell.clone());
        std::thread::spawn(move || {
            let slot = board.slot(process, thread as usize);
            note_thread(slot);
            Worker::new(&kernels, board, slot, thread, plan, bell).work();
            slot.set(Word::Done, 1);
        })
    };
    let ringer = (plan.values > 0).then(|| {
        let (bell, slot) = (bell.clone(), board.slot(process, plan.threads as usize));
        std::thread::spawn(move || {
            note_thread(slot);
            bell.serve(slot);
            slot.set(Word::Done, 1);
        })
    });
    let workers: Vec<_> = (0..plan.threads).map(start).collect();
    for worker in workers {
        worker.join().expect("the thread has found what it must");
    }
    bell.end();
    if let Some(ringer) = ringer {
        ringer.join().expect("the thread has served all");
    }
    if let Some(loader) = loader {
        // SAFETY: the process's own child.
        unsafe { libc::waitpid(loader, std::ptr::null_mut(), 0) };
    }
}

fn note_thread(slot: Slot) {
    // SAFETY: always allowed.
    slot.set(Word::Thread, unsafe { libc::gettid() } as u64);
    slot.set(Word::Done, 0);
}

/// Sleeps so many milliseconds.
fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
