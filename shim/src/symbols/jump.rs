//! All that depends on the processor: a function of ours that decides who gets a call, and then
//! *jumps* there.
//!
//! A jump leaves no trace: whoever gets the call finds every argument and the caller's own return
//! address, whatever the function's parameters are. `dlsym` depends on it (`RTLD_NEXT` asks who
//! called), and functions of which we know only the name.
//!
//! ```text
//! program ─► entry: where the row lies, who decides ─► ask: keeps the arguments, calls decide
//!                                                            real: jumps there
//!                                                            none: returns the answer
//! ```
//! [`entry!`] makes such a function, [`entries!`] many alike. Who decides is an
//! `unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *const Row) -> Decision`: it gets the
//! first three arguments of the call, and the row of the function that was called.

use std::ffi::c_void;

/// Who gets a call.
#[repr(C)]
pub struct Decision {
    /// What the caller gets if nobody else answers.
    pub answer: *mut c_void,
    /// Where the call goes on, unless null.
    pub real: *mut c_void,
}

impl Decision {
    /// The call is answered here.
    pub fn answer(answer: *mut c_void) -> Self {
        Self { answer, real: std::ptr::null_mut() }
    }

    /// The call goes on at `real`, which is not null.
    pub fn pass_on(real: *mut c_void) -> Self {
        Self { answer: std::ptr::null_mut(), real }
    }
}

#[cfg(target_arch = "x86_64")]
mod processor {
    /// The body of a naked function: `$decide` decides, told the static `$row`.
    macro_rules! entry {
        ($row:path, $decide:path) => {
            core::arch::naked_asm!(
                "endbr64",
                "lea r10, [rip + {row}]",
                "lea r11, [rip + {decide}]",
                "jmp {ask}",
                row = sym $row,
                decide = sym $decide,
                ask = sym $crate::symbols::jump::ask,
            )
        };
    }

    /// Bytes of each of the functions that `entries!` makes.
    pub const ENTRY_BYTES: usize = 16;

    /// The body of a naked function: `$count` functions one after the other, each of
    /// [`ENTRY_BYTES`]. The row that `$decide` is told is the address of the one that was called, and
    /// 11 bytes.
    macro_rules! entries {
        ($count:expr, $decide:path) => {
            core::arch::naked_asm!(
                ".rept {count}",
                "endbr64",
                "lea r10, [rip]",
                "jmp 2f",
                ".balign 16",
                ".endr",
                "2: lea r11, [rip + {decide}]",
                "jmp {ask}",
                count = const $count,
                decide = sym $decide,
                ask = sym $crate::symbols::jump::ask,
            )
        };
    }

    /// Calls r11 with the row in r10 as the fourth argument; then as the [`Decision`](super::Decision)
    /// says.
    #[unsafe(naked)]
    pub unsafe extern "C" fn ask() {
        core::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 192",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov [rsp + 48], rax",
            "movups [rsp + 64], xmm0",
            "movups [rsp + 80], xmm1",
            "movups [rsp + 96], xmm2",
            "movups [rsp + 112], xmm3",
            "movups [rsp + 128], xmm4",
            "movups [rsp + 144], xmm5",
            "movups [rsp + 160], xmm6",
            "movups [rsp + 176], xmm7",
            "mov rcx, r10",
            "call r11",
            "test rdx, rdx",
            "jz 2f",
            "mov r11, rdx",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "mov rax, [rsp + 48]",
            "movups xmm0, [rsp + 64]",
            "movups xmm1, [rsp + 80]",
            "movups xmm2, [rsp + 96]",
            "movups xmm3, [rsp + 112]",
            "movups xmm4, [rsp + 128]",
            "movups xmm5, [rsp + 144]",
            "movups xmm6, [rsp + 160]",
            "movups xmm7, [rsp + 176]",
            "leave",
            "jmp r11",
            "2: leave",
            "ret",
        )
    }

    pub(crate) use {entries, entry};
}

#[cfg(target_arch = "aarch64")]
mod processor {
    /// As on x86-64.
    macro_rules! entry {
        ($row:path, $decide:path) => {
            core::arch::naked_asm!(
                "adrp x9, {row}",
                "add x9, x9, :lo12:{row}",
                "adrp x10, {decide}",
                "add x10, x10, :lo12:{decide}",
                "b {ask}",
                row = sym $row,
                decide = sym $decide,
                ask = sym $crate::symbols::jump::ask,
            )
        };
    }

    /// As on x86-64.
    pub const ENTRY_BYTES: usize = 8;

    /// As on x86-64.
    macro_rules! entries {
        ($count:expr, $decide:path) => {
            core::arch::naked_asm!(
                ".rept {count}",
                "adr x9, .",
                "b 2f",
                ".endr",
                "2: adrp x10, {decide}",
                "add x10, x10, :lo12:{decide}",
                "b {ask}",
                count = const $count,
                decide = sym $decide,
                ask = sym $crate::symbols::jump::ask,
            )
        };
    }

    /// Calls x10 with the row in x9 as the fourth argument; then as the [`Decision`](super::Decision)
    /// says.
    #[unsafe(naked)]
    pub unsafe extern "C" fn ask() {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-224]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp q0, q1, [sp, #96]",
            "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]",
            "stp q6, q7, [sp, #192]",
            "mov x3, x9",
            "blr x10",
            "cbz x1, 2f",
            "mov x16, x1",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp q0, q1, [sp, #96]",
            "ldp q2, q3, [sp, #128]",
            "ldp q4, q5, [sp, #160]",
            "ldp q6, q7, [sp, #192]",
            "ldp x29, x30, [sp], #224",
            "br x16",
            "2: ldp x29, x30, [sp], #224",
            "ret",
        )
    }

    pub(crate) use {entries, entry};
}

pub use processor::{ENTRY_BYTES, ask};
pub(crate) use processor::{entries, entry};
