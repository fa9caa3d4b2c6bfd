//! Memory outside of pieces: a call that finds none asks the manager for room and is made again,
//! as long as there can be more room.

use crate::calls;
use crate::guest::{Guest, Line};
use crate::manager::Manager;
use crate::stage::{MEMORY, UNIT};
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::time::Duration;
use tidegate_ffi::cuda::functions::Kind;
use tidegate_ffi::cuda::{Driver, DriverError};
use tidegate_ffi::units::{Class, GpuUuid, PieceId, Step, Units};
use tidegate_ffi::wire::message::{FromShim, Placed, ToShim};

/// The ways to make a context.
const CREATIONS: [&str; 4] =
    ["cuDevicePrimaryCtxRetain", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4"];
const FULL: &str = "CUDA_ERROR_OUT_OF_MEMORY";
/// What contexts and modules take, in units.
const TAKEN: u32 = 16;

/// Asked of a guest: makes a context, which is then the current one.
pub fn create(driver: &Driver, way: &str, device: c_int) -> Result<(), DriverError> {
    let (mut context, none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    macro_rules! make {
        ($name:ident($($argument:expr),*)) => {
            // SAFETY: the result goes to our own variable, and nothing optional is passed.
            unsafe { driver.$name(&mut context, $($argument),*) }
        };
    }
    match way {
        "cuDevicePrimaryCtxRetain" => make!(cuDevicePrimaryCtxRetain(device)),
        "cuCtxCreate_v2" => make!(cuCtxCreate_v2(0, device)),
        "cuCtxCreate_v3" => make!(cuCtxCreate_v3(none, 0, 0, device)),
        "cuCtxCreate_v4" => make!(cuCtxCreate_v4(nothing, 0, device)),
        other => panic!("no way {other}"),
    }?;
    // SAFETY: a context that was just made.
    unsafe { driver.cuCtxSetCurrent(context) }
}

/// Asked of a guest: loads a module.
pub fn load(driver: &Driver) -> Result<(), DriverError> {
    let (mut module, image) = (std::ptr::null_mut(), c".version 8.0 .target sm_90".as_ptr());
    // SAFETY: the result goes to our own variable; the image is a text with its end.
    unsafe { driver.cuModuleLoadData(&mut module, image.cast::<c_void>()) }
}

/// A manager on a GPU with these settings. The driver reads them when the manager starts.
pub fn manager_with(settings: &str) -> Manager {
    let node = std::env::var_os("TIDEGATE_SOFTGPU").unwrap();
    let path = std::path::Path::new(&node).join("gpus.toml");
    let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    writeln!(file, "{settings}").unwrap();
    Manager::start()
}

fn taking_manager() -> Manager {
    let bytes = u64::from(TAKEN) * UNIT;
    manager_with(&format!("context_bytes = {bytes}\nmodule_bytes = {bytes}"))
}

/// Takes all memory of the GPU but what the manager's context has and `rest` units: the last of it
/// in a piece of its own.
fn fill_up(manager: &mut Manager, rest: u32) -> Placed {
    let units = (MEMORY / UNIT) as u32 - TAKEN - rest;
    manager.make(Class::Temporary, 0, units - TAKEN);
    manager.make(Class::Temporary, units - TAKEN, TAKEN)
}

/// The guest asks for room on a GPU, for the first time in this call.
fn hear_make_room(manager: &Manager, gpu: u8) -> Step {
    hear_make_room_for(manager, gpu, 1)
}

fn hear_make_room_for(manager: &Manager, gpu: u8, wanted: u32) -> Step {
    let message = manager.hear();
    let FromShim::MakeRoom { step, gpu: GpuUuid(uuid), units } = message else { panic!("{message:?}") };
    assert_eq!(uuid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, gpu]);
    assert_eq!(units, Units(wanted));
    step
}

/// The guest asks for room and waits; when a piece is destroyed for it, its call succeeds.
fn room_helps(manager: &mut Manager, line: &mut Line, piece: PieceId) {
    let step = hear_make_room(manager, 1);
    assert!(line.is_silent(), "it did not wait for room");
    manager.destroy(piece);
    manager.send(ToShim::Room { step, more: false }, &[]);
    assert_eq!(line.hear(), "ok");
    assert!(is_silent(manager));
}

/// The guest asks for room on a GPU, and is told that this is all.
fn give_room(manager: &Manager, gpu: u8) {
    let step = hear_make_room(manager, gpu);
    manager.send(ToShim::Room { step, more: false }, &[]);
}

/// The guest asks for nothing.
fn is_silent(manager: &Manager) -> bool {
    !manager.hears_within(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 30_000_000 })
}

