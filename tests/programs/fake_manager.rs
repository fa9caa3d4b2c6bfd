//! Answers like a manager: `fake_manager SOCKET DIRECTORY`.
//!
//! It grants every registration, with DIRECTORY as that of the software GPUs. It says `ready` when it listens, and then a line
//! for each message that a process has sent it.

use std::os::unix::net::UnixListener;
use tidegate_ffi::units::JobId;
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::message::{FromCommand, ToCommand, ToManager};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [socket, directory] = [1, 2].map(|nth| std::env::args().nth(nth).expect("SOCKET and DIRECTORY"));
    let listener = UnixListener::bind(socket)?;
    println!("ready");
    loop {
        let connection = Connection::from(listener.accept()?.0);
        let directory = directory.clone();
        std::thread::spawn(move || answer(&connection, &directory));
    }
}

/// Answers until the connection ends.
fn answer(connection: &Connection, directory: &str) {
    while let Ok((message, _)) = connection.receive::<ToManager>() {
        match message {
            ToManager::Command(FromCommand::Register(_)) => {
                println!("registration");
                let software_gpu = Some(directory.into());
                let granted = ToCommand::Registered { job: JobId(1), token: 1, software_gpu, joined: None };
                if connection.send(&granted, &[]).is_err() {
                    return;
                }
            }
            ToManager::Shim(_) => println!("hello"),
            _ => println!("another message"),
        }
    }
}
