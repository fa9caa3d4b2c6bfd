//! A mover that a bench drives as the manager does: orders of at most so many moves, one or several at once.
#![allow(dead_code, reason = "each bench uses its own part")]

use std::ffi::CString;
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

pub const MIB: u64 = 1 << 20;
/// What is alive.
pub const BYTES: u64 = 256 * MIB;
/// What lies between two ranges.
const GAP: u64 = 512;
const PIECE: u64 = 32 * MIB;

/// Set in a process that measures: the GPU.
const GPU_VARIABLE: &str = "TIDEGATE_BENCH_GPU";

/// Runs this bench again on a software GPU, with some variables more: the driver reads its environment once.
pub fn measure_on(spec: &str, variables: &[(&str, &str)]) {
    let node = SoftwareNode::create(&spec.parse().unwrap(), 2 * MIB).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(NODE_VARIABLE, node.path()).env(GPU_VARIABLE, node.gpus()[0].to_string());
    command.env("LD_LIBRARY_PATH", node.path().join("lib")).envs(variables.iter().copied());
    assert!(command.status().unwrap().success());
}

/// A mover's configuration, in a process that measures.
pub fn config() -> Option<MoverConfig> {
    let gpu = std::env::var(GPU_VARIABLE).ok()?;
    let driver = Path::new(&std::env::var_os(NODE_VARIABLE).unwrap()).join("lib/libcuda.so.1");
    Some(MoverConfig {
        gpu: gpu.parse().unwrap(),
        dram_bytes: 2 * BYTES,
        cxl: None,
        disk: None,
        disk_bytes: 0,
        driver: CString::new(driver.as_os_str().as_bytes()).unwrap(),
    })
}

/// A mover, and the manager's end of its line.
pub struct Mover {
    connection: Connection,
    line: Line<ToMover>,
    thread: std::thread::JoinHandle<anyhow::Result<()>>,
    step: u64,
}

impl Mover {
    /// One that has made nothing yet.
    pub fn start(config: MoverConfig) -> Self {
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
    pub fn lay_out(&mut self, mix: &[(u64, u64)]) -> Vec<Move> {
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

    /// Lets it find out how fast the link is.
    pub fn measure(&mut self) {
        let step = self.next_step();
        self.tell(ToMover::Measure { step });
        assert!(matches!(self.hear(), FromMover::Measured { .. }));
    }

    /// Orders to save moves, each of at most so many as the manager puts into one.
    pub fn saves(&mut self, tenant: TenantId, moves: &[Move]) -> Vec<ToMover> {
        self.orders(moves, |step, moves| ToMover::Save { step, tenant, moves, spared: 0 })
    }

    /// The same, to restore them.
    pub fn restores(&mut self, tenant: TenantId, moves: &[Move]) -> Vec<ToMover> {
        self.orders(moves, |step, moves| ToMover::Restore { step, tenant, moves, poison: Vec::new() })
    }

    fn orders(&mut self, moves: &[Move], order: impl Fn(Step, Vec<Move>) -> ToMover) -> Vec<ToMover> {
        moves.chunks(MOVES_PER_MESSAGE).map(|moves| order(self.next_step(), moves.to_vec())).collect()
    }

    /// How long it takes to carry orders out, in seconds: so many are told before the first of them is answered.
    pub fn carry_out(&mut self, orders: Vec<ToMover>, at_once: usize) -> f64 {
        let ordered = orders.iter().map(ToMover::bytes).sum::<u64>();
        let began = Instant::now();
        let (mut orders, mut moved) = (orders.into_iter().peekable(), 0);
        while orders.peek().is_some() {
            let told = orders.by_ref().take(at_once).map(|order| self.tell(order)).count();
            moved += (0..told).map(|_| self.hear_done()).sum::<u64>();
        }
        let took = began.elapsed().as_secs_f64();
        assert_eq!(moved, ordered);
        took
    }

    /// How many bytes the order has moved that is answered next.
    fn hear_done(&mut self) -> u64 {
        match self.hear() {
            FromMover::Done { bytes, .. } => bytes,
            answer => panic!("{answer:?}"),
        }
    }

    /// Ends it.
    pub fn end(mut self) {
        self.tell(ToMover::End);
        drop(self.connection);
        self.thread.join().unwrap().unwrap();
    }
}
