//! What the system lets a process have.

#![forbid(unsafe_code)]

use super::{Finding, Machine, size};

/// A job's process has a descriptor for each piece of memory on its way, a manager for each piece that there is.
const ENOUGH_DESCRIPTORS: u64 = 4096;

/// Descriptors, and memory that may be locked.
pub fn look(machine: &Machine) -> Vec<Finding> {
    let text = machine.read("proc/self/limits").unwrap_or_default();
    vec![descriptors(&text), locked_memory(&text)]
}

fn descriptors(text: &str) -> Finding {
    const TOPIC: &str = "descriptors";
    match limit(text, "Max open files") {
        Some((soft, hard)) if soft < ENOUGH_DESCRIPTORS => Finding::warning(
            TOPIC,
            format!("a process may open {soft} files, {} if it asks", count(hard)),
            more_descriptors(hard),
        ),
        Some((soft, _)) => Finding::good(TOPIC, format!("a process may open {} files", count(soft))),
        None => Finding::good(TOPIC, "the limit is not known"),
    }
}

fn more_descriptors(hard: u64) -> String {
    if hard < ENOUGH_DESCRIPTORS {
        return "have the hard limit raised (limits.conf; LimitNOFILE= in a systemd unit)".into();
    }
    format!("ulimit -n {} before jobs and manager start", hard.min(1 << 16))
}

/// NVIDIA's driver pins memory itself, past this limit; it counts where other drivers and devices pin.
fn locked_memory(text: &str) -> Finding {
    let says = match limit(text, "Max locked memory") {
        Some((u64::MAX, _)) => "a process may lock all memory".into(),
        Some((soft, _)) => format!("a process may lock {} (pinning by CUDA does not count)", size(soft)),
        None => "the limit is not known".into(),
    };
    Finding::good("locked memory", says)
}

/// The soft and the hard limit of a line of `/proc/self/limits`; the highest number stands for none.
fn limit(text: &str, name: &str) -> Option<(u64, u64)> {
    let mut words = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    let mut next = || match words.next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    };
    Some((next()?, next()?))
}

fn count(number: u64) -> String {
    if number == u64::MAX { "any number of".into() } else { number.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::{Mark, Report};
    use super::*;
    use crate::hardware::tests::made_up;

    fn look_at(files: &str, locked: &str) -> Vec<Finding> {
        let limits = format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max open files            {files} files\n\
             Max locked memory         {locked} bytes\n"
        );
        let (_root, machine) = made_up(&[("proc/self/limits", &limits)]);
        look(&machine)
    }

    #[test]
    fn few_descriptors_are_a_warning_that_says_how_to_have_more() {
        let found = look_at("1024 524288", "8388608 8388608");
        assert_eq!(found[0].mark, Mark::Warning);
        assert!(found[0].advice.as_ref().unwrap().contains("ulimit -n 65536"), "{found:?}");
        assert!(Report::of(found).jobs_can_run);
        assert!(look_at("256 256", "0 0")[0].advice.as_ref().unwrap().contains("limits.conf"));
    }

    #[test]
    fn enough_is_good() {
        let found = look_at("65536 524288", "unlimited unlimited");
        assert!(found.iter().all(|finding| finding.mark == Mark::Good), "{found:?}");
        assert!(found[1].says.contains("all memory"));
    }
}
