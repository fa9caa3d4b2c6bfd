//! A tenant: this process's memory on one GPU.
//!
//! ```text
//! allocate:  pass the gate → arena finds a place ─ backed ──────────────────────► live
//!                                               └ claims → Lease → map → settle ─┘
//! ```
//! Invariants: an allocation is alive only where every slot of it is mapped, and it becomes so
//! while the gate cannot shut; a closing therefore finds every live byte in a piece the manager
//! knows. The lock of the books is never held during a driver call or a wait.

use crate::arena::{ALIGNMENT, Arena, Claim, Place};
use crate::blocks::{Block, Mismatch};
use crate::borrowed::Shared;
use crate::capi::birth_class;
use crate::driver::{self, Context, Current, Mark, Relaxed, synchronize};
use crate::gate::{Arrival, Failed, GATE, Stamp};
use crate::handles::{Extent, HandleNumber};
use crate::link::{Gone, Reply};
use crate::liveness::{Allocation, Bytes, Liveness, Stop};
use crate::log::{Level, Once, info};
use crate::mapping::Ranges;
use crate::ordered::{Ordered, Waiting};
use crate::process::{Process, Stretch};
use crate::raw::Properties;
use crate::status::{Answer, Status};
use crate::torch;
use crate::turnstile::Turnstile;
use crate::uses::Uses;
use once_cell::race::OnceBox;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::{CUdevice, CUdeviceptr, CUresult, CUstream};
use tidegate_ffi::units::{Class, PieceId, Step, TenantId, Units};
use tidegate_ffi::wire::live::LiveRange;
use tidegate_ffi::wire::message::{FromShim, Layout, LeaseRequest, Placed, SlotRun};
use tidegate_ffi::wire::page::TenantRow;

/// Pieces leased ahead, at most.
const PIECES_AHEAD: u64 = 64;
/// Descriptors that the driver may need to map a piece, besides the piece's own.
const DESCRIPTORS_TO_MAP: usize = 2;
/// The part of what is leased already that is leased ahead: one in so many.
const AHEAD_PART: u32 = 4;

/// See the module.
pub struct Tenant {
    /// Its name.
    pub id: TenantId,
    /// The GPU, as this process numbers it.
    pub device: CUdevice,
    /// How its memory is laid out.
    pub layout: Layout,
    /// Where its figures are published.
    row: usize,
    ranges: OnceBox<Ranges>,
    books: Mutex<Books>,
    /// Places that were freed in stream order and may still be in use.
    ordered: Mutex<Ordered<Passing>>,
    /// What described work has used.
    uses: Mutex<Uses>,
    /// Held while pieces are held or let go of and the manager is told: the last word on a piece is
    /// what the books say.
    holding: Mutex<()>,
    /// Held from when pieces leave the books until the manager is told and their slots are free: the answer to a recall
    /// comes after, and so does a lease for these slots.
    leaving: Mutex<()>,
    /// Held while a thread asks for pieces.
    leases: Mutex<()>,
    /// Who asks for room outside of pieces.
    pub rooms: Turnstile,
}

/// What is where.
struct Books {
    classes: [ClassBooks; 2],
    pieces: BTreeMap<PieceId, Placed>,
    /// Pieces that other processes may have mapped: they stay held to the end.
    shared: BTreeSet<PieceId>,
    /// Pieces that are mapped for leases whose last answer has not come. Nothing is placed in
    /// them yet, so they can be taken away again if a closing comes first.
    arriving: BTreeMap<Step, Vec<Placed>>,
}

struct ClassBooks {
    arena: Arena,
    live: Liveness<Context>,
    /// The numbers of allocations that were asked for, by their starts.
    numbers: BTreeMap<u64, u64>,
}

/// The driver counts its own allocations from below.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1 << 63);

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Shortage {
    /// The class's address range is full.
    #[error("the address range is full")]
    Range,
    /// The manager said no.
    #[error("{0}")]
    Refused(String),
    /// There is no manager any more that could be asked.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The process was stopped, and will not go on.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Pieces came, but not their handles.
    #[error("no file descriptors are left in this process (ulimit -n)")]
    Descriptors,
    /// The manager sent pieces that do not fit the question.
    #[error("the manager sent pieces for other slots than were asked for")]
    Misplaced,
}

impl Shortage {
    /// As the program is told.
    fn status(&self) -> Status {
        match self {
            Self::Failed(failed) => (*failed).into(),
            _ => Status::OUT_OF_MEMORY,
        }
    }
}

/// Behind the work that may still use a place.
struct Passing {
    /// Whose work it is: the mark ends with it.
    context: Context,
    mark: Mark,
}

impl Passing {
    /// Behind the work that a stream has now.
    fn after(stream: CUstream) -> Result<Self, DriverError> {
        let context = driver::context_of(stream)?;
        let _current = Current::make(context)?;
        Ok(Self { context, mark: Mark::after(stream)? })
    }
}

/// An allocation that an address belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its first address.
    pub start: CUdeviceptr,
    /// Its length, as asked for.
    pub bytes: u64,
    /// The context it was made in.
    pub owner: Context,
}

