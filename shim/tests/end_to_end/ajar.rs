//! Memory that comes back piece by piece, and work that says what it uses.

use crate::guest::{Guest, Line, own};
use crate::manager::{Manager, PATIENCE_MS, TENANT};
use crate::stage::{self, UNIT};
use std::ffi::{CStr, c_int};
use std::path::Path;
use std::process::Command;
use std::ptr::{null_mut, with_exposed_provenance_mut, without_provenance_mut};
use tidegate_ffi::cuda::sys::CUlaunchConfig;
use tidegate_ffi::cuda::{Driver, DriverError};
use tidegate_ffi::units::*;
use tidegate_ffi::wire::message::*;

/// What a call answers whose work touches what is not mapped.
const FAULT: &str = "CUDA_ERROR_ILLEGAL_ADDRESS";
const FAULT_OF_COPY: &str = "CUDA_ERROR_LAUNCH_FAILED";
/// What a call answers in a process whose memory is lost.
const LOST: &str = "CUDA_ERROR_SYSTEM_NOT_READY";

/// The kernel that the software GPU has.
const KERNEL: &CStr = c"tidegate_copy_ranges";

/// Runs a driver call of the guest.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),*)) => {
        // SAFETY: the results go to the guest's own variables; addresses are what a test wants the driver to see.
        unsafe { $driver.$name($($argument),*) }
    };
}

/// `tidegate_tensor` of tidegate.h.
#[repr(C)]
struct Tensor {
    address: u64,
    element: u64,
    rank: u64,
    sizes: [i64; 8],
    strides: [i64; 8],
}

impl Tensor {
    /// Rows of so many bytes.
    fn rows(address: u64, rows: u64, pitch: u64, bytes: u64) -> Self {
        let (mut sizes, mut strides) = ([0; 8], [0; 8]);
        (sizes[0], strides[0]) = (rows as i64, pitch as i64);
        (sizes[1], strides[1]) = (bytes as i64, 1);
        Self { address, element: 1, rank: 2, sizes, strides }
    }
}

/// Asked of a guest: what the others do not know.
pub fn carry_out(driver: &Driver, words: &[&str], numbers: &[u64]) -> Result<String, DriverError> {
    let mut described = 0;
    let mut describe = |tensors: &[Tensor]| {
        own("tidegate_operands_push", |push: unsafe extern "C" fn(*const Tensor, usize) -> c_int| {
            // SAFETY: a slice of that length.
            described = unsafe { push(tensors.as_ptr(), tensors.len()) };
        });
    };
    match (words[0], numbers) {
        ("kernel", []) => return kernel(driver),
        ("list", [address, to, from, bytes]) => {
            let list = [*to, *from, *bytes];
            call!(driver, cuMemcpyHtoD_v2(*address, list.as_ptr().cast(), size_of_val(&list)))?;
        }
        ("launch", [function, list, count]) => launch(driver, words[1], *function, *list, *count as u32)?,
        ("describe", []) => describe(&[]),
        ("describe", [address, bytes]) => describe(&[Tensor::rows(*address, 1, 0, *bytes)]),
        ("describe", [address, rows, pitch, bytes]) => {
            describe(&[Tensor::rows(*address, *rows, *pitch, *bytes)]);
        }
        ("describe-nothing-that-can-be", []) => describe(&[Tensor { rank: 9, ..Tensor::rows(0, 1, 0, 1) }]),
        ("describe-no-more", []) => own("tidegate_operands_pop", |pop: extern "C" fn()| pop()),
        _ => panic!("the guest does not know {words:?}"),
    }
    Ok(if described == 0 { "ok" } else { "none" }.into())
}

