//! A client of the manager without a driver, that says and keeps what the tests tell it to.
//!
//! It speaks the shim's side of the protocol and reads and writes the software GPU's pieces
//! through the descriptors that come, as a program could that was written to spy. Each line of
//! standard input is answered by one line of standard output: `ok …` or `error …`.
//!
//! ```text
//! hello NAME GPU               a job of its own, on one GPU
//! lease FIRST UNITS            temporary memory behind these slots
//! mark WORD                    writes WORD all over its memory, once its gate is open
//! scan WORD                    in how many pieces WORD was found: in those that came since the
//!                              beginning, and in those that it has or kept. And how many these are
//! keep                         from now on no descriptor of a piece of one unit is closed
//! deaf                         from now on it does not answer `Unmap`
//! lie                          asks for what it may not have
//! return                       gives all of its memory back, and keeps the descriptors
//! drop                         gives all of its memory back, and keeps nothing
//! fork                         starts a child that holds all descriptors, and says its number
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use tidegate_ffi::units::{Class, PieceId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::line::{self, Numbered};
use tidegate_ffi::wire::live::{self, Life, LiveRange};
use tidegate_ffi::wire::message::{
    Drained, FromShim, JobClaim, JobSpec, LeaseRequest, Placed, ToManager, ToShim,
};
use tidegate_ffi::wire::page::Page;
use tidegate_ffi::wire::{Connection, Mapped};

type Answer = Result<String, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect()?;
    let mut output = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        match client.obey(&line?) {
            Ok(answer) => writeln!(output, "ok {answer}")?,
            Err(error) => writeln!(output, "error {error}")?,
        }
        output.flush()?;
    }
    Ok(())
}

/// What it has, and what it was told.
#[derive(Default)]
struct State {
    open: bool,
    ended: bool,
    tenant: Option<TenantId>,
    unit_bytes: u64,
    leases_to_come: usize,
    mapped: BTreeMap<PieceId, (Placed, File)>,
    kept: Vec<File>,
    /// What came with bytes in it and was not looked at yet.
    found: Vec<Vec<u8>>,
    /// So often the word was found in what came.
    hits: usize,
    keeps: bool,
    deaf: bool,
}

