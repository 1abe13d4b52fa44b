//! Which rules apply to a request. Pure: a policy is turned into an index once, and asked often.
//!
//! Within a dimension one rule wins: the most specific endpoint (exact, then segments with the
//! fewest wildcards, then the longest prefix, then none), then a list of methods over none, then a
//! list of tiers over none, then the order of the file. Rules marked `also` and shadow rules do not
//! compete: all of them that match apply.

mod domain;
mod lists;

use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::identity::{Dimension, Identity, Pattern};
pub use super::path::{PathError, normal_path};
use super::patterns::Patterns;
use super::policy::{Endpoint, LimitSpec, Policy, Rule, RuleLimits};
use super::split::Turns;
use super::store::RuleLimit;
pub use domain::Instead;
use lists::Lists;

/// Only what the policy says is put in, so that nobody outside can choose keys that collide.
type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// What a request is asked about, apart from who asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target<'a> {
    /// As [`normal_path`] gives it; none matches only rules for every endpoint.
    pub path: Option<&'a str>,
    /// Upper case.
    pub method: Option<&'a str>,
    /// Names of the rules that are asked; none: all there are.
    pub only: Option<&'a [String]>,
}

impl Target<'_> {
    fn asks(&self, rule: &Rule) -> bool {
        self.only.is_none_or(|only| only.contains(&rule.name))
    }
}

/// A policy with its index.
#[derive(Debug)]
pub struct Rules {
    policy: Arc<Policy>,
    dimensions: Vec<(Dimension, Index)>,
    limits: Vec<LimitsOfRule>,
    /// Rules that refuse requests without an identity of their dimension.
    insisting: Vec<usize>,
    honour_idempotency: bool,
    lists: Arc<Lists>,
    pub(super) turns: Turns,
}

/// The limits of one rule under the names of their buckets.
#[derive(Debug)]
enum LimitsOfRule {
    Own(Vec<Arc<RuleLimit>>),
    ByTier(HashMap<String, Vec<Arc<RuleLimit>>>),
}

/// The rules of one dimension that may apply, by how they are found.
#[derive(Debug, Default)]
struct Index {
    competing: Finder,
    beside: Finder,
    shadow: Finder,
}

#[derive(Debug, Default)]
struct Finder {
    is_used: bool,
    exact: HashMap<String, Group>,
    segments: Node,
    prefixes: HashMap<String, Group>,
    any: Group,
}

/// One level of the segment patterns.
#[derive(Debug, Default)]
struct Node {
    literal: HashMap<String, Node>,
    wildcard: Option<Box<Node>>,
    here: Group,
}

/// Rules with the same endpoint, best first; those for some identities apart, so that ten thousand
/// of them cost no more than one.
#[derive(Debug, Default)]
struct Group {
    for_all: Vec<Candidate>,
    /// Seldom there: ten thousand endpoints have a group each.
    for_some: Option<Box<Patterns<Candidate>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    wildcards: usize,
    any_method: bool,
    any_tier: bool,
    rule: usize,
}

/// The rules that apply to one identity of a request.
#[derive(Debug, Default)]
pub struct Applying<'a> {
    /// The winner, if there is one, and those that apply beside it.
    pub enforced: SmallVec<[Applied<'a>; 2]>,
    pub shadow: SmallVec<[Applied<'a>; 1]>,
}

/// A rule that applies, and how to find its limits.
#[derive(Clone, Copy, Debug)]
pub struct Applied<'a> {
    pub rule: &'a Rule,
    limits: &'a LimitsOfRule,
}

impl<'a> Applied<'a> {
    /// Its limits for a request of this tier; none when the tier is unknown.
    pub fn limits(&self, tier: Option<&str>) -> &'a [Arc<RuleLimit>] {
        self.limits.for_tier(tier)
    }
}

impl Rules {
    pub fn new(policy: Arc<Policy>) -> Rules {
        let limits = policy.rules.iter().map(|rule| LimitsOfRule::of(rule, &policy)).collect();
        let lists = Arc::new(Lists::of(&policy));
        let mut rules = Rules::of(policy, lists, |_| true, limits);
        let insists = |rule: &Rule| rule.enabled && rule.reject_missing && !rule.shadow;
        let all = &rules.policy.rules;
        rules.insisting = (0..all.len()).filter(|n| insists(&all[*n])).collect();
        rules
    }

