//! Zeros are not stored: they take no room, and come back.

use super::*;

/// A piece of which the units that `is_zero` names are zeros, and the others a pattern.
fn sparse(bench: &mut Bench, id: u64, units: u64, is_zero: impl Fn(u64) -> bool) -> (File, Vec<u8>) {
    let (piece, mut bytes) = filled(bench, id, units);
    for unit in (0..units).filter(|unit| is_zero(*unit)) {
        bytes[(unit * UNIT) as usize..((unit + 1) * UNIT) as usize].fill(0);
    }
    piece.write_all_at(&bytes, 0).unwrap();
    (piece, bytes)
}

fn overwrite(piece: &File, units: u64) {
    piece.write_all_at(&vec![7; (units * UNIT) as usize], 0).unwrap();
}

#[test]
fn half_of_zeros_takes_half_the_room() {
    on_a_software_gpu("zeros::half_of_zeros_takes_half_the_room", 12, "", |bench| {
        let (piece, bytes) = sparse(bench, 1, 12, |unit| unit >= 6);
        assert_eq!(bench.save(&[moved(1, 0, 12 * UNIT, 0)]), Ok(12 * UNIT));
        assert_eq!((bench.saved_bytes(), bench.stored), (6 * UNIT, [6 * UNIT, 0, 0]));
        // What they do not take others have.
        let (other, theirs) = filled(bench, 2, 6);
        assert_eq!(bench.save(&[moved(2, 0, 6 * UNIT, 100 * UNIT)]), Ok(6 * UNIT));
        overwrite(&piece, 12);
        overwrite(&other, 6);
        assert!(bench.save(&[moved(1, 0, 1, 11 * UNIT)]).unwrap_err().0.contains("saved already"));
        assert_eq!(bench.restore(&[moved(2, 0, 6 * UNIT, 100 * UNIT)], &[2]), Ok(6 * UNIT));
        // Cut elsewhere than where the zeros begin.
        let cut = 7 * UNIT + 5;
        assert_eq!(bench.restore(&[moved(1, 0, cut, 0)], &[1]), Ok(cut));
        assert!(contents(&piece)[cut as usize..].iter().all(|byte| *byte == 0xFF));
        assert_eq!(bench.restore(&[moved(1, cut, 12 * UNIT - cut, cut)], &[]), Ok(12 * UNIT - cut));
        assert!(contents(&piece) == bytes && contents(&other) == theirs);
        assert_eq!(bench.saved_bytes(), 0);
    });
}

#[test]
fn the_next_mover_knows_where_zeros_were() {
    on_a_software_gpu("zeros::the_next_mover_knows_where_zeros_were", 8, "", |bench| {
        let (piece, bytes) = sparse(bench, 1, 8, |unit| unit % 2 == 1);
        let all = [moved(1, 0, 8 * UNIT, 0)];
        assert_eq!(bench.save(&all), Ok(8 * UNIT));
        overwrite(&piece, 8);
        // The second learns it from the log that the first has written anew.
        (0..2).for_each(|_| bench.replace(&[(1, 8, &piece)], &[]));
        assert_eq!(bench.saved_bytes(), 4 * UNIT);
        assert_eq!(bench.restore(&all, &[]), Ok(8 * UNIT));
        let restore = Step(bench.next);
        assert!(contents(&piece) == bytes);
        // Its restore was carried out; nobody heard of it.
        overwrite(&piece, 8);
        bench.replace(&[(1, 8, &piece)], &[restore]);
        assert_eq!(bench.restore(&all, &[]), Ok(8 * UNIT));
        assert!(contents(&piece) == bytes && bench.saved_bytes() == 0);
    });
}

#[test]
fn zeros_in_a_tenants_ranges_are_forgotten_with_it() {
    on_a_software_gpu("zeros::zeros_in_a_tenants_ranges_are_forgotten_with_it", 8, "", |bench| {
        sparse(bench, 1, 8, |unit| unit < 4);
        let all = [moved(1, 0, 8 * UNIT, 0)];
        assert_eq!(bench.save(&all), Ok(8 * UNIT));
        bench.mover.send(&ToMover::Forget { tenant: TENANT }, &[]);
        assert_eq!(bench.saved_bytes(), 0);
        assert!(
            bench.restore(&[moved(1, 0, 1, 0)], &[]).unwrap_err().0.contains("not all of them are saved")
        );
        assert_eq!(bench.save(&all), Ok(8 * UNIT));
    });
}
