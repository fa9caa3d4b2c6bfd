//! The feeder: splits go in, what the GPU made of them comes out (R3.3 to R3.6).
//!
//! ```text
//!  preprocessor               splicer, the caller's thread           GPU              collector
//!  fill ► parse ── block ──► append at the cursor ─── copy ────────► working buffer
//!    ▲                        │ no room: trigger ──── process ─────► result buffer ─► waits, has the
//!    │                        │ go on in another one ◄───── emptied, with its results ─┘ results
//!    └─── copying: when it is done the launching buffer is dropped
//! ```
//!
//! Each of the three is a thread. Parsing runs ahead by as many blocks as there are launching buffers. With two
//! working buffers one is filled while the GPU works on the other.
//!
//! Buffers live as R3.5 says: a launching buffer for one data set, working and result buffers for one split,
//! made when the first block comes. All are dropped when [`Feeder::feed`] returns, whatever it returns.
//!
//! Invariants: a split's results are of all its data, each once and in order, or the split has failed. After a
//! failure no source is asked for anything until [`Feeder::resume`]. Nobody polls.

#![forbid(unsafe_code)]

use super::Cause;
use super::block::{self, Block, BlockError, Parse};
use super::cursor::{Cursor, Extent, Spot, TooLarge};
use super::data_set::{DataSet, DataSetError};
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// What brings a split: its values, in data sets.
pub trait Source {
    /// Writes the split's next data set into the direct buffer, by a [`Writer`](super::data_set::Writer) or
    /// as that would; `false`: it has no more. It is called on a thread of the feeder's. An error fails the split.
    fn fill(&mut self, direct: &mut [u8]) -> Result<bool, Cause>;
}

/// What the feeder needs of a GPU. Three threads call it.
///
/// After a failure, handles ([`Copying`](Device::Copying), [`Running`](Device::Running)) and working buffers are
/// dropped instead of being waited for: dropping must wait, or else keep the memory as long as the GPU uses it.
pub trait Device: Sync {
    /// A launching buffer: page-locked host memory.
    type Launching: Send;
    /// A working buffer and its result buffer.
    type Working: Send;
    /// A copy under way, with its block.
    type Copying: Send;
    /// Processing under way, with its working buffer.
    type Running: Send;
    /// Results in host memory.
    type Results: Send;

    /// A launching buffer of so many bytes.
    fn launching(&self, bytes: usize) -> Result<Self::Launching, Cause>;

    /// The memory of a launching buffer that nothing is copied from yet.
    fn memory<'a>(&self, launching: &'a mut Self::Launching) -> Result<&'a mut [u8], Cause>;

    /// A working buffer of so many bytes, aligned to [`ALIGNMENT`](super::cursor::ALIGNMENT) at least, and its
    /// result buffer.
    fn working(&self, bytes: usize) -> Result<Self::Working, Cause>;

    /// Begins to copy a block's places and data to their spot.
    fn copy(
        &self,
        block: Block<Self::Launching>,
        working: &mut Self::Working,
        spot: Spot,
    ) -> Result<Self::Copying, Cause>;

    /// Waits for a copy, and drops the block.
    fn copied(&self, copying: Self::Copying) -> Result<(), Cause>;

    /// Begins to process what a working buffer holds, behind the copies to it.
    fn process(&self, working: Self::Working, held: Extent) -> Result<Self::Running, Cause>;

    /// Waits for the results, and gives the working buffer back for the next blocks.
    fn processed(&self, running: Self::Running) -> Result<(Self::Working, Self::Results), Cause>;
}

/// How large the buffers are, and how many there may be at a time.
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
        let is_some = self.launching_buffers > 0 && self.working_buffers > 0;
        is_some.then_some(()).ok_or(FeedError::NoBuffers)
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
        let (device, parse, sizes) = (&self.device, &mut self.parse, self.sizes);
        // None ever holds more than there are buffers of its kind.
        let (to_splicer, blocks) = channel();
        let (to_preprocessor, copies) = channel();
        let (to_collector, running) = channel();
        let (from_collector, done) = channel();
        thread::scope(|scope| {
            let preprocessor = Preprocessor { device, split, parse, sizes, copies, out: 0 };
            let preprocessor = scope.spawn(move || preprocessor.run(&to_splicer));
            let collector = scope.spawn(move || collect(device, running, &from_collector));
            let fed = Splicer::new(device, sizes, to_preprocessor, to_collector, done).run(blocks);
            for thread in [preprocessor, collector] {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
            fed
        })
    }
}

