//! The movers: one process per GPU, started by the manager, spoken to over a socket pair.

use super::outbox::Outbox;
use super::{Input, VecDeque};
use anyhow::{Context, bail};
use crossbeam_channel::{Receiver, Sender};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tidegate_ffi::units::GpuUuid;
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::message::FromMover;

/// A GPU to be shared.
pub struct GpuPlan {
    /// Which.
    pub uuid: GpuUuid,
    /// Makes the command of its mover, which finds its end of the socket pair as standard input.
    pub mover: Box<dyn Fn() -> Command>,
    /// A lock that says whose GPU this is; held as long as the manager lives.
    pub lock: Option<OwnedFd>,
}

/// A mover as the core sees it.
pub(crate) struct MoverLink {
    pub(crate) outbox: Outbox,
    pub(crate) name: String,
    pub(crate) total_bytes: u64,
    ready: bool,
    process: Child,
}

impl MoverLink {
    /// Starts a GPU's mover and the thread that reads from it.
    pub(crate) fn start(plan: &GpuPlan, inputs: Sender<Input>) -> anyhow::Result<Self> {
        let (here, there) = UnixStream::pair()?;
        let process = (plan.mover)()
            .stdin(Stdio::from(OwnedFd::from(there)))
            .spawn()
            .with_context(|| format!("starting the mover of {}", plan.uuid))?;
        let connection = Arc::new(Connection::from(here));
        let outbox = Outbox::start(connection.clone())?;
        let gpu = plan.uuid;
        std::thread::Builder::new().name("mover-reader".into()).spawn(move || {
            let why = loop {
                let (message, fds) = match connection.receive::<FromMover>() {
                    Ok(said) => said,
                    Err(error) => break error.to_string(),
                };
                if inputs.send(Input::Mover(gpu, message, fds)).is_err() {
                    return;
                }
            };
            // The core has ended already if nobody listens.
            let _ = inputs.send(Input::MoverGone(gpu, why));
        })?;
        Ok(Self { outbox, name: String::new(), total_bytes: 0, ready: false, process })
    }

    /// Bytes of the GPU that the ledger may use.
    pub(crate) fn usable(&self, limit: Option<u64>) -> u64 {
        self.total_bytes.min(limit.unwrap_or(u64::MAX))
    }

    pub(super) fn note(&mut self, message: &FromMover) {
        if let FromMover::Ready { name, total_bytes, .. } = message {
            self.name.clone_from(name);
            self.total_bytes = *total_bytes;
            self.ready = true;
        }
    }
}

impl Drop for MoverLink {
    fn drop(&mut self) {
        self.outbox.close();
        // It ends with its connection; waiting keeps it from staying a zombie.
        let _ = self.process.wait();
    }
}

/// Waits until every GPU's mover has said what it found.
pub(super) fn wait_until_ready(
    movers: &mut BTreeMap<GpuUuid, MoverLink>,
    inputs: &Receiver<Input>,
    held_back: &mut VecDeque<Input>,
) -> anyhow::Result<()> {
    while movers.values().any(|mover| !mover.ready) {
        match inputs.recv()? {
            Input::Mover(gpu, FromMover::Unusable { reason }, _) => bail!("{gpu} cannot be used: {reason}"),
            Input::MoverGone(gpu, why) => bail!("the mover of {gpu} ended before it was ready: {why}"),
            Input::Mover(gpu, message @ FromMover::Ready { .. }, _) => {
                if let Some(mover) = movers.get_mut(&gpu) {
                    mover.note(&message);
                }
            }
            other => held_back.push_back(other),
        }
    }
    Ok(())
}