    /// The index of the rules that are `chosen`, none of which insists on anything yet; `limits` are
    /// those of all rules.
    fn of(
        policy: Arc<Policy>,
        lists: Arc<Lists>,
        chosen: impl Fn(&Rule) -> bool,
        limits: Vec<LimitsOfRule>,
    ) -> Rules {
        let mut dimensions: HashMap<Dimension, Index> = HashMap::default();
        let all = policy.rules.iter().enumerate();
        for (number, rule) in all.filter(|(_, rule)| rule.enabled && chosen(rule)) {
            let index = dimensions.entry(rule.dimension.clone()).or_default();
            let finder = match rule {
                Rule { shadow: true, .. } => &mut index.shadow,
                Rule { also: true, .. } => &mut index.beside,
                _ => &mut index.competing,
            };
            finder.add(number, rule);
        }
        let dimensions = dimensions.into_iter().collect();
        Rules {
            dimensions,
            limits,
            insisting: Vec::new(),
            honour_idempotency: policy.rules.iter().any(|rule| rule.honours_idempotency),
            lists,
            turns: Turns::default(),
            policy,
        }
    }

    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Whether any rule believes clients who say that they repeat themselves.
    pub fn honour_idempotency(&self) -> bool {
        self.honour_idempotency
    }

    /// Whether any rule counts by this dimension.
    pub fn counts_by(&self, dimension: &Dimension) -> bool {
        self.dimensions.iter().any(|(counted, _)| counted == dimension)
    }

    /// The headers that rules count by, in lower case.
    pub fn counted_headers(&self) -> impl Iterator<Item = &str> {
        self.dimensions.iter().filter_map(|(dimension, _)| match dimension {
            Dimension::Header(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The rules for `identity`, one of the identities of a request.
    pub fn applying(
        &self,
        identity: &Identity,
        all: &[Identity],
        tier: Option<&str>,
        target: Target<'_>,
    ) -> Applying<'_> {
        let mut applying = Applying::default();
        let Some((_, index)) = self.dimensions.iter().find(|(d, _)| d.holds(identity)) else {
            return applying;
        };
        let fits = |candidate: &Candidate| {
            let rule = &self.policy.rules[candidate.rule];
            target.asks(rule) && rule.admits(identity, all, tier, target.method)
        };
        let applied = |Candidate { rule: number, .. }: &Candidate| Applied {
            rule: &self.policy.rules[*number],
            limits: &self.limits[*number],
        };
        let winner = index.competing.first(identity, target.path, fits);
        applying.enforced.extend(winner.as_ref().map(applied));
        applying.enforced.extend(index.beside.all(identity, target.path, fits).iter().map(applied));
        applying.shadow.extend(index.shadow.all(identity, target.path, fits).iter().map(applied));
        applying
    }

    /// Every rule that can apply to `identity` at some endpoint, in the order of the file; with a
    /// method, those that can for it.
    pub fn anywhere<'a>(
        &'a self,
        identity: &Identity,
        tier: Option<&str>,
        method: Option<&str>,
    ) -> impl Iterator<Item = Applied<'a>> {
        let fits = move |rule: &&Rule| {
            let by_method = rule.methods.is_empty()
                || method.is_none_or(|m| rule.methods.iter().any(|own| own == m));
            let by_tier = rule.tiers.is_empty()
                || tier.is_some_and(|t| rule.tiers.iter().any(|own| own == t));
            let by_identity =
                rule.matches.is_empty() || rule.matches.iter().any(|p| p.matches(identity));
            rule.enabled && rule.dimension.holds(identity) && by_method && by_tier && by_identity
        };
        let both = self.policy.rules.iter().zip(&self.limits);
        both.filter(move |(rule, _)| fits(rule)).map(|(rule, limits)| Applied { rule, limits })
    }

    /// A rule that insists on an identity which this request does not have.
    pub fn missing(
        &self,
        all: &[Identity],
        tier: Option<&str>,
        target: Target<'_>,
    ) -> Option<&Rule> {
        self.insisting.iter().map(|number| &self.policy.rules[*number]).find(|rule| {
            let absent = !all.iter().any(|identity| rule.dimension.holds(identity));
            absent
                && target.asks(rule)
                && rule.endpoint.matches(target.path)
                && rule.is_for(all, tier, target.method)
        })
    }
}

impl LimitsOfRule {
    fn of(rule: &Rule, policy: &Policy) -> LimitsOfRule {
        let named = |specs: &[LimitSpec]| {
            let named = specs.iter().zip(0u8..);
            named
                .map(|(spec, index)| {
                    Arc::new(
                        RuleLimit::new(&rule.name, index, spec.limit)
                            .with_weight(rule.cost)
                            .with_on_change(rule.on_change)
                            .with_max_delay(spec.max_delay),
                    )
                })
                .collect()
        };
        match &rule.limits {
            RuleLimits::Own(specs) => LimitsOfRule::Own(named(specs)),
            RuleLimits::OfTier => {
                let tiers = policy.tiers.iter();
                let limits = tiers.map(|tier| (tier.name.clone(), named(&tier.limits)));
                LimitsOfRule::ByTier(limits.collect())
            }
        }
    }

