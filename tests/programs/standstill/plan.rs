//! What one program does: parameters, written as words of a command line.

use std::fmt::{Display, Formatter};

macro_rules! plan {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The parameters. Sizes are bytes, times milliseconds, chances percent.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Plan {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Plan {
            #[allow(dead_code, reason = "only the program reads them")]
            /// Reads words as they are displayed. Parameters that are missing are 0.
            pub fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
                let mut plan = Self::default();
                for word in words {
                    let (name, value) = word.split_once('=').ok_or("NAME=VALUE is wanted")?;
                    let value = value.parse().map_err(|error| format!("{word}: {error}"))?;
                    match name {
                        $(stringify!($name) => plan.$name = value,)*
                        _ => return Err(format!("{name} is unknown")),
                    }
                }
                Ok(plan)
            }
        }

        impl Display for Plan {
            fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                let words = [$(format!(concat!(stringify!($name), "={}"), self.$name),)*];
                f.write_str(&words.join(" "))
            }
        }
    };
}

plan! {
    /// All else that is random depends on it.
    seed,
    /// Which process of the gang this is.
    rank,
    /// Processes, which wait for each other in each iteration.
    ranks,
    /// Threads of each process.
    threads,
    /// Iterations of each thread.
    steps,
    /// The smallest working set of a process.
    low,
    /// The largest working set of a process.
    high,
    /// The size of an allocation.
    grain,
    /// Iterations between changes of the working set.
    level,
    /// The longest pause between iterations.
    gap,
    /// The longest kernel.
    kernel,
    /// Value waits: the chance that an iteration has one.
    values,
    /// A child is forked: 1 before CUDA is used, 2 after, 3 both. The child of 1 uses CUDA too.
    fork,
    /// 1: the end of each iteration is told.
    boundaries,
    /// 1: some memory is managed.
    managed,
    /// The chance that an allocation is stream-ordered.
    pools,
    /// The chance that an iteration has a graph.
    graphs,
    /// 1: half of the memory is allocated as persistent.
    persistent,
    /// 1: the working set never becomes smaller.
    grows,
}

impl Plan {
    /// Whether the program can become itself anew: it is one process.
    pub fn may_become(&self) -> bool {
        self.ranks == 1 && self.fork == 0
    }
}
