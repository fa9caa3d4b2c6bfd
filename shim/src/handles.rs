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

use std::collections::BTreeMap;
use std::ops::Range;
use tidegate_ffi::cuda::sys::{CUdevice, CUdeviceptr};
use tidegate_ffi::units::Class;

/// A handle's number, as the program has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleNumber(pub u64);

/// Numbers of ours begin here, far beyond the driver's.
const FIRST_NUMBER: u64 = 0x7467_0000_0000_0000;

/// Who may do what with a mapping: a `CUmemAccessDesc`, by numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The kind of place: a device, the host.
    pub kind: i32,
    /// Which one.
    pub id: i32,
    /// `CUmemAccess_flags`.
    pub flags: i32,
}

/// A `CUmemAllocationProp`, by numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// How it is allocated: `CUmemAllocationType`.
    pub kind: i32,
    /// How it can be exported: `CUmemAllocationHandleType`s.
    pub exports: i32,
    /// Where it lies: the kind of place.
    pub place: i32,
    /// Where it lies: which one.
    pub id: i32,
    /// Of another system.
    pub security: usize,
    /// Compression, RDMA, usage.
    pub flags: [u8; 8],
}

/// A handle of the program's.
#[derive(Debug)]
pub struct Handle {
    /// Its tenant's device.
    pub device: CUdevice,
    /// The range of its slots.
    pub class: Class,
    /// Its first byte there.
    pub start: u64,
    /// Its length, a multiple of the unit.
    pub bytes: u64,
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
    /// Its first address.
    pub address: CUdeviceptr,
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
    /// The length.
    pub bytes: u64,
}

/// All handles of a process.
#[derive(Debug, Default)]
pub struct Handles {
    handles: BTreeMap<HandleNumber, Handle>,
    made: u64,
}

impl Handles {
    /// A new handle, which the program has to release once.
    pub fn add(&mut self, extent: Extent, properties: Properties) -> HandleNumber {
        self.made += 1;
        let number = HandleNumber(FIRST_NUMBER + self.made);
        let Extent { device, class, start, bytes } = extent;
        let (references, mappings) = (1, BTreeMap::new());
        self.handles.insert(number, Handle { device, class, start, bytes, properties, references, mappings });
        number
    }

    /// A handle that the program still holds.
    pub fn get(&self, number: HandleNumber) -> Option<&Handle> {
        self.handles.get(&number).filter(|handle| handle.references > 0)
    }

    /// Where a handle lies.
    pub fn extent(&self, number: HandleNumber) -> Option<Extent> {
        let Handle { device, class, start, bytes, .. } = *self.handles.get(&number)?;
        Some(Extent { device, class, start, bytes })
    }

    /// The handle that a byte of a tenant's range belongs to.
    pub fn at(&self, device: CUdevice, class: Class, at: u64) -> Option<HandleNumber> {
        let is_its = |handle: &Handle| {
            handle.device == device
                && handle.class == class
                && (handle.start..handle.start + handle.bytes).contains(&at)
        };
        self.handles.iter().find(|(_, handle)| is_its(handle)).map(|(number, _)| *number)
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
        }
    }

    /// The program has unmapped a handle. True: that was the end of it.
    pub fn unmap(&mut self, mapping: &Mapping) -> bool {
        let Some(handle) = self.handles.get_mut(&mapping.number) else { return false };
        handle.mappings.remove(&mapping.address);
        handle.is_over()
    }

    /// A handle is no more.
    pub fn remove(&mut self, number: HandleNumber) -> Option<Handle> {
        self.handles.remove(&number)
    }

    /// The mapping that an address lies in.
    pub fn mapped_at(&self, address: CUdeviceptr) -> Option<Mapping> {
        self.mappings_in(address..address.saturating_add(1)).into_iter().next()
    }

    /// The mappings that touch some addresses, by address.
    pub fn mappings_in(&self, addresses: Range<CUdeviceptr>) -> Vec<Mapping> {
        let mut found: Vec<Mapping> = Vec::new();
        for (number, handle) in &self.handles {
            let touches =
                |start: CUdeviceptr| start < addresses.end && addresses.start < start + handle.bytes;
            let touched = handle.mappings.iter().filter(|(start, _)| touches(**start));
            found.extend(touched.map(|(&address, granted)| Mapping {
                number: *number,
                address,
                granted: granted.clone(),
            }));
        }
        found.sort_by_key(|mapping| mapping.address);
        found
    }

    /// The mappings of a handle.
    pub fn mappings_of(&self, number: HandleNumber) -> Vec<Mapping> {
        let Some(handle) = self.handles.get(&number) else { return Vec::new() };
        let mapping = |(&address, granted): (&CUdeviceptr, &Vec<Granted>)| Mapping {
            number,
            address,
            granted: granted.clone(),
        };
        handle.mappings.iter().map(mapping).collect()
    }

    /// The program has said who may use some addresses.
    pub fn grant(&mut self, addresses: Range<CUdeviceptr>, access: &[Access]) {
        for handle in self.handles.values_mut() {
            for (&start, granted) in &mut handle.mappings {
                let part = addresses.start.max(start)..addresses.end.min(start + handle.bytes);
                if part.start < part.end {
                    granted.retain(|before| before.addresses != part);
                    granted.push(Granted { addresses: part, access: access.to_vec() });
                }
            }
        }
    }
}

impl Handle {
    fn is_over(&self) -> bool {
        self.references == 0 && self.mappings.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROPERTIES: Properties =
        Properties { kind: 1, exports: 0, place: 1, id: 0, security: 0, flags: [0; 8] };

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
        let mapping = handles.mapped_at(0x10000).unwrap();
        assert!(handles.unmap(&mapping));
    }

    #[test]
    fn a_byte_of_the_range_finds_its_handle() {
        let (handles, number) = one();
        assert_eq!(handles.at(0, Class::Temporary, 8191), Some(number));
        assert_eq!(handles.at(0, Class::Temporary, 8192), None);
        assert_eq!(handles.at(0, Class::Persistent, 4096), None);
        assert_eq!(handles.at(1, Class::Temporary, 4096), None);
    }

    #[test]
    fn access_is_remembered_for_the_part_that_it_was_given_for() {
        let (mut handles, number) = one();
        handles.map(number, 0x10000);
        handles.map(number, 0x11000);
        let all = [Access { kind: 1, id: 0, flags: 3 }];
        let none = [Access { kind: 1, id: 0, flags: 0 }];
        handles.grant(0x10800..0x11800, &all);
        handles.grant(0x10800..0x11000, &none);
        let granted: Vec<_> = handles
            .mappings_of(number)
            .into_iter()
            .flat_map(|mapping| mapping.granted)
            .map(|granted| (granted.addresses, granted.access[0].flags))
            .collect();
        assert_eq!(granted, [(0x10800..0x11000, 0), (0x11000..0x11800, 3)]);
        assert_eq!(handles.mappings_in(0x10fff..0x11001).len(), 2);
    }
}