impl Tenant {
    /// A tenant without memory.
    pub fn new(id: TenantId, device: CUdevice, layout: Layout, row: usize) -> Self {
        let books = || ClassBooks {
            arena: Arena::new(layout.unit_bytes, layout.range_bytes),
            live: Liveness::default(),
            numbers: BTreeMap::new(),
        };
        let books = Books {
            classes: [books(), books()],
            pieces: BTreeMap::new(),
            shared: BTreeSet::new(),
            arriving: BTreeMap::new(),
        };
        Self {
            id,
            device,
            layout,
            row,
            ranges: OnceBox::new(),
            books: Mutex::new(books),
            ordered: Mutex::default(),
            uses: Mutex::default(),
            leaving: Mutex::default(),
            holding: Mutex::new(()),
            leases: Mutex::default(),
            rooms: Turnstile::default(),
        }
    }

    /// The address ranges, reserved at the first allocation, when a context is current.
    fn ranges(&self) -> Result<&Ranges, DriverError> {
        let Layout { unit_bytes, range_bytes, .. } = self.layout;
        self.ranges.get_or_try_init(|| Ranges::reserve(self.device, unit_bytes, range_bytes).map(Box::new))
    }

    /// Allocates `bytes` (at least 1) in the context `owner`. Waits while the gate is closed and
    /// while the manager finds room.
    pub fn allocate(
        &self,
        process: &Process,
        class: Class,
        bytes: u64,
        owner: Context,
    ) -> Result<CUdeviceptr, Status> {
        let ranges = self.ranges()?;
        let start = self.patiently(class, bytes, || self.find_room(process, class, bytes, owner))?;
        Ok(ranges.address(class, start))
    }

    /// Looks for `bytes`; if there is no room, once more when what was freed in stream order is free at
    /// last, because its work has ended. The user is told why there is none.
    fn patiently<T>(
        &self,
        class: Class,
        bytes: u64,
        look: impl Fn() -> Result<T, Shortage>,
    ) -> Result<T, Status> {
        torch::look();
        self.reclaim();
        let found = match look() {
            Err(_) if self.wait_for_ordered() => look(),
            found => found,
        };
        found.map_err(|shortage| {
            explain(bytes, class, &shortage);
            shortage.status()
        })
    }

    /// The same for work of `stream` alone, which may get what was freed in it at once.
    pub fn allocate_in(
        &self,
        process: &Process,
        stream: CUstream,
        bytes: u64,
        owner: Context,
    ) -> Result<CUdeviceptr, Status> {
        match self.again(process, stream, bytes, owner)? {
            Some(start) => Ok(self.ranges()?.address(Class::Temporary, start)),
            None => self.allocate(process, Class::Temporary, bytes, owner),
        }
    }

    /// A place that was freed in `stream`, allocated again.
    fn again(
        &self,
        process: &Process,
        stream: CUstream,
        bytes: u64,
        owner: Context,
    ) -> Result<Option<u64>, Status> {
        let length = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(Status::OUT_OF_MEMORY)?;
        let Some(number) = driver::stream_number(stream) else { return Ok(None) };
        // While it lives, no piece goes away.
        let _pass = GATE.pass()?;
        let Some(place) = self.ordered.lock().take_fitting(number, Class::Temporary, length) else {
            return Ok(None);
        };
        if !self.books().classes[place.class.index()].arena.is_whole(place.start) {
            // A switch came between: all work of before has ended.
            self.free_places(vec![place]);
            return Ok(None);
        }
        self.publish_birth(process, place.class, place.start, bytes, owner);
        Ok(Some(place.start))
    }

    /// Frees the allocation that starts at `address` when the work of `stream` submitted before has
    /// ended, and does not wait for that.
    pub fn free_in(&self, process: &Process, stream: CUstream, address: CUdeviceptr) -> Result<(), Status> {
        let (class, start) = self.place_of(address).ok_or(Status::INVALID_VALUE)?;
        let mark = Passing::after(stream)?;
        let dead = self.bury(process, class, start).ok_or(Status::INVALID_VALUE)?;
        self.let_go(process, class, start, dead);
        let length = self.books().classes[class.index()].arena.length(start).unwrap_or(0);
        let stream = driver::stream_number(stream);
        self.ordered.lock().add(Waiting { class, start, length, stream, mark });
        self.reclaim();
        Ok(())
    }

    /// Frees the places that were freed in stream order and are not in use any more.
    pub fn reclaim(&self) {
        let _relaxed = Relaxed::begin();
        let over = self.ordered.lock().take(|waiting| waiting.mark.mark.is_passed().unwrap_or(false));
        self.free_places(over);
    }

    /// Waits until nothing that was freed in stream order is in use; false: there was nothing.
    fn wait_for_ordered(&self) -> bool {
        let all = self.ordered.lock().take(|_| true);
        let were_any = !all.is_empty();
        self.free_when_passed(all);
        were_any
    }

    /// The same for what was freed in streams of a context that is about to end.
    pub fn wait_for_ordered_of(&self, context: Context) {
        let its = self.ordered.lock().take(|waiting| waiting.mark.context == context);
        self.free_when_passed(its);
    }

