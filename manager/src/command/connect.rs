//! Finding a manager, and talking to it.

use super::log;
use super::manager::{READY, TAKEN};
use crate::ownership;
use crate::server::status::Status;
use crate::server::{self, CommandLine};
use crate::software_gpu::NODE_VARIABLE;
use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidegate_ffi::wire::message::{FromCommand, ToCommand, ToManager, When};
use tidegate_ffi::wire::{
    Connection, SOCKET_VARIABLE, UntrustedManager, Watch, own_socket, socket_candidates,
};

/// So long is waited for a manager that somebody else starts.
const PATIENCE: Duration = Duration::from_secs(10);
/// So often it is looked anew where nothing tells of the death of whoever is waited for.
const TICK: Duration = Duration::from_secs(1);

/// The place of a manager that was started is another's, who may not listen yet, or be dying.
#[derive(Debug, thiserror::Error)]
#[error("another manager has the place of the one that was started")]
struct PlaceTaken;

/// A log of a manager in the background is begun anew where it has grown beyond so many bytes.
const LOG_AT_MOST: u64 = 16 << 20;
/// Of what a manager logged that could not start, so many bytes are shown.
const LOG_SHOWN: u64 = 4 << 10;

/// Connects to the manager at `socket`, or to the first that answers where managers are searched.
pub(super) fn connect(socket: Option<&Path>) -> anyhow::Result<(Connection, PathBuf)> {
    let mut tried = Vec::new();
    for path in socket.map_or_else(candidates, |path| vec![path.to_owned()]) {
        match Connection::connect(&path) {
            Ok(connection) => return Ok((connection, path)),
            Err(error) => tried.push(format!("{}: {}", path.display(), words(&error))),
        }
    }
    bail!(
        "no manager answers ({}); `tidegate run` starts one for its job, `tidegate manager` one for all",
        tried.join("; ")
    );
}

fn words(error: &std::io::Error) -> String {
    match error.kind() {
        _ if UntrustedManager::of(error).is_some() => error.to_string(),
        ErrorKind::NotFound => "no such socket".into(),
        ErrorKind::ConnectionRefused => "nobody listens any more".into(),
        ErrorKind::PermissionDenied => "this user may not connect".into(),
        _ => error.to_string(),
    }
}

/// Where a shim searches too, and the place of one's own manager where the system names none.
pub(super) fn candidates() -> Vec<PathBuf> {
    let mut candidates = socket_candidates();
    let directory = fallback_directory();
    let is_named = std::env::var_os(SOCKET_VARIABLE).is_some() || own_socket().is_some();
    if !is_named && is_private(&directory) {
        candidates.push(directory.join("socket"));
    }
    candidates
}

/// Where a user's own manager listens; the directory exists and is nobody else's.
pub(super) fn personal_socket() -> anyhow::Result<PathBuf> {
    if let Some(socket) = own_socket() {
        return Ok(socket);
    }
    let directory = fallback_directory();
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made.with_context(|| format!("making {}", directory.display()))?,
    }
    if !is_private(&directory) {
        bail!("{} can be changed by others: remove it, or set XDG_RUNTIME_DIR", directory.display());
    }
    Ok(directory.join("socket"))
}

fn fallback_directory() -> PathBuf {
    std::env::temp_dir().join(format!("tidegate-{}", rustix::process::geteuid().as_raw()))
}

/// Whether a path is a directory that only this user (and root) can change.
fn is_private(path: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0)
}

