//! Time as the engine knows it: whole microseconds since 1970.
//!
//! Microseconds and not nanoseconds, because the Lua twins compute in doubles: microseconds since
//! 1970 stay exact (below 2^53) until the year 2255. Algorithms never read a clock, they are told
//! the time; this file is the one place that reads it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::future::Future;
use std::ops::{Add, Sub};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment (since 1970) or a length of time, in whole microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    pub const ZERO: Micros = Micros(0);
    pub const MILLISECOND: Micros = Micros(1_000);
    pub const SECOND: Micros = Micros(1_000_000);
    pub const MINUTE: Micros = Micros(60 * Self::SECOND.0);
    pub const HOUR: Micros = Micros(60 * Self::MINUTE.0);
    pub const DAY: Micros = Micros(24 * Self::HOUR.0);
    /// The last moment that can be decided at, in the year 2253: what is reckoned from it, up to two
    /// of the longest periods, still fits a double exactly.
    pub const LAST: Micros = Micros((1 << 53) - 1 - 2 * 366 * Self::DAY.0);

    /// The wall clock of this machine.
    pub fn now() -> Micros {
        static CLOCK: LazyLock<WallClock> = LazyLock::new(WallClock::new);
        Micros(CLOCK.now_ns() / 1_000)
    }

    pub fn saturating_sub(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }

    /// Milliseconds, rounded up: a TTL must never end early.
    pub fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }
}

/// The wall clock, read through the CPU's cycle counter: less than half the price of asking the
/// system, and a check in memory is little more than reading the clock. The counter only bridges
/// the time between two looks at the system's clock.
struct WallClock {
    counter: quanta::Clock,
    start: u64,
    /// What the wall clock showed at `start`, by the latest look.
    wall_at_start_ns: AtomicU64,
    looked_at_ns: AtomicU64,
}

impl WallClock {
    /// Bounds how long a step of the system's clock goes unnoticed.
    const LOOK_EVERY_NS: u64 = 50_000_000;
    const MAX_PAUSE_NS: u64 = 20_000;

    fn new() -> WallClock {
        let counter = quanta::Clock::new();
        let start = counter.raw();
        let wall_at_start_ns = AtomicU64::new(system_ns());
        WallClock { counter, start, wall_at_start_ns, looked_at_ns: AtomicU64::new(0) }
    }

    fn now_ns(&self) -> u64 {
        let since_start = self.since_start_ns();
        if since_start.saturating_sub(self.looked_at_ns.load(Ordering::Relaxed))
            > Self::LOOK_EVERY_NS
        {
            self.look(since_start);
        }
        self.wall_at_start_ns.load(Ordering::Relaxed) + since_start
    }

    fn since_start_ns(&self) -> u64 {
        self.counter.delta_as_nanos(self.start, self.counter.raw())
    }

    #[cold]
    fn look(&self, before: u64) {
        let wall = system_ns();
        let after = self.since_start_ns();
        let since_look = before.saturating_sub(self.looked_at_ns.load(Ordering::Relaxed));
        // A thread that was put aside between the readings would set the clock by its pause.
        if after - before < Self::MAX_PAUSE_NS || since_look > 20 * Self::LOOK_EVERY_NS {
            self.wall_at_start_ns.store(wall.saturating_sub(after), Ordering::Relaxed);
            self.looked_at_ns.store(after, Ordering::Relaxed);
        }
    }
}

fn system_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

/// Time that passes only when everybody waits: it jumps to the next moment that somebody waits for.
/// `sim::executor` drives it, on one thread; nothing here depends on how fast the machine is.
#[derive(Debug)]
pub struct VirtualClock {
    now: AtomicU64,
    timers: Mutex<Timers>,
}

#[derive(Debug, Default)]
struct Timers {
    /// The earliest first; those of one moment in the order they were set.
    heap: BinaryHeap<Reverse<Timer>>,
    set: u64,
}

#[derive(Debug)]
struct Timer {
    at: Micros,
    order: u64,
    waker: Waker,
}

