//! Pieces, ranges, mappings.

use cudarc::driver::sys::{self, CUdeviceptr, CUresult};

use crate::support::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
const BY_FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Properties of an exportable piece on the first device.
pub fn properties() -> sys::CUmemAllocationProp {
    // SAFETY: plain C data; the enums are set below, and zero is a value of each.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = BY_FD;
    properties.location = location();
    properties
}

fn location() -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 }
}

/// A new piece.
pub fn piece(size: usize) -> u64 {
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, size, &properties(), 0));
    handle
}

/// A reserved range.
pub fn range(size: usize) -> CUdeviceptr {
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, size, 0, 0, 0));
    at
}

/// Sets the device's access.
pub fn access(at: CUdeviceptr, size: usize, flags: sys::CUmemAccess_flags) -> CUresult {
    let rights = sys::CUmemAccessDesc { location: location(), flags };
    cu!(cuMemSetAccess(at, size, &rights, 1))
}

/// Maps a piece for reading and writing.
pub fn map(at: CUdeviceptr, size: usize, handle: u64) {
    ok!(cuMemMap(at, size, 0, handle, 0));
    let all = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    assert_eq!(access(at, size, all), CUresult::CUDA_SUCCESS);
}

/// The descriptor of a piece.
pub fn export(handle: u64) -> i32 {
    let mut fd = -1;
    ok!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, BY_FD, 0));
    fd
}

/// A handle for a descriptor.
pub fn import(fd: i32) -> u64 {
    let mut handle = 0;
    ok!(cuMemImportFromShareableHandle(&mut handle, fd as usize as *mut _, BY_FD));
    handle
}

promise! {
    fn a_piece_keeps_its_bytes_wherever_it_is_mapped() on PLAIN; {
        start();
        let (at, handle) = (range(4 * unit()), piece(unit()));
        map(at, unit(), handle);
        map(at + 2 * unit() as u64, unit(), handle);
        assert_eq!(read::<u8>(at, unit()), vec![0; unit()]);
        write(at, &[1u32, 2, 3]);
        assert_eq!(read::<u32>(at + 2 * unit() as u64, 3), [1, 2, 3]);
        ok!(cuMemUnmap(at, unit()));
        map(at + unit() as u64, unit(), handle);
        assert_eq!(read::<u32>(at + unit() as u64, 3), [1, 2, 3]);
    }
}

promise! {
    fn memory_goes_with_the_last_of_handle_and_mapping() on PLAIN; {
        start();
        let (at, handle) = (range(unit()), piece(unit()));
        map(at, unit(), handle);
        ok!(cuMemRelease(handle));
        expect_free(MEMORY - unit());
        // Hardware does not survive that.
        if on_software() {
            assert_eq!(cu!(cuMemRelease(handle)), INVALID);
        }
        let mut retained = 0;
        ok!(cuMemRetainAllocationHandle(&mut retained, at as *mut _));
        ok!(cuMemUnmap(at, unit()));
        expect_free(MEMORY - unit());
        ok!(cuMemRelease(retained));
        expect_free(MEMORY);
    }
}

promise! {
    fn pieces_need_no_context() on PLAIN; {
        ok!(cuInit(0));
        let (at, handle) = (range(unit()), piece(unit()));
        map(at, unit(), handle);
        let twin = import(export(handle));
        ok!(cuMemRelease(twin));
        ok!(cuMemUnmap(at, unit()));
        ok!(cuMemAddressFree(at, unit()));
        ok!(cuMemRelease(handle));
    }
}

promise! {
    fn mappings_are_whole_and_inside_one_range() on PLAIN; {
        start();
        let (at, handle) = (range(2 * unit()), piece(unit()));
        let step = unit() as u64;
        assert_eq!(cu!(cuMemMap(at, unit(), 4096, handle, 0)), NOT_SUPPORTED);
        assert_eq!(cu!(cuMemMap(at + 4096, unit(), 0, handle, 0)), INVALID);
        assert_eq!(cu!(cuMemMap(at + 2 * step, unit(), 0, handle, 0)), INVALID);
        assert_eq!(cu!(cuMemMap(at, 2 * unit(), 0, handle, 0)), NOT_SUPPORTED);
        ok!(cuMemMap(at, unit(), 0, handle, 0));
        assert_eq!(cu!(cuMemMap(at, unit(), 0, handle, 0)), INVALID);
        assert_eq!(cu!(cuMemUnmap(at, unit() / 2)), INVALID);
        assert_eq!(cu!(cuMemAddressFree(at, 2 * unit())), INVALID);
        ok!(cuMemMap(at + step, unit(), 0, handle, 0));
        ok!(cuMemUnmap(at, 2 * unit()));
        ok!(cuMemAddressFree(at, 2 * unit()));
        assert_eq!(cu!(cuMemAddressFree(at, 2 * unit())), INVALID);
    }
}

