//! Which memory of a machine is CXL memory.
//!
//! ```text
//! nodes with memory − nodes with processors − GPUs' nodes
//!   └ why it is CXL memory, the surest first:
//!       a dax device below the CXL root (ACPI0017) gave it     /sys/bus/dax/devices/*/target_node
//!       the address map has CXL windows                        /proc/iomem
//!       the kernel ranks it below the processors' memory       /sys/devices/virtual/memory_tiering
//!       nothing else is like that                              it has no processors
//! ```
//! A GPU whose memory is a part of the machine's (as in a superchip) has a node without processors too: NVIDIA's kernel
//! driver names it in `numa_status`, and no CXL device gave it.
//!
//! A device that gives no node is used through `/dev/daxX.Y`.

use super::{Node, numbers, numbers_of};
use crate::hardware::Machine;
use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

/// Parts are multiples of so many bytes, and so of any page.
const GRAIN: u64 = 64 << 10;
const DEVICES: &str = "sys/bus/dax/devices";

/// CXL memory as a user names it: `node:1`, `/dev/dax0.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CxlPlace {
    /// A NUMA node.
    Node(u32),
    /// A dax device; or a file that stands in for one.
    Device(PathBuf),
}

impl FromStr for CxlPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("node:") {
            Some(node) => {
                node.parse().map(Self::Node).map_err(|_| format!("{node:?} is no number of a NUMA node"))
            }
            None if text.starts_with('/') => Ok(Self::Device(text.into())),
            None => Err("a NUMA node or a device is wanted, as in node:1 or /dev/dax0.0".into()),
        }
    }
}

impl fmt::Display for CxlPlace {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CxlPlace::Node(node) => write!(text, "node:{node}"),
            CxlPlace::Device(path) => write!(text, "{}", path.display()),
        }
    }
}

impl CxlPlace {
    /// Parts of it begin and end at multiples of so many bytes.
    ///
    /// # Errors
    /// The device cannot be looked at.
    pub fn align(&self) -> io::Result<u64> {
        let CxlPlace::Device(path) = self else { return Ok(GRAIN) };
        Ok(of_device(path, "align")?.unwrap_or(GRAIN).max(GRAIN))
    }

    /// How much memory it has.
    ///
    /// # Errors
    /// It is not there, or nothing that could hold bytes.
    pub fn bytes(&self) -> io::Result<u64> {
        match self {
            CxlPlace::Node(node) => {
                let node = Node::of(&Machine::at("/"), *node)
                    .ok_or_else(|| io::Error::other("there is no such node with memory"))?;
                Ok(node.total_bytes)
            }
            CxlPlace::Device(path) => match of_device(path, "size")? {
                Some(bytes) => Ok(bytes),
                None => Ok(std::fs::metadata(path)?.len()),
            },
        }
    }
}

/// What the kernel says of a dax device; `None` of a file.
fn of_device(path: &Path, what: &str) -> io::Result<Option<u64>> {
    let file = std::fs::metadata(path)?;
    if file.is_file() {
        return Ok(None);
    }
    let (major, minor) = (rustix::fs::major(file.rdev()), rustix::fs::minor(file.rdev()));
    let text = Machine::at("/").read(&format!("sys/dev/char/{major}:{minor}/{what}"));
    let number = text.filter(|_| file.file_type().is_char_device()).and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| io::Error::other("it is neither a dax device nor a file"))
}

/// The CXL memory of a machine.
#[derive(Clone, Debug, Default)]
pub struct CxlMemory {
    /// Nodes that are, or may be.
    pub nodes: Vec<CxlNode>,
    /// What CXL devices give.
    pub devices: Vec<DaxDevice>,
    /// How many windows for it the address map has.
    pub windows: usize,
}

/// A node that is CXL memory.
#[derive(Clone, Debug)]
pub struct CxlNode {
    /// The node.
    pub node: Node,
    /// Why it is taken for that.
    pub evidence: Evidence,
}

/// Why a node is taken for CXL memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A CXL device gave it.
    Device,
    /// It has no processors, and the address map has windows.
    Window,
    /// It has no processors, and the kernel ranks it below those that have.
    SlowerTier,
    /// It has no processors.
    NoProcessors,
}

