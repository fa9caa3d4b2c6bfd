//! A GPU in plain memory, for tests: a copy engine and a compute engine, each a thread with a queue.
//!
//! It is strict: memory that nobody wrote is poison, a copy into a buffer that is being processed is an
//! error, and so is a datum outside of what the buffer is said to hold. Its kernel returns the data.

use super::Cause;
use super::block::{Block, Place};
use super::cursor::{ELEMENT, Extent, Spot};
use super::feed::Device;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use zerocopy::FromBytes;

const POISON: u8 = 0xee;

/// What happens on the GPU, as a test may watch it or hold it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Copied,
    Processing,
}

type Watch = Arc<dyn Fn(Step) + Send + Sync>;
type Job = Box<dyn FnOnce() + Send>;

pub struct MemoryGpu {
    copies: Engine,
    compute: Engine,
    watch: Watch,
    pub launching: Count,
    pub working: Count,
    /// The call of the trait, counted from 0, that fails; or whose work does.
    pub fails: Option<(&'static str, usize)>,
    calls: Mutex<Vec<&'static str>>,
}

impl MemoryGpu {
    pub fn new(watch: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self {
            copies: Engine::start(),
            compute: Engine::start(),
            watch: Arc::new(watch),
            launching: Count::default(),
            working: Count::default(),
            fails: None,
            calls: Mutex::default(),
        }
    }

    fn call(&self, name: &'static str) -> Result<(), Cause> {
        let mut calls = self.calls.lock().unwrap();
        let before = calls.iter().filter(|call| **call == name).count();
        calls.push(name);
        let fails = self.fails == Some((name, before));
        (!fails).then_some(()).ok_or_else(|| format!("a fault in call {before} of {name}").into())
    }
}

/// How many of a kind of buffer there are, and were at most.
#[derive(Clone, Default)]
pub struct Count(Arc<(AtomicUsize, AtomicUsize)>);

impl Count {
    pub fn now(&self) -> usize {
        self.0.0.load(SeqCst)
    }

    pub fn most(&self) -> usize {
        self.0.1.load(SeqCst)
    }

    fn buffer(&self, bytes: usize) -> Buffer {
        self.0.1.fetch_max(self.0.0.fetch_add(1, SeqCst) + 1, SeqCst);
        Buffer { bytes: vec![POISON; bytes], count: self.clone() }
    }
}

pub struct Buffer {
    bytes: Vec<u8>,
    count: Count,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.count.0.0.fetch_sub(1, SeqCst);
    }
}

#[derive(Clone)]
pub struct Working {
    memory: Arc<Mutex<Buffer>>,
    is_processed: Arc<AtomicBool>,
}

/// Work under way: what it will say, and the buffer that it uses. Dropping it waits.
pub struct Pending<T, B> {
    said: Receiver<Result<T, Cause>>,
    buffer: Option<B>,
}

impl<T, B> Pending<T, B> {
    fn new(said: Receiver<Result<T, Cause>>, buffer: B) -> Self {
        Self { said, buffer: Some(buffer) }
    }

    fn wait(mut self) -> Result<(T, B), Cause> {
        let said = self.said.recv().map_err(|_| "the engine has stopped")?;
        Ok((said?, self.buffer.take().expect("it is taken once")))
    }
}

impl<T, B> Drop for Pending<T, B> {
    fn drop(&mut self) {
        let _ = self.said.recv();
    }
}

impl Device for MemoryGpu {
    type Launching = Buffer;
    type Working = Working;
    type Copying = Pending<(), Arc<Block<Buffer>>>;
    type Running = Pending<Vec<Vec<u8>>, Working>;
    type Results = Vec<Vec<u8>>;

    fn launching(&self, bytes: usize) -> Result<Buffer, Cause> {
        self.call("launching")?;
        Ok(self.launching.buffer(bytes))
    }

    fn memory<'a>(&self, launching: &'a mut Buffer) -> Result<&'a mut [u8], Cause> {
        self.call("memory")?;
        Ok(&mut launching.bytes)
    }

    fn working(&self, bytes: usize) -> Result<Working, Cause> {
        self.call("working")?;
        let memory = Arc::new(Mutex::new(self.working.buffer(bytes)));
        Ok(Working { memory, is_processed: Arc::default() })
    }

    fn copy(&self, block: Block<Buffer>, working: &mut Working, spot: Spot) -> Result<Self::Copying, Cause> {
        self.call("copy")?;
        let (saying, said) = channel();
        let block = Arc::new(block);
        let (from, to, watch) = (block.clone(), working.clone(), self.watch.clone());
        let fault = self.call("copied");
        self.copies.submit(move || {
            let copied = fault.and_then(|()| to.take(&from, spot));
            watch(Step::Copied);
            drop((from, to));
            let _ = saying.send(copied);
        });
        Ok(Pending::new(said, block))
    }

    fn copied(&self, copying: Self::Copying) -> Result<(), Cause> {
        copying.wait().map(drop)
    }

    fn process(&self, working: Working, held: Extent) -> Result<Self::Running, Cause> {
        self.call("process")?;
        let (saying, said) = channel();
        let (copied, copies) = channel();
        self.copies.submit(move || drop(copied));
        let (from, watch, fault) = (working.clone(), self.watch.clone(), self.call("processed"));
        self.compute.submit(move || {
            let _ = copies.recv() as Result<(), _>;
            from.is_processed.store(true, SeqCst);
            watch(Step::Processing);
            let results = fault.and_then(|()| from.read(held));
            from.is_processed.store(false, SeqCst);
            drop(from);
            let _ = saying.send(results);
        });
        Ok(Pending::new(said, working))
    }

    fn processed(&self, running: Self::Running) -> Result<(Working, Vec<Vec<u8>>), Cause> {
        running.wait().map(|(results, working)| (working, results))
    }
}

impl Working {
    fn take(&self, block: &Block<Buffer>, spot: Spot) -> Result<(), Cause> {
        if self.is_processed.load(SeqCst) {
            return Err("a copy into a buffer that is being processed".into());
        }
        let mut memory = self.memory.lock().unwrap();
        for (from, to) in [(block.index(), spot.index), (block.data(), spot.data)] {
            let from = &block.launching.bytes[from];
            let room = memory.bytes.get_mut(to..to + from.len()).ok_or("a copy past the buffer's end")?;
            room.copy_from_slice(from);
        }
        Ok(())
    }

    fn read(&self, held: Extent) -> Result<Vec<Vec<u8>>, Cause> {
        let mut memory = self.memory.lock().unwrap();
        let lowest = memory.bytes.len() - held.bytes;
        let datum = |index: usize| {
            let place = Place::read_from_bytes(&memory.bytes[index * ELEMENT..][..ELEMENT]).unwrap().range();
            let is_held = place.start >= lowest;
            let datum = memory.bytes.get(place).filter(|_| is_held);
            Ok(datum.ok_or("a datum outside of what the buffer holds")?.to_vec())
        };
        let data = (0..held.data).map(datum).collect();
        memory.bytes.fill(POISON);
        data
    }
}

/// A thread that does what it is given, in order.
struct Engine {
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    fn start() -> Self {
        let (queue, jobs) = channel::<Job>();
        let thread = thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Self { queue: Some(queue), thread: Some(thread) }
    }

    fn submit(&self, job: impl FnOnce() + Send + 'static) {
        self.queue.as_ref().expect("it runs until it is dropped").send(Box::new(job)).unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.queue = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
