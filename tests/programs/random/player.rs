//! Plays steps that the dice choose, and knows what every byte must be.

use crate::calls::*;
use crate::dice::Dice;
use crate::graphs::Graph;
use crate::work::*;
use cudarc::driver::sys::{
    self, CUarray_format, CUcontext, CUmemoryPool, CUpointer_attribute, CUresult, CUstream,
};
use std::collections::BTreeMap;
use std::ptr::null_mut;

/// A stream, and where it belongs.
#[derive(Clone, Copy)]
pub struct Lane {
    pub stream: CUstream,
    pub context: CUcontext,
    kernel: Kernel,
}

/// How some memory was had, and is given back.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Ordered,
    Mapped { piece: usize },
    Registered,
    Pinned,
    Array,
}

/// Memory that work can name.
#[derive(Clone, Copy)]
struct Place {
    kind: Kind,
    spot: Spot,
    bytes: usize,
    context: CUcontext,
}

/// Memory of the program's own, perhaps mapped in several places.
struct Piece {
    handle: Option<u64>,
    store: usize,
    mapped: usize,
}

pub struct Player {
    pub dice: Dice,
    pub stores: Stores,
    pub lanes: BTreeMap<usize, Lane>,
    pub graphs: Vec<Graph>,
    pub home: CUcontext,
    pub kernel: Kernel,
    image: String,
    managed: bool,
    places: BTreeMap<usize, Place>,
    pieces: BTreeMap<usize, Piece>,
    /// Its own memory that is registered.
    registered: BTreeMap<usize, Vec<u8>>,
    contexts: Vec<CUcontext>,
    pools: Vec<CUmemoryPool>,
    unit: usize,
    budget: usize,
    numbers: usize,
    sum: u64,
    /// What it has seen.
    told: Vec<String>,
    name: &'static str,
    step: usize,
}

/// The lanes that every player has: the legacy stream, and that of its thread.
const LEGACY: usize = 0;
const OWN_THREAD: usize = 1;
const NON_BLOCKING: u32 = 1;
const LEAST: usize = 256;
const MOST: usize = 512 << 10;

impl Player {
    /// In the primary context, which is current.
    pub fn new(name: &'static str, seed: u64, image: &str, budget: usize, managed: bool) -> Self {
        let home = primary();
        let kernel = Kernel::load(image, false);
        let lane = |stream| Lane { stream, context: home, kernel };
        let per_thread = std::ptr::without_provenance_mut(2);
        let lanes = BTreeMap::from([(LEGACY, lane(null_mut())), (OWN_THREAD, lane(per_thread))]);
        let mut unit = 0;
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        ok!(cuMemGetAllocationGranularity(&mut unit, &properties(), least));
        let mut player = Self {
            dice: Dice::new(seed),
            stores: BTreeMap::new(),
            lanes,
            graphs: Vec::new(),
            home,
            kernel,
            image: image.into(),
            managed,
            places: BTreeMap::new(),
            pieces: BTreeMap::new(),
            registered: BTreeMap::new(),
            contexts: Vec::new(),
            pools: vec![new_pool(), new_pool()],
            unit,
            budget,
            numbers: OWN_THREAD,
            sum: unit as u64,
            told: Vec::new(),
            name,
            step: 0,
        };
        for flags in [0, 0, NON_BLOCKING, NON_BLOCKING, NON_BLOCKING] {
            player.add_lane(flags, home, kernel);
        }
        player
    }

    /// So many steps, and at the end a look at everything; what it saw is told in lines.
    pub fn play(mut self, steps: usize) -> Vec<String> {
        self.take_host(LEAST);
        (0..12).for_each(|_| self.allocate());
        for step in 0..steps {
            self.step = step;
            self.play_one();
        }
        self.check_all();
        self.end();
        self.told
    }