/// Connects to a manager, and starts one first where none answers.
pub(super) fn find_or_start_manager(socket: Option<&Path>) -> anyhow::Result<(Connection, PathBuf)> {
    if let Ok(found) = connect(socket) {
        return Ok(found);
    }
    let named = socket.map(Path::to_owned).or_else(|| std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from));
    let socket = named.map_or_else(personal_socket, Ok)?;
    find_or_start(&socket, || {
        if let Some(last) = server::last_command(&socket) {
            let file = server::will_path(&socket);
            let advice = || {
                let file = file.display();
                format!(
                    "no manager answered; one was started with the options of the last ({file}, removed: the defaults)"
                )
            };
            return start_in_background(&manager_as(&last)?, &socket).with_context(advice);
        }
        // It ends when nobody needs it.
        let mut manager = manager_at(&socket)?;
        manager.args(["--idle-exit", "10s"]);
        start_in_background(&manager, &socket).context("no manager answered")
    })
}

/// Of several that find no manager at `socket`, one starts it; the others wait for that. And that one
/// waits for whoever is on the way there already: the heirs of a manager that has died, or another
/// that has its place and does not listen yet. These may die too: then it is tried again.
fn find_or_start(
    socket: &Path,
    mut start: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<(Connection, PathBuf)> {
    if let Some(directory) = socket.parent() {
        ownership::make_directory(directory)?;
    }
    let turn = File::from(ownership::open_lock_file(&socket.with_added_extension("starting"))?);
    turn.lock().context("waiting for another `tidegate run` to start a manager")?;
    let end = Instant::now() + PATIENCE;
    // Before any attempt: no appearance is missed.
    let watch = Watch::of(socket).ok();
    loop {
        if let Ok(found) = connect(Some(socket)) {
            return Ok(found);
        }
        let left = end.saturating_duration_since(Instant::now());
        let heirs = server::heirs(socket);
        if !left.is_zero() && !heirs.is_empty() {
            wait(watch.as_ref(), &heirs, left);
            continue;
        }
        let started = start();
        let is_taken = started.as_ref().is_err_and(|error| error.is::<PlaceTaken>());
        if left.is_zero() || !is_taken && started.is_err() {
            return connect(Some(socket)).map_err(|error| started.err().unwrap_or(error));
        }
        if is_taken {
            wait(watch.as_ref(), &[], left.min(TICK));
        }
    }
}

/// Waits until a manager appears or one of the heirs is dead.
fn wait(watch: Option<&Watch>, heirs: &[OwnedFd], patience: Duration) {
    let heirs: Vec<_> = heirs.iter().map(AsFd::as_fd).collect();
    // What cannot be watched appears unseen.
    if watch.is_none_or(|watch| watch.wait(&heirs, Some(patience)).is_err()) {
        std::thread::sleep(patience.min(TICK));
    }
}

/// Asks a manager one thing.
pub(super) fn ask(connection: &Connection, question: FromCommand) -> anyhow::Result<ToCommand> {
    connection.send(&ToManager::Command(question), &[]).context("asking the manager")?;
    hear(connection)
}

/// What a manager says next.
pub(super) fn hear(connection: &Connection) -> anyhow::Result<ToCommand> {
    match connection.receive::<ToCommand>().context("reading the manager's answer")?.0 {
        ToCommand::Refused { reason } => bail!(reason),
        answer => Ok(answer),
    }
}

/// A manager's status as it travels: JSON.
pub(super) fn ask_status_json(connection: &Connection, when: When) -> anyhow::Result<String> {
    let mut text = Vec::new();
    let mut answer = ask(connection, FromCommand::Status { when })?;
    loop {
        let ToCommand::Status { part, more } = answer else {
            bail!("the manager answered something else than its status");
        };
        text.extend(part);
        if !more {
            return String::from_utf8(text).context("reading the manager's status");
        }
        answer = hear(connection)?;
    }
}

/// A manager's status.
pub(super) fn ask_status(connection: &Connection, when: When) -> anyhow::Result<Status> {
    serde_json::from_str(&ask_status_json(connection, when)?).context("reading the manager's status")
}

/// `tidegate manager` at `socket`, not started yet.
pub(super) fn manager_at(socket: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("manager").arg("--socket").arg(socket);
    Ok(command)
}

/// The same, started as the manager was that has died there: with its options, in its working directory.
fn manager_as(last: &CommandLine) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(last.words.iter().map(|word| OsStr::from_bytes(word))).env_remove(NODE_VARIABLE);
    if last.directory.is_dir() {
        command.current_dir(&last.directory);
    }
    Ok(command)
}

