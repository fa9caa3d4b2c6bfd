//! However a process lives and ends (children, images, threads, signals, limits of its own making), it
//! does so under Tidegate as it does on the bare driver: the same words, the same end. And so it does
//! where another job has its memory meanwhile.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
mod support;

use c::Compiler;
use node::Node;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use support::patience::Lines;
use support::{Jobs, MIB, Manager, Probe};

/// Of the GPU, in bytes.
const MEMORY: u64 = 6 * MIB;
/// How often the other job uses its memory in a pause: it is busy until the life has lost its own.
const ROUNDS: u64 = 3;
const NEED: [&str; 2] = ["--need", "0,5MiB"];

/// The words of a life (tests/programs/life.h), and how it ended: a status, or a signal.
#[derive(Debug, PartialEq)]
struct Told {
    lines: Vec<String>,
    end: (Option<i32>, Option<i32>),
}

/// Where lives are lived.
struct Stage {
    manager: Manager,
    node: Node,
    program: PathBuf,
    /// What the other job takes: no life has room beside it.
    pressure: u64,
    _compiler: Compiler,
}

/// What another job does meanwhile.
#[derive(Clone, Copy, PartialEq)]
enum Other {
    Nothing,
    TakesTheMemory,
}

impl Stage {
    /// For the lives of `tests/programs/PROGRAM.c`, on a GPU with so much memory.
    fn of(program: &str, memory: u64) -> Self {
        let options =
            ["--unit", "64KiB", "--offset", "64KiB", "--slice", "1ms", "--boundary-deadline", "1ms"];
        let manager = Manager::start(&format!("1x{memory}"), &options);
        let node = Node::of(&manager);
        let compiler = Compiler::with(node.libraries());
        let program = compiler.compile(program);
        Self { manager, node, program, pressure: memory - MIB, _compiler: compiler }
    }

    /// The life is the same on the bare driver, under Tidegate, and where another job has its memory.
    fn is_lived_alike(&self, life: &[&str]) {
        let bare = self.bare(life);
        let under = [Other::Nothing, Other::TakesTheMemory].map(|other| self.under(life, other));
        for told in under {
            assert_eq!(told, bare, "{life:?}");
        }
    }

    fn bare(&self, life: &[&str]) -> Told {
        let mut command = self.node.run(&self.program);
        command.args(life);
        Life::start(command).play(|_| None)
    }

    fn under(&self, life: &[&str], other: Other) -> Told {
        let name = format!("{} {}", life.join(" "), other as u8);
        let mut command = self.manager.run(&["--name", &name, NEED[0], NEED[1]], &self.program);
        command.args(life);
        let told = Life::start(command).play(|word| match (word, other) {
            ("gone", _) => {
                self.manager.status_when(|status| status.has_ended(&name));
                None
            }
            ("pause", Other::TakesTheMemory) => {
                self.take_memory(&name);
                None
            }
            ("press", Other::TakesTheMemory) => Some(Press::start(self.other())),
            _ => None,
        });
        self.manager.status_when(|status| status.jobs.is_empty());
        told
    }

    /// Another job, with its memory filled: so nobody else is let through.
    fn other(&self) -> Probe {
        let mut other = self.manager.probe(&["--name", "other", "--priority", "1", NEED[0], NEED[1]]);
        other.tell("device 0");
        other.tell(&format!("alloc t {}", self.pressure));
        other.tell("fill t 0");
        other
    }

    fn take_memory(&self, name: &str) {
        let job = self.manager.job(name);
        assert!(job.persistent_bytes + job.temporary_bytes >= 2 * MIB, "it is not seen: {job:#?}");
        let mut other = self.other();
        for round in 0..ROUNDS {
            other.tell(&format!("fill t {round}"));
            other.tell(&format!("check t {round}"));
        }
        other.end();
        assert!(self.manager.job(name).figures.switches > job.figures.switches, "it kept its memory");
    }
}

/// Another job that goes on using the GPU until it is dropped.
struct Press {
    ends: Arc<AtomicBool>,
    job: Option<JoinHandle<()>>,
}

impl Press {
    fn start(mut other: Probe) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let told = ends.clone();
        let job = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                other.tell("fill t 1");
            }
            other.end();
        });
        Self { ends, job: Some(job) }
    }
}

impl Drop for Press {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.job.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the other job failed");
    }
}

/// A program of `tests/programs/life.h` that runs.
struct Life {
    process: Child,
    lines: Lines,
}

