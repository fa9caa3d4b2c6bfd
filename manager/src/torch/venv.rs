//! A virtual environment with the wheel, and what stands in for NVIDIA's libraries.

use super::demand;
use super::stand_in::{self, Implementation};
use crate::artifacts;
use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the wheel wants that is no library of NVIDIA's and compiles no kernels, and numpy, without which it
/// warns. Printed one to a line, for this Python.
const NEEDS: &str = "
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
print('numpy')
for need in map(Requirement, requires('torch')):
    is_wanted = need.marker is None or need.marker.evaluate({'extra': ''})
    if is_wanted and not need.name.startswith(('nvidia-', 'cuda-', 'triton')):
        print(f'{need.name}{need.specifier}')
";

/// Where the wheel is.
const WHEEL: &str = "
from importlib.metadata import distribution
print(distribution('torch').locate_file('torch'))
";
/// Registers the packages for whose libraries there are stand-ins.
const REGISTER: &str = include_str!("register.py");
/// Says how PyTorch is to be started where there is no software GPU.
const HINT: &str = include_str!("tidegate_softgpu.py");
/// Python imports at its start what such a file names.
const IMPORT_HINT: &str = "import tidegate_softgpu\n";

/// Prepares the environment in `directory`, with PyTorch `version`, for the Python of `python`. What is there
/// already stays. Tells what it does, step by step.
pub fn prepare(directory: &Path, version: &str, python: &OsStr, say: impl Fn(&str)) -> anyhow::Result<()> {
    let own = directory.join("bin/python");
    if !own.exists() {
        say(&format!("making a virtual environment in {}", directory.display()));
        succeed(Command::new(python).args(["-m", "venv"]).arg(directory))?;
    }
    // Asking the package index takes seconds, each time.
    let installed = directory.join("tidegate-installed.txt");
    let is_installed = std::fs::read_to_string(&installed).is_ok_and(|known| known == version);
    if !is_installed {
        say(&format!("installing torch {version} (half a gigabyte, the first time)"));
        install(&own, version)?;
        write(&installed, version)?;
    }
    succeed(Command::new(&own).args(["-c", REGISTER]))?;
    let wheel = PathBuf::from(output(Command::new(&own).args(["-c", WHEEL]))?.trim());
    let (packages, libraries) = (wheel.parent().unwrap_or(&wheel), wheel.join("lib"));
    write(&packages.join("tidegate_softgpu.py"), HINT)?;
    write(&packages.join("tidegate_softgpu.pth"), IMPORT_HINT)?;
    say("making stand-ins for NVIDIA's libraries");
    let implementation = Implementation::install(&artifacts::software_libraries()?, &libraries)?;
    for (name, demand) in demand::of_directory(&libraries)? {
        stand_in::make(&libraries, &name, &demand, &implementation)?;
    }
    Ok(())
}

fn install(python: &Path, version: &str) -> anyhow::Result<()> {
    let pip = || {
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip
    };
    succeed(pip().arg("--no-deps").arg(format!("torch=={version}")))?;
    let needs = output(Command::new(python).args(["-c", NEEDS]))?;
    succeed(pip().args(needs.lines()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    output(command).map(drop)
}

/// What a command prints, if it succeeds.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("starting {program}"))?;
    if !done.status.success() {
        bail!("{program} failed ({}): {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