    fn for_tier(&self, tier: Option<&str>) -> &[Arc<RuleLimit>] {
        match self {
            LimitsOfRule::Own(limits) => limits,
            LimitsOfRule::ByTier(limits) => {
                tier.and_then(|tier| limits.get(tier)).map_or(&[], Vec::as_slice)
            }
        }
    }
}

impl Rule {
    /// Whether it is for this identity, tier and method; its endpoint was looked at before.
    fn admits(
        &self,
        identity: &Identity,
        all: &[Identity],
        tier: Option<&str>,
        method: Option<&str>,
    ) -> bool {
        let by_identity =
            self.matches.is_empty() || self.matches.iter().any(|pattern| pattern.matches(identity));
        by_identity && self.is_for(all, tier, method)
    }

    /// The same for whoever asks.
    fn is_for(&self, all: &[Identity], tier: Option<&str>, method: Option<&str>) -> bool {
        let by_method = self.methods.is_empty()
            || method.is_some_and(|m| self.methods.iter().any(|own| own == m));
        let by_tier =
            self.tiers.is_empty() || tier.is_some_and(|t| self.tiers.iter().any(|own| own == t));
        let absent = |dimension: &Dimension| !all.iter().any(|other| dimension.holds(other));
        by_method && by_tier && self.unless.iter().all(absent)
    }
}

impl Endpoint {
    /// Whether a path is among those it means; a request without one is only under `Any`.
    pub fn matches(&self, path: Option<&str>) -> bool {
        let Some(path) = path else { return *self == Endpoint::Any };
        match self {
            Endpoint::Any => true,
            Endpoint::Exact(exact) => exact == path,
            Endpoint::Prefix(prefix) => prefixes_of(path).any(|p| p == prefix),
            Endpoint::Segments(pattern) => {
                let mut segments = segments_of(path);
                let fits = pattern.iter().all(|wanted| match (segments.next(), wanted) {
                    (Some(found), Some(literal)) => found == literal,
                    (Some(found), None) => !found.is_empty(),
                    (None, _) => false,
                });
                fits && segments.next().is_none()
            }
        }
    }
}

impl Finder {
    fn add(&mut self, number: usize, rule: &Rule) {
        self.is_used = true;
        let (group, wildcards) = match &rule.endpoint {
            Endpoint::Any => (&mut self.any, 0),
            Endpoint::Exact(path) => (self.exact.entry(path.clone()).or_default(), 0),
            Endpoint::Prefix(path) => (self.prefixes.entry(path.clone()).or_default(), 0),
            Endpoint::Segments(segments) => {
                let wildcards = segments.iter().filter(|s| s.is_none()).count();
                (&mut self.segments.descend(segments).here, wildcards)
            }
        };
        let candidate = Candidate {
            wildcards,
            any_method: rule.methods.is_empty(),
            any_tier: rule.tiers.is_empty(),
            rule: number,
        };
        group.add(candidate, &rule.matches);
    }

