//! One leg of the demo: all jobs at once under one manager.

use super::job::{Lines, Plan, Training};
use crate::command::connect::{ask_status, connect, manager_at, start_manager};
use crate::server::status::{EndedJob, Status};
use anyhow::Context;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use tidegate_ffi::wire::message::When;

/// How long a manager may take to notice that processes have died.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a leg showed.
pub(super) struct Leg {
    pub(super) at_boundary: bool,
    pub(super) took: Duration,
    pub(super) gpu: String,
    pub(super) gpu_memory_bytes: u64,
    pub(super) jobs: Vec<(Training, EndedJob)>,
}

/// The leg's manager; it is asked to stop when the leg is over, however it ends.
struct Manager {
    process: Child,
}

impl Drop for Manager {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        // It may have ended by itself; then there is nothing to stop.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

impl Leg {
    /// How its jobs were switched.
    pub(super) fn how(&self) -> &'static str {
        if self.at_boundary { "at boundaries" } else { "by deadline" }
    }

    /// From the first grant to the last one's end, on the manager's clock in microseconds.
    pub(super) fn span(&self) -> (u64, u64) {
        let grants = || self.jobs.iter().flat_map(|(_, job)| &job.grants);
        let first = grants().map(|(from, _)| *from).min().unwrap_or(0);
        (first, grants().filter_map(|(_, to)| *to).max().unwrap_or(first))
    }

    /// Runs all jobs at once; their manager lives for this leg.
    pub(super) fn run(plan: &Plan, at_boundary: bool) -> anyhow::Result<Self> {
        println!(
            "\n{}:",
            if at_boundary {
                "Together; the jobs tell the end of each step, and are switched at these boundaries"
            } else {
                "Together; the jobs tell nothing, and are switched wherever a deadline finds them"
            }
        );
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("socket");
        let manager = Manager::start(plan, &socket)?;
        let began = Instant::now();
        let lines = Lines::new(plan);
        let running = (1..=plan.jobs)
            .map(|seed| lines.follow(seed, plan.shared(seed, &socket, at_boundary)?))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let trainings =
            running.into_iter().map(super::job::Running::end).collect::<anyhow::Result<Vec<_>>>()?;
        let took = began.elapsed();
        let status = final_status(&socket)?;
        drop(manager);
        let gpu = status.gpus.first().context("the manager shares no GPU")?;
        Ok(Self {
            at_boundary,
            took,
            gpu: gpu.name.clone(),
            gpu_memory_bytes: gpu.gpu_memory_bytes,
            jobs: with_figures(trainings, &status)?,
        })
    }
}

impl Manager {
    fn start(plan: &Plan, socket: &Path) -> anyhow::Result<Self> {
        let mut command = manager_at(socket)?;
        command.args(["--unit", &plan.unit.to_string(), "--offset", &plan.offset.to_string()]);
        command.args(["--slice", &format!("{}ms", plan.slice.as_millis())]);
        if plan.software {
            command.args(["--software-gpu", &format!("1x{}", plan.gpu_memory)]);
        } else {
            command.args(["--gpu-memory", &plan.gpu_memory.to_string()]);
        }
        if plan.poison {
            command.arg("--poison");
        }
        Ok(Self { process: start_manager(command)? })
    }
}

/// The manager's status once it has seen the end of all jobs: it hears of each death by the
/// kernel's word, a moment after we do.
fn final_status(socket: &Path) -> anyhow::Result<Status> {
    let (connection, _) = connect(Some(socket))?;
    set_socket_timeout(&connection, Timeout::Recv, Some(PATIENCE))?;
    ask_status(&connection, When::Idle).context("the manager has not noticed the end of the jobs")
}

fn with_figures(trainings: Vec<Training>, status: &Status) -> anyhow::Result<Vec<(Training, EndedJob)>> {
    let mut jobs = Vec::new();
    for (index, training) in trainings.into_iter().enumerate() {
        let name = Plan::name(index as u64 + 1);
        let figures = status.ended.iter().find(|job| job.name == name);
        jobs.push((
            training,
            figures.with_context(|| format!("the manager knows nothing of {name}"))?.clone(),
        ));
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::connect::tests::manager_for_one;
    use tidegate_ffi::wire::message::{FromCommand, ToManager};

    #[test]
    fn the_last_status_is_that_of_the_idle_manager() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let manager = manager_for_one(&socket);
        assert!(final_status(&socket).unwrap().jobs.is_empty());
        let question = FromCommand::Status { when: When::Idle };
        assert_eq!(manager.join().unwrap(), ToManager::Command(question));
    }
}
