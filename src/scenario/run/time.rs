//! Where the time of a run comes from: an executor that makes it, or the machine.

use std::future::Future;
use std::sync::Arc;

use crate::engine::clock::{Micros, VirtualClock};
use crate::engine::concurrency::Concurrency;
use crate::engine::hot::HotKeys;
use crate::engine::store::Store;
use crate::scenario::EPOCH;
use crate::sim::executor::Executor;

#[derive(Clone)]
pub(super) enum Time {
    Virtual(Executor),
    /// Since this moment; on a tokio `LocalSet`.
    Real(Micros),
}

impl Time {
    pub(super) fn virtual_() -> (Time, Executor, Arc<VirtualClock>) {
        let clock = VirtualClock::starting_at(EPOCH);
        let executor = Executor::new(clock.clone());
        (Time::Virtual(executor.clone()), executor, clock)
    }

    /// When the run began.
    pub(super) fn start(&self) -> Micros {
        match self {
            Time::Virtual(_) => EPOCH,
            Time::Real(start) => *start,
        }
    }

    /// What a gateway on this store has for keys that very much is asked about.
    pub(super) fn hot_keys(&self, store: &Store) -> Option<Arc<HotKeys>> {
        match (store, self) {
            (Store::Memory(_), _) => None,
            (_, Time::Virtual(executor)) => {
                Some(Arc::new(HotKeys::in_virtual_time(executor.clock().clone())))
            }
            (_, Time::Real(_)) => Some(Arc::default()),
        }
    }

    /// What a gateway counts as under way.
    pub(super) fn concurrency(&self) -> Arc<Concurrency> {
        Arc::new(match self {
            Time::Virtual(executor) => Concurrency::in_virtual_time(executor.clock().clone()),
            Time::Real(_) => Concurrency::default(),
        })
    }

    /// Since the start of the run.
    pub(super) fn now(&self) -> Micros {
        match self {
            Time::Virtual(executor) => executor.clock().now() - EPOCH,
            Time::Real(start) => Micros::now().saturating_sub(*start),
        }
    }

    /// What a decision is taken at; none for the store's own clock.
    pub(super) fn stamp(&self, skew: i64) -> Option<Micros> {
        match self {
            Time::Virtual(executor) => {
                Some(Micros(executor.clock().now().0.saturating_add_signed(skew)))
            }
            Time::Real(_) => None,
        }
    }

    /// Waits for a moment of the run.
    pub(super) async fn sleep_until(&self, at: Micros) {
        match self {
            Time::Virtual(executor) => executor.clock().sleep_until(EPOCH + at).await,
            // Also from before the start of the run.
            Time::Real(start) => {
                let rest = (*start + at).saturating_sub(Micros::now());
                if rest > Micros::ZERO {
                    tokio::time::sleep(rest.into()).await;
                }
            }
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        match self {
            Time::Virtual(executor) => executor.spawn(task),
            Time::Real(_) => drop(tokio::task::spawn_local(task)),
        }
    }
}
