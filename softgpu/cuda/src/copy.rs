//! Copies, between any two of host and device memory, of one, two or three dimensions.
//!
//! What a copy may touch is looked up when it runs, in its stream. A range that is not accessible
//! then faults the context. Pageable host memory is read at the call and written before the call
//! returns, as CUDA does; pinned memory when the copy runs. A call that names no stream waits for its
//! copy, except within device memory, as CUDA documents it. (Hardware does not wait for the last 64 KiB
//! from pageable memory either. Here it does: a process that copies some bytes needs no thread of ours.)

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUarray, CUcontext, CUmemorytype, CUresult, CUstream,
};

use crate::abi::{Answer, Host, HostMut, In, Mirror};
use crate::array::{self, Array};
use crate::context::{self, Context};
use crate::model::{Link, Timeline};
use crate::node::Gpu;
use crate::pointer;
use crate::space::{self, Side, Space, Touch};
use crate::stream::{self, Stream};
use crate::work::Op;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
/// Bytes that are copied at once: far fewer than the C library writes past the caches.
const STRIDE: usize = 1 << 20;

/// One copy.
#[derive(Clone)]
pub struct Transfer {
    from: End,
    to: End,
    /// Bytes of a row.
    width: usize,
    /// Rows of a slice.
    height: usize,
    /// Slices.
    depth: usize,
    /// The source's bytes as they were at the call.
    staged: Option<Arc<[u8]>>,
}

/// One end of a copy.
#[derive(Clone, Copy)]
struct End {
    start: usize,
    /// Bytes from row to row.
    pitch: usize,
    /// Bytes from slice to slice.
    slice: usize,
    side: Side,
    /// The device that touches it, where a copy between peers names it; else that of the stream.
    device: Option<usize>,
}

impl Transfer {
    fn line(to: (usize, Side), from: (usize, Side), bytes: usize) -> Transfer {
        let end = |(start, side)| End { start, pitch: bytes, slice: bytes, side, device: None };
        Transfer { from: end(from), to: end(to), width: bytes, height: 1, depth: 1, staged: None }
    }

    /// A copy between peers: each end is touched by the device of its own context.
    fn between(mut self, to_in: CUcontext, from_in: CUcontext) -> Answer<Transfer> {
        self.to.device = Some(context::named(to_in)?.device);
        self.from.device = Some(context::named(from_in)?.device);
        Ok(self)
    }

    /// As parameters of a node.
    pub fn describe(&self) -> Raw3d {
        let (from, to) = (self.from.describe(), self.to.describe());
        Raw3d { from, to, width: self.width, height: self.height, depth: self.depth }
    }

    /// Carries it out; a range that may not be touched faults the context.
    pub fn run(&self, context: &Context, clock: &mut Timeline) {
        let Ok(gpu) = context.gpu() else { return };
        Transfer::run_all(slice::from_ref(self), gpu.config.call_cost(), context, clock);
    }

    /// The same of the copies of a batch, in any order.
    pub fn run_batch(transfers: &[Transfer], context: &Context, clock: &mut Timeline) {
        let Ok(gpu) = context.gpu() else { return };
        let copies = u32::try_from(transfers.len()).unwrap_or(u32::MAX);
        let cost = gpu.config.call_cost() + gpu.config.copy_cost().saturating_mul(copies);
        Transfer::run_all(transfers, cost, context, clock);
    }

    fn run_all(transfers: &[Transfer], cost: Duration, context: &Context, clock: &mut Timeline) {
        let Ok(gpu) = context.gpu() else { return };
        clock.begin(cost);
        let mut arrival = None;
        for transfer in transfers {
            let Some(link) = transfer.check(context.device, gpu) else { return context.fault_of_copy() };
            let end = link.and_then(|link| link.book(transfer.bytes()));
            transfer.copy_rows(if end.is_some() { Cost::Link } else { Cost::Bytes });
            arrival = arrival.max(end);
        }
        clock.finish(Duration::ZERO, arrival);
    }

