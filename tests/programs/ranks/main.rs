//! Ranks on software GPUs that use the stand-in for NCCL, each a process of its own.
//!
//! `ranks CHECK COUNT` starts so many and waits for them: each checks what it gets against a computation of its own,
//! and ends with an error where that differs. Rank *r* uses GPU *r* modulo the number of GPUs. With 1 rank some
//! checks (`threads`, `occupied`, `refused`) use several in one process.

mod nccl;
mod values;

use cudarc::driver::sys::{self, CUstream};
use nccl::{
    Buffer, CUDA_ERROR, Comm, INVALID_ARGUMENT, INVALID_USAGE, Id, REMOTE_ERROR, async_error, call, done,
    is_idle, stream, synchronize, use_gpu,
};
use std::io::{BufRead, Read, Write};
use std::process::{Command, Stdio};

const F32: i32 = 7;
const SUM: i32 = 0;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [check, count] => start(check, count.parse().unwrap()),
        [check, count, rank, id] => run(check, count.parse().unwrap(), rank.parse().unwrap(), id),
        _ => panic!("ranks CHECK COUNT"),
    }
}

/// Starts the ranks, and waits for their ends.
fn start(check: &str, count: i32) {
    let mut id = Id([0; 128]);
    done!(get_id(&raw mut id));
    let text: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let rank = |rank: i32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([check, &count.to_string(), &rank.to_string(), &text]).stdin(Stdio::piped());
        command.spawn().unwrap()
    };
    // One that never comes.
    let started = if check == "joins_and_ends" { count - 1 } else { count };
    let mut ranks: Vec<_> = (0..started).map(rank).collect();
    // The first rank may have to outlive the others: its standard input ends when it is waited for.
    let bad: Vec<usize> =
        (0..ranks.len()).rev().filter(|rank| !ranks[*rank].wait().unwrap().success()).collect();
    assert!(bad.is_empty(), "ranks {bad:?} failed");
    println!("{check} is right");
}

/// A rank.
pub struct Rank {
    rank: i32,
    count: i32,
    comm: Comm,
    stream: CUstream,
}

impl Rank {
    fn join(count: i32, rank: i32, id: Id) -> Self {
        let mut comm = 0;
        done!(init(&raw mut comm, count, id, rank));
        Self { rank, count, comm, stream: stream() }
    }

    /// What an operation has come to when its stream is done with it.
    fn outcome(&self) -> i32 {
        synchronize(self.stream);
        async_error(self.comm)
    }

    fn is_fine(&self, what: &str) {
        assert_eq!(self.outcome(), 0, "{what} at rank {}", self.rank);
    }
}

fn run(check: &str, count: i32, rank: i32, id: &str) {
    let bytes: Vec<u8> =
        (0..128).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()).collect();
    let id = Id(bytes.try_into().unwrap());
    use_gpu(rank % nccl::gpus());
    match check {
        "joins_and_ends" if rank == 0 => return ends_while_others_join(count, id),
        "joins_and_ends" | "one_gpu" => return does_not_join(check, count, rank, id),
        "threads" => return threads(),
        "occupied" => return occupied(),
        "refused" => return refused(),
        _ => {}
    }
    let rank = Rank::join(count, rank, id);
    match check {
        "collectives" => values::collectives(&rank),
        "large" => values::large(&rank),
        "ring" => ring(&rank),
        "death" => death(&rank),
        "mismatch" => mismatch(&rank),
        "split" => split(&rank),
        "graph" => graph(&rank),
        "streams" => streams(&rank),
        "abort" => abort(&rank),
        "steady" => steady(&rank),
        "unmapped" => return unmapped(&rank),
        other => panic!("there is no check {other}"),
    }
    done!(destroy(rank.comm));
}

