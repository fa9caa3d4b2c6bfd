//! Memory that a graph allocates: its address is fixed when the node is made, the memory behind it is
//! there from the first launch on and kept for the next, until it is trimmed or nobody has the node.
//!
//! An allocation is *live* from a launch of its node to its free, by a free node of the same or another
//! launch or by a plain free. While it is live its graph cannot be launched again, unless it was
//! instantiated to free it then.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use cudarc::driver::sys::{CUgraphMem_attribute, CUresult};
use parking_lot::Mutex;

use super::INVALID;
use crate::abi::{Answer, Enum, HostMut, OutAny};
use crate::context;
use crate::memory;
use crate::node;
use crate::pool::{Level, RawProperties};
use crate::space::{self, Kind, Mapping, Region};
use crate::vmm::{Location, Piece};

/// Memory of a graph, at a reserved range.
pub struct Allocation {
    pub start: usize,
    size: usize,
    asked: RawAllocation,
    device: usize,
    /// Whether there is memory behind the range.
    backed: Mutex<bool>,
}

/// How much memory the graphs of a device use, and have. As on hardware both count what is kept for the
/// next launch; only their highest levels begin anew apart.
#[derive(Default)]
struct Amounts {
    used: Level,
    reserved: Level,
}

impl Amounts {
    fn rise(&mut self, bytes: usize) {
        self.used.rise(bytes);
        self.reserved.rise(bytes);
    }

    fn fall(&mut self, bytes: usize) {
        self.used.fall(bytes);
        self.reserved.fall(bytes);
    }
}

/// All allocations by address, and those that are live.
#[derive(Default)]
struct Known {
    all: HashMap<usize, Weak<Allocation>>,
    live: HashMap<usize, Arc<Allocation>>,
    amounts: HashMap<usize, Amounts>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// `CUDA_MEM_ALLOC_NODE_PARAMS` with numbers for its enums.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawAllocation {
    pool: RawProperties,
    access: usize,
    access_count: usize,
    bytes: usize,
    address: u64,
}

impl RawAllocation {
    /// The allocation it asks for; its address is noted.
    pub fn make(&mut self) -> Answer<Arc<Allocation>> {
        let made = Allocation::new(self.pool.device()?, *self)?;
        self.address = made.start as u64;
        Ok(made)
    }
}

impl Allocation {
    fn new(device: usize, asked: RawAllocation) -> Answer<Arc<Allocation>> {
        if asked.bytes == 0 {
            return Err(INVALID);
        }
        let size = memory::whole_pages(asked.bytes)?;
        let start = space::change().reserve(size, memory::PAGE, 0);
        let start = start.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let asked = RawAllocation { address: start as u64, ..asked };
        let made = Arc::new(Allocation { start, size, asked, device, backed: Mutex::new(false) });
        KNOWN.lock().all.insert(start, Arc::downgrade(&made));
        Ok(made)
    }

    /// What its node was asked.
    pub fn describe(&self) -> RawAllocation {
        self.asked
    }

    /// Puts memory behind the range.
    pub fn back(&self) -> Answer {
        let mut backed = self.backed.lock();
        if *backed {
            return Ok(());
        }
        let piece = Arc::new(Piece::create(self.size, Location::Device(self.device), 0)?);
        let kind = Kind::Mapped(Mapping::hidden(piece));
        let mut space = space::change();
        space.add(Region { start: self.start, size: self.size, kind });
        // Software GPUs all reach each other.
        let granted = space.grant(self.start, u64::MAX, true, true);
        granted.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        *backed = true;
        with_amounts(self.device, |amounts| amounts.rise(self.size));
        Ok(())
    }

    /// Takes the memory away; the range stays.
    fn unback(&self) {
        let mut backed = self.backed.lock();
        if std::mem::take(&mut *backed) {
            let region = space::change().unmap(self.start);
            drop(region); // closes a file: not under the lock
            with_amounts(self.device, |amounts| amounts.fall(self.size));
        }
    }

    /// From now on it is live.
    pub fn begin(self: &Arc<Self>) {
        KNOWN.lock().live.insert(self.start, self.clone());
    }

    /// From now on it is not; whether it was.
    pub fn end(&self) -> bool {
        let was = KNOWN.lock().live.remove(&self.start);
        was.is_some()
    }

    /// Whether it has been allocated and not freed.
    pub fn is_live(&self) -> bool {
        KNOWN.lock().live.contains_key(&self.start)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.unback();
        space::change().unreserve(self.start, self.size);
        KNOWN.lock().all.remove(&self.start);
    }
}

fn with_amounts<T>(device: usize, act: impl FnOnce(&mut Amounts) -> T) -> T {
    act(KNOWN.lock().amounts.entry(device).or_default())
}

/// A new allocation for a capture.
pub fn for_capture(bytes: usize, device: usize) -> Answer<Arc<Allocation>> {
    let pool = RawProperties::of_device(device);
    Allocation::new(device, RawAllocation { pool, access: 0, access_count: 0, bytes, address: 0 })
}

/// The allocation of some graph at that address.
pub fn of_address(address: u64) -> Answer<Arc<Allocation>> {
    known(address).ok_or(INVALID)
}

fn known(address: u64) -> Option<Arc<Allocation>> {
    KNOWN.lock().all.get(&(address as usize)).and_then(Weak::upgrade)
}

/// Frees memory of a graph outside of it, if it is some; the graph keeps it for the next launch.
pub fn free(address: u64) -> Answer<bool> {
    match known(address) {
        None => Ok(false),
        Some(allocation) if allocation.end() => Ok(true),
        Some(_) => Err(INVALID),
    }
}

/// `cuDeviceGraphMemTrim`: when the work that may use it is done.
pub fn trim(device: i32) -> Answer {
    node::gpu(device)?;
    context::synchronize_all_of(device as usize)?;
    let all: Vec<_> = KNOWN.lock().all.values().filter_map(Weak::upgrade).collect();
    let idle = all.iter().filter(|one| one.device == device as usize && !one.is_live());
    idle.for_each(|one| one.unback());
    Ok(())
}

/// `cuDeviceGetGraphMemAttribute`
pub fn attribute(device: i32, attribute: Enum<CUgraphMem_attribute>, out: OutAny) -> Answer {
    node::gpu(device)?;
    let value = with_amounts(device as usize, |amounts| match attribute.0 {
        0 => Ok(amounts.used.now()),
        1 => Ok(amounts.used.high()),
        2 => Ok(amounts.reserved.now()),
        3 => Ok(amounts.reserved.high()),
        _ => Err(INVALID),
    });
    out.set(value?);
    Ok(())
}

/// `cuDeviceSetGraphMemAttribute`: the highest levels can be set to 0, to begin anew.
pub fn set_attribute(device: i32, attribute: Enum<CUgraphMem_attribute>, value: HostMut) -> Answer {
    node::gpu(device)?;
    if value.0 == 0 {
        return Err(INVALID);
    }
    with_amounts(device as usize, |amounts| {
        match attribute.0 {
            1 => amounts.used.begin_anew(),
            3 => amounts.reserved.begin_anew(),
            _ => return Err(INVALID),
        }
        Ok(())
    })
}