    /// Whether both ends may be touched, and the link that is crossed.
    fn check<'gpu>(&self, device: usize, gpu: &'gpu Gpu) -> Option<Option<&'gpu Link>> {
        let space = space::look();
        let allows = |end: &End, write| space.allows(end.device.unwrap_or(device), self.touch(end, write));
        let reads = self.staged.is_some() || allows(&self.from, false);
        if !reads || !allows(&self.to, true) {
            return None;
        }
        let from_device = self.staged.is_none() && on_device(&space, &self.from);
        match (from_device, on_device(&space, &self.to)) {
            (false, true) => Some(Some(&gpu.inward)),
            (true, false) => Some(Some(&gpu.outward)),
            _ => Some(None),
        }
    }

    fn touch(&self, end: &End, write: bool) -> Touch {
        Touch { start: end.start, bytes: self.reach(end), side: end.side, write }
    }

    /// Bytes from the first to the last that an end touches.
    fn reach(&self, end: &End) -> usize {
        if self.bytes() == 0 {
            return 0;
        }
        (self.depth - 1) * end.slice + (self.height - 1) * end.pitch + self.width
    }

    fn bytes(&self) -> usize {
        self.width * self.height * self.depth
    }

    fn copy_rows(&self, cost: Cost) {
        let source = self.staged.as_ref().map_or(self.from.start, |bytes| bytes.as_ptr() as usize);
        for slice in 0..self.depth {
            for row in 0..self.height {
                let from = source + slice * self.from.slice + row * self.from.pitch;
                let to = self.to.start + slice * self.to.slice + row * self.to.pitch;
                copy_bytes(to, from, self.width, cost);
            }
        }
    }

    /// Submits it; returns when CUDA would: at once, or when pageable memory has been written.
    pub fn start(mut self, stream: &Arc<Stream>) -> Answer {
        let captured = stream.capture().is_some();
        if !captured && self.pageable(&self.to) {
            return self.start_and_wait(stream);
        }
        if !captured && self.pageable(&self.from) {
            self.stage();
        }
        stream.submit(Op::Transfer(self))
    }

    /// Submits several as one operation, where none is captured and none has to do with pageable memory.
    fn start_all(transfers: Vec<Transfer>, stream: &Arc<Stream>) -> Answer {
        let is_simple = |one: &Transfer| !one.pageable(&one.to) && !one.pageable(&one.from);
        if stream.capture().is_none() && transfers.iter().all(is_simple) {
            return stream.submit(Op::Transfers(transfers.into()));
        }
        transfers.into_iter().try_for_each(|transfer| transfer.start(stream))
    }

    /// What a call does that names no stream.
    fn start_and_wait(self, stream: &Arc<Stream>) -> Answer {
        if self.bytes() == 0 {
            return Ok(());
        }
        let space = space::look();
        let within = on_device(&space, &self.from) && on_device(&space, &self.to);
        drop(space);
        let waits = [self.from.start, self.to.start].into_iter().any(pointer::is_synchronous);
        if within && !waits {
            stream.start(Op::Transfer(self))
        } else {
            stream.run_to_end(Op::Transfer(self))
        }
    }

    fn pageable(&self, end: &End) -> bool {
        let (space, bytes) = (space::look(), self.reach(end));
        end.side == Side::Anywhere
            && !space.touches_device(end.start, end.start + bytes)
            && !space.is_pinned(end.start, bytes)
    }

    fn stage(&mut self) {
        let mut bytes = vec![0; self.reach(&self.from)];
        copy_bytes(bytes.as_mut_ptr() as usize, self.from.start, bytes.len(), Cost::Bytes);
        self.staged = Some(bytes.into());
    }
}

impl End {
    fn describe(&self) -> RawEnd3d {
        let on_device = self.side == Side::Device || on_device(&space::look(), self);
        let kind =
            if on_device { CUmemorytype::CU_MEMORYTYPE_DEVICE } else { CUmemorytype::CU_MEMORYTYPE_HOST };
        RawEnd3d {
            kind: kind as u32,
            host: if on_device { 0 } else { self.start },
            device: if on_device { self.start as u64 } else { 0 },
            pitch: self.pitch,
            height: self.slice.checked_div(self.pitch).unwrap_or(0),
            ..RawEnd3d::default()
        }
    }
}

fn on_device(space: &Space, end: &End) -> bool {
    space.touches_device(end.start, end.start + 1) && space.hosted_bytes(end.start) == 0
}

/// What a copy takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cost {
    /// What its bytes take on the modelled link, or longer if it must.
    Link,
    /// The same for each byte.
    Bytes,
}

