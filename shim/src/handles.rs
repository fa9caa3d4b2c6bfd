//! The program's own physical memory: what it made by `cuMemCreate`, and where it has mapped it.
//!
//! A handle of the program's is a run of slots of its tenant, as an allocation is, but its pieces are
//! mapped where the program wants them, and nowhere else:
//! ```text
//! slots       ┌ piece 7 ┬ piece 9 ┐           of the tenant's range, where nothing is mapped
//! handle      [ 0 ………………………… bytes )
//! mappings      ▼          ▼        ▼ …       wherever the program has reserved addresses
//! ```
//! Invariant: a handle's bytes are alive until the program has released it as often as it got it, and
//! has unmapped it everywhere.
#![forbid(unsafe_code)]

use crate::raw::{Access, Properties};
use std::collections::BTreeMap;
use std::ops::Range;
use tidegate_ffi::cuda::sys::{CUdevice, CUdeviceptr};
use tidegate_ffi::units::Class;

/// A handle's number, as the program has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleNumber(pub u64);

/// Numbers of ours begin here, far beyond the driver's.
const FIRST_NUMBER: u64 = 0x7467_0000_0000_0000;

/// A handle of the program's.
#[derive(Debug)]
pub struct Handle {
    /// Where it lies.
    pub extent: Extent,
    /// As it was asked for.
    pub properties: Properties,
    /// How often the program has to release it.
    references: u32,
    mappings: BTreeMap<CUdeviceptr, Vec<Granted>>,
}

/// Access to a part of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// To which addresses.
    pub addresses: Range<CUdeviceptr>,
    /// Who has it.
    pub access: Vec<Access>,
}

/// Where a handle is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Of which handle.
    pub number: HandleNumber,
    /// Where.
    pub addresses: Range<CUdeviceptr>,
    /// Who may use it, in the order in which the program said so.
    pub granted: Vec<Granted>,
}

/// Where a handle lies in its tenant's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its tenant's device.
    pub device: CUdevice,
    /// The range.
    pub class: Class,
    /// The first byte there.
    pub start: u64,
    /// The length, a multiple of the unit.
    pub bytes: u64,
}

impl Extent {
    /// Whether a byte of a tenant's range lies in it.
    pub fn has(&self, device: CUdevice, class: Class, at: u64) -> bool {
        (self.device, self.class) == (device, class) && (self.start..self.start + self.bytes).contains(&at)
    }
}

/// All handles of a process.
#[derive(Debug, Default)]
pub struct Handles {
    handles: BTreeMap<HandleNumber, Handle>,
    /// Whose handle is mapped where, by the mapping's first address: mappings do not overlap.
    mapped: BTreeMap<CUdeviceptr, HandleNumber>,
    made: u64,
}

impl Handles {
    /// A new handle, which the program has to release once.
    pub fn add(&mut self, extent: Extent, properties: Properties) -> HandleNumber {
        self.made += 1;
        let number = HandleNumber(FIRST_NUMBER + self.made);
        let handle = Handle { extent, properties, references: 1, mappings: BTreeMap::new() };
        self.handles.insert(number, handle);
        number
    }

    /// A handle that the program still holds.
    pub fn get(&self, number: HandleNumber) -> Option<&Handle> {
        self.handles.get(&number).filter(|handle| handle.references > 0)
    }

    /// Whether the program was given this number, be it released or not.
    pub fn was_given(&self, number: HandleNumber) -> bool {
        (FIRST_NUMBER + 1..=FIRST_NUMBER + self.made).contains(&number.0)
    }

    /// Where a handle lies.
    pub fn extent(&self, number: HandleNumber) -> Option<Extent> {
        Some(self.handles.get(&number)?.extent)
    }

    /// What was asked for when a handle was made.
    pub fn properties(&self, number: HandleNumber) -> Option<&Properties> {
        Some(&self.handles.get(&number)?.properties)
    }

    /// The handle that a byte of a tenant's range belongs to: where it lies, and where it is mapped.
    pub fn at(&self, device: CUdevice, class: Class, at: u64) -> Option<(Extent, Vec<Mapping>)> {
        let (number, handle) =
            self.handles.iter().find(|(_, handle)| handle.extent.has(device, class, at))?;
        Some((handle.extent, handle.mappings(*number).collect()))
    }

