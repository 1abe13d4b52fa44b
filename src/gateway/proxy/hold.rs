//! Leaky buckets let requests in one by one: whoever has to wait is held here, no longer than its
//! limit allows and no more of them than there is room for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::engine::clock::Micros;
use crate::engine::store::{Charge, Settlement};
use crate::gateway::Gateway;

/// Requests held at once by one worker: each costs a connection and a few kilobytes.
const MAX_HELD: usize = 10_000;

#[derive(Debug)]
pub(super) struct Hold {
    places: Semaphore,
}

impl Default for Hold {
    fn default() -> Hold {
        Hold { places: Semaphore::new(MAX_HELD) }
    }
}

impl Hold {
    /// Waits for `delay`; false when there is no room to wait in. If the client goes away
    /// meanwhile, what it was charged is given back.
    pub(super) async fn wait(
        &self,
        gateway: &Arc<Gateway>,
        charges: &[Charge],
        delay: Micros,
    ) -> bool {
        let mut waiting = Waiting { gateway, charges: charges.to_vec() };
        let Ok(_place) = self.places.try_acquire() else { return false };
        tokio::time::sleep(Duration::from(delay)).await;
        waiting.charges.clear();
        true
    }
}

/// Gives back its charges when it is dropped with them.
struct Waiting<'a> {
    gateway: &'a Arc<Gateway>,
    charges: Vec<Charge>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let (gateway, charges) = (self.gateway.clone(), std::mem::take(&mut self.charges));
        tokio::spawn(async move {
            for charge in charges {
                // What cannot be given back stays charged.
                let _ = gateway.limiter.settle(&charge, Settlement::Refund, None).await;
            }
        });
    }
}
