//! The border: C arguments become checked Rust values, and every call goes through one `enter`.
//!
//! Invariant: a value of [`Out`], [`In`], [`Text`] … exists only if the caller of a driver function
//! passed it, so its pointer is what `cuda.h` demands of that caller: valid for that call. That is
//! why their methods are safe, and why they never outlive the call.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use cudarc::driver::sys::{self, CUresult};

use crate::{fault, node, stream};

/// What a driver function answers: success or the code that C callers get.
pub type Answer<T = ()> = Result<T, CUresult>;

/// A parameter of a driver function: how C passes it and what we make of it.
pub trait Border: Sized {
    /// What the exported function takes. Enums arrive as numbers: C may pass any.
    type C;
    /// The type in `cuda.h`, checked at compile time against cudarc's binding.
    type Declared;

    /// # Safety
    /// `raw` is an argument of a driver function, and the value made of it is dropped before that
    /// function returns.
    unsafe fn from_c(raw: Self::C) -> Answer<Self>;
}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(
        impl Border for $type {
            type C = $type;
            type Declared = $type;
            unsafe fn from_c(raw: $type) -> Answer<$type> {
                Ok(raw)
            }
        }
    )*};
}

plain!(
    u8,
    u16,
    u32,
    i32,
    u64,
    usize,
    sys::CUcontext,
    sys::CUstream,
    sys::CUevent,
    sys::CUmodule,
    sys::CUfunction,
    sys::CUlibrary,
    sys::CUkernel,
    sys::CUgraph,
    sys::CUgraphExec,
    sys::CUgraphNode,
    sys::CUmemoryPool,
    sys::CUarray,
    sys::CUlinkState,
    sys::CUuserObject,
    sys::CUgreenCtx,
    sys::CUdevResourceDesc,
    sys::CUipcMemHandle,
    sys::CUipcEventHandle,
    sys::CUhostFn,
    sys::CUstreamCallback,
    sys::CUoccupancyB2DSize,
);

/// A place for an answer; null is refused.
pub struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Writes the answer.
    pub fn set(&self, value: T) {
        // SAFETY: by this module's invariant the pointer is the caller's, valid for one `T`.
        unsafe { self.0.as_ptr().write_unaligned(value) }
    }
}

