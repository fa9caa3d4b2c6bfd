//! Events, beyond what the driver does in the same words.

use crate::abi::{Event, Out};
use crate::driver::Driver;
use crate::error::Answer;

/// `cudaEventCreate`
pub fn create(driver: &Driver, out: Out<Event>) -> Answer {
    driver.cuEventCreate(out, 0)
}
