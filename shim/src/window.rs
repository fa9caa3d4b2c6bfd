//! How much work a process has under way: a window, as of a network's flow control.
//!
//! A job is switched when all its work has ended. A program that never waits for its GPU fills the driver's queue: a thousand
//! calls in each stream, be they of 50 ms each. So the [gate](crate::gate) is metered: as many calls are under way as the GPU
//! can do in [`SPAN`] while other jobs wait. While none does it is more the longer that lasts, for it becomes less
//! likely that one comes soon. [Marks] tell how many have ended. The window begins
//! with two calls, before it is known whether others wait, and is doubled by a mark that is passed soon. What it has
//! room for is granted in parts, with a mark behind each, [a few](PARTS) [small ones](FINE) at a time while other jobs wait: so it is seen soon that calls
//! take longer than those before, and that work goes on. [Short] calls are not counted: it is seen how far [ahead](crate::ahead) they
//! are, and where threads are held there for long they have become longer.
//!
//! [Short]: Turn::Short
//!
//! Where calls took much longer than those before, for so long that others felt it, the window is one of such calls in the
//! [next turns](UNEVEN_TURNS): the program may do the same again. It is looked [more often](LOOK_AT_UNEVEN) then, so that short ones
//! still follow each other.
//!
//! Threads that have little ahead of them go in [batches](crate::gate) besides, which are not counted.
//!
//! Where marks say nothing (a value wait is unreleased) calls are granted at the last [`Pace`], and
//! those go besides whose work would begin at once. What is submitted behind a value wait goes while no other job waits. Beside a
//! capture no mark can be set behind all work, and those of single streams say which calls go.
//!
//! Work may wait on the GPU for work that is not submitted yet: then no mark is passed, and the gate holds what ends the wait
//! until the closing, or for [`PATIENCE`], but for calls whose work would begin at once. Kernels that take longer than a turn look
//! alike at first. So an [`Excess`] grows slowly then, and what ends by itself between its steps only took long. And
//! such a closing lets nothing through for most of its limit, counted from the last mark that was passed: what takes seconds ends in
//! that time. If work does not end in that time, or ends by the excess, the process
//! is not metered in the next [`FREE`] turns, each time in twice as many, and after that not before its work was seen
//! to be [`FAR`] ahead.
//!
//! Invariant: while the gate is metered this is looked at every [`LOOK`], or [some times](PART_LOOKS) while a part ends, but for an idle
//! process that has submitted nothing yet; or a closing is about to shut it.

#![forbid(unsafe_code)]

use crate::gate::{CALLS_BETWEEN_DUE, GATE, Record, Role, keep_batches_small};
use crate::host_functions::{self, do_graphs_call};
use crate::log::debug;
use crate::marks::{Calls, Marks, Passage};
use crate::process::Process;
use std::time::{Duration, Instant};

