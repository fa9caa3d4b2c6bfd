//! Groups: what is between `ncclGroupStart` and `ncclGroupEnd` begins together.

use super::comm::{self, Comm, NO_COLOR, Plan};
use super::engine::{Collective, Message};
use super::{Answer, Code, Failure};
use crate::driver::Stream;
use std::cell::RefCell;
use std::sync::Arc;

/// An operation that a group waits to launch.
pub enum Operation {
    All(Collective),
    Two(Message),
}

/// What a group makes of communicators.
pub enum Job {
    /// A communicator joins its ranks.
    Join(Arc<Comm>),
    /// A communicator is split; the handle of the part goes to an address of the caller's.
    Split { comm: Arc<Comm>, color: i32, key: i32, place: usize },
}

#[derive(Default)]
struct Group {
    depth: usize,
    /// The first failure of a call in the group.
    failure: Option<Failure>,
    jobs: Vec<Job>,
    operations: Vec<(Arc<Comm>, Stream, Operation)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

fn with<T>(body: impl FnOnce(&mut Group) -> T) -> T {
    GROUP.with(|group| body(&mut group.borrow_mut()))
}

/// `ncclGroupStart`.
pub fn start() {
    with(|group| group.depth += 1);
}

/// `ncclGroupEnd`: the last one does what was asked for since the first start.
pub fn end() -> Answer {
    let group = with(|group| {
        if group.depth == 0 {
            return Err(Failure::usage("ncclGroupEnd without ncclGroupStart"));
        }
        group.depth -= 1;
        Ok((group.depth == 0).then(|| std::mem::take(group)))
    })?;
    group.map_or(Ok(()), Group::run)
}

/// A call in a group has failed: so does the group.
pub fn note(failure: &Failure) {
    with(|group| {
        if group.depth > 0 {
            group.failure.get_or_insert_with(|| failure.clone());
        }
    });
}

/// Does this now, or at the group's end.
pub fn job(job: Job) -> Answer {
    start();
    with(|group| group.jobs.push(job));
    end()
}

/// Launches this now, or at the group's end.
pub fn operation(comm: Arc<Comm>, stream: Stream, operation: Operation) -> Answer {
    comm.check_usable()?;
    start();
    with(|group| group.operations.push((comm, stream, operation)));
    end()
}

impl Group {
    fn run(self) -> Answer {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        run_jobs(self.jobs)?;
        let mut plans: Vec<(Arc<Comm>, Stream, Plan)> = Vec::new();
        for (comm, stream, operation) in self.operations {
            let known = plans.iter().position(|(known, ..)| Arc::ptr_eq(known, &comm));
            let at = known.unwrap_or_else(|| {
                plans.push((comm, stream, Plan::default()));
                plans.len() - 1
            });
            let (_, first, plan) = &mut plans[at];
            if *first != stream {
                return Err(Failure::usage(
                    "a group uses two streams with one communicator, which the stand-in refuses",
                ));
            }
            match operation {
                Operation::All(collective) => plan.collectives.push(collective),
                Operation::Two(message) => plan.messages.push(message),
            }
        }
        // All are launched, also where one cannot be: their peers may be at it.
        let mut all = Ok(());
        for (comm, stream, plan) in plans {
            all = all.and(comm.submit(stream, plan));
        }
        all
    }
}

/// Jobs wait for other ranks, which may be those of other jobs: each has its thread.
fn run_jobs(mut jobs: Vec<Job>) -> Answer {
    let Some(last) = jobs.pop() else { return Ok(()) };
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut all = Ok(());
        for job in jobs {
            match std::thread::Builder::new()
                .name("softgpu-nccl".into())
                .spawn_scoped(scope, move || job.run())
            {
                Ok(thread) => threads.push(thread),
                Err(error) => all = all.and(Err(Failure::of_system("starting a thread", &error))),
            }
        }
        all = all.and(last.run());
        let crashed = || Err(Failure::new(Code::InternalError, "a thread of the group ended early"));
        threads.into_iter().fold(all, |all, thread| all.and(thread.join().unwrap_or_else(|_| crashed())))
    })
}

impl Job {
    fn run(self) -> Answer {
        match self {
            Self::Join(comm) => comm.join(),
            Self::Split { comm, color, key, place } => {
                let part = comm.split(color, key)?;
                if let Some(part) = &part {
                    part.join()?;
                }
                let handle = part.map_or(0, comm::register);
                debug_assert_eq!(handle == 0, color == NO_COLOR);
                // SAFETY: the caller's place for a handle, which lives until the group ends.
                unsafe { (place as *mut usize).write(handle) };
                Ok(())
            }
        }
    }
}