/// A kernel that copies what a list in the GPU's memory says.
fn kernel(driver: &Driver) -> Result<String, DriverError> {
    let (mut module, mut function, image) = (null_mut(), null_mut(), c".version 8.0 .target sm_90");
    call!(driver, cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
    call!(driver, cuModuleGetFunction(&mut function, module, KERNEL.as_ptr()))?;
    Ok(function.expose_provenance().to_string())
}

/// Launches it one way, and waits for it.
fn launch(driver: &Driver, way: &str, function: u64, list: u64, count: u32) -> Result<(), DriverError> {
    /// As the driver wants parameters in a buffer: the address, the number, and what fills a word.
    #[repr(C)]
    struct Packed(u64, u32, u32);
    let (function, stream, none) = (with_exposed_provenance_mut(function as usize), null_mut(), null_mut());
    let mut each = [(&raw const list).cast_mut().cast(), (&raw const count).cast_mut().cast()];
    let (each, packed) = (each.as_mut_ptr(), Packed(list, count, 0));
    let mut bytes = size_of::<Packed>();
    let (buffer, size) = ((&raw const packed).cast_mut().cast(), (&raw mut bytes).cast());
    let mut extra = [without_provenance_mut(1), buffer, without_provenance_mut(2), size, null_mut()];
    // SAFETY: plain C data, for which zero is a value.
    let mut config: CUlaunchConfig = unsafe { std::mem::zeroed() };
    (config.gridDimX, config.gridDimY, config.gridDimZ) = (1, 1, 1);
    (config.blockDimX, config.blockDimY, config.blockDimZ) = (1, 1, 1);
    match way {
        "plain" => call!(driver, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, each, none))?,
        "per-thread" => {
            call!(driver, cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, stream, each, none))?;
        }
        "configured" => call!(driver, cuLaunchKernelEx(&config, function, each, none))?,
        "cooperative" => {
            call!(driver, cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, each))?;
        }
        "packed" => {
            let extra = extra.as_mut_ptr();
            call!(driver, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, none, extra))?;
        }
        other => panic!("no way {other}"),
    }
    call!(driver, cuCtxSynchronize())
}

/// A guest with so many allocations of a unit, each in a piece of its own, filled with 1, 2, …
struct Filled {
    manager: Manager,
    guest: Guest,
    line: Line,
    address: u64,
    pieces: Vec<Placed>,
}

impl Filled {
    fn units(count: u32) -> Self {
        Self::under(&[], count)
    }

    fn under(environment: &[(&str, &str)], count: u32) -> Self {
        let mut manager = Manager::start();
        let (guest, line) = manager.guest_with_context_and(environment);
        let mut filled = Self { manager, guest, line, address: 0, pieces: Vec::new() };
        (0..count).for_each(|index| filled.allocate(index));
        filled
    }

    fn allocate(&mut self, index: u32) {
        self.line.tell(&format!("allocate {UNIT}"));
        let lease = self.manager.hear_lease();
        assert_eq!((lease.first, lease.units), (SlotIndex(index), Units(1)));
        self.pieces.push(self.manager.grant(&lease));
        let address: u64 = self.line.hear().parse().unwrap();
        self.address = if index == 0 { address } else { self.address };
        assert_eq!(address, self.of(index));
        let order = self.order("fill", index, u64::from(index) + 1);
        assert_eq!(self.line.ask(&order), "ok");
    }

    fn of(&self, index: u32) -> u64 {
        self.address + u64::from(index) * UNIT
    }

    fn order(&self, name: &str, index: u32, value: u64) -> String {
        format!("{name} {} {UNIT} {value}", self.of(index))
    }

    fn read(&self, index: u32) -> String {
        format!("read {} {UNIT}", self.of(index))
    }

    /// Another thread, which describes so that it uses one unit.
    fn line_that_uses(&self, index: u32) -> Line {
        self.line_that(&format!("describe {} {UNIT}", self.of(index)))
    }

    fn line_that(&self, describes: &str) -> Line {
        let mut line = self.line();
        assert_eq!(line.ask(describes), "ok");
        line
    }

    fn line(&self) -> Line {
        let mut line = self.guest.line();
        assert_eq!(line.ask("context"), "ok");
        line
    }

    /// The job is stopped and all of its memory taken away: pieces with its bytes, to be given back.
    fn stop(&mut self) -> Vec<Placed> {
        self.hear_uses();
        let old = std::mem::take(&mut self.pieces);
        self.manager.unmap(&old);
        let renewed = old.iter().map(|old| {
            let bytes = self.manager.load(old.piece);
            self.manager.destroy(old.piece);
            let new = self.manager.make(old.class, old.slot.0, old.units.0);
            self.manager.store(new.piece, &bytes);
            new
        });
        self.pieces = renewed.collect();
        self.pieces.clone()
    }

