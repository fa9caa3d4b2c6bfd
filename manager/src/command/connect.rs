//! Finding a manager, and talking to it.

use super::manager::READY;
use crate::server::status::Status;
use anyhow::{Context, bail};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tidegate_ffi::wire::message::{FromCommand, ToCommand, ToManager, When};
use tidegate_ffi::wire::{Connection, socket_candidates};

/// Connects to the manager at `socket`, or to the first that answers where managers are searched.
pub(super) fn connect(socket: Option<&Path>) -> anyhow::Result<(Connection, PathBuf)> {
    let candidates = socket.map_or_else(socket_candidates, |path| vec![path.to_owned()]);
    let mut tried = Vec::new();
    for path in candidates {
        match Connection::connect(&path) {
            Ok(connection) => return Ok((connection, path)),
            Err(error) => tried.push(format!("{}: {error}", path.display())),
        }
    }
    if tried.is_empty() {
        bail!(
            "no manager to look for: set TIDEGATE_SOCKET or XDG_RUNTIME_DIR, or start `tidegate manager --socket PATH`"
        );
    }
    bail!("no manager answers ({}); start one with `tidegate manager`", tried.join("; "))
}

/// Asks a manager one thing.
pub(super) fn ask(connection: &Connection, question: FromCommand) -> anyhow::Result<ToCommand> {
    connection.send(&ToManager::Command(question), &[]).context("asking the manager")?;
    hear(connection)
}

fn hear(connection: &Connection) -> anyhow::Result<ToCommand> {
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

/// Starts a manager and returns it when it is ready; one that is not has said why on stderr.
pub(super) fn start_manager(mut command: Command) -> anyhow::Result<Child> {
    // Its own process group: Ctrl-C in this terminal is for the jobs, not for their manager.
    let mut manager = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn()?;
    let output = manager.stdout.take().context("the manager has no standard output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.trim_end() != READY {
        let status = manager.wait()?;
        bail!("a manager could not be started ({status}); see the line above");
    }
    Ok(manager)
}
