//! Waiting that ends. What a test waits for comes soon on any machine; what does not come for
//! [`PATIENCE`] fails the test in words, and never hangs it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long one step of anything may take before it counts as hung: far more than it takes on the
/// slowest machine, so that no verdict depends on the machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What `work` gives, if it comes to an end.
pub fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RecvTimeoutError> {
    let (done, ended) = channel();
    // If nobody waits any more, nobody wants it.
    std::thread::spawn(move || drop(done.send(work())));
    ended.recv_timeout(patience)
}

/// The lines that a process says, as they come.
pub struct Lines(Receiver<String>);

impl Lines {
    /// Of the process's standard output, say.
    pub fn of(pipe: impl Read + Send + 'static) -> Self {
        let (said, lines) = channel();
        std::thread::spawn(move || {
            let all = BufReader::new(pipe).lines().map_while(Result::ok);
            // Until there are no more, or nobody listens.
            all.map(|line| said.send(line)).find(Result::is_err)
        });
        Self(lines)
    }

    /// The next line; `None` at the end.
    #[track_caller]
    pub fn next(&self) -> Option<String> {
        match self.0.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the program said nothing for {PATIENCE:?}"),
        }
    }

    /// The last line, of a process that goes on saying something until its end.
    #[track_caller]
    pub fn last(&self) -> Option<String> {
        std::iter::from_fn(|| self.next()).last()
    }

    /// All until the end, if that comes soon.
    pub fn rest(&self) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        let next = || self.0.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).collect()
    }

    /// Waits for the end, as of a process that was told to end: whether it came.
    pub fn ended(&self) -> bool {
        let end = Instant::now() + PATIENCE;
        let left = || end.saturating_duration_since(Instant::now());
        loop {
            match self.0.recv_timeout(left()) {
                Ok(_) => {}
                Err(error) => return error == RecvTimeoutError::Disconnected,
            }
        }
    }
}

/// Runs a program to its end.
#[track_caller]
pub fn output(command: Command) -> Output {
    output_within(PATIENCE, command)
}

/// Runs a program that has much to do to its end.
#[track_caller]
pub fn output_within(patience: Duration, mut command: Command) -> Output {
    finish_within(patience, command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Waits for a program's end.
#[track_caller]
pub fn finish(program: Child) -> Output {
    finish_within(PATIENCE, program)
}

/// Waits for the end of a program that has much to do.
#[track_caller]
pub fn finish_within(patience: Duration, program: Child) -> Output {
    let process = program.id() as i32;
    match within(patience, move || program.wait_with_output()) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            // SAFETY: a signal to our own child, which the thread above still waits for.
            unsafe { libc::kill(process, libc::SIGKILL) };
            panic!("the program, or who has its output, did not end within {patience:?}");
        }
    }
}
