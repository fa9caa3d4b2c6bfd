//! Which processes a launcher has started together: the ranks of one launch.
//!
//! Launchers tell each rank in its environment. What is common to all ranks of a launch on this machine, and to no
//! other that runs at the same time, is the launch's identity:
//!
//! | launcher | recognised by | identity |
//! |---|---|---|
//! | torchrun, or by hand | `RANK`, `WORLD_SIZE` above 1 | `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_RUN_ID` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` above 1 | `PMIX_NAMESPACE`, else `OMPI_MCA_ess_base_jobid` |
//! | Slurm | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` above 1 | `SLURM_JOB_ID`, `SLURM_STEP_ID` |
//! | MPICH (Hydra) | `PMI_RANK` or `PMI_ID`, `PMI_SIZE` above 1 | the process that has started the ranks |
#![forbid(unsafe_code)]

use std::path::Path;

/// The longest identity, in bytes; what is longer counts as none.
const LONGEST: usize = 128;
/// The most processes between a rank and its launcher.
const MOST_BETWEEN: usize = 32;

/// The identity of the launch that the calling process is a rank of. `None`: it is none, or the only one.
pub fn identity() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok();
    identity_by(&variable, || starter(std::process::id(), Path::new("/proc")))
}

/// The same, by an environment. `starter` names the process that has started the ranks, if that can be known.
fn identity_by(
    variable: &dyn Fn(&str) -> Option<String>,
    starter: impl FnOnce() -> Option<String>,
) -> Option<String> {
    let of_several = |size: &str| variable(size)?.trim().parse::<u64>().ok().filter(|ranks| *ranks > 1);
    let by_hand = || {
        (variable("RANK"), of_several("WORLD_SIZE")?).0?;
        let run = variable("TORCHELASTIC_RUN_ID").unwrap_or_default();
        Some(format!("torch {} {} {run}", variable("MASTER_ADDR")?, variable("MASTER_PORT")?))
    };
    let open_mpi = || {
        (variable("OMPI_COMM_WORLD_RANK"), of_several("OMPI_COMM_WORLD_SIZE")?).0?;
        let job = variable("PMIX_NAMESPACE").or_else(|| variable("OMPI_MCA_ess_base_jobid"))?;
        Some(format!("openmpi {job}"))
    };
    let slurm = || {
        variable("SLURM_PROCID")?;
        of_several("SLURM_STEP_NUM_TASKS").or_else(|| of_several("SLURM_NTASKS"))?;
        Some(format!("slurm {} {}", variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?))
    };
    let hydra = || {
        variable("PMI_RANK").or_else(|| variable("PMI_ID"))?;
        of_several("PMI_SIZE")?;
        Some(format!("pmi {}", starter()?))
    };
    let found = by_hand().or_else(open_mpi).or_else(slurm).or_else(hydra)?;
    (found.len() <= LONGEST && !found.chars().any(char::is_control)).then_some(found)
}

/// The first ancestor of a process that is no rank itself: its number, and when it began, by which no later process of
/// that number is taken for it.
fn starter(of: u32, proc: &Path) -> Option<String> {
    let mut pid = parent_and_begin(of, proc)?.0;
    for _ in 0..MOST_BETWEEN {
        let environment = std::fs::read(proc.join(pid.to_string()).join("environ")).unwrap_or_default();
        let is_rank = |word: &[u8]| word.starts_with(b"PMI_RANK=") || word.starts_with(b"PMI_ID=");
        let (parent, begin) = parent_and_begin(pid, proc)?;
        if !environment.split(|byte| *byte == 0).any(is_rank) {
            return Some(format!("{pid} {begin}"));
        }
        pid = parent;
    }
    None
}

