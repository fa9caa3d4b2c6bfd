//! How fast a mover saves and restores live bytes, to one contiguous copy of as many between the GPU and page-locked
//! memory. `cargo bench --bench moves`
//!
//! The mover is driven as the manager drives it: orders of at most so many moves, each answered before the next. What
//! is alive lies in ranges with gaps between them, so that none are neighbours. Rounds of copy, save, copy back and
//! restore follow each other; the first, in which the mover gets its memory, does not count.

#[path = "support/mod.rs"]
mod bench;

use bench::Spread;
use cudarc::driver::{result, sys};
use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tidegate_ffi::units::{Class, PieceId, Step, TenantId};
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::line::{Line, Numbered};
use tidegate_ffi::wire::message::{FromMover, Location, Move, ToMover};
use tidegate_manager::mover::{MoverConfig, run};
use tidegate_manager::scheduler::MOVES_PER_MESSAGE;
use tidegate_manager::software_gpu::{NODE_VARIABLE, SoftwareNode};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// What is alive.
const BYTES: u64 = 256 * MIB;
/// What lies between two ranges.
const GAP: u64 = 512;
const PIECE: u64 = 32 * MIB;
const ROUNDS: usize = 9;

/// Ranges of one size, and of many: how many bytes, and what part of all is in ranges of that size, in percent.
const MIXES: [(&str, &[(u64, u64)]); 5] = [
    ("64 MiB", &[(64 * MIB, 100)]),
    ("1 MiB", &[(MIB, 100)]),
    ("64 KiB", &[(64 * KIB, 100)]),
    ("4 KiB", &[(4 * KIB, 100)]),
    ("PyTorch's", &[(32 * MIB, 50), (2 * MIB, 30), (256 * KIB, 15), (16 * KIB, 4), (512, 1)]),
];
/// The software GPUs: as fast as it goes; with what a call costs on hardware; and each copy of a batch, too, a guess at
/// the order of magnitude, not a measurement.
const NODES: [&str; 3] = ["1x640MiB", "1x640MiB,call=2300ns", "1x640MiB,call=2300ns,copy=1500ns"];
/// Tiny ranges are measured on the last one again without the kernel that gathers them: where it cannot be loaded.
const WITHOUT_GATHERING: [(&str, &str); 2] =
    [("TIDEGATE_SOFTGPU_FAULTS", "cuModuleLoadData@1+=NOT_SUPPORTED"), (MIX_VARIABLE, "4 KiB")];

/// Set in a process that measures: the GPU.
const GPU_VARIABLE: &str = "TIDEGATE_BENCH_GPU";
/// And a mix, if only one is measured.
const MIX_VARIABLE: &str = "TIDEGATE_BENCH_MIX";

fn main() {
    if let Ok(gpu) = std::env::var(GPU_VARIABLE) {
        return measure(&gpu);
    }
    for spec in NODES {
        println!("software GPU {spec}: 256 MiB; medians of {ROUNDS} rounds, the fastest and the slowest");
        println!("ranges     save ÷ copy out                      restore ÷ copy in");
        measure_on(spec, &[]);
    }
    println!("the last, each range a copy of a batch: nothing is gathered");
    measure_on(NODES[NODES.len() - 1], &WITHOUT_GATHERING);
}

/// Measures in another process: the driver reads its environment once.
fn measure_on(spec: &str, variables: &[(&str, &str)]) {
    let node = SoftwareNode::create(&spec.parse().unwrap(), 2 * MIB).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(NODE_VARIABLE, node.path()).env(GPU_VARIABLE, node.gpus()[0].to_string());
    command.env("LD_LIBRARY_PATH", node.path().join("lib")).envs(variables.iter().copied());
    assert!(command.status().unwrap().success());
}

