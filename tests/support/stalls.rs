//! How long the machine itself stood still: a call cannot be blamed for that.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(1);

/// Control timers: threads that do nothing but sleep for a millisecond, and note when it took
/// longer.
pub(crate) struct Stalls {
    seen: Arc<Mutex<Vec<(Instant, Instant)>>>,
    done: Arc<AtomicBool>,
    timers: Vec<JoinHandle<()>>,
}

impl Stalls {
    pub(crate) fn watch() -> Stalls {
        let (seen, done) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let timer = |_| {
            let (seen, done) = (seen.clone(), done.clone());
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    std::thread::sleep(NAP);
                    if began.elapsed() > 2 * NAP {
                        seen.lock().unwrap().push((began + NAP, Instant::now()));
                    }
                }
            })
        };
        // One for each core of a small machine.
        let timers = (0..2).map(timer).collect();
        Stalls { seen, done, timers }
    }

    /// How much of the time from `began` to `ended` the control timers were late.
    pub(crate) fn between(&self, began: Instant, ended: Instant) -> Duration {
        let seen = self.seen.lock().unwrap();
        let within = |(from, to): &(Instant, Instant)| {
            (*to).min(ended).saturating_duration_since((*from).max(began))
        };
        seen.iter().map(within).sum()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.timers.drain(..).for_each(|timer| drop(timer.join()));
    }
}