    fn free_when_passed(&self, places: Vec<Waiting<Passing>>) {
        let _relaxed = Relaxed::begin();
        let (over, lost): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|waiting| waiting.mark.mark.wait().is_ok());
        self.free_places(over);
        // The work failed, and its context with it: they are never free.
        lost.into_iter().for_each(|waiting| self.ordered.lock().add(waiting));
    }

    fn free_places(&self, places: Vec<Waiting<Passing>>) {
        for place in places {
            self.books().classes[place.class.index()].arena.free(place.start);
        }
    }

    fn find_room(
        &self,
        process: &Process,
        class: Class,
        bytes: u64,
        owner: Context,
    ) -> Result<u64, Shortage> {
        match self.find_backed(process, class, bytes, owner)? {
            Some(start) => Ok(start),
            None => self.ask(|| self.lease_room(process, class, bytes, owner)),
        }
    }

    /// Room in what is there already.
    fn find_backed(
        &self,
        process: &Process,
        class: Class,
        bytes: u64,
        owner: Context,
    ) -> Result<Option<u64>, Shortage> {
        let _pass = GATE.pass()?;
        let start = self.books().classes[class.index()].arena.place_backed(bytes);
        start.into_iter().for_each(|start| self.publish_birth(process, class, start, bytes, owner));
        Ok(start)
    }

    /// Lets a thread ask for pieces, one at a time: each is placed behind what others have got, and uses the rest of their last piece.
    fn ask<T>(&self, ask: impl Fn() -> Result<T, Shortage>) -> Result<T, Shortage> {
        let _alone = self.leases.lock();
        ask()
    }

    fn lease_room(
        &self,
        process: &Process,
        class: Class,
        bytes: u64,
        owner: Context,
    ) -> Result<u64, Shortage> {
        loop {
            let place = {
                let _pass = GATE.pass()?;
                let ahead = self.most_ahead(class);
                // Slots whose pieces are just going back would be passed over, and more asked for than is needed.
                let is_leaving = self.books().classes[class.index()].arena.is_leaving();
                let _left = is_leaving.then(|| self.leaving.lock());
                let place = self.books().start(class, bytes, ahead);
                let place = place.ok_or(Shortage::Range)?;
                if place.claims.is_empty() {
                    self.publish_birth(process, class, place.start, bytes, owner);
                    return Ok(place.start);
                }
                place
            };
            match self.lease_all(process, class, &place, false) {
                Ok(arrival) => {
                    let settled = self.books().classes[class.index()].arena.settle(&place);
                    if settled {
                        self.publish_birth(process, class, place.start, bytes, owner);
                        drop(arrival);
                        return Ok(place.start);
                    }
                }
                Err(shortage) => {
                    self.books().classes[class.index()].arena.abandon(&place);
                    if matches!(shortage, Shortage::Gone(_)) {
                        // Who is stopped is told so at the gate, and does not go on.
                        drop(GATE.pass()?);
                    }
                    return Err(shortage);
                }
            }
        }
    }

    /// Allocates memory for a handle of the program's, `bytes` in whole units, mapped nowhere.
    pub fn allocate_apart(
        &self,
        process: &Process,
        bytes: u64,
        properties: Properties,
    ) -> Result<HandleNumber, Status> {
        let lease = || self.lease_apart(process, bytes, properties);
        self.patiently(Class::Temporary, bytes, || self.ask(lease))
    }

    fn lease_apart(
        &self,
        process: &Process,
        bytes: u64,
        properties: Properties,
    ) -> Result<HandleNumber, Shortage> {
        // It does not end with any context.
        let (class, owner) = (Class::Temporary, Context(std::ptr::null_mut()));
        loop {
            // Inside the gate, as for every other place: a closing comes before it or after.
            let place = {
                let _pass = GATE.pass()?;
                self.give_back_what_no_handle_can_use(process);
                let place = self.books().classes[class.index()].arena.place_apart(bytes);
                place.ok_or(Shortage::Range)?
            };
            let extent = Extent { device: self.device, class, start: place.start, bytes };
            let number = process.loose.handles.lock().add(extent, properties);
            let arrival = match self.lease_all(process, class, &place, properties.exports != 0) {
                Ok(arrival) => arrival,
                Err(shortage) => {
                    process.loose.handles.lock().remove(number);
                    self.books().classes[class.index()].arena.abandon(&place);
                    return Err(shortage);
                }
            };
            if self.books().classes[class.index()].arena.settle(&place) {
                self.publish_birth(process, class, place.start, bytes, owner);
                drop(arrival);
                return Ok(number);
            }
            // A closing came between, and took away what had come: once more.
            process.loose.handles.lock().remove(number);
        }
    }

    /// A handle of the program's is no more; the pieces behind it, which are mapped nowhere, go back.
    pub fn free_apart(&self, process: &Process, extent: Extent, gone: &[Placed]) {
        let Extent { class, start, .. } = extent;
        if let Some(dead) = self.bury(process, class, start) {
            self.let_go(process, class, start, dead);
        }
        let _leaving = self.leaving.lock();
        let unused = {
            let mut books = self.books();
            let unused = books.unused();
            books.classes[class.index()].arena.free_apart(start);
            // As soon as the manager is told, it may hand them out again, for other slots.
            for placed in gone {
                books.pieces.remove(&placed.piece);
            }
            unused
        };
        process.link.give_back(self.id, ids(gone), unused);
        self.books().end_leaving(gone, &[]);
        self.publish_mapped(process);
    }

    /// The most units to ask for beyond the need: only temporary memory comes and goes.
    fn most_ahead(&self, class: Class) -> Units {
        let units = PIECES_AHEAD * self.layout.piece_bytes / self.layout.unit_bytes.max(1);
        match class {
            Class::Persistent => Units(0),
            Class::Temporary => Units(u32::try_from(units).unwrap_or(u32::MAX)),
        }
    }

    /// Gets pieces for all claims of a place, one for each if it is to be `whole`. While the last
    /// arrival lives, the gate cannot shut.
    fn lease_all(
        &self,
        process: &Process,
        class: Class,
        place: &Place,
        whole: bool,
    ) -> Result<Option<Arrival>, Shortage> {
        let mut last = None;
        for claim in &place.claims {
            // Not two at a time: the gate may have to shut before the next answer.
            drop(last.take());
            last = Some(self.lease(process, class, *claim, whole)?);
        }
        Ok(last)
    }

    fn lease(&self, process: &Process, class: Class, claim: Claim, whole: bool) -> Result<Arrival, Shortage> {
        let Claim { first, units, ahead } = claim;
        let replies = process.link.request(|step| {
            FromShim::Lease(LeaseRequest { step, tenant: self.id, class, first, units, ahead, whole })
        })?;
        let mut outcome = Ok(());
        loop {
            match replies.next()? {
                Reply::Leased { pieces, handles, more, arrival } => {
                    if outcome.is_ok() {
                        outcome = self.take_in(process, replies.step(), class, claim, &pieces, handles);
                    }
                    if outcome.is_err() {
                        let pieces = pieces.iter().map(|piece| piece.piece).collect();
                        process.link.give_back(self.id, pieces, self.books().unused());
                    }
                    if !more {
                        self.enter_arrived(process, replies.step());
                        return outcome.map(|()| arrival);
                    }
                }
                Reply::Refused(reason) => {
                    // What came of it before is there, and in no use.
                    self.enter_arrived(process, replies.step());
                    return Err(Shortage::Refused(reason));
                }
                Reply::Attached { .. } | Reply::Lent { .. } | Reply::Held | Reply::Room { .. } => {
                    return Err(Shortage::Misplaced);
                }
            }
        }
    }

    /// Maps pieces that came for a claim. They are usable when the last of their lease is here.
    fn take_in(
        &self,
        process: &Process,
        step: Step,
        class: Class,
        claim: Claim,
        pieces: &[Placed],
        handles: Vec<OwnedFd>,
    ) -> Result<(), Shortage> {
        let fits = pieces.iter().all(|piece| piece.class == class && claim.covers(piece));
        if !fits || pieces.is_empty() || pieces.len() < handles.len() {
            return Err(Shortage::Misplaced);
        }
        if pieces.len() > handles.len() {
            return Err(Shortage::Descriptors);
        }
        self.put(process, pieces, handles)?;
        self.books().arriving.entry(step).or_default().extend_from_slice(pieces);
        Ok(())
    }

    /// The last answer to a lease is here: what came for it may be used.
    fn enter_arrived(&self, process: &Process, step: Step) {
        self.books().enter_arrived(step);
        self.publish_mapped(process);
    }

    /// Maps pieces: in our ranges, or where the program has mapped its handle.
    fn put(&self, process: &Process, pieces: &[Placed], handles: Vec<OwnedFd>) -> Result<(), DriverError> {
        let unit = self.layout.unit_bytes;
        let is_apart =
            |(piece, _): &(Placed, OwnedFd)| process.loose.is_behind_handle(self.device, piece, unit);
        let pairs = pieces.iter().copied().zip(handles);
        let (apart, own): (Vec<_>, Vec<_>) = pairs.partition(is_apart);
        let (own, handles): (Vec<Placed>, Vec<OwnedFd>) = own.into_iter().unzip();
        if !own.is_empty() {
            self.ranges()?.map(&own, handles)?;
        }
        let mut entered = Vec::new();
        for (piece, handle) in apart {
            let outcome = process.loose.enter(self.device, piece, unit, handle);
            outcome.inspect_err(|_| {
                for piece in own.iter().chain(&entered) {
                    // Part of undoing: the failure that is reported is the first.
                    let _ = self.take_away(process, piece);
                }
            })?;
            entered.push(piece);
        }
        Ok(())
    }

    /// Takes a piece away, wherever it is mapped.
    fn take_away(&self, process: &Process, piece: &Placed) -> Result<(), DriverError> {
        if process.loose.leave(piece.piece)? { Ok(()) } else { self.ranges()?.unmap(piece) }
    }

    /// Takes away the pieces of leases whose last answer has not come: these leases will be
    /// answered anew.
    pub fn unmap_arriving(&self, process: &Process) -> Result<(), DriverError> {
        let arriving = std::mem::take(&mut self.books().arriving);
        for placed in arriving.values().flatten() {
            self.take_away(process, placed)?;
        }
        Ok(())
    }

    fn publish_birth(&self, process: &Process, class: Class, start: u64, bytes: u64, owner: Context) {
        let persistent = class == Class::Persistent;
        let allocation = Allocation { bytes, owner, persistent, held: false, born: process.now() };
        let mut books = self.books();
        let live = &mut books.classes[class.index()].live;
        live.insert(start, allocation);
        self.publish_live(process, &books);
    }

    /// A framework deals out a block, or a part of one, of an allocation of its own: these bytes.
    pub fn deal_out(&self, process: &Process, class: Class, bytes: Range<u64>) -> Result<(), Mismatch> {
        let persistent = birth_class() == Class::Persistent;
        let block = Block { bytes: bytes.end - bytes.start, persistent, born: process.now() };
        let is_capturing = process.captures.any();
        self.change_blocks(process, class, |live| live.deal_out(bytes.start, block, is_capturing))
    }

    /// A framework takes a block, or a part of one, back.
    pub fn take_back(&self, process: &Process, class: Class, bytes: Range<u64>) -> Result<(), Mismatch> {
        let (by, is_capturing) = (Stamp::now(), process.captures.any());
        let length = bytes.end - bytes.start;
        self.change_blocks(process, class, |live| live.take_back(bytes.start, length, by, is_capturing))
    }

    fn change_blocks(
        &self,
        process: &Process,
        class: Class,
        change: impl FnOnce(&mut Liveness<Context>) -> Result<(), Mismatch>,
    ) -> Result<(), Mismatch> {
        let mut books = self.books();
        change(&mut books.classes[class.index()].live)?;
        self.publish_live(process, &books);
        Ok(())
    }

    /// The blocks that are dealt out: the range, the first byte there, and the length.
    pub fn blocks(&self) -> Vec<(Class, u64, u64)> {
        let books = self.books();
        let of = |class: Class| {
            let blocks = books.classes[class.index()].live.blocks();
            blocks.map(move |(start, bytes)| (class, start, bytes))
        };
        Class::ALL.into_iter().flat_map(of).collect()
    }

    /// What was told of blocks cannot be believed: allocations are alive as a whole.
    pub fn disbelieve(&self, process: &Process) {
        let mut books = self.books();
        books.classes.iter_mut().for_each(|class| class.live.disbelieve());
        self.publish_live(process, &books);
    }

    /// Frees the allocation that starts at `address`, when all work submitted before has ended.
    pub fn free(&self, process: &Process, address: CUdeviceptr) -> Result<(), Status> {
        let (class, start) = self.place_of(address).ok_or(Status::INVALID_VALUE)?;
        let dead = self.bury(process, class, start).ok_or(Status::INVALID_VALUE)?;
        let ended = wait_for_work_in(process, dead.owner);
        self.let_go(process, class, start, dead);
        self.books().classes[class.index()].arena.free(start);
        ended.map_err(Status::from)
    }

    /// Frees everything that was made in a context that is no more.
    pub fn free_all_of(&self, process: &Process, owner: Context) {
        for class in Class::ALL {
            let starts = self.books().classes[class.index()].live.owned_by(owner);
            for start in starts {
                if let Some(dead) = self.bury(process, class, start) {
                    self.let_go(process, class, start, dead);
                    self.books().classes[class.index()].arena.free(start);
                }
            }
        }
    }

    /// The bytes are dead; their place is not free yet.
    fn bury(&self, process: &Process, class: Class, start: u64) -> Option<Allocation<Context>> {
        let mut books = self.books();
        let live = &mut books.classes[class.index()].live;
        let dead = live.remove(start)?;
        books.classes[class.index()].numbers.remove(&start);
        self.publish_live(process, &books);
        Some(dead)
    }

    /// A number that no other allocation of the process has, nor had: the same as often as it is asked
    /// for, for the allocation that starts at an address.
    pub fn number_of(&self, start: CUdeviceptr) -> Option<u64> {
        let (class, at) = self.place_of(start)?;
        let mut books = self.books();
        let books = &mut books.classes[class.index()];
        books.live.containing(at)?;
        Some(*books.numbers.entry(at).or_insert_with(|| NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)))
    }

    /// Whether a device may use the tenant's memory.
    pub fn is_for(&self, device: CUdevice) -> bool {
        self.ranges.get().map_or(device == self.device, |ranges| ranges.is_for(device))
    }

    /// From now on these devices may use the tenant's memory too, and no others.
    pub fn share_with(&self, peers: BTreeSet<CUdevice>) -> Result<(), DriverError> {
        match self.ranges.get() {
            Some(ranges) => ranges.share_with(peers),
            None if peers.is_empty() => Ok(()),
            None => self.ranges()?.share_with(peers),
        }
    }

    /// The live allocation that an address belongs to.
    pub fn find(&self, address: CUdeviceptr) -> Option<Found> {
        let (class, at) = self.place_of(address)?;
        let (start, allocation) = self.books().classes[class.index()].live.containing(at)?;
        let start = address - (at - start);
        Some(Found { start, bytes: allocation.bytes, owner: allocation.owner })
    }

    /// Re-classes the block, or else the allocation, that a byte of the range `birth` belongs to.
    pub fn tag(&self, process: &Process, birth: Class, at: u64, class: Class) {
        let mut books = self.books();
        books.classes[birth.index()].live.tag(at, class, process.now());
        self.publish_live(process, &books);
    }

    /// The allocation that an address belongs to stays where it is until it is freed. Waits while
    /// the gate is closed: then it may not be there. `OUT_OF_MEMORY`: another job would not fit beside it any more.
    pub fn hold(&self, process: &Process, address: CUdeviceptr) -> Answer {
        match self.place_of(address) {
            Some((class, at)) => self.hold_at(process, class, at),
            None => Ok(()),
        }
    }

    /// The same by a byte of one of the ranges.
    pub fn hold_at(&self, process: &Process, class: Class, at: u64) -> Answer {
        let _pass = GATE.pass()?;
        let _order = self.holding.lock();
        // Marked before the manager answers, so that a free in between releases it.
        let pieces = {
            let mut books = self.books();
            let Some(held) = books.classes[class.index()].live.hold(at) else { return Ok(()) };
            books.pieces_behind(class, held, self.layout.unit_bytes)
        };
        let held = self.ask_to_hold(process, &pieces);
        if held.is_err() {
            self.books().classes[class.index()].live.release(at);
        }
        held
    }

    fn ask_to_hold(&self, process: &Process, pieces: &[Placed]) -> Answer {
        let question = |step| FromShim::Hold { step, tenant: self.id, pieces: ids(pieces) };
        match process.link.request(question).and_then(|replies| replies.next()) {
            // Without a manager nothing is moved.
            Ok(Reply::Held) | Err(Gone { .. }) => Ok(()),
            Ok(Reply::Refused(reason)) => {
                info!("memory cannot be held where it is: {reason}");
                Err(Status::OUT_OF_MEMORY)
            }
            Ok(_) => Err(Status::UNKNOWN),
        }
    }

    /// The allocation that an address belongs to is shared with other processes of the job: it stays
    /// where it is, even when it is freed. Returned is where it lies.
    pub fn share(&self, process: &Process, address: CUdeviceptr) -> Result<Shared, Status> {
        let (class, at) = self.place_of(address).ok_or(Status::INVALID_VALUE)?;
        let found = self.find(address).ok_or(Status::INVALID_VALUE)?;
        self.hold_at(process, class, at)?;
        let (_, start) = self.place_of(found.start).ok_or(Status::INVALID_VALUE)?;
        let unit = self.layout.unit_bytes;
        let mut books = self.books();
        let pieces = books.pieces_behind(class, start..start + found.bytes, unit);
        books.shared.extend(ids(&pieces));
        Ok(Shared { tenant: self.id, class, start, bytes: found.bytes, unit })
    }

    /// What was held is dead: pieces in which nothing else is held may go again.
    fn let_go(&self, process: &Process, class: Class, start: u64, dead: Allocation<Context>) {
        if !dead.held {
            return;
        }
        let _order = self.holding.lock();
        let pieces = {
            let (books, unit) = (self.books(), self.layout.unit_bytes);
            let mut pieces = books.pieces_behind(class, start..start + dead.bytes, unit);
            let live = &books.classes[class.index()].live;
            pieces.retain(|piece| {
                !live.holds_any_of(extent(piece, unit)) && !books.shared.contains(&piece.piece)
            });
            pieces
        };
        // As above.
        let _ = process.link.send(FromShim::LetGo { tenant: self.id, pieces: ids(&pieces) });
    }

    /// All that is alive.
    pub fn live_bytes(&self) -> u64 {
        self.books().classes.iter().map(|class| class.live.live_bytes().live).sum()
    }

    /// What is known of it, as JSON: the names are those of tidegate.h.
    pub fn status(&self) -> String {
        let (mut live, mut mapped, device) = (Bytes::default(), 0, self.device);
        for class in &self.books().classes {
            let of = class.live.live_bytes();
            live = Bytes { live: live.live + of.live, persistent: live.persistent + of.persistent };
            mapped += u64::from(class.arena.backed().0) * self.layout.unit_bytes;
        }
        let (allocated, Bytes { live, persistent }) = (self.allocated_bytes(), live);
        format!(
            r#"{{"device":{device},"allocated_bytes":{allocated},"live_bytes":{live},"persistent_bytes":{persistent},"mapped_bytes":{mapped}}}"#
        )
    }

    /// The sum of all allocations.
    pub fn allocated_bytes(&self) -> u64 {
        self.books().classes.iter().map(|class| class.live.allocated_bytes()).sum()
    }

    /// Whether no memory of the process is there.
    pub fn has_no_pieces(&self) -> bool {
        self.books().pieces.is_empty()
    }

    /// The live map of both classes, as the manager is told it at a closing.
    pub fn live_map(&self, stop: Stop) -> Vec<LiveRange> {
        let (books, mut ranges) = (self.books(), Vec::new());
        for class in Class::ALL {
            let live = &books.classes[class.index()].live;
            live.append_ranges(class, self.layout.unit_bytes, stop, &mut ranges);
        }
        ranges
    }

    /// Takes pieces away while the job is stopped. Those that are not here are no error: the
    /// manager may repeat an order that failed half-way.
    pub fn unmap(&self, process: &Process, pieces: &[PieceId]) -> Result<(), DriverError> {
        for piece in pieces {
            let placed = self.books().pieces.get(piece).copied();
            if let Some(placed) = placed {
                self.take_away(process, &placed)?;
                self.books().leave(&placed);
            }
        }
        self.publish_mapped(process);
        Ok(())
    }

    /// Maps pieces, and returns how many of the first are mapped: fewer where descriptors or host memory are short. Those that are here already are
    /// no error, as above.
    pub fn map(
        &self,
        process: &Process,
        mut pieces: Vec<Placed>,
        mut handles: Vec<OwnedFd>,
    ) -> Result<usize, Shortage> {
        let fits =
            pieces.iter().all(|p| self.books().classes[p.class.index()].arena.contains(p.slot, p.units));
        if !fits || pieces.len() < handles.len() {
            return Err(Shortage::Misplaced);
        }
        if pieces.len() > handles.len() {
            // The driver may need descriptors for each import, too.
            handles.truncate(handles.len().saturating_sub(DESCRIPTORS_TO_MAP));
            pieces.truncate(handles.len());
        }
        let count = pieces.len();
        let (missing, handles): (Vec<Placed>, Vec<OwnedFd>) = {
            let books = self.books();
            let absent = |(piece, _): &(Placed, OwnedFd)| !books.pieces.contains_key(&piece.piece);
            pieces.into_iter().zip(handles).filter(absent).unzip()
        };
        match self.put(process, &missing, handles) {
            Err(error) if may_pass(&error) => return Ok(0),
            outcome => outcome?,
        }
        self.books().enter(&missing);
        self.publish_mapped(process);
        Ok(count)
    }

    /// The job is about to run again.
    pub fn reopen(&self) {
        self.books().classes.iter_mut().for_each(|class| class.arena.reopen());
    }

    /// Answers a recall: gives back the pieces that no allocation touches.
    pub fn answer_recall(&self, process: &Process) -> Result<(), DriverError> {
        self.give_back_idle(process, |gone, unused| process.link.answer_recall(self.id, gone, unused))
    }

    /// Gives back the pieces that no allocation touches. Their slots are free for other pieces
    /// only when the manager has been told: a lease for them must not come before that.
    fn give_back_idle(
        &self,
        process: &Process,
        tell: impl FnOnce(Vec<PieceId>, Units),
    ) -> Result<(), DriverError> {
        self.reclaim();
        let _leaving = self.leaving.lock();
        let (idle, unused) = {
            let mut books = self.books();
            let unused = books.unused();
            (books.start_leaving(), unused)
        };
        let mut outcome = Ok(());
        let (gone, kept): (Vec<Placed>, Vec<Placed>) = idle.into_iter().partition(|placed| {
            if outcome.is_ok() {
                outcome = self.ranges().and_then(|ranges| ranges.unmap(placed));
            }
            outcome.is_ok()
        });
        info!("{}: gave back {} idle pieces and kept {}", self.id, gone.len(), kept.len());
        tell(ids(&gone), unused);
        self.books().end_leaving(&gone, &kept);
        self.publish_mapped(process);
        outcome
    }

    /// A handle gets pieces of its own. Idle ones would count beside them, as if the process needed both.
    fn give_back_what_no_handle_can_use(&self, process: &Process) {
        let has_idle = self.books().classes.iter().any(|class| class.arena.has_idle());
        let tell = |gone, unused| process.link.give_back(self.id, gone, unused);
        if has_idle && let Err(error) = self.give_back_idle(process, tell) {
            info!("idle pieces could not be given back before memory for a handle was asked for: {error}");
        }
    }

    /// The byte of one of the tenant's ranges that an address is.
    pub fn place_of(&self, address: CUdeviceptr) -> Option<(Class, u64)> {
        self.ranges.get()?.find(address)
    }

    /// The parts of some addresses that are in the tenant's ranges.
    pub fn stretches(&'static self, addresses: Range<CUdeviceptr>) -> impl Iterator<Item = Stretch> {
        let over = self.ranges.get().map(|ranges| (ranges, ranges.over(addresses)));
        over.into_iter().flat_map(move |(ranges, parts)| {
            parts.map(move |(class, bytes)| Stretch {
                tenant: self,
                class,
                start: ranges.address(class, bytes.start),
                bytes,
            })
        })
    }

    /// The slots over some bytes of a range behind which no piece is, as bytes.
    pub fn missing(&self, class: Class, bytes: Range<u64>) -> Vec<Range<u64>> {
        self.books().classes[class.index()].arena.missing(bytes)
    }

    /// Described work uses some bytes of a range.
    pub fn note_use(&self, class: Class, bytes: Range<u64>) {
        let unit = self.layout.unit_bytes.max(1);
        let slot = |index: u64| u32::try_from(index).unwrap_or(u32::MAX);
        self.uses.lock().note(class, slot(bytes.start / unit)..slot(bytes.end.div_ceil(unit)));
    }

    /// The slice has ended: the order in which described work has used its slots, if that is news.
    pub fn end_slice(&self) -> Option<Vec<SlotRun>> {
        self.uses.lock().end_slice()
    }

    fn publish_live(&self, process: &Process, books: &Books) {
        let row = self.row(process);
        let mut persistent_bytes = 0;
        for class in Class::ALL {
            let live = &books.classes[class.index()].live;
            let bytes = live.live_bytes();
            row.publish_live(class, bytes.live, live.allocated_bytes());
            persistent_bytes += bytes.persistent;
        }
        row.publish_labelled(persistent_bytes);
    }

    fn publish_mapped(&self, process: &Process) {
        let books = self.books();
        for class in Class::ALL {
            let units = u64::from(books.classes[class.index()].arena.backed().0);
            let bytes = units * self.layout.unit_bytes;
            self.row(process).mapped_bytes[class.index()].store(bytes, Ordering::Relaxed);
        }
    }

    /// Shows the tenant on the page.
    pub fn publish_name(&self, process: &Process) {
        self.row(process).tenant.store(self.id.0, Ordering::Relaxed);
    }

    fn row<'a>(&self, process: &'a Process) -> &'a TenantRow {
        &process.page.tenants[self.row]
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }
}

