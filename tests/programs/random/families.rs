//! One kind of call each, again and again, beside memory that is only kept.

use crate::calls::*;
use crate::work::*;
use cudarc::driver::sys::{self, CUcontext, CUfunction, CUresult, CUstream, CUstreamCaptureMode};
use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;

/// What is kept meanwhile, and what is worked on.
const KEPT: usize = 4 << 20;
const PART: usize = 256 << 10;

/// What a family works with.
pub struct Scene {
    image: String,
    home: CUcontext,
    kernel: Kernel,
    lane: CUstream,
    kept: u64,
    part: u64,
    other: u64,
}

type Family = fn(&mut Scene, u8);

const FAMILIES: &[(&str, Family)] = &[
    ("launches", launches),
    ("per-thread", per_thread),
    ("captured", captured),
    ("built", built),
    ("graph-memory", graph_memory),
    ("pools", pools),
    ("pitch", pitch),
    ("arrays", arrays),
    ("handles", handles),
    ("exported", exported),
    ("copies", copies),
    ("words", words),
    ("green", green),
    ("contexts", contexts),
    ("reset", reset),
    ("modules", modules),
    ("managed", managed),
];

/// Plays a family so many times, and tells what all memory holds at the end.
pub fn play(image: &str, name: &str, rounds: usize) {
    let (_, family) = FAMILIES.iter().find(|(known, _)| *known == name).expect("a family");
    let mut scene = Scene::new(image);
    for round in 0..rounds {
        family(&mut scene, round as u8);
        boundary();
    }
    assert!(read(scene.kept, KEPT).iter().all(|byte| *byte == 7), "what was kept has changed");
    println!(
        "{name}: {rounds} rounds, {:?}",
        sum(&[read(scene.part, PART), read(scene.other, PART)].concat())
    );
}

impl Scene {
    fn new(image: &str) -> Self {
        let home = primary();
        let kernel = Kernel::load(image, false);
        let (lane, kept, part, other) = (stream(1), alloc(KEPT), alloc(PART), alloc(PART));
        ok!(cuMemsetD8_v2(kept, 7, KEPT));
        for at in [part, other] {
            ok!(cuMemsetD8_v2(at, 0, PART));
        }
        ok!(cuCtxSynchronize());
        Self { image: image.into(), home, kernel, lane, kept, part, other }
    }

    fn count(&self, at: u64, stream: CUstream) {
        assert_eq!(launch(Form::Plain, self.kernel.function, stream, at, PART), CUresult::CUDA_SUCCESS);
    }

    fn synchronize(&self) {
        ok!(cuStreamSynchronize(self.lane));
    }

    /// Copies memory of a family's own to where it is seen at the end, in its stream.
    fn show(&self, from: u64, bytes: usize) {
        ok!(cuMemcpyDtoDAsync_v2(self.other, from, bytes, self.lane));
    }
}

fn read(at: u64, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    ok!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), at, bytes));
    found
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn launches(scene: &mut Scene, _round: u8) {
    for form in [Form::Plain, Form::Ex, Form::Cooperative] {
        let code = launch(form, scene.kernel.function, scene.lane, scene.part, PART);
        assert_eq!(code, CUresult::CUDA_SUCCESS, "{form:?}");
    }
    scene.synchronize();
}

/// The forms of functions for the per-thread default stream.
fn per_thread(scene: &mut Scene, round: u8) {
    const PER_THREAD: u64 = 2;
    let find = |name: &std::ffi::CStr| {
        let mut found: *mut c_void = null_mut();
        ok!(cuGetProcAddress_v2(name.as_ptr(), &mut found, 13000, PER_THREAD, null_mut()));
        found
    };
    // SAFETY: the type that cuda.h gives the function of that name.
    let set: unsafe extern "C" fn(u64, u8, usize) -> CUresult =
        unsafe { std::mem::transmute(find(c"cuMemsetD8")) };
    // SAFETY: memory of that size.
    assert_eq!(unsafe { set(scene.part, round, PART) }, CUresult::CUDA_SUCCESS);
    let own_thread = std::ptr::without_provenance_mut(2);
    scene.count(scene.part, own_thread);
    ok!(cuStreamSynchronize(own_thread));
}

