//! The mover on a software GPU, driven as the manager drives it.
//!
//! The software GPU's pieces are files: the tests play the job by reading and writing their
//! descriptors. Its driver reads its environment once in a process, so each test runs itself
//! again in a process of its own.

mod cxl;
mod disk;
mod exchange;
mod gather;
mod hosted;
mod warmth;
mod zeros;

use super::copy::Gpu;
use super::link::LinkError;
use super::orders::{Answer, Mover};
use super::{MoverConfig, run};
use crate::software_gpu::{NODE_VARIABLE, SoftwareNode};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_ffi::units::{Class, GpuUuid, PieceId, Step, TenantId, Tier};
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::line::{Line, Numbered};
use tidegate_ffi::wire::message::{Bandwidth, FromMover, LinkRates, Location, Move, TierRates, ToMover};

/// Set in a test's own process: the GPU.
const GPU_VARIABLE: &str = "TIDEGATE_TEST_MOVER_GPU";
const FAULTS_VARIABLE: &str = "TIDEGATE_SOFTGPU_FAULTS";
/// No test takes longer, on the slowest machine, or it hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const UNIT: u64 = 64 << 10;
const GPU_UNITS: u64 = 64;
const TENANT: TenantId = TenantId(7);

/// The manager's end of the conversation with a mover.
struct Manager {
    connection: Connection,
    line: RefCell<Line<ToMover>>,
}

