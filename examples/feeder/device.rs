//! The CUDA device that the feeder feeds: copies on one stream, the kernel on a second, results on a third.
//!
//! cudarc makes a stream wait for what another one writes, and memory that is dropped is freed behind its last
//! use; the events here only tell the time.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaSlice, CudaStream, HostSlice, LaunchConfig, PinnedHostSlice,
    PushKernelArg, SyncOnDrop,
};
use tidegate_ffi::splice::Cause;
use tidegate_ffi::splice::block::Block;
use tidegate_ffi::splice::cursor::{Extent, Spot};
use tidegate_ffi::splice::feed::Device;

use crate::kernels::Kernels;
use crate::timeline::{Lane, Timeline};
use crate::words::LEAST;

const KERNELS: Kernels =
    Kernels { cuda: include_str!("kernels.cu"), host: "libfeeder_kernels.so", package: "feeder-kernels" };

/// The first CUDA device that is visible.
pub struct Cuda {
    context: Arc<CudaContext>,
    copies: Arc<CudaStream>,
    compute: Arc<CudaStream>,
    back: Arc<CudaStream>,
    hash_words: CudaFunction,
    /// Page-locking takes long, so launching buffers are made once.
    pool: Arc<Pool>,
    timeline: Arc<Timeline>,
    /// Time 0 of the timeline.
    zero: CudaEvent,
}

/// Launching buffers that nobody uses.
type Pool = Mutex<Vec<PinnedHostSlice<u8>>>;

impl Cuda {
    /// Opens the device; `host_kernels` as in [`Kernels::open`]. The timeline begins now.
    pub fn open(host_kernels: Option<&Path>) -> Result<Self> {
        let (context, module) = KERNELS.open(host_kernels)?;
        let hash_words = module.load_function("hash_words").context("there is no kernel `hash_words`")?;
        let [copies, compute, back] = [context.new_stream()?, context.new_stream()?, context.new_stream()?];
        let zero = copies.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        copies.synchronize()?;
        let (timeline, pool) = (Arc::new(Timeline::start()), Arc::default());
        Ok(Self { context, copies, compute, back, hash_words, pool, timeline, zero })
    }

    /// The device's name.
    pub fn name(&self) -> Result<String> {
        Ok(self.context.name()?)
    }

    /// When its streams, and whoever else tells, worked.
    pub fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    /// Seconds that it takes to copy so many bytes from page-locked memory, `piece` at a time, without anything
    /// else.
    pub fn plain_copy(&self, bytes: usize, piece: usize) -> Result<f64> {
        let mut from = self.pinned::<u8>(piece)?;
        from.as_mut_slice()?.fill(1);
        let mut to = self.copies.alloc_zeros::<u8>(piece)?;
        self.copies.memcpy_htod(&from, &mut to)?;
        self.copies.synchronize()?;
        let begun = self.timeline.now();
        for start in (0..bytes).step_by(piece) {
            let part = Part { whole: &mut from, range: 0..piece.min(bytes - start) };
            self.copies.memcpy_htod(&part, &mut to)?;
        }
        self.copies.synchronize()?;
        Ok(self.timeline.now() - begun)
    }

    /// Page-locked memory of so many numbers, that the host may also read fast.
    fn pinned<T: cudarc::driver::DeviceRepr>(&self, count: usize) -> Result<PinnedHostSlice<T>> {
        // SAFETY: numbers have no invalid bits. It is written before it is read: launching buffers by the
        // preprocessor, results by the device.
        Ok(unsafe { self.context.alloc_pinned_with_flags(count, 0) }?)
    }

    fn begin<'a>(&'a self, lane: Lane, stream: &'a CudaStream) -> Result<Watch> {
        Ok(Watch { lane, from: stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?, to: None })
    }

    fn end(&self, watch: &mut Watch, stream: &CudaStream) -> Result<()> {
        watch.to = Some(stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?);
        Ok(())
    }

    /// Waits for the end of what is watched, and takes it down.
    fn note(&self, watch: Watch) -> Result<()> {
        let to = watch.to.context("its end was not recorded")?;
        let seconds =
            |event: &CudaEvent| Ok::<_, anyhow::Error>(f64::from(self.zero.elapsed_ms(event)?) / 1e3);
        self.timeline.add(watch.lane, seconds(&watch.from)?, seconds(&to)?);
        Ok(())
    }

    /// The hashes that a working buffer's results are, copied into its host result buffer.
    fn fetch(&self, working: &mut Working) -> Result<Vec<u64>> {
        let count = working.back.as_slice()?[0] as usize;
        let room = working.results.len() - 1;
        ensure!(count <= room, "{count} words in a result buffer of {room}");
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut watch = self.begin(Lane::Results, &self.back)?;
        let hashes = 1..count + 1;
        let mut part = Part { whole: &mut working.back, range: hashes.clone() };
        self.back.memcpy_dtoh(&working.results.slice(hashes.clone()), &mut part)?;
        self.end(&mut watch, &self.back)?;
        self.note(watch)?;
        Ok(working.back.as_slice()?[hashes].to_vec())
    }

    fn launch(&self, working: &mut Working, held: Extent) -> Result<Watch> {
        self.compute.memset_zeros(&mut working.results.slice_mut(..1))?;
        self.compute.join(&self.copies)?;
        let mut watch = self.begin(Lane::Compute, &self.compute)?;
        let (data, bytes) = (held.data as u32, working.memory.len() as u32);
        let room = (working.results.len() - 1) as u32;
        let mut launch = self.compute.launch_builder(&self.hash_words);
        launch.arg(&working.memory).arg(&mut working.results).arg(&data).arg(&bytes).arg(&room);
        // SAFETY: the arguments are the kernel's own, in number, order and size; the buffers are as long as
        // `bytes` and `room` say, and the places in the look-up index are the feeder's.
        unsafe { launch.launch(LaunchConfig::for_num_elems(data)) }.context("cannot launch `hash_words`")?;
        self.end(&mut watch, &self.compute)?;
        Ok(watch)
    }

    fn copy_block(&self, block: &mut Launched, working: &mut Working, spot: Spot) -> Result<Watch> {
        let mut watch = self.begin(Lane::Copy, &self.copies)?;
        for (from, to) in [(block.index(), spot.index), (block.data(), spot.data)] {
            let mut to = working.memory.slice_mut(to..to + from.len());
            let part = Part { whole: block.launching.memory()?, range: from };
            self.copies.memcpy_htod(&part, &mut to)?;
        }
        self.end(&mut watch, &self.copies)?;
        Ok(watch)
    }
}

