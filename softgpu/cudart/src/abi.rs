//! The border, both of them: arguments that a program gives the runtime, and arguments that the runtime
//! gives the driver, most of which are the same.
//!
//! Invariant: a value of [`Out`], [`Maybe`], [`In`] or [`Text`] points to what the driver's and the
//! runtime's manual demand for the length of the call: it was given by the program, which promised
//! just that, or made of a reference. Numbers, handles and addresses promise nothing; the driver checks them.

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use cudarc::driver::sys as cu;
use cudarc::runtime::sys as rt;

use crate::current;
use crate::driver::{Driver, Streams};
use crate::error::{self, Answer, Error};

/// A value of one representation that may have a different type on each side.
pub trait Value: Copy {
    /// Its type in cudarc's binding of the driver.
    type Driver;
    /// Its type in cudarc's binding of the runtime.
    type Runtime;
}

/// A parameter: how C passes it, and what it is declared as on each side.
pub trait Border: Sized {
    /// What an exported function takes.
    type C;
    /// Its type in cudarc's binding of the driver.
    type Driver;
    /// Its type in cudarc's binding of the runtime.
    type Runtime;

    /// # Safety
    /// `raw` is an argument of a runtime function, and the value made of it is dropped before that
    /// function returns.
    unsafe fn from_c(raw: Self::C) -> Answer<Self>;
}

impl<T: Value> Border for T {
    type C = T;
    type Driver = T::Driver;
    type Runtime = T::Runtime;
    unsafe fn from_c(raw: T) -> Answer<T> {
        Ok(raw)
    }
}

macro_rules! values {
    ($($type:ty = $driver:ty, $runtime:ty;)*) => {$(
        impl Value for $type {
            type Driver = $driver;
            type Runtime = $runtime;
        }
        // One representation: what is passed on is what came.
        const _: () = assert!(size_of::<$type>() == size_of::<$runtime>());
    )*};
}

values! {
    i32 = i32, i32;
    u32 = u32, u32;
    u8 = u8, u8;
    u64 = u64, u64;
    usize = usize, usize;
    f32 = f32, f32;
    c_char = c_char, c_char;
    *const c_char = *const c_char, *const c_char;
    Address = cu::CUdeviceptr, *mut c_void;
    ConstAddress = cu::CUdeviceptr, *const c_void;
    Host = *const c_void, *const c_void;
    HostMut = *mut c_void, *mut c_void;
    Parameters = *mut *mut c_void, *mut *mut c_void;
    Location = cu::CUmemLocation, rt::cudaMemLocation;
    rt::dim3 = rt::dim3, rt::dim3;
    rt::cudaDeviceProp = rt::cudaDeviceProp, rt::cudaDeviceProp;
    rt::cudaFuncAttributes = rt::cudaFuncAttributes, rt::cudaFuncAttributes;
    rt::cudaExtent = rt::cudaExtent, rt::cudaExtent;
    rt::cudaPitchedPtr = rt::cudaPitchedPtr, rt::cudaPitchedPtr;
    rt::cudaPos = rt::cudaPos, rt::cudaPos;
    cu::CUuuid = cu::CUuuid, rt::cudaUUID_t;
    cu::CUipcMemHandle = cu::CUipcMemHandle, rt::cudaIpcMemHandle_t;
    cu::CUipcEventHandle = cu::CUipcEventHandle, rt::cudaIpcEventHandle_t;
    cu::CUDA_MEMCPY2D = cu::CUDA_MEMCPY2D, cu::CUDA_MEMCPY2D;
    cu::CUDA_MEMCPY3D = cu::CUDA_MEMCPY3D, cu::CUDA_MEMCPY3D;
    cu::CUlaunchConfig = cu::CUlaunchConfig, cu::CUlaunchConfig;
    cu::CUDA_KERNEL_NODE_PARAMS = cu::CUDA_KERNEL_NODE_PARAMS, cu::CUDA_KERNEL_NODE_PARAMS;
}

/// A device address.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq)]
pub struct Address(pub u64);

impl Address {
    /// The same, to be read from.
    pub fn to_read(self) -> ConstAddress {
        ConstAddress(self.0)
    }
}

/// A device address that is only read from.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ConstAddress(pub u64);

/// Host memory (`const void *`), never looked at here.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Host(pub usize);

/// Host memory (`void *`), never looked at here.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct HostMut(pub usize);

/// The parameters of a launch (`void **`), read by the driver alone.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Parameters(pub usize);

/// A place of memory, its enum a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: u32,
    id: i32,
}

/// Something of a pointer's size that both sides define alike and only the driver looks at: a handle,
/// a callback, a structure.
#[repr(transparent)]
pub struct Handle<D, R>(pub usize, PhantomData<(D, R)>);

