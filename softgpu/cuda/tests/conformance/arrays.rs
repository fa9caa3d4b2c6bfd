//! Arrays and copies of them, copies in batches and between contexts.

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUarray, CUarray_format as Format, CUmemorytype as Kind, CUresult};

use crate::support::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

fn line(width: usize) -> CUarray {
    plane(width, 0)
}

fn plane(width: usize, height: usize) -> CUarray {
    let shape = sys::CUDA_ARRAY_DESCRIPTOR {
        Width: width,
        Height: height,
        Format: Format::CU_AD_FORMAT_UNSIGNED_INT32,
        NumChannels: 1,
    };
    let mut array = null_mut();
    ok!(cuArrayCreate_v2(&mut array, &shape));
    array
}

promise! {
    fn an_array_tells_its_shape() on PLAIN; {
        start();
        let array = plane(16, 4);
        let mut shape = sys::CUDA_ARRAY_DESCRIPTOR { Width: 0, Height: 0, Format: Format::CU_AD_FORMAT_HALF, NumChannels: 0 };
        ok!(cuArrayGetDescriptor_v2(&mut shape, array));
        assert_eq!((shape.Width, shape.Height, shape.NumChannels), (16, 4, 1));
        assert_eq!(shape.Format, Format::CU_AD_FORMAT_UNSIGNED_INT32);
        ok!(cuArrayDestroy(array));
    }
}

promise! {
    fn an_array_of_one_dimension_is_copied_by_bytes() on PLAIN; {
        start();
        let (one, other, at) = (line(16), line(16), alloc(64));
        let source: Vec<u32> = (0..16).collect();
        ok!(cuMemcpyHtoA_v2(one, 0, source.as_ptr().cast(), 64));
        ok!(cuMemcpyAtoA_v2(other, 8, one, 0, 32));
        ok!(cuMemcpyAtoD_v2(at, other, 8, 32));
        assert_eq!(read::<u32>(at, 8), source[..8]);
        ok!(cuMemcpyDtoA_v2(other, 0, at + 4, 8));
        let mut back = [0u32; 4];
        ok!(cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), other, 0, 16));
        assert_eq!(back, [1, 2, 0, 1]);
        assert_eq!(cu!(cuMemcpyAtoD_v2(at, other, 60, 8)), INVALID);
    }
}

promise! {
    fn rectangles_are_copied_into_and_out_of_arrays() on PLAIN; {
        start();
        let (array, lane) = (plane(4, 3), stream(1));
        let (source, mut back): (Vec<u32>, _) = ((0..12).collect(), [0u32; 4]);
        let mut copy = volume([16, 3, 1]);
        (copy.srcMemoryType, copy.srcHost) = (Kind::CU_MEMORYTYPE_HOST, source.as_ptr().cast());
        (copy.dstMemoryType, copy.dstArray) = (Kind::CU_MEMORYTYPE_ARRAY, array);
        ok!(cuMemcpy3D_v2(&copy));
        let part = sys::CUDA_MEMCPY2D {
            srcXInBytes: 4,
            srcY: 1,
            srcMemoryType: Kind::CU_MEMORYTYPE_ARRAY,
            srcHost: std::ptr::null(),
            srcDevice: 0,
            srcArray: array,
            srcPitch: 0,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: Kind::CU_MEMORYTYPE_HOST,
            dstHost: back.as_mut_ptr().cast(),
            dstDevice: 0,
            dstArray: null_mut(),
            dstPitch: 8,
            WidthInBytes: 8,
            Height: 2,
        };
        ok!(cuMemcpy2DAsync_v2(&part, lane));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(back, [5, 6, 9, 10]);
        let outside = sys::CUDA_MEMCPY2D { srcY: 2, ..part };
        assert_eq!(cu!(cuMemcpy2D_v2(&outside)), INVALID);
    }
}

promise! {
    fn volumes_are_copied_through_arrays() on PLAIN; {
        start();
        let shape = sys::CUDA_ARRAY3D_DESCRIPTOR {
            Width: 4,
            Height: 2,
            Depth: 2,
            Format: Format::CU_AD_FORMAT_UNSIGNED_INT8,
            NumChannels: 4,
            Flags: 0,
        };
        let (mut array, mut shown) = (null_mut(), shape);
        ok!(cuArray3DCreate_v2(&mut array, &shape));
        ok!(cuArray3DGetDescriptor_v2(&mut shown, array));
        assert_eq!(shown, shape);
        let (from, to) = (alloc(64), alloc(64));
        write(from, &(0..16u32).collect::<Vec<_>>());
        let mut copy = volume([16, 2, 2]);
        copy.srcDevice = from;
        (copy.dstMemoryType, copy.dstArray) = (Kind::CU_MEMORYTYPE_ARRAY, array);
        ok!(cuMemcpy3D_v2(&copy));
        let mut copy = volume([4, 2, 1]);
        (copy.srcMemoryType, copy.srcArray) = (Kind::CU_MEMORYTYPE_ARRAY, array);
        (copy.srcXInBytes, copy.srcZ, copy.dstDevice) = (8, 1, to);
        ok!(cuMemcpy3D_v2(&copy));
        assert_eq!(read::<u32>(to, 2), [10, 14]);
    }
}