    fn play_one(&mut self) {
        let which = self.dice.below(100);
        if std::env::var_os("LOUD").is_some() {
            eprintln!("{}: step {} is {which}", self.name, self.step);
        }
        match which {
            0..14 => self.allocate(),
            14..22 => self.free(),
            22..52 => self.work_some(),
            52..60 => self.check_one(),
            60..66 => self.capture(),
            66..71 => self.build(),
            71..79 => self.launch_graph(),
            79..81 => self.update_graph(),
            81..84 => self.drop_graph(),
            84..86 => self.pass_word(),
            86..88 => self.begin_context(),
            88..90 => self.end_context(),
            90 => self.renew_lane(),
            91 => self.reload(),
            92..95 => self.be_refused(),
            95..97 => self.release_or_retain(),
            97 => self.ask(),
            98 => self.check_all(),
            _ => boundary(),
        }
    }

    /// Counts something that was seen.
    fn see(&mut self, what: &str, bytes: &[u8]) {
        let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        self.sum = bytes.iter().fold(self.sum, mix);
        self.told.push(format!("{}: step {}: {what}: {:016x}", self.name, self.step, self.sum));
    }

    fn see_code(&mut self, what: &str, code: CUresult) {
        self.see(&format!("{what} is {code:?}"), &(code as u32).to_le_bytes());
    }

    // Lanes.

    fn number(&mut self) -> usize {
        self.numbers += 1;
        self.numbers
    }

    fn add_lane(&mut self, flags: u32, context: CUcontext, kernel: Kernel) -> usize {
        let number = self.number();
        let stream = within(context, || stream(flags));
        self.lanes.insert(number, Lane { stream, context, kernel });
        number
    }

    pub fn lane_of(&mut self, wanted: impl Fn(&Lane) -> bool) -> usize {
        let all: Vec<usize> = self.lanes.iter().filter(|(_, lane)| wanted(lane)).map(|(n, _)| *n).collect();
        self.dice.of(&all)
    }

    fn any_lane(&mut self) -> usize {
        self.lane_of(|_| true)
    }

    pub fn home_lane(&mut self) -> usize {
        let home = self.home;
        self.lane_of(|lane| lane.context == home)
    }

    /// A stream that nothing else waits for unasked.
    pub fn free_lane(&mut self) -> usize {
        let (home, legacy) = (self.home, self.lanes[&LEGACY].stream);
        let is_free = |lane: &Lane| {
            let mut flags = 0;
            lane.context == home
                && lane.stream != legacy
                && lane.stream.addr() != 2
                && cu!(cuStreamGetFlags(lane.stream, &mut flags)) == CUresult::CUDA_SUCCESS
                && flags == NON_BLOCKING
        };
        self.lane_of(is_free)
    }

    /// What is done on `lane` from now on comes after all that was done with these.
    pub fn order(&mut self, stores: &[usize], lane: usize) {
        for store in stores {
            let last = std::mem::replace(&mut self.stores.get_mut(store).unwrap().lane, lane);
            if last != lane {
                self.wait(last, lane);
            }
        }
    }

    fn wait(&mut self, first: usize, then: usize) {
        let (first, then) = (self.lanes[&first], self.lanes[&then]);
        if self.dice.one_in(5) {
            return within(first.context, || ok!(cuStreamSynchronize(first.stream)));
        }
        let mark = within(first.context, || {
            let mark = event();
            ok!(cuEventRecord(mark, first.stream));
            mark
        });
        within(then.context, || ok!(cuStreamWaitEvent(then.stream, mark, 0)));
        within(first.context, || ok!(cuEventDestroy_v2(mark)));
    }

    fn synchronize(&mut self, lane: usize) {
        let lane = self.lanes[&lane];
        within(lane.context, || ok!(cuStreamSynchronize(lane.stream)));
    }

    fn synchronize_all(&mut self) {
        let lanes: Vec<usize> = self.lanes.keys().copied().collect();
        lanes.into_iter().for_each(|lane| self.synchronize(lane));
    }