/// The collector: waits for what the GPU is at, in order, and passes it on. A failure is its last word.
fn collect<D: Device>(device: &D, running: Receiver<D::Running>, to_splicer: &Sender<Done<D>>) {
    for running in running {
        let done = device.processed(running).map_err(device_error("process a working buffer"));
        let is_last = done.is_err();
        if to_splicer.send(done).is_err() || is_last {
            return;
        }
    }
}

/// A working buffer that the GPU is done with, and the results; or why not.
type Done<D> = Result<(<D as Device>::Working, <D as Device>::Results), FeedError>;

/// A block on its way to the splicer, with the number of its data set; or why there is none.
type Sent<L> = Result<(usize, Block<L>), FeedError>;

/// What comes of asking the source.
enum Next<L> {
    Block(Block<L>),
    /// A data set without data.
    Empty,
    /// The split has no more; or nobody wants it.
    End,
}

/// Makes blocks of a split's data sets.
struct Preprocessor<'a, D: Device, S, P> {
    device: &'a D,
    split: &'a mut S,
    parse: &'a mut P,
    sizes: Sizes,
    /// From the splicer, in the order of the blocks.
    copies: Receiver<D::Copying>,
    /// Launching buffers that exist.
    out: usize,
}

impl<D: Device, S: Source, P: Parse> Preprocessor<'_, D, S, P> {
    /// Until the split ends, something fails or the splicer gives up.
    fn run(mut self, to_splicer: &Sender<Sent<D::Launching>>) {
        let mut direct = vec![0; self.sizes.direct];
        for set in 0.. {
            let sent = match self.next(set, &mut direct) {
                Ok(Next::Block(block)) => Ok((set, block)),
                Ok(Next::Empty) => continue,
                Ok(Next::End) => return,
                Err(error) => Err(error),
            };
            let is_last = sent.is_err();
            if to_splicer.send(sent).is_err() || is_last {
                return;
            }
        }
    }

    /// Makes a block of the next data set; or waits for all copies, if there is none.
    fn next(&mut self, set: usize, direct: &mut [u8]) -> Result<Next<D::Launching>, FeedError> {
        let has_more = self.split.fill(direct).map_err(|cause| FeedError::Source { set, cause })?;
        let most_out = if has_more { self.sizes.launching_buffers - 1 } else { 0 };
        let is_wanted = self.wait_for_copies(most_out)?;
        if !has_more || !is_wanted {
            return Ok(Next::End);
        }
        let data = DataSet::read(direct).map_err(|fault| FeedError::DataSet { set, fault })?;
        if data.is_empty() {
            return Ok(Next::Empty);
        }
        let launching = self.device.launching(self.sizes.launching);
        let mut launching = launching.map_err(device_error("make a launching buffer"))?;
        let memory = self.device.memory(&mut launching).map_err(device_error("use a launching buffer"))?;
        let extent = block::write(&data, memory, self.parse);
        let extent = extent.map_err(|fault| FeedError::Block { set, fault })?;
        self.out += 1;
        Ok(Next::Block(Block { launching, extent }))
    }

    /// Waits until so few launching buffers are out; `false`: the splicer has given up.
    fn wait_for_copies(&mut self, most_out: usize) -> Result<bool, FeedError> {
        while self.out > most_out {
            let Ok(copying) = self.copies.recv() else { return Ok(false) };
            self.device.copied(copying).map_err(device_error("copy a block"))?;
            self.out -= 1;
        }
        Ok(true)
    }
}

