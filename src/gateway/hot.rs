//! What a gateway does about hot keys beside answering: it tells the others what it sees, hears what
//! they see, and gives back what is left of leases that have ended.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::Gateway;
use crate::engine::clock::Micros;
use crate::engine::hot::{HotKey, HotKeys, SHARE_EVERY, TIDY_EVERY};

/// What has to be told waits no longer for what is told to be heard.
const PATIENCE: Duration = Duration::from_millis(500);

impl Gateway {
    /// Those that are hot now, fastest first.
    pub fn hot_keys(&self) -> Vec<HotKey> {
        self.limiter.hot.as_ref().map_or_else(Vec::new, |hot| hot.list())
    }

    /// Where nothing may be hot, nobody is told and Redis is not asked.
    async fn share_rates(&self, hot: &HotKeys, has_told: &mut bool) {
        let report = hot.report(Micros::now());
        if report.is_empty() && !*has_told {
            return;
        }
        *has_told = !report.is_empty();
        let shared = self.registry.share_rates(&self.about.id, &report);
        // Who cannot hear others shares evenly with them, after a while.
        if let Ok(Ok(others)) = tokio::time::timeout(PATIENCE, shared).await {
            hot.hear(&others, self.local.gateways() as usize, Micros::now());
        }
    }
}

/// Keeps going for as long as somebody holds the gateway.
pub(super) fn keep_up(gateway: &Arc<Gateway>) {
    if gateway.limiter.hot.is_some() {
        tokio::spawn(tell(Arc::downgrade(gateway)));
        tokio::spawn(tidy(Arc::downgrade(gateway)));
    }
}

async fn tell(gateway: Weak<Gateway>) {
    let mut has_told = false;
    let mut ticks = interval(SHARE_EVERY.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(gateway) = gateway.upgrade() else { return };
        if let Some(hot) = gateway.limiter.hot.clone() {
            gateway.share_rates(&hot, &mut has_told).await;
        }
    }
}

async fn tidy(gateway: Weak<Gateway>) {
    let mut ticks = interval(TIDY_EVERY.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(gateway) = gateway.upgrade() else { return };
        gateway.limiter.return_leases(false).await;
    }
}
