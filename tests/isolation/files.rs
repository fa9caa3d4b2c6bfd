//! Locks and files beside a manager's socket.

use crate::outsider;
use crate::support::patience::{Lines, output};
use crate::support::users::{STRANGER, Shared};
use crate::support::{Status, command};
use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// A process of the outsider that locks a file, or directory, as soon as it can, if it can open it.
struct Locker(Child);

impl Locker {
    fn on(path: &Path) -> Self {
        let mut shell = outsider(Path::new("/bin/sh"));
        let script = r#"if [ -r "$0" ]; then exec 9<"$0"; echo opened; flock 9; exec sleep 1000; else echo refused; fi"#;
        shell.arg("-c").arg(script).arg(path).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = shell.spawn().unwrap();
        let said = Lines::of(process.stdout.take().unwrap()).next();
        println!("{}: {}", path.display(), said.unwrap_or_default());
        Self(process)
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All that lies in these directories, and the directories themselves.
fn all_in(directories: &[&Path]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = directories.iter().map(|directory| directory.to_path_buf()).collect();
    let mut next = 0;
    while let Some(directory) = found.get(next).cloned() {
        next += 1;
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        found.extend(
            entries.filter(|entry| !entry.file_type().unwrap().is_symlink()).map(|entry| entry.path()),
        );
    }
    found
}

fn software_gpus_of(manager: u32) -> PathBuf {
    let open = crate::support::open_files(manager);
    let lock = open.iter().find(|path| path.starts_with("/dev/shm/")).expect("a lock of a software GPU");
    lock.ancestors().nth(lock.components().count() - 4).unwrap().to_owned()
}

#[test]
fn a_managers_successor_needs_no_lock_that_another_user_can_hold() {
    let shared = Shared::start("1x8MiB", &["--unit", "64KiB"]);
    let manager = shared.manager.pid();
    let node = software_gpus_of(manager);
    let places = all_in(&[shared.manager.socket().parent().unwrap(), &node]);
    assert!(places.iter().any(|path| path.ends_with("socket.lock")), "{places:?}");
    let lockers: Vec<Locker> = places.iter().map(|path| Locker::on(path)).collect();
    // SAFETY: a signal to the manager of this test.
    assert_eq!(unsafe { libc::kill(manager as i32, libc::SIGKILL) }, 0);
    shared.manager.comes_to(|_: &Status| shared.manager.pid() != manager);
    drop(lockers);
}

/// A directory in which the stranger, and every other user, can make files.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
    directory
}

/// What a manager says that cannot start in a directory, and what its `--answer-limit` is for: it is short.
fn refusal_in(directory: &Path) -> String {
    let mut manager = command();
    manager.args(["manager", "--software-gpu", "1x8MiB", "--unit", "64KiB", "--answer-limit", "1s"]);
    manager.args(["--idle-exit", "1s", "--socket"]).arg(directory.join("socket"));
    let output = output(manager);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it started: {told}");
    told
}

#[test]
fn no_manager_starts_where_other_users_can_put_files() {
    let directory = open_directory();
    let kept = directory.path().join("kept");
    std::fs::write(&kept, "of root").unwrap();
    let link = directory.path().join("socket.lock");
    symlink(&kept, &link).unwrap();
    let told = refusal_in(directory.path());
    assert!(told.contains("can be written by other users") && told.contains("chmod go-w"), "{told}");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "of root", "the link was followed");
    // Where nobody else can write now, but has.
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let told = refusal_in(directory.path());
    assert!(told.contains("socket.lock"), "{told}");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "of root", "the link was followed");
    std::fs::remove_file(&link).unwrap();
    File::create(&link).unwrap();
    chown(&link, Some(STRANGER), None).unwrap();
    let told = refusal_in(directory.path());
    assert!(told.contains("is not a file of this user: remove it"), "{told}");
}
