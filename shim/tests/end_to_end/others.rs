//! Memory that is the driver's own, parts of contexts, and what a program asks about its memory.

use crate::guest::look_up;
use crate::manager::Manager;
use crate::stage::UNIT;
use rustix::event::Timespec;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use tidegate_ffi::cuda::sys::*;
use tidegate_ffi::cuda::{Driver, DriverError};
use tidegate_ffi::units::Step;
use tidegate_ffi::wire::message::{FromShim, Placed};

/// Elements of a guest's array.
const ELEMENTS: usize = 1000;
/// `CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION`.
const LAST_PREFETCH_LOCATION: c_int = 4;
/// More attributes of addresses than there are.
const ATTRIBUTES: u32 = 40;

type RangeAttribute = extern "C" fn(*mut c_int, usize, c_int, u64, usize) -> c_int;

/// Runs a driver call of the guest.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),*)) => {
        // SAFETY: the results go to the guest's own variables; the handles are the driver's.
        unsafe { $driver.$name($($argument),*) }
    };
}

/// Asked of a guest: what the others do not know.
pub fn carry_out(driver: &Driver, words: &[&str], numbers: &[u64]) -> Result<String, DriverError> {
    match (words[0], numbers) {
        ("array", [value]) => return array(driver, *value as u32),
        ("read-array", [array]) => return read_array(driver, handle(*array)),
        ("green", []) => return green(driver),
        ("end-green", [green]) => call!(driver, cuGreenCtxDestroy(handle(*green)))?,
        ("let-go", [flag]) => {
            // SAFETY: the pinned word that `green` has made; the GPU reads it meanwhile.
            unsafe { AtomicU32::from_ptr(handle(*flag)) }.store(1, Ordering::SeqCst);
        }
        ("attributes", [address]) => return Ok(attributes(driver, *address)),
        ("synchronous", [address]) => {
            let (on, attribute) = (1 as c_int, CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
            call!(driver, cuPointerSetAttribute((&raw const on).cast(), attribute.into(), *address))?;
        }
        ("access", [device, address]) => {
            let kind = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            let (location, mut flags) = (CUmemLocation { type_: kind, id: *device as c_int }, 0);
            call!(driver, cuMemGetAccess(&mut flags, &location, *address))?;
            return Ok(flags.to_string());
        }
        ("prefetch", [address]) => {
            call!(driver, cuMemPrefetchAsync(*address, 4096, 0, std::ptr::without_provenance_mut(2)))?;
        }
        ("prefetched", [address]) => {
            let ask: RangeAttribute = function(c"cuMemRangeGetAttribute");
            let mut device = 0;
            assert_eq!(ask(&mut device, size_of::<c_int>(), LAST_PREFETCH_LOCATION, *address, 4096), 0);
            return Ok(device.to_string());
        }
        ("device", [attribute]) => {
            let mut value = 0;
            call!(driver, cuDeviceGetAttribute(&mut value, DeviceAttribute(*attribute as u32), 0))?;
            return Ok(value.to_string());
        }
        _ => return crate::ajar::carry_out(driver, words, numbers),
    }
    Ok("ok".into())
}

fn handle<T>(number: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(number as usize)
}

/// An array whose elements all have a value.
fn array(driver: &Driver, value: u32) -> Result<String, DriverError> {
    let (mut array, elements) = (null_mut(), [value; ELEMENTS]);
    let shape = CUDA_ARRAY_DESCRIPTOR {
        Width: ELEMENTS,
        Height: 0,
        Format: CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32,
        NumChannels: 1,
    };
    call!(driver, cuArrayCreate_v2(&mut array, &shape))?;
    call!(driver, cuMemcpyHtoA_v2(array, 0, elements.as_ptr().cast(), size_of_val(&elements)))?;
    Ok(array.expose_provenance().to_string())
}

/// Its least and its greatest element.
fn read_array(driver: &Driver, array: CUarray) -> Result<String, DriverError> {
    let mut elements = [0u32; ELEMENTS];
    call!(driver, cuMemcpyAtoH_v2(elements.as_mut_ptr().cast(), array, 0, size_of_val(&elements)))?;
    Ok(format!("{} {}", elements.iter().min().unwrap(), elements.iter().max().unwrap()))
}

/// A function of the driver that is not in the table with its parameters.
pub fn function<F: Copy>(name: &CStr) -> F {
    // SAFETY: the driver, which is open already.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    let found = look_up(library, name);
    assert!(!found.is_null(), "{name:?}");
    // SAFETY: the callers name the function's type as cuda.h declares it.
    unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) }
}

