//! The feeder: splits go in, what the GPU made of them comes out (R3.3 to R3.6).
//!
//! ```text
//!                 reads                     writes
//!  prepare                                  direct, launching      fill and parse: a block
//!  copy           launching                 places and data        at the cursor of a working buffer
//!  process        places and data held      results                when the next block finds no room
//!  fetch          results                   host results
//! ```
//!
//! Each is an operation of a [`Queue`], with these regions, and the queue alone decides when it runs: as soon as
//! nothing earlier is in its way. A buffer is taken in turn: who writes it next waits for who reads it. So parsing
//! runs ahead by as many blocks as there are launching buffers, and with two working buffers one is filled
//! while the GPU works on the other. The caller's thread submits; what it waits for are the sizes of blocks,
//! since they say where the blocks go, and the results.
//!
//! Buffers live as R3.5 says: a launching buffer for one data set, working and result buffers for one split,
//! made when the first block comes. All are dropped when [`Feeder::feed`] returns, whatever it returns.
//!
//! Invariants: a split's results are of all its data, each once and in order, or the split has failed. After a
//! failure no operation begins, and no source is asked for anything until [`Feeder::resume`]. Nobody polls.

#![forbid(unsafe_code)]

use super::Cause;
use super::block::{self, Block, BlockError, Parse};
use super::cursor::{Cursor, ELEMENT, Extent, Spot, TooLarge};
use super::data_set::{DataSet, DataSetError};
use crate::hazard::queue::{Queue, Running};
use crate::hazard::tracker::Capacity;
use crate::tensor::Region;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// How many operations may run at once: as many as there are kinds.
const LANES: usize = 4;
/// More launching buffers, or working buffers, than these are of no use.
pub const MOST_BUFFERS: usize = 1024;

/// What brings a split: its values, in data sets.
pub trait Source {
    /// Writes the split's next data set into the direct buffer, by a [`Writer`](super::data_set::Writer) or
    /// as that would; `false`: it has no more. It is called on a thread of the feeder's. An error fails the split.
    fn fill(&mut self, direct: &mut [u8]) -> Result<bool, Cause>;
}

/// What the feeder needs of a GPU. Several threads call it.
///
/// What [`copy`](Device::copy), [`process`](Device::process) and [`fetch`](Device::fetch) began is finished when they
/// return, an error included: nothing uses a buffer any more. None of them need wait for another one's work.
pub trait Device: Sync {
    /// Where operations run, one at a time: a stream.
    type Lane: Send;
    /// A launching buffer: page-locked host memory.
    type Launching: Send;
    /// A working buffer, its result buffer, and that one's like on the host.
    type Working: Send + Sync;
    /// Results in host memory.
    type Results: Send;

    /// A lane, for one split.
    fn lane(&self) -> Result<Self::Lane, Cause>;

    /// A launching buffer of so many bytes.
    fn launching(&self, bytes: usize) -> Result<Self::Launching, Cause>;

    /// The memory of a launching buffer that nothing is copied from.
    fn memory<'a>(&self, launching: &'a mut Self::Launching) -> Result<&'a mut [u8], Cause>;

    /// A working buffer of so many bytes, aligned to [`ALIGNMENT`](super::cursor::ALIGNMENT) at least, and its
    /// result buffers.
    fn working(&self, bytes: usize) -> Result<Self::Working, Cause>;

    /// Copies a block's places and data to their spot, while nothing else uses the bytes there.
    fn copy(
        &self,
        lane: &mut Self::Lane,
        block: &mut Block<Self::Launching>,
        working: &Self::Working,
        spot: Spot,
    ) -> Result<(), Cause>;

    /// Processes what a working buffer holds, into its result buffer.
    fn process(&self, lane: &mut Self::Lane, working: &Self::Working, held: Extent) -> Result<(), Cause>;

    /// Copies the results back.
    fn fetch(&self, lane: &mut Self::Lane, working: &Self::Working) -> Result<Self::Results, Cause>;
}