/// Messages around in a circle, both ways at once, several of them, and some to the rank itself.
fn ring(rank: &Rank) {
    let (next, last) = ((rank.rank + 1) % rank.count, (rank.rank + rank.count - 1) % rank.count);
    // More than a ring of the segment holds.
    let elements = 700_001;
    let given = |from: i32, message: i32| vec![(from * 100 + message) as f32; elements - message as usize];
    for round in 0..3 {
        let sent: Vec<Buffer> = (0..4).map(|message| Buffer::of(&given(rank.rank, message))).collect();
        let received: Vec<Buffer> = (0..4).map(|message| Buffer::of(&given(-1, message))).collect();
        let size = |message: usize| elements - message;
        let peers = [(next, last), (next, last), (last, next), (rank.rank, rank.rank)];
        done!(group_start());
        for (message, (to, _)) in peers.iter().enumerate() {
            done!(send(sent[message].address, size(message), F32, *to, rank.comm, rank.stream));
        }
        for (message, (_, from)) in peers.iter().enumerate() {
            done!(receive(received[message].address, size(message), F32, *from, rank.comm, rank.stream));
        }
        done!(group_end());
        rank.is_fine("the ring");
        for (message, (_, from)) in peers.iter().enumerate() {
            assert!(
                received[message].read::<f32>() == given(*from, message as i32),
                "round {round}, message {message}"
            );
        }
    }
    // What one side does in a group, the other may do one by one.
    let (one, two) = (Buffer::of(&[1f32, 2.0]), Buffer::of(&[3f32]));
    match rank.rank {
        0 => {
            done!(group_start());
            done!(send(one.address, 2, F32, 1, rank.comm, rank.stream));
            done!(send(two.address, 1, F32, 1, rank.comm, rank.stream));
            done!(group_end());
        }
        1 => {
            let (first, second) = (Buffer::of(&[0f32; 2]), Buffer::of(&[0f32]));
            done!(receive(first.address, 2, F32, 0, rank.comm, rank.stream));
            done!(receive(second.address, 1, F32, 0, rank.comm, rank.stream));
            rank.is_fine("two messages");
            assert_eq!((first.read::<f32>(), second.read::<f32>()), (vec![1.0, 2.0], vec![3.0]));
        }
        _ => {}
    }
    rank.is_fine("two messages");
}

/// The last rank's process ends in the midst of an operation of the others, and then they are asked again.
fn death(rank: &Rank) {
    let buffer = Buffer::of(&[1f32; 1000]);
    let all_reduce =
        || call!(all_reduce(buffer.address, buffer.address, 1000, F32, SUM, rank.comm, rank.stream));
    assert_eq!(all_reduce(), 0);
    rank.is_fine("the operation before");
    if rank.rank == rank.count - 1 {
        std::process::exit(0);
    }
    assert_eq!(all_reduce(), 0);
    assert_eq!(rank.outcome(), REMOTE_ERROR);
    assert_eq!(all_reduce(), REMOTE_ERROR);
}

/// The last rank asks for something else, in every way in which that can be.
fn mismatch(rank: &Rank) {
    let buffer = Buffer::of(&[1f32; 1000]);
    let is_last = rank.rank == rank.count - 1;
    for case in 0..6 {
        // A communicator that has failed is of no use any more: each case has its own.
        let mut comm = 0;
        done!(split(rank.comm, 0, rank.rank, &raw mut comm, std::ptr::null()));
        let (at, stream) = (buffer.address, rank.stream);
        match (case, is_last) {
            (0, true) => done!(all_reduce(at, at, 999, F32, SUM, comm, stream)),
            (1, true) => done!(all_reduce(at, at, 1000, 2, SUM, comm, stream)),
            (2, true) => done!(all_reduce(at, at, 1000, F32, 2, comm, stream)),
            (3, true) => done!(broadcast(at, at, 1000, F32, 0, comm, stream)),
            (4, true) => done!(send(at, 1000, F32, 0, comm, stream)),
            (5, true) => done!(receive(at, 1000, F32, 0, comm, stream)),
            _ => done!(all_reduce(at, at, 1000, F32, SUM, comm, stream)),
        }
        synchronize(rank.stream);
        assert_eq!(async_error(comm), INVALID_USAGE, "case {case} at rank {}", rank.rank);
        done!(destroy(comm));
    }
    // Messages of different sizes.
    if rank.rank < 2 {
        match rank.rank {
            0 => done!(send(buffer.address, 10, F32, 1, rank.comm, rank.stream)),
            _ => done!(receive(buffer.address, 11, F32, 0, rank.comm, rank.stream)),
        }
        assert_eq!(rank.outcome(), INVALID_USAGE);
    }
}

