//! One word for each thread, null at its start, usable to its very end.
//!
//! The gate's open path reads it at every submission. A `thread_local!` of a shared library is
//! reached by a call (`__tls_get_addr`), which costs a dozen instructions and makes the compiler
//! save all arguments of the gated call around it. On x86-64 the word is therefore reached in
//! the *initial-exec* way, two instructions, as the C library reaches `errno`: the library is
//! preloaded, so its word lies in the block that every thread has from its start.

#[cfg(target_arch = "x86_64")]
mod word {
    core::arch::global_asm!(
        ".pushsection .tbss.tidegate_thread_word,\"awT\",@nobits",
        ".globl tidegate_thread_word",
        ".hidden tidegate_thread_word",
        ".type tidegate_thread_word, @object",
        ".size tidegate_thread_word, 8",
        ".balign 8",
        "tidegate_thread_word:",
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub fn get() -> *const () {
        let value;
        // SAFETY: reads the thread's own word, zero at the thread's start, later what `set` wrote.
        unsafe {
            core::arch::asm!(
                "mov {value}, qword ptr [rip + tidegate_thread_word@GOTTPOFF]",
                "mov {value}, qword ptr fs:[{value}]",
                value = out(reg) value,
                options(nostack, preserves_flags, readonly),
            );
        }
        value
    }

    pub fn set(value: *const ()) {
        // SAFETY: writes the thread's own word, which nothing else uses.
        unsafe {
            core::arch::asm!(
                "mov {place}, qword ptr [rip + tidegate_thread_word@GOTTPOFF]",
                "mov qword ptr fs:[{place}], {value}",
                place = out(reg) _,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod word {
    use std::cell::Cell;

    thread_local! {
        static WORD: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
    }

    #[inline(always)]
    pub fn get() -> *const () {
        WORD.get()
    }

    pub fn set(value: *const ()) {
        WORD.set(value);
    }
}

pub use word::{get, set};