impl<T> Border for Out<T> {
    type C = *mut T;
    type Declared = *mut T;
    unsafe fn from_c(raw: *mut T) -> Answer<Self> {
        NonNull::new(raw).map(Out).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// A place for an answer that the caller may not want (null).
pub struct Maybe<T>(Option<Out<T>>);

impl<T> Maybe<T> {
    /// Writes the answer if it is wanted.
    pub fn set(&self, value: T) {
        if let Some(out) = &self.0 {
            out.set(value);
        }
    }

    /// An answer that nobody wants.
    pub fn unwanted() -> Maybe<T> {
        Maybe(None)
    }

    /// Whether the caller wants this answer.
    pub fn wanted(&self) -> bool {
        self.0.is_some()
    }
}

impl<T> Border for Maybe<T> {
    type C = *mut T;
    type Declared = *mut T;
    unsafe fn from_c(raw: *mut T) -> Answer<Self> {
        Ok(Maybe(NonNull::new(raw).map(Out)))
    }
}

/// `void *` to an answer whose type depends on another argument.
pub struct OutAny(NonNull<c_void>);

impl OutAny {
    /// Writes an answer of the type that the function's manual page names for this request.
    pub fn set<T>(&self, value: T) {
        // SAFETY: by this module's invariant the caller made room for the type its request implies.
        unsafe { self.0.cast::<T>().as_ptr().write_unaligned(value) }
    }
}

impl OutAny {
    /// Writes answers one after the other, as many as the caller said it has room for.
    pub fn set_many<T>(&self, values: impl Iterator<Item = T>) {
        for (at, value) in values.enumerate() {
            // SAFETY: by this module's invariant the caller has room for as many as it said.
            let place = unsafe { self.0.cast::<T>().as_ptr().add(at) };
            // SAFETY: as above.
            unsafe { place.write_unaligned(value) };
        }
    }
}

impl Border for OutAny {
    type C = *mut c_void;
    type Declared = *mut c_void;
    unsafe fn from_c(raw: *mut c_void) -> Answer<Self> {
        NonNull::new(raw).map(OutAny).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// An array of `void *` answers (`cuPointerGetAttributes`); its length is another argument.
pub struct OutAnys(NonNull<*mut c_void>);

impl OutAnys {
    /// The `count` places, null where the caller wants none.
    pub fn many(&self, count: usize) -> Vec<Option<OutAny>> {
        // SAFETY: by this module's invariant the array has as many items as the caller said.
        let raw = unsafe { std::slice::from_raw_parts(self.0.as_ptr(), count) };
        raw.iter().map(|at| NonNull::new(*at).map(OutAny)).collect()
    }
}

impl Border for OutAnys {
    type C = *mut *mut c_void;
    type Declared = *mut *mut c_void;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        NonNull::new(raw).map(OutAnys).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// Room for a name of a length that is another argument.
pub struct OutText(NonNull<c_char>);

impl OutText {
    /// Writes as much of `text` as fits in `length` with the terminating zero.
    pub fn set(&self, text: &str, length: i32) {
        let room = usize::try_from(length).unwrap_or(0);
        let Some(last) = room.checked_sub(1) else { return };
        // SAFETY: by this module's invariant the caller made room for `length` characters.
        let room = unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast::<u8>(), room) };
        let kept = last.min(text.len());
        room[..kept].copy_from_slice(&text.as_bytes()[..kept]);
        room[kept] = 0;
    }
}

impl Border for OutText {
    type C = *mut c_char;
    type Declared = *mut c_char;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        NonNull::new(raw).map(OutText).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// A structure of `cuda.h` as it may safely be read: enums are numbers in it.
pub trait Mirror: Copy {
    /// The structure in cudarc's binding.
    type Of;
}

/// A structure, or several, that the caller passes by address; null is refused.
pub struct In<T: Mirror>(NonNull<T>);

impl<T: Mirror> In<T> {
    /// The structure.
    pub fn get(&self) -> T {
        // SAFETY: by this module's invariant the caller's pointer is valid for one `T`.
        unsafe { self.0.as_ptr().read_unaligned() }
    }

    /// The `count` structures of an array.
    pub fn many(&self, count: usize) -> Vec<T> {
        // SAFETY: by this module's invariant the array has as many items as the caller said.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), count) }.to_vec()
    }
}

impl<T: Mirror> Border for In<T> {
    type C = *const T;
    type Declared = *const T::Of;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        const { assert!(size_of::<T>() == size_of::<T::Of>()) };
        NonNull::new(raw.cast_mut()).map(In).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// As [`In`], for functions whose prototype lacks the `const`.
pub struct InMut<T: Mirror>(In<T>);

impl<T: Mirror> std::ops::Deref for InMut<T> {
    type Target = In<T>;
    fn deref(&self) -> &In<T> {
        &self.0
    }
}

impl<T: Mirror> InMut<T> {
    /// Writes the structure back.
    pub fn set(&self, value: T) {
        // SAFETY: by this module's invariant the caller's pointer is valid for one `T`, and the
        // prototype lets us write there.
        unsafe { self.0.0.as_ptr().write_unaligned(value) }
    }
}

impl<T: Mirror> Border for InMut<T> {
    type C = *mut T;
    type Declared = *mut T::Of;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        // SAFETY: the same promise, handed on.
        unsafe { In::from_c(raw.cast_const()) }.map(InMut)
    }
}

/// A place for an answer that also says something: null is refused.
pub struct InOut<T>(Out<T>);

impl<T: Copy> InOut<T> {
    /// What the caller put there.
    pub fn get(&self) -> T {
        // SAFETY: by this module's invariant the pointer is the caller's, who has set what it names:
        // a number or a handle.
        unsafe { self.0.0.as_ptr().read_unaligned() }
    }

    /// Writes the answer.
    pub fn set(&self, value: T) {
        self.0.set(value);
    }
}

impl<T> Border for InOut<T> {
    type C = *mut T;
    type Declared = *mut T;
    unsafe fn from_c(raw: *mut T) -> Answer<Self> {
        // SAFETY: the same promise, handed on.
        unsafe { Out::from_c(raw) }.map(InOut)
    }
}

/// An array of handles or numbers that the caller passes; its length is another argument.
pub struct List<T>(*const T);

impl<T: Copy> List<T> {
    /// Whether the caller passed none.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The `count` items; null is refused unless there are none.
    pub fn many(&self, count: usize) -> Answer<Vec<T>> {
        match (count, self.0.is_null()) {
            (0, _) => Ok(Vec::new()),
            (_, true) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            // SAFETY: by this module's invariant the array has as many items as the caller said.
            _ => Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec()),
        }
    }
}

impl<T> Border for List<T> {
    type C = *const T;
    type Declared = *const T;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        Ok(List(raw))
    }
}

/// As [`List`], for functions whose prototype lacks the `const`.
pub struct ListMut<T>(List<T>);

impl<T> std::ops::Deref for ListMut<T> {
    type Target = List<T>;
    fn deref(&self) -> &List<T> {
        &self.0
    }
}

impl<T> Border for ListMut<T> {
    type C = *mut T;
    type Declared = *mut T;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        Ok(ListMut(List(raw.cast_const())))
    }
}

/// Room for an array of answers, or null; its length is another argument.
pub struct Room<T>(Option<NonNull<T>>);

impl<T: Copy> Room<T> {
    /// Whether the caller wants this answer.
    pub fn wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Writes `count` items: those given as far as there is room, the rest `blank`.
    pub fn fill(&self, items: &[T], count: usize, blank: T) {
        let Some(start) = self.0 else { return };
        for at in 0..count {
            let item = items.get(at).copied().unwrap_or(blank);
            // SAFETY: by this module's invariant the caller made room for `count` items.
            let place = unsafe { start.as_ptr().add(at) };
            // SAFETY: as above.
            unsafe { place.write_unaligned(item) };
        }
    }
}

impl<T> Border for Room<T> {
    type C = *mut T;
    type Declared = *mut T;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        Ok(Room(NonNull::new(raw)))
    }
}

