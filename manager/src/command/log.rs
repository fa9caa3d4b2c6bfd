//! Where a command's own words go; `TIDEGATE_LOG` says which of them.
//!
//! A manager and a mover do not wait for their log: a thread of its own writes it, from a queue. Where nothing reads the
//! other end of a pipe, a terminal is held or a file system hangs, jobs go on, and lines beyond the queue are left out.

use anyhow::Context as _;
use parking_lot::Mutex;
use rustix::fs::fstat;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::format::{DefaultFields, Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Context, Filter, Layered, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

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
    let is_journal = is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), &stderr);
    match is_journal {
        true => begin(writer, stderr.is_terminal(), Format::default().without_time()),
        false => begin(writer, stderr.is_terminal(), Format::default()),
    }
}

/// Behind what is in a file already, without waiting for it. Each line is one write, so that several processes may share it.
pub(super) fn to_file(path: &Path) -> anyhow::Result<File> {
    let file = open(path)?;
    let writer = file.try_clone().context("opening the log twice")?;
    begin(queue(writer), false, Format::default());
    Ok(file)
}

fn begin<F>(writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static, has_colours: bool, format: F)
where
    F: FormatEvent<Layered<EnvFilter, Registry>, DefaultFields> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(has_colours);
    // Where nothing can be written, neither can that: the attempt would panic.
    let lines = lines.log_internal_errors(false).event_format(Counted(format));
    tracing_subscriber::registry().with(filter()).with(lines.with_filter(RateLimit::default())).init();
}

/// Writes what is still to be written, for a second at most.
pub(super) fn end() {
    let worker = WORKER.lock().take();
    drop(worker);
}

/// At most so many warnings of one place in the code are logged at once.
const BURST: f64 = 50.0;
/// And so many in a second after that.
const WARNINGS_PER_SECOND: f64 = 5.0;

thread_local! {
    /// How many messages like the one that is being logged were left out before it.
    static LEFT_OUT: Cell<u64> = const { Cell::new(0) };
}

/// Bounds the warnings and errors of each place in the code: one client cannot fill the log.
#[derive(Default)]
struct RateLimit {
    places: Mutex<HashMap<Identifier, Budget>>,
}

/// The warnings that one place in the code may log.
struct Budget {
    left: f64,
    since: Instant,
    left_out: u64,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { left: BURST, since: now, left_out: 0 }
    }

    /// Whether one more is logged; if so, how many were left out before it.
    fn spend(&mut self, now: Instant) -> Option<u64> {
        let grown = (now - self.since).as_secs_f64() * WARNINGS_PER_SECOND;
        (self.left, self.since) = ((self.left + grown).min(BURST), now);
        if self.left < 1.0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl<S> Filter<S> for RateLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if *event.metadata().level() > Level::WARN {
            return true;
        }
        let now = Instant::now();
        let mut places = self.places.lock();
        let budget = places.entry(event.metadata().callsite()).or_insert_with(|| Budget::new(now));
        let left_out = budget.spend(now);
        LEFT_OUT.set(left_out.unwrap_or(0));
        left_out.is_some()
    }
}

/// A format of lines, each after the number of those like it that were left out.
struct Counted<F>(F);

impl<S, N, F> FormatEvent<S, N> for Counted<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match LEFT_OUT.take() {
            0 => {}
            count => writeln!(writer, "{count} messages like the next one are left out")?,
        }
        self.0.format_event(context, writer, event)
    }
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
    fn a_place_logs_so_many_warnings_and_then_says_how_many_were_left_out() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        let logged = (0..1000).filter(|_| budget.spend(begin).is_some()).count();
        assert_eq!(logged, BURST as usize);
        let later = begin + std::time::Duration::from_secs(1);
        assert_eq!(budget.spend(later), Some(1000 - BURST as u64));
        assert_eq!(budget.spend(later), Some(0));
        assert_eq!(
            (0..100).filter(|_| budget.spend(later).is_some()).count(),
            WARNINGS_PER_SECOND as usize - 2
        );
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