    /// Closes the gate: what is said of uses before.
    fn hear_uses(&mut self) -> Vec<(u32, u32)> {
        self.manager.ask_to_close(0, 0);
        self.hear_uses_and_drained().0
    }

    fn hear_uses_and_drained(&self) -> (Vec<(u32, u32)>, Drained) {
        let mut uses = Vec::new();
        loop {
            match self.manager.hear_or_drained() {
                Ok((drained, _)) => return (uses, drained),
                Err(FromShim::Used { tenant: TENANT, slots }) if uses.is_empty() => {
                    assert!(slots.iter().all(|run| run.class == Class::Temporary));
                    uses = slots.iter().map(|run| (run.first.0, run.units.0)).collect();
                }
                Err(FromShim::Waiting) => {}
                Err(message) => panic!("{message:?}"),
            }
        }
    }

    fn ajar(&self) {
        self.manager.send(ToShim::Ajar, &[]);
    }
}

promise! {
    fn work_that_says_what_it_uses_goes_as_soon_as_that_is_there() {
        let mut job = Filled::units(2);
        let (mut first, mut second) = (job.line_that_uses(0), job.line_that_uses(1));
        let (mut silent, mut other) = (job.line(), job.line());
        assert_eq!(silent.ask("describe-nothing-that-can-be"), "none");
        let pieces = job.stop();
        job.manager.map(&pieces[..1]);
        job.ajar();

        assert_eq!(first.ask(&job.order("fill", 0, 7)), "ok");
        assert_eq!(first.ask(&job.read(0)), "7 7");
        second.tell(&job.order("fill", 1, 8));
        assert_eq!(job.manager.hear(), FromShim::Waiting);
        silent.tell(&job.order("fill", 0, 9));
        other.tell("allocate 100");
        assert!(second.is_silent(), "its memory is not there");
        assert!(silent.is_silent(), "nobody knows what it uses");
        assert!(other.is_silent(), "it would use what comes back");
        job.manager.wait_for_gate(2);

        job.manager.map(&pieces[1..]);
        assert_eq!(second.hear(), "ok");
        assert_eq!(second.ask(&job.read(1)), "8 8");
        assert!(silent.is_silent() && other.is_silent(), "the gate is not open");

        job.manager.open();
        assert_eq!(silent.hear(), "ok");
        let lease = job.manager.hear_lease();
        job.manager.grant(&lease);
        assert_ne!(other.hear(), "");
        job.manager.wait_for_gate(0);
        assert_eq!((job.line.ask(&job.read(0)), job.line.ask(&job.read(1))), ("9 9".into(), "8 8".into()));
        job.guest.end();
    }
}

promise! {
    fn a_wrong_description_faults_and_reads_nothing() {
        for reads in [true, false] {
            let mut job = Filled::units(2);
            let mut wrong = job.line_that_uses(0);
            let pieces = job.stop();
            job.manager.map(&pieces[..1]);
            job.ajar();
            let order = if reads { job.read(1) } else { job.order("fill", 1, 9) };
            assert_eq!(wrong.ask(&order), if reads { FAULT_OF_COPY } else { FAULT });
            assert!(job.manager.load(pieces[1].piece).iter().all(|byte| *byte == 2), "it was written");
            job.guest.end();
            job.manager.destroy_all();
        }
    }
}

promise! {
    fn memory_in_the_gaps_of_a_tensor_is_not_waited_for() {
        let mut job = Filled::units(3);
        let rows = format!("describe {} 2 {} {UNIT}", job.address, 2 * UNIT);
        let (mut column, mut whole) = (job.line_that(&rows), job.line_that(&format!("describe {} {}", job.address, 3 * UNIT)));
        let pieces = job.stop();
        job.manager.map(&[pieces[0], pieces[2]]);
        job.ajar();
        assert_eq!(column.ask(&job.read(0)), "1 1");
        assert_eq!(column.ask(&job.order("fill", 2, 7)), "ok");
        whole.tell(&job.read(2));
        assert!(whole.is_silent(), "a slot of it is not there");
        job.manager.map(&pieces[1..2]);
        assert_eq!(whole.hear(), "7 7");
        job.manager.open();
        assert_eq!(whole.ask(&job.read(1)), "2 2");
        job.guest.end();
    }
}

