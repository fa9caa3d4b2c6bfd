//! Files and directories that only the manager's own user may change.
//!
//! A lock (`flock(2)`) can be taken through any descriptor of a file, also one that was opened for reading only. So a lock
//! file is closed to other users, and lies in a directory where other users cannot put or rename files.

#![forbid(unsafe_code)]

use anyhow::{Context, bail, ensure};
use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fstat};
use std::fs::{DirBuilder, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Write permission of the group and of all other users.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Files of a directory can be renamed and removed only by their owners.
const STICKY: u32 = 0o1000;

/// Makes a directory and its missing ancestors, and checks it as [`check_directory`] does.
///
/// # Errors
/// A directory cannot be made, or other users may change it.
pub fn make_directory(directory: &Path) -> anyhow::Result<()> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o755).create(directory);
    made.with_context(|| format!("making {}", directory.display()))?;
    check_directory(directory)
}

/// Checks that only root and this user can put files into `directory`, or put another directory in its place.
///
/// # Errors
/// Other users can; the error names the directory and what to do.
pub fn check_directory(directory: &Path) -> anyhow::Result<()> {
    let looking = || format!("looking at {}", directory.display());
    let real = directory.canonicalize().with_context(looking)?;
    for (nth, ancestor) in real.ancestors().enumerate() {
        let found = std::fs::metadata(ancestor).with_context(looking)?;
        let is_place_of_files = nth == 0;
        if let Some(change) = changeable_by(&found, is_place_of_files) {
            let (path, socket_directory) = (ancestor.display(), directory.display());
            bail!("{path} {change}: no manager's files are safe in {socket_directory}");
        }
    }
    Ok(())
}

/// How another user can change a directory, in words. The entries of a sticky directory are safe from other users, but
/// not its free names.
fn changeable_by(found: &Metadata, is_place_of_files: bool) -> Option<String> {
    let (owner, mode) = (found.uid(), found.mode());
    // In a container whose root is not the machine's, directories above may belong to users that it does not have.
    let is_of_the_machine = !is_place_of_files && !is_mapped(owner);
    if owner != 0 && owner != own_uid() && !is_of_the_machine {
        return Some(format!("belongs to uid {owner}"));
    }
    let is_writable = match is_place_of_files {
        true => mode & WRITABLE_BY_OTHERS != 0,
        false => mode & 0o002 != 0 && mode & STICKY == 0,
    };
    is_writable.then(|| "can be written by other users (`chmod go-w` closes it)".into())
}

/// Opens a file to lock it, and makes it if it is missing. Other users cannot open it.
///
/// # Errors
/// The path leads to something else than a regular file of this user, or cannot be opened.
pub fn open_lock_file(path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let private = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::open(path, flags, private)
        .with_context(|| format!("opening the lock file {}", path.display()))?;
    let found = fstat(&file).with_context(|| format!("looking at {}", path.display()))?;
    let is_own = is_own_file(&found) && found.st_nlink == 1;
    ensure!(is_own, "the lock file {} is not a file of this user: remove it", path.display());
    if Mode::from_raw_mode(found.st_mode) != private {
        fchmod(&file, private).with_context(|| format!("closing {} to other users", path.display()))?;
    }
    Ok(file)
}

/// Opens a file for reading if this user wrote it and no other user could have.
pub fn open_own_file(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let found = fstat(&file).ok()?;
    (is_own_file(&found) && found.st_mode & WRITABLE_BY_OTHERS == 0).then_some(file)
}

fn is_own_file(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_uid == own_uid()
}

/// Whether processes of this user can be here. In a user namespace, owners that it does not have appear as one uid that no process
/// has.
fn is_mapped(uid: u32) -> bool {
    // What cannot be read counts as the machine's own namespace, which has all.
    std::fs::read_to_string("/proc/self/uid_map").map_or(true, |map| maps(&map, uid))
}

/// Whether a uid is in the text of `/proc/self/uid_map`: lines of the first uid, the first one outside, and how many.
fn maps(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), _, Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        (first..first + count).contains(&u64::from(uid))
    })
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_lock_file_is_closed_to_other_users() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        drop(open_lock_file(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        set_mode(&path, 0o644);
        drop(open_lock_file(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "an older release left it open");
    }

    #[test]
    fn a_lock_file_is_not_reached_through_links() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        std::fs::write(&target, "kept").unwrap();
        symlink(&target, directory.path().join("symbolic")).unwrap();
        std::fs::hard_link(&target, directory.path().join("hard")).unwrap();
        for name in ["symbolic", "hard"] {
            assert!(open_lock_file(&directory.path().join(name)).is_err(), "{name}");
        }
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        assert!(open_own_file(&directory.path().join("symbolic")).is_none());
    }

    #[test]
    fn a_file_that_others_could_have_written_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "").unwrap();
        set_mode(&path, 0o644);
        assert!(open_own_file(&path).is_some());
        set_mode(&path, 0o664);
        assert!(open_own_file(&path).is_none());
        assert!(open_own_file(directory.path()).is_none(), "it is a directory");
    }

    #[test]
    fn a_namespace_has_the_users_that_are_mapped() {
        assert!(maps("         0          0 4294967295\n", 65534));
        let rootless = "         0       1000          1\n         1     100000      1000\n";
        assert!(maps(rootless, 0) && maps(rootless, 1000) && !maps(rootless, 1001) && !maps(rootless, 65534));
        assert!(!maps("", 0));
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("a/b");
        make_directory(&inner).unwrap();
        for mode in [0o777, 0o1777, 0o775] {
            set_mode(&inner, mode);
            let error = check_directory(&inner).unwrap_err().to_string();
            assert!(error.contains("a/b can be written") && error.contains("chmod go-w"), "{error}");
        }
        set_mode(&inner, 0o755);
        check_directory(&inner).unwrap();
        let outer = inner.parent().unwrap();
        set_mode(outer, 0o777);
        let error = check_directory(&inner).unwrap_err().to_string();
        assert!(error.contains("/a can be written"), "{error}");
        set_mode(outer, 0o1777);
        check_directory(&inner).unwrap();
    }
}