/// How large the buffers are, and how many there may be at a time: 1 to [`MOST_BUFFERS`] of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of the direct buffer.
    pub direct: usize,
    /// Bytes of a launching buffer: it takes what becomes of a full direct buffer.
    pub launching: usize,
    /// Bytes of a working buffer.
    pub working: usize,
    /// Launching buffers: two or more let parsing go on during copies.
    pub launching_buffers: usize,
    /// Working buffers: two let copies go on while the GPU computes, a third while results come back.
    pub working_buffers: usize,
}

impl Sizes {
    fn check(&self) -> Result<(), FeedError> {
        let known = [("direct", self.direct), ("launching", self.launching), ("working", self.working)];
        if let Some((buffer, bytes)) = known.into_iter().find(|(_, bytes)| u32::try_from(*bytes).is_err()) {
            return Err(FeedError::Size { buffer, bytes });
        }
        match [self.launching_buffers, self.working_buffers] {
            [0, _] | [_, 0] => Err(FeedError::NoBuffers),
            buffers if buffers.iter().any(|count| *count > MOST_BUFFERS) => Err(FeedError::TooManyBuffers),
            _ => Ok(()),
        }
    }

    /// Room for all operations that can be outstanding, with three operands each. Where conflicts find none,
    /// submitting waits.
    fn capacity(&self) -> Capacity {
        let operations = 4 * (self.launching_buffers + self.working_buffers);
        Capacity { operations, operands: 3 * operations, edges: 4 * operations }
    }
}

/// Why a split has failed. Data sets are counted from 0 in their split.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// A split has failed before.
    #[error("the source is paused since a split failed: resume, then feed that split again")]
    Paused,
    /// A buffer is larger than its index can tell.
    #[error("a {buffer} buffer of {bytes} bytes: 4 GiB are the most")]
    Size {
        /// Which one.
        buffer: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// There would be nothing to feed through.
    #[error("at least one launching and one working buffer are needed")]
    NoBuffers,
    /// There would be no memory for them.
    #[error("{MOST_BUFFERS} launching buffers and as many working buffers are the most")]
    TooManyBuffers,
    /// The source had an error.
    #[error("the source failed at data set {set}: {cause}")]
    Source {
        /// Which data set.
        set: usize,
        /// What the source said.
        cause: Cause,
    },
    /// The direct buffer holds no data set.
    #[error("data set {set}: {fault}")]
    DataSet {
        /// Which one.
        set: usize,
        /// What is wrong.
        fault: DataSetError,
    },
    /// A data set could not be made a block.
    #[error("data set {set}: {fault}")]
    Block {
        /// Which one.
        set: usize,
        /// What is wrong.
        fault: BlockError,
    },
    /// A block is larger than an empty working buffer.
    #[error(
        "the block of data set {set}: {fault}: make the working buffer larger, or the direct buffer smaller"
    )]
    TooLarge {
        /// Which one.
        set: usize,
        /// The sizes.
        fault: TooLarge,
    },
    /// The GPU, or the way to it, had an error.
    #[error("cannot {doing}: {cause}")]
    Device {
        /// What was to be done.
        doing: &'static str,
        /// What the device said.
        cause: Cause,
    },
}

/// A split that was fully passed on.
#[derive(Debug)]
pub struct Fed<R> {
    /// The results, one element for each time that the GPU was triggered, in order.
    pub results: Vec<R>,
    /// How many data sets it had, without empty ones.
    pub data_sets: usize,
    /// How many data, and the bytes that they were parsed to.
    pub extent: Extent,
}

/// Feeds splits to a GPU.
pub struct Feeder<D, P> {
    device: D,
    parse: P,
    sizes: Sizes,
    is_paused: bool,
}

impl<D: Device, P: Parse + Send> Feeder<D, P> {
    /// A feeder with these buffers, none of which is made yet.
    pub fn new(device: D, parse: P, sizes: Sizes) -> Result<Self, FeedError> {
        sizes.check()?;
        Ok(Self { device, parse, sizes, is_paused: false })
    }