fn captured(scene: &mut Scene, _round: u8) {
    let (side, fork, join) = (stream(1), event(), event());
    let (mut graph, mut executable) = (null_mut(), null_mut());
    ok!(cuStreamBeginCapture_v2(scene.lane, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    scene.count(scene.part, scene.lane);
    ok!(cuEventRecord(fork, scene.lane));
    ok!(cuStreamWaitEvent(side, fork, 0));
    scene.count(scene.other, side);
    ok!(cuEventRecord(join, side));
    ok!(cuStreamWaitEvent(scene.lane, join, 0));
    ok!(cuStreamEndCapture(scene.lane, &mut graph));
    launch_often(scene, graph, &mut executable);
    ok!(cuStreamDestroy_v2(side));
    ok!(cuEventDestroy_v2(fork));
    ok!(cuEventDestroy_v2(join));
}

fn launch_often(scene: &Scene, graph: sys::CUgraph, executable: &mut sys::CUgraphExec) {
    ok!(cuGraphInstantiateWithFlags(executable, graph, 0));
    for _ in 0..3 {
        ok!(cuGraphLaunch(*executable, scene.lane));
    }
    scene.synchronize();
    ok!(cuGraphExecDestroy(*executable));
    ok!(cuGraphDestroy(graph));
}

fn spot(base: u64) -> Spot {
    Spot { space: Space::Device, base, store: 0, offset: 0 }
}

fn some_work(scene: &Scene, round: u8) -> [Op; 3] {
    let (part, other) = (spot(scene.part), spot(scene.other));
    [
        Op::Set { to: part, element: 4, value: u32::from(round), count: PART / 8 },
        Op::Count { at: part, bytes: PART, form: Form::Plain },
        Op::Copy { to: other, from: part, bytes: PART },
    ]
}

fn built(scene: &mut Scene, round: u8) {
    let (mut graph, mut executable) = (null_mut(), null_mut());
    ok!(cuGraphCreate(&mut graph, 0));
    let mut last = empty_node(graph);
    for op in some_work(scene, round) {
        last = op.node(graph, &[last], scene.kernel.function, scene.home);
    }
    launch_often(scene, graph, &mut executable);
}

fn graph_memory(scene: &mut Scene, round: u8) {
    let (mut graph, mut executable, mut at) = (null_mut(), null_mut(), 0);
    ok!(cuStreamBeginCapture_v2(scene.lane, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED));
    ok!(cuMemAllocAsync(&mut at, PART, scene.lane));
    ok!(cuMemsetD8Async(at, round, PART, scene.lane));
    scene.count(at, scene.lane);
    scene.show(at, PART);
    ok!(cuMemFreeAsync(at, scene.lane));
    ok!(cuStreamEndCapture(scene.lane, &mut graph));
    launch_often(scene, graph, &mut executable);
}

fn pools(scene: &mut Scene, round: u8) {
    let (pool, mut one, mut other) = (new_pool(), 0, 0);
    ok!(cuMemAllocFromPoolAsync(&mut one, PART, pool, scene.lane));
    ok!(cuMemAllocAsync(&mut other, PART, scene.lane));
    ok!(cuMemsetD8Async(one, round, PART, scene.lane));
    ok!(cuMemcpyDtoDAsync_v2(other, one, PART, scene.lane));
    scene.show(other, PART);
    ok!(cuMemFreeAsync(one, scene.lane));
    ok!(cuMemFreeAsync(other, scene.lane));
    ok!(cuMemPoolTrimTo(pool, 0));
    scene.synchronize();
    ok!(cuMemPoolDestroy(pool));
}

fn pitch(scene: &mut Scene, round: u8) {
    let (mut at, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(&mut at, &mut pitch, 1000, 100, 4));
    ok!(cuMemsetD2D8Async(at, pitch, round, 1000, 100, scene.lane));
    let rows = |spot, pitch| Rows { spot, pitch };
    let copy = volume(rows(spot(scene.other), 1000), rows(spot(at), pitch), [1000, 100, 1]);
    ok!(cuMemcpy3DAsync_v2(&copy, scene.lane));
    ok!(cuMemFree_v2(at));
    scene.synchronize();
}

fn arrays(scene: &mut Scene, round: u8) {
    let (row, height) = (256, 64);
    let shape = sys::CUDA_ARRAY_DESCRIPTOR {
        Width: row / 4,
        Height: height,
        Format: sys::CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32,
        NumChannels: 1,
    };
    let mut array = null_mut();
    ok!(cuArrayCreate_v2(&mut array, &shape));
    ok!(cuMemsetD8Async(scene.part, round, row * height, scene.lane));
    let base = array.expose_provenance() as u64;
    let inside = Rows { spot: Spot { space: Space::Array(row), ..spot(base) }, pitch: row };
    let outside = |base| Rows { spot: spot(base), pitch: row };
    ok!(cuMemcpy3DAsync_v2(&volume(inside, outside(scene.part), [row, height, 1]), scene.lane));
    ok!(cuMemcpy3DAsync_v2(&volume(outside(scene.other), inside, [row, height, 1]), scene.lane));
    scene.synchronize();
    ok!(cuArrayDestroy(array));
}

fn handles(scene: &mut Scene, round: u8) {
    let (mut handle, mut again) = (0, 0);
    ok!(cuMemCreate(&mut handle, PART, &properties(), 0));
    let (one, other) = (map(handle, PART), map(handle, PART));
    ok!(cuMemsetD8Async(one, round, PART, scene.lane));
    ok!(cuMemRelease(handle));
    scene.count(other, scene.lane);
    scene.synchronize();
    unmap(other, PART);
    ok!(cuMemRetainAllocationHandle(&mut again, std::ptr::without_provenance_mut(one as usize)));
    unmap(one, PART);
    let third = map(again, PART);
    scene.show(third, PART);
    scene.synchronize();
    unmap(third, PART);
    ok!(cuMemRelease(again));
}

/// Only a descriptor leads to the memory for a time, in which other memory is allocated.
fn exported(scene: &mut Scene, round: u8) {
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let (mut handle, mut descriptor, mut other) = (0, -1i32, 0);
    let wanted = sys::CUmemAllocationProp { requestedHandleTypes: kind, ..properties() };
    ok!(cuMemCreate(&mut handle, PART, &wanted, 0));
    let at = map(handle, PART);
    ok!(cuMemsetD8Async(at, round, PART, scene.lane));
    scene.synchronize();
    ok!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, kind, 0));
    unmap(at, PART);
    ok!(cuMemRelease(handle));
    ok!(cuMemAlloc_v2(&mut other, PART));
    ok!(cuMemsetD8Async(other, !round, PART, scene.lane));
    scene.synchronize();
    let place = std::ptr::without_provenance_mut(descriptor as usize);
    ok!(cuMemImportFromShareableHandle(&mut handle, place, kind));
    // SAFETY: the export made it for us, and it is used no more.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    let again = map(handle, PART);
    scene.show(again, PART);
    scene.synchronize();
    unmap(again, PART);
    ok!(cuMemRelease(handle));
    ok!(cuMemFree_v2(other));
}

