//! A program that never waits for its GPU has little under way, by whatever it submits and from however many threads and
//! streams: beside another job it is switched as others are, also where it was alone before. What it submits while work
//! of its own waits is little, too.

#[path = "support/c.rs"]
mod c;
#[path = "support/node.rs"]
mod node;
#[path = "support/program.rs"]
mod program;
mod support;
#[path = "support/switched.rs"]
mod switched;

/// `greedy.c`, in this way.
fn is_switched(how: &str) {
    switched::drains("greedy", &[how], "stir_kernel");
}

#[test]
fn threads_with_streams_of_their_own() {
    is_switched("threads");
}

#[test]
fn a_thread_with_many_streams() {
    is_switched("streams");
}

/// What is under way fits calls that were shorter.
#[test]
fn a_thread_whose_kernels_become_longer() {
    is_switched("grows");
}

/// While it is alone, and its kernels are short, calls are not counted.
#[test]
fn a_thread_whose_kernels_become_long_while_it_is_alone() {
    is_switched("becomes");
}

/// Nor can a mark be set behind all work.
#[test]
fn a_thread_whose_kernels_become_long_while_it_captures() {
    is_switched("beneath");
}

/// Longer than work is let go on before it is taken to wait for other work.
#[test]
fn a_thread_whose_kernels_take_seconds() {
    switched::is_switched(1, switched::SLICE, "greedy", &["seconds"], "stir_kernel");
}

/// More of them are under way than may end in one closing, and nothing is added to them.
#[test]
fn a_thread_whose_kernels_come_to_take_most_of_the_drain_limit() {
    let options = ["--slice", switched::SLICE, "--drain-limit", "1s"];
    let job = switched::switch(3, &options, "greedy", &["most"], "stir_kernel");
    assert!(job.figures.failed_drains > 0, "less than that was under way: {job:#?}");
}

/// What is added to them then is little.
#[test]
fn a_thread_whose_kernels_take_longer_than_nothing_is_let_through() {
    let options = ["--slice", switched::SLICE, "--drain-limit", "2s"];
    let job = switched::switch(4, &options, "greedy", &["over"], "stir_kernel");
    assert_eq!(job.figures.failed_drains, 0, "more were added: {job:#?}");
}

#[test]
fn a_thread_that_submits_host_functions() {
    is_switched("host");
}

#[test]
fn a_thread_that_launches_graphs() {
    is_switched("graphs");
}

/// Two of them take longer than nothing is added for, and it is not known how long one takes.
#[test]
fn a_thread_that_launches_graphs_of_most_of_the_drain_limit_when_its_memory_is_filled() {
    let options = ["--slice", switched::SLICE, "--drain-limit", "1s"];
    let job = switched::switch(8, &options, "greedy", &["filled"], "stir_kernel");
    assert_eq!(job.figures.failed_drains, 0, "more were added: {job:#?}");
}

#[test]
fn a_thread_whose_kernels_are_short_and_then_long() {
    is_switched("mixed");
}

#[test]
fn a_thread_beside_a_stream_that_waits_for_values() {
    is_switched("value");
}

#[test]
fn a_thread_beside_one_that_captures() {
    is_switched("captures");
}

/// No mark can be set behind all work then: each stream has its own.
#[test]
fn threads_beside_one_that_holds_a_capture_open() {
    is_switched("held");
}

/// How many calls of the other thread ended says nothing of how many of these are under way.
#[test]
fn a_thread_of_long_kernels_beside_one_that_waits_for_short_ones() {
    // Long enough for many of the short ones.
    switched::is_switched(4, "300ms", "greedy", &["beside"], "stir_kernel");
}

#[test]
fn processes_of_one_job() {
    is_switched("processes");
}

/// That of one does not wait for the other's, though it takes longer than was thought.
#[test]
fn processes_of_one_job_whose_kernels_take_long() {
    is_switched("apart");
}
