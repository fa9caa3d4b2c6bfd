//! cuBLASLt: products that are described by objects. Names and arguments are those of `cublasLt.h`.

use crate::blas::{scalar, scale};
use crate::driver::Stream;
use crate::gemm::{BIAS, Element, Gemm, Matrix, RELU};
use crate::kernel::Device;
use crate::{SUCCESS, Status, tell};
use std::ffi::c_void;
use zerocopy::IntoBytes;

/// `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: Status = 15;
/// What [`standin_cublasLtGetVersion`] says: 13.0.0.
const VERSION: usize = 130_000;

/// How a product is made.
#[derive(Clone, Copy)]
struct Operation {
    compute: i32,
    pointer_mode: i32,
    a_op: i32,
    b_op: i32,
    epilogue: u32,
    bias: u64,
    /// As a `cudaDataType`; -1: that of the result.
    bias_type: i32,
}

/// What a matrix is.
#[derive(Clone, Copy)]
struct Layout {
    data_type: i32,
    /// 0: column after column.
    order: i32,
    rows: u64,
    columns: u64,
    leading: i64,
    batch: i32,
    stride: i64,
}

/// What is best for a product, in the shape of `cublasLtMatmulHeuristicResult_t`: nothing to be told.
#[repr(C)]
#[derive(Default)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [i32; 4],
}

/// Sets a number of an object's, as bytes; what it does not have changes nothing here.
///
/// # Safety
/// `value` are `bytes` bytes of the caller's.
unsafe fn set(field: Option<&mut [u8]>, value: *const c_void, bytes: usize) -> Status {
    match field {
        Some(field) if bytes >= field.len() => {
            // SAFETY: as said above, at least as many as the field has.
            field.copy_from_slice(unsafe { std::slice::from_raw_parts(value.cast(), field.len()) });
            SUCCESS
        }
        Some(_) => NOT_SUPPORTED,
        None => SUCCESS,
    }
}

