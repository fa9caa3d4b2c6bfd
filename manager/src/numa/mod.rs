//! The machine's NUMA nodes: how much memory each has, in which zone, and which of them is CXL memory ([`cxl`]).
//!
//! ```text
//! node 0   processors    DMA | DMA32 | Normal       the kernel's zones: what is page-locked stays
//! node 1   (none)        Normal                     online_kernel:  as good
//! node 2   (none)                      Movable      online_movable: page-locking moves what is there to other nodes
//! ```
//! Page-locking for a device pins pages for long, and the kernel promises that nothing in the movable zone is: it moves
//! them away first, to any node that has room, and says nothing. What was bound to a node lies elsewhere then.
//!
//! What is read of `/proc` and `/sys` lies under a root that a test can choose. No `unsafe`, nothing is changed.

#![forbid(unsafe_code)]

pub mod cxl;

use crate::hardware::Machine;
use std::collections::BTreeSet;

/// Where the kernel describes its nodes.
const NODES: &str = "sys/devices/system/node";

/// One part in so many of a node's memory is left to others.
const RESERVE: u64 = 64;

/// How memory of a movable zone becomes such that saved bytes stay there.
pub const STAY_ADVICE: &str = "bring the node's memory online again for the kernel too (daxctl reconfigure-device \
     --mode=system-ram --no-movable --force daxX.Y, or `online_kernel` in /sys/devices/system/memory/auto_online_blocks \
     before it comes online), or give the device itself: --cxl /dev/daxX.Y=SIZE";

/// A node that has memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Whether it has processors too.
    pub has_processors: bool,
    /// All of its memory.
    pub total_bytes: u64,
    /// What is free, or holds copies of files' bytes.
    pub free_bytes: u64,
    /// In which zone its memory is.
    pub zone: Zone,
}

/// In which zone a node's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// The kernel's: what is page-locked there stays.
    Kernel,
    /// The movable one: nothing stays there that is page-locked.
    Movable,
    /// Some of it in each.
    Both,
    /// The kernel does not say.
    Unknown,
}

impl Node {
    /// A node of a machine, if it is there and has memory.
    pub fn of(machine: &Machine, number: u32) -> Option<Self> {
        let amounts = machine.read(&format!("{NODES}/node{number}/meminfo"))?;
        let amount = |name: &str| amount(&amounts, name);
        let total_bytes = amount("MemTotal").filter(|bytes| *bytes > 0)?;
        let files = amount("FilePages").unwrap_or(0).saturating_sub(amount("Shmem").unwrap_or(0));
        let free_bytes = amount("MemFree")?.saturating_add(files).min(total_bytes);
        let has_processors = numbers_of(machine, "has_cpu").contains(&number);
        let zone = zone(&machine.read("proc/zoneinfo").unwrap_or_default(), number);
        Some(Self { number, has_processors, total_bytes, free_bytes, zone })
    }
}

impl Node {
    /// What saved bytes may still take of it: the rest is others', and the kernel kills for a node's last page.
    pub fn room(&self) -> u64 {
        self.free_bytes.saturating_sub(self.total_bytes / RESERVE)
    }
}

/// The nodes that have something: `has_cpu`, `has_memory`.
pub fn numbers_of(machine: &Machine, what: &str) -> BTreeSet<u32> {
    numbers(&machine.read(&format!("{NODES}/{what}")).unwrap_or_default())
}

/// Where the kernel keeps a node's files: who page-locks memory of a node locks this directory.
pub fn directory(node: u32) -> String {
    format!("/{NODES}/node{node}")
}

/// Bytes of a line as `Node 1 MemFree:  262144 kB`.
fn amount(text: &str, name: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        let is_it = words.next()?.strip_suffix(':') == Some(name);
        is_it.then(|| words.next()?.parse::<u64>().ok()?.checked_mul(1024)).flatten()
    };
    text.lines().find_map(of_line)
}

/// Where a node's pages are, by the zones' `managed` counts.
fn zone(text: &str, node: u32) -> Zone {
    let (mut kernel, mut movable) = (0u64, 0u64);
    let mut current = None;
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("Node ") {
            current = head.split_once(", zone").filter(|(number, _)| number.trim().parse() == Ok(node));
        } else if let (Some((_, name)), Some(pages)) = (current, line.trim().strip_prefix("managed")) {
            let pages = pages.trim().parse::<u64>().unwrap_or(0);
            match name.trim() {
                "Movable" => movable += pages,
                // Memory that only its device's driver hands out.
                "Device" => {}
                _ => kernel += pages,
            }
        }
    }
    match (kernel, movable) {
        (0, 0) => Zone::Unknown,
        (_, 0) => Zone::Kernel,
        (0, _) => Zone::Movable,
        _ => Zone::Both,
    }
}

/// A list as the kernel writes it: `0-2,5`.
pub fn numbers(list: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::tests::made_up;

    const ZONES: &str = "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 2\n  pages free     8\n        \
                         managed  3840\n\nNode 0, zone   Normal\n        managed  900\nNode 0, zone  Movable\n        \
                         managed  0\nNode 1, zone   Normal\n        managed  0\nNode 1, zone  Movable\n        \
                         managed  65536\nNode 12, zone  Normal\n        managed  7\nNode 12, zone  Movable\n        \
                         managed  7\n";

    #[test]
    fn a_node_is_known_by_its_size_and_its_zone() {
        let meminfo = "Node 1 MemTotal:         262144 kB\nNode 1 MemFree:          200000 kB\n\
                       Node 1 FilePages:          1010 kB\nNode 1 Shmem:                10 kB\n";
        let (_root, machine) = made_up(&[
            ("sys/devices/system/node/node1/meminfo", meminfo),
            ("sys/devices/system/node/has_cpu", "0\n"),
            ("proc/zoneinfo", ZONES),
        ]);
        let node = Node::of(&machine, 1).unwrap();
        assert_eq!((node.total_bytes, node.free_bytes), (256 << 20, 201_000 << 10));
        assert_eq!((node.has_processors, node.zone), (false, Zone::Movable));
        assert_eq!(node.room(), (201_000 << 10) - (4 << 20));
        assert_eq!(Node::of(&machine, 2), None);
    }

    #[test]
    fn a_nodes_zone_is_where_its_pages_are() {
        assert_eq!(
            [0, 1, 12, 2].map(|node| zone(ZONES, node)),
            [Zone::Kernel, Zone::Movable, Zone::Both, Zone::Unknown]
        );
    }

    #[test]
    fn this_machine_has_a_node() {
        let machine = Machine::at("/");
        let node = numbers_of(&machine, "has_memory").first().and_then(|node| Node::of(&machine, *node));
        // A kernel without NUMA has none.
        if let Some(node) = node {
            assert!(node.free_bytes <= node.total_bytes && node.zone != Zone::Unknown, "{node:?}");
        }
    }

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(numbers("0-2,5\n"), BTreeSet::from([0, 1, 2, 5]));
        assert!(numbers("").is_empty());
    }
}
