//! What a GPU can be told to do with memory, on a stream, as a node of a graph, and in the model.

use crate::calls::{Form, arg, cu, launch, ok};
use cudarc::driver::sys::{
    self, CUarray, CUcontext, CUfunction, CUgraph, CUgraphNode, CUmemorytype, CUresult, CUstream,
};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// What some memory must hold, wherever it is mapped.
pub struct Store {
    pub bytes: Vec<u8>,
    /// Where it was last used.
    pub lane: usize,
    /// How many graphs use it.
    pub pins: usize,
}

pub type Stores = BTreeMap<usize, Store>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Space {
    Device,
    Host,
    /// An array with rows of so many bytes.
    Array(usize),
}

/// Some byte of a memory.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    pub space: Space,
    /// The address or array of the memory's first byte.
    pub base: u64,
    pub store: usize,
    pub offset: usize,
}

impl Spot {
    pub fn at(&self) -> u64 {
        self.base + self.offset as u64
    }

    fn host(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.at() as usize)
    }
}

/// A number of rows, a pitch apart.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub spot: Spot,
    pub pitch: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Elements of 1, 2 or 4 bytes.
    Set {
        to: Spot,
        element: usize,
        value: u32,
        count: usize,
    },
    SetRows {
        to: Rows,
        element: usize,
        value: u32,
        width: usize,
        height: usize,
    },
    Copy {
        to: Spot,
        from: Spot,
        bytes: usize,
    },
    CopyRows {
        to: Rows,
        from: Rows,
        width: usize,
        height: usize,
        depth: usize,
    },
    Count {
        at: Spot,
        bytes: usize,
        form: Form,
    },
    Write {
        at: Spot,
        value: u64,
        wide: bool,
    },
}

impl Op {
    /// The memory it touches.
    pub fn stores(&self) -> Vec<usize> {
        match *self {
            Self::Set { to, .. } => vec![to.store],
            Self::SetRows { to, .. } => vec![to.spot.store],
            Self::Copy { to, from, .. } => vec![to.store, from.store],
            Self::CopyRows { to, from, .. } => vec![to.spot.store, from.spot.store],
            Self::Count { at, .. } | Self::Write { at, .. } => vec![at.store],
        }
    }

    /// The same work with another value, if it has one.
    pub fn with(mut self, new: u32) -> Self {
        if let Self::Set { value, .. } | Self::SetRows { value, .. } = &mut self {
            *value = new;
        }
        self
    }

    /// Does it in the model.
    pub fn apply(&self, stores: &mut Stores) {
        match *self {
            Self::Set { to, element, value, count } => {
                set(bytes_at(stores, to, element * count), element, value);
            }
            Self::SetRows { to, element, value, width, height } => {
                for y in 0..height {
                    set(bytes_at(stores, row(to, y), element * width), element, value);
                }
            }
            Self::Copy { to, from, bytes } => copy(stores, to, from, bytes),
            Self::CopyRows { to, from, width, height, depth } => {
                for y in 0..height * depth {
                    copy(stores, row(to, y), row(from, y), width);
                }
            }
            Self::Count { at, bytes, .. } => {
                bytes_at(stores, at, bytes).iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            }
            Self::Write { at, value, wide } => {
                let size = if wide { 8 } else { 4 };
                bytes_at(stores, at, size).copy_from_slice(&value.to_le_bytes()[..size]);
            }
        }
    }

    /// Has it done on a stream of the current context; `way` chooses among calls that do the same.
    pub fn submit(&self, stream: CUstream, function: CUfunction, way: usize) {
        let code = match *self {
            Self::Set { to, element, value, count } => memset(to.at(), element, value, count, stream, way),
            Self::SetRows { to, element, value, width, height } => {
                let (at, pitch) = (to.spot.at(), to.pitch);
                match element {
                    1 => cu!(cuMemsetD2D8Async(at, pitch, value as u8, width, height, stream)),
                    2 => cu!(cuMemsetD2D16Async(at, pitch, value as u16, width, height, stream)),
                    _ => cu!(cuMemsetD2D32Async(at, pitch, value, width, height, stream)),
                }
            }
            Self::Copy { to, from, bytes } => memcpy(to, from, bytes, stream, way),
            Self::CopyRows { to, from, width, height, depth } => {
                memcpy_rows(to, from, [width, height, depth], stream, way)
            }
            Self::Count { at, bytes, form } => launch(form, function, stream, at.at(), bytes),
            Self::Write { at, value, wide: false } => {
                cu!(cuStreamWriteValue32_v2(stream, at.at(), value as u32, 0))
            }
            Self::Write { at, value, wide: true } => cu!(cuStreamWriteValue64_v2(stream, at.at(), value, 0)),
        };
        assert_eq!(code, CUresult::CUDA_SUCCESS, "{self:?}, in way {way}");
    }

