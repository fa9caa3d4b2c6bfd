//! Descriptors: what an operation does to which tensor (R2.1, R2.6, R2.7).

#![forbid(unsafe_code)]

use super::overlap::Overlap;
use super::region::Region;
use std::fmt;

/// A tensor's identifier: chosen by its program, and unique in its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u64);

impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor {}", self.0)
    }
}

/// What an operation does to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it.
    Write,
    /// Reads and writes it.
    Both,
}

impl Access {
    /// Whether it changes the tensor.
    pub fn writes(self) -> bool {
        self != Access::Read
    }

    /// Whether two accesses of the same bytes must keep their order: all but two reads.
    pub fn orders(self, other: Access) -> bool {
        self.writes() || other.writes()
    }
}

/// Whether tensors with different identifiers may share memory (R2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// They never do: identifiers decide alone.
    Distinct,
    /// They may: regions decide.
    MayOverlap,
}

/// A tensor in an operation: its identifier, its region or both, and what is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    id: Option<TensorId>,
    region: Option<Region>,
    access: Access,
}

impl Descriptor {
    /// A tensor that is known by its identifier only.
    pub fn named(id: TensorId, access: Access) -> Self {
        Self { id: Some(id), region: None, access }
    }

    /// A tensor that is known by its region.
    pub fn of(region: Region, access: Access) -> Self {
        Self { id: None, region: Some(region), access }
    }

    /// The same with an identifier.
    pub fn with_id(self, id: TensorId) -> Self {
        Self { id: Some(id), ..self }
    }

    /// The same with a region.
    pub fn with_region(self, region: Region) -> Self {
        Self { region: Some(region), ..self }
    }

    /// Its identifier, if it has one.
    pub fn id(&self) -> Option<TensorId> {
        self.id
    }

    /// Its region, if it is known.
    pub fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// What is done to it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether the two share memory. With [`Storage::Distinct`] identifiers decide where both have one (R2.7), else
    /// regions do (R2.6). Where one has no region, equal identifiers meet, and others may.
    pub fn overlap(&self, other: &Descriptor, storage: Storage) -> Overlap {
        let ids = self.id.zip(other.id);
        if let (Storage::Distinct, Some((ours, theirs))) = (storage, ids) {
            return if ours == theirs { Overlap::Meets } else { Overlap::Apart };
        }
        if let Some((ours, theirs)) = self.region.as_ref().zip(other.region.as_ref()) {
            return ours.overlap(theirs);
        }
        let regions = self.region.iter().chain(&other.region);
        match ids {
            _ if regions.into_iter().any(Region::is_empty) => Overlap::Apart,
            Some((ours, theirs)) if ours == theirs => Overlap::Meets,
            _ => Overlap::MayMeet,
        }
    }

    /// Whether a later operation's access must wait for this one: they overlap, and one of them writes.
    pub fn hazard(&self, later: &Descriptor, storage: Storage) -> Overlap {
        if self.access.orders(later.access) { self.overlap(later, storage) } else { Overlap::Apart }
    }
}

/// Whether an operation must wait for an earlier one, each given by all its descriptors (R2.4, R2.7).
pub fn hazard(earlier: &[Descriptor], later: &[Descriptor], storage: Storage) -> Overlap {
    let pairs = earlier.iter().flat_map(|ours| later.iter().map(move |theirs| (ours, theirs)));
    Overlap::any(pairs.map(|(ours, theirs)| ours.hazard(theirs, storage)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Overlap::{Apart, MayMeet, Meets};

    fn range(start: u64, access: Access) -> Descriptor {
        Descriptor::of(Region::range(start, 16).unwrap(), access)
    }

    #[test]
    fn identifiers_decide_alone_where_storage_is_distinct() {
        let written = |id| Descriptor::named(TensorId(id), Access::Write);
        // The earlier operation's identifiers, the later one's.
        let table: [(&[u64], &[u64], Overlap); 6] = [
            (&[1, 2, 3], &[2], Meets),
            (&[1, 2, 3], &[4], Apart),
            (&[1], &[4, 5, 1], Meets),
            (&[1, 2], &[3, 4], Apart),
            (&[], &[3], Apart),
            (&[3], &[], Apart),
        ];
        for (earlier, later, expected) in table {
            let [earlier, later] =
                [earlier, later].map(|ids| ids.iter().copied().map(written).collect::<Vec<_>>());
            assert_eq!(hazard(&earlier, &later, Storage::Distinct), expected);
        }
        let (one, other) = (range(0, Access::Write), range(0, Access::Write));
        let apart = (one.with_id(TensorId(1)), other.with_id(TensorId(2)));
        assert_eq!(apart.0.overlap(&apart.1, Storage::Distinct), Apart, "although their bytes are the same");
        assert_eq!(apart.0.overlap(&apart.1, Storage::MayOverlap), Meets);
        let same = (one.with_id(TensorId(1)), range(64, Access::Write).with_id(TensorId(1)));
        assert_eq!(same.0.overlap(&same.1, Storage::Distinct), Meets, "although their bytes are not");
        assert_eq!(same.0.overlap(&same.1, Storage::MayOverlap), Apart);
        assert_eq!(one.overlap(&other.with_id(TensorId(2)), Storage::Distinct), Meets, "only one has a name");
    }

    #[test]
    fn what_is_not_known_may_meet() {
        let named = |id| Descriptor::named(TensorId(id), Access::Write);
        let known = range(0, Access::Write);
        let empty = Descriptor::of(Region::range(0, 0).unwrap(), Access::Write);
        for storage in [Storage::Distinct, Storage::MayOverlap] {
            assert_eq!(named(1).overlap(&known, storage), MayMeet);
            assert_eq!(named(1).overlap(&empty, storage), Apart);
            assert_eq!(named(1).overlap(&named(1), storage), Meets);
        }
        assert_eq!(named(1).overlap(&named(2), Storage::MayOverlap), MayMeet);
        assert_eq!(named(1).overlap(&known.with_id(TensorId(1)), Storage::MayOverlap), Meets);
        assert_eq!(
            named(1).with_region(Region::range(16, 1).unwrap()).overlap(&known, Storage::Distinct),
            Apart
        );
    }

    #[test]
    fn two_reads_keep_no_order() {
        let table = [
            (Access::Read, Access::Read, Apart),
            (Access::Read, Access::Write, Meets),
            (Access::Write, Access::Read, Meets),
            (Access::Write, Access::Write, Meets),
            (Access::Both, Access::Read, Meets),
            (Access::Read, Access::Both, Meets),
        ];
        for (earlier, later, expected) in table {
            let (earlier, later) = (range(0, earlier), range(8, later));
            assert_eq!(earlier.hazard(&later, Storage::MayOverlap), expected, "{earlier:?} {later:?}");
            assert_eq!(hazard(&[earlier], &[later], Storage::MayOverlap), expected);
        }
        let apart = range(16, Access::Write);
        assert_eq!(hazard(&[range(0, Access::Write)], &[apart], Storage::MayOverlap), Apart);
    }

    #[test]
    fn a_sure_overlap_outweighs_a_possible_one() {
        let earlier = [Descriptor::named(TensorId(1), Access::Write), range(0, Access::Write)];
        assert_eq!(hazard(&earlier, &[range(64, Access::Write)], Storage::MayOverlap), MayMeet);
        assert_eq!(hazard(&earlier, &[range(8, Access::Write)], Storage::MayOverlap), Meets);
    }
}