    /// The program has got a handle once more, by an address where it is mapped.
    pub fn retain(&mut self, address: CUdeviceptr) -> Option<HandleNumber> {
        let number = self.mapped_at(address)?.number;
        self.handles.get_mut(&number)?.references += 1;
        Some(number)
    }

    /// The program has released a handle. True: that was the end of it.
    pub fn release(&mut self, number: HandleNumber) -> Option<bool> {
        let handle = self.handles.get_mut(&number).filter(|handle| handle.references > 0)?;
        handle.references -= 1;
        Some(handle.is_over())
    }

    /// The program has mapped a handle.
    pub fn map(&mut self, number: HandleNumber, address: CUdeviceptr) {
        if let Some(handle) = self.handles.get_mut(&number) {
            handle.mappings.insert(address, Vec::new());
            self.mapped.insert(address, number);
        }
    }

    /// The program has unmapped a handle. True: that was the end of it.
    pub fn unmap(&mut self, mapping: &Mapping) -> bool {
        let Some(handle) = self.handles.get_mut(&mapping.number) else { return false };
        handle.mappings.remove(&mapping.addresses.start);
        self.mapped.remove(&mapping.addresses.start);
        handle.is_over()
    }

    /// A handle is no more.
    pub fn remove(&mut self, number: HandleNumber) -> Option<Handle> {
        let gone = self.handles.remove(&number)?;
        gone.mappings.keys().for_each(|start| _ = self.mapped.remove(start));
        Some(gone)
    }

    /// The mapping that an address lies in.
    pub fn mapped_at(&self, address: CUdeviceptr) -> Option<Mapping> {
        self.mappings_in(address..address.saturating_add(1)).into_iter().next()
    }

    /// The mappings that touch some addresses, by address.
    pub fn mappings_in(&self, addresses: Range<CUdeviceptr>) -> Vec<Mapping> {
        let mappings = self.touched(addresses).filter_map(|(start, number, handle)| {
            let granted = handle.mappings.get(&start)?.clone();
            Some(Mapping { number, addresses: start..start + handle.extent.bytes, granted })
        });
        mappings.collect()
    }

    /// The mappings that touch some addresses, by address: the first address, and whose it is.
    fn touched(
        &self,
        addresses: Range<CUdeviceptr>,
    ) -> impl Iterator<Item = (CUdeviceptr, HandleNumber, &Handle)> {
        let before = self.mapped.range(..=addresses.start).next_back().map(|(start, _)| *start);
        let from = before.unwrap_or(addresses.start);
        self.mapped.range(from..addresses.end.max(from)).filter_map(move |(&start, &number)| {
            let handle = self.handles.get(&number)?;
            (start + handle.extent.bytes > addresses.start).then_some((start, number, handle))
        })
    }

    /// Where the memory behind some addresses lies: the extents, and the bytes of their tenant's range.
    pub fn behind(&self, addresses: Range<CUdeviceptr>) -> Vec<(Extent, Range<u64>)> {
        self.parts(addresses).map(|(_, extent, bytes)| (extent, bytes)).collect()
    }

    /// The same, each with its first address.
    pub fn parts(
        &self,
        addresses: Range<CUdeviceptr>,
    ) -> impl Iterator<Item = (CUdeviceptr, Extent, Range<u64>)> {
        self.touched(addresses.clone()).map(move |(start, _, Handle { extent, .. })| {
            let from = addresses.start.max(start) - start;
            let to = (addresses.end - start).min(extent.bytes);
            (start + from, *extent, extent.start + from..extent.start + to)
        })
    }

    /// The program has said who may use some addresses.
    pub fn grant(&mut self, addresses: Range<CUdeviceptr>, access: &[Access]) {
        for handle in self.handles.values_mut() {
            for (&start, granted) in &mut handle.mappings {
                let part = addresses.start.max(start)..addresses.end.min(start + handle.extent.bytes);
                if part.start < part.end {
                    granted.retain(|before| before.addresses != part);
                    granted.push(Granted { addresses: part, access: access.to_vec() });
                }
            }
        }
    }
}

