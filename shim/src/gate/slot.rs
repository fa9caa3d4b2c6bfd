//! One word for each thread: where its record is.
//!
//! The gate's open path reads it at every submission. A `thread_local!` of a shared library is
//! reached by a call (`__tls_get_addr`), which costs a dozen instructions and makes the compiler
//! save all arguments of the gated call around it. On x86-64 the word is therefore reached in
//! the *initial-exec* way, two instructions, as the C library reaches `errno`: the library is
//! preloaded, so its word lies in the block that every thread has from its start.

use super::record::Record;

#[cfg(target_arch = "x86_64")]
mod word {
    use super::Record;

    core::arch::global_asm!(
        ".pushsection .tbss.tidegate_thread_record,\"awT\",@nobits",
        ".globl tidegate_thread_record",
        ".hidden tidegate_thread_record",
        ".type tidegate_thread_record, @object",
        ".size tidegate_thread_record, 8",
        ".balign 8",
        "tidegate_thread_record:",
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub fn get() -> *const Record {
        let record;
        // SAFETY: reads the thread's own word, zero at the thread's start, later what `set` wrote.
        unsafe {
            core::arch::asm!(
                "mov {record}, qword ptr [rip + tidegate_thread_record@GOTTPOFF]",
                "mov {record}, qword ptr fs:[{record}]",
                record = out(reg) record,
                options(nostack, preserves_flags, readonly),
            );
        }
        record
    }

    pub fn set(record: *const Record) {
        // SAFETY: writes the thread's own word, which nothing else uses.
        unsafe {
            core::arch::asm!(
                "mov {place}, qword ptr [rip + tidegate_thread_record@GOTTPOFF]",
                "mov qword ptr fs:[{place}], {record}",
                place = out(reg) _,
                record = in(reg) record,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod word {
    use super::Record;
    use std::cell::Cell;

    thread_local! {
        static WORD: Cell<*const Record> = const { Cell::new(std::ptr::null()) };
    }

    #[inline(always)]
    pub fn get() -> *const Record {
        WORD.get()
    }

    pub fn set(record: *const Record) {
        WORD.set(record);
    }
}

/// The thread's record, if it has one already. Usable to the thread's very end.
#[inline(always)]
pub fn get() -> Option<&'static Record> {
    // SAFETY: null, or what `set` was given: a record that lives for ever.
    unsafe { word::get().as_ref() }
}

/// From now on this is the thread's record.
pub fn set(record: Option<&'static Record>) {
    word::set(record.map_or(std::ptr::null(), std::ptr::from_ref));
}
