//! What a manager of root and its movers give up when they start: capabilities and system calls that neither they nor the
//! driver use, and that programs which they start gain any.
//!
//! Which files they may write is left to the unit (`ProtectSystem=strict`): the driver keeps caches and opens device nodes at
//! places that it does not tell, so a rule of our own (Landlock) would be a guess. Of system calls only those are refused that
//! no driver has a use for, not all but those that one was seen to make. Modules may be loaded: the driver does that, by
//! `nvidia-modprobe`.
//!
//! A manager of another user has no capabilities, and its driver may need `nvidia-modprobe`, which is set-user-ID, to make
//! device nodes. It gives up nothing.

#![forbid(unsafe_code)]

use crate::process::status_field;
use anyhow::Context;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

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

/// System calls that are refused from now on, with `EPERM`.
const REFUSED: [libc::c_long; 29] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_unshare,
];

/// Gives up what the process does not need. Called before it starts a thread: others keep what they have.
///
/// # Errors
/// The system refuses: the process then has more than it needs, which harms nothing by itself.
pub fn drop_unneeded() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    set_no_new_privs(true)?;
    drop_capabilities().context("capabilities")?;
    refuse_calls().context("system calls")
}

fn drop_capabilities() -> Result<(), Errno> {
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

/// Refuses system calls. A process that has a filter already keeps it: it is the one of the manager that started it, so that
/// they do not pile up from one successor to the next; or a container's, which refuses more.
fn refuse_calls() -> anyhow::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    if is_filtered(&status) {
        return Ok(());
    }
    let rules = REFUSED.into_iter().map(|call| (call, Vec::new())).collect();
    let refusal = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into()?;
    let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch)?.try_into()?;
    Ok(apply_filter(&filter)?)
}

/// Whether a process's `/proc/PID/status` says that it has a filter of system calls.
fn is_filtered(status: &str) -> bool {
    status_field(status, "Seccomp") == Some("2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_from_a_processs_status() {
        assert!(is_filtered("NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!is_filtered("NoNewPrivs:\t1\nSeccomp:\t0\nSeccomp_filters:\t0\n"));
        assert!(!is_filtered(""));
    }
}