/// Work is under way that takes so long.
const SPAN: Duration = Duration::from_millis(100);
/// The same while no other job waits, at most: so long a job that comes waits for the first closing. A stream that has no work
/// waits until the longest of the others has done a part of its own, so a program of many streams that never waits for its GPU
/// needs some seconds.
const MOST_ALONE: Duration = Duration::from_secs(4);
/// Such a part of the time for which none has waited; and where the gate was opened again, for one that only pauses is there, and comes
/// back soon.
const OF_TIME_ALONE: u32 = 2;
const OF_PAUSE: u32 = 8;
/// Not before it is so many times the span is more under way than while other jobs wait.
const LONG_ALONE: u32 = 2;
/// Work that is ahead by so much while calls are not counted, and no other job waits, is far ahead.
const FAR_ALONE: Duration = Duration::from_secs(1);
/// Between two looks while the gate is metered, at least.
const LOOK: Duration = Duration::from_millis(1);
/// The same where few calls are under way that may all be short.
const LOOK_AT_UNEVEN: Duration = Duration::from_micros(250);
/// Between two looks at the open gate while no other job waits; and while there are marks then, or calls are made.
const LOOK_ALONE: Duration = Duration::from_millis(250);
pub const LOOK_AT_MARKS: Duration = Duration::from_millis(20);
/// So many times as much may be under way while a boundary is waited for, which comes sooner then.
const TO_BOUNDARY: u32 = 8;
/// So many times as much may be at once when no other job waits any more.
const ALONE: u32 = 2;
/// The most calls in a window. The driver has room for a few more in each stream, which marks need.
pub const MOST: u64 = 896;
/// So few calls do not take very long though they take longer than those before.
const FEW: u64 = 64;
/// Two, so that the GPU has work while it is seen that the first has ended.
const LEAST: u64 = 2;
/// Where each takes longer than such a part of [`SPAN`], and another job waits, or pauses, it waits for a look only.
const ONE: u64 = 1;
const OF_SPAN: u32 = 4;
/// A call that takes no longer is short.
const SHORT: Duration = Duration::from_micros(100);
/// As many calls as take no longer are little beside a closing, if they are so many at least, and no more than so many.
const LITTLE: Duration = Duration::from_millis(320);
const FEWEST_LITTLE: u32 = 8;
const MOST_LITTLE: u32 = 64;
/// So many short ones may be under way where that is seen.
const SHORT_CALLS: u64 = 32;
/// So many calls are between two marks where it is only seen how far ahead they are. The longer no other job waits the more
/// there are: twice as many after each of so many seconds.
const SPACING: u64 = CALLS_BETWEEN_DUE;
const SPACED: [u64; 4] = [2, 4, 8, 16];
/// A part of a window, at least: so few calls are granted at first.
const FIRST: u32 = 1;
/// So many times the window may grow at a mark.
const GROWTH: u64 = 2;
/// A window is granted in so many parts, with a mark behind each.
const MARKS: u64 = 8;
/// While other jobs wait it is granted in so many, of which so few are under way at most, for calls may take longer than those before;
/// but a part lasts for so many looks, or the GPU would wait for calls.
const FINE: u64 = 32;
const PARTS: u64 = 3;
const LOOKS_OF_PART: u32 = 2;
/// While a part of a window ends it is looked so often.
const PART_LOOKS: u32 = 2;
/// Work that is ahead by such a part of the span says how much the window holds, though calls are not counted.
const DEEP: u32 = 2;
/// If calls are held and no mark is passed for so long some go, and more each time so long after that.
const PATIENCE: Duration = Duration::from_millis(2500);
const STEP: Duration = Duration::from_secs(1);
/// So many times as long where calls are made meanwhile whose work begins at once.
const MOST_PATIENT: u32 = 4;
/// Work that ends so soon after calls that were let go waited for these.
pub const SOON: Duration = Duration::from_millis(20);
/// What takes longer than is known takes longer by such a part, most likely.
const MARGIN: u32 = 8;
/// Calls that take so many times as long as those before are not expected.
const MUCH_LONGER: u32 = 8;
/// They are in so many turns then; twice as many each time, up to so often.
const UNEVEN_TURNS: u32 = 8;
/// Where work waits calls are not counted in so many turns; twice as many each time, so often at most.
const FREE: u32 = 8;
const MOST_DOUBLED: u32 = 6;
/// Work that is ahead by so much is not likely to wait for other work.
const FAR: Duration = Duration::from_secs(2);
/// For so long other jobs are thought to wait, until it is known that none does.
const GRACE: Duration = Duration::from_millis(20);
/// So many calls are taken to end in [`SPAN`] where nothing is known; and while no other job waits, so that a program of value
/// waits is held little, or where something is.
const UNKNOWN: u64 = 10;
const UNKNOWN_ALONE: u64 = 50;
const KNOWN_ALONE: u64 = 10;

/// As many calls as the GPU ends.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// In [`SPAN`].
    calls: u64,
    /// How many there were until then is told.
    told: Instant,
}

impl Pace {
    fn new(calls: u64) -> Self {
        Self { calls, told: Instant::now() }
    }

    /// How many calls the GPU has ended since this was asked last.
    pub fn calls(&mut self) -> u32 {
        let ended = u128::from(self.calls) * self.told.elapsed().as_nanos() / SPAN.as_nanos();
        let ended = u32::try_from(ended).unwrap_or(u32::MAX).min(u32::try_from(MOST).unwrap_or(u32::MAX));
        if ended > 0 {
            self.told = Instant::now();
        }
        ended
    }
}

/// More calls than the window has room for, step by step: work may wait for them.
#[derive(Clone, Copy)]
struct Excess {
    /// So many, so far.
    calls: u64,
    /// When they become more.
    next: Instant,
}

impl Excess {
    fn new() -> Self {
        Self { calls: 0, next: Instant::now() }
    }

    /// By half each time. How many more calls go: few, for where work only takes seconds each takes as long again.
    fn grow(&mut self) -> u64 {
        let more = (self.calls / 2).max(1);
        self.calls += more;
        self.next = Instant::now() + STEP;
        more
    }
}

/// Calls that took much longer than those before.
#[derive(Clone, Copy)]
struct Uneven {
    /// How long each did.
    each: Duration,
    /// In so many turns they are expected to.
    turns: u32,
    /// So many there were the last time.
    most_turns: u32,
}

/// What is done in this turn.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// Calls are counted once that is needed.
    #[default]
    Begun,
    /// They are so short that it is enough to see how far [ahead](crate::ahead) they are.
    Short,
    /// Calls have been counted since then.
    Metered(Instant),
    /// Calls are not counted.
    Free,
}

/// Whether functions on the host have waited for calls that were held, while no other job waits. Of graphs that call some it is not seen:
/// each launch of one is many calls, and adds as many functions that wait.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Loose {
    #[default]
    No,
    /// They have: so many may be under way.
    Up(u64),
    /// Work was far ahead then: not any more.
    TooFar,
}

/// What is known of work that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// How long it most likely takes still, as far as its calls take as long as others.
    pub rest: Duration,
    /// So many more calls would be little.
    pub more: u32,
}