promise! {
    fn no_part_of_a_piece_is_mapped_alone() on PLAIN; {
        start();
        let (at, handle) = (range(unit()), piece(2 * unit()));
        assert_eq!(cu!(cuMemMap(at, unit(), unit(), handle, 0)), NOT_SUPPORTED);
        assert_eq!(cu!(cuMemMap(at, unit(), 0, handle, 0)), NOT_SUPPORTED);
    }
}

promise! {
    fn sizes_and_handle_kinds_are_checked() on PLAIN; {
        start();
        let mut handle = 0;
        assert_eq!(cu!(cuMemCreate(&mut handle, unit() + 1, &properties(), 0)), INVALID);
        assert_eq!(cu!(cuMemCreate(&mut handle, 0, &properties(), 0)), INVALID);
        let mut fabric = properties();
        fabric.requestedHandleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
        let refused = cu!(cuMemCreate(&mut handle, unit(), &fabric, 0));
        assert_eq!(refused, NOT_SUPPORTED);
        let mut granularity = 0;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        ok!(cuMemGetAllocationGranularity(&mut granularity, &properties(), minimum));
        assert_eq!(granularity, unit());
        let too_much = cu!(cuMemCreate(&mut handle, MEMORY + unit(), &properties(), 0));
        assert_eq!(too_much, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let mut own = properties();
        own.requestedHandleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        ok!(cuMemCreate(&mut handle, unit(), &own, 0));
        let mut fd = -1;
        assert_eq!(cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, BY_FD, 0)), INVALID);
    }
}

promise! {
    fn memory_of_any_size_is_shared_by_one_descriptor() on PLAIN; {
        start();
        let bytes = 21 * unit();
        let (at, handle) = (range(2 * bytes), piece(bytes));
        map(at, bytes, handle);
        let last = at + bytes as u64 - 4;
        write(last, &[7u32]);
        let again = import(export(handle));
        map(at + bytes as u64, bytes, again);
        assert_eq!(read::<u32>(last + bytes as u64, 1), [7]);
    }
}