/// A green context with work in a stream of it, which ends when a word is set: the context, the word, and
/// memory that was allocated while it was current.
fn green(driver: &Driver) -> Result<String, DriverError> {
    type GetResource = unsafe extern "C" fn(CUdevice, *mut CUdevResource, c_uint) -> CUresult;
    type Describe = unsafe extern "C" fn(*mut CUdevResourceDesc, *mut CUdevResource, c_uint) -> CUresult;
    type NewStream = unsafe extern "C" fn(*mut CUstream, CUgreenCtx, c_uint, c_int) -> CUresult;
    let (get_resource, describe): (GetResource, Describe) =
        (function(c"cuDeviceGetDevResource"), function(c"cuDevResourceGenerateDesc"));
    let new_stream: NewStream = function(c"cuGreenCtxStreamCreate");
    // SAFETY: plain C data; zero is a value of its enum.
    let mut whole: CUdevResource = unsafe { std::mem::zeroed() };
    let (mut description, mut green, mut context, mut stream) =
        (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: the results go to our own variables. 1: multiprocessors.
    assert_eq!(unsafe { get_resource(0, &mut whole, 1) }, CUresult::CUDA_SUCCESS);
    // SAFETY: as above.
    assert_eq!(unsafe { describe(&mut description, &mut whole, 1) }, CUresult::CUDA_SUCCESS);
    call!(driver, cuGreenCtxCreate(&mut green, description, 0, 1))?;
    call!(driver, cuCtxFromGreenCtx(&mut context, green))?;
    // SAFETY: as above. 1: it does not wait for the default stream.
    assert_eq!(unsafe { new_stream(&mut stream, green, 1, 0) }, CUresult::CUDA_SUCCESS);
    let mut word = null_mut();
    call!(driver, cuMemHostAlloc(&mut word, 4, 0))?;
    // SAFETY: the pinned memory, of that size.
    unsafe { word.cast::<u32>().write(0) };
    call!(driver, cuStreamWaitValue32_v2(stream, word.expose_provenance() as u64, 1, 0))?;
    let (mut address, mut before) = (0, null_mut());
    call!(driver, cuCtxGetCurrent(&mut before))?;
    call!(driver, cuCtxSetCurrent(context))?;
    call!(driver, cuMemAlloc_v2(&mut address, 5000))?;
    call!(driver, cuCtxSetCurrent(before))?;
    Ok(format!("{} {} {address}", green.expose_provenance(), word.expose_provenance()))
}

/// All that is to be known of an address. Addresses are told from there; what differs from run to run is not.
fn attributes(driver: &Driver, address: u64) -> String {
    let ask = |attribute| {
        let mut value = 0u64;
        let answer = call!(driver, cuPointerGetAttribute((&raw mut value).cast(), attribute, address));
        (value, answer.map_err(|error| error.code))
    };
    let tell = |number| {
        use CUpointer_attribute::*;
        let attribute = PointerAttribute(number);
        match ask(attribute) {
            (_, Err(code)) => format!("{number}: {code:?}"),
            (value, _) if attribute == CU_POINTER_ATTRIBUTE_CONTEXT => format!("{number}: {}", value != 0),
            (value, _) if attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID => format!("{number}: {}", value != 0),
            (value, _) if value >= address && value < address + UNIT => {
                format!("{number}: {} behind", value - address)
            }
            (value, _) => format!("{number}: {value}"),
        }
    };
    (0..ATTRIBUTES).map(tell).collect::<Vec<_>>().join(", ")
}

promise! {
    fn managed_memory_goes_to_the_host_when_other_jobs_want_memory_or_the_process_has_none_else() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let managed = line.ask("managed");
        let prefetched = |line: &mut crate::guest::Line| line.ask(&format!("prefetched {managed}"));
        assert_eq!(prefetched(&mut line), "-2", "nowhere");
        manager.close(0, 0);
        assert_eq!(prefetched(&mut line), "-1");
        manager.open();
        // At the closed gate it would say that it waits.
        manager.wait_for_gate(0);
        let (piece, _) = manager.allocate(&mut line, 1000);
        assert_eq!(line.ask(&format!("prefetch {managed}")), "ok");
        manager.close(0, 0);
        assert_eq!(prefetched(&mut line), "0", "its memory fits beside that of others");
        manager.unmap(&[piece]);
        assert_eq!(prefetched(&mut line), "-1");
        manager.map(&[piece]);
        manager.open();
        assert_eq!(line.ask(&format!("free {managed}")), "ok");
        manager.close(0, 0);
        manager.unmap(&[piece]);
        guest.end();
    }
}