/// Parts by color, in the order of their keys; and all ranks but the first.
fn split(rank: &Rank) {
    let color = rank.rank % 2;
    let members: Vec<i32> = (0..rank.count).rev().filter(|other| other % 2 == color).collect();
    for _ in 0..3 {
        let mut part = 0;
        done!(split(rank.comm, color, -rank.rank, &raw mut part, std::ptr::null()));
        let (mut own, mut count) = (-1, -1);
        done!(user_rank(part, &raw mut own));
        done!(count(part, &raw mut count));
        assert_eq!(members[own as usize], rank.rank);
        assert_eq!(count as usize, members.len());
        let (given, all) = (Buffer::of(&[rank.rank as f32]), Buffer::of(&vec![-1f32; members.len()]));
        done!(all_gather(given.address, all.address, 1, F32, part, rank.stream));
        synchronize(rank.stream);
        assert_eq!(all.read::<f32>(), members.iter().map(|member| *member as f32).collect::<Vec<_>>());
        done!(destroy(part));
    }
    let mut none = 1;
    done!(split(rank.comm, if rank.rank == 0 { -1 } else { 7 }, 0, &raw mut none, std::ptr::null()));
    assert_eq!(none == 0, rank.rank == 0);
    if rank.rank > 0 {
        let mut rest = 0;
        done!(shrink(rank.comm, [0].as_ptr(), 1, &raw mut rest, std::ptr::null(), 0));
        let sum = Buffer::of(&[1f32]);
        done!(all_reduce(sum.address, sum.address, 1, F32, SUM, rest, rank.stream));
        synchronize(rank.stream);
        assert_eq!(sum.read::<f32>(), [(rank.count - 1) as f32]);
    }
}

/// An operation in a graph, replayed.
fn graph(rank: &Rank) {
    let buffer = Buffer::of(&[1f32; 100]);
    let (mut graph, mut replay) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: a stream of ours.
    unsafe { sys::cuStreamBeginCapture_v2(rank.stream, mode) }.result().unwrap();
    done!(all_reduce(buffer.address, buffer.address, 100, F32, SUM, rank.comm, rank.stream));
    // SAFETY: as above, and a place for a graph.
    unsafe { sys::cuStreamEndCapture(rank.stream, &raw mut graph) }.result().unwrap();
    // SAFETY: a graph, and a place for what is made of it.
    unsafe { sys::cuGraphInstantiateWithFlags(&raw mut replay, graph, 0) }.result().unwrap();
    for times in 1..=3 {
        // SAFETY: just made.
        unsafe { sys::cuGraphLaunch(replay, rank.stream) }.result().unwrap();
        // An operation that is not in the graph, between two replays.
        done!(all_reduce(buffer.address, buffer.address, 50, F32, 2, rank.comm, rank.stream));
        rank.is_fine("a replay");
        assert_eq!(buffer.read::<f32>(), [(rank.count.pow(times)) as f32; 100]);
    }
}

/// Operations of one communicator in different streams pass in the order of their calls.
fn streams(rank: &Rank) {
    let others: Vec<CUstream> = (0..4).map(|_| stream()).collect();
    let buffers: Vec<Buffer> = (0..40).map(|at| Buffer::of(&vec![at as f32; 1 + 100 * at])).collect();
    for (at, buffer) in buffers.iter().enumerate() {
        // Another stream for the same operation at each rank.
        let stream = others[(at + rank.rank as usize) % others.len()];
        done!(all_reduce(buffer.address, buffer.address, 1 + 100 * at, F32, SUM, rank.comm, stream));
    }
    others.iter().for_each(|stream| synchronize(*stream));
    rank.is_fine("all");
    for (at, buffer) in buffers.iter().enumerate() {
        assert!(buffer.read::<f32>().iter().all(|value| *value == (at as i32 * rank.count) as f32), "{at}");
    }
}

/// Many operations in a stream with hardly a wait between them: under a manager, there is always one that has not come
/// to its end when a rank is to stop. `ROUNDS` in the environment says how many.
fn steady(rank: &Rank) {
    let rounds = std::env::var("ROUNDS").map_or(400, |rounds| rounds.parse().unwrap());
    let buffer = Buffer::of(&vec![0u32; 1 << 20]);
    let one = Buffer::of(&[1u32; 16]);
    for round in 0..rounds {
        let (at, stream) = (buffer.address, rank.stream);
        done!(all_reduce(one.address, at, 16, 3, SUM, rank.comm, stream));
        done!(all_reduce(at, at, 1 << 18, 3, 2, rank.comm, stream));
        if round % 20 == 19 {
            rank.is_fine("the rounds so far");
        }
    }
    let found = buffer.read::<u32>();
    assert!(found[..16].iter().all(|value| *value == rank.count as u32), "{:?}", &found[..16]);
    assert!(found[16..].iter().all(|value| *value == 0));
}