promise! {
    fn arrays_take_memory_until_they_are_destroyed() on PLAIN; {
        start();
        let before = free_memory();
        let array = plane(1024, 1024);
        assert!(free_memory() <= before - (4 << 20));
        ok!(cuArrayDestroy(array));
        assert_eq!(free_memory(), before);
    }
}

promise! {
    fn arrays_need_a_format_and_channels_that_exist() on PLAIN; {
        start();
        let mut array = null_mut();
        let shape = sys::CUDA_ARRAY_DESCRIPTOR { Width: 8, Height: 1, Format: Format::CU_AD_FORMAT_FLOAT, NumChannels: 3 };
        assert_eq!(cu!(cuArrayCreate_v2(&mut array, &shape)), INVALID);
        let empty = sys::CUDA_ARRAY_DESCRIPTOR { Width: 0, NumChannels: 1, ..shape };
        assert_eq!(cu!(cuArrayCreate_v2(&mut array, &empty)), INVALID);
    }
}

/// `CUmemcpyAttributes`: that sources are read in stream order, and hints that say nothing.
pub const IN_ORDER: [u32; 6] = [1, 0, 0, 0, 0, 0];

const _: () = assert!(size_of::<sys::CUmemcpyAttributes>() == size_of_val(&IN_ORDER));

/// `CUDA_MEMCPY3D_BATCH_OP`, of pointers.
#[repr(C)]
struct Batched {
    from: Pointer,
    to: Pointer,
    extent: [usize; 3],
    order: u32,
    flags: u32,
}

/// `CUmemcpy3DOperand`: a pointer, bytes of a row, rows of a slice, a hint.
#[repr(C)]
struct Pointer {
    kind: u64,
    at: u64,
    rest: [usize; 3],
}

const _: () = assert!(size_of::<sys::CUDA_MEMCPY3D_BATCH_OP>() == size_of::<Batched>());

promise! {
    fn a_batch_of_copies_does_all_of_them_in_the_streams_order() on PLAIN; {
        start();
        let (lane, from, to) = (stream(1), alloc(64), zeroes(64));
        write(from, &(0..16u32).collect::<Vec<_>>());
        let (mut ends, mut starts, mut sizes) = ([to, to + 32], [from + 8, from], [4usize, 8]);
        let (mut attributes, mut first) = (IN_ORDER, 0usize);
        let attributes = (&raw mut attributes).cast();
        let held = hold(lane);
        ok!(cuMemcpyBatchAsync_v2(ends.as_mut_ptr(), starts.as_mut_ptr(), sizes.as_mut_ptr(), 2, attributes, &mut first, 1, lane));
        assert_eq!(cu!(cuStreamQuery(lane)), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u32>(to, 10)[..], [2, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let none = cu!(cuMemcpyBatchAsync_v2(ends.as_mut_ptr(), starts.as_mut_ptr(), sizes.as_mut_ptr(), 2, attributes, &mut first, 0, lane));
        assert_eq!(none, INVALID);
        let empty = cu!(cuMemcpyBatchAsync_v2(ends.as_mut_ptr(), starts.as_mut_ptr(), sizes.as_mut_ptr(), 0, attributes, &mut first, 1, lane));
        assert_eq!(empty, INVALID);
    }
}

promise! {
    fn volumes_are_copied_in_batches() on PLAIN; {
        start();
        let (lane, from, to) = (stream(1), alloc(64), zeroes(64));
        write(from, &(0..16u32).collect::<Vec<_>>());
        let pointer = |at, row| Pointer { kind: 1, at, rest: [row, 0, 0] };
        let mut batched = Batched {
            from: pointer(from, 16),
            to: pointer(to, 8),
            extent: [8, 2, 1],
            order: IN_ORDER[0],
            flags: 0,
        };
        ok!(cuMemcpy3DBatchAsync_v2(1, (&raw mut batched).cast(), 0, lane));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u32>(to, 5), [0, 1, 4, 5, 0]);
    }
}

promise! {
    fn volumes_are_copied_between_contexts() on PLAIN; {
        let context = start();
        let (lane, from, to) = (stream(1), alloc(64), alloc(64));
        write(from, &[7u32; 16]);
        // SAFETY: the two structures differ in nothing but that contexts are where one has reserved
        // fields, which are set below.
        let mut copy: sys::CUDA_MEMCPY3D_PEER = unsafe { std::mem::transmute(volume([16, 2, 2])) };
        (copy.srcDevice, copy.dstDevice) = (from, to);
        (copy.srcContext, copy.dstContext) = (context, context);
        ok!(cuMemcpy3DPeer(&copy));
        ok!(cuMemcpy3DPeerAsync(&copy, lane));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u32>(to, 16), [7; 16]);
    }
}

promise! {
    fn copies_between_contexts_name_them() on PLAIN; {
        let context = start();
        let (from, to) = (alloc(64), alloc(64));
        write(from, &[7u32; 16]);
        ok!(cuMemcpyPeer(to, context, from, context, 64));
        assert_eq!(read::<u32>(to, 16), [7; 16]);
    }
}