/// As `memmove`, but, unless the link sets the time, each byte costs the same however many there are, as with a copy
/// engine: the C library writes long ranges past the caches, and takes two thirds of the time for them.
fn copy_bytes(to: usize, from: usize, bytes: usize, cost: Cost) {
    let is_even = cost == Cost::Bytes && to.abs_diff(from) >= bytes;
    let stride = if is_even { STRIDE } else { bytes.max(1) };
    for done in (0..bytes).step_by(stride) {
        // SAFETY: device ranges were found mapped and accessible; host ranges are the program's word,
        // as with the driver. Both may be used by others at the same time only in racing programs, whose
        // bytes are then undefined on hardware too.
        unsafe {
            std::ptr::copy((from + done) as *const u8, (to + done) as *mut u8, stride.min(bytes - done));
        }
    }
}

fn device(at: u64) -> (usize, Side) {
    (at as usize, Side::Device)
}

fn anywhere(at: usize) -> (usize, Side) {
    (at, Side::Anywhere)
}

/// The default stream's turn, and the caller waits where CUDA does.
fn now(to: (usize, Side), from: (usize, Side), bytes: usize) -> Answer {
    Transfer::line(to, from, bytes).start_and_wait(&stream::default()?)
}

fn later(to: (usize, Side), from: (usize, Side), bytes: usize, stream: CUstream) -> Answer {
    let stream = stream::resolve(stream)?;
    if bytes == 0 { Ok(()) } else { Transfer::line(to, from, bytes).start(&stream) }
}

/// `cuMemcpyHtoD_v2`
pub fn to_device(to: u64, from: Host, bytes: usize) -> Answer {
    now(device(to), anywhere(from.0), bytes)
}

/// `cuMemcpyHtoDAsync_v2`
pub fn to_device_async(to: u64, from: Host, bytes: usize, stream: CUstream) -> Answer {
    later(device(to), anywhere(from.0), bytes, stream)
}

/// `cuMemcpyDtoH_v2`
pub fn to_host(to: HostMut, from: u64, bytes: usize) -> Answer {
    now(anywhere(to.0), device(from), bytes)
}

/// `cuMemcpyDtoHAsync_v2`
pub fn to_host_async(to: HostMut, from: u64, bytes: usize, stream: CUstream) -> Answer {
    later(anywhere(to.0), device(from), bytes, stream)
}

/// `cuMemcpyDtoD_v2`
pub fn within(to: u64, from: u64, bytes: usize) -> Answer {
    now(device(to), device(from), bytes)
}

/// `cuMemcpyDtoDAsync_v2`
pub fn within_async(to: u64, from: u64, bytes: usize, stream: CUstream) -> Answer {
    later(device(to), device(from), bytes, stream)
}

/// `cuMemcpy`
pub fn any(to: u64, from: u64, bytes: usize) -> Answer {
    now(anywhere(to as usize), anywhere(from as usize), bytes)
}

/// `cuMemcpyAsync`
pub fn any_async(to: u64, from: u64, bytes: usize, stream: CUstream) -> Answer {
    later(anywhere(to as usize), anywhere(from as usize), bytes, stream)
}

/// The copies of a batch: to, from, bytes.
pub fn many_async(copies: impl Iterator<Item = (u64, u64, usize)>, stream: CUstream) -> Answer {
    let stream = stream::resolve(stream)?;
    let line = |(to, from, bytes)| Transfer::line(anywhere(to as usize), anywhere(from as usize), bytes);
    let transfers: Vec<Transfer> = copies.filter(|(.., bytes)| *bytes > 0).map(line).collect();
    if transfers.is_empty() { Ok(()) } else { Transfer::start_all(transfers, &stream) }
}

/// `cuMemcpyPeer`
pub fn peer(to: u64, to_in: CUcontext, from: u64, from_in: CUcontext, bytes: usize) -> Answer {
    let transfer = Transfer::line(device(to), device(from), bytes).between(to_in, from_in)?;
    transfer.start_and_wait(&stream::default()?)
}

/// `cuMemcpyPeerAsync`
pub fn peer_async(
    to: u64,
    to_in: CUcontext,
    from: u64,
    from_in: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    let transfer = Transfer::line(device(to), device(from), bytes).between(to_in, from_in)?;
    let stream = stream::resolve(stream)?;
    if bytes == 0 { Ok(()) } else { transfer.start(&stream) }
}

/// One end in `CUDA_MEMCPY2D`, its enum a number.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawEnd2d {
    x: usize,
    y: usize,
    kind: u32,
    host: usize,
    device: u64,
    array: usize,
    pitch: usize,
}

/// `CUDA_MEMCPY2D` with numbers for its enums.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Raw2d {
    from: RawEnd2d,
    to: RawEnd2d,
    width: usize,
    height: usize,
}