/// A rank aborts while it waits; so the other's operations end, too.
fn abort(rank: &Rank) {
    let buffer = Buffer::of(&[1f32]);
    if rank.rank == 0 {
        let waiting = || call!(receive(buffer.address, 1, F32, 1, rank.comm, rank.stream));
        assert_eq!(waiting(), 0);
        assert!(!is_idle(rank.stream));
        done!(abort(rank.comm));
        synchronize(rank.stream);
        assert_eq!(waiting(), INVALID_ARGUMENT);
        std::process::exit(0);
    }
    done!(all_reduce(buffer.address, buffer.address, 1, F32, SUM, rank.comm, rank.stream));
    let outcome = rank.outcome();
    assert!([REMOTE_ERROR, INVALID_USAGE].contains(&outcome), "{outcome}");
}

/// A buffer that is not mapped faults its rank's context, and the others learn of it.
fn unmapped(rank: &Rank) {
    let buffer = Buffer::of(&[1f32]);
    let place = if rank.rank == 0 { 0x1000 } else { buffer.address };
    done!(all_reduce(place, place, 1, F32, SUM, rank.comm, rank.stream));
    if rank.rank == 0 {
        // SAFETY: a stream of ours.
        let code = unsafe { sys::cuStreamSynchronize(rank.stream) };
        assert_eq!(code, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(async_error(rank.comm), CUDA_ERROR);
        // It lives until the others have found out.
        std::io::stdin().lock().read_until(b'\n', &mut Vec::new()).unwrap();
        return;
    }
    assert_eq!(rank.outcome(), REMOTE_ERROR);
}

/// Joins in the background, and ends before the others have come.
fn ends_while_others_join(count: i32, id: Id) {
    let mut comm = 0;
    // The beginning of ncclConfig_t: size, magic, version, blocking.
    let config: [u32; 6] = [24, 0, 0xcafe_beef, 22_809, 0, 0];
    let path = std::env::var("STAND_IN").unwrap();
    let path = std::ffi::CString::new(path).unwrap();
    // SAFETY: a path.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: an open library and a name.
    let found = unsafe { libc::dlsym(library, c"standin_ncclCommInitRankConfig".as_ptr()) };
    type Init = unsafe extern "C" fn(*mut Comm, i32, Id, i32, *const u32) -> i32;
    // SAFETY: nccl.h says that it has this type.
    let init = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Init>(found) };
    // SAFETY: places that outlive the call.
    let code = unsafe { init(&raw mut comm, count, id, 0, config.as_ptr()) };
    assert_eq!(code, nccl::IN_PROGRESS);
    // It has joined when its own word behind the header says so. (The count of ranks would not do: the other one may
    // have come first.)
    let file =
        std::str::from_utf8(&id.0[b"softgpu-nccl:".len()..]).unwrap().trim_end_matches('\0').to_owned();
    let has_joined = || {
        let mut bytes = [0; 68];
        let read = std::fs::File::open(&file).and_then(|mut file| file.read_exact(&mut bytes));
        read.is_ok() && bytes[64] != 0
    };
    while !has_joined() {
        std::thread::yield_now();
    }
    assert_eq!(async_error(comm), nccl::IN_PROGRESS);
}

/// Finds, while it joins, that there is no joining.
fn does_not_join(check: &str, count: i32, rank: i32, id: Id) {
    let mut comm = 0;
    let code = call!(init(&raw mut comm, count, id, rank));
    let expected = if check == "one_gpu" { INVALID_USAGE } else { REMOTE_ERROR };
    assert_eq!(code, expected, "rank {rank}");
}

/// All GPUs' ranks in one process, from one thread.
fn threads() {
    let count = nccl::gpus();
    let mut comms = vec![0; count as usize];
    done!(init_all(comms.as_mut_ptr(), count, std::ptr::null()));
    let ranks: Vec<(CUstream, Buffer)> = (0..count)
        .map(|gpu| {
            use_gpu(gpu);
            (stream(), Buffer::of(&vec![gpu as f32 + 1.0; 300_000]))
        })
        .collect();
    done!(group_start());
    for (comm, (stream, buffer)) in comms.iter().zip(&ranks) {
        done!(all_reduce(buffer.address, buffer.address, 300_000, F32, SUM, *comm, *stream));
    }
    done!(group_end());
    for (gpu, (comm, (stream, buffer))) in comms.iter().zip(&ranks).enumerate() {
        use_gpu(gpu as i32);
        synchronize(*stream);
        assert_eq!(async_error(*comm), 0);
        let sum = (count * (count + 1) / 2) as f32;
        assert!(buffer.read::<f32>().iter().all(|value| *value == sum));
        done!(destroy(*comm));
    }
}

