//! R4.6, R4.8: a switch takes a job's temporary memory and leaves its persistent memory alone.

mod support;

use support::{Jobs, KIB, MIB, Manager};

#[test]
fn only_temporary_memory_is_switched() {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "20ms", "--boundary-deadline", "50ms"];
    let manager = Manager::start("1x8MiB", &options);
    let mut jobs = ["a", "b"].map(|name| manager.probe(&["--name", name]));
    for job in &mut jobs {
        job.tell("device 0");
        job.tell(&format!("alloc weights {MIB} persistent"));
        job.tell("fill weights 1");
        // From now on what lives long is told by boundaries, not by how often it was switched.
        job.tell("boundary");
    }
    for round in 0..4 {
        for job in &mut jobs {
            job.tell(&format!("alloc activations {}", 4 * MIB));
            job.tell(&format!("fill activations {round}"));
        }
        for job in &mut jobs {
            job.tell("check weights 1");
            job.tell(&format!("check activations {round}"));
            job.tell("free activations");
            job.tell("boundary");
        }
    }
    let status = manager.status();
    for name in ["a", "b"] {
        let job = status.job(name);
        assert!(job.figures.switches >= 2, "no pressure, no test: {job:#?}");
        assert_eq!(job.figures.preempted_bytes, 0);
        assert_eq!(job.persistent_bytes, MIB, "persistent memory stays");
        assert!(
            job.figures.saved_bytes <= job.figures.live_temporary_bytes + 4 * KIB * job.figures.saved_pieces
        );
        assert!(
            job.figures.saved_bytes <= job.figures.switches * 4 * MIB,
            "saved more than what is temporary"
        );
    }
}