    /// Passes a split on. What it returns is what the source goes by (R3.6): success, and the next split may
    /// come; a failure, and every split is refused until [`resume`](Self::resume). Parsing has run ahead, so
    /// the failed split is to be fed again from its begin.
    pub fn feed(&mut self, split: &mut (impl Source + Send)) -> Result<Fed<D::Results>, FeedError> {
        if self.is_paused {
            return Err(FeedError::Paused);
        }
        // Until it is known to have succeeded: a parse function may also panic.
        self.is_paused = true;
        let fed = self.pass_on(split)?;
        self.is_paused = false;
        Ok(fed)
    }

    /// Whether splits are refused, since one has failed.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Takes splits again.
    pub fn resume(&mut self) {
        self.is_paused = false;
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The user's parse function.
    pub fn parse(&self) -> &P {
        &self.parse
    }

    fn pass_on(&mut self, split: &mut (impl Source + Send)) -> Result<Fed<D::Results>, FeedError> {
        let (device, sizes, stop) = (&self.device, self.sizes, Stop::default());
        let direct = vec![0; sizes.direct];
        let preprocessor =
            Preprocessor { device, split, parse: &mut self.parse, sizes, direct, sets: 0, has_more: true };
        // One operation at a time has it: all write the direct buffer.
        let preprocessor = Mutex::new(preprocessor);
        let next = || preprocessor.lock().unwrap_or_else(PoisonError::into_inner).next();
        let lanes = (0..LANES).map(|_| device.lane()).collect::<Result<Vec<_>, _>>();
        let lanes = lanes.map_err(device_error("make a lane"))?.into_iter().map(|mut lane| {
            move |work: Work<'_, D::Lane>, _: &Running<'_, Region, Work<'_, D::Lane>>| {
                work(&mut lane);
                Ok(())
            }
        });
        let fed = Queue::scope(sizes.capacity(), lanes, |queue| {
            let fed = Splicer::new(queue, device, &next, &stop, sizes).run();
            fed.unwrap_or_else(|error| {
                stop.because(Ok(error));
                None
            })
        });
        let fed = fed.map_err(|error| device_error("start the lanes")(error.into()))?;
        match stop.reason() {
            None => Ok(fed.expect("every operation has succeeded")),
            Some(Ok(error)) => Err(error),
            Some(Err(panic)) => resume_unwind(panic),
        }
    }
}

/// An operation.
type Work<'a, L> = Box<dyn FnOnce(&mut L) + Send + 'a>;

/// A block, with the number of its data set; or the split has no more.
type Next<L> = Option<(usize, Block<L>)>;

/// Why nothing of the split is begun any more: an error, or a panic. The first reason counts.
#[derive(Default)]
struct Stop(Mutex<Option<thread::Result<FeedError>>>);

impl Stop {
    fn because(&self, why: thread::Result<FeedError>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    fn is_set(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn reason(self) -> Option<thread::Result<FeedError>> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the call returns; `None` if it fails, or is not made since something has failed.
    fn unless_set<T>(&self, call: impl FnOnce() -> Result<T, FeedError>) -> Option<T> {
        if self.is_set() {
            return None;
        }
        let why = match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(done)) => return Some(done),
            Ok(Err(error)) => Ok(error),
            Err(panic) => Err(panic),
        };
        self.because(why);
        None
    }
}

/// A buffer of a split's, with its number among those of its kind, as the queue knows it.
#[derive(Clone, Copy)]
enum Buffer {
    Direct,
    Launching(usize),
    Working(usize),
    Results(usize),
    HostResults(usize),
}

impl Buffer {
    /// Some of its bytes, in addresses of the feeder's own: buffers lie 4 GiB apart, which is the most that one has.
    fn bytes(self, bytes: Range<usize>) -> Region {
        let buffer = match self {
            Self::Direct => 0,
            Self::Launching(number) => MOST_BUFFERS + number,
            Self::Working(number) => 2 * MOST_BUFFERS + number,
            Self::Results(number) => 3 * MOST_BUFFERS + number,
            Self::HostResults(number) => 4 * MOST_BUFFERS + number,
        };
        let start = ((buffer as u64) << 32) + bytes.start as u64;
        Region::range(start, bytes.len() as u64).expect("there are 64 bits for 13 and 32")
    }

