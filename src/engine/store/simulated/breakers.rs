//! The breakers of gateways: the engine's own, told what became of simulated calls.

use super::{Effect, Settings, State, World};
use crate::engine::breaker::{Breaker, Pass};
use crate::engine::clock::Micros;

/// How often a server whose breaker is open is asked whether it is back.
const PROBED_EVERY: Micros = Micros(250 * Micros::MILLISECOND.0);

/// When the breaker of which node for which shard became what.
pub type BreakerChange = (Micros, usize, usize, &'static str);

impl World {
    /// Every change of a breaker so far.
    pub fn breakers(&self) -> Vec<BreakerChange> {
        self.state().breaker_changes.clone()
    }

    /// The breakers that have opened since the last time: whoever runs this probes them.
    pub fn take_opened(&self) -> Vec<(usize, usize)> {
        std::mem::take(&mut self.state().opened)
    }

    /// Waits a while and asks a server whether it is back; false when nobody wants to know any more.
    pub async fn probe(&self, node: usize, shard: usize) -> bool {
        let wants =
            |state: &State| state.breakers[node][shard].as_ref().is_some_and(Breaker::wants_probe);
        if !wants(&self.state()) {
            return false;
        }
        self.clock.sleep_until(self.clock.now() + PROBED_EVERY).await;
        let now = self.clock.now();
        let mut state = self.state();
        if wants(&state) && state.answers(node, shard, now, &self.settings) {
            state.with_breaker(node, shard, now, |breaker| breaker.probed(now));
        }
        wants(&state)
    }
}

impl State {
    /// Whether a server would answer a question that is no check, in time.
    fn answers(&mut self, node: usize, shard: usize, now: Micros, settings: &Settings) -> bool {
        let silent = |e: &Effect| {
            matches!(e, Effect::Partition | Effect::Hang | Effect::Drop | Effect::Refuse("LOADING"))
        };
        let (there, back) = self.ways(node, shard, settings);
        let in_time = there + back <= settings.deadline;
        self.refusal(node, shard, now).is_none() && in_time && !self.is_met(node, shard, silent)
    }

    /// Does something with a breaker and writes down what it became.
    pub(super) fn with_breaker<T>(
        &mut self,
        node: usize,
        shard: usize,
        now: Micros,
        act: impl FnOnce(&mut Breaker) -> T,
    ) -> Option<T> {
        let breaker = self.breakers[node][shard].as_mut()?;
        let before = breaker.state();
        let done = act(breaker);
        let after = breaker.state();
        if before != after {
            self.breaker_changes.push((now, node, shard, after.name()));
            if breaker.wants_probe() {
                self.opened.push((node, shard));
            }
        }
        Some(done)
    }

    /// Leave to call; the inner none where there is no breaker.
    pub(super) fn admit(&mut self, node: usize, shard: usize, now: Micros) -> Option<Option<Pass>> {
        match self.with_breaker(node, shard, now, |breaker| breaker.admit(now)) {
            None => Some(None),
            Some(pass) => pass.map(Some),
        }
    }
}