/// Starts a guest in which calls of `functions` find no memory: the first, the third and the
/// fourth call of each.
fn short_guest(manager: &mut Manager, functions: &[&str]) -> (Guest, Line) {
    guest_short_at(&[1, 3, 4], manager, functions)
}

fn guest_short_at(calls: &[u32], manager: &mut Manager, functions: &[&str]) -> (Guest, Line) {
    let fault = |name: &&str, nth: &u32| format!("{name}@{nth}=OUT_OF_MEMORY");
    let faults = functions.iter().flat_map(|name| calls.iter().map(move |nth| fault(name, nth)));
    let faults = faults.collect::<Vec<_>>().join(",");
    let guest = manager.guest(&[("TIDEGATE_SOFTGPU_FAULTS", &faults)]);
    let mut line = guest.line();
    line.tell("init");
    manager.welcome(false);
    assert_eq!(line.hear(), "ok");
    (guest, line)
}

promise! {
    fn a_context_that_finds_no_memory_is_made_when_room_is_made() {
        let mut manager = taking_manager();
        let last = fill_up(&mut manager, 0);
        let guest = manager.guest(&[]);
        let mut line = guest.line();
        line.tell("init");
        manager.welcome(false);
        assert_eq!(line.hear(), "ok");
        line.tell("context");
        manager.attach();
        room_helps(&mut manager, &mut line, last.piece);
        assert!(guest.end().is_empty(), "it said something");
    }
}

promise! {
    fn a_module_that_finds_no_memory_is_loaded_when_room_is_made() {
        let mut manager = taking_manager();
        let last = fill_up(&mut manager, TAKEN);
        let (guest, mut line) = manager.guest_with_context();
        line.tell("load");
        room_helps(&mut manager, &mut line, last.piece);
        guest.end();
    }
}

promise! {
    fn without_room_a_context_and_a_module_are_out_of_memory_and_can_be_tried_again() {
        let mut manager = taking_manager();
        let last = fill_up(&mut manager, TAKEN);
        let (guest, mut line) = manager.guest_with_context();
        for order in ["load", "create cuCtxCreate_v4 0", "load"] {
            line.tell(order);
            give_room(&manager, 1);
            assert_eq!(line.hear(), FULL, "{order}");
            assert!(is_silent(&manager), "{order}");
        }
        manager.destroy(last.piece);
        assert_eq!(line.ask("load"), "ok");
        guest.end();
    }
}

promise! {
    fn a_call_asks_for_more_as_long_as_there_can_be_more() {
        let mut manager = Manager::start();
        let (guest, mut line) = guest_short_at(&[1, 2, 3, 4], &mut manager, &["cuModuleLoadData"]);
        line.tell("context");
        manager.attach();
        assert_eq!(line.hear(), "ok");
        line.tell("load");
        for (wanted, more) in [(1, true), (2, true), (4, false)] {
            let step = hear_make_room_for(&manager, 1, wanted);
            manager.send(ToShim::Room { step, more }, &[]);
        }
        assert_eq!(line.hear(), FULL, "the fourth call's answer");
        assert_eq!(line.ask("load"), "ok");
        assert!(is_silent(&manager));
        guest.end();
    }
}

