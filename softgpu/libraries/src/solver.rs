//! cuSOLVER: how much memory its routines want, which callers allocate at once. They compute nothing. Names and
//! arguments are those of `cusolverDn.h`.

use crate::{Status, tell};

/// Elements, or bytes: some, for who takes none for an error.
const SOME: u16 = 256;

/// Functions that tell a size, or two, behind arguments that do not matter; nor does what follows.
macro_rules! sizes {
    ($($($name:ident)*: $before:tt $count:ident $size:ty;)*) => {
        $( sizes!(($($name)*) $before $count $size); )*
    };
    (($($name:ident)*) $before:tt $count:ident $size:ty) => {
        $( $count!($name $before $size); )*
    };
}

macro_rules! one {
    ($name:ident ($($before:ident)*) $size:ty) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the library's signature")]
        unsafe extern "C" fn $name($($before: usize,)* size: *mut $size) -> Status {
            // SAFETY: the caller's place.
            unsafe { tell(size, SOME.into()) }
        }
    };
}

macro_rules! two {
    ($name:ident ($($before:ident)*) $size:ty) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the library's signature")]
        unsafe extern "C" fn $name($($before: usize,)* device: *mut $size, host: *mut $size) -> Status {
            // SAFETY: the caller's place. So for the other.
            unsafe { tell(device, SOME.into()) };
            // SAFETY: as above.
            unsafe { tell(host, SOME.into()) }
        }
    };
}

sizes! {
    standin_cusolverDnSgesvd_bufferSize standin_cusolverDnDgesvd_bufferSize
    standin_cusolverDnCgesvd_bufferSize standin_cusolverDnZgesvd_bufferSize:
        (_a _b _c) one i32;
    standin_cusolverDnSsytrf_bufferSize standin_cusolverDnDsytrf_bufferSize
    standin_cusolverDnCsytrf_bufferSize standin_cusolverDnZsytrf_bufferSize:
        (_a _b _c _d) one i32;
    standin_cusolverDnSgeqrf_bufferSize standin_cusolverDnDgeqrf_bufferSize
    standin_cusolverDnCgeqrf_bufferSize standin_cusolverDnZgeqrf_bufferSize
    standin_cusolverDnSgetrf_bufferSize standin_cusolverDnDgetrf_bufferSize
    standin_cusolverDnCgetrf_bufferSize standin_cusolverDnZgetrf_bufferSize
    standin_cusolverDnSpotrf_bufferSize standin_cusolverDnDpotrf_bufferSize
    standin_cusolverDnCpotrf_bufferSize standin_cusolverDnZpotrf_bufferSize:
        (_a _b _c _d _e) one i32;
    standin_cusolverDnSorgqr_bufferSize standin_cusolverDnDorgqr_bufferSize
    standin_cusolverDnCungqr_bufferSize standin_cusolverDnZungqr_bufferSize
    standin_cusolverDnSsyevd_bufferSize standin_cusolverDnDsyevd_bufferSize
    standin_cusolverDnCheevd_bufferSize standin_cusolverDnZheevd_bufferSize
    standin_cusolverDnSsyevj_bufferSize standin_cusolverDnDsyevj_bufferSize
    standin_cusolverDnCheevj_bufferSize standin_cusolverDnZheevj_bufferSize
    standin_cusolverDnSsyevjBatched_bufferSize standin_cusolverDnDsyevjBatched_bufferSize
    standin_cusolverDnCheevjBatched_bufferSize standin_cusolverDnZheevjBatched_bufferSize:
        (_a _b _c _d _e _f _g) one i32;
    standin_cusolverDnSormqr_bufferSize standin_cusolverDnDormqr_bufferSize
    standin_cusolverDnCunmqr_bufferSize standin_cusolverDnZunmqr_bufferSize
    standin_cusolverDnSgesvdjBatched_bufferSize standin_cusolverDnDgesvdjBatched_bufferSize
    standin_cusolverDnCgesvdjBatched_bufferSize standin_cusolverDnZgesvdjBatched_bufferSize:
        (_a _b _c _d _e _f _g _h _i _j _k) one i32;
    standin_cusolverDnSgesvdj_bufferSize standin_cusolverDnDgesvdj_bufferSize
    standin_cusolverDnCgesvdj_bufferSize standin_cusolverDnZgesvdj_bufferSize:
        (_a _b _c _d _e _f _g _h _i _j _k _l) one i32;
    standin_cusolverDnSgesvdaStridedBatched_bufferSize standin_cusolverDnDgesvdaStridedBatched_bufferSize
    standin_cusolverDnCgesvdaStridedBatched_bufferSize standin_cusolverDnZgesvdaStridedBatched_bufferSize:
        (_a _b _c _d _e _f _g _h _i _j _k _l _m _n _o _p) one i32;
    standin_cusolverDnXpotrf_bufferSize: (_a _b _c _d _e _f _g _h) two usize;
    standin_cusolverDnXgeqrf_bufferSize: (_a _b _c _d _e _f _g _h _i _j) two usize;
    standin_cusolverDnXsyevd_bufferSize standin_cusolverDnXsyevBatched_bufferSize
    standin_cusolverDnXsytrs_bufferSize: (_a _b _c _d _e _f _g _h _i _j _k) two usize;
    standin_cusolverDnXgeev_bufferSize: (_a _b _c _d _e _f _g _h _i _j _k _l _m _n _o _p _q) two usize;
}