    /// The most specific rule that fits.
    fn first(
        &self,
        identity: &Identity,
        path: Option<&str>,
        fits: impl Fn(&Candidate) -> bool,
    ) -> Option<Candidate> {
        let mut found = None;
        self.visit(path, |groups| {
            let best = groups.iter().filter_map(|group| group.first(identity, &fits)).min();
            found = best;
            best.is_some()
        });
        found
    }

    /// Every rule that fits, in the order of the file.
    fn all(
        &self,
        identity: &Identity,
        path: Option<&str>,
        fits: impl Fn(&Candidate) -> bool,
    ) -> SmallVec<[Candidate; 2]> {
        let mut found = SmallVec::new();
        if !self.is_used {
            return found;
        }
        self.visit(path, |groups| {
            for group in groups {
                found.extend(group.candidates(identity).into_iter().filter(|c| fits(c)));
            }
            false
        });
        found.sort_by_key(|candidate: &Candidate| candidate.rule);
        found
    }

    /// Hands over the groups that match `path`, the most specific first, until `done`; groups that
    /// are equally specific come together.
    fn visit(&self, path: Option<&str>, mut done: impl FnMut(&[&Group]) -> bool) {
        if let Some(path) = path {
            if let Some(group) = self.exact.get(path)
                && done(&[group])
            {
                return;
            }
            if !self.segments.is_empty() {
                let mut groups = SmallVec::new();
                self.segments.matching(segments_of(path), &mut groups);
                if !groups.is_empty() && done(&groups) {
                    return;
                }
            }
            if !self.prefixes.is_empty() {
                for prefix in prefixes_of(path) {
                    if let Some(group) = self.prefixes.get(prefix)
                        && done(&[group])
                    {
                        return;
                    }
                }
            }
        }
        done(&[&self.any]);
    }
}

impl Node {
    fn is_empty(&self) -> bool {
        self.literal.is_empty() && self.wildcard.is_none()
    }

    fn descend(&mut self, segments: &[Option<String>]) -> &mut Node {
        segments.iter().fold(self, |node, segment| match segment {
            Some(literal) => node.literal.entry(literal.clone()).or_default(),
            None => node.wildcard.get_or_insert_default(),
        })
    }

    fn matching<'a, 'p>(
        &'a self,
        mut rest: impl Iterator<Item = &'p str> + Clone,
        found: &mut SmallVec<[&'a Group; 4]>,
    ) {
        let Some(segment) = rest.next() else {
            if !self.here.is_empty() {
                found.push(&self.here);
            }
            return;
        };
        if let Some(node) = self.literal.get(segment) {
            node.matching(rest.clone(), found);
        }
        // The root has one segment, of no length: nobody's id.
        if let Some(node) = &self.wildcard
            && !segment.is_empty()
        {
            node.matching(rest, found);
        }
    }
}

impl Group {
    fn is_empty(&self) -> bool {
        self.for_all.is_empty() && self.for_some.is_none()
    }

    fn add(&mut self, candidate: Candidate, matches: &[Pattern]) {
        if matches.is_empty() {
            let at = self.for_all.partition_point(|other| *other < candidate);
            self.for_all.insert(at, candidate);
        }
        for pattern in matches {
            self.for_some.get_or_insert_default().add(pattern, candidate);
        }
    }

    fn candidates(&self, identity: &Identity) -> SmallVec<[Candidate; 2]> {
        let mut all = self.for_some.as_ref().map(|some| some.of(identity)).unwrap_or_default();
        all.extend(self.for_all.iter().copied());
        all
    }

    fn first(&self, identity: &Identity, fits: &impl Fn(&Candidate) -> bool) -> Option<Candidate> {
        let best = |candidates: &[Candidate]| candidates.iter().copied().find(fits);
        let some = self.for_some.as_ref().and_then(|some| best(&some.of(identity)));
        best(&self.for_all).into_iter().chain(some).min()
    }
}

fn segments_of(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split('/').skip(1)
}

/// `/a/b/c`, `/a/b`, `/a`, and the root: what a prefix rule may be called, the longest first.
fn prefixes_of(path: &str) -> impl Iterator<Item = &str> {
    let cuts = path.rmatch_indices('/').map(|(at, _)| &path[..at]);
    std::iter::once(path).chain(cuts)
}
