//! What a manager of root and its movers give up when they start: capabilities that neither they nor the driver use, and that
//! programs which they start gain any.
//!
//! A manager of another user has no capabilities, and its driver may need `nvidia-modprobe`, which is set-user-ID, to make
//! device nodes. It gives up nothing.

#![forbid(unsafe_code)]

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Capabilities that are given up.
const UNUSED: CapabilitySet = CapabilitySet::SYS_BOOT
    .union(CapabilitySet::SYS_TIME)
    .union(CapabilitySet::SYS_PACCT)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::AUDIT_CONTROL)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::MAC_ADMIN)
    .union(CapabilitySet::MAC_OVERRIDE)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP);

/// Gives up what the process does not need. Called before it starts a thread: others keep what they have.
///
/// # Errors
/// The system refuses: the process then has more than it needs, which harms nothing by itself.
pub fn drop_unneeded() -> Result<(), Errno> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    set_no_new_privs(true)?;
    let had = capabilities(None)?;
    // While it may still be changed.
    if had.effective.contains(CapabilitySet::SETPCAP) {
        for capability in UNUSED.iter() {
            match remove_capability_from_bounding_set(capability) {
                // The kernel is older than the capability.
                Err(Errno::INVAL) => {}
                removed => removed?,
            }
        }
    }
    let mut left = had;
    for set in [&mut left.effective, &mut left.permitted, &mut left.inheritable] {
        set.remove(UNUSED);
    }
    set_capabilities(None, left)
}
