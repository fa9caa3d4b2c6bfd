//! The driver's functions, for programs that ask the runtime for them.

use cudarc::driver::sys::CUdriverProcAddressQueryResult as Found;
use cudarc::runtime::sys::cudaDriverEntryPointQueryResult;

use crate::abi::{Enum, HostMut, Maybe, Out, Text};
use crate::driver::Driver;
use crate::error::{Answer, Error};

/// `cudaDriverEntryPointQueryResult`
pub type Status = Enum<Found, cudaDriverEntryPointQueryResult>;

/// The version of the headers that a program without its own is compiled with.
const VERSION: u32 = 13000;

/// `cudaGetDriverEntryPoint`
pub fn get(driver: &Driver, name: Text, out: Out<HostMut>, flags: u64, status: Maybe<Status>) -> Answer {
    get_by_version(driver, name, out, VERSION, flags, status)
}

/// `cudaGetDriverEntryPointByVersion`: by default with the default streams of the one who asks. Who wants
/// the status gets a missing function told by it alone.
pub fn get_by_version(
    driver: &Driver,
    name: Text,
    mut out: Out<HostMut>,
    version: u32,
    flags: u64,
    mut status: Maybe<Status>,
) -> Answer {
    let flags = if flags == 0 { driver.streams().flags() } else { flags };
    let (found, said) = driver.address(name.get(), version as i32, flags);
    out.set(HostMut(found as usize));
    status.set(Enum::new(said));
    if found.is_null() && !status.wanted() { Err(Error::NOT_FOUND) } else { Ok(()) }
}
