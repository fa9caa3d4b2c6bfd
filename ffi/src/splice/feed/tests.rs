use super::super::cursor::{ALIGNMENT, ELEMENT};
use super::super::data_set::Writer;
use super::super::memory_gpu::{MemoryGpu, Step};
use super::*;
use crate::splice::block::Sink;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Longer than anything here can take, so that a test that waits in vain fails.
const PATIENCE: Duration = Duration::from_secs(60);

const SIZES: Sizes =
    Sizes { direct: 256, launching: 1024, working: 4096, launching_buffers: 2, working_buffers: 2 };

/// The data sets of a split.
struct Split {
    sets: VecDeque<Vec<Vec<u8>>>,
    /// How often it was asked.
    asked: usize,
}

impl Split {
    fn of(sets: &[&[&[u8]]]) -> Self {
        let set = |set: &&[&[u8]]| set.iter().map(|value| value.to_vec()).collect();
        Self { sets: sets.iter().map(set).collect(), asked: 0 }
    }

    /// So many data sets of one value of eight bytes.
    fn numbered(sets: u64) -> Self {
        Self { sets: (0..sets).map(|set| vec![set.to_be_bytes().to_vec()]).collect(), asked: 0 }
    }
}

impl Source for Split {
    fn fill(&mut self, direct: &mut [u8]) -> Result<bool, Cause> {
        self.asked += 1;
        let mut writer = Writer::new(direct)?;
        let Some(set) = self.sets.pop_front() else { return Ok(false) };
        for value in set {
            assert!(writer.push(&value)?, "the direct buffer takes a test's data sets");
        }
        Ok(true)
    }
}

/// The last byte first, twice.
fn doubled(datum: &[u8]) -> Vec<u8> {
    datum.iter().rev().chain(datum).copied().collect()
}

/// Puts what `doubled` says, and refuses a datum that is "bad".
fn parse(datum: &[u8], sink: &mut Sink<'_>) -> Result<(), Cause> {
    if datum == b"bad" {
        return Err("this is bad".into());
    }
    let (first, rest) = (doubled(datum), []);
    sink.put(&first);
    sink.put(&rest);
    Ok(())
}

