//! Overlap and progress against brute force: the bytes of small random tensors, one by one. The addresses are those
//! of the sources' formulas, worked out here from what a form says, and not the module's.

#![forbid(unsafe_code)]

use super::form::Axis;
use super::overlap::Overlap;
use super::progress::{Progress, Wait};
use super::region::Region;
use super::task::{Outline, Parent, Shape, Task};
use super::{TensorId, overlap};
use crate::random::Random;
use std::num::NonZeroU64;

/// All tensors of a pair lie in so many bytes.
const ROOM: u64 = 2048;

/// The bytes of a tensor, from the pair's origin on.
#[derive(Clone, Copy)]
struct Bytes([u64; ROOM as usize / 64]);

impl Bytes {
    fn none() -> Self {
        Self([0; _])
    }

    fn insert(&mut self, start: u64, bytes: u64) {
        (start..start + bytes).for_each(|byte| self.0[byte as usize / 64] |= 1 << (byte % 64));
    }

    fn meet(&self, other: &Bytes) -> bool {
        self.0.iter().zip(&other.0).any(|(ours, theirs)| ours & theirs != 0)
    }
}

/// A tensor as a form says it, and its elements' places, in row-major order, by the form's formula.
struct Tensor {
    region: Region,
    element: u64,
    places: Vec<u64>,
}

impl Tensor {
    fn bytes(&self) -> Bytes {
        self.bytes_of(0..self.places.len() as u64)
    }

    fn bytes_of(&self, elements: std::ops::Range<u64>) -> Bytes {
        let mut bytes = Bytes::none();
        let places = &self.places[elements.start as usize..elements.end as usize];
        places.iter().for_each(|place| bytes.insert(*place, self.element));
        bytes
    }
}

/// Base + Σ (offset + position) · stride for every position, dimensions slowest first.
fn places(base: i64, dimensions: &[(i64, i64, i64)]) -> Vec<i64> {
    dimensions.iter().fold(vec![base], |outer, (offset, size, stride)| {
        let inner = |start: &i64| (0..*size).map(|at| start + (offset + at) * stride).collect::<Vec<_>>();
        outer.iter().flat_map(inner).collect()
    })
}

/// Makes pairs of tensors.
struct Maker {
    random: Random,
    origin: u64,
}

/// Where both tensors of a pair of equal pitch lie.
#[derive(Clone)]
struct Store {
    base: i64,
    element: i64,
    sizes: Vec<i64>,
}