impl Handle {
    fn mappings(&self, number: HandleNumber) -> impl Iterator<Item = Mapping> {
        self.mappings.iter().map(move |(&start, granted)| Mapping {
            number,
            addresses: start..start + self.extent.bytes,
            granted: granted.clone(),
        })
    }

    fn is_over(&self) -> bool {
        self.references == 0 && self.mappings.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Location;

    const DEVICE: Location = Location { kind: 1, id: 0 };
    const PROPERTIES: Properties =
        Properties { kind: 1, exports: 0, location: DEVICE, security: 0, flags: [0; 8] };

    fn one() -> (Handles, HandleNumber) {
        let mut handles = Handles::default();
        let extent = Extent { device: 0, class: Class::Temporary, start: 4096, bytes: 4096 };
        let number = handles.add(extent, PROPERTIES);
        (handles, number)
    }

    #[test]
    fn a_handle_ends_with_the_last_release_and_the_last_mapping() {
        let (mut handles, number) = one();
        handles.map(number, 0x10000);
        assert_eq!(handles.retain(0x10fff), Some(number));
        assert_eq!(handles.retain(0x11000), None);
        assert_eq!(handles.release(number), Some(false));
        assert_eq!(handles.release(number), Some(false));
        assert_eq!(handles.release(number), None);
        assert!(handles.get(number).is_none(), "the program does not hold it any more");
        let others = [number.0 - 1, number.0 + 1].map(HandleNumber);
        assert!(handles.was_given(number) && !others.iter().any(|other| handles.was_given(*other)));
        let mapping = handles.mapped_at(0x10000).unwrap();
        assert!(handles.unmap(&mapping));
    }

    #[test]
    fn a_byte_of_the_range_finds_its_handle() {
        let (handles, number) = one();
        assert_eq!(handles.at(0, Class::Temporary, 8191).map(|(extent, _)| extent), handles.extent(number));
        assert_eq!(handles.at(0, Class::Temporary, 8192), None);
        assert_eq!(handles.at(0, Class::Persistent, 4096), None);
        assert_eq!(handles.at(1, Class::Temporary, 4096), None);
    }

    #[test]
    fn addresses_find_the_memory_behind_them() {
        let (mut handles, first) = one();
        let extent = Extent { device: 0, class: Class::Temporary, start: 65536, bytes: 8192 };
        let second = handles.add(extent, PROPERTIES);
        handles.map(first, 0x10000);
        handles.map(second, 0x11000);
        let bytes = |handles: &Handles, from, to| {
            handles.behind(from..to).into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>()
        };
        assert_eq!(bytes(&handles, 0x10fff, 0x11001), [8191..8192, 65536..65537]);
        assert_eq!(bytes(&handles, 0x0, 0x20000), [4096..8192, 65536..73728]);
        assert_eq!(bytes(&handles, 0x12fff, 0x13000).as_slice(), std::slice::from_ref(&(73727..73728)));
        assert!(bytes(&handles, 0x13000, 0x14000).is_empty() && bytes(&handles, 0x0, 0x10000).is_empty());
        let mapping = handles.mapped_at(0x10000).unwrap();
        handles.unmap(&mapping);
        assert!(bytes(&handles, 0x10000, 0x11000).is_empty());
        handles.remove(second);
        assert!(bytes(&handles, 0x10000, 0x14000).is_empty());
    }

    #[test]
    fn access_is_remembered_for_the_part_that_it_was_given_for() {
        let (mut handles, number) = one();
        handles.map(number, 0x10000);
        handles.map(number, 0x11000);
        let all = [Access { location: DEVICE, flags: 3 }];
        let none = [Access { location: DEVICE, flags: 0 }];
        handles.grant(0x10800..0x11800, &all);
        handles.grant(0x10800..0x11000, &none);
        let granted: Vec<_> = handles
            .mappings_in(0x10000..0x12000)
            .into_iter()
            .flat_map(|mapping| mapping.granted)
            .map(|granted| (granted.addresses, granted.access[0].flags))
            .collect();
        assert_eq!(granted, [(0x10800..0x11000, 0), (0x11000..0x11800, 3)]);
        assert_eq!(handles.mappings_in(0x10fff..0x11001).len(), 2);
    }
}