/// Memory that a CXL device gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaxDevice {
    /// Its name, as in `/dev/dax0.0`.
    pub name: String,
    /// The node that it becomes when the kernel has it.
    pub node: Option<u32>,
    /// Whether the kernel has it (`kmem`), or programs may map it.
    pub is_the_kernels: bool,
}

impl CxlMemory {
    /// What a machine has.
    pub fn of(machine: &Machine) -> Self {
        let devices = devices(machine);
        let given: BTreeSet<u32> = devices.iter().filter_map(|device| device.node).collect();
        let windows = machine.read("proc/iomem").unwrap_or_default().matches("CXL Window").count();
        let processors = numbers_of(machine, "has_cpu");
        let ranks = Ranks::of(machine, &processors);
        let evidence = |node: &u32| match windows {
            _ if given.contains(node) => Evidence::Device,
            1.. => Evidence::Window,
            _ if ranks.is_slower(*node) => Evidence::SlowerTier,
            _ => Evidence::NoProcessors,
        };
        let without = &(&numbers_of(machine, "has_memory") - &processors) - &gpu_nodes(machine);
        let nodes = without.iter().filter_map(|number| {
            Some(CxlNode { node: Node::of(machine, *number)?, evidence: evidence(number) })
        });
        Self { nodes: nodes.collect(), devices, windows }
    }

    /// Devices that the kernel has, and of whose memory nothing is online.
    pub fn offline(&self) -> impl Iterator<Item = &DaxDevice> {
        let is_online =
            |device: &DaxDevice| self.nodes.iter().any(|cxl| Some(cxl.node.number) == device.node);
        self.devices.iter().filter(move |device| device.is_the_kernels && !is_online(device))
    }

    /// Devices that programs may map.
    pub fn mappable(&self) -> impl Iterator<Item = &DaxDevice> {
        self.devices.iter().filter(|device| !device.is_the_kernels)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Evidence::Device => "a CXL device gave it",
            Evidence::Window => "perhaps: it has no processors, and the address map has CXL windows",
            Evidence::SlowerTier => {
                "perhaps: it has no processors, and the kernel places it in a slower tier"
            }
            Evidence::NoProcessors => "perhaps: it has no processors",
        })
    }
}

/// The dax devices below what firmware calls the CXL root.
fn devices(machine: &Machine) -> Vec<DaxDevice> {
    let resolved = |path: String| {
        let place = std::fs::canonicalize(machine.path(&path)).ok()?;
        Some(place.to_string_lossy().into_owned())
    };
    let device = |name: String| {
        let at = format!("{DEVICES}/{name}");
        resolved(at.clone()).filter(|place| place.contains("ACPI0017"))?;
        let node = machine.read(&format!("{at}/target_node")).and_then(|text| text.parse().ok());
        let is_the_kernels = resolved(format!("{at}/driver")).is_some_and(|driver| driver.ends_with("/kmem"));
        Some(DaxDevice { name, node, is_the_kernels })
    };
    machine.list(DEVICES).into_iter().filter_map(device).collect()
}