/// A place for an enum of `cuda.h`, written as a number; null is refused.
pub struct OutEnum<E>(NonNull<u32>, std::marker::PhantomData<E>);

impl<E> OutEnum<E> {
    /// Writes the answer.
    pub fn set(&self, value: u32) {
        // SAFETY: by this module's invariant the pointer is the caller's, valid for the enum: four bytes.
        unsafe { self.0.as_ptr().write_unaligned(value) }
    }
}

impl<E> Border for OutEnum<E> {
    type C = *mut u32;
    type Declared = *mut E;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        const { assert!(size_of::<E>() == size_of::<u32>()) };
        let place = NonNull::new(raw).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        Ok(OutEnum(place, std::marker::PhantomData))
    }
}

/// An enum of `cuda.h`, as the number C passed.
pub struct Enum<E>(pub u32, std::marker::PhantomData<E>);

impl<E> Border for Enum<E> {
    type C = u32;
    type Declared = E;
    unsafe fn from_c(raw: u32) -> Answer<Self> {
        Ok(Enum(raw, std::marker::PhantomData))
    }
}

/// A C string, copied.
pub struct Text(pub String);

impl Border for Text {
    type C = *const c_char;
    type Declared = *const c_char;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        if raw.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: by this module's invariant a text argument ends with a zero.
        let text = unsafe { CStr::from_ptr(raw) };
        Ok(Text(text.to_string_lossy().into_owned()))
    }
}

/// Host memory the caller names (`void *`), by address: it may be null, and is checked where used.
#[derive(Clone, Copy)]
pub struct HostMut(pub usize);

impl Border for HostMut {
    type C = *mut c_void;
    type Declared = *mut c_void;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        Ok(HostMut(raw as usize))
    }
}

/// Host memory the caller names (`const void *`), by address.
#[derive(Clone, Copy)]
pub struct Host(pub usize);

impl Border for Host {
    type C = *const c_void;
    type Declared = *const c_void;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        Ok(Host(raw as usize))
    }
}

/// An argument we do not look at (options of modules, attributes of launches).
pub struct Ignored<T>(std::marker::PhantomData<T>);

impl<T> Border for Ignored<T> {
    type C = T;
    type Declared = T;
    unsafe fn from_c(_: T) -> Answer<Self> {
        Ok(Ignored(std::marker::PhantomData))
    }
}

/// The parameters of a launch (`void **`): null, or an array that the kernel's signature describes.
#[derive(Clone, Copy)]
pub struct Parameters(pub *mut *mut c_void);

impl Border for Parameters {
    type C = *mut *mut c_void;
    type Declared = *mut *mut c_void;
    unsafe fn from_c(raw: Self::C) -> Answer<Self> {
        Ok(Parameters(raw))
    }
}

/// One exported function: its name, whether it may be called before `cuInit`, its injected faults.
pub struct Entry {
    name: &'static str,
    early: bool,
    faults: fault::Counter,
}

impl Entry {
    /// The entry of a function that needs `cuInit` first, unless `early`.
    pub const fn new(name: &'static str, early: bool) -> Entry {
        Entry { name, early, faults: fault::Counter::new() }
    }

