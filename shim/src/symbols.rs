//! Symbols: our own `dlsym`, and the real one behind it.
//!
//! Programs get driver functions from `dlsym` (FACTS §1). Ours answers with our function where
//! the table of driver functions says so and the real `dlsym` finds one in that library;
//! everything else is passed on *by a jump*, so that the real one still sees who called
//! (`RTLD_NEXT` depends on it). The real one is found in the C library's own symbol table: asking
//! `dlvsym` would need the version number of each C library.
//!
//! Invariant: nothing here allocates, locks, or uses anything that must be initialised first;
//! it works in the first moments of a process.

use crate::hooks;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What the assembly below does with a look-up.
#[repr(C)]
pub struct Decision {
    /// The answer, unless null.
    answer: *mut c_void,
    /// Where to jump otherwise.
    real: *mut c_void,
}

/// The program's `dlsym`.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2: jmp rdx",
        decide = sym decide,
    )
}

/// The program's `dlsym`.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {decide}",
        "mov x16, x0",
        "mov x17, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x16, 2f",
        "mov x0, x16",
        "ret",
        "2: br x17",
        decide = sym decide,
    )
}

unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> Decision {
    let real = real_address();
    let pass_on = Decision { answer: ptr::null_mut(), real: real as *mut c_void };
    if name.is_null() || handle == libc::RTLD_NEXT {
        return pass_on;
    }
    // SAFETY: not null, and a C string by dlsym's contract.
    let name = unsafe { CStr::from_ptr(name) };
    if !name.to_bytes().starts_with(b"cu") {
        return pass_on;
    }
    let Some(ours) = hooks::address_of(name) else { return pass_on };
    // SAFETY: the program's own arguments.
    let theirs = unsafe { real(handle, name.as_ptr()) };
    if theirs.is_null() { pass_on } else { Decision { answer: ours, ..pass_on } }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// `dlsym` of the C library, for our own look-ups. Null when there is no such symbol.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let real = real_address();
    // SAFETY: the C library's dlsym; the name is a C string, and dlsym answers null for a
    // handle that it does not know.
    unsafe { real(handle, name.as_ptr()) }
}

/// Stands in where no C library has a `dlsym`: it finds nothing.
unsafe extern "C" fn nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

fn real_address() -> Dlsym {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut real = REAL.load(Ordering::Acquire);
    if real.is_null() {
        real = elf::find_in_c_library(c"dlsym").unwrap_or(nothing as *mut c_void);
        REAL.store(real, Ordering::Release);
    }
    // SAFETY: only what is stored above: the C library's function `dlsym`, or `nothing`, which
    // has its type.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real) }
}

/// Walks the symbol tables of loaded libraries.
mod elf {
    use super::*;
    use libc::{Elf64_Phdr, Elf64_Sym, PT_DYNAMIC, dl_phdr_info};

    const DT_NULL: i64 = 0;
    const DT_STRTAB: i64 = 5;
    const DT_SYMTAB: i64 = 6;
    const DT_GNU_HASH: i64 = 0x6fff_fef5;
    const STT_FUNC: u8 = 2;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Dynamic {
        tag: i64,
        value: usize,
    }