fn measure(gpu: &str) {
    let driver = Path::new(&std::env::var_os(NODE_VARIABLE).unwrap()).join("lib/libcuda.so.1");
    let driver = CString::new(driver.as_os_str().as_bytes()).unwrap();
    let config = MoverConfig {
        gpu: gpu.parse().unwrap(),
        dram_bytes: 2 * BYTES,
        cxl: None,
        disk: None,
        disk_bytes: 0,
        driver,
    };
    let only = std::env::var(MIX_VARIABLE).ok();
    for (name, mix) in MIXES.into_iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name)) {
        let copies = Copies::new();
        let mut mover = Mover::start(config.clone());
        let moves = mover.lay_out(mix);
        let rounds = (0..=ROUNDS).map(|_| {
            let out = copies.out();
            let save =
                mover.go(&moves, |step, tenant, moves| ToMover::Save { step, tenant, moves, spared: 0 });
            let back = copies.back();
            let restore = |step, tenant, moves| ToMover::Restore { step, tenant, moves, poison: Vec::new() };
            (out / save, back / mover.go(&moves, restore))
        });
        let rounds: Vec<(f64, f64)> = rounds.skip(1).collect();
        let save = Spread::of(rounds.iter().map(|(save, _)| *save)).line("");
        let restore = Spread::of(rounds.iter().map(|(_, restore)| *restore)).line("");
        println!("{name:<9}  {save}  {restore}");
        mover.end();
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

/// One contiguous range on the GPU, and page-locked memory of its size.
struct Copies {
    device: u64,
    host: *mut c_void,
}

impl Copies {
    fn new() -> Self {
        result::init().unwrap();
        // SAFETY: the device comes from the driver.
        let context = unsafe { result::primary_ctx::retain(result::device::get(0).unwrap()) }.unwrap();
        // SAFETY: it was retained, and is never released.
        unsafe { result::ctx::set_current(context) }.unwrap();
        // SAFETY: a context is current.
        let device = unsafe { result::malloc_sync(BYTES as usize) }.unwrap();
        let mut host = std::ptr::null_mut();
        // SAFETY: as above, and the place is ours.
        unsafe { sys::cuMemAllocHost_v2(&mut host, BYTES as usize) }.result().unwrap();
        Self { device, host }
    }

    fn out(&self) -> f64 {
        // SAFETY: both have so many bytes.
        seconds(|| unsafe { sys::cuMemcpyDtoH_v2(self.host, self.device, BYTES as usize) }.result().unwrap())
    }

    fn back(&self) -> f64 {
        // SAFETY: both have so many bytes.
        seconds(|| unsafe { sys::cuMemcpyHtoD_v2(self.device, self.host, BYTES as usize) }.result().unwrap())
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // SAFETY: allocated above, and used no more.
        unsafe { result::free_sync(self.device) }.unwrap();
        // SAFETY: as above.
        unsafe { sys::cuMemFreeHost(self.host) }.result().unwrap();
    }
}

/// A mover, and the manager's end of its line.
struct Mover {
    connection: Connection,
    line: Line<ToMover>,
    thread: std::thread::JoinHandle<anyhow::Result<()>>,
    step: u64,
}

impl Mover {
    fn start(config: MoverConfig) -> Self {
        let (connection, theirs) = Connection::pair().unwrap();
        let thread = std::thread::spawn(move || run(theirs, config));
        let mut mover = Self { connection, line: Line::new(), thread, step: 0 };
        assert!(matches!(mover.hear(), FromMover::Ready { .. }));
        mover.tell(ToMover::Adopt { pieces: Vec::new(), slabs: Vec::new(), again: Some(Vec::new()) });
        assert!(matches!(mover.hear(), FromMover::Adopted { .. }));
        mover
    }

    fn tell(&mut self, order: ToMover) {
        let letter = self.line.say(order).unwrap();
        self.connection.send(&letter, &[]).unwrap();
    }

    /// The next answer; what a manager keeps for the next mover is of no use here.
    fn hear(&mut self) -> FromMover {
        loop {
            let (letter, _) = self.connection.receive::<Numbered<FromMover>>().unwrap();
            match self.line.hear(letter).unwrap().unwrap() {
                FromMover::Slab { .. }
                | FromMover::SlabGone { .. }
                | FromMover::Stored { .. }
                | FromMover::Bandwidth(_)
                | FromMover::Index => {}
                answer => return answer,
            }
        }
    }

    fn next_step(&mut self) -> Step {
        self.step += 1;
        Step(self.step)
    }

    /// Makes pieces, and lays what is alive out in them.
    fn lay_out(&mut self, mix: &[(u64, u64)]) -> Vec<Move> {
        let mut moves = Vec::new();
        let mut at = 0;
        for &(bytes, percent) in mix {
            for _ in 0..BYTES * percent / 100 / bytes {
                let end = at + bytes;
                while at < end {
                    let (piece, offset) = (PieceId(at / PIECE + 1), at % PIECE);
                    let bytes = (end - at).min(PIECE - offset);
                    moves.push(Move { piece, offset, bytes, class: Class::Temporary, at });
                    at += bytes;
                }
                at += GAP;
            }
        }
        let pieces: Vec<PieceId> = (1..=at.div_ceil(PIECE)).map(PieceId).collect();
        let step = self.next_step();
        self.tell(ToMover::Make {
            step,
            pieces: pieces.iter().map(|id| (*id, PIECE)).collect(),
            location: Location::Device,
        });
        assert!(matches!(self.hear(), FromMover::Made { .. }));
        self.fill(pieces);
        moves
    }

    /// Writes other bytes than zeros, which would not be stored.
    fn fill(&mut self, poison: Vec<PieceId>) {
        let step = self.next_step();
        self.tell(ToMover::Restore { step, tenant: TenantId(1), moves: Vec::new(), poison });
        assert!(matches!(self.hear(), FromMover::Done { .. }));
    }

    /// How long it takes to carry the moves out, in seconds.
    fn go(&mut self, moves: &[Move], order: impl Fn(Step, TenantId, Vec<Move>) -> ToMover) -> f64 {
        let mut moved = 0;
        let took = seconds(|| {
            for moves in moves.chunks(MOVES_PER_MESSAGE) {
                let step = self.next_step();
                self.tell(order(step, TenantId(1), moves.to_vec()));
                match self.hear() {
                    FromMover::Done { bytes, .. } => moved += bytes,
                    answer => panic!("{answer:?}"),
                }
            }
        });
        assert_eq!(moved, moves.iter().map(|m| m.bytes).sum::<u64>());
        // As if it were all of it: a mix has rounded down.
        took * BYTES as f64 / moved as f64
    }

    fn end(mut self) {
        self.tell(ToMover::End);
        drop(self.connection);
        self.thread.join().unwrap().unwrap();
    }
}
