//! One word for each thread.

use std::cell::Cell;

loom::thread_local! {
    static WORD: Cell<*const ()> = Cell::new(std::ptr::null());
}

pub fn get() -> *const () {
    WORD.try_with(Cell::get).unwrap_or(std::ptr::null())
}

pub fn set(value: *const ()) {
    // In a thread's last destructors nobody reads it any more.
    let _ = WORD.try_with(|word| word.set(value));
}
