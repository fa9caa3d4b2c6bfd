//! The host's memory: room for what jobs have saved, and of what kind it is.

#![forbid(unsafe_code)]

use super::{Finding, Machine, size};
use rustix::fs::statvfs;
use std::collections::BTreeSet;
use std::path::Path;

/// Room, huge pages, NUMA nodes, CXL. `gpu_bytes` is the memory of all GPUs.
pub fn look(machine: &Machine, gpu_bytes: u64) -> Vec<Finding> {
    vec![
        dram(machine, gpu_bytes),
        room(machine, "shared memory", "dev/shm"),
        room(machine, "disk", "var/tmp"),
        huge_pages(machine),
        nodes(machine),
        cxl(machine),
    ]
}

/// By default a manager saves into half of what is available.
fn dram(machine: &Machine, gpu_bytes: u64) -> Finding {
    const TOPIC: &str = "memory";
    let Some(available) = available(machine) else { return Finding::good(TOPIC, "how much is not known") };
    let says = format!("{} available, half of it for saved bytes", size(available));
    if available / 2 < gpu_bytes {
        let advice = format!(
            "where jobs together keep more than that alive, later ones queue: give more with --dram, up to {}",
            size(gpu_bytes)
        );
        return Finding::warning(TOPIC, format!("{says}; the GPUs have {}", size(gpu_bytes)), advice);
    }
    Finding::good(TOPIC, says)
}

fn available(machine: &Machine) -> Option<u64> {
    let text = machine.read("proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn room(machine: &Machine, topic: &'static str, directory: &str) -> Finding {
    match free_bytes(&machine.path(directory)) {
        Some(free) => Finding::good(topic, format!("{} free in /{directory}", size(free))),
        None => Finding::good(topic, format!("there is no /{directory}")),
    }
}

fn free_bytes(directory: &Path) -> Option<u64> {
    let system = statvfs(directory).ok()?;
    Some(system.f_bavail * system.f_frsize)
}

fn huge_pages(machine: &Machine) -> Finding {
    const TOPIC: &str = "huge pages";
    let setting = |file| {
        let text = machine.read(&format!("sys/kernel/mm/transparent_hugepage/{file}"))?;
        let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))?;
        Some(chosen.to_owned())
    };
    let reserved = machine.read("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let reserved = reserved.and_then(|text| text.parse().ok()).unwrap_or(0u64);
    let Some(enabled) = setting("enabled") else {
        return Finding::good(TOPIC, "the kernel has no transparent ones");
    };
    let shared = setting("shmem_enabled").unwrap_or_else(|| "never".into());
    let says = format!("transparent: {enabled}, for shared memory: {shared}; {reserved} reserved ones free");
    if shared == "never" || shared == "deny" {
        let advice =
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled: saving pins memory faster";
        return Finding::warning(TOPIC, says, advice);
    }
    Finding::good(TOPIC, says)
}

fn nodes(machine: &Machine) -> Finding {
    let of = |kind| numbers(&machine.read(&format!("sys/devices/system/node/{kind}")).unwrap_or_default());
    let (processors, memory) = (of("has_cpu").len(), of("has_memory").len());
    Finding::good("NUMA", format!("nodes with processors: {processors}, with memory: {memory}"))
}

/// CXL memory, in the order of certainty: nodes that a CXL device gave, such devices that are no nodes,
/// windows in the address map, slower nodes without processors.
fn cxl(machine: &Machine) -> Finding {
    const TOPIC: &str = "CXL";
    let devices = dax_devices(machine);
    let nodes = memory_only_nodes(machine);
    let certain: BTreeSet<u32> = devices.iter().filter_map(|device| device.node).collect();
    let windows = machine.read("proc/iomem").unwrap_or_default().matches("CXL Window").count();
    let found: Vec<u32> = nodes.intersection(&certain).copied().collect();
    if !found.is_empty() {
        return Finding::good(TOPIC, format!("memory of CXL devices is NUMA node {}", joined(&found)));
    }
    if !devices.is_empty() {
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        return Finding::good(TOPIC, format!("devices that are no NUMA nodes: {}", names.join(", ")));
    }
    if nodes.is_empty() {
        let words = if windows == 0 { "none" } else { "windows for it, and no memory in them" };
        return Finding::good(TOPIC, words);
    }
    let tiers = machine.list("sys/devices/virtual/memory_tiering").len();
    let nodes: Vec<u32> = nodes.into_iter().collect();
    let why = match (windows, tiers) {
        (0, 0 | 1) => "it has no processors",
        (0, _) => "it has no processors, and the kernel places it in a slower tier",
        (_, _) => "it has no processors, and the address map has CXL windows",
    };
    Finding::good(TOPIC, format!("perhaps NUMA node {}: {why}", joined(&nodes)))
}

