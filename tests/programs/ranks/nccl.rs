//! The functions of the stand-in for NCCL, found in the library that `STAND_IN` names, and what the checks need of
//! the driver.

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream};
use std::ffi::{CString, c_void};
use std::sync::OnceLock;

pub const IN_PROGRESS: i32 = 7;
pub const REMOTE_ERROR: i32 = 6;
pub const INVALID_USAGE: i32 = 5;
pub const INVALID_ARGUMENT: i32 = 4;
pub const CUDA_ERROR: i32 = 1;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Id(pub [u8; 128]);

/// A handle of a communicator.
pub type Comm = usize;

macro_rules! functions {
    ($($field:ident: $name:literal ($($type:ty),*);)*) => {
        pub struct Nccl { $(pub $field: unsafe extern "C" fn($($type),*) -> i32,)* }

        impl Nccl {
            fn load() -> Self {
                let path = CString::new(std::env::var("STAND_IN").expect("STAND_IN names the library")).unwrap();
                // SAFETY: a path.
                let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
                assert!(!library.is_null(), "{path:?} cannot be loaded");
                Self { $($field: {
                    let name = CString::new(concat!("standin_", $name)).unwrap();
                    // SAFETY: an open library and a name.
                    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
                    assert!(!found.is_null(), "{name:?} is missing");
                    // SAFETY: nccl.h says what type the function of this name has.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> i32>(found) }
                },)* }
            }
        }
    };
}

functions! {
    get_id: "ncclGetUniqueId" (*mut Id);
    init: "ncclCommInitRank" (*mut Comm, i32, Id, i32);
    init_all: "ncclCommInitAll" (*mut Comm, i32, *const i32);
    split: "ncclCommSplit" (Comm, i32, i32, *mut Comm, *const c_void);
    shrink: "ncclCommShrink" (Comm, *const i32, i32, *mut Comm, *const c_void, i32);
    destroy: "ncclCommDestroy" (Comm);
    abort: "ncclCommAbort" (Comm);
    async_error: "ncclCommGetAsyncError" (Comm, *mut i32);
    count: "ncclCommCount" (Comm, *mut i32);
    user_rank: "ncclCommUserRank" (Comm, *mut i32);
    all_reduce: "ncclAllReduce" (u64, u64, usize, i32, i32, Comm, CUstream);
    broadcast: "ncclBroadcast" (u64, u64, usize, i32, i32, Comm, CUstream);
    reduce: "ncclReduce" (u64, u64, usize, i32, i32, i32, Comm, CUstream);
    all_gather: "ncclAllGather" (u64, u64, usize, i32, Comm, CUstream);
    reduce_scatter: "ncclReduceScatter" (u64, u64, usize, i32, i32, Comm, CUstream);
    all_to_all: "ncclAlltoAll" (u64, u64, usize, i32, Comm, CUstream);
    send: "ncclSend" (u64, usize, i32, i32, Comm, CUstream);
    receive: "ncclRecv" (u64, usize, i32, i32, Comm, CUstream);
    group_start: "ncclGroupStart" ();
    group_end: "ncclGroupEnd" ();
    scaled: "ncclRedOpCreatePreMulSum" (*mut i32, *const c_void, i32, i32, Comm);
    forget: "ncclRedOpDestroy" (i32, Comm);
    window: "ncclCommWindowRegister" (Comm, u64, usize, *mut usize, i32);
}

pub fn nccl() -> &'static Nccl {
    static NCCL: OnceLock<Nccl> = OnceLock::new();
    NCCL.get_or_init(Nccl::load)
}

/// A call of a function of [`Nccl`], and its status.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let function = $crate::nccl::nccl().$function;
        // SAFETY: nccl.h says what the arguments must be: handles, and places that outlive the call.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use call;

/// The same, which succeeds.
macro_rules! done {
    ($function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($crate::nccl::call!($function($($argument),*)), 0, stringify!($function))
    };
}
pub(crate) use done;

/// Makes a GPU's primary context the thread's.
pub fn use_gpu(number: i32) -> CUcontext {
    result::init().unwrap();
    let device = result::device::get(number).unwrap();
    // SAFETY: a GPU that is there.
    let context = unsafe { result::primary_ctx::retain(device) }.unwrap();
    // SAFETY: just retained.
    unsafe { result::ctx::set_current(context) }.unwrap();
    context
}

pub fn gpus() -> i32 {
    result::init().unwrap();
    result::device::get_count().unwrap()
}

pub fn stream() -> CUstream {
    result::stream::create(result::stream::StreamKind::NonBlocking).unwrap()
}

pub fn synchronize(stream: CUstream) {
    // SAFETY: a stream of ours.
    unsafe { result::stream::synchronize(stream) }.unwrap();
}

/// Whether all that is in the stream is done.
pub fn is_idle(stream: CUstream) -> bool {
    // SAFETY: a stream of ours.
    match unsafe { sys::cuStreamQuery(stream) } {
        CUresult::CUDA_SUCCESS => true,
        CUresult::CUDA_ERROR_NOT_READY => false,
        other => panic!("{other:?}"),
    }
}

pub fn async_error(comm: Comm) -> i32 {
    let mut code = -1;
    done!(async_error(comm, &raw mut code));
    code
}

/// Device memory with elements.
pub struct Buffer {
    pub address: u64,
    bytes: usize,
}

impl Buffer {
    pub fn of<T: Copy>(values: &[T]) -> Self {
        let bytes = size_of_val(values).max(1);
        // SAFETY: a context is current.
        let address = unsafe { result::malloc_sync(bytes) }.unwrap();
        // SAFETY: as many bytes there as here.
        unsafe { sys::cuMemcpyHtoD_v2(address, values.as_ptr().cast(), size_of_val(values)) }
            .result()
            .unwrap();
        Self { address, bytes: size_of_val(values) }
    }

    pub fn read<T: Copy + Default>(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.bytes / size_of::<T>()];
        // SAFETY: as many bytes here as there; any bits are a value of the types that are read.
        unsafe { sys::cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), self.address, self.bytes) }
            .result()
            .unwrap();
        values
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `of`; what used it is done.
        let _ = unsafe { result::free_sync(self.address) };
    }
}
