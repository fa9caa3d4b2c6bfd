//! Matrix products: `D = epilogue(alpha · op(A) · op(B) + beta · C)`, all column-major, as cuBLAS has them.
//!
//! All sums run in the order of the inner index, in `f32`, or in `f64` for matrices of `f64`, so the results
//! are the same bits each time.

use crate::driver::{self, Stream};
use crate::kernel::{Device, kernels};
use crate::{EXECUTION_FAILED, SUCCESS, Status};
use half::{bf16, f16};

/// The elements of a matrix.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F32,
    F64,
    F16,
    Bf16,
}

impl Element {
    /// By `cudaDataType`; `None`: of no kind that is computed here.
    pub fn of(data_type: i32) -> Option<Self> {
        Some(match data_type {
            0 => Self::F32,
            1 => Self::F64,
            2 => Self::F16,
            14 => Self::Bf16,
            _ => return None,
        })
    }
}

/// A matrix, or a batch of them, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub place: Device<u8>,
    pub element: Element,
    /// 1: its transpose is meant.
    pub transposed: u32,
    /// Elements between columns.
    pub leading: i64,
    /// Elements between the matrices of a batch.
    pub stride: i64,
}

/// A factor of a product.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scalar {
    /// Where it lies in device memory; null: it is `value`.
    pub place: Device<u8>,
    pub element: Element,
    pub value: f64,
}

/// What is done to the product: bits.
pub const RELU: u32 = 2;
pub const BIAS: u32 = 4;

/// A product.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    pub rows: u64,
    pub columns: u64,
    pub inner: u64,
    pub batch: u64,
    pub alpha: Scalar,
    pub beta: Scalar,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub d: Matrix,
    /// One element for each row, if `epilogue` has [`BIAS`].
    pub bias: Device<u8>,
    pub bias_element: Element,
    pub epilogue: u32,
}

impl Gemm {
    /// Launches it in `stream`.
    pub fn launch(&self, stream: Stream) -> Status {
        if driver::launch(c"softgpu_gemm", stream, self) { SUCCESS } else { EXECUTION_FAILED }
    }
}

kernels! {
    fn softgpu_gemm, softgpu_gemm_params(gemm: Gemm) {
        if gemm.d.element == Element::F64 { run::<f64>(&gemm) } else { run::<f32>(&gemm) }
    }
}

/// What sums are made of.
pub trait Real: Copy + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> + PartialOrd {
    fn from_f64(value: f64) -> Self;
    fn into_f64(self) -> f64;
}

impl Real for f32 {
    fn from_f64(value: f64) -> Self {
        value as Self
    }
    fn into_f64(self) -> f64 {
        self.into()
    }
}

impl Real for f64 {
    fn from_f64(value: f64) -> Self {
        value
    }
    fn into_f64(self) -> f64 {
        self
    }
}

/// An element of device memory, as what sums are made of.
pub fn read<R: Real>(from: Device<u8>, element: Element, index: i64) -> R {
    R::from_f64(match element {
        Element::F32 => from.cast::<f32>().get(index).into(),
        Element::F64 => from.cast::<f64>().get(index),
        Element::F16 => from.cast::<f16>().get(index).into(),
        Element::Bf16 => from.cast::<bf16>().get(index).into(),
    })
}

fn write<R: Real>(to: Device<u8>, element: Element, index: i64, value: R) {
    let value = value.into_f64();
    match element {
        Element::F32 => to.cast::<f32>().set(index, value as f32),
        Element::F64 => to.cast::<f64>().set(index, value),
        Element::F16 => to.cast::<f16>().set(index, f16::from_f64(value)),
        Element::Bf16 => to.cast::<bf16>().set(index, bf16::from_f64(value)),
    }
}

impl Matrix {
    /// The element that the product sees at `row`, `column`.
    fn at<R: Real>(&self, batch: i64, row: i64, column: i64) -> R {
        let (row, column) = if self.transposed == 1 { (column, row) } else { (row, column) };
        read(self.place, self.element, batch * self.stride + column * self.leading + row)
    }

    /// `op(self)`, column after column.
    fn columns<R: Real>(&self, batch: i64, rows: i64, columns: i64) -> Vec<R> {
        (0..columns).flat_map(|column| (0..rows).map(move |row| self.at(batch, row, column))).collect()
    }
}

impl Scalar {
    fn get<R: Real>(&self) -> R {
        if self.place.is_null() { R::from_f64(self.value) } else { read(self.place, self.element, 0) }
    }
}

fn run<R: Real>(gemm: &Gemm) {
    let (rows, columns, inner) = (gemm.rows as i64, gemm.columns as i64, gemm.inner as i64);
    let (zero, alpha, beta) = (R::from_f64(0.0), gemm.alpha.get::<R>(), gemm.beta.get::<R>());
    for batch in 0..gemm.batch as i64 {
        let a = gemm.a.columns::<R>(batch, rows, inner);
        let b = gemm.b.columns::<R>(batch, inner, columns);
        for column in 0..columns {
            let right = &b[(column * inner) as usize..][..inner as usize];
            // A column of the product at once: each of its sums runs in the same order, and side by side.
            let mut sums = vec![zero; rows as usize];
            for (left, right) in a.chunks_exact(rows.max(1) as usize).zip(right) {
                sums.iter_mut().zip(left).for_each(|(sum, left)| *sum = *sum + *left * *right);
            }
            for (row, sum) in (0..rows).zip(sums) {
                let mut value = alpha * sum;
                // As cuBLAS has it: where beta is 0, C is not read, and may be anything.
                if beta != zero {
                    value = value + beta * gemm.c.at(batch, row, column);
                }
                if gemm.epilogue & BIAS != 0 {
                    value = value + read(gemm.bias, gemm.bias_element, row);
                }
                if gemm.epilogue & RELU != 0 && value < zero {
                    value = zero;
                }
                let index = batch * gemm.d.stride + column * gemm.d.leading + row;
                write(gemm.d.place, gemm.d.element, index, value);
            }
        }
    }
}