promise! {
    fn a_job_with_managed_memory_that_stays_says_so_once_and_waits_for_its_turn_before() {
        let mut manager = crate::room::manager_with("concurrent_managed_access = false");
        let (mut guest, mut line) = manager.guest_with_context();
        manager.close(0, 0);
        line.tell("managed");
        assert_eq!(manager.hear(), FromShim::Waiting);
        assert!(line.is_silent(), "it got memory while it was stopped");
        manager.open();
        assert_eq!(manager.hear(), FromShim::Unsliceable { reason: "it uses managed memory".into() });
        let is_address = |answer: String| answer.parse().is_ok_and(|address: u64| address != 0);
        assert!(is_address(line.hear()));
        assert!(is_address(line.ask("managed")));
        assert!(!manager.hears_within(&Timespec { tv_sec: 0, tv_nsec: 30_000_000 }), "it said it again");
        assert!(guest.next_words().contains("managed memory"));
        assert_eq!(guest.end().len(), 1);
    }
}

promise! {
    fn a_gpu_tells_of_managed_memory_what_it_can() {
        let mut manager = Manager::start();
        let nobody = Manager::start();
        let bare = nobody.guest(&[("TIDEGATE_OFF", "1")]);
        let mut line = bare.line();
        assert_eq!(line.ask("init"), "ok");
        let attributes = [83, 89].map(|attribute| format!("device {attribute}"));
        let told = attributes.clone().map(|attribute| line.ask(&attribute));
        bare.end();
        let (guest, mut line) = manager.guest_with_context();
        assert_eq!(attributes.map(|attribute| line.ask(&attribute)), told);
        assert_eq!(line.ask("device 123456"), "CUDA_ERROR_INVALID_VALUE", "the driver does not know it");
        guest.end();
    }
}

promise! {
    fn an_array_stays_where_it_is_over_a_switch() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (placed, _) = manager.allocate(&mut line, 1000);
        let array = line.ask("array 42");
        manager.close(0, 0);
        manager.unmap(&[placed]);
        line.tell(&format!("read-array {array}"));
        assert_eq!(manager.hear(), FromShim::Waiting);
        assert!(line.is_silent(), "a copy went through a closed gate");
        manager.map(&[placed]);
        manager.open();
        assert_eq!(line.hear(), "42 42");
        guest.end();
    }
}

