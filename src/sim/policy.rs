//! A whole policy against traffic in virtual time: the limiter that a gateway runs, on a store of
//! its own that forgets nothing, with a lane for the policy and one for each of its rules.

use std::sync::Arc;

use futures_util::FutureExt;
use smallvec::SmallVec;

use crate::engine::clock::Micros;
use crate::engine::failure::OnFailure;
use crate::engine::identity::Identity;
use crate::engine::limit::{Cost, Limit};
use crate::engine::limiter::{Demand, Limiter, Reached, Verdict};
use crate::engine::plan::{Attempt, Standing};
use crate::engine::policy::{Policy, RuleLimits};
use crate::engine::rules::{Rules, Target};
use crate::engine::store::{MemoryStore, Store};
use crate::traffic::log::{Names, Timed};

use super::Event;
use super::lane::{Tally, Totals};
use super::outcome::{Ending, Findings, LaneOutcome, Outcome, people};
use super::run::Span;
use super::timeline::Timeline;
use super::window::Windows;

/// A request as rules see it.
#[derive(Clone, Debug)]
pub struct Request {
    pub at: Micros,
    /// At most one of each dimension; the first is who asks.
    pub identities: SmallVec<[Identity; 4]>,
    pub path: Option<String>,
    pub method: Option<String>,
}

impl Timed for Request {
    fn at(&self) -> Micros {
        self.at
    }

    fn set_at(&mut self, at: Micros) {
        self.at = at;
    }
}

impl Request {
    /// Who asks.
    pub fn client(&self) -> &str {
        self.identities.first().map_or("", Identity::as_str)
    }
}

/// What a policy said to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub allowed: bool,
    /// The rule that refused, `block` or `missing`.
    pub by: Option<String>,
}

#[derive(Debug)]
struct PolicyLane {
    label: String,
    limit: Option<Limit>,
    totals: Totals,
    tallies: Vec<Tally>,
    windows: Option<Windows>,
}

#[derive(Debug)]
pub struct PolicyRun {
    limiter: Limiter,
    whole: PolicyLane,
    rules: Vec<PolicyLane>,
    /// Of all identities, whatever counts them.
    names: Names,
    span: Span,
    timeline: Option<Timeline>,
    last: Micros,
    requests: u64,
}

impl PolicyLane {
    fn new(label: String, limit: Option<Limit>) -> PolicyLane {
        PolicyLane {
            label,
            limit,
            totals: Totals::new(Timeline::new(Micros::ZERO, None)),
            tallies: Vec::new(),
            windows: limit.map(|limit| Windows::of_one(limit.period())),
        }
    }

    fn count(&mut self, at: Micros, since_start: Micros, key: u32, allowed: bool) {
        let place = key as usize;
        if place >= self.tallies.len() {
            self.tallies.resize((place + 1) * 2, Tally::default());
        }
        self.totals.count(&mut self.tallies[place], Event { at, key, cost: 1 }, allowed);
        *if allowed { &mut self.totals.allowed } else { &mut self.totals.denied } += 1;
        let (bin, _) = self.totals.timeline.place(at);
        self.totals.timeline.add(bin, 1, u64::from(allowed));
        if let (Some(windows), true) = (&mut self.windows, allowed) {
            windows.passed(since_start, key, 1, 1);
            windows.count();
        }
    }

    fn outcome(&self, start: Micros, names: &Names) -> LaneOutcome {
        let name = |key: u32| names.name(key).to_string();
        let came = |(_, tally): &(u32, &Tally)| tally.allowed + tally.denied > 0;
        let found = Findings {
            label: &self.label,
            limit: self.limit,
            totals: &self.totals,
            people: people((0u32..).zip(&self.tallies).filter(came), name),
            worst: self.windows.as_ref().and_then(|windows| windows.worst(0)).unwrap_or_default(),
            state_bytes: None,
            reference: None,
            start,
        };
        LaneOutcome::from_findings(found, name)
    }
}