impl VirtualClock {
    pub fn starting_at(now: Micros) -> Arc<VirtualClock> {
        Arc::new(VirtualClock { now: AtomicU64::new(now.0), timers: Mutex::default() })
    }

    pub fn now(&self) -> Micros {
        Micros(self.now.load(Ordering::Relaxed))
    }

    /// Waits for a moment; one that has passed is there at once.
    pub fn sleep_until(self: &Arc<Self>, at: Micros) -> Sleep {
        Sleep { clock: self.clone(), at, is_set: false }
    }

    /// Goes on to the next moment that somebody waits for and wakes whoever does; false when nobody
    /// waits.
    pub fn advance(&self) -> bool {
        let mut timers = self.timers();
        let Some(Reverse(first)) = timers.heap.pop() else { return false };
        self.now.fetch_max(first.at.0, Ordering::Relaxed);
        let mut due = vec![first.waker];
        while timers.heap.peek().is_some_and(|Reverse(next)| next.at <= first.at) {
            due.extend(timers.heap.pop().map(|Reverse(timer)| timer.waker));
        }
        drop(timers);
        due.into_iter().for_each(Waker::wake);
        true
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`VirtualClock::sleep_until`].
#[derive(Debug)]
pub struct Sleep {
    clock: Arc<VirtualClock>,
    at: Micros,
    is_set: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.at {
            return Poll::Ready(());
        }
        if !self.is_set {
            let mut timers = self.clock.timers();
            timers.set += 1;
            let (at, order) = (self.at, timers.set);
            timers.heap.push(Reverse(Timer { at, order, waker: context.waker().clone() }));
            drop(timers);
            self.is_set = true;
        }
        Poll::Pending
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl Add for Micros {
    type Output = Micros;
    fn add(self, other: Micros) -> Micros {
        Micros(self.0 + other.0)
    }
}

impl Sub for Micros {
    type Output = Micros;
    fn sub(self, other: Micros) -> Micros {
        Micros(self.0 - other.0)
    }
}

impl From<Micros> for Duration {
    fn from(micros: Micros) -> Duration {
        Duration::from_micros(micros.0)
    }
}

impl fmt::Display for Micros {
    /// The shortest exact spelling that reads back: `1m`, `1h30m`, `1.5s`, `300us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0;
        if us < 1_000 {
            return write!(f, "{us}us");
        }
        if us < Self::SECOND.0 {
            return write_decimal(f, us, 1_000, "ms");
        }
        if us < Self::MINUTE.0 {
            return write_decimal(f, us, Self::SECOND.0, "s");
        }
        let mut rest = us;
        for (unit, name) in [(Self::DAY, "d"), (Self::HOUR, "h"), (Self::MINUTE, "m")] {
            if rest >= unit.0 {
                write!(f, "{}{name}", rest / unit.0)?;
                rest %= unit.0;
            }
        }
        if rest > 0 { write_decimal(f, rest, Self::SECOND.0, "s") } else { Ok(()) }
    }
}

fn write_decimal(f: &mut fmt::Formatter<'_>, us: u64, unit: u64, name: &str) -> fmt::Result {
    let (whole, rest) = (us / unit, us % unit);
    if rest == 0 {
        return write!(f, "{whole}{name}");
    }
    let digits = unit.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    write!(f, "{whole}.{}{name}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_is_what_the_system_says() {
        for _ in 0..1_000 {
            let before = system_ns() / 1_000;
            let now = Micros::now().0;
            let after = system_ns() / 1_000;
            // Between two looks the counter may stray by less than a millisecond.
            assert!(now + 1_000 >= before && now <= after + 1_000, "{before} {now} {after}");
        }
    }

    #[test]
    fn durations_are_spelled_short_and_exact() {
        for (us, text) in [
            (0, "0us"),
            (300, "300us"),
            (1_500, "1.5ms"),
            (999_999, "999.999ms"),
            (1_000_000, "1s"),
            (7_250_000, "7.25s"),
            (60_000_000, "1m"),
            (5_400_000_000, "1h30m"),
            (86_400_000_001, "1d0.000001s"),
            (604_800_000_000, "7d"),
        ] {
            assert_eq!(Micros(us).to_string(), text);
        }
    }
}
