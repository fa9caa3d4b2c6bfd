//! A model process's memory on one GPU: slots, places, pieces, and what must be in them.

use super::memory::{Memories, Token};
use super::plan::UNIT;
use super::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::{Class, GpuUuid, PieceId, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::live::{self, LiveRange};
use tidegate_ffi::wire::message::{Placed, SlotRun};

/// What is behind a slot; unbacked where nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Claimed,
    Backed,
    Away,
}

/// How long an allocation lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Program,
    Iteration,
    /// Past the end of its iteration, to the end of the next.
    Prefetched,
}

/// An allocation.
#[derive(Clone, Debug)]
struct Live {
    /// What its slots hold.
    tokens: Vec<Token>,
    /// Bytes of the last slot that are not its own.
    tail: u64,
    /// Nothing in it is alive until it is written again, without a word.
    hollow: bool,
    life: Life,
    /// The boundary count at its birth.
    born: u64,
}

/// A run of slots to be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub first: u32,
    pub units: u32,
    pub ahead: u32,
}

/// A process of a job on one GPU, as the process sees it.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub id: TenantId,
    pub gpu: GpuUuid,
    session: SessionId,
    slots: BTreeMap<(Class, u32), Slot>,
    live: BTreeMap<(Class, u32), Live>,
    /// Places that are being backed: start → units.
    started: BTreeMap<(Class, u32), u32>,
    pieces: BTreeMap<PieceId, Placed>,
    by_slot: BTreeMap<(Class, u32), PieceId>,
    /// Pieces of leases whose last answer has not come.
    arriving: BTreeMap<Step, Vec<Placed>>,
    /// Pieces that stay where they are.
    pub held: BTreeSet<PieceId>,
}

impl Tenant {
    /// Without memory.
    pub fn new(id: TenantId, gpu: GpuUuid, session: SessionId) -> Self {
        Self {
            id,
            gpu,
            session,
            slots: BTreeMap::new(),
            live: BTreeMap::new(),
            started: BTreeMap::new(),
            pieces: BTreeMap::new(),
            by_slot: BTreeMap::new(),
            arriving: BTreeMap::new(),
            held: BTreeSet::new(),
        }
    }

    /// Finds a place and claims the slots that it lacks; the first slot, and the claims.
    pub fn start(&mut self, class: Class, units: u32, ahead: u32) -> (u32, Vec<Claim>) {
        let fits = |first: &u32| (*first..first + units).all(|slot| self.may_place(class, slot));
        let backed = |first: &u32| {
            (*first..first + units).all(|slot| self.slots.get(&(class, slot)) == Some(&Slot::Backed))
        };
        let top =
            self.slots.range((class, 0)..=(class, u32::MAX)).next_back().map_or(0, |((_, top), _)| top + 1);
        let first = (0..=top)
            .find(|first| backed(first) && fits(first))
            .or_else(|| (0..=top).find(fits))
            .unwrap_or(top);
        self.started.insert((class, first), units);
        let mut claims: Vec<Claim> = Vec::new();
        for slot in first..first + units {
            if self.slots.contains_key(&(class, slot)) {
                continue;
            }
            match claims.last_mut() {
                Some(last) if last.first + last.units == slot => last.units += 1,
                _ => claims.push(Claim { first: slot, units: 1, ahead: 0 }),
            }
        }
        if let Some(last) = claims.last_mut().filter(|last| last.first + last.units == first + units) {
            let end = first + units;
            let room = |slot: &u32| !self.slots.contains_key(&(class, *slot)) && self.may_place(class, *slot);
            last.ahead = (end..end + ahead).take_while(room).count() as u32;
        }
        for claim in &claims {
            for slot in claim.first..claim.first + claim.units + claim.ahead {
                self.slots.insert((class, slot), Slot::Claimed);
            }
        }
        (first, claims)
    }

    fn may_place(&self, class: Class, slot: u32) -> bool {
        let state = self.slots.get(&(class, slot));
        let taken = |runs: Option<((Class, u32), u32)>| {
            runs.is_some_and(|((of, first), units)| of == class && slot < first + units)
        };
        let live = self.live.range(..=(class, slot)).next_back();
        let started = self.started.range(..=(class, slot)).next_back();
        matches!(state, None | Some(Slot::Backed))
            && !taken(live.map(|(at, live)| (*at, live.tokens.len() as u32)))
            && !taken(started.map(|(at, units)| (*at, *units)))
    }

