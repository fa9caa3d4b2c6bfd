//! cuDNN: what callers go on with. Convolutions and recurrent layers are planned as on hardware, and compute
//! nothing. Names and arguments are those of `cudnn_backend.h`, `cudnn_ops.h` and `cudnn_adv.h`.

use crate::{SUCCESS, Status, tell};
use std::ffi::c_void;

/// The version that is told: newer than all of its major release, so that who was built with one of them goes
/// on.
const VERSION: [i32; 3] = [9, 99, 99];
/// `CUDART_VERSION` of CUDA 13.0.
const RUNTIME_VERSION: usize = 13_000;

/// Attributes of backend descriptors that are read (`cudnnBackendAttributeName_t`).
const HEURISTICS_RESULTS: i32 = 202;
const CONFIGURATIONS_ENGINE: i32 = 300;
const CONFIGURATIONS_WORKSPACE_BYTES: i32 = 303;
const CONFIGURATIONS_SHARED_BYTES: i32 = 304;
const PLANS_WORKSPACE_BYTES: i32 = 402;
const ENGINES_INDEX: i32 = 1301;

#[unsafe(no_mangle)]
extern "C" fn standin_cudnnGetVersion() -> usize {
    VERSION.iter().fold(0, |version, part| version * 100 + *part as usize)
}

#[unsafe(no_mangle)]
extern "C" fn standin_cudnnGetCudartVersion() -> usize {
    RUNTIME_VERSION
}

/// `part`: 0 major, 1 minor, 2 patch level.
#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cudnnGetProperty(part: usize, value: *mut i32) -> Status {
    // SAFETY: the caller's place.
    unsafe { tell(value, VERSION.get(part).copied().unwrap_or_default()) }
}

