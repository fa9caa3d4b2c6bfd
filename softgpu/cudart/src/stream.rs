//! Streams, beyond what the driver does in the same words.

use crate::abi::{Out, Stream};
use crate::driver::Driver;
use crate::error::Answer;

/// `cudaStreamCreate`
pub fn create(driver: &Driver, out: Out<Stream>) -> Answer {
    driver.cuStreamCreate(out, 0)
}