/// See the module.
pub struct Window {
    /// So many calls take [the span](Self::span).
    calls: u64,
    /// How long a call takes on the GPU, as far as it is known.
    each: Option<Duration>,
    /// Calls have taken much longer than those before.
    uneven: Option<Uneven>,
    /// What was under way did not end in one closing, though it went on.
    is_late: bool,
    /// While no other job waits: so far ahead is work that calls are to be counted.
    is_far_alone: bool,
    /// More may be under way for functions on the host.
    loose: Loose,
    /// So many times as much may be under way now.
    times: u32,
    /// Where it is not known how many are under way so many are added.
    blind: Option<Pace>,
    /// That was so in this turn.
    was_blind: bool,
    /// Since when all that were granted have been made, and no mark was passed.
    used_up: Option<Instant>,
    /// That is so for long.
    excess: Option<Excess>,
    /// When a call was seen to have been made, and how many had been.
    made: (Instant, u64),
    turn: Turn,
    /// Other jobs waited when that was heard last.
    was_contended: bool,
    /// None did when it was looked last, since that time.
    alone: Option<Instant>,
    /// The pace at which calls go while the gate is ajar, if they are counted.
    ajar: Option<Pace>,
    /// So often the gate was opened, and when it was last.
    opened: u64,
    opened_at: Instant,
    /// In so many turns calls are not counted.
    free_turns: u32,
    /// So often work waited for calls that were held.
    given_up: u32,
    /// Since the last time work was seen to be far ahead.
    was_far: bool,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            calls: LEAST,
            each: None,
            uneven: None,
            is_late: false,
            is_far_alone: false,
            loose: Loose::No,
            times: 1,
            blind: None,
            was_blind: false,
            used_up: None,
            excess: None,
            made: (Instant::now(), 0),
            turn: Turn::Begun,
            // Else all that the driver has room for would be under way before it is known.
            was_contended: true,
            alone: None,
            ajar: None,
            opened: 0,
            opened_at: Instant::now(),
            free_turns: 0,
            given_up: 0,
            was_far: false,
        }
    }
}

impl Window {
    /// Opens the gate. If other jobs waited before, or it is not known yet, they most likely do now.
    pub fn open(&mut self, process: &'static Process) {
        (self.turn, self.times, self.blind, self.used_up) = (Turn::Begun, 1, None, None);
        (self.was_blind, self.excess) = (false, None);
        self.opened += 1;
        self.opened_at = Instant::now();
        self.set_alone(false);
        if let Some(uneven) = &mut self.uneven {
            uneven.turns = uneven.turns.saturating_sub(1);
        }
        self.tell_what_goes_besides(process);
        process.ahead.begin_anew();
        if (self.was_contended || self.is_long_beside_pauses()) && self.begin() {
            GATE.open_metered();
            self.look(process, true);
        } else {
            self.watch_open_gate(process);
            GATE.open();
        }
    }

    /// Which calls go without a grant from now on.
    /// The gate is about to be ajar: so many calls may go at first.
    pub fn begin_ajar(&mut self) -> u32 {
        self.ajar = self.counts_calls().then(|| self.pace());
        self.room_ajar()
    }

    /// How many calls may go at once while the gate is ajar.
    fn room_ajar(&self) -> u32 {
        self.ajar.map_or(u32::MAX, |_| u32::try_from(self.room()).unwrap_or(u32::MAX))
    }

    fn tell_what_goes_besides(&self, process: &Process) {
        keep_batches_small(self.expected_uneven().is_some());
        process.value_waits.let_what_is_behind_go(self.is_alone());
    }

    /// So many calls that are counted are under way, at most.
    pub fn under_way(&self, process: &Process) -> u64 {
        let mut ahead = process.ahead.lock();
        if self.is_limited_by_marks() {
            ahead.hand_over(process, self.spacing());
        }
        let under_way = Calls::now(process).counted_since(ahead.marks.passed());
        debug!("at most {under_way} calls are under way, {} may be", self.room());
        under_way
    }

    /// How long the GPU most likely takes for the rest of so many calls that are under way, as far as it is known: it has gone on for so
    /// long since it passed the last mark, but not before the gate was opened.
    pub fn rest_of(&self, calls: u64, still_for: Duration) -> Duration {
        let rest = self.time_of(calls).saturating_sub(self.had(calls, still_for));
        rest + rest / MARGIN
    }

    /// For how long the GPU has been at so many calls, at most: since it passed the last mark, but not before the gate was opened.
    pub fn had(&self, calls: u64, still_for: Duration) -> Duration {
        if calls > 0 { still_for.min(self.opened_at.elapsed()) } else { Duration::ZERO }
    }

    /// Whether so many calls take little longer than they should, most likely: not more than there is room for, as was
    /// submitted while no other job waited, nor so many that they take very long if they are not like those before.
    pub fn is_little(&self, calls: u64) -> bool {
        calls <= self.room().min(FEW)
    }

    /// So many calls were under way when the gate was closed and ended in that time, with nothing let through.
    pub fn note_ended(&mut self, calls: u64, took: Duration) {
        if took >= SPAN && calls > 0 {
            self.calls = self.note_each(calls, took).clamp(LEAST, MOST);
        }
    }

    /// The same, and not all ended in that time, though they went on: they take longer than was known, or there are many. The next
    /// closing adds none to them.
    pub fn note_late(&mut self, calls: u64, took: Duration) {
        self.is_late = true;
        let least = took / u32::try_from(calls).unwrap_or(u32::MAX).max(1);
        if self.each.is_none_or(|each| each < least) {
            self.calls = self.note_each(calls.max(1), took).clamp(LEAST, MOST);
        }
    }