type Parser = fn(&[u8], &mut Sink<'_>) -> Result<(), Cause>;

fn feeder(sizes: Sizes) -> Feeder<MemoryGpu, Parser> {
    Feeder::new(MemoryGpu::new(|_| ()), parse as Parser, sizes).unwrap()
}

/// The bytes of a working buffer that takes just these data sets of one value of eight bytes.
fn room_for(sets: usize) -> usize {
    (sets * ELEMENT).next_multiple_of(ALIGNMENT) + sets * 16
}

fn no_buffer_is_left<P>(feeder: &Feeder<MemoryGpu, P>) {
    assert_eq!((feeder.device.launching.now(), feeder.device.working.now()), (0, 0));
}

/// A split fails with these words, nothing of it is left, and the source is left alone until it is resumed.
fn pauses(feeder: &mut Feeder<MemoryGpu, Parser>, mut split: Split, words: &str) {
    let told = feeder.feed(&mut split).unwrap_err().to_string();
    assert_eq!(told, words);
    no_buffer_is_left(feeder);
    let mut next = Split::numbered(3);
    assert!(feeder.is_paused() && matches!(feeder.feed(&mut next), Err(FeedError::Paused)));
    assert_eq!(next.asked, 0);
    feeder.resume();
    assert_eq!(feeder.feed(&mut next).unwrap().extent.data, 3);
}

#[test]
fn an_empty_split_succeeds_and_makes_no_buffer() {
    for mut split in [Split::of(&[]), Split::of(&[&[], &[]])] {
        let mut feeder = feeder(SIZES);
        let fed = feeder.feed(&mut split).unwrap();
        assert!(fed.results.is_empty() && fed.data_sets == 0 && !feeder.is_paused());
        assert_eq!((feeder.device.launching.most(), feeder.device.working.most()), (0, 0));
    }
}

#[test]
fn data_sets_of_a_split_share_a_working_buffer() {
    let mut feeder = feeder(SIZES);
    let fed = feeder.feed(&mut Split::of(&[&[b"one", b""], &[], &[b"two"]])).unwrap();
    assert_eq!(fed.results, [[doubled(b"one"), vec![], doubled(b"two")]]);
    assert_eq!((fed.data_sets, fed.extent.data), (2, 3));
    no_buffer_is_left(&feeder);
}

#[test]
fn blocks_that_fill_the_working_buffer_exactly_are_processed_together() {
    for (working, lots) in [(room_for(4), 2), (room_for(4) - ALIGNMENT, 3), (room_for(8), 1)] {
        let fed = feeder(Sizes { working, ..SIZES }).feed(&mut Split::numbered(8)).unwrap();
        assert_eq!(fed.results.len(), lots, "{working}");
        let wanted: Vec<_> = (0..8u64).map(|set| doubled(&set.to_be_bytes())).collect();
        assert_eq!(fed.results.concat(), wanted);
    }
}

#[test]
fn a_block_larger_than_the_working_buffer_pauses_the_source() {
    let split = Split::of(&[&[b"0"], &[b"0123456789", b"0123456789"]]);
    let words = "the block of data set 1: 2 data of 52 bytes need 80 bytes with their index, and there are 64: \
                 make the working buffer larger, or the direct buffer smaller";
    pauses(&mut feeder(Sizes { working: 64, ..SIZES }), split, words);
}

#[test]
fn a_block_larger_than_the_launching_buffer_pauses_the_source() {
    let split = Split::of(&[&[b"0"], &[b"0123456789"]]);
    let words = "data set 1: 1 data of 20 bytes need 36 bytes with their index, and there are 32: \
                 make the launching buffer larger, or the direct buffer smaller";
    pauses(&mut feeder(Sizes { launching: 32, ..SIZES }), split, words);
}

#[test]
fn a_failing_parse_pauses_the_source() {
    let split = Split::of(&[&[b"good"], &[b"good"], &[b"good", b"bad"], &[b"good"]]);
    pauses(&mut feeder(SIZES), split, "data set 2: datum 1 cannot be parsed: this is bad");
}

#[test]
fn what_a_parse_function_puts_in_vain_is_a_failure_though_it_does_not_say_so() {
    let split = Split::of(&[&[&[7; 200]]]);
    let words = "data set 0: 1 data of 400 bytes need 416 bytes with their index, and there are 64: \
                 make the launching buffer larger, or the direct buffer smaller";
    pauses(&mut feeder(Sizes { launching: 64, ..SIZES }), split, words);
}

#[test]
fn a_parse_function_that_panics_takes_nothing_along() {
    let panics = |_: &[u8], _: &mut Sink<'_>| panic!("as it was told");
    let mut feeder = Feeder::new(MemoryGpu::new(|_| ()), panics, SIZES).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| feeder.feed(&mut Split::numbered(1)).map(drop)));
    assert_eq!(*panic.unwrap_err().downcast_ref::<&str>().unwrap(), "as it was told");
    assert!(feeder.is_paused());
    no_buffer_is_left(&feeder);
}

