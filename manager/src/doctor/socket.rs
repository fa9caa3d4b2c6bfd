//! The manager's socket: which there are, whose they are, and whether a manager answers.

#![forbid(unsafe_code)]

use super::Finding;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const TOPIC: &str = "manager";

/// What became of a connection to one socket.
pub struct Tried {
    /// Where it is.
    pub path: PathBuf,
    /// How many jobs its manager has, or why it did not say.
    pub answer: Result<usize, Silence>,
}

/// Why no manager answers.
#[derive(Debug)]
pub enum Silence {
    /// It cannot be connected to.
    Unconnected(std::io::Error),
    /// It said nothing, or nothing that can be read.
    Mute(String),
}

/// What was found at the places where a manager is searched, in their order; the first that answers counts.
pub fn look(tried: &[Tried]) -> Finding {
    if let Some(answers) = tried.iter().find(|tried| tried.answer.is_ok()) {
        return answers.finding();
    }
    let present = tried.iter().find(|tried| !tried.is_missing());
    present.map_or_else(|| nobody(tried), Tried::finding)
}

fn nobody(tried: &[Tried]) -> Finding {
    let places: Vec<String> = tried.iter().map(|tried| tried.path.display().to_string()).collect();
    Finding::good(TOPIC, format!("none runs; `tidegate run` starts one (looked at {})", places.join(", ")))
}

impl Tried {
    fn is_missing(&self) -> bool {
        matches!(&self.answer, Err(Silence::Unconnected(error)) if error.kind() == ErrorKind::NotFound)
    }

    fn finding(&self) -> Finding {
        let (path, whose) = (self.path.display(), whose(&self.path));
        match &self.answer {
            Ok(jobs) => Finding::good(TOPIC, format!("answers at {path}{whose}; jobs: {jobs}")),
            Err(Silence::Mute(error)) => Finding::failure(
                TOPIC,
                format!("{path}{whose} does not answer: {error}"),
                "end it (`tidegate manager stop --drain`, else by its process) and start it again",
            ),
            Err(Silence::Unconnected(error)) => self.unconnected(error, &whose),
        }
    }

    fn unconnected(&self, error: &std::io::Error, whose: &str) -> Finding {
        let path = self.path.display();
        match error.kind() {
            ErrorKind::PermissionDenied => Finding::failure(
                TOPIC,
                format!("this user may not connect to {path}{whose}"),
                "become a member of the socket's group (`tidegate manager --group`), then log in anew",
            ),
            ErrorKind::ConnectionRefused => {
                Finding::good(TOPIC, format!("none runs; {path} is left over and will be replaced"))
            }
            _ => Finding::failure(TOPIC, format!("{path}{whose}: {error}"), "see whether that is a socket"),
        }
    }
}

/// Who owns a socket and may connect.
fn whose(path: &Path) -> String {
    let say = |file: Metadata| {
        format!(" (owner {}, group {}, mode {:03o})", file.uid(), file.gid(), file.mode() & 0o777)
    };
    std::fs::symlink_metadata(path).map(say).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::Mark;
    use super::*;

    fn unconnected(path: &str, kind: ErrorKind) -> Tried {
        Tried { path: path.into(), answer: Err(Silence::Unconnected(kind.into())) }
    }

    #[test]
    fn no_manager_is_no_fault() {
        let found =
            look(&[unconnected("/run/a", ErrorKind::NotFound), unconnected("/run/b", ErrorKind::NotFound)]);
        assert_eq!(found.mark, Mark::Good);
        assert!(found.says.contains("tidegate run") && found.says.contains("/run/a, /run/b"), "{found:?}");
        assert_eq!(look(&[unconnected("/run/a", ErrorKind::ConnectionRefused)]).mark, Mark::Good);
    }

    #[test]
    fn who_may_not_connect_is_told_of_the_group() {
        let found = look(&[
            unconnected("/nowhere", ErrorKind::NotFound),
            unconnected("/run/a", ErrorKind::PermissionDenied),
        ]);
        assert_eq!(found.mark, Mark::Failure);
        assert!(found.advice.as_ref().unwrap().contains("--group"), "{found:?}");
    }

    #[test]
    fn a_manager_that_says_nothing_is_a_failure_unless_another_answers() {
        let mute = || Tried { path: "/run/a".into(), answer: Err(Silence::Mute("nothing".into())) };
        assert_eq!(look(&[mute()]).mark, Mark::Failure);
        let found = look(&[mute(), Tried { path: "/".into(), answer: Ok(3) }]);
        assert_eq!(found.mark, Mark::Good);
        assert!(
            found.says.starts_with("answers at / (owner 0, ") && found.says.ends_with("; jobs: 3"),
            "{found:?}"
        );
    }
}
