//! What a shared library exports and needs, as its file says: 64-bit ELF, the byte order of the machine.
//!
//! Invariant: a file that is none, or is cut off, is no error but exports nothing.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

/// The kinds of sections, and their entries' lengths.
const DYNAMIC_SYMBOLS: u32 = 11;
const SYMBOL_BYTES: usize = 24;
/// The kind of a function symbol.
const FUNCTION: u8 = 2;

/// The functions that a library exports, by name.
pub fn exported_functions(library: &[u8]) -> BTreeSet<String> {
    read_functions(library).unwrap_or_default()
}

fn read_functions(library: &[u8]) -> Option<BTreeSet<String>> {
    let sections = Section::all_of(library)?;
    let symbols = sections.iter().find(|section| section.kind == DYNAMIC_SYMBOLS)?;
    let names = sections.get(symbols.link)?.bytes(library)?;
    let functions = symbols.bytes(library)?.chunks_exact(SYMBOL_BYTES).filter(|symbol| {
        let is_defined = symbol[6..8] != [0, 0];
        is_defined && symbol[4] & 0xf == FUNCTION
    });
    Some(functions.filter_map(|symbol| text(names, u32_at(symbol, 0)? as usize)).collect())
}

struct Section {
    kind: u32,
    offset: usize,
    size: usize,
    /// The section that belongs to it.
    link: usize,
}

impl Section {
    fn all_of(library: &[u8]) -> Option<Vec<Self>> {
        library.starts_with(b"\x7fELF\x02").then_some(())?;
        let table = u64_at(library, 40)?;
        let (length, count) = (usize::from(u16_at(library, 58)?), usize::from(u16_at(library, 60)?));
        let header = |index: usize| library.get(table.checked_add(index * length)?..);
        (0..count).map(|index| Self::of(header(index)?)).collect()
    }

    fn of(header: &[u8]) -> Option<Self> {
        let (kind, link) = (u32_at(header, 4)?, u32_at(header, 40)? as usize);
        Some(Self { kind, offset: u64_at(header, 24)?, size: u64_at(header, 32)?, link })
    }

    fn bytes<'a>(&self, library: &'a [u8]) -> Option<&'a [u8]> {
        library.get(self.offset..self.offset.checked_add(self.size)?)
    }
}

/// The highest version `GLIBC_2.x` that a library asks the C library for: its x.
pub fn needed_glibc(library: &[u8]) -> Option<u32> {
    const PREFIX: &[u8] = b"GLIBC_2.";
    let found = library.windows(PREFIX.len()).enumerate().filter(|(_, window)| *window == PREFIX);
    let minor = |(at, _): (usize, &[u8])| {
        let digits = library[at + PREFIX.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        String::from_utf8(digits.copied().collect()).ok()?.parse().ok()
    };
    found.filter_map(minor).max()
}

fn text(names: &[u8], at: usize) -> Option<String> {
    let name = names.get(at..)?.split(|byte| *byte == 0).next()?;
    String::from_utf8(name.to_vec()).ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<usize> {
    u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?).try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifacts;

    #[test]
    fn a_drivers_functions_are_read_from_its_file() {
        let driver = std::fs::read(artifacts::software_driver().unwrap()).unwrap();
        let functions = exported_functions(&driver);
        assert!(functions.contains("cuInit") && functions.contains("cuMemAlloc_v2"), "{functions:?}");
        assert!(!functions.contains("malloc"), "what it needs is not what it exports");
    }

    #[test]
    fn a_file_that_is_cut_off_exports_nothing() {
        let driver = std::fs::read(artifacts::software_driver().unwrap()).unwrap();
        for length in [0, 4, 5, 63, 64, driver.len() / 2] {
            assert_eq!(exported_functions(&driver[..length]), BTreeSet::new(), "{length} bytes");
        }
        assert_eq!(exported_functions(b"#!/bin/sh"), BTreeSet::new());
    }

    #[test]
    fn the_newest_c_library_that_is_asked_for_counts() {
        assert_eq!(needed_glibc(b"..GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE"), Some(34));
        assert_eq!(needed_glibc(b"musl"), None);
    }
}
