//! The numbers that must not be mixed up, each its own type.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! numbers {
    ($( $(#[$doc:meta])* $name:ident($inner:ty) shown as $format:literal; )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    )* };
}

numbers! {
    /// A job: a program started under Tidegate, with all its processes.
    JobId(u64) shown as "job {}";
    /// One process of a job, as the manager sees it: one connection, one gate.
    SessionId(u64) shown as "session {}";
    /// One process of a job on one GPU.
    TenantId(u64) shown as "tenant {}";
    /// A run of units made by one `cuMemCreate`.
    PieceId(u64) shown as "piece {}";
    /// A unit-sized place in one class's reserved address range of a tenant, counted from 0.
    SlotIndex(u32) shown as "slot {}";
    /// A number of units (or of slots: both are one unit long).
    Units(u32) shown as "{} units";
    /// A question and its answer: chosen by who asks, repeated by who answers.
    Step(u64) shown as "step {}";
}

/// Whether an allocation must survive from one iteration to the next (R4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Weights, optimizer state: survives iterations.
    Persistent,
    /// Activations, workspaces: needed inside one iteration.
    Temporary,
}

impl Class {
    /// Both classes, in the order in which tables list them.
    pub const ALL: [Class; 2] = [Class::Persistent, Class::Temporary];

    /// 0 for persistent, 1 for temporary: an index into tables with one row per class.
    pub const fn index(self) -> usize {
        match self {
            Class::Persistent => 0,
            Class::Temporary => 1,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Persistent => "persistent",
            Class::Temporary => "temporary",
        })
    }
}

/// A place for saved bytes, in the order in which these are filled (R0.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The host's memory.
    Dram,
    /// CXL memory.
    Cxl,
    /// Files.
    Disk,
}

impl Tier {
    /// All tiers, the first one first.
    pub const ALL: [Tier; 3] = [Tier::Dram, Tier::Cxl, Tier::Disk];

    /// An index into tables with one row per tier.
    pub const fn index(self) -> usize {
        match self {
            Tier::Dram => 0,
            Tier::Cxl => 1,
            Tier::Disk => 2,
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::Dram => "dram",
            Tier::Cxl => "cxl",
            Tier::Disk => "disk",
        })
    }
}

/// A GPU's UUID, by which GPUs are known everywhere; written `GPU-xxxxxxxx-xxxx-…`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuUuid(pub [u8; 16]);

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no GPU UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a GPU UUID (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)")]
pub struct NotAUuid(String);

impl FromStr for GpuUuid {
    type Err = NotAUuid;

    fn from_str(text: &str) -> Result<Self, NotAUuid> {
        let digits: String = text.trim_start_matches("GPU-").chars().filter(|c| *c != '-').collect();
        let mut bytes = [0; 16];
        let well_formed = digits.len() == 32 && digits.is_ascii();
        let parsed = well_formed
            && bytes.iter_mut().enumerate().all(|(index, byte)| {
                u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).map(|value| *byte = value).is_ok()
            });
        if parsed { Ok(Self(bytes)) } else { Err(NotAUuid(text.into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_back_what_it_writes() {
        let uuid = GpuUuid(*b"0123456789abcdef");
        assert_eq!(uuid.to_string(), "GPU-30313233-3435-3637-3839-616263646566");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert!("GPU-3031".parse::<GpuUuid>().is_err());
        assert!("GPU-3031323334353637383961626364656é".parse::<GpuUuid>().is_err());
    }
}
