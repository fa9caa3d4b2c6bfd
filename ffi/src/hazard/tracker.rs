//! Who waits for whom (R2.4, R2.5, R2.8).
//!
//! An operation conflicts with all earlier ones that are not finished, those that wait themselves included. So
//! conflicting operations run in the order in which they were submitted, and no stream of readers keeps a writer
//! waiting: those that come after it wait for it.
//!
//! Each conflict is kept as an edge from the earlier operation to the later one. None is left out because others
//! imply it: an operation in between may [shrink](Tracker::shrink), and then they do not. An operation that
//! conflicts with `n` others costs `n` edges; where they run out, that is [`Full`](Submitted::Full).
//!
//! Everything has room for a number given at construction, and nothing is allocated afterwards. A submission
//! takes time in the logarithm of the outstanding operands, and more for each whose hull overlaps and is not
//! also only read: regions whose hulls overlap though they do not meet are compared one by one.

use super::index::Index;
use super::{Access, Operand, Region};
use std::ops::{Index as At, IndexMut as AtMut, Range};

/// No operand, no edge.
const NONE: u32 = u32::MAX;

/// How much a tracker has room for. Each is less than 2³² − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Operations that are not finished.
    pub operations: usize,
    /// Operands of all of them.
    pub operands: usize,
    /// Conflicts between them: pairs.
    pub edges: usize,
}

/// Names an operation of one tracker, for ever: that of a finished one is an error, never another operation.
/// Ordered by submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId {
    number: u64,
    slot: u32,
}

impl OperationId {
    /// How many operations the tracker took before this one.
    pub fn number(self) -> u64 {
        self.number - 1
    }

    /// Where the caller may keep what belongs to the operation: no other one that is not finished has this, and
    /// it is less than [`Capacity::operations`].
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// What becomes of an operation that may not run at once (R2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// The caller keeps it and comes again when one of those in conflict is done. It has no place in the order
    /// until then.
    Block,
    /// The tracker keeps it and wakes it.
    Buffer,
}

/// What became of an operation that was submitted. The slices are those it conflicts with, in no order.
#[derive(Debug, PartialEq, Eq)]
pub enum Submitted<'a> {
    /// It may run.
    Ready(OperationId),
    /// It is woken when all of these are finished or have shrunk.
    Buffered(OperationId, &'a [OperationId]),
    /// It may not run, and the tracker knows nothing of it.
    Blocked(&'a [OperationId]),
    /// There is no room for it until others finish. The tracker is as before.
    Full(Lack),
}

/// What there is not enough of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// [`Capacity::operations`].
    Operations,
    /// [`Capacity::operands`].
    Operands,
    /// [`Capacity::edges`].
    Edges,
}

/// A call that changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrackerError {
    /// It would be refused for ever.
    #[error(
        "{operands} operands of one operation, where there is room for {capacity} of all: give the tracker more"
    )]
    TooManyOperands {
        /// How many it has.
        operands: usize,
        /// How many there is room for.
        capacity: usize,
    },
    /// The operation is finished.
    #[error("operation {} is not outstanding", .0.number())]
    Stale(OperationId),
    /// The operation waits for others, so it can be neither done nor partly done.
    #[error("operation {} has not been told to run: it waits for {waits_for} others", .operation.number())]
    Waits {
        /// Which one.
        operation: OperationId,
        /// For how many.
        waits_for: u32,
    },
    /// The operation has no such operand.
    #[error("operation {} has no operand {operand}", .operation.number())]
    NoOperand {
        /// Which one.
        operation: OperationId,
        /// The operand, counted from 0 as submitted.
        operand: usize,
    },
    /// What is left of a region lies outside of it.
    #[error("what is left of operand {operand} of operation {} lies outside of what it was", .operation.number())]
    Grows {
        /// Which one.
        operation: OperationId,
        /// The operand, counted from 0 as submitted.
        operand: usize,
    },
}