impl PolicyRun {
    pub fn new(label: &str, policy: Policy, span: Span) -> PolicyRun {
        let lane = |rule: &crate::engine::policy::Rule| {
            let limit = match &rule.limits {
                RuleLimits::Own(limits) if limits.len() == 1 => Some(limits[0].limit),
                _ => None,
            };
            let shadow = if rule.shadow { " (shadow)" } else { "" };
            PolicyLane::new(format!("{}{shadow}", rule.name), limit)
        };
        let rules = policy.rules.iter().map(lane).collect();
        PolicyRun {
            limiter: Limiter {
                rules: Arc::new(Rules::new(Arc::new(policy))),
                store: Arc::new(Store::Memory(MemoryStore::unbounded())),
                on_failure: OnFailure::Tell,
                hot: None,
            },
            whole: PolicyLane::new(label.into(), None),
            rules,
            names: Names::default(),
            span,
            timeline: None,
            last: Micros::ZERO,
            requests: 0,
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.limiter.rules
    }

    /// Decides the next request; times do not fall.
    pub fn decide(&mut self, request: &Request) -> Said {
        let at = request.at;
        if self.timeline.is_none() {
            let timeline = Timeline::new(self.span.start.unwrap_or(at), self.span.length);
            let lanes = self.rules.iter_mut().chain([&mut self.whole]);
            lanes.for_each(|lane| lane.totals.timeline = timeline.clone());
            self.timeline = Some(timeline);
        }
        self.requests += 1;
        self.last = self.last.max(at);
        let attempt = Attempt {
            identities: &request.identities,
            target: Target {
                path: request.path.as_deref(),
                method: request.method.as_deref(),
                only: None,
            },
            tier: None,
        };
        let standings: SmallVec<[Standing; 4]> =
            request.identities.iter().map(|_| Standing::default()).collect();
        let demand = Demand { at: Some(at), ..Demand::of(Cost::ONE) };
        // In memory nothing waits, and nothing fails.
        let verdict = self.limiter.check(&attempt, &standings, demand).now_or_never();
        match verdict {
            Some(Ok(verdict)) => self.count(request, &verdict),
            _ => Said { allowed: true, by: None },
        }
    }

    fn count(&mut self, request: &Request, verdict: &Verdict) -> Said {
        let start = self.timeline.as_ref().map_or(request.at, Timeline::start);
        let since_start = request.at.saturating_sub(start);
        let client = self.names.number(request.client());
        if let Some(timeline) = &mut self.timeline {
            let (bin, _) = timeline.place(request.at);
            timeline.add(bin, 1, 0);
        }
        self.whole.count(request.at, since_start, client, verdict.allowed);
        let by = match &verdict.reached {
            Reached::Limits { decided, asked } => {
                let mut counted: SmallVec<[&str; 4]> = SmallVec::new();
                for one in asked {
                    let rule = one.limit.rule();
                    // Several limits of a rule speak as one.
                    if counted.contains(&rule) {
                        continue;
                    }
                    counted.push(rule);
                    let of_rule = asked.iter().filter(|other| other.limit.rule() == rule);
                    let allowed = of_rule.clone().all(|other| other.decision.allowed);
                    let key = self.names.number(one.identity.as_str());
                    if let Some(lane) = lane_of(&mut self.rules, &self.limiter, rule) {
                        lane.count(request.at, since_start, key, allowed);
                    }
                }
                asked.get(*decided).map(|decided| decided.limit.rule().to_string())
            }
            Reached::Blocked { .. } => Some("block".into()),
            Reached::Missing { rule } => Some(format!("{rule} (no identity)")),
            _ => None,
        };
        for shadow in &verdict.shadow {
            if let Some(lane) = lane_of(&mut self.rules, &self.limiter, &shadow.rule) {
                lane.count(request.at, since_start, client, shadow.allowed);
            }
        }
        Said { allowed: verdict.allowed, by: by.filter(|_| !verdict.allowed) }
    }

    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The policy, then each rule that was asked.
    pub fn outcome(&self) -> Outcome {
        let first = self.timeline.as_ref().map_or(self.last, Timeline::start);
        let start = self.span.start.unwrap_or(first);
        let last = if self.requests == 0 { start } else { self.last + Micros(1) };
        let asked = self.rules.iter().filter(|lane| lane.totals.allowed + lane.totals.denied > 0);
        let whole = self.whole.outcome(start, &self.names);
        let came = |tally: &&Tally| tally.allowed + tally.denied > 0;
        let keys = self.whole.tallies.iter().filter(came).count() as u64;
        let lanes =
            std::iter::once(whole).chain(asked.map(|lane| lane.outcome(start, &self.names)));
        Outcome {
            start,
            end: self.span.length.map_or(last, |length| start + length),
            requests: self.requests,
            keys,
            timeline: self.timeline.clone().unwrap_or_else(|| Timeline::new(start, None)),
            lanes: lanes.collect(),
            ending: Ending::Whole,
        }
    }
}

fn lane_of<'a>(
    lanes: &'a mut [PolicyLane],
    limiter: &Limiter,
    rule: &str,
) -> Option<&'a mut PolicyLane> {
    let place = limiter.rules.policy().rules.iter().position(|known| known.name == rule)?;
    lanes.get_mut(place)
}