/// Starts a manager that outlives this command, and waits until it is ready.
///
/// It is no child of this process, which becomes the user's program: a launcher that waits for all of its children would wait
/// for the manager. It logs into a file beside its socket: a reader of this command's standard error waits until every
/// process that has it open has closed it.
fn start_in_background(command: &Command, socket: &Path) -> anyhow::Result<()> {
    let path = socket.with_added_extension("log");
    let mut file = log::open(&path)?;
    let mut length = file.metadata().with_context(|| format!("looking at {}", path.display()))?.len();
    if length > LOG_AT_MOST {
        file.set_len(0).with_context(|| format!("emptying {}", path.display()))?;
        length = 0;
    }
    let mut shell = in_background(command);
    shell.stderr(file.try_clone().context("opening the log for a manager")?);
    let started = spawn_manager(shell).and_then(|(mut shell, word)| {
        shell.wait().context("waiting for the shell that started a manager")?;
        judge(&word)
    });
    started.map_err(|error| {
        let mut logged = Vec::new();
        // In bytes: it may be cut within a character.
        let read =
            file.seek(SeekFrom::Start(length)).and_then(|_| file.take(LOG_SHOWN).read_to_end(&mut logged));
        let logged = String::from_utf8_lossy(&logged);
        match read {
            Ok(_) => error.context(format!("its log, {}, says: {}", path.display(), logged.trim_end())),
            Err(unread) => error.context(format!("its log, {}, cannot be read: {unread}", path.display())),
        }
    })
}

/// A shell that starts a command and ends at once.
fn in_background(command: &Command) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "\"$@\" &", "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    shell
}

/// Starts a manager and returns it when it is ready.
pub(super) fn start_manager(command: Command) -> anyhow::Result<Child> {
    let (mut manager, word) = spawn_manager(command)?;
    judge(&word).or_else(|error| {
        let status = manager.wait()?;
        Err(error.context(format!("the manager that was started ended at once ({status})")))
    })?;
    Ok(manager)
}