/// Where a GPU's memory is a part of the machine's, NVIDIA's kernel driver names its node.
fn gpu_nodes(machine: &Machine) -> BTreeSet<u32> {
    const GPUS: &str = "proc/driver/nvidia/gpus";
    let node = |gpu: &String| {
        let text = machine.read(&format!("{GPUS}/{gpu}/numa_status"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Node:"))?;
        line.trim().parse().ok()
    };
    machine.list(GPUS).iter().filter_map(node).collect()
}

/// The kernel's ranks of memory: the smaller the number, the faster.
struct Ranks {
    nodes: Vec<(u32, BTreeSet<u32>)>,
    /// The slowest rank of memory beside processors.
    ordinary: Option<u32>,
}

impl Ranks {
    fn of(machine: &Machine, processors: &BTreeSet<u32>) -> Self {
        const RANKS: &str = "sys/devices/virtual/memory_tiering";
        let rank = |name: String| {
            let nodes = machine.read(&format!("{RANKS}/{name}/nodelist"))?;
            Some((name.strip_prefix("memory_tier")?.parse().ok()?, numbers(&nodes)))
        };
        let nodes: Vec<(u32, BTreeSet<u32>)> = machine.list(RANKS).into_iter().filter_map(rank).collect();
        let with_processors = nodes.iter().filter(|(_, nodes)| !nodes.is_disjoint(processors));
        let ordinary = with_processors.map(|(rank, _)| *rank).max();
        Self { nodes, ordinary }
    }

    fn is_slower(&self, node: u32) -> bool {
        let rank = self.nodes.iter().find(|(_, nodes)| nodes.contains(&node)).map(|(rank, _)| *rank);
        rank > self.ordinary && self.ordinary.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::tests::made_up;
    use std::os::unix::fs::symlink;

    const MEMINFO: (&str, &str) =
        ("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 1024 kB\nNode 2 MemFree: 512 kB\n");
    const NODES: [(&str, &str); 3] = [
        ("sys/devices/system/node/has_memory", "0-2\n"),
        ("sys/devices/system/node/has_cpu", "0-1\n"),
        MEMINFO,
    ];

    fn found(more: &[(&str, &str)]) -> CxlMemory {
        let (_root, machine) = made_up(&[&NODES[..], more].concat());
        CxlMemory::of(&machine)
    }

    fn evidence(more: &[(&str, &str)]) -> Vec<(u32, Evidence)> {
        found(more).nodes.iter().map(|cxl| (cxl.node.number, cxl.evidence)).collect()
    }

    #[test]
    fn a_node_of_a_cxl_device_is_known_by_its_device() {
        let device = "sys/devices/platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0/dax0.0";
        let target = (format!("{device}/target_node"), "2\n");
        let other = "sys/devices/platform/e820_pmem/dax1.0";
        let (root, machine) = made_up(&[
            NODES[0],
            NODES[1],
            NODES[2],
            (&target.0, target.1),
            (&format!("{other}/size"), "1\n"),
        ]);
        let devices = root.path().join("sys/bus/dax/devices");
        let driver = root.path().join("sys/bus/dax/drivers/kmem");
        std::fs::create_dir_all(&devices).unwrap();
        std::fs::create_dir_all(&driver).unwrap();
        symlink(root.path().join(device), devices.join("dax0.0")).unwrap();
        symlink(root.path().join(other), devices.join("dax1.0")).unwrap();
        let cxl = CxlMemory::of(&machine);
        assert_eq!((cxl.nodes.len(), cxl.nodes[0].evidence), (1, Evidence::Device));
        assert_eq!(cxl.mappable().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["dax0.0"]);
        symlink(driver, machine.path(device).join("driver")).unwrap();
        assert_eq!(CxlMemory::of(&machine).mappable().count(), 0);
        assert_eq!(CxlMemory::of(&machine).offline().count(), 0);
        std::fs::write(machine.path(NODES[0].0), "0-1\n").unwrap();
        assert_eq!(CxlMemory::of(&machine).offline().count(), 1, "what is offline is no node");
    }

    #[test]
    fn a_node_without_processors_is_perhaps_cxl_memory() {
        assert_eq!(evidence(&[]), [(2, Evidence::NoProcessors)]);
        let tier = |name, nodes| (name, nodes);
        let fast = tier("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0-1\n");
        let slow = tier("sys/devices/virtual/memory_tiering/memory_tier10/nodelist", "2\n");
        assert_eq!(evidence(&[fast, slow]), [(2, Evidence::SlowerTier)]);
        let one = tier("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0-2\n");
        assert_eq!(evidence(&[one]), [(2, Evidence::NoProcessors)]);
        let windows = ("proc/iomem", "00000000-00000000 : CXL Window 0\n  00000000-00000000 : region0\n");
        assert_eq!(evidence(&[windows]), [(2, Evidence::Window)]);
    }

    #[test]
    fn a_gpus_memory_is_no_cxl_memory() {
        let gpu = ("proc/driver/nvidia/gpus/0009:01:00.0/numa_status", "Node: 2\nStatus: online\n");
        let windows = ("proc/iomem", "00000000-00000000 : CXL Window 0\n");
        assert_eq!(evidence(&[gpu, windows]), []);
    }

    #[test]
    fn windows_without_memory_are_counted() {
        let (_root, machine) = made_up(&[("proc/iomem", "0-0 : CXL Window 0\n0-0 : CXL Window 1\n")]);
        let cxl = CxlMemory::of(&machine);
        assert_eq!((cxl.windows, cxl.nodes.len(), cxl.devices.len()), (2, 0, 0));
    }
}
