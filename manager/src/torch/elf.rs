//! What a shared library asks of others, and has for them.

use anyhow::Context;
use object::elf::{DT_NEEDED, FileHeader64, SHN_UNDEF, SHT_DYNSYM};
use object::endian::Endianness;
use object::read::elf::{FileHeader, Sym};
use std::collections::BTreeSet;
use std::path::Path;

/// The names in a shared library.
#[derive(Debug, Default)]
pub struct Library {
    /// The libraries that it needs, by file name.
    pub needed: BTreeSet<String>,
    /// What it asks of them.
    pub asked: Vec<Asked>,
    /// What it has.
    pub exported: BTreeSet<String>,
}

/// A name that a library asks for.
#[derive(Debug)]
pub struct Asked {
    /// The name.
    pub name: String,
    /// Its version, and the library that is to have it in this version.
    pub version: Option<(String, String)>,
}

impl Library {
    /// Reads the names in the library at `path`.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&file).with_context(|| format!("reading the names in {}", path.display()))
    }

    fn parse(file: &[u8]) -> object::Result<Self> {
        let header = FileHeader64::<Endianness>::parse(file)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, file)?;
        let symbols = sections.symbols(endian, file, SHT_DYNSYM)?;
        let versions = sections.versions(endian, file)?;
        let mut library = Self::default();
        if let Some((entries, strings)) = sections.dynamic(endian, file)? {
            let strings = sections.strings(endian, file, strings)?;
            for entry in entries.iter().filter(|entry| entry.d_tag.get(endian) == DT_NEEDED) {
                library.needed.insert(text(strings.get(entry.d_val.get(endian) as u32).unwrap_or_default()));
            }
        }
        for (index, symbol) in symbols.enumerate() {
            let name = text(symbol.name(endian, symbols.strings())?);
            if symbol.st_shndx(endian) != SHN_UNDEF {
                library.exported.insert(name);
                continue;
            }
            let version = match &versions {
                Some(table) => table.version(table.version_index(endian, index).index())?,
                None => None,
            };
            let version = version.and_then(|version| Some((text(version.name()), text(version.file()?))));
            library.asked.push(Asked { name, version });
        }
        Ok(library)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