promise! {
    fn work_in_a_green_contexts_stream_is_waited_for() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        line.tell("green");
        let lease = manager.hear_lease();
        manager.grant(&lease);
        let answer = line.hear();
        let [green, word, address] = answer.split(' ').collect::<Vec<_>>()[..] else { panic!("{answer}") };
        manager.ask_to_close(0, 0);
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        while manager.hears_within(&moment) {
            // Said again and again, each time later.
            assert_eq!(manager.hear(), FromShim::Stalled { step: Step(99), is_overdue: false }, "it did not wait");
        }
        assert_eq!(line.ask(&format!("let-go {word}")), "ok");
        let (_, live) = manager.hear_drained();
        assert_eq!(live.len(), 1);
        manager.open();
        // Its memory is the primary context's, and lives as long as that.
        assert_eq!(line.ask(&format!("end-green {green}")), "ok");
        assert_eq!(line.ask(&format!("fill {address} 5000 1")), "ok");
        assert_eq!(line.ask(&format!("free {address}")), "ok");
        assert_eq!(line.ask("release"), "ok");
        assert_eq!(manager.close(0, 0).1, []);
        manager.open();
        guest.end();
    }
}

/// What the driver tells of its own memory and not of ours: handles of it are not to be had yet.
const NOT_OURS: [&str; 1] = ["10: "];
/// What this driver does not tell, and we do.
const ONLY_OURS: [&str; 2] = ["20: ", "21: "];

promise! {
    fn a_program_is_told_of_its_memory_what_the_driver_tells_of_its_own() {
        let mut manager = Manager::start();
        let told = |text: &str| -> Vec<String> {
            let differs = |told: &&str| NOT_OURS.iter().chain(&ONLY_OURS).any(|prefix| told.starts_with(prefix));
            text.split(", ").filter(|told| !differs(told)).map(String::from).collect()
        };
        let nobody = Manager::start();
        let bare = nobody.guest(&[("TIDEGATE_OFF", "1")]);
        let mut line = bare.line();
        assert_eq!((line.ask("init"), line.ask("context")), ("ok".into(), "ok".into()));
        let address = line.ask(&format!("allocate {UNIT}"));
        let expected = told(&line.ask(&format!("attributes {address}")));
        bare.end();
        let (guest, mut line) = manager.guest_with_context();
        line.tell(&format!("allocate {UNIT}"));
        let lease = manager.hear_lease();
        let placed = manager.grant(&lease);
        let address = line.hear();
        let here = line.ask(&format!("attributes {address}"));
        assert_eq!(told(&here), expected);
        manager.close(0, 0);
        manager.unmap(&[placed]);
        assert_eq!(line.ask(&format!("attributes {address}")), here, "while it is away");
        assert_eq!(line.ask(&format!("access 0 {address}")), "3");
        assert_eq!(line.ask(&format!("access 1 {address}")), "0");
        manager.map(&[placed]);
        manager.open();
        guest.end();
    }
}

promise! {
    fn an_allocation_has_a_number_of_its_own_as_long_as_it_lives() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (placed, first) = manager.allocate(&mut line, 1000);
        let second = line.ask("allocate 1000");
        let number = |line: &mut crate::guest::Line, address: &str| line.ask(&format!("attribute 7 {address}"));
        let numbers = [number(&mut line, &first), number(&mut line, &second)];
        assert_ne!(numbers[0], numbers[1]);
        manager.close(0, 0);
        manager.unmap(&[placed]);
        manager.map(&[placed]);
        manager.open();
        assert_eq!(number(&mut line, &(first.parse::<u64>().unwrap() + 999).to_string()), numbers[0]);
        assert_eq!(line.ask(&format!("free {first}")), "ok");
        assert_eq!(line.ask("allocate 1000"), first);
        assert!(!numbers.contains(&number(&mut line, &first)), "another allocation has the same number");
        guest.end();
    }
}

promise! {
    fn memory_that_others_are_to_be_synchronous_with_stays_where_it_is() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (Placed { piece, .. }, address) = manager.allocate(&mut line, 1000);
        line.tell(&format!("synchronous {address}"));
        manager.grant_hold(&[piece]);
        line.hear();
        guest.end();
    }
}