    /// Whether that was so at the last closing.
    pub fn take_late(&mut self) -> bool {
        std::mem::take(&mut self.is_late)
    }

    /// So many calls took so long. As many as take the span.
    fn note_each(&mut self, calls: u64, took: Duration) -> u64 {
        let each = took / u32::try_from(calls).unwrap_or(u32::MAX);
        let is_much_longer = self.each.replace(each).is_some_and(|before| each > before * MUCH_LONGER);
        if is_much_longer && took >= SPAN && !self.is_alone() {
            debug!("{calls} calls took {took:?}, much longer than those before: others may, too");
            let before = self.uneven.map_or(0, |uneven| uneven.most_turns);
            let turns = (before * 2).clamp(UNEVEN_TURNS, UNEVEN_TURNS << MOST_DOUBLED);
            self.uneven = Some(Uneven { each, turns, most_turns: turns });
        }
        self.how_many_fit(calls, took)
    }

    /// As many calls as take the span, where so many take so long.
    fn how_many_fit(&self, calls: u64, time: Duration) -> u64 {
        let fits = u128::from(calls) * self.span().as_nanos() / time.as_nanos().max(1);
        u64::try_from(fits).unwrap_or(u64::MAX)
    }

    /// Whether calls are counted in this turn, or would be if other jobs waited.
    pub fn counts_calls(&self) -> bool {
        self.turn != Turn::Free
    }

    /// Whether calls were so short in this turn that they are not counted: they may have become longer.
    pub fn are_calls_short(&self) -> bool {
        self.turn == Turn::Short
    }

    /// What is known of so many calls that are under way, if calls are known to be so short that a few more are little beside a closing.
    /// None ever took much longer than those before it.
    pub fn expect(&self, calls: u64, still_for: Duration) -> Option<Expected> {
        let each = self.each.filter(|_| self.uneven.is_none())?;
        let fits = LITTLE.as_nanos() / each.as_nanos().max(1);
        let more = u32::try_from(fits).unwrap_or(u32::MAX).min(MOST_LITTLE);
        (more >= FEWEST_LITTLE).then(|| Expected { rest: self.rest_of(calls, still_for), more })
    }

    /// Whether other jobs wait, from now on. Behind a closed gate it is not asked, but closed it is for them.
    pub fn set_contended(&mut self, is_contended: bool) {
        self.was_contended = is_contended || !GATE.is_open();
    }

    /// Work ended in a closing in which so many calls were let through, though it had waited for them. Where these are few, or as many may
    /// be under way, it waits for none in a turn that is held. Where calls are not counted it comes to be far ahead, and waits for as much.
    pub fn note_helped(&mut self, let_through: u32) {
        if u64::from(let_through) > self.room().max(FEW) {
            self.give_up();
        }
    }

    /// Work waited for calls that were held.
    fn give_up(&mut self) {
        debug!("work waits for calls that are held: they are not counted in the next turns");
        self.free_turns = FREE << self.given_up.min(MOST_DOUBLED);
        self.given_up += 1;
        self.was_far = false;
    }

    /// The pace at which the GPU ends calls.
    pub fn pace(&self) -> Pace {
        Pace::new(match self.each {
            None if self.is_alone() => UNKNOWN_ALONE,
            None => UNKNOWN,
            Some(_) if self.is_alone() => self.in_short_span().max(KNOWN_ALONE),
            Some(_) => self.calls,
        })
    }

    /// How long a call takes, as far as it is known.
    pub fn time_of_call(&self) -> Option<Duration> {
        self.each
    }

    /// How long two calls take, as far as it is known.
    pub fn time_of_least(&self) -> Duration {
        self.time_of(LEAST)
    }

