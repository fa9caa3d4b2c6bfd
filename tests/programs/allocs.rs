//! Says what an allocation and its free take: `allocs BYTES TIMES` prints the median, in nanoseconds.

use cudarc::driver::result;
use std::time::Instant;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|number| number.parse().unwrap()).collect();
    let [bytes, times] = numbers[..] else { panic!("BYTES TIMES") };
    result::init().unwrap();
    let device = result::device::get(0).unwrap();
    // SAFETY: the device comes from the driver.
    let context = unsafe { result::primary_ctx::retain(device) }.unwrap();
    // SAFETY: the context was retained and is never released.
    unsafe { result::ctx::set_current(context) }.unwrap();
    let mut taken: Vec<u128> = (0..times).map(|_| once(bytes)).collect();
    taken.sort_unstable();
    println!("{}", taken[times / 2]);
}

fn once(bytes: usize) -> u128 {
    let began = Instant::now();
    // SAFETY: a context is current.
    let address = unsafe { result::malloc_sync(bytes) }.unwrap();
    // SAFETY: it was allocated above, and is freed once.
    unsafe { result::free_sync(address) }.unwrap();
    began.elapsed().as_nanos()
}
