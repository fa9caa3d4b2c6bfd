//! Fault injection, for tests: `TIDEGATE_FAULTS="job:memfd_create@3=EMFILE,mover:mmap@%4=ENOMEM"`.
//!
//! In the processes of that kind the n-th call (`@n`), every call from the n-th on (`@n+`), or every
//! n-th call (`@%n`) fails with that error instead of being made. Each fault adds a line, the kind
//! and the call, to the file that `TIDEGATE_FAULTS_LOG` names. Optimised builds without debug
//! assertions have none of this.
//!
//! A process counts only from when it has said what it is ([`begin`]); nothing ever fails in others.
//! `SCM_RIGHTS` is the receipt of descriptors: whatever the error, they are lost, as they are in a
//! process that has no numbers left, and the bytes arrive. `page` is the first page of those whose
//! nodes are asked for: it lies on none. `short` is a `store` that writes half of the bytes and says that all is well.

use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names the rules.
pub const VARIABLE: &str = "TIDEGATE_FAULTS";
/// Names the file that says which faults have struck.
pub const LOG_VARIABLE: &str = "TIDEGATE_FAULTS_LOG";

/// The rules for this process, by call; empty in most.
static RULES: OnceLock<HashMap<String, Counted>> = OnceLock::new();

/// The calls of one kind, counted against the rules for it.
struct Counted {
    kind: &'static str,
    calls: AtomicU64,
    rules: Vec<Rule>,
}

/// When a call fails, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rule {
    nth: u64,
    calls: Calls,
    error: Errno,
}

/// Which calls a rule is for, beside the n-th.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Calls {
    One,
    Onwards,
    Every,
}

/// From now on this process is one of `kind`: `job`, `mover`, `manager`. An item that is no rule
/// counts for nothing.
pub fn begin(kind: &'static str) {
    if !cfg!(debug_assertions) {
        return;
    }
    RULES.get_or_init(|| {
        let mut rules: HashMap<String, Counted> = HashMap::new();
        let list = std::env::var(VARIABLE).unwrap_or_default();
        for (call, rule) in list.split(',').filter_map(|item| parse(item.trim(), kind)) {
            let counted = || Counted { kind, calls: AtomicU64::new(0), rules: Vec::new() };
            rules.entry(call.into()).or_insert_with(counted).rules.push(rule);
        }
        rules
    });
}

/// Whether this call is to fail.
pub(super) fn due(call: &str) -> Result<(), Errno> {
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    RULES.get().and_then(|rules| rules.get(call)?.strike(call)).map_or(Ok(()), Err)
}

impl Counted {
    fn strike(&self, call: &str) -> Option<Errno> {
        let count = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let rule = self.rules.iter().find(|rule| rule.strikes(count))?;
        log(self.kind, call);
        Some(rule.error)
    }
}

impl Rule {
    fn strikes(self, call: u64) -> bool {
        match self.calls {
            Calls::One => call == self.nth,
            Calls::Onwards => call >= self.nth,
            Calls::Every => call.is_multiple_of(self.nth),
        }
    }
}

fn log(kind: &str, call: &str) {
    let Some(path) = std::env::var_os(LOG_VARIABLE) else { return };
    let file = OpenOptions::new().create(true).append(true).open(path);
    // One write: lines of several processes do not mix. Who counts them misses one that is not there.
    let _ = file.and_then(|mut file| file.write_all(format!("{kind} {call}\n").as_bytes()));
}

/// The call and the rule of an item, if it is one and for processes of `kind`.
fn parse<'a>(item: &'a str, kind: &str) -> Option<(&'a str, Rule)> {
    let (call, error) = item.strip_prefix(kind)?.strip_prefix(':')?.split_once('=')?;
    let (call, count) = call.split_once('@')?;
    let (count, calls) = match (count.strip_prefix('%'), count.strip_suffix('+')) {
        (Some(count), _) => (count, Calls::Every),
        (_, Some(count)) => (count, Calls::Onwards),
        _ => (count, Calls::One),
    };
    let nth = count.parse().ok().filter(|nth| *nth > 0)?;
    Some((call, Rule { nth, calls, error: error_by_name(error)? }))
}

fn error_by_name(name: &str) -> Option<Errno> {
    Some(match name {
        "EAGAIN" => Errno::AGAIN,
        "EIO" => Errno::IO,
        "EMFILE" => Errno::MFILE,
        "ENFILE" => Errno::NFILE,
        "ENOBUFS" => Errno::NOBUFS,
        "ENOMEM" => Errno::NOMEM,
        "ENOSPC" => Errno::NOSPC,
        "ENOENT" => Errno::NOENT,
        "EPERM" => Errno::PERM,
        "ETOOMANYREFS" => Errno::TOOMANYREFS,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_process_call_count_and_error() {
        let (call, rule) = parse("mover:mmap@3=ENOMEM", "mover").unwrap();
        assert_eq!((call, rule.error), ("mmap", Errno::NOMEM));
        assert!(rule.strikes(3) && !rule.strikes(4));
        let (_, onwards) = parse("job:dup@2+=EMFILE", "job").unwrap();
        assert!(!onwards.strikes(1) && onwards.strikes(2) && onwards.strikes(9));
        let (_, every) = parse("job:dup@%4=EMFILE", "job").unwrap();
        assert!(every.strikes(4) && every.strikes(8) && !every.strikes(5));
    }

    #[test]
    fn what_is_no_rule_for_this_process_counts_for_nothing() {
        for item in ["job:dup@1=EMFILE", "dup@1=EMFILE", "mover:dup@0=EMFILE", "mover:dup@1=ENONE", "mover:"]
        {
            assert_eq!(parse(item, "mover"), None, "{item}");
        }
    }

    #[test]
    fn nothing_fails_in_a_process_that_has_not_said_what_it_is() {
        assert_eq!(due("memfd_create"), Ok(()));
    }
}
