//! Arrays, for copies: elements in rows and slices, densely packed in memory of the GPU. There are no
//! textures to read them.

use std::sync::Arc;

use cudarc::driver::sys::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUarray_format as Format, CUresult,
};

use crate::abi::{Answer, In, InMut, Mirror, Out};
use crate::context;
use crate::graph;
use crate::memory;
use crate::registry::Registry;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;

/// Layers, surface loads and stores, gathers: nothing that changes how the elements lie.
const KNOWN_FLAGS: u32 = 1 | 2 | 8;

/// An array.
pub struct Array {
    handle: usize,
    /// The address of its first element.
    pub start: usize,
    shape: RawShape3d,
}

static ARRAYS: Registry<Array> = Registry::new();

/// `CUDA_ARRAY_DESCRIPTOR`, its enum a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawShape {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`, its enum a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawShape3d {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

impl Mirror for RawShape {
    type Of = CUDA_ARRAY_DESCRIPTOR;
}

impl Mirror for RawShape3d {
    type Of = CUDA_ARRAY3D_DESCRIPTOR;
}

impl RawShape3d {
    /// Bytes of an element.
    fn element(&self) -> Answer<usize> {
        const SIZES: [(Format, usize); 8] = [
            (Format::CU_AD_FORMAT_UNSIGNED_INT8, 1),
            (Format::CU_AD_FORMAT_SIGNED_INT8, 1),
            (Format::CU_AD_FORMAT_UNSIGNED_INT16, 2),
            (Format::CU_AD_FORMAT_SIGNED_INT16, 2),
            (Format::CU_AD_FORMAT_HALF, 2),
            (Format::CU_AD_FORMAT_UNSIGNED_INT32, 4),
            (Format::CU_AD_FORMAT_SIGNED_INT32, 4),
            (Format::CU_AD_FORMAT_FLOAT, 4),
        ];
        let size = SIZES.iter().find(|(format, _)| *format as u32 == self.format).map(|(_, size)| size);
        let channels = self.channels as usize;
        if matches!(channels, 1 | 2 | 4) { Ok(size.ok_or(INVALID)? * channels) } else { Err(INVALID) }
    }

    fn bytes(&self) -> Answer<usize> {
        let sides = [self.width, self.height.max(1), self.depth.max(1), self.element()?];
        let product = sides.iter().try_fold(1usize, |product, side| product.checked_mul(*side));
        product.filter(|bytes| *bytes > 0).ok_or(INVALID)
    }
}

impl Array {
    /// Bytes of an element.
    pub fn element(&self) -> usize {
        self.shape.element().unwrap_or(1)
    }

    /// Bytes of a row.
    pub fn row(&self) -> usize {
        self.shape.width * self.element()
    }

    /// Rows of a slice.
    pub fn rows(&self) -> usize {
        self.shape.height.max(1)
    }

    /// Slices.
    pub fn slices(&self) -> usize {
        self.shape.depth.max(1)
    }

    /// The address of some bytes of an array of one dimension.
    pub fn run(&self, offset: usize, bytes: usize) -> Answer<usize> {
        let end = offset.checked_add(bytes).ok_or(INVALID)?;
        let inside = self.rows() == 1 && self.slices() == 1 && end <= self.row();
        inside.then_some(self.start + offset).ok_or(INVALID)
    }
}

/// The array of a handle.
pub fn find(array: usize) -> Answer<Arc<Array>> {
    ARRAYS.get(array).ok_or(INVALID_HANDLE)
}

/// `cuArray3DCreate_v2`
pub fn create_3d(out: Out<CUarray>, shape: In<RawShape3d>) -> Answer {
    make(&out, shape.get())
}

fn make(out: &Out<CUarray>, shape: RawShape3d) -> Answer {
    if shape.flags & !KNOWN_FLAGS != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    graph::check_unsafe_call()?;
    let start = memory::allocate(&*context::current()?, shape.bytes()?)?;
    out.set(ARRAYS.add(|handle| Array { handle, start, shape }).handle as CUarray);
    Ok(())
}

/// `cuArrayCreate_v2`
pub fn create(out: Out<CUarray>, shape: In<RawShape>) -> Answer {
    let RawShape { width, height, format, channels } = shape.get();
    make(&out, RawShape3d { width, height, depth: 0, format, channels, flags: 0 })
}

/// `cuArrayDestroy`
pub fn destroy(array: CUarray) -> Answer {
    context::current()?;
    let array = find(array as usize)?;
    memory::free(array.start as u64)?;
    ARRAYS.remove(array.handle);
    Ok(())
}

/// `cuArrayGetDescriptor_v2`
pub fn shape(out: InMut<RawShape>, array: CUarray) -> Answer {
    let RawShape3d { width, height, format, channels, .. } = find(array as usize)?.shape;
    out.set(RawShape { width, height, format, channels });
    Ok(())
}

/// `cuArray3DGetDescriptor_v2`
pub fn shape_3d(out: InMut<RawShape3d>, array: CUarray) -> Answer {
    out.set(find(array as usize)?.shape);
    Ok(())
}