/// A fixed number of places, taken and given back.
pub(super) struct Pool<T> {
    places: Vec<T>,
    free: Vec<u32>,
    capacity: usize,
}

impl<T> Pool<T> {
    pub(super) fn new(capacity: usize) -> Self {
        assert!(capacity < NONE as usize, "places are numbered with 32 bits");
        Self { places: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity), capacity }
    }

    fn room(&self) -> usize {
        self.capacity - self.taken()
    }

    fn taken(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The caller knows that there is room. The place that was given back last is the first to be taken.
    pub(super) fn take(&mut self, value: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self[place] = value;
            return place;
        }
        debug_assert!(self.places.len() < self.capacity, "the pool is full");
        self.places.push(value);
        (self.places.len() - 1) as u32
    }

    pub(super) fn give(&mut self, place: u32) {
        self.free.push(place);
    }
}

impl<T> At<u32> for Pool<T> {
    type Output = T;

    fn index(&self, place: u32) -> &T {
        &self.places[place as usize]
    }
}

impl<T> AtMut<u32> for Pool<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.places[place as usize]
    }
}

struct Operation {
    /// 0: finished.
    number: u64,
    waits_for: u32,
    operands: u32,
    /// Those that wait for it, in order of submission.
    first_edge: u32,
    last_edge: u32,
    /// The submission that has found it last, so that two operands find it once.
    found_by: u64,
}

struct Kept<R> {
    operand: Operand<R>,
    operation: u32,
    next: u32,
}

struct Edge {
    to: u32,
    next: u32,
}

/// Keeps the operations that are not finished.
pub struct Tracker<R> {
    operations: Pool<Operation>,
    operands: Pool<Kept<R>>,
    edges: Pool<Edge>,
    /// Operands that are only read.
    readers: Index,
    /// All others.
    writers: Index,
    /// Those that the operation now submitted conflicts with.
    found: Vec<OperationId>,
    submissions: u64,
    taken: u64,
}

