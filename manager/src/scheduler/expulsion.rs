//! Who breaks the protocol, and the memory that it keeps (I8, DESIGN §8).
//!
//! An expelled process is as good as dead for the schedule: its job goes on without it, or is
//! over. But it lives, and may still reach every piece that it was given. Such a piece is
//! *retired*: mover and manager let go of it, nobody is ever given it again, and its units count
//! as used until the process is dead by its pidfd.
//!
//! ```text
//! mapped ─► retired ─► destroyed by the mover ─┬─► free
//!              └─────► its keeper is dead ─────┘
//! ```

use super::{Effect, Fate, NAMES_PER_MESSAGE, Pending, Scheduler};
use serde::{Deserialize, Serialize};
use tidegate_ffi::units::{GpuUuid, JobId, PieceId, SessionId};
use tidegate_ffi::wire::message::ToMover;

/// A piece that somebody keeps who should have given it back.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Retired {
    /// Its length in units.
    pub units: u32,
    /// Who may reach it still; `None`: that process is dead.
    pub keeper: Option<SessionId>,
    /// The user of that process: it counts towards their quota.
    pub uid: Option<u32>,
    /// The mover has let go of it.
    pub released: bool,
}

impl Scheduler {
    /// Ends a process's session, for a reason that it is told.
    pub(super) fn expel(&mut self, session: SessionId, reason: &str) {
        if self.expelled.insert(session) {
            self.effects.push(Effect::Expel(session, reason.into()));
        }
    }

    /// Whoever was expelled just now is no part of its job any more.
    pub(super) fn part_from_expelled(&mut self) {
        let gone = |id: &&SessionId| self.sessions.contains_key(id);
        let expelled: Vec<SessionId> = self.expelled.iter().filter(gone).copied().collect();
        for id in expelled {
            self.part_from(id, Fate::Expelled);
        }
    }

    /// Lets go of pieces that a process keeps.
    pub(super) fn retire(&mut self, gpu_id: GpuUuid, keeper: SessionId, job: JobId, pieces: Vec<PieceId>) {
        let uid = self.jobs.get(&job).map(|job| job.uid);
        let Some(gpu) = self.gpus.get_mut(&gpu_id) else { return };
        for piece in &pieces {
            let units = gpu.ledger.retire(*piece);
            gpu.retired.insert(*piece, Retired { units, keeper: Some(keeper), uid, released: false });
        }
        self.effects.push(Effect::Destroyed(pieces.clone()));
        for pieces in pieces.chunks(NAMES_PER_MESSAGE) {
            self.order_retirement(gpu_id, pieces.to_vec());
        }
    }

    fn order_retirement(&mut self, gpu: GpuUuid, pieces: Vec<PieceId>) {
        let step = self.step(Pending::Retire(gpu, pieces.clone()));
        self.effects.push(Effect::Mover(gpu, ToMover::Destroy { step, pieces, watched_for_leaks: false }));
    }

    /// So that one which the mover does not know cannot keep the others.
    pub(super) fn retire_one_by_one(&mut self, gpu: GpuUuid, pieces: Vec<PieceId>) {
        for piece in pieces {
            self.order_retirement(gpu, vec![piece]);
        }
    }

    pub(super) fn retired_by_mover(&mut self, gpu: GpuUuid, pieces: &[PieceId]) {
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            for piece in pieces {
                if let Some(retired) = gpu.retired.get_mut(piece) {
                    retired.released = true;
                }
            }
            gpu.give_back_retired();
        }
        // What was still being made has come since: nobody keeps its descriptor.
        self.effects.push(Effect::Destroyed(pieces.to_vec()));
    }

    /// A process is dead: it keeps nothing any more.
    pub(super) fn give_back_retired(&mut self, of: SessionId) {
        for gpu in self.gpus.values_mut() {
            for retired in gpu.retired.values_mut().filter(|retired| retired.keeper == Some(of)) {
                retired.keeper = None;
            }
            gpu.give_back_retired();
        }
        // What they kept their children may have still.
        let gpus: Vec<GpuUuid> =
            self.gpus.iter().filter(|(_, gpu)| gpu.outside.has_given_back()).map(|(id, _)| *id).collect();
        gpus.into_iter().for_each(|gpu| self.measure(gpu));
    }
}

impl super::Gpu {
    fn give_back_retired(&mut self) {
        let (ledger, outside) = (&mut self.ledger, &mut self.outside);
        self.retired.retain(|_, retired| {
            let kept = retired.keeper.is_some() || !retired.released;
            if !kept {
                ledger.give_back_retired(retired.units);
                retired.uid.into_iter().for_each(|uid| outside.note_given_back(uid, retired.units));
            }
            kept
        });
    }
}