impl<D, R> Handle<D, R> {
    /// No such thing.
    pub const NULL: Self = Self(0, PhantomData);

    /// The one of that value.
    pub const fn new(value: usize) -> Self {
        Self(value, PhantomData)
    }
}

impl<D, R> Clone for Handle<D, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D, R> Copy for Handle<D, R> {}
impl<D, R> Value for Handle<D, R> {
    type Driver = D;
    type Runtime = R;
}

/// An enum that numbers its cases alike on both sides. Enums are numbers at a border: C may pass any.
#[repr(transparent)]
pub struct Enum<D, R>(pub u32, PhantomData<(D, R)>);

impl<D, R> Enum<D, R> {
    /// The case of that number.
    pub const fn new(number: u32) -> Self {
        Self(number, PhantomData)
    }
}

impl<D, R> Clone for Enum<D, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D, R> Copy for Enum<D, R> {}
impl<D, R> Value for Enum<D, R> {
    type Driver = D;
    type Runtime = R;
}

macro_rules! handles {
    ($($name:ident = $driver:ident, $runtime:ident;)*) => {$(
        #[doc = concat!("`", stringify!($runtime), "`")]
        pub type $name = Handle<cu::$driver, rt::$runtime>;
    )*};
}

handles! {
    Stream = CUstream, cudaStream_t;
    Event = CUevent, cudaEvent_t;
    Graph = CUgraph, cudaGraph_t;
    GraphExec = CUgraphExec, cudaGraphExec_t;
    Node = CUgraphNode, cudaGraphNode_t;
    Pool = CUmemoryPool, cudaMemPool_t;
    Kernel = CUkernel, cudaKernel_t;
    Library = CUlibrary, cudaLibrary_t;
    UserObject = CUuserObject, cudaUserObject_t;
    HostFunction = CUhostFn, cudaHostFn_t;
    Callback = CUstreamCallback, cudaStreamCallback_t;
}

/// `CUcontext`; the runtime has no name for it.
pub type Context = Handle<cu::CUcontext, ()>;
/// `CUfunction`
pub type Function = Handle<cu::CUfunction, rt::cudaFunction_t>;

/// A structure that the driver reads, alike on both sides.
pub type Read<D, R = D> = Handle<*const D, *const R>;
/// A structure or array that the driver writes or reads, alike on both sides.
pub type Written<D, R = D> = Handle<*mut D, *mut R>;

/// A place for an answer; null is refused.
#[repr(transparent)]
pub struct Out<'a, T>(NonNull<T>, PhantomData<&'a mut T>);

impl<'a, T> Out<'a, T> {
    /// The place that a reference names.
    pub fn to(place: &'a mut T) -> Self {
        Self(NonNull::from(place), PhantomData)
    }

    /// Writes the answer.
    pub fn set(&mut self, value: T) {
        // SAFETY: by this module's invariant the pointer is valid for one `T`.
        unsafe { self.0.as_ptr().write_unaligned(value) }
    }
}

impl<'a, T, const N: usize> Out<'a, [T; N]> {
    /// The first of its items, for a function that is told how many there are.
    pub fn first(self) -> Out<'a, T> {
        Out(self.0.cast(), PhantomData)
    }
}

impl<T: Value> Border for Out<'_, T> {
    type C = *mut T;
    type Driver = *mut T::Driver;
    type Runtime = *mut T::Runtime;
    unsafe fn from_c(raw: *mut T) -> Answer<Self> {
        NonNull::new(raw).map(|at| Out(at, PhantomData)).ok_or(Error::INVALID_VALUE)
    }
}

/// A place for an answer that the caller may not want (null).
#[repr(transparent)]
pub struct Maybe<'a, T>(Option<NonNull<T>>, PhantomData<&'a mut T>);

impl<T> Maybe<'_, T> {
    /// An answer that nobody wants.
    pub const NONE: Self = Self(None, PhantomData);

    /// Writes the answer if it is wanted.
    pub fn set(&mut self, value: T) {
        if let Some(at) = self.0 {
            Out(at, PhantomData).set(value);
        }
    }

    /// Whether the caller wants this answer.
    pub fn wanted(&self) -> bool {
        self.0.is_some()
    }
}

impl<T: Value> Border for Maybe<'_, T> {
    type C = *mut T;
    type Driver = *mut T::Driver;
    type Runtime = *mut T::Runtime;
    unsafe fn from_c(raw: *mut T) -> Answer<Self> {
        Ok(Maybe(NonNull::new(raw), PhantomData))
    }
}

/// A structure that is read here; null is refused.
#[repr(transparent)]
pub struct In<'a, T>(NonNull<T>, PhantomData<&'a T>);

impl<'a, T: Copy> In<'a, T> {
    /// The place that a reference names.
    pub fn to(place: &'a T) -> Self {
        Self(NonNull::from(place), PhantomData)
    }

