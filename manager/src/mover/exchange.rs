//! Which two orders are carried out at once: a save and a restore, for a link that carries more both ways than one way
//! after the other. Pure.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
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

/// Two orders that follow each other, and go opposite ways.
pub struct Exchange<'a> {
    /// The one.
    pub save: Save<'a>,
    /// The other.
    pub restore: Order<'a>,
}

impl<'a> Exchange<'a> {
    /// Of orders of two tenants that have no piece in common; `None`: one of them waits for the other.
    pub fn of(first: &'a ToMover, second: &'a ToMover) -> Option<Self> {
        let one_way = |save, restore| Some(Self { save: save_of(save)?, restore: restore_of(restore)? });
        let exchange = one_way(first, second).or_else(|| one_way(second, first))?;
        let Self { save: Save { order: out, .. }, restore: back } = &exchange;
        let pieces: BTreeSet<PieceId> = out.moves.iter().map(piece).collect();
        let are_apart = out.tenant != back.tenant && !back.moves.iter().any(|m| pieces.contains(&piece(m)));
        are_apart.then_some(exchange)
    }

    /// Which orders they are, in the order of its parts.
    pub fn steps(&self) -> [Step; 2] {
        [self.save.order.step, self.restore.step]
    }
}

/// Whether an order may be one of two.
pub fn may_be_half(order: &ToMover) -> bool {
    save_of(order).is_some() || restore_of(order).is_some()
}

/// Whether a link moves more in all where bytes go both ways. Some move less: there one direction slows the other down.
pub fn is_faster(link: &LinkRates) -> bool {
    let one_by_one = 2.0 / (1.0 / link.to_host as f64 + 1.0 / link.to_gpu as f64);
    link.both as f64 > one_by_one
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

fn piece(m: &Move) -> PieceId {
    m.piece
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
    fn two_tenants_with_pieces_of_their_own_go_both_ways_in_either_order() {
        for (first, second) in [(save(1, 1), restore(2, 2)), (restore(2, 2), save(1, 1))] {
            let exchange = Exchange::of(&first, &second).unwrap();
            assert_eq!(exchange.steps(), [Step(1), Step(2)]);
        }
    }

    #[test]
    fn what_waits_for_the_other_goes_alone() {
        let alone = |first: ToMover, second: ToMover| assert!(Exchange::of(&first, &second).is_none());
        alone(save(1, 1), restore(1, 2));
        alone(save(1, 1), restore(2, 1));
        alone(save(1, 1), save(2, 2));
        alone(restore(1, 1), restore(2, 2));
        let poisoned = ToMover::Restore {
            step: Step(2),
            tenant: TenantId(2),
            moves: moves(2),
            poison: vec![PieceId(2)],
        };
        assert!(!may_be_half(&poisoned));
        alone(save(1, 1), poisoned);
        alone(save(1, 1), ToMover::Destroy { step: Step(2), pieces: vec![PieceId(2)] });
    }

    #[test]
    fn a_link_is_used_both_ways_where_it_carries_more() {
        let faster = |to_host, to_gpu, both| is_faster(&LinkRates { to_host, to_gpu, both });
        assert!(faster(26, 26, 37));
        assert!(!faster(26, 26, 26));
        // One by one: 3 bytes out in one second and 1.5 back in another is 2 a second.
        assert!(faster(6, 3, 5));
        assert!(!faster(6, 3, 4));
        assert!(!faster(0, 0, 0));
    }
}
