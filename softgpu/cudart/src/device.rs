//! What programs ask of devices and their contexts, beyond what the driver answers in the same words.

use crate::abi::Out;
use crate::current;
use crate::driver::Driver;
use crate::error::Answer;

/// The runtime's version: that of the headers its functions are checked against.
const VERSION: i32 = 13000;

/// `cudaRuntimeGetVersion`
pub fn runtime_version(_: &Driver, mut out: Out<i32>) -> Answer {
    out.set(VERSION);
    Ok(())
}

/// `cudaGetDeviceCount`: where there is no GPU the count is said, too.
pub fn count(driver: &Driver, mut out: Out<i32>) -> Answer {
    out.set(0);
    driver.initialise()?;
    driver.cuDeviceGetCount(out)
}

/// `cudaDeviceEnablePeerAccess`
pub fn enable_peer(driver: &Driver, peer: i32, flags: u32) -> Answer {
    driver.cuCtxEnablePeerAccess(current::primary(driver, peer)?, flags)
}

/// `cudaDeviceDisablePeerAccess`
pub fn disable_peer(driver: &Driver, peer: i32) -> Answer {
    driver.cuCtxDisablePeerAccess(current::primary(driver, peer)?)
}
