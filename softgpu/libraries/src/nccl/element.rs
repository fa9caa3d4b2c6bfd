//! Elements and reductions.
//!
//! With `x0 … xn` an element of each rank, in the order of the ranks, and `⊕` the operation:
//!
//! ```text
//! result = narrow((…(wide(x0) ⊕ wide(x1)) ⊕ …) ⊕ wide(xn))
//! ```
//! `wide` is `f32` for half, bfloat16 and float, `f64` for double, the type itself for integers, which wrap around.
//! `narrow` rounds to nearest, ties to even, once. The average is the sum divided by the number of ranks before it
//! is narrowed (integers: rounded towards zero). A sum with a factor (`ncclRedOpCreatePreMulSum`) multiplies each
//! `wide(x)` by the factor first. Minimum and maximum ignore a NaN beside a number, as `fmin` and `fmax` do.

use half::{bf16, f16};

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
    /// Eight bits of floating point, of either form: copied, not reduced.
    F8,
}

impl Element {
    pub fn of(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::I8,
            1 => Self::U8,
            2 => Self::I32,
            3 => Self::U32,
            4 => Self::I64,
            5 => Self::U64,
            6 => Self::F16,
            7 => Self::F32,
            8 => Self::F64,
            9 => Self::Bf16,
            10 | 11 => Self::F8,
            _ => return None,
        })
    }

    pub fn bytes(self) -> u64 {
        match self {
            Self::I8 | Self::U8 | Self::F8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    pub fn can_be_reduced(self) -> bool {
        self != Self::F8
    }
}

/// `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction {
    Sum,
    Product,
    Maximum,
    Minimum,
    Average,
    /// The sum of the elements multiplied by a factor.
    Scaled(Factor),
}

/// The factor of a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// The bytes of an element.
    Here([u8; 8]),
    /// It lies in device memory, at this address.
    At(u64),
}

impl Reduction {
    /// Of the five that are always there.
    pub fn of(number: i32) -> Option<Self> {
        [Self::Sum, Self::Product, Self::Maximum, Self::Minimum, Self::Average]
            .get(usize::try_from(number).ok()?)
            .copied()
    }

    /// All ranks must say the same; factors may differ.
    pub fn number(self) -> u64 {
        match self {
            Self::Sum => 0,
            Self::Product => 1,
            Self::Maximum => 2,
            Self::Minimum => 3,
            Self::Average => 4,
            Self::Scaled(_) => 5,
        }
    }
}

/// What sums are made of.
trait Wide: Copy {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn most(self, other: Self) -> Self;
    fn part(self, of: usize) -> Self;
}

macro_rules! wide_integers {
    ($($type:ty)*) => { $(
        impl Wide for $type {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            fn most(self, other: Self) -> Self {
                self.max(other)
            }
            fn part(self, of: usize) -> Self {
                // There are at most 256 ranks, which i8 does not hold: then the quotient is 0.
                <$type>::try_from(of).map_or(0, |of| self.wrapping_div(of))
            }
        }
    )* };
}

macro_rules! wide_floats {
    ($($type:ty)*) => { $(
        impl Wide for $type {
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            fn most(self, other: Self) -> Self {
                self.max(other)
            }
            fn part(self, of: usize) -> Self {
                self / of as $type
            }
        }
    )* };
}

wide_integers! { i8 u8 i32 u32 i64 u64 }
wide_floats! { f32 f64 }

/// A type of elements.
trait Value: Copy {
    type Wide: Wide;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! values {
    ($($type:ty: $wide:ty, $value:ident => $widen:expr, $sum:ident => $narrow:expr;)*) => { $(
        impl Value for $type {
            type Wide = $wide;
            fn widen(self) -> $wide {
                let $value = self;
                $widen
            }
            fn narrow($sum: $wide) -> Self {
                $narrow
            }
        }
    )* };
}

values! {
    i8: i8, x => x, sum => sum;
    u8: u8, x => x, sum => sum;
    i32: i32, x => x, sum => sum;
    u32: u32, x => x, sum => sum;
    i64: i64, x => x, sum => sum;
    u64: u64, x => x, sum => sum;
    f32: f32, x => x, sum => sum;
    f64: f64, x => x, sum => sum;
    f16: f32, x => x.to_f32(), sum => f16::from_f32(sum);
    bf16: f32, x => x.to_f32(), sum => bf16::from_f32(sum);
}

/// Reduces `count` elements: one operand of each rank, in their order.
///
/// # Safety
/// `operands` point to as many elements that can be read, `result` to as many that can be written; it is none of
/// the operands, or begins where one does. A factor at an address can be read there.
pub unsafe fn reduce(
    element: Element,
    reduction: Reduction,
    operands: &[*const u8],
    result: *mut u8,
    count: usize,
) {
    macro_rules! of {
        ($type:ty) => {
            // SAFETY: as said above.
            unsafe { reduce_as::<$type>(reduction, operands, result, count) }
        };
    }
    match element {
        Element::I8 => of!(i8),
        Element::U8 => of!(u8),
        Element::I32 => of!(i32),
        Element::U32 => of!(u32),
        Element::I64 => of!(i64),
        Element::U64 => of!(u64),
        Element::F16 => of!(f16),
        Element::F32 => of!(f32),
        Element::F64 => of!(f64),
        Element::Bf16 => of!(bf16),
        Element::F8 => {}
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn reduce_as<T: Value>(reduction: Reduction, operands: &[*const u8], result: *mut u8, count: usize) {
    let read = |from: *const u8, index: usize| {
        // SAFETY: as the caller says.
        unsafe { from.cast::<T>().wrapping_add(index).read_unaligned() }.widen()
    };
    let factor = match reduction {
        Reduction::Scaled(Factor::Here(bytes)) => Some(read(bytes.as_ptr(), 0)),
        Reduction::Scaled(Factor::At(address)) => Some(read(address as *const u8, 0)),
        _ => None,
    };
    let operand = |from: *const u8, index: usize| {
        let value = read(from, index);
        factor.map_or(value, |factor| value.times(factor))
    };
    let Some((first, others)) = operands.split_first() else { return };
    let mut sums: Vec<T::Wide> = (0..count).map(|index| operand(*first, index)).collect();
    for from in others {
        for (index, sum) in sums.iter_mut().enumerate() {
            let value = operand(*from, index);
            *sum = match reduction {
                Reduction::Sum | Reduction::Average | Reduction::Scaled(_) => sum.plus(value),
                Reduction::Product => sum.times(value),
                Reduction::Maximum => sum.most(value),
                Reduction::Minimum => sum.least(value),
            };
        }
    }
    for (index, sum) in sums.into_iter().enumerate() {
        let sum = if reduction == Reduction::Average { sum.part(operands.len()) } else { sum };
        // SAFETY: as the caller says.
        unsafe { result.cast::<T>().wrapping_add(index).write_unaligned(T::narrow(sum)) };
    }
}
