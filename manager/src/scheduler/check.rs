//! The invariants of the whole state, for tests and the simulator.

use super::{Phase, Scheduler};
use crate::ledger::Owner;
use std::collections::BTreeMap;
use tidegate_ffi::units::{PieceId, TenantId, Tier};

impl Scheduler {
    /// Checks I2, I4, I5 and I6 as far as they are the manager's; the error names what is wrong.
    pub fn check(&self) -> Result<(), String> {
        for (id, gpu) in &self.gpus {
            gpu.ledger.check().map_err(|wrong| format!("{id}: {wrong}"))?;
        }
        self.check_shares()?;
        self.check_owners()?;
        self.check_hosted()?;
        self.check_slots()?;
        self.check_quotas()?;
        self.check_grants()?;
        self.check_progress()
    }

    /// Something is under way for every job that waits (I11).
    fn check_progress(&self) -> Result<(), String> {
        match self.stuck().first() {
            Some(wait) => Err(format!("{} waits for {wait}, and nothing is under way (I11)", wait.job)),
            None => Ok(()),
        }
    }

    /// The GPUs together may use no more of a tier than there is (I6).
    fn check_shares(&self) -> Result<(), String> {
        for (tier, bytes) in Tier::ALL.into_iter().zip(self.config.tier_bytes) {
            let shares = self.all_shares(tier);
            if shares > bytes {
                return Err(format!("the shares of {tier} are {shares} bytes of {bytes} (I6)"));
            }
        }
        Ok(())
    }

    /// Each piece has one owner, and the ledger agrees who it is.
    fn check_owners(&self) -> Result<(), String> {
        let mut owners: BTreeMap<PieceId, TenantId> = BTreeMap::new();
        for (id, tenant) in &self.tenants {
            for piece in tenant.pieces.keys() {
                if let Some(other) = owners.insert(*piece, *id) {
                    return Err(format!("{piece} is {other}'s and {id}'s"));
                }
                if tenant.hosted.contains_key(piece) {
                    continue;
                }
                let record = self.gpus[&tenant.gpu].ledger.piece(*piece);
                if record.map(|record| record.owner) != Some(Owner::Tenant(*id)) {
                    return Err(format!("{piece} is {id}'s, but the ledger says {record:?}"));
                }
            }
        }
        for (id, tenant) in &self.tenants {
            if let Some(piece) = tenant.held.iter().find(|piece| !tenant.pieces.contains_key(piece)) {
                return Err(format!("{piece} is held by {id}, who does not have it"));
            }
        }
        for gpu in self.gpus.values() {
            for piece in gpu.spares.keys() {
                if gpu.ledger.piece(*piece).map(|record| record.owner) != Some(Owner::Spare) {
                    return Err(format!("{piece} is spare, but not in the ledger"));
                }
            }
            if let Some(piece) = gpu.retired.keys().find(|piece| gpu.ledger.piece(**piece).is_some()) {
                return Err(format!("{piece} is retired, and is used again (I8)"));
            }
            let retired: u32 = gpu.retired.values().map(|retired| retired.units).sum();
            if retired != gpu.ledger.retired() {
                return Err(format!("{retired} units are retired, the ledger says {}", gpu.ledger.retired()));
            }
        }
        Ok(())
    }

    /// No two pieces of a tenant lie behind one slot.
    fn check_slots(&self) -> Result<(), String> {
        for (id, tenant) in &self.tenants {
            tenant.pieces.check().map_err(|error| format!("{id}: {error}"))?;
        }
        Ok(())
    }

    /// An open job has all its memory; a waiting one is not on its way anywhere.
    fn check_grants(&self) -> Result<(), String> {
        for (id, tenant) in &self.tenants {
            let phase = self.phase_of(tenant);
            if phase == Phase::Open && tenant.is_away() {
                return Err(format!("{id} is open, but some of its bytes are in a tier"));
            }
            if phase == Phase::Open && tenant.arrival.is_some() {
                return Err(format!("{id} is open before it has arrived"));
            }
        }
        Ok(())
    }
}