/// Appends blocks to working buffers and triggers the GPU.
struct Splicer<'a, D: Device> {
    device: &'a D,
    sizes: Sizes,
    to_preprocessor: Sender<D::Copying>,
    to_collector: Sender<D::Running>,
    done: Receiver<Done<D>>,
    cursor: Cursor,
    /// The working buffer that is being filled.
    filling: Option<D::Working>,
    /// How many are with the collector.
    running: usize,
    fed: Fed<D::Results>,
}

impl<'a, D: Device> Splicer<'a, D> {
    fn new(
        device: &'a D,
        sizes: Sizes,
        to_preprocessor: Sender<D::Copying>,
        to_collector: Sender<D::Running>,
        done: Receiver<Done<D>>,
    ) -> Self {
        let fed = Fed { results: Vec::new(), data_sets: 0, extent: Extent::default() };
        let cursor = Cursor::new(sizes.working);
        Self { device, sizes, to_preprocessor, to_collector, done, cursor, filling: None, running: 0, fed }
    }

    fn run(mut self, blocks: Receiver<Sent<D::Launching>>) -> Result<Fed<D::Results>, FeedError> {
        for sent in blocks {
            let (set, block) = sent?;
            self.splice(set, block)?;
        }
        self.trigger()?;
        while self.running > 0 {
            self.collect()?;
        }
        Ok(self.fed)
    }

    fn splice(&mut self, set: usize, mut block: Block<D::Launching>) -> Result<(), FeedError> {
        let Extent { data, bytes } = block.extent;
        let spot = self.place(set, block.extent)?;
        let mut working = self.take_working()?;
        let memory =
            self.device.memory(&mut block.launching).map_err(device_error("use a launching buffer"))?;
        block::place_at(memory, block.extent, spot.data);
        let copying = self.device.copy(block, &mut working, spot).map_err(device_error("copy a block"))?;
        self.filling = Some(working);
        // If nobody waits for it any more, the preprocessor has failed, and its last word says why.
        let _ = self.to_preprocessor.send(copying);
        self.fed.data_sets += 1;
        self.fed.extent.data += data;
        self.fed.extent.bytes += bytes;
        Ok(())
    }

    /// Where a block goes. If the rest of the working buffer cannot take it, the GPU is triggered, and it goes
    /// into an empty one.
    fn place(&mut self, set: usize, block: Extent) -> Result<Spot, FeedError> {
        let append =
            |cursor: &mut Cursor| cursor.append(block).map_err(|fault| FeedError::TooLarge { set, fault });
        if let Some(spot) = append(&mut self.cursor)? {
            return Ok(spot);
        }
        self.trigger()?;
        Ok(append(&mut self.cursor)?.expect("what the empty buffer does not take is an error"))
    }

    /// The working buffer to fill: the one begun, else a new one, else the one that the GPU is done with first.
    fn take_working(&mut self) -> Result<D::Working, FeedError> {
        if let Some(working) = self.filling.take() {
            return Ok(working);
        }
        match self.running < self.sizes.working_buffers {
            true => self.device.working(self.sizes.working).map_err(device_error("make a working buffer")),
            false => self.collect(),
        }
    }

    /// Has the GPU process what the working buffer holds.
    fn trigger(&mut self) -> Result<(), FeedError> {
        let Some(working) = self.filling.take() else { return Ok(()) };
        let running = self.device.process(working, self.cursor.held());
        let running = running.map_err(device_error("process a working buffer"))?;
        // If nobody waits for it any more, the collector has failed, and its last word says why.
        let _ = self.to_collector.send(running);
        self.running += 1;
        self.cursor.clear();
        Ok(())
    }

    /// Waits for the oldest results.
    fn collect(&mut self) -> Result<D::Working, FeedError> {
        let stopped = |_| device_error("collect results")("their thread has stopped".into());
        let (working, results) = self.done.recv().map_err(stopped)??;
        self.running -= 1;
        self.fed.results.push(results);
        Ok(working)
    }
}

fn device_error(doing: &'static str) -> impl Fn(Cause) -> FeedError {
    move |cause| FeedError::Device { doing, cause }
}

#[cfg(test)]
mod tests;