impl Manager {
    fn send(&self, order: &ToMover, fds: &[BorrowedFd<'_>]) {
        let letter = self.line.borrow_mut().say(order.clone()).unwrap();
        self.connection.send(&letter, fds).unwrap();
    }

    fn receive(&self) -> (FromMover, Vec<OwnedFd>) {
        let (letter, fds) = self.connection.receive::<Numbered<FromMover>>().unwrap();
        (self.line.borrow_mut().hear(letter).unwrap().unwrap(), fds)
    }
}

/// A mover of which each order is a call.
fn direct(config: &MoverConfig) -> Mover {
    let gpu = Gpu::open(&config.driver, config.gpu).unwrap();
    Mover::new(Rc::new(gpu), config).unwrap()
}

/// A manager that is there.
fn hears(_: Answer) -> Result<(), LinkError> {
    Ok(())
}

/// What a test has of a mover.
struct Bench {
    mover: Manager,
    thread: JoinHandle<anyhow::Result<()>>,
    ready: FromMover,
    next: u64,
    config: MoverConfig,
    slabs: BTreeMap<u32, OwnedFd>,
    /// What lies in each tier.
    stored: [u64; 3],
    /// What each mover has measured.
    bandwidths: Vec<Bandwidth>,
    index: Option<OwnedFd>,
}

/// Runs `test` of this module in a process of its own, with a GPU of 64 units and `dram` units for
/// saved bytes; the driver's calls fail as `faults` says.
fn on_a_software_gpu(test: &str, dram: u64, faults: &str, body: impl FnOnce(&mut Bench)) {
    in_its_own_process(test, &[(FAULTS_VARIABLE, faults)], |gpu| config(gpu, dram * UNIT), body);
}

fn config(gpu: GpuUuid, dram_bytes: u64) -> MoverConfig {
    MoverConfig { gpu, dram_bytes, cxl: None, disk: None, disk_bytes: 0, driver: software_driver() }
}

fn in_its_own_process(
    test: &str,
    variables: &[(&str, &str)],
    config: impl FnOnce(GpuUuid) -> MoverConfig,
    body: impl FnOnce(&mut Bench),
) {
    on_a_node(&format!("1x{}B", GPU_UNITS * UNIT), test, variables, config, body);
}

/// The same on a GPU as `spec` describes it.
fn on_a_node(
    spec: &str,
    test: &str,
    variables: &[(&str, &str)],
    config: impl FnOnce(GpuUuid) -> MoverConfig,
    body: impl FnOnce(&mut Bench),
) {
    if let Ok(gpu) = std::env::var(GPU_VARIABLE) {
        let mut bench = Bench::start(config(gpu.parse().unwrap()));
        body(&mut bench);
        return bench.end();
    }
    let node = SoftwareNode::create(&spec.parse().unwrap(), UNIT).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("mover::tests::{test}"), "--exact", "--nocapture"]);
    command.env(NODE_VARIABLE, node.path()).envs(variables.iter().copied());
    command.env(GPU_VARIABLE, node.gpus()[0].to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(command.spawn().unwrap(), test);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Waits for a test's own process, not for ever.
fn finish(process: Child, test: &str) -> Output {
    let pid = Pid::from_child(&process);
    let (done, ended) = std::sync::mpsc::channel();
    // Nobody waits any more if it took too long.
    std::thread::spawn(move || drop(done.send(process.wait_with_output())));
    ended.recv_timeout(PATIENCE).map(Result::unwrap).unwrap_or_else(|_| {
        let _ = kill_process(pid, Signal::KILL);
        panic!("{test} did not end within {PATIENCE:?}")
    })
}

fn start(config: MoverConfig) -> (Manager, JoinHandle<anyhow::Result<()>>, FromMover) {
    let (connection, theirs) = Connection::pair().unwrap();
    let thread = std::thread::spawn(move || run(theirs, config));
    let mover = Manager { connection, line: RefCell::new(Line::new()) };
    let (first, _) = mover.receive();
    (mover, thread, first)
}

fn software_driver() -> CString {
    let node = std::env::var_os(NODE_VARIABLE).unwrap();
    CString::new(Path::new(&node).join("lib/libcuda.so.1").as_os_str().as_bytes()).unwrap()
}

impl Bench {
    fn start(config: MoverConfig) -> Self {
        let (mover, thread, ready) = start(config.clone());
        let mut bench = Self {
            mover,
            thread,
            ready,
            next: 0,
            config,
            slabs: BTreeMap::new(),
            stored: [0; 3],
            bandwidths: Vec::new(),
            index: None,
        };
        bench.adopt(&[], &[]);
        bench
    }

    fn end(self) {
        drop(self.mover);
        self.thread.join().unwrap().unwrap();
    }

    fn step(&mut self) -> Step {
        self.next += 1;
        Step(self.next)
    }

    fn ask(&mut self, order: ToMover) -> (FromMover, Vec<OwnedFd>) {
        self.mover.send(&order, &[]);
        self.answer()
    }

    /// The next answer; what the manager keeps for the next mover comes before it.
    fn answer(&mut self) -> (FromMover, Vec<OwnedFd>) {
        loop {
            let (answer, mut fds) = self.mover.receive();
            match answer {
                FromMover::Slab { slab } => drop(self.slabs.insert(slab, fds.remove(0))),
                FromMover::SlabGone { slab } => drop(self.slabs.remove(&slab)),
                FromMover::Stored { bytes } => self.stored = bytes,
                FromMover::Bandwidth(bandwidth) => self.bandwidths.push(bandwidth),
                FromMover::Index => self.index = Some(fds.remove(0)),
                answer => return (answer, fds),
            }
        }
    }

    /// Kills nobody, but goes on with another mover, for whom `again` was not answered.
    fn replace(&mut self, pieces: &[(u64, u64, &File)], again: &[Step]) {
        self.replace_ended(pieces, again).unwrap();
    }

    /// The same, of a mover that may have ended by itself: how it ended.
    fn replace_ended(&mut self, pieces: &[(u64, u64, &File)], again: &[Step]) -> anyhow::Result<()> {
        let config = self.config.clone();
        let (mover, thread, ready) = start(config);
        let old = std::mem::replace(&mut self.mover, mover);
        drop(old);
        let ended = std::mem::replace(&mut self.thread, thread).join().unwrap();
        self.ready = ready;
        self.adopt(pieces, again);
        ended
    }

    /// Hands a new mover everything, each kind in a message of its own.
    fn adopt(&mut self, pieces: &[(u64, u64, &File)], again: &[Step]) {
        let send = |order: ToMover, fds: &[BorrowedFd<'_>]| self.mover.send(&order, fds);
        for (id, units, file) in pieces {
            let pieces = vec![(PieceId(*id), units * UNIT)];
            send(ToMover::Adopt { pieces, slabs: Vec::new(), again: None }, &[file.as_fd()]);
        }
        for (slab, fd) in &self.slabs {
            send(ToMover::Adopt { pieces: Vec::new(), slabs: vec![*slab], again: None }, &[fd.as_fd()]);
        }
        let index: Vec<_> = self.index.iter().map(|fd| fd.as_fd()).collect();
        let again = Some(again.to_vec());
        send(ToMover::Adopt { pieces: Vec::new(), slabs: Vec::new(), again }, &index);
        let (adopted, _) = self.answer();
        assert!(matches!(adopted, FromMover::Adopted { .. }), "{adopted:?}");
    }

    fn try_make(&mut self, pieces: &[(u64, u64)]) -> Result<Vec<File>, (String, bool)> {
        self.try_make_at(pieces, Location::Device)
    }

    fn try_make_at(
        &mut self,
        pieces: &[(u64, u64)],
        location: Location,
    ) -> Result<Vec<File>, (String, bool)> {
        let step = self.step();
        let pieces = pieces.iter().map(|&(id, units)| (PieceId(id), units * UNIT)).collect();
        match self.ask(ToMover::Make { step, pieces, location }) {
            (FromMover::Made { step: answered }, fds) if answered == step => {
                Ok(fds.into_iter().map(File::from).collect())
            }
            (answer, _) => Err(failure(answer)),
        }
    }

    fn make(&mut self, id: u64, units: u64) -> File {
        self.try_make(&[(id, units)]).unwrap().remove(0)
    }

    fn moved(&mut self, order: impl FnOnce(Step) -> ToMover) -> Result<u64, (String, bool)> {
        let step = self.step();
        match self.ask(order(step)).0 {
            FromMover::Done { step: answered, bytes, .. } if answered == step => Ok(bytes),
            answer => Err(failure(answer)),
        }
    }

    fn save(&mut self, moves: &[Move]) -> Result<u64, (String, bool)> {
        self.save_sparing(TENANT, moves, 0)
    }

    fn save_sparing(&mut self, tenant: TenantId, moves: &[Move], spared: u64) -> Result<u64, (String, bool)> {
        self.moved(|step| ToMover::Save { step, tenant, moves: moves.to_vec(), spared })
    }

    fn restore(&mut self, moves: &[Move], poison: &[u64]) -> Result<u64, (String, bool)> {
        let (moves, poison) = (moves.to_vec(), ids(poison));
        self.moved(|step| ToMover::Restore { step, tenant: TENANT, moves, poison })
    }

    fn scrub(&mut self, pieces: &[u64]) -> Result<u64, (String, bool)> {
        self.moved(|step| ToMover::Scrub { step, pieces: ids(pieces) })
    }

    fn destroy(&mut self, pieces: &[u64]) -> Result<u64, (String, bool)> {
        self.moved(|step| ToMover::Destroy { step, pieces: ids(pieces), watched_for_leaks: false })
    }

    /// What a share is when it should be so many bytes.
    fn share(&mut self, tier: Tier, bytes: u64) -> u64 {
        self.moved(|step| ToMover::Share { step, tier, bytes }).unwrap()
    }

    /// Free, total and saved bytes.
    fn measure(&mut self) -> (u64, u64, u64) {
        let step = self.step();
        match self.ask(ToMover::Measure { step }).0 {
            FromMover::Measured { step: answered, free_bytes, total_bytes, saved_bytes }
                if answered == step =>
            {
                (free_bytes, total_bytes, saved_bytes)
            }
            answer => panic!("{answer:?}"),
        }
    }

    fn saved_bytes(&mut self) -> u64 {
        self.measure().2
    }
}

fn ids(pieces: &[u64]) -> Vec<PieceId> {
    pieces.iter().copied().map(PieceId).collect()
}

fn failure(answer: FromMover) -> (String, bool) {
    match answer {
        FromMover::Failed { reason, shortage, .. } => (reason, shortage.is_some()),
        answer => panic!("{answer:?}"),
    }
}

fn moved(piece: u64, offset: u64, bytes: u64, at: u64) -> Move {
    Move { piece: PieceId(piece), offset, bytes, class: Class::Temporary, at }
}

/// Bytes that differ from their neighbours, from the poison and from zero.
fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    (0..bytes).map(|i| ((i * 31 + seed * 17) % 253 + 1) as u8).collect()
}

fn contents(piece: &File) -> Vec<u8> {
    let mut bytes = vec![0; piece.metadata().unwrap().len() as usize];
    piece.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A piece of `units` units, filled with a pattern.
fn filled(bench: &mut Bench, id: u64, units: u64) -> (File, Vec<u8>) {
    let (piece, bytes) = (bench.make(id, units), pattern(units * UNIT, id));
    piece.write_all_at(&bytes, 0).unwrap();
    (piece, bytes)
}

#[test]
fn a_resumed_tenant_finds_every_saved_byte() {
    on_a_software_gpu("a_resumed_tenant_finds_every_saved_byte", 16, "", |bench| {
        let (first, a) = filled(bench, 1, 2);
        let (second, b) = filled(bench, 2, 1);
        // Two runs of the tenant's addresses: 1000 .. 131000, over both pieces, and 200000 .. 200007.
        let saved = [moved(2, 0, 40_000, 91_000), moved(1, 10, 90_000, 1_000), moved(2, 50_001, 7, 200_000)];
        assert_eq!(bench.save(&saved), Ok(130_007));
        assert_eq!(bench.saved_bytes(), 130_007);
        assert_eq!((contents(&first), contents(&second)), (a.clone(), b.clone()));

        assert_eq!(bench.scrub(&[1, 2]), Ok(3 * UNIT));
        assert!(contents(&first).iter().chain(&contents(&second)).all(|byte| *byte == 0));

        // Other pieces, other cuts; what is not restored is poison.
        let (third, fourth) = (bench.make(3, 3), bench.make(4, 1));
        let restored =
            [moved(3, 5, 100_000, 1_000), moved(4, 0, 30_000, 101_000), moved(4, 65_000, 7, 200_000)];
        assert_eq!(bench.restore(&restored, &[3, 4]), Ok(130_007));
        let run: Vec<u8> = a[10..90_010].iter().chain(&b[..40_000]).copied().collect();
        let mut wanted = (vec![0xFF; 3 * UNIT as usize], vec![0xFF; UNIT as usize]);
        wanted.0[5..100_005].copy_from_slice(&run[..100_000]);
        wanted.1[..30_000].copy_from_slice(&run[100_000..]);
        wanted.1[65_000..65_007].copy_from_slice(&b[50_001..50_008]);
        assert!((contents(&third), contents(&fourth)) == wanted);
        assert_eq!(bench.saved_bytes(), 0);
    });
}

#[test]
fn many_switches_in_random_order_lose_no_byte() {
    on_a_software_gpu("many_switches_in_random_order_lose_no_byte", SWITCH_UNITS, "", |bench| {
        let (piece, before) = filled(bench, 1, 8);
        let mut away = BTreeMap::new();
        let mut random = 1u64;
        for _ in 0..600 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            switch_a_block(bench, &piece, &mut away, (random >> 40) % 32, 1 + (random >> 46) % 16_384);
            assert_eq!(bench.saved_bytes(), away.values().sum::<u64>());
        }
        for block in 0..32 {
            if away.contains_key(&block) {
                switch_a_block(bench, &piece, &mut away, block, 0);
            }
        }
        assert!(contents(&piece) == before && bench.saved_bytes() == 0);
    });
}

const SWITCH_UNITS: u64 = 2;

/// Restores a block of the piece in two moves; or, when it is there, saves its first `bytes` bytes
/// and overwrites them. A save fails only when the tier's share is full to the byte.
fn switch_a_block(bench: &mut Bench, piece: &File, away: &mut BTreeMap<u64, u64>, block: u64, bytes: u64) {
    let (start, at) = (block * 16_384, block * 20_000);
    if let Some(bytes) = away.remove(&block) {
        let cut = bytes / 3;
        let halves = [moved(1, start + cut, bytes - cut, at + cut), moved(1, start, cut, at)];
        assert_eq!(halves.map(|half| bench.restore(&[half], &[]).unwrap()).iter().sum::<u64>(), bytes);
        return;
    }
    let room = SWITCH_UNITS * UNIT - away.values().sum::<u64>();
    match bench.save(&[moved(1, start, bytes, at)]) {
        Ok(saved) => {
            assert_eq!(saved, bytes);
            away.insert(block, bytes);
            piece.write_all_at(&vec![0; bytes as usize], start).unwrap();
        }
        Err((reason, out_of_memory)) => assert!(out_of_memory && bytes > room, "{reason}"),
    }
}

#[test]
fn a_failed_save_keeps_nothing() {
    let faults = "cuMemcpyBatchAsync_v2@1=OUT_OF_MEMORY,cuStreamSynchronize@2=OUT_OF_MEMORY";
    on_a_software_gpu("a_failed_save_keeps_nothing", 2, faults, |bench| {
        let (piece, bytes) = filled(bench, 1, 4);
        let both = [moved(1, 0, 100, 0), moved(1, 1000, 100, 5000)];
        let mut refused = |moves: &[Move], why: &str, out_of_memory: bool| {
            let (reason, memory) = bench.save(moves).unwrap_err();
            assert!(reason.contains(why) && memory == out_of_memory, "{reason}");
            assert_eq!(bench.stored, [0; 3]);
        };
        refused(&both, "cuMemcpyBatchAsync_v2", true);
        refused(&both, "cuStreamSynchronize", true);
        refused(&[moved(1, 0, 3 * UNIT, 0)], "share", true);
        refused(&[both[0], moved(1, UNIT, 4 * UNIT, 5000)], "leaves piece 1", false);
        refused(&[both[0], moved(1, u64::MAX, 2, 5000)], "past the last address", false);
        refused(&[both[0], moved(9, 0, 1, 5000)], "piece 9 is unknown", false);
        refused(&[both[0], moved(1, 500, 1, 99)], "two moves", false);
        assert!(contents(&piece) == bytes);
        assert_eq!(bench.save(&both), Ok(200));
    });
}

#[test]
fn saved_bytes_are_not_replaced() {
    on_a_software_gpu("saved_bytes_are_not_replaced", 4, "", |bench| {
        let (piece, bytes) = filled(bench, 1, 1);
        assert_eq!(bench.save(&[moved(1, 0, 100, 0)]), Ok(100));
        piece.write_all_at(&[0; 100], 0).unwrap();
        let (reason, _) = bench.save(&[moved(1, 0, 10, 99)]).unwrap_err();
        assert!(reason.contains("saved already"), "{reason}");
        assert_eq!(bench.restore(&[moved(1, 0, 100, 0)], &[]), Ok(100));
        assert!(contents(&piece) == bytes);
    });
}

#[test]
fn where_the_driver_takes_no_batches_ranges_are_copied_one_by_one() {
    let faults = "cuMemcpyBatchAsync_v2@1+=NOT_SUPPORTED";
    on_a_software_gpu("where_the_driver_takes_no_batches_ranges_are_copied_one_by_one", 2, faults, |bench| {
        let (piece, bytes) = filled(bench, 1, 1);
        let moves: Vec<Move> = (0..8).map(|index| moved(1, index * 4096, 100, index * 1000)).collect();
        assert_eq!(bench.save(&moves), Ok(800));
        piece.write_all_at(&vec![0; bytes.len()], 0).unwrap();
        assert_eq!(bench.restore(&moves, &[]), Ok(800));
        let found = contents(&piece);
        for start in moves.iter().map(|m| m.offset as usize) {
            assert!(found[start..start + 100] == bytes[start..start + 100]);
        }
    });
}

#[test]
fn a_failed_restore_keeps_the_saved_bytes() {
    on_a_software_gpu(
        "a_failed_restore_keeps_the_saved_bytes",
        4,
        "cuMemcpyHtoDAsync_v2@1=OUT_OF_MEMORY",
        |bench| {
            let (piece, bytes) = filled(bench, 1, 1);
            assert_eq!(bench.save(&[moved(1, 0, UNIT, 0)]), Ok(UNIT));
            assert!(bench.restore(&[moved(1, 0, UNIT, 0)], &[1]).is_err());
            for wrong in [moved(1, 0, 1, UNIT), moved(1, 1, UNIT, 0), moved(2, 0, UNIT, 0)] {
                assert!(bench.restore(&[wrong], &[]).is_err());
            }
            assert_eq!(bench.saved_bytes(), UNIT);
            assert_eq!(bench.restore(&[moved(1, 0, UNIT, 0)], &[1]), Ok(UNIT));
            assert!(contents(&piece) == bytes);
        },
    );
}

#[test]
fn pieces_are_made_all_or_none() {
    let faults = "cuMemExportToShareableHandle@4=OUT_OF_MEMORY";
    on_a_software_gpu("pieces_are_made_all_or_none", 4, faults, |bench| {
        let half = GPU_UNITS / 2;
        let (reason, out_of_memory) = bench.try_make(&[(1, half), (2, half), (3, 1)]).unwrap_err();
        assert!(reason.contains("OUT_OF_MEMORY") && out_of_memory, "{reason}");
        assert_eq!(bench.try_make(&[(1, half), (2, half)]).unwrap().len(), 2);
        assert_eq!(bench.destroy(&[1, 2]), Ok(GPU_UNITS * UNIT));
        // The second export of these fails: neither exists, and the memory is free.
        let (reason, _) = bench.try_make(&[(1, half), (2, half)]).unwrap_err();
        assert!(reason.contains("cuMemExportToShareableHandle"), "{reason}");
        bench.make(3, GPU_UNITS);
    });
}

#[test]
fn memory_of_destroyed_pieces_that_a_descriptor_keeps_is_told() {
    on_a_software_gpu("memory_of_destroyed_pieces_that_a_descriptor_keeps_is_told", 4, "", |bench| {
        let (kept, other) = (bench.make(1, 3), bench.make(2, 5));
        let free = bench.measure().0;
        drop(other);
        let leaked =
            bench.moved(|step| ToMover::Destroy { step, pieces: ids(&[1, 2]), watched_for_leaks: true });
        assert_eq!(leaked, Ok(3 * UNIT));
        assert_eq!(bench.measure().0, free + 5 * UNIT);
        drop(kept);
        assert_eq!(bench.measure().0, free + 8 * UNIT);
    });
}

#[test]
fn wrong_orders_are_refused_in_words() {
    on_a_software_gpu("wrong_orders_are_refused_in_words", 4, "", |bench| {
        bench.make(1, 1);
        let mut refused = |pieces: &[(u64, u64)]| bench.try_make(pieces).unwrap_err().0;
        assert_eq!(refused(&[(2, 1), (1, 1)]), "piece 1 exists already");
        assert_eq!(refused(&[(2, 1), (2, 1)]), "piece 2 is named twice in one order");
        assert!(refused(&[(2, 0)]).contains("positive multiples"));
        let many: Vec<_> = (10..264).map(|id| (id, 1)).collect();
        assert!(refused(&many).contains("253"));
        assert_eq!(bench.destroy(&[1, 1]).unwrap_err().0, "piece 1 is named twice in one order");
        assert_eq!(bench.scrub(&[2]).unwrap_err().0, "piece 2 is unknown to the mover");
        assert_eq!(bench.destroy(&[1, 2]), Ok(UNIT));
        assert_eq!(bench.destroy(&[1, 2]), Ok(0), "what is gone already is gone");
    });
}

#[test]
fn the_next_mover_has_everything_that_was_answered() {
    on_a_software_gpu("the_next_mover_has_everything_that_was_answered", 16, "", |bench| {
        let (first, a) = filled(bench, 1, 2);
        let (second, b) = filled(bench, 2, 1);
        assert_eq!(bench.save(&[moved(1, 10, 90_000, 1_000)]), Ok(90_000));
        assert_eq!(bench.save(&[moved(2, 0, 60_000, 200_000)]), Ok(60_000));
        assert_eq!(bench.restore(&[moved(2, 0, 10_000, 200_000)], &[]), Ok(10_000));
        let free = bench.measure().0;
        bench.replace(&[(1, 2, &first), (2, 1, &second)], &[]);
        assert_eq!((bench.measure().0, bench.saved_bytes()), (free, 140_000));
        assert_eq!(bench.scrub(&[1, 2]), Ok(3 * UNIT));
        assert_eq!(bench.restore(&[moved(1, 10, 90_000, 1_000)], &[1]), Ok(90_000));
        assert!(bench.restore(&[moved(2, 0, 1, 200_000)], &[]).unwrap_err().0.contains("not all"));
        assert_eq!(bench.restore(&[moved(2, 10_000, 50_000, 210_000)], &[2]), Ok(50_000));
        assert!(contents(&first)[10..90_010] == a[10..90_010]);
        assert!(contents(&second)[10_000..60_000] == b[10_000..60_000]);
        // What was free is free again to the byte.
        assert_eq!(bench.saved_bytes(), 0);
        let (third, c) = filled(bench, 3, 16);
        assert_eq!(bench.save(&[moved(3, 0, 16 * UNIT, 0)]), Ok(16 * UNIT));
        bench.replace(&[(3, 16, &third)], &[]);
        assert_eq!(bench.restore(&[moved(3, 0, 16 * UNIT, 0)], &[3]), Ok(16 * UNIT));
        assert!(contents(&third) == c);
    });
}

#[test]
fn an_order_that_was_not_answered_can_be_given_again() {
    on_a_software_gpu("an_order_that_was_not_answered_can_be_given_again", 4, "", |bench| {
        let (piece, bytes) = filled(bench, 1, 2);
        let all = [moved(1, 0, 2 * UNIT, 0)];
        // Its save was carried out; nobody heard of it.
        assert_eq!(bench.save(&all), Ok(2 * UNIT));
        let save = Step(bench.next);
        bench.replace(&[(1, 2, &piece)], &[save]);
        assert_eq!(bench.saved_bytes(), 0);
        assert_eq!(bench.save(&all), Ok(2 * UNIT));
        // So was its restore: the next mover has the saved copy still, wherever the old one lay.
        piece.write_all_at(&vec![7; 2 * UNIT as usize], 0).unwrap();
        assert_eq!(bench.restore(&all, &[1]), Ok(2 * UNIT));
        let restore = Step(bench.next);
        piece.write_all_at(&vec![7; 2 * UNIT as usize], 0).unwrap();
        bench.replace(&[(1, 2, &piece)], &[restore]);
        assert_eq!(bench.saved_bytes(), 2 * UNIT);
        assert_eq!(bench.restore(&all, &[1]), Ok(2 * UNIT));
        assert!(contents(&piece) == bytes && bench.saved_bytes() == 0);
    });
}

#[test]
fn what_the_driver_refuses_the_next_mover_is_given_again() {
    // Four times in a row, by one mover after another.
    let faults: Vec<String> = (1..5).map(|nth| format!("cuMemcpyHtoDAsync_v2@{nth}=UNKNOWN")).collect();
    let test = "what_the_driver_refuses_the_next_mover_is_given_again";
    on_a_software_gpu(test, 4, &faults.join(","), |bench| {
        let (piece, bytes) = filled(bench, 1, 1);
        let all = [moved(1, 0, UNIT, 0)];
        let order = |step| ToMover::Restore { step, tenant: TENANT, moves: all.to_vec(), poison: Vec::new() };
        assert_eq!(bench.save(&all), Ok(UNIT));
        piece.write_all_at(&vec![7; UNIT as usize], 0).unwrap();
        for _ in 0..2 {
            let step = bench.step();
            bench.mover.send(&order(step), &[]);
            let ended = bench.replace_ended(&[(1, 1, &piece)], &[step]).unwrap_err();
            assert!(ended.to_string().contains("cuMemcpyHtoDAsync_v2"), "{ended}");
            // It is not to be: the owner hears of it, and the next order counts anew.
            let (reason, _) = failure(bench.ask(order(step)).0);
            assert!(reason.contains("cuMemcpyHtoDAsync_v2"), "{reason}");
        }
        assert_eq!(bench.restore(&all, &[]), Ok(UNIT));
        assert!(contents(&piece) == bytes);
    });
}

#[test]
fn the_log_is_written_anew_and_loses_nothing() {
    on_a_software_gpu("the_log_is_written_anew_and_loses_nothing", 4, "", |bench| {
        let (piece, bytes) = filled(bench, 1, 2);
        assert_eq!(bench.save(&[moved(1, UNIT, UNIT, UNIT)]), Ok(UNIT));
        let size = |bench: &Bench| File::from(bench.index.as_ref().unwrap().try_clone().unwrap()).metadata();
        let many: Vec<Move> = (0..4096).map(|i| moved(1, i * 16, 1, i * 16)).collect();
        let (mut before, mut anew) = (0, 0);
        for _ in 0..20 {
            assert_eq!(bench.save(&many), Ok(4096));
            assert_eq!(bench.restore(&many, &[]), Ok(4096));
            bench.measure();
            let now = size(bench).unwrap().len();
            anew += u32::from(now < before);
            before = now;
        }
        assert!(anew > 0, "the log has {before} bytes");
        bench.replace(&[(1, 2, &piece)], &[]);
        piece.write_all_at(&vec![7; UNIT as usize], UNIT).unwrap();
        assert_eq!(bench.restore(&[moved(1, UNIT, UNIT, UNIT)], &[]), Ok(UNIT));
        assert!(contents(&piece) == bytes);
    });
}

#[test]
fn what_was_taken_over_is_handed_on() {
    on_a_software_gpu("what_was_taken_over_is_handed_on", 4, "", |bench| {
        let (piece, bytes) = filled(bench, 1, 1);
        let mut next = direct(&bench.config);
        let pieces = vec![(PieceId(1), UNIT)];
        let adopt = ToMover::Adopt { pieces, slabs: Vec::new(), again: Some(Vec::new()) };
        next.handle(adopt, vec![piece.try_clone().unwrap().into()], &mut hears).unwrap();
        let handed = next.holdings(0).unwrap().into_iter().flat_map(|answer| answer.fds).next();
        assert!(contents(&File::from(handed.unwrap())) == bytes);
    });
}

#[test]
fn a_dead_tenants_bytes_are_forgotten() {
    on_a_software_gpu("a_dead_tenants_bytes_are_forgotten", 4, "", |bench| {
        filled(bench, 1, 1);
        assert_eq!(bench.save(&[moved(1, 0, UNIT, 0)]), Ok(UNIT));
        bench.mover.send(&ToMover::Forget { tenant: TenantId(8) }, &[]);
        assert_eq!(bench.saved_bytes(), UNIT);
        bench.mover.send(&ToMover::Forget { tenant: TENANT }, &[]);
        assert_eq!(bench.saved_bytes(), 0);
        assert!(
            bench.restore(&[moved(1, 0, 1, 0)], &[]).unwrap_err().0.contains("not all of them are saved")
        );
    });
}

#[test]
fn what_the_driver_lacks_is_done_without() {
    let faults = "cuMemHostRegister_v2@1+=NOT_SUPPORTED,cuMemCreate@1=INVALID_CONTEXT";
    on_a_software_gpu("what_the_driver_lacks_is_done_without", 4, faults, |bench| {
        let (piece, bytes) = filled(bench, 1, 1);
        assert_eq!(bench.save(&[moved(1, 0, UNIT, 0)]), Ok(UNIT));
        assert_eq!(bench.restore(&[moved(1, 0, UNIT, 0)], &[1]), Ok(UNIT));
        assert!(contents(&piece) == bytes);
    });
}

#[test]
fn the_manager_is_told_what_the_gpu_is() {
    on_a_software_gpu("the_manager_is_told_what_the_gpu_is", 4, "", |bench| {
        let FromMover::Ready { name, total_bytes, granularity_bytes } = &bench.ready else {
            panic!("{:?}", bench.ready)
        };
        assert_eq!((*total_bytes, *granularity_bytes), (GPU_UNITS * UNIT, UNIT));
        assert!(!name.is_empty());
        let (free, total, saved) = bench.measure();
        let _piece = bench.make(1, 3);
        assert_eq!((total, saved), (GPU_UNITS * UNIT, 0));
        assert_eq!(free - bench.measure().0, 3 * UNIT);
        let config = config(GpuUuid([1; 16]), 0);
        let (_, thread, first) = start(config);
        assert!(matches!(&first, FromMover::Unusable { reason } if reason.contains("GPU-0101")), "{first:?}");
        thread.join().unwrap().unwrap();
    });
}

#[test]
fn the_manager_is_told_once_how_fast_bytes_go() {
    on_a_software_gpu("the_manager_is_told_once_how_fast_bytes_go", 4, "", |bench| {
        let free = bench.measure().0;
        assert_eq!(bench.measure(), (free, GPU_UNITS * UNIT, 0));
        let [Bandwidth { link: Some(link), tiers: [Some(dram), None, None] }] = bench.bandwidths[..] else {
            panic!("{:?}", bench.bandwidths)
        };
        let LinkRates { to_host, to_gpu, both } = link;
        assert_eq!(dram, TierRates { write: to_host, read: to_gpu });
        assert!(to_host > 0 && to_gpu > 0 && both > 0, "{link:?}");
        bench.replace(&[], &[]);
        bench.measure();
        assert_eq!(bench.bandwidths.len(), 2, "the next one has measured, too");
    });
}

#[test]
fn where_nothing_is_free_nothing_is_measured_and_nothing_is_harmed() {
    on_a_software_gpu("where_nothing_is_free_nothing_is_measured_and_nothing_is_harmed", 1, "", |bench| {
        let (piece, bytes) = filled(bench, 1, GPU_UNITS);
        let first = [moved(1, 0, UNIT, 0)];
        assert_eq!(bench.save(&first), Ok(UNIT));
        assert_eq!(bench.saved_bytes(), UNIT);
        bench.replace(&[(1, GPU_UNITS, &piece)], &[]);
        assert_eq!(bench.destroy(&[]), Ok(0));
        drop(piece);
        assert_eq!(bench.destroy(&[1]), Ok(GPU_UNITS * UNIT));
        assert_eq!(bench.saved_bytes(), UNIT, "there is room on the GPU, and none in the tier");
        assert_eq!(bench.bandwidths, [Bandwidth::default(); 2]);
        let second = bench.make(2, 1);
        assert_eq!(bench.restore(&[moved(2, 0, UNIT, 0)], &[]), Ok(UNIT));
        assert!(contents(&second) == bytes[..UNIT as usize]);
    });
}

#[test]
fn a_missing_driver_is_told_in_words() {
    let config = MoverConfig {
        gpu: GpuUuid([1; 16]),
        dram_bytes: 0,
        cxl: None,
        disk: None,
        disk_bytes: 0,
        driver: c"/nowhere/libcuda.so.1".into(),
    };
    let (_, thread, first) = start(config);
    assert!(matches!(&first, FromMover::Unusable { reason } if reason.contains("/nowhere")), "{first:?}");
    thread.join().unwrap().unwrap();
}

#[test]
fn a_manager_that_breaks_the_protocol_ends_the_mover() {
    on_a_software_gpu("a_manager_that_breaks_the_protocol_ends_the_mover", 4, "", |bench| {
        let FromMover::Ready { .. } = bench.ready else { panic!("{:?}", bench.ready) };
        let gpu = std::env::var(GPU_VARIABLE).unwrap().parse().unwrap();
        let (mover, thread, _) = start(MoverConfig {
            gpu,
            dram_bytes: 0,
            cxl: None,
            disk: None,
            disk_bytes: 0,
            driver: software_driver(),
        });
        mover.connection.send(&"no order", &[]).unwrap();
        assert!(thread.join().unwrap().is_err());
    });
}
