//! The GPUs' memory as it really is, whatever the ledger believes: pieces with contents, who has
//! them mapped, and what lies in the tiers.
//!
//! A unit's content is one token. Programs write tokens, movers copy them: so a byte that comes
//! back wrong, or to the wrong place, is seen (I1), and so is a piece that two can reach (I2).

use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::{Class, GpuUuid, PieceId, SessionId, TenantId, Tier};
use tidegate_ffi::wire::message::{Location, Move, ToMover};
use tidegate_manager::planner::shares::PerTier;

/// What is in one unit.
pub type Token = u64;
/// The content of memory that was made or scrubbed.
pub const CLEAN: Token = 0;
/// The content of memory after poison.
pub const POISON: Token = u64::MAX;

/// A piece of memory.
#[derive(Clone, Debug)]
pub struct Piece {
    /// One token for each unit.
    pub units: Vec<Token>,
    /// Who has it mapped.
    pub mapped: Option<SessionId>,
    /// The manager's handle of it is closed: nobody can be given it any more.
    pub destroyed: bool,
    /// Where it is.
    location: Location,
    /// The mover's handle of it is closed too: it is gone with who has it mapped.
    orphaned: bool,
}

impl Piece {
    /// Whoever kept it has let go of it in the end.
    fn is_gone(&self) -> bool {
        self.orphaned && self.mapped.is_none()
    }
}

/// The bytes of one slot that lie in a tier.
#[derive(Clone, Copy, Debug)]
struct Saved {
    from: u64,
    to: u64,
    token: Token,
}

/// One GPU's memory.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Units that there are.
    pub capacity: u32,
    /// What others than jobs use of it.
    pub outsiders: u32,
    /// What the processes' contexts take.
    contexts: BTreeMap<SessionId, u32>,
    /// Who gives nothing back until it is dead.
    keepers: BTreeSet<SessionId>,
    unit_bytes: u64,
    /// Its shares of the tiers, in bytes.
    pub shares: PerTier,
    pieces: BTreeMap<PieceId, Piece>,
    /// Pieces that went with a dead mover before it was to destroy them.
    lost: BTreeSet<PieceId>,
    saved: BTreeMap<(TenantId, Class, u64), Saved>,
}

/// The memory of all GPUs.
pub type Memories = BTreeMap<GpuUuid, Memory>;

/// Why an order could not be carried out.
#[derive(Debug)]
pub enum Fault {
    /// The GPU is full.
    NoGpuMemory,
    /// The tier is full.
    NoTierMemory,
    /// The bytes are saved already: right only where a restore failed before.
    SavedAlready(String),
    /// The order makes no sense: the manager is wrong.
    Wrong(String),
}

fn wrong<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Wrong(what.into()))
}

impl Memory {
    /// All free.
    pub fn new(capacity: u32, unit_bytes: u64, shares: PerTier) -> Self {
        Self {
            capacity,
            outsiders: 0,
            contexts: BTreeMap::new(),
            keepers: BTreeSet::new(),
            unit_bytes,
            shares,
            pieces: BTreeMap::new(),
            lost: BTreeSet::new(),
            saved: BTreeMap::new(),
        }
    }

    /// Units of all pieces on the GPU.
    pub fn used(&self) -> u32 {
        self.units_in(Location::Device)
    }

    /// Units of all pieces in some place.
    fn units_in(&self, location: Location) -> u32 {
        let there = self.pieces.values().filter(|piece| piece.location == location && !piece.is_gone());
        there.map(|piece| piece.units.len() as u32).sum()
    }

    /// Bytes of the tier that are pieces in the GPU's place.
    pub fn hosted_bytes(&self) -> u64 {
        u64::from(self.units_in(Location::Host)) * self.unit_bytes
    }

    /// Units in use outside of pieces.
    pub fn outside(&self) -> u32 {
        self.outsiders + self.contexts.values().sum::<u32>()
    }

    /// Units in use, by the driver's word.
    pub fn used_by_all(&self) -> u32 {
        self.used() + self.outside()
    }

    /// What a process takes outside of pieces is gone.
    pub fn drop_outside(&mut self, session: SessionId, units: u32) {
        if let Some(taken) = self.contexts.get_mut(&session) {
            *taken -= units;
        }
    }

    /// A process takes memory outside of pieces; `false`: there is no room.
    pub fn take_outside(&mut self, session: SessionId, units: u32) -> bool {
        let fits = self.used_by_all() + units <= self.capacity;
        if fits {
            *self.contexts.entry(session).or_default() += units;
        }
        fits
    }

    /// How many pieces there are.
    pub fn count(&self) -> usize {
        self.pieces.values().filter(|piece| !piece.is_gone()).count()
    }