    fn whole(self) -> Region {
        self.bytes(0..u32::MAX as usize)
    }
}

/// Makes blocks of a split's data sets.
struct Preprocessor<'a, D, S, P> {
    device: &'a D,
    split: &'a mut S,
    parse: &'a mut P,
    sizes: Sizes,
    direct: Vec<u8>,
    /// How many the source has brought.
    sets: usize,
    has_more: bool,
}

impl<D: Device, S: Source, P: Parse> Preprocessor<'_, D, S, P> {
    /// Makes a block of the next data set that is not empty.
    fn next(&mut self) -> Result<Next<D::Launching>, FeedError> {
        while self.has_more {
            let set = self.sets;
            self.has_more =
                self.split.fill(&mut self.direct).map_err(|cause| FeedError::Source { set, cause })?;
            self.sets += 1;
            if self.has_more
                && let Some(block) = self.block(set)?
            {
                return Ok(Some((set, block)));
            }
        }
        Ok(None)
    }

    /// Makes a block of what the direct buffer holds, if that is anything.
    fn block(&mut self, set: usize) -> Result<Option<Block<D::Launching>>, FeedError> {
        let data = DataSet::read(&self.direct).map_err(|fault| FeedError::DataSet { set, fault })?;
        if data.is_empty() {
            return Ok(None);
        }
        let launching = self.device.launching(self.sizes.launching);
        let mut launching = launching.map_err(device_error("make a launching buffer"))?;
        let memory = self.device.memory(&mut launching).map_err(device_error("use a launching buffer"))?;
        let extent = block::write(&data, memory, self.parse);
        let extent = extent.map_err(|fault| FeedError::Block { set, fault })?;
        Ok(Some(Block { launching, extent }))
    }
}

/// Appends blocks to working buffers and triggers the GPU: submits what is to be done, in order.
struct Splicer<'q, 'a, D: Device> {
    queue: &'q Queue<Region, Work<'a, D::Lane>>,
    device: &'a D,
    /// The preprocessor's.
    next: &'a (dyn Fn() -> Result<Next<D::Launching>, FeedError> + Sync),
    stop: &'a Stop,
    sizes: Sizes,
    cursor: Cursor,
    /// Those that were needed so far. They are filled in turn.
    working: Vec<Arc<D::Working>>,
    /// Results to come, of each time that the GPU was triggered.
    results: Vec<Receiver<D::Results>>,
    data_sets: usize,
    extent: Extent,
}

impl<'q, 'a, D: Device> Splicer<'q, 'a, D> {
    fn new(
        queue: &'q Queue<Region, Work<'a, D::Lane>>,
        device: &'a D,
        next: &'a (dyn Fn() -> Result<Next<D::Launching>, FeedError> + Sync),
        stop: &'a Stop,
        sizes: Sizes,
    ) -> Self {
        let cursor = Cursor::new(sizes.working);
        let (working, results, data_sets, extent) = (Vec::new(), Vec::new(), 0, Extent::default());
        Self { queue, device, next, stop, sizes, cursor, working, results, data_sets, extent }
    }

    /// Until the split ends; `None`: an operation has failed.
    fn run(mut self) -> Result<Option<Fed<D::Results>>, FeedError> {
        let mut blocks: VecDeque<_> = (0..self.sizes.launching_buffers).map(|at| self.prepare(at)).collect();
        while let Some(next) = blocks.pop_front() {
            let Ok(next) = next.recv() else { return Ok(None) };
            let Some((set, block)) = next else { break };
            let launching = self.data_sets % self.sizes.launching_buffers;
            self.splice(set, block, launching)?;
            blocks.push_back(self.prepare(launching));
        }
        self.trigger()?;
        let results = self.results.iter().map(Receiver::recv).collect::<Result<_, _>>();
        let Self { data_sets, extent, .. } = self;
        Ok(results.ok().map(|results| Fed { results, data_sets, extent }))
    }

