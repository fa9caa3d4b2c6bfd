//! The functions of `nccl.h`.
//!
//! Refused, with `ncclInvalidUsage`: windows, communicators of the device, and `ncclGroupSimulateEnd`.

use super::comm::{self, Comm, NO_COLOR, Place};
use super::element::{Element, Factor, Reduction};
use super::engine::{Collective, Kind, Message};
use super::group::{self, Job, Operation};
use super::join::{self, ID_BYTES, Id};
use super::{Answer, Code, Failure, last_error, lock, note, watch};
use crate::driver::{self, Stream};
use crate::tell;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex};

/// 2.28.9, as NCCL writes it.
const VERSION: i32 = 22_809;

/// A handle of a communicator.
type Handle = usize;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    bytes: [u8; ID_BYTES],
}

/// The beginning of `ncclConfig_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

impl Config {
    const MAGIC: u32 = 0xcafe_beef;

    /// Whether calls wait until they are done.
    ///
    /// # Safety
    /// Null, or the caller's configuration.
    unsafe fn is_blocking(config: *const Self) -> Answer<bool> {
        if config.is_null() {
            return Ok(true);
        }
        // SAFETY: as said above; every version of the structure begins like this.
        let config = unsafe { config.read_unaligned() };
        if config.magic != Self::MAGIC || config.size < size_of::<Self>() {
            return Err(Failure::argument("the configuration was not made by NCCL_CONFIG_INITIALIZER"));
        }
        Ok(config.blocking != 0)
    }
}

/// The status of a call.
fn status(answer: Answer) -> i32 {
    match answer {
        Ok(()) => Code::Success as i32,
        Err(failure) => {
            note(&failure);
            group::note(&failure);
            failure.code as i32
        }
    }
}

/// Tells the caller something, at a place that must not be null.
///
/// # Safety
/// Null, or the caller's place for a `T`.
unsafe fn put<T>(place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return Err(Failure::argument("a place for a result is null"));
    }
    // SAFETY: as said above.
    unsafe { tell(place, value) };
    Ok(())
}

