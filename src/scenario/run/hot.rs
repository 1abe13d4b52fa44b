//! What gateways do about hot keys beside answering: they tell each other what they see, and give
//! back what is left of leases.

use std::collections::HashMap;
use std::rc::Rc;

use futures_util::future::join_all;

use super::world::World;
use crate::engine::clock::Micros;
use crate::engine::hot::{HotKeys, Report, SHARE_EVERY, TIDY_EVERY};
use crate::engine::store::Store;

impl World {
    pub(super) async fn tend_hot_keys(self: Rc<Self>) {
        let has_store = |store: &Store| !matches!(store, Store::Memory(_));
        if !self.nodes.iter().any(|node| node.limiter().is_some_and(|l| has_store(&l.store))) {
            return;
        }
        let mut next = Micros::ZERO;
        let mut counted = vec![0; self.nodes.len()];
        while next < self.scenario.run {
            self.time.sleep_until(next).await;
            if next.0.is_multiple_of(SHARE_EVERY.0) {
                self.tell_each_other();
            }
            for (number, counted) in counted.iter_mut().enumerate() {
                let hot = self.with_hot(number, |hot, _| hot.list().len());
                if hot != *counted {
                    *counted = hot;
                    self.recording.borrow_mut().hot.push((self.now(), number, hot));
                }
            }
            self.return_leases().await;
            next = next + TIDY_EVERY;
        }
    }

    fn tell_each_other(&self) {
        let is_up = |number: &usize| !self.nodes[*number].is_down.get();
        let reports: Vec<(usize, Report)> = (0..self.nodes.len())
            .filter(is_up)
            .map(|number| (number, self.with_hot(number, |hot, now| hot.report(now))))
            .collect();
        for (number, _) in &reports {
            let mut others: HashMap<u64, u64> = HashMap::new();
            let not_own = reports.iter().filter(|(other, _)| other != number);
            for (key, rate) in not_own.flat_map(|(_, report)| report) {
                *others.entry(*key).or_default() += rate;
            }
            self.with_hot(*number, |hot, now| hot.hear(&others, reports.len(), now));
        }
    }

    async fn return_leases(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(limiter) = node.limiter() else { continue };
            let store = &limiter.store;
            let ended = self.with_hot(number, |hot, now| hot.tidy(now));
            let at = self.time.stamp(node.skew.get());
            // What cannot be given back stays charged.
            drop(join_all(ended.iter().map(|(charge, to)| store.settle(charge, *to, at))).await);
        }
    }

    /// With the time as this node has it.
    fn with_hot<T: Default>(&self, node: usize, then: impl FnOnce(&HotKeys, Micros) -> T) -> T {
        let node = &self.nodes[node];
        let hot = node.limiter().and_then(|limiter| limiter.hot.clone());
        let now = self.time.stamp(node.skew.get()).unwrap_or_else(Micros::now);
        hot.map(|hot| then(&hot, now)).unwrap_or_default()
    }
}