impl Books {
    fn start(&mut self, class: Class, bytes: u64, most_ahead: Units) -> Option<Place> {
        let arena = &mut self.classes[class.index()].arena;
        let ahead = Units(arena.backed().0 / AHEAD_PART).min(most_ahead);
        arena.place(bytes, ahead)
    }

    /// Units that were leased ahead and never used.
    fn unused(&self) -> Units {
        Units(self.classes.iter().map(|class| class.arena.unused().0).sum())
    }

    fn enter(&mut self, pieces: &[Placed]) {
        for piece in pieces {
            self.pieces.insert(piece.piece, *piece);
            self.classes[piece.class.index()].arena.back(piece.slot, piece.units);
        }
    }

    /// The pieces that some of these bytes lie in.
    fn pieces_behind(&self, class: Class, bytes: Range<u64>, unit: u64) -> Vec<Placed> {
        let touches = |piece: &&Placed| {
            let extent = extent(piece, unit);
            piece.class == class && extent.start < bytes.end && bytes.start < extent.end
        };
        self.pieces.values().filter(touches).copied().collect()
    }

    fn enter_arrived(&mut self, step: Step) {
        let arrived = self.arriving.remove(&step).unwrap_or_default();
        self.enter(&arrived);
    }

    fn leave(&mut self, placed: &Placed) {
        self.pieces.remove(&placed.piece);
        self.classes[placed.class.index()].arena.send_away(placed.slot, placed.units);
    }