promise! {
    fn the_innermost_description_decides_and_memory_of_others_is_always_there() {
        let mut job = Filled::units(2);
        let mut line = job.line_that_uses(1);
        let pieces = job.stop();
        job.manager.map(&pieces[..1]);
        job.ajar();
        assert_eq!(line.ask(&format!("describe {} {UNIT}", job.of(0))), "ok");
        assert_eq!(line.ask(&job.read(0)), "1 1");
        assert_eq!(line.ask("describe"), "ok");
        assert_eq!(line.ask(&job.read(0)), "1 1", "it says that it uses nothing, which is enough");
        assert_eq!(line.ask("describe 4096 4096"), "ok");
        assert_eq!(line.ask(&job.read(0)), "1 1", "none of ours");
        (0..3).for_each(|_| assert_eq!(line.ask("describe-no-more"), "ok"));
        line.tell(&job.read(1));
        assert!(line.is_silent(), "its memory is not there");
        job.manager.map(&pieces[1..]);
        assert_eq!(line.hear(), "2 2");
        job.manager.open();
        job.guest.end();
    }
}

promise! {
    fn who_waits_at_a_boundary_goes_on_as_soon_as_any_work_may() {
        let mut job = Filled::units(2);
        job.line.tell("boundary");
        assert_eq!(job.line.hear(), "ok");
        let mut line = job.line_that_uses(0);
        job.manager.ask_to_close(0, PATIENCE_MS);
        job.manager.wait_for_gate(1);
        while !job.guest.gate_thread_sleeps() {
            std::thread::yield_now();
        }
        line.tell("boundary");
        let (uses, drained) = job.hear_uses_and_drained();
        assert_eq!((uses, drained.at_boundary), (vec![(0, 1)], true));
        job.manager.unmap(&job.pieces[1..]);
        assert!(line.is_silent());
        job.ajar();
        assert_eq!(line.hear(), "ok");
        assert_eq!(line.ask(&job.read(0)), "1 1");
        job.manager.map(&job.pieces[1..]);
        job.manager.open();
        assert_eq!(job.line.ask(&job.read(1)), "2 2");
        job.guest.end();
    }
}

promise! {
    fn the_order_of_first_use_is_told_before_the_job_is_drained() {
        let mut job = Filled::units(4);
        let mut line = job.line_that_uses(2);
        job.line_that(&format!("describe {} {}", job.of(0), 2 * UNIT));
        job.line_that_uses(2);
        assert_eq!(job.hear_uses(), [(2, 1), (0, 2)]);
        job.ajar();
        assert_eq!(line.ask(&format!("describe {} {}", job.of(3), UNIT)), "ok");
        job.manager.open();
        assert_eq!(line.ask(&format!("describe {} {}", job.of(1), UNIT)), "ok");
        assert_eq!(job.hear_uses(), [(3, 1), (1, 2), (0, 1)], "what earlier slices used comes behind");
        job.manager.open();
        assert_eq!(job.hear_uses(), [], "nothing was used: it is as was said");
        job.manager.open();
        job.guest.end();
    }
}

/// A guest whose kernel is listed, with a list in each of two units that copies within that unit.
fn with_listed_kernel(lists: &str) -> (Filled, String) {
    let mut job = Filled::under(&[("TIDEGATE_DESCRIBED_KERNELS", lists)], 2);
    for unit in 0..2 {
        let (start, from) = (job.of(unit), job.of(unit) + 4096);
        assert_eq!(job.line.ask(&format!("list {start} {} {from} 512", from + 4096)), "ok");
        assert_eq!(job.line.ask(&format!("fill {from} 512 {}", unit + 50)), "ok");
    }
    let kernel = job.line.ask("kernel");
    (job, kernel)
}