    fn do_on(&mut self, op: Op, number: usize) {
        self.order(&op.stores(), number);
        let (lane, way) = (self.lanes[&number], self.dice.below(12));
        within(lane.context, || op.submit(lane.stream, lane.kernel.function, way));
        op.apply(&mut self.stores);
    }

    // Memory.

    fn on_device(&self) -> usize {
        self.stores.values().filter(|store| store.lane != usize::MAX).map(|store| store.bytes.len()).sum()
    }

    fn size(&mut self) -> usize {
        let most = self.dice.of(&[4096, 64 << 10, 256 << 10, MOST]);
        self.dice.within(LEAST, most) & !7
    }

    fn allocate(&mut self) {
        let bytes = self.size();
        if self.on_device() + bytes.next_multiple_of(self.unit) > self.budget {
            return self.free();
        }
        let class = self.dice.below(3) as i32;
        match self.dice.below(if self.managed { 18 } else { 16 }) {
            0..4 => {
                let lane = self.any_lane();
                let context = self.lanes[&lane].context;
                let base = within(context, || scoped(class, || alloc(bytes)));
                self.add(Kind::Plain, Space::Device, base, bytes, lane, context);
            }
            4 => self.allocate_pitched(),
            5..8 => self.allocate_ordered(bytes, class),
            8..11 => self.create_piece(bytes),
            11 => self.map_again(),
            12 | 13 => self.take_host(bytes),
            14 | 15 => self.create_array(),
            _ => self.allocate_managed(bytes),
        }
        if self.dice.one_in(4) {
            let place = self.any_place();
            tag(place.spot.base, class);
        }
    }

    /// New memory, filled at once: what was in it before is nobody's business.
    fn add(&mut self, kind: Kind, space: Space, base: u64, bytes: usize, lane: usize, context: CUcontext) {
        let store = self.add_store(bytes, lane);
        self.add_place(kind, Spot { space, base, store, offset: 0 }, bytes, context);
        self.fill(Spot { space, base, store, offset: 0 }, bytes, lane);
    }

    pub fn add_store(&mut self, bytes: usize, lane: usize) -> usize {
        let number = self.number();
        self.stores.insert(number, Store { bytes: vec![0; bytes], lane, pins: 0 });
        number
    }

    fn add_place(&mut self, kind: Kind, spot: Spot, bytes: usize, context: CUcontext) {
        let number = self.number();
        self.places.insert(number, Place { kind, spot, bytes, context });
    }

    fn fill(&mut self, to: Spot, bytes: usize, lane: usize) {
        if self.dice.one_in(2) {
            let value = self.dice.next() as u32;
            return self.do_on(Op::Set { to, element: 1, value, count: bytes }, lane);
        }
        let data = self.dice.bytes(bytes);
        let lane = self.lanes[&lane];
        within(lane.context, || {
            ok!(cuMemcpyHtoDAsync_v2(to.at(), data.as_ptr().cast(), bytes, lane.stream));
            // Ordinary memory may be read until then.
            ok!(cuStreamSynchronize(lane.stream));
        });
        self.stores.get_mut(&to.store).unwrap().bytes = data;
    }

    fn allocate_pitched(&mut self) {
        let (width, height) = (self.dice.within(1, 1000), self.dice.within(1, 16));
        let (lane, mut base, mut pitch) = (self.home_lane(), 0, 0);
        let element = self.dice.of(&[4, 8, 16]);
        ok!(cuMemAllocPitch_v2(&mut base, &mut pitch, width, height, element));
        let home = self.home;
        self.add(Kind::Plain, Space::Device, base, pitch * height, lane, home);
        self.see("a pitch", &pitch.to_le_bytes());
    }

    fn allocate_ordered(&mut self, bytes: usize, class: i32) {
        let (lane, mut base) = (self.home_lane(), 0);
        let (stream, pool) = (self.lanes[&lane].stream, self.dice.below(self.pools.len() + 1));
        scoped(class, || match self.pools.get(pool) {
            Some(pool) => ok!(cuMemAllocFromPoolAsync(&mut base, bytes, *pool, stream)),
            None => ok!(cuMemAllocAsync(&mut base, bytes, stream)),
        });
        let home = self.home;
        self.add(Kind::Ordered, Space::Device, base, bytes, lane, home);
    }

