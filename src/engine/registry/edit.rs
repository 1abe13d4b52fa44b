//! Changes, and what each makes of the document it is about. Pure: the stores differ only in how
//! they keep the result.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::data::{
    Event, Grant, Kind, Listed, Lists, Override, OverrideLimit, Subject, Switches, Terms,
};
use super::{Intent, RegistryError};
use crate::engine::clock::Micros;
use crate::engine::identity::{Identity, Pattern};
use crate::engine::policy::OnStoreError;

pub const MAX_NAME_BYTES: usize = 200;
/// Of one identity. Each request of it looks through them.
pub const MAX_OVERRIDES: usize = 100;
/// Of blocks, and of exemptions. Each request looks through them.
pub const MAX_PATTERNS: usize = 1_000;
const MAX_LIMITS: usize = 100;

/// How long something shall hold; none: for ever.
pub type Lasts = Option<Micros>;

/// A change to what is known of one identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    SetTier { tier: String, lasts: Lasts },
    ClearTier,
    SetOverride { rule: String, limits: Vec<OverrideLimit>, lasts: Lasts },
    ClearOverride { rule: String },
    Block { lasts: Lasts },
    Unblock,
    Exempt { lasts: Lasts },
    Unexempt,
}

/// A change to the lists of patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListChange {
    Block { pattern: Pattern, lasts: Lasts },
    Unblock { pattern: Pattern },
    Exempt { pattern: Pattern, lasts: Lasts },
    Unexempt { pattern: Pattern },
}

/// A change to the switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    Enable {
        rule: String,
    },
    Disable {
        rule: String,
    },
    Observe(bool),
    /// None: as the policy says.
    OnStoreError {
        rule: String,
        mode: Option<OnStoreError>,
    },
}

/// Something that turns one version of a document into the next.
pub(crate) trait Edit {
    type Document: Default + Serialize + DeserializeOwned;

    const KIND: Kind;

    fn action(&self) -> &'static str;
    /// The identity, pattern or rule it is about.
    fn subject(&self) -> String;
    /// The document without what has ended.
    fn prune(document: Self::Document, now: Micros) -> Self::Document;
    /// The part of the document that changes.
    fn part(&self, document: &Self::Document) -> Value;
    fn apply(&self, document: &mut Self::Document, stamp: Terms) -> Result<(), RegistryError>;
}

/// What a document becomes, and how the trail tells it.
pub(crate) fn edited<E: Edit>(
    edit: &E,
    document: E::Document,
    intent: &Intent,
    now: Micros,
) -> Result<(E::Document, Event), RegistryError> {
    let mut document = E::prune(document, now);
    let before = edit.part(&document);
    edit.apply(&mut document, intent.terms(now, None))?;
    let event = Event {
        id: None,
        at: now,
        by: intent.by().into(),
        action: edit.action().into(),
        kind: E::KIND,
        subject: edit.subject(),
        before,
        after: edit.part(&document),
        reason: intent.reason().into(),
    };
    Ok((document, event))
}

/// A change with the identity it is for.
pub(crate) struct OfSubject<'a>(pub(crate) &'a Identity, pub(crate) &'a Change);

impl Edit for OfSubject<'_> {
    type Document = Subject;

    const KIND: Kind = Kind::Identity;

    fn action(&self) -> &'static str {
        match self.1 {
            Change::SetTier { .. } => "tier set",
            Change::ClearTier => "tier rm",
            Change::SetOverride { .. } => "override set",
            Change::ClearOverride { .. } => "override rm",
            Change::Block { .. } => "block",
            Change::Unblock => "unblock",
            Change::Exempt { .. } => "exempt",
            Change::Unexempt => "unexempt",
        }
    }

    fn subject(&self) -> String {
        self.0.to_string()
    }

    fn prune(document: Subject, now: Micros) -> Subject {
        document.at(now)
    }

    fn part(&self, subject: &Subject) -> Value {
        match self.1 {
            Change::SetTier { .. } | Change::ClearTier => value(&subject.tier),
            Change::SetOverride { rule, .. } | Change::ClearOverride { rule } => {
                value(&subject.overrides.iter().find(|o| o.rule == *rule))
            }
            Change::Block { .. } | Change::Unblock => value(&subject.block),
            Change::Exempt { .. } | Change::Unexempt => value(&subject.exempt),
        }
    }

    fn apply(&self, subject: &mut Subject, stamp: Terms) -> Result<(), RegistryError> {
        match self.1 {
            Change::SetTier { tier, lasts } => {
                check_name("a tier", tier)?;
                subject.tier = Some(Grant { value: tier.clone(), terms: lasting(stamp, *lasts) });
            }
            Change::ClearTier => subject.tier = None,
            Change::SetOverride { rule, limits, lasts } => {
                check_name("a rule", rule)?;
                check_count("limits of an override", limits.len(), MAX_LIMITS)?;
                if limits.is_empty() {
                    return Err(RegistryError::NoLimit);
                }
                subject.overrides.retain(|o| o.rule != *rule);
                check_count(
                    "overrides of an identity",
                    subject.overrides.len() + 1,
                    MAX_OVERRIDES,
                )?;
                subject.overrides.push(Override {
                    rule: rule.clone(),
                    limits: limits.clone(),
                    terms: lasting(stamp, *lasts),
                });
                subject.overrides.sort_by(|a, b| a.rule.cmp(&b.rule));
            }
            Change::ClearOverride { rule } => subject.overrides.retain(|o| o.rule != *rule),
            Change::Block { lasts } => subject.block = Some(lasting(stamp, *lasts)),
            Change::Unblock => subject.block = None,
            Change::Exempt { lasts } => subject.exempt = Some(lasting(stamp, *lasts)),
            Change::Unexempt => subject.exempt = None,
        }
        Ok(())
    }
}

