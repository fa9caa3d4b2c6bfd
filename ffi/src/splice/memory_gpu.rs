//! A GPU in plain memory, for tests.
//!
//! It is strict: memory that nobody wrote is poison, bytes that one operation writes while another one uses them
//! are an error, and so is a datum outside of what the buffer is said to hold, and a result that is fetched
//! twice or before it is there. Its kernel returns the data.

use super::Cause;
use super::block::{Block, Place};
use super::cursor::{ELEMENT, Extent, Spot};
use super::feed::Device;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use zerocopy::FromBytes;

const POISON: u8 = 0xee;
/// The results, as somebody uses them: all or nothing.
const RESULTS: Range<usize> = 0..1;

/// What happens on the GPU, as a test may watch it or hold it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Copying,
    Copied,
    Processing,
    Fetching,
}

type Watch = Box<dyn Fn(Step) + Send + Sync>;

pub struct MemoryGpu {
    watch: Watch,
    pub launching: Count,
    pub working: Count,
    /// The call of the trait, counted from 0, that fails.
    pub fails: Option<(&'static str, usize)>,
    calls: Mutex<Vec<&'static str>>,
}

impl MemoryGpu {
    pub fn new(watch: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self {
            watch: Box::new(watch),
            launching: Count::default(),
            working: Count::default(),
            fails: None,
            calls: Mutex::default(),
        }
    }

    /// How often a function of the trait was called.
    pub fn calls_of(&self, name: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| **call == name).count()
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

pub struct Working {
    memory: Mutex<Buffer>,
    results: Mutex<Option<Vec<Vec<u8>>>>,
    memory_users: Users,
    results_users: Users,
}

/// Who uses which bytes at the moment, and whether to write them.
#[derive(Default)]
struct Users(Mutex<Vec<Use>>);

type Use = (Range<usize>, bool);

/// Bytes that are used until this is dropped.
struct InUse<'a>(&'a Users, Vec<Use>);

impl Users {
    fn reads(&self, ranges: &[Range<usize>]) -> Result<InUse<'_>, Cause> {
        self.begin(ranges.iter().map(|range| (range.clone(), false)).collect())
    }

    fn writes(&self, ranges: &[Range<usize>]) -> Result<InUse<'_>, Cause> {
        self.begin(ranges.iter().map(|range| (range.clone(), true)).collect())
    }

    fn begin(&self, uses: Vec<Use>) -> Result<InUse<'_>, Cause> {
        let mut users = self.0.lock().unwrap();
        let collide = |(one, writes): &Use, (other, also): &Use| {
            (*writes || *also) && one.start.max(other.start) < one.end.min(other.end)
        };
        if uses.iter().any(|one| users.iter().any(|other| collide(one, other))) {
            return Err(format!("{uses:?} begins during {users:?}").into());
        }
        users.extend(uses.iter().cloned());
        Ok(InUse(self, uses))
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let mut users = self.0.0.lock().unwrap();
        for ended in &self.1 {
            let at = users.iter().position(|user| user == ended).expect("it is in use");
            users.swap_remove(at);
        }
    }
}

impl Device for MemoryGpu {
    type Lane = ();
    type Launching = Buffer;
    type Working = Working;
    type Results = Vec<Vec<u8>>;

    fn lane(&self) -> Result<(), Cause> {
        self.call("lane")
    }

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
        Ok(Working {
            memory: Mutex::new(self.working.buffer(bytes)),
            results: Mutex::default(),
            memory_users: Users::default(),
            results_users: Users::default(),
        })
    }

    fn copy(
        &self,
        _: &mut (),
        block: &mut Block<Buffer>,
        working: &Working,
        spot: Spot,
    ) -> Result<(), Cause> {
        self.call("copy")?;
        let runs = [(block.index(), spot.index), (block.data(), spot.data)];
        let to = runs.clone().map(|(from, to)| to..to + from.len());
        let in_use = working.memory_users.writes(&to)?;
        (self.watch)(Step::Copying);
        for ((from, _), to) in runs.into_iter().zip(to) {
            let mut memory = working.memory.lock().unwrap();
            let room = memory.bytes.get_mut(to).ok_or("a copy past the buffer's end")?;
            room.copy_from_slice(&block.launching.bytes[from]);
        }
        drop(in_use);
        (self.watch)(Step::Copied);
        Ok(())
    }

    fn process(&self, _: &mut (), working: &Working, held: Extent) -> Result<(), Cause> {
        self.call("process")?;
        let lowest = working.memory.lock().unwrap().bytes.len() - held.bytes;
        let _reads = working.memory_users.reads(&[0..held.data * ELEMENT, lowest..lowest + held.bytes])?;
        let _writes = working.results_users.writes(&[RESULTS])?;
        (self.watch)(Step::Processing);
        let results = working.take(held, lowest)?;
        let before = working.results.lock().unwrap().replace(results);
        before.is_none().then_some(()).ok_or_else(|| "results that nobody fetched are lost".into())
    }

    fn fetch(&self, _: &mut (), working: &Working) -> Result<Vec<Vec<u8>>, Cause> {
        self.call("fetch")?;
        let _reads = working.results_users.reads(&[RESULTS])?;
        (self.watch)(Step::Fetching);
        let results = working.results.lock().unwrap().take();
        results.ok_or_else(|| "results that are not there".into())
    }
}

impl Working {
    /// What it holds; then that is poison.
    fn take(&self, held: Extent, lowest: usize) -> Result<Vec<Vec<u8>>, Cause> {
        let mut memory = self.memory.lock().unwrap();
        let datum = |index: usize| {
            let place = Place::read_from_bytes(&memory.bytes[index * ELEMENT..][..ELEMENT]).unwrap().range();
            let is_held = place.start >= lowest;
            let datum = memory.bytes.get(place).filter(|_| is_held);
            Ok(datum.ok_or("a datum outside of what the buffer holds")?.to_vec())
        };
        let data = (0..held.data).map(datum).collect();
        memory.bytes[..held.data * ELEMENT].fill(POISON);
        memory.bytes[lowest..].fill(POISON);
        data
    }
}