impl Maker {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let origin = [0, 4096, 0x7f12_3456_7000, u64::MAX - ROOM][random.below(4) as usize];
        Self { random, origin }
    }

    /// A storage of 1 to 4 dimensions that fits the room.
    fn store(&mut self) -> Store {
        loop {
            let element = self.random.signed(1, 16);
            let rank = self.random.below(4) + 1;
            let sizes: Vec<_> = (0..rank).map(|_| self.random.signed(1, 9)).collect();
            let room = ROOM as i64 - element * sizes.iter().product::<i64>();
            if room >= 0 {
                return Store { base: self.base(room), element, sizes };
            }
        }
    }

    /// A place in `0 ..= room`, most often near its middle.
    fn base(&mut self, room: i64) -> i64 {
        let spread = [10, 100, ROOM as i64][self.random.below(3) as usize];
        (room / 2 + self.random.signed(-spread, spread)).clamp(0, room)
    }

    fn tensor(
        &self,
        region: Region,
        element: i64,
        base: i64,
        dimensions: &[(i64, i64, i64)],
    ) -> Option<Tensor> {
        let places = places(base, dimensions);
        let is_inside = |place: &i64| *place >= 0 && place + element <= ROOM as i64;
        let places =
            places.iter().all(is_inside).then(|| places.iter().map(|place| *place as u64).collect())?;
        Some(Tensor { region, element: element as u64, places })
    }

    /// A box of a storage, said by sizes, by corners, as a parent's child, or by a mapping.
    fn boxed(&mut self, store: &Store) -> Tensor {
        let empty = self.random.chance(2);
        let axes: Vec<_> = store
            .sizes
            .iter()
            .map(|storage| {
                let size = self.random.signed(i64::from(!empty), (*storage).min(4));
                Axis { storage: *storage, offset: self.random.signed(0, storage - size), size }
            })
            .collect();
        let base = self.origin + store.base as u64;
        let pitches = (0..axes.len()).map(|index| store.sizes[index + 1..].iter().product::<i64>());
        let dimensions: Vec<_> =
            axes.iter().zip(pitches).map(|(axis, pitch)| (axis.offset, axis.size, pitch)).collect();
        let first: Vec<_> = axes.iter().map(|axis| axis.offset).collect();
        let last: Vec<_> = axes.iter().map(|axis| axis.offset + axis.size - 1).collect();
        let element = store.element as u64;
        let region = match self.random.below(4) {
            1 if axes.iter().all(|axis| axis.size > 0) => {
                let (mut one, mut other) = (first, last);
                for index in 0..one.len() {
                    if self.random.chance(50) {
                        std::mem::swap(&mut one[index], &mut other[index]);
                    }
                }
                Region::between_corners(base, element, &store.sizes, [&one, &other]).unwrap()
            }
            2 => self.child(base, element, &axes),
            3 => {
                let start: i64 =
                    dimensions.iter().map(|(offset, _, pitch)| offset * pitch * store.element).sum();
                let sizes: Vec<_> = axes.iter().map(|axis| axis.size).collect();
                let strides: Vec<_> = dimensions.iter().map(|(_, _, pitch)| pitch * store.element).collect();
                if sizes.contains(&0) {
                    Region::in_storage(base, element, &axes).unwrap()
                } else {
                    Region::mapping(base + start as u64, element, &sizes, &strides).unwrap()
                }
            }
            _ => Region::in_storage(base, element, &axes).unwrap(),
        };
        let bytes: Vec<_> =
            dimensions.iter().map(|(offset, size, pitch)| (*offset, *size, pitch * store.element)).collect();
        self.tensor(region, store.element, store.base, &bytes).expect("a storage lies in the room")
    }

    /// The same by a parent and a task, each parameter said by one of them, or by two: then the child's counts.
    fn child(&mut self, base: u64, element: u64, axes: &[Axis]) -> Region {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for axis in axes {
            let [(storage, parent_storage), (offset, parent_offset), (size, parent_size)] =
                [axis.storage, axis.offset, axis.size].map(|value| match self.random.below(3) {
                    0 => (None, Some(value)),
                    1 => (Some(value), None),
                    _ => (Some(value), Some(value + 1)),
                });
            ours.push(Axis { storage, offset, size });
            theirs.push(Axis { storage: parent_storage, offset: parent_offset, size: parent_size });
        }
        let id = TensorId(self.random.next());
        let says_base = self.random.below(3);
        let parent = Outline {
            parent: None,
            base: (says_base == 1).then_some(base),
            element: Some(element),
            shape: Shape::Box(&theirs),
        };
        let child = Outline {
            parent: Some(id),
            base: (says_base == 2).then_some(base),
            element: None,
            shape: Shape::Box(&ours),
        };
        let parents = [Parent { id, outline: parent }];
        let agreed = if says_base == 0 { base } else { base ^ 0x55 };
        Task::new(Some(agreed), &parents).unwrap().region(&child).unwrap()
    }

    /// A mapping of 0 to 4 dimensions, of any strides, or a range.
    fn mapped(&mut self) -> Tensor {
        loop {
            let (mut element, rank) = (self.random.signed(1, 16), self.random.below(5));
            let most = [24, 100, 700][self.random.below(3) as usize];
            let mut base = self.base(ROOM as i64 - element);
            let mut dimensions: Vec<_> = (0..rank)
                .map(|_| {
                    let size = if self.random.chance(1) { 0 } else { self.random.signed(1, 5) };
                    let whole = if self.random.chance(50) { element } else { 1 };
                    (0, size, self.random.signed(-most / whole, most / whole) * whole)
                })
                .collect();
            if self.random.chance(10) {
                (base, element) = (self.base(ROOM as i64 - 64), 1);
                dimensions = vec![(0, self.random.signed(0, 64), 1)];
            }
            let sizes: Vec<_> = dimensions.iter().map(|(_, size, _)| *size).collect();
            let strides: Vec<_> = dimensions.iter().map(|(_, _, stride)| *stride).collect();
            let start = self.origin + base as u64;
            let region = if dimensions.len() == 1 && strides[0] == 1 && element == 1 {
                Region::range(start, sizes[0] as u64)
            } else {
                Region::mapping(start, element as u64, &sizes, &strides)
            };
            let tensor = region.ok().and_then(|region| self.tensor(region, element, base, &dimensions));
            if let Some(tensor) = tensor {
                return tensor;
            }
        }
    }
}