    /// Has it done by a node of a graph, after others.
    pub fn node(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        function: CUfunction,
        context: CUcontext,
    ) -> CUgraphNode {
        let mut node = null_mut();
        let (first, count) = (after.as_ptr(), after.len());
        match *self {
            Self::Set { to, element, value, count: width } => {
                let fill = memset_node(to.at(), 0, element, value, width, 1);
                ok!(cuGraphAddMemsetNode(&mut node, graph, first, count, &fill, context));
            }
            Self::SetRows { to, element, value, width, height } => {
                let fill = memset_node(to.spot.at(), to.pitch, element, value, width, height);
                ok!(cuGraphAddMemsetNode(&mut node, graph, first, count, &fill, context));
            }
            Self::Copy { to, from, bytes } => {
                let rows = |spot| Rows { spot, pitch: bytes };
                let copy = volume(rows(to), rows(from), [bytes, 1, 1]);
                ok!(cuGraphAddMemcpyNode(&mut node, graph, first, count, &copy, context));
            }
            Self::CopyRows { to, from, width, height, depth } => {
                let copy = volume(to, from, [width, height, depth]);
                ok!(cuGraphAddMemcpyNode(&mut node, graph, first, count, &copy, context));
            }
            Self::Count { at, bytes, .. } => {
                let at = at.at();
                let mut arguments = [arg(&at), arg(&bytes)];
                let kernel = kernel_node(function, &mut arguments);
                ok!(cuGraphAddKernelNode_v2(&mut node, graph, first, count, &kernel));
            }
            Self::Write { .. } => unreachable!("words are written by streams"),
        }
        node
    }
}

fn bytes_at(stores: &mut Stores, spot: Spot, bytes: usize) -> &mut [u8] {
    let store = stores.get_mut(&spot.store).unwrap();
    &mut store.bytes[spot.offset..spot.offset + bytes]
}

fn set(bytes: &mut [u8], element: usize, value: u32) {
    bytes.chunks_mut(element).for_each(|chunk| chunk.copy_from_slice(&value.to_le_bytes()[..element]));
}

fn copy(stores: &mut Stores, to: Spot, from: Spot, bytes: usize) {
    let source = bytes_at(stores, from, bytes).to_vec();
    bytes_at(stores, to, bytes).copy_from_slice(&source);
}

fn row(rows: Rows, y: usize) -> Spot {
    Spot { offset: rows.spot.offset + y * rows.pitch, ..rows.spot }
}

fn memset(at: u64, element: usize, value: u32, count: usize, stream: CUstream, way: usize) -> CUresult {
    let plain = stream.is_null() && way.is_multiple_of(2);
    match element {
        1 if plain => cu!(cuMemsetD8_v2(at, value as u8, count)),
        2 if plain => cu!(cuMemsetD16_v2(at, value as u16, count)),
        4 if plain => cu!(cuMemsetD32_v2(at, value, count)),
        1 => cu!(cuMemsetD8Async(at, value as u8, count, stream)),
        2 => cu!(cuMemsetD16Async(at, value as u16, count, stream)),
        _ => cu!(cuMemsetD32Async(at, value, count, stream)),
    }
}

fn memcpy(to: Spot, from: Spot, bytes: usize, stream: CUstream, way: usize) -> CUresult {
    let plain = stream.is_null() && way.is_multiple_of(2);
    match (from.space, to.space, way % 3) {
        (_, _, 0) if plain => cu!(cuMemcpy(to.at(), from.at(), bytes)),
        (_, _, 0) => cu!(cuMemcpyAsync(to.at(), from.at(), bytes, stream)),
        (_, _, 1) if !stream.is_null() => memcpy_batch(to.at(), from.at(), bytes, stream),
        (Space::Host, Space::Host, _) => cu!(cuMemcpyAsync(to.at(), from.at(), bytes, stream)),
        (Space::Host, ..) if plain => cu!(cuMemcpyHtoD_v2(to.at(), from.host(), bytes)),
        (Space::Host, ..) => cu!(cuMemcpyHtoDAsync_v2(to.at(), from.host(), bytes, stream)),
        (_, Space::Host, _) if plain => cu!(cuMemcpyDtoH_v2(to.host(), from.at(), bytes)),
        (_, Space::Host, _) => cu!(cuMemcpyDtoHAsync_v2(to.host(), from.at(), bytes, stream)),
        _ if plain => cu!(cuMemcpyDtoD_v2(to.at(), from.at(), bytes)),
        _ => cu!(cuMemcpyDtoDAsync_v2(to.at(), from.at(), bytes, stream)),
    }
}

/// `CUmemcpyAttributes`: that sources are read in stream order, and hints that say nothing.
const IN_ORDER: [u32; 6] = [1, 0, 0, 0, 0, 0];