impl<R: Region> Tracker<R> {
    /// An empty one.
    ///
    /// # Panics
    /// If a capacity is 2³² − 1 or more.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            operations: Pool::new(capacity.operations),
            operands: Pool::new(capacity.operands),
            edges: Pool::new(capacity.edges),
            readers: Index::new(capacity.operands),
            writers: Index::new(capacity.operands),
            found: Vec::with_capacity(capacity.operations),
            submissions: 0,
            taken: 0,
        }
    }

    /// Submits an operation behind all that were submitted before. Its operands may overlap each other. Only
    /// more operands than there can ever be room for are an error.
    pub fn submit(
        &mut self,
        operands: &[Operand<R>],
        otherwise: Otherwise,
    ) -> Result<Submitted<'_>, TrackerError> {
        let capacity = self.operands.capacity;
        if operands.len() > capacity {
            return Err(TrackerError::TooManyOperands { operands: operands.len(), capacity });
        }
        self.find_conflicts(operands);
        if otherwise == Otherwise::Block && !self.found.is_empty() {
            return Ok(Submitted::Blocked(&self.found));
        }
        if let Some(lack) = self.lack(operands.len()) {
            return Ok(Submitted::Full(lack));
        }
        let id = self.take(operands);
        Ok(match self.found.is_empty() {
            true => Submitted::Ready(id),
            false => Submitted::Buffered(id, &self.found),
        })
    }

    /// Forgets an operation that has run, and calls with each that now waits for nothing, in order of
    /// submission: each may run, and is named once.
    pub fn complete(
        &mut self,
        operation: OperationId,
        mut woken: impl FnMut(OperationId),
    ) -> Result<(), TrackerError> {
        self.running(operation)?;
        let mut edge = self.operations[operation.slot].first_edge;
        while edge != NONE {
            let Edge { to, next } = self.edges[edge];
            self.edges.give(edge);
            self.release(to, &mut woken);
            edge = next;
        }
        let mut operand = self.operations[operation.slot].operands;
        while operand != NONE {
            self.leave_index(operand);
            self.operands.give(operand);
            operand = self.operands[operand].next;
        }
        self.operations[operation.slot].number = 0;
        self.operations.give(operation.slot);
        Ok(())
    }

    /// Puts what is left of a region in the place of an operand of an operation that runs (R2.5), and calls with
    /// each that now waits for nothing, in order of submission. What is left may be empty; its hull lies inside
    /// the old one, and it meets nothing that the old region did not meet.
    ///
    /// An operation that works through its region behind one that does so, too, is submitted in parts: each part
    /// waits until the earlier one has left it, so the later one cannot catch up.
    pub fn shrink(
        &mut self,
        operation: OperationId,
        operand: usize,
        rest: R,
        mut woken: impl FnMut(OperationId),
    ) -> Result<(), TrackerError> {
        self.running(operation)?;
        let place = self.operand(operation, operand)?;
        if !is_inside(&rest.hull(), &self.operands[place].operand.region.hull()) {
            return Err(TrackerError::Grows { operation, operand });
        }
        self.leave_index(place);
        self.operands[place].operand.region = rest;
        self.enter_index(place);
        self.drop_edges(operation.slot, &mut woken);
        Ok(())
    }

    /// Those that wait for an operation, in order of submission.
    pub fn dependents(
        &self,
        operation: OperationId,
    ) -> Result<impl Iterator<Item = OperationId> + '_, TrackerError> {
        self.outstanding(operation)?;
        let edges = std::iter::successors(self.edge(self.operations[operation.slot].first_edge), |edge| {
            self.edge(edge.next)
        });
        Ok(edges.map(|edge| self.id(edge.to)))
    }

    /// For how many an operation waits; 0: it may run.
    pub fn waits_for(&self, operation: OperationId) -> Result<u32, TrackerError> {
        self.outstanding(operation).map(|kept| kept.waits_for)
    }

    /// How many operations are not finished.
    pub fn len(&self) -> usize {
        self.operations.taken()
    }

    /// Whether all operations are finished.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How much more there is room for.
    pub fn room(&self) -> Capacity {
        Capacity {
            operations: self.operations.room(),
            operands: self.operands.room(),
            edges: self.edges.room(),
        }
    }

    /// Finds all earlier operations that have a conflict with these operands. A reader need not look at readers.
    fn find_conflicts(&mut self, operands: &[Operand<R>]) {
        self.submissions += 1;
        self.found.clear();
        let Self { operations, operands: kept, readers, writers, found, submissions, .. } = self;
        for operand in operands {
            let hull = operand.region.hull();
            let mut met = |place: u32| {
                let Kept { operand: other, operation, .. } = &kept[place];
                let earlier = &mut operations[*operation];
                if earlier.found_by != *submissions && other.region.meets(&operand.region) {
                    earlier.found_by = *submissions;
                    found.push(OperationId { number: earlier.number, slot: *operation });
                }
            };
            if hull.is_empty() {
                continue;
            }
            writers.overlapping(&hull, &mut met);
            if operand.access.writes() {
                readers.overlapping(&hull, &mut met);
            }
        }
    }

    fn lack(&self, operands: usize) -> Option<Lack> {
        let lacks = [
            (self.operations.room() < 1, Lack::Operations),
            (self.operands.room() < operands, Lack::Operands),
            (self.edges.room() < self.found.len(), Lack::Edges),
        ];
        lacks.into_iter().find_map(|(is_lacking, lack)| is_lacking.then_some(lack))
    }

    /// Keeps an operation for which there is room, behind all that were found.
    fn take(&mut self, operands: &[Operand<R>]) -> OperationId {
        self.taken += 1;
        let number = self.taken;
        let waits_for = self.found.len() as u32;
        let slot = self.operations.take(Operation {
            number,
            waits_for,
            operands: NONE,
            first_edge: NONE,
            last_edge: NONE,
            found_by: 0,
        });
        for at in 0..self.found.len() {
            self.add_edge(self.found[at].slot, slot);
        }
        for operand in operands.iter().rev() {
            let next = self.operations[slot].operands;
            let place = self.operands.take(Kept { operand: *operand, operation: slot, next });
            self.operations[slot].operands = place;
            self.enter_index(place);
        }
        OperationId { number, slot }
    }

    /// The later one is behind all others that wait for the earlier one.
    fn add_edge(&mut self, from: u32, to: u32) {
        let edge = self.edges.take(Edge { to, next: NONE });
        let last = std::mem::replace(&mut self.operations[from].last_edge, edge);
        match last {
            NONE => self.operations[from].first_edge = edge,
            last => self.edges[last].next = edge,
        }
    }

    /// Drops the edges from an operation to those that it has no conflict with any more.
    fn drop_edges(&mut self, from: u32, woken: &mut impl FnMut(OperationId)) {
        let mut edge = std::mem::replace(&mut self.operations[from].first_edge, NONE);
        self.operations[from].last_edge = NONE;
        while edge != NONE {
            let Edge { to, next } = self.edges[edge];
            self.edges.give(edge);
            match self.have_conflict(from, to) {
                true => self.add_edge(from, to),
                false => self.release(to, woken),
            }
            edge = next;
        }
    }

    fn have_conflict(&self, earlier: u32, later: u32) -> bool {
        self.operands_of(earlier).any(|one| self.operands_of(later).any(|other| one.conflicts_with(other)))
    }

    /// One thing less that an operation waits for.
    fn release(&mut self, slot: u32, woken: &mut impl FnMut(OperationId)) {
        let operation = &mut self.operations[slot];
        operation.waits_for -= 1;
        if operation.waits_for == 0 {
            woken(OperationId { number: operation.number, slot });
        }
    }

    fn enter_index(&mut self, place: u32) {
        let Operand { region, access } = self.operands[place].operand;
        let hull = region.hull();
        if !hull.is_empty() {
            self.index(access).insert(place, &hull);
        }
    }

    fn leave_index(&mut self, place: u32) {
        let Operand { region, access } = self.operands[place].operand;
        if !region.hull().is_empty() {
            self.index(access).remove(place);
        }
    }

    fn index(&mut self, access: Access) -> &mut Index {
        if access.writes() { &mut self.writers } else { &mut self.readers }
    }

    fn id(&self, slot: u32) -> OperationId {
        OperationId { number: self.operations[slot].number, slot }
    }

    fn edge(&self, edge: u32) -> Option<&Edge> {
        (edge != NONE).then(|| &self.edges[edge])
    }

    fn places_of(&self, slot: u32) -> impl Iterator<Item = u32> + '_ {
        let next = |place: u32| (place != NONE).then_some(place);
        std::iter::successors(next(self.operations[slot].operands), move |place| {
            next(self.operands[*place].next)
        })
    }

    fn operands_of(&self, slot: u32) -> impl Iterator<Item = &Operand<R>> + '_ {
        self.places_of(slot).map(|place| &self.operands[place].operand)
    }

    fn operand(&self, operation: OperationId, operand: usize) -> Result<u32, TrackerError> {
        let place = self.places_of(operation.slot).nth(operand);
        place.ok_or(TrackerError::NoOperand { operation, operand })
    }

    fn outstanding(&self, operation: OperationId) -> Result<&Operation, TrackerError> {
        let kept = self.operations.places.get(operation.slot());
        kept.filter(|kept| kept.number == operation.number).ok_or(TrackerError::Stale(operation))
    }

    fn running(&self, operation: OperationId) -> Result<(), TrackerError> {
        match self.outstanding(operation)?.waits_for {
            0 => Ok(()),
            waits_for => Err(TrackerError::Waits { operation, waits_for }),
        }
    }
}

fn is_inside(rest: &Range<u64>, whole: &Range<u64>) -> bool {
    rest.is_empty() || (whole.start <= rest.start && rest.end <= whole.end)
}

#[cfg(test)]
mod tests;