fn refused(function: &str) -> i32 {
    status(Err(Failure::usage(format!("{function} is not supported by the NCCL stand-in"))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclGetVersion(version: *mut i32) -> i32 {
    // SAFETY: the caller's place.
    status(unsafe { put(version, VERSION) })
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclGetErrorString(code: i32) -> *const c_char {
    Code::of(code).text().as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclGetLastError(_: Handle) -> *const c_char {
    last_error().as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclGetUniqueId(place: *mut UniqueId) -> i32 {
    let id = join::new_id().and_then(|id| id.bytes());
    // SAFETY: the caller's place.
    status(id.and_then(|bytes| unsafe { put(place, UniqueId { bytes }) }))
}

/// Makes a communicator, and joins now, at the end of the group, or in the background.
///
/// # Safety
/// Null, or the caller's place for a handle.
unsafe fn init(place: *mut Handle, ranks: i32, rank: i32, id: &UniqueId, is_blocking: bool) -> Answer {
    let id = Id::of(&id.bytes)?;
    let number = |value: i32| {
        usize::try_from(value).map_err(|_| Failure::argument("a rank or a number of ranks is negative"))
    };
    let comm = Comm::new(id, number(ranks)?, number(rank)?, Place::current()?);
    let handle = comm::register(comm.clone());
    // SAFETY: as said above.
    unsafe { put(place, handle) }?;
    if is_blocking {
        return group::job(Job::Join(comm));
    }
    // What goes wrong there, ncclCommGetAsyncError tells.
    let joins = watch::start_thread("softgpu-nccl", move || drop(comm.join()));
    joins.map_err(|error| Failure::of_system("starting a thread", &error))?;
    Err(Failure::new(Code::InProgress, "the communicator is being initialized"))
}

/// The status of a call that may go on in the background, which is no failure of a group.
fn status_or_progress(answer: Answer) -> i32 {
    match answer {
        Err(Failure { code: Code::InProgress, .. }) => Code::InProgress as i32,
        answer => status(answer),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclCommInitRank(
    place: *mut Handle,
    ranks: i32,
    id: UniqueId,
    rank: i32,
) -> i32 {
    // SAFETY: the caller's place.
    status(unsafe { init(place, ranks, rank, &id, true) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclCommInitRankConfig(
    place: *mut Handle,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    config: *const Config,
) -> i32 {
    // SAFETY: null, or the caller's.
    let is_blocking = unsafe { Config::is_blocking(config) };
    // SAFETY: the caller's place.
    status_or_progress(
        is_blocking.and_then(|is_blocking| unsafe { init(place, ranks, rank, &id, is_blocking) }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclCommInitRankScalable(
    place: *mut Handle,
    ranks: i32,
    rank: i32,
    ids: i32,
    first: *const UniqueId,
    config: *const Config,
) -> i32 {
    if ids < 1 || first.is_null() {
        return status(Err(Failure::argument("there is no unique id")));
    }
    // SAFETY: the caller's, at least one; all ranks have the same list.
    let id = unsafe { first.read_unaligned() };
    // SAFETY: as the caller promises.
    unsafe { standin_ncclCommInitRankConfig(place, ranks, id, rank, config) }
}

/// One communicator for each of some GPUs, all in this process.
///
/// # Safety
/// Places for `count` handles, and null or so many numbers of GPUs.
unsafe fn init_all(places: *mut Handle, count: i32, devices: *const i32) -> Answer {
    if places.is_null() || count < 1 {
        return Err(Failure::argument("no GPUs, or no place for their communicators"));
    }
    let id = join::new_id()?;
    let mut comms = Vec::new();
    for rank in 0..count as usize {
        let device = match devices.is_null() {
            true => rank as i32,
            // SAFETY: as said above.
            false => unsafe { devices.wrapping_add(rank).read() },
        };
        comms.push(Comm::new(id.clone(), count as usize, rank, Place::of_device(device)?));
    }
    group::start();
    let asked = comms.iter().try_for_each(|comm| group::job(Job::Join(comm.clone())));
    group::end().and(asked)?;
    for (rank, comm) in comms.into_iter().enumerate() {
        // SAFETY: as said above.
        unsafe { places.wrapping_add(rank).write(comm::register(comm)) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclCommInitAll(places: *mut Handle, count: i32, devices: *const i32) -> i32 {
    // SAFETY: as the caller promises.
    status(unsafe { init_all(places, count, devices) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclCommSplit(
    handle: Handle,
    color: i32,
    key: i32,
    place: *mut Handle,
    config: *const Config,
) -> i32 {
    let split = || {
        // SAFETY: null, or the caller's. A split is done when the call, or the group, returns.
        unsafe { Config::is_blocking(config) }?;
        if place.is_null() || color < NO_COLOR {
            return Err(Failure::argument(
                "a split needs a place for its handle, and a color that is not negative",
            ));
        }
        group::job(Job::Split { comm: comm::find(handle)?, color, key, place: place as usize })
    };
    status(split())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclCommShrink(
    handle: Handle,
    excluded: *const i32,
    count: i32,
    place: *mut Handle,
    config: *const Config,
    flags: i32,
) -> i32 {
    const ABORT: i32 = 1;
    let shrink = || {
        // SAFETY: null, or the caller's.
        unsafe { Config::is_blocking(config) }?;
        if excluded.is_null() || count < 1 {
            return Err(Failure::argument("no rank is to be left out"));
        }
        // SAFETY: the caller's list, of this length.
        let list = unsafe { std::slice::from_raw_parts(excluded, count as usize) };
        let without: Vec<usize> = list.iter().filter_map(|rank| usize::try_from(*rank).ok()).collect();
        let part = comm::find(handle)?.shrink(&without, flags & ABORT != 0)?;
        // SAFETY: the caller's place.
        unsafe { put(place, comm::register(part.clone())) }?;
        group::job(Job::Join(part))
    };
    status(shrink())
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclCommFinalize(handle: Handle) -> i32 {
    status(comm::find(handle).and_then(|comm| comm.finalize()))
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclCommDestroy(handle: Handle) -> i32 {
    status(comm::unregister(handle).map(|comm| comm.destroy()))
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclCommAbort(handle: Handle) -> i32 {
    status(comm::unregister(handle).map(|comm| comm.abort()))
}

/// What a communicator is asked.
macro_rules! questions {
    ($($name:ident: $answer:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: Handle, place: *mut i32) -> i32 {
            let answer: fn(&Comm) -> i32 = $answer;
            // SAFETY: the caller's place.
            status(comm::find(handle).and_then(|comm| unsafe { put(place, answer(&comm)) }))
        }
    )* };
}

questions! {
    standin_ncclCommGetAsyncError: |comm| comm.status() as i32;
    standin_ncclCommCount: |comm| comm.ranks as i32;
    standin_ncclCommCuDevice: |comm| comm.place.device;
    standin_ncclCommUserRank: |comm| comm.rank as i32;
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclGroupStart() -> i32 {
    group::start();
    Code::Success as i32
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclGroupEnd() -> i32 {
    status(group::end())
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclGroupSimulateEnd(_: *mut c_void) -> i32 {
    refused("ncclGroupSimulateEnd")
}

fn element(number: i32) -> Answer<Element> {
    Element::of(number).ok_or_else(|| Failure::argument(format!("{number} is no data type")))
}

/// The arguments of a collective, as the program gives them.
struct Asked {
    kind: Kind,
    send: u64,
    receive: u64,
    count: usize,
    data_type: i32,
    /// Of kinds that reduce.
    operation: Option<i32>,
    /// Of kinds that have one.
    root: Option<i32>,
    handle: Handle,
    stream: Stream,
}

impl Asked {
    fn submit(self) -> Answer {
        let comm = comm::find(self.handle)?;
        let element = element(self.data_type)?;
        let reduction = match self.operation {
            Some(number) => comm.reduction(number, element)?,
            None => Reduction::Sum,
        };
        let root = root(&comm, self.root.unwrap_or(0))?;
        let is_needed = |is_root_only: bool| !is_root_only || comm.rank == root;
        check_place(&comm, self.send, self.count, is_needed(self.kind == Kind::Broadcast))?;
        check_place(&comm, self.receive, self.count, is_needed(self.kind == Kind::Reduce))?;
        let (kind, send, receive, count) = (self.kind, self.send, self.receive, self.count as u64);
        let collective = Collective { kind, send, receive, count, element, reduction, root };
        group::operation(comm, self.stream, Operation::All(collective))
    }
}

fn root(comm: &Comm, root: i32) -> Answer<usize> {
    let found = usize::try_from(root).ok().filter(|root| *root < comm.ranks);
    found.ok_or_else(|| Failure::argument(format!("{root} is no rank of the communicator")))
}

/// The most bytes of an operand: of all ranks together, they can still be counted.
const MOST_BYTES: u64 = 1 << 50;

fn check_place(comm: &Comm, place: u64, count: usize, is_needed: bool) -> Answer {
    if (count as u64).saturating_mul(8 * comm.ranks as u64) > MOST_BYTES {
        return Err(Failure::argument("there are too many elements"));
    }
    if place == 0 && count > 0 && is_needed {
        return Err(Failure::argument("a buffer is null"));
    }
    Ok(())
}

/// Collectives, by the order of their arguments.
macro_rules! collectives {
    ($($name:ident($($argument:ident),*) of $kind:ident: $operation:expr, $root:expr;)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the library's signature")]
        extern "C" fn $name(
            send: u64, receive: u64, count: usize, data_type: i32, $($argument: i32,)* handle: Handle, stream: Stream,
        ) -> i32 {
            let (kind, operation, root) = (Kind::$kind, $operation, $root);
            status(Asked { kind, send, receive, count, data_type, operation, root, handle, stream }.submit())
        }
    )* };
}

collectives! {
    standin_ncclAllReduce(operation) of AllReduce: Some(operation), None;
    standin_ncclReduce(operation, root) of Reduce: Some(operation), Some(root);
    standin_ncclReduceScatter(operation) of ReduceScatter: Some(operation), None;
    standin_ncclBroadcast(root) of Broadcast: None, Some(root);
    standin_ncclAllGather() of AllGather: None, None;
    standin_ncclAlltoAll() of AllToAll: None, None;
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclBcast(
    buffer: u64,
    count: usize,
    data_type: i32,
    root: i32,
    handle: Handle,
    stream: Stream,
) -> i32 {
    standin_ncclBroadcast(buffer, buffer, count, data_type, root, handle, stream)
}

fn message(
    is_sent: bool,
    place: u64,
    count: usize,
    data_type: i32,
    peer: i32,
    handle: Handle,
    stream: Stream,
) -> Answer {
    let comm = comm::find(handle)?;
    let (element, peer) = (element(data_type)?, root(&comm, peer)?);
    check_place(&comm, place, count, true)?;
    let message = Message { is_sent, peer, place, count: count as u64, element };
    group::operation(comm, stream, Operation::Two(message))
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclSend(
    place: u64,
    count: usize,
    data_type: i32,
    peer: i32,
    handle: Handle,
    stream: Stream,
) -> i32 {
    status(message(true, place, count, data_type, peer, handle, stream))
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclRecv(
    place: u64,
    count: usize,
    data_type: i32,
    peer: i32,
    handle: Handle,
    stream: Stream,
) -> i32 {
    status(message(false, place, count, data_type, peer, handle, stream))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclRedOpCreatePreMulSum(
    place: *mut i32,
    factor: *const u8,
    data_type: i32,
    residence: i32,
    handle: Handle,
) -> i32 {
    const ON_DEVICE: i32 = 0;
    let make = || {
        let (comm, element) = (comm::find(handle)?, element(data_type)?);
        if factor.is_null() || !element.can_be_reduced() {
            return Err(Failure::argument(
                "there is no factor, or elements of this type are not reduced here",
            ));
        }
        let factor = if residence == ON_DEVICE {
            Factor::At(factor as u64)
        } else {
            let mut bytes = [0; 8];
            // SAFETY: the caller's element, in host memory.
            unsafe { factor.copy_to_nonoverlapping(bytes.as_mut_ptr(), element.bytes() as usize) };
            Factor::Here(bytes)
        };
        // SAFETY: the caller's place.
        unsafe { put(place, comm.add_reduction(element, Reduction::Scaled(factor))) }
    };
    status(make())
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclRedOpDestroy(number: i32, handle: Handle) -> i32 {
    status(comm::find(handle).and_then(|comm| comm.remove_reduction(number)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclMemAlloc(place: *mut u64, bytes: usize) -> i32 {
    let failed = || Failure::new(Code::UnhandledCudaError, format!("the driver has no {bytes} bytes"));
    let address = driver::allocate(bytes).ok_or_else(failed);
    // SAFETY: the caller's place.
    status(address.and_then(|address| unsafe { put(place, address) }))
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclMemFree(address: u64) -> i32 {
    let failed = || Failure::new(Code::UnhandledCudaError, format!("{address:#x} is no allocation"));
    status(driver::free(address).ok_or_else(failed))
}

/// What is registered, for each handle: nothing is done with it, as data passes through the segment.
static REGISTERED: Mutex<Vec<Arc<u64>>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_ncclCommRegister(
    handle: Handle,
    address: u64,
    _: usize,
    place: *mut usize,
) -> i32 {
    let register = || {
        comm::find(handle)?;
        let registered = Arc::new(address);
        // SAFETY: the caller's place.
        unsafe { put(place, Arc::as_ptr(&registered) as usize) }?;
        lock(&REGISTERED).push(registered);
        Ok(())
    };
    status(register())
}

#[unsafe(no_mangle)]
extern "C" fn standin_ncclCommDeregister(handle: Handle, registration: usize) -> i32 {
    let forget = || {
        comm::find(handle)?;
        let mut registered = lock(&REGISTERED);
        let at = registered.iter().position(|one| Arc::as_ptr(one) as usize == registration);
        registered.remove(at.ok_or_else(|| Failure::argument("this is no registration"))?);
        Ok(())
    };
    status(forget())
}

/// Functions that are refused, whatever their arguments.
macro_rules! refused {
    ($($name:ident $text:literal)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> i32 {
            refused($text)
        }
    )* };
}

refused! {
    standin_ncclCommWindowRegister "ncclCommWindowRegister"
    standin_ncclCommWindowDeregister "ncclCommWindowDeregister"
    standin_ncclDevCommCreate "ncclDevCommCreate"
    standin_ncclDevCommDestroy "ncclDevCommDestroy"
}
