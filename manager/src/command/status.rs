//! `tidegate status`: what the GPUs and jobs are doing.

use super::connect::{ask_status, ask_status_json, connect};
use crate::server::status::{GpuStatus, JobStatus, LinkStatus, OthersStatus, Status, TierStatus};
use anyhow::Context;
use bytesize::ByteSize;
use std::fmt::{self, Display, Formatter};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_ffi::wire::message::When;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The manager's Unix socket. Default: $TIDEGATE_SOCKET if that is set, else
    /// /run/tidegate/socket or $XDG_RUNTIME_DIR/tidegate/socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON, sizes in bytes and times in microseconds (docs/status.md explains each name).
    #[arg(long)]
    json: bool,
    /// Wait until no job is left, then show. With --json, `ended` has the figures of the last jobs.
    #[arg(long)]
    wait_idle: bool,
}

pub(super) fn execute(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (connection, _) = connect(arguments.socket.as_deref())?;
    let when = if arguments.wait_idle { When::Idle } else { When::Now };
    let text = if arguments.json {
        ask_status_json(&connection, when)? + "\n"
    } else {
        Shown(&ask_status(&connection, when)?).to_string()
    };
    std::io::stdout().write_all(text.as_bytes()).context("writing the status to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// A status as text.
struct Shown<'a>(&'a Status);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let status = self.0;
        if status.draining {
            writeln!(f, "the manager drains: no new jobs")?;
        }
        for gpu in &status.gpus {
            write_gpu(f, gpu, status.now_micros)?;
        }
        for user in &status.users {
            writeln!(f, "user {}: {} of {} saved", user.uid, size(user.saved_bytes), size(user.quota_bytes))?;
        }
        if status.jobs.is_empty() && status.others.jobs == 0 {
            writeln!(f, "no jobs")?;
        }
        if !status.jobs.is_empty() {
            write_jobs(f, &status.jobs)?;
        }
        if status.others.jobs > 0 {
            write_others(f, &status.others)?;
        }
        Ok(())
    }
}

fn write_jobs(f: &mut Formatter<'_>, jobs: &[JobStatus]) -> fmt::Result {
    writeln!(
        f,
        "{:>4}  {:<20} {:<10} {:>5} {:>8} {:>12} {:>12} {:>12} {:>8}",
        "job", "name", "state", "place", "priority", "persistent", "temporary", "spilled", "switches"
    )?;
    jobs.iter().try_for_each(|job| write_job(f, job))
}

fn write_others(f: &mut Formatter<'_>, others: &OthersStatus) -> fmt::Result {
    writeln!(
        f,
        "jobs of other users: {}, persistent {}, temporary {}, spilled {}",
        others.jobs,
        size(others.persistent_bytes),
        size(others.temporary_bytes),
        size(others.spilled_bytes),
    )
}

fn write_gpu(f: &mut Formatter<'_>, gpu: &GpuStatus, now_micros: u64) -> fmt::Result {
    writeln!(f, "{}  {}  {}", gpu.uuid, gpu.name, size(gpu.gpu_memory_bytes))?;
    writeln!(
        f,
        "    persistent {} in {} span(s), temporary {}, spare {}, headroom {}, free {}",
        size(gpu.persistent.used_bytes),
        gpu.spans.len(),
        size(gpu.temporary.used_bytes),
        size(gpu.spare_bytes),
        size(gpu.headroom_bytes),
        size(gpu.free_bytes),
    )?;
    if gpu.mover.lost {
        writeln!(f, "    it is given up, as its movers died: restart the manager")?;
    }
    for tier in &gpu.tiers {
        writeln!(f, "    {}", tier_line(tier))?;
    }
    if let Some(link) = &gpu.link {
        writeln!(f, "    {}", link_line(link, now_micros))?;
    }
    Ok(())
}

fn tier_line(tier: &TierStatus) -> String {
    let used = format!("{}: {} of {} used", tier.tier, size(tier.used_bytes), size(tier.share_bytes));
    match (tier.write_gb_per_s, tier.read_gb_per_s) {
        (Some(write), Some(read)) => format!("{used}, takes {write:.3} GB/s, gives {read:.3} GB/s"),
        _ => used,
    }
}

fn link_line(link: &LinkStatus, now_micros: u64) -> String {
    let LinkStatus { to_host_gb_per_s, to_gpu_gb_per_s, both_gb_per_s, since_micros } = link;
    let age = Duration::from_micros(now_micros.saturating_sub(*since_micros)).as_secs();
    format!(
        "link: to the host {to_host_gb_per_s:.3} GB/s, to the GPU {to_gpu_gb_per_s:.3} GB/s, \
         both at once {both_gb_per_s:.3} GB/s, as told {age} s ago"
    )
}

fn write_job(f: &mut Formatter<'_>, job: &JobStatus) -> fmt::Result {
    let figures = &job.figures;
    writeln!(
        f,
        "{:>4}  {:<20.20} {:<10} {:>5} {:>8} {:>12} {:>12} {:>12} {:>8}",
        figures.job,
        figures.name,
        job.state,
        job.queue_place,
        figures.priority,
        size(job.persistent_bytes),
        size(job.temporary_bytes),
        size(job.spilled_bytes),
        figures.switches,
    )?;
    if job.hosted_bytes > 0 {
        writeln!(f, "      it is larger than its GPU: {} are host memory", size(job.hosted_bytes))?;
    }
    if let Some(reason) = &job.unsliceable_because {
        writeln!(f, "      it is never preempted: {reason}")?;
    }
    if let Some(reason) = &job.waits_for_quota {
        writeln!(f, "      it waits: {reason}")?;
    }
    if let Some(wanted) = &job.waits_for {
        writeln!(f, "      it waits for {wanted}")?;
    }
    Ok(())
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::connect::tests::manager_for_one;
    use super::*;
    use tidegate_ffi::wire::message::{FromCommand, ToManager};

    #[test]
    fn rates_are_shown_when_they_are_known() {
        let tier = |rate: Option<f64>| TierStatus {
            tier: "disk".into(),
            share_bytes: 1 << 30,
            used_bytes: 0,
            write_gb_per_s: rate,
            read_gb_per_s: rate.map(|rate| 2.0 * rate),
        };
        assert_eq!(tier_line(&tier(None)), "disk: 0 B of 1.0 GiB used");
        assert_eq!(
            tier_line(&tier(Some(1.25))),
            "disk: 0 B of 1.0 GiB used, takes 1.250 GB/s, gives 2.500 GB/s"
        );
        let link = LinkStatus {
            to_host_gb_per_s: 53.0,
            to_gpu_gb_per_s: 55.4,
            both_gb_per_s: 0.75,
            since_micros: 1_500_000,
        };
        let line =
            "link: to the host 53.000 GB/s, to the GPU 55.400 GB/s, both at once 0.750 GB/s, as told 7 s ago";
        assert_eq!(link_line(&link, 8_500_000), line);
    }

    #[test]
    fn the_manager_is_asked_for_the_moment_that_is_wanted() {
        for (wait_idle, json, when) in [(false, true, When::Now), (true, false, When::Idle)] {
            let directory = tempfile::tempdir().unwrap();
            let socket = directory.path().join("socket");
            let manager = manager_for_one(&socket);
            execute(&Arguments { socket: Some(socket), json, wait_idle }).unwrap();
            assert_eq!(manager.join().unwrap(), ToManager::Command(FromCommand::Status { when }));
        }
    }
}
