//! `tidegate mover`: a GPU's mover, started by the manager.

use crate::mover::{self, CxlPart, MoverConfig};
use crate::numa::cxl::CxlPlace;
use anyhow::Context;
use signal_hook::consts::SIGHUP;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_ffi::os::faults;
use tidegate_ffi::units::GpuUuid;
use tidegate_ffi::wire::Connection;

/// Standard input is the connection to the manager.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The GPU.
    #[arg(long)]
    gpu: GpuUuid,
    /// Host memory for saved bytes, until told otherwise.
    #[arg(long)]
    dram_bytes: u64,
    /// CXL memory, where saved bytes go that do not fit there.
    #[arg(long, requires = "cxl_bytes")]
    cxl: Option<CxlPlace>,
    /// Where this GPU's part of it begins.
    #[arg(long, default_value_t = 0)]
    cxl_start: u64,
    /// How large that is.
    #[arg(long, default_value_t = 0)]
    cxl_bytes: u64,
    /// Where saved bytes go that do not fit there either.
    #[arg(long)]
    disk: Option<PathBuf>,
    /// How many.
    #[arg(long, default_value_t = 0)]
    disk_bytes: u64,
    /// The driver's library.
    #[arg(long)]
    driver: PathBuf,
}

pub(super) fn execute(arguments: Arguments) -> anyhow::Result<ExitCode> {
    faults::begin("mover");
    // A terminal that goes away sends it, and so does the kernel to a mover that is stopped when its manager dies. What the
    // mover has is the next manager's: it goes on. A handler, for what is ignored would be ignored by that manager too.
    signal_hook::flag::register(SIGHUP, Default::default())?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("standard input is no socket")?;
    let driver = CString::new(arguments.driver.into_os_string().into_vec())?;
    let Arguments { gpu, dram_bytes, cxl, cxl_start, cxl_bytes, disk, disk_bytes, .. } = arguments;
    let cxl = cxl.map(|place| CxlPart { place, start: cxl_start, bytes: cxl_bytes });
    let config = MoverConfig { gpu, dram_bytes, cxl, disk, disk_bytes, driver };
    mover::run(Connection::from(socket), config)?;
    Ok(ExitCode::SUCCESS)
}
