//! The host's memory: room for what jobs have saved, and of what kind it is.

#![forbid(unsafe_code)]

use super::{Finding, Machine, size};
use crate::numa::cxl::{CxlMemory, CxlNode};
use crate::numa::{self, Node, Zone, numbers_of};
use rustix::fs::statvfs;
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
    let [processors, memory] = ["has_cpu", "has_memory"].map(|what| numbers_of(machine, what).len());
    Finding::good("NUMA", format!("nodes with processors: {processors}, with memory: {memory}"))
}

/// CXL memory, and whether saved bytes would stay there.
fn cxl(machine: &Machine) -> Finding {
    const TOPIC: &str = "CXL";
    let found = CxlMemory::of(machine);
    if let Some(trap) = found.nodes.iter().find(|cxl| cxl.node.zone == Zone::Movable) {
        let says = format!("{}, which loses what is page-locked there", in_words(trap));
        return Finding::warning(TOPIC, says, numa::STAY_ADVICE);
    }
    if let Some(offline) = found.offline().next() {
        let (name, advice) = (&offline.name, "daxctl online-memory --no-movable");
        return Finding::warning(TOPIC, format!("{name}'s memory is offline"), format!("{advice} {name}"));
    }
    let nodes = found
        .nodes
        .iter()
        .map(|cxl| format!("{}; --cxl node:{}=SIZE uses it", in_words(cxl), cxl.node.number));
    let devices = found.mappable().map(|device| format!("a device: --cxl /dev/{}=SIZE uses it", device.name));
    let all: Vec<String> = nodes.chain(devices).collect();
    match (all.is_empty(), found.windows) {
        (false, _) => Finding::good(TOPIC, all.join("; ")),
        (true, 0) => Finding::good(TOPIC, "none"),
        (true, _) => Finding::good(TOPIC, "windows for it, and no memory in them"),
    }
}

fn in_words(cxl: &CxlNode) -> String {
    let Node { number, total_bytes, free_bytes, zone, .. } = cxl.node;
    let zone = match zone {
        Zone::Kernel => "in a zone of the kernel's",
        Zone::Movable => "in the movable zone",
        Zone::Both => "partly in the movable zone",
        Zone::Unknown => "in a zone that is not known",
    };
    format!("NUMA node {number} ({}): {}, {} free, {zone}", cxl.evidence, size(total_bytes), size(free_bytes))
}

#[cfg(test)]
mod tests {
    use super::super::Mark;
    use super::*;
    use crate::hardware::tests::made_up;

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
    fn cxl_memory_that_loses_what_is_page_locked_is_a_warning() {
        let zone = |name: &str| format!("Node 2, zone  {name}\n        managed  256\n");
        let of = |zone: &str| {
            let meminfo = "Node 2 MemTotal: 1048576 kB\nNode 2 MemFree: 524288 kB\n";
            let meminfo = ("sys/devices/system/node/node2/meminfo", meminfo);
            let (_root, machine) = made_up(&[NODES[0], NODES[1], meminfo, ("proc/zoneinfo", zone)]);
            cxl(&machine)
        };
        let found = of(&zone("Movable"));
        assert!(found.mark == Mark::Warning && found.says.contains("node 2"), "{found:?}");
        assert!(found.advice.unwrap().contains("--no-movable"));
        let found = of(&zone("Normal"));
        let words = ["node 2", "perhaps", "1.0 GiB, 512.0 MiB free", "--cxl node:2=SIZE"];
        assert!(found.mark == Mark::Good && words.iter().all(|word| found.says.contains(word)), "{found:?}");
    }

    #[test]
    fn a_machine_without_cxl_memory_says_so() {
        let windows = ("proc/iomem", "00000000-00000000 : CXL Window 0\n");
        assert_eq!(cxl(&made_up(&[]).1).says, "none");
        let (_root, machine) = made_up(&[windows]);
        assert_eq!(cxl(&machine).says, "windows for it, and no memory in them");
    }

    #[test]
    fn a_machine_that_says_nothing_is_no_error() {
        let (_root, machine) = made_up(&[]);
        assert!(look(&machine, 1 << 30).iter().all(|finding| finding.mark == Mark::Good));
    }
}
