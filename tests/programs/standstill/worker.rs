//! One thread of the program.

use crate::board::{Board, Slot, Word};
use crate::calls::{arg, boundary, cu, event, ok, primary, scoped, stream};
use crate::dice::Dice;
use crate::pause;
use crate::plan::Plan;
use cudarc::driver::sys::{CUfunction, CUresult, CUstream, CUstreamCaptureMode};
use std::ffi::CString;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_WAIT_VALUE_GEQ`.
const AT_LEAST: u32 = 0;
const GOLDEN: u32 = 0x9e37_79b9;

/// Value waits that another thread ends.
#[derive(Default)]
pub struct Bell {
    /// The word in the GPU's memory; 0: none yet.
    at: AtomicU64,
    /// What it should become.
    wanted: AtomicU32,
    ended: AtomicU32,
}

impl Bell {
    /// Writes what is wanted, until [`Bell::end`].
    pub fn serve(&self, slot: Slot) {
        primary();
        let lane = stream(NON_BLOCKING);
        let mut written = 0;
        while self.ended.load(Ordering::SeqCst) == 0 {
            let wanted = self.wanted.load(Ordering::SeqCst);
            if wanted != written {
                slot.begin("cuStreamWriteValue32");
                ok!(cuStreamWriteValue32_v2(lane, self.at.load(Ordering::SeqCst), wanted, 0));
                slot.begin("on the CPU");
                written = wanted;
            }
            slot.count(Word::Steps);
            pause(1);
        }
    }

    /// Nothing more will be wanted.
    pub fn end(&self) {
        self.ended.store(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Ordered,
}

/// Memory whose word `i` must be `key + i * GOLDEN`.
struct Block {
    at: u64,
    words: usize,
    key: u32,
    kind: Kind,
}

pub struct Worker {
    board: Board,
    slot: Slot,
    thread: u64,
    plan: Plan,
    bell: std::sync::Arc<Bell>,
    dice: Dice,
    stir: CUfunction,
    lane: CUstream,
    side: CUstream,
    blocks: Vec<Block>,
    /// The working set that is wanted.
    target: u64,
    /// A word in the GPU's memory for value waits, and what it was last.
    flag: u64,
    rung: u32,
    host: Vec<u32>,
}

impl Worker {
    pub fn new(
        kernels: &str,
        board: Board,
        slot: Slot,
        thread: u64,
        plan: Plan,
        bell: std::sync::Arc<Bell>,
    ) -> Self {
        let dice = Dice::new(plan.seed.wrapping_add(plan.rank << 32).wrapping_add(thread << 40));
        slot.begin("cuDevicePrimaryCtxRetain");
        primary();
        slot.begin("cuModuleLoad");
        let (mut module, mut stir, path) = (null_mut(), null_mut(), CString::new(kernels).unwrap());
        ok!(cuModuleLoad(&mut module, path.as_ptr()));
        ok!(cuModuleGetFunction(&mut stir, module, c"stir".as_ptr()));
        let (lane, side) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let (blocks, host) = (Vec::new(), Vec::new());
        Self {
            board,
            slot,
            thread,
            plan,
            bell,
            dice,
            stir,
            lane,
            side,
            blocks,
            target: 0,
            flag: 0,
            rung: 0,
            host,
        }
    }

    /// All iterations, and an orderly end.
    pub fn work(mut self) {
        if self.plan.values > 0 {
            self.take_flag();
        }
        if self.plan.managed == 1 {
            self.take_managed();
        }
        for step in 0..self.plan.steps {
            if self.board.is_asked_to_end() {
                break;
            }
            if step % self.plan.level == 0 {
                let (low, high) = (self.plan.low / self.plan.threads, self.plan.high / self.plan.threads);
                let target = low + self.dice.next() % (high - low + 1);
                self.target = if self.plan.grows == 1 { target.max(self.target) } else { target };
            }
            self.iterate();
            self.step();
        }
        // A rank that has ended keeps no other waiting.
        self.slot.set(Word::Iteration, u64::MAX);
        while let Some(block) = self.blocks.pop() {
            self.release(block);
        }
        self.slot.begin("end");
    }

    fn step(&self) {
        self.slot.count(Word::Steps);
        self.slot.set(Word::Live, self.live());
        self.slot.begin("on the CPU");
    }

    fn live(&self) -> u64 {
        self.blocks.iter().map(|block| 4 * block.words as u64).sum()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.dice.next() % 100 < percent
    }

    fn iterate(&mut self) {
        for _ in 0..4 {
            let live = self.live();
            if live + self.plan.grain <= self.target {
                self.grow();
            } else if live > self.target {
                self.shrink();
            }
        }
        for _ in 0..self.dice.within(0, 2) {
            if let Some(block) = self.any_block() {
                let (add, micros) = (self.dice.next() as u32, self.kernel_micros());
                self.launch(block, add, micros, self.lane);
                self.blocks[block].key = self.blocks[block].key.wrapping_add(add);
            }
        }
        if self.chance(self.plan.graphs) {
            self.replay();
        }
        if self.chance(self.plan.values) {
            self.wait_for_value();
        }
        match self.dice.below(10) {
            0 => {}
            1 => self.synchronize_by_event(),
            _ => self.synchronize(self.lane),
        }
        if let Some(block) = self.any_block() {
            self.check(block);
        }
        let gap = self.dice.next() % (self.plan.gap + 1);
        pause(gap);
        if self.thread == 0 {
            self.meet();
            if self.plan.boundaries == 1 {
                self.slot.begin("tidegate_boundary");
                boundary();
            }
        }
    }

    fn kernel_micros(&mut self) -> u32 {
        (self.dice.next() % (1000 * self.plan.kernel + 1)) as u32
    }

    fn any_block(&mut self) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| self.dice.below(self.blocks.len()))
    }

    fn grow(&mut self) {
        let bytes = (self.plan.grain / 2 + self.dice.next() % (self.plan.grain / 2 + 1)) & !3;
        let (bytes, key, mut at) = (bytes.max(4) as usize, self.dice.next() as u32, 0);
        let kind = if self.chance(self.plan.pools) { Kind::Ordered } else { Kind::Plain };
        let class = if self.plan.persistent == 1 && self.dice.one_in(2) { 1 } else { 0 };
        let code = match kind {
            Kind::Plain => {
                self.slot.begin("cuMemAlloc");
                scoped(class, || cu!(cuMemAlloc_v2(&mut at, bytes)))
            }
            Kind::Ordered => {
                self.slot.begin("cuMemAllocAsync");
                scoped(class, || cu!(cuMemAllocAsync(&mut at, bytes, self.lane)))
            }
        };
        if !self.is_given(code) {
            return self.shrink();
        }
        self.host.clear();
        self.host.extend((0..bytes as u32 / 4).map(|i| key.wrapping_add(i.wrapping_mul(GOLDEN))));
        self.slot.begin("copy to the GPU");
        ok!(cuMemcpyHtoDAsync_v2(at, self.host.as_ptr().cast(), bytes, self.lane));
        self.synchronize(self.lane);
        self.blocks.push(Block { at, words: bytes / 4, key, kind });
        self.step();
    }

    /// Whether memory was given. A refusal is a step: the program makes do with what it has.
    fn is_given(&mut self, code: CUresult) -> bool {
        match code {
            CUresult::CUDA_SUCCESS => true,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                self.slot.count(Word::Refusals);
                self.target = self.live();
                self.step();
                false
            }
            code => panic!("{}: {code:?}", self.slot.action()),
        }
    }

    fn shrink(&mut self) {
        let Some(block) = self.any_block() else { return };
        let block = self.blocks.swap_remove(block);
        self.release(block);
        self.step();
    }

    fn release(&mut self, block: Block) {
        self.compare(&block, 0..block.words);
        match block.kind {
            Kind::Plain => {
                self.slot.begin("cuMemFree");
                ok!(cuMemFree_v2(block.at));
            }
            Kind::Ordered => {
                self.slot.begin("cuMemFreeAsync");
                ok!(cuMemFreeAsync(block.at, self.lane));
            }
        }
    }

    /// A part of a block is what it must be.
    fn check(&mut self, block: usize) {
        const PART: usize = 64 << 10;
        let words = self.blocks[block].words;
        let first = self.dice.below(words) & !1023;
        let block = self.blocks.swap_remove(block);
        self.compare(&block, first..words.min(first + PART));
        self.blocks.push(block);
    }

    /// These words are what they must be.
    fn compare(&mut self, block: &Block, part: Range<usize>) {
        self.host.resize(part.len(), 0);
        let (to, from) = (self.host.as_mut_ptr().cast(), block.at + 4 * part.start as u64);
        self.slot.begin("copy from the GPU");
        ok!(cuMemcpyDtoHAsync_v2(to, from, 4 * part.len(), self.lane));
        self.synchronize(self.lane);
        let must = |i: usize| block.key.wrapping_add(((part.start + i) as u32).wrapping_mul(GOLDEN));
        let unlike = self.host.iter().enumerate().fold(0, |unlike, (i, word)| unlike | (word ^ must(i)));
        if unlike != 0 {
            let i = (0..part.len()).find(|i| self.host[*i] != must(*i)).unwrap_or_default();
            let (found, wanted, word) = (self.host[i], must(i), part.start + i);
            let (at, words) = (block.at, block.words);
            panic!("wrong byte: word {word} of {words} at {at:#x} is {found:#x}, must be {wanted:#x}");
        }
    }

    fn launch(&self, block: usize, add: u32, micros: u32, lane: CUstream) {
        let Block { at, words, .. } = self.blocks[block];
        let words = words as u64;
        let mut arguments = [arg(&at), arg(&words), arg(&add), arg(&micros)];
        self.slot.begin("cuLaunchKernel");
        ok!(cuLaunchKernel(self.stir, 1, 1, 1, 1, 1, 1, 0, lane, arguments.as_mut_ptr(), null_mut()));
    }

    fn synchronize(&self, lane: CUstream) {
        self.slot.begin("cuStreamSynchronize");
        ok!(cuStreamSynchronize(lane));
    }

    fn synchronize_by_event(&self) {
        let mark = event();
        self.slot.begin("cuEventSynchronize");
        ok!(cuEventRecord(mark, self.lane));
        ok!(cuEventSynchronize(mark));
        ok!(cuEventDestroy_v2(mark));
    }

    /// A graph of one kernel, launched twice.
    fn replay(&mut self) {
        const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let Some(block) = self.any_block() else { return };
        let (add, micros) = (self.dice.next() as u32, self.kernel_micros() / 2);
        let (mut graph, mut executable) = (null_mut(), null_mut());
        self.slot.begin("capture");
        ok!(cuStreamBeginCapture_v2(self.lane, MODE));
        self.launch(block, add, micros, self.lane);
        ok!(cuStreamEndCapture(self.lane, &mut graph));
        self.slot.begin("cuGraphLaunch");
        ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
        for _ in 0..2 {
            ok!(cuGraphLaunch(executable, self.lane));
            self.blocks[block].key = self.blocks[block].key.wrapping_add(add);
        }
        self.synchronize(self.lane);
        ok!(cuGraphExecDestroy(executable));
        ok!(cuGraphDestroy(graph));
    }

    /// A word of device memory. Where there is none left, the program does without value waits.
    fn take_flag(&mut self) {
        self.slot.begin("cuMemAlloc");
        let code = cu!(cuMemAlloc_v2(&mut self.flag, 4));
        if !self.is_given(code) {
            self.plan.values = 0;
            return;
        }
        ok!(cuMemsetD32Async(self.flag, 0, 1, self.lane));
        self.synchronize(self.lane);
        if self.thread == 0 {
            self.bell.at.store(self.flag, Ordering::SeqCst);
        }
    }

    /// Work in one stream that waits for a word, which another stream writes: of this thread, or of another one.
    fn wait_for_value(&mut self) {
        self.synchronize(self.lane);
        self.rung += 1;
        self.slot.begin("cuStreamWaitValue32");
        ok!(cuStreamWaitValue32_v2(self.side, self.flag, self.rung, AT_LEAST));
        if let Some(block) = self.any_block() {
            let (add, micros) = (self.dice.next() as u32, self.kernel_micros() / 2);
            self.launch(block, add, micros, self.side);
            self.blocks[block].key = self.blocks[block].key.wrapping_add(add);
        }
        if self.thread == 0 && self.dice.one_in(2) {
            self.bell.wanted.store(self.rung, Ordering::SeqCst);
        } else {
            let gap = self.dice.next() % (self.plan.gap / 2 + 1);
            pause(gap);
            self.slot.begin("cuStreamWriteValue32");
            ok!(cuStreamWriteValue32_v2(self.lane, self.flag, self.rung, 0));
        }
        self.synchronize(self.side);
    }

    fn take_managed(&mut self) {
        let mut at = 0;
        self.slot.begin("cuMemAllocManaged");
        let code = cu!(cuMemAllocManaged(&mut at, 64 << 10, 1));
        if self.is_given(code) {
            ok!(cuMemsetD32Async(at, self.dice.next() as u32, 16 << 10, self.lane));
            self.synchronize(self.lane);
        }
    }

    /// The ranks of a gang begin each iteration together. A rank that has ended keeps no other waiting.
    fn meet(&self) {
        if self.plan.ranks < 2 {
            return;
        }
        self.slot.begin("barrier between ranks");
        self.slot.count(Word::Iteration);
        let mine = self.slot.get(Word::Iteration);
        let is_behind = |rank: u64| self.board.slot(rank as usize, 0).get(Word::Iteration) < mine;
        while (0..self.plan.ranks).any(is_behind) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
