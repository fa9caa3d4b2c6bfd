//! Memory pools: names with settings and counts. The memory itself comes from the tenant's arena, as all
//! other does, and goes back there when it is freed: a pool keeps none.
//!
//! Invariant: what a pool says it uses is the sum of what was allocated from it and not freed.
#![forbid(unsafe_code)]

use parking_lot::Mutex;
use std::collections::HashMap;
use tidegate_ffi::cuda::sys::{CUdevice, CUdeviceptr};

/// A pool's handle, as the program has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolHandle(pub usize);

/// Settings that a program can change and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether memory may be used again by event dependencies, opportunistically, and by dependencies
    /// that the driver adds. Only kept: here it is used again when its work has ended, or in its stream.
    pub reuse: [i32; 3],
    /// Bytes to keep when all is free. Only kept.
    pub release_threshold: u64,
}

/// Bytes in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Now.
    pub current: u64,
    /// The most since this was last reset.
    pub high: u64,
}

struct Pool {
    device: CUdevice,
    is_default: bool,
    /// 0: no limit.
    most: u64,
    settings: Settings,
    used: Usage,
    /// The most that was reserved: the same bytes, reset apart.
    reserved_high: u64,
}

/// All pools of a process.
#[derive(Default)]
pub struct Pools(Mutex<Books>);

#[derive(Default)]
struct Books {
    pools: HashMap<PoolHandle, Pool>,
    made: usize,
    defaults: HashMap<CUdevice, PoolHandle>,
    chosen: HashMap<CUdevice, PoolHandle>,
    memory: HashMap<CUdeviceptr, (PoolHandle, u64)>,
}

/// Handles lie where no address of a process does, so they are none of the driver's.
const FIRST_HANDLE: usize = 0x7464_0000_0000_0000;

impl Pools {
    /// Makes a pool, which may use at most `most` bytes (0: no limit).
    pub fn create(&self, device: CUdevice, most: u64) -> PoolHandle {
        self.0.lock().add(device, false, most)
    }

    /// Ends a pool; what was allocated from it lives on. False: it is none, or a default one.
    pub fn destroy(&self, pool: PoolHandle) -> bool {
        let mut books = self.0.lock();
        if books.pools.get(&pool).is_none_or(|known| known.is_default) {
            return false;
        }
        books.chosen.retain(|_, chosen| *chosen != pool);
        books.pools.remove(&pool).is_some()
    }

    /// The default pool of a device.
    pub fn default_of(&self, device: CUdevice) -> PoolHandle {
        self.0.lock().default_of(device)
    }

    /// The pool that a device's memory comes from where none is named.
    pub fn current_of(&self, device: CUdevice) -> PoolHandle {
        let mut books = self.0.lock();
        match books.chosen.get(&device) {
            Some(chosen) => *chosen,
            None => books.default_of(device),
        }
    }

    /// From now on a device's memory comes from `pool`; false: that is none of this device.
    pub fn choose(&self, device: CUdevice, pool: PoolHandle) -> bool {
        let mut books = self.0.lock();
        let is_its = books.pools.get(&pool).is_some_and(|known| known.device == device);
        if is_its {
            books.chosen.insert(device, pool);
        }
        is_its
    }

    /// The device of a pool; `None`: it is none of ours.
    pub fn device_of(&self, pool: PoolHandle) -> Option<CUdevice> {
        self.0.lock().pools.get(&pool).map(|known| known.device)
    }

    /// Whether a pool may give out `bytes` more.
    pub fn has_room(&self, pool: PoolHandle, bytes: u64) -> bool {
        let books = self.0.lock();
        let fits = |known: &Pool| known.most == 0 || known.used.current.saturating_add(bytes) <= known.most;
        books.pools.get(&pool).is_some_and(fits)
    }