    /// Ends the claims of a place; whether all of it is backed.
    pub fn settle(&mut self, class: Class, first: u32, claims: &[Claim]) -> bool {
        for claim in claims {
            for slot in claim.first..claim.first + claim.units + claim.ahead {
                if self.slots.get(&(class, slot)) == Some(&Slot::Claimed) {
                    self.slots.remove(&(class, slot));
                }
            }
        }
        let units = self.started.remove(&(class, first)).unwrap_or(0);
        (first..first + units).all(|slot| self.slots.get(&(class, slot)) == Some(&Slot::Backed))
    }

    /// Pieces for a lease: mapped at once, usable with the last answer.
    pub fn leased(
        &mut self,
        memories: &mut Memories,
        step: Step,
        claim: Claim,
        pieces: &[Placed],
        more: bool,
    ) -> Result<(), String> {
        let so_far: u32 = self.arriving.get(&step).into_iter().flatten().map(|placed| placed.units.0).sum();
        let mut next = claim.first + so_far;
        for placed in pieces {
            if placed.slot.0 != next || next + placed.units.0 > claim.first + claim.units + claim.ahead {
                return Err(format!("{placed:?} does not fit {claim:?} of {}, at {next}", self.id));
            }
            next += placed.units.0;
            if self.map_piece(memories, placed)?.iter().any(|token| *token != super::memory::CLEAN) {
                return Err(format!("{}: {} has somebody's bytes in it (I8)", self.id, placed.piece));
            }
        }
        let arrived = self.arriving.entry(step).or_default();
        arrived.extend_from_slice(pieces);
        if !more {
            if next < claim.first + claim.units {
                return Err(format!("{}: {step} is answered with too little", self.id));
            }
            for placed in self.arriving.remove(&step).unwrap_or_default() {
                self.back(&placed);
            }
        }
        Ok(())
    }

