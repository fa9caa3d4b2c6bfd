//! How fast saved bytes could go, as far as that can be told without a GPU's memory: a running manager's jobs may
//! need all of it. With a manager, `tidegate status` tells the rest.

#![forbid(unsafe_code)]

use super::Finding;
use crate::mover;
use std::path::Path;

const TOPIC: &str = "bandwidth";

/// Of the host's memory; of the disk tier's directory, where there is one.
pub fn look(disk: Option<&Path>) -> Vec<Finding> {
    let memory = format!("one thread copies {} of the host's memory", per_second(mover::measure_host()));
    std::iter::once(Finding::good(TOPIC, memory)).chain(disk.map(look_at)).collect()
}

fn look_at(directory: &Path) -> Finding {
    let place = directory.display();
    match mover::measure_disk(directory) {
        Ok(rates) => {
            let (write, read) = (per_second(rates.write), per_second(rates.read));
            Finding::good(TOPIC, format!("--disk {place} takes {write}, and gives {read}"))
        }
        Err(error) => Finding::good(TOPIC, format!("--disk {place} is not measured: {error}")),
    }
}

/// A rate in bytes per second as people read it.
pub fn per_second(rate: u64) -> String {
    format!("{:.3} GB/s", rate as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::super::Mark;
    use super::*;

    #[test]
    fn a_disk_that_is_not_there_is_told_in_words() {
        let says = |disk: Option<&Path>| -> Vec<String> {
            let findings = look(disk);
            assert!(findings.iter().all(|finding| finding.mark == Mark::Good), "{findings:?}");
            findings.into_iter().map(|finding| finding.says).collect()
        };
        assert_eq!(says(None).len(), 1);
        let directory = tempfile::tempdir().unwrap();
        let [_, there] = &says(Some(directory.path()))[..] else { panic!("no disk") };
        assert!(there.contains("takes ") && there.contains("gives "), "{there}");
        assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing stays there");
        let [_, gone] = &says(Some(Path::new("/nowhere")))[..] else { panic!("no disk") };
        assert!(gone.contains("/nowhere is not measured: No such file"), "{gone}");
    }

    #[test]
    fn rates_are_told_in_billions_of_bytes() {
        assert_eq!(per_second(11_234_567_890), "11.235 GB/s");
        assert_eq!(per_second(2_000_000), "0.002 GB/s");
    }
}