    /// Memory was allocated from a pool.
    pub fn allocated(&self, pool: PoolHandle, address: CUdeviceptr, bytes: u64) {
        let mut books = self.0.lock();
        books.memory.insert(address, (pool, bytes));
        if let Some(known) = books.pools.get_mut(&pool) {
            known.used.current += bytes;
            known.used.high = known.used.high.max(known.used.current);
            known.reserved_high = known.reserved_high.max(known.used.current);
        }
    }

    /// Memory was freed, from a pool or not.
    pub fn freed(&self, address: CUdeviceptr) {
        let mut books = self.0.lock();
        let Some((pool, bytes)) = books.memory.remove(&address) else { return };
        if let Some(known) = books.pools.get_mut(&pool) {
            known.used.current -= bytes;
        }
    }

    /// The pool that memory was allocated from.
    pub fn of(&self, address: CUdeviceptr) -> Option<PoolHandle> {
        self.0.lock().memory.get(&address).map(|(pool, _)| *pool)
    }

    /// A pool's settings.
    pub fn settings(&self, pool: PoolHandle) -> Option<Settings> {
        self.0.lock().pools.get(&pool).map(|known| known.settings)
    }

    /// Changes them.
    pub fn set(&self, pool: PoolHandle, change: impl FnOnce(&mut Settings)) {
        if let Some(known) = self.0.lock().pools.get_mut(&pool) {
            change(&mut known.settings);
        }
    }

    /// What of a pool is used, and what is reserved.
    pub fn usage(&self, pool: PoolHandle) -> Option<[Usage; 2]> {
        let books = self.0.lock();
        let known = books.pools.get(&pool)?;
        Some([known.used, Usage { high: known.reserved_high, ..known.used }])
    }

    /// From now on the most that was used, or reserved, is what is.
    pub fn reset_high(&self, pool: PoolHandle, reserved: bool) {
        if let Some(known) = self.0.lock().pools.get_mut(&pool) {
            let high = if reserved { &mut known.reserved_high } else { &mut known.used.high };
            *high = known.used.current;
        }
    }
}

impl Books {
    fn add(&mut self, device: CUdevice, is_default: bool, most: u64) -> PoolHandle {
        self.made += 1;
        let handle = PoolHandle(FIRST_HANDLE + self.made * 64);
        let settings = Settings { reuse: [1; 3], release_threshold: 0 };
        let used = Usage::default();
        self.pools.insert(handle, Pool { device, is_default, most, settings, used, reserved_high: 0 });
        handle
    }

    fn default_of(&mut self, device: CUdevice) -> PoolHandle {
        if let Some(known) = self.defaults.get(&device) {
            return *known;
        }
        let made = self.add(device, true, 0);
        self.defaults.insert(device, made);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_counts_what_comes_from_it() {
        let pools = Pools::default();
        let pool = pools.create(0, 100);
        pools.allocated(pool, 0x1000, 60);
        assert!(pools.has_room(pool, 40) && !pools.has_room(pool, 41));
        pools.allocated(pool, 0x2000, 40);
        pools.freed(0x1000);
        pools.freed(0x7777);
        let used = Usage { current: 40, high: 100 };
        assert_eq!(pools.usage(pool), Some([used, used]));
        pools.reset_high(pool, false);
        assert_eq!(pools.usage(pool), Some([Usage { current: 40, high: 40 }, used]));
        assert_eq!((pools.of(0x2000), pools.of(0x1000)), (Some(pool), None));
    }

    #[test]
    fn a_devices_pool_is_its_default_until_another_is_chosen() {
        let pools = Pools::default();
        let (default, other) = (pools.default_of(0), pools.create(0, 0));
        assert_eq!((pools.current_of(0), pools.default_of(0)), (default, default));
        assert_ne!(pools.default_of(1), default);
        assert!(pools.choose(0, other) && !pools.choose(1, other));
        assert_eq!(pools.current_of(0), other);
        assert!(pools.destroy(other) && !pools.destroy(other) && !pools.destroy(default));
        assert_eq!(pools.current_of(0), default);
    }
}