    /// Has the next block made in a launching buffer.
    fn prepare(&self, launching: usize) -> Receiver<Next<D::Launching>> {
        let next = self.next;
        let writes = [Buffer::Direct.whole(), Buffer::Launching(launching).whole()];
        self.submit(&[], &writes, move |_| next())
    }

    /// Has a block copied from its launching buffer to where it goes.
    fn splice(
        &mut self,
        set: usize,
        mut block: Block<D::Launching>,
        launching: usize,
    ) -> Result<(), FeedError> {
        let (device, extent) = (self.device, block.extent);
        let spot = self.place(set, extent)?;
        let (number, working) = self.filling()?;
        let writes = held(number, spot, extent);
        self.submit(&[Buffer::Launching(launching).whole()], &writes, move |lane| {
            let memory =
                device.memory(&mut block.launching).map_err(device_error("use a launching buffer"))?;
            block::place_at(memory, extent, spot.data);
            device.copy(lane, &mut block, &working, spot).map_err(device_error("copy a block"))
        });
        self.data_sets += 1;
        self.extent.data += extent.data;
        self.extent.bytes += extent.bytes;
        Ok(())
    }

    /// Where a block goes. If the rest of the working buffer cannot take it, the GPU is triggered, and it goes
    /// into the next one.
    fn place(&mut self, set: usize, block: Extent) -> Result<Spot, FeedError> {
        let append =
            |cursor: &mut Cursor| cursor.append(block).map_err(|fault| FeedError::TooLarge { set, fault });
        if let Some(spot) = append(&mut self.cursor)? {
            return Ok(spot);
        }
        self.trigger()?;
        Ok(append(&mut self.cursor)?.expect("what the empty buffer does not take is an error"))
    }

    /// The working buffer that is being filled, and its number.
    fn filling(&mut self) -> Result<(usize, Arc<D::Working>), FeedError> {
        let number = self.results.len() % self.sizes.working_buffers;
        if number == self.working.len() {
            let working = self.device.working(self.sizes.working);
            self.working.push(Arc::new(working.map_err(device_error("make a working buffer"))?));
        }
        Ok((number, self.working[number].clone()))
    }

    /// Has the GPU process what the working buffer holds, and the results brought back.
    fn trigger(&mut self) -> Result<(), FeedError> {
        let (device, extent) = (self.device, self.cursor.held());
        if extent.data == 0 {
            return Ok(());
        }
        let (number, working) = self.filling()?;
        let (processed, results) = (working.clone(), [Buffer::Results(number).whole()]);
        let reads = held(number, Spot { index: 0, data: self.sizes.working - extent.bytes }, extent);
        self.submit(&reads, &results, move |lane| {
            device.process(lane, &processed, extent).map_err(device_error("process a working buffer"))
        });
        let fetched = self.submit(&results, &[Buffer::HostResults(number).whole()], move |lane| {
            device.fetch(lane, &working).map_err(device_error("collect results"))
        });
        self.results.push(fetched);
        self.cursor.clear();
        Ok(())
    }

    /// Submits an operation. What it returns comes to the receiver; nothing, if it fails or does not run.
    fn submit<T: Send + 'a>(
        &self,
        reads: &[Region],
        writes: &[Region],
        call: impl FnOnce(&mut D::Lane) -> Result<T, FeedError> + Send + 'a,
    ) -> Receiver<T> {
        let (stop, (say, said)) = (self.stop, channel());
        let work = move |lane: &mut D::Lane| {
            if let Some(done) = stop.unless_set(|| call(lane)) {
                // Not everybody wants to know.
                let _ = say.send(done);
            }
        };
        self.queue.submit(Box::new(work), reads, writes).expect("there is room for three operands");
        said
    }
}

/// The places and the data of a working buffer that begin at a spot.
fn held(working: usize, Spot { index, data }: Spot, extent: Extent) -> [Region; 2] {
    let ranges = [index..index + extent.data * ELEMENT, data..data + extent.bytes];
    ranges.map(|range| Buffer::Working(working).bytes(range))
}

fn device_error(doing: &'static str) -> impl Fn(Cause) -> FeedError {
    move |cause| FeedError::Device { doing, cause }
}

#[cfg(test)]
mod tests;