    fn end_leaving(&mut self, gone: &[Placed], kept: &[Placed]) {
        for placed in gone {
            self.classes[placed.class.index()].arena.left(placed.slot, placed.units);
        }
        self.enter(kept);
    }

    /// Takes all pieces that no place touches out of use, and out of the list: as soon as the manager
    /// is told, it may hand them out again, for other slots.
    fn start_leaving(&mut self) -> Vec<Placed> {
        let Self { classes, pieces, .. } = self;
        let mut leaves =
            |piece: &Placed| classes[piece.class.index()].arena.start_leaving(piece.slot, piece.units);
        pieces.extract_if(.., |_, placed| leaves(placed)).map(|(_, placed)| placed).collect()
    }
}

impl Claim {
    /// Whether a piece lies in the slots that were asked for.
    fn covers(&self, piece: &Placed) -> bool {
        let end = |first: u32, units: u32| u64::from(first) + u64::from(units);
        let claimed = end(self.first.0, self.units.0) + u64::from(self.ahead.0);
        piece.slot >= self.first && piece.units.0 > 0 && end(piece.slot.0, piece.units.0) <= claimed
    }
}

/// The bytes of its class's address range behind which a piece lies.
fn extent(piece: &Placed, unit: u64) -> Range<u64> {
    let start = u64::from(piece.slot.0) * unit;
    start..start + u64::from(piece.units.0) * unit
}

