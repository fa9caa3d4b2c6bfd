//! Where the thread's record is: in the one word that every thread has for it.

use super::record::Record;
use crate::sync::thread_word;

/// The thread's record, if it has one already. Usable to the thread's very end.
#[inline(always)]
pub fn get() -> Option<&'static Record> {
    // SAFETY: null, or what `set` was given: a record that lives for ever.
    unsafe { thread_word::get().cast::<Record>().as_ref() }
}

/// From now on this is the thread's record.
pub fn set(record: Option<&'static Record>) {
    thread_word::set(record.map_or(std::ptr::null(), |record| std::ptr::from_ref(record).cast()));
}
