//! Opens the first CUDA device with an example's kernels.
//!
//! On a GPU they are CUDA source, compiled when the program starts; on Tidegate's software GPU they are
//! the same functions compiled for the host.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cudarc::driver::{CudaContext, CudaModule};
use cudarc::nvrtc::{self, Ptx};

/// How the software GPU's name begins.
const SOFTWARE_GPU: &str = "Software GPU";

/// The kernels of an example.
pub struct Kernels {
    /// Source for a GPU.
    pub cuda: &'static str,
    /// The file name of the library for the software GPU.
    pub host: &'static str,
    /// The package that the library is built from.
    pub package: &'static str,
}

impl Kernels {
    /// Opens the device and loads the kernels: for the software GPU `host`, or the library built with
    /// this program.
    pub fn open(&self, host: Option<&Path>) -> Result<(Arc<CudaContext>, Arc<CudaModule>)> {
        // SAFETY: loads the driver's library as the next line does, and lets go of it.
        let found = unsafe { cudarc::driver::sys::is_culib_present() };
        ensure!(
            found,
            "no CUDA driver (libcuda.so.1) found: install NVIDIA's driver, \
             or start this under `tidegate run` with a software GPU"
        );
        let context = CudaContext::new(0).context("cannot open the first CUDA device")?;
        let module = context.load_module(self.image(&context, host)?).context("cannot load the kernels")?;
        Ok((context, module))
    }

    /// The module for this device.
    fn image(&self, context: &CudaContext, host: Option<&Path>) -> Result<Ptx> {
        if !context.name()?.starts_with(SOFTWARE_GPU) {
            return self.compile(context.compute_capability()?);
        }
        let path = match host {
            Some(path) => path.to_owned(),
            None => self.find_host()?,
        };
        Ok(Ptx::from_file(path))
    }

    /// Compiles the source for a GPU of this compute capability.
    fn compile(&self, (major, minor): (i32, i32)) -> Result<Ptx> {
        // SAFETY: loads the compiler's library as the call below does, and lets go of it.
        let found = unsafe { nvrtc::sys::is_culib_present() };
        ensure!(
            found,
            "the CUDA run-time compiler (libnvrtc.so) was not found: \
             install it (for example `pip install nvidia-cuda-nvrtc`) and add it to LD_LIBRARY_PATH"
        );
        let options = nvrtc::CompileOptions {
            options: vec![format!("--gpu-architecture=compute_{major}{minor}")],
            ..Default::default()
        };
        nvrtc::compile_ptx_with_opts(self.cuda, options).context("cannot compile kernels.cu")
    }

    /// The library where a build or an installation puts it.
    fn find_host(&self) -> Result<PathBuf> {
        let program = env::current_exe().context("cannot tell where this program lies")?;
        let folder = program.parent().unwrap_or(Path::new("."));
        let places = ["..", ".", "../lib/tidegate"].map(|place| folder.join(place).join(self.host));
        let found = places.iter().find(|path| path.is_file()).cloned();
        found.with_context(|| {
            format!(
                "{} was not found near {}: build it with `cargo build -p {}` or name it with --kernels",
                self.host,
                program.display(),
                self.package
            )
        })
    }
}
