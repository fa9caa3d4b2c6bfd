//! The current device of each thread, and the devices' primary contexts, retained at first use.
//!
//! A context that the program itself has made current is used as it is. Otherwise a thread gets the
//! primary context of the device it chose, the first one if it chose none.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::abi::{Context, Out};
use crate::driver::Driver;
use crate::error::{self, Answer, Error};

/// A primary context, if this runtime has retained it. A driver may let who makes one wait; only who wants
/// the same one waits with them.
type Primary = Arc<Mutex<Option<usize>>>;

/// The primary contexts by device.
static PRIMARIES: Mutex<BTreeMap<i32, Primary>> = Mutex::new(BTreeMap::new());
/// How often a device was reset: what threads had current before may have gone.
static RESETS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The device that the thread chose.
    static CHOSEN: Cell<i32> = const { Cell::new(0) };
    /// The context that this runtime has made current last, and after how many resets.
    static BOUND: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

fn place_of(device: i32) -> Primary {
    PRIMARIES.lock().entry(device).or_default().clone()
}

/// The primary context of a device.
pub fn primary(driver: &Driver, device: i32) -> Answer<Context> {
    let place = place_of(device);
    let mut retained = place.lock();
    if let Some(context) = *retained {
        return Ok(Context::new(context));
    }
    let mut context = Context::NULL;
    driver.cuDevicePrimaryCtxRetain(Out::to(&mut context), device)?;
    *retained = Some(context.0);
    Ok(context)
}

/// Sees to it that a context is current to this thread.
pub fn bind(driver: &Driver) -> Answer {
    if usable(driver)? {
        return Ok(());
    }
    make_current(driver, CHOSEN.get())
}

/// Whether the thread has a context, and one that was not reset since it got it here.
fn usable(driver: &Driver) -> Answer<bool> {
    let mut context = Context::NULL;
    driver.cuCtxGetCurrent(Out::to(&mut context))?;
    let (bound, resets) = BOUND.get();
    let is_stale = bound == context.0 && resets != RESETS.load(Ordering::Acquire);
    Ok(context.0 != 0 && !is_stale)
}

fn make_current(driver: &Driver, device: i32) -> Answer {
    let resets = RESETS.load(Ordering::Acquire);
    let context = primary(driver, device)?;
    driver.cuCtxSetCurrent(context)?;
    BOUND.set((context.0, resets));
    Ok(())
}

/// The current device, without making a context.
pub fn device(driver: &Driver) -> Answer<i32> {
    let mut device = CHOSEN.get();
    if usable(driver)? {
        driver.cuCtxGetDevice(Out::to(&mut device))?;
    }
    Ok(device)
}

/// `cudaGetDevice`
pub fn get(driver: &Driver, mut out: Out<i32>) -> Answer {
    out.set(device(driver)?);
    Ok(())
}

/// `cudaSetDevice`: the device's context is made at once, so that its failure is seen here.
pub fn set(driver: &Driver, device: i32) -> Answer {
    let mut count = 0;
    driver.cuDeviceGetCount(Out::to(&mut count))?;
    if !(0..count).contains(&device) {
        return Err(Error::INVALID_DEVICE);
    }
    CHOSEN.set(device);
    make_current(driver, device)
}

/// `cudaInitDevice`
pub fn initialise(driver: &Driver, device: i32, device_flags: u32, flags: u32) -> Answer {
    const FLAGS_ARE_VALID: u32 = 1;
    if flags & FLAGS_ARE_VALID != 0 {
        driver.cuDevicePrimaryCtxSetFlags(device, device_flags)?;
    }
    primary(driver, device).map(drop)
}

/// `cudaDeviceReset`: all that the device's primary context had is gone, also for other threads.
pub fn reset(driver: &Driver) -> Answer {
    let device = device(driver)?;
    driver.cuDevicePrimaryCtxReset(device)?;
    place_of(device).lock().take();
    RESETS.fetch_add(1, Ordering::Release);
    error::forget();
    Ok(())
}

/// `cudaSetDeviceFlags`
pub fn set_flags(driver: &Driver, flags: u32) -> Answer {
    driver.cuDevicePrimaryCtxSetFlags(device(driver)?, flags)
}

/// `cudaGetDeviceFlags`
pub fn flags(driver: &Driver, out: Out<u32>) -> Answer {
    let mut active = 0;
    driver.cuDevicePrimaryCtxGetState(device(driver)?, out, Out::to(&mut active))
}