    /// Runs a call: injected faults first, no panic passes to C.
    pub fn enter(&'static self, call: impl FnOnce() -> Answer) -> CUresult {
        if let Some(code) = self.faults.due(self.name) {
            return code;
        }
        if !self.early && !node::ready() {
            return CUresult::CUDA_ERROR_NOT_INITIALIZED;
        }
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(())) => CUresult::CUDA_SUCCESS,
            Ok(Err(code)) => code,
            Err(panic) => answer_panic(panic),
        }
    }

    /// [`Entry::enter`] for a function whose default stream is the calling thread's own.
    pub fn enter_per_thread(&'static self, call: impl FnOnce() -> Answer) -> CUresult {
        self.enter(|| stream::with_own_default(call))
    }

    /// Refuses a function that the software GPU lacks, naming it once on stderr; injected faults first.
    pub fn refuse(&self, said: &std::sync::Once) -> CUresult {
        if let Some(code) = self.faults.due(self.name) {
            return code;
        }
        said.call_once(|| node::say(&format!("{} is not supported", self.name)));
        CUresult::CUDA_ERROR_NOT_SUPPORTED
    }
}

/// The panic hook has already told what happened; a payload whose drop panics is leaked.
fn answer_panic(panic: Box<dyn Any + Send>) -> CUresult {
    std::mem::forget(panic);
    CUresult::CUDA_ERROR_UNKNOWN
}

/// Exports the driver functions of a table. A row is `kind fn name(arguments) => function;` with kind
/// `now` (in cuda.h 13.0, checked against it), `early` (also callable before `cuInit`), `old` (in
/// older headers only), `old_early` or `new` (in newer headers only). A second name, `… | twin =>`, is
/// the `_ptsz` or `_ptds` form: the same function, for which the default stream is the thread's own.
macro_rules! driver {
    ($($kind:ident fn $name:ident $args:tt $(| $twin:ident)? => $target:path;)*) => {
        $(
            $crate::abi::export!($kind $name $args $target);
            $($crate::abi::export!(twin $twin $args $target);)?
        )*

        /// The address of an exported function, by its exact name.
        fn implemented(name: &str) -> Option<*const std::ffi::c_void> {
            match name {
                $(
                    stringify!($name) => Some($name as *const std::ffi::c_void),
                    $(stringify!($twin) => Some($twin as *const std::ffi::c_void),)?
                )*
                _ => None,
            }
        }
    };
}

/// One exported function of [`driver!`].
macro_rules! export {
    (now $name:ident $args:tt $target:path) => {
        $crate::abi::export!(check $name $args);
        $crate::abi::export!(@ enter, false, $name $args $target);
    };
    (early $name:ident $args:tt $target:path) => {
        $crate::abi::export!(check $name $args);
        $crate::abi::export!(@ enter, true, $name $args $target);
    };
    (old_early $name:ident $args:tt $target:path) => {
        $crate::abi::export!(@ enter, true, $name $args $target);
    };
    (twin $name:ident $args:tt $target:path) => {
        $crate::abi::export!(@ enter_per_thread, false, $name $args $target);
    };
    (check $name:ident ($($arg:ident: $type:ty),* $(,)?)) => {
        const _: unsafe fn($(<$type as $crate::abi::Border>::Declared),*)
            -> cudarc::driver::sys::CUresult = cudarc::driver::sys::$name;
    };
    (@ $enter:ident, $early:literal, $name:ident ($($arg:ident: $type:ty),* $(,)?) $target:path) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($arg: <$type as $crate::abi::Border>::C),*
        ) -> cudarc::driver::sys::CUresult {
            static ENTRY: $crate::abi::Entry = $crate::abi::Entry::new(stringify!($name), $early);
            ENTRY.$enter(|| {
                $(
                    // SAFETY: an argument of this driver function; its value is dropped below.
                    let $arg = unsafe { <$type as $crate::abi::Border>::from_c($arg) }?;
                )*
                $target($($arg),*)
            })
        }
    };
    ($unchecked:ident $name:ident $args:tt $target:path) => {
        $crate::abi::export!(@ enter, false, $name $args $target);
    };
}

/// Exports driver functions that are refused by name, whatever their arguments.
macro_rules! refused {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> cudarc::driver::sys::CUresult {
                static ENTRY: $crate::abi::Entry = $crate::abi::Entry::new(stringify!($name), true);
                static SAID: std::sync::Once = std::sync::Once::new();
                ENTRY.refuse(&SAID)
            }
        )*

        /// The address of a function that is exported only to be refused.
        fn refusal(name: &str) -> Option<*const std::ffi::c_void> {
            match name {
                $(stringify!($name) => Some($name as *const std::ffi::c_void),)*
                _ => None,
            }
        }
    };
}

pub(crate) use {driver, export, refused};