/// Each kind of operation occupies the stream of the rank that comes first until the other comes, however little it sends.
fn occupied() {
    let mut comms = [0; 2];
    done!(init_all(comms.as_mut_ptr(), 2, [0, 1].as_ptr()));
    let streams = [0, 1].map(|gpu| {
        use_gpu(gpu);
        stream()
    });
    let buffers = [0, 1].map(|gpu| {
        use_gpu(gpu);
        Buffer::of(&[0f32; 4])
    });
    type Launch<'a> = &'a dyn Fn(usize);
    let (at, comm, stream) =
        (|rank: usize| buffers[rank].address, |rank: usize| comms[rank], |rank: usize| streams[rank]);
    let all: Launch = &|r| done!(all_reduce(at(r), at(r), 1, F32, SUM, comm(r), stream(r)));
    let broadcast: Launch = &|r| done!(broadcast(at(r), at(r), 1, F32, 0, comm(r), stream(r)));
    let reduce: Launch = &|r| done!(reduce(at(r), at(r), 1, F32, SUM, 1, comm(r), stream(r)));
    let gather: Launch = &|r| done!(all_gather(at(r), at(r), 1, F32, comm(r), stream(r)));
    let message: Launch = &|r| match r {
        0 => done!(send(at(0), 1, F32, 1, comm(0), stream(0))),
        _ => done!(receive(at(1), 1, F32, 0, comm(1), stream(1))),
    };
    for (name, launch) in
        [("all", all), ("broadcast", broadcast), ("reduce", reduce), ("gather", gather), ("message", message)]
    {
        launch(0);
        // An event behind an idle stream of the same GPU would be done by now: this one never is.
        for _ in 0..1000 {
            assert!(!is_idle(streams[0]), "{name}: its stream went on without the other rank");
            std::thread::yield_now();
        }
        launch(1);
        streams.iter().for_each(|stream| synchronize(*stream));
        assert_eq!(comms.map(async_error), [0, 0], "{name}");
    }
}

/// What is not there is refused, and what is wrong is told at once.
fn refused() {
    let mut comm = 0;
    done!(init_all(&raw mut comm, 1, [0].as_ptr()));
    let stream = stream();
    let buffer = Buffer::of(&[1f32; 4]);
    let mut none = 0;
    assert_eq!(call!(window(comm, buffer.address, 16, &raw mut none, 0)), INVALID_USAGE);
    assert_eq!(call!(all_reduce(buffer.address, buffer.address, 4, 99, SUM, comm, stream)), INVALID_ARGUMENT);
    assert_eq!(call!(all_reduce(buffer.address, buffer.address, 4, F32, 99, comm, stream)), INVALID_ARGUMENT);
    assert_eq!(call!(all_reduce(buffer.address, buffer.address, 4, 10, SUM, comm, stream)), INVALID_ARGUMENT);
    assert_eq!(call!(broadcast(buffer.address, buffer.address, 4, F32, 1, comm, stream)), INVALID_ARGUMENT);
    assert_eq!(call!(all_reduce(0, buffer.address, 4, F32, SUM, comm, stream)), INVALID_ARGUMENT);
    assert_eq!(
        call!(all_reduce(buffer.address, buffer.address, 4, F32, SUM, comm + 1, stream)),
        INVALID_ARGUMENT
    );
    assert_eq!(call!(group_end()), INVALID_USAGE);
    done!(group_start());
    assert_eq!(call!(send(buffer.address, 4, F32, 5, comm, stream)), INVALID_ARGUMENT);
    assert_eq!(call!(group_end()), INVALID_ARGUMENT);
    // A wrong call leaves the communicator as it was.
    done!(all_reduce(buffer.address, buffer.address, 4, F32, SUM, comm, stream));
    synchronize(stream);
    assert_eq!(async_error(comm), 0);
    done!(destroy(comm));
    assert_eq!(call!(destroy(comm)), INVALID_ARGUMENT);
    std::io::stdout().flush().unwrap();
}