/// A source that fails, or writes nonsense, in its second data set.
struct Faulty(usize, Result<u8, &'static str>);

impl Source for Faulty {
    fn fill(&mut self, direct: &mut [u8]) -> Result<bool, Cause> {
        self.0 += 1;
        Writer::new(direct)?.push(b"x")?;
        if self.0 == 2 {
            direct[0] = self.1?;
        }
        Ok(true)
    }
}

#[test]
fn a_source_that_fails_or_lies_is_asked_no_more() {
    for (fault, words) in [
        (Err("no disk"), "the source failed at data set 1: no disk"),
        (Ok(0), "data set 1: it does not begin as a data set does"),
    ] {
        let mut feeder = feeder(SIZES);
        let mut source = Faulty(0, fault);
        assert_eq!(feeder.feed(&mut source).unwrap_err().to_string(), words);
        assert!(source.0 == 2 && feeder.is_paused());
        no_buffer_is_left(&feeder);
    }
}

#[test]
fn a_fault_of_the_device_fails_the_split_wherever_it_comes() {
    // What it takes to feed eight blocks, two for each time that the GPU is triggered.
    let calls = [
        ("lane", LANES),
        ("launching", 8),
        ("memory", 16),
        ("working", 2),
        ("copy", 8),
        ("process", 4),
        ("fetch", 4),
    ];
    for (call, count, at) in
        calls.into_iter().flat_map(|(call, count)| (0..=count).map(move |at| (call, count, at)))
    {
        let mut feeder = feeder(Sizes { working: room_for(2), ..SIZES });
        feeder.device.fails = Some((call, at));
        let fed = feeder.feed(&mut Split::numbered(8));
        assert_eq!(fed.is_ok(), at == count, "call {at} of {call}: {fed:?}");
        if let Err(error) = fed {
            assert!(error.to_string().ends_with(&format!("a fault in call {at} of {call}")), "{error}");
            assert!(feeder.is_paused());
        }
        no_buffer_is_left(&feeder);
    }
}

#[test]
fn what_did_not_arrive_is_not_processed() {
    for at in 0..8 {
        let mut feeder = feeder(Sizes { working: room_for(8), ..SIZES });
        feeder.device.fails = Some(("copy", at));
        feeder.feed(&mut Split::numbered(8)).unwrap_err();
        assert_eq!(feeder.device.calls_of("process"), 0, "copy {at} failed");
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let new = |sizes| Feeder::new(MemoryGpu::new(|_| ()), parse as Parser, sizes).map(drop);
    let large = new(Sizes { working: 1 << 33, ..SIZES }).unwrap_err().to_string();
    assert_eq!(large, "a working buffer of 8589934592 bytes: 4 GiB are the most");
    assert!(matches!(new(Sizes { launching_buffers: 0, ..SIZES }), Err(FeedError::NoBuffers)));
    assert!(matches!(new(Sizes { working_buffers: 0, ..SIZES }), Err(FeedError::NoBuffers)));
    let many = new(Sizes { launching_buffers: MOST_BUFFERS + 1, ..SIZES });
    assert!(matches!(many, Err(FeedError::TooManyBuffers)));
}

/// Counts events; somebody waits for so many.
#[derive(Clone, Default)]
struct Tally(Arc<(Mutex<usize>, Condvar)>);

impl Tally {
    fn add(&self) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_all();
    }

    /// Whether it came to so many.
    fn comes_to(&self, count: usize) -> bool {
        let too_few = |tally: &mut usize| *tally < count;
        !self.0.1.wait_timeout_while(self.0.0.lock().unwrap(), PATIENCE, too_few).unwrap().1.timed_out()
    }
}

#[test]
fn parsing_goes_on_while_the_gpu_computes() {
    let parsed = Tally::default();
    let (seen, waits) = (parsed.clone(), parsed);
    let gpu = MemoryGpu::new(move |step| {
        // The two whose processing it is, the one that found no room, and one in the other launching buffer.
        assert!(step != Step::Processing || waits.comes_to(4), "parsing stood still");
    });
    let counting = move |datum: &[u8], sink: &mut Sink<'_>| {
        seen.add();
        parse(datum, sink)
    };
    let sizes = Sizes { working: room_for(2), working_buffers: 1, ..SIZES };
    let fed = Feeder::new(gpu, counting, sizes).unwrap().feed(&mut Split::numbered(4)).unwrap();
    assert_eq!(fed.results.len(), 2);
}

#[test]
fn copies_go_on_while_the_gpu_computes() {
    let copied = Tally::default();
    let gpu = MemoryGpu::new(move |step| match step {
        Step::Copied => copied.add(),
        Step::Processing => assert!(copied.comes_to(4), "copies stood still"),
        Step::Copying | Step::Fetching => (),
    });
    let sizes = Sizes { working: room_for(2), ..SIZES };
    let fed = Feeder::new(gpu, parse as Parser, sizes).unwrap().feed(&mut Split::numbered(4)).unwrap();
    assert_eq!(fed.results.len(), 2);
}

