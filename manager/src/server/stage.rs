//! A server with clients that a test plays: what the core does, without a process or a mover.

use super::client::{Client, ClientId, Role};
use super::conversation::Conversation;
use super::legacy::StateFile;
use super::outbox::Outbox;
use super::{Input, Server};
use crate::scheduler::{Config, Event, Scheduler, UserQuotas};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::PidfdFlags;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tidegate_ffi::units::{GpuUuid, SessionId, Step};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{FromCommand, FromShim, JobClaim, JobSpec, ToManager};
use tidegate_ffi::wire::page::Page;
use tidegate_ffi::wire::{Connection, Mapped};

pub(super) const GPU: GpuUuid = GpuUuid([7; 16]);
pub(super) const UNIT: u64 = 1 << 20;
/// No message is longer on its way.
const PATIENCE: Duration = Duration::from_secs(60);
/// Every client's user and process.
pub(super) const WHO: (u32, i32) = (1, 1);

pub(super) fn server() -> Server {
    server_with(|_| {})
}

pub(super) fn server_with(change: impl FnOnce(&mut Config)) -> Server {
    let mut config = Config {
        unit_bytes: UNIT,
        piece_units: 4,
        offset_units: 0,
        headroom_units: 0,
        slice: Duration::from_millis(200),
        slice_max: Duration::from_secs(10),
        switch_percent: 5,
        boundary_deadline: Duration::from_secs(2),
        drain_limit: Duration::from_secs(10),
        answer_limit: Duration::from_secs(30),
        oversubscribe: false,
        expel_silent: false,
        poison: false,
        own_uid: 0,
        user_quotas: UserQuotas::default(),
        saved_quotas: UserQuotas::default(),
        tier_bytes: [1 << 30, 0, 0],
        cxl_is_in_parts: false,
    };
    change(&mut config);
    let file = StateFile::create().unwrap();
    let mut server = Server::new(Scheduler::new(config), BTreeMap::new(), file);
    server.tell_scheduler(Event::GpuAdded { gpu: GPU, units: 64, apart: 0, shares: [1 << 30, 0, 0] });
    server
}

/// Connects a client; returned is its end of the connection.
pub(super) fn connect(server: &mut Server, id: u64) -> Connection {
    connect_as(server, id, WHO)
}

pub(super) fn connect_as(server: &mut Server, id: u64, (uid, pid): (u32, i32)) -> Connection {
    let (here, there) = Connection::pair().unwrap();
    // Whoever reads what does not come fails.
    set_socket_timeout(&there, Timeout::Recv, Some(PATIENCE)).unwrap();
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
    let client = Client {
        conversation: Conversation::begin(SessionId(id), uid, pid).unwrap(),
        connection: ClientId(id),
        name: None,
        image: None,
        process: Arc::new(own),
        role: Role::Unknown,
        outbox: Some(Outbox::start(Arc::new(here)).unwrap()),
        page: None,
        expelled: false,
    };
    server.take_in(Input::Connected(ClientId(id), Box::new(client)));
    there
}

pub(super) fn ask(server: &mut Server, id: u64, question: FromCommand) {
    server.take_in(Input::said(ClientId(id), ToManager::Command(question), Vec::new()));
}

/// The next message of a process, that has heard nothing.
pub(super) fn say(server: &mut Server, id: u64, message: FromShim, fds: Vec<OwnedFd>) {
    let number = server.clients[&ClientId(id)].conversation.heard() + 1;
    let letter = Numbered { number, heard: 0, message };
    server.take_in(Input::said(ClientId(id), ToManager::Shim(letter), fds));
}

/// A process on the GPU, with the page that it publishes.
pub(super) fn join(server: &mut Server, id: u64) -> (Connection, Mapped<Page>) {
    let connection = connect(server, id);
    let (page, file) = Page::create().unwrap();
    say(server, id, FromShim::Hello(JobClaim::Own(JobSpec::default())), vec![file]);
    say(server, id, FromShim::Attach { step: Step(1), gpu: GPU }, Vec::new());
    (connection, page)
}