    fn create_piece(&mut self, bytes: usize) {
        let (bytes, lane, mut handle) = (bytes.next_multiple_of(self.unit), self.home_lane(), 0);
        ok!(cuMemCreate(&mut handle, bytes, &properties(), 0));
        let (store, base) = (self.add_store(bytes, lane), map(handle, bytes));
        let piece = self.number();
        self.pieces.insert(piece, Piece { handle: Some(handle), store, mapped: 1 });
        let (home, spot) = (self.home, Spot { space: Space::Device, base, store, offset: 0 });
        self.add_place(Kind::Mapped { piece }, spot, bytes, home);
        self.fill(spot, bytes, lane);
    }

    /// One more mapping of something that is mapped.
    fn map_again(&mut self) {
        let all: Vec<usize> = self
            .pieces
            .iter()
            .filter(|(_, piece)| piece.handle.is_some())
            .map(|(number, _)| *number)
            .collect();
        if all.is_empty() {
            return;
        }
        let number = self.dice.of(&all);
        let piece = self.pieces.get_mut(&number).unwrap();
        piece.mapped += 1;
        let (store, handle) = (piece.store, piece.handle.unwrap());
        let bytes = self.stores[&store].bytes.len();
        let spot = Spot { space: Space::Device, base: map(handle, bytes), store, offset: 0 };
        let home = self.home;
        self.add_place(Kind::Mapped { piece: number }, spot, bytes, home);
    }

    /// A mapping outlives its handle, and gives another.
    fn release_or_retain(&mut self) {
        let mapped = self.places.values().filter_map(|place| match place.kind {
            Kind::Mapped { piece } => Some((piece, place.spot.base)),
            _ => None,
        });
        let all: Vec<_> = mapped.collect();
        if all.is_empty() {
            return;
        }
        let (number, base) = self.dice.of(&all);
        let piece = self.pieces.get_mut(&number).unwrap();
        match piece.handle.take() {
            Some(handle) => ok!(cuMemRelease(handle)),
            None => {
                let mut handle = 0;
                let at = std::ptr::without_provenance_mut(base as usize + 8);
                ok!(cuMemRetainAllocationHandle(&mut handle, at));
                piece.handle = Some(handle);
            }
        }
    }

    fn take_host(&mut self, bytes: usize) {
        let (lane, home) = (self.home_lane(), self.home);
        if self.dice.one_in(2) {
            let mut own = vec![0; bytes];
            let base = own.as_mut_ptr().expose_provenance() as u64;
            ok!(cuMemHostRegister_v2(own.as_mut_ptr().cast(), bytes, 0));
            let store = self.numbers + 1;
            self.registered.insert(store, own);
            return self.add(Kind::Registered, Space::Host, base, bytes, lane, home);
        }
        let mut base = null_mut();
        ok!(cuMemHostAlloc(&mut base, bytes, 0));
        self.add(Kind::Pinned, Space::Host, base.expose_provenance() as u64, bytes, lane, home);
    }

    fn create_array(&mut self) {
        let (width, height) = (self.dice.within(1, 64), self.dice.within(1, 16));
        let (lane, mut array, home) = (self.home_lane(), null_mut(), self.home);
        let shape = sys::CUDA_ARRAY_DESCRIPTOR {
            Width: width,
            Height: height,
            Format: CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32,
            NumChannels: 1,
        };
        ok!(cuArrayCreate_v2(&mut array, &shape));
        let (row, bytes) = (4 * width, 4 * width * height);
        let store = self.add_store(bytes, lane);
        let base = array.expose_provenance() as u64;
        let spot = Spot { space: Space::Array(row), base, store, offset: 0 };
        self.add_place(Kind::Array, spot, bytes, home);
        let data = self.dice.bytes(bytes);
        let from =
            Spot { space: Space::Host, base: data.as_ptr().expose_provenance() as u64, store, offset: 0 };
        let rows = |spot| Rows { spot, pitch: row };
        let copy = volume(rows(spot), rows(from), [row, height, 1]);
        ok!(cuMemcpy3D_v2(&copy));
        self.stores.get_mut(&store).unwrap().bytes = data;
        self.stores.get_mut(&store).unwrap().lane = LEGACY;
    }

