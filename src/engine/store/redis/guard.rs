//! The breaker of one server: who may call it, what became of the calls, and when to try again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::engine::breaker::{self, Breaker, State, Went};
use crate::engine::clock::Micros;
use crate::engine::policy;
use crate::engine::store::StoreError;

#[derive(Debug)]
pub(super) struct Guard {
    /// None: every call is made.
    breaker: Mutex<Option<Breaker>>,
    began: Instant,
    opened: Notify,
}

/// What a breaker does, to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerStatus {
    pub state: State,
    /// For how long.
    pub lasted: Micros,
    /// How often it has opened.
    pub opened: u64,
}

/// Leave to make one call. Dropped without a word, nothing was learned.
pub(super) struct Pass<'a> {
    guard: &'a Guard,
    pass: Option<breaker::Pass>,
    since: Instant,
}

impl Default for Guard {
    fn default() -> Guard {
        Guard { breaker: Mutex::default(), began: Instant::now(), opened: Notify::new() }
    }
}

impl Guard {
    fn lock(&self) -> MutexGuard<'_, Option<Breaker>> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Micros {
        Micros(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn set(&self, settings: policy::Breaker, deadline: Micros) {
        let mut breaker = self.lock();
        match &mut *breaker {
            Some(breaker) => breaker.set(settings, deadline),
            None => *breaker = Some(Breaker::new(settings, deadline, self.now())),
        }
    }

    pub(super) fn admit(&self) -> Option<Pass<'_>> {
        let mut breaker = self.lock();
        let pass = match &mut *breaker {
            Some(breaker) => Some(breaker.admit(self.now())?),
            None => None,
        };
        Some(Pass { guard: self, pass, since: Instant::now() })
    }

    pub(super) fn status(&self) -> BreakerStatus {
        let now = self.now();
        let breaker = self.lock();
        breaker.as_ref().map_or(
            BreakerStatus { state: State::Closed, lasted: now, opened: 0 },
            |breaker| BreakerStatus {
                state: breaker.state(),
                lasted: now.saturating_sub(breaker.since()),
                opened: breaker.opened(),
            },
        )
    }

    pub(super) fn wants_probe(&self) -> bool {
        self.lock().as_ref().is_some_and(Breaker::wants_probe)
    }

    pub(super) fn probed(&self) {
        let now = self.now();
        if let Some(breaker) = &mut *self.lock() {
            breaker.probed(now);
        }
    }

    /// Waits until it has opened; at once if it did since the last time.
    pub(super) async fn opened(&self) {
        self.opened.notified().await;
    }
}

impl Pass<'_> {
    /// `took` where the server had less to do with it than the time that went by.
    pub(super) fn settle(mut self, error: Option<&StoreError>, took: Option<Duration>) {
        let Some(pass) = self.pass.take() else { return };
        let took = took.unwrap_or_else(|| self.since.elapsed()).as_micros();
        let took = Micros(u64::try_from(took).unwrap_or(u64::MAX));
        let went = Went { failed: error.is_some_and(is_of_the_server), took };
        let now = self.guard.now();
        let is_open = self.guard.lock().as_mut().is_some_and(|breaker| {
            breaker.settle(pass, went, now);
            breaker.state() == State::Open
        });
        if is_open {
            self.guard.opened.notify_one();
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        if let Some(breaker) = &mut *self.guard.lock() {
            breaker.abandon(pass);
        }
    }
}

/// Whether others would fare no better: not where one key holds something strange.
fn is_of_the_server(error: &StoreError) -> bool {
    match error {
        StoreError::Refused { code, .. } => !["WRONGTYPE", "REPLY"].contains(&code.as_str()),
        error => error.is_of_the_store(),
    }
}
