//! What happens to a limiter besides traffic: faults that begin and end, and changes of its policy.

use std::rc::Rc;
use std::sync::Arc;

use super::world::{Decider, World};
use crate::engine::identity::Identity;
use crate::engine::limiter::Limiter;
use crate::engine::plan::{Entry, Override, Standing};
use crate::engine::policy::Policy;
use crate::engine::rules::Rules;
use crate::engine::store::simulated::{Effect, Fault, Target};
use crate::scenario::model::{ChangePart, ChangeWhat, FaultPart, FaultWhat};
use crate::scenario::whole::with_limit;

impl World {
    pub(super) async fn break_things(self: Rc<Self>, number: usize, fault: FaultPart) {
        self.time.sleep_until(fault.at).await;
        let on = fault.on.target();
        let node = |target| match target {
            Target::Node(node) => self.nodes.get(node),
            _ => None,
        };
        match (fault.what, &self.servers) {
            (FaultWhat::Store(effect), Some(servers)) => {
                servers.begin(number, Fault { effect, on, rate: fault.rate, lose: fault.lose });
                if effect == Effect::Down {
                    self.time.spawn(self.clone().promote());
                }
            }
            (FaultWhat::NodeDown, _) => {
                if let Some(node) = node(on) {
                    node.is_down.set(true);
                }
            }
            (FaultWhat::NodeSkew(by), _) => {
                if let Some(node) = node(on) {
                    node.skew.set(node.skew.get() + by);
                }
            }
            (FaultWhat::Store(_), None) => {}
        }
        self.time.sleep_until(fault.at + fault.lasts).await;
        match (fault.what, &self.servers) {
            (FaultWhat::Store(_), Some(servers)) => servers.end(number),
            (FaultWhat::NodeDown, _) => {
                if let Some(node) = node(on) {
                    node.is_down.set(false);
                }
            }
            (FaultWhat::NodeSkew(by), _) => {
                if let Some(node) = node(on) {
                    node.skew.set(node.skew.get() - by);
                }
            }
            (FaultWhat::Store(_), None) => {}
        }
    }

    /// A server whose breaker has opened is asked four times a second whether it is back.
    pub(super) fn probe_what_opened(self: &Rc<Self>) {
        let opened = self.servers.as_ref().map(|servers| servers.take_opened()).unwrap_or_default();
        for (node, shard) in opened {
            let world = self.clone();
            self.time.spawn(async move {
                let Some(servers) = &world.servers else { return };
                while world.now() < world.scenario.run && servers.probe(node, shard).await {}
            });
        }
    }

    async fn promote(self: Rc<Self>) {
        let after = self.scenario.store.failover_after;
        self.time.sleep_until(self.now() + after).await;
        if let Some(servers) = &self.servers {
            servers.promote_if_down();
        }
    }

    pub(super) async fn change(self: Rc<Self>, change: ChangePart) {
        self.time.sleep_until(change.at).await;
        match change.what {
            ChangeWhat::Limit(limit) => {
                let changed = with_limit(&self.policy.borrow(), limit);
                self.decide_by(Arc::new(changed));
            }
            ChangeWhat::Rules(policy) => self.decide_by(policy),
            ChangeWhat::Tier { key, tier } => {
                self.on_record(&key, |standing| standing.tier = Some(tier.clone()));
            }
            ChangeWhat::Block(key) => self.on_record(&key, |standing| {
                let (reason, until) = (change.name.clone(), None);
                standing.block = Some(Entry { reason, until, whole_request: false, place: None });
            }),
            ChangeWhat::Override { key, rule, limit } => {
                let rules: Vec<String> = match rule {
                    Some(rule) => vec![rule],
                    None => self.policy.borrow().rules.iter().map(|r| r.name.clone()).collect(),
                };
                self.on_record(&key, |standing| {
                    standing.overrides = rules
                        .iter()
                        .map(|rule| Override {
                            rule: rule.clone(),
                            limits: vec![limit],
                            until: None,
                            reason: change.name.clone(),
                        })
                        .collect();
                });
            }
        }
        let at = self.now();
        self.recording.borrow_mut().versions.push(at);
    }

    fn decide_by(&self, policy: Arc<Policy>) {
        let rules = Arc::new(Rules::new(policy.clone()));
        let breaker = policy.defaults.breaker;
        *self.policy.borrow_mut() = policy;
        for node in &self.nodes {
            let Decider::Limiter(limiter) = &node.decider else { continue };
            let old = limiter.borrow().clone();
            old.store.set_breaker(breaker);
            *limiter.borrow_mut() = Rc::new(Limiter {
                rules: rules.clone(),
                store: old.store.clone(),
                on_failure: old.on_failure.clone(),
                hot: old.hot.clone(),
            });
        }
    }

    fn on_record(&self, key: &Identity, write: impl Fn(&mut Standing)) {
        let Some(number) = self.table.find(key) else { return };
        let mut standings = self.standings.borrow_mut();
        let all = standings
            .entry(number)
            .or_insert_with(|| vec![Standing::default(); self.identities[number as usize].len()]);
        write(&mut all[0]);
    }
}
