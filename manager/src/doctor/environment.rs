//! Variables that change how programs get GPU memory, and what Tidegate makes of each.

#![forbid(unsafe_code)]

use super::Finding;
use std::collections::BTreeMap;

/// What was set when the command was started.
pub type Variables = BTreeMap<String, String>;

const TOPIC: &str = "environment";

/// A variable that matters, when its value does.
struct Rule {
    /// Its name, or the beginning of several.
    name: &'static str,
    matters: fn(&str) -> bool,
    /// What follows under Tidegate.
    consequence: &'static str,
    advice: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        name: "PYTORCH_CUDA_ALLOC_CONF",
        matters: expandable,
        consequence: EXPANDABLE,
        advice: WITHOUT_EXPANDABLE,
    },
    Rule {
        name: "PYTORCH_ALLOC_CONF",
        matters: expandable,
        consequence: EXPANDABLE,
        advice: WITHOUT_EXPANDABLE,
    },
    Rule { name: "PYTORCH_CUDA_ALLOC_CONF", matters: pools, consequence: POOLS, advice: NATIVE },
    Rule { name: "PYTORCH_ALLOC_CONF", matters: pools, consequence: POOLS, advice: NATIVE },
    Rule {
        name: "PYTORCH_NO_CUDA_MEMORY_CACHING",
        matters: is_on,
        consequence: "each tensor is an allocation of the driver's: exact, and slow",
        advice: "unset it, unless memory errors are being looked for",
    },
    Rule {
        name: "CUDA_MPS_",
        matters: |_| true,
        consequence: "MPS shares the GPU in its own way, which Tidegate neither needs nor has been tried with",
        advice: "unset it for jobs under Tidegate, and end the MPS daemon",
    },
    Rule {
        name: "XLA_PYTHON_CLIENT_PREALLOCATE",
        matters: |value| !is_false(value),
        consequence: PREALLOCATED,
        advice: ON_DEMAND,
    },
    Rule {
        name: "XLA_PYTHON_CLIENT_MEM_FRACTION",
        matters: |_| true,
        consequence: PREALLOCATED,
        advice: ON_DEMAND,
    },
    Rule {
        name: "XLA_PYTHON_CLIENT_ALLOCATOR",
        matters: |value| value == "cuda_async",
        consequence: POOLS,
        advice: "XLA_PYTHON_CLIENT_ALLOCATOR=platform",
    },
    Rule {
        name: "TF_GPU_ALLOCATOR",
        matters: |value| value == "cuda_malloc_async",
        consequence: POOLS,
        advice: "unset it",
    },
    Rule {
        name: "CUDA_VISIBLE_DEVICES",
        matters: |value| value.contains("MIG-"),
        consequence: "Tidegate does not share MIG instances yet",
        advice: "name whole GPUs, and switch MIG off on them (nvidia-smi -mig 0)",
    },
    Rule {
        name: "TIDEGATE_OFF",
        matters: is_on,
        consequence: "programs run past Tidegate",
        advice: "unset it",
    },
];

const EXPANDABLE: &str = "expandable segments are the program's own virtual memory, which is refused for now";
const WITHOUT_EXPANDABLE: &str =
    "leave expandable_segments out of it: Tidegate keeps memory from fragmenting";
const POOLS: &str = "the driver's memory pools are refused for now";
const NATIVE: &str = "leave backend:cudaMallocAsync out of it";
const PREALLOCATED: &str =
    "one allocation takes most of the GPU, and what in it is alive cannot be told: all of it moves";
const ON_DEMAND: &str = "XLA_PYTHON_CLIENT_PREALLOCATE=false";

/// A finding for each variable that matters.
pub fn look(variables: &Variables) -> Vec<Finding> {
    let found: Vec<Finding> = RULES.iter().flat_map(|rule| rule.look(variables)).collect();
    if found.is_empty() { vec![Finding::good(TOPIC, "nothing in it is in the way")] } else { found }
}

impl Rule {
    fn look<'a>(&'a self, variables: &'a Variables) -> impl Iterator<Item = Finding> + 'a {
        let is_meant = |name: &str| match self.name.ends_with('_') {
            true => name.starts_with(self.name),
            false => name == self.name,
        };
        let matter = variables.iter().filter(move |(name, value)| is_meant(name) && (self.matters)(value));
        matter.map(|(name, value)| {
            Finding::warning(TOPIC, format!("{name}={value}: {}", self.consequence), self.advice)
        })
    }
}

fn is_on(value: &str) -> bool {
    !value.is_empty() && !is_false(value)
}

fn is_false(value: &str) -> bool {
    ["0", "false"].contains(&value.to_ascii_lowercase().as_str())
}

/// An entry of a list as PyTorch reads it: `name:value,…`.
fn has_entry(list: &str, name: &str, value: &str) -> bool {
    let mut entries = list.split(',').filter_map(|entry| entry.split_once(':'));
    entries.any(|(key, set)| key.trim() == name && set.trim().eq_ignore_ascii_case(value))
}

fn expandable(value: &str) -> bool {
    has_entry(value, "expandable_segments", "true")
}

fn pools(value: &str) -> bool {
    has_entry(value, "backend", "cudaMallocAsync")
}

#[cfg(test)]
mod tests {
    use super::super::Mark;
    use super::*;

    fn look_at(name: &str, value: &str) -> Vec<Finding> {
        look(&Variables::from([(name.into(), value.into()), ("PATH".into(), "/bin".into())]))
    }

    #[test]
    fn what_changes_how_memory_is_had_is_named_with_its_consequence() {
        for (name, value, words) in [
            ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, backend:cudaMallocAsync", "pools"),
            ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "virtual memory"),
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "slow"),
            ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps", "MPS"),
            ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9", "most of the GPU"),
            ("TF_GPU_ALLOCATOR", "cuda_malloc_async", "pools"),
            ("CUDA_VISIBLE_DEVICES", "MIG-12", "MIG"),
            ("TIDEGATE_OFF", "1", "past Tidegate"),
        ] {
            let found = look_at(name, value);
            assert_eq!((found.len(), found[0].mark), (1, Mark::Warning), "{found:?}");
            assert!(found[0].says.starts_with(&format!("{name}={value}: ")), "{found:?}");
            assert!(found[0].says.contains(words), "{found:?}");
        }
    }

    #[test]
    fn what_changes_nothing_is_not_named() {
        for (name, value) in [
            ("PYTORCH_CUDA_ALLOC_CONF", "backend:native,expandable_segments:False"),
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "0"),
            ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
            ("CUDA_VISIBLE_DEVICES", "0,1"),
        ] {
            let found = look_at(name, value);
            assert_eq!((found.len(), found[0].mark), (1, Mark::Good), "{found:?}");
        }
    }
}