    /// The structure.
    pub fn get(&self) -> T {
        // SAFETY: by this module's invariant the pointer is valid for one `T`.
        unsafe { self.0.as_ptr().read_unaligned() }
    }
}

impl<T: Value> Border for In<'_, T> {
    type C = *const T;
    type Driver = *const T::Driver;
    type Runtime = *const T::Runtime;
    unsafe fn from_c(raw: *const T) -> Answer<Self> {
        NonNull::new(raw.cast_mut()).map(|at| In(at, PhantomData)).ok_or(Error::INVALID_VALUE)
    }
}

/// A C string; null is refused.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text<'a>(NonNull<c_char>, PhantomData<&'a CStr>);

impl<'a> Text<'a> {
    /// The text of a string.
    pub fn to(text: &'a CStr) -> Self {
        // A C string's pointer is not null.
        Self(NonNull::from(text).cast(), PhantomData)
    }

    /// The string.
    pub fn get(&self) -> &CStr {
        // SAFETY: by this module's invariant it is a string that stays for the call.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }
    }
}

impl Border for Text<'_> {
    type C = *const c_char;
    type Driver = *const c_char;
    type Runtime = *const c_char;
    unsafe fn from_c(raw: *const c_char) -> Answer<Self> {
        NonNull::new(raw.cast_mut()).map(|at| Text(at, PhantomData)).ok_or(Error::INVALID_VALUE)
    }
}

/// What must be there before a function does its work.
#[derive(Clone, Copy, PartialEq)]
pub enum Need {
    /// The driver, which may find no GPU.
    Driver,
    /// A driver with GPUs.
    Device,
    /// The current device's context, current to this thread.
    Context,
}

/// Runs a call: what it needs first; its error is remembered, no panic passes to C.
pub fn enter(need: Need, streams: Streams, call: impl FnOnce(&'static Driver) -> Answer) -> u32 {
    let work = || {
        let driver = Driver::of(streams)?;
        if need != Need::Driver {
            driver.initialise()?;
        }
        if need == Need::Context {
            current::bind(driver)?;
        }
        call(driver)
    };
    let answer = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        // The panic hook has told what happened; a payload whose drop panics is leaked.
        std::mem::forget(panic);
        Err(Error::UNKNOWN)
    });
    error::remember(answer)
}

/// Exports the runtime's functions. A row is `NEED fn name | name_of_threads(arguments) => function;` and
/// is checked against the header. The function gets the driver in front; the second name gets the one
/// whose default streams are the threads' own.
macro_rules! runtime {
    ($($need:ident fn $name:ident $(| $own:ident)? ($($arg:ident: $type:ty),* $(,)?) => $target:path;)*) => {$(
        const _: unsafe fn($(<$type as $crate::abi::Border>::Runtime),*)
            -> cudarc::runtime::sys::cudaError_t = cudarc::runtime::sys::$name;
        $crate::abi::export!($need ($name $($own)?) ($($arg: $type),*) $target);
    )*};
}

/// As [`runtime!`], for what no header declares: what compilers write into programs.
macro_rules! undeclared {
    ($($need:ident fn $name:ident $(| $own:ident)? ($($arg:ident: $type:ty),* $(,)?) => $target:path;)*) => {$(
        $crate::abi::export!($need ($name $($own)?) ($($arg: $type),*) $target);
    )*};
}

/// The names of one row.
macro_rules! export {
    ($need:ident ($name:ident $own:ident) $arguments:tt $target:path) => {
        $crate::abi::export!($need ($name) $arguments $target);
        $crate::abi::export!(@ $need OfThreads $own $arguments $target);
    };
    ($need:ident ($name:ident) $arguments:tt $target:path) => {
        $crate::abi::export!(@ $need Legacy $name $arguments $target);
    };
    (@ $need:ident $streams:ident $name:ident ($($arg:ident: $type:ty),*) $target:path) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: <$type as $crate::abi::Border>::C),*) -> u32 {
            $crate::abi::enter($crate::abi::Need::$need, $crate::driver::Streams::$streams, |driver| {
                $(
                    // SAFETY: an argument of this runtime function; its value is dropped below.
                    let $arg = unsafe { <$type as $crate::abi::Border>::from_c($arg) }?;
                )*
                $target(driver, $($arg),*)
            })
        }
    };
}

/// Exports functions that need no driver and answer something else than an error.
macro_rules! plain {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $answer:ty => $target:path;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> $answer {
            $target($($arg),*)
        }
    )*};
}

/// Exports functions that are refused by name, whatever their arguments.
macro_rules! refused {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> u32 {
            static SAID: std::sync::Once = std::sync::Once::new();
            $crate::error::refuse(stringify!($name), &SAID)
        }
    )*};
}

pub(crate) use {export, plain, refused, runtime, undeclared};