promise! {
    fn a_listed_kernel_goes_as_soon_as_the_memory_behind_its_parameters_is_there() {
        let (mut job, kernel) = with_listed_kernel("another, tidegate_copy_ranges");
        let (mut first, mut second) = (job.line(), job.line());
        let pieces = job.stop();
        job.manager.map(&pieces[..1]);
        job.ajar();
        for way in ["plain", "per-thread", "configured", "cooperative"] {
            assert_eq!(first.ask(&format!("launch {way} {kernel} {} 1", job.of(0))), "ok", "{way}");
        }
        second.tell(&format!("launch plain {kernel} {} 0", job.of(1) + 512));
        let mut others = [job.line(), job.line()];
        others[0].tell(&format!("launch packed {kernel} {} 1", job.of(0)));
        others[1].tell(&format!("launch plain {kernel} {} 0", job.of(2)));
        assert!(second.is_silent(), "the allocation is not there");
        job.manager.map(&pieces[1..]);
        assert_eq!(second.hear(), "ok");
        assert!(others[0].is_silent(), "its parameters are in a buffer");
        assert!(others[1].is_silent(), "nothing is allocated where it points to");
        job.manager.open();
        others.iter_mut().for_each(|line| assert_eq!(line.hear(), "ok"));
        assert_eq!(job.line.ask(&format!("read {} 512", job.of(0) + 8192)), "50 50");
        job.guest.end();
    }
}

promise! {
    fn a_listed_kernel_waits_for_whole_allocations_and_for_all_where_there_is_none() {
        let (mut job, kernel) = with_listed_kernel("tidegate_copy_ranges");
        job.line.tell(&format!("allocate {}", 2 * UNIT));
        let lease = job.manager.hear_lease();
        let halves = [0, 1].map(|half| job.manager.make(lease.class, lease.first.0 + half, 1));
        job.manager.give(&lease, halves.to_vec(), false);
        let large = job.line.hear();
        let (_, freed) = job.manager.allocate(&mut job.line, 1000);
        assert_eq!(job.line.ask(&format!("free {freed}")), "ok");
        let (mut first, mut second) = (job.line(), job.line());
        job.hear_uses();
        job.manager.unmap(&halves[1..]);
        job.ajar();
        first.tell(&format!("launch plain {kernel} {large} 0"));
        second.tell(&format!("launch plain {kernel} {freed} 0"));
        assert!(first.is_silent(), "a part of the allocation is not there");
        assert!(second.is_silent(), "nothing is allocated where it points to");
        job.manager.map(&halves[1..]);
        assert_eq!(first.hear(), "ok");
        assert!(second.is_silent(), "nothing is allocated where it points to");
        job.manager.open();
        assert_eq!(second.hear(), "ok");
        job.guest.end();
    }
}

promise! {
    fn a_kernel_that_is_not_listed_waits_for_all() {
        let (mut job, kernel) = with_listed_kernel("tidegate_copy");
        let mut line = job.line();
        let pieces = job.stop();
        job.manager.map(&pieces[..1]);
        job.ajar();
        line.tell(&format!("launch plain {kernel} {} 1", job.of(0)));
        assert!(line.is_silent());
        job.manager.map(&pieces[1..]);
        job.manager.open();
        assert_eq!(line.hear(), "ok");
        job.guest.end();
    }
}

promise! {
    fn a_kernel_that_is_listed_wrongly_faults() {
        let (mut job, kernel) = with_listed_kernel("tidegate_copy_ranges");
        let order = format!("list {} {} {} 512", job.of(0), job.of(0) + 4096, job.of(1));
        assert_eq!(job.line.ask(&order), "ok");
        let mut line = job.line();
        let pieces = job.stop();
        job.manager.map(&pieces[..1]);
        job.ajar();
        assert_eq!(line.ask(&format!("launch plain {kernel} {} 1", job.of(0))), FAULT);
        assert_eq!(job.manager.load(pieces[0].piece)[4096], 50, "it read what is not there");
        job.guest.end();
    }
}

promise! {
    fn what_listed_kernels_use_is_told_unless_the_program_says_it_itself() {
        let (mut job, kernel) = with_listed_kernel("tidegate_copy_ranges");
        let mut line = job.line_that_uses(0);
        assert_eq!(line.ask(&format!("launch plain {kernel} {} 1", job.of(1))), "ok");
        assert_eq!(job.hear_uses(), [(0, 1)], "the program knows better");
        job.manager.open();
        assert_eq!(job.line.ask(&format!("launch plain {kernel} {} 1", job.of(1))), "ok");
        assert_eq!(job.hear_uses(), [(1, 1), (0, 1)]);
        let pieces = [job.pieces[1]];
        job.manager.unmap(&pieces);
        job.ajar();
        assert_eq!(line.ask(&format!("launch plain {kernel} {} 0", job.of(1))), "ok");
        job.manager.map(&pieces);
        job.manager.open();
        job.guest.end();
    }
}