#[unsafe(no_mangle)]
extern "C" fn standin_cublasLtGetVersion() -> usize {
    VERSION
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cublasLtMatmulDescCreate(
    place: *mut *mut Operation,
    compute: i32,
    _scale: i32,
) -> Status {
    let operation =
        Operation { compute, pointer_mode: 0, a_op: 0, b_op: 0, epilogue: 1, bias: 0, bias_type: -1 };
    // SAFETY: the caller's place for a handle.
    unsafe { tell(place, Box::into_raw(Box::new(operation))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cublasLtMatmulDescDestroy(operation: *mut Operation) -> Status {
    // SAFETY: made by the function above, and used no more.
    drop(unsafe { Box::from_raw(operation) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cublasLtMatmulDescSetAttribute(
    operation: *mut Operation,
    attribute: i32,
    value: *const c_void,
    bytes: usize,
) -> Status {
    // SAFETY: the caller's object, which nobody else uses now.
    let operation = unsafe { &mut *operation };
    // SAFETY: the caller's value, of so many bytes.
    unsafe { set(operation.field(attribute), value, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cublasLtMatrixLayoutCreate(
    place: *mut *mut Layout,
    data_type: i32,
    rows: u64,
    columns: u64,
    leading: i64,
) -> Status {
    let layout = Layout { data_type, order: 0, rows, columns, leading, batch: 1, stride: 0 };
    // SAFETY: the caller's place for a handle.
    unsafe { tell(place, Box::into_raw(Box::new(layout))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cublasLtMatrixLayoutDestroy(layout: *mut Layout) -> Status {
    // SAFETY: made by the function above, and used no more.
    drop(unsafe { Box::from_raw(layout) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_cublasLtMatrixLayoutSetAttribute(
    layout: *mut Layout,
    attribute: i32,
    value: *const c_void,
    bytes: usize,
) -> Status {
    // SAFETY: the caller's object, which nobody else uses now.
    let layout = unsafe { &mut *layout };
    // SAFETY: the caller's value, of so many bytes.
    unsafe { set(layout.field(attribute), value, bytes) }
}

impl Operation {
    /// The number that a `cublasLtMatmulDescAttributes_t` means.
    fn field(&mut self, attribute: i32) -> Option<&mut [u8]> {
        Some(match attribute {
            2 => self.pointer_mode.as_mut_bytes(),
            3 => self.a_op.as_mut_bytes(),
            4 => self.b_op.as_mut_bytes(),
            7 => self.epilogue.as_mut_bytes(),
            8 => self.bias.as_mut_bytes(),
            26 => self.bias_type.as_mut_bytes(),
            _ => return None,
        })
    }

    /// Can it be computed: epilogues are none, bias, relu.
    fn is_known(&self) -> bool {
        self.epilogue & !(1 | RELU | BIAS) == 0
    }
}

impl Layout {
    /// The number that a `cublasLtMatrixLayoutAttribute_t` means.
    fn field(&mut self, attribute: i32) -> Option<&mut [u8]> {
        Some(match attribute {
            0 => self.data_type.as_mut_bytes(),
            1 => self.order.as_mut_bytes(),
            2 => self.rows.as_mut_bytes(),
            3 => self.columns.as_mut_bytes(),
            4 => self.leading.as_mut_bytes(),
            5 => self.batch.as_mut_bytes(),
            6 => self.stride.as_mut_bytes(),
            _ => return None,
        })
    }

    fn matrix(&self, place: Device<u8>, op: i32) -> Option<Matrix> {
        let element = Element::of(self.data_type).filter(|_| self.order == 0)?;
        let transposed = u32::from(op != 0);
        Some(Matrix { place, element, transposed, leading: self.leading, stride: self.stride })
    }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the library's signature")]
unsafe extern "C" fn standin_cublasLtMatmulAlgoGetHeuristic(
    _handle: usize,
    operation: *const Operation,
    _a: usize,
    _b: usize,
    _c: usize,
    _d: usize,
    _preference: usize,
    wanted: i32,
    results: *mut Heuristic,
    found: *mut i32,
) -> Status {
    // SAFETY: the caller's object.
    let is_known = wanted > 0 && unsafe { *operation }.is_known();
    if is_known {
        // SAFETY: the caller's place for at least one.
        unsafe { tell(results, Heuristic::default()) };
    }
    // SAFETY: the caller's place.
    unsafe { tell(found, is_known.into()) }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the library's signature")]
unsafe extern "C" fn standin_cublasLtMatmul(
    _handle: usize,
    operation: *const Operation,
    alpha: Device<u8>,
    a: Device<u8>,
    a_layout: *const Layout,
    b: Device<u8>,
    b_layout: *const Layout,
    beta: Device<u8>,
    c: Device<u8>,
    c_layout: *const Layout,
    d: Device<u8>,
    d_layout: *const Layout,
    _algorithm: usize,
    _workspace: usize,
    _workspace_bytes: usize,
    stream: Stream,
) -> Status {
    // SAFETY: the caller's object.
    let operation = unsafe { *operation };
    let layouts = [a_layout, b_layout, c_layout, d_layout];
    // SAFETY: as above.
    let [a_is, b_is, c_is, d_is] = layouts.map(|layout| unsafe { *layout });
    if !operation.is_known() {
        return NOT_SUPPORTED;
    }
    let matrices = (
        a_is.matrix(a, operation.a_op),
        b_is.matrix(b, operation.b_op),
        c_is.matrix(c, 0),
        d_is.matrix(d, 0),
    );
    // Elements of other kinds are not computed: nothing is done, as in a kernel that nobody has written.
    let (Some(a), Some(b), Some(c), Some(d)) = matrices else { return SUCCESS };
    let Some(scale) = scale(operation.compute) else { return SUCCESS };
    let on_device = operation.pointer_mode != 0;
    let gemm = Gemm {
        rows: d_is.rows,
        columns: d_is.columns,
        inner: if operation.a_op == 0 { a_is.columns } else { a_is.rows },
        batch: d_is.batch.max(0) as u64,
        // SAFETY: factors lie where the pointer mode says.
        alpha: unsafe { scalar(alpha, scale, on_device) },
        // SAFETY: as above.
        beta: unsafe { scalar(beta, scale, on_device) },
        a,
        b,
        c,
        d,
        // SAFETY: the program says that it is there.
        bias: unsafe { Device::at(operation.bias) },
        bias_element: Element::of(operation.bias_type).unwrap_or(d.element),
        epilogue: operation.epilogue,
    };
    gemm.launch(stream)
}
