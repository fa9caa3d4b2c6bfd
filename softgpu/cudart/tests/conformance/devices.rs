//! Devices and their contexts, made at first use.

use std::thread;

use cudarc::driver::sys as cu;
use cudarc::runtime::sys::{cudaDeviceProp, cudaError};

use crate::support::*;

fn current() -> i32 {
    let mut device = -1;
    ok!(cudaGetDevice(&mut device));
    device
}

/// Calls a driver function that has to succeed.
macro_rules! driver {
    ($name:ident($($arg:expr),*)) => {
        // SAFETY: the tests pass what the driver's header asks for.
        assert_eq!(unsafe { cu::$name($($arg),*) }, cu::CUresult::CUDA_SUCCESS, stringify!($name))
    };
}

/// Whether a device's primary context exists, by the driver.
fn is_active(device: i32) -> bool {
    let (mut flags, mut active) = (0, 0);
    driver!(cuDevicePrimaryCtxGetState(device, &mut flags, &mut active));
    active != 0
}

promise! {
    fn a_context_is_made_at_first_use() on 2; {
        let mut count = 0;
        ok!(cudaGetDeviceCount(&mut count));
        assert_eq!((count, current()), (2, 0));
        assert!(!is_active(0) && !is_active(1));
        alloc(64);
        assert!(is_active(0) && !is_active(1));
        ok!(cudaSetDevice(1));
        assert!(is_active(1));
    }
}

promise! {
    fn each_thread_has_its_own_current_device() on 2; {
        ok!(cudaSetDevice(1));
        thread::spawn(|| {
            assert_eq!(current(), 0);
            alloc(64);
            assert_eq!(current(), 0);
        })
        .join()
        .unwrap();
        assert_eq!(current(), 1);
        assert_eq!(rt!(cudaSetDevice(2)), cudaError::cudaErrorInvalidDevice);
        assert_eq!(current(), 1);
    }
}

promise! {
    fn a_context_of_the_programs_own_is_used() on 2; {
        let (mut context, mut device) = (std::ptr::null_mut(), 0);
        driver!(cuInit(0));
        driver!(cuDeviceGet(&mut device, 1));
        driver!(cuDevicePrimaryCtxRetain(&mut context, device));
        driver!(cuCtxPushCurrent_v2(context));
        assert_eq!(current(), 1);
        alloc(64);
        assert!(!is_active(0));
    }
}

promise! {
    fn properties_are_the_drivers_attributes() on 1; {
        // SAFETY: numbers and characters, all of which may be 0.
        let mut properties: cudaDeviceProp = unsafe { std::mem::zeroed() };
        ok!(cudaGetDeviceProperties(&mut properties, 0));
        assert_eq!(properties.totalGlobalMem, MEMORY);
        assert_eq!((properties.major, properties.warpSize), (9, 32));
        assert_eq!(properties.maxThreadsDim, [1024, 1024, 64]);
        assert_eq!(properties.sharedMemPerBlockOptin, 227 << 10);
        let name = properties.name.map(|character| character as u8);
        assert!(name.starts_with(b"Software GPU\0"));
        let mut version = 0;
        ok!(cudaRuntimeGetVersion(&mut version));
        assert_eq!(version, 13000);
    }
}

promise! {
    fn a_reset_device_gives_everything_back_and_can_be_used_again() on 1; {
        let (mut free, mut total, mut again) = (0, 0, 0);
        ok!(cudaMemGetInfo(&mut free, &mut total));
        alloc(1 << 20);
        ok!(cudaDeviceReset());
        assert!(!is_active(0));
        ok!(cudaMemGetInfo(&mut again, &mut total));
        assert_eq!((free, total), (again, MEMORY));
        alloc(64);
    }
}

promise! {
    fn a_reset_reaches_other_threads() on 1; {
        let (told, tell) = std::sync::mpsc::channel();
        let (done, ended) = std::sync::mpsc::channel();
        let other = thread::spawn(move || {
            alloc(64);
            done.send(()).unwrap();
            tell.recv().unwrap();
            alloc(64);
        });
        ended.recv().unwrap();
        ok!(cudaDeviceReset());
        told.send(()).unwrap();
        other.join().unwrap();
    }
}

promise! {
    fn peers_reach_each_other() on 2; {
        let mut can = 0;
        ok!(cudaDeviceCanAccessPeer(&mut can, 0, 1));
        assert_eq!(can, 1);
        ok!(cudaDeviceEnablePeerAccess(1, 0));
        let here = alloc(64);
        write(here, &[7u32; 16]);
        ok!(cudaSetDevice(1));
        let there = alloc(64);
        ok!(cudaMemcpyPeer(there, 1, here, 0, 64));
        assert_eq!(read::<u32>(there, 16), [7; 16]);
    }
}