#[test]
fn splicing_pauses_while_there_is_no_room() {
    let parsed = Arc::new(AtomicUsize::new(0));
    let copied = Arc::new(AtomicUsize::new(0));
    let (seen, copies) = (parsed.clone(), copied.clone());
    let gpu = MemoryGpu::new(move |step| match step {
        Step::Copied => drop(copies.fetch_add(1, SeqCst)),
        // Both lots that were triggered, and no block of the next.
        Step::Processing => assert!(copies.load(SeqCst).is_multiple_of(2)),
        Step::Copying | Step::Fetching => (),
    });
    let counting = move |datum: &[u8], sink: &mut Sink<'_>| {
        let (ahead, is_ahead) = (seen.fetch_add(1, SeqCst) + 1, SIZES.launching_buffers);
        assert!(ahead <= copied.load(SeqCst) + is_ahead, "{ahead} blocks");
        parse(datum, sink)
    };
    let sizes = Sizes { working: room_for(2), working_buffers: 1, ..SIZES };
    let mut feeder = Feeder::new(gpu, counting, sizes).unwrap();
    assert_eq!(feeder.feed(&mut Split::numbered(20)).unwrap().results.len(), 10);
    assert_eq!(feeder.device.working.most(), 1);
    assert_eq!(parsed.load(SeqCst), 20);
}

/// Feeds eight blocks, two for each time that the GPU is triggered, and holds up the first operation that comes to
/// a step until so many copies are done. What comes out is right, and nobody has met another one's bytes.
fn held_up(first: Step, until_copied: usize) {
    let (copied, is_first) = (Tally::default(), AtomicBool::new(true));
    let gpu = MemoryGpu::new(move |step| {
        if step == first && is_first.swap(false, SeqCst) {
            assert!(copied.comes_to(until_copied), "others stood still");
        }
        if step == Step::Copied {
            copied.add();
        }
    });
    let sizes = Sizes { working: room_for(2), launching_buffers: 4, ..SIZES };
    let fed = Feeder::new(gpu, parse as Parser, sizes).unwrap().feed(&mut Split::numbered(8)).unwrap();
    let wanted: Vec<_> = (0..8u64).map(|set| doubled(&set.to_be_bytes())).collect();
    assert_eq!(fed.results.concat(), wanted);
}

#[test]
fn processing_waits_for_its_copies_while_later_copies_go_ahead() {
    // The held one's like, and both of the other working buffer.
    held_up(Step::Copying, 3);
}

#[test]
fn a_copy_waits_for_the_processing_of_what_it_replaces_while_later_copies_go_ahead() {
    // Two of each working buffer, and two more of the one that is free again.
    held_up(Step::Processing, 6);
}

#[test]
fn processing_waits_for_its_last_results_to_be_fetched_while_later_copies_go_ahead() {
    // Also two to the working buffer whose results are held.
    held_up(Step::Fetching, 8);
}

fn values() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let value = prop::collection::vec(any::<u8>(), 0..24);
    prop::collection::vec(prop::collection::vec(value, 0..6), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_datum_arrives_once_and_in_order_or_the_split_fails(
        sets in values(),
        launching in 0usize..500,
        working in 0usize..900,
        launching_buffers in 1usize..4,
        working_buffers in 1usize..4,
    ) {
        let sizes = Sizes { direct: 512, launching, working, launching_buffers, working_buffers };
        let mut feeder = feeder(sizes);
        let fed = feeder.feed(&mut Split { sets: sets.clone().into(), asked: 0 });
        let wanted: Vec<Vec<u8>> = sets.iter().flatten().map(|datum| doubled(datum)).collect();
        let largest = sets.iter().filter(|set| !set.is_empty()).map(|set| {
            let bytes = set.iter().fold(0usize, |end, datum| end.next_multiple_of(ALIGNMENT) + 2 * datum.len());
            let index = set.len() * ELEMENT;
            let launching = index.next_multiple_of(ALIGNMENT) + bytes;
            (launching, index, bytes)
        });
        let fits = |(block, index, bytes): (usize, usize, usize)| {
            let low = working.checked_sub(bytes).map(|low| low / ALIGNMENT * ALIGNMENT);
            block <= launching && low.is_some_and(|low| index <= low)
        };
        prop_assert_eq!(fed.is_ok(), largest.clone().all(fits), "{:?}", fed);
        prop_assert_eq!(feeder.is_paused(), fed.is_err());
        if let Ok(fed) = fed {
            prop_assert_eq!(fed.extent.data, wanted.len());
            prop_assert_eq!(fed.results.concat(), wanted);
        }
        no_buffer_is_left(&feeder);
        prop_assert!(feeder.device.launching.most() <= launching_buffers);
        prop_assert!(feeder.device.working.most() <= working_buffers);
    }
}
