//! Plays a mix, and watches that every program in it makes steps.

use crate::board::{Board, SLOTS_PER_PROCESS, Slot, Word};
use crate::bound::bound;
use crate::mix::{Event, Mix};
use crate::support::deaths::{kill, without_successor};
use crate::support::{Manager, Status, tidegate};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt::Write;
use std::fs::{File, read_to_string};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Between two looks at the boards.
const LOOK: Duration = Duration::from_millis(20);
/// Between two looks at the status.
const ASK: Duration = Duration::from_millis(500);
/// The manager answers a status within this, or it counts as one that did not.
const ANSWER: Duration = Duration::from_secs(5);
/// A program that is asked to becomes itself anew within this, if it lives and is not stopped.
const BECOMES: Duration = Duration::from_secs(1);
/// Without an answer for so long the manager stands still.
const MUTE: Duration = Duration::from_secs(40);

/// How a mix went.
pub struct Outcome {
    /// What was found; none: nothing.
    pub failure: Option<String>,
    /// One line.
    pub summary: String,
}

/// The longest time without a step.
#[derive(Default)]
struct Longest {
    time: Duration,
    told: String,
}

/// A program that was started.
struct Player {
    child: Child,
    board: Board,
    said: PathBuf,
    /// For each slot: its steps, and how long they have been as many.
    marks: Vec<(u64, Duration)>,
    /// How long all its threads have been done.
    ending: Duration,
    end: Option<ExitStatus>,
    was_killed: bool,
    goes_on_at: Option<Instant>,
}

impl Player {
    fn is_there(&self) -> bool {
        self.end.is_none()
    }

    fn slots(&self) -> Vec<Slot> {
        self.board.slots().collect()
    }

    /// To all processes of the program.
    fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, signal);
        }
    }

    fn has_begun(&self) -> bool {
        self.slots().iter().any(|slot| slot.get(Word::Steps) > 0)
    }
}

/// A mix that is being played.
pub struct Game<'a> {
    mix: &'a Mix,
    program: &'a Path,
    kernels: &'a Path,
    directory: &'a Path,
    manager: Manager,
    players: Vec<Option<Player>>,
    status: Option<Status>,
    answered: Instant,
    longest: Longest,
}

impl<'a> Game<'a> {
    /// Starts a manager; logs go to `directory`.
    pub fn begin(mix: &'a Mix, program: &'a Path, kernels: &'a Path, directory: &'a Path) -> Self {
        let disk = directory.join("disk");
        std::fs::create_dir_all(&disk).unwrap();
        let mut options = mix.arguments(disk.to_str().unwrap());
        options.push(format!("--log={}", directory.join("manager.log").display()));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let level = if is_loud() { "debug" } else { "info" };
        let manager = Manager::start_with(&mix.gpu, &options, &[("TIDEGATE_LOG", Path::new(level))]);
        let players = mix.jobs.iter().map(|_| None).collect();
        let (status, answered, longest) = (None, Instant::now(), Longest::default());
        Self { mix, program, kernels, directory, manager, players, status, answered, longest }
    }

    /// Plays it to its end, or to the first failure.
    pub fn play(mut self) -> Outcome {
        let failure = self.run().err();
        let failure = failure.map(|failure| self.describe(&failure));
        self.players
            .iter()
            .flatten()
            .filter(|player| player.is_there())
            .for_each(|player| player.signal(Signal::KILL));
        for player in self.players.iter_mut().flatten() {
            let _ = player.child.wait();
        }
        let refusals: u64 = self.slots().map(|slot| slot.get(Word::Refusals)).sum();
        let steps: u64 = self.slots().map(|slot| slot.get(Word::Steps)).sum();
        let mut summary =
            format!("{steps} steps, {refusals} refusals, longest without a step: {}", self.longest.told);
        if failure.is_some() {
            summary.push_str(" FAILED");
        }
        Outcome { failure, summary }
    }

    fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.players.iter().flatten().flat_map(Player::slots)
    }

    fn run(&mut self) -> Result<(), String> {
        let began = Instant::now();
        let (mut last, mut asked, mut events) = (began, began, self.mix.events.clone());
        self.answered = began;
        loop {
            std::thread::sleep(LOOK);
            let (now, passed) = (Instant::now(), last.elapsed());
            last = now;
            let at = began.elapsed().as_millis() as u64;
            self.start_due(at);
            while let Some(due) = events.iter().position(|(time, _)| *time <= at) {
                let (_, event) = events.remove(due);
                self.happen(event);
            }
            self.let_go_on(now);
            if now - asked >= ASK {
                asked = now;
                self.ask()?;
            }
            if at > self.mix.length {
                self.players.iter().flatten().for_each(|player| player.board.ask_to_end());
            }
            self.reap()?;
            if self.players.iter().all(|player| player.as_ref().is_some_and(|player| !player.is_there())) {
                return Ok(());
            }
            // Of a pause of the whole machine only a little counts.
            self.look(passed.min(5 * LOOK))?;
        }
    }

    fn start_due(&mut self, at: u64) {
        for index in 0..self.mix.jobs.len() {
            if self.players[index].is_none() && self.mix.jobs[index].start <= at {
                self.players[index] = Some(self.start(index));
            }
        }
    }

    fn start(&self, index: usize) -> Player {
        let (job, name) = (&self.mix.jobs[index], format!("job{index}"));
        let file = |suffix: &str| self.directory.join(format!("{name}.{suffix}"));
        let options = job.options(&name);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let mut command = self.manager.run(&options, self.program);
        command.arg(self.kernels).arg(file("board")).args(job.plan.to_string().split(' '));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(file("stderr")).unwrap());
        command.env("RUST_BACKTRACE", "0").process_group(0);
        if is_loud() {
            command.env("TIDEGATE_LOG", "debug");
        }
        let board = Board::open(&file("board")).unwrap();
        let marks = board.slots().map(|_| (0, Duration::ZERO)).collect();
        let child = command.spawn().unwrap();
        let ending = Duration::ZERO;
        Player {
            child,
            board,
            said: file("stderr"),
            marks,
            ending,
            end: None,
            was_killed: false,
            goes_on_at: None,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::KillJob(job) => {
                if let Some(player) = self.players[job].as_mut().filter(|player| player.is_there()) {
                    player.was_killed = true;
                    player.signal(Signal::KILL);
                }
            }
            Event::StopJob(job, time) => {
                if let Some(player) = self.players[job].as_mut().filter(|player| player.is_there()) {
                    player.signal(Signal::STOP);
                    player.goes_on_at = Some(Instant::now() + Duration::from_millis(time));
                }
            }
            Event::KillMover => self.kill_movers(),
            Event::KillManager => kill(self.manager.pid()),
            Event::Become(job) => self.become_without_a_manager(job),
            Event::KillBoth => {
                let manager = self.manager.pid();
                self.kill_movers();
                kill(manager);
            }
        }
    }

    /// Those that the manager has named, if it is there.
    fn kill_movers(&self) {
        let Ok(text) = std::fs::read(self.manager.socket().with_extension("will")) else { return };
        let Ok(will) = serde_json::from_slice::<serde_json::Value>(&text) else { return };
        for mover in will["movers"].as_array().into_iter().flatten() {
            if let Some(pid) = mover[1]["pid"].as_u64() {
                kill(pid as u32);
            }
        }
    }

    /// No other manager takes over before the job is another program, if it becomes one in time.
    fn become_without_a_manager(&self, job: usize) {
        let Some(player) =
            self.players[job].as_ref().filter(|player| player.has_begun() && player.is_there())
        else {
            return;
        };
        let manager = self.manager.pid();
        let Some(_nobody_rules) = without_successor(manager) else { return };
        kill(manager);
        player.board.ask_to_become();
        let began = Instant::now();
        while player.board.is_to_become() && began.elapsed() < BECOMES {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn let_go_on(&mut self, now: Instant) {
        for player in self.players.iter_mut().flatten() {
            if player.goes_on_at.is_some_and(|at| at <= now) {
                player.goes_on_at = None;
                player.signal(Signal::CONT);
            }
        }
    }

    fn ask(&mut self) -> Result<(), String> {
        match self.json().and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string())) {
            Ok(status) => (self.status, self.answered) = (Some(status), Instant::now()),
            Err(error) if self.answered.elapsed() > MUTE => {
                return Err(format!("the manager has not answered for {MUTE:?}: {error}"));
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// `tidegate status --json`.
    fn json(&self) -> Result<String, String> {
        let mut command = Command::new("timeout");
        command.arg(ANSWER.as_secs().to_string()).arg(tidegate()).args(["status", "--json", "--socket"]);
        command.arg(self.manager.socket()).env_remove("CARGO");
        let output = command.output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Takes note of programs that have ended. An error is none that the configuration justifies: those are
    /// refusals, which a program takes as a step.
    fn reap(&mut self) -> Result<(), String> {
        let lost_both = self.mix.events.iter().any(|(_, event)| *event == Event::KillBoth);
        for (index, player) in self.players.iter_mut().enumerate() {
            let Some(player) = player.as_mut().filter(|player| player.is_there()) else { continue };
            let Some(status) = player.child.try_wait().map_err(|error| error.to_string())? else { continue };
            player.end = Some(status);
            // What of it still lives has no part in the mix any more.
            player.signal(Signal::KILL);
            let said = read_to_string(&player.said).unwrap_or_default();
            let is_wrong = said.contains("wrong byte");
            // docs/death.md: a job that waits for that GPU ends with an error that says so.
            let is_told = lost_both && !is_wrong;
            if !status.success() && !player.was_killed && !is_told {
                let signal = status.signal();
                return Err(format!(
                    "job{index} ended with {status} (signal {signal:?}): {}",
                    tail(&said, 12)
                ));
            }
        }
        Ok(())
    }

    /// Looks at all boards after so much time has passed.
    fn look(&mut self, passed: Duration) -> Result<(), String> {
        let there: Vec<bool> =
            self.players.iter().map(|player| player.as_ref().is_some_and(Player::is_there)).collect();
        for index in 0..self.players.len() {
            if !there[index] || self.is_exempt(index, &there) {
                continue;
            }
            let bound = bound(self.mix, index, |job| there[job], self.status.as_ref());
            let Some(player) = self.players[index].as_mut() else { continue };
            let (slots, marks) = (player.board.slots(), &mut player.marks);
            let mut all_done = true;
            for (number, (slot, mark)) in slots.zip(marks.iter_mut()).enumerate() {
                let (steps, is_done) = (slot.get(Word::Steps), slot.get(Word::Done) == 1);
                let is_watched = number == 0 || slot.get(Word::Thread) != 0;
                if !is_watched || is_done {
                    continue;
                }
                all_done = false;
                *mark = if mark.0 == steps { (steps, mark.1 + passed) } else { (steps, Duration::ZERO) };
                if mark.1 > self.longest.time {
                    let (process, thread) = (number / SLOTS_PER_PROCESS, number % SLOTS_PER_PROCESS);
                    let told = format!(
                        "{:.1?} of {bound:.1?} (job{index}, process {process}, thread {thread}, in {})",
                        mark.1,
                        slot.action()
                    );
                    self.longest = Longest { time: mark.1, told };
                }
                if mark.1 > bound {
                    let (process, thread) = (number / SLOTS_PER_PROCESS, number % SLOTS_PER_PROCESS);
                    return Err(format!(
                        "job{index}, process {process}, thread {thread} has stood still for {:.1?}, bound {bound:.1?}, in {}",
                        mark.1,
                        slot.action()
                    ));
                }
            }
            player.ending = if all_done { player.ending + passed } else { Duration::ZERO };
            if player.ending > bound {
                return Err(format!("job{index} has not ended for {bound:.1?} after its last step"));
            }
        }
        Ok(())
    }

    /// See bound.rs.
    fn is_exempt(&self, index: usize, there: &[bool]) -> bool {
        let (job, player) = (&self.mix.jobs[index], self.players[index].as_ref());
        let mut others = (0..there.len()).filter(|other| *other != index && there[*other]);
        let is_stopped = player.is_some_and(|player| player.goes_on_at.is_some());
        if is_stopped {
            return true;
        }
        if self.is_queued(index) {
            return others.next().is_some();
        }
        others
            .filter(|other| !self.is_queued(*other))
            .any(|other| self.mix.jobs[other].priority > job.priority)
    }

    /// Is a job not admitted yet.
    fn is_queued(&self, index: usize) -> bool {
        let name = format!("job{index}");
        let known = self.status.iter().flat_map(|status| &status.jobs).find(|job| job.figures.name == name);
        let has_begun = self.players[index].as_ref().is_some_and(Player::has_begun);
        !has_begun && known.is_none_or(|job| job.state == "queued")
    }

    /// All that is known of a failure.
    fn describe(&self, failure: &str) -> String {
        let mut text = format!("seed {}: {failure}\n{}", self.mix.seed, self.mix);
        for (index, player) in self.players.iter().enumerate() {
            let Some(player) = player else {
                let _ = writeln!(text, "job{index} has not been started");
                continue;
            };
            let _ = writeln!(text, "job{index}: pid {}, end {:?}", player.child.id(), player.end);
            for (number, slot) in player.slots().into_iter().enumerate() {
                let (steps, action) = (slot.get(Word::Steps), slot.action());
                if steps == 0 && action == "not started" {
                    continue;
                }
                let (process, thread) = (number / SLOTS_PER_PROCESS, number % SLOTS_PER_PROCESS);
                let done = if slot.get(Word::Done) == 1 { ", done" } else { "" };
                let _ = writeln!(
                    text,
                    "  process {process} thread {thread} (tid {}): {steps} steps, in {action} for {:.1?}, has {} KiB, {} refusals{done}",
                    slot.get(Word::Thread),
                    player.marks[number].1,
                    slot.get(Word::Live) >> 10,
                    slot.get(Word::Refusals),
                );
            }
            let said = read_to_string(&player.said).unwrap_or_default();
            if !said.is_empty() {
                let _ = writeln!(text, "  said: {}", tail(&said, 8));
            }
        }
        let status = self.json().unwrap_or_else(|error| format!("no status: {error}"));
        let log = read_to_string(self.directory.join("manager.log")).unwrap_or_default();
        let _ = writeln!(text, "status: {}\nlog: {}", without_grants(&status), tail(&log, 15));
        if std::env::var_os("GDB").is_some() {
            let _ = writeln!(text, "{}", self.stacks());
        }
        let _ = writeln!(text, "again: tests/long/standstill 0 {}", self.mix.seed);
        text
    }

    /// The stacks of all programs that are there, of the manager, and of its movers.
    fn stacks(&self) -> String {
        let groups = self.players.iter().flatten().filter(|player| player.is_there());
        let groups: Vec<String> = groups.map(|player| player.child.id().to_string()).collect();
        let members = Command::new("pgrep").args(["-g", &groups.join(",")]).output();
        let members = members.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let mut all: Vec<String> = members.unwrap_or_default().lines().map(String::from).collect();
        all.push(self.manager.pid().to_string());
        let stack = |pid: &String| {
            let mut gdb = Command::new("timeout");
            gdb.args(["-s", "KILL", "20", "gdb", "-p", pid, "-batch", "-iex", "set debuginfod enabled off"]);
            gdb.args(["-ex", "thread apply all bt 14"]).stdin(Stdio::null()).stderr(Stdio::null());
            let output = gdb.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            format!("stacks of {pid}:\n{}", output.unwrap_or_default())
        };
        all.iter().map(stack).collect()
    }
}

fn is_loud() -> bool {
    std::env::var_os("LOUD").is_some()
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n        ")
}

/// The lists of grants are long, and tell little of a standstill.
fn without_grants(status: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(status) else { return status.into() };
    for list in ["jobs", "ended"] {
        for job in value[list].as_array_mut().into_iter().flatten() {
            if let Some(job) = job.as_object_mut() {
                job.remove("grants");
            }
        }
    }
    value.to_string()
}