    fn allocate_managed(&mut self, bytes: usize) {
        let (lane, mut base, home) = (self.home_lane(), 0, self.home);
        ok!(cuMemAllocManaged(&mut base, bytes, 1));
        self.add(Kind::Plain, Space::Device, base, bytes, lane, home);
        let stream = self.lanes[&lane].stream;
        ok!(cuMemPrefetchAsync_v2(base, bytes, device(), 0, stream));
        ok!(cuMemAdvise_v2(base, bytes, sys::CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY, device()));
    }

    fn any_place(&mut self) -> Place {
        let all: Vec<Place> = self.places.values().copied().collect();
        self.dice.of(&all)
    }

    fn free(&mut self) {
        let is_free = |(_, place): &(&usize, &Place)| self.stores[&place.spot.store].pins == 0;
        let all: Vec<usize> = self.places.iter().filter(is_free).map(|(number, _)| *number).collect();
        if all.len() > 4 {
            let number = self.dice.of(&all);
            self.give_back(number);
        }
    }

    fn give_back(&mut self, number: usize) {
        let Place { kind, spot, context, bytes } = self.places.remove(&number).unwrap();
        let lane = self.home_lane();
        self.order(&[spot.store], lane);
        let stream = self.lanes[&lane].stream;
        if !matches!(kind, Kind::Ordered) {
            self.synchronize(lane);
        }
        match kind {
            Kind::Ordered | Kind::Plain if context == self.home && !self.managed && self.dice.one_in(3) => {
                ok!(cuMemFreeAsync(spot.base, stream));
            }
            Kind::Ordered if self.dice.one_in(2) => ok!(cuMemFreeAsync(spot.base, stream)),
            Kind::Ordered => {
                self.synchronize(lane);
                ok!(cuMemFree_v2(spot.base));
            }
            Kind::Plain => within(context, || ok!(cuMemFree_v2(spot.base))),
            Kind::Mapped { piece } => return self.unmap(piece, spot.base, bytes),
            Kind::Registered => {
                ok!(cuMemHostUnregister(std::ptr::with_exposed_provenance_mut(spot.base as usize)));
                self.registered.remove(&spot.store);
            }
            Kind::Pinned => ok!(cuMemFreeHost(std::ptr::with_exposed_provenance_mut(spot.base as usize))),
            Kind::Array => ok!(cuArrayDestroy(std::ptr::with_exposed_provenance_mut(spot.base as usize))),
        }
        self.stores.remove(&spot.store);
    }

    fn unmap(&mut self, number: usize, at: u64, bytes: usize) {
        unmap(at, bytes);
        let piece = self.pieces.get_mut(&number).unwrap();
        piece.mapped -= 1;
        if piece.mapped == 0 {
            let piece = self.pieces.remove(&number).unwrap();
            self.stores.remove(&piece.store);
            if let Some(handle) = piece.handle {
                ok!(cuMemRelease(handle));
            }
        }
    }

    // Work.

    fn work_some(&mut self) {
        for _ in 0..self.dice.within(1, 6) {
            let Some(op) = self.any_op(true) else { continue };
            let lane = self.any_lane();
            self.do_on(op, lane);
        }
    }