    /// The same of so many.
    pub fn time_of(&self, calls: u64) -> Duration {
        self.each.unwrap_or_default().saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX))
    }

    /// When to look again, at the latest, if no order comes; `tick`: other jobs wait, and then it is looked so often anyway.
    pub fn pause(&self, process: &Process, tick: Option<Duration>) -> Duration {
        let own = if GATE.is_ajar() && self.ajar.is_some() {
            LOOK_AT_MARKS
        } else if GATE.is_metered() {
            // Most of what a program does before its first calls takes long.
            let is_idle = tick.is_none() && self.made.1 == 0 && GATE.credit() == Some(FIRST);
            let part = self.time_of_part().min(LOOK_AT_MARKS);
            // Each look lets calls go on, also those whose work would begin at once.
            let holds_calls = self.blind.is_some() || self.used_up.is_some();
            match (is_idle, holds_calls) {
                (true, _) => LOOK_AT_MARKS,
                _ if self.expected_uneven().is_some() => LOOK_AT_UNEVEN,
                (_, true) => LOOK,
                _ => LOOK.max(part / PART_LOOKS),
            }
        } else if tick.is_some() || !GATE.is_open() {
            Duration::MAX
        } else if process.ahead.lock().has_no_marks() && self.made.0.elapsed() >= LOOK_ALONE {
            LOOK_ALONE
        } else {
            LOOK_AT_MARKS
        };
        tick.map_or(own, |tick| tick.min(own))
    }

    /// So many calls are granted at once.
    fn part(&self) -> u64 {
        let room = self.room();
        let part = if self.is_long_alone() {
            room / MARKS
        } else {
            let looks = (LOOK * LOOKS_OF_PART).as_nanos();
            let least = self.each.map_or(0, |each| looks / each.as_nanos().max(1));
            (room / MARKS).min((room / FINE).max(u64::try_from(least).unwrap_or(u64::MAX)))
        };
        part.max(FIRST.into())
    }

    /// How long the GPU takes for a part of what may be under way, as far as it is known.
    fn time_of_part(&self) -> Duration {
        self.time_of(self.part())
    }

    /// Whether calls are so short that it is enough to see how far [ahead](crate::ahead) they are. Those that went at a pace are taken
    /// to be.
    fn is_short(&self) -> bool {
        let are_short = self.each.is_some_and(|each| each <= SHORT);
        self.was_blind && self.room() >= MOST || are_short && self.calls >= SHORT_CALLS
    }

    /// Whether a job that only pauses may come back soon, as one did before, and calls are not short.
    fn is_long_beside_pauses(&self) -> bool {
        self.opened > 1 && !self.is_long_alone() && self.each.is_some_and(|each| each > SHORT)
    }

    /// So many calls may be under way.
    fn room(&self) -> u64 {
        let (times, span) =
            if self.is_alone() { (ALONE, self.span()) } else { (self.times, SPAN * self.times) };
        // Of calls that may take seconds no more are added.
        let fits = self.each.map_or(0, |each| span.as_nanos() / each.as_nanos().max(1));
        let fits = u64::try_from(fits).unwrap_or(u64::MAX).clamp(self.calls, self.calls * u64::from(times));
        let uneven = self.expected_uneven().map(|uneven| uneven.each);
        let few = uneven.map_or(MOST, |each| (SPAN.as_nanos() / each.as_nanos().max(1)) as u64);
        let is_long = !self.is_long_alone() && uneven.max(self.each) >= Some(SPAN / OF_SPAN);
        if is_long { ONE } else { fits.min(few.clamp(LEAST, MOST)) }
    }

    /// Calls of other lengths, if such are expected in this turn, and another job waits.
    fn expected_uneven(&self) -> Option<Uneven> {
        self.uneven.filter(|uneven| uneven.turns > 0 && !self.is_alone())
    }

    /// Work may be under way that takes so long.
    pub fn span(&self) -> Duration {
        let part = if self.opened > 1 { OF_PAUSE } else { OF_TIME_ALONE };
        let alone = |since: Instant| (since.elapsed() / part).clamp(SPAN, MOST_ALONE);
        self.alone.map_or(SPAN, alone)
    }

    fn is_alone(&self) -> bool {
        self.alone.is_some()
    }

    /// So long that more may be under way than while other jobs wait: one that only pauses would have come back.
    fn is_long_alone(&self) -> bool {
        self.span() > SPAN * LONG_ALONE
    }

    /// How many of the calls that take [the span](Self::span) take [`SPAN`].
    fn in_short_span(&self) -> u64 {
        self.calls * SPAN.as_millis() as u64 / self.span().as_millis() as u64
    }

    /// Whether no other job waits. How many calls fit the longer span is not concluded from the shorter one, which may have been
    /// that of other calls.
    fn set_alone(&mut self, is_alone: bool) {
        if self.is_alone() && !is_alone {
            self.calls = self.in_short_span().max(LEAST);
        }
        if !is_alone {
            self.loose = Loose::No;
        }
        self.alone = is_alone.then(|| self.alone.unwrap_or_else(Instant::now));
        host_functions::watch(GATE.is_metered() || self.span() < MOST_ALONE);
    }

    /// The same as a [look](Self::look) while a boundary is waited for, or a wait for the GPU: when again, at the latest.
    pub fn look_before_closing(&mut self, process: &'static Process, is_for_wait: bool) -> Duration {
        self.times = if is_for_wait { 1 } else { TO_BOUNDARY };
        self.look(process, true);
        if GATE.is_metered() { LOOK } else { Duration::MAX }
    }

    /// No call is held any more in this turn.
    pub fn release(&mut self, process: &Process) {
        self.end(Turn::Free, process);
    }

    /// Counts what has ended, and grants more calls.
    pub fn look(&mut self, process: &'static Process, is_contended: bool) {
        self.look_now(process, is_contended);
        self.watch_open_gate(process);
    }

    /// Where calls that go through the open gate may be followed by longer ones it is seen how far they are ahead.
    fn watch_open_gate(&self, process: &Process) {
        let spacing = if self.is_limited_by_marks() { self.spacing() } else { 0 };
        process.ahead.watch(spacing, self.alone.map(|_| self.span()));
    }

    fn is_limited_by_marks(&self) -> bool {
        matches!(self.turn, Turn::Begun | Turn::Short)
    }

    /// So many calls are between two marks in a stream.
    fn spacing(&self) -> u64 {
        let alone = self.alone.map_or(0, |since| since.elapsed().as_secs());
        SPACED.iter().filter(|time| alone >= **time).fold(SPACING, |spacing, _| 2 * spacing)
    }

    fn look_now(&mut self, process: &'static Process, is_contended: bool) {
        if GATE.is_ajar() {
            // Marks are not looked at: the next ones go when as many have ended, most likely.
            let calls = self.ajar.as_mut().map_or(0, Pace::calls);
            return GATE.grant_ajar(calls, self.room_ajar());
        }
        let mut ahead = process.ahead.lock();
        ahead.forget_passed();
        let full_for = ahead.full_for();
        let is_held_long = self.is_limited_by_marks() && full_for >= LOOK_AT_MARKS;
        if is_held_long {
            ahead.hand_over(process, self.spacing());
        }
        let marks = &mut ahead.marks;
        let passed = marks.take_passage();
        let calls = Calls::now(process);
        if calls.all != self.made.1 {
            self.made = (Instant::now(), calls.all);
        }
        if let Some(passage) = passed {
            self.learn(&passage);
            self.used_up = None;
            if self.excess.take().is_some() && self.made.0.elapsed() < SOON {
                self.give_up();
                self.end(Turn::Free, process);
            }
        }
        if process.contexts.is_one_leaving() {
            ahead.let_go();
        }
        let marks = &mut ahead.marks;
        if !GATE.is_open() {
            return;
        }
        // It is not known at first that other jobs wait.
        let is_new = matches!(self.turn, Turn::Metered(since) if since.elapsed() < GRACE);
        let is_alone = !is_contended && !is_new;
        self.set_alone(is_alone);
        self.tell_what_goes_besides(process);
        if is_held_long {
            debug!("calls have become longer: some were held for {LOOK_AT_MARKS:?}");
            (self.calls, self.was_blind, self.is_far_alone) = (LEAST, false, true);
        }
        let is_short = self.is_short();
        // Beside a value wait nothing limits what goes through the open gate.
        let is_limited = is_alone || !process.value_waits.any();
        let is_needed = match self.turn {
            Turn::Begun => !is_alone || (self.is_far_alone || self.is_long_beside_pauses()) && !is_short,
            Turn::Short => !is_limited || self.is_far_alone,
            Turn::Metered(_) | Turn::Free => false,
        };
        if is_needed && self.begin() {
            GATE.meter();
        } else if is_short && is_limited && !self.is_loose() && matches!(self.turn, Turn::Metered(_)) {
            self.end(Turn::Short, process);
        }
        if is_alone && !GATE.is_metered() {
            marks.set(process);
        }
        let Some(credit) = GATE.credit() else { return };
        let marked = marks.marked();
        let (all, new) = (calls.all.saturating_sub(marked.all), calls.counted_since(marked));
        // Those that go besides are marked as seldom as others.
        let is_last = credit == 0 && self.used_up.is_none();
        let is_mark_due = all > 0 && marks.is_empty() || new > 0 && (is_last || new >= self.part());
        let is_full = || credit == 0 && GATE.count_waiting(Role::Waits) > 0;
        // Those of a thread that captures count as captured, whatever their streams: that there are none says nothing.
        let captures = credit == 0 && process.captures.any();
        let is_unmarked = captures || is_mark_due && !marks.set_now(process, is_full());
        // None can be set that would be passed before others.
        let is_unknown = marks.is_empty() && !marks.has_room();
        if is_unknown && is_alone {
            return self.end(Turn::Begun, process);
        }
        // What is submitted waits for what is not.
        let is_blind = is_unmarked || is_unknown || process.value_waits.any();
        let still = self.used_up.map(|since| since.elapsed()).unwrap_or_default();
        let mut host = process.host_functions.lock();
        host.set_alone(is_alone);
        let (is_due, is_trying) = (host.due(still).others, host.is_trying());
        let only_sleep = host.only_sleep();
        drop(host);
        let may_wait = host_functions::may_wait(still) || still >= SPAN.max(self.time_of_least());
        GATE.go_by_streams(is_blind || may_wait);
        if is_blind {
            self.was_blind = true;
            let pace = self.pace();
            let calls = self.blind.get_or_insert(pace).calls();
            // Beside a capture calls go by marks of their own.
            if process.captures.any() && !process.value_waits.any() {
                if full_for < PATIENCE {
                    self.excess = None;
                } else {
                    self.exceed(full_for);
                }
                return GATE.look_again(0);
            }
            return GATE.look_again(if u64::from(credit) < self.calls { calls } else { 0 });
        }
        self.blind = None;
        let is_used_up = credit == 0 || self.excess.is_some() || is_trying;
        self.used_up = is_used_up.then(|| self.used_up.unwrap_or_else(Instant::now));
        // A stream's work may have ended.
        if may_wait || is_used_up {
            GATE.look_again(0);
        }
        // What goes besides may end what work waits for.
        let waiting = GATE.count_waiting(Role::Waits);
        let is_quiet = self.made.0.elapsed() >= SPAN && waiting > 0;
        let patience = PATIENCE.max(self.time_of_least() * 2);
        let patience = if is_quiet { patience } else { patience * MOST_PATIENT };
        let is_due = is_due && credit == 0 && waiting > 0;
        if still >= patience {
            self.exceed(still);
        } else if is_due && is_alone && self.loose == Loose::No && !only_sleep && !do_graphs_call() {
            debug!(
                "no work has ended for {still:?}, nor has a function on the host: as many calls go as take {MOST_ALONE:?}"
            );
            self.loose = Loose::Up(0);
        } else if is_due {
            let calls = process.host_functions.lock().begin_try() * waiting;
            debug!("no work has ended for {still:?}, nor has a function on the host: {calls} calls more go");
            return GATE.grant(calls);
        }
        self.grant(calls, credit, marks);
    }

    fn is_loose(&self) -> bool {
        matches!(self.loose, Loose::Up(_))
    }

    /// How many calls may be under way where functions on the host wait for some: as many as take no longer than may be while no
    /// other job waits, as far as was known at any time since then, for that gets longer where they wait; and no more than the threads'
    /// streams take. What a thread submits under a lock which they need is not held then.
    fn loosen(&mut self) -> Option<u64> {
        let Loose::Up(before) = self.loose else { return None };
        let fits = self.each.map_or(0, |each| MOST_ALONE.as_nanos() / each.as_nanos().max(1));
        let room = u64::try_from(fits)
            .unwrap_or(u64::MAX)
            .min(MOST * Record::count_all())
            .max(before)
            .max(self.room());
        self.loose = Loose::Up(room);
        Some(room)
    }

    /// Grants what the window has room for, of which so many are left: in parts, so that there are marks between them.
    fn grant(&mut self, calls: Calls, credit: u32, marks: &Marks) {
        if let Some(room) = self.loosen() {
            let room = room.saturating_sub(calls.counted_since(marks.passed()));
            return GATE.grant(u32::try_from(room).unwrap_or(u32::MAX).saturating_sub(credit));
        }
        let (room, part) = (self.room(), self.part());
        let under_way = if self.is_long_alone() { room } else { room.min(part * PARTS) };
        // Without room for a mark behind the next part it comes when one is passed.
        let unmarked = if marks.has_room() { 0 } else { calls.counted_since(marks.marked()) };
        let room = under_way.saturating_sub(calls.counted_since(marks.passed()));
        let room = room.min(part.saturating_sub(unmarked));
        GATE.grant(u32::try_from(room).unwrap_or(u32::MAX).saturating_sub(credit));
    }

    /// For so long no mark was passed, and all calls that were granted have been made: work may wait for more.
    fn exceed(&mut self, still: Duration) {
        let excess = self.excess.get_or_insert_with(Excess::new);
        if GATE.credit() == Some(0) && GATE.count_waiting(Role::Waits) > 0 && Instant::now() >= excess.next {
            let more = excess.grow();
            debug!("no work has ended for {still:?}: {more} calls more go, in case it waits for them");
            GATE.grant(u32::try_from(more).unwrap_or(u32::MAX));
        }
    }

    /// Whether calls are counted from now on in this turn.
    fn begin(&mut self) -> bool {
        let is_free = self.given_up > 0 && (self.free_turns > 0 || !self.was_far);
        self.free_turns = self.free_turns.saturating_sub(1);
        if is_free {
            self.turn = Turn::Free;
            return false;
        }
        debug!("calls are counted: {} may be under way, at first", self.room());
        self.is_far_alone = false;
        self.turn = Turn::Metered(Instant::now());
        true
    }

    /// Calls go through the open gate from then on: how far ahead they are is seen before the first one goes.
    fn end(&mut self, turn: Turn, process: &Process) {
        self.turn = turn;
        if GATE.is_metered() {
            debug!("calls are not counted any more: {} could be under way", self.calls);
            self.watch_open_gate(process);
            GATE.unmeter();
        }
    }

    /// As many calls as take the span, as this mark says; the window shrinks and grows with measure.
    fn learn(&mut self, passage: &Passage) {
        let is_metered = matches!(self.turn, Turn::Metered(_));
        self.was_far |= !is_metered && passage.age >= FAR;
        self.is_far_alone |= !is_metered && passage.age >= self.span().max(FAR_ALONE);
        if self.is_loose() && passage.age >= MOST_ALONE {
            self.loose = Loose::TooFar;
        }
        if passage.calls == 0 || !is_metered && passage.age < SPAN / DEEP {
            return;
        }
        let fits = self.note_each(passage.calls, passage.took);
        // One stream may have most of them.
        let fits = if is_metered { fits.min(self.how_many_fit(self.calls, passage.age)) } else { fits };
        // What was not used up says nothing of a larger one.
        let most = if is_metered && !passage.is_full { self.calls } else { self.calls * GROWTH };
        self.calls = fits.clamp(self.calls / 2, most).clamp(LEAST, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_job_is_alone_the_further_ahead_its_work_may_be() {
        let span_after = |seconds, opened| {
            let alone = Some(Instant::now() - Duration::from_secs(seconds));
            Window { alone, opened, ..Window::default() }.span().as_millis() / 100
        };
        assert_eq!([0, 1, 6, 100].map(|seconds| span_after(seconds, 1)), [1, 5, 30, 40]);
        assert_eq!([0, 4, 24, 100].map(|seconds| span_after(seconds, 2)), [1, 5, 30, 40], "others pause");
        assert_eq!(Window::default().span(), SPAN, "it is not alone");
    }

    #[test]
    fn one_long_call_is_under_way_where_others_pause_and_two_where_none_has_come_for_long() {
        let room_after = |pause, opened, each| {
            let alone = Some(Instant::now() - pause);
            let window = Window { alone, opened, each: Some(each), ..Window::default() };
            (window.is_long_beside_pauses(), window.room())
        };
        let long = SPAN / OF_SPAN;
        assert_eq!(room_after(SPAN, 2, long), (true, ONE));
        assert!(!room_after(SPAN, 2, SHORT).0, "so short ones go through the open gate");
        assert!(!room_after(SPAN, 1, long).0, "none has come yet");
        let (counts, room) = room_after(SPAN * 100, 2, long);
        assert!(!counts && room > ONE);
    }

    #[test]
    fn where_it_is_not_known_how_long_calls_take_few_are_under_way_alone_or_before_a_boundary() {
        let (times, alone) = (TO_BOUNDARY, Some(Instant::now() - SPAN * 30));
        let room = |each, alone| Window { times, alone, each, ..Window::default() }.room();
        assert_eq!([room(None, alone), room(None, None)], [LEAST; 2]);
        assert_eq!([room(Some(SHORT), alone), room(Some(SHORT), None)], [2 * LEAST, 8 * LEAST]);
    }

    #[test]
    fn for_functions_on_the_host_as_many_calls_go_as_take_no_longer_than_may_be_under_way_alone() {
        Record::of_thread_or_new();
        let each = |ms| Some(Duration::from_millis(ms));
        let mut window = Window { each: each(20), turn: Turn::Metered(Instant::now()), ..Window::default() };
        assert_eq!(window.loosen(), None);
        window.loose = Loose::Up(0);
        assert_eq!(window.loosen(), Some(200));
        window.each = each(10);
        assert_eq!(window.loosen(), Some(400));
        window.each = each(1000);
        assert_eq!(window.loosen(), Some(400), "it is thought to take long where it waits");
        let far = |age| Passage { age, calls: 1, took: SPAN, is_full: false };
        window.learn(&far(MOST_ALONE - SPAN));
        assert!(window.is_loose());
        window.learn(&far(MOST_ALONE));
        assert_eq!((window.loosen(), window.loose == Loose::TooFar), (None, true), "calls take too long");
    }

    #[test]
    fn what_is_under_way_has_gone_on_since_the_gate_was_opened_and_no_longer() {
        let opened_at = Instant::now() - SPAN * 10;
        let window = Window { each: Some(SPAN * 50), opened_at, ..Window::default() };
        let [short, long] = [SPAN * 2, SPAN * 30].map(|still_for| window.rest_of(2, still_for));
        assert_eq!(short, SPAN * 98 * 9 / 8);
        assert!(long > SPAN * 88, "another job ran before: {long:?}");
    }

    #[test]
    fn what_is_under_way_is_expected_to_end_where_calls_are_known_to_be_little() {
        let each = |each| Window { each, opened_at: Instant::now() - SPAN * 10, ..Window::default() };
        let expect = |window: Window| window.expect(8, Duration::ZERO);
        let (long, short) = (LITTLE / FEWEST_LITTLE, LITTLE / MOST_LITTLE);
        assert_eq!(expect(each(Some(long))), Some(Expected { rest: long * 9, more: FEWEST_LITTLE }));
        for each_takes in [short, short / 2] {
            let expected = Expected { rest: each_takes * 9, more: MOST_LITTLE };
            assert_eq!(expect(each(Some(each_takes))), Some(expected));
        }
        assert_eq!([expect(each(Some(long * 2))), expect(each(None))], [None; 2]);
        let uneven = Some(Uneven { each: SPAN, turns: 0, most_turns: 8 });
        assert_eq!(expect(Window { uneven, ..each(Some(short)) }), None, "others took long");
    }

    #[test]
    fn calls_that_went_at_a_closing_are_not_limited_in_turns_where_more_went_than_may_be_under_way() {
        let is_free = |calls, went| {
            let mut window = Window { calls, ..Window::default() };
            window.note_helped(went);
            window.given_up > 0
        };
        let few = FEW as u32;
        assert_eq!([few, few + 1].map(|went| is_free(LEAST, went)), [false, true]);
        assert_eq!([few * 4, few * 4 + 1].map(|went| is_free(FEW * 4, went)), [false, true]);
    }

    #[test]
    fn calls_that_have_not_ended_in_time_take_longer_than_was_known() {
        let mut window = Window { calls: 300, each: Some(SHORT), ..Window::default() };
        window.note_late(24, SPAN * 48);
        assert_eq!((window.each, window.room()), (Some(SPAN * 2), ONE));
        window.note_late(24, SPAN * 24);
        assert_eq!(window.each, Some(SPAN * 2), "as was known");
    }

    #[test]
    fn calls_that_took_much_longer_than_those_before_are_expected_to_for_some_turns() {
        let mut window = Window { calls: 300, each: Some(SPAN / 300), ..Window::default() };
        window.note_ended(30, SPAN * 150);
        // They are as short again.
        (window.calls, window.each) = (300, Some(SPAN / 300));
        assert_eq!(window.room(), ONE, "as if all took as long");
        window.uneven.as_mut().unwrap().turns = 0;
        assert_eq!(window.room(), 300);
        window.note_ended(30, SPAN * 150);
        assert_eq!(window.uneven.unwrap().turns, 2 * UNEVEN_TURNS, "longer each time");
    }
}
