//! Legacy IPC: an allocation of one process in another, by a handle of 64 bytes.
//!
//! A handle names the allocation's file. Who opens it maps the same pages, and does not count as a
//! holder: when the process that allocated ends, its memory is free, as the driver's manual warns.

use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUipcEventHandle, CUipcMemHandle, CUresult};
use parking_lot::Mutex;

use crate::abi::{Answer, Out};
use crate::context;
use crate::event;
use crate::mark::Mark;
use crate::memory;
use crate::node::{self, Gpu};
use crate::space::{self, Kind, Region};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
const NAME_BYTES: usize = 40;

/// What a handle says.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Ticket {
    gpu: [u8; 16],
    bytes: u64,
    /// The file's name, then zeroes.
    name: [u8; NAME_BYTES],
}

/// An allocation of another process that is open here.
struct Opened {
    ticket: Ticket,
    start: usize,
    times: usize,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

impl Ticket {
    fn new(gpu: [u8; 16], bytes: usize, file: &str) -> Option<Ticket> {
        let mut name = [0; NAME_BYTES];
        name.get_mut(..file.len())?.copy_from_slice(file.as_bytes());
        Some(Ticket { gpu, bytes: bytes as u64, name })
    }

    fn to_handle(self) -> CUipcMemHandle {
        // SAFETY: both are 64 plain bytes.
        unsafe { std::mem::transmute(self) }
    }

    fn of_handle(handle: CUipcMemHandle) -> Ticket {
        // SAFETY: both are 64 plain bytes.
        unsafe { std::mem::transmute(handle) }
    }

    fn file(&self) -> Option<&str> {
        let end = self.name.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&self.name[..end]).ok()
    }

    fn device(&self) -> Answer<(usize, &'static Gpu)> {
        let mut gpus = node::node()?.gpus.iter().enumerate();
        gpus.find(|(_, gpu)| gpu.uuid == self.gpu).ok_or(INVALID)
    }

    /// Maps the allocation it names.
    fn map(&self, context: usize) -> Answer<usize> {
        let (device, gpu) = self.device()?;
        let file = self.file().ok_or(INVALID)?;
        if gpu.store.holds(file) {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let fd = gpu.store.open_of_another(file).ok_or(INVALID)?;
        let size = self.bytes as usize;
        let start = space::map_anywhere(memory::whole_pages(size)?, &fd);
        let start = start.map_err(|_| CUresult::CUDA_ERROR_MAP_FAILED)?;
        space::change().add(Region { start, size, kind: Kind::Opened { device, context } });
        Ok(start)
    }
}

/// `cuIpcGetMemHandle`: of the allocation in which the address lies; only memory of `cuMemAlloc`.
pub fn memory_handle(out: Out<CUipcMemHandle>, at: u64) -> Answer {
    context::current()?;
    let (kind, bytes) = match space::look().find(at as usize) {
        Some(region) => (region.kind.clone(), region.size),
        None => return Err(INVALID),
    };
    let Kind::Allocated { block, device, pool: None, .. } = kind else { return Err(INVALID) };
    let gpu = node::gpu(device as i32)?;
    out.set(Ticket::new(gpu.uuid, bytes, block.kept.name()).ok_or(INVALID)?.to_handle());
    Ok(())
}

/// `cuIpcOpenMemHandle_v2`: once more where it is open already.
pub fn open_memory(out: Out<u64>, handle: CUipcMemHandle, flags: u32) -> Answer {
    let context = context::current()?;
    if flags != LAZY_ENABLE_PEER_ACCESS {
        return Err(INVALID);
    }
    let ticket = Ticket::of_handle(handle);
    let mut opened = OPENED.lock();
    if let Some(same) = opened.iter_mut().find(|same| same.ticket == ticket) {
        same.times += 1;
        out.set(same.start as u64);
        return Ok(());
    }
    let start = ticket.map(context.handle)?;
    opened.push(Opened { ticket, start, times: 1 });
    out.set(start as u64);
    Ok(())
}

/// `cuIpcCloseMemHandle`: unmaps it when it has been closed as often as opened.
pub fn close_memory(at: u64) -> Answer {
    let context = context::current()?;
    let mut opened = OPENED.lock();
    let place = opened.iter().position(|one| one.start == at as usize).ok_or(INVALID)?;
    opened[place].times -= 1;
    if opened[place].times > 0 {
        return Ok(());
    }
    context.synchronize()?;
    opened.remove(place);
    let this = |region: &Region| matches!(region.kind, Kind::Opened { .. });
    let region = space::change().take(at as usize, this);
    region.into_iter().for_each(memory::give_back);
    Ok(())
}

/// Forgets what was open in a context that ends.
pub fn forget(regions: &[Region]) {
    OPENED.lock().retain(|one| regions.iter().all(|region| region.start != one.start));
}

/// `cuIpcGetEventHandle`
pub fn event_handle(out: Out<CUipcEventHandle>, event: CUevent) -> Answer {
    let (pid, fd) = event::mark_of(event)?.address();
    let mut bytes = [0u8; 64];
    bytes[..4].copy_from_slice(&pid.to_le_bytes());
    bytes[4..8].copy_from_slice(&fd.to_le_bytes());
    out.set(CUipcEventHandle { reserved: bytes.map(|byte| byte as std::ffi::c_char) });
    Ok(())
}

/// `cuIpcOpenEventHandle`
pub fn open_event(out: Out<CUevent>, handle: CUipcEventHandle) -> Answer {
    let number = |from: usize| {
        let bytes = std::array::from_fn(|at| handle.reserved[from + at] as u8);
        u32::from_le_bytes(bytes)
    };
    let mark = Mark::of_another(number(0), number(4)).ok_or(INVALID)?;
    out.set(event::open(Arc::new(mark))?);
    Ok(())
}