    fn map_piece<'a>(&self, memories: &'a mut Memories, placed: &Placed) -> Result<&'a [Token], String> {
        let piece = memories.get_mut(&self.gpu).ok_or("no such GPU")?.piece(placed.piece)?;
        if piece.destroyed {
            return Err(format!("{} is handed out, but the manager's handle is closed", placed.piece));
        }
        if let Some(other) = piece.mapped.replace(self.session) {
            return Err(format!("{} is mapped by {other} and {} (I2)", placed.piece, self.session));
        }
        if piece.units.len() != placed.units.0 as usize {
            return Err(format!("{} has another size than was said", placed.piece));
        }
        Ok(&piece.units)
    }

    fn unmap_piece(&self, memories: &mut Memories, piece: PieceId) -> Result<(), String> {
        memories.get_mut(&self.gpu).ok_or("no such GPU")?.piece(piece)?.mapped = None;
        Ok(())
    }

    fn back(&mut self, placed: &Placed) {
        self.pieces.insert(placed.piece, *placed);
        self.by_slot.insert((placed.class, placed.slot.0), placed.piece);
        for slot in placed.slot.0..placed.slot.0 + placed.units.0 {
            self.slots.insert((placed.class, slot), Slot::Backed);
        }
    }

    /// The pieces behind some slots.
    pub fn pieces_behind(&self, class: Class, first: u32, units: u32) -> Vec<PieceId> {
        let touched = |placed: &&Placed| {
            let start = placed.slot.0;
            placed.class == class && start < first + units && first < start + placed.units.0
        };
        self.pieces.values().filter(touched).map(|placed| placed.piece).collect()
    }

    /// `Unmap`.
    pub fn unmap(&mut self, memories: &mut Memories, pieces: &[PieceId]) -> Result<(), String> {
        for id in pieces {
            if self.held.contains(id) {
                return Err(format!("{}: {id:?} is held, and to be unmapped", self.id));
            }
            let Some(placed) = self.pieces.remove(id) else { continue };
            self.by_slot.remove(&(placed.class, placed.slot.0));
            self.unmap_piece(memories, *id)?;
            for slot in placed.slot.0..placed.slot.0 + placed.units.0 {
                self.slots.insert((placed.class, slot), Slot::Away);
            }
        }
        Ok(())
    }

    /// `Map`.
    pub fn map(&mut self, memories: &mut Memories, pieces: &[Placed]) -> Result<(), String> {
        for placed in pieces {
            for slot in placed.slot.0..placed.slot.0 + placed.units.0 {
                if let Some(Slot::Backed | Slot::Claimed) = self.slots.get(&(placed.class, slot)) {
                    return Err(format!("{}: {placed:?} comes where something is", self.id));
                }
            }
            self.map_piece(memories, placed)?;
            self.back(placed);
        }
        Ok(())
    }

    /// At `Drained`: pieces of unanswered leases are void.
    pub fn void_arriving(&mut self, memories: &mut Memories) -> Result<(), String> {
        for placed in std::mem::take(&mut self.arriving).into_values().flatten() {
            self.unmap_piece(memories, placed.piece)?;
        }
        Ok(())
    }

    /// `Open`: what did not come back is gone; every live byte must be there (I1, I2, I3).
    pub fn reopen(&mut self, memories: &mut Memories) -> Result<(), String> {
        self.slots.retain(|_, slot| *slot != Slot::Away);
        self.verify(memories)
    }

    /// Every live byte is mapped and as it was written.
    pub fn verify(&self, memories: &mut Memories) -> Result<(), String> {
        self.live.keys().try_for_each(|at| self.verify_one(memories, *at))
    }

    fn verify_one(&self, memories: &mut Memories, at: (Class, u32)) -> Result<(), String> {
        let ((class, first), live) = (at, &self.live[&at]);
        for (slot, token) in (first..).zip(&live.tokens) {
            let found = self.token_at(memories, class, slot)?;
            if *found != *token && !live.hollow {
                return Err(format!("{}: {class} slot {slot} holds {found:x}, not {token:x} (I1)", self.id));
            }
        }
        Ok(())
    }

    fn token_at<'a>(
        &self,
        memories: &'a mut Memories,
        class: Class,
        slot: u32,
    ) -> Result<&'a mut Token, String> {
        let behind = self.by_slot.range(..=(class, slot)).next_back().map(|(_, piece)| self.pieces[piece]);
        let placed = behind
            .filter(|p| p.class == class && (p.slot.0..p.slot.0 + p.units.0).contains(&slot))
            .ok_or_else(|| format!("{}: live {class} slot {slot} has no piece (I1)", self.id))?;
        let piece = memories.get_mut(&self.gpu).ok_or("no such GPU")?.piece(placed.piece)?;
        if piece.mapped != Some(self.session) {
            return Err(format!("{}: {} is not mapped any more (I2)", self.id, placed.piece));
        }
        Ok(&mut piece.units[(slot - placed.slot.0) as usize])
    }

    /// A settled place becomes an allocation with content.
    pub fn give_birth(
        &mut self,
        memories: &mut Memories,
        at: (Class, u32),
        tokens: Vec<Token>,
        tail: u64,
        life: Life,
        born: u64,
    ) -> Result<(), String> {
        for (slot, token) in (at.1..).zip(&tokens) {
            *self.token_at(memories, at.0, slot)? = *token;
        }
        self.live.insert(at, Live { tokens, tail, hollow: false, life, born });
        Ok(())
    }

    /// The bytes of an allocation die; its memory has to be there all the same.
    pub fn hollow_out(&mut self, at: (Class, u32)) {
        if let Some(live) = self.live.get_mut(&at) {
            live.hollow = true;
        }
    }

    /// Writes every `nth` allocation anew.
    pub fn rewrite(&mut self, memories: &mut Memories, nth: usize, token: Token) -> Result<(), String> {
        let chosen: Vec<_> = self.live.keys().copied().step_by(nth.max(1)).collect();
        chosen.into_iter().try_for_each(|at| self.rewrite_one(memories, at, token))
    }

    fn rewrite_one(&mut self, memories: &mut Memories, at: (Class, u32), token: Token) -> Result<(), String> {
        let units = self.live[&at].tokens.len() as u32;
        for index in 0..units {
            let value = token + u64::from(index) + (u64::from(at.1) << 20);
            *self.token_at(memories, at.0, at.1 + index)? = value;
            self.live.get_mut(&at).unwrap().tokens[index as usize] = value;
        }
        self.live.get_mut(&at).unwrap().hollow = false;
        Ok(())
    }

    /// Of the allocations whose slots are all mapped, reads all and writes every `nth` anew; how many it wrote, where some
    /// are not there.
    pub fn rewrite_what_is_there(
        &mut self,
        memories: &mut Memories,
        nth: usize,
        token: Token,
    ) -> Result<usize, String> {
        let is_backed = |class, slot| self.slots.get(&(class, slot)) == Some(&Slot::Backed);
        let is_there = |((class, first), live): &(&(Class, u32), &Live)| {
            (*first..).take(live.tokens.len()).all(|slot| is_backed(*class, slot))
        };
        let there: Vec<_> = self.live.iter().filter(is_there).map(|(at, _)| *at).collect();
        there.iter().try_for_each(|at| self.verify_one(memories, *at))?;
        let is_early = there.len() < self.live.len();
        let chosen = there.into_iter().step_by(nth);
        let count =
            chosen.map(|at| self.rewrite_one(memories, at, token)).collect::<Result<Vec<()>, _>>()?.len();
        Ok(if is_early { count } else { 0 })
    }

    /// The slots of some allocations, in any order, and now and then of none.
    pub fn some_slots(&self, random: &mut Random) -> Vec<SlotRun> {
        let run = |((class, first), live): (&(Class, u32), &Live)| SlotRun {
            class: *class,
            first: SlotIndex(*first),
            units: Units(live.tokens.len() as u32),
        };
        let mut slots: Vec<SlotRun> = self.live.iter().filter(|_| random.chance(50)).map(run).collect();
        for last in (1..slots.len()).rev() {
            slots.swap(last, random.index(last + 1));
        }
        slots.extend(random.chance(20).then_some(SlotRun {
            class: Class::Temporary,
            first: SlotIndex(random.bits() as u32),
            units: Units(random.bits() as u32),
        }));
        slots
    }

    /// Ends the lives that end with an iteration.
    pub fn end_iteration(&mut self) {
        self.live.retain(|_, live| live.life != Life::Iteration);
        for live in self.live.values_mut().filter(|live| live.life == Life::Prefetched) {
            live.life = Life::Iteration;
        }
    }

    /// The live map.
    pub fn live_ranges(&self, boundaries: u64) -> Vec<LiveRange> {
        let range = |(at, live): (&(Class, u32), &Live)| LiveRange {
            class: at.0,
            start: u64::from(at.1) * UNIT,
            bytes: live.tokens.len() as u64 * UNIT - live.tail,
            life: match live.hollow {
                true => live::Life::Dead,
                false if at.0 == Class::Persistent || boundaries >= live.born + 2 => live::Life::Long,
                false => live::Life::Short,
            },
        };
        self.live.iter().map(range).collect()
    }

    /// Takes wholly unused pieces out, to be given back.
    pub fn give_back_idle(&mut self, memories: &mut Memories) -> Result<Vec<PieceId>, String> {
        let idle = self.idle_pieces();
        for placed in &idle {
            self.unmap_piece(memories, placed.piece)?;
            self.pieces.remove(&placed.piece);
            self.by_slot.remove(&(placed.class, placed.slot.0));
            for slot in placed.slot.0..placed.slot.0 + placed.units.0 {
                self.slots.remove(&(placed.class, slot));
            }
        }
        Ok(idle.into_iter().map(|placed| placed.piece).collect())
    }

    /// Units of its pieces in which nothing is.
    pub fn idle_units(&self) -> u32 {
        self.idle_pieces().iter().map(|placed| placed.units.0).sum()
    }

    fn idle_pieces(&self) -> Vec<Placed> {
        let idle = |placed: &&Placed| {
            (placed.slot.0..placed.slot.0 + placed.units.0).all(|slot| self.may_place(placed.class, slot))
        };
        self.pieces.values().filter(idle).copied().collect()
    }

    /// The question of a claim, for a lease.
    pub fn question(
        &self,
        step: Step,
        class: Class,
        claim: Claim,
    ) -> tidegate_ffi::wire::message::LeaseRequest {
        tidegate_ffi::wire::message::LeaseRequest {
            step,
            tenant: self.id,
            class,
            first: SlotIndex(claim.first),
            units: Units(claim.units),
            ahead: Units(claim.ahead),
            whole: false,
        }
    }
}