/// The kinds of pairs.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Of one storage.
    OneStorage,
    /// Of storages of one shape, at different reference points.
    OnePitch,
    /// Of different storages.
    TwoStorages,
    /// One or both of any strides.
    AnyStrides,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::OneStorage, Kind::OnePitch, Kind::TwoStorages, Kind::AnyStrides];

    fn pair(self, maker: &mut Maker) -> (Tensor, Tensor) {
        let store = maker.store();
        let one = maker.boxed(&store);
        match self {
            Kind::OneStorage => (one, maker.boxed(&store)),
            Kind::OnePitch => {
                let room = ROOM as i64 - store.element * store.sizes.iter().product::<i64>();
                let base = maker.base(room);
                (one, maker.boxed(&Store { base, ..store }))
            }
            Kind::TwoStorages => {
                let other = maker.store();
                (one, maker.boxed(&other))
            }
            Kind::AnyStrides => {
                let other = maker.mapped();
                (if maker.random.chance(50) { maker.mapped() } else { one }, other)
            }
        }
    }
}

/// How often a kind of pairs met.
#[derive(Debug, Default)]
struct Sums {
    pairs: u32,
    meet: u32,
    apart: u32,
    may_meet: u32,
    false_alarms: u32,
}

impl Sums {
    fn count(&mut self, told: Overlap, meets: bool, what: &dyn std::fmt::Debug) {
        match told {
            Overlap::Meets => assert!(meets, "a false alarm: {what:?}"),
            Overlap::Apart => assert!(!meets, "an overlap is missed: {what:?}"),
            Overlap::MayMeet => self.may_meet += 1,
        }
        self.pairs += 1;
        self.meet += u32::from(meets);
        self.apart += u32::from(!meets);
        self.false_alarms += u32::from(told == Overlap::MayMeet && !meets);
    }

    fn print(&self, name: &dyn std::fmt::Debug) {
        let Self { pairs, meet, apart, may_meet, false_alarms } = self;
        println!(
            "{name:?}: {pairs} pairs, {meet} meet, {apart} apart; told may-meet {may_meet}, false alarms \
             {false_alarms} ({:.4} %)",
            100.0 * f64::from(*false_alarms) / f64::from(*pairs)
        );
    }
}

/// Compares so many pairs of a kind within so many steps, both ways round.
fn compare(kind: Kind, seeds: std::ops::Range<u64>, steps: u32) -> Sums {
    let mut sums = Sums::default();
    for seed in seeds {
        let (one, other) = kind.pair(&mut Maker::new(seed));
        let meets = one.bytes().meet(&other.bytes());
        let told = one.region.overlap_within(&other.region, steps);
        sums.count(told, meets, &(seed, one.region, other.region));
        assert_eq!(
            other.region.overlap(&one.region).is_possible(),
            meets,
            "seed {seed}, the other way round"
        );
    }
    sums
}

#[test]
fn no_overlap_is_missed_and_none_is_made_up() {
    for (kind, pairs) in Kind::ALL.into_iter().zip([250_000, 250_000, 250_000, 500_000]) {
        let sums = compare(kind, 0..pairs, overlap::STEPS);
        sums.print(&kind);
        assert_eq!(sums.may_meet, 0, "{kind:?}: {} steps tell small tensors apart", overlap::STEPS);
        assert!(sums.meet > sums.pairs / 10 && sums.apart > sums.pairs / 10, "{sums:?}");
    }
}

#[test]
fn too_few_steps_miss_no_overlap() {
    let mut unknown = 0;
    for steps in [0, 1, 3] {
        let sums = compare(Kind::AnyStrides, 0..50_000, steps);
        sums.print(&(Kind::AnyStrides, steps));
        unknown += sums.may_meet;
    }
    assert!(unknown > 100, "{unknown}");
}

#[test]
fn hulls_and_parts_have_the_bytes_of_the_elements() {
    for seed in 0..50_000 {
        let mut maker = Maker::new(seed);
        let kind = Kind::ALL[maker.random.below(4) as usize];
        let (_, tensor) = kind.pair(&mut maker);
        let (region, count) = (tensor.region, tensor.places.len() as u64);
        assert_eq!(region.elements(), count);
        let low = tensor.places.iter().min().map(|low| maker.origin + low);
        let end = tensor.places.iter().max().map(|high| maker.origin + high + tensor.element);
        let hull = region.hull();
        assert_eq!((!hull.is_empty()).then_some((hull.start, hull.end)), low.zip(end), "seed {seed}");
        let from = u64::from(maker.random.between(0, count as u32));
        let to = u64::from(maker.random.between(from as u32, count as u32 + 2));
        let parts: Vec<_> = region.parts(from..to).collect();
        assert!(
            parts.len() <= (2 * region.dimensions().len()).saturating_sub(1).max(1),
            "seed {seed}: {parts:?}"
        );
        let mut at = from;
        for part in parts {
            let positions = positions(&part);
            for position in &positions {
                let address = part.address(position).unwrap();
                assert_eq!(address, maker.origin + tensor.places[at as usize], "seed {seed}: element {at}");
                at += 1;
            }
        }
        assert_eq!(at, to.min(count).max(from), "seed {seed}");
    }
}

