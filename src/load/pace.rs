//! Waiting for a moment more exactly than timers of the system do: asleep until shortly before it,
//! then looking at the clock. Where others want the core as well, asleep until the moment itself:
//! who never sleeps is served last.

use std::io;
use std::time::Instant;

#[cfg(target_os = "linux")]
use mio::Interest;
use mio::{Registry, Token};

/// Within this of a moment nobody goes to sleep: waking takes about as long.
const SPIN_NS: u64 = 50_000;
/// Two looks at the clock that lie this far apart had somebody else between them.
const ROBBED_NS: u64 = 300_000;
/// How long nobody watches the clock after that.
const ASLEEP_NS: u64 = 500_000_000;

/// How close to a moment a worker sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watchfulness {
    asleep_until_ns: u64,
}

impl Watchfulness {
    /// So long before a moment it wakes and watches the clock.
    #[inline]
    pub fn margin_ns(self, now_ns: u64) -> u64 {
        if now_ns < self.asleep_until_ns { 0 } else { SPIN_NS }
    }

    /// It watched the clock, and these were two looks in a row.
    #[inline]
    pub fn looked(&mut self, before_ns: u64, after_ns: u64) {
        if after_ns - before_ns > ROBBED_NS {
            self.asleep_until_ns = after_ns + ASLEEP_NS;
        }
    }
}

/// Nanoseconds since a start that all workers share.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    #[inline]
    pub fn ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// A timer of the system that polls can wait for; exact to some ten microseconds, where those that
/// a poll has itself know milliseconds. Elsewhere than on Linux there is none, and the poll's is used.
#[derive(Debug)]
pub struct Alarm(#[cfg(target_os = "linux")] rustix::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Alarm {
    pub fn new() -> io::Result<Alarm> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Alarm(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    pub fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let fd = self.0.as_raw_fd();
        registry.register(&mut mio::unix::SourceFd(&fd), token, Interest::READABLE)
    }

    /// Rings once, after so many nanoseconds; false where it cannot.
    pub fn ring_in(&self, ns: u64) -> io::Result<bool> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let ns = ns.max(1);
        let once =
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let when = Itimerspec { it_interval: never, it_value: once };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &when)?;
        Ok(true)
    }
}

#[cfg(not(target_os = "linux"))]
impl Alarm {
    pub fn new() -> io::Result<Alarm> {
        Ok(Alarm())
    }

    pub fn register(&self, _: &Registry, _: Token) -> io::Result<()> {
        Ok(())
    }

    pub fn ring_in(&self, _: u64) -> io::Result<bool> {
        Ok(false)
    }
}

/// The processor's time that this thread has used.
pub fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
