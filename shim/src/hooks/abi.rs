//! The border between C and the hooks.
//!
//! Invariant: no panic and no null out-pointer passes it; a call that comes while the thread is
//! inside one of ours (the driver calling itself) goes straight to the driver.

use crate::gate::Record;
use crate::log::{Once, info, warning};
use crate::process::{self, Process};
use crate::settings;
use crate::status::{Answer, Status, code};
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidegate_ffi::cuda::sys::Code;

/// Calls the driver with the program's own arguments.
pub type Real<'a> = &'a dyn Fn() -> Answer;

/// Where the program wants a result: not null, perhaps not initialised.
pub struct Out<'a, T> {
    place: *mut T,
    lives: PhantomData<&'a mut T>,
}

/// Where the program wants a result, with a value in it.
pub struct Filled<'a, T>(Out<'a, T>);

impl<'a, T: Copy> Out<'a, T> {
    /// Writes the result.
    pub fn set(self, value: T) {
        self.preset(value);
    }

    /// The value that the driver has written: a call of it has succeeded.
    pub fn written(self) -> Filled<'a, T> {
        Filled(self)
    }

    /// Writes a value that may be read again, after the driver may have written another.
    pub fn preset(self, value: T) -> Filled<'a, T> {
        let filled = Filled(self);
        filled.set(value);
        filled
    }
}

impl<'a> Out<'a, c_void> {
    /// The same place, where the driver's manual says that a `T` is wanted.
    pub fn of_type<T>(self) -> Out<'a, T> {
        Out { place: self.place.cast(), lives: PhantomData }
    }
}

impl<'a, T> Out<'a, T> {
    /// The same place, written as an `As` that is laid out like a `T`.
    pub fn of_layout<As>(self) -> Out<'a, As> {
        const { assert!(size_of::<As>() == size_of::<T>()) };
        Out { place: self.place.cast(), lives: PhantomData }
    }
}

impl<T: Copy> Filled<'_, T> {
    /// Writes the result.
    pub fn set(&self, value: T) {
        // SAFETY: not null, and by the driver's manual the program passes room for a T there.
        unsafe { self.0.place.write(value) };
    }

    /// What is there now.
    pub fn get(&self) -> T {
        // SAFETY: as above, and initialised by `preset`.
        unsafe { self.0.place.read() }
    }
}

/// What the program passes by its address: not null.
pub struct In<'a, T> {
    place: *const T,
    lives: PhantomData<&'a T>,
}

impl<T> In<'_, T> {
    /// Reads it as an `As`: `T`, or its beginning, in plain numbers. (Of the driver's enums a program
    /// may know values that our header does not have.)
    pub fn read<As: Copy>(&self) -> As {
        // SAFETY: not null, and by the driver's manual a `T` lies there; the caller names a type that
        // is laid out like its beginning.
        unsafe { self.place.cast::<As>().read() }
    }
}

impl<'a, T> Argument<*const T> for In<'a, T> {
    unsafe fn from_c(argument: *const T) -> Result<Self, Status> {
        if argument.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Self { place: argument, lives: PhantomData })
    }
}

impl<'a, T> Argument<*mut T> for In<'a, T> {
    unsafe fn from_c(argument: *mut T) -> Result<Self, Status> {
        // SAFETY: the caller's promise.
        unsafe { Self::from_c(argument.cast_const()) }
    }
}

/// A hook's parameter, made of a C argument.
pub trait Argument<C>: Sized {
    /// Checks and converts the argument.
    ///
    /// # Safety
    /// A pointer is null or points to what the driver's manual asks for, through the call.
    unsafe fn from_c(argument: C) -> Result<Self, Status>;
}

impl<C> Argument<C> for C {
    unsafe fn from_c(argument: C) -> Result<Self, Status> {
        Ok(argument)
    }
}

impl<'a, T> Argument<*mut T> for Out<'a, T> {
    unsafe fn from_c(argument: *mut T) -> Result<Self, Status> {
        if argument.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Self { place: argument, lives: PhantomData })
    }
}

impl<'a, T> Argument<*mut T> for Option<Out<'a, T>> {
    unsafe fn from_c(argument: *mut T) -> Result<Self, Status> {
        Ok((!argument.is_null()).then_some(Out { place: argument, lives: PhantomData }))
    }
}

