//! What is written down: all that the core knows and nobody else can tell it.
//!
//! Not written: connections and descriptors, which come again with those whose they are, and who
//! waits for an answer over a connection that ends with the manager.

use super::super::Server;
use super::super::client::{Client, ClientId, Published, Role};
use super::super::conversation::Conversation;
use super::super::former::FormerJobs;
use super::super::gpus::MoverState;
use crate::kept::{Keep, Store, StoreError};
use crate::process::{Image, ProcessName};
use crate::scheduler::Scheduler;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tidegate_ffi::units::{GpuUuid, JobId, PieceId, Step};
use tidegate_ffi::wire::message::Ending;

/// The state of a manager.
#[derive(Serialize, Deserialize)]
pub(crate) struct State<'a> {
    /// The moment zero of all times, by the system's monotonic clock.
    pub(crate) started: Duration,
    /// When this was written, by the manager's clock.
    pub(crate) written: Duration,
    pub(crate) scheduler: Cow<'a, Scheduler>,
    pub(crate) movers: BTreeMap<GpuUuid, Cow<'a, MoverState>>,
    /// Pieces of which the manager has a duplicate, and their bytes.
    pub(crate) pieces: Vec<(PieceId, GpuUuid, u64)>,
    pub(crate) clients: Vec<ClientState<'a>>,
    pub(crate) making: Cow<'a, BTreeMap<Step, Vec<(PieceId, u64)>>>,
    pub(crate) tokens: Cow<'a, HashMap<u64, (JobId, u32)>>,
    pub(crate) former: Cow<'a, FormerJobs>,
    pub(crate) published: Cow<'a, HashMap<JobId, Published>>,
    pub(crate) evictions: Vec<(JobId, Ending)>,
    pub(crate) draining: bool,
    pub(crate) next_job: u64,
    pub(crate) last_client: u64,
}

/// A process of a job, or who announced one.
#[derive(Serialize, Deserialize)]
pub(crate) struct ClientState<'a> {
    pub(crate) id: ClientId,
    pub(crate) name: ProcessName,
    /// The program that a process of a job was when it connected.
    pub(crate) image: Option<Image>,
    pub(crate) role: Role,
    pub(crate) expelled: bool,
    pub(crate) conversation: Cow<'a, Conversation>,
}

impl<'a> ClientState<'a> {
    /// Others end with their connections.
    fn of(id: ClientId, client: &'a Client) -> Option<Self> {
        let (name, role, expelled) = (client.name?, client.role, client.expelled);
        // A `tidegate run` becomes the program that it announces.
        let image = client.image.filter(|_| matches!(role, Role::Process(_)));
        let conversation = Cow::Borrowed(&client.conversation);
        (role != Role::Unknown).then_some(Self { id, name, image, role, expelled, conversation })
    }
}

impl State<'_> {
    /// A state that was read is whole when its long parts are loaded.
    pub(crate) fn load_long_parts(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.scheduler.to_mut().load(store)?;
        self.clients.iter_mut().try_for_each(|client| client.conversation.to_mut().load(store))
    }
}

impl<'a> State<'a> {
    pub(crate) fn of(server: &'a Server) -> Self {
        Self {
            started: server.clock.started(),
            written: server.now(),
            scheduler: Cow::Borrowed(&server.scheduler),
            movers: server.movers.iter().map(|(gpu, mover)| (*gpu, Cow::Borrowed(mover.state()))).collect(),
            pieces: server.pieces.iter().map(|(id, piece)| (*id, piece.gpu, piece.bytes)).collect(),
            clients: server.clients.iter().filter_map(|(id, client)| ClientState::of(*id, client)).collect(),
            making: Cow::Borrowed(&server.making),
            tokens: Cow::Borrowed(&server.tokens),
            former: Cow::Borrowed(&server.former),
            published: Cow::Borrowed(&server.published),
            evictions: server.evictions.iter().map(|(job, eviction)| (*job, eviction.how)).collect(),
            draining: server.draining,
            next_job: server.next_job,
            last_client: server.last_client,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Server;
    use super::super::super::stage;
    use super::State;
    use crate::process::ProcessName;
    use std::time::{Duration, Instant};
    use tidegate_ffi::wire::message::ToShim;

    fn cost_of(what: impl FnOnce()) -> Duration {
        let began = Instant::now();
        what();
        began.elapsed()
    }

    /// The median time in which everything is written down.
    fn cost(server: &mut Server) -> Duration {
        let mut times: Vec<Duration> = (0..1001).map(|_| cost_of(|| server.settle())).collect();
        times.sort_unstable();
        times[500]
    }

    /// As many bytes as may be kept for them.
    #[test]
    fn what_processes_do_not_hear_is_written_down_once() {
        let mut server = stage::server();
        let _processes: Vec<_> = (1..=4).map(|id| stage::join(&mut server, id)).collect();
        for client in server.clients.values_mut() {
            client.name = ProcessName::own();
            let long = || ToShim::Refused { reason: "x".repeat(4096) };
            while client.conversation.say(long()).is_ok() {}
            assert!(client.conversation.unheard_bytes() > 2_000_000);
        }
        println!("the first time: {:?}", cost_of(|| server.settle()));
        println!("then: {:?}", cost(&mut server));
        let text = postcard::to_stdvec(&State::of(&server)).unwrap();
        assert!(text.len() < 32_000, "{} bytes", text.len());
        let mut state: State<'static> = postcard::from_bytes(&text).unwrap();
        state.load_long_parts(server.file.as_ref().unwrap()).unwrap();
        let unheard = state.clients.iter().map(|client| client.conversation.unheard_bytes());
        assert!(unheard.sum::<u64>() > 4 * 2_000_000);
    }

    #[test]
    fn writing_down_what_a_few_processes_do_costs_little() {
        for processes in [3, 100] {
            let mut server = stage::server();
            let _processes: Vec<_> = (1..=processes).map(|id| stage::join(&mut server, id)).collect();
            println!("{processes} processes: {:?} for each event", cost(&mut server));
            assert!(!server.unwritten);
        }
    }
}
