//! The linker: it takes anything and gives one image. A single library for this machine stays what it
//! is; anything else becomes an opaque image, which has every kernel.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUjit_option, CUjitInputType, CUlinkState, CUresult};
use parking_lot::Mutex;

use crate::abi::{Answer, Enum, HostMut, Ignored, Maybe, Out, Text};
use crate::context;
use crate::registry::Registry;

const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
const OPAQUE: &[u8] = b"softgpu linked image\0";

/// A link under way.
struct Link {
    handle: usize,
    inputs: Mutex<Vec<Arc<[u8]>>>,
}

static LINKS: Registry<Link> = Registry::new();

type Options = Ignored<*mut CUjit_option>;
type Values = Ignored<*mut *mut c_void>;

fn find(state: CUlinkState) -> Answer<Arc<Link>> {
    LINKS.get(state as usize).ok_or(INVALID_HANDLE)
}

/// `cuLinkCreate_v2`
pub fn create(_count: u32, _options: Options, _values: Values, out: Out<CUlinkState>) -> Answer {
    context::current()?;
    out.set(LINKS.add(|handle| Link { handle, inputs: Mutex::default() }).handle as CUlinkState);
    Ok(())
}

/// `cuLinkAddData_v2`
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub fn add_data(
    state: CUlinkState,
    _kind: Enum<CUjitInputType>,
    data: HostMut,
    size: usize,
    _name: Ignored<*const std::ffi::c_char>,
    _count: u32,
    _options: Options,
    _values: Values,
) -> Answer {
    let link = find(state)?;
    if data.0 == 0 || size == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller passes that many bytes of input, which are copied here.
    let bytes = unsafe { std::slice::from_raw_parts(data.0 as *const u8, size) };
    link.inputs.lock().push(bytes.into());
    Ok(())
}

/// `cuLinkAddFile_v2`
pub fn add_file(
    state: CUlinkState,
    _kind: Enum<CUjitInputType>,
    path: Text,
    _count: u32,
    _options: Options,
    _values: Values,
) -> Answer {
    let link = find(state)?;
    let bytes = std::fs::read(&path.0).map_err(|_| CUresult::CUDA_ERROR_FILE_NOT_FOUND)?;
    link.inputs.lock().push(bytes.into());
    Ok(())
}

/// `cuLinkComplete`: the image stays until the link is destroyed.
pub fn complete(state: CUlinkState, out: Out<*mut c_void>, size: Maybe<usize>) -> Answer {
    let link = find(state)?;
    let inputs = link.inputs.lock();
    let image: &[u8] = match inputs.as_slice() {
        [] => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        [only] if only.starts_with(b"\x7fELF") => only,
        _ => OPAQUE,
    };
    out.set(image.as_ptr().cast_mut().cast());
    size.set(image.len());
    Ok(())
}

/// `cuLinkDestroy`
pub fn destroy(state: CUlinkState) -> Answer {
    LINKS.remove(state as usize).map(drop).ok_or(INVALID_HANDLE)
}
