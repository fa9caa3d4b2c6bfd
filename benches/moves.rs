//! How fast a mover saves and restores live bytes, to one contiguous copy of as many between the GPU and page-locked
//! memory. `cargo bench --bench moves`
//!
//! The mover is driven as the manager drives it: orders of at most so many moves, each answered before the next. What
//! is alive lies in ranges with gaps between them, so that none are neighbours. Rounds of copy, save, copy back and
//! restore follow each other; the first, in which the mover gets its memory, does not count.

#[path = "support/mod.rs"]
mod bench;
#[path = "support/mover.rs"]
mod mover;

use bench::Spread;
use cudarc::driver::{result, sys};
use mover::{BYTES, MIB, Mover, config, measure_on};
use std::ffi::c_void;
use std::time::Instant;
use tidegate_ffi::units::TenantId;
use tidegate_manager::mover::MoverConfig;

const KIB: u64 = 1 << 10;
const ROUNDS: usize = 9;
const TENANT: TenantId = TenantId(1);

/// Ranges of one size, and of many: how many bytes, and what part of all is in ranges of that size, in percent.
const MIXES: [(&str, &[(u64, u64)]); 5] = [
    ("64 MiB", &[(64 * MIB, 100)]),
    ("1 MiB", &[(MIB, 100)]),
    ("64 KiB", &[(64 * KIB, 100)]),
    ("4 KiB", &[(4 * KIB, 100)]),
    ("PyTorch's", &[(32 * MIB, 50), (2 * MIB, 30), (256 * KIB, 15), (16 * KIB, 4), (512, 1)]),
];
/// The software GPUs: as fast as it goes; with what a call costs on hardware; and each copy of a batch, too, a guess at
/// the order of magnitude, not a measurement.
const NODES: [&str; 3] = ["1x640MiB", "1x640MiB,call=2300ns", "1x640MiB,call=2300ns,copy=1500ns"];
/// Tiny ranges are measured on the last one again without the kernel that gathers them: where it cannot be loaded.
const WITHOUT_GATHERING: [(&str, &str); 2] =
    [("TIDEGATE_SOFTGPU_FAULTS", "cuModuleLoadData@1+=NOT_SUPPORTED"), (MIX_VARIABLE, "4 KiB")];

/// Set in a process that measures one mix only: which.
const MIX_VARIABLE: &str = "TIDEGATE_BENCH_MIX";

fn main() {
    if let Some(config) = config() {
        return measure(config);
    }
    for spec in NODES {
        println!("software GPU {spec}: 256 MiB; medians of {ROUNDS} rounds, the fastest and the slowest");
        println!("ranges     save ÷ copy out                      restore ÷ copy in");
        measure_on(spec, &[]);
    }
    println!("the last, each range a copy of a batch: nothing is gathered");
    measure_on(NODES[NODES.len() - 1], &WITHOUT_GATHERING);
}

fn measure(config: MoverConfig) {
    let only = std::env::var(MIX_VARIABLE).ok();
    for (name, mix) in MIXES.into_iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name)) {
        let copies = Copies::new();
        let mut mover = Mover::start(config.clone());
        let moves = mover.lay_out(mix);
        // As if it were all of it: a mix has rounded down.
        let part = moves.iter().map(|m| m.bytes).sum::<u64>() as f64 / BYTES as f64;
        let rounds = (0..=ROUNDS).map(|_| {
            let (saves, restores) = (mover.saves(TENANT, &moves), mover.restores(TENANT, &moves));
            let save = part * copies.out() / mover.carry_out(saves, 1);
            (save, part * copies.back() / mover.carry_out(restores, 1))
        });
        let rounds: Vec<(f64, f64)> = rounds.skip(1).collect();
        let save = Spread::of(rounds.iter().map(|(save, _)| *save)).line("");
        let restore = Spread::of(rounds.iter().map(|(_, restore)| *restore)).line("");
        println!("{name:<9}  {save}  {restore}");
        mover.end();
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

/// One contiguous range on the GPU, and page-locked memory of its size.
struct Copies {
    device: u64,
    host: *mut c_void,
}

impl Copies {
    fn new() -> Self {
        result::init().unwrap();
        // SAFETY: the device comes from the driver.
        let context = unsafe { result::primary_ctx::retain(result::device::get(0).unwrap()) }.unwrap();
        // SAFETY: it was retained, and is never released.
        unsafe { result::ctx::set_current(context) }.unwrap();
        // SAFETY: a context is current.
        let device = unsafe { result::malloc_sync(BYTES as usize) }.unwrap();
        let mut host = std::ptr::null_mut();
        // SAFETY: as above, and the place is ours.
        unsafe { sys::cuMemAllocHost_v2(&mut host, BYTES as usize) }.result().unwrap();
        Self { device, host }
    }

    fn out(&self) -> f64 {
        // SAFETY: both have so many bytes.
        seconds(|| unsafe { sys::cuMemcpyDtoH_v2(self.host, self.device, BYTES as usize) }.result().unwrap())
    }

    fn back(&self) -> f64 {
        // SAFETY: both have so many bytes.
        seconds(|| unsafe { sys::cuMemcpyHtoD_v2(self.device, self.host, BYTES as usize) }.result().unwrap())
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // SAFETY: allocated above, and used no more.
        unsafe { result::free_sync(self.device) }.unwrap();
        // SAFETY: as above.
        unsafe { sys::cuMemFreeHost(self.host) }.result().unwrap();
    }
}
