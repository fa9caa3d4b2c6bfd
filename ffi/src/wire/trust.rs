//! Whose manager a process talks to.
//!
//! A manager decides where a program's memory lies, and names the directory of a software driver. So a process talks only to
//! a manager of root or of its own user, and to one of a user that its own user has named.

use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

/// The environment variable that names other users, by uid with commas between them, whose managers are trusted too.
pub const TRUST_VARIABLE: &str = "TIDEGATE_TRUST_UID";

static NAMED: OnceLock<Vec<u32>> = OnceLock::new();

/// The manager at a socket belongs to a user that this process does not trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its manager belongs to uid {uid}, not to root or this user (`--trust-uid {uid}` trusts it)")]
pub struct UntrustedManager {
    /// The manager's user.
    pub uid: u32,
}

impl UntrustedManager {
    /// What an error of [`Connection::connect`](super::Connection::connect) says of the manager's user, if that is the reason.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// Trusts the managers of these users too, in place of those that the environment names. Only the first call counts, and only
/// before the first connection.
pub fn trust(uids: Vec<u32>) {
    // A second call changes nothing, as documented.
    let _ = NAMED.set(uids);
}

/// The users that were named: by [`trust`], or in the environment. Words there that are no numbers name nobody.
pub fn trusted_uids() -> &'static [u32] {
    NAMED.get_or_init(|| {
        let named = std::env::var(TRUST_VARIABLE).unwrap_or_default();
        named.split(',').filter_map(|uid| uid.trim().parse().ok()).collect()
    })
}

/// Checks the user that listened on the other end of a connection.
pub(super) fn check_listener(socket: impl AsFd) -> io::Result<()> {
    let uid = socket_peercred(socket)?.uid.as_raw();
    let own = rustix::process::geteuid().as_raw();
    if is_trusted(uid, own, trusted_uids()) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, UntrustedManager { uid }))
}

fn is_trusted(uid: u32, own: u32, named: &[u32]) -> bool {
    uid == 0 || uid == own || named.contains(&uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managers_of_root_of_this_user_and_of_those_named_are_trusted() {
        for (uid, is_so) in [(0, true), (7, true), (8, true), (9, false), (65534, false)] {
            assert_eq!(is_trusted(uid, 7, &[8]), is_so, "{uid}");
        }
        assert!(!is_trusted(7, 0, &[]), "root trusts no other user's");
    }

    #[test]
    fn the_reason_is_found_in_the_error() {
        let error = io::Error::new(io::ErrorKind::PermissionDenied, UntrustedManager { uid: 5 });
        assert_eq!(UntrustedManager::of(&error), Some(UntrustedManager { uid: 5 }));
        assert!(error.to_string().contains("--trust-uid 5"), "{error}");
        assert_eq!(UntrustedManager::of(&io::ErrorKind::PermissionDenied.into()), None);
    }
}
