//! Where a command's own words go; `TIDEGATE_LOG` says which of them.
//!
//! A manager and a mover do not wait for their log: a thread of its own writes it, from a queue. Where nothing reads the
//! other end of a pipe, a terminal is held or a file system hangs, jobs go on, and lines beyond the queue are left out.

use anyhow::Context;
use parking_lot::Mutex;
use rustix::fs::fstat;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// So many lines may wait to be written.
const QUEUE: usize = 4096;
/// The end of the queue.
static WORKER: Mutex<Option<WorkerGuard>> = Mutex::new(None);

/// To stderr: with colours on a terminal, without times in systemd's journal, which has its own.
pub(super) fn to_stderr() {
    begin_on_stderr(std::io::stderr);
}

/// The same without waiting for it.
pub(super) fn to_stderr_by_queue() {
    begin_on_stderr(queue(std::io::stderr()));
}

fn begin_on_stderr(writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static) {
    let stderr = std::io::stderr();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter())
        .with_writer(writer)
        // Where nothing can be written, neither can that: the attempt would panic.
        .log_internal_errors(false)
        .with_ansi(stderr.is_terminal());
    if is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), &stderr) {
        log.without_time().init();
    } else {
        log.init();
    }
}

/// Behind what is in a file already, without waiting for it. Each line is one write, so that several processes may share it.
pub(super) fn to_file(path: &Path) -> anyhow::Result<File> {
    let file = open(path)?;
    let writer = file.try_clone().context("opening the log twice")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter()).with_writer(queue(writer)).with_ansi(false);
    log.log_internal_errors(false).init();
    Ok(file)
}

/// Writes what is still to be written, for a second at most.
pub(super) fn end() {
    let worker = WORKER.lock().take();
    drop(worker);
}

/// Lines for another thread to write.
fn queue(writer: impl Write + Send + 'static) -> NonBlocking {
    let lost = Arc::new(OnceLock::new());
    let writer = Counting { writer, lost: lost.clone(), told: 0 };
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUE).thread_name("log");
    let (queue, worker) = queue.finish(writer);
    let _ = lost.set(queue.error_counter());
    *WORKER.lock() = Some(worker);
    queue
}

/// Says before the next line how many were left out.
struct Counting<W> {
    writer: W,
    lost: Arc<OnceLock<ErrorCounter>>,
    told: usize,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let lost = self.lost.get().map_or(0, ErrorCounter::dropped_lines);
        if lost > self.told {
            let said =
                format!("{} lines of this log are left out: it could not be written\n", lost - self.told);
            self.writer.write_all(said.as_bytes())?;
            self.told = lost;
        }
        self.writer.write_all(line).map(|()| line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }
}

/// A log that grows, and can be read.
pub(super) fn open(path: &Path) -> anyhow::Result<File> {
    let file = File::options().create(true).read(true).append(true).mode(0o640).open(path);
    file.with_context(|| format!("opening the log {}", path.display()))
}

fn filter() -> EnvFilter {
    EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"))
}

/// Whether a file is the stream that systemd means by `JOURNAL_STREAM`, which is inherited also by
/// processes whose stderr was redirected (`DEVICE:INODE`, systemd.exec(5)).
fn is_journal(stream: Option<&str>, file: impl AsFd) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else { return false };
    fstat(file).is_ok_and(|found| device.parse() == Ok(found.st_dev) && inode.parse() == Ok(found.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// Writes nothing before it may.
    struct Held {
        may: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Held {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            // From then on it may always.
            let _ = self.may.recv();
            self.written.lock().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_is_not_waited_for_and_says_what_is_left_out() {
        let (release, may) = channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut queue = queue(Held { may, written: written.clone() });
        for line in 0..QUEUE + 100 {
            queue.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        drop(release);
        end();
        let text = String::from_utf8(written.lock().clone()).unwrap();
        let said = text.lines().find(|line| line.contains("lines of this log are left out"));
        let left_out: usize = said.unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(text.lines().count() - 1 + left_out, QUEUE + 100, "{left_out}");
    }

    #[test]
    fn the_journal_is_known_by_its_device_and_inode() {
        let file = tempfile::tempfile().unwrap();
        let found = fstat(&file).unwrap();
        let stream = format!("{}:{}", found.st_dev, found.st_ino);
        assert!(is_journal(Some(&stream), &file));
        let redirected = tempfile::tempfile().unwrap();
        for (stream, file) in
            [(Some(&stream[..]), &redirected), (None, &file), (Some("1"), &file), (Some("a:b"), &file)]
        {
            assert!(!is_journal(stream, file), "{stream:?}");
        }
    }
}
