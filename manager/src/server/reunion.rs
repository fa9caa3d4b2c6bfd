//! A process whose connection ended comes back over another one and goes on.
//!
//! ```text
//! new connection ── Resume{ticket, heard} ─► its process? ─► Resumed{heard}, what it has not heard
//!                                             └ no ─────────► Refused; the session is as it was
//! ```
//! Invariant: a piece is handed out again only to the tenant whose it still is: what was on its way
//! when the connection ended may be somebody else's by now (a lease that a closing made void).

use super::client::{Client, ClientId, NoPage, Role};
use super::conversation::NotTakenUp;
use super::{Server, placed_in};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use tidegate_ffi::units::{PieceId, SessionId};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{Resume, Reunion, ToShim};
use tracing::{info, warn};

impl Server {
    /// Whom a connection speaks for: itself, or the session that was taken up over it.
    pub(super) fn speaker(&self, connection: ClientId) -> ClientId {
        let over_it = |(_, client): &(&ClientId, &Client)| client.connection == connection;
        match self.clients.contains_key(&connection) {
            true => connection,
            false => self.clients.iter().find(over_it).map_or(connection, |(id, _)| *id),
        }
    }

    pub(super) fn take_up(&mut self, id: ClientId, resume: &Resume, fds: &[OwnedFd]) {
        let is_newcomer = |client: &Client| client.role == Role::Unknown && client.conversation.heard() == 0;
        if !self.clients.get(&id).is_some_and(is_newcomer) {
            return self.expel(id, "it resumed in the middle of a conversation");
        }
        let Some(mut newcomer) = self.clients.remove(&id) else { return };
        match self.reunite(&mut newcomer, resume, fds) {
            Ok(again) => self.say_again(ClientId(resume.ticket.session.0), again),
            Err(NotNow::Later(error)) => {
                warn!(client = id.0, session = %resume.ticket.session, %error, "a process is to come again");
                newcomer.disconnect();
            }
            Err(NotNow::Never(reason)) => {
                info!(client = id.0, session = %resume.ticket.session, reason, "a process cannot go on");
                newcomer.send(&Reunion::Refused { reason }, Vec::new());
                newcomer.expel();
                self.clients.insert(id, newcomer);
            }
        }
    }

    /// Gives the session the newcomer's connection: what is to be said again over it.
    fn reunite(
        &mut self,
        newcomer: &mut Client,
        resume: &Resume,
        fds: &[OwnedFd],
    ) -> Result<Vec<Numbered<ToShim>>, NotNow> {
        let client = self.clients.get_mut(&ClientId(resume.ticket.session.0));
        let client = client.ok_or("this manager does not know the process's session")?;
        let (uid, pid) = (newcomer.conversation.uid, newcomer.conversation.pid);
        let again = client.conversation.take_up(resume, uid, pid)?;
        if client.expelled {
            return Err(last_word(&again).unwrap_or("the manager has ended the process's session").into());
        }
        if client.is_connected() {
            return Err("the process's session has a connection already".into());
        }
        let [page] = fds else { return Err("it came without a control page".into()) };
        client.open_page(page)?;
        client.outbox = newcomer.outbox.take();
        client.connection = newcomer.connection;
        info!(session = %resume.ticket.session, "a process goes on over another connection");
        Ok(again)
    }

    fn say_again(&mut self, id: ClientId, again: Vec<Numbered<ToShim>>) {
        let said: Vec<_> = again
            .into_iter()
            .map(|letter| letter.map(|message| self.if_still_true(SessionId(id.0), message)))
            .map(|letter| (self.handles_of(&letter.message), letter))
            .collect();
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.send(&Reunion::Resumed { heard: client.conversation.heard() }, Vec::new());
        said.into_iter().for_each(|(fds, letter)| client.send(&letter, fds));
    }

    /// A message, or one that does nothing where it would hand out pieces that are not the
    /// process's any more.
    fn if_still_true(&self, session: SessionId, message: ToShim) -> ToShim {
        let is_true = placed_in(&message).iter().all(|placed| self.is_of(session, placed.piece));
        if is_true { message } else { ToShim::Heard }
    }

