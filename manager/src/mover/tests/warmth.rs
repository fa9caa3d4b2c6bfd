//! Memory for saved bytes is got before the first order needs it.

use super::super::warmth::Chore;
use super::*;

/// Waits for news of slabs until so many bytes are in them.
fn hold(bench: &mut Bench, bytes: u64) {
    let held = |bench: &Bench| {
        bench.slabs.values().map(|fd| rustix::fs::fstat(fd).unwrap().st_size as u64).sum::<u64>()
    };
    while held(bench) < bytes {
        match bench.mover.receive() {
            (FromMover::Slab { slab }, mut fds) => drop(bench.slabs.insert(slab, fds.remove(0))),
            (said, _) => panic!("{said:?}"),
        }
    }
    assert_eq!(held(bench), bytes);
}

#[test]
fn memory_is_there_before_the_first_save() {
    on_a_software_gpu("warmth::memory_is_there_before_the_first_save", 24, "", |bench| {
        // Slabs are an eighth of the GPU's 64 units; the third has what the share leaves.
        bench.mover.send(&ToMover::Warm { bytes: 17 * UNIT }, &[]);
        hold(bench, 24 * UNIT);
        let (piece, bytes) = filled(bench, 1, 20);
        assert_eq!(bench.save(&[moved(1, 0, 20 * UNIT, 0)]), Ok(20 * UNIT));
        assert_eq!(bench.slabs.len(), 3, "the save got no memory of its own");
        assert_eq!(bench.restore(&[moved(1, 0, 20 * UNIT, 0)], &[1]), Ok(20 * UNIT));
        assert!(contents(&piece) == bytes);
        // It stays for the next job.
        bench.mover.send(&ToMover::Forget { tenant: TENANT }, &[]);
        bench.mover.send(&ToMover::Warm { bytes: 0 }, &[]);
        assert_eq!((bench.saved_bytes(), bench.slabs.len()), (0, 3));
    });
}

#[test]
fn what_cannot_be_got_ahead_is_not_tried_again_and_again() {
    let test = "warmth::what_cannot_be_got_ahead_is_not_tried_again_and_again";
    on_a_software_gpu(test, 24, "cuDevicePrimaryCtxRetain@1=OUT_OF_MEMORY", |bench| {
        let mut mover = direct(&bench.config);
        let mut want = |units| {
            let warm = ToMover::Warm { bytes: units * UNIT };
            assert!(mover.handle(warm, Vec::new(), &mut hears).unwrap().is_empty());
            let chore = mover.next_chore();
            (chore, mover.get_ahead().len(), mover.next_chore())
        };
        assert_eq!(want(8), (Chore::Get, 0, Chore::Rest));
        // `engage` gets the first slab itself.
        assert_eq!(want(17), (Chore::Get, 2, Chore::Get));
    });
}