impl Mirror for Raw2d {
    type Of = CUDA_MEMCPY2D;
}

/// One end in `CUDA_MEMCPY3D`, its enum a number.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawEnd3d {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: usize,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D` with numbers for its enums.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Raw3d {
    from: RawEnd3d,
    to: RawEnd3d,
    width: usize,
    height: usize,
    depth: usize,
}

impl Mirror for Raw3d {
    type Of = CUDA_MEMCPY3D;
}

/// The base address of an end that is no array, by its memory type.
fn base(kind: u32, host: usize, device: u64) -> Answer<(usize, Side)> {
    const HOST: u32 = CUmemorytype::CU_MEMORYTYPE_HOST as u32;
    const DEVICE: u32 = CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    const UNIFIED: u32 = CUmemorytype::CU_MEMORYTYPE_UNIFIED as u32;
    match kind {
        HOST => Ok((host, Side::Anywhere)),
        DEVICE => Ok((device as usize, Side::Device)),
        UNIFIED => Ok((device as usize, Side::Anywhere)),
        _ => Err(INVALID),
    }
}

const ARRAY: u32 = CUmemorytype::CU_MEMORYTYPE_ARRAY as u32;

/// The part of an array from a place on, if so many bytes, rows and slices lie in it.
fn part(array: &Array, [x, y, z]: [usize; 3], [width, height, depth]: [usize; 3]) -> Answer<End> {
    let (pitch, slice) = (array.row(), array.row() * array.rows());
    if x + width > pitch || y + height > array.rows() || z + depth > array.slices() {
        return Err(INVALID);
    }
    let start = array.start + z * slice + y * pitch + x;
    Ok(End { start, pitch, slice, side: Side::Device, device: None })
}

impl RawEnd2d {
    fn end(&self, width: usize, height: usize) -> Answer<End> {
        if self.kind == ARRAY {
            return part(&*array::find(self.array)?, [self.x, self.y, 0], [width, height, 1]);
        }
        let (start, side) = base(self.kind, self.host, self.device)?;
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        if pitch < self.x + width {
            return Err(INVALID);
        }
        Ok(End { start: start + self.y * pitch + self.x, pitch, slice: 0, side, device: None })
    }
}

impl RawEnd3d {
    fn end(&self, [width, height, depth]: [usize; 3]) -> Answer<End> {
        if self.kind == ARRAY {
            let place = [self.x, self.y, self.z];
            return part(&*array::find(self.array)?, place, [width, height, depth]);
        }
        let flat = RawEnd2d {
            x: self.x,
            y: self.y,
            kind: self.kind,
            host: self.host,
            device: self.device,
            array: self.array,
            pitch: self.pitch,
        };
        let end = flat.end(width, height)?;
        let slice = end.pitch * self.height.max(height);
        Ok(End { start: end.start + self.z * slice, slice, ..end })
    }
}

impl Raw2d {
    fn transfer(&self) -> Answer<Transfer> {
        let (from, to) = (self.from.end(self.width, self.height)?, self.to.end(self.width, self.height)?);
        let (width, height) = (self.width, self.height);
        Ok(Transfer { from, to, width, height, depth: 1, staged: None })
    }
}

impl Raw3d {
    /// The copy it asks for.
    pub fn transfer(&self) -> Answer<Transfer> {
        let (width, height, depth) = (self.width, self.height, self.depth);
        let extent = [width, height, depth];
        let (from, to) = (self.from.end(extent)?, self.to.end(extent)?);
        Ok(Transfer { from, to, width, height, depth, staged: None })
    }
}

/// `cuMemcpy2D_v2` and `cuMemcpy2DUnaligned_v2`
pub fn plane(copy: In<Raw2d>) -> Answer {
    copy.get().transfer()?.start_and_wait(&stream::default()?)
}

/// `cuMemcpy2DAsync_v2`
pub fn plane_async(copy: In<Raw2d>, stream: CUstream) -> Answer {
    copy.get().transfer()?.start(&stream::resolve(stream)?)
}

/// `cuMemcpy3D_v2`
pub fn volume(copy: In<Raw3d>) -> Answer {
    copy.get().transfer()?.start_and_wait(&stream::default()?)
}

/// `cuMemcpy3DAsync_v2`
pub fn volume_async(copy: In<Raw3d>, stream: CUstream) -> Answer {
    copy.get().transfer()?.start(&stream::resolve(stream)?)
}