    /// Work on memory that is there; `everywhere`: also in other contexts, and what only streams do.
    pub fn any_op(&mut self, everywhere: bool) -> Option<Op> {
        let (one, other) = (self.any_place(), self.any_place());
        let home = self.home;
        if !everywhere && (one.context != home || other.context != home) {
            return None;
        }
        let linear = !matches!(one.spot.space, Space::Array(_));
        let both = linear && !matches!(other.spot.space, Space::Array(_));
        let apart = one.spot.store != other.spot.store;
        match self.dice.below(10) {
            0 | 1 if linear => Some(self.a_set(one)),
            2 if linear => Some(self.a_rectangle(one)),
            3..5 if both && apart => Some(self.a_copy(one, other)),
            5 | 6 if apart => self.a_copy_of_rows(one, other),
            7 | 8 if linear => Some(self.a_count(one)),
            9 if linear && everywhere => Some(self.a_word(one)),
            _ => None,
        }
    }

    fn a_set(&mut self, of: Place) -> Op {
        let element = self.dice.of(&[1, 2, 4]);
        let count = self.dice.within(1, of.bytes / element);
        let offset = self.dice.within(0, of.bytes / element - count) * element;
        Op::Set { to: Spot { offset, ..of.spot }, element, value: self.dice.next() as u32, count }
    }

    fn a_rectangle(&mut self, of: Place) -> Op {
        let (element, height) = (self.dice.of(&[1, 2, 4]), self.dice.within(1, 4));
        let pitch = (of.bytes / height / 4) * 4;
        let width = self.dice.within(1, pitch / element);
        let to = Rows { spot: of.spot, pitch };
        Op::SetRows { to, element, value: self.dice.next() as u32, width, height }
    }

    fn a_copy(&mut self, one: Place, other: Place) -> Op {
        let bytes = self.dice.within(1, one.bytes.min(other.bytes));
        let (to, from) = (self.dice.within(0, one.bytes - bytes), self.dice.within(0, other.bytes - bytes));
        Op::Copy { to: Spot { offset: to, ..one.spot }, from: Spot { offset: from, ..other.spot }, bytes }
    }

    /// Rows that both have, of arrays or of memory with a pitch.
    fn a_copy_of_rows(&mut self, one: Place, other: Place) -> Option<Op> {
        let shape = |place: &Place, dice: &mut Dice| match place.spot.space {
            Space::Array(row) => (row, place.bytes / row),
            _ => {
                let height = dice.within(1, 6);
                (place.bytes / height, height)
            }
        };
        let (to_shape, from_shape) = (shape(&one, &mut self.dice), shape(&other, &mut self.dice));
        let is_array = |place: &Place| matches!(place.spot.space, Space::Array(_));
        let (mut width, mut rows) = (to_shape.0.min(from_shape.0), to_shape.1.min(from_shape.1));
        let either = is_array(&one) || is_array(&other);
        if either {
            width &= !3;
        } else {
            width = self.dice.within(1, width);
        }
        if width == 0 {
            return None;
        }
        rows = self.dice.within(1, rows);
        let depth = if !either && rows.is_multiple_of(2) { self.dice.within(1, 2) } else { 1 };
        let rows_of = |place: Place, pitch| Rows { spot: place.spot, pitch };
        let (to, from) = (rows_of(one, to_shape.0), rows_of(other, from_shape.0));
        Some(Op::CopyRows { to, from, width, height: rows / depth, depth })
    }

    fn a_count(&mut self, of: Place) -> Op {
        let bytes = self.dice.within(1, of.bytes.min(64 << 10));
        let offset = self.dice.within(0, of.bytes - bytes);
        let form = self.dice.of(&[Form::Plain, Form::Ex, Form::Cooperative]);
        Op::Count { at: Spot { offset, ..of.spot }, bytes, form }
    }

    fn a_word(&mut self, of: Place) -> Op {
        let offset = self.dice.within(0, of.bytes / 8 - 1) * 8;
        Op::Write { at: Spot { offset, ..of.spot }, value: self.dice.next(), wide: self.dice.one_in(2) }
    }