const _: () = assert!(size_of::<sys::CUmemcpyAttributes>() == size_of_val(&IN_ORDER));

/// Two halves in one batch.
pub fn memcpy_batch(to: u64, from: u64, bytes: usize, stream: CUstream) -> CUresult {
    let half = bytes / 2;
    let (mut sizes, mut first) = ([half, bytes - half], 0usize);
    let (mut ends, mut starts) = ([to, to + half as u64], [from, from + half as u64]);
    let skipped = usize::from(half == 0);
    let (mut attributes, count) = (IN_ORDER, 2 - skipped);
    cu!(cuMemcpyBatchAsync_v2(
        ends[skipped..].as_mut_ptr(),
        starts[skipped..].as_mut_ptr(),
        sizes[skipped..].as_mut_ptr(),
        count,
        (&raw mut attributes).cast(),
        &mut first,
        1,
        stream
    ))
}

fn memcpy_rows(to: Rows, from: Rows, extent: [usize; 3], stream: CUstream, way: usize) -> CUresult {
    let plain = stream.is_null() && way.is_multiple_of(2);
    let volume = volume(to, from, extent);
    if extent[2] == 1 && !way.is_multiple_of(3) {
        let rectangle = rectangle(&volume);
        return if plain {
            cu!(cuMemcpy2D_v2(&rectangle))
        } else {
            cu!(cuMemcpy2DAsync_v2(&rectangle, stream))
        };
    }
    if plain { cu!(cuMemcpy3D_v2(&volume)) } else { cu!(cuMemcpy3DAsync_v2(&volume, stream)) }
}

/// The one slice of a volume.
fn rectangle(of: &sys::CUDA_MEMCPY3D) -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: of.srcXInBytes,
        srcY: of.srcY,
        srcMemoryType: of.srcMemoryType,
        srcHost: of.srcHost,
        srcDevice: of.srcDevice,
        srcArray: of.srcArray,
        srcPitch: of.srcPitch,
        dstXInBytes: of.dstXInBytes,
        dstY: of.dstY,
        dstMemoryType: of.dstMemoryType,
        dstHost: of.dstHost,
        dstDevice: of.dstDevice,
        dstArray: of.dstArray,
        dstPitch: of.dstPitch,
        WidthInBytes: of.WidthInBytes,
        Height: of.Height,
    }
}

/// One end of a copy, as the driver wants it.
struct End {
    kind: CUmemorytype,
    x: usize,
    y: usize,
    host: *mut c_void,
    device: u64,
    array: CUarray,
}

fn end(rows: Rows) -> End {
    let spot = rows.spot;
    let none = End {
        kind: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        x: 0,
        y: 0,
        host: null_mut(),
        device: 0,
        array: null_mut(),
    };
    match spot.space {
        Space::Device => End { device: spot.at(), ..none },
        Space::Host => End { kind: CUmemorytype::CU_MEMORYTYPE_HOST, host: spot.host(), ..none },
        Space::Array(row) => End {
            kind: CUmemorytype::CU_MEMORYTYPE_ARRAY,
            array: std::ptr::with_exposed_provenance_mut(spot.base as usize),
            x: spot.offset % row,
            y: spot.offset / row,
            ..none
        },
    }
}

/// A copy of so many bytes, rows and slices.
pub fn volume(to: Rows, from: Rows, [width, height, depth]: [usize; 3]) -> sys::CUDA_MEMCPY3D {
    let (source, target) = (end(from), end(to));
    sys::CUDA_MEMCPY3D {
        srcXInBytes: source.x,
        srcY: source.y,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: source.kind,
        srcHost: source.host,
        srcDevice: source.device,
        srcArray: source.array,
        reserved0: null_mut(),
        srcPitch: from.pitch,
        srcHeight: height,
        dstXInBytes: target.x,
        dstY: target.y,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: target.kind,
        dstHost: target.host,
        dstDevice: target.device,
        dstArray: target.array,
        reserved1: null_mut(),
        dstPitch: to.pitch,
        dstHeight: height,
        WidthInBytes: width,
        Height: height,
        Depth: depth,
    }
}

fn memset_node(
    dst: u64,
    pitch: usize,
    element: usize,
    value: u32,
    width: usize,
    height: usize,
) -> sys::CUDA_MEMSET_NODE_PARAMS {
    let value = value & (u32::MAX >> (32 - 8 * element));
    sys::CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize: element as u32, width, height }
}

fn kernel_node(function: CUfunction, arguments: &mut [*mut c_void; 2]) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: arguments.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    }
}

/// Nothing before it.
pub fn empty_node(graph: CUgraph) -> CUgraphNode {
    let mut node = null_mut();
    ok!(cuGraphAddEmptyNode(&mut node, graph, null(), 0));
    node
}