promise! {
    fn orders_that_make_no_sense_at_a_gate_ajar_harm_nobody() {
        let mut job = Filled::units(2);
        let mut line = job.line_that_uses(0);
        job.ajar();
        assert_eq!(job.line.ask(&job.read(1)), "2 2", "it was open");
        let pieces = job.stop();
        job.manager.map(&pieces[..1]);
        job.ajar();
        job.ajar();
        assert_eq!(line.ask(&job.read(0)), "1 1");
        let unmap = ToShim::Unmap { step: Step(5), tenant: TENANT, pieces: vec![pieces[0].piece] };
        job.manager.send(unmap, &[]);
        assert!(matches!(job.manager.hear_answer(), FromShim::Failed { step: Step(5), .. }));
        assert_eq!(line.ask(&job.read(0)), "1 1");

        // Closed without having been open.
        job.hear_uses();
        line.tell(&job.order("fill", 0, 7));
        assert!(line.is_silent(), "it ran at a closed gate");
        job.manager.unmap(&pieces[..1]);
        job.manager.map(&pieces);
        job.manager.open();
        assert_eq!(line.hear(), "ok");
        assert_eq!((job.line.ask(&job.read(0)), job.line.ask(&job.read(1))), ("7 7".into(), "2 2".into()));
        job.guest.end();
    }
}

promise! {
    fn who_is_ajar_and_not_taken_over_never_goes_on() {
        let mut job = Filled::units(2);
        let (mut described, mut waits) = (job.line_that_uses(0), job.line_that_uses(1));
        let pieces = job.stop();
        job.manager.map(&pieces[..1]);
        job.ajar();
        assert_eq!(described.ask(&job.read(0)), "1 1");
        waits.tell(&job.read(1));
        assert_eq!(job.manager.hear(), FromShim::Waiting);
        job.manager.die();
        assert_eq!(waits.hear(), LOST);
        assert_eq!(described.ask(&job.read(0)), LOST);
        assert_eq!(job.line.ask(&job.read(0)), LOST);
        job.guest.end();
    }
}

promise! {
    fn descriptions_change_nothing_at_an_open_gate() {
        let mut job = Filled::units(1);
        let mut line = job.line_that("describe");
        assert_eq!(line.ask(&job.read(0)), "1 1");
        assert_eq!(line.ask("describe-no-more"), "ok");
        assert_eq!(line.ask("describe-no-more"), "ok", "one too many");
        assert_eq!(job.hear_uses(), [], "it uses nothing");
        job.manager.open();
        assert_eq!(line.ask(&job.read(0)), "1 1");
        job.guest.end();
    }
}

promise! {
    fn python_describes_as_the_header_says() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
        let mut python = Command::new("python3");
        python.args(["-c", include_str!("operands.py")]).env("PYTHONPATH", package);
        python.env("LD_PRELOAD", stage::shim()).env("TIDEGATE_OFF", "1");
        let output = python.output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(said, ["4096 2 [(3, 8), (4, 2)]: 0\n\
                           4096 4 [(5, 40), (10, 4)]: 0\n\
                           4096 4 [(5, -8)]: 0\n\
                           4096 4 []: 0\n\
                           4096 1 [(100, 1)]: 0\n\
                           4 4 [(3, -4)]: 1\n\
                           nine dimensions: 1\n\
                           int is no tensor\n", ""]);
    }
}

promise! {
    fn descriptions_change_nothing_without_a_manager() {
        let manager = Manager::start();
        let guest = manager.guest(&[("TIDEGATE_OFF", "1")]);
        let mut line = guest.line();
        for order in ["init", "context", "describe", "describe 4096 8"] {
            assert_eq!(line.ask(order), "ok", "{order}");
        }
        let address = line.ask("allocate 5000");
        assert_eq!(line.ask(&format!("fill {address} 5000 3")), "ok");
        assert_eq!(line.ask(&format!("read {address} 5000")), "3 3");
        guest.end();
    }
}