/// A program's array of known length.
///
/// # Safety
/// `length` elements lie at `start`, through the call, unless it is null.
pub unsafe fn slice<'a, T>(start: *const T, length: usize) -> Result<&'a [T], Status> {
    if start.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(start, length) })
}

thread_local! {
    /// The thread is inside a hook. Const and without a destructor, so usable to its very end.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, the thread is inside a hook.
struct Inside(());

impl Inside {
    /// `None`: it was inside already, here or in a gated call.
    fn enter() -> Option<Self> {
        let nested = Record::of_thread().is_some_and(|record| record.nesting() > 0);
        (!nested && !INSIDE.replace(true)).then_some(Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Runs a hook that also works without a manager.
pub fn enter_always(hook: impl FnOnce() -> Answer, real: Real<'_>) -> Code {
    let Some(_inside) = Inside::enter() else { return code(real()) };
    code(catch_unwind(AssertUnwindSafe(hook)).unwrap_or(Err(Status::UNKNOWN)))
}

/// Runs a hook; without a manager the driver answers.
pub fn enter(hook: impl FnOnce(&'static Process) -> Answer, real: Real<'_>) -> Code {
    match process::active() {
        Some(process) => enter_always(|| hook(process), real),
        None => code(real()),
    }
}

/// Whether a call of the function `name` is refused: there is a manager, and it is the program that
/// calls. The user is told the name.
pub fn is_refused(name: &CStr, said: &Once) -> bool {
    if process::active().is_none() || settings::is_off() {
        return false;
    }
    let Some(_inside) = Inside::enter() else { return false };
    // A panic while speaking changes nothing about the answer.
    let _ = catch_unwind(AssertUnwindSafe(|| name_refused(&name.to_string_lossy(), said)));
    true
}

/// Each function once; of all of them the first by default, since the program may fail for it.
fn name_refused(name: &str, said: &Once) {
    static FIRST: Once = Once::new();
    if !said.is_first() {
        return;
    }
    if FIRST.is_first() {
        warning!("{name} is not supported under Tidegate yet (TIDEGATE_LOG=info names every such call)");
    } else {
        info!("{name} is not supported under Tidegate yet");
    }
}

/// One row for each hook: the driver's signature, and the safe function behind it.
///
/// A row makes the exported function, whose type is checked against the table of driver
/// functions. `=> path` hooks are called with the process and a closure that calls the driver
/// with the program's own arguments; `=> path as always` hooks work without a manager and get the
/// closure only. `and name` makes the same of the function for per-thread default streams.
macro_rules! hooks {
    ($( fn $name:ident $parameters:tt $(and $twin:ident)? => $hook:path $(as $always:ident)?; )*) => { $(
        $crate::hooks::abi::export_hook!($name $parameters [$hook, $($always)?]);
        $( $crate::hooks::abi::export_hook!($twin $parameters [$hook, ]); )?
    )* };
}

macro_rules! export_hook {
    ($name:ident ($($arg:ident : $type:ty),* $(,)?) $hook:tt) => {
        #[doc = concat!("The program's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> Code {
            let real = || {
                // SAFETY: the program's own arguments, and its promise.
                let outcome = unsafe { $crate::driver::get().$name($($arg),*) };
                outcome.map_err($crate::status::Status::from)
            };
            $crate::hooks::abi::hook!($hook real $($arg)*)
        }

        const _: tidegate_ffi::cuda::functions::signature::$name = $name;
    };
}

macro_rules! hook {
    ([$hook:path, always] $real:ident $($arg:ident)*) => {
        $crate::hooks::abi::enter_always(
            || $hook(&$real, $(
                // SAFETY: the program's own argument, and its promise.
                unsafe { $crate::hooks::abi::Argument::from_c($arg) }?
            ),*),
            &$real,
        )
    };
    ([$hook:path, ] $real:ident $($arg:ident)*) => {
        $crate::hooks::abi::enter(
            |process| $hook(process, &$real, $(
                // SAFETY: the program's own argument, and its promise.
                unsafe { $crate::hooks::abi::Argument::from_c($arg) }?
            ),*),
            &$real,
        )
    };
}

pub(crate) use {export_hook, hook, hooks};
