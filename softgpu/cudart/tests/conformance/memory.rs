//! Memory, copies and memsets.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::runtime::sys::cudaMemcpyKind::*;
use cudarc::runtime::sys::*;

use crate::support::*;

promise! {
    fn what_is_copied_in_comes_out() on 1; {
        let (one, other) = (alloc(4096), alloc(4096));
        let values: Vec<u32> = (0..1024).collect();
        write(one, &values);
        ok!(cudaMemcpy(other, one, 4096, cudaMemcpyDeviceToDevice));
        assert_eq!(read::<u32>(other, 1024), values);
        ok!(cudaMemset(other, 0x101, 2048));
        assert_eq!(read::<u32>(other, 1024)[511..513], [0x01010101, 512]);
        let mut host = [0u32; 4];
        ok!(cudaMemcpy(host.as_mut_ptr().cast(), one, 16, cudaMemcpyDefault));
        assert_eq!(host, [0, 1, 2, 3]);
        ok!(cudaFree(one));
        ok!(cudaFree(null_mut()));
    }
}

promise! {
    fn nothing_is_allocated_for_nothing() on 1; {
        let mut at = 8 as *mut c_void;
        ok!(cudaMalloc(&mut at, 0));
        assert!(at.is_null());
    }
}

promise! {
    fn planes_keep_their_pitch() on 1; {
        let (mut at, mut pitch) = (null_mut(), 0);
        ok!(cudaMallocPitch(&mut at, &mut pitch, 12, 4));
        assert!(pitch >= 12);
        let values: Vec<u8> = (0..48).collect();
        ok!(cudaMemcpy2D(at, pitch, values.as_ptr().cast(), 12, 12, 4, cudaMemcpyHostToDevice));
        ok!(cudaMemset2D(at, pitch, 9, 2, 4));
        let mut back = [0u8; 48];
        ok!(cudaMemcpy2DAsync(back.as_mut_ptr().cast(), 12, at, pitch, 12, 4, cudaMemcpyDeviceToHost, null_mut()));
        ok!(cudaStreamSynchronize(null_mut()));
        let expected: Vec<u8> = values.iter().map(|v| if v % 12 < 2 { 9 } else { *v }).collect();
        assert_eq!(back[..], expected);
    }
}

promise! {
    fn volumes_are_copied_and_set() on 1; {
        let extent = cudaExtent { width: 8, height: 3, depth: 2 };
        let mut memory = cudaPitchedPtr { ptr: null_mut(), pitch: 0, xsize: 0, ysize: 0 };
        ok!(cudaMalloc3D(&mut memory, extent));
        ok!(cudaMemset3D(memory, 5, extent));
        let mut host = [0u8; 48];
        let to = cudaPitchedPtr { ptr: host.as_mut_ptr().cast(), pitch: 8, xsize: 8, ysize: 3 };
        // SAFETY: addresses, numbers, and 0 for the direction.
        let mut copy: cudaMemcpy3DParms = unsafe { std::mem::zeroed() };
        (copy.srcPtr, copy.dstPtr, copy.extent, copy.kind) = (memory, to, extent, cudaMemcpyDeviceToHost);
        ok!(cudaMemcpy3D(&copy));
        assert_eq!(host, [5; 48]);
    }
}

promise! {
    fn what_lies_at_an_address_is_known() on 1; {
        let (device, mut pinned, plain) = (alloc(64), null_mut(), 0u32);
        ok!(cudaHostAlloc(&mut pinned, 64, 0));
        let kind = |at: *const c_void| {
            // SAFETY: numbers, addresses, and 0 for the kind.
            let mut attributes: cudaPointerAttributes = unsafe { std::mem::zeroed() };
            ok!(cudaPointerGetAttributes(&mut attributes, at));
            (attributes.type_, attributes.device, attributes.devicePointer, attributes.hostPointer)
        };
        assert_eq!(kind(device), (cudaMemoryType::cudaMemoryTypeDevice, 0, device, null_mut()));
        assert_eq!(kind(pinned), (cudaMemoryType::cudaMemoryTypeHost, 0, pinned, pinned));
        let plain = arg(&plain);
        assert_eq!(kind(plain), (cudaMemoryType::cudaMemoryTypeUnregistered, -2, null_mut(), plain.cast_mut()));
        ok!(cudaFreeHost(pinned));
    }
}

promise! {
    fn managed_memory_is_the_hosts_too() on 1; {
        const GLOBAL: u32 = 1;
        let mut at = null_mut();
        ok!(cudaMallocManaged(&mut at, 64, GLOBAL));
        ok!(cudaMemset(at, 3, 64));
        ok!(cudaDeviceSynchronize());
        // SAFETY: 64 bytes that host and device share, and the device is done.
        assert_eq!(unsafe { at.cast::<u8>().read_volatile() }, 3);
        // SAFETY: numbers, addresses, and 0 for the kind.
        let mut attributes: cudaPointerAttributes = unsafe { std::mem::zeroed() };
        ok!(cudaPointerGetAttributes(&mut attributes, at));
        assert_eq!(attributes.type_, cudaMemoryType::cudaMemoryTypeManaged);
        let location = cudaMemLocation { type_: cudaMemLocationType::cudaMemLocationTypeDevice, id: 0 };
        ok!(cudaMemPrefetchAsync(at, 64, location, 0, null_mut()));
        ok!(cudaMemAdvise(at, 64, cudaMemoryAdvise::cudaMemAdviseSetPreferredLocation, location));
        ok!(cudaFree(at));
    }
}

/// What the second process of a promise is given.
const HANDLE: &str = "CUDART_HANDLE";

/// Opens the memory of another process and writes to it.
fn write_from_another_process(handle: &str) {
    let bytes: Vec<u8> = (0..handle.len() / 2)
        .map(|at| u8::from_str_radix(&handle[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let mut raw = cudaIpcMemHandle_t { reserved: [0; 64] };
    raw.reserved.iter_mut().zip(bytes).for_each(|(to, from)| *to = from as std::ffi::c_char);
    let mut at = null_mut();
    const LAZY_PEER_ACCESS: u32 = 1;
    ok!(cudaIpcOpenMemHandle(&mut at, raw, LAZY_PEER_ACCESS));
    ok!(cudaMemset(at, 5, 64));
    ok!(cudaDeviceSynchronize());
    ok!(cudaIpcCloseMemHandle(at));
}

promise! {
    fn memory_is_shared_between_processes() on 1; {
        if let Ok(handle) = std::env::var(HANDLE) {
            return write_from_another_process(&handle);
        }
        let (at, mut handle) = (alloc(64), cudaIpcMemHandle_t { reserved: [0; 64] });
        ok!(cudaIpcGetMemHandle(&mut handle, at));
        let handle: String = handle.reserved.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
        let mut other = std::process::Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "memory::memory_is_shared_between_processes", "--nocapture"]);
        assert!(other.env(HANDLE, handle).status().unwrap().success());
        assert_eq!(read::<u8>(at, 64), [5; 64]);
    }
}