    struct Search<'a> {
        name: &'a CStr,
        found: Option<*mut c_void>,
    }

    /// The function `name` of the C library (or of `libdl`, where that is still apart).
    pub fn find_in_c_library(name: &CStr) -> Option<*mut c_void> {
        let mut search = Search { name, found: None };
        // SAFETY: `visit` has the callback's type and gets a pointer to `search`, which
        // outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), ptr::from_mut(&mut search).cast()) };
        search.found
    }

    unsafe extern "C" fn visit(info: *mut dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr passes a valid description that lives through this call.
        let info = unsafe { &*info };
        // SAFETY: the pointer that find_in_c_library passed; nobody else uses it meanwhile.
        let search = unsafe { &mut *search.cast::<Search>() };
        if is_c_library(info) {
            search.found = Image::of(info).and_then(|image| image.function(search.name));
        }
        search.found.is_some().into()
    }

    fn is_c_library(info: &dl_phdr_info) -> bool {
        if info.dlpi_name.is_null() {
            return false;
        }
        // SAFETY: not null, and a C string that lives as long as the library is loaded.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        [&b"libc.so"[..], b"libc-", b"libdl.so", b"libdl-", b"libc.musl", b"ld-musl"]
            .iter()
            .any(|start| file.starts_with(start))
    }

    /// A loaded library's symbol table.
    struct Image {
        base: usize,
        symbols: usize,
        strings: usize,
        hash: usize,
    }

    impl Image {
        fn of(info: &dl_phdr_info) -> Option<Self> {
            let base = info.dlpi_addr as usize;
            let header = (0..info.dlpi_phnum as usize)
                .map(|index| at::<Elf64_Phdr>(info.dlpi_phdr as usize, index))
                .find(|header| header.p_type == PT_DYNAMIC)?;
            let mut image = Self { base, symbols: 0, strings: 0, hash: 0 };
            for index in 0.. {
                let entry = at::<Dynamic>(base + header.p_vaddr as usize, index);
                match entry.tag {
                    DT_NULL => break,
                    DT_SYMTAB => image.symbols = image.relocated(entry.value),
                    DT_STRTAB => image.strings = image.relocated(entry.value),
                    DT_GNU_HASH => image.hash = image.relocated(entry.value),
                    _ => {}
                }
            }
            (image.symbols != 0 && image.strings != 0 && image.hash != 0).then_some(image)
        }

        /// glibc writes addresses over the offsets in this table, musl leaves the offsets.
        fn relocated(&self, value: usize) -> usize {
            if value < self.base { self.base + value } else { value }
        }

        /// Looks a defined function up in the library's GNU hash table:
        /// `buckets, first symbol, bloom words, shift; bloom[]; bucket[]; chain[]`.
        fn function(&self, name: &CStr) -> Option<*mut c_void> {
            let header = |index| at::<u32>(self.hash, index);
            let (bucket_count, first, bloom_words) = (header(0), header(1), header(2) as usize);
            if bucket_count == 0 {
                return None;
            }
            let buckets = self.hash + 16 + bloom_words * size_of::<usize>();
            let chains = buckets + bucket_count as usize * size_of::<u32>();
            let hash = gnu_hash(name);
            let start = at::<u32>(buckets, (hash % bucket_count) as usize);
            for index in start.max(first).. {
                let link = at::<u32>(chains, (index - first) as usize);
                let symbol = at::<Elf64_Sym>(self.symbols, index as usize);
                if start != 0 && link | 1 == hash | 1 && self.is_function(&symbol, name) {
                    return Some((self.base + symbol.st_value as usize) as *mut c_void);
                }
                if start == 0 || link & 1 == 1 {
                    break;
                }
            }
            None
        }

        fn is_function(&self, symbol: &Elf64_Sym, name: &CStr) -> bool {
            let string = (self.strings + symbol.st_name as usize) as *const c_char;
            let is_defined = symbol.st_shndx != 0 && symbol.st_info & 0xf == STT_FUNC;
            // SAFETY: a symbol's name is a C string in the library's string table.
            is_defined && unsafe { CStr::from_ptr(string) } == name
        }
    }

    /// Entry `index` of the table at `address`: one of a loaded library's own tables, which the
    /// dynamic linker keeps mapped, readable and aligned while the library is loaded.
    fn at<T: Copy>(address: usize, index: usize) -> T {
        // SAFETY: see above; the callers stay within the tables by the ELF format's own ends
        // (counts, DT_NULL, the hash chain's last bit). All T here are plain numbers.
        unsafe { ((address + index * size_of::<T>()) as *const T).read() }
    }

    fn gnu_hash(name: &CStr) -> u32 {
        name.to_bytes().iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_dlsym_is_found_without_asking_for_a_version() {
        // SAFETY: a look-up of a symbol of the C library.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr()) };
        assert_eq!(elf::find_in_c_library(c"dlsym"), Some(expected));
        assert_eq!(elf::find_in_c_library(c"tidegate_has_no_such_function"), None);
    }

    #[test]
    fn names_that_are_not_the_drivers_are_passed_on() {
        // SAFETY: a look-up of a symbol of the C library.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
        // SAFETY: the same by our own function.
        let found = unsafe { dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
        assert_eq!(found, expected);
        // SAFETY: as above; no library of this test has the driver's functions.
        assert!(unsafe { dlsym(libc::RTLD_DEFAULT, c"cuLaunchKernel".as_ptr()) }.is_null());
    }
}
