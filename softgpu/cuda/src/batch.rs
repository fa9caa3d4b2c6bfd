//! Batches of copies in one call.

use cudarc::driver::sys::{CUDA_MEMCPY3D_BATCH_OP, CUmemcpyAttributes, CUresult, CUstream};

use crate::abi::{Answer, InMut, ListMut, Maybe, Mirror};
use crate::copy::{self, Operand};
use crate::stream;
use crate::vmm::RawLocation;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// `CUmemcpyAttributes` with numbers for its enums.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawAttributes {
    order: u32,
    from: RawLocation,
    to: RawLocation,
    flags: u32,
}

impl Mirror for RawAttributes {
    type Of = CUmemcpyAttributes;
}

impl RawAttributes {
    /// Sources are read in stream order, during the call, or at any time in between: pageable ones are
    /// read during the call here, all others in stream order.
    fn check(&self) -> Answer {
        if (1..=3).contains(&self.order) { Ok(()) } else { Err(INVALID) }
    }
}

/// `CUDA_MEMCPY3D_BATCH_OP` with numbers for its enums.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawOperation {
    from: Operand,
    to: Operand,
    extent: [usize; 3],
    order: u32,
    flags: u32,
}

impl Mirror for RawOperation {
    type Of = CUDA_MEMCPY3D_BATCH_OP;
}

/// `cuMemcpyBatchAsync_v2`
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub fn lines(
    to: ListMut<u64>,
    from: ListMut<u64>,
    sizes: ListMut<usize>,
    count: usize,
    attributes: InMut<RawAttributes>,
    indices: ListMut<usize>,
    attribute_count: usize,
    stream: CUstream,
) -> Answer {
    let indices = indices.many(attribute_count)?;
    let sensible = count > 0 && attribute_count <= count && indices.first() == Some(&0);
    if !sensible || !indices.is_sorted() || indices.last().is_some_and(|last| *last >= count) {
        return Err(INVALID);
    }
    attributes.many(attribute_count).iter().try_for_each(RawAttributes::check)?;
    let ends = to.many(count)?.into_iter().zip(from.many(count)?);
    let copies = ends.zip(sizes.many(count)?).map(|((to, from), size)| (to, from, size));
    copy::many_async(copies, stream)
}

/// `cuMemcpyBatchAsync` of CUDA 12.8, which can say at which copy it failed: it never says.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub fn lines_v1(
    to: ListMut<u64>,
    from: ListMut<u64>,
    sizes: ListMut<usize>,
    count: usize,
    attributes: InMut<RawAttributes>,
    indices: ListMut<usize>,
    attribute_count: usize,
    failed_at: Maybe<usize>,
    stream: CUstream,
) -> Answer {
    failed_at.set(usize::MAX);
    lines(to, from, sizes, count, attributes, indices, attribute_count, stream)
}

/// `cuMemcpyWithAttributesAsync`
pub fn line(to: u64, from: u64, size: usize, attributes: InMut<RawAttributes>, stream: CUstream) -> Answer {
    attributes.get().check()?;
    copy::any_async(to, from, size, stream)
}

/// `cuMemcpy3DBatchAsync_v2`
pub fn volumes(count: usize, list: InMut<RawOperation>, flags: u64, stream: CUstream) -> Answer {
    if count == 0 || flags != 0 {
        return Err(INVALID);
    }
    let stream = stream::resolve(stream)?;
    let copies = list.many(count).into_iter().map(|one| copy::between(&one.from, &one.to, one.extent));
    let copies = copies.collect::<Answer<Vec<_>>>()?;
    copies.into_iter().try_for_each(|copy| copy.start(&stream))
}

/// `cuMemcpy3DBatchAsync` of CUDA 12.8
pub fn volumes_v1(
    count: usize,
    list: InMut<RawOperation>,
    failed_at: Maybe<usize>,
    flags: u64,
    stream: CUstream,
) -> Answer {
    failed_at.set(usize::MAX);
    volumes(count, list, flags, stream)
}

/// `cuMemcpy3DWithAttributesAsync`
pub fn one_volume(operation: InMut<RawOperation>, flags: u64, stream: CUstream) -> Answer {
    volumes(1, operation, flags, stream)
}
