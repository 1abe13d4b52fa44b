//! The task that keeps a [`View`] up to date: the one place of the registry that waits.

use std::sync::{Arc, Weak};

use tokio::time::{MissedTickBehavior, interval};

use super::Registry;
use super::view::{Follower, View};
use crate::engine::clock::Micros;

/// A change shall be obeyed everywhere within a second, also when a look at the trail comes late.
pub const FOLLOW_EVERY: Micros = Micros(250 * Micros::MILLISECOND.0);

impl View {
    /// A view that follows `registry` for as long as it lives. If the store cannot be read yet it
    /// begins empty ([`View::age`] is none), and is filled as soon as it can.
    pub async fn follow(registry: Arc<Registry>) -> Arc<View> {
        View::follow_apart(registry.clone(), registry).await
    }

    /// The same, with a connection of its own for what requests wait for.
    pub async fn follow_apart(registry: Arc<Registry>, lookups: Arc<Registry>) -> Arc<View> {
        let view = Arc::new(View::new(registry, lookups));
        let mut follower = Follower::default();
        follower.step(&view, Micros::now()).await;
        tokio::spawn(keep_current(Arc::downgrade(&view), follower));
        view
    }
}

async fn keep_current(view: Weak<View>, mut follower: Follower) {
    let mut ticks = interval(FOLLOW_EVERY.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(view) = view.upgrade() else { return };
        follower.step(&view, Micros::now()).await;
    }
}