/// A device of memory that a CXL device gave.
struct DaxDevice {
    name: String,
    node: Option<u32>,
}

/// The kernel's name for what firmware calls CXL.
fn dax_devices(machine: &Machine) -> Vec<DaxDevice> {
    const DEVICES: &str = "sys/bus/dax/devices";
    let is_cxl = |name: &String| {
        let place = std::fs::canonicalize(machine.path(&format!("{DEVICES}/{name}")));
        place.is_ok_and(|place| place.to_string_lossy().contains("ACPI0017"))
    };
    let node = |name: &str| machine.read(&format!("{DEVICES}/{name}/target_node"))?.parse().ok();
    let names = machine.list(DEVICES).into_iter().filter(is_cxl);
    names.map(|name| DaxDevice { node: node(&name), name }).collect()
}

/// Nodes with memory and without processors, but for those whose memory is a GPU's.
fn memory_only_nodes(machine: &Machine) -> BTreeSet<u32> {
    let of = |kind| numbers(&machine.read(&format!("sys/devices/system/node/{kind}")).unwrap_or_default());
    let without: BTreeSet<u32> = &of("has_memory") - &of("has_cpu");
    &without - &gpu_nodes(machine)
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

/// A list as the kernel writes it: `0-2,5`.
fn numbers(list: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

fn joined(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::Mark;
    use super::super::tests::made_up;
    use super::*;
    use std::os::unix::fs::symlink;

    const NODES: [(&str, &str); 2] =
        [("sys/devices/system/node/has_memory", "0-2\n"), ("sys/devices/system/node/has_cpu", "0-1\n")];

    #[test]
    fn little_memory_for_large_gpus_is_a_warning() {
        let (_root, machine) = made_up(&[("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:  4194304 kB\n")]);
        assert_eq!(dram(&machine, 2 << 30).mark, Mark::Good);
        let found = dram(&machine, 80 << 30);
        assert!(found.mark == Mark::Warning && found.says.contains("80.0 GiB"), "{found:?}");
    }

    #[test]
    fn huge_pages_that_saving_cannot_have_are_a_warning() {
        let of = |shared| {
            let setting = ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
            let shared = ("sys/kernel/mm/transparent_hugepage/shmem_enabled", shared);
            let free = ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "12\n");
            let (_root, machine) = made_up(&[setting, shared, free]);
            huge_pages(&machine)
        };
        let found = of("always within_size advise [never] deny force\n");
        assert_eq!(found.mark, Mark::Warning);
        assert_eq!(found.says, "transparent: madvise, for shared memory: never; 12 reserved ones free");
        assert_eq!(of("always within_size [advise] never deny force\n").mark, Mark::Good);
    }

    #[test]
    fn a_node_of_a_cxl_device_is_known_by_its_device() {
        let device = "sys/devices/platform/ACPI0017:00/root0/dax_region0/dax0.0";
        let target = (format!("{device}/target_node"), "2\n");
        let (root, machine) = made_up(&[NODES[0], NODES[1], (&target.0, target.1)]);
        let devices = root.path().join("sys/bus/dax/devices");
        std::fs::create_dir_all(&devices).unwrap();
        symlink(root.path().join(device), devices.join("dax0.0")).unwrap();
        assert_eq!(cxl(&machine).says, "memory of CXL devices is NUMA node 2");
        std::fs::write(machine.path(NODES[0].0), "0-1\n").unwrap();
        assert_eq!(cxl(&machine).says, "devices that are no NUMA nodes: dax0.0");
    }

    #[test]
    fn a_node_without_processors_is_perhaps_cxl_unless_it_is_a_gpus() {
        let (_root, machine) = made_up(&NODES);
        assert_eq!(cxl(&machine).says, "perhaps NUMA node 2: it has no processors");
        let windows = ("proc/iomem", "00000000-00000000 : CXL Window 0\n");
        let (_root, machine) = made_up(&[NODES[0], NODES[1], windows]);
        assert!(cxl(&machine).says.ends_with("the address map has CXL windows"));
        let gpu = ("proc/driver/nvidia/gpus/0009:01:00.0/numa_status", "Node: 2\nStatus: online\n");
        let (_root, machine) = made_up(&[NODES[0], NODES[1], gpu]);
        assert_eq!(cxl(&machine).says, "none");
    }

    #[test]
    fn a_machine_that_says_nothing_is_no_error() {
        let (_root, machine) = made_up(&[]);
        assert!(look(&machine, 1 << 30).iter().all(|finding| finding.mark == Mark::Good));
    }

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(numbers("0-2,5\n"), BTreeSet::from([0, 1, 2, 5]));
        assert!(numbers("").is_empty());
    }
}
