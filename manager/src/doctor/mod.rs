//! `tidegate doctor`: what of this machine Tidegate needs or uses, and what to do where something is wrong.
//!
//! - [`bandwidth`]: how fast saved bytes could go;
//! - [`driver`]: the CUDA driver and its GPUs, asked in a process of their own;
//! - [`elf`]: what a library exports and needs;
//! - [`environment`]: variables that change how programs get GPU memory;
//! - [`libraries`]: the shim, and the C library under it;
//! - [`limits`]: what the system lets a process have;
//! - [`memory`]: the host's memory, as room for saved bytes;
//! - [`socket`]: the manager.
//!
//! Invariant: a probe changes nothing, and waits for nothing that may never come. What is read of `/proc` and
//! `/sys` lies under a root that a test can choose.

pub mod bandwidth;
pub mod driver;
pub mod elf;
pub mod environment;
pub mod libraries;
pub mod limits;
pub mod memory;
pub mod socket;

pub use crate::hardware::Machine;

use bytesize::ByteSize;
use serde::Serialize;
use std::fmt;

/// How well something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    /// As it should be, or of no concern.
    Good,
    /// Jobs run, but worse than they could.
    Warning,
    /// No job can run here.
    Failure,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about, in a word or two.
    pub topic: &'static str,
    /// How well it is.
    pub mark: Mark,
    /// What was found.
    pub says: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// All of what the words name only a part of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

impl Finding {
    /// Nothing to do.
    pub fn good(topic: &'static str, says: impl Into<String>) -> Self {
        Self { topic, mark: Mark::Good, says: says.into(), advice: None, details: Vec::new() }
    }

    /// Something could be better.
    pub fn warning(topic: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { mark: Mark::Warning, advice: Some(advice.into()), ..Self::good(topic, says) }
    }

    /// No job can run.
    pub fn failure(topic: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { mark: Mark::Failure, advice: Some(advice.into()), ..Self::good(topic, says) }
    }
}

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether nothing stands against running a job.
    pub jobs_can_run: bool,
    /// In the order in which they are shown.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Of these findings.
    pub fn of(findings: Vec<Finding>) -> Self {
        let jobs_can_run = findings.iter().all(|finding| finding.mark < Mark::Failure);
        Self { jobs_can_run, findings }
    }

    fn verdict(&self) -> String {
        let warnings = self.findings.iter().filter(|finding| finding.mark == Mark::Warning).count();
        match (self.jobs_can_run, warnings) {
            (false, _) => "jobs cannot run here".into(),
            (true, 0) => "jobs can run here".into(),
            (true, 1) => "jobs can run here; one thing could be better".into(),
            (true, many) => format!("jobs can run here; {many} things could be better"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, lines: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.findings.iter().map(|finding| finding.topic.len()).max().unwrap_or(0);
        for Finding { topic, mark, says, advice, .. } in &self.findings {
            let mark = match mark {
                Mark::Good => "ok  ",
                Mark::Warning => "warn",
                Mark::Failure => "FAIL",
            };
            writeln!(lines, "{mark}  {topic:widest$}  {says}")?;
            if let Some(advice) = advice {
                writeln!(lines, "      {:widest$}  -> {advice}", "")?;
            }
        }
        write!(lines, "{}", self.verdict())
    }
}

/// A size as people read it.
fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_aligned_and_ends_with_a_verdict() {
        let findings = vec![
            Finding::good("GPU", "a fine one"),
            Finding::warning("descriptors", "256 at most", "raise the limit"),
        ];
        let expected = "ok    GPU          a fine one\n\
                        warn  descriptors  256 at most\n\
                        \u{20}                  -> raise the limit\n\
                        jobs can run here; one thing could be better";
        assert_eq!(Report::of(findings).to_string(), expected);
    }

    #[test]
    fn one_failure_is_enough() {
        let findings = vec![Finding::good("GPU", ""), Finding::failure("shim", "missing", "install it")];
        let report = Report::of(findings);
        assert!(!report.jobs_can_run && report.to_string().ends_with("jobs cannot run here"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["jobs_can_run"], &json["findings"][1]["mark"]), (&false.into(), &"failure".into()));
    }
}