/// A piece of work on a stream, from one event to another.
struct Watch {
    lane: Lane,
    from: CudaEvent,
    to: Option<CudaEvent>,
}

/// A launching buffer; it goes back to the pool when dropped.
pub struct Launching {
    memory: Option<PinnedHostSlice<u8>>,
    pool: Arc<Pool>,
}

type Launched = Block<Launching>;

impl Launching {
    fn memory(&mut self) -> Result<&mut PinnedHostSlice<u8>> {
        self.memory.as_mut().context("it was dropped")
    }
}

impl Drop for Launching {
    fn drop(&mut self) {
        // A copy from it may be under way: whoever takes it next waits for that.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).extend(self.memory.take());
    }
}

/// A working buffer, its result buffer, and that one's like on the host: the number of words, then their hashes.
pub struct Working {
    memory: CudaSlice<u8>,
    results: CudaSlice<u64>,
    back: PinnedHostSlice<u64>,
}

/// A copy under way.
pub struct Copying {
    watch: Watch,
    _block: Launched,
}

/// A kernel under way.
pub struct Running {
    watch: Watch,
    working: Working,
}

impl Device for Cuda {
    type Launching = Launching;
    type Working = Working;
    type Copying = Copying;
    type Running = Running;
    type Results = Vec<u64>;

    fn launching(&self, bytes: usize) -> Result<Launching, Cause> {
        let kept = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let memory = kept.map_or_else(|| self.pinned(bytes), Ok)?;
        Ok(Launching { memory: Some(memory), pool: self.pool.clone() })
    }

    fn memory<'a>(&self, launching: &'a mut Launching) -> Result<&'a mut [u8], Cause> {
        Ok(launching.memory()?.as_mut_slice()?)
    }

    fn working(&self, bytes: usize) -> Result<Working, Cause> {
        let words = bytes / LEAST + 1;
        // SAFETY: the kernel reads only what was copied there.
        let memory = unsafe { self.copies.alloc(bytes) }?;
        Ok(Working { memory, results: self.compute.alloc_zeros(words)?, back: self.pinned(words)? })
    }

    fn copy(&self, mut block: Launched, working: &mut Working, spot: Spot) -> Result<Copying, Cause> {
        let watch = self.copy_block(&mut block, working, spot)?;
        Ok(Copying { watch, _block: block })
    }

    fn copied(&self, copying: Copying) -> Result<(), Cause> {
        Ok(self.note(copying.watch)?)
    }

    fn process(&self, mut working: Working, held: Extent) -> Result<Running, Cause> {
        let watch = self.launch(&mut working, held)?;
        // Not on the stream of the results: there it would hold up those of the kernel before.
        let mut count = Part { whole: &mut working.back, range: 0..1 };
        self.compute.memcpy_dtoh(&working.results.slice(..1), &mut count)?;
        Ok(Running { watch, working })
    }

    fn processed(&self, running: Running) -> Result<(Working, Vec<u64>), Cause> {
        let Running { watch, mut working } = running;
        self.note(watch)?;
        let hashes = self.fetch(&mut working)?;
        Ok((working, hashes))
    }
}

/// A part of page-locked memory, for copies.
struct Part<'a, T> {
    whole: &'a mut PinnedHostSlice<T>,
    range: Range<usize>,
}

impl<T> HostSlice<T> for Part<'_, T> {
    fn len(&self) -> usize {
        self.range.len()
    }

    unsafe fn stream_synced_slice<'a>(&'a self, stream: &'a CudaStream) -> (&'a [T], SyncOnDrop<'a>) {
        // SAFETY: the caller's promise.
        let (whole, sync) = unsafe { self.whole.stream_synced_slice(stream) };
        (&whole[self.range.clone()], sync)
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        // SAFETY: the caller's promise.
        let (whole, sync) = unsafe { self.whole.stream_synced_mut_slice(stream) };
        (&mut whole[self.range.clone()], sync)
    }
}
