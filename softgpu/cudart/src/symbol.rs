//! Variables of the program's images, by the host addresses that stand for them.

use crate::abi::{Address, ConstAddress, Host, Out, Stream};
use crate::copy::{self, Kind, Way};
use crate::driver::Driver;
use crate::error::{Answer, Error};
use crate::register;

/// `cudaGetSymbolAddress`
pub fn address(driver: &Driver, mut out: Out<Address>, symbol: Host) -> Answer {
    out.set(register::find_variable(driver, symbol)?.0);
    Ok(())
}

/// `cudaGetSymbolSize`
pub fn size(driver: &Driver, mut out: Out<usize>, symbol: Host) -> Answer {
    out.set(register::find_variable(driver, symbol)?.1);
    Ok(())
}

/// Where in a variable so many bytes at an offset lie.
fn place(driver: &Driver, symbol: Host, bytes: usize, offset: usize) -> Answer<Address> {
    let (address, size) = register::find_variable(driver, symbol)?;
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= size);
    if fits { Ok(Address(address.0 + offset as u64)) } else { Err(Error::INVALID_VALUE) }
}

/// The direction of a copy into a variable, or out of one: only two kinds make sense, and the default.
fn way(kind: Kind, sensible: Way) -> Answer<Way> {
    let way = Way::of(kind)?;
    let fits = [sensible, Way::Within, Way::Any].contains(&way);
    if fits { Ok(way) } else { Err(Error::INVALID_DIRECTION) }
}

/// `cudaMemcpyToSymbol`
pub fn write(
    driver: &Driver,
    symbol: Host,
    from: ConstAddress,
    bytes: usize,
    offset: usize,
    kind: Kind,
) -> Answer {
    let way = way(kind, Way::ToDevice)?;
    copy::copy(driver, place(driver, symbol, bytes, offset)?, from, bytes, way)
}

/// `cudaMemcpyToSymbolAsync`
pub fn write_async(
    driver: &Driver,
    symbol: Host,
    from: ConstAddress,
    bytes: usize,
    offset: usize,
    kind: Kind,
    stream: Stream,
) -> Answer {
    let way = way(kind, Way::ToDevice)?;
    copy::copy_async(driver, place(driver, symbol, bytes, offset)?, from, bytes, way, stream)
}

/// `cudaMemcpyFromSymbol`
pub fn read(driver: &Driver, to: Address, symbol: Host, bytes: usize, offset: usize, kind: Kind) -> Answer {
    let way = way(kind, Way::ToHost)?;
    copy::copy(driver, to, place(driver, symbol, bytes, offset)?.to_read(), bytes, way)
}

/// `cudaMemcpyFromSymbolAsync`
pub fn read_async(
    driver: &Driver,
    to: Address,
    symbol: Host,
    bytes: usize,
    offset: usize,
    kind: Kind,
    stream: Stream,
) -> Answer {
    let way = way(kind, Way::ToHost)?;
    copy::copy_async(driver, to, place(driver, symbol, bytes, offset)?.to_read(), bytes, way, stream)
}