impl Life {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = Lines::of(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// Plays to its end, and does what it asks for.
    fn play(mut self, mut ask: impl FnMut(&str) -> Option<Press>) -> Told {
        let mut lines = Vec::new();
        let mut press = None;
        while let Some(line) = self.lines.next() {
            match line.as_str() {
                "pause" | "press" | "gone" => {
                    press = ask(&line);
                    self.answer();
                }
                "release" => press = None,
                _ => lines.push(line),
            }
        }
        drop(press);
        let status = self.process.wait().unwrap();
        Told { lines, end: (status.code(), status.signal()) }
    }

    fn answer(&mut self) {
        use std::io::Write;
        // Who has ended is asked nothing more.
        let _ = self.process.stdin.as_mut().unwrap().write_all(b"\n");
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_thousand_threads_use_cuda_at_once() {
    // Far fewer units than threads: each would have one of its own, if it asked by itself.
    Stage::of("threads", 8 * MIB).is_lived_alike(&["thousand"]);
}

/// Nothing is asked of them while nobody else wants their memory.
#[test]
fn who_is_alone_may_be_without_descriptors() {
    let stage = Stage::of("limits", MEMORY);
    for life in ["few-descriptors", "close-after"] {
        assert_eq!(stage.under(&[life], Other::Nothing), stage.bare(&[life]), "{life}");
    }
}

/// It goes on with what it has, or has an error; the files that it opens at our numbers are its own; and
/// another job has its turn when it has ended.
#[test]
fn who_closes_all_descriptors_hurts_nobody() {
    let stage = Stage::of("limits", MEMORY);
    let mut command = stage.manager.run(&["--name", "closes", NEED[0], NEED[1]], &stage.program);
    command.arg("close-after");
    let mut other = None;
    let told = Life::start(command).play(|_| {
        let waiting =
            other.insert(stage.manager.probe(&["--name", "other", "--priority", "1", NEED[0], NEED[1]]));
        ["device 0", &format!("alloc t {}", stage.pressure), "fill t 0"]
            .iter()
            .for_each(|line| waiting.order(line));
        stage.manager.status_when(|status| {
            status.jobs.iter().any(|job| !job.pids.is_empty() && job.figures.name == "other")
        });
        None
    });
    assert!(told.lines.iter().any(|line| line == "0 of its files were touched"), "{told:#?}");
    assert!(told.lines.iter().all(|line| !line.starts_with("byte ")), "{told:#?}");
    assert_eq!(told.end, (Some(0), None), "{told:#?}");
    let mut other = other.unwrap();
    (0..3).for_each(|_| drop(other.answer().unwrap()));
    other.tell("check t 0");
    other.end();
}

/// One test for each life, so that each fails by its name.
macro_rules! lives {
    ($( $program:literal: $( $test:ident $life:expr; )* )*) => { $( $(
        #[test]
        fn $test() {
            Stage::of($program, MEMORY).is_lived_alike(&$life);
        }
    )* )* };
}

lives! {
    "processes":
    a_program_alone ["alone"];
    a_child_made_before_cuda_has_a_session_of_its_own ["fork-before"];
    a_child_made_after_cuda_has_none_and_its_parent_goes_on ["fork-after"];
    a_child_that_exits_disturbs_nobody ["fork-after-and-exit"];
    a_child_that_becomes_a_program_has_cuda ["fork-and-exec"];
    a_childs_child_has_none_either ["fork-twice"];
    a_child_is_made_while_other_threads_are_busy ["fork-busy"];
    another_image_begins_anew ["exec"];
    many_images_follow_each_other ["exec-often"];
    a_child_by_vfork_has_cuda ["vfork"];
    a_child_by_spawn_has_cuda ["spawn"];
    a_daemon_outlives_its_parents ["daemon"];

    "threads":
    a_thread_exits_after_calls ["pthread-exit"];
    a_process_outlives_its_main_thread ["main-ends"];
    what_is_local_to_a_thread_may_call_at_its_end ["destructors"];
    a_thread_that_waits_may_be_cancelled ["cancelled"];
    signals_are_handled_while_a_submission_waits ["gate"];
    signals_that_restart_are_handled_while_a_copy_waits ["restart"];
    signals_are_handled_while_an_allocation_waits ["allocation"];
    signals_are_handled_while_the_first_context_waits ["first-context"];
    a_timer_disturbs_nothing ["timer"];
    who_waits_is_terminated_at_once ["killed", "15"];
    who_waits_is_interrupted_at_once ["killed", "2"];

    "ends":
    a_handler_set_before_cuda_calls_at_exit ["atexit-before"];
    a_handler_set_after_cuda_calls_at_exit ["atexit-after"];
    a_static_destructor_calls_at_exit ["destructor"];
    a_quick_exit_calls_too ["quick-exit"];
    a_process_exits_while_threads_are_inside ["exit-busy"];
    the_driver_may_be_closed_and_opened_again ["reopen"];

    "limits":
    descriptors_are_closed_before_cuda ["close-before"];
    a_child_closes_all_descriptors ["close-after-fork"];
    barriers_are_unknown_to_the_sandbox ["no-membarrier"];
    barriers_are_forbidden ["membarrier-forbidden"];
    barriers_are_forbidden_later ["membarrier-forbidden-later"];
}
