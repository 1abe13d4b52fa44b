//! How long the machine itself stood still during a live run: no limiter can be blamed for that.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::engine::clock::Micros;

const NAP: Micros = Micros::MILLISECOND;
/// Timers are this late on an idle machine, too.
pub(super) const USUAL: Micros = Micros(3 * Micros::MILLISECOND.0);
const MAX_TIMERS: usize = 4;
/// A machine that does nothing but stand still is known well enough by then.
const MAX_SEEN: usize = 1_000_000;

/// Moments of the wall clock.
type Seen = Arc<Mutex<Vec<Range<Micros>>>>;

/// Control timers, one for each core: threads that do nothing but sleep for a millisecond, and note
/// when it took longer.
#[derive(Debug)]
pub(super) struct Stalls {
    seen: Seen,
    is_over: Arc<AtomicBool>,
    timers: Vec<JoinHandle<()>>,
}

impl Stalls {
    pub(super) fn watch() -> Stalls {
        let (seen, is_over) = (Seen::default(), Arc::new(AtomicBool::new(false)));
        let timer = |_| {
            let (seen, is_over) = (seen.clone(), is_over.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let due = Micros::now() + NAP;
                    std::thread::sleep(NAP.into());
                    note(&seen, due..Micros::now());
                }
            })
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let timers = (0..cores.min(MAX_TIMERS)).map(timer).collect();
        Stalls { seen, is_over, timers }
    }

    /// Something that was due at the start of `late` happened only at its end.
    pub(super) fn note(&self, late: Range<Micros>) {
        note(&self.seen, late);
    }

    /// All of them, in the time of a run that began at `start`.
    pub(super) fn since(&self, start: Micros) -> Standstill {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let of_run =
            |late: &Range<Micros>| late.start.saturating_sub(start)..late.end.saturating_sub(start);
        Standstill::of(seen.iter().map(of_run).collect())
    }
}

fn note(seen: &Seen, late: Range<Micros>) {
    if late.end.saturating_sub(late.start) <= USUAL {
        return;
    }
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.len() < MAX_SEEN {
        seen.push(late);
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // It did nothing but sleep.
        self.timers.drain(..).for_each(|timer| drop(timer.join()));
    }
}

/// When a machine stood still: times that do not meet, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standstill(Vec<Range<Micros>>);

impl Standstill {
    pub(super) fn of(mut times: Vec<Range<Micros>>) -> Standstill {
        times.retain(|time| time.start < time.end);
        times.sort_by_key(|time| time.start);
        let mut merged: Vec<Range<Micros>> = Vec::new();
        for time in times {
            match merged.last_mut() {
                Some(last) if time.start <= last.end => last.end = last.end.max(time.end),
                _ => merged.push(time),
            }
        }
        Standstill(merged)
    }

    /// The same with what follows: what has queued up takes about as long to be answered.
    pub(super) fn with_aftermath(&self) -> Standstill {
        let longer = |time: &Range<Micros>| time.start..time.end + (time.end - time.start);
        Standstill::of(self.0.iter().map(longer).collect())
    }

    /// How much of the time between two moments it was.
    pub(super) fn within(&self, during: &Range<Micros>) -> Micros {
        let first = self.0.partition_point(|time| time.end <= during.start);
        let met = self.0[first..].iter().take_while(|time| time.start < during.end);
        let common = |time: &Range<Micros>| {
            time.end.min(during.end).saturating_sub(time.start.max(during.start)).0
        };
        Micros(met.map(common).sum())
    }

    pub(super) fn longest(&self) -> Micros {
        self.0.iter().map(|time| time.end - time.start).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(from: u64, to: u64) -> Range<Micros> {
        Micros(from * 1_000)..Micros(to * 1_000)
    }

    #[test]
    fn what_two_timers_saw_counts_once() {
        let still = Standstill::of(vec![ms(50, 60), ms(10, 20), ms(15, 30), ms(5, 5)]);
        assert_eq!(still.within(&ms(0, 100)), Micros(30_000));
        assert_eq!(still.within(&ms(18, 55)), Micros(17_000));
        assert_eq!(still.within(&ms(30, 50)), Micros::ZERO);
        assert_eq!(still.longest(), Micros(20_000));
        let queued = still.with_aftermath();
        assert_eq!(queued.within(&ms(0, 100)), Micros(60_000), "10 to 50, and 50 to 70");
    }

    #[test]
    fn a_timer_that_is_late_is_noted() {
        let stalls = Stalls::watch();
        let now = Micros::now();
        stalls.note(now..now + Micros(7_000));
        stalls.note(now..now + Micros(1_000));
        assert!(stalls.since(now).longest() >= Micros(7_000));
    }
}
