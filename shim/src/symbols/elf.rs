//! Finds a function of the C library in its own symbol table.
//!
//! Asking `dlvsym` would need the version number of each C library; and this must work where our own
//! `dlsym` is the only one that there is to call.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

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
