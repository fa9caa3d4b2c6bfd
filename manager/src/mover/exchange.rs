//! Which two orders are carried out at once: a save and the restore after it, over a link that carries more both ways
//! than one way after the other. Pure.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use tidegate_ffi::hazard::tracker::{Capacity, Otherwise, Submitted, Tracker};
use tidegate_ffi::hazard::{Operand, Span};
use tidegate_ffi::units::{PieceId, Step, TenantId};
use tidegate_ffi::wire::message::{LinkRates, Move, ToMover};

/// What is to be moved, and whose it is.
#[derive(Clone, Copy)]
pub struct Order<'a> {
    /// Which order of the manager's.
    pub step: Step,
    /// Whose.
    pub tenant: TenantId,
    /// From which pieces, or to which.
    pub moves: &'a [Move],
}

/// An order to save.
#[derive(Clone, Copy)]
pub struct Save<'a> {
    /// What.
    pub order: Order<'a>,
    /// Bytes of the first tier that are left to others, where they can be.
    pub spared: u64,
}

/// A save, and the restore that follows it.
pub struct Exchange<'a> {
    /// The first.
    pub save: Save<'a>,
    /// The second.
    pub restore: Order<'a>,
}

impl<'a> Exchange<'a> {
    /// Of orders of which neither waits for the other. The save is answered with the restore: so that is not the longer
    /// one.
    ///
    /// `None`: they are carried out in order.
    pub fn of(first: &'a ToMover, second: &'a ToMover) -> Option<Self> {
        let (save, restore) = (save_of(first)?, restore_of(second)?);
        let (read, written) = (save.order.operands(Operand::read), restore.operands(Operand::write));
        let is_short = second.bytes() <= first.bytes();
        (is_short && is_independent(&read, &written)).then_some(Self { save, restore })
    }
}

/// Whether the second operation may run beside the first (R2.4).
fn is_independent(first: &[Operand<Span>], second: &[Operand<Span>]) -> bool {
    let capacity = Capacity { operations: 2, operands: first.len() + second.len(), edges: 1 };
    let mut tracker = Tracker::new(capacity);
    let mut may_run =
        |operands: &[_]| matches!(tracker.submit(operands, Otherwise::Block), Ok(Submitted::Ready(_)));
    may_run(first) && may_run(second)
}

impl Order<'_> {
    /// The pieces, of which a save reads some and a restore writes some, and the tenant's saved bytes, which both change.
    /// They overlap only where they are the same: names decide (R2.7).
    fn operands(&self, of_piece: fn(Span) -> Operand<Span>) -> Vec<Operand<Span>> {
        let pieces: BTreeSet<PieceId> = self.moves.iter().map(|m| m.piece).collect();
        let pieces = pieces.into_iter().map(|piece| of_piece(Span::id(2 * piece.0)));
        pieces.chain([Operand::read_write(Span::id(2 * self.tenant.0 + 1))]).collect()
    }
}

/// Whether a link moves more in all where bytes go both ways, by more than measuring once is off. Some move less: there
/// one direction slows the other down.
pub fn is_faster(link: &LinkRates) -> bool {
    let one_by_one = 2.0 / (1.0 / link.to_host as f64 + 1.0 / link.to_gpu as f64);
    link.both as f64 > 1.1 * one_by_one
}

fn save_of(order: &ToMover) -> Option<Save<'_>> {
    let ToMover::Save { step, tenant, moves, spared } = order else { return None };
    Some(Save { order: Order { step: *step, tenant: *tenant, moves }, spared: *spared })
}

/// Poison comes before bytes, and is for tests.
fn restore_of(order: &ToMover) -> Option<Order<'_>> {
    let ToMover::Restore { step, tenant, moves, poison } = order else { return None };
    poison.is_empty().then_some(Order { step: *step, tenant: *tenant, moves })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_ffi::units::{Class, TenantId};

    fn moves(piece: u64) -> Vec<Move> {
        vec![Move { piece: PieceId(piece), offset: 0, bytes: 8, class: Class::Temporary, at: 0 }]
    }

    fn save(tenant: u64, piece: u64) -> ToMover {
        ToMover::Save { step: Step(1), tenant: TenantId(tenant), moves: moves(piece), spared: 0 }
    }

    fn restore(tenant: u64, piece: u64) -> ToMover {
        ToMover::Restore { step: Step(2), tenant: TenantId(tenant), moves: moves(piece), poison: Vec::new() }
    }

    #[test]
    fn a_save_takes_the_restore_of_another_tenant_along() {
        let (save, restore) = (save(1, 1), restore(2, 2));
        let exchange = Exchange::of(&save, &restore).unwrap();
        assert_eq!((exchange.save.order.step, exchange.restore.step), (Step(1), Step(2)));
    }

    #[test]
    fn what_waits_for_the_other_goes_alone() {
        let alone = |first: ToMover, second: ToMover| assert!(Exchange::of(&first, &second).is_none());
        // Who waits for the restored bytes does not wait for others' to leave.
        alone(restore(2, 2), save(1, 1));
        alone(save(1, 1), restore(1, 2));
        alone(save(1, 1), restore(2, 1));
        alone(save(1, 1), save(2, 2));
        alone(restore(1, 1), restore(2, 2));
        let restore = |bytes, poison| {
            let moves = vec![Move { bytes, ..moves(2)[0] }];
            ToMover::Restore { step: Step(2), tenant: TenantId(2), moves, poison }
        };
        assert!(Exchange::of(&save(1, 1), &restore(8, Vec::new())).is_some());
        alone(save(1, 1), restore(9, Vec::new()));
        alone(save(1, 1), restore(8, vec![PieceId(2)]));
        alone(
            save(1, 1),
            ToMover::Destroy { step: Step(2), pieces: vec![PieceId(2)], watched_for_leaks: false },
        );
    }

    #[test]
    fn a_link_is_used_both_ways_where_it_carries_more() {
        let faster = |to_host, to_gpu, both| is_faster(&LinkRates { to_host, to_gpu, both });
        assert!(faster(26, 26, 37));
        assert!(!faster(26, 26, 28));
        // One by one: 3 bytes out in half a second and 3 back in a whole one are 4 a second.
        assert!(faster(6, 3, 5));
        assert!(!faster(6, 3, 4));
        assert!(!faster(0, 0, 0));
    }
}