    /// Bytes in the tiers.
    pub fn saved_bytes(&self) -> u64 {
        self.saved.values().map(|saved| saved.to - saved.from).sum()
    }

    /// A piece that must be there.
    pub fn piece(&mut self, id: PieceId) -> Result<&mut Piece, String> {
        self.pieces.get_mut(&id).ok_or_else(|| format!("{id} is not there"))
    }

    /// `Make`: all or none.
    pub fn make(&mut self, wanted: &[(PieceId, u64)], location: Location) -> Result<u64, Fault> {
        let units: u64 = wanted.iter().map(|(_, bytes)| bytes / self.unit_bytes).sum();
        let hosted = self.hosted_bytes() + units * self.unit_bytes;
        let has_room = hosted <= self.shares[Tier::Dram.index()]
            && self.saved_bytes() + hosted <= self.shares.iter().sum();
        match location {
            Location::Device if u64::from(self.used_by_all()) + units > u64::from(self.capacity) => {
                return Err(Fault::NoGpuMemory);
            }
            Location::Host if !has_room => return Err(Fault::NoTierMemory),
            _ => {}
        }
        for &(id, bytes) in wanted {
            if bytes == 0 || bytes % self.unit_bytes != 0 || self.pieces.contains_key(&id) {
                return wrong(format!("{id} of {bytes} bytes cannot be made"));
            }
            let units = vec![CLEAN; (bytes / self.unit_bytes) as usize];
            self.pieces
                .insert(id, Piece { units, mapped: None, destroyed: false, location, orphaned: false });
        }
        Ok(units * self.unit_bytes)
    }

    /// `Share`: never less than what is saved, and not always that.
    pub fn set_share(&mut self, tier: Tier, bytes: u64, kept: u64) -> u64 {
        let hosted = self.hosted_bytes();
        let (saved, all) = (self.saved_bytes() + hosted, self.shares.iter().sum::<u64>());
        let share = &mut self.shares[tier.index()];
        let least = (saved + kept).saturating_sub(all - *share);
        let least = if tier == Tier::Dram { least.max(hosted) } else { least };
        *share = bytes.max(least).min(bytes.max(*share));
        *share
    }

    /// `Save`: all or none.
    pub fn save(&mut self, tenant: TenantId, moves: &[Move]) -> Result<u64, Fault> {
        let bytes: u64 = moves.iter().map(|m| m.bytes).sum();
        if self.saved_bytes() + self.hosted_bytes() + bytes > self.shares.iter().sum() {
            return Err(Fault::NoTierMemory);
        }
        let mut parts = Vec::new();
        for m in moves {
            self.check_move(m)?;
            for (index, slot, from, to) in self.parts(m) {
                let token = self.pieces[&m.piece].units[index];
                parts.push(((tenant, m.class, slot), Saved { from, to, token }));
            }
        }
        if let Some((name, _)) = parts.iter().find(|(name, _)| self.saved.contains_key(name)) {
            return Err(Fault::SavedAlready(format!("{name:?} is saved twice")));
        }
        self.saved.extend(parts);
        Ok(bytes)
    }

    /// `Restore`: all or none.
    pub fn restore(&mut self, tenant: TenantId, moves: &[Move], poison: &[PieceId]) -> Result<u64, Fault> {
        for id in poison {
            let piece = self.pieces.get_mut(id).ok_or(Fault::Wrong(format!("{id} is not there")))?;
            piece.units.fill(POISON);
        }
        for m in moves {
            self.check_move(m)?;
            for (index, slot, from, to) in self.parts(m) {
                let name = (tenant, m.class, slot);
                match self.saved.remove(&name) {
                    Some(saved) if (saved.from, saved.to) == (from, to) => {
                        self.piece(m.piece).map_err(Fault::Wrong)?.units[index] = saved.token;
                    }
                    other => return wrong(format!("{name:?} {from}..{to} was saved as {other:?}")),
                }
            }
        }
        Ok(moves.iter().map(|m| m.bytes).sum())
    }

    /// `Scrub`: all or none.
    pub fn scrub(&mut self, ids: &[PieceId]) -> Result<u64, Fault> {
        self.check_unmapped(ids)?;
        for id in ids {
            self.piece(*id).map_err(Fault::Wrong)?.units.fill(CLEAN);
        }
        Ok(0)
    }

    /// `Destroy`: all or none. What a keeper has mapped stays until it is dead.
    pub fn destroy(&mut self, ids: &[PieceId]) -> Result<u64, Fault> {
        let keepers = std::mem::take(&mut self.keepers);
        let kept = |piece: &Piece| piece.mapped.is_some_and(|session| keepers.contains(&session));
        let (kept, free): (Vec<_>, Vec<_>) = ids.iter().partition(|id| self.pieces.get(id).is_some_and(kept));
        self.keepers = keepers;
        self.check_unmapped(&free)?;
        for id in kept {
            self.piece(id).map_err(Fault::Wrong)?.orphaned = true;
        }
        for id in free {
            self.pieces.remove(&id);
        }
        Ok(0)
    }

