//! What a user notices of another user that attacks the manager: `cargo bench --bench attack [-- MINUTES]`
//!
//! As root: a manager of root on a software GPU, with a quota for each of two users. One asks for memory and for `status`, one
//! after the other, and times each: half a minute alone, as long beside processes that do nothing but compute, and 5 minutes, or
//! so many, beside the other user's processes, which attack in all the ways of `tests/programs/hostile.rs`. In the middle of
//! the attack the manager is killed.
//!
//! A lease is one unit that is given back before the next. Printed are the median, the 99th part of a hundred, and the longest,
//! in milliseconds; and whether a job that was there before has its memory still.

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::deaths::{kill, status_after};
use support::users::Shared;
use support::{Crowd, Probe, probe};

const HOSTILE: u32 = 20_011;
const HONEST: u32 = 20_012;
const QUIET: Duration = Duration::from_secs(30);
const MINUTES: f64 = 5.0;
const OPTIONS: [&str; 6] = ["--unit", "64KiB", "--offset", "64KiB", "--user-memory", "16MiB"];

fn main() {
    let minutes = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(MINUTES);
    let shared = Shared::start("1x64MiB", &OPTIONS);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let mut stays = Probe::start({
        let mut run = shared.member(HONEST, &["run", "--name", "stays"]);
        run.arg("--").arg(shared.copied(&probe()));
        run
    });
    stays.tell("device 0");
    stays.tell("alloc all 1000000");
    stays.tell("set all 0 1000000 161");
    let mut user = User { shared: &shared, job: None };
    println!(
        "{count} attackers, or processes that compute; a lease, and a status, in ms: median, 99 %, longest"
    );
    user.time("alone", QUIET);
    let crowd =
        Crowd::of(count, || Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    user.time("beside processes that compute", QUIET);
    drop(crowd);
    let crowd = Crowd::of(count, || {
        let mut attacker = shared.hostile(HOSTILE);
        attacker.arg("keep").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    });
    let half = Duration::from_secs_f64(minutes * 30.0);
    user.time("beside attackers", half);
    let (dead, began) = (shared.manager.pid(), Instant::now());
    kill(dead);
    status_after(&shared.manager, dead);
    println!(
        "the manager is killed; the next status comes after {:.0} ms",
        began.elapsed().as_secs_f64() * 1e3
    );
    // It takes up no session of a manager that is dead.
    user.job = None;
    user.time("beside attackers, its successor", half);
    drop(crowd);
    let marked = stays.try_tell("count all 161");
    println!("of the 62500 words of a job that was there before: {marked:?}");
}

/// The user that attacks no other.
struct User<'a> {
    shared: &'a Shared,
    job: Option<Probe>,
}

impl User<'_> {
    /// Times leases and statuses for a while.
    fn time(&mut self, beside: &str, during: Duration) {
        let (mut leases, mut statuses) = (Vec::new(), Vec::new());
        let end = Instant::now() + during;
        while Instant::now() < end {
            leases.push(self.lease());
            statuses.push(self.status());
        }
        println!("{beside}: a lease {}; a status {}", spread(&mut leases), spread(&mut statuses));
    }

    fn lease(&mut self) -> f64 {
        let job = self.job.get_or_insert_with(|| {
            let mut job = Probe::start(self.shared.client(HONEST));
            job.tell(&format!("hello honest {}", self.shared.manager.status().gpus[0].uuid));
            job
        });
        let began = Instant::now();
        job.tell("lease 0 1");
        let took = began.elapsed();
        job.tell("drop");
        took.as_secs_f64() * 1e3
    }

    /// With the start of the command.
    fn status(&self) -> f64 {
        let mut command = self.shared.member(HONEST, &["status"]);
        command.stdout(Stdio::null());
        let began = Instant::now();
        assert!(command.status().unwrap().success());
        began.elapsed().as_secs_f64() * 1e3
    }
}

fn spread(times: &mut [f64]) -> String {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    format!("{:.2} {:.2} {:.2} (of {})", at(0.5), at(0.99), at(1.0), times.len())
}
