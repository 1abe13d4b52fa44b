//! What is wrong with a Redis that keeps quota, what it means, and what to do about it. Looks only,
//! unless it is asked to mend what is safe to mend.

mod access;
mod cluster;
mod facts;
mod keys;
mod replicas;
mod sentinels;
mod server;

use serde::Serialize;

pub use self::access::ROLES;
use self::facts::Facts;
use super::dialect::Dialect;
use super::layout::Layout;
use super::strangers;
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;
use crate::engine::store::redis::{Deployment, Topology};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Limits are wrong, or will be with the next fault.
    Error,
    /// It works, and less well than it could.
    Warning,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which check found it.
    pub check: &'static str,
    pub severity: Severity,
    /// The server, where it is one.
    pub node: Option<String>,
    pub found: String,
    pub means: String,
    /// What to type or to change.
    #[serde(rename = "do")]
    pub remedy: String,
    /// It was mended.
    pub fixed: bool,
    /// What rules call the Redis that was looked at; none: the one that counts what names no other.
    pub store: Option<String>,
}

/// A check, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    pub check: &'static str,
    pub found: usize,
    /// Why it could not be made, or only in part.
    pub skipped: Option<String>,
    pub store: Option<String>,
}

/// All that was looked at.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diagnosis {
    pub findings: Vec<Finding>,
    pub checks: Vec<Checked>,
    /// Worth knowing, and nothing wrong: versions, round trips, how long a failover takes.
    pub facts: Vec<Fact>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    pub about: &'static str,
    pub node: Option<String>,
    pub value: String,
    pub store: Option<String>,
}

/// What to look at.
#[derive(Clone, Debug)]
pub struct Wishes {
    pub layouts: Vec<Layout>,
    /// Mend what is safe to mend.
    pub fix: bool,
    /// What a check of a request may take.
    pub deadline: Micros,
}

impl Diagnosis {
    pub fn has_errors(&self) -> bool {
        self.left(Severity::Error) > 0
    }

    /// How many were not mended.
    pub fn left(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|f| f.severity == severity && !f.fixed).count()
    }

    /// Notes that a check was made, with what it found.
    fn checked(&mut self, check: &'static str, found: Vec<Problem>, skipped: Option<String>) {
        self.checks.push(Checked { check, store: None, found: found.len(), skipped });
        self.findings.extend(found.into_iter().map(|problem| Finding {
            check,
            severity: problem.severity,
            store: None,
            node: problem.node,
            found: problem.found,
            means: problem.means.into(),
            remedy: problem.remedy,
            fixed: problem.fixed,
        }));
    }

    fn fact(&mut self, about: &'static str, node: Option<&str>, value: impl Into<String>) {
        let (node, store) = (node.map(String::from), None);
        self.facts.push(Fact { about, store, node, value: value.into() });
    }

    /// The same of a Redis that rules name.
    pub fn of_store(mut self, store: &str) -> Diagnosis {
        self.findings.iter_mut().for_each(|finding| finding.store = Some(store.into()));
        self.checks.iter_mut().for_each(|check| check.store = Some(store.into()));
        self.facts.iter_mut().for_each(|fact| fact.store = Some(store.into()));
        self
    }

    /// Of a Redis that cannot be looked at.
    pub fn unreachable(error: &StoreError) -> Diagnosis {
        let mut diagnosis = Diagnosis::default();
        server::unreachable(&mut diagnosis, error);
        diagnosis
    }

    /// With that of another Redis, the worst first.
    pub fn merge(&mut self, other: Diagnosis) {
        self.findings.extend(other.findings);
        self.findings.sort_by_key(|finding| finding.severity);
        self.checks.extend(other.checks);
        self.facts.extend(other.facts);
    }
}

/// A finding on its way to its check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    severity: Severity,
    node: Option<String>,
    found: String,
    means: &'static str,
    remedy: String,
    fixed: bool,
}

impl Problem {
    fn new(severity: Severity, found: impl Into<String>, means: &'static str) -> Problem {
        let (node, remedy) = (None, String::new());
        Problem { severity, node, found: found.into(), means, remedy, fixed: false }
    }

    fn error(found: impl Into<String>, means: &'static str) -> Problem {
        Problem::new(Severity::Error, found, means)
    }

    fn warning(found: impl Into<String>, means: &'static str) -> Problem {
        Problem::new(Severity::Warning, found, means)
    }

    fn at(self, node: &str) -> Problem {
        Problem { node: Some(node.into()), ..self }
    }

    fn remedy(self, remedy: impl Into<String>) -> Problem {
        Problem { remedy: remedy.into(), ..self }
    }
}

/// Where nothing of ours is, somebody else's may be. Whoever may not look does without the hint.
async fn other_limiter(diagnosis: &mut Diagnosis, deployment: &Deployment) {
    let layouts = Dialect::shipped().layouts.into_iter();
    let layouts: Vec<Layout> = layouts.map(|layout| Layout::Foreign(Box::new(layout))).collect();
    if let Ok(Some(key)) = strangers::example(deployment, &layouts).await {
        let hint = format!("`{key}` looks like one's: --dialect shipped examines those");
        diagnosis.fact("another limiter", None, hint);
    }
}

/// Makes every check that can be made. `tell` hears how far it has come.
pub async fn examine(
    deployment: &Deployment,
    wishes: &Wishes,
    mut tell: impl FnMut(String),
) -> Result<Diagnosis, StoreError> {
    let mut diagnosis = Diagnosis::default();
    let map = deployment.map();
    tell("asking every server about itself".into());
    let facts = facts::gather(deployment).await;
    server::reachable(&mut diagnosis, &facts);
    let told: Vec<&Facts> = facts.iter().filter_map(|(_, facts)| facts.as_ref().ok()).collect();
    server::examine(&mut diagnosis, &told, wishes.deadline);
    access::examine(&mut diagnosis, &map.primaries, &wishes.layouts).await;
    tell("comparing replicas with their masters".into());
    replicas::lag(&mut diagnosis, deployment, &told).await;
    let looked = keys::examine(&mut diagnosis, deployment, wishes, &mut tell).await?;
    if looked.keys == 0 && matches!(wishes.layouts.as_slice(), [Layout::Own(_)]) {
        other_limiter(&mut diagnosis, deployment).await;
    }
    replicas::agree(&mut diagnosis, deployment, &looked.sample).await;
    server::scripts(&mut diagnosis, &map.primaries, &looked, wishes.fix).await;
    match map.topology {
        Topology::Cluster => {
            cluster::examine(&mut diagnosis, &map, &told, &looked).await;
        }
        Topology::Sentinel => sentinels::examine(&mut diagnosis, deployment).await,
        Topology::Standalone => {}
    }
    diagnosis.findings.sort_by_key(|finding| finding.severity);
    Ok(diagnosis)
}