promise! {
    fn access_is_what_was_set() on PLAIN; {
        use sys::CUmemAccess_flags as Access;
        start();
        let (at, handle) = (range(2 * unit()), piece(unit()));
        ok!(cuMemMap(at, unit(), 0, handle, 0));
        let shown = || {
            let mut flags = 9;
            ok!(cuMemGetAccess(&mut flags, &location(), at));
            flags
        };
        assert_eq!(shown(), 0);
        assert_eq!(access(at, unit(), Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUresult::CUDA_SUCCESS);
        assert_eq!(access(at, 2 * unit(), Access::CU_MEM_ACCESS_FLAGS_PROT_READ), INVALID);
        write(at, &[1u32]);
        assert_eq!(access(at, unit(), Access::CU_MEM_ACCESS_FLAGS_PROT_READ), CUresult::CUDA_SUCCESS);
        assert_eq!(shown(), 1);
        let value = 5u32;
        assert_eq!(launch(kernel(c"poke"), std::ptr::null_mut(), &[arg(&at), arg(&value)]), CUresult::CUDA_SUCCESS);
        assert_eq!(cu!(cuCtxSynchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
}

promise! {
    fn memory_that_may_only_be_read_is_copied_from() on PLAIN; {
        start();
        let at = range(unit());
        map(at, unit(), piece(unit()));
        // Done before the access changes: a copy that may not write any more is a fault.
        write(at, &[1u32]);
        let read_only = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
        assert_eq!(access(at, unit(), read_only), CUresult::CUDA_SUCCESS);
        assert_eq!(read::<u32>(at, 1), [1]);
    }
}

promise! {
    fn unmapped_and_inaccessible_ranges_fault_copies() on PLAIN; {
        start();
        let (at, handle) = (range(unit()), piece(unit()));
        ok!(cuMemMap(at, unit(), 0, handle, 0));
        ok!(cuMemsetD8_v2(at, 0, 1));
        assert_eq!(cu!(cuCtxSynchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        ok!(cuDevicePrimaryCtxReset_v2(0));
        start();
        ok!(cuMemUnmap(at, unit()));
        let value = 1u32;
        assert_eq!(cu!(cuMemcpyHtoD_v2(at, arg(&value), 4)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert_eq!(cu!(cuCtxSynchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    }
}

promise! {
    fn pieces_in_host_memory_do_not_use_the_gpu() on PLAIN; {
        start();
        let mut host = properties();
        host.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
        let (mut handle, at) = (0, range(2 * unit()));
        ok!(cuMemCreate(&mut handle, unit(), &host, 0));
        map(at, unit(), handle);
        map(at + unit() as u64, unit(), piece(unit()));
        write(at + unit() as u64 - 4, &[1u32, 2]);
        assert_eq!(read::<u32>(at + unit() as u64 - 4, 2), [1, 2]);
        expect_free(MEMORY - unit());
        map(range(unit()), unit(), import(export(handle)));
    }
}

promise! {
    fn an_imported_piece_cannot_be_exported_again() on PLAIN; {
        start();
        let first = piece(unit());
        let second = import(export(first));
        ok!(cuMemRelease(first));
        let (mut shown, mut fd) = (properties(), -1);
        ok!(cuMemGetAllocationPropertiesFromHandle(&mut shown, second));
        assert_eq!((shown.type_, shown.location), (properties().type_, properties().location));
        assert_eq!(cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), second, BY_FD, 0)), INVALID);
        let (at, mut retained) = (range(unit()), 0);
        map(at, unit(), second);
        ok!(cuMemRetainAllocationHandle(&mut retained, at as *mut _));
        assert_eq!(cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), retained, BY_FD, 0)), INVALID);
        let mut handle = 0;
        let other = cu!(cuMemImportFromShareableHandle(&mut handle, 2 as *mut _, BY_FD));
        expect_refused("cuMemImportFromShareableHandle of standard error", other, INVALID);
    }
}

promise! {
    fn ranges_are_aligned_as_asked() on PLAIN; {
        ok!(cuInit(0));
        let mut at = 0;
        ok!(cuMemAddressReserve(&mut at, unit(), 64 << 20, 0, 0));
        assert_eq!(at % (64 << 20), 0);
        ok!(cuMemAddressFree(at, unit()));
        let mut again = 0;
        ok!(cuMemAddressReserve(&mut again, unit(), 0, at, 0));
        assert_eq!(again, at);
        assert_eq!(cu!(cuMemAddressReserve(&mut at, unit() + 1, 0, 0, 0)), INVALID);
    }
}

promise! {
    fn a_range_without_a_mapping_has_no_access_to_set() on PLAIN; {
        start();
        let (at, mut flags) = (range(unit()), 9);
        assert_eq!(access(at, unit(), sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE), INVALID);
        assert_eq!(cu!(cuMemGetAccess(&mut flags, &location(), at)), INVALID);
        // Unmapping what is not mapped is no error.
        ok!(cuMemUnmap(at, unit()));
    }
}

promise! {
    fn a_range_of_which_a_part_is_mapped_is_unmapped_there() on PLAIN; {
        start();
        let at = range(2 * unit());
        map(at, unit(), piece(unit()));
        ok!(cuMemUnmap(at, 2 * unit()));
        let mut flags = 0;
        assert_eq!(cu!(cuMemGetAccess(&mut flags, &location(), at)), INVALID);
    }
}

promise! {
    fn only_mapped_memory_has_a_handle_to_retain() on PLAIN; {
        start();
        let mut handle = 0;
        assert_eq!(cu!(cuMemRetainAllocationHandle(&mut handle, alloc(4096) as *mut _)), INVALID);
        assert_eq!(cu!(cuMemRetainAllocationHandle(&mut handle, range(unit()) as *mut _)), INVALID);
    }
}

promise! {
    fn a_retained_handle_is_the_same_memory() on PLAIN; {
        start();
        let (at, other, mut handle) = (range(unit()), range(unit()), 0);
        map(at, unit(), piece(unit()));
        write(at, &[5u32]);
        ok!(cuMemRetainAllocationHandle(&mut handle, (at + 8) as *mut _));
        map(other, unit(), handle);
        assert_eq!(read::<u32>(other, 1), [5]);
    }
}

promise! {
    fn the_recommended_granularity_is_a_multiple_of_the_least() on PLAIN; {
        start();
        use sys::CUmemAllocationGranularity_flags as Kind;
        let get = |kind| {
            let mut size = 0;
            ok!(cuMemGetAllocationGranularity(&mut size, &properties(), kind));
            size
        };
        let least = get(Kind::CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        let recommended = get(Kind::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        assert!(least > 0 && recommended.is_multiple_of(least));
    }
}

promise! {
    fn a_handle_that_is_none_is_refused() on PLAIN; {
        start();
        let at = range(unit());
        assert_eq!(cu!(cuMemMap(at, unit(), 0, 0xdead_0000, 0)), INVALID);
        assert_eq!(cu!(cuMemRelease(0xdead_0000)), INVALID);
    }
}
