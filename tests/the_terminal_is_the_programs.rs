//! Ctrl-C and Ctrl-Z through `tidegate run`: the program is interrupted, stopped and continued as if
//! the shell had started it by itself, and the watcher that `run` leaves behind is not.

mod support;

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use support::patience::{Lines, PATIENCE};
use support::{Manager, tidegate};

/// What the terminal makes of them: SIGINT, SIGTSTP, SIGQUIT.
const CTRL_C: u8 = 0x03;
const CTRL_Z: u8 = 0x1a;
const CTRL_BACKSLASH: u8 = 0x1c;

/// Says what it is told by signals, and ends at the last. It starts no process: one that is stopped
/// while it begins would keep its parent from being stopped. It looks up now and then: a signal that
/// comes just before it begins to read is heard when it has read. Without its terminal it ends.
const PROGRAM: &str = "trap 'echo interrupted' INT; trap 'echo continued' CONT; trap 'exit 7' QUIT; \
    echo pid $$; while read -r -t 0.2 line || [ $? -gt 128 ]; do :; done";
/// A user's shell, with job control: `$@` in the foreground, and again when it was stopped.
const SHELL: &str = "\"$@\"; echo stopped $?; fg > /dev/null; echo ended $?";

#[test]
fn the_terminal_is_the_programs() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let mut terminal = Terminal::open();
    let mut shell = Command::new("/bin/sh");
    shell
        .env_remove("CARGO")
        .args(["-m", "-c", SHELL, "sh", tidegate(), "run", "--socket"])
        .arg(manager.socket());
    let mut shell = terminal.start(shell.args(["--", "/bin/bash", "-c", PROGRAM]));

    let program = terminal.line_after("pid ");
    let began = Instant::now();
    // A process that has just begun has no words yet.
    let watcher = std::iter::repeat_with(|| watcher_of(&program)).find(|watcher| {
        assert!(began.elapsed() < PATIENCE, "run leaves no watcher");
        watcher.is_some()
    });
    let watcher = watcher.flatten().unwrap();
    terminal.press(CTRL_C);
    terminal.line_after("interrupted");
    terminal.press(CTRL_Z);
    // To the shell: 128 and the signal that stopped it.
    assert_eq!(terminal.line_after("stopped "), (128 + libc::SIGTSTP).to_string());
    terminal.line_after("continued");
    terminal.press(CTRL_C);
    terminal.line_after("interrupted");
    assert_eq!(watcher_of(&program), Some(watcher), "the watcher is where it was");
    assert_ne!(state(watcher), Some('T'), "the watcher was stopped with the program");
    terminal.press(CTRL_BACKSLASH);
    assert_eq!(terminal.line_after("ended "), "7");
    assert!(terminal.lines.ended(), "somebody keeps the terminal");
    shell.wait().unwrap();
    let began = Instant::now();
    while state(watcher).is_some() {
        assert!(began.elapsed() < PATIENCE, "the watcher outlives the program");
    }
}

/// A pseudo-terminal: the side that a person sits at.
struct Terminal {
    keys: File,
    lines: Lines,
    other_side: Option<OwnedFd>,
}

impl Terminal {
    fn open() -> Self {
        let (mut own, mut other) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: two descriptors go to our own variables; a name and settings are not wanted.
        let failed = unsafe { libc::openpty(&mut own, &mut other, none, none.cast(), none.cast()) };
        assert_eq!(failed, 0, "no pseudo-terminal");
        // SAFETY: made above, and nobody else's.
        let [own, other] = [own, other].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        for fd in [&own, &other] {
            // SAFETY: a descriptor of ours and a number.
            unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        keep_output_at_signals(&other);
        let lines = Lines::of(File::from(own.try_clone().unwrap()));
        Self { keys: own.into(), lines, other_side: Some(other) }
    }

    /// Starts a session on this terminal.
    fn start(&mut self, leader: &mut Command) -> Child {
        let tty = self.other_side.take().expect("one session");
        let stdio = || Stdio::from(tty.try_clone().unwrap());
        leader.stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: between fork and exec only system calls are made.
        unsafe { leader.pre_exec(take_terminal) };
        let child = leader.spawn().unwrap();
        // The command keeps descriptors of its own.
        *leader = Command::new("true");
        child
    }

    fn press(&mut self, key: u8) {
        self.keys.write_all(&[key]).unwrap();
    }

    /// What follows `words` in the next line that has them. The terminal shows keys as well.
    #[track_caller]
    fn line_after(&self, words: &str) -> String {
        let lines = std::iter::from_fn(|| self.lines.next());
        let found = lines.filter_map(|line| line.split_once(words).map(|(_, rest)| rest.to_owned())).next();
        found.unwrap_or_else(|| panic!("the terminal never says {words:?}"))
    }
}

/// At a key that sends a signal, Linux discards what processes have written and nothing has read. The signal comes first: on a busy
/// machine a process has then ended, and its shell has said so, before the rest is discarded.
fn keep_output_at_signals(terminal: &OwnedFd) {
    let mut settings = tcgetattr(terminal).unwrap();
    settings.local_modes |= LocalModes::NOFLSH;
    tcsetattr(terminal, OptionalActions::Now, &settings).unwrap();
}

/// Makes the calling process a session's leader, on the terminal that is its standard input. Who
/// starts the tests in the background may have these signals ignored; who sits at a terminal has not.
fn take_terminal() -> std::io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP] {
        // SAFETY: the default disposition of a signal of our own process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    rustix::process::setsid()?;
    Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
}

/// The process that watches a program.
fn watcher_of(program: &str) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").unwrap();
    let mut pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.find(|pid| {
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.ends_with(&format!("watch\0--program\0{program}\0"))
    })
}

/// A process's state as in `/proc/PID/stat`; none if it is no more.
fn state(process: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next();
    state.filter(|state| !matches!(state, 'Z' | 'X'))
}
