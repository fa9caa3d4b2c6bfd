//! Birth classes: what a program said about the memory it is going to allocate (R4.1).
//!
//! Invariant: the innermost scope of the thread decides; without one, memory is temporary.
//! Classes are for speed only: a wrong one never costs a byte (I1).
#![forbid(unsafe_code)]

use tidegate_ffi::units::Class;

/// The scopes that a thread has opened, innermost last. A plain value without a heap or a
/// destructor, so that it can live in a thread-local that is usable to the thread's very end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scopes {
    /// Bit `n` is set when scope `n` is persistent; bit 0 is the outermost.
    persistent: u64,
    depth: u32,
}

impl Scopes {
    /// No scope.
    pub const NONE: Self = Self { persistent: 0, depth: 0 };
    /// Scopes deeper than this are counted, so that they balance, but repeat the class of the
    /// deepest that is remembered.
    const REMEMBERED: u32 = u64::BITS;

    /// Opens a scope; `None` (a class we do not know) repeats the class around it.
    pub fn push(&mut self, class: Option<Class>) {
        let class = class.unwrap_or(self.birth_class());
        if self.depth < Self::REMEMBERED {
            let bit = 1 << self.depth;
            match class {
                Class::Persistent => self.persistent |= bit,
                Class::Temporary => self.persistent &= !bit,
            }
        }
        self.depth = self.depth.saturating_add(1);
    }

    /// Closes the innermost scope; without one it does nothing.
    pub fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// The class of memory born now.
    pub fn birth_class(&self) -> Class {
        let Some(innermost) = self.depth.min(Self::REMEMBERED).checked_sub(1) else {
            return Class::Temporary;
        };
        if self.persistent >> innermost & 1 == 1 { Class::Persistent } else { Class::Temporary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Class::{Persistent, Temporary};

    #[test]
    fn the_innermost_scope_names_the_class() {
        let mut scopes = Scopes::NONE;
        assert_eq!(scopes.birth_class(), Temporary);
        scopes.push(Some(Persistent));
        scopes.push(Some(Temporary));
        assert_eq!(scopes.birth_class(), Temporary);
        scopes.pop();
        assert_eq!(scopes.birth_class(), Persistent);
        scopes.push(None);
        assert_eq!(scopes.birth_class(), Persistent);
    }

    #[test]
    fn pops_without_a_push_and_very_deep_scopes_are_harmless() {
        let mut scopes = Scopes::NONE;
        scopes.pop();
        assert_eq!(scopes.birth_class(), Temporary);
        for depth in 0..100 {
            scopes.push(Some(if depth == 63 { Persistent } else { Temporary }));
        }
        assert_eq!(scopes.birth_class(), Persistent);
        for _ in 0..37 {
            scopes.pop();
        }
        assert_eq!(scopes.birth_class(), Temporary);
    }
}
