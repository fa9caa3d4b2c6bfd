//! Memory that the driver takes for itself: contexts, modules.

use std::ptr::null_mut;

use cudarc::driver::sys::{CUcontext, CUlibrary, CUmodule, CUresult};

use crate::support::*;

const CONTEXT: usize = 1 << 20;
const MODULE: usize = 64 << 10;
const TAKING: Node = Node { settings: "context_bytes = 1048576\nmodule_bytes = 65536", ..PLAIN };
const OPAQUE: &std::ffi::CStr = c".version 8.0 .target sm_90";
const FULL: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
const FINE: CUresult = CUresult::CUDA_SUCCESS;

fn create(context: &mut CUcontext) -> CUresult {
    cu!(cuCtxCreate_v4(context, null_mut(), 0, 0))
}

fn load(module: &mut CUmodule) -> CUresult {
    cu!(cuModuleLoadData(module, OPAQUE.as_ptr().cast()))
}

fn load_library(library: &mut CUlibrary) -> CUresult {
    let (image, null) = (OPAQUE.as_ptr().cast(), null_mut());
    cu!(cuLibraryLoadData(library, image, null, null_mut(), 0, null_mut(), null_mut(), 0))
}

promise! {
    fn a_context_takes_memory_until_it_is_destroyed() on TAKING; {
        start();
        assert_eq!(free_memory(), MEMORY - CONTEXT);
        let mut more = [null_mut(); 16];
        let made = more.iter_mut().map(create).take_while(|made| *made == FINE).count();
        assert_eq!(made, MEMORY / CONTEXT - 1);
        assert_eq!(free_memory(), 0);
        let mut one_too_many = null_mut();
        assert_eq!(create(&mut one_too_many), FULL);
        ok!(cuCtxDestroy_v2(more[3]));
        assert_eq!(free_memory(), CONTEXT);
        assert_eq!(create(&mut one_too_many), FINE);
    }
}

promise! {
    fn a_primary_context_takes_memory_once_until_its_last_release() on TAKING; {
        let mut context = start();
        ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
        assert_eq!(free_memory(), MEMORY - CONTEXT);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(free_memory(), MEMORY - CONTEXT);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        let mut own = null_mut();
        assert_eq!(create(&mut own), FINE);
        assert_eq!(free_memory(), MEMORY - CONTEXT);
        alloc(MEMORY - CONTEXT);
        assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context, 0)), FULL);
        let (mut flags, mut active) = (0, 1);
        ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!(active, 0);
    }
}

promise! {
    fn what_a_dead_process_had_for_contexts_and_modules_comes_back() on TAKING; {
        start();
        if part() == "holder" {
            let mut module = null_mut();
            assert_eq!(load(&mut module), FINE);
            println!("loaded");
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        let mut holder = partner("holder").spawn().unwrap();
        let _output = wait_for_line(&mut holder, "loaded");
        assert_eq!(free_memory(), MEMORY - 2 * CONTEXT - MODULE);
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert_eq!(free_memory(), MEMORY - CONTEXT);
        alloc(MEMORY - CONTEXT);
    }
}

promise! {
    fn a_module_takes_memory_until_it_is_unloaded_or_its_context_ends() on TAKING; {
        start();
        let (mut module, mut library) = (null_mut(), null_mut());
        assert_eq!((load(&mut module), load_library(&mut library)), (FINE, FINE));
        assert_eq!(free_memory(), MEMORY - CONTEXT - 2 * MODULE);
        ok!(cuModuleUnload(module));
        ok!(cuLibraryUnload(library));
        assert_eq!(free_memory(), MEMORY - CONTEXT);
        let mut own = null_mut();
        assert_eq!(create(&mut own), FINE);
        assert_eq!((load(&mut module), load_library(&mut library)), (FINE, FINE));
        ok!(cuCtxDestroy_v2(own));
        assert_eq!(free_memory(), MEMORY - CONTEXT);
        ok!(cuLibraryUnload(library));
        assert_eq!(free_memory(), MEMORY - CONTEXT);
    }
}

promise! {
    fn a_module_that_finds_no_memory_is_not_loaded_and_can_be_tried_again() on TAKING; {
        start();
        let all = alloc(MEMORY - CONTEXT);
        let (mut module, mut library) = (null_mut(), null_mut());
        assert_eq!((load(&mut module), load_library(&mut library)), (FULL, FULL));
        ok!(cuMemFree_v2(all));
        assert_eq!((load(&mut module), load_library(&mut library)), (FINE, FINE));
        assert_eq!(free_memory(), MEMORY - CONTEXT - 2 * MODULE);
    }
}
