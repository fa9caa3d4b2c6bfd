//! What a wheel's libraries ask of NVIDIA's.

use super::elf::{Asked, Library};
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The libraries whose names have no versions, by how the names begin. All others use the name of the
/// library for a version.
const UNVERSIONED: [(&str, &str); 4] = [
    ("cuFile", "libcufile.so"),
    ("cusparseLt", "libcusparseLt.so"),
    ("nccl", "libnccl.so"),
    ("nvshmem", "libnvshmem_host.so"),
];

/// The functions that are asked of one library, with the version in which they are.
pub type Demand = BTreeMap<String, Option<String>>;

/// What the libraries in a directory ask of NVIDIA's, by file name, less the driver and the runtime, which
/// software GPUs have.
pub fn of_directory(directory: &Path) -> anyhow::Result<BTreeMap<String, Demand>> {
    let mut demands = BTreeMap::new();
    for path in others(directory).with_context(|| format!("looking into {}", directory.display()))? {
        note(&Library::read(&path)?, &mut demands);
    }
    Ok(demands)
}

/// The shared libraries in a directory that are not NVIDIA's, nor stand in for those.
fn others(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let paths: std::io::Result<Vec<PathBuf>> =
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect();
    let is_other = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        path.is_file() && name.contains(".so") && !is_nvidias(&name)
    };
    Ok(paths?.into_iter().filter(is_other).collect())
}

fn is_nvidias(library: &str) -> bool {
    ["libcu", "libnv", "libnccl", "libsoftgpu"].iter().any(|prefix| library.starts_with(prefix))
}

fn is_there(library: &str) -> bool {
    ["libcuda.so", "libcudart.so"].iter().any(|prefix| library.starts_with(prefix))
}

fn note(library: &Library, demands: &mut BTreeMap<String, Demand>) {
    for wanted in library.needed.iter().filter(|library| is_nvidias(library) && !is_there(library)) {
        demands.entry(wanted.clone()).or_default();
    }
    for Asked { name, version } in &library.asked {
        let (version, of) = match version {
            Some((version, library)) => (Some(version.clone()), Some(library.clone())),
            None => (None, owner(name, &library.needed)),
        };
        if let Some(demand) = of.and_then(|library| demands.get_mut(&library)) {
            // One library may ask for it in a version, and another may not know of any.
            let known = demand.entry(name.clone()).or_default();
            *known = known.take().or(version);
        }
    }
}

/// Whose an unversioned name is, among the libraries that are needed.
fn owner(name: &str, needed: &BTreeSet<String>) -> Option<String> {
    let (_, library) = UNVERSIONED.iter().find(|(prefix, _)| name.starts_with(prefix))?;
    needed.iter().find(|file| file.starts_with(library)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(needed: &[&str], asked: &[(&str, Option<(&str, &str)>)]) -> Library {
        let own = |(version, library): (&str, &str)| (version.to_owned(), library.to_owned());
        let asked =
            asked.iter().map(|(name, version)| Asked { name: (*name).into(), version: version.map(own) });
        let needed = needed.iter().map(|name| (*name).to_owned()).collect();
        Library { needed, asked: asked.collect(), exported: BTreeSet::new() }
    }

    #[test]
    fn what_is_asked_of_nvidias_libraries_is_known_by_version_or_by_name() {
        let mut demands = BTreeMap::new();
        let blas = "libcublas.so.13";
        let needed =
            [blas, "libnccl.so.2", "libcurand.so.10", "libcuda.so.1", "libcudart.so.13", "libc.so.6"];
        let asked = [
            ("cublasCreate_v2", Some((blas, blas))),
            ("cudaMalloc", Some(("libcudart.so.13", "libcudart.so.13"))),
            ("malloc", Some(("GLIBC_2.2.5", "libc.so.6"))),
            ("ncclSend", None),
            ("cuInit", None),
            ("_ZN2at5emptyEv", None),
        ];
        note(&library(&needed, &asked), &mut demands);
        note(&library(&["libnccl.so.2"], &[("ncclRecv", None)]), &mut demands);
        let named = |names: &[(&str, Option<&str>)]| -> Demand {
            names.iter().map(|(name, version)| ((*name).to_owned(), version.map(str::to_owned))).collect()
        };
        let expected = [
            (blas.to_owned(), named(&[("cublasCreate_v2", Some(blas))])),
            ("libcurand.so.10".to_owned(), named(&[])),
            ("libnccl.so.2".to_owned(), named(&[("ncclRecv", None), ("ncclSend", None)])),
        ];
        assert_eq!(demands, BTreeMap::from(expected));
    }

    #[test]
    fn a_version_that_one_library_knows_is_the_functions() {
        let mut demands = BTreeMap::new();
        let host = "libnvshmem_host.so.3";
        note(&library(&[host], &[("nvshmem_init", None)]), &mut demands);
        note(&library(&[host], &[("nvshmem_init", Some(("NVSHMEM", host)))]), &mut demands);
        note(&library(&[host], &[("nvshmem_init", None)]), &mut demands);
        assert_eq!(demands[host]["nvshmem_init"].as_deref(), Some("NVSHMEM"));
    }
}