impl ListChange {
    fn pattern(&self) -> &Pattern {
        match self {
            ListChange::Block { pattern, .. }
            | ListChange::Unblock { pattern }
            | ListChange::Exempt { pattern, .. }
            | ListChange::Unexempt { pattern } => pattern,
        }
    }
}

impl Edit for ListChange {
    type Document = Lists;

    const KIND: Kind = Kind::Pattern;

    fn action(&self) -> &'static str {
        match self {
            ListChange::Block { .. } => "block",
            ListChange::Unblock { .. } => "unblock",
            ListChange::Exempt { .. } => "exempt",
            ListChange::Unexempt { .. } => "unexempt",
        }
    }

    fn subject(&self) -> String {
        self.pattern().to_string()
    }

    fn prune(document: Lists, now: Micros) -> Lists {
        document.at(now)
    }

    fn part(&self, lists: &Lists) -> Value {
        let list = match self {
            ListChange::Block { .. } | ListChange::Unblock { .. } => &lists.block,
            ListChange::Exempt { .. } | ListChange::Unexempt { .. } => &lists.exempt,
        };
        value(&list.iter().find(|l| l.pattern == *self.pattern()).map(|l| &l.terms))
    }

    fn apply(&self, lists: &mut Lists, stamp: Terms) -> Result<(), RegistryError> {
        let list = match self {
            ListChange::Block { .. } | ListChange::Unblock { .. } => &mut lists.block,
            ListChange::Exempt { .. } | ListChange::Unexempt { .. } => &mut lists.exempt,
        };
        let pattern = self.pattern();
        list.retain(|listed| listed.pattern != *pattern);
        if let ListChange::Block { lasts, .. } | ListChange::Exempt { lasts, .. } = self {
            check_count("patterns in a list", list.len() + 1, MAX_PATTERNS)?;
            list.push(Listed { pattern: pattern.clone(), terms: lasting(stamp, *lasts) });
        }
        Ok(())
    }
}

/// What the switch for the whole limiter is called in the trail.
const EVERY_RULE: &str = "every rule";

impl Edit for Switch {
    type Document = Switches;

    const KIND: Kind = Kind::Switch;

    fn action(&self) -> &'static str {
        match self {
            Switch::Enable { .. } => "rules enable",
            Switch::Disable { .. } => "rules disable",
            Switch::Observe(true) => "rules observe on",
            Switch::Observe(false) => "rules observe off",
            Switch::OnStoreError { .. } => "rules mode",
        }
    }

    fn subject(&self) -> String {
        match self {
            Switch::Enable { rule }
            | Switch::Disable { rule }
            | Switch::OnStoreError { rule, .. } => rule.clone(),
            Switch::Observe(_) => EVERY_RULE.into(),
        }
    }

    fn prune(document: Switches, _now: Micros) -> Switches {
        document
    }

    fn part(&self, switches: &Switches) -> Value {
        match self {
            Switch::Enable { rule } | Switch::Disable { rule } => {
                value(&switches.disabled.get(rule))
            }
            Switch::Observe(_) => value(&switches.observe),
            Switch::OnStoreError { rule, .. } => value(&switches.on_store_error.get(rule)),
        }
    }

    fn apply(&self, switches: &mut Switches, stamp: Terms) -> Result<(), RegistryError> {
        match self {
            Switch::Enable { rule } => {
                switches.disabled.remove(rule);
            }
            Switch::Disable { rule } => {
                check_name("a rule", rule)?;
                switches.disabled.insert(rule.clone(), stamp);
                check_count("disabled rules", switches.disabled.len(), MAX_PATTERNS)?;
            }
            Switch::Observe(on) => switches.observe = on.then_some(stamp),
            Switch::OnStoreError { rule, mode: None } => {
                switches.on_store_error.remove(rule);
            }
            Switch::OnStoreError { rule, mode: Some(mode) } => {
                check_name("a rule", rule)?;
                let grant = Grant { value: mode.name().into(), terms: stamp };
                switches.on_store_error.insert(rule.clone(), grant);
                check_count("rules with a mode", switches.on_store_error.len(), MAX_PATTERNS)?;
            }
        }
        Ok(())
    }
}

fn lasting(stamp: Terms, lasts: Lasts) -> Terms {
    let end = |lasts: Micros| Micros(stamp.at.0.saturating_add(lasts.0)).min(Micros::LAST);
    Terms { until: lasts.map(end), ..stamp }
}

fn value(part: &impl Serialize) -> Value {
    serde_json::to_value(part).expect("plain data becomes JSON")
}

/// Rules and tiers are named as in a rules file.
fn check_name(what: &'static str, name: &str) -> Result<(), RegistryError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(plain);
    if fits { Ok(()) } else { Err(RegistryError::Name { what, name: name.into() }) }
}

fn check_count(what: &'static str, count: usize, most: usize) -> Result<(), RegistryError> {
    if count <= most { Ok(()) } else { Err(RegistryError::TooMany { what, most }) }
}