fn copies(scene: &mut Scene, round: u8) {
    let rows = |base, pitch| Rows { spot: spot(base), pitch };
    ok!(cuMemsetD8Async(scene.part, round, PART, scene.lane));
    assert_eq!(memcpy_batch(scene.other, scene.part, PART, scene.lane), CUresult::CUDA_SUCCESS);
    scene.count(scene.part, scene.lane);
    let flat = Op::CopyRows {
        to: rows(scene.other, 300),
        from: rows(scene.part, 200),
        width: 100,
        height: 40,
        depth: 1,
    };
    let deep = Op::CopyRows {
        to: rows(scene.other, 128),
        from: rows(scene.part, 256),
        width: 99,
        height: 8,
        depth: 3,
    };
    for (way, op) in [flat, deep].into_iter().enumerate() {
        op.submit(scene.lane, scene.kernel.function, way + 1);
    }
    scene.synchronize();
}

fn words(scene: &mut Scene, round: u8) {
    const EQUAL: u32 = 1;
    let other = stream(1);
    ok!(cuStreamWriteValue32_v2(scene.lane, scene.part, u32::from(round), 0));
    ok!(cuStreamWaitValue32_v2(other, scene.part, u32::from(round), EQUAL));
    ok!(cuStreamWriteValue64_v2(other, scene.other, u64::from(round) << 33, 0));
    ok!(cuStreamSynchronize(other));
    ok!(cuStreamDestroy_v2(other));
}

