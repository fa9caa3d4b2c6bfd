//! Brings a small script into a Python program that uses PyTorch, and hears what it has to say.
//!
//! ```text
//! an allocation ─► is there a Python? ─► Py_AddPendingCall ─► (main thread, between two instructions)
//!                                                             is PyTorch there? ─ not yet ─► later again
//!                                                                └ yes ─► hooks for its optimizers
//! ```
//! A pending call needs no module search path, no environment variable and no start-up file: it works with
//! `python -I -S` and in any virtual environment. The interpreter's functions are looked up in the process;
//! where there are none, nothing happens.
//!
//! Invariant: the program's threads wait for nothing here, and see no exception that is not their own.

use crate::log::{debug, info};
use crate::process;
use crate::symbols::real_dlsym;
use crate::torch::Name;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use tidegate_ffi::units::Class;

const SCRIPT: &str = concat!(include_str!("script.py"), "\0");

/// Not queued.
const WANTED: u8 = 0;
/// Queued, or running.
const QUEUED: u8 = 1;
/// It has run, or never will.
const OVER: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(WANTED);
static ALLOCATIONS: AtomicU32 = AtomicU32::new(0);

/// The program allocates. PyTorch may have come since the first time, so it is looked for again, at each
/// power of two.
pub fn look() {
    if STATE.load(Ordering::Relaxed) != WANTED {
        return;
    }
    let count = ALLOCATIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let is_time = count.is_power_of_two();
    if is_time && STATE.compare_exchange(WANTED, QUEUED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        let state = match Interpreter::find() {
            Some(python) if python.is_running() && python.queue() => return,
            Some(_) => WANTED,
            None => OVER,
        };
        STATE.store(state, Ordering::Release);
    }
}

/// A moment's name in words. The kinds are the script's.
pub fn describe((kind, object): Name) -> String {
    let what = match kind {
        1 => "after an optimizer's step",
        2 => "after an optimizer's zero_grad",
        3 => "before a data loader's next",
        4 => "before a graph's replay",
        _ => "at a moment unknown",
    };
    format!("{what} ({object:#x})")
}

type Object = *mut c_void;

/// The functions of the process's Python that are used here: one line makes a field, and finds it.
macro_rules! interpreter {
    ($($field:ident = $name:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// See [`interpreter`]. All of it belongs to Python's stable interface.
        struct Interpreter {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Where the class `Exception` is named.
            exception: *const Object,
        }

        impl Interpreter {
            /// `None`: the process has no Python, or not all of it.
            fn find() -> Option<Self> {
                Some(Self {
                    $($field: {
                        let found = address_of($name)?;
                        // SAFETY: Python's function of this name, whose type is its manual's.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                    exception: address_of(c"PyExc_Exception")?.cast(),
                })
            }
        }
    };
}

interpreter! {
    is_initialized = c"Py_IsInitialized": fn() -> c_int;
    add_pending_call = c"Py_AddPendingCall": fn(unsafe extern "C" fn(Object) -> c_int, Object) -> c_int;
    compile = c"Py_CompileString": fn(*const c_char, *const c_char, c_int) -> Object;
    run = c"PyEval_EvalCode": fn(Object, Object, Object) -> Object;
    builtins = c"PyEval_GetBuiltins": fn() -> Object;
    new_dict = c"PyDict_New": fn() -> Object;
    set_item = c"PyDict_SetItemString": fn(Object, *const c_char, Object) -> c_int;
    item = c"PyDict_GetItemString": fn(Object, *const c_char) -> Object;
    text = c"PyUnicode_AsUTF8": fn(Object) -> *const c_char;
    release = c"Py_DecRef": fn(Object);
    is_error = c"PyErr_ExceptionMatches": fn(Object) -> c_int;
    clear_error = c"PyErr_Clear": fn();
}

/// Wherever the process has it.
fn address_of(name: &CStr) -> Option<*mut c_void> {
    let found = real_dlsym(libc::RTLD_DEFAULT, name);
    (!found.is_null()).then_some(found)
}

/// `Py_file_input`: a sequence of statements.
const STATEMENTS: c_int = 257;

impl Interpreter {
    fn is_running(&self) -> bool {
        // SAFETY: may be called at any time, by any thread.
        unsafe { (self.is_initialized)() != 0 }
    }

    fn queue(&self) -> bool {
        // SAFETY: may be called by any thread of a running interpreter; the function stays where it is.
        unsafe { (self.add_pending_call)(run, ptr::null_mut()) == 0 }
    }

    /// Runs the script; what it says of itself. `None`: it has raised an exception.
    ///
    /// # Safety
    /// The calling thread holds the interpreter's lock.
    unsafe fn run(&self) -> Option<String> {
        // SAFETY: as promised; the texts are C strings.
        let code =
            Held(self, unsafe { (self.compile)(SCRIPT.as_ptr().cast(), c"<tidegate>".as_ptr(), STATEMENTS) });
        // SAFETY: as promised.
        let globals = Held(self, unsafe { (self.new_dict)() });
        if code.1.is_null() || globals.1.is_null() {
            return None;
        }
        // SAFETY: as promised; it is borrowed, and the dictionary takes a reference of its own.
        let builtins = unsafe { (self.builtins)() };
        // SAFETY: as promised; a dictionary, a C string and an object.
        if unsafe { (self.set_item)(globals.1, c"__builtins__".as_ptr(), builtins) } != 0 {
            return None;
        }
        // SAFETY: as promised; code and a dictionary, twice.
        let result = Held(self, unsafe { (self.run)(code.1, globals.1, globals.1) });
        if result.1.is_null() {
            return None;
        }
        // SAFETY: as promised; a dictionary and a C string; what it yields is borrowed, or null.
        let answer = unsafe { (self.item)(globals.1, c"answer".as_ptr()) };
        if answer.is_null() {
            return None;
        }
        // SAFETY: as promised; the text lives as long as its object, which the dictionary holds.
        let text = unsafe { (self.text)(answer) };
        if text.is_null() {
            return None;
        }
        // SAFETY: not null, so a C string.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// An exception of the script's is dropped. The program's own, as a key that was pressed, is not:
    /// then false.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn drop_error(&self) -> bool {
        // SAFETY: the interpreter's own variable, set before it runs.
        let class = unsafe { *self.exception };
        // SAFETY: as promised; an exception is set, and this is a class.
        if unsafe { (self.is_error)(class) } == 0 {
            return false;
        }
        // SAFETY: as promised.
        unsafe { (self.clear_error)() };
        true
    }
}

/// A reference that is ours, or null.
struct Held<'a>(&'a Interpreter, Object);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: made and dropped within `run`, where the lock is held; null is no error.
        unsafe { (self.0.release)(self.1) }
    }
}

