//! Managed memory: one address for host and devices. Here it is host memory that every GPU reaches, so
//! nothing migrates and none of it counts as a GPU's; what is advised is kept for who asks.

use std::collections::HashMap;
use std::sync::LazyLock;

use cudarc::driver::sys::{CUmem_advise, CUmem_range_attribute as Attribute, CUresult, CUstream};
use parking_lot::Mutex;

use crate::abi::{Answer, Enum, InMut, ListMut, Mirror, Out, OutAny, OutAnys};
use crate::context;
use crate::memory;
use crate::node;
use crate::space::{self, Kind, Region};
use crate::stream;
use crate::vmm::{Location, RawLocation};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const CPU: i32 = -1;
const NOWHERE: i32 = -2;
const GLOBAL: u32 = 1;
const HOST: u32 = 2;
const SINGLE: u32 = 4;

/// What has been advised about an allocation. Places are ordinals, [`CPU`] or [`NOWHERE`].
#[derive(Clone)]
struct Advice {
    read_mostly: bool,
    preferred: i32,
    accessed_by: Vec<i32>,
    last_prefetch: i32,
}

impl Advice {
    const NONE: Advice =
        Advice { read_mostly: false, preferred: NOWHERE, accessed_by: Vec::new(), last_prefetch: NOWHERE };
}

static ADVICE: LazyLock<Mutex<HashMap<usize, Advice>>> = LazyLock::new(Mutex::default);

/// `cuMemAllocManaged`
pub fn alloc(out: Out<u64>, bytes: usize, flags: u32) -> Answer {
    let context = context::current()?;
    if bytes == 0 || !matches!(flags, GLOBAL | HOST) {
        return Err(INVALID);
    }
    let start = space::map_host(memory::whole_pages(bytes)?);
    let start = start.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let kind = Kind::Managed { context: context.handle, device: context.device };
    space::change().add(Region { start, size: bytes, kind });
    ADVICE.lock().insert(start, Advice::NONE);
    out.set(start as u64);
    Ok(())
}

/// Whether an allocation of managed memory begins there.
pub fn find(address: u64) -> bool {
    let space = space::look();
    let region = space.find(address as usize).filter(|region| region.start == address as usize);
    region.is_some_and(|region| matches!(region.kind, Kind::Managed { .. }))
}

/// Frees an allocation that no work uses any more.
pub fn free(address: u64) -> Answer {
    let managed = |region: &Region| matches!(region.kind, Kind::Managed { .. });
    let region = space::change().take(address as usize, managed).ok_or(INVALID)?;
    ADVICE.lock().remove(&region.start);
    memory::give_back(region);
    Ok(())
}

/// The allocation that contains a range.
fn containing(address: u64, bytes: usize) -> Answer<usize> {
    let start = address as usize;
    let space = space::look();
    let region = space.find(start).filter(|region| matches!(region.kind, Kind::Managed { .. }));
    let region = region.ok_or(INVALID)?;
    let end = start.checked_add(bytes).ok_or(INVALID)?;
    if bytes > 0 && end <= region.end() { Ok(region.start) } else { Err(INVALID) }
}

fn advise_at(address: u64, bytes: usize, act: impl FnOnce(&mut Advice)) -> Answer {
    let start = containing(address, bytes)?;
    act(ADVICE.lock().entry(start).or_insert(Advice::NONE));
    Ok(())
}

/// The place a location names, as the number by which attributes name it.
fn place(location: RawLocation) -> Answer<i32> {
    Ok(match location.resolve()? {
        Location::Device(ordinal) => ordinal as i32,
        Location::Host(..) => CPU,
    })
}

fn check_device(device: i32) -> Answer<i32> {
    if device != CPU {
        node::gpu(device)?;
    }
    Ok(device)
}

/// `cuMemPrefetchAsync` of before CUDA 12.2 gives a device, `cuMemPrefetchAsync_v2` a location.
pub fn prefetch(address: u64, bytes: usize, device: i32, stream: CUstream) -> Answer {
    stream::resolve(stream)?;
    let device = check_device(device)?;
    advise_at(address, bytes, |advice| advice.last_prefetch = device)
}

/// `cuMemPrefetchAsync_v2`
pub fn prefetch_to(
    address: u64,
    bytes: usize,
    location: RawLocation,
    flags: u32,
    stream: CUstream,
) -> Answer {
    if flags != 0 {
        return Err(INVALID);
    }
    prefetch(address, bytes, place(location)?, stream)
}

