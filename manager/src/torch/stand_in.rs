//! A library under another's name, with the functions that somebody asks of it.

use super::demand::Demand;
use super::elf::Library;
use anyhow::{Context, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// How the functions that do something are called in the library that has them: `standin_cublasCreate_v2`.
const PREFIX: &str = "standin_";

/// What does the work for all of them.
pub struct Implementation {
    /// Its file name; it lies where the libraries are made.
    file: String,
    /// The functions that it has, by the names they stand in for.
    functions: BTreeSet<String>,
}

impl Implementation {
    /// Puts the library at `path` where the others will be made.
    pub fn install(path: &Path, directory: &Path) -> anyhow::Result<Self> {
        let file = path.file_name().context("a library has a name")?.to_string_lossy().into_owned();
        replace(directory, &file, |new| {
            std::fs::copy(path, new).map(drop).with_context(|| format!("copying {}", path.display()))
        })?;
        let exported = Library::read(path)?.exported;
        let functions = exported.iter().filter_map(|name| name.strip_prefix(PREFIX)).map(str::to_owned);
        Ok(Self { file, functions: functions.collect() })
    }
}

/// Compiles the library `name` into `directory`.
pub fn make(
    directory: &Path,
    name: &str,
    demand: &Demand,
    implementation: &Implementation,
) -> anyhow::Result<()> {
    let work = tempfile::tempdir()?;
    let (source, script) = (work.path().join("functions.c"), work.path().join("versions"));
    std::fs::write(&source, functions(demand, &implementation.functions))?;
    std::fs::write(&script, versions(demand))?;
    let mut compiler = Command::new("cc");
    // The compiler may know some of the names, with other types.
    compiler.args(["-w", "-shared", "-fPIC", "-fno-builtin", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]);
    compiler.arg(format!("-Wl,-soname,{name}")).arg(format!("-Wl,--version-script={}", script.display()));
    compiler.arg(&source).arg("-L").arg(directory).arg(format!("-l:{}", implementation.file));
    replace(directory, name, |new| {
        let output =
            compiler.arg("-o").arg(new).output().context("starting the C compiler, cc: is one installed?")?;
        if !output.status.success() {
            bail!("cc could not make {name}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    })
}

/// Puts a file in the place of another at once: programs that have loaded that one keep it.
fn replace(
    directory: &Path,
    name: &str,
    make: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let new = tempfile::Builder::new().prefix(".new-").tempdir_in(directory)?;
    let (made, place) = (new.path().join(name), directory.join(name));
    make(&made)?;
    std::fs::rename(&made, &place).with_context(|| format!("putting {} in its place", place.display()))
}

/// The source. Who stands in for others must not look at arguments: it jumps on to who does.
fn functions(demand: &Demand, implemented: &BTreeSet<String>) -> String {
    let jump = if cfg!(target_arch = "aarch64") { "b " } else { "jmp *" };
    let far = if cfg!(target_arch = "aarch64") { "" } else { "@GOTPCREL(%rip)" };
    let function = |name: &String| match implemented.contains(name) {
        true => format!(
            "__asm__(\".globl {name}\\n.type {name}, %function\\n{name}: {jump}{PREFIX}{name}{far}\\n\");\n"
        ),
        false => format!("long {name}(void) {{ return 0; }}\n"),
    };
    demand.keys().map(function).collect()
}

/// The linker's script. Who asks for a name in no version gets it in any.
fn versions(demand: &Demand) -> String {
    let any = demand.values().flatten().next();
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    for (name, version) in demand {
        let version = version.as_ref().or(any).map_or("", String::as_str);
        let list = names.entry(version).or_default();
        list.push_str(name);
        list.push(';');
    }
    if names.is_empty() {
        return "{ local: *; };\n".into();
    }
    names.iter().map(|(version, names)| format!("{version} {{ global: {names} }};\n")).collect()
}