/// All positions of a region, in row-major order.
fn positions(region: &Region) -> Vec<Vec<u64>> {
    region.dimensions().iter().fold(vec![Vec::new()], |outer, dimension| {
        let inner = |outer: &Vec<u64>| {
            let outer = outer.clone();
            (0..dimension.size).map(move |at| [&outer[..], &[at]].concat()).collect::<Vec<_>>()
        };
        outer.iter().flat_map(inner).collect()
    })
}

/// Two operations at work, the earlier one `head` ticks ahead.
struct Race {
    earlier: Tensor,
    later: Tensor,
    at_work: [Progress; 2],
}

/// What happened in races.
#[derive(Debug, Default)]
struct Races {
    races: u32,
    ticks: u32,
    blocked: u32,
    caught_up: u32,
    side_by_side: u32,
}

impl Race {
    fn new(seed: u64) -> Self {
        let mut maker = Maker::new(seed);
        let kind = Kind::ALL[maker.random.below(8).saturating_sub(4) as usize];
        let (earlier, later) = kind.pair(&mut maker);
        let at_work = [&earlier, &later].map(|tensor| {
            let most = tensor.places.len() as u32 / 3 + 1;
            Progress::new(tensor.region, NonZeroU64::new(maker.random.between(1, most).into()).unwrap())
        });
        Self { earlier, later, at_work }
    }

    /// Whether what the earlier one has left after so many ticks meets the later one's present part, by brute force.
    fn is_blocked_after(&self, ticks: u64) -> bool {
        let [earlier, later] = self.at_work;
        let left = earlier.after(ticks).present().start..self.earlier.places.len() as u64;
        self.earlier.bytes_of(left).meet(&self.later.bytes_of(later.present()))
    }

    /// What the module says now is what the bytes say. Whether the later one must wait.
    fn check(&self, seed: u64) -> bool {
        let [earlier, later] = self.at_work;
        let now = [earlier.present(), later.present()];
        let [ours, theirs] = [self.earlier.bytes_of(now[0].clone()), self.later.bytes_of(now[1].clone())];
        let meets = if ours.meet(&theirs) { Overlap::Meets } else { Overlap::Apart };
        assert_eq!(earlier.overlap_now(&later), meets, "seed {seed}: {now:?}");
        let is_blocked = self.is_blocked_after(0);
        assert_eq!(earlier.blocks(&later).is_possible(), is_blocked, "seed {seed}: {now:?}");
        let wait = (0..).find(|ticks| !self.is_blocked_after(*ticks)).unwrap();
        assert_eq!(earlier.wait(&later), Wait::Exactly(wait), "seed {seed}: {now:?}");
        is_blocked
    }

    /// Both work until they are finished; the later one waits where it must.
    fn run(&mut self, seed: u64, races: &mut Races) {
        let mut was_free = false;
        races.races += 1;
        while !self.at_work[1].is_finished() {
            let is_blocked = self.check(seed);
            races.ticks += 1;
            races.blocked += u32::from(is_blocked);
            races.caught_up += u32::from(is_blocked && was_free);
            races.side_by_side += u32::from(!is_blocked && !self.at_work[0].is_finished());
            was_free = !is_blocked;
            let ticks = [1, u64::from(!is_blocked)];
            let [earlier, later] = self.at_work;
            self.at_work = [earlier.after(ticks[0]), later.after(ticks[1])];
        }
    }
}

#[test]
fn no_operation_overtakes_an_earlier_one_on_the_same_bytes() {
    let mut races = Races::default();
    for seed in 0..100_000 {
        Race::new(seed).run(seed, &mut races);
    }
    println!("{races:?}");
    assert!(races.blocked > races.races / 2 && races.side_by_side > races.races, "{races:?}");
    assert!(races.caught_up > races.races / 100, "{races:?}");
}