    /// One stream waits for a word that another one has been told to write.
    fn pass_word(&mut self) {
        let place = self.any_place();
        if matches!(place.spot.space, Space::Array(_)) || place.context != self.home {
            return;
        }
        let (first, then) = (self.home_lane(), self.home_lane());
        let Op::Write { at, value, wide } = self.a_word(place) else { unreachable!() };
        // What it waits for is not there already, by chance or by what comes after the word.
        self.do_on(Op::Write { at, value: !value, wide: true }, first);
        self.synchronize(first);
        self.do_on(Op::Write { at, value, wide }, first);
        const EQUAL: u32 = 1;
        let stream = self.lanes[&then].stream;
        if wide {
            ok!(cuStreamWaitValue64_v2(stream, at.at(), value, EQUAL));
        } else {
            ok!(cuStreamWaitValue32_v2(stream, at.at(), value as u32, EQUAL));
        }
        self.synchronize(then);
    }

    // Contexts, modules, streams.

    fn begin_context(&mut self) {
        if self.contexts.len() == 2 {
            return;
        }
        let context = new_context();
        let kernel = Kernel::load(&self.image, self.dice.one_in(2));
        let mut popped = null_mut();
        ok!(cuCtxPopCurrent_v2(&mut popped));
        assert_eq!(popped, context);
        self.contexts.push(context);
        self.add_lane(0, context, kernel);
        self.add_lane(NON_BLOCKING, context, kernel);
    }

    /// With all that is in it.
    fn end_context(&mut self) {
        if self.contexts.is_empty() {
            return;
        }
        let number = self.dice.below(self.contexts.len());
        let context = self.contexts.remove(number);
        self.synchronize_all();
        self.stores.values_mut().for_each(|store| store.lane = LEGACY);
        let gone = |place: &&Place| place.context == context;
        let stores: Vec<usize> = self.places.values().filter(gone).map(|place| place.spot.store).collect();
        self.places.retain(|_, place| place.context != context);
        stores.iter().for_each(|store| drop(self.stores.remove(store)));
        self.lanes.retain(|_, lane| lane.context != context);
        ok!(cuCtxDestroy_v2(context));
        if self.places.is_empty() {
            self.take_host(LEAST);
        }
        let code = cu!(cuCtxSetCurrent(context));
        self.see_code("a context that was destroyed", code);
    }

    fn reload(&mut self) {
        while !self.graphs.is_empty() {
            self.drop_graph();
        }
        self.synchronize_all();
        ok!(cuModuleUnload(self.kernel.module));
        self.kernel = Kernel::load(&self.image, self.dice.one_in(2));
        let (home, kernel) = (self.home, self.kernel);
        self.lanes.values_mut().filter(|lane| lane.context == home).for_each(|lane| lane.kernel = kernel);
    }

    fn renew_lane(&mut self) {
        let number = self.free_lane();
        self.synchronize(number);
        let old = self.lanes[&number];
        ok!(cuStreamDestroy_v2(old.stream));
        self.lanes.insert(number, Lane { stream: stream(NON_BLOCKING), ..old });
    }

    // What is asked, and what is refused.

    fn ask(&mut self) {
        let place = self.any_place();
        if !matches!(place.spot.space, Space::Device) {
            return;
        }
        let (mut base, mut size, mut kind) = (0, 0, 0u32);
        let at = place.spot.base + self.dice.below(place.bytes) as u64;
        ok!(cuMemGetAddressRange_v2(&mut base, &mut size, at));
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        ok!(cuPointerGetAttribute((&raw mut kind).cast(), attribute, at));
        self.see("a size", &size.to_le_bytes());
        self.see("a distance", &(at - base).to_le_bytes());
        self.see("a kind", &kind.to_le_bytes());
    }

