//! cuBLAS: handles, and products of matrices. Names and arguments are those of `cublas_api.h`.

use crate::driver::Stream;
use crate::gemm::{Element, Gemm, Matrix, Scalar, read};
use crate::kernel::Device;
use crate::{SUCCESS, Status, tell};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// What a handle stands for: how calls with it are made.
#[derive(Default)]
pub struct Blas {
    stream: AtomicUsize,
    /// 1: factors lie in device memory.
    pointer_mode: AtomicI32,
    math_mode: AtomicI32,
}

/// A handle of the program's.
type Handle = *const Blas;

/// # Safety
/// The handle is one of [`standin_cublasCreate_v2`]'s, and not destroyed.
unsafe fn blas<'a>(handle: Handle) -> &'a Blas {
    // SAFETY: as said above.
    unsafe { &*handle }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cublasCreate_v2(handle: *mut Handle) -> Status {
    // SAFETY: the caller's place for a handle.
    unsafe { tell(handle, Box::into_raw(Box::<Blas>::default())) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cublasDestroy_v2(handle: *mut Blas) -> Status {
    if !handle.is_null() {
        // SAFETY: made by `standin_cublasCreate_v2`, and used no more.
        drop(unsafe { Box::from_raw(handle) });
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cublasSetStream_v2(handle: Handle, stream: Stream) -> Status {
    // SAFETY: the caller's handle.
    unsafe { blas(handle) }.stream.store(stream, Ordering::Relaxed);
    SUCCESS
}

/// Modes that are set and asked for.
macro_rules! modes {
    ($($field:ident $set:ident $get:ident)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $set(handle: Handle, mode: i32) -> Status {
            // SAFETY: the caller's handle.
            unsafe { blas(handle) }.$field.store(mode, Ordering::Relaxed);
            SUCCESS
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(handle: Handle, mode: *mut i32) -> Status {
            // SAFETY: the caller's handle.
            let known = unsafe { blas(handle) }.$field.load(Ordering::Relaxed);
            // SAFETY: the caller's place.
            unsafe { tell(mode, known) }
        }
    )* };
}

modes! {
    pointer_mode standin_cublasSetPointerMode_v2 standin_cublasGetPointerMode_v2
    math_mode standin_cublasSetMathMode standin_cublasGetMathMode
}

/// A matrix as these functions describe it.
pub struct Operand {
    pub place: Device<u8>,
    pub element: Option<Element>,
    pub transposed: bool,
    pub leading: i64,
    pub stride: i64,
}

impl Operand {
    fn matrix(&self) -> Option<Matrix> {
        let Self { place, element, transposed, leading, stride } = *self;
        Some(Matrix { place, element: element?, transposed: transposed.into(), leading, stride })
    }
}

/// A factor, where the program says that it lies.
///
/// # Safety
/// `place` holds an element of this kind, in host memory unless `on_device`.
pub unsafe fn scalar(place: Device<u8>, element: Element, on_device: bool) -> Scalar {
    if on_device {
        return Scalar { place, element, value: 0.0 };
    }
    // Here, memory of the host is read as that of the GPU is.
    Scalar { place: Device::null(), element, value: read::<f64>(place, element, 0) }
}

struct Product {
    sizes: [i32; 3],
    batch: i32,
    factors: [Device<u8>; 2],
    /// Of what kind the factors are.
    scale: Option<Element>,
    a: Operand,
    b: Operand,
    c: Operand,
}

/// # Safety
/// As the library demands: the handle is alive, the factors lie where its pointer mode says.
unsafe fn multiply(handle: Handle, product: &Product) -> Status {
    // SAFETY: the caller's handle.
    let blas = unsafe { blas(handle) };
    let operands = (product.a.matrix(), product.b.matrix(), product.c.matrix(), product.scale);
    // Elements of other kinds are not computed: nothing is done, as in a kernel that nobody has written.
    let (Some(a), Some(b), Some(c), Some(scale)) = operands else { return SUCCESS };
    let on_device = blas.pointer_mode.load(Ordering::Relaxed) == 1;
    let [rows, columns, inner] = product.sizes.map(|size| size.max(0) as u64);
    let gemm = Gemm {
        rows,
        columns,
        inner,
        batch: product.batch.max(0) as u64,
        // SAFETY: as said above.
        alpha: unsafe { scalar(product.factors[0], scale, on_device) },
        // SAFETY: as said above.
        beta: unsafe { scalar(product.factors[1], scale, on_device) },
        a,
        b,
        c,
        d: c,
        bias: Device::null(),
        bias_element: c.element,
        epilogue: 0,
    };
    gemm.launch(blas.stream.load(Ordering::Relaxed))
}

/// Products whose matrices have elements of one kind.
macro_rules! products {
    ($($element:ident $one:ident $batched:ident)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the library's signature")]
        unsafe extern "C" fn $one(
            handle: Handle, a_op: i32, b_op: i32, m: i32, n: i32, k: i32,
            alpha: Device<u8>, a: Device<u8>, a_leading: i32, b: Device<u8>, b_leading: i32, beta: Device<u8>, c: Device<u8>, c_leading: i32,
        ) -> Status {
            // SAFETY: as the caller promises to the library.
            unsafe {
                $batched(handle, a_op, b_op, m, n, k, alpha, a, a_leading, 0, b, b_leading, 0, beta, c, c_leading, 0, 1)
            }
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the library's signature")]
        unsafe extern "C" fn $batched(
            handle: Handle, a_op: i32, b_op: i32, m: i32, n: i32, k: i32,
            alpha: Device<u8>, a: Device<u8>, a_leading: i32, a_stride: i64, b: Device<u8>, b_leading: i32, b_stride: i64,
            beta: Device<u8>, c: Device<u8>, c_leading: i32, c_stride: i64, batch: i32,
        ) -> Status {
            let element = Some(Element::$element);
            let operand = |place, op, leading: i32, stride| {
                Operand { place, element, transposed: op != 0, leading: leading.into(), stride }
            };
            let (a, b) = (operand(a, a_op, a_leading, a_stride), operand(b, b_op, b_leading, b_stride));
            let c = operand(c, 0, c_leading, c_stride);
            let product = Product { sizes: [m, n, k], batch, factors: [alpha, beta], scale: element, a, b, c };
            // SAFETY: as the caller promises to the library.
            unsafe { multiply(handle, &product) }
        }
    )* };
}

products! {
    F32 standin_cublasSgemm_v2 standin_cublasSgemmStridedBatched
    F64 standin_cublasDgemm_v2 standin_cublasDgemmStridedBatched
}

/// Of what kind factors are, by `cublasComputeType_t`.
pub fn scale(compute_type: i32) -> Option<Element> {
    match compute_type {
        64 | 65 => Some(Element::F16),
        // 32F, pedantic, with TF32, BF16 or F16 inside.
        68 | 69 | 74 | 75 | 77 => Some(Element::F32),
        70 | 71 => Some(Element::F64),
        _ => None,
    }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the library's signature")]
unsafe extern "C" fn standin_cublasGemmEx(
    handle: Handle,
    a_op: i32,
    b_op: i32,
    m: i32,
    n: i32,
    k: i32,
    alpha: Device<u8>,
    a: Device<u8>,
    a_type: i32,
    a_leading: i32,
    b: Device<u8>,
    b_type: i32,
    b_leading: i32,
    beta: Device<u8>,
    c: Device<u8>,
    c_type: i32,
    c_leading: i32,
    compute: i32,
    algorithm: i32,
) -> Status {
    // SAFETY: as the caller promises to the library.
    unsafe {
        standin_cublasGemmStridedBatchedEx(
            handle, a_op, b_op, m, n, k, alpha, a, a_type, a_leading, 0, b, b_type, b_leading, 0, beta, c,
            c_type, c_leading, 0, 1, compute, algorithm,
        )
    }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the library's signature")]
unsafe extern "C" fn standin_cublasGemmStridedBatchedEx(
    handle: Handle,
    a_op: i32,
    b_op: i32,
    m: i32,
    n: i32,
    k: i32,
    alpha: Device<u8>,
    a: Device<u8>,
    a_type: i32,
    a_leading: i32,
    a_stride: i64,
    b: Device<u8>,
    b_type: i32,
    b_leading: i32,
    b_stride: i64,
    beta: Device<u8>,
    c: Device<u8>,
    c_type: i32,
    c_leading: i32,
    c_stride: i64,
    batch: i32,
    compute: i32,
    _algorithm: i32,
) -> Status {
    let operand = |place, element: i32, op: i32, leading: i32, stride| Operand {
        place,
        element: Element::of(element),
        transposed: op != 0,
        leading: leading.into(),
        stride,
    };
    let (a, b) =
        (operand(a, a_type, a_op, a_leading, a_stride), operand(b, b_type, b_op, b_leading, b_stride));
    let c = operand(c, c_type, 0, c_leading, c_stride);
    let product = Product { sizes: [m, n, k], batch, factors: [alpha, beta], scale: scale(compute), a, b, c };
    // SAFETY: as the caller promises to the library.
    unsafe { multiply(handle, &product) }
}