    /// `Destroy`, where the death of a mover may have destroyed some already.
    pub fn destroy_rest(&mut self, ids: &[PieceId]) -> Result<u64, Fault> {
        let left: Vec<PieceId> = ids.iter().copied().filter(|id| self.pieces.contains_key(id)).collect();
        self.destroy(&left)
    }

    /// The mover died at an order that came after `before`: pieces that nobody else holds are gone,
    /// and the tier is as the next mover finds it, unless that is `forgetful`.
    pub fn outlive_mover(&mut self, before: Self, forgetful: bool) {
        let stays = |id: &PieceId, piece: &Piece| {
            piece.mapped.is_some() || before.pieces.contains_key(id) && !piece.destroyed
        };
        let lost = self.pieces.iter().filter(|(id, piece)| piece.destroyed && !stays(id, piece));
        self.lost.extend(lost.map(|(id, _)| *id));
        self.pieces.retain(|id, piece| stays(id, piece));
        if !forgetful {
            self.saved = before.saved;
        }
    }

    /// Whether an order is about a piece that its tenant's death had set free already, when it was
    /// lost with the mover: nobody needs what it asks for.
    pub fn is_void(&self, order: &ToMover) -> bool {
        let lost = |id: &PieceId| self.lost.contains(id);
        match order {
            ToMover::Save { moves, .. } => moves.iter().any(|m| lost(&m.piece)),
            ToMover::Restore { moves, poison, .. } => {
                poison.iter().any(lost) || moves.iter().any(|m| lost(&m.piece))
            }
            ToMover::Scrub { pieces, .. } => pieces.iter().any(lost),
            _ => false,
        }
    }

    /// From now on a process gives nothing back.
    pub fn expel(&mut self, session: SessionId) {
        self.keepers.insert(session);
    }

    /// Units that only a keeper can reach.
    pub fn orphaned(&self) -> u32 {
        let orphans = self
            .pieces
            .values()
            .filter(|piece| piece.orphaned && !piece.is_gone() && piece.location == Location::Device);
        orphans.map(|piece| piece.units.len() as u32).sum()
    }

    /// `Forget`.
    pub fn forget(&mut self, tenant: TenantId) {
        self.saved.retain(|(owner, _, _), _| *owner != tenant);
    }

    /// A process is dead: nothing is mapped there any more, and its context is gone.
    pub fn bury(&mut self, session: SessionId) {
        self.contexts.remove(&session);
        self.keepers.remove(&session);
        for piece in self.pieces.values_mut().filter(|piece| piece.mapped == Some(session)) {
            piece.mapped = None;
        }
        self.pieces.retain(|_, piece| !piece.is_gone());
    }

    /// Swaps the saved tokens of two slots of any one tenant: a mover that restores wrongly.
    pub fn confuse(&mut self) -> bool {
        let names: Vec<_> = self.saved.keys().copied().collect();
        for pair in names.windows(2) {
            let (one, other) = (self.saved[&pair[0]].token, self.saved[&pair[1]].token);
            if pair[0].0 == pair[1].0 && one != other {
                self.saved.get_mut(&pair[0]).unwrap().token = other;
                self.saved.get_mut(&pair[1]).unwrap().token = one;
                return true;
            }
        }
        false
    }

    fn check_unmapped(&self, ids: &[PieceId]) -> Result<(), Fault> {
        for id in ids {
            match self.pieces.get(id) {
                None => return wrong(format!("{id} is not there")),
                Some(Piece { mapped: Some(session), .. }) => {
                    return wrong(format!("{id} is still mapped by {session}"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn check_move(&self, m: &Move) -> Result<(), Fault> {
        self.check_unmapped(&[m.piece])?;
        let size = self.pieces[&m.piece].units.len() as u64 * self.unit_bytes;
        if m.bytes == 0 || m.offset + m.bytes > size || m.offset % self.unit_bytes != m.at % self.unit_bytes {
            return wrong(format!("{m:?} does not lie in its piece"));
        }
        Ok(())
    }

    /// The slots that a move touches: unit in the piece, slot, first and last byte in the slot.
    fn parts(&self, m: &Move) -> Vec<(usize, u64, u64, u64)> {
        let unit = self.unit_bytes;
        let (mut at, end) = (m.at, m.at + m.bytes);
        let mut parts = Vec::new();
        while at < end {
            let stop = end.min((at / unit + 1) * unit);
            let index = (m.offset + at - m.at) / unit;
            parts.push((index as usize, at / unit, at % unit, stop - at / unit * unit));
            at = stop;
        }
        parts
    }
}