/// `cuMemAdvise` of before CUDA 12.2
pub fn advise(address: u64, bytes: usize, advice: Enum<CUmem_advise>, device: i32) -> Answer {
    // For the advice about reading the device means nothing.
    let device = if advice.0 <= 2 { device } else { check_device(device)? };
    let known = (1..=6).contains(&advice.0);
    known.then_some(()).ok_or(INVALID)?;
    advise_at(address, bytes, |own| match advice.0 {
        1 | 2 => own.read_mostly = advice.0 == 1,
        3 => own.preferred = device,
        4 => own.preferred = NOWHERE,
        5 if !own.accessed_by.contains(&device) => own.accessed_by.push(device),
        6 => own.accessed_by.retain(|other| *other != device),
        _ => {}
    })
}

/// `cuMemAdvise_v2`
pub fn advise_at_location(
    address: u64,
    bytes: usize,
    advice: Enum<CUmem_advise>,
    location: RawLocation,
) -> Answer {
    let device = if advice.0 <= 2 { CPU } else { place(location)? };
    advise(address, bytes, advice, device)
}

fn answer(advice: &Advice, attribute: u32, out: &OutAny, bytes: usize) -> Answer {
    const ACCESSED_BY: u32 = Attribute::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY as u32;
    let value = match attribute {
        1 => i32::from(advice.read_mostly),
        2 => advice.preferred,
        4 => advice.last_prefetch,
        ACCESSED_BY if bytes > 0 && bytes.is_multiple_of(4) => {
            let padded = advice.accessed_by.iter().copied().chain(std::iter::repeat(NOWHERE));
            out.set_many(padded.take(bytes / 4));
            return Ok(());
        }
        _ => return Err(INVALID),
    };
    if bytes == 4 {
        out.set(value);
        return Ok(());
    }
    Err(INVALID)
}

/// `cuMemRangeGetAttribute`
pub fn attribute(out: OutAny, size: usize, attribute: Enum<Attribute>, address: u64, bytes: usize) -> Answer {
    let start = containing(address, bytes)?;
    let advice = ADVICE.lock().get(&start).cloned().unwrap_or(Advice::NONE);
    answer(&advice, attribute.0, &out, size)
}

/// An attribute's number: C may ask for any.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct RawAttribute(u32);

impl Mirror for RawAttribute {
    type Of = Attribute;
}

/// `cuMemRangeGetAttributes`
pub fn attributes(
    out: OutAnys,
    sizes: ListMut<usize>,
    attributes: InMut<RawAttribute>,
    count: usize,
    address: u64,
    bytes: usize,
) -> Answer {
    let start = containing(address, bytes)?;
    let advice = ADVICE.lock().get(&start).cloned().unwrap_or(Advice::NONE);
    let (sizes, attributes) = (sizes.many(count)?, attributes.many(count));
    for ((out, size), attribute) in out.many(count).into_iter().zip(sizes).zip(attributes) {
        answer(&advice, attribute.0, &out.ok_or(INVALID)?, size)?;
    }
    Ok(())
}

/// `cuStreamAttachMemAsync`: host and devices see the memory at all times here.
pub fn attach(stream: CUstream, address: u64, bytes: usize, flags: u32) -> Answer {
    stream::resolve(stream)?;
    if !matches!(flags, GLOBAL | HOST | SINGLE) {
        return Err(INVALID);
    }
    containing(address, bytes.max(1)).map(drop)
}

/// `cuMemPrefetchBatchAsync`: each range to the last location whose index is not after it.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub fn prefetch_batch(
    addresses: ListMut<u64>,
    sizes: ListMut<usize>,
    count: usize,
    locations: InMut<RawLocation>,
    indices: ListMut<usize>,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> Answer {
    let (locations, indices) = (locations.many(location_count), indices.many(location_count)?);
    if flags != 0 || count == 0 || indices.first() != Some(&0) {
        return Err(INVALID);
    }
    for (at, (address, size)) in addresses.many(count)?.into_iter().zip(sizes.many(count)?).enumerate() {
        let chosen = indices.iter().rposition(|index| *index <= at).ok_or(INVALID)?;
        prefetch(address, size, place(locations[chosen])?, stream)?;
    }
    Ok(())
}

/// `cuMemDiscardBatchAsync`: the bytes may then be any, so they may stay what they are.
pub fn discard_batch(
    addresses: ListMut<u64>,
    sizes: ListMut<usize>,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Answer {
    stream::resolve(stream)?;
    if flags != 0 || count == 0 {
        return Err(INVALID);
    }
    let mut ranges = addresses.many(count)?.into_iter().zip(sizes.many(count)?);
    ranges.try_for_each(|(address, size)| containing(address, size).map(drop))
}
