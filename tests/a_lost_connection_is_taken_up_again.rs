//! I7: a connection to the manager may end at any moment, of any job, in whatever it is doing: the
//! job goes on over another one, and every live byte is as it left it.

mod support;

use support::{KIB, Manager, Probe};

/// A job with two allocations, of which one is written anew in each round.
struct Cut {
    job: Probe,
    round: u64,
    cuts: u64,
}

impl Cut {
    fn new(manager: &Manager, name: &str) -> Self {
        let mut job = manager.probe(&["--name", name]);
        job.tell("device 0");
        job.tell(&format!("alloc kept {} persistent", 700 * KIB));
        job.tell("fill kept 1");
        Self { job, round: 0, cuts: 0 }
    }

    fn work(&mut self) {
        self.round += 1;
        let round = self.round;
        // While the others have their turns, and while it asks for memory itself.
        self.cut();
        self.job.order(&format!("alloc new {}", 900 * KIB));
        self.job.order("cut");
        self.job.answer().unwrap();
        self.count();
        self.job.tell(&format!("fill new {round}"));
        self.job.tell("boundary");
        self.job.tell(&format!("check new {round}"));
        self.job.tell("check kept 1");
        self.job.tell("free new");
    }

    fn cut(&mut self) {
        self.job.order("cut");
        self.count();
    }

    fn count(&mut self) {
        // None, if the last one has not been taken up yet.
        self.cuts += self.job.answer().unwrap().parse::<u64>().unwrap();
    }
}

#[test]
fn a_lost_connection_is_taken_up_again() {
    let sizes = ["--unit", "64KiB", "--piece", "256KiB", "--offset", "64KiB"];
    let times = ["--slice", "10ms", "--boundary-deadline", "20ms"];
    let manager = Manager::start("1x3MiB", &[&sizes[..], &times[..], &["--poison"]].concat());
    let names = ["a", "b", "c"];
    let mut jobs = names.map(|name| Cut::new(&manager, name));
    let mut work = || jobs.iter_mut().for_each(Cut::work);
    (0..10).for_each(|_| work());
    manager.work_until_switched(&names, 20, work);
    for Cut { job, cuts, .. } in jobs {
        assert!(cuts > 10, "only {cuts} connections were lost");
        job.end();
    }
}