fn green(scene: &mut Scene, _round: u8) {
    // SAFETY: plain C data; zero is a value of each enum in it.
    let mut all: sys::CUdevResource = unsafe { std::mem::zeroed() };
    ok!(cuDeviceGetDevResource(0, &mut all, sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM));
    let (mut description, mut green, mut context, mut lane) =
        (null_mut(), null_mut(), null_mut(), null_mut());
    ok!(cuDevResourceGenerateDesc(&mut description, &mut all, 1));
    const DEFAULT_STREAM: u32 = 1;
    ok!(cuGreenCtxCreate(&mut green, description, 0, DEFAULT_STREAM));
    ok!(cuCtxFromGreenCtx(&mut context, green));
    ok!(cuGreenCtxStreamCreate(&mut lane, green, 1, 0));
    within(context, || {
        let kernel = Kernel::load(&scene.image, false);
        let code = launch(Form::Plain, kernel.function, lane, scene.part, PART);
        assert_eq!(code, CUresult::CUDA_SUCCESS);
        ok!(cuStreamSynchronize(lane));
        ok!(cuModuleUnload(kernel.module));
    });
    ok!(cuStreamDestroy_v2(lane));
    ok!(cuGreenCtxDestroy(green));
}

/// Contexts that end with memory of theirs.
fn contexts(scene: &mut Scene, round: u8) {
    let context = new_context();
    let (at, lane) = (alloc(PART), stream(1));
    let kernel = Kernel::load(&scene.image, false);
    ok!(cuMemsetD8Async(at, round, PART, lane));
    assert_eq!(launch(Form::Plain, kernel.function, lane, at, PART), CUresult::CUDA_SUCCESS);
    ok!(cuMemcpyDtoDAsync_v2(scene.other, at, PART, lane));
    ok!(cuStreamSynchronize(lane));
    ok!(cuCtxDestroy_v2(context));
    let mut current = null_mut();
    ok!(cuCtxGetCurrent(&mut current));
    assert_eq!(current, scene.home);
}

/// All is lost, and had again.
fn reset(scene: &mut Scene, round: u8) {
    ok!(cuMemsetD8_v2(scene.part, round, PART));
    let before = sum(&read(scene.part, PART));
    ok!(cuDevicePrimaryCtxReset_v2(0));
    *scene = Scene::new(&scene.image);
    ok!(cuMemcpyHtoD_v2(scene.other, arg(&before), 8));
}

fn modules(scene: &mut Scene, round: u8) {
    let old = std::mem::replace(&mut scene.kernel, Kernel::load(&scene.image, round.is_multiple_of(2)));
    ok!(cuModuleUnload(old.module));
    let function: CUfunction = scene.kernel.function;
    assert_eq!(launch(Form::Ex, function, scene.lane, scene.part, PART), CUresult::CUDA_SUCCESS);
    scene.synchronize();
}

fn managed(scene: &mut Scene, round: u8) {
    let mut at = 0;
    ok!(cuMemAllocManaged(&mut at, PART, 1));
    ok!(cuMemAdvise_v2(at, PART, sys::CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY, device()));
    ok!(cuMemPrefetchAsync_v2(at, PART, device(), 0, scene.lane));
    ok!(cuMemsetD8Async(at, round, PART, scene.lane));
    scene.count(at, scene.lane);
    scene.show(at, PART);
    scene.synchronize();
    ok!(cuMemFree_v2(at));
}
