//! Green contexts: contexts that are promised some of a GPU's multiprocessors. The promise is counted,
//! not kept: kernels here run on the host's cores.

use std::sync::Arc;

use cudarc::driver::sys::{
    CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUevent, CUgreenCtx, CUresult, CUstream,
};

use crate::abi::{Answer, Enum, In, InMut, InOut, Maybe, Mirror, Out, Room};
use crate::context::{self, Context};
use crate::device;
use crate::event;
use crate::node;
use crate::registry::Registry;
use crate::stream;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const SM: u32 = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM as u32;
const DEFAULT_STREAM: u32 = 1;
const NON_BLOCKING: u32 = 1;

/// Multiprocessors come in groups of so many.
const GROUP: u32 = 2;

/// `CUdevResource` with a number for its enum.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawResource {
    kind: u32,
    padding: [u8; 92],
    multiprocessors: u32,
    smallest: u32,
    alignment: u32,
    rest: [u8; 36],
}

impl Mirror for RawResource {
    type Of = CUdevResource;
}

impl RawResource {
    fn of(multiprocessors: u32) -> RawResource {
        let (smallest, alignment) = (GROUP, GROUP);
        RawResource { kind: SM, padding: [0; 92], multiprocessors, smallest, alignment, rest: [0; 36] }
    }
}

/// What a description was made of.
struct Description {
    handle: usize,
    multiprocessors: u32,
}

/// A green context.
struct Green {
    handle: usize,
    context: Arc<Context>,
    multiprocessors: u32,
}

static DESCRIPTIONS: Registry<Description> = Registry::new();
static GREEN: Registry<Green> = Registry::new();

fn find(green: CUgreenCtx) -> Answer<Arc<Green>> {
    GREEN.get(green as usize).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

fn of_context(context: usize) -> Option<Arc<Green>> {
    GREEN.all().into_iter().find(|green| green.context.handle == context)
}

/// The contexts of a GPU's green contexts.
pub fn contexts_on(device: usize) -> Vec<Arc<Context>> {
    let contexts = GREEN.all().into_iter().map(|green| green.context.clone());
    contexts.filter(|context| context.device == device).collect()
}

fn whole() -> u32 {
    device::MULTIPROCESSORS.unsigned_abs()
}

fn check_kind(kind: &Enum<CUdevResourceType>) -> Answer {
    if kind.0 == SM { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE) }
}

/// `cuDeviceGetDevResource`
pub fn of_device(device: i32, out: InMut<RawResource>, kind: Enum<CUdevResourceType>) -> Answer {
    node::gpu(device)?;
    check_kind(&kind)?;
    out.set(RawResource::of(whole()));
    Ok(())
}

/// `cuCtxGetDevResource`
pub fn of_named(context: CUcontext, out: InMut<RawResource>, kind: Enum<CUdevResourceType>) -> Answer {
    let context = context::named(context)?;
    check_kind(&kind)?;
    let count = of_context(context.handle).map_or(whole(), |green| green.multiprocessors);
    out.set(RawResource::of(count));
    Ok(())
}

/// `cuGreenCtxGetDevResource`
pub fn of_green(green: CUgreenCtx, out: InMut<RawResource>, kind: Enum<CUdevResourceType>) -> Answer {
    let green = find(green)?;
    check_kind(&kind)?;
    out.set(RawResource::of(green.multiprocessors));
    Ok(())
}

/// `cuDevSmResourceSplitByCount`: as many groups as asked for and possible, and what is left.
pub fn split(
    groups: Room<CUdevResource>,
    count: InOut<u32>,
    input: In<RawResource>,
    rest: Maybe<CUdevResource>,
    _flags: u32,
    least: u32,
) -> Answer {
    let input = input.get();
    if input.kind != SM || least > input.multiprocessors {
        return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    let size = least.max(1).next_multiple_of(GROUP);
    let possible = input.multiprocessors / size;
    if !groups.wanted() {
        count.set(possible);
        return Ok(());
    }
    let made = count.get().min(possible);
    let parts = vec![RawResource::of(size).to_c(); made as usize];
    if let Some(first) = parts.first() {
        groups.fill(&parts, made as usize, *first);
    }
    count.set(made);
    rest.set(RawResource::of(input.multiprocessors - made * size).to_c());
    Ok(())
}

impl RawResource {
    fn to_c(self) -> CUdevResource {
        // SAFETY: the same layout, with a kind that the enum has.
        unsafe { std::mem::transmute(self) }
    }
}

/// `cuDevResourceGenerateDesc`
pub fn describe(out: Out<CUdevResourceDesc>, resources: InMut<RawResource>, count: u32) -> Answer {
    let resources = resources.many(count as usize);
    if resources.is_empty() || resources.iter().any(|resource| resource.kind != SM) {
        return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    let multiprocessors = resources.iter().map(|resource| resource.multiprocessors).sum();
    let made = DESCRIPTIONS.add(|handle| Description { handle, multiprocessors });
    out.set(made.handle as CUdevResourceDesc);
    Ok(())
}

/// `cuGreenCtxCreate`
pub fn create(out: Out<CUgreenCtx>, description: CUdevResourceDesc, device: i32, flags: u32) -> Answer {
    node::gpu(device)?;
    let described = DESCRIPTIONS.get(description as usize).ok_or(INVALID)?;
    if flags != DEFAULT_STREAM {
        return Err(INVALID);
    }
    let (context, multiprocessors) = (context::add(device)?, described.multiprocessors);
    out.set(GREEN.add(|handle| Green { handle, context, multiprocessors }).handle as CUgreenCtx);
    Ok(())
}

/// `cuGreenCtxDestroy`
pub fn destroy(green: CUgreenCtx) -> Answer {
    let green = find(green)?;
    GREEN.remove(green.handle);
    context::destroy(green.context.handle as CUcontext)
}

/// `cuCtxFromGreenCtx`
pub fn context(out: Out<CUcontext>, green: CUgreenCtx) -> Answer {
    out.set(find(green)?.context.handle as CUcontext);
    Ok(())
}

/// `cuGreenCtxGetId`
pub fn id(green: CUgreenCtx, out: Out<u64>) -> Answer {
    out.set(find(green)?.handle as u64);
    Ok(())
}

/// `cuGreenCtxStreamCreate`: its streams are non-blocking.
pub fn create_stream(out: Out<CUstream>, green: CUgreenCtx, flags: u32, priority: i32) -> Answer {
    if flags != NON_BLOCKING {
        return Err(INVALID);
    }
    stream::create_in(&out, &find(green)?.context, flags, priority)
}

/// `cuGreenCtxRecordEvent`
pub fn record(green: CUgreenCtx, event: CUevent) -> Answer {
    event::record_context(find(green)?.context.handle as CUcontext, event)
}

/// `cuGreenCtxWaitEvent`
pub fn wait(green: CUgreenCtx, event: CUevent) -> Answer {
    event::await_in_context(find(green)?.context.handle as CUcontext, event)
}

/// `cuStreamGetCtx_v2`: the context, or the green context whose stream it is.
pub fn of_stream(stream: CUstream, context: Maybe<CUcontext>, green: Maybe<CUgreenCtx>) -> Answer {
    let stream = stream::resolve(stream)?;
    let found = of_context(stream.context.handle);
    context.set(stream.context.handle as CUcontext);
    green.set(found.map_or(0, |green| green.handle) as CUgreenCtx);
    Ok(())
}