/// A process's parent, and when the process began, in ticks since the system did.
fn parent_and_begin(pid: u32, proc: &Path) -> Option<(u32, u64)> {
    let stat = std::fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    // The name may have anything in it, and is in parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    Some((parent, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(environment: &[(&str, &str)]) -> Option<String> {
        let value =
            |name: &str| environment.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).into());
        identity_by(&value, || Some("7 99".into()))
    }

    fn with<'a>(
        environment: &[(&'a str, &'a str)],
        name: &'a str,
        value: &'a str,
    ) -> Vec<(&'a str, &'a str)> {
        environment.iter().copied().filter(|(of, _)| *of != name).chain([(name, value)]).collect()
    }

    type Environment = &'static [(&'static str, &'static str)];

    /// What each launcher tells a rank: its number, how many ranks there are, and the name of the launch.
    const LAUNCHERS: [(&str, &str, &str, Environment); 5] = [
        (
            "RANK",
            "WORLD_SIZE",
            "MASTER_PORT",
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")],
        ),
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "PMIX_NAMESPACE",
            &[
                ("OMPI_COMM_WORLD_RANK", "0"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("PMIX_NAMESPACE", "prterun-a-1@1"),
            ],
        ),
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_MCA_ess_base_jobid",
            &[
                ("OMPI_COMM_WORLD_RANK", "0"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_MCA_ess_base_jobid", "3217"),
            ],
        ),
        (
            "SLURM_PROCID",
            "SLURM_NTASKS",
            "SLURM_STEP_ID",
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "11"), ("SLURM_STEP_ID", "0")],
        ),
        ("PMI_RANK", "PMI_SIZE", "", &[("PMI_RANK", "0"), ("PMI_SIZE", "2")]),
    ];

    #[test]
    fn ranks_of_one_launch_have_one_identity_and_others_have_another() {
        for (rank, size, launch_variable, environment) in LAUNCHERS {
            let identity = of(environment);
            assert!(identity.is_some(), "{environment:?}");
            assert_eq!(of(&with(environment, rank, "1")), identity, "{rank} is the rank's own");
            assert_eq!(of(&with(environment, size, "1")), None, "a launch of one: {environment:?}");
            assert_eq!(of(&with(environment, size, "many")), None, "{environment:?}");
            if !launch_variable.is_empty() {
                assert_ne!(of(&with(environment, launch_variable, "another")), identity, "{launch_variable}");
            }
        }
    }

    #[test]
    fn what_is_not_told_is_not_guessed() {
        for (.., environment) in LAUNCHERS {
            for (left_out, _) in environment {
                let rest: Vec<_> = environment.iter().copied().filter(|(name, _)| name != left_out).collect();
                assert_eq!(of(&rest), None, "without {left_out}: {environment:?}");
            }
        }
        assert_eq!(of(&[]), None);
        // A batch script of Slurm is no step: what it starts in the background was not launched together.
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "11")]), None);
    }

    #[test]
    fn what_is_too_long_or_no_word_is_none() {
        let (_, _, launch_variable, environment) = LAUNCHERS[0];
        assert_eq!(of(&with(environment, launch_variable, &"9".repeat(200))), None);
        assert_eq!(of(&with(environment, launch_variable, "29500\n")), None);
    }

    #[test]
    fn the_starter_is_the_first_that_is_no_rank() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: u32, name: &str, parent: u32, environment: &str| {
            let directory = proc.path().join(pid.to_string());
            std::fs::create_dir(&directory).unwrap();
            let stat = format!("{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5{pid} 1 1");
            std::fs::write(directory.join("stat"), stat).unwrap();
            std::fs::write(directory.join("environ"), environment).unwrap();
        };
        process(1, "init", 0, "");
        process(40, "proxy) S (2", 1, "HOME=/\0PMI_RANKS=no\0");
        process(41, "sh", 40, "HOME=/\0PMI_RANK=0\0");
        process(42, "sh", 40, "PMI_RANK=1\0");
        process(51, "rank", 41, "PMI_RANK=0\0");
        process(52, "rank", 42, "PMI_RANK=1\0");
        assert_eq!(starter(51, proc.path()).as_deref(), Some("40 540"));
        assert_eq!(starter(52, proc.path()), starter(51, proc.path()));
        assert_eq!(starter(99, proc.path()), None, "there is no such process");
    }
}