/// `CUDA_MEMCPY3D_PEER`: each end with its context in place of what is reserved.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct RawPeer(Raw3d);

impl Mirror for RawPeer {
    type Of = CUDA_MEMCPY3D_PEER;
}

impl RawPeer {
    fn transfer(&self) -> Answer<Transfer> {
        let (to_in, from_in) = (self.0.to.reserved as CUcontext, self.0.from.reserved as CUcontext);
        self.0.transfer()?.between(to_in, from_in)
    }
}

/// `cuMemcpy3DPeer`
pub fn peer_volume(copy: In<RawPeer>) -> Answer {
    copy.get().transfer()?.start_and_wait(&stream::default()?)
}

/// `cuMemcpy3DPeerAsync`
pub fn peer_volume_async(copy: In<RawPeer>, stream: CUstream) -> Answer {
    copy.get().transfer()?.start(&stream::resolve(stream)?)
}

/// `CUmemcpy3DOperand`: a pointer with its pitches, or an array with a place in it, in elements.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Operand {
    kind: u32,
    padding: u32,
    /// The pointer or the array.
    base: usize,
    /// Elements of a row, rows of a slice, a hint; or x, y, z.
    rest: [usize; 3],
}

impl Operand {
    const POINTER: u32 = 1;

    /// Bytes of an element, if it says.
    fn element(&self) -> Answer<Option<usize>> {
        if self.kind == Operand::POINTER { Ok(None) } else { Ok(Some(array::find(self.base)?.element())) }
    }

    fn end(&self, element: usize, extent: [usize; 3]) -> Answer<End> {
        if self.kind != Operand::POINTER {
            let [x, y, z] = self.rest;
            return part(&*array::find(self.base)?, [x * element, y, z], extent);
        }
        let [row, rows, _] = self.rest;
        let pitch = if row == 0 { extent[0] } else { row * element };
        let slice = pitch * if rows == 0 { extent[1] } else { rows };
        Ok(End { start: self.base, pitch, slice, side: Side::Anywhere, device: None })
    }
}

/// A copy of so many elements, rows and slices; elements are bytes unless an array says.
pub fn between(from: &Operand, to: &Operand, [width, height, depth]: [usize; 3]) -> Answer<Transfer> {
    let element = from.element()?.or(to.element()?).unwrap_or(1);
    let width = width * element;
    let extent = [width, height, depth];
    let (from, to) = (from.end(element, extent)?, to.end(element, extent)?);
    Ok(Transfer { from, to, width, height, depth, staged: None })
}

/// Some bytes of an array of one dimension.
fn in_array(array: CUarray, offset: usize, bytes: usize) -> Answer<(usize, Side)> {
    Ok((array::find(array as usize)?.run(offset, bytes)?, Side::Device))
}

/// `cuMemcpyDtoA_v2`
pub fn device_to_array(to: CUarray, offset: usize, from: u64, bytes: usize) -> Answer {
    now(in_array(to, offset, bytes)?, device(from), bytes)
}

/// `cuMemcpyAtoD_v2`
pub fn array_to_device(to: u64, from: CUarray, offset: usize, bytes: usize) -> Answer {
    now(device(to), in_array(from, offset, bytes)?, bytes)
}

/// `cuMemcpyHtoA_v2`
pub fn host_to_array(to: CUarray, offset: usize, from: Host, bytes: usize) -> Answer {
    now(in_array(to, offset, bytes)?, anywhere(from.0), bytes)
}

/// `cuMemcpyHtoAAsync_v2`
pub fn host_to_array_async(to: CUarray, offset: usize, from: Host, bytes: usize, stream: CUstream) -> Answer {
    later(in_array(to, offset, bytes)?, anywhere(from.0), bytes, stream)
}

/// `cuMemcpyAtoH_v2`
pub fn array_to_host(to: HostMut, from: CUarray, offset: usize, bytes: usize) -> Answer {
    now(anywhere(to.0), in_array(from, offset, bytes)?, bytes)
}

/// `cuMemcpyAtoHAsync_v2`
pub fn array_to_host_async(
    to: HostMut,
    from: CUarray,
    offset: usize,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    later(anywhere(to.0), in_array(from, offset, bytes)?, bytes, stream)
}

/// `cuMemcpyAtoA_v2`
pub fn array_to_array(to: CUarray, there: usize, from: CUarray, here: usize, bytes: usize) -> Answer {
    now(in_array(to, there, bytes)?, in_array(from, here, bytes)?, bytes)
}
