//! Where a command's own words go; `TIDEGATE_LOG` says which of them.

use anyhow::Context;
use rustix::fs::fstat;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tracing_subscriber::EnvFilter;

/// To stderr: with colours on a terminal, without times in systemd's journal, which has its own.
pub(super) fn to_stderr() {
    let stderr = std::io::stderr();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter())
        .with_writer(std::io::stderr)
        // Where nothing can be written, neither can that: the attempt would panic.
        .log_internal_errors(false)
        .with_ansi(stderr.is_terminal());
    if is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), &stderr) {
        log.without_time().init();
    } else {
        log.init();
    }
}

/// Behind what is in a file already. Each line is one write, so that several processes may share it.
pub(super) fn to_file(path: &Path) -> anyhow::Result<File> {
    let file = open(path)?;
    let writer = file.try_clone().context("opening the log twice")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter()).with_writer(writer).with_ansi(false);
    log.log_internal_errors(false).init();
    Ok(file)
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
