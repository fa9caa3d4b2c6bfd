//! What the processes of Tidegate say to each other.
//!
//! - [`message`]: one enum per direction;
//! - [`line`]: conversations that outlive their connections;
//! - [`Connection`]: frames over a Unix socket, bounded, with file descriptors;
//! - [`page`]: the control page that a shim publishes;
//! - [`live`]: the map of live bytes, in a sealed memfd;
//! - [`Watch`]: sees a manager's socket appear.

mod codec;
mod connection;
pub mod line;
pub mod live;
pub mod message;
pub mod page;
mod shared_memory;
mod trust;
mod watch;

pub use codec::{CodecError, Header, MAX_FDS, MAX_MESSAGE_BYTES, VERSION};
pub use connection::{Connection, Frame, Limits, Parcel, ReceiveError, SendError};
pub use shared_memory::{Mapped, SharedMemoryError, create_sealed, is_sealed, sealed_size};
pub use trust::{TRUST_VARIABLE, UntrustedManager, trust, trusted_uids};
pub use watch::{Seen, Watch};

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The environment variable that names the manager's socket.
pub const SOCKET_VARIABLE: &str = "TIDEGATE_SOCKET";
/// The environment variable that carries a job's token to all its processes.
pub const JOB_VARIABLE: &str = "TIDEGATE_JOB";
/// The environment variable that names, with commas between them, the kernels that touch only the allocations which
/// their parameters point into.
pub const KERNELS_VARIABLE: &str = "TIDEGATE_DESCRIBED_KERNELS";

/// Where a manager's socket may be, in the order of the search: `$TIDEGATE_SOCKET` alone if it
/// is set; else the system manager's, then one's own.
pub fn socket_candidates() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os(SOCKET_VARIABLE) {
        return vec![path.into()];
    }
    [Some(system_socket()), own_socket()].into_iter().flatten().collect()
}

/// The system manager's socket.
pub fn system_socket() -> PathBuf {
    "/run/tidegate/socket".into()
}

/// The socket of this user's own manager, if `$XDG_RUNTIME_DIR` names a directory of this user that no other can write. After
/// `su` the variable may name a directory of the user before.
pub fn own_socket() -> Option<PathBuf> {
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    let found = std::fs::metadata(&runtime).ok()?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    is_own.then(|| runtime.join("tidegate/socket"))
}