fn ids(pieces: &[Placed]) -> Vec<PieceId> {
    pieces.iter().map(|piece| piece.piece).collect()
}

/// Whether a driver call failed for lack of descriptors or host memory, which may be free again in a moment.
fn may_pass(error: &DriverError) -> bool {
    matches!(error.code, CUresult::CUDA_ERROR_OPERATING_SYSTEM | CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// Waits for the work of a context, which need not be the current one.
fn wait_for_work_in(process: &Process, context: Context) -> Result<(), DriverError> {
    if crate::driver::current_context() == Some(context) {
        return synchronize();
    }
    // Destroyed meanwhile: its work has ended with it.
    let Some(used) = process.contexts.keep(context) else { return Ok(()) };
    let _current = Current::make(used.context)?;
    synchronize()
}

fn explain(bytes: u64, class: Class, shortage: &Shortage) {
    match shortage {
        Shortage::Gone(gone) => {
            gone.explain(format_args!("what is allocated goes on, new memory cannot be had"));
        }
        Shortage::Descriptors => {
            static SAID: Once = Once::new();
            SAID.say(Level::Warn, format_args!("no room for {bytes} bytes of {class} memory: {shortage}"));
        }
        shortage => info!("no room for {bytes} bytes of {class} memory: {shortage}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_ffi::units::SlotIndex;

    const PIECE: Placed =
        Placed { piece: PieceId(7), class: Class::Temporary, slot: SlotIndex(0), units: Units(1) };

    /// With one piece that nobody uses.
    fn tenant() -> Tenant {
        let (unit_bytes, total_bytes) = (4096, 1 << 16);
        let layout =
            Layout { unit_bytes, piece_bytes: unit_bytes, total_bytes, range_bytes: 4 * total_bytes };
        let tenant = Tenant::new(TenantId(1), 0, layout, 0);
        tenant.books().enter(&[PIECE]);
        tenant
    }

    #[test]
    fn a_piece_that_is_handed_out_again_while_it_is_given_back_can_be_taken_away() {
        let tenant = tenant();
        let idle = tenant.books().start_leaving();
        assert_eq!(idle, [PIECE]);
        // The manager, told, answers a lease with it before this thread goes on.
        let elsewhere = Placed { slot: SlotIndex(5), ..PIECE };
        tenant.books().enter(&[elsewhere]);
        tenant.books().end_leaving(&idle, &[]);
        assert_eq!(tenant.books().pieces.get(&PIECE.piece), Some(&elsewhere), "whoever unmaps it finds it");
    }

    #[test]
    fn a_piece_that_could_not_be_given_back_is_there_as_before() {
        let tenant = tenant();
        let idle = tenant.books().start_leaving();
        tenant.books().end_leaving(&[], &idle);
        assert_eq!(tenant.books().pieces.get(&PIECE.piece), Some(&PIECE));
        assert_eq!(tenant.books().start_leaving(), [PIECE]);
    }
}
