//! Kernels of the tests, by the ABI of `softgpu/README.md`: built with plain `rustc`.
#![allow(non_upper_case_globals, reason = "the table's name is the kernel's plus `_params`")]

use std::ffi::c_void;

/// A launch's shape.
#[repr(C)]
pub struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
}

/// A table of parameter sizes.
#[repr(C)]
pub struct Params<const N: usize> {
    count: u32,
    sizes: [u32; N],
}

const fn params<const N: usize>(sizes: [u32; N]) -> Params<N> {
    Params { count: N as u32, sizes }
}

/// A variable of the module.
#[unsafe(no_mangle)]
pub static mut counters: [u32; 8] = [7; 8];

#[unsafe(no_mangle)]
pub static axpy_params: Params<4> = params([4, 4, 8, 8]);

/// y += a x
#[unsafe(no_mangle)]
pub unsafe extern "C" fn axpy(_: *const Launch, args: *const *const c_void) {
    unsafe {
        let count = *(*args).cast::<u32>() as usize;
        let a = *(*args.add(1)).cast::<f32>();
        let x = *(*args.add(2)).cast::<*const f32>();
        let y = *(*args.add(3)).cast::<*mut f32>();
        for at in 0..count {
            *y.add(at) += a * *x.add(at);
        }
    }
}

#[unsafe(no_mangle)]
pub static append_params: Params<2> = params([8, 4]);

/// list[0] += 1; list[list[0]] = value
#[unsafe(no_mangle)]
pub unsafe extern "C" fn append(_: *const Launch, args: *const *const c_void) {
    unsafe {
        let list = *(*args).cast::<*mut u32>();
        let value = *(*args.add(1)).cast::<u32>();
        *list += 1;
        *list.add(*list as usize) = value;
    }
}

#[unsafe(no_mangle)]
pub static nap_params: Params<1> = params([8]);

/// Takes so many milliseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nap(_: *const Launch, args: *const *const c_void) {
    let milliseconds = unsafe { *(*args).cast::<u64>() };
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
}

#[unsafe(no_mangle)]
pub static hold_params: Params<1> = params([8]);

/// Ends when *at is not 0 any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hold(_: *const Launch, args: *const *const c_void) {
    let at = unsafe { *(*args).cast::<*const u32>() };
    while unsafe { at.read_volatile() } == 0 {
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

#[unsafe(no_mangle)]
pub static poke_params: Params<2> = params([8, 4]);

/// *at = value
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poke(_: *const Launch, args: *const *const c_void) {
    unsafe {
        let at = *(*args).cast::<*mut u32>();
        at.write_volatile(*(*args.add(1)).cast::<u32>());
    }
}

#[unsafe(no_mangle)]
pub static shape_params: Params<1> = params([8]);

/// Writes the launch's shape.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shape(launch: *const Launch, args: *const *const c_void) {
    unsafe {
        let out = *(*args).cast::<*mut u32>();
        let launch = &*launch;
        let parts = launch.grid.iter().chain(&launch.block).chain([&launch.shared_bytes]);
        for (at, part) in parts.enumerate() {
            *out.add(at) = *part;
        }
    }
}