promise! {
    fn every_call_that_takes_memory_asks_for_room_and_is_made_again() {
        let mut manager = Manager::start();
        let managed = ["cuMemAllocManaged", "cuLibraryGetManaged"];
        let counted: Vec<&str> = calls::of_kind(Kind::Counted).chain(managed).collect();
        let (guest, mut line) = short_guest(&mut manager, &counted);
        line.tell("context");
        manager.attach();
        assert_eq!(line.hear(), "ok");
        for name in counted {
            line.tell(&format!("call {name}"));
            give_room(&manager, 1);
            assert_ne!(line.hear(), FULL, "{name} was not made once more");
            line.tell(&format!("call {name}"));
            give_room(&manager, 1);
            assert_eq!(line.hear(), FULL, "{name} was made more often");
            assert_ne!(line.ask(&format!("call {name}")), FULL, "{name}");
        }
        assert!(is_silent(&manager));
        guest.end();
    }
}

promise! {
    fn every_way_to_make_a_context_asks_once_and_is_made_once_more() {
        let mut manager = Manager::start();
        let (guest, mut line) = short_guest(&mut manager, &CREATIONS);
        for (number, way) in CREATIONS.iter().enumerate() {
            line.tell(&format!("create {way} 0"));
            if number == 0 {
                manager.attach();
            }
            give_room(&manager, 1);
            assert_eq!(line.hear(), "ok", "{way} was not made once more");
            line.tell(&format!("create {way} 0"));
            give_room(&manager, 1);
            assert_eq!(line.hear(), FULL, "{way} was made more often");
        }
        guest.end();
    }
}

promise! {
    fn room_is_asked_for_on_the_gpu_where_it_is_short() {
        let mut manager = manager_with(&format!(
            "[[gpu]]\nuuid = \"GPU-00000000-0000-0000-0000-000000000002\"\nmemory = {MEMORY}\ngranularity = {UNIT}"
        ));
        let (guest, mut line) = short_guest(&mut manager, &["cuCtxCreate_v2", "cuModuleLoadData"]);
        line.tell("context");
        manager.attach();
        assert_eq!(line.hear(), "ok");
        line.tell("create cuCtxCreate_v2 1");
        manager.attach();
        give_room(&manager, 2);
        assert_eq!(line.hear(), "ok");
        line.tell("load");
        give_room(&manager, 2);
        assert_eq!(line.hear(), "ok");
        assert_eq!(line.ask("context"), "ok");
        line.tell("load");
        give_room(&manager, 1);
        assert_eq!(line.hear(), FULL);
        guest.end();
    }
}

promise! {
    fn a_program_that_waits_for_room_can_be_stopped() {
        let mut manager = Manager::start();
        let (guest, mut line) = short_guest(&mut manager, &["cuModuleLoadData"]);
        line.tell("context");
        manager.attach();
        assert_eq!(line.hear(), "ok");
        line.tell("load");
        let step = hear_make_room(&manager, 1);
        let (drained, _) = manager.close(0, 0);
        assert_eq!(drained.outstanding, [], "only leases are answered anew");
        assert!(line.is_silent());
        manager.send(ToShim::Room { step, more: false }, &[]);
        assert_eq!(line.hear(), "ok");
        manager.open();
        guest.end();
    }
}

promise! {
    fn without_a_manager_the_first_answer_counts() {
        let mut manager = Manager::start();
        let (guest, mut line) = short_guest(&mut manager, &["cuModuleLoadData", "cuModuleLoad"]);
        line.tell("context");
        manager.attach();
        assert_eq!(line.hear(), "ok");
        line.tell("load");
        hear_make_room(&manager, 1);
        manager.die();
        assert_eq!(line.hear(), FULL);
        // The second call of that function finds memory, the first of the other does not.
        assert_eq!(line.ask("load"), "ok");
        assert_eq!(line.ask("call cuModuleLoad"), FULL);
        guest.end();

        let manager = Manager::start();
        let faults = [("TIDEGATE_SOFTGPU_FAULTS", "cuModuleLoadData@1=OUT_OF_MEMORY")];
        let guest = manager.guest(&[faults[0], ("TIDEGATE_SOCKET", "/nowhere/socket")]);
        let mut line = guest.line();
        assert_eq!(line.ask("init"), "ok");
        assert_eq!(line.ask("context"), "ok");
        assert_eq!(line.ask("load"), FULL);
        assert_eq!(line.ask("load"), "ok");
        assert!(!line.answers_within(Duration::from_millis(1)));
        guest.end();
    }
}