struct Client {
    connection: Connection,
    /// The conversation, of which nothing is said again: with its connection, it ends.
    line: Mutex<line::Line<FromShim>>,
    /// The manager reads it.
    _page: Mapped<Page>,
    page: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

impl Client {
    fn connect() -> Result<Arc<Self>, Box<dyn Error>> {
        let socket = std::env::var("TIDEGATE_SOCKET")?;
        let connection = Connection::connect(Path::new(&socket))?;
        let (_page, page) = Page::create()?;
        let client = Arc::new(Self {
            connection,
            line: Mutex::default(),
            _page,
            page,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let reader = client.clone();
        std::thread::spawn(move || {
            while let Ok((letter, fds)) = reader.connection.receive::<Numbered<ToShim>>() {
                let message = reader.line().hear(letter);
                let Ok(Some(message)) = message else { break };
                if reader.hear(message, fds).is_err() {
                    break;
                }
            }
            reader.state().ended = true;
            reader.changed.notify_all();
        });
        Ok(client)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn line(&self) -> MutexGuard<'_, line::Line<FromShim>> {
        self.line.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn say(&self, message: FromShim, fds: &[&OwnedFd]) -> Result<(), Box<dyn Error>> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        // Held until it is sent: messages come in the order of their numbers.
        let mut line = self.line();
        Ok(self.connection.send(&ToManager::Shim(line.say(message)?), &fds)?)
    }

    fn wait(&self, until: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, Box<dyn Error>> {
        let waits = |state: &mut State| !until(state) && !state.ended;
        let state = self.changed.wait_while(self.state(), waits).map_err(|_| "the reader failed")?;
        if until(&state) { Ok(state) } else { Err("the manager has ended the session".into()) }
    }

    fn obey(&self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["hello", name, gpu] => {
                let spec = JobSpec { name: (*name).into(), ..JobSpec::default() };
                self.say(FromShim::Hello(JobClaim::Own(spec)), &[&self.page])?;
                self.say(FromShim::Attach { step: Step(1), gpu: gpu.parse()? }, &[])?;
                drop(self.wait(|state| state.tenant.is_some())?);
            }
            ["lease", first, units] => self.lease(first.parse()?, units.parse()?)?,
            ["mark", word] => self.mark(word.as_bytes())?,
            ["scan", word] => return self.scan(word.as_bytes()),
            ["keep"] => self.state().keeps = true,
            ["deaf"] => self.state().deaf = true,
            ["lie"] => {
                self.ask(TenantId(u64::MAX), 0, 1)?;
                drop(self.wait(|state| state.ended)?);
            }
            ["return"] => self.give_back(true)?,
            ["drop"] => self.give_back(false)?,
            ["fork"] => return fork(),
            _ => return Err(format!("unknown order {line:?}").into()),
        }
        Ok(String::new())
    }

    fn ask(&self, tenant: TenantId, first: u32, units: u32) -> Result<(), Box<dyn Error>> {
        let (first, units, ahead) = (SlotIndex(first), Units(units), Units(0));
        let step = Step(u64::from(first.0) + 2);
        let class = Class::Temporary;
        self.say(
            FromShim::Lease(LeaseRequest { step, tenant, class, first, units, ahead, whole: false }),
            &[],
        )
    }

    fn lease(&self, first: u32, units: u32) -> Result<(), Box<dyn Error>> {
        let tenant = {
            let mut state = self.state();
            state.leases_to_come += 1;
            state.tenant.ok_or("it has not said hello")?
        };
        self.ask(tenant, first, units)?;
        self.wait(|state| state.leases_to_come == 0).map(drop)
    }

    fn give_back(&self, keep: bool) -> Result<(), Box<dyn Error>> {
        let mut state = self.state();
        let (pieces, files): (Vec<PieceId>, Vec<File>) =
            std::mem::take(&mut state.mapped).into_iter().map(|(piece, (_, file))| (piece, file)).unzip();
        if keep {
            state.kept.extend(files);
        }
        let tenant = state.tenant.ok_or("it has not said hello")?;
        self.say(FromShim::Return { tenant, pieces, unused: Units(0), recalled: false }, &[])
    }

    fn mark(&self, word: &[u8]) -> Result<(), Box<dyn Error>> {
        let state = self.wait(|state| state.open)?;
        for (placed, file) in state.mapped.values() {
            let bytes = (u64::from(placed.units.0) * state.unit_bytes) as usize;
            let text: Vec<u8> = word.iter().copied().cycle().take(bytes).collect();
            file.write_all_at(&text, 0)?;
        }
        Ok(())
    }

    fn scan(&self, word: &[u8]) -> Answer {
        let mut state = self.state();
        let holds = |bytes: &Vec<u8>| bytes.windows(word.len()).any(|window| window == word);
        let came = std::mem::take(&mut state.found);
        state.hits += came.iter().filter(|bytes| holds(bytes)).count();
        let files = state.mapped.values().map(|(_, file)| file).chain(&state.kept);
        let now = files.map(read).collect::<Result<Vec<_>, _>>()?;
        let hits = state.hits + now.iter().filter(|bytes| holds(bytes)).count();
        Ok(format!("{hits} {} {}", now.len(), state.kept.len()))
    }

    fn hear(&self, message: ToShim, fds: Vec<OwnedFd>) -> Answer {
        let mut state = self.state();
        match message {
            ToShim::Welcome { closed, .. } => state.open = !closed,
            ToShim::Attached { tenant, layout, .. } => {
                state.tenant = Some(tenant);
                state.unit_bytes = layout.unit_bytes;
            }
            ToShim::Leased { pieces, more, .. } => {
                state.take(pieces, fds)?;
                state.leases_to_come -= usize::from(!more);
            }
            ToShim::Open => state.open = true,
            ToShim::Close { step, .. } => {
                state.open = false;
                self.drained(&state, step)?;
            }
            ToShim::Unmap { step, pieces, .. } if !state.deaf => {
                let mut of_one_unit = None;
                for piece in pieces {
                    let Some((placed, file)) = state.mapped.remove(&piece) else { continue };
                    of_one_unit = of_one_unit.or((placed.units.0 == 1).then_some(file));
                }
                // Only one of each departure: what is kept takes room on the GPU.
                if state.keeps {
                    state.kept.extend(of_one_unit);
                }
                self.say(FromShim::Done { step }, &[])?;
            }
            ToShim::Map { step, pieces, .. } => {
                state.take(pieces, fds)?;
                self.say(FromShim::Done { step }, &[])?;
            }
            ToShim::Recall { tenant } => self.say(
                FromShim::Return { tenant, pieces: Vec::new(), unused: Units(0), recalled: true },
                &[],
            )?,
            ToShim::Refused { reason } | ToShim::LeaseRefused { reason, .. } => return Err(reason.into()),
            _ => {}
        }
        self.changed.notify_all();
        Ok(String::new())
    }

    /// All of its memory is alive. What was leased and has not come is void.
    fn drained(&self, state: &State, step: Step) -> Result<(), Box<dyn Error>> {
        let range = |placed: &Placed| LiveRange {
            class: placed.class,
            start: u64::from(placed.slot.0) * state.unit_bytes,
            bytes: u64::from(placed.units.0) * state.unit_bytes,
            life: Life::Short,
        };
        let mut ranges: Vec<LiveRange> = state.mapped.values().map(|(placed, _)| range(placed)).collect();
        ranges.sort_unstable_by_key(|range| (range.class, range.start));
        let map = live::write(&ranges)?;
        let drained = Drained {
            step,
            at_boundary: false,
            drain_micros: 0,
            tenants: state.tenant.into_iter().collect(),
            outstanding: Vec::new(),
            boundaries: 0,
        };
        self.say(FromShim::Drained(drained), &[&map])
    }
}

impl State {
    /// Looks at every byte that comes, before anything else is done with it.
    fn take(&mut self, pieces: Vec<Placed>, fds: Vec<OwnedFd>) -> Result<(), Box<dyn Error>> {
        for (placed, fd) in pieces.into_iter().zip(fds) {
            let file = File::from(fd);
            let bytes = read(&file)?;
            if bytes.iter().any(|byte| *byte != 0) {
                self.found.push(bytes);
            }
            self.mapped.insert(placed.piece, (placed, file));
        }
        Ok(())
    }
}

fn read(file: &File) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn fork() -> Answer {
    // SAFETY: the child calls nothing but `alarm` and `pause`, which are allowed after a fork.
    match unsafe { libc::fork() } {
        0 => {
            // Whatever becomes of the test, it ends.
            // SAFETY: it may be called after a fork.
            unsafe { libc::alarm(300) };
            loop {
                // SAFETY: it has no arguments.
                unsafe { libc::pause() };
            }
        }
        child => Ok(child.to_string()),
    }
}