    fn is_of(&self, session: SessionId, piece: PieceId) -> bool {
        let tenants = self.scheduler.sessions().get(&session).map(|session| session.tenants.as_slice());
        let mut tenants =
            tenants.unwrap_or_default().iter().filter_map(|id| self.scheduler.tenants().get(id));
        self.pieces.contains_key(&piece) && tenants.any(|tenant| tenant.pieces.contains_key(&piece))
    }
}

/// Why a process cannot go on now.
enum NotNow {
    /// The manager lacks something for it.
    Later(Errno),
    /// And why not.
    Never(String),
}

impl From<NoPage> for NotNow {
    fn from(error: NoPage) -> Self {
        match error {
            NoPage::NotNow(errno) => Self::Later(errno),
            wrong => Self::Never(wrong.to_string()),
        }
    }
}

impl From<&str> for NotNow {
    fn from(reason: &str) -> Self {
        Self::Never(reason.into())
    }
}

impl From<NotTakenUp> for NotNow {
    fn from(error: NotTakenUp) -> Self {
        Self::Never(error.to_string())
    }
}

/// Why a session was ended, where that has not been heard.
fn last_word(unheard: &[Numbered<ToShim>]) -> Option<&str> {
    unheard.iter().rev().find_map(|letter| match &letter.message {
        ToShim::Refused { reason } => Some(reason.as_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Input;
    use super::super::stage::{GPU, WHO, connect, connect_as, join, say, server};
    use super::*;
    use tidegate_ffi::units::{Class, GpuUuid, SlotIndex, Step, Units};
    use tidegate_ffi::wire::Connection;
    use tidegate_ffi::wire::message::{
        FromMover, FromShim, JobClaim, JobSpec, LeaseRequest, Ticket, ToManager,
    };
    use tidegate_ffi::wire::page::Page;

    const LEASE: Step = Step(2);

    /// The next message to a process of this kind, and what came with it.
    fn hear(connection: &Connection, is: fn(&ToShim) -> bool) -> (Numbered<ToShim>, Vec<OwnedFd>) {
        loop {
            let (letter, fds) = connection.receive::<Numbered<ToShim>>().unwrap();
            if is(&letter.message) {
                return (letter, fds);
            }
        }
    }

    /// A process that has asked for a piece and did not hear the answer: with what it resumes.
    fn leasing(server: &mut Server) -> (Connection, Resume) {
        let (connection, _page) = join(server, 1);
        let welcome = hear(&connection, |message| matches!(message, ToShim::Welcome { .. })).0;
        let ToShim::Welcome { ticket, .. } = welcome.message else { unreachable!() };
        let attached = hear(&connection, |message| matches!(message, ToShim::Attached { .. })).0;
        let ToShim::Attached { tenant, .. } = attached.message else { unreachable!() };
        let (class, first, units, ahead) = (Class::Temporary, SlotIndex(0), Units(1), Units(0));
        let request = LeaseRequest { step: LEASE, tenant, class, first, units, ahead, whole: false };
        say(server, 1, FromShim::Lease(request), Vec::new());
        let (step, pieces) = server.making.first_key_value().unwrap();
        let (step, files) = (*step, pieces.iter().map(|_| file()).collect());
        server.take_in(Input::Mover(GPU, FromMover::Made { step }, files));
        (connection, Resume { ticket, heard: attached.number })
    }

    fn file() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    /// Comes over another connection.
    fn resume(server: &mut Server, id: u64, who: (u32, i32), resume: Resume) -> (Connection, Reunion) {
        let connection = connect_as(server, id, who);
        let (_page, file) = Page::create().unwrap();
        server.take_in(Input::said(ClientId(id), ToManager::Resume(resume), vec![file]));
        let reunion = connection.receive().unwrap().0;
        (connection, reunion)
    }

    #[test]
    fn a_process_that_comes_back_hears_what_it_missed_and_goes_on() {
        let mut server = server();
        let (connection, genuine) = leasing(&mut server);
        drop(connection);
        let (connection, reunion) = resume(&mut server, 2, WHO, genuine);
        assert_eq!(reunion, Reunion::Resumed { heard: 3 });
        let (letter, fds) = hear(&connection, |_| true);
        assert_eq!((letter.number, letter.heard, fds.len()), (genuine.heard + 1, 3, 1));
        assert!(matches!(letter.message, ToShim::Leased { step: LEASE, .. }), "{letter:?}");
        assert_eq!(server.standing(ClientId(2)).id, ClientId(1), "the connection speaks for the session");
        say(&mut server, 1, FromShim::Attach { step: Step(3), gpu: GpuUuid([9; 16]) }, Vec::new());
        hear(&connection, |message| matches!(message, ToShim::AttachRefused { step: Step(3), .. }));
        server.take_in(Input::Gone(ClientId(2)));
        assert!(server.scheduler.sessions().contains_key(&SessionId(1)), "its connection is not its life");
        server.take_in(Input::Gone(ClientId(1)));
        assert!(server.scheduler.sessions().is_empty());
    }

    #[test]
    fn what_is_said_again_hands_out_only_what_is_still_its_own() {
        let mut server = server();
        let (connection, _) = leasing(&mut server);
        let leased = hear(&connection, |message| matches!(message, ToShim::Leased { .. })).0.message;
        let piece = placed_in(&leased)[0].piece;
        assert_eq!(server.if_still_true(SessionId(1), leased.clone()), leased);
        assert_eq!(server.if_still_true(SessionId(5), leased.clone()), ToShim::Heard);
        server.pieces.remove(&piece);
        assert_eq!(server.if_still_true(SessionId(1), leased), ToShim::Heard);
    }

    #[test]
    fn nobody_takes_up_what_is_not_theirs() {
        let mut server = server();
        let (connection, genuine) = leasing(&mut server);
        let guess = |session| Resume { ticket: Ticket { session, secret: 7 }, ..genuine };
        let refused = |server: &mut Server, id, who, attempt| {
            let reunion = resume(server, id, who, attempt).1;
            assert!(matches!(reunion, Reunion::Refused { .. }), "{attempt:?} of {who:?}: {reunion:?}");
            assert!(server.standing(ClientId(id)).expelled);
        };
        refused(&mut server, 2, WHO, genuine);
        drop(connection);
        refused(&mut server, 3, WHO, guess(SessionId(1)));
        refused(&mut server, 4, WHO, guess(SessionId(99)));
        refused(&mut server, 5, (WHO.0 + 1, WHO.1), genuine);
        refused(&mut server, 6, (WHO.0, WHO.1 + 1), genuine);
        refused(&mut server, 7, WHO, Resume { heard: 99, ..genuine });
        let (_connection, reunion) = resume(&mut server, 8, WHO, genuine);
        assert_eq!(reunion, Reunion::Resumed { heard: 3 });
    }

    #[test]
    fn an_ended_session_is_not_taken_up() {
        let mut server = server();
        let (connection, genuine) = leasing(&mut server);
        server.expel(ClientId(1), "it lied");
        drop(connection);
        let reunion = resume(&mut server, 2, WHO, genuine).1;
        assert_eq!(reunion, Reunion::Refused { reason: "it lied".into() }, "it had not heard that yet");
    }

    #[test]
    fn a_process_whose_welcome_was_lost_begins_anew() {
        let mut server = server();
        let own = crate::process::ProcessName::own();
        let (first, _page) = join(&mut server, 1);
        server.clients.get_mut(&ClientId(1)).unwrap().name = own;
        drop(first);
        connect(&mut server, 2);
        server.clients.get_mut(&ClientId(2)).unwrap().name = own;
        let (_page, file) = Page::create().unwrap();
        say(&mut server, 2, FromShim::Hello(JobClaim::Own(JobSpec::default())), vec![file]);
        let sessions: Vec<_> = server.scheduler.sessions().keys().copied().collect();
        assert_eq!(sessions, [SessionId(2)], "it is one process, and is not waited for twice");
    }

    #[test]
    fn who_has_spoken_cannot_resume() {
        let mut server = server();
        let (connection, genuine) = leasing(&mut server);
        drop(connection);
        let _speaker = connect(&mut server, 2);
        say(&mut server, 2, FromShim::Idle, Vec::new());
        server.take_in(Input::said(ClientId(2), ToManager::Resume(genuine), Vec::new()));
        assert!(server.standing(ClientId(2)).expelled);
    }
}