/// Starts a manager and returns what it says first.
fn spawn_manager(mut command: Command) -> anyhow::Result<(Child, String)> {
    // Its own process group: Ctrl-C in this terminal is for the jobs, not for their manager.
    let mut manager = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn()?;
    let output = manager.stdout.take().context("the manager has no standard output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok((manager, line.trim_end().to_owned()))
}

/// Is a manager ready that has said so.
fn judge(word: &str) -> anyhow::Result<()> {
    match word {
        READY => Ok(()),
        TAKEN => Err(PlaceTaken.into()),
        _ => bail!("the manager that was started is not ready"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::sync::Mutex;
    use std::thread::JoinHandle;

    /// A manager that answers one question with an empty status, in parts, and ends with the
    /// question.
    pub(in super::super) fn manager_for_one(socket: &Path) -> JoinHandle<ToManager> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let connection = Connection::from(listener.accept().unwrap().0);
            let (question, _) = connection.receive::<ToManager>().unwrap();
            let text =
                br#"{"now_micros":1,"software_gpu":true,"draining":false,"gpus":[],"jobs":[],"ended":[],
                "users":[],"others":{"jobs":0,"persistent_bytes":0,"temporary_bytes":0,"spilled_bytes":0}}"#;
            for (index, part) in text.chunks(20).enumerate() {
                let more = (index + 1) * 20 < text.len();
                connection.send(&ToCommand::Status { part: part.to_vec(), more }, &[]).unwrap();
            }
            question
        })
    }

    #[test]
    fn what_a_manager_said_that_could_not_start_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        std::fs::write(socket.with_added_extension("log"), "of an earlier manager\n").unwrap();
        let mut fails = Command::new("sh");
        fails.args(["-c", "echo no such GPU >&2; exit 3"]);
        let told = format!("{:#}", start_in_background(&fails, &socket).unwrap_err());
        assert!(told.contains("says: no such GPU:") && told.contains("is not ready"), "{told}");
    }

    #[test]
    fn of_many_that_find_no_manager_one_starts_it() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("sub/socket");
        let started = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let start = || {
                        let turn = File::open(socket.with_added_extension("starting"))?;
                        assert!(turn.try_lock().is_err(), "another could start one at the same time");
                        started.lock().unwrap().push(UnixListener::bind(&socket)?);
                        Ok(())
                    };
                    find_or_start(&socket, start).unwrap();
                });
            }
        });
        assert_eq!(started.into_inner().unwrap().len(), 1);
    }

    /// What nobody does in so long, nobody does.
    const A_WHILE: Duration = Duration::from_millis(50);

    /// A directory with a manager's socket, and the mover that it has left there.
    fn bereft() -> (tempfile::TempDir, PathBuf, Child) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let mover = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        server::leave_mover(&socket, mover.id());
        (directory, socket, mover)
    }

    #[test]
    fn the_next_manager_is_left_to_the_heirs_of_the_last_one() {
        let (_directory, socket, mut mover) = bereft();
        let (found, news) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let nobody = || panic!("a mover was about to start one");
                found.send(find_or_start(&socket, nobody)).unwrap();
            });
            assert!(news.recv_timeout(A_WHILE).is_err());
            let _heir = UnixListener::bind(&socket).unwrap();
            news.recv().unwrap().unwrap();
        });
        mover.kill().unwrap();
        mover.wait().unwrap();
    }

    #[test]
    fn heirs_that_die_are_not_waited_for() {
        let (_directory, socket, mut mover) = bereft();
        let (started, news) = std::sync::mpsc::channel();
        let _listener = std::thread::scope(|scope| {
            scope.spawn(|| {
                let start = || Ok(started.send(UnixListener::bind(&socket)?)?);
                find_or_start(&socket, start).unwrap();
            });
            assert!(news.recv_timeout(A_WHILE).is_err(), "the mover would have started one");
            mover.kill().unwrap();
            news.recv().unwrap()
        });
        mover.wait().unwrap();
    }

    #[test]
    fn who_has_the_place_and_dies_before_it_listens_is_not_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let mut listeners = Vec::new();
        let mut attempts = 0;
        let found = find_or_start(&socket, || {
            attempts += 1;
            if attempts == 1 {
                return Err(anyhow::Error::from(PlaceTaken).context("no manager answered"));
            }
            listeners.push(UnixListener::bind(&socket)?);
            Ok(())
        });
        found.unwrap();
        assert_eq!(attempts, 2);
    }

    #[test]
    fn a_manager_that_cannot_start_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let mut attempts = 0;
        let found = find_or_start(&directory.path().join("socket"), || {
            attempts += 1;
            bail!("no GPU")
        });
        assert_eq!((found.unwrap_err().to_string(), attempts), ("no GPU".into(), 1));
    }

    #[test]
    fn a_directory_that_others_can_change_is_no_place_for_a_socket() {
        let directory = tempfile::tempdir().unwrap();
        assert!(is_private(directory.path()));
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!is_private(directory.path()));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert!(!is_private(&link) && !is_private(Path::new("/no/such/directory")));
    }

    #[test]
    fn who_finds_no_manager_is_told_where_and_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let error = connect(Some(&socket)).unwrap_err().to_string();
        for words in [socket.to_str().unwrap(), "no such socket", "tidegate manager"] {
            assert!(error.contains(words), "{error}");
        }
        drop(UnixListener::bind(&socket).unwrap());
        assert!(connect(Some(&socket)).unwrap_err().to_string().contains("nobody listens"));
    }
}
