//! Pieces in host memory: they take nothing of the GPU, and count to the share of the DRAM tier.

use super::*;

impl Bench {
    /// Makes one of so many units.
    fn host(&mut self, id: u64, units: u64) -> Result<File, (String, bool)> {
        self.try_make_at(&[(id, units)], Location::Host).map(|mut files| files.remove(0))
    }
}

#[test]
fn what_is_made_in_host_memory_counts_to_the_share_and_not_to_the_gpu() {
    on_a_software_gpu(
        "hosted::what_is_made_in_host_memory_counts_to_the_share_and_not_to_the_gpu",
        4,
        "",
        |bench| {
            let free = bench.measure().0;
            bench.host(1, 3).unwrap();
            assert_eq!((bench.measure().0, bench.stored), (free, [3 * UNIT, 0, 0]));
            let (why, out_of_memory) = bench.host(2, 2).unwrap_err();
            assert!(why.contains("65536 of 262144 are free; raise --dram") && out_of_memory, "{why}");
            bench.make(3, 4).write_all_at(&[7; 4 * UNIT as usize], 0).unwrap();
            assert!(bench.save(&[moved(3, 0, 2 * UNIT, 0)]).is_err(), "one unit is left");
            bench.destroy(&[1]).unwrap();
            assert_eq!(bench.save(&[moved(3, 0, 4 * UNIT, 0)]), Ok(4 * UNIT));
            assert!(bench.host(4, 1).is_err(), "all of it is taken");
            assert_eq!(bench.stored, [4 * UNIT, 0, 0]);
        },
    );
}

#[test]
fn a_share_does_not_shrink_below_what_is_hosted() {
    on_a_software_gpu("hosted::a_share_does_not_shrink_below_what_is_hosted", 8, "", |bench| {
        bench.host(1, 3).unwrap();
        assert_eq!(bench.share(Tier::Dram, 2 * UNIT), 3 * UNIT);
        bench.destroy(&[1]).unwrap();
        assert_eq!(bench.share(Tier::Dram, 2 * UNIT), 2 * UNIT);
    });
}

#[test]
fn the_next_mover_knows_what_is_hosted() {
    on_a_software_gpu("hosted::the_next_mover_knows_what_is_hosted", 4, "", |bench| {
        let (host, device) = (bench.host(1, 3).unwrap(), bench.make(2, 3));
        bench.replace(&[(1, 3, &host), (2, 3, &device)], &[]);
        assert_eq!(bench.stored, [3 * UNIT, 0, 0]);
        assert!(bench.host(3, 2).is_err());
        bench.destroy(&[1, 2]).unwrap();
        bench.host(3, 4).unwrap();
    });
}

#[test]
fn a_driver_without_host_memory_says_so_and_the_mover_goes_on() {
    on_a_software_gpu(
        "hosted::a_driver_without_host_memory_says_so_and_the_mover_goes_on",
        4,
        "cuMemCreate@1=NOT_SUPPORTED",
        |bench| {
            let (why, out_of_memory) = bench.host(1, 1).unwrap_err();
            assert!(why.contains("no host memory in the GPU's place") && !out_of_memory, "{why}");
            assert_eq!(bench.stored, [0; 3]);
            bench.make(2, 1);
        },
    );
}
