//! Where the libraries are that the command needs: beside it, or in `../lib/tidegate`.
//!
//! Under cargo (`cargo run`, `cargo test`) nothing builds them by itself: then they are built
//! here, which takes no time when they are fresh. That is so where the command lies in a directory of cargo's. Anywhere else
//! `$CARGO`, which `su` keeps, may be a program of another user.

use anyhow::{Context, bail};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The shim, for `LD_PRELOAD`.
pub fn shim() -> anyhow::Result<PathBuf> {
    find("libtidegate.so")
}

/// The software GPU's driver.
pub fn software_driver() -> anyhow::Result<PathBuf> {
    find("libsoftgpu_cuda.so")
}

/// The CUDA runtime on top of that driver.
pub fn software_runtime() -> anyhow::Result<PathBuf> {
    find("libsoftgpu_cudart.so")
}

/// What stands in for the libraries that programs link beside the runtime.
pub fn software_libraries() -> anyhow::Result<PathBuf> {
    find("libsoftgpu_libraries.so")
}

/// An example program that came with the command.
pub fn example(name: &str) -> anyhow::Result<PathBuf> {
    find(&format!("examples/{name}"))
}

fn find(file: &str) -> anyhow::Result<PathBuf> {
    build_under_cargo()?;
    let directory = directory()?;
    let places = [directory.join(file), directory.join("../lib/tidegate").join(file)];
    let found = places.iter().find(|path| path.exists());
    let Some(path) = found else {
        bail!(
            "{file} is missing: it belongs beside the command or in ../lib/tidegate (looked in {})",
            directory.display()
        );
    };
    path.canonicalize().with_context(|| format!("finding {}", path.display()))
}

/// The directory of the command; a test executable lies one level deeper.
fn directory() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let directory = program.parent().context("the command is in no directory")?;
    let deps = directory.file_name().is_some_and(|name| name == "deps");
    Ok(if deps { directory.parent().unwrap_or(directory) } else { directory }.to_owned())
}

fn build_under_cargo() -> anyhow::Result<()> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let Some(cargo) = std::env::var_os("CARGO").filter(|cargo| is_under(Path::new(cargo))) else {
        return Ok(());
    };
    let built = BUILT.get_or_init(|| build(Path::new(&cargo)).map_err(|error| format!("{error:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

/// Whether the command was built where it lies, and this is a cargo of a user that could change the command, too.
fn is_under(cargo: &Path) -> bool {
    let owner = |path: &Path| std::fs::metadata(path).ok().map(|found| found.uid());
    let Ok(directory) = directory() else { return false };
    let (Some(of_command), Some(of_cargo)) = (owner(&directory), owner(cargo)) else { return false };
    // Cargo's lock on the directory of a profile.
    directory.join(".cargo-lock").exists()
        && [0, of_command, rustix::process::geteuid().as_raw()].contains(&of_cargo)
}

fn build(cargo: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--workspace", "--lib", "--examples"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    if directory()?.ends_with("release") {
        command.arg("--release");
    }
    let status = command.stdout(std::process::Stdio::null()).status().context("starting cargo")?;
    if !status.success() {
        bail!("building the libraries failed ({status})");
    }
    Ok(())
}
