//! The CUDA device that the feeder feeds: each lane of its queue is a stream.
//!
//! An operation gives its work to its lane's stream and waits until that is done. That is all the order there is
//! between streams: cudarc's events, by which a stream waits for what another one writes, are turned off. The
//! events here only tell the time.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
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
    /// Where working buffers are made and freed.
    buffers: Arc<CudaStream>,
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
        // SAFETY: what cudarc asks for then: no two streams write the same bytes at once, since the feeder has its
        // queue know what each operation writes; a buffer is used when it is allocated, for which `working` waits,
        // and freed when nothing uses it any more, for which each operation waits.
        unsafe { context.disable_event_tracking() };
        let buffers = context.new_stream()?;
        let zero = buffers.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        buffers.synchronize()?;
        let (timeline, pool) = (Arc::new(Timeline::start()), Arc::default());
        Ok(Self { context, buffers, hash_words, pool, timeline, zero })
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
        let mut to = self.buffers.alloc_zeros::<u8>(piece)?;
        self.buffers.memcpy_htod(&from, &mut to)?;
        self.buffers.synchronize()?;
        let begun = self.timeline.now();
        for start in (0..bytes).step_by(piece) {
            let part = Part { whole: &mut from, range: 0..piece.min(bytes - start) };
            self.buffers.memcpy_htod(&part, &mut to)?;
        }
        self.buffers.synchronize()?;
        Ok(self.timeline.now() - begun)
    }

    /// Page-locked memory of so many numbers, that the host may also read fast.
    fn pinned<T: cudarc::driver::DeviceRepr>(&self, count: usize) -> Result<PinnedHostSlice<T>> {
        // SAFETY: numbers have no invalid bits. It is written before it is read: launching buffers by the
        // preprocessor, results by the device.
        Ok(unsafe { self.context.alloc_pinned_with_flags(count, 0) }?)
    }

    /// Gives work to a stream, waits until it is done, and takes down when that was.
    fn run(&self, lane: Lane, stream: &Arc<CudaStream>, give: impl FnOnce() -> Result<()>) -> Result<()> {
        let from = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        let (given, to) = (give(), stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)));
        stream.synchronize()?;
        given?;
        let to = to?;
        let seconds =
            |event: &CudaEvent| Ok::<_, anyhow::Error>(f64::from(self.zero.elapsed_ms(event)?) / 1e3);
        self.timeline.add(lane, seconds(&from)?, seconds(&to)?);
        Ok(())
    }

    fn launch(&self, stream: &Arc<CudaStream>, working: &Working, held: Extent) -> Result<()> {
        let (memory, mut results) = (lock(&working.memory), lock(&working.results));
        let Results { device: results, .. } = &mut *results;
        stream.memset_zeros(&mut results.slice_mut(..1))?;
        let (data, bytes) = (held.data as u32, memory.len() as u32);
        let room = (results.len() - 1) as u32;
        let mut launch = stream.launch_builder(&self.hash_words);
        launch.arg(&*memory).arg(results).arg(&data).arg(&bytes).arg(&room);
        // SAFETY: the arguments are the kernel's own, in number, order and size; the buffers are as long as
        // `bytes` and `room` say, and the places in the look-up index are the feeder's.
        unsafe { launch.launch(LaunchConfig::for_num_elems(data)) }.context("cannot launch `hash_words`")?;
        Ok(())
    }

    /// Copies some of the results to the host.
    fn bring_back(
        &self,
        stream: &Arc<CudaStream>,
        results: &mut Results,
        numbers: Range<usize>,
    ) -> Result<()> {
        self.run(Lane::Results, stream, || {
            let mut part = Part { whole: &mut results.host, range: numbers.clone() };
            Ok(stream.memcpy_dtoh(&results.device.slice(numbers), &mut part)?)
        })
    }
}

/// Locked only while work is given to a stream, or by who alone uses the memory: nobody waits long.
fn lock<T>(memory: &Mutex<T>) -> MutexGuard<'_, T> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A launching buffer; it goes back to the pool when dropped.
pub struct Launching {
    memory: Option<PinnedHostSlice<u8>>,
    pool: Arc<Pool>,
}

impl Launching {
    fn memory(&mut self) -> Result<&mut PinnedHostSlice<u8>> {
        self.memory.as_mut().context("it was dropped")
    }
}

impl Drop for Launching {
    fn drop(&mut self) {
        lock(&self.pool).extend(self.memory.take());
    }
}

/// A working buffer and its result buffer.
pub struct Working {
    memory: Mutex<CudaSlice<u8>>,
    results: Mutex<Results>,
}

/// The number of words, then their hashes; on the GPU, and on the host.
struct Results {
    device: CudaSlice<u64>,
    host: PinnedHostSlice<u64>,
}

impl Device for Cuda {
    type Lane = Arc<CudaStream>;
    type Launching = Launching;
    type Working = Working;
    type Results = Vec<u64>;

    fn lane(&self) -> Result<Arc<CudaStream>, Cause> {
        Ok(self.context.new_stream()?)
    }

    fn launching(&self, bytes: usize) -> Result<Launching, Cause> {
        let kept = lock(&self.pool).pop();
        let memory = kept.map_or_else(|| self.pinned(bytes), Ok)?;
        Ok(Launching { memory: Some(memory), pool: self.pool.clone() })
    }

    fn memory<'a>(&self, launching: &'a mut Launching) -> Result<&'a mut [u8], Cause> {
        Ok(launching.memory()?.as_mut_slice()?)
    }

    fn working(&self, bytes: usize) -> Result<Working, Cause> {
        let words = bytes / LEAST + 1;
        // SAFETY: the kernel reads only what was copied there.
        let memory = unsafe { self.buffers.alloc(bytes) }?;
        let results = Results { device: self.buffers.alloc_zeros(words)?, host: self.pinned(words)? };
        self.buffers.synchronize()?;
        Ok(Working { memory: Mutex::new(memory), results: Mutex::new(results) })
    }

    fn copy(
        &self,
        stream: &mut Arc<CudaStream>,
        block: &mut Block<Launching>,
        working: &Working,
        spot: Spot,
    ) -> Result<(), Cause> {
        let runs = [(block.index(), spot.index), (block.data(), spot.data)];
        let from = block.launching.memory()?;
        Ok(self.run(Lane::Copy, stream, || {
            let mut memory = lock(&working.memory);
            for (range, to) in runs {
                let mut to = memory.slice_mut(to..to + range.len());
                stream.memcpy_htod(&Part { whole: from, range }, &mut to)?;
            }
            Ok(())
        })?)
    }

    fn process(&self, stream: &mut Arc<CudaStream>, working: &Working, held: Extent) -> Result<(), Cause> {
        Ok(self.run(Lane::Compute, stream, || self.launch(stream, working, held))?)
    }

    fn fetch(&self, stream: &mut Arc<CudaStream>, working: &Working) -> Result<Vec<u64>, Cause> {
        let mut results = lock(&working.results);
        self.bring_back(stream, &mut results, 0..1)?;
        let (count, room) = (results.host.as_slice()?[0] as usize, results.host.len() - 1);
        if count > room {
            return Err(format!("{count} words in a result buffer of {room}").into());
        }
        let hashes = 1..count + 1;
        if count > 0 {
            self.bring_back(stream, &mut results, hashes.clone())?;
        }
        Ok(results.host.as_slice()?[hashes].to_vec())
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