/// What a backend descriptor says when it is asked: one engine fits everything, and needs no memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cudnnBackendGetAttribute(
    _descriptor: usize,
    attribute: i32,
    _type: i32,
    wanted: i64,
    count: *mut i64,
    elements: *mut c_void,
) -> Status {
    let known = match attribute {
        // Descriptors that the caller has made: they stay as they are.
        HEURISTICS_RESULTS | CONFIGURATIONS_ENGINE => 1,
        CONFIGURATIONS_WORKSPACE_BYTES | PLANS_WORKSPACE_BYTES | ENGINES_INDEX => {
            if wanted > 0 {
                // SAFETY: the caller's place for so many numbers of 64 bits.
                unsafe { tell(elements.cast::<i64>(), 0) };
            }
            1
        }
        CONFIGURATIONS_SHARED_BYTES => {
            if wanted > 0 {
                // SAFETY: the caller's place for so many numbers of 32 bits.
                unsafe { tell(elements.cast::<i32>(), 0) };
            }
            1
        }
        _ => 0,
    };
    // SAFETY: the caller's place.
    unsafe { tell(count, known) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cudnnBackendCreateDescriptor(_kind: i32, place: *mut usize) -> Status {
    // SAFETY: the caller's place for a handle, which stands for nothing.
    unsafe { tell(place, 1) }
}

/// A tensor, as far as it is asked for: of three dimensions.
#[derive(Clone, Copy, Default)]
struct Tensor {
    data_type: i32,
    dimensions: [i32; 3],
}

/// A recurrent layer's shape.
#[derive(Clone, Copy, Default)]
struct Recurrent {
    /// 0, 1: plain; 2: LSTM; 3: GRU.
    cell: i32,
    has_bias: bool,
    directions: i32,
    data_type: i32,
    input: i32,
    hidden: i32,
    projected: i32,
    layers: i32,
}

/// Objects that are set and asked for.
macro_rules! objects {
    ($($type:ident $create:ident $destroy:ident)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $create(place: *mut *mut $type) -> Status {
            // SAFETY: the caller's place for a handle.
            unsafe { tell(place, Box::into_raw(Box::<$type>::default())) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $destroy(object: *mut $type) -> Status {
            if !object.is_null() {
                // SAFETY: made by the function above, and used no more.
                drop(unsafe { Box::from_raw(object) });
            }
            SUCCESS
        }
    )* };
}

objects! {
    Tensor standin_cudnnCreateTensorDescriptor standin_cudnnDestroyTensorDescriptor
    Recurrent standin_cudnnCreateRNNDescriptor standin_cudnnDestroyRNNDescriptor
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cudnnGetTensorNdDescriptor(
    tensor: *const Tensor,
    _most: i32,
    data_type: *mut i32,
    count: *mut i32,
    dimensions: *mut [i32; 3],
    strides: *mut [i32; 3],
) -> Status {
    // SAFETY: the caller's object.
    let tensor = unsafe { *tensor };
    let [_, rows, columns] = tensor.dimensions;
    // SAFETY: the caller's place. So for the others.
    unsafe { tell(data_type, tensor.data_type) };
    // SAFETY: as above.
    unsafe { tell(count, 3) };
    // SAFETY: as above; who asks has room for more dimensions than these.
    unsafe { tell(dimensions, tensor.dimensions) };
    // SAFETY: as above.
    unsafe { tell(strides, [rows * columns, columns, 1]) }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the library's signature")]
unsafe extern "C" fn standin_cudnnSetRNNDescriptor_v8(
    layer: *mut Recurrent,
    _algorithm: i32,
    cell: i32,
    bias: i32,
    direction: i32,
    _input_mode: i32,
    data_type: i32,
    _precision: i32,
    _math: i32,
    input: i32,
    hidden: i32,
    projected: i32,
    layers: i32,
    _dropout: usize,
    _flags: u32,
) -> Status {
    let directions = if direction == 0 { 1 } else { 2 };
    let shape =
        Recurrent { cell, has_bias: bias != 0, directions, data_type, input, hidden, projected, layers };
    // SAFETY: the caller's object.
    unsafe { tell(layer, shape) }
}

impl Recurrent {
    /// Products of a layer with its input, and as many with what it kept.
    fn gates(&self) -> i32 {
        match self.cell {
            2 => 4,
            3 => 3,
            _ => 1,
        }
    }

    fn element_bytes(&self) -> usize {
        match self.data_type {
            1 => 8,
            2 | 9 => 2,
            _ => 4,
        }
    }

    /// Columns of the matrix for the `part`-th product of a pseudo-layer (one for each direction).
    fn columns(&self, pseudo_layer: i32, part: i32) -> i32 {
        let kept = if self.projected > 0 { self.projected } else { self.hidden };
        let is_first = pseudo_layer < self.directions;
        match part < self.gates() {
            true if is_first => self.input,
            true => kept * self.directions,
            false => kept,
        }
    }

    /// Where the matrices of a product lie, in elements: the matrix and its bias.
    fn place(&self, pseudo_layer: i32, part: i32) -> (usize, usize) {
        let layers = self.layers * self.directions;
        let parts = (0..layers).flat_map(|layer| (0..2 * self.gates()).map(move |part| (layer, part)));
        let elements = |(layer, part)| (self.hidden * self.columns(layer, part)) as usize;
        let matrices: usize = parts.clone().map(elements).sum();
        let before = parts.clone().take_while(|&at| at != (pseudo_layer, part));
        let count = before.clone().count();
        (before.map(elements).sum(), matrices + count * self.hidden as usize)
    }

    fn bytes(&self) -> usize {
        let (_, end) = self.place(self.layers * self.directions, 0);
        end * self.element_bytes()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cudnnGetRNNWeightSpaceSize(
    _handle: usize,
    layer: *const Recurrent,
    bytes: *mut usize,
) -> Status {
    // SAFETY: the caller's object.
    let layer = unsafe { *layer };
    // SAFETY: the caller's place.
    unsafe { tell(bytes, layer.bytes()) }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the library's signature")]
unsafe extern "C" fn standin_cudnnGetRNNWeightParams(
    _handle: usize,
    layer: *const Recurrent,
    pseudo_layer: i32,
    _bytes: usize,
    weights: usize,
    part: i32,
    matrix: *mut Tensor,
    matrix_address: *mut usize,
    bias: *mut Tensor,
    bias_address: *mut usize,
) -> Status {
    // SAFETY: the caller's object.
    let layer = unsafe { *layer };
    let is_there = part < 2 * layer.gates();
    let (matrix_at, bias_at) = layer.place(pseudo_layer, part);
    let address = |at: usize, is_there| if is_there { weights + at * layer.element_bytes() } else { 0 };
    let tensor = |columns| Tensor { data_type: layer.data_type, dimensions: [1, layer.hidden, columns] };
    // SAFETY: the caller's object. So for the others.
    unsafe { tell(matrix, tensor(layer.columns(pseudo_layer, part))) };
    // SAFETY: as above.
    unsafe { tell(bias, tensor(1)) };
    // SAFETY: as above.
    unsafe { tell(matrix_address, address(matrix_at, is_there)) };
    // SAFETY: as above.
    unsafe { tell(bias_address, address(bias_at, is_there && layer.has_bias)) }
}

/// Memory that nothing is computed in: some, for who takes none for an error.
const SOME: usize = 256;

/// Functions whose last argument is a place for a size; what comes before it does not matter.
macro_rules! sizes {
    ($($name:ident($($before:ident)*))*) => { $(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the library's signature")]
        unsafe extern "C" fn $name($($before: usize,)* bytes: *mut usize) -> Status {
            // SAFETY: the caller's place.
            unsafe { tell(bytes, SOME) }
        }
    )* };
}

sizes! {
    standin_cudnnDropoutGetStatesSize(_a)
    standin_cudnnGetBatchNormalizationTrainingExReserveSpaceSize(_a _b _c _d _e)
    standin_cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(_a _b _c _d _e _f _g _h)
    standin_cudnnGetBatchNormalizationBackwardExWorkspaceSize(_a _b _c _d _e _f _g _h _i _j)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cudnnGetRNNTempSpaceSizes(
    _handle: usize,
    _layer: usize,
    _mode: i32,
    _input: usize,
    workspace: *mut usize,
    reserve: *mut usize,
) -> Status {
    // SAFETY: the caller's place. So for the other.
    unsafe { tell(workspace, SOME) };
    // SAFETY: as above.
    unsafe { tell(reserve, SOME) }
}