/// The pending call: the interpreter's main thread, with its lock.
unsafe extern "C" fn run(_: Object) -> c_int {
    let ran = catch_unwind(|| {
        let python = Interpreter::find()?;
        // SAFETY: pending calls are made with the lock held.
        let answer = unsafe { python.run() };
        if answer.is_none() {
            // SAFETY: as above.
            let is_dropped = unsafe { python.drop_error() };
            return (!is_dropped).then_some(-1);
        }
        let is_over = answer.as_deref() != Some("later");
        match answer.as_deref() {
            Some("done") => info!("PyTorch is watched: boundaries and classes are learnt"),
            Some("later") => debug!("no PyTorch yet"),
            answer => info!("PyTorch is not watched: {}", answer.unwrap_or_default()),
        }
        STATE.store(if is_over { OVER } else { WANTED }, Ordering::Release);
        Some(0)
    });
    match ran {
        Ok(Some(result)) => result,
        Ok(None) | Err(_) => {
            STATE.store(OVER, Ordering::Release);
            0
        }
    }
}

fn shielded(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        info!("a word from PyTorch was taken in a way that was not foreseen");
    }
}

/// From the script: a moment of a loop at which few bytes may be alive. Waits when it is the boundary and
/// another job's turn. Returns whether it is the boundary.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn tidegate_moment(kind: u32, object: u64) -> c_int {
    let mut is_boundary = false;
    shielded(|| {
        if let Some(process) = process::active() {
            is_boundary = process.moment((kind, object));
        }
    });
    is_boundary.into()
}

/// From the script: these bytes, of one tensor, outlive iterations.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn tidegate_outlives(address: u64, bytes: u64) {
    shielded(|| {
        if let Some(process) = process::active() {
            process.tag(address, bytes, Class::Persistent);
        }
    });
}

/// From the script: all blocks that PyTorch's allocator has dealt out, as pairs of address and bytes.
///
/// # Safety
/// `pairs` are `count` pairs, or `count` is 0.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn tidegate_audit(pairs: *const [u64; 2], count: usize) {
    shielded(|| {
        if let Some(process) = process::active() {
            // SAFETY: as promised.
            let blocks = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pairs, count) } };
            process.reports.audit(process, blocks);
        }
    });
}

/// From the script: something of it has failed, in words.
///
/// # Safety
/// `words` is a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn tidegate_script_failed(words: *const c_char) {
    shielded(|| {
        // SAFETY: as promised.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        info!("PyTorch is not understood: {words}");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_python_nothing_is_queued_and_nothing_is_waited_for() {
        (0..3).for_each(|_| look());
        assert_eq!(STATE.load(Ordering::Relaxed), OVER);
        assert_eq!(tidegate_moment(1, 1), 0);
        tidegate_outlives(4096, 1);
        // SAFETY: a C string.
        unsafe { tidegate_script_failed(c"it was told to".as_ptr()) };
        // SAFETY: no pairs.
        unsafe { tidegate_audit(ptr::null(), 0) };
    }
}