    fn be_refused(&mut self) {
        let (place, lane) = (self.any_place(), self.home_lane());
        let stream = self.lanes[&lane].stream;
        let (at, mut nothing, mut none) = (place.spot.base, 0, null_mut());
        let device = matches!((place.spot.space, place.kind), (Space::Device, Kind::Plain | Kind::Ordered));
        let (what, code) = match self.dice.below(8) {
            0 if device => ("a free of the middle", cu!(cuMemFree_v2(at + 8))),
            1 if device => ("an ordered free of the middle", cu!(cuMemFreeAsync(at + 8, stream))),
            2 if device => ("a crooked set", cu!(cuMemsetD32_v2(at + 2, 1, 1))),
            3 if device => ("a crooked word", cu!(cuStreamWriteValue32_v2(stream, at + 2, 1, 0))),
            4 => ("no memory at all", cu!(cuMemAlloc_v2(&mut nothing, 0))),
            5 => ("no handle", cu!(cuMemRelease(0xdead_0000))),
            6 => ("no kernel", cu!(cuModuleGetFunction(&mut none, self.kernel.module, c"none".as_ptr()))),
            _ => ("too much", cu!(cuMemAlloc_v2(&mut nothing, 1 << 40))),
        };
        self.see_code(what, code);
    }

    // Looking.

    fn check_one(&mut self) {
        let all: Vec<usize> = self.places.keys().copied().collect();
        let number = self.dice.of(&all);
        self.check(number);
    }

    fn check_all(&mut self) {
        let all: Vec<usize> = self.places.keys().copied().collect();
        all.into_iter().for_each(|number| self.check(number));
    }

    fn check(&mut self, number: usize) {
        let place = self.places[&number];
        let lane = self.home_lane();
        self.order(&[place.spot.store], lane);
        let found = self.read(place, lane);
        let wanted = &self.stores[&place.spot.store].bytes;
        if let Some(at) = found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
            let (kind, step, bytes) = (place.kind, self.step, place.bytes);
            let unlike = found.iter().zip(wanted).filter(|(found, wanted)| found != wanted).count();
            let (is, was) = (found[at], wanted[at]);
            let name = self.name;
            panic!(
                "{name}: {kind:?}: {unlike} of {bytes} bytes differ, the first at {at}: {is} is not {was}; step {step}"
            );
        }
        self.see(&format!("{:?}", place.kind), &found);
    }

    fn read(&mut self, place: Place, lane: usize) -> Vec<u8> {
        let (stream, bytes) = (self.lanes[&lane].stream, place.bytes);
        let mut found = vec![0u8; bytes];
        let to = found.as_mut_ptr();
        match place.spot.space {
            Space::Array(row) => {
                let base = to.expose_provenance() as u64;
                let to = Spot { space: Space::Host, base, ..place.spot };
                let rows = |spot| Rows { spot, pitch: row };
                let copy = volume(rows(to), rows(place.spot), [row, bytes / row, 1]);
                ok!(cuMemcpy3DAsync_v2(&copy, stream));
                ok!(cuStreamSynchronize(stream));
            }
            Space::Host => {
                ok!(cuStreamSynchronize(stream));
                let from: *const u8 = std::ptr::with_exposed_provenance(place.spot.base as usize);
                // SAFETY: host memory of that size, which no work uses now.
                unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            }
            Space::Device if self.dice.one_in(2) => {
                ok!(cuMemcpyDtoHAsync_v2(to.cast(), place.spot.base, bytes, stream));
                ok!(cuStreamSynchronize(stream));
            }
            Space::Device => {
                self.order(&[place.spot.store], LEGACY);
                ok!(cuMemcpyDtoH_v2(to.cast(), place.spot.base, bytes));
            }
        }
        found
    }

    /// Gives everything back.
    fn end(&mut self) {
        while !self.graphs.is_empty() {
            self.drop_graph();
        }
        while !self.contexts.is_empty() {
            self.end_context();
        }
        let all: Vec<usize> = self.places.keys().copied().collect();
        all.into_iter().for_each(|number| self.give_back(number));
        self.synchronize_all();
        std::mem::take(&mut self.pools).into_iter().for_each(|pool| ok!(cuMemPoolDestroy(pool)));
    }
}
